"""How runs of bytes travel: slice by slice through torch, or many in one call of the CUDA driver.

A mover queues on the current stream of the calling thread and returns; where there are no streams it has moved the bytes then.
`RunMover` works everywhere. `BatchMover` has been written against the documentation of CUDA and has not yet been seen on a GPU.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Protocol

import torch

from blocklife.copiers.torch.layout import Layout, Pages
from blocklife.ledger.records import Direction

_BATCH_DRIVER_MIN = 12_080
"""The first CUDA driver with batched copies, as the driver counts its versions."""

_BATCH_RUNS_MIN = 2
"""From how many runs on a batch is used where there is one; a single run gains nothing by it."""


class Mover(Protocol):
    """Queues the runs of one copy."""

    def move(self, pages: Pages, direction: Direction) -> None:
        """Queue them all. One that raises may have queued some."""
        ...


class RunMover:
    """One `copy_` for each run, between slices of the layers and the regions."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._layers = [flat_bytes(tensor) for tensor in layout.cache.layers]
        regions = [flat_bytes(region) for region in layout.regions]
        self._regions = [regions[index] for index in layout.region_of_layer]

    def move(self, pages: Pages, direction: Direction) -> None:
        """Queue them in their order."""
        device, host = self._layout.offsets(pages, direction)
        runs = zip(pages.layer.tolist(), device.tolist(), host.tolist(), pages.nbytes.tolist(), strict=True)
        for layer, device_start, host_start, nbytes in runs:
            block = self._layers[layer][device_start : device_start + nbytes]
            place = self._regions[layer][host_start : host_start + nbytes]
            source, target = (block, place) if direction is Direction.STORE else (place, block)
            target.copy_(source, non_blocking=True)


class BatchMover:
    """All runs in one call of the driver. Not yet seen on a GPU."""

    def __init__(self, driver: ModuleType) -> None:
        self._driver = driver

    def move(self, pages: Pages, direction: Direction) -> None:
        """Queue them as one batch: it runs in the stream's order, and within it in any."""
        batch_copy(self._driver, pages, torch.cuda.current_stream().cuda_stream)


class ChoosingMover:
    """The batch for many runs, the slices for few. Not yet seen on a GPU."""

    def __init__(self, few: Mover, many: Mover) -> None:
        self._few = few
        self._many = many

    def move(self, pages: Pages, direction: Direction) -> None:
        """Queue them by the one that suits their number."""
        mover = self._many if len(pages) >= _BATCH_RUNS_MIN else self._few
        mover.move(pages, direction)


def mover_for_cuda(layout: Layout) -> Mover:
    """The best that the driver and the installed bindings allow."""
    runs, driver = RunMover(layout), cuda_driver()
    return runs if driver is None else ChoosingMover(runs, BatchMover(driver))


def cuda_driver() -> ModuleType | None:
    """The driver's bindings, if package ``cuda-bindings`` is there and both it and the driver know batched copies."""
    try:
        driver = importlib.import_module("cuda.bindings.driver")
    except ImportError:
        return None
    if not hasattr(driver, "cuMemcpyBatchAsync"):
        return None
    error, version = driver.cuDriverGetVersion()
    return driver if int(error) == 0 and version >= _BATCH_DRIVER_MIN else None


def batch_copy(driver: ModuleType, pages: Pages, stream: int) -> None:
    """The only call of the driver: one batch on a stream that is not the legacy one. Raises RuntimeError with its answer.

    The source is read in stream order, as any copy reads it: what is overwritten after the batch is not lost to it.
    """
    attributes = driver.CUmemcpyAttributes()
    attributes.srcAccessOrder = driver.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    targets = [driver.CUdeviceptr(address) for address in pages.target.tolist()]
    sources = [driver.CUdeviceptr(address) for address in pages.source.tolist()]
    answer = driver.cuMemcpyBatchAsync(
        targets, sources, pages.nbytes.tolist(), len(pages), [attributes], [0], 1, driver.CUstream(stream)
    )
    if int(answer[0]) != 0:
        raise RuntimeError(f"cuMemcpyBatchAsync of {len(pages)} runs answered {answer[0]!r}")


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor whose elements fill its memory, in the order in which they lie there; no copy is made."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
