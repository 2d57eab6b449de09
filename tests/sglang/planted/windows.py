"""Bugs in memory of layers with windows: which slot belongs to which token, what is given back, what its copies move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.l2_transfer import L2TransferEngine
from sglang.srt.mem_cache.unified_cache.cache_action import RebuildFullToSWAMapping
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.components.swa import SWAComponent
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tests.behind.planted import Original, planted, planted_at
from tests.sglang.planted import Bed

WINDOWS = ComponentType.SWA

# --- where a window is ----------------------------------------------------------------------------------------------------


@planted_at(UnifiedRadixCache, "evict_sliding_windows", "window-slides")
def window_is_a_page_too_short(bed: Bed, original: Original, self: Any, req: Any, pre_len: int, **more: object) -> None:
    """The window of a running request moves on too early: a page that its next step sees is given back."""
    original(self, req, pre_len + 2 * self.page_size if bed.strikes(0.2) else pre_len, **more)


@planted_at(SWAComponent, "apply_component_action", "window-pages", "window")
def loaded_window_is_turned(bed: Bed, original: Original, self: Any, action: Any) -> None:
    """The slots of a window that was loaded are noted one page off, the last in the place of the first."""
    if isinstance(action, RebuildFullToSWAMapping) and len(action.swa_indices[0]) > self.cache.page_size and bed.strikes():
        turned = [torch.roll(each, self.cache.page_size) for each in action.swa_indices]
        action = RebuildFullToSWAMapping(action.full_indices, turned)
    original(self, action)


@planted_at(SWAComponent, "apply_component_action", "window-pages", "window")
def loaded_window_is_not_noted(bed: Bed, original: Original, self: Any, action: Any) -> None:
    """A window that was loaded is not found by the tokens that it belongs to."""
    if not (isinstance(action, RebuildFullToSWAMapping) and bed.strikes(0.5)):
        original(self, action)


@planted_at(SWATokenToKVPoolAllocator, "set_full_to_swa_mapping", "window-pages", "window")
def tokens_of_a_window_change_places(bed: Bed, original: Original, self: Any, full: torch.Tensor, near: torch.Tensor) -> None:
    """New tokens are written in each other's place in the memory of windows: the last in that of the first."""
    original(self, full, torch.roll(near, 1) if len(near) > 1 and bed.strikes(0.05) else near)


# --- what is given back ---------------------------------------------------------------------------------------------------


@planted_at(SWATokenToKVPoolAllocator, "_free_swa_pages", "window-slides", "window")
def page_behind_a_window_stays(bed: Bed, original: Original, self: Any, index: torch.Tensor, start_pos: int) -> None:
    """The first page that a window has left behind is not given back."""
    rest = index[self.page_size :] if len(index) and bed.strikes(0.1) else index
    if len(rest):
        original(self, rest, start_pos)


@planted_at(SWATokenToKVPoolAllocator, "_free_swa_pages", "window-slides", "window")
def page_behind_a_window_freed_twice(bed: Bed, original: Original, self: Any, index: torch.Tensor, start_pos: int) -> None:
    """It is given back twice."""
    slot = self.full_to_swa_index_mapping[index[:1]]
    original(self, index, start_pos)
    if int(slot[0]) > 0 and bed.strikes(0.05):
        self.swa_attn_allocator.free_page_ids(slot // self.page_size)


@planted_at(SWAComponent, "free_host_values", "window-pages", "window")
def host_window_stays(bed: Bed, original: Original, self: Any, values: list[torch.Tensor]) -> None:
    """A window that is evicted from the host is not given back."""
    if not (values and bed.strikes(0.2)):
        original(self, values)


@planted("window-pages")
def allocator_of_windows_loses_a_page(bed: Bed) -> None:
    """One page of what the memory of windows is given back does not come to its list of free ones."""

    @bed.around(PagedTokenToKVPoolAllocator, "free_page_ids")
    def frees(original: Original, self: PagedTokenToKVPoolAllocator, ids: torch.Tensor) -> None:
        is_near = any(self is each for each in near)
        original(self, ids[:-1] if is_near and len(ids) and bed.strikes(0.2) else ids)

    near: list[object] = []
    bed.on_rank.append(lambda rank: near.append(rank.engine.allocator.swa_attn_allocator))


# --- copies ---------------------------------------------------------------------------------------------------------------


def _of_windows(transfers: list[Any]) -> Any:
    """The copy of windows among these, if one of several pages is there."""
    found = [each for each in transfers[1:] if len(each.host_indices) > each.host_pool.page_size]
    return found[0] if found else None


@planted_at(L2TransferEngine, "submit_device_to_host", "window-pages", "window")
def stored_window_is_turned(bed: Bed, original: Original, self: Any, transfers: list[Any]) -> object:
    """A window is stored one page off, the last in the place of the first."""
    own = _of_windows(transfers)
    if own is not None and bed.strikes(0.3):
        turned = own._replace(host_indices=torch.roll(own.host_indices, own.host_pool.page_size))
        transfers = [turned if each is own else each for each in transfers]
    return original(self, transfers)


@planted_at(L2TransferEngine, "submit_host_to_device", "window-pages", "window")
def window_is_not_loaded(bed: Bed, original: Original, self: Any, transfers: list[Any], **more: object) -> object:
    """A load brings the keys and values of full attention back, and leaves those of the windows out."""
    return original(self, transfers[:1] if transfers[1:] and bed.strikes(0.5) else transfers, **more)


@planted("window-slides", "window-pages")
def window_unlocked_with_the_queue(bed: Bed) -> None:
    """The lock on a window that is stored ends when its copy is launched: it may be handed out while it is read."""

    @bed.around(HiCacheController, "start_writing")
    def launches(original: Original, self: HiCacheController) -> None:
        original(self)
        for tree in trees:
            for name, entry in list(tree.ongoing_write_through.items()):
                params = entry.lock_params
                if params is None or WINDOWS in params.skipped_lock_components or not bed.strikes():
                    continue
                others = tuple(kind for kind in tree.tree_components if kind != WINDOWS)
                tree.dec_lock_ref(entry.node_id, replace(params, skipped_lock_components=others))
                rest = replace(params, skipped_lock_components=(WINDOWS,))
                tree.ongoing_write_through[name] = entry._replace(lock_params=rest)

    trees: list[Any] = []
    bed.on_rank.append(lambda rank: trees.append(rank.tree))
