"""One search by several processes: each takes steps in a copy of the model, and one of them counts states as if it were alone.

Rules of this file:

* What is found does not depend on how many processes there are. One of them, the *parent*, numbers states and judges
  properties, in the order in which it would do so alone; the others only take the steps for it.
* A state goes to the process that owns its first part: what the calls of the real code are made on. So no call is made twice
  for being wanted in two processes.
* Nobody is left behind: a process ends when the pipe to its parent does, whatever has become of the parent.

Theory. The processes are forked, so that no model has to be pickled, and what was known before has one number everywhere. What
becomes known later has a number in each process, and crosses as a value, once for each process that has to know it. Between the
parent and a process one message is out at a time: states to go on from, or the steps from them. Whoever writes is read, so
that no two of them wait for each other.
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
from blocklife.testing.exploring._explore import ActionT, Broken, Model, StateT, Steps, steps_of

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess  # there is none where a system cannot fork

BATCH = 64
"""States that a process gets at a time, at most."""
_UNEVEN = 2 * BATCH
"""How many more states than others a process may have before a value that it has found is given to another one."""
_MERGED = 16
"""States after which the parent looks whether a process has nothing to do."""


@runtime_checkable
class Divisible(Model[StateT, ActionT], Protocol[StateT, ActionT]):
    """A model whose states are made of *parts*, values that it keeps and numbers, and of a rest that can be pickled.

    The first part is what most of a step is a function of. Two copies of a model agree on the numbers of what was kept before
    they parted.
    """

    def parts(self) -> tuple[int, ...]:
        """How many values of each kind are kept."""
        ...

    def pack(self, kind: int, number: int) -> object:
        """A value that is kept; it can be pickled."""
        ...

    def unpack(self, kind: int, value: object) -> int:
        """The number of such a value here; a new one is kept."""
        ...

    def divided(self, state: StateT) -> tuple[tuple[int, ...], object]:
        """The numbers of a state's parts, and the rest of it."""
        ...

    def joined(self, parts: tuple[int, ...], rest: object) -> StateT:
        """The state with these parts."""
        ...

    def tallied(self) -> list[int]:
        """What the model has counted so far, sums all of them."""
        ...

    def add_tally(self, more: Sequence[int]) -> None:
        """Add what a copy has counted."""
        ...


Sent: TypeAlias = tuple[tuple[int, ...], object]
"""A state as it crosses: the numbers that its parts have in the child, and the rest of it."""


@frozen
class _Task:
    """What a child is to do.

    Both sides keep one list of the states that have crossed between them, so that each crosses once: first those of a task
    that are not there yet, then those that its answer brings.
    """

    values: list[tuple[int, bytes]]
    """Kind and value of parts that the child may not know. In ``states`` they are called -1, -2 and so on."""
    states: list[Sent]
    """More states for the list."""
    take: list[int]
    """The states out of which steps are to be taken, by their places in the list."""


@frozen
class _TakenSteps(Generic[ActionT]):
    """What a child has done. Actions, too, cross once, and are then called by their places in a list."""

    numbers: list[int]
    """How each of the ``values`` of the task is numbered there."""
    values: list[tuple[int, int, bytes]]
    """Kind, number and value of parts that were found, and that the parent has not heard of."""
    states: list[Sent]
    actions: list[ActionT]
    steps: list[_Taken]
    """What came of each of the states."""


_Taken: TypeAlias = list[tuple[int, int | Broken]] | Exception
"""The steps out of a state, by the places of action and state; where there are none, a `Broken`, or what the model has failed
with."""


def usable_processors() -> int:
    """How many processors this process may use; one where a fork is not safe, so that only who asks for more gets them."""
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
    """What a process does that takes steps.

    Invariant: ``_places`` and ``_actions`` have the place of every state and action that has crossed.
    """

    def __init__(self, model: Divisible[StateT, ActionT]) -> None:
        self._model = model
        self._states: list[StateT] = []
        self._places: dict[StateT, int] = {}
        self._actions: dict[ActionT, int] = {}
        self._first = model.parts()
        self._told: set[tuple[int, int]] = set()
        """Parts that the parent knows, besides those with a number below ``_first``."""

    def work(self, task: _Task) -> _TakenSteps[ActionT]:
        """Take all steps out of some states."""
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
        """The place of a state, which crosses if it is new."""
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
    """An exception that crosses: itself, or one that says the same."""
    try:
        pickle.loads(pickle.dumps(problem))
    except Exception:  # what it is made of can be anything
        return RuntimeError("".join(traceback.format_exception(problem)))
    return problem


