"""``python -m tests.proof.mutants [PART]``: each rule switched off in turn (those with PART in their name); all must be found.

Every mutant has a line as soon as it is judged. Status: 0 if each has a world or a test that finds it, 1 if not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from blocklife.cli._built import examine
from tests.proof.mutants.judging import grounds, judge_all
from tests.proof.mutants.planting import all_mutants
from tests.proof.mutants.table import PAGE, TABLE, counted, holes, line, page, read_caught, rows_of, table


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("part", nargs="?", default="", metavar="PART", help="only mutants with this in their name")
    parser.add_argument("--write", action="store_true", help="write specs/mutants.csv, and the counts of specs/mutants.md")
    chosen = parser.parse_args(arguments)
    if examine().compiled:
        parser.error("mutants change the core, which is compiled here (install blocklife with BLOCKLIFE_COMPILE=0)")
    mutants, tests = [each for each in all_mutants() if chosen.part in each.name], read_caught()
    if not mutants:
        parser.error(f"no mutant has {chosen.part!r} in its name")
    if chosen.write and chosen.part:
        parser.error("--write needs all mutants (leave out PART)")
    judged = []
    for judgement in judge_all(mutants, grounds(), os.cpu_count() or 1):
        judged.append(judgement)
        print(line(judgement, tests), flush=True)
    open_ones = holes(judged, tests, whole=not chosen.part)
    print(*open_ones, f"{counted(judged, tests)}; holes: {len(open_ones)}", sep="\n")
    if chosen.write:
        rows = rows_of(judged, tests)
        TABLE.write_text(table(rows), encoding="utf-8")
        PAGE.write_text(page(rows), encoding="utf-8")
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
