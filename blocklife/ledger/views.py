"""Read-only views of a ledger: its blocks, slots, jobs and requests, its plans, counts and journal.

Rules of this file:

* Views return values; nothing that they return can change the ledger.
* An answer holds until the next verb. A life that is over stays over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TypeAlias, overload

from blocklife.core import _plans as plans
from blocklife.core import _verbs as verbs
from blocklife.core._columns import Core, Ints, life_of, listed
from blocklife.core._tables import COPIED, FINAL, FINISHED, OVER, READABLE
from blocklife.errors import MisuseError
from blocklife.ledger import _edge as edge
from blocklife.ledger._checks import Checks
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK
from blocklife.ledger._journal import ContentListener, Journal, SlotWatcher
from blocklife.ledger._limits import Statistics
from blocklife.ledger._plan import transfers
from blocklife.ledger._state import LedgerData
from blocklife.ledger.jobs import JOB_STATES, Jobs, JobView, Out
from blocklife.ledger.records import Direction, JobId, LedgerTransition, Transfer
from blocklife.lifecycle import Row, Table
from blocklife.states import (
    BLANK,
    LIFELESS,
    Block,
    BlockLife,
    Job,
    JobLife,
    Request,
    RequestLife,
    Slot,
    SlotLife,
    Trait,
    states_with,
)

_BLOCKS = tuple(each for each in BlockLife.table.states if isinstance(each, Block))
_SLOTS = tuple(each for each in SlotLife.table.states if isinstance(each, Slot))
_READY = SlotLife.table.index[Slot.READY]
_REQUESTS = tuple(each for each in RequestLife.table.states if isinstance(each, Request))
_LEAVING = {each: [row.index for row in RequestLife.table.rows if row.source is each] for each in _REQUESTS}
"""The rows of the table that leave each state."""
_FREE = states_with(Trait.FREE, Block)
_FREEING = LIFELESS - BLANK - {Block.QUARANTINED}
"""States in which a place waits for a copy, and is free then."""


def _counts_of(table: Table, taken: Ints) -> Iterator[tuple[Row, int]]:
    """Every row of a table, with the number of times it was taken."""
    return iter([(row, taken[row.index]) for row in table.rows])


def block_of(life: int) -> int:
    """The block of a life."""
    return life & ID_MASK


def free_order(core: Core) -> list[int]:
    """All free blocks, in the order in which they will be handed out; by number, where the order is the engine's."""
    blocks = core.blocks
    if blocks.indexed:
        return listed(blocks.following, blocks.size, blocks.size)
    return [place for place in range(1, blocks.size) if _BLOCKS[blocks.state[place]] in _FREE]


