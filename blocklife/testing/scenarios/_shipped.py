"""Where the scenarios of the package lie, and which file a name means. It imports nothing, so that a slip costs no time."""

from __future__ import annotations

import os
from pathlib import Path

SHIPPED = Path(__file__).parent / "cases"
"""The scenarios of the package; those for engines that decide for themselves are in its folders ``vllm``,
``sglang`` and ``lmcache``."""


def meant(text: str) -> Path:
    """The file or folder of a name: one that is there, or else one of the package; if there is neither, the name itself."""
    path = Path(text)
    if os.path.lexists(path) or path.is_absolute() or ".." in path.parts:
        return path
    shipped = SHIPPED / path
    if os.path.isdir(shipped):
        return shipped
    shipped = shipped.with_name(f"{shipped.name.removesuffix('.toml')}.toml")
    return shipped if os.path.isfile(shipped) else path


def near(text: str) -> list[str]:
    """The names of scenarios and folders of the package that are most like this one, at most three."""
    import difflib

    paths = [
        path.relative_to(SHIPPED).with_suffix("") for path in SHIPPED.rglob("*") if path.is_dir() or path.suffix == ".toml"
    ]
    names = {path.as_posix().lower(): path.as_posix() for path in sorted(paths)}
    return [names[each] for each in difflib.get_close_matches(text.removesuffix(".toml").lower(), names, 3)]
