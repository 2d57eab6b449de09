"""The reference engine: continuous batching over a paged KV cache with host offload, one step at a time.

It is a small engine with real memory and no model: the forward pass reads and checks every block that the step's tokens would
attend to, and writes what the new tokens would leave. What a serving engine must call, and in which order, can be read off
`Engine.step`; `specs/engine-contract.md` tells the same story in words.

The clock counts steps. Everything is a function of the workload and the options: the copiers have threads of their own, but
what they may move, and when a landing is seen, depends on the steps alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as Items

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from blocklife.copiers.executor import Executor, Report
from blocklife.engines.toy.memory import Memory
from blocklife.engines.toy.sequences import GROUP, Sequence, fingerprints, unpacked
from blocklife.engines.toy.traffic import Traffic
from blocklife.engines.toy.workload import WorkloadRequest
from blocklife.errors import CapacityError, InvariantError
from blocklife.ledger import Checking, Ledger, Plan, Seal
from blocklife.ledger.invariants import check
from blocklife.ledger.places import ID_MASK
from blocklife.offload import OffloadScheduler
from blocklife.states import Block, BlockLife, Job, Request, Slot, SlotLife


@frozen(kw_only=True)
class EngineOptions:
    """How the engine schedules; counts per step, and shares from 0 to 1."""

    block_tokens: int
    step_tokens: int
    """Tokens that one step computes at most."""
    max_running: int
    verify: float
    """The share of blocks read in a step that are checked."""
    check_every: int
    """Steps between two checks of all invariants."""
    prove_every: int
    """Steps between two proofs that quarantined copies are quiet (a real engine would synchronise its device)."""
    ms_per_step: float | None
    """Milliseconds of the workload that pass in a step; None: every request has arrived."""
    abort: float
    """The share of requests whose client goes away before the end."""
    seed: int


@define
class Counts:
    """What the engine has counted."""

    requests: int = 0
    skipped_requests: int = 0
    aborted_requests: int = 0
    steps: int = 0
    tokens_computed: int = 0
    tokens_hit_gpu: int = 0
    tokens_hit_host: int = 0
    preemptions: int = 0
    failed_loads: int = 0
    verified_blocks: int = 0
    corrupt_blocks: int = 0
    verified_slots: int = 0
    violations: list[str] = field(factory=list)
    scheduler_s: float = 0.0


@define(eq=False)
class Station:
    """One worker: its memory, the executor of its share, and the record of what its copies may touch."""

    memory: Memory
    executor: Executor
    traffic: Traffic


class Engine:
    """Runs requests to their end. `step` is one engine step; `idle` says when there is nothing left to do."""

    def __init__(self, ledger: Ledger, offload: OffloadScheduler, stations: Items[Station], options: EngineOptions) -> None:
        self.ledger = ledger
        self.offload = offload
        self.stations = stations
        self.options = options
        self.counts = Counts()
        self._arriving: deque[Sequence] = deque()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._loading: dict[str, Sequence] = {}
        self._preempted: list[str] = []
        self._broken: set[str] = set()
        self._budget = options.step_tokens
        """Tokens that the step being made can still compute."""
        self._now = 0
        self._elapsed_ms = 0.0
        self._rng = np.random.default_rng(options.seed)

    # --- requests in and out -------------------------------------------------------------------------------------------

    def add(self, request: WorkloadRequest) -> None:
        """Queue a request; one that can never fit is skipped and counted, and nothing is built for it."""
        number, block_tokens = self.counts.requests, self.options.block_tokens
        self.counts.requests += 1
        if -(-(request.input_length + request.output_length - 1) // block_tokens) > len(self.ledger.blocks) - 1:
            self.counts.skipped_requests += 1
            return
        sequence = Sequence.of(request, number, block_tokens)
        # drawn from the request's own name, so that a shorter workload meets the same fate
        leaves, when = np.random.default_rng([self.options.seed, self.counts.requests]).random(2)
        if leaves < self.options.abort:
            sequence.abort_at = int(when * sequence.goal)
        self._arriving.append(sequence)

    @property
    def unfinished(self) -> int:
        """Requests that are not over."""
        return len(self._arriving) + len(self._waiting) + len(self._running) + len(self._loading)

    @property
    def idle(self) -> bool:
        """Whether no request is left and no job is out."""
        return not self.unfinished and not self.offload.has_pending_work()

    def abort_all(self) -> None:
        """Give every request up; ticking goes on until their copies have landed."""
        self.counts.aborted_requests += self.unfinished
        for name in list(self.ledger.requests):
            self.ledger.finish(name)
        self._running.clear()
        self._loading.clear()
        self._waiting.clear()
        self._arriving.clear()
        self.offload.forget_wishes()

    # --- one step ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Schedule, plan, run the workers, settle.

        Requests finish after the reports, not before them: a block that stands FLUSHED can be sealed only once its wait is
        proven, and a finishing request's last block must be sealed before it is released.
        """
        begin = time.perf_counter()
        self._now += 1
        self.counts.steps += 1
        self._arrive()
        self._grow()
        self._admit()
        batch = [sequence for sequence in self._running if sequence.scheduled]
        plan = self._plan(batch)
        planned = time.perf_counter()

        pass_ = _ForwardPass(batch, self.options.block_tokens)
        reports = [station.executor.execute(plan, self._forward(station, pass_)) for station in self.stations]

        self._note_clashes()
        settling = time.perf_counter()
        self._settle(plan, reports, batch)
        self.counts.scheduler_s += planned - begin + time.perf_counter() - settling

        if self._now % self.options.prove_every == 0:
            self.prove_quiet()
        if self._now % self.options.check_every == 0:
            self.check()

    def _arrive(self) -> None:
        """Let in who has arrived. The workload has a clock of its own: deadlines count steps, however far it jumps."""
        speed = self.options.ms_per_step
        self._elapsed_ms += speed or 0.0
        if self._arriving and not (self._waiting or self._running or self._loading):
            # nobody is here: the clock jumps to the next arrival
            self._elapsed_ms = max(self._elapsed_ms, self._arriving[0].arrival_ms)
        while self._arriving and (speed is None or self._arriving[0].arrival_ms <= self._elapsed_ms):
            self._waiting.append(self._arriving.popleft())

    def _grow(self) -> None:
        """Schedule the running requests, oldest first; where blocks run out the youngest is preempted."""
        budget = self.options.step_tokens
        position = 0
        while position < len(self._running):
            sequence = self._running[position]
            tokens = min(sequence.known - sequence.computed, budget)
            sequence.scheduled = 0
            if tokens and self._find_room(sequence, tokens):
                sequence.scheduled = tokens
                budget -= tokens
            position += 1  # a preempted request was behind this one, or was this one and the last
        self._budget = budget

    def _find_room(self, sequence: Sequence, tokens: int) -> bool:
        """Give the request the blocks for its next tokens; False if it was itself preempted for lack of them."""
        missing = -(-(sequence.computed + tokens) // self.options.block_tokens) - sequence.num_blocks
        while missing > 0:
            try:
                held = self.ledger.allocate(sequence.name, missing)
            except CapacityError:
                victim = self._running.pop()
                self._preempt(victim)
                if victim is sequence:
                    return False
            else:
                sequence.place(list(held.lives), ID_MASK)
                return True
        return True

    def _preempt(self, victim: Sequence) -> None:
        self.ledger.preempt(victim.name)
        victim.clear()
        self._waiting.appendleft(victim)
        self._preempted.append(victim.name)
        self.counts.preemptions += 1

    def _admit(self) -> None:
        """Let waiting requests in, first come first served, as long as their known tokens fit."""
        while self._waiting and len(self._running) + len(self._loading) < self.options.max_running:
            sequence = self._waiting[0]
            if sequence.name in self._preempted or not self._try_admit(sequence):
                return
            self._waiting.popleft()

    def _try_admit(self, sequence: Sequence) -> bool:
        """Look up, allocate, and either load or run. At least one known token is left to compute: it makes the next one."""
        block_tokens = self.options.block_tokens
        keys = sequence.keys[: (sequence.known - 1) // block_tokens]
        hits = self.ledger.find_blocks(keys)
        slots = self.offload.lookup(keys[len(hits) :]) if self.ledger.jobs.room else []
        cold = sum(1 for life in hits if self.ledger.blocks.refs[life & ID_MASK] == 0)
        needed = -(-sequence.known // block_tokens) - len(hits)
        alone = not (self._running or self._loading)
        if needed + cold > self.ledger.free and not alone:
            return False
        if not slots and not self._budget:
            return False
        if sequence.name not in self.ledger.requests:
            try:
                self.ledger.add_request(sequence.name)
            except CapacityError:
                return False
        ledger = self.ledger
        if hits:
            ledger.acquire(sequence.name, hits)
            sequence.place(hits, ID_MASK)
            sequence.sealed = sequence.wished = len(hits)
            sequence.computed = len(hits) * block_tokens
        try:
            if slots:
                self._load(sequence, slots)
            else:
                tokens = min(sequence.known - sequence.computed, self._budget)
                missing = -(-(sequence.computed + tokens) // block_tokens) - sequence.num_blocks
                sequence.place(list(ledger.allocate(sequence.name, missing).lives), ID_MASK)
                sequence.scheduled = tokens
                self._budget -= tokens
                ledger.admit(sequence.name)
                self._running.append(sequence)
        except CapacityError:  # alone, and what is free is held by copies: they land, and the next step tries again
            ledger.finish(sequence.name)
            sequence.clear()
            return False
        self.counts.tokens_hit_gpu += len(hits) * block_tokens
        return True

    def _load(self, sequence: Sequence, slots: list[int]) -> None:
        held = self.ledger.allocate(sequence.name, len(slots))
        sequence.place(list(held.lives), ID_MASK)
        self.offload.load(sequence.name, held, slots)
        sequence.loads = len(slots)
        self._loading[sequence.name] = sequence

    def _plan(self, batch: list[Sequence]) -> Plan:
        """Ask for the store of every block that this step fills, then let the offload scheduler plan."""
        for sequence in batch:
            full = (sequence.computed + sequence.scheduled) // self.options.block_tokens
            if full > sequence.wished:
                chosen = slice(sequence.wished, full)
                self.offload.store(sequence.name, sequence.lives[chosen], sequence.keys[chosen])
                sequence.wished = full
        plan = self.offload.build_plan(self._now, preempted=self._preempted, last=self.unfinished == 0)
        self._preempted.clear()
        return plan

    def _abort(self, batch: list[Sequence]) -> None:
        """Clients go away while the step runs: what was planned for them is given up before anything of it counts."""
        leaving = [sequence for sequence in self._loading.values() if sequence.abort_at is not None]
        leaving += [each for each in batch if each.abort_at is not None and each.computed + each.scheduled > each.abort_at]
        for sequence in leaving:
            self.ledger.finish(sequence.name)
            self.counts.aborted_requests += 1
            self._loading.pop(sequence.name, None)
        if leaving:
            batch[:] = [sequence for sequence in batch if sequence not in leaving]
            self._running = [sequence for sequence in self._running if sequence not in leaving]

    def _settle(self, plan: Plan, reports: list[Report], batch: list[Sequence]) -> None:
        """Tokens count, full blocks are sealed, reports are applied; then requests hear of their loads, and some are over."""
        self._abort(batch)
        lives: list[int] = []
        keys: list[bytes] = []
        for sequence in batch:
            sequence.computed += sequence.scheduled
            self.counts.tokens_computed += sequence.scheduled
            full = sequence.computed // self.options.block_tokens
            if full > sequence.sealed:
                lives += sequence.lives[sequence.sealed : full]
                keys += sequence.keys[sequence.sealed : full]
                sequence.sealed = full
            if sequence.computed == sequence.known and not sequence.finished:
                sequence.known += 1
        self.ledger.settle(
            plan.number,
            self._now,
            launched=[record for report in reports for record in report.launched],
            completions=[record for report in reports for record in report.completions],
            seals=[Seal(GROUP, lives, keys)] if lives else [],
        )
        for station in self.stations:
            station.executor.forget(plan.flushes)
        self._hear_of_loads()
        for sequence in [sequence for sequence in batch if sequence.finished]:
            self.ledger.finish(sequence.name)
        self._running = [sequence for sequence in self._running if not sequence.finished]

    def _hear_of_loads(self) -> None:
        for name, sequence in list(self._loading.items()):
            state = self.ledger.request_state(name)
            if state is Request.RUNNING:
                tokens = sequence.loads * self.options.block_tokens
                sequence.computed += tokens
                sequence.sealed = sequence.wished = sequence.num_blocks
                sequence.loads = 0
                self.counts.tokens_hit_host += tokens
                self._running.append(sequence)
            elif state is Request.WAITING:
                self.counts.failed_loads += 1
                sequence.clear()
                self._waiting.appendleft(sequence)
            else:
                continue
            del self._loading[name]

    # --- the device ----------------------------------------------------------------------------------------------------

    def _forward(self, station: Station, pass_: _ForwardPass) -> _Forward:
        return _Forward(station, pass_, self.counts, self.options.verify, self._rng)

    def _note_clashes(self) -> None:
        """What the workers themselves saw go wrong counts at every level of checking: it is a fact like a wrong byte."""
        for station in self.stations:
            for clash in station.traffic.take_clashes():
                self._note(clash)

    def _note(self, violation: str) -> None:
        if self.ledger.checking is Checking.STRICT:
            raise InvariantError(violation)
        self.counts.violations.append(violation)

    def prove_quiet(self) -> None:
        """Make the workers prove that copies past their deadline touch nothing any more, and give their places back."""
        jobs = self.ledger.submitted()
        doubtful = [job for job in jobs.ids if self.ledger.job_state(job) is Job.QUARANTINED]
        if doubtful:
            for station in self.stations:
                station.executor.wait(doubtful)
                station.executor.forget(doubtful)
            self.ledger.quiesce(type(jobs)(tuple(doubtful)))

    def check(self) -> None:
        """Check every invariant of the ledger, as its level of checking says. What stays broken is noted once."""
        if self.ledger.checking is Checking.OFF:
            return
        for message in map(str, check(self.ledger)):
            if message not in self._broken:
                self._broken.add(message)
                self._note(message)

    def audit(self) -> int:
        """At the end: check every READY slot's bytes, and count the places that never came back."""
        ledger = self.ledger
        ready = ledger.slots.column.where(Slot.READY)
        keys = [key for key in (ledger.slots.key[slot] for slot in ready.tolist()) if key is not None]
        if keys:
            expected = fingerprints(unpacked(keys))
            for station in self.stations:
                self.counts.verified_slots += len(ready)
                self.counts.corrupt_blocks += len(station.memory.corrupt_slots(ready, expected))
        blocks, slots = ledger.blocks, ledger.slots
        index = BlockLife.table.index
        at_home = (blocks.column.view == index[Block.FREED]) | (blocks.column.view == index[Block.CACHED])
        leaked = int(np.count_nonzero(~at_home | (blocks.refs_view > 0) | (blocks.pins_view > 0)))
        empty = slots.column.view == SlotLife.table.index[Slot.EMPTY]
        is_ready = slots.column.view == SlotLife.table.index[Slot.READY]
        return leaked + int(np.count_nonzero(~(empty | is_ready) | (slots.pins_view > 0)))

    def close(self) -> None:
        """End the copiers."""
        for station in self.stations:
            station.executor.close()


class _ForwardPass:
    """What a step reads and writes, gathered once for all workers.

    ``read`` are whole blocks with their fingerprints; ``tail`` the last, partly written block of each request. ``written`` are
    the blocks that the new tokens go to, each with the tokens from ``start`` to ``stop``.
    """

    def __init__(self, batch: list[Sequence], block_tokens: int) -> None:
        self.block_tokens = block_tokens
        ids: list[NDArray[np.int64]] = []
        prints: list[NDArray[np.uint64]] = []
        tails: list[tuple[int, np.uint64, int]] = []
        written: list[NDArray[np.int64]] = []
        written_prints: list[NDArray[np.uint64]] = []
        starts: list[int] = []
        stops: list[int] = []
        for sequence in batch:
            full, rest = divmod(sequence.computed, block_tokens)
            ids.append(sequence.ids[:full])
            prints.append(sequence.fingerprint[:full])
            if rest:
                tails.append((int(sequence.ids[full]), sequence.fingerprint[full], rest))
            end = sequence.computed + sequence.scheduled
            last = -(-end // block_tokens)
            written.append(sequence.ids[full:last])
            written_prints.append(sequence.fingerprint[full:last])
            starts += [rest] + [0] * (last - full - 1)
            stops += [block_tokens] * (last - full - 1) + [end - (last - 1) * block_tokens]
        none, no_print = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint64)
        self.read = np.concatenate(ids) if ids else none
        self.read_prints = np.concatenate(prints) if prints else no_print
        self.tail = np.array([tail[0] for tail in tails], dtype=np.int64)
        self.tail_prints = np.array([tail[1] for tail in tails], dtype=np.uint64)
        self.tail_tokens = np.array([tail[2] for tail in tails], dtype=np.int64)
        self.written = np.concatenate(written) if written else none
        self.written_prints = np.concatenate(written_prints) if written_prints else no_print
        self.starts = np.array(starts, dtype=np.int64)
        self.stops = np.array(stops, dtype=np.int64)


@frozen(eq=False)
class _Forward:
    """The forward pass on one worker: check what is read, then write."""

    station: Station
    step: _ForwardPass
    counts: Counts
    verify: float
    rng: np.random.Generator

    def __call__(self) -> None:
        step, memory = self.step, self.station.memory
        self.station.traffic.compute(np.concatenate((step.read, step.tail)), step.written)
        words, tokens = memory.words, step.block_tokens
        ids, prints = step.read, step.read_prints
        if self.verify < 1.0:
            chosen = self.rng.random(len(ids)) < self.verify
            ids, prints = ids[chosen], prints[chosen]
        if len(ids):
            self.counts.corrupt_blocks += len(memory.corrupt(ids, prints))
        if len(step.tail) and self.verify > 0:
            written = step.tail_tokens * words // tokens
            self.counts.corrupt_blocks += len(memory.corrupt_parts(step.tail, step.tail_prints, written))
            self.counts.verified_blocks += int(np.count_nonzero(written))
        self.counts.verified_blocks += len(ids)
        if len(step.written):
            memory.write(step.written, step.written_prints, step.starts * words // tokens, step.stops * words // tokens)
