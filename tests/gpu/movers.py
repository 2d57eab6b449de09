"""The movers by name, each by itself, and devices that move by the one they are given."""

from __future__ import annotations

import torch

from blocklife.copiers.torch._driver import cuda_driver
from blocklife.copiers.torch._launching import FollowingStream, LaunchingDevice, QueuedStream
from blocklife.copiers.torch._layout import CopyLayout
from blocklife.copiers.torch._moves import BatchMover, KernelMover, Mover, RunMover
from blocklife.copiers.torch._probe import mover_for_cuda
from blocklife.copiers.torch._streams import CudaDevice, CudaStream, HostDevice, HostStream, StreamDevice

SINGLE = ("slices", "batch", "kernel")
"""Each mover by itself, by the name that a `MoverTable` has for it."""

NAMES = ("chosen", *SINGLE)
"""What the copier itself would take, and each by itself."""


class AbsentError(Exception):
    """This mover cannot be had here: why."""


def made(name: str, layout: CopyLayout) -> Mover:
    """The mover of that name for these bytes. Raises AbsentError where there is none."""
    cuda = layout.cache.device.type == "cuda"
    if name == "slices" or (name == "chosen" and not cuda):
        return RunMover(layout)
    if not cuda:
        raise AbsentError(f"mover {name!r} needs a CUDA device")
    if name == "chosen":
        return mover_for_cuda(layout)
    try:
        return _kernel(layout) if name == "kernel" else _batch()
    except (RuntimeError, ImportError) as problem:
        raise AbsentError(f"mover {name!r}: {problem}") from problem


def _kernel(layout: CopyLayout) -> Mover:
    return KernelMover(layout)


def _batch() -> Mover:
    driver = cuda_driver()
    if driver is None:
        raise RuntimeError("there is no driver to load")
    return BatchMover(driver)


class ForcedCuda(CudaDevice):
    """Keeps its streams by name."""

    def __init__(self, layout: CopyLayout, mover: Mover) -> None:
        super().__init__(layout, mover)
        self.named: dict[str, CudaStream] = {}

    def stream(self, name: str, *, copies: bool = True, priority: int = 0) -> CudaStream:
        self.named[name] = super().stream(name, copies=copies, priority=priority)
        return self.named[name]


class ForcedHost(HostDevice):
    """CPU tensors, moved by any mover."""

    def __init__(self, layout: CopyLayout, mover: Mover) -> None:
        super().__init__(layout)
        self._forced = mover

    def stream(self, name: str, *, copies: bool = True, priority: int = 0) -> HostStream:
        return HostStream(self._forced)


class ForcedLaunching(LaunchingDevice):
    """Such a device behind a thread that launches, as a copier for CUDA has one. Keeps its streams by name."""

    def __init__(self, inner: StreamDevice, where: torch.device) -> None:
        super().__init__(inner, enter=lambda: torch.cuda.set_device(where) if is_cuda(where) else None)
        self._named: dict[str, QueuedStream | FollowingStream] = {}

    def stream(self, name: str, *, copies: bool = True, priority: int = 0) -> QueuedStream | FollowingStream:
        self._named[name] = super().stream(name, copies=copies, priority=priority)
        return self._named[name]

    def streams_of(self, name: str) -> list[torch.cuda.Stream]:
        """The stream of that name as torch knows it; none on the host."""
        inner = self._named[name].inner
        return [inner.inner] if isinstance(inner, CudaStream) else []

    def flush(self, name: str) -> None:
        """Return when all that a stream was given so far has been launched. Raises what a launch has raised."""
        event = self.event()
        self._named[name].record(event)
        event.recorded()


def forced(layout: CopyLayout, mover: Mover) -> StreamDevice:
    """The device that a cache lies on, moving by this mover."""
    return (ForcedCuda if layout.cache.device.type == "cuda" else ForcedHost)(layout, mover)


def is_cuda(where: torch.device) -> bool:
    """Whether copies run beside the host there."""
    return where.type == "cuda"
