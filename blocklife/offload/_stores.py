"""The store queue: chunks to be stored, in eager or lazy order, and the jobs made from them.

Rules of this file:

* A chunk refers to lives, not block ids. When its turn comes, one comparison tells whether it is stale, whoever held its blocks
  in between; no block table is walked, of scheduled requests or others (vLLM's change 42959 walks all of them).
* A refusal of the host tier changes nothing: the chunk keeps its place in the queue, and no later chunk overtakes it. If a
  chunk is accepted, even an empty part of it, the whole range leaves the queue.
* A store in flight is identified by the life that it reads: the block refers to its job. This mark goes when all workers have
  reported or the life ends, so that a lost report never exempts the next life (vLLM's change 41289).
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice
from typing import TypeAlias

from blocklife.groups import Geometry
from blocklife.ledger import Direction, Ledger
from blocklife.ledger._ids import NULL
from blocklife.ledger.jobs import JobColumns
from blocklife.ledger.views import block_of
from blocklife.offload._host import HostTier
from blocklife.policies import Mode, Policies
from blocklife.states import COPYING, KEYED, STORE_READS, Block, BlockLife, Job, Slot, Trait, states_with

_CANCELLED = Job.CANCELLED  # members of an enumeration are slow to find
_INDEX = BlockLife.table.index
_COPYING = frozenset(_INDEX[state] for state in COPYING)
_FINAL = frozenset(_INDEX[state] for state in KEYED)
_AFTER = frozenset(_INDEX[state] for state in states_with(Trait.HELD, Block) & STORE_READS)
"""Block states from which a store becomes possible once a wait is proven or a load has landed."""


class Chunk:
    """Content to be stored as one unit: ``lives`` has an entry for each block of the chunk, `NULL` for a hole.

    ``suffix`` is the number of trailing blocks without a hole, set when its turn comes. A hit can read no more than these.
    Of a *tail* the key names only the first tokens of the one block; the block may also be full, and have the key of that.
    """

    __slots__ = ("group", "key", "lives", "owner", "suffix", "tail")

    def __init__(self, owner: str, group: int, key: bytes, lives: list[int], suffix: int = 0, tail: bool = False) -> None:
        self.owner, self.group, self.key, self.lives, self.suffix, self.tail = owner, group, key, lives, suffix, tail


StoredTurn: TypeAlias = tuple[Sequence[str], Sequence[tuple[int, bytes]], Sequence[int]]
"""Chunks of one block, stored as soon as they were full: their owners, groups and keys, and lives. Most are never looked at."""

_SPARE = 64
"""Chunks that may wait in excess of the device's capacity, so that a small device does not sweep all the time."""


class _ChunkVerdict(enum.Enum):
    """What to do with a chunk whose turn has come."""

    STORE = "it can be stored now"
    LATER = "it cannot be stored before something has landed"
    DROP = "it need not, or cannot, be stored"


_STORE, _LATER, _DROP = _ChunkVerdict.STORE, _ChunkVerdict.LATER, _ChunkVerdict.DROP


