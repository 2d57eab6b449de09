"""An allocation fails behind the check that has let it pass: one block too few is counted for a Mamba state.

Plain vLLM 0.33.0, scheduler side: no GPU, no model. The worker is imitated: its copies land in the step that launches them.
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
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor, MambaSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS = 16, 10


def new_scheduler() -> Scheduler:
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text('{"architectures": ["OPTForCausalLM"], "model_type": "opt"}')
        tier = {"cpu_bytes_to_use": 1 << 24, "sync_load_budget_bytes": 1 << 16}
        config = VllmConfig(
            model_config=ModelConfig(model, skip_tokenizer_init=True, dtype="float16"),
            cache_config=CacheConfig(block_size=BLOCK, mamba_cache_mode="align"),
            scheduler_config=SchedulerConfig(max_model_len=2048, is_encoder_decoder=False, async_scheduling=False),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig("OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=tier),
        )
    full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    state = MambaSpec(block_size=BLOCK, shapes=((32,),), dtypes=(torch.float32,), mamba_cache_mode="align")
    layers = {"full": full, "state": state}
    page = full.page_size_bytes
    tensors = [KVCacheTensor(BLOCKS * page, [name], layer_stride=BLOCKS * page, block_stride=page) for name in layers]
    groups = [KVCacheGroupSpec([name], spec) for name, spec in layers.items()]
    cache = KVCacheConfig(BLOCKS, tensors, groups, prefix_cache_retention_interval=0)
    config.cache_config.num_gpu_blocks = BLOCKS
    init_none_hash(sha256)
    return Scheduler(config, cache, StructuredOutputManager(config), block_size=BLOCK)


def add(scheduler: Scheduler, name: str, token: int, prompt: int, answer: int) -> None:
    params, hasher = SamplingParams(max_tokens=answer, ignore_eos=True), get_request_block_hasher(BLOCK, sha256)
    scheduler.add_request(Request(name, [token] * prompt, params, None, block_hasher=hasher))


def run(scheduler: Scheduler, steps: int = 100) -> None:
    while scheduler.has_requests() and steps:
        output, steps = scheduler.schedule(), steps - 1
        meta, names, requests = output.kv_connector_metadata, list(output.num_scheduled_tokens), scheduler.requests
        said = [[7] if requests[each].num_computed_tokens == requests[each].num_tokens else [] for each in names]
        landed = OffloadingWorkerMetadata(dict.fromkeys([*meta.store_jobs, *meta.load_jobs], 1))
        loaded = {job.req_id for job in meta.load_jobs.values() if not job.sync}
        told = KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=landed)
        result = ModelRunnerOutput(names, {each: at for at, each in enumerate(names)}, said, kv_connector_output=told)
        scheduler.update_from_output(output, result)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    engine = new_scheduler()
    add(engine, "a", 1, 40, 1)
    run(engine)
    engine.reset_prefix_cache()
    add(engine, "b", 2, 48, 4)
    run(engine, steps=2)  # leaves four blocks free
    add(engine, "c", 1, 40, 1)
    fallen = ""
    try:
        run(engine)
    except ValueError as error:
        fallen = f"schedule() raises {error!r}"
    print(f"vLLM {__version__}: {fallen or 'every request has ended'}")
    sys.exit(not fallen)
