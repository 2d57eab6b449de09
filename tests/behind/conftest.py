"""Tests that need an engine run in the environment of each; all others where there is none."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.behind import engine_here
from tests.behind.absent import absent
from tests.programs import ENGINES

NEED_ENGINE = {"test_planted_bugs.py"}


def why_not(name: str) -> str | None:
    """Why a module is not run here, if it is not."""
    if (engine := engine_here()) is None:
        return "no engine is here (make test-vllm test-sglang)" if name in NEED_ENGINE else None
    if name not in NEED_ENGINE:
        return "it needs no engine (make unit runs it)"
    release, made_for = import_module(f"tests.{engine}.engine").RELEASE, import_module(f"tests.{engine}.planted").MADE_FOR
    return None if release == made_for else f"bugs are planted in {ENGINES[engine]} {made_for}"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need an engine from being imported without one, and leave the others to ``make unit``."""
    return absent(module_path, parent, why_not(module_path.name))
