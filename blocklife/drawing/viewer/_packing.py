"""Columns of whole numbers as text: differences, zigzag, seven bits a byte, base64; `data.js` reads them.

Neighbouring values in a recording are close, so that most differences fit a byte: 100 000 steps take about one megabyte, and
unpacking needs no library.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def packed(values: Sequence[int] | NDArray[np.int64]) -> str:
    """The text of a column; differences must be below 2**62."""
    column = np.asarray(values, dtype=np.int64)
    steps = column.copy()
    steps[1:] -= column[:-1]
    zigzag = ((steps << 1) ^ (steps >> 63)).astype(np.uint64)
    sizes = np.ones(len(zigzag), dtype=np.int64)
    for group in range(1, 10):
        sizes += zigzag >= np.uint64(1 << 7 * group)
    ends = np.cumsum(sizes)
    out = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    for group in range(int(sizes.max(initial=0))):
        here = sizes > group
        more = np.where(sizes[here] > group + 1, 0x80, 0).astype(np.uint8)
        out[(ends - sizes)[here] + group] = ((zigzag[here] >> np.uint64(7 * group)) & np.uint64(0x7F)).astype(np.uint8) | more
    return base64.b64encode(out.tobytes()).decode("ascii")
