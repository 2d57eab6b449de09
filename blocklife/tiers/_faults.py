"""A store with reproducible faults planted in front of another one.

*Theory.* The faults of a call are drawn (`copiers._planting`) for its method, its key, and how often that method was called for
that key; those of a value for its key, and how often it was put or removed here.

=====  ======================================================================
fault  what happens
=====  ======================================================================
fail   exists, put and get of this key are FAILED, and do nothing
slow   the call takes *slow_s* longer
hang   the call waits until `release`, and then goes on
cut    get says WRONG_SIZE, after half of the value was written to the page
flip   get says OK, and one bit of the value is another
lose   put says OK, and nothing is there afterwards
=====  ======================================================================

*fail*, *slow* and *hang* are about calls; *cut*, *flip* and *lose* are about values, and stay until these are removed or put
anew. A call that is about several keys is slow, or hangs, if it does for one of them. `remove` always works.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

import attrs

from blocklife.copiers._planting import PlantedRates, Planter, share
from blocklife.tiers._protocol import ContentStore, Page, Removing, StoreOutcome


@attrs.frozen(str=False)
class StoreFaultRates(PlantedRates):
    """The share of keys with each fault, from 0 to 1; default 0."""

    KIND = "store fault rate"
    WHOLE = "keys"

    fail: float = share()
    slow: float = share()
    hang: float = share()
    cut: float = share()
    flip: float = share()
    lose: float = share()

    @classmethod
    def default(cls) -> Self:
        """Moderate rates, without hangs: most content still comes through."""
        return cls(fail=0.02, slow=0.01, cut=0.02, flip=0.02, lose=0.02)


@attrs.define
class StoreFaultStatistics:
    """How often each fault has happened so far."""

    failed: int = 0
    """Keys."""
    slow: int = 0
    """Calls."""
    hung: int = 0
    """Calls."""
    hanging: int = 0
    """Calls that hang now."""
    cut: int = 0
    """Gets that found a value cut."""
    flipped: int = 0
    """Gets that brought a value with a bit flipped."""
    lost: int = 0
    """Gets and exists that found a value lost."""


class FaultyStore:
    """A `ContentStore` that plants faults in front of another one; owns it, and closes it."""

    def __init__(
        self,
        inner: ContentStore,
        rates: StoreFaultRates,
        seed: int,
        *,
        slow_s: float = 0.05,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inner = inner
        self._planter = Planter(rates, seed)
        self._slow_s = slow_s
        self._pause = pause
        self._changed = threading.Condition()
        self._released = False
        self._calls: Counter[tuple[str, bytes]] = Counter()
        self._versions: Counter[bytes] = Counter()
        self._counts = StoreFaultStatistics()

    # --- the protocol --------------------------------------------------------------------------------------------------

    def register(self, address: int, size: int) -> None:
        """As the inner store."""
        self._inner.register(address, size)

    def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """As the inner store; values that are lost are ABSENT."""
        fails = self._begin("exists", keys)
        outcomes = self._inner.exists(keys)
        for at, key in enumerate(keys):
            if fails[at]:
                outcomes[at] = StoreOutcome.FAILED
            elif outcomes[at] is StoreOutcome.OK and self._has("lose", key):
                outcomes[at] = StoreOutcome.ABSENT
        return outcomes

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """As the inner store, for the keys that do not fail."""
        fails = self._begin("put", [page.key for page in pages])
        good = [at for at, failed in enumerate(fails) if not failed]
        outcomes = [StoreOutcome.FAILED] * len(pages)
        for at, outcome in zip(good, self._inner.put([pages[at] for at in good]), strict=True):
            outcomes[at] = outcome
            if outcome is StoreOutcome.OK:
                with self._changed:
                    self._versions[pages[at].key] += 1
        return outcomes

    def get(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """As the inner store, for the keys that do not fail; values are damaged after they were brought."""
        fails = self._begin("get", [page.key for page in pages])
        good = [at for at, failed in enumerate(fails) if not failed]
        outcomes = [StoreOutcome.FAILED] * len(pages)
        for at, outcome in zip(good, self._inner.get([pages[at] for at in good]), strict=True):
            outcomes[at] = self._damage(pages[at]) if outcome is StoreOutcome.OK else outcome
        return outcomes

    def remove(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """As the inner store; FAILED where it has no ``remove``. Values that are put later have other faults."""
        with self._changed:
            self._versions.update(keys)
        return self._inner.remove(keys) if isinstance(self._inner, Removing) else [StoreOutcome.FAILED] * len(keys)

    def close(self) -> None:
        """Release what hangs, and close the inner store."""
        self.release()
        self._inner.close()

    # --- for who planted them --------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Let every call go that hangs; none hangs any more."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def wait_until_hanging(self, calls: int = 1, timeout_s: float = 60.0) -> bool:
        """Wait until so many calls hang; False if they do not within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._counts.hanging >= calls, timeout_s)

    def statistics(self) -> StoreFaultStatistics:
        """Counts since the start."""
        with self._changed:
            return attrs.evolve(self._counts)

    # --- faults --------------------------------------------------------------------------------------------------------

    def _begin(self, method: str, keys: Sequence[bytes]) -> list[bool]:
        """Be slow, or hang; which of the keys fail."""
        with self._changed:
            times = [self._calls[method, key] for key in keys]
            self._calls.update((method, key) for key in keys)
            calls = list(zip(keys, times, strict=True))
            fails, slow, hangs = (
                [self._planter.has(fault, method, *call) for call in calls] for fault in ("fail", "slow", "hang")
            )
            self._counts.failed += sum(fails)
            self._counts.slow += any(slow)
            if any(hangs) and not self._released:
                self._counts.hung += 1
                self._counts.hanging += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._released)
                self._counts.hanging -= 1
        if any(slow):
            self._pause(self._slow_s)
        return fails

    def _has(self, fault: str, key: bytes) -> bool:
        """Whether the value of a key has a fault, as it was put or removed last; counted if so."""
        with self._changed:
            found = self._planter.has(fault, key, self._versions[key])
            counted = {"lose": "lost", "flip": "flipped"}.get(fault, fault)
            setattr(self._counts, counted, getattr(self._counts, counted) + found)
            return found

    def _damage(self, page: Page) -> StoreOutcome:
        if self._has("lose", page.key):
            return StoreOutcome.ABSENT
        if self._has("cut", page.key):
            ctypes.memset(page.address + page.size // 2, 0, page.size - page.size // 2)
            return StoreOutcome.WRONG_SIZE
        if self._has("flip", page.key):
            place = self._planter.draw("place", page.key) % (8 * page.size)
            flipped = ctypes.c_ubyte.from_address(page.address + place // 8)
            flipped.value ^= 1 << place % 8
        return StoreOutcome.OK
