"""Makes the watch over one SGLang scheduler: its mirror, its book of pages, and the ears."""

from __future__ import annotations

from blocklife.engines.sglang._versions import ENGINE
from blocklife.engines.sglang.watch._copies import CopiedMemory, CopyEars
from blocklife.engines.sglang.watch._core import CoreEars
from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._left_out import left_out
from blocklife.engines.sglang.watch._memory import MemoryEars
from blocklife.engines.sglang.watch._parts import CacheParts
from blocklife.engines.sglang.watch._state_parts import POOL, StateParts
from blocklife.engines.sglang.watch._state_steps import StateStepEars
from blocklife.engines.sglang.watch._steps import StepEars
from blocklife.engines.sglang.watch._storage import StorageEars
from blocklife.engines.sglang.watch._tree import TreeEars
from blocklife.engines.sglang.watch._waits import LayerWaits
from blocklife.errors import MisuseError
from blocklife.watch._options import Options
from blocklife.watch._pages import PageBook
from blocklife.watch._states import StateBook
from blocklife.watch._watch import Watch


def watch_scheduler(watched: object, options: Options) -> Watch:
    """Watch a scheduler, or a tree alone. Raises MisuseError if there is nothing to watch, or for options that it has not."""
    parts = CacheParts.of(watched)
    if options.sample > 1:
        raise MisuseError("watch: SGLang's pages are followed all or not at all (leave out BLOCKLIFE_WATCH_SAMPLE)")
    watch = Watch(ENGINE, parts.said, options)
    try:
        _follow(watch, parts)
    except BaseException:
        watch.close()
        raise
    return watch


def _follow(watch: Watch, parts: CacheParts) -> None:
    mirror = watch.add_mirror(parts.num_pages + 1, num_slots=parts.num_host_pages)
    sees_steps, has_storage = parts.scheduler is not None, bool(getattr(parts.tree, "enable_storage", False))
    book = PageBook(mirror, parts.page, parts.num_host_pages, sees_steps=sees_steps)
    book.unseen_slots = has_storage
    found, states, copied = StateParts.of(parts), None, None
    state_parts = None if isinstance(found, str) else found
    if state_parts is not None:
        beside = watch.add_mirror(state_parts.size + 1, num_slots=state_parts.num_host)
        states = StateBook(beside, state_parts.num_host, sees_steps=sees_steps)
        states.unseen_slots = has_storage
        states.sees_takers = not has_storage  # what storage brings of them, the tree takes unheard
        copied = CopiedMemory(states, state_parts.host, 1, POOL)
    ears = Ears(watch)
    watch.listen(ears.calls)
    MemoryEars.of_pages(ears, parts, book)
    if state_parts is not None and states is not None:
        MemoryEars.of_states(ears, state_parts, states)
    copies = CopyEars(ears, parts, book, copied)
    core = CoreEars(ears, parts, book, states)
    if parts.scheduler is not None:
        waits, storage = LayerWaits(ears, parts), StorageEars(ears, parts, book)
        steps = StepEars(ears, parts, book, copies, core, storage, waits)
        if state_parts is not None and states is not None:
            StateStepEars(ears, parts, state_parts, states, copies, steps, waits)
    else:
        ears.hear(None, "get_next_batch_to_run", tells="steps")
    TreeEars(ears, parts, mirror, book, copies, states)
    ears.told |= {} if states is None or states.sees_takers else {"states from storage": False}
    for what, meant in left_out(parts, ears, found if isinstance(found, str) else "").items():
        watch.leave_out(what, meant)
    book.adopt(*parts.taken())
    if state_parts is not None and states is not None:
        states.adopt(*state_parts.taken())
    for each in watch.mirrors:
        each.catch_up()
