"""What happened, in order: the latest steps of every place, and the hooks that are told of them.

Rules of this file:

* A step is noted when it has been written. Hooks run when the verb is over, so that none sees a half-done world.
* A hook cannot undo anything, and cannot call the ledger.
* Where no hook listens a step costs a tuple; where one does, a look at the rows that it wants.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger._ids import Ids
from blocklife.ledger._places import Blocks, Slots
from blocklife.ledger.jobs import JobTable
from blocklife.ledger.records import LedgerTransition, Refusal
from blocklife.lifecycle import Hooks, Listeners, Rows
from blocklife.states import MACHINES

Entry: TypeAlias = tuple[int, int, str, str, Ids, Rows, list[int], int, Sequence[int], str]
"""The first fields of a `LedgerTransition`."""
_NONE: list[int] = []
"""The epochs of what has none, or where nobody listens. It is never written."""

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")


class Journal:
    """The latest steps, as plain tuples: records are built for who asks.

    Invariant: ``size`` is the number of places in ``entries``, and at most ``most`` once a step has been noted.
    """

    def __init__(self, most: int, incarnation: int, blocks: Blocks, slots: Slots, jobs: JobTable) -> None:
        self.most = most
        self._incarnation = incarnation
        self._blocks, self._slots, self._jobs = blocks, slots, jobs
        self.entries: deque[Entry] = deque()
        self.size = 0
        self.plan = 0
        """The number of the latest plan, which every step is noted with."""
        self.hooks: Hooks[LedgerTransition] = Hooks(MACHINES)
        self.refusals: Listeners[Refusal] = Listeners()
        self.inside = False
        self.telling = False
        self.request = ""
        """The request that the verb was called for, while a hook listens."""
        self._sequence = 0
        self._untold: list[Entry] = []

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
        """One step has been written; the fields are those of `LedgerTransition`."""
        self._sequence = number = self._sequence + 1
        epochs, heard = _NONE, False
        if self.hooks.active and self.hooks.hears(machine, rows):
            heard, name = True, name or self.request
            if machine == "block":
                epoch = self._blocks.epoch
                epochs = [epoch[place] for place in ids]
        entry = (number, self.plan, machine, event, ids, rows, epochs, job, jobs, name)
        entries = self.entries
        entries.append(entry)
        size = self.size + len(ids)
        while size > self.most:
            size -= len(entries.popleft()[4])
        self.size = size
        if heard:
            self._untold.append(entry)

    def records(self) -> list[LedgerTransition]:
        """The latest steps, oldest first."""
        return [LedgerTransition(*entry, self._incarnation) for entry in self.entries]

    def _told(self, entry: Entry) -> LedgerTransition:
        """What hooks get: the entry with what the ledger knows of its places now that the verb is over."""
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

    def tell(self) -> None:
        """Tell all hooks everything that was noted; the first error of one is raised when all have heard it."""
        untold, self._untold = self._untold, []
        if not untold:
            return
        self.telling = True
        try:
            self.hooks.tell([self._told(entry) for entry in untold])
        finally:
            self.telling = False

    def tell_refusal(self, problem: RefusedError) -> None:
        """Tell who listens for refusals. An error of theirs becomes a note: the verb did nothing, and its caller hears why.

        What is about no place of a ledger is not told: a watcher of slots may have lifecycles of its own.
        """
        machine, _, name = problem.thing.partition(" ")
        if machine not in MACHINES or problem.place is None:
            return
        refusal = Refusal(self.plan, machine, problem.place, problem.event, problem.state)
        if machine == "request":
            refusal = refusal._replace(name=name)
        interrupt: BaseException | None = None
        self.telling = True
        try:
            for subscription in self.refusals:
                try:
                    subscription.hear(refusal)
                except Exception as raised:
                    problem.add_note(f"a hook on refusals has failed: {raised!r}")
                except BaseException as raised:
                    interrupt = interrupt or raised
        finally:
            self.telling = False
        if interrupt is not None:
            raise interrupt


class Journaled(Protocol):
    """Whatever has verbs."""

    @property
    def _journal(self) -> Journal: ...


JournaledT = TypeVar("JournaledT", bound=Journaled)


def verb(method: Callable[Concatenate[JournaledT, P], ReturnT]) -> Callable[Concatenate[JournaledT, P], ReturnT]:
    """Mark a method that changes the ledger: after its last write, hooks hear of all its steps, or of its refusal."""

    @functools.wraps(method)
    def run(ledger: JournaledT, /, *args: P.args, **kwargs: P.kwargs) -> ReturnT:
        journal = ledger._journal
        if journal.telling:
            raise MisuseError(f"{method.__name__}: a hook cannot call the ledger (note it, and call after the verb)")
        if journal.inside or not (journal.hooks.active or journal.refusals.active):
            return method(ledger, *args, **kwargs)
        journal.inside = True
        request = args[0] if args else kwargs.get("request")
        journal.request = request if isinstance(request, str) else ""
        try:
            return method(ledger, *args, **kwargs)
        except RefusedError as problem:
            journal.tell_refusal(problem)
            raise
        finally:
            journal.inside = False
            journal.request = ""
            journal.tell()

    return run
