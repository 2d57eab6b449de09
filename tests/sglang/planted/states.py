"""Bugs in memory of states: who copies one before writing on it, who gives it back, what waits for its copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.components.mamba import MambaComponent
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tests.planted import Original, planted
from tests.sglang.planted import Bed

STATES = ComponentType.MAMBA

# --- where a request begins -----------------------------------------------------------------------------------------------


@planted("states", "states-overlap")
def cached_state_is_not_copied(bed: Bed) -> None:
    """The state that a request is to go on from is not copied into its slot."""

    @bed.around(HybridReqToTokenPool, "copy_mamba_state")
    def copies(original: Original, self: HybridReqToTokenPool, *args: object) -> None:
        if not bed.strikes(0.5):
            original(self, *args)


@planted("states", "states-back")
def request_writes_on_a_cached_state(bed: Bed) -> None:
    """A request goes on in the slot of the cached state itself, and gives its own back."""

    @bed.around(ScheduleBatch, "_collect_deferred_mamba_cow_and_clear")
    def collects(original: Original, self: ScheduleBatch, reqs: Any) -> None:
        table = self.req_to_token_pool
        for req in reqs:
            source = req.kv.mamba_cow_src_index
            if source is not None and bed.strikes(0.2):
                table.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(0))
                req.kv.mamba_pool_idx = source[0].clone()
                table.req_index_to_mamba_index_mapping[req.kv.req_pool_idx] = source[0].to(torch.int32)
                req.kv.mamba_cow_src_index = None
        original(self, reqs)


@planted("states", "states-pages")
def new_slot_is_not_cleared(bed: Bed) -> None:
    """A request without a cached state begins with what its slot held before."""

    @bed.around(ScheduleBatch, "_collect_deferred_mamba_cow_and_clear")
    def collects(original: Original, self: ScheduleBatch, reqs: Any) -> None:
        original(self, reqs)
        if self.mamba_clear_indices is not None and bed.strikes(0.3):
            self.mamba_clear_indices = None


@planted("states", "states-pages")
def step_does_not_wait_for_its_state(bed: Bed) -> None:
    """A layer reads the state of a request without waiting for its part of the load."""

    @bed.around(HybridReqToTokenPool, "mamba2_layer_index")
    def finds(original: Original, self: HybridReqToTokenPool, layer_id: int) -> object:
        counter = self.layer_transfer_counter
        if counter is None or counter.consumer_index < 0 or not bed.strikes():
            return original(self, layer_id)
        return self.mamba_map[layer_id]


# --- what is cached -------------------------------------------------------------------------------------------------------


@planted("states", "states-overlap")
def state_freed_although_cached(bed: Bed) -> None:
    """The slot of a state that the tree has taken over from a request that ends is given back, too."""

    @bed.around(MambaComponent, "cleanup_after_caching_req")
    def cleans(original: Original, self: MambaComponent, req: Any, is_finished: bool, **kwargs: Any) -> None:
        original(self, req, is_finished, **kwargs)
        result: Any = kwargs.get("insert_result")
        if is_finished and result is not None and not result.mamba_exist and bed.strikes(0.3):
            self._free_mamba_value(kwargs["insert_params"].mamba_value)


@planted("states", "states-overlap")
def second_state_of_a_text_stays(bed: Bed) -> None:
    """A state that the tree has already is not given back."""

    @bed.around(MambaComponent, "_free_mamba_value")
    def frees(original: Original, self: MambaComponent, value: torch.Tensor) -> None:
        if not bed.strikes(0.3):
            original(self, value)


@planted("states-overlap")
def states_do_not_take_turns(bed: Bed) -> None:
    """The next state to be cached is written where the last one is, which is given to the tree."""

    @bed.around(HybridReqToTokenPool, "get_mamba_ping_pong_other_idx")
    def finds(original: Original, self: HybridReqToTokenPool, index: int) -> object:
        return index if bed.strikes() else original(self, index)


@planted("states-pages", "states-overlap")
def state_cached_under_a_shorter_text(bed: Bed) -> None:
    """A state is cached as if it were behind one chunk less."""

    @bed.around(MambaComponent, "prepare_for_caching_req")
    def prepares(original: Original, self: MambaComponent, *args: object, **kwargs: object) -> object:
        tokens: Any = original(self, *args, **kwargs)
        grid = self.mamba_checkpoint_grid
        if tokens is not None and tokens > grid and bed.strikes(0.3):
            return tokens - grid
        return tokens


# --- copies ---------------------------------------------------------------------------------------------------------------


@planted("states", "states-overlap")
def state_unlocked_with_the_queue(bed: Bed) -> None:
    """The lock on a state that is stored ends when its copy is launched: its slot may be handed out while it is read."""

    @bed.around(HiCacheController, "start_writing")
    def launches(original: Original, self: HiCacheController) -> None:
        original(self)
        for tree in trees:
            for name, entry in list(tree.ongoing_write_through.items()):
                params = entry.lock_params
                if params is None or STATES in params.skipped_lock_components or not bed.strikes():
                    continue
                others = tuple(kind for kind in tree.tree_components if kind != STATES)
                tree.dec_lock_ref(entry.node_id, replace(params, skipped_lock_components=others))
                rest = replace(params, skipped_lock_components=(STATES,))
                tree.ongoing_write_through[name] = entry._replace(lock_params=rest)

    trees: list[Any] = []
    bed.on_rank.append(lambda rank: trees.append(rank.tree))


@planted("states", "states-back")
def evicted_state_freed_twice(bed: Bed) -> None:
    """A state that is evicted from the device is given back twice."""

    @bed.around(UnifiedRadixCache, "_drain_device_frees")
    def drains(original: Original, self: UnifiedRadixCache, frees: dict[Any, list[torch.Tensor]]) -> None:
        if frees.get(STATES) and bed.strikes(0.2):
            frees[STATES] = [*frees[STATES], frees[STATES][0]]
        original(self, frees)


@planted("states-back")
def host_state_stays(bed: Bed) -> None:
    """A state that is evicted from the host is not given back."""

    @bed.around(MambaComponent, "free_host_values")
    def frees(original: Original, self: MambaComponent, values: list[torch.Tensor]) -> None:
        if not (values and bed.strikes(0.2)):
            original(self, values)
