"""A pytest plugin: some tests only, in a given order, and what came of them. `judging.py` starts it in the copy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypedDict

import pytest

TASK = "BLOCKLIFE_MUTANTS_TASK"
"""Environment variable: the file with the names of the tests. What came of them goes into it."""


class Answer(TypedDict):
    """What came of a run. ``failed`` is the test that failed, or what else went wrong; empty if nothing did."""

    failed: str
    late: bool


_failed: list[str] = []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the others out. A name that is not there any more is no failure."""
    rank = {name: number for number, name in enumerate(json.loads(Path(os.environ[TASK]).read_text(encoding="utf-8")))}
    items[:] = sorted((item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported fails, too."""
    if report.failed:
        _failed.append(f"{report.nodeid} (cannot be collected)")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The first failure counts."""
    if report.failed:
        _failed.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """Write it down."""
    fine = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    answer: Answer = {"failed": _failed[0] if _failed else "" if fine else f"pytest ({exitstatus})", "late": False}
    Path(os.environ[TASK]).write_text(json.dumps(answer), encoding="utf-8")
