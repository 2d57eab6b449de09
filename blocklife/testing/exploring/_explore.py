"""The explorer: every state of a bounded model, breadth first, and what holds in all of them.

Rules of this file:

* It knows no block and no ledger: a model is five questions (`Model`), a property a name and a predicate.
* A search that hit a bound is never a pass: what was not refuted is then unknown.
* Breadth first, so that the first counterexample is a shortest one.

Theory. There are four kinds of properties. *always*: something holds in every state. *edge*: something holds of every step,
that is of a state, an action and the state after it. *sometimes*: something is reached at all, so that the model is not
vacuous. *leads to*: from every state a goal can be reached by some of the actions alone (those that bring nothing new); it is
judged at the end, backwards from all states in which the goal holds.

A model that refuses to take a step raises `Broken`: with that the step itself is the counterexample.
"""

from __future__ import annotations

import enum
import gc
import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

from attrs import define, field, frozen

from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from blocklife.testing.exploring._processes import Team

StateT = TypeVar("StateT", bound=Hashable)
ActionT = TypeVar("ActionT", bound=Hashable)


class Broken(Exception):  # noqa: N818 - what it reports is no error of the caller
    """A step of a model breaks a property that the model itself watches."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule
        """The name of the property."""

    def __reduce__(self) -> tuple[type[Broken], tuple[str, str]]:
        return type(self), (self.rule, str(self))


class Model(Protocol[StateT, ActionT]):
    """What can be explored. States are values that can be hashed; equal states are one state."""

    def initial(self) -> StateT:
        """Where everything begins."""
        ...

    def actions(self, state: StateT) -> Iterable[ActionT]:
        """What can happen next, in an order that is always the same. Raises `Broken` where finding out breaks a property."""
        ...

    def step(self, state: StateT, action: ActionT) -> StateT:
        """The state after an action. Raises `Broken` where the step itself breaks a property."""
        ...

    def properties(self) -> Sequence[Property[StateT, ActionT]]:
        """What is to hold."""
        ...

    def rules(self) -> Sequence[str]:
        """The names that `Broken` can carry: what is watched in each step."""
        ...


Steps: TypeAlias = list[tuple[ActionT, StateT | Broken]] | Broken
"""Every action with the state after it, or with what it breaks; a `Broken` alone where finding the actions breaks something."""


def steps_of(model: Model[StateT, ActionT], state: StateT) -> Steps[ActionT, StateT]:
    """All steps out of a state."""
    try:
        offered = list(model.actions(state))
    except Broken as broken:
        return broken
    found: list[tuple[ActionT, StateT | Broken]] = []
    for action in offered:
        try:
            found.append((action, model.step(state, action)))
        except Broken as broken:
            found.append((action, broken))
    return found


class Kind(enum.Enum):
    """What a property speaks about."""

    ALWAYS = "it holds in every state"
    EDGE = "it holds of every step"
    SOMETIMES = "some state is like that"
    LEADS_TO = "from every state such a state can be reached by some of the actions alone"


_PREDICATES = {
    Kind.ALWAYS: {"always"},
    Kind.EDGE: {"edge"},
    Kind.SOMETIMES: {"goal"},
    Kind.LEADS_TO: {"goal", "closing"},
}


@frozen
class Property(Generic[StateT, ActionT]):
    """A name, a kind, one sentence, and the one predicate that belongs to the kind."""

    name: str
    kind: Kind
    doc: str
    always: Callable[[StateT], str] | None = None
    """What is wrong in a state; empty where nothing is."""
    edge: Callable[[StateT, ActionT, StateT], str] | None = None
    """What is wrong with a step; empty where nothing is."""
    goal: Callable[[StateT], bool] | None = None
    """Whether a state is the one that is looked for (*sometimes*, *leads to*)."""
    closing: Callable[[ActionT], bool] | None = None
    """Which actions may be used to reach the goal (*leads to*)."""

    def __attrs_post_init__(self) -> None:
        given = {name for name in ("always", "edge", "goal", "closing") if getattr(self, name) is not None}
        if given != _PREDICATES[self.kind]:
            wanted = " and ".join(sorted(_PREDICATES[self.kind]))
            raise MisuseError(f"property {self.name}: one of the kind {self.kind.name} is judged by {wanted} alone")


class Verdict(enum.Enum):
    """What is known of a property."""

    HOLDS = "no state of the whole world refutes it"
    VIOLATED = "there is a counterexample"
    UNKNOWN = "a bound was hit, and nothing refutes it so far"


@frozen
class Counterexample(Generic[ActionT]):
    """A shortest way to a state, or step, that refutes a property."""

    rule: str
    message: str
    actions: tuple[ActionT, ...]


@frozen
class Bounds:
    """Where a search gives up; None for no bound."""

    max_states: int | None = None
    max_depth: int | None = None
    max_seconds: float | None = None


@frozen(kw_only=True)
class Exploration(Generic[ActionT]):
    """What a search has found."""

    states: int
    edges: int
    depth: int
    seconds: float
    verdicts: Mapping[str, Verdict]
    kinds: Mapping[str, str]
    """The kind of each property; ``step`` for what the model watches itself."""
    counterexamples: Sequence[Counterexample[ActionT]]
    bounds_hit: Sequence[str]
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """Whether every state was visited."""
        return not self.bounds_hit and not self.interrupted

    @property
    def verdict(self) -> Verdict:
        """That of all properties together."""
        found = set(self.verdicts.values())
        for worst in (Verdict.VIOLATED, Verdict.UNKNOWN):
            if worst in found:
                return worst
        return Verdict.HOLDS if self.complete else Verdict.UNKNOWN

    @property
    def states_per_second(self) -> float:
        """How fast it was."""
        return self.states / self.seconds if self.seconds else 0.0


@define(eq=False)
class _StateSearch(Generic[StateT, ActionT]):
    """A search that is going on.

    Invariant: ``numbers[state]`` is the place of a state in ``states``, ``parents`` and ``via``; parents have smaller numbers.
    ``closing`` holds, for each *leads to* property, the steps of its actions as pairs of numbers, flat.
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
    """Whether a step was broken, so that nobody knows what comes after it."""
    _of_edges: tuple[list[Property[StateT, ActionT]], list[tuple[array[int], Callable[[ActionT], bool]]]] = field(init=False)
    """Properties of edges, and for each *leads to* its pairs of states with the actions that may be used."""
    _of_states: list[tuple[str, Callable[[StateT], str]]] = field(init=False)
    _sought: list[tuple[str, Callable[[StateT], bool]]] = field(init=False)
    """What is to be reached at all, and was not yet."""

    def __attrs_post_init__(self) -> None:
        self.closing = {each.name: array("l") for each in self.properties if each.closing is not None}
        closings = [(self.closing[each.name], each.closing) for each in self.properties if each.closing is not None]
        self._of_states = [(each.name, each.always) for each in self.properties if each.always is not None]
        sometimes = [each for each in self.properties if each.kind is Kind.SOMETIMES]
        self._sought = [(each.name, each.goal) for each in sometimes if each.goal is not None]
        self._of_edges = [each for each in self.properties if each.edge is not None], closings

    def enter(self, state: StateT, parent: int, action: ActionT | None) -> int:
        """The number of a state; a new one is judged."""
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
        if isinstance(steps, Broken):  # what can happen next is found by trying, and trying broke something
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
        """The first counterexample of a property is kept: it is a shortest one."""
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
        """*leads to*: who cannot reach a goal, walking backwards from all goals."""
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
                self.note(each.name, f"{each.doc}: not from here", lost)


