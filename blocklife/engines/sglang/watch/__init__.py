"""The watch: a sanitizer for the KV pages and the states of an unmodified SGLang with its hierarchical cache.

``watch.attach(scheduler)`` watches one scheduler. With ``BLOCKLIFE_WATCH=strict|count|log`` in the environment, SGLang loads
the watch by itself, through its plug-in entry point. `specs/sglang-watch.md` describes what it sees and what it does not.
"""

from __future__ import annotations

from blocklife.engines.sglang.watch._watching import watch_scheduler
from blocklife.watch import LOGGER, RULES, Options, Watch, WatchError, WatchMode, WatchViolation, attached, attached_to, detach

__all__ = [
    "LOGGER",
    "RULES",
    "Options",
    "Watch",
    "WatchError",
    "WatchMode",
    "WatchViolation",
    "attach",
    "detach",
    "watch_of",
]


def attach(watched: object, options: Options | None = None) -> Watch:
    """Watch an SGLang scheduler, or its prefix tree alone. One already watched keeps its watch.

    Raises MisuseError if there is nothing to watch, if it is watched with other options already, or if the recording cannot be
    written.
    """
    return attached(watched, options, Watch, lambda chosen: watch_scheduler(watched, chosen))


def watch_of(watched: object) -> Watch | None:
    """The watch over a scheduler or a tree, if there is one."""
    return attached_to(watched, Watch)
