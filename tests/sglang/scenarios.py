"""``python -m tests.sglang.run --python VERSION -m tests.sglang.scenarios``: how this release does on the scenarios.

It prints one line for each; with ``--write`` it writes the release's column of `specs/scenarios/sglang/releases.csv`, and with
the newest release also `above.csv`: how it does on the cases that are not written for SGLang.
"""

from __future__ import annotations

import argparse
import csv
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import frozen

from blocklife.testing import Driver, Outcome, ScenarioVerdict, run_scenario
from blocklife.testing.scenarios._cases import SHIPPED
from blocklife.testing.scenarios._running import read_scenario, world_of
from tests.behind.shelf import PROJECT
from tests.programs import with_fixed_hashes

TABLES = PROJECT / "specs" / "scenarios" / "sglang"
FOLDER = SHIPPED / "sglang"
RELEASES = ("0.5.23", "0.5.20", "0.5.14", "0.5.13.post1")
NEWEST = RELEASES[0]
DRIVERS = ("SglangDriver", "SkewedSglangDriver")
UNEQUAL = ("A16", "G3", "G4")
"""Scenarios with several ranks: they are run with equal and with unequal hosts."""
_STEP = re.compile(r"(?:: step (\d+) \(\w+\)|(: at the end)): (.*)", re.DOTALL)
_RULE = re.compile(r"a rule is broken: (I\d+)")


@frozen
class Row:
    """One line of the table of releases."""

    case: str
    driver: str

    @property
    def name(self) -> str:
        """What stands in the first column."""
        return self.case + (", unequal hosts" if self.driver == DRIVERS[1] else "")


def rows() -> list[Row]:
    """The lines of the table."""
    cases = sorted(path.stem for path in FOLDER.glob("*.toml"))
    return [Row(case, driver) for case in cases for driver in DRIVERS[: 1 + (case in UNEQUAL)]]


# --- what a run says --------------------------------------------------------------------------------------------------------


def driver_of(name: str) -> Callable[[], Driver]:
    """The driver of this name."""
    from tests.proof.drivers import sglang

    driver: Callable[[], Driver] = getattr(sglang, name)
    return driver


def verdicts(case: str, driver: str, folder: str = "sglang") -> list[ScenarioVerdict]:
    """Every variant of a case that SGLang's contract is in."""
    scenario = read_scenario(SHIPPED / folder / f"{case}.toml")
    variants = list(scenario.each_variant())
    chosen = [each for each in variants if world_of(scenario, each).contract == "hold"] or variants[:1]
    return [run_scenario(scenario, driver_of(driver), each) for each in chosen]


def said(verdict: ScenarioVerdict) -> str:
    """What one run shows, in a few words: that it holds; the rule, or what went wrong, and the step; why it cannot run."""
    if verdict.outcome is Outcome.HELD:
        return "holds"
    if verdict.outcome is Outcome.NOT_APPLICABLE:
        return verdict.reason
    found = _STEP.search(verdict.message)
    place = "" if found is None else "at the end" if found[2] else f"step {found[1]}"
    rule = _RULE.search(verdict.message)
    what = rule[1] if rule else verdict.outcome.value.lower() + ("" if found is None else f": {shortened(found[3])}")
    return ", ".join(filter(None, [what, place]))


def shortened(message: str) -> str:
    """The message of a run without what is in brackets behind it."""
    first = message.partition("; /")[0].partition(" (the step")[0].partition(" (there are")[0]
    return first.removesuffix(" (-v shows the traceback)")


def cell(found: Iterable[ScenarioVerdict]) -> str:
    """What all variants of a case show. Where they differ, those that do not hold are named."""
    runs = list(found)
    groups: dict[str, list[ScenarioVerdict]] = {}
    for each in runs:
        groups.setdefault(said(each), []).append(each)
    if len(groups) == 1:
        return next(iter(groups))
    parts = []
    for text, mine in groups.items():
        if text != "holds":
            names = sorted({", ".join(str(value) for value in each.variant.values()) for each in mine})
            parts.append(f"{text} ({'; '.join(names)})")
    return "; ".join(parts) + ("; else holds" if "holds" in groups else "")


# --- the tables -------------------------------------------------------------------------------------------------------------


def table(name: str) -> tuple[list[str], list[list[str]]]:
    """The header and the lines of one table, cell by cell."""
    with (TABLES / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    return header, lines


def write(name: str, header: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Write a table."""
    with (TABLES / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *lines])


def cells_of(release: str) -> dict[str, str]:
    """A column of the table of releases."""
    header, lines = table("releases")
    at = header.index(release)
    return {line[0]: line[at] for line in lines}


def write_column(release: str, found: dict[str, str]) -> None:
    """Write what a release shows; the other columns stay."""
    header, lines = table("releases")
    known = {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}
    made = []
    for row in rows():
        cells = {**dict.fromkeys(RELEASES, ""), **known.get(row.name, {}), release: found[row.name]}
        made.append([row.name, *(cells[each] for each in RELEASES)])
    write("releases", ["case", *RELEASES], made)


def cases_above() -> list[str]:
    """The cases in the folder above."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def above(cases: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
    """How the newest release does on each of them: the reasons why it cannot be run, or what all variants show."""
    for case in cases_above() if cases is None else cases:
        found = verdicts(case, DRIVERS[0], ".")
        reasons = dict.fromkeys(each.reason for each in found if each.outcome is Outcome.NOT_APPLICABLE)
        rest = [each for each in found if each.outcome is not Outcome.NOT_APPLICABLE]
        told = [cell(rest)] if rest else []
        yield case, "; ".join([*told, *(reason.removeprefix("not expressible: ") for reason in reasons)])


def main(argv: Sequence[str] | None = None) -> int:
    """Run them. Exit status 1 if any cell differs from the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.scenarios", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write what was found into the tables")
    arguments = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    from tests.proof.drivers.sglang import SglangDriver

    release = SglangDriver().version
    found = {}
    for row in rows():
        found[row.name] = cell(verdicts(row.case, row.driver))
        print(f"{row.case} ({row.driver}): {found[row.name]}")
    differs = not arguments.write and found != cells_of(release)
    if arguments.write:
        write_column(release, found)
    if release == NEWEST:
        others = [[case, text] for case, text in above()]
        if arguments.write:
            write("above", ["case", f"in {NEWEST}"], others)
        else:
            differs = differs or others != table("above")[1]
    if differs:
        print("the tables say something else (write it with --write)", file=sys.stderr)
    return int(differs)


if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.scenarios")
    sys.exit(main())
