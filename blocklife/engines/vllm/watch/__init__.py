"""The watch: a sanitizer for the KV blocks of a vLLM that stays as it is.

``watch.attach(scheduler)`` watches one scheduler. With ``BLOCKLIFE_WATCH=strict|count|log`` in its environment vLLM watches
itself, through its own plug-in entry point. `specs/vllm-watch.md` tells what is seen and what is not.
"""

from __future__ import annotations

from blocklife.engines.vllm.watch.options import Mode, Options
from blocklife.engines.vllm.watch.telling import LOGGER
from blocklife.engines.vllm.watch.violations import RULES, Violation, WatchError
from blocklife.engines.vllm.watch.watching import Parts, Watch
from blocklife.engines.vllm.watch.worker import WorkerWatch

__all__ = [
    "LOGGER",
    "RULES",
    "Mode",
    "Options",
    "Violation",
    "Watch",
    "WatchError",
    "WorkerWatch",
    "attach",
    "attach_worker",
    "detach",
    "watch_of",
]

_ATTRIBUTE = "_blocklife_watch"


def attach(scheduler: object, options: Options | None = None) -> Watch:
    """Watch vLLM's scheduler from now on, or a connector's that somebody drives alone; one that is watched keeps its watch.

    Refuses, with MisuseError, what has nothing to be watched.
    """
    found = watch_of(scheduler)
    if isinstance(found, Watch):
        return found
    for part in Parts.of(scheduler).connectors:
        detach(part)
    watch = Watch(scheduler, options or Options())
    setattr(scheduler, _ATTRIBUTE, watch)
    return watch


def attach_worker(worker: object, options: Options | None = None) -> WorkerWatch:
    """Watch a worker's side of a connector from now on; one that is watched keeps its watch.

    Refuses, with MisuseError, what is none that can be watched.
    """
    found = watch_of(worker)
    if isinstance(found, WorkerWatch):
        return found
    watch = WorkerWatch(worker, options or Options())
    setattr(worker, _ATTRIBUTE, watch)
    return watch


def detach(watched: object) -> None:
    """Watch it no more."""
    found = watch_of(watched)
    if found is not None:
        found.close()
        delattr(watched, _ATTRIBUTE)


def watch_of(watched: object) -> Watch | WorkerWatch | None:
    """The watch over a scheduler or a worker, if there is one."""
    found = getattr(watched, "__dict__", {}).get(_ATTRIBUTE)
    return found if isinstance(found, Watch | WorkerWatch) else None
