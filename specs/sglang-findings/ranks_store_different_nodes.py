"""One of two ranks has less host memory and stores less: what the other stores is never counted as landed, and stays locked.

Plain SGLang 0.5.23, hierarchical cache, written through, two processes with torch's own collectives: its admission, batches,
results, pools, prefix tree and cache controller; no GPU, no model. Copies move nothing and land at once. Exit status: 0 if the
fault shows, else 1.
"""

import argparse
import logging
import os
import sys
import tempfile
from array import array

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import sglang
import torch
from sglang.srt import server_args
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor as Processor
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.l2_transfer import L2TransferEngine, TransferCompletion
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.pool_host import base, common
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

SLOTS, HOST = 32, (64, 24)  # of the two ranks


class Off:
    """A collaborator that does nothing, or settings that are all off."""

    def __init__(self, **said: object) -> None:
        vars(self).update(said)

    def __getattr__(self, name: str) -> object:
        return Off()

    def __call__(self, *_: object, **__: object) -> None:
        return None

    def __bool__(self) -> bool:
        return False


L2TransferEngine.submit_device_to_host = lambda *_: TransferCompletion(torch.cpu.Event(), torch.cpu.Event(), False)
common._cuda_host_register, base.HICACHE_HOST_MEMORY_RESERVE_BYTES = lambda *_: None, 0


class Engine:
    def __init__(self, host: int) -> None:
        options = {"device": "cpu", "attention_backend": "torch_native", "page_size": 1, "disable_overlap_schedule": True}
        options |= {
            "hicache_write_policy": "write_through",
            "hicache_io_backend": "direct",
            "hicache_mem_layout": "layer_first",
        }
        arguments = server_args.ServerArgs("dummy", enable_hierarchical_cache=True, hicache_ratio=host / SLOTS, **options)
        server_args.set_global_server_args_for_scheduler(arguments)
        shape = {"head_num": 1, "head_dim": 1, "layer_num": 1, "device": "cpu", "enable_memory_saver": False}
        self.rows = ReqToTokenPool(4, 64, "cpu", False)
        self.kv = TokenToKVPoolAllocator(SLOTS, torch.float32, "cpu", MHATokenToKVPool(SLOTS, 1, torch.float32, **shape), False)
        params = CacheInitParams(
            False,
            self.rows,
            self.kv,
            page_size=1,
            tp_cache_group=torch.distributed.group.WORLD,
            tree_components=(ComponentType.FULL,),
        )
        self.tree, self.model = UnifiedRadixCache(params), Off(vocab_size=100)
        self.tree.init_hicache(arguments, params)
        said = {"is_generation": True, "tree_cache": self.tree, "req_to_token_pool": self.rows}
        said |= {"token_to_kv_pool_allocator": self.kv, "metrics_reporter": Off(num_generated_tokens=0, forward_ct_decode=0)}
        self.results = Processor(**{name: said.get(name, Off()) for name in Processor.__dataclass_fields__})

    def admitted(self, name: str, prompt: list[int], answer: int) -> ScheduleBatch:
        """A request's prompt, as one batch."""
        params = SamplingParams(max_new_tokens=answer)
        params.normalize(None)
        request = Req(name, "", array("q", prompt), params, vocab_size=100, eos_token_ids=set())
        request.init_next_round_input(self.tree)
        adder = PrefillAdder(1, self.tree, self.kv, None, 1.0, 1000, None)
        adder.add_one_req(request, False, None)
        batch = ScheduleBatch.init_new(
            adder.can_run_list, self.rows, self.kv, self.tree, self.model, False, SpeculativeAlgorithm.NONE
        )
        batch.prepare_for_extend()
        return batch

    def processed(self, batch: ScheduleBatch) -> None:
        process = getattr(self.results, "process_batch_result_" + ("decode" if batch.forward_mode.is_decode() else "prefill"))
        process(batch, GenerationBatchResult(next_token_ids=torch.tensor([7])))
        self.tree.check_hicache_events()


def rank(number: int, folder: str) -> int:
    """One of two ranks, a process; both get the same requests. Returns its exit status."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=number, world_size=2)
    engine = Engine(HOST[number])
    for token in range(5):
        engine.processed(engine.admitted(f"{token}", [token] * 8, 1))
    for _ in range(100):  # no request is left, and every copy has landed
        engine.tree.check_hicache_events()
    each: list[tuple[int, int]] = [(0, 0)] * 2
    torch.distributed.all_gather_object(each, (len(engine.tree.ongoing_write_through), engine.tree.protected_size()))
    if not number:
        said = "; ".join(
            f"rank {at} waits for {waits} stores, which lock {locked} tokens" for at, (waits, locked) in enumerate(each)
        )
        print(f"SGLang {sglang.__version__}: 100 steps later {said}", flush=True)
    return not any(waits for waits, _ in each)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        if not (child := os.fork()):
            os._exit(rank(1, folder))
        status = rank(0, folder)
        os.waitpid(child, 0)
    sys.exit(status)