class BlocksView:
    """The blocks of the device; block 0 is the null block, which no request ever holds."""

    def __init__(self, data: LedgerData, check: Checks) -> None:
        self._check = check
        self._core = data.core
        columns = data.core.blocks.columns
        self._state, self._epoch, self._group = columns["state"], columns["epoch"], columns["group"]
        self._refs, self._pins, self._writes, self._overdue = (columns[name] for name in ("refs", "pins", "writes", "overdue"))
        self._key, self._job = columns["key"], columns["job"]
        self._traits = data.core.rules.block_trait
        self.states = memoryview(columns["state"]).toreadonly()
        """The state of every block, as the index of the state in the machine, for bulk reads; a live view."""
        self.epochs = memoryview(columns["epoch"]).toreadonly()
        """The epoch of every block; a live view."""
        self.groups = memoryview(columns["group"]).toreadonly()
        """The group of every block; a live view."""

    def __len__(self) -> int:
        return len(self._state)

    @property
    def free(self) -> int:
        """The number of blocks that can be handed out without a wait."""
        return self._core.blocks.free

    def has_room(self, count: int) -> bool:
        """Whether `allocate` would find that many blocks now; under fence, blocks that a copy still reads count."""
        return verbs.has_room(self._core, edge.whole(count, "count"))

    def state(self, block: int) -> Block:
        """The state of a block."""
        return _BLOCKS[self._state[block]]

    def life(self, block: int) -> int:
        """The current life of a block."""
        if type(block) is not int or not 0 <= block < len(self._epoch):
            self._check.blocks([edge.whole(block, "block")])
        return life_of(self._epoch[block], block)

    def is_current(self, life: int) -> bool:
        """Whether a life is still current."""
        return self._epoch[life & ID_MASK] == life >> EPOCH_SHIFT

    def of(self, life: int) -> Block | None:
        """The state of the block of a life; None if the life is over."""
        block = life & ID_MASK
        return _BLOCKS[self._state[block]] if self._epoch[block] == life >> EPOCH_SHIFT else None

    def code_of(self, life: int) -> int | None:
        """`of`, as the index of the state in the machine; faster for many single queries."""
        block = life & ID_MASK
        return self._state[block] if self._epoch[block] == life >> EPOCH_SHIFT else None

    def is_final(self, block: int) -> bool:
        """Whether a block has final content, which a hit may read."""
        return self._traits[self._state[block]] & FINAL != 0

    def holds(self, block: int, group: int, key: bytes) -> bool:
        """Whether a block has final content of this group and key."""
        return self.is_final(block) and self._group[block] == group and self._core.contents.key[self._key[block]] == key

    def refs(self, block: int) -> int:
        """The number of block tables that hold it."""
        return self._refs[block]

    def pins(self, block: int) -> int:
        """The number of jobs that may touch it."""
        return self._pins[block]

    def writes(self, block: int) -> int:
        """The number of loads that may write it."""
        return self._writes[block]

    def overdue(self, block: int) -> int:
        """The number of jobs past their deadline that may touch it."""
        return self._overdue[block]

    def group(self, block: int) -> int:
        """The group that it was last handed out for."""
        return self._group[block]

    def key(self, block: int) -> bytes | None:
        """The key of its content; None if it has none."""
        content = self._key[block]
        return self._core.contents.key[content] if content else None

    def job(self, block: int) -> int:
        """The number of the store that reads its current life; 0 for none."""
        row = self._job[block]
        return self._core.jobs.number[row] if row else 0

    def find(self, group: int, key: bytes) -> int | None:
        """The life that holds the content of a key; None if there is none."""
        block = self.place_of(group, key)
        return None if block < 0 else life_of(self._epoch[block], block)

    def place_of(self, group: int, key: bytes) -> int:
        """The block that has the content of a key; -1 if there is none."""
        contents = self._core.contents
        own = contents.known[group]
        content = own.get(key, 0)
        return contents.block[content] if content else -1

    def prefix(self, keys: Iterable[bytes], group: int = 0) -> list[int]:
        """The lives that hold the longest cached prefix of *keys*; take a hit with `acquire`."""
        self._check.group(group)
        return self._first_lives(group, edge.keys(keys, "keys"))

    def _first_lives(self, group: int, keys: Sequence[bytes]) -> list[int]:
        """The same, of keys that were checked."""
        found: list[int] = []
        for key in keys:
            block = self.place_of(group, key)
            if block < 0:
                break
            found.append(life_of(self._epoch[block], block))
        return found

    def named(self) -> Iterator[tuple[int, bytes, int]]:
        """All content that can be hit: group, key, block."""
        contents = self._core.contents
        for group, known in enumerate(contents.known):
            for key, content in known.items():
                if contents.block[content] >= 0:
                    yield group, key, contents.block[content]

    def next_free(self, count: int) -> list[int]:
        """The next blocks to be handed out, at most *count*."""
        blocks = self._core.blocks
        return listed(blocks.following, blocks.size, count) if blocks.indexed else []

    def free_order(self) -> list[int]:
        """All free blocks, in the order in which they will be handed out; by number, where the order is the engine's."""
        return free_order(self._core)

    def count_held(self) -> int:
        """The number of blocks that a request holds."""
        return sum(map(bool, self._core.blocks.columns["refs"]))

    def count_busy(self) -> int:
        """The number of blocks that are not free, or are held, or may still be touched by a copy."""
        busy = [state for state, each in enumerate(_BLOCKS) if each not in _FREE]
        columns = self._core.blocks.columns
        rows = zip(columns["state"], columns["refs"], columns["pins"], strict=True)
        return sum([1 for state, refs, pins in rows if state in busy or refs or pins])

    def count(self) -> dict[Block, int]:
        """The number of blocks in each state; the null block counts as FREED."""
        column = self._core.blocks.columns["state"]
        return {each: column.count(state) for state, each in enumerate(_BLOCKS)}

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """How often each row of the table was taken."""
        return _counts_of(BlockLife.table, self._core.blocks.taken)


