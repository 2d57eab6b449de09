"""Snapshots of a ledger as plain values, and how they are restored; the basis for exploring every state.

Rules of this file:

* A snapshot has everything that decides what the ledger does next, and nothing else: no statistics, no journal.
* It is a value: equal snapshots mean equal states, and it can be hashed.
* A column is copied as bytes, both ways; nothing is processed place by place unless it is renamed.
* It can be taken with other names (`Names`). The behaviour of the ledger does not depend on the numbers of places, jobs or
  plans, so that all states that differ only in names can be merged.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from attrs import define

from tests.oracle.errors import MisuseError
from tests.oracle.ledger._ids import EPOCH_SHIFT, FIRST_EPOCH, ID_MASK, NULL, Ids, Lives, ids_of, listed, packed
from tests.oracle.ledger._state import LedgerData, RequestRow
from tests.oracle.ledger.jobs import JobRow
from tests.oracle.ledger.records import Direction
from tests.oracle.states import TERMINAL, Block, BlockLife, Job, JobLife, Slot, SlotLife

if TYPE_CHECKING:
    from tests.oracle.ledger._ledger import Ledger

ValueT = TypeVar("ValueT")


class SavedBlocks(NamedTuple):
    """The columns of all blocks, as bytes in the order of the machine; ``job`` is the row of the job that each names."""

    state: bytes
    group: bytes
    epoch: bytes
    refs: bytes
    pins: bytes
    writes: bytes
    overdue: bytes
    job: bytes
    key: tuple[bytes | None, ...]

    def epochs(self) -> Sequence[int]:
        """The epoch of each block."""
        return memoryview(self.epoch).cast("I")


class SavedSlots(NamedTuple):
    """The columns of all slots, likewise."""

    state: bytes
    group: bytes
    pins: bytes
    key: tuple[bytes | None, ...]

    def pinned(self) -> Sequence[int]:
        """The pins of each slot."""
        return memoryview(self.pins).cast("H")


class SavedPayload(NamedTuple):
    """What a job moves."""

    lives: tuple[int, ...]
    slots: tuple[int, ...]
    places: tuple[int, ...]
    keys: tuple[bytes, ...]
    names: tuple[bytes, ...] | None
    groups: bytes
    slot_groups: bytes
    space: bytes = b""


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
    missing: tuple[int, ...] = ()
    """The slots of a promotion or demotion whose content a worker did not move."""


class SavedRequest(NamedTuple):
    """One request with its tables."""

    name: str
    row: int
    state: int
    tables: tuple[tuple[int, ...], ...]
    load: int


class Snapshot(NamedTuple):
    """The state of a ledger, for `Ledger.restore` on a ledger with the same limits."""

    made_with: str
    """Limits, contract, incarnation, and who owns pool and index, of the ledger that it was taken of."""
    blocks: SavedBlocks
    slots: SavedSlots
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
    """Every life that is referred to."""
    jobs: Mapping[int, int]
    plans_before: int = 0
    """Taken from each number of a plan."""
    now: float = 0.0
    """The time from which deadlines count."""
    places_per_slot: int = 1
    """How many host places a slot has; 0 where they keep their names."""
    canonical: bool = True
    """Whether they are names by role, under which what nobody can ask about any more is left out; else all are own names."""
    free: Sequence[int] | None = None
    """Free blocks, the first first, and empty slots likewise, where they were asked for already; under their old names."""
    empty: Sequence[int] | None = None


class _Unchanged(dict[int, int]):
    """Every life under its own name."""

    def __missing__(self, life: int) -> int:
        return life


def own_names(ledger: Ledger, now: float = 0.0) -> Names:
    """Every name as it is; deadlines count from *now*."""
    core = ledger._state
    return Names(
        blocks=range(len(core.blocks)),
        slots=range(len(core.slots)),
        epochs=core.blocks.epoch,
        lives=_Unchanged(),
        jobs={number: number for number in core.jobs.by_number},
        now=now,
        places_per_slot=0,
        canonical=False,
    )


def canonical_names(
    ledger: Ledger, *, lives: Iterable[int] = (), jobs: Iterable[int] = (), now: float = 0.0, places_per_slot: int = 1
) -> Names:
    """Names by role alone, so that two ledgers that differ only in names get equal snapshots.

    Blocks are counted in the order in which requests hold them, then jobs, then the free queue; slots in that of jobs, then of
    content, then of the empty ones; epochs by how many older lives of the block somebody still names; jobs by age, those that
    are over only from the oldest on that *jobs* names. *lives* are those that somebody outside the ledger remembers.
    """
    core = ledger._state
    blocks, slots, table = core.blocks, core.slots, core.jobs
    out, oldest = table.out, table.last_number + 1
    for number in jobs:
        # who remembers a job that is over remembers those that came after it: one of them may have had its places since
        if number < oldest and number not in out:
            oldest = number
    named: list[int] = []
    of_jobs: list[int] = []
    numbers: dict[int, int] = {}
    for request in core.requests.values():
        for held in request.tables:
            named += held
    for job in table.by_number.values():
        if job.number in out or job.number >= oldest:
            numbers[job.number] = len(numbers) + 1
            named += listed(job.lives)
            of_jobs += listed(job.slots)
    free, empty, size = blocks.free_order(), slots.peek_empty(len(slots.key)), len(slots.key)
    new_blocks = _by_rank((NULL, *[life & ID_MASK for life in named], *free), len(blocks.key))
    named += lives
    epochs, new_lives = _new_epochs(core, named, new_blocks)
    if by_content := [(slots.group[slot], key, slot) for slot, key in enumerate(slots.key) if key is not None]:
        by_content.sort()
        of_jobs += [slot for _, _, slot in by_content]
    new_slots = _by_rank((*of_jobs, *empty), size)
    plans_before = next(iter(core.waiting), core.plan_number + 1) - 1
    return Names(
        new_blocks, new_slots, epochs, new_lives, numbers, plans_before, now, places_per_slot, free=free, empty=empty
    )  # fmt: skip


_ORDERS = 4096
"""Orders of places whose ranks are kept: a small world comes back to few of them, and asks for one in each of its steps."""


@lru_cache(_ORDERS)
def _by_rank(order: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The new name of each place: its rank in an order, at its first mention; those that are not named there come last."""
    ranks = {place: rank for rank, place in enumerate(dict.fromkeys((*order, *range(size))))}
    return tuple([ranks[place] for place in range(size)])


