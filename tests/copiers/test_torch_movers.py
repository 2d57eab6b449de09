"""Every mover moves its bytes or is left out: a batch by a fake driver, the choice by number and size, the proof of each.

Method: the fake driver is a set of C functions that Python answers, on the host's memory. So numbers, arrays and structures go
through ctypes as they go to a real driver, and bytes do move. Movers that fail are planted.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from attrs import define, field

from blocklife.copiers._movers import USUAL
from blocklife.copiers.torch import KvCache
from blocklife.copiers.torch import _moves as moves
from blocklife.copiers.torch import _probe as probe
from blocklife.copiers.torch._driver import (
    BATCH_MOST,
    HIGH,
    LOW,
    MIDDLE,
    BatchCall,
    CudaDriver,
    CudaError,
    DeviceLostError,
    cuda_driver,
)
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import BatchMover, ChoosingMover, Mover, RunMover, check_reach, reason
from blocklife.copiers.torch._probe import mover_for_cuda, prove
from blocklife.copiers.torch._streams import CudaDevice, CudaStream
from blocklife.errors import MisuseError
from blocklife.ledger.records import ON_DEVICE, Direction, Ids
from tests.copiers.rig import LOAD, STORE, Rows
from tests.copiers.test_torch_layout import noise

CPU = torch.device("cpu")
INVALID_VALUE, NOT_FOUND = 1, 500
NAMES = {INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE", NOT_FOUND: b"CUDA_ERROR_NOT_FOUND"}
CONTEXT = 0xC0

_Numbers = ctypes.POINTER(ctypes.c_int)
_Address = ctypes.POINTER(ctypes.c_void_p)


@define(eq=False, slots=False)
class FakeCuda:
    """A libcuda on the host's memory. It moves what a batch names, up to the copy that it refuses."""

    knows_batches: bool = True
    refuses_at: int | None = None
    """The copy, counted over all batches, that is refused."""
    context: int = CONTEXT
    """Of the calling thread; 0 for none."""
    shift: int = 0
    """How much further up the device sees the host's memory."""
    batches: list[tuple[int, int]] = field(factory=list)
    """How many copies each had, and its stream."""
    attributes: set[tuple[int, ...]] = field(factory=set)
    asked: list[tuple[object, ...]] = field(factory=list)
    num_moved: int = 0

    def __attrs_post_init__(self) -> None:
        function = ctypes.CFUNCTYPE
        number = ctypes.c_int
        self._batch = BatchCall(self._on_batch)
        find = function(number, ctypes.c_char_p, _Address, number, ctypes.c_uint64, _Numbers)
        self.cuGetProcAddress_v2 = find(self._on_find)
        self.cuCtxGetCurrent = function(number, _Address)(self._on_get_context)
        self.cuDeviceGet = function(number, _Numbers, number)(self._on_get_device)
        self.cuDevicePrimaryCtxRetain = function(number, _Address, number)(self._on_retain)
        self.cuCtxSetCurrent = function(number, ctypes.c_void_p)(self._on_set_context)
        self.cuPointerGetAttribute = function(number, _Address, number, ctypes.c_uint64)(self._on_attribute)
        self.cuCtxGetStreamPriorityRange = function(number, _Numbers, _Numbers)(self._on_priorities)
        self.cuStreamCreateWithPriority = function(number, _Address, ctypes.c_uint, number)(self._on_stream)
        self.cuInit = function(number, ctypes.c_uint)(lambda _flags: 0)
        self.cuDeviceGetPCIBusId = function(number, ctypes.c_void_p, number, number)(self._on_place)
        self.cuGetErrorName = function(number, number, ctypes.POINTER(ctypes.c_char_p))(self._on_name)

    def _on_find(self, symbol: bytes, found: ctypes._Pointer[ctypes.c_void_p], version: int, flags: int, _: object) -> int:
        self.asked.append(("find", symbol, version, flags))
        if self.knows_batches:
            found[0] = ctypes.cast(self._batch, ctypes.c_void_p)
        return 0 if self.knows_batches else NOT_FOUND

    def _on_batch(
        self,
        targets: int,
        sources: int,
        sizes: int,
        count: int,
        attributes: int,
        firsts: int,
        num_attributes: int,
        refused: int,
        stream: int,
    ) -> int:
        self.batches.append((count, stream))
        assert (num_attributes, ctypes.c_size_t.from_address(firsts).value) == (1, 0)
        self.attributes.add(tuple((ctypes.c_int * 6).from_address(attributes)))
        columns = [(ctypes.c_size_t * count).from_address(column) for column in (targets, sources, sizes)]
        for index, (target, source, size) in enumerate(zip(*columns, strict=True)):
            if self.num_moved == self.refuses_at:
                ctypes.c_size_t.from_address(refused).value = index
                return INVALID_VALUE
            ctypes.memmove(target, source, size)
            self.num_moved += 1
        return 0

    def _on_get_context(self, context: ctypes._Pointer[ctypes.c_void_p]) -> int:
        context[0] = ctypes.c_void_p(self.context or None)
        return 0

    def _on_get_device(self, device: ctypes._Pointer[ctypes.c_int], ordinal: int) -> int:
        device[0] = 70 + ordinal
        return 0

    def _on_retain(self, context: ctypes._Pointer[ctypes.c_void_p], device: int) -> int:
        self.asked.append(("retain", device))
        context[0] = ctypes.c_void_p(CONTEXT)
        return 0

    def _on_set_context(self, context: int) -> int:
        self.context = context
        return 0

    def _on_attribute(self, found: ctypes._Pointer[ctypes.c_void_p], attribute: int, address: int) -> int:
        self.asked.append(("attribute", attribute))
        found[0] = ctypes.c_void_p(address + self.shift)
        return INVALID_VALUE if self.shift < 0 else 0

    def _on_priorities(self, least: ctypes._Pointer[ctypes.c_int], greatest: ctypes._Pointer[ctypes.c_int]) -> int:
        least[0], greatest[0] = 0, -5
        return 0

    def _on_stream(self, made: ctypes._Pointer[ctypes.c_void_p], flags: int, priority: int) -> int:
        self.asked.append(("stream", flags, priority))
        made[0] = ctypes.c_void_p(0x500 + priority)
        return 0

    def _on_place(self, text: int, room: int, device: int) -> int:
        place = b"0000:C%d:00.0\0" % (device % 10)
        assert len(place) <= room
        ctypes.memmove(text, place, len(place))
        return 0

    def _on_name(self, error: int, name: ctypes._Pointer[ctypes.c_char_p]) -> int:
        name[0] = ctypes.c_char_p(NAMES[error])
        return 0


