"""The folder of a file store: who may use it, how it is opened, locked and walked.

*Rules of this file.*

* No link is followed below the folder: every file and every subfolder is opened by its own name in an open folder, with
  ``O_NOFOLLOW``, and counts only if it is a regular file of this user.
* What has no name of ours is not touched: neither read nor removed.
* Nobody else can read it: folders are 0700, files 0600.

*Layout.* ``blocklife-store`` says what the folder is, and of which format. ``lock`` is locked by whoever changes which entries
there are, and has the bytes that they take in its first eight, and in the next eight when they were last counted.
An entry is ``ab/abcd...``: 64 hex digits in the subfolder of the first two.
A file that is being written is ``ab/.abcd....PROCESS.NUMBER``, and is locked until it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import secrets
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from attrs import frozen

from blocklife.errors import MisuseError

_Found = TypeVar("_Found")

MARKER = "blocklife-store"
LOCK = "lock"
FORMAT = b"blocklife file store, format 1\n"
"""What the marker says."""

_ENTRY = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{1,8}\.[0-9a-f]{9,32}")
_HARMLESS = re.compile(rf"lost\+found|{LOCK}|\.{MARKER}\.[0-9a-f]{{16}}")
"""What may be in a folder that is about to become a store."""
PARTS = tuple(f"{number:02x}" for number in range(256))
"""The subfolders that there can be."""
_TOKEN = secrets.token_hex(4)
_NUMBERS = itertools.count()
"""With the number of the process, these make the names of unfinished files differ, in containers that share a folder, too."""
_BYTES = struct.Struct("<Q")
_COUNT = struct.Struct("<QQ")
"""Earlier versions read and write the first number alone; the time of the last count is then older than it could be."""
_ABANDONED_NS = 3_600_000_000_000
"""No put takes as long: where a file system has no locks, an unfinished file that is older was left over."""

_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

ABSENT_ERRORS = frozenset({errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ESTALE})
"""What opening an entry says where there is none: nothing of this name, a link, a file in the place of a folder, a socket."""


class LockedError(OSError):
    """Another process or thread holds the lock for too long."""


@frozen
class EntryCount:
    """What the lock file says of the entries."""

    used: int
    """The bytes that they take on the disk; never too low, whoever was killed. Only a power cut can make it so."""
    counted_ns: int | None
    """When somebody last looked at every entry; None in a file of a version that did not say."""


@frozen
class FoundEntry:
    """One entry, as the folder has it."""

    used_ns: int
    """When it was put or last got."""
    name: str
    size: int
    """The bytes of its value."""
    taken: int
    """The bytes that it takes on the disk."""


def taken_by(status: os.stat_result) -> int:
    """The bytes that a file takes on the disk: whole blocks; at least its size, since some file systems allocate late."""
    return max(status.st_size, 512 * status.st_blocks)


def is_own_file(status: os.stat_result) -> bool:
    """Whether this is a regular file of this user."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


