"""A store of files in a folder: nothing but the standard library, for one machine and any number of processes.

*Theory.* A value is written to an unfinished file, which is then renamed: so it is there whole or not at all, whoever is killed
at whatever moment. Renames, removals and the count of bytes happen under the lock of the folder, so the entries never exceed
the bound, however many processes there are. Reading takes no lock: an open file can still be read after it was evicted.

*What counts.* What an entry takes on the disk: whole blocks, so that a value of 4,352 bytes counts 8,192 on most. The bytes of
values would say that there is room where the disk has none.

*A full disk.* A disk that is full before the bound is reached, of our own files or of others, makes a put evict what it needs,
once for what it writes at a time. If another program takes that room, nothing is evicted for a while, so that others who
fill the disk do not empty the store. `_bound` says what is evicted, and how entries are counted.

*What is not here, and why.* No ``fsync``: the file system may lose what was put before a power cut, or damage it, and an entry
has a checksum for that. No direct I/O: the page cache makes what was just put cheap to get.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from attrs import define, evolve

from blocklife.errors import MisuseError
from blocklife.tiers._areas import RegisteredMemory, check_key
from blocklife.tiers._bound import ROOM_SHARE, DiskBound
from blocklife.tiers._calls import RunningCalls
from blocklife.tiers._folder import ABSENT_ERRORS, Folder, Lock, is_own_file, taken_by
from blocklife.tiers._protocol import Page, StoreOutcome

_Thing = TypeVar("_Thing")
_OK, _ABSENT, _WRONG_SIZE = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.WRONG_SIZE
_FULL, _FAILED = StoreOutcome.FULL, StoreOutcome.FAILED

_PIECE_BYTES = 32 << 20
"""How much a call writes before it takes the lock to make it visible; on the disk this comes on top of the bound."""
_AHEAD = 16
"""So many files that are not in the page cache are asked for at once."""
_IN_VAIN_NS = 60_000_000_000
"""How long nothing is evicted for a full disk after that has given no room."""
_TOUCH_NS = 10_000_000_000
"""A file whose last use is not older than this is not touched again."""
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_ROOM = _DISK_FULL | {errno.EFBIG}


@define
class FileStoreStatistics:
    """What a `FileStore` has seen and done in this process."""

    max_bytes: int = 0
    used_bytes: int = 0
    """The bytes that all entries take on the disk, of all processes, when this one last knew."""
    evicted: int = 0
    """Entries that this process has removed to make room."""
    evicted_bytes: int = 0
    full: int = 0
    """Values that were not kept for lack of room: larger than the bound, or the disk is full and evicting has not helped."""
    failed: int = 0
    """Values of calls that failed."""
    last_error: str = ""
    """Why the latest of them failed; empty if none did."""


@define(eq=False)
class _Incoming:
    """A value on its way into memory."""

    name: str
    view: memoryview
    descriptor: int = -1
    """Of its file, while the disk brings the rest."""
    read: int = 0
    last_ns: int = 0
    """When it was used last."""


@define(eq=False)
class _Written:
    """A value that lies in an unfinished file."""

    at: int
    name: str
    unfinished: str
    taken: int
    """The bytes that it takes on the disk."""
    replaces: bool
    """Whether there was a value already when it was written; whether there still is, is to be found out under the lock."""


class FileStore:
    """A `ContentStore` in a folder, with at most *max_bytes* on the disk; what was used longest ago is evicted.

    The folder must be new, empty, or a store already; several processes may use it at once, each with its own bound. Without
    *max_bytes* the bound is half of what is free on the disk, where this store's own entries count as free. *clock* gives the
    time in nanoseconds, for last use; a call waits at most *lock_wait_s* for other processes, and its values then have FAILED.

    Refuses: MisuseError for a folder that cannot be used, and for a bound below 1 or above the size of the disk.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        max_bytes: int | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
        lock_wait_s: float = 10.0,
    ) -> None:
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
            raise MisuseError(f"{os.fspath(folder)}: a bound of {max_bytes!r} bytes keeps nothing (give at least 1)")
        self._folder = Folder(os.fspath(folder), lock_wait_s)
        self._clock = clock
        self._areas = RegisteredMemory()
        self._calls = RunningCalls()
        self._lock = threading.Lock()
        self._counts = FileStoreStatistics()
        self._read_flags = os.RWF_NOWAIT
        self._full_until_ns = 0
        """Until then nothing is evicted because the disk is full."""
        try:
            self._bound = DiskBound(self._folder, max_bytes, clock)
        except BaseException:
            self._folder.close()
            raise

    # --- the protocol --------------------------------------------------------------------------------------------------

    def register(self, address: int, size: int) -> None:
        """As `ContentStore.register`; files need it only to refuse pages that lie elsewhere."""
        self._areas.add(address, size)

    def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """As `ContentStore.exists`. It is no use: what is only asked for is evicted as before."""
        for key in keys:
            check_key(key)
        with self._calls.one() as is_open:
            return [self._guarded(self._exists, key) for key in keys] if is_open else [_FAILED] * len(keys)

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """As `ContentStore.put`: FULL for a value above the bound, and where the disk is full and evicting gives no room."""
        outcomes = [_FAILED] * len(pages)
        with self._calls.one() as is_open:
            if is_open:
                views = [self._areas.view(page) for page in pages]
                for piece in self._pieces(pages):
                    self._put_piece(pages, views, piece, outcomes)
        return outcomes

    def get(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """As `ContentStore.get`: bytes go from the file into the page, and the entry counts as used."""
        outcomes = [_FAILED] * len(pages)
        with self._calls.one() as is_open:
            if is_open:
                self._get_all([_Incoming(page.key.hex(), self._areas.view(page)) for page in pages], outcomes)
        return outcomes

    def remove(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """As `Removing.remove`."""
        for key in keys:
            check_key(key)
        outcomes = [_FAILED] * len(keys)
        with self._calls.one() as is_open:
            if is_open:
                try:
                    with self._folder.locked() as lock:
                        outcomes = [self._guarded(partial(self._remove, lock), key) for key in keys]
                except OSError as problem:
                    self._note(problem, len(keys))
        return outcomes

    def close(self) -> None:
        """As `ContentStore.close`."""
        self._calls.close(self._release)

    def _release(self) -> None:
        self._areas.clear()
        self._folder.close()

    def statistics(self) -> FileStoreStatistics:
        """Counts since the start."""
        with self._lock:
            bound = self._bound
            return evolve(
                self._counts,
                max_bytes=bound.max_bytes,
                used_bytes=bound.used,
                evicted=bound.evicted,
                evicted_bytes=bound.evicted_bytes,
            )

    # --- calls ---------------------------------------------------------------------------------------------------------

    def _guarded(self, what: Callable[[_Thing], StoreOutcome], thing: _Thing) -> StoreOutcome:
        """What a look at one entry gives; errors of the system become outcomes."""
        try:
            return what(thing)
        except OSError as problem:
            if problem.errno in ABSENT_ERRORS:
                return _ABSENT
            return self._note(problem)

    def _note(self, problem: OSError, count: int = 1) -> StoreOutcome:
        """Count values that were not served, and say what their outcome is."""
        full = problem.errno in _NO_ROOM
        with self._lock:
            if full:
                self._counts.full += count
            else:
                self._counts.failed += count
                self._counts.last_error = str(problem)
        return _FULL if full else _FAILED

    # --- looking -------------------------------------------------------------------------------------------------------

    def _exists(self, key: bytes) -> StoreOutcome:
        return _ABSENT if self._folder.find(key.hex()) is None else _OK

    def _remove(self, lock: Lock, key: bytes) -> StoreOutcome:
        name = key.hex()
        found = self._folder.find(name)
        if found is None:
            return _ABSENT
        self._folder.unlink(name, name)
        count = lock.read()
        if count is not None:
            self._bound.set_used(lock, count.used - found.taken)
        return _OK

    def _get_all(self, readings: Sequence[_Incoming], outcomes: list[StoreOutcome]) -> None:
        """Read what is in the page cache at once, while the disk brings the others, some at a time."""
        awaited: deque[int] = deque()

        def finish() -> None:
            at = awaited.popleft()
            outcomes[at] = self._guarded(self._read_rest, readings[at])

        try:
            for at, reading in enumerate(readings):
                if len(awaited) == _AHEAD:
                    finish()
                outcomes[at] = self._guarded(self._read_cached, reading)
                if reading.descriptor >= 0:
                    awaited.append(at)
            while awaited:
                finish()
        finally:
            for at in awaited:
                os.close(readings[at].descriptor)

    def _read_cached(self, reading: _Incoming) -> StoreOutcome:
        """Open an entry and read as much of it as takes no wait; ask the disk for the rest, if any, and leave it open."""
        descriptor = self._folder.open_entry(reading.name)
        try:
            status = os.fstat(descriptor)
            if not is_own_file(status):
                return _ABSENT
            if status.st_size != len(reading.view):
                return _WRONG_SIZE
            reading.last_ns = status.st_mtime_ns
            try:
                reading.read = os.preadv(descriptor, [reading.view], 0, self._read_flags)
            except BlockingIOError:  # nothing is cached
                pass
            except OSError as problem:
                if problem.errno != errno.EOPNOTSUPP:
                    raise
                self._read_flags = 0  # a file system that cannot tell what is cached
            if reading.read < len(reading.view):
                os.posix_fadvise(descriptor, reading.read, 0, os.POSIX_FADV_WILLNEED)
                reading.descriptor, descriptor = descriptor, -1
            else:
                self._touch(descriptor, reading.last_ns)
            return _OK
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _read_rest(self, reading: _Incoming) -> StoreOutcome:
        """Read what is lacking, and close the file."""
        try:
            while reading.read < len(reading.view):
                got = os.preadv(reading.descriptor, [reading.view[reading.read :]], reading.read)
                if not got:  # it was cut while we read
                    return _WRONG_SIZE
                reading.read += got
            self._touch(reading.descriptor, reading.last_ns)
            return _OK
        finally:
            os.close(reading.descriptor)

    def _touch(self, descriptor: int, last_ns: int) -> None:
        """Say that an entry was used. A disk that became read-only refuses; the bytes are there all the same."""
        now = self._clock()
        if abs(now - last_ns) > _TOUCH_NS:
            with contextlib.suppress(OSError):
                os.utime(descriptor, ns=(now, now))

    # --- putting -------------------------------------------------------------------------------------------------------

    def _pieces(self, pages: Sequence[Page]) -> Iterator[list[int]]:
        """The positions of pages, in pieces that are written at once; each fits into the bound, unless it is one page."""
        piece: list[int] = []
        room = limit = min(_PIECE_BYTES, self._bound.max_bytes)
        for at, page in enumerate(pages):
            if piece and page.size > room:
                yield piece
                piece, room = [], limit
            piece.append(at)
            room -= page.size
        if piece:
            yield piece

    def _put_piece(
        self, pages: Sequence[Page], views: Sequence[memoryview], piece: Sequence[int], outcomes: list[StoreOutcome]
    ) -> None:
        written: list[_Written] = []
        may_evict = True
        for number, at in enumerate(piece):
            name, sizes = pages[at].key.hex(), [pages[each].size for each in piece[number:]]
            try:
                if sizes[0] > self._bound.max_bytes:
                    raise OSError(errno.EFBIG, "a value above the bound")
                try:
                    fresh = self._write(at, name, views[at])
                except OSError as problem:
                    if problem.errno not in _DISK_FULL or not may_evict:
                        raise
                    may_evict = False
                    fresh = self._write_in_room_of_others(at, name, views[at], sizes)
            except OSError as problem:
                self._look_for_folder(problem)
                outcomes[at] = self._note(problem)
            else:
                outcomes[at] = _OK
                if fresh is not None:
                    written.append(fresh)
        try:
            for run in self._runs(written):
                self._publish(run, outcomes)
        finally:
            self._drop(each for each in written if outcomes[each.at] is not _OK)

    def _runs(self, written: Sequence[_Written]) -> Iterator[list[_Written]]:
        """What is published at once: as much as fits into the bound."""
        run: list[_Written] = []
        for each in written:
            if run and sum(other.taken for other in run) + each.taken > self._bound.max_bytes:
                yield run
                run = []
            run.append(each)
        if run:
            yield run

    def _write_in_room_of_others(self, at: int, name: str, view: memoryview, sizes: Sequence[int]) -> _Written | None:
        """Write a value to a disk that was full, after evicting what it and the next ones need.

        Raises OSError where nothing is evicted, or that gives no room: then nothing is evicted for it for a while.
        """
        now = self._clock()
        if now < self._full_until_ns <= now + _IN_VAIN_NS:
            raise OSError(errno.ENOSPC, "the disk is full, and evicting has given no room")
        block = self._folder.disk().f_frsize
        needed = sum(-(-size // block) * block for size in sizes)
        self._full_until_ns = now + _IN_VAIN_NS
        with self._folder.locked() as lock:
            found = self._bound.count(lock)
            self._bound.evict_down(lock, found, self._bound.used - needed - self._bound.used // ROOM_SHARE)
        fresh = self._write(at, name, view)
        self._full_until_ns = 0
        return fresh

    def _write(self, at: int, name: str, view: memoryview) -> _Written | None:
        """Write a value to an unfinished file; None where it is kept already."""
        before = self._folder.find(name)
        if before is not None and before.size == len(view):
            try:
                self._folder.touch(name, self._clock())
            except FileNotFoundError:  # evicted since
                pass
            except OSError:  # the value is kept, whether or not its use can be noted
                return None
            else:
                return None
        unfinished, descriptor = self._folder.begin(name)
        try:
            done = 0
            while done < len(view):
                done += os.pwrite(descriptor, view[done:], done)
            if self._clock is not time.time_ns:  # otherwise the system has set the same time already
                now = self._clock()
                os.utime(descriptor, ns=(now, now))
            taken = taken_by(os.fstat(descriptor))
            if taken > self._bound.max_bytes:
                raise OSError(errno.EFBIG, "a value that takes more than the bound")
        except BaseException:
            with contextlib.suppress(OSError):
                self._folder.unlink(unfinished, name)
            raise
        finally:
            os.close(descriptor)
        return _Written(at, name, unfinished, taken, before is not None)

    def _publish(self, written: Sequence[_Written], outcomes: list[StoreOutcome]) -> None:
        """Rename what was written, under the lock, after making room for it. The outcome of what could not be is set."""
        pending = list(written)
        needed = sum(each.taken for each in written)
        try:
            with self._folder.locked() as lock:
                used = self._bound.make_room(lock, needed)
                if used + needed > self._bound.max_bytes:
                    raise OSError(errno.ENOSPC, "no entry can be evicted")
                used = self._bound.set_used(lock, used + needed)
                while pending:
                    each = pending[-1]
                    replaced = self._folder.find(each.name) if each.replaces else None
                    self._folder.publish(each.unfinished, each.name)
                    used -= replaced.taken if replaced is not None else 0
                    pending.pop()
                if used != self._bound.used:
                    self._bound.set_used(lock, used)
        except OSError as problem:
            self._look_for_folder(problem)
            outcome = self._note(problem, len(pending))
            for each in pending:
                outcomes[each.at] = outcome

    def _drop(self, written: Iterator[_Written]) -> None:
        """Remove unfinished files."""
        for each in written:
            with contextlib.suppress(OSError):
                self._folder.unlink(each.unfinished, each.name)

    def _look_for_folder(self, problem: OSError) -> None:
        """If the folder itself is gone, go on with a new one of its name as soon as there is one."""
        if problem.errno == errno.ENOENT:
            with contextlib.suppress(OSError, MisuseError):
                self._folder.find_again()
