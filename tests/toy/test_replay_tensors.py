"""The memory in tensors is that of numpy, bit for bit, and refuses what cannot be; on a device by the same code.

Method: random operations on both, with seeds; after each of them both must give the same answer and hold the same bytes. Then
single wrong bytes are planted. `tests/gpu` runs the same checks with the tensors on a device.
"""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from attrs import define, field

from blocklife.copiers.torch import DeviceLostError
from blocklife.engines.toy import Ids, Memory, Words
from blocklife.engines.toy import _tensors as tensors
from blocklife.engines.toy._tensors import TensorDevice, TensorMemory
from blocklife.errors import CapacityError, MisuseError

CPU = torch.device("cpu")
Patch = pytest.MonkeyPatch


@define(eq=False)
class Twins:
    """The same memory in numpy and in tensors."""

    device: torch.device
    dice: random.Random
    num_blocks: int = 0
    words: int = 0
    plain: Memory = field(init=False)
    ours: TensorMemory = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.num_blocks = self.num_blocks or self.dice.randint(2, 40)
        self.words = self.words or self.dice.choice([1, 2, 3, 16, 33])
        worker = self.dice.randrange(4)
        self.plain = Memory(self.num_blocks, self.num_blocks, self.words * 8, worker)
        self.ours = TensorMemory(self.num_blocks, self.num_blocks, self.words * 8, worker, device=self.device)

    def some(self, distinct: bool = False) -> Ids:
        """Blocks or places, perhaps none."""
        count, every = self.dice.randint(0, self.num_blocks), range(self.num_blocks)
        return np.array(self.dice.sample(every, count) if distinct else self.dice.choices(every, k=count), dtype=np.int64)

    def prints(self, ids: Ids, on_device: bool = True) -> Words:
        """A fingerprint for each, over all 64 bits; most of them are what a place now has in its first word."""
        rows = self.plain.device if on_device else self.plain.host
        there = rows[ids, 0] ^ self.plain._constants[0]
        others = np.array([self.dice.getrandbits(64) for _ in ids], dtype=np.uint64)
        found: Words = np.where(np.array([self.dice.random() < 0.8 for _ in ids], dtype=bool), there, others)
        return found

    def lengths(self, count: int) -> Ids:
        return np.array([self.dice.randint(0, self.words) for _ in range(count)], dtype=np.int64)

    def same(self) -> bool:
        """Whether both hold the same bytes."""
        ours = self.ours.device.cpu().numpy(), self.ours.host.numpy()
        pairs = zip(ours, (self.plain.device, self.plain.host), strict=True)
        return all(np.array_equal(one.view(np.uint64), other) for one, other in pairs)

    def step(self) -> tuple[list[int], list[int]]:
        """One random operation on both; what each answers."""
        what = self.dice.choice(["write", "write", "corrupt", "corrupt_parts", "corrupt_places", "flip", "copy"])
        ids = self.some(distinct=what in ("write", "copy"))
        prints = self.prints(ids, on_device=what != "corrupt_places")
        match what:
            case "write":
                whole = np.array([self.dice.random() < 0.5 for _ in ids], dtype=bool)
                start = np.where(whole, 0, self.lengths(len(ids)))
                stop = np.where(whole, self.words, self.lengths(len(ids)))
                for memory in (self.plain, self.ours):
                    memory.write(ids, prints, start, stop)
            case "corrupt":
                return self.plain.corrupt(ids, prints).tolist(), self.ours.corrupt(ids, prints).tolist()
            case "corrupt_parts":
                words = self.lengths(len(ids))
                plain = self.plain.corrupt(ids, prints, words)
                return plain.tolist(), self.ours.corrupt(ids, prints, words).tolist()
            case "corrupt_places":
                return self.plain.corrupt_places(ids, prints).tolist(), self.ours.corrupt_places(ids, prints).tolist()
            case "flip":
                self.flip(self.dice.randrange(self.num_blocks), on_device=self.dice.random() < 0.5)
            case _:
                self.store(ids)
        return [], []

    def store(self, ids: Ids) -> None:
        """Blocks go to the places of the same numbers, behind the back of any copier."""
        self.plain.host[ids] = self.plain.device[ids]
        at = torch.tensor(ids)
        self.ours.host[at] = self.ours.device[at.to(self.device)].cpu()

    def flip(self, place: int, *, on_device: bool) -> int:
        """Turn one bit of a place, in both; which word it is in."""
        word, bit = self.dice.randrange(self.words), self.dice.randrange(64)
        mask = np.uint64(1 << bit)
        ours, plain = (self.ours.device, self.plain.device) if on_device else (self.ours.host, self.plain.host)
        plain[place, word] ^= mask
        ours[place, word] ^= int(mask.view(np.int64))
        return word