class StoreLine:
    """The queue of chunks to be stored, in order.

    Invariant: ``_line`` holds the chunks of each owner in order, owners in the order of their oldest chunk; no list is empty.
    Invariant (lazy): ``_candidates`` has, by block, the latest chunk that the block is part of. It is read only when the block
    is about to be handed out, and is valid only while the chunk's life is the block's own.
    Invariant: ``suffix[slot]`` is the number of trailing blocks without a hole that the slot holds, if it has content.
    """

    def __init__(self, ledger: Ledger, tier: HostTier, geometry: Geometry, policies: Policies) -> None:
        self._ledger = ledger
        self._blocks, self._slots, self._jobs = ledger.blocks, ledger.slots, ledger.jobs
        self._tier = tier
        self._policies = policies
        self._size = geometry.blocks_per_chunk
        # What a hit can read of a chunk: sliding windows and states need only its end.
        self.required = tuple(
            self._size if window is None else min(self._size, max(1, window)) for window in geometry.window_blocks
        )
        # A job larger than the tier would always be refused.
        blocks = min(policies.max_job_blocks, len(ledger.slots) * self._size)
        self._max_chunks = max(1, blocks // self._size)
        self._lazy = policies.mode is Mode.LAZY
        self._tails = geometry.tail_tokens is not None
        self._line: dict[str, deque[Chunk]] = {}
        self._candidates: dict[int, Chunk] = {}
        self._exposed: dict[int, list[int]] = {}
        """Outstanding lazy stores, by job number, with their lives."""
        self._made: dict[int, list[Chunk] | StoredTurn] = {}
        """Stores that were planned and, at the last check, not submitted, by job number (`chunks_of`)."""
        self._entered = 0
        """Chunks queued since the last sweep."""
        # For older chunks of several blocks it is unknown which blocks are present: they are not found.
        slots = ledger.slots
        self.suffix = bytearray([self._size == 1 and slots.key(slot) is not None for slot in range(len(slots))])
        self.counts: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """The number of queued chunks."""
        return sum(map(len, self._line.values()))

    @property
    def waits(self) -> bool:
        """Whether a chunk is queued."""
        return bool(self._line)

    @property
    def is_busy(self) -> bool:
        """Whether `plan` may have something to do."""
        return self._lazy or bool(self._line)

    def clear(self) -> None:
        """Empty the queue: the content is gone."""
        self._line.clear()
        self._candidates.clear()
        self._exposed.clear()
        self._made.clear()

    def offer(self, chunks: Sequence[Chunk]) -> None:
        """Add full chunks to the queue or, in lazy mode, keep them until one of their blocks is about to be handed out."""
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
        """Whether content is READY in the host tier; if so, counts a chunk that needs no store."""
        if not self._slots.any_ready(((group, key),)):
            return False
        self.counts["already stored"] += 1
        return True

    def plan(self, owners: Iterable[str] | None = None) -> None:
        """Plan what can be stored now, in few jobs, each for all requests whose blocks it moves; *owners*: only that of some.

        If there is no room for all, one job for each owner is planned in the order of the queue, until one is refused.
        """
        self.requeue()
        if self._lazy:
            self._release_exposed()
            if owners is None and self._ledger.own_pool:
                self.collect(self._blocks.next_free(self._policies.lazy_blocks))
        orders: list[list[Chunk]] = []
        lives: set[int] = set()
        chosen, most = 0, self.room_beside(self._jobs.room * self._max_chunks)
        line = self._line if most else islice(self._line, 1)  # without room for a job one is refused, and no other looked at
        for owner in list(line) if owners is None else [each for each in owners if each in self._line]:
            if chosen >= most:  # later chunks are not even looked at
                self.counts["refused"] += 1
                break
            if chunks := self._ripe(owner, lives):
                orders.append(chunks)
                chosen += len(chunks)
        if orders and not self._make(self._together(orders)):
            self._make_one_by_one(orders)
        for chunks in orders:
            if not self._line[chunks[0].owner]:
                del self._line[chunks[0].owner]

    def room_beside(self, most: int) -> int:
        """How many of *most* chunks may be stored now: fewer while a load is out, where the policy says so."""
        limit = self._policies.max_store_blocks_beside
        if limit is None or not most:
            return most
        out = self._jobs.alive()
        if not any(job.direction is Direction.LOAD for job in out):
            return most
        stored = sum([len(job.ids) for job in out if job.direction is Direction.STORE])
        return min(most, max(0, limit - stored) // self._size)

    def _together(self, orders: Sequence[list[Chunk]]) -> list[list[Chunk]]:
        """The chunks of several owners in few jobs, in order.

        A job stores no content twice, and what is final does not wait for what is not: a job is submitted when all of it is.
        """
        jobs: list[list[Chunk]] = []
        open_jobs: dict[bool, tuple[int, set[tuple[int, bytes]]]] = {}
        for chunks in orders:
            own, final = {(chunk.group, chunk.key) for chunk in chunks}, all(map(self._is_final, chunks))
            at, names = open_jobs.get(final, (-1, own))
            if at >= 0 and len(jobs[at]) + len(chunks) <= self._max_chunks and names.isdisjoint(own):
                jobs[at] = jobs[at] + chunks
                names |= own
            else:
                open_jobs[final] = len(jobs), own
                jobs.append(chunks)
        return jobs

    def _is_final(self, chunk: Chunk) -> bool:
        """Whether a chunk can be submitted at once."""
        code_of = self._blocks.code_of
        return all(life == NULL or code_of(life) in _FINAL for life in chunk.lives)

    def _make_one_by_one(self, orders: Sequence[list[Chunk]]) -> None:
        """The same one by one, as far as there is room; the others return to their place in the queue."""
        # quarantined slots may never come back: a job that needs them would always be refused
        usable = max(1, len(self._slots) - self._slots.count()[Slot.QUARANTINED])
        for at, chunks in enumerate(orders):
            most = self.room_beside(usable)
            if not most or not self._make([chunks[:most]]):
                self.counts["refused"] += 1
                for rest in orders[at:]:
                    self._line[rest[0].owner].extendleft(reversed(rest))
                return
            self._line[chunks[0].owner].extendleft(reversed(chunks[most:]))

    def _sweep(self) -> None:
        """Remove chunks that can never be stored or are queued twice, which bounds the queue by about the size of the device.

        A sweep happens only after as many chunks were queued as the device has blocks.
        """
        is_current = self._blocks.is_current
        seen: set[tuple[int, bytes, int]] = set()
        for owner, line in list(self._line.items()):
            kept: deque[Chunk] = deque()
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
        """Take the next chunks of one owner that can be stored now from the queue; chunks that never can be are dropped.

        *lives* are those chosen for this plan, by all owners: a chunk that shares one waits until it is in flight.
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
                # if the chunk has the key of this life, it is already being stored
                if position == len(chunk.lives) - 1 and not chunk.tail:
                    self.counts["in flight"] += 1
                    return _DROP
                later = True  # it is part of another chunk as well, or of a tail
            elif at in _AFTER or (self._lazy and at not in _FINAL):
                later = True
        chunk.suffix = _suffix(chunk.lives)
        if chunk.tail and chunk.suffix:
            chunk.suffix = 0  # no whole block: it is not put below, and no hit counts on more than the tail
            return _LATER if later else _STORE
        if chunk.suffix < self.required[chunk.group] and not (self._policies.partial_chunks and chunk.suffix):
            if any(chunk.lives):
                self.counts["partial"] += 1
            return _DROP
        return _LATER if later else _STORE

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    def _make(self, jobs: Sequence[list[Chunk]]) -> bool:
        """Reserve slots for these jobs and plan them, all or none; False without room for so many, or if the tier refuses."""
        count = sum(map(len, jobs))
        if len(jobs) > self._jobs.room or self.room_beside(count) < count:
            return False
        # copies, because refused chunks go back in the order in which they were offered
        ordered = [sorted(chunks, key=_group) for chunks in jobs]
        slots = self._tier.reserve([(chunk.group, chunk.key) for chunks in ordered for chunk in chunks])
        if slots is None:
            return False
        numbers = self._ledger._rows.plan_columns(self._columns(ordered, slots))
        for chunks, number in zip(ordered, numbers, strict=True):
            self.await_submit(number, chunks)
            if self._lazy:
                self._exposed[number] = [life for chunk in chunks for life in chunk.lives if life != NULL]
        return True

    def await_submit(self, number: int, chunks: list[Chunk] | StoredTurn) -> None:
        """A store of these chunks was planned; should it be cancelled before it is submitted, they are queued."""
        self._made[number] = chunks

    def chunks_of(self, number: int) -> list[Chunk]:
        """What a store moves that was planned and, at the last check, not submitted."""
        made = self._made[number]
        if not isinstance(made, list):
            made = self._made[number] = [
                Chunk(owner, group, key, [life]) for owner, (group, key), life in zip(*made, strict=True)
            ]
        return made

    def requeue(self) -> None:
        """A store was cancelled before it was submitted because it lost a block: its other blocks are queued again, first."""
        jobs = self._jobs
        for number in [each for each in self._made if not jobs.is_planned(each)]:
            if (job := jobs.get(number)) is not None and job.state is _CANCELLED:
                for chunk in reversed(self.chunks_of(number)):
                    self._line.setdefault(chunk.owner, deque()).appendleft(chunk)
            del self._made[number]

    def _columns(self, orders: Sequence[Sequence[Chunk]], slots: list[int]) -> JobColumns:
        """The jobs as columns; sizes count the blocks that are appended, without holes (vLLM's change 42945)."""
        size, suffix = self._size, self.suffix
        owners: list[str | None] = []
        sharers: list[tuple[str, ...]] = []
        for chunks in orders:
            first, *others = dict.fromkeys([chunk.owner for chunk in chunks])
            owners.append(first)
            sharers.append(tuple(others))
        if size == 1:
            every = [chunk for chunks in orders for chunk in chunks]
            for chunk, slot in zip(every, slots, strict=True):
                suffix[slot] = chunk.suffix
            groups_of = bytes([chunk.group for chunk in every])
            cuts = [0, *accumulate(map(len, orders))]
            own, all_keys, chosen = [chunk.lives[0] for chunk in every], [chunk.key for chunk in every], slots
            if not (self._tails and any(map(_is_tail, every))):
                return JobColumns.of_blocks(owners, sharers, cuts, own, groups_of, chosen, all_keys)
            # a block that is full has another key than its tail
            known = [None if chunk.tail else chunk.key for chunk in every]
            return JobColumns(owners, cuts, own, groups_of, chosen, known, [*cuts], chosen, groups_of, all_keys, sharers)
        cuts, slot_cuts = [0], [0]
        lives: list[int] = []
        places: list[int] = []
        keys: list[bytes] = []
        names: list[bytes | None] = []
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
            lives,
            bytes(groups),
            places,
            names,
            slot_cuts,
            slots,
            bytes(slot_groups),
            keys,
            sharers,
        )

    # --- lazy ---------------------------------------------------------------------------------------------------------------

    def collect(self, blocks: Iterable[int]) -> None:
        """Queue the candidates among these blocks, which are about to be handed out."""
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

    def _release_exposed(self) -> None:
        """Hand out blocks whose lazy store has landed before others; otherwise the queue would never come to its end.

        Blocks whose store failed stay where they are: the device has the only copy.
        """
        jobs = self._jobs
        for number in [each for each in self._exposed if not jobs.is_out(each)]:
            lives = self._exposed.pop(number)
            if self._ledger.own_pool and (job := jobs.get(number)) is not None and job.state is Job.DONE:
                self._ledger._rows.hand_out_first(lives)


def _suffix(lives: Sequence[int]) -> int:
    """The number of trailing entries without a hole."""
    if NULL not in lives:
        return len(lives)
    return next(count for count, life in enumerate(reversed(lives)) if life == NULL)


def _is_tail(chunk: Chunk) -> bool:
    return chunk.tail


def _group(chunk: Chunk) -> int:
    return chunk.group
