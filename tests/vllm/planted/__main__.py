"""``python -m tests.vllm.run --python 0.33.0 -m tests.vllm.planted``: which bugs the watch names when they are planted in vLLM.

Each bug is planted alone, in each seed of each of its worlds, beside as many runs without any. What comes out is a table:
in how many runs a bug did harm, and in how many of these a rule fell no later, later, or not at all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blocklife.engines.vllm._versions import SUPPORTED, minor_of
from tests.behind.planted import Bed, Planted
from tests.behind.planted.program import Found, cells, chosen_bugs, parser, runs, told, totals, written
from tests.programs import importing, refused
from tests.vllm.planted import ROOMS, SETS, all_planted

PROGRAM = "tests.vllm.planted"
with importing(PROGRAM, __name__):
    from tests.vllm.engine import RELEASE
    from tests.vllm.planted.play import played

NUM_SEEDS = 6
STEPS = 300


def markdown(bugs: Sequence[Planted[Bed]], found: Found) -> str:
    """A row for each bug, and below the totals of each set."""
    lines = [
        "| bug | what | runs | fired in | did harm in | named in time / late / never | first rule |",
        "| --- | --- | ---: | ---: | --- | --- | --- |",
        *(f"| {' | '.join(cells(bug, found[bug.name]))} |" for bug in bugs),
    ]
    sets = {name: [bug for bug in bugs if bug.name in all_planted(rooms)] for name, rooms in SETS.items()}
    sums = [f"Set {name}. {totals(own, found)}" for name, own in sets.items() if own]
    return "\n".join([*lines, "", *sums]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for. Exit status 1 where there was a problem."""
    chosen = parser(PROGRAM, __doc__, NUM_SEEDS, STEPS, SETS).parse_args(arguments)
    if minor_of(RELEASE) != minor_of(SUPPORTED[-1]):
        refused(PROGRAM, f"the bugs are made for vLLM {SUPPORTED[-1]}.x, and this is {RELEASE}")
    bugs = chosen_bugs(PROGRAM, all_planted(SETS.get(chosen.set, ROOMS)), chosen.bugs)
    try:
        rows = list(runs(bugs, chosen.seeds, chosen.steps, played))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    status = told(bugs, rows, markdown)
    if chosen.json is not None:
        written(PROGRAM, chosen.json, rows)
    return status


if __name__ == "__main__":
    sys.exit(main())
