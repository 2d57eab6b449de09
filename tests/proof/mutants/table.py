"""The table of mutants as a page: the world that finds each, after how many steps, or the test that does.

Rules of this file:

* The page is written from judgements, and can be read back, so that a test can check whether it is still true.
* A mutant that no world finds needs a test that fails under it; without one it is a hole, and the page says so. The tests are
  in `caught.toml`, with rows ``"mutant" = "tests/test_x.py::test_y"``, and a test plants each of these mutants.
* A step whose mutant makes no observable difference is not needed: delete it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from blocklife.errors import MisuseError
from tests.proof.mutants.judging import Judgement

CAUGHT = Path(__file__).parents[1] / "caught.toml"
_HEAD = (
    "# Mutants\n\n"
    "Every guard of a table, every effect of a coupling, every cleanup step of the ledger and the scheduler, and five released "
    "fixes, each switched off in turn.\n"
    "`make mutants` plants one after the other and explores the small worlds until one of them does not hold; "
    "*steps* is the length of a shortest counterexample there.\n"
    "The list is derived from the tables and the source. "
    "Mutants that no world finds are found by a test: `pytest -p tests.proof.plugin --mutant NAME` runs with one planted.\n"
    "It writes this page, too, and tests check each row again.\n"
)
_COLUMNS = "| mutant | found in | breaks | steps |\n| --- | --- | --- | ---: |\n"
_KINDS = {
    "guard": "Guards: a row is taken although its guard does not hold",
    "effect": "Effects: one machine takes its step, and the other does not",
    "step": "Cleanup steps: a function that ends something runs without one of its statements",
    "seed": "Seeds: the code as it was before a released fix",
}
_BY_TESTS = "## Found by a test: every rule holds, but something else is wrong\n\n| mutant | test |\n| --- | --- |\n"
_HOLES = "## Holes: found by no world and no test\n\n| mutant | in all worlds |\n| --- | --- |\n"
_NONE: Mapping[str, str] = {}


@frozen
class PageRow:
    """One row of the page."""

    mutant: str
    world: str
    rule: str
    length: int


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


def page(judgements: Sequence[Judgement], tests: Mapping[str, str] = _NONE) -> str:
    """The whole page."""
    parts = [_HEAD, f"{counted(judgements, tests)}.\n"]
    for kind, title in _KINDS.items():
        rows = [each for each in judgements if each.kind == kind and each.is_found]
        lines = [f"| `{_safe(each.mutant)}` | {each.world} | {each.rule} | {len(each.actions)} |\n" for each in rows]
        parts.append(f"## {title}\n\n{_COLUMNS}{''.join(lines)}")
    rest = [each for each in judgements if not each.is_found]
    lines = [f"| `{_safe(each.mutant)}` | `{_safe(tests[each.mutant])}` |\n" for each in rest if each.mutant in tests]
    parts.append(_BY_TESTS + "".join(lines))
    if missed := [each for each in rest if each.mutant not in tests]:
        parts.append(_HOLES + "".join(f"| `{_safe(each.mutant)}` | every rule holds |\n" for each in missed))
    return "\n".join(parts)


def read_page(text: str) -> list[PageRow]:
    """The mutants that a page lists as found. Raises MisuseError if there are none."""
    found: list[PageRow] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4 and cells[3].isdecimal():
            mutant = cells[0].strip("`").replace("\0", "|")
            found.append(PageRow(mutant, cells[1], cells[2], int(cells[3])))
    if not found:
        raise MisuseError("the page has no mutant that is found (write it again: make mutants)")
    return found


def _safe(text: str) -> str:
    return text.replace("|", "\\|")


def read_caught() -> dict[str, str]:
    """The test that fails under each mutant that no world finds."""
    found: dict[str, str] = tomllib.loads(CAUGHT.read_text(encoding="utf-8"))
    return found
