"""The parts of one LMCache server that are watched, and how its keys and places are named.

LMCache's classes are not imported: everything is asked of the objects that there are.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import define, field

from blocklife.engines.lmcache.watch._book import PlaceBook
from blocklife.errors import MisuseError

BY_TIER = "store"
"""The scope of what LMCache does to store to its adapters."""


@functools.lru_cache(maxsize=1 << 16)
def name_of(key: Any) -> bytes:
    """One text that stands for a key of LMCache's."""
    parts = (key.chunk_hash.hex(), key.model_name, key.kv_rank, key.object_group_id, key.cache_salt)
    return "@".join(map(str, parts)).encode()


def names_of(keys: object) -> list[bytes]:
    """The same of many."""
    return [name_of(each) for each in keys] if isinstance(keys, Iterable) else []


def staged(key: Any, tag: str) -> bytes:
    """The name of what a writer with this tag brings, until it is published."""
    return name_of(key) + b"#" + tag.encode()


class Who(threading.local):
    """The request in whose name this thread gives locks back, where it is known."""

    request: str | None = None


@define(eq=False)
class ServerParts:
    """What is watched of one server."""

    storage: Any
    """Its storage manager."""
    l1: Any
    modules: Sequence[Any]
    """Those that workers talk to; none where the storage manager is watched alone."""
    base: int
    """The address of L1's memory."""
    align: int
    num_places: int
    book: PlaceBook = field(init=False)
    step: Callable[[], object] = field(init=False)
    """Called with each thing that LMCache is asked for: what the watch counts as a step."""
    who: Who = field(factory=Who)

    @classmethod
    def of(cls, watched: Any, modules: Sequence[Any]) -> ServerParts:
        """Those of a storage manager, or of a context that has one. Raises MisuseError where there is nothing to watch."""
        storage = getattr(watched, "storage_manager", watched)
        managers = getattr(storage, "_l1_managers_by_id", None)
        if not isinstance(managers, Mapping) or len(managers) != 1:
            raise MisuseError(
                f"watch: {type(watched).__name__} has no single L1 to watch (attach it to a storage manager of LMCache 0.5.6,"
                " or to the context that has it; several L1 managers are not followed)"
            )
        (l1,) = managers.values()
        try:
            memory = l1.get_l1_memory_desc()
        except NotImplementedError as error:
            raise MisuseError("watch: this L1 has no memory of the host (only L1 in DRAM is followed)") from error
        align = int(memory.align_bytes)
        return cls(storage, l1, modules, int(memory.ptr), align, -(-int(memory.size) // align))

    @property
    def said(self) -> str:
        """What is watched, in words."""
        return f"{self.num_places} places of {self.align} bytes in LMCache's L1"

    def place(self, memory: Any) -> int:
        """The place where an object of L1 begins."""
        return (int(memory.data_ptr) - self.base) // self.align

    def module(self, method: str) -> Any:
        """The module that has a method; None if there is none."""
        return next((each for each in self.modules if callable(getattr(each, method, None))), None)


def is_good(error: object) -> bool:
    """Whether one of LMCache's results is a success."""
    return getattr(error, "name", "") == "SUCCESS"


Locked = Callable[[Callable[..., object]], Callable[..., object]]


def under(lock: Any) -> Locked:
    """Makes calls under a lock that the same thread may take again."""

    def made(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def through(*args: object, **kwargs: object) -> object:
            with lock:
                return original(*args, **kwargs)

        return through

    return made
