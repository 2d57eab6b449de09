"""The invariants: what must hold in every state of a ledger, recounted from its jobs and block tables.

Rules of this file:

* What the columns should contain is recounted from jobs and tables, once for all rules (`Look`). A rule reports one sentence
  for each place where the two differ.
* A column is first compared as a whole; single places are visited only if something is there or is wrong. So the same code is
  fast for the few places of an explored world and for the many of an engine.
* `_BLOCK_FITS` and `_SLOT_FITS` hold every legal combination of facts about one block and one slot, made from the same
  conditions as the rules. Only if a place has another combination do the rules look for what is wrong.

The numbers are those of `specs/invariants.md`. Rules about the device itself (I2, and the physical half of I1 and I8) cannot be
checked here: the ledger knows what it ordered, not what the device did.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress, product

from attrs import frozen

from tests.oracle.ledger._ids import EPOCH_SHIFT, ID_MASK, NULL, listed
from tests.oracle.ledger._ledger import Ledger
from tests.oracle.ledger._rules import flags
from tests.oracle.ledger._state import LedgerData
from tests.oracle.ledger.jobs import JobRow
from tests.oracle.ledger.records import Direction
from tests.oracle.lifecycle import Column
from tests.oracle.states import (
    COPYING,
    GIVEN_UP,
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
    """One rule that does not hold, and where."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


class Look:
    """A ledger, and what its columns should contain, recounted from its jobs, block tables and holders of pins."""

    def __init__(self, core: LedgerData) -> None:
        blocks, slots, states = core.blocks, core.slots, core.jobs.column.state
        self.core = core
        self.jobs: list[tuple[JobRow, int]] = [(job, states[job.row]) for job in core.jobs.by_number.values()]
        """Every known job, with the number of its state."""
        self.alive: list[tuple[JobRow, int]] = [(job, states[job.row]) for job in core.jobs.out.values()]
        """Those that are not terminal."""
        places = len(blocks.key)
        self.refs, self.pins, self.writes, self.overdue = [0] * places, [0] * places, [0] * places, [0] * places
        self.slot_pins = [0] * len(slots.key)
        self.sources: list[tuple[int, JobRow]] = []
        """Every life that an outstanding store reads, with its job."""
        self.reserved: dict[int, int] = {}
        """Every slot that an outstanding job fills, with the state of the job."""
        self.over: list[tuple[str, int]] = []
        """Each request that holds a life that is over, with the life."""
        for job, state in self.alive:
            self._count_job(job, state)
        epoch, refs = blocks.epoch, self.refs
        for request in core.requests.values():
            for table in request.tables:
                for life in table:
                    if life == NULL:
                        continue
                    if epoch[life & ID_MASK] == life >> EPOCH_SHIFT:
                        refs[life & ID_MASK] += 1
                    else:
                        self.over.append((request.name, life))
        for held in core.holders.values():
            for slot, count in held.items():
                self.slot_pins[slot] += count
        self.blocks_fit = _BLOCK_FITS.issuperset(
            zip(
                blocks.column.state,
                map(bool, blocks.refs),
                map(bool, self.pins),
                map(bool, self.overdue),
                map(bool, blocks.job),
                [key is None for key in blocks.key],
                strict=True,
            )
        )
        """Whether the facts about every block are a legal combination."""
        self.slots_fit = _SLOT_FITS.issuperset(zip(slots.column.state, map(bool, self.slot_pins), strict=True))

    def _count_job(self, job: JobRow, state: int) -> None:
        pins, lives = self.pins, listed(job.lives)
        for life in lives:
            pins[life & ID_MASK] += 1
        if state == _QUARANTINED:
            for life in lives:
                self.overdue[life & ID_MASK] += 1
        if job.direction is Direction.LOAD:
            for life in lives:
                self.writes[life & ID_MASK] += 1
        else:
            for life in lives:
                self.sources.append((life, job))
        if job.direction.fills_slots:
            for slot in listed(job.slots):
                self.reserved[slot] = state
        else:
            for slot in listed(job.slots):
                self.slot_pins[slot] += 1


Say = Callable[[str], object]
Check = Callable[[Look, Say], None]
"""Reports in one sentence each where a rule does not hold. Not a generator, because most rules have nothing to report."""

_BLOCK, _SLOT, _JOB, _REQUEST = (MACHINES[name].index for name in ("block", "slot", "job", "request"))


