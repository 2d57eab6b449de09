"""The four machines and their couplings, against tables and guards that are written here a second time by hand.

A change of `blocklife/states.py` has to be repeated here, where a reviewer sees it row by row.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from attrs import evolve

from blocklife import states
from blocklife.errors import DefinitionError, RefusedError
from blocklife.ledger import jobs
from blocklife.lifecycle import Column, Lifecycle, Row, Table, Tone
from blocklife.states import (
    COPYING,
    COUPLINGS,
    KEYED,
    LIFELESS,
    MACHINES,
    NATURES,
    Block,
    BlockLife,
    Coupling,
    Job,
    JobLife,
    Nature,
    Request,
    RequestLife,
    Slot,
    SlotLife,
    Trait,
    coupled,
    ends_life,
    natures,
    states_with,
)

LIVES: Mapping[str, type[Lifecycle]] = {"block": BlockLife, "slot": SlotLife, "job": JobLife, "request": RequestLife}

PINNED = {
    "block": """
        FREED allocate -> ALLOCATED
        CACHED allocate -> ALLOCATED
        PENDING_STORE allocate -> ALLOCATED [lendable]
        IN_FLIGHT allocate -> FLUSHED [lendable]
        STALE allocate -> FLUSHED [fenced]
        CACHED acquire -> SEALED
        SEALED acquire -> SEALED
        PENDING_STORE acquire -> PENDING_STORE
        IN_FLIGHT acquire -> IN_FLIGHT
        ALLOCATED seal -> SEALED
        PLEDGED seal -> PENDING_STORE
        ALLOCATED plan_store -> PLEDGED
        SEALED plan_store -> PENDING_STORE
        CACHED plan_store -> PENDING_STORE
        ALLOCATED plan_load -> LOADING
        FLUSHED plan_load -> LOADING
        PENDING_STORE submit -> IN_FLIGHT
        LOADING submit -> LOADING
        PLEDGED cancel -> ALLOCATED
        PENDING_STORE cancel -> SEALED [held]
        PENDING_STORE cancel -> CACHED
        ALLOCATED release -> FREED
        PLEDGED release -> FREED
        LOADING release -> QUARANTINED [is_overdue]
        LOADING release -> STALE
        SEALED release -> SEALED [held]
        SEALED release -> CACHED
        PENDING_STORE release -> PENDING_STORE
        IN_FLIGHT release -> QUARANTINED [orphaned]
        IN_FLIGHT release -> IN_FLIGHT
        FLUSHED release -> QUARANTINED [is_overdue]
        FLUSHED release -> STALE
        LOADING land -> SEALED [arrived]
        LOADING land -> QUARANTINED [own_overdue]
        LOADING land -> STALE [own_pinned]
        LOADING land -> FREED [is_own]
        LOADING land -> LOADING
        IN_FLIGHT land -> SEALED [held]
        IN_FLIGHT land -> CACHED
        FLUSHED land -> ALLOCATED
        STALE land -> STALE [pinned]
        STALE land -> FREED
        QUARANTINED land -> QUARANTINED [is_overdue]
        QUARANTINED land -> STALE [pinned]
        QUARANTINED land -> FREED
        LOADING expire -> QUARANTINED [is_own]
        LOADING expire -> LOADING
        IN_FLIGHT expire -> IN_FLIGHT [held]
        IN_FLIGHT expire -> QUARANTINED
        FLUSHED expire -> FLUSHED
        STALE expire -> QUARANTINED
        QUARANTINED expire -> QUARANTINED
        CACHED drop -> FREED
        PENDING_STORE drop -> FREED [idle]
        IN_FLIGHT drop -> STALE [idle]
    """,
    "slot": """
        EMPTY reserve -> WRITING
        WRITING cancel -> EMPTY
        WRITING land -> READY [published]
        WRITING land -> EMPTY
        QUARANTINED land -> EMPTY
        WRITING expire -> QUARANTINED
        READY pin -> READY
        READY unpin -> READY
        STALE unpin -> STALE [pinned]
        STALE unpin -> EMPTY
        READY evict -> EMPTY [unpinned]
        READY drop -> STALE [pinned]
        READY drop -> EMPTY
        STALE drop -> STALE
    """,
    "job": """
        PLANNED submit -> IN_FLIGHT
        PLANNED cancel -> CANCELLED
        IN_FLIGHT finish -> IN_FLIGHT [more]
        IN_FLIGHT finish -> DONE [all_ok]
        IN_FLIGHT finish -> FAILED
        AWAITED finish -> AWAITED [more]
        AWAITED finish -> DONE [all_ok]
        AWAITED finish -> FAILED
        UNWANTED finish -> UNWANTED [more]
        UNWANTED finish -> CANCELLED
        QUARANTINED finish -> QUARANTINED [more]
        QUARANTINED finish -> FAILED
        DONE finish -> DONE
        FAILED finish -> FAILED
        CANCELLED finish -> CANCELLED
        IN_FLIGHT flush -> AWAITED
        AWAITED flush -> AWAITED
        UNWANTED flush -> UNWANTED
        QUARANTINED flush -> QUARANTINED
        IN_FLIGHT abandon -> UNWANTED
        AWAITED abandon -> UNWANTED
        IN_FLIGHT expire -> QUARANTINED
        AWAITED expire -> QUARANTINED
        UNWANTED expire -> QUARANTINED
        AWAITED quiesce -> FAILED
        QUARANTINED quiesce -> FAILED
        UNWANTED quiesce -> CANCELLED
    """,
    "request": """
        WAITING admit -> RUNNING
        PREEMPTED admit -> RUNNING
        WAITING plan_load -> LOADING
        PREEMPTED plan_load -> LOADING
        LOADING loaded -> RUNNING
        LOADING load_failed -> WAITING
        RUNNING preempt -> PREEMPTED
        LOADING preempt -> PREEMPTED
        WAITING finish -> FINISHED
        RUNNING finish -> FINISHED
        LOADING finish -> FINISHED
        PREEMPTED finish -> FINISHED
    """,
}
"""Every row, in the order in which it is tried."""

GUARDS: Mapping[str, Callable[[Mapping[str, int]], bool]] = {
    "lendable": lambda given: bool(given["fence"]) and given["refs"] == 0 and given["writes"] == 0,
    "fenced": lambda given: bool(given["fence"]) and given["writes"] == 0,
    "held": lambda given: given["refs"] > 0,
    "pinned": lambda given: given["pins"] > 0,
    "is_overdue": lambda given: given["overdue"] > 0,
    "idle": lambda given: given["refs"] == 0,
    "orphaned": lambda given: given["refs"] == 0 and given["overdue"] > 0,
    "arrived": lambda given: bool(given["own"] and given["ok"]),
    "own_overdue": lambda given: bool(given["own"]) and given["overdue"] > 0,
    "own_pinned": lambda given: bool(given["own"]) and given["pins"] > 0,
    "is_own": lambda given: bool(given["own"]),
    "published": lambda given: bool(given["ok"]),
    "unpinned": lambda given: given["pins"] == 0,
    "more": lambda given: given["outstanding"] > 0,
    "all_ok": lambda given: bool(given["ok"]),
}
"""What each guard means, in plain Python."""

ENDS_LIFE = """
    CACHED allocate -> ALLOCATED
    PENDING_STORE allocate -> ALLOCATED [lendable]
    IN_FLIGHT allocate -> FLUSHED [lendable]
    ALLOCATED release -> FREED
    PLEDGED release -> FREED
    LOADING release -> QUARANTINED [is_overdue]
    LOADING release -> STALE
    IN_FLIGHT release -> QUARANTINED [orphaned]
    FLUSHED release -> QUARANTINED [is_overdue]
    FLUSHED release -> STALE
    LOADING land -> QUARANTINED [own_overdue]
    LOADING land -> STALE [own_pinned]
    LOADING land -> FREED [is_own]
    LOADING expire -> QUARANTINED [is_own]
    IN_FLIGHT expire -> QUARANTINED
    CACHED drop -> FREED
    PENDING_STORE drop -> FREED [idle]
    IN_FLIGHT drop -> STALE [idle]