def check_walk(seed: int, device: torch.device) -> None:
    """Random operations leave the same bytes and get the same answers, after every one of them."""
    twins = Twins(device, random.Random(seed))
    found = 0
    for number in range(120):
        expected, ours = twins.step()
        found += len(ours)

        assert ours == expected, f"seed {seed}, operation {number}"
        assert twins.same(), f"seed {seed}, operation {number}"
    twins.ours.close()

    assert found > 0


def check_wrong_bit(seed: int, device: torch.device) -> None:
    """One bit of one block, or of one place, and nothing else is found; in a part only if it lies in it."""
    dice = random.Random(seed)
    twins = Twins(device, dice, num_blocks=20, words=dice.choice([1, 5, 16]))
    memory, words = twins.ours, twins.words
    ids = np.array(dice.sample(range(20), 12), dtype=np.int64)
    prints = np.array([dice.getrandbits(64) for _ in ids], dtype=np.uint64)
    every, none = np.full(12, words), np.zeros(12, dtype=np.int64)
    memory.write(ids, prints, none, every)
    twins.store(ids)
    clean = [memory.corrupt(ids, prints).tolist(), memory.corrupt_places(ids, prints).tolist()]
    at = dice.randrange(12)
    word = twins.flip(int(ids[at]), on_device=True)
    on_device = [memory.corrupt(ids, prints).tolist(), memory.corrupt_places(ids, prints).tolist()]
    parts = [memory.corrupt(ids, prints, np.full(12, length)).tolist() for length in (words, word + 1, word, 0)]
    memory.write(ids[at : at + 1], prints[at : at + 1], none[:1] + word, none[:1] + word + 1)
    mended = memory.corrupt(ids, prints).tolist()
    twins.flip(int(ids[at]), on_device=False)
    on_host = [memory.corrupt(ids, prints).tolist(), memory.corrupt_places(ids, prints).tolist()]
    memory.close()

    assert clean == [[], []]
    assert on_device == [[at], []]
    assert parts == [[at], [at], [], []]
    assert mended == []
    assert on_host == [[], [at]]


@pytest.mark.parametrize("seed", range(30))
def test_tensors_answer_as_numpy_does(seed: int) -> None:
    check_walk(seed, CPU)


@pytest.mark.parametrize("seed", range(10))
def test_tensors_are_worked_on_piece_by_piece(seed: int, monkeypatch: Patch) -> None:
    """The same where a piece is a few words, so that every operation takes several and the last is a rest."""
    monkeypatch.setattr(tensors, "SLAB", 40)
    check_walk(seed, CPU)


@pytest.mark.parametrize("seed", range(10))
def test_tensors_show_one_wrong_bit(seed: int) -> None:
    check_wrong_bit(seed, CPU)


def test_workers_write_different_bytes() -> None:
    """What one worker wrote is wrong for another, so that a block which reached the wrong one would be found."""
    ids, prints = np.arange(3), np.array([7, 7 << 60, 0], dtype=np.uint64)
    first, second = (TensorMemory(3, 3, 16, worker, device=CPU) for worker in range(2))
    first.write(ids, prints, np.zeros(3, dtype=np.int64), np.full(3, 2))
    second.device.copy_(first.device)

    assert first.corrupt(ids, prints).tolist() == []
    assert second.corrupt(ids, prints).tolist() == [0, 1, 2]


