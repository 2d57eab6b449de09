"""The scheduler side: reports vLLM's decisions to the offload scheduler, and builds the plan for the workers.

Rules of this file:

* vLLM decides first and reports afterwards. What vLLM has done is never refused; what cannot be right raises and stops the run.
* What happens within one `schedule()` call is noted by `ScheduledStep`; `build_step` has it reported, and plans the step.

Plans. Every call of `build_step` makes one, even if nothing is scheduled; its number travels to the workers and back, so that
with asynchronous scheduling each output settles its own plan. Stores of finished requests go into a separate plan, which the
first hook of the next step builds and which is sent ahead of that step's plan: so the workers have these stores before the step
hands out any of their blocks, and the hand-out waits for them as for any other store.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from zlib import crc32

import numpy as np
from attrs import evolve

from blocklife.connector_states import STOPPED, WRONG
from blocklife.engines._store import AskedStore
from blocklife.engines.vllm.connector._config import Caps, ConnectorConfig
from blocklife.engines.vllm.connector._described import Describer, ReadExtraKeys
from blocklife.engines.vllm.connector._doubts import Doubts, Unproven
from blocklife.engines.vllm.connector._known import NO_CAPS, KnownRequests
from blocklife.engines.vllm.connector._lookups import HostLookups
from blocklife.engines.vllm.connector._messages import StepPlan, WorkerReport, moved_together
from blocklife.engines.vllm.connector._shapes import BlockTables, CacheShape, Evict, PeekFree, SchedulerOutput, VllmRequest
from blocklife.engines.vllm.connector._sources import HitTokens
from blocklife.engines.vllm.connector._step import ScheduledStep
from blocklife.engines.vllm.connector._store import logger
from blocklife.ledger import Contract, JobId, Ledger, Limits, Plan
from blocklife.ledger._limits import MAX_JOBS, MAX_REQUESTS
from blocklife.offload import HostTier, Mode, OffloadScheduler, TierEvent

_FOREVER = 1e18
"""No deadline: a load cannot be given up while its copy runs, because vLLM would hand out its blocks at once."""
_JOURNAL = 4096
"""Size of the journal, in steps; a longer one slows Python's garbage collector down."""
_MAX_EVENTS = 1 << 20
SPARE_REQUESTS = 1024
"""Room for requests besides the running ones: those that wait and were looked up, and those that load."""


