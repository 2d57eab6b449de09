"""Judging mutants: each is planted, and the small worlds are explored until one does not hold.

Rules of this file:

* A world must hold without any mutant.
* A mutant that hangs counts as found, like one that crashes: an alarm ends a call that does not return.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Protocol

from attrs import frozen

from blocklife.errors import MisuseError
from blocklife.testing import Bounds, Exploration, Verdict, World, WorldSettings, explore
from blocklife.testing.exploring._model import ActionT
from blocklife.testing.worlds._pinned import WORLDS
from tests.proof.ledger_world.settings import LedgerSettings
from tests.proof.ledger_world.world import LedgerWorld
from tests.proof.mutants.planting import Mutant, planted, watched

SECONDS_MAX = 30.0
"""How long a call under a mutant may take before it counts as hung, in seconds of the processor."""
GROWTH_MAX = 2
"""How many times larger a world may get under a mutant before its exploration is stopped."""


@frozen
class Judgement:
    """The result for one mutant, and what found it."""

    mutant: str
    kind: str
    world: str = ""
    """One that does not hold with it; empty if all do."""
    rule: str = ""
    message: str = ""
    actions: tuple[str, ...] = ()
    """A shortest counterexample."""
    seconds: float = 0.0

    @property
    def is_found(self) -> bool:
        """Whether a world does not hold with it."""
        return bool(self.world)


class Ground(Protocol):
    """Something that is explored under each mutant: a world."""

    def __call__(self, bounds: Bounds, wind: Callable[[], None]) -> Ran:
        """Explore it, and call *wind* from time to time to reset the alarm."""
        ...


@frozen
class Ran:
    """The result of an exploration; the last three fields are about the first counterexample."""

    states: int
    verdict: Verdict
    rule: str = ""
    message: str = ""
    actions: tuple[str, ...] = ()

    @classmethod
    def of(cls, seen: Exploration[ActionT]) -> Ran:
        """The result of an exploration."""
        if not seen.counterexamples:
            return cls(seen.states, seen.verdict)
        first = seen.counterexamples[0]
        return cls(seen.states, seen.verdict, first.rule, first.message, tuple(map(str, first.actions)))


def ground_of(settings: WorldSettings | LedgerSettings) -> Ground:
    """A world of the scheduler, or of the ledger's verbs, as a ground."""

    def run(bounds: Bounds, wind: Callable[[], None]) -> Ran:
        if isinstance(settings, LedgerSettings):
            return Ran.of(explore(LedgerWorld(settings), bounds, progress=lambda *_: wind(), processes=1))
        return Ran.of(explore(World(settings), bounds, progress=lambda *_: wind(), processes=1))

    return run


_OF_VERBS = (
    "smallest", "verbs", "verbs=drop+evict+pin", "requests=2", "requests=2,contract=hold",
    "requests=2,contract=hold,verbs=drop", "loads", "failures", "ahead", "echoes", "windows", "deadlines,contract=hold",
    "deadlines", "rivals,verbs=expire", "below,verbs=abandon+cancel+evict+reset", "below,verbs=expire+quiesce+evict,losses=1",
    "below,jobs=2,failures=1,verbs=evict", "below,workers=2,failures=1,verbs=evict",
)  # fmt: skip
"""Worlds of the ledger's verbs, as `LedgerSettings.parse` reads them: they do all that the tables allow, and take every row."""


def grounds() -> dict[str, Ground]:
    """Every small pinned world and the worlds of the ledger's verbs, by name."""
    found = {each.name: ground_of(each.settings) for each in WORLDS if not each.large}
    return found | {f"ledger {text}": ground_of(LedgerSettings.parse(text)) for text in _OF_VERBS}


@frozen
class Baseline:
    """A ground without any mutant."""

    ground: Ground
    states: int
    reached: frozenset[str]
    """The mutants whose site is executed in this world."""


class Hung(Exception):  # noqa: N818 - it is what an alarm raises
    """A call did not return."""


def baselines(grounds: Mapping[str, Ground], mutants: Sequence[Mutant]) -> dict[str, Baseline]:
    """Explore every ground without mutants; returns the smallest first. Raises MisuseError if one does not hold."""
    found: dict[str, Baseline] = {}
    for name, ground in grounds.items():
        with watched(mutants) as reached:
            ran = ground(Bounds(), lambda: None)
        if ran.verdict is not Verdict.HOLDS:
            raise MisuseError(f"{name}: it does not hold without any mutant ({ran.message})")
        found[name] = Baseline(ground, ran.states, frozenset(reached))
    return dict(sorted(found.items(), key=lambda each: each[1].states))


def judge(mutant: Mutant, known: Mapping[str, Baseline]) -> Judgement:
    """Explore the grounds that execute the mutant's site, in order and with the mutant planted, until one does not hold."""
    started = time.perf_counter()
    for name, baseline in known.items():
        if mutant.name not in baseline.reached:
            continue
        with planted(mutant):
            ran = explored(baseline.ground, Bounds(max_states=GROWTH_MAX * baseline.states + 1000))
        if ran.verdict is Verdict.VIOLATED:
            took = time.perf_counter() - started
            return Judgement(mutant.name, mutant.kind, name, ran.rule, ran.message, ran.actions, took)
    return Judgement(mutant.name, mutant.kind, seconds=time.perf_counter() - started)


def explored(ground: Ground, bounds: Bounds | None = None) -> Ran:
    """Explore one ground with the code as it is now; if it cannot begin or hangs, that is a counterexample of no steps."""
    try:
        with _alarm() as wind:
            return ground(bounds or Bounds(), wind)
    except Exception as broken:
        # a mutant can also break the making of a world
        return Ran(0, Verdict.VIOLATED, "lawful", f"{type(broken).__name__}: {broken}")


@contextmanager
def _alarm() -> Iterator[Callable[[], None]]:
    """Raise `Hung` in the body unless the alarm is wound again in time; does nothing where signals cannot be used."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield lambda: None
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise Hung("a call does not return")

    def wind() -> None:
        signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)

    previous = signal.signal(signal.SIGPROF, ring)
    wind()
    try:
        yield wind
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


_inherited: tuple[Sequence[Mutant], Mapping[str, Baseline]] = ((), {})
"""What a forked process judges; it inherits this, because closures and planted code cannot be pickled."""


def _judge_inherited(number: int) -> Judgement:
    mutants, known = _inherited
    return judge(mutants[number], known)


def judge_all(mutants: Sequence[Mutant], grounds: Mapping[str, Ground], processes: int = 1) -> Iterator[Judgement]:
    """Judge all mutants in order. Several *processes* share the work if the system can fork; they inherit the grounds."""
    global _inherited
    known = baselines(grounds, mutants)
    if processes == 1 or "fork" not in multiprocessing.get_all_start_methods():
        yield from (judge(mutant, known) for mutant in mutants)
        return
    _inherited = mutants, known
    # the parent handles an interrupt: it ends the other processes
    ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    try:
        with multiprocessing.get_context("fork").Pool(processes, initializer=ignore) as pool:
            yield from pool.imap(_judge_inherited, range(len(mutants)))
    finally:
        _inherited = (), {}
