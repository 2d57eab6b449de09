"""Reads vLLM's configuration once, and refuses what the connector does not support.

Rules of this file:

* Everything that is not known to work is refused here or in `_groups`, when the engine starts. Each refusal says what to do.
* What is computed from groups is computed from those that are offered, unless vLLM decides it: then from all.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import vllm
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size
from vllm.v1.kv_cache_interface import MambaSpec, UniformTypeKVCacheSpecs, iter_layer_specs

from blocklife.engines._store import StoreBelow
from blocklife.engines.vllm.connector._alike import ranks_alike
from blocklife.engines.vllm.connector._config import PLACE, ConnectorConfig
from blocklife.engines.vllm.connector._groups import (
    check_ends,
    check_states,
    geometry_of,
    offered_groups,
    refusal,
    replay_tokens,
    with_tails,
)
from blocklife.engines.vllm.connector._scheduler import incarnation_of
from blocklife.engines.vllm.connector._shapes import CacheShape
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.tiers import Identity

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec


def check_engine(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """Refuse settings that the connector does not support, whatever the kinds of groups."""
    parallel = vllm_config.parallel_config
    if parallel.enable_fault_tolerance:
        raise refusal("fault tolerance is not offered: a step that fails takes the workers' reports with it", "switch it off")
    if not kv_cache_config.kv_cache_groups:
        raise refusal("there is nothing to offload of a model without a KV cache", "leave the connector out")
    if kv_cache_config.hisparse_host_num_blocks is not None:
        raise refusal("HiSparse is not offered", "switch it off")
    if vllm_config.model_config.enable_sleep_mode and not release().tells_of_sleep:
        raise refusal("sleep mode is not offered: before 0.33 vLLM does not tell of it", "leave enable_sleep_mode off")
    if release().has_auxiliary_outputs(vllm_config):
        raise refusal("auxiliary outputs are not offered", "switch them off")
    if vllm_config.model_config.is_diffusion:
        raise refusal("a diffusion model is not offered: a step of it samples many tokens, or none", "leave the connector out")
    spec = vllm_config.speculative_config
    if spec is not None and kv_cache_config.has_mamba_layers and not release().guesses_beside_states:
        raise refusal("speculative decoding with Mamba layers is not offered before 0.33", "switch it off")


def schedules_alone(vllm_config: VllmConfig) -> bool:
    """Whether each worker has a scheduler of its own, and all of them must decide alike (external_launcher)."""
    parallel = vllm_config.parallel_config
    return bool(parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1)


def checks_host(vllm_config: VllmConfig, config: ConnectorConfig) -> bool:
    """Whether host memory is checked. Refuses it where each worker has a scheduler of its own: sums are made at another time on
    each, and all schedulers must decide alike."""
    if config.host_checksums and schedules_alone(vllm_config):
        raise refusal("host_checksums with external_launcher is not offered", "use mp or ray, or leave it out")
    return config.host_checksums


def block_bytes(kv_cache_config: KVCacheConfig) -> int:
    """Bytes of one block on one worker, over all layers; the scheduler side and the workers compute the same."""
    if kv_cache_config.kv_cache_tensors:
        return int(kv_cache_config.kv_cache_tensors[0].size) // int(kv_cache_config.num_blocks)
    return max(_group_bytes(group) for group in kv_cache_config.kv_cache_groups)


def _group_bytes(group: KVCacheGroupSpec) -> int:
    spec = group.kv_cache_spec
    layers = 1 if isinstance(spec, UniformTypeKVCacheSpecs) else len(group.layer_names)
    return int(spec.page_size_bytes) * layers


def num_slots(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig) -> int:
    """The number of chunks that every worker has room for. Refuses ``host_bytes`` if workers have blocks of different sizes."""
    stages = vllm_config.parallel_config.pipeline_parallel_size
    if stages > 1 and config.host_blocks is None:
        raise refusal(f"host_bytes with pipeline_parallel_size={stages}: blocks differ in size", "give host_blocks")
    return config.num_slots(block_bytes(kv_cache_config), _num_parts(vllm_config, kv_cache_config))


def _num_parts(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
    """In how many parts the content of a block is on the workers: ranks that hold the same part have it once."""
    return int(vllm_config.parallel_config.world_size) // ranks_alike(vllm_config, kv_cache_config)


def host_memory_told(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig) -> str:
    """How much host memory this engine has, and whether others have as much.

    Data parallelism is several engines, and each reads the same configuration. Of a dense model each is told its own number and
    not how many there are; vLLM appends the number to its name.
    """
    parallel, transfer = vllm_config.parallel_config, vllm_config.kv_transfer_config
    chunks, engines = num_slots(vllm_config, kv_cache_config, config), parallel.data_parallel_size
    told = f"host memory of this engine: {chunks:,} chunks"
    num_bytes = chunks * config.blocks_per_chunk * block_bytes(kv_cache_config) * _num_parts(vllm_config, kv_cache_config)
    if is_even := parallel.pipeline_parallel_size == 1:
        told += f", {_spelt(num_bytes)} on {parallel.world_size} workers together"
    else:
        told += " on each worker"
    if (alike := ranks_alike(vllm_config, kv_cache_config)) > 1:
        told += f", of which each {alike} neighbours hold the same and have it once"
    if schedules_alone(vllm_config):  # one engine, whose workers include those of all its ranks
        return told
    if engines > 1:
        in_all = f": {_spelt(engines * num_bytes)} in all" if is_even else ""
        return f"{told}; each of {engines} engines (data parallelism) has as much{in_all}"
    number = int(parallel.data_parallel_index)
    if number or ((transfer.engine_id if transfer else None) or "").endswith(f"_dp{number}"):
        told += f"; this is engine {number} of several (data parallelism), counted from 0, and each of them has as much"
    return told


def _spelt(num_bytes: int) -> str:
    unit, name = (1 << 30, "GiB") if num_bytes >= 1 << 30 else (1 << 20, "MiB")
    return f"{num_bytes / unit:,.2f} {name}"


def shape_of(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig) -> CacheShape:
    """The shape of the cache for the scheduler side. Refuses everything that is not supported."""
    check_engine(vllm_config, kv_cache_config)
    checks_host(vllm_config, config)
    context_ranks = vllm_config.parallel_config.decode_context_parallel_size
    groups, offered = offered_groups(kv_cache_config)
    geometry = geometry_of(kv_cache_config, config, context_ranks)
    check_ends(kv_cache_config, geometry, config, context_ranks)
    kv_events = vllm_config.kv_events_config
    events = kv_events is not None and bool(kv_events.enable_kv_cache_events)
    transfer = vllm_config.kv_transfer_config
    hash_tokens = release().hash_tokens(vllm_config, kv_cache_config)
    inside = release().hits_inside_blocks(kv_cache_config, hash_tokens, context_ranks)
    if inside and not release().keeps_tails:
        if context_ranks > 1:
            raise refusal(
                f"decode_context_parallel_size={context_ranks} with Mamba layers is not offered before 0.33: there vLLM hits "
                "prefixes inside a block that the ranks share",
                "use decode_context_parallel_size=1",
            )
        raise refusal(
            f"prefix hits inside a block (hashes of {hash_tokens} tokens with larger Mamba blocks) are not offered before 0.33",
            "leave prefix_match_unit at the block size",
        )
    check_states(geometry, groups, vllm_config.cache_config.block_size)
    guesses = vllm_config.speculative_config is not None
    return CacheShape(
        groups=groups,
        geometry=with_tails(geometry, hash_tokens, config),
        tokens_per_hash=hash_tokens,
        hashes_per_block=tuple(tokens // hash_tokens for tokens in geometry.block_tokens),
        num_blocks=kv_cache_config.num_blocks,
        num_slots=num_slots(vllm_config, offered, config),
        num_workers=1 if schedules_alone(vllm_config) else vllm_config.parallel_config.world_size,
        max_running=vllm_config.scheduler_config.max_num_seqs,
        max_batches=vllm_config.max_concurrent_batches,
        incarnation=incarnation_of((transfer.engine_id if transfer else None) or ""),
        one_a_step=not guesses and vllm_config.model_config.runner_type == "generate",
        events=events,
        self_describing=events and config.self_describing_kv_events,
        zeroes_first=vllm_config.use_v2_model_runner and kv_cache_config.needs_kv_cache_zeroing,
        names_sessions=release().names_sessions and (not guesses or release().rewinds_sessions),
        below=below_of(vllm_config, offered, config),
        lands_in_step=schedules_alone(vllm_config),
        load_within_tokens=_load_within_tokens(vllm_config, offered, config),
        state_drafts=_state_drafts(offered),
        replay_tokens=replay_tokens(kv_cache_config),
    )


def _state_drafts(kv_cache_config: KVCacheConfig) -> int:
    """How many blocks a request has for the states of its guesses, besides that of its running state."""
    specs = [spec for group in kv_cache_config.kv_cache_groups for spec in iter_layer_specs(group.kv_cache_spec)]
    return max([int(spec.num_speculative_blocks) for spec in specs if isinstance(spec, MambaSpec)], default=0)


def _load_within_tokens(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig) -> int:
    """How many tokens a step may load before its forward pass.

    Refuses a policy that goes on after such a load has failed, and an engine that hands out what such a load still writes.

    With *recompute*, vLLM 0.33.0 leaves the blocks of such a load in its prefix cache under hashes of content that they do not
    have, and with asynchronous scheduling it keeps what the next step has sampled from them.
    """
    transfer = vllm_config.kv_transfer_config
    if config.sync_load_budget_bytes and transfer is not None and transfer.kv_load_failure_policy == "recompute":
        raise refusal(
            "sync_load_budget_bytes with kv_load_failure_policy='recompute' is not offered: vLLM leaves the blocks of a failed "
            "load where other requests hit them",
            "leave it out, or use the policy 'fail'",
        )
    alone = transfer is not None and transfer.kv_role == "kv_producer"
    if config.sync_load_budget_bytes and alone and vllm_config.max_concurrent_batches > 1:
        raise refusal(
            "sync_load_budget_bytes with kv_role='kv_producer' is not offered with a step ahead: vLLM hands out the blocks of "
            "a request that ends while the step that loads them is out",
            "leave it out, or use kv_role='kv_both'",
        )
    ranks = vllm_config.parallel_config.decode_context_parallel_size
    groups = kv_cache_config.kv_cache_groups
    a_token = sum([_group_bytes(each) // int(resolve_dcp_kv_block_size(each.kv_cache_spec, ranks)) for each in groups])
    return config.sync_load_budget_bytes // max(1, a_token)


def below_of(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig) -> StoreBelow | None:
    """The store below and for what content it is used; the scheduler side and all workers get the same. None without one.

    Refuses: a scheduler for each worker, and hashes that differ from process to process.
    """
    if config.below is None:
        return None
    if schedules_alone(vllm_config):
        raise refusal(
            "below with external_launcher is not offered: a store answers each worker's scheduler at another time, and all of "
            "them must decide alike",
            "use mp or ray, or leave below out",
        )
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    if algorithm.startswith("xxhash") and os.getenv("PYTHONHASHSEED") is None:
        raise refusal(
            f"below with prefix_caching_hash_algo={algorithm!r}: its hashes differ from process to process, so that nothing "
            "would be found again",
            "set PYTHONHASHSEED to the same value everywhere, or use sha256",
        )
    return StoreBelow(
        address=config.below,
        identity=_identity(vllm_config, kv_cache_config, config),
        policies=config.policies_below,
        option=f"{PLACE}: below",
    )


def _identity(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig) -> Identity:
    """For which content entries are made: all that could make their bytes mean something else, rather too much than too little.

    How many blocks the device has is not part of it: servers with different memory share content. Neither is the configuration
    of the model's layers: a worker's copy of it may have changed while the model was loaded. A stage of a pipeline has a
    part of the layers: how they are divided stands for them. Of a group whose layers differ the scheduler sees the first one.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    weights = f"random, seed {model.seed}" if vllm_config.load_config.load_format == "dummy" else ""
    overrides = model.hf_overrides if isinstance(model.hf_overrides, dict) else model.hf_overrides.__qualname__
    capability = current_platform.get_device_capability()
    layout: tuple[tuple[object, ...], ...] = (
        ("vllm", vllm.__version__),
        ("device", current_platform.device_type, None if capability is None else tuple(capability)),
        ("backend", str(vllm_config.attention_config.backend)),
        ("layout", kv_cache_config.kv_cache_layout or cache.kv_cache_layout),
        ("ranks", vllm_config.parallel_config.tensor_parallel_size),
        ("hashes", cache.prefix_caching_hash_algo),
        ("states", cache.mamba_cache_dtype, cache.mamba_ssm_cache_dtype),
        ("not quantized", *cache.kv_cache_dtype_skip_layers),
        ("model", model.code_revision, model.quantization, model.max_model_len, overrides),
        ("rows", "by block, layers in a row"),
    )
    parallel, held = vllm_config.parallel_config, kv_cache_config.kv_cache_groups
    if (stages := parallel.pipeline_parallel_size) > 1:
        groups = ",".join(str(group.kv_cache_spec.block_size) for group in held)
        layout = (*layout, ("stages", stages, os.getenv("VLLM_PP_LAYER_PARTITION")))
    else:
        groups = ",".join(map(str, geometry_of(kv_cache_config, config, parallel.decode_context_parallel_size).groups))
        layout = (*layout, ("groups", [(group.layer_names, repr(_first_spec(group))) for group in held]))
    context = parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size
    if context != (1, 1):
        layout = (*layout, ("context", *context, parallel.cp_kv_cache_interleave_size))
    drafter = vllm_config.speculative_config
    if drafter is not None and drafter.model is not None:
        layout = (*layout, ("drafter", drafter.method, drafter.model, drafter.revision, drafter.quantization))
    if model.hf_config_path is not None:
        layout = (*layout, ("configuration", model.hf_config_path))
    return Identity(
        model=" ".join(filter(None, (model.model, model.revision, weights))),
        dtype=f"{model.dtype} {cache.cache_dtype}",
        groups=groups,
        blocks_per_chunk=config.blocks_per_chunk,
        slot_bytes=block_bytes(kv_cache_config) * config.blocks_per_chunk,
        uneven=stages > 1,
        num_ranks=_num_parts(vllm_config, kv_cache_config),
        layout=hashlib.blake2b(repr(layout).encode(), digest_size=32).hexdigest(),
        generation=config.below_generation,
    )


def _first_spec(group: KVCacheGroupSpec) -> KVCacheSpec:
    return next(iter(iter_layer_specs(group.kv_cache_spec)))