def _flags(states: Collection[Block] | Collection[Slot]) -> bytes:
    """`flags` of states of blocks or of slots."""
    return flags(MACHINES["block" if isinstance(next(iter(states)), Block) else "slot"], states)


def _where(column: Column, wanted: bytes) -> list[int]:
    """The places that are in one of these states."""
    found = column.state.translate(wanted)
    return list(compress(range(len(found)), found))


def _nonzero(counts: Sequence[int]) -> list[int]:
    """The places whose count is not 0."""
    return list(compress(range(len(counts)), counts))


def _differ(say: Say, what: str, column: array[int], counted: list[int]) -> None:
    claimed = column.tolist()
    if claimed != counted:
        for place, claim in enumerate(claimed):
            if claim != counted[place]:
                say(f"{what} of place {place} say {claim}, counted {counted[place]}")


def _name(state: int) -> str:
    """The name of a job's state."""
    return MACHINES["job"].states[state].name


_HELD = _flags(states_with(Trait.HELD, Block))
_GIVEN_UP = _flags(STORE_READS - states_with(Trait.HELD, Block))
_TOUCHED = _flags(PINNED)
_FREE = _flags(states_with(Trait.FREE, Block))
_FENCED = _flags((Block.FLUSHED,))
_TO_SUBMIT, _SUBMITTED = _flags(COPYING - STORE_READS), _flags(COPYING & STORE_READS)
_FINAL, _DEAD, _SOURCES = _flags(KEYED), _flags(LIFELESS), _flags(COPYING)
_FILLING = _flags(STORE_WRITES)
_FOUND = _flags(states_with(Trait.KEYED, Slot))
_READ = _flags(LOAD_READS)
_READABLE, _DYING = _flags((Slot.READY,)), _flags((Slot.STALE,))
_OVER = frozenset(_JOB[each] for each in TERMINAL)
_UNWANTED = frozenset(_JOB[each] for each in GIVEN_UP)
_LOST = frozenset(_JOB[each] for each in TERMINAL - {Job.DONE})
_PLANNED, _QUARANTINED, _DONE = _JOB[Job.PLANNED], _JOB[Job.QUARANTINED], _JOB[Job.DONE]
_WRITING, _READY, _EMPTY = _SLOT[Slot.WRITING], _SLOT[Slot.READY], _SLOT[Slot.EMPTY]
_LATE = _SLOT[Slot.QUARANTINED]
_FREED, _FLUSHED, _KEPT = _BLOCK[Block.FREED], _BLOCK[Block.FLUSHED], _BLOCK[Block.QUARANTINED]
_FINISHED, _LOADING = _REQUEST[Request.FINISHED], _REQUEST[Request.LOADING]


def _block_fits(state: int, held: bool, pinned: bool, overdue: bool, stored: bool, nameless: bool) -> bool:
    """Whether one block meets I1, I6, I13 and I14: its state, and whether it has refs, pins, overdue pins, a store, no key."""
    if _TOUCHED[state] != pinned or _SOURCES[state] != stored or (_FINAL[state] and nameless):
        return False
    if _GIVEN_UP[state] and not held and overdue != (state == _KEPT):
        return False
    return not (_DEAD[state] if held else _HELD[state])


def _slot_fits(state: int, pinned: bool) -> bool:
    """Whether one slot meets I7: its state, and whether it has pins."""
    return bool(_READ[state]) if pinned else not _DYING[state]


_BOTH = (False, True)
_BLOCK_FITS = frozenset(
    (state, *flags) for state in _BLOCK.values() for flags in product(_BOTH, repeat=5) if _block_fits(state, *flags)
)
_SLOT_FITS = frozenset((state, pinned) for state in _SLOT.values() for pinned in _BOTH if _slot_fits(state, pinned))
"""All legal combinations of these facts for one block, and for one slot."""