def _new_epochs(core: LedgerData, named: Iterable[int], new_blocks: Sequence[int]) -> tuple[list[int], dict[int, int]]:
    """The present epoch of each block is the number of its older lives that are named; so are those, in their order."""
    epoch = core.blocks.epoch
    lives = {life: FIRST_EPOCH << EPOCH_SHIFT | new_blocks[life & ID_MASK] for life in named}
    epochs = [FIRST_EPOCH] * len(epoch)
    epochs[NULL] = 0
    if over := [life for life in lives if epoch[life & ID_MASK] != life >> EPOCH_SHIFT]:
        older: dict[int, list[int]] = {}
        for life in sorted(over):
            older.setdefault(life & ID_MASK, []).append(life)
        for place, found in older.items():
            epochs[place] = FIRST_EPOCH + len(found)
            for rank, life in enumerate([*found, epoch[place] << EPOCH_SHIFT | place], FIRST_EPOCH):
                lives[life] = rank << EPOCH_SHIFT | new_blocks[place]
    lives[NULL] = NULL
    return epochs, lives


_FREED, _EMPTY = BlockLife.table.index[Block.FREED], SlotLife.table.index[Slot.EMPTY]
_OVER = frozenset(JobLife.table.index[state] for state in TERMINAL)
_PLANNED, _QUARANTINED = JobLife.table.index[Job.PLANNED], JobLife.table.index[Job.QUARANTINED]
_PASSED = _OVER | {_QUARANTINED}
"""States of a job in which nobody watches its deadline."""


def take(core: LedgerData, names: Names) -> Snapshot:
    """Take a snapshot with these names."""
    jobs, numbers, before, canonical = core.jobs, names.jobs, names.plans_before, names.canonical
    blocks, slots = names.blocks, names.slots
    free = core.blocks.free_order() if names.free is None else names.free
    empty = core.slots.peek_empty(len(core.slots.key)) if names.empty is None else names.empty
    saved_jobs, rows = _save_jobs(core, names)
    waiting: list[tuple[int, tuple[int, ...]]] = []
    for plan, waited in core.waiting.items():
        waiting.append((plan - before, tuple([numbers[number] for number in waited if number in numbers]) if waited else ()))
    holders: list[tuple[str, tuple[tuple[int, int], ...]]] = []
    for name, held in core.holders.items():
        holders.append((name, tuple(sorted([(slots[slot], count) for slot, count in held.items()]))))
    return Snapshot(
        core.made_with,
        _save_blocks(core, names, rows),
        _save_slots(core, names),
        _save_index(core.blocks.index, blocks),
        _save_index(core.slots.index, slots),
        tuple([blocks[place] for place in free]),
        tuple([slots[slot] for slot in empty]) if empty else (),
        saved_jobs,
        len(saved_jobs) if canonical else jobs.last_number,
        _spare(len(rows), saved_jobs, jobs.max_jobs) if canonical else tuple(jobs._spare),
        _save_requests(core, names),
        tuple(core.spare_requests),
        tuple(sorted(holders)) if holders else (),
        core.plan_number - before,
        tuple([numbers[number] for number in core.to_flush]) if core.to_flush else (),
        tuple(waiting),
    )


