"""Bugs in what every connector stands on: the block pool, the managers of tables, and the scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import KVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager, SlidingWindowManager
from vllm.v1.request import Request

from tests.behind.planted import Bed, Original, planted_at

BLOCK = 4
"""Tokens of a block in the worlds of these bugs."""


def _let_counts_fall(bed: Bed) -> None:
    """A block that nobody holds can be let go of: the pool does not fall over it."""

    @bed.around(BlockPool, "free_blocks")
    def frees(original: Original, self: BlockPool, blocks: Iterable[KVCacheBlock]) -> None:
        original(self, [block for block in list(blocks) if block.is_null or block.ref_cnt > 0])


@planted_at(SingleTypeKVCacheManager, "pop_blocks_for_free", "full", "full-async", "hybrid", "simple", "window")
def block_kept(bed: Bed, original: Original, self: Any, request: str) -> list[KVCacheBlock]:
    """A request that ends keeps one of its blocks."""
    blocks: list[KVCacheBlock] = original(self, request)
    return blocks[:-1] if blocks and bed.strikes(0.05) else blocks


@planted_at(BlockPool, "free_blocks", "full", "full-async", "hybrid", "simple", "window")
def shared_block_freed_twice(bed: Bed, original: Original, self: Any, blocks: Iterable[KVCacheBlock]) -> None:
    """A block that two requests share is let go of twice by one of them."""
    freed = list(blocks)
    shared = [block for block in freed if not block.is_null and block.ref_cnt > 1]
    original(self, [*freed, shared[0]] if shared and bed.strikes(0.2) else freed)


@planted_at(
    SingleTypeKVCacheManager, "pop_blocks_for_free", "full", "full-async", "hybrid", "simple", "window", first=_let_counts_fall
)
def foreign_block_freed(bed: Bed, original: Original, self: Any, request: str) -> list[KVCacheBlock]:
    """A request that ends lets go of a block of another one."""
    blocks: list[KVCacheBlock] = original(self, request)
    others = [block for table in self.req_to_blocks.values() for block in table if not block.is_null and block.ref_cnt == 1]
    return [*blocks, others[-1]] if blocks and others and bed.strikes(0.05) else blocks


@planted_at(BlockPool, "get_new_blocks", "full", "full-async", "hybrid", "simple")
def block_handed_out_twice(bed: Bed, original: Original, self: Any, wanted: int) -> list[KVCacheBlock]:
    """One call hands out a block twice."""
    blocks: list[KVCacheBlock] = original(self, wanted)
    if wanted > 1 and bed.strikes(0.05):
        spared, blocks[-1] = blocks[-1], blocks[0]
        blocks[0].ref_cnt, spared.ref_cnt = 2, 0
        self.free_block_queue.append_n([spared])
    return blocks


@planted_at(BlockPool, "touch", "full", "full-async", "hybrid", "simple", first=_let_counts_fall)
def hit_is_not_held(bed: Bed, original: Original, self: Any, blocks: Iterable[KVCacheBlock]) -> None:
    """A hit on a block that somebody else holds takes no hold of it."""
    touched = list(blocks)
    held = [block for block in touched if not block.is_null and block.ref_cnt > 0]
    original(self, touched)
    if held and bed.strikes(0.1):
        held[0].ref_cnt -= 1


@planted_at(BlockPool, "get_cached_block", "full", "full-async", "hybrid", "simple")
def hit_of_another_block(bed: Bed, original: Original, self: Any, name: bytes, groups: list[int]) -> list[KVCacheBlock] | None:
    """A lookup in the prefix cache finds another block than the one of that name."""
    found: list[KVCacheBlock] | None = original(self, name, groups)
    named = [block for block in self.blocks if block.block_hash is not None]
    others = [block for block in named if found and block is not found[0] and block.block_hash[-4:] == found[0].block_hash[-4:]]
    return [others[0], *found[1:]] if found and others and bed.strikes(0.02) else found


@planted_at(BlockPool, "_maybe_evict_cached_block", "full", "full-async", "hybrid", "simple", "window")
def name_outlives_content(bed: Bed, original: Original, self: Any, block: KVCacheBlock) -> object:
    """A block that is handed out stays in the prefix cache under its old name."""
    if block.block_hash is None or not bed.strikes(0.2):
        return original(self, block)
    block.reset_hash()
    return False


@planted_at(KVCacheManager, "allocate_slots", "full", "hybrid", "simple", "window")
def named_before_loaded(
    bed: Bed, original: Original, self: Any, request: Request, *args: object, delay_cache_blocks: bool = False, **more: object
) -> KVCacheBlocks | None:
    """Blocks get their names in the prefix cache before their load has landed."""
    if delay_cache_blocks:
        bed.strikes()
    return original(self, request, *args, delay_cache_blocks=False, **more)


@planted_at(SlidingWindowManager, "get_num_skipped_tokens", "window", "hybrid", "window-async")
def window_too_small(bed: Bed, original: Original, self: Any, computed: int) -> int:
    """A window gives back a block that the next token still reads."""
    skipped: int = original(self, computed)
    return skipped + BLOCK if skipped > 0 and bed.strikes(0.1) else skipped


@planted_at(BlockPool, "touch", "full", "full-async", "hybrid", "simple")
def hit_stays_in_the_queue(bed: Bed, original: Original, self: Any, blocks: Iterable[KVCacheBlock]) -> None:
    """A free block that is hit stays in the queue of free blocks, and the count of these is as before."""
    for block in list(blocks):
        if not block.is_null and block.ref_cnt == 0 and bed.strikes(0.2):
            block.ref_cnt += 1
        else:
            original(self, [block])


@planted_at(KVCacheCoordinator, "cache_blocks", "full", "full-async", "hybrid", "simple", "window")
def named_a_block_early(bed: Bed, original: Original, self: Any, request: Request, computed: int) -> None:
    """A block gets its name in the prefix cache when its first tokens are computed."""
    end = -(-computed // BLOCK) * BLOCK
    original(self, request, end if computed < end <= request.num_tokens and bed.strikes(0.5) else computed)
