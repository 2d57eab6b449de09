"""``python -m tests.sglang.run --python VERSION -m tests.sglang.scenarios``: how this release does on the scenarios.

It prints one line for each; with ``--write`` it writes the release's column of `specs/scenarios/sglang/releases.csv`, and with
the newest release also that of our own linker, and `above.csv`: how both do on the cases that are not written for SGLang.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import frozen

from blocklife.testing import Driver, Outcome, ScenarioVerdict
from blocklife.testing.scenarios._cases import SHIPPED
from tests.behind.scenario_tables import as_they_are, cases_above, cell, runs_of, table, write
from tests.programs import with_fixed_hashes

FOLDER = SHIPPED / "sglang"
RELEASES = ("0.5.23", "0.5.20", "0.5.14", "0.5.13.post1")
NEWEST = RELEASES[0]
LINKER = f"{NEWEST} linker"
"""The column of our own linker."""
DRIVERS = ("SglangDriver", "SkewedSglangDriver")
OF_LINKER = dict(zip(DRIVERS, ("LinkerDriver", "SkewedLinkerDriver"), strict=True))
COLUMNS = (NEWEST, LINKER, *RELEASES[1:])
UNASKED = "not expressible"
UNEQUAL = ("A16", "G3", "G4")
"""Scenarios with several ranks: they are run with equal and with unequal hosts."""


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


def columns_of(release: str) -> tuple[str, ...]:
    """The columns that a release has."""
    return (release, LINKER) if release == NEWEST else (release,)


def verdicts(row: Row, column: str) -> list[ScenarioVerdict]:
    """Every variant of a case that SGLang's contract is in, and that can be asked where one can."""
    driver = OF_LINKER[row.driver] if column == LINKER else row.driver
    found = runs_of(FOLDER / f"{row.case}.toml", driver_of(driver))
    return [each for each in found if each.outcome is not Outcome.NOT_APPLICABLE] or found


def shown(found: Sequence[ScenarioVerdict]) -> str:
    """What these show."""
    return UNASKED if found[0].outcome is Outcome.NOT_APPLICABLE else cell(found)


# --- the tables -------------------------------------------------------------------------------------------------------------


def cells_of(column: str) -> dict[str, str]:
    """A column of the table of releases."""
    header, lines = table("sglang", "releases")
    at = header.index(column)
    return {line[0]: line[at] for line in lines}


def write_column(column: str, found: dict[str, str]) -> None:
    """Write what a release shows; the other columns stay."""
    header, lines = table("sglang", "releases")
    known = {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}
    made = []
    for row in rows():
        cells = {**dict.fromkeys(COLUMNS, ""), **known.get(row.name, {}), column: found[row.name]}
        made.append([row.name, *(cells[each] for each in COLUMNS)])
    write("sglang", "releases", ["case", *COLUMNS], made)


def above(cases: Iterable[str] | None = None) -> Iterator[tuple[str, str, str]]:
    """How the newest release, and our linker in it, do on the cases that are not written for SGLang."""
    for case in cases_above() if cases is None else cases:
        both = (driver_of(each) for each in (DRIVERS[0], OF_LINKER[DRIVERS[0]]))
        (theirs,), (ours,) = (list(as_they_are(driver, [case])) for driver in both)
        yield case, theirs[1], ours[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Run them. Exit status 1 if any cell differs from the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.scenarios", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write what was found into the tables")
    arguments = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    from tests.proof.drivers.sglang import SglangDriver

    release, differs = SglangDriver().version, False
    for column in columns_of(release):
        found = {}
        for row in rows():
            found[row.name] = shown(verdicts(row, column))
            print(f"{row.name} in {column}: {found[row.name]}")
        if arguments.write:
            write_column(column, found)
        else:
            differs = differs or found != cells_of(column)
    if release == NEWEST:
        others = [list(each) for each in above()]
        if arguments.write:
            write("sglang", "above", ["case", *(f"in {each}" for each in columns_of(NEWEST))], others)
        else:
            differs = differs or others != table("sglang", "above")[1]
    if differs:
        print("the tables say something else (write it with --write)", file=sys.stderr)
    return int(differs)


if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.scenarios")
    sys.exit(main())