def test_arrays_stay_the_callers() -> None:
    """Arrays that nobody may write are read, and none is kept."""
    memory = TensorMemory(4, 4, 16, 0, device=CPU)
    ids, prints = np.array([1, 2]), np.array([5, 6], dtype=np.uint64)
    for array in (ids, prints):
        array.flags.writeable = False
    memory.write(ids, prints, np.zeros(2, dtype=np.int64), np.full(2, 2))

    assert memory.corrupt(ids, prints).tolist() == []


# --- what cannot be -------------------------------------------------------------------------------------------------------


def test_an_error_of_the_device_is_told_in_one_line(monkeypatch: Patch) -> None:
    """torch tells it in many; every operation of a step says that the device is lost."""
    memory = TensorMemory(4, 4, 16, 0, device=CPU)
    ids, prints, none, all_of_it = np.array([1]), np.array([5], dtype=np.uint64), np.array([0]), np.array([2])

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal address\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(tensors, "_tensor", broken)
    for call in (
        lambda: memory.write(ids, prints, none, all_of_it),
        lambda: memory.corrupt(ids, prints),
        lambda: memory.corrupt(ids, prints, all_of_it),
    ):
        with pytest.raises(DeviceLostError, match=r"error: CUDA error: an illegal address \(see blocklife doctor\)$"):
            call()


def test_blocks_that_do_not_fit_are_no_room(monkeypatch: Patch) -> None:
    """How many of which size, and what the device said."""

    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5 GiB.\nSee documentation")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(CapacityError, match=r"^1,000 blocks of 4,096 bytes do not fit on cpu: CUDA out .* 5 GiB\. \(ask"):
        TensorMemory(1_000, 1, 4_096, 0, device=CPU)


def test_memory_is_given_back_at_the_close() -> None:
    """Twice is as good as once. That of the device goes although somebody holds a tensor of it, that of the host unless."""
    memory = TensorMemory(4, 4, 16, 0, device=CPU)
    held = memory.device
    mapping = memory.pages._mapping
    memory.close()
    memory.close()

    assert held.untyped_storage().nbytes() == 0
    assert mapping is not None
    assert mapping.closed
    with pytest.raises(MisuseError, match="after CLOSE"):
        _ = memory.pages.rows


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_device() -> None:
    with pytest.raises(MisuseError, match=r"^--copier cuda needs a GPU, and torch (is built without CUDA|sees none)"):
        TensorDevice("cuda")


def test_why_there_is_no_device_is_said_in_one_line(monkeypatch: Patch) -> None:
    """A driver that is too old is a warning of torch's: it becomes part of the message, and is not shown besides."""

    def warns() -> bool:
        warnings.warn("the NVIDIA driver on your system is too old (found version 1)\nPlease update", stacklevel=1)
        return False

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", warns)
    with pytest.raises(MisuseError, match=r"^--copier cuda needs a GPU, and torch sees none: .* version 1\) \(--copier torch"):
        TensorDevice("cuda")


def test_a_gpu_that_cannot_compute_is_refused(monkeypatch: Patch) -> None:
    """torch sees it, and its first word is an error."""

    def broken() -> int:
        raise RuntimeError("CUDA error: no kernel image is available\nfor execution on the device")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", broken)
    with pytest.raises(MisuseError, match=r"^--copier cuda: the GPU does not work: .* is available \(see blocklife doctor\)$"):
        TensorDevice("cuda")


def test_a_run_on_cpu_tensors_computes_on_one_thread_and_puts_them_back() -> None:
    device, before = TensorDevice("torch"), torch.get_num_threads()
    torch.set_num_threads(2)
    with device.computing():
        inside = torch.get_num_threads()
    after = torch.get_num_threads()
    torch.set_num_threads(before)

    assert (inside, after) == (1, 2)
    assert (device.name, device.room()) == ("torch on cpu", None)
