"""The copying kernel moves exactly its bytes, whatever the pages are like: run by Triton's interpreter, on the host's memory.

Not collected by itself: `test_torch_kernels.py` runs it with TRITON_INTERPRET=1. Method: caches of every shape that
hypothesis thinks of, held against the naive copy of single pages; and runs of every alignment between two pieces of memory.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from blocklife.copiers.torch import KvCache
from blocklife.copiers.torch import _probe as probe
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import KernelMover
from blocklife.copiers.torch._pieces import WORDS
from blocklife.copiers.torch._probe import prove
from blocklife.ledger.records import Direction
from tests.copiers.test_torch_layout import Shape, contents, copy_page_by_page, layer, noise, rows, runs, shapes, transfer

LOAD = Direction.LOAD


@settings(max_examples=60, deadline=None)
@given(shapes())
def test_interpreted_kernels_move_the_bytes_that_single_pages_would(shape: Shape) -> None:
    """Every layer and every row agree with the naive copy, gaps and neighbours included."""
    seeds = iter(range(100))
    cache = KvCache([[layer(shape.num_blocks, *page, seed=next(seeds)) for page in group] for group in shape.groups])
    host = rows(cache, shape.num_places)
    want = copy_page_by_page(shape, cache, host)
    pairs = [pair for part in shape.pairs for pair in part]
    asked = transfer(shape.direction, [b for b, _ in pairs], [p for _, p in pairs], tuple(map(len, shape.pairs)))
    layout = CopyLayout(cache, host)
    KernelMover(layout).move(runs(layout, asked), shape.direction)

    for got, wanted in zip(contents([*cache.layers, host.rows]), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("page", [576, 5_000, 40_000])
@pytest.mark.parametrize("unit", WORDS)
def test_interpreted_kernels_copy_runs_of_any_length_and_place(unit: int, page: int) -> None:
    """Runs that begin and end at multiples of a word, in a cache whose own word is wider: no byte beside them is touched."""
    cache = KvCache([[layer(4, page, torch.int32)]])
    mover = KernelMover(CopyLayout(cache, rows(cache, 4)))
    dice = np.random.default_rng(unit * 100_003 + page)
    source, target = noise(1 << 17, seed=1), noise(1 << 17, seed=2)
    borders = np.sort(dice.choice((1 << 17) // unit, 80, replace=False)) * unit
    starts, nbytes = borders[::2], np.diff(borders)[::2]
    wanted = target.clone()
    for start, size in zip(starts.tolist(), nbytes.tolist(), strict=True):
        wanted[start : start + size] = source[start : start + size]
    mover.move(Pages(source.data_ptr() + starts, target.data_ptr() + starts, nbytes, np.zeros_like(starts)), LOAD)

    assert torch.equal(target, wanted)


def test_interpreted_kernels_are_proven() -> None:
    """The proof that a device asks for, on the host."""
    cache = KvCache([[layer(4, 2_048, torch.uint8)]])
    prove(KernelMover(CopyLayout(cache, rows(cache, 4))), torch.device("cpu"))


def test_interpreted_kernels_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    """They move the right bytes at each point; where all take the same time, a kernel is not worth its multiprocessors."""
    monkeypatch.setattr(probe, "AREA_BYTES", 64 << 10)
    monkeypatch.setattr(probe, "TRIES", 2)
    cache = KvCache([[layer(4, 4_096, torch.uint8)]])
    ticks = iter(range(1 << 20))
    found = probe.probe_on(
        torch.device("cpu"), {"kernel": KernelMover(CopyLayout(cache, rows(cache, 4)))}, lambda: next(ticks) * 1e-6
    )

    assert found.left_out == {}
    assert {name for row in (*found.table.load, *found.table.store) for name in row} == {"slices"}


def test_interpreted_kernels_are_for_the_host_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter would take the addresses of a device for its own."""
    cache = KvCache([[layer(4, 16, torch.uint8)]])
    layout = CopyLayout(cache, rows(cache, 4))
    monkeypatch.setattr(cache, "device", torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match="unset TRITON_INTERPRET"):
        KernelMover(layout)
