"""Every lifecycle as a real ``transitions.Machine``, and as markup; the only file that knows ``transitions``.

Rules of this file:

* A machine made here decides exactly as the table does: the same rows, tried in the same order, the same guards. The tests
  hold the two side by side; neither is derived from the other's verdicts.
* Markup is data: names and text, no code.

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

import hashlib
import json
from collections.abc import Callable, Mapping

from transitions import EventData, Machine

from blocklife.errors import DefinitionError, MisuseError
from blocklife.lifecycle import Guard, Lifecycle, Row, Table

MARKUP_VERSION = 1
"""Increased when the format of the markup changes."""


# --- as a machine ------------------------------------------------------------------------------------------------------


def as_machine(lifecycle: type[Lifecycle] | Table, *, model: object | None = None) -> Machine:
    """Make a ``transitions`` machine from a lifecycle; its events are triggers, its states the members of the enum.

    Needs: the payload of an event as keyword arguments, ``machine.unlock(code=4711)``.
    Refuses: ``transitions.MachineError`` where the state has no row for the event; False where no guard held;
    `MisuseError` where the payload lacks a parameter of a guard. The state has not changed then.

    Not kept: an event without guards takes any payload, or none; the bodies of the edges do not run; and mypy knows neither the
    triggers nor the type of a state, so that a misspelt trigger is found when it is called.

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
