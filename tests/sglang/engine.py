"""SGLang's scheduler and cache for a world of the rig, and what has another name or shape from release to release.

The scheduler is SGLang's own class, but for its constructor, which wants a model and processes around it: what the constructor
would have set is set here, and what a release has besides is off. Its batches, requests, admission, tree, controller, pools and
allocators are all real.
"""

from __future__ import annotations

import atexit
import importlib
import inspect
import json
import os
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import sglang
import sglang.srt.server_args as server_args_module
import torch
from attrs import define, field
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_tree_cache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from tests.sglang import copies as late
from tests.sglang import kernels, ranks, turns
from tests.sglang.content import ROW
from tests.sglang.copies import Copies
from tests.sglang.device import Stream
from tests.sglang.ranks import Team
from tests.sglang.worlds import WorldSpec
from tests.texts import VOCABULARY

RELEASE: str = sglang.__version__
TAKES_ARRAYS = "array" in str(inspect.signature(Req).parameters["origin_input_ids"].annotation)
STRATEGY = next(name for name in ("mamba_radix_cache_strategy", "mamba_scheduler_strategy") if hasattr(ServerArgs, name))
"""The option that says what is kept of a running request's states."""
SLIDE = "SGLANG_SWA_EVICTION_INTERVAL"
LONGEST_TEXT = 1024
WORDS = VOCABULARY + 1000
"""The model's vocabulary: a token beyond it would end its request."""
QUIET = ("publish_load_snapshot", "maybe_send_health_check_signal", "_record_step_counters", "_maybe_clear_mm_inputs")
"""What the scheduler tells others about itself."""
DEAF = (
    *("grammar_manager", "metrics_reporter", "metrics_collector", "output_streamer", "load_inquirer", "load_publisher"),
    *(
        "session_controller",
        "ipc_channels",
        "dllm_manager",
        "future_map",
        "pool_stats_observer",
        "profiler_manager",
        "logprob_result_processor",
    ),
)
"""Collaborators that the rig does without."""
CACHES = tuple(
    f"sglang.srt.mem_cache.{name}"
    for name in (
        "unified_radix_cache",
        "hiradix_cache",
        "hybrid_cache.hybrid_cache_controller",
        "hybrid_cache.hybrid_pool_assembler",
    )
)


class Deaf:
    """A collaborator that the rig has no use for: whatever it is asked, it does nothing and says no."""

    num_generated_tokens = 0
    forward_ct_decode = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Deaf()

    def __call__(self, *_: object, **__: object) -> None:
        """Do nothing."""

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0


class Off:
    """A configuration in which all that is not named is off."""

    def __init__(self, **said: object) -> None:
        self.__dict__.update(said)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)


class Bare(Scheduler):  # type: ignore[misc]
    """SGLang's scheduler without what its constructor starts; a feature of it that the rig does not know is off."""

    def __init__(self, said: dict[str, object]) -> None:
        for name, value in said.items():
            if not isinstance(inspect.getattr_static(type(self), name, None), property):
                setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)


def known(kind: type, said: dict[str, object]) -> dict[str, object]:
    """What of *said* a class of this release takes."""
    taken = inspect.signature(kind).parameters
    return {name: value for name, value in said.items() if name in taken}


