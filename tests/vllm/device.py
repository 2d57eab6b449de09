"""Memory that knows what it should hold, and copies that take their time: what a rig has instead of a device.

One number stands for the KV of one token in one group: it follows from all tokens up to this one, so two requests have it in
common exactly where they have their text in common. Each worker xors its own constant into it. So a wrong, stale, torn or
swapped block differs in some word, whoever reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from tests.texts import Chain, mixed
from tests.vllm.worlds import TEXT_ALONE, Beside, Lag

Words = NDArray[np.uint64]
Ids = NDArray[np.int64]


class Text(Chain):
    """A text, and what its blocks hold."""

    def __init__(self, prompt: Sequence[int], beside: Beside = TEXT_ALONE) -> None:
        salt = None if beside.salt is beside.adapter is None else f"{beside.salt} {beside.adapter}"
        super().__init__(prompt, salt, {at: each for each, at, _ in beside.images})
        self.beside = beside
        self._prints: list[Words] = []

    def prints(self, group: int, start: int, stop: int) -> Words:
        """What the places of these tokens hold in this group."""
        while len(self._prints) <= group:
            self._prints.append(np.zeros(0, dtype=np.uint64))
        known = self._prints[group]
        if len(known) < stop:
            self.token(stop - 1)
            more = [mixed(value + group) for value in self.numbers[len(known) :]]
            known = self._prints[group] = np.concatenate((known, np.array(more, dtype=np.uint64)))
        return known[start:stop]

    def state(self, group: int, tokens: int) -> np.uint64:
        """What a block with the state after so many tokens holds in this group."""
        self.token(tokens - 1)
        return np.uint64(mixed(self.numbers[tokens - 1] ^ (group + 1) << 32))


class Memory:
    """Device and host memory of one worker: one row a block, one row a place of a block in the host tier."""

    def __init__(self, num_blocks: int, num_places: int, row_words: int, rank: int, part: int | None = None) -> None:
        self.device: Words = np.zeros((num_blocks, row_words), dtype=np.uint64)
        self.host: Words = np.zeros((num_places, row_words), dtype=np.uint64)
        self.row_words = row_words
        self.rank = rank
        self.salt = np.uint64(mixed(0xC0FFEE + (rank if part is None else part)))


@define(eq=False)
class Copy:
    """One copy on its way. Rows of *early* move at its start, the others when it lands."""

    name: int
    is_store: bool
    sources: Ids
    targets: Ids
    due: int
    """The step in which it lands if nobody waits for it before."""
    early: NDArray[np.bool_]
    started: bool = False
    sent: Words = field(factory=lambda: np.zeros((0, 0), dtype=np.uint64))
    """The rows of a store as they were when it was queued."""


class Copies:
    """The copies of one worker: in order of submission within a direction, in any order between the directions.

    That is what a real worker promises too: each direction is one queue on the device, and a copy starts when the one before
    it is done.
    """

    def __init__(self, memory: Memory, lag: Lag, rng: Random) -> None:
        self._memory = memory
        self._lag = lag
        self._rng = rng
        self.queues: dict[bool, list[Copy]] = {True: [], False: []}
        self._landed: list[int] = []
        self.step = 0
        self.stores = 0
        """Rows that stores have moved."""
        self.loads = 0
        """Rows that loads have moved."""
        self.counts_twice = True
        self.stored_twice = 0
        """Rows whose store was queued although a store in flight reads them already and nothing has written them since."""
        self.tamper: Callable[[Copy], None] | None = None
        """Called with each copy before it is queued, for tests that plant a wrong copy."""

    @property
    def out(self) -> int:
        """How many copies have not landed."""
        return sum(len(queue) for queue in self.queues.values())

    def submit(self, name: int, is_store: bool, sources: Iterable[int], targets: Iterable[int], first: bool = False) -> None:
        """Queue a copy of rows: from device to host if it is a store, else from host to device; *first* jumps the queue."""
        rng, queue = self._rng, self.queues[is_store]
        from_rows, to_rows = np.array(list(sources), dtype=np.int64), np.array(list(targets), dtype=np.int64)
        early = np.array([rng.random() < 0.5 for _ in from_rows], dtype=np.bool_)
        due = self.step + rng.randint(self._lag.shortest, self._lag.longest)
        copy = Copy(name, is_store, from_rows, to_rows, due, early)
        if is_store and self.counts_twice:
            self.stored_twice += self._in_flight_already(copy)
        if self.tamper is not None:
            self.tamper(copy)
        queue.insert(0 if first else len(queue), copy)
        self._start(queue)

    def wait(self, names: Iterable[int]) -> None:
        """Let these copies land now, with all that are queued before them; unknown names are not waited for."""
        wanted = set(names)
        for queue in self.queues.values():
            last = max((at for at, copy in enumerate(queue) if copy.name in wanted), default=-1)
            for _ in range(last + 1):
                self._land(queue)

    def poll(self) -> list[int]:
        """Names of the copies that landed since the last call, stores before loads."""
        for queue in self.queues.values():
            while queue and queue[0].due <= self.step:
                self._land(queue)
        landed, self._landed = self._landed, []
        return landed

    def _in_flight_already(self, copy: Copy) -> int:
        copy.sent = self._memory.device[copy.sources]
        rows = dict(zip(copy.sources.tolist(), copy.sent, strict=True))
        twice = 0
        for other in self.queues[True]:
            for row, sent in zip(other.sources.tolist(), other.sent, strict=True):
                twice += row in rows and bool((rows[row] == sent).all())
        return twice

    def _start(self, queue: list[Copy]) -> None:
        if queue and not queue[0].started:
            queue[0].started = True
            self._move(queue[0], queue[0].early)

    def _land(self, queue: list[Copy]) -> None:
        self._start(queue)
        copy = queue.pop(0)
        self._move(copy, ~copy.early)
        self._landed.append(copy.name)
        self._start(queue)

    def _move(self, copy: Copy, rows: NDArray[np.bool_]) -> None:
        memory = self._memory
        source, target = (memory.device, memory.host) if copy.is_store else (memory.host, memory.device)
        target[copy.targets[rows]] = source[copy.sources[rows]]
        moved = int(np.count_nonzero(rows))
        if copy.is_store:
            self.stores += moved
        else:
            self.loads += moved
