"""``python -m tests.lmcache.run --python VERSION -m tests.lmcache.nightly``: traffic in every world under the watch, for long.

One line for each run in which the watch has named a rule or the rig has seen something; in the end how many places there were.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.programs import natural, positive, with_fixed_hashes

if __name__ == "__main__":
    with_fixed_hashes("tests.lmcache.nightly")

from tests.lmcache.engine import RELEASE
from tests.lmcache.planted.play import Row, driven, worlds
from tests.lmcache.worlds import WORLDS

PLACES = 500_000
SLICE = 400
"""Steps of traffic of one seed."""


def take(row: Row, counts: Counter[str]) -> None:
    """Count a run, and tell it if there is something to tell."""
    wrong = bool(row.rules) or row.trouble is not None
    counts.update(steps=row.steps, places=row.places, runs=1, named=int(bool(row.rules)), bad=int(wrong))
    if wrong:
        rules = ", ".join(f"{rule} at step {step}" for rule, step in sorted(row.rules.items(), key=lambda each: each[1]))
        trouble = "" if row.trouble is None else f"{row.what} at step {row.trouble}"
        said = "; ".join(each for each in (rules and f"named {rules}", trouble) if each)
        print(f"{row.world} seed {row.seed}: {said}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until so many places were written, read, stored or loaded. Exit status 1 if anything was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.lmcache.nightly", description=__doc__)
    parser.add_argument("--places", type=positive, default=PLACES, help="places of all runs together")
    parser.add_argument("--slice", type=positive, default=SLICE, help="steps of traffic of one seed")
    parser.add_argument("--seed", type=natural, default=0, help="the first one")
    parser.add_argument("--worlds", nargs="+", choices=sorted(worlds()), default=sorted(WORLDS), metavar="WORLD")
    chosen = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    began, counts = time.monotonic(), Counter[str]()
    try:
        for seed, name in ((seed, name) for seed in itertools.count(chosen.seed) for name in chosen.worlds):
            take(driven(name, worlds()[name], seed, chosen.slice), counts)
            if counts["places"] >= chosen.places:
                break
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    print(
        f"LMCache {RELEASE}: {counts['places']} places, {counts['steps']} steps in {counts['runs']} runs of"
        f" {len(chosen.worlds)} worlds ({time.monotonic() - began:.0f} s);"
        f" the watch has named something in {counts['named']}, {counts['bad']} want to be looked at",
        flush=True,
    )
    return int(bool(counts["bad"]))


if __name__ == "__main__":
    sys.exit(main())
