"""Policy: which content is looked up, loaded and stored, once per engine step, on top of the ledger."""

from blocklife.offload.host import HostTier
from blocklife.offload.scheduler import OffloadScheduler, OffloadStatistics

__all__ = ["HostTier", "OffloadScheduler", "OffloadStatistics"]
