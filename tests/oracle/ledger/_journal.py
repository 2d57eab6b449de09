"""The journal: the latest steps in order, the outermost call that makes them, and the calls of hooks.

Rules of this file:

* A step is noted after it was written. Hooks and watchers run when the outermost call, of the ledger or of a scheduler, has
  made its last write, so that none sees a partial change. What they raise is kept (`HookErrors`) and changes nothing.
* A hook cannot undo anything, and cannot call the ledger.
* A call that was interrupted (Ctrl-C) between its first write and its last has left half of a change: it closes the ledger.
* Without hooks a step costs a tuple; with hooks, additionally a look-up of the rows that they want.
"""

from __future__ import annotations

import enum
import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from tests.oracle.errors import BlocklifeError, InterruptedCallError, MisuseError, RefusedError
from tests.oracle.hook_errors import HookErrors
from tests.oracle.ledger._ids import Ids
from tests.oracle.ledger._places import Blocks, Slots, SlotWatcher
from tests.oracle.ledger.jobs import JobTable
from tests.oracle.ledger.records import LedgerTransition, Refusal
from tests.oracle.lifecycle import Hooks, Listeners, Rows
from tests.oracle.states import MACHINES


class SlotChange(NamedTuple):
    """Slots whose content became readable (*stored*), or is gone."""

    stored: bool
    slots: tuple[int, ...]


Entry: TypeAlias = tuple[int, int, str, str, Ids, Rows, list[int], int, Sequence[int], str]
"""The first fields of a `LedgerTransition`."""
_NONE: list[int] = []
"""The epochs of places without any, or if there are no hooks. Never written."""

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")


class CallStage(enum.Enum):
    """How far the outermost call is: IDLE -> ASKING -> WRITING -> TELLING -> IDLE, or, interrupted while WRITING, CLOSED."""

    IDLE = "no call is being made"
    ASKING = "a call looks, and asks code of the user; it has changed nothing, and whatever is raised leaves it so"
    WRITING = "a call changes something; only a refusal of a verb, which comes before its writes, leaves all as it was"
    TELLING = "a call has made its last write, and tells hooks and watchers"
    CLOSED = "a call was interrupted while it wrote: nothing is known of the state, and every further call is refused"


_IDLE, _ASKING, _WRITING, _TELLING, _CLOSED = CallStage


