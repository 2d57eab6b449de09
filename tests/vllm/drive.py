"""``python -m tests.vllm.run --python VERSION -m tests.vllm.drive``: random traffic under vLLM's scheduler, one line a seed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from attrs import evolve, frozen

from tests.behind import verdicts
from tests.behind.verdicts import Raised, tell
from tests.programs import importing, positive, seeds, with_fixed_hashes
from tests.vllm.worlds import WORLDS, World, WorldSpec

with importing("tests.vllm.drive", __name__):
    from tests.vllm.engine import DRAINS_SIMPLE, RELEASE
    from tests.vllm.rig import Rig, Scheduler
    from tests.vllm.traffic import Traffic

DRAIN_STEPS = 500


@frozen(kw_only=True)
class Verdict(verdicts.Verdict):
    """What one seed showed of vLLM."""

    engine = "vllm"
    pieces = "blocks"
    stored_twice: int = 0
    """Stores of a block that a store in flight reads already, and that nothing has written since."""
    left_behind: int = 0
    """Copies that were out when the engine had nothing to do any more, where it says that it waits for them."""

    def troubles(self) -> list[str]:
        """What was wrong, a few words each."""
        found = super().troubles()
        if self.stored_twice:
            found.append(f"{self.stored_twice} stored twice")
        if self.left_behind:
            found.append(f"{self.left_behind} copies left behind")
        return found


def judge(name: str, world: World, seed: int, steps: int, on_scheduler: Callable[[Scheduler], None] | None = None) -> Verdict:
    """Run one seed of a world and say what it showed."""
    rig = _rig_for(world.spec, seed, on_scheduler)
    traffic = Traffic.drawn(rig, seed, world=world)
    raised, stuck, left_behind = None, False, 0
    try:
        for _ in range(steps):
            traffic.act()
            rig.step()
            left_behind = max(left_behind, _left_behind(rig))
        rig.drain(DRAIN_STEPS)
        left_behind = max(left_behind, _left_behind(rig))
    except TimeoutError:
        stuck = True
    except Exception as error:
        raised = Raised.by(error, rig.step_number, "vllm")
    stored, loaded = rig.moved
    copies = [rank.copies for rank in rig.ranks]
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
        raised=raised,
        corruptions=tuple(rig.corruptions),
        wrong_texts=tuple(rig.wrong_texts),
        stored_twice=sum(each.stored_twice for each in copies),
        left_behind=left_behind,
        stuck=stuck,
    )


def _rig_for(spec: WorldSpec, seed: int, on_scheduler: Callable[[Scheduler], None] | None) -> Rig:
    if spec.connector != "blocklife":
        return Rig(spec, seed, on_scheduler)
    from tests.vllm.connector_rig import ConnectorRig  # not in every release

    return ConnectorRig(spec, seed, on_scheduler=on_scheduler)


def _left_behind(rig: Rig) -> int:
    return rig.left_behind if rig.idle and (DRAINS_SIMPLE or rig.spec.connector != "simple") else 0


def _chosen(arguments: argparse.Namespace) -> World:
    world = WORLDS[arguments.world]
    return evolve(world, spec=evolve(world.spec, connector=arguments.connector)) if arguments.connector else world


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds. Exit status 1 if any was not clean."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.drive", description=__doc__)
    parser.add_argument("--world", choices=sorted(WORLDS), required=True)
    parser.add_argument("--connector", choices=("offloading", "simple", "blocklife"), help="instead of the world's own")
    parser.add_argument("--seeds", type=seeds, default=seeds("0-19"), metavar="LIST")
    parser.add_argument("--steps", type=positive, default=400)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args(argv)
    world = _chosen(arguments)
    verdicts = (judge(arguments.world, world, seed, arguments.steps) for seed in arguments.seeds)
    return tell(verdicts, arguments.json)


if __name__ == "__main__":
    with_fixed_hashes("tests.vllm.drive")
    sys.exit(main())
