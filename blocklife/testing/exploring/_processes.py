"""One search shared by several processes: each takes steps in its own copy of the model, and the parent collects the states.

Rules of this file:

* The result does not depend on the number of processes. The *parent* numbers states and checks properties in the same order as
  it would alone; the children only take the steps for it.
* A state goes to the process that owns its first part, on which the calls of the real code are made. So no call is made in two
  processes.
* No process is left behind: a child ends when the pipe to its parent closes, whatever happened to the parent.

Theory. The children are forked, so that no model has to be pickled, and a part known before the fork has the same number
everywhere. A part found later has its own number in each process, and is sent as a value, once to each process that needs it.
Between the parent and a child one message is out at a time: states to continue from, or their steps. The other side is always
reading while one writes, so that no two processes wait for each other.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import selectors
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeAlias, TypeGuard, runtime_checkable

from attrs import define, field, frozen

from blocklife.errors import CapacityError
from blocklife.testing.exploring._model import ActionT, Broken, Model, StateT, Steps, steps_of

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess  # missing on systems that cannot fork

BATCH = 64
"""The most states sent to a process at a time."""
_UNEVEN = 2 * BATCH
"""How many more states than the others a process may have before a part that it has found goes to another one."""
_MERGED = 16
"""How many states apart the parent checks for idle processes."""


@runtime_checkable
class Divisible(Model[StateT, ActionT], Protocol[StateT, ActionT]):
    """A model whose states consist of *parts*, values that it keeps and numbers, and a rest that can be pickled.

    Steps depend mostly on the first part. Two copies of a model agree on the numbers of the parts kept before the fork.
    """

    def parts(self) -> tuple[int, ...]:
        """How many values of each kind are kept."""
        ...

    def pack(self, kind: int, number: int) -> object:
        """The value of a part; it can be pickled."""
        ...

    def unpack(self, kind: int, value: object) -> int:
        """The number of a part's value in this copy; a new one is kept."""
        ...

    def divided(self, state: StateT) -> tuple[tuple[int, ...], object]:
        """The numbers of a state's parts, and the rest of it."""
        ...

    def joined(self, parts: tuple[int, ...], rest: object) -> StateT:
        """The state with these parts."""
        ...

    def tallied(self) -> list[int]:
        """The model's counts so far, each of them a sum."""
        ...

    def add_tally(self, more: Sequence[int]) -> None:
        """Add the counts of a copy."""
        ...


Sent: TypeAlias = tuple[tuple[int, ...], object]
"""A state as it is sent: the child's numbers of its parts, and the rest of it."""


@frozen
class _Task:
    """A task for a child.

    Both sides keep the same list of the states sent between them, so that each is sent once. New states of a task are appended
    first, then those of its answer.
    """

    values: list[tuple[int, bytes]]
    """Kind and value of parts that the child may not know. ``states`` refers to them as -1, -2 and so on."""
    states: list[Sent]
    """More states for the list."""
    take: list[int]
    """The states to take steps from, by their indices in the list."""


@frozen
class _TakenSteps(Generic[ActionT]):
    """A child's answer. Each action, too, is sent once, and referred to by its index in a list from then on."""

    numbers: list[int]
    """The child's numbers of the ``values`` of the task."""
    values: list[tuple[int, int, bytes]]
    """Kind, number and value of newly found parts that the parent does not know."""
    states: list[Sent]
    actions: list[ActionT]
    steps: list[_Taken]
    """The result for each of the states."""


_Taken: TypeAlias = list[tuple[int, int | Broken]] | Exception
"""The steps out of a state, as indices of action and state; or a `Broken`, or the exception that the model raised."""


def usable_processors() -> int:
    """How many processors this process may use; one where a fork is not safe, so that more have to be asked for."""
    if sys.platform == "darwin":
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_divisible(model: Model[StateT, ActionT]) -> TypeGuard[Divisible[StateT, ActionT]]:
    """Whether several processes can explore a model together: it has parts, and this system, and this process, can fork."""
    forks = "fork" in multiprocessing.get_all_start_methods() and not multiprocessing.current_process().daemon
    return forks and isinstance(model, Divisible)


