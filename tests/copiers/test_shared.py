"""Ranks that share host memory have one region, whatever dies while they attach, and each place in it has one writer.

Method: real processes, forked, that attach, write and read; some are killed at random moments. What may lie there before is
made by hand. The folder is the test's own, but for the tests of `HostMemory`.
"""

from __future__ import annotations

import gc
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="host memory needs torch (pip install torch)")

import torch

from blocklife.copiers import Sharing
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch import _shared as shared
from blocklife.copiers.torch._shared import HEAD_BYTES, PREFIX, SUM_BYTES, SharedRegion, remove_leftovers
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Result, Worker
from tests.copiers.rig import LOAD, STORE, transfer
from tests.programs import HANGS_S

ROW, PLACES = 4_096, 24

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/shm")


def sharing(rank: int, num_ranks: int = 2, name: str = "test", chunk: int = 1) -> Sharing:
    return Sharing(name, rank, num_ranks, chunk)


def attached(shm: Path, rank: int, num_ranks: int = 2, row: int = ROW, places: int = PLACES) -> SharedRegion:
    return SharedRegion(sharing(rank, num_ranks), row, places, shm=shm)


def in_a_process(run: Callable[[], object]) -> int:
    """Run it in a forked process, which ends with 0 or, where it raises, with 1; its number."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        run()
        status = 0
    finally:
        os._exit(status)


def statuses(pids: Sequence[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def names(shm: Path) -> list[str]:
    return [path.name for path in shm.iterdir()]


# --- one region ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ranks", [1, 2, 8])
def test_ranks_write_their_places_and_read_all(num_ranks: int, tmp_path: Path) -> None:
    """Every rank finds the bytes of all; the name goes with the last that attaches, the memory stays."""
    gate = mmap.mmap(-1, 2 * num_ranks)

    def wait_for(phase: int) -> None:
        gate[phase * num_ranks + rank] = 1
        end = time.monotonic() + HANGS_S
        while not all(gate[phase * num_ranks : (phase + 1) * num_ranks]):
            assert time.monotonic() < end

    def run() -> None:
        region = attached(tmp_path, rank, num_ranks)
        rows = np.frombuffer(mmap.mmap(region.descriptor, region.nbytes), np.uint8, ROW * PLACES, HEAD_BYTES).reshape(
            PLACES, ROW
        )
        region.close()
        wait_for(0)
        assert names(tmp_path) == []
        for place in np.flatnonzero(sharing(rank, num_ranks).writes(np.arange(PLACES))):
            rows[place] = place + 1
        wait_for(1)
        assert (rows == np.arange(1, PLACES + 1)[:, None]).all()
        region.leave()

    pids = []
    for rank in range(num_ranks):  # noqa: B007 - the forked process has its own
        pids.append(in_a_process(run))

    assert statuses(pids) == [0] * num_ranks
    assert names(tmp_path) == []


def test_who_leaves_before_all_have_attached_takes_the_name_along(tmp_path: Path) -> None:
    """Alone; where another has attached, that one does."""
    first, second = attached(tmp_path, 0, 3), attached(tmp_path, 1, 3)
    mode = (tmp_path / f"{PREFIX}test").stat().st_mode & 0o777
    first.leave()
    between = names(tmp_path)
    second.leave()
    for region in (first, second):
        region.close()
        region.close()

    assert mode == 0o600
    assert between == [f"{PREFIX}test"]
    assert names(tmp_path) == []


@pytest.mark.parametrize(("slots", "chunk"), [([0, 2, 4], 1), ([0, 1, 4, 5], 2), ([0, 1, 2, 3, 8, 9, 10, 11], 4)])
def test_each_place_has_one_writer(slots: list[int], chunk: int) -> None:
    """All places of a slot the same."""
    places = np.arange(6 if chunk < 4 else 12)
    mine = [sharing(rank, 2, chunk=chunk).writes(places) for rank in range(2)]

    assert np.flatnonzero(mine[0]).tolist() == slots
    assert (mine[0] ^ mine[1]).all()


# --- what dies, and what was there --------------------------------------------------------------------------------------


def counted(run: Callable[[], object], most: float = float("inf")) -> int:
    """How many calls of built-in functions it makes; the process is killed at the one with the number *most*."""
    seen = 0

    def count(_frame: object, event: str, _called: object) -> None:
        nonlocal seen
        seen += event == "c_call"
        if seen >= most:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("seed", range(4))
def test_ranks_that_are_killed_at_any_moment_leave_nothing_behind(seed: int, tmp_path: Path) -> None:
    """Fifty times two ranks attach, and each is killed at some call, or not: the next two always can, with the same name."""
    dice = random.Random(seed)
    first, second = (counted(lambda rank=rank: attached(tmp_path, rank).close()) for rank in range(2))  # type: ignore[misc]
    killed = 0
    for _ in range(50):
        pids = []
        for rank, calls in ((0, first), (1, second)):
            at = dice.randint(1, 8 * calls)
            pids.append(in_a_process(lambda rank=rank, at=at: counted(lambda: attached(tmp_path, rank), at)))  # type: ignore[misc]
        killed += sum(status == -signal.SIGKILL for status in statuses(pids))
    print(f"seed {seed}: {killed} of 100 were killed, alone they make {first} and {second} calls")
    regions = [attached(tmp_path, rank) for rank in range(2)]

    assert names(tmp_path) == []
    assert killed > 10
    for region in regions:
        region.close()


def test_what_a_crash_has_left_is_removed_by_whoever_comes_next(tmp_path: Path) -> None:
    """Whatever its name; what somebody alive has, and what is none of ours, stays."""
    statuses([in_a_process(lambda: SharedRegion(sharing(0, name="dead"), ROW, PLACES, shm=tmp_path))])
    (tmp_path / f"{PREFIX}other").write_bytes(b"somebody else's" * 99)
    alive = SharedRegion(sharing(0, name="alive"), ROW, PLACES, shm=tmp_path)
    before = sorted(names(tmp_path))
    removed = remove_leftovers(tmp_path)
    alive.close()

    assert before == [f"{PREFIX}alive", f"{PREFIX}other"], "the one that attached has removed it already"
    assert removed == []


def test_a_region_that_a_crash_has_left_is_made_anew(tmp_path: Path) -> None:
    """Also one of another geometry, with the same name, and one that nobody came to describe."""
    statuses([in_a_process(lambda: attached(tmp_path, 0, row=512))])
    region = attached(tmp_path, 1)
    size = (tmp_path / f"{PREFIX}test").stat().st_size
    region.leave()
    region.close()
    (tmp_path / f"{PREFIX}test").write_bytes(bytes(9_000))
    attached(tmp_path, 1).close()

    assert size == HEAD_BYTES + (ROW + SUM_BYTES) * PLACES


MISTAKES: dict[str, tuple[Callable[[Path], object], str]] = {
    "geometry": (
        lambda shm: attached(shm, 1, row=2 * ROW),
        r"it has 2 ranks, rows of 4,096 bytes, 24 places, and this rank needs",
    ),
    "ranks": (lambda shm: attached(shm, 1, 3), r"this rank needs 3 ranks"),
    "twice": (lambda shm: attached(shm, 0), rf"rank 0, process {os.getpid()}, is attached already"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_region_of_somebody_else_is_refused(case: str, tmp_path: Path) -> None:
    """While one who has attached is alive; the region stays as it was."""
    region = attached(tmp_path, 0)
    before = (tmp_path / f"{PREFIX}test").read_bytes()
    call, says = MISTAKES[case]
    with pytest.raises(MisuseError, match=says):
        call(tmp_path)

    assert (tmp_path / f"{PREFIX}test").read_bytes() == before
    region.close()


def test_a_rank_that_has_died_beside_others_is_not_replaced(tmp_path: Path) -> None:
    """What it has written half-way nobody knows."""
    region = attached(tmp_path, 0, 3)
    statuses([in_a_process(lambda: attached(tmp_path, 1, 3))])
    with pytest.raises(
        MisuseError, match=r"rank 1, process \d+, has died, and others still use what it wrote \(restart all ranks"
    ):
        attached(tmp_path, 1, 3)
    region.close()


def test_what_is_no_region_is_refused(tmp_path: Path) -> None:
    """A file of another kind to which, it says, somebody alive has attached; and a link."""
    path = tmp_path / f"{PREFIX}test"
    region = attached(tmp_path, 0)
    with path.open("r+b") as file:
        file.write(b"otherone")
    with pytest.raises(MisuseError, match="it is none of this version"):
        attached(tmp_path, 1)
    region.close()
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MisuseError, match=r"Too many levels of symbolic links \(remove it"):
        attached(tmp_path, 1)


def test_a_region_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attached(tmp_path, 0).close()
    monkeypatch.setattr(os, "geteuid", lambda: 4_711)
    with pytest.raises(MisuseError, match=r"it belongs to user \d+ \(give the engine another name\)"):
        attached(tmp_path, 1)


def test_more_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    """Before anything is written, with both numbers and what to do; no file is left."""
    with pytest.raises(CapacityError, match=r"[\d,]+ bytes requested, and .* has [\d,]+ free \(.*--shm-size"):
        attached(tmp_path, 0, row=1 << 30, places=1 << 20)

    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "says"), [(("a/b", 0, 1), "name"), (("a", 2, 2), "there is no rank 2 among 2"), (("a", 0, 0), "num_ranks")]
)
def test_sharing_refuses_what_cannot_be(given: tuple[str, int, int], says: str) -> None:
    with pytest.raises((MisuseError, ValueError), match=says):
        Sharing(*given)


# --- the memory, and its copiers ----------------------------------------------------------------------------------------


@pytest.fixture
def name() -> Iterator[str]:
    """A name in /dev/shm that nobody else has."""
    mine = f"test-{os.getpid()}-{random.SystemRandom().randrange(1 << 32)}"
    yield mine
    (shared.SHM / f"{PREFIX}{mine}").unlink(missing_ok=True)


def test_host_memory_of_two_ranks_is_one(name: str) -> None:
    """What one writes the other reads; both heard of half of it; after the close nothing is left."""
    heard: list[tuple[int, int]] = []
    hosts = [
        HostMemory(
            ROW, PLACES, pinned=False, shared=Sharing(name, rank, 2), progress=lambda done, total: heard.append((done, total))
        )
        for rank in range(2)
    ]
    hosts[0].rows[3] = 7

    assert [host.absent() for host in hosts] == [[], []]
    assert hosts[1].rows.max(dim=1).values.tolist() == [7 * (place == 3) for place in range(PLACES)]
    assert {total for _, total in heard} == {ROW * PLACES // 2}
    for host in hosts:
        host.close()
    assert f"{PREFIX}{name}" not in names(shared.SHM)


def test_a_rank_that_has_not_attached_is_known(name: str) -> None:
    with HostMemory(ROW, PLACES, pinned=False, shared=Sharing(name, 1, 3)) as host:
        assert host.absent() == [0, 2]
    with HostMemory(ROW, PLACES, pinned=False) as alone:
        assert alone.absent() == []


def test_host_memory_gives_up_what_it_cannot_have(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses half-way: the error has both numbers, the region is left, and its file is closed."""
    files = len(os.listdir("/proc/self/fd"))

    def refuse(_descriptor: int, _at: int, _nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(CapacityError, match=r"the system gave 0: .*No space left on device"):
        HostMemory(ROW, PLACES, pinned=False, shared=Sharing(name, 0, 2))

    assert f"{PREFIX}{name}" not in names(shared.SHM)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == files


@pytest.mark.parametrize("chunk", [1, 2])
def test_ranks_store_what_they_write_and_load_everything(name: str, chunk: int) -> None:
    """Two ranks with the same content store all of it together, once, and each loads all; who has nothing to store says so."""
    content = torch.arange(8 * ROW, dtype=torch.int32).to(torch.uint8).view(8, ROW)
    ranks = [Sharing(name, rank, 2, chunk) for rank in range(2)]
    caches = [KvCache([[content.clone()]]) for _ in ranks]
    hosts = [HostMemory(ROW, 8, pinned=False, shared=each) for each in ranks]
    copiers = [
        TorchCopier(cache, host, worker=Worker(rank)) for rank, (cache, host) in enumerate(zip(caches, hosts, strict=True))
    ]
    stored = []
    for number, places in enumerate(([0, 1, 2, 3], [4, 5] if chunk == 2 else [4]), 1):
        for rank, copier in enumerate(copiers):
            copier.computed()
            copier.launch(transfer(number, STORE, places, places))
            assert [each.result for each in copier.poll()] == [Result.OK]
            stored.append((number, rank, copier.statistics().num_bytes // ROW))
    for cache, copier in zip(caches, copiers, strict=True):
        cache.layers[0].zero_()
        copier.computed()
        copier.launch(transfer(9, LOAD, [0, 1, 2, 3, 4], [7, 6, 5, 4, 3]))
        copier.poll()

    for cache in caches:
        assert torch.equal(cache.layers[0][[7, 6, 5, 4, 3]], content[:5])
    assert torch.equal(hosts[0].rows[:5], content[:5])
    assert stored == (
        [(1, 0, 2), (1, 1, 2), (2, 0, 4), (2, 1, 2)] if chunk == 2 else [(1, 0, 2), (1, 1, 2), (2, 0, 3), (2, 1, 2)]
    )
    for copier, host in zip(copiers, hosts, strict=True):
        copier.close()
        host.close()
