"""``python -m tests.sglang.run --python VERSION -m tests.sglang.drive``: random traffic under SGLang, one line a seed."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from attrs import asdict, frozen

from tests.sglang.worlds import WORLDS, World
from tests.vllm.programs import positive

if __name__ == "__main__" and "PYTHONHASHSEED" not in os.environ:
    # only with fixed hashes do two processes of one seed do the same
    os.execve(
        sys.executable, [sys.executable, "-m", "tests.sglang.drive", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
    )

from tests.sglang.engine import RELEASE
from tests.sglang.rig import Corruption, Rank, Rig
from tests.sglang.traffic import Traffic

DRAIN_STEPS = 1000


@frozen
class Raised:
    """SGLang raised in the middle of a step."""

    step: int
    kind: str
    message: str
    where: str
    """The innermost function of SGLang on the stack."""


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
    fetched: int
    """Tokens that came from storage."""
    raised: Raised | None = None
    corruptions: tuple[Corruption, ...] = ()
    wrong_texts: tuple[str, ...] = ()
    leak: str = ""
    """Memory that was missing when nothing was cached any more."""
    stuck: bool = False
    """Whether requests or copies were left that no step brought to an end."""

    @property
    def clean(self) -> bool:
        """Whether nothing at all was wrong."""
        return not (self.raised or self.corruptions or self.wrong_texts or self.leak or self.stuck)

    def __str__(self) -> str:
        head = f"sglang {self.release}, {self.world}, seed {self.seed}: "
        tail = f" ({self.steps} steps, {self.requests} requests, {self.stored} rows stored, {self.loaded} loaded)"
        return head + ("; ".join(self._troubles()) or "clean") + tail

    def _troubles(self) -> list[str]:
        troubles = []
        if self.raised is not None:
            raised = self.raised
            troubles.append(
                f"step {raised.step}: {raised.kind} in {raised.where}" + f" ({raised.message[:200]})" * bool(raised.message)
            )
        if self.corruptions:
            troubles.append(f"{len(self.corruptions)} corrupt, first {self.corruptions[0]}")
        if self.wrong_texts:
            troubles.append(f"wrong text for {len(self.wrong_texts)} requests")
        if self.leak:
            troubles.append(f"missing: {self.leak}")
        if self.stuck:
            troubles.append("stuck")
        return troubles


def judge(name: str, world: World, seed: int, steps: int, on_rank: Callable[[Rank], None] | None = None) -> Verdict:
    """Run one seed of a world and say what it showed."""
    rig = Rig(world.spec, seed, on_rank)
    traffic = Traffic.drawn(rig, seed, world=world)
    raised, stuck, leak = None, False, ""
    try:
        traffic.run(steps)
        rig.drain(DRAIN_STEPS)
        leak = rig.missing()
    except TimeoutError:
        stuck = True
    except Exception as error:
        raised = Raised(rig.step_number, type(error).__name__, str(error), _where(error))
    finally:
        rig.close()
    stored, loaded = rig.moved
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
        fetched=sum(rank.copies.moved["from storage"] for rank in rig.ranks),
        raised=raised,
        corruptions=tuple(rig.corruptions),
        wrong_texts=tuple(rig.wrong_texts),
        leak=leak,
        stuck=stuck,
    )


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if f"{os.sep}sglang{os.sep}srt{os.sep}" in frame.filename]
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds. Exit status 1 if any was not clean."""
    parser = argparse.ArgumentParser(prog="python -m tests.sglang.drive", description=__doc__)
    parser.add_argument("--world", choices=sorted(WORLDS), required=True)
    parser.add_argument("--seeds", type=_seeds, default=_seeds("0-19"), metavar="LIST")
    parser.add_argument("--steps", type=positive, default=400)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--aloud", action="store_true", help="let SGLang log")
    arguments = parser.parse_args(argv)
    if not arguments.aloud:
        logging.disable(logging.ERROR)
    world, status = WORLDS[arguments.world], 0
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
    sys.exit(main())