# --- a child ----------------------------------------------------------------------------------------------------------------


class _Hand(Generic[StateT, ActionT]):
    """The work of a child: it takes steps.

    Invariant: ``_places`` and ``_actions`` hold the index of every state and action sent in either direction.
    """

    def __init__(self, model: Divisible[StateT, ActionT]) -> None:
        self._model = model
        self._states: list[StateT] = []
        self._places: dict[StateT, int] = {}
        self._actions: dict[ActionT, int] = {}
        self._first = model.parts()
        self._told: set[tuple[int, int]] = set()
        """Parts known to the parent, besides those with a number below ``_first``."""

    def work(self, task: _Task) -> _TakenSteps[ActionT]:
        """Take all steps out of the states of a task."""
        model, states = self._model, self._states
        numbers = [model.unpack(kind, pickle.loads(value)) for kind, value in task.values]
        self._told.update([(kind, number) for (kind, _), number in zip(task.values, numbers, strict=True)])
        for parts, rest in task.states:
            state = model.joined(tuple([numbers[-part - 1] if part < 0 else part for part in parts]), rest)
            self._places[state] = len(states)
            states.append(state)
        answer = _TakenSteps[ActionT](numbers, [], [], [], [])
        for place in task.take:
            try:
                answer.steps.append(self._taken(states[place], answer))
            except Exception as problem:
                answer.steps.append(_portable(problem))
        return answer

    def _taken(self, state: StateT, answer: _TakenSteps[ActionT]) -> _Taken:
        found = steps_of(self._model, state)
        if isinstance(found, Broken):
            return found
        taken: list[tuple[int, int | Broken]] = []
        for action, after in found:
            named = self._actions.get(action)
            if named is None:
                named = self._actions[action] = len(self._actions)
                answer.actions.append(action)
            taken.append((named, after if isinstance(after, Broken) else self._place(after, answer)))
        return taken

    def _place(self, state: StateT, answer: _TakenSteps[ActionT]) -> int:
        """The index of a state; a new one is sent along."""
        new = len(self._states)
        place = self._places.setdefault(state, new)
        if place != new:
            return place
        self._states.append(state)
        parts, rest = self._model.divided(state)
        for part in enumerate(parts):
            if part[1] >= self._first[part[0]] and part not in self._told:
                self._told.add(part)
                answer.values.append((*part, pickle.dumps(self._model.pack(*part), pickle.HIGHEST_PROTOCOL)))
        answer.states.append((parts, rest))
        return place


def _portable(problem: Exception) -> Exception:
    """An exception that can be pickled: the same one, or a substitute with its text."""
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:  # it may hold anything, and pickling can raise anything
        return RuntimeError("".join(traceback.format_exception(problem)))
    return problem


