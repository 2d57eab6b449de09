"""A paged cache with an allocator and a copy queue of its own. It knows nothing of blocklife.

Full blocks are copied to host memory while the engine goes on. A request that has ended gives its blocks back; those that a
copy still reads come back when it has landed. With ``hasty`` that is forgotten: the planted bug.
"""

from __future__ import annotations

from collections import deque

from attrs import define, field, frozen

BLOCK = 4
"""Tokens of a block; a token is a letter."""


@frozen
class Copy:
    """One block on its way to the host."""

    number: int
    owner: str
    block: int
    slot: int
    text: str
    """All tokens up to the end of the block: what it is found by."""


@frozen
class Step:
    """What one step did."""

    placed: dict[str, list[int]]
    """Blocks of the requests that were let in; their prompts were computed."""
    no_room: list[str]
    copies: list[Copy]


@define(eq=False)
class Engine:
    num_blocks: int
    num_slots: int
    hasty: bool = False
    free: deque[int] = field(init=False)
    texts: dict[str, str] = field(factory=dict)
    waiting: list[str] = field(factory=list)
    tables: dict[str, list[int]] = field(factory=dict)
    copies: dict[int, Copy] = field(factory=dict)
    """Those that are out."""
    host: dict[str, int] = field(factory=dict)
    """The slot of each text that was copied, or is being copied."""
    leaving: set[int] = field(factory=set)
    """Blocks that nobody holds and a copy reads."""
    made: int = 0

    def __attrs_post_init__(self) -> None:
        self.free = deque(range(1, self.num_blocks + 1))

    def arrive(self, name: str, prompt: str) -> None:
        self.texts[name] = prompt
        self.waiting.append(name)

    def step(self) -> Step:
        """Let in whoever finds room, and copy what is full."""
        placed: dict[str, list[int]] = {}
        copies: list[Copy] = []
        for name in list(self.waiting):
            text = self.texts[name]
            count = -(-len(text) // BLOCK)
            if count > len(self.free):
                break
            self.waiting.remove(name)
            self.tables[name] = placed[name] = [self.free.popleft() for _ in range(count)]
            copies += self._copies(name, text)
        return Step(placed, list(self.waiting), copies)

    def _copies(self, name: str, text: str) -> list[Copy]:
        made = []
        for position in range(len(text) // BLOCK):
            content = text[: (position + 1) * BLOCK]
            if content not in self.host and len(self.host) < self.num_slots:
                self.made += 1
                self.host[content] = len(self.host)
                made.append(Copy(self.made, name, self.tables[name][position], self.host[content], content))
        self.copies.update((each.number, each) for each in made)
        return made

    def land(self, number: int) -> None:
        """A copy has arrived."""
        block = self.copies.pop(number).block
        if block in self.leaving:
            self.leaving.remove(block)
            self.free.append(block)

    def finish(self, name: str) -> None:
        """A request has ended."""
        del self.texts[name]
        read = {each.block for each in self.copies.values()}
        for block in self.tables.pop(name):
            if block in read and not self.hasty:
                self.leaving.add(block)
            else:
                self.free.append(block)
