"""The methods of moving runs of bytes: slice by slice through torch, many in one call of the CUDA driver, or by a kernel.

*Rules of this file.* A mover queues on the current stream of the calling thread and returns; without streams the bytes have
moved by then. A faster mover that does not work here is left out, and no job fails because of it: its runs go by the next
mover, and the reason is kept.

*Theory.* Two costs decide: the host's for queueing a run, and the device's for moving it. Slices cost the host some
microseconds per run. A batch costs it less than one, uses the copy engines, and takes nothing from the engine's forward pass,
but small runs make it slow. A kernel costs the host the same for any number of runs and is as fast with small ones, but it
takes multiprocessors as long as it lasts. A `MoverTable` weighs that, per transfer; `_probe` makes it at the start.

*Why a second try is harmless.* A mover that raises may have queued some of its runs. The next mover queues them again behind
those, on the same stream, and they write the same bytes from the same sources.

*Measured* on an H100 (specs/measurements.md): a run costs the host 9 to 15 microseconds as a slice, 0.7 to 1.5 in a batch (2.4
to 3.6 in one of loads below 32 KiB) and 0.2 to 0.6 by a kernel, on top of some 400 a launch.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Protocol

import torch

from blocklife.copiers._movers import MOVERS, USUAL, MoverTable
from blocklife.copiers.torch._driver import CudaDriver, DeviceLostError, cuda_driver, is_lost
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._pieces import TILE_BYTES, CopyTables, cut, piece_of_layout, word_of_layout, word_of_pages
from blocklife.errors import MisuseError
from blocklife.ledger.records import Direction


class Mover(Protocol):
    """Queues the runs of one copy."""

    def move(self, pages: Pages, direction: Direction) -> None:
        """Queue all of them. If this raises, some may have been queued."""
        ...


class RunMover:
    """One `copy_` per run, between slices of the layers and the rows."""

    def __init__(self, layout: CopyLayout) -> None:
        self._layout = layout
        self._layers = [flat_bytes(tensor) for tensor in layout.cache.layers]
        self._rows = flat_bytes(layout.rows)

    def move(self, pages: Pages, direction: Direction) -> None:
        """Queue the runs in their order."""
        device, host = self._layout.offsets(pages, direction)
        runs = zip(pages.layer.tolist(), device.tolist(), host.tolist(), pages.nbytes.tolist(), strict=True)
        for layer, device_start, host_start, nbytes in runs:
            block = self._layers[layer][device_start : device_start + nbytes]
            place = self._rows[host_start : host_start + nbytes]
            source, target = (block, place) if direction is Direction.STORE else (place, block)
            target.copy_(source, non_blocking=True)


class BatchMover:
    """All runs in one call of the driver, or a few."""

    def __init__(self, driver: CudaDriver) -> None:
        if not driver.knows_batches:
            raise RuntimeError("the driver has no batched copies: it must be of CUDA 12.8 or later")
        self._driver = driver

    def move(self, pages: Pages, direction: Direction) -> None:
        """Queue the runs; within a batch they run in any order. Refuses: MisuseError on the default stream."""
        stream = torch.cuda.current_stream()
        self._driver.copy_batch(pages.target, pages.source, pages.nbytes, device=stream.device_index, stream=stream.cuda_stream)


class KernelMover:
    """All runs by one kernel, between the device and host memory that it can reach.

    Refuses: RuntimeError for host memory that has another address on the device, or none. On CPU tensors it works where Triton
    interprets its kernels.
    """

    def __init__(self, layout: CopyLayout) -> None:
        self._device = layout.cache.device
        self._kernels = importlib.import_module("blocklife.copiers.torch._kernels")
        if self._device.type == "cuda":
            if self._kernels.is_interpreted():
                raise RuntimeError("Triton interprets its kernels, which cannot reach the device (unset TRITON_INTERPRET)")
            check_reach(layout)
        self._word = word_of_layout(layout)
        self._piece = piece_of_layout(layout, self._word)
        self._tables = CopyTables(self._device)

    def move(self, pages: Pages, direction: Direction) -> None:
        """Write a table of the runs' pieces, and queue the kernel that reads it."""
        word = min(self._word, word_of_pages(pages))
        piece = min(self._piece, TILE_BYTES[word])
        columns = cut(pages, piece)
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else direction
        with _current(self._device), self._tables.written(stream, columns) as table:
            self._kernels.launch(table, len(columns[0]), word=word, piece=piece)


def check_reach(layout: CopyLayout) -> None:
    """Raise RuntimeError unless the rows have the same addresses on the device; page-locked memory can have others there."""
    driver = cuda_driver()
    if driver is None:
        raise RuntimeError("there is no driver to look up the device's address of host memory")
    for locked in layout.rows.split(layout.lock_places):
        for at in (locked.data_ptr(), locked.data_ptr() + locked.nbytes - 1):
            if (found := driver.address_on_device(at)) != at:
                raise RuntimeError(f"host rows: the byte at {at:#x} is at {found:#x} for the device")


# --- which one ------------------------------------------------------------------------------------------------------------


class ChoosingMover:
    """Moves each transfer by the mover that the table has for it, or by another of those that work."""

    def __init__(
        self, movers: Mapping[str, Mover], left_out: Mapping[str, str] = MappingProxyType({}), table: MoverTable = USUAL
    ) -> None:
        self.table = table
        self._movers = dict(movers)
        # Invariant: a mover that is left out stays in `_movers`: the device may still read its tables.
        self._left_out = dict(left_out)

    @property
    def names(self) -> tuple[str, ...]:
        """The movers that work, as far as known."""
        return tuple(name for name in self._movers if name not in self._left_out)

    @property
    def left_out(self) -> dict[str, str]:
        """The movers that do not work here, and why."""
        return dict(self._left_out)

    def move(self, pages: Pages, direction: Direction) -> None:
        """Queue the runs by the best mover. One that raises is left out from then on; an error of ``slices`` is raised.

        Raises DeviceLostError for an error that ends the context: no mover is to blame, and the next would meet it again.
        Raises RuntimeError where no mover works.
        """
        for name in self.order(len(pages), pages.total, direction):
            try:
                self._movers[name].move(pages, direction)
                return
            except MisuseError:
                raise
            except Exception as problem:
                if is_lost(problem):
                    raise DeviceLostError(f"{reason(problem)} (give the worker up)") from problem
                if name == "slices":
                    raise
                self._left_out[name] = reason(problem)
        raise RuntimeError(f"no mover works here: {'; '.join(f'{name} ({why})' for name, why in self._left_out.items())}")

    def order(self, num_runs: int, num_bytes: int, direction: Direction) -> Iterator[str]:
        """The movers for a transfer of this size, the best first; those left out meanwhile are skipped."""
        for name in dict.fromkeys((self.table.mover(direction, num_runs, num_bytes), *MOVERS)):
            if name in self._movers and name not in self._left_out:
                yield name


def reason(problem: Exception) -> str:
    """What went wrong, in one line."""
    lines = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {lines[0][:200]}" if lines else type(problem).__name__


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one; does nothing for the host."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes from the first to the last of a tensor, in the order of its memory, gaps between its rows included; no copy."""
    gaps = (tensor.stride(0) - tensor[0].numel()) * (len(tensor) - 1) if len(tensor) > 1 else 0
    return tensor.as_strided((tensor.numel() + gaps,), (1,)).view(torch.uint8)
