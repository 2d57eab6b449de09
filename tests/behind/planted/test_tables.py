"""What the engines' programs of planted bugs have in common, without an engine: a table, and what should not be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from attrs import frozen

from tests.behind.planted import NOBODY, Bed, planted, without
from tests.behind.planted.program import Played, cells, chosen_bugs, parser, problems, totals


@frozen
class Row:
    """One seed of a world."""

    world: str
    seed: int
    steps: int
    rules: Mapping[str, int]
    trouble: int | None
    what: str


@planted("full", "window")
def keeps_a_block(bed: Bed) -> None:
    """A block is
    never free again.
    """


@planted("full", seen=False)
def names_another(bed: Bed) -> None:
    """A block gets another's name."""


@planted("window")
def sleeps(bed: Bed) -> None:
    """It never makes a difference."""


BUGS = (keeps_a_block, names_another, sleeps)


def run_of(bug: str, fired: int, rules: Mapping[str, int], trouble: int | None) -> Played:
    """A run of one seed."""
    return Played(bug, fired, Row("full", 1, 300, rules, trouble, "" if trouble is None else "wrong bytes"))


FOUND = {
    NOBODY: [run_of(NOBODY, 0, {"I5": 3}, None)],
    "keeps_a_block": [run_of("keeps_a_block", 2, *each) for each in (({"I4": 9}, 9), ({"I4": 9}, 8), ({}, 8))],
    "names_another": [run_of("names_another", 1, {}, 7)],
    "sleeps": [run_of("sleeps", 0, {}, None)],
}


def test_table_says_what_should_not_be() -> None:
    """A bug that was missed without being marked so, one that sleeps, and what comes without one; the same step is in time."""
    assert list(problems([without(BUGS), *BUGS], FOUND)) == [
        f"{NOBODY}: full seed 1: I5, and no bug has fired",
        "keeps_a_block: full seed 1: wrong bytes at step 8, and I4 fell",
        "keeps_a_block: full seed 1: wrong bytes at step 8, and no rule fell",
        "sleeps: it has fired in none of these seeds",
    ]
    assert totals(BUGS, FOUND) == (
        "Runs: 5, with harm 4, named in time / late / never 1 / 1 / 2. "
        "Bugs: 3, with harm 2, named in time in a run 1, in all of them 0."
    )
    assert [cells(bug, FOUND[bug.name]) for bug in BUGS[::2]] == [
        ["keeps_a_block", "A block is never free again.", "3", "3", "3 (wrong bytes: 3)", "1 / 1 / 1", "I4: 2"],
        ["sleeps", "It never makes a difference.", "1", "0", "0", "0 / 0 / 0", ""],
    ]


def test_runs_without_a_bug_are_in_the_worlds_of_all() -> None:
    """Each world once, ahead of the bugs that are named."""
    chosen = chosen_bugs("planted", {bug.name: bug for bug in BUGS}, ["sleeps", "keeps_a_block"])

    assert [(bug.name, bug.worlds) for bug in chosen] == [
        (NOBODY, ("window", "full")),
        ("sleeps", ("window",)),
        ("keeps_a_block", ("full", "window")),
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--seeds", "-1"), "--seeds: '-1' is not a whole number from 0 on"),
        (("--steps", "0"), "--steps: '0' is not a positive whole number"),
        (("--json", "/"), "'/' cannot be written (name a file in a folder of yours)"),
        (("--bugs", "bogus"), "no bug is called 'bogus' (one is keeps_a_block)"),
    ],
)
def test_program_refuses_what_makes_no_sense(capsys: pytest.CaptureFixture[str], words: Sequence[str], told: str) -> None:
    """Before any work, with exit status 2."""
    with pytest.raises(SystemExit) as exit_:
        chosen_bugs("planted", {bug.name: bug for bug in BUGS}, parser("planted", "", 3, 250, ("own",)).parse_args(words).bugs)

    assert exit_.value.code == 2
    assert told in capsys.readouterr().err
