"""``python -m tests.sglang.run --python 0.5.23 -m tests.sglang.planted``: which bugs the watch names when they are planted.

Each bug is planted alone, in each seed of each of its worlds, beside as many runs without any. What comes out is a table:
in how many runs a bug did harm, and in how many of these a rule fell no later, later, or not at all.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import asdict

if __name__ == "__main__" and "PYTHONHASHSEED" not in os.environ:
    # only with fixed hashes do two processes of one seed do the same
    os.execve(
        sys.executable, [sys.executable, "-m", "tests.sglang.planted", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
    )

from tests.programs import natural, positive, refused, target
from tests.sglang.engine import RELEASE
from tests.sglang.planted import Bed, Planted, all_planted
from tests.sglang.planted.play import NOBODY, Played, played

MADE_FOR = "0.5.23"
NUM_SEEDS = 3
STEPS = 250


def without(bugs: Sequence[Planted]) -> Planted:
    """No bug, in all the worlds of these."""

    def plant(bed: Bed) -> None:
        """Change nothing."""

    worlds = tuple(dict.fromkeys(world for bug in bugs for world in bug.worlds))
    return Planted(NOBODY, "nothing is planted", worlds, plant, seen=True)


def runs(bugs: Sequence[Planted], seeds: Sequence[int], steps: int) -> Iterator[Played]:
    """Every run, with a line of progress for each bug."""
    began = time.monotonic()
    for number, bug in enumerate(bugs, 1):
        found = [played(bug, world, seed, steps) for world in bug.worlds for seed in seeds]
        counted = dict(Counter(each.verdict for each in found))
        spent = time.monotonic() - began
        print(f"{number} of {len(bugs)} ({spent:.0f} s): {bug.name} {counted}", file=sys.stderr, flush=True)
        yield from found


def _counts(found: Sequence[Played]) -> str:
    """How many were in time, late, and never named."""
    counted = Counter(each.verdict for each in found)
    return " / ".join(str(counted[verdict]) for verdict in ("in time", "late", "never"))


def _told(counted: Counter[str]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counted.most_common())


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


def markdown(bugs: Sequence[Planted], found: Mapping[str, Sequence[Played]]) -> str:
    """A row for each bug, and below the totals."""
    lines = [
        "| bug | what | runs, fired in | did harm in | named in time / late / never | first rule | named, harm at step |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for bug in bugs:
        own = found[bug.name]
        harmful = [each for each in own if each.row.trouble is not None]
        kinds = Counter(each.row.what for each in harmful)
        firsts = Counter(each.first for each in own if each.first is not None)
        harm = f"{len(harmful)} ({_told(kinds)})" if harmful else "0"
        fired = f"{len(own)}, {sum(each.fired > 0 for each in own)}"
        cells = [bug.name, bug.about, fired, harm, _counts(harmful), _told(firsts), _soonest(harmful)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", totals(bugs, found)]) + "\n"


def totals(bugs: Sequence[Planted], found: Mapping[str, Sequence[Played]]) -> str:
    """How many bugs did harm, and how many of these were named."""
    harmful = {bug.name: [each for each in found[bug.name] if each.row.trouble is not None] for bug in bugs}
    harmful = {name: own for name, own in harmful.items() if own}
    every = [each for own in harmful.values() for each in own]
    named = sum(any(each.verdict == "in time" for each in own) for own in harmful.values())
    always = sum(all(each.verdict == "in time" for each in own) for own in harmful.values())
    return (
        f"Runs: {sum(len(found[bug.name]) for bug in bugs)}, with harm {len(every)}, "
        f"named in time / late / never {_counts(every)}. "
        f"Bugs: {len(bugs)}, with harm {len(harmful)}, named in time in a run {named}, in all of them {always}."
    )


def problems(bugs: Sequence[Planted], found: Mapping[str, Sequence[Played]]) -> Iterator[str]:
    """What should not be: a bug that sleeps, one that was missed and is not marked so, and whatever comes without a bug."""
    for bug in bugs:
        own = found[bug.name]
        for each in own:
            where = f"{bug.name}: {each.row.world} seed {each.row.seed}"
            if not each.fired and (each.row.rules or each.row.trouble is not None):
                yield f"{where}: {each.first or each.row.what}, and no bug has fired"
            elif bug.seen and each.verdict in ("late", "never"):
                yield f"{where}: {each.row.what} at step {each.row.trouble}, and {each.first or 'no rule'} fell"
        if bug.name != NOBODY and not any(each.fired for each in own):
            yield f"{bug.name}: it has fired in none of these seeds"


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.planted", description=__doc__)
    parser.add_argument("--bugs", nargs="+", metavar="NAME", help="instead of all")
    parser.add_argument("--seeds", nargs="+", type=natural, default=list(range(NUM_SEEDS)))
    parser.add_argument("--steps", type=positive, default=STEPS)
    parser.add_argument("--json", type=target, help="write all runs there, too")
    return parser.parse_args(arguments)


def chosen_bugs(names: Sequence[str] | None) -> list[Planted]:
    """The bugs of these names, or all, behind the runs without any."""
    known = all_planted()
    for name in names or ():
        if name not in known:
            refused("planted", f"no bug is called {name!r} (one is {min(known)})")
    bugs = [known[name] for name in names or known]
    return [without(bugs), *bugs]


def written(file: Path, found: Sequence[Played]) -> None:
    """Write all runs to a file."""
    try:
        file.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        refused("planted", f"{file} cannot be written: {error.strerror} (the table is above)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for. Exit status 1 where there was a problem."""
    chosen = parsed(arguments)
    if RELEASE != MADE_FOR:
        refused("planted", f"the bugs are made for SGLang {MADE_FOR}, and this is {RELEASE}")
    logging.disable(logging.CRITICAL)
    bugs = chosen_bugs(chosen.bugs)
    rows: list[Played] = []
    try:
        for row in runs(bugs, chosen.seeds, chosen.steps):
            rows.append(row)
            if chosen.json is not None:
                written(chosen.json, rows)  # a run that is stopped leaves what it has
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    found = {bug.name: [each for each in rows if each.bug == bug.name] for bug in bugs}
    print(markdown(bugs, found), end="", flush=True)
    told = list(problems(bugs, found))
    for problem in told:
        print(problem, file=sys.stderr)
    return bool(told)


if __name__ == "__main__":
    sys.exit(main())
