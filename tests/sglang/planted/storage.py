"""Bugs in the storage behind the host: what is read ahead, and what is written."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tests.behind.planted import Bed, Original, planted, planted_at


@planted_at(HiCacheController, "_page_transfer_kv_batch", "storage", seen=False)
def last_page_of_a_read_is_missing(
    bed: Bed, original: Original, self: Any, operation: Any, hashes: list[str], host: torch.Tensor, *args: object
) -> int:
    """The last page that is read ahead counts as read, and was not."""
    if len(hashes) > 1 and bed.strikes(0.5):
        return int(original(self, operation, hashes[:-1], host[: -self.page_size], *args)) + 1
    return int(original(self, operation, hashes, host, *args))


@planted_at(UnifiedRadixCache, "_handle_prefetch_result", "storage")
def read_ahead_is_freed_twice(bed: Bed, original: Original, self: Any, operation: Any) -> None:
    """Pages that were read ahead and that the tree has kept are given back."""
    pages = operation.host_indices[: operation.completed_tokens]
    original(self, operation)
    if len(pages) and bed.strikes():
        self.cache_controller.append_host_mem_release(pages[: self.page_size])


@planted("storage", "storage-back")
def rest_of_a_short_read_stays(bed: Bed) -> None:
    """A read comes short, as storage may forget a page, and the memory for what has not come is not given back."""
    short = []

    @bed.around(HiCacheController, "_page_transfer_kv_batch")
    def reads(
        original: Original, self: HiCacheController, operation: Any, hashes: list[str], host: torch.Tensor, *args: object
    ) -> int:
        if len(hashes) > 1 and bed.rng.random() < 0.5:
            short.append(operation)
            return int(original(self, operation, hashes[:-1], host[: -self.page_size], *args))
        return int(original(self, operation, hashes, host, *args))

    @bed.around(HybridCacheController, "append_host_mem_release")
    def gives_back(original: Original, self: HybridCacheController, host_indices: Any = None, extra_pools: Any = None) -> None:
        left = any(_is_end(host_indices, each.host_indices) for each in short)
        original(self, None if left and bed.strikes() else host_indices, extra_pools)


def _is_end(part: Any, whole: Any) -> bool:
    """Whether these are the last of those."""
    return part is not None and whole is not None and 0 < len(part) <= len(whole) and torch.equal(whole[-len(part) :], part)


@planted_at(UnifiedRadixCache, "write_backup_storage", "storage-tight")
def pages_being_written_are_not_locked(bed: Bed, original: Original, self: Any, node_id: Any) -> None:
    """Host pages are not locked while storage writes them out."""
    before = set(self.ongoing_backup)
    original(self, node_id)
    for operation in set(self.ongoing_backup) - before:
        node, params = self.ongoing_backup.pop(operation)
        self.dec_host_lock_ref(node, params)
        bed.strikes()


@planted_at(HybridCacheController, "write_storage", "storage", seen=False)
def written_under_the_name_of_a_neighbour(
    bed: Bed, original: Original, self: Any, host: torch.Tensor, *args: object, **kwargs: object
) -> object:
    """Pages are written out one page off, the last under the name of the first."""
    if len(host) > self.page_size and bed.strikes(0.3):
        host = torch.roll(host, self.page_size)
    return original(self, host, *args, **kwargs)
