"""What must hold in every state of a ledger, each rule counted again from the other side.

Rules of this file:

* Every function recounts from jobs and tables what the columns claim, and yields one sentence per place where they differ.
* A column is compared as a whole first; places are walked only where something is, or is wrong. So one text is fast for the
  few places of a world that is explored, and for the many of an engine.

The numbers are those of `specs/invariants.md`. Rules about the device itself (I2, and the physical half of I1 and I8) cannot be
seen from here: the ledger knows what it ordered, not what the device did.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress

from attrs import frozen

from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK, NULL, listed
from blocklife.ledger._ledger import Ledger
from blocklife.ledger._state import LedgerData
from blocklife.ledger.jobs import JobRow
from blocklife.ledger.records import Direction
from blocklife.lifecycle import Column
from blocklife.states import (
    COPYING,
    KEYED,
    LIFELESS,
    LOAD_READS,
    MACHINES,
    PINNED,
    STORE_READS,
    STORE_WRITES,
    TERMINAL,
    Block,
    Job,
    Request,
    Slot,
    Trait,
    states_with,
)


@frozen
class Violation:
    """One rule that does not hold, with the sentence that says where."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


class Look:
    """A ledger, and its jobs with the numbers of their states: what most rules ask about."""

    def __init__(self, core: LedgerData) -> None:
        states = core.jobs.column.state
        self.core = core
        self.jobs: list[tuple[JobRow, int]] = [(job, states[job.row]) for job in core.jobs.by_number.values()]
        """Every job that is known."""
        self.alive: list[tuple[JobRow, int]] = [(job, states[job.row]) for job in core.jobs.out.values()]
        """Those that are not terminal."""


Check = Callable[[Look], Iterator[str]]

_BLOCK, _SLOT, _JOB, _REQUEST = (MACHINES[name].index for name in ("block", "slot", "job", "request"))


def _flags(states: Iterable[enum.Enum]) -> bytes:
    """Of each byte that can stand for a state whether it is one of these, so that a whole column is asked at once."""
    states = list(states)
    index = _BLOCK if isinstance(states[0], Block) else _SLOT
    wanted = {index[each] for each in states}
    return bytes(number in wanted for number in range(256))


def _where(column: Column, flags: bytes) -> list[int]:
    """The places that are in one of these states."""
    found = column.state.translate(flags)
    return list(compress(range(len(found)), found))


def _nonzero(counts: Sequence[int]) -> list[int]:
    """The places that have a count."""
    return list(compress(range(len(counts)), counts))


def _differ(what: str, column: array[int], counted: list[int]) -> Iterator[str]:
    claimed = column.tolist()
    if claimed != counted:
        for place, claim in enumerate(claimed):
            if claim != counted[place]:
                yield f"{what} of place {place} say {claim}, counted {counted[place]}"


def _name(state: int) -> str:
    """What a job of that state is called."""
    return MACHINES["job"].states[state].name


_HELD = _flags(states_with(Trait.HELD, Block))
_GIVEN_UP = _flags(STORE_READS - states_with(Trait.HELD, Block))
_TOUCHED = _flags(PINNED)
_FREE = _flags(states_with(Trait.FREE, Block))
_FENCED = _flags((Block.FLUSHED,))
_FINAL, _DEAD, _SOURCES = _flags(KEYED), _flags(LIFELESS), _flags(COPYING)
_FILLING = _flags(STORE_WRITES)
_FOUND = _flags(states_with(Trait.KEYED, Slot))
_READ = _flags(LOAD_READS)
_READABLE, _DYING = _flags((Slot.READY,)), _flags((Slot.STALE,))
_OVER = frozenset(_JOB[each] for each in TERMINAL)
_UNWANTED = frozenset(_JOB[each] for each in states_with(Trait.OUT, Job) - states_with(Trait.WANTED, Job))
_LOST = frozenset(_JOB[each] for each in TERMINAL - {Job.DONE})
_PLANNED, _QUARANTINED, _DONE = _JOB[Job.PLANNED], _JOB[Job.QUARANTINED], _JOB[Job.DONE]


