"""The benchmark of conversations runs behind a real vLLM, and fails where a prefix comes from elsewhere than it says.

Method: the program as a user runs it, with the smallest model and a workload of seconds; what it measures here says nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.interrupts import interruptible
from tests.model.bench.records import VARIANTS, from_json

TINY = ("--model", "full", "--prefix", "130", "--sessions", "3", "--turns", "2", "--rounds", "1", "--threads", "1")


def command(*words: str) -> Sequence[str]:
    """The program, with the tiny workload."""
    return (sys.executable, "-W", "ignore", "-m", "tests.model.bench", *TINY, *words)


@pytest.mark.slow
def test_every_row_has_the_same_tokens_and_hits_from_where_it_says(tmp_path: Path) -> None:
    ran = subprocess.run(command("--json"), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    report = from_json(ran.stdout)
    rows = {row.variant.name: row for row in report.rows()}
    answers = [[said.answer for each in rounds for said in each.said] for rounds in report.rounds.values()]

    assert list(rows) == list(VARIANTS)
    assert all(row.troubles == () for row in rows.values())
    assert len(answers[0]) == 3 * 2
    assert answers == [answers[0]] * len(VARIANTS)
    assert len(set(answers[0])) > 1, "all requests were answered alike: equal answers prove nothing"
    shared = 6 * (130 // 32 * 32)
    found = {name: (row.on_host >= shared, row.on_device >= shared) for name, row in rows.items()}
    expected = {"computed": (False, False), "blocklife": (True, False), "offloading": (True, False), "device": (False, True)}
    assert found == expected
    again = tmp_path / "report.json"
    again.write_text(ran.stdout, encoding="utf-8")
    printed = subprocess.run(command("--from", str(again)), capture_output=True, text=True, check=True)
    assert all(variant.what in printed.stdout for variant in VARIANTS.values())


@pytest.mark.slow
def test_row_fails_whose_prefix_stays_on_the_device() -> None:
    """A device with room for all: what returns is still there, and is not loaded from the host."""
    ran = subprocess.run(
        command("--variants", "blocklife", "--device-blocks", "400"), capture_output=True, text=True, check=False
    )

    assert ran.returncode == 1, ran.stderr
    assert "blocklife does not count: " in ran.stderr
    assert "6 of 6 requests found less than 128 tokens on the host" in ran.stderr
    assert "6 of 6 requests found tokens on the device" in ran.stderr


@pytest.mark.slow
def test_interrupt_ends_all_engines() -> None:
    with interruptible():
        running = subprocess.Popen(
            command("--rounds", "1000", "--variants", "device"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
    try:
        assert running.stderr is not None
        first = running.stderr.readline()
        engines = children(running.pid)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate()
    finally:
        running.kill()

    assert "warm-up" in first, first + err
    assert len(engines) == 2
    assert (running.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "stopped"
    assert "Traceback" not in err
    assert not [each for each in engines if Path(f"/proc/{each}").exists()]


def children(parent: int) -> list[int]:
    """The processes that a process has started."""
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="utf-8")
    return [int(each) for each in listed.split() if int(each) != os.getpid()]
