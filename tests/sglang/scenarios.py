"""``python -m tests.sglang.run --python VERSION -m tests.sglang.scenarios``: how this release does on the scenarios.

It prints one line for each; with ``--write`` it writes the release's column of `specs/scenarios/sglang/releases.csv`, and with
the newest release also `above.csv`: how it does on the cases that are not written for SGLang.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import frozen

from blocklife.testing import Driver, ScenarioVerdict
from blocklife.testing.scenarios._cases import SHIPPED
from tests.behind.scenario_tables import as_they_are, cell, runs_of, table, write
from tests.programs import with_fixed_hashes

FOLDER = SHIPPED / "sglang"
RELEASES = ("0.5.23", "0.5.20", "0.5.14", "0.5.13.post1")
NEWEST = RELEASES[0]
DRIVERS = ("SglangDriver", "SkewedSglangDriver")
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


def verdicts(case: str, driver: str) -> list[ScenarioVerdict]:
    """Every variant of a case that SGLang's contract is in."""
    return runs_of(FOLDER / f"{case}.toml", driver_of(driver))


# --- the tables -------------------------------------------------------------------------------------------------------------


def cells_of(release: str) -> dict[str, str]:
    """A column of the table of releases."""
    header, lines = table("sglang", "releases")
    at = header.index(release)
    return {line[0]: line[at] for line in lines}


def write_column(release: str, found: dict[str, str]) -> None:
    """Write what a release shows; the other columns stay."""
    header, lines = table("sglang", "releases")
    known = {line[0]: dict(zip(header[1:], line[1:], strict=True)) for line in lines}
    made = []
    for row in rows():
        cells = {**dict.fromkeys(RELEASES, ""), **known.get(row.name, {}), release: found[row.name]}
        made.append([row.name, *(cells[each] for each in RELEASES)])
    write("sglang", "releases", ["case", *RELEASES], made)


def above(cases: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
    """How the newest release does on the cases that are not written for SGLang."""
    return as_they_are(driver_of(DRIVERS[0]), cases)


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
            write("sglang", "above", ["case", f"in {NEWEST}"], others)
        else:
            differs = differs or others != table("sglang", "above")[1]
    if differs:
        print("the tables say something else (write it with --write)", file=sys.stderr)
    return int(differs)


if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.scenarios")
    sys.exit(main())
