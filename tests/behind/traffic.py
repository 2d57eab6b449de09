"""What the random requests for the rigs of all engines have in common: shared prefixes, drawn lengths, and bursts.

One seed is one run: the traffic draws its own habits first, so that some runs starve what others do all the time. The traffic
of an engine adds what else its clients and operators do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Generic, Protocol, Self, TypeVar

from attrs import define, evolve, field, frozen


class Rig(Protocol):
    """What is asked of the rig of an engine; `add` sends a request, and returns its name."""

    running: set[str]
    prompts: dict[str, list[int]]
    finished: dict[str, list[int]]

    def add(self, prompt: Sequence[int], max_tokens: int) -> str: ...


@frozen
class Sending:
    """How often a run sends what. Rates are a chance at each step."""

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

    def busy(self, max_num_seqs: int) -> Self:
        """The same habits where requests come all the time and have much in common."""
        return evolve(self, arrival=0.7, burst=3, crowd=2 * max_num_seqs, repeat=0.6, longest_answer=16)


def drawn(rng: Random, max_num_seqs: int) -> Sending:
    """What is drawn first of the habits of one run."""
    return Sending(
        arrival=rng.choice((0.1, 0.3, 0.6, 0.9)),
        burst=rng.choice((1, 2, 4)),
        crowd=rng.choice((2, max_num_seqs, 2 * max_num_seqs)),
        repeat=rng.choice((0.1, 0.3, 0.6)),
        follow=rng.choice((0.0, 0.2, 0.4)),
        short=rng.choice((0.0, 0.2)),
        longest_answer=rng.choice((4, 12, 32)),
    )


QUIET = Sending(arrival=0.5, burst=2, crowd=6, repeat=0.3, follow=0.2, short=0.1, longest_answer=12)
"""Traffic without memory pressure, if the world has room."""

AnyRig = TypeVar("AnyRig", bound=Rig)
Habits = TypeVar("Habits", bound=Sending)


@define(eq=False)
class Traffic(ABC, Generic[AnyRig, Habits]):
    """What clients of an engine send, drawn from a seed."""

    rig: AnyRig
    seed: int
    habits: Habits
    limit: int
    _rng: Random
    _families: list[list[int]] = field(init=False)
    _sent: list[list[int]] = field(factory=list)
    _paused: bool = False

    def __attrs_post_init__(self) -> None:
        rng = self._rng
        self._families = [[rng.randrange(10, 1000) for _ in range(self.limit)] for _ in range(rng.choice((1, 2, 4)))]

    @abstractmethod
    def _ends(self) -> list[int]:
        """Lengths whose multiples are where something ends: a block, say, or a chunk."""

    def _ask(self, prompt: list[int], max_tokens: int) -> None:
        self.rig.add(prompt, max_tokens)

    def _arrive(self) -> None:
        """Send some requests, or none."""
        rng, habits = self._rng, self.habits
        if rng.random() < habits.arrival:
            for _ in range(rng.randint(1, habits.burst)):
                if len(self.rig.running) < habits.crowd:
                    self._send()

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
        self._ask(prompt, max(1, min(answer, self.limit - len(prompt))))

    def _fresh(self, tokens: int) -> list[int]:
        return [self._rng.randrange(1000, 30_000) for _ in range(tokens)]

    def _length(self) -> int:
        """A length of a prompt; every other one is next to where something ends."""
        rng = self._rng
        length = rng.randint(1, self.limit)
        if rng.random() < 0.5:
            end = rng.choice(self._ends())
            length = max(1, length // end * end + rng.choice((-1, 0, 0, 1)))
        return min(length, self.limit)
