"""Mutants: the list is read off the rules, each one changes the code and nothing stays behind, and the page tells the truth.

Goal: no rule that could be taken away unseen. Method: what `specs/mutants.md` says of each mutant is asked again: it is
planted, and the world that is named breaks the rule that is named after just as many steps. Judging all of them from nothing,
in all worlds, is `make mutants`.
"""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from blocklife.errors import MisuseError
from blocklife.ledger.core import Core
from blocklife.ledger.ledger import Ledger
from blocklife.ledger.places import Blocks
from blocklife.states import COUPLINGS, MACHINES
from blocklife.testing.exploring.explore import Bounds, Verdict, explore
from blocklife.testing.mutants.judging import (
    Baseline,
    Fate,
    Judgement,
    baselines,
    explored,
    ground_of,
    grounds,
    judge,
    judge_all,
)
from blocklife.testing.mutants.planting import Mutant, all_mutants, planted, seed_mutants, watched
from blocklife.testing.mutants.table import Found, holes, page, read_page
from blocklife.testing.mutants.unfound import UNFOUND
from blocklife.testing.worlds.world import Faults, World, WorldSettings

PAGE = Path(__file__).parent.parent / "specs" / "mutants.md"
MUTANTS = {each.name: each for each in all_mutants()}
ROWS = read_page(PAGE.read_text(encoding="utf-8"))
GROUNDS = grounds()
LENGTHS = {"guard": 30, "effect": 36, "step": 258, "seed": 5}
TINY = WorldSettings(faults=Faults(fail=1, preempt=1))


# --- the list -----------------------------------------------------------------------------------------------------------


def test_mutants_are_as_many_as_there_are_rules() -> None:
    """Who adds a guard, an effect or a cleanup step adds a mutant, and changes a number here."""
    assert Counter(each.kind for each in MUTANTS.values()) == LENGTHS


def test_mutants_cover_every_guard_and_every_effect() -> None:
    """One for each guarded row, and one for each effect of each coupling."""
    guarded = [row for table in MACHINES.values() for row in table.rows if row.guard is not None]
    effects = [effect for coupling in COUPLINGS for effect in coupling.effects]

    assert LENGTHS["guard"] == len(guarded)
    assert LENGTHS["effect"] == len(effects)


def test_mutants_cover_the_steps_of_an_end() -> None:
    """A statement that a job, hold or request ends with is among them; a question and a counter are not."""
    names = set(MUTANTS)

    assert "Ledger.finish without self._give_up(found, 'finish')" in names
    assert "Blocks._end_life without self.epoch[place] = self.epoch[place] + 1 & EPOCH_MASK" in names
    assert not any("self.tally[" in name or "._check" in name for name in names)


def code() -> list[int]:
    """The identity of what runs now: every function of some classes that mutants change, and every look-up."""
    functions = [value for owner in (Core, Ledger, Blocks) for value in vars(owner).values()]
    events = [event for table in MACHINES.values() for event in table.events.values()]
    return [id(part) for part in (*functions, *(event.lut for event in events), *(event._lut_view for event in events))]


@pytest.mark.parametrize("kind", list(LENGTHS))
def test_mutant_leaves_nothing_behind(kind: str) -> None:
    """With it the code is another; afterwards it is the very same, also when what runs fails."""
    before = code()
    for mutant in [each for each in MUTANTS.values() if each.kind == kind][::9]:
        with pytest.raises(ZeroDivisionError), planted(mutant):
            1 // 0  # noqa: B018 - it fails on purpose

    assert code() == before


def test_watched_code_does_what_it_did() -> None:
    """With a note at each place the worlds are the same, and what was reached is known."""
    with watched(list(MUTANTS.values())) as reached:
        seen = explore(World(TINY))
    plain = explore(World(TINY))

    assert (seen.states, seen.edges) == (plain.states, plain.edges)
    assert "Ledger.finish without self._give_up(found, 'finish')" in reached
    assert "SchedulerCore._forget without self.stores.clear()" not in reached


# --- the page -----------------------------------------------------------------------------------------------------------


def test_page_names_every_mutant_once() -> None:
    """Found there, or argued for; nothing else, and no survivor."""
    found = [row.mutant for row in ROWS]

    assert len(found) == len(set(found))
    assert {*found, *UNFOUND} == set(MUTANTS)
    assert set(found).isdisjoint(UNFOUND)


def test_page_gives_every_argument() -> None:
    """What is not found stands there with its reason."""
    text = PAGE.read_text(encoding="utf-8").replace("\\|", "|")

    assert "nobody knows" not in text
    for mutant, why in UNFOUND.items():
        assert f"`{mutant}`" in text
        assert why in text


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mutant)
def test_mutant_is_found(row: Found) -> None:
    """The world that the page names breaks that rule, after exactly as many steps as it says."""
    with planted(MUTANTS[row.mutant]):
        ran = explored(GROUNDS[row.world])

    assert (ran.verdict, ran.rule, len(ran.actions)) == (Verdict.VIOLATED, row.rule, row.length), ran.message


