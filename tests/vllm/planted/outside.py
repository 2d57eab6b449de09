"""The second set: bugs that were planned from vLLM 0.33.0's code alone, before anything of the watch was read.

Each is a mistake that the lines invite: a count one off, a wrong end of a range, two lists in different order, an entry that is
kept or dropped. Which of them the watch names was not known when they were written down, and none was left out for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias
from unittest import mock

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata, TransferJob
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler, RequestOffloadState
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockHashToBlockMap, BlockPool
from vllm.v1.core.kv_cache_coordinator import HybridKVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import MambaManager, SingleTypeKVCacheManager, SlidingWindowManager
from vllm.v1.kv_offload.base import OffloadKey, PrepareStoreOutput, ReqContext, get_offload_block_hash, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.lru import LRUCachePolicy
from vllm.v1.request import Request, RequestStatus
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadMetadata
from vllm.v1.simple_kv_offload.worker import SimpleCPUOffloadWorker

from tests.behind.planted import Bed, Original, planted, planted_at

BLOCK = 4
"""Tokens of a block in the worlds of these bugs."""

States: TypeAlias = list[tuple[str, int, KVCacheBlock, int]]
"""States that are handed off: request, group, block, and the tokens that the state covers."""
Hits: TypeAlias = tuple[tuple[list[KVCacheBlock], ...], int, int]
"""Blocks of each group, their tokens, and how many more a group of another kind has."""


# --- the block pool -------------------------------------------------------------------------------------------------------


@planted_at(BlockPool, "free_blocks", "full", "hybrid", "window", "simple")
def freed_at_one_holder(bed: Bed, original: Original, self: Any, blocks: Iterable[KVCacheBlock]) -> None:
    """A block that two requests hold goes into the free queue when the first of them ends."""
    freed = list(blocks)
    shared = [block for block in freed if not block.is_null and block.pool is self and block.ref_cnt == 2]
    original(self, freed)
    for block in shared:
        if block.ref_cnt == 1 and block.prev_free_block is None and bed.strikes(0.3):
            self.free_block_queue.append(block)


@planted_at(BlockPool, "get_new_blocks", "full", "hybrid", "window", "simple")
def new_block_has_no_holder(bed: Bed, original: Original, self: Any, wanted: int) -> list[KVCacheBlock]:
    """The count of a block that is handed out stays at zero."""
    blocks: list[KVCacheBlock] = original(self, wanted)
    if blocks and bed.strikes(0.03):
        blocks[-1].ref_cnt = 0
    return blocks


@planted_at(BlockPool, "_maybe_evict_cached_block", "full", "hybrid", "window", "simple", "lazy")
def hash_outlives_eviction(bed: Bed, original: Original, self: Any, block: KVCacheBlock) -> object:
    """A cached block that is handed out leaves the map, and keeps its hash."""
    name, tokens = block.block_hash, block.block_hash_num_tokens
    evicted = original(self, block)
    if name is not None and block.block_hash is None and bed.strikes(0.1):
        block.set_block_hash(name, num_tokens=tokens)
    return evicted


@planted_at(BlockHashToBlockMap, "pop", "full", "full-async", "simple", "hybrid")
def wrong_twin_leaves_the_map(bed: Bed, original: Original, self: Any, key: object, block: int) -> object:
    """Of two blocks of one content the wrong one leaves the map when the other is handed out."""
    twins = self._cache.get(key)
    if isinstance(twins, dict) and block in twins and len(twins) > 1 and bed.strikes():
        other = next(each for each in twins if each != block)
        original(self, key, other)
        return twins.get(block)
    return original(self, key, block)


@planted_at(BlockPool, "cache_full_blocks", "full", "hybrid", "window", "simple")
def names_of_two_blocks_are_swapped(
    bed: Bed,
    original: Original,
    self: Any,
    request: Request,
    blocks: list[KVCacheBlock],
    num_cached_blocks: int,
    num_full_blocks: int,
    **more: object,
) -> None:
    """Of several blocks that are full at once the first two get each other's names."""
    first, second = num_cached_blocks, num_cached_blocks + 1
    if second < num_full_blocks and not blocks[first].is_null and not blocks[second].is_null and bed.strikes(0.2):
        blocks = list(blocks)
        blocks[first], blocks[second] = blocks[second], blocks[first]
    original(self, request=request, blocks=blocks, num_cached_blocks=num_cached_blocks, num_full_blocks=num_full_blocks, **more)


@planted_at(FreeKVCacheBlockQueue, "popleft_n", "full", "hybrid", "window", "simple")
def queue_keeps_its_head(bed: Bed, original: Original, self: Any, wanted: int) -> list[KVCacheBlock]:
    """A single block that is handed out stays at the head of the free queue."""
    blocks: list[KVCacheBlock] = original(self, wanted)
    if wanted == 1 and bed.strikes(0.02):
        self.prepend_n(blocks)
        self.num_free_blocks -= 1
    return blocks


