"""Our transfers in the words of vLLM's tests: which blocks go to which part of which chunk, by key.

What a slot holds is read from the ledger at the moment at which a plan names it. So a copy from or to another slot than that of
the content shows as another key, or as none.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import field, frozen
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadKey, make_offload_key

from blocklife.engines.vllm.connector._connector import StepMetadata
from blocklife.engines.vllm.connector._messages import StepPlan
from blocklife.ledger import Direction, Ledger, Transfer

THEIRS = "tests.v1.kv_connector.unit.offloading_connector.utils"
"""Their module with the mocks and the runner."""

Specs: TypeAlias = tuple[LoadStoreSpec, LoadStoreSpec]
"""Source and target, as their worker gets them."""


def host_end(keys: Sequence[OffloadKey]) -> LoadStoreSpec:
    """The host's end of a copy: the chunks that it touches."""
    spec: LoadStoreSpec = importlib.import_module(THEIRS).MockLoadStoreSpec(keys)
    return spec


@frozen(eq=False)
class Job:
    """One job of a plan."""

    number: int
    is_store: bool
    req_id: str
    blocks: tuple[tuple[int, ...], ...]
    """Of the device, by group."""
    keys: tuple[OffloadKey, ...]
    parts: tuple[Specs, ...]
    """Of neighbouring blocks each; together they are the job."""

    @property
    def src_spec(self) -> LoadStoreSpec:
        """Where the bytes of the whole job come from."""
        return self._whole if self.is_store else host_end(self.keys)

    @property
    def dst_spec(self) -> LoadStoreSpec:
        """Where they go."""
        return host_end(self.keys) if self.is_store else self._whole

    @property
    def _whole(self) -> GPULoadStoreSpec:
        blocks = [block for own in self.blocks for block in own]
        return GPULoadStoreSpec(blocks, [len(own) for own in self.blocks], [0] * len(self.blocks))


@frozen(eq=False)
class PlanMetadata(StepMetadata):
    """Our metadata with the names that their tests look at."""

    jobs: Mapping[int, Job] = field(factory=dict)

    @property
    def store_jobs(self) -> dict[int, Job]:
        """Stores that this step submits."""
        return {number: job for number, job in self.jobs.items() if job.is_store}

    @property
    def load_jobs(self) -> dict[int, Job]:
        """Loads that this step submits."""
        return {number: job for number, job in self.jobs.items() if not job.is_store}

    @property
    def jobs_to_flush(self) -> set[int]:
        """Jobs that this step waits for."""
        return {job.number for plan in self.step.plans for job in plan.flushes}


def jobs_of(step: StepPlan, ledger: Ledger, size: int) -> dict[int, Job]:
    """All jobs of a step, with chunks of so many blocks."""
    return {
        transfer.job.number: _job(transfer, ledger, size) for plan in step.plans for transfer in (*plan.loads, *plan.stores)
    }


def _job(transfer: Transfer, ledger: Ledger, size: int) -> Job:
    number, is_store = transfer.job.number, transfer.direction is Direction.STORE
    blocks, places = (transfer.source, transfer.target) if is_store else (transfer.target, transfer.source)
    by_group: list[tuple[int, ...]] = []
    parts: list[Specs] = []
    keys: list[OffloadKey] = []
    start = 0
    for group, count in enumerate(transfer.group_sizes):
        own = blocks[start : start + count].tolist()
        by_group.append(tuple(own))
        for first, last, slots in _runs(places[start : start + count].tolist(), size):
            named = [make_offload_key(ledger.slots.key(slot) or b"", ledger.slots.group(slot)) for slot in slots]
            sizes, indices = [0] * len(transfer.group_sizes), [0] * len(transfer.group_sizes)
            sizes[group], indices[group] = last - first, int(places[start + first]) % size
            device = GPULoadStoreSpec(own[first:last], sizes, indices)
            parts.append((device, host_end(named)) if is_store else (host_end(named), device))
            keys += named
        start += count
    found = ledger.jobs.get(number)
    owner = "" if found is None else found.owner or ""
    return Job(number, is_store, owner.partition("#")[0], tuple(by_group), tuple(keys), tuple(parts))


def _runs(places: Sequence[int], size: int) -> Iterator[tuple[int, int, list[int]]]:
    """Neighbouring parts of chunks: from where to where in *places*, and the slots that they lie in."""
    start = 0
    for at in range(1, len(places) + 1):
        if at < len(places):
            before, after = places[at - 1], places[at]
            inside = before // size == after // size and after == before + 1
            if inside or (before % size == size - 1 and after % size == 0):
                continue
        yield start, at, list(dict.fromkeys(place // size for place in places[start:at]))
        start = at
