"""Content that became readable in the host tier or is gone, as vLLM's KV cache events.

An event identifies content by hash and group. When a copy lands its tokens are no longer known, so store events have none;
listeners know the hash from the event that vLLM sent when the block was computed. For chunks of several blocks the hash is that
of the last block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash

from blocklife.offload import EventKind, HostEvent

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent


def told(events: Iterable[HostEvent]) -> Iterator[KVCacheEvent]:
    """The same events as vLLM's event classes, in order."""
    for event in events:
        hashes = [maybe_convert_block_hash(BlockHash(event.key))]
        if event.kind is EventKind.STORED:
            yield BlockStored(
                block_hashes=hashes,
                parent_block_hash=None,
                token_ids=[],
                block_size=0,
                lora_id=None,
                medium=MEDIUM_CPU,
                lora_name=None,
                group_idx=event.group,
            )
        else:
            yield BlockRemoved(block_hashes=hashes, medium=MEDIUM_CPU, group_idx=event.group)
