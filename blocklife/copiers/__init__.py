"""Copiers move the bytes: one protocol, and an implementation for each kind of memory.

The copier for torch tensors, on CUDA streams or the CPU, is in `blocklife.copiers.torch`, which alone imports torch.
"""

from blocklife._doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    {
        "_cpu": "CpuCopier CpuStatistics",
        "_distributed": "ForwardError JointReport Link LinkError Loss RankStatistics Ranks connect serve",
        "_executor": "Executor Report",
        "_faults": "FaultRates FaultStatistics FaultyCopier",
        "_movers": "MoverTable read_movers",
        "_protocol": "Copier TierCopier",
        "_sharing": "Sharing",
    },
)
