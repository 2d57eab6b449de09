"""The ledger: the one place through which every block, slot, job and request is changed."""

from blocklife.ledger._ledger import Ledger
from blocklife.ledger._limits import Checking, Contract, Limits, Statistics
from blocklife.ledger._snapshot import Snapshot
from blocklife.ledger.jobs import Batch, GroupTransfer, Jobs, Store
from blocklife.ledger.records import (
    Completion,
    Direction,
    JobId,
    Launched,
    LedgerMove,
    LedgerTransition,
    Placement,
    Plan,
    Refusal,
    Result,
    Seal,
    TierTransfer,
    Transfer,
    Worker,
)
from blocklife.ledger.views import block_of

__all__ = [
    "Batch",
    "Checking",
    "Completion",
    "Contract",
    "Direction",
    "GroupTransfer",
    "JobId",
    "Jobs",
    "Launched",
    "Ledger",
    "LedgerMove",
    "LedgerTransition",
    "Limits",
    "Placement",
    "Plan",
    "Refusal",
    "Result",
    "Seal",
    "Snapshot",
    "Statistics",
    "Store",
    "TierTransfer",
    "Transfer",
    "Worker",
    "block_of",
]
