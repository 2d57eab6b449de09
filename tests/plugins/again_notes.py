"""What `tests.again` wants of a run of pytest: which tests have failed, what else went wrong; and, the second time, only those.

It is loaded by its own name, because in the folder of an engine's own tests `tests` is another package. So it needs the
standard library and pytest, and nothing of ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path

import pytest

NOTES = "BLOCKLIFE_AGAIN_NOTES"
"""The environment variable that names the file for the notes."""
ONLY = "BLOCKLIFE_AGAIN_ONLY"
"""The one that has the tests to run, in JSON; where it is not set, all are run."""
SHARED = "BLOCKLIFE_AGAIN_SHARED"
"""The one that names a folder in which the workers of a run share what they make."""
shared: str | None = None
"""That folder, in a process that runs tests; what a test starts does not know it."""
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""It is loaded here, for in a process that has just been forked it could wait for ever."""
_PR_SET_PDEATHSIG = 1
_CRASHED = "???"
"""When a test has failed, in pytest-xdist's words, whose worker is gone."""


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Get this signal when whoever has started this process is gone, however it went. Does nothing where there is no Linux."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


class Notes:
    """Of one run, written at its end: a run that was killed leaves none."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.failed: dict[str, None] = {}
        self.passed: list[str] = []
        self.beside: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.when == _CRASHED:
            self.beside.append(f"{report.nodeid} has crashed")
        elif report.failed:
            self.failed[report.nodeid] = None
        elif report.passed and report.when == "call":
            self.passed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.beside.append(f"{report.nodeid} cannot be collected")

    def pytest_internalerror(self) -> None:
        self.beside.append("pytest itself has failed")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.shouldfail or session.shouldstop:
            self.beside.append("the run was cut short")
        noted = {"failed": list(self.failed), "passed": self.passed, "beside": self.beside}
        self.file.write_text(json.dumps(noted), encoding="utf-8")


class Selection:
    """Of the tests that have failed; other files are not even imported."""

    def __init__(self, root: Path, wanted: set[str]) -> None:
        self.wanted = wanted
        self.files = {root / each.partition("::")[0] for each in wanted}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.is_file() and collection_path not in self.files else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[each for each in items if each.nodeid not in self.wanted])
        items[:] = [each for each in items if each.nodeid in self.wanted]


def pytest_configure(config: pytest.Config) -> None:
    """A worker dies with the run, and the run with whoever has started it."""
    global shared
    die_with_parent()
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None):
        shared = os.environ.pop(SHARED, None)
    if is_worker:
        return
    config.pluginmanager.register(Notes(Path(os.environ[NOTES])))
    if wanted := os.environ.get(ONLY):
        config.pluginmanager.register(Selection(config.rootpath, set(json.loads(wanted))))
