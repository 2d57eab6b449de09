"""What a lifecycle is: typed states, events as methods, guarded rows, checked definitions, one compiled table.

Rules of this file:

* Everything that decides whether a step is legal ends up in a `Table`; nothing here knows blocks, slots, jobs or requests.
* First every next state is found, then all are written. A refused call has written nothing.

Theory. A lifecycle is a class whose methods are edges::

    class Door(enum.Enum):
        CLOSED = "shut, but not locked"
        LOCKED = "needs the code"

    @guard
    def knows(code: int) -> bool: ...

    class DoorLife(Lifecycle, initial=Door.CLOSED):
        @edge(Door.CLOSED, to=Door.LOCKED)
        def lock(self) -> None: ...

        @edge(Door.LOCKED, to=Door.CLOSED, when=knows)
        def unlock(self, code: int) -> None: ...

The decorator lines, read from the top, are the rows of the table; for one state they are tried in that order, and the first
whose guard holds is taken. No row, or no guard that holds, is a refusal. The class is checked when it is created, then
compiled once, and the compiled table runs in three ways:

* `DoorLife()` is one machine; its events are methods, generated with the very signature that was written.
* `Column` holds the state of many places, one byte each. A list of ids takes a scalar path, an array or a slice a bulk
  path, on the same bytes.
* `Pool` is a column with typed handles, for lifecycles of users.

A guard is a predicate over the event's payload. Its outcome is one bit, a *fact*; a state and the facts of an event index the
compiled row directly, so that a guarded batch is one table look-up. That is why guards are written with operators that also
work element by element (``>``, ``&``) and not with ``and`` or ``if``.
"""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    ClassVar,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from blocklife.errors import DefinitionError, MisuseError, RefusedError

P = ParamSpec("P")
MachineT = TypeVar("MachineT")
SourceT = TypeVar("SourceT", bound=enum.Enum)
TargetT = TypeVar("TargetT", bound=enum.Enum)
OtherT = TypeVar("OtherT", bound=enum.Enum)
NextT = TypeVar("NextT", bound=enum.Enum)
StateT_co = TypeVar("StateT_co", bound=enum.Enum, covariant=True)

Ids: TypeAlias = list[int] | NDArray[np.int64] | slice
"""Places of a column. The type chooses the path: a list the scalar one, an array or a slice the bulk one."""

Facts: TypeAlias = int | Sequence[int] | NDArray[np.uint8]
"""Which guards of an event hold, as bits: one number for all places, or one per place."""

Rows: TypeAlias = int | list[int] | NDArray[np.uint8]
"""Which row each place takes: one number where all take the same, or one per place."""

REFUSED = 0
"""The row that is not there. Real rows are numbered from 1."""

MAX_ROWS = 255
MAX_GUARDS = 8


# --- what a user writes ------------------------------------------------------------------------------------------------


