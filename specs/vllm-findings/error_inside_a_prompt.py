"""A request that ends with an error inside its prompt stores a block that is computed in part under the key of the whole.

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
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.utils.hashing import sha256
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK, BLOCKS, STEP, AT = 16, 48, 40, 40
device: dict[tuple[int, int], tuple[int, int]] = {}
host: dict[tuple[int, int], tuple[int, int]] = {}
wrong: list[str] = []


def new_scheduler() -> Scheduler:
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text('{"architectures": ["OPTForCausalLM"], "model_type": "opt"}')
        tier, limits = {"cpu_bytes_to_use": 1 << 24}, {"max_model_len": 2048, "max_num_batched_tokens": STEP}
        config = VllmConfig(
            model_config=ModelConfig(model, skip_tokenizer_init=True, dtype="float16"),
            cache_config=CacheConfig(block_size=BLOCK),
            scheduler_config=SchedulerConfig(is_encoder_decoder=False, async_scheduling=False, max_num_seqs=8, **limits),
            device_config=DeviceConfig("cpu"),
            kv_transfer_config=KVTransferConfig("OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=tier),
        )
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    size = BLOCKS * spec.page_size_bytes
    tensors = [KVCacheTensor(size=size, layers=["layer"], layer_stride=size, block_stride=spec.page_size_bytes)]
    cache = KVCacheConfig(BLOCKS, tensors, [KVCacheGroupSpec(["layer"], spec)], prefix_cache_retention_interval=0)
    config.cache_config.num_gpu_blocks = BLOCKS
    init_none_hash(sha256)
    scheduler = Scheduler(config, cache, StructuredOutputManager(config), block_size=BLOCK)
    # What a multimodal model would have instead of this one's nothing: room for 64 embeddings.
    scheduler.max_num_encoder_input_tokens, scheduler.encoder_cache_manager = 64, EncoderCacheManager(64)
    return scheduler


def add(scheduler: Scheduler, name: str, token: int, prompt: int, image: tuple[int, int] | None = None) -> None:
    params, hasher = SamplingParams(max_tokens=1, ignore_eos=True), get_request_block_hasher(BLOCK, sha256)
    images = [] if image is None else [MultiModalFeatureSpec(None, "image", "my cat", PlaceholderRange(*image))]
    scheduler.add_request(Request(name, [token] * prompt, params, None, mm_features=images, block_hasher=hasher))


def run(scheduler: Scheduler) -> None:
    while scheduler.has_requests():
        output = scheduler.schedule()
        said = [compute(scheduler, *each) for each in output.num_scheduled_tokens.items()]
        meta, names = output.kv_connector_metadata, list(output.num_scheduled_tokens)
        for jobs, source, target in ((meta.store_jobs, device, host), (meta.load_jobs, host, device)):
            for job in jobs.values():
                for a, b in zip(job.src_spec.block_ids.tolist(), job.dst_spec.block_ids.tolist(), strict=True):
                    target.update({(b, at): source.get((a, at), (0, 0)) for at in range(BLOCK)})
        landed = OffloadingWorkerMetadata(dict.fromkeys([*meta.store_jobs, *meta.load_jobs], 1))
        loaded = {job.req_id for job in meta.load_jobs.values()}
        told = KVConnectorOutput(finished_recving=loaded, kv_connector_worker_meta=landed)
        result = ModelRunnerOutput(names, {each: at for at, each in enumerate(names)}, said, kv_connector_output=told)
        scheduler.update_from_output(output, result)


def compute(scheduler: Scheduler, name: str, tokens: int) -> list[int]:
    request, (table,) = scheduler.requests[name], scheduler.kv_cache_manager.get_block_ids(name)
    stop, token = request.num_computed_tokens, request.prompt_token_ids[0]
    device.update({(table[at // BLOCK], at % BLOCK): (token, at) for at in range(stop - tokens, stop)})
    for at in range(stop):
        if (found := device.get((table[at // BLOCK], at % BLOCK))) != (token, at):
            wrong.append(f"request {name} reads {found} for {(token, at)}")
    return [token] if stop == request.num_tokens else []


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    engine = new_scheduler()
    for user, text, image in (("x", 2, (0, 8)), ("a", 1, (AT, 12)), ("b", 1, (AT, 8))):  # a's image has the id of x's
        add(engine, user, text, 720 if user == "x" else 80, image)
        run(engine)
    print(f"vLLM {__version__}: {len(wrong)} reads of wrong KV", *wrong[:1], sep=", first: ")
    sys.exit(not wrong)
