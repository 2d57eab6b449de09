"""Read-only views of a ledger: its blocks, slots, jobs and requests.

Rules of this file:

* Views return values; nothing that they return can change the ledger.
* An answer holds until the next verb. A life that is over stays over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import lru_cache
from typing import Protocol, TypeAlias

import numpy as np

from tests.oracle.errors import MisuseError
from tests.oracle.ledger import _edge as edge
from tests.oracle.ledger._ids import BULK, EPOCH_SHIFT, ID_MASK, Ids, Lives, listed
from tests.oracle.ledger._limits import Statistics
from tests.oracle.ledger._places import SlotWatcher
from tests.oracle.ledger._rules import flags, marked
from tests.oracle.ledger._state import LedgerData
from tests.oracle.ledger.records import Direction, Transfer
from tests.oracle.lifecycle import Row
from tests.oracle.states import (
    COPYING,
    KEYED,
    SLOTS_AT_REST,
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
_JOBS = tuple(each for each in JobLife.table.states if isinstance(each, Job))
_REQUESTS = tuple(each for each in RequestLife.table.states if isinstance(each, Request))
_READY = SlotLife.table.index[Slot.READY]


_FREE, _SOURCES = flags(BlockLife.table, states_with(Trait.FREE, Block)), flags(BlockLife.table, COPYING)
_RESTS = flags(SlotLife.table, SLOTS_AT_REST)


@lru_cache(maxsize=64)
def _flags(states: frozenset[Block]) -> bytes:
    return flags(BlockLife.table, states)


def block_of(life: int) -> int:
    """The block of a life."""
    return life & ID_MASK


class BlocksView:
    """The blocks of the device; block 0 is the null block, which no request ever holds."""

    def __init__(self, state: LedgerData) -> None:
        self._blocks = state.blocks
        self._jobs = state.jobs
        self.states = memoryview(state.blocks.state).toreadonly()
        """The state of every block, as the index of the state in the machine, for bulk reads; a live view."""
        self.epochs = memoryview(state.blocks.epoch).toreadonly()
        """The epoch of every block; a live view."""
        self.groups = memoryview(state.blocks.group).toreadonly()
        """The group of every block; a live view."""

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def free(self) -> int:
        """The number of blocks that can be handed out without a wait."""
        return self._blocks.free

    def at(self, block: int) -> Block:
        """The state of a block."""
        return _BLOCKS[self._blocks.state[block]]

    def life(self, block: int) -> int:
        """The current life of a block."""
        return self._blocks.epoch[block] << EPOCH_SHIFT | block

    def is_current(self, life: int) -> bool:
        """Whether a life is still current."""
        return self._blocks.epoch[life & ID_MASK] == life >> EPOCH_SHIFT

    def of(self, life: int) -> Block | None:
        """The state of the block of a life; None if the life is over."""
        block = life & ID_MASK
        return _BLOCKS[self._blocks.state[block]] if self._blocks.epoch[block] == life >> EPOCH_SHIFT else None

    def code_of(self, life: int) -> int | None:
        """`of`, as the index of the state in the machine; faster for many single queries."""
        block = life & ID_MASK
        return self._blocks.state[block] if self._blocks.epoch[block] == life >> EPOCH_SHIFT else None

    def among(self, lives: Lives, states: frozenset[Block]) -> list[bool]:
        """For each life, whether it is current and its block is in one of these states."""
        wanted, blocks = _flags(states), self._blocks
        if type(lives) is list and len(lives) < BULK:
            state, epoch = blocks.state, blocks.epoch
            return [epoch[life & ID_MASK] == life >> EPOCH_SHIFT and wanted[state[life & ID_MASK]] == 1 for life in lives]
        known = np.asarray(lives, dtype=np.int64)
        there = np.frombuffer(blocks.column.view[known & ID_MASK].tobytes().translate(wanted), dtype=np.bool_)
        found: list[bool] = (there & blocks.fresh(known)).tolist()
        return found

    def holds(self, block: int, group: int, key: bytes) -> bool:
        """Whether a block has final content of this group and key."""
        blocks = self._blocks
        return blocks.key[block] == key and blocks.group[block] == group and _BLOCKS[blocks.state[block]] in KEYED

    def refs(self, block: int) -> int:
        """The number of block tables that hold it."""
        return self._blocks.refs[block]

    def pins(self, block: int) -> int:
        """The number of jobs that may touch it."""
        return self._blocks.pins[block]

    def writes(self, block: int) -> int:
        """The number of loads that may write it."""
        return self._blocks.writes[block]

    def overdue(self, block: int) -> int:
        """The number of jobs past their deadline that may touch it."""
        return self._blocks.overdue[block]

    def group(self, block: int) -> int:
        """The group that it was last handed out for."""
        return self._blocks.group[block]

    def key(self, block: int) -> bytes | None:
        """The key of its content; None if it has none."""
        return self._blocks.key[block]

    def job(self, block: int) -> int:
        """The number of the store that reads its current life; 0 for none."""
        row = self._blocks.job[block]
        return self._jobs.rows[row].number if row else 0

    def find(self, group: int, key: bytes) -> int | None:
        """The life that holds the content of a key; None if there is none."""
        block = self._blocks.index[group].get(key)
        return None if block is None else self._blocks.epoch[block] << EPOCH_SHIFT | block

    def named(self) -> Iterator[tuple[int, bytes, int]]:
        """All content that can be hit: group, key, block."""
        for group, index in enumerate(self._blocks.index):
            for key, block in index.items():
                yield group, key, block

    def next_free(self, count: int) -> list[int]:
        """The next blocks to be handed out, at most *count*."""
        return listed(self._blocks.queue.peek(count))

    def free_order(self) -> list[int]:
        """All free blocks, in the order in which they will be handed out."""
        return self._blocks.free_order()

    def count_held(self) -> int:
        """The number of blocks that a request holds."""
        return int(np.count_nonzero(self._blocks.refs_view))

    def count_busy(self) -> int:
        """The number of blocks that are not free, or are held, or may still be touched by a copy."""
        blocks = self._blocks
        rests = marked(blocks.column, _FREE)
        return int(np.count_nonzero(~rests | (blocks.refs_view > 0) | (blocks.pins_view > 0)))

    def count(self) -> dict[Block, int]:
        """The number of blocks in each state; the null block counts as FREED."""
        counts = np.bincount(self._blocks.column.view, minlength=len(_BLOCKS)).tolist()
        return dict(zip(_BLOCKS, counts, strict=True))

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """How often each row of the table was taken."""
        return self._blocks.column.row_counts()


class SlotsView:
    """The slots of the lower tier."""

    def __init__(self, state: LedgerData) -> None:
        self._slots = state.slots
        self._journal = state.journal
        self.states = memoryview(state.slots.state).toreadonly()
        """The state of every slot, as the index of the state in the machine, for bulk reads; a live view."""

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def free(self) -> int:
        """The number of EMPTY slots."""
        return self._slots.free

    def at(self, slot: int) -> Slot:
        """The state of a slot."""
        return _SLOTS[self._slots.state[slot]]

    def is_ready(self, slot: int) -> bool:
        """Whether its content can be read."""
        return self._slots.state[slot] == _READY

    def can_evict(self, slot: int) -> bool:
        """Whether it can be evicted now: it is READY and not pinned."""
        return self._slots.state[slot] == _READY and not self._slots.pins[slot]

    def pins(self, slot: int) -> int:
        """The number of loads and lookups that pin it."""
        return self._slots.pins[slot]

    def group(self, slot: int) -> int:
        """The group of its content, or of its last content."""
        return self._slots.group[slot]

    def key(self, slot: int) -> bytes | None:
        """The key of its content; None if it has none."""
        return self._slots.key[slot]

    def find(self, group: int, key: bytes) -> int | None:
        """The slot that has the content of a key, or that a store is writing it to; None if there is none."""
        return self._slots.index[group].get(key)

    def found(self, group: int, keys: Iterable[bytes]) -> list[int]:
        """`find` of many keys: the slots of those whose content is there, or on its way."""
        slots = map(self._slots.index[group].get, keys)
        return [slot for slot in slots if slot is not None]

    def find_ready(self, group: int, key: bytes) -> int | None:
        """The READY slot with the content of a key; None if there is none."""
        slot = self._slots.index[group].get(key)
        return slot if slot is not None and self._slots.state[slot] == _READY else None

    def any_ready(self, names: Iterable[tuple[int, bytes]]) -> bool:
        """Whether any of these contents, given by group and key, can be read now."""
        index, state = self._slots.index, self._slots.state
        slots = [slot for group, key in names if (slot := index[group].get(key)) is not None]
        return _READY in [state[slot] for slot in slots]

    def ready_among(self, group: int, keys: Set[bytes]) -> set[bytes]:
        """The keys among these whose content can be read now."""
        index, state = self._slots.index[group], self._slots.state
        return {key for key in keys & index.keys() if state[index[key]] == _READY}

    def named(self) -> Iterator[tuple[int, bytes, int]]:
        """All content with a key, READY or being written: group, key, slot."""
        for group, index in enumerate(self._slots.index):
            for key, slot in index.items():
                yield group, key, slot

    def next_empty(self, count: int) -> list[int]:
        """Up to *count* empty slots, the most recently emptied first."""
        return self._slots.peek_empty(count)

    def count(self) -> dict[Slot, int]:
        """The number of slots in each state."""
        counts = np.bincount(self._slots.column.view, minlength=len(_SLOTS)).tolist()
        return dict(zip(_SLOTS, counts, strict=True))

    def where(self, state: Slot) -> list[int]:
        """The slots in a state."""
        found: list[int] = self._slots.column.where(state).tolist()
        return found

    def count_busy(self) -> int:
        """The number of slots that are neither EMPTY nor READY, or are pinned."""
        rests = marked(self._slots.column, _RESTS)
        return int(np.count_nonzero(~rests | (self._slots.pins_view > 0)))

    def any_evictable(self) -> bool:
        """Whether a slot can be evicted now."""
        return bool(((self._slots.column.view == _READY) & (self._slots.pins_view == 0)).any())

    def count_pinned(self) -> int:
        """The number of READY slots that are pinned."""
        return int(np.count_nonzero((self._slots.column.view == _READY) & (self._slots.pins_view > 0)))

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """How often each row of the table was taken."""
        return self._slots.column.row_counts()

    def watch(self, watcher: SlotWatcher) -> None:
        """Call ``watcher(stored, slots)`` after every call in which content of slots became readable, or is gone.

        It is called once for each such change, in order; what the slots hold may have changed again by then. As a hook it
        cannot call the ledger, and an error in it changes nothing (`Ledger.hook_errors`).
        """
        edge.function(watcher, "watcher")
        self._journal.watch(watcher)

    def note(self, listener: SlotWatcher) -> None:
        """The same for code of this package: it is called while the ledger writes, and only takes notes."""
        self._slots.listeners.append(listener)


class JobView(Protocol):
    """A read-only view of one job."""

    @property
    def number(self) -> int:
        """Counter of the jobs of one incarnation, from 1."""

    @property
    def direction(self) -> Direction:
        """The direction in which it copies."""

    @property
    def owner(self) -> str | None:
        """The request that it is for; None for a store that belongs to no request."""

    @property
    def sharers(self) -> tuple[str, ...]:
        """Further requests that it is for."""

    @property
    def lives(self) -> Lives:
        """The lives that it reads or fills on the device."""

    @property
    def ids(self) -> Ids:
        """The blocks of these lives."""

    @property
    def slots(self) -> Ids:
        """The slots at its other end."""

    @property
    def places(self) -> Ids:
        """The host place of each block."""

    @property
    def keys(self) -> Sequence[bytes]:
        """The key of each slot."""

    @property
    def slot_groups(self) -> bytes:
        """The group of each slot."""

    @property
    def space(self) -> bytes:
        """What separates content in the store below (`TierTransfer.space`)."""

    @property
    def groups(self) -> bytes:
        """The group of each block."""

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Blocks of each group."""

    @property
    def row(self) -> int:
        """The row of the job, which is the place in its transitions."""

    @property
    def reported(self) -> int:
        """A bit for each worker that has reported."""

    @property
    def expired(self) -> bool:
        """Whether its deadline has passed."""

    @property
    def failed(self) -> bool:
        """Whether a worker has reported a failure."""

    @property
    def missing(self) -> frozenset[int]:
        """Of a promotion or demotion: the slots whose content a worker did not move."""

    @property
    def deadline(self) -> float | None:
        """When it expires; None until the deadline has started."""

    def contents(self) -> Iterator[tuple[int, Ids, Sequence[bytes]]]:
        """Each group of the job, with its slots and their keys."""


