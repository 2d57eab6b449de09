"""Blocks and slots as columns: their states, their counts, the names of their content, and the order in which they are free.

Rules of this file:

* `ask` reads, `apply` writes. A `Step` carries one answer from the one to the other, so that a verb of the ledger can ask
  everything before it writes anything.
* The type of the ids chooses the path: a list is walked, an array is gathered. Both paths write the same bytes.
* A place knows no job and no request; it only counts them.

A *life* is one integer: the epoch in the upper 32 bits, the block id in the lower ones. A reference is stale exactly if its
epoch is not the block's own. The null block has id 0; as an entry of a table, 0 stands for "outside the window".
"""

from __future__ import annotations

import enum
import operator
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from attrs import define
from numpy.typing import NDArray

from blocklife.errors import CapacityError, DefinitionError, InvariantError, MisuseError
from blocklife.lifecycle import REFUSED, Column, Event, Rows, Table
from blocklife.states import Block, BlockLife, Slot, SlotLife, Trait, ends_life, states_with

Ids: TypeAlias = list[int] | NDArray[np.int64]
Lives: TypeAlias = list[int] | NDArray[np.int64]

EPOCH_SHIFT = 32
ID_MASK = (1 << EPOCH_SHIFT) - 1
EPOCH_MASK = (1 << 31) - 1
"""An epoch has 31 bits, so that a life is a positive 64-bit integer; after 2^31 lives of one block it starts again."""
NULL = 0
"""The null block, and the entry of a table that stands for it."""

BULK = 48
"""From this many ids on a batch is handled as an array. Arrays win from 40 to 60 ids on (`make bench`)."""


def batch(values: Iterable[int] | NDArray[np.int64]) -> Ids:
    """A copy in the container that suits the number of values: a list for few, an array for many. Refuses fractions."""
    found = values if isinstance(values, np.ndarray) else list(values)
    if isinstance(found, list) and len(found) < BULK:
        return [operator.index(value) for value in found]
    numbers = np.array(found)  # a copy
    if len(numbers) and (numbers.dtype.kind not in "iu" or numbers.ndim != 1):
        raise MisuseError(f"places and lives are whole numbers in one row, not {numbers.dtype} with {numbers.ndim} dimensions")
    return numbers.tolist() if len(numbers) < BULK else numbers.astype(np.int64, copy=False)


def packed(values: list[int]) -> Ids:
    """Whole numbers in the container that suits how many there are; a list that is short is taken as it is."""
    return values if len(values) < BULK else np.array(values, dtype=np.int64)


def joined(parts: Sequence[Ids]) -> Ids:
    """Several batches, one behind the other, in the container that suits their number."""
    if len(parts) == 1:
        return parts[0].copy()
    values: list[int] = []
    for part in parts:
        if type(part) is not list:
            return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        values += part
    return packed(values)


def listed(values: Ids) -> list[int]:
    """The values as a list of plain integers."""
    return values if type(values) is list else np.asarray(values).tolist()


def ids_of(lives: Lives) -> Ids:
    """The block id of each life."""
    if type(lives) is list:
        return [life & ID_MASK for life in lives]
    return np.asarray(lives) & ID_MASK


def select(values: Ids, mask: Sequence[bool] | NDArray[np.bool_]) -> Ids:
    """The values whose mask is set, in the container that suits their number."""
    if type(values) is list:
        return [value for value, keep in zip(values, mask, strict=True) if keep]
    return batch(np.asarray(values)[np.asarray(mask)])


def every(mask: list[bool] | NDArray[np.bool_]) -> bool:
    """Whether all of a mask is set."""
    # bytes are searched faster than a short array is reduced
    return all(mask) if type(mask) is list else b"\0" not in np.asarray(mask).tobytes()


def extend(table: array[int], lives: Lives) -> None:
    """Append lives to a table."""
    if type(lives) is list:
        table.extend(lives)
    else:
        table.frombytes(np.ascontiguousarray(lives, dtype=np.int64).tobytes())


def entries(table: array[int], positions: NDArray[np.int64] | slice) -> NDArray[np.int64]:
    """Some entries of a table, as a copy. No view leaves this function: a table that is looked at cannot grow."""
    return np.array(np.frombuffer(table, dtype=np.int64)[positions])


