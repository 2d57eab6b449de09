"""Reading vLLM's objects: names, tables, and how many tokens of each request its plans have computed."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from blocklife.watch import CONNECTOR


class BlockLike(Protocol):
    """A block of vLLM's pool."""

    block_id: int
    ref_cnt: int
    block_hash: bytes | None
    """The name of its content in the prefix cache, with its group; None if it has none."""
    prev_free_block: object
    """Its predecessor in the free queue; None if it is not in the queue."""
    pool: object
    """The pool that it belongs to; older releases do not say."""


Tables: TypeAlias = Mapping[str, Sequence[BlockLike]]
"""The table of each request in one group."""


def name_of(request: object) -> str:
    """The name of a request. *request* is vLLM's object or the name itself; anything else gives `CONNECTOR`."""
    name = getattr(request, "request_id", request)
    return name if isinstance(name, str) else CONNECTOR


def tables_of(manager: object) -> Tables:
    """The table of each request in one group, as its manager has it."""
    found = getattr(manager, "req_to_blocks", None)
    return found if isinstance(found, dict) else {}


def blocks_of(pool: object) -> Sequence[BlockLike]:
    """All blocks of a pool."""
    found = getattr(pool, "blocks", None)
    return found if isinstance(found, Sequence) else ()


def first_int(thing: object, *names: str) -> int:
    """What the first of these names has that has a whole number; 0 if none has."""
    return next((found for name in names if isinstance(found := getattr(thing, name, None), int)), 0)


@functools.lru_cache(maxsize=64)
def ending_of(group: int) -> bytes:
    """The suffix that names the group, after the hash in the name of a block's content."""
    return group.to_bytes(4, "big")


class EngineProgress:
    """The progress of each request. A plan is read once, by the first part of the watch that sees it."""

    def __init__(self) -> None:
        self.reach: dict[str, int] = {}
        """Tokens of each request computed by the end of the step; kept until one step after the request's end."""
        self.odd: list[tuple[str, str]] = []
        """What is wrong with the last plan, and for which request."""
        self.going_on: set[str] = set()
        """Sessions that the last plan names as new requests: they go on, in the blocks that they have."""
        self._last: object = None
        """The last plan read, until every part of the watch has seen it."""
        self._over: Iterable[str] = ()

    def advance(self, output: object) -> None:
        """Read a plan; it may be passed in more than once."""
        scheduled: Mapping[str, int] = getattr(output, "num_scheduled_tokens", {})
        if output is self._last:
            return
        self._last, self.odd = output, []
        reach = self.reach
        for name in self._over:
            reach.pop(name, None)
        self._over = tuple(getattr(output, "finished_req_ids", None) or ())
        cached = getattr(output, "scheduled_cached_reqs", None)
        names: Sequence[str] = getattr(cached, "req_ids", ())
        computed: Sequence[int] = getattr(cached, "num_computed_tokens", ())
        # This runs for every running request in every step; most continue from where they were, in the same order.
        before = [*map(reach.get, names, computed)]
        if before != computed and any(map(operator.gt, computed, before)):
            self._look(names, computed, getattr(cached, "resumed_req_ids", ()))
        is_in_order = [*itertools.islice(scheduled, len(names))] == names
        computing = scheduled.values() if is_in_order else map(scheduled.get, names, itertools.repeat(0))
        reach.update(zip(names, map(operator.add, computed, computing), strict=False))
        fresh = getattr(output, "scheduled_new_reqs", ())
        self.going_on = {new.req_id for new in fresh if new.req_id in reach}
        for new in fresh:
            reach[new.req_id] = new.num_computed_tokens + scheduled.get(new.req_id, 0)

    def leave(self) -> None:
        """Every part of the watch has read the plan: drop it, so that freeing a large plan costs the watch no time."""
        self._last = None

    def _look(self, names: Sequence[str], computed: Sequence[int], resumed: Collection[str]) -> None:
        for name, count in zip(names, computed, strict=False):
            if count > (before := self.reach.get(name, count)) and name not in resumed:
                self.odd.append((f"{name} counts {count} tokens as computed, but earlier steps computed {before}", name))
