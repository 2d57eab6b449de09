"""Plain records that scheduler, workers and copiers exchange. All can be pickled; none holds a reference into the ledger."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, NewType, Self, overload

import numpy as np
from attrs import field, frozen
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
    """The direction in which a job copies."""

    STORE = "from the device to host slots"
    LOAD = "from host slots to the device"
    DEMOTE = "from host slots to the store below"
    PROMOTE = "from the store below to host slots"

    __hash__ = object.__hash__  # each member is a singleton, so identity is enough

    @property
    def on_device(self) -> bool:
        """Whether the copy touches blocks of the device."""
        return self is Direction.STORE or self is Direction.LOAD

    @property
    def fills_slots(self) -> bool:
        """Whether the copy writes host slots, which are published when it is DONE; otherwise it reads them."""
        return self is Direction.STORE or self is Direction.PROMOTE


ON_DEVICE = (Direction.STORE, Direction.LOAD)
"""The directions that a copier between device and host moves."""


class Result(enum.Enum):
    """How a worker's share of a job ended."""

    OK = "every byte arrived"
    FAILED = "some bytes may not have arrived"


@frozen(order=True)
class JobId:
    """The identity of a job; never reused, neither after it ended nor after a restart."""

    incarnation: int
    """The incarnation (start) of the scheduler process that made the job."""
    number: int
    """Counter of the jobs of that incarnation, from 1."""

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.number}"


@frozen(eq=False)
class Transfer:
    """What a copier moves for one job: ``source[i]`` goes to ``target[i]``.

    Shapes: ``source`` and ``target`` are ``(n,)`` with ``n >= 1``; block ids on the device side, host places on the host
    side. ``group_sizes`` is the number of blocks in each group, in order; they add up to ``n`` (I15).
    """

    job: JobId
    direction: Direction
    source: Ids
    target: Ids
    group_sizes: tuple[int, ...] = field()

    @group_sizes.validator
    def _adds_up(self, _attribute: object, sizes: tuple[int, ...]) -> None:
        count = len(self.source)
        if self.direction not in ON_DEVICE:
            raise MisuseError(f"job {self.job}: a {self.direction.name} touches no block (give a TierTransfer)")
        if count == 0:
            raise MisuseError(f"job {self.job}: a transfer with nothing to copy cannot be built")
        if len(self.target) != count or sum(sizes) != count:
            raise MisuseError(
                f"job {self.job}: {count} sources, {len(self.target)} targets and group sizes {list(sizes)} do not agree"
            )


class Transfers(Sequence[Transfer]):
    """The transfers of one direction in a plan, stored as columns; each `Transfer` is built when it is accessed.

    Job *numbers[n]* moves ``source[cuts[n]:cuts[n + 1]]`` to the same part of ``target``; the same part of ``groups`` has the
    group of each block.
    """

    __slots__ = ("_cuts", "_direction", "_groups", "_incarnation", "_made", "_num_groups", "_numbers", "_source", "_target")

    def __init__(
        self,
        incarnation: int,
        direction: Direction,
        numbers: Sequence[int],
        source: Sequence[int],
        target: Sequence[int],
        cuts: Sequence[int],
        groups: bytes,
        num_groups: int,
    ) -> None:
        self._incarnation, self._direction, self._numbers = incarnation, direction, numbers
        self._source, self._target, self._cuts = source, target, cuts
        self._groups, self._num_groups = groups, num_groups
        self._made: tuple[Transfer, ...] = ()

    def _all(self) -> tuple[Transfer, ...]:
        if not self._made:
            source, target = np.array(self._source, np.int64), np.array(self._target, np.int64)
            made: list[Transfer] = []
            for number, (start, stop) in zip(self._numbers, pairwise(self._cuts), strict=True):
                job, here = JobId(self._incarnation, number), slice(start, stop)
                sizes = tuple([self._groups.count(group, start, stop) for group in range(self._num_groups)])
                made.append(Transfer(job, self._direction, source[here], target[here], sizes))
            self._made = tuple(made)
        return self._made

    def jobs(self) -> list[JobId]:
        """The job of each."""
        return [JobId(self._incarnation, number) for number in self._numbers]

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
        """Pickled as a plain tuple."""
        return tuple, (self._all(),)

    def __repr__(self) -> str:
        return repr(self._all())


@frozen(eq=False)
class TierTransfer:
    """What every worker moves for one job between its host slots and the store below: its own part of each content.

    The content of ``slots[i]`` has the key ``keys[i]``, as the engine names it, in the group ``groups[i]``. ``space`` separates
    content that must never be mixed although its keys are equal: it changes when all content is forgotten.
    Shape: ``slots`` is ``(n,)`` with ``n >= 1``, and so are the others.
    """

    job: JobId
    direction: Direction = field()
    slots: Ids = field()
    groups: bytes
    keys: tuple[bytes, ...]
    space: bytes = b""

    @direction.validator
    def _is_below(self, _attribute: object, direction: Direction) -> None:
        if direction.on_device:
            raise MisuseError(f"job {self.job}: a {direction.name} moves blocks of the device (give a Transfer)")

    def __attrs_post_init__(self) -> None:
        if not len(self.slots) == len(self.groups) == len(self.keys) > 0:
            raise MisuseError(
                f"job {self.job}: {len(self.slots)} slots, {len(self.groups)} groups and {len(self.keys)} keys do not agree"
            )


