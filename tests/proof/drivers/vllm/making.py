"""Makes vLLM's own scheduler without a model: a stand-in model folder, the layout of the cache, the configuration.

Rules of this file:

* It imports vLLM, and is imported only by what drives it.
* Differences between releases are detected by inspection. Nothing of vLLM is replaced.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from attrs import frozen
from vllm import SamplingParams
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from blocklife.groups import Group
from blocklife.offload import FullAttention, LocalAttention, Mamba, SlidingWindow

logging.getLogger("vllm").setLevel(logging.ERROR)

MAX_MODEL_LEN = 2048
TOKEN_BYTES = 8
"""KV of one token in one group: a key and a value of four bytes each."""
_END_OF_TEXT = 2
_MODEL = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 32,
    "ffn_dim": 64,
    "word_embed_proj_dim": 32,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": MAX_MODEL_LEN,
    "vocab_size": 50272,
    "torch_dtype": "float16",
    "eos_token_id": _END_OF_TEXT,
}
"""The parts of a model that a scheduler's configuration needs."""

_folders: list[tempfile.TemporaryDirectory[str]] = []


def _model() -> str:
    """The folder of that model; made once, removed when the process ends."""
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(prefix="blocklife-vllm-"))
        (Path(_folders[0].name) / "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        kv_cache_utils.init_none_hash(sha256)
    return _folders[0].name


@frozen
class Ring:
    """One block for each request, with its last tokens, from 0.32 on."""

    block_tokens: int


@frozen
class Replayed:
    """A window over latents that is computed once more behind each hit, from 0.33 on."""

    block_tokens: int
    window_tokens: int


@frozen(kw_only=True)
class Shape:
    """The settings of the engine."""

    groups: tuple[Group | Ring | Replayed, ...]
    num_blocks: int
    """The null block included."""
    max_num_seqs: int
    max_num_batched_tokens: int
    asynchronous: bool
    num_workers: int
    transfer: KVTransferConfig | None
    prefix_caching: bool = True
    keeps_every_block: bool = False
    """Whether newer releases keep each block of a window in the prefix cache, as older ones do."""
    part_tokens: int = 0
    """The most tokens of one prompt that a step computes; 0 for no limit."""
    priority: bool = False
    hash_tokens: int | None = None
    """Tokens of one hash; None: those of the smallest block."""
    guesses: int = 0
    """How many tokens a step guesses at most: a Mamba group has a block more for the state of each."""

    alike: int = 1
    """How many neighbouring workers hold the same content: the model has so many times fewer heads than there are workers."""
    latents: Sequence[int] = ()
    """The groups of full attention and of windows that keep latents instead of keys and values, by number."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one block; equal in all groups, because they share one pool of blocks."""
        return max(group.block_tokens for group in self.groups) * TOKEN_BYTES


def _page_spec(group: Group | Ring | Replayed, page_bytes: int, guesses: int = 0, *, latents: bool = False) -> KVCacheSpec:
    """vLLM's description of a group."""
    heads = page_bytes // (group.block_tokens * TOKEN_BYTES)
    layout = {"block_size": group.block_tokens, "num_kv_heads": heads, "head_size": 1, "dtype": torch.float32}
    flat = {**layout, "num_kv_heads": 1, "head_size": heads * TOKEN_BYTES // 4}
    if isinstance(group, Ring):
        from vllm.v1.kv_cache_interface import CircularBufferSpec

        return CircularBufferSpec(head_size_v=0, **flat)
    if isinstance(group, Replayed):
        return SlidingWindowMLASpec(sliding_window=group.window_tokens, bounded_replay=True, **flat)
    if latents and isinstance(group, FullAttention):
        return MLAAttentionSpec(**flat)
    if latents and isinstance(group, SlidingWindow):
        return SlidingWindowMLASpec(sliding_window=group.window_tokens, **flat)
    if isinstance(group, FullAttention):
        return FullAttentionSpec(**layout)
    if isinstance(group, LocalAttention):
        return ChunkedLocalAttentionSpec(attention_chunk_size=group.part_tokens, **layout)
    if isinstance(group, SlidingWindow):
        return SlidingWindowSpec(sliding_window=group.window_tokens, **layout)
    shapes = ((page_bytes // 4,),)
    return MambaSpec(
        block_size=group.block_tokens,
        shapes=shapes,
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
        num_speculative_blocks=guesses,
    )


def cache_of(shape: Shape) -> KVCacheConfig:
    """The layout of the cache: one layer a group, all of them in the same blocks."""
    page, size = shape.page_bytes, shape.page_bytes * shape.num_blocks
    groups = [
        KVCacheGroupSpec([f"layer{at}"], _page_spec(group, page, shape.guesses, latents=at in shape.latents))
        for at, group in enumerate(shape.groups)
    ]
    for each, group in zip(groups, shape.groups, strict=True):
        if isinstance(group, FullAttention | SlidingWindow) and group.drafter:
            each.is_eagle_group = True
    names = [name for group in groups for name in group.layer_names]
    if "shared_by" in KVCacheTensor.__dataclass_fields__:
        tensors = [KVCacheTensor(size=size, shared_by=names)]
    else:
        tensors = [KVCacheTensor(size=size, layers=[name], layer_stride=size, block_stride=page) for name in names]
    return KVCacheConfig(num_blocks=shape.num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)


def config_of(shape: Shape) -> VllmConfig:
    """The configuration of the whole engine."""
    block_tokens = min(group.block_tokens for group in shape.groups if not isinstance(group, Ring))
    caching = CacheConfig(block_size=block_tokens, enable_prefix_caching=shape.prefix_caching)
    caching.kv_cache_layout = "LBNHC"
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            policy="priority" if shape.priority else "fcfs",
            long_prefill_token_threshold=shape.part_tokens,
        ),
        cache_config=caching,
        device_config=DeviceConfig("cpu"),
        model_config=ModelConfig(model=_model(), dtype="float16", seed=0, skip_tokenizer_init=True),
        kv_transfer_config=shape.transfer,
    )
    # Set again, because a configuration changes with the platform that it finds.
    config.scheduler_config.async_scheduling = shape.asynchronous
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.parallel_config.world_size = shape.num_workers
    if shape.alike > 1:
        config.parallel_config.tensor_parallel_size = shape.num_workers
        config.parallel_config.distributed_executor_backend = "mp"
        model = config.model_config.model_arch_config
        model.total_num_kv_heads, model.architectures = shape.num_workers // shape.alike, ["LlamaForCausalLM"]
    config.cache_config.num_gpu_blocks = shape.num_blocks
    config.cache_config.block_size = block_tokens
    config.cache_config.enable_prefix_caching = shape.prefix_caching
    if shape.hash_tokens is not None:
        config.cache_config.prefix_match_unit = shape.hash_tokens
    if any(isinstance(group, Mamba) for group in shape.groups):
        config.cache_config.mamba_cache_mode = "align"
    if shape.keeps_every_block and hasattr(config.cache_config, "prefix_cache_retention_interval"):
        config.cache_config.prefix_cache_retention_interval = None
    return config


def chunk_bytes(shape: Shape, blocks_per_chunk: int) -> int:
    """The host memory, on all workers, that vLLM's OffloadingConnector takes for one chunk."""
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

    alignment: int = getattr(CPUOffloadingSpec, "BLOCK_SIZE_ALIGNMENT", 1)
    return -(-shape.page_bytes * shape.num_workers * blocks_per_chunk // alignment) * alignment


def scheduler_of(config: VllmConfig, cache: KVCacheConfig) -> tuple[Scheduler, int]:
    """vLLM's scheduler, and how many tokens one of its hashes covers."""
    with set_current_vllm_config(config):
        block_tokens, hash_tokens = kv_cache_utils.resolve_kv_cache_block_sizes(cache, config)
        if hasattr(cache, "prefix_cache_retention_interval"):  # newer releases fill this in once the engine knows it
            cache.prefix_cache_retention_interval = config.cache_config.prefix_cache_retention_interval
        if hasattr(cache, "cache_hit_alignment_tokens"):  # and these since 0.32
            alignment = kv_cache_utils.resolve_cache_hit_alignment_tokens(cache, config, block_tokens, hash_tokens)
            cache.hash_block_size, cache.cache_hit_alignment_tokens = hash_tokens, alignment
        kind = AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler
        scheduler = kind(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_tokens,
            hash_block_size=hash_tokens,
            log_stats=True,
        )
    return scheduler, int(hash_tokens)


def hasher_of(hash_tokens: int) -> Callable[[Request], list[bytes]]:
    """The function that computes a request's block hashes, each of this many tokens."""
    hasher: Callable[[Request], list[bytes]] = kv_cache_utils.get_request_block_hasher(hash_tokens, sha256)
    return hasher


def request_of(
    name: str,
    prompt: Sequence[int],
    num_said: int,
    hasher: Callable[[Request], list[bytes]],
    priority: int = 0,
    salt: str | None = None,
    *,
    adapter: str | None = None,
    images: Sequence[tuple[str, int, int]] = (),
    transfer: Mapping[str, object] | None = None,
) -> Request:
    """A request that ends only by its length. A smaller *priority* goes first.

    Content is shared under the same *salt*, LoRA *adapter* and *images* only: of each its id, where it begins, and its tokens.
    *transfer*: its parameters for the connector.
    """
    told = None if transfer is None else {"kv_transfer_params": dict(transfer)}
    sampling = SamplingParams(max_tokens=num_said, ignore_eos=True, extra_args=told)
    sampling.update_from_generation_config({}, _END_OF_TEXT)
    return Request(
        request_id=name,
        prompt_token_ids=list(prompt),
        sampling_params=sampling,
        pooling_params=None,
        block_hasher=hasher,
        priority=priority,
        cache_salt=salt,
        lora_request=None if adapter is None else LoRARequest(adapter, 1, f"/adapters/{adapter}"),
        mm_features=[MultiModalFeatureSpec(None, "image", each, PlaceholderRange(at, size)) for each, at, size in images],
    )
