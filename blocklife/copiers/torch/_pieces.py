"""What a copying kernel is told: runs cut into pieces, in a table on the device.

*Rules of this file.* No Python loop over runs. A table is never written again while a copy or a kernel may still read it;
whether they may, an event says, and the host waits for one only when there are more tables on their way than there may be.

*Theory.* A **piece** is what one row of a kernel's tile holds: at most so many bytes, of one run. A tile has the same number of
bytes whatever the pages of a cache are like, so that as much is under way at a time for small pages as for large ones. A table
is three columns of numbers (where from, where to, how many bytes), and travels as one small copy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from attrs import define
from numpy.typing import NDArray

from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.ledger.records import Direction, Ids

WORDS = (16, 8, 4, 1)
"""What a thread may copy at once, in bytes."""

TILE_BYTES = {16: 16_384, 8: 16_384, 4: 16_384, 1: 4_096}
"""What a program copies at once, by the word: never more than sixteen words a thread."""

PIECE_BYTES_MIN = 128
"""A piece is never shorter than what the memory of a device moves at once."""

TABLES_MAX = 64
"""How many tables may be on their way in one direction before the host waits for the oldest."""

_TABLE_NUMBERS_MIN = 3 * 1_024
"""A table has room for so many numbers at least."""

_NAP_S = 20e-6
"""How long a host that must wait for a table sleeps between two questions."""


def word_bytes(numbers: Iterable[int]) -> int:
    """The widest word that divides all these addresses and lengths."""
    bits = 0
    for number in numbers:
        bits |= number
    return next(word for word in WORDS if bits % word == 0)


def word_of_layout(layout: CopyLayout) -> int:
    """The widest word that divides whatever run a layout can make."""
    tensors = (*layout.cache.layers, *layout.regions)
    pages = (size for group in layout.cache.page_bytes for size in group)
    return word_bytes([*(tensor.data_ptr() for tensor in tensors), *pages, *layout.cache.row_bytes])


def word_of_pages(pages: Pages) -> int:
    """The widest word that divides these runs."""
    return word_bytes(int(np.bitwise_or.reduce(column)) for column in (pages.source, pages.target, pages.nbytes))


def piece_of_layout(layout: CopyLayout, word: int) -> int:
    """The power of two that just holds the smallest page, if a tile does: one piece a page, and no wider than it must be."""
    smallest = min(size for group in layout.cache.page_bytes for size in group)
    return int(min(max(PIECE_BYTES_MIN, 1 << (smallest - 1).bit_length()), TILE_BYTES[word]))


def cut(pages: Pages, piece: int) -> tuple[Ids, Ids, Ids]:
    """All runs as pieces of at most so many bytes: where from, where to, and how long each is."""
    if pages.nbytes.max(initial=0) <= piece:
        return pages.source, pages.target, pages.nbytes
    counts = -(-pages.nbytes // piece)
    run = np.repeat(np.arange(len(pages)), counts)
    offset = (np.arange(len(run)) - (np.cumsum(counts) - counts)[run]) * piece
    return pages.source[run] + offset, pages.target[run] + offset, np.minimum(pages.nbytes[run] - offset, piece)


class TableEvent(Protocol):
    """The point on the current stream after which nobody reads a table any more."""

    def query(self) -> bool:
        """Whether it was passed."""
        ...

    def record(self) -> None:
        """Let it stand for all that the current stream was given so far."""
        ...


class _Passed:
    """Where there are no streams everything has run when a call returns."""

    def query(self) -> bool:
        return True

    def record(self) -> None: ...


@define(eq=False)
class _CopyTable:
    """Both ends of one table. Invariant: free exactly if `event` has passed; it is recorded behind whoever reads the table."""

    host: torch.Tensor
    numbers: NDArray[np.int64]
    """The host's end, as numpy sees it."""
    device: torch.Tensor
    event: TableEvent


class CopyTables:
    """Tables of one device, for one stream in each direction. *new_event*: what says that one is free; None for torch's own.

    With more streams nothing is written over either, as long as the tables live; but a direction waits for its slowest stream.
    """

    def __init__(self, device: torch.device, new_event: Callable[[], TableEvent] | None = None) -> None:
        self._device = device
        self._new_event = new_event or (torch.cuda.Event if device.type == "cuda" else _Passed)
        # Invariant: each direction's tables in the order of their use, so that the first is free before all others. What nobody
        # knows the end of is in `_lost`, and never given back: a kernel that reads other numbers would write to anywhere.
        self._tables: dict[Direction, deque[_CopyTable]] = {direction: deque() for direction in Direction}
        self._lost: list[_CopyTable] = []

    @contextmanager
    def sent(self, direction: Direction, columns: tuple[Ids, ...]) -> Iterator[torch.Tensor]:
        """Queue these columns for the device, one after the other; whoever reads them is queued inside the block."""
        length = len(columns[0])
        table = self._take(direction, length * len(columns))
        self._lost.append(table)
        for number, column in enumerate(columns):
            table.numbers[number * length : (number + 1) * length] = column
        sent = table.device[: length * len(columns)]
        sent.copy_(table.host[: length * len(columns)], non_blocking=True)
        yield sent
        table.event.record()
        self._lost.remove(table)
        self._tables[direction].append(table)

    def _take(self, direction: Direction, count: int) -> _CopyTable:
        tables = self._tables[direction]
        if tables and (tables[0].event.query() or len(tables) >= TABLES_MAX):
            while not tables[0].event.query():
                time.sleep(_NAP_S)
            table = tables.popleft()
            if len(table.numbers) >= count:
                return table  # a smaller one is let go: it is free, and its like is too small
        return self._make(count)

    def _make(self, count: int) -> _CopyTable:
        room = 1 << (max(count, _TABLE_NUMBERS_MIN) - 1).bit_length()
        host = torch.empty(room, dtype=torch.int64, pin_memory=self._device.type == "cuda")
        return _CopyTable(host, host.numpy(), torch.empty(room, dtype=torch.int64, device=self._device), self._new_event())
