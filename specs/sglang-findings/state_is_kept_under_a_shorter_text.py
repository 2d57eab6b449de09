"""A state of a hybrid model is written over by the next one, and cached as what it was: who continues from it is wrong.

Plain SGLang 0.5.23, overlap and `extra_buffer`: its batches, results, pools and prefix tree; no GPU, no model. The forward pass
is imitated: a slot for states holds the number of tokens that its state is behind. Exit status: 0 if the fault shows, else 1.
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
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

tensor = torch.tensor  # there is no GPU: nothing is pinned
torch.tensor = lambda *given, pin_memory=False, **named: tensor(*given, **named)
torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]
TRACK, END = 8, 99
behind: dict[int, int] = {}
"""Behind how many tokens the state in each slot is."""


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


class Engine:
    def __init__(self) -> None:
        options = {"device": "cpu", "attention_backend": "torch_native", "page_size": 1, "mamba_track_interval": TRACK}
        arguments = server_args.ServerArgs("dummy", mamba_radix_cache_strategy="extra_buffer", **options)
        arguments._mamba_cache_chunk_size = 4  # of the model
        server_args.set_global_server_args_for_scheduler(arguments)
        sizes = dict.fromkeys(("intermediate_size", "conv_dim", "ssm_state_size", "head_dim", "state_size"), 1)
        shape = Mamba2StateShape(conv=[(1, 1)], temporal=(1, 1, 1), num_heads=1, conv_kernel=2, **sizes)
        params = Mamba2CacheParams(shape=shape, dtype=Mamba2StateDType(conv=torch.float32, temporal=torch.float32), layers=[0])
        more = {"mamba_layer_ids": [0], "enable_mamba_extra_buffer": True, "enable_memory_saver": False, "device": "cpu"}
        self.rows = HybridReqToTokenPool(
            size=4, mamba_size=16, mamba_spec_state_size=4, max_context_len=64, cache_params=params, **more
        )
        kv = {"page_size": 1, "head_num": 1, "head_dim": 1, "full_attention_layer_ids": [1], "device": "cpu"}
        pool = HybridLinearKVPool(size=64, dtype=torch.float32, mamba_pool=self.rows.mamba_pool, **kv)
        self.kv = TokenToKVPoolAllocator(64, torch.float32, "cpu", pool, False)
        said = {"page_size": 1, "enable_mamba_extra_buffer": True, "tree_components": (ComponentType.FULL, ComponentType.MAMBA)}
        self.tree = UnifiedRadixCache(CacheInitParams(False, self.rows, self.kv, **said))
        self.model = Off(vocab_size=100, hf_text_config=Off(mamba_chunk_size=4))
        said = {"is_generation": True, "enable_overlap": True, "tree_cache": self.tree, "req_to_token_pool": self.rows}
        said |= {"token_to_kv_pool_allocator": self.kv, "metrics_reporter": Off(num_generated_tokens=0, forward_ct_decode=0)}
        self.results = Processor(**{name: said.get(name, Off()) for name in Processor.__dataclass_fields__})

    def admitted(self, prompt: list[int]) -> ScheduleBatch:
        """A request's prompt, as one batch: what is cached of it is not computed again."""
        params = SamplingParams(max_new_tokens=20, stop_token_ids=[END])
        params.normalize(None)
        request = Req("a request", "", array("q", prompt), params, vocab_size=100, eos_token_ids=set())
        request.tokenizer = None
        request.init_next_round_input(self.tree)
        adder = PrefillAdder(1, self.tree, self.kv, None, 1.0, 1000, None)
        adder.add_one_req(request, False, None)
        batch = ScheduleBatch.init_new(
            adder.can_run_list, self.rows, self.kv, self.tree, self.model, True, SpeculativeAlgorithm.NONE
        )
        batch.prepare_for_extend()
        return batch

    def processed(self, batch: ScheduleBatch, token: int) -> None:
        process = getattr(self.results, "process_batch_result_" + ("decode" if batch.forward_mode.is_decode() else "prefill"))
        process(batch, GenerationBatchResult(next_token_ids=torch.tensor([token])))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.disable(logging.CRITICAL)
    engine = Engine()
    batch = engine.admitted([1, 2, 3, 4, 5, 6, 7])
    launched = batch.copy()
    for token in (10, 11, 12, 13, 14, 15, 16, 17, END):
        batch.prepare_for_decode()  # with overlap a step is launched before the result of the last one is processed
        if batch.mamba_track_mask_cpu[0]:
            behind[int(batch.mamba_track_indices[0])] = int(batch.seq_lens_cpu[0])
        engine.processed(launched, token)
        launched = batch.copy()
    batch = engine.admitted([1, 2, 3, 4, 5, 6, 7, 10, 20])
    cached, found = batch.prefix_lens[0], behind[int(batch.mamba_cow_src_indices[0])]
    print(f"SGLang {sglang.__version__}: the next request continues behind {cached} tokens from a state behind {found}")
    sys.exit(cached == found)