class Lock:
    """The lock of a folder while it is held, with the count of bytes that it guards."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self) -> EntryCount | None:
        """What is known of the entries; None if nobody has counted them."""
        data = os.pread(self._descriptor, _COUNT.size, 0)
        if len(data) == _COUNT.size:
            used, counted_ns = _COUNT.unpack(data)
            return EntryCount(used, counted_ns)
        return EntryCount(_BYTES.unpack(data)[0], None) if len(data) == _BYTES.size else None

    def write(self, used: int) -> None:
        """Say how many bytes there are."""
        os.pwrite(self._descriptor, _BYTES.pack(max(0, used)), 0)

    def write_count(self, used: int, now_ns: int) -> None:
        """Say how many bytes there are, and that they were counted now."""
        os.pwrite(self._descriptor, _COUNT.pack(used, max(0, now_ns)), 0)


class Folder:
    """An open folder that is a store."""

    def __init__(self, path: str, lock_wait_s: float) -> None:
        if "\0" in path:
            raise MisuseError(f"{path!r}: has a zero byte (name a folder for the store)")
        self.path = os.path.realpath(path)
        self._lock_wait_s = lock_wait_s
        self._mutex = threading.Lock()
        self._root = _adopt(self.path)
        self._parts: dict[str, int] = {}
        """The open subfolders; they are opened when they are first used."""

    def close(self) -> None:
        """Let go of it. No other call may run or follow."""
        for descriptor in (*self._parts.values(), self._root):
            os.close(descriptor)

    def find_again(self) -> None:
        """If the folder was removed, look for a new one of its name; raises OSError or MisuseError if there is none."""
        if os.fstat(self._root).st_nlink == 0:
            fresh = _adopt(self.path, make=False)
            os.dup2(fresh, self._root, inheritable=False)  # other threads go on with a descriptor that is valid
            os.close(fresh)

    def disk(self) -> os.statvfs_result:
        """The disk that it lies on."""
        return os.fstatvfs(self._root)

    # --- entries -------------------------------------------------------------------------------------------------------

    def _in_part(self, name: str, what: Callable[[int], _Found], *, make: bool = False) -> _Found:
        """Do something in the open subfolder of an entry; once more where that was removed, and there is another now."""
        descriptor = self._parts.get(name[:2])
        if descriptor is None:
            descriptor = self._open_part(name[:2], make)
        try:
            return what(descriptor)
        except FileNotFoundError:
            if os.fstat(descriptor).st_nlink:
                raise
            fresh = self._open_part(name[:2], make, keep=False)
            os.dup2(fresh, descriptor, inheritable=False)  # other threads go on with a descriptor that is valid
            os.close(fresh)
            return what(descriptor)

    def _open_part(self, part: str, make: bool, *, keep: bool = True) -> int:
        try:
            descriptor = os.open(part, _OPEN_FOLDER, dir_fd=self._root)
        except FileNotFoundError:
            if not make:
                raise
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=self._root)
            descriptor = os.open(part, _OPEN_FOLDER, dir_fd=self._root)
        if keep and (other := self._parts.setdefault(part, descriptor)) != descriptor:
            os.close(descriptor)  # another thread was faster
            return other
        return descriptor

    def begin(self, name: str) -> tuple[str, int]:
        """Make an unfinished file for an entry; its name and descriptor, which holds its lock until it is closed."""
        unfinished = f".{name}.{os.getpid():x}.{_TOKEN}{next(_NUMBERS):x}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN
        descriptor = self._in_part(name, lambda part: os.open(unfinished, flags, 0o600, dir_fd=part), make=True)
        with contextlib.suppress(OSError):  # without locks, its age protects it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return unfinished, descriptor

    def open_entry(self, name: str) -> int:
        """Open an entry for reading; raises OSError where there is none."""
        return self._in_part(name, lambda part: os.open(name, os.O_RDONLY | _OPEN, dir_fd=part))

    def find(self, name: str) -> FoundEntry | None:
        """An entry; None if there is none."""
        try:
            status = self._in_part(name, lambda part: os.stat(name, dir_fd=part, follow_symlinks=False))
        except FileNotFoundError:
            return None
        return FoundEntry(status.st_mtime_ns, name, status.st_size, taken_by(status)) if is_own_file(status) else None

    def publish(self, unfinished: str, name: str) -> None:
        """Give an unfinished file the name of its entry."""
        part = self._parts[name[:2]]  # opened by `begin`
        os.rename(unfinished, name, src_dir_fd=part, dst_dir_fd=part)

    def unlink(self, file: str, name: str) -> None:
        """Remove a file from the subfolder of an entry; raises FileNotFoundError where there is none."""
        self._in_part(name, lambda part: os.unlink(file, dir_fd=part))

    def touch(self, name: str, now_ns: int) -> None:
        """Say that an entry was used."""
        self._in_part(name, lambda part: os.utime(name, ns=(now_ns, now_ns), dir_fd=part, follow_symlinks=False))

    def walk(self, now_ns: int, stale_ns: int) -> Iterator[FoundEntry]:
        """All entries. Removes unfinished files that are older than *stale_ns* and that nobody writes."""
        for part in PARTS:
            try:
                descriptor = os.open(part, _OPEN_FOLDER, dir_fd=self._root)
            except OSError as problem:
                if problem.errno in ABSENT_ERRORS:
                    continue
                raise
            try:
                with os.scandir(descriptor) as listed:
                    for each in listed:
                        if (found := _look_at(descriptor, part, each, now_ns, stale_ns)) is not None:
                            yield found
            finally:
                os.close(descriptor)

    # --- the lock ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self, wait_s: float | None = None) -> Iterator[Lock]:
        """Hold the lock against other threads and processes. Raises `LockedError` after *wait_s*, or the folder's own wait.

        The file is opened each time, so that a process that was forked has a lock of its own.
        """
        wait_s = self._lock_wait_s if wait_s is None else min(wait_s, self._lock_wait_s)
        deadline = time.monotonic() + wait_s
        if not self._mutex.acquire(timeout=wait_s):
            raise LockedError(errno.EBUSY, "another thread holds the lock of the folder", self.path)
        try:
            descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT | _OPEN, 0o600, dir_fd=self._root)
            try:
                if not is_own_file(os.fstat(descriptor)):
                    raise PermissionError(errno.EPERM, "the lock is no file of this user", f"{self.path}/{LOCK}")
                self._wait_for(descriptor, deadline)
                yield Lock(descriptor)
            finally:
                os.close(descriptor)
        finally:
            self._mutex.release()

    def _wait_for(self, descriptor: int, deadline: float) -> None:
        pause = 0.0005
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LockedError(errno.EBUSY, "another process holds the lock of the folder", self.path) from None
            time.sleep(pause)
            pause = min(2 * pause, 0.02)

    def mark(self) -> None:
        """Put the marker there again if it is gone."""
        _mark(self._root)


def _look_at(part: int, prefix: str, each: os.DirEntry[str], now_ns: int, stale_ns: int) -> FoundEntry | None:
    """The entry that a file of a subfolder is, if it is one; an unfinished file that was left over is removed."""
    name = each.name
    is_entry = name.startswith(prefix) and _ENTRY.fullmatch(name) is not None
    if not is_entry and not _UNFINISHED.fullmatch(name):
        return None
    try:
        status = os.stat(name, dir_fd=part, follow_symlinks=False)
        if not is_own_file(status):
            return None
        if is_entry:
            return FoundEntry(status.st_mtime_ns, name, status.st_size, taken_by(status))
        age_ns = now_ns - status.st_mtime_ns
        if age_ns > stale_ns and not _is_written(part, name, age_ns):
            os.unlink(name, dir_fd=part)
    except FileNotFoundError:  # removed while we looked
        pass
    return None


def _is_written(part: int, name: str, age_ns: int) -> bool:
    """Whether somebody still writes this unfinished file, and so holds its lock.

    The number of the process in its name would not tell: in containers it comes back, and means nothing in another one.
    A process of a version without these locks, which takes too long, has a put that fails, and nothing else.
    """
    descriptor = os.open(name, os.O_WRONLY | _OPEN, dir_fd=part)  # to write: some network file systems lock no other way
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return age_ns <= _ABANDONED_NS
    finally:
        os.close(descriptor)


# --- becoming a store --------------------------------------------------------------------------------------------------


def _adopt(path: str, *, make: bool = True) -> int:
    """Open a folder as a store; an empty one, or one that is not there, becomes a store. Raises MisuseError for any other."""
    root = -1
    try:
        if make:
            os.makedirs(path, mode=0o700, exist_ok=True)
        root = os.open(path, _OPEN_FOLDER)
        _check(root, path)
        return root
    except (OSError, MisuseError) as problem:
        if root >= 0:
            os.close(root)
        elif isinstance(problem, (FileExistsError, NotADirectoryError)):
            raise MisuseError(f"{path}: it is no folder (name a folder for the store)") from None
        if isinstance(problem, MisuseError):
            raise
        raise MisuseError(f"{path}: cannot be used as a store: {problem.strerror or problem}") from problem


def _check(root: int, path: str) -> None:
    status = os.fstat(root)
    if status.st_uid != os.geteuid():
        whose, ours = status.st_uid, os.geteuid()
        raise MisuseError(f"{path}: belongs to user {whose}, and this is user {ours} (name a folder of your own)")
    found = _read_marker(root, path)
    if found is None:
        foreign = sorted(name for name in os.listdir(root) if name != MARKER and not _HARMLESS.fullmatch(name))
        if foreign and _read_marker(root, path) is None:  # another process may have made the store just now
            raise MisuseError(f"{path}: is no store and not empty: it has {foreign[0]!r} (name an empty folder, or a new one)")
    elif found != FORMAT:
        said = found.splitlines()[0].decode("ascii", "backslashreplace") if found.strip() else "nothing"
        ours_said = FORMAT.decode("ascii").strip()
        raise MisuseError(f"{path}: its marker says {said!r}, and this is for {ours_said!r} (name another folder)")
    if not os.access(".", os.R_OK | os.W_OK | os.X_OK, dir_fd=root, effective_ids=True):
        raise MisuseError(f"{path}: is not writable (give its user the right to write)")
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.fchmod(root, stat.S_IMODE(status.st_mode) & 0o700)
    _mark(root)


def _read_marker(root: int, path: str) -> bytes | None:
    """What the marker says; None if there is none."""
    try:
        descriptor = os.open(MARKER, os.O_RDONLY | _OPEN, dir_fd=root)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise MisuseError(f"{path}/{MARKER}: {problem.strerror} (name another folder)") from None
    try:
        if not is_own_file(os.fstat(descriptor)):
            raise MisuseError(f"{path}/{MARKER}: is no file of this user (name another folder)")
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def _mark(root: int) -> None:
    """Write the marker, whole or not at all, if it is not there."""
    try:
        os.stat(MARKER, dir_fd=root, follow_symlinks=False)
        return
    except FileNotFoundError:
        pass
    unfinished = f".{MARKER}.{secrets.token_hex(8)}"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=root)
    try:
        os.write(descriptor, FORMAT)
        os.rename(unfinished, MARKER, src_dir_fd=root, dst_dir_fd=root)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished, dir_fd=root)
        raise
    finally:
        os.close(descriptor)
