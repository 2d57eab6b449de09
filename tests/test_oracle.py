"""Do our tables and ``transitions`` agree, on every pair of state and event and on long walks?

Method: the same lifecycle runs as a ``transitions`` machine, as a single machine with generated methods, and as a column on
its scalar and its bulk path. None of them asks another; the tests hold their verdicts side by side.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pytest
from transitions import EventData, Machine, MachineError

from blocklife.errors import RefusedError
from blocklife.lifecycle import Column, Event, Lifecycle, Row, Table, edge, guard
from blocklife.machines import as_machine
from blocklife.states import BlockLife, JobLife, RequestLife, SlotLife


class Kettle(enum.Enum):
    """Where a kettle stands."""

    COLD = "cold"
    WARM = "warm"
    HOT = "hot"
    BROKEN = "for good"


@guard
def hot_enough(degrees: int) -> bool:
    """It boils."""
    return degrees > 1


@guard
def warm_enough(degrees: int) -> bool:
    """One would notice."""
    return degrees > 0


@guard
def dry(empty: bool) -> bool:
    """There is no water in it."""
    return empty


class KettleLife(Lifecycle, initial=Kettle.COLD, finals=(Kettle.BROKEN,)):
    """A lifecycle with overlapping guards, a closed state and a choice that can run dry."""

    @edge(Kettle.COLD, Kettle.WARM, to=Kettle.BROKEN, when=dry)
    @edge(Kettle.COLD, Kettle.WARM, to=Kettle.HOT, when=hot_enough)
    @edge(Kettle.COLD, to=Kettle.WARM, when=warm_enough)
    def heat(self, degrees: int, empty: bool) -> None:
        """Switch it on."""

    @edge(Kettle.HOT, to=Kettle.WARM, when=warm_enough)
    @edge(Kettle.HOT, Kettle.WARM, Kettle.COLD, to=Kettle.COLD)
    def cool(self, degrees: int) -> None:
        """Wait."""

    @edge(Kettle.HOT, to=Kettle.HOT)
    def pour(self) -> None:
        """Make tea."""


LIFECYCLES: tuple[type[Lifecycle], ...] = (BlockLife, SlotLife, JobLife, RequestLife, KettleLife)
VALUES: Mapping[str, Sequence[int]] = {"bool": (False, True), "int": (0, 1, 2)}
"""What a parameter can be, by its annotation: enough to make every guard hold and fail."""

STEPS = 12_000
PLACES = 12

parametrize = pytest.mark.parametrize("lifecycle", LIFECYCLES, ids=lambda each: each.__name__)


class Model:
    """What a machine moves."""

    state: enum.Enum


def domains(event: Event) -> dict[str, Sequence[int]]:
    """The values that each parameter of an event can have."""
    annotations = {
        name: str(parameter.annotation)
        for each in event.guards
        for name, parameter in inspect.signature(each.test).parameters.items()
    }
    return {name: VALUES[annotations.get(name, "bool")] for name in event.parameters}


def payloads(event: Event) -> Iterator[dict[str, int]]:
    """Every payload of an event."""
    values = domains(event)
    for chosen in itertools.product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def theirs(machine: Machine, model: Model, event: str, payload: Mapping[str, object]) -> enum.Enum | None:
    """Where ``transitions`` goes, or None where it refuses, by an error or by False."""
    before = model.state
    try:
        moved = machine.events[event].trigger(model, **payload)
    except MachineError:
        moved = False
    if not moved:
        assert model.state is before
    return model.state if moved else None


def single(machine: Lifecycle, event: str, payload: Mapping[str, object]) -> enum.Enum | None:
    """Where one machine of ours goes, or None where it refuses."""
    before = machine.state
    try:
        getattr(machine, event)(**payload)
    except RefusedError:
        assert machine.state is before
        return None
    return machine.state


def machine_with_facts(table: Table) -> Machine:
    """A machine whose guards hold exactly where the payload ``holding`` names them, possible or not."""
    machine = as_machine(table, model=Model())
    for event in machine.events.values():
        for transition in itertools.chain(*event.transitions.values()):
            for condition in transition.conditions:
                assert callable(condition.func)
                condition.func = named_fact(condition.func.__name__)
    return machine


def named_fact(name: str) -> Callable[[EventData], bool]:
    def holds(data: EventData) -> bool:
        return name in data.kwargs["holding"]

    return holds


@parametrize
def test_every_pair_of_state_and_event_agrees_for_every_payload(lifecycle: type[Lifecycle]) -> None:
    """From each state, each event leads the same way in all four runs, whatever the payload."""
    table = lifecycle.table
    model = Model()
    machine = as_machine(table, model=model)
    ours = lifecycle()
    scalar, bulk = Column(table, 1), Column(table, 1)
    for event, state in itertools.product(table.events.values(), table.states):
        for payload in payloads(event):
            machine.set_state(state, model)
            ours._at = scalar.state[0] = bulk.state[0] = table.index[state]
            facts = event.facts(payload)
            assert isinstance(facts, int)
            for column, ids in ((scalar, [0]), (bulk, np.array([0]))):
                with suppress(RefusedError):
                    column.fire(event, ids, facts)

            wanted = theirs(machine, model, event.name, payload)
            where = f"{table.name} {state.name} {event.name} {payload}"
            assert table.next_state(state, event.name, facts) is wanted, where
            assert single(ours, event.name, payload) is wanted, where
            assert scalar.at(0) is bulk.at(0) is (wanted or state), where


@parametrize
def test_every_combination_of_facts_agrees_even_those_no_payload_yields(lifecycle: type[Lifecycle]) -> None:
    """The order of the rows decides alike for all facts, so that a guard can change without a new look at the order."""
    table = lifecycle.table
    machine = machine_with_facts(table)
    model = machine.models[0]
    for event, state in itertools.product(table.events.values(), table.states):
        for facts in range(1 << len(event.guards)):
            holding = {each.name for each in event.guards if facts & event.bit(each)}
            machine.set_state(state, model)

            wanted = theirs(machine, model, event.name, {"holding": holding})
            assert table.next_state(state, event.name, facts) is wanted, f"{state.name} {event.name} {holding}"


@parametrize
def test_every_guard_is_seen_to_hold_and_to_fail(lifecycle: type[Lifecycle]) -> None:
    """The enumerated payloads are rich enough: each guard has both outcomes, and each row is taken."""
    table = lifecycle.table
    taken: set[Row] = set()
    for event in table.events.values():
        outcomes: set[tuple[str, bool]] = set()
        for payload in payloads(event):
            facts = event.facts(payload)
            assert isinstance(facts, int)
            outcomes |= {(each.name, bool(facts & event.bit(each))) for each in event.guards}
            found = {event.lut[table.index[state] << len(event.guards) | facts] for state in table.states}
            taken |= {table.row(index) for index in found if index}

        assert len(outcomes) == 2 * len(event.guards), event.name

    assert taken == set(table.rows)


@parametrize
@pytest.mark.parametrize("seed", [3, 77])
def test_batches_move_as_their_places_would_alone_or_not_at_all(lifecycle: type[Lifecycle], seed: int) -> None:
    """A batch with one refused place is refused whole; any other moves each place as ``transitions`` moves it."""
    dice = random.Random(seed)
    table = lifecycle.table
    events = list(table.events.values())
    models = [Model() for _ in range(PLACES)]
    machine = as_machine(table, model=models)
    scalar, bulk = Column(table, PLACES), Column(table, PLACES)
    moved = refused = 0
    for step in range(STEPS // 8):
        event = dice.choice(events)
        ids = dice.sample(range(PLACES), dice.randint(1, 4))
        drawn = {name: [dice.choice(values) for _ in ids] for name, values in domains(event).items()}
        where = f"seed {seed}, step {step}: {table.name} {event.name} of {ids} with {drawn}"
        before = [model.state for model in models]
        wanted = [
            theirs(machine, models[place], event.name, {name: values[number] for name, values in drawn.items()})
            for number, place in enumerate(ids)
        ]
        facts = event.facts({name: np.asarray(values) for name, values in drawn.items()})
        each_fact = [int(fact) for fact in np.broadcast_to(facts, len(ids))]
        if None in wanted:
            for place in ids:
                machine.set_state(before[place], models[place])
            refused += 1
            with pytest.raises(RefusedError):
                scalar.fire(event, ids, each_fact)
            with pytest.raises(RefusedError):
                bulk.fire(event, np.array(ids), facts)
        else:
            moved += 1
            scalar.fire(event, ids, each_fact)
            bulk.fire(event, np.array(ids), facts)
            if dice.random() < 0.2:
                restart(machine, models, scalar, bulk)

        states = [model.state for model in models]
        assert [scalar.at(place) for place in range(PLACES)] == states, where
        assert scalar.snapshot() == bulk.snapshot(), where
        assert scalar.taken == bulk.taken, where

    assert moved > 0, f"seed {seed}: no batch was ever lawful"
    assert refused > 0, f"seed {seed}: no batch was ever refused"


def restart(machine: Machine, models: Sequence[Model], *columns: Column) -> None:
    """Put the places that stand in a final state back to the beginning."""
    table = columns[0].table
    for place, model in enumerate(models):
        if model.state in table.finals:
            machine.set_state(table.initial, model)
            for column in columns:
                column.state[place] = table.index[table.initial]
