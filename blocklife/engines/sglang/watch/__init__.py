"""The watch: a sanitizer for the KV pages of an unmodified SGLang with its hierarchical cache.

``watch.attach(scheduler)`` watches one scheduler. With ``BLOCKLIFE_WATCH=strict|count|log`` in the environment, SGLang loads
the watch by itself, through its plug-in entry point. `specs/sglang-watch.md` describes what it sees and what it does not.
"""

from __future__ import annotations

from blocklife.engines.sglang.watch._watching import watch_scheduler
from blocklife.errors import MisuseError
from blocklife.watch import LOGGER, RULES, Options, Watch, WatchError, WatchMode, WatchViolation

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

_ATTRIBUTE = "_blocklife_watch"


def attach(watched: object, options: Options | None = None) -> Watch:
    """Watch an SGLang scheduler, or its prefix tree alone. One already watched keeps its watch.

    Raises MisuseError if there is nothing to watch, if it is watched with other options already, or if the recording cannot be
    written.
    """
    if options is not None and not isinstance(options, Options):
        raise MisuseError(
            f"watch: options must be made with Options, not {options!r} (pass Options(mode=WatchMode.STRICT), or nothing)"
        )
    found = watch_of(watched)
    if found is None:
        found = watch_scheduler(watched, options or Options())
        setattr(watched, _ATTRIBUTE, found)
    elif options is not None and options != found.options:
        raise MisuseError(f"watch: this {type(watched).__name__} is watched with other options already (detach it first)")
    return found


def detach(watched: object) -> None:
    """Stop watching."""
    found = watch_of(watched)
    if found is not None:
        found.close()
        delattr(watched, _ATTRIBUTE)


def watch_of(watched: object) -> Watch | None:
    """The watch over a scheduler or a tree, if there is one."""
    found = getattr(watched, "__dict__", {}).get(_ATTRIBUTE)
    return found if isinstance(found, Watch) else None
