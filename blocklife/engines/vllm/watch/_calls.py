"""Shared by all hooks: wrapping calls, and reading vLLM's objects."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from blocklife.engines.vllm.watch._holders import CONNECTOR

Original: TypeAlias = Callable[..., object]


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


class CallsThrough:
    """Methods of single objects whose calls go through a wrapper."""

    def __init__(self) -> None:
        self._made: list[tuple[object, str, Original, Callable[[Original], Original], bool]] = []
        """What is wrapped, how, and whether the object itself had it, instead of its class."""

    def add(self, thing: object, name: str, wrapper: Original) -> None:
        """Wrap a method of one object, if it has it; *wrapper* gets the original method as its first argument."""
        self.around(thing, name, functools.partial(functools.partial, wrapper))

    def around(self, thing: object, name: str, make: Callable[[Original], Original]) -> None:
        """Replace the method by what *make* returns for the original; cheaper for frequent calls."""
        method = getattr(thing, name, None)
        if method is not None:
            self._made.append((thing, name, method, make, name in vars(thing)))
            setattr(thing, name, make(method))

    def __bool__(self) -> bool:
        """Whether any method is wrapped."""
        return bool(self._made)

    def undo(self) -> None:
        """Restore the original methods. What was wrapped over them later has to be undone before."""
        for thing, name, method, _, is_own in reversed(self._made):
            vars(thing).pop(name, None)
            if is_own:
                setattr(thing, name, method)
        self._made = []


def given(args: Sequence[object], kwargs: Mapping[str, object], *names: str) -> list[object]:
    """The leading arguments, by position or by these names; None for one that is not given."""
    return [args[at] if at < len(args) else kwargs.get(name) for at, name in enumerate(names)]


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
