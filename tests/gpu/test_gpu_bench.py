"""The benchmark of copies says what is so: whoever moves wrong bytes has no figures, and what had no time is named.

Method: a run in a size for tests, on CPU tensors and on CUDA; then with competitors that forget a byte or raise.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import RunMover
from blocklife.ledger.records import ON_DEVICE, Direction
from tests.bench.gpu import measuring, peers
from tests.bench.gpu.__main__ import main
from tests.bench.gpu.arena import LOAD, SMOKE, STORE, Arena, Buffers, Work
from tests.bench.gpu.competitors import DIRECTIONS, PEERS, Ours
from tests.bench.gpu.measuring import Wish, closing_all, compare, measure, order
from tests.bench.gpu.records import (
    COPIER,
    EACH,
    GATHER,
    KIB,
    LIMIT,
    LMCACHE,
    MOVERS,
    NEIGHBOURS,
    PACKAGES,
    SGLANG,
    VLLM_BATCH,
    VLLM_KERNEL,
    Case,
    from_json,
    to_json,
)
from tests.bench.gpu.tables import markdown
from tests.gpu.movers import SINGLE
from tests.gpu.packages import FAKES, OLDER_LMCACHE

PAGES = (4 * KIB, 64 * KIB)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> torch.device:
    """Where the cache is."""
    return torch.device(request.param)


def wish(where: torch.device, seconds: float = 120.0) -> Wish:
    return Wish(where=where, sizes=SMOKE, pages=PAGES, beside_pages=(16 * KIB,), seconds=seconds)


def quiet(line: str) -> None:
    """Nobody listens."""


def test_a_run_has_figures_of_everybody(where: torch.device) -> None:
    """In each page size and direction; movers that are not there are named, and nobody moves wrong bytes."""
    said: list[str] = []
    report = measure(wish(where), said.append)
    there, others = ([name for name in names if name not in report.absent] for names in (MOVERS, PACKAGES))
    print(report.absent, *said, sep="\n")

    assert report.troubles == []
    assert report.left_out == ()
    assert [(case.direction, case.page) for case in report.cases] == [(way, page) for way in DIRECTIONS for page in PAGES]
    for case in report.cases:
        assert {each.name for each in case.timed} == {LIMIT, EACH, GATHER, COPIER, NEIGHBOURS, *there, *others}
        for each in case.timed:
            assert len(each.seconds) == len(each.held_us) >= measuring.REPETITIONS_MIN
            assert min(each.seconds) > 0
            assert each.nbytes == (1 + (case.direction == "both")) * SMOKE.large_pages
    assert [(each.direction, each.mover) for each in report.beside] == [
        (way, name) for way in ("store", "load") for name in (LIMIT, EACH, GATHER, *others, COPIER, *there)
    ]
    assert min(map(len, (each.beside_ms for each in report.beside))) == measuring.ROUNDS * (SMOKE.products - measuring.WARM)
    assert len(said) > len(report.cases)


def test_what_had_no_time_is_named(where: torch.device) -> None:
    report = measure(wish(where, seconds=1e-9), quiet)

    assert report.cases == ()
    assert report.left_out[0] == "store, pages of 4 KiB"
    assert "load, pages of 16 KiB, beside a product" in report.left_out
    assert len(report.left_out) == len(DIRECTIONS) * len(PAGES) + 2


def test_an_interrupted_run_keeps_what_it_has(where: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the second case: the first is reported, and the rest is named."""
    honest, asked = measuring.compare, []

    def interrupted(*given: object) -> Case:
        asked.append(given)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return honest(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(measuring, "compare", interrupted)
    report = measure(wish(where), quiet)

    assert [(case.direction, case.page) for case in report.cases] == [("store", PAGES[0])]
    assert report.left_out[0] == "what comes here, because it was interrupted"
    assert report.left_out[1] == "store, pages of 64 KiB"


# --- other packages -------------------------------------------------------------------------------------------------------


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, SimpleNamespace]:
    """These packages are installed."""
    there = {module: SimpleNamespace(**calls) for module, calls in FAKES.items()}

    def imported(module: str) -> SimpleNamespace:
        if module not in there:
            raise ModuleNotFoundError(f"No module named {module!r}")
        return there[module]

    monkeypatch.setattr(peers, "importlib", SimpleNamespace(import_module=imported))
    return there


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_other_packages_are_asked_for_the_same_bytes(direction: str, page: int, fakes: dict[str, SimpleNamespace]) -> None:
    """Each by its own call; every byte is compared, and none of them touches another."""
    buffers = Buffers(torch.device("cpu"), SMOKE, lambda _done, _total: None)
    arena = Arena(buffers, page)
    absent: dict[str, str] = {}
    case = compare(arena, direction, measuring.packages(arena, absent), 0.0)

    assert absent == {}
    assert [(each.name, each.trouble) for each in case.timed] == [(name, "") for name in PACKAGES]
    assert all(len(each.seconds) >= measuring.REPETITIONS_MIN for each in case.timed)
    del arena
    buffers.close()


