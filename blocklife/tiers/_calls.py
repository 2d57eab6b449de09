"""Calls of a store: who closes it waits for those that run; and one that takes too long is told, once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from blocklife.tiers._states import Call, CallLife


class RunningCalls:
    """The calls that run in a store. Thread-safe."""

    def __init__(self) -> None:
        # Invariant: `_running` is the number of calls that run; what they use is released once `closed` is set and it is 0.
        self._changed = threading.Condition()
        self._running = 0
        self.closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[bool]:
        """While a call runs; gives whether the store is open."""
        with self._changed:
            is_open = not self.closed
            self._running += is_open
        try:
            yield is_open
        finally:
            with self._changed:
                self._running -= is_open
                self._changed.notify_all()

    def close(self, release: Callable[[], object]) -> None:
        """Wait for the calls that run, and *release* what they use. A second time does nothing."""
        with self._changed:
            first, self.closed = not self.closed, True
            self._changed.wait_for(lambda: not self._running)
            if first:
                release()


class TimedCall:
    """The call of a store that one thread makes, as other threads see it; all under a lock of theirs. Times are in seconds."""

    def __init__(self, limit_s: float) -> None:
        self._life = CallLife()
        self._limit_s = limit_s
        self._since = 0.0

    def begin(self, now: float) -> None:
        """The thread makes a call."""
        self._life.make()
        self._since = now

    def end(self) -> None:
        """It has come back."""
        self._life.come_back()

    @property
    def hangs(self) -> bool:
        """Whether it was found to take longer than it may."""
        return self._life.state is Call.HANGING

    def look(self, now: float) -> bool:
        """Whether it is found only now to take longer than it may."""
        late = self._life.state is Call.RUNNING and now - self._since >= self._limit_s
        if late:
            self._life.hang()
        return late
