"""A probe at the start decides which mover takes which copy; its table can be pinned, and a bad one is refused.

Method: movers that move bytes on the host's memory and take the time that a test gives them, on a clock that is a number. So a
table must be what the times say. Then movers that raise or move a wrong byte, a driver without batches, no memory, no time.
"""

from __future__ import annotations

import ctypes
import json
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from attrs import define, evolve, field

from blocklife.copiers import MoverTable, read_movers
from blocklife.copiers._movers import MOVERS, USUAL
from blocklife.copiers.torch import DeviceLostError, KvCache, TorchCopier
from blocklife.copiers.torch import _launching as launching
from blocklife.copiers.torch import _probe as probe
from blocklife.copiers.torch._driver import CudaDriver, CudaError
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import ChoosingMover
from blocklife.copiers.torch._probe import BUDGET_S, Probed, mover_for_cuda, probe_on
from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger.records import ON_DEVICE, Direction, Worker
from tests.copiers.rig import LOAD, STORE, Rows
from tests.copiers.test_torch_movers import ByAddress, FakeCuda, a_layout, no_kernels, stream_five

CPU = torch.device("cpu")
ALL_BATCH = (("batch",) * 5,) * 3
ROWS, COLUMNS = range(len(USUAL.num_runs)), range(len(USUAL.run_bytes))
AREA_BYTES = 1 << 18

Cost = Callable[[str, Direction, int, int], float]
"""Seconds that a mover takes for so many runs of so many bytes in a direction."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Copies as small as these wait longer for other threads of torch than they take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@define(eq=False)
class Card:
    """A device whose movers take the time that is given, and fail as told."""

    cost: Cost
    fails: dict[str, BaseException] = field(factory=dict)
    spoils: dict[str, int] = field(factory=dict)
    """Who moves a wrong byte with runs of this size."""
    idles: dict[str, int] = field(factory=dict)
    """Who moves nothing with runs of this size."""
    now: float = 5.0
    asked: list[tuple[str, Direction, int, int]] = field(factory=list)

    def clock(self) -> float:
        return self.now

    def mover(self, name: str) -> PacedMover:
        return PacedMover(name, self)

    def probed(self, names: tuple[str, ...] = ("batch", "kernel"), device: torch.device = CPU) -> Probed:
        with slices_of(self):
            return probe_on(device, {name: self.mover(name) for name in names}, self.clock)


@define(eq=False)
class PacedMover:
    """Moves by address, and lets the card's time pass."""

    name: str
    card: Card

    def move(self, pages: Pages, direction: Direction) -> None:
        size = int(pages.nbytes[0])
        self.card.asked.append((self.name, direction, len(pages), size))
        if (fault := self.card.fails.get(self.name)) is not None:
            raise fault
        if self.card.idles.get(self.name) != size:
            ByAddress().move(pages, direction)
        if self.card.spoils.get(self.name) == size:
            ctypes.memset(int(pages.target[0] + size - 1), 0x5A, 1)
            ctypes.memset(int(pages.target[0] + size - 2), 0xA5, 1)
        self.card.now += self.card.cost(self.name, direction, len(pages), size)


@contextmanager
def slices_of(card: Card) -> Iterator[None]:
    """Slices take the card's time, too. There is room for less, so that tests are quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "RunMover", lambda _layout: card.mover("slices"))
        patch.setattr(probe, "AREA_BYTES", AREA_BYTES)
        yield


def even(name: str, *_: object) -> float:
    """Batches win everywhere, by a factor below that which makes slices hopeless."""
    return {"batch": 1e-5, "kernel": 2e-5, "slices": 1.5e-5}[name]


def num_moved(row: int, column: int) -> int:
    """How many runs there is room for."""
    return min(USUAL.num_runs[row], AREA_BYTES // USUAL.run_bytes[column])


def cost_of(table: MoverTable) -> Cost:
    """The mover of this table is by far the quickest at each point."""
    best = {
        (direction, num_moved(row, column), USUAL.run_bytes[column]): rows[row][column]
        for direction, rows in ((LOAD, table.load), (STORE, table.store))
        for row, column in product(ROWS, COLUMNS)
    }
    return lambda name, direction, count, size: 1e-6 if best[direction, count, size] == name else 1e-5


def drawn(seed: int) -> MoverTable:
    """Any table of batches and kernels, the same where there is no room for more runs."""
    dice = random.Random(seed)

    def rows() -> tuple[tuple[str, ...], ...]:
        names = {(num_moved(*at), at[1]): dice.choice(("batch", "kernel")) for at in product(ROWS, COLUMNS)}
        return tuple(tuple(names[num_moved(row, column), column] for column in COLUMNS) for row in ROWS)

    return evolve(USUAL, load=rows(), store=rows())


# --- what the times say ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_quickest_mover_of_each_point_takes_it(seed: int) -> None:
    """Whatever the card is like: nothing of another card's figures is left."""
    wanted = drawn(seed)
    found = Card(cost_of(wanted)).probed()

    assert found == Probed(wanted, {})


