"""Checks what a scheduler sends its workers about requests: their blocks, and how many of their tokens are computed.

Workers build their own tables from nothing else. So what they get must agree with the engine's tables, and tokens that count as
computed must have been computed, hit or loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from blocklife.engines.vllm.watch._calls import Tables, blocks_of, tables_of
from blocklife.engines.vllm.watch._pool import PoolHooks
from blocklife.engines.vllm.watch._progress import EngineProgress
from blocklife.watch._calls import CallsThrough, Original
from blocklife.watch._mirror import Mirror

_GROWING = ("FullAttentionManager", "SlidingWindowManager", "ChunkedLocalAttentionManager")
"""Managers whose tables grow only at the end, and have a block at every position that is read."""


class TablesHooks:
    """Hooks on one engine. *pool* knows what was handed out in a step, *progress* what was computed."""

    def __init__(
        self,
        engine: object,
        mirrors: Sequence[Mirror],
        pool: PoolHooks,
        managers: Sequence[object],
        progress: EngineProgress,
    ) -> None:
        self._progress = progress
        self._engine = engine
        self._mirrors = mirrors
        self._pool = pool
        self._managers = managers
        self._grows = [type(manager).__name__ in _GROWING for manager in managers]
        cache_manager = getattr(engine, "kv_cache_manager", None)
        blocks = getattr(cache_manager, "block_pool", None)
        self._num_free: Callable[[], int] | None = getattr(blocks, "get_num_free_blocks", None)
        self._num_blocks = len(blocks_of(blocks))
        self._odd_free = 0
        # An unwatched connector may load content within a step.
        self._is_alone = not getattr(getattr(engine, "connector", None), "_connectors", None)
        self.calls = CallsThrough()
        self.calls.add(engine, "schedule", self._schedule)

    def _schedule(self, original: Original, *args: object, **kwargs: object) -> object:
        names, given = self._pool.names, self._pool.given
        names.begin()
        given.clear()
        output = original(*args, **kwargs)
        scheduled = getattr(output, "num_scheduled_tokens", None)
        if isinstance(scheduled, dict):
            progress = self._progress
            progress.advance(output)
            progress.leave()
            for what, request in progress.odd:
                self._tell("I6", what, request)
            names.settle(scheduled, progress.reach)
            self._ask_tables(output)
            self._ask_free()
            for mirror in self._mirrors:
                mirror.tell()
        return output

    # --- tables -------------------------------------------------------------------------------------------------------------

    def _ask_tables(self, output: object) -> None:
        tables = [tables_of(manager) for manager in self._managers]
        for new in getattr(output, "scheduled_new_reqs", ()):
            self._ask_row(new.req_id, new.block_ids, tables, whole=True)
            if not getattr(new, "replay_start", 0):
                self._ask_content(new.req_id, new.num_computed_tokens)
        cached = getattr(output, "scheduled_cached_reqs", None)
        names: Sequence[str] = getattr(cached, "req_ids", ())
        rows: Sequence[Sequence[Sequence[int]] | None] = getattr(cached, "new_block_ids", ())
        resumed: Collection[str] = getattr(cached, "resumed_req_ids", ())
        for name, row in zip(names, rows, strict=False):
            if row is not None:
                self._ask_row(name, row, tables, whole=name in resumed)
        if resumed:
            for name, computed in zip(names, getattr(cached, "num_computed_tokens", ()), strict=False):
                if name in resumed:
                    self._ask_content(name, computed)

    def _ask_row(self, name: str, row: Sequence[Sequence[int]], tables: Sequence[Tables], *, whole: bool) -> None:
        """Check that the workers get exactly the blocks in the table of a request."""
        for group, told in enumerate(row[: len(tables)]):
            if not told or not (whole or self._grows[group]) or (table := tables[group].get(name)) is None:
                continue
            start = 0 if whole else len(table) - len(told)
            there = [block.block_id for block in table[max(0, start) : start + len(told)]]
            if there != told and there != list(told):
                odd = next((at for at, (one, other) in enumerate(zip(there, told, strict=False)) if one != other), len(there))
                here = f"block {there[odd]}" if odd < len(there) else "nothing"
                named = f"block {told[odd]}" if odd < len(told) else "nothing"
                what = (
                    f"workers are told that {name} has {named} at position {start + odd} of group {group}, where {here} stands"
                )
                self._tell("I8", what, name)

    def _ask_content(self, name: str, computed: int) -> None:
        """Check that a new or resumed request has the content that counts as computed, as far as it will be read."""
        given = {block for holder, blocks in self._pool.given if holder == name for block in blocks} if computed else set()
        if self._is_alone:
            given -= {block for mirror in self._mirrors for block in mirror.brought}
        else:
            given = set()
        for group, manager in enumerate(self._managers if computed else ()):
            size, window = getattr(manager, "block_size", 0), getattr(manager, "sliding_window", None)
            if not self._grows[group] or not size or type(manager).__name__ == "ChunkedLocalAttentionManager":
                continue
            first = max(0, computed - window + 1) // size if isinstance(window, int) else 0
            table = tables_of(manager).get(name, ())
            ids = [block.block_id for block in table[first : computed // size]]
            if all(ids) and given.isdisjoint(ids):  # the usual case
                continue
            at, block = next((at, block) for at, block in enumerate(ids, first) if not block or block in given)
            why = f"block {block} was handed out by this same step, and nothing loads it" if block else "there is none"
            what = f"{name} counts {computed} tokens as computed, and at position {at} of group {group} {why}"
            self._tell("I6", what, name, block or None)

    # --- counts -------------------------------------------------------------------------------------------------------------

    def _ask_free(self) -> None:
        """Check that the pool does not count more free blocks than have no reference."""
        mirror = self._mirrors[0]
        if self._num_free is None or mirror.sample > 1 or mirror.is_behind:
            return
        more = self._num_free() + len(mirror.holders.where) - (self._num_blocks - 1)
        if more > 0 and more != self._odd_free:
            held, blocks = len(mirror.holders.where), self._num_blocks - 1
            what = f"{self._num_free()} blocks count as free, although {held} of {blocks} are held: {more} too many"
            self._tell("I4", what, None)
        self._odd_free = max(0, more)

    def _tell(self, rule: str, what: str, request: str | None, block: int | None = None) -> None:
        for mirror in self._mirrors:
            mirror.story.violate(rule, what, block=block, request=request)
