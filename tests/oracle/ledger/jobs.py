"""The job table: what each job has reserved, which workers have reported, and which reports are late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Generic, Literal, NoReturn, TypeAlias, TypeVar

from attrs import define, frozen

from tests.oracle.errors import CapacityError, MisuseError
from tests.oracle.ledger._ids import Ids, Lives, joined, listed
from tests.oracle.ledger.records import Direction, JobId
from tests.oracle.lifecycle import Column
from tests.oracle.states import Block, Job, JobLife

JobT_co = TypeVar("JobT_co", bound=Job, covariant=True)
BlockT_co = TypeVar("BlockT_co", bound=Block, covariant=True)

Planned: TypeAlias = Literal[Job.PLANNED]
InFlight: TypeAlias = Literal[Job.IN_FLIGHT]
Awaited: TypeAlias = Literal[Job.AWAITED]
Unwanted: TypeAlias = Literal[Job.UNWANTED]

Allocated: TypeAlias = Literal[Block.ALLOCATED]
Sealed: TypeAlias = Literal[Block.SEALED]
Cached: TypeAlias = Literal[Block.CACHED]
Loading: TypeAlias = Literal[Block.LOADING]

Storable: TypeAlias = Literal[Block.ALLOCATED, Block.SEALED, Block.CACHED]
"""Block states in which a life can become the source of a store."""
Submitted: TypeAlias = Literal[Job.IN_FLIGHT, Job.AWAITED]
"""Job states: the workers have the job, and its result is wanted."""
Out: TypeAlias = Literal[Job.IN_FLIGHT, Job.AWAITED, Job.UNWANTED, Job.QUARANTINED]
"""Job states: the workers have the job."""


@frozen
class Jobs(Generic[JobT_co]):
    """A handle on jobs that were last seen in one state: mypy knows the state, and the table checks again at run time."""

    ids: tuple[JobId, ...]


@define(eq=False)
class Batch(Generic[BlockT_co]):
    """The lives of some blocks of one group, last seen in one state. The epoch of a life tells whether it is over."""

    lives: Lives
    group: int = 0

    def __len__(self) -> int:
        return len(self.lives)


@define(eq=False)
class GroupTransfer(Generic[BlockT_co]):
    """What one job moves in one group.

    A slot holds a chunk of one or several blocks. The group sizes of a job are counted from its transfers, without holes inside
    a chunk, so that they always match (I15).
    """

    blocks: Batch[BlockT_co]
    slots: Ids
    keys: Sequence[bytes]
    """The key of each slot."""
    places: Ids | None = None
    """The host place of each block, in the order of the blocks; None if these are the slots themselves."""
    names: Sequence[bytes] | None = None
    """The key of each block of a load, if a slot holds several; None if these are the keys of the slots."""


@define(eq=False)
class Store:
    """One store to be planned: the request that it is for, and the transfer of each group, in ascending order."""

    owner: str | None
    """The request that it is for; None for a store that belongs to no request."""
    transfers: Sequence[GroupTransfer[Storable]]
    sharers: tuple[str, ...] = ()
    """Further requests that it is for, if one store serves several."""


NONE_MISSING: frozenset[int] = frozenset()
_FEW = 16
"""Jobs with fewer blocks than this are searched linearly."""


@define(eq=False)
class JobColumns:
    """Jobs to be planned, one after the other, as columns.

    Job *n* moves the blocks ``cuts[n]:cuts[n + 1]`` and the slots ``slot_cuts[n]:slot_cuts[n + 1]``; its groups ascend. If a
    slot holds one block, `places` are the slots and `names` the keys, and groups and cuts are the same for blocks and slots.
    """

    owners: list[str | None]
    """The request that each job is for; None for a store that belongs to no request."""
    cuts: list[int]
    lives: Lives
    groups: bytes
    """The group of each block."""
    places: Ids
    """The host place of each block."""
    names: Sequence[bytes | None]
    """The key of each block; None if it is not known (in a store of chunks of several blocks)."""
    slot_cuts: list[int]
    slots: Ids
    slot_groups: bytes
    keys: list[bytes]
    """The key of each slot."""
    sharers: list[tuple[str, ...]]
    """Further requests that each job is for."""
    space: bytes = b""
    """Of jobs between slots and the store below: `TierTransfer.space`."""

    def __len__(self) -> int:
        return len(self.owners)

    @classmethod
    def of_blocks(
        cls,
        owners: list[str | None],
        sharers: list[tuple[str, ...]],
        cuts: list[int],
        lives: Lives,
        groups: bytes,
        slots: Ids,
        keys: list[bytes],
    ) -> JobColumns:
        """Columns of jobs in which each slot holds one block."""
        return cls(owners, cuts, lives, groups, slots, keys, cuts, slots, groups, keys, sharers)

    @classmethod
    def of_slots(cls, slots: Ids, groups: bytes, keys: list[bytes], space: bytes) -> JobColumns:
        """Columns of one job between slots and the store below: it has no owner and touches no block."""
        return cls([None], [0, 0], [], b"", [], [], [0, len(groups)], slots, groups, keys, [()], space)


def gather(stores: Sequence[Store], num_groups: int) -> JobColumns:
    """Build the columns from stores. Refuses empty jobs, groups out of order, and lengths that do not match (I15)."""
    lives: list[Lives] = []
    places: list[Ids] = []
    slots: list[Ids] = []
    keys: list[bytes] = []
    names: list[bytes | None] = []
    groups, slot_groups = bytearray(), bytearray()
    cuts, slot_cuts = [0], [0]
    for store in stores:
        last = -1
        for transfer in store.transfers:
            group, own, chunks, named = transfer.blocks.group, transfer.blocks.lives, transfer.slots, transfer.keys
            where = chunks if transfer.places is None else transfer.places
            known = named if transfer.names is None else transfer.names
            count, num_chunks = len(own), len(chunks)
            if not last < group < num_groups:
                raise MisuseError(f"group {group}: the groups of a job must ascend, and are 0 to {num_groups - 1}")
            if not count or not num_chunks or len(named) != num_chunks or len(where) != count:
                _refuse_transfer(count, num_chunks, len(named), len(where))
            last = group
            lives.append(own)
            slots.append(chunks)
            places.append(where)
            keys += named
            groups += bytes((group,)) * count
            slot_groups += bytes((group,)) * num_chunks
            if len(known) == count:
                names += known
            elif transfer.names is not None:
                raise MisuseError(f"{count} blocks and {len(known)} of their keys do not agree")
            else:
                names += [None] * count
        if last < 0:
            raise MisuseError("a job with nothing to copy cannot be built")
        cuts.append(len(groups))
        slot_cuts.append(len(slot_groups))
    return JobColumns(
        [store.owner for store in stores],
        cuts,
        joined(lives),
        bytes(groups),
        joined(places),
        names,
        slot_cuts,
        joined(slots),
        bytes(slot_groups),
        keys,
        [store.sharers for store in stores],
    )


def sizes_of(groups: bytes, num_groups: int) -> tuple[int, ...]:
    """The number of entries of each group."""
    return tuple([groups.count(group) for group in range(num_groups)])


def jobs_of_each(numbers: Sequence[int], cuts: Sequence[int]) -> tuple[int, Sequence[int]]:
    """The job of each place in a step of several jobs, as `Journal.note` takes it; job *n* has the places up to its cut."""
    if len(numbers) == 1:
        return numbers[0], ()
    jobs: list[int] = []
    for at, number in enumerate(numbers):
        jobs += [number] * (cuts[at + 1] - cuts[at])
    return 0, jobs


def _known(names: Sequence[bytes | None]) -> list[bytes] | None:
    """The keys of the blocks of one job; None if one is not known."""
    found = [name for name in names if name is not None]
    return found if len(found) == len(names) else None


def _refuse_transfer(count: int, num_chunks: int, num_keys: int, num_places: int) -> NoReturn:
    """Raise the error that says which lengths of a transfer do not match (I15)."""
    if not count:
        raise MisuseError("a job with nothing to copy cannot be built")
    if not num_chunks:
        raise MisuseError("a job without a slot cannot be built: reserve or name the slots of its content")
    if num_keys != num_chunks:
        raise MisuseError(f"{num_chunks} slots and {num_keys} keys do not agree")
    raise MisuseError(f"{count} blocks and {num_places} host places do not agree; each block has a place of its own")


class JobRow:
    """What the ledger keeps about one job besides its state.

    ``ids`` is the block of each life, ``places`` the host place of each block, ``groups`` its group, ``names`` its key, or None
    if one is not known (a store of chunks of several blocks); ``slots``, ``slot_groups`` and ``keys`` are the same for slots.
    ``sharers`` are requests besides the owner that a store is for. ``reported`` has a bit for each worker that has reported.
    ``expired``: the job is past its deadline, and one pin on each of its places is overdue. Jobs between slots and the store
    below have ``space`` (`TierTransfer.space`) and ``missing``, the slots whose content some worker did not move.

    Invariant: while the job is not terminal, every block of ``ids`` and every slot that it reads carry one pin of it.
    """

    __slots__ = (
        "_named", "deadline", "direction", "expired", "failed", "groups", "ids", "keys", "lives", "missing", "names",
        "num_groups", "number", "owner", "places", "reported", "row", "sharers", "slot_groups", "slots", "space",
    )  # fmt: skip

    def __init__(
        self,
        row: int,
        number: int,
        direction: Direction,
        owner: str | None,
        lives: Lives,
        ids: Ids,
        slots: Ids,
        places: Ids,
        keys: Sequence[bytes],
        names: Sequence[bytes] | None,
        groups: bytes,
        slot_groups: bytes,
        num_groups: int,
        reported: int = 0,
        failed: bool = False,
        expired: bool = False,
        deadline: float | None = None,
        sharers: tuple[str, ...] = (),
        space: bytes = b"",
        missing: frozenset[int] = NONE_MISSING,
    ) -> None:
        self.row, self.number, self.direction, self.owner = row, number, direction, owner
        self.lives, self.ids, self.slots, self.places = lives, ids, slots, places
        self.keys, self.names, self.groups, self.slot_groups = keys, names, groups, slot_groups
        self.num_groups, self.sharers = num_groups, sharers
        self.reported, self.failed, self.expired, self.deadline = reported, failed, expired, deadline
        self.space, self.missing = space, missing
        self._named: dict[int, bytes] | None = None

    def name_of(self, life: int) -> bytes | None:
        """The key under which the job moves a block; None if it is not known, or the job does not move this block."""
        if self.names is None:
            return None
        if len(self.names) < _FEW:
            for own, name in zip(self.lives, self.names, strict=True):
                if own == life:
                    return name
            return None
        if self._named is None:
            self._named = dict(zip(listed(self.lives), self.names, strict=True))
        return self._named.get(life)

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Blocks of each group."""
        return sizes_of(self.groups, self.num_groups)

    @property
    def slot_sizes(self) -> tuple[int, ...]:
        """Slots of each group."""
        return sizes_of(self.slot_groups, self.num_groups)

    def contents(self) -> Iterator[tuple[int, Ids, Sequence[bytes]]]:
        """Each group of the job, with its slots and their keys."""
        start = 0
        for group, size in enumerate(self.slot_sizes):
            if size:
                yield group, self.slots[start : start + size], self.keys[start : start + size]
                start += size

    def blocks_by_group(self) -> Iterator[tuple[int, slice]]:
        """Each group of the job, with the positions of its blocks in ``lives``."""
        start = 0
        for group, size in enumerate(self.group_sizes):
            if size:
                yield group, slice(start, start + size)
                start += size


