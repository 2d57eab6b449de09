"""The host tier: what is in it, which slots a store gets, and what is forgotten to make room for it.

Rules of this file:

* What is in a slot is read from the ledger. The tier keeps no second copy of it.
* Which content goes is the policy's choice (`replacement`); that it may go at all is asked of the ledger's columns.
* While the ledger writes, the tier only notes what it hears. The policy, which may be a user's, is told afterwards.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence

from attrs import frozen

from blocklife.errors import MisuseError
from blocklife.ledger import Ledger
from blocklife.ledger import _edge as edge
from blocklife.offload._lookup import Answer
from blocklife.offload.replacement import Name, Replacement
from blocklife.offload.replacement import replacement as policy_of
from blocklife.states import Slot

__all__ = ["EventKind", "HostEvent", "HostTier", "Name", "Replacement", "TierStatistics"]


class EventKind(enum.Enum):
    """What happened to content of the host tier."""

    STORED = "it can be read from now on"
    REMOVED = "it cannot be read any more"


@frozen
class HostEvent:
    """One change of what can be read from the host tier."""

    kind: EventKind
    group: int
    key: bytes


@frozen(kw_only=True)
class TierStatistics:
    """Slots at one moment, and what was counted.

    ``capacity`` is the sum of empty, pinned, evictable, writing, freeing_soon and quarantined; ``ready`` is pinned + evictable.
    """

    capacity: int
    empty: int
    ready: int
    """Readable content."""
    pinned: int
    """Readable content that loads or lookups count on."""
    evictable: int
    """Readable content that may be forgotten now."""
    writing: int
    freeing_soon: int
    """Content that is forgotten already, and that loads still read."""
    quarantined: int
    """A store that is past its deadline may still write them."""
    lost_events: int
    """Events that nobody had taken when there were too many of them."""


class HostTier(edge.NotCopied):
    """Slots, their content by name, and a policy that says what is forgotten first.

    Eviction never touches a slot that is pinned or not READY: the tables would refuse it, and the policy is not offered it.
    Invariant: content that is READY and was reserved here, touched, or there at the start, is known to the policy, except for
    what ``_gone`` names: slots whose content went since the policy was last asked anything. Initially: those with content, by
    number, the first of them the oldest.
    With *max_events* 0 no events are kept, and none is lost.
    """

    def __init__(self, ledger: Ledger, replacement: str | Replacement = "lru", *, max_events: int = 65536) -> None:
        if type(max_events) is not int or max_events < 0:
            raise MisuseError(f"max_events must be a whole number of at least 0, not {max_events!r}")
        self._ledger = ledger
        self._slots = slots = ledger.slots
        self._replacement = policy_of(replacement, len(slots))
        self._gone: dict[int, None] = {}
        self._events: deque[tuple[bool, int, bytes]] = deque(maxlen=max_events)
        self._lost_events = 0
        filled = [(slot, (slots.group(slot), key)) for slot in range(len(slots)) if (key := slots.key(slot)) is not None]
        if filled:
            self._replacement.insert([slot for slot, _ in filled], [name for _, name in filled])
        slots.watch(self._hear)

    @property
    def policy(self) -> Replacement:
        """What decides which content goes first."""
        return self._replacement

    def answer(self, group: int, key: bytes) -> Answer:
        """Whether content can be read: HIT; PENDING while a store brings it; else MISS."""
        slot = self._slots.find(group, key)
        if slot is None:
            return Answer.MISS
        # A slot with a name is READY or WRITING.
        return Answer.HIT if self._slots.is_ready(slot) else Answer.PENDING

    def slot_of(self, group: int, key: bytes) -> int | None:
        """The slot from which content can be read now; it may be evicted unless it is pinned."""
        return self._slots.find_ready(group, key)

    def touch(self, slots: Iterable[int]) -> None:
        """Note a use: the last of them is the most recent."""
        self._tell_gone()
        self._replacement.touch(slots)

    def reserve(self, names: Sequence[Name]) -> list[int] | None:
        """As many EMPTY slots as there are names, evicting what is needed; None, and no change, where that cannot be.

        The slot at each position is meant for the name there. Nothing is reserved in the ledger: plan the store before the next
        call. Never evicted: what is pinned, what is not READY, and what has one of these names.
        """
        self._tell_gone()
        chosen = self._slots.next_empty(len(names))
        if (missing := len(names) - len(chosen)) > 0:
            for slot in chosen:  # those whose store has failed; the policy should weigh content only
                self._replacement.remove(slot)
            victims = self._victims(missing, names)
            if len(victims) < missing:
                return None
            self._ledger.evict(victims)
            self._tell_gone()
            chosen += victims
        self._replacement.insert(chosen, names)
        return chosen

    def take_events(self) -> list[HostEvent]:
        """What became readable and what is gone since the last call, in order.

        What was readable when the tier was made is not told. When nobody takes them the oldest events fall out, counted in
        `statistics`.
        """
        found = [
            HostEvent(EventKind.STORED if stored else EventKind.REMOVED, group, key) for stored, group, key in self._events
        ]
        self._events.clear()
        return found

    def statistics(self) -> TierStatistics:
        """Count everything now."""
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
            lost_events=self._lost_events,
        )

    def _victims(self, count: int, coming: Sequence[Name]) -> list[int]:
        """What the policy would forget: *count* slots, or fewer where there are no more."""
        find, can_evict = self._slots.find, self._slots.can_evict
        kept = {slot for group, key in coming if (slot := find(group, key)) is not None}

        def evictable(slot: int) -> bool:
            return can_evict(slot) and slot not in kept

        victims = self._replacement.victims(count, evictable, coming)
        if len(victims) > count:
            raise MisuseError(f"{self._replacement!r} gave {len(victims)} victims where {count} were asked for")
        for slot in kept.intersection(victims) if kept else ():
            raise MisuseError(f"{self._replacement!r} gave slot {slot}, whose content is about to be used (ask evictable)")
        return victims

    def _hear(self, stored: bool, slots: Sequence[int]) -> None:
        """Called while the ledger writes, so it only notes."""
        if not stored:
            self._gone.update(dict.fromkeys(slots))
        if (most := self._events.maxlen or 0) > 0:
            self._lost_events += max(0, len(self._events) + len(slots) - most)
            group, key = self._slots.group, self._slots.key
            self._events.extend((stored, group(slot), key(slot) or b"") for slot in slots)

    def _tell_gone(self) -> None:
        """The policy hears which content has gone, in order."""
        if self._gone:
            for slot in self._gone:
                self._replacement.remove(slot)
            self._gone.clear()
