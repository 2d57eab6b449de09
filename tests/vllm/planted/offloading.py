"""Bugs in OffloadingConnector: its scheduler's side, and the manager of the host's slots."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata, TransferJob
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler, RequestOffloadState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_offload.base import LoadStoreSpec, LookupResult, OffloadKey, PrepareStoreOutput, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from tests.behind.planted import Bed, Original, planted, planted_at, planted_by
from tests.vllm.device import Ids

BLOCK = 4
"""Tokens of a block in the worlds of these bugs."""
BLOCKS = 20
"""Blocks that the device has in each of them."""

Handoffs: TypeAlias = dict[str, list[tuple[int, int, int]]]
"""For each request the states that are handed off: group, block, and the tokens that the state covers."""
Step: TypeAlias = Callable[[OffloadingConnectorScheduler, OffloadingConnectorMetadata], None]
JobChange: TypeAlias = Callable[[OffloadingConnectorScheduler, TransferJob], None]


def _change_step(bed: Bed, change: Step) -> None:
    """Change what the workers are told in a step."""
    bed.behind(OffloadingConnectorScheduler, "_build_connector_meta", change)


def _change_stores(bed: Bed, change: JobChange) -> None:
    def each(scheduler: OffloadingConnectorScheduler, meta: OffloadingConnectorMetadata) -> None:
        for job in meta.store_jobs.values():
            change(scheduler, job)

    _change_step(bed, each)


def _change_loads(bed: Bed, change: JobChange) -> None:
    def each(scheduler: OffloadingConnectorScheduler, meta: OffloadingConnectorMetadata) -> None:
        for job in meta.load_jobs.values():
            change(scheduler, job)

    _change_step(bed, each)


def _rotate(bed: Bed, ids: Ids) -> None:
    if len(ids) > 1 and bed.strikes():
        ids[:] = np.roll(ids, -1)


def _change_last(bed: Bed, ids: Ids, to: int, share: float) -> None:
    if len(ids) and ids[-1] != to and bed.strikes(share):
        ids[-1] = to


def _any_block(bed: Bed, but: Ids) -> int:
    """A block of the device that is not one of these."""
    return bed.rng.choice([block for block in range(1, BLOCKS) if block not in but])


def _let_fences_miss(bed: Bed) -> None:
    """A block that is not tied to a job can be untied from it: the scheduler does not fall over it."""

    @bed.around(OffloadingConnectorScheduler, "_remove_pending_job")
    def removes(original: Original, self: OffloadingConnectorScheduler, number: int, blocks: list[int] | None) -> None:
        tied = [block for block in blocks or () if number in self._block_id_to_pending_jobs.get(block, ())]
        original(self, number, tied)


# --- fences: who waits for a store before its source gets new content -----------------------------------------------------


@planted_at(OffloadingConnectorScheduler, "_update_req_states", "full", "window", "hybrid", "full-async")
def no_flush_at_reuse(bed: Bed, original: Original, self: Any, output: SchedulerOutput) -> None:
    """Nobody looks which blocks are handed out again: a store of them is not waited for."""
    original(self, output)
    if self._current_batch_allocated_block_ids & self._block_id_to_pending_jobs.keys():
        bed.strikes()
    self._current_batch_allocated_block_ids.clear()


@planted_by(_change_step, "full", "window", "full-async")
def flush_of_another_job(bed: Bed, scheduler: OffloadingConnectorScheduler, meta: OffloadingConnectorMetadata) -> None:
    """Where a job should be waited for, another one is."""
    flushed = meta.jobs_to_flush
    others = [number for number, job in scheduler._jobs.items() if job.is_store and number not in flushed]
    others = [number for number in others if number not in meta.store_jobs]
    if flushed and others and bed.strikes():
        flushed.remove(min(flushed))
        flushed.add(others[0])


@planted_at(OffloadingConnectorScheduler, "_build_connector_meta", "full", "window", "hybrid", "full-async")
def no_flush_at_preemption(bed: Bed, original: Original, self: Any, output: SchedulerOutput) -> OffloadingConnectorMetadata:
    """The stores of a request that is preempted are not waited for."""
    if any(self._req_status[name].transfer_jobs for name in output.preempted_req_ids or () if name in self._req_status):
        bed.strikes()
    with mock.patch.object(output, "preempted_req_ids", set()):
        return original(self, output)


@planted_at(OffloadingConnectorScheduler, "request_finished", "full", "full-async", "hybrid", first=_let_fences_miss)
def no_fence_at_the_end(bed: Bed, original: Original, self: Any, request: Request) -> object:
    """The blocks of a request that ends are not tied to its stores."""
    status = self._req_status.get(request.request_id)
    numbers = [] if status is None else list(status.transfer_jobs)
    ended = original(self, request)
    for number in numbers:
        if self._jobs[number].deferred_fence_block_ids and bed.strikes():
            self._remove_pending_job(number, self._jobs[number].deferred_fence_block_ids)
    return ended


@planted_at(OffloadingConnectorScheduler, "_build_store_jobs", "full", "full-async", "hybrid", first=_let_fences_miss)
def no_fence_behind_the_end(bed: Bed, original: Original, self: Any, output: SchedulerOutput) -> dict[int, TransferJob]:
    """The blocks of a store that is made when its request has ended are not tied to it."""
    jobs: dict[int, TransferJob] = original(self, output)
    for number, job in jobs.items():
        if self._req_status[job.req_id].req.is_finished() and bed.strikes():
            self._current_batch_jobs_to_flush.discard(number)
            self._remove_pending_job(number, self._jobs[number].deferred_fence_block_ids)
    return jobs


def _no_fence_when_made(bed: Bed, maker: str) -> None:
    _let_fences_miss(bed)

    @bed.around(OffloadingConnectorScheduler, maker)
    def builds(original: Original, self: OffloadingConnectorScheduler, what: object) -> dict[int, TransferJob]:
        jobs: dict[int, TransferJob] = original(self, what)
        for number in jobs:
            if self._jobs[number].fenced_block_ids and bed.strikes():
                self._remove_pending_job(number, self._jobs[number].fenced_block_ids)
        return jobs


@planted("window", "window-async", "hybrid")
def no_fence_for_a_window(bed: Bed) -> None:
    """The blocks of a window, which may go back at any time, are not tied to their store."""
    _no_fence_when_made(bed, "_build_store_jobs")


@planted("states", "states-again")
def no_fence_for_a_state(bed: Bed) -> None:
    """The block of a state is not tied to its store."""
    _no_fence_when_made(bed, "_build_aligned_boundary_store_jobs")


@planted_at(OffloadingConnectorScheduler, "_reset_cache", "resets", "full-resets")
def no_flush_at_reset(bed: Bed, original: Original, self: Any) -> None:
    """A reset of the host does not wait for what is out."""
    if self._jobs:
        bed.strikes()
    original(self)
    self._current_batch_jobs_to_flush.clear()


@planted_at(OffloadingConnectorScheduler, "has_pending_push_work", "full", "full-async", "window")
def sleeps_with_stores_out(bed: Bed, original: Original, self: Any) -> bool:
    """The engine is not kept awake for stores that are out (as vllm#42611)."""
    return bool(original(self)) and not bed.strikes()


# --- reports: when a job is over ------------------------------------------------------------------------------------------


@planted_at(OffloadingConnectorScheduler, "_update_connector_output", "full-async", "window-async")
def first_worker_ends_a_store(bed: Bed, original: Original, self: Any, output: KVConnectorOutput) -> None:
    """A store is over when the first worker says so."""
    done = {} if output.kv_connector_worker_meta is None else output.kv_connector_worker_meta.completed_jobs
    for number, count in list(done.items()):
        job = self._jobs.get(number)
        if job is None:
            del done[number]
        elif job.is_store and count < job.pending_count and bed.strikes():
            job.pending_count = count
    original(self, output)


@planted_at(OffloadingConnectorScheduler, "_reset_cache", "resets", "full-resets", seen=False)
def late_report_after_reset(bed: Bed, original: Original, self: Any) -> None:
    """After a reset a report of a job from before it is taken for one of a job that there is."""
    if self._jobs:
        bed.strikes()
    original(self)
    self._stale_job_threshold = 0


@planted_at(CPUOffloadingManager, "complete_store", "full", "window", "full-async")
def store_is_never_over(bed: Bed, original: Original, self: Any, *args: object, **more: object) -> None:
    """Now and then the manager does not hear that a store is over: its slots stay as they are for ever."""
    if not bed.strikes(0.01):
        original(self, *args, **more)


@planted_at(CPUOffloadingManager, "complete_load", "full", "window", "full-async")
def load_keeps_its_slots(bed: Bed, original: Original, self: Any, *args: object) -> None:
    """Now and then a load that is over leaves its slots pinned."""
    if not bed.strikes(0.1):
        original(self, *args)


@planted_at(CPUOffloadingManager, "prepare_store", "full", "window", "full-async")
def found_before_it_is_stored(
    bed: Bed, original: Original, self: Any, keys: Collection[OffloadKey], context: ReqContext
) -> PrepareStoreOutput | None:
    """A lookup finds what is to be stored from the moment of its plan on."""
    made = original(self, keys, context)
    if made is not None and made.keys_to_store and bed.strikes():
        self.complete_store(made.keys_to_store, context)
    return made


# --- slots ----------------------------------------------------------------------------------------------------------------


@planted("full-tight", "window-tight", "full-async-tight")
def slot_read_is_not_pinned(bed: Bed) -> None:
    """A slot may be displaced while a load reads it."""
    complete = CPUOffloadingManager.complete_load

    @bed.around(CPUOffloadingManager, "_prepare_load")
    def prepares(
        original: Original, self: CPUOffloadingManager, keys: Collection[OffloadKey], context: ReqContext, **more: object
    ) -> LoadStoreSpec:
        bed.strikes()
        made = original(self, keys, context, **more)
        complete(self, keys, context)
        return made

    @bed.around(CPUOffloadingManager, "complete_load")
    def completes(original: Original, self: CPUOffloadingManager, *args: object) -> None:
        """They are let go of already."""


@planted_at(CPUOffloadingManager, "prepare_store", "full", "window", "full-async")
def slot_written_is_free(
    bed: Bed, original: Original, self: Any, keys: Collection[OffloadKey], context: ReqContext
) -> PrepareStoreOutput | None:
    """A slot is free while its store is out."""
    made = original(self, keys, context)
    for key in () if made is None else made.keys_to_store:
        if bed.strikes(0.2):
            self.complete_store([key], context, success=False)
    return made


@planted_at(CPUOffloadingManager, "_free_chunk", "full", "window", "full-async")
def slot_is_free_twice(bed: Bed, original: Original, self: Any, chunk: object) -> None:
    """A slot that is displaced is free twice."""
    original(self, chunk)
    if bed.strikes(0.05):
        original(self, chunk)


@planted_at(CPUOffloadingManager, "prepare_store", "full", "window", "full-async")
def stored_while_it_is_stored(
    bed: Bed, original: Original, self: Any, keys: Collection[OffloadKey], context: ReqContext
) -> PrepareStoreOutput | None:
    """What is being stored is stored a second time, into another slot."""
    for key in keys:
        chunk = self._policy.get(key)
        if chunk is not None and not chunk.is_ready and bed.strikes(0.5):
            self._policy.remove(key)
            self._num_write_pending_chunks -= 1
    return original(self, keys, context)


# --- what is stored -------------------------------------------------------------------------------------------------------


@planted("full", "window", "full-async", "hybrid", "chunks")
def store_of_neighbours(bed: Bed) -> None:
    """The blocks of a store are one place off."""
    _change_stores(bed, lambda scheduler, job: _rotate(bed, job.src_spec.block_ids))


@planted("full", "window", "full-async")
def store_to_neighbours(bed: Bed) -> None:
    """The slots of a store are one place off."""
    _change_stores(bed, lambda scheduler, job: _rotate(bed, job.dst_spec.block_ids))


@planted_by(_change_stores, "full", "window", "full-async")
def store_of_foreign_block(bed: Bed, scheduler: OffloadingConnectorScheduler, job: TransferJob) -> None:
    """One block of a store is any other block."""
    ids = job.src_spec.block_ids
    _change_last(bed, ids, _any_block(bed, ids), 0.1)


@planted("full", "window", "full-async", "hybrid")
def store_of_null_block(bed: Bed) -> None:
    """One block of a store is the null block."""
    _change_stores(bed, lambda scheduler, job: _change_last(bed, job.src_spec.block_ids, 0, 0.1))


@planted_by(_change_stores, "chunks")
def store_counts_from_wrong_block(bed: Bed, scheduler: OffloadingConnectorScheduler, job: TransferJob) -> None:
    """The index of a store's first block is one off."""
    bed.strikes()
    job.src_spec.block_indices = [index and index + 1 for index in job.src_spec.block_indices]


@planted_at(OffloadingConnectorScheduler, "_update_req_states", "window", "window-async", "hybrid")
def stale_entries_of_a_window(bed: Bed, original: Original, self: Any, output: SchedulerOutput) -> None:
    """What a window has given back stays in the table from which stores are made (as vllm#42959)."""
    bed.strikes()
    with mock.patch.object(self, "_sliding_window_groups", ()):
        original(self, output)


def _count_more(bed: Bed, more: Callable[[RequestOffloadState, int], int]) -> None:
    """Let more tokens count as computed, and so be stored, than there are."""

    @bed.around(OffloadingConnectorScheduler, "_calc_num_offloadable_tokens")
    def counts(original: Original, self: OffloadingConnectorScheduler, status: RequestOffloadState, computed: int) -> int:
        true: int = original(self, status, computed)
        false: int = original(self, status, more(status, computed))
        return false if false // BLOCK > true // BLOCK and bed.strikes() else true


@planted("full", "full-async", "hybrid", "window")
def stored_before_computed(bed: Bed) -> None:
    """A block is stored one block ahead of what the step computes."""
    _count_more(bed, lambda status, computed: computed if status.req.is_finished() else computed + BLOCK)


@planted("full", "full-async", "hybrid", "window")
def last_token_is_stored(bed: Bed) -> None:
    """The last token of a request, which is said and never computed, counts as computed."""
    _count_more(bed, lambda status, computed: computed + (status.req.status is RequestStatus.FINISHED_LENGTH_CAPPED))


@planted_by(_change_step, "full", "window", "full-async")
def store_does_not_reach_workers(bed: Bed, scheduler: OffloadingConnectorScheduler, meta: OffloadingConnectorMetadata) -> None:
    """Now and then a store that was planned is not told to the workers."""
    for number in [number for number in meta.store_jobs if bed.strikes(0.02)]:
        del meta.store_jobs[number]


def _change_handoffs(bed: Bed, change: Callable[[OffloadingConnectorScheduler, str, int, int, int], tuple[int, int]]) -> None:
    """Change block and tokens of the states that are handed off."""

    @bed.around(OffloadingConnectorScheduler, "_build_aligned_boundary_store_jobs")
    def builds(original: Original, self: OffloadingConnectorScheduler, handoffs: Handoffs) -> dict[int, TransferJob]:
        changed = {
            name: [(group, *change(self, name, group, block, tokens)) for group, block, tokens in states]
            for name, states in handoffs.items()
        }
        jobs: dict[int, TransferJob] = original(self, changed)
        return jobs


@planted_by(_change_handoffs, "states", "states-again")
def state_of_another_block(
    bed: Bed, scheduler: OffloadingConnectorScheduler, name: str, group: int, block: int, tokens: int
) -> tuple[int, int]:
    """A state is stored from another block than the one that was handed off."""
    status = scheduler._req_status.get(name)
    table = [] if status is None else status.group_states[group].block_ids
    others = [other for other in table if other not in (0, block)]
    return (others[-1] if block and others and bed.strikes() else block), tokens


@planted_by(_change_handoffs, "states", "states-again")
def state_of_another_boundary(
    bed: Bed, scheduler: OffloadingConnectorScheduler, name: str, group: int, block: int, tokens: int
) -> tuple[int, int]:
    """A state is stored under the name of the boundary one block before its own."""
    return block, tokens - BLOCK if tokens > BLOCK and bed.strikes() else tokens


# --- what is loaded -------------------------------------------------------------------------------------------------------


@planted("full", "full-async", "hybrid", "window", "sync-loads", "chunks")
def load_to_neighbours(bed: Bed) -> None:
    """The blocks of a load are one place off."""
    _change_loads(bed, lambda scheduler, job: _rotate(bed, job.dst_spec.block_ids))


@planted("full", "full-async", "hybrid", "window")
def load_of_neighbours(bed: Bed) -> None:
    """The slots of a load are one place off."""
    _change_loads(bed, lambda scheduler, job: _rotate(bed, job.src_spec.block_ids))


@planted_by(_change_loads, "full", "full-async", "hybrid", "window")
def load_to_foreign_block(bed: Bed, scheduler: OffloadingConnectorScheduler, job: TransferJob) -> None:
    """One block of a load goes to any other block."""
    ids = job.dst_spec.block_ids
    _change_last(bed, ids, _any_block(bed, ids), 1.0)


@planted_by(_change_loads, "full", "full-async", "hybrid", "window")
def load_twice_into_one_block(bed: Bed, scheduler: OffloadingConnectorScheduler, job: TransferJob) -> None:
    """The last two blocks of a load go into one."""
    ids = job.dst_spec.block_ids
    if len(ids) > 1:
        _change_last(bed, ids, ids[-2], 1.0)


@planted_by(_change_loads, "full", "full-async", "hybrid", "window", "sync-loads")
def load_is_too_short(bed: Bed, scheduler: OffloadingConnectorScheduler, job: TransferJob) -> None:
    """The last block of a hit is not loaded."""
    device, host = job.dst_spec, job.src_spec
    if device.group_sizes[-1] > 1 and bed.strikes():
        device.block_ids, host.block_ids = device.block_ids[:-1], host.block_ids[:-1]
        device.group_sizes = [*device.group_sizes[:-1], device.group_sizes[-1] - 1]


@planted_by(_change_loads, "sync-loads")
def load_of_this_step_is_late(bed: Bed, scheduler: OffloadingConnectorScheduler, job: TransferJob) -> None:
    """A load that the step needs is told as one that it does not wait for."""
    job.sync = job.sync and not bed.strikes()


@planted_by(_change_step, "full", "full-async", "window")
def load_does_not_reach_workers(bed: Bed, scheduler: OffloadingConnectorScheduler, meta: OffloadingConnectorMetadata) -> None:
    """Now and then a load that was planned is not told to the workers."""
    for number in [number for number in meta.load_jobs if bed.strikes(0.05)]:
        del meta.load_jobs[number]


@planted_at(RequestOffloadState, "update_offload_keys", "full", "full-async", "hybrid", "window", "chunks")
def key_of_another_block(bed: Bed, original: Original, self: Any) -> None:
    """The key of a chunk is now and then made from the hash of the block ahead of it."""
    before = [len(state.offload_keys) for state in self.group_states]
    original(self)
    for config, state, start in zip(self.config.kv_group_configs, self.group_states, before, strict=True):
        for at in range(max(1, start), len(state.offload_keys)):
            if bed.strikes(0.1):
                ahead = self.req.block_hashes[(at + 1) * config.hashes_per_chunk - 2]
                state.offload_keys[at] = make_offload_key(ahead, config.group_idx)


@planted_at(OffloadingConnectorScheduler, "_lookup", "full", "full-async", "hybrid", "window", "chunks")
def lookup_promises_one_more(bed: Bed, original: Original, self: Any, status: RequestOffloadState, *more: object) -> object:
    """A lookup promises the tokens of one chunk more than it has found."""
    found = original(self, status, *more)
    step = self.config.kv_group_configs[0].tokens_per_chunk
    room = status.req.num_tokens - 1 - status.num_locally_computed_tokens
    return found + step if found and found + step <= room and bed.strikes(0.3) else found


@planted("full", "full-async", "hybrid", "window")
def miss_is_a_hit(bed: Bed) -> None:
    """The host takes a chunk that it does not have for one that it has."""
    _answer(bed, LookupResult.MISS, 0.1)


@planted("full", "full-async", "hybrid", "window")
def pending_is_a_hit(bed: Bed) -> None:
    """The host takes a chunk that is still being stored for one that can be read."""
    _answer(bed, LookupResult.HIT_PENDING, 1.0)


def _answer(bed: Bed, instead: LookupResult, share: float) -> None:
    """Let lookups in the host answer with a hit instead."""

    @bed.around(CPUOffloadingManager, "lookup")
    def looks_up(original: Original, self: CPUOffloadingManager, *args: object) -> object:
        found = original(self, *args)
        return LookupResult.HIT if found is instead and bed.strikes(share) else found
