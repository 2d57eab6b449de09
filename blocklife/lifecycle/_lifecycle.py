"""Lifecycles: the decorator of their events, the base of their classes, and how a class becomes a checked, compiled table.

The checks of a definition find rows that can never be tried, states that cannot be reached, and states that cannot be left.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar, cast, overload

from attrs import frozen

from blocklife.errors import DefinitionError, MisuseError, plain_repr
from blocklife.lifecycle._hooks import AnyEdge, Hooks, Subscription, Transition, What
from blocklife.lifecycle._table import Event, Guard, Row, Table, Tone, runs_later

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import TypeVar as TypeVarWithDefault

    from blocklife.lifecycle._handle import Handle

    StateT_co = TypeVarWithDefault("StateT_co", bound=enum.Enum, covariant=True, default=enum.Enum)
else:
    StateT_co = TypeVar("StateT_co", bound=enum.Enum, covariant=True)

P = ParamSpec("P")
MachineT = TypeVar("MachineT")
SourceT = TypeVar("SourceT", bound=enum.Enum)
TargetT = TypeVar("TargetT", bound=enum.Enum)
OtherT = TypeVar("OtherT", bound=enum.Enum)
NextT = TypeVar("NextT", bound=enum.Enum)

MAX_ROWS = 255
MAX_GUARDS = 8

painters: dict[str, Callable[[object], str | None]] = {}
"""How a notebook displays objects of this package, by display method. Empty until the drawing code is imported."""


def painted(method: str, thing: object) -> str | None:
    """What a notebook displays for *thing*; None, so that it shows the repr, if no drawing code is loaded."""
    painter = painters.get(method)
    return None if painter is None else painter(thing)


# --- events -------------------------------------------------------------------------------------------------------------


class edge(Generic[SourceT, TargetT]):  # noqa: N801 - it is used as a decorator
    """One row, or one per source state: ``@edge(S.FREED, to=S.ALLOCATED, when=guard)``.

    If the states are also given as types, ``@edge[Closed, Locked](Door.CLOSED, to=Door.LOCKED)``, mypy knows which handles the
    event accepts (`Pool.fire`) and checks that types and values agree.
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
        """Add these rows above the rows that *method* already has."""
        below = method.pending if isinstance(method, Edge) else ()
        written = method.method if isinstance(method, Edge) else method
        if not inspect.isfunction(written):
            raise DefinitionError(f"an edge must be a plain method, not {plain_repr(written)}")
        if runs_later(written):
            raise DefinitionError(f"edge {written.__name__}: the body runs at once; it cannot be async or a generator")
        here = tuple(_Pending(source, self._to, self._when) for source in self._sources)
        if not here:
            raise DefinitionError(f"edge {written.__name__}: name at least one state it starts from")
        return Edge(written, here + below)


@frozen
class _Pending:
    """A row as written, before the class exists."""

    source: enum.Enum
    target: enum.Enum
    guard: Guard[...] | None


if TYPE_CHECKING:

    class _Descriptor:
        """The base as mypy sees it: empty, so that `Edge` can declare its own return types."""

else:
    # property's __get__ runs in C and costs half as much as one in Python, on the hottest path of a single machine.
    _Descriptor = property


class Edge(_Descriptor, Generic[SourceT, TargetT, P]):
    """An event of a lifecycle: on the class the edge itself, on an instance the bound method that fires it."""

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

    def __repr__(self) -> str:
        return f"<edge {self.name}>" if self._event is None else f"{self._event.table.name}.{self.name}"

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

        # what a pool takes behind this event (`FiresBatch`, `FiresEach`): mypy then names the handle that does not fit
        def _batch(self, handle: Handle[SourceT], /, *args: P.args, **kwargs: P.kwargs) -> TargetT: ...
        def _each(self, handle: Handle[SourceT], /, **payload: NDArray[np.generic]) -> TargetT: ...


# --- machines -----------------------------------------------------------------------------------------------------------


