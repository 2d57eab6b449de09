"""Is every lifecycle a proper ``transitions`` machine, and does its markup say what it is?"""

from __future__ import annotations

import copy
import enum
import hashlib
import json
from typing import TYPE_CHECKING, cast

import pytest
from transitions import EventData, MachineError
from transitions.extensions.markup import MarkupMachine

from blocklife.errors import DefinitionError, MisuseError
from blocklife.lifecycle import Guard, Lifecycle, Table, edge, guard
from blocklife.machines import as_machine, export_markup
from blocklife.states import MACHINES

if TYPE_CHECKING:
    from transitions.extensions.markup import MarkupConfig

every_machine = pytest.mark.parametrize("table", MACHINES.values(), ids=list(MACHINES))


class Door(enum.Enum):
    """Where a door stands."""

    CLOSED = "shut, but not locked"
    LOCKED = "needs the code"
    GONE = "only the frame is left"


@guard
def knows(code: int) -> bool:
    """The code is right."""
    return code == 42


@guard
def strong(force: int) -> bool:
    """The door gives way."""
    return force > 9


class DoorLife(Lifecycle, initial=Door.CLOSED, finals=(Door.GONE,)):
    """A door."""

    @edge(Door.CLOSED, to=Door.LOCKED)
    def lock(self) -> None:
        """Turn the key."""

    @edge(Door.LOCKED, to=Door.CLOSED, when=knows)
    @edge(Door.LOCKED, Door.CLOSED, to=Door.GONE, when=strong)
    def push(self, code: int, force: int) -> None:
        """Try to get in."""


class Visitor:
    """A model that remembers what happened to it."""

    state: enum.Enum

    def __init__(self) -> None:
        self.seen: list[str] = []

    def remember(self, data: EventData) -> None:
        self.seen.append(data.event.name)


# --- as a machine ------------------------------------------------------------------------------------------------------


def test_machine_has_the_states_events_and_final_states_of_the_table() -> None:
    """Nothing is added and nothing is left out."""
    machine = as_machine(DoorLife)

    assert list(machine.states) == [state.name for state in Door]
    assert [name for name, state in machine.states.items() if state.final] == ["GONE"]
    assert machine.initial == "CLOSED"
    assert list(machine.events) == ["lock", "push"]


@every_machine
def test_machine_keeps_the_rows_of_each_state_in_table_order(table: Table) -> None:
    """The order in which ``transitions`` tries its transitions is the order of the rows."""
    machine = as_machine(table)
    for event in table.events.values():
        for state in table.states:
            wanted = [(row.target.name, row.guard.name if row.guard else None) for row in event.rows_of(state)]
            found = [
                (each.dest, next((getattr(condition.func, "__name__", None) for condition in each.conditions), None))
                for each in machine.get_transitions(event.name, state)
            ]

            assert found == wanted


def test_machine_takes_the_payload_as_keywords() -> None:
    """A guard gets what it asks for, out of all that the event brings."""
    machine = as_machine(DoorLife)

    assert machine.dispatch("lock")
    assert machine.dispatch("push", code=42, force=0)
    assert machine.get_model_state(machine).value is Door.CLOSED


def test_machine_raises_where_the_state_has_no_row() -> None:
    """A refusal without a row is ``transitions``' own error."""
    machine = as_machine(DoorLife)
    machine.dispatch("lock")

    with pytest.raises(MachineError, match="Can't trigger event lock from state LOCKED"):
        machine.dispatch("lock")


def test_machine_returns_false_where_no_guard_held() -> None:
    """A refusal by guards is an answer, not an error, and moves nothing."""
    machine = as_machine(DoorLife)
    machine.dispatch("lock")

    assert not machine.dispatch("push", code=1, force=1)
    assert machine.get_model_state(machine).value is Door.LOCKED


