"""``python -m tests.sglang.run --python 0.5.23 -m tests.sglang.planted``: which bugs the watch names when they are planted.

Each bug is planted alone, in each seed of each of its worlds, beside as many runs without any. What comes out is a table:
in how many runs a bug did harm, and in how many of these a rule fell no later, later, or not at all.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from tests.behind.planted import Planted
from tests.behind.planted.program import Found, Played, cells, chosen_bugs, harmful, parser, runs, told, totals, written
from tests.programs import refused, with_fixed_hashes

if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.planted")

from tests.sglang.engine import RELEASE
from tests.sglang.planted import Bed, all_planted
from tests.sglang.planted.play import played

PROGRAM = "planted"
MADE_FOR = "0.5.23"
NUM_SEEDS = 3
STEPS = 250


def _soonest(found: Sequence[Played]) -> str:
    """A run in which a rule fell ahead of the harm by as many steps as in any; "" if none did."""
    early = [(each.row.trouble - each.row.rules[each.first], each) for each in found if each.row.trouble and each.first]
    if not early:
        return ""
    best = max(early, key=lambda each: each[0])[1]
    assert best.first is not None
    return (
        f"{best.row.world} {best.row.seed}: {best.first} at {best.row.rules[best.first]}, {best.row.what} at {best.row.trouble}"
    )


def markdown(bugs: Sequence[Planted[Bed]], found: Found) -> str:
    """A row for each bug, and below the totals."""
    lines = [
        "| bug | what | runs, fired in | did harm in | named in time / late / never | first rule | named, harm at step |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for bug in bugs:
        name, about, num_runs, fired, *rest = cells(bug, found[bug.name])
        row = [name, about, f"{num_runs}, {fired}", *rest, _soonest(harmful(found[bug.name]))]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join([*lines, "", totals(bugs, found)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for. Exit status 1 where there was a problem."""
    chosen = parser("tests.sglang.planted", __doc__, NUM_SEEDS, STEPS).parse_args(arguments)
    if RELEASE != MADE_FOR:
        refused(PROGRAM, f"the bugs are made for SGLang {MADE_FOR}, and this is {RELEASE}")
    logging.disable(logging.CRITICAL)
    bugs = chosen_bugs(PROGRAM, all_planted(), chosen.bugs)
    rows: list[Played] = []
    try:
        for row in runs(bugs, chosen.seeds, chosen.steps, played):
            rows.append(row)
            if chosen.json is not None:
                written(PROGRAM, chosen.json, rows)  # a run that is stopped leaves what it has
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return told(bugs, rows, markdown)


if __name__ == "__main__":
    sys.exit(main())
