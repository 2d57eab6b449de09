"""``python -m tests.sglang.run --python VERSION -m tests.sglang.drive``: random traffic under SGLang, one line a seed."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from attrs import frozen

from tests.behind import verdicts
from tests.behind.verdicts import Raised, run_to_rest, tell
from tests.programs import importing, positive, seeds, with_fixed_hashes
from tests.sglang.worlds import WORLDS, World

with importing("tests.sglang.drive", __name__):
    from tests.sglang.engine import RELEASE
    from tests.sglang.rig import Rank, Rig
    from tests.sglang.traffic import Traffic

DRAIN_STEPS = 1000


@frozen(kw_only=True)
class Verdict(verdicts.Verdict):
    """What one seed showed of SGLang."""

    engine = "sglang"
    pieces = "rows"
    fetched: int
    """Tokens that came from storage."""
    leak: str = ""
    """Memory that was missing when nothing was cached any more."""
    given_up: int = 0
    """Requests that the engine has aborted for want of memory: a fault that `specs/sglang-findings.md` tells."""

    def troubles(self) -> list[str]:
        """What was wrong, a few words each."""
        return [*super().troubles(), *([f"missing: {self.leak}"] if self.leak else [])]


def judge(name: str, world: World, seed: int, steps: int, on_rank: Callable[[Rank], None] | None = None) -> Verdict:
    """Run one seed of a world and say what it showed."""
    rig = Rig(world.spec, seed, on_rank)
    traffic = Traffic.drawn(rig, seed, world=world)

    def run() -> None:
        traffic.run(steps)
        rig.drain(DRAIN_STEPS)

    end = run_to_rest(rig, run)
    stored, loaded = rig.moved
    return Verdict(
        release=RELEASE,
        world=name,
        seed=seed,
        steps=rig.step_number,
        requests=len(rig.texts),
        finished=len(rig.finished),
        verified=rig.verified,
        stored=stored,
        loaded=loaded,
        fetched=sum(rank.copies.moved["from storage"] for rank in rig.ranks),
        raised=None if end.error is None else Raised.by(end.error, rig.step_number, "sglang/srt"),
        corruptions=tuple(rig.corruptions),
        wrong_texts=tuple(rig.wrong_texts),
        leak=end.missing,
        given_up=len(rig.given_up),
        stuck=end.stuck,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds. Exit status 1 if any was not clean."""
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.drive", description=__doc__)
    parser.add_argument("--world", choices=sorted(WORLDS), required=True)
    parser.add_argument("--seeds", type=seeds, default=seeds("0-19"), metavar="LIST")
    parser.add_argument("--steps", type=positive, default=400)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--aloud", action="store_true", help="let SGLang log")
    arguments = parser.parse_args(argv)
    if not arguments.aloud:
        logging.disable(logging.ERROR)
    world = WORLDS[arguments.world]
    verdicts = (judge(arguments.world, world, seed, arguments.steps) for seed in arguments.seeds)
    return tell(verdicts, arguments.json)


if __name__ == "__main__":
    with_fixed_hashes("tests.sglang.drive")
    sys.exit(main())
