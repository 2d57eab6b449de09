"""The runs of a transfer move exactly the bytes that a copy of one block at a time moves, in as few runs as can be.

Method: caches of every shape that hypothesis thinks of, filled with random bytes; the second truth copies page after page by
plain indexing. Bytes that are nobody's target must be as they were.
"""

from __future__ import annotations

import itertools
import random
from unittest import mock

import numpy as np
import pytest
import torch
from attrs import define
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from blocklife.copiers.torch import KvCache
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import RunMover, flat_bytes
from blocklife.errors import MisuseError
from blocklife.ledger.records import ON_DEVICE, Direction, JobId, Transfer
from tests.copiers.rig import LOAD, STORE, Rows

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.int64)

Bytes = NDArray[np.uint8]


def noise(nbytes: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8))


def layer(num_blocks: int, elements: int, dtype: torch.dtype, gap: int = 0, seed: int = 0) -> torch.Tensor:
    """A layer with a gap of so many elements behind each block."""
    wide = elements + gap
    return noise(num_blocks * wide * dtype.itemsize, seed).view(dtype).view(num_blocks, wide)[:, :elements]


def rows(cache: KvCache, num_places: int, seed: int = 99) -> Rows:
    return Rows(noise(num_places * cache.row_bytes, seed).view(num_places, cache.row_bytes))


def contents(tensors: list[torch.Tensor]) -> list[Bytes]:
    return [flat_bytes(tensor).numpy().copy() for tensor in tensors]


def transfer(direction: Direction, blocks: list[int], places: list[int], sizes: tuple[int, ...] | None = None) -> Transfer:
    source, target = (blocks, places) if direction is STORE else (places, blocks)
    return Transfer(JobId(1, 1), direction, np.array(source), np.array(target), sizes or (len(blocks),))


def runs(layout: CopyLayout, asked: Transfer) -> Pages:
    return layout.pages(asked, *layout.ends(asked))


@define
class Shape:
    """A cache, a host and a transfer between them."""

    groups: list[list[tuple[int, torch.dtype, int]]]
    """Of each layer: elements of a page, their type, and elements between two pages."""
    num_blocks: int
    num_places: int
    pairs: list[list[tuple[int, int]]]
    """Of each group: block and place."""
    direction: Direction


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    page = st.tuples(st.sampled_from([1, 2, 8, 24]), st.sampled_from(DTYPES), st.sampled_from([0, 0, 1, 8]))
    groups = draw(st.lists(st.lists(page, min_size=1, max_size=3), min_size=1, max_size=3))
    num_blocks, num_places = draw(st.integers(1, 12)), draw(st.integers(1, 14))
    count = draw(st.integers(1, min(num_blocks, num_places)))
    if draw(st.booleans()):
        blocks = draw(st.permutations(range(num_blocks)))[:count]
        places = draw(st.permutations(range(num_places)))[:count]
    else:  # neighbours, so that there is something to merge
        first, start = draw(st.integers(0, num_blocks - count)), draw(st.integers(0, num_places - count))
        blocks, places = [*range(first, first + count)], [*range(start, start + count)]
        if draw(st.booleans()):
            blocks, places = blocks[::-1], places[::-1]
    cuts = sorted(draw(st.lists(st.integers(0, count), min_size=len(groups) - 1, max_size=len(groups) - 1)))
    pairs = [*zip(blocks, places, strict=True)]
    parts = [pairs[start:stop] for start, stop in zip([0, *cuts], [*cuts, count], strict=True)]
    return Shape(groups, num_blocks, num_places, parts, draw(st.sampled_from(ON_DEVICE)))


