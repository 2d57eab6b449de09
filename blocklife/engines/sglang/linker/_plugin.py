"""The entry point by which SGLang asks, before it loads the weights, whether the linker will start (``sglang.srt.plugins``)."""

from __future__ import annotations

import importlib

MADE = "sglang.srt.managers.scheduler.Scheduler.__init__"


def install() -> None:
    """Refuse what cannot work as soon as a scheduler is made. It does nothing without a linker of ours."""
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    hooks.HookRegistry.register(MADE, before_weights, hooks.HookType.BEFORE)


def before_weights(scheduler: object, server_args: object, *_args: object, **_kwargs: object) -> None:
    """A scheduler is being made with these arguments. Refuses as `_starting.check`."""
    starting = importlib.import_module("blocklife.engines.sglang.linker._starting")
    options = starting.options_of(server_args)
    if options is not None:
        starting.check(server_args, options)
