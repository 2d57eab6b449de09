"""The store below a small engine, as its scheduler sees it: answers come when the explorer says so.

Rules of this file:

* It holds what the scheduler has been told, which may be wrong by now. What the store really has is in `_device`.
* Everything is a value: an explorer restores any state and goes on from there.

Theory. A question about content that nobody has asked for yet is answered RETRY, and waits until `TierIndex.answer` says
whether the store has it. Names of content are numbered: each *entry* is the content of one chunk in one space, and each worker
has a part of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from blocklife.errors import MisuseError
from blocklife.offload import Geometry
from blocklife.offload._lookup import Answer
from blocklife.offload._snapshot import SavedBelow

Entry: TypeAlias = tuple[bytes, int, bytes]
"""Space, group and key."""


class SavedIndex(NamedTuple):
    """What the scheduler's side knows of the store, as a value."""

    known: tuple[tuple[Entry, bool], ...]
    asked: tuple[Entry, ...]
    """Questions that are not answered yet."""
    is_up: bool
    spaces: int


class TierIndex:
    """A `BelowIndex` that can be saved. Initially it knows nothing, and the store is up."""

    def __init__(self) -> None:
        self.is_up = True
        self._known: dict[Entry, bool] = {}
        self._asked: set[Entry] = set()
        self._spaces = 0

    def ask(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> list[Answer]:
        """What is known; RETRY, and a question for the store, if nothing is. A store that is down has nothing."""
        return [self._answer_of((space, *content)) if self.is_up else Answer.MISS for content in contents]

    def _answer_of(self, entry: Entry) -> Answer:
        if (known := self._known.get(entry)) is None:
            self._asked.add(entry)
            return Answer.RETRY
        return Answer.HIT if known else Answer.MISS

    @property
    def asked(self) -> tuple[Entry, ...]:
        """Questions that are not answered yet."""
        return tuple(sorted(self._asked))

    def answer(self, entry: Entry, is_there: bool) -> None:
        """The store has answered a question."""
        self._asked.remove(entry)
        self._known[entry] = is_there

    def discard(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        """These were not there when they were fetched."""
        self._note(space, contents, is_there=False)

    def note_put(self, space: bytes, contents: Sequence[tuple[int, bytes]]) -> None:
        """Every worker has put its part."""
        self._note(space, contents, is_there=True)

    def _note(self, space: bytes, contents: Sequence[tuple[int, bytes]], *, is_there: bool) -> None:
        for content in contents:
            self._asked.discard((space, *content))
            self._known[space, *content] = is_there

    def new_space(self) -> bytes:
        """A space that nobody has used."""
        self._spaces += 1
        return space_after(self._spaces)

    def snapshot(self) -> SavedIndex:
        """The present state."""
        return SavedIndex(tuple(sorted(self._known.items())), tuple(sorted(self._asked)), self.is_up, self._spaces)

    def restore(self, saved: Hashable) -> None:
        """Go back to a state."""
        if not isinstance(saved, SavedIndex):
            raise MisuseError(f"{saved!r}: it was not saved here")
        known, asked, self.is_up, self._spaces = saved
        self._known, self._asked = dict(known), set(asked)


def index_of(saved: SavedBelow | None) -> SavedIndex | None:
    """What a saved scheduler's side knows of the store; None without a store."""
    return saved.store if saved is not None and isinstance(saved.store, SavedIndex) else None


def space_after(resets: int) -> bytes:
    """The space after all content was forgotten so many times."""
    return b"space %d" % resets


def entries_of(geometry: Geometry, texts: Iterable[str], spaces: Iterable[bytes]) -> dict[Entry, int]:
    """The number of each entry that requests with these texts can have in these spaces."""
    keys = dict.fromkeys(
        (group, f"{group}:{text[:end]}".encode())
        for text in texts
        for group, tokens in enumerate(geometry.chunk_tokens)
        for end in range(tokens, len(text) + 1, tokens)
    )
    return {entry: number for number, entry in enumerate((space, *content) for space in spaces for content in keys)}
