"""vLLM's own scheduler for the world of a scenario, with one of its offloading connectors and without a model.

Rules of this file:

* It imports vLLM, and is imported by `driver` alone, once somebody wants to drive one.
* A difference between releases is found by looking at what is there. Nothing of vLLM is replaced.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

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
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
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
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from blocklife.offload import FullAttention, Geometry, SlidingWindow
from blocklife.offload.groups import Group
from blocklife.testing.scenarios.driver import World

logging.getLogger("vllm").setLevel(logging.ERROR)

RELEASE: str = vllm.__version__
MODEL_TOKENS_MAX = 2048
_TOKEN_BYTES = 8
"""KV of one token in one group: a key and a value of four bytes each."""
_END_OF_TEXT = 2
_SHAPE = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 32,
    "ffn_dim": 64,
    "word_embed_proj_dim": 32,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": MODEL_TOKENS_MAX,
    "vocab_size": 50272,
    "torch_dtype": "float16",
    "eos_token_id": _END_OF_TEXT,
}
"""As much of a model as a scheduler's configuration asks for."""

_folders: list[tempfile.TemporaryDirectory[str]] = []


def _model() -> str:
    """The folder of that model; made once, removed when the process ends."""
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(prefix="blocklife-vllm-"))
        (Path(_folders[0].name) / "config.json").write_text(json.dumps(_SHAPE), encoding="utf-8")
        kv_cache_utils.init_none_hash(sha256)
    return _folders[0].name


