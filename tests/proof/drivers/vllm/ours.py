"""Our own connector under vLLM: the orders in its plans, the reports that its workers make of them, and its host tier.

Rules of this file:

* It imports vLLM, and is imported only by `driver`, when a driver is made.
* What a worker reports is what `ConnectorWorker` would: a load is told to vLLM once, a completion to the ledger as often as it
  comes, and each step has a report, even if there is nothing in it.

Theory. Stores that were planned between two steps come ahead of the plan of the step, and are launched with those of the step
before: behind nothing that the step writes, as the step waits for what it hands out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vllm.v1.outputs import KVConnectorOutput

from blocklife.engines.vllm.connector._connector import StepMetadata, WorkerMetadata
from blocklife.engines.vllm.connector._messages import WorkerReport
from blocklife.ledger import Result
from blocklife.offload import FullAttention
from blocklife.testing import Landing
from blocklife.testing.worlds._passes import Passes
from tests.proof.drivers.filling import fill, free_filled
from tests.proof.drivers.vllm.copies import WorkerOrders
from tests.proof.drivers.vllm.engine import VllmEngine


class OurCopies:
    """The jobs of the connector's ledger, by their numbers."""

    def __init__(self, engine: VllmEngine, num_workers: int) -> None:
        self._side = engine.scheduler.connector.scheduler
        self._passes = Passes(self._side.offload)
        self._size = engine.geometry.blocks_per_chunk
        (first, *others) = engine.geometry.groups
        self._reports_blocks = isinstance(first, FullAttention) and not others
        self._loads: list[dict[int, tuple[str, Sequence[int]]]] = [{} for _ in range(num_workers)]
        """By worker: the loads that it has not reported, each with its request and its blocks."""
        self.launched: Sequence[tuple[int, int]] = ()
        """Job and worker of each copy whose launch is in no report yet."""
        self.failed: set[str] = set()
        """Requests of which a load was reported to have failed."""
        self.written: dict[int, set[int]] = {}
        """By slot: the blocks of the chunk that the latest store into it writes."""

    def told(self, meta: object) -> WorkerOrders:
        """The plans of a step."""
        if not isinstance(meta, StepMetadata):
            raise TypeError(meta)
        *early, last = [self._passes.orders(plan, {}, {}) for plan in meta.step.plans]
        copies = [order for orders in (*early, last) for order in (*orders.loads, *orders.stores)]
        for order in copies:
            if order.stores:
                self.written |= {place // self._size: set() for place in order.target}
                for place in order.target:
                    self.written[place // self._size].add(place % self._size)
        jobs = self._side.ledger.jobs
        known = {order.job: jobs.get(order.job) for order in copies}
        owners = {number: _request(job.owner or "") for number, job in known.items() if job is not None}
        sharers = {number: tuple(map(_request, job.sharers)) for number, job in known.items() if job is not None}
        for job, request in meta.step.loads.items():
            blocks = next(order.target for order in last.loads if order.job == job.number)
            for worker in self._loads:
                worker[job.number] = request, blocks
        return WorkerOrders(
            last.flushes, last.loads, last.stores, owners, ahead=tuple(early), sharers=sharers, number=meta.step.number
        )

    def answers(self, landings: Sequence[Landing], told: WorkerOrders) -> list[KVConnectorOutput]:
        """The report of each worker."""
        launched, self.launched = self.launched, ()
        answers = []
        for rank, loads in enumerate(self._loads):
            completions = [self._passes.completion(each) for each in landings if each.worker == rank]
            begun = self._passes.launches([each for each in launched if each[1] == rank])
            answer = KVConnectorOutput(finished_recving=set(), failed_recving=set(), invalid_block_ids=set())
            for each in completions:
                if (load := loads.pop(each.job.number, None)) is not None:
                    request, blocks = load
                    answer.finished_recving.add(request)
                    if each.result is not Result.OK:
                        self._fail(answer, request, blocks)
            report = WorkerReport(told.number, tuple(begun), tuple(completions))
            answer.kv_connector_worker_meta = WorkerMetadata(report)
            answers.append(answer)
        return answers

    def _fail(self, answer: KVConnectorOutput, request: str, blocks: Sequence[int]) -> None:
        self.failed.add(request)
        if self._reports_blocks:
            answer.invalid_block_ids.update(blocks)
        else:
            answer.failed_recving.add(request)


def _request(name: str) -> str:
    """The request of vLLM that has this name in the ledger."""
    return name.partition("#")[0]


class OurHost:
    """The connector's host tier, in its ledger."""

    num_filled = 0

    def __init__(self, engine: VllmEngine, num_slots: int) -> None:
        self._offload = engine.scheduler.connector.scheduler.offload
        self._ledger, self._tier = self._offload.ledger, self._offload.tier
        self._size = engine.geometry.blocks_per_chunk
        self._serial = 0

    @property
    def refused(self) -> int:
        """Stores that the tier had no room for."""
        return int(self._offload.statistics().refused_stores)

    def find(self, key: bytes) -> tuple[int, bool] | None:
        """The slot of this content, and whether the content has arrived there; None if no slot is reserved for it."""
        slots = self._ledger.slots
        slot = slots.find(int.from_bytes(key[-4:], "big"), key[:-4])
        return None if slot is None else (slot, slots.is_ready(slot))

    def fill(self, present: Collection[bytes]) -> None:
        """Hold every slot for other content."""
        fill(self._ledger, self._tier, self._size)

    def free(self) -> None:
        """Let go of it."""
        free_filled(self._ledger)

    def crowd(self, slots: int) -> bool:
        """Make room for this many slots, if possible."""
        return self._tier.reserve(self._aliens(slots)) is not None

    def forget(self, keys: Collection[bytes], present: Collection[bytes]) -> None:
        """Evict these."""
        found = [self.find(key) for key in keys]
        self._ledger.evict([each[0] for each in found if each is not None])

    def refuses_reset(self) -> bool:
        """It can be emptied."""
        return False

    def windows(self) -> list[int | None]:
        """How many chunks before its end a hit needs, by group."""
        return list(self._offload.geometry.window_chunks)

    def jobs(self) -> list[str]:
        """The jobs that are not over."""
        return [f"job {job.number}" for job in self._ledger.jobs.alive()]

    def _aliens(self, count: int) -> list[tuple[int, bytes]]:
        """Names of content that no request has."""
        self._serial += count
        return [(0, b"alien %026d" % (self._serial - at)) for at in range(count)]
