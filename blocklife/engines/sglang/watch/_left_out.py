"""What of an engine the watch does not follow: found by asking which of its memories and calls the ears have reached.

The line at the start, the metric and the report all have it from here. Nothing is listed that could be forgotten when an ear
is added: a memory is followed if the thing that hands it out is heard, and a kind of event if one of its calls is.
"""

from __future__ import annotations

from collections.abc import Iterator

from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import CacheParts
from blocklife.engines.sglang.watch._state_parts import POOL

MEANT = {
    "SWA": "layers with sliding windows",
    POOL: "states",
    "MAMBA_CKPT": "checkpoints of states in 8 bits",
    "INDEXER": "indices of sparse attention",
    "DRAFT": "layers of a drafter",
}
"""What SGLang means by the names of some memories."""


def left_out(parts: CacheParts, ears: Ears, why_no_states: str = "") -> dict[str, str]:
    """The names of what is not followed, each with what it is, or why."""
    found = {name: MEANT.get(name, "") for name, thing in _memories(parts) if not ears.hears(thing)}  # one part is enough
    if POOL in found and why_no_states:
        found[POOL] = f"{MEANT[POOL]}, {why_no_states}"
    found |= {what: "" for what, is_heard in ears.told.items() if not is_heard}
    if parts.kept() is None:
        found["count of pages at rest"] = "the tree's count is not of full attention alone"
    if any(getattr(each, "is_eagle", False) is True for each in (parts.tree, getattr(parts.tree, "tree_core", None))):
        found["keys of pairs of tokens"] = "a drafter's, which are believed"
    return found


def _memories(parts: CacheParts) -> Iterator[tuple[str, object]]:
    """Each memory of the engine, by SGLang's name for it, with each thing that hands it out or keeps it."""
    for entry in getattr(getattr(parts.controller, "mem_pool_host", None), "entries", ()):
        yield str(getattr(getattr(entry, "name", None), "name", "another pool")), getattr(entry, "host_pool", None)
    allocator = getattr(parts.tree, "token_to_kv_pool_allocator", None)
    for owner in (allocator, parts.rows):
        for name, thing in vars(owner).items() if hasattr(owner, "__dict__") else ():
            kind = next((end for end in ("_attn_allocator", "_allocator", "_pool") if name.endswith(end)), "")
            if kind and thing is not None and hasattr(thing, "__dict__") and not _is_empty(thing):
                yield name.removesuffix(kind).strip("_").upper(), thing
    storage = getattr(parts.controller, "storage_backend", None)
    if storage is not None:
        yield f"content of {type(storage).__name__}", storage
    draft = getattr(parts.scheduler, "draft_worker", None)
    if draft is not None:
        yield "DRAFT", draft


def _is_empty(pool: object) -> bool:
    """Whether this is a pool that a model has no use for: none of what it would keep is there."""
    kept = [value for name, value in vars(pool).items() if name.endswith(("_state", "context"))]
    return bool(kept) and all(value is None for value in kept)
