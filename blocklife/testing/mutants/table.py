"""The table of mutants as a page: the world that finds each and how soon, the test that does, or why nobody could.

Rules of this file:

* The page is written from judgements, and can be read back, so that a test can ask whether it is still true.
* A mutant that no world finds needs a test that fails under it (`caught`) or, where nothing that anybody can observe changes,
  an argument (`unfound`); without either it is a hole, and the page says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from blocklife.errors import MisuseError
from blocklife.testing.mutants.judging import Fate, Judgement

_HEAD = (
    "# Mutants\n\n"
    "Every guard of a table, every effect of a coupling, every cleanup step of the ledger and the scheduler, and five released "
    "fixes, each switched off in turn.\n"
    "`blocklife check --mutants` plants one after the other and explores the small worlds until one of them does not hold; "
    "*steps* is the length of a shortest counterexample there.\n"
    "The list is read from the tables and from the source; nobody keeps it. "
    "What no world finds a test of the suite does: `pytest --blocklife-mutant NAME` runs any suite with a mutant planted.\n"
    "This page is written by `make mutants`, and tests ask each row again.\n"
)
_COLUMNS = "| mutant | found in | breaks | steps |\n| --- | --- | --- | ---: |\n"
_KINDS = {
    "guard": "Guards: a row is taken although its guard does not hold",
    "effect": "Effects: one machine takes its step, and the other does not",
    "step": "Cleanup steps: a function that something ends with runs without one of its statements",
    "seed": "Seeds: the code as it was before a released fix",
}
_BY_TESTS = "## Found by a test: every rule holds, and something else is wrong\n\n| mutant | test |\n| --- | --- |\n"
_REST = "## Found by nobody, and why nobody could\n\n| mutant | what changes | why nobody can see it |\n| --- | --- | --- |\n"
_NONE: Mapping[str, str] = {}


@frozen
class Found:
    """One row of the page."""

    mutant: str
    world: str
    rule: str
    length: int


def lines(judgements: Sequence[Judgement], arguments: Mapping[str, str], tests: Mapping[str, str] = _NONE) -> list[str]:
    """For people: each mutant with what it is found by, and what is open."""
    said = []
    for each in judgements:
        if each.fate is Fate.FOUND:
            said.append(f"found in {each.world} after {each.length} steps ({each.rule}): {each.mutant}")
        else:
            why = tests.get(each.mutant) or arguments.get(each.mutant) or "NOBODY KNOWS (--tests FILE says which test fails)"
            said.append(f"{each.fate.name.lower()}: {each.mutant}\n    {why}")
    count = len(holes(judgements, arguments, tests, whole=False))
    return [*said, f"{_counted(judgements, arguments, tests)}; holes: {count}"]


def holes(
    judgements: Iterable[Judgement],
    arguments: Mapping[str, str],
    tests: Mapping[str, str] = _NONE,
    *,
    whole: bool = True,
) -> list[str]:
    """What is wrong with a list: mutants with no counterexample, test or argument, and those with two of them.

    *whole*: the list has all mutants, so that a test or an argument for none of them is one too many.
    """
    judged = {each.mutant: each.fate for each in judgements}
    said = []
    for mutant, fate in judged.items():
        known = [name for name, table in (("a test", tests), ("an argument", arguments)) if mutant in table]
        if fate is not Fate.FOUND and not known:
            said.append(f"{mutant}: {fate.name.lower()}")
        elif fate is Fate.FOUND and known:
            said.append(f"{mutant}: there is {known[0]} for it, and a world finds it")
        elif len(known) > 1:
            said.append(f"{mutant}: there is an argument for it, and a test finds it")
    gone = sorted({*tests, *arguments} - judged.keys()) if whole else ()
    return [*said, *(f"{mutant}: there is a row for it, and no such mutant" for mutant in gone)]


def _counted(judgements: Sequence[Judgement], arguments: Mapping[str, str], tests: Mapping[str, str]) -> str:
    """How many are found by what."""
    found = [each.mutant for each in judgements if each.fate is Fate.FOUND]
    rest = {each.mutant for each in judgements}.difference(found)
    tested, argued = len(rest & tests.keys()), len(rest & arguments.keys())
    return (
        f"{len(judgements)} mutants: found by a world {len(found)}, by a test {tested}, and by nobody, with a reason, {argued}"
    )


def page(judgements: Sequence[Judgement], arguments: Mapping[str, str], tests: Mapping[str, str] = _NONE) -> str:
    """The whole page."""
    parts = [_HEAD, f"{_counted(judgements, arguments, tests)}.\n"]
    for kind, title in _KINDS.items():
        rows = [each for each in judgements if each.kind == kind and each.fate is Fate.FOUND]
        lines = [f"| `{_safe(each.mutant)}` | {each.world} | {each.rule} | {each.length} |\n" for each in rows]
        parts.append(f"## {title}\n\n{_COLUMNS}{''.join(lines)}")
    rest = [each for each in judgements if each.fate is not Fate.FOUND]
    lines = [f"| `{_safe(each.mutant)}` | `{_safe(tests[each.mutant])}` |\n" for each in rest if each.mutant in tests]
    parts.append(_BY_TESTS + "".join(lines))
    lines = [
        f"| `{_safe(each.mutant)}` | {_changed(each)} | {_safe(arguments.get(each.mutant, '**nobody knows**'))} |\n"
        for each in rest
        if each.mutant not in tests
    ]
    parts.append(_REST + "".join(lines))
    return "\n".join(parts)


def read_page(text: str) -> list[Found]:
    """The mutants that a page says are found. Refuses a page that has none."""
    found: list[Found] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 4 and cells[3].isdecimal():
            mutant = cells[0].strip("`").replace("\0", "|")
            found.append(Found(mutant, cells[1], cells[2], int(cells[3])))
    if not found:
        raise MisuseError("the page names no mutant that is found (write it anew: make mutants)")
    return found


def _safe(text: str) -> str:
    return text.replace("|", "\\|")


def _changed(judgement: Judgement) -> str:
    """What the worlds show of a mutant under which every rule holds."""
    if judgement.fate is Fate.COUNTED:
        return f"numbers of {judgement.world}: {_safe(judgement.message)}"
    return {Fate.UNREACHED: "no world comes by", Fate.UNCHANGED: "nothing"}.get(judgement.fate, "values, in the same number")
