"""The ledger: the one place through which every block, slot, job and request is changed."""

from tests.oracle.ledger._ledger import Ledger
from tests.oracle.ledger._limits import Checking, Contract, Limits, Statistics
from tests.oracle.ledger._snapshot import Snapshot
from tests.oracle.ledger.jobs import Batch, Jobs
from tests.oracle.ledger.records import (
    Completion,
    Direction,
    JobId,
    Launched,
    LedgerMove,
    LedgerTransition,
    Plan,
    Refusal,
    Result,
    Seal,
    TierTransfer,
    Transfer,
    Worker,
)
from tests.oracle.ledger.views import block_of

__all__ = [
    "Batch",
    "Checking",
    "Completion",
    "Contract",
    "Direction",
    "JobId",
    "Jobs",
    "Launched",
    "Ledger",
    "LedgerMove",
    "LedgerTransition",
    "Limits",
    "Plan",
    "Refusal",
    "Result",
    "Seal",
    "Snapshot",
    "Statistics",
    "TierTransfer",
    "Transfer",
    "Worker",
    "block_of",
]