@frozen(eq=False)
class Guard(Generic[P]):
    """A named predicate over the payload of an event."""

    test: Callable[P, bool]
    name: str
    doc: str
    parameters: tuple[str, ...]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether the guard holds for one payload."""
        return bool(self.test(*args, **kwargs))


def guard(test: Callable[P, bool]) -> Guard[P]:
    """Make a guard of a predicate; it may ask for some or all of the parameters of the events it guards, by name."""
    if _runs_later(test):
        raise DefinitionError(f"guard {test.__name__}: a guard answers at once; it cannot be async or a generator")
    return Guard(test, test.__name__, _first_line(test), tuple(inspect.signature(test).parameters))


class edge(Generic[SourceT, TargetT]):  # noqa: N801 - it is used as a decorator
    """One row, or one per source: ``@edge(S.FREED, to=S.ALLOCATED, when=guard)``.

    With the states given as types, ``@edge[Closed, Locked](Door.CLOSED, to=Door.LOCKED)``, mypy also knows which handles the
    event accepts (`Pool.fire`), and that the types and the values agree.
    """

    def __init__(self, *sources: SourceT, to: TargetT, when: Guard[...] | None = None) -> None:
        self._sources = sources
        self._to = to
        self._when = when

    @overload
    def __call__(self, method: Callable[Concatenate[MachineT, P], None]) -> Edge[SourceT, TargetT, P]: ...
    @overload
    def __call__(self, method: Edge[OtherT, NextT, P]) -> Edge[SourceT | OtherT, TargetT | NextT, P]: ...

    def __call__(self, method: object) -> object:
        """Add the rows above those that *method* already has."""
        below = method.pending if isinstance(method, Edge) else ()
        written = method.method if isinstance(method, Edge) else method
        if not inspect.isfunction(written) or _runs_later(written):
            raise DefinitionError(f"an edge must be a plain method, not {written!r}")
        here = tuple(_Pending(source, self._to, self._when) for source in self._sources)
        if not here:
            raise DefinitionError(f"edge {written.__name__}: name at least one state it starts from")
        return Edge(written, here + below)


@frozen
class _Pending:
    """A row as it was written, before the class is known."""

    source: enum.Enum
    target: enum.Enum
    guard: Guard[...] | None


if TYPE_CHECKING:

    class _Descriptor:
        """What mypy sees of the base: nothing, so that `Edge` can say itself what it gives."""

else:
    # property's __get__ runs in C: half the price of one written in Python, on the hottest path of a single machine.
    _Descriptor = property


class Edge(_Descriptor, Generic[SourceT, TargetT, P]):
    """An event of a lifecycle: on the class it is itself, on a machine it is the bound method that fires it."""

    def __init__(self, method: types.FunctionType, pending: tuple[_Pending, ...]) -> None:
        self.method = method
        self.pending = pending
        self.name = method.__name__
        self._event: Event | None = None

    @property
    def event(self) -> Event:
        """The compiled event."""
        if self._event is None:
            raise DefinitionError(f"edge {self.name} stands outside a Lifecycle class")
        return self._event

    def _compiled(self, event: Event, fire: Callable[..., None]) -> None:
        self._event = event
        if not TYPE_CHECKING:
            property.__init__(self, functools.partial(types.MethodType, fire), doc=event.doc)

    if TYPE_CHECKING:

        @overload
        def __get__(self, machine: None, owner: type) -> Self: ...
        @overload
        def __get__(self, machine: Lifecycle, owner: type) -> Callable[P, None]: ...
        def __get__(self, machine: object, owner: type) -> object: ...


# --- what it is compiled to --------------------------------------------------------------------------------------------


@frozen(eq=False)
class Row:
    """One arrow of the table."""

    index: int
    """From 1; `REFUSED` is no row."""
    event: str
    source: enum.Enum
    target: enum.Enum
    guard: Guard[...] | None

    def __str__(self) -> str:
        condition = f" [{self.guard.name}]" if self.guard else ""
        return f"{self.source.name} --{self.event}{condition}--> {self.target.name}"


@frozen(eq=False)
class Event:
    """A verb of a lifecycle, with its rows and its compiled look-up."""

    name: str
    doc: str
    parameters: tuple[str, ...]
    guards: tuple[Guard[...], ...]
    """Distinct guards in the order in which they are first tried; guard *i* is bit *i* of the facts."""
    rows: tuple[Row, ...]
    table: Table = field(repr=False)
    lut: bytes = field(repr=False)
    """Row index by ``state << len(guards) | facts``."""
    _lut_view: NDArray[np.uint8] = field(repr=False, init=False)

    @_lut_view.default
    def _view(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.lut, dtype=np.uint8)

    def bit(self, wanted: Guard[...]) -> int:
        """The fact of one guard, as a mask."""
        return 1 << self.guards.index(wanted)

    def facts(self, payload: Mapping[str, object]) -> int | NDArray[np.uint8]:
        """The facts of one payload; a number, or an array where a value of the payload is an array."""
        total = np.zeros((), dtype=np.uint8)
        for bit, each in enumerate(self.guards):
            chosen = {name: payload[name] for name in each.parameters}
            try:
                holds = np.asarray(each.test(**chosen), dtype=np.bool_)
            except ValueError as problem:
                raise DefinitionError(
                    f"guard {each.name} cannot judge a batch: {problem} (write it with &, | and comparisons)"
                ) from problem
            total = total | (holds.view(np.uint8) << np.uint8(bit))
        return int(total) if total.ndim == 0 else total

    def rows_of(self, state: enum.Enum) -> tuple[Row, ...]:
        """The rows that start in *state*, in the order in which they are tried."""
        return tuple(row for row in self.rows if row.source is state)

    def lookup(self, at: NDArray[np.uint8], facts: int | NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Row of each place, from its state and facts; `REFUSED` where there is none."""
        width = len(self.guards)
        if len(self.lut) > 256:
            wide: NDArray[np.uint8] = self._lut_view[(at.astype(np.intp) << width) | facts]
            return wide
        index = at if width == 0 else (at << width) | np.asarray(facts, dtype=np.uint8)
        return np.frombuffer(index.tobytes().translate(self.lut.ljust(256, b"\0")), dtype=np.uint8)


