"""Plain records that pass between scheduler, worker and copier: all picklable, none holds a reference into the ledger."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, NewType, Self, overload

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from blocklife.errors import MisuseError
from blocklife.ledger._ids import EPOCH_SHIFT
from blocklife.lifecycle import Move, Rows, Transition
from blocklife.states import MACHINES

Ids = NDArray[np.int64]
"""Places or lives, one per element."""

_NOBODY: Mapping[int, str] = {}

Worker = NewType("Worker", int)
"""The rank of one worker, from 0."""


class Direction(enum.Enum):
    """Which way the bytes of a job go."""

    STORE = "away from the device"
    LOAD = "towards the device"

    __hash__ = object.__hash__  # there is one object of each: nothing has to be read for it


class Result(enum.Enum):
    """How a worker's share of a job ended."""

    OK = "every byte arrived"
    FAILED = "some bytes may not have arrived"


@frozen(order=True)
class JobId:
    """The name of a job, never used again: not after it ended, not after a restart."""

    incarnation: int
    """Which start of the scheduler process made the job."""
    number: int
    """Counts the jobs of that incarnation, from 1."""

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.number}"


@frozen(eq=False)
class Transfer:
    """What a copier moves for one job: ``source[i]`` goes to ``target[i]``.

    Shapes: ``source`` and ``target`` are ``(n,)`` with ``n >= 1``; block ids on the device side, slot places on the host
    side. ``group_sizes`` counts how many of them belong to each group, in order; they add up to ``n`` (I15).
    """

    job: JobId
    direction: Direction
    source: Ids
    target: Ids
    group_sizes: tuple[int, ...] = field()

    @group_sizes.validator
    def _adds_up(self, _attribute: object, sizes: tuple[int, ...]) -> None:
        count = len(self.source)
        if count == 0:
            raise MisuseError(f"job {self.job}: a transfer with nothing to copy cannot be built")
        if len(self.target) != count or sum(sizes) != count:
            raise MisuseError(
                f"job {self.job}: {count} sources, {len(self.target)} targets and group sizes {list(sizes)} do not agree"
            )


class Transfers(Sequence[Transfer]):
    """The transfers of one direction in a plan, each made of columns when somebody looks at it.

    Job *numbers[n]* moves from ``source[cuts[n]:cuts[n + 1]]`` to the same part of ``target``; its blocks are of ``groups[n]``.
    """

    __slots__ = ("_cuts", "_direction", "_groups", "_incarnation", "_made", "_num_groups", "_numbers", "_source", "_target")

    def __init__(
        self,
        incarnation: int,
        direction: Direction,
        numbers: Sequence[int],
        source: Ids,
        target: Ids,
        cuts: Sequence[int],
        groups: Sequence[bytes],
        num_groups: int,
    ) -> None:
        self._incarnation, self._direction, self._numbers = incarnation, direction, numbers
        self._source, self._target, self._cuts = source, target, cuts
        self._groups, self._num_groups = groups, num_groups
        self._made: tuple[Transfer, ...] = ()

    def _all(self) -> tuple[Transfer, ...]:
        if not self._made:
            made, start = list[Transfer](), 0
            for number, stop, groups in zip(self._numbers, self._cuts[1:], self._groups, strict=True):
                job, here = JobId(self._incarnation, number), slice(start, stop)
                sizes = tuple([groups.count(group) for group in range(self._num_groups)])
                made.append(Transfer(job, self._direction, self._source[here], self._target[here], sizes))
                start = stop
            self._made = tuple(made)
        return self._made

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int, /) -> Transfer: ...
    @overload
    def __getitem__(self, at: slice, /) -> tuple[Transfer, ...]: ...
    def __getitem__(self, at: int | slice, /) -> Transfer | tuple[Transfer, ...]:
        return self._all()[at]

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self._all())

    def __reduce__(self) -> tuple[type[tuple[Transfer, ...]], tuple[tuple[Transfer, ...]]]:
        """Who gets a copy in another process gets a plain tuple."""
        return tuple, (self._all(),)

    def __repr__(self) -> str:
        return repr(self._all())


@frozen
class Completion:
    """One worker's final word about its share of a job."""

    job: JobId
    worker: Worker
    result: Result


@frozen
class Launched:
    """A worker began to run its share of a job: its deadline starts now."""

    job: JobId
    worker: Worker