def busy_blocks_are_pinned(look: Look, say: Say) -> None:
    """I1: every job that may touch a block pins it, no free or new block is pinned, and QUARANTINED has an overdue pin."""
    blocks, pins, overdue = look.core.blocks, look.pins, look.overdue
    _differ(say, "pins", blocks.pins, pins)
    _differ(say, "writes", blocks.writes, look.writes)
    _differ(say, "overdue", blocks.overdue, overdue)
    if look.blocks_fit:
        return
    touched = blocks.column.state.translate(_TOUCHED)
    for place in _nonzero(pins):
        if not touched[place]:
            say(f"block {place} is {blocks.at(place).name} while {pins[place]} copies may touch it")
    for place in _nonzero(touched):
        if not pins[place]:
            say(f"block {place} is {blocks.at(place).name} although no copy touches it")
    for place in _where(blocks.column, _GIVEN_UP):
        quarantined = blocks.column.state[place] == _KEPT
        if not blocks.refs[place] and quarantined != bool(overdue[place]):
            say(f"block {place} is {blocks.at(place).name} with {overdue[place]} copies past their deadline")


def jobs_have_one_identity(look: Look, say: Say) -> None:
    """I3: a number names one job and is given out once, and no two jobs share a row."""
    jobs = look.core.jobs
    alone = len({job.row for job, _ in look.jobs}) == len(look.jobs)
    for number, job in jobs.by_number.items():
        if number != job.number or not 0 < number <= jobs.last_number:
            say(f"job {number} is filed as {job.number}, the last number given out is {jobs.last_number}")
        if jobs.rows.get(job.row) is not job or not (alone or [other.row for other, _ in look.jobs].count(job.row) == 1):
            say(f"job {number} does not own row {job.row}")


def counts_match_holders(look: Look, say: Say) -> None:
    """I4: refs count the tables that hold a life, and every free block is in the queue exactly once."""
    blocks = look.core.blocks
    for name, life in look.over:
        say(f"request {name} holds life {life >> EPOCH_SHIFT} of block {life & ID_MASK}, which is over")
    _differ(say, "refs", blocks.refs, look.refs)
    queue = blocks.free_order()
    free = [place for place in _where(blocks.column, _FREE) if place != NULL]
    if sorted(queue) != free or blocks.free != len(free):
        say(f"the queue names {len(queue)} blocks, {blocks.free} are counted free, {len(free)} are free")


def jobs_end_once(look: Look, say: Say) -> None:
    """I5: exactly the jobs that are not terminal are out, and every running deadline is watched."""
    jobs = look.core.jobs
    open_jobs = [job.number for job, state in look.jobs if state not in _OVER]
    if sorted(jobs.out) != sorted(open_jobs):
        say(f"jobs {sorted(jobs.out)} are filed as out, {sorted(open_jobs)} are")
    if len(look.alive) + jobs.room != jobs.max_jobs:
        say(f"{len(look.alive)} jobs are out and {jobs.room} can be made, of {jobs.max_jobs} in all")
    planned = [job.number for job, state in look.alive if state == _PLANNED]
    if sorted(jobs.planned) != sorted(planned):
        say(f"jobs {sorted(jobs.planned)} are filed as planned, {sorted(planned)} are")
    owned: dict[str, list[int]] = {}
    for job, _ in look.alive:
        for owner in dict.fromkeys((job.owner, *job.sharers)):
            if owner is not None:
                owned.setdefault(owner, []).append(job.number)
    if (filed := {owner: list(own) for owner, own in jobs.owned.items()}) != owned:
        say(f"jobs are filed as {filed} by owner, {owned} are out")
    armed = {number for _, number in look.core.deadlines}
    for job, state in look.alive:
        if job.deadline is not None and state != _QUARANTINED and job.number not in armed:
            say(f"job {job.number} has a deadline that nobody watches")


def only_success_is_readable(look: Look, say: Say) -> None:
    """I6: what an index finds is final content under the same key."""
    blocks, state = look.core.blocks, look.core.blocks.column.state
    for group, index in enumerate(blocks.index):
        for key, place in index.items():
            if blocks.key[place] != key or blocks.group[place] != group:
                say(f"key {key.hex()} is filed under block {place}, which has another")
            if not _FINAL[state[place]]:
                say(f"block {place} can be found under its key while {blocks.at(place).name}")
    for place in () if look.blocks_fit else _where(blocks.column, _FINAL):
        if blocks.key[place] is None:
            say(f"block {place} is {blocks.at(place).name} and has no key")
    _slots_are_found(look, say)


