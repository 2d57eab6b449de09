"""SCXML that other readers take: parsed as XML, and run by python-statemachine against the compiled tables.

Goal: what the document decides is what the table decides. Method: every state, event and combination of guards of all four
machines is asked of an interpreter of SCXML that knows nothing of blocklife.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from blocklife.cli import main
from blocklife.drawing.scxml import NAMESPACE, OURS, scxml
from blocklife.lifecycle import Event, Lifecycle, Table, edge, guard
from blocklife.states import COUPLINGS, MACHINES

every_machine = pytest.mark.parametrize("name", MACHINES)


def tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def ours(name: str) -> str:
    return f"{{{OURS}}}{name}"


def states_of(root: ET.Element) -> Iterator[ET.Element]:
    """The elements that are states without states in them."""
    for element in root.iter():
        if element.tag in (tag("state"), tag("final")) and not any(each.tag == tag("state") for each in element):
            yield element


class Lamp(enum.Enum):
    """States whose names and meanings are a trial for XML."""

    OFF = 'dark & "cold" <1>'
    ON = 7
    GONE = "in pieces\x0b\n\n-- for good"


@guard
def bright(watts: int) -> bool:
    """More than <nothing> & less than all."""
    return watts > 0


class LampLife(Lifecycle, initial=Lamp.ON, finals=(Lamp.GONE,)):
    """A lamp."""

    @edge(Lamp.ON, to=Lamp.OFF)
    @edge(Lamp.OFF, to=Lamp.ON, when=bright)
    def turn(self, watts: int) -> None: ...

    @edge(Lamp.ON, Lamp.OFF, to=Lamp.GONE)
    def drop(self) -> None: ...


# --- as XML --------------------------------------------------------------------------------------------------------------


@every_machine
def test_scxml_has_every_row_in_its_order(name: str) -> None:
    """Transitions stand in their states in table order, with event, condition and target."""
    table = MACHINES[name]
    root = ET.fromstring(scxml({name: table}))
    found = [
        (state.get("id"), each.get("event"), each.get("cond"), each.get("target"))
        for state in states_of(root)
        for each in state.iter(tag("transition"))
    ]
    wanted = [
        (row.source.name, row.event, row.guard and f"_event.data.{row.guard.name}", row.target.name)
        for state in table.states
        for row in table.rows
        if row.source is state
    ]

    assert (root.tag, root.get("version"), root.get("initial")) == (tag("scxml"), "1.0", table.initial.name)
    assert found == wanted


@every_machine
def test_scxml_ends_only_where_nothing_can_happen(name: str) -> None:
    """A final state without rows is <final>; one with rows is a state that our namespace calls final."""
    table = MACHINES[name]
    root = ET.fromstring(scxml({name: table}))
    ends = {
        state.get("id"): (state.tag == tag("final"), len(list(state))) for state in states_of(root) if state.get(ours("ends"))
    }

    assert set(ends) == {state.name for state in table.finals}
    for state in table.finals:
        rows = [row for row in table.rows if row.source is state]
        assert ends[state.name] == (not rows, len(rows))


@every_machine
def test_scxml_tells_what_things_mean(name: str) -> None:
    """Meanings of states, payloads of events and what guards ask stand in a namespace of our own."""
    table = MACHINES[name]
    root = ET.fromstring(scxml({name: table}))

    assert {state.get("id"): state.get(ours("about")) for state in states_of(root)} == {
        state.name: state.value for state in table.states
    }
    assert {each.get("of"): each.get("payload", "").split() for each in root.iter(ours("event"))} == {
        event.name: list(event.parameters) for event in table.events.values()
    }
    assert {each.get("of"): each.get("reads", "").split() for each in root.iter(ours("guard"))} == {
        row.guard.name: list(row.guard.parameters) for row in table.rows if row.guard is not None
    }


def test_scxml_of_all_machines_keeps_them_apart() -> None:
    """Ids are unique, every target is a state of the same machine, and every coupling is told."""
    root = ET.fromstring(scxml(MACHINES, COUPLINGS))
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    regions = {each.get("id"): each for each in root.find(tag("parallel")) or []}

    assert len(set(ids)) == len(ids)
    for name, table in MACHINES.items():
        assert regions[name].get("initial") == f"{name}.{table.initial.name}"
        assert {each.get("id") for each in states_of(regions[name])} == {f"{name}.{state.name}" for state in table.states}
        for each in regions[name].iter(tag("transition")):
            assert {each.get("event", "").split(".")[0], each.get("target", "").split(".")[0]} == {name}
    assert [each.get("of") for each in root.iter(ours("coupling"))] == [each.name for each in COUPLINGS]


def test_scxml_holds_text_that_is_a_trial_for_xml() -> None:
    """Quotes, angle brackets, two hyphens and control characters come back as text; a meaning that is no text is left out."""
    root = ET.fromstring(scxml({"lamp": LampLife.table}))
    about = {state.get("id"): state.get(ours("about")) for state in states_of(root)}

    assert about == {"OFF": 'dark & "cold" <1>', "ON": None, "GONE": "in pieces -- for good"}
    assert [each.text for each in root.iter(ours("guard"))] == ["More than <nothing> & less than all."]


def test_draw_writes_scxml(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line writes the same document, with couplings where all machines are in it."""
    main(["draw", "slot", "--format", "scxml"])
    assert capsys.readouterr().out == scxml({"slot": MACHINES["slot"]})
    main(["draw", "all", "--format", "scxml"])
    assert capsys.readouterr().out == scxml(MACHINES, COUPLINGS)


