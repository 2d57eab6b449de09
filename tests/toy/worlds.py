"""Small worlds for replays: a workload, the options that press it, and a run that must come to an end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from blocklife.copiers import FaultRates
from blocklife.engines.toy import Replay, ReplayOptions, ReplayReport, WorkloadRequest, generate_workload
from blocklife.ledger import Checking, Contract
from blocklife.offload import Geometry, Mode

STEPS_MAX = 60_000
"""No small world needs so many; what does, hangs."""
TIMINGS = ("scheduler_us_per_step", "seconds")
BAD_DAY = FaultRates(fail=0.1, late=0.1, twice=0.1, reorder=0.1, never=0.05)
PLAIN, WINDOWED, HYBRID = "full:64", "full:64,swa:32:200", "full:32,swa:64:300,mamba:128"
LOADING: dict[str, Any] = {"gpu_blocks": 30, "host_slots": 500, "max_running": 1, "deadline": 64}
"""Requests come one at a time, and find on the host what the device had to give up."""


def chats(requests: int = 12, seed: int = 0, **changes: Any) -> list[WorkloadRequest]:
    """Short conversations that come fast and share much."""
    given: dict[str, Any] = {
        "max_input_length": 1_500,
        "mean_first_prompt_tokens": 400,
        "mean_new_prompt_tokens": 150,
        "mean_output_tokens": 30,
        "num_system_prompts": 2,
        "system_prompt_tokens": 600,
        "mean_turns": 3,
        "mean_think_s": 0.1,
        "requests_per_second": 50,
    }
    return generate_workload(requests=requests, seed=seed, **{**given, **changes})


def most(workload: Sequence[WorkloadRequest], geometry: Geometry) -> int:
    """Blocks that the longest request would need without any window."""
    longest = max(request.input_length + request.output_length - 1 for request in workload)
    return sum(-(-longest // tokens) for tokens in geometry.block_tokens)


def longest(workload: Sequence[WorkloadRequest], block_tokens: int = 64) -> int:
    """Blocks of so many tokens that the longest request needs."""
    return most(workload, Geometry.parse(f"full:{block_tokens}"))


def options(workload: Sequence[WorkloadRequest], groups: str = "", blocks_per_chunk: int = 1, **changes: Any) -> ReplayOptions:
    """A small world: blocks for two of the longest requests, a host tier for some more.

    Without *groups*, one of full attention, whose copies are under more pressure.
    """
    geometry = Geometry.parse(groups or f"full:{changes.pop('block_tokens', 64)}", blocks_per_chunk)
    blocks = most(workload, geometry)
    given: dict[str, Any] = {"groups": geometry, "gpu_blocks": 2 * blocks + 1, "block_bytes": 16}
    if groups:
        given |= {"host_slots": 8 * blocks // blocks_per_chunk, "link_blocks": 16, "max_jobs": 8, "deadline": 32}
    else:
        given |= {"host_slots": 4 * blocks, "link_blocks": 4, "max_jobs": 4, "deadline": 16}
    return ReplayOptions(**{**given, **changes})


def world(requests: int = 20, seed: int = 0, **changes: Any) -> tuple[list[WorkloadRequest], ReplayOptions]:
    """A workload, and a world that is too small for it."""
    workload = chats(requests, seed)
    return workload, options(workload, seed=seed, **changes)


def random_world(seed: int) -> tuple[list[WorkloadRequest], ReplayOptions]:
    """A workload and a world whose every option is drawn."""
    pick = random.Random(seed).choice
    kinds = (
        *(f"full:{tokens}" for tokens in (16, 32, 64, 128, 256, 512)), "swa:16:1", "swa:32:100", "swa:64:64", "swa:16:700",
        "mamba:16", "mamba:128",
    )  # fmt: skip
    groups = ",".join(pick(kinds) for _ in range(pick([1, 1, 2, 3, 4])))
    workload = chats(
        pick([3, 8, 20, 30]), seed, max_input_length=pick([700, 1_500, 3_000]), mean_output_tokens=pick([2, 20, 60]),
        num_system_prompts=pick([0, 2]), mean_turns=pick([1, 4]),
    )  # fmt: skip
    blocks = most(workload, Geometry.parse(groups))
    return workload, options(
        workload,
        groups,
        pick([1, 1, 2, 3, 4, 5]),
        gpu_blocks=pick([blocks // 2 + 2, blocks + 1, blocks + 2, 2 * blocks, 4 * blocks]),
        host_slots=pick([1, blocks, 5 * blocks, 20 * blocks]),
        block_bytes=pick([8, 16, 64, 128]),
        mode=pick(list(Mode)),
        asynchronous=pick([False, True]),
        policy=pick(["lru", "arc"]),
        workers=pick([1, 1, 2, 3]),
        contract=pick(list(Contract)),
        checking=pick(list(Checking)),
        faults=pick([None, FaultRates.default(), BAD_DAY, FaultRates(*(pick([0.0, 0.1, 0.5, 1.0]) for _ in range(5)))]),
        seed=seed,
        step_tokens=pick([17, 64, 512, 8_192]),
        max_running=pick([1, 2, 8, 256]),
        link_blocks=pick([1, 2, 8, 24]),
        max_jobs=pick([1, 2, 4, 32]),
        deadline=pick([1, 4, 16, 128]),
        speed=pick([None, None, 1e-3, 10.0, 1e9]),
        verify=pick([1.0, 1.0, 0.3]),
        abort=pick([None, 0.0, 0.2, 1.0]),
    )


def run(
    workload: Sequence[WorkloadRequest], chosen: ReplayOptions, watch: Callable[[Replay], None] = lambda _: None
) -> ReplayReport:
    """Replay to the end; a world that does not end, and a thread that outlives it, fail."""
    replay = Replay(workload, chosen)

    def tick() -> None:
        watch(replay)
        if replay.engine.counts.steps > STEPS_MAX:
            pytest.fail(f"no end after {STEPS_MAX} steps: {chosen}")

    report = replay.run(progress=tick)

    assert not threads()
    return report


def threads() -> list[str]:
    """The threads of blocklife."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("blocklife")]


def untimed(report: ReplayReport) -> dict[str, Any]:
    """A report without what a clock has measured."""
    return {name: value for name, value in attrs.asdict(report).items() if name not in TIMINGS}


def assert_clean(report: ReplayReport) -> None:
    assert report.violation_messages == []
    assert (report.corrupt_blocks, report.leaked_places, report.violations) == (0, 0, 0)
    assert report.clean
