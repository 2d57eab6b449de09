"""Lazy stores that never end keep out a request which needs nearly all blocks of the device.

Plain vLLM 0.33.0, scheduler side: no GPU, no model. The worker is imitated: a copy lands one step after its launch.
Exit status: 0 if the fault shows, else 1.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
import torch
from vllm import SamplingParams, __version__
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS, HOST = 16, 4096, 2048
out: dict[int, int] = {}


def new_scheduler() -> Scheduler:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text(
            '{"architectures": ["OPTForCausalLM"], "model_type": "opt", "max_position_embeddings": 65536}'
        )
        tier = {"lazy_offload": True, "cpu_bytes_to_use": HOST * spec.page_size_bytes}
        config = VllmConfig(
            model_config=ModelConfig(model, skip_tokenizer_init=True, dtype="float16"),
            cache_config=CacheConfig(block_size=BLOCK),
            scheduler_config=SchedulerConfig(max_model_len=65536, is_encoder_decoder=False, async_scheduling=False),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig("SimpleCPUOffloadConnector", kv_role="kv_both", kv_connector_extra_config=tier),
        )
    size = BLOCKS * spec.page_size_bytes
    tensors = [KVCacheTensor(size=size, layers=["layer"], layer_stride=size, block_stride=spec.page_size_bytes)]
    cache = KVCacheConfig(BLOCKS, tensors, [KVCacheGroupSpec(["layer"], spec)], prefix_cache_retention_interval=0)
    config.cache_config.num_gpu_blocks = BLOCKS
    init_none_hash(sha256)
    return Scheduler(config, cache, StructuredOutputManager(config), block_size=BLOCK)


def add(scheduler: Scheduler, name: str, token: int, prompt: int) -> None:
    params, hasher = SamplingParams(max_tokens=1, ignore_eos=True), get_request_block_hasher(BLOCK, sha256)
    scheduler.add_request(Request(name, [token] * prompt, params, None, block_hasher=hasher))


def run(scheduler: Scheduler, steps: int) -> int:
    """Steps until the engine is idle, or so many times. Returns what the last steps, which schedule nothing, have stored."""
    stored = 0
    while scheduler.has_requests() and steps:
        output, steps, landed = scheduler.schedule(), steps - 1, dict(out)
        meta, names, requests = output.kv_connector_metadata, list(output.num_scheduled_tokens), scheduler.requests
        stored = 0 if names else stored + len(meta.store_gpu_blocks)
        out.clear()
        out.update({meta.store_event: 1} if meta.store_gpu_blocks else {})
        said = [[7] if requests[each].num_computed_tokens == requests[each].num_tokens else [] for each in names]
        loaded = set(meta.load_event_to_reqs.get(meta.load_event, ()))
        told = KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(landed))
        result = ModelRunnerOutput(names, {each: at for at, each in enumerate(names)}, said, kv_connector_output=told)
        scheduler.update_from_output(output, result)
    return stored


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    engine = new_scheduler()
    for token in range(1, 41):
        add(engine, f"r{token}", token, 1600)
    run(engine, 200)
    add(engine, "big", 99, (BLOCKS - 1) * BLOCK - 1)  # fits into an engine that has just started
    stored = run(engine, 10_000)
    print(f"vLLM {__version__}: waiting {list(engine.requests)}, while steps that schedule nothing store {stored} blocks")
    sys.exit(not engine.requests)