def copy_page_by_page(shape: Shape, cache: KvCache, host: Rows) -> list[Bytes]:
    """The second truth: what the layers and the rows hold afterwards."""
    layers, kept_rows = contents(list(cache.layers)), host.rows.numpy().copy()
    number = 0
    for group, pairs in enumerate(shape.pairs):
        for index, (elements, dtype, gap) in enumerate(shape.groups[group]):
            size, pitch = elements * dtype.itemsize, (elements + gap) * dtype.itemsize
            for block, place in pairs:
                device = layers[number][block * pitch : block * pitch + size]
                column = widths_before(shape, index)
                kept = kept_rows[place, column : column + size]
                if shape.direction is STORE:
                    kept[:] = device
                else:
                    device[:] = kept
            number += 1
    return [*layers, kept_rows.ravel()]


def widths_before(shape: Shape, index: int) -> int:
    """Where the column of a layer begins: behind the widest pages of all that are before it in their groups."""
    pages = [[elements * dtype.itemsize for elements, dtype, _ in group] for group in shape.groups]
    return sum(max(group[before] for group in pages if before < len(group)) for before in range(index))


@settings(max_examples=120, deadline=None)
@given(shapes())
def test_runs_move_the_bytes_that_single_pages_would(shape: Shape) -> None:
    """Every layer and every row agree with the naive copy, gaps and neighbours included."""
    seeds = iter(range(100))
    cache = KvCache([[layer(shape.num_blocks, *page, seed=next(seeds)) for page in group] for group in shape.groups])
    host = rows(cache, shape.num_places)
    want = copy_page_by_page(shape, cache, host)
    pairs = [pair for part in shape.pairs for pair in part]
    asked = transfer(shape.direction, [b for b, _ in pairs], [p for _, p in pairs], tuple(map(len, shape.pairs)))
    layout = CopyLayout(cache, host)
    pages = runs(layout, asked)

    RunMover(layout).move(pages, shape.direction)

    for got, wanted in zip(contents([*cache.layers, host.rows]), want, strict=True):
        np.testing.assert_array_equal(got, wanted)
    assert len(pages) == fewest_runs(shape, cache)


def fewest_runs(shape: Shape, cache: KvCache) -> int:
    """Pairs less those that continue another pair of their group in a layer whose pages fill whole rows, and have no gaps."""
    count = 0
    for group, pairs in enumerate(shape.pairs):
        for index, size in enumerate(cache.page_bytes[group]):
            fills = size == cache.row_bytes and not shape.groups[group][index][2]
            count += sum(not fills or (block - 1, place - 1) not in pairs for block, place in pairs)
    return count


@pytest.mark.parametrize("direction", ON_DEVICE)
def test_runs_of_neighbours_are_one_where_a_page_is_a_row(direction: Direction) -> None:
    """A thousand blocks in a row, given in any order, are one run: the device is laid out by block, as the host is."""
    cache = KvCache([[layer(1_000, 4, torch.float16)]])
    layout = CopyLayout(cache, rows(cache, 2_000))
    pages = runs(layout, shuffled(direction))

    assert pages.nbytes.tolist() == [8_000]
    assert pages.layer.tolist() == [0]
    assert pages.total == 8_000


def shuffled(direction: Direction) -> Transfer:
    """A thousand blocks in a row to places in a row, in any order."""
    pairs = [(block, block + 700) for block in range(1_000)]
    random.Random(1).shuffle(pairs)
    return transfer(direction, [b for b, _ in pairs], [p for _, p in pairs])


@pytest.mark.parametrize("direction", ON_DEVICE)
def test_no_run_reaches_from_one_locked_part_into_the_next(direction: Direction) -> None:
    """The driver refuses such a copy: parts of 600 places cut the places from 700 to 1,699 in two."""
    cache = KvCache([[layer(1_000, 4, torch.float16)]])
    host = rows(cache, 2_000)
    host.lock_places = 600
    pages = runs(CopyLayout(cache, host), shuffled(direction))

    assert pages.nbytes.tolist() == [500 * 8, 500 * 8]


