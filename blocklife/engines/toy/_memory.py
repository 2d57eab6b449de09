"""Block contents that can be checked: every wrong, stale or half-copied block is detected when it is read.

Each word of a block is the block's *fingerprint*, a 64-bit number computed from its key, xored with a constant for the word's
position. So a block of another key, epoch or worker, or a mix of two blocks, differs somewhere. Checking is one gather, one xor
and one compare for all blocks of a step.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Ids = NDArray[np.int64]

WORD_BYTES = 8
SLAB = 1 << 18
"""Words checked at once, so that the scratch memory stays in the cache."""


def mixed(values: NDArray[np.uint64]) -> Words:
    """Mix the bits of numbers (the finalizer of SplitMix64, public domain), so that neighbours share no pattern."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def constants(words: int, worker: int) -> Words:
    """The constant for each word of a block on this worker."""
    return mixed(np.arange(words, dtype=np.uint64) + np.uint64((worker + 1) << 32))


class WorkerMemory(Protocol):
    """The device and the host memory of one worker: a row of words for each block and each host place."""

    @property
    def words(self) -> int:
        """Words of a block."""
        ...

    def write(self, blocks: Ids, fingerprints: Words, start: Ids, stop: Ids) -> None:
        """The forward pass: write words *start* to *stop* of each block. Blocks are distinct."""
        ...

    def corrupt(self, blocks: Ids, fingerprints: Words, words: Ids | None = None) -> Ids:
        """Positions of the blocks with wrong bytes; only the first *words* of each are written, or all of them."""
        ...

    def corrupt_places(self, places: Ids, fingerprints: Words) -> Ids:
        """Positions of the host places with wrong bytes."""
        ...

    def slots(self, blocks_per_chunk: int) -> Bytes:
        """The host memory as ``(num_slots, slot_bytes)``: the same bytes, not a copy."""
        ...


class Memory:
    """A `WorkerMemory` in numpy."""

    def __init__(self, num_blocks: int, num_places: int, block_bytes: int, worker: int) -> None:
        words = block_bytes // WORD_BYTES
        self.words = words
        self.device: Words = np.zeros((num_blocks, words), dtype=np.uint64)
        self.host: Words = np.zeros((num_places, words), dtype=np.uint64)
        self._constants = constants(words, worker)
        self._columns = np.arange(words, dtype=np.int64)

    def write(self, blocks: Ids, fingerprints: Words, start: Ids, stop: Ids) -> None:
        """As `WorkerMemory.write`."""
        whole = (start == 0) & (stop == self.words)
        self.device[blocks[whole]] = fingerprints[whole, None] ^ self._constants
        if not whole.all():
            part = ~whole & (stop > start)
            ids = blocks[part]
            rows = self.device[ids]
            mask = (self._columns >= start[part, None]) & (self._columns < stop[part, None])
            np.copyto(rows, fingerprints[part, None] ^ self._constants, where=mask)
            self.device[ids] = rows

    def corrupt(self, blocks: Ids, fingerprints: Words, words: Ids | None = None) -> Ids:
        """As `WorkerMemory.corrupt`."""
        return self._differing(self.device, blocks, fingerprints, words)

    def corrupt_places(self, places: Ids, fingerprints: Words) -> Ids:
        """As `WorkerMemory.corrupt_places`."""
        return self._differing(self.host, places, fingerprints)

    def slots(self, blocks_per_chunk: int) -> Bytes:
        """As `WorkerMemory.slots`."""
        return self.host.view(np.uint8).reshape(-1, blocks_per_chunk * self.words * WORD_BYTES)

    def _differing(self, memory: Words, places: Ids, fingerprints: Words, words: Ids | None = None) -> Ids:
        found: list[Ids] = []
        slab = max(1, SLAB // self.words)
        for begin in range(0, len(places), slab):
            piece = slice(begin, begin + slab)
            rows = memory[places[piece]]
            rows ^= self._constants
            wrong = rows != fingerprints[piece, None]
            if words is not None:
                wrong &= self._columns < words[piece, None]
            if wrong.any():
                found.append(np.flatnonzero(wrong.any(axis=1)).astype(np.int64) + begin)
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