def _serve(model: Divisible[StateT, ActionT], pipe: Connection, others: Sequence[Connection]) -> None:
    """The main loop of a child: it ends when the parent is gone, or asks for the counts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # otherwise no child would notice that the parent has gone
        other.close()
    gc.freeze()  # the collector does not touch inherited objects, so their pages stay shared
    hand, before = _Hand(model), model.tallied()
    try:
        while (task := pipe.recv()) is not None:
            pipe.send(hand.work(task))
        pipe.send([now - then for now, then in zip(model.tallied(), before, strict=True)])
    except (EOFError, OSError):
        pass  # the parent has gone


# --- the parent -------------------------------------------------------------------------------------------------------------


@define(eq=False)
class _Child(Generic[StateT, ActionT]):
    """A child as its parent sees it.

    Invariant: a part kept before the fork has the same number in both. For later parts that the child knows, ``there`` maps
    kind and the parent's number to the child's number, and ``here`` maps back.
    """

    process: ForkProcess
    pipe: Connection
    queue: deque[int] = field(factory=deque)
    """States waiting for it, by number."""
    out: list[int] = field(factory=list)
    """States that it is working on; empty while it is idle."""
    told: list[tuple[int, int]] = field(factory=list)
    """Parts sent to it whose numbers it has not returned yet."""
    there: dict[tuple[int, int], int] = field(factory=dict)
    here: dict[tuple[int, int], int] = field(factory=dict)
    states: list[StateT] = field(factory=list)
    """The states sent in either direction."""
    places: dict[StateT, int] = field(factory=dict)
    actions: list[ActionT] = field(factory=list)

    @property
    def load(self) -> int:
        """How many states are queued for it or in work."""
        return len(self.queue) + len(self.out)

    def agree(self, part: tuple[int, int], number: int) -> None:
        """Record the child's number of a part."""
        self.there[part] = number
        self.here[part[0], number] = part[1]

    def keep(self, state: StateT) -> int:
        """The index of a state that is sent now."""
        self.places[state] = len(self.states)
        self.states.append(state)
        return len(self.states) - 1


