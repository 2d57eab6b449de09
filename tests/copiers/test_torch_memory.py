"""Host memory is there as a whole or not at all, is never more than there is, and is given back.

Method: on machines without a GPU the part that pins is driven with a CUDA of our own making, which notes what it was told and
can refuse at an exact place. What the system says about memory is read from folders made for the test. One test needs a GPU.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="host memory needs torch (pip install torch)")

import torch

from blocklife.copiers.torch import HostMemory
from blocklife.copiers.torch import _memory as memory
from blocklife.copiers.torch import _touching as touching
from blocklife.copiers.torch._memory import available_bytes, machine_bytes, places_per_lock
from blocklife.errors import CapacityError, MisuseError

PAGE = 4096


class Cuda:
    """What `cudart` is asked; refuses the registration with that number, counted from 0."""

    def __init__(self, refuse: int = -1) -> None:
        self.refuse = refuse
        self.asked: list[tuple[int, int, int]] = []
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, where: int, nbytes: int, flags: int) -> int:  # noqa: N802 - CUDA's own name
        self.asked.append((where, nbytes, flags))
        if len(self.asked) - 1 == self.refuse:
            return 2
        self.locked[where] = nbytes
        return 0

    def cudaHostUnregister(self, where: int) -> int:  # noqa: N802 - CUDA's own name
        del self.locked[where]
        return 0

    def cudaGetErrorString(self, result: int) -> str:  # noqa: N802 - CUDA's own name
        return f"error {result}"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A CUDA device that is not there."""
    made = Cuda()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    return made


# --- plain memory ------------------------------------------------------------------------------------------------------


def test_host_memory_has_a_row_for_each_place() -> None:
    """All are zero; what is written in one is in no other."""
    with HostMemory(1120, 10, pinned=False) as host:
        host.rows[3].fill_(7)

        assert (tuple(host.rows.shape), host.rows.dtype) == ((10, 1120), torch.uint8)
        assert host.rows.is_contiguous()
        assert host.rows.max(dim=1).values.tolist() == [0, 0, 0, 7, 0, 0, 0, 0, 0, 0]
        assert (host.nbytes, host.num_places, host.pinned) == (10 * 1120, 10, False)


def test_host_memory_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told slab by slab, and ends with all of it."""
    monkeypatch.setattr(touching, "SLAB_BYTES", 3 * PAGE)
    heard: list[tuple[int, int]] = []
    HostMemory(PAGE, 10, pinned=False, progress=lambda done, total: heard.append((done, total))).close()

    assert heard == [(pages * PAGE, 10 * PAGE) for pages in (3, 6, 9, 10)]


def test_host_memory_is_given_back() -> None:
    """After close the rows are gone from memory, and a second close does nothing."""
    host = HostMemory(PAGE, 8, pinned=False)
    rows, mapping = weakref.ref(host.rows), host._mapping
    host.close()
    host.close()
    gc.collect()

    assert rows() is None
    assert mapping is not None
    assert mapping.closed
    assert repr(host) == f"<HostMemory closed: 8 places of {PAGE:,} bytes, {8 * PAGE:,} bytes>"
    with pytest.raises(MisuseError, match="the rows are requested after CLOSE"):
        _ = host.rows


def test_host_memory_stays_under_a_tensor_that_is_held() -> None:
    """Who still holds the rows may read them after close: the memory goes with the last tensor."""
    host = HostMemory(PAGE, 8, pinned=False)
    held, mapping = host.rows, host._mapping
    held.fill_(5)
    host.close()

    assert mapping is not None
    assert not mapping.closed
    assert int(held.sum()) == 5 * 8 * PAGE


def test_host_memory_is_taken_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two slabs gives back what was had, and comes out."""
    monkeypatch.setattr(touching, "SLAB_BYTES", PAGE)
    taken: list[HostMemory] = []
    close = HostMemory.close

    def noted(host: HostMemory) -> None:
        taken.append(host)
        close(host)

    monkeypatch.setattr(HostMemory, "close", noted)

    def interrupt(done: int, _total: int) -> None:
        if done == 3 * PAGE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        HostMemory(2 * PAGE, 2, pinned=False, progress=interrupt)

    assert len(taken) == 1
    assert taken[0]._mapping is None


@pytest.mark.parametrize(("row_bytes", "num_places"), [(0, 4), (16, 0), (-1, 4)], ids=["empty", "no place", "negative"])
def test_host_memory_refuses_sizes_that_are_none(row_bytes: int, num_places: int) -> None:
    with pytest.raises(MisuseError, match="give 1 or more of each"):
        HostMemory(row_bytes, num_places, pinned=False)


@pytest.mark.parametrize("row_bytes", [1, 96, PAGE, 3 * PAGE, 656 * 61, 1_000_000, 5 << 20])
def test_locked_parts_end_where_a_row_and_a_page_end(row_bytes: int) -> None:
    """As many rows as fit into a part, and no more than two parts' worth."""
    step = places_per_lock(row_bytes, 1 << 40) * row_bytes

    assert step % PAGE == step % row_bytes == 0
    assert memory.LOCK_BYTES // 2 < step <= 2 * memory.LOCK_BYTES


def test_rows_that_never_end_with_a_page_are_locked_at_once() -> None:
    assert places_per_lock((1 << 30) + 1, 7) == 7


# --- how much there is -------------------------------------------------------------------------------------------------


