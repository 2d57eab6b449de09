"""The entry point through which SGLang loads the watch, in each of its processes (``sglang.srt.plugins``)."""

from __future__ import annotations

import importlib

from blocklife.engines.sglang import _versions as versions
from blocklife.engines.sglang.watch import attach
from blocklife.watch import LOGGER, Options, asked_for, beside_engine, said_of

MADE = "sglang.srt.managers.scheduler.Scheduler.__init__"
"""The only thing of SGLang's classes that is hooked; all else is heard of the scheduler that was made."""


def install() -> None:
    """Watch every scheduler made from now on, if the environment asks for it.

    One log line says what is watched, as soon as something is. In an unknown release of SGLang, and with settings that mean
    nothing, nothing is watched, and one log line says so; another says why a scheduler has nothing to watch. No error reaches
    SGLang.
    """
    with beside_engine():
        _install()


def _install() -> None:
    known = f"{versions.OLDEST_WATCHED} to {versions.NEWEST_WATCHED}"
    options = asked_for(versions.ENGINE, "SGLang", versions.is_watched, known)
    if options is None:
        return
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")

    def made(result: object, scheduler: object, *args: object, **kwargs: object) -> None:
        come(scheduler, options)

    hooks.HookRegistry.register(MADE, made, hooks.HookType.AFTER)


def come(scheduler: object, options: Options) -> None:
    """Watch a scheduler that was made, or say why not. No error reaches SGLang."""
    with beside_engine():
        watch = attach(scheduler, options)
        LOGGER.warning("%s", said_of(watch.of, options, versions.ENGINE, watch.left_out))
