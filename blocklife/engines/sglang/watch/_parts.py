"""What the watch needs of an SGLang scheduler, or of its prefix cache alone, by the names of each release."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from typing import TypedDict

from attrs import field, frozen

from blocklife.engines.sglang.watch._memory import AnyMemory, FollowedMemory, Method
from blocklife.engines.sglang.watch._reading import IndexReading
from blocklife.errors import MisuseError
from blocklife.watch import PageBook, StateBook

POOL, NEAR = "MAMBA", "SWA"
"""How SGLang calls the memory of states, and that of layers with windows, in its tree and in its host pools."""
CHUNK = 64
"""Tokens that a model's layers compute at once where it does not say how many."""
MAPPING = "full_to_swa_index_mapping"
"""Where an allocator has the slot in the memory of windows for each slot of full attention; 0 for none."""


class Paged(TypedDict):
    """What memory in pages has by the same names."""

    free_lists: Sequence[str]
    sets_aside: str


class Others(TypedDict):
    """What hands out and frees beside an allocator."""

    also_hands_out: Sequence[Method]
    also_frees: Sequence[Method]


PAGED: Paged = {"free_lists": ("free_pages", "release_pages", "staged_pages"), "sets_aside": "free_group_end"}


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
    rows: object
    """Which slots of device memory a request has."""
    pages: FollowedMemory[PageBook]
    """The keys and values of the layers with full attention, of which the dummy page is 0."""
    windows: FollowedMemory[PageBook] | None
    """Those of the layers with windows, in pages of their own; None where they are not followed."""
    states: StateParts | None
    """The states, for models whose layers keep some; None where they are not followed."""
    why_not: Mapping[str, str]
    """Why a memory of that name is not followed."""
    reading: IndexReading = field(init=False, factory=IndexReading)

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
        rows = getattr(tree, "req_to_token_pool", None)
        pages = _pages_of(scheduler, tree, controller)
        near, states = _windows_of(tree, controller), StateParts.of(scheduler, tree, controller, rows)
        why_not = {name: each for name, each in ((NEAR, near), (POOL, states)) if isinstance(each, str)}
        windows, found = None if isinstance(near, str) else near, None if isinstance(states, str) else states
        return cls(scheduler, tree, controller, rows, pages, windows, found, why_not)

    @property
    def paged(self) -> list[FollowedMemory[PageBook]]:
        """The memories in pages: of all that a request has, and of what its layers with windows still see."""
        return [self.pages] if self.windows is None else [self.pages, self.windows]

    @property
    def memories(self) -> list[AnyMemory]:
        """The memories of the device that are followed."""
        return [*self.paged] if self.states is None else [*self.paged, self.states.memory]

    @property
    def num_ranks(self) -> int:
        """Ranks that must agree on what has landed."""
        counts = [getattr(self.tree, name, 1) for name in ("tp_world_size", "pp_size")]
        return max(count if isinstance(count, int) else 1 for count in counts)

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

    def is_at_rest(self) -> bool:
        """Whether the scheduler has no request at all."""
        scheduler = self.scheduler
        is_empty = getattr(getattr(scheduler, "running_batch", None), "is_empty", None)
        rests = is_empty is not None and is_empty() and not getattr(scheduler, "waiting_queue", ())
        return rests and getattr(scheduler, "chunked_req", None) is None and not getattr(scheduler, "last_batch", None)


def _pages_of(scheduler: object, tree: object, controller: object) -> FollowedMemory[PageBook]:
    """The memory of the pages. Raises MisuseError for one that the watch does not know."""
    allocator = getattr(tree, "token_to_kv_pool_allocator", None)
    full = getattr(allocator, "full_attn_allocator", allocator)  # that of full attention, if there are other layers
    host = getattr(controller, "mem_pool_host", None)
    anchor = getattr(getattr(host, "anchor_entry", None), "host_pool", host)
    page, size, host_size = (getattr(tree, "page_size", 0), getattr(full, "size", 0), getattr(anchor, "size", 0))
    if not (page and size and host_size):
        raise MisuseError(f"a {type(tree).__name__} with a {type(full).__name__} has nothing that the watch knows")
    components = getattr(tree, "components", None)
    is_alone = full is allocator and getattr(scheduler, "is_hybrid_ssm", False) is not True
    return FollowedMemory[PageBook](
        tree=tree,
        allocator=full,
        host=anchor,
        size=size // page,
        num_host=host_size // page,
        page=page,
        counts="" if is_alone else "full_",
        beside=_beside(tree, host, "KV"),
        # Sharded memory has numbers of its own.
        has_pages=not getattr(controller, "is_kv_sharded", False) and getattr(anchor, "dcp_size", 1) == 1,
        also_frees=[(each, "_free_full") for each in (components.values() if isinstance(components, dict) else ())],
        **PAGED,
    )


