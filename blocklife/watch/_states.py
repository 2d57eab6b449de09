"""A book of states by content, for layers that keep one state for a whole text (Mamba, linear attention).

*Rules of this file.* It knows no engine: the ears report facts, in the order in which they happened. Hand-outs and copies are
the business of `_contents`; here is what steps, copies within the device and clearing make of a state, and what the engine's
cache keeps.

*Theory: a state by name.* A block is the place of one state, and what it holds is the state behind the first so many tokens of
a text. A step goes on from the state behind the token before its first: any other one, a later one of the same text too, is
wrong. It leaves the one behind its last in the same place, and may write further ones elsewhere, for the cache. A copy within
the device carries the name. Behind no token all texts have the same state, that of a cleared place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from blocklife.watch._contents import ContentBook, Launch
from blocklife.watch._mirror import Mirror
from blocklife.watch._texts import UNSEEN, HeldContent, Text

CLEARED = HeldContent(None, 0, 0)
"""The state behind no token."""


class KeptState(NamedTuple):
    """A further state that a step leaves, for the cache: behind so many tokens, in this block."""

    block: int
    length: int | None
    """None: its parts are not behind the same number of tokens, so that it is no state at all."""


class StateTurn(NamedTuple):
    """What a step does with the state of one request: it goes on from the one behind *start* tokens, up to *stop*."""

    request: str
    text: Text
    start: int
    stop: int
    block: int
    kept: Sequence[KeptState] = ()


def state_behind(text: Text, length: int) -> HeldContent:
    """The state behind the first so many tokens of a text."""
    return HeldContent(text, length) if length else CLEARED


class StateBook(ContentBook):
    """The book of the states of one device memory, and of the host memory behind it. A block has one state."""

    unit = "states"

    def __init__(self, mirror: Mirror, num_slots: int, *, sees_steps: bool) -> None:
        super().__init__(mirror, 1, num_slots, sees_steps=sees_steps)
        self._kept: set[int] = set()
        """Blocks that the engine's cache has."""

    def handed_out(self, blocks: Sequence[int]) -> None:
        """The engine hands these blocks out."""
        super().handed_out(blocks)
        self._kept.difference_update(blocks)

    def given_back(self, blocks: Sequence[int]) -> dict[int, HeldContent | None]:
        """The engine frees these blocks. Returns what they held, for `kept_after_all`."""
        self._kept.difference_update(blocks)
        return super().given_back(blocks)

    def all_given_back(self, left: Sequence[int] = ()) -> None:
        """Every block is free: the engine begins anew. *left*: blocks that are not, after all."""
        super().all_given_back(left)
        self._kept.clear()

    def _wait(self, numbers: Collection[int]) -> None:
        super()._wait(numbers)
        # All that comes for these blocks is behind what has waited: a request may give them up, and the cache may store them,
        # before the engine takes note of the end of the load.
        for number in numbers:
            if (job := self._jobs.get(number)) is not None and job.is_launched and not job.is_store:
                self._land(job)

    def launched_copies(self, numbers: Sequence[int], *, is_ordered: bool) -> None:
        """The engine launches these copies together; *is_ordered*: behind the steps in flight."""
        super().launched_copies(numbers, is_ordered=is_ordered)
        if not self._sees_steps:  # nobody says which of them waits, nor which writes on what was loaded: they are believed
            self._wait(numbers)
            for number in numbers:
                if (job := self._jobs.get(number)) is not None and not job.is_store:
                    self._blocks.update(dict.fromkeys(self._blocks.keys() & {*job.blocks}, UNSEEN))

    # --- within the device --------------------------------------------------------------------------------------------------

    def cleared(self, blocks: Sequence[int]) -> None:
        """These blocks have the state behind no token from here on; the null block is nobody's, and not followed."""
        for block in filter(None, blocks):
            self._ask_write(block, f"block {block} is cleared")
            self._put(block, CLEARED, "cleared")

    def copied(self, sources: Sequence[int], targets: Sequence[int], waits: Collection[int] = ()) -> None:
        """States are copied from block to block; *waits*: loads that this copy has waited for."""
        self._wait(waits)
        for source, target in zip(sources, targets, strict=False):
            if what := self._why_unready(source):
                self._violate("I6", f"block {source} is copied to block {target}, {what}", block=source)
            if target:
                self._ask_write(target, f"block {source} is copied to block {target}")
                self._put(target, self._blocks.get(source) or UNSEEN, "copied from block {}", source)

    def _ask_write(self, block: int, said: str, request: str | None = None) -> None:
        what = self._why_unwritable(block) or ("which the cache keeps" if block in self._kept else "")
        if what:
            self._violate("I1", f"{said}, {what}", block=block, request=request)

    def _put(self, block: int, held: HeldContent | None, what: str, *of: object) -> None:
        if block in self._blocks:
            self._blocks[block] = held
            self._mirror.story.note((block,), what, *of)

    # --- steps --------------------------------------------------------------------------------------------------------------

    def launched(self, turns: Sequence[StateTurn], waits: Collection[int] = ()) -> None:
        """The engine launches a step with these turns; *waits*: loads that all of its layers with states wait for."""
        self._begins(waits)
        named = {turn.block for turn in turns if self._ask_read(turn)}
        for turn in turns:  # what one turn writes, no other turn of the same step expects to be there
            self._write(turn, named)
        used = frozenset(block for turn in turns for block in (turn.block, *[kept.block for kept in turn.kept]))
        self._launches.append(Launch(used, used))

    def _ask_read(self, turn: StateTurn) -> bool:
        """Whether anything was wrong."""
        held, what = self._blocks.get(turn.block), self._why_unready(turn.block)
        if held is not None and not what and not held.is_same(state_behind(turn.text, turn.start)):
            what = f"which holds {_said(held)}"
        if what:
            said = f"{turn.request} goes on behind {turn.start} tokens from the state in block {turn.block}, {what}"
            self._violate("I6", said, block=turn.block, request=turn.request)
        return bool(what)

    def _write(self, turn: StateTurn, named: Collection[int]) -> None:
        for block, length in (KeptState(turn.block, turn.stop), *turn.kept):
            if block not in named:
                self._ask_write(block, f"{turn.request} writes its state to block {block}", turn.request)
            held = None if length is None else state_behind(turn.text, length)
            self._put(block, held, "behind {} tokens of {}", length, turn.request)

    # --- the cache ----------------------------------------------------------------------------------------------------------

    def cached(self, text: Text, length: int, block: int) -> None:
        """The engine keeps this block as the state behind so many tokens of a text."""
        if block not in self._blocks:
            self._violate("I4", f"block {block} is kept in the cache, and is free", block=block)
            return
        held, new = self._blocks[block], state_behind(text, length).without_text()
        if held is None or not held.is_same(new):
            what = f"block {block} is kept as the state behind {length} tokens of a text, and holds " + (
                "nothing" if held is None else _said(held)
            )
            self._violate("I6" if held is None else "I8", what, block=block)
        # What is wrong stays known as what it is: who goes on from it is named, too.
        self._blocks[block] = new if held is UNSEEN else None if held is None else held.without_text()
        self._kept.add(block)

    def reloaded(self, blocks: Sequence[int]) -> None:
        """The engine's cache has these blocks again, which a load fills."""
        self._kept.update(block for block in blocks if block in self._blocks)


def _said(held: HeldContent) -> str:
    return f"another one, behind {held.length} tokens" if held.length else "the one behind no token"
