"""Every state of small ledgers: what holds in all of them, how many there are, and which rows of the tables are taken.

Goal: with all verbs in all orders, the real ledger keeps its promises beside a device that runs by itself, and no row of a
table is there for nothing. Method: `LedgerWorld` is explored to the end; counts are pinned, so that whoever changes a rule
sees what it does. `test_promela.py` holds the same counts against SPIN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from attrs import evolve

from blocklife.core import _couplings as couplings
from blocklife.core._columns import Core
from blocklife.errors import MisuseError
from blocklife.ledger import Completion
from blocklife.ledger._checks import Checks
from blocklife.states import MACHINES
from blocklife.testing import Bounds, Exploration, Kind, Property, Verdict, explore
from tests.planting import planted
from tests.proof.ledger_world.settings import LedgerSettings
from tests.proof.ledger_world.verbs import LedgerAction
from tests.proof.ledger_world.world import LedgerState, LedgerWorld

COUNTS: dict[str, tuple[int, int]] = {
    "smallest": (212, 162),
    "smallest,contract=hold": (92, 92),
    "verbs": (1_604, 746),
    "verbs,contract=hold": (1_396, 698),
    "loads": (958, 652),
    "loads,contract=hold": (114, 114),
    "failures": (2_640, 1_954),
    "failures,contract=hold": (274, 274),
    "ahead": (1_587, 1_106),
    "ahead,contract=hold": (153, 153),
    "deadlines": (6_506, 5_312),
    "echoes": (1_006, 900),
    "echoes,contract=hold": (754, 676),
    "windows,contract=hold": (4_461, 3_604),
    "workers,contract=hold": (778, 778),
}
"""Of each world: its states, and those of its abstraction, which SPIN has to count, too."""

SLOW_COUNTS: dict[str, tuple[int, int]] = {
    "deadlines,contract=hold": (4_182, 3_380),
    "windows": (5_585, 4_432),
    "workers": (16_562, 14_602),
    "rivals": (35_360, 24_768),
    "rivals,contract=hold": (3_680, 3_680),
    "twins": (68_266, 25_632),
    "twins,contract=hold": (7_370, 3_822),
}
"""The same for larger worlds."""

BELOW_COUNTS: dict[str, int] = {
    "below,verbs=evict": 824,
    "below,verbs=evict,contract=hold": 670,
    "below,verbs=abandon+cancel+evict+reset": 1_524,
    "below,verbs=abandon+cancel+evict+reset,contract=hold": 1_216,
    "below,losses=1,verbs=evict+expire+quiesce": 4_160,
    "below,losses=1,verbs=evict+expire+quiesce,contract=hold": 3_502,
    "below,workers=2,verbs=evict": 4_832,
    "below,workers=2,verbs=evict,contract=hold": 3_978,
    "below,jobs=2,failures=1,verbs=evict,contract=hold": 5_946,
}
"""Worlds with a store below the slots, which SPIN's model does not have: their states."""

SLOW_BELOW_COUNTS: dict[str, int] = {
    "below,jobs=2,failures=1,verbs=evict": 13_044,
    "below,workers=2,failures=1,verbs=evict": 14_080,
    "below,workers=2,failures=1,verbs=evict,contract=hold": 11_266,
}
"""The same for larger worlds."""

COVERING = (
    "verbs",
    "echoes",
    "workers=2,failures=1,verbs=abandon+expire+flush",
    "requests=2,shared",
    "loads,verbs=pin+reset",
)
"""Worlds that take most rows together."""

BEHIND_A_FENCE = (
    "add 0, admit 0, allocate 0 0, seal 0 0, preempt 0, store 0 0 0, dispatch, settle, dispatch, settle, land 0 0, report 0 0, "
    "add 1, admit 1, allocate 1 0, seal 1 0, preempt 1, store 0 1 0, dispatch, settle, dispatch, settle"
)
"""Slot 0 has content of request 0, and a store of the other request's content runs: a load can come behind a fence."""


