"""The last token of a prompt that is loaded whole is computed with an empty ring of raw keys.

Plain vLLM 0.33.0, scheduler side: no GPU, no model. The worker is imitated. All tokens of a text are alike, so that KV is a
pair: the token, and how many stand before it. It is written, copied and compared. Exit status: 0 if the fault shows, else 1.
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
from vllm.v1.kv_cache_interface import CircularBufferSpec, FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, POOL, BLOCKS = 16, 4, 1000
device: dict[tuple[int, int], tuple[int, int]] = {}
host: dict[tuple[int, int], tuple[int, int]] = {}
wrong: list[str] = []


def new_scheduler() -> Scheduler:
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text('{"architectures": ["OPTForCausalLM"], "model_type": "opt"}')
        tier = {"cpu_bytes_to_use": 100 * 4096}
        config = VllmConfig(
            model_config=ModelConfig(model, skip_tokenizer_init=True, dtype="float16"),
            cache_config=CacheConfig(block_size=BLOCK),
            scheduler_config=SchedulerConfig(max_model_len=2048, is_encoder_decoder=False, async_scheduling=False),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig("OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=tier),
        )
    kind = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    layers = {"full": FullAttentionSpec(**kind), "ring": CircularBufferSpec(**kind)}
    page = layers["full"].page_size_bytes
    tensors = [KVCacheTensor(BLOCKS * page, [name], layer_stride=BLOCKS * page, block_stride=page) for name in layers]
    groups = [KVCacheGroupSpec([name], spec) for name, spec in layers.items()]
    cache = KVCacheConfig(BLOCKS, tensors, groups, prefix_cache_retention_interval=0)
    config.cache_config.num_gpu_blocks = BLOCKS
    init_none_hash(sha256)
    return Scheduler(config, cache, StructuredOutputManager(config), block_size=BLOCK)


def run(scheduler: Scheduler, name: str, token: int, prompt: int) -> None:
    params, hasher = SamplingParams(max_tokens=1, ignore_eos=True), get_request_block_hasher(BLOCK, sha256)
    scheduler.add_request(Request(name, [token] * prompt, params, None, block_hasher=hasher))
    while scheduler.has_requests():
        output = scheduler.schedule()
        said = [compute(scheduler, *each) for each in output.num_scheduled_tokens.items()]
        meta, names = output.kv_connector_metadata, list(output.num_scheduled_tokens)
        for jobs, source, target in ((meta.store_jobs, device, host), (meta.load_jobs, host, device)):
            for job in jobs.values():
                blocks, chunks = (job.src_spec, job.dst_spec) if target is host else (job.dst_spec, job.src_spec)
                for block, chunk in zip(blocks.block_ids.tolist(), chunks.block_ids.tolist(), strict=True):
                    a, b = (block, chunk) if target is host else (chunk, block)
                    target.update({(b, at): source.get((a, at), (0, 0)) for at in range(BLOCK)})
        done = OffloadingWorkerMetadata(dict.fromkeys([*meta.store_jobs, *meta.load_jobs], 1))
        told = KVConnectorOutput(finished_recving={j.req_id for j in meta.load_jobs.values()}, kv_connector_worker_meta=done)
        result = ModelRunnerOutput(names, {each: at for at, each in enumerate(names)}, said, kv_connector_output=told)
        scheduler.update_from_output(output, result)


def compute(scheduler: Scheduler, name: str, tokens: int) -> list[int]:
    request, stop = scheduler.requests[name], scheduler.requests[name].num_computed_tokens
    token, (table, (ring,)) = request.prompt_token_ids[0], scheduler.kv_cache_manager.get_block_ids(name)
    start = stop - tokens
    for at in range(start // POOL * POOL, start):  # what is compressed together with the first token of the step
        if (found := device.get((ring, at % BLOCK))) != (token, at):
            wrong.append(f"request {name} reads {found} for {(token, at)}")
    device.update({(ring, at % BLOCK): (token, at) for at in range(max(start, stop - BLOCK), stop)})
    device.update({(table[at // BLOCK], at % BLOCK): (token, at) for at in range(start, stop)})
    for at in range(stop):
        if (found := device.get((table[at // BLOCK], at % BLOCK))) != (token, at):
            wrong.append(f"request {name} reads {found} for {(token, at)}")
    return [token] if stop == request.num_tokens else []


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    engine = new_scheduler()
    run(engine, "a", 1, 32)
    engine.reset_prefix_cache()
    run(engine, "b", 1, 32)  # all of its tokens are loaded, and the last one is computed again
    print(f"vLLM {__version__}: {len(wrong)} reads of wrong KV", *wrong[:1], sep=", first: ")
    sys.exit(not wrong)