def _serve(model: Divisible[StateT, ActionT], pipe: Connection, others: Sequence[Connection]) -> None:
    """The life of a process that takes steps, until its parent has gone or wants to know what was counted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's affair
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:  # else no process would notice that the parent has gone
        other.close()
    gc.freeze()  # what was inherited is not walked, and so not copied
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
    """A process as its parent sees it.

    Invariant: a part that was kept before the fork has the same number in both; of others ``there`` has those that the child
    knows, by kind and the parent's number, and ``here`` the way back.
    """

    process: ForkProcess
    pipe: Connection
    queue: deque[int] = field(factory=deque)
    """States that wait for it, by number."""
    out: list[int] = field(factory=list)
    """States that it has; none while it waits."""
    told: list[tuple[int, int]] = field(factory=list)
    """Parts whose values it has got, and has not said the numbers of."""
    there: dict[tuple[int, int], int] = field(factory=dict)
    here: dict[tuple[int, int], int] = field(factory=dict)
    states: list[StateT] = field(factory=list)
    """The states that have crossed."""
    places: dict[StateT, int] = field(factory=dict)
    actions: list[ActionT] = field(factory=list)

    @property
    def load(self) -> int:
        """How many states it has to go on from."""
        return len(self.queue) + len(self.out)

    def agree(self, part: tuple[int, int], number: int) -> None:
        """Note how a part is numbered there."""
        self.there[part] = number
        self.here[part[0], number] = part[1]

    def keep(self, state: StateT) -> int:
        """The place of a state that crosses now."""
        self.places[state] = len(self.states)
        self.states.append(state)
        return len(self.states) - 1


class Team(Generic[StateT, ActionT]):
    """Processes that take steps for the one that has made them.

    Of every state that is given the steps can be asked for once, in any order; in that of their numbers nobody waits long.
    """

    def __init__(self, model: Divisible[StateT, ActionT], processes: int) -> None:
        self._model = model
        self._shared = model.parts()
        self._values: dict[tuple[int, int], bytes] = {}
        """Parts that became known since, by kind and number, as they cross."""
        self._owner: dict[int, _Child[StateT, ActionT]] = {}
        """Who has the states with this first part."""
        self._states: dict[int, StateT] = {}
        self._by: dict[int, _Child[StateT, ActionT]] = {}
        """Who takes the steps out of a state."""
        self._done: dict[int, _Taken] = {}
        self._last: _Child[StateT, ActionT] | None = None
        """Who has taken the steps that were asked for last."""
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
        """States to go on from, with their numbers; who has taken the latest steps has found them."""
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
        """The steps out of a state that was given. Raises what the model has raised."""
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
        """Add what all of them have counted to what the model has; who still takes steps is waited for."""
        for child in self._children:
            if child.out:
                self._receive(child)
            self._send(child, None)
        for child in self._children:
            counted = self._receive(child)
            if isinstance(counted, list):
                self._model.add_tally(counted)

    def end(self) -> None:
        """End all of them, whatever they do."""
        self._pipes.close()
        for child in self._children:
            child.pipe.close()
            child.process.terminate()
        for child in self._children:
            child.process.join()

    # --- messages -----------------------------------------------------------------------------------------------------------

    def _attend(self, seconds: float | None) -> None:
        """Give work to those that have none, and take what is done; waits for it so long at most, for ever if None."""
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
            if child.queue:  # at once, so that it goes on meanwhile
                self._send(child, self._task(child))
            self._done.update(zip(numbers, answer.steps, strict=True))

    def _learn(self, child: _Child[StateT, ActionT], answer: _TakenSteps[ActionT]) -> None:
        """Take over what has crossed with an answer."""
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
        """The next states of a child, which then has them."""
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
        """How a child calls a part, or will call it: those that are *fresh* come with the task."""
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
        """A process has gone that nobody has ended."""
        child.process.join()
        code = child.process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"status {code}"
        raise CapacityError(
            f"process {child.process.pid}, one of {len(self._children)} that explore, has ended ({how}): there may be too "
            "little memory for so many (explore with fewer processes)"
        )
