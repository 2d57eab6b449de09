"""The entry point through which vLLM loads the watch, in each of its processes (``vllm.general_plugins``)."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

from blocklife.engines.vllm.watch import LOGGER, Options, Watch, WorkerWatch, attach, attach_worker
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


def watch_all(
    options: Options, *, parts: bool = False, tell: Callable[[Watch | WorkerWatch], None] = lambda watch: None
) -> bool:
    """Watch every scheduler and worker that is made from now on; with *parts* also connectors' that are made alone.

    *tell* hears of each watch. Whether this call has made it so: False if it was so already.
    """
    schedulers, workers = _watching(attach, options, tell), _watching(attach_worker, options, tell)
    made = [_wrap(*each, schedulers) for each in ([_SCHEDULER, *_PARTS] if parts else [_SCHEDULER])]
    made += [_wrap(*each, workers) for each in _WORKERS]
    return any(made)


def _watching(
    watch: Callable[[object, Options], Watch | WorkerWatch], options: Options, tell: Callable[[Watch | WorkerWatch], None]
) -> Callable[[object], None]:
    def come(thing: object) -> None:
        try:
            tell(watch(thing, options))
        except MisuseError as error:
            LOGGER.info("%s", error)

    return come


def _wrap(module: str, name: str, method: str, come: Callable[[object], None]) -> bool:
    """Let *come* be called whenever that method of that class has run. False where that is so already."""
    owner = vars(importlib.import_module(module))[name]
    original: Callable[..., None] = getattr(owner, method)
    if hasattr(original, _MARK):
        return False

    @functools.wraps(original)
    def made(thing: object, *args: object, **kwargs: object) -> None:
        original(thing, *args, **kwargs)
        come(thing)

    vars(made)[_MARK] = True
    setattr(owner, method, made)
    return True