class Lifecycle(Generic[StateT_co]):
    """Base of all lifecycles; an instance is one machine, which starts in its initial state, or in the state *at*.

    ``class DoorLife(Lifecycle[Door], initial=Door.CLOSED, finals={...})``. The enum of the states, given as type parameter, is
    the type of `state`. A state without outgoing rows must be final. Every state must be reachable, and from every state there
    must be a way to a final state, or to the initial one if none is final. ``tones={Door.BROKEN: Tone.FAILED}`` says as what
    drawings show a state; `Table.tone` has what they do otherwise.
    """

    table: ClassVar[Table]
    _at: int
    _hooks: Hooks[Transition] | None = None
    _place: int = 0
    _context: Mapping[str, object] = {}

    if TYPE_CHECKING:  # mypy refuses a class without `initial`; Python's own words for it would not say what to write

        def __init_subclass__(
            cls,
            *,
            initial: enum.Enum,
            finals: Iterable[enum.Enum] = (),
            tones: Mapping[enum.Enum, Tone] = types.MappingProxyType({}),
            **rest: object,
        ) -> None: ...

    else:

        def __init_subclass__(cls, *, initial=None, finals=(), tones=types.MappingProxyType({}), **rest):
            super().__init_subclass__(**rest)
            _define(cls, initial, frozenset(finals), types.MappingProxyType(dict(tones)))

    def __init__(self, at: StateT_co | None = None) -> None:
        if at is None:
            return
        found = self.table.index.get(at)
        if found is None:
            known = ", ".join(state.name for state in self.table.states)
            raise MisuseError(f"{self.table.name}: it cannot begin at {plain_repr(at)} (its states are {known})")
        self._at = found

    @property
    def state(self) -> StateT_co:
        """The current state."""
        return cast(StateT_co, self.table.states[self._at])

    def on(
        self,
        *what: What,
        entered: enum.Enum | None = None,
        left: enum.Enum | None = None,
        hook: Callable[[Transition], None] | None = None,
    ) -> Subscription[Transition]:
        """Register a hook for the steps of this machine: of some of its events (all by default), into or out of a state.

        A hook runs after the commit and the body of the edge, and gets a `Transition`. It cannot undo the step: the machine is
        in its new state, and an error of a hook reaches the caller after all have run. See `Hooks.on`.
        """
        own: Hooks[Transition] | None = vars(self).get("_hooks")
        if own is None:
            own = Hooks({self.table.name: self.table})
            for each in self._hooks or ():  # those of the class hear every machine
                own.add(each)
            self._hooks = own
        return own.on(*what, entered=entered, left=left, hook=hook)

    def report_to(self, hooks: Hooks[Transition], place: int, **context: object) -> None:
        """Report the steps of this machine to the hooks of an owner, as place *place*; *context* is added to every payload."""
        self._hooks, self._place, self._context = hooks, place, context

    def _notify(self, event: str, before: int, row: int, payload: Mapping[str, object]) -> None:
        """Called after an event was committed; *row* is 0 if the state has only one row."""
        hooks, table = self._hooks, self.table
        if hooks is not None and hooks.active:
            row = row or table.events[event].lut[before << len(table.events[event].guards)]
            if hooks.hears(table.name, row):
                hooks.notify([Transition(table, event, [self._place], row, {**self._context, **payload})])

    def can(self, event: AnyEdge | str) -> bool:
        """Whether an event has a row in this state, whatever the guards say: ``door.can(DoorLife.lock)``, or its name."""
        found = self.table.event(event) if isinstance(event, str) else getattr(event, "event", None)
        if not isinstance(found, Event) or found.table is not self.table:
            raise MisuseError(f"{plain_repr(event)} is not an event of {self.table.name}")
        return bool(found.rows_of(self.state))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.state.name}>"

    def _repr_svg_(self) -> str | None:
        return painted("_repr_svg_", self)

    def _repr_html_(self) -> str | None:
        return painted("_repr_html_", self)


# --- tables -------------------------------------------------------------------------------------------------------------


def _define(
    cls: type[Lifecycle], initial: enum.Enum | None, finals: frozenset[enum.Enum], tones: Mapping[enum.Enum, Tone]
) -> None:
    """Give a new class its table."""
    name = cls.__name__
    if any(issubclass(base, Lifecycle) and base is not Lifecycle for base in cls.__bases__):
        raise DefinitionError(f"{name}: a lifecycle cannot extend another; write its rows out")
    if initial is None:
        raise DefinitionError(f"{name}: it has no initial state (write class {name}(Lifecycle, initial=...))")
    cls.table = compile_table(cls, initial, finals, tones, _edges_of(cls))
    cls._at = cls.table.index[initial]


def _edges_of(cls: type[Lifecycle]) -> list[Edge[enum.Enum, enum.Enum, ...]]:
    """The edges defined in the body of *cls*; each must have its own name and belong to this class only."""
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


