"""What the scheduler keeps of each request as lifecycles: the columns of `scheduler_states`, by row.

Rules of this file:

* A row is that of a request in the ledger, as everywhere in the scheduler. A row without a request is as at the beginning.
* A question changes nothing; a verb takes a step of one lifecycle, or raises `RefusedError`: then the scheduler is wrong.
"""

from __future__ import annotations

from array import array
from math import inf

from blocklife.lifecycle import Column, Event, Row
from blocklife.scheduler_states import SCHEDULER_MACHINES, Ending, EndingLife, Lookup, LookupLife, Patience, PatienceLife

_WAIT, _LOOKUP, _END = (SCHEDULER_MACHINES[name].index for name in ("patience", "lookup", "ending"))
_RESTED, _WAITING, _SPENT = _WAIT[Patience.RESTED], _WAIT[Patience.WAITING], _WAIT[Patience.SPENT]
_FOUND, _DEFERRED, _LOADING = _LOOKUP[Lookup.FOUND], _LOOKUP[Lookup.DEFERRED], _LOOKUP[Lookup.LOADING]
_UNASKED, _ABORTING = _LOOKUP[Lookup.UNASKED], _END[Ending.ABORTING]
_COME, _FINISH, _ABORT = (EndingLife.table.events[name] for name in ("come", "finish", "abort"))
_DEFER, _FIND, _LOAD, _RUN, _LAND, _CLEAR = (
    LookupLife.table.events[name] for name in ("defer", "find", "load", "run", "land", "clear")
)


class Waits:
    """The waits of all requests for one thing.

    ``until`` is the moment up to which a row that is WAITING waits; of other rows it says nothing.
    """

    def __init__(self, size: int) -> None:
        self.column, self.until = Column(PatienceLife.table, size), array("d", bytes(8 * size))
        self._state = self.column.state
        events = PatienceLife.table.events
        self._wait, self._answer, self._give_up, self._renew = (
            events["wait"], events["answer"], events["give_up"], events["renew"],
        )  # fmt: skip

    def lasts(self, row: int, now: float) -> bool:
        """Whether a request may wait at this time: it has not begun to, or its moment has not come."""
        state = self._state[row]
        return state == _RESTED or (state == _WAITING and now < self.until[row])

    def is_spent(self, row: int) -> bool:
        """Whether a request does not wait for this any more."""
        return self._state[row] == _SPENT

    def begin(self, row: int, until: float) -> None:
        """A request waits until this moment, unless it waits already or has given up."""
        if self._state[row] == _RESTED:
            self.column.step(self._wait, row)
            self.until[row] = until

    def answered(self, row: int) -> None:
        """A request need not wait any more; its next wait begins anew. One that has given up has given up."""
        if self._state[row] == _WAITING:
            self.column.step(self._answer, row)

    def give_up(self, row: int) -> bool:
        """A request that waits goes on without; False if none waits there."""
        if self._state[row] != _WAITING:
            return False
        self.column.step(self._give_up, row)
        return True

    def renew(self, row: int) -> None:
        """A request was admitted, or another one begins."""
        if self._state[row] != _RESTED:
            self.column.step(self._renew, row)

    def moment(self, row: int) -> float | None:
        """Until when a request waits: None if it does not, minus infinity if it has given up."""
        state = self._state[row]
        return None if state == _RESTED else self.until[row] if state == _WAITING else -inf

    def put_back(self, row: int, moment: float) -> None:
        """A request waits as `moment` has said."""
        self._state[row], self.until[row] = (_SPENT, 0.0) if moment == -inf else (_WAITING, moment)


class Stays:
    """The lookups, waits and ends of all requests.

    Invariant: ``ending`` has the rows whose end is FINISHING or ABORTING.
    """

    def __init__(self, size: int) -> None:
        self.lookups, self.ends = Column(LookupLife.table, size), Column(EndingLife.table, size)
        self._lookup, self._end = self.lookups.state, self.ends.state
        self.waits, self.waits_below = Waits(size), Waits(size)
        """For content on its way, and for the store below."""
        self.ending: set[int] = set()
        columns = self.lookups, self.ends, self.waits.column, self.waits_below.column
        self._at_first = [(column, column.snapshot()) for column in columns]

    def come(self, row: int) -> None:
        """A request begins."""
        self.ends.step(_COME, row)
        self.waits.renew(row)
        self.waits_below.renew(row)

    def looked_up(self, row: int, deferred: bool) -> None:
        """A lookup of a request is answered, or deferred."""
        self.lookups.step(_DEFER if deferred else _FIND, row)

    def admitted(self, row: int, loads: bool) -> None:
        """A request is admitted with the answer of its lookup."""
        self.lookups.step(_LOAD if loads else _RUN, row)
        self.waits.renew(row)
        self.waits_below.renew(row)

    def landed(self, row: int) -> None:
        """The load of a request is DONE."""
        self.lookups.step(_LAND, row)

    def emptied(self, row: int) -> None:
        """A request holds nothing any more."""
        if self._lookup[row] != _UNASKED:
            self.lookups.step(_CLEAR, row)

    def is_found(self, row: int) -> bool:
        """Whether its last lookup was answered, and not used since."""
        return self._lookup[row] == _FOUND

    def is_loading(self, row: int) -> bool:
        """Whether it was admitted with a load, of whose end the scheduler has not heard."""
        return self._lookup[row] == _LOADING

    def is_deferred(self, row: int) -> bool:
        """Whether its last lookup was deferred."""
        return self._lookup[row] == _DEFERRED

    def is_ending(self, row: int) -> bool:
        """Whether its end waits for a plan."""
        return row in self.ending

    def is_aborted(self, row: int) -> bool:
        """Whether it was ended early, and its end waits for a plan."""
        return self._end[row] == _ABORTING

    def ended(self, row: int, *, early: bool, computes: bool) -> None:
        """The end of a request is asked for; it waits while a plan that is out *computes* tokens of it."""
        event: Event = _ABORT if early else _FINISH
        self.ends.step(event, row, int(computes))
        if computes:
            self.ending.add(row)
        else:
            self.ending.discard(row)

    def put_back(self, row: int, end: Ending, lookup: Lookup) -> None:
        """A request is as a snapshot has it; `clear` was called before."""
        self._end[row], self._lookup[row] = _END[end], _LOOKUP[lookup]
        if end not in (Ending.OVER, Ending.STAYS):
            self.ending.add(row)

    def clear(self) -> None:
        """As at the beginning, without a request; counts of rows stay."""
        for column, initial in self._at_first:
            column.restore(initial)
        self.ending.clear()

    def at(self, row: int) -> tuple[Ending, Lookup]:
        """How a request ends, and what its last lookup came to."""
        return Ending(self.ends.at(row)), Lookup(self.lookups.at(row))

    def row_counts(self) -> dict[str, dict[Row, int]]:
        """How often each row of each lifecycle was taken."""
        found = {"lookup": dict(self.lookups.row_counts()), "patience": dict(self.waits.column.row_counts())}
        for row, times in self.waits_below.column.row_counts():
            found["patience"][row] += times
        return found | {"ending": dict(self.ends.row_counts())}
