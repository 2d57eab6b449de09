"""The journal: the latest steps in order, the outermost call that makes them, and the calls of hooks.

Rules of this file:

* The kernel notes a step after it was written; here notes become records. Hooks and watchers run when the outermost call, of
  the ledger or of a scheduler, has made its last write, so that none sees a partial change. What they raise is kept
  (`HookErrors`) and changes nothing.
* A hook cannot undo anything, and cannot call the ledger.
* Where checking is strict, a call that overlaps with one of another thread is refused. Calls of different threads, one after
  the other, are not.
* A call that was interrupted (Ctrl-C) between its first write and its last has left half of a change: it closes the ledger.
* Without hooks no record is made before somebody asks for it.
"""

from __future__ import annotations

import enum
import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from blocklife.core._columns import Change, Core, Told
from blocklife.core._refused import KernelRefusal
from blocklife.core._tables import EVENTS, PUBLISHES, WITHDRAWS
from blocklife.errors import BlocklifeError, InterruptedCallError, MisuseError, RefusedError
from blocklife.hook_errors import HookErrors
from blocklife.ledger._refusals import Refusals
from blocklife.ledger.records import LedgerTransition, Refusal
from blocklife.lifecycle import Hooks, Listeners
from blocklife.states import MACHINES
from blocklife.threads import this_thread, thread_name

SlotWatcher: TypeAlias = Callable[[bool, Sequence[int]], None]
"""Hears (stored, slots): their content became readable, or is gone. It must not call the ledger."""
ContentListener: TypeAlias = Callable[[Sequence[Change]], None]
"""Hears (stored, slot, group, key) of each slot whose content became readable, or is gone: all those of a verb, in order."""