def test_runs_stay_apart_where_pages_do_not_fill_their_rows() -> None:
    """The narrow group leaves a gap behind each page on the host; the wide one does not. Two layers do."""
    cache = KvCache([[layer(8, 4, torch.uint8)], [layer(8, 6, torch.uint8)]])
    layout = CopyLayout(cache, rows(cache, 8))
    pages = runs(layout, transfer(STORE, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], (3, 3)))

    assert pages.nbytes.tolist() == [4, 4, 4, 18]

    two = KvCache([[layer(8, 4, torch.uint8), layer(8, 4, torch.uint8)]])
    pages = runs(CopyLayout(two, rows(two, 8)), transfer(STORE, [0, 1], [0, 1]))

    assert pages.nbytes.tolist() == [4, 4, 4, 4]
    assert pages.layer.tolist() == [0, 0, 1, 1]
    assert (pages.target - pages.target[0]).tolist() == [0, 8, 4, 12]


@pytest.mark.parametrize("direction", ON_DEVICE)
def test_runs_are_made_by_who_looks_at_them(direction: Direction) -> None:
    """How many there are, of how many bytes, and that they are one part, is known before: a thread that launches makes them."""
    cache = KvCache([[layer(1_000, 4, torch.float16), layer(1_000, 2, torch.float16)]])
    layout = CopyLayout(cache, rows(cache, 2_000))
    with mock.patch.object(CopyLayout, "_columns", side_effect=AssertionError("made too early")):
        pages = runs(layout, shuffled(direction))
        assert (len(pages), pages.total) == (2_000, 12_000)
        assert [*pages.parts(12_000, 2_000)] == [pages]

    assert pages.nbytes.tolist() == [8] * 1_000 + [4] * 1_000


@given(st.lists(st.integers(1, 5_000), max_size=30), st.integers(300, 9_000), st.integers(1, 8))
@settings(deadline=None)
def test_parts_are_the_runs_in_their_order(sizes: list[int], most_bytes: int, most_runs: int) -> None:
    """Each is within both bounds, none could take what the next begins with, and a run keeps its layer when it is cut."""
    starts = np.arange(len(sizes)) * 10_000
    whole = Pages(starts, starts + 7, np.array(sizes, np.int64), np.arange(len(sizes)))
    parts = [*whole.parts(most_bytes, most_runs)]
    moved = [
        (int(layer), int(source), int(target), int(nbytes))
        for part in parts
        for layer, source, target, nbytes in zip(part.layer, part.source, part.target, part.nbytes, strict=True)
    ]

    assert all(0 < len(part) <= most_runs and part.total <= most_bytes for part in parts)
    assert all(len(one) == most_runs or one.total + int(two.nbytes[0]) > most_bytes for one, two in itertools.pairwise(parts))
    assert moved == [
        (layer, layer * 10_000 + done, layer * 10_000 + done + 7, min(size - done, most_bytes))
        for layer, size in enumerate(sizes)
        for done in range(0, size, most_bytes)
    ]


def test_ends_are_copies_of_the_callers_arrays() -> None:
    """The caller may reuse its arrays at once."""
    cache = KvCache([[layer(8, 4, torch.uint8)]])
    asked = transfer(LOAD, [1, 2], [3, 4])
    blocks, places = CopyLayout(cache, rows(cache, 8)).ends(asked)
    asked.source[:] = asked.target[:] = 0

    assert (blocks.tolist(), places.tolist()) == ([1, 2], [3, 4])


@pytest.mark.parametrize(
    ("blocks", "places", "match"),
    [
        ([8], [0], "block 8 does not exist"),
        ([-1], [0], "block -1 does not exist"),
        ([0], [9], "host place 9 does not exist"),
        ([0, 1], [0, -1], "host place -1 does not exist"),
    ],
)
@pytest.mark.parametrize("direction", ON_DEVICE)
def test_ends_that_do_not_exist_are_refused(direction: Direction, blocks: list[int], places: list[int], match: str) -> None:
    """Behind the layout there are only addresses: nothing may reach them that lies outside."""
    cache = KvCache([[layer(8, 4, torch.uint8)]])
    layout = CopyLayout(cache, rows(cache, 9))
    with pytest.raises(IndexError, match=match):
        layout.ends(transfer(direction, blocks, places))