@pytest.mark.parametrize(("arguments", "payload"), [((), {"force": 3}), ((42, 0), {})])
def test_machine_names_the_payload_that_is_missing(arguments: tuple[int, ...], payload: dict[str, int]) -> None:
    """Forgotten and positional payloads are refused with the name of the guard, and move nothing."""
    machine = as_machine(DoorLife)
    machine.dispatch("lock")

    with pytest.raises(MisuseError, match=r"push: guard knows asks for code, .* as keyword arguments"):
        machine.dispatch("push", *arguments, **payload)
    assert machine.get_model_state(machine).value is Door.LOCKED


def test_machine_moves_a_model_of_the_users_own_and_calls_it_back() -> None:
    """What tables do not have, callbacks, works as it always does in ``transitions``."""
    visitor = Visitor()
    machine = as_machine(DoorLife, model=visitor)
    machine.after_state_change = visitor.remember
    machine.dispatch("lock")
    machine.dispatch("push", code=0, force=0)
    machine.dispatch("push", code=0, force=10)

    assert visitor.seen == ["lock", "push"]
    assert visitor.state is Door.GONE


def test_machine_refuses_events_that_it_could_not_plant_on_itself() -> None:
    """``transitions`` would only warn and leave the trigger out; a model of one's own takes it."""

    class Letter(enum.Enum):
        """Where a letter is."""

        HERE = "on the desk"

    class LetterLife(Lifecycle, initial=Letter.HERE):
        """A letter."""

        @edge(Letter.HERE, to=Letter.HERE)
        def dispatch(self) -> None:
            """Send it."""

    with pytest.raises(DefinitionError, match="has its own dispatch"):
        as_machine(LetterLife)
    assert list(as_machine(LetterLife, model=Visitor()).events) == ["dispatch"]


# --- as markup ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [*MACHINES.values(), DoorLife.table], ids=[*MACHINES, "door"])
def test_markup_is_json_that_says_all_of_the_table(table: Table) -> None:
    """States, events and guards with what they mean; a digest tells one lifecycle from another, and the same from itself."""
    markup: dict[str, object] = json.loads(json.dumps(export_markup(table)))
    digest = markup.pop("digest")
    text = json.dumps(markup, sort_keys=True, separators=(",", ":"))

    assert digest == hashlib.sha256(text.encode()).hexdigest()
    assert markup["states"] == {state.name: state.value for state in table.states}
    assert markup["events"] == {
        event.name: {"doc": event.doc, "payload": list(event.parameters)} for event in table.events.values()
    }
    assert markup["guards"] == {row.guard.name: list(row.guard.parameters) for row in table.rows if row.guard is not None}


@every_machine
def test_markup_says_what_the_markup_of_transitions_says(table: Table) -> None:
    """Its part for ``transitions`` is read by a ``MarkupMachine``, whose own export has the same transitions."""
    ours = export_markup(table)["machine"]
    assert isinstance(ours, dict)
    theirs = MarkupMachine(markup=copy.deepcopy(cast("MarkupConfig", ours))).get_markup_config()

    def text(transition: object) -> str:
        return json.dumps(transition, sort_keys=True)

    assert sorted(map(text, theirs["transitions"])) == sorted(map(text, ours["transitions"]))
    assert theirs["states"] == ours["states"]


def test_markup_of_two_guards_of_one_name_is_refused() -> None:
    """Names must tell guards apart, because names are all that markup has."""

    def guesses(code: int) -> bool:
        return code > 1

    other = Guard(guesses, "knows", "", ("code",))

    class OddLife(Lifecycle, initial=Door.CLOSED):
        """A door with two guards of one name."""

        @edge(Door.CLOSED, to=Door.LOCKED, when=knows)
        @edge(Door.LOCKED, to=Door.GONE, when=other)
        @edge(Door.GONE, to=Door.CLOSED)
        def push(self, code: int) -> None:
            """Push."""

    with pytest.raises(DefinitionError, match="two guards are called knows"):
        export_markup(OddLife)
