"""Checks the names of blocks in the prefix cache: when a block gets its name, and when it is hit.

The name of a block is the hash of all tokens up to its end, with the group. A prefix hit relies on it. So a name must be right,
and the content that it names must be computed by the end of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blocklife.engines.vllm.watch._calls import BlockLike, blocks_of, ending_of, name_of, tables_of
from blocklife.engines.vllm.watch._hashes import RequestHashes
from blocklife.watch._calls import Original
from blocklife.watch._mirror import Mirror, Positions

_NAMED = ("request", "blocks", "num_cached_blocks", "num_full_blocks", "block_size", "kv_cache_group_id", "block_mask")


class PoolNames:
    """Checks the names in one pool, for one block in *sample*."""

    def __init__(
        self, mirrors: Sequence[Mirror], pool: object, managers: Sequence[object], sample: int, hashes: RequestHashes
    ) -> None:
        self._mirrors = mirrors
        self._hashes = hashes
        self._pool = pool
        self._managers = managers
        self._sample = sample
        self._by_group = {_group_of(manager, at): manager for at, manager in enumerate(managers)}
        self._computes = all(mirror.computes for mirror in mirrors)
        self._is_planning = False
        # How many tokens of a request are covered by the names given since the current plan began.
        self._ends: dict[str, int] = {}

    # --- blocks that get a name ---------------------------------------------------------------------------------------------

    def named(self, original: Original) -> Original:
        """Hook on the caching of full blocks: it is called for nearly every block, and returns at once if none is followed."""
        sample = self._sample

        def through(*args: object, **kwargs: object) -> object:
            result = original(*args, **kwargs)
            told = dict(zip(_NAMED, args, strict=False), **kwargs) if args else kwargs
            blocks, start, end = told.get("blocks"), told.get("num_cached_blocks"), told.get("num_full_blocks")
            if isinstance(start, int) and isinstance(end, int) and isinstance(blocks, Sequence):
                places = range(start, min(end, len(blocks)))
                if own := [at for at in places if (number := blocks[at].block_id) and not number % sample]:
                    self._ask_named(told, blocks, start, own)
            return result

        return through

    def _ask_named(self, told: Mapping[str, object], blocks: Sequence[BlockLike], start: int, own: Sequence[int]) -> None:
        """Check that the blocks at these positions got the right names; a block that is masked out gets none."""
        request, size, group = told.get("request"), told.get("block_size"), told.get("kv_cache_group_id")
        self._hashes.ask(request)
        hashes, unit = getattr(request, "block_hashes", None), getattr(self._pool, "hash_block_size", 0)
        if not (isinstance(size, int) and isinstance(group, int) and isinstance(hashes, Sequence)):
            return
        if not isinstance(unit, int) or not unit or size % unit:
            return
        mask, name, ending, factor = told.get("block_mask"), name_of(request), ending_of(group), size // unit
        table = tables_of(self._by_group.get(group)).get(name, ())
        for at in own:
            block, last = blocks[at], (at + 1) * factor - 1
            if last >= len(hashes):
                break
            wanted = hashes[last] + ending
            stands = table is blocks or at >= len(table) or table[at] is block
            if (block.block_hash != wanted or not stands) and (not isinstance(mask, Sequence) or mask[at - start]):
                self._look(name, at, block, wanted, block if stands else table[at])
        if self._computes:
            self._ask_end(request, name, (own[-1] + 1) * size, blocks[own[-1]].block_id)

    def _look(self, name: str, position: int, block: BlockLike, wanted: bytes, there: BlockLike) -> None:
        """Check that a block has got its name, and is the one at that position."""
        number = block.block_id
        if not self._is_called(block, wanted):
            what = f"block {number} of {name}, position {position}, gets a name that is not that of its position"
            self._tell("I8", what, number, name)
        if there is not block:
            what = f"block {number} gets the name of position {position} of {name}, where block {there.block_id} stands"
            self._tell("I8", what, number, name)

    def _ask_end(self, request: object, name: str, end: int, block: int) -> None:
        """Check that content that gets a name is computed, or will be by the end of the step."""
        if self._is_planning:
            if end > self._ends.get(name, 0):
                self._ends[name] = end
            return
        computed = getattr(request, "num_computed_tokens", None)
        if isinstance(computed, int) and end > computed:
            self._tell("I6", _early(name, end, computed), block, name)

    def begin(self) -> None:
        """The scheduler begins a plan: content that the plan computes may get its name already."""
        self._is_planning = True
        self._ends.clear()

    def settle(self, scheduled: Mapping[str, int], reach: Mapping[str, int]) -> None:
        """The plan is complete: this many tokens of each request are computed once it is done."""
        self._is_planning = False
        for name, end in self._ends.items():
            if name in scheduled and end > reach.get(name, end):
                self._tell("I6", _early(name, end, reach[name]), None, name)

    # --- blocks that are hit ------------------------------------------------------------------------------------------------

    def ask_hits(self, request: object, group: int, ids: Sequence[int], positions: Positions) -> None:
        """Check that the blocks that a request hits have the names of their positions."""
        hashes, unit = getattr(request, "block_hashes", None), getattr(self._pool, "hash_block_size", None)
        if not isinstance(hashes, Sequence) or getattr(self._managers[group], "block_size", 0) != unit:
            return
        name = name_of(request)
        blocks, ending = blocks_of(self._pool), ending_of(_group_of(self._managers[group], group))
        for number, position in zip(ids, positions, strict=True):
            if position is None or position >= len(hashes):
                continue
            wanted = bytes(hashes[position]) + ending
            if not self._is_called(blocks[number], wanted):
                what = f"block {number} is a hit of {name} at position {position}, but has another name"
                self._tell("I6", what, number, name)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _is_called(self, block: BlockLike, wanted: bytes) -> bool:
        if block.block_hash == wanted:
            return True
        others = getattr(self._pool, "cached_block_hashes_by_block", {})
        return wanted in others.get(block.block_id, ())

    def _tell(self, rule: str, what: str, block: int | None, request: str) -> None:
        for mirror in self._mirrors:
            mirror.story.violate(rule, what, block=block, request=request)


def _early(name: str, end: int, computed: int) -> str:
    return f"{name} up to token {end} gets a name in the prefix cache, but only {computed} of its tokens are computed"


def _group_of(manager: object, at: int) -> int:
    found = getattr(manager, "kv_cache_group_id", at)
    return found if isinstance(found, int) else at
