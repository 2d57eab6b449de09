"""The kernel that copies between device memory and page-locked host memory, by address. Needs Triton.

*Rules of this file.* Import it only where the kernel is used: Triton takes a second to load, and is not installed everywhere.
The kernel knows pieces and words; it knows nothing of layers, blocks or directions.

*Why few programs.* A copy is limited by the link, not by arithmetic, and shares the device with the engine's forward pass. Each
program takes registers and threads from one multiprocessor as long as the copy lasts, and one late multiprocessor can delay a
whole matrix product. So a handful of programs goes through all pieces. Each has `TILE_BYTES` in flight at a time, together
16 times 16 KiB: what a link of 64 GB/s brings in the 2 µs until the rows of the table are there and the 2 µs until the data is.

*The table* stays in page-locked memory of the host, and the kernel reads it from there: sent to the device, it would wait
behind other copies for a copy engine.

*Hints.* Nothing is read or written twice. So loads bypass the L1 cache (``.cg``), and stores mark their lines to be evicted
first (``.cs``): the engine's own lines stay. Both are hints only, and change no byte.

*One kernel per cache.* Everything but the table and its length is fixed when the kernel is compiled, and Triton is told not to
specialise on the length (1, or a multiple of 16, would be a kernel of its own). So nothing is compiled in the middle of a run.

*Seen.* Run on an H100 with Triton 3.6, and by Triton's interpreter on the host; compiled for devices of compute capability
8.0, 9.0 and 10.0 with Triton 3.6 and 3.9 (16 bytes a load, no shared memory, no spills).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from blocklife.copiers.torch._pieces import TILE_BYTES

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")

if TYPE_CHECKING:
    constexpr = int
    address = int
else:  # Triton reads the annotations, some versions by their names
    constexpr, address = tl.constexpr, tl.tensor

PROGRAMS = 16
"""The most programs of a copy, see above. A first guess, to be confirmed by ``make bench-gpu``."""

OPTIONS = {"num_warps": 8, "enable_fp_fusion": False}
"""Options for Triton: 256 threads per program. There is no arithmetic to fuse, and Triton 3.9 warns unless told so."""

_ELEMENTS = {16: (tl.int32, 4, 4), 8: (tl.int64, 8, 1), 4: (tl.int32, 4, 1), 1: (tl.int8, 1, 1)}
"""For each word size: the element type, the bytes of an element, and how many elements a word has."""


def copy_pieces(
    table: address,
    count: int,
    element: constexpr,
    size: constexpr,
    vector: constexpr,
    rows: constexpr,
    columns: constexpr,
) -> None:
    """Copy *count* pieces, *rows* at a time, of at most *columns* elements. *table*: all sources, all targets, all lengths."""
    column = tl.arange(0, columns)[None, :]
    first = tl.program_id(0) * rows
    while first < count:
        piece = first + tl.arange(0, rows)
        there = piece < count
        source = tl.load(table + piece, mask=there, other=0).to(tl.pointer_type(element))
        target = tl.load(table + count + piece, mask=there, other=0).to(tl.pointer_type(element))
        length = tl.load(table + 2 * count + piece, mask=there, other=0) // size
        # The compiler cannot see that every piece begins and ends on a word boundary; told so, it copies whole words.
        source = tl.multiple_of(source, size * vector)
        target = tl.multiple_of(target, size * vector)
        length = tl.multiple_of(length, vector)
        inside = column < length[:, None]
        data = tl.load(source[:, None] + column, mask=inside, cache_modifier=".cg")
        tl.store(target[:, None] + column, data, mask=inside, cache_modifier=".cs")
        first += tl.num_programs(0) * rows


kernel: Any = triton.jit(copy_pieces, do_not_specialize=["count"])


def is_interpreted() -> bool:
    """Whether Triton was told to interpret kernels on the host; they cannot read addresses of a device then."""
    return not isinstance(kernel, triton.JITFunction)


def compiled_for(word: int, piece: int) -> dict[str, object]:
    """The constants that the kernel is compiled with, for words and pieces of so many bytes."""
    element, size, vector = _ELEMENTS[word]
    return {
        "element": element,
        "size": size,
        "vector": vector,
        "rows": TILE_BYTES[word] // piece,
        "columns": piece // size,
    }


def launch(table: torch.Tensor, count: int, *, word: int, piece: int) -> None:
    """Queue one copy of *count* pieces of at most *piece* bytes on the current stream of the current device."""
    tiles = -(-count * piece // TILE_BYTES[word])
    kernel[(min(PROGRAMS, tiles),)](table, count, **compiled_for(word, piece), **OPTIONS)
