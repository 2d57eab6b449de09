"""Random requests for a rig: shared prefixes, lengths around blocks, chunks and windows, bursts, aborts, resets, refusals.

One seed is one run: the traffic draws its own habits first, so that some runs starve what others do all the time.
"""

from __future__ import annotations

from random import Random

from attrs import define, evolve, field, frozen

from tests.vllm.rig import Rig
from tests.vllm.worlds import World, WorldSpec


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
            arrival=rng.choice((0.1, 0.3, 0.6, 0.9)),
            burst=rng.choice((1, 2, 4)),
            crowd=rng.choice((2, spec.max_num_seqs, 2 * spec.max_num_seqs)),
            repeat=rng.choice((0.1, 0.3, 0.6)),
            follow=rng.choice((0.0, 0.2, 0.4)),
            short=rng.choice((0.0, 0.2)),
            longest_answer=rng.choice((4, 12, 32)),
            abort=rng.choice((0.0, 0.02, 0.1)),
            reset=rng.choice((0.0, 0.0, 0.02)),
            reset_running=rng.random(),
            reset_connector=rng.random() if connector_resets else 0.0,
            refuse=rng.choice((0.0, 0.05)),
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
    abort=0.0,
    reset=0.0,
    reset_running=0.0,
    reset_connector=0.0,
    refuse=0.0,
    pause=0.02,
)
"""Traffic without aborts, resets and refusals; without memory pressure too, if the world has room."""


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
    _refusing: int = 0

    @classmethod
    def drawn(cls, rig: Rig, seed: int, habits: Habits | None = None, world: World | None = None) -> Traffic:
        """The traffic of this seed for this rig, with the habits given, or with those that the seed and the world draw."""
        rng = Random(f"{seed}/traffic")
        if habits is None:
            habits = Habits.drawn(rng, rig.spec, world is not None and world.connector_resets, world is not None and world.busy)
        limit = longest_text(rig.spec)
        families = [[rng.randrange(10, 1000) for _ in range(limit)] for _ in range(rng.choice((1, 2, 4)))]
        return cls(rig, seed, habits, limit, rng, families)

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
        elif rng.random() < habits.arrival:
            for _ in range(rng.randint(1, habits.burst)):
                if len(rig.running) < habits.crowd:
                    self._send()

    def run(self, steps: int) -> int:
        """Act and step so many times. Returns the number of steps in which the engine had something to do."""
        busy = 0
        for _ in range(steps):
            self.act()
            busy += self.rig.step()
        return busy

    def _reset(self) -> None:
        rng, habits = self._rng, self.habits
        running, connector = rng.random() < habits.reset_running, rng.random() < habits.reset_connector
        if self.rig.can_reset(running, connector):
            self.rig.reset_prefix_cache(running, connector)

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
        self.rig.add(prompt, max(1, min(answer, self.limit - len(prompt))))

    def _fresh(self, tokens: int) -> list[int]:
        return [self._rng.randrange(1000, 30_000) for _ in range(tokens)]

    def _length(self) -> int:
        """A length of a prompt; every other one is next to where a block, a chunk or a window ends."""
        rng, spec = self._rng, self.rig.spec
        length = rng.randint(1, self.limit)
        if rng.random() < 0.5:
            group = rng.choice(spec.groups)
            ends = [group.block_tokens, group.block_tokens * spec.blocks_per_chunk]
            if group.window is not None:
                ends.append(group.window)
            end = rng.choice(ends)
            length = max(1, length // end * end + rng.choice((-1, 0, 0, 1)))
        return min(length, self.limit)