def _save_blocks(core: LedgerData, names: Names, rows: Mapping[int, int]) -> SavedBlocks:
    blocks, state = core.blocks, core.blocks.column.state
    if not names.canonical:
        return SavedBlocks(
            bytes(state), bytes(blocks.group), bytes(blocks.epoch), bytes(blocks.refs), bytes(blocks.pins),
            bytes(blocks.writes), bytes(blocks.overdue), bytes(blocks.job), tuple(blocks.key),
        )  # fmt: skip
    pick = _picker(tuple(names.blocks))
    states, groups, jobs = bytes(pick(state)), bytes(blocks.group), blocks.job
    return SavedBlocks(
        states,
        _blank(bytes(pick(groups)), states, _FREED) if any(groups) else groups,
        array(blocks.epoch.typecode, pick(names.epochs)).tobytes(),
        array(blocks.refs.typecode, pick(blocks.refs)).tobytes(),
        bytes(pick(blocks.pins)),
        bytes(pick(blocks.writes)),
        bytes(pick(blocks.overdue)),
        array(jobs.typecode, [rows[row] for row in pick(jobs)]).tobytes() if any(jobs) else bytes(jobs),
        pick(blocks.key),
    )


def _save_slots(core: LedgerData, names: Names) -> SavedSlots:
    slots, state = core.slots, core.slots.column.state
    if not names.canonical:
        return SavedSlots(bytes(state), bytes(slots.group), bytes(slots.pins), tuple(slots.key))
    pick = _picker(tuple(names.slots))
    states, groups = bytes(pick(state)), bytes(slots.group)
    return SavedSlots(
        states,
        _blank(bytes(pick(groups)), states, _EMPTY) if any(groups) else groups,
        array(slots.pins.typecode, pick(slots.pins)).tobytes(),
        pick(slots.key),
    )


def _blank(groups: bytes, states: bytes, without: int) -> bytes:
    """The groups, but for places in a state in which nobody can ask for it."""
    return bytes([0 if state == without else group for state, group in zip(states, groups, strict=True)])


@lru_cache(_ORDERS)
def _picker(names: tuple[int, ...]) -> Callable[[Sequence[ValueT]], tuple[ValueT, ...]]:
    """What puts a column in the order of the new names."""
    order = [0] * len(names)
    for old, new in enumerate(names):
        order[new] = old
    if len(order) > 1:
        return itemgetter(*order)
    return lambda column: tuple([column[place] for place in order])


