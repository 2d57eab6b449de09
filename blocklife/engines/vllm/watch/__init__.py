"""The watch: a sanitizer for the KV blocks of an unmodified vLLM.

``watch.attach(scheduler)`` watches one scheduler. With ``BLOCKLIFE_WATCH=strict|count|log`` in the environment, vLLM loads the
watch by itself, through its plug-in entry point. `specs/vllm-watch.md` describes what it sees and what it does not.
"""

from __future__ import annotations

from blocklife.engines.vllm.watch._watching import Parts, watch_scheduler
from blocklife.engines.vllm.watch._worker import WorkerWatch
from blocklife.watch import LOGGER, RULES, Options, Watch, WatchError, WatchMode, WatchViolation, attached, attached_to, detach

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


def attach(scheduler: object, options: Options | None = None) -> Watch:
    """Watch a vLLM scheduler; or, driven alone, the scheduler side of a connector, or a manager of tiers.

    One already watched keeps its watch, unless it is a part of *scheduler*: then the new watch has it.

    Raises MisuseError if there is nothing to watch, if it is watched with other options already, or if the recording cannot be
    written.
    """

    def watch(chosen: Options) -> Watch:
        for part in Parts.of(scheduler).connectors:
            detach(part)
            detach(getattr(part, "manager", None))
        return watch_scheduler(scheduler, chosen)

    return attached(scheduler, options, Watch, watch)


def attach_worker(worker: object, options: Options | None = None) -> WorkerWatch:
    """Watch the worker side of a connector. One already watched keeps its watch.

    Raises MisuseError for anything that is not a worker side, or if it is watched with other options already.
    """
    return attached(worker, options, WorkerWatch, lambda chosen: WorkerWatch(worker, chosen))


def watch_of(watched: object) -> Watch | WorkerWatch | None:
    """The watch over a scheduler or a worker, if there is one."""
    return attached_to(watched, Watch) or attached_to(watched, WorkerWatch)
