"""What belongs to one ledger besides its verbs: the kernel, the settings, and who holds pins. Nothing here decides anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from blocklife.core._columns import Core
from blocklife.core._tables import RULES
from blocklife.hook_errors import OnError, errors_of
from blocklife.ledger._edge import NotCopied
from blocklife.ledger._journal import Journal
from blocklife.ledger._limits import Checking, Contract, Limits
from blocklife.ledger._refusals import Refusals
from blocklife.ledger.jobs import DIRECTIONS, JOB_STATES, JobView
from blocklife.ledger.records import Direction, JobId

BLOCK_COLUMNS = ("state", "group", "epoch", "refs", "pins", "writes", "overdue", "job")
SLOT_COLUMNS = ("state", "group", "pins")
"""The columns of places that are part of a snapshot as they are, in its order."""


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
        self.checking = checking
        self.incarnation = incarnation
        self.own_pool = own_pool
        self.made_with = f"{limits}, {contract}, incarnation={incarnation}, own_pool={own_pool}, indexed={indexed}"
        """The settings that a snapshot and the ledger it is restored on must share; a text, for fast comparison and hashing."""
        self.core = Core(
            RULES, limits.num_blocks, limits.num_slots, limits.num_groups, limits.max_jobs, limits.max_requests,
            limits.num_workers, limits.max_journal, contract is Contract.FENCE, indexed, deadline,
        )  # fmt: skip
        self.core.rechecks = checking is not Checking.OFF
        blocks, slots = self.core.blocks.columns, self.core.slots.columns
        self.block_bytes, self.slot_bytes = (
            [memoryview(columns[name]).cast("B") for name in names]
            for columns, names in ((blocks, BLOCK_COLUMNS), (slots, SLOT_COLUMNS))
        )
        """The columns of places, as bytes, that are part of a snapshot."""
        self.holders: dict[str, dict[int, int]] = {}
        """Pins on slots besides those of jobs: lookups that will be used (I7)."""
        self.refusals = Refusals(self.core, self.holders, incarnation)
        self.journal = Journal(self.core, incarnation, self.refusals, errors_of(errors), checking is Checking.STRICT)
        self.violations = 0

    def id_of(self, row: int) -> JobId:
        """The identity of the job in a row."""
        return JobId(self.incarnation, self.core.jobs.number[row])

    def job(self, row: int) -> JobView:
        """The job in a row."""
        return JobView(self.core, row)

    def alive(self) -> list[JobView]:
        """The jobs that are not over, the oldest first."""
        jobs, row = self.core.jobs, self.core.jobs.following[0]
        found: list[JobView] = []
        while row:
            found.append(JobView(self.core, row))
            row = jobs.following[row]
        return found

    def known(self) -> list[JobView]:
        """All jobs that are still known, the oldest first."""
        return [JobView(self.core, row) for row in self.core.jobs.by_number.values()]

    @property
    def tally(self) -> Mapping[str, int]:
        """Counts of late, duplicate and unknown reports, stale references, and violations."""
        core = self.core
        found = {
            "late": core.late, "duplicate": core.duplicate, "unknown": core.unknown, "stale": core.stale,
            "violations": self.violations,
        }  # fmt: skip
        return Counter({name: count for name, count in found.items() if count})

    @property
    def ended(self) -> Mapping[str, int]:
        """Number of jobs, by terminal state."""
        return sum((Counter(self.ended_in(each)) for each in DIRECTIONS), Counter())

    def ended_in(self, direction: Direction) -> Mapping[str, int]:
        """Number of jobs of one direction, by terminal state."""
        counts = self.core.ended[DIRECTIONS.index(direction) :: len(DIRECTIONS)]
        return Counter({state.name: count for state, count in zip(JOB_STATES, counts, strict=False) if count})

    @property
    def moved(self) -> Mapping[str, int]:
        """Number of blocks moved by jobs that are DONE, by direction; of slots, for demotions and promotions."""
        return Counter({each.name: count for each, count in zip(DIRECTIONS, self.core.moved, strict=True) if count})
