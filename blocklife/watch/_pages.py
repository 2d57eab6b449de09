"""A book of blocks and slots by content, for engines whose caches are trees: no table says where a block belongs.

*Rules of this file.* It knows no engine: the ears report facts, in the order in which they happened. Hand-outs and copies are
the business of `_contents`; here is what steps read and write, and what the engine's cache keeps.

*Theory: content by name.* A block holds the tokens of its request up to the end of the block. A request that reads a block
expects its own text there. So it does not matter by which way the block came to the request, and nothing has to be known of the
tree: what is split, moved or found twice there is the same content.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from attrs import define

from blocklife.watch._contents import STILL, ContentBook, Launch
from blocklife.watch._mirror import Mirror
from blocklife.watch._texts import UNSEEN, HeldContent, Text

MAX_CHANGES, MAX_CHECKED = 1 << 16, 1024
"""How much is kept of what need not be checked again; then all is checked anew."""
_NAMED = 4


class PageTurn(NamedTuple):
    """What a step computes of one request: its tokens from *start* up to *stop*.

    All of them lie in these blocks, but for the first *skipped* ones, which the step does not read: layers with a window do not
    see them.
    """

    request: str
    text: Text
    start: int
    stop: int
    blocks: list[int]
    astray: tuple[int, int] | None = None
    """A position of those computed, and its slot of a token, where that is not its place in its block."""
    skipped: int = 0
    """So many blocks are not read; they stand in the list as 0."""


@define(eq=False)
class CheckedPrefix:
    """The first blocks of a request, found right by an earlier step; they need no second look until one of them changes."""

    text: Text
    blocks: list[int]
    members: set[int]
    seen: int
    """The number of changes at that time."""


class PageBook(ContentBook):
    """The book of the pages of one device memory, and of the host memory behind it. *size*: tokens of a block.

    *has_gaps*: whether a text need not have a block for each of its parts, as in the memory of layers with windows.
    """

    def __init__(self, mirror: Mirror, size: int, num_slots: int, *, sees_steps: bool, has_gaps: bool = False) -> None:
        super().__init__(mirror, size, num_slots, sees_steps=sees_steps)
        self._has_gaps = has_gaps
        self._checked: dict[str, CheckedPrefix] = {}
        self._changes: list[int] = []
        """Blocks in the order in which something became of them."""

    def all_given_back(self, left: Sequence[int] = ()) -> None:
        """Every block is free: the engine begins anew. *left*: blocks that are not, after all."""
        super().all_given_back(left)
        self._checked.clear()

    def _changed(self, blocks: Sequence[int]) -> None:
        self._changes += blocks

    # --- steps --------------------------------------------------------------------------------------------------------------

    def launched(self, turns: Sequence[PageTurn], waits: Collection[int]) -> None:
        """The engine launches a step that computes these turns, and waits for these loads layer by layer."""
        self._begins(waits)
        written: set[int] = set()
        used: set[int] = set()
        for turn in turns:
            used.update(turn.blocks[turn.skipped :])
            first = turn.start // self._size
            self._ask_read(turn)
            if turn.astray is not None:
                where = f"{turn.request} has position {turn.astray[0]} in the slot of token {turn.astray[1]}"
                block = turn.blocks[turn.astray[0] // self._size]
                what = f"{where}, which is not its place in block {block}"
                self._violate("I6", what, block=block, request=turn.request)
            for at in range(first, len(turn.blocks)):
                written.add(turn.blocks[at])
        for turn in turns:  # what one turn writes, no other turn of the same step expects to be there
            self._write(turn)
        self._launches.append(Launch(frozenset(written), frozenset(used)))
        if len(self._changes) > MAX_CHANGES or len(self._checked) > MAX_CHECKED:
            self._changes.clear()
            self._checked.clear()

    def _ask_read(self, turn: PageTurn) -> None:
        size = self._size
        wrong: list[tuple[int, int, str]] = []
        for at in range(self._first_unchecked(turn), -(-turn.start // size)):
            block = turn.blocks[at]
            expected = HeldContent(turn.text, min((at + 1) * size, turn.start))
            if what := self._why_not(block, expected):
                wrong.append((at, block, what))
        for at, block, what in wrong[:_NAMED]:
            said = f"{turn.request} reads block {block} at position {at}, {what}"
            self._violate("I6", said, block=block, request=turn.request)
            self._blocks[block] = UNSEEN

    def _first_unchecked(self, turn: PageTurn) -> int:
        """How many blocks of a turn are known to be right; all whole ones that it reads are taken for checked from here on."""
        if turn.skipped:  # few are read, and from step to step others
            return turn.skipped
        blocks = turn.blocks[: turn.start // self._size]
        known = self._checked.get(turn.request)
        first = 0 if known is None else len(known.blocks)
        if (
            known is not None
            and known.text is turn.text
            and first <= len(blocks)
            and known.blocks == blocks[:first]
            and known.members.isdisjoint(self._changes[known.seen :])
        ):
            known.members.update(blocks[first:])
            known.blocks, known.seen = blocks, len(self._changes)
            return first
        self._checked.pop(turn.request, None)
        self._checked[turn.request] = CheckedPrefix(turn.text, blocks, set(blocks), len(self._changes))
        return 0

    def _why_not(self, block: int, expected: HeldContent) -> str:
        held, why = self._blocks.get(block), self._why_unready(block)
        if why or held is None:
            return why
        is_ahead = held.text is expected.text and held.length > expected.length  # its last tokens are computed once more
        if not (held.is_same(expected) or is_ahead):
            return "which holds something else"
        return ""

    def _write(self, turn: PageTurn) -> None:
        size, story = self._size, self._mirror.story
        for at in range(turn.start // size, len(turn.blocks)):
            block = turn.blocks[at]
            self._blocks_written(turn, at, block)
            new = HeldContent(turn.text, min((at + 1) * size, turn.stop))
            if block in self._blocks:
                if self._blocks[block] is None:
                    story.note((block,), "filled for {}, position {}", turn.request, at)
                self._blocks[block] = new
                self._changes.append(block)

    def _blocks_written(self, turn: PageTurn, at: int, block: int) -> None:
        what = self._why_unwritable(block)
        if not what and at * self._size >= turn.start and (held := self._blocks[block]) is not None:
            # begun anew, it holds nothing yet, or the same text, whose last tokens are computed once more
            what = "" if held.is_same(HeldContent(turn.text, held.length)) else "which holds something else"
        if what:
            said = f"{turn.request} writes block {block} at position {at}, {what}"
            self._violate("I1", said, block=block, request=turn.request)

    # --- the cache ----------------------------------------------------------------------------------------------------------

    def cached(self, text: Text, blocks: Sequence[int], first: int = 0) -> dict[int, HeldContent | None]:
        """The engine keeps these blocks as those of a text, from its first token on; the *first* of them it had already.

        Where the layers have windows, 0 stands for a block that was given back. Returns what they held, for `not_cached`.
        """
        before: dict[int, HeldContent | None] = {}
        is_told = False
        for at, block in list(enumerate(blocks))[first:]:
            if not block and self._has_gaps:
                continue
            if block not in self._blocks:
                self._violate("I4", f"block {block} is kept in the cache, and is free", block=block)
                break
            held, new = self._blocks[block], HeldContent(text, (at + 1) * self._size).without_text()
            before[block] = held
            if not is_told and (held is None or not held.is_same(new)):
                is_told = True  # all that stand behind it hold something else, too
                what = f"block {block} is kept for position {at} of a text, and holds " + (
                    "nothing" if held is None else "something else"
                )
                self._violate("I8" if held is not None else "I6", what, block=block)
            if held is None or held is UNSEEN or is_told:
                self._changes.append(block)
            self._blocks[block] = new
        return before

    def not_cached(self, before: Mapping[int, HeldContent | None]) -> None:
        """The call that was to keep these blocks has failed."""
        self._blocks.update((block, held) for block, held in before.items() if block in self._blocks)
        self._changed(list(before))

    def refilled(self, slots: Sequence[int], text: Text | None = None, first: int = 0, *, needs_parent: bool = False) -> None:
        """The engine's cache keeps these slots, which a storage has filled, as those of a text from block *first* of it on.

        Without a text they are believed. *needs_parent*: what stands ahead of them must be in a slot, too, as the engine
        gives up its blocks from the end of a text to its beginning.
        """
        if text is not None and needs_parent and first:
            name = text.name(first * self._size)
            stores = [job.held for job in self._jobs.values() if job.is_store]
            if name is not None and not self._slots.may_have(name, stores):
                what = f"slot {slots[0]} is kept for position {first} of a text, and no slot has what stands ahead of it"
                self._violate("I11", what)
        self._loose.difference_update(slots)
        is_told = False
        for at, slot in enumerate(slots, first):
            if slot in self._slots:
                held = UNSEEN if text is None else HeldContent(text, (at + 1) * self._size).without_text()
                came = self._read.pop(slot, None) if self.sees_reads else held
                if not is_told and (came is None or not came.is_same(held)):
                    is_told = True
                    what = "nothing was read into it" if came is None else "something else was read into it"
                    said = f"slot {slot} is kept for position {at} of a text from below the host, and {what}"
                    self._violate("I6" if came is None else "I8", said)
                self._slots.fill(slot, held)

    # --- the whole ----------------------------------------------------------------------------------------------------------

    def ended(self, request: str) -> None:
        """A request takes part in no further step."""
        self._checked.pop(request, None)

    def stands_still(self, requests: Sequence[str]) -> None:
        """The engine launches no step, although these requests wait."""
        if self._rest.lasts("still", not (self._jobs or self._launches or self.unseen_slots), STILL):
            names = ", ".join(requests[:_NAMED]) + (" and others" if len(requests) > _NAMED else "")
            what = f"{names} wait, and for {STILL} looks no step was launched and nothing was in flight"
            self._violate("I12", what, request=requests[0] if requests else None)
