"""Many places of one lifecycle, one byte each."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from blocklife.errors import MisuseError, RefusedError
from blocklife.lifecycle._hooks import NO_PAYLOAD, Hooks, Subscription, Transition, What
from blocklife.lifecycle._table import REFUSED, Event, Row, Table

Ids: TypeAlias = list[int] | NDArray[np.int64] | slice
"""Places of a column. A list takes the scalar path; an array or a slice takes the bulk path."""

Facts: TypeAlias = int | Sequence[int] | NDArray[np.uint8]
"""The guards of an event that hold, as bits: one number for all places, or one per place."""

Rows: TypeAlias = int | list[int] | NDArray[np.uint8]
"""The row that each place takes: one number if all take the same, or one per place."""


class Column:
    """The states of many places of one lifecycle, one byte each, and how often each row was taken.

    `ask` finds the rows, and writes nothing if it refuses; `commit` writes them. In between, a caller can ask other columns, so
    that several machines move together or not at all. The caller must ensure that the ids of one call are distinct and not
    negative.
    """

    __slots__ = ("_hooks", "_targets", "_targets_view", "state", "table", "taken", "view")

    def __init__(self, table: Table, size: int) -> None:
        self.table = table
        self.state = bytearray([table.index[table.initial]]) * size
        # The same bytes twice: the scalar path indexes the bytearray, the bulk path the array (numpy is slow for single items).
        self.view: NDArray[np.uint8] = np.frombuffer(self.state, dtype=np.uint8)
        self.taken = [0] * (len(table.rows) + 1)
        self._targets = table.targets
        self._targets_view = np.frombuffer(self._targets, dtype=np.uint8)
        self._hooks: Hooks[Transition] | None = None

    def __len__(self) -> int:
        return len(self.state)

    def at(self, place: int) -> enum.Enum:
        """The state of one place."""
        return self.table.states[self.state[place]]

    def ask(self, event: Event, ids: Ids, facts: Facts = 0) -> Rows:
        """The row that *event* takes from each place; raises `RefusedError` at the first place that has none."""
        if type(facts) is not int or facts >> len(event.guards):
            facts = self._checked(event, facts, len(ids) if type(ids) is list else self._size(ids))
        return self.look_up(event, ids, facts)

    def look_up(self, event: Event, ids: Ids, facts: Facts) -> Rows:
        """`ask` without checks, for callers whose facts are known to match the guards of the event, one for each place."""
        if type(ids) is list:
            lut, state, width = event.lut, self.state, len(event.guards)
            if isinstance(facts, int):
                rows = [lut[state[place] << width | facts] for place in ids]
            else:
                each = facts.tolist() if isinstance(facts, np.ndarray) else facts
                rows = [lut[state[place] << width | fact] for place, fact in zip(ids, each, strict=True)]
            if REFUSED in rows:
                raise self.refusal(event, ids[rows.index(REFUSED)])
            return rows
        if isinstance(facts, Sequence):
            facts = np.fromiter(facts, dtype=np.uint8, count=len(facts))
        found = event.lookup(self.view[ids], facts)
        if len(found) == 0:
            return found
        raw = found.tobytes()  # searching bytes is faster than reducing a short array
        if REFUSED in raw:
            raise self.refusal(event, int(np.arange(len(self.state))[ids][raw.index(REFUSED)]))
        return raw[0] if raw.count(raw[0]) == len(raw) else found

    def commit(self, ids: Ids, rows: Rows) -> None:
        """Write the rows that `ask` found."""
        if type(ids) is list:
            state, targets, taken = self.state, self._targets, self.taken
            for place, row in zip(ids, [rows] * len(ids) if isinstance(rows, int) else rows, strict=True):
                state[place] = targets[row]
                taken[row] += 1
        elif isinstance(rows, int):
            self.view[ids] = self._targets[rows]
            self.taken[rows] += self._size(ids)
        else:
            found = np.asarray(rows, dtype=np.uint8)
            self.view[ids] = self._targets_view[found]
            for row, times in enumerate(np.bincount(found).tolist()):
                self.taken[row] += times

    def fire(self, event: Event, ids: Ids, facts: Facts = 0, payload: Mapping[str, object] = NO_PAYLOAD) -> None:
        """Ask, commit and call the hooks, where one column moves alone.

        *payload* is passed on to the hooks, and to the text of a guard that fails; a value that is an array has one entry for
        each place.
        """
        try:
            rows = self.ask(event, ids, facts)
        except RefusedError as refusal:
            raise self.refusal_among(event, ids, refusal, payload) from None
        self.commit(ids, rows)
        if self._hooks is not None:
            self.notify(event, ids, rows, payload)

    def step(self, event: Event, place: int, facts: int = 0) -> None:
        """`fire` of one place, for callers whose facts are known to match the guards of the event."""
        row = event.lut[self.state[place] << len(event.guards) | facts]
        if row == REFUSED:
            raise self.refusal(event, place)
        self.state[place] = self._targets[row]
        self.taken[row] += 1
        if self._hooks is not None:
            self.notify(event, [place], [row])

    def notify(self, event: Event, ids: Ids, rows: Rows, payload: Mapping[str, object] = NO_PAYLOAD) -> None:
        """Call the hooks for a committed step: for callers that move several columns together and tell once all are written."""
        hooks = self._hooks
        if hooks is not None and hooks.active and hooks.hears(self.table.name, rows):
            places = range(*ids.indices(len(self.state))) if isinstance(ids, slice) else ids
            hooks.notify([Transition(self.table, event.name, places, rows, payload)])

    def on(
        self,
        *what: What,
        entered: enum.Enum | None = None,
        left: enum.Enum | None = None,
        hook: Callable[[Transition], None] | None = None,
    ) -> Subscription[Transition]:
        """Register a hook for the steps that `fire` and `tell` report: of some events (all by default), into or out of a state.

        The hook is called once per batch, with the places that made a matching step. See `Hooks.on`.
        """
        if self._hooks is None:
            self._hooks = Hooks({self.table.name: self.table})
        return self._hooks.on(*what, entered=entered, left=left, hook=hook)

    def count(self) -> dict[enum.Enum, int]:
        """How many places are in each state."""
        return {state: int(np.count_nonzero(self.view == number)) for number, state in enumerate(self.table.states)}

    def where(self, state: enum.Enum) -> NDArray[np.int64]:
        """The places in *state*."""
        return np.flatnonzero(self.view == self.table.index[state]).astype(np.int64)

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """Every row of the table, with the number of times it was taken."""
        return zip(self.table.rows, self.taken[1:], strict=True)

    def snapshot(self) -> bytes:
        """The states as bytes, for `restore`. Row counts are not included."""
        return bytes(self.state)

    def restore(self, saved: bytes) -> None:
        """Go back to a snapshot of this column."""
        self.state[:] = saved

    def _size(self, ids: Ids) -> int:
        return len(range(*ids.indices(len(self.state)))) if isinstance(ids, slice) else len(ids)

    def _checked(self, event: Event, facts: Facts, size: int) -> int | Sequence[int] | NDArray[np.uint8]:
        """*facts* in a form that the look-up can use; excess bits would index the rows of another state."""
        lowest = highest = 0
        if isinstance(facts, (int, np.integer)):
            facts = lowest = highest = int(facts)
        elif len(facts) != size:
            raise MisuseError(f"{self.table.name}.{event.name}: {len(facts)} facts for {size} places")
        elif isinstance(facts, np.ndarray):
            if size:
                lowest, highest = (0 if facts.dtype == np.uint8 else int(facts.min())), int(facts.max())
            facts = facts.astype(np.uint8, copy=False)
        elif size:
            lowest, highest = min(facts), max(facts)
        if lowest < 0 or highest >> len(event.guards):
            wrong = lowest if lowest < 0 else highest
            most = (1 << len(event.guards)) - 1
            raise MisuseError(f"{self.table.name}.{event.name}: facts must be 0 to {most}, a bit for each guard, not {wrong}")
        return facts

    def refusal(self, event: Event, place: int, payload: Mapping[str, object] = NO_PAYLOAD) -> RefusedError:
        """The error to raise when one place refuses *event*, with what is known of its payload."""
        return self.table.refusal(self.thing(place), self.at(place), event.name, place, payload)

    def refusal_among(self, event: Event, ids: Ids, refusal: RefusedError, payload: Mapping[str, object]) -> RefusedError:
        """The same refusal by one of some places, with the payload of a batch; of its arrays, the entry of that place."""
        place = int(refusal.place or 0)
        if isinstance(ids, slice):
            at = range(*ids.indices(len(self.state))).index(place)
        else:
            at = ids.index(place) if type(ids) is list else int(np.flatnonzero(np.asarray(ids) == place)[0])
        own = {name: value[at] if isinstance(value, np.ndarray) else value for name, value in payload.items()}
        return self.refusal(event, place, own)

    def thing(self, place: int) -> str:
        """What messages call one place."""
        return f"{self.table.name.removesuffix('Life').lower()} {place}"