def blank(table: array[int], positions: NDArray[np.int64]) -> None:
    """Put the null block at some positions of a table."""
    np.frombuffer(table, dtype=np.int64)[positions] = NULL


class Situation(enum.IntFlag):
    """What guards can ask about one place, as bits: each count is seen only as zero or more."""

    REFS = 1
    PINS = 2
    WRITES = 4
    OVERDUE = 8
    FENCE = 16
    OWN = 32
    OK = 64


_PINS, _OWN = 2, 32
"""As plain numbers: an operation on a flag costs as much as asking ten places."""
_COUNTS = 4
"""Bits of a `Situation` that are counts of the place; the other bits hold for all places of a batch, or come with it."""


_MOST_STATES = 256 >> _COUNTS
"""A state and the counts are one byte, so that many places are translated at once."""


def _facts_by_situation(event: Event) -> bytes:
    """Evaluate the guards of *event* once for every situation."""
    every = np.arange(1 << len(Situation))
    bits = {bit.name.lower(): int(bit) for bit in Situation if bit.name}
    payload = {name: (every & bits[name]) != 0 for name in event.parameters}
    # below FENCE the bits stand for counts
    facts = event.facts({name: on.view(np.uint8) if bits[name] < Situation.FENCE else on for name, on in payload.items()})
    return np.broadcast_to(np.asarray(facts, dtype=np.uint8), every.shape).tobytes()


class Rule:
    """One event of blocks or slots, ready to be asked at many places.

    ``tables`` gives the row by what is the same for all places (``situation >> 4``), and then by ``state << 4`` and the
    counts of the place; ``looks`` has the bits of the counts that the guards ask about. `load` takes what `rows_of` makes
    of the event's own look-up.
    """

    __slots__ = ("_facts", "_padded", "event", "looks", "name", "tables")

    def __init__(self, event: Event) -> None:
        if (states := len(event.table.states)) > _MOST_STATES:
            raise DefinitionError(
                f"{event.table.name}: {states} states and four counts do not fit one byte (at most {_MOST_STATES})"
            )
        self.event = event
        self.name = event.name
        self._facts = _facts_by_situation(event)
        self.looks = sum(1 << bit for bit, name in enumerate(("refs", "pins", "writes", "overdue")) if name in event.parameters)
        self.tables: tuple[bytes, ...] = ()
        self._padded: tuple[bytes, ...] = ()
        self.load(self.rows_of(event.lut))

    def rows_of(self, lut: bytes) -> tuple[bytes, ...]:
        """The tables that follow from a look-up of the event."""
        width, states = len(self.event.guards), range(len(self.event.table.states))
        counts = range(1 << _COUNTS)
        return tuple(
            bytes(lut[state << width | self._facts[constant << _COUNTS | each]] for state in states for each in counts)
            for constant in range(1 << len(Situation) - _COUNTS)
        )

    def load(self, tables: tuple[bytes, ...]) -> None:
        """Answer with these tables from now on."""
        self.tables = tables
        self._padded = tuple(bytes(table).ljust(256, b"\0") for table in tables)

    def look_up(self, at: NDArray[np.uint8], constant: int) -> NDArray[np.uint8]:
        """The row of each place, from its state and counts; `REFUSED` where there is none."""
        # bytes are translated faster than an array is indexed
        return np.frombuffer(at.tobytes().translate(self._padded[constant >> _COUNTS]), dtype=np.uint8)


BLOCK_RULES: Mapping[str, Rule] = {name: Rule(event) for name, event in BlockLife.table.events.items()}
SLOT_RULES: Mapping[str, Rule] = {name: Rule(event) for name, event in SlotLife.table.events.items()}
RULES: Mapping[str, Mapping[str, Rule]] = {"block": BLOCK_RULES, "slot": SLOT_RULES}

# What a row means beyond its states, as bits by row index; derived from the states alone.
ENDS, ENTERS_FREE, LEAVES_FREE, PUBLISHES, WITHDRAWS = 1, 2, 4, 8, 16
_FREE = states_with(Trait.FREE, Block)
_KEYED_SLOTS = states_with(Trait.KEYED, Slot)


