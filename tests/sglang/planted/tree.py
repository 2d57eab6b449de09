"""Bugs in the tree: locks, evictions, what is inserted, acknowledgements, what ranks agree on. Whichever core is behind it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore
from sglang.srt.mem_cache.unified_cache.cache_action import CacheAction, FreeDeviceKV
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tests.behind.planted import Original, planted, planted_at
from tests.sglang.planted import Bed
from tests.sglang.rig import Rank

# --- locks ----------------------------------------------------------------------------------------------------------------


@planted_at(UnifiedRadixCache, "init_load_back", "back", "back-tight", "pages")
def loaded_prefix_is_not_locked(bed: Bed, original: Original, self: Any, params: Any) -> object:
    """A request locks the node that was on the device before its load, not the one that is loaded."""
    before = params.req.last_node
    loaded = original(self, params)
    return (loaded[0], before) if loaded and loaded[0] and bed.strikes() else loaded


@planted_at(UnifiedRadixCache, "checkpoint_into_tree", "pages", "full")
def lock_stays_behind(bed: Bed, original: Original, self: Any, req: Any, *, up_to: int, **kwargs: object) -> None:
    """What a running request publishes is not locked for it: its lock stays on the node that it had before."""
    before = req.last_node
    original(self, req, up_to=up_to, **kwargs)
    if not req.finished() and req.last_node != before and bed.strikes():
        self.unlock(req.lock)
        req.lock = self.lock(before)


@planted_at(UnifiedRadixCache, "unlock", "pages", "full")
def unlocked_twice(bed: Bed, original: Original, self: Any, lock: Any) -> None:
    """A lock is released a second time, which takes away one of another request."""
    original(self, lock)
    if lock is not None and bed.strikes(0.1):
        original(self, lock)


@planted_at(UnifiedRadixCache, "on_release", "pages", "full")
def lock_outlives_its_request(bed: Bed, original: Original, self: Any, req: Any, *, checkpointed: bool) -> None:
    """A request that ends leaves its lock behind."""
    if req.last_node is not None and bed.strikes(0.05):
        self.lock(req.last_node)
    original(self, req, checkpointed=checkpointed)


@planted("back-tight", "pages")
def host_lock_ends_with_the_queue(bed: Bed) -> None:
    """The host pages of a load are locked until it is queued, not until it has landed."""

    @bed.around(UnifiedRadixCache, "load_back")
    def loads(original: Original, self: UnifiedRadixCache, node_id: Any, *args: object, **kwargs: object) -> object:
        loaded = original(self, node_id, *args, **kwargs)
        if loaded and bed.strikes():
            entry = self.ongoing_load_back[node_id]
            self.dec_host_lock_ref(node_id, entry.host_lock_params)
            self.ongoing_load_back[node_id] = entry._replace(host_lock_params=None)
        return loaded

    @bed.around(UnifiedRadixCache, "dec_host_lock_ref")
    def releases(original: Original, self: UnifiedRadixCache, node_id: Any, params: Any) -> object:
        return None if params is None else original(self, node_id, params)


@planted("back-tight", "pages")
def host_lock_stays(bed: Bed) -> None:
    """The lock on the host pages of a load is never released."""
    checking = []

    @bed.around(UnifiedRadixCache, "loading_check")
    def checks(original: Original, self: UnifiedRadixCache, *args: object, **kwargs: object) -> None:
        checking.append(self)
        original(self, *args, **kwargs)
        checking.pop()

    @bed.around(UnifiedRadixCache, "dec_host_lock_ref")
    def releases(original: Original, self: UnifiedRadixCache, node_id: Any, params: Any) -> object:
        return None if checking and bed.strikes() else original(self, node_id, params)


@planted_at(UnifiedRadixCache, "dec_host_lock_ref", "back-tight", "pages", "storage")
def host_unlocked_twice(bed: Bed, original: Original, self: Any, node_id: Any, params: Any) -> object:
    """A lock on host memory is released a second time."""
    result = original(self, node_id, params)
    return original(self, node_id, params) if bed.strikes(0.1) else result


# --- eviction -------------------------------------------------------------------------------------------------------------


def _change_frees(bed: Bed, name: str, share: float, change: Any) -> None:
    """Change one of the tensors that a step of the tree wants freed, on the device or on the host."""

    @bed.around(UnifiedRadixCache, name)
    def drains(original: Original, self: UnifiedRadixCache, frees: dict[Any, list[torch.Tensor]]) -> None:
        for kind, tensors in frees.items():
            for at, tensor in enumerate(tensors):
                if len(tensor) and bed.strikes(share):
                    frees[kind][at] = change(tensor, self.page_size)
        original(self, frees)


@planted("pages", "full")
def evicted_page_stays(bed: Bed) -> None:
    """The last page of what is evicted from the device is not freed."""
    _change_frees(bed, "_drain_device_frees", 0.2, lambda tensor, page: tensor[:-page])


@planted("pages", "full")
def evicted_page_freed_twice(bed: Bed) -> None:
    """The first page of what is evicted from the device is freed a second time."""
    _change_frees(bed, "_drain_device_frees", 0.2, lambda tensor, page: torch.cat((tensor, tensor[:page])))


@planted("back-tight", "pages")
def host_page_stays(bed: Bed) -> None:
    """The last page of what is evicted from the host is not freed."""
    _change_frees(bed, "_drain_host_frees", 0.2, lambda tensor, page: tensor[:-page])


@planted("back-tight", "pages")
def host_page_of_another_freed(bed: Bed) -> None:
    """In place of the last page that is evicted from the host the one behind it is freed."""

    def other(tensor: torch.Tensor, page: int) -> torch.Tensor:
        last = tensor[-page:] + page
        return torch.cat((tensor[:-page], last)) if int(last[-1]) < 26 * page else tensor

    _change_frees(bed, "_drain_host_frees", 0.2, other)


@planted_at(UnifiedRadixCache, "writing_check", "back", "back-tight")
def write_back_not_awaited(bed: Bed, original: Original, self: Any, write_back: bool = False, **kwargs: object) -> None:
    """An eviction that writes back does not wait for its copies: pages are handed out while they are still read."""
    if write_back and self.cache_controller is not None and bed.strikes():
        self.cache_controller.start_writing()
    else:
        original(self, write_back, **kwargs)


# --- what is inserted -----------------------------------------------------------------------------------------------------


@planted_at(UnifiedRadixCache, "_apply_cache_action", "pages", "full")
def duplicates_stay(bed: Bed, original: Original, self: Any, action: CacheAction) -> None:
    """Pages of a request that the tree has already are not freed when it inserts its own."""
    if not (isinstance(action, FreeDeviceKV) and any(len(each) for each in action.indices) and bed.strikes(0.3)):
        original(self, action)


@planted("pages", "full")
def row_keeps_freed_duplicate(bed: Bed) -> None:
    """A request goes on with its own pages, which were freed as duplicates of what the tree has."""
    inserting = []

    @bed.around(UnifiedRadixCache, "checkpoint_into_tree")
    def checkpoints(original: Original, self: UnifiedRadixCache, req: Any, **kwargs: object) -> None:
        inserting.append(req)
        original(self, req, **kwargs)
        inserting.pop()

    @bed.around(ReqToTokenPool, "write")
    def writes(original: Original, self: ReqToTokenPool, indices: Any, values: torch.Tensor) -> None:
        if inserting and not torch.equal(self.req_to_token[indices], values.to(torch.int32)) and bed.strikes():
            return
        original(self, indices, values)


@planted_at(UnifiedRadixCache, "insert", "pages", "full")
def own_prefix_freed_as_duplicate(bed: Bed, original: Original, self: Any, params: Any) -> object:
    """An insertion forgets where the request's own pages begin, and frees pages of the tree as duplicates."""
    if params.prev_prefix_len > 0 and bed.strikes(0.2):
        params = replace(params, prev_prefix_len=0)
    return original(self, params)


