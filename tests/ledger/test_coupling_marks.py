"""Every coupling runs from its row: the kernel's bytes say what the row says, and without an effect another thing happens.

Method: the bytes are read back as the names of effects. Then each effect of each row is taken out of them, and the stories in
which that coupling happens are told again; at least one of them must go on in another way. `RULES` are those of the process, so
that this is seen in a compiled kernel, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from attrs import evolve

from blocklife.core import _tables as tables
from blocklife.core._tables import EFFECTS, EFFECTS_A_ROW, RULES
from blocklife.errors import DefinitionError
from blocklife.ledger import Completion, GroupTransfer, Jobs, Ledger, Result, Store
from blocklife.ledger.jobs import Planned
from blocklife.states import COUPLINGS, Coupling, Job
from tests.proof.mutants.planting import effect_mutants, places_of, planted
from tests.worlds import behind_fence, in_flight, keys, make_ledger, ready, report, sealed, store

MUTANTS = {each.name: each for each in effect_mutants()}


def test_bytes_of_the_kernel_say_what_the_rows_say() -> None:
    """Each row stands in its places, in its order, and nothing stands elsewhere."""
    named: dict[str, set[int]] = {each: set() for each in ("effects", "handed_out", "life_ends", "gives_up", "resets")}
    for row in COUPLINGS:
        for table, at in places_of(row):
            found = getattr(RULES, table)[at : at + EFFECTS_A_ROW]
            assert [EFFECTS[each - 1] for each in found if each] == list(row.effects), row.name
            named[table].update(range(at, at + EFFECTS_A_ROW))
    for table, places in named.items():
        assert not [at for at, each in enumerate(getattr(RULES, table)) if each and at not in places]


# --- stories ------------------------------------------------------------------------------------------------------------

Story = Callable[[Ledger], object]


def _step(ledger: Ledger, *completions: Completion, now: float = 0.0) -> None:
    ledger.settle(ledger.dispatch(now).number, now, completions=completions)


def _stored(ledger: Ledger) -> Jobs[Planned]:
    return store(ledger, sealed(ledger, "a", keys("k")), keys("k"))


def _loads(ledger: Ledger, *, submit: bool = True) -> Jobs[Planned]:
    ready(ledger)
    ledger.add_request("w")
    jobs = ledger.plan_load("w", GroupTransfer(ledger.allocate("w", 1), [0]))
    if submit:
        _step(ledger)
    return jobs


def _loads_behind_a_fence(ledger: Ledger) -> Jobs[Planned]:
    """Of four blocks one is left: the load fills one that a store still reads, of which no report comes."""
    ledger.allocate("a", 4)
    target, _ = behind_fence(ledger)
    return ledger.plan_load("b", GroupTransfer(target, [0]))


def _demotes(ledger: Ledger) -> Jobs[Planned]:
    ready(ledger)
    return ledger.plan_demotion([0])


def _promotes(ledger: Ledger) -> Jobs[Planned]:
    return ledger.plan_promotion([1, 2], keys("p", "q"))


def _ends(plan: Callable[[Ledger], Jobs[Planned]], result: Result = Result.OK) -> Story:
    """A job is planned and submitted, and its report comes with a plan that settles."""

    def story(ledger: Ledger) -> None:
        (job,) = plan(ledger).ids
        if ledger.jobs.is_planned(job.number):
            _step(ledger)
        _step(ledger, report(job, result))

    return story


def _ends_within_its_step(ledger: Ledger) -> None:
    """The plan that submits the load also waits for the older copy, and the load's report comes before any other."""
    (job,) = _loads_behind_a_fence(ledger).ids
    ledger.dispatch(0.0)
    ledger.complete(report(job))


def _expires(plan: Callable[[Ledger], Jobs[Planned]]) -> Story:
    def story(ledger: Ledger) -> None:
        (job,) = plan(ledger).ids
        if ledger.jobs.is_planned(job.number):
            _step(ledger)
        ledger.flush(Jobs((job,)))
        ledger.dispatch(1.0)
        ledger.expire(100.0)

    return story


def _ends_unwanted(plan: Callable[[Ledger], Jobs[Planned]]) -> Story:
    """A job that is abandoned ends CANCELLED."""

    def story(ledger: Ledger) -> None:
        (job,) = plan(ledger).ids
        if ledger.jobs.is_planned(job.number):
            _step(ledger)
        ledger.abandon(Jobs((job,)))
        ledger.complete(report(job))

    return story


def _ends_a_life(ledger: Ledger) -> None:
    ledger.plan_store(Store.of(ledger.allocate("a", 1), [0], keys("k")))
    ledger.finish("a")


def _hands_out(ledger: Ledger) -> None:
    in_flight(ledger)
    ledger.finish("a")
    ledger.add_request("b")
    ledger.allocate("b", 5)


