"""The entry point through which vLLM loads the watch, in each of its processes (``vllm.general_plugins``)."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

from blocklife.engines.vllm.watch import LOGGER, Options, attach, attach_worker
from blocklife.errors import MisuseError

_SCHEDULER = ("vllm.v1.core.sched.scheduler", "Scheduler", "__init__")
_WORKERS = (
    ("vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker", "OffloadingConnectorWorker", "__init__"),
    ("vllm.v1.simple_kv_offload.worker", "SimpleCPUOffloadWorker", "__init__"),
)
_PARTS = (
    ("vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler", "OffloadingConnectorScheduler", "__init__"),
    ("vllm.v1.simple_kv_offload.manager", "SimpleCPUOffloadScheduler", "bind_gpu_block_pool"),
)
_MARK = "_blocklife_watches"


def install() -> None:
    """Watch every scheduler and worker that is made from now on, if the environment asks for it. A second call does nothing.

    Refuses, with MisuseError, settings that mean nothing.
    """
    options = Options.from_environment()
    if options is not None and watch_all(options):
        LOGGER.info("blocklife watches this vLLM (%s)", options.mode.name.lower())


def watch_all(options: Options, *, parts: bool = False) -> bool:
    """Watch every scheduler and worker that is made from now on; with *parts* also connectors' that are made alone.

    Whether this call has made it so: False if it was so already.
    """
    made = [_wrap(*_SCHEDULER, attach, options)]
    made += [_wrap(*each, attach_worker, options) for each in _WORKERS]
    if parts:
        made += [_wrap(*each, attach, options) for each in _PARTS]
    return any(made)


def _wrap(module: str, name: str, method: str, watch: Callable[[object, Options], object], options: Options) -> bool:
    """Let *watch* come whenever that method of that class has run. False where it comes already."""
    owner = vars(importlib.import_module(module))[name]
    original = getattr(owner, method)
    if hasattr(original, _MARK):
        return False
    setattr(owner, method, _watching(original, watch, options))
    return True


def _watching(
    original: Callable[..., None], watch: Callable[[object, Options], object], options: Options
) -> Callable[..., None]:
    @functools.wraps(original)
    def made(thing: object, *args: object, **kwargs: object) -> None:
        original(thing, *args, **kwargs)
        try:
            watch(thing, options)
        except MisuseError as error:
            LOGGER.info("%s", error)

    vars(made)[_MARK] = options
    return made
