"""The methods of moving runs of bytes: slice by slice through torch, many in one call of the CUDA driver, or by a kernel.

*Rules of this file.* A mover queues on the current stream of the calling thread and returns; without streams the bytes have
moved by then. A faster mover that does not work here is left out, and no job fails because of it: its runs go by the next
mover, and the reason is kept.

*Theory.* Two costs decide: the host's for queueing a run, and the device's for moving it. Slices cost the host some
microseconds per run. A batch costs it less than one, uses the copy engines, and takes nothing from the engine's forward pass,
but small runs make it slow. A kernel costs the host the same for any number of runs and is as fast with small ones, but it
takes multiprocessors as long as it lasts. `CHOICES` weighs that, per transfer.

*Why a second try is harmless.* A mover that raises may have queued some of its runs. The next mover queues them again behind
those, on the same stream, and they write the same bytes from the same sources.

*Measured* on an H100 (specs/measurements.md): a run costs the host 9 to 15 microseconds as a slice, 0.7 to 1.5 in a batch (2.4
to 3.6 in one of loads below 32 KiB) and 0.2 to 0.6 by a kernel, on top of some 400 a launch.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from attrs import frozen

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
        """Queue a table of the runs' pieces, and the kernel behind it."""
        word = min(self._word, word_of_pages(pages))
        piece = min(self._piece, TILE_BYTES[word])
        columns = cut(pages, piece)
        with _current(self._device), self._tables.sent(direction, columns) as table:
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


@frozen
class Choice:
    """One row: the mover of transfers with at least *runs_min* runs of less than *mean_bytes_below* bytes on average."""

    mover: str
    direction: Direction
    runs_min: int
    mean_bytes_below: float


CHOICES: tuple[Choice, ...] = (
    Choice("kernel", Direction.LOAD, 32, 48 << 10),
    Choice("kernel", Direction.STORE, 64, 12 << 10),
    Choice("batch", Direction.LOAD, 2, math.inf),
    Choice("batch", Direction.STORE, 2, math.inf),
    Choice("kernel", Direction.LOAD, 32, math.inf),  # where there are no batches
    Choice("kernel", Direction.STORE, 32, math.inf),
    Choice("slices", Direction.LOAD, 0, math.inf),
    Choice("slices", Direction.STORE, 0, math.inf),
)
"""The first row that fits, and whose mover works here, decides.

The sizes were measured on an H100 (``make bench-gpu``, specs/measurements.md): alone, a kernel loads runs of 32 KiB 1.3 times
as fast as a batch and runs of 16 KiB ten times, and stores runs of 8 KiB four times as fast. Stores run beside the forward
pass: at 16 KiB a batch stores as much beside a matrix product as a kernel, which slows the product by a tenth. So a kernel
gets only smaller runs of them. That a kernel is worth its launch from some tens of runs on is a published figure.
"""


class ChoosingMover:
    """Moves each transfer by the best mover of those that work. *movers* must have ``slices``."""

    def __init__(self, movers: Mapping[str, Mover], left_out: Mapping[str, str] = MappingProxyType({})) -> None:
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

    def order(self, num_runs: int, num_bytes: int, direction: Direction) -> Iterator[str]:
        """The movers for a transfer of this size, the best first; those left out meanwhile are skipped."""
        for choice in CHOICES:
            there = choice.mover in self._movers and choice.mover not in self._left_out
            fits = choice.direction is direction and num_runs >= choice.runs_min
            if there and fits and num_bytes < choice.mean_bytes_below * num_runs:
                yield choice.mover


def mover_for_cuda(layout: CopyLayout) -> ChoosingMover:
    """All movers that work for this layout; each has passed `prove`. Takes as long as compiling a kernel."""

    def batch() -> Mover:
        driver = cuda_driver()
        if driver is None:
            raise RuntimeError("there is no driver to load")
        return BatchMover(driver)

    kinds: dict[str, Callable[[], Mover]] = {"kernel": lambda: KernelMover(layout), "batch": batch}
    movers: dict[str, Mover] = {}
    left_out: dict[str, str] = {}
    for name, kind in kinds.items():
        try:
            mover = kind()
            prove(mover, layout.cache.device)
        except Exception as problem:
            left_out[name] = reason(problem)
        else:
            movers[name] = mover
    return ChoosingMover({**movers, "slices": RunMover(layout)}, left_out)


def reason(problem: Exception) -> str:
    """What went wrong, in one line."""
    lines = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {lines[0][:200]}" if lines else type(problem).__name__


# --- proof ----------------------------------------------------------------------------------------------------------------


_PROOF_BYTES = 64 << 10
_PROOF_RUNS = ((0, 32 << 10), (33 << 10, 16), (40 << 10, 5_008))
"""The start and the length of each run of a proof."""


def prove(mover: Mover, device: torch.device) -> None:
    """Let a mover that takes addresses copy bytes to the host and back, on a stream of its own, and wait for them.

    Raises RuntimeError if the bytes are wrong afterwards, and whatever the mover raises.
    """
    cuda = device.type == "cuda"
    content = torch.from_numpy(np.random.default_rng(0).integers(0, 256, _PROOF_BYTES, np.uint8))
    sent = content.to(device)
    host = torch.zeros(_PROOF_BYTES, dtype=torch.uint8, pin_memory=cuda)
    back = torch.zeros_like(sent)
    starts, nbytes = (np.array(column, np.int64) for column in zip(*_PROOF_RUNS, strict=True))

    def pages(source: torch.Tensor, target: torch.Tensor) -> Pages:
        return Pages(source.data_ptr() + starts, target.data_ptr() + starts, nbytes, np.zeros(len(nbytes), np.int64))

    with _aside(device):
        try:
            mover.move(pages(sent, host), Direction.STORE)
            mover.move(pages(host, back), Direction.LOAD)
        finally:  # if it raises, some may have been queued, and the memory is freed below
            if cuda:
                torch.cuda.current_stream().synchronize()
    wanted = torch.zeros_like(content)
    for start, length in _PROOF_RUNS:
        wanted[start : start + length] = content[start : start + length]
    for end, found in (("the host", host), ("the device", back.cpu())):
        if wrong := int((found != wanted).sum()):
            raise RuntimeError(f"{wrong} bytes on {end} are wrong after a copy")


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a device the current one; does nothing for the host."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _aside(device: torch.device) -> AbstractContextManager[object]:
    """A new stream that runs after the work queued on the current one; does nothing where there are no streams."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes from the first to the last of a tensor, in the order of its memory, gaps between its rows included; no copy."""
    gaps = (tensor.stride(0) - tensor[0].numel()) * (len(tensor) - 1) if len(tensor) > 1 else 0
    return tensor.as_strided((tensor.numel() + gaps,), (1,)).view(torch.uint8)