@define(eq=False)
class Engine:
    """One rank of SGLang."""

    spec: WorldSpec
    rank: int
    arguments: Any
    pool: Any
    allocator: Any
    rows: Any
    tree: Any
    scheduler: Any
    worker: Any
    forward_stream: Stream
    given_up: dict[str, str] = field(factory=dict)
    """Requests that the engine has ended outside of a batch, and what it says of them: it was out of memory with one request
    left, or a client went away."""
    failed_loads: set[str] = field(factory=set)
    """Requests that the engine has given up because a linker could not load for them: their forward pass read anything."""

    @property
    def controller(self) -> Any:
        """Who moves pages between device, host and storage."""
        return self.tree.cache_controller

    def add(self, name: str, prompt: Sequence[int], answer: int, stop: int | None = None) -> None:
        """Hand a request to the scheduler; it ends by its length, or where it says the token *stop*."""
        self.scheduler._add_request_to_queue(request_of(name, prompt, answer, stop))

    def abort(self, name: str) -> None:
        """End a request as the engine does when a client goes away."""
        self.scheduler.abort_request(AbortReq(rid=name))

    def hear_abort(self, _said: object, request: Any) -> None:
        """What newer releases tell the client of a request that is over and that no batch will report."""
        self.given_up[request.rid] = str(getattr(request.to_finish, "message", ""))

    def flush(self) -> bool:
        """Forget all that is cached; the engine does so only when it is idle."""
        flush: Callable[..., object] = self.scheduler.flush_cache
        more = {"empty_cache": False} if "empty_cache" in inspect.signature(flush).parameters else {}
        return bool(flush(**more))

    def plan(self) -> Any:
        """The batch of the next step, None if there is none."""
        scheduler = self.scheduler
        if not inspect.signature(scheduler.get_next_batch_to_run).parameters:
            return scheduler.get_next_batch_to_run()
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch = plan.running_batch
        return plan.batch_to_run

    def must_not_overlap(self, batch: Any) -> bool:
        """Whether the engine ends the last step before it starts this one."""
        asked = self.scheduler.is_disable_overlap_for_batch
        more = {"last_batch": self.scheduler.last_batch} if "last_batch" in inspect.signature(asked).parameters else {}
        return bool(asked(batch, **more))

    def launched(self, batch: Any) -> None:
        """The forward pass of a batch was launched: what the engine asks a linker then, and does with the answer."""
        if self.spec.linker is not None:
            failed = self.tree.finish_external_linker_loads(batch.reqs)
            self.failed_loads.update(request.rid for request in failed)
            if self.scheduler.chunked_req in failed:
                self.scheduler._pending_chunked_abort_req = self.scheduler.chunked_req

    def process(self, batch: Any, tokens: Sequence[int], done: object) -> None:
        """Hand the scheduler what a step has said."""
        result = GenerationBatchResult(next_token_ids=torch.tensor(tokens, dtype=torch.int64), copy_done=done)
        self.scheduler.process_batch_result(batch, result)

    @property
    def busy(self) -> bool:
        """Whether copies are out, as far as the tree knows."""
        if self.spec.linker is not None:
            linker = self.tree.linker.cache_linker
            below = linker.statistics_below() and any(linker.host.out())  # the tree does not know of these
            return bool(self.tree.linker.pending_offloads or below)
        names = ("ongoing_write_through", "ongoing_load_back", "ongoing_prefetch", "ongoing_backup")
        return any(len(getattr(self.tree, name, None) or ()) for name in names)


def request_of(name: str, prompt: Sequence[int], answer: int, stop: int | None) -> Any:
    """A request of this release."""
    tokens = array("q", prompt) if TAKES_ARRAYS else list(prompt)
    more = {"ignore_eos": True} if stop is None else {"stop_token_ids": [stop]}
    params = SamplingParams(max_new_tokens=answer, **more)
    params.normalize(None)
    request = Req(name, "", tokens, params, vocab_size=WORDS, eos_token_ids=set())
    request.tokenizer = None
    return request


