"""Blocks and slots as columns: their states, their counts, the names of their content, and the order in which they are free.

Rules of this file:

* `ask` reads, `write` writes. `ask` returns the rows that `write` takes, so that a verb of the ledger can ask everything before
  it writes anything.
* The type of the ids selects the path: lists are iterated, arrays are processed by numpy. Both paths write the same bytes.
* A place knows no jobs or requests; it only counts them.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tests.oracle.errors import CapacityError, InvariantError, RefusedError
from tests.oracle.ledger._ids import EPOCH_SHIFT, FIRST_EPOCH, ID_MASK, LAST_EPOCH, NULL, Ids, Lives, batch, listed
from tests.oracle.ledger._refusals import Refusals
from tests.oracle.ledger._ring import Ring
from tests.oracle.ledger._rules import (
    BLOCK_MEANING,
    COUNTS,
    ENDS,
    ENTERS_FREE,
    FENCE,
    LEAVES_FREE,
    OWN,
    PUBLISHES,
    SLOT_MEANING,
    WITHDRAWS,
    CountedEvent,
    flags,
    marked,
)
from tests.oracle.lifecycle import REFUSED, Column, Rows, Table
from tests.oracle.states import LENT, STORE_READS, Block, BlockLife, SlotLife, Trait, states_with

_LARGEST = {"B": (1 << 8) - 1, "H": (1 << 16) - 1}
"""The largest count that a column of that type code holds."""
_FREE = flags(BlockLife.table, states_with(Trait.FREE, Block))
_LENT, _LENT_UNSUBMITTED = (
    np.frombuffer(flags(BlockLife.table, states), dtype=np.bool_) for states in (LENT, LENT - STORE_READS)
)
_MOST_REFS, _MOST_PINS = _LARGEST["H"], _LARGEST["B"]


class Places:
    """What blocks and slots have in common.

    Invariant (I4): no count is ever negative; a change that would make it so is an error before anything is written.
    ``machine`` is the name of their lifecycle.
    Invariant: an entry of ``index[group]`` names a place whose key it is, and whose state is one with a name; without
    ``indexed`` there is none.
    Invariant: ``state`` are the very bytes of ``column``, and ``taken`` its counts of rows.
    """

    def __init__(self, table: Table, size: int, num_groups: int, meaning: bytes, *, indexed: bool = True) -> None:
        self.indexed = indexed
        self.column = Column(table, size)
        self.state = self.column.state
        self.taken = self.column.taken
        self.machine = table.name.removesuffix("Life").lower()
        self.pins = array("B" if table is BlockLife.table else "H", [0]) * size
        self.pins_view: NDArray[np.unsignedinteger] = np.frombuffer(self.pins, dtype=self.pins.typecode)
        self.group = bytearray(size)
        self.group_view = np.frombuffer(self.group, dtype=np.uint8)
        self.key: list[bytes | None] = [None] * size
        self.index: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self.free = 0
        self.refusals: Refusals | None = None
        """Finds the jobs and requests that a refusal names; None if the places are used alone."""
        self._meaning = meaning
        self._meaning_view = np.frombuffer(meaning, dtype=np.uint8)
        self._targets = table.targets

    def __len__(self) -> int:
        return len(self.state)

    def at(self, place: int) -> enum.Enum:
        """The state of one place."""
        return self.column.at(place)

    def name(self, places: Iterable[int], keys: Iterable[bytes], group: int) -> None:
        """Give the content of places its key, in their own group. The first place with a key keeps the index entry."""
        index, own, indexed = self.index[group], self.key, self.indexed
        for place, key in zip(places, keys, strict=True):
            own[place] = key
            if indexed:
                index.setdefault(key, place)

    def forget(self, places: Iterable[int]) -> None:
        """Take their keys away from places."""
        own, group, indexes = self.key, self.group, self.index
        for place in places:
            if (key := own[place]) is not None:
                own[place] = None
                index = indexes[group[place]]
                if index.get(key) == place:
                    del index[key]

    def _checked(self, change: CountedEvent, ids: Ids, rows: NDArray[np.uint8]) -> Rows:
        """The rows of many places: one number if all took the same; refuses if one has none."""
        raw = rows.tobytes()  # bytes are searched faster than a short array is reduced
        if REFUSED in raw:
            raise self._refusal(change, int(ids[raw.index(REFUSED)]))
        return raw[0] if raw and raw.count(raw[0]) == len(raw) else rows

    def _refusal(self, change: CountedEvent, place: int) -> RefusedError:
        """The error to raise when one place refuses; with the texts of the table if jobs and requests are unknown."""
        return self.column.refusal(change.rule.event, place)

    def _effects(self, ids: Ids, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.uint8]] | None:
        """Places whose row has effects beyond the new state, with these effects; None if no row has."""
        found = np.asarray(ids)
        if isinstance(rows, int):
            meaning = self._meaning[rows]
            return (found, np.full(len(found), meaning, dtype=np.uint8)) if meaning else None
        effects = self._meaning_view[np.asarray(rows)]
        where = effects.nonzero()[0]
        return (found[where], effects[where]) if len(where) else None

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

    @staticmethod
    def _add(column: array[int], view: NDArray[np.unsignedinteger], ids: Ids, delta: int) -> None:
        """Change a count of each place."""
        if type(ids) is list:
            for place in ids:
                column[place] += delta
        elif delta > 0:
            view[ids] += view.dtype.type(delta)
        else:
            view[ids] -= view.dtype.type(-delta)


class Blocks(Places):
    """The blocks of the device.

    With *indexed* False the engine knows itself where content lies on the device, and which free block comes next: neither is
    kept here.

    Invariant: ``refs`` counts the tables that hold the current life; it is 0 in every state without a life.
    Invariant: ``job`` names the row of the store whose source the current life is, in the states PLEDGED, PENDING_STORE and
    IN_FLIGHT; in all others it is 0, which no job has.
    Invariant: ``free`` is the number of blocks that are FREED or CACHED, the null block apart; ``queue`` has them in the order
    in which they are handed out: those without content first, then the least recently released.
    """

    def __init__(self, num_blocks: int, num_groups: int, *, indexed: bool = True) -> None:
        super().__init__(BlockLife.table, num_blocks, num_groups, BLOCK_MEANING, indexed=indexed)
        self.epoch = array("I", [FIRST_EPOCH]) * num_blocks
        self.epoch[NULL] = 0  # the null block has no lives; 0 stands for it in a table
        self.epoch_view = np.frombuffer(self.epoch, dtype=np.uint32)
        self.refs = array("H", [0]) * num_blocks
        self.refs_view = np.frombuffer(self.refs, dtype=np.uint16)
        self.overdue = array("B", [0]) * num_blocks
        self.overdue_view = np.frombuffer(self.overdue, dtype=np.uint8)
        self.writes = array("B", [0]) * num_blocks
        self.writes_view = np.frombuffer(self.writes, dtype=np.uint8)
        self.job = array("i", [0]) * num_blocks
        self.job_view = np.frombuffer(self.job, dtype=np.int32)
        # the same columns again: where they are compiled, these names are typed (_places.pxd)
        self._epoch, self._refs, self._pins = self.epoch, self.refs, self.pins
        self._writes, self._overdue, self._job = self.writes, self.overdue, self.job
        index = BlockLife.table.index
        self._cached = index[Block.CACHED]
        self.queue = Ring(num_blocks if indexed else 1)
        if indexed:
            self.queue.push_back(batch(np.arange(1, num_blocks)))
        self.free = num_blocks - 1

    def free_order(self) -> list[int]:
        """All free blocks, the next to be handed out first; by number, where the order is the engine's."""
        if self.indexed:
            return self.queue.order()
        return (np.flatnonzero(marked(self.column, _FREE)[1:]) + 1).tolist()

    def lives(self, ids: Ids) -> Lives:
        """The current life of each block."""
        if type(ids) is list:
            epoch, found = self._epoch, list[int]()
            for place in ids:
                life = epoch[place]
                found.append(life << EPOCH_SHIFT | place)
            return found
        return self.epoch_view[ids].astype(np.int64) << EPOCH_SHIFT | ids

    def fresh(self, lives: Lives) -> list[bool] | NDArray[np.bool_]:
        """Which references still name the current life of their block: the comparison that detects staleness."""
        if type(lives) is list:
            epoch = self._epoch
            return [epoch[life & ID_MASK] == life >> EPOCH_SHIFT for life in lives]
        known = np.asarray(lives)
        fresh: NDArray[np.bool_] = self.epoch_view[known & ID_MASK] == known >> EPOCH_SHIFT
        return fresh

    def ask(self, change: CountedEvent, ids: Ids, own: Sequence[bool] | NDArray[np.bool_] | None = None) -> Rows:
        """Find the row that each block takes, or refuse; ``own`` says which are still in the life that the caller means."""
        rule = change.rule
        if type(ids) is not list:
            return self._ask_many(change, np.asarray(ids), own)
        table, looks, state, fits = rule.tables[change.at], rule.looks, self.state, True
        if own is None and not looks:
            rows = [table[state[place] << COUNTS] for place in ids]
            if change.counted:
                self._check_counts(change, ids)
        else:
            rows = []
            ours = rule.tables[change.at | OWN] if own is not None else table
            all_refs, all_pins, all_writes, all_overdue = self._refs, self._pins, self._writes, self._overdue
            refs, pins, writes, overdue = change.seen_refs, change.pins, change.writes, change.overdue
            looks |= change.changes
            for position, place in enumerate(ids):
                at = state[place] << COUNTS
                if looks & 1 and (count := all_refs[place] + refs):
                    at |= 1
                    fits = fits and 0 < count <= _MOST_REFS
                if looks & 2 and (count := all_pins[place] + pins):
                    at |= 2
                    fits = fits and 0 < count <= _MOST_PINS
                if looks & 4 and (count := all_writes[place] + writes):
                    at |= 4
                    fits = fits and 0 < count <= _MOST_PINS
                if looks & 8 and (count := all_overdue[place] + overdue):
                    at |= 8
                    fits = fits and 0 < count <= _MOST_PINS
                rows.append((ours if own is not None and own[position] else table)[at])
        if not fits:
            self._check_counts(change, ids)
        if REFUSED in rows:
            raise self._refusal(change, ids[rows.index(REFUSED)])
        return rows

    def _ask_many(self, change: CountedEvent, ids: NDArray[np.int64], own: Sequence[bool] | NDArray[np.bool_] | None) -> Rows:
        if change.counted:
            self._check_counts(change, ids)
        rule, looks = change.rule, change.rule.looks
        bits = self.column.view[ids] << np.uint8(COUNTS)
        for bit, view, delta in (
            (0, self.refs_view, change.seen_refs),
            (1, self.pins_view, change.pins),
            (2, self.writes_view, change.writes),
            (3, self.overdue_view, change.overdue),
        ):
            if looks >> bit & 1:
                bits |= ((view[ids] > -delta) if delta <= 0 else np.True_) << np.uint8(bit)
        at = bits.tobytes()  # bytes are translated faster than an array is indexed
        found = np.frombuffer(at.translate(rule.tables[change.at]), dtype=np.uint8)
        if own is not None:
            ours = np.frombuffer(at.translate(rule.tables[change.at | OWN]), dtype=np.uint8)
            found = np.where(np.asarray(own, dtype=np.bool_), ours, found)
        return self._checked(change, ids, found)

    def _refusal(self, change: CountedEvent, place: int) -> RefusedError:
        """The refusal by one block, to be raised."""
        if self.refusals is None:
            return super()._refusal(change, place)
        payload = {
            "fence": bool(change.at & FENCE),
            "refs": self.refs[place] + change.seen_refs,
            "pins": self.pins[place] + change.pins,
            "writes": self.writes[place] + change.writes,
            "overdue": self.overdue[place] + change.overdue,
        }
        return self.refusals.of_block(place, self.at(place), change.rule.name, self.epoch[place], payload)

    def _check_counts(self, change: CountedEvent, ids: Ids) -> None:
        if change.seen_refs:
            self._check_count("refs", self.refs, self.refs_view, ids, change.seen_refs)
        if change.pins:
            self._check_count("pins", self.pins, self.pins_view, ids, change.pins)
        if change.writes:
            self._check_count("writes", self.writes, self.writes_view, ids, change.writes)
        if change.overdue:
            self._check_count("overdue", self.overdue, self.overdue_view, ids, change.overdue)

    def write(self, change: CountedEvent, ids: Ids, rows: Rows) -> list[int]:
        """Take the rows that were found. Returns the rows of jobs whose source life ended with it."""
        orphaned: list[int] = []
        # refs belong to the life: those of an ended one are gone, and the change below must find what it takes away
        left = -change.refs if change.refs < 0 else 0
        if type(ids) is not list or type(rows) is not list:
            self.column.commit(ids, rows)
            self._take_effects(ids, rows, left, orphaned)
            self._change_counts(change, ids)
            return orphaned
        state, targets, meanings, taken = self.state, self._targets, self._meaning, self.taken
        refs, pins, first = change.refs, change.pins, rows[0] if rows else 0
        entering: list[int] = []
        leaving: list[int] = []
        if not meanings[first] and rows.count(first) == len(rows):
            target = targets[first]
            for place in ids:
                state[place] = target
            taken[first] += len(rows)
        else:
            for place, row in zip(ids, rows, strict=True):
                state[place] = targets[row]
                taken[row] += 1
                if meaning := meanings[row]:
                    if meaning & ENDS:
                        self._end_life(place, left, orphaned)
                    if meaning & ENTERS_FREE:
                        entering.append(place)
                    elif meaning & LEAVES_FREE:
                        leaving.append(place)
        if refs:
            all_refs = self._refs
            for place in ids:
                all_refs[place] += refs
        if pins:
            all_pins = self._pins
            for place in ids:
                all_pins[place] += pins
        if change.writes or change.overdue:
            self._add(self.writes, self.writes_view, ids, change.writes)
            self._add(self.overdue, self.overdue_view, ids, change.overdue)
        if leaving:
            self._leave_free(leaving)
        if entering:
            self._enter_free(entering)
        return orphaned

    def _change_counts(self, change: CountedEvent, ids: Ids) -> None:
        if change.refs:
            self._add(self.refs, self.refs_view, ids, change.refs)
        if change.pins:
            self._add(self.pins, self.pins_view, ids, change.pins)
        if change.writes:
            self._add(self.writes, self.writes_view, ids, change.writes)
        if change.overdue:
            self._add(self.overdue, self.overdue_view, ids, change.overdue)

    def _take_effects(self, ids: Ids, rows: Rows, left: int, orphaned: list[int]) -> None:
        """What the rows of many blocks mean beyond their new states."""
        if (effects := self._effects(ids, rows)) is None:
            return
        moved, bits = effects
        self._end_lives(moved[bits & ENDS != 0], left, orphaned)
        self._leave_free(moved[bits & LEAVES_FREE != 0])
        self._enter_free(moved[bits & ENTERS_FREE != 0])

    def _leave_free(self, ids: Ids) -> None:
        self.free -= len(ids)
        if self.indexed:
            self.queue.remove(ids)

    def _enter_free(self, ids: Ids) -> None:
        """They have just become free, in this order: those without content are handed out before all others."""
        self.free += len(ids)
        if not self.indexed or len(ids) == 0:
            return
        if type(ids) is list:
            state, cached = self.state, self._cached
            kept: Ids = [place for place in ids if state[place] == cached]
            empty: Ids = [] if len(kept) == len(ids) else [place for place in ids if state[place] != cached]
        else:
            is_kept = self.column.view[ids] == self._cached
            kept, empty = np.asarray(ids)[is_kept], np.asarray(ids)[~is_kept]
        if len(kept):
            self.queue.push_back(kept)
        if len(empty):
            self.queue.push_front(empty)

    def _end_life(self, place: int, refs: int, orphaned: list[int]) -> None:
        self._epoch[place] = self._epoch[place] % LAST_EPOCH + 1
        self._refs[place] = refs
        if self.key[place] is not None:
            self.forget((place,))
        if self._job[place]:
            orphaned.append(self._job[place])
            self._job[place] = 0

    def _end_lives(self, places: NDArray[np.int64], refs: int, orphaned: list[int]) -> None:
        self.epoch_view[places] = self.epoch_view[places] % np.uint32(LAST_EPOCH) + np.uint32(1)
        self.refs_view[places] = refs
        self.forget(places.tolist())
        jobs = self.job_view[places]
        if jobs.any():
            orphaned += dict.fromkeys(jobs[jobs != 0].tolist())
            self.job_view[places] = 0

    def name_job(self, ids: Ids, row: int) -> None:
        """Note which store has these lives as its source; 0 for none."""
        if type(ids) is list:
            job = self._job
            for place in ids:
                job[place] = row
        else:
            self.job_view[ids] = row

    def unpin(self, ids: Ids) -> None:
        """Remove one pin without an event: the life that a planned store wanted to read is over."""
        self._check_count("pins", self.pins, self.pins_view, ids, -1)
        self._add(self.pins, self.pins_view, ids, -1)

    def lendable(self, among: NDArray[np.int64]) -> NDArray[np.int64]:
        """The blocks among these that a fence allows to be handed out while a copy reads them; planned stores first."""
        state = self.column.view[among]
        planned = _LENT_UNSUBMITTED[state]
        lent = _LENT[state] & (self.refs_view[among] == 0) & (self.writes_view[among] == 0)
        return np.concatenate((among[lent & planned], among[lent & ~planned]))