@frozen(eq=False)
class Plan:
    """What the workers do for one engine step, in the order of the engine contract."""

    number: int
    """Counts the plans of one ledger, from 1."""
    loads: Sequence[Transfer]
    stores: Sequence[Transfer]
    flushes: tuple[JobId, ...]
    """Jobs to wait for before anything else of this step writes; launched first where a worker still holds them back."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.loads or self.stores or self.flushes)


@frozen(eq=False)
class Seal:
    """Blocks whose content is now final, with their keys."""

    group: int
    lives: list[int] | Ids
    keys: Sequence[bytes]


@frozen(eq=False)
class Placement:
    """What an engine's own allocator has put behind one table of a request, in this order."""

    group: int
    skipped: int
    """Null blocks."""
    taken: Sequence[int]
    """Ids of blocks whose content is held from now on: a prefix hit."""
    allocated: Sequence[int]
    """Ids of blocks that are handed out."""


@define(eq=False)
class Growth:
    """What an engine's own allocator has put behind many tables: one entry of each list for each of them."""

    names: list[str] = field(factory=list)
    """Whose table it is."""
    groups: list[int] = field(factory=list)
    taken: list[Sequence[int]] = field(factory=list)
    """Blocks of a hit, which are held from now on; they go first. `NULL` leaves a place empty, here and there."""
    fresh: list[Sequence[int]] = field(factory=list)
    """Blocks that are handed out."""

    def note(self, name: str, group: int, fresh: Sequence[int], taken: Sequence[int] = ()) -> None:
        """One more table has grown."""
        self.names.append(name)
        self.groups.append(group)
        self.taken.append(taken)
        self.fresh.append(fresh)


@frozen
class LedgerMove(Move):
    """What one block, slot, job or request did. The place is a block, a slot, the number of a job, or the row of a request."""

    life: int | None
    """Of a block: its life after the step (`block_of` gives the block back)."""
    job: JobId | None
    """The job in whose name it happened."""
    request: str
    """The request that it happened for: the one named to the verb, or the one that the job is made for; empty for none."""
    group: int | None
    """The group of a block or slot."""


class LedgerTransition(Transition):
    """One committed event of blocks, slots, jobs or requests. Iterating gives a `LedgerMove` for each place.

    ``payload`` is empty: what decided about the row are facts that the ledger knows itself.
    """

    __slots__ = ("_machine", "epochs", "groups", "incarnation", "job", "jobs", "owners", "plan", "request", "sequence")

    def __init__(
        self,
        sequence: int,
        plan: int,
        machine: str,
        event: str,
        places: list[int] | Ids,
        rows: Rows,
        epochs: Sequence[int],
        job: int,
        jobs: Sequence[int],
        request: str,
        incarnation: int = 0,
        groups: bytes = b"",
        owners: Mapping[int, str] = _NOBODY,
    ) -> None:
        super().__init__(MACHINES[machine], event, places, rows)
        self._machine = machine
        self.sequence = sequence
        """Counts the transitions of a ledger; `history` and recordings name it."""
        self.plan = plan
        """The number of the latest plan."""
        self.epochs = epochs
        """The epoch of each block afterwards; empty for other machines, and in the journal."""
        self.job = job
        """The number of the job in whose name it happened; 0 for none, and where ``jobs`` says it."""
        self.jobs = jobs
        """The number of the job of each place, where several jobs took one step together."""
        self.request = request
        """The request of a request's own step, and the one that the verb named; empty for none."""
        self.incarnation = incarnation
        self.groups = groups
        """The group of each block or slot; empty for other machines, and in the journal."""
        self.owners = owners
        """The request that each job is made for, by its number."""

    @property
    def machine(self) -> str:
        """``block``, ``slot``, ``job`` or ``request``."""
        return self._machine

    def job_of_each(self) -> Sequence[int]:
        """The number of the job in whose name each place took its step; 0 for none."""
        return self.jobs or [self.job] * len(self.places)

    def __iter__(self) -> Iterator[LedgerMove]:
        for at, (move, job) in enumerate(zip(super().__iter__(), self.job_of_each(), strict=True)):
            yield LedgerMove(
                move.place,
                move.source,
                move.target,
                move.guard,
                self.epochs[at] << EPOCH_SHIFT | move.place if self.epochs else None,
                JobId(self.incarnation, job) if job else None,
                self.owners.get(job, "") if job else self.request,
                self.groups[at] if self.groups else None,
            )

    def only(self, chosen: Sequence[int]) -> Self:
        """The same for some of the places, which *chosen* counts from 0."""
        some = super().only(chosen)
        some.epochs = [self.epochs[each] for each in chosen] if self.epochs else self.epochs
        some.groups = bytes([self.groups[each] for each in chosen]) if self.groups else self.groups
        some.jobs = [self.jobs[each] for each in chosen] if self.jobs else self.jobs
        return some


class Refusal(NamedTuple):
    """An event that a table has refused, as hooks hear of it (`Ledger.on_refusal`). Nothing has changed."""

    plan: int
    machine: str
    place: int
    """As in `LedgerMove`."""
    event: str
    state: str
    """Where the place stands; of a batch it is the first that was refused."""
    name: str = ""
    """What a request is called; empty for other machines."""