class SlotsView:
    """The slots of the lower tier."""

    def __init__(self, data: LedgerData, check: Checks) -> None:
        self._check = check
        self._core = data.core
        self._journal, self._holders = data.journal, data.holders
        columns = data.core.slots.columns
        self._state, self._pins, self._group, self._key = (columns[name] for name in ("state", "pins", "group", "key"))
        self._readable = bytes(trait & READABLE != 0 for trait in data.core.rules.slot_trait)
        self.states = memoryview(columns["state"]).toreadonly()
        """The state of every slot, as the index of the state in the machine, for bulk reads; a live view."""

    def __len__(self) -> int:
        return len(self._state)

    @property
    def free(self) -> int:
        """The number of EMPTY slots."""
        return self._core.slots.free

    @property
    def holders(self) -> Mapping[str, Mapping[int, int]]:
        """Pins besides those of jobs, by holder, and how often it pins each slot."""
        return self._holders

    def state(self, slot: int) -> Slot:
        """The state of a slot."""
        return _SLOTS[self._state[slot]]

    def is_ready(self, slot: int) -> bool:
        """Whether its content can be read."""
        return self._readable[self._state[slot]] != 0

    def can_evict(self, slot: int) -> bool:
        """Whether it can be evicted now: it is READY and not pinned."""
        return self.is_ready(slot) and not self._pins[slot]

    def pins(self, slot: int) -> int:
        """The number of loads and lookups that pin it."""
        return self._pins[slot]

    def group(self, slot: int) -> int:
        """The group of its content, or of its last content."""
        return self._group[slot]

    def key(self, slot: int) -> bytes | None:
        """The key of its content; None if it has none."""
        content = self._key[slot]
        return self._core.contents.key[content] if content else None

    def find(self, group: int, key: bytes) -> int | None:
        """The slot that has the content of a key, or that a store is writing it to; None if there is none."""
        slot = self.place_of(group, key)
        return None if slot < 0 else slot

    def place_of(self, group: int, key: bytes) -> int:
        """The same, -1 if there is none."""
        contents = self._core.contents
        own = contents.known[group]
        content = own.get(key, 0)
        return contents.slot[content] if content else -1

    def found(self, group: int, keys: Iterable[bytes]) -> list[int]:
        """`find` of many keys: the slots of those whose content is there, or on its way."""
        found: list[int] = []
        for key in keys:
            slot = self.place_of(group, key)
            if slot >= 0:
                found.append(slot)
        return found

    def find_ready(self, group: int, key: bytes) -> int | None:
        """The READY slot with the content of a key; None if there is none."""
        slot = self.place_of(group, key)
        return slot if slot >= 0 and self.is_ready(slot) else None

    def prefix(self, keys: Iterable[bytes], group: int = 0) -> list[int]:
        """The READY slots that hold the longest prefix of *keys*."""
        self._check.group(group)
        return self._first_ready(group, edge.keys(keys, "keys"))

    def _first_ready(self, group: int, keys: Sequence[bytes]) -> list[int]:
        """The same, of keys that were checked."""
        found: list[int] = []
        for key in keys:
            slot = self.place_of(group, key)
            if slot < 0 or not self.is_ready(slot):
                break
            found.append(slot)
        return found

    def any_ready(self, names: Iterable[tuple[int, bytes]]) -> bool:
        """Whether any of these contents, given by group and key, can be read now."""
        return any(self.find_ready(group, key) is not None for group, key in names)

    def named(self) -> Iterator[tuple[int, bytes, int]]:
        """All content with a key, READY or being written: group, key, slot."""
        contents = self._core.contents
        for group, known in enumerate(contents.known):
            for key, content in known.items():
                if contents.slot[content] >= 0:
                    yield group, key, contents.slot[content]

    def next_empty(self, count: int) -> list[int]:
        """Up to *count* empty slots, the most recently emptied first."""
        return listed(self._core.slots.following, self._core.slots.size, count)

    def count(self) -> dict[Slot, int]:
        """The number of slots in each state."""
        return {each: self._core.slots.in_state[state] for state, each in enumerate(_SLOTS)}

    def where(self, state: Slot) -> list[int]:
        """The slots in a state."""
        wanted = SlotLife.table.index[state]
        return [slot for slot, at in enumerate(self._core.slots.columns["state"]) if at == wanted]

    def count_busy(self) -> int:
        """The number of slots that are neither EMPTY nor READY, or are pinned."""
        slots = self._core.slots
        return slots.size - slots.free - (slots.in_state[_READY] - slots.held)

    def any_evictable(self) -> bool:
        """Whether a slot can be evicted now."""
        return self._core.slots.in_state[_READY] > self._core.slots.held

    def count_pinned(self) -> int:
        """The number of READY slots that are pinned."""
        return self._core.slots.held

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """How often each row of the table was taken."""
        return _counts_of(SlotLife.table, self._core.slots.taken)

    def watch(self, watcher: SlotWatcher) -> None:
        """Call ``watcher(stored, slots)`` after every call in which content of slots became readable, or is gone.

        It is called once for each such change, in order; what the slots hold may have changed again by then. As a hook it
        cannot call the ledger, and an error in it changes nothing (`Ledger.hook_errors`).
        """
        edge.function(watcher, "watcher")
        self._journal.watch(watcher)

    def note(self, listener: ContentListener, *, stored: bool = True) -> None:
        """The same for code of this package: it is called after each verb, for all its slots, and only takes notes.

        Without *stored* it is told only of content that is gone. If another listener, or a watcher, is told of both, so is it.
        """
        self._journal.listen(listener, stored)


