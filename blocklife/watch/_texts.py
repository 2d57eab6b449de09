"""What a block or a slot holds, said by the tokens that it was computed from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple


class Text:
    """The tokens of one request, from the first on. It grows while the request goes on.

    Two texts have the same name up to some place exactly where they have the same tokens up to there, and the same seed.
    """

    __slots__ = ("_more", "_names", "_seed", "_size", "_tokens")

    def __init__(
        self,
        size: int,
        seed: object = None,
        tokens: Iterable[int] = (),
        more: Callable[[int], Iterable[int]] = lambda length: (),
    ) -> None:
        """*size*: tokens of a block. Texts with different seeds have nothing in common.

        *more* is asked for the tokens behind the first so many, as soon as more must be known.
        """
        self._size = size
        self._seed = hash(seed)
        self._more = more
        self._names: list[int] = []  # at the end of each whole block, as far as it was asked for
        self._tokens = list(tokens)

    def name(self, length: int) -> int | None:
        """The name of the first *length* tokens; None if they are not known yet."""
        tokens, names, size = self._tokens, self._names, self._size
        if length > len(tokens):
            tokens.extend(self._more(len(tokens)))
            if length > len(tokens):
                return None
        whole = length // size
        while len(names) < whole:
            at = len(names) * size
            names.append(name_behind(names[-1] if names else self._seed, tokens[at : at + size]))
        before = names[whole - 1] if whole else self._seed
        return before if length == whole * size else name_behind(before, tokens[whole * size : length])


def name_behind(before: int, tokens: Iterable[int]) -> int:
    """The name of a text that goes on with these tokens behind one of this name; each block of a text has a step of its own."""
    return hash((before, *tokens))


class HeldContent(NamedTuple):
    """What a place holds: the part of a text that ends after so many tokens. Without text and name: what came in unseen."""

    text: Text | None
    length: int
    known: int | None = None
    """Its name, once that is known."""

    @property
    def name(self) -> int | None:
        """Its name, if it is known by now."""
        return self.text.name(self.length) if self.known is None and self.text is not None else self.known

    def without_text(self) -> HeldContent:
        """The same without the text, which is not kept for its sake; itself where the name is not known yet."""
        name = self.name
        return self if name is None else HeldContent(None, self.length, name)

    def is_same(self, other: HeldContent) -> bool:
        """Whether both are the same content; so is what came in unseen, whatever it is compared with."""
        if self is UNSEEN or other is UNSEEN:
            return True
        if self.length != other.length:
            return False
        if self.text is other.text is not None:
            return True
        name = self.name
        return name is not None and name == other.name


UNSEEN = HeldContent(None, 0)
"""Content of which nothing is known but that it is there."""


class KeyedContents:
    """What an engine's keys of content below its host stand for, as far as that was seen; the oldest are dropped."""

    def __init__(self, most: int = 1 << 18) -> None:
        self._held: dict[str, HeldContent] = {}
        self._most = most

    def __getitem__(self, key: str) -> HeldContent:
        """What a key stands for; what came in unseen where that is not known."""
        return self._held.get(key, UNSEEN)

    def learn(self, key: str, held: HeldContent) -> None:
        """A key stands for this; it stays what it was if that is known."""
        held = held.without_text()
        if held.known is not None and self._held.setdefault(key, held) is held and len(self._held) > self._most:
            del self._held[next(iter(self._held))]


class SlotContents(dict[int, HeldContent | None]):
    """What is in each slot that is handed out, changed by these methods only. None: nothing has been written into it yet."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[int] = Counter()
        """How many slots hold the content of a name."""
        self._unnamed: dict[int, HeldContent] = {}
        """Slots whose content has a name that is not known yet."""
        self._believed: set[int] = set()
        """Slots that were filled unseen: what they hold is not known, and believed to be right."""

    def hand_out(self, slots: Iterable[int], held: HeldContent | None) -> None:
        """These are handed out; *held* is `UNSEEN` where others than the jobs of the book may fill them."""
        for slot in slots:
            self.drop(slot)
            self[slot] = held

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
            self[slot] = held.without_text()

    def drop(self, slot: int) -> None:
        """A slot is free."""
        held = self.pop(slot, None)
        self._believed.discard(slot)
        if held is None or self._unnamed.pop(slot, None) is not None or (name := held.name) is None:
            return
        self._counts[name] -= 1
        if self._counts[name] <= 0:
            del self._counts[name]

    def clear(self) -> None:
        """All are free."""
        super().clear()
        for each in (self._counts, self._unnamed, self._believed):
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
