"""Test modules that are not imported where they cannot run: each is skipped, and says why."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NoReturn

import pytest

from tests.programs import ENGINES


class Absent(pytest.Module):
    """A test module that is not imported."""

    why: str

    def collect(self) -> NoReturn:
        """No test: a reason."""
        pytest.skip(self.why, allow_module_level=True)


def absent(path: Path, parent: pytest.Collector, why: str | None) -> Absent | None:
    """What is collected of a module for which there is a reason not to be run; None where there is none."""
    if why is None:
        return None
    found: Absent = Absent.from_parent(parent, path=path)
    found.why = why
    return found


def why_not(engine: str, name: str, need_nothing: Collection[str], out_of_place: Callable[[str], str | None]) -> str | None:
    """Why a module of the tests of an *engine* (``vllm``) is not run, if it is not.

    Those that *need_nothing* of it run where it is not, the others where it is, unless they are *out_of_place* in its release.
    """
    called = ENGINES[engine]
    if importlib.util.find_spec(engine) is None:
        return None if name in need_nothing else f"{called} is not here (make {engine} test-{engine})"
    return f"it needs no {called} (make unit runs it)" if name in need_nothing else out_of_place(name)
