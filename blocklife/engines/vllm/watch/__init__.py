"""The watch: a sanitizer for the KV blocks of an unmodified vLLM.

``watch.attach(scheduler)`` watches one scheduler. With ``BLOCKLIFE_WATCH=strict|count|log`` in the environment, vLLM loads the
watch by itself, through its plug-in entry point. `specs/vllm-watch.md` describes what it sees and what it does not.
"""

from __future__ import annotations

from blocklife.engines.vllm.watch._watching import Parts, watch_scheduler
from blocklife.engines.vllm.watch._worker import WorkerWatch
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
    "WorkerWatch",
    "attach",
    "attach_worker",
    "detach",
    "watch_of",
]

_ATTRIBUTE = "_blocklife_watch"


def attach(scheduler: object, options: Options | None = None) -> Watch:
    """Watch a vLLM scheduler; or, driven alone, the scheduler side of a connector, or a manager of tiers.

    One already watched keeps its watch, unless it is a part of *scheduler*: then the new watch has it.

    Raises MisuseError if there is nothing to watch, if it is watched with other options already, or if the recording cannot be
    written.
    """
    _check(options)
    found = watch_of(scheduler)
    if isinstance(found, Watch):
        _check_same(scheduler, found, options)
        return found
    for part in Parts.of(scheduler).connectors:
        detach(part)
        detach(getattr(part, "manager", None))
    watch = watch_scheduler(scheduler, options or Options())
    setattr(scheduler, _ATTRIBUTE, watch)
    return watch


def attach_worker(worker: object, options: Options | None = None) -> WorkerWatch:
    """Watch the worker side of a connector. One already watched keeps its watch.

    Raises MisuseError for anything that is not a worker side, or if it is watched with other options already.
    """
    _check(options)
    found = watch_of(worker)
    if isinstance(found, WorkerWatch):
        _check_same(worker, found, options)
        return found
    watch = WorkerWatch(worker, options or Options())
    setattr(worker, _ATTRIBUTE, watch)
    return watch


def detach(watched: object) -> None:
    """Stop watching."""
    found = watch_of(watched)
    if found is not None:
        found.close()
        delattr(watched, _ATTRIBUTE)


def watch_of(watched: object) -> Watch | WorkerWatch | None:
    """The watch over a scheduler or a worker, if there is one."""
    found = getattr(watched, "__dict__", {}).get(_ATTRIBUTE)
    return found if isinstance(found, Watch | WorkerWatch) else None


def _check(options: object) -> None:
    if options is not None and not isinstance(options, Options):
        raise MisuseError(
            f"watch: options must be made with Options, not {options!r} (pass Options(mode=WatchMode.STRICT), or nothing)"
        )


def _check_same(watched: object, found: Watch | WorkerWatch, options: Options | None) -> None:
    """Refuse options other than those in force: a caller that asks for a strict watch must not get one that only counts."""
    if options is not None and options != found.options:
        raise MisuseError(f"watch: this {type(watched).__name__} is watched with other options already (detach it first)")
