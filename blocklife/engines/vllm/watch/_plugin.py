"""The entry point through which vLLM loads the watch, in each of its processes (``vllm.general_plugins``)."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

from blocklife.engines.vllm import _versions as versions
from blocklife.engines.vllm.watch import WorkerWatch, attach, attach_worker
from blocklife.watch import LOGGER, Options, Watch, asked_for, beside_engine, said_of

_SCHEDULER = ("vllm.v1.core.sched.scheduler", "Scheduler", "__init__")
_WORKERS = (
    ("vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker", "OffloadingConnectorWorker", "__init__"),
    ("vllm.v1.simple_kv_offload.worker", "SimpleCPUOffloadWorker", "__init__"),
)
_PARTS = (
    ("vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler", "OffloadingConnectorScheduler", "__init__"),
    ("vllm.v1.simple_kv_offload.manager", "SimpleCPUOffloadScheduler", "bind_gpu_block_pool"),
    ("vllm.v1.kv_offload.tiering.manager", "TieringOffloadingManager", "__init__"),
)
_NEWER = {"vllm.v1.kv_offload.tiering.manager"}
"""Modules that older releases do not have."""
_MARK = "_blocklife_watches"


def install() -> None:
    """Watch every scheduler and worker made from now on, if the environment asks for it. A second call does nothing.

    One log line says what is watched, as soon as something is. In an unknown release of vLLM, and with settings that mean
    nothing, nothing is watched, and one log line says so. No error reaches vLLM.
    """
    with beside_engine():
        _install()


def _install() -> None:
    known = f"{versions.OLDEST_WATCHED} to {versions.SUPPORTED[-1]}"
    options = asked_for(versions.ENGINE, "vLLM", versions.is_watched, known)
    if options is not None:
        watch_all(options, tell=lambda watch: LOGGER.warning("%s", said_of(watch.of, watch.options, versions.ENGINE)))


def watch_all(
    options: Options, *, parts: bool = False, tell: Callable[[Watch | WorkerWatch], None] = lambda watch: None
) -> bool:
    """Watch every scheduler and worker made from now on; with *parts*, also sides of connectors made on their own.

    *tell* is called with each watch. Returns False if this was done already.
    """

    def scheduler(made: object) -> None:
        with beside_engine():
            tell(attach(made, options))

    def worker(made: object) -> None:
        with beside_engine():
            tell(attach_worker(made, options))

    wanted = [(each, scheduler) for each in ([_SCHEDULER, *_PARTS] if parts else [_SCHEDULER])]
    wanted += [(each, worker) for each in _WORKERS]
    found = [(_find(*each), each[2], come) for each, come in wanted]  # all before the first is wrapped
    wrapped = [_wrap(owner, method, come) for owner, method, come in found if owner is not None]
    return any(wrapped)


def _find(module: str, name: str, method: str) -> object | None:
    """The class; None in an older release, which does not have it."""
    try:
        owner: object = vars(importlib.import_module(module))[name]
    except ModuleNotFoundError:
        if module in _NEWER:
            return None
        raise
    getattr(owner, method)
    return owner


def _wrap(owner: object, method: str, come: Callable[[object], None]) -> bool:
    """Call *come* whenever that method of a class has run. Returns False if this was done already."""
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
