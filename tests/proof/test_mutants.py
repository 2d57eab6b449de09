"""Mutants: the list is read off the rules, each one changes the code and nothing stays behind, and the page tells the truth.

Goal: no rule that could be taken away unseen. Method: what `specs/mutants.csv` says of each mutant is asked again: it is
planted, and the world that is named breaks the rule that is named after just as many steps, or the test that is named
fails. Judging all of them from nothing, in all worlds, is `make mutants`.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from blocklife.core import _couplings, _moves
from blocklife.core._columns import Blocks
from blocklife.core._rules import PlaceMove
from blocklife.core._tables import RULES
from blocklife.errors import MisuseError
from blocklife.ledger import Ledger
from blocklife.states import COUPLINGS, MACHINES
from blocklife.testing import Bounds, Faults, Verdict, World, WorldSettings, explore
from tests.proof.mutants import judging as judging
from tests.proof.mutants import planting as planting
from tests.proof.mutants.judging import (
    Judgement,
    baselines,
    explored,
    ground_of,
    grounds,
    judge,
    judge_all,
)
from tests.proof.mutants.planting import Mutant, all_mutants, mutant_named, planted, seed_mutants, watched
from tests.proof.mutants.table import PAGE, Row, holes, line, page, read_caught, read_table, rows_of, table

ROOT = Path(__file__).parents[2]
MUTANTS = {each.name: each for each in all_mutants()}
ROWS = read_table()
BY_WORLD = [row for row in ROWS if row.world]
CAUGHT = read_caught()
GROUNDS = grounds()
TINY = WorldSettings(faults=Faults(fail=1, preempt=1))


# --- the list -----------------------------------------------------------------------------------------------------------


def test_mutants_cover_every_guard_and_every_effect() -> None:
    """One for each guarded row, and one for each effect of each coupling."""
    guarded = [row for table in MACHINES.values() for row in table.rows if row.guard is not None]
    effects = [effect for coupling in COUPLINGS for effect in coupling.effects]

    kinds = Counter(each.kind for each in MUTANTS.values())
    assert (kinds["guard"], kinds["effect"]) == (len(guarded), len(effects))


def test_mutants_cover_the_steps_of_an_end() -> None:
    """A statement that a job, hold or request ends with is among them; a question and a counter are not."""
    names = set(MUTANTS)

    assert "verbs.finish without give_up()" in names
    assert "moves.end_life without epoch =" in names
    assert not any(" without tally" in name or " without _check." in name for name in names)


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (".unpin without taking out of pinned", "self.pinned.pop(name, None)", "self.pinned.get(name, None)"),
        ("without taking out of _exposed", "self._exposed.pop(number)", "self._exposed[number]"),
        ("without taking out of turns", "self.turns.pop(0)", "self.turns[0]"),
    ],
)
def test_what_is_taken_out_stays_where_that_is_the_mutant(text: str, before: str, after: str) -> None:
    """The entry is read as before, with the same default; nothing else of the function is another."""
    (name,) = [each for each in MUTANTS if text in each]
    site = MUTANTS[name].site
    assert site is not None
    tree = planting._copy_of(site.owner, site.name)  # type: ignore[arg-type]
    whole = ast.unparse(tree)
    call = planting._steps(site.owner, tree)[site.number]  # type: ignore[arg-type]
    assert isinstance(call, ast.Call)
    planting._LookUp(call).visit(tree)

    assert whole.count(before) == 1
    assert ast.unparse(tree) == whole.replace(before, after)


def test_mutant_of_another_name_is_not_known() -> None:
    """What is nearest is named; a part of a name is nearer than what only looks like it."""
    assert mutant_named("life-ends: no job.cancel").kind == "effect"
    for wrong, nearest in (
        ("life-end: no job.cancel", "life-ends: no job.cancel"),
        ("Ledger.cancel", "Ledger.cancel without "),
    ):
        with pytest.raises(MisuseError, match=f"no mutant is called '{wrong}' .the nearest is [\"']{nearest}"):
            mutant_named(wrong)


def code() -> list[int]:
    """The identity of what runs now: every function of some modules and classes that mutants change."""
    return [id(value) for owner in (_moves, _couplings, Blocks, Ledger) for value in vars(owner).values()]


def bytes_now() -> list[bytes]:
    """Every look-up of the kernel."""
    tables = [each for each in vars(RULES).values() if isinstance(each, bytearray)]
    moves = [each for value in vars(RULES).values() for each in (value if isinstance(value, list) else [value])]
    return [*map(bytes, tables), *(bytes(each.table + each.ours) for each in moves if isinstance(each, PlaceMove))]


@pytest.mark.parametrize("kind", ["guard", "effect", "step", "seed"])
def test_mutant_leaves_nothing_behind(kind: str) -> None:
    """With it the code is another; afterwards it is the very same, also when what runs fails."""
    before = code(), bytes_now()
    for mutant in [each for each in MUTANTS.values() if each.kind == kind][::9]:
        with pytest.raises(ZeroDivisionError), planted(mutant):
            1 // 0  # noqa: B018 - it fails on purpose

    assert (code(), bytes_now()) == before


def test_watched_code_does_what_it_did() -> None:
    """With a note at each place the worlds are the same, and what was reached is known."""
    with watched(list(MUTANTS.values())) as reached:
        seen = explore(World(TINY))
    plain = explore(World(TINY))

    assert (seen.states, seen.edges) == (plain.states, plain.edges)
    assert "verbs.finish without give_up()" in reached
    assert "Endings.reset without _stores.clear()" not in reached


# --- the table ----------------------------------------------------------------------------------------------------------


def test_table_has_every_mutant_once() -> None:
    """Found by a world or found by a test: one of the two, and no survivor."""
    assert [(row.mutant, row.kind) for row in ROWS] == [(each.name, each.kind) for each in MUTANTS.values()]
    assert [row.mutant for row in ROWS if bool(row.world) == bool(row.test)] == []


def test_page_counts_the_rows_of_the_table() -> None:
    """It has no row of its own."""
    assert PAGE.read_text(encoding="utf-8") == page(ROWS), "out of date (run: make mutants)"


@pytest.mark.sampled(every=16, first=3)
@pytest.mark.parametrize("row", BY_WORLD, ids=lambda row: row.mutant)
def test_mutant_is_found(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """The world that the table names breaks that rule, after exactly as many steps as it says."""
    monkeypatch.setattr(judging, "SECONDS_MAX", 10.0)  # what hangs there is known to hang
    with planted(MUTANTS[row.mutant]):
        ran = explored(GROUNDS[row.world])

    assert (ran.verdict, ran.rule, len(ran.actions)) == (Verdict.VIOLATED, row.rule, row.steps), ran.message


# --- the tests that find the others -----------------------------------------------------------------------------------------


def test_test_that_finds_a_mutant_is_there() -> None:
    """Who renames a test, or takes it away, finds its mutant without one."""
    wanted: dict[str, set[str]] = {}
    for test in CAUGHT.values():
        file, _, name = test.partition("::")
        wanted.setdefault(file, set()).add(name.partition("[")[0])
    for file, names in wanted.items():
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert names - {each.name for each in tree.body if isinstance(each, ast.FunctionDef)} == set(), file


@pytest.mark.slow
@pytest.mark.parametrize("mutant", list(CAUGHT))
def test_mutant_is_caught(mutant: str) -> None:
    """The test that is named fails in a run with the mutant planted."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "tests.proof.plugin", "--mutant", mutant, CAUGHT[mutant]]
    ran = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("1 failed in"), ran.stdout