class JobsView:
    """The jobs that are not over, and the latest that are, by number."""

    def __init__(self, data: LedgerData, check: Checks) -> None:
        self._check = check
        self._core = data.core
        self._data = data

    @property
    def verdicts(self) -> int:
        """How often a job became terminal or expired. While it is unchanged, polling for a copy can be skipped."""
        return self._core.verdicts

    @property
    def live(self) -> int:
        """The number of jobs that are not over."""
        return self._core.jobs.live

    @property
    def room(self) -> int:
        """The number of jobs that can be added now."""
        return self._core.jobs.num_spare

    def check_room(self) -> None:
        """Raise `CapacityError` if there is no room for another job."""
        if not self._core.jobs.num_spare:
            raise self._data.refusals.of_jobs(0, 1)

    @property
    def last_number(self) -> int:
        """The number of the latest job."""
        return self._core.jobs.last_number

    @property
    def num_planned(self) -> int:
        """The number of jobs that are planned and not submitted."""
        return len(self._core.jobs.planned)

    def alive(self) -> Sequence[JobView]:
        """The jobs that are not over, oldest first."""
        return self._data.alive()

    def known(self) -> Sequence[JobView]:
        """All jobs that are still known."""
        return self._data.known()

    def get(self, number: int) -> JobView | None:
        """A job; None if it never existed, or ended too long ago to be known."""
        row = self._core.jobs.by_number.get(number, 0)
        return JobView(self._core, row) if row else None

    def transfer(self, number: int) -> Transfer:
        """What a job moves between device and host, for an engine that launches copies itself.

        `MisuseError` for a job that is no longer known, or that moves slots to or from the store below (see `Plan`).
        """
        job = self.get(number)
        if job is None:
            raise MisuseError(f"job {number}: it is not known (it was never made, or has been over for long)")
        if not job.direction.on_device:
            raise MisuseError(f"job {number}: a {job.direction.name} touches no block (Plan.promotes and Plan.demotes have it)")
        return transfers(self._data, job.direction, [job.row])[0]

    def state(self, job: JobId) -> Job:
        """The state of a job; `LateError` if it ended too long ago to be known, `MisuseError` if it never existed."""
        return JOB_STATES[self._core.jobs.state[self._check.job(edge.job_id(job, "job"))]]

    def of(self, *requests: str) -> Jobs[Out]:
        """The submitted jobs made for any of these requests, which a preemption flushes, the oldest first."""
        known = self._core.requests.by_name
        rows = {known[name] for name in edge.texts(requests, "requests") if name in known}
        numbers, id_of = self._core.jobs.number, self._data.id_of
        return Jobs(tuple([id_of(row) for row in plans.serving(self._core, rows) if not self.is_planned(numbers[row])]))

    def submitted(self, *, on_device: bool = False) -> Jobs[Out]:
        """All jobs that the workers have: submitted and not over. With *on_device* those that touch blocks of the device."""
        edge.flag(on_device, "on_device")
        out = [job for job in self._data.alive() if not self.is_planned(job.number)]
        return Jobs(tuple([self._data.id_of(job.row) for job in out if job.direction.on_device or not on_device]))

    def is_out(self, number: int) -> bool:
        """Whether a job is not over."""
        row = self._core.jobs.by_number.get(number, 0)
        return row != 0 and not self._core.rules.job_trait[self._core.jobs.state[row]] & OVER

    def is_planned(self, number: int) -> bool:
        """Whether a job is planned and not submitted."""
        return self._core.jobs.by_number.get(number, 0) in self._core.jobs.planned

    def serve(self, request: str) -> bool:
        """Whether a job that is not over is for this request."""
        row = self._core.requests.by_name.get(request, -1)
        return row >= 0 and self._core.requests.serving[row] > 0

    def serving(self, request: str) -> Sequence[JobView]:
        """The jobs that are not over and for this request, oldest first."""
        row = self._core.requests.by_name.get(request, -1)
        return [JobView(self._core, job) for job in plans.serving(self._core, {row})] if row >= 0 else []

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """How often each row of the table was taken."""
        return _counts_of(JobLife.table, self._core.jobs.taken)


