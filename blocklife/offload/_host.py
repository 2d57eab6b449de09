"""The host tier: its content, the slots that a store gets, and eviction.

Rules of this file:

* The content of a slot is read from the ledger; the tier keeps no copy of it.
* The policy (`replacement`) chooses what to evict; the ledger's columns say what may be evicted.
* While the ledger writes, the tier only takes notes. The policy, which may be user code, is called later.
* What a policy raises is kept (`Ledger.hook_errors`), and so is an answer that is none: the store that needed room is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec

from attrs import frozen

from blocklife.core._columns import Change
from blocklife.errors import MisuseError
from blocklife.ledger import Ledger
from blocklife.ledger import _edge as edge
from blocklife.ledger._journal import SlotWatcher, verb
from blocklife.ledger.views import SlotsView
from blocklife.offload._lookup import Answer
from blocklife.offload._tier_events import TierEvent, TierEvents
from blocklife.offload.replacement import Name, Replacement
from blocklife.offload.replacement import replacement as policy_of
from blocklife.states import Slot

P = ParamSpec("P")

__all__ = ["HostTier", "Name", "Replacement", "TierStatistics"]

_ANSWERS = tuple(Answer)
_HIT, _MISS, _PENDING = Answer.HIT.code, Answer.MISS.code, Answer.PENDING.code


@frozen(kw_only=True)
class TierStatistics:
    """The slots at one moment, and counters.

    ``capacity`` is the sum of empty, pinned, evictable, writing, freeing_soon and quarantined; ``ready`` is pinned + evictable.
    """

    capacity: int
    empty: int
    ready: int
    """Readable content."""
    pinned: int
    """Readable content that loads or lookups pin."""
    evictable: int
    """Readable content that can be evicted now."""
    writing: int
    freeing_soon: int
    """Forgotten content that loads still read."""
    quarantined: int
    """Slots that a store past its deadline may still write."""
    lost_events: int
    """Contents that events no longer name, because these were not taken in time."""


class HostTier(edge.NotCopied):
    """The slots, their content by name, and a replacement policy.

    Eviction never touches a slot that is pinned or not READY: the tables would refuse it, and the policy is not offered it.
    Invariant: the policy knows every READY slot that was reserved here, touched, or filled at the start; it may also still know
    the slots in ``_gone``, whose content went since the policy was last called. Initially: the slots with content, in order of
    their number, the first being the oldest.
    With *max_events* 0 no events are kept, and none count as dropped.
    """

    def __init__(self, ledger: Ledger, replacement: str | Replacement = "lru", *, max_events: int = 65536) -> None:
        if type(max_events) is not int or max_events < 0:
            raise MisuseError(f"max_events must be a whole number of at least 0, not {max_events!r}")
        self.ledger = ledger
        self._calls = ledger._calls
        self._slots = slots = ledger.slots
        self._replacement = policy_of(replacement, len(slots))
        self._gone: dict[int, None] = {}
        self.events = TierEvents(max_events)
        """The events of this tier and of the store below it, until they are taken."""
        self._in_vain = False
        """Whether the latest search for victims found too few."""
        filled = [(slot, (slots.group(slot), key)) for slot in range(len(slots)) if (key := slots.key(slot)) is not None]
        if filled:
            self._replacement.insert([slot for slot, _ in filled], [name for _, name in filled])
        slots.note(self._hear, stored=max_events > 0)

    @property
    def policy(self) -> Replacement:
        """The replacement policy."""
        return self._replacement

    def answer(self, group: int, key: bytes) -> Answer:
        """HIT if the content can be read, PENDING while a store writes it, otherwise MISS."""
        return _ANSWERS[code_at(self._slots, self._slots.place_of(group, key))]

    def slot_of(self, group: int, key: bytes) -> int | None:
        """The READY slot with this content; it may be evicted unless it is pinned."""
        return self._slots.find_ready(group, key)

    def watch(self, watcher: SlotWatcher) -> None:
        """Call ``watcher(stored, slots)`` after each call in which content became readable, or is gone: `SlotsView.watch`."""
        self._slots.watch(watcher)

    @verb
    def coldest(self, count: int) -> list[int]:
        """Up to *count* readable slots that the policy would evict first, the first of them first; nothing changes."""
        peek = getattr(self._replacement, "peek", None)
        if peek is None:
            raise MisuseError(f"{self._replacement!r}: it has no method peek, which says what it would evict next")
        self._notify_gone()
        try:
            found = self._checked(peek(count))
        except BaseException as problem:
            self._calls.errors.keep(self._replacement, problem)
            return []
        return [slot for slot in found if self._slots.is_ready(slot)]

    def check_foresight(self) -> None:
        """Refuse a policy that cannot say what it would evict next (`peek`)."""
        self.coldest(1)

    @verb
    def touch(self, slots: Iterable[int]) -> None:
        """Record a use; the last one is the most recent."""
        self._notify_gone()
        self._notify(self._replacement.touch, slots)

    @verb
    def reserve(self, names: Sequence[Name]) -> list[int] | None:
        """One EMPTY slot for each name, evicting as needed; None, with nothing changed, if there is not enough room.

        Nothing is reserved in the ledger: plan the store before the next call. Slots that are pinned, not READY, or hold one of
        these names are never evicted. A policy that fails, or names other victims than it was asked for, makes no room.
        """
        self._notify_gone()
        chosen = self._slots.next_empty(len(names))
        if (missing := len(names) - len(chosen)) > 0:
            for slot in chosen:  # slots whose store failed; the policy should see content only
                self._notify(self._replacement.remove, slot)
            try:  # after a search in vain, the policy would look at every slot once more to find none
                victims = self._victims(missing, names) if not self._in_vain or self._slots.any_evictable() else []
            except BaseException as problem:
                self._calls.errors.keep(self._replacement, problem)
                return None
            self._in_vain = len(victims) < missing
            if self._in_vain:
                return None
            self.ledger.evict(victims)
            self._notify_gone()
            chosen += victims
        self._notify(self._replacement.insert, chosen, names)
        return chosen

    def take_events(self) -> list[TierEvent]:
        """The content that became readable or was lost since the last call, in order, here and in the store below.

        Changes in a row that are alike in kind, tier and group are one event. Content that was readable when the tier was
        created is not reported. The store below is told of where `BelowPolicies.max_told` says so. If events are not taken, the
        oldest contents are dropped and counted in `statistics`.
        """
        return self.events.take()

    def notify_again(self) -> None:
        """Report everything that is readable as stored once more, to who was told that it is gone."""
        ready = self._slots.where(Slot.READY)
        self.events.begin_again([(True, slot, self._slots.group(slot), self._slots.key(slot) or b"") for slot in ready])

    def statistics(self) -> TierStatistics:
        """Statistics of the tier at this moment."""
        count = self._slots.count()
        ready = count[Slot.READY]
        pinned = self._slots.count_pinned()
        return TierStatistics(
            capacity=len(self._slots),
            empty=count[Slot.EMPTY],
            ready=ready,
            pinned=pinned,
            evictable=ready - pinned,
            writing=count[Slot.WRITING],
            freeing_soon=count[Slot.STALE],
            quarantined=count[Slot.QUARANTINED],
            lost_events=self.events.lost,
        )

    def _victims(self, count: int, coming: Sequence[Name]) -> list[int]:
        """The slots that the policy would evict: *count*, or fewer if there are no more."""
        find, can_evict = self._slots.find, self._slots.can_evict
        kept = {slot for group, key in coming if (slot := find(group, key)) is not None}

        def evictable(slot: int) -> bool:
            return can_evict(slot) and slot not in kept

        victims = self._checked(self._replacement.victims(count, evictable, coming))
        if len(victims) > count or len(set(victims)) < len(victims):
            raise MisuseError(f"{self._replacement!r} gave {len(victims)} victims where {count} were asked for, each once")
        for slot in victims:
            if not can_evict(slot):
                raise MisuseError(f"{self._replacement!r} gave slot {slot}, which cannot be evicted (ask evictable)")
            if slot in kept:
                raise MisuseError(f"{self._replacement!r} gave slot {slot}, whose content is about to be used (ask evictable)")
        return victims

    def _checked(self, answer: object) -> list[int]:
        """Slots that a policy has named, whatever sequence it has put them into."""
        found, size = edge.counts(answer, "the slots that a replacement policy names"), len(self._slots)
        if found and not 0 <= min(found) <= max(found) < size:
            raise MisuseError(f"{self._replacement!r} gave slots {found[:4]}, and slots are 0 to {size - 1}")
        return found

    def _notify(self, method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell the policy something."""
        try:
            method(*args, **kwargs)
        except BaseException as problem:
            self._calls.errors.keep(self._replacement, problem)

    def _hear(self, changes: Sequence[Change]) -> None:
        """Called after a verb of the ledger; the policy is told when it is asked the next time."""
        for stored, slot, _, _ in changes:
            if not stored:
                self._gone[slot] = None
        self.events.note(changes)

    def _notify_gone(self) -> None:
        """Tell the policy which content is gone, in order."""
        if self._gone:
            for slot in self._gone:
                self._notify(self._replacement.remove, slot)
            self._gone.clear()


def code_at(slots: SlotsView, slot: int) -> int:
    """What is known of the content that was found in a slot, -1 for none, as the `Answer.code`."""
    if slot < 0:
        return _MISS
    # a slot with a name is READY or WRITING
    return _HIT if slots.is_ready(slot) else _PENDING
