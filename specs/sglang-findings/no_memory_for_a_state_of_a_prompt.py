"""A state of a prompt is to be cached, each slot is in use or read by a copy to the host, and the scheduler ends.

Plain SGLang 0.5.23, a hybrid model, hierarchical cache, written through: its admission, batches, results, pools, prefix tree
and cache controller; no GPU, no model. Copies move nothing, and have not landed. Exit status: 0 if the fault shows, else 1.
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
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor as Processor
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.l2_transfer import L2TransferEngine, TransferCompletion
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.pool_host import base, common
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]  # there is no GPU
SLOTS = 3
"""For states: as many as SGLang itself has for one request (`_calculate_mamba_ratio`)."""


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


class Copying(torch.cpu.Event):
    """The end of a copy, which has not come."""

    def query(self) -> bool:
        return False


L2TransferEngine.submit_device_to_host = lambda *_: TransferCompletion(Copying(), Copying(), False)
common._cuda_host_register, base.HICACHE_HOST_MEMORY_RESERVE_BYTES = lambda *_: None, 0


class Engine:
    def __init__(self) -> None:
        options = {"device": "cpu", "attention_backend": "torch_native", "page_size": 1, "disable_overlap_schedule": True}
        options |= {
            "mamba_radix_cache_strategy": "no_buffer",
            "hicache_io_backend": "direct",
            "hicache_ratio": 2.0,
            "hicache_write_policy": "write_through",
        }
        arguments = server_args.ServerArgs(
            "dummy", enable_hierarchical_cache=True, hicache_mem_layout="page_first_direct", **options
        )
        arguments._mamba_cache_chunk_size = 4  # of the model
        server_args.set_global_server_args_for_scheduler(arguments)
        sizes = dict.fromkeys(("intermediate_size", "conv_dim", "ssm_state_size", "head_dim", "state_size"), 1)
        shape = Mamba2StateShape(conv=[(1, 1)], temporal=(1, 1, 1), num_heads=1, conv_kernel=2, **sizes)
        kept = Mamba2StateDType(conv=torch.float32, temporal=torch.float32)
        params = Mamba2CacheParams(shape=shape, dtype=kept, layers=[0])
        more = {"mamba_layer_ids": [0], "enable_mamba_extra_buffer": False, "enable_memory_saver": False, "device": "cpu"}
        self.rows = HybridReqToTokenPool(
            size=4,
            mamba_size=SLOTS,
            mamba_spec_state_size=4,
            max_context_len=64,
            cache_params=params,
            enable_overlap_schedule=False,
            **more,
        )
        kv = {"page_size": 1, "head_num": 1, "head_dim": 1, "full_attention_layer_ids": [1], "device": "cpu"}
        pool = HybridLinearKVPool(size=64, dtype=torch.float32, mamba_pool=self.rows.mamba_pool, **kv)
        self.kv = TokenToKVPoolAllocator(64, torch.float32, "cpu", pool, False)
        params = CacheInitParams(
            False, self.rows, self.kv, page_size=1, tree_components=(ComponentType.FULL, ComponentType.MAMBA)
        )
        self.tree = UnifiedRadixCache(params)
        self.tree.init_hicache(arguments, params)
        self.tree.load_back_threshold = 1
        self.model = Off(vocab_size=100, hf_text_config=Off(mamba_chunk_size=4))
        said = {"is_generation": True, "tree_cache": self.tree, "req_to_token_pool": self.rows}
        said |= {"token_to_kv_pool_allocator": self.kv, "metrics_reporter": Off(num_generated_tokens=0, forward_ct_decode=0)}
        self.results = Processor(**{name: said.get(name, Off()) for name in Processor.__dataclass_fields__})

    def admitted(self, prompt: list[int], answer: int) -> ScheduleBatch:
        """A request's prompt, as one batch."""
        params = SamplingParams(max_new_tokens=answer)
        params.normalize(None)
        adder = PrefillAdder(1, self.tree, self.kv, None, 1.0, 1000, None)
        request = Req(f"request {prompt[-1]}", "", array("q", prompt), params, vocab_size=100, eos_token_ids=set())
        request.tokenizer = None
        request.init_next_round_input(self.tree)
        adder.add_one_req(request, False, None)
        batch = ScheduleBatch.init_new(
            adder.can_run_list, self.rows, self.kv, self.tree, self.model, False, SpeculativeAlgorithm.NONE
        )
        batch.prepare_for_extend()
        return batch

    def processed(self, batch: ScheduleBatch) -> None:
        self.results.process_batch_result_prefill(batch, GenerationBatchResult(next_token_ids=torch.tensor([9])))
        self.tree.check_hicache_events()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.disable(logging.CRITICAL)
    engine, seen = Engine(), "goes on"
    for token in (1, 2):  # two requests that end with their first token; what is cached of them is being copied to the host
        engine.processed(engine.admitted([token] * 8, 1))
    try:
        engine.processed(engine.admitted([3] * 8, 2))
    except AssertionError as error:
        seen = f"ends the scheduler: {error}"
    out = engine.tree.mamba_protected_size()
    print(f"SGLang {sglang.__version__}: copies read {out} of {SLOTS} states, and a request whose prompt is computed {seen}")
    sys.exit(seen == "goes on")
