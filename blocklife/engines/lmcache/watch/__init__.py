"""The watch: a sanitizer for the places of L1 of an unmodified LMCache in multi-process mode.

``watch.attach(context, modules)`` watches one server in its process. A server loads it by itself where it is started with
``--server-module '{"module_path": "blocklife.engines.lmcache.watch"}'`` and ``BLOCKLIFE_WATCH=strict|count|log`` in its
environment. `specs/lmcache.md` describes what it sees and what it does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.engines.lmcache.watch._plugin import build_server_modules
from blocklife.engines.lmcache.watch._watching import watch_server
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
    "build_server_modules",
    "detach",
    "watch_of",
]


def attach(watched: object, modules: Sequence[object] = (), options: Options | None = None) -> Watch:
    """Watch a storage manager of LMCache, or the context of a server that has one, with the *modules* that workers talk to.

    One already watched keeps its watch. Raises MisuseError if there is nothing to watch, or if it has content already.
    """
    storage = getattr(watched, "storage_manager", watched)
    return attached(storage, options, Watch, lambda chosen: watch_server(watched, modules, chosen))


def watch_of(watched: object) -> Watch | None:
    """The watch over a storage manager, or a context, if there is one."""
    return attached_to(getattr(watched, "storage_manager", watched), Watch)
