"""Files as a store: bytes come back, the bound holds, and nothing in the folder is trusted, whoever put it there."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklife.errors import MisuseError
from blocklife.tiers import FileStore, Page, Removing, StoreOutcome
from blocklife.tiers import _bound as bound
from blocklife.tiers import _files as files
from blocklife.tiers import _folder as folder
from tests.disks import small_disk
from tests.tiers.arena import Arena, key, value

OK, ABSENT, WRONG_SIZE = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.WRONG_SIZE
FULL, FAILED = StoreOutcome.FULL, StoreOutcome.FAILED

SECOND = 1_000_000_000
BLOCK = 4096
"""Of the disk: values of so many bytes take as many."""


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000 * SECOND

    def __call__(self) -> int:
        self.now += 20 * SECOND  # so that every use is another time
        return self.now


@pytest.fixture
def arena() -> Arena:
    return Arena()


@pytest.fixture
def store(tmp_path: Path, arena: Arena) -> Iterator[FileStore]:
    store = open_one(tmp_path / "store", arena)
    yield store
    store.close()


def open_one(path: Path, arena: Arena, max_bytes: int = 1 << 20, **more: float) -> FileStore:
    store = FileStore(path, max_bytes, clock=Clock(), **more)
    arena.join(store)
    return store


def entry(path: Path, name: object) -> Path:
    """Where an entry lies."""
    text = key(name).hex()
    return path / text[:2] / text


def taken(path: Path) -> int:
    """The bytes that all entries take on the disk."""
    found = [each.stat() for each in path.glob("??/[!.]*")]
    return sum(max(each.st_size, 512 * each.st_blocks) for each in found)


def listed(path: Path) -> list[str]:
    """All entries and unfinished files."""
    return sorted(each.name for each in path.glob("??/*"))


# --- values ------------------------------------------------------------------------------------------------------------


class Disk:
    """A disk from which nothing comes at once: a read that must not wait gives what *cached* says, or an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cached: int | OSError) -> None:
        self.asked = 0
        """Files that were asked for and not read yet."""
        self.most = 0
        self.fails = 0
        """The number of the read that fails."""
        self._reads = 0
        self._cached = cached
        self._preadv, self._fadvise = os.preadv, os.posix_fadvise
        monkeypatch.setattr(os, "preadv", self.preadv)
        monkeypatch.setattr(os, "posix_fadvise", self.fadvise)

    def preadv(self, descriptor: int, views: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags == os.RWF_NOWAIT:
            if isinstance(self._cached, OSError):
                raise self._cached
            return self._preadv(descriptor, [views[0][: self._cached]], offset)
        self._reads += 1
        self.asked -= 1
        if self._reads == self.fails:
            raise OSError(errno.EIO, "the disk cannot read it")
        return self._preadv(descriptor, views, offset)

    def fadvise(self, descriptor: int, offset: int, size: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        self._fadvise(descriptor, offset, size, advice)
        self.asked += 1
        self.most = max(self.most, self.asked)


COLD: dict[str, int | OSError] = {
    "nothing cached": BlockingIOError(errno.EAGAIN, "it would wait"),
    "a part cached": 100,
}


@pytest.mark.parametrize("cached", COLD)
def test_values_on_the_disk_are_asked_for_ahead(
    store: FileStore, arena: Arena, monkeypatch: pytest.MonkeyPatch, cached: str
) -> None:
    """Several at once, and never more than a bound; each comes whole, and every file is closed."""
    names = range(40)
    assert [arena.put(store, name, value(name, 3000)) for name in names] == [OK] * 40
    disk = Disk(monkeypatch, COLD[cached])
    before = len(os.listdir("/proc/self/fd"))
    pages = [arena.page(name, 3000) for name in names]

    assert store.get([*pages, arena.page("none", 3000)]) == [OK] * 40 + [ABSENT]
    assert [arena.read(page) for page in pages] == [value(name, 3000) for name in names]
    assert (disk.most, disk.asked) == (16, 0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_file_system_that_cannot_tell_what_is_cached_is_asked_once(
    store: FileStore, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [arena.put(store, name, value(name, 3000)) for name in "abc"] == [OK] * 3
    refused: list[int] = []
    preadv = os.preadv

    def refuse(descriptor: int, views: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            refused.append(flags)
            raise OSError(errno.EOPNOTSUPP, "not on this file system")
        return preadv(descriptor, views, offset)

    monkeypatch.setattr(os, "preadv", refuse)
    before = len(os.listdir("/proc/self/fd"))

    assert [arena.get(store, name, 3000) for name in "abc"] == [value(name, 3000) for name in "abc"]
    assert len(refused) == 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_read_that_fails_or_finds_less_costs_its_value_alone(
    store: FileStore, arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "abcdef"
    assert [arena.put(store, name, value(name, 3000)) for name in names] == [OK] * 6
    disk = Disk(monkeypatch, COLD["nothing cached"])
    disk.fails = 2
    fadvise = disk.fadvise

    def cut(descriptor: int, offset: int, size: int, advice: int) -> None:
        fadvise(descriptor, offset, size, advice)
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(key("d").hex()):
            os.truncate(entry(tmp_path / "store", "d"), 0)

    monkeypatch.setattr(os, "posix_fadvise", cut)
    before = len(os.listdir("/proc/self/fd"))
    pages = [arena.page(name, 3000) for name in names]

    assert store.get(pages) == [OK, FAILED, OK, WRONG_SIZE, OK, OK]
    assert [arena.read(pages[at]) for at in (0, 2, 4, 5)] == [value(names[at], 3000) for at in (0, 2, 4, 5)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert store.statistics().failed == 1


def test_put_keeps_the_bytes_that_are_there(store: FileStore, arena: Arena, tmp_path: Path) -> None:
    """A value of the same size is not written again; one of another size, which was damaged, is replaced."""
    whole = value("a", 3 * BLOCK)
    arena.put(store, "a", whole)
    inode = entry(tmp_path / "store", "a").stat().st_ino
    assert arena.put(store, "a", whole) is OK
    assert entry(tmp_path / "store", "a").stat().st_ino == inode

    os.truncate(entry(tmp_path / "store", "a"), 2 * BLOCK)
    assert arena.get(store, "a", 3 * BLOCK) is WRONG_SIZE
    assert arena.put(store, "a", whole) is OK
    assert arena.get(store, "a", 3 * BLOCK) == whole
    assert store.statistics().used_bytes == 4 * BLOCK  # the count is never too low; it knew of 3, and 2 were replaced


def test_put_of_a_value_that_vanishes_meanwhile_is_written(
    store: FileStore, arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has evicted it between the look at it and its touch."""
    monkeypatch.setattr(store._folder, "find", lambda name: folder.FoundEntry(0, name, 5, BLOCK))

    begin = store._folder.begin

    def undo_and_begin(name: str) -> tuple[str, int]:
        monkeypatch.undo()
        return begin(name)

    monkeypatch.setattr(store._folder, "begin", undo_and_begin)
    assert arena.put(store, "a", b"hello") is OK
    assert arena.get(store, "a", 5) == b"hello"
    assert store.statistics().used_bytes == taken(tmp_path / "store") > 0


def test_remove_takes_a_value_away(store: FileStore, arena: Arena) -> None:
    arena.put(store, "a", b"hello")
    assert isinstance(store, Removing)

    assert store.remove([key("a"), key("b")]) == [OK, ABSENT]
    assert store.exists([key("a")]) == [ABSENT]
    assert store.statistics().used_bytes == 0


def test_files_and_folders_are_for_their_owner_alone(store: FileStore, arena: Arena, tmp_path: Path) -> None:
    arena.put(store, "a", b"hello")
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "store", *(tmp_path / "store").rglob("*")]}

    assert len(modes) == 5  # the folder, its marker and lock, one subfolder, one entry
    assert {path for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == set()


def test_folder_that_others_could_read_is_closed_to_them(tmp_path: Path, arena: Arena) -> None:
    (tmp_path / "store").mkdir(mode=0o755)
    open_one(tmp_path / "store", arena).close()

    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700


def test_touch_that_fails_costs_nothing(store: FileStore, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that became read-only, what came whole is OK, and so is a put of what is there."""
    arena.put(store, "a", b"hello")
    refused: list[object] = []

    def refuse(path: object, **_more: object) -> None:
        refused.append(path)
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert arena.get(store, "a", 5) == b"hello"
    assert arena.put(store, "a", b"hello") is OK
    disk = Disk(monkeypatch, COLD["nothing cached"])
    assert arena.get(store, "a", 5) == b"hello"
    assert (len(refused), disk.most, store.statistics().failed) == (3, 1, 0)


def test_page_outside_registered_memory_is_refused(store: FileStore, arena: Arena) -> None:
    with pytest.raises(MisuseError, match="not in registered memory"):
        store.put([Page(key("a"), arena.address + len(arena.memory) - 4, 5)])
    with pytest.raises(MisuseError, match="not in registered memory"):
        store.get([Page(key("a"), arena.address, 0)])
    with pytest.raises(MisuseError, match="is no key"):
        store.exists([b"short"])
    with pytest.raises(MisuseError, match="is no key"):
        store.remove([b"short"])
    with pytest.raises(MisuseError, match="overlap"):
        store.register(arena.address + 5, 5)
    with pytest.raises(MisuseError, match="are no memory"):
        store.register(arena.address, 0)


def test_close_waits_for_calls_that_run(store: FileStore, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder stays open until the last call is over."""
    reached, go_on, closing = threading.Event(), threading.Event(), threading.Event()
    real = os.pwrite

    def slow(descriptor: int, data: bytes, offset: int) -> int:
        reached.set()
        go_on.wait()
        return real(descriptor, data, offset)

    outcomes: list[StoreOutcome] = []
    monkeypatch.setattr(os, "pwrite", slow)
    putting = threading.Thread(target=lambda: outcomes.append(arena.put(store, "a", b"hello")))
    putting.start()
    reached.wait()

    def close() -> None:
        closing.set()
        store.close()

    closer = threading.Thread(target=close)
    closer.start()
    closing.wait()
    go_on.set()
    putting.join()
    closer.join()
    assert outcomes == [OK]


# --- the bound ---------------------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_is_evicted(tmp_path: Path, arena: Arena) -> None:
    """A get is a use, a question is none, and putting again is one."""
    store = open_one(tmp_path, arena, 4 * BLOCK)
    for name in "abcd":
        arena.put(store, name, value(name, BLOCK))
    arena.get(store, "a", BLOCK)
    arena.put(store, "b", value("b", BLOCK))
    store.exists([key("c")])
    assert arena.put(store, "e", value("e", BLOCK)) is OK

    assert store.exists([key(name) for name in "abcde"]) == [OK, OK, ABSENT, ABSENT, OK]  # one more than needed
    assert store.statistics().evicted == 2
    assert store.statistics().evicted_bytes == 2 * BLOCK
    assert store.statistics().used_bytes == 3 * BLOCK
    store.close()


def test_entries_never_exceed_the_bound(tmp_path: Path, arena: Arena) -> None:
    """Two stores on one folder with different bounds, put by turns: after each put the entries fit its bound."""
    stores = [open_one(tmp_path, arena, bound) for bound in (80_000, 52_000)]
    for number in range(60):
        store, bound = stores[number % 2], (80_000, 52_000)[number % 2]
        assert arena.put(store, number, value(number, 5_600 + 104 * number)) is OK
        assert store.statistics().used_bytes == taken(tmp_path) <= bound
    for store in stores:
        store.close()


def test_threads_and_evictions_mix_up_no_values(tmp_path: Path) -> None:
    """Two stores on one folder, two threads each: what is got is right, nothing fails, and the counts agree at the end."""
    stores = [FileStore(tmp_path, 160_000) for _ in range(2)]
    wrong: list[object] = []
    hits: list[int] = []

    def work(number: int) -> None:
        store, arena = stores[number % 2], Arena(1 << 17)
        arena.join(store)
        rng = random.Random(number)
        for _ in range(300):
            name = rng.randrange(60)
            size = 2_000 + 160 * name
            if rng.random() < 0.1:
                wrong.extend(each for each in store.remove([key(name)]) if each not in (OK, ABSENT))
            elif rng.random() < 0.5:
                wrong.extend([each] if (each := arena.put(store, name, value(name, size))) is not OK else [])
            else:
                found = arena.get(store, name, size)
                hits.append(found == value(name, size))
                wrong.extend([found] if found not in (value(name, size), ABSENT) else [])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert sum(hits) > 20
    assert [store.statistics().failed for store in stores] == [0, 0]
    assert min(store.statistics().evicted for store in stores) > 0
    for store in stores:
        store.close()
    last = FileStore(tmp_path, 160_000)
    there = taken(tmp_path)
    assert there <= last.statistics().used_bytes <= 160_000
    count(last)
    assert last.statistics().used_bytes == there
    assert [each for each in listed(tmp_path) if each.startswith(".")] == []
    last.close()


@pytest.mark.parametrize("size", [BLOCK, 1_000])
def test_batch_larger_than_the_bound_is_put_piece_by_piece(tmp_path: Path, arena: Arena, size: int) -> None:
    """Whether that is known before, or only by what the values take on the disk."""
    store = open_one(tmp_path, arena, 10_000)
    pages = [arena.page(name, value(name, size)) for name in range(7)]

    assert store.put(pages) == [OK] * 7
    assert store.exists([page.key for page in pages[:5]]) == [ABSENT] * 5
    assert store.exists([pages[6].key]) == [OK]
    store.close()


@pytest.mark.parametrize("size", [2 * BLOCK + 1, 2 * BLOCK + 1_001, 1 << 19])
def test_value_above_the_bound_is_full_and_spoils_nothing(tmp_path: Path, arena: Arena, size: int) -> None:
    """Whether its bytes are above the bound, or only what they take on the disk; nothing is evicted for it."""
    store = open_one(tmp_path, arena, 2 * BLOCK + 1_000)
    arena.put(store, "a", b"hello")

    pages = [arena.page("b", size), arena.page("c", b"there")]
    assert store.put(pages) == [FULL, OK]
    assert arena.get(store, "a", 5) == b"hello"
    assert store.statistics().full == 1
    assert store.statistics().failed == 0
    assert store.statistics().evicted == 0
    assert [each for each in listed(tmp_path) if each.startswith(".")] == []
    store.close()


class FullDisk:
    """A disk with room for so many bytes of entries and unfinished files; more than that cannot be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, room: int, problem: int = errno.ENOSPC) -> None:
        self.room = room
        self.refused = 0
        self._path, self._problem, self._pwrite = path, problem, os.pwrite
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("/lock"):
            files = [each.stat() for each in self._path.glob("??/*")]
            if sum(512 * each.st_blocks for each in files) + -(-len(data) // BLOCK) * BLOCK > self.room:
                self.refused += 1
                self._pwrite(descriptor, data[:10], 0)
                raise OSError(self._problem, os.strerror(self._problem))
        return self._pwrite(descriptor, data, offset)


@pytest.mark.parametrize(("batch", "problem"), [(1, errno.ENOSPC), (7, errno.EDQUOT)])
def test_disk_that_is_full_before_the_bound_makes_room_for_what_comes(
    tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch, batch: int, problem: int
) -> None:
    """Every value is kept, and nothing is left over; one look at all entries makes room for several puts."""
    disk = FullDisk(monkeypatch, tmp_path, 64 * BLOCK, problem)
    store = open_one(tmp_path, arena)
    for number in range(210 // batch):
        names = [(number, each) for each in range(batch)]
        mark = arena._used
        assert store.put([arena.page(name, value(name, 4_352)) for name in names]) == [OK] * batch
        arena._used = mark
        assert [arena.get(store, name, 4_352) for name in names] == [value(name, 4_352) for name in names]
        assert store.statistics().used_bytes == taken(tmp_path) <= disk.room

    assert (store.statistics().full, store.statistics().failed) == (0, 0)
    assert store.statistics().evicted == 210 - len(listed(tmp_path))
    assert taken(tmp_path) > disk.room // 2
    assert 0 < disk.refused < 210 // 2
    store.close()


def test_disk_that_stays_full_empties_no_store(tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes all room that is made: a put in vain, and then none is made for a minute; what is there is got."""
    now = [1_000_000 * SECOND]
    store = FileStore(tmp_path, 1 << 20, clock=lambda: now[0])
    arena.join(store)
    for name in range(64):
        now[0] += SECOND
        arena.put(store, name, value(name, BLOCK))
    FullDisk(monkeypatch, tmp_path, 0)
    for name in range(100, 150):
        assert arena.put(store, name, value(name, BLOCK)) is FULL
        now[0] += SECOND
    once = store.statistics()
    now[0] += files._IN_VAIN_NS
    assert arena.put(store, "later", value("later", BLOCK)) is FULL
    twice = store.statistics()

    assert (once.evicted, once.full) == (1 + 64 // 16, 50)  # a value, and a sixteenth of what there was
    assert (twice.evicted, twice.full) == (2 * once.evicted, 51)
    assert [name for name in range(64) if arena.get(store, name, BLOCK) != value(name, BLOCK)] == list(range(10))
    assert [each for each in listed(tmp_path) if each.startswith(".")] == []
    monkeypatch.undo()
    assert arena.put(store, "at last", value("at last", BLOCK)) is OK  # the disk has room: nothing need be evicted
    assert store.statistics().evicted == twice.evicted
    store.close()


def test_put_makes_room_on_a_full_disk_once(tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes it after the first value of a call: the others find none, and no more is evicted for them."""
    store = open_one(tmp_path, arena)
    for name in range(64):
        arena.put(store, name, value(name, BLOCK))
    disk = FullDisk(monkeypatch, tmp_path, 64 * BLOCK)
    begin = store._folder.begin

    def begin_and_fill(name: str) -> tuple[str, int]:
        if disk.refused:
            disk.room = taken(tmp_path) + BLOCK
        return begin(name)

    monkeypatch.setattr(store._folder, "begin", begin_and_fill)
    assert store.put([arena.page(name, value(name, BLOCK)) for name in range(100, 108)]) == [OK] + [FULL] * 7
    assert store.statistics().evicted == 8 + 64 // 16
    store.close()


@pytest.mark.parametrize("bound", [None, 1 << 19])
def test_small_disk_is_filled_and_goes_on(tmp_path: Path, bound: int | None) -> None:
    """A real one, which many small values fill, with the default bound and with one that is the whole disk."""
    with small_disk(tmp_path, 1 << 19):
        store, arena = FileStore(tmp_path / "store", bound), Arena()
        arena.join(store)
        outcomes = {arena.put(store, number, value(number, 4_352)) for number in range(500)}
        last = arena.get(store, 499, 4_352)
        statistics, on_disk = store.statistics(), taken(tmp_path / "store")
        store.close()

    assert outcomes == {OK}
    assert last == value(499, 4_352)
    assert statistics.used_bytes == on_disk <= statistics.max_bytes
    assert on_disk > (1 << 17)
    assert statistics.evicted > 400


@pytest.mark.parametrize(("problem", "outcome"), [(FileNotFoundError(2, "gone"), OK), (PermissionError(1, "kept"), FULL)])
def test_entry_that_cannot_be_evicted_is_counted_and_one_that_vanished_is_not(
    tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch, problem: OSError, outcome: StoreOutcome
) -> None:
    """Where nothing can be evicted there is no room, and nothing is left of what was written."""
    store = open_one(tmp_path, arena, 3 * BLOCK)
    arena.put(store, "a", value("a", 3 * BLOCK))
    unlink = store._folder.unlink

    def refuse(file: str, name: str) -> None:
        if file != name:
            unlink(file, name)
        else:
            raise problem

    monkeypatch.setattr(store._folder, "unlink", refuse)
    assert arena.put(store, "b", value("b", 2 * BLOCK)) is outcome

    assert sorted(listed(tmp_path)) == sorted(key(name).hex() for name in ("ab" if outcome is OK else "a"))
    assert store.statistics().used_bytes == (2 if outcome is OK else 3) * BLOCK
    store.close()


def test_default_bound_is_half_of_what_is_free(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize

    assert 0.4 * free < store.statistics().max_bytes < 0.6 * free
    store.close()


@pytest.mark.parametrize(
    ("bound", "says"), [(0, "keeps nothing"), (-1, "keeps nothing"), (True, "keeps nothing"), (1 << 62, "on a disk of")]
)
def test_bound_that_keeps_nothing_or_more_than_the_disk_is_refused(tmp_path: Path, bound: int, says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        FileStore(tmp_path, bound)


# --- a folder with others in it ----------------------------------------------------------------------------------------


def test_folder_that_cannot_be_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("x")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / folder.MARKER).write_text("blocklife file store, format 2\n")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / folder.MARKER).symlink_to(tmp_path / "newer" / folder.MARKER)

    with pytest.raises(MisuseError, match="it is no folder"):
        FileStore(tmp_path / "file")
    with pytest.raises(MisuseError, match="it is no folder"):
        FileStore(tmp_path / "file" / "below")
    with pytest.raises(MisuseError, match="is no store and not empty"):
        FileStore(tmp_path / "full")
    with pytest.raises(MisuseError, match="its marker says 'blocklife file store, format 2'"):
        FileStore(tmp_path / "newer")
    with pytest.raises(MisuseError, match=folder.MARKER):
        FileStore(tmp_path / "linked")
    with pytest.raises(MisuseError, match="has a zero byte"):
        FileStore("a\0b")
    assert list((tmp_path / "full").iterdir()) == [tmp_path / "full" / "thesis.txt"]


def test_folder_of_a_new_disk_is_as_good_as_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()

    FileStore(tmp_path).close()
    assert (tmp_path / folder.MARKER).read_bytes() == folder.FORMAT


AS_NOBODY = """
import os, sys
sys.path[:0] = sys.argv[2:]
from blocklife.errors import MisuseError
from blocklife.tiers import FileStore
os.setgroups([]); os.setegid(65534); os.seteuid(65534)
try:
    FileStore(sys.argv[1])
except MisuseError as problem:
    print(problem)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("owner", "mode", "says"), [(0, 0o777, "belongs to user 0"), (65534, 0o500, "is not writable")])
def test_folder_of_another_user_or_without_rights_is_refused(tmp_path: Path, owner: int, mode: int, says: str) -> None:
    """The checks are for the effective user. The folder lies where every user may look for it."""
    path = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        os.chown(path, owner, owner)
        path.chmod(mode)
        ran = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(path), *sys.path], capture_output=True, text=True, check=True
        )
        assert says in ran.stdout
        assert list(path.iterdir()) == []
    finally:
        path.rmdir()


def test_files_of_others_are_left_alone(tmp_path: Path, arena: Arena) -> None:
    """Neither counted nor evicted, whatever they are called."""
    store = open_one(tmp_path, arena, 5_000)
    arena.put(store, "a", value("a", BLOCK))
    part = entry(tmp_path, "a").parent
    others = [
        part / "notes.txt",
        tmp_path / "README",
        part / ("zz" + "0" * 62),
        part / f".{'0' * 64}.1.{'0' * 8}",
    ]
    other_part = part.parent / ("00" if part.name != "00" else "01")
    other_part.mkdir(exist_ok=True)
    others.append(other_part / key("a").hex())  # an entry's name, in the wrong subfolder
    for each in others:
        each.write_bytes(bytes(9_000))
        os.utime(each, (1, 1))
    for name in "bc":
        assert arena.put(store, name, value(name, BLOCK)) is OK

    assert [each for each in others if not each.is_file()] == []
    assert store.statistics().used_bytes == BLOCK
    store.close()
    again = open_one(tmp_path, arena)
    assert again.statistics().used_bytes == BLOCK
    again.close()
    assert [each for each in others if not each.is_file()] == []


def test_link_is_not_followed(tmp_path: Path, arena: Arena) -> None:
    """Neither as an entry nor as a subfolder nor as the lock; what they point at is neither read nor written."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store = open_one(tmp_path / "store", arena)
    entry(tmp_path / "store", "a").parent.mkdir(mode=0o700)
    entry(tmp_path / "store", "a").symlink_to(outside / "secret")
    assert arena.get(store, "a", 6) is ABSENT
    assert store.exists([key("a")]) == [ABSENT]
    assert arena.put(store, "a", b"ours.!") is OK  # takes the place of the link
    assert (outside / "secret").read_bytes() == b"secret"
    assert arena.get(store, "a", 6) == b"ours.!"

    name = key("b").hex()
    (outside / name).write_bytes(b"secret")
    entry(tmp_path / "store", "b").parent.symlink_to(outside)
    assert arena.get(store, "b", 6) is ABSENT
    assert store.exists([key("b")]) == [ABSENT]
    assert arena.put(store, "b", b"ours.!") is FAILED
    assert sorted(each.name for each in outside.iterdir()) == sorted(["secret", name])

    (tmp_path / "store" / "lock").unlink()
    (tmp_path / "store" / "lock").symlink_to(outside / "secret")
    assert arena.put(store, "c", b"ours") is FAILED
    assert (outside / "secret").read_bytes() == b"secret"
    store.close()


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket"])
def test_what_is_no_regular_file_is_no_entry(store: FileStore, arena: Arena, tmp_path: Path, kind: str) -> None:
    """Least of all a pipe, which who opens it would wait for."""
    path = entry(tmp_path / "store", "a")
    path.parent.mkdir(mode=0o700)
    if kind == "folder":
        path.mkdir()
    else:
        os.mknod(path, 0o600 | (stat.S_IFIFO if kind == "pipe" else stat.S_IFSOCK))

    assert store.exists([key("a")]) == [ABSENT]
    assert arena.get(store, "a", 5) is ABSENT
    assert arena.put(store, "a", b"hello") is (FAILED if kind == "folder" else OK)


def test_descriptors_are_given_back(tmp_path: Path, arena: Arena) -> None:
    """After calls of every kind, and after folders that were refused, as many are open as before."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    before = set(os.listdir("/proc/self/fd"))
    store = open_one(tmp_path / "store", arena, 3_000)
    for name in range(12):
        arena.put(store, name, value(name, 500))
        arena.get(store, name, 499)
        arena.get(store, name - 3, 500)
    store.remove([key(11), key("no")])
    empty(tmp_path / "store")
    for name in range(12):
        arena.put(store, name, value(name, 200))
    empty(tmp_path / "store")
    (tmp_path / "store").rmdir()
    (tmp_path / "store").mkdir()
    arena.put(store, "a", b"hello")
    arena.put(store, "a", b"hello")
    store.close()
    for each in ("full", "full/thesis.txt"):
        with pytest.raises(MisuseError):
            FileStore(tmp_path / each)

    assert set(os.listdir("/proc/self/fd")) == before


def test_entry_that_vanishes_is_absent(store: FileStore, arena: Arena, tmp_path: Path) -> None:
    arena.put(store, "a", b"hello")
    entry(tmp_path / "store", "a").unlink()

    assert arena.get(store, "a", 5) is ABSENT
    assert store.exists([key("a")]) == [ABSENT]
    assert arena.put(store, "a", b"hello") is OK


def test_subfolders_that_were_removed_are_made_again(tmp_path: Path, arena: Arena) -> None:
    """And both stores on the folder find what the other put there."""
    first, second = open_one(tmp_path, arena), open_one(tmp_path, arena)
    for store in (first, second):
        arena.put(store, "a", b"hello")
    empty(tmp_path)

    assert arena.get(second, "a", 5) is ABSENT
    assert arena.put(first, "a", b"hello") is OK
    assert arena.get(second, "a", 5) == b"hello"
    assert second.exists([key("a")]) == [OK]
    first.close()
    second.close()
    open_one(tmp_path, arena).close()


def test_bound_holds_after_subfolders_were_removed_and_filled_by_others(tmp_path: Path, arena: Arena) -> None:
    """Who has the old subfolders open evicts, and removes, what lies in the new ones."""
    first = open_one(tmp_path, arena, 10 * BLOCK)
    names = range(40)
    for name in names:
        arena.put(first, name, value(name, BLOCK))
    empty(tmp_path)
    second = open_one(tmp_path, arena, 10 * BLOCK)
    for name in names:
        arena.put(second, name, value(name, BLOCK))
    kept = [name for name in names if entry(tmp_path, name).exists()]
    assert first.remove([key(kept[0])]) == [OK]
    assert not entry(tmp_path, kept[0]).exists()
    for name in range(100, 110):
        assert arena.put(first, name, value(name, BLOCK)) is OK
        assert taken(tmp_path) <= 10 * BLOCK

    assert [name for name in kept if entry(tmp_path, name).exists()] == []
    first.close()
    second.close()


def empty(path: Path) -> None:
    """Remove all that is in a folder."""
    for each in path.iterdir():
        if each.is_dir():
            empty(each)
            each.rmdir()
        else:
            each.unlink()


def test_folder_that_was_removed_is_found_again(tmp_path: Path, arena: Arena) -> None:
    """Without it puts fail, and gets are misses. A new folder of the name is a store again."""
    path = tmp_path / "store"
    store = open_one(path, arena)
    arena.put(store, "a", b"hello")
    empty(path)
    path.rmdir()
    assert arena.put(store, "b", b"hello") is FAILED
    assert arena.get(store, "a", 5) is ABSENT
    assert not path.exists()

    path.mkdir()
    assert arena.put(store, "b", b"hello") is FAILED  # the put that finds it
    assert arena.put(store, "b", b"hello") is OK
    assert arena.get(store, "b", 5) == b"hello"
    store.close()
    assert open_one(path, arena).statistics().used_bytes == taken(path) > 0


# --- the lock and the count --------------------------------------------------------------------------------------------

HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_lock_that_is_not_given_back_is_waited_for_with_a_limit(tmp_path: Path, arena: Arena) -> None:
    """What could not be published is FAILED and leaves nothing; gets go on."""
    store = open_one(tmp_path, arena, lock_wait_s=0.01)
    arena.put(store, "a", b"hello")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert arena.put(store, "b", b"there") is FAILED
        assert "holds the lock" in store.statistics().last_error
        assert arena.get(store, "a", 5) == b"hello"
        assert listed(tmp_path) == [key("a").hex()]
        assert store.remove([key("a"), key("b")]) == [FAILED, FAILED]
        assert (store.statistics().failed, store.statistics().full) == (3, 0)
        holder.kill()
    assert arena.put(store, "b", b"there") is OK
    store.close()


def test_count_that_is_too_high_is_mended_by_the_next_eviction(tmp_path: Path, arena: Arena) -> None:
    """Nothing is evicted for entries that are not there."""
    store = open_one(tmp_path, arena, 3 * BLOCK)
    for name in "abc":
        arena.put(store, name, value(name, BLOCK))
    entry(tmp_path, "a").unlink()

    assert arena.put(store, "d", value("d", BLOCK)) is OK
    assert store.exists([key(name) for name in "bcd"]) == [OK, OK, OK]
    assert store.statistics().used_bytes == 3 * BLOCK
    store.close()


def test_entries_are_counted_anew_now_and_then(tmp_path: Path, arena: Arena) -> None:
    clock = Clock()
    store = FileStore(tmp_path, 3 * BLOCK, clock=clock)
    arena.join(store)
    arena.put(store, "a", value("a", BLOCK))
    entry(tmp_path, "a").write_bytes(value("a", 3 * BLOCK))  # grown by somebody else
    clock.now += bound._COUNT_EVERY_NS
    arena.put(store, "b", value("b", BLOCK))

    assert store.exists([key("a"), key("b")]) == [ABSENT, OK]
    assert store.statistics().used_bytes == BLOCK
    store.close()


def test_start_takes_the_count_that_is_there(tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a look at the entries; also that of an earlier version, which reads the first number, and said no time."""
    arena.put(store := open_one(tmp_path, arena), "a", b"hello")
    store.close()
    lock, used = tmp_path / "lock", taken(tmp_path)
    assert (len(lock.read_bytes()), lock.read_bytes()[:8]) == (16, used.to_bytes(8, "little"))
    with monkeypatch.context() as patch:
        patch.setattr(folder.Folder, "walk", lambda *_: pytest.fail("a look at every entry"))
        for said in (16, 8):
            os.truncate(lock, said)
            again = open_one(tmp_path, arena)
            assert again.statistics().used_bytes == used
            again.close()
    for wrong in (b"", bytes(16), b"\xff" * 16):  # new, lost in a power cut, garbage
        lock.write_bytes(wrong)
        again = open_one(tmp_path, arena)
        assert again.statistics().used_bytes == used
        again.close()


def test_one_process_counts_for_all(tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    stores = [FileStore(tmp_path, 10 * BLOCK, clock=clock) for _ in range(4)]
    walks: list[int] = []
    walk = folder.Folder.walk

    def counted(self: folder.Folder, now_ns: int, stale_ns: int) -> Iterator[folder.FoundEntry]:
        walks.append(1)
        return walk(self, now_ns, stale_ns)

    monkeypatch.setattr(folder.Folder, "walk", counted)
    clock.now += bound._COUNT_EVERY_NS
    for store in stores:
        arena.join(store)
        assert arena.put(store, id(store), b"hello") is OK
        store.close()

    assert walks == [1]


def test_store_starts_while_the_lock_is_busy(tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """And learns with its first put what there is, on which the default bound depends."""
    monkeypatch.setattr(bound, "_OPEN_WAIT_S", 0.01)
    arena.put(first := open_one(tmp_path, arena), "a", b"hello")
    with first._folder.locked():
        store = FileStore(tmp_path)
    before = store.statistics()
    arena.join(store)
    assert arena.put(store, "b", b"there") is OK

    assert before.used_bytes == 0
    assert store.statistics().used_bytes == taken(tmp_path) == 2 * BLOCK
    assert store.statistics().max_bytes - before.max_bytes == BLOCK // 2
    first.close()
    store.close()


def unfinished(path: Path, age_s: int, clock: Clock) -> Path:
    """An unfinished file, as a process leaves it that was killed; its number is that of this process, which lives."""
    name = key("a").hex()
    (path / name[:2]).mkdir(exist_ok=True, mode=0o700)
    left = path / name[:2] / f".{name}.{os.getpid():x}.0123456789"
    left.write_bytes(b"half")
    os.utime(left, ns=(0, clock.now - age_s * SECOND))
    return left


def count(store: FileStore) -> None:
    """Look at every entry, as a store does now and then."""
    with store._folder.locked() as lock:
        store._bound.count(lock)


def test_unfinished_file_is_removed_once_it_is_old_and_nobody_writes_it(tmp_path: Path, arena: Arena) -> None:
    """Whatever process its name tells of: the lock decides, which another process can ask for, too."""
    clock = Clock()
    store = FileStore(tmp_path, 3 * BLOCK, clock=clock)
    for age, locked, stays in ((3_600, False, False), (90, False, True), (900, False, False), (3_600, True, True)):
        left = unfinished(tmp_path, age, clock)
        with subprocess.Popen(
            [sys.executable, "-c", HOLD if locked else "print('held')", str(left)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            count(store)
            assert left.exists() is stays
        left.unlink(missing_ok=True)
    store.close()


def test_unfinished_file_is_locked_while_it_is_written(
    store: FileStore, arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that hangs for an hour is not swept away by a count."""
    real = os.pwrite

    def hang(descriptor: int, data: bytes, offset: int) -> int:
        done = real(descriptor, data, offset)
        if bytes(data) == b"hello":
            os.utime(descriptor, (1, 1))
            count(store)
        return done

    monkeypatch.setattr(os, "pwrite", hang)
    assert arena.put(store, "a", b"hello") is OK
    assert arena.get(store, "a", 5) == b"hello"
    assert listed(tmp_path / "store") == [key("a").hex()]


def test_without_locks_of_files_an_unfinished_file_is_removed_after_an_hour(
    tmp_path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    store = FileStore(tmp_path, 3 * BLOCK, clock=clock)
    arena.join(store)
    flock = fcntl.flock

    def refuse(descriptor: int, how: int) -> None:
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("/lock"):
            raise OSError(errno.ENOLCK, "No locks available")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", refuse)
    for age, stays in ((1_800, True), (4_000, False)):
        left = unfinished(tmp_path, age, clock)
        count(store)
        assert left.exists() is stays
    assert arena.put(store, "a", b"hello") is OK
    store.close()


PUTTER = textwrap.dedent("""
    import sys
    sys.path[:0] = sys.argv[2:]
    from blocklife.tiers import FileStore
    from tests.tiers.arena import Arena, value
    store, arena = FileStore(sys.argv[1], 200_000), Arena()
    arena.join(store)
    print("started", flush=True)
    for number in range(1_000_000):
        pages = [arena.page((number, each), value((number, each), 3_000)) for each in range(4)]
        arena._used = 0
        store.put(pages)
        if number % 8 == 7:
            print(number, flush=True)
""")


def test_killed_at_any_moment_leaves_only_whole_entries(tmp_path: Path, arena: Arena) -> None:
    """Method: a process that puts and evicts without pause is killed again and again, each time at another point."""
    last = 0
    for lines in range(1, 7):
        with subprocess.Popen(
            [sys.executable, "-c", PUTTER, str(tmp_path), *sys.path], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(lines):
                last = int(process.stdout.readline().replace("started", "0"))
            process.send_signal(signal.SIGKILL)
        store = open_one(tmp_path, arena, 200_000)
        sizes = {path.name: path.stat().st_size for path in tmp_path.glob("??/[!.]*")}
        assert set(sizes.values()) <= {3_000}
        assert taken(tmp_path) <= store.statistics().used_bytes <= 200_000
        count(store)
        assert store.statistics().used_bytes == taken(tmp_path)
        names = [(number, each) for number in range(last + 40) for each in range(4)]
        found = [name for name in names if key(name).hex() in sizes]
        assert len(found) == len(sizes)
        assert [name for name in found if arena.get(store, name, 3_000) != value(name, 3_000)] == []
        store.close()
    assert last > 30


def test_processes_that_put_at_once_keep_to_the_bound(tmp_path: Path, arena: Arena) -> None:
    """Two processes evict each other's entries: nobody fails, and the bound holds whenever one looks."""
    with (
        subprocess.Popen([sys.executable, "-c", PUTTER, str(tmp_path), *sys.path], stdout=subprocess.PIPE) as one,
        subprocess.Popen([sys.executable, "-c", PUTTER, str(tmp_path), *sys.path], stdout=subprocess.PIPE) as two,
    ):
        assert one.stdout is not None
        assert two.stdout is not None
        for _ in range(12):
            one.stdout.readline()
            two.stdout.readline()
            store = open_one(tmp_path, arena, 200_000)
            count(store)
            assert store.statistics().used_bytes <= 200_000
            store.close()
        one.kill()
        two.kill()