@frozen(eq=False)
class Table:
    """A checked and compiled lifecycle: everything that drawing, exploring and exporting need to know."""

    name: str
    doc: str
    states: tuple[enum.Enum, ...]
    initial: enum.Enum
    finals: frozenset[enum.Enum]
    rows: tuple[Row, ...] = field(init=False, factory=tuple)
    events: Mapping[str, Event] = field(init=False, factory=dict)

    @functools.cached_property
    def index(self) -> Mapping[enum.Enum, int]:
        """The byte that stands for each state."""
        return {state: number for number, state in enumerate(self.states)}

    @functools.cached_property
    def targets(self) -> bytes:
        """Target state by row index; the first byte, for `REFUSED`, is never used."""
        return bytes([0, *(self.index[row.target] for row in self.rows)])

    def row(self, index: int) -> Row:
        """The row with that number."""
        return self.rows[index - 1]

    def event(self, name: str) -> Event:
        """The event of that name; `MisuseError` for one that this lifecycle does not have."""
        if name not in self.events:
            raise MisuseError(f"{self.name}: it has no event {name!r} (known are {', '.join(self.events)})")
        return self.events[name]

    def next_state(self, state: enum.Enum, event: str, facts: int = 0) -> enum.Enum | None:
        """Where *event* leads from *state* when just these guards hold, or None where it is refused."""
        compiled = self.event(event)
        if facts >> len(compiled.guards):
            raise MisuseError(f"{self.name}.{event}: {facts} are no facts of {len(compiled.guards)} guards")
        found = compiled.lut[self.index[state] << len(compiled.guards) | facts]
        return None if found == REFUSED else self.row(found).target

    def remedy(self, state: enum.Enum, event: str) -> str:
        """What to do about a refusal, in the words of the table.

        An event is named only where it alone leads on: of several ways the table cannot know which one the caller means.
        """
        rows = self.events[event].rows_of(state)
        if rows:
            guards = dict.fromkeys(row.guard for row in rows if row.guard)
            return "no guard held: " + "; ".join(f"{each.name}, {each.doc}".rstrip(", .") for each in guards)
        allowed = [goal for goal in self.states if self.events[event].rows_of(goal)]
        ways = {row.event for row in self.rows if row.source is state and row.target in allowed}
        if len(ways) == 1:
            return f"first {ways.pop()}"
        reached = {state}
        while more := {row.target for row in self.rows if row.source in reached} - reached:
            reached |= more
        if not reached.intersection(allowed):
            return f"no way leads from {state.name} to a state that allows it"
        return "it is allowed while " + ", ".join(goal.name for goal in allowed)

    def refuse(self, thing: str, state: enum.Enum, event: str, place: int | None = None) -> NoReturn:
        """Raise the refusal of *event* in *state*; *place* is the number of *thing*, where it is one of many."""
        raise RefusedError(thing, state.name, event, self.remedy(state, event), place)


# --- from one to the other ---------------------------------------------------------------------------------------------

painters: dict[str, Callable[[object], str | None]] = {}
"""How a notebook shows the things of this package, by the method that it asks for. Empty until what draws is imported."""


def painted(method: str, thing: object) -> str | None:
    """What a notebook shows of *thing*; None where nobody draws, and it shows the repr then."""
    painter = painters.get(method)
    return None if painter is None else painter(thing)


