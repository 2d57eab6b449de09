"""Bugs in copies between device and host: what is launched, in which order, and what waits for it."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.cache_controller import HiCacheController, LayerDoneCounter
from sglang.srt.mem_cache.l2_transfer import L2TransferEngine
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tests.behind.planted import Original, planted, planted_at
from tests.sglang.planted import Bed
from tests.sglang.rig import Rank


@planted_at(HiCacheController, "start_loading", "back-tight", "pages", "back")
def only_the_first_load_is_launched(bed: Bed, original: Original, self: Any) -> object:
    """Of several loads in the queue only the first is launched, and the others are forgotten."""
    if len(self.load_queue) > 1 and bed.strikes():
        del self.load_queue[1:]
    return original(self)


@planted_at(HiCacheController, "start_writing", "pages", "selective")
def only_the_first_store_is_launched(bed: Bed, original: Original, self: Any) -> None:
    """Of several stores in the queue only the first is launched, and all count as landed with it."""
    names = [name for operation in self.write_queue for name in operation.node_ids]
    if len(self.write_queue) > 1 and bed.strikes(0.3):
        del self.write_queue[1:]
        self.write_queue[0].node_ids = names
    original(self)


@planted_at(HiCacheController, "move_indices", "pages", "back-tight")
def host_pages_sorted_alone(
    bed: Bed, original: Original, self: Any, host: torch.Tensor, device: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The host pages of a copy are sorted, and the device pages that belong to them are not."""
    sorted_, index = host.sort()
    turned = not torch.equal(index, torch.arange(len(index)))
    if turned and bed.strikes():
        return sorted_, device
    moved: tuple[torch.Tensor, torch.Tensor] = original(self, host, device)
    return moved


@planted_at(HostKVCache, "load_to_device_per_layer_physical", "pages", "back-tight")
def load_leaves_out_a_layer(
    bed: Bed, original: Original, self: Any, pool: Any, host: Any, device: Any, layer: int, *args: object, **kwargs: object
) -> None:
    """A load says that a layer has landed, and has not copied it."""
    if not (layer == 1 and bed.strikes(0.3)):
        original(self, pool, host, device, layer, *args, **kwargs)


@planted_at(L2TransferEngine, "submit_device_to_host", "pages", "back-tight")
def store_is_cut_short(bed: Bed, original: Original, self: L2TransferEngine, transfers: list[Any]) -> object:
    """A store leaves out its last page."""
    page = transfers[0].host_pool.page_size
    if len(transfers[0].host_indices) > page and bed.strikes(0.2):
        first = transfers[0]
        cut = first._replace(host_indices=first.host_indices[:-page], device_indices=first.device_indices[:-page])
        transfers = [cut, *transfers[1:]]
    return original(self, transfers)


@planted_at(L2TransferEngine, "submit_host_to_device", "pages", "back-tight")
def load_into_the_page_behind(
    bed: Bed, original: Original, self: L2TransferEngine, transfers: list[Any], **kwargs: object
) -> object:
    """A load is launched one device page off, the last in the place of the first."""
    first = transfers[0]
    page = first.host_pool.page_size
    if len(first.device_indices) > page and bed.strikes(0.5):
        transfers = [first._replace(device_indices=torch.roll(first.device_indices, page)), *transfers[1:]]
    return original(self, transfers, **kwargs)


@planted_at(L2TransferEngine, "submit_host_to_device", "back-tight", "pages", "back")
def load_counts_as_landed_early(
    bed: Bed, original: Original, self: L2TransferEngine, transfers: list[Any], **kwargs: object
) -> object:
    """A load counts as landed as soon as it is launched."""
    completion: Any = original(self, transfers, **kwargs)
    bed.strikes()
    completion.finish_event.query = lambda: True
    completion.finish_event.synchronize = lambda: None
    return completion


@planted_at(UnifiedRadixCache, "ready_to_load_host_cache", "pages", "back-tight", "full")
def step_is_not_told_of_its_load(bed: Bed, original: Original, self: Any) -> object:
    """A step that needs a load is told that it needs none."""
    load: Any = original(self)
    return -1 if load >= 0 and bed.strikes(0.5) else load