def busy_blocks_are_pinned(look: Look) -> Iterator[str]:
    """I1: a block is pinned by every job that may touch it, nothing free or new is, and QUARANTINED has an overdue pin."""
    blocks = look.core.blocks
    pins, writes, overdue = ([0] * len(blocks) for _ in range(3))
    for job, state in look.alive:
        loads, quarantined = job.direction is Direction.LOAD, state == _QUARANTINED
        for life in listed(job.lives):
            place = life & ID_MASK
            pins[place] += 1
            writes[place] += loads
            overdue[place] += quarantined
    yield from _differ("pins", blocks.pins, pins)
    yield from _differ("writes", blocks.writes, writes)
    yield from _differ("overdue", blocks.overdue, overdue)
    touched = blocks.column.state.translate(_TOUCHED)
    if touched != bytes(map(bool, pins)):
        for place in _nonzero(pins):
            if not touched[place]:
                yield f"block {place} is {blocks.at(place).name} while {pins[place]} copies may touch it"
        for place in _nonzero(touched):
            if not pins[place]:
                yield f"block {place} is {blocks.at(place).name} although no copy touches it"
    for place in _where(blocks.column, _GIVEN_UP):
        quarantined = blocks.column.state[place] == _BLOCK[Block.QUARANTINED]
        if not blocks.refs[place] and quarantined != bool(overdue[place]):
            yield f"block {place} is {blocks.at(place).name} with {overdue[place]} copies past their deadline"


def jobs_have_one_identity(look: Look) -> Iterator[str]:
    """I3: a number names one job, was given out once, and its row is its own."""
    jobs = look.core.jobs
    alone = len({job.row for job, _ in look.jobs}) == len(look.jobs)
    for number, job in jobs.by_number.items():
        if number != job.number or not 0 < number <= jobs.last_number:
            yield f"job {number} is filed as {job.number}, the last number given out is {jobs.last_number}"
        if jobs.rows.get(job.row) is not job or not (alone or [other.row for other, _ in look.jobs].count(job.row) == 1):
            yield f"job {number} does not own row {job.row}"


def counts_match_holders(look: Look) -> Iterator[str]:
    """I4: refs count the tables that hold a life, and a free block stands in the queue exactly once."""
    blocks = look.core.blocks
    refs, epoch = [0] * len(blocks), blocks.epoch
    for request in look.core.requests.values():
        for table in request.tables:
            for life in table:
                if life == NULL:
                    continue
                if epoch[life & ID_MASK] == life >> EPOCH_SHIFT:
                    refs[life & ID_MASK] += 1
                else:
                    yield f"request {request.name} holds life {life >> EPOCH_SHIFT} of block {life & ID_MASK}, which is over"
    yield from _differ("refs", blocks.refs, refs)
    queue = blocks.free_order()
    free = [place for place in _where(blocks.column, _FREE) if place != NULL]
    if sorted(queue) != free or blocks.free != len(free):
        yield f"the queue names {len(queue)} blocks, {blocks.free} are counted free, {len(free)} are free"


def jobs_end_once(look: Look) -> Iterator[str]:
    """I5: exactly the jobs that are not terminal are out, and a job whose deadline runs will be found by it."""
    jobs = look.core.jobs
    open_jobs = [job.number for job, state in look.jobs if state not in _OVER]
    if sorted(jobs.out) != sorted(open_jobs):
        yield f"jobs {sorted(jobs.out)} are filed as out, {sorted(open_jobs)} are"
    if len(look.alive) + jobs.room != jobs.max_jobs:
        yield f"{len(look.alive)} jobs are out and {jobs.room} can be made, of {jobs.max_jobs} in all"
    planned = [job.number for job, state in look.alive if state == _PLANNED]
    if sorted(jobs.planned) != sorted(planned):
        yield f"jobs {sorted(jobs.planned)} are filed as planned, {sorted(planned)} are"
    owned: dict[str, int] = {}
    for job, _ in look.alive:
        for owner in (job.owner, *job.sharers):
            if owner is not None:
                owned[owner] = owned.get(owner, 0) + 1
    if jobs.owned != owned:
        yield f"jobs are counted as {dict(jobs.owned)} by owner, {owned} are out"
    armed = {number for _, number in look.core.deadlines}
    for job, state in look.alive:
        if job.deadline is not None and state != _QUARANTINED and job.number not in armed:
            yield f"job {job.number} has a deadline that nobody watches"


def only_success_is_readable(look: Look) -> Iterator[str]:
    """I6: what an index names is final content under that very key."""
    blocks, state = look.core.blocks, look.core.blocks.column.state
    for group, index in enumerate(blocks.index):
        for key, place in index.items():
            if blocks.key[place] != key or blocks.group[place] != group:
                yield f"key {key.hex()} is filed under block {place}, which has another"
            if not _FINAL[state[place]]:
                yield f"block {place} can be found under its key while {blocks.at(place).name}"
    for place in _where(blocks.column, _FINAL):
        if blocks.key[place] is None:
            yield f"block {place} is {blocks.at(place).name} and has no key"
    yield from _slots_are_found(look)


