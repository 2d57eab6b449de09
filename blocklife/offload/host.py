"""The host tier: which slots a store gets, and what is forgotten to make room for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from blocklife.ledger import Ledger
from blocklife.states import Slot, SlotLife

_EMPTY, _READY = SlotLife.table.index[Slot.EMPTY], SlotLife.table.index[Slot.READY]


class HostTier:
    """Slots in the order of their last use; the least recently used goes first.

    Eviction never touches a slot that is pinned or not READY: the tables would refuse it, and this class does not ask.
    Invariant: ``_order`` holds every slot that had content at the start, or was ever touched or reserved, once. A slot that has
    emptied since is passed over, and moves to the end when it is reserved again. Initially: those with content, by number.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        # Not a dict: whoever takes from its front leaves holes there, and each walk from the front passes over all of them.
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(np.flatnonzero(ledger.slots.column.view != _EMPTY).tolist())

    def touch(self, slots: Iterable[int]) -> None:
        """Note a use: the last of them is the most recent."""
        for slot in slots:
            self._order[slot] = None
            self._order.move_to_end(slot)

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
        self.touch(chosen)
        return chosen