class JobsView:
    """The jobs that are not over, and the latest that are, by number."""

    def __init__(self, state: LedgerData) -> None:
        self._jobs = state.jobs
        self._state = state

    @property
    def verdicts(self) -> int:
        """How often a job became terminal or expired. While it is unchanged, polling for a copy can be skipped."""
        return self._state.verdicts

    @property
    def live(self) -> int:
        """The number of jobs that are not over."""
        return self._jobs.live

    @property
    def room(self) -> int:
        """The number of jobs that can be added now."""
        return self._jobs.room

    def check_room(self) -> None:
        """Raise `CapacityError` if there is no room for another job."""
        self._jobs.check_room()

    @property
    def last_number(self) -> int:
        """The number of the latest job."""
        return self._jobs.last_number

    @property
    def num_planned(self) -> int:
        """The number of jobs that are planned and not submitted."""
        return len(self._jobs.planned)

    def alive(self) -> Sequence[JobView]:
        """The jobs that are not over, oldest first."""
        return self._jobs.alive()

    def known(self) -> Sequence[JobView]:
        """All jobs that are still known."""
        return list(self._jobs.by_number.values())

    def get(self, number: int) -> JobView | None:
        """A job; None if it never existed, or ended too long ago to be known."""
        return self._jobs.by_number.get(number)

    def transfer(self, number: int) -> Transfer:
        """What a job moves between device and host, for an engine that launches copies itself.

        `MisuseError` for a job that is no longer known, or that moves slots to or from the store below (see `Plan`).
        """
        job = self._jobs.by_number.get(number)
        if job is None:
            raise MisuseError(f"job {number}: it is not known (it was never made, or has been over for long)")
        if not job.direction.on_device:
            raise MisuseError(f"job {number}: a {job.direction.name} touches no block (Plan.promotes and Plan.demotes have it)")
        blocks, places = (np.asarray(each, dtype=np.int64) for each in (job.ids, job.places))
        source, target = (blocks, places) if job.direction is Direction.STORE else (places, blocks)
        return Transfer(self._state.id_of(job), job.direction, source, target, job.group_sizes)

    def state(self, number: int) -> Job | None:
        """The state of a job; None if it is not known."""
        job = self._jobs.by_number.get(number)
        return None if job is None else _JOBS[self._jobs.column.state[job.row]]

    def is_out(self, number: int) -> bool:
        """Whether a job is not over."""
        return number in self._jobs.out

    def is_planned(self, number: int) -> bool:
        """Whether a job is planned and not submitted."""
        return number in self._jobs.planned

    def serve(self, request: str) -> bool:
        """Whether a job that is not over is for this request."""
        return request in self._jobs.owned

    def serving(self, request: str) -> Sequence[JobView]:
        """The jobs that are not over and for this request, oldest first."""
        return list(self._jobs.owned.get(request, {}).values())

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """How often each row of the table was taken."""
        return self._jobs.column.row_counts()


