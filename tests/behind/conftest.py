"""Tests that need an engine run in the environment of each; all others where there is none."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.behind import engine_here
from tests.behind.absent import absent

NEED_ENGINE = {"test_planted_bugs.py", "test_reports.py", "test_scenarios.py"}


def why_not(name: str) -> str | None:
    """Why a module is not run here, if it is not."""
    if (engine := engine_here()) is None:
        return "no engine is here (make test-vllm test-sglang test-lmcache)" if name in NEED_ENGINE else None
    if name not in NEED_ENGINE:
        return "it needs no engine (make unit runs it)"
    why: str | None = import_module(f"tests.{engine}.conftest").out_of_place(name)
    return why


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Keep modules that need an engine from being imported without one, and leave the others to ``make unit``."""
    return absent(module_path, parent, why_not(module_path.name))