class SlotChange(NamedTuple):
    """Slots whose content became readable (*stored*), or is gone."""

    stored: bool
    slots: tuple[int, ...]


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
    """The latest steps as records, the hooks that hear of them, and the outermost call.

    Invariant: ``stage`` is IDLE between calls, or CLOSED for good.
    """

    def __init__(self, core: Core, incarnation: int, words: Refusals, errors: HookErrors, guarded: bool) -> None:
        self.core, self._incarnation, self._words = core, incarnation, words
        self.hooks: Hooks[LedgerTransition] = Hooks(MACHINES, errors, self._listen)
        self.refusals: Listeners[Refusal] = Listeners()
        self.watchers: tuple[SlotWatcher, ...] = ()
        self.listeners: tuple[ContentListener, ...] = ()
        self.errors = errors
        self.stage = CallStage.IDLE
        self.request = ""
        """The request that the outermost call was made for, if there are hooks."""
        self.calls = 0
        """How many outermost calls were begun."""
        self.recheck: Callable[[], None] = lambda: None
        """Checks the jobs again that took a step with effects (`Core.judged`)."""
        self.untold: deque[LedgerTransition | SlotChange | RefusedError] = deque()
        """What hooks and watchers will be told when the outermost call has made its last write."""
        self.guarded = guarded
        """Whether calls of different threads must not overlap."""
        self.caller: dict[bool, tuple[int, str]] = {}
        """Of a guarded ledger: the thread in whose call it is, and the name of that call; empty between calls."""
        self._interrupted = ""

    @property
    def plan(self) -> int:
        """The number of the latest plan."""
        return self.core.plan

    def _listen(self) -> None:
        """The hooks have changed: note which rows they want to hear of."""
        ring = self.core.journal
        ring.hears = self.hooks.active
        for what in range(len(ring.heard)):
            ring.heard[what] = 0
        for code, (machine, event) in EVENTS.items():
            flags = self.hooks.wanted.get(machine)
            for row in MACHINES[machine].events[event].rows if flags else ():
                ring.heard[code << 8 | row.index] = flags[row.index] if flags else 0
                ring.heard[code << 8] |= ring.heard[code << 8 | row.index]

    def history(self, machine: str, place: int) -> list[str]:
        """`JournalView.history`; `MisuseError` if no machine has this name."""
        if machine not in MACHINES:
            raise MisuseError(f"machine {machine!r}: it is not known (known are {', '.join(MACHINES)})")
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
        ring = self.core.journal
        found: list[LedgerTransition] = []
        last = 0
        places: list[int] = []
        rows: list[int] = []
        for at in range(max(0, ring.at - ring.size), ring.at):
            here = at % ring.size
            machine, event = EVENTS[ring.what[here] >> 8]
            row, place, job, sequence = ring.what[here] & 255, ring.place[here], ring.job[here], ring.sequence[here]
            if sequence == last:  # one more place that took part in the step
                places.append(place)
                rows.append(row)
                continue
            places, rows, last = [place], [row], sequence
            name = ring.names.get(here, "") if machine == "request" else ""
            found.append(
                LedgerTransition(sequence, ring.plan[here], machine, event, places, rows, [], job, (), name, self._incarnation)
            )
        return found

    def _told(self, told: Told) -> LedgerTransition:
        """The record for hooks, with data about its places from after the verb."""
        sequence, plan, code, places, rows, epochs, job, name = told
        machine, event = EVENTS[code]
        groups, core = b"", self.core
        owners: dict[int, str] = {}
        if machine in ("block", "slot"):
            group = core.blocks.group if machine == "block" else core.slots.group
            groups = bytes([group[place] for place in places])
        row = core.jobs.find(job)
        if row and core.jobs.num_owners[row]:
            owners[job] = core.requests.names[core.jobs.owner[core.jobs.owner_begin[row]]]
        return LedgerTransition(
            sequence,
            plan,
            machine,
            event,
            places,
            rows,
            epochs,
            job,
            (),
            name or self.request,
            self._incarnation,
            groups,
            owners,
        )

    # --- the outermost call -------------------------------------------------------------------------------------------------

    def watch(self, watcher: SlotWatcher) -> None:
        """Tell *watcher* of slots whose content became readable, or is gone, after every call."""
        self.core.watched = PUBLISHES | WITHDRAWS
        self.watchers = (*self.watchers, watcher)

    def listen(self, listener: ContentListener, stored: bool) -> None:
        """The same for code of this package: it is called after each verb, for all its slots, and only takes notes.

        Without *stored* it is told only of content that is gone. If another listener, or a watcher, is told of both, so is it.
        """
        self.core.watched |= WITHDRAWS | PUBLISHES * stored
        self.listeners = (*self.listeners, listener)

    def claim(self, name: str) -> None:
        """A call begins, perhaps within another one. Refuses one that overlaps with a call of another thread."""
        me = this_thread()
        thread, running = self.caller.setdefault(True, (me, name))  # a single step, which no other thread can interrupt
        if thread != me:
            raise MisuseError(
                f"{name}: thread {thread_name(me)} calls it, and thread {thread_name(thread)} is in {running} (one call at a "
                "time: hold a lock of your own around each, or hand the call to the thread of the scheduler)"
            )

    def let_go(self) -> None:
        """The outermost call is over: any thread may make the next one."""
        self.caller.clear()

    def writes(self) -> None:
        """A call has asked all it needs, and changes something from here on."""
        self.stage = _WRITING

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
        self.stage = _CLOSED
        # an argument that raised while it was checked
        unwritten = isinstance(problem, Exception) and self.core.journal.steps == begun
        if unwritten or stage is _ASKING or isinstance(problem, BlocklifeError):
            self.request = ""
            self.stage = _IDLE
            self.end_verb()
            if isinstance(problem, RefusedError) and self.refusals.active:
                self.untold.append(problem)
            if self.untold:
                self.notify()

    def notify(self) -> None:
        """Call all hooks and watchers for everything that was noted, then deal with what they raised."""
        untold, errors = self.untold, self.errors
        try:
            self.stage = _TELLING  # here, so that an interrupt cannot leave it so
            while untold:
                told = untold.popleft()
                if isinstance(told, SlotChange):
                    for watcher in self.watchers:
                        try:
                            watcher(told.stored, told.slots)
                        except BaseException as problem:
                            errors.hold(watcher, problem)
                elif isinstance(told, RefusedError):
                    self._notify_refusal(told)
                else:
                    self.hooks.notify((told,))
        finally:
            self.stage = _IDLE

    def end_verb(self) -> None:
        """A verb has made its last write: what is told of its steps is known now, and may be another after the next verb."""
        core = self.core
        if core.told:
            self.untold.extend(map(self._told, core.told))
            core.told.clear()
        if core.changes:
            for listener in self.listeners:
                listener(core.changes)
            if self.watchers:
                for stored, run in groupby(core.changes, key=itemgetter(0)):
                    self.untold.append(SlotChange(stored, tuple([slot for _, slot, _, _ in run])))
            core.changes.clear()

    def worded(self, problem: KernelRefusal, name: str) -> BlocklifeError:
        """What the kernel refuses in a call, as a sentence."""
        return self._words.of(problem, name)

    def _notify_refusal(self, problem: RefusedError) -> None:
        """Only refusals by places of the ledger are reported: a user's own code may have lifecycles of its own."""
        machine, _, name = problem.thing.partition(" ")
        if machine not in MACHINES or problem.place is None:
            return
        refusal = Refusal(self.core.plan, machine, problem.place, problem.event, problem.state)
        if machine == "request":
            refusal = refusal._replace(name=name)
        for subscription in self.refusals:
            subscription.hear(refusal, self.errors)


