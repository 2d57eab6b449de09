"""The traffic of the benches: as many running requests as asked for, under vLLM's real scheduler, with no model and no bytes.

One full-attention group and one sliding window, a pool that is a little too small for all. Copies land a few steps after they
were made, or at once when a step waits for them. Populations of one seed are made of the same requests. Metrics are on in all
of them. With a feature of ours there are chunks of several blocks, Mamba states in place of the window, or an empty store
below, to which everything goes that is stored.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from attrs import evolve
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

from blocklife.engines.vllm.connector._connector import WorkerMetadata
from blocklife.engines.vllm.connector._messages import WorkerReport
from blocklife.ledger import Completion, JobId, Launched, Result, Worker
from tests.proof.drivers.vllm.making import MAX_MODEL_LEN
from tests.vllm.engine import Engine
from tests.vllm.worlds import Connector, GroupSpec, Lag, WorldSpec

if TYPE_CHECKING:
    from tests.vllm.disk import NoFiles

HOOKS = (
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "get_external_cache_hit_sources",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "take_events",
    "has_pending_push_work",
    "get_kv_connector_stats",
)
"""What vLLM's scheduler calls of a connector."""
BLOCK, WINDOW, LAG, CHUNK = 16, 512, 3, 4
Feature = Literal["chunks", "states", "below"]
RANK = Worker(0)


class Workers(Protocol):
    """Stands for the workers: takes what a step's metadata says, and answers for them."""

    def run(self, output: SchedulerOutput) -> KVConnectorOutput:
        """What they report of one step."""
        ...


class TheirWorkers:
    """Those of the OffloadingConnector."""

    def __init__(self) -> None:
        self._step = 0
        self._out: OrderedDict[int, tuple[int, str]] = OrderedDict()

    def run(self, output: SchedulerOutput) -> KVConnectorOutput:
        """What they report of one step."""
        self._step += 1
        meta = output.kv_connector_metadata
        done = [(job, self._out.pop(job)[1]) for job in meta.jobs_to_flush or () if job in self._out]
        for job, load in meta.load_jobs.items():
            self._out[job] = (self._step + LAG, load.req_id)
        for job in meta.store_jobs:
            self._out[job] = (self._step + LAG, "")
        ready = [job for job, (due, _) in self._out.items() if due <= self._step]
        done += [(job, self._out.pop(job)[1]) for job in ready]
        told = OffloadingWorkerMetadata()
        for job, _ in done:
            told.mark_completed(job)
        loaded = {request for _, request in done if request}
        return KVConnectorOutput(finished_sending=set(), finished_recving=loaded, kv_connector_worker_meta=told)


class SimpleWorkers:
    """Those of SimpleCPUOffload: what a step loads is one event, and what it stores another."""

    def __init__(self) -> None:
        self._step = 0
        self._loads: OrderedDict[int, tuple[int, Collection[str]]] = OrderedDict()
        self._stores: OrderedDict[int, int] = OrderedDict()

    def run(self, output: SchedulerOutput) -> KVConnectorOutput:
        """What they report of one step."""
        self._step += 1
        meta = output.kv_connector_metadata
        stored = list(self._stores) if meta.need_flush else []
        if meta.load_event >= 0:
            self._loads[meta.load_event] = self._step + LAG, meta.load_event_to_reqs.get(meta.load_event, ())
        if meta.store_event >= 0:
            self._stores[meta.store_event] = self._step + LAG
        stored += [event for event, due in self._stores.items() if due <= self._step and event not in stored]
        loaded = [event for event, (due, _) in self._loads.items() if due <= self._step]
        for event in stored:
            self._stores.pop(event, None)
        return KVConnectorOutput(
            finished_sending=set(),
            finished_recving={request for event in loaded for request in self._loads.pop(event)[1]},
            kv_connector_worker_meta=SimpleCPUOffloadWorkerMetadata(dict.fromkeys(stored, 1)) if stored else None,
        )


