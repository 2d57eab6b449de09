"""Bugs in who has which memory: allocators, rows of requests, chunks, flushes."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tests.behind.planted import Bed, Original, planted, planted_at

# --- allocators -----------------------------------------------------------------------------------------------------------


def _keep_a_page(bed: Bed, name: str) -> None:
    """Leave the last page of what is handed out in the list of free ones."""

    @bed.around(PagedTokenToKVPoolAllocator, name)
    def hands_out(original: Original, self: PagedTokenToKVPoolAllocator, *args: object, **kwargs: object) -> object:
        before = self.free_pages
        handed: Any = original(self, *args, **kwargs)
        taken = len(before) - len(self.free_pages)
        if handed is not None and taken > 0 and bed.strikes(0.05):
            self.free_pages = torch.cat((self.free_pages, before[taken - 1 : taken]))
        return handed


@planted("pages", "back-tight")
def page_of_a_prompt_stays_free(bed: Bed) -> None:
    """Pages for a prompt are counted one too few: the last one can be handed out again."""
    _keep_a_page(bed, "alloc_extend")


@planted("pages", "back-tight")
def page_of_an_answer_stays_free(bed: Bed) -> None:
    """A new page for an answer can be handed out again."""
    _keep_a_page(bed, "alloc_decode")


@planted_at(TokenToKVPoolAllocator, "alloc", "full")
def token_slot_stays_free(bed: Bed, original: Original, self: Any, need_size: int) -> object:
    """With pages of one token, the last one that is handed out can be handed out again."""
    handed: Any = original(self, need_size)
    if handed is not None and len(handed) and bed.strikes(0.03):
        self.free_pages = torch.cat((self.free_pages, handed[-1:]))
    return handed


@planted_at(PagedTokenToKVPoolAllocator, "free_segment", "pages")
def page_filled_in_part_stays(bed: Bed, original: Original, self: Any, index: torch.Tensor, *, start_pos: int) -> None:
    """A page that a request has filled in part only is not freed with it."""
    full = len(index) // self.page_size * self.page_size
    if full < len(index) and bed.strikes(0.3):
        index = index[:full]
    original(self, index, start_pos=start_pos)


@planted_at(UnifiedRadixCache, "free_kv_row", "pages", "full")
def page_before_the_tail_is_freed(bed: Bed, original: Original, self: Any, kv: Any, ranges: list[tuple[int, int]]) -> None:
    """With the tail of a request the page in front of it is freed, which is the tree's."""
    page = self.page_size
    aligned = [start >= page and start % page == 0 and start == kv.cache_protected_len for start, _ in ranges]
    if any(aligned) and bed.strikes(0.1):
        ranges = [(start - page * moved, stop) for (start, stop), moved in zip(ranges, aligned, strict=True)]
    original(self, kv, ranges)


@planted_at(UnifiedRadixCache, "free_kv_row", "pages", "full")
def tail_stays(bed: Bed, original: Original, self: Any, kv: Any, ranges: list[tuple[int, int]]) -> None:
    """What a request has behind its part of the tree is not freed when it ends."""
    if not (any(stop > start for start, stop in ranges) and bed.strikes(0.2)):
        original(self, kv, ranges)


@planted_at(HostKVCache, "alloc", "pages", "back-tight")
def host_page_stays_free(bed: Bed, original: Original, self: Any, need_size: int) -> object:
    """The first host page of a store can be handed out again."""
    handed: Any = original(self, need_size)
    if handed is not None and len(handed) and bed.strikes(0.1):
        page = handed[: self.page_size]
        self.slot_used[page] = False
        self.free_slots = torch.cat((self.free_slots, page))
    return handed


@planted_at(HostKVCache, "free", "pages", "back-tight")
def host_page_is_lost_in_the_pool(bed: Bed, original: Original, self: Any, indices: torch.Tensor) -> object:
    """The last page that the host's memory is given back it does not put on its list of free ones."""
    return original(self, indices[: -self.page_size] if len(indices) and bed.strikes(0.2) else indices)


