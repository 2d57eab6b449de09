"""Content that became readable in the host tier or in the store below it, or is gone from there, as vLLM's KV cache events.

The medium of an event names the tier: vLLM's *CPU* is host memory, and *STORAGE* is the store below.

An event identifies content by hash and group. Without descriptions a store event has no tokens, and for chunks of several
blocks the hash is that of the last block; listeners know it from the event that vLLM sent when the block was computed. With
descriptions (`_described`) an event has the hashes of all blocks of the chunk, and what they were made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from attrs import frozen
from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    ExternalBlockHash,
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
)
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window
from vllm.v1.request import Request

from blocklife.engines.vllm.connector._described import Description, ExtraKeys
from blocklife.engines.vllm.connector._shapes import OfferedGroups, VllmRequest
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.offload import EventKind, TierEvent

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.kv_cache_interface import KVCacheConfig


@frozen
class EventGroup:
    """What an event says of its group."""

    number: int
    """vLLM's."""
    kind: str
    window: int | None


def event_groups(kv_cache_config: KVCacheConfig, offered: OfferedGroups) -> list[EventGroup]:
    """The groups that are offered, as vLLM classifies them."""
    specs = [(number, kv_cache_config.kv_cache_groups[number].kv_cache_spec) for number in offered.numbers]
    return [
        EventGroup(number, get_kv_cache_spec_kind(spec).value, get_kv_cache_spec_sliding_window(spec)) for number, spec in specs
    ]


def extra_keys(request: VllmRequest, start: int, stop: int, block_tokens: int) -> ExtraKeys | None:
    """What the hashes of these blocks cover besides tokens: adapter, images, salt, embeddings."""
    if not isinstance(request, Request):
        raise TypeError(f"{request!r} is no request of vLLM")
    found: list[tuple[object, ...] | None] = []
    image = 0
    for first in range(start, stop, block_tokens):
        keys, image = generate_block_hash_extra_keys(request, first, first + block_tokens, image)
        found.append(keys)
    return tuple(found) if any(each is not None for each in found) else None


def told(events: Iterable[TierEvent], groups: Sequence[EventGroup]) -> Iterator[KVCacheEvent]:
    """The same events as vLLM's event classes, in order."""
    for event in events:
        group = groups[event.group]
        if event.kind is EventKind.STORED:
            yield _placeholder(event, group, described=False)
        else:
            yield _removed(event, group, event.keys)


def described(events: Iterable[tuple[TierEvent, Description | None]], groups: Sequence[EventGroup]) -> Iterator[KVCacheEvent]:
    """Events with their descriptions as vLLM's event classes, in order."""
    for event, description in events:
        group = groups[event.group]
        if event.kind is EventKind.REMOVED:
            yield _removed(event, group, event.keys if description is None else description.hashes)
        elif description is None:
            yield _placeholder(event, group, described=True)
        else:
            yield _stored(event, description, group)


def _stored(event: TierEvent, description: Description, group: EventGroup) -> BlockStored:
    number, name = description.adapter or (None, None)
    return BlockStored(
        block_hashes=_hashes(description.hashes),
        parent_block_hash=None if description.parent is None else _hashes([description.parent])[0],
        token_ids=description.tokens.tolist(),
        block_size=description.block_tokens,
        lora_id=number,
        medium=_medium(event),
        lora_name=name,
        extra_keys=release().event_extra_keys(description.extra_keys),
        group_idx=group.number,
        kv_cache_spec_kind=group.kind,
        kv_cache_spec_sliding_window=group.window,
    )


def _placeholder(event: TierEvent, group: EventGroup, *, described: bool) -> BlockStored:
    """Contents of which nothing is known but their keys; a window or a state is never told as more."""
    return BlockStored(
        block_hashes=_hashes(event.keys),
        parent_block_hash=None,
        token_ids=[],
        block_size=0,
        lora_id=None,
        medium=_medium(event),
        lora_name=None,
        group_idx=group.number,
        kv_cache_spec_kind=group.kind if described else None,
        kv_cache_spec_sliding_window=group.window if described else None,
    )


def _removed(event: TierEvent, group: EventGroup, hashes: Iterable[bytes]) -> BlockRemoved:
    return BlockRemoved(block_hashes=_hashes(hashes), medium=_medium(event), group_idx=group.number)


def _medium(event: TierEvent) -> str:
    return str(MEDIUM_STORAGE if event.below else MEDIUM_CPU)


def _hashes(hashes: Iterable[bytes]) -> list[ExternalBlockHash]:
    return list(map(maybe_convert_block_hash, cast("Iterable[BlockHash]", hashes)))
