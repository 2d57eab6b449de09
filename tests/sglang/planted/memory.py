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

from tests.planted import Bed, Original, planted

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


@planted("full")
def token_slot_stays_free(bed: Bed) -> None:
    """With pages of one token, the last one that is handed out can be handed out again."""

    @bed.around(TokenToKVPoolAllocator, "alloc")
    def hands_out(original: Original, self: TokenToKVPoolAllocator, need_size: int) -> object:
        handed: Any = original(self, need_size)
        if handed is not None and len(handed) and bed.strikes(0.03):
            self.free_pages = torch.cat((self.free_pages, handed[-1:]))
        return handed


@planted("pages")
def page_filled_in_part_stays(bed: Bed) -> None:
    """A page that a request has filled in part only is not freed with it."""

    @bed.around(PagedTokenToKVPoolAllocator, "free_segment")
    def frees(original: Original, self: PagedTokenToKVPoolAllocator, index: torch.Tensor, *, start_pos: int) -> None:
        full = len(index) // self.page_size * self.page_size
        if full < len(index) and bed.strikes(0.3):
            index = index[:full]
        original(self, index, start_pos=start_pos)


@planted("pages", "full")
def page_before_the_tail_is_freed(bed: Bed) -> None:
    """With the tail of a request the page in front of it is freed, which is the tree's."""

    @bed.around(UnifiedRadixCache, "free_kv_row")
    def frees(original: Original, self: UnifiedRadixCache, kv: Any, ranges: list[tuple[int, int]]) -> None:
        page = self.page_size
        aligned = [start >= page and start % page == 0 and start == kv.cache_protected_len for start, _ in ranges]
        if any(aligned) and bed.strikes(0.1):
            ranges = [(start - page * moved, stop) for (start, stop), moved in zip(ranges, aligned, strict=True)]
        original(self, kv, ranges)


@planted("pages", "full")
def tail_stays(bed: Bed) -> None:
    """What a request has behind its part of the tree is not freed when it ends."""

    @bed.around(UnifiedRadixCache, "free_kv_row")
    def frees(original: Original, self: UnifiedRadixCache, kv: Any, ranges: list[tuple[int, int]]) -> None:
        if not (any(stop > start for start, stop in ranges) and bed.strikes(0.2)):
            original(self, kv, ranges)


@planted("pages", "back-tight")
def host_page_stays_free(bed: Bed) -> None:
    """The first host page of a store can be handed out again."""

    @bed.around(HostKVCache, "alloc")
    def hands_out(original: Original, self: HostKVCache, need_size: int) -> object:
        handed: Any = original(self, need_size)
        if handed is not None and len(handed) and bed.strikes(0.1):
            page = handed[: self.page_size]
            self.slot_used[page] = False
            self.free_slots = torch.cat((self.free_slots, page))
        return handed


# --- rows of requests -----------------------------------------------------------------------------------------------------


@planted("pages", "full")
def row_given_twice(bed: Bed) -> None:
    """The row of a request that has ended is free twice, and two requests share it."""

    @bed.around(ReqToTokenPool, "free_rows")
    def frees(original: Original, self: ReqToTokenPool, indices: list[int]) -> None:
        original(self, [*indices, *indices] if bed.strikes(0.1) else indices)


@planted("pages", "full")
def answer_in_the_wrong_column(bed: Bed) -> None:
    """The slot of a new token is noted one column too far."""

    @bed.around(ReqToTokenPool, "write")
    def writes(original: Original, self: ReqToTokenPool, indices: Any, values: torch.Tensor) -> None:
        rows, columns = indices
        if isinstance(columns, torch.Tensor) and bed.strikes(0.03):
            indices = (rows, columns + 1)
        original(self, indices, values)


@planted("pages", "full-overlap")
def answer_in_the_wrong_row(bed: Bed) -> None:
    """The slots of new tokens are noted one row off, each for another request of the batch."""

    @bed.around(ReqToTokenPool, "write")
    def writes(original: Original, self: ReqToTokenPool, indices: Any, values: torch.Tensor) -> None:
        rows, columns = indices
        if isinstance(columns, torch.Tensor) and len(rows) > 1 and bed.strikes(0.1):
            values = torch.roll(values, 1)
        original(self, indices, values)


# --- chunks and flushes ---------------------------------------------------------------------------------------------------


@planted("pages", "full")
def chunk_skips_a_token(bed: Bed) -> None:
    """The next chunk of a prompt begins one token too late: one is never computed."""

    @bed.around(Scheduler, "stash_chunked_request")
    def stashes(original: Original, self: Scheduler, req: Any) -> None:
        original(self, req)
        if bed.strikes(0.2):
            req.prefix_len += 1


@planted("pages", "full")
def chunk_is_published_early(bed: Bed) -> None:
    """With a chunk of a prompt the page behind it is put into the tree, which is yet to be computed."""

    @bed.around(UnifiedRadixCache, "checkpoint")
    def checkpoints(original: Original, self: UnifiedRadixCache, req: Any, *, up_to: int, **kwargs: object) -> None:
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


@planted("flushes")
def flush_forgets_the_host(bed: Bed) -> None:
    """A flush empties the tree, and host memory is not given back."""

    @bed.around(HostKVCache, "clear")
    def clears(original: Original, self: HostKVCache) -> None:
        if not (hasattr(self, "slot_used") and bool(self.slot_used.any()) and bed.strikes()):
            original(self)


@planted("flushes")
def flush_does_not_wait_for_copies(bed: Bed) -> None:
    """A flush takes the engine for idle although copies are out."""

    @bed.around(Scheduler, "is_fully_idle")
    def judges(original: Original, self: Scheduler, *args: object, **kwargs: object) -> object:
        tree = self.tree_cache
        out = (tree.ongoing_write_through, tree.ongoing_load_back)
        tree.ongoing_write_through, tree.ongoing_load_back = {}, {}
        idle = original(self, *args, **kwargs)
        tree.ongoing_write_through, tree.ongoing_load_back = out
        if idle and any(out):
            bed.strikes()
        return idle
