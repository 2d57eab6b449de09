"""The adapter of a release: the questions that releases of vLLM answer differently.

Rules of this file:

* What is here holds in every supported release. A method answers as a release does that lacks the feature; a release that has
  the feature overrides it.
* A question is added here only if the answers differ. What all supported releases share is asked where it is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import vllm
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.kv_cache_interface import MambaSpec, iter_layer_specs

from blocklife.engines.vllm import _versions as versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.metrics.cache_hit_source import CacheHitSource


class Release:
    """One minor release of vLLM, with its patch releases."""

    name: ClassVar[str] = ""
    """Major and minor number, such as 0.33."""

    names_sessions: ClassVar[bool] = False
    """Whether a session that goes on drops the hash of a block whose last token it takes back."""
    rewinds_sessions: ClassVar[bool] = False
    """Whether a session that ends an answer within right guesses goes on from that token. Before 0.33 vLLM counts the guesses
    behind it as computed, and the session goes on behind content of tokens that it does not have."""
    tells_of_sleep: ClassVar[bool] = False
    """Whether the connector is told before the device's memory is given up, and when it is back."""

    keeps_tails: ClassVar[bool] = False
    """Whether a prefix may end inside a block. In 0.30 random traffic read wrong bytes there; 0.31, 0.32: not tried."""

    guesses_beside_states: ClassVar[bool] = False
    """Whether tokens may be guessed beside Mamba groups. Before 0.33 random traffic with a step ahead ended in an error."""

    def hash_tokens(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
        """The number of tokens that one of a request's hashes covers."""
        return int(resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[1])

    def hits_inside_blocks(self, kv_cache_config: KVCacheConfig, hash_tokens: int, context_ranks: int) -> bool:
        """Whether a prefix hit may end inside a block: states that are kept at hashes of less than their block.

        With several *context_ranks* (decode context parallelism) it may with states of that size as well.
        """
        specs = [spec for group in kv_cache_config.kv_cache_groups for spec in iter_layer_specs(group.kv_cache_spec)]
        states = [spec for spec in specs if isinstance(spec, MambaSpec) and spec.mamba_cache_mode == "align"]
        return any(spec.block_size >= hash_tokens + (context_ranks == 1) for spec in states)

    def hit_sources(self, tokens: Iterable[tuple[str, int]]) -> dict[CacheHitSource, int]:
        """The tokens of a hit by where they come from (``host``, ``disk``), as vLLM's metrics name it; sums above 0 only."""
        return {}

    def event_extra_keys(self, keys: Sequence[tuple[object, ...] | None] | None) -> list[tuple[object, ...] | None] | None:
        """What the hashes of blocks cover besides tokens, one entry a block, as events publish it."""
        return list(keys) if keys else None

    def has_auxiliary_outputs(self, vllm_config: VllmConfig) -> bool:
        """Whether the engine returns more than tokens of what a forward pass computes, such as routed experts."""
        return False


def release() -> Release:
    """The adapter of the release that runs. Refuses one that is not supported."""
    return _adapter_of(vllm.__version__)


@cache
def _adapter_of(version: str) -> Release:
    versions.check(version)
    minor = versions.minor_of(version)
    module = importlib.import_module(f"{__package__}._vllm_{'_'.join(map(str, minor))}")
    found: Release = module.RELEASE
    return found