def _slots_are_found(look: Look, say: Say) -> None:
    slots, state = look.core.slots, look.core.slots.column.state
    unwanted = {slot for job, at in look.alive if at in _UNWANTED for slot in job.slots}
    for index in slots.index:
        for key, place in index.items():
            if slots.key[place] != key or not _FOUND[state[place]]:
                say(f"slot {place} can be found under its key while {slots.at(place).name}")
            elif place in unwanted and state[place] == _WRITING:
                say(f"slot {place} is found as on its way, although its store is given up")
    for job, at in look.jobs:
        if at in _OVER and job.direction.fills_slots and (at in _LOST or job.missing):
            for slot, key in zip(job.slots, job.keys, strict=True):
                if at not in _LOST and slot not in job.missing:
                    continue
                made = [other for other, _ in look.jobs if other.number > job.number and slot in other.slots]
                if slots.at(slot) is Slot.READY and slots.key[slot] == key and not made:
                    say(f"slot {slot} is READY with content that job {job.number} failed to store")


def slots_are_pinned_by_readers(look: Look, say: Say) -> None:
    """I7: a slot is pinned once by each load that reads it and by each holder that counts on it."""
    slots, state = look.core.slots, look.core.slots.column.state
    _differ(say, "pins", slots.pins, look.slot_pins)
    if look.slots_fit:
        return
    for place in _nonzero(look.slot_pins):
        if not _READ[state[place]]:
            say(f"slot {place} is read while {slots.at(place).name}")
    for place in _where(slots.column, _DYING):
        if not look.slot_pins[place]:
            say(f"slot {place} is STALE although nobody reads it")


def only_sealed_content_is_submitted(look: Look, say: Say) -> None:
    """I8: no store is submitted before its blocks are sealed, live sources of a submitted one are IN_FLIGHT, and keys agree."""
    blocks = look.core.blocks
    for job, state in look.alive:
        if job.direction is not Direction.STORE:
            continue
        wanted = _TO_SUBMIT if state == _PLANNED else _SUBMITTED
        promised: Sequence[bytes | None] = job.names or [None] * len(job.lives)
        for life, key in zip(listed(job.lives), promised, strict=True):
            place = life & ID_MASK
            if blocks.epoch[place] != life >> EPOCH_SHIFT or blocks.job[place] != job.row:
                continue
            if not wanted[blocks.column.state[place]]:
                say(f"block {place} is {blocks.at(place).name} while its store {job.number} is {_name(state)}")
            own = blocks.key[place]
            if key is not None and own is not None and own != key:
                say(f"block {place} holds {own.hex()} and its store {job.number} will publish {key.hex()}")


def every_worker_counts_once(look: Look, say: Say) -> None:
    """I9: an outstanding job lacks a report of some worker; a DONE one has them all, and none is a failure."""
    everybody = (1 << look.core.limits.num_workers) - 1
    for job, state in look.jobs:
        if state not in _OVER and job.reported == everybody:
            say(f"job {job.number} is {_name(state)} although every worker has reported")
        if state == _DONE and (job.reported != everybody or job.failed):
            say(f"job {job.number} is DONE with reports {job.reported:b} and failed={job.failed}")


def requests_match_their_loads(look: Look, say: Say) -> None:
    """I10: a request waits exactly while it has a live load, and for that one only."""
    core = look.core
    states = core.jobs.column.state
    awaited = set()
    for request in core.requests.values():
        state, number = core.request_column.state[request.row], request.load
        if state == _FINISHED:
            say(f"request {request.name} is FINISHED, and still known")
        if (state == _LOADING) != (number != 0):
            say(f"request {request.name} is {core.request_column.at(request.row).name} with load {number}")
        if number:
            awaited.add(number)
            load = core.jobs.by_number.get(number)
            if load is None or states[load.row] in _OVER or states[load.row] in _UNWANTED:
                say(f"request {request.name} waits for job {number}, which is over or abandoned")
    for job, at in look.alive:
        if job.direction is Direction.LOAD and at not in _UNWANTED and job.number not in awaited:
            say(f"job {job.number} is {_name(at)}, and no request waits for it")


