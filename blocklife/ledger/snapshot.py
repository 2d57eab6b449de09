"""A ledger at one moment, as a plain value, and the way back to it: what exploring every state is built on.

Rules of this file:

* A snapshot holds everything that decides what the ledger does next, and nothing else: not what was counted, not the journal.
* It is a value: equal snapshots are equal worlds, and it can be hashed.
* It can be taken under other names (`Names`). What the ledger does does not depend on how a place, a job or a plan is called,
  so that all worlds that differ in names only can be folded into one.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from attrs import define

from blocklife.errors import MisuseError
from blocklife.ledger.book import RequestRow
from blocklife.ledger.core import Core
from blocklife.ledger.jobs import JobRow
from blocklife.ledger.places import EPOCH_SHIFT, ID_MASK, NULL, Ids, Lives, batch, listed
from blocklife.ledger.records import Direction
from blocklife.states import TERMINAL, Block, BlockLife, Job, JobLife, Slot, SlotLife


class SavedBlock(NamedTuple):
    """One block; ``job`` is the row of the job that it names."""

    state: int
    group: int
    epoch: int
    refs: int
    pins: int
    writes: int
    overdue: int
    job: int
    key: bytes | None


class SavedSlot(NamedTuple):
    """One slot."""

    state: int
    group: int
    pins: int
    key: bytes | None


class SavedPayload(NamedTuple):
    """What a job moves."""

    lives: tuple[int, ...]
    slots: tuple[int, ...]
    places: tuple[int, ...]
    keys: tuple[bytes, ...]
    names: tuple[bytes, ...] | None
    groups: bytes
    slot_groups: bytes


class SavedJob(NamedTuple):
    """One job that is out, or over and not forgotten; ``deadline`` counts from the time of the snapshot."""

    number: int
    row: int
    state: int
    direction: Direction
    owner: str | None
    payload: SavedPayload
    reported: int
    failed: bool
    expired: bool
    deadline: float | None
    sharers: tuple[str, ...] = ()


class SavedRequest(NamedTuple):
    """One request with its tables."""

    name: str
    row: int
    state: int
    tables: tuple[tuple[int, ...], ...]
    load: int


class Snapshot(NamedTuple):
    """A ledger at one moment, for `Ledger.restore` on a ledger with the same limits."""

    made_with: tuple[object, ...]
    """Limits, contract, incarnation and owner of the pool of the ledger that it was taken of."""
    blocks: tuple[SavedBlock, ...]
    slots: tuple[SavedSlot, ...]
    block_index: tuple[tuple[tuple[bytes, int], ...], ...]
    slot_index: tuple[tuple[tuple[bytes, int], ...], ...]
    queue: tuple[int, ...]
    empty: tuple[int, ...]
    jobs: tuple[SavedJob, ...]
    last_number: int
    spare_jobs: tuple[int, ...]
    requests: tuple[SavedRequest, ...]
    spare_requests: tuple[int, ...]
    holders: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    plan_number: int
    to_flush: tuple[int, ...]
    waiting: tuple[tuple[int, tuple[int, ...]], ...]


@define(eq=False)
class Names:
    """Other names: the old block, slot or row is the index, the old life or job number the key.

    A job without a new name is forgotten; only jobs that are over may be.
    """

    blocks: Sequence[int]
    slots: Sequence[int]
    epochs: Sequence[int]
    """The new epoch of each block, by its old name."""
    lives: Mapping[int, int]
    """Every life that anybody names."""
    jobs: Mapping[int, int]
    plans_before: int = 0
    """Taken from each number of a plan."""
    now: float = 0.0
    """The time from which deadlines count."""
    places_per_slot: int = 1
    """How many host places a slot has; 0 where they keep their names."""
    canonical: bool = True
    """Whether what nobody can ask about any more is left out."""


def own_names(core: Core, lives: Iterable[int] = (), now: float = 0.0) -> Names:
    """Every name as it is; *lives* are those that somebody outside the ledger remembers, and deadlines count from *now*."""
    known = {NULL: NULL} | {life: life for life in lives}
    for job in core.jobs.by_number.values():
        known |= {int(life): int(life) for life in job.lives}
    for request in core.requests.values():
        for table in request.tables:
            known |= {life: life for life in table}
    return Names(
        blocks=range(len(core.blocks)),
        slots=range(len(core.slots)),
        epochs=core.blocks.epoch,
        lives=known,
        jobs={number: number for number in core.jobs.by_number},
        now=now,
        places_per_slot=0,
        canonical=False,
    )


def canonical_names(
    core: Core, *, lives: Iterable[int] = (), jobs: Iterable[int] = (), now: float = 0.0, places_per_slot: int = 1
) -> Names:
    """Names by role alone, so that two ledgers that differ only in names get equal snapshots.

    Blocks are counted in the order in which requests hold them, then jobs, then the free queue; slots in that of jobs, then of
    content, then of the empty ones; epochs by how many older lives of the block somebody still names; jobs by age, those that
    are over only from the oldest on that *jobs* names. *lives* are those that somebody outside the ledger remembers.
    """
    blocks, slots = core.blocks, core.slots
    # who remembers a job that is over remembers those that came after it: one of them may have had its places since
    oldest = min((number for number in jobs if number not in core.jobs.out), default=core.jobs.last_number + 1)
    known = [job for job in core.jobs.by_number.values() if job.number in core.jobs.out or job.number >= oldest]
    named = [life for request in core.requests.values() for table in request.tables for life in table]
    for job in known:
        named += listed(job.lives)
    new_blocks = _by_rank([NULL, *[life & ID_MASK for life in named], *blocks.queue.order()], len(blocks))
    epochs, new_lives = _new_epochs(core, [*named, *lives], new_blocks)
    by_content = sorted([(slots.group[slot], key, slot) for slot, key in enumerate(slots.key) if key is not None])
    of_jobs = [slot for job in known for slot in listed(job.slots)]
    new_slots = _by_rank([*of_jobs, *[slot for _, _, slot in by_content], *slots.peek_empty(len(slots))], len(slots))
    return Names(
        blocks=new_blocks,
        slots=new_slots,
        epochs=epochs,
        lives=new_lives,
        jobs={job.number: number for number, job in enumerate(known, 1)},
        plans_before=next(iter(core._waiting), core.plan_number + 1) - 1,
        now=now,
        places_per_slot=places_per_slot,
    )


def _by_rank(order: Iterable[int], size: int) -> list[int]:
    """The new name of each place: its rank in an order, at its first mention; those that are not named there come last."""
    found = [0] * size
    for new, old in enumerate(dict.fromkeys([*order, *range(size)])):
        found[old] = new
    return found


def _new_epochs(core: Core, named: Iterable[int], new_blocks: Sequence[int]) -> tuple[list[int], dict[int, int]]:
    """The present epoch of each block is the number of its older lives that are named; so are those, in their order."""
    epoch = core.blocks.epoch
    older: dict[int, set[int]] = {}
    for life in named:
        if life != NULL and life >> EPOCH_SHIFT != epoch[life & ID_MASK]:
            older.setdefault(life & ID_MASK, set()).add(life >> EPOCH_SHIFT)
    epochs = [0] * len(epoch)
    for place, found in older.items():
        epochs[place] = len(found)
    now = zip(epoch, range(len(epoch)), epochs, new_blocks, strict=True)
    lives = {old << EPOCH_SHIFT | place: new << EPOCH_SHIFT | name for old, place, new, name in now}
    for place, found in older.items():
        for rank, each in enumerate(sorted(found)):
            lives[each << EPOCH_SHIFT | place] = rank << EPOCH_SHIFT | new_blocks[place]
    lives[NULL] = NULL
    return epochs, lives


_FREED, _EMPTY = BlockLife.table.index[Block.FREED], SlotLife.table.index[Slot.EMPTY]
_OVER = frozenset(JobLife.table.index[state] for state in TERMINAL)
_PASSED = _OVER | {JobLife.table.index[Job.QUARANTINED]}
"""States of a job in which nobody watches its deadline."""


def take(core: Core, names: Names) -> Snapshot:
    """Everything that decides what the ledger does next, under these names."""
    blocks, slots, jobs = core.blocks, core.slots, core.jobs
    canonical = names.canonical
    known = [job for number, job in jobs.by_number.items() if number in names.jobs]
    rows = {job.row: number for number, job in enumerate(known, 1)} if canonical else {row: row for row in jobs.rows}
    rows[0] = 0
    saved_blocks: list[SavedBlock | None] = [None] * len(blocks)
    columns = zip(
        blocks.column.state, blocks.group, blocks.refs, blocks.pins, blocks.writes, blocks.overdue, blocks.job, blocks.key,
        strict=True,
    )  # fmt: skip
    for place, (state, group, refs, pins, writes, overdue, job, key) in enumerate(columns):
        group = 0 if canonical and state == _FREED else group
        saved_blocks[names.blocks[place]] = SavedBlock(
            state, group, names.epochs[place], refs, pins, writes, overdue, rows[job], key
        )
    saved_slots: list[SavedSlot | None] = [None] * len(slots)
    for place, (state, group, pins, key) in enumerate(zip(slots.column.state, slots.group, slots.pins, slots.key, strict=True)):
        saved_slots[names.slots[place]] = SavedSlot(state, 0 if canonical and state == _EMPTY else group, pins, key)
    saved_jobs = tuple([_save_job(job, core, names, rows[job.row]) for job in known])
    return Snapshot(
        made_with=_made_with(core),
        blocks=tuple([each for each in saved_blocks if each is not None]),
        slots=tuple([each for each in saved_slots if each is not None]),
        block_index=_save_index(blocks.index, names.blocks),
        slot_index=_save_index(slots.index, names.slots),
        queue=tuple([names.blocks[place] for place in blocks.queue.order()]),
        empty=tuple([names.slots[place] for place in slots.peek_empty(len(slots))]),
        jobs=saved_jobs,
        last_number=len(known) if canonical else jobs.last_number,
        spare_jobs=_spare(saved_jobs, jobs.max_jobs) if canonical else tuple(jobs._spare),
        requests=tuple([_save_request(each, core, names) for each in core.requests.values()]),
        spare_requests=tuple(core._spare_requests),
        holders=tuple(
            sorted(
                (name, tuple(sorted((names.slots[slot], count) for slot, count in held.items())))
                for name, held in core.holders.items()
            )
        ),
        plan_number=core.plan_number - names.plans_before,
        to_flush=tuple([names.jobs[number] for number in core._to_flush]),
        waiting=tuple(
            [
                (plan - names.plans_before, tuple([names.jobs[number] for number in numbers if number in names.jobs]))
                for plan, numbers in core._waiting.items()
            ]
        ),
    )


def _save_job(job: JobRow, core: Core, names: Names, row: int) -> SavedJob:
    lives, slots, size = names.lives, names.slots, names.places_per_slot
    saved = SavedPayload(
        tuple([lives[life] for life in listed(job.lives)]),
        tuple([slots[slot] for slot in listed(job.slots)]),
        tuple([slots[place // size] * size + place % size if size else place for place in listed(job.places)]),
        tuple(job.keys),
        None if job.names is None else tuple(job.names),
        job.groups,
        job.slot_groups,
    )
    state = core.jobs.column.state[job.row]
    passed = names.canonical and state in _PASSED
    deadline = None if job.deadline is None or passed else job.deadline - names.now
    return SavedJob(
        names.jobs[job.number], row, state, job.direction, job.owner, saved,
        job.reported, job.failed, job.expired, deadline, job.sharers,
    )  # fmt: skip


def _save_index(index: Sequence[Mapping[bytes, int]], names: Sequence[int]) -> tuple[tuple[tuple[bytes, int], ...], ...]:
    return tuple([tuple(sorted((key, names[place]) for key, place in each.items())) for each in index])


def _save_request(request: RequestRow, core: Core, names: Names) -> SavedRequest:
    lives = names.lives
    return SavedRequest(
        request.name,
        request.row,
        core.request_column.state[request.row],
        tuple([tuple([lives[life] for life in table]) for table in request.tables]),
        names.jobs.get(request.load, 0),
    )


def _spare(jobs: Sequence[SavedJob], max_jobs: int) -> tuple[int, ...]:
    """Rows for new jobs: those of jobs that are over come last, so that these stay known as long as possible."""
    used = {job.row for job in jobs}
    return (*(row for row in range(1, max_jobs + 1) if row not in used), *(job.row for job in jobs if job.state in _OVER))


def _made_with(core: Core) -> tuple[object, ...]:
    return core.limits, core.contract, core.incarnation, core.own_pool


# --- and back -----------------------------------------------------------------------------------------------------------


def put_back(core: Core, saved: Snapshot, now: float = 0.0) -> None:
    """Go back to a snapshot of a ledger with the same limits; deadlines count from *now*."""
    if saved.made_with != _made_with(core):
        raise MisuseError("the snapshot is of a ledger that was made with other limits, contract, incarnation or pool")
    blocks, slots = core.blocks, core.slots
    for place, block in enumerate(saved.blocks):
        (
            blocks.column.state[place], blocks.group[place], blocks.epoch[place], blocks.refs[place], blocks.pins[place],
            blocks.writes[place], blocks.overdue[place], blocks.job[place], blocks.key[place],
        ) = block  # fmt: skip
    for place, slot in enumerate(saved.slots):
        slots.column.state[place], slots.group[place], slots.pins[place], slots.key[place] = slot
    blocks.index = [dict(each) for each in saved.block_index]
    slots.index = [dict(each) for each in saved.slot_index]
    blocks.queue.reset(list(saved.queue))
    blocks.free = len(saved.queue)
    slots.rebuild(saved.empty)
    _put_back_jobs(core, saved, now)
    core.requests = {
        each.name: RequestRow(each.row, each.name, [array("q", table) for table in each.tables], each.load)
        for each in saved.requests
    }
    for each in saved.requests:
        core.request_column.state[each.row] = each.state
    core._spare_requests = deque(saved.spare_requests)
    core.holders = {name: Counter(dict(held)) for name, held in saved.holders}
    core.plan_number = saved.plan_number
    core._to_flush = dict.fromkeys(saved.to_flush)
    core._waiting = dict(saved.waiting)


def _put_back_jobs(core: Core, saved: Snapshot, now: float) -> None:
    jobs = core.jobs
    jobs.by_number, jobs.rows, jobs.out, jobs.planned, jobs.owned = {}, {}, {}, {}, {}
    core._deadlines = []
    planned, quarantined = JobLife.table.index[Job.PLANNED], JobLife.table.index[Job.QUARANTINED]
    for each in saved.jobs:
        deadline = None if each.deadline is None else each.deadline + now
        job = JobRow(
            each.row, each.number, each.direction, each.owner, *_columns(each.payload), core.limits.num_groups,
            each.reported, each.failed, each.expired, deadline, each.sharers,
        )  # fmt: skip
        jobs.by_number[each.number] = jobs.rows[each.row] = job
        jobs.column.state[each.row] = each.state
        if each.state in _OVER:
            continue
        jobs.out[each.number] = job
        if each.state == planned:
            jobs.planned[each.number] = job
        jobs.own(job)
        if deadline is not None and each.state != quarantined:
            core._deadlines.append((deadline, each.number))
    core._deadlines.sort()
    jobs.last_number = saved.last_number
    jobs._spare = deque(saved.spare_jobs)


@lru_cache(maxsize=4096)
def _columns(
    saved: SavedPayload,
) -> tuple[Lives, Ids, Ids, list[bytes], list[bytes] | None, bytes, bytes]:
    """What a job moves is never changed once it is made, so that equal columns are made once."""
    return (
        batch(saved.lives),
        batch(saved.slots),
        batch(saved.places),
        list(saved.keys),
        None if saved.names is None else list(saved.names),
        saved.groups,
        saved.slot_groups,
    )
