"""Gets host memory from the system: in parallel, and near the device.

*Theory.* A page exists from the first write to it on; the system clears it then, at some GB/s for each processor that does. One
registration of 8 GiB takes 2.8 s that way, and with 4, 8 and 32 threads that write first 1.55, 1.09 and 0.92 s
(ai-dynamo/dynamo#13710). And a page lies near the processor that wrote first, whatever is copied later: so only processors of
the device's own node (NUMA) write, if the system says which those are, and this process may run on them.

*Why the system is asked first.* One call for many pages (``MADV_POPULATE_WRITE``, Linux 5.14) spares a fault for each. Where
there is no such call, a thread writes a byte of each page.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from blocklife.copiers.torch._driver import cuda_driver

Bytes = NDArray[np.uint8]

SLAB_BYTES = 64 << 20
"""How many bytes a thread gets at once: progress is told, and Ctrl-C heard, behind each."""

THREADS_MAX = 16
"""With more, it was hardly faster where it was measured."""

_POPULATE_WRITE = 23
"""Linux's number for it, which Python's `mmap` does not know."""

_ABSENT = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM})
"""What a system answers that has no such call, or does not allow it."""


def touch(
    content: Bytes,
    processors: frozenset[int],
    turn: tuple[int, int] = (0, 1),
    reserve: Callable[[int, int], object] = lambda _begin, _nbytes: None,
) -> Iterator[int]:
    """Get the pages of memory that nobody has written yet, on these processors; gives the bytes of each slab, in order.

    *turn*: which of how many processes this is that share the memory; each gets its part. *reserve* is called first for each
    slab, with its offset and its bytes, and raises OSError where the system would otherwise end a process that writes.

    Raises OSError if the system has no more memory. If the caller stops half-way, so do the threads.
    """
    begins = range(turn[0] * SLAB_BYTES, len(content), turn[1] * SLAB_BYTES)
    if not begins:
        return

    def get(begin: int) -> int:
        slab = content[begin : begin + SLAB_BYTES]
        reserve(begin, len(slab))
        return _get(slab)

    threads = ThreadPoolExecutor(min(len(begins), len(processors), THREADS_MAX), "blocklife-touch", _run_on, (processors,))
    try:
        yield from threads.map(get, begins)
    finally:
        threads.shutdown(cancel_futures=True)


def processors_near(device: torch.device | None, root: Path = Path("/")) -> frozenset[int]:
    """The processors of a device's own node that this process may run on; all that it may if nobody says which those are."""
    allowed = frozenset(os.sched_getaffinity(0))
    driver = cuda_driver() if device is not None and device.type == "cuda" else None
    if device is None or driver is None:
        return allowed
    with suppress(OSError, RuntimeError, ValueError), torch.cuda.device(device):
        place = driver.pci_address(torch.cuda.current_device())
        return allowed & _numbers((root / "sys/bus/pci/devices" / place / "local_cpulist").read_text()) or allowed
    return allowed


def _numbers(text: str) -> frozenset[int]:
    """What Linux writes as ``0-3,8``."""
    parts = (part.split("-") for part in text.strip().split(","))
    return frozenset(number for part in parts for number in range(int(part[0]), int(part[-1]) + 1))


def _run_on(processors: frozenset[int]) -> None:
    """Keep this thread on these processors; where it may not, its pages lie where they lie."""
    with suppress(OSError):
        os.sched_setaffinity(0, processors)


def _get(slab: Bytes) -> int:
    """Get the pages of one slab."""
    where = slab.ctypes.data
    start = where - where % mmap.PAGESIZE
    if _advise(start, where + len(slab) - start):
        slab[:: mmap.PAGESIZE] = 0
        slab[-1] = 0
    return len(slab)


def _advise(start: int, nbytes: int) -> bool:
    """Ask the system for whole pages; whether it knows no such call. Raises OSError if it has none to give."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(nbytes), ctypes.c_int(_POPULATE_WRITE)) == 0:
        return False
    number = ctypes.get_errno()
    if number in _ABSENT:
        return True
    raise OSError(number, os.strerror(number))
