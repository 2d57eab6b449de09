"""Jobs as rows: what was reserved for each, who has reported, and how late messages find out that they are late."""

from __future__ import annotations

from collections import deque
from typing import Generic, Literal, TypeAlias, TypeVar

from attrs import define, frozen

from blocklife.errors import CapacityError
from blocklife.ledger.places import Ids, Lives
from blocklife.ledger.records import Direction, JobId
from blocklife.lifecycle import Column
from blocklife.states import Block, Job, JobLife

JobT_co = TypeVar("JobT_co", bound=Job, covariant=True)
BlockT_co = TypeVar("BlockT_co", bound=Block, covariant=True)

Planned: TypeAlias = Literal[Job.PLANNED]
InFlight: TypeAlias = Literal[Job.IN_FLIGHT]
Flushed: TypeAlias = Literal[Job.FLUSHED]
Stale: TypeAlias = Literal[Job.STALE]

Allocated: TypeAlias = Literal[Block.ALLOCATED]
Sealed: TypeAlias = Literal[Block.SEALED]
Cached: TypeAlias = Literal[Block.CACHED]
Loading: TypeAlias = Literal[Block.LOADING]

Storable: TypeAlias = Literal[Block.ALLOCATED, Block.SEALED, Block.CACHED]
"""States from which a life can be chosen as the source of a store."""
Submitted: TypeAlias = Literal[Job.IN_FLIGHT, Job.FLUSHED]
"""States of a job that the workers have and somebody wants."""
Out: TypeAlias = Literal[Job.IN_FLIGHT, Job.FLUSHED, Job.STALE, Job.QUARANTINED]
"""States of a job that the workers have."""

TERMINAL = (Job.DONE, Job.FAILED, Job.CANCELLED)


@frozen
class Jobs(Generic[JobT_co]):
    """A handle on jobs that were all left in one state: mypy knows the state, and the table is asked again at run time."""

    ids: tuple[JobId, ...]


@define(eq=False)
class Batch(Generic[BlockT_co]):
    """A handle on the lives of some blocks of one group, all left in one state. A life that is over is caught by its epoch."""

    lives: Lives
    group: int = 0

    def __len__(self) -> int:
        return len(self.lives)


@define(eq=False)
class JobRow:
    """What the ledger keeps of one job besides its state.

    Invariant: while the job is not terminal, every id of ``lives`` and every slot of a load carry one pin of it.
    """

    row: int
    number: int
    direction: Direction
    owner: str | None
    """The request that it is made for; None for a store that the engine makes on nobody's behalf."""
    lives: Lives
    slots: Ids
    places: Ids
    keys: list[bytes]
    group: int
    group_sizes: tuple[int, ...]
    reported: int = 0
    """Bit per worker that has reported."""
    failed: bool = False
    doubted: bool = False
    """Past its deadline: its places carry one doubt of it."""
    deadline: float | None = None

    def copy(self) -> JobRow:
        """A row that can change without this one changing; what is never changed is shared."""
        return JobRow(
            self.row, self.number, self.direction, self.owner, self.lives, self.slots, self.places, self.keys,
            self.group, self.group_sizes, self.reported, self.failed, self.doubted, self.deadline,
        )  # fmt: skip


@frozen(eq=False)
class JobsSnapshot:
    """All jobs at one moment."""

    state: bytes
    rows: tuple[JobRow, ...]
    last_number: int
    out: tuple[int, ...]
    spare: tuple[int, ...]


class JobTable:
    """All jobs that are out, and the latest that are over.

    Rows are reused in the order in which their jobs ended, so that a terminal job stays known as long as possible: a late
    report for it is a row of its table, and only what is older is unknown.

    Invariant: ``by_number`` holds exactly the jobs that have a row, ``out`` those of them that are not terminal, oldest first.
    """

    def __init__(self, max_jobs: int) -> None:
        self.column = Column(JobLife.table, max_jobs + 1)  # row 0 stands for no job
        self.rows: dict[int, JobRow] = {}
        self.by_number: dict[int, JobRow] = {}
        self.last_number = 0
        self.out: dict[int, JobRow] = {}
        self.max_jobs = max_jobs
        self._spare: deque[int] = deque(range(1, max_jobs + 1))
        self._initial = JobLife.table.index[Job.PLANNED]

    def check_room(self) -> None:
        """Refuse one more job where all rows are out."""
        if not self._spare:
            raise CapacityError(f"all {self.max_jobs} jobs are out; let one land first (max_jobs)")

    @property
    def room(self) -> int:
        """How many more jobs can be made now."""
        return len(self._spare)

    def add(
        self,
        direction: Direction,
        owner: str | None,
        lives: Lives,
        slots: Ids,
        places: Ids,
        keys: list[bytes],
        group: int,
        group_sizes: tuple[int, ...],
    ) -> JobRow:
        """Make a PLANNED job."""
        row = self._spare.popleft()
        if (over := self.rows.get(row)) is not None:
            del self.by_number[over.number]
        self.last_number += 1
        job = JobRow(row, self.last_number, direction, owner, lives, slots, places, keys, group, group_sizes)
        self.rows[row] = job
        self.by_number[job.number] = self.out[job.number] = job
        self.column.state[row] = self._initial
        return job

    def state(self, job: JobRow) -> Job:
        """The state of one job."""
        found = self.column.at(job.row)
        if not isinstance(found, Job):
            raise TypeError(found)
        return found

    def end(self, job: JobRow) -> None:
        """Note that a job has become terminal."""
        del self.out[job.number]
        self._spare.append(job.row)

    @property
    def live(self) -> int:
        """How many jobs are not terminal."""
        return len(self.out)

    def alive(self) -> list[JobRow]:
        """Jobs that are not terminal, oldest first."""
        return list(self.out.values())

    def snapshot(self) -> JobsSnapshot:
        """Everything that `restore` needs."""
        rows = tuple(job.copy() for job in self.by_number.values())
        return JobsSnapshot(self.column.snapshot(), rows, self.last_number, tuple(self.out), tuple(self._spare))

    def restore(self, saved: JobsSnapshot) -> None:
        """Go back to a snapshot."""
        self.column.restore(saved.state)
        self.by_number = {job.number: job.copy() for job in saved.rows}
        self.rows = {job.row: job for job in self.by_number.values()}
        self.out = {number: self.by_number[number] for number in saved.out}
        self.last_number = saved.last_number
        self._spare = deque(saved.spare)
