"""Which ranks hold the same content, so that the host memory of a machine keeps it once.

Rules of this file:

* It follows from the model and from how the engine is parallel; there is no option. In doubt, each rank has its own.
* All groups must be alike on the same ranks: a slot may hold content of any of them.

Theory. Latents (MLA) are computed by every rank of tensor parallelism. Of heads neighbouring ranks have the same one, where
there are fewer than ranks (`_ranks`). How many heads a layer has in all its spec does not say: all layers of the models that
`_ranks` names have as many as `ModelConfig.get_total_num_kv_heads` says.
"""

from __future__ import annotations

import hashlib
from math import gcd
from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    iter_layer_specs,
)

from blocklife.copiers import Sharing
from blocklife.engines.vllm.connector._ranks import ranks_with_heads_alike

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec

_HEADS = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)


def ranks_alike(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
    """How many neighbouring ranks of a machine hold the same content; 1: each has its own.

    1, too, where the ranks divide the tokens of a block, and where it is not known that they are on one machine.
    """
    parallel = vllm_config.parallel_config
    divided = parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1
    if divided or parallel.distributed_executor_backend != "mp":
        return 1
    found = gcd(parallel.tensor_parallel_size, parallel.local_world_size)
    for group in kv_cache_config.kv_cache_groups:
        for spec in iter_layer_specs(group.kv_cache_spec):
            found = gcd(found, _ranks_of(spec, vllm_config)) if found > 1 else 1
    return found


def sharing_of(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, places_per_slot: int) -> Sharing | None:
    """With whom this worker has host memory; None: alone."""
    ranks = ranks_alike(vllm_config, kv_cache_config)
    if ranks == 1:
        return None
    rank, transfer = vllm_config.parallel_config.rank, vllm_config.kv_transfer_config
    name = hashlib.blake2b(((transfer.engine_id if transfer else None) or "").encode(), digest_size=12).hexdigest()
    return Sharing(f"{name}-{rank // ranks}", rank % ranks, ranks, places_per_slot)


def _ranks_of(spec: KVCacheSpec, vllm_config: VllmConfig) -> int:
    """How many neighbouring ranks of tensor parallelism hold the same of a layer."""
    ranks = vllm_config.parallel_config.tensor_parallel_size
    if type(spec) is MLAAttentionSpec or (type(spec) is SlidingWindowMLASpec and getattr(spec, "max_tp_shards", None) == 1):
        return int(ranks)
    if not isinstance(spec, AttentionSpec) or type(spec) not in _HEADS:
        return 1
    if spec.num_kv_heads != 1 or _has_other_layers(vllm_config):
        return 1
    model = vllm_config.model_config
    return ranks_with_heads_alike(int(ranks), model.get_total_num_kv_heads(), model.architectures)


def _has_other_layers(vllm_config: VllmConfig) -> bool:
    """Whether there may be layers with another number of heads than the model says."""
    model, drafter = vllm_config.model_config, vllm_config.speculative_config
    if drafter is not None and drafter.draft_model_config is not model:  # guesses from the text have the model itself there
        return True
    return bool(model.model_arch_config.per_layer_overrides)