def run_with(mutant: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of one test with a mutant."""
    chosen = "tests/ledger/test_ledger.py::test_prefix_stops_at_the_first_gap"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.proof.plugin", *options, chosen]
    return subprocess.run([*command, "--mutant", mutant], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["itself", "a worker"])
def test_mutant_is_planted_in_every_process_that_runs_tests(workers: tuple[str, ...]) -> None:
    ran = run_with("verbs.drop without move_blocks()", *workers)

    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr


def test_run_with_a_mutant_that_is_none_is_refused() -> None:
    """An error of usage, which names the nearest."""
    ran = run_with("verbs.finish without give_ups()")

    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "the nearest is 'verbs.finish without give_up()'" in ran.stdout + ran.stderr


# --- judging ------------------------------------------------------------------------------------------------------------


def mutant(kind: str = "seed", name: str = "nothing") -> Mutant:
    """One that changes nothing."""
    return Mutant(name, kind, lambda: lambda: None)


def test_judge_tells_what_finds_a_mutant() -> None:
    """The rule and a shortest counterexample; nothing of a mutant that no world executes, or that changes nothing."""
    sleeper, pin = MUTANTS["OffloadScheduler.sleep without asleep ="], MUTANTS["verbs.finish without give_up()"]
    known = baselines({"tiny": ground_of(TINY)}, [sleeper, pin, mutant()])
    found = judge(pin, known)

    assert (found.is_found, found.world, bool(found.rule), bool(found.actions)) == (True, "tiny", True, True)
    assert [judge(each, known).is_found for each in (sleeper, mutant())] == [False, False]


def test_baselines_refuse_a_world_that_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would find every mutant, and prove nothing."""
    with planted(next(seed_mutants())), pytest.raises(MisuseError, match="does not hold without any mutant"):
        baselines({"plain": grounds()["calm-fence"]}, [])


@pytest.mark.parametrize("processes", [1, 2])
def test_judge_all_keeps_the_order(processes: int) -> None:
    """However many processes share the work."""
    mutants = [mutant(name="one"), mutant(name="two"), mutant(name="three")]
    calm = {"calm": ground_of(WorldSettings(requests=("ab.c",)))}

    assert [each.mutant for each in judge_all(mutants, calm, processes)] == ["one", "two", "three"]


def test_holes_are_mutants_without_counterexample_or_test() -> None:
    """And tests that nobody needs. Each mutant has a line that says what finds it, if anything."""
    judged = [Judgement("found", "step", "tiny", "I1", "said", ("a",)), Judgement("open", "step")]
    test = "test_a.py::test_a"

    assert holes(judged) == ["open: every world holds, and there is no test for it"]
    assert holes(judged, {"open": test}) == []
    assert holes(judged, {"open": test, "found": test, "gone": test}) == [
        "found: there is a test for it, but a world finds it already",
        "gone: there is a test for it, but no such mutant",
    ]
    assert holes(judged[:1], {"gone": test}, whole=False) == []
    assert line(judged[0]) == "found in tiny after 1 steps (I1): found"
    assert line(judged[1], {"open": test}) == "every world holds: open, test_a.py::test_a"
    assert line(judged[1]) == "every world holds: open, NOT FOUND"


def test_table_is_read_as_it_was_written() -> None:
    """A test stands only where no world finds the mutant; one that nothing finds is counted on the page."""
    judged = [
        Judgement('a.b,c without "d"', "guard", "tiny,x", "I1", "said", ("a", "b")),
        Judgement("x", "step"),
        Judgement("y", "step"),
    ]
    rows = rows_of(judged, {"y": "test_a.py::test_a[1,2]", 'a.b,c without "d"': "test_a.py::test_b"})

    assert rows[0] == Row('a.b,c without "d"', "guard", "tiny,x", "I1", 2)
    assert read_table(table(rows)) == rows
    assert "3 mutants: 1 are found by a world, 1 by a test." in page(rows)
    assert "without one of its statements | 2 | 0 | 1 | 1 |\n" in page(rows)
    with pytest.raises(MisuseError, match="has no mutant"):
        read_table(table([]))


def test_seeds_are_the_five_released_fixes() -> None:
    """Each of them is found in a plain world, not by a test written for it."""
    assert [each.name[:2] for each in seed_mutants()] == ["S1", "S2", "S3", "S4", "S5"]
    assert {row.mutant[:2] for row in BY_WORLD if row.kind == "seed"} == {"S1", "S2", "S3", "S4", "S5"}


def test_verdict_of_a_ground_is_that_of_its_world() -> None:
    """Nothing is lost on the way."""
    ran = ground_of(TINY)(Bounds(), lambda: None)

    assert ran.verdict is Verdict.HOLDS
    assert inspect.isfunction(ground_of(TINY))
