"""A request whose load from the host is refused continues behind its prefix on the device with an empty state: a wrong answer.

Plain SGLang 0.5.23, a hybrid model, hierarchical cache, written back: its admission, batches, results, pools, prefix tree and
cache controller; no GPU, no model. The forward pass and the copies between device and host are imitated: a state is the number
of tokens that it is behind. Exit status: 0 if the fault shows, else 1.
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
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.l2_transfer import L2Transfer, L2TransferEngine, TransferCompletion
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool, MambaPool
from sglang.srt.mem_cache.pool_host import base, common
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]  # there is no GPU
wrong: list[str] = []
host: dict[int, float] = {}
"""What each slot of the host holds."""


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


def moved(transfers: list[L2Transfer], to_host: bool) -> TransferCompletion:
    """A copy between device and host, which lands at once."""
    for each in transfers:
        for at, slot in zip(each.host_indices.tolist(), each.device_indices.tolist(), strict=True):
            if isinstance(each.device_pool, MambaPool) and to_host:
                host[at] = float(each.device_pool.mamba_cache.temporal[0, slot])
            elif isinstance(each.device_pool, MambaPool):
                each.device_pool.mamba_cache.temporal[0, slot] = host[at]
    return TransferCompletion(torch.cpu.Event(), torch.cpu.Event(), False)


L2TransferEngine.submit_device_to_host = lambda _self, transfers: moved(transfers, True)
L2TransferEngine.submit_host_to_device = lambda _self, transfers, **_: moved(transfers, False)
common._cuda_host_register, base.HICACHE_HOST_MEMORY_RESERVE_BYTES = lambda *_: None, 0


class Engine:
    def __init__(self) -> None:
        options = {"device": "cpu", "attention_backend": "torch_native", "page_size": 1, "disable_overlap_schedule": True}
        options |= {
            "mamba_radix_cache_strategy": "no_buffer",
            "hicache_io_backend": "direct",
            "hicache_ratio": 2.0,
            "hicache_write_policy": "write_back",
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
            mamba_size=16,
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

    def admitted(self, *prompts: list[int]) -> ScheduleBatch:
        """Prompts, as one batch: what is cached of them is not computed again."""
        params = SamplingParams(max_new_tokens=1)
        params.normalize(None)
        adder = PrefillAdder(1, self.tree, self.kv, None, 1.0, 1000, None)
        for prompt in prompts:
            request = Req(f"request {prompt[-1]}", "", array("q", prompt), params, vocab_size=100, eos_token_ids=set())
            request.tokenizer = None
            request.init_next_round_input(self.tree)
            adder.add_one_req(request, False, None)
        batch = ScheduleBatch.init_new(
            adder.can_run_list, self.rows, self.kv, self.tree, self.model, False, SpeculativeAlgorithm.NONE
        )
        self.tree.ready_to_load_host_cache()
        batch.prepare_for_extend()
        return batch

    def forward(self, batch: ScheduleBatch) -> None:
        """Read the states that the requests continue from, and leave the new ones."""
        pool, states = self.rows.mamba_pool, self.rows.mamba_pool.mamba_cache.temporal
        if batch.mamba_clear_indices is not None:
            pool.clear_slots(batch.mamba_clear_indices)
        if batch.mamba_cow_src_indices is not None:
            pool.copy_from(batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices)
        slots = self.rows.get_mamba_indices(batch.req_pool_indices).tolist()
        for request, slot, start, stop in zip(batch.reqs, slots, batch.prefix_lens, batch.seq_lens.tolist(), strict=True):
            if states[0, slot] != start:
                wrong.append(f"{request.rid} continues behind {start} tokens from a state behind {int(states[0, slot])}")
            states[0, slot] = stop
        self.results.process_batch_result_prefill(batch, GenerationBatchResult(next_token_ids=torch.tensor([9] * len(slots))))
        self.tree.check_hicache_events()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.disable(logging.CRITICAL)
    engine = Engine()
    text = list(range(24))
    for end in (8, 16, 24):
        engine.forward(engine.admitted(text[:end]))
    engine.tree.evict(
        EvictParams(num_tokens=16)
    )  # 8 tokens and the state behind them stay; those behind 16 and 24 are on the host
    engine.forward(engine.admitted([*text, 70], [*text[:16], 71]))
    print(f"SGLang {sglang.__version__}: {'; '.join(wrong) or 'each request continues from its state'}")
    sys.exit(not wrong)