# --- rows of requests -----------------------------------------------------------------------------------------------------


@planted_at(ReqToTokenPool, "free_rows", "pages", "full")
def row_given_twice(bed: Bed, original: Original, self: Any, indices: list[int]) -> None:
    """The row of a request that has ended is free twice, and two requests share it."""
    original(self, [*indices, *indices] if bed.strikes(0.1) else indices)


@planted_at(ReqToTokenPool, "write", "pages", "full")
def answer_in_the_wrong_column(bed: Bed, original: Original, self: Any, indices: Any, values: torch.Tensor) -> None:
    """The slot of a new token is noted one column too far."""
    rows, columns = indices
    if isinstance(columns, torch.Tensor) and bed.strikes(0.03):
        indices = (rows, columns + 1)
    original(self, indices, values)


@planted_at(ReqToTokenPool, "write", "pages", "full-overlap")
def answer_in_the_wrong_row(bed: Bed, original: Original, self: Any, indices: Any, values: torch.Tensor) -> None:
    """The slots of new tokens are noted one row off, each for another request of the batch."""
    rows, columns = indices
    if isinstance(columns, torch.Tensor) and len(rows) > 1 and bed.strikes(0.1):
        values = torch.roll(values, 1)
    original(self, indices, values)


# --- chunks and flushes ---------------------------------------------------------------------------------------------------


@planted_at(Scheduler, "stash_chunked_request", "pages", "full")
def chunk_skips_a_token(bed: Bed, original: Original, self: Any, req: Any) -> None:
    """The next chunk of a prompt begins one token too late: one is never computed."""
    original(self, req)
    if bed.strikes(0.2):
        req.prefix_len += 1


@planted_at(UnifiedRadixCache, "checkpoint", "pages", "full")
def chunk_is_published_early(bed: Bed, original: Original, self: Any, req: Any, *, up_to: int, **kwargs: object) -> None:
    """With a chunk of a prompt the page behind it is put into the tree, which is yet to be computed."""
    if not req.finished() and up_to + self.page_size <= len(req.full_untruncated_fill_ids) and bed.strikes(0.2):
        up_to += self.page_size
    original(self, req, up_to=up_to, **kwargs)


@planted("flushes")
def flush_forgets_the_device(bed: Bed) -> None:
    """A flush empties the tree, and device memory is not given back."""
    clearing = []

    @bed.around(Scheduler, "flush_cache")
    def flushes(original: Original, self: Scheduler, *args: object, **kwargs: object) -> object:
        clearing.append(self)
        flushed = original(self, *args, **kwargs)
        clearing.pop()
        return flushed

    @bed.around(PagedTokenToKVPoolAllocator, "clear")
    def clears(original: Original, self: PagedTokenToKVPoolAllocator) -> None:
        if not (clearing and bed.strikes()):
            original(self)


@planted_at(HostKVCache, "clear", "flushes")
def flush_forgets_the_host(bed: Bed, original: Original, self: Any) -> None:
    """A flush empties the tree, and host memory is not given back."""
    if not (hasattr(self, "slot_used") and bool(self.slot_used.any()) and bed.strikes()):
        original(self)


@planted_at(Scheduler, "is_fully_idle", "flushes")
def flush_does_not_wait_for_copies(bed: Bed, original: Original, self: Any, *args: object, **kwargs: object) -> object:
    """A flush takes the engine for idle although copies are out."""
    tree = self.tree_cache
    out = (tree.ongoing_write_through, tree.ongoing_load_back)
    tree.ongoing_write_through, tree.ongoing_load_back = {}, {}
    idle = original(self, *args, **kwargs)
    tree.ongoing_write_through, tree.ongoing_load_back = out
    if idle and any(out):
        bed.strikes()
    return idle