def test_ends_of_more_groups_than_there_are_are_refused() -> None:
    cache = KvCache([[layer(8, 4, torch.uint8)]])
    with pytest.raises(ValueError, match="2 groups, and the cache has 1"):
        CopyLayout(cache, rows(cache, 9)).ends(transfer(STORE, [1, 2], [1, 2], (1, 1)))


def test_a_page_may_have_its_axes_in_any_order() -> None:
    """Heads before tokens or after them: a block is its bytes."""
    plain = layer(4, 6, torch.float16)
    cache = KvCache([[plain.view(4, 2, 3).transpose(1, 2)]])

    assert cache.page_bytes == ((12,),)
    assert cache.num_groups == 1
    np.testing.assert_array_equal(flat_bytes(cache.layers[0]).numpy(), flat_bytes(plain).numpy())


def test_strides_that_are_never_taken_do_not_matter() -> None:
    """An axis of length one may have any stride: one head, one block."""
    plain = layer(4, 6, torch.float16)
    one_head, one_block = plain.as_strided((4, 1, 6), (6, 999, 1)), plain.as_strided((1, 6), (999, 1))

    assert KvCache([[one_head]]).page_bytes == KvCache([[one_block]]).page_bytes == ((12,),)


def test_a_layer_may_begin_inside_a_larger_tensor() -> None:
    """Two groups that share one allocation: addresses count from the view, not from the storage."""
    storage = layer(8, 4, torch.uint8)
    cache = KvCache([[storage[:4]], [storage[4:]]])
    host = rows(cache, 4)
    layout = CopyLayout(cache, host)
    RunMover(layout).move(runs(layout, transfer(STORE, [1, 2], [0, 1], (1, 1))), STORE)

    assert host.rows[0].tolist() == storage[1].tolist()
    assert host.rows[1].tolist() == storage[6].tolist()


BAD_CACHES: dict[str, tuple[list[list[torch.Tensor]], str]] = {
    "no group": ([], "without layers"),
    "empty group": ([[torch.zeros(4, 4)], []], "without layers"),
    "other count": ([[torch.zeros(4, 4), torch.zeros(5, 4)]], "layer 1 has 5 blocks and layer 0 has 4"),
    "no page": ([[torch.zeros(4)]], "num_blocks first"),
    "empty page": ([[torch.zeros(4, 0)]], "num_blocks first"),
    "blocks that overlap": ([[torch.zeros(32).as_strided((4, 8), (4, 1))]], "not contiguous"),
    "gaps inside blocks": ([[torch.zeros(4, 8, 2)[:, :, :1]]], "not contiguous"),
    "blocks not first": ([[torch.zeros(2, 4, 3).transpose(0, 1)]], "not contiguous"),
    "other device": ([[torch.zeros(4, 4), torch.zeros(4, 4, device="meta")]], "one copier serves one device"),
}


@pytest.mark.parametrize("case", BAD_CACHES)
def test_a_cache_that_is_not_made_of_pages_is_refused(case: str) -> None:
    groups, match = BAD_CACHES[case]
    with pytest.raises(MisuseError, match=match):
        KvCache(groups)


@pytest.mark.parametrize(
    "given",
    [
        torch.zeros(5, 3, dtype=torch.uint8),
        torch.zeros(5, 4, dtype=torch.int8),
        torch.zeros(5, 8, dtype=torch.uint8)[:, :4],
        torch.zeros(5, 4, dtype=torch.uint8, device="meta"),
    ],
    ids=["width", "dtype", "gaps", "device"],
)
def test_a_host_that_does_not_fit_is_refused(given: torch.Tensor) -> None:
    with pytest.raises(MisuseError, match=r"host rows: .* do not fit the cache"):
        CopyLayout(KvCache([[torch.zeros(4, 4, dtype=torch.uint8)]]), Rows(given))
