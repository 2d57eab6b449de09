"""Hooks: callbacks for committed steps, and the records that they get.

Rules of this file:

* There is one way to register, `Hooks.on`, for a single machine, a column, a pool, a ledger and an executor.
* A hook runs after the commit, and cannot undo the step. What it raises is dealt with when all hooks have run: it reaches the
  caller, or, where the hooks have a `HookErrors`, it is kept there and the call goes on.
* Without hooks no record is built; with hooks, a step costs one look-up in a table of rows.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, Self, TypeAlias, TypeVar

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from blocklife.errors import MisuseError, plain_repr
from blocklife.hook_errors import HookErrors
from blocklife.lifecycle._table import Event, Row, Table, runs_later

RowsTaken: TypeAlias = int | Sequence[int] | NDArray[np.uint8]
"""The row that each place took; one number if all took the same."""


class AnyEdge(Protocol):
    """An event of a lifecycle, with any states and any payload (`Edge`)."""

    @property
    def event(self) -> Event:
        """The compiled event."""


class AnyLifecycle(Protocol):
    """The class of a lifecycle."""

    @property
    def table(self) -> Table:
        """Its compiled table."""


What: TypeAlias = "AnyLifecycle | AnyEdge"
"""What a hook can be registered for: all events of a lifecycle, or one event."""

NO_PAYLOAD: Mapping[str, object] = {}
NO_ROWS: Mapping[str, bytes] = {}
"""What is wanted where no table decides."""
_NUM_ROWS = 256


@frozen
class Move:
    """The step of one place."""

    place: int
    source: enum.Enum
    """The state before."""
    target: enum.Enum
    """The state after."""
    guard: str
    """The guard that held; empty if the row has none."""


class Transition:
    """One event of one or many places of a lifecycle, as hooks receive it. Iterating yields a `Move` for each place."""

    __slots__ = ("event", "payload", "places", "rows", "table")

    def __init__(
        self,
        table: Table,
        event: str,
        places: Sequence[int] | NDArray[np.int64],
        rows: RowsTaken,
        payload: Mapping[str, object] = NO_PAYLOAD,
    ) -> None:
        self.table = table
        self.event = event
        """Its name."""
        self.places = places
        """The places that moved; place 0 for a single machine."""
        self.rows = rows
        """The number of the row that each place took; one number if all took the same."""
        self.payload = payload
        """The arguments that the event was fired with, by parameter name."""

    @property
    def machine(self) -> str:
        """The name of the lifecycle."""
        return self.table.name

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Move]:
        for place, row in self.steps():
            found = self.table.row(row)
            yield Move(place, found.source, found.target, found.guard.name if found.guard else "")

    def steps(self) -> list[tuple[int, int]]:
        """Each place with the number of the row that it took."""
        places = listed(self.places)
        return list(zip(places, [self.rows] * len(places) if isinstance(self.rows, int) else listed(self.rows), strict=True))

    def only(self, chosen: Sequence[int]) -> Self:
        """The same record for some of the places; *chosen* holds their positions, from 0."""
        some, places = copy.copy(self), listed(self.places)
        some.places = [places[each] for each in chosen]
        if not isinstance(self.rows, int):
            rows = listed(self.rows)
            some.rows = [rows[each] for each in chosen]
        return some

    def __repr__(self) -> str:
        moves = "; ".join(f"{each.place}: {each.source.name} -> {each.target.name}" for each in list(self)[:4])
        return f"<{self.machine} {self.event}: {moves}{'; ...' if len(self) > 4 else ''}>"


RecordT = TypeVar("RecordT")
TransitionT = TypeVar("TransitionT", bound=Transition)


class Subscription(Generic[RecordT]):
    """The registration of one hook: a decorator, a context manager, or an object to keep for `remove`.

    As a decorator it registers the function and returns it. As a context manager it ends with the block; without a hook it
    collects the records in `heard`.
    """

    __slots__ = ("_among", "_hook", "heard", "wanted")

    def __init__(
        self,
        among: Listeners[RecordT],
        wanted: Mapping[str, bytes] = NO_ROWS,
        hook: Callable[[RecordT], None] | None = None,
    ) -> None:
        self._among = among
        self._hook: Callable[[RecordT], None] | None = None
        self.wanted = wanted
        """For each machine, one byte per row: whether the hook wants it. None if no table decides."""
        self.heard: list[RecordT] = []
        """The records collected while this was a context manager without a hook."""
        if hook is not None:
            self._register(hook)

    def __call__(self, hook: Callable[[RecordT], None]) -> Callable[[RecordT], None]:
        """Register *hook* (the decorator form), and return it."""
        self._register(hook)
        return hook

    def __enter__(self) -> Self:
        if self._hook is None:
            self._register(self.heard.append)
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Unregister. Removing twice does nothing."""
        self._among.remove(self)

    def hear(self, record: RecordT, errors: HookErrors) -> None:
        """Call the hook; what it raises goes to *errors*."""
        if self._hook is not None:
            try:
                self._hook(record)
            except BaseException as problem:
                errors.hold(self._hook, problem)

    def _register(self, hook: Callable[[RecordT], None]) -> None:
        if self._hook is not None:
            raise MisuseError("this subscription has a hook already; call on(...) again for another")
        if not callable(hook):
            raise MisuseError(f"a hook is a function, not {plain_repr(hook)}")
        if runs_later(hook) or runs_later(getattr(type(hook), "__call__", None)):  # noqa: B004 - its code is asked for
            name = getattr(hook, "__name__", None) or plain_repr(hook)
            raise MisuseError(
                f"hook {name} is a coroutine function: calling it would not run it "
                "(pass a plain function; it may put what it hears into a queue that a task reads)"
            )
        self._hook = hook
        self._among.add(self)


