"""What is to come out of the rebuilt core: where the bars are, for the core as it is read and for the same source compiled.

Nobody is failed by a bar: it stands beside a figure, and a person reads both. Ratios are to the peer in the same run.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Bar:
    """One bar, in words."""

    interpreted: str
    compiled: str = ""
    """Empty where it is the same code."""

    def __str__(self) -> str:
        return f"{self.interpreted}; compiled: {self.compiled}" if self.compiled else self.interpreted


ONE_VERB = Bar("at most 3,000 ns", "300 ns")
BULK = {1_000: Bar("no more than before the rebuild", "60 ns"), 10_000: Bar("no more than before the rebuild", "25 ns")}
"""A life, by the size of the batch."""
ONE_STORE = Bar("at most 40,000 ns", "10,000 ns")
STEP = {64: Bar("at most 130 us", "25 us"), 256: Bar("at most 420 us", "90 us"), 1_024: Bar("at most 1,800 us", "500 us")}
"""A step of the offload scheduler, by the number of running requests."""
TO_OFFLOADING = {64: Bar("0.40", "0.10"), 256: Bar("0.25", "0.08"), 1_024: Bar("0.17", "0.08")}
"""The connector's hooks, as a share of those of vLLM's OffloadingConnector."""
TO_SIMPLE = {64: Bar("1.0", "0.30"), 256: Bar("0.7", "0.25"), 1_024: Bar("0.5", "0.25")}
"""The same of SimpleCPUOffload."""
BLOCK_BYTES = Bar("at most 32 bytes, all columns", "the same")
SLOT_BYTES = Bar("at most 40 bytes, all columns", "the same")
EXPLORING = Bar("3 x the rate before the rebuild", "10 x")
STARTUP = Bar("at most 0.15 s")
