"""Bugs on the workers' side of both connectors, and where the reports of several workers become one."""

from __future__ import annotations

from typing import Any
from unittest import mock

from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata, OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata
from vllm.v1.simple_kv_offload.worker import SimpleCPUOffloadWorker

from tests.behind.planted import Bed, Original, planted, planted_at

# --- reports --------------------------------------------------------------------------------------------------------------


@planted_at(OffloadingConnectorWorker, "handle_preemptions", "full", "window", "full-async")
def store_dropped_and_reported(bed: Bed, original: Original, self: Any, meta: OffloadingConnectorMetadata) -> None:
    """Now and then a worker drops a store, and reports it as done."""
    for held in [held for held in self._unsubmitted_store_jobs if bed.strikes(0.1)]:
        self._unsubmitted_store_jobs.remove(held)
        self._connector_worker_meta.mark_completed(held[0])
    original(self, meta)


@planted("full", "window", "full-async")
def store_reported_before_it_lands(bed: Bed) -> None:
    """A worker reports a store when it launches it."""
    told = set[tuple[OffloadingConnectorWorker, int]]()

    @bed.around(OffloadingConnectorWorker, "handle_preemptions")
    def handles(original: Original, self: OffloadingConnectorWorker, meta: OffloadingConnectorMetadata) -> None:
        for number, *_ in self._unsubmitted_store_jobs:
            bed.strikes()
            told.add((self, number))
            self._connector_worker_meta.mark_completed(number)
        original(self, meta)

    @bed.around(OffloadingConnectorWorker, "get_finished")
    def gets(original: Original, self: OffloadingConnectorWorker, names: set[str]) -> object:
        early = set(self._connector_worker_meta.completed_jobs)
        got = original(self, names)
        for number in [each for each in self._connector_worker_meta.completed_jobs if each not in early]:
            if (self, number) in told:
                del self._connector_worker_meta.completed_jobs[number]
        return got


@planted_at(OffloadingConnectorWorker, "get_finished", "full", "full-async", "hybrid")
def load_reported_before_it_lands(bed: Bed, original: Original, self: Any, names: set[str]) -> tuple[set[str], set[str]]:
    """A worker says that a request has its load when the load is launched."""
    sent, received = original(self, names)
    for number, request in list(self._load_jobs.items()):
        if request is not None and bed.strikes():
            self._load_jobs[number] = None
            received.add(request)
    return sent, received


@planted("full-async", "sync-loads-of-two")
def first_worker_ends_a_load(bed: Bed) -> None:
    """A request goes on when its load has landed on one worker."""
    told = set[str]()

    @bed.around(KVOutputAggregator, "aggregate")
    def aggregates(original: Original, self: KVOutputAggregator, outputs: list[ModelRunnerOutput]) -> ModelRunnerOutput:
        heard = {name for each in outputs for name in each.kv_connector_output.finished_recving or ()}
        result = original(self, outputs)
        done = set(result.kv_connector_output.finished_recving or ())
        early = {name for name in heard - done - told if bed.strikes()}
        result.kv_connector_output.finished_recving = (done - told) | early
        told.difference_update(done)
        told.update(early)
        return result


@planted("full", "window", "full-async")
def store_reported_twice(bed: Bed) -> None:
    """Now and then a worker reports a job in two steps."""
    again = dict[OffloadingConnectorWorker, int]()

    @bed.around(OffloadingConnectorWorker, "build_connector_worker_meta")
    def builds(original: Original, self: OffloadingConnectorWorker) -> OffloadingWorkerMetadata | None:
        number = again.pop(self, None)
        if number is not None:
            bed.strikes()
            self._connector_worker_meta.mark_completed(number)
        meta = original(self)
        if number is None and meta is not None and bed.rng.random() < 0.05:
            again[self] = min(meta.completed_jobs)
        return meta


@planted_at(OffloadingConnectorWorker, "build_connector_worker_meta", "full", "window", "full-async")
def report_is_lost(bed: Bed, original: Original, self: Any) -> OffloadingWorkerMetadata | None:
    """Now and then a worker forgets to report a job."""
    meta = original(self)
    for number in [number for number in ([] if meta is None else meta.completed_jobs) if bed.strikes(0.01)]:
        del meta.completed_jobs[number]
    return meta


@planted_at(SimpleCPUOffloadWorker, "get_finished", "simple", "simple-hybrid", "lazy")
def simple_load_reported_before_it_lands(
    bed: Bed, original: Original, self: Any, names: set[str]
) -> tuple[set[str] | None, set[str] | None]:
    """A worker says that a request has its load when the load is launched."""
    sent, received = original(self, names)
    requests = self._connector_metadata.load_event_to_reqs
    early = {name for event in self._pending_load_event_indices for name in requests.get(event, ()) if bed.strikes()}
    self._pending_load_event_indices.clear()
    return sent, early | (received or set()) or None


