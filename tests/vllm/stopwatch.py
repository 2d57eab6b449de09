"""Where the time of a call goes: to itself, to what it calls, or to the garbage collector.

The collector's pauses fall on whoever asks for memory next, be it the one who made the garbage or not. So they are counted
apart, and taken from whatever they interrupt.

Python drops an exception that is raised while the collector calls `Stopwatch.pause`, Ctrl-C's too. So while a stopwatch listens
to the collector, the first Ctrl-C is only noted, and `Stopwatch.go_on`, between two steps, raises it.
"""

from __future__ import annotations

import contextlib
import gc
from collections import defaultdict
from collections.abc import Callable, Iterator

from attrs import define, field

from blocklife.cli._common import stopping


@define(eq=False)
class Stopwatch:
    """Own time of nested calls. Invariant: ``_inner`` has, for each call that runs, what the calls inside it took."""

    clock: Callable[[], int]
    own: defaultdict[str, int] = field(factory=lambda: defaultdict(int))
    calls: defaultdict[str, int] = field(factory=lambda: defaultdict(int))
    collector: int = 0
    _inner: list[int] = field(factory=lambda: [0])
    _paused_at: int = 0
    _stop: Callable[[], bool] = bool

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Count the collector's pauses; what is there before is out of its sight, as in vLLM's engine when it is up.

        A Ctrl-C meanwhile is raised by `go_on`, at the latest at the end; a second one is raised at once.
        """
        with stopping() as self._stop:
            gc.collect()
            gc.freeze()
            gc.callbacks.append(self.pause)
            try:
                yield
            finally:
                gc.callbacks.remove(self.pause)
                gc.unfreeze()
            self.go_on()

    def go_on(self) -> None:
        """Between two steps: raise a Ctrl-C that was noted."""
        if self._stop():
            raise KeyboardInterrupt

    def pause(self, phase: str, info: object) -> None:
        """The garbage collector begins or ends a pause, in the midst of any call."""
        if phase == "start":
            self._paused_at = self.clock()
        else:
            took = self.clock() - self._paused_at
            self.collector += took
            self._inner[-1] += took

    def around(self, what: str, method: Callable[..., object]) -> Callable[..., object]:
        """The method, timed as *what*."""
        clock = self.clock

        def timed(*args: object, **kwargs: object) -> object:
            self._inner.append(0)
            began = clock()
            try:
                return method(*args, **kwargs)
            finally:
                took = clock() - began
                self.own[what] += took - self._inner.pop()
                self._inner[-1] += took
                self.calls[what] += 1

        return timed

    def clear(self) -> None:
        """Begin again."""
        self.own.clear()
        self.calls.clear()
        self.collector = 0
