"""How many states of the README's world are explored in a second, everything judged in each of them.

The peer is the search alone: it finds the same states by the same steps, but each step stands in a dictionary already, and
nothing is judged. Times of two machines do not compare, so the calls that an edge takes are counted, too: those do. What
several processes are worth is seen in a larger world, by the clock on the wall and in turns with one process.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType

from blocklife.testing import Action, Exploration, Property, State, Verdict, World, WorldSettings, explore, pinned_world
from blocklife.testing.exploring._processes import usable_processors
from blocklife.testing.worlds._format import make_world
from tests.bench import Figure, Scale, nanoseconds

LARGE = "wide-fence"
"""The pinned world that several processes explore."""
README = {"blocks": 3, "slots": 2, "requests": ["ab.cd", "ab.ce"], "faults": {"fail": 1, "preempt": 1}}
SMALL = {"blocks": 3, "slots": 2, "requests": ["ab.c"]}
CALLS_BEFORE = 315.6
"""Calls of Python functions an edge of the README's world before the rebuild, counted by this suite."""


class Noted:
    """A world that notes where each step leads."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.steps: dict[State, list[State]] = {}

    def initial(self) -> State:
        return self._world.initial()

    def actions(self, state: State) -> Iterable[Action]:
        self.steps[state] = []
        return self._world.actions(state)

    def step(self, state: State, action: Action) -> State:
        after = self._world.step(state, action)
        self.steps[state].append(after)
        return after

    def properties(self) -> Sequence[Property[State, Action]]:
        return self._world.properties()

    def rules(self) -> Sequence[str]:
        return self._world.rules()


def searched(steps: Mapping[State, Sequence[State]], initial: State) -> int:
    """Find all states, breadth first. Returns how many there are."""
    numbers = {initial: 0}
    states = [initial]
    for state in states:
        for after in steps[state]:
            if after not in numbers:
                numbers[after] = len(states)
                states.append(after)
    return len(states)


def explored(settings: WorldSettings, processes: int = 1) -> Exploration[Action]:
    """The whole of a world, from nothing."""
    found = explore(World(settings), processes=processes)
    if found.verdict is not Verdict.HOLDS:
        raise AssertionError(f"the world that is measured is broken: {found.verdicts}")
    return found


def rate(settings: WorldSettings, repetitions: int) -> float:
    """States a second, the median of several explorations."""
    found = []
    for _ in range(repetitions):
        begin = time.thread_time_ns()
        states = explored(settings).states
        found.append(states / (time.thread_time_ns() - begin) * 1e9)
    return statistics.median(found)


def shared(settings: WorldSettings, processes: int, repetitions: int) -> tuple[float, float]:
    """States a second of several processes and of one, the best of several turns."""
    turns = [[explored(settings, number).states_per_second for number in (processes, 1)] for _ in range(repetitions)]
    several, one = (max(rates) for rates in zip(*turns, strict=True))
    return several, one


def calls_an_edge(settings: WorldSettings) -> float:
    """Calls of functions that are written in Python, ours and others'; a generator that goes on counts as called."""
    calls = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        edges = explored(settings).edges
    finally:
        sys.setprofile(before)
    return calls / edges


def measure(scale: Scale) -> list[Figure]:
    """The figures of this suite."""
    settings = make_world(README if scale.full else SMALL, "bench")
    noted = Noted(World(settings))
    explore(noted)
    initial = noted.initial()
    states = searched(noted.steps, initial)
    calls = calls_an_edge(settings)

    def search(number: int) -> None:
        for _ in range(number):
            searched(noted.steps, initial)

    processes = usable_processors() if scale.full else 2
    several, one = shared(pinned_world(LARGE).settings if scale.full else settings, processes, min(3, scale.repetitions))
    return [
        Figure(
            name="exploring the README's world",
            ours=rate(settings, scale.repetitions),
            unit="states a second",
            peer_name="the search alone, steps from a dictionary",
            peer=states / nanoseconds(search, scale, 20 if scale.full else 1) * 1e9,
        ),
        Figure(
            name="exploring the README's world",
            ours=calls,
            unit="calls an edge",
            peer_name="ours, before the rebuild" if scale.full else "",
            peer=CALLS_BEFORE if scale.full else None,
        ),
        Figure(
            name=f"exploring {LARGE}, {processes} processes" if scale.full else f"exploring, {processes} processes",
            ours=several,
            unit="states a second",
            peer_name="one process",
            peer=one,
        ),
    ]