# --- judging ------------------------------------------------------------------------------------------------------------


def mutant(kind: str = "seed", name: str = "nothing") -> Mutant:
    """One that changes nothing."""
    return Mutant(name, kind, lambda: lambda: None)


def test_judge_tells_apart_what_is_not_found() -> None:
    """Unreached where no world comes by, unchanged where every world stays as it is."""
    sleeper = MUTANTS["OffloadScheduler.sleep without self._asleep = True"]
    known = baselines({"tiny": ground_of(TINY)}, [sleeper, mutant()])

    assert judge(sleeper, known).fate is Fate.UNREACHED
    assert judge(mutant(), known).fate is Fate.UNCHANGED


def test_judge_knows_a_survivor() -> None:
    """A world that is another one with the mutant, holds, and has as many states: nothing would notice."""
    known = baselines({"tiny": ground_of(TINY)}, [mutant()])
    base = known["tiny"]
    other = Baseline(base.ground, evolve(base.ran, digest=base.ran.digest + 1), base.reached)

    assert judge(mutant(), {"tiny": other}).fate is Fate.SURVIVED


@pytest.mark.parametrize("change", [{"edges": 1}, {"rows": frozenset({"job: a row"})}], ids=["steps", "rows"])
def test_judge_counts_where_every_rule_holds(change: dict[str, Any]) -> None:
    """That is no find: it needs an argument, like everything that no rule notices."""
    known = baselines({"tiny": ground_of(TINY)}, [mutant()])
    base = known["tiny"]
    found = judge(mutant(), {"tiny": Baseline(base.ground, evolve(base.ran, **change), base.reached)})

    assert (found.fate, found.world) == (Fate.COUNTED, "tiny")
    assert "instead of" in found.message or "is never taken" in found.message
    assert holes([found], {}) == ["nothing: counted"]


def test_baselines_refuse_a_world_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would find every mutant, and prove nothing."""
    with planted(next(seed_mutants())), pytest.raises(MisuseError, match="does not hold without any mutant"):
        baselines({"plain": grounds()["calm-fence"]}, [])


def test_judge_all_goes_on_until_it_is_stopped() -> None:
    """Progress is told after each, and what was judged so far is kept."""
    heard: list[str] = []
    found = judge_all(
        [mutant(name="one"), mutant(name="two"), mutant(name="three")],
        {"tiny": ground_of(TINY)},
        progress=lambda number, each: heard.append(f"{number} {each.mutant}"),
        stop=lambda: len(heard) == 2,
    )

    assert heard == ["1 one", "2 two"]
    assert [each.mutant for each in found] == ["one", "two"]


def test_holes_are_mutants_without_counterexample_or_argument() -> None:
    """And arguments that nobody needs."""
    judged = [
        Judgement("found", "step", Fate.FOUND),
        Judgement("argued", "step", Fate.UNREACHED),
        Judgement("open", "step", Fate.SURVIVED),
    ]

    assert holes(judged, {"argued": "because"}) == ["open: survived"]
    assert holes(judged[:2], {"argued": "because", "found": "no", "gone": "no"}) == [
        "found: there is an argument for it, and it is found",
        "gone: there is an argument for it, and no such mutant",
    ]


def test_page_is_read_as_it_was_written() -> None:
    """Bars in a name are no columns."""
    judged = [
        Judgement("a.b|c without d", "guard", Fate.FOUND, "tiny", "I1", "said"),
        Judgement("x", "step", Fate.UNCHANGED),
    ]
    text = page(judged, {"x": "it is asked elsewhere"})

    assert read_page(text) == [Found("a.b|c without d", "tiny", "I1", 0)]
    assert "2 mutants: 1 are found, 1 are not." in text
    assert "| `x` | nothing | it is asked elsewhere |" in text
    assert "nobody knows" in page(judged, {})
    with pytest.raises(MisuseError, match="names no mutant"):
        read_page("# Mutants\n")


def test_seeds_are_the_five_released_fixes() -> None:
    """Each of them is found in a plain world, not by a test written for it."""
    assert [each.name[:2] for each in seed_mutants()] == ["S1", "S2", "S3", "S4", "S5"]
    assert {row.mutant[:2] for row in ROWS if MUTANTS[row.mutant].kind == "seed"} == {"S1", "S2", "S3", "S4", "S5"}


def test_verdict_of_a_ground_is_that_of_its_world() -> None:
    """Nothing is lost on the way."""
    ran = ground_of(TINY)(Bounds(), lambda: None)

    assert ran.verdict is Verdict.HOLDS
    assert inspect.isfunction(ground_of(TINY))