class Engine:
    """vLLM's scheduler for a world. *simple* says which of the two connectors it offloads with."""

    def __init__(self, world: World, *, simple: bool) -> None:
        self.geometry = Geometry.parse(world.groups, world.blocks_per_chunk)
        self.simple = simple
        self._page_bytes = max(self.geometry.block_tokens) * _TOKEN_BYTES
        self.config = self._config(world)
        self.cache = self._cache(world.blocks + 1)
        with set_current_vllm_config(self.config):
            block_tokens, hash_tokens = kv_cache_utils.resolve_kv_cache_block_sizes(self.cache, self.config)
            self._resolve(block_tokens, hash_tokens)
            self.hash_tokens: int = hash_tokens
            kind = AsyncScheduler if world.scheduling == "async" else Scheduler
            self.scheduler = kind(
                vllm_config=self.config,
                kv_cache_config=self.cache,
                structured_output_manager=StructuredOutputManager(self.config),
                block_size=block_tokens,
                hash_block_size=hash_tokens,
                log_stats=True,
            )
        self._hasher = kv_cache_utils.get_request_block_hasher(hash_tokens, sha256)
        self._aggregator = KVOutputAggregator.from_connector(self.scheduler.connector, world.workers)

    def request(self, name: str, prompt: Sequence[int], num_said: int) -> Request:
        """A request that ends by its length only."""
        sampling = SamplingParams(max_tokens=num_said, ignore_eos=True)
        sampling.update_from_generation_config({}, _END_OF_TEXT)
        return Request(
            request_id=name,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=self._hasher,
        )

    def end(self, request: str, *, aborted: bool) -> None:
        """As the engine does when a client goes away, or when what a request says has come to a stop."""
        status = RequestStatus.FINISHED_ABORTED if aborted else RequestStatus.FINISHED_STOPPED
        self.scheduler.finish_requests([request], status)

    def schedule(self, budget: int | None, *, newcomers: bool) -> SchedulerOutput:
        """One step with so many tokens at most, and with nobody new if there are to be no *newcomers*."""
        scheduler, most = self.scheduler, self.scheduler.max_num_scheduled_tokens
        pause = PauseState.PAUSED_ALL if budget == 0 else PauseState.UNPAUSED if newcomers else PauseState.PAUSED_NEW
        scheduler.set_pause_state(pause)
        scheduler.max_num_scheduled_tokens = min(most, budget or most)
        try:
            return scheduler.schedule()
        finally:
            scheduler.set_pause_state(PauseState.UNPAUSED)
            scheduler.max_num_scheduled_tokens = most

    def update(
        self, output: SchedulerOutput, tokens: Mapping[str, Sequence[int]], answers: Sequence[KVConnectorOutput]
    ) -> set[str]:
        """Take in what every worker has said of a step. Returns the requests whose loads all of them have done."""
        names = list(tokens)
        results = []
        for answer in answers:
            result = ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: at for at, name in enumerate(names)},
                sampled_token_ids=[list(each) for each in tokens.values()],
            )
            result.kv_connector_output = answer
            results.append(result)
        merged = self._aggregator.aggregate(results)
        self.scheduler.update_from_output(output, merged)
        return set(merged.kv_connector_output.finished_recving or ())

    def _config(self, world: World) -> VllmConfig:
        block_tokens = min(self.geometry.block_tokens)
        cache = CacheConfig(block_size=block_tokens, enable_prefix_caching=True)
        cache.kv_cache_layout = "LBNHC"
        config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=64,
                max_num_batched_tokens=MODEL_TOKENS_MAX,
                max_model_len=MODEL_TOKENS_MAX,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                long_prefill_token_threshold=world.step_tokens,
            ),
            cache_config=cache,
            device_config=DeviceConfig("cpu"),
            model_config=ModelConfig(model=_model(), dtype="float16", seed=0, skip_tokenizer_init=True),
            kv_transfer_config=self._transfer(world),
        )
        # Said again, because a configuration changes with the platform that it finds.
        config.scheduler_config.async_scheduling = world.scheduling == "async"
        config.scheduler_config.disable_hybrid_kv_cache_manager = False
        config.parallel_config.world_size = world.workers
        config.cache_config.num_gpu_blocks = world.blocks + 1
        config.cache_config.block_size = block_tokens
        config.cache_config.enable_prefix_caching = True
        if "mamba" in world.groups:
            config.cache_config.mamba_cache_mode = "align"
        if hasattr(config.cache_config, "prefix_cache_retention_interval"):
            config.cache_config.prefix_cache_retention_interval = None  # keep every block, as older releases do
        return config

    def _transfer(self, world: World) -> KVTransferConfig:
        extra: dict[str, str | int | bool] = {"cpu_bytes_to_use": self._host_bytes(world)}
        if self.simple:
            extra["lazy_offload"] = world.mode == "lazy"
        else:
            extra |= {"eviction_policy": world.replacement, "offload_prompt_only": world.prompt_only}
            if world.blocks_per_chunk > 1:
                extra["block_size"] = world.blocks_per_chunk * self.geometry.block_tokens[0]
        return KVTransferConfig(
            kv_connector="SimpleCPUOffloadConnector" if self.simple else "OffloadingConnector",
            kv_role="kv_both",
            kv_connector_extra_config=extra,
            engine_id="blocklife",
        )

    def _host_bytes(self, world: World) -> int:
        """What a host tier of so many slots takes. The simple connector has a null block there, too."""
        if self.simple:
            return (world.slots + 1) * self._page_bytes * world.workers
        from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

        chunk = self._page_bytes * world.workers * world.blocks_per_chunk
        alignment: int = getattr(CPUOffloadingSpec, "BLOCK_SIZE_ALIGNMENT", 1)
        return world.slots * -(-chunk // alignment) * alignment

    def _cache(self, num_blocks: int) -> KVCacheConfig:
        page, size = self._page_bytes, self._page_bytes * num_blocks
        groups = [KVCacheGroupSpec([f"layer{at}"], self._group(group)) for at, group in enumerate(self.geometry.groups)]
        names = [name for group in groups for name in group.layer_names]
        if "shared_by" in KVCacheTensor.__dataclass_fields__:
            tensors = [KVCacheTensor(size=size, shared_by=names)]
        else:
            tensors = [KVCacheTensor(size=size, layers=[name], layer_stride=size, block_stride=page) for name in names]
        return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=tensors, kv_cache_groups=groups)

    def _group(self, group: Group) -> KVCacheSpec:
        """vLLM's description of a group. Pages of all groups have one size: blocks are handed from one group to another."""
        heads = self._page_bytes // (group.block_tokens * _TOKEN_BYTES)
        layout = {"block_size": group.block_tokens, "num_kv_heads": heads, "head_size": 1, "dtype": torch.float32}
        if isinstance(group, FullAttention):
            return FullAttentionSpec(**layout)
        if isinstance(group, SlidingWindow):
            return SlidingWindowSpec(sliding_window=group.window_tokens, **layout)
        shapes = ((self._page_bytes // 4,),)
        return MambaSpec(block_size=group.block_tokens, shapes=shapes, dtypes=(torch.float32,), mamba_cache_mode="align")

    def _resolve(self, block_tokens: int, hash_tokens: int) -> None:
        """Fill in what newer releases keep in the configuration of the cache once the engine knows it."""
        if hasattr(self.cache, "prefix_cache_retention_interval"):
            self.cache.prefix_cache_retention_interval = self.config.cache_config.prefix_cache_retention_interval
            self.cache.hash_block_size = hash_tokens
            self.cache.cache_hit_alignment_tokens = kv_cache_utils.resolve_cache_hit_alignment_tokens(
                self.cache, self.config, block_tokens, hash_tokens
            )
