"""The explorer: visits every state of a bounded model, breadth first, and checks properties in each.

Rules of this file:

* It knows nothing of blocks or ledgers: it asks a model (`_model.py`).
* A search that hit a bound never passes: properties that were not refuted are then unknown.
* The search is breadth first, so that the first counterexample is a shortest one.
"""

from __future__ import annotations

import enum
import gc
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic

from attrs import define, field, frozen

from blocklife.errors import MisuseError
from blocklife.testing.exploring._model import ActionT, Broken, Kind, Model, Property, StateT, Steps, steps_of

if TYPE_CHECKING:
    from blocklife.testing.exploring._processes import Team


class Verdict(enum.Enum):
    """The result for a property."""

    HOLDS = "every state was visited, and none refutes it"
    VIOLATED = "there is a counterexample"
    UNKNOWN = "the search ended early, and nothing refutes it so far"


@frozen
class Counterexample(Generic[ActionT]):
    """A shortest path to a state, or step, that refutes a property."""

    rule: str
    message: str
    actions: tuple[ActionT, ...]


@frozen
class Bounds:
    """The bounds of a search; None for no bound."""

    max_states: int | None = None
    max_depth: int | None = None
    max_seconds: float | None = None


@frozen(kw_only=True)
class Exploration(Generic[ActionT]):
    """The result of a search."""

    states: int
    edges: int
    depth: int
    seconds: float
    verdicts: Mapping[str, Verdict]
    kinds: Mapping[str, str]
    """The kind of each property; ``step`` for rules that the model checks itself."""
    counterexamples: Sequence[Counterexample[ActionT]]
    bounds_hit: Sequence[str]
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """Whether every state was visited."""
        return not self.bounds_hit and not self.interrupted

    @property
    def verdict(self) -> Verdict:
        """The verdict over all properties."""
        found = set(self.verdicts.values())
        for worst in (Verdict.VIOLATED, Verdict.UNKNOWN):
            if worst in found:
                return worst
        return Verdict.HOLDS if self.complete else Verdict.UNKNOWN

    @property
    def states_per_second(self) -> float:
        """States visited per second."""
        return self.states / self.seconds if self.seconds else 0.0


