"""Host memory that several ranks of one machine share: a named region, to which each attaches for itself.

Rules of this file:

* The name goes when the last rank has attached: after that, the system frees the memory with the last process, however it ends.
* Before that a crash leaves a file. Whoever attaches to any region first removes what nobody alive has attached to.
* A file is never trusted: its owner, its kind and its geometry are compared, under a lock, before a byte of it is mapped.

Theory. The file begins with a page of its own: the geometry, and for each rank the process that has attached, with the time
when that process started, for numbers of processes are used again. The rows follow, and a sum for each of them. Every rank maps
all of it and page-locks the rows for its own device, and takes a part of the pages from the system.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from blocklife.copiers._sharing import RANKS_MOST, Sharing
from blocklife.errors import CapacityError, MisuseError

SHM = Path("/dev/shm")
"""Where the system keeps what is shared."""
PREFIX = "blocklife-"
HEAD_BYTES = mmap.PAGESIZE
"""The page before the rows."""
SUM_BYTES = 8
"""Behind the rows each place has a sum (`_checked`)."""

_MAGIC = b"blkshare"
_FIELDS = struct.Struct("<8sIIQQ")
"""Magic, version, ranks, bytes of a row, rows."""
_PROCESS = struct.Struct("<QQ")
"""A process that has attached, and when it started; zeros for none."""
_VERSION = 1
_TRIES = 100


class SharedRegion:
    """The region of one rank, attached. `close` gives up the file, which may be mapped by then; `leave` gives up the region."""

    def __init__(self, sharing: Sharing, row_bytes: int, num_places: int, *, shm: Path = SHM) -> None:
        """Attach, or create the region and attach.

        Refuses: `CapacityError` with both numbers where there is no room; `MisuseError` for a region of another geometry or
        owner, and for a rank that has attached already.
        """
        self._sharing = sharing
        self._path = shm / f"{PREFIX}{sharing.name}"
        self._geometry = (sharing.num_ranks, row_bytes, num_places)
        self.sums_at = HEAD_BYTES + -(-row_bytes * num_places // SUM_BYTES) * SUM_BYTES
        self.nbytes = self.sums_at + SUM_BYTES * num_places
        remove_leftovers(shm)
        for _ in range(_TRIES):
            self.descriptor = self._open()
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            try:
                if self._attach():
                    fcntl.flock(self.descriptor, fcntl.LOCK_UN)
                    return
            except BaseException:
                self.close()
                raise
            self.close()
        raise MisuseError(f"shared memory {self._path}: it comes and goes (two engines with one name?)")

    def close(self) -> None:
        """Give the file back; what is mapped stays. A second call does nothing."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)  # the lock goes with it

    def leave(self) -> None:
        """This rank has gone: remove the name if it was the last that had attached."""
        with contextlib.suppress(OSError), _locked(self._path) as descriptor:
            at = _process_at(self._sharing.rank)
            if _read_process(descriptor, self._sharing.rank) == _started(os.getpid()):
                os.pwrite(descriptor, bytes(_PROCESS.size), at)
            if not any(_alive(descriptor)):
                self._path.unlink()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise MisuseError(
                f"shared memory {self._path}: {problem.strerror} (remove it, or ask its owner to; then start again)"
            ) from problem

    def _attach(self) -> bool:
        """Under the lock: whether this rank has attached; False if the file has gone, or went, and another must be opened."""
        about = os.fstat(self.descriptor)
        if about.st_uid != os.geteuid():
            raise MisuseError(f"shared memory {self._path}: it belongs to user {about.st_uid} (give the engine another name)")
        try:
            if os.stat(self._path, follow_symlinks=False).st_ino != about.st_ino:
                return False
        except FileNotFoundError:
            return False
        if not about.st_size:
            self._create()
        elif not any(_alive(self.descriptor)):
            self._path.unlink()  # a crash has left it
            return False
        else:
            self._check(about.st_size)
        os.pwrite(self.descriptor, _PROCESS.pack(*_started(os.getpid())), _process_at(self._sharing.rank))
        if all(_read_process(self.descriptor, rank) != (0, 0) for rank in range(self._sharing.num_ranks)):
            self._path.unlink()
        return True

    def _create(self) -> None:
        free = os.statvfs(self._path)
        room = free.f_bavail * free.f_frsize
        if self.nbytes > room:
            self._path.unlink()
            raise CapacityError(
                f"shared memory {self._path}: {self.nbytes:,} bytes requested, and {self._path.parent} has {room:,} free "
                "(ask for less host memory, or make it larger: docker run --shm-size, mount -o remount,size=)"
            )
        os.ftruncate(self.descriptor, self.nbytes)
        os.pwrite(self.descriptor, _FIELDS.pack(_MAGIC, _VERSION, *self._geometry), 0)

    def _check(self, size: int) -> None:
        """The file is that of this engine. Refuses: as the constructor."""
        head = os.pread(self.descriptor, _FIELDS.size, 0)
        magic, version, *geometry = _FIELDS.unpack(head.ljust(_FIELDS.size, b"\0"))
        if (magic, version) != (_MAGIC, _VERSION):
            raise MisuseError(f"shared memory {self._path}: it is none of this version (give the engine another name)")
        if tuple(geometry) != self._geometry or size != self.nbytes:
            words = "{} ranks, rows of {:,} bytes, {:,} places"
            raise MisuseError(
                f"shared memory {self._path}: it has {words.format(*geometry)}, and this rank needs "
                f"{words.format(*self._geometry)} (give all ranks one configuration, and every engine a name of its own)"
            )
        rank = self._sharing.rank
        if (there := _read_process(self.descriptor, rank)) != (0, 0):
            gone = "is attached already" if _started(there[0]) == there else "has died, and others still use what it wrote"
            raise MisuseError(f"shared memory {self._path}: rank {rank}, process {there[0]}, {gone} (restart all ranks)")


def absent_ranks(mapping: mmap.mmap, num_ranks: int) -> list[int]:
    """The ranks that have never attached to a region that is mapped."""
    return [rank for rank in range(num_ranks) if _PROCESS.unpack_from(mapping, _process_at(rank)) == (0, 0)]


def remove_leftovers(shm: Path = SHM) -> list[Path]:
    """Remove the regions of this user to which nobody alive has attached; what was removed."""
    removed = []
    for path in sorted(shm.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError), _locked(path, wait=False) as descriptor:
            about = os.fstat(descriptor)
            if about.st_uid == os.geteuid() and about.st_size and _is_ours(descriptor) and not any(_alive(descriptor)):
                path.unlink()
                removed.append(path)
    return removed


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def _is_ours(descriptor: int) -> bool:
    return os.pread(descriptor, len(_MAGIC), 0) == _MAGIC


def _process_at(rank: int) -> int:
    return _FIELDS.size + rank * _PROCESS.size


def _read_process(descriptor: int, rank: int) -> tuple[int, int]:
    found = os.pread(descriptor, _PROCESS.size, _process_at(rank)).ljust(_PROCESS.size, b"\0")
    pid, since = _PROCESS.unpack(found)
    return pid, since


def _alive(descriptor: int) -> Iterator[bool]:
    """Of each rank that has attached, whether its process still runs."""
    for rank in range(RANKS_MOST):
        process = _read_process(descriptor, rank)
        if process != (0, 0):
            yield _started(process[0]) == process


def _started(pid: int) -> tuple[int, int]:
    """A process and when it started, in ticks since the system did; its number alone if it has gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return pid, int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])
    return pid, 0
