"""LMCache's threads work in turns: each goes on when the rig says so, until it waits again, and the rig waits for that.

The threads are LMCache's own, and so is what they do: the loops of the controllers, which store, prefetch and evict. Without
turns it would depend on the machine how much of it a step sees, and two runs of one seed would differ in all that follows. What
a thread waits with is taken from its module: ``select.poll`` and ``time.sleep`` end the turn.

Leases are LMCache's locks with a limit, in whole seconds of a native clock. Here they are counted in seconds of the rig's
clock, which goes on when the rig says so; `tests/lmcache/test_leases.py` compares them with the native ones.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from importlib import import_module
from threading import Semaphore, Thread
from typing import Any

from attrs import define, field

from tests.programs import HANGS_S

_CONTROLLERS = "lmcache.v1.distributed.storage_controllers."
LOOPS = tuple(_CONTROLLERS + name for name in ("store_controller", "prefetch_controller", "eviction_controller"))
"""Modules whose threads work in turns."""
CLOCKED = ("lmcache.v1.multiprocess.modules.engine_driven_transfer",)
"""Modules that ask how long a worker was silent."""
LEASED = "lmcache.v1.distributed.l1_manager"
"""The module that makes leases."""


class HungError(Exception):
    """A thread of LMCache has not come to rest within the limit of all waiting."""


class TurnThread(Thread):
    """A thread that goes on in its turns only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._go, self._rests = Semaphore(0), Semaphore(0)
        self._is_over = False
        self.error: BaseException | None = None
        """What it has died of."""

    @property
    def loop(self) -> str:
        """What it runs: ``_store_loop``, say."""
        return str(getattr(self._target, "__name__", ""))  # type: ignore[attr-defined]  # a thread's own

    def start(self) -> None:
        """Begin, and wait until it rests for the first time."""
        super().start()
        self._wait()

    def run(self) -> None:
        """Do what is to be done; the rig is told of the end, too."""
        try:
            super().run()
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._is_over = True
            self._rests.release()

    def turn(self) -> None:
        """Let it go on until it rests again, or ends."""
        if not self._is_over:
            self._go.release()
            self._wait()

    def rest(self) -> None:
        """By the thread itself: the turn is over."""
        self._rests.release()
        self._go.acquire()

    def join(self, timeout: float | None = None) -> None:
        """Give it turns until it has ended: whoever stops it has told it to."""
        while not self._is_over:
            self.turn()
        super().join(timeout)

    def _wait(self) -> None:
        if not self._rests.acquire(timeout=HANGS_S):
            raise HungError(f"{self.name} has not come to rest in {HANGS_S:.0f} s")


def _rest() -> None:
    thread = threading.current_thread()
    if isinstance(thread, TurnThread):
        thread.rest()


class TurnPoller:
    """In the place of ``select.poll()``: to wait is the end of a turn, and then there is what there is."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """What can be read now."""
        _rest()
        return self._poll.poll(0)


@define(eq=False)
class Clock:
    """The time of a rig, in seconds."""

    now: float = 0.0

    def monotonic(self) -> float:
        """In the place of ``time.monotonic``."""
        return self.now


@define(eq=False)
class Lease:
    """In the place of LMCache's lock with a limit: a count that is nothing any more when it was not added to for so long."""

    ttl: int
    clock: Clock
    count: int = 0
    ends: float = field(default=0.0)

    def lock(self) -> None:
        """One more; where the lease was over, the first one."""
        self.count = self.count + 1 if self.clock.now < self.ends else 1
        self.ends = self.clock.now + self.ttl

    def unlock(self) -> None:
        """One less, if there is one."""
        self.count = max(0, self.count - 1)

    def is_locked(self) -> bool:
        """Whether there is one, and the lease is not over."""
        return self.count > 0 and self.clock.now < self.ends

    def reset(self) -> None:
        """None, and no lease."""
        self.count, self.ends = 0, self.clock.now


class _Shim:
    """A module some of whose names are replaced."""

    def __init__(self, module: object, **instead: object) -> None:
        self._module = module
        vars(self).update(instead)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)


@define(eq=False)
class Turns:
    """The clock and the threads of one rig."""

    clock: Clock = field(factory=Clock)
    threads: list[TurnThread] = field(factory=list)


_HERE = Turns()
"""Those of the rig that was made last."""
_NATIVE: list[Callable[[int], object]] = []


def begin() -> Turns:
    """What LMCache makes from here on works in turns, by a clock of its own."""
    global _HERE
    if not _NATIVE:
        _install()
    _HERE = Turns()
    return _HERE


def native_lease(ttl: int) -> Any:
    """A lease of LMCache's own clock."""
    begin()
    return _NATIVE[0](ttl)


def _install() -> None:
    def thread(*args: Any, **kwargs: Any) -> TurnThread:
        _HERE.threads.append(made := TurnThread(*args, **kwargs))
        return made

    def lease(ttl: int) -> Lease:
        return Lease(ttl, _HERE.clock)

    clock = _Shim(time, monotonic=lambda: _HERE.clock.now, sleep=lambda _seconds: _rest())
    instead = {"threading": _Shim(threading, Thread=thread), "select": _Shim(select, poll=TurnPoller), "time": clock}
    for name in LOOPS:
        names = vars(import_module(name))
        names.update({each: instead[each] for each in instead if each in names})
    for name in CLOCKED:
        vars(import_module(name))["time"] = clock
    locks = vars(import_module(LEASED))
    _NATIVE.append(locks["TTLLock"])
    locks["TTLLock"] = lease
