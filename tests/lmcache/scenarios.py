"""``python -m tests.lmcache.run --python VERSION -m tests.lmcache.scenarios``: how this release does on the scenarios.

It prints one line for each; with ``--write`` it writes the tables in `specs/scenarios/lmcache`: how LMCache does on the cases
from its own threads, and on those that are written for no engine.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence

from blocklife.testing.scenarios._cases import SHIPPED
from tests.behind.scenario_tables import as_they_are, cell, runs_of, table, write
from tests.lmcache.engine import RELEASE
from tests.proof.drivers.lmcache import LMCacheDriver

FOLDER = SHIPPED / "lmcache"
CASES = sorted(path.stem for path in FOLDER.glob("*.toml"))
"""Those from LMCache's own threads."""


def own(driver: type[LMCacheDriver] = LMCacheDriver, cases: Iterable[str] = CASES) -> Iterator[tuple[str, str]]:
    """What LMCache shows in each of them."""
    for case in cases:
        yield case, cell(runs_of(FOLDER / f"{case}.toml", driver))


def main(argv: Sequence[str] | None = None) -> int:
    """Run them. Exit status 1 if any cell differs from the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.lmcache.scenarios", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write what was found into the table")
    chosen = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    differs = False
    for name, rows in (("releases", own()), ("above", as_they_are(LMCacheDriver))):
        found = []
        for case, text in rows:
            print(f"{case}: {text}", flush=True)
            found.append([case, text])
        if chosen.write:
            write("lmcache", name, ["case", RELEASE if name == "releases" else f"in {RELEASE}"], found)
        else:
            differs = differs or found != table("lmcache", name)[1]
    if differs:
        print("the tables say something else (write it with --write)", file=sys.stderr)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
