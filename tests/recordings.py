"""Recordings for tests: a run under pressure and faults, and lines that are written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from blocklife.copiers import FaultRates
from blocklife.engines.toy import Replay, ReplayOptions, ReplayReport, generate_workload
from blocklife.recording import Lives, Recorder, open_recording

FAULTS = FaultRates(fail=0.1, late=0.1, twice=0.1, reorder=0.1, never=0.05)

Line = Mapping[str, object]


def recorded(
    path: Path,
    *,
    clock: Callable[[], int] | None = None,
    prompts: int = 1_000,
    seed: int = 0,
    begun: Callable[[Replay], object] = lambda _: None,
    **changes: Any,
) -> ReplayReport:
    """Record a run in which copies fail, hang and come late, clients go away, and blocks are rare; its report, which is clean.

    *begun* is called with the replay, once it is recorded.
    """
    workload = generate_workload(requests=60, seed=seed, mean_first_prompt_tokens=prompts, max_input_length=6_000)
    small: dict[str, Any] = {"gpu_blocks": 120, "host_slots": 300, "block_bytes": 8, "link_blocks": 4, "deadline": 16}
    replay = Replay(workload, ReplayOptions(**{**small, "faults": FAULTS, "abort": 0.1, "workers": 2, **changes}))
    with path.open("w") as stream:
        recorder = Recorder(stream, clock)
        recorder.begin(replay.ledger)
        begun(replay)
        report = replay.run()
        recorder.end()

    assert report.clean
    return report


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The steps of a recording."""
    return (line for line in map(json.loads, path.read_text().splitlines()) if "blocklife" not in line)


def read(path: Path) -> Lives:
    """The lives of a recording."""
    with open_recording(str(path)) as recording:
        return Lives.of(recording)


# --- by hand -----------------------------------------------------------------------------------------------------------


def written(path: Path, *lines: Line | str) -> Path:
    """A recording of these lines, behind the head of a small ledger."""
    limits = {"num_blocks": 5, "num_slots": 3, "max_jobs": 4, "max_requests": 4, "num_workers": 1}
    head: Line = {"blocklife": "recording", "version": 3, "limits": limits, "contract": "fence"}
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in (head, *lines)))
    return path


def step(n: int, plan: int, place: str, row: str, **more: object) -> Line:
    """One line: ``step(1, 0, "block 1", "FREED allocate ALLOCATED")``."""
    machine, number = place.split()
    source, event, target = row.split()
    said = {"n": n, "plan": plan, "machine": machine, "id": int(number), "event": event, "from": source, "to": target}
    return {**said, **({"epoch": 0} if machine == "block" else {}), **more}


def at(ns: int) -> Line:
    """The line of a time."""
    return {"blocklife": "at", "ns": ns}


def refusal(place: str, state: str, event: str, plan: int = 0) -> Line:
    """The line of a refused event."""
    machine, number = place.split()
    return {"blocklife": "refused", "plan": plan, "machine": machine, "id": int(number), "event": event, "from": state}
