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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple, TypeVar

from attrs import define

from blocklife.core._columns import Core, TransferJobs, listed
from blocklife.core._tables import FINISHED, NEVER
from blocklife.errors import MisuseError
from blocklife.ledger._ids import EPOCH_SHIFT, FIRST_EPOCH, ID_MASK, NULL
from blocklife.ledger._state import LedgerData
from blocklife.ledger.jobs import DIRECTIONS
from blocklife.ledger.records import Direction
from blocklife.ledger.views import free_order
from blocklife.states import BLANK, TERMINAL, BlockLife, Job, JobLife, Slot, SlotLife, Trait, states_with

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


def own_names(data: LedgerData, now: float = 0.0) -> Names:
    """Every name as it is; deadlines count from *now*."""
    core = data.core
    return Names(
        blocks=range(core.blocks.size),
        slots=range(core.slots.size),
        epochs=core.blocks.columns["epoch"],
        lives=_Unchanged(),
        jobs={number: number for number in core.jobs.by_number},
        now=now,
        places_per_slot=0,
        canonical=False,
    )


def canonical_names(
    data: LedgerData, *, lives: Iterable[int] = (), jobs: Iterable[int] = (), now: float = 0.0, places_per_slot: int = 1
) -> Names:
    """Names by role alone, so that two ledgers that differ only in names get equal snapshots.

    Blocks are counted in the order in which requests hold them, then jobs, then the free queue; slots in that of jobs, then of
    content, then of the empty ones; epochs by how many older lives of the block somebody still names; jobs by age, those that
    are over only from the oldest on that *jobs* names. *lives* are those that somebody outside the ledger remembers.
    """
    core = data.core
    known, oldest = data.known(), core.jobs.last_number + 1
    out = {job.number for job in known if job.code not in _OVER}
    for number in jobs:
        # who remembers a job that is over remembers those that came after it: one of them may have had its places since
        if number < oldest and number not in out:
            oldest = number
    named: list[int] = []
    of_jobs: list[int] = []
    numbers: dict[int, int] = {}
    for _, row in _requests(core):
        for own in _tables(core, row):
            named += own
    for job in known:
        if job.number in out or job.number >= oldest:
            numbers[job.number] = len(numbers) + 1
            named += job.lives
            of_jobs += job.slots
    free, empty = free_order(core), listed(core.slots.following, core.slots.size, core.slots.size)
    new_blocks = _by_rank((NULL, *[life & ID_MASK for life in named], *free), core.blocks.size)
    named += lives
    epochs, new_lives = _new_epochs(core, named, new_blocks)
    keys, groups = core.slots.columns["key"], core.slots.columns["group"]
    if by_content := [(groups[slot], core.contents.key[key], slot) for slot, key in enumerate(keys) if key]:
        by_content.sort()
        of_jobs += [slot for _, _, slot in by_content]
    new_slots = _by_rank((*of_jobs, *empty), core.slots.size)
    plans_before = next(iter(core.waiting), core.plan + 1) - 1
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


def _new_epochs(core: Core, named: Iterable[int], new_blocks: Sequence[int]) -> tuple[list[int], dict[int, int]]:
    """The present epoch of each block is the number of its older lives that are named; so are those, in their order."""
    epoch = core.blocks.columns["epoch"]
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


_BLANK = frozenset(BlockLife.table.index[each] for each in BLANK)
_EMPTY = frozenset(SlotLife.table.index[each] for each in states_with(Trait.FREE, Slot))
_READY = SlotLife.table.index[Slot.READY]
_OVER = frozenset(JobLife.table.index[state] for state in TERMINAL)
_PLANNED, _QUARANTINED = JobLife.table.index[Job.PLANNED], JobLife.table.index[Job.QUARANTINED]
_PASSED = _OVER | {_QUARANTINED}
"""States of a job in which nobody watches its deadline."""