def arguments_of(spec: WorldSpec, rank: int) -> Any:
    """What SGLang is started with."""
    said: dict[str, object] = {
        "model_path": "dummy",
        "device": "cpu",
        "attention_backend": "torch_native",
        "page_size": spec.page_tokens,
        "disable_overlap_schedule": not spec.overlap,
        "pp_max_micro_batch_size": spec.max_num_seqs,
        "max_running_requests": spec.max_num_seqs,
    }
    host_pages = spec.host_pages - rank * spec.host_skew
    if spec.linker is None:
        said |= {
            "enable_hierarchical_cache": True,
            "hicache_io_backend": "direct",
            "hicache_mem_layout": "layer_first",
            "hicache_write_policy": spec.policy,
            "hicache_ratio": host_pages / spec.device_pages,
        }
    else:
        module, _, name = spec.linker.partition(":")
        config = {"linker": name, "linker_module_path": module, "linker_extra_config": {"host_pages": host_pages}}
        said |= {
            "enable_unified_cache_external_linker": True,
            "unified_cache_external_linker_backend": "dynamic",
            "unified_cache_external_linker_config": config,
        }
    if spec.storage:
        said |= {
            "hicache_storage_backend": "file",
            "hicache_storage_prefetch_policy": "wait_complete",
            "hicache_storage_backend_extra_config": json.dumps({"prefetch_threshold": spec.page_tokens}),
        }
    if spec.kind == "mamba":
        said |= {
            STRATEGY: spec.states,
            "mamba_track_interval": spec.track_tokens,
            "hicache_mem_layout": "page_first_direct",
        }
    arguments = ServerArgs(**said)
    changed = {name: getattr(arguments, name) for name, value in said.items() if getattr(arguments, name) != value}
    if changed:
        raise ValueError(f"SGLang {RELEASE} does not take the rig's arguments: it made {changed} of them")
    if spec.kind == "mamba":  # it would be read from a model's configuration
        arguments._mamba_cache_chunk_size = max(spec.state_tokens, spec.page_tokens)
    if hasattr(server_args_module, "set_global_server_args_for_scheduler"):
        server_args_module.set_global_server_args_for_scheduler(arguments)
    else:
        server_args_module._global_server_args = arguments
    return arguments


def pools_of(spec: WorldSpec, copies: Copies) -> tuple[Any, Any, Any]:
    """Device memory, its allocator, and the table of requests."""
    if spec.kind == "mamba":
        from tests.sglang.states import state_pools

        return state_pools(spec, copies)
    rows = ReqToTokenPool(spec.max_num_seqs * 2, LONGEST_TEXT, "cpu", False)
    if spec.kind == "swa":
        return *_window_pools(spec, copies), rows
    size, page = spec.device_pages * spec.page_tokens, spec.page_tokens
    common = {"size": size, "page_size": page, "dtype": torch.float32, "device": "cpu", "enable_memory_saver": False}
    if spec.kind == "full":
        pool = MHATokenToKVPool(head_num=1, head_dim=ROW, layer_num=spec.layers, **common)
        copies.own(*pool.k_buffer, *pool.v_buffer)
    else:
        pool = _latent_pool(spec, copies, common)
    common = {"size": size, "dtype": torch.float32, "device": "cpu", "kvcache": pool, "need_sort": False}
    allocator = TokenToKVPoolAllocator(**common) if page == 1 else PagedTokenToKVPoolAllocator(page_size=page, **common)
    return pool, allocator, rows


def _latent_pool(spec: WorldSpec, copies: Copies, common: dict[str, Any]) -> Any:
    """Latents of two rows a token, and a row of 132 bytes for each index key, where there are some."""
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MLATokenToKVPool

    latent = {"kv_lora_rank": ROW, "qk_rope_head_dim": ROW, "layer_num": spec.layers, **common}
    if spec.kind == "latents":
        pool = MLATokenToKVPool(**latent)
    else:
        pool = DSATokenToKVPool(index_head_dim=128, kv_cache_dim=2 * ROW, **latent)
        copies.own(*pool.index_k_with_scale_buffer)
    copies.own(*pool.kv_buffer)
    return pool