class RequestsView:
    """The requests that are not over, by name. Raises `MisuseError` for others."""

    def __init__(self, data: LedgerData, check: Checks) -> None:
        self._core, self._check = data.core, check

    def __len__(self) -> int:
        return self._core.requests.live

    def __contains__(self, name: object) -> bool:
        row = self._core.requests.by_name.get(name, -1) if isinstance(name, str) else -1
        return row >= 0 and self._core.requests.state[row] != FINISHED

    def __iter__(self) -> Iterator[str]:
        state = self._core.requests.state
        return iter([name for name, row in self._core.requests.by_name.items() if state[row] != FINISHED])

    def row(self, request: str) -> int:
        """The row of a request, which is the place in its transitions; it is reused once the request is over."""
        return self._core.requests.place[self._check.request(request)]

    def state(self, request: str) -> Request:
        """The state of a request."""
        return _REQUESTS[self._core.requests.state[self._check.request(request)]]

    def times_left(self, state: Request) -> int:
        """How often a request has left this state, since the ledger was made."""
        total = 0
        for row in _LEAVING[state]:
            total += self._core.requests.taken[row]
        return total

    def rows(self) -> dict[int, str]:
        """The request in each row."""
        return {self.row(request): request for request in self}

    def load(self, request: str) -> int:
        """The number of the load that a request waits for; 0 for none."""
        return self._core.requests.load[self._check.request(request)]

    def size(self, request: str, group: int) -> int:
        """The length of the block table of one group, nulls included."""
        return self._core.requests.length[self._check.request(request) * self._core.num_groups + group]

    def table(self, request: str, group: int = 0, start: int = 0, stop: int | None = None) -> list[int]:
        """The lives that a request holds in one group, or some of them; `NULL` for positions outside the window."""
        self._check.group(group)
        requests, table = self._core.requests, self._check.request(request) * self._core.num_groups + group
        begin = requests.begin[table]
        first, last, _ = slice(start, stop).indices(requests.length[table])
        found: list[int] = []
        for at in range(begin + first, begin + last):
            found.append(requests.lives[at])
        return found

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """How often each row of the table was taken."""
        return _counts_of(RequestLife.table, self._core.requests.taken)


