"""What the entries of a folder may take on the disk, what they take, and the eviction that keeps it within the bound.

*The count.* It is raised before files are renamed and lowered after they were removed. So a process that is killed in between
leaves it too high, never too low; the next eviction counts anew. The lock file has it, and when it was last counted, so a start
takes what is there, and one process counts for all now and then. A power cut may lose it: then the first start counts.

*Eviction.* By last use: a get sets the time of the file's last change, which unlike that of its last access is kept whatever
the disk is mounted with. An eviction makes more room than was asked for, since it looks at every file.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

from blocklife.errors import MisuseError
from blocklife.tiers._folder import EntryCount, Folder, FoundEntry, Lock, LockedError

ROOM_SHARE = 16
"""An eviction frees this fraction of the bound, or of what is used on a full disk, besides what was asked for."""
_STALE_NS = 600_000_000_000
"""Unfinished files that are younger are never removed: a piece may wait as long for its rename, and is not locked then."""
_COUNT_EVERY_NS = 600_000_000_000
"""The entries are counted anew at the first put after this time, by one process for all."""
_OPEN_WAIT_S = 1.0
"""How long a store that is opened waits for the lock; then it starts without the count."""


class DiskBound:
    """The bound of one process on a folder. All methods are called under the folder's lock.

    Without *max_bytes* the bound is half of what is free on the disk, where the store's own entries count as free.
    Refuses: MisuseError for a bound below 1 or above the size of the disk, and where the folder cannot be used.
    """

    def __init__(self, folder: Folder, max_bytes: int | None, clock: Callable[[], int]) -> None:
        self._folder = folder
        self._clock = clock
        self.max_bytes = 0
        self.used = 0
        """The bytes that all entries take, of all processes, when this one last knew."""
        self.evicted = 0
        """Entries that this process has removed to make room."""
        self.evicted_bytes = 0
        # Invariant: `_free` is what was free on the disk at the start, as long as the bound still lacks half of what is used.
        self._free: int | None = None
        self._start(max_bytes)

    def _start(self, max_bytes: int | None) -> None:
        """Find out how many bytes there are, and set the bound."""
        disk = self._folder.disk()
        size = disk.f_blocks * disk.f_frsize
        if max_bytes is not None and max_bytes > size:
            raise MisuseError(f"{self._folder.path}: a bound of {max_bytes:,} bytes on a disk of {size:,} (give less)")
        free = disk.f_bavail * disk.f_frsize
        self.max_bytes = max_bytes or max(1, free // 2)
        self._free = None if max_bytes else free
        try:
            with self._folder.locked(_OPEN_WAIT_S) as lock:
                count = lock.read()
                if count is not None and count.used <= size and self._outlasts_boot(count):
                    self._learn(count.used)
                else:
                    self.count(lock)
        except LockedError:  # another process counts or evicts now; the first put reads its count
            pass
        except OSError as problem:
            raise MisuseError(f"{self._folder.path}: cannot be used as a store: {problem.strerror or problem}") from problem

    def _learn(self, used: int) -> None:
        """Take over how many bytes there are; the first time, a bound that was not given is set by it."""
        self.used = used
        if self._free is not None:
            self.max_bytes, self._free = max(1, (self._free + used) // 2), None

    def _outlasts_boot(self, count: EntryCount) -> bool:
        """Whether the machine has run since this count was made, if it says when: a power cut may have lost later ones."""
        booted_ns = self._clock() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return count.counted_ns is None or count.counted_ns >= booted_ns

    def _is_due(self, count: EntryCount | None) -> bool:
        """Whether the entries are to be counted anew. A time that is a little ahead is that of another machine's clock."""
        if count is None or count.counted_ns is None or not self._outlasts_boot(count):
            return True
        return abs(self._clock() - count.counted_ns) >= _COUNT_EVERY_NS

    def set_used(self, lock: Lock, used: int) -> int:
        """Say how many bytes there are now."""
        lock.write(used)
        self._learn(used)
        return used

    def count(self, lock: Lock) -> list[FoundEntry]:
        """Look at every entry and count what they take."""
        self._folder.mark()
        now = self._clock()
        found = list(self._folder.walk(now, _STALE_NS))
        used = sum(each.taken for each in found)
        lock.write_count(used, now)
        self._learn(used)
        return found

    def make_room(self, lock: Lock, needed: int) -> int:
        """Evict what was used longest ago, if there is no room for so many bytes; the bytes that are used then."""
        count = lock.read()
        if count is not None and not self._is_due(count):
            self._learn(count.used)
            if count.used + needed <= self.max_bytes:
                return count.used
        found = self.count(lock)
        used = self.used
        if used + needed <= self.max_bytes:
            return used
        return self.evict_down(lock, found, self.max_bytes - needed - self.max_bytes // ROOM_SHARE)

    def evict_down(self, lock: Lock, found: list[FoundEntry], goal: int) -> int:
        """Evict of all entries what was used longest ago, until at most *goal* bytes are used; the bytes that are used then."""
        used = before = self.used
        found.sort(key=lambda each: (each.used_ns, each.name))
        evicted = 0
        for each in found:
            if used <= max(0, goal):
                break
            if self._evict(each.name):
                used -= each.taken
                evicted += 1
        self.evicted += evicted
        self.evicted_bytes += before - used
        return self.set_used(lock, used)

    def _evict(self, name: str) -> bool:
        try:
            self._folder.unlink(name, name)
        except OSError as problem:
            return problem.errno == errno.ENOENT
        return True