def _window_pools(spec: WorldSpec, copies: Copies) -> tuple[Any, Any]:
    """A layer of full attention and one with a window, each with memory and an allocator of its own."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    size, near = spec.device_pages * spec.page_tokens, spec.window_pages * spec.page_tokens
    common = {"size": size, "size_swa": near, "page_size": spec.page_tokens, "dtype": torch.float32, "device": "cpu"}
    layers = {"full_attention_layer_ids": [0], "swa_attention_layer_ids": [1]}
    needed = known(SWAKVPool, {"enable_kvcache_transpose": False})  # older releases have no default
    pool = SWAKVPool(head_num=1, head_dim=ROW, **common, **layers, **needed)
    for each in (pool.full_kv_pool, pool.swa_kv_pool):
        copies.own(*each.k_buffer, *each.v_buffer)
    allocator = SWATokenToKVPoolAllocator(kvcache=pool, need_sort=False, **common)
    return pool, allocator


def tree_of(spec: WorldSpec, team: Team, rank: int, arguments: Any, pools: tuple[Any, Any, Any], worker: Any) -> Any:
    """The prefix cache that this release would choose, with its host pool behind it."""
    _, allocator, rows = pools
    said: dict[str, object] = {
        "disable": False,
        "req_to_token_pool": rows,
        "token_to_kv_pool_allocator": allocator,
        "page_size": spec.page_tokens,
        "tp_cache_group": team,
        "chunked_prefill_size": spec.chunk_tokens,
        "enable_mamba_extra_buffer": spec.states != "no_buffer",
        "enable_mamba_extra_buffer_lazy": spec.states == "extra_buffer_lazy",
        "sliding_window_size": spec.window if spec.kind == "swa" else None,
        "tree_core_backend": spec.core,
    }
    context: dict[str, object] = {
        "server_args": arguments,
        "params": CacheInitParams(**known(CacheInitParams, said)),
        "is_hybrid_swa": spec.kind == "swa",
        "is_hybrid_ssm": spec.kind == "mamba",
        "enable_hierarchical_cache": spec.linker is None,
        "disable_radix_cache": False,
        "effective_chunked_prefill_size": spec.chunk_tokens,
        "tp_worker": worker,
        "model_config": Off(),
        "tp_size": spec.world_size,
        "tp_rank": rank,
        "tp_group": team,
    }
    kernels.plain_host_memory()
    tree = create_tree_cache(TreeCacheBuildContext(**known(TreeCacheBuildContext, context)))
    if hasattr(tree, "shutdown"):
        atexit.unregister(tree.shutdown)
    tree.load_back_threshold = 1
    return tree


def scheduler_of(spec: WorldSpec, arguments: Any, pools: tuple[Any, Any, Any], tree: Any, worker: Any) -> Any:
    """The scheduler, as after its constructor."""
    _, allocator, rows = pools
    model = Off(vocab_size=WORDS, num_key_value_heads=1, hf_text_config=SimpleNamespace(mamba_chunk_size=spec.state_tokens))
    beams = SimpleNamespace(
        pending_member_rows=lambda _: 0, commit_decode=lambda _: set(), commit_prefill=None, retire_group=lambda _: None
    )
    same = lambda batch, *_, **__: batch  # noqa: E731
    said: dict[str, object] = {
        "server_args": arguments,
        "model_config": model,
        "spec_algorithm": SpeculativeAlgorithm.from_string(None),
        "device": "cpu",
        "page_size": spec.page_tokens,
        "is_generation": True,
        "ps": SimpleNamespace(pp_size=1, pp_rank=0, tp_size=spec.world_size, tp_rank=0, dp_size=1),
        "disaggregation_mode": DisaggregationMode.NULL,
        "req_to_token_pool": rows,
        "token_to_kv_pool_allocator": allocator,
        "tree_cache": tree,
        "tp_worker": worker,
        "waiting_queue": [],
        "running_batch": ScheduleBatch(reqs=[], batch_is_full=False),
        "result_queue": deque(),
        "forward_ct": 0,
        "processed_tokens_counter": 0,
        "chunked_prefill_size": spec.chunk_tokens,
        "max_prefill_tokens": spec.prefill_tokens,
        "max_running_requests": spec.max_num_seqs,
        "prefill_decode_interval": 0,
        "_prefill_decode_interval_remaining": 0,
        "prefill_decode_interval_min_bs": 0,
        "max_prefill_bs": 0,
        "priority_scheduling_preemption_threshold": 10,
        "enable_overlap": spec.overlap,
        "enable_skip_finishing_decode": spec.overlap,
        "enable_hierarchical_cache": spec.linker is None,
        "enable_unified_cache_external_linker": spec.linker is not None,
        "enable_hicache_storage": spec.storage,
        "is_hybrid_swa": spec.kind == "swa",
        "is_hybrid_ssm": spec.kind == "mamba",
        "policy": SchedulePolicy("fcfs", tree, True, False, False),
        "new_token_ratio_tracker": _ratio(),
        "beam_coordinator": beams,
        "dp_attn_adapter": SimpleNamespace(maybe_prepare_mlp_sync_batch=same, maybe_convert_decode_to_extend=same),
        "ngram_embedding_manager": SimpleNamespace(prepare_for_forward=same),
        "_maybe_prepare_ngram_embedding": same,
    }
    for name in DEAF:
        said[name] = Deaf()
    for name in QUIET:
        said[name] = lambda *_, **__: None
    scheduler = Bare(said)
    if hasattr(tree.cache_controller, "load_fence_stream"):
        tree.cache_controller.load_fence_stream = worker.model_runner.forward_stream
    if hasattr(tree.cache_controller, "write_fence_stream"):
        tree.cache_controller.write_fence_stream = worker.model_runner.forward_stream
    _add_result_processor(scheduler, said)
    return scheduler


def _ratio() -> Any:
    from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker

    return NewTokenRatioTracker(init=0.7, min=0.1, decay=0.001, current=0.7)


def _add_result_processor(scheduler: Any, said: dict[str, object]) -> None:
    from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor as Processor

    all_ = dict.fromkeys(inspect.signature(Processor).parameters)
    given = {name: said[name] for name in all_ if name in said}
    scheduler.batch_result_processor = Processor(**{**all_, **given, "abort_request": scheduler.abort_request})


class Worker:
    """In place of a model: what the scheduler asks of one, and what the rig's forward pass needs from the scheduler's side."""

    def __init__(self, forward_stream: Stream) -> None:
        self.model_runner = SimpleNamespace(
            attn_backend=object(), prefill_aware_swa=False, forward_stream=forward_stream, canary_manager=None
        )
        self.counter: Any = None

    def register_hicache_layer_transfer_counter(self, counter: object) -> None:
        """Keep whom the layers of a load report to."""
        self.counter = counter

    def set_hicache_consumer(self, index: int) -> None:
        """The forward pass to come waits for this load; -1: for none."""
        if self.counter is not None:
            self.counter.set_consumer(index)


def engine_of(spec: WorldSpec, team: Team, rank: int, copies: Copies) -> Engine:
    """One rank; its device must be the active one."""
    ranks.installed()
    os.environ.pop(SLIDE, None)
    if spec.slide is not None:
        os.environ[SLIDE] = str(spec.slide)
    stream = Stream() if spec.overlap else copies.device.default
    worker = Worker(stream)
    arguments = arguments_of(spec, rank)
    _say_rank()
    pools = pools_of(spec, copies)
    _put_late_device()
    tree = tree_of(spec, team, rank, arguments, pools, worker)
    _put_late_device()
    if spec.storage:
        _follow_storage(tree.cache_controller.mem_pool_host, copies)
    scheduler = scheduler_of(spec, arguments, pools, tree, worker)
    engine = Engine(spec, rank, arguments, *pools, tree, scheduler, worker, stream)
    scheduler.send_abort_output = engine.hear_abort
    return engine


def _put_late_device() -> None:
    """In the modules of the cache too, which nothing may have imported yet."""
    for name in CACHES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("sglang."):
                raise
    late.installed()
    kernels.installed()
    turns.installed()


def _follow_storage(host: Any, copies: Copies) -> None:
    """What comes from storage goes to host memory in a thread of SGLang's own: the twin follows."""
    for pool in [each.host_pool for each in getattr(host, "entries", ())] or [host]:
        pool.pin_memory = False
        put, page = pool.set_from_flat_data_page, pool.page_size

        def both(index: int, data: torch.Tensor, put: Callable[..., None] = put, page: int = page, pool: Any = pool) -> None:
            put(index, data)
            copies.moved["from storage"] += page
            buffer = pool.kv_buffer
            copies.twins.of(buffer)[:, :, index : index + page] = buffer[:, :, index : index + page]

        pool.set_from_flat_data_page = both


