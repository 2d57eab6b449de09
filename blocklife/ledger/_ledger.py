"""The ledger: every change to a block, slot, job or request is a method (a *verb*) of `Ledger`; everything else only reads.

Rules of this file:

* A verb asks all tables first, then writes all of them; hooks are called after the last write of the outermost call. All
  refusals come before the first write; after that only a bug can raise, or an interrupt, which closes the ledger.
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

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from blocklife.core import _couplings as couplings
from blocklife.core import _plans as plans
from blocklife.core import _verbs as verbs
from blocklife.core._moves import ask_job, fire_request
from blocklife.core._refused import KernelRefusal, Why
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
    STORE,
)
from blocklife.errors import CapacityError, MisuseError
from blocklife.hook_errors import HookErrors, OnError
from blocklife.ledger import _edge as edge
from blocklife.ledger._checks import Checks
from blocklife.ledger._ids import NULL, Lives
from blocklife.ledger._journal import Journal, anew, verb
from blocklife.ledger._limits import Checking, Contract, Limits, Statistics, check_member
from blocklife.ledger._plan import plan_of
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
    JobColumns,
    Jobs,
    Out,
    Planned,
    Sealed,
    Storable,
    Store,
    Submitted,
    Unwanted,
)
from blocklife.ledger.records import (
    Completion,
    Growth,
    JobId,
    Launched,
    LedgerTransition,
    Placement,
    Plan,
    Refusal,
    Seal,
    Worker,
)
from blocklife.ledger.views import BlocksView, JobsView, RequestsView, SlotsView, prefix_of, statistics_of
from blocklife.lifecycle import Subscription, What, painted
from blocklife.states import Block, Job, Request, Slot

_NOTHING: tuple[()] = ()
"""Stands for arguments that were not given, which need no check."""


class Ledger(edge.NotCopied):
    """Owns the blocks and slots, the jobs, and the block tables of the requests.

    ``incarnation`` is part of every job's identity; use a new one for each start of the scheduler process. ``deadline`` is how
    long a job may run after its first worker reported the launch, or after a plan waits for it, in the engine's unit of time.
    ``own_pool`` says who hands out blocks: the ledger (`allocate`), or the engine's own allocator (`observe_allocate`). If such
    an engine also does its own prefix look-up, pass ``indexed=False``: the ledger then keeps no index of the device's content.

    `blocks`, `slots`, `jobs` and `requests` are read-only views; only verbs change anything.

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
        self._rows = RowVerbs(data, self._check)
        self._journal: Journal = data.journal
        self._journal.recheck = self._check.judged
        self.calls = self._journal
        """The outermost call that is being made; for `verb` and `call`."""
        self.limits = limits
        self.contract = contract
        self.checking = checking
        self.incarnation = incarnation
        self.deadline = deadline
        self.own_pool = own_pool
        self.holders: Mapping[str, Mapping[int, int]] = data.holders
        """Pins on slots besides those of jobs, by holder."""
        self.hook_errors: HookErrors = data.journal.errors
        """What hooks, watchers of slots and other code of the user have raised."""
        self.blocks = BlocksView(data)
        self.slots = SlotsView(data)
        self.jobs = JobsView(data)
        self.requests = RequestsView(data)

    @property
    def tally(self) -> Mapping[str, int]:
        """Counts of late, duplicate and unknown reports, stale references, and violations."""
        return self._state.tally

    @property
    def flushes(self) -> Mapping[str, int]:
        """Number of flushes (waits for a copy), by cause."""
        return Counter(self._core.flushes)

    @property
    def ended(self) -> Mapping[str, int]:
        """Number of jobs, by terminal state."""
        return self._state.ended

    @property
    def moved(self) -> Mapping[str, int]:
        """Number of blocks moved by jobs that are DONE, by direction; of slots, for demotions and promotions."""
        return self._state.moved

    # --- hooks and reading --------------------------------------------------------------------------------------------------

    def on(
        self,
        *what: What,
        entered: Block | Slot | Job | Request | None = None,
        left: Block | Slot | Job | Request | None = None,
        hook: Callable[[LedgerTransition], object] | None = None,
    ) -> Subscription[LedgerTransition]:
        """Register a hook for committed steps, ``ledger.on(entered=Block.STALE, hook=print)``; see `Hooks.on`."""
        return self._journal.hooks.on(*what, entered=entered, left=left, hook=hook)

    def on_refusal(self, hook: Callable[[Refusal], object] | None = None) -> Subscription[Refusal]:
        """Register a hook for events that a table refuses (not for lack of room, unknown names or lives that are over)."""
        return Subscription(self._journal.refusals, hook=hook)

    def life(self, block: int) -> int:
        """The current life of a block."""
        self._check.blocks([edge.whole(block, "block")])
        return self.blocks.life(block)

    def table(self, request: str, group: int = 0) -> list[int]:
        """The lives that a request holds in one group."""
        self._check.group(group)
        return self._check.held(self._check.request(request), group)

    def request_state(self, request: str) -> Request:
        """The state of a request that is not over."""
        self._check.request(request)
        return self.requests.at(request)

    def job_state(self, job: JobId) -> Job:
        """The state of a job; `LateError` if it ended too long ago to be known, `MisuseError` if it never existed."""
        return self._state.job(self._check.job(edge.job_id(job, "job"))).state

    def find_blocks(self, keys: Iterable[bytes], group: int = 0) -> list[int]:
        """The lives that hold the longest cached prefix of *keys*; take a hit with `acquire`."""
        self._check.group(group)
        return prefix_of(self.blocks.find, edge.keys(keys, "keys"), group)

    def find_slots(self, keys: Iterable[bytes], group: int = 0) -> list[int]:
        """The READY slots that hold the longest prefix of *keys*."""
        self._check.group(group)
        return prefix_of(self.slots.find_ready, edge.keys(keys, "keys"), group)

    @property
    def free(self) -> int:
        """How many blocks `allocate` can hand out without a wait."""
        return self._core.blocks.free

    def has_room(self, count: int) -> bool:
        """Whether `allocate` would find that many blocks now; under fence, blocks that a copy still reads count."""
        return verbs.has_room(self._core, edge.whole(count, "count"))

    def statistics(self) -> Statistics:
        """Count everything now."""
        return statistics_of(self._state)

    def history(self, machine: str, place: int) -> list[str]:
        """The latest steps of one place that are still in the journal, oldest first, for error messages and reports."""
        return self._journal.history(edge.text(machine, "machine"), edge.whole(place, "place"))

    @property
    def plan_number(self) -> int:
        """The number of the latest plan; 0 before the first."""
        return self._core.plan

    @property
    def journal(self) -> list[LedgerTransition]:
        """The latest steps, oldest first, up to ``max_journal`` steps of places."""
        return self._journal.records()

    @property
    def plans_out(self) -> tuple[int, ...]:
        """The plans that have not settled, oldest first."""
        return tuple(self._core.waiting)

    def has_pending_work(self) -> bool:
        """Whether steps are still needed: a job is outstanding, or a wait is not yet in a plan or not yet proven."""
        return bool(self._core.jobs.live or self._core.to_flush or self._core.waiting)

    # --- requests -----------------------------------------------------------------------------------------------------------

    @verb
    def add_request(self, request: str) -> None:
        """Add a request; it is WAITING. Refuses a name in use, and more than ``max_requests`` requests."""
        if self._core.requests.by_name.get(edge.text(request, "request"), -1) >= 0 and request in self.requests:
            raise MisuseError(f"request {request}: it is known already (finish it first)")
        if self._core.requests.live >= self.limits.max_requests:
            raise CapacityError(f"all {self.limits.max_requests} requests are in use; finish one first (max_requests)")
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

    @verb
    def finish_many(self, requests: Sequence[str]) -> None:
        """`finish` several requests at once; a block that several of them hold is released by each. Edges: as `finish`."""
        rows = [self._check.request(request) for request in edge.texts(requests, "requests")]
        if len(set(requests)) != len(rows):
            raise MisuseError(f"{len(rows)} requests cannot be finished at once, for one of them is named twice")
        verbs.finish_many(self._core, rows)

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
        self._hand_out([row], [count], [group], (), f"request {request}")
        return Batch(self.requests.held(request, group, -count), group)

    def _hand_out(
        self, rows: Sequence[int], counts: Sequence[int], groups: Sequence[int], skips: Sequence[int], who: str
    ) -> None:
        try:
            verbs.allocate(self._core, rows, counts, groups, skips)
        except KernelRefusal as problem:
            if problem.why is Why.NO_ROOM:
                raise self._state.refusals.of_room(problem.place, problem.other, who) from None
            raise

    @verb
    def allocate_many(
        self, requests: Sequence[str], counts: Sequence[int], groups: int | Sequence[int] = 0, *, skips: Sequence[int] = ()
    ) -> list[list[int]]:
        """`allocate` for several requests at once, all or none; returns the lives that each of them got.

        *groups* is one group, or one for each entry; a request may appear once for each of its groups.
        *skips* says how many null blocks to append before the blocks of each request, as `skip` does.
        """
        rows, own_groups = self._check.rows(requests, groups)
        self._check.pool(own=True)
        counts = edge.counts(counts, "counts")
        skips = edge.counts(skips, "skips")
        if len(counts) != len(rows) or min(counts, default=1) < 1:
            raise MisuseError(f"{len(rows)} requests cannot allocate {list(counts)[:8]} blocks (ask for at least 1 each)")
        if skips and (len(skips) != len(rows) or min(skips) < 0):
            raise MisuseError(f"{len(rows)} requests cannot skip {list(skips)[:8]} blocks")
        if not rows:
            return []
        who = f"request {requests[0]}" if len(rows) == 1 else f"{len(rows)} requests"
        self._hand_out(rows, counts, own_groups, skips, who)
        # those of a request that comes twice are not all at the end of its table
        lives, start = [self.blocks.life(self._core.ids[at]) for at in range(sum(counts))], 0
        found: list[list[int]] = []
        for count in counts:
            found.append(lives[start : start + count])
            start += count
        return found

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
    def reopen(self, request: str, position: int, group: int = 0) -> Batch[Allocated]:
        """The request writes on its final block: that life is over, and another one begins in the same block.

        Edges: `release`, then `allocate`; under fence the next plan waits for a store that reads it. Refuses: no final content;
        content that others hold, too, or, under hold, that a store reads (copy it: nobody may write on that).
        """
        row = self._check.request(request)
        self._check.group(group)
        place = self._check.reopened(row, edge.whole(position, "position"), group)
        return Batch([verbs.reopen(self._core, row, group, position, place)], group)

    @verb
    def release_many(
        self, requests: Sequence[str], positions: Sequence[Sequence[int]], groups: int | Sequence[int] = 0
    ) -> None:
        """`release` for several requests at once, all or none; *groups* as in `allocate_many`."""
        rows, own_groups = self._check.rows(requests, groups)
        chosen = edge.spans(positions, "positions")
        if len(chosen) != len(rows) or len(set(zip(rows, own_groups, strict=True))) != len(rows):
            raise MisuseError(f"{len(rows)} requests and {len(chosen)} lists of positions do not agree, or one comes twice")
        verbs.release_many(self._core, rows, own_groups, chosen)

    @verb
    def seal(self, held: Batch[Allocated], keys: Sequence[bytes]) -> Batch[Sealed]:
        """Declare content final and give it its key.

        Edges: block ALLOCATED → SEALED; PLEDGED → PENDING_STORE. A life that is over by now is skipped and counted.
        Refuses: FLUSHED, whose wait is not proven, and every state in which no content is being computed.
        """
        given, keys = edge.numbers(edge.held(held, "held"), "held"), edge.keys(keys, "keys")
        if len(keys) != len(given):
            raise MisuseError(f"{len(given)} blocks to seal and {len(keys)} keys do not agree")
        self._check.group(held.group)
        stale = self._core.stale
        verbs.seal(self._core, [(held.group, given, keys)])
        if self._core.stale != stale:
            given = [life for life in given if self.blocks.is_current(life)]
        return Batch(given, held.group)

    @verb
    def seal_many(self, seals: Iterable[Seal]) -> None:
        """`seal` in several groups at once, all or none. Edges and refusals: as `seal`."""
        verbs.seal(self._core, self._check.seals(edge.seals(seals, "seals")))

    @verb
    def drop(self, lives: Lives) -> None:
        """Forget content that no request holds.

        Edges: block CACHED → FREED, PENDING_STORE → FREED (its store is cancelled), IN_FLIGHT → STALE.
        Refuses: a life that is over, or held.
        """
        verbs.drop(self._core, edge.numbers(lives, "lives"))

    @verb
    def hand_out_first(self, lives: Lives) -> None:
        """Hand out these blocks, if CACHED, before others: their content also exists elsewhere."""
        self._check.pool(own=True)
        verbs.hand_out_first(self._core, edge.numbers(lives, "lives"))

    @verb
    def roll_back(self, request: str) -> None:
        """Roll back a failed admission: release everything that a waiting request holds. Its state stays.

        Refuses a request that is RUNNING or LOADING (preempt or finish it).
        """
        row = self._check.request(request)
        state = self._core.requests.state[row]
        if not self._core.rules.request_trait[state] & ADMISSIBLE_:
            raise MisuseError(
                f"request {request}: cannot ROLL_BACK while {self.requests.at(request).name} (preempt or finish it)"
            )
        couplings.release_all(self._core, row)

    # --- blocks of an allocator that the engine owns ------------------------------------------------------------------------

    @verb
    def observe_allocate(self, request: str, blocks: Sequence[int], group: int = 0) -> Batch[Allocated]:
        """The engine's allocator has handed these blocks to a request. Edges and couplings: as `allocate`.

        Refuses: a block that the contract does not allow to be handed out, named with its state.
        """
        self._check.pool(own=False)
        row = self._check.request(request)
        self._check.group(group)
        chosen = self._check.blocks(blocks)
        verbs.place(self._core, [row], [group], [()], [chosen])
        return Batch(self.requests.held(request, group, -len(chosen)) if chosen else [], group)

    @verb
    def observe_take(self, request: str, blocks: Sequence[int], group: int = 0) -> Batch[Sealed]:
        """A prefix hit of the engine: one more request holds the current lives of these blocks. They are not handed out."""
        self._check.pool(own=False)
        chosen = self._check.blocks(blocks)
        return self.acquire(request, [self.blocks.life(block) for block in chosen], group)

    @verb
    def observe_place(self, request: str, placements: Sequence[Placement]) -> None:
        """The engine's allocator has extended tables of one request: `skip`, `observe_take`, `observe_allocate`; all or none.

        Refuses: as those do, and a block that is named twice.
        """
        self._check.pool(own=False)
        row = self._check.request(request)
        placed = edge.placements(placements, "placements")
        self._check.blocks([block for each in placed for block in (*each.taken, *each.allocated)])
        for each in placed:
            self._check.group(each.group)
            if each.skipped < 0:
                raise MisuseError(f"request {request}: cannot skip {each.skipped} blocks")
        verbs.place(
            self._core,
            [row] * len(placed),
            [each.group for each in placed],
            [[*[NULL] * each.skipped, *map(int, each.taken)] for each in placed],
            [[*map(int, each.allocated)] for each in placed],
        )

    @verb
    def observe_tables(self, growth: Growth) -> None:
        """The engine's allocator has extended many tables: `skip`, `observe_take`, `observe_allocate`; all or none.

        Edges, couplings, refusals: as those; also refuses a block that is both a hit and handed out in the same call.
        """
        self._check.pool(own=False)
        edge.growth(growth, "growth")
        rows, groups = self._check.rows(growth.names, growth.groups)
        self._check.blocks([block for own in growth.fresh for block in own if block != NULL], "growth.fresh")
        for own in growth.taken:
            if own:
                self._check.blocks([block for block in own if block != NULL], "growth.taken")
        verbs.place(self._core, rows, groups, growth.taken, growth.fresh)

    @verb
    def observe_free(self, request: str, blocks: Sequence[int], group: int = 0) -> None:
        """A request has given these blocks back. Refuses a block that the request does not hold (I4)."""
        self._check.pool(own=False)
        row = self._check.request(request)
        self._check.group(group)
        verbs.release(self._core, row, group, self._check.positions(row, blocks, group))

    @verb
    def observe_evict(self, blocks: Sequence[int]) -> None:
        """The engine has forgotten the content of these cached blocks."""
        self._check.pool(own=False)
        verbs.drop(self._core, [self.blocks.life(block) for block in self._check.blocks(blocks)])

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    @verb
    def plan_store(
        self,
        source: Batch[Storable],
        slots: Sequence[int],
        keys: Sequence[bytes],
        *,
        owner: str | None = None,
        places: Sequence[int] | None = None,
    ) -> Jobs[Planned]:
        """`plan_stores` for one store with one transfer."""
        where = None if places is None else edge.places(places, "places")
        lives, chosen = edge.numbers(edge.held(source, "source"), "source"), edge.numbers(slots, "slots")
        named, who = edge.keys(keys, "keys"), None if owner is None else edge.text(owner, "owner")
        transfer = GroupTransfer(Batch[Storable](lives, source.group), chosen, named, where)
        return self._planning.stores([Store(who, [transfer])])

    @verb
    def plan_stores(self, stores: Sequence[Store]) -> Jobs[Planned]:
        """Reserve slots for the content of blocks and pin both: one job for each store, all or none.

        Edges: job (new) → PLANNED; block ALLOCATED → PLEDGED, SEALED, CACHED → PENDING_STORE; slot EMPTY → WRITING.
        Holds: one pin on each block until the job is terminal.
        Needs: one key per slot; the host place of each block, if that is not the slot itself.
        Refuses: a life that is over or of another group; a key that is stored already (I14; a second store of the same content
        may be planned while the first is on its way, and is dropped if the first lands before it); lengths that do not match
        (I15); `CapacityError` if there are ``max_jobs`` jobs already.
        Next: `dispatch`, or `cancel`.
        """
        planned = edge.stores(stores, "stores")
        return self._planning.stores(planned)

    @verb
    def plan_columns(self, stores: JobColumns) -> list[int]:
        """`plan_stores` for stores given as columns, which the ledger keeps; returns the numbers of the jobs."""
        rows = self._planning.columns(STORE, edge.columns(stores, "stores", self.limits.num_groups))
        return [self._core.jobs.number[row] for row in rows]

    @verb
    def plan_load(
        self,
        request: str,
        target: Batch[Allocated],
        slots: Sequence[int],
        *,
        keys: Sequence[bytes] | None = None,
        places: Sequence[int] | None = None,
    ) -> Jobs[Planned]:
        """`plan_group_load` with one transfer; *keys* are those of the blocks, if a slot holds several."""
        blocks: Batch[Allocated] = Batch(edge.numbers(edge.held(target, "target"), "target"), target.group)
        chosen, where = edge.numbers(slots, "slots"), None if places is None else edge.places(places, "places")
        names = None if keys is None else edge.keys(keys, "keys")
        self._check.group(target.group)
        self._check.slots(chosen)
        named = [self.slots.key(slot) for slot in chosen]
        if None in named:  # an empty slot is refused with a better message than a missing key would give
            verbs.ask_chosen_slots(self._core, self._core.rules.pin, chosen)
        known = [key for key in named if key is not None]
        return self._planning.load(self._check.request(request), [GroupTransfer(blocks, chosen, known, where, names)], False)

    @verb
    def plan_group_load(
        self, request: str, transfers: Sequence[GroupTransfer[Allocated]], *, within: bool = False
    ) -> Jobs[Planned]:
        """Fill blocks that *request* holds from READY slots, in one job for all groups; the request waits.

        *within*: so does the plan that submits the load, before its forward pass; `dispatch` leaves the job AWAITED.
        Edges: job (new) → PLANNED; block ALLOCATED, FLUSHED → LOADING; slot READY, pinned; request → LOADING.
        Holds: one pin on each block and slot until the job is terminal; the blocks are never handed out before that.
        Needs: the key of each block, if a slot holds several; otherwise the key of each slot is that of its block.
        Refuses: a life that is over or that the request does not hold; a slot whose content has another key; a second live
        load; `CapacityError` as `plan_stores`.
        Next: `dispatch`; the request takes ``loaded`` or ``load_failed`` in `settle`.
        """
        parts = edge.transfers(transfers, "transfers")
        return self._planning.load(self._check.request(request), parts, edge.flag(within, "within"))

    @verb
    def plan_demotion(self, slots: Sequence[int], *, space: bytes = b"") -> Jobs[Planned]:
        """Copy the content of READY slots to the store below, in one job; the slots keep it.

        Edges: job (new) → PLANNED; slot READY, with one pin of the job until it is terminal. Refuses: a slot without final
        content; `CapacityError` as `plan_stores`. Next: `dispatch`, or `cancel`. *space*: see `TierTransfer`.
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
        `CapacityError` as `plan_stores`. Next: `dispatch`, or `cancel`. *space*: see `TierTransfer`.
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
        a plan carries that wait.
        """
        rows = self._check.job_rows(edge.job_ids(jobs, "jobs"))
        for row in rows:
            couplings.ask_submit(self._core, row)
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

    def jobs_of(self, *requests: str) -> Jobs[Out]:
        """The submitted jobs made for any of these requests, which a preemption flushes, the oldest first."""
        known = self._core.requests.by_name
        rows = {known[name] for name in edge.texts(requests, "requests") if name in known}
        return Jobs(tuple([self._state.id_of(job) for job in plans.serving(self._core, rows) if not self._is_planned(job)]))

    def _is_planned(self, row: int) -> bool:
        return bool(self._core.rules.job_trait[self._core.jobs.state[row]] & PLANNED)

    def submitted(self, *, on_device: bool = False) -> Jobs[Out]:
        """All jobs that the workers have: submitted and not over. With *on_device* those that touch blocks of the device."""
        edge.flag(on_device, "on_device")
        out = [job for job in self._state.alive() if not self._is_planned(job.row)]
        return Jobs(tuple(self._state.id_of(job.row) for job in out if job.direction.on_device or not on_device))

    # --- the step -----------------------------------------------------------------------------------------------------------

    @verb
    def dispatch(self, now: float) -> Plan:
        """Submit every planned job that can be submitted, and return the plan of this step.

        A store whose content is not sealed yet stays planned. The deadline of every job that the plan waits for starts now, if
        it has not started: otherwise a wait for a copy that its worker still holds back might never end.
        """
        edge.moment(now, "now")
        if len(self._core.waiting) >= self.limits.max_plans:
            raise CapacityError(f"all {self.limits.max_plans} plans are out; settle one first (max_plans)")
        return plan_of(self._state, plans.dispatch(self._core, now))

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
            self._state.holders.setdefault(holder, Counter()).update(chosen)

    @verb
    def unpin(self, holder: str, slots: Sequence[int]) -> None:
        """Release pins on slots. Refuses a slot that this holder has not pinned (I4)."""
        edge.text(holder, "holder")
        chosen = edge.numbers(slots, "slots")
        self._check.slots(chosen)
        held, wanted = self._state.holders.get(holder, Counter()), Counter(chosen)
        for slot in wanted - held:
            raise MisuseError(f"slot {slot}: {holder} does not hold it (only its holder may unpin it)")
        verbs.move_chosen_slots(self._core, self._core.rules.unpin, chosen)
        held.subtract(wanted)
        self._state.holders[holder] = +held
        if not self._state.holders[holder]:
            del self._state.holders[holder]

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
    def reset(self, *, drain: bool = False, host: bool = True) -> None:
        """Forget all content, including the lower tier unless *host* is False.

        Requests are preempted, planned jobs cancelled, submitted ones abandoned (without *host*, stores go on until they land);
        places that a copy touches stay reserved until it lands. A request that stands for another owner, who still reads its
        blocks, is preempted like all others: wait until it has finished. With ``drain``: refuses with `CapacityError`, which
        says how many, while jobs are outstanding.
        """
        edge.flag(drain, "drain")
        edge.flag(host, "host")
        if drain and self._core.jobs.live:
            raise CapacityError(f"{some(self._core.jobs.live, 'job')} still out (wait until all have landed, then reset again)")
        plans.reset(self._core, host)

    @verb
    def forget_host(self) -> None:
        """Forget the content of the lower tier only.

        Planned stores, promotions and demotions are cancelled, submitted ones abandoned; loads go on, and their slots stay
        reserved until they land. Edges: slot READY → EMPTY, or STALE if a copy reads it.
        """
        plans.forget_host(self._core)

    def snapshot(self, names: Names | None = None, *, now: float = 0.0) -> Snapshot:
        """The complete state of the ledger as a value, with *names* replaced if given.

        Deadlines are stored relative to *now*, or to the time in *names*. Statistics and the journal are not included.
        """
        edge.moment(now, "now")
        return take(self._state, own_names(self, now=now) if names is None else edge.member(names, Names, "names"))

    @anew
    def restore(self, saved: Snapshot, now: float = 0.0) -> None:
        """Go back to a snapshot of a ledger with the same limits. Deadlines go on from *now* with the time they had left.

        Hooks are not called: no place has taken a step.
        """
        edge.moment(now, "now")
        put_back(self._state, edge.member(saved, Snapshot, "saved"), now)

    def violate(self, problem: str) -> None:
        """Handle a broken rule according to the level of checking: raise `InvariantError`, or count it and go on."""
        self._check.violate(problem)

    def __repr__(self) -> str:
        jobs, requests = self._core.jobs.live, len(self.requests)
        return f"<Ledger plan {self.plan_number}: {self.free} free, {jobs} jobs out, {requests} requests>"

    def _repr_html_(self) -> str | None:
        return painted("_repr_html_", self)
