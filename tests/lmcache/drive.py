"""``python -m tests.lmcache.run --python VERSION -m tests.lmcache.drive``: random traffic under LMCache, one line a seed."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from attrs import frozen

from tests.behind import verdicts
from tests.behind.verdicts import Raised, run_to_rest, tell
from tests.lmcache.worlds import UNKIND, WORLDS, World
from tests.programs import importing, positive, seeds, with_fixed_hashes

with importing("tests.lmcache.drive", __name__):
    from tests.lmcache.engine import RELEASE, Engine
    from tests.lmcache.rig import Rig
    from tests.lmcache.traffic import Traffic

DRAIN_STEPS = 3000
ALL = WORLDS | UNKIND


@frozen(kw_only=True)
class Verdict(verdicts.Verdict):
    """What one seed showed of LMCache."""

    engine = "lmcache"
    pieces = "places"
    places: int
    """Places that workers have written or read, and that L2 has."""
    gone: int
    """Hits that were told of, and whose content was not there."""
    leak: str = ""
    """What was left at rest."""

    def troubles(self) -> list[str]:
        """What was wrong, a few words each."""
        found = [*super().troubles(), *([f"left: {self.leak}"] if self.leak else [])]
        return [*found, f"{self.gone} hits were gone"] if self.gone else found


def judge(name: str, world: World, seed: int, steps: int, on_engine: Callable[[Engine], object] | None = None) -> Verdict:
    """Run one seed of a world and say what it showed."""
    rig = Rig(world.spec, seed, on_engine)
    traffic = Traffic.drawn(rig, world, seed)

    def run() -> None:
        traffic.run(steps)
        rig.drain(DRAIN_STEPS)

    end = run_to_rest(rig, run)
    moved = [each.moved for each in rig.engine.adapters]
    stored, loaded = (sum(each[kind] for each in moved) for kind in ("store", "load"))
    return Verdict(
        release=RELEASE,
        world=name,
        seed=seed,
        steps=rig.step_number,
        requests=len(rig.requests),
        finished=sum(each.ended for each in rig.requests.values()),
        verified=rig.witness.verified,
        stored=stored,
        loaded=loaded,
        places=rig.places,
        gone=rig.counts["hits that were gone"],
        raised=None if end.error is None else Raised.by(end.error, rig.step_number, "lmcache/v1"),
        corruptions=tuple(rig.witness.corruptions),
        leak=end.missing,
        stuck=end.stuck,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds. Exit status 1 if any was not clean."""
    parser = argparse.ArgumentParser(prog="python -m tests.lmcache.drive", description=__doc__)
    parser.add_argument("--world", choices=sorted(ALL), required=True)
    parser.add_argument("--seeds", type=seeds, default=seeds("0-19"), metavar="LIST")
    parser.add_argument("--steps", type=positive, default=400)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    world = ALL[arguments.world]
    return tell((judge(arguments.world, world, seed, arguments.steps) for seed in arguments.seeds), arguments.json)


if __name__ == "__main__":
    with_fixed_hashes("tests.lmcache.drive")
    sys.exit(main())
