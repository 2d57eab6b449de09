"""What is to be stored: chunks whose turn comes, in eager or lazy order, and the jobs that are made of them.

Rules of this file:

* A chunk names lives, not ids. Whether it is stale is one comparison when its turn comes, whoever held its blocks meanwhile:
  no request's table is walked for it, be the request scheduled or not (vLLM's change 42959 walks all of them).
* A refusal of the host tier changes nothing: the chunk keeps its place in the line, and no later one of any request overtakes
  it. Whatever is accepted, also an empty part, takes the whole range out of the line.
* A store in flight is known by the life that it reads: the block names its job. So the mark goes when all workers have
  reported, or when the life ends, and a lost report never exempts the next life (vLLM's change 41289).
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from attrs import define

from blocklife.ledger import Ledger
from blocklife.ledger._ids import NULL, packed
from blocklife.ledger.jobs import JobColumns
from blocklife.ledger.views import block_of
from blocklife.offload._groups import Geometry
from blocklife.offload._host import HostTier
from blocklife.offload.records import Mode, Policies
from blocklife.states import COPYING, KEYED, STORE_READS, Block, BlockLife, Job, Slot, Trait, states_with

_INDEX = BlockLife.table.index
_COPYING = frozenset(_INDEX[state] for state in COPYING)
_FINAL = frozenset(_INDEX[state] for state in KEYED)
_AFTER = frozenset(_INDEX[state] for state in states_with(Trait.HELD, Block) & STORE_READS)
"""States from which it can be once a wait is proven, or a load has landed."""


@define(eq=False)
class Chunk:
    """Content that is to be stored as one: ``lives`` has an entry for each block of the chunk, `NULL` for a hole."""

    owner: str
    group: int
    key: bytes
    lives: list[int]
    suffix: int = 0
    """How many blocks at its end are there, without a hole; set when its turn comes. It is all that a hit can read."""


_SPARE = 64
"""Chunks that can wait beyond those that the device holds, so that a small device does not sweep all the time."""


class _ChunkVerdict(enum.Enum):
    """What is to be done with a chunk whose turn has come."""

    STORE = "it can be stored now"
    LATER = "it cannot be stored before something has landed"
    DROP = "it need not, or cannot, be stored"


_STORE, _LATER, _DROP = _ChunkVerdict.STORE, _ChunkVerdict.LATER, _ChunkVerdict.DROP


class StoreLine:
    """Chunks in the order in which they are to be stored.

    Invariant: ``_line`` holds the chunks of each owner in order, owners in the order of their oldest chunk; no list is empty.
    Invariant (lazy): ``_candidates`` names, by block, the latest chunk that the block is part of. It is looked at only when the
    block is about to be handed out, and counts only while the chunk's life is the block's own.
    Invariant: ``suffix[slot]`` is how many blocks at the end of its chunk the slot holds without a hole, if it has content.
    """

    def __init__(self, ledger: Ledger, tier: HostTier, geometry: Geometry, policies: Policies) -> None:
        self._ledger = ledger
        self._tier = tier
        self._policies = policies
        self._size = geometry.blocks_per_chunk
        # What a hit can read of a chunk: sliding windows and states need its end only.
        self._required = tuple(
            self._size if window is None else min(self._size, max(1, window)) for window in geometry.window_blocks
        )
        # A job larger than the tier would be refused for ever.
        blocks = min(policies.max_job_blocks, len(ledger.slots) * self._size)
        self._max_chunks = max(1, blocks // self._size)
        self._lazy = policies.mode is Mode.LAZY
        self._line: dict[str, deque[Chunk]] = {}
        self._candidates: dict[int, Chunk] = {}
        self._exposed: dict[int, list[int]] = {}
        """Lazy stores that are out, by job number, with their lives."""
        self._made: dict[int, list[Chunk]] = {}
        """Stores that were planned and, when last looked at, not submitted, by job number, with their chunks."""
        self._entered = 0
        """Chunks that entered the line since it was swept."""
        # Of a chunk of several blocks that was there before, nobody knows how much is there: it is not found.
        slots = ledger.slots
        self.suffix = bytearray([self._size == 1 and slots.key(slot) is not None for slot in range(len(slots))])
        self.counts: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Chunks in the line."""
        return sum(map(len, self._line.values()))

    def clear(self) -> None:
        """Forget every wish: the content is gone."""
        self._line.clear()
        self._candidates.clear()
        self._exposed.clear()
        self._made.clear()

    def offer(self, chunks: Sequence[Chunk]) -> None:
        """Chunks are full: they enter the line, or, in lazy mode, wait until one of their blocks is about to go."""
        if not self._lazy:
            self._enter(chunks)
            return
        for chunk in chunks:
            for life in chunk.lives:
                if life != NULL:
                    self._candidates[block_of(life)] = chunk

    def _enter(self, chunks: Sequence[Chunk]) -> None:
        line = self._line
        for chunk in chunks:
            found = line.get(chunk.owner)
            if found is None:
                found = line[chunk.owner] = deque()
            found.append(chunk)
        self._entered += len(chunks)
        if self._entered > len(self._ledger.blocks) + _SPARE:
            self._sweep()

    def is_stored(self, group: int, key: bytes) -> bool:
        """Whether content can be read in the host tier; counted as a chunk that needs no store."""
        if self._ledger.slots.find_ready(group, key) is None:
            return False
        self.counts["already stored"] += 1
        return True

    def plan(self, owners: Iterable[str] | None = None) -> None:
        """Make one job an owner, in the order of the line, until one is refused; *owners* limits it to some of them."""
        self._take_back()
        if self._lazy:
            self._settle_exposed()
            if owners is None and self._ledger.own_pool:
                self.collect(self._ledger.blocks.next_free(self._policies.lazy_blocks))
        orders: list[list[Chunk]] = []
        lives: set[int] = set()
        room = self._ledger.jobs.room
        for owner in list(self._line) if owners is None else [each for each in owners if each in self._line]:
            if len(orders) == room:  # those behind are not even looked at
                self.counts["refused"] += 1
                break
            if chunks := self._ripe(owner, lives):
                orders.append(chunks)
        if not orders or self._make(orders):
            return
        # what is in quarantine may never come back: a job that needs it would be refused for ever
        slots = self._ledger.slots.count()
        usable = max(1, len(self._ledger.slots) - slots[Slot.QUARANTINED])
        for chunks in orders:
            if not self._make([chunks[:usable]]):
                self.counts["refused"] += 1
                return

    def _sweep(self) -> None:
        """Take out what can never be stored and what waits twice: about as much as the device holds ever waits.

        Each sweep is paid for by as many chunks that entered as the device has blocks.
        """
        is_current = self._ledger.blocks.is_current
        seen: set[tuple[int, bytes, int]] = set()
        for owner, line in list(self._line.items()):
            kept = deque[Chunk]()
            for chunk in line:
                last = chunk.lives[-1]
                if is_current(last) and (chunk.group, chunk.key, last) not in seen:
                    seen.add((chunk.group, chunk.key, last))
                    kept.append(chunk)
                else:
                    self.counts["stale"] += 1
            if kept:
                self._line[owner] = kept
            else:
                del self._line[owner]
        self._entered = 0

    # --- one chunk ----------------------------------------------------------------------------------------------------------

    def _ripe(self, owner: str, lives: set[int]) -> list[Chunk]:
        """The next chunks of one owner that can be stored now; what never can be leaves the line, what has to wait stays.

        *lives* are those chosen for this plan, by all owners: a chunk that shares one waits, and finds it in flight next time.
        """
        line = self._line[owner]
        chosen: list[Chunk] = []
        names: set[tuple[int, bytes]] = set()
        kept: list[Chunk] = []
        while line and len(chosen) < self._max_chunks:
            chunk = line.popleft()
            verdict = self._judge(chunk)
            if verdict is _DROP:
                continue
            if verdict is _LATER or not lives.isdisjoint(chunk.lives):
                kept.append(chunk)
            elif (chunk.group, chunk.key) in names:
                self.counts["already stored"] += 1
            else:
                names.add((chunk.group, chunk.key))
                lives.update(chunk.lives)
                lives.discard(NULL)
                chosen.append(chunk)
        # what is chosen stays in the line until its job is made
        if kept:
            line.extendleft(reversed(kept))
        line.extendleft(reversed(chosen))
        if not line:
            del self._line[owner]
        return chosen

    def _judge(self, chunk: Chunk) -> _ChunkVerdict:
        """Look at a chunk whose turn has come: stale blocks become holes."""
        if self.is_stored(chunk.group, chunk.key):
            return _DROP
        code_of = self._ledger.blocks.code_of
        later = False
        for position, life in enumerate(chunk.lives):
            if life == NULL:
                continue
            at = code_of(life)
            if at is None:
                self.counts["stale"] += 1
                chunk.lives[position] = NULL
                continue
            if at in _COPYING:
                if position == len(chunk.lives) - 1:  # the chunk is named after this life: it is on its way
                    self.counts["in flight"] += 1
                    return _DROP
                later = True  # it is part of another chunk, too
            elif at in _AFTER or (self._lazy and at not in _FINAL):
                later = True
        chunk.suffix = _suffix(chunk.lives)
        if chunk.suffix < self._required[chunk.group] and not (self._policies.partial_chunks and chunk.suffix):
            if any(chunk.lives):
                self.counts["partial"] += 1
            return _DROP
        return _LATER if later else _STORE

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    def _make(self, orders: Sequence[list[Chunk]]) -> bool:
        """Reserve slots for these chunks and plan their stores, all or none; False where the tier refuses."""
        # copies: the line has them in the order in which they were offered
        ordered = [sorted(chunks, key=_group) for chunks in orders]
        slots = self._tier.reserve([(chunk.group, chunk.key) for chunks in ordered for chunk in chunks])
        if slots is None:
            return False
        numbers = self._ledger.plan_columns(self._columns(ordered, slots))
        for chunks, number in zip(ordered, numbers, strict=True):
            owner = chunks[0].owner
            line = self._line[owner]
            for _ in chunks:
                line.popleft()
            if not line:
                del self._line[owner]
            self._made[number] = chunks
            if self._lazy:
                self._exposed[number] = [life for chunk in chunks for life in chunk.lives if life != NULL]
        return True

    def _take_back(self) -> None:
        """A store that was cancelled before it was submitted has lost one of its blocks: the others get another turn, first."""
        jobs = self._ledger.jobs
        for number in [each for each in self._made if not jobs.is_planned(each)]:
            chunks = self._made.pop(number)
            if jobs.state(number) is Job.CANCELLED:
                self._line.setdefault(chunks[0].owner, deque()).extendleft(reversed(chunks))

    def _columns(self, orders: Sequence[Sequence[Chunk]], slots: list[int]) -> JobColumns:
        """One job after the other; sizes count what is appended, whatever the holes (vLLM's change 42945)."""
        size, suffix = self._size, self.suffix
        owners: list[str | None] = [chunks[0].owner for chunks in orders]
        sharers: list[tuple[str, ...]] = [()] * len(orders)
        cuts, slot_cuts = [0], [0]
        lives, places, keys, names = list[int](), list[int](), list[bytes](), list[bytes | None]()
        groups, slot_groups = bytearray(), bytearray()
        given = iter(slots)
        for chunks in orders:
            for chunk in chunks:
                slot = next(given)
                suffix[slot] = chunk.suffix
                keys.append(chunk.key)
                slot_groups.append(chunk.group)
                if size == 1:
                    lives.append(chunk.lives[0])
                    continue
                for position, life in enumerate(chunk.lives):
                    if life != NULL:
                        lives.append(life)
                        places.append(slot * size + position)
                        groups.append(chunk.group)
                        names.append(chunk.key if position == size - 1 else None)
            cuts.append(len(lives))
            slot_cuts.append(len(keys))
        if size == 1:
            return JobColumns.of_blocks(owners, sharers, cuts, packed(lives), bytes(slot_groups), packed(slots), keys)
        return JobColumns(
            owners,
            cuts,
            packed(lives),
            bytes(groups),
            packed(places),
            names,
            slot_cuts,
            packed(slots),
            bytes(slot_groups),
            keys,
            sharers,
        )

    # --- lazy ---------------------------------------------------------------------------------------------------------------

    def collect(self, blocks: Iterable[int]) -> None:
        """Put what is a candidate among these blocks into the line: they are about to be handed out."""
        life_of = self._ledger.blocks.life
        for place in blocks:
            chunk = self._candidates.get(place)
            if chunk is None:
                continue
            if life_of(place) in chunk.lives:
                self._enter([chunk])
            for life in chunk.lives:
                if self._candidates.get(block_of(life)) is chunk:
                    del self._candidates[block_of(life)]

    def _settle_exposed(self) -> None:
        """Blocks whose lazy store has landed go first when blocks are handed out: else the line would never see its end.

        Those whose store came to nothing stay where they are: the device has the only copy.
        """
        jobs = self._ledger.jobs
        for number in [each for each in self._exposed if not jobs.is_out(each)]:
            lives = self._exposed.pop(number)
            if self._ledger.own_pool and jobs.state(number) is Job.DONE:
                self._ledger.demote(lives)


def _suffix(lives: Sequence[int]) -> int:
    """How many entries at the end are no holes."""
    if NULL not in lives:
        return len(lives)
    return next(count for count, life in enumerate(reversed(lives)) if life == NULL)


def _group(chunk: Chunk) -> int:
    return chunk.group