class OurWorkers:
    """Those of blocklife: stores are launched a step later, or by the flush that waits for them."""

    def __init__(self) -> None:
        self._step = 0
        self._held: list[JobId] = []
        self._out: OrderedDict[JobId, tuple[int, str]] = OrderedDict()

    def run(self, output: SchedulerOutput) -> KVConnectorOutput:
        """What they report of one step."""
        self._step += 1
        step = output.kv_connector_metadata.step
        launched: list[JobId] = []
        done: list[tuple[JobId, str]] = []
        for plan in step.plans:
            for job in self._held:
                self._launch(job, "", launched)
            self._held = [transfer.job for transfer in plan.stores]
            done += [(job, self._out.pop(job)[1]) for job in plan.flushes if job in self._out]
            for transfer in plan.loads:
                self._launch(transfer.job, step.loads.get(transfer.job, ""), launched)
            for moved in (*plan.promotes, *plan.demotes):
                self._out[moved.job] = (self._step + LAG, "")
        ready = [job for job, (due, _) in self._out.items() if due <= self._step]
        done += [(job, self._out.pop(job)[1]) for job in ready]
        report = WorkerReport(
            step.number,
            tuple(Launched(job, RANK) for job in launched),
            tuple(Completion(job, RANK, Result.OK) for job, _ in done),
        )
        return KVConnectorOutput(
            finished_sending=set(),
            finished_recving={request for _, request in done if request},
            kv_connector_worker_meta=WorkerMetadata(report),
        )

    def _launch(self, job: JobId, request: str, launched: list[JobId]) -> None:
        launched.append(job)
        self._out[job] = (self._step + LAG, request)


WORKERS: Mapping[Connector, Callable[[], Workers]] = {
    "blocklife": OurWorkers,
    "offloading": TheirWorkers,
    "simple": SimpleWorkers,
}


class Population:
    """Requests that run; who ends is followed by another one. *clock* times the scheduler, in nanoseconds."""

    def __init__(
        self,
        connector: Connector,
        running: int,
        seed: int,
        clock: Callable[[], int] = time.thread_time_ns,
        *,
        block_tokens: int = BLOCK,
        below: bool = False,
        events: bool = False,
        feature: Feature | None = None,
    ) -> None:
        """*below*: the host is a quarter of that, with vLLM's file-system tier below it, which moves no bytes either."""
        self._clock = clock
        self.engine = Engine(evolve(self._spec(connector, running, block_tokens, below, feature), events=events))
        self.scheduler = self.engine.scheduler
        self.workers = WORKERS[connector]()
        self.files: NoFiles | None = None
        if below:
            from tests.vllm.disk import NoFiles  # older releases have no such tier

            self.files = NoFiles(self.scheduler.connector.connector_scheduler.manager, LAG)
        self.let_in = False
        """Whether the latest step has let somebody in."""
        self._running = running
        self._dice = random.Random(seed)
        self._families = [[self._dice.randrange(5, 50_000) for _ in range(256)] for _ in range(8)]
        self._sent: list[list[int]] = []
        self._number = 0

    def _spec(self, connector: Connector, running: int, block_tokens: int, below: bool, feature: Feature | None) -> WorldSpec:
        states = feature == "states"
        held = (1536 + 256) // block_tokens + (2 if states else WINDOW // block_tokens) + 3
        blocks = int(running * held * 0.8) + 1
        other = GroupSpec("mamba", block_tokens) if states else GroupSpec("swa", block_tokens, WINDOW)
        spec = WorldSpec(
            (GroupSpec("full", block_tokens), other),
            blocks,
            blocks if below else 4 * blocks,
            max_num_seqs=running,
            max_num_batched_tokens=max(8192, 2 * running),
            connector=connector,
            below=Lag() if below else None,
        )
        if feature == "chunks":
            return evolve(spec, blocks_per_chunk=CHUNK)
        if feature != "below":
            return spec
        folder = tempfile.mkdtemp(prefix="blocklife-bench-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return evolve(spec, extra_config={"below": f"fs:{folder}"})

    def step(self) -> int:
        """One step of the engine. Returns what the scheduler took of it, in nanoseconds."""
        while len(self.scheduler.requests) < self._running + max(4, self._running // 16):
            self._add()
        if self.files is not None:
            self.files.turn()
        began = self._clock()
        output = self.scheduler.schedule()
        took = self._clock() - began
        self.let_in = bool(output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids)
        names = list(output.num_scheduled_tokens)
        said = [[11 + len(name)] if self._speaks(name) else [] for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=said,
            kv_connector_output=self.workers.run(output),
        )
        began = self._clock()
        self.scheduler.update_from_output(output, result)
        return took + self._clock() - began

    def _speaks(self, name: str) -> bool:
        request = self.scheduler.requests[name]
        return bool(request.num_computed_tokens >= request.num_tokens)

    def _add(self) -> None:
        dice = self._dice
        if self._sent and dice.random() < 0.2:
            prompt = dice.choice(self._sent[-4096:])
        else:
            prompt = dice.choice(self._families)[: dice.randint(64, 256)]
            prompt = prompt + [dice.randrange(5, 50_000) for _ in range(dice.randint(0, 1280))]
            self._sent.append(prompt)
        self._number += 1
        self.engine.add(f"r{self._number}", prompt, min(dice.randint(64, 512), MAX_MODEL_LEN - len(prompt)))
