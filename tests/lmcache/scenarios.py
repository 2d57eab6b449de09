"""``python -m tests.lmcache.run --python VERSION -m tests.lmcache.scenarios``: how this release does on the scenarios.

It prints one line for each; with ``--write`` it writes `specs/scenarios/lmcache/above.csv`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from tests.behind.scenario_tables import as_they_are, table, write
from tests.lmcache.engine import RELEASE
from tests.proof.drivers.lmcache import LMCacheDriver


def main(argv: Sequence[str] | None = None) -> int:
    """Run them. Exit status 1 if any cell differs from the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.lmcache.scenarios", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write what was found into the table")
    chosen = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    found = []
    for case, text in as_they_are(LMCacheDriver):
        print(f"{case}: {text}", flush=True)
        found.append([case, text])
    if chosen.write:
        write("lmcache", "above", ["case", f"in {RELEASE}"], found)
        return 0
    if found != table("lmcache", "above")[1]:
        print("the table says something else (write it with --write)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
