"""Bugs in the storage behind the host: what is read ahead, and what is written."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.hicache_storage import HiCacheFile
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.rust_tree_core.adapter import RustUnifiedTreeCore
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tests.behind.planted import Bed, Original, planted, planted_at


@planted_at(HiCacheController, "_page_transfer_kv_batch", "storage")
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


@planted_at(HybridCacheController, "write_storage", "storage")
def written_under_the_name_of_a_neighbour(
    bed: Bed, original: Original, self: Any, host: torch.Tensor, *args: object, **kwargs: object
) -> object:
    """Pages are written out one page off, the last under the name of the first."""
    if len(host) > self.page_size and bed.strikes(0.3):
        host = torch.roll(host, self.page_size)
    return original(self, host, *args, **kwargs)


@planted_at(HiCacheController, "_generic_page_get", "storage", "storage-back")
def read_into_the_page_of_a_neighbour(
    bed: Bed, original: Original, self: Any, operation: Any, hashes: list[str], host: torch.Tensor, *args: object
) -> object:
    """What is read ahead goes one page off, the last in the place of the first."""
    if len(host) > self.page_size and bed.strikes(0.5):
        host = torch.roll(host, self.page_size)
    return original(self, operation, hashes, host, *args)


@planted_at(RustUnifiedTreeCore, "build_storage_backup_spec", "storage", "storage-back")
def published_under_the_key_of_a_neighbour(bed: Bed, original: Original, self: Any, *args: object) -> object:
    """The tree has the keys of the pages that it wants written one off, the last for the first."""
    spec: Any = original(self, *args)
    if spec is not None and len(spec.hash_value) > 1 and bed.strikes(0.3):
        spec = spec._replace(hash_value=[*spec.hash_value[-1:], *spec.hash_value[:-1]])
    return spec


@planted("storage", seen=False)
def storage_finds_another_page(bed: Bed) -> None:
    """The storage gives back what it has under the key that it was asked for before."""
    before: list[str] = []

    @bed.around(HiCacheFile, "get")
    def gets(original: Original, self: HiCacheFile, key: str, *args: object, **kwargs: object) -> object:
        asked = before[0] if before and bed.strikes(0.3) else key
        before[:] = [key]
        return original(self, asked, *args, **kwargs)
