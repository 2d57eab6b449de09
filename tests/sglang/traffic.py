"""Random requests for a rig: shared prefixes, lengths around pages, chunks and windows, bursts, aborts, flushes.

One seed is one run: the traffic draws its own habits first, so that some runs starve what others do all the time.
"""

from __future__ import annotations

from random import Random

from attrs import asdict, define, evolve, frozen

from tests.behind import traffic
from tests.sglang.rig import Rig
from tests.sglang.worlds import World, WorldSpec


@frozen
class Habits(traffic.Sending):
    """How often a run does what. Rates are a chance at each step."""

    surprise: float
    """The share of requests that end by a token, which the engine cannot know ahead."""
    abort: float
    flush: float
    """Chance that nothing arrives any more until the engine is idle and can be told to forget all."""
    pause: float
    """Chance that nothing arrives any more until the engine is idle."""

    @classmethod
    def drawn(cls, rng: Random, spec: WorldSpec, busy: bool = False) -> Habits:
        """The habits of one run."""
        habits = cls(
            **asdict(traffic.drawn(rng, spec.max_num_seqs)),
            surprise=rng.choice((0.0, 0.3, 1.0)),
            abort=rng.choice((0.0, 0.02, 0.1)),
            flush=rng.choice((0.0, 0.0, 0.01)),
            pause=rng.choice((0.0, 0.01, 0.05)),
        )
        return evolve(habits.busy(spec.max_num_seqs), pause=0.0) if busy else habits


QUIET = Habits(**asdict(traffic.QUIET), surprise=0.5, abort=0.0, flush=0.0, pause=0.02)
"""Traffic without aborts and flushes; without memory pressure too, if the world has room."""


def longest_text(spec: WorldSpec) -> int:
    """Tokens that a request of this world can have, so that it fits into device memory alone and is admitted."""
    room = (spec.device_pages - 3) * spec.page_tokens
    return max(4, min(room * 2 // 3, 24 * max(spec.page_tokens, 4)))


@define(eq=False)
class Traffic(traffic.Traffic[Rig, Habits]):
    """What clients and operators of an engine do, drawn from a seed. Call `act` once ahead of each step."""

    _flushing: bool = False

    @classmethod
    def drawn(cls, rig: Rig, seed: int, habits: Habits | None = None, world: World | None = None) -> Traffic:
        """The traffic of this seed for this rig, with the habits given, or with those that the seed and the world draw."""
        rng = Random(f"{seed}/traffic")
        if habits is None:
            habits = Habits.drawn(rng, rig.spec, world is not None and world.busy)
            if world is not None and world.flushes:
                habits = evolve(habits, flush=0.05, repeat=0.6, arrival=0.6)
        return cls(rig, seed, habits, longest_text(rig.spec), rng)

    def act(self) -> None:
        """Let things happen ahead of the next step."""
        rng, habits, rig = self._rng, self.habits, self.rig
        if rng.random() < habits.abort and rig.running:
            rig.abort(rng.choice(sorted(rig.running)))
        if self._flushing and rig.idle:
            self._flushing = not rig.flush()
        if self._paused or self._flushing:
            self._paused = self._paused and not rig.idle
        elif rng.random() < habits.pause:
            self._paused = True
        elif rng.random() < habits.flush:
            self._flushing = True
        else:
            self._arrive()

    def run(self, steps: int) -> None:
        """Act and step so many times."""
        for _ in range(steps):
            self.act()
            self.rig.step()

    def _ask(self, prompt: list[int], max_tokens: int) -> None:
        self.rig.add(prompt, max_tokens, surprise=self._rng.random() < self.habits.surprise)

    def _ends(self) -> list[int]:
        spec = self.rig.spec
        ends = [spec.page_tokens, spec.chunk_tokens or spec.page_tokens]
        if spec.kind == "swa":
            ends.append(spec.window)
        if spec.kind == "mamba":
            ends += [spec.state_tokens, spec.track_tokens]
        return ends
