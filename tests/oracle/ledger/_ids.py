"""Block ids and lives as batches of numbers: a list if there are few, an array if there are many.

Rules of this file:

* The container selects the path: lists are iterated, arrays are processed by numpy. Both have the same meaning.
* Nothing here depends on columns, states or tables.

A *life* is one integer: the epoch in the upper 32 bits, the block id in the lower ones. A reference is stale exactly if its
epoch is not the block's own. Epochs begin at 1, so that a bare block id is never a life. The null block has id 0 and no life;
as an entry of a table, 0 stands for "outside the window".
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tests.oracle.errors import MisuseError

Ids: TypeAlias = list[int] | NDArray[np.int64]
Lives: TypeAlias = list[int] | NDArray[np.int64]

EPOCH_SHIFT = 32
ID_MASK = (1 << EPOCH_SHIFT) - 1
FIRST_EPOCH = 1
"""The epoch of the first life of a block. It is not 0, so that the number of a block is never one of its lives."""
LAST_EPOCH = (1 << 31) - 1
"""An epoch has 31 bits, so that a life is a positive 64-bit integer; the life after this one is `FIRST_EPOCH` again."""
NULL = 0
"""The null block, and the entry of a table that stands for it."""

BULK = 48 if __file__.endswith(".py") else 256
"""From this many ids on, a batch is an array. Arrays are faster from 40 to 60 ids on, and than compiled loops from some
hundreds (`make bench`)."""


def batch(values: Iterable[int] | NDArray[np.int64]) -> Ids:
    """A copy as a list if there are few values, as an array if there are many. Refuses fractions."""
    found = values if isinstance(values, np.ndarray) else list(values)
    if isinstance(found, list) and len(found) < BULK:
        return [operator.index(value) for value in found]
    numbers = np.array(found)  # a copy
    if len(numbers) and (numbers.dtype.kind not in "iu" or numbers.ndim != 1):
        raise MisuseError(f"places and lives are whole numbers in one row, not {numbers.dtype} with {numbers.ndim} dimensions")
    return numbers.tolist() if len(numbers) < BULK else numbers.astype(np.int64, copy=False)


def packed(values: list[int]) -> Ids:
    """Integers as a list or an array depending on their number; a short list is returned as it is."""
    return values if len(values) < BULK else np.array(values, dtype=np.int64)


def joined(parts: Sequence[Ids]) -> Ids:
    """Several batches concatenated, as a list or an array depending on their number."""
    if len(parts) == 1:
        return parts[0].copy()
    values: list[int] = []
    for part in parts:
        if type(part) is not list:
            return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        values += part
    return packed(values)


def listed(values: Ids) -> list[int]:
    """The values as a list of plain integers."""
    return values if type(values) is list else np.asarray(values).tolist()


def ids_of(lives: Lives) -> Ids:
    """The block id of each life."""
    if type(lives) is list:
        return [life & ID_MASK for life in lives]
    return np.asarray(lives) & ID_MASK


def select(values: Ids, mask: Sequence[bool] | NDArray[np.bool_]) -> Ids:
    """The values whose mask is set, as a list or an array depending on their number."""
    if type(values) is list:
        return [value for value, keep in zip(values, mask, strict=True) if keep]
    return batch(np.asarray(values)[np.asarray(mask)])


def every(mask: list[bool] | NDArray[np.bool_]) -> bool:
    """Whether the whole mask is set."""
    # searching bytes is faster than reducing a short array
    return all(mask) if type(mask) is list else b"\0" not in np.asarray(mask).tobytes()


def extend(table: array[int], lives: Lives) -> None:
    """Append lives to a table."""
    if type(lives) is list:
        table.extend(lives)
    else:
        table.frombytes(np.ascontiguousarray(lives, dtype=np.int64).tobytes())


def entries(table: array[int], positions: NDArray[np.int64] | slice) -> NDArray[np.int64]:
    """Some entries of a table, as a copy: a table cannot grow while there is a view of it."""
    return np.array(np.frombuffer(table, dtype=np.int64)[positions])


def blank(table: array[int], positions: NDArray[np.int64]) -> None:
    """Put the null block at some positions of a table."""
    np.frombuffer(table, dtype=np.int64)[positions] = NULL