def _say_rank() -> None:
    """Newer releases ask their runtime context which rank they are; who the others are, each is told by its process group.

    The storage asks the engine's own groups, of which the rig has none: it is told that it is alone.
    """
    from sglang.srt.distributed import parallel_state

    for name in ("_TP", "_PP"):
        if getattr(parallel_state, name, 0) is None:
            setattr(parallel_state, name, SimpleNamespace(rank_in_group=0, world_size=1))
    try:
        from sglang.srt.runtime_context import get_parallel
    except ImportError:
        return
    context = get_parallel()
    if hasattr(context, "override_permanently"):
        context.override_permanently(tp_rank=0, pp_rank=0)


EVERYTHING = 1 << 30
"""More tokens than any memory has."""


def reset_device(engine: Engine) -> str:
    """Evict everything from the device. Returns what of its memory is missing then, "" if nothing is."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    tree, spec = engine.tree, engine.spec
    held = tree.protected_size()
    if isinstance(held, tuple):
        held = held[0]
    if held:
        return f"{held} tokens of device memory are locked, and no request runs"
    tree.evict(EvictParams(num_tokens=EVERYTHING))
    allocator = engine.allocator
    if spec.kind == "swa":
        near, room = allocator.swa_available_size(), spec.window_pages * spec.page_tokens
        if near != room:
            return f"{room - near} tokens of the windows' memory of {room}"
    free = allocator.full_available_size() if spec.kind == "swa" else allocator.available_size()
    size = spec.device_pages * spec.page_tokens
    if free != size:
        return f"{size - free} tokens of device memory of {size}"
    if spec.kind == "mamba":
        from tests.sglang.states import states_missing

        return states_missing(engine)
    return ""


def reset_host(engine: Engine) -> str:
    """The same of host memory, behind `reset_device` and with no copy under way."""
    if engine.spec.linker is not None:
        return forget_linked(engine.tree.linker.cache_linker)
    engine.tree.evict_host(EVERYTHING)
    host = engine.controller.mem_pool_host
    if host.available_size() != host.size:
        return f"{host.size - host.available_size()} tokens of host memory of {host.size}"
    if engine.spec.kind == "swa":
        near = host.entries[1].host_pool
        if near.available_size() != near.size:
            return f"{near.size - near.available_size()} tokens of the windows' host memory of {near.size}"
    return ""


def forget_linked(linker: Any) -> str:
    """The same of a linker's host memory: what its ledgers still hold when all of it is evicted."""
    for memory in linker.host.memories:
        ledger = memory.ledger
        slots = ledger.slots
        if busy := slots.count_busy():
            return f"{busy} pages of host memory are in use, and nothing runs"
        ledger.evict([slot for slot in range(len(slots)) if slots.key(slot) is not None])
        held = [block for block in range(1, len(ledger.blocks)) if ledger.blocks.state(block).name != "FREED"]
        left = {"blocks": len(held), "requests": len(ledger.requests), "jobs": ledger.jobs.live}
        if any(left.values()):
            return f"the ledger of memory {memory.number} still has {left}, and nothing runs"
    return ""