class PlansView:
    """The plans of a ledger, by number."""

    def __init__(self, data: LedgerData) -> None:
        self._core = data.core

    @property
    def number(self) -> int:
        """The number of the latest plan; 0 before the first."""
        return self._core.plan

    @property
    def out(self) -> tuple[int, ...]:
        """The plans that have not settled, oldest first."""
        return tuple(self._core.waiting)


class CountsView:
    """What a ledger has counted since it was made; entries that are 0 are left out."""

    def __init__(self, data: LedgerData) -> None:
        self._data = data

    @property
    def tally(self) -> Mapping[str, int]:
        """Number of late, duplicate and unknown reports, stale references, and violations."""
        return self._data.tally

    @property
    def flushes(self) -> Mapping[str, int]:
        """Number of flushes (waits for a copy), by cause."""
        return Counter(self._data.core.flushes)

    @property
    def ended(self) -> Mapping[str, int]:
        """Number of jobs, by terminal state."""
        return self._data.ended

    def ended_in(self, direction: Direction) -> Mapping[str, int]:
        """Number of jobs of one direction, by terminal state."""
        return self._data.ended_in(direction)

    @property
    def moved(self) -> Mapping[str, int]:
        """Number of blocks moved by jobs that are DONE, by direction; of slots, for demotions and promotions."""
        return self._data.moved


class JournalView(Sequence[LedgerTransition]):
    """The latest steps, oldest first, up to ``max_journal`` steps of places."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __len__(self) -> int:
        return len(self._journal.records())

    @overload
    def __getitem__(self, at: int, /) -> LedgerTransition: ...
    @overload
    def __getitem__(self, at: slice, /) -> list[LedgerTransition]: ...
    def __getitem__(self, at: int | slice, /) -> LedgerTransition | list[LedgerTransition]:
        return self._journal.records()[at]

    def __iter__(self) -> Iterator[LedgerTransition]:
        return iter(self._journal.records())

    def history(self, machine: str, place: int) -> list[str]:
        """The latest steps of one place, oldest first, for error messages and reports."""
        return self._journal.history(edge.text(machine, "machine"), edge.whole(place, "place"))


View: TypeAlias = BlocksView | SlotsView | JobsView | RequestsView
"""The view of one machine."""


def statistics_of(data: LedgerData) -> Statistics:
    """Statistics of the ledger at this moment."""
    core, tally = data.core, data.tally
    columns, traits = core.blocks.columns, core.rules.block_trait
    blocks = {each.name: columns["state"].count(state) for state, each in enumerate(_BLOCKS)}
    blocks[Block.FREED.name] -= 1  # the null block does not count
    copied = bytes(columns["state"]).translate(bytes([trait & COPIED != 0 for trait in traits]).ljust(256, b"\0"))
    read = [refs for refs in compress(columns["refs"], copied) if not refs]
    soon = len(read) + sum(blocks[each.name] for each in _FREEING)
    slots = core.slots.columns["state"]
    return Statistics(
        blocks=blocks,
        slots={each.name: slots.count(state) for state, each in enumerate(_SLOTS)},
        jobs_alive=core.jobs.live,
        requests=core.requests.live,
        free=core.blocks.free,
        freeing_soon=soon,
        quarantined=blocks[Block.QUARANTINED.name],
        late=tally["late"],
        duplicate=tally["duplicate"],
        unknown=tally["unknown"],
        stale=tally["stale"],
        violations=tally["violations"],
        hook_errors=data.journal.errors.count,
    )
