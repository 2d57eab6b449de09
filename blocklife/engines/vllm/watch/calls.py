"""What all hooks share: how a call goes through a wrapper first, and how vLLM's own parts are looked at."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from blocklife.engines.vllm.watch.holders import CONNECTOR

Original: TypeAlias = Callable[..., object]


class BlockLike(Protocol):
    """A block of vLLM's pool."""

    block_id: int
    ref_cnt: int
    block_hash: bytes | None
    """The name of its content in the prefix cache, with its group; None where it has none."""
    prev_free_block: object
    """Who stands before it in the queue of free blocks; None where it is not in it."""
    pool: object
    """Whose it is; older releases do not say."""


Tables: TypeAlias = Mapping[str, Sequence[BlockLike]]
"""The table of each request in one group."""


class CallsThrough:
    """Methods of single objects whose calls go through somebody else first."""

    def __init__(self) -> None:
        self._made: list[tuple[object, str, Original, Callable[[Original], Original]]] = []

    def add(self, thing: object, name: str, wrapper: Original) -> None:
        """Let calls of one object's method, if it has it, go to *wrapper*, with the original as its first argument."""
        self.around(thing, name, functools.partial(functools.partial, wrapper))

    def around(self, thing: object, name: str, make: Callable[[Original], Original]) -> None:
        """Let them go to what *make* makes of the original: that costs less where calls are many."""
        method = getattr(thing, name, None)
        if method is not None:
            setattr(thing, name, make(method))
            self._made.append((thing, name, method, make))

    def __bool__(self) -> bool:
        """Whether any call goes through here."""
        return bool(self._made)

    def undo(self) -> None:
        """The objects' own methods again."""
        for thing, name, _, _ in reversed(self._made):
            vars(thing).pop(name, None)
        self._made = []


def given(args: Sequence[object], kwargs: Mapping[str, object], *names: str) -> list[object]:
    """The arguments of these names, which come first; None for what is not given."""
    return [args[at] if at < len(args) else kwargs.get(name) for at, name in enumerate(names)]


def name_of(request: object) -> str:
    """What a request is called, which may be its name itself; without a name it is nobody in particular."""
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
    """What stands behind a hash in the name of content: the group that it is of."""
    return group.to_bytes(4, "big")
