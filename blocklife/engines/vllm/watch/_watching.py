"""Makes the watch over one vLLM scheduler: what there is to watch, its mirrors, and the hooks on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from blocklife.engines.vllm._versions import ENGINE
from blocklife.engines.vllm.watch._engine import EngineHooks, TablesHooks
from blocklife.engines.vllm.watch._names import RequestHashes
from blocklife.engines.vllm.watch._offloading import OffloadingHooks, blocks_per_chunk_of
from blocklife.engines.vllm.watch._pool import PoolHooks
from blocklife.engines.vllm.watch._reading import EngineProgress, first_int
from blocklife.engines.vllm.watch._simple import SimpleHooks
from blocklife.engines.vllm.watch._tiering import TieringHooks, is_tiering, primary_of
from blocklife.errors import MisuseError
from blocklife.watch import MirrorSizes, Options, Watch


def watch_scheduler(scheduler: object, options: Options) -> Watch:
    """Watch a scheduler, with a mirror for each of its connectors, since each has slots and jobs of its own.

    Raises MisuseError if there is nothing to watch, or if the recording cannot be written.
    """
    parts = Parts.of(scheduler)
    watch = Watch(ENGINE, f"the scheduler's side of {_names_of(parts.connectors)}", options)
    try:
        _follow(watch, scheduler, parts)
    except BaseException:
        watch.close()
        raise
    return watch


def _follow(watch: Watch, scheduler: object, parts: Parts) -> None:
    for connector in parts.connectors:
        groups, workers = max(1, len(parts.managers)), _num_workers(scheduler, connector)
        sizes = MirrorSizes(parts.num_blocks, groups, workers, _num_slots(connector), blocks_per_chunk_of(connector))
        watch.add_mirror(sizes, computes=parts.engine is not None)
    progress = EngineProgress()
    if parts.pool is not None:
        hashes = RequestHashes(watch, parts.pool, parts.engine)
        pool_hooks = PoolHooks(watch, parts.pool, parts.cache_manager, parts.managers, hashes)
        if parts.engine is not None:
            pool_hooks.adopt()
            TablesHooks(watch, parts.engine, pool_hooks, parts.managers, progress)
    for mirror, each in zip(watch.mirrors, parts.connectors, strict=True):
        if is_tiering(each):
            TieringHooks(watch, mirror, each, alone=True)
        elif _is_simple(each):
            SimpleHooks(watch, mirror, each)
        else:
            OffloadingHooks(watch, mirror, each, progress)
    if parts.engine is not None:
        EngineHooks(watch, parts.engine)


@frozen(eq=False)
class Parts:
    """What can be watched of vLLM's scheduler, or of a connector's scheduler side or a manager of tiers driven alone."""

    engine: object | None
    pool: object | None
    managers: list[object]
    cache_manager: object | None
    connectors: list[object]

    @classmethod
    def of(cls, scheduler: object) -> Parts:
        """The parts of a scheduler. Raises MisuseError if there is nothing to watch."""
        cache_manager = getattr(scheduler, "kv_cache_manager", None)
        pool = getattr(cache_manager, "block_pool", None)
        managers = getattr(getattr(cache_manager, "coordinator", None), "single_type_managers", None)
        if pool is not None and managers is not None:
            connectors = list(_connectors_of(getattr(scheduler, "connector", None)))
            if not connectors:
                raise MisuseError(_why_none(getattr(scheduler, "connector", None)))
            return cls(scheduler, pool, list(managers), cache_manager, connectors)
        if _is_simple(scheduler) or _is_offloading(scheduler):
            return cls(None, getattr(scheduler, "_gpu_block_pool", None), [], None, [scheduler])
        if is_tiering(scheduler):
            return cls(None, None, [], None, [scheduler])
        raise MisuseError(f"a {type(scheduler).__name__} has nothing to watch (attach to vLLM's Scheduler)")

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, including the null block; 1 if no pool is known."""
        blocks = getattr(self.pool, "blocks", None)
        return len(blocks) if isinstance(blocks, list) else 1


def _is_offloading(scheduler: object) -> bool:
    return hasattr(scheduler, "_jobs") and hasattr(scheduler, "build_connector_meta")


def _is_simple(scheduler: object) -> bool:
    return hasattr(scheduler, "_reqs_to_load") and hasattr(scheduler, "build_connector_meta")


def _connectors_of(connector: object) -> Iterator[object]:
    """The scheduler sides that can be watched: of a connector, or of each connector that it combines."""
    for name in ("connector_scheduler", "scheduler_manager"):
        found = getattr(connector, name, None)
        if _is_offloading(found) or _is_simple(found):
            yield found
    for child in getattr(connector, "_connectors", None) or ():
        yield from _connectors_of(child)


def _names_of(connectors: Sequence[object]) -> str:
    """vLLM's names of these connectors."""
    return " and ".join(map(_name_of, connectors))


def _name_of(connector: object) -> str:
    if is_tiering(connector):
        return type(connector).__name__
    return "SimpleCPUOffloadConnector" if _is_simple(connector) else "OffloadingConnector"


def _why_none(connector: object) -> str:
    """Why there is nothing to watch in a scheduler with this connector."""
    if connector is None:
        return "a scheduler without a connector has nothing to watch (it offloads nothing)"
    told = f"a scheduler with {type(connector).__name__} has nothing to watch"
    # By name, since the class itself can be imported only where vLLM is installed.
    if any(each.__name__ == "BlocklifeConnector" for each in type(connector).__mro__):
        return f"{told} (this connector keeps a ledger of its own, and is not watched)"
    return f"{told} (only OffloadingConnector and SimpleCPUOffloadConnector can be watched, alone or in a MultiConnector)"


def _num_workers(scheduler: object, connector: object) -> int:
    parallel = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
    own = first_int(getattr(connector, "config", None), "num_workers") or first_int(connector, "_expected_worker_count")
    return first_int(parallel, "world_size") or own or 1


def _num_slots(connector: object) -> int:
    """Slots of the host tier if the connector knows their number, otherwise 0."""
    manager = primary_of(connector if is_tiering(connector) else getattr(connector, "manager", None))
    return first_int(connector, "num_cpu_blocks") or first_int(manager, "_num_chunks", "_num_blocks")
