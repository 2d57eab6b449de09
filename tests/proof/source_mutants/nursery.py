"""Runs tests in forks of a process that has imported what is slow to import, and nothing of the project. Stands alone.

Started as a script by `judging.py`, with the copy as its folder, and options of pytest as its arguments. Each line of its input
asks for one run (`Task`), each line of its output answers one (`Answer`). A run that takes too much processor time,
wall time or memory is ended, with what it started.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import pytest

WARM = (
    *("attrs", "hypothesis", "hypothesis.stateful", "networkx", "numpy", "numpy.testing", "rich.console", "rich.table"),
    *("_pytest.pytester", "torch", "torch.distributed", "transitions.extensions", "xdist.plugin", "tomllib", "subprocess"),
    *("vllm.v1.core.sched.async_scheduler", "vllm.distributed.kv_transfer.kv_connector.factory", "vllm.v1.simple_kv_offload"),
)
MEMORY_BYTES = 12 << 30
OPTIONS = ("-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--assert=plain")


class Task(TypedDict):
    """One run: tests in the order in which they are to run, and its limits."""

    files: list[str]
    tests: list[str]
    cpu_s: int
    wall_s: int


class Answer(TypedDict):
    """What came of it. ``failed`` is the test that failed, or what else went wrong; empty if nothing did."""

    failed: str
    late: bool
    num_ran: int


class Chosen:
    """A pytest plugin: only some tests, in a given order, and what came of them."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._rank = {name: number for number, name in enumerate(tests)}
        self.failed = ""
        self.num_ran = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self._rank), key=lambda item: self._rank[item.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (cannot be collected)"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.num_ran += report.when == "call"
        if report.failed and not self.failed:
            self.failed = report.nodeid


def in_child(task: Task, told: int) -> None:
    """Be the run: never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (task["cpu_s"], task["cpu_s"] + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        chosen = Chosen(task["tests"])
        status = pytest.main([*OPTIONS, *sys.argv[1:], *task["files"]], plugins=[chosen])
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not chosen.failed:
            chosen.failed = f"pytest ({status})"
        answer: Answer = {"failed": chosen.failed, "late": False, "num_ran": chosen.num_ran}
        os.write(told, json.dumps(answer).encode())
        code = 0
    finally:
        os._exit(code)


def run(task: Task) -> Answer:
    """One run in a fork."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        in_child(task, told)
    os.close(told)
    try:
        handle = os.pidfd_open(child)
        ended = select.select([handle], [], [], task["wall_s"])[0]
        os.close(handle)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # whatever it has started, too
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    os.set_blocking(heard, False)  # a process that it left behind may hold the other end
    try:
        said = os.read(heard, 1 << 16)
    except BlockingIOError:
        said = b""
    os.close(heard)
    if said:
        answer: Answer = json.loads(said)
        return answer
    if not ended or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)):
        return {"failed": "", "late": True, "num_ran": 0}
    return {"failed": "the run (it ended without a word)", "late": False, "num_ran": 0}


def _stopped(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Serve until the input ends, or a signal comes."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _stopped)
    sys.path[:] = [os.getcwd(), *(each for each in sys.path if each and Path(each) != Path(__file__).parent)]
    for name in WARM:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    print(json.dumps("ready"), flush=True)
    with suppress(KeyboardInterrupt):
        for line in sys.stdin:
            print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
