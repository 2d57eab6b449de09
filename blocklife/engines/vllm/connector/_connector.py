"""The connector class that vLLM instantiates: its scheduler half in the scheduler process, its worker half in every worker.

It forwards calls and holds no state of its own. Methods that are not overridden keep vLLM's defaults: nothing is saved or
loaded layer by layer, nothing is sent to another engine, and the release of blocks is never delayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from attrs import frozen
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

from blocklife.engines.vllm.connector import _cache as cache
from blocklife.engines.vllm.connector._alike import sharing_of
from blocklife.engines.vllm.connector._config import Caps, ConnectorConfig
from blocklife.engines.vllm.connector._events import described, event_groups, extra_keys, told
from blocklife.engines.vllm.connector._groups import geometry_of, left_out, offered_groups, reports_blocks
from blocklife.engines.vllm.connector._layers import asks_before_layers, check_layers, load_parts
from blocklife.engines.vllm.connector._messages import StepPlan, WorkerReport
from blocklife.engines.vllm.connector._metrics import BlocklifePromMetrics, BlocklifeStats, Meter, Payload
from blocklife.engines.vllm.connector._scheduler import ConnectorScheduler
from blocklife.engines.vllm.connector._worker import ConnectorWorker, MakeCopier, WorkerShape, torch_copier
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    import torch
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.blocklife")  # vLLM shows what is below its own name only


@frozen(eq=False)
class StepMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is not there where this is checked
    """What the scheduler sends to the workers in a step."""

    step: StepPlan


@frozen
class Woken(KVConnectorHandshakeMetadata):  # type: ignore[misc]  # as above
    """What a worker says when the device's memory is back: how often that was so."""

    num_sleeps: int


@frozen(eq=False)
class WorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]  # as above
    """What the workers report after a step."""

    report: WorkerReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMetadata:
        """Merge two reports; vLLM calls this once for each further worker."""
        if not isinstance(other, WorkerMetadata):
            raise MisuseError(f"blocklife connector: {type(other).__name__} is no report of a worker of this connector")
        return WorkerMetadata(self.report + other.report)


def _step_of(metadata: KVConnectorMetadata) -> StepPlan:
    if not isinstance(metadata, StepMetadata):
        raise MisuseError(f"blocklife connector: {type(metadata).__name__} is no plan of this connector")
    return metadata.step


class BlocklifeConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]  # as above
    """blocklife as vLLM's offloading layer. See `ConnectorConfig` for the options."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.config = ConnectorConfig.read(self._kv_transfer_config.kv_connector_extra_config)
        self._scheduler: ConnectorScheduler | None = None
        self._worker: ConnectorWorker | None = None
        self._meter: Meter | None = None
        groups, offered = offered_groups(kv_cache_config)
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = ConnectorScheduler(cache.shape_of(vllm_config, kv_cache_config, self.config), self.config)
            logger.info("blocklife: %s", cache.host_memory_told(vllm_config, offered, self.config))
            if groups.others:
                logger.warning("blocklife: %s", left_out(kv_cache_config))
            if (
                self.config.below is not None
                and not self.config.sleep_keeps_host
                and vllm_config.model_config.enable_sleep_mode
            ):
                logger.warning(
                    "blocklife: behind its first sleep this engine shares nothing with others in the store below any more, for "
                    "it may have other weights then (set sleep_keeps_host if it wakes up with the same)"
                )
            self._meter = Meter(self._scheduler)
            if self._scheduler.shape.self_describing:
                self._scheduler.describe_events(extra_keys)
            self._event_groups = event_groups(kv_cache_config, groups)
        else:
            cache.check_engine(vllm_config, kv_cache_config)
            # the scheduler's half is shown the first layer of a group alone
            geometry_of(kv_cache_config, self.config, vllm_config.parallel_config.decode_context_parallel_size)
            shape = _worker_shape(vllm_config, offered, self.config, reports_blocks=reports_blocks(kv_cache_config))
            self._worker = ConnectorWorker(shape, self.make_copier(), _PinningLog(), _say_damage)

    def make_copier(self) -> MakeCopier:
        """Make the copier of a worker; a subclass may override this."""
        return partial(torch_copier, movers=self.config.movers)

    @property
    def scheduler(self) -> ConnectorScheduler:
        """The scheduler half. Refuses a worker's connector."""
        if self._scheduler is None:
            raise MisuseError("blocklife connector: this is a worker's half, and has no scheduler (ask the other one)")
        return self._scheduler

    @property
    def worker(self) -> ConnectorWorker:
        """The worker half. Refuses the scheduler's connector."""
        if self._worker is None:
            raise MisuseError("blocklife connector: this is the scheduler's half, and has no worker (ask the other one)")
        return self._worker

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a lost store costs a later hit, and nothing else."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: KVTransferConfig) -> bool:
        """True: copies are waited for before the device's memory is given up, and the copier is made anew when it is back."""
        return True

    def shutdown(self) -> None:
        """The process ends: wait for every copy, free the host memory, and close the store below."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()

    # --- the scheduler's side -----------------------------------------------------------------------------------------------

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """Take vLLM's block pool: lazy stores read it, and it forgets what a load within a step has failed to bring."""
        self.scheduler.bind_pool(lambda count: islice(_free_blocks(gpu_block_pool), count), gpu_block_pool.evict_blocks)

    def bind_kv_cache_manager(self, kv_cache_manager: KVCacheManager) -> None:
        """Take vLLM's block tables, which tell whose blocks another connector still uses."""
        super().bind_kv_cache_manager(kv_cache_manager)
        groups, tables_of = self.scheduler.shape.groups, kv_cache_manager.get_block_ids
        self.scheduler.beside.bind(lambda request_id: groups.tables(tables_of(request_id)))

    def on_new_request(self, request: Request) -> None:
        """A new request; it may limit what is stored and loaded for it (``max_offload_tokens``, ``max_load_tokens``)."""
        caps, problems = Caps.read(request.kv_transfer_params)
        for problem in problems:
            logger.warning("blocklife: request %s: %s", request.request_id, problem)
        self.scheduler.add(request, caps)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The number of tokens that a load would bring, and whether it runs between two steps, and not within this one."""
        found = self.scheduler.look_up(request, num_computed_tokens)
        return found, bool(found) and not self.scheduler.loads_within(request)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """vLLM has allocated blocks to a request."""
        self.scheduler.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> dict[CacheHitSource, int]:
        """The tokens of the load that was promised to a request in this step, by the tier that they come from."""
        if not num_external_tokens:
            return {}
        found = self.scheduler.hit_sources(request, num_external_tokens)
        if found is None:
            return release().hit_sources([("host", num_external_tokens)])
        below = self.config.source_below.value
        return release().hit_sources([("host", found.host), (below, found.below), ("external_unspecified", found.unknown)])

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        """The plan of this step."""
        return StepMetadata(self.scheduler.build_step(scheduler_output))

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """The reports of the workers for one step."""
        said, scheduler = connector_output.kv_connector_worker_meta, self.scheduler
        beside = scheduler.beside
        if beside.listens:
            for done in (connector_output.finished_sending, connector_output.finished_recving):
                beside.free(done or ())
            if isinstance(said, WorkerMetadata):
                beside.prove(said.report.number, connector_output.invalid_block_ids)
        if isinstance(said, WorkerMetadata):
            scheduler.settle(said.report)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, None]:
        """A request has finished; its blocks can be freed at once."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Request, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        """A request has finished; its blocks can be freed at once."""
        self.scheduler.finish(request, request.status.name == "FINISHED_ABORTED")
        return False, None

    def has_pending_push_work(self) -> bool:
        """Whether steps are still needed only for copies."""
        return self.scheduler.has_pending_work()

    def reset_cache(self) -> bool:
        """Forget the host tier."""
        self.scheduler.reset()
        return True

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], KVConnectorHandshakeMetadata]) -> None:
        """What the workers say at the start (nothing) and at each wake-up, also where there was no sleep."""
        counts = [said.num_sleeps for said in metadata.values() if isinstance(said, Woken)]
        if counts:
            self.scheduler.wake(min(counts))

    def take_events(self) -> Iterable[KVCacheEvent]:
        """KV cache events of the host tier and of the store below it."""
        events, describer = self.scheduler.take_events(), self.scheduler.known.describer
        if not events:
            return []
        groups = self._event_groups
        return list(told(events, groups) if describer is None else described(describer.describe(events), groups))

    def get_kv_connector_stats(self) -> BlocklifeStats | None:
        """The metrics of this step; all are collected on the scheduler side, which receives the workers' reports."""
        return self._meter.read() if self._meter is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: Payload | None = None) -> BlocklifeStats:
        """Stats from a payload of another process. It is copied, because each of vLLM's loggers adds later payloads to it."""
        return BlocklifeStats(data={name: dict(values) for name, values in (data or {}).items()})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> BlocklifePromMetrics:
        """The Prometheus metrics."""
        return BlocklifePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # --- the worker's side --------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor | Sequence[torch.Tensor]]) -> None:
        """The KV-cache tensors have been allocated."""
        if self.config.sync_load_parts > 1:
            check_layers(kv_caches, self._vllm_config.compilation_config.static_forward_context)
        self.worker.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        """The KV-cache tensors are about to lose their memory."""
        self.worker.sleep()

    def restore_kv_caches(self) -> None:
        """The KV-cache tensors have memory again, at the same addresses, empty."""
        self.worker.wake()

    def get_handshake_metadata(self) -> Woken | None:
        """For the scheduler's half, which vLLM does not tell of a sleep: that there was one.

        Nothing beside others: a MultiConnector hands what one of them says to all, and some fail at what is not theirs.
        """
        if not self.worker.num_sleeps:
            return None
        if has_kv_transfer_group() and get_kv_transfer_group() is not self:
            if self.config.sleep_keeps_host:
                logger.warning("blocklife: sleep_keeps_host has no effect beside other connectors: the host tier is forgotten")
            return None
        return Woken(self.worker.num_sleeps)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Called first in a step, before anything is written."""
        self.worker.begin(_step_of(kv_connector_metadata))

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: object) -> None:
        """Called after the forward pass, or before it in a step with loads that it reads."""
        self.worker.end(_step_of(self._get_connector_metadata()), by_layer=asks_before_layers(forward_context))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Called before a layer's attention reads its blocks (`sync_load_parts`)."""
        self.worker.before_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: object
    ) -> None:
        """Nothing is saved layer by layer."""

    def wait_for_save(self) -> None:
        """This step's stores are launched at the beginning of the next one."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The loads that are over. Stores are reported to the scheduler side by job only."""
        received = self.worker.receive()
        return KVConnectorTransferResults(finished_recving=set(received.requests), failed_recving=set(received.failed))

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that a failed load should have filled; only with a single KV-cache group."""
        return self.worker.bad_blocks()

    def build_connector_worker_meta(self) -> WorkerMetadata:
        """The worker's report of this step to the scheduler side."""
        return WorkerMetadata(self.worker.report())


