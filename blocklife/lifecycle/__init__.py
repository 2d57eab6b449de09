"""Lifecycles: typed states, events as methods, guarded rows, checked definitions, one compiled table.

Rules of this file:

* Everything that decides whether a step is legal is in a `Table`; nothing here knows about blocks, slots, jobs or requests.
* All next states are found before any is written. A refused call has written nothing.

Theory. A lifecycle is a class whose methods are edges::

    class Door(enum.Enum):
        CLOSED = "shut, but not locked"
        LOCKED = "needs the code"

    @guard(otherwise="the code is wrong")
    def knows(code: int) -> bool: ...

    class DoorLife(Lifecycle, initial=Door.CLOSED):
        @edge(Door.CLOSED, to=Door.LOCKED)
        def lock(self) -> None: ...

        @edge(Door.LOCKED, to=Door.CLOSED, when=knows)
        def unlock(self, code: int) -> None: ...

The decorator lines, read from the top, are the rows of the table. The rows of a state are tried in that order, and the first
whose guard holds is taken. If there is no row, or no guard holds, the event is refused, with the meaning of the state or the
*otherwise* text of the guard. The class is checked when it is created and compiled once. The compiled table runs in three ways:

* `DoorLife()` is one machine; its events are methods, generated with the signatures as written.
* `Column` holds the state of many places, one byte each. A list of ids takes a scalar path; an array or a slice takes a bulk
  path on the same bytes.
* `Pool` is a column with typed handles, for your own lifecycles.

A guard is a predicate over the event's payload. Its result is one bit, a *fact*. A state and the facts of an event index the
compiled row directly, so that a guarded batch is one table look-up. For this reason guards use operators that also work
element by element (``>``, ``&``) and not ``and`` or ``if``.
"""

from blocklife.errors import DefinitionError, MisuseError, RefusedError
from blocklife.lifecycle._column import Column, Facts, Ids, Rows
from blocklife.lifecycle._handle import Handle
from blocklife.lifecycle._hooks import Hooks, Listeners, Move, Subscription, Transition, What
from blocklife.lifecycle._lifecycle import MAX_GUARDS, MAX_ROWS, Edge, Lifecycle, edge, painted, painters
from blocklife.lifecycle._pool import Pool
from blocklife.lifecycle._table import REFUSED, Event, Guard, Row, Table, Tone, guard

__all__ = [
    "MAX_GUARDS",
    "MAX_ROWS",
    "REFUSED",
    "Column",
    "DefinitionError",
    "Edge",
    "Event",
    "Facts",
    "Guard",
    "Handle",
    "Hooks",
    "Ids",
    "Lifecycle",
    "Listeners",
    "MisuseError",
    "Move",
    "Pool",
    "RefusedError",
    "Row",
    "Rows",
    "Subscription",
    "Table",
    "Tone",
    "Transition",
    "What",
    "edge",
    "guard",
    "painted",
    "painters",
]