class Lifecycle:
    """Base of all lifecycles; an instance is one machine.

    ``class DoorLife(Lifecycle, initial=Door.CLOSED, finals={...})``. A state without a way out must be final, and every state
    must be reachable and must have a way home: to a final state, or to the initial one where none is final.
    """

    table: ClassVar[Table]
    _at: int
    _hooks: dict[str, list[Callable[[], None]]] | None = None

    def __init_subclass__(cls, *, initial: enum.Enum, finals: Iterable[enum.Enum] = (), **rest: object) -> None:
        super().__init_subclass__(**rest)
        if any(issubclass(base, Lifecycle) and base is not Lifecycle for base in cls.__bases__):
            raise DefinitionError(f"{cls.__name__}: a lifecycle cannot extend another; write its rows out")
        cls.table = _compile(cls, initial, frozenset(finals), _edges_of(cls))

    def __init__(self) -> None:
        self._at = self.table.index[self.table.initial]

    @property
    def state(self) -> enum.Enum:
        """Where this machine stands."""
        return self.table.states[self._at]

    def on(self, fired: Edge[SourceT, TargetT, P], hook: Callable[[], None]) -> None:
        """Call *hook* after every commit of this event on this machine, after the edge's own body.

        A hook that raises cannot undo the commit: the machine stands in its new state, and the exception reaches the caller.
        """
        if fired.event.table is not self.table:
            raise MisuseError(f"{fired.event.table.name}.{fired.name} is no event of {self.table.name}")
        if self._hooks is None:
            self._hooks = {}
        self._hooks.setdefault(fired.name, []).append(hook)

    def _run_hooks(self, event: str) -> None:
        for hook in (self._hooks or {}).get(event, ()):
            hook()

    def can(self, event: str) -> bool:
        """Whether *event* has a row in this state, guards aside."""
        return bool(self.table.event(event).rows_of(self.state))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name}>"

    def _repr_svg_(self) -> str | None:
        return painted("_repr_svg_", self)

    def _repr_html_(self) -> str | None:
        return painted("_repr_html_", self)


def _first_line(thing: object) -> str:
    text = inspect.getdoc(thing)
    return text.strip().splitlines()[0] if text else ""


def _runs_later(thing: object) -> bool:
    """Whether a call would only make a coroutine or a generator."""
    return inspect.iscoroutinefunction(thing) or inspect.isgeneratorfunction(thing) or inspect.isasyncgenfunction(thing)


