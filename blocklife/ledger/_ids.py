"""Block ids and lives.

A *life* is one integer: the epoch in the upper 32 bits, the block id in the lower ones. A reference is stale exactly if its
epoch is not the block's own. Epochs begin at 1, so that a bare block id is never a life. The null block has id 0 and no life;
as an entry of a table, 0 stands for "outside the window".
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from blocklife.core._tables import EPOCH_SHIFT, ID_MASK, LAST_EPOCH

__all__ = ["EPOCH_SHIFT", "FIRST_EPOCH", "ID_MASK", "LAST_EPOCH", "NULL", "Ids", "Lives"]

Ids: TypeAlias = list[int] | NDArray[np.int64]
Lives: TypeAlias = list[int] | NDArray[np.int64]

FIRST_EPOCH = 1
"""The epoch of the first life of a block. It is not 0, so that the number of a block is never one of its lives."""
NULL = 0
"""The null block, and the entry of a table that stands for it."""
