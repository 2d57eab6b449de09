"""A ledger at one moment, as a plain value, and the way back to it: what exploring every state is built on.

Rules of this file:

* A snapshot holds everything that decides what the ledger does next, and nothing else: not what was counted, not the journal.
* It is a value: equal snapshots are equal worlds, and it can be hashed.
* A column is copied as the bytes that it is made of, both ways; nothing is walked place by place that has its own name.
* It can be taken under other names (`Names`). What the ledger does does not depend on how a place, a job or a plan is called,
  so that all worlds that differ in names only can be folded into one.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from attrs import define

from blocklife.errors import MisuseError
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK, NULL, Ids, Lives, batch, ids_of, listed
from blocklife.ledger._state import LedgerData, RequestRow
from blocklife.ledger.jobs import JobRow
from blocklife.ledger.records import Direction
from blocklife.states import TERMINAL, Block, BlockLife, Job, JobLife, Slot, SlotLife

if TYPE_CHECKING:
    from blocklife.ledger._ledger import Ledger

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
    """Every life that anybody names."""
    jobs: Mapping[int, int]
    plans_before: int = 0
    """Taken from each number of a plan."""
    now: float = 0.0
    """The time from which deadlines count."""
    places_per_slot: int = 1
    """How many host places a slot has; 0 where they keep their names."""
    canonical: bool = True
    """Whether they are names by role, under which what nobody can ask about any more is left out; else all are own names."""


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
    blocks, slots, out = core.blocks, core.slots, core.jobs.out
    # who remembers a job that is over remembers those that came after it: one of them may have had its places since
    oldest = min([number for number in jobs if number not in out], default=core.jobs.last_number + 1)
    named: list[int] = []
    of_jobs: list[int] = []
    numbers: dict[int, int] = {}
    for request in core.requests.values():
        for table in request.tables:
            named += table
    for job in core.jobs.by_number.values():
        if job.number in out or job.number >= oldest:
            numbers[job.number] = len(numbers) + 1
            named += listed(job.lives)
            of_jobs += listed(job.slots)
    new_blocks = _by_rank([NULL, *map(ID_MASK.__and__, named), *blocks.free_order()], len(blocks))
    named += lives
    epochs, new_lives = _new_epochs(core, named, new_blocks)
    by_content = [(slots.group[slot], key, slot) for slot, key in enumerate(slots.key) if key is not None]
    if by_content:
        of_jobs += [slot for _, _, slot in sorted(by_content)]
    new_slots = _by_rank([*of_jobs, *slots.peek_empty(len(slots))], len(slots))
    plans_before = next(iter(core.waiting), core.plan_number + 1) - 1
    return Names(new_blocks, new_slots, epochs, new_lives, numbers, plans_before, now, places_per_slot)


def _by_rank(order: Iterable[int], size: int) -> list[int]:
    """The new name of each place: its rank in an order, at its first mention; those that are not named there come last."""
    found = [-1] * size
    new = 0
    for place in order:
        if found[place] < 0:
            found[place] = new
            new += 1
    if new < size:
        for place in range(size):
            if found[place] < 0:
                found[place] = new
                new += 1
    return found


def _new_epochs(core: LedgerData, named: Iterable[int], new_blocks: Sequence[int]) -> tuple[list[int], dict[int, int]]:
    """The present epoch of each block is the number of its older lives that are named; so are those, in their order."""
    epoch = core.blocks.epoch
    lives = {NULL: NULL}
    for place, new in enumerate(new_blocks):
        lives[epoch[place] << EPOCH_SHIFT | place] = new
    epochs = [0] * len(epoch)
    if over := set(named) - lives.keys():
        older: dict[int, list[int]] = {}
        for life in sorted(over):
            older.setdefault(life & ID_MASK, []).append(life)
        for place, found in older.items():
            epochs[place] = len(found)
            for rank, life in enumerate([*found, epoch[place] << EPOCH_SHIFT | place]):
                lives[life] = rank << EPOCH_SHIFT | new_blocks[place]
    return epochs, lives


_FREED, _EMPTY = BlockLife.table.index[Block.FREED], SlotLife.table.index[Slot.EMPTY]
_OVER = frozenset(JobLife.table.index[state] for state in TERMINAL)
_PLANNED, _QUARANTINED = JobLife.table.index[Job.PLANNED], JobLife.table.index[Job.QUARANTINED]
_PASSED = _OVER | {_QUARANTINED}
"""States of a job in which nobody watches its deadline."""


def take(core: LedgerData, names: Names) -> Snapshot:
    """Everything that decides what the ledger does next, under these names."""
    jobs, numbers, before = core.jobs, names.jobs, names.plans_before
    blocks, slots = names.blocks.__getitem__, names.slots.__getitem__
    saved_jobs, rows = _save_jobs(core, names)
    waiting: list[tuple[int, tuple[int, ...]]] = []
    for plan, waited in core.waiting.items():
        waiting.append((plan - before, tuple([numbers[number] for number in waited if number in numbers]) if waited else ()))
    holders: list[tuple[str, tuple[tuple[int, int], ...]]] = []
    for name, held in core.holders.items():
        holders.append((name, tuple(sorted(zip(map(slots, held), held.values(), strict=True)))))
    return Snapshot(
        _made_with(core),
        _save_blocks(core, names, rows),
        _save_slots(core, names),
        _save_index(core.blocks.index, blocks),
        _save_index(core.slots.index, slots),
        tuple(map(blocks, core.blocks.free_order())),
        tuple(map(slots, core.slots.peek_empty(len(core.slots)))),
        saved_jobs,
        len(saved_jobs) if names.canonical else jobs.last_number,
        _spare(rows, saved_jobs, jobs.max_jobs) if names.canonical else tuple(jobs._spare),
        _save_requests(core, names),
        tuple(core.spare_requests),
        tuple(sorted(holders)),
        core.plan_number - before,
        tuple(map(numbers.__getitem__, core.to_flush)),
        tuple(waiting),
    )


def _save_blocks(core: LedgerData, names: Names, rows: Mapping[int, int]) -> SavedBlocks:
    blocks, state = core.blocks, core.blocks.column.state
    if not names.canonical:
        return SavedBlocks(
            bytes(state), bytes(blocks.group), bytes(blocks.epoch), bytes(blocks.refs), bytes(blocks.pins),
            bytes(blocks.writes), bytes(blocks.overdue), bytes(blocks.job), tuple(blocks.key),
        )  # fmt: skip
    pick = _picker(names.blocks)
    states, groups = bytes(pick(state)), bytes(pick(blocks.group))
    return SavedBlocks(
        states,
        groups if _FREED not in states or not any(groups) else _blank(groups, states, _FREED),
        array(blocks.epoch.typecode, pick(names.epochs)).tobytes(),
        array(blocks.refs.typecode, pick(blocks.refs)).tobytes(),
        bytes(pick(blocks.pins)),
        bytes(pick(blocks.writes)),
        bytes(pick(blocks.overdue)),
        array(blocks.job.typecode, map(rows.__getitem__, pick(blocks.job))).tobytes(),
        pick(blocks.key),
    )


def _save_slots(core: LedgerData, names: Names) -> SavedSlots:
    slots, state = core.slots, core.slots.column.state
    if not names.canonical:
        return SavedSlots(bytes(state), bytes(slots.group), bytes(slots.pins), tuple(slots.key))
    pick = _picker(names.slots)
    states, groups = bytes(pick(state)), bytes(pick(slots.group))
    return SavedSlots(
        states,
        groups if _EMPTY not in states or not any(groups) else _blank(groups, states, _EMPTY),
        array(slots.pins.typecode, pick(slots.pins)).tobytes(),
        pick(slots.key),
    )


def _blank(groups: bytes, states: bytes, without: int) -> bytes:
    """The groups, but for places in a state in which nobody can ask for it."""
    return bytes([0 if state == without else group for state, group in zip(states, groups, strict=True)])


def _picker(names: Sequence[int]) -> Callable[[Sequence[ValueT]], tuple[ValueT, ...]]:
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
    lives, slot_of, size = names.lives.__getitem__, names.slots.__getitem__, names.places_per_slot
    saved: list[SavedJob] = []
    for number, job in jobs.by_number.items():
        if number not in numbers:
            continue
        row, state = job.row, jobs.column.state[job.row]
        if canonical:
            rows[row] = row = len(saved) + 1
        slots = tuple(map(slot_of, listed(job.slots)))
        if size == 1 or job.places is job.slots:
            places = tuple(map(slot_of, listed(job.places)))
        else:
            places = tuple([slot_of(at // size) * size + at % size if size else at for at in listed(job.places)])
        payload = SavedPayload(
            tuple(map(lives, listed(job.lives))),
            slots,
            places,
            tuple(job.keys),
            None if job.names is None else tuple(job.names),
            job.groups,
            job.slot_groups,
        )
        deadline = job.deadline
        if deadline is not None:
            deadline = None if canonical and state in _PASSED else deadline - names.now
        each = SavedJob(
            numbers[number], row, state, job.direction, job.owner, payload,
            job.reported, job.failed, job.expired, deadline, job.sharers,
        )  # fmt: skip
        saved.append(each)
    return tuple(saved), rows


def _save_index(index: Sequence[Mapping[bytes, int]], name: Callable[[int], int]) -> tuple[tuple[tuple[bytes, int], ...], ...]:
    return tuple([tuple(sorted(zip(each, map(name, each.values()), strict=True))) for each in index])


def _save_requests(core: LedgerData, names: Names) -> tuple[SavedRequest, ...]:
    lives, states = names.lives.__getitem__, core.request_column.state
    saved: list[SavedRequest] = []
    for each in core.requests.values():
        tables = tuple([tuple(map(lives, table)) for table in each.tables])
        saved.append(SavedRequest(each.name, each.row, states[each.row], tables, names.jobs.get(each.load, 0)))
    return tuple(saved)


def _spare(rows: Mapping[int, int], jobs: Sequence[SavedJob], max_jobs: int) -> tuple[int, ...]:
    """Rows for new jobs, of which the first are in use: those of jobs that are over come last, so that these stay known as
    long as possible."""
    return (*range(len(rows), max_jobs + 1), *[job.row for job in jobs if job.state in _OVER])


def _made_with(core: LedgerData) -> tuple[object, ...]:
    return core.limits, core.contract, core.incarnation, core.own_pool, core.blocks.indexed


# --- and back -----------------------------------------------------------------------------------------------------------


def put_back(core: LedgerData, saved: Snapshot, now: float = 0.0) -> None:
    """Go back to a snapshot of a ledger with the same limits; deadlines count from *now*."""
    if saved.made_with != _made_with(core):
        raise MisuseError("the snapshot is of a ledger that was made with other limits, contract, incarnation or pool")
    blocks, slots = core.blocks, core.slots
    (
        blocks.column.state[:], blocks.group[:], epoch, refs, pins, writes, overdue, job, blocks.key[:],
    ) = saved.blocks  # fmt: skip
    slots.column.state[:], slots.group[:], slot_pins, slots.key[:] = saved.slots
    for column, was in (
        (blocks.epoch, epoch), (blocks.refs, refs), (blocks.pins, pins), (blocks.writes, writes), (blocks.overdue, overdue),
        (blocks.job, job), (slots.pins, slot_pins),
    ):  # fmt: skip
        memoryview(column).cast("B")[:] = was
    blocks.index = [dict(each) for each in saved.block_index]
    slots.index = [dict(each) for each in saved.slot_index]
    if blocks.indexed:
        blocks.queue.reset(list(saved.queue))
    blocks.free = len(saved.queue)
    slots.rebuild(saved.empty)
    _put_back_jobs(core, saved, now)
    core.requests.clear()
    for name, row, state, tables, load in saved.requests:
        core.requests[name] = RequestRow(row, name, [array("q", table) for table in tables], load)
        core.request_column.state[row] = state
    core.spare_requests.clear()
    core.spare_requests.extend(saved.spare_requests)
    core.holders.clear()
    for name, held in saved.holders:
        core.holders[name] = Counter(dict(held))
    core.plan_number = saved.plan_number
    core.to_flush.clear()
    core.to_flush.update(dict.fromkeys(saved.to_flush))
    core.waiting.clear()
    core.waiting.update(saved.waiting)


def _put_back_jobs(core: LedgerData, saved: Snapshot, now: float) -> None:
    jobs, num_groups = core.jobs, core.limits.num_groups
    jobs.by_number, jobs.rows, jobs.out, jobs.planned, jobs.owned = {}, {}, {}, {}, {}
    core.deadlines.clear()
    for number, row, state, direction, owner, payload, reported, failed, expired, deadline, sharers in saved.jobs:
        if deadline is not None:
            deadline += now
        job = JobRow(
            row, number, direction, owner, *_columns(payload), num_groups, reported, failed, expired, deadline, sharers
        )  # fmt: skip
        jobs.by_number[number] = jobs.rows[row] = job
        jobs.column.state[row] = state
        if state in _OVER:
            continue
        jobs.out[number] = job
        if state == _PLANNED:
            jobs.planned[number] = job
        jobs.own(job)
        if deadline is not None and state != _QUARANTINED:
            core.deadlines.append((deadline, number))
    core.deadlines.sort()
    jobs.last_number = saved.last_number
    jobs._spare = deque(saved.spare_jobs)


def _columns(saved: SavedPayload) -> tuple[Lives, Ids, Ids, Ids, list[bytes], list[bytes] | None, bytes, bytes]:
    lives, slots, places, keys, names, groups, slot_groups = saved
    own, held = batch(slots), batch(lives)
    return (
        held,
        ids_of(held),
        own,
        own if places == slots else batch(places),
        list(keys),
        None if names is None else list(names),
        groups,
        slot_groups,
    )
