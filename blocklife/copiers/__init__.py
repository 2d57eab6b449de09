"""Copiers move the bytes: one protocol, and an implementation for each kind of memory.

The copier for torch tensors, on CUDA streams or the CPU, is in `blocklife.copiers.torch`, which alone imports torch.
"""

from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.copiers._cpu import CpuCopier, CpuStatistics
    from blocklife.copiers._distributed import (
        ForwardError,
        JointReport,
        Link,
        LinkError,
        Loss,
        Ranks,
        RankStatistics,
        connect,
        serve,
    )
    from blocklife.copiers._executor import Executor, Report
    from blocklife.copiers._faults import FaultRates, FaultStatistics, FaultyCopier
    from blocklife.copiers._protocol import Copier, TierCopier

__all__ = [
    "Copier",
    "CpuCopier",
    "CpuStatistics",
    "Executor",
    "FaultRates",
    "FaultStatistics",
    "FaultyCopier",
    "ForwardError",
    "JointReport",
    "Link",
    "LinkError",
    "Loss",
    "RankStatistics",
    "Ranks",
    "Report",
    "TierCopier",
    "connect",
    "serve",
]

if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "_cpu": "CpuCopier CpuStatistics",
            "_distributed": "ForwardError JointReport Link LinkError Loss RankStatistics Ranks connect serve",
            "_executor": "Executor Report",
            "_faults": "FaultRates FaultStatistics FaultyCopier",
            "_protocol": "Copier TierCopier",
        },
    )