def _meaning(table: Table, ends: Callable[..., bool], free: frozenset[enum.Enum]) -> bytes:
    found = bytearray([0])
    for row in table.rows:
        was, becomes = row.source in free, row.target in free
        readable, stays = row.source is Slot.READY, row.target is Slot.READY
        found.append(
            ENDS * ends(row)
            | ENTERS_FREE * (becomes and not was)
            | LEAVES_FREE * (was and not becomes)
            | PUBLISHES * (stays and not readable)
            | WITHDRAWS * (readable and not stays)
        )
    return bytes(found)


_BLOCK_MEANING = _meaning(BlockLife.table, ends_life, _FREE)
_SLOT_MEANING = _meaning(
    SlotLife.table,
    lambda row: row.source in _KEYED_SLOTS and row.target not in _KEYED_SLOTS,
    states_with(Trait.FREE, Slot),
)


@define(eq=False)
class Step:
    """One event that a batch of places is about to take, with the change of each count."""

    places: Places
    event: Rule
    ids: Ids
    rows: Rows
    refs: int = 0
    pins: int = 0
    writes: int = 0
    overdue: int = 0

    def row_of(self, position: int) -> int:
        """The row that the place at *position* takes."""
        return self.rows if isinstance(self.rows, int) else int(self.rows[position])


_LARGEST = {"B": (1 << 8) - 1, "H": (1 << 16) - 1}
"""The largest count that a column of that type code holds."""


class Places:
    """What blocks and slots have in common.

    Invariant (I4): no count is ever negative; a change that would make it so is an error before anything is written.
    ``machine`` is the name of their lifecycle.
    Invariant: an entry of ``index[group]`` names a place whose key it is, and whose state is one with a name.
    """

    def __init__(self, table: Table, size: int, num_groups: int, meaning: bytes) -> None:
        self.column = Column(table, size)
        self.machine = table.name.removesuffix("Life").lower()
        self.pins = array("B" if table is BlockLife.table else "H", [0]) * size
        self.pins_view: NDArray[np.unsignedinteger] = np.frombuffer(self.pins, dtype=self.pins.typecode)
        self.group = bytearray(size)
        self.group_view = np.frombuffer(self.group, dtype=np.uint8)
        self.key: list[bytes | None] = [None] * size
        self.index: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self.free = 0
        self._meaning = meaning
        self._meaning_view = np.frombuffer(meaning, dtype=np.uint8)
        self._targets = table.targets

    def __len__(self) -> int:
        return len(self.column)

    def apply(self, step: Step) -> list[int]:
        """Write a step. Returns the rows of jobs whose source life ended with it."""
        raise NotImplementedError

    def at(self, place: int) -> enum.Enum:
        """The state of one place."""
        return self.column.at(place)

    def name(self, places: Iterable[int], keys: Iterable[bytes], group: int) -> None:
        """Give content of the places' own group its key. The first with a key keeps the index entry: a twin has no name."""
        index = self.index[group]
        for place, key in zip(places, keys, strict=True):
            self.key[place] = key
            index.setdefault(key, place)

    def name_all(self, places: Ids, keys: Sequence[bytes], groups: bytes) -> None:
        """`name`, and say which group the content of each place is of."""
        own, group_of, indexes = self.key, self.group, self.index
        for place, key, group in zip(listed(places), keys, groups, strict=True):
            own[place] = key
            group_of[place] = group
            indexes[group].setdefault(key, place)

    def forget(self, place: int) -> None:
        """Take the key away from a place."""
        key = self.key[place]
        if key is not None:
            self.key[place] = None
            index = self.index[self.group[place]]
            if index.get(key) == place:
                del index[key]

    def _forget_many(self, places: Iterable[int]) -> None:
        """`forget`, without a call for each."""
        own, group, indexes = self.key, self.group, self.index
        for place in places:
            if (key := own[place]) is not None:
                own[place] = None
                index = indexes[group[place]]
                if index.get(key) == place:
                    del index[key]

    def _effects(self, step: Step) -> tuple[NDArray[np.int64], NDArray[np.uint8]] | None:
        """Places whose row means more than a new state, with that meaning; None where no row does."""
        ids = np.asarray(step.ids)
        if isinstance(step.rows, int):
            found = self._meaning[step.rows]
            return (ids, np.full(len(ids), found, dtype=np.uint8)) if found else None
        effects = self._meaning_view[np.asarray(step.rows)]
        where = effects.nonzero()[0]
        return (ids[where], effects[where]) if len(where) else None

    def _checked(self, event: Rule, ids: Ids, rows: NDArray[np.uint8]) -> Rows:
        """The rows of many places: one number where all took the same; refuses where one has none."""
        raw = rows.tobytes()  # bytes are searched faster than a short array is reduced
        if REFUSED in raw:
            self.column.refuse(event.event, int(ids[raw.index(REFUSED)]))
        return raw[0] if raw and raw.count(raw[0]) == len(raw) else rows

    @staticmethod
    def _change(column: array[int], view: NDArray[np.unsignedinteger], ids: Ids, delta: int) -> None:
        if type(ids) is list:
            for place in ids:
                column[place] += delta
        elif delta > 0:
            view[ids] += view.dtype.type(delta)
        else:
            view[ids] -= view.dtype.type(-delta)

    def _check_count(self, what: str, column: array[int], view: NDArray[np.unsignedinteger], ids: Ids, delta: int) -> None:
        """Refuse a change that leaves the range of its column, before anything is written."""
        limit = -delta if delta < 0 else _LARGEST[column.typecode] - delta
        if type(ids) is list:
            wrong = [place for place in ids if (column[place] < limit if delta < 0 else column[place] > limit)]
        else:
            found = view[ids]
            over = found < limit if delta < 0 else found > limit
            wrong = np.asarray(ids)[over].tolist() if b"\1" in over.tobytes() else []
        if wrong:
            if delta < 0:
                raise InvariantError(f"{self.machine} {wrong[0]}: {what} would fall below zero (I4)")
            raise CapacityError(f"{self.machine} {wrong[0]}: more than {limit + delta} {what}; let some of them end first")


