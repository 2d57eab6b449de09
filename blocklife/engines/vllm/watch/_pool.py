"""Hooks on the block pool of a vLLM scheduler: which request is handed a block, shares it, or releases it.

The pool itself knows blocks and counts, but no requests. The KV cache manager does: while it works for a request, the pool acts
for that request; the group, and the position in the request's table, are read afterwards. Outside of such a call the pool acts
for the connector, or frees late what a request has given up.

A pool's own records are checked, too (`PoolBook`): a block is in the free queue exactly while its reference count is zero. The
same check serves the device's pool and a pool of host slots. A block that is handed out twice, or without having been freed, is
found there first, before anything is written into it.

Nothing of vLLM is replaced: only methods of the watched objects are wrapped.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from blocklife.engines.vllm.watch._names import PoolNames, RequestHashes
from blocklife.engines.vllm.watch._reading import BlockLike, blocks_of, name_of, tables_of
from blocklife.watch import CONNECTOR, Ears, HeardCall, Original, Positions, Watch

_WORKS = ("allocate_slots", "remove_skipped_blocks", "cache_blocks")
"""Methods of the manager that work for a request, in any supported release; the first argument is the request or its name."""
_HIT = ("num_new_computed_tokens", "num_external_computed_tokens")
"""Arguments of the first of them for a new request: tokens already in the cache."""
_FREES = ("free", "pop_blocks_for_free")
"""Methods with which a request releases everything."""
_NEAR = 4
"""New blocks are usually this close to the end of a table."""


class PoolHooks:
    """Hooks on one pool, on the manager that owns it, and on the managers of the groups, which have the requests' tables.

    One in *sample* blocks is followed; most calls are about other blocks, and end here.
    """

    def __init__(
        self, watch: Watch, pool: object, cache_manager: object, managers: Sequence[object], hashes: RequestHashes
    ) -> None:
        self._watch, ears = watch, watch.ears
        self._mirrors = watch.mirrors
        self._pool = pool
        self._managers = managers
        self._sample = watch.options.sample
        self._num_blocks = len(blocks_of(pool))
        self._owners = (pool, None) if any(hasattr(block, "pool") for block in blocks_of(pool)[:1]) else ()
        """The pool that blocks name as their owner, if any: a pool may be asked to free the blocks of another."""
        self._request: object = None
        self._done: list[tuple[str, list[int], Sequence[BlockLike], Sequence[int]]] = []
        self._book = PoolBook(pool)
        self._windows = [
            (group, manager, window, size)
            for group, manager in enumerate(managers)
            if isinstance(window := getattr(manager, "sliding_window", None), int)
            and window > 1  # a request with a window of one token reads no earlier block
            and (size := getattr(manager, "block_size", 0))
        ]
        self.names = PoolNames(watch, pool, managers, hashes)
        self.given: list[tuple[str, list[int]]] = []
        """The blocks handed to each request since this was last emptied."""
        ears.around(pool, "cache_full_blocks", self.names.named)
        ears.around(pool, "get_new_blocks", self._get_new_blocks)
        ears.around(pool, "free_blocks", self._free_blocks)
        ears.around(pool, "unpin_blocks", self._free_blocks)
        ears.hear(pool, "touch", after=self._touched)
        ears.hear(pool, "evict_blocks", before=self._evicts)
        ears.hear(pool, "reset_prefix_cache", after=self._prefix_cache_reset)
        for name in _WORKS:
            ears.around(cache_manager, name, self._for_request)
        for name in _FREES:
            ears.around(cache_manager, name, functools.partial(self._for_request, goes=True))

    def adopt(self) -> None:
        """Report the references that exist already, since the watch was attached to a running engine."""
        named: dict[int, int] = {}
        for group, manager in enumerate(self._managers):
            for request, table in tables_of(manager).items():
                places = {number: at for at, number in enumerate(self._numbers(table)) if number}
                for block, at in places.items():
                    self._tell("taken" if block in named else "handed out", request, group, [block], [at])
                    named[block] = named.get(block, 0) + 1
        for each in blocks_of(self._pool):
            mine = each.block_id and not each.block_id % self._sample
            for _ in range(each.ref_cnt - named.get(each.block_id, 0) if mine else 0):
                self._tell("taken" if each.block_id in named else "handed out", CONNECTOR, 0, [each.block_id], [None])
                named[each.block_id] = named.get(each.block_id, 0) + 1
        self._watch.catch_up()
        for mirror in self._mirrors:
            mirror.holders.end_step()

    def _numbers(self, table: Sequence[BlockLike]) -> list[int]:
        """The ids of a table, with 0 for blocks that are not followed."""
        return [0 if block.block_id % self._sample else block.block_id for block in table]

    # --- the pool ---------------------------------------------------------------------------------------------------------

    def _get_new_blocks(self, original: Original) -> Original:
        """Hook on the hand-out; it is called for nearly every block."""
        sample = self._sample

        def through(*args: object, **kwargs: object) -> object:
            try:
                given = original(*args, **kwargs)
            except Exception:
                self._explain(args[0] if args else kwargs.get("num_blocks"))
                raise
            if isinstance(given, list) and (own := [block for block in given if not block.block_id % sample]):
                self._gave(own, given)
            return given

        return through

    def _gave(self, own: list[BlockLike], given: list[BlockLike]) -> None:
        if odd := self._book.given(own):
            self._report_odd(odd)
            own = [block for block in own if 0 < block.block_id < self._num_blocks]
        if ids := [block.block_id for block in own]:
            self._did("handed out", ids, given)

    def _explain(self, wanted: object) -> None:
        """The pool has too few blocks, although the manager counted them before."""
        count = getattr(self._pool, "get_num_free_blocks", None)
        free = count() if callable(count) else None
        if self._request is not None and isinstance(wanted, int) and isinstance(free, int) and wanted > free:
            name = name_of(self._request)
            what = f"{wanted} more are taken for {name}, but only {free} are free: too few were counted at its admission"
            self._watch.violate("I13", what, request=name)

    def _touched(self, call: HeardCall) -> None:
        hits = call.first if isinstance(call.first, Sequence) else ()
        if own := self._own(hits):
            self._report_odd(self._book.held(own))
            self._did("taken", [block.block_id for block in own], hits)

    def _free_blocks(self, original: Original) -> Original:
        """Hook on the release; it is called for every request that ends, and for every block that leaves a window."""

        def through(ordered: Iterable[BlockLike], *rest: object, **kwargs: object) -> object:
            blocks = list(ordered)
            result = original(blocks, *rest, **kwargs)
            if own := self._own(blocks):
                self._freed(own, blocks)
            return result

        return through

    def _freed(self, own: list[BlockLike], blocks: list[BlockLike]) -> None:
        if odd := self._book.freed(own):
            self._report_odd(odd)
        ids, left = [block.block_id for block in own], [block.ref_cnt for block in own]
        if self._request is not None:
            self._done.append(("freed", ids, blocks, left))
        else:
            for mirror in self._mirrors:
                mirror.freed(CONNECTOR, ids, left)

    def _evicts(self, call: HeardCall) -> None:
        blocks = list(call.first) if isinstance(call.first, Collection) else []
        for mirror in self._mirrors if blocks else ():
            mirror.noted("evicted from the prefix cache", blocks)

    def _prefix_cache_reset(self, call: HeardCall) -> None:
        for mirror in self._mirrors if call.result else ():
            mirror.noted("the prefix cache is reset")

    def _did(self, what: str, ids: list[int], blocks: Sequence[BlockLike]) -> None:
        if self._request is not None:
            self._done.append((what, ids, blocks, ()))
            if what == "handed out":
                self.given.append((name_of(self._request), ids))
        else:
            self._report(CONNECTOR, what, ids, blocks)

    def _report_odd(self, odd: Sequence[Odd]) -> None:
        """Report contradictions in the pool's own records."""
        for block, what in odd:
            self._watch.violate("I4", f"block {block} {what}", block=block if 0 < block < self._num_blocks else None)

    def _own(self, blocks: Sequence[BlockLike]) -> list[BlockLike]:
        """The followed blocks of this pool, without the null block."""
        sample, owners, end = self._sample, self._owners, self._num_blocks
        if not owners:
            return [block for block in blocks if not (number := block.block_id) % sample and 0 < number < end]
        return [
            block for block in blocks if not (number := block.block_id) % sample and 0 < number < end and block.pool in owners
        ]

    # --- the request that a call is for -------------------------------------------------------------------------------------

    def _for_request(self, original: Original, *, goes: bool = False) -> Original:
        """Hook on calls for a request; it runs once a step for each running request, so it has to be cheap.

        *goes*: the request releases everything.
        """
        hooks = self

        def through(*args: object, **kwargs: object) -> object:
            if hooks._request is not None:
                return original(*args, **kwargs)
            hooks._request = request = args[0] if args else _named(kwargs)  # None if there is no request
            try:
                return original(*args, **kwargs)
            finally:
                hooks._request = None
                if hooks._done:
                    hooks._report_all(request, whole=goes)
                    hooks._ask_windows(request, kwargs)
                if goes:
                    hooks._gone(name_of(request))

        return through

    def _gone(self, name: str) -> None:
        for mirror in self._mirrors if name != CONNECTOR else ():
            mirror.gone(name)

    def _report_all(self, request: object, *, whole: bool) -> None:
        done, self._done = self._done, []
        for what, ids, blocks, left in done:
            self._report(request, what, ids, blocks, left, whole=whole)

    def _report(
        self,
        request: object,
        what: str,
        ids: list[int],
        blocks: Sequence[BlockLike],
        left: Sequence[int] = (),
        *,
        whole: bool = False,
    ) -> None:
        holder = name_of(request)
        if what == "freed":
            for mirror in self._mirrors:
                mirror.freed(holder, ids, left, whole=whole)
            return
        group, positions = (0, [None] * len(ids)) if holder == CONNECTOR else self._places(holder, ids, blocks)
        if what == "taken" and holder != CONNECTOR:
            self.names.ask_hits(request, group, ids, positions)
        self._tell(what, holder, group, ids, positions)

    def _tell(self, what: str, holder: str, group: int, ids: list[int], positions: Positions) -> None:
        for mirror in self._mirrors:
            (mirror.taken if what == "taken" else mirror.handed_out)(holder, group, ids, positions)

    def _ask_windows(self, request: object, told: Mapping[str, object]) -> None:
        """Check that a request has the block in which its next window begins."""
        counts = [getattr(request, "num_computed_tokens", 0), *map(told.get, _HIT)]
        computed = sum([count for count in counts if isinstance(count, int)])
        for group, manager, window, size in self._windows if computed else ():
            name = name_of(request)
            table, position = tables_of(manager).get(name, ()), max(0, computed - window + 1) // size
            if position < len(table) and not table[position].block_id:
                where = f"position {position} of group {group}"
                what = f"{name} does not have {where}: after {computed} tokens its window of {window} reads it"
                self._watch.violate("I4", what, request=name)

    def _places(self, request: str, ids: list[int], blocks: Sequence[BlockLike]) -> tuple[int, Positions]:
        """The group and the positions of blocks in a request's tables. Blocks of one call are of one group.

        Most are at the end of a table; prefix hits are at its start.
        """
        count, start, end = len(blocks), blocks[0], blocks[-1]
        for group, manager in enumerate(self._managers):
            table = tables_of(manager).get(request, ())
            for first in (len(table) - count, 0) if len(table) >= count else ():
                if table[first] is start and table[first + count - 1] is end:
                    if count > 2 and not all(map(operator.is_, table[first : first + count], blocks)):
                        continue
                    if len(ids) == count:
                        return group, range(first, first + count)
                    places = {block.block_id: at for at, block in enumerate(blocks, first)}
                    return group, [places[block] for block in ids]
        return self._scattered([tables_of(manager).get(request, ()) for manager in self._managers], ids)

    def _scattered(self, tables: Sequence[Sequence[BlockLike]], ids: list[int]) -> tuple[int, Positions]:
        """The same for blocks in another order, or no longer in the table."""
        wanted = set(ids)
        for depth in (len(ids) + _NEAR, None):
            for group, table in enumerate(tables):
                found: dict[int, int] = {}
                first = 0 if depth is None else max(0, len(table) - depth)
                for position in range(len(table) - 1, first - 1, -1):
                    if (block := table[position].block_id) in wanted:
                        found[block] = position
                if found:
                    return group, [found.get(block) for block in ids]
        return 0, [None] * len(ids)


def _named(kwargs: Mapping[str, object]) -> object:
    """The request of a call, given as a keyword."""
    return kwargs.get("request", kwargs.get("request_id"))


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


def hear_slots(ears: Ears, pool: object, tell: Callable[[str], None]) -> None:
    """Check a pool of host slots, which has the same class in vLLM as the device's pool."""
    book = PoolBook(pool)

    def ask(wrong: Callable[[Sequence[BlockLike]], list[Odd]], blocks: object) -> None:
        for slot, what in wrong([block for block in blocks if block.block_id]) if isinstance(blocks, Collection) else ():
            tell(f"slot {slot} of the host {what}")

    ears.hear(pool, "get_new_blocks", after=lambda call: ask(book.given, call.result))
    ears.hear(pool, "touch", before=HeardCall.keep_first, after=lambda call: ask(book.held, call.first))
    ears.hear(pool, "free_blocks", before=HeardCall.keep_first, after=lambda call: ask(book.freed, call.first))