"""
"""The rows after which every older reference to the block is stale."""


def listing(table: Table) -> list[str]:
    """The rows of a table as lines of text."""
    return [
        f"{row.source.name} {row.event} -> {row.target.name}" + (f" [{row.guard.name}]" if row.guard else "")
        for row in table.rows
    ]


def lines(text: str) -> list[str]:
    """The lines of a literal, without its indentation."""
    return [line.strip() for line in text.strip().splitlines()]


def expected(machine: str, state: str, event: str, payload: Mapping[str, int]) -> str | None:
    """The target by the hand-written table, or None for a refusal."""
    for line in lines(PINNED[machine]):
        source, verb, _, target, *condition = line.split()
        if (source, verb) == (state, event) and (not condition or GUARDS[condition[0].strip("[]")](payload)):
            return target
    return None


def payloads(machine: str, event: str) -> list[dict[str, int]]:
    """Every payload of an event that its guards can tell apart."""
    parameters = list(inspect.signature(getattr(LIVES[machine], event).method).parameters.values())[1:]
    domains = [(False, True) if each.annotation == "bool" else (0, 1) for each in parameters]
    return [dict(zip((each.name for each in parameters), values, strict=True)) for values in itertools.product(*domains)]


MATRIX = [
    pytest.param(machine, state.name, event, payload, id="-".join([machine, state.name, event, *map(str, payload.values())]))
    for machine, table in MACHINES.items()
    for state in table.states
    for event in table.events
    for payload in payloads(machine, event)
]


@pytest.mark.parametrize("machine", MACHINES)
def test_tables_are_those_that_were_agreed_on(machine: str) -> None:
    """Every row of every machine stands here a second time."""
    found, agreed = listing(MACHINES[machine]), lines(PINNED[machine])
    missing, gone = [row for row in found if row not in agreed], [row for row in agreed if row not in found]

    assert found == agreed, (
        f"tests/test_states.py, PINNED[{machine!r}]: {missing} are new, {gone} are gone, or their order is another"
    )


def test_machines_are_the_four_and_no_other() -> None:
    """Each name leads to the table of its class."""
    assert {name: life.table for name, life in LIVES.items()} == dict(MACHINES)


@pytest.mark.parametrize(("machine", "state", "event", "payload"), MATRIX)
def test_matrix_every_pair_is_a_target_or_a_refusal(machine: str, state: str, event: str, payload: dict[str, int]) -> None:
    """One machine, a list of ids and an array agree with the hand-written table; a refusal changes nothing."""
    table = MACHINES[machine]
    wanted = expected(machine, state, event, payload)
    start = {each.name: number for number, each in enumerate(table.states)}[state]

    single = LIVES[machine]()
    single._at = start
    columns = [Column(table, 3), Column(table, 3)]
    for column in columns:
        column.state[1] = start
    compiled = table.events[event]
    facts = compiled.facts(payload)
    fire: Callable[..., None] = getattr(single, event)
    steps: list[Callable[[], None]] = [
        lambda: fire(**payload),
        lambda: columns[0].fire(compiled, [1], facts),
        lambda: columns[1].fire(compiled, np.array([1]), facts),
    ]
    words = set()
    for step in steps:
        if wanted is not None:
            step()
            continue
        with pytest.raises(RefusedError) as caught:
            step()
        words.add((caught.value.state, caught.value.event, caught.value.remedy))

    ended = wanted or state
    assert single.state.name == ended
    assert isinstance(facts, int)
    found = table.next_state(table.states[start], event, facts)
    assert (found.name if found else None) == wanted
    for column in columns:
        assert column.snapshot() == bytes([table.index[table.initial], table.index[type(single.state)[ended]], column.state[2]])
        assert column.at(0) is column.at(2) is table.initial
        assert sum(column.taken) == (wanted is not None)
    assert len(words) == (wanted is None)


def test_matrix_takes_every_row() -> None:
    """No row is hidden behind others: some payload takes it."""
    for machine, table in MACHINES.items():
        taken = set()
        for event in table.events.values():
            for payload in payloads(machine, event.name):
                facts = event.facts(payload)
                assert isinstance(facts, int)
                taken |= {event.lut[at << len(event.guards) | facts] for at in range(len(table.states))}

        assert taken - {0} == {row.index for row in table.rows}


# --- lives -------------------------------------------------------------------------------------------------------------


def test_lives_end_with_exactly_these_rows() -> None:
    """A life ends when content is forgotten or a new tenant comes; every other row leaves it alone."""
    ended = [line for line, row in zip(listing(BlockLife.table), BlockLife.table.rows, strict=True) if ends_life(row)]

    assert ended == lines(ENDS_LIFE)


def test_lives_begin_only_with_allocate() -> None:
    """From a state without a life only a new tenancy leads to one with a life."""
    begins = {row.event for row in BlockLife.table.rows if row.source in LIFELESS and row.target not in LIFELESS}

    assert begins == {"allocate"}


def test_sets_of_states_do_not_contradict_each_other() -> None:
    """What is keyed or copied has a life; a submitted copy source is keyed."""
    assert not LIFELESS & (KEYED | COPYING)
    assert {Block.PENDING_STORE, Block.IN_FLIGHT} == KEYED & COPYING
    assert {Block.PLEDGED} == COPYING - KEYED


def test_content_becomes_final_only_by_seal_or_landing() -> None:
    """No other event leads from open content to a key that may be read."""
    finals = {row.event for row in BlockLife.table.rows if row.source not in KEYED and row.target in KEYED}

    assert finals == {"seal", "land"}


# --- natures -----------------------------------------------------------------------------------------------------------

TRAITS: Mapping[type[enum.Enum], Mapping[str, str]] = {
    Block: {
        "FREE": "FREED CACHED",
        "ALIVE": "CACHED ALLOCATED PLEDGED LOADING SEALED PENDING_STORE IN_FLIGHT FLUSHED",
        "HELD": "ALLOCATED PLEDGED LOADING SEALED FLUSHED",
        "KEYED": "CACHED SEALED PENDING_STORE IN_FLIGHT",
        "COPYING": "PLEDGED PENDING_STORE IN_FLIGHT",
        "READ": "LOADING IN_FLIGHT FLUSHED STALE QUARANTINED",
        "WRITTEN": "LOADING STALE QUARANTINED",
    },
    Slot: {"FREE": "EMPTY", "KEYED": "WRITING READY", "READ": "READY STALE", "WRITTEN": "WRITING QUARANTINED"},
    Job: {
        "OUT": "IN_FLIGHT AWAITED UNWANTED QUARANTINED",
        "WANTED": "PLANNED IN_FLIGHT AWAITED",
        "OVER": "DONE FAILED CANCELLED",
    },
    Request: {"ADMITTED": "RUNNING LOADING", "OVER": "FINISHED"},
}
TONES = {
    Block: "REST REST USE COPY COPY USE COPY COPY COPY TROUBLE TROUBLE",
    Slot: "REST COPY USE TROUBLE TROUBLE",
    Job: "REST COPY COPY TROUBLE TROUBLE OVER FAILED OVER",
    Request: "REST USE COPY REST OVER",
}


@pytest.mark.parametrize("machine", TRAITS, ids=lambda each: each.__name__)
def test_natures_are_exactly_these(machine: type[enum.Enum]) -> None:
    """Every trait and every tone of every state."""
    agreed = TRAITS[machine]
    for trait in Trait:
        names = [state.name for state in machine if trait in NATURES[state].traits]
        assert names == agreed.get(trait.name, "").split(), (
            f"tests/test_states.py, TRAITS: {trait.name} are now {' '.join(names)}"
        )
    tones = [NATURES[state].tone.name for state in machine]
    assert tones == TONES[machine].split(), f"tests/test_states.py, TONES: {machine.__name__} has now {' '.join(tones)}"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "Block.FREED: Nature(Tone.REST, Trait.FREE)",
            "Block.FREED: Nature(Tone.REST)",
            "Block.FREED: block.allocate is never refused there, so its traits have to be FREE",
        ),
        (
            "    @edge(Job.DONE, to=Job.DONE)\n",
            "",
            "Job.DONE: its traits are OUT or OVER, so job.finish needs a row there without a guard",
        ),
        (
            "Block.STALE: Nature(Tone.TROUBLE, Trait.READ, Trait.WRITTEN)",
            "Block.STALE: Nature(Tone.TROUBLE)",
            "Block.STALE: block.land is never refused there, so its traits have to be READ or WRITTEN",
        ),
    ],
)
def test_traits_that_the_rows_do_not_bear_out_are_an_error_at_import(before: str, after: str, said: str) -> None:
    """Neither is changed without the other: what is free, or kept, is counted by its traits."""
    text = Path(states.__file__).read_text(encoding="utf-8")
    assert text.count(before) == 1

    with pytest.raises(DefinitionError, match=f"^{re.escape(said)}$"):
        exec(compile(text.replace(before, after), states.__file__, "exec"), {"__name__": "states_at_odds"})


@pytest.mark.parametrize("state", NATURES, ids=str)
def test_a_forgotten_state_is_an_error_at_import(state: enum.Enum) -> None:
    """The file without the row of one state is refused when it is imported, by the name of the state."""
    text = Path(states.__file__).read_text(encoding="utf-8")
    row = re.compile(rf"^ +{re.escape(str(state))}: Nature\(.*\n", re.MULTILINE)
    assert len(row.findall(text)) == 1

    with pytest.raises(DefinitionError, match=f"^{type(state).__name__}: no row for {state.name};"):
        exec(compile(row.sub("", text), states.__file__, "exec"), {"__name__": "states_without_a_row"})


def test_natures_of_another_machine_are_refused() -> None:
    """A row belongs to the machine of its table."""
    given: dict[enum.Enum, Nature] = {state: Nature(Tone.REST) for state in (*Slot, Block.FREED)}

    with pytest.raises(DefinitionError, match=r"^Block.FREED is not a state of Slot$"):
        natures(Slot, given)


def test_what_is_final_is_over() -> None:
    """A final state that is not said to be over is refused at import."""
    text = Path(states.__file__).read_text(encoding="utf-8")
    planted = text.replace("Job.DONE: Nature(Tone.OVER, Trait.OVER)", "Job.DONE: Nature(Tone.OVER)")
    assert planted != text

    with pytest.raises(DefinitionError, match=r"^JobLife: its final states must be those with the trait OVER$"):
        exec(compile(planted, states.__file__, "exec"), {"__name__": "states_of_two_minds"})


def test_handles_name_the_states_of_the_table() -> None:
    """What mypy is told in `ledger.jobs` is what the table says."""
    assert set(get_args(jobs.Out)) == states_with(Trait.OUT, Job)
    assert set(get_args(jobs.Submitted)) == states_with(Trait.OUT, Job) & states_with(Trait.WANTED, Job)
    assert set(get_args(jobs.Storable)) == {row.source for row in BlockLife.table.rows if row.event == "plan_store"}


# --- couplings ---------------------------------------------------------------------------------------------------------

ON_DEVICE = ("store", "load")
KINDS = (*ON_DEVICE, "demote", "promote")
OUTSIDE = {"job.plan", "ledger.reset"}
"""Causes that are no event of a machine: a job is made by its plan, and a reset is a verb of the ledger."""


def spelled(step: str) -> tuple[str, list[str], str | None]:
    """``machine.event|event(kind)`` in its parts."""
    found = re.fullmatch(r"(\w+)\.([\w|*]+)(?:\((\w+)\))?", step)
    assert found is not None, step
    return found[1], found[2].split("|"), found[3]


def events_of(step: str) -> list[str]:
    """The events that a step names, each as ``machine.event``."""
    machine, verbs, _ = spelled(step)
    named = list(MACHINES[machine].events) if verbs == ["*"] else verbs
    return [f"{machine}.{verb}" for verb in named]


EVENTS = {f"{machine}.{event}" for machine, table in MACHINES.items() for event in table.events}


@pytest.mark.parametrize("coupling", COUPLINGS, ids=lambda each: each.name)
def test_coupling_names_what_exists(coupling: Coupling) -> None:
    """Machines, events, states and kinds of job are real; the states are those the cause can lead to."""
    machine, verbs, kind = spelled(coupling.cause)
    if f"{machine}.{verbs[0]}" not in OUTSIDE:
        assert set(events_of(coupling.cause)) <= EVENTS
        reached = {row.target for row in MACHINES[machine].rows if row.event in verbs}
        assert set(coupling.into) <= reached
    elif coupling.into:
        assert set(coupling.into) <= set(MACHINES[machine].states)
    assert kind in (None, *KINDS)
    assert kind is None or machine == "job"

    assert coupling.effects
    for effect in coupling.effects:
        assert spelled(effect)[2] is None
        assert set(events_of(effect)) <= EVENTS
    assert coupling.why.endswith(".")


def test_couplings_have_distinct_names() -> None:
    """A coupling is quoted by its name."""
    assert len({each.name for each in COUPLINGS}) == len(COUPLINGS)


@pytest.mark.parametrize("coupling", COUPLINGS, ids=lambda each: each.name)
def test_coupled_finds_exactly_one(coupling: Coupling) -> None:
    """Looking a cause up gives the effects of its own row, for each state it may have led to."""
    machine = spelled(coupling.cause)[0]
    anywhere = MACHINES[machine].states if machine in MACHINES else (Job.PLANNED,)
    for state in coupling.into or anywhere:
        assert coupled(coupling.cause, state) == coupling.effects


def test_coupled_refuses_two_rows_for_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two couplings of one cause into one state are a mistake of the table, not a choice."""
    twice = next(each for each in COUPLINGS if each.name == "store-ended")
    monkeypatch.setattr(states, "COUPLINGS", (*COUPLINGS, evolve(twice, name="store-ended-again")))

    with pytest.raises(DefinitionError, match="coupled twice, by store-ended and store-ended-again"):
        coupled("job.finish(store)", Job.DONE)


