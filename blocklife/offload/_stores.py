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
from itertools import accumulate
from typing import TypeAlias

from blocklife.ledger import Ledger
from blocklife.ledger._ids import NULL, listed, packed
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


class Chunk:
    """Content that is to be stored as one: ``lives`` has an entry for each block of the chunk, `NULL` for a hole.

    ``suffix`` is how many blocks at its end are there, without a hole; set when its turn comes. It is all that a hit can read.
    """

    __slots__ = ("group", "key", "lives", "owner", "suffix")

    def __init__(self, owner: str, group: int, key: bytes, lives: list[int], suffix: int = 0) -> None:
        self.owner, self.group, self.key, self.lives, self.suffix = owner, group, key, lives, suffix


_STORABLE = KEYED - COPYING | {Block.ALLOCATED}
"""States of content that a store can be planned of."""
Filled: TypeAlias = tuple[str, int, list[int], Sequence[bytes]]
"""Neighbouring blocks of a request that are full: whose they are, their group, their lives and their keys."""
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
        self._blocks, self._slots, self._jobs = ledger.blocks, ledger.slots, ledger.jobs
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
        self._made: dict[int, list[Chunk] | None] = {}
        """Stores that were planned and, when last looked at, not submitted, by job number, with their chunks; None where they
        can be read off the job."""
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

    @property
    def is_busy(self) -> bool:
        """Whether `plan` may have something to do."""
        return self._lazy or bool(self._line or self._made)

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
        if self._entered > len(self._blocks) + _SPARE:
            self._sweep()

    def is_stored(self, group: int, key: bytes) -> bool:
        """Whether content can be read in the host tier; counted as a chunk that needs no store."""
        if not self._slots.any_ready(((group, key),)):
            return False
        self.counts["already stored"] += 1
        return True

    def plan_filled(self, filled: Sequence[Filled]) -> None:
        """Plan the stores of what a step fills in groups of one block a chunk, and of what waits.

        Where nothing waits, and all of it can be stored now, it goes past the line.
        """
        if filled and (self._line or self._lazy or self._any_cancelled() or not self._store_at_once(filled)):
            found: list[Chunk] = []
            for owner, group, lives, keys in filled:
                found += [Chunk(owner, group, key, [life]) for life, key in zip(lives, keys, strict=False) if life != NULL]
            self.offer(found)
        self.plan()

    def _store_at_once(self, filled: Sequence[Filled]) -> bool:
        """Make one job an owner of all of it; False, and nothing has changed, where something has to wait, or is not needed."""
        by_owner: dict[str, tuple[list[int], list[bytes], bytearray]] = {}
        for owner, group, lives, keys in filled:
            own = by_owner.get(owner)
            if own is None:
                own = by_owner[owner] = ([], [], bytearray())
            own[0].extend(lives)
            own[1].extend(keys)
            own[2].extend(bytes((group,)) * len(lives))
        all_lives, all_keys, groups, cuts = list[int](), list[bytes](), bytearray(), [0]
        for lives, keys, own_groups in by_owner.values():
            all_lives += lives
            all_keys += keys
            groups += own_groups
            cuts.append(len(all_lives))
            if cuts[-1] - cuts[-2] > self._max_chunks:
                return False
        names = list(zip(groups, all_keys, strict=False))
        count = len(all_lives)
        if len(names) != count or len(all_keys) != count or len(set(names)) != count or len(set(all_lives)) != count:
            return False
        if len(by_owner) > self._jobs.room or not all(self._blocks.among(all_lives, _STORABLE)):
            return False
        if self._slots.any_ready(names) or (slots := self._tier.reserve(names)) is None:
            return False
        owners: list[str | None] = list(by_owner)
        numbers = self._ledger.plan_columns(
            JobColumns.of_blocks(owners, [()] * len(owners), cuts, packed(all_lives), bytes(groups), packed(slots), all_keys)
        )
        for slot in slots:
            self.suffix[slot] = 1
        for number in numbers:
            self._made[number] = None
        return True

    def plan(self, owners: Iterable[str] | None = None) -> None:
        """Make one job an owner, in the order of the line, until one is refused; *owners* limits it to some of them."""
        self._take_back()
        if self._lazy:
            self._settle_exposed()
            if owners is None and self._ledger.own_pool:
                self.collect(self._blocks.next_free(self._policies.lazy_blocks))
        orders: list[list[Chunk]] = []
        lives: set[int] = set()
        room = self._jobs.room
        for owner in list(self._line) if owners is None else [each for each in owners if each in self._line]:
            if len(orders) == room:  # those behind are not even looked at
                self.counts["refused"] += 1
                break
            if chunks := self._ripe(owner, lives):
                orders.append(chunks)
        if orders and not self._make(orders):
            self._make_one_by_one(orders)
        for chunks in orders:
            if not self._line[chunks[0].owner]:
                del self._line[chunks[0].owner]

    def _make_one_by_one(self, orders: Sequence[list[Chunk]]) -> None:
        """The same as far as there is room; what finds none goes back to where it stood in the line."""
        # what is in quarantine may never come back: a job that needs it would be refused for ever
        usable = max(1, len(self._slots) - self._slots.count()[Slot.QUARANTINED])
        for at, chunks in enumerate(orders):
            if not self._make([chunks[:usable]]):
                self.counts["refused"] += 1
                for rest in orders[at:]:
                    self._line[rest[0].owner].extendleft(reversed(rest))
                return
            self._line[chunks[0].owner].extendleft(reversed(chunks[usable:]))

    def _sweep(self) -> None:
        """Take out what can never be stored and what waits twice: about as much as the device holds ever waits.

        Each sweep is paid for by as many chunks that entered as the device has blocks.
        """
        is_current = self._blocks.is_current
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
        """Take the next chunks of one owner that can be stored now out of the line; what never can be leaves it, too.

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
            name = chunk.group, chunk.key
            if verdict is _LATER or not lives.isdisjoint(chunk.lives):
                kept.append(chunk)
            elif name in names:
                self.counts["already stored"] += 1
            else:
                names.add(name)
                lives.update(chunk.lives)
                lives.discard(NULL)
                chosen.append(chunk)
        if kept:
            line.extendleft(reversed(kept))
        if not line and not chosen:
            del self._line[owner]
        return chosen

    def _judge(self, chunk: Chunk) -> _ChunkVerdict:
        """Look at a chunk whose turn has come: stale blocks become holes."""
        if self.is_stored(chunk.group, chunk.key):
            return _DROP
        code_of = self._blocks.code_of
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
        # copies: what is refused goes back in the order in which it was offered
        ordered = [sorted(chunks, key=_group) for chunks in orders]
        slots = self._tier.reserve([(chunk.group, chunk.key) for chunks in ordered for chunk in chunks])
        if slots is None:
            return False
        numbers = self._ledger.plan_columns(self._columns(ordered, slots))
        for chunks, number in zip(ordered, numbers, strict=True):
            self._made[number] = chunks
            if self._lazy:
                self._exposed[number] = [life for chunk in chunks for life in chunk.lives if life != NULL]
        return True

    def _take_back(self) -> None:
        """A store that was cancelled before it was submitted has lost one of its blocks: the others get another turn, first."""
        jobs = self._jobs
        for number in [each for each in self._made if not jobs.is_planned(each)]:
            if jobs.state(number) is Job.CANCELLED:
                chunks = self.made(number)
                self._line.setdefault(chunks[0].owner, deque()).extendleft(reversed(chunks))
            del self._made[number]

    def _any_cancelled(self) -> bool:
        """Whether `_take_back` has chunks for the line."""
        state = self._jobs.state
        return Job.CANCELLED in [state(number) for number in self._made]

    def made(self, number: int) -> list[Chunk]:
        """The chunks of a store that was planned; none, where its job is long over."""
        chunks = self._made[number]
        if chunks is not None:
            return chunks
        job = self._jobs.get(number)
        if job is None or job.owner is None:
            return []
        owner = job.owner
        return [
            Chunk(owner, group, key, [life], 1)
            for group, key, life in zip(job.groups, job.keys, listed(job.lives), strict=False)
        ]

    def _columns(self, orders: Sequence[Sequence[Chunk]], slots: list[int]) -> JobColumns:
        """One job after the other; sizes count what is appended, whatever the holes (vLLM's change 42945)."""
        size, suffix = self._size, self.suffix
        owners: list[str | None] = [chunks[0].owner for chunks in orders]
        sharers: list[tuple[str, ...]] = [()] * len(orders)
        if size == 1:
            every = [chunk for chunks in orders for chunk in chunks]
            for chunk, slot in zip(every, slots, strict=True):
                suffix[slot] = chunk.suffix
            groups_of = bytes([chunk.group for chunk in every])
            cuts = [0, *accumulate(map(len, orders))]
            own = [chunk.lives[0] for chunk in every]
            return JobColumns.of_blocks(
                owners, sharers, cuts, packed(own), groups_of, packed(slots), [chunk.key for chunk in every]
            )
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
                for position, life in enumerate(chunk.lives):
                    if life != NULL:
                        lives.append(life)
                        places.append(slot * size + position)
                        groups.append(chunk.group)
                        names.append(chunk.key if position == size - 1 else None)
            cuts.append(len(lives))
            slot_cuts.append(len(keys))
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
        life_of = self._blocks.life
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
        jobs = self._jobs
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
