"""vLLM's scheduler for a world of the rig, and what has another name or shape from release to release.

Rules of this file and of ``workers``:

* A difference is found by looking at what is there; a version number is asked only where nothing can be seen from outside.
* The scheduler, its managers and the connectors are vLLM's own and unchanged.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from copy import copy
from pathlib import Path

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import vllm
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
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tests.vllm.worlds import GroupSpec, WorldSpec

logging.getLogger("vllm").setLevel(logging.ERROR)

RELEASE: str = vllm.__version__
MINOR = int(RELEASE.split(".")[1])
MAX_MODEL_LEN = 2048
TOKEN_BYTES = 8
"""KV of one token in one group: a key and a value of four bytes each, and one word of a rig's memory."""

QUEUES_EMPTY_STEPS = MINOR >= 33
"""Whether the engine, with asynchronous scheduling, goes on to the next step behind one that schedules nothing."""
DRAINS_SIMPLE = MINOR >= 33
"""Whether the engine goes on while SimpleCPUOffload has stores out; before, they lay until the next request."""

_folders: list[tempfile.TemporaryDirectory[str]] = []


def _model() -> str:
    """A folder that says as much about a model as a scheduler asks; made once, removed when the process ends."""
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(prefix="blocklife-vllm-"))
        config = {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "bos_token_id": 2,
            "eos_token_id": 2,
            "pad_token_id": 1,
            "do_layer_norm_before": True,
            "dropout": 0.1,
            "ffn_dim": 64,
            "hidden_size": 32,
            "max_position_embeddings": MAX_MODEL_LEN,
            "num_attention_heads": 1,
            "num_hidden_layers": 1,
            "torch_dtype": "float16",
            "vocab_size": 50272,
            "word_embed_proj_dim": 32,
        }
        (Path(_folders[0].name) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        init_none_hash(sha256)
    return _folders[0].name


def row_words(groups: Sequence[GroupSpec]) -> int:
    """Words of one block: one a token in the group whose blocks hold most tokens."""
    return max(group.block_tokens for group in groups)


def _page_bytes(spec: WorldSpec) -> int:
    return row_words(spec.groups) * TOKEN_BYTES


def _kv_cache_spec(group: GroupSpec, page_bytes: int) -> KVCacheSpec:
    """vLLM's description of a group. Pages of all groups are of one size, as vLLM wants it: groups share the blocks."""
    if group.kind == "mamba":
        shapes = ((page_bytes // 4,),)
        return MambaSpec(block_size=group.block_tokens, shapes=shapes, dtypes=(torch.float32,), mamba_cache_mode="align")
    heads = page_bytes // (group.block_tokens * TOKEN_BYTES)
    layout = {"block_size": group.block_tokens, "num_kv_heads": heads, "head_size": 1, "dtype": torch.float32}
    return FullAttentionSpec(**layout) if group.window is None else SlidingWindowSpec(sliding_window=group.window, **layout)


def _kv_cache_config(spec: WorldSpec) -> KVCacheConfig:
    page = _page_bytes(spec)
    groups = [KVCacheGroupSpec([f"layer{at}"], _kv_cache_spec(group, page)) for at, group in enumerate(spec.groups)]
    size = page * spec.num_gpu_blocks
    if "shared_by" in KVCacheTensor.__dataclass_fields__:
        tensors = [KVCacheTensor(size=size, shared_by=[name for group in groups for name in group.layer_names])]
    else:
        tensors = [
            KVCacheTensor(size=size, layers=list(group.layer_names), layer_stride=size, block_stride=page) for group in groups
        ]
    return KVCacheConfig(num_blocks=spec.num_gpu_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)


def _host_bytes(spec: WorldSpec) -> int:
    """What *cpu_bytes_to_use* has to be for as many host places as the world has."""
    if spec.connector == "simple":
        return spec.host_blocks * _page_bytes(spec) * spec.world_size
    from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

    chunk = _page_bytes(spec) * spec.world_size * spec.blocks_per_chunk
    alignment = getattr(CPUOffloadingSpec, "BLOCK_SIZE_ALIGNMENT", 1)
    return (spec.host_blocks // spec.blocks_per_chunk) * -(-chunk // alignment) * alignment


def _transfer_config(spec: WorldSpec) -> KVTransferConfig | None:
    if spec.connector is None:
        return None
    extra: dict[str, str | int | float | bool] = {}
    more: dict[str, str] = {}
    if spec.connector == "blocklife":
        name, more = "BlocklifeConnector", {"kv_connector_module_path": "blocklife.engines.vllm"}
        extra["host_blocks"], extra["blocks_per_chunk"] = spec.host_blocks, spec.blocks_per_chunk
    elif spec.connector == "simple":
        name, extra["cpu_bytes_to_use"] = "SimpleCPUOffloadConnector", _host_bytes(spec)
    else:
        name, extra["cpu_bytes_to_use"] = "OffloadingConnector", _host_bytes(spec)
        extra["offload_prompt_only"] = False
        if spec.blocks_per_chunk > 1:
            extra["block_size"] = spec.blocks_per_chunk * spec.groups[0].block_tokens
    extra.update(spec.extra_config)
    return KVTransferConfig(kv_connector=name, kv_role="kv_both", kv_connector_extra_config=extra, engine_id="rig", **more)


def _vllm_config(spec: WorldSpec) -> VllmConfig:
    caching = CacheConfig(block_size=spec.groups[0].block_tokens, enable_prefix_caching=spec.prefix_caching)
    caching.kv_cache_layout = "LBNHC"
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            policy="priority" if spec.priority else "fcfs",
            long_prefill_token_threshold=spec.part_tokens,
        ),
        cache_config=caching,
        device_config=DeviceConfig("cpu"),
        model_config=ModelConfig(model=_model(), dtype="float16", seed=0, skip_tokenizer_init=True),
        kv_transfer_config=_transfer_config(spec),
    )
    # Said again, because a configuration changes with the platform that it finds.
    config.scheduler_config.async_scheduling = spec.async_scheduling
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.parallel_config.world_size = spec.world_size
    config.cache_config.num_gpu_blocks = spec.num_gpu_blocks
    config.cache_config.block_size = min(group.block_tokens for group in spec.groups)
    config.cache_config.enable_prefix_caching = spec.prefix_caching
    if any(group.kind == "mamba" for group in spec.groups):
        config.cache_config.mamba_cache_mode = "align"
    if spec.dense_retention and hasattr(config.cache_config, "prefix_cache_retention_interval"):
        config.cache_config.prefix_cache_retention_interval = None
    return config


def resets_connector(scheduler: Scheduler) -> bool:
    """Whether a reset may include this connector: some say that they cannot, some inherit a method that says nothing."""
    name = type(scheduler.connector).__name__
    return scheduler.connector is not None and (name != "SimpleCPUOffloadConnector" or MINOR >= 33)


class Engine:
    """vLLM's scheduler for a world, with the configuration it was built from."""

    def __init__(self, spec: WorldSpec) -> None:
        self.config = _vllm_config(spec)
        self.kv_cache_config = _kv_cache_config(spec)
        with set_current_vllm_config(self.config):
            block_tokens, hash_tokens = resolve_kv_cache_block_sizes(self.kv_cache_config, self.config)
            self._resolve(block_tokens, hash_tokens)
            kind = AsyncScheduler if spec.async_scheduling else Scheduler
            self.scheduler = kind(
                vllm_config=self.config,
                kv_cache_config=self.kv_cache_config,
                structured_output_manager=StructuredOutputManager(self.config),
                block_size=block_tokens,
                hash_block_size=hash_tokens,
                log_stats=True,
            )
        self._hasher = get_request_block_hasher(hash_tokens, sha256)

    def _resolve(self, block_tokens: int, hash_tokens: int) -> None:
        """Fill in what newer releases keep in the configuration of the cache once the engine knows it."""
        caching, config = self.config.cache_config, self.kv_cache_config
        if hasattr(config, "prefix_cache_retention_interval"):
            from vllm.v1.core.kv_cache_utils import resolve_cache_hit_alignment_tokens

            alignment = resolve_cache_hit_alignment_tokens(config, self.config, block_tokens, hash_tokens)
            config.prefix_cache_retention_interval = caching.prefix_cache_retention_interval
            config.hash_block_size, config.cache_hit_alignment_tokens = hash_tokens, alignment

    def add(self, name: str, prompt: Sequence[int], max_tokens: int, priority: int = 0) -> None:
        """Hand a request to the scheduler; it ends by its length only. A smaller *priority* goes first."""
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sampling.update_from_generation_config({}, 2)
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=list(prompt),
                sampling_params=sampling,
                pooling_params=None,
                block_hasher=self._hasher,
                priority=priority,
            )
        )

    def config_of(self, rank: int) -> VllmConfig:
        """The configuration as this worker's process has it."""
        config = copy(self.config)
        config.parallel_config = copy(self.config.parallel_config)
        config.parallel_config.rank = rank
        return config

    def abort(self, names: Sequence[str]) -> None:
        """End requests as the engine does when a client goes away."""
        self.scheduler.finish_requests(list(names), RequestStatus.FINISHED_ABORTED)

    def host_places(self, spec: WorldSpec) -> int | None:
        """How many blocks the host tier has room for, asked from the tier itself; None where there is nobody to ask."""
        connector = self.scheduler.connector
        if spec.connector == "offloading":
            manager = connector.connector_scheduler.manager
            chunks = getattr(manager, "_num_chunks", None)
            return int(manager._num_blocks if chunks is None else chunks) * spec.blocks_per_chunk
        if spec.connector == "simple":
            return int(connector.scheduler_manager.num_cpu_blocks)
        return None
