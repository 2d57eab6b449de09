"""Replay a workload through the engine, and report what happened."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from collections.abc import Sequence as Items

import attrs
import numpy as np

from blocklife.copiers._cpu import CpuCopier
from blocklife.copiers._executor import Executor
from blocklife.copiers._faults import FaultyCopier
from blocklife.copiers._protocol import Copier, TierCopier
from blocklife.engines.toy._below import BelowReport, TierOfReplay
from blocklife.engines.toy._engine import EngineOptions, Ordering, Station, ToyEngine
from blocklife.engines.toy._memory import Memory, WorkerMemory
from blocklife.engines.toy._options import SPARE_REQUESTS, ReplayOptions, device_for
from blocklife.engines.toy._sequences import goal_of
from blocklife.engines.toy._traffic import TierTraffic, Traffic
from blocklife.engines.toy._workload import WorkloadRequest
from blocklife.errors import BlocklifeError, MisuseError
from blocklife.ledger import Checking, Ledger, Limits, Worker
from blocklife.ledger.views import View
from blocklife.offload import HostTier, OffloadScheduler, Policies
from blocklife.states import TERMINAL, Job

MAX_VIOLATIONS_SHOWN = 20
ABORT_WITH_FAULTS = 0.02
IDLE_S = 0.0005
"""How long the engine sleeps after a step that computed nothing while a device or a store copies, in seconds: deadlines count
steps."""

LATE_S = 0.5
"""How long a copy to or from the store below has at least before its deadline, in seconds, however short the steps are."""
LATE_STEP_S = 0.01
"""The longest rest of one step for that."""


@attrs.frozen(kw_only=True)
class ReplayReport:
    """The results of a replay. Counts are of the whole run unless a unit says otherwise."""

    copier: str
    """The copier that moved the bytes, and its device."""
    groups: str
    """The groups of the model, in the order of all tuples by group."""
    blocks_per_chunk: int
    requests: int
    skipped_requests: int
    """Requests that do not fit in a memory of this size."""
    aborted_requests: int
    steps: int
    tokens_computed: int
    tokens_hit_gpu: int
    tokens_hit_host: int
    """Those that a promotion had brought into the host tier included; see ``below``."""
    blocks_hit_gpu: tuple[int, ...]
    """Blocks found on the device, by group."""
    blocks_hit_host: tuple[int, ...]
    """Blocks that loads were planned for, by group, including loads that failed."""
    blocks_stored: int
    """Blocks of stores that are DONE; each worker has moved its share."""
    blocks_loaded: int
    bytes_stored: int
    """Over all workers."""
    bytes_loaded: int
    jobs: dict[str, int]
    """Jobs by terminal state."""
    preemptions: int
    flushes: int
    flushes_by_cause: dict[str, int]
    stale_detected: int
    late_completions: int
    duplicate_completions: int
    unknown_completions: int
    refused_stores: int
    already_stored: int
    """Chunks that were not stored because the host tier had their content."""
    already_in_flight: int
    """Chunks that were not stored because a store of their blocks was in flight."""
    partial_chunks: int
    """Chunks that were not stored because they have a hole that a hit could need."""
    stale_entries: int
    """Blocks of chunks whose life was over when they were to be stored."""
    deferred_lookups: int
    failed_loads: int
    verified_blocks: int
    """Blocks read by a step, and slots READY at the end, whose written words were all checked; over all workers.

    A block whose tokens do not fill a word yet is not counted.
    """
    corrupt_blocks: int
    leaked_places: int
    violations: int
    violation_messages: list[str]
    """The first `MAX_VIOLATIONS_SHOWN` of them."""
    transitions: dict[str, dict[str, int]]
    """By machine and row: ``SEALED --plan_store--> PENDING_STORE``, with the guard in brackets."""
    scheduler_us_per_step: float
    seconds: float
    interrupted: bool
    below: BelowReport | None = None
    """None without a tier below."""

    @property
    def clean(self) -> bool:
        """Whether nothing was corrupted, lost or violated."""
        return not (self.corrupt_blocks or self.leaked_places or self.violations)


class Replay:
    """Runs a workload through an engine. Its threads and memory are released at the end of `run`, or by `close`."""

    def __init__(
        self,
        workload: Items[WorkloadRequest],
        options: ReplayOptions,
        *,
        preparing: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """Allocate the memory. With tensors, *preparing* is called with the bytes of host memory that are ready, and the total.

        Refuses: MisuseError if the memory cannot be allocated.
        """
        self.options = options
        self._held = contextlib.ExitStack()
        self._device = device_for(options.copier)
        self._tier_copiers: list[TierTraffic] = []
        try:
            self._below = self._tier_below()
            self.ledger = self._make_ledger()
            self.offload = self._make_scheduler()
            self.stations = self._make_stations(preparing)
        except BaseException:
            self._held.close()
            raise
        plans_ahead = int(options.asynchronous)
        self.engine = ToyEngine(
            self.ledger,
            self.offload,
            self.stations,
            EngineOptions(
                geometry=options.geometry,
                step_tokens=options.step_tokens,
                max_running=options.max_running,
                verify=options.verify,
                check_every=256,
                prove_every=32,
                ms_per_step=options.speed,
                abort=options.abort if options.abort is not None else ABORT_WITH_FAULTS * options.has_faults,
                seed=options.seed,
                plans_ahead=plans_ahead,
                checking=options.checking,
            ),
        )
        self._workload = workload
        self.total = len(workload)
        self._seconds = 0.0
        self._leaked = 0
        self._interrupted = False

    def check_fits(self) -> None:
        """Refuses: MisuseError where no request of the workload fits into the device, so that nothing would run."""
        most, engine = self.engine.options.most_blocks, self.engine
        if not any(most(goal_of(request)) <= engine.num_blocks for request in self._workload):
            least = min(most(goal_of(request)) for request in self._workload)
            raise MisuseError(
                f"nothing to run: none of {self.total} requests fits into the device: the shortest needs at least {least} "
                f"blocks, and it has {engine.num_blocks} (--gpu-blocks {least + 1} or more, or shorter requests)"
            )

    def _tier_below(self) -> TierOfReplay | None:
        """The tier below, kept until the end of the run; None if there is none."""
        options, below = self.options, self.options.below
        if below is None:
            return None
        tier = TierOfReplay(below, options.geometry, options.block_bytes, options.workers, options.seed)
        self._held.callback(tier.close)
        return tier

    @property
    def _max_jobs(self) -> int:
        """Jobs that the ledger has room for: those of the tier below take none from the others."""
        below = self.options.below
        return self.options.max_jobs + (2 * below.policies.max_jobs if below is not None else 0)

    def _make_ledger(self) -> Ledger:
        options = self.options
        return Ledger(
            Limits(
                num_blocks=options.gpu_blocks,
                num_slots=options.host_slots,
                max_jobs=self._max_jobs,
                max_requests=options.max_running + SPARE_REQUESTS,
                num_groups=len(options.geometry.groups),
                num_workers=options.workers,
            ),
            contract=options.contract,
            checking=options.checking,
            deadline=float(options.deadline),
        )

    def _make_scheduler(self) -> OffloadScheduler:
        options, below = self.options, self._below
        return OffloadScheduler(
            self.ledger,
            HostTier(self.ledger, options.policy),
            options.geometry,
            Policies(
                mode=options.mode,
                plans_ahead=int(options.asynchronous),
                pending_wait=float(options.deadline),
                # small enough that even a full queue of stores drains before the deadline of its last one; copiers that are
                # not paced get jobs of the same size, so that runs can be compared
                max_job_blocks=max(1, options.link_blocks * options.deadline // self._max_jobs),
            ),
            below=None if below is None else below.index,
            below_policies=None if below is None else below.options.policies,
        )

    def _make_stations(self, preparing: Callable[[int, int], None]) -> list[Station]:
        return [self._station(rank, preparing) for rank in range(self.options.workers)]

    def _station(self, rank: int, preparing: Callable[[int, int], None]) -> Station:
        options = self.options
        size = options.geometry.blocks_per_chunk
        try:
            memory, copier, ordering = self._ends(rank, preparing)
        except BlocklifeError as problem:
            raise MisuseError(f"--copier {options.copier}: {problem}") from problem
        if options.faults is not None:
            copier = FaultyCopier(
                copier, options.faults, np.random.default_rng(options.seed), late_polls_max=2 * options.deadline
            )
        traffic = Traffic(copier, options.gpu_blocks, options.host_slots, size)
        if self._below is None:
            return Station(memory, Executor(traffic), traffic, ordering)
        below = self._below.copier(memory.slots(size), Worker(rank))
        self._held.callback(below.close)  # before its memory is freed
        tier: TierCopier = below
        if options.faults is not None:
            tier = FaultyCopier(below, options.faults, np.random.default_rng(options.seed), late_polls_max=2 * options.deadline)
        watched = traffic.below(tier)
        self._tier_copiers.append(watched)
        return Station(memory, Executor(traffic, watched), traffic, ordering)

    def _ends(self, rank: int, preparing: Callable[[int, int], None]) -> tuple[WorkerMemory, Copier, Ordering | None]:
        """The memory of one worker, its copier, and the ordering of its copies; all are kept until the end of the run."""
        options, worker = self.options, Worker(rank)
        num_places = options.host_slots * options.geometry.blocks_per_chunk
        if self._device is None:
            rows = Memory(options.gpu_blocks, num_places, options.block_bytes, rank)
            paced = CpuCopier(rows.device, rows.host, worker=worker, blocks_per_poll=options.link_blocks)
            self._held.callback(paced.close)
            return rows, paced, None
        memory, copier, ordering = self._device.ends(
            options.gpu_blocks,
            num_places,
            options.block_bytes,
            worker,
            num_groups=len(options.geometry.groups),
            progress=lambda done, total: preparing(rank * total + done, options.workers * total),
        )

        def give_back() -> None:
            copier.close()  # if this raises, copies may still run, and their memory must not be freed
            memory.close()

        self._held.callback(give_back)
        return memory, copier, ordering

    @property
    def finished(self) -> int:
        """Requests that are over."""
        return self.total - self.engine.unfinished

    def run(self, *, stop: Callable[[], bool] = lambda: False, progress: Callable[[], None] = lambda: None) -> ReplayReport:
        """Run to the end, or until *stop* returns True between two steps: then all requests are aborted and their copies land.

        A violated rule ends the run, too; it is in the report and not raised.
        """
        begin = time.perf_counter()
        engine = self.engine
        try:
            with self._held:
                if self._device is not None:
                    self._held.enter_context(self._device.computing())
                try:
                    self._run(stop, progress)
                except BlocklifeError as problem:
                    self._note(problem)
                finally:
                    self._seconds = time.perf_counter() - begin
                    engine.close()
                self._leaked = engine.audit()
        except BlocklifeError as problem:  # the device can prove nothing any more, so the slots cannot be checked
            self._note(problem)
        return self.report()

    def _run(self, stop: Callable[[], bool], progress: Callable[[], None]) -> None:
        engine = self.engine
        for request in self._workload:
            engine.add(request)
        while not engine.idle:
            if not self._interrupted and stop():
                self._interrupted = True
                engine.abort_all()
                if self._below is not None:
                    self._below.index.is_ending = True
                continue
            tokens = engine.counts.tokens_computed
            engine.step()
            if not engine.unfinished:
                self._settle_the_rest()
            if engine.counts.tokens_computed == tokens:
                self._rest()
            if self._below is not None and self._below.busy():
                self._rest_for_store()
            progress()
        engine.check()

    def _note(self, problem: BlocklifeError) -> None:
        self.engine.counts.violations.append(f"{type(problem).__name__}: {problem}")

    def _rest(self) -> None:
        """Give device and store time to copy: steps that compute nothing are so fast that jobs would pass their deadline."""
        waits = self._below is not None and self._below.busy()
        if waits or any(station.ordering is not None and station.ordering.busy() for station in self.stations):
            time.sleep(IDLE_S)

    def _rest_for_store(self) -> None:
        """Give the store time to copy before the deadline of a job: it works in seconds, and a deadline counts steps."""
        half = self.options.deadline / 2
        is_late = any(half <= each.age <= 2 * half for each in self._tier_copiers)
        time.sleep(min(LATE_S / half, LATE_STEP_S) if is_late else 0)  # 0 lets the threads of the store run

    def _settle_the_rest(self) -> None:
        """No request is left: if the copiers are idle, prove the copies quiet that will never report."""
        if self.ledger.jobs.live and not any(station.executor.busy() for station in self.stations):
            self.engine.prove_quiet(below=True)

    def close(self) -> None:
        """Release threads and memory of a replay that is not run; nothing after `run`, and a second time."""
        self._held.close()

    @property
    def close_error(self) -> str:
        """The error that closing the store below has raised, in words; "" if it raised none, or if there is no store."""
        return "" if self._below is None else self._below.close_error

    def report(self) -> ReplayReport:
        """The results so far; changes nothing. Leaked places are counted at the end of `run`."""
        ledger, counts = self.ledger, self.engine.counts
        machines: tuple[View, ...] = (ledger.blocks, ledger.slots, ledger.jobs, ledger.requests)
        counted = dict(zip(("block", "slot", "job", "request"), machines, strict=True))
        taken = {name: {str(row): count for row, count in each.row_counts()} for name, each in counted.items()}
        offload, statistics = self.offload.statistics(), ledger.statistics()
        moved = ledger.counts.moved
        block_bytes = self.options.block_bytes * self.options.workers
        # a violation that the ledger finds ends a strict run, and its message is already among the others
        only_counted = 0 if self.options.checking is Checking.STRICT else statistics.violations
        return ReplayReport(
            copier="cpu" if self._device is None else self._device.name,
            groups=str(self.options.geometry),
            blocks_per_chunk=self.options.geometry.blocks_per_chunk,
            requests=counts.requests,
            skipped_requests=counts.skipped_requests,
            aborted_requests=counts.aborted_requests,
            steps=counts.steps,
            tokens_computed=counts.tokens_computed,
            tokens_hit_gpu=counts.tokens_hit_gpu,
            tokens_hit_host=counts.tokens_hit_host,
            blocks_hit_gpu=offload.device_hits,
            blocks_hit_host=offload.host_hits,
            blocks_stored=moved["STORE"],
            blocks_loaded=moved["LOAD"],
            bytes_stored=moved["STORE"] * block_bytes,
            bytes_loaded=moved["LOAD"] * block_bytes,
            jobs={state.name: ledger.counts.ended[state.name] for state in Job if state in TERMINAL},
            preemptions=counts.preemptions,
            flushes=sum(ledger.counts.flushes.values()),
            flushes_by_cause=dict(sorted(ledger.counts.flushes.items())),
            stale_detected=statistics.stale + offload.stale,
            late_completions=statistics.late,
            duplicate_completions=statistics.duplicate,
            unknown_completions=statistics.unknown,
            refused_stores=offload.refused_stores,
            already_stored=offload.already_stored,
            already_in_flight=offload.in_flight,
            partial_chunks=offload.partial,
            stale_entries=offload.stale,
            deferred_lookups=offload.deferred,
            failed_loads=counts.failed_loads,
            verified_blocks=counts.verified_blocks + counts.verified_slots,
            corrupt_blocks=counts.corrupt_blocks,
            leaked_places=self._leaked,
            violations=len(counts.violations) + only_counted,
            violation_messages=counts.violations[:MAX_VIOLATIONS_SHOWN],
            transitions=taken,
            scheduler_us_per_step=round(counts.scheduler_s / max(1, counts.steps) * 1e6, 1),
            seconds=round(self._seconds, 3),
            interrupted=self._interrupted,
            below=self._report_below(),
        )

    def _report_below(self) -> BelowReport | None:
        counted = self.offload.statistics().below
        if self._below is None or counted is None:
            return None
        return self._below.report(counted, self.engine.counts.tokens_hit_below)