def test_an_older_lmcache_is_asked_too(fakes: dict[str, SimpleNamespace]) -> None:
    del fakes["lmcache.cuda_ops"]
    fakes["lmcache.c_ops"] = SimpleNamespace(**OLDER_LMCACHE)
    report = measure(wish(torch.device("cpu")), quiet)

    assert (report.troubles, LMCACHE in report.absent) == ([], False)
    assert all(case.of(LMCACHE) for case in report.cases)


def test_a_package_that_is_not_there_or_raises_is_one_line_and_the_table_goes_on(
    fakes: dict[str, SimpleNamespace],
) -> None:
    """Not installed; another call than we know; one that raises when it is made. None of them fails the run."""

    def unknown(*_given: object, **_named: object) -> None:
        raise TypeError("multi_layer_kv_transfer(): incompatible function arguments")

    del fakes["vllm._custom_ops"], fakes["sgl_kernel.kvcacheio"].transfer_kv_per_layer_mla_pf_lf
    fakes["lmcache.cuda_ops"].multi_layer_kv_transfer = unknown
    report = measure(wish(torch.device("cpu")), quiet)

    assert {name: report.absent[name].partition(":")[0] for name in PACKAGES if name in report.absent} == {
        VLLM_BATCH: "ModuleNotFoundError", SGLANG: "AttributeError", LMCACHE: "TypeError"
    }  # fmt: skip
    assert report.troubles == []
    assert all(case.of(VLLM_KERNEL) and not case.of(SGLANG) for case in report.cases)
    assert {each.mover for each in report.beside} >= {VLLM_KERNEL, LIMIT, COPIER}
    page = markdown(report)
    assert f"not here: {LMCACHE}: TypeError: multi_layer_kv_transfer()" in page
    assert f"{VLLM_KERNEL}, of the limit" in page
    assert f"{SGLANG}, of the limit" not in page


def test_a_package_that_moves_wrong_bytes_has_no_figures(fakes: dict[str, SimpleNamespace]) -> None:
    """The fault planted: it forgets the last run."""
    swap = fakes["vllm._custom_ops"].swap_blocks_batch
    fakes["vllm._custom_ops"].swap_blocks_batch = lambda source, target, sizes, **given: swap(source[1:], target[1:], sizes[1:])
    report = measure(wish(torch.device("cpu")), quiet)

    assert {trouble.split(", ", 2)[2] for trouble in report.troubles} == {f"{VLLM_BATCH}: wrong bytes"}
    assert len(report.troubles) == len(report.cases)


