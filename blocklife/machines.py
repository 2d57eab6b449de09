"""Every lifecycle as a real ``transitions.Machine``, and as markup; the only file that knows ``transitions``.

Rules of this file:

* A machine made here decides exactly as the table does: the same rows, tried in the same order, the same guards. The tests
  hold the two side by side; neither is derived from the other's verdicts.
* Markup is data. Only names and text are read from it; callables come only from the mapping that the caller passes.

Theory. `as_machine` is for things that tables do not have: callbacks, hierarchical and asynchronous use, drawings that follow a
model. It costs many times more per event than the table and is not meant for pools of blocks. The bodies of the edges, which
are effects of single machines, do not run in it; add callbacks to the machine instead.

Refusals: an event without a row in the model's state raises ``transitions.MachineError``; an event with rows of which no guard
holds returns False. In both cases the state is unchanged.

`export_markup` writes a lifecycle as JSON. Its part ``machine`` is in the format of
``transitions.extensions.markup.MarkupMachine``. It is written from the table and not from such a machine, because that class
keeps transitions by source and would lose the order of rows across sources.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import json
import keyword
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

from transitions import EventData, Machine

from blocklife.errors import DefinitionError, MisuseError
from blocklife.lifecycle import Edge, Guard, Lifecycle, Row, Table, edge

MARKUP_VERSION = 1
"""Increased when the format of the markup changes; other versions are refused."""


# --- as a machine ------------------------------------------------------------------------------------------------------


def as_machine(lifecycle: type[Lifecycle] | Table, *, model: object | None = None) -> Machine:
    """Make a ``transitions`` machine from a lifecycle; its events are triggers, its states the members of the enum.

    Needs: the payload of an event as keyword arguments, ``machine.unlock(code=4711)``.
    Refuses: ``transitions.MachineError`` where the state has no row for the event; False where no guard held;
    `MisuseError` where the payload lacks a parameter of a guard. The state has not changed then.

    Without a *model* the machine is its own model.
    """
    table = _table_of(lifecycle)
    if model is None:
        _refuse_taken_names(table)
    states = [{"name": state, "final": state in table.finals} for state in table.states]
    chosen = Machine.self_literal if model is None else model
    rows = [
        {
            "trigger": row.event,
            "source": row.source,
            "dest": row.target,
            "conditions": None if row.guard is None else _condition(row.guard),
        }
        for row in table.rows
    ]
    return Machine(
        model=chosen,
        states=states,
        initial=table.initial,
        transitions=rows,
        send_event=True,
        auto_transitions=False,
        queued=False,
        name=table.name,
    )


def _table_of(lifecycle: type[Lifecycle] | Table) -> Table:
    return lifecycle if isinstance(lifecycle, Table) else lifecycle.table


def _refuse_taken_names(table: Table) -> None:
    """Refuse event names that the machine already uses; ``transitions`` would only warn and leave them out."""
    bare = Machine(model=None, initial=None)
    if taken := [name for name in table.events if hasattr(bare, name) or name == "trigger"]:
        raise DefinitionError(
            f"{table.name}: a transitions.Machine has its own {', '.join(taken)} (give as_machine a model of yours)"
        )


def _condition(guard: Guard[...]) -> Callable[[EventData], bool]:
    """A guard in the form that ``transitions`` calls, under the guard's own name."""

    def condition(data: EventData) -> bool:
        missing = [name for name in guard.parameters if name not in data.kwargs]
        if missing:
            given = ", ".join(data.kwargs) or "nothing"
            raise MisuseError(
                f"{data.event.name}: guard {guard.name} asks for {', '.join(missing)}, the payload has {given} "
                "(give the payload as keyword arguments)"
            )
        return guard(**{name: data.kwargs[name] for name in guard.parameters})

    condition.__name__ = guard.name
    condition.__doc__ = guard.doc
    return condition


# --- as markup ---------------------------------------------------------------------------------------------------------


def export_markup(lifecycle: type[Lifecycle] | Table) -> dict[str, object]:
    """Write a lifecycle as plain JSON data, with its guards by name.

    ``machine`` is the markup of ``transitions``; ``states``, ``events`` and ``guards`` hold what that format cannot express.
    ``digest`` detects accidental edits; it is no protection against deliberate ones.
    """
    table = _table_of(lifecycle)
    named: dict[str, Guard[...]] = {}
    for row in table.rows:
        if row.guard is not None and named.setdefault(row.guard.name, row.guard) is not row.guard:
            raise DefinitionError(f"{table.name}: two guards are called {row.guard.name}; markup knows them by name only")
    for state in table.states:
        if not isinstance(state.value, str):
            raise DefinitionError(
                f"{table.name}: the value of {state.name} is {state.value!r}; markup needs its meaning as text"
            )
    markup: dict[str, object] = {
        "version": MARKUP_VERSION,
        "doc": table.doc,
        "machine": {
            "name": table.name,
            "initial": table.initial.name,
            "send_event": True,
            "auto_transitions": False,
            "queued": False,
            "states": [
                {"name": state.name, "final": True} if state in table.finals else {"name": state.name} for state in table.states
            ],
            "transitions": [_written(row) for row in table.rows],
        },
        "states": {state.name: state.value for state in table.states},
        "events": {event.name: {"doc": event.doc, "payload": list(event.parameters)} for event in table.events.values()},
        "guards": {name: list(guard.parameters) for name, guard in named.items()},
    }
    markup["digest"] = _digest(markup)
    return markup


