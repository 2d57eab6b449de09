"""Policy: which content is looked up, loaded and stored, once per engine step, on top of the ledger."""

from blocklife.offload.decided import DecidedSteps
from blocklife.offload.groups import FullAttention, Geometry, Mamba, SlidingWindow
from blocklife.offload.host import EventKind, HostEvent, HostTier, TierStatistics
from blocklife.offload.records import (
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
from blocklife.offload.replacement import Replacement, register
from blocklife.offload.scheduler import OffloadScheduler

__all__ = [
    "DecidedSteps",
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
