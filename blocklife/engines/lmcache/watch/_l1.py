"""Ears on LMCache's L1 manager and its memory: places, what is published, locks.

What is heard of the manager is heard under its own lock, so that the order is sure: its lock is exchanged for one that a thread
may take again, and each call that is heard is made under it.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from blocklife.engines.lmcache.watch._parts import BY_TIER, ServerParts, is_good, name_of, staged, under
from blocklife.watch import Ears, HeardCall, TakesBack

_DISCARDS = "discards"
"""The scope of calls that give back what their caller has written."""
_CLOSES = "closes"


class L1Ears:
    """Ears on one L1 manager."""

    def __init__(self, ears: Ears, parts: ServerParts) -> None:
        self._ears = ears
        self._parts = parts
        self._book = parts.book
        self._fresh: set[int] = set()
        """Places that the reservation under way has taken from memory."""
        l1, memory = parts.l1, parts.l1._memory_manager
        ears.hear(memory, "allocate", after=self._allocated, tells="places")
        ears.hear(memory, "free", before=self._frees)
        ears.hear(l1, "reserve_write", before=self._reserves, after=self._reserved, tells="reservations")
        ears.hear(l1, "finish_write", after=partial(self._published, 0), scope=_DISCARDS)
        ears.hear(l1, "finish_write_and_reserve_read", after=partial(self._published, 1), scope=_DISCARDS)
        ears.hear(l1, "finish_write_and_delete", after=self._discarded, scope=_DISCARDS)
        ears.hear(l1, "reserve_read", after=self._locked, tells="locks")
        ears.hear(l1, "finish_read", before=self._unlocks)
        ears.hear(l1, "delete")
        ears.hear(l1, "clear")
        ears.hear(l1, "close", before=lambda call: self._book.closes(), scope=_CLOSES)
        old, lock = l1._lock, threading.RLock()
        with old:
            l1._lock = lock
        names = ("reserve_write", "finish_write", "finish_write_and_reserve_read", "finish_write_and_delete")
        for name in (*names, "reserve_read", "finish_read", "delete", "clear"):
            ears.around(l1, name, under(lock))

    # --- memory -------------------------------------------------------------------------------------------------------------

    def _allocated(self, call: HeardCall) -> None:
        found: Any = call.result
        self._fresh.update(self._parts.place(each) for each in found[1])

    def _frees(self, call: HeardCall) -> None:
        (objects,) = call.given("mem_objs")
        if self._ears.is_within(_CLOSES):
            return
        discards = self._ears.is_within(_DISCARDS)
        for each in objects if isinstance(objects, list) else ():
            place = self._parts.place(each)
            if place in self._fresh:
                self._fresh.discard(place)  # a reservation that has failed in part
            else:
                self._book.freed(place, discards=discards)

    # --- writing ------------------------------------------------------------------------------------------------------------

    def _reserves(self, call: HeardCall) -> None:
        self._parts.step()
        self._fresh.clear()

    def _reserved(self, call: HeardCall) -> None:
        found: Any = call.result
        tag = _tag(call, 3)
        promotes = self._ears.is_within("prefetch")
        for key, (_, memory) in found.items():
            if memory is not None:
                place = self._parts.place(memory)
                self._fresh.discard(place)
                self._book.reserved(staged(key, tag), place, promotes=promotes)
        self._fresh.clear()  # what nobody has got is given back with the last reference to it

    def _published(self, locks: int, call: HeardCall) -> None:
        found: Any = call.result
        book, tag = self._book, _tag(call, 1 + locks)
        count = _count(call) if locks else 0
        for key, result in found.items():
            name, own = staged(key, tag), name_of(key)
            where = book.slots.holds(name)
            if not is_good(result[0] if locks else result):
                book.ended_late(name)
                continue
            if where is not None:
                book.published(name, own, where[0], promoted=bool(locks))
            if locks:
                book.locked(own, self._parts.place(result[1]), count, by_tier=False)

    def _discarded(self, call: HeardCall) -> None:
        found: Any = call.result
        for key, error in found.items():
            if not is_good(error):
                self._book.ended_late(staged(key, _tag(call, 1)))

    # --- locks --------------------------------------------------------------------------------------------------------------

    def _locked(self, call: HeardCall) -> None:
        found: Any = call.result
        by_tier = self._ears.is_within(BY_TIER)
        for key, (_, memory) in found.items():
            if memory is not None:
                self._book.locked(name_of(key), self._parts.place(memory), _count(call), by_tier=by_tier)

    def _unlocks(self, call: HeardCall) -> TakesBack | None:
        (keys,) = call.given("keys")
        by_tier, who = self._ears.is_within(BY_TIER), self._parts.who.request
        for key in keys if isinstance(keys, list) else ():
            self._book.unlocked(name_of(key), _count(call), who, by_tier=by_tier)
        return None


def _tag(call: HeardCall, at: int) -> str:
    """The writer that a call names, by position or by name."""
    found = call.args[at] if at < len(call.args) else call.kwargs.get("tag", "")
    return str(found)


def _count(call: HeardCall) -> int:
    """How many locks of each key a call is about."""
    _, found = call.given("keys", "read_locks")
    return found if isinstance(found, int) else 1
