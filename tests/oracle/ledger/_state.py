"""The state of a ledger: its columns, jobs, requests and counters. Nothing here decides or checks anything."""

from __future__ import annotations

from array import array
from collections import Counter, deque

from tests.oracle.hook_errors import OnError, errors_of
from tests.oracle.ledger._edge import NotCopied
from tests.oracle.ledger._journal import Journal
from tests.oracle.ledger._limits import Checking, Contract, Limits
from tests.oracle.ledger._places import Blocks, Slots
from tests.oracle.ledger._refusals import Refusals
from tests.oracle.ledger.jobs import JobRow, JobTable
from tests.oracle.ledger.records import JobId
from tests.oracle.lifecycle import Column
from tests.oracle.states import RequestLife


class RequestRow:
    """What the ledger keeps about one request besides its state.

    Invariant: ``tables[group]`` has the lives that the request holds, in order, each counted once in the block's refs; `NULL`
    stands for a position outside the window. ``load`` is the number of its live load, 0 for none.
    """

    __slots__ = ("load", "name", "row", "tables")

    def __init__(self, row: int, name: str, tables: list[array[int]], load: int = 0) -> None:
        self.row, self.name, self.tables, self.load = row, name, tables, load


class LedgerData(NotCopied):
    """Everything that the verbs of one ledger read and write. Its parts are never replaced by other objects."""

    def __init__(
        self,
        limits: Limits,
        *,
        contract: Contract,
        checking: Checking,
        incarnation: int,
        deadline: float,
        own_pool: bool,
        indexed: bool,
        errors: OnError,
    ) -> None:
        self.limits = limits
        self.contract = contract
        self.fence = contract is Contract.FENCE
        self.checking = checking
        self.rechecks = checking is not Checking.OFF
        self.incarnation = incarnation
        self.deadline = deadline
        self.own_pool = own_pool
        self.made_with = f"{limits}, {contract}, incarnation={incarnation}, own_pool={own_pool}, indexed={indexed}"
        """The settings that a snapshot and the ledger it is restored on must share; a text, for fast comparison and hashing."""
        self.wide_columns: tuple[memoryview, ...] = ()
        """The columns with more than one byte per place, and of counts, as bytes; set at the first restore."""
        self.blocks = Blocks(limits.num_blocks, limits.num_groups, indexed=indexed)
        self.slots = Slots(limits.num_slots, limits.num_groups)
        self.jobs = JobTable(limits.max_jobs)
        self.requests: dict[str, RequestRow] = {}
        self.request_column = Column(RequestLife.table, limits.max_requests)
        self.spare_requests: deque[int] = deque(range(limits.max_requests))
        self.holders: dict[str, Counter[int]] = {}
        """Pins on slots besides those of jobs: lookups that will be used (I7)."""
        self.refusals = Refusals(self.jobs, self.requests, self.holders, incarnation)
        self.blocks.refusals = self.slots.refusals = self.refusals
        self.to_flush: dict[int, None] = {}
        """The jobs that the next plan waits for."""
        self.waiting: dict[int, tuple[int, ...]] = {}
        """Outstanding plans, oldest first, with the jobs that each waits for."""
        self.deadlines: list[tuple[float, int]] = []
        """A heap of deadlines; jobs that are over stay in it until their time comes."""
        self.journal = Journal(limits.max_journal, incarnation, self.blocks, self.slots, self.jobs, errors_of(errors))
        self.verdicts = 0
        """How often a job became terminal or expired. While it is unchanged, polling for a copy can be skipped."""
        self.tally: Counter[str] = Counter()
        """Counts of late, duplicate and unknown reports, stale references, and violations."""
        self.flushes: Counter[str] = Counter()
        """Number of flushes (waits for a copy), by cause."""
        self.ended: Counter[str] = Counter()
        """Number of jobs, by terminal state."""
        self.moved: Counter[str] = Counter()
        """Number of blocks moved by jobs that are DONE, by direction; of slots, for demotions and promotions."""

    @property
    def plan_number(self) -> int:
        """The number of the latest plan."""
        return self.journal.plan

    @plan_number.setter
    def plan_number(self, number: int) -> None:
        self.journal.plan = number

    def id_of(self, job: JobRow) -> JobId:
        """The identity of a job."""
        return JobId(self.incarnation, job.number)
