"""A fault of vLLM 0.33.0 that random traffic meets where prefixes end inside a block, and its mend.

A request that hits part of a block of attention gets a copy of it, which the workers make before the forward pass. If another
request fills the block in the same step, the copy is made of what it held before. vLLM puts off such hits on states, and not on
attention. No connector is needed for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager


def mend_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit on a part of a block that another request fills in this step waits for the next one, as with states."""
    fills: dict[int, set[int]] = {}
    cache, needs, begins = (
        getattr(FullAttentionManager, each) for each in ("cache_blocks", "get_num_blocks_to_allocate", "new_step_starts")
    )

    def cached(self: Any, request: Any, num_tokens: int, *more: Any, **named: Any) -> None:
        first, last = request.num_computed_tokens // self.block_size, -(-num_tokens // self.block_size)
        table = self.req_to_blocks[request.request_id]
        fills.setdefault(id(self), set()).update(block.block_id for block in table[first:last])
        cache(self, request, num_tokens, *more, **named)

    def needed(
        self: Any, name: str, tokens: int, blocks: Sequence[Any], total: int, local: int, *more: Any, **named: Any
    ) -> Any:
        if local % self.block_size and blocks and blocks[-1].block_id in fills.get(id(self), ()):
            return self.block_pool.num_gpu_blocks + 1
        return needs(self, name, tokens, blocks, total, local, *more, **named)

    def begun(self: Any) -> None:
        fills.pop(id(self), None)
        begins(self)

    monkeypatch.setattr(FullAttentionManager, "cache_blocks", cached)
    monkeypatch.setattr(FullAttentionManager, "get_num_blocks_to_allocate", needed)
    monkeypatch.setattr(FullAttentionManager, "new_step_starts", begun)
