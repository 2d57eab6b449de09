"""A request whose text is one chunk longer than the CPU tier, and lies in the file-system tier below it, never starts.

Plain vLLM 0.33.0, scheduler side: no GPU, no model. The worker is imitated: its copies land in the step that launches them. The
tier's threads get all the time they want between two steps. Exit status: 0 if the fault shows, else 1.
"""

import argparse
import os
import sys
import tempfile
import time
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
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS, HOST, STEPS = 16, 32, 4, 200


def new_scheduler(files: str) -> Scheduler:
    full = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=32, dtype=torch.float32)
    page = full.page_size_bytes
    below = {"type": "fs", "root_dir": files, "n_read_threads": 1, "n_write_threads": 1}
    tiers = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": HOST * page, "secondary_tiers": [below]}
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text('{"architectures": ["OPTForCausalLM"], "model_type": "opt"}')
        limits = {"max_num_seqs": 4, "max_num_batched_tokens": 16}
        config = VllmConfig(
            model_config=ModelConfig(model, skip_tokenizer_init=True, dtype="float16"),
            cache_config=CacheConfig(block_size=BLOCK),
            scheduler_config=SchedulerConfig(max_model_len=2048, is_encoder_decoder=False, async_scheduling=False, **limits),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig("OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=tiers),
        )
    tensors = [KVCacheTensor(BLOCKS * page, ["full"], layer_stride=BLOCKS * page, block_stride=page)]
    cache = KVCacheConfig(BLOCKS, tensors, [KVCacheGroupSpec(["full"], full)], prefix_cache_retention_interval=0)
    config.cache_config.num_gpu_blocks = BLOCKS
    init_none_hash(sha256)
    return Scheduler(config, cache, StructuredOutputManager(config), block_size=BLOCK)


def ask(scheduler: Scheduler, name: str) -> int:
    """A request for a text of five chunks and a half. Returns the steps that schedule nothing, of the first so many."""
    params, hasher = SamplingParams(max_tokens=1, ignore_eos=True), get_request_block_hasher(BLOCK, sha256)
    scheduler.add_request(Request(name, [1] * (HOST * BLOCK + BLOCK + 8), params, None, block_hasher=hasher))
    (tier,), nothing = scheduler.connector.connector_scheduler.manager.secondary_tiers, 0
    for _ in range(STEPS):
        if not scheduler.has_requests():
            break
        output, requests = scheduler.schedule(), scheduler.requests
        meta, names = output.kv_connector_metadata, list(output.num_scheduled_tokens)
        nothing += not names
        said = [[7] if requests[each].num_computed_tokens == requests[each].num_tokens else [] for each in names]
        landed = OffloadingWorkerMetadata(dict.fromkeys([*meta.store_jobs, *meta.load_jobs], 1))
        told = KVConnectorOutput({}, {job.req_id for job in meta.load_jobs.values()}, kv_connector_worker_meta=landed)
        result = ModelRunnerOutput(names, {each: at for at, each in enumerate(names)}, said, kv_connector_output=told)
        scheduler.update_from_output(output, result)
        time.sleep(0.002)  # the thread that looks files up
        tier.drain_jobs()
    return nothing


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine = new_scheduler(folder)
        ask(engine, "a")
        chunks = len(list(Path(folder).rglob("*.bin")))
        engine.reset_prefix_cache()
        waited, waiting = ask(engine, "b"), [f"{name} {each.status.name}" for name, each in engine.requests.items()]
        engine.connector.shutdown()
    print(f"vLLM {__version__}: {chunks} chunks in files, {HOST} slots; {waited} steps schedule nothing; waiting: {waiting}")
    sys.exit(not waiting)
