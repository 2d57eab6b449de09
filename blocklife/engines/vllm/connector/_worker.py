"""The worker side: carries out the scheduler's plans on the tensors of this rank, around vLLM's forward pass.

Rules of this file:

* It has no ledger and decides nothing. Its input and output are pickled.
* The executor's step is split, because vLLM runs the forward pass itself: `begin` comes before anything is written, `end` after
  the forward pass. A step without a forward pass calls both as well.
* Stores of a step are launched in the next one, when its forward pass has been queued: they never delay one, and run beside it.
  Those that the step itself waits for go ahead. Loads between steps run beside the forward pass, too. The pass touches none of
  their blocks, and the requests that had these blocks before were computed in earlier steps.
* Waits are queued on the device where the copier can. The host waits for loads within the step only when it reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from attrs import define, evolve, field, frozen

from blocklife.copiers import Sharing
from blocklife.copiers._executor import Executor
from blocklife.copiers._movers import MoverTable
from blocklife.copiers._protocol import EngineCopier, LoadsByLayer, TierCopier
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._checked import Alarm, CheckedCopier, PlaceSums, SummedTierCopier
from blocklife.engines._store import StoreBelow
from blocklife.engines.vllm.connector._messages import Moved, StepPlan, WorkerReport
from blocklife.engines.vllm.connector._store import WorkerStore
from blocklife.engines.vllm.connector._tensors import cache_of, layer_numbers
from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Direction, JobId, Launched, Plan, Result, Transfer, Worker

SUM_THREADS = 2
"""Threads that sum host memory."""
MakeCopier = Callable[[KvCache, HostMemory, Worker], EngineCopier]


@frozen(kw_only=True)
class WorkerShape:
    """What a worker needs to know about the engine."""

    rank: int
    num_blocks: int
    num_places: int
    """Number of blocks that host memory has room for."""
    groups: tuple[Mapping[str, int], ...]
    """For each group, the page size in bytes of each of its layers, by name."""
    reports_blocks: bool
    """Whether failed loads are reported by block, possible only with one group of full attention; otherwise by request."""
    blocks_per_chunk: int = 1
    lock_step: bool = False
    """Whether each worker has a scheduler of its own, and all must decide alike: then no step leaves a copy out."""
    below: StoreBelow | None = None
    """The store below host memory."""
    shared: Sharing | None = None
    """With which ranks this one has host memory; None: alone."""
    host_checksums: bool = False
    """Whether what host memory holds is summed when it was stored, and compared before it is loaded."""
    load_parts: int = 1
    """In how many parts of neighbouring layers a load within a step goes (`ConnectorConfig.sync_load_parts`)."""


@frozen
class Received:
    """Loads that are over on this worker since the last call."""

    requests: frozenset[str]
    failed: frozenset[str]
    """Those that failed, if failures are reported by request."""


@define(eq=False)
class _WorkerJob:
    """A copy assigned to this worker."""

    transfer: Transfer
    request: str | None
    num_bytes: int
    within: bool
    """Whether it is a load that the forward pass of its own step reads."""


@define
class _NextReport:
    """The content of the next report."""

    launched: list[Launched] = field(factory=list)
    completions: list[Completion] = field(factory=list)
    stored: Moved = field(factory=Moved)
    loaded: Moved = field(factory=Moved)


class ConnectorWorker:
    """One rank's side of the connector. All calls come from the worker's thread."""

    def __init__(
        self,
        shape: WorkerShape,
        make_copier: MakeCopier,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        alarm: Alarm = lambda _why: None,
    ) -> None:
        self.shape = shape
        self._make_copier = make_copier
        self._progress = progress
        """Called with the bytes of host memory that are ready, and the total."""
        self._alarm = alarm
        """Told of damage in host memory."""
        self._sums: PlaceSums | None = None
        self._damaged = 0
        """Places with wrong bytes that were reported."""
        self._copier: EngineCopier | None = None
        self._executor: Executor | None = None
        self._host: HostMemory | None = None
        self._below: WorkerStore | None = None
        self._group_bytes: tuple[int, ...] = ()
        self._begun = self._ended = 0
        """The last plan whose `begin`, and whose `end`, was carried out."""
        self._jobs: dict[JobId, _WorkerJob] = {}
        self._said = _NextReport()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._cache: KvCache | None = None
        self._layers: dict[str, int] = {}
        """The number of each layer, by name, as the copier counts them."""
        self._by_layer: LoadsByLayer | None = None
        """The copier, while a forward pass runs that waits for its loads layer by layer."""
        self._asleep = False
        self.num_sleeps = 0
        """How often the device's memory was given up and came back."""

    def register(self, caches: Mapping[str, torch.Tensor | Sequence[torch.Tensor]]) -> None:
        """The tensors have been allocated: allocate host memory and make the copier. A second call starts over."""
        self.close()
        cache = cache_of(self.shape.groups, caches, self.shape.num_blocks)
        pinned = cache.device.type == "cuda"
        self._host = HostMemory(
            cache.row_bytes,
            self.shape.num_places,
            pinned=pinned,
            near=cache.device,
            shared=self.shape.shared,
            progress=self._progress,
        )
        self._group_bytes = tuple(map(sum, cache.page_bytes))
        self._layers = layer_numbers(self.shape.groups, cache)
        self._cache = cache
        if self.shape.host_checksums:
            pool = ThreadPoolExecutor(SUM_THREADS, f"blocklife-sums-{self.shape.rank}")
            self._sums = PlaceSums(self._host, pool, self._alarm)
        self._copier = self._new_copier(cache, self._host)
        below, shared = self.shape.below, self.shape.shared
        below_copier: TierCopier | None = None
        if below is not None:
            self._below = WorkerStore(below, self._host, self.shape.blocks_per_chunk, Worker(self.shape.rank), shared)
            below_copier = self._below.copier
            if self._sums is not None:
                below_copier = SummedTierCopier(below_copier, self._sums, self.shape.blocks_per_chunk)
        self._executor = Executor(self._copier, below_copier, stores_behind=True)

    def begin(self, step: StepPlan) -> None:
        """Before anything is written: let this step wait for the copies that it must wait for.

        May be called more than once for a step.
        """
        if step.number == self._begun:
            return
        executor, copier = self._ready()
        if not self._begun and self._host is not None and (absent := self._host.absent()):
            raise MisuseError(
                f"blocklife connector: worker {self.shape.rank} shares host memory, and its neighbours {absent} have not "
                "attached to it: what they write would be missing (start all workers again, on one machine)"
            )
        if step.identity and step.identity != (self.shape.below and self.shape.below.identity.fingerprint):
            raise MisuseError(
                f"blocklife connector: worker {self.shape.rank} and the scheduler name the content of the store below in "
                "different ways: nothing would be found (leave below out, and report it)"
            )
        copier.computed()
        for early in step.plans[:-1]:
            self._note(early, step)
            executor.run(early, _nothing)
        plan = step.plans[-1]
        self._note(plan, step)
        flushes = tuple([job for job in plan.flushes if job not in plan.within]) if plan.loads else plan.flushes
        executor.run(evolve(plan, loads=(), stores=(), flushes=flushes), _nothing)
        self._wait_in_step(executor, [transfer.job for transfer in (*plan.loads, *plan.stores)])
        copier.before_forward(blocks=())  # requests that compute in this step have been told that their loads are over
        self._begun = step.number

    def end(self, step: StepPlan, *, by_layer: bool = False) -> None:
        """After the forward pass: launch the stores of the last step and this one's loads, and keep its stores for the next.

        May be called more than once. In a step with loads that its forward pass reads, before it, and after the blocks were
        zeroed: it waits for these. *by_layer*: `before_layer` is called before each layer reads its blocks, so that each may
        wait for its own.
        """
        self.begin(step)
        if step.number == self._ended:
            return
        executor, copier = self._ready()
        plan = evolve(step.plans[-1], flushes=tuple(step.plans[-1].within), promotes=(), demotes=())
        beside = plan.loads if step.loads_beside and not plan.within else ()
        with copier.behind_forward():
            executor.launch_deferred()
            if beside:
                executor.run(evolve(plan, stores=()), _nothing)
        copier.computed()
        load_parts = self.shape.load_parts if by_layer and plan.within else 1
        executor.run(evolve(plan, loads=() if beside else plan.loads), _nothing, load_parts=load_parts)
        self._by_layer = copier if load_parts > 1 and isinstance(copier, LoadsByLayer) else None
        self._wait_in_step(executor, [transfer.job for transfer in plan.stores])
        self._ended = step.number

    def before_layer(self, name: str) -> None:
        """A layer of the forward pass is about to read its blocks: it waits for what this step's loads bring to it."""
        if self._by_layer is not None and name in self._layers:
            self._by_layer.before_layer(self._layers[name])

    def receive(self) -> Received:
        """The loads that are over, failed ones included. Call `bad_blocks` in the same step."""
        self._by_layer = None
        executor, _ = self._ready()
        report = executor.report()
        self._hear(report.launched, report.completions)
        found = Received(frozenset(self._received), frozenset(self._failed))
        self._received, self._failed = set(), set()
        return found

    def bad_blocks(self) -> set[int]:
        """Blocks that failed loads did not fill, since the last call."""
        found, self._bad_blocks = self._bad_blocks, set()
        return found

    def report(self) -> WorkerReport:
        """The report to the scheduler side; every step has one, even if it is empty."""
        said, self._said = self._said, _NextReport()
        below = None if self._below is None else self._below.moved()
        damaged, self._damaged = self._damaged, 0 if self._sums is None else self._sums.num_damaged
        return WorkerReport(
            self._ended,
            tuple(said.launched),
            tuple(said.completions),
            said.stored,
            said.loaded,
            below,
            damaged=self._damaged - damaged,
        )

    def sleep(self) -> None:
        """The device's memory is about to be given up: launch what is left, wait for every copy. A second call does nothing.

        Host memory stays, and so does the store below. No copy can be launched until `wake`.
        """
        if self._executor is None or self._copier is None or self._asleep:
            return
        self._copier.computed()
        self._executor.wait(tuple(self._jobs))
        report = self._executor.report()
        self._hear(report.launched, report.completions)
        self._copier.close()
        self._asleep = True

    def wake(self) -> None:
        """The device's memory is back where it was, empty: make a new copier. A second call does nothing.

        What the old one had on the device lay in memory that was given up, too.
        """
        if self._executor is None or self._cache is None or self._host is None or not self._asleep:
            return
        self._copier = self._executor.copier = self._new_copier(self._cache, self._host)
        self._asleep = False
        self.num_sleeps += 1

    def close(self) -> None:
        """Wait for every copy, and free the memory. A second call does nothing."""
        if self._executor is not None:
            self._executor.close()
            self._executor = self._copier = self._cache = None
            self._asleep = False
        if self._below is not None:
            self._below.close()
            self._below = None
        if self._sums is not None:
            self._sums.pool.shutdown()
            self._sums = None
        if self._host is not None:
            self._host.close()
            self._host = None

    def _new_copier(self, cache: KvCache, host: HostMemory) -> EngineCopier:
        made = self._make_copier(cache, host, Worker(self.shape.rank))
        return made if self._sums is None else CheckedCopier(made, self._sums)

    def _ready(self) -> tuple[Executor, EngineCopier]:
        if self._executor is None or self._copier is None:
            raise MisuseError("blocklife connector: this worker has no KV cache (register_kv_caches comes first)")
        return self._executor, self._copier

    def _note(self, plan: Plan, step: StepPlan) -> None:
        within = plan.within
        for transfer in (*plan.loads, *plan.stores):
            sizes = zip(self._own_sizes(transfer), self._group_bytes, strict=True)
            num_bytes = sum(count * page for count, page in sizes)
            self._jobs[transfer.job] = _WorkerJob(transfer, step.loads.get(transfer.job), num_bytes, transfer.job in within)

    def _own_sizes(self, transfer: Transfer) -> Sequence[int]:
        """How many blocks of each group this rank moves."""
        if self.shape.shared is None or transfer.direction is not Direction.STORE:
            return transfer.group_sizes
        return self.shape.shared.sizes_of(transfer.target, transfer.group_sizes)

    def _wait_in_step(self, executor: Executor, later: Sequence[JobId]) -> None:
        """In lock step: wait for all copies that were launched, which are all but *later* ones; so no worker is ahead.

        Raises MisuseError if one has failed: the other workers learn nothing of it, and would go on with other steps.
        """
        if not self.shape.lock_step:
            return
        executor.wait([job for job in self._jobs if job not in later])
        report = executor.report()
        if any(each.result is not Result.OK for each in (*report.completions, *self._said.completions)):
            raise MisuseError(
                "blocklife connector: a copy failed on this worker, and with external_launcher the others do not hear of it "
                "(start again; use mp or ray, where all workers report to one scheduler)"
            )
        self._hear(report.launched, report.completions)

    def _hear(self, launched: Sequence[Launched], completions: Sequence[Completion]) -> None:
        _, copier = self._ready()
        took = copier.durations()
        self._said.launched += launched
        self._said.completions += completions
        for completion in completions:
            over = self._jobs.pop(completion.job, None)
            if over is None:
                continue
            ok = completion.result is Result.OK
            moved = Moved()
            if ok and over.num_bytes:
                moved = Moved(over.num_bytes, took.get(completion.job, 0.0), (over.num_bytes,))
            if over.transfer.direction is Direction.STORE:
                self._said.stored += moved
                continue
            self._said.loaded += moved
            if over.request is not None:
                self._received.add(over.request)
            if not ok:
                self._hear_of_failure(over)

    def _hear_of_failure(self, load: _WorkerJob) -> None:
        """A load has failed: tell vLLM, which cannot be told the request of a load within the step."""
        if self.shape.reports_blocks and (load.within or load.request is not None):
            self._bad_blocks.update(load.transfer.target.tolist())
        elif load.request is not None:
            self._failed.add(load.request)


def _nothing() -> None:
    """vLLM runs the forward pass itself."""


def torch_copier(cache: KvCache, host: HostMemory, worker: Worker, movers: MoverTable | None = None) -> EngineCopier:
    """A copier based on torch: on streams of a CUDA device, or synchronous between CPU tensors."""
    return TorchCopier(cache, host, worker=worker, movers=movers)
