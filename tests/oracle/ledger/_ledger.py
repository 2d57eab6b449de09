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
what they report. The couplings between the machines are rows of `states.COUPLINGS`. The ledger looks the effects of a job's end
up there; those of the rows marked `BY_HAND` are written in its steps (`_steps.py`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tests.oracle.errors import CapacityError, MisuseError
from tests.oracle.hook_errors import HookErrors, OnError
from tests.oracle.ledger import _edge as edge
from tests.oracle.ledger import _rules as rules
from tests.oracle.ledger._checks import Checks
from tests.oracle.ledger._ids import NULL, Lives, batch, entries, extend, ids_of, joined, listed, packed, select
from tests.oracle.ledger._journal import Journal, anew, verb
from tests.oracle.ledger._limits import Checking, Contract, Limits, Statistics, check_member
from tests.oracle.ledger._refusals import some
from tests.oracle.ledger._snapshot import Names, Snapshot, own_names, put_back, take
from tests.oracle.ledger._state import LedgerData, RequestRow
from tests.oracle.ledger._steps import Steps
from tests.oracle.ledger.jobs import (
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
    gather,
)
from tests.oracle.ledger.records import (
    Completion,
    Direction,
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
from tests.oracle.ledger.views import BlocksView, JobsView, RequestsView, SlotsView, prefix_of, statistics_of
from tests.oracle.lifecycle import Subscription, What, painted
from tests.oracle.states import ADMISSIBLE, MACHINES, TERMINAL, Block, BlockLife, Job, Request, RequestLife, Slot

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
        self._state = state = LedgerData(
            limits, contract=contract, checking=checking, incarnation=incarnation,
            deadline=deadline, own_pool=own_pool, indexed=indexed, errors=errors,
        )  # fmt: skip
        self._check = Checks(state)
        self._steps = Steps(state, self._check)
        self._blocks, self._slots, self._jobs = state.blocks, state.slots, state.jobs
        self._journal: Journal = state.journal
        self.calls = self._journal
        """The outermost call that is being made; for `verb` and `call`."""
        self.limits = limits
        self.contract = contract
        self.checking = checking
        self.incarnation = incarnation
        self.deadline = deadline
        self.own_pool = own_pool
        self.tally: Mapping[str, int] = state.tally
        """Counts of late, duplicate and unknown reports, stale references, and violations."""
        self.flushes: Mapping[str, int] = state.flushes
        """Number of flushes (waits for a copy), by cause."""
        self.ended: Mapping[str, int] = state.ended
        """Number of jobs, by terminal state."""
        self.moved: Mapping[str, int] = state.moved
        """Number of blocks moved by jobs that are DONE, by direction; of slots, for demotions and promotions."""
        self.holders: Mapping[str, Mapping[int, int]] = state.holders
        """Pins on slots besides those of jobs, by holder."""
        self.hook_errors: HookErrors = state.journal.errors
        """What hooks, watchers of slots and other code of the user have raised."""
        self.blocks = BlocksView(state)
        self.slots = SlotsView(state)
        self.jobs = JobsView(state)
        self.requests = RequestsView(state)

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
        return self._check.request(request).tables[group].tolist()

    def request_state(self, request: str) -> Request:
        """The state of a request that is not over."""
        self._check.request(request)
        return self.requests.at(request)

    def job_state(self, job: JobId) -> Job:
        """The state of a job; `LateError` if it ended too long ago to be known, `MisuseError` if it never existed."""
        return self._jobs.state(self._check.job(edge.job_id(job, "job")))

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
        return self._blocks.free

    def has_room(self, count: int) -> bool:
        """Whether `allocate` would find that many blocks now; under fence, blocks that a copy still reads count."""
        missing = edge.whole(count, "count") - self._blocks.free
        return missing <= 0 or (self._state.fence and missing <= len(self._steps.lendable(missing)))

    def statistics(self) -> Statistics:
        """Count everything now."""
        return statistics_of(self._state)

    def history(self, machine: str, place: int) -> list[str]:
        """The latest steps of one place that are still in the journal, oldest first, for error messages and reports."""
        edge.whole(place, "place")
        if edge.text(machine, "machine") not in MACHINES:
            raise MisuseError(f"machine {machine!r}: it is not known (known are {', '.join(MACHINES)})")
        return self._journal.history(machine, place)

    @property
    def plan_number(self) -> int:
        """The number of the latest plan; 0 before the first."""
        return self._journal.plan

    @property
    def journal(self) -> list[LedgerTransition]:
        """The latest steps, oldest first, up to ``max_journal`` steps of places."""
        return self._journal.records()

    @property
    def plans_out(self) -> tuple[int, ...]:
        """The plans that have not settled, oldest first."""
        return tuple(self._state.waiting)

    def has_pending_work(self) -> bool:
        """Whether steps are still needed: a job is outstanding, or a wait is not yet in a plan or not yet proven."""
        return bool(self._jobs.live or self._state.to_flush or self._state.waiting)

    # --- requests -----------------------------------------------------------------------------------------------------------

    @verb
    def add_request(self, request: str) -> None:
        """Add a request; it is WAITING. Refuses a name in use, and more than ``max_requests`` requests."""
        if edge.text(request, "request") in self._state.requests:
            raise MisuseError(f"request {request}: it is known already (finish it first)")
        if not self._state.spare_requests:
            raise CapacityError(f"all {self.limits.max_requests} requests are in use; finish one first (max_requests)")
        row = self._state.spare_requests.popleft()
        self._state.request_column.state[row] = RequestLife.table.index[RequestLife.table.initial]
        self._state.requests[request] = RequestRow(row, request, [array("q") for _ in range(self.limits.num_groups)])

    @verb
    def admit(self, request: str) -> None:
        """Edges: request WAITING, PREEMPTED → RUNNING."""
        self._steps.fire_request(self._check.request(request), "admit")

    @verb
    def preempt(self, request: str) -> None:
        """Give all blocks back; a planned load is cancelled, a submitted one abandoned. Edges: request → PREEMPTED."""
        found = self._check.request(request)
        self._check.ask_request(found, "preempt")
        self._steps.give_up(found, "preempt")

    @verb
    def finish(self, request: str) -> None:
        """Give all blocks back for good, in any state; the name is free again. Edges: request → FINISHED."""
        found = self._check.request(request)
        self._steps.give_up(found, "finish")
        self._steps.forget(found)

    @verb
    def finish_many(self, requests: Sequence[str]) -> None:
        """`finish` several requests at once; a block that several of them hold is released by each. Edges: as `finish`."""
        rows = [self._check.request(request) for request in edge.texts(requests, "requests")]
        if len(set(requests)) != len(rows):
            raise MisuseError(f"{len(rows)} requests cannot be finished at once, for one of them is named twice")
        for row in rows:
            if row.load:  # the load is given up before the blocks
                self._steps.give_up(row, "finish")
                self._steps.forget(row)
        rows = [row for row in rows if row.name in self._state.requests]
        held = [entries(table, slice(None)) for row in rows for table in row.tables if table]
        lives, times = np.unique(np.concatenate(held) if held else np.zeros(0, dtype=np.int64), return_counts=True)
        for more in range(int(times[lives != NULL].max(initial=0))):
            self._steps.release(batch(lives[(times > more) & (lives != NULL)]))
        for row in rows:
            self._steps.fire_request(row, "finish")
            self._steps.forget(row)

    # --- blocks -------------------------------------------------------------------------------------------------------------

    @verb
    def allocate(self, request: str, count: int, group: int = 0) -> Batch[Allocated]:
        """Hand out *count* blocks and append them to the request's table.

        Edges: block FREED, CACHED → ALLOCATED; under fence also PENDING_STORE → ALLOCATED (its store is cancelled) and
        IN_FLIGHT, STALE → FLUSHED (the wait goes into the next plan).
        Refuses: `CapacityError` if there are too few; it says how many are free and how many will be soon.
        """
        table = self._check.table(request, group, True)
        count = count if type(count) is int and count <= edge.MOST else edge.whole(count, "count")
        if count < 1:
            raise MisuseError(f"request {request}: cannot allocate {count} blocks (ask for at least 1)")
        lives = self._steps.hand_out(group, who=f"request {request}", count=count)
        if type(lives) is list:
            table.extend(lives)
        else:
            extend(table, lives)
        return Batch(lives, group)

    @verb
    def allocate_many(
        self, requests: Sequence[str], counts: Sequence[int], groups: int | Sequence[int] = 0, *, skips: Sequence[int] = ()
    ) -> list[list[int]]:
        """`allocate` for several requests at once, all or none; returns the lives that each of them got.

        *groups* is one group, or one for each entry; a request may appear once for each of its groups.
        *skips* says how many null blocks to append before the blocks of each request, as `skip` does.
        """
        own_groups, tables = self._check.tables(requests, groups)
        self._check.pool(own=True)
        counts = edge.counts(counts, "counts")
        skips = () if type(skips) is tuple and not skips else edge.counts(skips, "skips")
        if len(counts) != len(tables) or min(counts, default=1) < 1:
            raise MisuseError(f"{len(tables)} requests cannot allocate {list(counts)[:8]} blocks (ask for at least 1 each)")
        if skips and (len(skips) != len(tables) or min(skips) < 0):
            raise MisuseError(f"{len(tables)} requests cannot skip {list(skips)[:8]} blocks")
        if not tables:
            return []
        who = f"request {requests[0]}" if len(tables) == 1 else f"{len(tables)} requests"
        lives = listed(self._steps.hand_out_each(own_groups, counts, who=who, total=sum(counts)))
        given, start = [], 0
        for number, (table, count) in enumerate(zip(tables, counts, strict=True)):
            if skips and skips[number]:
                table.extend([NULL] * skips[number])
            given.append(own := lives[start : start + count])
            table.extend(own)
            start += count
        return given

    @verb
    def skip(self, request: str, count: int, group: int = 0) -> None:
        """Append *count* null blocks to the table: positions outside every window, or for which no state was kept."""
        found = self._check.request(request)
        self._check.group(group)
        if edge.whole(count, "count") < 0:
            raise MisuseError(f"request {request}: cannot skip {count} blocks")
        found.tables[group].extend([NULL] * count)

    @verb
    def acquire(self, request: str, lives: Lives, group: int = 0) -> Batch[Sealed]:
        """Take a prefix hit: hold lives, which others may hold too, and append them to the table.

        Edges: block CACHED → SEALED; the other keyed states stay.
        Refuses: a life that is over, is of another group, is named twice, or is in the table already.
        """
        found = self._check.request(request)
        self._check.group(group)
        chosen = edge.numbers(lives, "lives")
        ids = self._check.fresh(chosen, "acquire")
        self._check.handed_out(ids, group)
        self._check.tenancy(found.tables[group], chosen, request)
        self._steps.move_blocks(rules.ACQUIRE, ids)
        extend(found.tables[group], chosen)
        return Batch(chosen, group)

    @verb
    def release(self, request: str, positions: Sequence[int], group: int = 0) -> None:
        """Release some positions of the table (those that left the window); `NULL` replaces them. Nulls are skipped.

        Edges: as `finish`, for these blocks.
        """
        found = self._check.request(request)
        self._check.group(group)
        self._steps.release_positions(found, edge.numbers(positions, "positions"), group)

    @verb
    def reopen(self, request: str, position: int, group: int = 0) -> Batch[Allocated]:
        """The request writes on its final block: that life is over, and another one begins in the same block.

        Edges: `release`, then `allocate`; under fence the next plan waits for a store that reads it. Refuses: no final content;
        content that others hold, too, or, under hold, that a store reads (copy it: nobody may write on that).
        """
        found = self._check.request(request)
        self._check.group(group)
        place = self._check.reopened(found, edge.whole(position, "position"), group)
        self._steps.release_positions(found, [position], group)
        lives = self._steps.hand_out(group, [place])
        found.tables[group][position] = lives[0]
        return Batch(lives, group)

    @verb
    def release_many(
        self, requests: Sequence[str], positions: Sequence[Sequence[int]], groups: int | Sequence[int] = 0
    ) -> None:
        """`release` for several requests at once, all or none; *groups* as in `allocate_many`."""
        own_groups, tables = self._check.tables(requests, groups)
        positions = edge.spans(positions, "positions")
        if len(positions) != len(tables) or len(set(zip(requests, own_groups, strict=True))) != len(tables):
            raise MisuseError(
                f"{len(tables)} requests and {len(positions)} lists of positions do not agree, or one comes twice"
            )
        self._steps.release_many(requests, tables, positions)

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
        known_fresh = self._check.are_sealable((Seal(held.group, given, keys),))
        if not known_fresh:
            self._check.distinct(given, "seal")
            lives, names = self._check.still_fresh(given, keys)
            self._check.content(ids_of(lives), lives, names, held.group)
        return Batch(self._steps.seal(given, keys, held.group, known_fresh), held.group)

    @verb
    def seal_many(self, seals: Iterable[Seal]) -> None:
        """`seal` in several groups at once, all or none. Edges and refusals: as `seal`."""
        seals = edge.seals(seals, "seals")
        if not seals:
            return
        for each in seals:
            self._check.group(each.group)
            if len(each.keys) != len(each.lives):
                raise MisuseError(f"{len(each.lives)} blocks to seal and {len(each.keys)} keys do not agree")
        fresh: list[tuple[Lives, Sequence[bytes]]] = [(each.lives, each.keys) for each in seals]
        if not self._check.are_sealable(seals):
            given = [batch(each.lives) for each in seals]
            self._check.distinct(joined(given), "seal")
            fresh = [self._check.still_fresh(lives, each.keys) for each, lives in zip(seals, given, strict=True)]
            for each, (lives, keys) in zip(seals, fresh, strict=True):
                self._check.content(ids_of(lives), lives, keys, each.group)
        lives = joined([lives for lives, _ in fresh])
        self._steps.move_blocks(rules.SEAL, ids_of(packed(lives) if type(lives) is list else lives))
        for each, (lives, keys) in zip(seals, fresh, strict=True):
            self._blocks.name(listed(ids_of(lives)), keys, each.group)
            self._state.tally["stale"] += len(each.lives) - len(lives)

    @verb
    def drop(self, lives: Lives) -> None:
        """Forget content that no request holds.

        Edges: block CACHED → FREED, PENDING_STORE → FREED (its store is cancelled), IN_FLIGHT → STALE.
        Refuses: a life that is over, or held.
        """
        chosen = edge.numbers(lives, "lives")
        ids = self._check.fresh(chosen, "drop")
        self._steps.cancel_orphans(self._steps.move_blocks(rules.DROP, ids))

    @verb
    def hand_out_first(self, lives: Lives) -> None:
        """Hand out these blocks, if CACHED, before others: their content also exists elsewhere."""
        self._check.pool(own=True)
        chosen = edge.numbers(lives, "lives")
        self._check.distinct(chosen, "hand_out_first")
        chosen = select(chosen, self._blocks.fresh(chosen))
        cached = BlockLife.table.index[Block.CACHED]
        state = self._blocks.state
        self._blocks.queue.push_front([place for place in listed(ids_of(chosen)) if state[place] == cached])

    @verb
    def roll_back(self, request: str) -> None:
        """Roll back a failed admission: release everything that a waiting request holds. Its state stays.

        Refuses a request that is RUNNING or LOADING (preempt or finish it).
        """
        found = self._check.request(request)
        state = self._state.request_column.at(found.row)
        if state not in ADMISSIBLE:
            raise MisuseError(f"request {request}: cannot ROLL_BACK while {state.name} (preempt or finish it)")
        self._steps.release_all(found)

    # --- blocks of an allocator that the engine owns ------------------------------------------------------------------------

    @verb
    def observe_allocate(self, request: str, blocks: Sequence[int], group: int = 0) -> Batch[Allocated]:
        """The engine's allocator has handed these blocks to a request. Edges and couplings: as `allocate`.

        Refuses: a block that the contract does not allow to be handed out, named with its state.
        """
        self._check.pool(own=False)
        found = self._check.request(request)
        self._check.group(group)
        lives = self._steps.hand_out(group, batch(self._check.blocks(blocks)))
        extend(found.tables[group], lives)
        return Batch(lives, group)

    @verb
    def observe_take(self, request: str, blocks: Sequence[int], group: int = 0) -> Batch[Sealed]:
        """A prefix hit of the engine: one more request holds the current lives of these blocks. They are not handed out."""
        self._check.pool(own=False)
        return self.acquire(request, self._blocks.lives(batch(self._check.blocks(blocks))), group)

    @verb
    def observe_place(self, request: str, placements: Sequence[Placement]) -> None:
        """The engine's allocator has extended tables of one request: `skip`, `observe_take`, `observe_allocate`; all or none.

        Refuses: as those do, and a block that is named twice.
        """
        self._check.pool(own=False)
        found = self._check.request(request)
        placements = edge.placements(placements, "placements")
        self._check.placements(found, placements)
        for each in placements:
            self.skip(request, each.skipped, each.group)
            self.observe_take(request, each.taken, each.group)
            if len(each.allocated):
                self.observe_allocate(request, each.allocated, each.group)

    @verb
    def observe_tables(self, growth: Growth) -> None:
        """The engine's allocator has extended many tables: `skip`, `observe_take`, `observe_allocate`; all or none.

        Edges, couplings, refusals: as those; also refuses a block that is both a hit and handed out in the same call.
        """
        self._check.pool(own=False)
        edge.growth(growth, "growth")
        _, tables = self._check.tables(growth.names, growth.groups)
        fresh = packed(self._check.blocks([block for own in growth.fresh for block in own if block != NULL], "growth.fresh"))
        if any(map(len, growth.taken)):
            self._steps.take_many(growth, tables, fresh)
        self._steps.hand_out_many(growth, tables, fresh)

    @verb
    def observe_free(self, request: str, blocks: Sequence[int], group: int = 0) -> None:
        """A request has given these blocks back. Refuses a block that the request does not hold (I4)."""
        self._check.pool(own=False)
        found = self._check.request(request)
        self._check.group(group)
        self.release(request, self._check.positions(found, blocks, group), group)

    @verb
    def observe_evict(self, blocks: Sequence[int]) -> None:
        """The engine has forgotten the content of these cached blocks."""
        self._check.pool(own=False)
        self.drop(self._blocks.lives(batch(self._check.blocks(blocks))))

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
        if where is not None or not len(lives) == len(chosen) == len(named) > 0:
            transfer = GroupTransfer(Batch[Storable](lives, source.group), chosen, named, where)
            return self._make_stores([Store(who, [transfer])])
        self._check.group(source.group)
        groups = bytes((source.group,)) * len(lives)
        stores = JobColumns.of_blocks([who], [()], [0, len(lives)], lives, groups, chosen, list(named))
        (job,) = self._steps.plan_stores(stores)
        return Jobs((self._state.id_of(job),))

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
        return self._make_stores(edge.stores(stores, "stores"))

    @verb
    def plan_columns(self, stores: JobColumns) -> list[int]:
        """`plan_stores` for stores given as columns, which the ledger keeps; returns the numbers of the jobs."""
        return [job.number for job in self._steps.plan_stores(edge.columns(stores, "stores", self.limits.num_groups))]

    def _make_stores(self, stores: Sequence[Store]) -> Jobs[Planned]:
        if not stores:
            return Jobs(())
        return Jobs(tuple(map(self._state.id_of, self._steps.plan_stores(gather(stores, self.limits.num_groups)))))

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
        named = [key for key in (self._slots.key[slot] for slot in listed(chosen)) if key is not None]
        if len(named) != len(chosen):  # an empty slot is refused below, with a better message than a missing key would give
            self._slots.ask(rules.PIN, chosen)
        return self._make_load(self._check.request(request), [GroupTransfer(blocks, chosen, named, where, names)], False)

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
        return self._make_load(self._check.request(request), parts, edge.flag(within, "within"))

    def _make_load(self, found: RequestRow, transfers: Sequence[GroupTransfer[Allocated]], within: bool) -> Jobs[Planned]:
        columns = gather([Store(found.name, transfers)], self.limits.num_groups)
        job = self._steps.plan_load(found, columns, self._check.load(found, transfers, columns))
        if within:
            self._state.to_flush[job.number] = None
            self._state.flushes["within the step"] += 1
        return Jobs((self._state.id_of(job),))

    @verb
    def plan_demotion(self, slots: Sequence[int], *, space: bytes = b"") -> Jobs[Planned]:
        """Copy the content of READY slots to the store below, in one job; the slots keep it.

        Edges: job (new) → PLANNED; slot READY, with one pin of the job until it is terminal. Refuses: a slot without final
        content; `CapacityError` as `plan_stores`. Next: `dispatch`, or `cancel`. *space*: see `TierTransfer`.
        """
        columns = self._check.demotion(edge.numbers(slots, "slots"), edge.member(space, bytes, "space"))
        return Jobs((self._state.id_of(self._steps.plan_below(Direction.DEMOTE, columns)),))

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
        columns = self._check.promotion(chosen, named, groups, edge.member(space, bytes, "space"))
        return Jobs((self._state.id_of(self._steps.plan_below(Direction.PROMOTE, columns)),))

    @verb
    def submit(self, jobs: Jobs[Planned]) -> Jobs[InFlight]:
        """Submit jobs without `dispatch`; from here on only reports or `quiesce` end them.

        Edges: job PLANNED → IN_FLIGHT; block PENDING_STORE → IN_FLIGHT, LOADING stays.
        Refuses: a store whose content is not sealed (its block is PLEDGED); a load whose target waits for an older copy, unless
        a plan carries that wait.
        """
        rows = self._check.job_rows(edge.job_ids(jobs, "jobs"))
        for job in rows:
            for older in self._steps.older(job) if job.direction is Direction.LOAD else ():
                self._check.waited_for(job, older)
        self._steps.submit(rows)
        return Jobs(jobs.ids)

    @verb
    def cancel(self, jobs: Jobs[Planned]) -> None:
        """Give up planned stores. Edges: job PLANNED → CANCELLED; block, slot as before the plan.

        Refuses: a load, which can only be given up with its request (`preempt`, `finish`).
        """
        rows = self._check.job_rows(edge.job_ids(jobs, "jobs"))
        for job in rows:
            if job.direction is Direction.LOAD:
                raise MisuseError(f"job {self._state.id_of(job)}: a load is given up with its request (preempt or finish it)")
            self._check.ask_job(job, "cancel")
        for job in rows:
            self._steps.end(job, "cancel", 0)

    @verb
    def abandon(self, jobs: Jobs[Submitted]) -> Jobs[Unwanted]:
        """Discard the result of a store; its places stay pinned until it lands. Edges: job IN_FLIGHT, AWAITED → UNWANTED.

        Refuses: a load, as `cancel` does.
        """
        rows = self._check.job_rows(edge.job_ids(jobs, "jobs"))
        for job in rows:
            if job.direction is Direction.LOAD:
                raise MisuseError(f"job {self._state.id_of(job)}: a load is given up with its request (preempt or finish it)")
            self._check.ask_job(job, "abandon")
        for job in rows:
            self._steps.abandon(job)
        return Jobs(jobs.ids)

    @verb
    def flush(self, jobs: Jobs[Out], cause: str = "asked") -> Jobs[Out]:
        """Make the next plan wait for submitted jobs; flushes are counted by *cause*.

        Edges: job IN_FLIGHT → AWAITED; UNWANTED, QUARANTINED stay.
        """
        rows = self._check.job_rows(edge.job_ids(jobs, "jobs"))
        edge.text(cause, "cause")
        for job in rows:
            self._check.ask_job(job, "flush")
        for job in rows:
            self._steps.flush(job, cause)
        return Jobs(jobs.ids)

    def jobs_of(self, request: str) -> Jobs[Out]:
        """The submitted jobs made for a request, which a preemption flushes."""
        owned, planned = self._jobs.owned.get(edge.text(request, "request"), {}), self._jobs.planned
        return Jobs(tuple(self._state.id_of(job) for number, job in owned.items() if number not in planned))

    def submitted(self, *, on_device: bool = False) -> Jobs[Out]:
        """All jobs that the workers have: submitted and not over. With *on_device* those that touch blocks of the device."""
        edge.flag(on_device, "on_device")
        out = [job for number, job in self._jobs.out.items() if number not in self._jobs.planned]
        return Jobs(tuple(self._state.id_of(job) for job in out if job.direction.on_device or not on_device))

    # --- the step -----------------------------------------------------------------------------------------------------------

    @verb
    def dispatch(self, now: float) -> Plan:
        """Submit every planned job that can be submitted, and return the plan of this step.

        A store whose content is not sealed yet stays planned. The deadline of every job that the plan waits for starts now, if
        it has not started: otherwise a wait for a copy that its worker still holds back might never end.
        """
        edge.moment(now, "now")
        if len(self._state.waiting) >= self.limits.max_plans:
            raise CapacityError(f"all {self.limits.max_plans} plans are out; settle one first (max_plans)")
        return self._steps.dispatch(now)

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
        due = next(iter(self._state.waiting), None)  # plans are dispatched in order
        if edge.whole(plan, "plan") != due:
            known = "no plan is out" if due is None else f"plan {due} is next"
            raise MisuseError(f"plan {plan}: it cannot settle now ({known})")
        launched = () if launched is _NOTHING else edge.launches(launched, "launched")
        seals = () if seals is _NOTHING else edge.seals(seals, "seals")
        completions = () if completions is _NOTHING else edge.completions(completions, "completions")
        self._check.reports(self._state.waiting[plan], completions, seals)
        self._steps.settle(plan, now, launched, completions, seals)

    @verb
    def launched(self, record: Launched, now: float) -> None:
        """A worker has launched its share of a job: the deadline starts. Late and unknown records change nothing."""
        edge.moment(now, "now")
        edge.launch(record, "record")
        self._steps.launch(record, now)

    @verb
    def complete(self, completion: Completion) -> None:
        """Apply one worker's report.

        Edges: job `finish`; the couplings run at the last worker's report. Late, duplicate and unknown reports are counted
        and change nothing. Refuses: a worker that does not exist, and a job that was not submitted.
        """
        self._check.report(edge.completion(completion, "completion"))
        self._steps.complete(completion)

    @verb
    def expire(self, now: float) -> Jobs[Job]:
        """Quarantine every job whose deadline has passed; its places stay pinned, and the pins are overdue.

        Edges: job IN_FLIGHT, AWAITED, UNWANTED → QUARANTINED, and the couplings. Returns these jobs.
        """
        edge.moment(now, "now")
        return Jobs(tuple(map(self._state.id_of, self._steps.expire(now))))

    @verb
    def quiesce(self, jobs: Jobs[Job]) -> None:
        """Accept the engine's proof that the device no longer touches the places of these jobs (synchronised, or gone).

        Edges: job → FAILED, or CANCELLED if it was UNWANTED; a job in flight is given up first. No-op for jobs that are over.
        """
        rows = [job for job in self._check.job_rows(edge.job_ids(jobs, "jobs")) if self._jobs.state(job) not in TERMINAL]
        for job in rows:
            if self._jobs.state(job) is Job.PLANNED:
                self._check.ask_job(job, "quiesce")
        for job in rows:
            if self._jobs.state(job) is Job.IN_FLIGHT:
                self._steps.end(job, "expire", 0)
            self._steps.end(job, "quiesce", 0)

    @verb
    def evict(self, slots: Sequence[int]) -> None:
        """Forget the content of slots. Edges: slot READY → EMPTY. Refuses slots that are pinned or being written."""
        chosen = edge.numbers(slots, "slots")
        self._check.slots(chosen)
        self._steps.move_slots(rules.EVICT, chosen)

    @verb
    def pin(self, holder: str, slots: Sequence[int]) -> None:
        """Protect READY slots from eviction until `unpin` by the same holder."""
        edge.text(holder, "holder")
        chosen = edge.numbers(slots, "slots")
        self._check.slots(chosen)
        self._steps.move_slots(rules.PIN, chosen)
        if len(chosen):
            self._state.holders.setdefault(holder, Counter()).update(listed(chosen))

    @verb
    def unpin(self, holder: str, slots: Sequence[int]) -> None:
        """Release pins on slots. Refuses a slot that this holder has not pinned (I4)."""
        edge.text(holder, "holder")
        chosen = edge.numbers(slots, "slots")
        self._check.slots(chosen)
        held, wanted = self._state.holders.get(holder, Counter()), Counter(listed(chosen))
        for slot in wanted - held:
            raise MisuseError(f"slot {slot}: {holder} does not hold it (only its holder may unpin it)")
        self._steps.move_slots(rules.UNPIN, chosen)
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
            raise MisuseError(f"worker {gone}: there are {self.limits.num_workers} (ranks count from 0)")
        self._steps.lose(Worker(gone))

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
        if drain and self._jobs.live:
            raise CapacityError(f"{some(self._jobs.live, 'job')} still out (wait until all have landed, then reset again)")
        self._steps.reset(host=host)

    @verb
    def forget_host(self) -> None:
        """Forget the content of the lower tier only.

        Planned stores, promotions and demotions are cancelled, submitted ones abandoned; loads go on, and their slots stay
        reserved until they land. Edges: slot READY → EMPTY, or STALE if a copy reads it.
        """
        self._steps.forget_host()

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
        return f"<Ledger plan {self.plan_number}: {self.free} free, {self._jobs.live} jobs out, {len(self.requests)} requests>"

    def _repr_html_(self) -> str | None:
        return painted("_repr_html_", self)
