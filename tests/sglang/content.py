"""What a slot of the KV cache holds: a row of floats for each token, layer and kind, from the token and all those before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

ROW = 4
"""Floats in a row. Each holds 16 bits, so a row holds the 64 of one number without loss."""
KEY, VALUE, STATE, INDEX = 0, 1, 2, 2
RECENT = KEY
"""A layer with states has no keys: the first part of its state has their numbers. One with index keys has no state."""


def rows(numbers: Sequence[int], layer: int, kind: int, rank: int = 0) -> torch.Tensor:
    """The rows of tokens with these numbers (see `tests.texts.Chain`)."""
    mixed = np.array(numbers, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15) * np.uint64(1 + kind + 3 * layer + 1000 * rank)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    parts = [((mixed >> np.uint64(16 * part)) & np.uint64(0xFFFF)).astype(np.float32) for part in range(ROW)]
    return torch.from_numpy(np.stack(parts, axis=1))
