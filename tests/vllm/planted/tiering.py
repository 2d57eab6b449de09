"""Bugs in the tiers below the host: the manager of the tiers, the primary tier, and the tier of files."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from unittest import mock

import numpy as np
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, JobMetadata, TieringOffloadingManager

from tests.behind.planted import Bed, Original, planted, planted_at


def _keep_counts_above_zero(bed: Bed) -> None:
    """The primary tier does not fall over a hold that is given up once too often."""

    @bed.around(CPUOffloadingManager, "complete_load")
    def completes(original: Original, self: CPUOffloadingManager, keys: Collection[OffloadKey], of: ReqContext) -> None:
        held = [key for key in keys if (chunk := self._policy.get(key)) is not None and chunk.ref_cnt > 0]
        original(self, held, of)


# --- promotions: from a tier below into a slot ------------------------------------------------------------------------------


@planted_at(TieringOffloadingManager, "_initiate_promotion", "below", "below-hybrid")
def promotion_published_at_once(bed: Bed, original: Original, self: Any, tier: int, key: OffloadKey, of: ReqContext) -> bool:
    """A slot that is reserved for a promotion counts as filled."""
    began = bool(original(self, tier, key, of))
    if began and bed.strikes(0.3):
        self.primary_tier.complete_write([key], of)
    return began


@planted_at(TieringOffloadingManager, "_flush_pending_promotions", "below", "below-hybrid")
def promotion_published_when_submitted(bed: Bed, original: Original, self: Any) -> None:
    """A promotion counts as over as soon as its tier has it."""
    before = set(self._jobs)
    original(self)
    for number in self._jobs.keys() - before:
        job = self._jobs[number].transfer_job
        if bed.strikes(0.3):
            self.primary_tier.complete_write(job.keys, job.req_context)


@planted_at(TieringOffloadingManager, "_complete_promotion", "below-faults", "below-hybrid")
def failed_promotion_published(bed: Bed, original: Original, self: Any, job: JobMetadata, result: JobResult) -> None:
    """Nobody looks whether a promotion has failed."""
    if not result.success and bed.strikes():
        result = JobResult(result.job_id, success=True)
    original(self, job, result)


@planted_at(TieringOffloadingManager, "_complete_promotion", "below-faults", "below-hybrid")
def part_of_a_promotion_is_all(bed: Bed, original: Original, self: Any, job: JobMetadata, result: JobResult) -> None:
    """A promotion that has brought a part counts as whole."""
    if not result.success and result.successful_keys and bed.strikes():
        result = JobResult(result.job_id, success=True)
    original(self, job, result)


@planted_at(TieringOffloadingManager, "_flush_pending_promotions", "below", "below-hybrid")
def promotions_submitted_again(bed: Bed, original: Original, self: Any) -> None:
    """What was submitted in a step is not forgotten, and is submitted in the next one, too."""
    pending = dict(self._pending_load_submissions)
    again = getattr(self, "_again", {})
    original(self)
    self._again = pending if not again else {}
    if again and bed.strikes(0.3):
        self._pending_load_submissions.update(again)


@planted_at(TieringOffloadingManager, "_flush_pending_promotions", "below", "below-hybrid")
def promotions_forgotten(bed: Bed, original: Original, self: Any) -> None:
    """The promotions of a step are never submitted."""
    if self._pending_load_submissions and bed.strikes(0.2):
        self._pending_load_submissions.clear()
    original(self)


@planted_at(TieringOffloadingManager, "_flush_pending_promotions", "below", "below-hybrid")
def promotion_into_its_neighbours(bed: Bed, original: Original, self: Any) -> None:
    """The slots of a promotion are paired off by one."""
    for pending in self._pending_load_submissions.values():
        for entry in pending.values():
            if len(entry.chunk_ids) > 1 and bed.strikes():
                entry.chunk_ids = [*entry.chunk_ids[1:], entry.chunk_ids[0]]
    original(self)


@planted_at(TieringOffloadingManager, "_flush_pending_promotions", "below", "below-hybrid")
def promotion_of_another_key(bed: Bed, original: Original, self: Any) -> None:
    """The keys of a promotion are paired off by one."""
    for pending in self._pending_load_submissions.values():
        for entry in pending.values():
            if len(entry.keys) > 1 and bed.strikes():
                entry.keys = [*entry.keys[1:], entry.keys[0]]
    original(self)


@planted_at(CPUOffloadingManager, "_allocate_chunks", "below", "below-hybrid")
def slot_of_a_promotion_handed_out(bed: Bed, original: Original, self: Any, keys: list[OffloadKey]) -> list[ChunkStatus]:
    """A slot that a promotion fills is handed out again."""
    chunks: list[ChunkStatus] = original(self, keys)
    written = [each.chunk_id for each in self._policy.chunks.values() if not each.is_ready]
    if written and bed.strikes(0.1):
        chunks[0].chunk_id = bed.rng.choice(written)
    return chunks


@planted_at(TieringOffloadingManager, "on_request_finished", "below", "below-faults")
def promotion_given_up_with_its_request(bed: Bed, original: Original, self: Any, of: ReqContext, **more: Any) -> None:
    """When a request ends, the slots of its promotions are given back, although its tier still fills them."""
    for job, _ in list(self._jobs.values()):
        if job.is_promotion and bed.strikes(0.3):
            self.primary_tier.complete_write(job.keys, job.req_context, False)
    original(self, of, **more)


@planted_at(TieringOffloadingManager, "reset_cache", "below")
def promotion_behind_a_reset(bed: Bed, original: Original, self: Any) -> None:
    """After a reset, promotions are not held until the workers have finished what was flushed."""
    original(self)
    self._promotions_held = False
    bed.strikes()


# --- cascades: from a slot into a tier below --------------------------------------------------------------------------------


@planted_at(TieringOffloadingManager, "create_store_job", "below", "below-hybrid", first=_keep_counts_above_zero)
def cascade_without_a_hold(bed: Bed, original: Original, self: Any, keys: Collection[OffloadKey], *more: Any) -> TransferJob:
    """A slot is let go of as soon as its cascade is made."""
    job: TransferJob = original(self, keys, *more)
    if bed.strikes(0.3):
        self.primary_tier.complete_read(keys, job.req_context)
    return job


@planted_at(TieringOffloadingManager, "_update_backpressure", "below", "below-hybrid", first=_keep_counts_above_zero)
def cascade_let_go_of_twice(bed: Bed, original: Original, self: Any, tier: object, job: JobMetadata, result: JobResult) -> None:
    """A cascade that is over lets go of its slots twice."""
    original(self, tier, job, result)
    if bed.strikes(0.5):
        self.primary_tier.complete_read(job.transfer_job.keys, job.transfer_job.req_context)


@planted_at(CPUPrimaryTierOffloadingManager, "__init__", "below", "below-hybrid")
def cascade_never_let_go_of(bed: Bed, original: Original, self: Any, *args: Any, **kwargs: Any) -> None:
    """A cascade that is over keeps its slots."""
    original(self, *args, **kwargs)
    complete = self.complete_read

    def forgets(keys: Collection[OffloadKey], of: ReqContext) -> None:
        if not bed.strikes(0.05):
            complete(keys, of)

    self.complete_read = forgets


@planted("below", "below-hybrid")
def cascade_that_holds_nothing(bed: Bed) -> None:
    """A cascade does not count among the readers of its slots, so that they are given away while it reads."""

    @bed.around(CPUPrimaryTierOffloadingManager, "__init__")
    def begins(original: Original, self: CPUPrimaryTierOffloadingManager, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.complete_read = lambda keys, of: None

    @bed.around(CPUPrimaryTierOffloadingManager, "prepare_read")
    def prepares(
        original: Original, self: CPUPrimaryTierOffloadingManager, keys: Collection[OffloadKey], of: ReqContext
    ) -> Any:
        spec = original(self, keys, of)
        bed.strikes()
        self.complete_load(keys, of)
        return spec


@planted_at(TieringOffloadingManager, "create_store_job", "below", "below-hybrid")
def cascade_of_its_neighbours(bed: Bed, original: Original, self: Any, *args: Any) -> TransferJob:
    """The slots that a cascade reads are paired off by one."""
    job: TransferJob = original(self, *args)
    if len(job.chunk_ids) > 1 and bed.strikes():
        job.chunk_ids = np.roll(job.chunk_ids, -1)
    return job


# --- reports, resets, the end -----------------------------------------------------------------------------------------------


@planted_at(FileSystemTierManager, "get_finished_jobs", "below", "below-hybrid")
def tier_report_comes_twice(bed: Bed, original: Original, self: Any) -> list[JobResult]:
    """A tier reports a job twice."""
    found: list[JobResult] = original(self)
    return [*found, found[-1]] if found and bed.strikes(0.05) else found


@planted_at(FileSystemTierManager, "get_finished_jobs", "below", "below-hybrid", seen=False)
def tier_report_is_lost(bed: Bed, original: Original, self: Any) -> list[JobResult]:
    """A tier never reports a job: vLLM has no deadlines, and the engine waits."""
    found: list[JobResult] = original(self)
    return found[1:] if found and bed.strikes(0.05) else found


@planted_at(FileSystemTierManager, "get_finished_jobs", "below-faults", "below-hybrid", seen=False)
def failure_reported_as_success(bed: Bed, original: Original, self: Any) -> list[JobResult]:
    """A tier says that a promotion has brought all, and it has not: what a tier says is believed."""
    found: list[JobResult] = original(self)
    return [each if each.success or not bed.strikes() else JobResult(each.job_id, success=True) for each in found]


@planted_at(FileSystemTierManager, "submit_store", "below", "below-hybrid", seen=False)
def files_of_other_keys(bed: Bed, original: Original, self: Any, job: TransferJob) -> None:
    """A tier writes the files of a job under names that are paired off by one: what a tier does is not seen."""
    slots = job.chunk_ids
    if len(slots) > 1 and bed.strikes():
        job.chunk_ids = np.roll(slots, -1)
    original(self, job)
    job.chunk_ids = slots


@planted_at(TieringOffloadingManager, "reset_cache", "below")
def reset_without_a_drain(bed: Bed, original: Original, self: Any) -> None:
    """A reset does not wait for the tiers."""
    if not self._jobs:
        original(self)
        return
    bed.strikes()
    with (
        mock.patch.object(FileSystemTierManager, "drain_jobs"),
        mock.patch.object(self, "_jobs", {}),
        mock.patch.object(self, "_process_finished_jobs"),
        mock.patch.object(self._metrics, "assert_idle"),
    ):
        original(self)


@planted_at(TieringOffloadingManager, "has_pending_work", "below", "below-hybrid")
def sleeps_while_a_tier_works(bed: Bed, original: Original, self: Any) -> bool:
    """The engine does not ask whether a tier has jobs out before it goes to sleep."""
    works = bool(original(self))
    if works:
        bed.strikes()
    return False
