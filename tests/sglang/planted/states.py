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

from tests.behind.planted import Original, planted, planted_at
from tests.sglang.planted import Bed

STATES = ComponentType.MAMBA

# --- where a request begins -----------------------------------------------------------------------------------------------


@planted_at(HybridReqToTokenPool, "copy_mamba_state", "states", "states-overlap")
def cached_state_is_not_copied(bed: Bed, original: Original, self: Any, *args: object) -> None:
    """The state that a request is to go on from is not copied into its slot."""
    if not bed.strikes(0.5):
        original(self, *args)


@planted_at(ScheduleBatch, "_collect_deferred_mamba_cow_and_clear", "states", "states-back")
def request_writes_on_a_cached_state(bed: Bed, original: Original, self: Any, reqs: Any) -> None:
    """A request goes on in the slot of the cached state itself, and gives its own back."""
    table = self.req_to_token_pool
    for req in reqs:
        source = req.kv.mamba_cow_src_index
        if source is not None and bed.strikes(0.2):
            table.mamba_allocator.free(req.kv.mamba_pool_idx.unsqueeze(0))
            req.kv.mamba_pool_idx = source[0].clone()
            table.req_index_to_mamba_index_mapping[req.kv.req_pool_idx] = source[0].to(torch.int32)
            req.kv.mamba_cow_src_index = None
    original(self, reqs)


@planted_at(ScheduleBatch, "_collect_deferred_mamba_cow_and_clear", "states", "states-pages")
def new_slot_is_not_cleared(bed: Bed, original: Original, self: Any, reqs: Any) -> None:
    """A request without a cached state begins with what its slot held before."""
    original(self, reqs)
    if self.mamba_clear_indices is not None and bed.strikes(0.3):
        self.mamba_clear_indices = None


@planted_at(HybridReqToTokenPool, "mamba2_layer_index", "states", "states-pages")
def step_does_not_wait_for_its_state(bed: Bed, original: Original, self: Any, layer_id: int) -> object:
    """A layer reads the state of a request without waiting for its part of the load."""
    counter = self.layer_transfer_counter
    if counter is None or counter.consumer_index < 0 or not bed.strikes():
        return original(self, layer_id)
    return self.mamba_map[layer_id]


# --- what is cached -------------------------------------------------------------------------------------------------------


@planted_at(MambaComponent, "cleanup_after_caching_req", "states", "states-overlap")
def state_freed_although_cached(bed: Bed, original: Original, self: Any, req: Any, is_finished: bool, **kwargs: Any) -> None:
    """The slot of a state that the tree has taken over from a request that ends is given back, too."""
    original(self, req, is_finished, **kwargs)
    result: Any = kwargs.get("insert_result")
    if is_finished and result is not None and not result.mamba_exist and bed.strikes(0.3):
        self._free_mamba_value(kwargs["insert_params"].mamba_value)


@planted_at(MambaComponent, "_free_mamba_value", "states", "states-overlap")
def second_state_of_a_text_stays(bed: Bed, original: Original, self: Any, value: torch.Tensor) -> None:
    """A state that the tree has already is not given back."""
    if not bed.strikes(0.3):
        original(self, value)


@planted_at(HybridReqToTokenPool, "get_mamba_ping_pong_other_idx", "states-overlap")
def states_do_not_take_turns(bed: Bed, original: Original, self: Any, index: int) -> object:
    """The next state to be cached is written where the last one is, which is given to the tree."""
    return index if bed.strikes() else original(self, index)


@planted_at(MambaComponent, "prepare_for_caching_req", "states-pages", "states-overlap")
def state_cached_under_a_shorter_text(bed: Bed, original: Original, self: Any, *args: object, **kwargs: object) -> object:
    """A state is cached as if it were behind one chunk less."""
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


@planted_at(UnifiedRadixCache, "_drain_device_frees", "states", "states-back")
def evicted_state_freed_twice(bed: Bed, original: Original, self: Any, frees: dict[Any, list[torch.Tensor]]) -> None:
    """A state that is evicted from the device is given back twice."""
    if frees.get(STATES) and bed.strikes(0.2):
        frees[STATES] = [*frees[STATES], frees[STATES][0]]
    original(self, frees)


@planted_at(MambaComponent, "free_host_values", "states-back")
def host_state_stays(bed: Bed, original: Original, self: Any, values: list[torch.Tensor]) -> None:
    """A state that is evicted from the host is not given back."""
    if not (values and bed.strikes(0.2)):
        original(self, values)
