"""What the watch needs of an SGLang scheduler, or of its prefix cache alone, by the names of each release."""

from __future__ import annotations

import queue
from collections.abc import Iterable

from attrs import frozen

from blocklife.engines.sglang.watch._reading import numbers, pages
from blocklife.errors import MisuseError


def size_of(thing: object, name: str) -> int | None:
    """The number that this method of a thing returns; None if it has no such method, or another answer."""
    method = getattr(thing, name, None)
    found = method() if callable(method) else None
    return found if isinstance(found, int) else None


def seed_of(owner: object) -> tuple[object, ...] | None:
    """What keeps the content of requests or keys apart, whatever their tokens; None if nothing does."""
    found = tuple(getattr(owner, name, None) or None for name in ("extra_key", "cache_salt"))
    return found if any(found) else None


@frozen(eq=False)
class CacheParts:
    """The parts of one scheduler's hierarchical cache."""

    scheduler: object | None
    tree: object
    controller: object
    allocator: object
    """That of the layers with full attention, if there are others."""
    host: object
    """The host pool of the keys and values."""
    rows: object
    """Which slots of device memory a request has."""
    page: int
    num_pages: int
    """Pages of device memory, without the dummy page 0."""
    num_host_pages: int
    is_mixed: bool
    """Whether there are layers of other kinds, so that the tree's count of pages is not that of full attention alone."""

    @classmethod
    def of(cls, watched: object) -> CacheParts:
        """The parts of a scheduler, or of a tree. Raises MisuseError if there is nothing to watch."""
        tree = getattr(watched, "tree_cache", None)
        scheduler = None if tree is None else watched
        tree = watched if tree is None else tree
        if not hasattr(tree, "match_prefix"):
            raise MisuseError(f"a {type(watched).__name__} has nothing to watch (attach to SGLang's Scheduler, or to its tree)")
        controller = getattr(tree, "cache_controller", None)
        if controller is None:
            raise MisuseError(
                f"a {type(tree).__name__} without host memory has nothing to watch (start SGLang with"
                " --enable-hierarchical-cache)"
            )
        allocator = getattr(tree, "token_to_kv_pool_allocator", None)
        full = getattr(allocator, "full_attn_allocator", allocator)
        host = getattr(controller, "mem_pool_host", None)
        anchor = getattr(getattr(host, "anchor_entry", None), "host_pool", host)
        page, size, host_size = (getattr(tree, "page_size", 0), getattr(full, "size", 0), getattr(anchor, "size", 0))
        if not (page and size and host_size):
            raise MisuseError(f"a {type(tree).__name__} with a {type(full).__name__} has nothing that the watch knows")
        return cls(
            scheduler,
            tree,
            controller,
            full,
            anchor,
            getattr(tree, "req_to_token_pool", None),
            page,
            size // page,
            host_size // page,
            full is not allocator or getattr(scheduler, "is_hybrid_ssm", False) is True,
        )

    @property
    def num_ranks(self) -> int:
        """Ranks that must agree on what has landed."""
        counts = [getattr(self.tree, name, 1) for name in ("tp_world_size", "pp_size")]
        return max(count if isinstance(count, int) else 1 for count in counts)

    @property
    def is_in_use(self) -> bool:
        """Whether device memory is handed out already."""
        return bool(self.taken()[0])

    @property
    def is_copied_page_by_page(self) -> bool:
        """Whether what is queued is what the device is told to copy; sharded memory has numbers of its own there."""
        return not getattr(self.controller, "is_kv_sharded", False) and getattr(self.host, "dcp_size", 1) == 1

    @property
    def pool(self) -> object:
        """Device memory, where layers get their buffers."""
        find = getattr(getattr(self.tree, "token_to_kv_pool_allocator", None), "get_kvcache", None)
        return find() if callable(find) else None

    @property
    def first_layer(self) -> int:
        """The number of the first layer that this device memory has, which a load counts from."""
        found = getattr(self.pool, "start_layer", 0)
        return found if isinstance(found, int) else 0

    def steps_stream(self) -> object | None:
        """The stream on which steps run, where it can be seen."""
        worker = getattr(self.scheduler, "tp_worker", None)
        return getattr(getattr(worker, "model_runner", None), "forward_stream", None)

    @property
    def host_rests(self) -> bool:
        """Whether neither a load nor work of storage has anything on the host in hand, as far as the engine notes it."""
        names = ("ongoing_load_back", "ongoing_prefetch", "ongoing_backup")
        if any(getattr(self.tree, name, None) for name in names):
            return False
        return all(each.empty() for each in vars(self.controller).values() if isinstance(each, queue.Queue))

    @property
    def said(self) -> str:
        """What is watched, in words."""
        return f"the {type(self.tree).__name__} of SGLang"

    def taken(self) -> tuple[list[int], list[int]]:
        """The pages of the device and of the host that are handed out now."""
        free = set(_all(self.allocator, "free_pages", "release_pages", "staged_pages"))
        host_free = set(pages(_all(self.host, "free_slots", "release_slots"), self.page))
        return (
            [page for page in range(1, self.num_pages + 1) if page not in free],
            [page for page in range(self.num_host_pages) if page not in host_free],
        )

    def kept(self) -> int | None:
        """Tokens of device memory that the tree has; None where that cannot be compared with the pages handed out."""
        if self.is_mixed:
            return None
        sizes = [size_of(self.tree, name) for name in ("evictable_size", "protected_size")]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def free(self) -> int | None:
        """Tokens of device memory that can be handed out, by the allocator's own count; None where it counts otherwise."""
        return size_of(self.allocator, "available_size") if self.is_copied_page_by_page else None

    def locked(self) -> int:
        """Tokens of device memory that the tree could not evict now."""
        return size_of(self.tree, "protected_size") or 0

    def is_at_rest(self) -> bool:
        """Whether the scheduler has no request at all."""
        scheduler = self.scheduler
        is_empty = getattr(getattr(scheduler, "running_batch", None), "is_empty", None)
        rests = is_empty is not None and is_empty() and not getattr(scheduler, "waiting_queue", ())
        return rests and getattr(scheduler, "chunked_req", None) is None and not getattr(scheduler, "last_batch", None)


def _all(thing: object, *names: str) -> Iterable[int]:
    for name in names:
        found = getattr(thing, name, None)
        for each in found if isinstance(found, list) else [found]:
            yield from numbers(each)