class Listeners(Generic[RecordT]):
    """Subscriptions in order of registration. A change made while a record is delivered takes effect with the next record."""

    __slots__ = ("_all", "active")

    def __init__(self) -> None:
        self._all: tuple[Subscription[RecordT], ...] = ()
        self.active = False
        """Whether there is any subscription."""

    def __iter__(self) -> Iterator[Subscription[RecordT]]:
        return iter(self._all)

    def add(self, subscription: Subscription[RecordT]) -> None:
        """Add a subscription at the end."""
        self._all = (*self._all, subscription)
        self.active = True

    def remove(self, subscription: Subscription[RecordT]) -> None:
        """Remove a subscription."""
        self._all = tuple(each for each in self._all if each is not subscription)
        self.active = bool(self._all)


class Hooks(Listeners[TransitionT]):
    """Subscriptions to the steps of some machines; *tables* maps the machine names used in transitions to their tables.

    ``wanted`` has, for each machine with a subscription, one byte per row: whether any hook wants it; *changed* is called when
    that has changed. What hooks raise goes to *errors*; without, `tell` raises the first of it.

    Invariant: ``wanted`` is the union of what the subscriptions want.
    """

    __slots__ = ("_changed", "_errors", "_tables", "wanted")

    def __init__(
        self, tables: Mapping[str, Table], errors: HookErrors | None = None, changed: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self._tables = tables
        self._errors = errors
        self._changed = changed
        self.wanted: dict[str, bytes] = {}

    def on(
        self,
        *what: What,
        entered: enum.Enum | None = None,
        left: enum.Enum | None = None,
        hook: Callable[[TransitionT], None] | None = None,
    ) -> Subscription[TransitionT]:
        """Register a hook for steps of these lifecycles or events (all by default), into *entered*, out of *left*.

        A step that stays in its state neither enters nor leaves it. Raises `MisuseError` for a lifecycle, event or state that
        these machines do not have, for a combination that no row matches, and for a hook that is a coroutine.
        """
        wanted: dict[str, bytes] = {}
        for machine, rows in self._meant(what).items():
            flags = bytearray(_NUM_ROWS)
            for row in rows:
                moves = row.source is not row.target
                if (entered is None or (moves and row.target is entered)) and (left is None or (moves and row.source is left)):
                    flags[row.index] = 1
            if any(flags):
                wanted[machine] = bytes(flags)
        if not wanted:
            self._refuse_silence(what, entered, left)
        return Subscription(self, wanted, hook)

    def _meant(self, what: tuple[What, ...]) -> dict[str, list[Row]]:
        """The rows that the arguments select, by machine."""
        if not what:
            return {machine: list(table.rows) for machine, table in self._tables.items()}
        found: dict[str, list[Row]] = {}
        for each in what:
            event = _event_of(each)
            said = getattr(each, "__name__", plain_repr(each)) if event is None else f"{event.table.name}.{event.name}"
            table: object = getattr(each, "table", None) if event is None else event.table
            machine = next((name for name, known in self._tables.items() if known is table), None)
            if machine is None or not isinstance(table, Table):
                known = ", ".join(table.name for table in self._tables.values())
                raise MisuseError(f"{said}: nothing of it can be heard here ({self._hint(each, known)})")
            found.setdefault(machine, []).extend(table.rows if event is None else event.rows)
        return found

    def _hint(self, given: object, known: str) -> str:
        """What was probably meant by something that is neither a lifecycle nor an event."""
        if isinstance(given, enum.Enum):
            return f"a state goes to entered= or left=: entered={given}"
        if callable(given) and not isinstance(given, type):
            return "a hook goes behind hook=, or below @...on(...)"
        return f"name {known}, or an event of theirs"

    def _refuse_silence(self, what: tuple[What, ...], entered: enum.Enum | None, left: enum.Enum | None) -> None:
        """Raise the error that says why no row can match."""
        tables = self._tables.values()
        for state in (entered, left):
            if state is not None and not any(state in table.states for table in tables):
                known = ", ".join(table.name for table in tables)
                hint = " (pass the enum member)" if isinstance(state, str) else ""
                raise MisuseError(f"{plain_repr(state)} is not a state of {known}{hint}")
        named = [getattr(each, "__name__", "") if (event := _event_of(each)) is None else event.name for each in what]
        events = ", ".join(named) or "any event"
        ways = [f"enters {entered}"] if entered is not None else []
        ways += [f"leaves {left}"] if left is not None else []
        raise MisuseError(f"no row of {events} {' and '.join(ways)}: this hook would never run")

    def add(self, subscription: Subscription[TransitionT]) -> None:
        """Add a subscription at the end."""
        super().add(subscription)
        self._unite()

    def remove(self, subscription: Subscription[TransitionT]) -> None:
        """Remove a subscription."""
        super().remove(subscription)
        self._unite()

    def _unite(self) -> None:
        united: dict[str, bytes] = {}
        for each in self:
            for machine, flags in each.wanted.items():
                before = united.get(machine, bytes(_NUM_ROWS))
                united[machine] = bytes(map(max, before, flags))
        self.wanted = united
        if self._changed is not None:
            self._changed()

    def hears(self, machine: str, rows: RowsTaken) -> bool:
        """Whether any hook wants one of these rows."""
        flags = self.wanted.get(machine)
        return flags is not None and _any_of(flags, rows)

    def notify(self, transitions: Iterable[TransitionT]) -> None:
        """Call every hook that wants these steps. The first error of a hook is raised after all have run.

        An interrupt (Ctrl-C while a hook runs) is also raised then, before any error. Where the hooks have a `HookErrors`, both
        are kept there.
        """
        errors = HookErrors(raises=True) if self._errors is None else self._errors
        for transition in transitions:
            for each in self:
                heard = _heard(transition, each)
                if heard is not None:
                    each.hear(heard, errors)
        if self._errors is None:
            errors.end()


def _event_of(what: object) -> Event | None:
    """The event that was named; None for anything else."""
    event = getattr(what, "event", None)
    return event if isinstance(event, Event) else None


def _heard(transition: TransitionT, subscription: Subscription[TransitionT]) -> TransitionT | None:
    """The part of a transition that one subscription wants: all of it, some places, or None."""
    flags = subscription.wanted.get(transition.machine)
    if flags is None or not _any_of(flags, transition.rows):
        return None
    if isinstance(transition.rows, int):
        return transition
    chosen = [at for at, row in enumerate(listed(transition.rows)) if flags[row]]
    if len(chosen) == len(transition.rows):
        return transition
    return transition.only(chosen)


def _any_of(flags: bytes, rows: RowsTaken) -> bool:
    if isinstance(rows, int):
        return bool(flags[rows])
    return any(flags[row] for row in (set(rows.tolist()) if isinstance(rows, np.ndarray) else rows))


def listed(ids: Sequence[int] | NDArray[np.int64] | NDArray[np.uint8]) -> list[int]:
    """Convert to a list of plain integers."""
    if isinstance(ids, list):
        return ids
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