@define(eq=False)
class _StateSearch(Generic[StateT, ActionT]):
    """A running search.

    Invariant: ``numbers[state]`` is the index of a state in ``states``, ``parents`` and ``via``; parents have smaller numbers.
    ``closing`` holds, for each *leads to* property, the steps of its closing actions as a flat list of pairs of numbers.
    """

    model: Model[StateT, ActionT]
    properties: Sequence[Property[StateT, ActionT]]
    numbers: dict[StateT, int] = field(factory=dict)
    states: list[StateT] = field(factory=list)
    parents: array[int] = field(factory=lambda: array("l"))
    via: list[ActionT | None] = field(factory=list)
    closing: dict[str, array[int]] = field(init=False)
    reached: set[str] = field(factory=set)
    found: dict[str, Counterexample[ActionT]] = field(factory=dict)
    edges: int = 0
    cut: bool = False
    """Whether a step was broken, so that the states after it are unknown."""
    _of_edges: tuple[list[Property[StateT, ActionT]], list[tuple[array[int], Callable[[ActionT], bool]]]] = field(init=False)
    """The *edge* properties, and for each *leads to* property its closing actions and its pairs of states."""
    _of_states: list[tuple[str, Callable[[StateT], str]]] = field(init=False)
    _sought: list[tuple[str, Callable[[StateT], bool]]] = field(init=False)
    """The *sometimes* properties not reached yet."""

    def __attrs_post_init__(self) -> None:
        self.closing = {each.name: array("l") for each in self.properties if each.closing is not None}
        closings = [(self.closing[each.name], each.closing) for each in self.properties if each.closing is not None]
        self._of_states = [(each.name, each.always) for each in self.properties if each.always is not None]
        sometimes = [each for each in self.properties if each.kind is Kind.SOMETIMES]
        self._sought = [(each.name, each.goal) for each in sometimes if each.goal is not None]
        self._of_edges = [each for each in self.properties if each.edge is not None], closings

    def enter(self, state: StateT, parent: int, action: ActionT | None) -> int:
        """The number of a state; a new one is checked."""
        new = len(self.states)
        number = self.numbers.setdefault(state, new)
        if number != new:
            return number
        self.states.append(state)
        self.parents.append(parent)
        self.via.append(action)
        for name, always in self._of_states:
            if name not in self.found and (problem := always(state)):
                self.note(name, problem, number)
        if self._sought:
            for name, goal in self._sought:
                if goal(state):
                    self.reached.add(name)
            self._sought = [(name, goal) for name, goal in self._sought if name not in self.reached]
        return number

    def expand(self, number: int, steps: Steps[ActionT, StateT]) -> None:
        """All steps out of one state."""
        if isinstance(steps, Broken):  # the actions are found by trying them, and that broke a property
            self.note(steps.rule, str(steps), number)
            self.cut = True
            return
        edge_properties, closings = self._of_edges
        self.edges += len(steps)
        for action, after in steps:
            if isinstance(after, Broken):
                self.note(after.rule, str(after), number, action)
                self.cut = True
                continue
            for each in edge_properties:
                if each.name not in self.found and each.edge is not None:
                    problem = each.edge(self.states[number], action, after)
                    if problem:
                        self.note(each.name, problem, number, action)
            target = self.enter(after, number, action)
            for pairs, allowed in closings:
                if allowed(action):
                    pairs.append(number)
                    pairs.append(target)

    def note(self, rule: str, message: str, number: int, *last: ActionT) -> None:
        """Record a counterexample. Only the first of each property is kept: it is a shortest one."""
        if rule not in self.found:
            self.found[rule] = Counterexample(rule, message, (*self.path(number), *last))

    def path(self, number: int) -> tuple[ActionT, ...]:
        """The actions that lead to a state."""
        found: list[ActionT] = []
        while number > 0:
            action = self.via[number]
            if action is not None:
                found.append(action)
            number = self.parents[number]
        return tuple(reversed(found))

    def judge_progress(self) -> None:
        """Check the *leads to* properties: walk backwards from all goals, and report a state that this does not reach."""
        for each in self.properties:
            if each.kind is not Kind.LEADS_TO or each.goal is None:
                continue
            before: list[list[int]] = [[] for _ in self.states]
            pairs = self.closing[each.name]
            for at in range(0, len(pairs), 2):
                before[pairs[at + 1]].append(pairs[at])
            good = bytearray(len(self.states))
            todo = [number for number, state in enumerate(self.states) if each.goal(state)]
            for number in todo:
                good[number] = 1
            while todo:
                for number in before[todo.pop()]:
                    if not good[number]:
                        good[number] = 1
                        todo.append(number)
            lost = good.find(0)
            if lost >= 0:
                self.note(each.name, f"{each.doc}: impossible from here", lost)


_PATIENCE = 200_000
"""New objects between two garbage collections: a search keeps nearly all objects that it makes, and makes no cycles."""


@contextmanager
def _patient_collector() -> Iterator[None]:
    first, *others = gc.get_threshold()
    gc.set_threshold(max(first, _PATIENCE) if first else 0, *others)
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # Freeze and unfreeze move the kept objects to the oldest generation, so that they are not scanned as new ones now.
            gc.freeze()
            gc.unfreeze()
        gc.set_threshold(first, *others)


LARGE = 4_000
"""States after which a search is shared if no number of processes was given: by then it has taken about a second."""


@define(eq=False)
class _Workforce(Generic[StateT, ActionT]):
    """Takes the steps of a search, in this process, or in several once the search is large."""

    model: Model[StateT, ActionT]
    processes: int | None
    team: Team[StateT, ActionT] | None = None

    def __attrs_post_init__(self) -> None:
        wanted = self.processes
        if wanted is not None and (type(wanted) is not int or wanted < 1):
            raise MisuseError(f"processes must be a whole number of at least 1, not {wanted!r}")

    def look(self, states: Sequence[StateT], number: int) -> None:
        """Share the states from *number* on, if the search is large enough by now."""
        if self.team is not None or self.processes == 1 or (self.processes is None and len(states) < LARGE):
            return
        from blocklife.testing.exploring._processes import Team, is_divisible, usable_processors

        wanted = usable_processors() if self.processes is None else self.processes
        if wanted == 1 or not is_divisible(self.model):
            self.processes = 1
            return
        self.team = Team(self.model, wanted)
        self.team.give(enumerate(states[number:], number))

    def steps(self, states: Sequence[StateT], number: int) -> Steps[ActionT, StateT]:
        """The steps out of a state."""
        return steps_of(self.model, states[number]) if self.team is None else self.team.steps(number)

    def found(self, states: Sequence[StateT], since: int) -> None:
        """Pass on new states, of which steps will be asked later."""
        if self.team is not None and since < len(states):
            self.team.give(enumerate(states[since:], since))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """End all processes, however the search ended."""
        try:
            yield
            if self.team is not None:
                self.team.finish()
        finally:
            if self.team is not None:
                self.team.end()


