"""Every byte that a copier moves arrives, whatever a page is, whoever moves it, whatever goes wrong; on a CPU and on CUDA.

Goal: exact bytes at both ends, those included that nobody asked to move. Method: random bytes, and a shadow that moves page
after page in the order of the launches. What is slow or fails is put on a stage (`tests.gpu.stages`), a GPU or a fake.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest
import torch

from blocklife.copiers import FaultRates
from blocklife.copiers.torch import HostMemory, KvCache
from blocklife.copiers.torch import _memory as memory
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import Mover
from blocklife.copiers.torch._probe import mover_for_cuda
from blocklife.errors import CapacityError
from blocklife.ledger.records import ON_DEVICE, Direction
from tests.gpu.movers import NAMES, is_cuda
from tests.gpu.play import Play
from tests.gpu.rigs import FAILED, LOAD, OK, STORE, rigged, transfer
from tests.gpu.stages import CudaStage, FakeStage, shown
from tests.gpu.traffic import FAULTS, Traffic

KIB = 1 << 10
PAGES = [KIB << power for power in range(13)]
"""Bytes of a page, from 1 KiB to 4 MiB."""

BLOCKS, PLACES = 10, 12

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
MOVERS = [
    pytest.param(("cpu", "chosen"), id="cpu"),
    *(pytest.param(("cuda", name), id=f"cuda, {name}", marks=pytest.mark.gpu) for name in NAMES),
]
STAGES = [pytest.param("fake"), CUDA]


@pytest.fixture(params=MOVERS)
def moving(request: pytest.FixtureRequest) -> tuple[torch.device, str]:
    """Where the cache is, and who moves it."""
    where, name = request.param
    return torch.device(where), name


@pytest.fixture(params=["cpu", CUDA])
def where(request: pytest.FixtureRequest) -> torch.device:
    """Where the cache is."""
    return torch.device(request.param)


@pytest.fixture(params=STAGES)
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """A copier whose streams can be slow, and whose deadline passes when its clock, a number, says 10."""
    play = Play(FakeStage() if request.param == "fake" else CudaStage(), 256, deadline_s=10.0)
    yield play
    play.close()


def layer(where: torch.device, page: int, blocks: int = BLOCKS) -> torch.Tensor:
    return torch.zeros(blocks, page, dtype=torch.uint8, device=where)


# --- the probe ------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("page", [4 * KIB, 64 * KIB])
def test_a_probe_finds_every_mover_of_a_device_right(page: int, caplog: pytest.LogCaptureFixture) -> None:
    """It measures some points at least, and takes none of them out."""
    caplog.set_level(logging.INFO)
    where = torch.device("cuda", torch.cuda.current_device())
    cache = KvCache([[layer(where, page)]])
    with HostMemory(cache.row_bytes, PLACES, pinned=True) as host:
        mover = mover_for_cuda(CopyLayout(cache, host))
    print(*mover.table.lines(), *caplog.messages, sep="\n")

    assert not {name: why for name, why in mover.left_out.items() if "bytes are wrong" in why}
    assert [line for line in caplog.messages if "were probed in" in line]


# --- bytes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page // KIB} KiB")
def test_bytes_of_each_page_size_move_both_ways(page: int, moving: tuple[torch.device, str]) -> None:
    """Neighbours and single blocks, out and in again elsewhere, and nothing else is touched."""
    where, mover = moving
    with rigged([[layer(where, page), layer(where, page)]], PLACES, mover, seed=page) as rig:
        rig.launch(STORE, [4, 5, 6, 1, 9], [7, 8, 9, 0, 3])
        rig.launch(LOAD, [7, 0, 11, 10, 3], [2, 0, 3, 8, 7])
        reported = rig.close()

        assert reported == [(1, OK), (2, OK)]
        assert rig.shadow.wrong() == []


@pytest.mark.parametrize("page", [1, 3, 100, 4_095, 4_112, 65_537])
def test_bytes_of_odd_pages_move_both_ways(page: int, moving: tuple[torch.device, str]) -> None:
    """Pages that no power of two divides, in a layer that begins at an odd address: no mover may round."""
    where, mover = moving
    odd = torch.zeros(BLOCKS * page + 1, dtype=torch.uint8, device=where)[1:].view(BLOCKS, page)
    with rigged([[layer(where, page), odd]], PLACES, mover, seed=page) as rig:
        rig.launch(STORE, [4, 5, 6, 1, 9], [7, 8, 9, 0, 3])
        rig.launch(LOAD, [7, 0, 11, 10, 3], [2, 0, 3, 8, 7])

        assert rig.close() == [(1, OK), (2, OK)]
        assert rig.shadow.wrong() == []


def hybrid(where: torch.device) -> list[list[torch.Tensor]]:
    """Three groups: layers with keys and values of many heads, latents of one, and states whose pages differ by layer."""
    keys_and_values = [torch.zeros(BLOCKS, 2, 16, 8, 64, dtype=torch.bfloat16, device=where) for _ in range(9)]
    latents = [torch.zeros(BLOCKS, 16, 576, dtype=torch.float8_e4m3fn, device=where) for _ in range(5)]
    states = [torch.zeros(BLOCKS, 128 * size, dtype=torch.float32, device=where) for size in (1, 3, 2, 40)]
    return [keys_and_values, latents, states]


def test_groups_of_many_layers_and_different_pages(moving: tuple[torch.device, str]) -> None:
    """One job of all groups, jobs of one each, and a load of what another group has left."""
    where, mover = moving
    with rigged(hybrid(where), PLACES, mover) as rig:
        rig.launch(STORE, [1, 2, 3, 4, 5, 9], [3, 4, 5, 0, 1, 11], (3, 1, 2))
        rig.launch(STORE, [6], [6], (0, 1, 0))
        rig.launch(LOAD, [5, 4, 3, 11, 2, 1], [0, 7, 8, 6, 2, 3], (2, 1, 3))
        rig.launch(LOAD, [9, 10], [1, 9], (0, 0, 2))
        rig.launch(STORE, [8, 7], [7, 8], (2, 0))

        assert rig.close() == [(number, OK) for number in range(1, 6)]
        assert rig.shadow.wrong() == []


def test_parts_of_chunks_leave_the_rest_of_them_alone(moving: tuple[torch.device, str]) -> None:
    """A slot holds a chunk of four; the first lacks its front, the last its end, and those were stored by others before."""
    where, mover = moving

    def places(chunk: int, *parts: int) -> list[int]:
        return [4 * chunk + part for part in parts]

    with rigged([[layer(where, 1_536, 16) for _ in range(3)]], 24, mover) as rig:
        rig.launch(STORE, [0, 1, 2, 3], places(5, 0, 1, 2, 3))
        rig.launch(STORE, [*range(4, 12)], [*places(3, 2, 3), *places(1, 0, 1, 2, 3), *places(5, 0, 1)])
        rig.launch(LOAD, [*places(5, 1, 2, 3), *places(3, 3), *places(0, 0)], [12, 13, 14, 0, 15])

        assert rig.close() == [(1, OK), (2, OK), (3, OK)]
        assert rig.shadow.wrong() == []


def strided(where: torch.device) -> list[list[torch.Tensor]]:
    """Layers as engines have them: axes in another order, keys and values in one tensor, a layer inside a larger buffer."""
    turned = torch.zeros(BLOCKS, 16, 4, 32, dtype=torch.bfloat16, device=where).permute(0, 2, 1, 3)
    keys, values = torch.zeros(2, BLOCKS, 16, 4, 32, dtype=torch.bfloat16, device=where)
    buffer = torch.zeros(1 << 18, dtype=torch.uint8, device=where)
    inside = buffer[1_000 : 1_000 + BLOCKS * 768].view(BLOCKS, 3, 256)
    crossed = torch.zeros(BLOCKS, 8, 6, 4, dtype=torch.int16, device=where).permute(0, 3, 1, 2)
    return [[turned, keys, values], [inside, crossed]]


def test_pages_whose_axes_are_turned_move_as_they_lie(moving: tuple[torch.device, str]) -> None:
    where, mover = moving
    with rigged(strided(where), PLACES, mover) as rig:
        rig.launch(STORE, [1, 2, 3, 4, 7], [3, 4, 5, 0, 11], (3, 2))
        rig.launch(LOAD, [5, 4, 0, 9, 11], [9, 0, 5, 6, 8], (2, 3))

        assert rig.close() == [(1, OK), (2, OK)]
        assert rig.shadow.wrong() == []


def test_more_runs_than_a_queue_holds_arrive(moving: tuple[torch.device, str]) -> None:
    """Thousands of runs in one job, and many jobs in a row: more than a driver queues before it makes the host wait."""
    where, mover = moving
    count = 3_000
    dice = random.Random(7)
    blocks, places = dice.sample(range(count), count), dice.sample(range(count), count)
    with rigged([[layer(where, 1_024, count)]], count, mover) as rig:
        rig.launch(STORE, blocks[: count // 2], places[: count // 2])
        for begin in range(0, 400, 4):
            rig.launch(LOAD, places[begin : begin + 4], blocks[-begin - 4 :][:4])

        assert {result for _, result in rig.close()} == {OK}
        assert rig.shadow.wrong() == []


# --- everything at once ---------------------------------------------------------------------------------------------------


def traffic_on(where: torch.device, mover: str, seed: int, rates: FaultRates, steps: int) -> Traffic:
    """So many steps on a hybrid cache; says what was wrong."""
    print(f"seed {seed}")
    groups = [*hybrid(where), *strided(where)]
    with rigged(groups, PLACES, mover, seed=seed) as rig:
        traffic = Traffic(rig, seed, rates)
        for _ in range(steps):
            traffic.step()
        assert traffic.wrong() == [], f"seed {seed}"
    return traffic


@pytest.mark.parametrize("seed", range(6))
def test_stores_loads_and_kernels_at_once_leave_every_byte_right(seed: int, moving: tuple[torch.device, str]) -> None:
    """Nobody waits but for what the contracts ask for; the engine computes on two streams, and tells of streams or events."""
    traffic = traffic_on(*moving, seed, FaultRates(), 150)

    assert traffic.num_reads > 50
    assert {result for told in traffic.said.values() for result in told} == {OK}


@pytest.mark.parametrize("seed", range(6, 18))
def test_faults_spoil_no_byte_that_was_not_promised(seed: int, where: torch.device) -> None:
    """Jobs that are cut short, late, told of twice, overtaken or never told of: each place holds what the shadow says."""
    traffic = traffic_on(where, "chosen", seed, FAULTS, 200)
    statistics = traffic.copier.statistics()
    print(statistics)

    assert min(statistics.num_failed, statistics.num_late, statistics.num_twice, statistics.num_never) > 0
    assert {result for told in traffic.said.values() for result in told} == {OK, FAILED}


class Forgetful:
    """Moves all runs but the last byte of the last."""

    def __init__(self, inner: Mover) -> None:
        self._inner = inner

    def move(self, pages: Pages, direction: Direction) -> None:
        nbytes = pages.nbytes.copy()
        nbytes[-1] -= 1
        self._inner.move(Pages(pages.source, pages.target, nbytes, pages.layer), direction)


def test_the_shadow_sees_a_single_byte(where: torch.device) -> None:
    """A mover that forgets one is found, at either end."""
    found = []
    for direction in ON_DEVICE:
        with rigged([[layer(where, 512)]], PLACES, "slices", wrap=Forgetful) as rig:
            rig.launch(direction, [2], [3])
            rig.close()
            found += rig.shadow.wrong()

    assert found == [
        "place 3: 1 of 512 bytes are wrong",
        "group 0, layer 0, block 3: 1 of 512 bytes are wrong",
    ]


# --- wait and close -------------------------------------------------------------------------------------------------------


def test_nothing_is_reported_before_its_bytes_are_there(play: Play) -> None:
    """A store that sleeps is not over, however often one asks; when it is, its bytes are there at that moment."""

    def asked() -> tuple[list[object], bool] | None:
        play.reset()
        play.stage.slow("store")
        late = play.store([2], [2])
        play.stage.others()
        early: list[object] = [*play.results(), *play.results()]
        asleep = play.stage.asleep()
        while not (reported := play.results()):
            assert play.copier.busy()
            if isinstance(play.stage, FakeStage):
                play.stage.finish()
        assert reported == [(late.number, OK)]
        return (early, play.host_holds(2, "block 2")) if asleep else None

    assert shown(asked) == ([], True)


def test_wait_returns_when_the_bytes_are_there_and_not_before(play: Play) -> None:
    """Without any other synchronization the host then reads the right bytes; nothing was reported by it."""

    def waited() -> bool | None:
        play.reset()
        play.stage.slow("store")
        store = play.store([1], [1])
        asleep = play.stage.asleep()
        play.copier.wait([store])
        there = play.host_holds(1, "block 1")
        assert not play.stage.asleep()
        assert play.results() == [(store.number, OK)]
        return there if asleep else None

    assert shown(waited)


def test_wait_does_not_wait_for_the_other_direction(play: Play) -> None:
    """A store of other places is quiet while a load sleeps; who waits for the load has it then."""

    def waited() -> bool | None:
        play.reset()
        play.stage.slow("load")
        load = play.load([1], [1])
        store = play.store([2], [2])
        play.copier.wait([store])
        reported, there = play.results(), play.host_holds(2, "block 2")
        asleep = play.stage.asleep()
        play.copier.wait([load])
        play.poll()
        assert play.wrong() == []
        return there and reported == [(store.number, OK)] if asleep else None

    assert shown(waited)


def test_a_small_load_is_not_held_up_by_a_large_one(play: Play) -> None:
    """It is there and reported while the large one, launched before it, sleeps; both bring the right bytes in the end."""

    def quick() -> bool | None:
        play.reset()
        play.stage.slow("bulk 0")
        large = play.load([1, 2, 3], [1, 2, 3], large=True)
        small = play.load([1], [4])
        play.copier.wait([small])
        reported, asleep = play.results(), play.stage.asleep()
        play.copier.wait([large])
        assert play.results() == [(large.number, OK)]
        assert play.wrong() == []
        return reported == [(small.number, OK)] if asleep else None

    assert shown(quick)


def test_close_drains_both_directions(play: Play) -> None:
    """When it returns, all bytes are there, and a last poll reports it."""
    play.stage.slow("store")
    play.stage.slow("load")
    store = play.store([1], [1])
    load = play.load([2], [2])
    play.copier.close()

    assert play.results() == [(store.number, OK), (load.number, OK)]
    assert play.wrong() == []


# --- what goes wrong ------------------------------------------------------------------------------------------------------


def test_a_deadline_that_passes_makes_a_job_suspect_and_later_failed(play: Play) -> None:
    """Its verdict stands at once, its report comes when it is quiet; who comes to its places still waits for it."""

    def missed() -> bool | None:
        play.reset()
        play.stage.slow("store")
        late = play.store([1], [1])
        play.now = 10.0
        early = play.results()
        suspects = [(each.job, sorted(each.places.tolist()), each.why) for each in play.copier.suspect()]
        busy = play.copier.busy()
        play.now = 0.0
        behind = play.load([1], [3])
        asleep = play.stage.asleep()
        wrong = play.wrong()
        reported = play.results()
        if not asleep:
            return None

        assert early == []
        assert suspects == [(late, [1, 6, 11], f"job {late}: not over after 10 s")]
        assert not busy
        assert wrong == []
        assert reported == [(late.number, FAILED), (behind.number, OK)]
        return play.copier.suspect() == ()

    assert shown(missed)


class Stumbling:
    """Moves half of its runs once, and raises; afterwards it is as good as any."""

    def __init__(self, inner: Mover) -> None:
        self._inner = inner
        self._stumbles = True

    def move(self, pages: Pages, direction: Direction) -> None:
        if not self._stumbles:
            self._inner.move(pages, direction)
            return
        self._stumbles = False
        half = slice(len(pages) // 2)
        self._inner.move(pages.chosen(half), direction)
        raise RuntimeError("the driver refuses to copy")


@pytest.mark.parametrize("direction", ON_DEVICE)
def test_a_launch_that_raises_fails_its_job_and_no_other(direction: Direction, where: torch.device) -> None:
    """Half of it is under way when it raises: that half arrives, the job is FAILED, and the next ones are good."""
    with rigged([[layer(where, 2 * KIB)]], PLACES, "slices", wrap=Stumbling) as rig:
        broken = transfer(1, direction, [1, 3, 5, 7], [2, 4, 6, 8])
        rig.copier.launch(broken)
        rig.shadow.move(broken, 2)
        rig.num_jobs = 1
        rig.launch(STORE, [1, 3, 5, 7], [2, 4, 6, 8])
        rig.launch(LOAD, [2, 4], [9, 0])

        assert rig.close() == [(1, FAILED), (2, OK), (3, OK)]
        assert "the driver refuses to copy" in rig.copier.statistics().last_error
        assert rig.shadow.wrong() == []


def test_pinning_more_than_there_is_is_refused_and_harms_nobody(where: torch.device) -> None:
    """Both numbers are told; a copier made afterwards works."""
    with pytest.raises(CapacityError, match=r"^host memory: 1,125,899,906,842,624 bytes requested .* are available"):
        HostMemory(1 << 30, 1 << 20, pinned=is_cuda(where))

    with rigged([[layer(where, KIB)]], PLACES) as rig:
        rig.launch(STORE, [1, 2], [3, 9])
        assert rig.close() == [(1, OK)]
        assert rig.shadow.wrong() == []


@pytest.mark.gpu
def test_pinning_that_cuda_refuses_is_an_error_and_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA says is told, what was pinned before is given back, and no later kernel is blamed for it.

    To be refused without taking all memory of a machine, the second part is pinned while it is pinned already.
    """
    honest, asked = memory._lock, []

    def again(at: int, nbytes: int) -> str:
        asked.append(at)
        trouble = honest(at, nbytes)
        if len(asked) == 2 and not trouble:
            trouble = honest(at, nbytes)
            memory._unlock(at)
        return trouble

    where = torch.device("cuda")
    torch.cuda.synchronize()
    with monkeypatch.context() as patch:
        patch.setattr(memory, "_lock", again)
        patch.setattr(memory, "LOCK_BYTES", 4_096)
        with pytest.raises(CapacityError, match=r"CUDA pinned 4,096 and then failed: .+ \(ask for fewer places\)"):
            HostMemory(4_096, 3, pinned=True)
    kernels = torch.ones(1_000, device=where) * 2

    assert len(asked) == 2
    assert float(kernels.sum()) == 2_000
    with rigged([[layer(where, KIB)]], PLACES) as rig:
        rig.launch(STORE, [1, 2], [3, 9])
        assert rig.close() == [(1, OK)]
        assert rig.shadow.wrong() == []
