"""What the watch needs of the memory of states, for models whose layers keep some, by the names of each release."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from blocklife.engines.sglang.watch._parts import CacheParts, size_of
from blocklife.engines.sglang.watch._reading import numbers

POOL = "MAMBA"
"""How SGLang calls this memory, in its tree and in its host pools."""
CHUNK = 64
"""Tokens that a model's layers compute at once where it does not say how many."""


@frozen(eq=False)
class StateParts:
    """The memory of states behind one scheduler: a state has one slot, on the device and on the host."""

    tree: object
    rows: object
    """Which slots a request has."""
    allocator: object
    pool: object
    """Where the states are, with the copies from slot to slot."""
    entry: object
    """What the cache controller knows of this memory."""
    host: object
    size: int
    """States of device memory, without the dummy state 0."""
    num_host: int
    layers: frozenset[int]
    """The layers with states, as a load counts them."""
    chunk: int
    """Tokens that the layers compute at once."""
    grid: int
    """Behind each multiple of so many, a prompt can leave a state."""

    @classmethod
    def of(cls, parts: CacheParts) -> StateParts | str:
        """The memory of states of a scheduler with these parts, or why there is none that can be followed.

        It cannot be followed where a slot has one number in the engine's tables and another one in its memory, where what is
        cached is converted to 8 bits, where a part of a state is in a ring beside it, and where steps guess tokens ahead.
        """
        rows = parts.rows
        allocator, pool = (getattr(rows, name, None) for name in ("mamba_allocator", "mamba_pool"))
        entry = _entry(getattr(parts.controller, "mem_pool_host", None))
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
        guesses = getattr(getattr(parts.scheduler, "spec_algorithm", None), "is_none", None)
        if guesses is not None and not guesses():
            return "with speculative decoding"
        first: int = getattr(rows, "start_layer", 0)
        layers: Mapping[int, int] = getattr(rows, "mamba_map", {})
        config = getattr(getattr(parts.scheduler, "model_config", None), "hf_text_config", None)
        chunk: int = getattr(config, "mamba_chunk_size", None) or CHUNK
        on = frozenset(layer - first for layer in layers)
        return cls(parts.tree, rows, allocator, pool, entry, host, size, num_host, on, chunk, max(chunk, parts.page))

    def taken(self) -> tuple[list[int], list[int]]:
        """The slots of the device and of the host that are handed out now."""
        free = set(numbers(getattr(self.allocator, "free_slots", None)))
        host_free = set(numbers(getattr(self.host, "free_slots", None)))
        for freed in getattr(self.host, "release_slots", None) or ():
            host_free.update(numbers(freed))
        return (
            [slot for slot in range(1, self.size + 1) if slot not in free],
            [slot for slot in range(self.num_host) if slot not in host_free],
        )

    def free(self) -> int | None:
        """States that the allocator can hand out, by its own count."""
        return size_of(self.allocator, "available_size")

    def kept(self) -> int | None:
        """States of the device that the tree has; None where it does not count them."""
        sizes = [size_of(self.tree, name) for name in ("mamba_evictable_size", "mamba_protected_size")]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def locked(self) -> int:
        """States of the device that the tree could not evict now."""
        return size_of(self.tree, "mamba_protected_size") or 0


def _entry(host: object) -> object:
    """What a group of host pools has of this memory."""
    for entry in getattr(host, "entries", ()):
        if getattr(getattr(entry, "name", None), "name", "") == POOL:
            return entry
    return None
