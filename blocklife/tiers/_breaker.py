"""A circuit breaker: a store that keeps failing is left alone, and tried again at growing intervals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from attrs import define, evolve

from blocklife.errors import MisuseError
from blocklife.tiers._states import Circuit, CircuitLife


@define
class BreakerStatistics:
    """What a `CircuitBreaker` has seen so far."""

    is_down: bool = False
    """Whether the store counts as down now."""
    failures: int = 0
    """Calls that failed."""
    times_down: int = 0
    """How often the store was given up."""
    probes: int = 0
    """Calls that were let through while it was down."""
    refused: int = 0
    """Calls that were not made because it was down."""


class CircuitBreaker:
    """Says whether to call a store. Shared by all that call it for one purpose, to get or to put; thread-safe.

    After *max_failures* calls in a row that failed, the store counts as down: `allows` is False, but for one call (a probe)
    after *first_wait_s* seconds, then after twice as long, up to *longest_wait_s*. One call that succeeds ends it. A probe that
    hangs delays no other: the next is due at its own time.
    """

    def __init__(
        self,
        max_failures: int = 5,
        *,
        first_wait_s: float = 0.5,
        longest_wait_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_failures < 1 or not 0 < first_wait_s <= longest_wait_s:
            waits = f"{max_failures} failures, waits of {first_wait_s} to {longest_wait_s} s"
            raise MisuseError(f"circuit breaker: {waits} make none (give at least 1, and growing waits above 0)")
        self._max_failures = max_failures
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._clock = clock
        self._lock = threading.Lock()
        # `_wait_s` is the current interval while the store is down; at its end, `_next_probe`, a call is let through.
        self._life = CircuitLife()
        self._in_a_row = 0
        self._wait_s = self._next_probe = 0.0
        self._counts = BreakerStatistics()

    def allows(self) -> bool:
        """Whether to make a call now. Who gets True makes it, and says how it ended."""
        with self._lock:
            if self._life.state is Circuit.UP:
                return True
            if self._left_s() > 0:
                self._counts.refused += 1
                return False
            self._life.probe()
            self._counts.probes += 1
            self._wait(2 * self._wait_s)
            return True

    def refuses(self) -> bool:
        """Whether `allows` would be False now. Asking this is no call."""
        return self.next_probe_s() > 0

    def succeeded(self) -> None:
        """A call ended as it should; what it found does not matter."""
        with self._lock:
            self._life.succeed()
            self._in_a_row = 0

    def failed(self) -> None:
        """A call failed, or did not come back in time."""
        with self._lock:
            was_up = self._life.state is Circuit.UP
            self._counts.failures += 1
            self._in_a_row += 1
            self._life.fail(enough=self._in_a_row >= self._max_failures)
            if was_up and self._life.state is Circuit.DOWN:
                self._counts.times_down += 1
                self._wait(self._first_wait_s)

    def next_probe_s(self) -> float:
        """In how many seconds a call is let through again; 0 if one would be now."""
        with self._lock:
            return self._left_s()

    def statistics(self) -> BreakerStatistics:
        """Counts since the start."""
        with self._lock:
            return evolve(self._counts, is_down=self._life.state is Circuit.DOWN)

    def _left_s(self) -> float:
        return max(0.0, self._next_probe - self._clock()) if self._life.state is Circuit.DOWN else 0.0

    def _wait(self, wait_s: float) -> None:
        self._wait_s = min(wait_s, self._longest_wait_s)
        self._next_probe = self._clock() + self._wait_s
