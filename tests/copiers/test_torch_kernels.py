"""The copying kernel moves what it is told, piece by piece, and what it is told is never written over while it may be read.

Method: pieces and tables are plain numbers, and judged everywhere; events are numbers that the test sets. The kernel itself is
run by Triton's interpreter on the host's memory (`interpreted.py`, in a process of its own, as the interpreter is chosen
when a kernel is defined), and compiled for a device that need not be here. Without Triton, which comes with torch's builds for
CUDA, these two are skipped.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attrs import define, field
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklife.copiers.torch import KvCache
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._pieces import (
    PIECE_BYTES_MIN,
    TABLES_MAX,
    TILE_BYTES,
    WORDS,
    CopyTables,
    TableEvent,
    cut,
    piece_of_layout,
    word_bytes,
    word_of_layout,
    word_of_pages,
)
from blocklife.ledger.records import Direction
from tests.copiers.rig import LOAD, STORE
from tests.copiers.test_torch_layout import Shape, layer, rows, runs, shapes, transfer
from tests.programs import HANGS_S

CPU = torch.device("cpu")

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed (it comes with torch for CUDA)")


# --- pieces ---------------------------------------------------------------------------------------------------------------


def some_runs(source: list[int], target: list[int], nbytes: list[int]) -> Pages:
    return Pages(np.array(source), np.array(target), np.array(nbytes), np.zeros(len(source), np.int64))


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 5_000)), min_size=1, max_size=8))
def test_pieces_are_their_runs(told: list[tuple[int, int, int]]) -> None:
    """Piece behind piece every run is there, whole and once, and no piece is empty or longer than it may be."""
    pages = some_runs([run[0] for run in told], [run[1] for run in told], [run[2] for run in told])
    columns = cut(pages, 512)
    left = [*zip(*(column.tolist() for column in columns), strict=True)]

    assert all(1 <= size <= 512 for *_, size in left)
    for source, target, nbytes in told:
        done = 0
        while done < nbytes:
            at, to, size = left.pop(0)
            assert (at, to) == (source + done, target + done)
            done += size
        assert done == nbytes
    assert left == []


@pytest.mark.parametrize(
    ("numbers", "word"),
    [([32, 4_096], 16), ([32, 24], 8), ([16, 4], 4), ([16, 6], 1), ([7], 1), ([1 << 46, 48], 16)],
)
def test_the_word_divides_everything(numbers: list[int], word: int) -> None:
    """The widest of those that there are; two bytes are none."""
    assert word_bytes(numbers) == word


@settings(max_examples=60, deadline=None)
@given(shapes())
def test_the_word_of_a_layout_divides_its_runs(shape: Shape) -> None:
    """So one kernel does for all transfers of a cache: no run of it asks for a narrower word."""
    cache = KvCache([[layer(shape.num_blocks, *page) for page in group] for group in shape.groups])
    layout = CopyLayout(cache, rows(cache, shape.num_places))
    pairs = [pair for part in shape.pairs for pair in part]
    asked = transfer(shape.direction, [b for b, _ in pairs], [p for _, p in pairs], tuple(map(len, shape.pairs)))

    assert word_of_pages(runs(layout, asked)) >= word_of_layout(layout)


@pytest.mark.parametrize(
    ("page", "word", "piece"),
    [
        (1, 1, PIECE_BYTES_MIN),
        (576, 16, 1_024),
        (4_096, 16, 4_096),
        (4_097, 1, 4_096),
        (40_960, 16, 16_384),
        (65_536, 8, 16_384),
    ],
)
def test_a_piece_holds_the_smallest_page(page: int, word: int, piece: int) -> None:
    """As a power of two, within what a tile holds; a tile is whole rows of pieces then."""
    cache = KvCache([[layer(2, page, torch.uint8), layer(2, page * 3, torch.uint8)]])

    assert piece_of_layout(CopyLayout(cache, rows(cache, 2)), word) == piece
    assert TILE_BYTES[word] % piece == 0


def test_every_word_has_a_tile_of_few_words_a_thread() -> None:
    """What a thread holds at a time must fit its registers."""
    assert {*TILE_BYTES} == {*WORDS}
    assert all(0 < tile // word // 256 <= 16 for word, tile in TILE_BYTES.items())


# --- tables ---------------------------------------------------------------------------------------------------------------


@define(eq=False)
class Told:
    """An event that a test lets pass. *log*: what was asked of all of them, in order."""

    log: list[tuple[str, int]]
    number: int
    passed: bool = True
    passes_after: int | None = None
    """How many questions it answers with no before it passes by itself."""
    refuses: bool = False

    def query(self) -> bool:
        self.log.append(("query", self.number))
        if self.passes_after is not None:
            self.passes_after -= 1
            self.passed = self.passes_after < 0
        return self.passed

    def record(self) -> None:
        if self.refuses:
            raise RuntimeError("the device is lost")
        self.log.append(("record", self.number))
        self.passed = False


@define(eq=False)
class Rig:
    """Tables whose events pass when told."""

    events: list[Told] = field(factory=list)
    log: list[tuple[str, int]] = field(factory=list)
    tables: CopyTables = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tables = CopyTables(CPU, self._event)

    def _event(self) -> TableEvent:
        self.events.append(Told(self.log, len(self.events)))
        return self.events[-1]

    def send(self, first: int, count: int = 2, direction: Direction = LOAD) -> torch.Tensor:
        """A table that counts up from a number."""
        numbers = np.arange(first, first + 3 * count, dtype=np.int64)
        with self.tables.written(direction, (numbers[:count], numbers[count : 2 * count], numbers[2 * count :])) as table:
            return table


def test_a_table_is_its_columns_one_after_the_other() -> None:
    rig = Rig()
    with rig.tables.written(LOAD, tuple(np.array(column) for column in ([1, 2], [30, 40], [5, 6]))) as table:
        before = [*rig.log]

    assert table.tolist() == [1, 2, 30, 40, 5, 6]
    assert (before, rig.log) == ([], [("record", 0)])


def test_a_table_that_may_be_read_is_not_written() -> None:
    """As long as its event has not passed the next ones lie elsewhere; afterwards its place is used again."""
    rig = Rig()
    first = rig.send(10)
    second = rig.send(20)
    rig.events[0].passed = True
    kept = first.tolist(), second.tolist()
    third = rig.send(30)

    assert kept == ([*range(10, 16)], [*range(20, 26)])
    assert third.data_ptr() == first.data_ptr() != second.data_ptr()
    assert len(rig.events) == 2


def test_a_table_is_not_used_again_before_those_before_it() -> None:
    """The first is asked for, and no other: behind it nothing can have passed."""
    rig = Rig()
    for first in (10, 20, 30):
        rig.send(first)
    rig.events[1].passed = True
    rig.log.clear()
    rig.send(40)

    assert rig.log == [("query", 0), ("record", 3)]


def test_the_directions_do_not_wait_for_each_other() -> None:
    """A store's tables are another queue: what is free there says nothing here."""
    rig = Rig()
    load = rig.send(10)
    store = rig.send(20, direction=STORE)
    rig.events[1].passed = True
    again = rig.send(30, direction=STORE)

    assert load.tolist() == [*range(10, 16)]
    assert again.data_ptr() == store.data_ptr()