def _spelt(annotation: object) -> str:
    """An annotation as text, the same with and without postponed evaluation."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


# Checks read the definition as a person would: what is written, where it leads, whether everything can be reached and left.


def _edges_of(cls: type[Lifecycle]) -> list[Edge[enum.Enum, enum.Enum, ...]]:
    """The edges written in the body of *cls*; they must stand under their own names and belong to it alone."""
    for base in cls.__mro__[1:]:
        for name, value in vars(base).items():
            if isinstance(value, Edge):
                raise DefinitionError(f"{cls.__name__}: edge {name} comes from {base.__name__}; write its rows out")
    found = []
    for name, value in vars(cls).items():
        if isinstance(value, Edge):
            if name != value.name:
                raise DefinitionError(f"{cls.__name__}.{name}: the edge is called {value.name}; use one name")
            if name in vars(Lifecycle) or name in Lifecycle.__annotations__:
                raise DefinitionError(f"{cls.__name__}.{name}: the name is taken by every lifecycle; choose another verb")
            if value._event is not None:
                raise DefinitionError(f"{cls.__name__}.{name}: the edge belongs to {value.event.table.name} already")
            found.append(value)
    return found


def _compile(
    cls: type[Lifecycle],
    initial: enum.Enum,
    finals: frozenset[enum.Enum],
    edges: Sequence[Edge[enum.Enum, enum.Enum, ...]],
) -> Table:
    """Check the definition of *cls*, compile it, and plant the generated methods."""
    name = cls.__name__
    if not isinstance(initial, enum.Enum):
        raise DefinitionError(f"{name}: the initial state must be a member of an enum, not {initial!r}")
    states = tuple(type(initial))
    table = Table(name, inspect.cleandoc(cls.__doc__ or ""), states, initial, finals)
    if len(states) != len(type(initial).__members__):
        raise DefinitionError(f"{name}: two states of {type(initial).__name__} have the same value")
    if not edges:
        raise DefinitionError(f"{name}: no edge is defined")
    for state in [*finals, *(end for each in edges for row in each.pending for end in (row.source, row.target))]:
        if not isinstance(state, type(initial)):
            raise DefinitionError(f"{name}: {state!r} is not a state of {type(initial).__name__}")

    rows: list[Row] = []
    for each in edges:
        for row in each.pending:
            if row.guard is not None and not isinstance(row.guard, Guard):
                raise DefinitionError(f"{name}.{each.name}: {row.guard!r} is not a guard (decorate the predicate with @guard)")
            rows.append(Row(len(rows) + 1, each.name, row.source, row.target, row.guard))
    if len(rows) > MAX_ROWS:
        raise DefinitionError(f"{name}: {len(rows)} rows; a table holds {MAX_ROWS}")
    object.__setattr__(table, "rows", tuple(rows))
    _check_shape(table)

    events = {each.name: _compile_event(table, each) for each in edges}
    object.__setattr__(table, "events", types.MappingProxyType(events))
    for each in edges:
        each._compiled(events[each.name], _generate(table, events[each.name], each.method))
    return table


def _check_shape(table: Table) -> None:
    """Refuse rows that can never be tried, states that cannot be reached, and traps."""
    closed: dict[tuple[str, enum.Enum], Row] = {}
    for row in table.rows:
        if (earlier := closed.get((row.event, row.source))) is not None:
            raise DefinitionError(f"{table.name}: {row} is never tried, because {earlier} stands above it without a guard")
        if row.guard is None:
            closed[row.event, row.source] = row
        if row.source in table.finals and row.target is not row.source:
            raise DefinitionError(f"{table.name}: {row} leaves a final state")

    def reach(starts: Iterable[enum.Enum], forward: bool) -> set[enum.Enum]:
        seen = set(starts)
        while True:
            ends = ((row.source, row.target) if forward else (row.target, row.source) for row in table.rows)
            if not (more := {end for start, end in ends if start in seen} - seen):
                return seen
            seen |= more

    reached = reach([table.initial], forward=True)
    if lost := [state.name for state in table.states if state not in reached]:
        raise DefinitionError(f"{table.name}: no way leads from {table.initial.name} to {', '.join(lost)}")
    homes = table.finals or {table.initial}
    leading_home = reach(homes, forward=False)
    if traps := [state.name for state in table.states if state not in leading_home]:
        wanted = (
            "a final state" if table.finals else f"the initial state {table.initial.name}; declare final states if it may end"
        )
        raise DefinitionError(f"{table.name}: no way leads from {', '.join(traps)} to {wanted}")


def _compile_event(table: Table, written: Edge[enum.Enum, enum.Enum, ...]) -> Event:
    """Compile the rows of one event into its look-up."""
    where = f"{table.name}.{written.name}"
    everything = list(inspect.signature(written.method).parameters.values())
    if not everything or everything[0].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
        raise DefinitionError(f"{where}: the first parameter of an edge is self")
    signature = everything[1:]
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD, each.POSITIONAL_ONLY) for each in signature):
        raise DefinitionError(f"{where}: a payload is a list of named parameters, without *args, **kwargs or /")
    for each in signature:
        if each.name.startswith("_") or each.name == "self":
            raise DefinitionError(f"{where}: {each.name} cannot name a payload; it may collide with generated code")
    parameters = tuple(each.name for each in signature)
    rows = tuple(row for row in table.rows if row.event == written.name)
    guards = tuple(dict.fromkeys(row.guard for row in rows if row.guard is not None))
    if len(guards) > MAX_GUARDS:
        raise DefinitionError(f"{where}: {len(guards)} guards; an event can have {MAX_GUARDS}")
    hints = {each.name: each.annotation for each in signature}
    for tested in guards:
        for parameter in inspect.signature(tested.test).parameters.values():
            if parameter.name not in hints:
                raise DefinitionError(
                    f"{where}: guard {tested.name} asks for {parameter.name!r}, which the payload does not have"
                )
            if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
                raise DefinitionError(f"{where}: guard {tested.name} must take {parameter.name} plainly, without * or /")
            if (taken := _spelt(parameter.annotation)) != (given := _spelt(hints[parameter.name])):
                raise DefinitionError(
                    f"{where}: guard {tested.name} takes {parameter.name} as {taken}, the payload gives {given}"
                )

    lut = bytearray(len(table.states) << len(guards))
    for place in range(len(lut)):
        state, facts = table.states[place >> len(guards)], place & ((1 << len(guards)) - 1)
        for row in rows:
            if row.source is state and (row.guard is None or facts >> guards.index(row.guard) & 1):
                lut[place] = row.index
                break
    doc = inspect.getdoc(written.method) or ""
    return Event(written.name, doc, parameters, guards, rows, table, bytes(lut))


def _empty(self: object) -> None:
    """Stand for a method that has only a docstring."""


def _generate(table: Table, event: Event, method: types.FunctionType) -> Callable[..., None]:
    """Write the method of a single machine: guard, commit, then the body as its effect.

    Generated, as attrs generates `__init__`, because a general ``*args`` method would cost as much as the whole transition
    and would swallow wrong calls. Every name of its own begins with an underscore, which no payload may.
    """
    scope: dict[str, object] = {"_body": method}
    declared = []
    starred = False
    for each in list(inspect.signature(method).parameters.values())[1:]:
        if each.kind is each.KEYWORD_ONLY and not starred:
            starred = True
            declared.append("*")
        if each.default is each.empty:
            declared.append(each.name)
        else:
            scope[f"_default_{each.name}"] = each.default
            declared.append(f"{each.name}=_default_{each.name}")

    def refuse(machine: Lifecycle) -> NoReturn:
        table.refuse(table.name, machine.state, event.name)

    scope["_refuse"] = refuse
    plain = [-1] * len(table.states)
    guarded: list[str] = []
    for number, state in enumerate(table.states):
        rows = event.rows_of(state)
        if rows and rows[0].guard is None:
            plain[number] = table.index[rows[0].target]
        elif rows:
            guarded.append(f"        {'el' if guarded else ''}if _at == {number}:")
            for row in rows:
                target = table.index[row.target]
                if row.guard is None:
                    guarded.append(f"            else: _to = {target}")
                    break
                tested = f"_guard_{event.guards.index(row.guard)}"
                scope[tested] = row.guard.test
                chain = "if" if row is rows[0] else "elif"
                chosen = ", ".join(row.guard.parameters)
                guarded.append(f"            {chain} {tested}({chosen}): _to = {target}")
            else:
                guarded.append("            else: _refuse(self)")
    guarded.append("        else: _refuse(self)" if guarded else "        _refuse(self)")
    scope["_targets"] = tuple(plain)

    lines = [
        f"def {event.name}({', '.join(['self', *declared])}):",
        "    _at = self._at",
        "    _to = _targets[_at]",
        "    if _to < 0:",
        *guarded,
        "    self._at = _to",
    ]
    if method.__code__.co_code != _empty.__code__.co_code:
        passed = [f"{each}={each}" for each in event.parameters]
        lines.append(f"    _body({', '.join(['self', *passed])})")
    lines += ["    if self._hooks is not None:", f"        self._run_hooks({event.name!r})"]
    exec(compile("\n".join(lines), f"<{table.name}.{event.name}>", "exec"), scope)
    made = scope[event.name]
    if not isinstance(made, types.FunctionType):
        raise DefinitionError(f"{table.name}.{event.name}: the method could not be generated")
    functools.update_wrapper(made, method)
    return made


# --- many places -------------------------------------------------------------------------------------------------------


class Column:
    """The states of many places of one lifecycle, one byte each, and how often each row was taken.

    `ask` finds the rows and refuses without a trace; `commit` writes them. Between the two a caller can ask other columns, so
    that several machines move together or not at all. The caller sees to it that the ids of one call are distinct, and none
    negative.
    """

    __slots__ = ("_targets", "_targets_view", "state", "table", "taken", "view")

    def __init__(self, table: Table, size: int) -> None:
        self.table = table
        self.state = bytearray([table.index[table.initial]]) * size
        # The same bytes twice: the scalar path indexes the bytearray, the bulk path the view (numpy is slow one by one).
        self.view: NDArray[np.uint8] = np.frombuffer(self.state, dtype=np.uint8)
        self.taken = [0] * (len(table.rows) + 1)
        self._targets = table.targets
        self._targets_view = np.frombuffer(self._targets, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.state)

    def at(self, place: int) -> enum.Enum:
        """The state of one place."""
        return self.table.states[self.state[place]]

    def ask(self, event: Event, ids: Ids, facts: Facts = 0) -> Rows:
        """The row that *event* takes from each place; raises `RefusedError` for the first place that has none."""
        if type(facts) is not int or facts >> len(event.guards):
            facts = self._checked(event, facts, len(ids) if type(ids) is list else self._size(ids))
        return self.look_up(event, ids, facts)

    def look_up(self, event: Event, ids: Ids, facts: Facts) -> Rows:
        """`ask`, for callers whose facts are known to be facts of the event's guards, one for each place."""
        if type(ids) is list:
            lut, state, width = event.lut, self.state, len(event.guards)
            if isinstance(facts, int):
                rows = [lut[state[place] << width | facts] for place in ids]
            else:
                each = facts.tolist() if isinstance(facts, np.ndarray) else facts
                rows = [lut[state[place] << width | fact] for place, fact in zip(ids, each, strict=True)]
            if REFUSED in rows:
                self.refuse(event, ids[rows.index(REFUSED)])
            return rows
        if isinstance(facts, Sequence):
            facts = np.fromiter(facts, dtype=np.uint8, count=len(facts))
        found = event.lookup(self.view[ids], facts)
        if len(found) == 0:
            return found
        raw = found.tobytes()  # bytes are searched faster than a short array is reduced
        if REFUSED in raw:
            self.refuse(event, int(np.arange(len(self.state))[ids][raw.index(REFUSED)]))
        return raw[0] if raw.count(raw[0]) == len(raw) else found

    def commit(self, ids: Ids, rows: Rows) -> None:
        """Write what `ask` found."""
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

    def fire(self, event: Event, ids: Ids, facts: Facts = 0) -> None:
        """Ask, then commit, where one column moves alone."""
        self.commit(ids, self.ask(event, ids, facts))

    def count(self) -> dict[enum.Enum, int]:
        """How many places are in each state."""
        return {state: int(np.count_nonzero(self.view == number)) for number, state in enumerate(self.table.states)}

    def where(self, state: enum.Enum) -> NDArray[np.int64]:
        """The places in *state*."""
        return np.flatnonzero(self.view == self.table.index[state]).astype(np.int64)

    def row_counts(self) -> Iterator[tuple[Row, int]]:
        """Every row of the table with the number of times it was taken."""
        return zip(self.table.rows, self.taken[1:], strict=True)

    def snapshot(self) -> bytes:
        """The states as bytes, for `restore`. What was counted is not part of them."""
        return bytes(self.state)

    def restore(self, saved: bytes) -> None:
        """Go back to a snapshot of this column."""
        self.state[:] = saved

    def _size(self, ids: Ids) -> int:
        return len(range(*ids.indices(len(self.state)))) if isinstance(ids, slice) else len(ids)

    def _checked(self, event: Event, facts: Facts, size: int) -> int | Sequence[int] | NDArray[np.uint8]:
        """*facts* in a form that the look-up can use; more bits than the event has guards would reach another state's rows."""
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
            raise MisuseError(f"{self.table.name}.{event.name}: {wrong} are no facts of {len(event.guards)} guards")
        return facts

    def refuse(self, event: Event, place: int) -> NoReturn:
        """Raise the refusal of *event* by one place."""
        thing = f"{self.table.name.removesuffix('Life').lower()} {place}"
        self.table.refuse(thing, self.at(place), event.name, place)


