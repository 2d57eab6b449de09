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
from blocklife.copiers.torch._memory import available_bytes, machine_bytes
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


def test_host_memory_has_a_region_for_each_layer() -> None:
    """Each region has its own pages, all zero; what is written in one is in no other."""
    with HostMemory([512, 96, 512], 10, pinned=False) as host:
        regions = [host.region(index) for index in range(3)]
        regions[0].fill_(7)

        assert [tuple(region.shape) for region in regions] == [(10, 512), (10, 96), (10, 512)]
        assert {region.dtype for region in regions} == {torch.uint8}
        assert all(region.is_contiguous() for region in regions)
        assert (int(regions[0].min()), int(regions[1].max()), int(regions[2].max())) == (7, 0, 0)
        assert host.region(0).data_ptr() == regions[0].data_ptr()
        assert (host.nbytes, host.num_regions, host.num_places, host.pinned) == (10 * 1120, 3, 10, False)


def test_host_memory_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told slab by slab, and ends with all of it."""
    monkeypatch.setattr(memory, "SLAB_BYTES", 3 * PAGE)
    heard: list[tuple[int, int]] = []
    HostMemory([PAGE, 2 * PAGE], 4, pinned=False, progress=lambda done, total: heard.append((done, total))).close()

    assert heard == [(pages * PAGE, 12 * PAGE) for pages in (3, 4, 7, 10, 12)]


def test_host_memory_is_given_back() -> None:
    """After close the regions are gone from memory, and a second close does nothing."""
    host = HostMemory([PAGE], 8, pinned=False)
    region = weakref.ref(host.region(0))
    (mapping,) = host._mappings
    host.close()
    host.close()
    gc.collect()

    assert region() is None
    assert mapping.closed
    assert repr(host) == f"<HostMemory closed: 1 regions of 8 places, {8 * PAGE:,} bytes>"
    with pytest.raises(MisuseError, match="region 0 is requested after CLOSE"):
        host.region(0)


def test_host_memory_stays_under_a_tensor_that_is_held() -> None:
    """Who still holds a region may read it after close: the memory goes with the last tensor."""
    host = HostMemory([PAGE], 8, pinned=False)
    held = host.region(0)
    held.fill_(5)
    (mapping,) = host._mappings
    host.close()

    assert not mapping.closed
    assert int(held.sum()) == 5 * 8 * PAGE


def test_host_memory_is_taken_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two slabs gives back what was had, and comes out."""
    monkeypatch.setattr(memory, "SLAB_BYTES", PAGE)
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
        HostMemory([2 * PAGE, 2 * PAGE], 1, pinned=False, progress=interrupt)

    assert len(taken) == 1
    assert not taken[0]._mappings
    assert not taken[0]._regions


@pytest.mark.parametrize(
    ("page_bytes", "num_places"), [([], 4), ([16, 0], 4), ([16], 0), ([-1], 4)], ids=["none", "empty", "no place", "negative"]
)
def test_host_memory_refuses_sizes_that_are_none(page_bytes: list[int], num_places: int) -> None:
    with pytest.raises(MisuseError, match="give 1 or more of each"):
        HostMemory(page_bytes, num_places, pinned=False)


def test_host_memory_refuses_a_region_that_is_none() -> None:
    with HostMemory([16], 1, pinned=False) as host, pytest.raises(MisuseError, match=r"no region -1 \(there are 1, from 0\)"):
        host.region(-1)


# --- how much there is -------------------------------------------------------------------------------------------------


def test_host_memory_says_how_much_there_is() -> None:
    """More than the machine has is refused before anything is taken, with both numbers."""
    with pytest.raises(CapacityError, match=r"^host memory: 1,125,899,906,842,624 bytes requested .* [\d,]+ are available"):
        HostMemory([1 << 30], 1 << 20, pinned=False)


def test_host_memory_says_what_the_system_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody says how much there is, the system's own refusal comes out, and what was had is given back."""
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    with pytest.raises(CapacityError, match=r"the system gave 4,096: .* \(ask for fewer places\)"):
        HostMemory([1, 1 << 50], PAGE, pinned=False)


def test_processes_that_allocate_at_once_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would find enough available, for none has touched its part yet."""
    monkeypatch.setattr(memory, "machine_bytes", lambda: 4 * PAGE)
    with pytest.raises(
        CapacityError, match=r"8,192 bytes requested .*, by each of 3 processes, and the machine has 16,384 \(ask"
    ):
        HostMemory([PAGE], 2, pinned=False, sharers=3)
    HostMemory([PAGE], 2, pinned=False, sharers=2).close()
    HostMemory([PAGE], 5, pinned=False).close()  # alone, what is available counts


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
        HostMemory([16], 1, pinned=True)


def test_pinned_memory_locks_each_region_as_one(cuda: Cuda) -> None:
    """No copy within a region crosses the border of two locked ranges; all are unlocked at the end."""
    with HostMemory([PAGE, 3 * PAGE], 5, pinned=True) as host:
        expected = [(host.region(index).data_ptr(), host.region(index).numel(), 3) for index in range(2)]

        assert cuda.asked == expected
        assert set(cuda.locked) == {where for where, _, _ in expected}

    assert not cuda.locked


def test_pinned_memory_gives_back_what_cuda_refuses(cuda: Cuda) -> None:
    """A refusal names what was pinned and why no more, and leaves nothing locked."""
    cuda.refuse = 2
    with pytest.raises(CapacityError, match=r"24,576 bytes requested .* CUDA pinned 8,192 and then failed: error 2"):
        HostMemory([PAGE] * 6, 1, pinned=True)

    assert len(cuda.asked) == 3
    assert not cuda.locked


@pytest.mark.gpu
def test_pinned_memory_is_pinned() -> None:
    """torch itself says so, for every page; a copy across all pages of a region arrives."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with HostMemory([1 << 20, 1 << 16], 32, pinned=True) as host:
        host.region(0).fill_(9)
        there = host.region(0).to("cuda", non_blocking=True)
        torch.cuda.synchronize()

        assert all(host.region(index)[place].is_pinned() for index in range(2) for place in (0, 31))
        assert int(there.min()) == 9