class Blocks(Places):
    """The blocks of the device.

    Invariant: ``refs`` counts the tables that hold the current life; it is 0 in every state without a life.
    Invariant: ``job`` names the row of the store whose source the current life is, in the states PLEDGED, PENDING_STORE and
    IN_FLIGHT; in all others it is 0, which no job has.
    Invariant: ``free`` is the number of blocks that are FREED or CACHED, the null block apart.
    """

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        super().__init__(BlockLife.table, num_blocks, num_groups, _BLOCK_MEANING)
        self.epoch = array("I", [0]) * num_blocks
        self.epoch_view = np.frombuffer(self.epoch, dtype=np.uint32)
        self.refs = array("H", [0]) * num_blocks
        self.refs_view = np.frombuffer(self.refs, dtype=np.uint16)
        self.overdue = array("B", [0]) * num_blocks
        self.overdue_view = np.frombuffer(self.overdue, dtype=np.uint8)
        self.writes = array("B", [0]) * num_blocks
        self.writes_view = np.frombuffer(self.writes, dtype=np.uint8)
        self.job = array("i", [0]) * num_blocks
        self.job_view = np.frombuffer(self.job, dtype=np.int32)
        self.queue = FreeQueue(self.column)
        self.queue.push(batch(np.arange(1, num_blocks)))
        self.free = num_blocks - 1

    def lives(self, ids: Ids) -> Lives:
        """The current life of each block."""
        if type(ids) is list:
            epoch = self.epoch
            return [epoch[place] << EPOCH_SHIFT | place for place in ids]
        return self.epoch_view[ids].astype(np.int64) << EPOCH_SHIFT | ids

    def fresh(self, lives: Lives) -> list[bool] | NDArray[np.bool_]:
        """Which references still name the current life of their block: the one comparison that staleness is."""
        if type(lives) is list:
            epoch = self.epoch
            return [epoch[life & ID_MASK] == life >> EPOCH_SHIFT for life in lives]
        known = np.asarray(lives)
        fresh: NDArray[np.bool_] = self.epoch_view[known & ID_MASK] == known >> EPOCH_SHIFT
        return fresh

    def ask(
        self,
        event: Rule,
        ids: Ids,
        *,
        refs: int = 0,
        pins: int = 0,
        writes: int = 0,
        overdue: int = 0,
        constant: int = 0,
        own: Sequence[bool] | NDArray[np.bool_] | None = None,
    ) -> Step:
        """Find the rows; the counts are given as changes and are judged as they will be afterwards.

        ``constant`` holds what is the same for all places (`Situation` bits), ``own`` what differs.
        """
        if refs:
            self._check_count("refs", self.refs, self.refs_view, ids, refs)
        if pins:
            self._check_count("pins", self.pins, self.pins_view, ids, pins)
        if writes:
            self._check_count("writes", self.writes, self.writes_view, ids, writes)
        if overdue:
            self._check_count("overdue", self.overdue, self.overdue_view, ids, overdue)
        table, looks = event.tables[constant >> _COUNTS], event.looks
        if type(ids) is list:
            state = self.column.state
            if not looks and own is None:
                rows = [table[state[place] << _COUNTS] for place in ids]
            else:
                ours = event.tables[(constant | _OWN) >> _COUNTS] if own is not None else table
                all_refs, all_pins, all_writes, all_overdue = self.refs, self.pins, self.writes, self.overdue
                rows = []
                for position, place in enumerate(ids):
                    at = state[place] << _COUNTS
                    if looks & 1 and all_refs[place] + refs:
                        at |= 1
                    if looks & 2 and all_pins[place] + pins:
                        at |= 2
                    if looks & 4 and all_writes[place] + writes:
                        at |= 4
                    if looks & 8 and all_overdue[place] + overdue:
                        at |= 8
                    rows.append((ours if own is not None and own[position] else table)[at])
            if REFUSED in rows:
                self.column.refuse(event.event, ids[rows.index(REFUSED)])
            return Step(self, event, ids, rows, refs, pins, writes, overdue)
        bits = self.column.view[ids] << np.uint8(_COUNTS)
        for bit, view, change in (
            (0, self.refs_view, refs),
            (1, self.pins_view, pins),
            (2, self.writes_view, writes),
            (3, self.overdue_view, overdue),
        ):
            if looks >> bit & 1:
                bits |= ((view[ids] > -change) if change <= 0 else np.True_) << np.uint8(bit)
        found = event.look_up(bits, constant)
        if own is not None:
            found = np.where(np.asarray(own, dtype=np.bool_), event.look_up(bits, constant | _OWN), found)
        return Step(self, event, ids, self._checked(event, ids, found), refs, pins, writes, overdue)

    def apply(self, step: Step) -> list[int]:
        """Write a step. Returns the rows of jobs whose source life ended with it."""
        ids = step.ids
        orphaned: list[int] = []
        # refs belong to the life: those of an ended one are gone, and the change below must find what it takes away
        left = -step.refs if step.refs < 0 else 0
        if type(ids) is list and type(step.rows) is list:
            self._take_rows(ids, step.rows, left, orphaned)
            for column, change in (
                (self.refs, step.refs),
                (self.pins, step.pins),
                (self.writes, step.writes),
                (self.overdue, step.overdue),
            ):
                if change:
                    for place in ids:
                        column[place] += change
            return orphaned
        self.column.commit(ids, step.rows)
        self._take_effects(step, left, orphaned)
        if step.refs:
            self._change(self.refs, self.refs_view, ids, step.refs)
        if step.pins:
            self._change(self.pins, self.pins_view, ids, step.pins)
        if step.writes:
            self._change(self.writes, self.writes_view, ids, step.writes)
        if step.overdue:
            self._change(self.overdue, self.overdue_view, ids, step.overdue)
        return orphaned

    def _take_rows(self, ids: list[int], rows: list[int], left: int, orphaned: list[int]) -> None:
        """Write the new states of few blocks, and what their rows mean beyond them."""
        state, targets, meanings, taken = self.column.state, self._targets, self._meaning, self.column.taken
        first = rows[0]
        if not meanings[first] and rows.count(first) == len(rows):
            target = targets[first]
            for place in ids:
                state[place] = target
            taken[first] += len(rows)
            return
        entering: list[int] = []
        for place, row in zip(ids, rows, strict=True):
            state[place] = targets[row]
            taken[row] += 1
            if meaning := meanings[row]:
                if meaning & ENDS:
                    self._end_life(place, left, orphaned)
                if meaning & ENTERS_FREE:
                    entering.append(place)
                elif meaning & LEAVES_FREE:
                    self.free -= 1
        if entering:
            self.free += len(entering)
            self.queue.push(entering)

    def _take_effects(self, step: Step, left: int, orphaned: list[int]) -> None:
        """What the rows of many blocks mean beyond their new states."""
        if (effects := self._effects(step)) is None:
            return
        moved, bits = effects
        self._end_lives(moved[bits & ENDS != 0], left, orphaned)
        coming = moved[bits & ENTERS_FREE != 0]
        self.free += len(coming) - int(np.count_nonzero(bits & LEAVES_FREE))
        self.queue.push(coming)

    def _end_life(self, place: int, refs: int, orphaned: list[int]) -> None:
        self.epoch[place] = (self.epoch[place] + 1) & EPOCH_MASK
        self.refs[place] = refs
        if self.key[place] is not None:
            self.forget(place)
        if self.job[place]:
            orphaned.append(self.job[place])
            self.job[place] = 0

    def _end_lives(self, places: NDArray[np.int64], refs: int, orphaned: list[int]) -> None:
        self.epoch_view[places] = (self.epoch_view[places] + np.uint32(1)) & np.uint32(EPOCH_MASK)
        self.refs_view[places] = refs
        self._forget_many(places.tolist())
        jobs = self.job_view[places]
        if jobs.any():
            orphaned += dict.fromkeys(jobs[jobs != 0].tolist())
            self.job_view[places] = 0

    def name_job(self, ids: Ids, row: int) -> None:
        """Note which store has these lives as its source; 0 for none."""
        if type(ids) is list:
            for place in ids:
                self.job[place] = row
        else:
            self.job_view[ids] = row

    def name_jobs(self, ids: Ids, rows: Sequence[int], cuts: Sequence[int]) -> None:
        """`name_job` for several jobs: the lives of each lie in *ids* from its cut up to the next."""
        for at, row in enumerate(rows):
            self.name_job(ids[cuts[at] : cuts[at + 1]], row)

    def unpin(self, ids: Ids) -> None:
        """Take one pin away where no event goes with it: the life that a planned store wanted is over."""
        self._check_count("pins", self.pins, self.pins_view, ids, -1)
        self._change(self.pins, self.pins_view, ids, -1)

    def lendable(self, among: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of *among* that a fence allows to hand out although a copy reads them: planned stores first."""
        table, state = BlockLife.table, self.column.view[among]
        planned = state == table.index[Block.PENDING_STORE]
        reads = planned | (state == table.index[Block.IN_FLIGHT]) | (state == table.index[Block.STALE])
        lent = reads & (self.refs_view[among] == 0) & (self.writes_view[among] == 0)
        return np.concatenate((among[lent & planned], among[lent & ~planned]))


SlotWatcher: TypeAlias = Callable[[bool, Sequence[int]], None]
"""Hears (stored, slots): their content became readable, or is about to be withdrawn; their keys say which. It must not call the
ledger."""


class Slots(Places):
    """The slots of the lower tier.

    Invariant: a slot has a key exactly in the states WRITING and READY.
    Invariant: ``free`` is the number of EMPTY slots, and ``_empty`` names each of them once, the most recently emptied last.
    Invariant: of the slots with one key at most one is READY, and then the index names that one; the others are being written.
    """

    def __init__(self, num_slots: int, num_groups: int) -> None:
        super().__init__(SlotLife.table, num_slots, num_groups, _SLOT_MEANING)
        self.free = num_slots
        # Not a dict: whoever takes from its end leaves holes there, and each walk from the end passes over all of them.
        self._empty: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_slots - 1, -1, -1))
        self.on_change: SlotWatcher | None = None

    def ask(self, event: Rule, ids: Ids, *, pins: int = 0, constant: int = 0, unwanted: frozenset[int] = frozenset()) -> Step:
        """Find the rows; ``pins`` is a change, judged as it will be afterwards. For *unwanted* slots nothing is OK."""
        if pins:
            self._check_count("pins", self.pins, self.pins_view, ids, pins)
        table, looks = event.tables[constant >> _COUNTS], event.looks & _PINS
        if type(ids) is list:
            state = self.column.state
            if not looks and not unwanted:
                rows = [table[state[place] << _COUNTS] for place in ids]
            else:
                refused, all_pins = event.tables[0], self.pins
                rows = [
                    (refused if place in unwanted else table)[
                        state[place] << _COUNTS | (looks if all_pins[place] + pins > 0 else 0)
                    ]
                    for place in ids
                ]
            if REFUSED in rows:
                self.column.refuse(event.event, ids[rows.index(REFUSED)])
            return Step(self, event, ids, rows, pins=pins)
        bits = self.column.view[ids] << np.uint8(_COUNTS)
        if looks:
            bits |= ((self.pins_view[ids] > -pins) if pins <= 0 else np.True_) << np.uint8(1)
        found = event.look_up(bits, constant)
        if unwanted:
            found = np.where(np.isin(np.asarray(ids), list(unwanted)), event.look_up(bits, 0), found)
        return Step(self, event, ids, self._checked(event, ids, found), pins=pins)

    def apply(self, step: Step) -> list[int]:
        """Write a step. No job loses its source with a slot."""
        places, rows = listed(step.ids), step.rows
        if type(rows) is list and type(step.ids) is list:
            state, targets, taken = self.column.state, self._targets, self.column.taken
            for place, row in zip(places, rows, strict=True):
                state[place] = targets[row]
                taken[row] += 1
            first = rows[0]
            if rows.count(first) == len(rows):
                rows = first
        else:
            self.column.commit(step.ids, rows)
        if isinstance(rows, int):
            if meaning := self._meaning[rows]:
                self._take_effect(places, meaning)
        else:
            meanings = [self._meaning[row] for row in bytes(rows)]
            for meaning, run in groupby(zip(meanings, places, strict=True), itemgetter(0)):
                self._take_effect([place for _, place in run], meaning)
        self.free = len(self._empty)
        if step.pins:
            self._change(self.pins, self.pins_view, step.ids, step.pins)
        return []

    def _take_effect(self, places: list[int], meaning: int) -> None:
        """What a row means for these places beyond their new state."""
        if meaning & (PUBLISHES | WITHDRAWS):
            self._publish(places, stored=meaning & PUBLISHES != 0)
        if meaning & ENDS:
            self._forget_many(places)
        empty = self._empty
        if meaning & ENTERS_FREE:
            for place in places:
                empty[place] = None
        elif meaning & LEAVES_FREE:
            for place in places:
                del empty[place]

    def _publish(self, places: list[int], *, stored: bool) -> None:
        """Content of slots can be read from now on, or no longer; of twins, the first to land gets the name."""
        if stored:
            for place in places:
                if (key := self.key[place]) is not None:
                    self.index[self.group[place]][key] = place
        if self.on_change is not None:
            self.on_change(stored, places)

    def unfile(self, ids: Ids) -> None:
        """Content on its way that will not be published: nobody finds it. The key stays until the copy has ended."""
        for place in listed(ids):
            key, index = self.key[place], self.index[self.group[place]]
            if key is not None and index.get(key) == place:
                del index[key]

    def peek_empty(self, count: int) -> list[int]:
        """Up to *count* empty slots, the most recently emptied first; nothing is reserved."""
        return list(islice(reversed(self._empty), count))

    def rebuild(self, empty: Iterable[int]) -> None:
        """Take over the order of the empty slots, after a restore."""
        self._empty = OrderedDict.fromkeys(reversed(list(empty)))
        self.free = len(self._empty)


class FreeQueue:
    """The order in which free blocks are handed out: those without content first, then the least recently released.

    A ring with lazy removal: leaving the queue costs nothing, because an entry counts only while its block is free and the
    entry is the block's latest. Both ends can be pushed, both in bulk.

    Invariant: every free block has exactly one entry that counts. Initially: none, and the ledger pushes every block.
    """

    def __init__(self, column: Column) -> None:
        self._column = column
        self._capacity = len(column) + len(column) // 5 + 8
        self._ring = array("i", [0]) * self._capacity
        self._ring_view = np.frombuffer(self._ring, dtype=np.int32)
        self._entry = array("I", [0]) * len(column)
        self._entry_view = np.frombuffer(self._entry, dtype=np.uint32)
        self._head = 0
        self._tail = 0
        index = BlockLife.table.index
        self._freed, self._cached = index[Block.FREED], index[Block.CACHED]

    def push(self, ids: Ids) -> None:
        """Enter blocks that have just become free, in order."""
        if len(ids) == 0:
            return
        if self._tail - self._head + len(ids) > self._capacity:
            self._compact(ids)
        if type(ids) is list:
            freed: Ids = [place for place in ids if self._column.state[place] == self._freed]
            cached: Ids = ids if not freed else [place for place in ids if self._column.state[place] != self._freed]
        else:
            is_freed = self._column.view[ids] == self._freed
            freed, cached = np.asarray(ids)[is_freed], np.asarray(ids)[~is_freed]
        self._write(self._tail, cached)
        self._tail += len(cached)
        self._head -= len(freed)
        self._write(self._head, freed)

    def push_front(self, ids: Ids) -> None:
        """Move free blocks to the front: they are handed out next, the first of them first."""
        if len(ids) == 0:
            return
        if self._tail - self._head + len(ids) > self._capacity:
            self._compact(ids)
        self._head -= len(ids)
        self._write(self._head, ids)

    def _write(self, start: int, ids: Ids) -> None:
        if type(ids) is list:
            for position, place in enumerate(ids, start):
                self._ring[position % self._capacity] = place
                self._entry[place] = position & ID_MASK
            return
        first = start % self._capacity
        fits = min(len(ids), self._capacity - first)
        self._ring_view[first : first + fits] = ids[:fits]
        self._ring_view[: len(ids) - fits] = ids[fits:]
        self._entry_view[ids] = np.arange(start, start + len(ids)) & ID_MASK

    def _compact(self, coming: Ids) -> None:
        """Drop all entries that do not count; older ones of those about to be pushed must not count again."""
        self._entry_view[coming] = (self._head - 1) & ID_MASK  # a position that is not in the ring
        kept = self._scan(self._head, self._tail)
        self._head, self._tail = 0, len(kept)
        self._write(0, kept)

    def order(self) -> list[int]:
        """All free blocks, next to be handed out first."""
        return listed(self.peek(len(self._column)))

    def peek(self, count: int) -> Ids:
        """The next *count* blocks, or as many as there are; they leave the queue when their state changes."""
        if count >= BULK:
            self._skip()
            return batch(self._peek_bulk(count))
        found: list[int] = []
        ring, entry, state, capacity = self._ring, self._entry, self._column.state, self._capacity
        freed, cached = self._freed, self._cached
        for position in range(self._head, self._tail):
            if len(found) == count:
                break
            place = ring[position % capacity]
            if (state[place] == freed or state[place] == cached) and entry[place] == position & ID_MASK:
                found.append(place)
            elif not found:  # nobody passes over it again
                self._head = position + 1
        return found

    def _counts(self, position: int, place: int) -> bool:
        at = self._column.state[place]
        return (at == self._freed or at == self._cached) and self._entry[place] == position & ID_MASK

    def _skip(self) -> None:
        """Move the head to the first entry that counts, so that no entry is passed over twice."""
        while self._head < self._tail and not self._counts(self._head, self._ring[self._head % self._capacity]):
            self._head += 1

    def _peek_bulk(self, count: int) -> NDArray[np.int64]:
        found: list[NDArray[np.int64]] = []
        position, missing = self._head, count
        while position < self._tail and missing > 0:
            stop = min(self._tail, position + 2 * missing)
            found.append(self._scan(position, stop)[:missing])
            missing -= len(found[-1])
            position = stop
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _scan(self, start: int, stop: int) -> NDArray[np.int64]:
        """The blocks whose entries between two positions count."""
        first = start % self._capacity
        ids = self._ring_view[first : first + stop - start]
        if len(ids) < stop - start:
            ids = np.concatenate((ids, self._ring_view[: stop - start - len(ids)]))
        positions = np.arange(start, stop)
        at = self._column.view[ids]
        counts = ((at == self._freed) | (at == self._cached)) & (self._entry_view[ids] == (positions & ID_MASK))
        chosen: NDArray[np.int64] = ids[counts].astype(np.int64)
        return chosen

    def reset(self, order: list[int]) -> None:
        """Take over an order, after a restore."""
        self._head, self._tail = 0, len(order)
        self._write(0, order)
