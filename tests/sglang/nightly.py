"""``python -m tests.sglang.run --python VERSION -m tests.sglang.nightly``: traffic in every world under the watch, for long.

One line for each run in which the watch has named a rule or the rig has seen something; in the end how many steps there were.
The watch follows jobs with a ledger, and counts. Faults that `specs/sglang-findings.md` tells are counted apart.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.behind.worlds import known
from tests.programs import natural, positive, with_fixed_hashes

if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.nightly")

from tests.sglang.engine import RELEASE
from tests.sglang.planted.play import Row, driven
from tests.sglang.worlds import WORLDS

STEPS = 500_000
SLICE = 400
"""Steps of traffic of one seed."""
KNOWN = {world: set(shown) for world, shown in known("sglang")["long"].items()}
"""What a world is known to show, and which rules are known to fall: a scheduler that admits too much, a lost state."""
NAMED = {"skewed"}
"""Worlds in which the watch is known to name something."""


def rows(worlds: Sequence[str], seed: int, slice_: int) -> Iterator[Row]:
    """Runs without end: each seed in each world."""
    for number in itertools.count(seed):
        for world in worlds:
            yield driven(world, WORLDS[world], number, slice_)


def told(row: Row) -> str:
    """What is to be said of a run."""
    rules = ", ".join(f"{rule} at step {step}" for rule, step in sorted(row.rules.items(), key=lambda each: each[1]))
    trouble = "" if row.trouble is None else f"{row.what} at step {row.trouble}"
    return f"{row.world} seed {row.seed}: " + "; ".join(each for each in (rules and f"named {rules}", trouble) if each)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until there were so many steps. Exit status 1 if anything was seen that is not known."""
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.nightly", description=__doc__)
    parser.add_argument("--steps", type=positive, default=STEPS, help="steps of all runs together")
    parser.add_argument("--slice", type=positive, default=SLICE, help="steps of traffic of one seed")
    parser.add_argument("--seed", type=natural, default=0, help="the first one")
    parser.add_argument("--worlds", nargs="+", choices=sorted(WORLDS), default=sorted(set(WORLDS) - NAMED), metavar="WORLD")
    chosen = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    began, counts = time.monotonic(), Counter[str]()
    try:
        for row in rows(chosen.worlds, chosen.seed, chosen.slice):
            take(row, counts)
            if counts["steps"] >= chosen.steps:
                break
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    spent = time.monotonic() - began
    print(
        f"SGLang {RELEASE}: {counts['steps']} steps in {counts['runs']} runs of {len(chosen.worlds)} worlds ({spent:.0f} s);"
        f" the watch has named something in {counts['named']}, {counts['known']} ended by a known fault,"
        f" {counts['bad']} want to be looked at",
        flush=True,
    )
    return int(bool(counts["bad"]))


def take(row: Row, counts: Counter[str]) -> None:
    """Count a run, and tell it if there is something to tell."""
    wrong = bool(row.rules) or row.trouble is not None
    known = wrong and {*row.rules, *([row.what] if row.what else [])} <= KNOWN.get(row.world, set())
    counts.update(steps=row.steps, runs=1, named=int(bool(row.rules)), known=int(known), bad=int(wrong and not known))
    if wrong:
        print(told(row) + " (known)" * known, flush=True)


if __name__ == "__main__":
    sys.exit(main())
