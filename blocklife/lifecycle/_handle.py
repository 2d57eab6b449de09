"""A handle: some places of a pool, and the state that they are in."""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

StateT_co = TypeVar("StateT_co", bound=enum.Enum, covariant=True)


@frozen(eq=False)
class Handle(Generic[StateT_co]):
    """Some places of a pool in one state, or in states from which one event starts.

    It becomes invalid when any of its places takes a step.
    """

    ids: NDArray[np.int64]
    stamps: NDArray[np.uint32] = field(repr=False)
    pool: object = field(repr=False)

    def __len__(self) -> int:
        return len(self.stamps)