@define(eq=False)
class Bytes:
    """Two pieces of the host's memory: one of bytes that are not zero, and one of zeros that they go to."""

    source: torch.Tensor = field(factory=lambda: noise(1 << 16, seed=3).clamp(min=1))
    target: torch.Tensor = field(factory=lambda: torch.zeros(1 << 16, dtype=torch.uint8))
    content: torch.Tensor = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.content = self.source.clone()

    def pages(self, starts: Ids, nbytes: Ids) -> Pages:
        """Runs that go from where they begin to the same place of the other piece."""
        return Pages(self.source.data_ptr() + starts, self.target.data_ptr() + starts, nbytes, np.zeros_like(starts))

    def moved(self, starts: Ids, nbytes: Ids) -> bool:
        """Whether these runs have arrived, nothing else has, and what they came from is as it was."""
        wanted = torch.zeros_like(self.target)
        for start, size in zip(starts.tolist(), nbytes.tolist(), strict=True):
            wanted[start : start + size] = self.content[start : start + size]
        return torch.equal(self.target, wanted) and torch.equal(self.source, self.content)


def spread(count: int) -> tuple[Ids, Ids]:
    """Runs that do not touch each other, each of its own length."""
    starts = np.arange(count, dtype=np.int64) * (65_536 // count)
    return starts, np.arange(count, dtype=np.int64) % (65_536 // count) + 1


def batch(library: FakeCuda, pages: Pages, stream: int = 5) -> None:
    CudaDriver(library).copy_batch(pages.target, pages.source, pages.nbytes, device=0, stream=stream)


# --- the driver -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 1_000])
def test_a_batch_is_one_call_that_moves_all_runs(count: int) -> None:
    """Every byte of every run arrives, and no other; sources are read in stream order, by the copy engines, without hints."""
    library, memory, runs = FakeCuda(), Bytes(), spread(count)
    batch(library, memory.pages(*runs))

    assert memory.moved(*runs)
    assert library.batches == [(count, 5)]
    assert library.attributes == {(1, 0, 0, 0, 0, 1)}
    assert library.asked == [("find", b"cuMemcpyBatchAsync", 12_080, 0)]


def test_a_long_batch_goes_in_parts() -> None:
    """No call has more than the driver is trusted with, and nothing is lost between two."""
    library, memory, runs = FakeCuda(), Bytes(), spread(2 * BATCH_MOST + 7)
    batch(library, memory.pages(*runs))

    assert [count for count, _ in library.batches] == [BATCH_MOST, BATCH_MOST, 7]
    assert memory.moved(*runs)


def test_a_batch_takes_columns_that_lie_anyhow() -> None:
    """The driver gets them without gaps, whatever they are a part of."""
    library, memory, runs = FakeCuda(), Bytes(), spread(8)
    pages = memory.pages(*runs)
    target, source, nbytes = (np.repeat(column, 2)[::2] for column in (pages.target, pages.source, pages.nbytes))
    CudaDriver(library).copy_batch(target, source, nbytes, device=0, stream=5)

    assert not target.flags.contiguous
    assert memory.moved(*runs)


@pytest.mark.parametrize("at", [1, BATCH_MOST + 2])
def test_a_batch_that_the_driver_refuses_raises(at: int) -> None:
    """With the driver's own name for it, and the run."""
    library, memory = FakeCuda(refuses_at=at), Bytes()
    with pytest.raises(RuntimeError, match=rf"answered CUDA_ERROR_INVALID_VALUE, at copy {at}$"):
        batch(library, memory.pages(*spread(BATCH_MOST + 9)))


def test_the_default_stream_takes_no_batch() -> None:
    """The driver would refuse it; nothing is asked of it."""
    library, memory = FakeCuda(), Bytes()
    with pytest.raises(MisuseError, match="the default stream takes no batches"):
        batch(library, memory.pages(*spread(3)), stream=0)

    assert library.batches == []


def test_a_driver_without_batches_says_so() -> None:
    """One that is too old for the call, and one that is too old to be asked."""
    old, older = CudaDriver(FakeCuda(knows_batches=False)), CudaDriver(SimpleNamespace())
    with pytest.raises(RuntimeError, match=r"must be of CUDA 12\.8 or later"):
        BatchMover(old)
    with pytest.raises(MisuseError, match="it has no batched copies"):
        older.copy_batch(*[np.zeros(1, np.int64)] * 3, device=0, stream=5)

    assert (old.knows_batches, older.knows_batches) == (False, False)


@pytest.mark.parametrize(("context", "retained"), [(0, [("retain", 73)]), (CONTEXT, [])], ids=["none", "its own"])
def test_a_thread_without_a_context_is_given_that_of_the_device(context: int, retained: list[tuple[object, ...]]) -> None:
    """The driver, unlike torch, makes none by itself; a thread that has one keeps it."""
    library, memory = FakeCuda(context=context), Bytes()
    pages = memory.pages(*spread(2))
    CudaDriver(library).copy_batch(pages.target, pages.source, pages.nbytes, device=3, stream=5)

    assert library.asked[1:] == retained
    assert library.context == CONTEXT


def test_a_machine_without_a_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    library = FakeCuda()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    none = cuda_driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)
    some = cuda_driver()

    assert none is None
    assert some is not None
    assert some.knows_batches


@pytest.mark.parametrize(("priority", "level"), [(HIGH, -5), (MIDDLE, -3), (LOW, 0)])
def test_a_stream_has_the_highest_priority_or_the_lowest_or_one_between(priority: int, level: int) -> None:
    """The default stream neither waits for it nor holds it up."""
    library = FakeCuda()
    handle = CudaDriver(library).make_stream(3, priority=priority)

    assert handle == 0x500 + level
    assert library.asked[-1] == ("stream", 1, level)
    assert library.context == CONTEXT


def test_a_device_has_a_place_on_the_bus() -> None:
    """As Linux writes it, in small letters."""
    assert CudaDriver(FakeCuda()).pci_address(3) == "0000:c3:00.0"


def a_layout() -> CopyLayout:
    return CopyLayout(KvCache([[torch.zeros(8, 4)]]), Rows(torch.zeros(8, 16, dtype=torch.uint8)))


@pytest.mark.parametrize(
    ("shift", "match"),
    [(0, ""), (4_096, "host rows: the byte at 0x"), (-1, "CUDA_ERROR_INVALID_VALUE")],
    ids=["same", "elsewhere", "unknown"],
)
def test_memory_that_a_kernel_finds_elsewhere_is_refused(shift: int, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels take the host's addresses as they are: the device must know the same byte by the same address."""
    library = FakeCuda(shift=shift)
    monkeypatch.setattr(moves, "cuda_driver", lambda: CudaDriver(library))
    if match:
        with pytest.raises(RuntimeError, match=match):
            check_reach(a_layout())
    else:
        check_reach(a_layout())

    assert ("attribute", 3) in library.asked


# --- the choice -----------------------------------------------------------------------------------------------------------


@define(eq=False)
class Noted:
    """A mover that says its name, and fails as told."""

    name: str
    asked: list[str]
    fails: BaseException | None = None

    def move(self, pages: Pages, direction: Direction) -> None:
        self.asked.append(self.name)
        if self.fails is not None:
            raise self.fails


def choosing(asked: list[str], **fails: BaseException) -> ChoosingMover:
    return ChoosingMover({name: Noted(name, asked, fails.get(name)) for name in ("kernel", "batch", "slices")})


def runs_of(count: int, size: int) -> Pages:
    nowhere = np.zeros(count, np.int64)
    return Pages(nowhere, nowhere, np.full(count, size), nowhere)


KIB = 1 << 10


@pytest.mark.parametrize(
    ("direction", "count", "size", "order"),
    [
        (LOAD, 1, 1 * KIB, ["batch", "kernel", "slices"]),
        (LOAD, 22, 4 * KIB, ["batch", "kernel", "slices"]),
        (LOAD, 23, 4 * KIB, ["kernel", "batch", "slices"]),
        (LOAD, 23, 45 * KIB, ["kernel", "batch", "slices"]),
        (LOAD, 23, 46 * KIB, ["batch", "kernel", "slices"]),
        (STORE, 22, 4 * KIB, ["batch", "kernel", "slices"]),
        (STORE, 23, 11 * KIB, ["kernel", "batch", "slices"]),
        (STORE, 23, 12 * KIB, ["batch", "kernel", "slices"]),
        (STORE, 4_096, 1 << 20, ["batch", "kernel", "slices"]),
    ],
)
def test_the_number_and_the_size_of_the_runs_decide(direction: Direction, count: int, size: int, order: list[str]) -> None:
    """As on one H100, where nobody has measured: many small ones by the kernel, others as a batch; the rest stands in."""
    asked: list[str] = []
    mover = choosing(asked)
    mover.move(runs_of(count, size), direction)

    assert [*mover.order(count, count * size, direction)] == order
    assert asked == order[:1]


@pytest.mark.parametrize("direction", ON_DEVICE)
@pytest.mark.parametrize("count", [1, 2, 40, 5_000])
def test_without_the_others_everything_goes_by_those_that_are_there(direction: Direction, count: int) -> None:
    asked: list[str] = []
    ChoosingMover({"slices": Noted("slices", asked)}).move(runs_of(count, 512), direction)
    ChoosingMover({name: Noted(name, asked) for name in ("kernel", "slices")}).move(runs_of(count, 1 << 20), direction)

    assert asked == ["slices", "kernel"]


def test_where_no_mover_works_each_says_why() -> None:
    """Slices are left out only by a probe: they moved wrong bytes, and nothing may go by them."""
    mover = ChoosingMover({"slices": Noted("slices", [])}, {"batch": "too old", "slices": "3 bytes are wrong"})
    with pytest.raises(RuntimeError, match=r"^no mover works here: batch \(too old\); slices \(3 bytes are wrong\)$"):
        mover.move(runs_of(10, 512), LOAD)


def test_a_mover_that_raises_is_left_out_and_its_runs_go_by_the_next() -> None:
    """No job fails by it, it is not asked again, and the reason is one line of what it said."""
    asked: list[str] = []
    mover = choosing(asked, kernel=ValueError("at line 7:\n  tl.load(...)\nno such thing"))
    mover.move(runs_of(100, 512), LOAD)
    mover.move(runs_of(100, 512), LOAD)

    assert asked == ["kernel", "batch", "batch"]
    assert mover.left_out == {"kernel": "ValueError: at line 7:"}
    assert mover.names == ("batch", "slices")


def test_the_last_mover_raises_what_it_has_to_say() -> None:
    """Where even slices do not move, the device is in trouble, and the job must hear of it."""
    asked: list[str] = []
    mover = choosing(asked, batch=RuntimeError("no"), kernel=RuntimeError("no"), slices=RuntimeError("an illegal address"))
    with pytest.raises(RuntimeError, match="an illegal address"):
        mover.move(runs_of(10, 512), LOAD)

    assert asked == ["batch", "kernel", "slices"]
    assert mover.names == ("slices",)


@pytest.mark.parametrize(
    "fault",
    [
        CudaError("cuMemcpyBatchAsync of 9 copies answered CUDA_ERROR_ILLEGAL_ADDRESS", 700),
        RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later"),
    ],
    ids=["driver", "torch"],
)
def test_a_context_that_has_ended_is_no_fault_of_the_mover(fault: Exception) -> None:
    """The next one would meet the same error: the device is lost, and who copies hears why."""
    asked: list[str] = []
    mover = choosing(asked, kernel=fault)
    with pytest.raises(DeviceLostError, match=r"(?i)illegal.* \(give the worker up\)"):
        mover.move(runs_of(100, 512), LOAD)

    assert (asked, mover.left_out) == (["kernel"], {})


def test_other_errors_of_the_driver_are_the_movers() -> None:
    asked: list[str] = []
    mover = choosing(asked, kernel=CudaError("cuMemcpyBatchAsync answered CUDA_ERROR_NOT_SUPPORTED", 801))
    mover.move(runs_of(100, 512), LOAD)

    assert asked == ["kernel", "batch"]


@pytest.mark.parametrize("fault", [MisuseError("the default stream"), KeyboardInterrupt()], ids=["misuse", "keyboard"])
def test_what_is_no_fault_of_the_mover_leaves_it_in(fault: BaseException) -> None:
    asked: list[str] = []
    mover = choosing(asked, kernel=fault)
    with pytest.raises(type(fault)):
        mover.move(runs_of(100, 512), LOAD)

    assert (asked, mover.left_out) == (["kernel"], {})


def test_a_reason_has_words() -> None:
    """An error without any is named by its kind, a long one is cut."""
    assert reason(ZeroDivisionError()) == "ZeroDivisionError"
    assert reason(ValueError("\n  x" + "y" * 900)) == "ValueError: x" + "y" * 199


# --- the proof ------------------------------------------------------------------------------------------------------------


@define(eq=False)
class ByAddress:
    """Moves as it should, and then spoils what it is told to."""

    spoil: Callable[[Pages, Direction], None] = lambda _pages, _direction: None

    def move(self, pages: Pages, direction: Direction) -> None:
        for source, target, size in zip(pages.source.tolist(), pages.target.tolist(), pages.nbytes.tolist(), strict=True):
            ctypes.memmove(target, source, size)
        self.spoil(pages, direction)


def beyond_the_end(pages: Pages, direction: Direction) -> None:
    """One byte more than asked, on the host."""
    if direction is STORE:
        ctypes.memset(int(pages.target[1] + pages.nbytes[1]), 0xFF, 1)


def a_word_too_few(pages: Pages, direction: Direction) -> None:
    """The end of a run does not arrive, on the device."""
    if direction is LOAD:
        ctypes.memset(int(pages.target[-1] + pages.nbytes[-1]) - 16, 0, 16)


def test_a_mover_that_moves_is_proven() -> None:
    prove(ByAddress(), CPU)


@pytest.mark.parametrize(("spoil", "where"), [(beyond_the_end, "the host"), (a_word_too_few, "the device")])
def test_a_mover_that_moves_wrong_bytes_is_found(spoil: Callable[[Pages, Direction], None], where: str) -> None:
    with pytest.raises(RuntimeError, match=rf"bytes on {where} are wrong after a copy"):
        prove(ByAddress(spoil), CPU)


def test_a_mover_that_moves_nothing_is_found() -> None:
    with pytest.raises(RuntimeError, match="bytes on the host are wrong"):
        prove(Noted("idle", []), CPU)


# --- all together ---------------------------------------------------------------------------------------------------------


def stream_five(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current stream of a machine that has none."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=5, device_index=0))


def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blocklife.copiers.torch._kernels", None)  # the import system takes that for missing


def test_a_mover_of_cuda_has_what_works_and_says_what_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Triton: batches, after a proof, and slices. Without a driver too: slices alone."""
    library = FakeCuda()
    no_kernels(monkeypatch)
    stream_five(monkeypatch)
    monkeypatch.setattr(probe, "cuda_driver", lambda: CudaDriver(library))
    with_driver = mover_for_cuda(a_layout(), USUAL)
    monkeypatch.setattr(probe, "cuda_driver", lambda: None)
    without = mover_for_cuda(a_layout(), USUAL)

    assert with_driver.names == ("batch", "slices")
    assert [*with_driver.left_out] == ["kernel"]
    assert with_driver.left_out["kernel"].startswith("ModuleNotFoundError: ")
    assert library.batches == [(3, 5), (3, 5)]
    assert without.names == ("slices",)
    assert without.left_out["batch"] == "RuntimeError: there is no driver to load"


def test_a_driver_that_moves_nothing_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is good and its bytes are not: it is left out before a job meets it."""
    library = FakeCuda()
    no_kernels(monkeypatch)
    stream_five(monkeypatch)
    monkeypatch.setattr(probe, "cuda_driver", lambda: CudaDriver(library))
    monkeypatch.setattr(ctypes, "memmove", lambda *_given: None)
    mover = mover_for_cuda(a_layout(), USUAL)

    assert mover.names == ("slices",)
    assert "bytes on the host are wrong" in mover.left_out["batch"]


def test_a_batch_goes_to_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    library, memory, runs = FakeCuda(), Bytes(), spread(40)
    stream_five(monkeypatch)
    BatchMover(CudaDriver(library)).move(memory.pages(*runs), LOAD)

    assert library.batches == [(40, 5)]
    assert memory.moved(*runs)


@pytest.mark.parametrize("direction", ON_DEVICE)
def test_a_choosing_mover_moves_what_slices_would(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel fails after half of its runs: the batch behind it brings all bytes."""

    class Half(ByAddress):
        def move(self, pages: Pages, direction: Direction) -> None:
            half = slice(len(pages) // 2)
            super().move(pages.chosen(half), direction)
            raise RuntimeError("out of registers")

    library, memory, runs = FakeCuda(), Bytes(), spread(64)
    stream_five(monkeypatch)
    slices: Mover = RunMover(a_layout())
    mover = ChoosingMover({"kernel": Half(), "batch": BatchMover(CudaDriver(library)), "slices": slices})
    mover.move(memory.pages(*runs), direction)

    assert memory.moved(*runs)
    assert mover.left_out == {"kernel": "RuntimeError: out of registers"}


# --- streams of CUDA, as far as they can be judged without one ------------------------------------------------------------


def test_a_device_says_what_it_left_out() -> None:
    layout = a_layout()
    choosing = CudaDevice(layout, ChoosingMover({"slices": RunMover(layout)}, {"batch": "RuntimeError: too old"}))

    assert choosing.left_out == {"batch": "RuntimeError: too old"}
    assert CudaDevice(layout, RunMover(layout)).left_out == {}


@pytest.mark.parametrize("handle", [0, 0xE])
def test_an_event_that_was_never_recorded_is_refused(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream waits for such an event not at all: a store behind it would read what is not there yet."""

    class Event:
        cuda_event = handle

    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    layout, event, stream = a_layout(), Event(), object.__new__(CudaStream)
    monkeypatch.setattr(stream, "inner", SimpleNamespace(wait_event=waited.append), raising=False)
    device = CudaDevice(layout, RunMover(layout))
    if handle:
        device.follow(stream, event)
    else:
        with pytest.raises(MisuseError, match="the event was never recorded"):
            device.follow(stream, event)

    assert waited == [event] * bool(handle)