def take(data: LedgerData, names: Names) -> Snapshot:
    """Take a snapshot with these names."""
    core = data.core
    numbers, before, canonical = names.jobs, names.plans_before, names.canonical
    blocks, slots, jobs = names.blocks, names.slots, core.jobs
    free = free_order(core) if names.free is None else names.free
    empty = listed(core.slots.following, core.slots.size, core.slots.size) if names.empty is None else names.empty
    saved_jobs, rows = _save_jobs(data, names)
    waiting: list[tuple[int, tuple[int, ...]]] = []
    for plan, waited in core.waiting.items():
        waiting.append((plan - before, tuple([numbers[number] for number in waited if number in numbers]) if waited else ()))
    holders: list[tuple[str, tuple[tuple[int, int], ...]]] = []
    for name, held in data.holders.items():
        holders.append((name, tuple(sorted([(slots[slot], count) for slot, count in held.items()]))))
    return Snapshot(
        data.made_with,
        _save_blocks(data, names, rows),
        _save_slots(data, names),
        _save_index(core, core.contents.block, blocks),
        _save_index(core, core.contents.slot, slots),
        tuple([blocks[place] for place in free]),
        tuple([slots[slot] for slot in empty]) if empty else (),
        saved_jobs,
        len(saved_jobs) if canonical else jobs.last_number,
        _spare(len(rows), saved_jobs, jobs.max_jobs) if canonical else _spare_rows(jobs),
        _save_requests(core, names),
        tuple(core.requests.spare_places),
        tuple(sorted(holders)) if holders else (),
        core.plan - before,
        tuple([numbers[number] for number in core.to_flush]) if core.to_flush else (),
        tuple(waiting),
    )


def _keys(core: Core, contents: Sequence[int]) -> tuple[bytes | None, ...]:
    """The key of each content; None for none."""
    key = core.contents.key
    return tuple([key[content] if content else None for content in contents])


def _save_blocks(data: LedgerData, names: Names, rows: Mapping[int, int]) -> SavedBlocks:
    columns = data.core.blocks.columns
    state, jobs, keys = columns["state"], columns["job"], _keys(data.core, columns["key"])
    if not names.canonical:
        kept, group, epoch, refs, pins, writes, overdue, job = map(bytes, data.block_bytes)
        return SavedBlocks(kept, group, epoch, refs, pins, writes, overdue, job, keys)
    pick = _picker(tuple(names.blocks))
    states, groups = bytes(pick(state)), bytes(columns["group"])
    return SavedBlocks(
        states,
        _blank(bytes(pick(groups)), states, _BLANK) if any(groups) else groups,
        array("i", pick(names.epochs)).tobytes(),
        array("H", pick(columns["refs"])).tobytes(),
        bytes(pick(columns["pins"])),
        bytes(pick(columns["writes"])),
        bytes(pick(columns["overdue"])),
        array("i", [rows[row] for row in pick(jobs)]).tobytes() if any(jobs) else bytes(jobs),
        pick(keys),
    )


def _save_slots(data: LedgerData, names: Names) -> SavedSlots:
    columns = data.core.slots.columns
    state, keys = columns["state"], _keys(data.core, columns["key"])
    if not names.canonical:
        kept, group, held = map(bytes, data.slot_bytes)
        return SavedSlots(kept, group, held, keys)
    pick = _picker(tuple(names.slots))
    states, groups = bytes(pick(state)), bytes(columns["group"])
    return SavedSlots(
        states,
        _blank(bytes(pick(groups)), states, _EMPTY) if any(groups) else groups,
        array("H", pick(columns["pins"])).tobytes(),
        pick(keys),
    )


def _blank(groups: bytes, states: bytes, without: Collection[int]) -> bytes:
    """The group of each place, and 0 for places whose state is among *without*, in which nobody can ask for their group."""
    return bytes([0 if state in without else group for state, group in zip(states, groups, strict=True)])


@lru_cache(_ORDERS)
def _picker(names: tuple[int, ...]) -> Callable[[Sequence[ValueT]], tuple[ValueT, ...]]:
    """What puts a column in the order of the new names."""
    order = [0] * len(names)
    for old, new in enumerate(names):
        order[new] = old
    if len(order) > 1:
        return itemgetter(*order)
    return lambda column: tuple([column[place] for place in order])


