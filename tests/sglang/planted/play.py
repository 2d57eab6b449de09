"""Plays a planted bug: one run of random traffic under the watch, judged by what the rig sees without it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from random import Random

from attrs import frozen
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from blocklife.engines.sglang.watch import Options, Watch, WatchMode, attach
from blocklife.watch._contents import STILL
from tests.behind.planted import Planted
from tests.behind.planted.program import Played
from tests.behind.verdicts import run_to_rest
from tests.sglang.planted import Bed
from tests.sglang.rig import Rank, Rig
from tests.sglang.traffic import Traffic
from tests.sglang.worlds import PLANTED, WORLDS, World

LOOKED_AT = ("unlocked_twice", "full", UnifiedRadixCache)
"""A bug, a world, and the class that it changes."""
DRAIN = 400
"""Steps that an engine has to come to rest in; one that does not stands still."""
REST = STILL + 6
"""Steps at rest, in which the watch looks whether all is there."""


@frozen
class Row:
    """One seed of a world: the first step of each rule, and of whatever was wrong without the watch."""

    world: str
    seed: int
    steps: int
    rules: Mapping[str, int]
    trouble: int | None
    what: str
    """What was wrong first: bytes, a text, SGLang's own error, memory that is missing, no way on, or a lost watch."""


def worlds() -> Mapping[str, World]:
    """The worlds that have a name, and some that differ from them for the sake of a bug."""
    return WORLDS | PLANTED


def played(bug: Planted[Bed], world: str, seed: int, steps: int) -> Played:
    """Plant a bug, let a seed run under a watch that only counts, and take the bug out again."""
    with ExitStack() as stack:
        bed = Bed(Random(f"{seed}/{bug.name}"), stack)
        bug.plant(bed)
        row = driven(world, worlds()[world], seed, steps, bed)
    return Played(bug.name, bed.fired, row)


def driven(name: str, world: World, seed: int, steps: int, bed: Bed | None = None) -> Row:
    """One seed of a world with a watch on each rank."""
    watches: list[Watch] = []

    def on_rank(rank: Rank) -> None:
        watches.append(attach(rank.scheduler, Options(mode=WatchMode.COUNT)))
        for change in bed.on_rank if bed is not None else ():
            change(rank)

    rig = Rig(world.spec, seed, on_rank)
    traffic = Traffic.drawn(rig, seed, world=world)
    rules: dict[str, int] = {}
    first: list[tuple[int, str]] = []

    def look(rig: Rig) -> None:
        for watch in watches:
            for rule in watch.counts:
                rules.setdefault(rule, rig.step_number)
            if watch.lost is not None:
                first.append((rig.step_number, f"the watch is lost: {watch.lost!r}"))
        first.extend((each.step, "wrong bytes") for each in rig.corruptions[:1])
        if rig.wrong_texts:
            first.append((rig.step_number, "wrong text"))

    def run() -> None:
        traffic.run(steps)
        rig.drain(DRAIN)
        for _ in range(REST):
            rig.step()

    rig.after_step.append(look)
    end = run_to_rest(rig, run, lambda: look(rig))
    if end.missing:
        first.append((rig.step_number, "missing: " + end.missing.split(": ", 1)[-1].lstrip("0123456789 ")))
    if end.stuck or end.error is not None:
        first.append((rig.step_number, "stuck" if end.stuck else type(end.error).__name__))
    step, what = min(first, key=lambda each: each[0]) if first else (None, "")
    return Row(name, seed, rig.step_number, dict(rules), step, what)