@frozen(eq=False)
class Handle(Generic[StateT_co]):
    """Some places of a pool, all seen in one state. It is used up by the first step that any of them takes."""

    ids: NDArray[np.int64]
    stamps: NDArray[np.uint32] = field(repr=False)
    pool: Pool = field(repr=False)

    def __len__(self) -> int:
        return len(self.stamps)


class Pool:
    """Many machines of one lifecycle of a user's own, moved in typed batches.

    The bodies of the edges are effects of single machines and do not run here: a pool holds states only.
    """

    def __init__(self, lifecycle: type[Lifecycle], size: int) -> None:
        if size < 1:
            raise MisuseError(f"a pool of {lifecycle.__name__}: the size must be at least 1, not {size}")
        self.column = Column(lifecycle.table, size)
        self._stamps = np.zeros(size, dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.column)

    def take(self, state: SourceT, ids: Iterable[int] | None = None) -> Handle[SourceT]:
        """A handle on the places in *state*: all of them, or just *ids*, which must be distinct and in that state."""
        if state not in self.column.table.index:
            raise MisuseError(f"{state!r} is no state of {self.column.table.name}")
        if ids is None:
            return self._handle(self.column.where(state))
        chosen = _places(ids)
        if len(np.unique(chosen)) != len(chosen):
            raise MisuseError(f"{self.column.table.name}: a place is named twice in {chosen.tolist()}")
        if len(chosen) and not (int(chosen.min()) >= 0 and int(chosen.max()) < len(self)):
            raise MisuseError(f"{self.column.table.name}: places are 0 to {len(self) - 1}, not {chosen.tolist()}")
        for place in chosen[self.column.view[chosen] != self.column.table.index[state]].tolist():
            raise MisuseError(f"{self.column.table.name}: place {place} is {self.column.at(place).name}, not {state.name}")
        return self._handle(chosen)

    def fire(
        self, fired: Edge[SourceT, TargetT, P], handle: Handle[SourceT], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[TargetT]:
        """Move the whole batch with one payload. Refuses, and changes nothing, if a place has moved on or has no row."""
        payload = inspect.signature(fired.method).bind(None, *args, **kwargs)
        payload.apply_defaults()
        return self._move(fired, handle, payload.arguments)

    def fire_each(
        self, fired: Edge[SourceT, TargetT, P], handle: Handle[SourceT], /, **payload: NDArray[np.generic]
    ) -> Handle[TargetT]:
        """Move the batch with a payload of arrays, one value per place."""
        missing = set(fired.event.parameters) ^ set(payload)
        if missing:
            raise MisuseError(f"{fired.name} takes {', '.join(fired.event.parameters) or 'nothing'}; check {sorted(missing)}")
        for name, values in payload.items():
            if np.shape(values) != (len(handle),):
                raise MisuseError(f"{fired.name}: {name} has shape {np.shape(values)}, for {len(handle)} places")
        return self._move(fired, handle, payload)

    def _move(
        self, fired: Edge[SourceT, TargetT, P], handle: Handle[SourceT], payload: Mapping[str, object]
    ) -> Handle[TargetT]:
        table = self.column.table
        if fired.event.table is not table:
            raise MisuseError(f"{fired.event.table.name}.{fired.name} is no event of {table.name}")
        if handle.pool is not self:
            raise MisuseError(f"{table.name}: the handle belongs to another pool")
        moved_on = self._stamps[handle.ids] != handle.stamps
        if moved_on.any():
            place = int(handle.ids[moved_on][0])
            state = self.column.at(place).name
            raise MisuseError(f"place {place}: this handle was used up, it is {state} now (take a new handle)")
        self.column.fire(fired.event, handle.ids, fired.event.facts(payload))
        self._stamps[handle.ids] += np.uint32(1)
        return Handle(handle.ids, self._stamps[handle.ids], self)

    def _handle(self, ids: NDArray[np.int64]) -> Handle[SourceT]:
        ids.setflags(write=False)
        return Handle(ids, self._stamps[ids], self)


def _places(ids: Iterable[int]) -> NDArray[np.int64]:
    """A copy of *ids* as an array; what is no integer is a `TypeError`, and is never rounded or read as a mask."""
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise TypeError(f"places are a row of integers, not {ids.dtype} of shape {ids.shape}")
        return ids.astype(np.int64)
    return np.fromiter(map(operator.index, ids), dtype=np.int64)
