"""Policy: which content is looked up, loaded and stored, once per engine step, on top of the ledger."""

from tests.oracle.offload._below import BelowIndex, BelowPolicies, BelowStatistics, Demote
from tests.oracle.offload._decided import DecidedSteps
from tests.oracle.offload._groups import FullAttention, Geometry, LocalAttention, Mamba, SlidingWindow
from tests.oracle.offload._host import EventKind, HostEvent, HostTier, TierStatistics
from tests.oracle.offload._scheduler import OffloadScheduler
from tests.oracle.offload.records import (
    Freed,
    FullHit,
    HandedOff,
    Hit,
    LastStep,
    Mode,
    OffloadStatistics,
    Placed,
    Policies,
    Progress,
    Settled,
    Step,
)
from tests.oracle.offload.replacement import Replacement, register

__all__ = [
    "BelowIndex",
    "BelowPolicies",
    "BelowStatistics",
    "DecidedSteps",
    "Demote",
    "EventKind",
    "Freed",
    "FullAttention",
    "FullHit",
    "Geometry",
    "HandedOff",
    "Hit",
    "HostEvent",
    "HostTier",
    "LastStep",
    "LocalAttention",
    "Mamba",
    "Mode",
    "OffloadScheduler",
    "OffloadStatistics",
    "Placed",
    "Policies",
    "Progress",
    "Replacement",
    "Settled",
    "SlidingWindow",
    "Step",
    "TierStatistics",
    "register",
]