@planted_at(SimpleCPUOffloadWorker, "get_finished", "simple", "simple-hybrid", "lazy")
def simple_store_reported_before_it_lands(bed: Bed, original: Original, self: Any, names: set[str]) -> object:
    """A worker reports a store when it launches it."""
    for event in self._pending_store_event_indices:
        bed.strikes()
        self._completed_store_events[event] = 1
    self._pending_store_event_indices.clear()
    return original(self, names)


@planted_at(SimpleCPUOffloadWorker, "build_connector_worker_meta", "simple", "simple-hybrid")
def simple_report_is_lost(bed: Bed, original: Original, self: Any) -> SimpleCPUOffloadWorkerMetadata | None:
    """Now and then a worker forgets to report a store."""
    for event in [event for event in self._completed_store_events if bed.strikes(0.02)]:
        del self._completed_store_events[event]
    return original(self)


# --- launches -------------------------------------------------------------------------------------------------------------


@planted_at(OffloadingConnectorWorker, "handle_preemptions", "full", "window", "full-async")
def store_lost_by_a_worker(bed: Bed, original: Original, self: Any, meta: OffloadingConnectorMetadata) -> None:
    """Now and then a worker loses a store that it holds back."""
    for held in [held for held in self._unsubmitted_store_jobs if bed.strikes(0.02)]:
        self._unsubmitted_store_jobs.remove(held)
    original(self, meta)


@planted_at(OffloadingConnectorWorker, "start_kv_transfers", "full", "window", "full-async")
def load_lost_by_a_worker(bed: Bed, original: Original, self: Any, meta: OffloadingConnectorMetadata) -> None:
    """Now and then a worker does not launch a load."""
    for number in [number for number in meta.load_jobs if bed.strikes(0.05)]:
        del meta.load_jobs[number]
    original(self, meta)


@planted_at(OffloadingConnectorWorker, "handle_preemptions", "full", "window", "full-async")
def store_launched_twice(bed: Bed, original: Original, self: Any, meta: OffloadingConnectorMetadata) -> None:
    """Now and then a worker launches a store twice."""
    if self._unsubmitted_store_jobs and bed.strikes(0.1):
        self._unsubmitted_store_jobs.append(self._unsubmitted_store_jobs[0])
    original(self, meta)


@planted_at(OffloadingConnectorWorker, "handle_preemptions", "full", "window", "full-async")
def store_launched_to_neighbours(bed: Bed, original: Original, self: Any, meta: OffloadingConnectorMetadata) -> None:
    """A worker mixes up the slots of a store that it holds back."""
    for _, _, host in self._unsubmitted_store_jobs:
        if len(host.block_ids) > 1 and bed.strikes(0.2):
            host.block_ids[:] = [*host.block_ids[1:], *host.block_ids[:1]]
    original(self, meta)


# --- order ----------------------------------------------------------------------------------------------------------------


@planted_at(OffloadingConnectorWorker, "handle_preemptions", "full", "window", "full-async")
def worker_does_not_wait(bed: Bed, original: Original, self: Any, meta: OffloadingConnectorMetadata) -> None:
    """A worker does not wait for the stores that the step has to wait for."""
    if meta.jobs_to_flush:
        bed.strikes()
    with mock.patch.object(self.worker, "wait"):
        original(self, meta)


@planted_at(OffloadingConnectorWorker, "start_kv_transfers", "sync-loads")
def worker_does_not_wait_for_loads(bed: Bed, original: Original, self: Any, meta: OffloadingConnectorMetadata) -> None:
    """A worker does not wait for the loads that the step needs."""
    if any(job.sync for job in meta.load_jobs.values()):
        bed.strikes()
    with mock.patch.object(self.worker, "wait"):
        original(self, meta)


@planted_at(OffloadingConnectorWorker, "handle_preemptions", "full", "window", "full-async")
def store_launched_before_it_is_computed(bed: Bed, original: Original, self: Any, meta: OffloadingConnectorMetadata) -> None:
    """A worker launches a store in the step that computes it, ahead of the forward pass."""
    for number, job in meta.store_jobs.items():
        bed.strikes()
        self._unsubmitted_store_jobs.append((number, job.src_spec, job.dst_spec))
    meta.store_jobs.clear()
    original(self, meta)


@planted("full", "window", "full-async")
def loads_launched_before_waits(bed: Bed) -> None:
    """A worker launches the loads of a step ahead of its waits."""
    start = OffloadingConnectorWorker.start_kv_transfers

    @bed.around(OffloadingConnectorWorker, "handle_preemptions")
    def handles(original: Original, self: OffloadingConnectorWorker, meta: OffloadingConnectorMetadata) -> None:
        if meta.load_jobs and meta.jobs_to_flush:
            bed.strikes()
        start(self, meta)
        meta.load_jobs.clear()
        original(self, meta)
