"""What became readable in the host tier and what is gone, as vLLM's KV cache events.

An event names the content by its hash and its group. Which tokens that are is not known any more when a copy lands, so events
of stores have none: whoever listens knows the hash from the event that vLLM itself sent when the block was computed. With
chunks of several blocks the hash is that of the last block.
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
    """The same events in vLLM's words, in order."""
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