def _positions(positions: Iterable[int]) -> tuple[int, ...]:
    return tuple(positions)


@frozen
class Completion:
    """One worker's final report on its share of a job."""

    job: JobId
    worker: Worker
    result: Result
    missing: tuple[int, ...] = field(default=(), converter=_positions)
    """Of a promotion: the positions in `TierTransfer.slots` whose content the store did not have whole on this worker. Of a
    demotion: those that the store did not take. With `Result.OK` the others moved."""


@frozen
class Launched:
    """A worker has launched its share of a job: the deadline starts now."""

    job: JobId
    worker: Worker


_NO_JOBS: frozenset[JobId] = frozenset()


def _jobs_of(transfers: Sequence[Transfer]) -> list[JobId]:
    """The jobs of transfers, without building these."""
    return transfers.jobs() if isinstance(transfers, Transfers) else [each.job for each in transfers]


@frozen(eq=False)
class Plan:
    """What the workers do for one engine step, in the order of the engine contract."""

    number: int
    """Counter of the plans of one ledger, from 1."""
    loads: Sequence[Transfer]
    stores: Sequence[Transfer]
    flushes: tuple[JobId, ...]
    """Jobs to wait for before anything else in this step writes; a worker that has not launched them yet does so first.

    Loads of this plan among them are launched after the other waits, and are waited for before the forward pass."""
    promotes: tuple[TierTransfer, ...] = ()
    """Copies from the store below into host slots. They touch no block, and are launched as soon as the plan is executed."""
    demotes: tuple[TierTransfer, ...] = ()
    """Copies from host slots to the store below, likewise."""

    @property
    def within(self) -> frozenset[JobId]:
        """The loads that the plan waits for itself, before its forward pass, which reads what they bring."""
        if not self.loads or not self.flushes:
            return _NO_JOBS
        return frozenset(self.flushes).intersection(_jobs_of(self.loads))

    @property
    def submitted(self) -> tuple[JobId, ...]:
        """The jobs that the workers get with this plan: loads, stores, promotions, and then demotions."""
        below = [each.job for each in (*self.promotes, *self.demotes)]
        return (*_jobs_of(self.loads), *_jobs_of(self.stores), *below)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.loads or self.stores or self.flushes or self.promotes or self.demotes)


@frozen(eq=False)
class Seal:
    """Blocks of one group whose content is now final, with their keys."""

    group: int
    lives: list[int] | Ids
    keys: Sequence[bytes]


@frozen(eq=False)
class Placement:
    """What an engine's own allocator has appended to one table of a request, in this order."""

    group: int = 0
    skipped: int = 0
    """Number of null blocks."""
    taken: Sequence[int] = ()
    """Ids of blocks of a prefix hit, whose content the request now holds."""
    allocated: Sequence[int] = ()
    """Ids of newly allocated blocks."""


@frozen
class LedgerMove(Move):
    """The step of one block, slot, job or request. The place is a block, a slot, a job number, or the row of a request."""

    life: int | None
    """For a block: its life after the step (`block_of` returns the block)."""
    job: JobId | None
    """The job that caused it."""
    request: str
    """The request that it was done for: the one passed to the verb, or the owner of the job; empty for none."""
    group: int | None
    """The group of a block or slot."""


class LedgerTransition(Transition):
    """One committed event of blocks, slots, jobs or requests. Iterating yields a `LedgerMove` for each place.

    ``payload`` is empty: the ledger computes the facts that select a row itself.
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
        """Counter of the transitions of a ledger; `history` and recordings refer to it."""
        self.plan = plan
        """The number of the latest plan."""
        self.epochs = epochs
        """The epoch of each block after the step; empty for other machines, and in the journal."""
        self.job = job
        """The number of the job that caused it; 0 for none, or if ``jobs`` is set."""
        self.jobs = jobs
        """The job number of each place, if several jobs took the step together."""
        self.request = request
        """The request that took the step, or that was passed to the verb; empty for none."""
        self.incarnation = incarnation
        self.groups = groups
        """The group of each block or slot; empty for other machines, and in the journal."""
        self.owners = owners
        """The owner of each job, by job number."""

    @property
    def machine(self) -> str:
        """``block``, ``slot``, ``job`` or ``request``."""
        return self._machine

    def job_of_each(self) -> Sequence[int]:
        """The number of the job that caused the step of each place; 0 for none."""
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
        """The same record for some of the places; *chosen* holds their positions, from 0."""
        some = super().only(chosen)
        some.epochs = [self.epochs[each] for each in chosen] if self.epochs else self.epochs
        some.groups = bytes([self.groups[each] for each in chosen]) if self.groups else self.groups
        some.jobs = [self.jobs[each] for each in chosen] if self.jobs else self.jobs
        return some


class Refusal(NamedTuple):
    """An event that a table has refused, as hooks receive it (`Ledger.on_refusal`). Nothing has changed."""

    plan: int
    machine: str
    place: int
    """As in `LedgerMove`."""
    event: str
    state: str
    """The state of the place; in a batch, of the first place that was refused."""
    name: str = ""
    """The name of the request; empty for other machines."""