def test_the_host_waits_only_when_all_tables_are_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then for the oldest, with naps, and no table more is made."""
    naps: list[float] = []
    monkeypatch.setattr(time, "sleep", naps.append)
    rig = Rig()
    oldest = rig.send(0)
    for number in range(1, TABLES_MAX):
        rig.send(number)
    early = len(naps)
    rig.events[0].passes_after = 3
    again = rig.send(99)

    assert (early, len(naps), len(rig.events)) == (0, 2, TABLES_MAX)
    assert again.data_ptr() == oldest.data_ptr()


def test_a_table_grows_with_what_it_must_hold() -> None:
    """One that is too small is let go once it is free; the new one serves small ones too."""
    rig = Rig()
    small = rig.send(0)
    rig.events[0].passed = True
    large = rig.send(7, count=5_000)
    arrived = large.tolist()
    rig.events[1].passed = True
    again = rig.send(9)

    assert arrived == [*range(7, 15_007)]
    assert again.data_ptr() == large.data_ptr() != small.data_ptr()


def lost_at_the_launch(rig: Rig) -> torch.Tensor:
    """The block that queues the kernel raises."""
    with contextlib.suppress(RuntimeError), rig.tables.written(LOAD, A_ROW) as table:
        raise RuntimeError("out of registers")
    return table


def lost_at_the_record(rig: Rig) -> torch.Tensor:
    """The event behind the kernel is refused."""
    with contextlib.suppress(RuntimeError), rig.tables.written(LOAD, A_ROW) as table:
        rig.events[-1].refuses = True
    return table


A_ROW = (np.array([1]), np.array([2]), np.array([3]))


@pytest.mark.parametrize("lose", [lost_at_the_launch, lost_at_the_record])
def test_a_table_of_which_nobody_knows_the_end_is_never_used_again(lose: Callable[[Rig], torch.Tensor]) -> None:
    """A launch that raises may have queued its kernel, and a kernel that reads other numbers would write to anywhere."""
    rig = Rig()
    lost = lose(rig)
    others = [rig.send(number) for number in range(10, 14)]

    assert lost.tolist() == [1, 2, 3]
    assert lost.data_ptr() not in {other.data_ptr() for other in others}


# --- the kernel -----------------------------------------------------------------------------------------------------------


@needs_triton
def test_the_kernel_in_the_interpreter() -> None:
    """All tests beside this file pass in a process whose kernels Triton interprets."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", Path(__file__).parent / "interpreted.py"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"[1-9]\d* passed", ran.stdout), ran.stdout


@needs_triton
@pytest.mark.parametrize(("word", "wide"), [(16, "v4.b32"), (8, "b64"), (4, "b32"), (1, "b8")])
def test_the_kernel_compiles_to_loads_as_wide_as_its_word(word: int, wide: str) -> None:
    """For a device that need not be here: so many bytes a load and a store, past the first level of cache, nothing shared."""
    kernels: Any = importlib.import_module("blocklife.copiers.torch._kernels")
    compiler, backends = (importlib.import_module(f"triton.{name}") for name in ("compiler", "backends.compiler"))
    for piece in (PIECE_BYTES_MIN, 1_024, 4_096):
        options = kernels.compiled_for(word, piece)
        signature = {"table": "*i64", "count": "i32", **dict.fromkeys(options, "constexpr")}
        try:
            source = compiler.ASTSource(kernels.kernel, signature, options, {(0,): [["tt.divisibility", 16]]})
            compiled = compiler.compile(source, backends.GPUTarget("cuda", 90, 32), kernels.OPTIONS)
        except (TypeError, AttributeError) as changed:
            pytest.skip(f"this version of Triton is asked in another way: {changed}")
        moved = set(re.findall(r"(?:ld|st)\.global\.c[a-z]\.\S+", compiled.asm["ptx"]))

        assert moved == {f"ld.global.cg.{wide}", f"st.global.cs.{wide}"}
        assert compiled.metadata.shared == 0