class Team(Generic[StateT, ActionT]):
    """The children that take steps for their parent.

    The steps of every given state can be asked for once, in any order; asking in the order of their numbers waits least.
    """

    def __init__(self, model: Divisible[StateT, ActionT], processes: int) -> None:
        self._model = model
        self._shared = model.parts()
        self._values: dict[tuple[int, int], bytes] = {}
        """Values of parts found since the fork, by kind and number, as they are sent."""
        self._owner: dict[int, _Child[StateT, ActionT]] = {}
        """The child that has the states with this first part."""
        self._states: dict[int, StateT] = {}
        self._by: dict[int, _Child[StateT, ActionT]] = {}
        """The child that takes the steps out of each state."""
        self._done: dict[int, _Taken] = {}
        self._last: _Child[StateT, ActionT] | None = None
        """The child that took the steps asked for last."""
        self._asked = 0
        self._children: list[_Child[StateT, ActionT]] = []
        self._pipes = selectors.DefaultSelector()
        context = multiprocessing.get_context("fork")
        pipes: list[Connection] = []
        try:
            for _ in range(processes):
                mine, theirs = context.Pipe()
                pipes.append(mine)
                process = context.Process(target=_serve, args=(model, theirs, tuple(pipes)), daemon=True)
                process.start()
                theirs.close()
                child: _Child[StateT, ActionT] = _Child(process, mine)
                self._children.append(child)
                self._pipes.register(mine, selectors.EVENT_READ, child)
        except BaseException:
            self.end()
            raise

    # --- what is asked ------------------------------------------------------------------------------------------------------

    def give(self, numbered: Iterable[tuple[int, StateT]]) -> None:
        """Add states to continue from, with their numbers; they were found by the steps asked for last."""
        finder = self._last
        for number, state in numbered:
            first = self._model.divided(state)[0][0]
            child = self._owner.get(first)
            if child is None:
                least = min(self._children, key=lambda each: each.load)
                child = least if finder is None or finder.load > least.load + _UNEVEN else finder
                self._owner[first] = child
            child.queue.append(number)
            self._states[number], self._by[number] = state, child

    def steps(self, number: int) -> Steps[ActionT, StateT]:
        """The steps out of a given state. Raises what the model raised."""
        self._asked += 1
        if not self._asked % _MERGED:
            self._attend(0.0)
        while number not in self._done:
            self._attend(None)
        found, child = self._done.pop(number), self._by.pop(number)
        self._last = child
        if isinstance(found, Broken):
            return found
        if isinstance(found, Exception):
            raise found
        actions, states = child.actions, child.states
        return [(actions[action], after if isinstance(after, Broken) else states[after]) for action, after in found]

    def finish(self) -> None:
        """Add the counts of all children to the model's; waits for those still at work."""
        for child in self._children:
            if child.out:
                self._receive(child)
            self._send(child, None)
        for child in self._children:
            counted = self._receive(child)
            if isinstance(counted, list):
                self._model.add_tally(counted)

    def end(self) -> None:
        """End all children, whatever they are doing."""
        self._pipes.close()
        for child in self._children:
            child.pipe.close()
            child.process.terminate()
        for child in self._children:
            child.process.join()

    # --- messages -----------------------------------------------------------------------------------------------------------

    def _attend(self, seconds: float | None) -> None:
        """Give work to idle children, and collect answers; waits at most *seconds*, for ever if None."""
        for idle in self._children:
            if idle.queue and not idle.out:
                self._send(idle, self._task(idle))
        for key, _ in self._pipes.select(seconds):
            child: _Child[StateT, ActionT] = key.data
            answer, numbers = self._receive(child), child.out
            if not isinstance(answer, _TakenSteps):
                raise TypeError(answer)
            for part, number in zip(child.told, answer.numbers, strict=True):
                child.agree(part, number)
            child.out, child.told = [], []
            self._learn(child, answer)
            if child.queue:  # right away, so that it works on meanwhile
                self._send(child, self._task(child))
            self._done.update(zip(numbers, answer.steps, strict=True))

    def _learn(self, child: _Child[StateT, ActionT], answer: _TakenSteps[ActionT]) -> None:
        """Take over the parts and states of an answer."""
        for kind, number, value in answer.values:
            part = kind, self._model.unpack(kind, pickle.loads(value))
            self._values.setdefault(part, value)
            child.agree(part, number)
        shared, here, joined = self._shared, child.here, self._model.joined
        for parts, rest in answer.states:
            own = [number if number < shared[kind] else here[kind, number] for kind, number in enumerate(parts)]
            child.keep(joined(tuple(own), rest))
        child.actions += answer.actions

    def _task(self, child: _Child[StateT, ActionT]) -> _Task:
        """The next task of a child: states from its queue, from now on in work."""
        task = _Task([], [], [])
        fresh: dict[tuple[int, int], int] = {}
        while child.queue and len(child.out) < BATCH:
            number = child.queue.popleft()
            state = self._states.pop(number)
            place = child.places.get(state)
            if place is None:
                parts, rest = self._model.divided(state)
                there = tuple([self._there(child, part, task, fresh) for part in enumerate(parts)])
                task.states.append((there, rest))
                place = child.keep(state)
            task.take.append(place)
            child.out.append(number)
        return task

    def _there(
        self, child: _Child[StateT, ActionT], part: tuple[int, int], task: _Task, fresh: dict[tuple[int, int], int]
    ) -> int:
        """The child's number of a part; parts in *fresh* come with the task, and have negative numbers until it answers."""
        if part[1] < self._shared[part[0]]:
            return part[1]
        known = child.there.get(part, fresh.get(part))
        if known is None:
            task.values.append((part[0], self._value(part)))
            child.told.append(part)
            known = fresh[part] = -len(task.values)
        return known

    def _value(self, part: tuple[int, int]) -> bytes:
        if part not in self._values:
            self._values[part] = pickle.dumps(self._model.pack(*part), pickle.HIGHEST_PROTOCOL)
        return self._values[part]

    def _send(self, child: _Child[StateT, ActionT], message: object) -> None:
        try:
            child.pipe.send(message)
        except OSError:
            self._refuse(child)

    def _receive(self, child: _Child[StateT, ActionT]) -> object:
        try:
            found: object = child.pipe.recv()
        except (EOFError, OSError):
            self._refuse(child)
        return found

    def _refuse(self, child: _Child[StateT, ActionT]) -> NoReturn:
        """The error for a child that has ended by itself."""
        child.process.join()
        code = child.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"status {code}"
        raise CapacityError(
            f"process {child.process.pid}, one of {len(self._children)} that explore, has ended ({how}): there may be too "
            "little memory for so many (explore with fewer processes)"
        )