def _slots_are_found(look: Look) -> Iterator[str]:
    slots, state = look.core.slots, look.core.slots.column.state
    unwanted = {slot for job, at in look.alive if at in _UNWANTED for slot in job.slots}
    for index in slots.index:
        for key, place in index.items():
            if slots.key[place] != key or not _FOUND[state[place]]:
                yield f"slot {place} can be found under its key while {slots.at(place).name}"
            elif place in unwanted and state[place] == _SLOT[Slot.WRITING]:
                yield f"slot {place} is found to be on its way, although nobody wants what its store brings"
    for job, at in look.jobs:
        if at in _LOST and job.direction is Direction.STORE:
            for slot, key in zip(job.slots, job.keys, strict=True):
                made = [other for other, _ in look.jobs if other.number > job.number and slot in other.slots]
                if slots.at(slot) is Slot.READY and slots.key[slot] == key and not made:
                    yield f"slot {slot} is READY with what job {job.number} failed to bring"


def slots_are_pinned_by_readers(look: Look) -> Iterator[str]:
    """I7: a slot is pinned once by each load that reads it and by each holder that counts on it."""
    slots, state = look.core.slots, look.core.slots.column.state
    pins = [0] * len(slots)
    for job, _ in look.alive:
        if job.direction is Direction.LOAD:
            for slot in job.slots:
                pins[slot] += 1
    for held in look.core.holders.values():
        for slot, count in held.items():
            pins[slot] += count
    yield from _differ("pins", slots.pins, pins)
    for place in _nonzero(pins):
        if not _READ[state[place]]:
            yield f"slot {place} is read while {slots.at(place).name}"
    for place in _where(slots.column, _DYING):
        if not pins[place]:
            yield f"slot {place} is STALE although nobody reads it"


def only_sealed_content_is_submitted(look: Look) -> Iterator[str]:
    """I8: a store whose block is not sealed is not submitted, a submitted one's living sources are IN_FLIGHT; keys agree."""
    wanted: Mapping[bool, Collection[Block]] = {True: (Block.PLEDGED, Block.PENDING_STORE), False: (Block.IN_FLIGHT,)}
    blocks = look.core.blocks
    for job, state in look.alive:
        if job.direction is not Direction.STORE:
            continue
        promised: Sequence[bytes | None] = job.names or [None] * len(job.lives)
        for life, key in zip(listed(job.lives), promised, strict=True):
            place = life & ID_MASK
            if blocks.epoch[place] != life >> EPOCH_SHIFT or blocks.job[place] != job.row:
                continue
            if blocks.at(place) not in wanted[state == _PLANNED]:
                yield f"block {place} is {blocks.at(place).name} while its store {job.number} is {_name(state)}"
            own = blocks.key[place]
            if key is not None and own is not None and own != key:
                yield f"block {place} holds {own.hex()} and its store {job.number} will publish {key.hex()}"


def every_worker_counts_once(look: Look) -> Iterator[str]:
    """I9: a job that is out still misses a worker; one that is DONE misses none and had no failure."""
    everybody = (1 << look.core.limits.num_workers) - 1
    for job, state in look.jobs:
        if state not in _OVER and job.reported == everybody:
            yield f"job {job.number} is {_name(state)} although every worker has reported"
        if state == _DONE and (job.reported != everybody or job.failed):
            yield f"job {job.number} is DONE with reports {job.reported:b} and failed={job.failed}"


def requests_match_their_loads(look: Look) -> Iterator[str]:
    """I10: a request waits exactly for its one live load."""
    core = look.core
    states = core.jobs.column.state
    awaited = set()
    for request in core.requests.values():
        state, number = core.request_column.state[request.row], request.load
        if state == _REQUEST[Request.FINISHED]:
            yield f"request {request.name} is FINISHED, and still known"
        if (state == _REQUEST[Request.LOADING]) != (number != 0):
            yield f"request {request.name} is {core.request_column.at(request.row).name} with load {number}"
        if number:
            awaited.add(number)
            load = core.jobs.by_number.get(number)
            if load is None or states[load.row] in _OVER or states[load.row] in _UNWANTED:
                yield f"request {request.name} waits for job {number}, which will not come"
    for job, at in look.alive:
        if job.direction is Direction.LOAD and at not in _UNWANTED and job.number not in awaited:
            yield f"job {job.number} is {_name(at)}, and no request waits for it"