def _spelt(annotation: object) -> str:
    """An annotation as text; the same with and without postponed evaluation."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def compile_table(
    cls: type[Lifecycle],
    initial: enum.Enum,
    finals: frozenset[enum.Enum],
    tones: Mapping[enum.Enum, Tone],
    edges: Sequence[Edge[enum.Enum, enum.Enum, ...]],
) -> Table:
    """Check the definition of *cls*, compile it, and set the generated methods on the class."""
    name = cls.__name__
    if not isinstance(initial, enum.Enum):
        raise DefinitionError(f"{name}: the initial state must be a member of an enum, not {initial!r}")
    states = tuple(type(initial))
    table = Table(name, inspect.cleandoc(cls.__doc__ or ""), states, initial, finals, tones)
    if len(states) != len(type(initial).__members__):
        raise DefinitionError(f"{name}: two states of {type(initial).__name__} have the same value")
    if not edges:
        raise DefinitionError(f"{name}: no edge is defined")
    for state in [*finals, *tones, *(end for each in edges for row in each.pending for end in (row.source, row.target))]:
        if not isinstance(state, type(initial)):
            raise DefinitionError(f"{name}: {state!r} is not a state of {type(initial).__name__}")
    for state, tone in tones.items():
        if not isinstance(tone, Tone):
            raise DefinitionError(f"{name}: the tone of {state.name} is {tone!r} (give a Tone: {', '.join(Tone.__members__)})")

    rows: list[Row] = []
    for each in edges:
        for row in each.pending:
            if row.guard is not None and not isinstance(row.guard, Guard):
                raise DefinitionError(
                    f"{name}.{each.name}: {plain_repr(row.guard)} is not a guard (decorate the predicate with @guard)"
                )
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
        raise DefinitionError(f"{table.name}: no way leads from {table.initial.name} to {', '.join(lost)} (write a row)")
    homes = table.finals or {table.initial}
    leading_home = reach(homes, forward=False)
    if traps := [state.name for state in table.states if state not in leading_home]:
        home = "a final state" if table.finals else f"the initial state {table.initial.name}"
        remedy = "write a row" if table.finals else "write a row, or declare final states if it may end"
        raise DefinitionError(f"{table.name}: no way leads from {', '.join(traps)} to {home} ({remedy})")


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
    """Code to compare with: a method that has only a docstring."""


def _generate(table: Table, event: Event, method: types.FunctionType) -> Callable[..., None]:
    """Generate the method of a single machine: guard, commit, then the body as its effect.

    It is generated, as attrs does for `__init__`, because a general ``*args`` method would cost as much as the transition
    itself and would accept wrong calls. Its own names begin with an underscore, which payload names may not.
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

    def refuse(machine: Lifecycle, /, **payload: object) -> NoReturn:
        raise table.refusal(table.name, machine.state, event.name, payload=payload)

    scope["_refuse"] = refuse
    asked = ", ".join(f"{each}={each}" for each in dict.fromkeys(name for each in event.guards for name in each.parameters))
    plain = [-1] * len(table.states)
    guarded: list[str] = []
    for number, state in enumerate(table.states):
        rows = event.rows_of(state)
        if rows and rows[0].guard is None:
            plain[number] = table.index[rows[0].target]
        elif rows:
            guarded.append(f"        {'el' if guarded else ''}if _at == {number}:")
            for row in rows:
                step = f"_to = {table.index[row.target]}; _row = {row.index}"
                if row.guard is None:
                    guarded.append(f"            else: {step}")
                    break
                tested = f"_guard_{event.guards.index(row.guard)}"
                scope[tested] = row.guard.test
                chain = "if" if row is rows[0] else "elif"
                chosen = ", ".join(row.guard.parameters)
                guarded.append(f"            {chain} {tested}({chosen}): {step}")
            else:
                guarded.append(f"            else: _refuse(self, {asked})")
    guarded.append("        else: _refuse(self)" if guarded else "        _refuse(self)")
    scope["_targets"] = tuple(plain)

    lines = [
        f"def {event.name}({', '.join(['self', *declared])}):",
        "    _at = self._at",
        "    _to = _targets[_at]",
        "    _row = 0",
        "    if _to < 0:",
        *guarded,
        "    self._at = _to",
    ]
    if method.__code__.co_code != _empty.__code__.co_code:
        passed = [f"{each}={each}" for each in event.parameters]
        lines.append(f"    _body({', '.join(['self', *passed])})")
    payload = ", ".join(f"{each!r}: {each}" for each in event.parameters)
    lines += ["    if self._hooks is not None:", f"        self._notify({event.name!r}, _at, _row, {{{payload}}})"]
    exec(compile("\n".join(lines), f"<{table.name}.{event.name}>", "exec"), scope)
    made = scope[event.name]
    if not isinstance(made, types.FunctionType):
        raise DefinitionError(f"{table.name}.{event.name}: the method could not be generated")
    functools.update_wrapper(made, method)
    return made
