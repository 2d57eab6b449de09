"""Plays a planted bug: one run of random traffic under the watch, judged by what the rig sees without it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from random import Random

from attrs import frozen
from lmcache.v1.distributed.l1_manager import L1Manager

from blocklife.engines.lmcache.watch import Options, Watch, WatchMode, attach
from tests.behind.planted import Bed, Planted
from tests.behind.planted.program import Played
from tests.behind.verdicts import run_to_rest
from tests.lmcache.engine import Engine
from tests.lmcache.rig import Rig
from tests.lmcache.traffic import Traffic
from tests.lmcache.worlds import UNKIND, WORLDS, World

LOOKED_AT = ("read_is_not_locked", "full", L1Manager)
"""A bug, a world, and the class that it changes."""
DRAIN = 1500
"""Steps in which all must come to rest; what does not stands still."""


@frozen
class Row:
    """One seed of a world: the first step of each rule, and of whatever was wrong without the watch."""

    world: str
    seed: int
    steps: int
    places: int
    rules: Mapping[str, int]
    trouble: int | None
    what: str
    """What was wrong first: bytes, a hit that is gone, an error, places that are missing, no way on, or a lost watch."""


def worlds() -> Mapping[str, World]:
    """The worlds that have a name."""
    return WORLDS | UNKIND


def watched(watches: list[Watch], engine: Engine) -> None:
    """Watch an engine, and count."""
    watches.append(attach(engine.context, [engine.lookup, engine.transfer], Options(mode=WatchMode.COUNT)))


def played(bug: Planted[Bed], world: str, seed: int, steps: int) -> Played:
    """Plant a bug, let a seed run under a watch that only counts, and take the bug out again."""
    with ExitStack() as stack:
        bed = Bed(Random(f"{seed}/{bug.name}"), stack)
        bug.plant(bed)
        row = driven(world, worlds()[world], seed, steps)
    return Played(bug.name, bed.fired, row)


def driven(name: str, world: World, seed: int, steps: int) -> Row:
    """One seed of a world under a watch."""
    watches: list[Watch] = []
    rig = Rig(world.spec, seed, lambda engine: watched(watches, engine))
    traffic = Traffic.drawn(rig, world, seed)
    rules: dict[str, int] = {}
    first: list[tuple[int, str]] = []

    def look(rig: Rig) -> None:
        (watch,) = watches
        for rule in watch.counts:
            rules.setdefault(rule, rig.step_number)
        if watch.lost is not None:
            first.append((rig.step_number, f"the watch is lost: {watch.lost!r}"))
        first.extend((each.step, "wrong bytes") for each in rig.witness.corruptions[:1])
        if rig.counts["hits that were gone"]:
            first.append((rig.step_number, "a hit is gone"))

    def run() -> None:
        traffic.run(steps)
        rig.drain(DRAIN)

    rig.after_step.append(look)
    end = run_to_rest(rig, run, lambda: look(rig))
    if end.missing:
        first.append((rig.step_number, f"missing: {end.missing.partition(':')[0]}"))
    if end.stuck or end.error is not None:
        first.append((rig.step_number, "stuck" if end.stuck else type(end.error).__name__))
    step, what = min(first, key=lambda each: each[0]) if first else (None, "")
    return Row(name, seed, rig.step_number, rig.places, dict(rules), step, what)