@_patient_collector()
def explore(
    model: Model[StateT, ActionT],
    bounds: Bounds = Bounds(),
    *,
    every: bool = False,
    progress: Callable[[int, int, int], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
    processes: int | None = None,
) -> Exploration[ActionT]:
    """Visit every state of *model*, and check all properties.

    Ends at the first counterexample; with *every* it goes on, and finds one for each violated property. *progress* is called
    from time to time with states, edges and depth; *stop* is called as often, and ends the search early if it returns True.

    *processes* is how many processes take the steps, if the model can be divided and the system can fork; by default one while
    the search is small, then one per processor. The result does not depend on it.
    """
    search = _StateSearch(model, model.properties())
    names = [*model.rules(), *(each.name for each in search.properties)]
    if len(set(names)) < len(names):
        raise MisuseError(f"two properties or rules of a model have the same name: {sorted(names)}")
    workforce = _Workforce(model, processes)
    started = time.perf_counter()
    search.enter(model.initial(), 0, None)
    states = search.states
    hit: list[str] = []
    interrupted = False
    depth = begin = 0
    with workforce.at_work():
        while begin < len(states) and not hit and not interrupted:
            if search.found and not every:
                break
            if bounds.max_depth is not None and depth >= bounds.max_depth:
                hit.append(f"max_depth={bounds.max_depth}")
                break
            end = len(states)
            last = bounds.max_depth is not None and depth + 1 >= bounds.max_depth
            for number in range(begin, end):
                if not number & 63:
                    if progress is not None:
                        progress(len(states), search.edges, depth)
                    if interrupted := stop():
                        break
                    if bounds.max_seconds is not None and time.perf_counter() - started > bounds.max_seconds:
                        hit.append(f"max_seconds={bounds.max_seconds:g}")
                        break
                    if not last:
                        workforce.look(states, number)
                if bounds.max_states is not None and len(states) > bounds.max_states:
                    hit.append(f"max_states={bounds.max_states}")
                    break
                since = len(states)
                search.expand(number, workforce.steps(states, number))
                if not last:
                    workforce.found(states, since)
                if search.found and not every:
                    break
            begin = end
            depth += begin < len(states)
    return _concluded(search, depth, time.perf_counter() - started, hit, interrupted, every)


def _concluded(
    search: _StateSearch[StateT, ActionT], depth: int, seconds: float, hit: list[str], interrupted: bool, every: bool
) -> Exploration[ActionT]:
    whole = not hit and not interrupted and not search.cut and (every or not search.found)
    if whole:
        search.judge_progress()
    verdicts: dict[str, Verdict] = {}
    kinds = dict.fromkeys(search.model.rules(), "step") | {each.name: each.kind.name.lower() for each in search.properties}
    for rule in (*kinds, *search.found):
        verdicts[rule] = Verdict.HOLDS if whole else Verdict.UNKNOWN
    for each in search.properties:
        if each.kind is Kind.SOMETIMES:
            reached = each.name in search.reached
            verdicts[each.name] = Verdict.HOLDS if reached else Verdict.VIOLATED if whole else Verdict.UNKNOWN
            if verdicts[each.name] is Verdict.VIOLATED:
                search.found[each.name] = Counterexample(each.name, f"{each.doc}: never reached", ())
    for rule in search.found:
        verdicts[rule] = Verdict.VIOLATED
    return Exploration(
        states=len(search.states),
        edges=search.edges,
        depth=depth,
        seconds=seconds,
        verdicts=verdicts,
        kinds=kinds,
        counterexamples=tuple(search.found.values()),
        bounds_hit=tuple(hit),
        interrupted=interrupted,
    )