SlotWatcher: TypeAlias = Callable[[bool, Sequence[int]], None]
"""Hears (stored, slots): their content became readable, or is about to be withdrawn; their keys say which. It must not call the
ledger."""


class Slots(Places):
    """The slots of the lower tier.

    Invariant: a slot has a key exactly in the states WRITING and READY.
    Invariant: ``free`` is the number of EMPTY slots, and ``queue`` has each of them, the most recently emptied first.
    Invariant: of the slots with one key at most one is READY, and then the index names that one; the others are being written.
    """

    def __init__(self, num_slots: int, num_groups: int) -> None:
        super().__init__(SlotLife.table, num_slots, num_groups, SLOT_MEANING)
        self.free = num_slots
        self._slot_pins = self.pins
        self.queue = Ring(num_slots)
        self.queue.push_back(batch(np.arange(num_slots)))
        self.listeners: list[SlotWatcher] = []
        """Notes of our own code, which calls nothing and cannot fail: they are taken while the ledger writes."""

    def ask(self, change: CountedEvent, ids: Ids, unwanted: frozenset[int] = frozenset()) -> Rows:
        """Find the row that each slot takes, or refuse. For *unwanted* slots nothing is OK."""
        rule, pins = change.rule, change.pins
        if pins:
            self._check_count("pins", self.pins, self.pins_view, ids, pins)
        table, refused, looks = rule.tables[change.at], rule.tables[0], rule.looks & 2
        if type(ids) is list:
            state, all_pins, rows = self.state, self._slot_pins, list[int]()
            for place in ids:
                at = state[place] << COUNTS
                if looks and all_pins[place] + pins > 0:
                    at |= looks
                rows.append((refused if unwanted and place in unwanted else table)[at])
            if REFUSED in rows:
                raise self._refusal(change, ids[rows.index(REFUSED)])
            return rows
        bits = self.column.view[ids] << np.uint8(COUNTS)
        if looks:
            bits |= ((self.pins_view[ids] > -pins) if pins <= 0 else np.True_) << np.uint8(1)
        raw = bits.tobytes()
        found = np.frombuffer(raw.translate(table), dtype=np.uint8)
        if unwanted:
            other = np.frombuffer(raw.translate(refused), dtype=np.uint8)
            found = np.where(np.isin(np.asarray(ids), list(unwanted)), other, found)
        return self._checked(change, ids, found)

    def _refusal(self, change: CountedEvent, place: int) -> RefusedError:
        """The refusal by one slot, to be raised."""
        if self.refusals is None:
            return super()._refusal(change, place)
        payload = {"pins": self.pins[place] + change.pins}
        return self.refusals.of_slot(place, self.at(place), change.rule.name, payload)

    def write(self, change: CountedEvent, ids: Ids, rows: Rows) -> list[int]:
        """Take the rows that were found. No job loses its source with a slot."""
        places = listed(ids)
        if type(rows) is list:
            state, targets, taken = self.state, self._targets, self.taken
            for place, row in zip(places, rows, strict=True):
                state[place] = targets[row]
                taken[row] += 1
            first = rows[0]
            if rows.count(first) == len(rows):
                rows = first
        else:
            self.column.commit(ids, rows)
        if isinstance(rows, int):
            if meaning := self._meaning[rows]:
                self._take_effect(places, meaning)
        else:
            meanings = [self._meaning[row] for row in bytes(rows)]
            for meaning, run in groupby(zip(meanings, places, strict=True), itemgetter(0)):
                self._take_effect([place for _, place in run], meaning)
        if change.pins:
            self._add(self.pins, self.pins_view, ids, change.pins)
        return []

    def _take_effect(self, places: list[int], meaning: int) -> None:
        """What a row means for these places beyond their new state."""
        if meaning & (PUBLISHES | WITHDRAWS):
            self._publish(places, stored=meaning & PUBLISHES != 0)
        if meaning & ENDS:
            self.forget(places)
        if meaning & ENTERS_FREE:
            self.free += len(places)
            self.queue.push_front(places[::-1])
        elif meaning & LEAVES_FREE:
            self.free -= len(places)
            self.queue.remove(places)

    def _publish(self, places: list[int], *, stored: bool) -> None:
        """Content of slots can be read from now on, or no longer; of twins, the first to land gets the name."""
        if stored:
            for place in places:
                if (key := self.key[place]) is not None:
                    self.index[self.group[place]][key] = place
        for listener in self.listeners:
            listener(stored, places)

    def name_all(self, places: Ids, keys: Sequence[bytes], groups: bytes) -> None:
        """`name`, and say which group the content of each slot is of."""
        own, group_of, indexes = self.key, self.group, self.index
        for place, key, group in zip(listed(places), keys, groups, strict=True):
            own[place] = key
            group_of[place] = group
            indexes[group].setdefault(key, place)

    def unfile(self, ids: Ids) -> None:
        """Hide content that is being written and will not be published. The key stays until the copy has ended."""
        for place in listed(ids):
            key, index = self.key[place], self.index[self.group[place]]
            if key is not None and index.get(key) == place:
                del index[key]

    def peek_empty(self, count: int) -> list[int]:
        """Up to *count* empty slots, the most recently emptied first; nothing is reserved."""
        return listed(self.queue.peek(count))

    def rebuild(self, empty: Iterable[int]) -> None:
        """Take over the order of the empty slots, after a restore."""
        order = list(empty)
        self.queue.reset(order)
        self.free = len(order)