def test_coupled_is_empty_where_nothing_follows() -> None:
    """A worker's report that leaves others outstanding moves the job alone."""
    for state in (Job.IN_FLIGHT, Job.AWAITED, Job.UNWANTED, Job.QUARANTINED):
        assert [coupled(f"job.finish({kind})", state) for kind in KINDS] == [()] * len(KINDS)


def causes_of_an_end() -> list[tuple[str, Job]]:
    """How a job can reach each terminal state; a proof of quiet couples as a finish does."""
    ends: set[tuple[str, Job]] = set()
    for row in JobLife.table.rows:
        if row.source is not row.target and isinstance(row.target, Job) and row.target in JobLife.table.finals:
            ends.add(("finish" if row.event == "quiesce" else row.event, row.target))
    return sorted(ends, key=str)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("event", "state"), causes_of_an_end())
def test_couplings_cover_every_end_of_a_job(event: str, state: Job, kind: str) -> None:
    """However a job ends, something is coupled that lets go of its places; of blocks where it touches some."""
    effects = coupled(f"job.{event}({kind})", state)

    assert {"block.land", "block.cancel", "slot.unpin", "slot.cancel", "slot.land"} & set(effects)
    assert any(effect.startswith("block.") for effect in effects) is (kind in ON_DEVICE)


def test_couplings_cover_plan_and_expiry_below() -> None:
    """A promotion reserves, and leaves its slots quarantined; a demotion only pins what it reads."""
    assert coupled("job.plan(promote)", Job.PLANNED) == ("slot.reserve",)
    assert coupled("job.expire(promote)", Job.QUARANTINED) == ("slot.expire",)
    assert coupled("job.plan(demote)", Job.PLANNED) == ("slot.pin",)
    assert coupled("job.expire(demote)", Job.QUARANTINED) == ()


@pytest.mark.parametrize("kind", ON_DEVICE)
def test_couplings_cover_plan_and_expiry(kind: str) -> None:
    """Both kinds of job pin their places when planned and leave the pins overdue when expired."""
    assert coupled(f"job.plan({kind})", Job.PLANNED)[0] == f"block.plan_{kind}"
    assert coupled(f"job.expire({kind})", Job.QUARANTINED)[0] == "block.expire"


def test_row_ends_no_life_in_other_machines() -> None:
    """Only blocks have lives: no row of another machine is taken for the end of one."""
    others: list[Row] = [row for table in MACHINES.values() if table is not BlockLife.table for row in table.rows]

    assert not [row for row in others if ends_life(row)]