def _windows_of(tree: object, controller: object) -> FollowedMemory[PageBook] | str:
    """The memory of the layers with windows; if the watch cannot follow it, the reason, as a text."""
    both = getattr(tree, "token_to_kv_pool_allocator", None)
    allocator, entry = getattr(both, "swa_attn_allocator", None), _entry(getattr(controller, "mem_pool_host", None), NEAR)
    host, page = getattr(entry, "host_pool", None), getattr(tree, "page_size", 0)
    size, num_host = getattr(allocator, "size", 0), getattr(host, "size", 0)
    window = getattr(tree, "sliding_window_size", None)
    if not (page and size and num_host):
        return "which have no host memory"
    if getattr(both, "swa_req_ring", False) is True:
        return "in a ring of each request"
    if not (isinstance(window, int) and hasattr(both, MAPPING)):
        return "in unified pools, which number their memory otherwise"
    return FollowedMemory[PageBook](
        tree=tree,
        allocator=allocator,
        host=host,
        size=size // page,
        num_host=num_host // page,
        page=page,
        pool=NEAR,
        counts="swa_",
        window=window,
        beside=_beside(tree, getattr(controller, "mem_pool_host", None), NEAR),
        places=lambda indices: getattr(both, MAPPING)[indices],
        **PAGED,
        **_names_from_before(entry),
    )


@frozen(eq=False)
class StateParts:
    """The memory of states behind one scheduler: a state has one slot, on the device and on the host; the dummy state is 0."""

    memory: FollowedMemory[StateBook]
    pool: object
    """Where the states are, with the copies from slot to slot."""
    layers: frozenset[int]
    """The layers with states, as a load counts them."""
    chunk: int
    """Tokens that the layers compute at once."""
    grid: int
    """Behind each multiple of so many, a prompt can leave a state."""

    @classmethod
    def of(cls, scheduler: object, tree: object, controller: object, rows: object) -> StateParts | str:
        """The memory of states that a scheduler with these parts has; if the watch cannot follow it, the reason, as a text.

        It cannot be followed where a slot has one number in the engine's tables and another one in its memory, where what is
        cached is converted to 8 bits, where a part of a state is in a ring beside it, and where steps guess tokens ahead.
        """
        allocator, pool = (getattr(rows, name, None) for name in ("mamba_allocator", "mamba_pool"))
        entry = _entry(getattr(controller, "mem_pool_host", None), POOL)
        host = getattr(entry, "host_pool", None)
        size, num_host = getattr(allocator, "size", 0), getattr(host, "size", 0)
        if not (size and num_host):
            return "which have no host memory"
        for thing, name, why in (
            (rows, "mamba_v2p_table", "in unified pools, which number their memory otherwise"),
            (rows, "mamba_ckpt_pool", "cached in 8 bits"),
            (pool, "replayssm_write_pos", "partly in a ring beside them (ReplaySSM)"),
        ):
            if getattr(thing, name, None) is not None:
                return why
        guesses = getattr(getattr(scheduler, "spec_algorithm", None), "is_none", None)
        if guesses is not None and not guesses():
            return "with speculative decoding"
        first: int = getattr(rows, "start_layer", 0)
        layers: Mapping[int, int] = getattr(rows, "mamba_map", {})
        config = getattr(getattr(scheduler, "model_config", None), "hf_text_config", None)
        chunk: int = getattr(config, "mamba_chunk_size", None) or CHUNK
        memory = FollowedMemory[StateBook](
            tree=tree,
            allocator=allocator,
            host=host,
            size=size,
            num_host=num_host,
            pool=POOL,
            counts="mamba_",
            sets_aside="alloc_group_end",
            **_names_from_before(entry),
        )
        page: int = getattr(tree, "page_size", 0)
        return cls(memory, pool, frozenset(layer - first for layer in layers), chunk, max(chunk, page))


def _entry(host: object, pool: str) -> object:
    """What a group of host pools has of the memory of this name."""
    for entry in getattr(host, "entries", ()):
        if getattr(getattr(entry, "name", None), "name", "") == pool:
            return entry
    return None


def _beside(tree: object, host: object, pool: str) -> list[object]:
    """The host pools whose slots are those of the memory of this name: indices of sparse attention, say, or a drafter's."""
    specs = getattr(tree, "sidecar_pool_specs", None)
    names = [each.pool_name.name for each in specs or () if each.indices_from_pool.name == pool]
    return [found.host_pool for found in getattr(host, "entries", ()) if getattr(found.name, "name", "") in names]


def _names_from_before(entry: object) -> Others:
    """The allocator's methods that the controller has from before the watch came."""
    return {"also_hands_out": [(entry, "device_alloc_fn")], "also_frees": [(entry, "device_free_fn")]}
