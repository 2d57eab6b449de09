"""The bytes of each place, and the runs of bytes that a transfer moves.

*Rules of this file.* Runs are made with numpy only: Python loops go over groups and layers, never over blocks. A place that
does not exist is an IndexError here, before anything moves: after this file there are only addresses.

*Theory.* On the device every layer is a tensor of its own, and a block is one page in each layer of its group. The host is laid
out by block: one **row** for each place, with a **column** for each layer, as wide as the widest page that any group has there.
So all that a store below moves of a place is one piece. Neighbouring blocks that go to neighbouring places are one run where a
page fills the row: where the device is laid out by block, too, which is one layer here. All layers of a group whose pages are
equally large and equally far apart have the same runs, which are made once and added to where each layer begins.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, zip_longest
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from blocklife.copiers._sharing import Sharing
from blocklife.errors import MisuseError
from blocklife.ledger.records import Direction, Ids, Transfer


class HostRows(Protocol):
    """The host's end of copies; `HostMemory` is one."""

    @property
    def pinned(self) -> bool:
        """Whether a device may copy to and from it while the host goes on."""
        ...

    @property
    def rows(self) -> torch.Tensor:
        """The rows of all places: ``(num_places, row bytes)``, uint8, on the host."""
        ...

    @property
    def lock_places(self) -> int:
        """How many rows are page-locked together: no copy may reach from one such part into the next."""
        ...

    @property
    def shared(self) -> Sharing | None:
        """The ranks of this machine that have it together; None where it is one's alone."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


Columns: TypeAlias = tuple[Ids, Ids, Ids, Ids]
"""Of each run its source, target, length and layer."""


class Pages:
    """Runs of bytes to move: ``nbytes[i]`` from address ``source[i]`` to address ``target[i]``.

    No two runs of one transfer write the same byte, so they may move in any order.
    """

    total: int
    """Bytes of all runs."""

    def __init__(self, source: Ids, target: Ids, nbytes: Ids, layer: Ids) -> None:
        self._make: Callable[[], Columns] = lambda: (source, target, nbytes, layer)
        self._count, self.total = len(nbytes), int(nbytes.sum())

    @classmethod
    def later(cls, count: int, total: int, make: Callable[[], Columns]) -> Pages:
        """So many runs, of so many bytes in all, which *make* gives when they are first read.

        On CUDA the thread that launches reads them first, unless they are cut into parts.
        """
        found = cls.__new__(cls)
        found._make, found._count, found.total = make, count, total
        return found

    def __len__(self) -> int:
        return self._count

    @functools.cached_property
    def columns(self) -> Columns:
        """All that is known of the runs."""
        return self._make()

    @property
    def source(self) -> Ids:
        """Where each run is read."""
        return self.columns[0]

    @property
    def target(self) -> Ids:
        """Where each run is written."""
        return self.columns[1]

    @property
    def nbytes(self) -> Ids:
        """How long each run is."""
        return self.columns[2]

    @property
    def layer(self) -> Ids:
        """The device's layer of each run, counted through all groups."""
        return self.columns[3]

    def chosen(self, runs: slice | NDArray[np.bool_]) -> Pages:
        """Some of the runs, in their order."""
        return Pages(self.source[runs], self.target[runs], self.nbytes[runs], self.layer[runs])

    def cut(self, most: int) -> Pages:
        """The same with no run longer than *most* bytes."""
        if self.nbytes.max(initial=0) <= most:
            return self
        counts = -(-self.nbytes // most)
        run = np.repeat(np.arange(len(self)), counts)
        offset = (np.arange(len(run)) - (np.cumsum(counts) - counts)[run]) * most
        nbytes = np.minimum(self.nbytes[run] - offset, most)
        return Pages(self.source[run] + offset, self.target[run] + offset, nbytes, self.layer[run])

    def by_layers(self, num_parts: int, num_layers: int) -> Iterator[tuple[int, Pages]]:
        """All runs in so many parts, each of neighbouring layers; with each the layer behind its last one."""
        for part in range(num_parts):
            begin, end = (num_layers * each // num_parts for each in (part, part + 1))
            yield end, self.chosen((self.layer >= begin) & (self.layer < end))

    def parts(self, most_bytes: int, most_runs: int) -> Iterator[Pages]:
        """All runs in their order, in as few parts as possible of so many bytes and so many runs at most."""
        if 0 < len(self) <= most_runs and self.total <= most_bytes:
            yield self
            return
        runs = self.cut(most_bytes)
        ends, begin = np.cumsum(runs.nbytes), 0
        while begin < len(runs):
            before = ends[begin - 1] if begin else 0
            end = min(int(np.searchsorted(ends, before + most_bytes, "right")), begin + most_runs)
            yield runs.chosen(slice(begin, end))
            begin = end


class KvCache:
    """The device's end of copies: for each group the tensors of its layers, each ``(num_blocks, ...)``, block after block.

    A block is a contiguous page. There may be gaps between the blocks of a layer, which are neither read nor written.
    """

    def __init__(self, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        layers = [tensor for group in groups for tensor in group]
        if not groups or not all(groups):
            raise MisuseError("kv cache: a group without layers cannot be copied (give each group at least one tensor)")
        for number, tensor in enumerate(layers):
            _check_layer(number, tensor, layers[0])
        self.groups = tuple(tuple(group) for group in groups)
        self.layers = tuple(layers)
        self.device = layers[0].device
        self.num_blocks = len(layers[0])
        self.page_bytes = tuple(tuple(_page_bytes(tensor) for tensor in group) for group in groups)
        """By group, the bytes of a block in each of its layers."""
        self.pitches = tuple(map(_pitch, layers))
        """Of each layer, the bytes from one block to the next."""
        widths = (max(pages) for pages in zip_longest(*self.page_bytes, fillvalue=0))
        *self.columns, self.row_bytes = accumulate(widths, initial=0)
        """Where the page of each layer of a group begins in a row of the host, with room for the widest of all groups; and the
        bytes of a row."""

    @property
    def num_groups(self) -> int:
        """How many groups share the blocks."""
        return len(self.groups)


_RunsOfLayers: TypeAlias = tuple[Ids, Ids, Ids, Ids | int]
"""Layers whose runs are alike; of each run where it begins on the device and in the host, counted from where the layer and its
column begin, and its length, one for all if they are equal."""


class CopyLayout:
    """Both ends together: turns a transfer into runs of bytes."""

    def __init__(self, cache: KvCache, host: HostRows) -> None:
        self.cache = cache
        self.rows, self.lock_places, self._shared = host.rows, host.lock_places, host.shared
        self.num_places = len(self.rows)
        fits = self.rows.dtype == torch.uint8 and tuple(self.rows.shape) == (self.num_places, cache.row_bytes)
        if not fits or not self.rows.is_contiguous() or self.rows.device.type != "cpu":
            raise MisuseError(
                f"host rows: {tuple(self.rows.shape)} {self.rows.dtype} on {self.rows.device} do not fit the cache "
                f"(give contiguous uint8 of ({self.num_places}, {cache.row_bytes}) on the cpu)"
            )
        start = self.rows.data_ptr()
        self._device_base = np.array([tensor.data_ptr() for tensor in cache.layers], np.int64)
        self._host_base = np.array([start + cache.columns[index] for group in cache.groups for index in range(len(group))])
        self._alike = tuple(self._layers_alike(group) for group in range(cache.num_groups))

    def ends(self, transfer: Transfer) -> tuple[Ids, Ids]:
        """The blocks and the host places of a transfer, in its order, as new arrays.

        Refuses: IndexError for a place that does not exist, ValueError for more groups than there are.
        """
        store = transfer.direction is Direction.STORE
        blocks = np.array(transfer.source if store else transfer.target, np.int64)
        places = np.array(transfer.target if store else transfer.source, np.int64)
        for word, ids, count in (("block", blocks, self.cache.num_blocks), ("host place", places, self.num_places)):
            wrong = ids.view(np.uint64) >= count  # a negative number is a large one there
            if wrong.any():
                raise IndexError(f"{word} {int(ids[wrong][0])} does not exist (there are {count})")
        if len(transfer.group_sizes) > self.cache.num_groups:
            raise ValueError(f"{len(transfer.group_sizes)} groups, and the cache has {self.cache.num_groups}")
        return blocks, places

    def own_part(self, transfer: Transfer) -> tuple[Ids, Ids, tuple[int, ...]]:
        """The `ends` that this rank moves, and how many are of each group: of a store only the places that this rank writes."""
        blocks, places = self.ends(transfer)
        if self._shared is None or transfer.direction is not Direction.STORE:
            return blocks, places, transfer.group_sizes
        mine = self._shared.writes(places)
        return blocks[mine], places[mine], self._shared.sizes_of(places, transfer.group_sizes)

    def pages(self, transfer: Transfer, blocks: Ids, places: Ids, group_sizes: Sequence[int] = ()) -> Pages:
        """The runs of a transfer with these `ends`, or with part of them, so many of each group; as few as possible."""
        found: list[_RunsOfLayers] = []
        start = count = total = 0
        for size, alike in zip(group_sizes or transfer.group_sizes, self._alike, strict=False):
            ends = slice(start, start + size)
            for layers, page, pitch in alike if size else ():
                runs = self._runs(blocks[ends], places[ends], page, pitch)
                found.append((layers, *runs))
                count += len(layers) * len(runs[0])
                total += len(layers) * size * page
            start += size
        return Pages.later(count, total, lambda: self._columns(found, count, transfer.direction is Direction.STORE))

    def _columns(self, found: Sequence[_RunsOfLayers], count: int, stores: bool) -> Columns:
        """The runs of all layers, one layer after the other."""
        columns = np.empty((4, count), np.int64)
        at = 0
        for layers, device, host, nbytes in found:
            part = columns[:, at : at + len(layers) * len(device)].reshape(4, len(layers), len(device))
            np.add(self._device_base[layers, None], device, out=part[0])
            np.add(self._host_base[layers, None], host, out=part[1])
            part[2], part[3] = nbytes, layers[:, None]
            at += part[0].size
        device, host, nbytes, layer = columns
        return (device, host, nbytes, layer) if stores else (host, device, nbytes, layer)

    def offsets(self, pages: Pages, direction: Direction) -> tuple[Ids, Ids]:
        """The offset of each run in its layer and in the rows, for movers that copy between tensors."""
        device, host = (pages.source, pages.target) if direction is Direction.STORE else (pages.target, pages.source)
        return device - self._device_base[pages.layer], host - self.rows.data_ptr()

    def _layers_alike(self, group: int) -> tuple[tuple[Ids, int, int], ...]:
        """The layers of a group by page and pitch: their numbers, counted through all groups, then the two in bytes."""
        first = sum(map(len, self.cache.groups[:group]))
        found: dict[tuple[int, int], list[int]] = {}
        for layer, page in enumerate(self.cache.page_bytes[group], first):
            found.setdefault((page, self.cache.pitches[layer]), []).append(layer)
        return tuple((np.array(layers, np.int64), page, pitch) for (page, pitch), layers in found.items())

    def _runs(self, blocks: Ids, places: Ids, page: int, pitch: int) -> tuple[Ids, Ids, Ids | int]:
        """The runs of one group in each of some layers that are alike, from where a layer and its column begin."""
        if not page == pitch == self.cache.row_bytes:  # between two pages there is something else
            return blocks * pitch, places * self.cache.row_bytes, page
        blocks, places = _sorted_by_place(blocks, places)
        device, host = blocks * page, places * page
        joins = (device[1:] == device[:-1] + page) & (host[1:] == host[:-1] + page) & (places[1:] % self.lock_places != 0)
        firsts = np.flatnonzero(np.concatenate(([True], ~joins)))
        return device[firsts], host[firsts], np.diff(np.append(firsts, len(blocks))) * page


def _sorted_by_place(blocks: Ids, places: Ids) -> tuple[Ids, Ids]:
    """Sort both by the host's places, so that pairs that can be merged are next to each other."""
    order = np.argsort(places, kind="stable")
    return blocks[order], places[order]


def _page_bytes(tensor: torch.Tensor) -> int:
    return tensor[0].numel() * tensor.element_size()


def _pitch(tensor: torch.Tensor) -> int:
    """The bytes from one block to the next."""
    return tensor.stride(0) * tensor.element_size() if len(tensor) > 1 else _page_bytes(tensor)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the blocks follow each other, each a page without gaps; within a page any order of the axes is fine."""
    if len(tensor) > 1 and tensor.stride(0) < tensor[0].numel():
        return False
    packed = 1
    for stride, size in sorted(zip(tensor[0].stride(), tensor[0].shape, strict=True)):
        if size > 1:
            if stride != packed:
                return False
            packed *= size
    return True


def _check_layer(number: int, tensor: torch.Tensor, first: torch.Tensor) -> None:
    """Refuse a layer whose blocks are not contiguous pages."""
    trouble = ""
    if tensor.ndim < 2 or tensor.numel() == 0:
        trouble = f"has shape {tuple(tensor.shape)} (give num_blocks first, then what a block holds)"
    elif len(tensor) != len(first):
        trouble = f"has {len(tensor)} blocks and layer 0 has {len(first)} (all layers share the same blocks)"
    elif tensor.device != first.device:
        trouble = f"is on {tensor.device} and layer 0 on {first.device} (one copier serves one device)"
    elif not _is_dense(tensor):
        trouble = "has blocks that are not contiguous, one after another (give a view whose first axis is the block)"
    if trouble:
        raise MisuseError(f"kv cache: layer {number} {trouble}")
