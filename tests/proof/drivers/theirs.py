"""Errors of an engine under a scenario: told by their kind, their text and the place where they came up.

For drivers that call the engine's own code, whatever the engine is.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import blocklife

_OURS = (Path(blocklife.__file__).parent, Path(__file__).parent)
"""The package and the drivers."""


class RaisedInside(Exception):  # noqa: N818 - the engine's error, with the place where it came up
    """The engine has raised an error."""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return list(traceback.extract_tb(error.__traceback__))


def is_theirs(error: BaseException) -> bool:
    """Whether the error came up outside of the package and of the drivers."""
    return not any(Path(_frames(error)[-1].filename).is_relative_to(folder) for folder in _OURS)


def error_told(error: BaseException) -> str:
    """An error of an engine, with its innermost location."""
    place = _frames(error)[-1]
    said = type(error).__name__ + (f" ({error})" if str(error) else "")
    return f"{said} in {Path(place.filename).name}:{place.lineno} {place.name}"
