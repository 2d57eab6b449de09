"""Where a place may stand while a copy touches it, by the direction of the copy; read off the table in `blocklife.states`."""

from __future__ import annotations

from blocklife.states import LOAD_READS, LOAD_WRITES, STORE_READS, STORE_WRITES, Block, Slot


def blocks_touched(*, stores: bool) -> frozenset[Block]:
    """Where the blocks of a store, or of a load, may stand."""
    return STORE_READS if stores else LOAD_WRITES


def slots_touched(*, stores: bool) -> frozenset[Slot]:
    """Where the slots of a store, or of a load, may stand."""
    return STORE_WRITES if stores else LOAD_READS