class Counted(LedgerWorld):
    """A world that notes the abstraction of each of its states."""

    def __init__(self, settings: LedgerSettings, begin: str = "") -> None:
        super().__init__(settings)
        self.abstractions: set[tuple[int, ...]] = set()
        self.begin = [each.split() for each in begin.split(",") if each]

    def initial(self) -> LedgerState:
        state = super().initial()
        for verb, *places in self.begin:
            state = self.step(state, LedgerAction(verb, tuple(map(int, places))))
        return state

    def properties(self) -> list[Property[LedgerState, LedgerAction]]:
        def note(state: LedgerState) -> str:
            self.abstractions.add(self.abstract(state))
            return ""

        return [*super().properties(), Property("counted", Kind.ALWAYS, "its abstraction is counted", always=note)]


@cache
def explored(text: str) -> tuple[Counted, Exploration[LedgerAction]]:
    """A world, and what a search of it has found."""
    world = Counted(LedgerSettings.parse(text))
    return world, explore(world, processes=1)


def described(found: Exploration[LedgerAction]) -> list[str]:
    """Each counterexample in a line."""
    return [f"{each.rule}: {each.message} after {', '.join(map(str, each.actions))}" for each in found.counterexamples]


def check_counts(text: str, counts: tuple[int, int]) -> None:
    world, found = explored(text)

    assert described(found) == []
    assert found.verdict is Verdict.HOLDS
    seen = found.states, len(world.abstractions)
    assert seen == counts, f"{text}: {seen} states and abstractions (write them into COUNTS if the rules have changed)"


# --- states ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", list(COUNTS))
def test_ledger_world_keeps_its_promises_and_its_size(text: str) -> None:
    """All rules hold in every state, everything drains, and there are as many states as ever."""
    check_counts(text, COUNTS[text])


@pytest.mark.parametrize("text", list(BELOW_COUNTS))
def test_ledger_world_with_a_store_below_keeps_its_promises_and_its_size(text: str) -> None:
    """Content goes below and comes back, vanishes there, fails on the way, or is missing on one of two workers."""
    check_counts_below(text, BELOW_COUNTS[text])


def check_counts_below(text: str, states: int) -> None:
    _, found = explored(text)

    assert described(found) == []
    assert (found.verdict, found.states) == (Verdict.HOLDS, states)


@pytest.mark.slow
@pytest.mark.parametrize("text", list(SLOW_COUNTS))
def test_larger_ledger_world_keeps_its_promises_and_its_size(text: str) -> None:
    """The same for worlds of two blocks, slots or workers, and for the other contract of two that every run explores."""
    check_counts(text, SLOW_COUNTS[text])


@pytest.mark.slow
@pytest.mark.parametrize("text", list(SLOW_BELOW_COUNTS))
def test_larger_ledger_world_with_a_store_below_keeps_its_promises_and_its_size(text: str) -> None:
    """Copies that fail beside others that go on, and of two workers one that fails."""
    check_counts_below(text, SLOW_BELOW_COUNTS[text])


@pytest.mark.slow
def test_ledger_worlds_take_every_row() -> None:
    """No row of the four tables is there for nothing: some state of some world leads over it."""
    taken = {(machine, row.index): 0 for machine, table in MACHINES.items() for row in table.rows}
    for text in COVERING:
        add_coverage(taken, explored(text)[0])
    behind = Counted(LedgerSettings.parse("rivals,verbs=expire"), BEHIND_A_FENCE)
    explore(behind, Bounds(max_states=6_000), every=True, processes=1)
    add_coverage(taken, behind)

    never = [f"{machine} {MACHINES[machine].row(row)}" for (machine, row), times in taken.items() if not times]
    assert not never, (
        f"no world takes {', '.join(never)} (write its verb into tests/proof/ledger_world/verbs.py, or delete the row)"
    )


def add_coverage(taken: dict[tuple[str, int], int], world: LedgerWorld) -> None:
    for machine, rows in world.coverage().items():
        for row, times in rows.items():
            taken[machine, row] += times


