"""blocklife's connector as vLLM's tests of its own connector meet it: their mock of a worker, their mock of a manager.

Rules of this file:

* The connector is the real one on both sides. What is added looks at what it does, and translates; it decides nothing.
* Their worker takes the place of the copier: it is given jobs, says which have landed, and is waited for.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from attrs import define
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.core.sched.output import SchedulerOutput

from blocklife.copiers._protocol import EngineCopier
from blocklife.copiers.torch import HostMemory, KvCache
from blocklife.engines.vllm.connector import _scheduler as scheduler_module
from blocklife.engines.vllm.connector._connector import BlocklifeConnector, WorkerMetadata
from blocklife.engines.vllm.connector._messages import WorkerReport
from blocklife.engines.vllm.connector._worker import MakeCopier
from blocklife.ledger import Completion, Direction, JobId, Launched, Result, Transfer, Worker
from blocklife.offload._search import HostAnswers
from blocklife.states import Job as JobState

from .tier import MockedTier, Oracle
from .transfers import THEIRS, Job, PlanMetadata, Specs, jobs_of
from .views import SchedulerView

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


@define(eq=False)
class HeldCopier:
    """A copier that moves nothing: their mock of a worker says when a copy has landed."""

    worker: Worker
    handler: Any
    jobs: Mapping[int, Job]
    _ids: dict[int, JobId]

    def computed(self, engine: object = None) -> None:
        """There is no device."""

    def before_forward(self, engine: object = None, blocks: Sequence[int] | None = None) -> None:
        """There is no device."""

    def behind_forward(self) -> AbstractContextManager[None]:
        """There is no device."""
        return nullcontext()

    def launch(self, transfer: Transfer) -> None:
        """Hand a job to their worker."""
        number = transfer.job.number
        job = self.jobs[number]
        self._ids[number] = transfer.job
        submit = self.handler.submit_store if job.is_store else self.handler.submit_load
        submit(number, job.src_spec, job.dst_spec)

    def poll(self) -> list[Completion]:
        """What their worker has ended."""
        return [Completion(self._ids[each.job_id], self.worker, Result.OK) for each in self.handler.get_finished()]

    def wait(self, jobs: Collection[JobId]) -> None:
        """Their worker notes whom it was waited for."""
        wanted = {job.number for job in jobs if job.number in self.handler.waiting_jobs}
        if wanted:
            self.handler.wait(wanted)

    def durations(self) -> dict[JobId, float]:
        """None: no bytes move."""
        return {}

    def busy(self) -> bool:
        """Whether something is out."""
        return bool(self.handler.waiting_jobs)

    def close(self) -> None:
        """Nothing is held."""


def _spec(jobs: Mapping[int, Job]) -> Any:
    """Their mock of everything below the connector, with the parts of our jobs where it tells what was copied."""
    cache = SimpleNamespace(tokens_per_hash=1, blocks_per_chunk=1)
    nothing = SimpleNamespace(cache=cache, extra_config={}, enable_kv_cache_events=False, groups=())
    spec = importlib.import_module(THEIRS).MockOffloadingSpec(nothing)

    def told(numbers: Collection[int]) -> list[Specs]:
        found = [part for number in numbers for part in jobs[number].parts]
        numbers.clear()  # type: ignore[attr-defined]  # a list or a set of theirs
        return found

    spec.get_completed_transfers = lambda: told(spec.handler.completed_jobs)
    spec.get_flushed_transfers = lambda: told(spec.handler.flushed_jobs)
    return spec


class AdaptedConnector(BlocklifeConnector):
    """The connector, with what their runner and their tests look at besides."""

    steps = 0
    """Steps that were planned, by all of them."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        self._jobs: dict[int, Job] = {}
        """Every job that was ever planned, or that this worker was given."""
        self.spec = _spec(self._jobs)
        self._settled = 0
        self._out: dict[int, tuple[bool, str]] = {}
        self._over: list[str] = []
        with mock.patch.object(scheduler_module, "HostTier", MockedTier):
            super().__init__(vllm_config, role, kv_cache_config)
        self.connector_worker = SimpleNamespace(spec=self.spec)
        self.connector_scheduler: SchedulerView | None = None
        if role is KVConnectorRole.SCHEDULER:
            shape = self.scheduler.shape
            self.oracle = Oracle(self.spec.manager, shape.geometry, shape.hashes_per_block)
            self.tier.oracle = self.oracle
            self.connector_scheduler = SchedulerView(self, self.oracle, self._jobs)

    @property
    def tier(self) -> MockedTier:
        """The host tier."""
        tier = self.scheduler.tier
        if not isinstance(tier, MockedTier):
            raise TypeError(tier)
        return tier

    # --- the scheduler's side -----------------------------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        self.oracle.know(request)
        super().on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        self.oracle.look_up(request, num_computed_tokens)
        self.tier.agree(request)
        tier = self.tier
        with mock.patch.object(HostAnswers, "held", lambda *asked: tier.held(*asked)):
            found = super().get_num_new_matched_tokens(request, num_computed_tokens)
        self._tell()
        return found

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> PlanMetadata:
        AdaptedConnector.steps += 1
        self.oracle.begin_step()
        step = super().build_connector_meta(scheduler_output).step
        self._settled = step.number
        jobs = jobs_of(step, self.scheduler.ledger, self.config.blocks_per_chunk)
        self._jobs.update(jobs)
        self._tell()
        return PlanMetadata(step, jobs)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        said = connector_output.kv_connector_worker_meta
        if isinstance(said, OffloadingWorkerMetadata):
            if not self.scheduler.offload.plans_out:  # a report belongs to a step: to one in which nothing is scheduled
                self.build_connector_meta(SchedulerOutput.make_empty())
            self.scheduler.settle(self._translated(said.completed_jobs))
        else:
            super().update_connector_output(connector_output)
        self._tell()

    def request_finished_all_groups(self, request: Request, block_ids: tuple[list[int], ...]) -> tuple[bool, None]:
        self.oracle.begin_step()
        found = super().request_finished_all_groups(request, block_ids)
        self._over.append(request.request_id)
        self._tell()
        return found

    def reset_cache(self) -> bool:
        self.spec.manager.reset_cache()
        found = super().reset_cache()
        self._tell()
        return found

    def _translated(self, completed: Mapping[int, int]) -> WorkerReport:
        """So many more workers have ended these jobs, all of the steps until now included: those that had not."""
        launched, completions = [], []
        ledger = self.scheduler.ledger
        for number, count in completed.items():
            job = ledger.jobs.get(number)
            done = 0 if job is None else job.reported
            free = [Worker(rank) for rank in range(ledger.limits.num_workers) if not done >> rank & 1]
            name = JobId(ledger.incarnation, number)
            launched += [Launched(name, rank) for rank in free[:count]]
            completions += [Completion(name, rank, Result.OK) for rank in free[:count]]
        return WorkerReport(self._settled, tuple(launched), tuple(completions))

    def _tell(self) -> None:
        """Let the mock of the manager hear which jobs and requests are over."""
        manager, jobs = self.spec.manager, self.scheduler.ledger.jobs
        for job in jobs.alive():
            self._out.setdefault(job.number, (job.direction is Direction.STORE, job.owner or ""))
        for number in [each for each in self._out if not jobs.is_out(each)]:
            is_store, owner = self._out.pop(number)
            if number in self._jobs and (over := jobs.get(number)) is not None and over.state is JobState.DONE:
                complete = manager.complete_store if is_store else manager.complete_load
                complete(list(self._jobs[number].keys), self.oracle.contexts[owner.partition("#")[0]])
        for name in [each for each in self._over if each not in self.scheduler.ledger.requests]:
            self._over.remove(name)
            manager.on_request_finished(self.oracle.contexts[name])

    # --- the worker's side --------------------------------------------------------------------------------------------------

    def make_copier(self) -> MakeCopier:
        def make(cache: KvCache, host: HostMemory, worker: Worker) -> EngineCopier:
            return HeldCopier(worker, self.spec.handler, self._jobs, {})

        return make

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if not isinstance(kv_connector_metadata, PlanMetadata):
            raise TypeError(kv_connector_metadata)
        self._jobs.update(kv_connector_metadata.jobs)
        super().handle_preemptions(kv_connector_metadata)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """The older name of `get_transfer_results`."""
        found = self.get_transfer_results(finished_req_ids)
        return found.finished_sending, found.finished_recving

    def build_connector_worker_meta(self) -> WorkerMetadata:
        return super().build_connector_worker_meta()
