"""The entry point through which SGLang loads the watch, in each of its processes (``sglang.srt.plugins``)."""

from __future__ import annotations

import importlib

from blocklife.engines.sglang import _versions as versions
from blocklife.engines.sglang.watch import LOGGER, Options, attach
from blocklife.errors import MisuseError
from blocklife.watch._metrics import of_process
from blocklife.watch._options import RecordError, WatchMode
from blocklife.watch._said import NOTHING, said_of

MADE = "sglang.srt.managers.scheduler.Scheduler.__init__"
"""The only thing of SGLang's classes that is hooked; all else is heard of the scheduler that was made."""


def install() -> None:
    """Watch every scheduler made from now on, if the environment asks for it.

    One log line says what is watched, as soon as something is. In an unknown release of SGLang nothing is watched, and one log
    line says so; another says why a scheduler has nothing to watch. Raises MisuseError for invalid settings, which SGLang logs.
    """
    options = Options.from_environment()
    if options is None:
        return
    release = getattr(importlib.import_module("sglang"), "__version__", None) or "of an unknown release"
    if not versions.is_watched(release):
        known = f"{versions.OLDEST_WATCHED} to {versions.NEWEST_WATCHED} (install one of these, or a blocklife for yours)"
        LOGGER.warning(NOTHING, f"this is SGLang {release}, and the watch knows SGLang {known}")
        return
    if options.mode is WatchMode.COUNT:
        of_process(versions.ENGINE)  # done here, so that child processes count in the same place
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")

    def made(result: object, scheduler: object, *args: object, **kwargs: object) -> None:
        come(scheduler, options)

    hooks.HookRegistry.register(MADE, made, hooks.HookType.AFTER)


def come(scheduler: object, options: Options) -> None:
    """Watch a scheduler that was made, or say why not. Raises RecordError; no other error reaches SGLang."""
    try:
        watch = attach(scheduler, options)
    except RecordError:
        raise
    except MisuseError as error:
        LOGGER.warning(NOTHING, error)
    except Exception as error:  # its fault must not keep an engine from starting
        LOGGER.error(NOTHING, "of an error of its own", exc_info=error)
    else:
        LOGGER.warning("%s", said_of(watch.of, options, versions.ENGINE))