class Journal:
    """The latest steps, as plain tuples; records are built on request.

    Invariant: ``size`` is the number of places in ``entries``, and at most ``most`` once a step has been noted.
    Invariant: ``stage`` is IDLE between calls, or CLOSED for good.
    """

    def __init__(self, most: int, incarnation: int, blocks: Blocks, slots: Slots, jobs: JobTable, errors: HookErrors) -> None:
        self.most = most
        self._incarnation = incarnation
        self._blocks, self._slots, self._jobs = blocks, slots, jobs
        self.entries: deque[Entry] = deque()
        self.size = 0
        self.plan = 0
        """The number of the latest plan, noted with every step."""
        self.hooks: Hooks[LedgerTransition] = Hooks(MACHINES, errors)
        self.refusals: Listeners[Refusal] = Listeners()
        self.watchers: tuple[SlotWatcher, ...] = ()
        self.errors = errors
        self.stage = CallStage.IDLE
        self.request = ""
        """The request that the outermost call was made for, if there are hooks."""
        self.sequence = 0
        """The number of the latest step."""
        self.calls = 0
        """How many outermost calls were begun."""
        self.noted: list[Entry] = []
        """Steps of the verb that is being made, which hooks want to hear of."""
        self.untold: deque[LedgerTransition | SlotChange | RefusedError] = deque()
        """What hooks and watchers will be told when the outermost call has made its last write."""
        self._interrupted = ""

    def note(
        self,
        machine: str,
        event: str,
        ids: Ids,
        rows: Rows,
        job: int = 0,
        jobs: Sequence[int] = (),
        name: str = "",
    ) -> None:
        """Note a step that was written; the fields are those of `LedgerTransition`."""
        self.sequence = number = self.sequence + 1
        entry = (number, self.plan, machine, event, ids, rows, _NONE, job, jobs, name)
        entries = self.entries
        entries.append(entry)
        size = self.size + len(ids)
        while size > self.most:
            size -= len(entries.popleft()[4])
        self.size = size
        if self.hooks.active and self.hooks.hears(machine, rows):  # an epoch may change again before the verb is over
            epoch = self._blocks.epoch
            epochs = [epoch[place] for place in ids] if machine == "block" else _NONE
            self.noted.append((*entry[:6], epochs, job, jobs, name or self.request))

    def history(self, machine: str, place: int) -> list[str]:
        """`Ledger.history`."""
        table = MACHINES[machine]
        return [
            f"plan {each.plan}: {table.row(row)}" + (f" (job {job})" if job else "")
            for each in self.records()
            if each.machine == machine
            for (where, row), job in zip(each.steps(), each.job_of_each(), strict=True)
            if where == place
        ]

    def records(self) -> list[LedgerTransition]:
        """The latest steps, oldest first."""
        return [LedgerTransition(*entry, self._incarnation) for entry in self.entries]

    def _told(self, entry: Entry) -> LedgerTransition:
        """The record for hooks: the entry, with data about its places from after the verb."""
        machine, ids, job, jobs = entry[2], entry[4], entry[7], entry[8]
        groups, owners = b"", dict[int, str]()
        if machine in ("block", "slot"):
            group = self._blocks.group if machine == "block" else self._slots.group
            groups = bytes([group[place] for place in ids])
        for number in {*jobs, job} if jobs else (job,):
            found = self._jobs.by_number.get(number)
            if found is not None and found.owner is not None:
                owners[number] = found.owner
        return LedgerTransition(*entry, self._incarnation, groups, owners)

    # --- the outermost call -------------------------------------------------------------------------------------------------

    def watch(self, watcher: SlotWatcher) -> None:
        """Tell *watcher* of slots whose content became readable, or is gone, after every call."""
        if not self.watchers:
            self._slots.listeners.append(self._note_slots)
        self.watchers = (*self.watchers, watcher)

    def writes(self) -> None:
        """A call has asked all it needs, and changes something from here on."""
        self.stage = CallStage.WRITING

    def refuse(self, name: str) -> None:
        """Refuse a call that is made while hooks are told, or after one that was interrupted."""
        if self.stage is _TELLING:
            raise MisuseError(f"{name}: a hook cannot call the ledger (note it, and call after the verb)")
        raise InterruptedCallError(
            f"{name}: the call {self._interrupted} was interrupted while it wrote, and nobody knows what this ledger holds "
            "(make another one, with a higher incarnation, and begin all requests anew; or restore a snapshot)"
        )

    def break_off(self, name: str, problem: BaseException, begun: int) -> None:
        """The outermost call raises *problem*; *begun* is the number of the latest step before it."""
        stage, self._interrupted = self.stage, name
        self.stage = CallStage.CLOSED
        unwritten = isinstance(problem, Exception) and self.sequence == begun  # an argument that raised while it was checked
        if unwritten or stage is _ASKING or isinstance(problem, BlocklifeError):
            self.request = ""
            self.stage = CallStage.IDLE
            if self.noted:
                self.end_verb()
            if isinstance(problem, RefusedError) and self.refusals.active:
                self.untold.append(problem)
            if self.untold:
                self.tell()

    def tell(self) -> None:
        """Call all hooks and watchers for everything that was noted, then deal with what they raised."""
        self.stage = CallStage.TELLING
        untold, errors = self.untold, self.errors
        try:
            while untold:
                told = untold.popleft()
                if isinstance(told, SlotChange):
                    for watcher in self.watchers:
                        try:
                            watcher(told.stored, told.slots)
                        except BaseException as problem:
                            errors.hold(watcher, problem)
                elif isinstance(told, RefusedError):
                    self._tell_refusal(told)
                else:
                    self.hooks.tell((told,))
        finally:
            self.stage = CallStage.IDLE

    def end_verb(self) -> None:
        """A verb has made its last write: what is told of its steps is known now, and may be another after the next verb."""
        self.untold.extend(map(self._told, self.noted))
        self.noted.clear()

    def _note_slots(self, stored: bool, slots: Sequence[int]) -> None:
        self.untold.append(SlotChange(stored, tuple(slots)))

    def _tell_refusal(self, problem: RefusedError) -> None:
        """Only refusals by places of the ledger are reported: a user's own code may have lifecycles of its own."""
        machine, _, name = problem.thing.partition(" ")
        if machine not in MACHINES or problem.place is None:
            return
        refusal = Refusal(self.plan, machine, problem.place, problem.event, problem.state)
        if machine == "request":
            refusal = refusal._replace(name=name)
        for subscription in self.refusals:
            subscription.hear(refusal, self.errors)