class Journaled(Protocol):
    """An object with calls that change a ledger; ``_calls`` is that of the ledger."""

    @property
    def _calls(self) -> Journal: ...


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
        journal = owner._calls
        if is_within(journal, name, writes, opens):
            try:
                found = method(owner, *args, **kwargs)
            except KernelRefusal as problem:
                raise journal.worded(problem, name) from None
            end(journal)
            return found
        begun = begin(journal)
        try:
            try:
                enter(journal, stage, args, kwargs)
                try:
                    found = method(owner, *args, **kwargs)
                    close(journal)
                except KernelRefusal as problem:
                    raise journal.worded(problem, name) from None
            except BaseException as problem:
                journal.break_off(name, problem, begun)
                raise
        except BaseException:  # an interrupt may come while another error is dealt with, too
            if journal.stage is not _IDLE:
                journal.stage = _CLOSED
            if journal.guarded:
                journal.let_go()
            if journal.errors.pending:
                journal.errors.end()
            raise
        leave(journal, name)
        return found

    return run


def is_within(journal: Journal, name: str, writes: bool, opens: bool) -> bool:
    """Whether a call is made within another one. Refused while hooks are told, and after a call that was interrupted."""
    if journal.guarded:
        journal.claim(name)
    if opens and journal.stage is _CLOSED:
        journal.core.told.clear()
        journal.core.changes.clear()
        journal.untold.clear()
        journal.stage = _IDLE
    if journal.stage is _IDLE:
        return False
    if journal.stage is _TELLING or journal.stage is _CLOSED:
        if journal.stage is _CLOSED:
            journal.let_go()
        journal.refuse(name)
    if writes:
        journal.stage = _WRITING
    return True


def begin(journal: Journal) -> int:
    """An outermost call is about to begin; returns the number of the latest step before it."""
    journal.calls += 1
    return journal.core.journal.steps


def enter(journal: Journal, stage: CallStage, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    """The outermost call begins its work."""
    journal.stage = stage
    if journal.hooks.active:
        request = args[0] if args else kwargs.get("request")
        journal.request = request if isinstance(request, str) else ""


def recheck(journal: Journal) -> None:
    """Check the jobs that took a step with effects once more."""
    if journal.core.judged:
        journal.recheck()


def close(journal: Journal) -> None:
    """The outermost call has made its last write."""
    recheck(journal)
    journal.stage = _IDLE


def end(journal: Journal) -> None:
    """A call within another one has made its last write."""
    recheck(journal)
    if journal.core.told or journal.core.changes:
        journal.end_verb()


def leave(journal: Journal, name: str) -> None:
    """The outermost call is over: tell what is to be told."""
    try:
        if journal.core.told or journal.core.changes:
            journal.end_verb()
        journal.request = ""
        if journal.untold:
            journal.notify()
    finally:
        if journal.guarded:
            journal.let_go()
    if journal.errors.pending:
        journal.errors.end(f"{name} has done its work, and what it returned is lost with this error")
