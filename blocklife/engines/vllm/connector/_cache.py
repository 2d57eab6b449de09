"""Reads vLLM's configuration once, and refuses what the connector does not support.

Rules of this file:

* Everything that is not known to work is refused here, when the engine starts. Each refusal says what to do.
* Kinds of groups are compared by exact type: in a subclass, a block may hold something else.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import vllm
from attrs import evolve
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    iter_layer_specs,
)

from blocklife.engines.vllm.connector._alike import ranks_alike
from blocklife.engines.vllm.connector._config import ConnectorConfig
from blocklife.engines.vllm.connector._scheduler import incarnation_of
from blocklife.engines.vllm.connector._shapes import CacheShape
from blocklife.engines.vllm.connector._store import StoreBelow
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.errors import MisuseError
from blocklife.groups import Group
from blocklife.offload import FullAttention, FullHit, Geometry, LocalAttention, Mamba, Mode, SlidingWindow
from blocklife.tiers import Identity

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec


_FULL = (FullAttentionSpec, MLAAttentionSpec)


def _refuse(what: str, remedy: str) -> MisuseError:
    return MisuseError(f"blocklife connector: {what} ({remedy})")


def check_engine(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
    """Refuse settings that the connector does not support, whatever the kinds of groups."""
    parallel, transfer = vllm_config.parallel_config, vllm_config.kv_transfer_config
    role = None if transfer is None else transfer.kv_role
    if role != "kv_both":
        raise _refuse(f"kv_role={role!r} is not offered", "use kv_role='kv_both'")
    if parallel.enable_fault_tolerance:
        raise _refuse("fault tolerance is not offered: a step that fails takes the workers' reports with it", "switch it off")
    if not kv_cache_config.kv_cache_groups:
        raise _refuse("there is nothing to offload of a model without a KV cache", "leave the connector out")
    if kv_cache_config.hisparse_host_num_blocks is not None:
        raise _refuse("HiSparse is not offered", "switch it off")
    if vllm_config.model_config.enable_sleep_mode and not release().tells_of_sleep:
        raise _refuse("sleep mode is not offered: before 0.33 vLLM does not tell of it", "leave enable_sleep_mode off")
    if release().has_auxiliary_outputs(vllm_config):
        raise _refuse("auxiliary outputs are not offered", "switch them off")
    if vllm_config.model_config.is_diffusion:
        raise _refuse("a diffusion model is not offered: a step of it samples many tokens, or none", "leave the connector out")
    spec = vllm_config.speculative_config
    if spec is not None and kv_cache_config.has_mamba_layers and not release().guesses_beside_states:
        raise _refuse("speculative decoding with Mamba layers is not offered before 0.33", "switch it off")


def schedules_alone(vllm_config: VllmConfig) -> bool:
    """Whether each worker has a scheduler of its own, and all of them must decide alike (external_launcher)."""
    parallel = vllm_config.parallel_config
    return bool(parallel.distributed_executor_backend == "external_launcher" and parallel.world_size > 1)


def geometry_of(kv_cache_config: KVCacheConfig, config: ConnectorConfig, context_ranks: int = 1) -> Geometry:
    """The groups of the model. Refuses kinds of groups that the offload scheduler does not know.

    With decode context parallelism each of *context_ranks* has its share of the tokens of a block, which covers as many more.
    """
    groups = [_group(number, group, context_ranks) for number, group in enumerate(kv_cache_config.kv_cache_groups)]
    if config.policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN and any(not isinstance(each, FullAttention) for each in groups):
        raise _refuse("full_hit=recompute_last_token needs full attention in every group", "use drop_last_block")
    return Geometry(groups, config.blocks_per_chunk)


def _group(number: int, group: KVCacheGroupSpec, context_ranks: int) -> Group:
    if group.host_resident or not group.enable_kv_transfer or not group.kv_cache_spec.prefix_cacheable:
        raise _refuse(
            f"group {number} has blocks that cannot be cached by their content, which is not offered", "use another connector"
        )
    kinds = {_kind(number, spec, context_ranks) for spec in iter_layer_specs(group.kv_cache_spec)}
    if len(kinds) != 1:
        raise _refuse(f"group {number} has layers of {len(kinds)} kinds, which is not offered", "use another connector")
    kind = kinds.pop()
    if not group.is_eagle_group:
        return kind
    if isinstance(kind, Mamba | LocalAttention):
        what = "states" if isinstance(kind, Mamba) else "local attention"
        raise _refuse(f"group {number} holds {what} of a drafter, which is not offered", "switch speculative decoding off")
    return evolve(kind, drafter=True)


def checks_host(vllm_config: VllmConfig, config: ConnectorConfig) -> bool:
    """Whether host memory is checked. Refuses it where each worker has a scheduler of its own: sums are made at another time on
    each, and all schedulers must decide alike."""
    if config.host_checksums and schedules_alone(vllm_config):
        raise _refuse("host_checksums with external_launcher is not offered", "use mp or ray, or leave it out")
    return config.host_checksums


def reports_blocks(kv_cache_config: KVCacheConfig) -> bool:
    """Whether failed loads are reported by block: with one group of full attention. With a window, vLLM would continue from
    blocks that it has freed: there it must compute from the start. A stage may have no layer of the group."""
    if len(kv_cache_config.kv_cache_groups) != 1:
        return False
    specs = iter_layer_specs(kv_cache_config.kv_cache_groups[0].kv_cache_spec)
    return all(type(spec) in _FULL for spec in specs)


def _kind(number: int, spec: KVCacheSpec, context_ranks: int) -> Group:
    """The kind of attention of a KV-cache spec."""
    what = f"group {number} ({type(spec).__name__})"
    tokens = resolve_dcp_kv_block_size(spec, context_ranks)
    if type(spec) is MambaSpec:
        if spec.mamba_cache_mode != "align":
            raise _refuse(
                f"{what} has mamba_cache_mode={spec.mamba_cache_mode!r}",
                "use mamba_cache_mode='align', which prefix caching brings",
            )
        return Mamba(tokens)
    if type(spec) is SlidingWindowSpec:
        return SlidingWindow(tokens, spec.sliding_window + spec.extra_retained_tokens)
    if type(spec) is ChunkedLocalAttentionSpec:
        return LocalAttention(tokens, spec.attention_chunk_size)
    if type(spec) in _FULL:
        return FullAttention(tokens)
    raise _refuse(
        f"{what} is no kind of group that is offered",
        "full attention, MLA, sliding windows, chunked local attention and Mamba are",
    )


def _check_states(geometry: Geometry, block_tokens: int) -> None:
    """Refuse states that vLLM would take for those of another token."""
    for number, group in enumerate(geometry.groups):
        if isinstance(group, Mamba) and group.block_tokens != block_tokens:
            raise _refuse(
                f"group {number} has states of {group.block_tokens} tokens, and vLLM cuts prompts at blocks of {block_tokens}: "
                "it would take a state that lies before the end of its block for the one at the end",
                "use one block size",
            )


def with_tails(geometry: Geometry, hash_tokens: int, config: ConnectorConfig) -> Geometry:
    """The same groups, with prefixes that end inside a block where vLLM's hashes are of fewer tokens than a block.

    That needs a Mamba group, blocks of one size, and no windows; chunks of one block; and stores that are not lazy. Elsewhere
    such prefixes are hits on the device only.
    """
    sizes, kinds = set(geometry.block_tokens), {type(group) for group in geometry.groups}
    fine = Mamba in kinds and kinds <= {Mamba, FullAttention} and len(sizes) == 1 and hash_tokens < min(sizes)
    if not fine or geometry.blocks_per_chunk > 1 or config.policies.mode is Mode.LAZY:
        return geometry
    return evolve(geometry, tail_tokens=hash_tokens)


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
        raise _refuse(f"host_bytes with pipeline_parallel_size={stages}: blocks differ in size", "give host_blocks")
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
    geometry = geometry_of(kv_cache_config, config, context_ranks)
    kv_events = vllm_config.kv_events_config
    events = kv_events is not None and bool(kv_events.enable_kv_cache_events)
    transfer = vllm_config.kv_transfer_config
    hash_tokens = release().hash_tokens(vllm_config, kv_cache_config)
    inside = release().hits_inside_blocks(kv_cache_config, hash_tokens, context_ranks)
    if context_ranks > 1 and inside:
        raise _refuse(
            f"decode_context_parallel_size={context_ranks} with Mamba layers is not offered: there vLLM hits prefixes inside a "
            "block that the ranks share",
            "use decode_context_parallel_size=1",
        )
    if inside and not release().keeps_tails:
        raise _refuse(
            f"prefix hits inside a block (hashes of {hash_tokens} tokens with larger Mamba blocks) are not offered before 0.33",
            "leave prefix_match_unit at the block size",
        )
    _check_states(geometry, vllm_config.cache_config.block_size)
    guesses = vllm_config.speculative_config is not None
    return CacheShape(
        geometry=with_tails(geometry, hash_tokens, config),
        tokens_per_hash=hash_tokens,
        hashes_per_block=tuple(tokens // hash_tokens for tokens in geometry.block_tokens),
        num_blocks=kv_cache_config.num_blocks,
        num_slots=num_slots(vllm_config, kv_cache_config, config),
        num_workers=1 if schedules_alone(vllm_config) else vllm_config.parallel_config.world_size,
        max_running=vllm_config.scheduler_config.max_num_seqs,
        max_batches=vllm_config.max_concurrent_batches,
        incarnation=incarnation_of((transfer.engine_id if transfer else None) or ""),
        one_a_step=not guesses and vllm_config.model_config.runner_type == "generate",
        events=events,
        self_describing=events and config.self_describing_kv_events,
        zeroes_first=vllm_config.use_v2_model_runner and kv_cache_config.needs_kv_cache_zeroing,
        names_sessions=release().names_sessions and (not guesses or release().rewinds_sessions),
        below=below_of(vllm_config, kv_cache_config, config),
        lands_in_step=schedules_alone(vllm_config),
        load_within_tokens=_load_within_tokens(vllm_config, kv_cache_config, config),
        state_drafts=_state_drafts(kv_cache_config),
    )


def _state_drafts(kv_cache_config: KVCacheConfig) -> int:
    """How many blocks a request has for the states of its guesses, besides that of its running state."""
    specs = [spec for group in kv_cache_config.kv_cache_groups for spec in iter_layer_specs(group.kv_cache_spec)]
    return max([int(spec.num_speculative_blocks) for spec in specs if isinstance(spec, MambaSpec)], default=0)


def _load_within_tokens(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig) -> int:
    """How many tokens a step may load before its forward pass. Refuses a policy that goes on after such a load has failed.

    With *recompute*, vLLM 0.33.0 leaves the blocks of such a load in its prefix cache under hashes of content that they do not
    have, and with asynchronous scheduling it keeps what the next step has sampled from them.
    """
    transfer = vllm_config.kv_transfer_config
    if config.sync_load_budget_bytes and transfer is not None and transfer.kv_load_failure_policy == "recompute":
        raise _refuse(
            "sync_load_budget_bytes with kv_load_failure_policy='recompute' is not offered: vLLM leaves the blocks of a failed "
            "load where other requests hit them",
            "leave it out, or use the policy 'fail'",
        )
    ranks = vllm_config.parallel_config.decode_context_parallel_size
    groups = kv_cache_config.kv_cache_groups
    a_token = sum([_group_bytes(each) // int(resolve_dcp_kv_block_size(each.kv_cache_spec, ranks)) for each in groups])
    return config.sync_load_budget_bytes // max(1, a_token)


def below_of(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig) -> StoreBelow | None:
    """The store below and for what content it is used; the scheduler side and all workers get the same. None without one.

    Refuses: stages of a pipeline, and hashes that differ from process to process.
    """
    if config.below is None:
        return None
    if (stages := vllm_config.parallel_config.pipeline_parallel_size) > 1:
        raise _refuse(f"below with pipeline_parallel_size={stages} is not offered: blocks differ in size", "leave below out")
    if schedules_alone(vllm_config):
        raise _refuse(
            "below with external_launcher is not offered: a store answers each worker's scheduler at another time, and all of "
            "them must decide alike",
            "use mp or ray, or leave below out",
        )
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    if algorithm.startswith("xxhash") and os.getenv("PYTHONHASHSEED") is None:
        raise _refuse(
            f"below with prefix_caching_hash_algo={algorithm!r}: its hashes differ from process to process, so that nothing "
            "would be found again",
            "set PYTHONHASHSEED to the same value everywhere, or use sha256",
        )
    return StoreBelow(
        address=config.below, identity=_identity(vllm_config, kv_cache_config, config), policies=config.policies_below
    )


def _identity(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig) -> Identity:
    """For which content entries are made: all that could make their bytes mean something else, rather too much than too little.

    How many blocks the device has is not part of it: servers with different memory share content. Neither is the configuration
    of the model's layers: a worker's copy of it may have changed while the model was loaded.
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
        ("model", model.code_revision, model.quantization, model.max_model_len, overrides),
        ("rows", "by block, layers in a row"),
        ("groups", [(group.layer_names, repr(group.kv_cache_spec)) for group in kv_cache_config.kv_cache_groups]),
    )
    parallel = vllm_config.parallel_config
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
        groups=",".join(map(str, geometry_of(kv_cache_config, config, context[0]).groups)),
        blocks_per_chunk=config.blocks_per_chunk,
        slot_bytes=block_bytes(kv_cache_config) * config.blocks_per_chunk,
        num_ranks=_num_parts(vllm_config, kv_cache_config),
        layout=hashlib.blake2b(repr(layout).encode(), digest_size=32).hexdigest(),
        generation=config.below_generation,
    )
