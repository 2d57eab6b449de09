"""The names of a scenario in one run: which block, slot or copy each stands for now, and back.

Rules of this file:

* The reader of the file has checked every name. What does not exist in this run raises a `StageError`: the engine does not
  reach the case.

Theory. A copy in a file is all that one step plans for a request in one direction: one job of many blocks, or a job for each
block, as the engine chooses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import frozen

from blocklife.groups import Geometry
from blocklife.testing.scenarios import _kinds as kinds
from blocklife.testing.scenarios._driver import NOBODY, Driver
from blocklife.testing.worlds._device import CopyOrder


class StageError(Exception):
    """The scenario refers to something that does not exist: this engine does not reach the case."""


@frozen(eq=False)
class SeenCopy:
    """One job of a plan."""

    order: CopyOrder
    owner: str
    sharers: tuple[str, ...]
    sizes: tuple[int, ...]
    plan: int
    contents: tuple[str, ...] = ()
    """What it moves, if it goes to the store below or comes from there."""

    @property
    def kind(self) -> str:
        """The word for it in the names of copies."""
        if self.order.below:
            return "promotion" if self.order.stores else "demotion"
        return "store" if self.order.stores else "load"

    def is_of(self, whom: str) -> bool:
        """Whether it moves blocks of this request, or this content."""
        return whom in (self.contents if self.order.below else (self.owner, *self.sharers))


class ScenarioNames:
    """What the names of a file stand for."""

    def __init__(self, driver: Driver, geometry: Geometry) -> None:
        self.driver = driver
        self.geometry = geometry
        self.given: dict[str, tuple[str, tuple[int, ...]]] = {}
        """The kind and number of what ``as`` and ``remember`` have named; a copy has a number for each of its jobs."""
        self.requests: dict[str, str] = {}
        """With their tokens, as far as they are known."""
        self.tables: dict[tuple[str, int], list[int]] = {}
        """By request and group, the block that each position of its table had last, even if it was released."""
        self.copies: dict[int, SeenCopy] = {}

    def arrive(self, request: str, prompt: str = "") -> None:
        """A request is new, whatever was known under its name."""
        self.requests[request] = prompt
        for key in [each for each in self.tables if each[0] == request]:
            del self.tables[key]

    def look(self) -> None:
        """Note which blocks requests hold."""
        for request in self.requests:
            for group in range(len(self.geometry.groups)):
                seen = self.tables.setdefault((request, group), [])
                for position, block in enumerate(self.driver.table(request, group)):
                    if position == len(seen):
                        seen.append(block)
                    elif block:
                        seen[position] = block

    # --- from names to numbers ----------------------------------------------------------------------------------------------

    def kind(self, text: str) -> str:
        """The kind of thing that a name stands for."""
        return self.given[text][0] if text in self.given else next(kinds.forms_of(text), ("request", None))[0]

    def numbers(self, text: str) -> tuple[str, tuple[int, ...]]:
        """The kind and number of a block or slot, or of each job of a copy."""
        if text in self.given:
            return self.given[text]
        if text == kinds.NO_COPY:
            return "job", (NOBODY,)
        kind, found = next(kinds.forms_of(text))
        if kind == "block":
            table, position = self.tables.get((found[2], int(found[3] or 0)), []), int(found[1])
            if position >= len(table) or not table[position]:
                raise StageError(f"there is no {text}: it has had {sum(map(bool, table))} blocks so far")
            return kind, (table[position],)
        if kind == "job":
            return kind, self._jobs(text, *found.groups())
        slot = self.driver.slot_of(self.content(found[1]))
        if slot is None:
            raise StageError(f"{text} does not exist: no slot has or will get this content")
        return kind, (slot,)

    def _jobs(self, text: str, which: str | None, kind: str, request: str) -> tuple[int, ...]:
        whose = self.content(request) if kind in kinds.BELOW else request
        own = self._copies(whose, kind)
        at = kinds.ORDINALS.index(which) if which else -1
        if len(own) <= max(at, 0):
            unowned = sum(not (each.owner or each.contents) and each.kind == kind for each in self.copies.values())
            some = f"1 {kind} has" if unowned == 1 else f"{unowned} {kind}s have"
            more = f"; {some} no request (EngineStep.owners)" if unowned else ""
            raise StageError(f"there is no such copy as {text}: {len(own)} {kind}s of {request} were planned so far{more}")
        return own[at]

    def copies_of(self, owner: str, *, stores: bool) -> list[tuple[int, ...]]:
        """The copies of a request in one direction, each with its jobs."""
        return self._copies(owner, "store" if stores else "load")

    def _copies(self, whose: str, kind: str) -> list[tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        for job, each in self.copies.items():
            if each.kind == kind and each.is_of(whose):
                found[each.plan] = (*found.get(each.plan, ()), job)
        return list(found.values())

    def block(self, text: str) -> int:
        """The block for a name."""
        return self.numbers(text)[1][0]

    def blocks(self, texts: Iterable[str]) -> list[int]:
        """The blocks for some names."""
        return list(map(self.block, texts))

    def jobs(self, *texts: str) -> list[int]:
        """The jobs of some copies."""
        return [job for text in texts for job in self.numbers(text)[1]]

    def content(self, text: str) -> str:
        """The content for a name, with its group."""
        if (found := kinds.BLOCK_NAME.fullmatch(text)) is None:
            group, _, letters = text.rpartition(":")
            return f"{int(group or 0)}:{letters}"
        end = (int(found[1]) + 1) * self.geometry.block_tokens[int(found[3] or 0)]
        said = self.requests.get(found[2], "")
        if len(said) < end:
            said = self.requests[found[2]] = self.driver.tokens(found[2])
        if len(said) < end:
            raise StageError(f"{text} has no content: {found[2]} has {len(said)} tokens, and it ends at {end}")
        return f"{int(found[3] or 0)}:{said[:end]}"

    def contents(self, texts: Iterable[str]) -> list[str]:
        """The contents for some names."""
        return list(map(self.content, texts))

    def meant(self, kind: kinds.ValueKind, value: object) -> object:
        """What a driver gets for a value of this kind."""
        texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        if kind in (kinds.BLOCK, kinds.BLOCKS):
            return self.block(*texts) if kind == kinds.BLOCK else self.blocks(texts)
        if kind in (kinds.CONTENT, kinds.CONTENTS):
            return self.content(*texts) if kind == kinds.CONTENT else self.contents(texts)
        return self.jobs(*texts) if kind == kinds.COPIES else value

    # --- from numbers to names ----------------------------------------------------------------------------------------------

    def said(self, block: int) -> str:
        """The name of a block."""
        for name, found in self.given.items():
            if found == ("block", (block,)):
                return name
        for (request, group), table in reversed(self.tables.items()):
            if block in table:
                return f"block {table.index(block)} of {request}" + (f" in group {group}" if group else "")
        return f"block number {block}"

    def said_job(self, job: int) -> str:
        """The name of a copy."""
        for name, (kind, numbers) in self.given.items():
            if kind == "job" and job in numbers:
                return name
        seen = self.copies.get(job)
        whose = "" if seen is None else seen.contents[0] if seen.contents else seen.owner
        if seen is None or not whose:
            return f"copy number {job}"
        own = self._copies(whose, seen.kind)
        at = next(at for at, jobs in enumerate(own) if job in jobs)
        which = f"{kinds.ORDINALS[at]} " if len(own) > 1 and at < len(kinds.ORDINALS) else ""
        return f"the {which}{seen.kind} of {whose.removeprefix('0:')}"

    def in_words(self, text: str) -> str:
        """A message of the device or the engine, with names added to its numbers."""

        def beside(found: re.Match[str]) -> str:
            said = self.said(int(found[2])) if found[1] == "block" else self.said_job(int(found[2]))
            return found[0] if " number " in said else f"{found[0]} ({said})"

        return re.sub(r"\b(block|copy) (\d+)\b(?! of )", beside, text)