# --- as a machine --------------------------------------------------------------------------------------------------------


class Interpreter:
    """A machine of python-statemachine that was read from a document."""

    def __init__(self, text: str) -> None:
        reason = "python-statemachine reads SCXML; it is a development dependency"
        processor = pytest.importorskip("statemachine.io.scxml.processor", reason=reason)
        self._processor: Any = processor.SCXMLProcessor()
        self._processor.parse_scxml("machine", text)

    def after(self, *steps: tuple[str, Mapping[str, bool]]) -> set[str]:
        """Where a new machine stands after these events."""
        machine = self._processor.start()
        for event, facts in steps:
            machine.send(event, **facts)
        return set(machine.configuration_values)


def ways(table: Table) -> dict[enum.Enum, list[tuple[str, dict[str, bool]]]]:
    """A shortest way to every state, with the guards that have to hold on it."""
    found: dict[enum.Enum, list[tuple[str, dict[str, bool]]]] = {table.initial: []}
    edge_of = list(found)
    for state in edge_of:
        for event in table.events.values():
            for facts in facts_of(event):
                target = table.next_state(state, event.name, as_bits(event, facts))
                if target is not None and target not in found:
                    found[target] = [*found[state], (event.name, facts)]
                    edge_of.append(target)
    return found


def facts_of(event: Event) -> Iterator[dict[str, bool]]:
    """Every combination of guards of an event."""
    names = [guard.name for guard in event.guards]
    for bits in itertools.product((False, True), repeat=len(names)):
        yield dict(zip(names, bits, strict=True))


def as_bits(event: Event, facts: Mapping[str, bool]) -> int:
    return sum(event.bit(guard) for guard in event.guards if facts[guard.name])


@every_machine
def test_scxml_decides_as_the_table_does(name: str) -> None:
    """For every state, event and combination of guards the interpreter stands where the table says; a refusal stays."""
    table = MACHINES[name]
    interpreter = Interpreter(scxml({name: table}))
    asked = 0
    for state, way in ways(table).items():
        for event in table.events.values():
            for facts in facts_of(event):
                wanted = table.next_state(state, event.name, as_bits(event, facts)) or state
                found = interpreter.after(*way, (event.name, facts))
                asked += 1

                assert found == {wanted.name}, (state.name, event.name, facts)
    print(f"{name}: {asked} steps")


def test_scxml_without_facts_takes_what_needs_none() -> None:
    """A sender that says nothing about guards gets the rows without one: a condition that cannot be judged does not hold."""
    interpreter = Interpreter(scxml({"lamp": LampLife.table}))

    assert interpreter.after(("turn", {})) == {"OFF"}
    assert interpreter.after(("turn", {}), ("turn", {})) == {"OFF"}
    assert interpreter.after(("turn", {}), ("turn", {"bright": True})) == {"ON"}


def test_scxml_of_all_machines_runs_side_by_side() -> None:
    """An event of one machine moves that one alone."""
    interpreter = Interpreter(scxml(MACHINES, COUPLINGS))
    begin = {f"{name}.{table.initial.name}" for name, table in MACHINES.items()}
    after = interpreter.after(("block.allocate", {"lendable": False}), ("request.finish", {}))

    assert begin <= interpreter.after()
    assert {each for each in after if "." in each} == begin - {"block.FREED", "request.WAITING"} | {
        "block.ALLOCATED",
        "request.FINISHED",
    }
