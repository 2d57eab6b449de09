"""The verb `walk`: random actions on a stage, drawn with a seed."""

from __future__ import annotations

import random

from attrs import define, field

from blocklife.errors import CapacityError
from blocklife.states import ADMITTED
from blocklife.testing.scenarios._kinds import Many
from blocklife.testing.scenarios._stage import Stage
from blocklife.testing.scenarios._words import verb

_PROMPTS = ("abcdefghijklmnopqrstuvwx", "abcdefghzzzzyyyyxxxxwwww", "mnopqrstuvwxabcdefghijkl")
"""The prompts; the first two have a common prefix."""
_RUNS = frozenset(state.name for state in ADMITTED)
_MOST = 5


@define(eq=False)
class Walk:
    """One walk.

    Invariant: ``alive`` are the requests that were neither finished nor aborted.
    """

    stage: Stage
    chance: random.Random
    alive: list[str] = field(factory=list)
    hung: dict[int, None] = field(factory=dict)
    come: int = 0

    def act(self) -> None:
        """One random action; a step is the most frequent one."""
        roll = self.chance.random()
        if roll < 0.2 and len(self.alive) < _MOST:
            self.arrive()
        elif roll < 0.45:
            self.land()
        elif roll < 0.48:
            self.hang()
        elif roll < 0.53:
            self.finish_or_abort()
        elif roll < 0.56:
            self.give_way()
        elif roll < 0.575:
            self.prove()
        elif roll < 0.585:
            self.stage.driver.reset(drain=False)
        elif roll < 0.61:
            self.stage.do_empty_device()
        else:
            self.stage.run_step(None, None)
            self.make_room()
        self.stage.look()
        self.stage.check()

    def make_room(self) -> None:
        """If there was no room for a request, preempt the running request that arrived last."""
        running = [name for name in self.alive if self.state(name) == "RUNNING"]
        if self.stage.happened.no_room and len(running) > 1:
            self.stage.driver.preempt(running[-1])
        self.stage.happened.no_room.clear()

    def state(self, name: str) -> str:
        """The state of a request."""
        return self.stage.driver.request_state(name)

    def arrive(self) -> None:
        """Add a request with a part of one of the prompts."""
        self.come += 1
        name = f"r{self.come}"
        said = self.chance.choice(_PROMPTS)
        self.stage.do_arrive(name, said[: self.chance.randrange(1, len(said))])
        self.alive.append(name)

    def land(self) -> None:
        """A worker's share of a copy lands or fails; some are reported twice, some never."""
        shares = [(job, rank) for job, rank, hung in self.stage.device.running() if not hung]
        if not shares:
            return
        job, rank = self.chance.choice(shares)
        landing = self.stage.device.land(job, rank, ok=self.chance.random() < 0.85)
        self.stage.reports += [landing] * self.chance.choice([1, 1, 1, 1, 2])
        self.chance.shuffle(self.stage.reports)

    def hang(self) -> None:
        """A share of a copy hangs."""
        shares = [(job, rank) for job, rank, hung in self.stage.device.running() if not hung]
        if shares:
            job, rank = self.chance.choice(shares)
            self.stage.device.hang(job, rank)
            self.hung[job] = None

    def prove(self) -> None:
        """Prove every hanging copy quiet."""
        if self.hung:
            self.stage.prove_quiet(list(self.hung))
            self.hung.clear()

    def finish_or_abort(self) -> None:
        """Finish or abort a request."""
        if self.alive:
            name = self.alive.pop(self.chance.randrange(len(self.alive)))
            self.chance.choice([self.stage.driver.finish, self.stage.driver.abort])(name)

    def give_way(self) -> None:
        """Preempt a running or loading request."""
        able = [name for name in self.alive if self.state(name) in _RUNS]
        if able:
            self.stage.driver.preempt(self.chance.choice(able))

    def end(self) -> None:
        """End every request, prove hanging copies quiet, and land all others."""
        for name in self.alive:
            self.stage.driver.abort(name)
        self.alive.clear()
        self.stage.tick()
        self.prove()
        self.stage.do_drain()


class WalkingStage(Stage):
    """A stage with all verbs: those of `Stage`, and `walk`, which takes them at random."""

    @verb(needs="finish abort preempt reset sleep wake prove_quiet request_state pending")
    def do_walk(self, actions: Many) -> None:
        """Random actions, drawn with the world's `seed`: requests arrive, grow, are preempted and end; copies land in any
        order, fail, hang and report twice; now and then the device's or all content is forgotten. At the end all requests
        end, hanging copies are proven quiet, and all others land.
        """
        going = Walk(self, random.Random(self.world.seed))
        for _ in range(actions):
            try:
                going.act()
            except CapacityError:
                continue
        going.end()
