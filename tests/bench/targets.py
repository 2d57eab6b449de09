"""Where the bars are, for the core as it is read and for the same source compiled.

Nobody is failed by a bar: it stands beside a figure, and a person reads both. A bar that is a plain number is one of the ratio
to the peer in the same run. The core is made to run compiled, so most bars are of that; interpreted it is held against the
interpreted core as it was before the kernel (`tests.bench.before`).
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Bar:
    """One bar, in words; without a text there is none for that core."""

    compiled: str
    interpreted: str = ""

    def __str__(self) -> str:
        if self.interpreted == self.compiled:
            return self.compiled
        return "; ".join(part for part in (self.interpreted, f"compiled: {self.compiled}") if part)


def _same(text: str) -> Bar:
    return Bar(text, text)


ONE_VERB = Bar("at most 600 ns")
"""On one life, called by name."""
BULK = {1_000: Bar("at most 60 ns"), 10_000: Bar("at most 25 ns")}
"""A life, by the size of the batch."""
ONE_STORE = Bar("at most 8,000 ns")
STEP = {64: Bar("at most 1.3"), 256: Bar("at most 1.0"), 1_024: Bar("at most 0.8")}
"""A step of the offload scheduler, of plain lists that look only at what changes, by the number of running requests."""
FEATURE = _same("at most 1.2")
"""The same with a feature, of the step without."""
LOAD = {4: Bar("at most 10"), 64: Bar("at most 6"), 512: Bar("at most 5")}
"""A load, of plain dictionaries, by the blocks of a prompt in each group."""
TO_OFFLOADING = {64: Bar("at most 0.15"), 256: Bar("at most 0.10"), 1_024: Bar("at most 0.08")}
"""The connector's hooks, of those of vLLM's OffloadingConnector."""
TO_SIMPLE = {64: Bar("at most 0.40"), 256: Bar("at most 0.32"), 1_024: Bar("at most 0.22")}
"""The same of SimpleCPUOffload."""
BLOCK_BYTES = _same("at most 32 bytes, all columns")
SLOT_BYTES = _same("at most 32 bytes, all columns")
STARTUP = _same("at most 0.15 s")

STEP_BEFORE = {
    64: Bar("at most 0.11", "at most 1.0"),
    256: Bar("at most 0.12", "at most 1.0"),
    1_024: Bar("at most 0.14", "at most 1.2"),
}
"""A step of the offload scheduler, of the same step before the kernel."""
EXPLORING_BEFORE = Bar("at least 5")
"""States a second, of those before the kernel."""
NO_MORE = _same("at most 1.0")
"""Of the same before the kernel."""
