"""Where a place may stand while a copy touches it: the one table that every comparison of the two truths uses."""

from __future__ import annotations

from blocklife.states import Block, Slot

STORE_READS = frozenset({Block.IN_FLIGHT, Block.FLUSHED, Block.LOADING, Block.STALE, Block.QUARANTINED})
"""Where a block may stand while a store reads it. Behind a fence a load may be planned already; it runs after the wait."""
LOAD_WRITES = frozenset({Block.LOADING, Block.STALE, Block.QUARANTINED})
STORE_WRITES = frozenset({Slot.WRITING, Slot.QUARANTINED})
LOAD_READS = frozenset({Slot.READY, Slot.STALE})


def blocks_touched(*, stores: bool) -> frozenset[Block]:
    """Where the blocks of a store, or of a load, may stand."""
    return STORE_READS if stores else LOAD_WRITES


def slots_touched(*, stores: bool) -> frozenset[Slot]:
    """Where the slots of a store, or of a load, may stand."""
    return STORE_WRITES if stores else LOAD_READS
