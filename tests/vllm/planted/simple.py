"""Bugs in SimpleCPUOffloadConnector's scheduler's side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from unittest import mock

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request
from vllm.v1.simple_kv_offload.manager import LoadRequestState, SimpleCPUOffloadScheduler, TransferMeta
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadMetadata

from tests.behind.planted import Bed, Original, planted, planted_at, planted_by

Step: TypeAlias = Callable[[SimpleCPUOffloadScheduler, SimpleCPUOffloadMetadata], None]


def _change_step(bed: Bed, change: Step) -> None:
    """Change what the workers are told in a step; the scheduler's own book has the same lists, so they are replaced."""
    bed.behind(SimpleCPUOffloadScheduler, "build_connector_meta", change)


def _at_end_of_load(bed: Bed, change: Callable[[SimpleCPUOffloadScheduler, LoadRequestState], None]) -> None:
    """Change what the scheduler knows of a load, just before it lets go of it."""

    @bed.around(SimpleCPUOffloadScheduler, "_cleanup_load_request")
    def cleans(original: Original, self: SimpleCPUOffloadScheduler, request: str) -> int:
        state = self._reqs_to_load.get(request) or self._abandoned_reqs_to_load.get(request)
        if state is not None and state.transfer_meta is not None:
            change(self, state)
        completed: int = original(self, request)
        return completed


def _blocks(pool: BlockPool, ids: list[int]) -> list[KVCacheBlock]:
    return [pool.blocks[block] for block in ids]


def _rotated(ids: list[int]) -> list[int]:
    return [*ids[1:], *ids[:1]]


# --- holds ----------------------------------------------------------------------------------------------------------------


@planted("simple", "simple-hybrid", "lazy")
def simple_source_is_not_held(bed: Bed) -> None:
    """A store does not hold the blocks that it reads; it comes to nothing where one of them has lost its name by then."""

    def let_go(scheduler: SimpleCPUOffloadScheduler, meta: SimpleCPUOffloadMetadata) -> None:
        if meta.store_gpu_blocks and bed.strikes():
            scheduler._gpu_block_pool.free_blocks(_blocks(scheduler._gpu_block_pool, meta.store_gpu_blocks))

    _change_step(bed, let_go)

    @bed.around(SimpleCPUOffloadScheduler, "_process_store_completion")
    def completes(
        original: Original, self: SimpleCPUOffloadScheduler, device: list[int], host: list[int], *args: object
    ) -> None:
        blocks = _blocks(self._gpu_block_pool, device)
        self._gpu_block_pool.touch(blocks)
        if all(block.block_hash is not None for block in blocks):
            original(self, device, host, *args)
        else:
            self._release_transfer_refs(TransferMeta(device, host))


@planted("simple-tight")
def simple_slot_read_is_not_pinned(bed: Bed) -> None:
    """The slots that a load reads are free at once."""

    @bed.around(SimpleCPUOffloadScheduler, "update_state_after_alloc")
    def updates(
        original: Original, self: SimpleCPUOffloadScheduler, request: Request, blocks: KVCacheBlocks, tokens: int
    ) -> None:
        original(self, request, blocks, tokens)
        state = self._reqs_to_load.get(request.request_id)
        if tokens and state is not None and bed.strikes():
            self.cpu_block_pool.free_blocks(_blocks(self.cpu_block_pool, state.transfer_meta.cpu_block_ids))

    def take_again(scheduler: SimpleCPUOffloadScheduler, state: LoadRequestState) -> None:
        scheduler.cpu_block_pool.touch(_blocks(scheduler.cpu_block_pool, state.transfer_meta.cpu_block_ids))

    _at_end_of_load(bed, take_again)


@planted_by(_at_end_of_load, "simple", "simple-hybrid", "lazy")
def simple_load_keeps_a_block(bed: Bed, scheduler: SimpleCPUOffloadScheduler, state: LoadRequestState) -> None:
    """Now and then a load that is over keeps its hold of a block of the device."""
    if state.transfer_meta.gpu_block_ids and bed.strikes(0.1):
        state.transfer_meta.gpu_block_ids.pop()


@planted_by(_at_end_of_load, "simple", "simple-hybrid", "lazy")
def simple_load_keeps_a_slot(bed: Bed, scheduler: SimpleCPUOffloadScheduler, state: LoadRequestState) -> None:
    """Now and then a load that is over keeps its hold of a slot."""
    if state.transfer_meta.cpu_block_ids and bed.strikes(0.1):
        state.transfer_meta.cpu_block_ids.pop()


# --- stores ---------------------------------------------------------------------------------------------------------------


@planted_at(SimpleCPUOffloadScheduler, "update_connector_output", "simple-hybrid")
def simple_first_worker_ends_a_store(bed: Bed, original: Original, self: Any, output: KVConnectorOutput) -> None:
    """A store is over when the first worker says so."""
    done = {} if output.kv_connector_worker_meta is None else output.kv_connector_worker_meta.completed_store_events
    if any(count < self._expected_worker_count for count in done.values()):
        bed.strikes()
    with mock.patch.object(self, "_expected_worker_count", 1):
        original(self, output)


