"""The input of the copying kernel: runs cut into pieces, in a table that the device reads from the host's memory.

*Rules of this file.* No Python loop over runs. A table is not reused while a kernel may still read it; an event tells when
that is over. The host waits for that event only if `TABLES_MAX` tables are in use.

*Theory.* A **piece** is one row of a kernel's tile: a limited number of bytes of one run. Tiles have the same number of bytes
whatever the page size of a cache, so that as many bytes are in flight for small pages as for large ones. A table has three
columns of numbers (source, target, number of bytes), in page-locked memory where there is a device.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from attrs import define
from numpy.typing import NDArray

from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.ledger.records import Ids

WORDS = (16, 8, 4, 1)
"""Sizes of the word that a thread copies at once, in bytes."""

TILE_BYTES = {16: 16_384, 8: 16_384, 4: 16_384, 1: 4_096}
"""Bytes that a program copies at once, by word size: never more than sixteen words per thread."""

PIECE_BYTES_MIN = 128
"""The smallest width of a piece: what the memory of a device moves at once."""

TABLES_MAX = 64
"""How many tables may be in use on one stream before the host waits for the oldest."""

_TABLE_NUMBERS_MIN = 3 * 1_024
"""The smallest capacity of a table, in numbers."""

_NAP_S = 20e-6
"""How long the host sleeps between two queries while it waits for a table, in seconds."""


def word_bytes(numbers: Iterable[int]) -> int:
    """The widest word that divides all these addresses and lengths."""
    bits = 0
    for number in numbers:
        bits |= number
    return next(word for word in WORDS if bits % word == 0)


def word_of_layout(layout: CopyLayout) -> int:
    """The widest word that divides every run that a layout can make."""
    tensors = (*layout.cache.layers, layout.rows)
    pages = (size for group in layout.cache.page_bytes for size in group)
    sizes = (*pages, *layout.cache.columns, layout.cache.row_bytes, *layout.cache.pitches)
    return word_bytes([*(tensor.data_ptr() for tensor in tensors), *sizes])


def word_of_pages(pages: Pages) -> int:
    """The widest word that divides these runs."""
    return word_bytes(int(np.bitwise_or.reduce(column)) for column in (pages.source, pages.target, pages.nbytes))


def piece_of_layout(layout: CopyLayout, word: int) -> int:
    """The smallest power of two that holds the smallest page, at most a tile: one piece per page, with little padding."""
    smallest = min(size for group in layout.cache.page_bytes for size in group)
    return int(min(max(PIECE_BYTES_MIN, 1 << (smallest - 1).bit_length()), TILE_BYTES[word]))


def cut(pages: Pages, piece: int) -> tuple[Ids, Ids, Ids]:
    """All runs as pieces of at most *piece* bytes: their sources, targets and lengths."""
    pieces = pages.cut(piece)
    return pieces.source, pieces.target, pieces.nbytes


class TableEvent(Protocol):
    """The point on the current stream after which nothing reads a table any more."""

    def query(self) -> bool:
        """Whether it was passed."""
        ...

    def record(self) -> None:
        """Mark the end of everything queued on the current stream so far."""
        ...


class _Passed:
    """The event where there are no streams: everything has run when a call returns."""

    def query(self) -> bool:
        return True

    def record(self) -> None: ...


@define(eq=False)
class _CopyTable:
    """One table. Invariant: free exactly if `event`, recorded after its readers, has passed."""

    memory: torch.Tensor
    numbers: NDArray[np.int64]
    """`memory` as a numpy array."""
    event: TableEvent


class CopyTables:
    """Tables of one device, for each of its streams. *new_event* makes their events; None for torch's own."""

    def __init__(self, device: torch.device, new_event: Callable[[], TableEvent] | None = None) -> None:
        self._device = device
        self._new_event = new_event or (torch.cuda.Event if device.type == "cuda" else _Passed)
        # Invariant: each stream's tables are in the order of their use, so that the first is free before all others. A table
        # whose readers may never end is in `_lost` and is not reused: a kernel that reads other numbers would write anywhere.
        self._tables: defaultdict[Hashable, deque[_CopyTable]] = defaultdict(deque)
        self._lost: list[_CopyTable] = []

    @contextmanager
    def written(self, stream: Hashable, columns: tuple[Ids, ...]) -> Iterator[torch.Tensor]:
        """A table with these columns, one after the other. Queue its readers inside the ``with`` block.

        *stream* names the current stream.
        """
        length = len(columns[0])
        table = self._table(stream, length * len(columns))
        self._lost.append(table)
        for number, column in enumerate(columns):
            table.numbers[number * length : (number + 1) * length] = column
        yield table.memory[: length * len(columns)]
        table.event.record()
        self._lost.remove(table)
        self._tables[stream].append(table)

    def _table(self, stream: Hashable, count: int) -> _CopyTable:
        tables = self._tables[stream]
        if tables and (tables[0].event.query() or len(tables) >= TABLES_MAX):
            while not tables[0].event.query():
                time.sleep(_NAP_S)
            table = tables.popleft()
            if len(table.numbers) >= count:
                return table  # a smaller one is dropped: it is free, and such tables are too small now
        return self._make(count)

    def _make(self, count: int) -> _CopyTable:
        room = 1 << (max(count, _TABLE_NUMBERS_MIN) - 1).bit_length()
        memory = torch.empty(room, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        return _CopyTable(memory, memory.numpy(), self._new_event())
