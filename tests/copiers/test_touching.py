"""Host memory is taken from the system by several threads near the device, or as well as the system can.

Method: what Linux says about processors is read from a folder made for the test, and the driver's place of a device is ours;
what `madvise` answers is ours, too, where it is to refuse.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="host memory needs torch (pip install torch)")

import torch

from blocklife.copiers.torch import _touching as touching
from blocklife.copiers.torch._touching import Bytes, processors_near, touch

PAGE = mmap.PAGESIZE
HERE = frozenset(os.sched_getaffinity(0))
CUDA = torch.device("cuda", 1)

Patch = pytest.MonkeyPatch


class Library:
    """What `madvise` is asked; it answers with that error each time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked = 0

    def madvise(self, *_given: object) -> int:
        self.asked += 1
        return -1


@pytest.fixture
def memory() -> Bytes:
    """Pages that nobody has written."""
    return np.frombuffer(mmap.mmap(-1, 10 * PAGE + 9), np.uint8)


def answers(monkeypatch: Patch, number: int) -> Library:
    library = Library(number)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_given, **_more: library)
    monkeypatch.setattr(ctypes, "get_errno", lambda: number)
    return library


def test_slabs_are_told_in_order_and_memory_stays_as_it_was(memory: Bytes, monkeypatch: Patch) -> None:
    monkeypatch.setattr(touching, "SLAB_BYTES", 3 * PAGE)

    assert [*touch(memory, HERE)] == [3 * PAGE, 3 * PAGE, 3 * PAGE, PAGE + 9]
    assert not memory.any()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_system_without_the_call_gets_a_write_to_each_page(memory: Bytes, monkeypatch: Patch, number: int) -> None:
    """An older Linux, or a sandbox that lets nobody call it."""
    library = answers(monkeypatch, number)
    memory[:] = 7

    assert [*touch(memory, HERE)] == [len(memory)]
    assert library.asked == 1
    assert np.flatnonzero(memory == 0).tolist() == [*range(0, len(memory), PAGE), len(memory) - 1]


def test_system_that_has_no_more_memory_is_an_error(memory: Bytes, monkeypatch: Patch) -> None:
    answers(monkeypatch, errno.ENOMEM)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        [*touch(memory, HERE)]


class Driver:
    """The driver's place of a device; None: it knows none."""

    def __init__(self, place: str | None) -> None:
        self.place = place

    def pci_address(self, device: int) -> str:
        assert device == CUDA.index
        if self.place is None:
            raise RuntimeError("cuDeviceGet answered CUDA_ERROR_INVALID_DEVICE")
        return self.place


@pytest.mark.parametrize(
    ("place", "text", "found"),
    [
        ("0000:17:00.0", f"{min(HERE)}\n", {min(HERE)}),
        ("0000:17:00.0", f"{min(HERE)},4000-4003\n", {min(HERE)}),
        ("0000:17:00.0", f"0-{max(HERE)}", HERE),
        ("0000:17:00.0", "4000-4003\n", HERE),
        ("0000:17:00.0", "\n", HERE),
        ("0000:18:00.0", "0\n", HERE),
        (None, "0\n", HERE),
    ],
    ids=["one", "some", "range", "none of ours", "empty", "not told", "no place"],
)
def test_processors_are_those_of_the_devices_node(
    place: str | None, text: str, found: frozenset[int], tmp_path: Path, monkeypatch: Patch
) -> None:
    """Those that this process may run on; all of these where nobody says which are near."""
    told = tmp_path / "sys/bus/pci/devices/0000:17:00.0/local_cpulist"
    told.parent.mkdir(parents=True)
    told.write_text(text)
    monkeypatch.setattr(touching, "cuda_driver", lambda: Driver(place))
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: CUDA.index)

    assert processors_near(CUDA, tmp_path) == found


def test_processors_of_a_cpu_are_all(monkeypatch: Patch) -> None:
    monkeypatch.setattr(touching, "cuda_driver", lambda: pytest.fail("nobody asks the driver"))

    assert processors_near(None) == processors_near(torch.device("cpu")) == HERE
