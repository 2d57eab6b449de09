"""The mutants judged: each is planted, and the small worlds are explored until one does not hold.

Rules of this file:

* A world counts only if it holds without any mutant; what it looks like then (`Baseline`) tells what a mutant has changed.
* A mutant that hangs is found, like one that crashes: an alarm ends the call that does not return.
"""

from __future__ import annotations

import enum
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from attrs import evolve, frozen

from blocklife.errors import MisuseError
from blocklife.ledger import core, ledger, places
from blocklife.lifecycle import Row
from blocklife.testing.explore import ActionT, Bounds, Exploration, Verdict, explore
from blocklife.testing.mutants import Mutant, planted, watched
from blocklife.testing.world import World, WorldSettings
from blocklife.testing.worlds import WORLDS

SECONDS_MAX = 30.0
"""How long a world may go without progress under a mutant before a call counts as hung."""
GROWTH_MAX = 3
"""How much larger than without it a world may get under a mutant before it is left."""


ROWS = "rows"
"""The rule that rows which a world takes are taken."""


class Fate(enum.Enum):
    """What became of a mutant."""

    FOUND = "a world does not hold with it"
    UNREACHED = "no world comes by"
    UNCHANGED = "every world has exactly the states and steps that it has without it"
    SURVIVED = "worlds change with it, and all of them hold"


@frozen
class Judgement:
    """What became of one mutant, and by what it was found."""

    mutant: str
    kind: str
    fate: Fate
    world: str = ""
    rule: str = ""
    message: str = ""
    actions: tuple[str, ...] = ()
    """A shortest way to it."""
    seconds: float = 0.0

    @property
    def length(self) -> int:
        """Actions of a shortest counterexample."""
        return len(self.actions)


class Ground(Protocol):
    """Something that is explored under each mutant."""

    def __call__(self, bounds: Bounds, wind: Callable[[], None]) -> Ran:
        """Explore it, and call *wind* now and then."""
        ...


@frozen
class Ran:
    """What came of it; the last three tell of the first counterexample."""

    states: int
    edges: int
    digest: int
    """A number that two runs agree on only if they saw the same values of the code under test."""
    rows: frozenset[str]
    """The rows of the tables that were taken."""
    verdict: Verdict
    rule: str = ""
    message: str = ""
    actions: tuple[str, ...] = ()

    @classmethod
    def of(cls, seen: Exploration[ActionT], digest: int, coverage: Mapping[str, Mapping[Row, int]]) -> Ran:
        """What an exploration found."""
        taken = frozenset(f"{machine}: {row}" for machine, rows in coverage.items() for row, times in rows.items() if times)
        if not seen.counterexamples:
            return cls(seen.states, seen.edges, digest, taken, seen.verdict)
        first = seen.counterexamples[0]
        actions = tuple(map(str, first.actions))
        return cls(seen.states, seen.edges, digest, taken, seen.verdict, first.rule, first.message, actions)


def ground_of(settings: WorldSettings) -> Ground:
    """A world of the scheduler as a ground."""

    def run(bounds: Bounds, wind: Callable[[], None]) -> Ran:
        world = World(settings)
        seen = explore(world, bounds, progress=lambda *_: wind())
        return Ran.of(seen, world.digest(), world.coverage())

    return run


_IN_BULK = ("clients-fence", "doubts-fence", "upheavals")
"""Worlds that are explored a second time, with every batch as an array."""


def in_bulk(ground: Ground) -> Ground:
    """The same ground on the path for many places, which small worlds would never take."""

    def run(bounds: Bounds, wind: Callable[[], None]) -> Ran:
        before = {module: getattr(module, "BULK") for module in (places, core, ledger)}  # noqa: B009 - see below
        for module in before:
            setattr(module, "BULK", 1)  # noqa: B010 - a constant to everybody else, mypy included
        try:
            return ground(bounds, wind)
        finally:
            for module, size in before.items():
                setattr(module, "BULK", size)  # noqa: B010 - as above

    return run


