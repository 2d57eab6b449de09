"""Policy: which content is looked up, loaded and stored, once per engine step, on top of the ledger."""

from blocklife.offload.groups import FullAttention, Geometry, Mamba, SlidingWindow
from blocklife.offload.host import EventKind, HostEvent, HostTier, TierStatistics
from blocklife.offload.records import (
    FullHit,
    Hit,
    LastStep,
    Mode,
    OffloadStatistics,
    Placed,
    Policies,
    Progress,
    Settled,
)
from blocklife.offload.replacement import Replacement, register
from blocklife.offload.scheduler import OffloadScheduler

__all__ = [
    "EventKind",
    "FullAttention",
    "FullHit",
    "Geometry",
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
    "TierStatistics",
    "register",
]
