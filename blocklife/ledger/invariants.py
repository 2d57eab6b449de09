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

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import compress, product

from attrs import frozen

from blocklife.core._columns import Ints, listed
from blocklife.core._tables import FINISHED
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK, NULL
from blocklife.ledger._ledger import Ledger
from blocklife.ledger._state import LedgerData
from blocklife.ledger.jobs import JobView
from blocklife.ledger.records import Direction
from blocklife.ledger.views import free_order
from blocklife.lifecycle import Table
from blocklife.states import (
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


def flags(table: Table, states: Collection[Block] | Collection[Slot]) -> bytes:
    """For each byte whether it is the number of one of these states, so that `translate` tests a whole column at once."""
    return bytes(map({table.index[each] for each in states}.__contains__, range(256)))


class Look:
    """A ledger, and what its columns should contain, recounted from its jobs, block tables and holders of pins."""

    def __init__(self, data: LedgerData) -> None:
        self.data, self.core = data, data.core
        self.blocks, self.slots = data.core.blocks.columns, data.core.slots.columns
        self.block_states, self.slot_states = bytes(self.blocks["state"]), bytes(self.slots["state"])
        self.jobs: list[tuple[JobView, int]] = [(job, job.code) for job in data.known()]
        """Every known job, with the number of its state."""
        self.alive: list[tuple[JobView, int]] = [(job, job.code) for job in data.alive()]
        """Those that are filed as not over."""
        places = len(self.block_states)
        self.refs, self.pins, self.writes, self.overdue = [0] * places, [0] * places, [0] * places, [0] * places
        self.slot_pins = [0] * len(self.slot_states)
        self.sources: list[tuple[int, JobView]] = []
        """Every life that an outstanding store reads, with its job."""
        self.reserved: dict[int, int] = {}
        """Every slot that an outstanding job fills, with the state of the job."""
        self.over: list[tuple[str, int]] = []
        """Each request that holds a life that is over, with the life."""
        for job, state in self.alive:
            self._count_job(job, state)
        for name, row in data.core.requests.by_name.items():
            self._count_tables(name, row)
        for held in data.holders.values():
            for slot, count in held.items():
                self.slot_pins[slot] += count
        self.named = self._count_names()
        """How many places and known jobs name each content."""
        self.blocks_fit = _BLOCK_FITS.issuperset(
            zip(
                self.block_states,
                map(bool, self.blocks["refs"]),
                map(bool, self.pins),
                map(bool, self.overdue),
                map(bool, self.blocks["job"]),
                [key == 0 for key in self.blocks["key"]],
                strict=True,
            )
        )
        """Whether the facts about every block are a legal combination."""
        self.slots_fit = _SLOT_FITS.issuperset(zip(self.slot_states, map(bool, self.slot_pins), strict=True))

    def _count_tables(self, name: str, row: int) -> None:
        blocks, requests, groups = self.core.blocks, self.core.requests, self.core.num_groups
        for table in range(row * groups, (row + 1) * groups):
            for at in range(requests.begin[table], requests.begin[table] + requests.length[table]):
                life = requests.lives[at]
                if life == NULL:
                    continue
                if blocks.epoch[life & ID_MASK] == life >> EPOCH_SHIFT:
                    self.refs[life & ID_MASK] += 1
                else:
                    self.over.append((name, life))

    def _count_names(self) -> list[int]:
        named, jobs = [0] * self.core.contents.size, self.core.jobs
        entries: list[int] = []
        for row in jobs.by_number.values():
            begin, slot_begin = jobs.begin[row], jobs.slot_begin[row]
            entries += range(begin, begin + jobs.num_blocks[row])
            if slot_begin != begin or not jobs.num_blocks[row]:
                entries += range(slot_begin, slot_begin + jobs.num_slots[row])
        for content in (*self.blocks["key"], *self.slots["key"], *[jobs.key[at] for at in entries]):
            named[content] += 1
        named[0] = 0
        return named

    def _count_job(self, job: JobView, state: int) -> None:
        pins, places = self.pins, job.ids
        for place in places:
            pins[place] += 1
        if state == _QUARANTINED:
            for place in places:
                self.overdue[place] += 1
        if job.direction is Direction.LOAD:
            for place in places:
                self.writes[place] += 1
        else:
            for life in job.lives:
                self.sources.append((life, job))
        if job.direction.fills_slots:
            for slot in job.slots:
                self.reserved[slot] = state
        else:
            for slot in job.slots:
                self.slot_pins[slot] += 1

    def key(self, content: int) -> bytes | None:
        """The key of a content; None for none."""
        return self.core.contents.key[content] if content else None

    def block_name(self, place: int) -> str:
        """The name of the state of a block."""
        return MACHINES["block"].states[self.block_states[place]].name

    def slot_name(self, place: int) -> str:
        """The name of the state of a slot."""
        return MACHINES["slot"].states[self.slot_states[place]].name


Say = Callable[[str], object]
Check = Callable[[Look, Say], None]
"""Reports in one sentence each where a rule does not hold. Not a generator, because most rules have nothing to report."""

_BLOCK, _SLOT, _JOB, _REQUEST = (MACHINES[name].index for name in ("block", "slot", "job", "request"))


def _flags(states: Collection[Block] | Collection[Slot]) -> bytes:
    """`flags` of states of blocks or of slots."""
    return flags(MACHINES["block" if isinstance(next(iter(states)), Block) else "slot"], states)


def _where(states: bytes, wanted: bytes) -> list[int]:
    """The places that are in one of these states."""
    found = states.translate(wanted)
    return list(compress(range(len(found)), found))


def _nonzero(counts: Sequence[int]) -> list[int]:
    """The places whose count is not 0."""
    return list(compress(range(len(counts)), counts))


def _differ(say: Say, what: str, column: Sequence[int], counted: list[int]) -> None:
    claimed = list(column)
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
_EMPTY = _flags(states_with(Trait.FREE, Slot))
_FOUND = _flags(states_with(Trait.KEYED, Slot))
_READ = _flags(LOAD_READS)
_READABLE, _DYING = _flags((Slot.READY,)), _flags((Slot.STALE,))
_OVER = frozenset(_JOB[each] for each in TERMINAL)
_UNWANTED = frozenset(_JOB[each] for each in GIVEN_UP)
_LOST = frozenset(_JOB[each] for each in TERMINAL - {Job.DONE})
_PLANNED, _QUARANTINED, _DONE = _JOB[Job.PLANNED], _JOB[Job.QUARANTINED], _JOB[Job.DONE]
_WRITING, _READY = _SLOT[Slot.WRITING], _SLOT[Slot.READY]
_LATE = _SLOT[Slot.QUARANTINED]
_FREED, _FLUSHED, _KEPT = _BLOCK[Block.FREED], _BLOCK[Block.FLUSHED], _BLOCK[Block.QUARANTINED]
_LOADING = _REQUEST[Request.LOADING]


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


def _leads_back(following: Ints, before: Ints, end: int) -> bool:
    """Whether each place of a list, and its end, follows the one before it."""
    places = [end, *listed(following, end, len(following))]
    return [before[following[place]] for place in places] == places


def busy_blocks_are_pinned(look: Look, say: Say) -> None:
    """I1: every job that may touch a block pins it, no free or new block is pinned, and QUARANTINED has an overdue pin."""
    pins, overdue = look.pins, look.overdue
    _differ(say, "pins", look.blocks["pins"], pins)
    _differ(say, "writes", look.blocks["writes"], look.writes)
    _differ(say, "overdue", look.blocks["overdue"], overdue)
    if look.blocks_fit:
        return
    touched = look.block_states.translate(_TOUCHED)
    for place in _nonzero(pins):
        if not touched[place]:
            say(f"block {place} is {look.block_name(place)} while {pins[place]} copies may touch it")
    for place in _nonzero(touched):
        if not pins[place]:
            say(f"block {place} is {look.block_name(place)} although no copy touches it")
    for place in _where(look.block_states, _GIVEN_UP):
        quarantined = look.block_states[place] == _KEPT
        if not look.blocks["refs"][place] and quarantined != bool(overdue[place]):
            say(f"block {place} is {look.block_name(place)} with {overdue[place]} copies past their deadline")


def jobs_have_one_identity(look: Look, say: Say) -> None:
    """I3: a number names one job and is given out once, and no two jobs share a row."""
    jobs = look.core.jobs
    rows = list(jobs.by_number.values())
    for number, row in jobs.by_number.items():
        if number != jobs.number[row] or not 0 < number <= jobs.last_number:
            say(f"job {number} is filed as {jobs.number[row]}, the last number given out is {jobs.last_number}")
        if rows.count(row) != 1:
            say(f"job {number} does not own row {row}")


def counts_match_holders(look: Look, say: Say) -> None:
    """I4: refs count the tables that hold a life, and every free block is in the queue exactly once."""
    for name, life in look.over:
        say(f"request {name} holds life {life >> EPOCH_SHIFT} of block {life & ID_MASK}, which is over")
    _differ(say, "refs", look.blocks["refs"], look.refs)
    queue = free_order(look.core)
    free = [place for place in _where(look.block_states, _FREE) if place != NULL]
    if sorted(queue) != free or look.core.blocks.free != len(free):
        say(f"the queue names {len(queue)} blocks, {look.core.blocks.free} are counted free, {len(free)} are free")


def jobs_end_once(look: Look, say: Say) -> None:
    """I5: exactly the jobs that are not terminal are out, and every running deadline is watched."""
    jobs, requests = look.core.jobs, look.core.requests
    out = [job.number for job, _ in look.alive]
    open_jobs = [job.number for job, state in look.jobs if state not in _OVER]
    if sorted(out) != sorted(open_jobs) or jobs.live != len(out):
        say(f"jobs {sorted(out)} are filed as out, {sorted(open_jobs)} are, and {jobs.live} are counted")
    if len(out) + jobs.num_spare != jobs.max_jobs:
        say(f"{len(out)} jobs are out and {jobs.num_spare} can be made, of {jobs.max_jobs} in all")
    planned = [job.number for job, state in look.alive if state == _PLANNED]
    filed = [jobs.number[row] for row in jobs.planned]
    if filed != planned:
        say(f"jobs {filed} are filed as planned, {planned} are")
    owned: dict[str, int] = {}
    for job, _ in look.alive:
        for owner in (job.owner, *job.sharers):
            if owner is not None:
                owned[owner] = owned.get(owner, 0) + 1
    served = {name: requests.serving[row] for name, row in requests.by_name.items() if requests.serving[row]}
    if served != owned:
        say(f"jobs are counted as {served} by owner, {owned} are out")
    for job, state in look.jobs:
        if state in _OVER:
            for owner in (job.owner, *job.sharers):
                if owner is not None:
                    owned[owner] = owned.get(owner, 0) + 1
    named = {name: requests.named[row] for name, row in requests.by_name.items() if requests.named[row]}
    if named != owned:
        say(f"jobs are counted as {named} by name, {owned} are known")
    if not jobs.by_number.keys() >= {*jobs.space, *jobs.missing}:
        say(f"jobs {sorted({*jobs.space, *jobs.missing} - jobs.by_number.keys())} are not known, and something of them is kept")
    armed = {number for _, number in look.core.deadlines}
    for job, state in look.alive:
        if job.deadline is not None and state != _QUARANTINED and job.number not in armed:
            say(f"job {job.number} has a deadline that nobody watches")


def only_success_is_readable(look: Look, say: Say) -> None:
    """I6: what an index finds is final content under the same key."""
    contents, state = look.core.contents, look.block_states
    for group, known in enumerate(contents.known):
        for key, content in known.items():
            if contents.key[content] != key or contents.group[content] != group:
                say(f"key {key.hex()} of group {group} is filed as content {content}, which is another")
            place = contents.block[content]
            if place < 0:
                continue
            if look.blocks["key"][place] != content or look.blocks["group"][place] != group:
                say(f"key {key.hex()} is filed under block {place}, which has another")
            if not _FINAL[state[place]]:
                say(f"block {place} can be found under its key while {look.block_name(place)}")
    for place in () if look.blocks_fit else _where(state, _FINAL):
        if not look.blocks["key"][place]:
            say(f"block {place} is {look.block_name(place)} and has no key")
    _slots_are_found(look, say)


def _slots_are_found(look: Look, say: Say) -> None:
    contents, state, keys = look.core.contents, look.slot_states, look.slots["key"]
    unwanted = {slot for job, at in look.alive if at in _UNWANTED for slot in job.slots}
    for known in contents.known:
        for content in known.values():
            place = contents.slot[content]
            if place < 0:
                continue
            if keys[place] != content or not _FOUND[state[place]]:
                say(f"slot {place} can be found under its key while {look.slot_name(place)}")
            elif place in unwanted and state[place] == _WRITING:
                say(f"slot {place} is found as on its way, although its store is given up")
    for job, at in look.jobs:
        if at in _OVER and job.direction.fills_slots and (at in _LOST or job.missing):
            for slot, key in zip(job.slots, job.keys, strict=True):
                if at not in _LOST and slot not in job.missing:
                    continue
                made = [other for other, _ in look.jobs if other.number > job.number and slot in other.slots]
                if state[slot] == _READY and look.key(keys[slot]) == key and not made:
                    say(f"slot {slot} is READY with content that job {job.number} failed to store")


def slots_are_pinned_by_readers(look: Look, say: Say) -> None:
    """I7: a slot is pinned once by each load that reads it and by each holder that counts on it."""
    _differ(say, "pins", look.slots["pins"], look.slot_pins)
    if look.slots_fit:
        return
    for place in _nonzero(look.slot_pins):
        if not _READ[look.slot_states[place]]:
            say(f"slot {place} is read while {look.slot_name(place)}")
    for place in _where(look.slot_states, _DYING):
        if not look.slot_pins[place]:
            say(f"slot {place} is STALE although nobody reads it")


def only_sealed_content_is_submitted(look: Look, say: Say) -> None:
    """I8: no store is submitted before its blocks are sealed, live sources of a submitted one are IN_FLIGHT, and keys agree."""
    epoch, jobs, keys = look.blocks["epoch"], look.blocks["job"], look.blocks["key"]
    for job, state in look.alive:
        if job.direction is not Direction.STORE:
            continue
        wanted = _TO_SUBMIT if state == _PLANNED else _SUBMITTED
        promised: Sequence[bytes | None] = job.names or [None] * len(job.lives)
        for life, key in zip(job.lives, promised, strict=True):
            place = life & ID_MASK
            if epoch[place] != life >> EPOCH_SHIFT or jobs[place] != job.row:
                continue
            if not wanted[look.block_states[place]]:
                say(f"block {place} is {look.block_name(place)} while its store {job.number} is {_name(state)}")
            own = look.key(keys[place])
            if key is not None and own is not None and own != key:
                say(f"block {place} holds {own.hex()} and its store {job.number} will publish {key.hex()}")


def every_worker_counts_once(look: Look, say: Say) -> None:
    """I9: an outstanding job lacks a report of some worker; a DONE one has them all, and none is a failure."""
    everybody = (1 << look.core.num_workers) - 1
    for job, state in look.jobs:
        if state not in _OVER and job.reported == everybody:
            say(f"job {job.number} is {_name(state)} although every worker has reported")
        if state == _DONE and (job.reported != everybody or job.failed):
            say(f"job {job.number} is DONE with reports {job.reported:b} and failed={job.failed}")


def requests_match_their_loads(look: Look, say: Say) -> None:
    """I10: a request waits exactly while it has a live load, and for that one only."""
    requests, jobs = look.core.requests, look.core.jobs
    awaited = set()
    for name, row in requests.by_name.items():
        state, number = requests.state[row], requests.load[row]
        if state == FINISHED and not requests.named[row]:
            say(f"request {name} is FINISHED, and still known")
        if (state == _LOADING) != (number != 0):
            say(f"request {name} is {MACHINES['request'].states[state].name} with load {number}")
        if number:
            awaited.add(number)
            load = jobs.by_number.get(number, 0)
            if not load or jobs.state[load] in _OVER or jobs.state[load] in _UNWANTED:
                say(f"request {name} waits for job {number}, which is over or abandoned")
    for job, at in look.alive:
        if job.direction is Direction.LOAD and at not in _UNWANTED and job.number not in awaited:
            say(f"job {job.number} is {_name(at)}, and no request waits for it")


def waits_can_end(look: Look, say: Say) -> None:
    """I12: a FLUSHED block has a job to wait for, and a plan waits for it or the next one will.

    Of planned jobs the next plan waits only for loads: what a store reads, that plan itself may have to compute.
    """
    core, alive = look.core, {job.number: (job, state) for job, state in look.alive}
    for number in core.to_flush:
        found = alive.get(number)
        if found is None:
            say(f"the next plan is to wait for job {number}, which is over")
        elif found[1] == _PLANNED and found[0].direction is not Direction.LOAD:
            say(f"the next plan is to wait for job {number}, which it cannot submit before its forward pass")
    if _FLUSHED not in look.block_states:
        return
    waiting, waited = set(_where(look.block_states, _FENCED)), set(core.to_flush).union(*core.waiting.values())
    for job, _ in look.alive:
        if job.number in waited:
            waiting.difference_update(job.ids)
    for place in sorted(waiting):
        say(f"block {place} is FLUSHED and no plan waits for its copy")


def places_are_conserved(look: Look, say: Say) -> None:
    """I13: every block is exactly one of free, held, waiting for a copy, or quarantined; every slot has one state."""
    core, requests = look.core, look.core.requests
    for place in () if look.blocks_fit else _nonzero(list(look.blocks["refs"])):
        if _DEAD[look.block_states[place]]:
            say(f"block {place} is {look.block_name(place)} and still held")
    for place in () if look.blocks_fit else _where(look.block_states, _HELD):
        if not look.blocks["refs"][place]:
            say(f"block {place} is {look.block_name(place)} and held by nobody")
    rows = sorted([*requests.by_name.values(), *requests.spare])
    live = [row for row in requests.by_name.values() if requests.state[row] != FINISHED]
    if rows != list(range(requests.rows)) or requests.live != len(live):
        say(f"rows {rows[:8]} are in use or spare of {requests.rows}, and {requests.live} of {len(live)} requests are counted")
    places = sorted([*[requests.place[row] for row in live], *requests.spare_places])
    if places != list(range(core.max_requests)):
        say(f"places {places[:8]} of requests are in use or spare of {core.max_requests}")
    if look.block_states[NULL] != _FREED or look.blocks["epoch"][NULL]:
        say("the null block was handed out")
    states, reserved = look.slot_states, look.reserved
    for place in sorted(reserved.keys() | _where(states, _FILLING)):
        job_state = reserved.get(place)
        if job_state is None or states[place] != (_LATE if job_state == _QUARANTINED else _WRITING):
            say(
                f"slot {place} is {look.slot_name(place)}, and its store is {'over' if job_state is None else _name(job_state)}"
            )
    held = sum([1 for state, pins in zip(states, look.slots["pins"], strict=True) if state == _READY and pins])
    for each, state in _SLOT.items():
        if core.slots.in_state[state] != states.count(state):
            say(f"{core.slots.in_state[state]} slots are counted {each.name}, and {states.count(state)} are")
    if core.slots.held != held:
        say(f"{core.slots.held} READY slots are counted pinned, and {held} are")
    contents, named = core.contents, look.named
    for number in range(1, contents.size):
        if contents.uses[number] != named[number]:
            say(f"content {number} is counted {contents.uses[number]} times, and named {named[number]} times")
    known = sorted([number for own in contents.known for number in own.values()])
    if known != _nonzero(named) or sorted([*known, *contents.spare]) != list(range(1, contents.top)):
        say(f"contents {known[:8]} have a key, {_nonzero(named)[:8]} are named, and {len(contents.spare)} can be had")
    spare = [number for number in contents.spare if contents.key[number]]
    if spare or [row for row in requests.spare if requests.names[row]]:
        say("the number of a content, or a row of requests, can be had, and is named")
    for lists in (core.blocks, core.slots):
        if not _leads_back(lists.following, lists.before, lists.size if len(lists.following) > 1 else 0):
            say(f"the list of free {'blocks' if lists is core.blocks else 'slots'} does not lead back the same way")
    empty = sorted(listed(core.slots.following, core.slots.size, core.slots.size))
    if core.slots.free != len(empty) or empty != _where(states, _EMPTY):
        say(f"{core.slots.free} slots are counted empty, {len(empty)} are listed, {len(_where(states, _EMPTY))} are")


def a_life_is_stored_once(look: Look, say: Say) -> None:
    """I14: at most one store of a life is out, and the block names it; no two slots hold the same content."""
    epoch, jobs = look.blocks["epoch"], look.blocks["job"]
    for life, job in look.sources:
        place = life & ID_MASK
        if epoch[place] == life >> EPOCH_SHIFT and jobs[place] != job.row:
            say(f"block {place} does not name its store {job.number}")
    lives = [life for life, _ in look.sources]
    for life in dict.fromkeys(lives) if len(set(lives)) < len(lives) else ():
        if (count := lives.count(life)) > 1:
            say(f"block {life & ID_MASK} is the source of {count} stores at once")
    if not look.blocks_fit:
        for place in sorted(set(_where(look.block_states, _SOURCES)) ^ set(_nonzero(list(jobs)))):
            say(f"block {place} is {look.block_name(place)} and names job row {jobs[place]}")
    ready = [look.slots["key"][place] for place in _where(look.slot_states, _READABLE)]
    if len(ready) != len(set(ready)):
        say("two slots hold the same content")


def sizes_add_up(look: Look, say: Say) -> None:
    """I15: the group sizes of a job add up to its blocks, and there is at least one; a job that touches no block has none."""
    groups = range(look.core.num_groups)
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
