"""Our lookup in the place of the two scans that vLLM's tests call alone: one group, a list of keys, a mock of the manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from vllm.v1.kv_offload.base import OffloadKey

from blocklife.offload._lookup import Answer, Unit, common_length

from .tier import ANSWERS


class Scan:
    """What their tests make without its constructor, to ask for the hits of one group."""

    manager: mock.MagicMock
    calls = 0
    """Scans that were run, so that it can be told whether a test has met ours at all."""

    def __init__(self, *_given: Any) -> None:
        raise NotImplementedError("a whole scheduler of theirs has no counterpart: ours is met through the runner")

    def _maximal_prefix_lookup(self, keys: Sequence[OffloadKey], context: Any, *_rest: Any) -> int | None:
        """A group of full attention: every key from the first on."""
        return self._found(keys, None, context)

    def _sliding_window_lookup(self, keys: Sequence[OffloadKey], window: int, context: Any) -> int | None:
        """A sliding window of so many keys."""
        return self._found(keys, window, context)

    def _found(self, keys: Sequence[OffloadKey], window: int | None, context: Any) -> int | None:
        Scan.calls += 1

        def ask(_group: int, unit: int, _blocks: int) -> Answer:
            answer: Answer = ANSWERS[self.manager.lookup(keys[unit], context)]
            return answer

        unit = Unit(tokens=1, window=window, tail=1, size=1)
        found = common_length([unit], 0, len(keys), ask)
        return None if found.deferred else found.length
