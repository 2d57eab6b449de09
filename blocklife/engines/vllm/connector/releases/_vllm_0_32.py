"""vLLM 0.32: hits have sources, and the engine tells the connector how many tokens a hash covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import partial_hash_hits_enabled
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from blocklife.engines.vllm.connector.releases._vllm_0_31 import Release31

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class Release32(Release31):
    """The adapter."""

    name = "0.32"
    names_sessions = True

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


RELEASE = Release32()
