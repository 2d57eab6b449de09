"""What things cost, as ratios to what a peer costs in the same run.

Rules: a figure is a median of several repetitions; ours and the peer's are measured one after the other in one process; nothing
here asserts a time. A suite is a module with a function ``measure(scale) -> list[Figure]``, named in `SUITES` of `__main__`.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

from attrs import frozen


@frozen(kw_only=True)
class Figure:
    """One thing that was measured, and the same thing done by a peer."""

    name: str
    ours: float
    unit: str
    peer_name: str = ""
    peer: float | None = None
    target: str = ""
    """Where the bar is, in words; nobody is failed by it."""

    @property
    def ratio(self) -> float | None:
        """How many times the peer's cost ours is below; None without a peer."""
        return None if self.peer is None or self.ours == 0 else self.peer / self.ours


@frozen(kw_only=True)
class Scale:
    """How much is measured: enough for a stable median, or just enough to see that it runs."""

    repetitions: int = 7
    calls: int = 20_000
    sizes: tuple[int, ...] = (10_000, 100_000)
    models: int = 1_000


FULL = Scale()
SMOKE = Scale(repetitions=2, calls=20, sizes=(100, 200), models=10)


def nanoseconds(repeat: Callable[[int], object], scale: Scale, calls: int = 0) -> float:
    """Median cost of one call in nanoseconds; *repeat* makes as many calls as it is told."""
    number = calls or scale.calls
    repeat(min(number, 100))
    found = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(scale.repetitions):
            start = time.perf_counter_ns()
            repeat(number)
            found.append((time.perf_counter_ns() - start) / number)
    finally:
        if collecting:
            gc.enable()
    return statistics.median(found)