class ConnectorScheduler:
    """The scheduler side of one engine. All calls come from the scheduler's thread."""

    def __init__(self, shape: CacheShape, config: ConnectorConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.shape = shape
        self.config = config
        self._clock = clock
        self.below = None if shape.below is None else AskedStore(shape.below, logger)
        """The store below host memory, if there is one."""
        most_looked_up = min(MAX_REQUESTS, shape.max_running + SPARE_REQUESTS)
        self.ledger = Ledger(
            _limits(shape, config, most_looked_up),
            contract=Contract.FENCE,
            checking=config.checking,
            incarnation=shape.incarnation,
            deadline=_FOREVER,
            own_pool=False,
            indexed=False,
        )
        # the host tier keeps events only if vLLM collects them
        self.tier = HostTier(self.ledger, config.policy, max_events=_MAX_EVENTS if shape.events else 0)
        # each batch can have its own plan and, before it, one with the stores of finished requests
        policies = evolve(
            config.policies,
            plans_ahead=2 * shape.max_batches + 1,
            load_within_tokens=shape.load_within_tokens,
            state_drafts=shape.state_drafts,
        )
        if shape.lands_in_step:  # clocks differ, and nothing is on its way for longer than a step
            policies = evolve(policies, pending_wait=inf)
        self.offload = OffloadScheduler(
            self.ledger,
            self.tier,
            shape.geometry,
            policies,
            below=None if self.below is None else self.below.presence,
            below_policies=None if shape.below is None else shape.below.policies,
        )
        self.known = known = KnownRequests(shape, config, self.offload, most_looked_up)
        self.pool, self.requests, self.beside = known.pool, known.requests, known.beside
        self._doubts = Doubts(shape.geometry.block_tokens[0] // shape.hashes_per_block[0], shape.num_workers)
        self.lookups = HostLookups(known, self._doubts, lambda: self._clock())
        self._step = ScheduledStep(known, self._doubts)
        self._early: list[Plan] = []
        """Plans to be sent ahead of the plan of the current step."""
        self._begun = False  # whether a hook of the current step has been called
        self._built = False  # whether a step was built since the last worker report
        self._introduction = b"" if shape.below is None else shape.below.identity.fingerprint
        self._may_sleep = False  # the host tier is forgotten with the next step, unless the workers wake up before it
        self._num_sleeps = 0  # that the workers have told of
        self._peek_free: PeekFree | None = None
        self._evict: Evict | None = None

    def bind_pool(self, peek_free: PeekFree, evict: Evict) -> None:
        """Take the engine's allocator; lazy stores look at the blocks that it hands out next."""
        self._peek_free, self._evict = peek_free, evict

    def describe_events(self, extra_keys: ReadExtraKeys) -> None:
        """From now on, keep what events say of their content."""
        self.known.describer = Describer(self.shape, extra_keys)

    # --- within schedule() --------------------------------------------------------------------------------------------------

    def add(self, request: VllmRequest, caps: Caps = NO_CAPS) -> None:
        """A new request of the engine. It is added to the ledger at its first lookup."""
        self.requests.add(request, caps, as_session=self.shape.names_sessions)

    def look_up(self, request: VllmRequest, device_tokens: int) -> int | None:
        """The number of tokens that a load would bring after those on the device; None: ask again later.

        See `loads_within` for when it would bring them.
        """
        self._begin()
        return self.lookups.look_up(request, device_tokens)

    def loads_within(self, request: VllmRequest) -> bool:
        """Whether what `look_up` has promised to a request in this step is loaded before the forward pass of this step."""
        return self.lookups.loads_within(request)

    def allocated(self, request: VllmRequest, tables: BlockTables, external_tokens: int) -> None:
        """The engine has allocated blocks to a request that it admits or loads, or whose load is over."""
        self._begin()
        self._step.allocated(request, tables, external_tokens)

    def build_step(self, output: SchedulerOutput) -> StepPlan:
        """Build the plan of this step."""
        self._begin()
        if self.below is not None:
            self.below.look()
        self._begun, self._built = False, True
        self.lookups.promised = 0
        loads = self._step.report(output)
        if self._peek_free is not None and self.config.policies.mode is Mode.LAZY:
            self.offload.about_to_go(list(self._peek_free(self.config.policies.lazy_blocks)))
        plan = self.offload.build_plan(self._clock())
        early, self._early = self._early, []
        # in the first step: for which content the store below is asked; workers check that they name it alike
        introduction, self._introduction = self._introduction, b""
        owners = self._owners(plan) if loads or self._doubts.open else {}
        return StepPlan((*early, plan), owners, introduction, loads_beside(plan, output))

    def _owners(self, plan: Plan) -> dict[JobId, str]:
        """The vLLM request of each load that vLLM waits for; a load within the step is over before anybody is told."""
        found: dict[JobId, str] = {}
        within = plan.within
        for transfer in plan.loads:
            job = self.ledger.jobs.get(transfer.job.number)
            if job is None or job.owner is None:
                continue
            request = self.requests.by_name[job.owner].request
            if transfer.job in within:
                self._doubts.submitted(request, transfer.job, plan.number)
            else:
                found[transfer.job] = request.request_id
        return found

    # --- between two steps --------------------------------------------------------------------------------------------------

    def settle(self, report: WorkerReport) -> None:
        """Apply a report: every worker has executed its plan. Outputs come in the order of their steps."""
        if not self._built:
            self.known.hear_of_preemptions()
        self._built = False
        if report.stored.sizes:
            self.lookups.counts.stored += report.stored
        if report.loaded.sizes:
            self.lookups.counts.loaded += report.loaded
        if report.damaged:
            self.lookups.counts.damaged += report.damaged
        if report.below is not None:
            self.lookups.counts.below = moved_together(self.lookups.counts.below, report.below)
        launched, completions = report.launched, report.completions
        void = self._doubts.land(report.number, completions) if self._doubts.open else ()
        for number in [each for each in self.offload.plans_out if each <= report.number]:
            # all reports go with the first plan: it may be the one that waited for these jobs
            settled = self.pool.settle_known(number, self._clock(), launched=launched, completions=completions)
            launched, completions = (), ()
            for name in settled.loaded:
                tracked = self.requests.by_name[name]
                self.requests.land(tracked, computes=tracked.request.status.name != "WAITING_FOR_REMOTE_KVS")
            self.lookups.counts.failed_loads += len(settled.failed)
            for name in settled.failed:
                self.requests.lose(self.requests.by_name[name])
            for name in settled.ended:
                self.requests.release(name)
        for tracked in self.requests.sessions.values():
            if tracked.session.state not in STOPPED and self.known.stops(tracked):
                self.known.go_on(tracked)
                # a later step that is out computes the token that is taken back, and a state cannot go back
                # and with guesses vLLM goes on from the first state of the last step, however many of them were right
                stale = bool(tracked.request.num_stale_output_tokens or self.shape.state_drafts)
                tracked.session.stop(self._step.has_states and stale)
                if tracked.session.state in WRONG:
                    self.pool.keep_unnamed(tracked.name)
        for doubt in void:
            self._release_void(doubt)

    def _release_void(self, doubt: Unproven) -> None:
        """Undo what followed a failed load within a step: its blocks lose their keys, and its request must not answer."""
        if self._evict is not None:
            self._evict(doubt.blocks)
        tracked = self.requests.by_id.get(doubt.owner.request_id)
        if tracked is not None and tracked.request is doubt.owner:
            raise RuntimeError(
                f"request {doubt.owner.request_id}: a load failed that its step was to read, and vLLM did not end the request; "
                "the engine stops before it answers with what was computed from it (leave sync_load_budget_bytes out, so that "
                "a failed load costs no more than its request; or is kv_load_failure_policy 'recompute' at the top of a "
                "MultiConnector, where this connector does not see it?)"
            )

    def finish(self, request: VllmRequest, aborted: bool) -> None:
        """A request is over. The engine gets its blocks back at once; a hand-out waits for copies that still read them."""
        tracked = self.requests.leave(request.request_id)
        self.known.admissions.pop(request.request_id, None)
        if tracked is None:
            return
        self.lookups.resolve(tracked)
        if self.known.describer is not None:
            self.known.describer.leave(request)
        if tracked.name not in self.offload.requests:
            return
        self.beside.left(request.request_id, tracked.name)
        if aborted:
            self.offload.abort(tracked.name)
        else:
            self.offload.finish(tracked.name)
        if tracked.name not in self.offload.requests:
            self.requests.release(tracked.name)

    @property
    def is_serving(self) -> bool:
        """Whether vLLM has requests to compute. A session that waits for the next part of its text does not count."""
        return len(self.requests.by_id) > sum([each.session.state in STOPPED for each in self.requests.sessions.values()])

    def has_pending_work(self) -> bool:
        """Whether the engine must keep stepping without requests: a copy is outstanding or will be planned."""
        return bool(self.ledger.jobs.live) or self.offload.demotes_later

    def close(self) -> None:
        """The engine ends: close the store below. A second call does nothing."""
        if self.below is not None:
            self.below.close()

    def reset(self) -> None:
        """Forget the host tier. Content of requests that vLLM preempted for this is no longer stored.

        If sleep is to keep the host tier: with the next step. vLLM resets before it sleeps, and nothing runs then.
        """
        self.known.hear_of_preemptions()
        self._may_sleep = self.config.sleep_keeps_host and not self._may_sleep and not self.offload.requests.num_running
        if not self._may_sleep:
            self.pool.reset_host()

    def wake(self, num_sleeps: int) -> None:
        """The device's memory was given up so often, and is back, empty. No step was made meanwhile; no request has blocks."""
        if num_sleeps <= self._num_sleeps:
            return
        if self._may_sleep and self.shape.events:
            self.tier.notify_again()  # vLLM's reset has told that everything is gone
        self._num_sleeps, self._may_sleep = num_sleeps, False
        for name in self.pool.reset_device():
            self.requests.release(name)

    def hit_sources(self, request: VllmRequest, tokens: int) -> HitTokens | None:
        """Where the first *tokens* of the load come from that was promised to a request in this step; None without one."""
        return self.lookups.hit_sources(request, tokens)

    def take_events(self) -> list[TierEvent]:
        """Content that became readable in the host tier or below it, or is gone from there, since the last call."""
        return self.tier.take_events() if self.shape.events else []

    # --- the beginning of a step --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start a step, in its first hook: stores planned between steps go to the workers before any block is handed out."""
        if not self._begun:
            self._begun = True
            if self._may_sleep:
                self._may_sleep = False
                self.pool.reset_host()
            self.offload.set_time(self._clock())
            if self.beside.over or self.beside.others.guests:
                self.beside.begin()
            if self.pool.is_late:
                self.pool.catch_up()
            if self.ledger.jobs.num_planned:
                self._early.append(self.offload.build_plan(self._clock()))


def _limits(shape: CacheShape, config: ConnectorConfig, most_looked_up: int) -> Limits:
    """The sizes of the ledger."""
    jobs_below = 0 if shape.below is None else 2 * shape.below.policies.max_jobs
    return Limits(
        num_blocks=shape.num_blocks,
        num_slots=shape.num_slots,
        max_jobs=min(MAX_JOBS, config.max_jobs + jobs_below),
        # never looked up: running, preempted in this step, over and waiting for a plan; or holding a copy's target
        max_requests=min(MAX_REQUESTS, most_looked_up + (shape.max_batches + 3) * shape.max_running + 1),
        num_groups=len(shape.geometry.groups),
        num_workers=shape.num_workers,
        max_plans=2 * shape.max_batches + 2,
        max_journal=_JOURNAL,
    )


def incarnation_of(engine_id: str) -> int:
    """The incarnation of this engine, from the id that vLLM gives to each start."""
    return crc32(engine_id.encode()) or 1


def loads_beside(plan: Plan, output: SchedulerOutput) -> bool:
    """Whether the step does nothing to a block that is loaded ahead of its forward pass, which itself touches none of them."""
    first = [*(output.new_block_ids_to_zero or ()), *[copy.dst_block_id for copy in output.kv_cache_block_copies or ()]]
    return not first or not any(np.isin(transfer.target, first).any() for transfer in plan.loads)