def _save_jobs(data: LedgerData, names: Names) -> tuple[tuple[SavedJob, ...], dict[int, int]]:
    """The jobs that have a name, and the new row of each old one."""
    numbers, canonical = names.jobs, names.canonical
    known = data.known()
    rows = {0: 0} if canonical else {0: 0, **{job.row: job.row for job in known}}
    lives, slot_of, size = names.lives, names.slots, names.places_per_slot
    saved: list[SavedJob] = []
    for job in known if numbers else ():
        if job.number not in numbers:
            continue
        row, state, deadline = job.row, job.code, job.deadline
        if canonical:
            rows[row] = row = len(saved) + 1
        slots, places, own = tuple([slot_of[slot] for slot in job.slots]), job.places, job.slots
        if places == own:
            where = slots
        elif size == 1:
            where = tuple([slot_of[slot] for slot in places])
        else:
            where = tuple([slot_of[at // size] * size + at % size if size else at for at in places])
        known_names = job.names
        payload = SavedPayload(
            tuple([lives[life] for life in job.lives]), slots, where, tuple(job.keys),
            None if known_names is None else tuple(known_names), job.groups, job.slot_groups, job.space,
        )  # fmt: skip
        if deadline is not None:
            deadline = None if canonical and state in _PASSED else deadline - names.now
        each = SavedJob(
            numbers[job.number], row, state, job.direction, job.owner, payload, job.reported, job.failed, job.expired, deadline,
            job.sharers, tuple(sorted([slot_of[slot] for slot in job.missing])) if job.missing else (),
        )  # fmt: skip
        saved.append(each)
    return tuple(saved), rows


def _save_index(core: Core, places: Sequence[int], names: Sequence[int]) -> tuple[tuple[tuple[bytes, int], ...], ...]:
    found: list[tuple[tuple[bytes, int], ...]] = []
    for known in core.contents.known:
        own: list[tuple[bytes, int]] = []
        for key, content in known.items():
            if places[content] >= 0:
                own.append((key, names[places[content]]))
        own.sort()
        found.append(tuple(own))
    return tuple(found)


def _requests(core: Core) -> list[tuple[str, int]]:
    """Every request with its row, in the order in which they came."""
    return [(name, row) for name, row in core.requests.by_name.items() if core.requests.state[row] != FINISHED]


def _tables(core: Core, row: int) -> list[list[int]]:
    """The block tables of a request."""
    requests, found = core.requests, list[list[int]]()
    for table in range(row * core.num_groups, (row + 1) * core.num_groups):
        begin = requests.begin[table]
        found.append([requests.lives[at] for at in range(begin, begin + requests.length[table])])
    return found


def _save_requests(core: Core, names: Names) -> tuple[SavedRequest, ...]:
    lives, jobs, requests = names.lives, names.jobs, core.requests
    saved: list[SavedRequest] = []
    for name, row in _requests(core):
        tables = tuple([tuple([lives[life] for life in own]) for own in _tables(core, row)])
        load = jobs.get(requests.load[row], 0) if requests.load[row] else 0
        saved.append(SavedRequest(name, requests.place[row], requests.state[row], tables, load))
    return tuple(saved)


def _spare_rows(jobs: TransferJobs) -> tuple[int, ...]:
    """Rows for new jobs, the next one first."""
    return tuple([jobs.spare[(jobs.first_spare + at) % jobs.max_jobs] for at in range(jobs.num_spare)])


def _spare(first: int, jobs: Sequence[SavedJob], max_jobs: int) -> tuple[int, ...]:
    """Rows for new jobs, from the first that no job has: those of jobs that are over come last, so that these stay known as
    long as possible."""
    return (*range(first, max_jobs + 1), *[job.row for job in jobs if job.state in _OVER])


# --- and back -----------------------------------------------------------------------------------------------------------


def put_back(data: LedgerData, saved: Snapshot, now: float = 0.0) -> None:
    """Go back to a snapshot of a ledger with the same limits; deadlines count from *now*."""
    if saved.made_with != data.made_with:
        raise MisuseError("the snapshot is of a ledger that was made with other limits, contract, incarnation or pool")
    core = data.core
    core.empty()
    write(data.block_bytes, saved.blocks[:-1])
    write(data.slot_bytes, saved.slots[:-1])
    _put_back_places(core, saved)
    _put_back_requests(core, saved.requests, saved.spare_requests)
    _put_back_jobs(core, saved, now)
    data.holders.clear()
    for name, held in saved.holders:
        data.holders[name] = dict(held)
    core.plan = saved.plan_number
    core.to_flush.update(dict.fromkeys(saved.to_flush))
    core.waiting.update({plan: list(waited) for plan, waited in saved.waiting})


def write(columns: Iterable[memoryview], content: Iterable[bytes]) -> None:
    """Write all of each column, which are seen as bytes."""
    for column, was in zip(columns, content, strict=True):
        column[:] = was


def _put_back_places(core: Core, saved: Snapshot) -> None:
    blocks, slots, contents = core.blocks, core.slots, core.contents
    for place, key in enumerate(saved.blocks.key):
        blocks.key[place] = 0 if key is None else contents.intern(blocks.group[place], key)
        contents.uses[blocks.key[place]] += 1
    for slot, key in enumerate(saved.slots.key):
        slots.key[slot] = 0 if key is None else contents.intern(slots.group[slot], key)
        contents.uses[slots.key[slot]] += 1
    for group, index in enumerate(saved.block_index):
        for key, place in index:
            contents.block[contents.intern(group, key)] = place
    for group, index in enumerate(saved.slot_index):
        for key, slot in index:
            contents.slot[contents.intern(group, key)] = slot
    if blocks.indexed:
        blocks.line_up(list(saved.queue))
    blocks.free = len(saved.queue)
    slots.line_up(list(saved.empty))
    for state in range(len(SlotLife.table.states)):
        slots.in_state[state] = saved.slots.state.count(state)
    slots.held = sum(
        [1 for state, pins in zip(saved.slots.state, saved.slots.pinned(), strict=True) if state == _READY and pins]
    )


def _put_back_requests(core: Core, saved: Sequence[SavedRequest], spare: Sequence[int]) -> None:
    requests = core.requests
    requests.spare_places.clear()
    requests.spare_places.extend(spare)
    for each in saved:
        row = requests.intern(each.name)
        requests.place[row], requests.state[row], requests.load[row] = each.row, each.state, each.load
        requests.live += 1
        requests.come(row)
        for group, lives in enumerate(each.tables):
            table = row * core.num_groups + group
            requests.reserve(table, len(lives))
            for at, life in enumerate(lives):
                requests.lives[requests.begin[table] + at] = life
            requests.length[table] = len(lives)


def _put_back_jobs(core: Core, saved: Snapshot, now: float) -> None:
    jobs, contents, requests = core.jobs, core.contents, core.requests
    for each in saved.jobs:
        row, payload = each.row, each.payload
        jobs.number[row], jobs.state[row], jobs.failed[row] = each.number, each.state, each.failed
        jobs.direction[row] = DIRECTIONS.index(each.direction)
        jobs.by_number[each.number] = row
        for at in range(jobs.words):
            jobs.reported[row * jobs.words + at] = each.reported >> (64 * at) & ((1 << 64) - 1)
            jobs.expected[row * jobs.words + at] = jobs.everybody[at]
        jobs.deadline[row] = NEVER if each.deadline is None else each.deadline + now
        blocks, apart = len(payload.lives), payload.places != payload.slots or payload.names != payload.keys
        jobs.num_blocks[row], jobs.num_slots[row] = blocks, len(payload.slots)
        jobs.begin[row] = jobs.slot_begin[row] = jobs.claim_entries(max(blocks, 1) if blocks else len(payload.slots))
        if blocks and apart:
            jobs.slot_begin[row] = jobs.claim_entries(len(payload.slots))
        for at, life in enumerate(payload.lives):
            entry, group = jobs.begin[row] + at, payload.groups[at]
            jobs.place[entry], jobs.epoch[entry] = life & ID_MASK, life >> EPOCH_SHIFT
            jobs.slot[entry], jobs.group[entry] = payload.places[at], group
            jobs.key[entry] = 0 if payload.names is None else contents.intern(group, payload.names[at])
            contents.uses[jobs.key[entry]] += 1
        if not blocks or apart:
            for at, slot in enumerate(payload.slots):
                entry, group = jobs.slot_begin[row] + at, payload.slot_groups[at]
                jobs.slot[entry], jobs.group[entry] = slot, group
                jobs.key[entry] = contents.intern(group, payload.keys[at])
                contents.uses[jobs.key[entry]] += 1
        if payload.space:
            jobs.space[each.number] = payload.space
        if each.missing:
            jobs.missing[each.number] = frozenset(each.missing)
        owners = [requests.intern(name) for name in (each.owner, *each.sharers) if name is not None]
        jobs.num_owners[row] = len(owners)
        for owner in owners:
            requests.named[owner] += 1
        if owners:
            jobs.owner_begin[row] = jobs.claim_owners(len(owners))
            for at, owner in enumerate(owners):
                jobs.owner[jobs.owner_begin[row] + at] = owner
        if each.state not in _OVER:
            _put_back_live(core, row, owners)
    core.deadlines.sort()
    jobs.last_number = saved.last_number
    jobs.first_spare, jobs.num_spare = 0, len(saved.spare_jobs)
    for at, row in enumerate(saved.spare_jobs):
        jobs.spare[at] = row


def _put_back_live(core: Core, row: int, owners: Iterable[int]) -> None:
    """A job that is not over."""
    jobs = core.jobs
    last = jobs.before[0]
    jobs.before[row], jobs.following[row], jobs.following[last], jobs.before[0] = last, 0, row, row
    jobs.live += 1
    if jobs.state[row] == _PLANNED:
        jobs.planned[row] = None
    if jobs.deadline[row] != NEVER and jobs.state[row] != _QUARANTINED:
        core.deadlines.append((jobs.deadline[row], jobs.number[row]))
    for owner in owners:
        core.requests.serving[owner] += 1