def _save_jobs(core: LedgerData, names: Names) -> tuple[tuple[SavedJob, ...], dict[int, int]]:
    """The jobs that have a name, and the new row of each old one."""
    jobs, numbers, canonical = core.jobs, names.jobs, names.canonical
    rows = {0: 0} if canonical else {row: row for row in (0, *jobs.rows)}
    if not numbers:
        return (), rows
    lives, slot_of, size = names.lives, names.slots, names.places_per_slot
    saved: list[SavedJob] = []
    for number, job in jobs.by_number.items():
        if number not in numbers:
            continue
        row, state, deadline = job.row, jobs.column.state[job.row], job.deadline
        if canonical:
            rows[row] = row = len(saved) + 1
        slots = tuple([slot_of[slot] for slot in listed(job.slots)])
        if job.places is job.slots:
            places = slots
        elif size == 1:
            places = tuple([slot_of[slot] for slot in listed(job.places)])
        else:
            places = tuple([slot_of[at // size] * size + at % size if size else at for at in listed(job.places)])
        payload = SavedPayload(
            tuple([lives[life] for life in listed(job.lives)]),
            slots,
            places,
            tuple(job.keys),
            None if job.names is None else tuple(job.names),
            job.groups,
            job.slot_groups,
            job.space,
        )
        if deadline is not None:
            deadline = None if canonical and state in _PASSED else deadline - names.now
        each = SavedJob(
            numbers[number], row, state, job.direction, job.owner, payload,
            job.reported, job.failed, job.expired, deadline, job.sharers,
            tuple(sorted([slot_of[slot] for slot in job.missing])) if job.missing else (),
        )  # fmt: skip
        saved.append(each)
    return tuple(saved), rows


def _save_index(index: Sequence[Mapping[bytes, int]], names: Sequence[int]) -> tuple[tuple[tuple[bytes, int], ...], ...]:
    found: list[tuple[tuple[bytes, int], ...]] = []
    for each in index:
        found.append(tuple(sorted([(key, names[place]) for key, place in each.items()])) if each else ())
    return tuple(found)


def _save_requests(core: LedgerData, names: Names) -> tuple[SavedRequest, ...]:
    lives, jobs, states = names.lives, names.jobs, core.request_column.state
    saved: list[SavedRequest] = []
    for each in core.requests.values():
        tables = tuple([tuple([lives[life] for life in table]) for table in each.tables])
        load = jobs.get(each.load, 0) if each.load else 0
        saved.append(SavedRequest(each.name, each.row, states[each.row], tables, load))
    return tuple(saved)


def _spare(first: int, jobs: Sequence[SavedJob], max_jobs: int) -> tuple[int, ...]:
    """Rows for new jobs, from the first that no job has: those of jobs that are over come last, so that these stay known as
    long as possible."""
    return (*range(first, max_jobs + 1), *[job.row for job in jobs if job.state in _OVER])


# --- and back -----------------------------------------------------------------------------------------------------------


def put_back(core: LedgerData, saved: Snapshot, now: float = 0.0) -> None:
    """Go back to a snapshot of a ledger with the same limits; deadlines count from *now*."""
    (
        made_with, saved_blocks, saved_slots, block_index, slot_index, queue, empty, jobs, last_number, spare_jobs, requests,
        spare_requests, holders, plan_number, to_flush, waiting,
    ) = saved  # fmt: skip
    if made_with != core.made_with:
        raise MisuseError("the snapshot is of a ledger that was made with other limits, contract, incarnation or pool")
    blocks, slots = core.blocks, core.slots
    (
        blocks.column.state[:], blocks.group[:], epoch, refs, pins, writes, overdue, job, blocks.key[:],
    ) = saved_blocks  # fmt: skip
    slots.column.state[:], slots.group[:], slot_pins, slots.key[:] = saved_slots
    write(core.wide_columns or _wide_columns(core), (epoch, refs, pins, writes, overdue, job, slot_pins))
    blocks.index = list(map(dict, block_index))
    slots.index = list(map(dict, slot_index))
    if blocks.indexed:
        blocks.queue.reset(list(queue))
    blocks.free = len(queue)
    slots.rebuild(empty)
    _put_back_jobs(core, jobs, now)
    core.jobs.last_number = last_number
    core.jobs._spare = deque(spare_jobs)
    core.requests.clear()
    for name, row, state, tables, load in requests:
        core.requests[name] = RequestRow(row, name, [array("q", table) for table in tables], load)
        core.request_column.state[row] = state
    core.spare_requests.clear()
    core.spare_requests.extend(spare_requests)
    core.holders.clear()
    for name, held in holders:
        core.holders[name] = Counter(dict(held))
    core.plan_number = plan_number
    core.to_flush.clear()
    core.to_flush.update(dict.fromkeys(to_flush) if to_flush else ())
    core.waiting.clear()
    core.waiting.update(waiting)


def write(columns: Iterable[memoryview], content: Iterable[bytes]) -> None:
    """Write all of each column."""
    for column, was in zip(columns, content, strict=True):
        column[:] = was


def _wide_columns(core: LedgerData) -> tuple[memoryview, ...]:
    """Columns as bytes; they are the same objects as long as the ledger lives."""
    blocks, slots = core.blocks, core.slots
    columns = (blocks.epoch, blocks.refs, blocks.pins, blocks.writes, blocks.overdue, blocks.job, slots.pins)
    core.wide_columns = found = tuple([memoryview(column).cast("B") for column in columns])
    return found


def _put_back_jobs(core: LedgerData, saved: Sequence[SavedJob], now: float) -> None:
    jobs, num_groups, states = core.jobs, core.limits.num_groups, core.jobs.column.state
    jobs.by_number, jobs.rows, jobs.out, jobs.planned, jobs.owned = {}, {}, {}, {}, {}
    core.deadlines.clear()
    for number, row, state, direction, owner, payload, reported, failed, expired, deadline, sharers, missing in saved:
        if deadline is not None:
            deadline += now
        job = JobRow(
            row, number, direction, owner, *_columns(payload), num_groups, reported, failed, expired, deadline, sharers,
            payload.space, frozenset(missing),
        )  # fmt: skip
        jobs.by_number[number] = jobs.rows[row] = job
        states[row] = state
        if state in _OVER:
            continue
        jobs.out[number] = job
        if state == _PLANNED:
            jobs.planned[number] = job
        jobs.own(job)
        if deadline is not None and state != _QUARANTINED:
            core.deadlines.append((deadline, number))
    core.deadlines.sort()


def _columns(saved: SavedPayload) -> tuple[Lives, Ids, Ids, Ids, list[bytes], list[bytes] | None, bytes, bytes]:
    lives, slots, places, keys, names, groups, slot_groups, _ = saved
    own, held = packed(list(slots)), packed(list(lives))
    return (
        held,
        ids_of(held),
        own,
        own if places == slots else packed(list(places)),
        list(keys),
        None if names is None else list(names),
        groups,
        slot_groups,
    )
