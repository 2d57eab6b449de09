"""Shared by all hooks: reading vLLM's objects."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from blocklife.watch._holders import CONNECTOR


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


@functools.lru_cache(maxsize=64)
def ending_of(group: int) -> bytes:
    """The suffix that names the group, after the hash in the name of a block's content."""
    return group.to_bytes(4, "big")
