"""Checks the names of content, where they are made and where they are relied on.

*Hashes.* The hash of a block is the name of its content, everywhere: in the prefix cache, on the host and below. It has to
depend on all tokens up to the end of the block, and on the salt, the adapter and the other inputs of its request. How vLLM
computes it is not asked. What it should depend on is put into a number instead, and the hashes of requests are kept with their
numbers: the same hash with another number is that of another content. It is told when the second request comes, before anything
can be hit.

*The prefix cache.* The name of a block there is its hash, with the group, and a prefix hit relies on it. So a name must be
right, when a block gets it and when it is hit, and the content that it names must be computed by the end of the step.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from blocklife.engines.vllm.watch._reading import BlockLike, blocks_of, ending_of, first_int, name_of, tables_of
from blocklife.watch import HeardCall, Original, Positions, Watch

_NAMED = ("request", "blocks", "num_cached_blocks", "num_full_blocks", "block_size", "kv_cache_group_id", "block_mask")


class PoolNames:
    """Checks the names in one pool, for the blocks that are followed."""

    def __init__(self, watch: Watch, pool: object, managers: Sequence[object], hashes: RequestHashes) -> None:
        self._watch = watch
        self._hashes = hashes
        self._pool = pool
        self._managers = managers
        self._sample = watch.options.sample
        self._by_group = {_group_of(manager, at): manager for at, manager in enumerate(managers)}
        self._computes = all(mirror.computes for mirror in watch.mirrors)
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
            self._watch.violate("I8", what, block=number, request=name)
        if there is not block:
            what = f"block {number} gets the name of position {position} of {name}, where block {there.block_id} stands"
            self._watch.violate("I8", what, block=number, request=name)

    def _ask_end(self, request: object, name: str, end: int, block: int) -> None:
        """Check that content that gets a name is computed, or will be by the end of the step."""
        if self._is_planning:
            if end > self._ends.get(name, 0):
                self._ends[name] = end
            return
        computed = getattr(request, "num_computed_tokens", None)
        if isinstance(computed, int) and end > computed:
            self._watch.violate("I6", _early(name, end, computed), block=block, request=name)

    def begin(self) -> None:
        """The scheduler begins a plan: content that the plan computes may get its name already."""
        self._is_planning = True
        self._ends.clear()

    def settle(self, scheduled: Mapping[str, int], reach: Mapping[str, int]) -> None:
        """The plan is complete: this many tokens of each request are computed once it is done."""
        self._is_planning = False
        for name, end in self._ends.items():
            if name in scheduled and end > reach.get(name, end):
                self._watch.violate("I6", _early(name, end, reach[name]), request=name)

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
                self._watch.violate("I6", what, block=number, request=name)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _is_called(self, block: BlockLike, wanted: bytes) -> bool:
        if block.block_hash == wanted:
            return True
        others = getattr(self._pool, "cached_block_hashes_by_block", {})
        return wanted in others.get(block.block_id, ())


def _early(name: str, end: int, computed: int) -> str:
    return f"{name} up to token {end} gets a name in the prefix cache, but only {computed} of its tokens are computed"


def _group_of(manager: object, at: int) -> int:
    found = getattr(manager, "kv_cache_group_id", at)
    return found if isinstance(found, int) else at


NUM_HASHES = 1 << 16
"""So many of the latest hashes are kept at least, and twice as many at most."""
NUM_REQUESTS = 1 << 13
"""Of how many requests is it known how far they were asked; a request that is not among them is asked from its start again."""
_WIDTH = array("q").itemsize


class RequestHashes:
    """The hashes of one scheduler's requests, each of so many tokens as the pool says; none are checked if it says nothing."""

    def __init__(self, watch: Watch, pool: object, engine: object | None) -> None:
        self._watch = watch
        self._unit = first_int(pool, "hash_block_size")
        # For each hash the number of its content, and for each content the request that had it first. Dictionaries of plain
        # values only, which the garbage collector does not look into.
        self._young: tuple[dict[bytes, int], dict[int, str]] = {}, {}
        self._old: tuple[dict[bytes, int], dict[int, str]] = {}, {}
        self._asked: dict[str, tuple[int, bytes, int]] = {}
        """Of each request how many hashes were asked for, the last of them, and the number of its content."""
        watch.ears.hear(engine, "add_request", before=self._adds)

    def _adds(self, call: HeardCall) -> None:
        self._ask_new(call.first)
        self._watch.settle(is_over=True)  # a strict watch refuses it: it is not in the engine then

    def ask(self, request: object) -> None:
        """Check the hashes that a request has got since it was last asked."""
        self._watch.minded(lambda: self._ask_new(request))

    def _ask_new(self, request: object) -> None:
        hashes, unit, name = getattr(request, "block_hashes", None), self._unit, name_of(request)
        if not (unit and isinstance(hashes, list)):
            return
        start, last, content = self._asked.get(name, (0, b"", 0))
        if start and (start > len(hashes) or hashes[start - 1] != last):  # a session that has taken something back
            start = 0
        tokens = getattr(request, "all_token_ids", None)
        if start == len(hashes) or not isinstance(tokens, Sequence) or len(hashes) * unit > len(tokens):
            return
        text = array("q", tokens[start * unit : len(hashes) * unit])
        content = self._ask(request, name, hashes[start:], text, start, content if start else _start_of(request))
        if len(self._asked) >= NUM_REQUESTS:
            self._asked.clear()
        self._asked[name] = len(hashes), hashes[-1], content

    def _ask(self, request: object, name: str, hashes: Sequence[bytes], text: array[int], start: int, content: int) -> int:
        """Check these hashes, the first of which is number *start*. Returns the number of the content that they are for."""
        if len(self._young[0]) >= NUM_HASHES:
            self._old, self._young = self._young, ({}, {})
        (young, owners), (old, old_owners), inputs = self._young, self._old, _inputs_of(request, self._unit)
        tokens, width = text.tobytes(), self._unit * _WIDTH
        for at, each in enumerate(hashes):
            content = hash((content, tokens[at * width : (at + 1) * width], inputs.get(start + at)))
            if (known := young.get(each)) is None:
                known = young[each] = old.get(each, content)
                owners[known] = old_owners.get(known, name)
            if known != content:
                self._report(name, (start + at + 1) * self._unit, owners[known])
                content = known
        return content

    def _report(self, name: str, end: int, owner: str) -> None:
        what = f"{name} up to token {end} gets a hash that {owner} has had for another content"
        self._watch.violate("I8", f"{what} (tokens, salt, adapter and other inputs are compared)", request=name)


def _start_of(request: object) -> int:
    """The number of what all content of a request depends on: its salt and its adapter."""
    adapter = getattr(request, "lora_request", None)
    named = getattr(adapter, "lora_name", None), getattr(adapter, "lora_path", None)
    return hash((getattr(request, "cache_salt", None) or None, named))


def _inputs_of(request: object, unit: int) -> dict[int, tuple[object, ...]]:
    """What begins in each block beside tokens, such as an image: its id, and at which token of the block."""
    found: dict[int, tuple[object, ...]] = {}
    for each in getattr(request, "mm_features", None) or ():
        at, first = divmod(each.mm_position.offset, unit)
        found[at] = (*found.get(at, ()), each.identifier, first)
    return found