class RequestsView:
    """The requests that are not over, by name. Raises `MisuseError` for others."""

    def __init__(self, state: LedgerData) -> None:
        self._requests = state.requests
        self._column = state.request_column
        self.states = memoryview(state.request_column.state).toreadonly()
        """The state in every row (`row`), whether a request uses it or not; a live view."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, name: object) -> bool:
        return name in self._requests

    def __iter__(self) -> Iterator[str]:
        return iter(self._requests)

    def row(self, name: str) -> int:
        """The row of a request, which is the place in its transitions; it is reused once the request is over."""
        try:
            return self._requests[name].row
        except KeyError:
            raise edge.unknown(name) from None

    def at(self, name: str) -> Request:
        """The state of a request."""
        try:
            return _REQUESTS[self._column.state[self._requests[name].row]]
        except KeyError:
            raise edge.unknown(name) from None

    def times_left(self, state: Request) -> int:
        """How often a request has left this state, since the ledger was made."""
        return sum([count for row, count in self.row_counts() if row.source is state])

    def rows(self) -> dict[int, str]:
        """The request in each row."""
        return {each.row: name for name, each in self._requests.items()}

    def load(self, name: str) -> int:
        """The number of the load that a request waits for; 0 for none."""
        try:
            return self._requests[name].load
        except KeyError:
            raise edge.unknown(name) from None

    def size(self, name: str, group: int) -> int:
        """The length of the block table of one group, nulls included."""
        try:
            return len(self._requests[name].tables[group])
        except KeyError:
            raise edge.unknown(name) from None

    def held(self, name: str, group: int, start: int = 0, stop: int | None = None) -> list[int]:
        """Some lives of the block table of one group; `NULL` for positions outside the window."""
        try:
            return self._requests[name].tables[group][start:stop].tolist()
        except KeyError:
            raise edge.unknown(name) from None

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """How often each row of the table was taken."""
        return self._column.row_counts()


View: TypeAlias = BlocksView | SlotsView | JobsView | RequestsView
"""The view of one machine."""


def prefix_of(find: Callable[[int, bytes], int | None], keys: Iterable[bytes], group: int) -> list[int]:
    """Where the longest prefix of *keys* is, each found by group and key."""
    found: list[int] = []
    for key in keys:
        if (place := find(group, key)) is None:
            break
        found.append(place)
    return found


def statistics_of(state: LedgerData) -> Statistics:
    """Statistics of the ledger at this moment."""
    blocks = {at.name: count for at, count in state.blocks.column.count().items()}
    blocks[Block.FREED.name] -= 1  # the null block does not count
    idle = state.blocks.refs_view == 0
    soon = int(np.count_nonzero(idle & marked(state.blocks.column, _SOURCES))) + blocks[Block.STALE.name]
    return Statistics(
        blocks=blocks,
        slots={at.name: count for at, count in state.slots.column.count().items()},
        jobs_alive=state.jobs.live,
        requests=len(state.requests),
        free=state.blocks.free,
        freeing_soon=soon,
        quarantined=blocks[Block.QUARANTINED.name],
        late=state.tally["late"],
        duplicate=state.tally["duplicate"],
        unknown=state.tally["unknown"],
        stale=state.tally["stale"],
        violations=state.tally["violations"],
        hook_errors=state.journal.errors.count,
    )
