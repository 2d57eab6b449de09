"""A million steps in which nothing changes: what one takes, and what the process holds, first, half way, and last.

Both must be flat. Requests run and none is scheduled, others wait, all stores have landed: the engine asks for a plan and
settles it. A process of its own, for memory that something else has given back would hide what these steps take.
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from attrs import frozen

from tests.bench import Figure, Scale
from tests.bench.offload import LAG, World

RUNNING, IDLE = 64, 1_000
MOMENTS = ("at the start", "in the middle", "at the end")
PIECES = 10
"""The median of so many pieces is what a step takes at one moment."""


@frozen
class Moment:
    """What was found somewhere on the way."""

    step_us: float
    resident_bytes: int
    objects: int
    """Pieces of memory that Python's own allocator has given out: one that is kept in each thousand steps is seen."""


def resident_bytes() -> int:
    """What the process holds in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def moments(steps: int) -> list[Moment]:
    """Make so many silent steps. A tenth of them is timed at each of the three moments."""
    world = World(RUNNING, IDLE, 4 * LAG)
    for _ in range(4 * LAG):
        world.step()
    while world.ledger.has_pending_work():
        world.step(scheduled=False)
    piece = max(1, steps // 10 // PIECES)

    def run(count: int) -> float:
        begin = time.thread_time_ns()
        for _ in range(count):
            world.step(scheduled=False)
        return (time.thread_time_ns() - begin) / count / 1e3

    def moment() -> Moment:
        took = statistics.median(run(piece) for _ in range(PIECES))
        gc.collect()
        return Moment(took, resident_bytes(), sys.getallocatedblocks())

    run(piece)  # warms up
    found = [moment()]
    for _ in MOMENTS[1:]:
        run(max(1, (steps - 3 * PIECES * piece) // 2))
        found.append(moment())
    return found


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(moments, scale.silent).result()
    figures = []
    for what, unit, values in (
        ("a silent step", "us", [each.step_us for each in found]),
        ("memory of the process", "MiB", [each.resident_bytes / 2**20 for each in found]),
        ("objects of the process", "objects", [float(each.objects) for each in found]),
    ):
        figures.append(Figure(name=f"{what}, {MOMENTS[0]} of {scale.silent:,}", ours=values[0], unit=unit))
        for moment, value in zip(MOMENTS[1:], values[1:], strict=True):
            name = f"{what}, {moment} of {scale.silent:,}"
            figures.append(
                Figure(name=name, ours=value, unit=unit, peer_name=f"ours, {MOMENTS[0]}", peer=values[0], target="flat")
            )
    return figures