def check_worth(ratio: float, direction: Direction, wanted: str) -> None:
    """A kernel so many times as fast as a batch, everywhere."""
    found = Card(lambda name, *_: {"batch": ratio * 1e-5, "kernel": 1e-5, "slices": 9e-5}[name]).probed()
    rows = found.table.store if direction is STORE else found.table.load

    assert {name for row in rows for name in row} == {wanted}


@pytest.mark.parametrize(
    ("ratio", "direction", "wanted"),
    [(1.1, LOAD, "batch"), (1.3, LOAD, "kernel"), (2.9, STORE, "batch"), (3.1, STORE, "kernel")],
)
def test_a_kernel_must_be_worth_its_multiprocessors(ratio: float, direction: Direction, wanted: str) -> None:
    """For a load a little, for a store, for which nothing waits, much."""
    check_worth(ratio, direction, wanted)


def test_a_probe_that_weighs_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault planted: every kernel that is a little faster takes the copies."""
    monkeypatch.setattr(probe, "WORTH", dict.fromkeys(ON_DEVICE, 1.0))
    with pytest.raises(AssertionError):
        check_worth(2.9, STORE, "batch")


@pytest.mark.parametrize("slices", [1.9, 2.1])
def test_each_point_is_measured_three_times_and_slices_only_while_they_have_a_chance(slices: float) -> None:
    """Each costs the host the same, so that more of them cannot win. What would be measured again is not."""
    card = Card(lambda name, *_: {"batch": 1e-5, "kernel": 2e-5, "slices": slices * 1e-5}[name])
    found = card.probed()
    points = {(num_moved(row, column), USUAL.run_bytes[column]) for row, column in product(ROWS, COLUMNS)}
    few = {(num_moved(0, column), USUAL.run_bytes[column]) for column in COLUMNS}

    assert found == Probed(evolve(USUAL, load=ALL_BATCH, store=ALL_BATCH), {})
    for name, there in (("batch", points), ("kernel", points), ("slices", points if slices < probe.HOPELESS else few)):
        wanted = sorted([*there] * (len(ON_DEVICE) * probe.TRIES))
        assert sorted((count, size) for who, _, count, size in card.asked if who == name) == wanted


def test_what_there_is_no_time_for_is_as_on_an_h100() -> None:
    """The probe ends with the point at which its time was over: of a card where kernels win, the first one in one direction."""
    card = Card(lambda name, *_: BUDGET_S if name == "kernel" else 9 * BUDGET_S)
    found = card.probed()
    told = {way: getattr(found.table, way) for way in ("load", "store")}
    differs = [
        (way, at) for way, at in product(told, product(ROWS, COLUMNS)) if _at(told[way], at) != _at(getattr(USUAL, way), at)
    ]

    assert len(card.asked) == len(MOVERS) * probe.TRIES
    assert differs == [("load" if card.asked[0][1] is LOAD else "store", (0, 0))]


def _at(rows: tuple[tuple[str, ...], ...], at: tuple[int, int]) -> str:
    return rows[at[0]][at[1]]


# --- movers that fail -----------------------------------------------------------------------------------------------------


def check_wrong_bytes_are_found(name: str, fault: str = "spoils", size: int = 16 << 10) -> None:
    """With runs of one size, by the quickest mover of all."""
    others = [each for each in MOVERS if each != name]
    card = Card(lambda who, *_: 1e-6 if who == name else 1e-5)
    setattr(card, fault, {name: size})
    found = card.probed()
    taken = {mover for row in (*found.table.load, *found.table.store) for mover in row}

    assert set(found.left_out) == {name}, found
    assert "bytes are wrong after a " in found.left_out[name]
    assert name not in taken <= {*others}


@pytest.mark.parametrize("size", [USUAL.run_bytes[0], USUAL.run_bytes[2]])
@pytest.mark.parametrize("fault", ["spoils", "idles"])
@pytest.mark.parametrize("name", MOVERS)
def test_a_mover_that_moves_a_wrong_byte_is_out(name: str, fault: str, size: int) -> None:
    """Wherever it was the quickest before; also one that moves nothing, to where another has moved the same just before."""
    check_wrong_bytes_are_found(name, fault, size)


def test_a_probe_that_does_not_look_at_the_bytes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault planted."""
    monkeypatch.setattr(probe.ProbeArea, "num_wrong", lambda *_: 0)
    with pytest.raises(AssertionError):
        check_wrong_bytes_are_found("kernel")