@planted_at(UnifiedRadixCache, "insert", "pages")
def inserted_under_the_wrong_key(bed: Bed, original: Original, self: Any, params: Any) -> object:
    """New pages of a request are inserted one page off, the last in the place of the first."""
    start = -(-params.prev_prefix_len // self.page_size) * self.page_size
    if len(params.value[start:]) > self.page_size and bed.strikes(0.1):
        turned = torch.roll(params.value[start:], self.page_size)
        params = replace(params, value=torch.cat((params.value[:start], turned)))
    return original(self, params)


@planted_at(UnifiedRadixCache, "_replace_pending_write_through_node", "pages", "selective", "full")
def split_is_not_passed_on(bed: Bed, original: Original, self: Any, ack_id: int, *args: object) -> None:
    """A node is split while it is being stored, and the store goes on knowing one half only."""
    if ack_id not in self.ongoing_write_through or not bed.strikes():
        original(self, ack_id, *args)


# --- acknowledgements and backups -----------------------------------------------------------------------------------------


@planted_at(UnifiedRadixCache, "_finish_write_through_ack", "pages", "full")
def acknowledgement_lost(bed: Bed, original: Original, self: Any, ack_id: int) -> None:
    """An acknowledgement of a store is taken from the queue, and the tree does nothing about it."""
    if not bed.strikes(0.05):
        original(self, ack_id)


@planted_at(HybridCacheController, "write", "pages", "full")
def store_is_noted_and_not_queued(bed: Bed, original: Original, self: Any, *args: object, **kwargs: object) -> object:
    """The tree notes a store whose copy is not queued."""
    pages = original(self, *args, **kwargs)
    if pages is not None and self.write_queue and bed.strikes(0.1):
        self.write_queue.pop()
    return pages


@planted_at(RustUnifiedTreeCore, "commit_backup", "pages", "back-tight")
def host_pages_noted_in_another_order(
    bed: Bed, original: Original, self: Any, node_id: Any, host: torch.Tensor, *args: object
) -> None:
    """The tree notes the host pages of a store one page off, the last in the place of the first."""
    if len(host) > self.page_size and bed.strikes(0.3):
        host = torch.roll(host, self.page_size)
    original(self, node_id, host, *args)


@planted_at(RustUnifiedTreeCore, "commit_load_back", "pages", "back-tight")
def loaded_pages_noted_in_another_order(
    bed: Bed, original: Original, self: Any, node_id: Any, device: torch.Tensor, *args: object
) -> object:
    """The tree notes the device pages of a load one page off, the last in the place of the first."""
    if len(device) > self.page_size and bed.strikes(0.5):
        device = torch.roll(device, self.page_size)
    return original(self, node_id, device, *args)


# --- several ranks --------------------------------------------------------------------------------------------------------


@planted_at(UnifiedRadixCache, "_all_reduce", "ranks")
def ranks_count_alone(bed: Bed, original: Original, self: Any, *args: object) -> None:
    """Each rank takes note of what has landed on itself, and asks no other."""
    bed.strikes()


@planted_at(UnifiedRadixCache, "_all_reduce", "ranks")
def ranks_take_the_largest_count(bed: Bed, original: Original, self: Any, data: torch.Tensor, operation: object) -> None:
    """Ranks agree on the largest count of what has landed, and not on the smallest."""
    bed.strikes()
    counts = data.reshape(-1)
    digests = counts[-2:].clone() if counts.numel() > 2 else None
    original(self, data, torch.distributed.ReduceOp.MAX)
    if digests is not None:
        counts[-2:] = digests


@planted("ranks")
def rank_stores_less(bed: Bed) -> None:
    """One rank leaves out a store that the other queues."""
    second: list[object] = []

    def mark(rank: Rank) -> None:
        if rank.number == 1:
            second.append(rank.tree)

    bed.on_rank.append(mark)

    @bed.around(UnifiedRadixCache, "_execute_and_commit_kv_backup")
    def stores(original: Original, self: UnifiedRadixCache, *args: object, **kwargs: object) -> object:
        if self in second and bed.strikes(0.2):
            return 0
        return original(self, *args, **kwargs)