@pytest.mark.parametrize("text", ["verbs", "echoes", pytest.param("deadlines", marks=pytest.mark.slow)])
def test_ledger_world_abstraction_loses_nothing(text: str) -> None:
    """States that look the same can do the same, and look the same afterwards."""
    world = LedgerWorld(LedgerSettings.parse(text))
    futures: dict[tuple[int, ...], frozenset[tuple[LedgerAction, tuple[int, ...]]]] = {}
    different = 0
    for state in states_of(world):
        future = frozenset((action, world.abstract(world.step(state, action))) for action in world.actions(state))
        different += futures.setdefault(world.abstract(state), future) != future

    assert different == 0


def states_of(world: LedgerWorld) -> list[LedgerState]:
    known = {world.initial(): None}
    todo = list(known)
    for state in todo:
        for action in world.actions(state):
            after = world.step(state, action)
            if after not in known:
                known[after] = None
                todo.append(after)
    return todo


@pytest.mark.parametrize("text", ["loads", "workers=2", "slots=2,jobs=2"])
def test_ledger_world_heaps_of_reports_lead_nowhere_else(text: str) -> None:
    """A plan settled together with all reports is a plan settled after them: no state is new."""
    _, alone = explored(text)
    heaps = explore(LedgerWorld(evolve(LedgerSettings.parse(text), bulk=True)))

    assert described(heaps) == []
    assert heaps.edges > alone.edges
    assert heaps.states == alone.states


def test_ledger_world_runs_the_real_code_once_for_each_call() -> None:
    """What a verb makes of a ledger is remembered: there are far fewer calls than steps."""
    world, found = explored("below,workers=2,verbs=evict")

    assert world.ledger.verb_calls < found.edges / 5


# --- planted bugs ------------------------------------------------------------------------------------------------------


def trusting(patch: pytest.MonkeyPatch) -> None:
    """A promotion that is DONE publishes all that was asked for, also what did not come."""
    real = couplings.step_job

    def step_job(core: Core, row: int, event: int, cause: int, facts: int) -> int:
        core.jobs.missing.pop(core.jobs.number[row], None)
        return real(core, row, event, cause, facts)

    planted(patch, real, step_job)


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """Of several workers only the last one to report decides what a promotion has brought."""
    real = Checks.report

    def report(check: Checks, completion: Completion) -> None:
        check._data.core.jobs.missing.pop(completion.job.number, None)
        real(check, completion)

    patch.setattr(Checks, "report", report)


@pytest.mark.interpreted
@pytest.mark.parametrize(("plant", "text"), [(trusting, "below,verbs=evict"), (forgetful, "below,workers=2,verbs=evict")])
def test_ledger_world_finds_a_planted_bug(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], text: str
) -> None:
    """Two mistakes with a store below that no mutant makes; `specs/mutants.csv` has those that these worlds find otherwise."""
    plant(monkeypatch)
    found = explore(LedgerWorld(LedgerSettings.parse(text)), Bounds(max_states=40_000))

    assert found.verdict is Verdict.VIOLATED
    assert "claims" in [each.rule for each in found.counterexamples]


# --- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["smallest", "deadlines,contract=hold", "blocks=2,shared,verbs=all,repeats=3", "loads=no", "below,bulk,loads"]
)
def test_ledger_settings_are_read_as_they_are_written(text: str) -> None:
    """A world can be said in a line, and says itself so."""
    settings = LedgerSettings.parse(text)

    assert LedgerSettings.parse(str(settings)) == settings


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("blocks=0", "blocks must be a whole number from 1 to 6, not 0"),
        ("plans=3", "plans must be a whole number from 1 to 2, not 3"),
        ("verbs=fly", "'fly' is not a verb that can be chosen"),
        ("colour=3", "'colour' is not a part of a world"),
        ("contract=loose", "'contract=loose' cannot be read"),
        ("blocks=many", "'blocks=many' cannot be read"),
    ],
)
def test_ledger_settings_refuse_what_is_no_world(text: str, complaint: str) -> None:
    """The message names the part."""
    with pytest.raises(MisuseError, match=complaint):
        LedgerSettings.parse(text)