def _gives_up(*, submit: bool) -> Story:
    def story(ledger: Ledger) -> None:
        _loads(ledger, submit=submit)
        ledger.preempt("w")

    return story


def _abandons(ledger: Ledger) -> None:
    (job,) = _loads(ledger).ids
    ledger.preempt("w")
    ledger.complete(report(job))


def _resets(*, submit: bool) -> Story:
    def story(ledger: Ledger) -> None:
        _loads(ledger)
        _promotes(ledger)
        if submit:
            _step(ledger)
        ledger.reset()

    return story


STORIES: Mapping[str, tuple[Story, ...]] = {
    "life-ends": (_ends_a_life,),
    "hand-out-flushes": (_hands_out,),
    "store-planned": (_stored,),
    "load-planned": (lambda ledger: _loads(ledger, submit=False),),
    "demotion-planned": (_demotes,),
    "promotion-planned": (_promotes,),
    "submitted": (in_flight,),
    "store-cancelled": (lambda ledger: ledger.cancel(_stored(ledger)),),
    "load-cancelled": (_gives_up(submit=False),),
    "demotion-cancelled": (lambda ledger: ledger.cancel(_demotes(ledger)),),
    "promotion-cancelled": (lambda ledger: ledger.cancel(_promotes(ledger)),),
    "store-ended": (_ends(_stored), _ends(_stored, Result.FAILED), _ends_unwanted(_stored)),
    "load-done": (_ends(_loads), _ends_within_its_step),
    "load-failed": (_ends(_loads, Result.FAILED),),
    "load-abandoned": (_abandons,),
    "demotion-ended": (_ends(_demotes), _ends(_demotes, Result.FAILED), _ends_unwanted(_demotes)),
    "promotion-ended": (_ends(_promotes), _ends(_promotes, Result.FAILED), _ends_unwanted(_promotes)),
    "store-expired": (_expires(_stored),),
    "load-expired": (_expires(_loads),),
    "promotion-expired": (_expires(_promotes),),
    "request-gives-up": (_gives_up(submit=False), _gives_up(submit=True)),
    "reset-now": (_resets(submit=False), _resets(submit=True)),
}
"""Stories in which each coupling happens, by its name; of one with several endings, one for each."""


def told(story: Story) -> list[str]:
    """The steps that a story commits, and the error that ends it."""
    said: list[str] = []
    ledger = make_ledger()
    ledger.on(hook=lambda step: said.append(f"{step.machine}.{step.event} {list(step.places)}"))
    try:
        story(ledger)
    except Exception as problem:  # whatever a ledger without one of its effects may say
        said.append(repr(problem))
    return said


def test_each_story_tells_of_its_coupling() -> None:
    """The effects that a row lists are steps of its stories; none ends in an error, and there is one for each ending."""
    assert list(STORIES) == [row.name for row in COUPLINGS]
    for row in COUPLINGS:
        wanted = {
            f"{effect.partition('.')[0]}.{event}" for effect in row.effects for event in effect.partition(".")[2].split("|")
        }
        for story in STORIES[row.name]:
            said = told(story)
            assert wanted & {step.partition(" ")[0] for step in said}, row.name
            assert "Error" not in said[-1], row.name
        if len(row.into) > 1:
            assert len(STORIES[row.name]) == len(row.into)


@pytest.mark.parametrize(
    ("row", "effect"),
    [pytest.param(row, effect, id=f"{row.name}-{effect}") for row in COUPLINGS for effect in row.effects],
)
def test_without_an_effect_another_thing_happens(row: Coupling, effect: str) -> None:
    """In one story at least; of a coupling with several endings, in each. Afterwards the stories are the old ones."""
    before = [told(story) for story in STORIES[row.name]]
    with planted(MUTANTS[row.without(effect)]):
        between = [told(story) for story in STORIES[row.name]]

    changed = [mine != other for mine, other in zip(before, between, strict=True)]
    assert all(changed) if len(row.into) > 1 else any(changed)
    assert [told(story) for story in STORIES[row.name]] == before


# --- rows that the kernel does not know ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cause": "slot.evict"}, "coupling new: nothing in the kernel looks for effects of slot.evict"),
        ({"effects": ("slot.polish",)}, "coupling new: job.plan(store) cannot have the effect slot.polish"),
        ({"effects": ("job.flush",)}, "coupling new: job.plan(store) cannot have the effect job.flush"),
        ({"effects": ("block.land", "block.drop")}, "coupling new: job.plan(store) cannot have the effect block.drop"),
    ],
    ids=["cause", "effect", "effect of another cause", "second effect"],
)
def test_row_that_would_not_run_is_refused(change: dict[str, Any], said: str) -> None:
    """When the tables are read, and not silently left out."""
    row = Coupling("new", "job.plan(store)", (Job.PLANNED,), ("block.land",), "A reason.")

    tables._check([row])
    with pytest.raises(DefinitionError, match=f"^{re.escape(said)}"):
        tables._check([evolve(row, **change)])
