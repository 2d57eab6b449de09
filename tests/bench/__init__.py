"""What things cost, as ratios to what a peer costs in the same run.

Rules: a figure is a median of several repetitions, in the processor's time, unless a suite waits and says so; ours and the
peer's are measured in one process, in turns where steps are compared; nothing here asserts a time. A suite is a module with a
function ``measure(scale) -> list[Figure]``, named in `SUITES` of `__main__`.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

from attrs import frozen

from blocklife.cli._built import examine

RUNNING = "compiled" if examine().compiled else "interpreted"
"""How the core runs that is measured here."""


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
    core: str = RUNNING
    """Which core ran."""

    @property
    def ratio(self) -> float | None:
        """Ours as a share of the peer's, be it a cost or a rate; None without a peer."""
        return self.ours / self.peer if self.peer else None


@frozen(kw_only=True)
class Scale:
    """How much is measured: enough for a stable median, or just enough to see that it runs."""

    repetitions: int = 7
    calls: int = 20_000
    sizes: tuple[int, ...] = (10_000, 100_000)
    models: int = 1_000
    silent: int = 1_000_000
    """Steps in which nothing changes."""

    @property
    def full(self) -> bool:
        """Whether the figures are meant to be read."""
        return self.models >= 1_000


FULL = Scale()
SMOKE = Scale(repetitions=2, calls=20, sizes=(100, 200), models=10, silent=200)


def nanoseconds(repeat: Callable[[int], object], scale: Scale, calls: int = 0) -> float:
    """Median cost of one call in nanoseconds; *repeat* makes as many calls as it is told."""
    number = calls or scale.calls
    repeat(min(number, 100))
    found = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(scale.repetitions):
            start = time.thread_time_ns()
            repeat(number)
            found.append((time.thread_time_ns() - start) / number)
    finally:
        if collecting:
            gc.enable()
    return statistics.median(found)


TURN = 8
"""Steps of one of several before the next has its turn."""


def microseconds(steps: Mapping[str, Callable[[], object]], count: int) -> dict[str, float]:
    """The median cost of each step, of *count* of them made in turns, after a first third that warms up.

    The order rotates, so that whatever slows the machine down slows all alike, and nobody always follows the same one.
    """
    found: dict[str, list[int]] = {name: [] for name in steps}
    names = list(steps)
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(-(-count // TURN)):
            for name in names:
                step, times = steps[name], found[name]
                for _ in range(min(TURN, count - len(times))):
                    start = time.thread_time_ns()
                    step()
                    times.append(time.thread_time_ns() - start)
            names.append(names.pop(0))
    finally:
        if collecting:
            gc.enable()
    return {name: statistics.median(times[count // 3 :]) / 1e3 for name, times in found.items()}
