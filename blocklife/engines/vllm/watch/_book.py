"""Checks a pool's own records: a block is in the free queue exactly while its reference count is zero.

The same check serves the device's pool and a pool of host slots. A block that is handed out twice, or without having been
freed, is found here first, before anything is written into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from blocklife.engines.vllm.watch._calls import BlockLike, blocks_of
from blocklife.watch._calls import CallsThrough, Original

Odd = tuple[int, str]
"""A block, and what is wrong with it: the rest of a sentence that begins with its name."""


class PoolBook:
    """Checks one pool. Nothing is checked if blocks do not show whether they are in the free queue, as in a test double."""

    def __init__(self, pool: object) -> None:
        blocks = blocks_of(pool)
        self._end = len(blocks)
        self._is_told = any(hasattr(block, "prev_free_block") for block in blocks[:1])

    def given(self, blocks: Sequence[BlockLike]) -> list[Odd]:
        """What is wrong with blocks that the pool has just handed out; each is reported once."""
        end = self._end
        if not self._is_told:
            return [(number, "is not a block of the pool") for block in blocks if not 0 < (number := block.block_id) < end]
        odd = [
            block
            for block in blocks
            if block.ref_cnt != 1
            or block.prev_free_block is not None
            or block.block_hash is not None
            or not 0 < block.block_id < end
        ]
        return [(block.block_id, self._given_wrongly(block)) for block in odd]

    def _given_wrongly(self, block: BlockLike) -> str:
        if not 0 < block.block_id < self._end:
            return "is not a block of the pool"
        if block.ref_cnt != 1:
            return f"has {block.ref_cnt} references in the engine when it is handed out, instead of 1"
        return _QUEUED if block.prev_free_block is not None else "still has the name of its former content"

    def held(self, blocks: Iterable[BlockLike]) -> list[Odd]:
        """What is wrong with blocks whose reference count has just been raised."""
        if not self._is_told:
            return []
        odd = [block for block in blocks if block.prev_free_block is not None or block.ref_cnt < 1]
        return [
            (block.block_id, _QUEUED if block.prev_free_block is not None else f"has {block.ref_cnt} references in the engine")
            for block in odd
        ]

    def freed(self, blocks: Iterable[BlockLike]) -> list[Odd]:
        """What is wrong with blocks that have just been freed."""
        if not self._is_told:
            return []
        odd = [block for block in blocks if (block.ref_cnt == 0) is (block.prev_free_block is None) or block.ref_cnt < 0]
        return [(block.block_id, self._freed_wrongly(block)) for block in odd]

    def _freed_wrongly(self, block: BlockLike) -> str:
        if not block.ref_cnt:
            return "is released by all, but not in the free queue"
        queued = "" if block.prev_free_block is None else ", but is in the free queue"
        return f"has {block.ref_cnt} references left in the engine{queued}"


_QUEUED = "is held, but still in the free queue"


class SlotsHooks:
    """Hooks on a pool of host slots, which has the same class in vLLM as the device's pool."""

    def __init__(self, pool: object, tell: Callable[[str], None]) -> None:
        self._book = PoolBook(pool)
        self._tell = tell
        self.calls = CallsThrough()
        self.calls.add(pool, "get_new_blocks", self._give)
        self.calls.add(pool, "touch", self._touch)
        self.calls.add(pool, "free_blocks", self._free)

    def _give(self, original: Original, *args: object, **kwargs: object) -> object:
        given = original(*args, **kwargs)
        if isinstance(given, list):
            self._tell_all(self._book.given(given))
        return given

    def _touch(self, original: Original, blocks: Iterable[BlockLike], *args: object, **kwargs: object) -> object:
        hit = list(blocks)
        result = original(hit, *args, **kwargs)
        self._tell_all(self._book.held([block for block in hit if block.block_id]))
        return result

    def _free(self, original: Original, blocks: Iterable[BlockLike], *args: object, **kwargs: object) -> object:
        freed = list(blocks)
        result = original(freed, *args, **kwargs)
        self._tell_all(self._book.freed([block for block in freed if block.block_id]))
        return result

    def _tell_all(self, odd: Sequence[Odd]) -> None:
        for slot, what in odd:
            self._tell(f"slot {slot} of the host {what}")
