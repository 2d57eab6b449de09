"""The table of mutants, specs/mutants.csv: the world that finds each, after how many steps, or the test that does.

Rules of this file:

* Rows are written from judgements, and can be read back, so that a test can check whether they are still true.
* A mutant that no world finds needs a test that fails under it; without one it is a hole. The test is written into the last
  column by hand and stays there, and a test plants each of these mutants.
* The page has the counts and no row.
* A step whose mutant makes no observable difference is not needed: delete it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import asdict, fields, frozen

from blocklife.errors import MisuseError
from tests.proof.mutants.judging import Judgement

TABLE = Path(__file__).parents[3] / "specs" / "mutants.csv"
PAGE = TABLE.with_suffix(".md")
_PAGE = """# Mutants

A mutant is the code with one rule switched off. Something must notice each: either a small world breaks an invariant, or a
named test fails. The list is derived from the tables and the source of the kernel, the ledger and the scheduler.

{counted}.

| kind | what is switched off | mutants | found by a world | found by a test | found by nothing |
| --- | --- | ---: | ---: | ---: | ---: |
{rows}
[mutants.csv](mutants.csv) has a row for each: the world that finds it, the rule that breaks there and the steps of a shortest
counterexample, or the test that fails.

| to do this | run |
| --- | --- |
| judge all mutants, and write the table and this page | `make mutants` |
| judge those with a text in their name | `python -m tests.proof.mutants TEXT` |
| run tests with one mutant planted | `pytest -p tests.proof.plugin --mutant NAME` |

A mutant that no world finds gets its test in the last column, by hand. Tests ask each row again: the world must break that
rule after exactly as many steps, or the test must fail.

[source-mutants.md](source-mutants.md) is about small random changes of the code between these rules.
"""
_KINDS = {
    "guard": "a guard: its row is taken although the guard does not hold",
    "effect": "an effect of a coupling: one machine takes its step, and the other does not",
    "step": "a cleanup step: a function that ends something runs without one of its statements",
    "seed": "a released fix: the code as it was before",
}
_NONE: Mapping[str, str] = {}


@frozen
class Row:
    """One row of the table, in the order of its columns."""

    mutant: str
    kind: str
    world: str = ""
    """The small world that finds it; empty if none does."""
    rule: str = ""
    """What breaks there."""
    steps: int = 0
    """Of a shortest counterexample."""
    test: str = ""
    """The test that fails, where no world finds it."""


def line(judgement: Judgement, tests: Mapping[str, str] = _NONE) -> str:
    """What finds a mutant, as one line."""
    if judgement.is_found:
        return f"found in {judgement.world} after {len(judgement.actions)} steps ({judgement.rule}): {judgement.mutant}"
    return f"every world holds: {judgement.mutant}, {tests.get(judgement.mutant, 'NOT FOUND')}"


def holes(judgements: Iterable[Judgement], tests: Mapping[str, str] = _NONE, *, whole: bool = True) -> list[str]:
    """What is wrong with a list: mutants with neither a counterexample nor a test, and those with both.

    *whole*: the list has all mutants, so that tests for unknown mutants are wrong, too.
    """
    judged = {each.mutant: each.is_found for each in judgements}
    said = []
    for mutant, is_found in judged.items():
        if not is_found and mutant not in tests:
            said.append(f"{mutant}: every world holds, and there is no test for it")
        elif is_found and mutant in tests:
            said.append(f"{mutant}: there is a test for it, but a world finds it already")
    gone = sorted(tests.keys() - judged.keys()) if whole else ()
    return [*said, *(f"{mutant}: there is a test for it, but no such mutant" for mutant in gone)]


def counted(judgements: Sequence[Judgement], tests: Mapping[str, str]) -> str:
    """How many are found by worlds and by tests."""
    found = {each.mutant for each in judgements if each.is_found}
    tested = {each.mutant for each in judgements if each.mutant in tests} - found
    return f"{len(judgements)} mutants: found by a world {len(found)}, by a test {len(tested)}"


def rows_of(judgements: Iterable[Judgement], tests: Mapping[str, str] = _NONE) -> list[Row]:
    """The rows of judgements, in their order. A test is named only where no world finds the mutant."""
    return [
        Row(each.mutant, each.kind, each.world, each.rule, len(each.actions))
        if each.is_found
        else Row(each.mutant, each.kind, test=tests.get(each.mutant, ""))
        for each in judgements
    ]


def table(rows: Iterable[Row]) -> str:
    """The table as CSV."""
    text = io.StringIO()
    to = csv.DictWriter(text, [each.name for each in fields(Row)], lineterminator="\n")
    to.writeheader()
    to.writerows(asdict(row) for row in rows)
    return text.getvalue()


def read_table(text: str | None = None) -> list[Row]:
    """The rows of a table, by default of ours. Raises MisuseError if there are none."""
    lines = TABLE.read_text(encoding="utf-8") if text is None else text
    found = [
        Row(mutant, kind, world, rule, int(steps), test)
        for mutant, kind, world, rule, steps, test in csv.reader(io.StringIO(lines).readlines()[1:])
    ]
    if not found:
        raise MisuseError("the table has no mutant (write it again: make mutants)")
    return found


def page(rows: Sequence[Row]) -> str:
    """The page, with the counts of a table."""
    lines = []
    for kind, about in _KINDS.items():
        own = [row for row in rows if row.kind == kind]
        by_world, by_test = sum(bool(row.world) for row in own), sum(bool(row.test) for row in own)
        counts = (len(own), by_world, by_test, len(own) - by_world - by_test)
        lines.append(f"| {kind} | {about} | {' | '.join(map(str, counts))} |\n")
    by_world, by_test = sum(bool(row.world) for row in rows), sum(bool(row.test) for row in rows)
    told = f"{len(rows)} mutants: {by_world} are found by a world, {by_test} by a test"
    return _PAGE.format(counted=told, rows="".join(lines))


def read_caught() -> dict[str, str]:
    """The test that fails under each mutant that no world finds."""
    return {row.mutant: row.test for row in read_table() if row.test}