def import_markup(markup: Mapping[str, object], guards: Mapping[str, Guard[...]] | None = None) -> Table:
    """Read a lifecycle back, with the same checks as when a class is created.

    Needs: every guard that the markup names, in *guards*. Nothing is imported, evaluated or looked up elsewhere.
    Refuses: `DefinitionError` for markup that was changed or is incomplete, or that names a guard that is missing or takes
    another payload.
    """
    if markup.get("version") != MARKUP_VERSION:
        raise DefinitionError(f"markup: version is {markup.get('version')!r}; this release reads {MARKUP_VERSION}")
    rest = {key: value for key, value in markup.items() if key != "digest"}
    if markup.get("digest") != _digest(rest):
        raise DefinitionError("markup: the digest does not fit the content; it was changed after it was exported")
    reader = _MarkupReader(rest, guards or {})
    table = reader.table()
    if (again := export_markup(table)) != dict(markup):
        where = next(_differences(dict(markup), again, "markup"))
        raise DefinitionError(f"{where}: this is not how a lifecycle is exported")
    return table


def stand_ins(markup: Mapping[str, object]) -> dict[str, Guard[...]]:
    """Guards for `import_markup` with only the names and payloads that the markup gives.

    Enough to read, compare and draw a lifecycle without its code. A step that evaluates one of them is a `MisuseError`.
    """
    named = _mapping(markup.get("guards"), "guards")
    return {
        _name(name, "guards"): _stand_in(name, [_name(each, f"guards.{name}") for each in _sequence(reads, f"guards.{name}")])
        for name, reads in named.items()
    }


def _stand_in(name: str, parameters: Sequence[str]) -> Guard[...]:
    def test(**_payload: object) -> bool:
        raise MisuseError(f"guard {name} was read from markup, by its name alone (give import_markup the guard itself)")

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        signature = inspect.Signature([inspect.Parameter(each, kind, annotation="object") for each in parameters])
    except ValueError as problem:
        raise DefinitionError(f"markup: guards.{name}: {problem}") from problem
    setattr(test, "__signature__", signature)  # noqa: B010 - functions take it, their type does not know it
    return Guard(test, name, "", tuple(parameters))


def _written(row: Row) -> dict[str, object]:
    """One row in the format of ``transitions``."""
    plain: dict[str, object] = {"trigger": row.event, "source": row.source.name, "dest": row.target.name}
    return plain if row.guard is None else {**plain, "conditions": [row.guard.name]}


def _digest(content: Mapping[str, object]) -> str:
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise DefinitionError(f"markup: not plain JSON data ({problem})") from problem
    return hashlib.sha256(text.encode()).hexdigest()


def _differences(given: object, wanted: object, where: str) -> Iterator[str]:
    """Every place where two pieces of JSON data differ, as a path."""
    if isinstance(given, dict) and isinstance(wanted, dict):
        for key in [*given, *(key for key in wanted if key not in given)]:
            if key not in given or key not in wanted:
                yield f"{where}.{key}"
            else:
                yield from _differences(given[key], wanted[key], f"{where}.{key}")
    elif isinstance(given, list) and isinstance(wanted, list) and len(given) == len(wanted):
        for number, (ours, theirs) in enumerate(zip(given, wanted, strict=True)):
            yield from _differences(ours, theirs, f"{where}[{number}]")
    elif given != wanted or type(given) is not type(wanted):
        yield where