@planted_at(UnifiedRadixCache, "ready_to_load_host_cache", "pages", "back-tight", "full")
def step_waits_for_another_load(bed: Bed, original: Original, self: Any) -> object:
    """A step waits for the load before the one that it needs."""
    load: Any = original(self)
    return (load - 1) % 3 if load >= 0 and bed.strikes() else load


@planted("pages-overlap", "full-overlap")
def store_fence_on_another_stream(bed: Bed) -> None:
    """A store waits for a stream on which no step runs."""

    def plant(rank: Rank) -> None:
        bed.strikes()
        controller = rank.engine.controller
        controller.write_fence_stream = controller.l2_transfer_engine.host_to_device_stream

    bed.on_rank.append(plant)


@planted("back-overlap", "pages-overlap")
def load_fence_on_another_stream(bed: Bed) -> None:
    """A load waits for a stream on which no step runs."""

    def plant(rank: Rank) -> None:
        bed.strikes()
        controller = rank.engine.controller
        controller.load_fence_stream = controller.l2_transfer_engine.device_to_host_stream

    bed.on_rank.append(plant)


# --- layers and tokens ----------------------------------------------------------------------------------------------------


@planted_at(LayerDoneCounter, "wait_until", "pages", "back-tight", "full-overlap")
def layer_waits_for_another_load(bed: Bed, original: Original, self: Any, threshold: int) -> None:
    """The last layer of a step waits for its part of the load before the one that it reads."""
    if self.consumer_index >= 0 and threshold == self.num_layers - 1 and bed.strikes():
        self.events[(self.consumer_index - 1) % self.num_counters].wait(threshold)
    else:
        original(self, threshold)


@planted_at(LayerDoneCounter, "wait_until", "pages", "back-tight", "full-overlap")
def layer_waits_for_the_layer_before(bed: Bed, original: Original, self: Any, threshold: int) -> None:
    """Each layer but the first waits for the part of the one before it."""
    is_wrong = self.consumer_index >= 0 and threshold > 0 and bed.strikes()
    original(self, threshold - 1 if is_wrong else threshold)


def _swapped(indices: torch.Tensor) -> torch.Tensor:
    """The second and the third change places."""
    order = torch.arange(len(indices))
    order[[1, 2]] = order[[2, 1]]
    return indices[order]


@planted_at(L2TransferEngine, "submit_device_to_host", "pages", "back-tight")
def tokens_of_a_stored_page_change_places(bed: Bed, original: Original, self: L2TransferEngine, transfers: list[Any]) -> object:
    """A store puts two tokens of a page in each other's place; the page's first token is where it should be."""
    first = transfers[0]
    if first.host_pool.page_size > 2 and len(first.host_indices) and bed.strikes(0.3):
        transfers = [first._replace(host_indices=_swapped(first.host_indices)), *transfers[1:]]
    return original(self, transfers)


@planted_at(L2TransferEngine, "submit_host_to_device", "pages", "back-tight")
def tokens_of_a_loaded_page_change_places(
    bed: Bed, original: Original, self: L2TransferEngine, transfers: list[Any], **kwargs: object
) -> object:
    """A load puts two tokens of a page in each other's place."""
    first = transfers[0]
    if first.host_pool.page_size > 2 and len(first.device_indices) and bed.strikes(0.5):
        transfers = [first._replace(device_indices=_swapped(first.device_indices)), *transfers[1:]]
    return original(self, transfers, **kwargs)


@planted_at(L2TransferEngine, "submit_host_to_device", "pages", "back-tight")
def last_page_of_a_load_has_no_counterpart(
    bed: Bed, original: Original, self: L2TransferEngine, transfers: list[Any], **kwargs: object
) -> object:
    """A load names one device page less than it names host pages."""
    first = transfers[0]
    page = first.host_pool.page_size
    if len(first.device_indices) > page and bed.strikes(0.5):
        transfers = [first._replace(device_indices=first.device_indices[:-page]), *transfers[1:]]
    return original(self, transfers, **kwargs)