class Journaled(Protocol):
    """An object with calls that change a ledger; ``calls`` is that of the ledger."""

    @property
    def calls(self) -> Journal: ...


JournaledT = TypeVar("JournaledT", bound=Journaled)


def verb(method: Callable[Concatenate[JournaledT, P], ReturnT]) -> Callable[Concatenate[JournaledT, P], ReturnT]:
    """Mark a method that changes the ledger. If it is the outermost call, hooks are told after its last write."""
    return _outermost(method, CallStage.WRITING)


def call(method: Callable[Concatenate[JournaledT, P], ReturnT]) -> Callable[Concatenate[JournaledT, P], ReturnT]:
    """Mark a method that is made of several verbs. It asks first: `Journal.writes`, or its first verb, ends that part."""
    return _outermost(method, CallStage.ASKING)


def anew(method: Callable[Concatenate[JournaledT, P], ReturnT]) -> Callable[Concatenate[JournaledT, P], ReturnT]:
    """Mark a verb that replaces everything: it is also taken after a call that was interrupted, and opens the ledger again."""
    return _outermost(method, CallStage.WRITING, opens=True)


def _outermost(
    method: Callable[Concatenate[JournaledT, P], ReturnT], stage: CallStage, *, opens: bool = False
) -> Callable[Concatenate[JournaledT, P], ReturnT]:
    name, writes = method.__name__, stage is CallStage.WRITING

    @functools.wraps(method)
    def run(owner: JournaledT, /, *args: P.args, **kwargs: P.kwargs) -> ReturnT:
        journal = owner.calls
        if opens and journal.stage is _CLOSED:
            journal.noted.clear()
            journal.untold.clear()
            journal.stage = _IDLE
        if journal.stage is not _IDLE:
            if journal.stage is _TELLING or journal.stage is _CLOSED:
                journal.refuse(name)
            elif writes:
                journal.stage = _WRITING
            found = method(owner, *args, **kwargs)
            if journal.noted:
                journal.end_verb()
            return found
        begun = journal.sequence
        journal.calls += 1
        try:
            try:
                journal.stage = stage
                if journal.hooks.active:
                    request = args[0] if args else kwargs.get("request")
                    journal.request = request if isinstance(request, str) else ""
                found = method(owner, *args, **kwargs)
                journal.request = ""
                journal.stage = _IDLE
            except BaseException as problem:
                journal.break_off(name, problem, begun)
                raise
        except BaseException:  # an interrupt may come while another error is dealt with, too
            if journal.stage is not _IDLE:
                journal.stage = _CLOSED
            if journal.errors.pending:
                journal.errors.end()
            raise
        if journal.noted:
            journal.end_verb()
        if journal.untold:
            journal.tell()
        if journal.errors.pending:
            journal.errors.end(f"{name} has done its work, and what it returned is lost with this error")
        return found

    return run
