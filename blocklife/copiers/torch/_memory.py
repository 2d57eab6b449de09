"""The memory of the host tier, page-locked for CUDA devices: one row of bytes for each place.

Rules of this file:

* Memory is requested only if it is known to be available: a process that overcommits is killed without a message.
* All or nothing: if memory cannot be allocated or locked, or on Ctrl-C, all of it is freed.
* Memory with live tensors is freed only after the last of these is gone.

Theory. Page-locking is slow because every page must be allocated first. That is done before it, by several threads near the
device (`_touching`); after each slab progress is reported, and Ctrl-C heard. The memory is private to the process: the system
gives that sooner than shared memory, and it does not count as such in a container. A process that forks does not pass locked
memory on, or a copy on the device's side could go on in pages that only the child has.

Why it is locked in parts. One registration of 512 GiB or more always fails (vllm-project/vllm#51081), some kernels lock 2 GB at
once at most, and a long one holds up every other process that uses the driver (NVIDIA/TensorRT-LLM#17773). The driver refuses a
copy across two locked parts: so a part ends where a row ends and a page of the system, too, and no run of bytes goes past it.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray

from blocklife.copiers._sharing import Sharing
from blocklife.copiers.torch._shared import HEAD_BYTES, SharedRegion, absent_ranks
from blocklife.copiers.torch._touching import Bytes, processors_near, touch
from blocklife.errors import CapacityError, MisuseError

LOCK_BYTES = 1 << 30
"""How many bytes are page-locked at once, about: well below 2 GB, the most that some kernels lock at once."""

_PORTABLE_AND_MAPPED = 1 | 2
"""Flags of cudaHostRegister: every device of the process can copy, and its kernels can read and write."""


class HostMemory:
    """Host memory by place: `rows` is ``(num_places, row_bytes)`` bytes, all zero at first.

    Close it after the copiers that use it, or use it as a context manager.
    """

    def __init__(
        self,
        row_bytes: int,
        num_places: int,
        *,
        pinned: bool,
        near: torch.device | None = None,
        shared: Sharing | None = None,
        sharers: int = 1,
        beside: int = 0,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """Allocate the memory; *progress* is called with the bytes that are ready, and the total.

        *shared*: the ranks of this machine that have it together; each of them makes one, with the same sizes, and takes a part
        of the pages. *near*: the device that copies to and from it; the memory is taken on that device's own node.
        *sharers*: processes of this machine that allocate as much at the same time, this one included. None of them sees in
        what is available what the others are about to take.

        *beside*: bytes that each of them takes behind this memory, for which there must be room as well.

        Refuses: `CapacityError` with both numbers for more than is available, or more for all sharers than the machine has;
        `MisuseError` for sizes below 1, for pinned memory without a CUDA device, and for shared memory of somebody else.
        """
        self.row_bytes = row_bytes
        self.num_places = num_places
        self.pinned = pinned
        self.lock_places = places_per_lock(row_bytes, num_places)
        """How many rows are page-locked together, if any are: no copy may reach from one such part into the next."""
        self._processors = processors_near(near)
        self.shared = shared
        """The ranks that have it together; None where it is this one's alone."""
        self._region: SharedRegion | None = None
        # Invariant: `_locked` are the addresses of the parts that are page-locked, of the memory that `_mapping` has.
        self._mapping: mmap.mmap | None = None
        self._rows: torch.Tensor | None = None
        self.sums: NDArray[np.uint64] = np.zeros(0, np.uint64)
        """One checksum for each place, written and compared by `_checked`. Ranks that share the memory share these, too."""
        self._locked: list[int] = []
        if row_bytes < 1 or num_places < 1:
            raise MisuseError(f"host memory: {num_places} places of {row_bytes} bytes (give 1 or more of each)")
        if pinned and not torch.cuda.is_available():
            raise MisuseError("host memory: only CUDA can pin it, and torch sees no CUDA device (give pinned=False)")
        available = available_bytes()
        more = f"and {beside:,} more, " * bool(beside)
        if available is not None and self.nbytes // (1 if shared is None else shared.num_ranks) + beside > available:
            raise self._too_much(f"{more}{available:,} are available")
        has = machine_bytes() if sharers > 1 else None
        if has is not None and (self.nbytes + beside) * sharers > has:
            raise self._too_much(f"{more}by each of {sharers} processes, and the machine has {has:,}")
        try:
            self._allocate(progress)
        except BaseException:
            self.close()
            raise

    @property
    def nbytes(self) -> int:
        """The bytes of all places."""
        return self.num_places * self.row_bytes

    @property
    def rows(self) -> torch.Tensor:
        """The bytes of each place, ``(num_places, row_bytes)`` of uint8. Refuses: MisuseError after `close`."""
        if self._rows is None:
            raise MisuseError("host memory: the rows are requested after CLOSE (make a new one)")
        return self._rows

    def absent(self) -> list[int]:
        """The ranks that have not attached to memory that is shared. A copy needs that there are none."""
        mapping, shared = self._mapping, self.shared
        return [] if mapping is None or shared is None else absent_ranks(mapping, shared.num_ranks)

    def close(self) -> None:
        """Free the memory. Needs: no copy touches it any more. A second call does nothing."""
        while self._locked:
            _unlock(self._locked.pop())
        self._rows, self.sums = None, np.zeros(0, np.uint64)
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            with suppress(BufferError):  # a tensor of it is still alive: the memory is freed with the last one
                mapping.close()
        region, self._region = self._region, None
        if region is not None:
            region.leave()
            region.close()

    def __enter__(self) -> HostMemory:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "closed" if self._rows is None else "pinned" if self.pinned else "plain"
        return f"<HostMemory {kind}: {self.num_places:,} places of {self.row_bytes:,} bytes, {self.nbytes:,} bytes>"

    def _allocate(self, progress: Callable[[int, int], None]) -> None:
        done, region = 0, None
        total = self.nbytes // (1 if self.shared is None else self.shared.num_ranks)
        try:
            if self.shared is None:
                self._mapping = mmap.mmap(-1, self.nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            else:
                region = self._region = SharedRegion(self.shared, self.row_bytes, self.num_places)
                self._mapping = mmap.mmap(region.descriptor, region.nbytes)
            if self.pinned:
                self._mapping.madvise(mmap.MADV_DONTFORK)
            begins = 0 if region is None else HEAD_BYTES
            content: Bytes = np.frombuffer(self._mapping, np.uint8, self.nbytes, begins)
            if region is None:
                self.sums = np.zeros(self.num_places, np.uint64)
            else:
                self.sums = np.frombuffer(self._mapping, np.uint64, self.num_places, region.sums_at)
            step = self.lock_places * self.row_bytes
            for begin in range(0, self.nbytes, step):
                part = content[begin : begin + step]
                for slab in self._touched(part, begin):
                    done += slab
                    progress(min(done, total), total)
                if self.pinned:
                    self._lock(part.ctypes.data, len(part), begin)
            if region is not None:
                region.close()
        except (OSError, OverflowError, ValueError) as problem:
            raise self._too_much(f"the system gave {done:,}: {problem}") from problem
        self._rows = torch.from_numpy(content).view(self.num_places, self.row_bytes)

    def _touched(self, part: Bytes, begin: int) -> Iterator[int]:
        """Get the pages of a part, or this rank's share of them; the others get theirs, or the lock does."""
        region, shared = self._region, self.shared
        if region is None or shared is None:
            return touch(part, self._processors)

        def reserve(at: int, nbytes: int) -> None:
            os.posix_fallocate(region.descriptor, HEAD_BYTES + begin + at, nbytes)

        return touch(part, self._processors, (shared.rank, shared.num_ranks), reserve)

    def _lock(self, where: int, nbytes: int, before: int) -> None:
        if trouble := _lock(where, nbytes):
            raise self._too_much(f"CUDA pinned {before:,} and then failed: {trouble}")
        self._locked.append(where)

    def _too_much(self, why: str) -> CapacityError:
        return CapacityError(
            f"host memory: {self.nbytes:,} bytes requested ({self.num_places:,} places of {self.row_bytes:,} bytes), "
            f"{why} (ask for fewer places)"
        )


def places_per_lock(row_bytes: int, num_places: int) -> int:
    """How many rows are locked together: some `LOCK_BYTES`, up to where a row and a page of the system end together.

    All of them where rows and pages end together less often than every other `LOCK_BYTES`.
    """
    if row_bytes < 1:
        return num_places
    together = math.lcm(row_bytes, mmap.PAGESIZE)
    if together > 2 * LOCK_BYTES:
        return num_places
    return max(1, LOCK_BYTES // together) * together // row_bytes


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
