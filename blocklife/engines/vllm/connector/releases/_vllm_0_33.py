"""vLLM 0.33: as 0.32, and the connector is told of sleep mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import partial_hash_hits_enabled, to_event_extra_keys
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from blocklife.engines.vllm.connector.releases._release import Release

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class Release33(Release):
    """The adapter."""

    name = "0.33"
    names_sessions = True
    tells_of_sleep = True

    def hash_tokens(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
        """What the engine has resolved, if it has."""
        return kv_cache_config.hash_block_size or super().hash_tokens(vllm_config, kv_cache_config)

    def hits_inside_blocks(self, kv_cache_config: KVCacheConfig, hash_tokens: int, context_ranks: int) -> bool:
        """As vLLM asks it."""
        return bool(partial_hash_hits_enabled(kv_cache_config.kv_cache_groups, hash_tokens, context_ranks))

    def hit_sources(self, tokens: Iterable[tuple[str, int]]) -> dict[CacheHitSource, int]:
        """By vLLM's own names."""
        found = Counter[CacheHitSource]()
        for source, count in tokens:
            found[CacheHitSource(source)] += count
        return dict(+found)

    def event_extra_keys(self, keys: Sequence[tuple[object, ...] | None] | None) -> list[tuple[object, ...] | None] | None:
        """Without the tags that the hashes have."""
        found: list[tuple[object, ...] | None] | None = to_event_extra_keys(keys)
        return found

    def has_auxiliary_outputs(self, vllm_config: VllmConfig) -> bool:
        """What the engine's configuration says."""
        return bool(vllm_config.aux_output_config.enabled)


RELEASE = Release33()
