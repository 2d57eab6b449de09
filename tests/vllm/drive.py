"""``python -m tests.vllm.run --python VERSION -m tests.vllm.drive``: random traffic under vLLM's scheduler, one line a seed."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import asdict, evolve, frozen

from tests.vllm.programs import importing, positive
from tests.vllm.worlds import WORLDS, World, WorldSpec

with importing("drive", __name__):
    from tests.vllm.engine import DRAINS_SIMPLE, RELEASE
    from tests.vllm.rig import Corruption, Rig, Scheduler
    from tests.vllm.traffic import Traffic

DRAIN_STEPS = 500


@frozen
class Raised:
    """vLLM raised in the middle of a step."""

    step: int
    kind: str
    message: str
    where: str
    """The innermost function of vLLM on the stack."""


@frozen
class Verdict:
    """What one seed showed. A run ends at the first exception; corruption is counted to the end."""

    release: str
    world: str
    seed: int
    steps: int
    requests: int
    finished: int
    verified: int
    stored: int
    loaded: int
    raised: Raised | None = None
    corruptions: tuple[Corruption, ...] = ()
    wrong_texts: tuple[str, ...] = ()
    stored_twice: int = 0
    """Stores of a block that a store in flight reads already, and that nothing has written since."""
    left_behind: int = 0
    """Copies that were out when the engine had nothing to do any more, where it says that it waits for them."""
    stuck: bool = False
    """Whether requests were left that no step brought to an end."""

    @property
    def clean(self) -> bool:
        """Whether nothing at all was wrong."""
        return not (self.raised or self.corruptions or self.wrong_texts or self.stored_twice or self.left_behind or self.stuck)

    def __str__(self) -> str:
        head = f"vllm {self.release}, {self.world}, seed {self.seed}: "
        tail = f" ({self.steps} steps, {self.requests} requests, {self.stored} blocks stored, {self.loaded} loaded)"
        return head + ("; ".join(self._troubles()) or "clean") + tail

    def _troubles(self) -> list[str]:
        troubles = []
        if self.raised is not None:
            raised = self.raised
            troubles.append(
                f"step {raised.step}: {raised.kind} in {raised.where}" + f" ({raised.message})" * bool(raised.message)
            )
        if self.corruptions:
            troubles.append(f"{len(self.corruptions)} corrupt, first {self.corruptions[0]}")
        if self.wrong_texts:
            troubles.append(f"wrong text for {len(self.wrong_texts)} requests")
        if self.stored_twice:
            troubles.append(f"{self.stored_twice} stored twice")
        if self.left_behind:
            troubles.append(f"{self.left_behind} copies left behind")
        if self.stuck:
            troubles.append("stuck")
        return troubles


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
        raised = Raised(rig.step_number, type(error).__name__, str(error), _where(error))
    stored, loaded = rig.moved
    copies = [rank.copies for rank in rig.ranks]
    return Verdict(
        RELEASE,
        name,
        seed,
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


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if f"{os.sep}vllm{os.sep}" in frame.filename and "tests" not in frame.filename]
    frame = (inside or list(frames))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"


def _seeds(text: str) -> list[int]:
    """``3``, ``0-19`` or ``1,4,7-9``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of seeds (write 3, 0-19 or 1,4,7-9)")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty list of seeds (write 3, 0-19 or 1,4,7-9)")
    return seeds


def _chosen(arguments: argparse.Namespace) -> World:
    world = WORLDS[arguments.world]
    return evolve(world, spec=evolve(world.spec, connector=arguments.connector)) if arguments.connector else world


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds. Exit status 1 if any was not clean."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.drive", description=__doc__)
    parser.add_argument("--world", choices=sorted(WORLDS), required=True)
    parser.add_argument("--connector", choices=("offloading", "simple", "blocklife"), help="instead of the world's own")
    parser.add_argument("--seeds", type=_seeds, default=_seeds("0-19"), metavar="LIST")
    parser.add_argument("--steps", type=positive, default=400)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args(argv)
    world, status = _chosen(arguments), 0
    try:
        for seed in arguments.seeds:
            verdict = judge(arguments.world, world, seed, arguments.steps)
            print(json.dumps({**asdict(verdict), "clean": verdict.clean}) if arguments.json else verdict, flush=True)
            status |= not verdict.clean
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return status


if __name__ == "__main__":
    if "PYTHONHASHSEED" not in os.environ:
        # vLLM walks sets of names; only with fixed hashes do two processes of one seed do the same.
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.vllm.drive", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    sys.exit(main())
