"""A request is admitted with memory of the windows that its own load then locks, and the scheduler ends.

Plain SGLang 0.5.23, a sliding window, hierarchical cache: its admission, batches, results, pools, prefix tree and cache
controller; no GPU, no model. Copies move nothing and land at once. Exit status: 0 if the fault shows, else 1.
"""

import argparse
import logging
import os
import sys
from array import array

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import sglang
import torch
from sglang.srt import server_args
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor as Processor
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.l2_transfer import L2TransferEngine, TransferCompletion
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.pool_host import base, common
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

SLOTS, NEAR, WINDOW = 64, 40, 8


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


L2TransferEngine.submit_device_to_host = L2TransferEngine.submit_host_to_device = lambda *_, **__: TransferCompletion(
    torch.cpu.Event(), torch.cpu.Event(), False
)
common._cuda_host_register, base.HICACHE_HOST_MEMORY_RESERVE_BYTES = lambda *_: None, 0


class Engine:
    def __init__(self) -> None:
        options = {"device": "cpu", "attention_backend": "torch_native", "page_size": 1, "disable_overlap_schedule": True}
        options |= {
            "hicache_write_policy": "write_through",
            "hicache_io_backend": "direct",
            "hicache_mem_layout": "layer_first",
        }
        arguments = server_args.ServerArgs("dummy", enable_hierarchical_cache=True, hicache_ratio=2.0, **options)
        server_args.set_global_server_args_for_scheduler(arguments)
        sizes = {"size": SLOTS, "size_swa": NEAR, "page_size": 1, "dtype": torch.float32, "device": "cpu"}
        layers = {"full_attention_layer_ids": [0], "swa_attention_layer_ids": [1]}
        pool = SWAKVPool(head_num=1, head_dim=1, **sizes, **layers)
        self.rows, self.kv = (
            ReqToTokenPool(4, 64, "cpu", False),
            SWATokenToKVPoolAllocator(kvcache=pool, need_sort=False, **sizes),
        )
        params = CacheInitParams(
            False,
            self.rows,
            self.kv,
            page_size=1,
            sliding_window_size=WINDOW,
            tree_components=(ComponentType.FULL, ComponentType.SWA),
        )
        self.tree, self.model = UnifiedRadixCache(params), Off(vocab_size=100)
        self.tree.init_hicache(arguments, params)
        self.tree.load_back_threshold = 1
        said = {"is_generation": True, "tree_cache": self.tree, "req_to_token_pool": self.rows}
        said |= {"token_to_kv_pool_allocator": self.kv, "metrics_reporter": Off(num_generated_tokens=0, forward_ct_decode=0)}
        self.results = Processor(**{name: said.get(name, Off()) for name in Processor.__dataclass_fields__})

    def admitted(self, prompt: list[int]) -> ScheduleBatch | None:
        """A request's prompt, as one batch; None if it is to wait."""
        params = SamplingParams(max_new_tokens=1)
        params.normalize(None)
        request = Req("a request", "", array("q", prompt), params, vocab_size=100, eos_token_ids=set())
        request.init_next_round_input(self.tree)
        adder = PrefillAdder(1, self.tree, self.kv, None, 1.0, 1000, None)
        adder.add_one_req(request, False, None)
        if not adder.can_run_list:
            return None
        batch = ScheduleBatch.init_new(
            adder.can_run_list, self.rows, self.kv, self.tree, self.model, False, SpeculativeAlgorithm.NONE
        )
        self.tree.ready_to_load_host_cache()
        batch.prepare_for_extend()
        return batch

    def processed(self, batch: ScheduleBatch) -> None:
        process = getattr(self.results, "process_batch_result_" + ("decode" if batch.forward_mode.is_decode() else "prefill"))
        process(batch, GenerationBatchResult(next_token_ids=torch.tensor([7])))
        self.tree.check_hicache_events()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.disable(logging.CRITICAL)
    engine, text = Engine(), list(range(29))
    for end in (12, 16, 20):
        engine.processed(engine.admitted(text[:end]))
    engine.tree.evict(EvictParams(num_tokens=0, swa_num_tokens=16))  # of the last eight tokens the window has four
    engine.admitted(list(range(30, 54)))  # another request runs
    try:
        seen = "is admitted, and has its memory" if engine.admitted(text) else "is not admitted yet"
    except RuntimeError as error:
        seen = f"is admitted, and prepare_for_extend raises {' '.join(str(error).splitlines()[:2])!r}"
    print(f"SGLang {sglang.__version__}: a request of 20 cached and 9 new tokens {seen}")
    sys.exit("raises" not in seen)
