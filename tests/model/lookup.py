"""Guesses that are looked up in the text, by a proposer of our own: vLLM's needs Numba, which is not fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class Lookup:
    """What followed the last word where it stood before is guessed to follow it again; vLLM makes it by its name."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._most = int(vllm_config.speculative_config.num_speculative_tokens)

    def load_model(self, *_: object) -> None:
        """There is no model."""

    def propose(
        self, sampled: list[list[int]], known: NDArray[np.int32], texts: NDArray[np.int32], **_: object
    ) -> list[list[int]]:
        """Guesses for each request of the batch, none for those that have sampled nothing; *known* counts their tokens."""
        return [self._after(texts[row, : known[row]]) if new else [] for row, new in enumerate(sampled)]

    def _after(self, text: NDArray[np.int32]) -> list[int]:
        before = np.flatnonzero(text[:-1] == text[-1])
        if not len(before):
            return []
        return [int(token) for token in text[before[-1] + 1 :][: self._most]]