def waits_can_end(look: Look, say: Say) -> None:
    """I12: a FLUSHED block has a job to wait for, and a plan waits for it or the next one will.

    Of planned jobs the next plan waits only for loads: what a store reads, that plan itself may have to compute.
    """
    core = look.core
    for number in core.to_flush:
        planned = core.jobs.planned.get(number)
        if planned is not None and planned.direction is not Direction.LOAD:
            say(f"the next plan is to wait for job {number}, which it cannot submit before its forward pass")
        if planned is None and number not in core.jobs.out:
            say(f"the next plan is to wait for job {number}, which is over")
    if _FLUSHED not in core.blocks.column.state:
        return
    waiting, waited = set(_where(core.blocks.column, _FENCED)), set(core.to_flush).union(*core.waiting.values())
    for job, _ in look.alive:
        if job.number in waited:
            waiting.difference_update([life & ID_MASK for life in listed(job.lives)])
    for place in sorted(waiting):
        say(f"block {place} is FLUSHED and no plan waits for its copy")


def places_are_conserved(look: Look, say: Say) -> None:
    """I13: every block is exactly one of free, held, waiting for a copy, or quarantined; every slot has one state."""
    core, blocks, slots = look.core, look.core.blocks, look.core.slots
    for place in () if look.blocks_fit else _nonzero(blocks.refs):
        if _DEAD[blocks.column.state[place]]:
            say(f"block {place} is {blocks.at(place).name} and still held")
    for place in () if look.blocks_fit else _where(blocks.column, _HELD):
        if not blocks.refs[place]:
            say(f"block {place} is {blocks.at(place).name} and held by nobody")
    rows = sorted([*[request.row for request in core.requests.values()], *core.spare_requests])
    if rows != list(range(core.limits.max_requests)):
        say(f"rows {rows[:8]} are in use or spare, and there are {core.limits.max_requests} for requests")
    if blocks.column.state[NULL] != _FREED or blocks.epoch[NULL]:
        say("the null block was handed out")
    states, reserved = slots.column.state, look.reserved
    for place in sorted(reserved.keys() | _where(slots.column, _FILLING)):
        job_state = reserved.get(place)
        if job_state is None or states[place] != (_LATE if job_state == _QUARANTINED else _WRITING):
            say(f"slot {place} is {slots.at(place).name}, and its store is {'over' if job_state is None else _name(job_state)}")
    empty = states.count(_EMPTY)
    if slots.free != empty:
        say(f"{slots.free} slots are counted empty, {empty} are")


def a_life_is_stored_once(look: Look, say: Say) -> None:
    """I14: at most one store of a life is out, and the block names it; no two slots hold the same content."""
    blocks, slots = look.core.blocks, look.core.slots
    for life, job in look.sources:
        place = life & ID_MASK
        if blocks.epoch[place] == life >> EPOCH_SHIFT and blocks.job[place] != job.row:
            say(f"block {place} does not name its store {job.number}")
    lives = [life for life, _ in look.sources]
    for life in dict.fromkeys(lives) if len(set(lives)) < len(lives) else ():
        if (count := lives.count(life)) > 1:
            say(f"block {life & ID_MASK} is the source of {count} stores at once")
    if not look.blocks_fit:
        for place in sorted(set(_where(blocks.column, _SOURCES)) ^ set(_nonzero(blocks.job))):
            say(f"block {place} is {blocks.at(place).name} and names job row {blocks.job[place]}")
    if slots.column.state.count(_READY) > 1:
        ready = [(slots.group[place], slots.key[place]) for place in _where(slots.column, _READABLE)]
        if len(ready) != len(set(ready)):
            say("two slots hold the same content")


def sizes_add_up(look: Look, say: Say) -> None:
    """I15: the group sizes of a job add up to its blocks, and there is at least one; a job that touches no block has none."""
    groups = range(look.core.limits.num_groups)
    for job, _ in look.alive:
        blocks = len(job.lives)
        if not blocks == len(job.places) == sum(map(job.groups.count, groups)) or (blocks > 0) is not job.direction.on_device:
            say(f"job {job.number} has {len(job.lives)} blocks, {len(job.places)} places, sizes {job.group_sizes}")
        if not len(job.slots) == len(job.keys) == sum(map(job.slot_groups.count, groups)) > 0:
            say(f"job {job.number} has {len(job.slots)} slots, {len(job.keys)} keys, sizes {job.slot_sizes}")


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
    """Every violation at this moment; none in any state that the verbs can reach."""
    rules = {only: INVARIANTS[only]} if only else INVARIANTS
    look = Look(ledger._state)
    found: list[Violation] = []
    said: list[str] = []
    say = said.append
    for rule, judge in rules.items():
        judge(look, say)
        if said:
            found += [Violation(rule, message) for message in said]
            said.clear()
    return found