def waits_can_end(look: Look) -> Iterator[str]:
    """I12: who stands behind a wait has a job to wait for, ordered in a plan or about to be."""
    core = look.core
    for number in core.to_flush:
        if number not in core.jobs.out:
            yield f"the next plan is to wait for job {number}, which is over"
    waiting = set(_where(core.blocks.column, _FENCED))
    if waiting:
        waited = set(core.to_flush).union(*core.waiting.values())
        for job, _ in look.alive:
            if job.number in waited:
                waiting.difference_update([life & ID_MASK for life in listed(job.lives)])
    for place in sorted(waiting):
        yield f"block {place} is FLUSHED and no plan waits for its copy"


def places_are_conserved(look: Look) -> Iterator[str]:
    """I13: every block is exactly one of free, held, waiting for a copy, or quarantined; every slot has one state."""
    core, blocks, slots = look.core, look.core.blocks, look.core.slots
    for place in _nonzero(blocks.refs):
        if _DEAD[blocks.column.state[place]]:
            yield f"block {place} is {blocks.at(place).name} and still held"
    for place in _where(blocks.column, _HELD):
        if not blocks.refs[place]:
            yield f"block {place} is {blocks.at(place).name} and held by nobody"
    rows = sorted([*[request.row for request in core.requests.values()], *core.spare_requests])
    if rows != list(range(core.limits.max_requests)):
        yield f"rows {rows[:8]} are in use or to be had, and there are {core.limits.max_requests} for requests"
    if blocks.at(NULL) is not Block.FREED or blocks.epoch[NULL]:
        yield "the null block was handed out"
    reserved = {slot: state for job, state in look.alive if job.direction is Direction.STORE for slot in listed(job.slots)}
    for place in sorted({*reserved, *_where(slots.column, _FILLING)}):
        at, job_state = slots.at(place), reserved.get(place)
        expected = None if job_state is None else Slot.QUARANTINED if job_state == _QUARANTINED else Slot.WRITING
        if at is not expected:
            yield f"slot {place} is {at.name}, and its store is {'over' if job_state is None else _name(job_state)}"
    empty = slots.column.state.count(_SLOT[Slot.EMPTY])
    if slots.free != empty:
        yield f"{slots.free} slots are counted empty, {empty} are"


def a_life_is_stored_once(look: Look) -> Iterator[str]:
    """I14: at most one store of a life is out, and the block names it; content has one slot."""
    blocks, slots = look.core.blocks, look.core.slots
    named: dict[int, int] = {}
    for job, _ in look.alive:
        if job.direction is Direction.STORE:
            for life in listed(job.lives):
                named[life] = named.get(life, 0) + 1
                place = life & ID_MASK
                if blocks.epoch[place] == life >> EPOCH_SHIFT and blocks.job[place] != job.row:
                    yield f"block {place} does not name its store {job.number}"
    for life, count in named.items():
        if count > 1:
            yield f"block {life & ID_MASK} is the source of {count} stores at once"
    sources, naming = _where(blocks.column, _SOURCES), _nonzero(blocks.job)
    if sources != naming:
        for place in sorted(set(sources) ^ set(naming)):
            yield f"block {place} is {blocks.at(place).name} and names job row {blocks.job[place]}"
    ready = [(slots.group[place], slots.key[place]) for place in _where(slots.column, _READABLE)]
    if len(ready) != len(set(ready)):
        yield "two slots hold the same content"


def sizes_add_up(look: Look) -> Iterator[str]:
    """I15: the group sizes of a job add up to its blocks, and there is at least one."""
    for job, _ in look.alive:
        if not len(job.lives) == len(job.places) == sum(job.group_sizes) > 0:
            yield f"job {job.number} has {len(job.lives)} blocks, {len(job.places)} places, sizes {job.group_sizes}"
        if not len(job.slots) == len(job.keys) == sum(job.slot_sizes) > 0:
            yield f"job {job.number} has {len(job.slots)} slots, {len(job.keys)} keys, sizes {job.slot_sizes}"


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


def check(ledger: Ledger, only: str | None = None) -> list[Violation]:
    """Everything that does not hold now; empty in every state that the verbs can reach."""
    rules = {only: INVARIANTS[only]} if only else INVARIANTS
    look = Look(ledger._state)
    return [Violation(rule, message) for rule, judge in rules.items() for message in judge(look)]
