"""The scheduler side: reports vLLM's decisions to the offload scheduler, and builds the plan for the workers.

Rules of this file:

* vLLM decides first and reports afterwards. What vLLM has done is never refused; what cannot be right raises and stops the run.
* A step costs what changed in it: of the running requests, only those are looked at that got blocks, or that are scheduled for
  another number of tokens than one.
* Between the hooks of one `schedule()` call, events are only noted. `build_step` reports them to the ledger in a legal order,
  because vLLM may move blocks from one request to another within a step and reports this in no particular order.

The order in `build_step`: preemptions; blocks that left the windows; then the new blocks of all requests, running or admitted,
and the content they fill, each in one call of the ledger; then states of Mamba groups. If an admitted request hits content that
others fill in the same step, those others are reported before it, which is the order in which vLLM scheduled them.

Plans. Every call of `build_step` makes one, even if nothing is scheduled; its number travels to the workers and back, so that
with asynchronous scheduling each output settles its own plan. Stores of finished requests go into a separate plan, which the
first hook of the next step builds and which is sent ahead of that step's plan: so the workers have these stores before the step
hands out any of their blocks, and the hand-out waits for them as for any other store.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from zlib import crc32

from attrs import define, evolve, field

from blocklife.connector_states import STOPPED, WRONG, Arrival, SessionState
from blocklife.engines.vllm.connector._beside import Beside
from blocklife.engines.vllm.connector._config import Caps, ConnectorConfig
from blocklife.engines.vllm.connector._described import Describer, ReadExtraKeys
from blocklife.engines.vllm.connector._doubts import Doubts, Unproven
from blocklife.engines.vllm.connector._messages import Moved, MovedBelow, StepPlan, WorkerReport, moved_together
from blocklife.engines.vllm.connector._requests import ConnectorRequest, ConnectorRequests
from blocklife.engines.vllm.connector._shapes import BlockTables, CacheShape, Evict, PeekFree, SchedulerOutput, VllmRequest
from blocklife.engines.vllm.connector._sources import HitTokens, sources
from blocklife.engines.vllm.connector._store import AskedStore
from blocklife.errors import MisuseError
from blocklife.ledger import Contract, JobId, Ledger, Limits, Plan
from blocklife.ledger._ids import NULL
from blocklife.ledger._limits import MAX_JOBS, MAX_REQUESTS
from blocklife.offload import EnginePool, Hit, HostEvent, HostTier, Mamba, Mode, OffloadScheduler

_FOREVER = 1e18
"""No deadline: a load cannot be given up while its copy runs, because vLLM would hand out its blocks at once."""
_JOURNAL = 4096
"""Size of the journal, in steps; a longer one slows Python's garbage collector down."""
_MAX_EVENTS = 1 << 20
_NO_CAPS = Caps()
_STOPPED = frozenset({"WAITING", "WAITING_FOR_STREAMING_REQ"})
"""Statuses of vLLM in which a request that has blocks is a session that waits to go on."""
SPARE_REQUESTS = 1024
"""Room for requests besides the running ones: those that wait and were looked up, and those that load."""


@define(eq=False)
class Admission:
    """A request that vLLM has allocated blocks to in this step."""

    tracked: ConnectorRequest
    tables: tuple[list[int], ...]
    external_tokens: int
    """Tokens that a load of ours brings."""
    in_doubt: bool = False
    """Whether it reads what another connector brings in the same step, or has brought in one that has not reported."""


@define
class ConnectorCounts:
    """Counters since they were last read."""

    stored: Moved = field(factory=Moved)
    loaded: Moved = field(factory=Moved)
    below: MovedBelow | None = None
    failed_loads: int = 0
    lookups: int = 0
    deferred: int = 0
    sync_delays: list[float] = field(factory=list)
    """Seconds that each lookup of the host tier took."""
    async_delays: list[float] = field(factory=list)
    """Seconds from a request's first deferred lookup to the one that was answered, or to its end."""

    @property
    def is_new(self) -> bool:
        """Whether something was counted."""
        moved = self.stored.sizes or self.loaded.sizes or self.below is not None
        return bool(self.lookups or self.failed_loads or self.async_delays or moved)


