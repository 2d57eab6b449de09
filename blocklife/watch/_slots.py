"""What the slots of host memory hold, and whether some content is in any of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from blocklife.watch._texts import UNSEEN, HeldContent


class SlotContents:
    """The slots that are handed out. None stands for one into which nothing has been written yet."""

    def __init__(self) -> None:
        self._held: dict[int, HeldContent | None] = {}
        self._counts: Counter[int] = Counter()
        """How many slots hold the content of a name."""
        self._unnamed: dict[int, HeldContent] = {}
        """Slots whose content has a name that is not known yet."""
        self._believed: set[int] = set()
        """Slots that were filled unseen: what they hold is not known, and believed to be right."""

    def __contains__(self, slot: int) -> bool:
        return slot in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, slot: int) -> HeldContent | None:
        """What is in a slot; None for nothing, and for a slot that is free."""
        return self._held.get(slot)

    def hand_out(self, slots: Iterable[int], held: HeldContent | None) -> None:
        """These are handed out; *held* is `UNSEEN` where others than the jobs of the book may fill them."""
        for slot in slots:
            self.drop(slot)
            self._held[slot] = held

    def fill(self, slot: int, held: HeldContent | None) -> None:
        """A slot that is handed out holds this now; what came in unseen is believed to be right."""
        self.hand_out([slot], held)
        if held is None:
            return
        if held is UNSEEN:
            self._believed.add(slot)
        elif (name := held.name) is None:
            self._unnamed[slot] = held
        else:
            self._counts[name] += 1
            self._held[slot] = held.settled()

    def drop(self, slot: int) -> None:
        """A slot is free."""
        held = self._held.pop(slot, None)
        self._believed.discard(slot)
        if held is None or self._unnamed.pop(slot, None) is not None or (name := held.name) is None:
            return
        self._counts[name] -= 1
        if self._counts[name] <= 0:
            del self._counts[name]

    def clear(self) -> None:
        """All are free."""
        for each in (self._held, self._counts, self._unnamed, self._believed):
            each.clear()

    def may_have(self, name: int, on_the_way: Iterable[Collection[HeldContent | None]] = ()) -> bool:
        """Whether some slot holds this content, may hold it for all that is known, or will: *on_the_way* is being written."""
        if self._believed:
            return True
        for slot in [slot for slot, held in self._unnamed.items() if held.name is not None]:
            self.fill(slot, self._unnamed[slot])
        return name in self._counts or any(
            held is not None and held.name in (name, None) for each in on_the_way for held in each
        )