class _MarkupReader:
    """Turns markup into a lifecycle class; every value is checked before it is used."""

    def __init__(self, markup: Mapping[str, object], guards: Mapping[str, Guard[...]]) -> None:
        self._markup = markup
        self._machine = _mapping(markup.get("machine"), "machine")
        self._given = guards
        self._name = _name(self._machine.get("name"), "machine.name")

    def table(self) -> Table:
        """The compiled lifecycle."""
        states = self._states()
        finals = [
            self._state(states, each.get("name"), "machine.states")
            for each in (_mapping(each, "machine.states") for each in _sequence(self._machine.get("states"), "machine.states"))
            if each.get("final") is True
        ]
        edges = self._edges(states)

        def body(namespace: dict[str, object]) -> None:
            namespace["__doc__"] = _text(self._markup.get("doc"), "doc")
            namespace.update(edges)

        initial = self._state(states, self._machine.get("initial"), "machine.initial")
        made = types.new_class(self._name, (Lifecycle,), {"initial": initial, "finals": finals}, body)
        if not issubclass(made, Lifecycle):
            raise DefinitionError(f"markup: {self._name} did not become a lifecycle")
        return made.table

    def _states(self) -> dict[str, enum.Enum]:
        """The states, as members of an enum of their own."""
        meanings = _mapping(self._markup.get("states"), "states")
        members = [(_name(name, "states"), _text(meaning, f"states.{name}")) for name, meaning in meanings.items()]
        if not members:
            raise DefinitionError("markup: states is empty")
        try:
            made = enum.Enum(f"{self._name}State", members)  # type: ignore[misc]
        except (TypeError, ValueError) as problem:
            raise DefinitionError(f"markup: states: {problem}") from problem
        return dict(made.__members__)

    def _guards(self) -> dict[str, Guard[...]]:
        """The guards that the markup names, from the given mapping."""
        found: dict[str, Guard[...]] = {}
        for name, parameters in _mapping(self._markup.get("guards"), "guards").items():
            guard = self._given.get(name)
            if not isinstance(guard, Guard) or guard.name != name:
                raise DefinitionError(f"markup: guard {name} is not among those given ({', '.join(self._given) or 'none'})")
            if list(guard.parameters) != parameters:
                raise DefinitionError(f"markup: guard {name} takes {list(guard.parameters)}, the markup says {parameters}")
            found[name] = guard
        return found

    def _edges(self, states: Mapping[str, enum.Enum]) -> dict[str, object]:
        """The events in order, each as a method with its rows."""
        guards = self._guards()
        events = _mapping(self._markup.get("events"), "events")
        rows: dict[str, list[tuple[edge[enum.Enum, enum.Enum], Guard[...] | None]]] = {name: [] for name in events}
        for number, each in enumerate(_sequence(self._machine.get("transitions"), "machine.transitions")):
            where = f"machine.transitions[{number}]"
            row = _mapping(each, where)
            trigger = row.get("trigger")
            if not isinstance(trigger, str) or trigger not in rows:
                raise DefinitionError(f"markup: {where}: {trigger!r} is not one of the events {', '.join(events)}")
            guard = self._condition(row, where, guards)
            source = self._state(states, row.get("source"), f"{where}.source")
            target = self._state(states, row.get("dest"), f"{where}.dest")
            rows[trigger].append((edge(source, to=target, when=guard), guard))

        made: dict[str, object] = {}
        for name, described in events.items():
            where = f"events.{name}"
            entry = _mapping(described, where)
            payload = [_name(each, f"{where}.payload") for each in _sequence(entry.get("payload"), f"{where}.payload")]
            asked = [guard for _, guard in rows[name] if guard is not None]
            event = _method(_name(name, "events"), _text(entry.get("doc"), f"{where}.doc"), payload, asked)
            # From the last row to the first, because a decorator puts its rows above the existing ones.
            for written, _ in reversed(rows[name]):
                event = written(event)
            if not isinstance(event, Edge):
                raise DefinitionError(f"markup: {where} has no transition")
            made[name] = event
        return made

    def _condition(self, row: Mapping[str, object], where: str, guards: Mapping[str, Guard[...]]) -> Guard[...] | None:
        """The guard of one row, if it has one."""
        names = _sequence(row.get("conditions", []), f"{where}.conditions")
        if not names:
            return None
        if len(names) > 1 or not isinstance(names[0], str) or names[0] not in guards:
            raise DefinitionError(f"markup: {where}.conditions: {names!r} is not one of the guards {', '.join(guards)}")
        return guards[names[0]]

    def _state(self, states: Mapping[str, enum.Enum], name: object, where: str) -> enum.Enum:
        if not isinstance(name, str) or name not in states:
            raise DefinitionError(f"markup: {where}: {name!r} is not one of the states {', '.join(states)}")
        return states[name]


def _method(
    name: str, doc: str, payload: Sequence[str], guards: Sequence[Guard[...]]
) -> Callable[..., None] | Edge[enum.Enum, enum.Enum, ...]:
    """An event without an effect; its parameters have the types that its guards declare."""
    asked = [each for guard in guards for each in inspect.signature(guard.test).parameters.values()]
    annotations = {each.name: each.annotation for each in reversed(asked)}
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(each, kind, annotation=annotations.get(each, "object")) for each in payload]

    def method(self: object) -> None:
        """Body of an event that was read from markup."""

    method.__name__ = method.__qualname__ = name
    method.__doc__ = doc
    try:
        signature = inspect.Signature([inspect.Parameter("self", kind), *parameters])
    except ValueError as problem:
        raise DefinitionError(f"markup: events.{name}.payload: {problem}") from problem
    setattr(method, "__signature__", signature)  # noqa: B010 - functions take it, their type does not know it
    return method


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DefinitionError(f"markup: {where} is not a mapping with names as keys, but {value!r}")
    return value


def _sequence(value: object, where: str) -> Sequence[object]:
    if not isinstance(value, list):
        raise DefinitionError(f"markup: {where} is not a list, but {value!r}")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise DefinitionError(f"markup: {where} is not text, but {value!r}")
    return value


def _name(value: object, where: str) -> str:
    """Check that a name is a plain identifier: names become methods and parameters."""
    if not isinstance(value, str) or not value.isidentifier() or keyword.iskeyword(value) or value.startswith("_"):
        raise DefinitionError(f"markup: {where}: {value!r} is not a name")
    return value