@planted_at(SimpleCPUOffloadScheduler, "_classify_store_candidate", "simple", "simple-hybrid")
def simple_stored_while_it_is_stored(bed: Bed, original: Original, self: Any, block: KVCacheBlock) -> object:
    """What is being stored is stored again (as vllm#41289)."""
    if block.block_id in self._in_flight_store_gpu_blocks:
        bed.strikes()
    with mock.patch.object(self, "_in_flight_store_gpu_blocks", set()):
        return original(self, block)


@planted_by(_change_step, "simple", "simple-hybrid", "lazy")
def simple_found_before_it_is_stored(bed: Bed, scheduler: SimpleCPUOffloadScheduler, meta: SimpleCPUOffloadMetadata) -> None:
    """A lookup finds what is to be stored from the moment of its plan on."""
    slots = _blocks(scheduler.cpu_block_pool, meta.store_cpu_blocks)
    for block, slot in zip(_blocks(scheduler._gpu_block_pool, meta.store_gpu_blocks), slots, strict=True):
        bed.strikes()
        scheduler.cpu_block_pool._insert_block_hash(block.block_hash, slot, num_tokens=block.block_hash_num_tokens)


@planted_by(_change_step, "simple", "simple-hybrid", "lazy")
def simple_store_to_neighbours(bed: Bed, scheduler: SimpleCPUOffloadScheduler, meta: SimpleCPUOffloadMetadata) -> None:
    """The slots of a store are one place off."""
    if len(meta.store_cpu_blocks) > 1 and bed.strikes():
        meta.store_cpu_blocks = _rotated(meta.store_cpu_blocks)


@planted_by(_change_step, "simple", "simple-hybrid", "lazy")
def simple_store_of_foreign_block(bed: Bed, scheduler: SimpleCPUOffloadScheduler, meta: SimpleCPUOffloadMetadata) -> None:
    """Now and then the first block of a store is any other block."""
    if meta.store_gpu_blocks and bed.strikes(0.2):
        others = set(range(1, scheduler._gpu_block_pool.num_gpu_blocks)).difference(meta.store_gpu_blocks)
        meta.store_gpu_blocks = [bed.rng.choice(sorted(others)), *meta.store_gpu_blocks[1:]]


@planted_at(SimpleCPUOffloadScheduler, "build_connector_meta", "simple", "simple-hybrid")
def simple_last_store_forgotten(bed: Bed, original: Original, self: Any, output: SchedulerOutput) -> SimpleCPUOffloadMetadata:
    """What a request leaves to be stored when it ends is not stored, and stays held."""
    if self._pending_finished_stores:
        bed.strikes()
    self._pending_finished_stores.clear()
    return original(self, output)


@planted_at(SimpleCPUOffloadScheduler, "has_pending_stores", "simple", "simple-hybrid", "lazy")
def simple_sleeps_with_stores_out(bed: Bed, original: Original, self: Any) -> bool:
    """The engine is not kept awake for stores that are out."""
    return bool(original(self)) and not bed.strikes()


# --- loads ----------------------------------------------------------------------------------------------------------------


@planted_by(_change_step, "simple", "simple-hybrid", "lazy")
def simple_load_of_neighbours(bed: Bed, scheduler: SimpleCPUOffloadScheduler, meta: SimpleCPUOffloadMetadata) -> None:
    """The slots of a load are one place off."""
    if len(meta.load_cpu_blocks) > 1 and bed.strikes():
        meta.load_cpu_blocks = _rotated(meta.load_cpu_blocks)


@planted_by(_change_step, "simple", "simple-hybrid", "lazy")
def simple_load_is_too_short(bed: Bed, scheduler: SimpleCPUOffloadScheduler, meta: SimpleCPUOffloadMetadata) -> None:
    """The last block of a hit is not loaded."""
    if len(meta.load_gpu_blocks) > 1 and bed.strikes():
        meta.load_gpu_blocks, meta.load_cpu_blocks = meta.load_gpu_blocks[:-1], meta.load_cpu_blocks[:-1]


@planted_at(SimpleCPUOffloadScheduler, "get_num_new_matched_tokens", "simple", "simple-hybrid", "lazy")
def simple_lookup_promises_one_more(
    bed: Bed, original: Original, self: Any, request: Request, computed: int
) -> tuple[object, bool]:
    """A lookup promises the tokens of one block more than it has found."""
    tokens, asynchronous = original(self, request, computed)
    more = tokens + self.group_block_sizes[0] if tokens else 0
    return (more, True) if more and computed + more < request.num_tokens and bed.strikes(0.3) else (tokens, asynchronous)
