"""What must hold in every state of a ledger, each rule counted again from the other side.

Every function recounts from jobs and tables what the columns claim, and yields one sentence per place where they differ. The
numbers are those of `specs/invariants.md`. Rules about the device itself (I2, and the physical half of I1 and I8) cannot be
seen from here: the ledger knows what it ordered, not what the device did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from blocklife.ledger.core import Core
from blocklife.ledger.jobs import TERMINAL, JobRow
from blocklife.ledger.places import EPOCH_SHIFT, ID_MASK, NULL, ids_of
from blocklife.ledger.records import Direction
from blocklife.states import COPYING, KEYED, LIFELESS, Block, BlockLife, Job, Request, Slot, SlotLife

Check = Callable[[Core], Iterator[str]]


@frozen
class Violation:
    """One rule that does not hold, with the sentence that says where."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


@lru_cache(maxsize=64)
def _mask(states: frozenset[Block]) -> NDArray[np.bool_]:
    wanted = np.zeros(256, dtype=np.bool_)
    for state in states:
        wanted[BlockLife.table.index[state]] = True
    return wanted


def _state_in(view: NDArray[np.uint8], states: frozenset[Block]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = _mask(states)[view]
    return found


def _alive(core: Core) -> Iterator[tuple[JobRow, Job]]:
    for job in core.jobs.alive():
        yield job, core.jobs.state(job)


def _differ(what: str, claimed: NDArray[np.unsignedinteger], counted: NDArray[np.int64]) -> Iterator[str]:
    for place in np.flatnonzero(claimed != counted).tolist():
        yield f"{what} of place {place} say {int(claimed[place])}, counted {int(counted[place])}"


_HELD = frozenset({Block.ALLOCATED, Block.PLEDGED, Block.LOADING, Block.SEALED, Block.FLUSHED})
_GIVEN_UP = frozenset({Block.IN_FLIGHT, Block.STALE, Block.QUARANTINED})
_FILLING = [SlotLife.table.index[each] for each in (Slot.WRITING, Slot.QUARANTINED)]
_UNWANTED = frozenset({Job.STALE, Job.QUARANTINED})
_UNTOUCHED = frozenset({Block.FREED, Block.CACHED, Block.ALLOCATED, Block.SEALED})


def busy_blocks_are_pinned(core: Core) -> Iterator[str]:
    """I1: a block is pinned by every job that may touch it, nothing free or new is, and what is QUARANTINED is in doubt."""
    blocks = core.blocks
    pins, writes, doubts = (np.zeros(len(blocks), dtype=np.int64) for _ in range(3))
    for job, state in _alive(core):
        ids = np.array(ids_of(job.lives), dtype=np.int64)
        pins[ids] += 1
        writes[ids] += job.direction is Direction.LOAD
        doubts[ids] += state is Job.QUARANTINED
    yield from _differ("pins", blocks.pins_view, pins)
    yield from _differ("writes", blocks.writes_view, writes)
    yield from _differ("doubts", blocks.doubts_view, doubts)
    untouched = _state_in(blocks.column.view, _UNTOUCHED)
    for place in np.flatnonzero(untouched & (pins > 0)).tolist():
        yield f"block {place} is {blocks.at(place).name} while {pins[place]} copies may touch it"
    for place in np.flatnonzero(~untouched & (pins == 0)).tolist():
        yield f"block {place} is {blocks.at(place).name} although no copy touches it"
    given_up = _state_in(blocks.column.view, _GIVEN_UP) & (blocks.refs_view == 0)
    quarantined = blocks.column.view == BlockLife.table.index[Block.QUARANTINED]
    for place in np.flatnonzero(given_up & (quarantined != (doubts > 0))).tolist():
        yield f"block {place} is {blocks.at(place).name} with {doubts[place]} copies past their deadline"


def jobs_have_one_identity(core: Core) -> Iterator[str]:
    """I3: a number names one job, was given out once, and its row is its own."""
    rows = Counter(job.row for job in core.jobs.by_number.values())
    for number, job in core.jobs.by_number.items():
        if number != job.number or not 0 < number <= core.jobs.last_number:
            yield f"job {number} is filed as {job.number}, the last number given out is {core.jobs.last_number}"
        if rows[job.row] != 1 or core.jobs.rows.get(job.row) is not job:
            yield f"job {number} does not own row {job.row}"


def counts_match_holders(core: Core) -> Iterator[str]:
    """I4: refs count the tables that hold a life, and a free block stands in the queue exactly once."""
    blocks = core.blocks
    refs = np.zeros(len(blocks), dtype=np.int64)
    for request in core.requests.values():
        for table in request.tables:
            for life in table:
                if life == NULL:
                    continue
                if blocks.epoch[life & ID_MASK] == life >> EPOCH_SHIFT:
                    refs[life & ID_MASK] += 1
                else:
                    yield f"request {request.name} holds life {life >> EPOCH_SHIFT} of block {life & ID_MASK}, which is over"
    yield from _differ("refs", blocks.refs_view, refs)
    queue = blocks.queue.order()
    free = set(np.flatnonzero(_state_in(blocks.column.view, frozenset({Block.FREED, Block.CACHED}))).tolist()) - {NULL}
    if len(queue) != len(set(queue)) or set(queue) != free or blocks.free != len(free):
        yield f"the queue names {len(queue)} blocks, {blocks.free} are counted free, {len(free)} are free"


def jobs_end_once(core: Core) -> Iterator[str]:
    """I5: exactly the jobs that are not terminal are out, and a job whose deadline runs will be found by it."""
    alive = core.jobs.alive()
    open_jobs = [job.number for job in core.jobs.by_number.values() if core.jobs.state(job) not in TERMINAL]
    if sorted(core.jobs.out) != sorted(open_jobs):
        yield f"jobs {sorted(core.jobs.out)} are filed as out, {sorted(open_jobs)} are"
    if len(alive) + core.jobs.room != core.jobs.max_jobs:
        yield f"{len(alive)} jobs are out and {core.jobs.room} can be made, of {core.jobs.max_jobs} in all"
    planned = [job.number for job in alive if core.jobs.state(job) is Job.PLANNED]
    if sorted(core.jobs.planned) != sorted(planned):
        yield f"jobs {sorted(core.jobs.planned)} are filed as planned, {sorted(planned)} are"
    owned = Counter(job.owner for job in alive if job.owner is not None)
    if core.jobs.owned != owned:
        yield f"jobs are counted as {dict(core.jobs.owned)} by owner, {dict(owned)} are out"
    armed = {number for _, number in core._deadlines}
    for job in alive:
        if job.deadline is not None and core.jobs.state(job) is not Job.QUARANTINED and job.number not in armed:
            yield f"job {job.number} has a deadline that nobody watches"


def only_success_is_readable(core: Core) -> Iterator[str]:
    """I6: what an index names is final content under that very key."""
    for group, index in enumerate(core.blocks.index):
        for key, place in index.items():
            if core.blocks.key[place] != key or core.blocks.group[place] != group:
                yield f"key {key.hex()} is filed under block {place}, which has another"
            if core.blocks.at(place) not in KEYED:
                yield f"block {place} can be found under its key while {core.blocks.at(place).name}"
    for place in np.flatnonzero(_state_in(core.blocks.column.view, KEYED)).tolist():
        if core.blocks.key[place] is None:
            yield f"block {place} is {core.blocks.at(place).name} and has no key"
    unwanted = {slot for job, state in _alive(core) if state in _UNWANTED for slot in job.slots}
    for index in core.slots.index:
        for key, place in index.items():
            if core.slots.key[place] != key or core.slots.at(place) not in (Slot.READY, Slot.WRITING):
                yield f"slot {place} can be found under its key while {core.slots.at(place).name}"
            elif core.slots.at(place) is Slot.WRITING and place in unwanted:
                yield f"slot {place} is found to be on its way, although nobody wants what its store brings"
    for job in core.jobs.by_number.values():
        if job.direction is Direction.STORE and core.jobs.state(job) in (Job.FAILED, Job.CANCELLED):
            for slot, key in zip(job.slots, job.keys, strict=True):
                made = [other for other in core.jobs.by_number.values() if slot in other.slots and other.number > job.number]
                if core.slots.at(slot) is Slot.READY and core.slots.key[slot] == key and not made:
                    yield f"slot {slot} is READY with what job {job.number} failed to bring"


def slots_are_pinned_by_readers(core: Core) -> Iterator[str]:
    """I7: a slot is pinned once by each load that reads it and by each holder that counts on it."""
    pins = np.zeros(len(core.slots), dtype=np.int64)
    for job, _ in _alive(core):
        if job.direction is Direction.LOAD:
            pins[np.array(job.slots, dtype=np.int64)] += 1
    for held in core.holders.values():
        for slot, count in held.items():
            pins[slot] += count
    yield from _differ("pins", core.slots.pins_view, pins)
    index = SlotLife.table.index
    readable = (core.slots.column.view == index[Slot.READY]) | (core.slots.column.view == index[Slot.STALE])
    for place in np.flatnonzero(~readable & (pins > 0)).tolist():
        yield f"slot {place} is read while {core.slots.at(place).name}"
    for place in np.flatnonzero((core.slots.column.view == index[Slot.STALE]) & (pins == 0)).tolist():
        yield f"slot {place} is STALE although nobody reads it"


def only_sealed_content_is_submitted(core: Core) -> Iterator[str]:
    """I8: a store whose block is not sealed is not submitted, a submitted one's living sources are IN_FLIGHT; keys agree."""
    wanted = {True: (Block.PLEDGED, Block.PENDING_STORE), False: (Block.IN_FLIGHT,)}
    for job, state in _alive(core):
        if job.direction is not Direction.STORE:
            continue
        promised: Sequence[bytes | None] = job.cargo.names or [None] * len(job.lives)
        for life, key in zip(job.lives, promised, strict=True):
            place = int(life) & ID_MASK
            if core.blocks.epoch[place] != int(life) >> EPOCH_SHIFT or core.blocks.job[place] != job.row:
                continue
            if core.blocks.at(place) not in wanted[state is Job.PLANNED]:
                yield f"block {place} is {core.blocks.at(place).name} while its store {job.number} is {state.name}"
            own = core.blocks.key[place]
            if key is not None and own is not None and own != key:
                yield f"block {place} holds {own.hex()} and its store {job.number} will publish {key.hex()}"


def every_worker_counts_once(core: Core) -> Iterator[str]:
    """I9: a job that is out still misses a worker; one that is DONE misses none and had no failure."""
    everybody = (1 << core.limits.num_workers) - 1
    for job in core.jobs.by_number.values():
        state = core.jobs.state(job)
        if state not in TERMINAL and job.reported == everybody:
            yield f"job {job.number} is {state.name} although every worker has reported"
        if state is Job.DONE and (job.reported != everybody or job.failed):
            yield f"job {job.number} is DONE with reports {job.reported:b} and failed={job.failed}"


def requests_match_their_loads(core: Core) -> Iterator[str]:
    """I10: a request waits exactly for its one live load."""
    for request in core.requests.values():
        state = core.request_column.at(request.row)
        load = core.jobs.by_number.get(request.load)
        if state is Request.FINISHED:
            yield f"request {request.name} is FINISHED, and still known"
        if (state is Request.LOADING) != (request.load != 0):
            yield f"request {request.name} is {state.name} with load {request.load}"
        if request.load and (load is None or core.jobs.state(load) in (*TERMINAL, Job.STALE, Job.QUARANTINED)):
            yield f"request {request.name} waits for job {request.load}, which will not come"
    awaited = {request.load for request in core.requests.values()}
    for job, state in _alive(core):
        if job.direction is Direction.LOAD and state not in _UNWANTED and job.number not in awaited:
            yield f"job {job.number} is {state.name}, and no request waits for it"


def waits_can_end(core: Core) -> Iterator[str]:
    """I12: who stands behind a wait has a job to wait for, ordered in a plan or about to be."""
    for number in core._to_flush:
        if number not in core.jobs.out:
            yield f"the next plan is to wait for job {number}, which is over"
    waited = {number for numbers in core._waiting.values() for number in numbers} | set(core._to_flush)
    flushed = core.blocks.column.where(Block.FLUSHED).tolist()
    touching: dict[int, set[int]] = {place: set() for place in flushed}
    for job, _ in _alive(core):
        for place in ids_of(job.lives):
            if place in touching:
                touching[int(place)].add(job.number)
    for place, numbers in touching.items():
        if not numbers & waited:
            yield f"block {place} is FLUSHED and no plan waits for its copy"


def places_are_conserved(core: Core) -> Iterator[str]:
    """I13: every block is exactly one of free, held, waiting for a copy, or quarantined; every slot has one state."""
    blocks = core.blocks
    held = blocks.refs_view > 0
    lifeless = _state_in(blocks.column.view, LIFELESS)
    for place in np.flatnonzero(held & lifeless).tolist():
        yield f"block {place} is {blocks.at(place).name} and still held"
    owned = _state_in(blocks.column.view, _HELD)
    for place in np.flatnonzero(owned & ~held).tolist():
        yield f"block {place} is {blocks.at(place).name} and held by nobody"
    rows = sorted([*(request.row for request in core.requests.values()), *core._spare_requests])
    if rows != list(range(core.limits.max_requests)):
        yield f"rows {rows[:8]} are in use or to be had, and there are {core.limits.max_requests} for requests"
    if blocks.at(NULL) is not Block.FREED or blocks.epoch[NULL]:
        yield "the null block was handed out"
    reserved = {int(slot): state for job, state in _alive(core) if job.direction is Direction.STORE for slot in job.slots}
    filling = np.flatnonzero(np.isin(core.slots.column.view, _FILLING)).tolist()
    for place in sorted({*reserved, *filling}):
        at, job_state = core.slots.at(place), reserved.get(place)
        expected = None if job_state is None else Slot.QUARANTINED if job_state is Job.QUARANTINED else Slot.WRITING
        if at is not expected:
            yield f"slot {place} is {at.name}, and its store is {job_state.name if job_state else 'over'}"
    empty = int(np.count_nonzero(core.slots.column.view == SlotLife.table.index[Slot.EMPTY]))
    if core.slots.free != empty:
        yield f"{core.slots.free} slots are counted empty, {empty} are"


def a_life_is_stored_once(core: Core) -> Iterator[str]:
    """I14: at most one store of a life is out, and the block names it; content has one slot."""
    named: Counter[int] = Counter()
    for job, _ in _alive(core):
        if job.direction is Direction.STORE:
            named.update(int(life) for life in job.lives)
            for life in job.lives:
                place = int(life) & ID_MASK
                if core.blocks.epoch[place] == int(life) >> EPOCH_SHIFT and core.blocks.job[place] != job.row:
                    yield f"block {place} does not name its store {job.number}"
    for life, count in named.items():
        if count > 1:
            yield f"block {life & ID_MASK} is the source of {count} stores at once"
    copying = _state_in(core.blocks.column.view, COPYING)
    for place in np.flatnonzero(copying != (core.blocks.job_view != 0)).tolist():
        yield f"block {place} is {core.blocks.at(place).name} and names job row {core.blocks.job[place]}"
    ready = [(core.slots.group[place], core.slots.key[place]) for place in core.slots.column.where(Slot.READY).tolist()]
    if len(ready) != len(set(ready)):
        yield "two slots hold the same content"


def sizes_add_up(core: Core) -> Iterator[str]:
    """I15: the group sizes of a job add up to its blocks, and there is at least one."""
    for job, _ in _alive(core):
        cargo = job.cargo
        if not len(job.lives) == len(cargo.places) == sum(cargo.group_sizes) > 0:
            yield f"job {job.number} has {len(job.lives)} blocks, {len(cargo.places)} places, sizes {cargo.group_sizes}"
        if not len(job.slots) == len(job.keys) == sum(cargo.slot_sizes) > 0:
            yield f"job {job.number} has {len(job.slots)} slots, {len(job.keys)} keys, sizes {cargo.slot_sizes}"


INVARIANTS: Mapping[str, Check] = {
    "I1": busy_blocks_are_pinned,
    "I3": jobs_have_one_identity,
    "I4": counts_match_holders,
    "I5": jobs_end_once,
    "I6": only_success_is_readable,
    "I7": slots_are_pinned_by_readers,
    "I8": only_sealed_content_is_submitted,
    "I9": every_worker_counts_once,
    "I10": requests_match_their_loads,
    "I12": waits_can_end,
    "I13": places_are_conserved,
    "I14": a_life_is_stored_once,
    "I15": sizes_add_up,
}


def check(core: Core, only: str | None = None) -> list[Violation]:
    """Everything that does not hold now; empty in every state that the verbs can reach."""
    rules = {only: INVARIANTS[only]} if only else INVARIANTS
    return [Violation(rule, message) for rule, judge in rules.items() for message in judge(core)]
