"""Whether a coupling runs from its row, as its mark says: a change of the row changes what runs, or it does not.

Method: for each row the ledger is imported anew, above tables in which that row has no effects, and tells the same stories.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from attrs import evolve

import tests
from blocklife.states import COUPLINGS, Coupling, Runs

pytestmark = pytest.mark.interpreted
"""A compiled module can be loaded only once in a process."""

BY_HAND = {
    "life-ends", "hand-out-flushes", "store-planned", "load-planned", "demotion-planned", "promotion-planned", "submitted",
    "request-gives-up", "reset-now",
}  # fmt: skip


@contextmanager
def anew(row: Coupling | None) -> Iterator[ModuleType]:
    """`tests.worlds` above a package of its own, in whose tables *row* has no effects."""
    importlib.import_module("tests.worlds")
    mine = {name: module for name, module in sys.modules.items() if _is_mine(name)}
    for name in mine:
        del sys.modules[name]
    try:
        tables = importlib.import_module("blocklife.states")
        changed = [evolve(each, effects=()) if row and each.name == row.name else each for each in tables.COUPLINGS]
        vars(tables)["COUPLINGS"] = tuple(changed)
        yield importlib.import_module("tests.worlds")
    finally:
        for name in [each for each in sys.modules if _is_mine(each)]:
            del sys.modules[name]
        sys.modules.update(mine)
        vars(tests)["worlds"] = mine["tests.worlds"]


def _is_mine(module: str) -> bool:
    return module.partition(".")[0] == "blocklife" or module == "tests.worlds"


# --- stories: each is told with `tests.worlds` and a ledger of its own ------------------------------------------------------

Story = Callable[[Any, Any], object]


def _step(ledger: Any, *completions: object, now: float = 0.0) -> None:
    ledger.settle(ledger.dispatch(now).number, now, completions=completions)


def _stored(worlds: Any, ledger: Any) -> Any:
    return worlds.store(ledger, worlds.sealed(ledger, "a", worlds.keys("k")), worlds.keys("k"))


def _loads(worlds: Any, ledger: Any, *, submit: bool = True) -> Any:
    worlds.ready(ledger)
    ledger.add_request("w")
    jobs = ledger.plan_load("w", ledger.allocate("w", 1), [0])
    if submit:
        _step(ledger)
    return jobs


def _demotes(worlds: Any, ledger: Any) -> Any:
    worlds.ready(ledger)
    return ledger.plan_demotion([0])


def _promotes(worlds: Any, ledger: Any) -> Any:
    return ledger.plan_promotion([1, 2], worlds.keys("p", "q"))


def _ends(plan: Callable[[Any, Any], Any], result: str = "OK") -> Story:
    """A job is planned and submitted, and its report comes with a plan that settles."""

    def story(worlds: Any, ledger: Any) -> None:
        (job,) = plan(worlds, ledger).ids
        if ledger.jobs.is_planned(job.number):
            _step(ledger)
        _step(ledger, worlds.report(job, worlds.Result[result]))

    return story


def _expires(plan: Callable[[Any, Any], Any]) -> Story:
    def story(worlds: Any, ledger: Any) -> None:
        jobs = plan(worlds, ledger)
        if ledger.jobs.is_planned(jobs.ids[0].number):
            _step(ledger)
        ledger.flush(jobs)
        ledger.dispatch(1.0)
        ledger.expire(100.0)

    return story


def _ends_a_life(worlds: Any, ledger: Any) -> None:
    ledger.plan_store(ledger.allocate("a", 1), [0], worlds.keys("k"))
    ledger.finish("a")


def _hands_out(worlds: Any, ledger: Any) -> None:
    worlds.in_flight(ledger)
    ledger.finish("a")
    ledger.add_request("b")
    ledger.allocate("b", 5)


def _abandons(worlds: Any, ledger: Any) -> None:
    (job,) = _loads(worlds, ledger).ids
    ledger.preempt("w")
    ledger.complete(worlds.report(job))


def _resets(worlds: Any, ledger: Any) -> None:
    _loads(worlds, ledger)
    _promotes(worlds, ledger)
    ledger.reset()


STORIES: Mapping[str, Story] = {
    "life-ends": _ends_a_life,
    "hand-out-flushes": _hands_out,
    "store-planned": _stored,
    "load-planned": lambda worlds, ledger: _loads(worlds, ledger, submit=False),
    "demotion-planned": _demotes,
    "promotion-planned": _promotes,
    "submitted": lambda worlds, ledger: worlds.in_flight(ledger),
    "store-cancelled": lambda worlds, ledger: ledger.cancel(_stored(worlds, ledger)),
    "load-cancelled": lambda worlds, ledger: (_loads(worlds, ledger, submit=False), ledger.preempt("w")),
    "demotion-cancelled": lambda worlds, ledger: ledger.cancel(_demotes(worlds, ledger)),
    "promotion-cancelled": lambda worlds, ledger: ledger.cancel(_promotes(worlds, ledger)),
    "store-ended": _ends(_stored, "FAILED"),
    "store-ended, DONE": _ends(_stored),
    "load-done": _ends(_loads),
    "load-failed": _ends(_loads, "FAILED"),
    "load-abandoned": _abandons,
    "demotion-ended": _ends(_demotes),
    "promotion-ended": _ends(_promotes),
    "store-expired": _expires(_stored),
    "load-expired": _expires(_loads),
    "promotion-expired": _expires(_promotes),
    "request-gives-up": lambda worlds, ledger: (_loads(worlds, ledger), ledger.preempt("w")),
    "reset-now": _resets,
}
"""A story in which each coupling happens, by its name."""


def told(row: Coupling | None) -> dict[str, list[str]]:
    """The steps that each story commits without the effects of a row, and the error that ends it."""
    found: dict[str, list[str]] = {}
    with anew(row) as worlds:
        for name, story in STORIES.items():
            said = found[name] = []
            ledger = worlds.make_ledger()
            ledger.on(hook=lambda step, said=said: said.append(f"{step.machine}.{step.event}"))
            try:
                story(worlds, ledger)
            except Exception as problem:  # whatever a ledger without one of its rules may say
                said.append(repr(problem))
    return found


@pytest.fixture(scope="module")
def before() -> dict[str, list[str]]:
    """What the stories tell while all rows are there."""
    found = told(None)
    assert not [said for said in found.values() if "Error" in said[-1]]
    return found


def test_each_story_tells_of_its_coupling(before: dict[str, list[str]]) -> None:
    """The effects that a row lists are steps of its story, as far as they are steps of a place or a job there."""
    for row in COUPLINGS:
        wanted = {
            f"{effect.partition('.')[0]}.{event}" for effect in row.effects for event in effect.partition(".")[2].split("|")
        }
        assert wanted & set(before[row.name]), row.name


@pytest.mark.parametrize("row", COUPLINGS, ids=lambda row: row.name)
def test_mark_says_whether_the_row_runs(row: Coupling, before: dict[str, list[str]]) -> None:
    """Without its effects a row changes its story, unless it is marked; then no story at all changes."""
    after = told(row)

    if row.runs is Runs.BY_HAND:
        assert after == before
    else:
        assert after[row.name] != before[row.name]
    if row.runs is Runs.FROM_ROW_UNLESS_DONE:
        assert after[f"{row.name}, DONE"] == before[f"{row.name}, DONE"]


def test_rows_by_hand_are_these() -> None:
    """Whoever makes one of them run from its row takes its mark away, here as well."""
    assert {row.name for row in COUPLINGS if row.runs is Runs.BY_HAND} == BY_HAND
    assert [row.name for row in COUPLINGS if row.runs is Runs.FROM_ROW_UNLESS_DONE] == ["store-ended"]
