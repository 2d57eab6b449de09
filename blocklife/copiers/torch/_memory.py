"""The memory of the host tier, page-locked for CUDA devices: one region per layer, all with the same places.

Rules of this file:

* Memory is requested only if it is known to be available: a process that overcommits is killed without a message.
* All or nothing: if a region cannot be allocated, or on Ctrl-C, the earlier ones are freed.
* Memory with live tensors is freed only after the last of these is gone.

Theory. Page-locking is slow because every page must be allocated first. So the calling thread touches the pages in slabs, which
puts them near the processor that it runs on; after each slab it reports progress and can be interrupted. A region is locked as
a whole: the driver refuses a copy across two locked ranges, and merged copies may span any places of a region.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray

from blocklife.errors import CapacityError, MisuseError

Bytes = NDArray[np.uint8]

SLAB_BYTES = 256 << 20
"""How many bytes are touched between two reports of progress."""

_PORTABLE_AND_MAPPED = 1 | 2
"""Flags of cudaHostRegister: every device of the process can copy, and its kernels can read and write."""


class HostMemory:
    """Pages of host memory: region ``i`` is ``(num_places, page_bytes[i])`` bytes, all zero at first.

    Close it after the copiers that use it, or use it as a context manager.
    """

    def __init__(
        self,
        page_bytes: Sequence[int],
        num_places: int,
        *,
        pinned: bool,
        sharers: int = 1,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """Allocate the memory; *progress* is called with the bytes that are ready, and the total.

        *sharers*: processes of this machine that allocate as much at the same time, this one included. None of them sees in
        what is available what the others are about to take.

        Refuses: `CapacityError` with both numbers for more than is available, or more for all sharers than the machine has;
        `MisuseError` for sizes below 1, and for pinned memory without a CUDA device.
        """
        self.page_bytes = tuple(page_bytes)
        self.num_places = num_places
        self.pinned = pinned
        self._mappings: list[mmap.mmap] = []
        self._regions: list[torch.Tensor] = []
        self._locked: list[int] = []
        self._closed = False
        if not self.page_bytes or min(self.page_bytes) < 1 or num_places < 1:
            raise MisuseError(
                f"host memory: {num_places} places with pages of {list(self.page_bytes)[:8]} bytes (give 1 or more of each)"
            )
        if pinned and not torch.cuda.is_available():
            raise MisuseError("host memory: only CUDA can pin it, and torch sees no CUDA device (give pinned=False)")
        available = available_bytes()
        if available is not None and self.nbytes > available:
            raise self._too_much(f"{available:,} are available")
        has = machine_bytes() if sharers > 1 else None
        if has is not None and self.nbytes * sharers > has:
            raise self._too_much(f"by each of {sharers} processes, and the machine has {has:,}")
        try:
            self._allocate(progress)
        except BaseException:
            self.close()
            raise

    @property
    def nbytes(self) -> int:
        """The bytes of all regions."""
        return self.num_places * sum(self.page_bytes)

    @property
    def num_regions(self) -> int:
        """How many layers there are."""
        return len(self.page_bytes)

    def region(self, index: int) -> torch.Tensor:
        """The pages of one layer, ``(num_places, page_bytes[index])`` of uint8. Refuses: MisuseError after `close`."""
        if self._closed:
            raise MisuseError(f"host memory: region {index} is requested after CLOSE (make a new one)")
        if not 0 <= index < len(self._regions):
            raise MisuseError(f"host memory: there is no region {index} (there are {len(self._regions)}, from 0)")
        return self._regions[index]

    def close(self) -> None:
        """Free the memory. Needs: no copy touches it any more. A second call does nothing."""
        self._closed = True
        while self._locked:
            _unlock(self._locked.pop())
        self._regions.clear()
        while self._mappings:
            with suppress(BufferError):  # a tensor of it is still alive: the memory is freed with the last one
                self._mappings.pop().close()

    def __enter__(self) -> HostMemory:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "closed" if self._closed else "pinned" if self.pinned else "plain"
        return f"<HostMemory {kind}: {self.num_regions} regions of {self.num_places} places, {self.nbytes:,} bytes>"

    def _allocate(self, progress: Callable[[int, int], None]) -> None:
        done = 0
        for page_bytes in self.page_bytes:
            try:
                mapping = mmap.mmap(-1, self.num_places * page_bytes)
            except (OSError, OverflowError, ValueError) as problem:
                raise self._too_much(f"the system gave {done:,}: {problem}") from problem
            self._mappings.append(mapping)
            content: Bytes = np.frombuffer(mapping, dtype=np.uint8)
            for slab in _touched(content):
                done += slab
                progress(done, self.nbytes)
            if self.pinned:
                where = content.ctypes.data
                if trouble := _lock(where, len(content)):
                    raise self._too_much(f"CUDA pinned {done - len(content):,} and then failed: {trouble}")
                self._locked.append(where)
            self._regions.append(torch.from_numpy(content).view(self.num_places, page_bytes))

    def _too_much(self, why: str) -> CapacityError:
        return CapacityError(
            f"host memory: {self.nbytes:,} bytes requested ({self.num_places:,} places of {sum(self.page_bytes):,} bytes), "
            f"{why} (ask for fewer places)"
        )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that this process can still allocate, by the system and its control groups; None if neither tells."""
    told = [*_meminfo(root, "MemAvailable:"), *(left for _, left in _control_groups(root))]
    return min(told) if told else None


def machine_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that all processes beside this one may have together with it, used or not; None if neither tells."""
    told = [*_meminfo(root, "MemTotal:"), *(most for most, _ in _control_groups(root))]
    return min(told) if told else None


def _meminfo(root: Path, name: str) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith(name):
                yield int(line.split()[1]) << 10


_GROUPS = (
    # The controller's name, the mount point, and the files or keys of the limit, the use, and what of that can be reclaimed.
    ("", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""The two versions of control groups."""


def _control_groups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and bytes left of the group of this process, and of each group around it; an unreadable limit is no limit."""
    named: dict[str, str] = {}
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            named.update(dict.fromkeys(controllers.split(","), path))
    for controller, mount, limit, taken, reclaimable in _GROUPS:
        if controller not in named:
            continue
        own = Path(named[controller].lstrip("/"))
        for group in (own, *own.parents):
            folder = root / mount / group
            with suppress(OSError, ValueError):  # "max" is not a number: no limit
                most = int((folder / limit).read_text())
                used = int((folder / taken).read_text())
                given = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield most, max(0, most - used + int(given.get(reclaimable, 0)))


def _touched(content: Bytes) -> Iterator[int]:
    """Allocate the pages, a slab at a time; gives the bytes of each slab."""
    for begin in range(0, len(content), SLAB_BYTES):
        slab = content[begin : begin + SLAB_BYTES]
        slab[:: mmap.PAGESIZE] = 0
        yield len(slab)


def _lock(where: int, nbytes: int) -> str:
    """Page-lock a range. Returns CUDA's error message, or an empty string on success."""
    cudart = torch.cuda.cudart()
    result = cudart.cudaHostRegister(where, nbytes, _PORTABLE_AND_MAPPED)
    if int(result) == 0:
        return ""
    # CUDA keeps an error until it is queried. torch queries it after its next kernel and would blame that one: fetch it now.
    with suppress(RuntimeError, AssertionError):  # the latter from a torch without CUDA
        torch.ones(1, device="cuda").add_(1)
    return str(cudart.cudaGetErrorString(result))


def _unlock(where: int) -> None:
    """Undo `_lock`. An error of CUDA is ignored: most occur at the end of a process, and nothing can be done."""
    torch.cuda.cudart().cudaHostUnregister(where)