def _register() -> None:
    """Make the class known by its name, under which vLLM's MultiConnector looks for it to read its metrics."""
    try:
        KVConnectorFactory.get_connector_class_by_name(BlocklifeConnector.__name__)
    except ValueError:
        KVConnectorFactory.register_connector(
            BlocklifeConnector.__name__, "blocklife.engines.vllm", BlocklifeConnector.__name__
        )


_register()


class _PinningLog:
    """Logs the progress of pinning host memory from time to time."""

    def __init__(self) -> None:
        self._next = 0.1

    def __call__(self, done: int, total: int) -> None:
        if total and done / total >= self._next:
            self._next = done / total + 0.1
            logger.info("blocklife: %.1f of %.1f GiB of host memory are ready", done / (1 << 30), total / (1 << 30))


def _say_damage(why: str) -> None:
    logger.error("blocklife: %s", why)


def _free_blocks(pool: BlockPool) -> Iterable[int]:
    """The pool's free blocks in the order in which it hands them out."""
    queue = pool.free_block_queue
    block = queue.fake_free_list_head.next_free_block
    while block is not None and block is not queue.fake_free_list_tail:
        yield block.block_id
        block = block.next_free_block


def _worker_shape(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: ConnectorConfig, *, reports_blocks: bool
) -> WorkerShape:
    groups = []
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        each = spec.kv_cache_specs if isinstance(spec, UniformTypeKVCacheSpecs) else {}
        groups.append({name: int(each.get(name, spec).page_size_bytes) for name in group.layer_names})
    alone = cache.schedules_alone(vllm_config)
    return WorkerShape(
        rank=0 if alone else vllm_config.parallel_config.rank,
        num_blocks=kv_cache_config.num_blocks,
        num_places=cache.num_slots(vllm_config, kv_cache_config, config) * config.blocks_per_chunk,
        groups=tuple(groups),
        reports_blocks=reports_blocks,
        lock_step=alone,
        blocks_per_chunk=config.blocks_per_chunk,
        below=cache.below_of(vllm_config, kv_cache_config, config),
        shared=sharing_of(vllm_config, kv_cache_config, config.blocks_per_chunk),
        host_checksums=cache.checks_host(vllm_config, config),
        load_parts=load_parts(vllm_config, config),
    )
