"""What a lifecycle is: typed states, events as methods, guarded rows, checked definitions, one compiled table.

Rules of this file:

* Everything that decides whether a step is legal ends up in a `Table`; nothing here knows blocks, slots, jobs or requests.
* First every next state is found, then all are written. A refused call has written nothing.

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

The decorator lines, read from the top, are the rows of the table; for one state they are tried in that order, and the first
whose guard holds is taken. No row, or no guard that holds, is a refusal, which says what the state means, or what the guard
says *otherwise*. The class is checked when it is created, then compiled once, and the compiled table runs in three ways:

* `DoorLife()` is one machine; its events are methods, generated with the very signature that was written.
* `Column` holds the state of many places, one byte each. A list of ids takes a scalar path, an array or a slice a bulk
  path, on the same bytes.
* `Pool` is a column with typed handles, for lifecycles of users.

A guard is a predicate over the event's payload. Its outcome is one bit, a *fact*; a state and the facts of an event index the
compiled row directly, so that a guarded batch is one table look-up. That is why guards are written with operators that also
work element by element (``>``, ``&``) and not with ``and`` or ``if``.
"""

from blocklife.lifecycle._column import Column, Facts, Ids, Rows
from blocklife.lifecycle._compiling import MAX_GUARDS, MAX_ROWS
from blocklife.lifecycle._edges import Edge, edge
from blocklife.lifecycle._hooks import Hooks, Listeners, Move, Subscription, Transition, What
from blocklife.lifecycle._machine import Lifecycle, painted, painters
from blocklife.lifecycle._pool import Handle, Pool
from blocklife.lifecycle._table import REFUSED, Event, Guard, Row, Table, guard

__all__ = [
    "MAX_GUARDS",
    "MAX_ROWS",
    "REFUSED",
    "Column",
    "Edge",
    "Event",
    "Facts",
    "Guard",
    "Handle",
    "Hooks",
    "Ids",
    "Lifecycle",
    "Listeners",
    "Move",
    "Pool",
    "Row",
    "Rows",
    "Subscription",
    "Table",
    "Transition",
    "What",
    "edge",
    "guard",
    "painted",
    "painters",
]
