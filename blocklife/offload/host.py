"""The host tier: which slots a store gets, and what is forgotten to make room for it."""

from __future__ import annotations

from collections.abc import Iterable

from blocklife.ledger import Ledger
from blocklife.states import Slot, SlotLife

_READY = SlotLife.table.index[Slot.READY]


class HostTier:
    """Slots in the order of their last use; the least recently used goes first.

    Eviction never touches a slot that is pinned or not READY: the tables would refuse it, and this class does not ask.
    Invariant: ``_order`` holds every slot that was ever reserved, once. A slot that has emptied since is passed over, and moves
    to the end when it is reserved again.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._order: dict[int, None] = {}

    def touch(self, slots: Iterable[int]) -> None:
        """Note a use: the last of them is the most recent."""
        for slot in slots:
            del self._order[slot]
            self._order[slot] = None

    def reserve(self, count: int) -> list[int]:
        """*count* EMPTY slots for a store, evicting as many as needed; an empty list, and no change, where that cannot be."""
        slots = self._ledger.slots
        chosen = slots.peek_empty(count)
        if (missing := count - len(chosen)) > 0:
            victims: list[int] = []
            for slot in self._order:
                if slots.column.state[slot] == _READY and slots.pins[slot] == 0:
                    victims.append(slot)
                    if len(victims) == missing:
                        break
            else:
                return []
            self._ledger.evict(victims)
            chosen += victims
        for slot in chosen:
            self._order.pop(slot, None)
            self._order[slot] = None
        return chosen
