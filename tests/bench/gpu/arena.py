"""Bytes on both ends, cut into pages of any size, and a look at whether they are right.

Both ends are taken once and cut anew for each page size: pinning is slow. What should be where is kept on the device, so that
looking at a gigabyte takes no longer than moving it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from attrs import evolve, frozen

from blocklife.copiers.torch import HostMemory, KvCache
from blocklife.ledger.records import Direction, Ids
from tests.bench.gpu.records import LARGE_PAGE

STORE, LOAD = Direction.STORE, Direction.LOAD


@frozen(kw_only=True)
class Sizes:
    """How much is moved. The bytes are powers of two."""

    buffer: int = 4 << 30
    """Bytes of each end."""
    small_pages: int = 256 << 20
    """Bytes that one repetition moves in each direction, in pages below `LARGE_PAGE`, where it takes long."""
    large_pages: int = 1 << 30
    """The same for large pages: so much that the time until the first copy begins hardly counts."""
    layers: int = 16
    job_blocks: int = 256
    """Blocks of one job at most: what the offload scheduler puts into one."""
    jobs: int = 8
    """Jobs of one repetition at least, where there are so many blocks: the next is launched while one is on its way."""
    product: int = 8_192
    """Rows and columns of the matrices."""
    products: int = 40
    """Products in a row."""

    def volume(self, page: int) -> int:
        """Bytes that one repetition moves in each direction: a quarter of the buffer at most."""
        return self.large_pages if page >= LARGE_PAGE else self.small_pages

    def within(self, free: int) -> Sizes:
        """The same or less, so that a device with so much free memory has room for it, and for what it is compared with."""
        buffer = self.buffer
        while buffer * _COPIES_OF_BUFFER > free and buffer > _BUFFER_MIN:
            buffer //= 2
        quarter = buffer // 4
        return evolve(
            self,
            buffer=buffer,
            small_pages=min(self.small_pages, quarter),
            large_pages=min(self.large_pages, quarter),
        )


_COPIES_OF_BUFFER = 8
"""The cache, what both ends were, what they should be, what the host has, and room for a comparison and for staging."""

_BUFFER_MIN = 1 << 28
_ROW_BYTES = 4_096
"""The host's rows while nobody has cut them."""

FULL = Sizes()
SMOKE = Sizes(buffer=1 << 20, small_pages=1 << 18, large_pages=1 << 18, layers=2, job_blocks=16, jobs=2, product=64, products=6)


@frozen(eq=False)
class Rows:
    """The host's end of one page size."""

    rows: torch.Tensor
    pinned: bool
    lock_places: int
    shared: None = None

    def close(self) -> None:
        """The buffers are somebody else's."""


class Buffers:
    """Some gigabytes, say, on each end, random, and what they were at first."""

    def __init__(self, where: torch.device, sizes: Sizes, progress: Callable[[int, int], None]) -> None:
        self.where = where
        self.sizes = sizes
        self.cuda = where.type == "cuda"
        # In words of eight bytes: torch counts some gigabytes of those with 32 bits, and not so many bytes.
        words, dice = sizes.buffer // 8, torch.Generator(device=where).manual_seed(11)
        self._device_was, self._host_was = (
            torch.randint(-(1 << 62), 1 << 62, (words,), dtype=torch.int64, device=where, generator=dice) for _ in range(2)
        )
        self.device = self._device_was.clone().view(torch.uint8)
        self._memory = HostMemory(_ROW_BYTES, sizes.buffer // _ROW_BYTES, pinned=self.cuda, progress=progress)
        self.host = self._memory.rows.view(-1)
        self.lock_bytes = self._memory.lock_places * _ROW_BYTES
        """How much of the host's end is locked together; a power of two, as all pages are."""

    def reset(self) -> None:
        """Both ends as they were at first."""
        self.device.view(torch.int64).copy_(self._device_was)
        self.host.view(torch.int64).copy_(self._host_was)
        self.settle()

    def right(self, expect: Callable[[torch.Tensor, torch.Tensor], None]) -> bool:
        """Whether both ends are as at first but for what *expect* changes in the device's and in the host's words."""
        device, host = self._device_was.clone(), self._host_was.clone()
        expect(device, host)
        there = self.host.view(torch.int64).to(self.where)
        return torch.equal(device, self.device.view(torch.int64)) and torch.equal(host, there)

    def settle(self) -> None:
        """Wait until nothing runs on the device."""
        if self.cuda:
            torch.cuda.synchronize(self.where)

    def close(self) -> None:
        """Give the host's memory back. Needs: no arena is used any more."""
        self.settle()
        self.host = torch.empty(0)
        self._memory.close()


@frozen(eq=False)
class Work:
    """What one direction moves: ``blocks[i]`` and ``places[i]`` belong together."""

    blocks: Ids
    places: Ids

    def jobs(self, most: int) -> list[tuple[Ids, Ids]]:
        """The same in parts of so many blocks at most."""
        return [(self.blocks[at : at + most], self.places[at : at + most]) for at in range(0, len(self.blocks), most)]


class Arena:
    """The buffers, cut into pages of one size."""

    def __init__(self, buffers: Buffers, page: int) -> None:
        sizes = buffers.sizes
        self.buffers = buffers
        self.page = page
        self.block = sizes.layers * page
        """Bytes of a block in all layers."""
        self.num_blocks = sizes.buffer // self.block
        self.volume = sizes.volume(page)
        self.count = self.volume // self.block
        """Blocks that one repetition moves in each direction."""
        self.job_blocks = max(1, min(sizes.job_blocks, self.count // sizes.jobs))
        self.cache = KvCache([list(self.cut(buffers.device))])
        self.rows = Rows(buffers.host.view(self.num_blocks, self.block), buffers.cuda, buffers.lock_bytes // self.block)

    def cut(self, flat: torch.Tensor) -> torch.Tensor:
        """The device's buffer, of bytes or of words, as pages by layer: ``(layers, blocks, page)``."""
        return flat.view(self.buffers.sizes.layers, self.num_blocks, -1)

    def cut_host(self, flat: torch.Tensor) -> torch.Tensor:
        """The host's, which lies by block, as the same: ``(layers, blocks, page)``."""
        return flat.view(self.num_blocks, self.buffers.sizes.layers, -1).transpose(0, 1)

    def scattered(self, direction: Direction) -> Work:
        """Every second block at most, in no order, on both ends: nothing can be merged. The directions share no place."""
        dice = np.random.default_rng(5)
        part = slice(0, self.count) if direction is STORE else slice(self.count, 2 * self.count)
        blocks, places = (2 * dice.permutation(self.num_blocks // 2) for _ in range(2))
        return Work(blocks[part], places[part])

    def neighbours(self, direction: Direction) -> Work:
        """Blocks in a row to places in a row."""
        ids = np.arange(self.count) + (0 if direction is STORE else 2 * self.count)
        return Work(ids, ids)
