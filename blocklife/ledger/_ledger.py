"""The ledger: every change to a block, slot, job or request is a method (a *verb*) of `Ledger`; everything else only reads.

Rules of this file:

* A verb asks all tables first, then writes all of them; hooks are called after the last write of the outermost call. All
  refusals come before the first write; after that only a bug can raise, or an interrupt, which closes the ledger.
* One call at a time. Where checking is strict, one that overlaps with a call of another thread is refused (`_journal`).
* The ledger is deterministic: no clock, no randomness, no threads, no I/O. Time is passed in as an argument, in any unit that
  the engine uses.
* Which place is chosen, and whether anything is copied at all, is policy and lives elsewhere. The one exception is the order
  of free blocks, which belongs to the pool that the ledger owns.

Theory. One engine step is: requests release and gain blocks (`preempt`, `finish`, `release`, `allocate`, `acquire`), hits
become loads (`plan_load`), stores are planned (`plan_store`), `dispatch` hands the plan to the workers, and `settle` applies
what they report. The couplings between the machines are rows of `states.COUPLINGS`, which the kernel looks up in each step
(`core/_couplings.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from attrs import evolve

from blocklife.core import _couplings as couplings
from blocklife.core import _moves as moves
from blocklife.core import _plans as plans
from blocklife.core import _verbs as verbs
from blocklife.core._moves import ask_job, fire_request
from blocklife.core._tables import (
    ADMISSIBLE_,
    DEMOTE,
    J_ABANDON,
    J_CANCEL,
    J_FLUSH,
    J_QUIESCE,
    LOAD,
    OVER,
    PLANNED,
    PROMOTE,
    R_ADMIT,
    R_PREEMPT,
)
from blocklife.errors import CapacityError, MisuseError
from blocklife.hook_errors import HookErrors, OnError
from blocklife.knobs import check_member
from blocklife.ledger import _edge as edge
from blocklife.ledger._checks import Checks
from blocklife.ledger._ids import NULL, Lives
from blocklife.ledger._journal import Journal, anew, verb
from blocklife.ledger._limits import Checking, Contract, Limits, Statistics
from blocklife.ledger._planning import Planning
from blocklife.ledger._refusals import some
from blocklife.ledger._rows import RowVerbs
from blocklife.ledger._snapshot import Names, Snapshot, own_names, put_back, take
from blocklife.ledger._state import LedgerData
from blocklife.ledger.jobs import (
    Allocated,
    Batch,
    GroupTransfer,
    InFlight,
    Jobs,
    Out,
    Planned,
    Sealed,
    Store,
    Submitted,
    Unwanted,
)
from blocklife.ledger.records import (
    Completion,
    JobId,
    Launched,
    LedgerTransition,
    Placement,
    Plan,
    Refusal,
    Seal,
    Worker,
)
from blocklife.ledger.views import (
    BlocksView,
    CountsView,
    JobsView,
    JournalView,
    PlansView,
    RequestsView,
    SlotsView,
    statistics_of,
)
from blocklife.lifecycle import Subscription, What, painted
from blocklife.states import Block, Job, Request, Slot

_NOTHING: tuple[()] = ()
"""Stands for arguments that were not given, which need no check."""


class Ledger(edge.NotCopied):
    """Owns the blocks and slots, the jobs, and the block tables of the requests.

    ``incarnation`` is part of every job's identity; use a new one for each start of the scheduler process. ``deadline`` is how
    long a job may run after its first worker reported the launch, or after a plan waits for it, in the engine's unit of time.
    ``own_pool`` says who hands out blocks: the ledger (`allocate`), or the engine's own allocator (`observe_place`). If such
    an engine also does its own prefix look-up, pass ``indexed=False``: the ledger then keeps no index of the device's content.

    `blocks`, `slots`, `jobs`, `requests`, `plans`, `counts` and `journal` are read-only views; only verbs change anything.

    Verbs raise `MisuseError` (nothing has changed), `CapacityError` (the same, try again later), `LateError` (the same, the job
    is no longer known) or `InvariantError` (a bug). `hook_errors` keeps what hooks raise; ``errors="raise"`` raises it.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        contract: Contract = Contract.FENCE,
        checking: Checking = Checking.STRICT,
        incarnation: int = 1,
        deadline: float = 64.0,
        own_pool: bool = True,
        indexed: bool = True,
        errors: OnError = "keep",
    ) -> None:
        edge.member(limits, Limits, "limits")
        edge.moment(deadline, "deadline", "above 0 and finite")
        if deadline <= 0:
            raise MisuseError(f"deadline must be above 0 and finite, not {deadline}")
        if edge.whole(incarnation, "incarnation") < 1:
            raise MisuseError(f"incarnation must be at least 1, not {incarnation}")
        check_member("contract", contract, Contract)
        check_member("checking", checking, Checking)
        edge.flag(own_pool, "own_pool")
        if own_pool and not edge.flag(indexed, "indexed"):
            raise MisuseError("indexed=False: a ledger that hands blocks out itself has to find them (own_pool=True)")
        self._state = data = LedgerData(
            limits, contract=contract, checking=checking, incarnation=incarnation,
            deadline=deadline, own_pool=own_pool, indexed=indexed, errors=errors,
        )  # fmt: skip
        self._core = data.core
        self._check = Checks(data)
        self._planning = Planning(data, self._check)
        self._rows = RowVerbs(data, self._check, self._planning)
        self._calls: Journal = data.journal
        """The outermost call that is being made; for `verb` and `call`."""
        self._calls.recheck = self._check.judged
        self.limits = limits
        self.contract = contract
        self.incarnation = incarnation
        self.own_pool = own_pool
        self.hook_errors: HookErrors = data.journal.errors
        """What hooks, watchers of slots and other code of the user have raised."""
        self.blocks = BlocksView(data, self._check)
        self.slots = SlotsView(data, self._check)
        self.jobs = JobsView(data, self._check)
        self.requests = RequestsView(data, self._check)
        self.plans = PlansView(data)
        self.counts = CountsView(data)
        self.journal = JournalView(data.journal)

    # --- hooks and reading --------------------------------------------------------------------------------------------------

    def on(
        self,
        *what: What,
        entered: Block | Slot | Job | Request | None = None,
        left: Block | Slot | Job | Request | None = None,
        hook: Callable[[LedgerTransition], None] | None = None,
    ) -> Subscription[LedgerTransition]:
        """Register a hook for committed steps, ``ledger.on(entered=Block.STALE, hook=print)``; see `Hooks.on`."""
        return self._calls.hooks.on(*what, entered=entered, left=left, hook=hook)

    def on_refusal(self, hook: Callable[[Refusal], None] | None = None) -> Subscription[Refusal]:
        """Register a hook for events that a table refuses (not for lack of room, unknown names or lives that are over)."""
        return Subscription(self._calls.refusals, hook=hook)

    def statistics(self) -> Statistics:
        """Count everything now."""
        return statistics_of(self._state)

    def has_pending_work(self) -> bool:
        """Whether steps are still needed: a job is outstanding, or a wait is not yet in a plan or not yet proven."""
        return bool(self._core.jobs.live or self._core.to_flush or self._core.waiting)

    # --- requests -----------------------------------------------------------------------------------------------------------

    @verb
    def add_request(self, request: str) -> None:
        """Add a request; it is WAITING. Refuses a name in use, and more than ``max_requests`` requests."""
        self._check.newcomer(edge.text(request, "request"))
        verbs.add_request(self._core, request)

    @verb
    def admit(self, request: str) -> None:
        """Edges: request WAITING, PREEMPTED → RUNNING."""
        fire_request(self._core, self._check.request(request), R_ADMIT, 0)

    @verb
    def preempt(self, request: str) -> None:
        """Give all blocks back; a planned load is cancelled, a submitted one abandoned. Edges: request → PREEMPTED."""
        couplings.give_up(self._core, self._check.request(request), R_PREEMPT)

    @verb
    def finish(self, request: str) -> None:
        """Give all blocks back for good, in any state; the name is free again. Edges: request → FINISHED."""
        verbs.finish(self._core, self._check.request(request))

    # --- blocks -------------------------------------------------------------------------------------------------------------

    @verb
    def allocate(self, request: str, count: int, group: int = 0) -> Batch[Allocated]:
        """Hand out *count* blocks and append them to the request's table.

        Edges: block FREED, CACHED → ALLOCATED; under fence also PENDING_STORE → ALLOCATED (its store is cancelled) and
        IN_FLIGHT, STALE → FLUSHED (the wait goes into the next plan).
        Refuses: `CapacityError` if there are too few; it says how many are free and how many will be soon.
        """
        row = self._check.request(request)
        self._check.pool(own=True)
        self._check.group(group)
        if edge.whole(count, "count") < 1:
            raise MisuseError(f"request {request}: cannot allocate {count} blocks (ask for at least 1)")
        verbs.allocate(self._core, [row], [count], [group], ())
        return Batch(self.requests.table(request, group, -count), group)

    @verb
    def skip(self, request: str, count: int, group: int = 0) -> None:
        """Append *count* null blocks to the table: positions outside every window, or for which no state was kept."""
        row = self._check.request(request)
        self._check.group(group)
        if edge.whole(count, "count") < 0:
            raise MisuseError(f"request {request}: cannot skip {count} blocks")
        verbs.append_nulls(self._core, row * self._core.num_groups + group, count)

    @verb
    def acquire(self, request: str, lives: Lives, group: int = 0) -> Batch[Sealed]:
        """Take a prefix hit: hold lives, which others may hold too, and append them to the table.

        Edges: block CACHED → SEALED; the other keyed states stay.
        Refuses: a life that is over, is of another group, is named twice, or is in the table already.
        """
        row = self._check.request(request)
        self._check.group(group)
        chosen = edge.numbers(lives, "lives")
        verbs.acquire(self._core, row, chosen, group)
        return Batch(chosen, group)

    @verb
    def release(self, request: str, positions: Sequence[int], group: int = 0) -> None:
        """Release some positions of the table (those that left the window); `NULL` replaces them. Nulls are skipped.

        Edges: as `finish`, for these blocks.
        """
        row = self._check.request(request)
        self._check.group(group)
        verbs.release(self._core, row, group, edge.numbers(positions, "positions"))

    @verb
    def seal(self, held: Batch[Allocated], keys: Sequence[bytes]) -> Batch[Sealed]:
        """Declare content final and give it its key.

        Edges: block ALLOCATED → SEALED; PLEDGED → PENDING_STORE. A life that is over by now is skipped and counted.
        Refuses: FLUSHED, whose wait is not proven, and every state in which no content is being computed.
        """
        given, keys = edge.held(held, "held"), edge.keys(keys, "keys")
        if len(keys) != len(given):
            raise MisuseError(f"{len(given)} blocks to seal and {len(keys)} keys do not agree")
        self._check.group(held.group)
        stale = self._core.stale
        verbs.seal(self._core, [(held.group, given, keys)])
        if self._core.stale != stale:
            given = [life for life in given if self.blocks.is_current(life)]
        return Batch(given, held.group)

    @verb
    def drop(self, lives: Lives) -> None:
        """Forget content that no request holds, or note that the engine has; `BlocksView.life` is the life of a block.

        Edges: block CACHED → FREED, PENDING_STORE → FREED (its store is cancelled), IN_FLIGHT → STALE.
        Refuses: a life that is over, or held.
        """
        verbs.drop(self._core, edge.numbers(lives, "lives"))

    @verb
    def roll_back(self, request: str) -> None:
        """Roll back a failed admission: release everything that a waiting request holds. Its state stays.

        Refuses a request that is RUNNING or LOADING (preempt or finish it).
        """
        row = self._check.request(request)
        state = self._core.requests.state[row]
        if not self._core.rules.request_trait[state] & ADMISSIBLE_:
            raise MisuseError(
                f"request {request}: cannot ROLL_BACK while {self.requests.state(request).name} (preempt or finish it)"
            )
        couplings.release_all(self._core, row)

    # --- blocks of an allocator that the engine owns ------------------------------------------------------------------------

    @verb
    def observe_place(self, request: str, placements: Sequence[Placement]) -> list[Batch[Allocated]]:
        """The engine's allocator has extended tables of one request, all or none; returns what was handed out, one by one.

        Edges and couplings: of hits as `acquire`, which hand nothing out, and of other blocks as `allocate`.
        Refuses: as those do, with the state of a block that the contract does not allow to be handed out; a block that is
        named twice.
        """
        self._check.pool(own=False)
        row = self._check.request(request)
        placed = edge.placements(placements, "placements")
        named = placed[0].allocated if len(placed) == 1 and not placed[0].taken else ()
        if type(named) is not list:
            named = [block for each in placed for block in (*each.taken, *each.allocated)]
        self._check.apart(named)
        for each in placed:
            self._check.group(each.group)
            if each.skipped < 0:
                raise MisuseError(f"request {request}: cannot skip {each.skipped} blocks")
        verbs.place(
            self._core,
            [row] * len(placed),
            [each.group for each in placed],
            [[*[NULL] * each.skipped, *each.taken] for each in placed],
            [each.allocated for each in placed],
        )
        return [Batch(verbs.lives_in(self._core, each.allocated), each.group) for each in placed]

    @verb
    def observe_free(self, request: str, blocks: Sequence[int], group: int = 0) -> None:
        """A request has given these blocks back. Refuses a block that the request does not hold (I4)."""
        self._check.pool(own=False)
        row = self._check.request(request)
        self._check.group(group)
        verbs.release(self._core, row, group, self._check.positions(row, blocks, group))

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    @verb
    def plan_store(self, *stores: Store) -> Jobs[Planned]:
        """Reserve slots for the content of blocks and pin both: one job for each store, all or none.

        Edges: job (new) → PLANNED; block ALLOCATED → PLEDGED, SEALED, CACHED → PENDING_STORE; slot EMPTY → WRITING.
        Holds: one pin on each block until the job is terminal.
        Needs: one key per slot; the host place of each block, if that is not the slot itself.
        Refuses: a life that is over or of another group; a key that is stored already (I14; a second store of the same content
        may be planned while the first is on its way, and is dropped if the first lands before it); lengths that do not match
        (I15); `CapacityError` if there are ``max_jobs`` jobs already.
        Next: `dispatch`, or `cancel`.
        """
        return self._planning.stores(edge.stores(stores, "stores"))

    @verb
    def plan_load(self, request: str, *transfers: GroupTransfer[Allocated], within: bool = False) -> Jobs[Planned]:
        """Fill blocks that *request* holds from READY slots, in one job for all groups; the request waits.

        *within*: so does the plan that submits the load, before its forward pass; `dispatch` leaves the job AWAITED.
        Edges: job (new) → PLANNED; block ALLOCATED, FLUSHED → LOADING; slot READY, pinned; request → LOADING.
        Holds: one pin on each block and slot until the job is terminal; the blocks are never handed out before that.
        Needs: the key of each block, if a slot holds several; otherwise the key of each slot is that of its block. Without the
        keys of the slots, whatever they hold is loaded.
        Refuses: a life that is over or that the request does not hold; a slot whose content has another key; a second live
        load; `CapacityError` as `plan_store`.
        Next: `dispatch`; the request takes ``loaded`` or ``load_failed`` in `settle`.
        """
        parts = [self._keyed(each) for each in edge.transfers(transfers, "transfers")]
        return self._planning.load(self._check.request(request), parts, edge.flag(within, "within"))

    def _keyed(self, transfer: GroupTransfer[Allocated]) -> GroupTransfer[Allocated]:
        """A part of a load with the keys of its slots."""
        if transfer.keys or not len(transfer.slots):
            return transfer
        chosen = edge.numbers(transfer.slots, "transfers.slots")
        self._check.group(transfer.blocks.group)
        self._check.slots(chosen)
        keys = [self.slots.key(slot) for slot in chosen]
        if None in keys:  # an empty slot is refused with a better message than a missing key would give
            verbs.ask_chosen_slots(self._core, self._core.rules.pin, chosen)
        return evolve(transfer, keys=[key for key in keys if key is not None])

    @verb
    def plan_demotion(self, slots: Sequence[int], *, space: bytes = b"") -> Jobs[Planned]:
        """Copy the content of READY slots to the store below, in one job; the slots keep it.

        Edges: job (new) → PLANNED; slot READY, with one pin of the job until it is terminal. Refuses: a slot without final
        content; `CapacityError` as `plan_store`. Next: `dispatch`, or `cancel`. *space*: see `TierTransfer`.
        """
        chosen = edge.numbers(slots, "slots")
        self._check.slots(chosen)
        return self._planning.below(DEMOTE, chosen, [b""] * len(chosen), [0] * len(chosen), edge.member(space, bytes, "space"))

    @verb
    def plan_promotion(
        self, slots: Sequence[int], keys: Sequence[bytes], groups: int | Sequence[int] = 0, *, space: bytes = b""
    ) -> Jobs[Planned]:
        """Fill EMPTY slots with content from the store below, in one job; *groups* is one group, or one for each slot.

        Edges: job (new) → PLANNED; slot EMPTY → WRITING. When the job is DONE, slots whose content came whole on every worker
        are READY, and the others EMPTY. Refuses: a slot that is not EMPTY; content that is stored or on its way already (I14);
        `CapacityError` as `plan_store`. Next: `dispatch`, or `cancel`. *space*: see `TierTransfer`.
        """
        chosen, named = edge.numbers(slots, "slots"), edge.keys(keys, "keys")
        self._check.slots(chosen)
        if chosen and len(named) != len(chosen):
            raise MisuseError(f"{len(chosen)} slots and {len(named)} keys do not agree")
        own = self._check.groups(groups, len(named))
        return self._planning.below(PROMOTE, chosen, list(named), own, edge.member(space, bytes, "space"))

    @verb
    def submit(self, jobs: Jobs[Planned]) -> Jobs[InFlight]:
        """Submit jobs without `dispatch`; from here on only reports or `quiesce` end them.

        Edges: job PLANNED → IN_FLIGHT; block PENDING_STORE → IN_FLIGHT, LOADING stays.
        Refuses: a store whose content is not sealed (its block is PLEDGED); a load whose target waits for an older copy, unless
        a plan carries that wait; a load within a step, for which the plan that submits it waits.
        """
        rows = self._check.job_rows(edge.job_ids(jobs, "jobs"))
        for row in rows:
            couplings.ask_submit(self._core, row)
            if self._core.jobs.number[row] in self._core.to_flush:
                name = self._state.id_of(row)
                raise MisuseError(f"job {name}: it loads within a step, whose plan waits for it (use dispatch)")
            for older in couplings.older_of(self._core, row) if self._core.jobs.direction[row] == LOAD else ():
                if self._core.jobs.number[older] in self._core.to_flush:
                    name, other = self._state.id_of(row), self._state.id_of(older)
                    raise MisuseError(
                        f"job {name}: no plan waits yet for job {other}, which still touches its target (use dispatch)"
                    )
        for row in rows:
            couplings.submit(self._core, row)
        return Jobs(jobs.ids)

    @verb
    def cancel(self, jobs: Jobs[Planned]) -> None:
        """Give up planned stores. Edges: job PLANNED → CANCELLED; block, slot as before the plan.

        Refuses: a load, which can only be given up with its request (`preempt`, `finish`).
        """
        rows = self._check.alone(edge.job_ids(jobs, "jobs"))
        for row in rows:
            ask_job(self._core, row, J_CANCEL, 0)
        for row in rows:
            couplings.cancel(self._core, row)

    @verb
    def abandon(self, jobs: Jobs[Submitted]) -> Jobs[Unwanted]:
        """Discard the result of a store; its places stay pinned until it lands. Edges: job IN_FLIGHT, AWAITED → UNWANTED.

        Refuses: a load, as `cancel` does.
        """
        rows = self._check.alone(edge.job_ids(jobs, "jobs"))
        for row in rows:
            ask_job(self._core, row, J_ABANDON, 0)
        for row in rows:
            couplings.abandon(self._core, row)
        return Jobs(jobs.ids)

    @verb
    def flush(self, jobs: Jobs[Out], cause: str = "asked") -> Jobs[Out]:
        """Make the next plan wait for submitted jobs; flushes are counted by *cause*.

        Edges: job IN_FLIGHT → AWAITED; UNWANTED, QUARANTINED stay.
        """
        rows = self._check.job_rows(edge.job_ids(jobs, "jobs"))
        edge.text(cause, "cause")
        for row in rows:
            ask_job(self._core, row, J_FLUSH, 0)
        for row in rows:
            couplings.flush(self._core, row, cause)
        return Jobs(jobs.ids)

    def _is_planned(self, row: int) -> bool:
        return bool(self._core.rules.job_trait[self._core.jobs.state[row]] & PLANNED)

    # --- the step -----------------------------------------------------------------------------------------------------------

    @verb
    def dispatch(self, now: float) -> Plan:
        """Submit every planned job that can be submitted, and return the plan of this step.

        A store whose content is not sealed yet stays planned. The deadline of every job that the plan waits for starts now, if
        it has not started: otherwise a wait for a copy that its worker still holds back might never end.
        """
        edge.moment(now, "now")
        return self._rows.dispatch(now)

    @verb
    def settle(
        self,
        plan: int,
        now: float,
        *,
        launched: Iterable[Launched] = _NOTHING,
        completions: Iterable[Completion] = _NOTHING,
        seals: Iterable[Seal] = _NOTHING,
    ) -> None:
        """Apply what the workers reported after *every* worker has executed plan *plan*.

        Applied in this order: reports of jobs that the plan waited for; the others of these jobs are then proven quiet (a lost
        report must not hold up the new tenant); all other reports; seals; deadlines. Plans settle in order.
        """
        edge.moment(now, "now")
        final = [] if seals is _NOTHING else self._check.seals(edge.seals(seals, "seals"))
        self._rows.settle(edge.whole(plan, "plan"), now, launched, completions, final)

    @verb
    def launched(self, record: Launched, now: float) -> None:
        """A worker has launched its share of a job: the deadline starts. Late and unknown records change nothing."""
        edge.moment(now, "now")
        self._rows.launch(edge.launch(record, "record"), now)

    @verb
    def complete(self, completion: Completion) -> None:
        """Apply one worker's report.

        Edges: job `finish`; the couplings run at the last worker's report. Late, duplicate and unknown reports are counted
        and change nothing. Refuses: a worker that does not exist, and a job that was not submitted.
        """
        found = edge.completion(completion, "completion")
        (number,), (worker,), (ok,), _ = self._check.reports([found])
        plans.report(self._core, number, worker, ok, found.missing)

    @verb
    def expire(self, now: float) -> Jobs[Job]:
        """Quarantine every job whose deadline has passed; its places stay pinned, and the pins are overdue.

        Edges: job IN_FLIGHT, AWAITED, UNWANTED → QUARANTINED, and the couplings. Returns these jobs.
        """
        edge.moment(now, "now")
        return Jobs(tuple(JobId(self.incarnation, number) for number in plans.expire(self._core, now)))

    @verb
    def quiesce(self, jobs: Jobs[Job]) -> None:
        """Accept the engine's proof that the device no longer touches the places of these jobs (synchronised, or gone).

        Edges: job → FAILED, or CANCELLED if it was UNWANTED; a job in flight is given up first. No-op for jobs that are over.
        """
        rows = [
            row
            for row in self._check.job_rows(edge.job_ids(jobs, "jobs"))
            if not self._core.rules.job_trait[self._core.jobs.state[row]] & OVER
        ]
        for row in rows:
            if self._is_planned(row):
                ask_job(self._core, row, J_QUIESCE, 0)
        for row in rows:
            if plans.is_out(self._core, row):
                plans.quiesce(self._core, row)

    @verb
    def evict(self, slots: Sequence[int]) -> None:
        """Forget the content of slots. Edges: slot READY → EMPTY. Refuses slots that are pinned or being written."""
        verbs.move_chosen_slots(self._core, self._core.rules.evict, edge.numbers(slots, "slots"))

    @verb
    def pin(self, holder: str, slots: Sequence[int]) -> None:
        """Protect READY slots from eviction until `unpin` by the same holder."""
        edge.text(holder, "holder")
        chosen = edge.numbers(slots, "slots")
        verbs.move_chosen_slots(self._core, self._core.rules.pin, chosen)
        if chosen:
            held = self._state.holders.setdefault(holder, {})
            for slot in chosen:
                held[slot] = held.get(slot, 0) + 1

    @verb
    def unpin(self, holder: str, slots: Sequence[int]) -> None:
        """Release pins on slots. Refuses a slot that this holder has not pinned (I4)."""
        edge.text(holder, "holder")
        chosen = edge.numbers(slots, "slots")
        count = verbs.choose_slots(self._core, chosen)
        held = self._state.holders.get(holder, {})
        for slot in chosen:
            if slot not in held:
                raise MisuseError(f"slot {slot}: {holder} does not hold it (only its holder may unpin it)")
        moves.move_slots(self._core, self._core.rules.unpin, count, 0)
        for slot in chosen:
            held[slot] -= 1
            if not held[slot]:
                del held[slot]
        if not held:
            self._state.holders.pop(holder, None)

    @verb
    def lose(self, worker: Worker) -> None:
        """A worker is lost: its outstanding shares count as FAILED, and as quiet. A later report from it is a duplicate.

        Edges: job `finish`, for each submitted job that it has not reported; the ledger still waits for the other workers.
        """
        gone = edge.whole(worker, "worker")
        if not 0 <= gone < self.limits.num_workers:
            raise MisuseError(f"worker {worker}: there are {self.limits.num_workers} (ranks count from 0)")
        plans.lose(self._core, gone)

    @verb
    def reset(self, *, drain: bool = False, device: bool = True, host: bool = True) -> None:
        """Forget all content: of the device, and of the lower tier, unless *device* or *host* is False.

        Requests are preempted, planned jobs cancelled, submitted ones abandoned (without *host*, stores go on until they land);
        places that a copy touches stay reserved until it lands. Without *device*, requests and loads go on. A request that
        stands for another owner, who still reads its blocks, is preempted like all others: wait until it has finished. With
        ``drain``: refuses with `CapacityError`, which says how many, while jobs are outstanding.
        """
        edge.flag(drain, "drain")
        edge.flag(host, "host")
        if not edge.flag(device, "device") and not host:
            raise MisuseError("reset: there is nothing to forget (device=False, or host=False, not both)")
        if drain and self._core.jobs.live:
            raise CapacityError(f"{some(self._core.jobs.live, 'job')} still out (wait until all have landed, then reset again)")
        if device:
            plans.reset(self._core, host)
        else:
            plans.reset_host(self._core)

    def snapshot(self, names: Names | None = None, *, now: float = 0.0) -> Snapshot:
        """The complete state of the ledger as a value, with *names* replaced if given.

        Deadlines are stored relative to *now*, or to the time in *names*. Statistics and the journal are not included.
        """
        edge.moment(now, "now")
        return take(self._state, own_names(self._state, now=now) if names is None else edge.member(names, Names, "names"))

    @anew
    def restore(self, saved: Snapshot, now: float = 0.0) -> None:
        """Go back to a snapshot of a ledger with the same limits. Deadlines go on from *now* with the time they had left.

        Hooks are not called: no place has taken a step.
        """
        edge.moment(now, "now")
        put_back(self._state, edge.member(saved, Snapshot, "saved"), now)

    def __repr__(self) -> str:
        jobs, requests = self._core.jobs.live, len(self.requests)
        return f"<Ledger plan {self.plans.number}: {self.blocks.free} free, {jobs} jobs out, {requests} requests>"

    def _repr_html_(self) -> str | None:
        return painted("_repr_html_", self)