def grounds() -> dict[str, Ground]:
    """Every small pinned world, by name; some of them in bulk, too."""
    found = {each.name: ground_of(each.settings) for each in WORLDS if not each.large}
    return found | {f"{name} in bulk": in_bulk(found[name]) for name in _IN_BULK}


@frozen
class Baseline:
    """A ground without any mutant."""

    ground: Ground
    ran: Ran
    reached: frozenset[str]
    """The mutants that the code comes by in this world."""


class Hung(Exception):  # noqa: N818 - it is what an alarm raises
    """A call did not return."""


def baselines(grounds: Mapping[str, Ground], mutants: Sequence[Mutant]) -> dict[str, Baseline]:
    """Explore every ground as it is, small ones first in the answer. Refuses one that does not hold: it could find nothing."""
    found: dict[str, Baseline] = {}
    for name, ground in grounds.items():
        with watched(mutants) as reached:
            ran = ground(Bounds(), lambda: None)
        if ran.verdict is not Verdict.HOLDS:
            raise MisuseError(f"{name}: it does not hold without any mutant ({ran.message})")
        found[name] = Baseline(ground, ran, frozenset(reached))
    return dict(sorted(found.items(), key=lambda each: each[1].ran.states))


def judge(mutant: Mutant, known: Mapping[str, Baseline]) -> Judgement:
    """Explore the grounds that come by, in their order, with the mutant in the code, until one does not hold."""
    changed = False
    started = time.perf_counter()
    concerned = {name: baseline for name, baseline in known.items() if mutant.name in baseline.reached}
    for name, baseline in concerned.items():
        with planted(mutant):
            ran = _explored(baseline)
        ran = missing_rows(ran, baseline.ran)
        if ran.verdict is Verdict.VIOLATED:
            took = time.perf_counter() - started
            return Judgement(mutant.name, mutant.kind, Fate.FOUND, name, ran.rule, ran.message, ran.actions, took)
        changed |= ran != baseline.ran
    fate = Fate.SURVIVED if changed else Fate.UNCHANGED if concerned else Fate.UNREACHED
    return Judgement(mutant.name, mutant.kind, fate, seconds=time.perf_counter() - started)


def missing_rows(ran: Ran, base: Ran) -> Ran:
    """A world that was seen whole and holds, and in which a row of a table is never taken any more, is broken by that."""
    missing = sorted(base.rows - ran.rows)
    if ran.verdict is not Verdict.HOLDS or not missing:
        return ran
    return evolve(ran, verdict=Verdict.VIOLATED, rule=ROWS, message=f"{missing[0]} is never taken")


def _explored(baseline: Baseline) -> Ran:
    """One ground under a mutant; what cannot even begin, or does not return, is a counterexample of no steps."""
    bounds = Bounds(max_states=GROWTH_MAX * baseline.ran.states + 1000)
    try:
        with _alarm() as wind:
            return baseline.ground(bounds, wind)
    except Exception as broken:
        # a mutant can break the making of a world, too
        return Ran(0, 0, 0, frozenset(), Verdict.VIOLATED, "lawful", f"{type(broken).__name__}: {broken}")


@contextmanager
def _alarm() -> Iterator[Callable[[], None]]:
    """Raise `Hung` in whatever runs unless the alarm is wound again in time; does nothing where a signal cannot be had."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield lambda: None
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise Hung("a call does not return")

    def wind() -> None:
        signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)

    previous = signal.signal(signal.SIGALRM, ring)
    wind()
    try:
        yield wind
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def judge_all(
    mutants: Sequence[Mutant],
    grounds: Mapping[str, Ground],
    *,
    progress: Callable[[int, Judgement], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Judgement]:
    """Judge one after the other; *progress* hears of each, *stop* ends it with those judged so far."""
    known = baselines(grounds, mutants)
    found: list[Judgement] = []
    for number, mutant in enumerate(mutants, 1):
        if stop():
            break
        found.append(judge(mutant, known))
        if progress is not None:
            progress(number, found[-1])
    return found
