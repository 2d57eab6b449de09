"""The benchmark of copies says what is so: whoever moves wrong bytes has no figures, and what had no time is named.

Method: a run in a size for tests, on CPU tensors and on CUDA; then with competitors that forget a byte or raise.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import RunMover
from blocklife.ledger.records import ON_DEVICE, Direction
from tests.bench.gpu import measuring
from tests.bench.gpu.arena import LOAD, SMOKE, STORE, Arena, Buffers, Work
from tests.bench.gpu.competitors import DIRECTIONS, PEERS, Ours
from tests.bench.gpu.measuring import Wish, compare, measure, order
from tests.bench.gpu.records import COPIER, EACH, GATHER, KIB, LIMIT, MOVERS, NEIGHBOURS, Case
from tests.gpu.movers import SINGLE

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
    there = [name for name in MOVERS if name not in report.absent]
    print(report.absent, *said, sep="\n")

    assert report.troubles == []
    assert report.left_out == ()
    assert [(case.direction, case.page) for case in report.cases] == [(way, page) for way in DIRECTIONS for page in PAGES]
    for case in report.cases:
        assert {each.name for each in case.timed} == {LIMIT, EACH, GATHER, COPIER, NEIGHBOURS, *there}
        for each in case.timed:
            assert len(each.seconds) == len(each.held_us) >= measuring.REPETITIONS_MIN
            assert min(each.seconds) > 0
            assert each.nbytes == (1 + (case.direction == "both")) * SMOKE.large_pages
    assert [(each.direction, each.mover) for each in report.beside] == [
        (way, mover) for way in ("store", "load") for mover in (COPIER, *there)
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