@pytest.mark.parametrize("name", MOVERS)
def test_a_mover_that_raises_is_out_and_the_others_are_measured(name: str) -> None:
    card = Card(even, fails={name: ValueError("out of registers\nat line 7")})
    found = card.probed()

    assert found.left_out == {name: "ValueError: out of registers"}
    assert [who for who, *_ in card.asked].count(name) == 1
    assert {who for who, *_ in card.asked} == {*MOVERS}


def test_where_all_fail_nothing_is_measured_and_nothing_raises() -> None:
    found = Card(even, fails={name: RuntimeError("no") for name in MOVERS}).probed()

    assert found == Probed(USUAL, dict.fromkeys(MOVERS, "RuntimeError: no"))


@pytest.mark.parametrize("name", MOVERS)
def test_a_device_lost_in_a_probe_is_lost(name: str) -> None:
    """No mover is to blame, and no other is tried: it would meet the same error."""
    card = Card(even, fails={name: CudaError("cuMemcpyBatchAsync answered CUDA_ERROR_ILLEGAL_ADDRESS", 700)})
    with pytest.raises(DeviceLostError, match=r"ILLEGAL_ADDRESS \(give the worker up\)"):
        card.probed()

    assert card.asked[-1][0] == name


@pytest.mark.parametrize("fault", [CapacityError("host memory: 12 bytes requested, 7 are available"), OSError("no thread")])
def test_a_probe_without_memory_is_one_line_and_the_table_of_an_h100(
    fault: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_given: object, **_named: object) -> None:
        raise fault

    monkeypatch.setattr(probe, "HostMemory", none)
    found = Card(even).probed()

    assert found == Probed(USUAL, {})
    (line,) = caplog.messages
    assert f"movers on cpu are not probed, and chosen as on an H100: {type(fault).__name__}: " in line


def test_a_probe_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a device is lost."""
    closed: list[object] = []
    honest = probe.ProbeArea.close
    monkeypatch.setattr(probe.ProbeArea, "close", lambda area: closed.append(honest(area)))
    Card(even).probed()
    with pytest.raises(DeviceLostError):
        Card(even, fails={"batch": CudaError("gone", 719)}).probed()

    assert closed == [None, None]


# --- at the start ---------------------------------------------------------------------------------------------------------


def started(monkeypatch: pytest.MonkeyPatch, library: FakeCuda, card: Card, table: MoverTable | None = None) -> ChoosingMover:
    """The movers of a machine with this driver and without Triton."""
    no_kernels(monkeypatch)
    stream_five(monkeypatch)
    monkeypatch.setattr(probe, "cuda_driver", lambda: CudaDriver(library))
    with slices_of(card):
        return mover_for_cuda(a_layout(), table, card.clock)


def test_a_driver_without_batches_leaves_them_out_with_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As what is not installed; slices take everything."""
    mover = started(monkeypatch, FakeCuda(knows_batches=False), Card(even))

    assert mover.names == ("slices",)
    assert {name for row in (*mover.table.load, *mover.table.store) for name in row} == {"slices"}
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(": RuntimeError")[0] for line in told if "the mover batch" in line] == [
        "blocklife copier: copies on cpu go without the mover batch, more slowly"
    ]
    assert len(told) == 2  # and the kernel


def test_a_driver_that_refuses_in_the_probe_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has passed the proof, of three runs each way."""
    mover = started(monkeypatch, FakeCuda(refuses_at=6 + 20), Card(even))

    assert mover.names == ("slices",)
    assert mover.left_out["batch"].startswith("CudaError: cuMemcpyBatchAsync of 8 copies answered CUDA_ERROR_INVALID_VALUE")


def test_slices_that_move_wrong_bytes_take_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the last resort, but no copy may go by them then."""
    mover = started(monkeypatch, FakeCuda(), Card(even, spoils={"slices": 4_096}))

    assert mover.names == ("batch",)
    assert "bytes are wrong" in mover.left_out["slices"]
    assert [*mover.order(1, 4_096, LOAD)] == ["batch"]


def test_a_device_lost_in_a_proof_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_given: object) -> None:
        raise CudaError("cuMemcpyBatchAsync answered CUDA_ERROR_LAUNCH_FAILED", 719)

    monkeypatch.setattr(probe, "prove", lost)
    with pytest.raises(DeviceLostError, match="LAUNCH_FAILED"):
        started(monkeypatch, FakeCuda(), Card(even))


def test_a_pinned_table_is_taken_and_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    card, library = Card(even), FakeCuda()
    wanted = drawn(9)
    mover = started(monkeypatch, library, card, wanted)

    assert mover.table == wanted
    assert (card.asked, library.batches) == ([], [(3, 5), (3, 5)])
    assert mover.names == ("batch", "slices")


