"""From the edges of a class to its table: the checks of a definition, the look-up of an event, and the generated methods.

The checks find rows that can never be tried, states that cannot be reached, and states that cannot be left.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from blocklife.errors import DefinitionError
from blocklife.lifecycle._edges import Edge
from blocklife.lifecycle._table import Event, Guard, Row, Table

if TYPE_CHECKING:
    from blocklife.lifecycle._machine import Lifecycle

MAX_ROWS = 255
MAX_GUARDS = 8


def _spelt(annotation: object) -> str:
    """An annotation as text; the same with and without postponed evaluation."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def compile_table(
    cls: type[Lifecycle],
    initial: enum.Enum,
    finals: frozenset[enum.Enum],
    edges: Sequence[Edge[enum.Enum, enum.Enum, ...]],
) -> Table:
    """Check the definition of *cls*, compile it, and set the generated methods on the class."""
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
    lines += ["    if self._hooks is not None:", f"        self._tell({event.name!r}, _at, _row, {{{payload}}})"]
    exec(compile("\n".join(lines), f"<{table.name}.{event.name}>", "exec"), scope)
    made = scope[event.name]
    if not isinstance(made, types.FunctionType):
        raise DefinitionError(f"{table.name}.{event.name}: the method could not be generated")
    functools.update_wrapper(made, method)
    return made
