"""Makes the watch over one SGLang scheduler: its mirror, its book of pages, and the ears."""

from __future__ import annotations

from blocklife.engines.sglang._versions import ENGINE
from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._core import CoreEars
from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._memory import MemoryEars
from blocklife.engines.sglang.watch._parts import CacheParts
from blocklife.engines.sglang.watch._steps import StepEars
from blocklife.engines.sglang.watch._storage import StorageEars
from blocklife.engines.sglang.watch._tree import TreeEars
from blocklife.errors import MisuseError
from blocklife.watch._options import Options
from blocklife.watch._pages import PageBook
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
    book = PageBook(mirror, parts.page, parts.num_host_pages, sees_steps=parts.scheduler is not None)
    book.unseen_slots = bool(getattr(parts.tree, "enable_storage", False))
    ears = Ears(watch, mirror)
    watch.listen(ears.calls)
    MemoryEars(ears, parts, book)
    copies = CopyEars(ears, parts, book)
    core = CoreEars(ears, parts, book)
    if parts.scheduler is not None:
        StepEars(ears, parts, book, copies, core)
        StorageEars(ears, parts, book)
    TreeEars(ears, parts, mirror, book, copies)
    book.adopt(*parts.taken())
    mirror.catch_up()
