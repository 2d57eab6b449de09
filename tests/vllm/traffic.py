"""Random requests for a rig: shared prefixes, lengths around blocks, chunks and windows, bursts, aborts, resets, refusals.

One seed is one run: the traffic draws its own habits first, so that some runs starve what others do all the time.
"""

from __future__ import annotations

from random import Random

from attrs import asdict, define, evolve, frozen

from tests.behind import traffic
from tests.vllm.engine import MINOR
from tests.vllm.rig import Rig
from tests.vllm.worlds import TEXT_ALONE, Beside, World, WorldSpec


@frozen
class Habits(traffic.Sending):
    """How often a run does what. Rates are a chance at each step."""

    abort: float
    reset: float
    reset_running: float
    """The share of resets that preempt what is running."""
    reset_connector: float
    refuse: float
    """Chance that the host tier starts to refuse all stores, for a while."""
    pause: float
    """Chance that nothing arrives any more until the engine is idle."""

    @classmethod
    def drawn(cls, rng: Random, spec: WorldSpec, connector_resets: bool = False, busy: bool = False) -> Habits:
        """The habits of one run."""
        habits = cls(
            **asdict(traffic.drawn(rng, spec.max_num_seqs)),
            abort=rng.choice((0.0, 0.02, 0.1)),
            reset=rng.choice((0.0, 0.0, 0.02)),
            reset_running=rng.random(),
            reset_connector=rng.random() if connector_resets else 0.0,
            refuse=rng.choice((0.0, 0.05)),
            pause=rng.choice((0.0, 0.01, 0.05)),
        )
        return evolve(habits.busy(spec.max_num_seqs), pause=0.0) if busy else habits


QUIET = Habits(**asdict(traffic.QUIET), abort=0.0, reset=0.0, reset_running=0.0, reset_connector=0.0, refuse=0.0, pause=0.02)
"""Traffic without aborts, resets and refusals; without memory pressure too, if the world has room."""


def differing(rng: Random, tokens: int) -> Beside:
    """One of few salts or adapters, or an image at the start of a text of so many tokens."""
    which = rng.choice("ab")
    image, adapter = (which, which) if MINOR >= 31 else (f"image {which}", f"adapter {which}")  # hashes say which of them it is
    return rng.choice((TEXT_ALONE, Beside(salt=which), Beside(adapter=adapter), Beside(images=[(image, 0, min(3, tokens))])))


def longest_text(spec: WorldSpec) -> int:
    """Tokens that a request of this world can have so that it fits into the pool alone, as an engine asks of its model length.

    A sliding window holds, next to its own tokens, those of the steps that are in the making.
    """
    steps = 2 if spec.async_scheduling else 1

    def blocks(tokens: int) -> int:
        total = 0
        for group in spec.groups:
            needed = -(-tokens // group.block_tokens)
            if group.window is not None:
                needed = min(needed, -(-(group.window - 1 + steps * spec.max_num_batched_tokens) // group.block_tokens) + 1)
            total += min(needed, 4) if group.kind == "mamba" else needed
        return total

    longest = 12 * spec.groups[0].block_tokens * spec.blocks_per_chunk
    while longest > 2 and blocks(longest) > spec.num_gpu_blocks - 1:
        longest -= 1
    return longest


@define(eq=False)
class Traffic(traffic.Traffic[Rig, Habits]):
    """What clients and operators of an engine do, drawn from a seed. Call `act` once ahead of each step."""

    _refusing: int = 0
    _differs: bool = False

    @classmethod
    def drawn(cls, rig: Rig, seed: int, habits: Habits | None = None, world: World | None = None) -> Traffic:
        """The traffic of this seed for this rig, with the habits given, or with those that the seed and the world draw."""
        rng = Random(f"{seed}/traffic")
        if habits is None:
            habits = Habits.drawn(rng, rig.spec, world is not None and world.connector_resets, world is not None and world.busy)
        return cls(rig, seed, habits, longest_text(rig.spec), rng, differs=world is not None and world.differs)

    def act(self) -> None:
        """Let things happen ahead of the next step."""
        rng, habits, rig = self._rng, self.habits, self.rig
        if self._refusing:
            self._refusing -= 1
            if not self._refusing:
                rig.refuse = None
        elif rng.random() < habits.refuse:
            self._refusing, rig.refuse = rng.randint(1, 8), True
        if rng.random() < habits.abort and rig.running:
            rig.abort(rng.choice(sorted(rig.running)), late=rng.random() < 0.5)
        if rng.random() < habits.reset:
            self._reset()
        if self._paused:
            self._paused = not rig.idle
        elif rng.random() < habits.pause:
            self._paused = True
        else:
            self._arrive()

    def run(self, steps: int) -> int:
        """Act and step so many times. Returns the number of steps in which the engine had something to do."""
        busy = 0
        for _ in range(steps):
            self.act()
            busy += self.rig.step()
        return busy

    def _ask(self, prompt: list[int], max_tokens: int) -> None:
        self.rig.add(prompt, max_tokens, beside=differing(self._rng, len(prompt)) if self._differs else TEXT_ALONE)

    def _reset(self) -> None:
        rng, habits = self._rng, self.habits
        running, connector = rng.random() < habits.reset_running, rng.random() < habits.reset_connector
        if self.rig.can_reset(running, connector):
            self.rig.reset_prefix_cache(running, connector)

    def _ends(self) -> list[int]:
        group = self._rng.choice(self.rig.spec.groups)
        ends = [group.block_tokens, group.block_tokens * self.rig.spec.blocks_per_chunk]
        return ends if group.window is None else [*ends, group.window]
