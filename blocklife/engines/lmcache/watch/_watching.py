"""Makes the watch over one LMCache server: its book, its ears, and what of it is not followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from blocklife.engines.lmcache._versions import ENGINE
from blocklife.engines.lmcache.watch._book import PlaceBook
from blocklife.engines.lmcache.watch._l1 import L1Ears
from blocklife.engines.lmcache.watch._l2 import AdapterEars, ControllerEars
from blocklife.engines.lmcache.watch._parts import ServerParts
from blocklife.engines.lmcache.watch._transfers import TransferEars
from blocklife.errors import MisuseError
from blocklife.watch import MirrorSizes, Options, Watch


def watch_server(watched: Any, modules: Sequence[Any], options: Options) -> Watch:
    """Watch a storage manager, with the modules in front of it. Raises MisuseError for options that it has not."""
    parts = ServerParts.of(watched, modules)
    if options.sample > 1:
        raise MisuseError("watch: LMCache's places are followed all or not at all (leave out BLOCKLIFE_WATCH_SAMPLE)")
    if options.record:
        raise MisuseError("watch: nothing is recorded of LMCache (leave out BLOCKLIFE_WATCH_RECORD)")
    if parts.l1.get_memory_usage()[0]:
        raise MisuseError("watch: L1 has content already (attach before the first request)")
    watch = Watch(ENGINE, parts.said, options, at_once=True)
    try:
        _follow(watch, parts)
    except BaseException:
        watch.close()
        raise
    return watch


def _follow(watch: Watch, parts: ServerParts) -> None:
    mirror = watch.add_mirror(MirrorSizes(1, num_slots=parts.num_places))

    def violate(rule: str, what: str, request: str | None, history: tuple[str, ...]) -> None:
        story = mirror.story
        story.add(evolve(story.violation(rule, what, request=request), history=history))

    def odd(rule: str, what: str, request: str | None, history: tuple[str, ...]) -> None:
        watch.later(violate, rule, what, request, history)

    def step() -> None:
        mirror.story.steps += 1
        parts.book.slots.step = mirror.steps
        watch.end_step()

    parts.book, parts.step = PlaceBook(parts.num_places, odd), step
    L1Ears(watch.ears, parts)
    AdapterEars(watch.ears, parts)
    controllers = ControllerEars(watch.ears, parts)
    TransferEars(watch.ears, parts, controllers)
    for what, is_heard in watch.ears.told.items():
        if not is_heard:
            watch.leave_out(what)
    if parts.module("register_kv_cache") is not None:
        watch.leave_out("copies on a GPU", "LMCache drives them itself")
