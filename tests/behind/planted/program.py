"""The program of an engine's planted bugs: every bug in each seed of each of its worlds, beside as many runs without any.

What comes out is a table: in how many runs a bug did harm, and in how many of these a rule fell no later, later, or not at all.
An engine has its own bugs, and its own way to play a run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from attrs import asdict, frozen

from tests.behind.planted import NOBODY, B, Planted, without
from tests.programs import natural, positive, refused, stoppable, table, target


class Row(Protocol):
    """One seed of a world: the first step of each rule, and of whatever was wrong without the watch."""

    @property
    def world(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def rules(self) -> Mapping[str, int]: ...
    @property
    def trouble(self) -> int | None: ...
    @property
    def what(self) -> str: ...
    @property
    def steps(self) -> int: ...


@frozen
class Played:
    """One run."""

    bug: str
    fired: int
    """How often the bug has made a difference."""
    row: Row

    @property
    def first(self) -> str | None:
        """The rule that fell first, if one did."""
        return min(self.row.rules, key=self.row.rules.__getitem__, default=None)

    @property
    def verdict(self) -> str:
        """``in time`` if a rule fell no later than anything was wrong, ``late`` or ``never``; ``no harm`` if nothing was."""
        if self.row.trouble is None:
            return "no harm"
        if self.first is None:
            return "never"
        return "in time" if self.row.rules[self.first] <= self.row.trouble else "late"


Play: TypeAlias = Callable[[Planted[B], str, int, int], Played]
"""Plants a bug in a world, lets a seed run for so many steps, and takes the bug out again."""
Found: TypeAlias = Mapping[str, Sequence[Played]]
"""The runs of each bug."""


def runs(bugs: Sequence[Planted[B]], seeds: Sequence[int], steps: int, played: Play[B]) -> Iterator[Played]:
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


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counted.most_common())


def harmful(found: Sequence[Played]) -> list[Played]:
    """The runs in which something was wrong."""
    return [each for each in found if each.row.trouble is not None]


def cells(bug: Planted[B], own: Sequence[Played]) -> list[str]:
    """What a table says of a bug: its sentence, how many runs it had, fired in and did harm in, when it was named, and how."""
    harm = harmful(own)
    kinds = Counter(each.row.what for each in harm)
    firsts = Counter(each.first for each in own if each.first is not None)
    return [
        *(bug.name, bug.about, str(len(own)), str(sum(each.fired > 0 for each in own))),
        *(f"{len(harm)} ({_listed(kinds)})" if harm else "0", _counts(harm), _listed(firsts)),
    ]


def totals(bugs: Sequence[Planted[B]], found: Found) -> str:
    """How many bugs did harm, and how many of these were named."""
    harm = [own for bug in bugs if (own := harmful(found[bug.name]))]
    every = [each for own in harm for each in own]
    named = sum(any(each.verdict == "in time" for each in own) for own in harm)
    always = sum(all(each.verdict == "in time" for each in own) for own in harm)
    return (
        f"Runs: {sum(len(found[bug.name]) for bug in bugs)}, with harm {len(every)}, "
        f"named in time / late / never {_counts(every)}. "
        f"Bugs: {len(bugs)}, with harm {len(harm)}, named in time in a run {named}, in all of them {always}."
    )


def problems(bugs: Sequence[Planted[B]], found: Found) -> Iterator[str]:
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


def soonest(found: Sequence[Played]) -> str:
    """A run in which a rule fell ahead of the harm by as many steps as in any; "" if none did."""
    early = [(each.row.trouble - each.row.rules[each.first], each) for each in found if each.row.trouble and each.first]
    if not early:
        return ""
    row, first = (best := max(early, key=lambda each: each[0])[1]).row, best.first or ""
    return f"{row.world} {row.seed}: {first} at {row.rules[first]}, {row.what} at {row.trouble}"


def markdown(bugs: Sequence[Planted[B]], found: Found, sets: Mapping[str, Collection[str]]) -> str:
    """A row for each bug, and below the totals of each of the *sets*, which are names of bugs."""
    heads = ["bug", "what", ">runs", ">fired in", "did harm in", "named in time / late / never", "first rule"]
    rows = ([*cells(bug, own := found[bug.name]), soonest(harmful(own))] for bug in bugs)
    chosen = {name: [bug for bug in bugs if bug.name in names] for name, names in sets.items()}
    sums = [f"Set {name}. {totals(own, found)}" for name, own in chosen.items() if own]
    return "\n".join([table([*heads, "named, harm at step"], rows), *sums]) + "\n"


def parser(program: str, about: str | None, seeds: int, steps: int, sets: Collection[str]) -> argparse.ArgumentParser:
    """The options of a program, whose bugs are in *sets*; how many seeds and steps there are if nothing is said."""
    options = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    options.add_argument("--bugs", nargs="+", metavar="NAME", help="instead of all")
    options.add_argument("--set", choices=sets, help="instead of all: with which the watch has grown, or from outside")
    options.add_argument("--seeds", nargs="+", type=natural, default=list(range(seeds)))
    options.add_argument("--steps", type=positive, default=steps)
    options.add_argument("--json", type=target, help="write all runs there, too")
    return options


def chosen_bugs(program: str, known: Mapping[str, Planted[B]], names: Sequence[str] | None) -> list[Planted[B]]:
    """The bugs of these names, or all, behind the runs without any."""
    for name in names or ():
        if name not in known:
            refused(program, f"no bug is called {name!r} (one is {min(known)})")
    bugs = [known[name] for name in names or known]
    return [without(bugs), *bugs]


def written(program: str, file: Path, found: Sequence[Played]) -> None:
    """Write all runs to a file."""
    try:
        file.write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        refused(program, f"{file} cannot be written: {error.strerror} (the table is above)")


def told(bugs: Sequence[Planted[B]], rows: Sequence[Played], sets: Mapping[str, Collection[str]]) -> int:
    """Print the table of these runs, and what should not be. The exit status is 1 if there is something."""
    found = {bug.name: [each for each in rows if each.bug == bug.name] for bug in bugs}
    print(markdown(bugs, found, sets), end="", flush=True)
    wrong = list(problems(bugs, found))
    for problem in wrong:
        print(problem, file=sys.stderr)
    return bool(wrong)


@stoppable
def carried_out(program: str, chosen: argparse.Namespace, sets: Mapping[str, Mapping[str, Planted[B]]], played: Play[B]) -> int:
    """Do what was asked for. Exit status 1 where there was a problem, 130 where it was stopped; the file has what there is."""
    known = {name: bug for which, own in sets.items() for name, bug in own.items() if chosen.set in (None, which)}
    bugs, rows = chosen_bugs(program, known, chosen.bugs), list[Played]()
    for row in runs(bugs, chosen.seeds, chosen.steps, played):
        rows.append(row)
        if chosen.json is not None:
            written(program, chosen.json, rows)
    return told(bugs, rows, sets)