def test_nothing_is_proved_or_probed_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for the stream, which ends the capture with an error."""
    layout = a_layout()
    monkeypatch.setattr(layout.cache, "device", torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(probe, "prove", lambda *_: pytest.fail("proved"))
    monkeypatch.setattr(probe, "probe_on", lambda *_: pytest.fail("probed"))
    with pytest.raises(MisuseError, match=r"while a CUDA graph is captured \(make it before or after\)"):
        mover_for_cuda(layout)


def test_a_copier_hands_its_table_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the device that it makes; on the CPU there is nothing to choose."""
    made: list[object] = []
    monkeypatch.setattr(launching, "CudaDevice", lambda _layout, table: made.append(table))
    monkeypatch.setattr(launching, "LaunchingDevice", lambda *_given, **_named: SimpleNamespace())
    cache, rows = KvCache([[torch.zeros(8, 4)]]), Rows(torch.zeros(8, 16, dtype=torch.uint8))
    TorchCopier(cache, rows, worker=Worker(0), movers=USUAL)
    monkeypatch.setattr(cache, "device", torch.device("cuda", 0))
    launching.device_for(CopyLayout(cache, rows), movers=USUAL)
    launching.device_for(CopyLayout(cache, rows))

    assert made == [USUAL, None]


# --- the table ------------------------------------------------------------------------------------------------------------


def test_a_table_is_read_as_it_is_written(tmp_path: Path) -> None:
    """As data and from a file."""
    file = tmp_path / "movers.json"
    wanted = drawn(3)
    file.write_text(json.dumps(wanted.as_json()))

    assert read_movers("movers", json.loads(json.dumps(wanted.as_json()))) == wanted
    assert read_movers("movers", str(file)) == wanted


def changed(**columns: object) -> dict[str, object]:
    return USUAL.as_json() | columns


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (7, "movers must be an object with num_runs, run_bytes, load, store and nothing else"),
        ({}, "movers must be an object with"),
        (changed(more=1), "movers must be an object with"),
        (changed(num_runs=[8, 64]), "movers: mover table: load must have 2 rows of 5 movers each"),
        (changed(store=[["batch"] * 5] * 2), "movers: mover table: store must have 3 rows of 5 movers each"),
        (changed(num_runs=[64, 8, 512]), r"movers: num_runs must ascend, and not be \[64, 8, 512\]"),
        (changed(num_runs=[0, 8, 512]), r"movers: num_runs must be whole numbers above 0, and not \[0, 8, 512\]"),
        (changed(run_bytes=[]), r"movers: run_bytes must be whole numbers above 0"),
        (changed(run_bytes=[1.5]), "movers: run_bytes must be whole numbers above 0"),
        (
            changed(load=[["batch"] * 4 + ["rocket"]] * 3),
            "movers: load names a mover 'rocket', and there are batch, kernel, slices",
        ),
        (changed(load="batch"), "movers: load must be rows with the names of movers"),
        ("/nowhere/movers.json", "movers: /nowhere/movers.json cannot be read: .*No such file"),
    ],
)
def test_a_bad_table_is_refused(given: object, says: str) -> None:
    """With its place, what is wrong, and where a good one comes from."""
    with pytest.raises(MisuseError, match=f"^{says}") as refused:
        read_movers("movers", given)

    assert "blocklife doctor --movers FILE" in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_file_that_has_no_table_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "movers.json"
    file.write_text(text)
    with pytest.raises(MisuseError, match=f"^movers: {file} (cannot be read|must be an object)"):
        read_movers("movers", str(file))


def test_a_transfer_goes_by_the_nearest_point() -> None:
    """By ratio: between two points the middle is their geometric mean, and beyond the table its edge counts."""
    table = MoverTable(
        num_runs=(2, 8), run_bytes=(100, 400), load=(("slices", "batch"), ("kernel", "batch")), store=(("batch",) * 2,) * 2
    )
    found = {
        (count, size): table.mover(LOAD, count, count * size) for count, size in product((1, 3, 4, 99), (1, 199, 200, 9_999))
    }

    assert {table.mover(STORE, count, count * size) for count, size in found} == {"batch"}
    assert found == {(count, size): "batch" if size >= 200 else "slices" if count < 4 else "kernel" for count, size in found}
    assert table.mover(LOAD, 0, 0) == "slices"


def test_a_table_is_told_in_lines() -> None:
    assert [*USUAL.lines()][:3] == [
        "runs of           4 KiB    8 KiB    16 KiB   32 KiB   64 KiB",
        "load       8 runs batch    batch    batch    batch    batch",
        "load      64 runs kernel   kernel   kernel   kernel   batch",
    ]