class JobTable:
    """All jobs that are not over, and the latest that are.

    Rows are reused in the order in which their jobs ended, so that a terminal job stays known as long as possible. A late
    report for a known job is a row of the job's table; only older jobs are unknown.

    Invariant: ``by_number`` holds exactly the jobs that have a row, ``out`` those of them that are not terminal, oldest first;
    ``planned`` those of ``out`` that are PLANNED, and ``owned`` files those of ``out`` under the requests that they serve.
    """

    def __init__(self, max_jobs: int) -> None:
        self.column = Column(JobLife.table, max_jobs + 1)  # row 0 stands for no job
        self.rows: dict[int, JobRow] = {}
        self.by_number: dict[int, JobRow] = {}
        self.last_number = 0
        self.out: dict[int, JobRow] = {}
        self.planned: dict[int, JobRow] = {}
        self.owned: dict[str, dict[int, JobRow]] = {}
        self.max_jobs = max_jobs
        self._spare: deque[int] = deque(range(1, max_jobs + 1))
        self._state, self._initial = self.column.state, JobLife.table.index[Job.PLANNED]

    def check_room(self, count: int = 1) -> None:
        """Refuse if there are no rows for *count* more jobs."""
        if len(self._spare) < count:
            raise CapacityError(
                f"all {self.max_jobs} jobs are out; let one land first (max_jobs)"
                if not self._spare
                else f"{count} jobs wanted, {len(self._spare)} of {self.max_jobs} can be made; let some land first (max_jobs)"
            )

    @property
    def room(self) -> int:
        """The number of jobs that can be added now."""
        return len(self._spare)

    def add(self, direction: Direction, columns: JobColumns, ids: Ids, num_groups: int) -> list[JobRow]:
        """Add PLANNED jobs, one for each span of the columns; *ids* are the blocks of the lives."""
        made: list[JobRow] = []
        sharers = columns.sharers
        alike = columns.slot_groups is columns.groups and columns.names is columns.keys
        names: Sequence[bytes] | None
        for at, owner in enumerate(columns.owners):
            row = self._spare.popleft()
            if (over := self.rows.get(row)) is not None:
                del self.by_number[over.number]
            self.last_number = number = self.last_number + 1
            here = slice(columns.cuts[at], columns.cuts[at + 1])
            there = here if alike else slice(columns.slot_cuts[at], columns.slot_cuts[at + 1])
            groups, keys, slots = columns.groups[here], columns.keys[there], columns.slots[there]
            if alike:
                places, names, slot_groups = slots, keys, groups
            else:
                places, slot_groups = columns.places[here], columns.slot_groups[there]
                names = _known(columns.names[here])
            job = JobRow(
                row, number, direction, owner, columns.lives[here], ids[here], slots, places, keys, names, groups, slot_groups,
                num_groups, sharers=sharers[at], space=columns.space,
            )  # fmt: skip
            self.rows[row] = self.by_number[number] = self.out[number] = self.planned[number] = job
            self.own(job)
            self._state[row] = self._initial
            made.append(job)
        return made

    def own(self, job: JobRow) -> None:
        """File a job under each request that it is for."""
        for owner in (job.owner, *job.sharers):
            if owner is not None:
                self.owned.setdefault(owner, {})[job.number] = job

    def state(self, job: JobRow) -> Job:
        """The state of one job."""
        found = self.column.at(job.row)
        if not isinstance(found, Job):
            raise TypeError(found)
        return found

    def end(self, job: JobRow) -> None:
        """Note that a job has become terminal."""
        del self.out[job.number]
        self.planned.pop(job.number, None)
        self._spare.append(job.row)
        for owner in (job.owner, *job.sharers):
            if owner is not None and (filed := self.owned.get(owner)) is not None:
                filed.pop(job.number, None)
                if not filed:
                    del self.owned[owner]

    @property
    def live(self) -> int:
        """The number of jobs that are not terminal."""
        return len(self.out)

    def alive(self) -> list[JobRow]:
        """Jobs that are not terminal, oldest first."""
        return list(self.out.values())
