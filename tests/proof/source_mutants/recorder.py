"""A pytest plugin that notes which test executes which line, and what each test costs. Used by `lines.py` in the copy.

Lines that a process runs which a test has started count as the test's: such a process measures itself, and finds the test's
name in the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

TEST = "BLOCKLIFE_MUTANTS_TEST"
"""Environment variable: the test that runs. Settings of coverage read it."""
COSTS = "BLOCKLIFE_MUTANTS_COSTS"
"""Environment variable: the file for the costs."""

_costs: dict[str, float] = {}
_unfit: set[str] = set()


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Whatever is executed from here on, fixtures included, is this test's."""
    measuring = coverage.Coverage.current()
    assert measuring is not None, "coverage was not started with this process"
    os.environ[TEST] = item.nodeid
    measuring.switch_context(item.nodeid)
    before = _cpu_s()
    try:
        return (yield)
    finally:
        _costs[item.nodeid] = round(_cpu_s() - before, 4)
        measuring.switch_context("")
        os.environ[TEST] = ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that is skipped or fails as things are can judge nothing."""
    if not report.passed:
        _unfit.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write what the fit tests cost, in seconds of processor time."""
    fit = {name: cost for name, cost in _costs.items() if name not in _unfit}
    found = {"fit": fit, "unfit": sorted(_unfit), "whole": round(_cpu_s(), 2)}
    Path(os.environ[COSTS]).write_text(json.dumps(found), encoding="utf-8")