def test_host_memory_says_how_much_there_is() -> None:
    """More than the machine has is refused before anything is taken, with both numbers."""
    with pytest.raises(CapacityError, match=r"^host memory: 1,125,899,906,842,624 bytes requested .* [\d,]+ are available"):
        HostMemory(1 << 30, 1 << 20, pinned=False)


def test_host_memory_says_what_the_system_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody says how much there is, the system's own refusal comes out."""
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    with pytest.raises(CapacityError, match=r"the system gave 0: .* \(ask for fewer places\)"):
        HostMemory(1 << 50, PAGE, pinned=False)


def test_processes_that_allocate_at_once_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would find enough available, for none has touched its part yet."""
    monkeypatch.setattr(memory, "machine_bytes", lambda: 4 * PAGE)
    with pytest.raises(
        CapacityError, match=r"8,192 bytes requested .*, by each of 3 processes, and the machine has 16,384 \(ask"
    ):
        HostMemory(PAGE, 2, pinned=False, sharers=3)
    HostMemory(PAGE, 2, pinned=False, sharers=2).close()
    HostMemory(PAGE, 5, pinned=False).close()  # alone, what is available counts


def test_memory_that_follows_is_counted_before_any_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of several refuses what all together would not get, in what is available and for all who share the machine."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 4 * PAGE)
    monkeypatch.setattr(memory, "machine_bytes", lambda: 8 * PAGE)
    with pytest.raises(CapacityError, match=r"8,192 bytes requested .*, and 12,288 more, 16,384 are available \(ask"):
        HostMemory(PAGE, 2, pinned=False, beside=3 * PAGE)
    with pytest.raises(CapacityError, match=r", and 4,096 more, by each of 3 processes, and the machine has 32,768 \(ask"):
        HostMemory(PAGE, 2, pinned=False, sharers=3, beside=PAGE)
    HostMemory(PAGE, 2, pinned=False, sharers=2, beside=2 * PAGE).close()


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 64 kB\nMemFree: 8 kB\nMemAvailable:   40 kB\n"}


@pytest.mark.parametrize(
    ("files", "available", "whole"),
    [
        ({}, None, None),
        (MEMINFO, 40 << 10, 64 << 10),
        ({"proc/meminfo": "MemAvailable: much\n"}, None, None),
        (
            MEMINFO
            | {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "1\n",
                "sys/fs/cgroup/a/memory.max": "9000\n",
                "sys/fs/cgroup/a/memory.current": "4000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 7\ninactive_file 500\n",
            },
            5500,
            9000,
        ),
        (
            MEMINFO
            | {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n3:memory:/c\n0::/\n",
                "sys/fs/cgroup/memory/c/memory.limit_in_bytes": "700\n",
                "sys/fs/cgroup/memory/c/memory.usage_in_bytes": "800\n",
                "sys/fs/cgroup/memory/c/memory.stat": "total_inactive_file 50\n",
            },
            0,
            700,
        ),
    ],
    ids=["nobody says", "system", "nonsense", "group around it", "first version, full"],
)
def test_bytes_are_the_least_that_anybody_says(
    files: dict[str, str], available: int | None, whole: int | None, tmp_path: Path
) -> None:
    """The system and each control group around the process have a word; a group can take back what its files keep."""
    root = plant(tmp_path, files)

    assert (available_bytes(root), machine_bytes(root)) == (available, whole)


def test_available_bytes_are_known_here() -> None:
    """On Linux somebody says it."""
    if not Path("/proc/meminfo").exists():
        pytest.skip("needs /proc/meminfo")
    found = available_bytes()

    assert found is not None
    assert found > 1 << 20


# --- pinned memory -----------------------------------------------------------------------------------------------------


def test_pinned_memory_needs_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MisuseError, match=r"torch sees no CUDA device \(give pinned=False\)"):
        HostMemory(16, 1, pinned=True)


def test_pinned_memory_is_locked_in_parts(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part ends with a row; all are unlocked at the end."""
    monkeypatch.setattr(memory, "LOCK_BYTES", 7 * PAGE)
    with HostMemory(3 * PAGE, 5, pinned=True) as host:
        parts = host.rows.split(host.lock_places)
        expected = [(part.data_ptr(), part.numel(), 3) for part in parts]

        assert [len(part) for part in parts] == [2, 2, 1]

        assert cuda.asked == expected
        assert set(cuda.locked) == {where for where, _, _ in expected}

    assert not cuda.locked


def test_pinned_memory_gives_back_what_cuda_refuses(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal names what was pinned and why no more, and leaves nothing locked."""
    cuda.refuse = 2
    monkeypatch.setattr(memory, "LOCK_BYTES", PAGE)
    with pytest.raises(CapacityError, match=r"24,576 bytes requested .* CUDA pinned 8,192 and then failed: error 2"):
        HostMemory(PAGE, 6, pinned=True)

    assert len(cuda.asked) == 3
    assert not cuda.locked


@pytest.mark.gpu
def test_pinned_memory_is_pinned() -> None:
    """torch itself says so, for every page; a copy of all of it arrives."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with HostMemory(1 << 20, 32, pinned=True) as host:
        host.rows.fill_(9)
        there = host.rows.to("cuda", non_blocking=True)
        torch.cuda.synchronize()

        assert all(host.rows[place].is_pinned() for place in (0, 31))
        assert int(there.min()) == 9
