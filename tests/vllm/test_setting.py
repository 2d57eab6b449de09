"""What runs here is the release that was asked for, on the CPU platform, with its real scheduler.

Method: nothing of vLLM is replaced. One request is scheduled to its end by vLLM's own scheduler; only the worker, which would
need a model, is a constant.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import torch
import vllm
from vllm import SamplingParams
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.platforms import current_platform
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, NUM_BLOCKS, PROMPT, OUTPUT = 16, 64, 40, 3


def a_scheduler(model: str) -> Scheduler:
    """vLLM's scheduler over a small pool of one full-attention group."""
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = NUM_BLOCKS
    limits = SchedulerConfig(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=1024,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
    )
    limits.async_scheduling = False
    settings = VllmConfig(
        scheduler_config=limits,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
        model_config=ModelConfig(model=model, dtype="float16"),
    )
    group = KVCacheGroupSpec(["layer"], FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32))
    pool = KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=[], kv_cache_groups=[group])
    return Scheduler(
        vllm_config=settings,
        kv_cache_config=pool,
        structured_output_manager=StructuredOutputManager(settings),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


def a_request(name: str) -> Request:
    """A request for three tokens, whatever they are."""
    wanted = SamplingParams(max_tokens=OUTPUT, ignore_eos=True)
    wanted.update_from_generation_config({}, 2)
    init_none_hash(sha256)
    return Request(
        request_id=name,
        prompt_token_ids=list(range(PROMPT)),
        sampling_params=wanted,
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


def test_release_is_the_one_asked_for_and_runs_on_the_cpu() -> None:
    """The sources, the stand-in metadata and the folder agree on the version; the platform is the CPU."""
    folder = Path(vllm.__file__).parents[1]

    assert vllm.__version__ == folder.name
    assert importlib.metadata.version("vllm") == f"{folder.name}+cpu"
    assert os.environ["PYTHONPATH"].startswith(str(folder))
    assert current_platform.is_cpu()


def test_real_scheduler_brings_a_request_to_its_end(opt_125m: str) -> None:
    """A prompt in one step, then a token a step; the blocks that it held are free afterwards."""
    scheduler = a_scheduler(opt_125m)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    scheduler.add_request(a_request("a"))
    scheduled, held = list[int](), list[int]()
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        names = list(plan.num_scheduled_tokens)
        scheduled.append(plan.total_num_scheduled_tokens)
        held.append(free - scheduler.kv_cache_manager.block_pool.get_num_free_blocks())
        answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[7] for _ in names],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=None,
        )
        scheduler.update_from_output(plan, answer)

    assert scheduled == [PROMPT, 1, 1]
    assert held == [3, 3, 3]
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