def test_a_run_whose_device_is_lost_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second case: the first is reported, and why there is no more."""
    honest, asked = measuring.compare, []

    def lost(*given: object) -> Case:
        asked.append(given)
        if len(asked) == 2:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return honest(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(measuring, "compare", lost)
    report = measure(wish(torch.device("cpu")), quiet)

    assert len(report.cases) == 1
    assert report.broken == "store, pages of 64 KiB: RuntimeError: CUDA error: an illegal memory access was encountered"
    assert f"ENDED EARLY: {report.broken}" in markdown(from_json(to_json(report)))


def test_a_dry_run_is_the_whole_program(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """On the host: every case, every product, JSON, and tables out of it."""
    status = main(["--dry", "--json", "--pages", "4K,64K,1M"])
    out = capsys.readouterr().out
    file = tmp_path / "dry.json"
    file.write_text(out)
    report = from_json(out)

    assert status == 0
    assert report.facts["device"] == "the CPU: for tests of the benchmark only"
    assert [(case.direction, case.page) for case in report.cases] == [(way, page) for way in DIRECTIONS for page in PAGES]
    assert {each.direction for each in report.beside} == {"store", "load"}
    assert main(["--from", str(file)]) == 0
    told = capsys.readouterr().out
    for title in ("Ours against", "Ours beside what people use", "Each mover by itself", "A matrix product beside copies"):
        assert f"### {title}" in told


# --- who cheats -----------------------------------------------------------------------------------------------------------


class Forgetful(RunMover):
    """Forgets the last byte of the last run."""

    def move(self, pages: Pages, direction: Direction) -> None:
        nbytes = pages.nbytes.copy()
        nbytes[-1] -= 1
        super().move(Pages(pages.source, pages.target, nbytes, pages.layer), direction)


class Refusing(RunMover):
    """Moves nothing."""

    def move(self, pages: Pages, direction: Direction) -> None:
        raise RuntimeError("the driver refuses to copy")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_who_moves_wrong_bytes_has_no_figures(direction: str, where: torch.device) -> None:
    """One byte of all is enough; the others are measured all the same."""
    buffers = Buffers(where, SMOKE, lambda _done, _total: None)
    arena = Arena(buffers, PAGES[0])
    layout = CopyLayout(arena.cache, arena.rows)
    bad = [Ours(arena, "forgetful", Forgetful(layout)), Ours(arena, "refusing", Refusing(layout))]
    with closing_all(bad):
        case = compare(arena, direction, [*(make(arena) for make in PEERS), *bad], 0.0)
    troubles = {each.name: each.trouble for each in case.timed if each.trouble}

    assert troubles["forgetful"] == "wrong bytes"
    assert "the driver refuses to copy" in troubles["refusing"]
    assert len(troubles) == 2
    assert all(bool(each.seconds) != bool(each.trouble) for each in case.timed)
    buffers.close()


def shares(one: Work, other: Work) -> bool:
    return bool(np.intersect1d(one.blocks, other.blocks).size or np.intersect1d(one.places, other.places).size)


@pytest.mark.parametrize("page", PAGES)
def test_scattered_blocks_cannot_be_merged_and_neighbours_can(page: int) -> None:
    """Scattered, each page is a run of its own; in a row all are one in each layer. The directions share no place."""
    buffers = Buffers(torch.device("cpu"), SMOKE, lambda _done, _total: None)
    arena = Arena(buffers, page)
    cuts = {"scattered": arena.scattered, "neighbours": arena.neighbours}
    works = {(name, way): cut(way) for name, cut in cuts.items() for way in ON_DEVICE}
    gaps = {at: int(np.diff(np.sort(work.blocks)).min()) for at, work in works.items()}

    assert {at: gap > 1 for at, gap in gaps.items()} == {at: at[0] == "scattered" for at in works}
    assert not any(shares(works[name, STORE], works[name, LOAD]) for name in cuts)
    assert {len(work.blocks) for work in works.values()} == {SMOKE.large_pages // (SMOKE.layers * page)}
    del arena
    buffers.close()


def test_the_benchmark_knows_every_mover() -> None:
    assert MOVERS == SINGLE


def test_a_coarse_look_comes_first() -> None:
    """Every direction has a small, a middle and a large page before any has more; then all cases, each once."""
    cases = order(measuring.PAGES)

    assert [page for page, _ in cases[:9]] == [*measuring.COARSE] * 3
    assert sorted(cases) == sorted((page, way) for page in measuring.PAGES for way in DIRECTIONS)
