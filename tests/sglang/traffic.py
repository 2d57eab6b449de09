"""Random requests for a rig: shared prefixes, lengths around pages, chunks and windows, bursts, aborts, flushes.

One seed is one run: the traffic draws its own habits first, so that some runs starve what others do all the time.
"""

from __future__ import annotations

from random import Random

from attrs import define, evolve, field, frozen

from tests.sglang.rig import Rig
from tests.sglang.worlds import World, WorldSpec


@frozen
class Habits:
    """How often a run does what. Rates are a chance at each step."""

    arrival: float
    burst: int
    """Requests that arrive at once, at most."""
    crowd: int
    """Requests that are in the engine at once, at most."""
    repeat: float
    """The share of prompts that were sent before, word for word."""
    follow: float
    """The share of prompts that go on where an earlier answer ended."""
    short: float
    """The share of requests that end with their first token."""
    longest_answer: int
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
            arrival=rng.choice((0.1, 0.3, 0.6, 0.9)),
            burst=rng.choice((1, 2, 4)),
            crowd=rng.choice((2, spec.max_num_seqs, 2 * spec.max_num_seqs)),
            repeat=rng.choice((0.1, 0.3, 0.6)),
            follow=rng.choice((0.0, 0.2, 0.4)),
            short=rng.choice((0.0, 0.2)),
            longest_answer=rng.choice((4, 12, 32)),
            surprise=rng.choice((0.0, 0.3, 1.0)),
            abort=rng.choice((0.0, 0.02, 0.1)),
            flush=rng.choice((0.0, 0.0, 0.01)),
            pause=rng.choice((0.0, 0.01, 0.05)),
        )
        if busy:
            return evolve(habits, arrival=0.7, burst=3, crowd=2 * spec.max_num_seqs, repeat=0.6, longest_answer=16, pause=0.0)
        return habits


QUIET = Habits(
    arrival=0.5,
    burst=2,
    crowd=6,
    repeat=0.3,
    follow=0.2,
    short=0.1,
    longest_answer=12,
    surprise=0.5,
    abort=0.0,
    flush=0.0,
    pause=0.02,
)
"""Traffic without aborts and flushes; without memory pressure too, if the world has room."""


def longest_text(spec: WorldSpec) -> int:
    """Tokens that a request of this world can have, so that it fits into device memory alone and is admitted."""
    room = (spec.device_pages - 3) * spec.page_tokens
    return max(4, min(room * 2 // 3, 24 * max(spec.page_tokens, 4)))


@define(eq=False)
class Traffic:
    """What clients and operators of an engine do, drawn from a seed. Call `act` once ahead of each step."""

    rig: Rig
    seed: int
    habits: Habits
    limit: int
    _rng: Random
    _families: list[list[int]]
    _sent: list[list[int]] = field(factory=list)
    _paused: bool = False
    _flushing: bool = False

    @classmethod
    def drawn(cls, rig: Rig, seed: int, habits: Habits | None = None, world: World | None = None) -> Traffic:
        """The traffic of this seed for this rig, with the habits given, or with those that the seed and the world draw."""
        rng = Random(f"{seed}/traffic")
        if habits is None:
            habits = Habits.drawn(rng, rig.spec, world is not None and world.busy)
            if world is not None and world.flushes:
                habits = evolve(habits, flush=0.05, repeat=0.6, arrival=0.6)
        limit = longest_text(rig.spec)
        families = [[rng.randrange(10, 1000) for _ in range(limit)] for _ in range(rng.choice((1, 2, 4)))]
        return cls(rig, seed, habits, limit, rng, families)

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
        elif rng.random() < habits.arrival:
            for _ in range(rng.randint(1, habits.burst)):
                if len(rig.running) < habits.crowd:
                    self._send()

    def run(self, steps: int) -> None:
        """Act and step so many times."""
        for _ in range(steps):
            self.act()
            self.rig.step()

    def _send(self) -> None:
        rng, habits = self._rng, self.habits
        choice = rng.random()
        if self._sent and choice < habits.repeat:
            prompt = rng.choice(self._sent)
        elif self.rig.finished and choice < habits.repeat + habits.follow:
            name = rng.choice(sorted(self.rig.finished))
            whole = self.rig.prompts[name] + self.rig.finished[name]
            prompt = whole[: rng.randint(1, len(whole))] + self._fresh(rng.randint(0, 3))
        else:
            prompt = rng.choice(self._families)[: self._length()] + self._fresh(rng.choice((0, 0, 1, 2, 5)))
        prompt = prompt[: self.limit - 1] or self._fresh(1)
        answer = 1 if rng.random() < habits.short else rng.randint(1, habits.longest_answer)
        self._sent.append(prompt)
        self.rig.add(prompt, max(1, min(answer, self.limit - len(prompt))), surprise=rng.random() < habits.surprise)

    def _fresh(self, tokens: int) -> list[int]:
        return [self._rng.randrange(1000, 30_000) for _ in range(tokens)]

    def _length(self) -> int:
        """A length of a prompt; every other one is next to where a page, a chunk, a window or a state ends."""
        rng, spec = self._rng, self.rig.spec
        length = rng.randint(1, self.limit)
        if rng.random() < 0.5:
            ends = [spec.page_tokens, spec.chunk_tokens or spec.page_tokens]
            if spec.kind == "swa":
                ends.append(spec.window)
            if spec.kind == "mamba":
                ends += [spec.state_tokens, spec.track_tokens]
            end = rng.choice(ends)
            length = max(1, length // end * end + rng.choice((-1, 0, 0, 1)))
        return min(length, self.limit)