class ConnectorScheduler:
    """The scheduler side of one engine. All calls come from the scheduler's thread."""

    def __init__(self, shape: CacheShape, config: ConnectorConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.shape = shape
        self.config = config
        self._clock = clock
        self.below = None if shape.below is None else AskedStore(shape.below)
        """The store below host memory, if there is one."""
        self._most_looked_up = min(MAX_REQUESTS, shape.max_running + SPARE_REQUESTS)
        self.ledger = Ledger(
            _limits(shape, config, self._most_looked_up),
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
        self.pool = EnginePool(self.offload, self._known_tokens, one_a_step=shape.one_a_step)
        self.beside = Beside(self.pool)
        """Other connectors of the engine."""
        self.counts = ConnectorCounts()
        self.requests = ConnectorRequests(self.beside.others.hooks)
        self._admissions: dict[str, Admission] = {}
        self._has_states = any(isinstance(group, Mamba) for group in shape.geometry.groups)
        self._doubts = Doubts(shape.geometry.block_tokens[0] // shape.hashes_per_block[0], shape.num_workers)
        self._last_windows: dict[str, list[int]] = {}
        """Requests that are over since the last step and still in a plan, by name: how many blocks of each group vLLM has freed
        before the rest. Before 0.33 these can be more than leave by the tokens that a request has: it counts guesses that were
        right behind the token at which the request stops."""
        self._copied: list[int] = []  # the targets of copies ahead of the forward pass of the step being made
        self._loads = 0
        """Loads promised by lookups of this step."""
        self._early: list[Plan] = []
        """Plans to be sent ahead of the plan of the current step."""
        self._begun = False  # whether a hook of the current step has been called
        self._built = False  # whether a step was built since the last worker report
        self._introduction = b"" if shape.below is None else shape.below.identity.fingerprint
        self._may_sleep = False  # the host tier is forgotten with the next step, unless the workers wake up before it
        self._num_sleeps = 0  # that the workers have told of
        self._peek_free: PeekFree | None = None
        self._evict: Evict | None = None
        self._serial = 0
        self.describer: Describer | None = None
        """Describes the content of events, if these describe themselves."""
        self._looking = False  # whether keys are asked for by a lookup

    def bind_pool(self, peek_free: PeekFree, evict: Evict) -> None:
        """Take the engine's allocator; lazy stores look at the blocks that it hands out next."""
        self._peek_free, self._evict = peek_free, evict

    def describe_events(self, extra_keys: ReadExtraKeys) -> None:
        """From now on, keep what events say of their content."""
        self.describer = Describer(self.shape, extra_keys)

    # --- within schedule() --------------------------------------------------------------------------------------------------

    def add(self, request: VllmRequest, caps: Caps = _NO_CAPS) -> None:
        """A new request of the engine. It is added to the ledger at its first lookup."""
        self.requests.add(request, caps, as_session=self.shape.names_sessions)

    def look_up(self, request: VllmRequest, device_tokens: int) -> int | None:
        """The number of tokens that a load would bring after those on the device; None: ask again later.

        See `loads_within` for when it would bring them.
        """
        self._begin()
        begun = self._clock()
        tracked = self._tracked(request)
        earlier, tracked.hit = tracked.hit, None  # the hit of an earlier step, for which there was no room
        self.counts.lookups += 1
        name = self._enter(tracked)
        if not name or (earlier is not None and self.requests.landed):
            # it has found no room: those that hold blocks and wait behind it in vLLM's queue have their turn first
            self._defer(tracked, begun)
            return None
        if self.offload.requests.is_running(name) or tracked.arrival.state is Arrival.RECEIVING:
            # the engine was reset, and the request is scheduled again in the same step; or another connector's load failed
            self._preempt(tracked)
        if self._doubts.open and self._doubts.are_in(request.block_hashes, device_tokens):
            self._defer(tracked, begun)
            return None
        may_load = self._may_load(tracked, earlier) and (self.shape.names_sessions or not tracked.is_session)
        if not may_load or request.skip_reading_prefix_cache or not request.block_hashes:
            tracked.hit = self.pool.device_hit(name, request.num_tokens, device_tokens)
            self._resolve(tracked)
            return 0
        self._looking = True
        hit = self.offload.lookup(name, request.num_tokens, device_tokens)
        self._looking = False
        self.counts.sync_delays.append(self._clock() - begun)
        no_job = bool(hit.host_tokens) and self.ledger.jobs.room <= self._loads
        if hit.deferred or (no_job and self.pool.put_off(name)):
            self._defer(tracked, begun)
            return None
        if no_job:
            hit = self.pool.device_hit(name, request.num_tokens, device_tokens)
        self._resolve(tracked)
        tracked.hit = hit
        self._loads += bool(hit.host_tokens)
        return hit.host_tokens

    def loads_within(self, request: VllmRequest) -> bool:
        """Whether what `look_up` has promised to a request in this step is loaded before the forward pass of this step."""
        hit = self._tracked(request).hit
        return hit is not None and hit.within

    def allocated(self, request: VllmRequest, tables: BlockTables, external_tokens: int) -> None:
        """The engine has allocated blocks to a request that it admits or loads, or whose load is over."""
        self._begin()
        tracked = self._tracked(request)
        ids = tuple(list(group) for group in tables.get_block_ids())
        self._admissions[request.request_id] = Admission(tracked, ids, external_tokens)
        if external_tokens and tracked.hit is not None:
            self.pool.expect_load(tracked.name)
            if tracked.hit.within:
                at = tracked.hit.device_tokens
                starts = [at // tokens for tokens in self.shape.geometry.block_tokens]
                named = [block for table, start in zip(ids, starts, strict=True) for block in table[start:] if block != NULL]
                self._doubts.add(request, at, named)

    def build_step(self, output: SchedulerOutput) -> StepPlan:
        """Build the plan of this step."""
        self._begin()
        if self.below is not None:
            self.below.look()
        self._begun, self._built = False, True
        offload, pool = self.offload, self.pool
        for request_id in output.preempted_req_ids or ():
            tracked = self.requests.by_id.get(request_id)
            if tracked is not None and offload.requests.is_running(tracked.name):
                self._preempt(tracked)
        copies = output.kv_cache_block_copies
        self._copied = [copy.dst_block_id for copy in copies] if copies else []
        if self.shape.zeroes_first and (output.new_block_ids_to_zero or self._copied):
            pool.give_up_stores([*(output.new_block_ids_to_zero or ()), *self._copied])
        self._loads = 0
        if self.requests.receiving or self.beside.others.doubts:
            self._go_on_beside()
        going_on: list[Admission] = []
        coming: list[Admission] = []
        for each in self._admissions.values():
            (going_on if offload.requests.is_running(each.tracked.name) else coming).append(each)
        reached = self._hand_off_reached(output) if self.shape.state_drafts else ()
        pool.leave_windows()
        if self._last_windows:
            for name, firsts in self._last_windows.items():
                if name in offload.requests:
                    pool.leave_window_of_ended(name, firsts)
            self._last_windows.clear()
        self._extend(output, going_on)
        scheduled = output.num_scheduled_tokens
        pool.schedule(self._uneven(scheduled, coming))
        loads = self._let_in(coming, scheduled)
        self._admissions.clear()
        if output.new_block_ids_to_zero:
            pool.overwrite(output.new_block_ids_to_zero)
        if self._has_states or self._copied:
            self._hand_off(output, reached)
        if self._peek_free is not None and self.config.policies.mode is Mode.LAZY:
            offload.about_to_go(list(self._peek_free(self.config.policies.lazy_blocks)))
        plan = offload.build_plan(self._clock())
        early, self._early = self._early, []
        # in the first step: for which content the store below is asked; workers check that they name it alike
        introduction, self._introduction = self._introduction, b""
        return StepPlan((*early, plan), self._owners(plan) if loads or self._doubts.open else {}, introduction)

    def _hand_off_reached(self, output: SchedulerOutput) -> set[tuple[str, int, int]]:
        """States that vLLM keeps and that were reached before this step: with guesses, their blocks may leave the tables now.

        Returns them: their requests, groups and tokens.
        """
        state = output.kv_connector_block_state
        found: set[tuple[str, int, int]] = set()
        if state is None:
            return found
        for request_id, states in state.boundary_state_offloads.items():
            tracked = self.requests.by_id.get(request_id)
            if tracked is None or tracked.session.state in WRONG or tracked.name not in self.offload.requests:
                continue
            computed = self.offload.requests.progress(tracked.name).computed
            for group, block, boundary in states:
                if boundary <= computed and not boundary % self.shape.geometry.block_tokens[group]:
                    self.pool.hand_off_state(tracked.name, group, boundary, block)
                    found.add((request_id, group, boundary))
        return found

    def _hand_off(self, output: SchedulerOutput, reached: Collection[tuple[str, int, int]]) -> None:
        """The other states that vLLM keeps: at the end of a block, or inside one, where it has copied them to another block."""
        pool, size = self.pool, self.shape.geometry.block_tokens
        kept: set[int] = set()
        if (state := output.kv_connector_block_state) is not None:
            for request_id, states in state.boundary_state_offloads.items():
                if (tracked := self.requests.by_id.get(request_id)) is not None and tracked.session.state not in WRONG:
                    for group, block, boundary in states:
                        if boundary % size[group]:  # a session leaves no tails
                            pool.hand_off_tail("" if tracked.is_session else tracked.name, group, boundary, block)
                            kept.add(block)
                        elif (request_id, group, boundary) not in reached:
                            pool.hand_off_state(tracked.name, group, boundary, block)
        if self._copied:
            pool.copied_to([block for block in self._copied if block not in kept])

    def _extend(self, output: SchedulerOutput, going_on: Iterable[Admission]) -> None:
        """Report the blocks that running requests got in this step."""
        cached, doubts, requests = output.scheduled_cached_reqs, bool(self._doubts.open), self.requests.by_id
        ids, added, resumed = cached.req_ids, cached.new_block_ids, cached.resumed_req_ids
        for at in range(len(ids)):
            tables = added[at]
            if tables is not None and ids[at] not in resumed:
                tracked = requests[ids[at]]
                self._grow(tracked.name, tables)
                if doubts:
                    self._doubts.grown(tracked.request, [block for table in tables for block in table if block != NULL])
        for each in going_on:  # its load is over, or its session continues: its blocks stay where they are
            name = each.tracked.name
            self.requests.schedule(each.tracked)
            if each.tracked.is_session:
                self._go_on(each.tracked)
                if each.tracked.session.state in STOPPED:
                    each.tracked.session.go_on()
            held = self.ledger.requests
            self._grow(name, [table[held.size(name, group) :] for group, table in enumerate(each.tables)])

    def _grow(self, name: str, tables: Sequence[Sequence[int]]) -> None:
        """A request got blocks behind its tables, by group."""
        for group in range(len(tables)):
            added = tables[group]
            if NULL in added and NULL in itertools.dropwhile(operator.not_, added):
                raise MisuseError(f"request {name}: group {group} got {list(added)}, with a null between blocks (not offered)")
        if self.shape.state_drafts:
            self.pool.move_on(name, tables)
        self.pool.extend(name, tables)

    def _uneven(self, scheduled: Mapping[str, int], coming: Sequence[Admission]) -> dict[str, int]:
        """The running requests scheduled for another number of tokens than one; 0 for those not scheduled."""
        found: dict[str, int] = {}
        for request_id, count in scheduled.items():
            if count != 1 and self.offload.requests.is_running(name := self.requests.by_id[request_id].name):
                found[name] = count
        num_coming = len([each for each in coming if each.tracked.request.request_id in scheduled])
        waiting = [each.name for each in self.requests.landed.values()]  # to the ledger, they run
        if self.offload.requests.num_running + num_coming - len(waiting) > len(scheduled):
            names = scheduled if not self.requests.renamed else {self.requests.by_id[each].name for each in scheduled}
            waiting = self.pool.not_among(names)
        found.update(dict.fromkeys(waiting, 0))
        return found

    def _let_in(self, coming: Iterable[Admission], scheduled: Mapping[str, int]) -> bool:
        """Report new blocks of running requests and admitted requests to the ledger. Returns whether one of these loads."""
        loads = False
        placed: list[tuple[Admission, Hit]] = []
        for each in coming:
            hit = self._hit_of(each)
            if hit.device_tokens and self.pool.is_new(self._hit_blocks(each, hit)):
                loads |= self._record_placed(placed, scheduled)  # so that it can share content that others compute in this step
                placed = []
            each.in_doubt = self._is_in_doubt(each, hit, scheduled)
            self.pool.place_table(each.tracked.name, each.tables, hit.device_tokens)
            placed.append((each, hit))
        return self._record_placed(placed, scheduled) or loads

    def _record_placed(self, placed: Iterable[tuple[Admission, Hit]], scheduled: Mapping[str, int]) -> bool:
        """Enter the requests whose tables were placed; seal what they and the running ones fill. Returns whether one loads."""
        self.pool.record_growth()
        loads = False
        for each, hit in placed:
            tracked = each.tracked
            if tracked.session.state is SessionState.ASTRAY:
                tracked.session.begin_anew()
            tokens = scheduled.get(tracked.request.request_id, 0)
            if not tokens and not each.external_tokens:
                self.requests.receive(tracked)
                self.beside.others.receive(tracked.name, hit)
            else:
                loads |= not self.offload.admit(tracked.name, hit, tokens)
                if each.external_tokens:
                    tracked.arrival.load()
            if tracked.is_session and not self.shape.names_sessions:
                self.pool.keep_unnamed(tracked.name)
            if each.in_doubt:
                self.beside.others.doubt(tracked.name, {block for table in each.tables for block in table if block})
        self.pool.promise()
        return loads

    def _hit_blocks(self, admission: Admission, hit: Hit) -> list[int]:
        """The blocks of a hit on the device, in all groups."""
        stops = [hit.device_tokens // tokens for tokens in self.shape.geometry.block_tokens]
        return [block for table, stop in zip(admission.tables, stops, strict=True) for block in table[:stop]]

    def _hit_of(self, admission: Admission) -> Hit:
        """The hit that an admitted request starts from."""
        tracked, request = admission.tracked, admission.tracked.request
        name, hit = self._enter(tracked, runs=True), tracked.hit
        tracked.hit = None
        if hit is not None and name and not self.pool.is_current(hit):
            hit = None  # vLLM lets it in although another connector is still looking, and has not asked this one in this step
        self.requests.schedule(tracked)
        if not name:
            raise MisuseError(f"request {request.request_id}: vLLM runs more requests than it said (max_num_seqs)")
        external = admission.external_tokens
        if external and (hit is None or hit.host_tokens != external):
            raise MisuseError(
                f"request {name}: vLLM loads {external} tokens, and this connector has promised "
                f"{0 if hit is None else hit.host_tokens} (another connector around it must not change what it promises)"
            )
        if external and hit is not None:
            return hit
        computed = request.num_computed_tokens
        if self._ends_inside(admission):
            return self.pool.device_hit(name, request.num_tokens, computed)
        if hit is None or hit.host_tokens:
            # a load failed in part, and vLLM keeps the blocks that were on the device before it; or vLLM does not use the hit
            hit = self.pool.device_hit(name, request.num_tokens, computed if hit is None else min(hit.device_tokens, computed))
        if computed < hit.compute_from:
            raise MisuseError(
                f"request {name}: vLLM starts at token {computed}, and the hit ends at {hit.compute_from} "
                "(a feature that this connector does not offer)"
            )
        return self.beside.others.brought(name, hit, computed) if computed > hit.compute_from else hit

    def _ends_inside(self, admission: Admission) -> bool:
        """Whether a request continues inside a block that the step copies for it: a hit on the device, not told to lookups."""
        computed, sizes = admission.tracked.request.num_computed_tokens, self.shape.geometry.block_tokens
        if not self._copied or not computed % self.shape.geometry.block_alignment:
            return False
        last = [table[computed // size] for table, size in zip(admission.tables, sizes, strict=True) if computed % size]
        return bool(last) and set(last) <= set(self._copied)

    def _is_in_doubt(self, admission: Admission, hit: Hit, scheduled: Mapping[str, int]) -> bool:
        """Whether an admitted request computes behind tokens of another connector that no report has confirmed."""
        if not admission.external_tokens and hit.compute_from > hit.tokens:
            return admission.tracked.request.request_id in scheduled
        return bool(self.beside.others.doubts) and self.beside.others.doubted(self._hit_blocks(admission, hit))

    def _go_on_beside(self) -> None:
        """Requests for which another connector has brought what it promised run; those for which it failed step back."""
        others = self.beside.others
        for tracked in self.beside.freed(list(self.requests.receiving.values())):
            self._preempt(tracked)
        for each in self._admissions.values():
            if each.tracked.arrival.state is Arrival.RECEIVING:
                self.requests.schedule(each.tracked)
                others.received(each.tracked.name, each.tracked.request.num_computed_tokens)
        for name in others.take_wrong():
            request = self.requests.by_name[name].request
            self.pool.go_on(name, request.num_tokens, request.num_prompt_tokens, request.num_computed_tokens)

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
            self._hear_of_preemptions()
        self._built = False
        if report.stored.sizes:
            self.counts.stored += report.stored
        if report.loaded.sizes:
            self.counts.loaded += report.loaded
        if report.below is not None:
            self.counts.below = moved_together(self.counts.below, report.below)
        launched, completions = report.launched, report.completions
        void = self._doubts.land(report.number, completions) if self._doubts.open else ()
        for number in [each for each in self.offload.plans_out if each <= report.number]:
            # all reports go with the first plan: it may be the one that waited for these jobs
            settled = self.pool.settle_known(number, self._clock(), launched=launched, completions=completions)
            launched, completions = (), ()
            for name in settled.loaded:
                tracked = self.requests.by_name[name]
                self.requests.land(tracked, computes=tracked.request.status.name != "WAITING_FOR_REMOTE_KVS")
            self.counts.failed_loads += len(settled.failed)
            for name in settled.failed:
                self.requests.lose(self.requests.by_name[name])
            for name in settled.ended:
                self.requests.release(name)
        for tracked in self.requests.sessions.values():
            if tracked.session.state not in STOPPED and self._stops(tracked):
                self._go_on(tracked)
                # a later step that is out computes the token that is taken back, and a state cannot go back
                # and with guesses vLLM goes on from the first state of the last step, however many of them were right
                stale = bool(tracked.request.num_stale_output_tokens or self.shape.state_drafts)
                tracked.session.stop(self._has_states and stale)
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

    def finish(self, request: VllmRequest, aborted: bool, tables: Sequence[Sequence[int]] = ()) -> None:
        """A request is over. The engine gets its blocks back at once; a hand-out waits for copies that still read them.

        *tables* are the blocks that the request has left, by group; those before its windows are gone already.
        """
        tracked = self.requests.leave(request.request_id)
        self._admissions.pop(request.request_id, None)
        if tracked is None:
            return
        self._resolve(tracked)
        if self.describer is not None:
            self.describer.leave(request)
        if tracked.name not in self.offload.requests:
            return
        self.beside.left(request.request_id, tracked.name)
        if aborted:
            self.offload.abort(tracked.name)
        else:
            self.offload.finish(tracked.name)
        if tracked.name not in self.offload.requests:
            self.requests.release(tracked.name)
        elif not self.shape.one_a_step:  # a step that computes it, and maybe guesses, is out
            self._last_windows[tracked.name] = [_leading_nulls(table) for table in tables]

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
        self._hear_of_preemptions()
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
        tracked = self.requests.by_id.get(request.request_id)
        if tracked is None or (hit := tracked.hit) is None or not hit.slots:
            return None
        fetched = self.offload.fetched(tracked.name, [slot for own in hit.slots for slot in own])
        return sources(self.shape.geometry, hit, tokens, fetched)

    def take_events(self) -> list[HostEvent]:
        """Content that became readable in the host tier or is gone, since the last call."""
        return self.tier.take_events() if self.shape.events else []

    # --- helpers ------------------------------------------------------------------------------------------------------------

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

    def _defer(self, tracked: ConnectorRequest, begun: float) -> None:
        """A lookup that began at this time is put off."""
        self.counts.deferred += 1
        if not tracked.is_owed:
            tracked.reply.defer()
            tracked.owed_since = begun
        if self.describer is not None and self.below is not None:
            self.describer.wait(tracked.request)

    def _resolve(self, tracked: ConnectorRequest) -> None:
        """A lookup was answered, or the request is over."""
        if tracked.is_owed:
            self.counts.async_delays.append(self._clock() - tracked.owed_since)
            tracked.reply.answer()
            if self.describer is not None:
                self.describer.go_on(tracked.request)

    def _may_load(self, tracked: ConnectorRequest, earlier: Hit | None) -> bool:
        """Whether a load can be promised to vLLM now, for a request whose *earlier* hit found no room.

        vLLM 0.33.0 still reserves the blocks of a load that has failed, so that another load may wait for ever for blocks that
        are free: such a request does not load until it is scheduled, and meanwhile no request is promised a load twice in turn
        without having got blocks for it.
        """
        if not self.requests.lost:
            return True
        return tracked.arrival.state is not Arrival.LOST and (earlier is None or not earlier.host_tokens)

    def _preempt(self, tracked: ConnectorRequest) -> None:
        """vLLM has taken the blocks of a request back."""
        self.offload.preempt(tracked.name)
        self.requests.step_back(tracked)

    def _hear_of_preemptions(self) -> None:
        """Notice preemptions by a reset, which vLLM reports only with the next step; until then outputs do not count."""
        for tracked in self.requests.by_id.values():
            if tracked.request.status.name == "PREEMPTED" and self.offload.requests.is_running(tracked.name):
                self._preempt(tracked)

    def _tracked(self, request: VllmRequest) -> ConnectorRequest:
        found = self.requests.by_id.get(request.request_id)
        if found is None:
            self.add(request)
            found = self.requests.by_id[request.request_id]
        return found

    def _enter(self, tracked: ConnectorRequest, *, runs: bool = False) -> str:
        """Add a request to the ledger. Returns its name there, or an empty text if there is no room for another.

        There is always room for running requests, because vLLM may admit a request regardless of the result of its lookup.
        """
        if tracked.name and tracked.name in self.offload.requests:
            return tracked.name
        request = tracked.request
        if not self._has_room(runs):
            for forgotten in self.pool.release_waiting([each.tracked.name for each in self._admissions.values()]):
                self.requests.release(forgotten)
            if not self._has_room(runs):
                return ""
        name = request.request_id
        while name in self.ledger.requests or self.ledger.jobs.serve(name):
            self._serial += 1
            name = f"{request.request_id}#{self._serial}"
        self.requests.name(tracked, name)
        tails = None if self.shape.geometry.tail_tokens is None else self._tails_of(request)
        self.offload.add_request(name, self._keys_of(tracked), prompt_tokens=request.num_prompt_tokens, tails=tails)
        self.offload.cap(name, tracked.caps.store_tokens, tracked.caps.load_tokens)
        if tracked.is_owed:
            self.pool.has_waited(name, tracked.owed_since)
        return name

    def _has_room(self, runs: bool) -> bool:
        return len(self.offload.requests) < (self.ledger.limits.max_requests if runs else self._most_looked_up)

    def _keys_of(self, tracked: ConnectorRequest) -> Callable[[int, int, int], Sequence[bytes]]:
        """The keys of a request's blocks: vLLM's hashes, which cover all tokens up to the end of the block."""
        request, ratios = tracked.request, self.shape.hashes_per_block

        def keys(group: int, start: int, stop: int) -> Sequence[bytes]:
            ratio = ratios[group]
            hashes = request.block_hashes
            return hashes[start:stop] if ratio == 1 else hashes[(start + 1) * ratio - 1 : stop * ratio : ratio]

        describer = self.describer
        if describer is None:
            return keys

        def noted(group: int, start: int, stop: int) -> Sequence[bytes]:
            found = keys(group, start, stop)
            if self._looking:
                describer.look(request, group, start, found)
            else:
                over = self.requests.by_id.get(request.request_id) is not tracked
                describer.note(request, group, start, found, self._most_stored(tracked), over=over)
            return found

        return noted

    def _most_stored(self, tracked: ConnectorRequest) -> int:
        """How many tokens of a request can be stored at most."""
        caps = [self.config.policies.max_store_tokens, tracked.caps.store_tokens]
        if self.config.policies.prompt_only:
            caps.append(tracked.request.num_prompt_tokens)
        return min([cap for cap in caps if cap is not None], default=tracked.request.num_tokens)

    def _tails_of(self, request: VllmRequest) -> Callable[[int, int], bytes | None]:
        """The keys of a request's tails: vLLM's hashes at tokens inside a block."""
        unit = self.shape.tokens_per_hash

        def tails(_group: int, end: int) -> bytes | None:
            hashes, at = request.block_hashes, end // unit
            return hashes[at - 1] if 0 < at <= len(hashes) else None

        return tails

    def _known_tokens(self, name: str) -> int:
        tracked = self.requests.by_name[name]
        # vLLM may have given it the next part already: it computes anew from the token that it takes back
        return tracked.request.num_computed_tokens + 1 if self._stops(tracked) else tracked.request.num_tokens

    def _stops(self, tracked: ConnectorRequest) -> bool:
        """Whether it is a session at the end of an answer: vLLM keeps its blocks, and has put it among those that wait."""
        if not tracked.is_session or not self.shape.names_sessions or tracked.request.status.name not in _STOPPED:
            return False
        return tracked.name in self.offload.requests and self.offload.requests.is_running(tracked.name)

    def _go_on(self, tracked: ConnectorRequest) -> None:
        """A session is where vLLM says that it is; its next answer is part of a longer prompt."""
        name, request = tracked.name, tracked.request
        self.pool.go_on(name, request.num_tokens, request.num_prompt_tokens, request.num_computed_tokens)
        self.offload.cap(name, tracked.caps.store_tokens, tracked.caps.load_tokens)


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


def _leading_nulls(table: Sequence[int]) -> int:
    return next((at for at, block in enumerate(table) if block != NULL), len(table))
