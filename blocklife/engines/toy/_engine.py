"""The reference engine: continuous batching over a paged KV cache with host offload, one step at a time.

It is a small engine with real memory and no model: the forward pass reads and checks every block that the step's tokens would
attend to, and writes the content of the new tokens. `ToyEngine.step` shows what a serving engine must call, and in which order;
`specs/engine-contract.md` describes the same in words.

The clock counts steps. Everything is a function of the workload and the options: the copiers have threads of their own, but
what they may move, and when a landing is seen, depends only on the steps.

Synchronous scheduling makes a plan, executes it and settles it in one step. Asynchronous scheduling makes the next plan first:
every plan is executed one step after it was made, and counts on the tokens that the step before it will sample.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Sequence as Items
from functools import partial
from math import lcm
from typing import Protocol

import numpy as np
from attrs import define, field, frozen

from blocklife.copiers._executor import Executor, Report
from blocklife.engines.toy._forward import ForwardPass, check_and_write
from blocklife.engines.toy._memory import Ids, Words, WorkerMemory
from blocklife.engines.toy._sequences import RequestSequence, expected_content, goal_of
from blocklife.engines.toy._traffic import Traffic
from blocklife.engines.toy._workload import HASH_TOKENS, WorkloadRequest
from blocklife.errors import CapacityError, InvariantError
from blocklife.ledger import Checking, Ledger, Plan
from blocklife.ledger.invariants import check
from blocklife.ledger.views import block_of
from blocklife.offload import FullAttention, Geometry, Hit, LocalAttention, Mamba, OffloadScheduler, SlidingWindow
from blocklife.states import Job, Slot

LOOK_AHEAD = 16
"""How many waiting requests with a deferred lookup are skipped, so that others behind them can be admitted."""


@frozen(kw_only=True)
class EngineOptions:
    """How the engine schedules; counts are per step, shares from 0 to 1."""

    geometry: Geometry
    """The groups of the model; they decide what the engine reads and writes, independently of the scheduler's geometry."""
    step_tokens: int
    """The most tokens that one step computes."""
    max_running: int
    verify: float
    """The share of blocks read in a step that are checked."""
    check_every: int
    """Steps between two checks of all invariants."""
    prove_every: int
    """Steps between two proofs that quarantined copies are quiet (a real engine would synchronise its device)."""
    ms_per_step: float | None
    """Milliseconds of the workload that pass per step; None: all requests arrive at once."""
    abort: float
    """The share of requests whose client disconnects before the end."""
    seed: int
    plans_ahead: int = 0
    """Plans that are outstanding while the next one is made: 0 is synchronous scheduling, 1 asynchronous."""
    checking: Checking = Checking.STRICT
    """What becomes of a violation that the engine finds, as in its ledger."""

    def most_blocks(self, tokens: int) -> int:
        """The most blocks, of all groups, that a request of so many tokens holds at once.

        A window slides only when a step has settled, so it also spans the tokens of all outstanding steps.
        """
        steps = 1 + self.plans_ahead
        most = 0
        for kind, block_tokens in zip(self.geometry.groups, self.geometry.block_tokens, strict=True):
            blocks = -(-tokens // block_tokens)
            if isinstance(kind, SlidingWindow):
                blocks = min(blocks, -(-(kind.window_tokens - 1 + steps * self.step_tokens) // block_tokens) + 1)
            elif isinstance(kind, LocalAttention):
                blocks = min(blocks, -(-(kind.part_tokens + steps * self.step_tokens) // block_tokens) + 1)
            elif isinstance(kind, Mamba):
                blocks = min(blocks, 1 + steps)
            most += blocks
        return most


@define
class EngineCounts:
    """The engine's counters."""

    requests: int = 0
    skipped_requests: int = 0
    aborted_requests: int = 0
    steps: int = 0
    tokens_computed: int = 0
    tokens_hit_gpu: int = 0
    tokens_hit_host: int = 0
    tokens_hit_below: int = 0
    """Of ``tokens_hit_host``, those from the first block on that a promotion has brought."""
    preemptions: int = 0
    failed_loads: int = 0
    verified_blocks: int = 0
    corrupt_blocks: int = 0
    verified_slots: int = 0
    violations: list[str] = field(factory=list)
    scheduler_s: float = 0.0


class Ordering(Protocol):
    """Orders forward passes and copies on a device where they run concurrently; the engine tells it what it queues."""

    def before_forward(self, blocks: Ids) -> None:
        """The engine is about to queue a forward pass over these blocks. Next: `computed`; launch no copy in between."""
        ...

    def computed(self) -> None:
        """The forward pass is queued."""
        ...

    def busy(self) -> bool:
        """Whether a copy may still be running, after its worker has reported."""
        ...


@define(eq=False)
class Station:
    """One worker: its memory, the executor of its share, and the record of what its copies may touch."""

    memory: WorkerMemory
    executor: Executor
    traffic: Traffic
    ordering: Ordering | None = None
    """None if copies happen in the order of the calls."""


@define(eq=False)
class StepInFlight:
    """An outstanding plan, with what was scheduled in it."""

    plan: Plan
    batch: list[tuple[RequestSequence, int, int]]
    """Each request with its tenure and its tokens."""
    forward: ForwardPass


class _AdmitOutcome(enum.Enum):
    """The outcome of trying to admit a waiting request."""

    IN = "it runs or loads"
    LATER = "a copy must land first; requests behind it need not wait for that"
    NO_ROOM = "it has to wait, and so have all requests behind it"


class ToyEngine:
    """Runs requests to their end. `step` is one engine step; `idle` tells when there is nothing left to do.

    Invariant: a request that is not over is in exactly one of ``_arriving``, ``_waiting``, ``_running`` (oldest first),
    ``_loading`` and ``_ending``; the scheduler knows those in the last three, and those in ``_waiting`` that have keys.
    """

    def __init__(self, ledger: Ledger, offload: OffloadScheduler, stations: Items[Station], options: EngineOptions) -> None:
        self.ledger = ledger
        self.offload = offload
        self.stations = stations
        self.options = options
        self.counts = EngineCounts()
        self._geometry = geometry = options.geometry
        self._states = [group for group, kind in enumerate(geometry.groups) if isinstance(kind, Mamba)]
        # States are kept where steps end: best where a hash ends, since prompts share text by hashes, else a slot or a block.
        ends = (geometry.chunk_alignment, geometry.block_alignment)
        self._ends = list(dict.fromkeys([*(lcm(each, HASH_TOKENS) for each in ends), *ends])) if self._states else []
        self._workload: dict[int, WorkloadRequest] = {}
        self._arriving: deque[RequestSequence] = deque()
        self._waiting: deque[RequestSequence] = deque()
        self._running: list[RequestSequence] = []
        self._loading: dict[str, tuple[RequestSequence, Hit]] = {}
        self._ending: dict[str, RequestSequence] = {}
        """Requests that are over once the plans that contain them have settled."""
        self._preempted: set[str] = set()
        """Requests that the current step has preempted."""
        self._out: deque[StepInFlight] = deque()
        self._broken: set[str] = set()
        self._budget = options.step_tokens
        """Tokens that the current step can still compute."""
        self._now = 0
        self._elapsed_ms = 0.0
        self._rng = np.random.default_rng(options.seed)

    # --- requests in and out -------------------------------------------------------------------------------------------

    def add(self, request: WorkloadRequest) -> None:
        """Queue a request; one that can never fit is skipped and counted, and nothing is built for it."""
        number = self.counts.requests
        self.counts.requests += 1
        if self.options.most_blocks(goal_of(request)) > self.num_blocks:
            self.counts.skipped_requests += 1
            return
        sequence = RequestSequence.of(request, number)
        self._workload[number] = request
        # drawn for the number of the request, so that the same requests are aborted in a shorter workload
        leaves, when = np.random.default_rng([self.options.seed, self.counts.requests]).random(2)
        if leaves < self.options.abort:
            sequence.abort_at = int(when * sequence.goal)
        self._arriving.append(sequence)

    @property
    def num_blocks(self) -> int:
        """The blocks of the device that requests can hold."""
        return len(self.ledger.blocks) - 1

    @property
    def unfinished(self) -> int:
        """Requests that are not over."""
        return sum(map(len, (self._arriving, self._waiting, self._running, self._loading, self._ending)))

    @property
    def idle(self) -> bool:
        """Whether no request is left, and no plan or job is outstanding."""
        return not self.unfinished and not self.offload.has_pending_work()

    def abort_all(self) -> None:
        """Abort every request. Keep calling `step` until their copies have landed."""
        self.counts.aborted_requests += self.unfinished - len(self._ending)
        known = [*self._running, *(sequence for sequence, _ in self._loading.values())]
        known += [sequence for sequence in self._waiting if sequence.keys]
        self._running.clear()
        self._loading.clear()
        self._waiting.clear()
        self._arriving.clear()
        for sequence in known:
            self._give_up(sequence)

    def _give_up(self, sequence: RequestSequence) -> None:
        """Abort a request; if an outstanding plan contains it, it ends with that plan."""
        self.offload.abort(sequence.name)
        if sequence.position > sequence.computed:
            self._ending[sequence.name] = sequence
        else:
            sequence.drop()

    def lose_worker(self, rank: int) -> None:
        """Lose a worker, and its share of all content with it: abort every request. Keep calling `step` as usual."""
        self.abort_all()
        self.offload.lose_worker(rank)
        for sequence in self._ending.values():  # no plan will end them any more
            sequence.drop()
        self._ending.clear()

    # --- one step ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Schedule and plan; then run the workers on the oldest plan that is due, and settle it.

        Requests finish after the reports are applied: a FLUSHED block can be sealed only once its wait is proven, and a
        finishing request's last block must be sealed before it is released. If only outstanding plans are left, no more plans
        are made.
        """
        begin = time.perf_counter()
        self._now += 1
        self.counts.steps += 1
        batch: list[RequestSequence] = []
        plan = None
        if self.unfinished or self.ledger.jobs.live or not self._out:
            self._arrive()
            self._grow()
            self._admit()
            batch = [sequence for sequence in self._running if sequence.scheduled]
            plan = self._plan(batch)
        planned = time.perf_counter()
        self.counts.scheduler_s += planned - begin

        if plan is not None:
            forward = ForwardPass(batch, self.ledger, self._geometry, self.stations[0].memory.words)
            self._out.append(StepInFlight(plan, [(each, each.tenure, each.scheduled) for each in batch], forward))
            for sequence in batch:
                sequence.plan()
        if plan is None or len(self._out) > self.options.plans_ahead:
            self._run(self._out.popleft())

        if self._now % self.options.prove_every == 0:
            self.prove_quiet()
        if self._now % self.options.check_every == 0:
            self.check()

    def _run(self, step: StepInFlight) -> None:
        """Execute a plan on all workers, and settle it."""
        reports = [each.executor.execute(step.plan, partial(self._forward, each, step.forward)) for each in self.stations]
        self._note_clashes()
        settling = time.perf_counter()
        self._settle(step, reports)
        self.counts.scheduler_s += time.perf_counter() - settling

    def _arrive(self) -> None:
        """Queue the requests that have arrived. The workload's clock may jump; deadlines count steps."""
        speed = self.options.ms_per_step
        self._elapsed_ms += speed or 0.0
        if self._arriving and not (self._waiting or self._running or self._loading):
            # nothing to do: the clock jumps to the next arrival
            self._elapsed_ms = max(self._elapsed_ms, self._arriving[0].request.timestamp_ms)
        while self._arriving and (speed is None or self._arriving[0].request.timestamp_ms <= self._elapsed_ms):
            self._waiting.append(self._arriving.popleft())

    def _grow(self) -> None:
        """Schedule the running requests, oldest first; if blocks run out, the youngest is preempted.

        The last running one is not preempted because of its own copies: it pauses until they have landed.
        """
        budget = self.options.step_tokens
        self._preempted.clear()
        tokens: dict[str, int] = {}
        for sequence in self._running:
            sequence.scheduled = self._chunk(sequence.position, min(sequence.expected - sequence.position, budget))
            budget -= sequence.scheduled
            if sequence.scheduled != 1:
                tokens[sequence.name] = sequence.scheduled
        short = self.offload.grow(tokens)
        while short:
            if len(self._running) == 1 and self.ledger.jobs.live:
                self._running[0].scheduled = 0
                break
            victim = self._running.pop()
            budget += victim.scheduled
            self._preempt(victim)
            short = self.offload.grow({name: tokens.get(name, 1) for name in short if name != victim.name})
        self._budget = budget

    def _chunk(self, position: int, tokens: int) -> int:
        """How many of these tokens to compute in this step; with Mamba groups it ends where the state can be kept."""
        if tokens > 1:
            for unit in self._ends:
                if (end := (position + tokens) // unit * unit) > position:
                    return end - position
        return tokens

    def _preempt(self, victim: RequestSequence) -> None:
        self.offload.preempt(victim.name)
        victim.clear()
        self._waiting.appendleft(victim)
        self._preempted.add(victim.name)
        self.counts.preemptions += 1

    def _admit(self) -> None:
        """Admit waiting requests, first come first served, as long as their known tokens fit.

        Those whose lookup is deferred keep their place; up to `LOOK_AHEAD` of them are skipped.
        """
        passed: list[RequestSequence] = []
        while self._waiting and len(self._running) + len(self._loading) < self.options.max_running:
            sequence = self._waiting[0]
            verdict = _AdmitOutcome.NO_ROOM if sequence.name in self._preempted else self._try_admit(sequence)
            if verdict is _AdmitOutcome.NO_ROOM:
                break
            self._waiting.popleft()
            if verdict is _AdmitOutcome.LATER:
                passed.append(sequence)
                if len(passed) == LOOK_AHEAD:
                    break
        self._waiting.extendleft(reversed(passed))

    def _try_admit(self, sequence: RequestSequence) -> _AdmitOutcome:
        """Look a request up, and admit it to load or to run. At least one known token is left to compute: it gives the next."""
        name = sequence.name
        try:
            if not sequence.keys:
                self.offload.add_request(name, sequence.keys_between, prompt_tokens=sequence.known)
                sequence.build(self._geometry)
            hit = self.offload.lookup(name, sequence.known)
            if hit.deferred:
                return _AdmitOutcome.LATER
            if not (self.ledger.jobs.room if hit.host_tokens else self._budget) or self._is_crowded(sequence, hit):
                return _AdmitOutcome.NO_ROOM
            tokens = 0 if hit.host_tokens else self._chunk(hit.tokens, min(sequence.known - hit.tokens, self._budget))
            runs = self.offload.admit(name, hit, tokens)
        except CapacityError:  # the blocks are held by other requests, or by copies that will land: a later step tries again
            return _AdmitOutcome.NO_ROOM
        self.counts.tokens_hit_gpu += hit.device_tokens
        if runs:
            sequence.begin(hit.tokens)
            sequence.scheduled = tokens
            self._budget -= tokens
            self._running.append(sequence)
        else:
            self._loading[name] = (sequence, hit)
        return _AdmitOutcome.IN

    def _is_crowded(self, sequence: RequestSequence, hit: Hit) -> bool:
        """Whether not all known tokens of a request fit, so that another request would soon be preempted for it."""
        if not (self._running or self._loading):
            return False
        refs = self.ledger.blocks.refs
        shared = sum(1 for lives in hit.lives for life in lives if refs(block_of(life)))
        return self.options.most_blocks(sequence.known) - shared > self.ledger.blocks.free

    def _plan(self, batch: list[RequestSequence]) -> Plan:
        """Hand off the states that this step leaves at a boundary, then let the offload scheduler plan."""
        for group in self._states:
            block_tokens = self._geometry.block_tokens[group]
            for sequence in batch:
                end = sequence.position + sequence.scheduled
                if end % block_tokens == 0:
                    self.offload.hand_off(sequence.name, group, end)
        return self.offload.build_plan(self._now)

    def _abort(self, step: StepInFlight) -> None:
        """Abort requests whose clients disconnect while this step runs; the tokens of the step still count."""
        leaving = [sequence for sequence, _ in self._loading.values() if sequence.abort_at is not None]
        leaving += [
            sequence
            for sequence, tenure, tokens in step.batch
            if sequence.abort_at is not None
            and sequence.tenure == tenure
            and sequence.computed + tokens > sequence.abort_at
            and sequence.name not in self._ending
        ]
        if leaving:
            self.counts.aborted_requests += len(leaving)
            names = {sequence.name for sequence in leaving}
            self._running = [sequence for sequence in self._running if sequence.name not in names]
            for sequence in leaving:
                self._loading.pop(sequence.name, None)
                self._give_up(sequence)

    def _settle(self, step: StepInFlight, reports: list[Report]) -> None:
        """Count tokens and apply the reports; then handle ended loads, and finish requests."""
        self._abort(step)
        settled = self.offload.settle(
            step.plan.number,
            self._now,
            launched=[record for report in reports for record in report.launched],
            completions=[record for report in reports for record in report.completions],
        )
        for station in self.stations:
            station.executor.drop(step.plan.flushes)
        over = set()
        for sequence, tenure, tokens in step.batch:
            if sequence.tenure == tenure:
                sequence.settle(tokens)
                self.counts.tokens_computed += tokens
                if sequence.finished and sequence.name not in self._ending:
                    over.add(sequence.name)
                    self.offload.finish(sequence.name)
                    sequence.drop()
        if over:
            self._running = [sequence for sequence in self._running if sequence.name not in over]
        for name in settled.ended:
            self._ending.pop(name).drop()
        self._hear_of_loads(settled.loaded, settled.failed)

    def _hear_of_loads(self, loaded: Items[str], failed: Items[str]) -> None:
        for name in loaded:
            sequence, hit = self._loading.pop(name)
            sequence.begin(hit.tokens)
            self.counts.tokens_hit_host += hit.host_tokens
            self.counts.tokens_hit_below += self._tokens_from_below(hit)
            self._running.append(sequence)
        for name in failed:
            sequence, _ = self._loading.pop(name)
            self.counts.failed_loads += 1
            sequence.clear()
            self._waiting.appendleft(sequence)

    def _tokens_from_below(self, hit: Hit) -> int:
        """How many tokens of a hit the host tier could not have given without promotions."""
        first = hit.tokens
        for kind, tokens, slots in zip(self._geometry.groups, self._geometry.chunk_tokens, hit.slots, strict=True):
            # every worker fills the same slots
            brought = np.flatnonzero(self.stations[0].traffic.promoted(np.array(slots, dtype=np.int64)))
            if len(brought):
                whole = isinstance(kind, FullAttention)  # without its window or state, none of a hit's tokens is one
                first = min(first, hit.tokens - (len(slots) - int(brought[0])) * tokens if whole else 0)
        return hit.tokens - max(first, hit.device_tokens)

    # --- the device ----------------------------------------------------------------------------------------------------

    def _forward(self, station: Station, forward: ForwardPass) -> None:
        """The forward pass on one worker."""
        if station.ordering is None:
            self._compute(station, forward)
            return
        station.ordering.before_forward(np.concatenate((forward.read, forward.tail, forward.written)))
        try:
            self._compute(station, forward)
        finally:
            station.ordering.computed()

    def _compute(self, station: Station, forward: ForwardPass) -> None:
        station.traffic.compute(np.concatenate((forward.read, forward.tail)), forward.written)
        verified, corrupt = check_and_write(forward, station.memory, self.options.verify, self._rng)
        self.counts.verified_blocks += verified
        self.counts.corrupt_blocks += corrupt

    def _note_clashes(self) -> None:
        """Note the clashes that the workers have recorded, at every level of checking: they are errors like a wrong byte."""
        for station in self.stations:
            for clash in station.traffic.take_clashes():
                self._note(clash)

    def _note(self, violation: str) -> None:
        if self.options.checking is Checking.STRICT:
            raise InvariantError(violation)
        self.counts.violations.append(violation)

    def prove_quiet(self, *, below: bool = False) -> None:
        """Make the workers prove that copies past their deadline touch nothing any more, and release their places.

        Copies between slots and the tier below only with *below*: such a proof may wait for a store, and a step must not. Their
        copier gives up what takes too long, and reports it; so they end by themselves.
        """
        jobs = self.ledger.jobs.submitted(on_device=not below)
        quarantined = [job for job in jobs.ids if self.ledger.jobs.state(job) is Job.QUARANTINED]
        if quarantined:
            for station in self.stations:
                station.executor.wait(quarantined)
                station.executor.drop(quarantined)
            self.ledger.quiesce(type(jobs)(tuple(quarantined)))

    def check(self) -> None:
        """Check every invariant of the ledger, unless its checking is OFF. Each violation is noted once; STRICT raises it."""
        if self.options.checking is Checking.OFF:
            return
        for message in map(str, check(self.ledger)):
            if message not in self._broken:
                self._broken.add(message)
                self._note(message)

    def audit(self) -> int:
        """Check the bytes of every READY slot that was written, and return the number of places that were never released."""
        ledger = self.ledger
        ready = np.array(ledger.slots.where(Slot.READY), dtype=np.int64)
        if len(ready):
            keys = [key for slot in ready.tolist() if (key := ledger.slots.key(slot)) is not None]
            expected = self._expected(keys)
            places = ready[:, None] * expected.shape[1] + np.arange(expected.shape[1])
            for station in self.stations:
                written = station.traffic.written(ready)
                self.counts.verified_slots += int(np.count_nonzero(written))
                # a chunk may have holes, but its last block is always there
                self.counts.corrupt_blocks += int(np.count_nonzero(~written[:, -1]))
                self.counts.corrupt_blocks += len(station.memory.corrupt_places(places[written], expected[written]))
        return ledger.blocks.count_busy() + ledger.slots.count_busy()

    def _expected(self, keys: list[bytes]) -> Words:
        """The content of each block of the chunks with these keys, ``(len(keys), blocks_per_chunk)``."""
        return expected_content(keys, self._workload, self._geometry)

    def close(self) -> None:
        """End the copiers."""
        for station in self.stations:
            station.executor.close()
