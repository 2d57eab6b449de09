"""Random requests for a rig: texts with common prefixes, salts, clients that leave, operators, workers that die.

One seed is one run: the traffic draws its own habits first, so that some runs starve what others do all the time.
"""

from __future__ import annotations

from random import Random

from attrs import define, field, frozen

from tests.lmcache.rig import Rig
from tests.lmcache.worlds import World


@frozen
class Habits:
    """How often a run does what. Rates are a chance at each step."""

    arrival: float
    crowd: int
    """Requests that are served at once, at most."""
    longest: int
    """Chunks of a text, at most."""
    families: int
    """Texts that others begin like."""
    leave: float
    """The share of clients that are gone when their text was looked up."""
    salts: tuple[str, ...]

    @classmethod
    def drawn(cls, rng: Random, world: World) -> Habits:
        """The habits of one run. All that is served at once has room in L1, so that somebody can always go on."""
        crowd = rng.choice((1, 3, 6))
        return cls(
            arrival=rng.choice((0.1, 0.3, 0.8)),
            crowd=crowd,
            longest=max(1, world.spec.places // world.spec.workers // (crowd + 1)),
            families=rng.choice((1, 3, 8)),
            leave=rng.choice((0.0, 0.1, 0.3)),
            salts=rng.choice((("",), ("", "b"))),
        )


@define(eq=False)
class Traffic:
    """What the clients of a rig send, drawn from a seed."""

    rig: Rig
    world: World
    rng: Random
    habits: Habits = field(init=False)
    families: list[list[int]] = field(init=False)

    @classmethod
    def drawn(cls, rig: Rig, world: World, seed: int) -> Traffic:
        """The traffic of this seed."""
        return cls(rig, world, Random(f"{seed}/traffic"))

    def __attrs_post_init__(self) -> None:
        self.habits = Habits.drawn(self.rng, self.world)
        size = self.habits.longest * self.world.spec.chunk_tokens
        self.families = [[self.rng.randrange(1000) for _ in range(size)] for _ in range(self.habits.families)]
        self.rig.slow = self.world.slow

    def act(self) -> None:
        """Let things happen ahead of the next step."""
        rng, habits, rig = self.rng, self.habits, self.rig
        if rng.random() < self.world.clears:
            rig.clear()
        if rng.random() < self.world.crashes:
            rig.crash(0)
        if len(rig.activities) < habits.crowd and rng.random() < habits.arrival:
            rig.add(self._text(), rng.choice(habits.salts), leaves=rng.random() < habits.leave)

    def run(self, steps: int) -> None:
        """Act and step so many times."""
        for _ in range(steps):
            self.act()
            self.rig.step()

    def _text(self) -> list[int]:
        size = self.world.spec.chunk_tokens
        family = self.rng.choice(self.families)
        common = self.rng.randint(1, self.habits.longest) * size
        text = family[:common]
        if self.rng.random() < 0.4 and common < len(family):
            text = text + [self.rng.randrange(1000) for _ in range(size)]
        return text
