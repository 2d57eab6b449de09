"""The table of mutants as a page: what each is found by and how soon, and why the others cannot be found.

Rules of this file:

* The page is written from judgements, and can be read back, so that a test can ask whether it is still true.
* A mutant that is not found needs an argument (`unfound`); without one it is a hole, and the page says so.
"""

from __future__ import annotations

from collections import Counter
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
    "This page is written by `make mutants`, and a test asks each row with a number of steps again.\n"
)
_COLUMNS = "| mutant | found in | breaks | steps |\n| --- | --- | --- | ---: |\n"
_KINDS = {
    "guard": "Guards: a row is taken although its guard does not hold",
    "effect": "Effects: one machine takes its step, and the other does not",
    "step": "Cleanup steps: a function that something ends with runs without one of its statements",
    "seed": "Seeds: the code as it was before a released fix",
}
_REST = "## No rule breaks, and why that is no hole\n\n| mutant | what changes | why that is no hole |\n| --- | --- | --- |\n"


@frozen
class Found:
    """One row of the page."""

    mutant: str
    world: str
    rule: str
    length: int


def lines(judgements: Sequence[Judgement], arguments: Mapping[str, str]) -> list[str]:
    """For people: each mutant with what it is found by, and what is open."""
    said = []
    for each in judgements:
        if each.fate is Fate.FOUND:
            said.append(f"found in {each.world} after {each.length} steps ({each.rule}): {each.mutant}")
        else:
            said.append(f"{each.fate.name.lower()}: {each.mutant}\n    {arguments.get(each.mutant, 'NOBODY KNOWS WHY')}")
    found = sum(each.fate is Fate.FOUND for each in judgements)
    open_ones = holes(judgements, arguments, whole=False)
    said.append(f"{len(judgements)} mutants: {found} found, {len(judgements) - found} not, {len(open_ones)} of them a hole")
    return said


def holes(judgements: Iterable[Judgement], arguments: Mapping[str, str], *, whole: bool = True) -> list[str]:
    """What is wrong with a list: mutants with neither counterexample nor argument, and arguments that are not needed.

    *whole*: the list has all mutants, so that an argument for none of them is one too many.
    """
    judged = list(judgements)
    found = {each.mutant for each in judged if each.fate is Fate.FOUND}
    missing = [f"{each.mutant}: {each.fate.name.lower()}" for each in judged if not {each.mutant} & (found | set(arguments))]
    stale = [f"{name}: there is an argument for it, and it is found" for name in arguments if name in found]
    gone = [
        f"{name}: there is an argument for it, and no such mutant" for name in set(arguments) - {each.mutant for each in judged}
    ]
    return [*missing, *stale, *(sorted(gone) if whole else ())]


def page(judgements: Sequence[Judgement], arguments: Mapping[str, str]) -> str:
    """The whole page."""
    parts = [_HEAD]
    fates = Counter(each.fate for each in judgements)
    found = fates[Fate.FOUND]
    parts.append(f"{len(judgements)} mutants: {found} are found, {len(judgements) - found} are not.\n")
    for kind, title in _KINDS.items():
        rows = [each for each in judgements if each.kind == kind and each.fate is Fate.FOUND]
        lines = [f"| `{_safe(each.mutant)}` | {each.world} | {each.rule} | {each.length} |\n" for each in rows]
        parts.append(f"## {title}\n\n{_COLUMNS}{''.join(lines)}")
    rest = [each for each in judgements if each.fate is not Fate.FOUND]
    lines = [
        f"| `{_safe(each.mutant)}` | {_changed(each)} | {_safe(arguments.get(each.mutant, '**nobody knows**'))} |\n"
        for each in rest
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
