"""Policy: which content is looked up, loaded and stored, once per engine step, on top of the ledger."""

from blocklife.groups import FullAttention, Geometry, LocalAttention, Mamba, SlidingWindow
from blocklife.offload._below import BelowIndex, BelowPolicies, Demote
from blocklife.offload._engine_pool import EnginePool
from blocklife.offload._host import HostTier, TierStatistics
from blocklife.offload._requests import OffloadRequests
from blocklife.offload._scheduler import OffloadScheduler
from blocklife.offload._tier_events import EventKind, TierEvent
from blocklife.offload.records import BelowStatistics, Hit, OffloadStatistics, Placed, Progress, Settled
from blocklife.offload.replacement import Replacement, register
from blocklife.policies import FullHit, LastStep, Mode, Policies

__all__ = [
    "BelowIndex",
    "BelowPolicies",
    "BelowStatistics",
    "Demote",
    "EnginePool",
    "EventKind",
    "FullAttention",
    "FullHit",
    "Geometry",
    "Hit",
    "HostTier",
    "LastStep",
    "LocalAttention",
    "Mamba",
    "Mode",
    "OffloadRequests",
    "OffloadScheduler",
    "OffloadStatistics",
    "Placed",
    "Policies",
    "Progress",
    "Replacement",
    "Settled",
    "SlidingWindow",
    "TierEvent",
    "TierStatistics",
    "register",
]
