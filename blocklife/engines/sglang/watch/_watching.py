"""Makes the watch over one SGLang scheduler: its mirrors, its books, the ears, and what of the engine is not followed.

The line at the start, the metric and the report all have from here what is left out. It is found by asking which of the
engine's memories and calls the ears have reached, so that nothing is listed that could be forgotten when an ear is added: a
memory is followed if the thing that hands it out is heard, and a kind of event if one of its calls is.
"""

from __future__ import annotations

from collections.abc import Iterator

from blocklife.engines.sglang._versions import ENGINE
from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._memory import MemoryEars
from blocklife.engines.sglang.watch._parts import NEAR, POOL, CacheParts
from blocklife.engines.sglang.watch._steps import StepEars
from blocklife.engines.sglang.watch._tree import CoreEars, TreeEars
from blocklife.errors import MisuseError
from blocklife.watch import Ears, MirrorSizes, Options, PageBook, StateBook, Watch

MEANT = {
    NEAR: "layers with sliding windows",
    POOL: "states",
    "MAMBA_CKPT": "checkpoints of states in 8 bits",
    "INDEXER": "indices of sparse attention",
    "DRAFT": "layers of a drafter",
}
"""What SGLang means by the names of some memories."""


def watch_scheduler(watched: object, options: Options) -> Watch:
    """Watch a scheduler, or a tree alone. Raises MisuseError if there is nothing to watch, or for options that it has not."""
    parts = CacheParts.of(watched)
    if options.sample > 1:
        raise MisuseError("watch: SGLang's pages are followed all or not at all (leave out BLOCKLIFE_WATCH_SAMPLE)")
    watch = Watch(ENGINE, parts.said, options, at_once=True)
    try:
        _follow(watch, parts)
    except BaseException:
        watch.close()
        raise
    return watch


def _follow(watch: Watch, parts: CacheParts) -> None:
    sees_steps, has_storage = parts.scheduler is not None, bool(getattr(parts.tree, "enable_storage", False))
    mirrors = [watch.add_mirror(MirrorSizes(memory.size + 1, num_slots=memory.num_host)) for memory in parts.memories]
    ears = watch.ears
    for paged, mirror in zip(parts.paged, mirrors, strict=False):
        has_gaps = paged.window is not None
        paged.book = PageBook(mirror, paged.page, paged.num_host, sees_steps=sees_steps, has_gaps=has_gaps)
    if parts.states is not None:
        states = parts.states.memory
        states.book = StateBook(mirrors[-1], states.num_host, sees_steps=sees_steps)
    for memory in parts.memories:
        memory.book.unseen_slots = has_storage
        if has_storage and memory.pool:  # what storage brings of it, the tree takes unheard
            memory.book.sees_takers = False
            ears.told["windows from storage" if memory.pool == NEAR else "states from storage"] = False
        MemoryEars(ears, memory, parts.reading)
    copies, core = CopyEars(ears, parts), CoreEars(ears, parts)
    if sees_steps:
        StepEars(watch, parts, copies, core)
    else:
        ears.hear(None, "get_next_batch_to_run", tells="steps")
    TreeEars(ears, parts, mirrors[0], copies)
    for what, meant in left_out(parts, ears).items():
        watch.leave_out(what, meant)
    for memory in parts.memories:
        memory.book.adopt(*memory.taken())
    watch.catch_up()


def left_out(parts: CacheParts, ears: Ears) -> dict[str, str]:
    """The names of what is not followed, each with what it is, or why."""
    found = {name: MEANT.get(name, "") for name, thing in _memories(parts) if not ears.hears(thing)}  # one part is enough
    found |= {name: f"{MEANT[name]}, {why}" for name, why in parts.why_not.items() if name in found}
    found |= {what: "" for what, is_heard in ears.told.items() if not is_heard}
    if parts.pages.kept() is None:
        found["count of pages at rest"] = "the tree does not count them"
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
