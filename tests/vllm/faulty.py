"""A store below the host whose calls fail, for the connector to open by its name: files in a folder, behind faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from blocklife.tiers import FaultyStore, FileStore, StoreFaultRates

ADDRESS = "tests.vllm.faulty:opened"
"""What the option `below` says."""
ROOM = 64 << 20
_stores: list[FaultyStore] = []


@contextmanager
def faulty(folder: str, faults: StoreFaultRates, seed: int) -> Iterator[FaultyStore]:
    """The store that engines open meanwhile."""
    _stores.append(FaultyStore(FileStore(folder, ROOM), faults, seed, slow_s=0.002))
    try:
        yield _stores[-1]
    finally:
        _stores.pop()


def opened() -> FaultyStore:
    """What the connector calls."""
    return _stores[-1]
