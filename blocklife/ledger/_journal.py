"""The journal: the latest steps in order, and the calls of hooks.

Rules of this file:

* A step is noted after it was written. Hooks run when the verb has finished, so that none sees a partial change.
* A hook cannot undo anything, and cannot call the ledger.
* Without hooks a step costs a tuple; with hooks, additionally a look-up of the rows that they want.
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
"""The epochs of places without any, or if there are no hooks. Never written."""

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")


class Journal:
    """The latest steps, as plain tuples; records are built on request.

    Invariant: ``size`` is the number of places in ``entries``, and at most ``most`` once a step has been noted.
    """

    def __init__(self, most: int, incarnation: int, blocks: Blocks, slots: Slots, jobs: JobTable) -> None:
        self.most = most
        self._incarnation = incarnation
        self._blocks, self._slots, self._jobs = blocks, slots, jobs
        self.entries: deque[Entry] = deque()
        self.size = 0
        self.plan = 0
        """The number of the latest plan, noted with every step."""
        self.hooks: Hooks[LedgerTransition] = Hooks(MACHINES)
        self.refusals: Listeners[Refusal] = Listeners()
        self.inside = False
        self.telling = False
        self.request = ""
        """The request that the verb was called for, if there are hooks."""
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
        """Note a step that was written; the fields are those of `LedgerTransition`."""
        self._sequence = number = self._sequence + 1
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
            self._untold.append((*entry[:6], epochs, job, jobs, name or self.request))

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

    def tell(self) -> None:
        """Call all hooks for everything that was noted; the first error is raised after all have run."""
        untold, self._untold = self._untold, []
        if not untold:
            return
        self.telling = True
        try:
            self.hooks.tell([self._told(entry) for entry in untold])
        finally:
            self.telling = False

    def tell_refusal(self, problem: RefusedError) -> None:
        """Call the hooks for refusals. An error in one is added as a note: the verb did nothing, and its caller learns why.

        Only refusals by places of the ledger are reported: a watcher of slots may have lifecycles of its own.
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
    """An object with verbs."""

    @property
    def _journal(self) -> Journal: ...


JournaledT = TypeVar("JournaledT", bound=Journaled)


def verb(method: Callable[Concatenate[JournaledT, P], ReturnT]) -> Callable[Concatenate[JournaledT, P], ReturnT]:
    """Mark a method that changes the ledger: after its last write, hooks are called for its steps, or for its refusal."""

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