_PATIENCE = 200_000
"""New objects after which cycles are looked for: a search keeps nearly all that it makes, and makes none."""


@contextmanager
def _patient_collector() -> Iterator[None]:
    first, *others = gc.get_threshold()
    gc.set_threshold(max(first, _PATIENCE) if first else 0, *others)
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # What was kept is put with what is old, so that it is not walked now for being new.
            gc.freeze()
            gc.unfreeze()
        gc.set_threshold(first, *others)


LARGE = 4_000
"""States from which on a search is shared where nobody has said by how many processes: it takes a second by then."""


@define(eq=False)
class _Workforce(Generic[StateT, ActionT]):
    """Who takes the steps of a search: this process, or several that it makes once the search is large."""

    model: Model[StateT, ActionT]
    processes: int | None
    team: Team[StateT, ActionT] | None = None

    def __attrs_post_init__(self) -> None:
        wanted = self.processes
        if wanted is not None and (type(wanted) is not int or wanted < 1):
            raise MisuseError(f"processes must be a whole number of at least 1, not {wanted!r}")

    def look(self, states: Sequence[StateT], number: int) -> None:
        """Share the states from *number* on, if it is worth it by now."""
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
        """States that are new, and that steps will be asked of."""
        if self.team is not None and since < len(states):
            self.team.give(enumerate(states[since:], since))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Nobody is left when it is over, however it ends."""
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
    """Visit every state of *model*, and judge all properties.

    Ends at the first counterexample, or goes on and finds one of each property with *every*. *progress* is called now and then
    with states, edges and depth; *stop* is asked as often, and ends the search with what is known so far.

    *processes* take the steps, where the model can be divided and the system can fork; without a number, one as long as the
    search is small, and then as many as there are processors. What is found is the same.
    """
    search = _StateSearch(model, model.properties())
    names = [*model.rules(), *(each.name for each in search.properties)]
    if len(set(names)) < len(names):
        raise MisuseError(f"two properties or rules of a model have one name: {sorted(names)}")
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
