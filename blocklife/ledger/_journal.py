"""What happened, in order: the latest steps of every place, and who is told of them.

Rules of this file:

* A step is noted when it has been written. Listeners hear of it when the verb is over, so that none sees a half-done world.
* A listener cannot undo anything, and cannot call the ledger.
"""

from __future__ import annotations

import functools
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger._ids import Ids
from blocklife.ledger.records import Committed, Refusal
from blocklife.lifecycle import Rows
from blocklife.states import MACHINES

Listener: TypeAlias = Callable[[Committed], None]
RefusalListener: TypeAlias = Callable[[Refusal], None]
Entry: TypeAlias = tuple[int, int, str, str, Ids, Rows, list[int], int, Sequence[int], str]
"""The fields of a `Committed`."""
_NONE: list[int] = []
"""The epochs of what has none, or where nobody listens. It is never written."""

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")


class Journal:
    """The latest steps, as plain tuples: records are built for who asks. *epochs* are those of all blocks.

    Invariant: ``size`` is the number of places in ``entries``, and at most ``most`` once a step has been noted.
    """

    def __init__(self, most: int, epochs: array[int]) -> None:
        self.most = most
        self._epochs = epochs
        self.entries: deque[Entry] = deque()
        self.size = 0
        self.plan = 0
        """The number of the latest plan, which every step is noted with."""
        self.listeners: list[Listener] = []
        self.refusal_listeners: list[RefusalListener] = []
        self.inside = False
        self.telling = False
        self._sequence = 0
        self._untold: deque[Committed] = deque()

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
        """One step has been written; the fields are those of `Committed`."""
        self._sequence = number = self._sequence + 1
        epochs = _NONE
        if self.listeners and machine == "block":
            epochs = [self._epochs[place] for place in ids]
        entry = (number, self.plan, machine, event, ids, rows, epochs, job, jobs, name)
        entries = self.entries
        entries.append(entry)
        size = self.size + len(ids)
        while size > self.most:
            size -= len(entries.popleft()[4])
        self.size = size
        if self.listeners:
            self._untold.append(Committed._make(entry))

    def records(self) -> list[Committed]:
        """The latest steps, oldest first."""
        return [Committed._make(entry) for entry in self.entries]

    def tell(self) -> None:
        """Tell every listener everything that was noted; the first error of one is raised when all have heard it.

        An interrupt (Ctrl-C while a listener runs) goes on then, too, and before any error.
        """
        problem: Exception | None = None
        interrupt: BaseException | None = None
        self.telling = True
        try:
            while self._untold:
                record = self._untold.popleft()
                for listener in self.listeners:
                    try:
                        listener(record)
                    except Exception as raised:
                        problem = problem or raised
                    except BaseException as raised:
                        interrupt = interrupt or raised
        finally:
            self.telling = False
        if (first := interrupt or problem) is not None:
            raise first

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
            for listener in self.refusal_listeners:
                try:
                    listener(refusal)
                except Exception as raised:
                    problem.add_note(f"who listens for refusals has failed: {raised!r}")
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
    """Mark a method that changes the ledger: after its last write, listeners hear of all its steps, or of its refusal."""

    @functools.wraps(method)
    def run(ledger: JournaledT, /, *args: P.args, **kwargs: P.kwargs) -> ReturnT:
        journal = ledger._journal
        if journal.telling:
            raise MisuseError(f"{method.__name__}: a listener cannot call the ledger (note it, and call after the verb)")
        if journal.inside or not journal.listeners:
            return method(ledger, *args, **kwargs)
        journal.inside = True
        try:
            return method(ledger, *args, **kwargs)
        except RefusedError as problem:
            journal.tell_refusal(problem)
            raise
        finally:
            journal.inside = False
            journal.tell()

    return run