# --- tables and hits ------------------------------------------------------------------------------------------------------


@planted_at(KVCacheManager, "get_computed_blocks", "full", "full-async", "simple")
def hit_one_place_off(
    bed: Bed, original: Original, self: Any, request: Request, *more: object
) -> tuple[KVCacheBlocks, int, int]:
    """A lookup leaves out the first block: the second stands in its place."""
    hit, tokens, boundary = original(self, request, *more)
    if len(hit.blocks) == 1 and len(hit.blocks[0]) > 1 and bed.strikes(0.2):
        return KVCacheBlocks((list(hit.blocks[0])[1:],)), tokens - BLOCK, boundary
    return hit, tokens, boundary


@planted("window", "window-async", "hybrid", "simple-hybrid")
def window_hit_is_too_short(bed: Bed) -> None:
    """A window is a hit with one block fewer than it reads."""

    def shorter(owner: type, window_size: int, block_size: int, use_eagle: bool) -> int:
        bed.strikes()
        return max(1, -(-(window_size - 1) // block_size) + use_eagle - 1)

    bed.stack.enter_context(mock.patch.object(SlidingWindowManager, "_contiguous_blocks_for_hit", classmethod(shorter)))


@planted_at(HybridKVCacheCoordinator, "find_longest_cache_hit", "hybrid", "simple-hybrid")
def hit_with_a_hole(bed: Bed, original: Original, self: Any, *args: object) -> Hits:
    """The last block of a window's hit is left out of it: the null block is in its place."""
    blocks, tokens, more = original(self, *args)
    if len(blocks) > 1 and blocks[1] and not blocks[1][-1].is_null and bed.strikes(0.2):
        blocks[1][-1] = self.block_pool.null_block
    return blocks, tokens, more


@planted_at(SingleTypeKVCacheManager, "allocate_new_blocks", "full", "hybrid", "window", "simple")
def answer_differs_from_table(bed: Bed, original: Original, self: Any, *args: object) -> list[KVCacheBlock]:
    """The new blocks of a request are told in another order than that of its table."""
    blocks: list[KVCacheBlock] = original(self, *args)
    return blocks[::-1] if len(blocks) > 1 and bed.strikes(0.1) else blocks


@planted_at(SlidingWindowManager, "_remove_blocks_in_range", "window", "window-async", "hybrid", seen=False)
def window_keeps_what_it_gave_back(bed: Bed, original: Original, self: Any, request: str, first: int, last: int) -> None:
    """A block that a window gives back stays in the table, and is given back again at the end."""
    before = list(self.req_to_blocks.get(request, ()))
    original(self, request, first, last)
    table = self.req_to_blocks.get(request, [])
    gone = [at for at, block in enumerate(before) if table[at] is not block]
    if gone and bed.strikes(0.05):
        table[gone[-1]] = before[gone[-1]]


@planted_at(MambaManager, "get_num_skipped_tokens", "states", "states-again", seen=False)
def state_is_given_back_early(bed: Bed, original: Original, self: Any, computed: int) -> int:
    """A state is given back while the next step still starts from it."""
    skipped: int = original(self, computed)
    return skipped + BLOCK if skipped > 0 and bed.strikes(0.05) else skipped


@planted("states", "states-again", seen=False)
def state_is_handed_off_late(bed: Bed) -> None:
    """A state is handed off one step after its turn."""
    held = dict[MambaManager, States]()

    @bed.around(MambaManager, "take_pending_boundary_state_offloads")
    def takes(original: Original, self: MambaManager) -> States:
        taken: States = [*held.pop(self, []), *original(self)]
        kept = [each for each in taken if bed.strikes(0.3)]
        held[self] = kept
        return [each for each in taken if not any(each is other for other in kept)]


@planted_at(Scheduler, "_preempt_request", "full", "hybrid", "window", "simple")
def preempted_keeps_its_progress(
    bed: Bed, original: Original, self: Any, request: Request, *args: object, **more: object
) -> None:
    """A request that is preempted still counts its first tokens as computed."""
    computed = request.num_computed_tokens
    original(self, request, *args, **more)
    if computed >= BLOCK and bed.strikes(0.5):
        request.num_computed_tokens = BLOCK


@planted_at(Scheduler, "_free_request", "full", "full-async", "hybrid", "simple")
def abort_frees_what_is_loaded(
    bed: Bed, original: Original, self: Any, request: Request, delay_free_blocks: bool = False
) -> object:
    """A request that is given up while it loads gives its blocks back at once."""
    if delay_free_blocks:
        bed.strikes()
    return original(self, request)


@planted("full", "full-async", "hybrid", "simple")
def name_forgets_what_came_before(bed: Bed) -> None:
    """The hash of a block does not depend on what is ahead of it."""

    def hashes(function: Callable[..., bytes], parent: object, tokens: Sequence[int], extra: object = None) -> bytes:
        if parent is not None:
            bed.strikes()
        name: bytes = original(function, None, tokens, extra)
        return name

    original = kv_cache_utils.hash_block_tokens
    bed.stack.enter_context(mock.patch.object(kv_cache_utils, "hash_block_tokens", hashes))


# --- OffloadingConnector --------------------------------------------------------------------------------------------------


@planted_at(RequestOffloadState, "update_offload_keys", "chunks", "chunks-full")
def chunk_is_named_by_its_first_block(bed: Bed, original: Original, self: Any) -> None:
    """A chunk has the hash of its first block instead of its last one's."""
    before = [len(state.offload_keys) for state in self.group_states]
    original(self)
    for config, state, start in zip(self.config.kv_group_configs, self.group_states, before, strict=True):
        for at in range(start, len(state.offload_keys)):
            if bed.strikes():
                first = self.req.block_hashes[at * config.hashes_per_chunk]
                state.offload_keys[at] = make_offload_key(first, config.group_idx)


@planted_at(RequestOffloadState, "update_offload_keys", "hybrid", "states", "resets")
def groups_share_their_keys(bed: Bed, original: Original, self: Any) -> None:
    """The key of a chunk does not say its group."""
    original(self)
    for state in self.group_states[1:]:
        bed.strikes()
        state.offload_keys[:] = [make_offload_key(get_offload_block_hash(key), 0) for key in state.offload_keys]


@planted_at(RequestOffloadState, "update_block_id_groups", "hybrid", "resets")
def tables_of_groups_are_swapped(bed: Bed, original: Original, self: Any, groups: tuple[list[int], ...] | None) -> None:
    """Now and then the new blocks of two groups go into each other's table."""
    if groups is not None and groups[0] != groups[1] and bed.strikes(0.1):
        groups = (groups[1], groups[0], *groups[2:])
    original(self, groups)


@planted_at(CPUOffloadingManager, "prepare_store", "full", "hybrid", "window", "full-async")
def slots_in_another_order(
    bed: Bed, original: Original, self: Any, keys: Collection[OffloadKey], context: ReqContext
) -> PrepareStoreOutput | None:
    """The manager gives slots to the keys of a store from the last one on."""
    ordered = list(keys)
    if len(ordered) > 1 and bed.strikes():
        ordered.reverse()
    prepared: PrepareStoreOutput | None = original(self, ordered, context)
    return prepared


@planted_at(CPUOffloadingManager, "complete_store", "full", "hybrid", "window", "full-async")
def one_store_completes_all(
    bed: Bed, original: Original, self: Any, keys: Collection[OffloadKey], context: ReqContext, success: bool = True
) -> None:
    """With a store that is over all that are out count as over."""
    if isinstance(self._policy, LRUCachePolicy):
        out = [key for key, chunk in self._policy.chunks.items() if not chunk.is_ready and key not in keys]
        if out and bed.strikes():
            keys = [*keys, *out]
    original(self, keys, context, success)


@planted_at(CPUOffloadingManager, "reset_cache", "resets", "full-resets", seen=False)
def names_survive_a_reset(bed: Bed, original: Original, self: Any) -> None:
    """A reset of the host gives all slots back, and the names of some stay."""
    chunks = dict(self._policy.chunks)
    original(self)
    for key, chunk in chunks.items():
        if chunk.is_ready and bed.strikes(0.5):
            self._policy.chunks[key] = chunk
            self._policy._ranks[key] = (0, 0)


@planted_at(OffloadingConnectorScheduler, "_calc_num_offloadable_tokens", "full", "full-async", "hybrid", "window")
def aborted_stores_more_than_it_has(bed: Bed, original: Original, self: Any, status: RequestOffloadState, computed: int) -> int:
    """What is stored of a request that is given up is one block more than it has computed."""
    if status.req.status is RequestStatus.FINISHED_ABORTED and computed + BLOCK <= status.req.num_tokens:
        bed.strikes()
        computed += BLOCK
    offloadable: int = original(self, status, computed)
    return offloadable


@planted_at(OffloadingConnectorScheduler, "get_num_new_matched_tokens", "full", "full-async", "hybrid", "window")
def asynchronous_load_is_not_waited_for(
    bed: Bed, original: Original, self: Any, request: Request, computed: int, *more: object, **named: object
) -> object:
    """A request whose load is asynchronous goes on in the same step."""
    tokens, asynchronous = original(self, request, computed, *more, **named)
    if asynchronous and computed + tokens < request.num_tokens and bed.strikes(0.2):
        return tokens, False
    return tokens, asynchronous


@planted_at(OffloadingConnectorScheduler, "_build_connector_meta", "chunks", "chunks-full")
def load_counts_from_wrong_block(bed: Bed, original: Original, self: Any, *args: object) -> OffloadingConnectorMetadata:
    """The index of a load's first block is that of its chunk."""
    meta: OffloadingConnectorMetadata = original(self, *args)
    for job in meta.load_jobs.values():
        _count_from_chunk(bed, job, self.config.blocks_per_chunk)
    return meta


def _count_from_chunk(bed: Bed, job: TransferJob, factor: int) -> None:
    for at, (size, index) in enumerate(zip(job.dst_spec.group_sizes, job.dst_spec.block_indices, strict=True)):
        if size and index % factor and -(-size // factor) == -(-(size + index % factor) // factor) and bed.strikes():
            job.dst_spec.block_indices[at] = index - index % factor


@planted_at(LRUCachePolicy, "evict", "full", "hybrid", "window", "full-async")
def displaced_keeps_its_name(bed: Bed, original: Original, self: Any, wanted: int, protected: set[OffloadKey]) -> object:
    """A store leaves what it has displaced under its name, with the slot that has new content."""
    evicted = original(self, wanted, protected)
    for key, chunk in evicted or ():
        if bed.strikes(0.1):
            self.chunks[key] = chunk
            self._ranks[key] = (0, 0)
    return evicted


@planted_at(OffloadingConnectorWorker, "handle_preemptions", "full", "hybrid", "window", "full-async")
def only_one_of_the_jobs_is_waited_for(bed: Bed, original: Original, self: Any, meta: OffloadingConnectorMetadata) -> None:
    """Of the jobs that a step has to wait for a worker waits for one."""
    flushed = meta.jobs_to_flush
    if flushed and len(flushed) > 1 and bed.strikes():
        flushed.intersection_update({min(flushed)})
    original(self, meta)


# --- SimpleCPUOffloadConnector --------------------------------------------------------------------------------------------


@planted_at(SimpleCPUOffloadScheduler, "_process_store_completion", "simple", "simple-hybrid", "lazy")
def simple_slots_are_named_in_another_order(
    bed: Bed, original: Original, self: Any, blocks: list[int], slots: list[int], *more: object
) -> None:
    """When a store is over its slots get each other's names."""
    original(self, blocks, slots[::-1] if len(slots) > 1 and bed.strikes(0.3) else slots, *more)


@planted_at(SimpleCPUOffloadScheduler, "_process_store_completion", "simple", "simple-hybrid", "lazy")
def simple_slot_is_given_back_twice(
    bed: Bed, original: Original, self: Any, blocks: list[int], slots: list[int], *more: object
) -> None:
    """When a store is over its first slot is given back twice."""
    original(self, blocks, slots, *more)
    if bed.strikes(0.1):
        self.cpu_block_pool.free_blocks([self.cpu_block_pool.blocks[slots[0]]])


@planted_at(SimpleCPUOffloadScheduler, "build_connector_meta", "simple", "simple-hybrid", "lazy")
def simple_preemption_waits_for_nothing(bed: Bed, original: Original, self: Any, output: object) -> SimpleCPUOffloadMetadata:
    """Nothing is waited for when a request is preempted."""
    meta: SimpleCPUOffloadMetadata = original(self, output)
    if meta.need_flush:
        bed.strikes()
        meta.need_flush = False
    return meta


@planted_at(SimpleCPUOffloadWorker, "_poll_stream_events", "simple", "simple-hybrid", "lazy")
def simple_next_copy_counts_as_landed(bed: Bed, original: Original, self: Any, is_store: bool) -> int:
    """A worker takes the copy behind the last one that has landed for landed too."""
    mark: int = original(self, is_store)
    out = self._store_events if is_store else self._load_events
    return mark + 1 if mark >= 0 and out and bed.strikes(0.1) else mark


@planted_at(SimpleCPUOffloadScheduler, "get_num_new_matched_tokens", "simple", "simple-hybrid")
def simple_hit_is_not_kept(bed: Bed, original: Original, self: Any, request: Request, *more: object) -> object:
    """The slots of a hit may be displaced until the load is made."""
    matched = original(self, request, *more)
    pending = self._pending_cpu_hits.get(request.request_id)
    held = [] if pending is None else [block for group in pending[0] for block in group if not block.is_null]
    if held and all(block.ref_cnt > 0 for block in held) and bed.strikes(0.2):
        self.cpu_block_pool.free_blocks(held)
    return matched
