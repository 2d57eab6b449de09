"""The only door: every change to a block, slot, job or request is a verb of `Ledger`; everything else reads.

Rules of this file:

* A verb asks all tables first, then writes all of them, then tells the listeners. What can be refused is refused before the
  first write; past that point only our own bug can fail.
* The ledger is a function of the calls made to it: no clock, no randomness, no threads, no input or output. Time comes in as
  an argument, in whatever unit the engine counts.
* Which place is chosen, and whether anything is copied at all, is policy and stands elsewhere. The one exception is the order
  of free blocks, which belongs to the pool that the ledger owns.

Theory. One engine step is: requests let go and grow (`preempt`, `finish`, `release`, `allocate`, `acquire`), hits become loads
(`plan_load`), stores are planned (`plan_store`), `dispatch` hands the plan to the workers, and `settle` applies what came back.
The couplings between the machines are rows of `states.COUPLINGS`; this file looks the effects of a job's step up there and runs
them in the order in which they are written.
"""

from __future__ import annotations

import heapq
import operator
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger.core import ALL_OK, BLOCK, MORE, PLEDGED, SLOT, Core, Listener, RequestRow, verb
from blocklife.ledger.jobs import (
    TERMINAL,
    Allocated,
    Batch,
    InFlight,
    Jobs,
    Out,
    Planned,
    Sealed,
    Stale,
    Storable,
    Submitted,
)
from blocklife.ledger.limits import Statistics
from blocklife.ledger.places import (
    BULK,
    EPOCH_SHIFT,
    ID_MASK,
    NULL,
    Lives,
    batch,
    every,
    extend,
    ids_of,
    listed,
    select,
)
from blocklife.ledger.records import Completion, Direction, JobId, Launched, Plan, Result, Seal, Transfer
from blocklife.ledger.snapshot import Snapshot, put_back, take
from blocklife.states import MACHINES, Block, BlockLife, Job, Request, RequestLife, Slot, SlotLife


class Ledger(Core):
    """Owns the places, the jobs and the requests' tables.

    ``incarnation`` is part of every job's identity; give each start of the scheduler process another one. ``deadline`` is how
    long a job may run after its first worker reported its launch, or after a plan waits for it, in the engine's unit of time.
    ``own_pool`` says who hands out blocks: the ledger (`allocate`), or an allocator of the engine (`observe_allocate`).

    Verbs refuse with `MisuseError` (nothing has changed), `CapacityError` (the same, try later) or `InvariantError` (a bug).
    """

    # --- listeners and reading ----------------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Call *listener* with every committed batch of transitions, after the verb's last write.

        A listener that raises undoes nothing: all others hear everything, then the verb raises the first such error.
        """
        self._listeners.append(listener)

    def life(self, block: int) -> int:
        """The current life of a block."""
        self._check_blocks([block])
        return self.blocks.epoch[block] << EPOCH_SHIFT | block

    def table(self, request: str, group: int = 0) -> list[int]:
        """The lives that a request holds in one group."""
        self._check_group(group)
        return self._request(request).tables[group].tolist()

    def request_state(self, request: str) -> Request:
        """The state of a request that is not over."""
        found = self.request_column.at(self._request(request).row)
        if not isinstance(found, Request):
            raise TypeError(found)
        return found

    def job_state(self, job: JobId) -> Job:
        """The state of a job that is out or not long over; `MisuseError` where it is unknown."""
        return self.jobs.state(self._job(job))

    def find_blocks(self, keys: Iterable[bytes], group: int = 0) -> list[int]:
        """Lives that hold the content of the longest known prefix of *keys*; a hit is taken with `acquire`."""
        self._check_group(group)
        index, blocks = self.blocks.index[group], self.blocks
        found: list[int] = []
        for key in keys:
            place = index.get(key)
            if place is None:
                break
            found.append(blocks.epoch[place] << EPOCH_SHIFT | place)
        return found

    def find_slots(self, keys: Iterable[bytes], group: int = 0) -> list[int]:
        """Slots that are READY with the content of the longest prefix of *keys*."""
        self._check_group(group)
        index, state = self.slots.index[group], self.slots.column.state
        ready = SlotLife.table.index[Slot.READY]
        found: list[int] = []
        for key in keys:
            place = index.get(key)
            if place is None or state[place] != ready:
                break
            found.append(place)
        return found

    @property
    def free(self) -> int:
        """Blocks that `allocate` can give without any wait."""
        return self.blocks.free

    def statistics(self) -> Statistics:
        """Count everything now."""
        blocks = {state.name: count for state, count in self.blocks.column.count().items()}
        blocks[Block.FREED.name] -= 1  # the null block is not a place
        idle = self.blocks.refs_view == 0
        state, index = self.blocks.column.view, BlockLife.table.index
        copying = (state == index[Block.PENDING_STORE]) | (state == index[Block.IN_FLIGHT])
        soon = int(np.count_nonzero(idle & copying)) + blocks[Block.STALE.name]
        return Statistics(
            blocks=blocks,
            slots={state.name: count for state, count in self.slots.column.count().items()},
            jobs_alive=self.jobs.live,
            requests=len(self.requests),
            free=self.blocks.free,
            freeing_soon=soon,
            quarantined=blocks[Block.QUARANTINED.name],
            late=self.tally["late"],
            duplicate=self.tally["duplicate"],
            unknown=self.tally["unknown"],
            stale=self.tally["stale"],
            violations=self.tally["violations"],
        )

    def history(self, machine: str, place: int) -> list[str]:
        """The latest steps of one place that the journal still holds, oldest first, for error messages and reports."""
        table = MACHINES[machine]
        return [
            f"plan {each.plan}: {table.row(row)}" + (f" (job {each.job})" if each.job else "")
            for each in self.journal
            if each.machine == machine
            for where, row in each.steps()
            if where == place
        ]

    def has_pending_work(self) -> bool:
        """Whether ticking must go on: a job is out, or a wait is not yet in a plan or not yet proven."""
        return bool(self.jobs.live or self._to_flush or self._waiting)

    # --- requests -----------------------------------------------------------------------------------------------------------

    @verb
    def add_request(self, request: str) -> None:
        """Know a request. State: WAITING. Refuses a name that is in use, and more than ``max_requests``."""
        if request in self.requests:
            raise MisuseError(f"request {request}: it is known already (finish it first)")
        if not self._spare_requests:
            raise CapacityError(f"all {self.limits.max_requests} requests are in use; finish one first (max_requests)")
        row = self._spare_requests.popleft()
        self.request_column.state[row] = RequestLife.table.index[RequestLife.table.initial]
        self.requests[request] = RequestRow(row, request, [array("q") for _ in range(self.limits.num_groups)])

    @verb
    def admit(self, request: str) -> None:
        """Edges: request WAITING, PREEMPTED → RUNNING."""
        self._fire_request(self._request(request), "admit")

    @verb
    def preempt(self, request: str) -> None:
        """Give all blocks back; a planned load is cancelled, a submitted one abandoned. Edges: request → PREEMPTED."""
        found = self._request(request)
        self._ask_request(found, "preempt")
        self._give_up(found, "preempt")

    @verb
    def finish(self, request: str) -> None:
        """Give all blocks back for good, in any state; the name is free again. Edges: request → FINISHED."""
        found = self._request(request)
        self._give_up(found, "finish")
        del self.requests[request]
        self._spare_requests.append(found.row)

    # --- blocks -------------------------------------------------------------------------------------------------------------

    @verb
    def allocate(self, request: str, count: int, group: int = 0) -> Batch[Allocated]:
        """Hand out *count* blocks and append them to the request's table.

        Edges: block FREED, CACHED → ALLOCATED; under fence also PENDING_STORE → ALLOCATED (its store is cancelled) and
        IN_FLIGHT, STALE → FLUSHED (the wait goes into the next plan).
        Refuses: `CapacityError` if there are fewer; it says how many are free and how many are freeing soon.
        """
        found = self._request(request)
        self._check_pool(own=True)
        self._check_group(group)
        if operator.index(count) < 1:
            raise MisuseError(f"request {request}: cannot allocate {count} blocks (ask for at least 1)")
        ids = self.blocks.queue.peek(count)
        if (short := count - len(ids)) > 0:
            copied = self._copied()
            lent = self.blocks.lendable(copied)[:short].tolist() if self._fence else []
            if len(lent) < short:
                self._refuse_allocation(found, count, copied)
            ids = [*listed(ids), *lent]
        return self._hand_out(found, batch(ids), group)

    @verb
    def acquire(self, request: str, lives: Lives, group: int = 0) -> Batch[Sealed]:
        """Hold lives that others may hold too, and append them to the table: a prefix hit.

        Edges: block CACHED → SEALED; the other keyed states stay.
        Refuses: a life that is over, one that is named twice, and one that the table holds already.
        """
        found = self._request(request)
        self._check_group(group)
        chosen = batch(lives)
        ids = self._check_fresh(chosen, "acquire")
        self._check_tenancy(found.tables[group], chosen, request)
        self._commit(self.blocks.ask(BLOCK["acquire"], ids, refs=+1))
        extend(found.tables[group], chosen)
        return Batch(chosen, group)

    @verb
    def release(self, request: str, positions: Sequence[int], group: int = 0) -> None:
        """Let go of some places of the table (those that a window has left); `NULL` takes their place. Nulls are passed over.

        Edges: as `finish`, for these blocks.
        """
        found = self._request(request)
        self._check_group(group)
        table = found.tables[group]
        if len(positions) >= BULK:
            self._release_many(found, batch(positions), group)
            return
        if len(set(positions)) != len(positions) or min(positions, default=0) < 0 or max(positions, default=-1) >= len(table):
            raise MisuseError(
                f"request {request}: positions must be distinct and below {len(table)}, not {list(positions)[:8]}"
            )
        lives = batch([table[each] for each in positions if table[each] != NULL])
        self._release(lives)
        for each in positions:
            table[each] = NULL

    @verb
    def seal(self, held: Batch[Allocated], keys: Sequence[bytes]) -> Batch[Sealed]:
        """Declare content final and name it.

        Edges: block ALLOCATED → SEALED; PLEDGED → PENDING_STORE. A life that is over by now is passed over and counted.
        Refuses: FLUSHED, whose wait is not proven, and every state in which content is not being made.
        """
        if len(keys) != len(held.lives):
            raise MisuseError(f"{len(held.lives)} blocks to seal and {len(keys)} keys do not agree")
        self._check_group(held.group)
        self._check_distinct(held.lives, "seal")
        lives, fresh = held.lives, self.blocks.fresh(held.lives)
        if not every(fresh):
            lives = select(lives, fresh)
            keys = [key for key, keep in zip(keys, fresh, strict=True) if keep]
        ids = ids_of(lives)
        self._check_content(ids, lives, keys, held.group)
        self._commit(self.blocks.ask(BLOCK["seal"], ids))
        self.blocks.name(listed(ids), keys, held.group)
        self.tally["stale"] += len(held.lives) - len(lives)
        return Batch(lives, held.group)

    @verb
    def drop(self, lives: Lives) -> None:
        """Forget content that nobody holds.

        Edges: block CACHED → FREED, PENDING_STORE → FREED (its store is cancelled), IN_FLIGHT → STALE.
        Refuses: a life that is over, or held.
        """
        chosen = batch(lives)
        ids = self._check_fresh(chosen, "drop")
        self._cancel_orphans(self._commit(self.blocks.ask(BLOCK["drop"], ids)))

    # --- blocks of an allocator that the engine owns ------------------------------------------------------------------------

    @verb
    def observe_allocate(self, request: str, blocks: Sequence[int], group: int = 0) -> Batch[Allocated]:
        """The engine's allocator has handed these blocks to a request. Edges and couplings: as `allocate`.

        Refuses: a block that the contract does not allow to be handed out, named with its state.
        """
        self._check_pool(own=False)
        found = self._request(request)
        self._check_group(group)
        return self._hand_out(found, batch(self._check_blocks(blocks)), group)

    @verb
    def observe_take(self, request: str, blocks: Sequence[int], group: int = 0) -> Batch[Sealed]:
        """A prefix hit of the engine: one more request holds the current lives of these blocks. No new tenancy."""
        self._check_pool(own=False)
        return self.acquire(request, self.blocks.lives(batch(self._check_blocks(blocks))), group)

    @verb
    def observe_free(self, request: str, blocks: Sequence[int], group: int = 0) -> None:
        """A request has given these blocks back. Refuses a block that the request does not hold (I4)."""
        self._check_pool(own=False)
        found = self._request(request)
        self._check_group(group)
        table = found.tables[group]
        where = {life & ID_MASK: position for position, life in enumerate(table) if life != NULL}
        for block in self._check_blocks(blocks):
            if block not in where:
                raise MisuseError(f"block {block}: request {request} does not hold it (only its holder may free it)")
        self.release(request, [where[block] for block in blocks], group)

    @verb
    def observe_evict(self, blocks: Sequence[int]) -> None:
        """The engine has forgotten the content of these cached blocks."""
        self._check_pool(own=False)
        self.drop(self.blocks.lives(batch(self._check_blocks(blocks))))

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    @verb
    def plan_store(
        self,
        source: Batch[Storable],
        slots: Sequence[int],
        keys: Sequence[bytes],
        *,
        owner: str | None = None,
        group_sizes: tuple[int, ...] = (),
        places: Sequence[int] | None = None,
    ) -> Jobs[Planned]:
        """Reserve *slots* for the content of *source* and pin both ends.

        Edges: job (new) → PLANNED; block ALLOCATED → PLEDGED, SEALED, CACHED → PENDING_STORE; slot EMPTY → WRITING.
        Holds: one pin on each block until the job is terminal.
        Needs: one key per slot; ``places`` are the host places of the blocks where they are not the slots themselves.
        Refuses: a life that is over; a key that is stored or being stored already (I14); sizes that do not add up (I15);
        `CapacityError` when all jobs are out.
        Next: `dispatch`, or `cancel`.
        """
        lives, targets = batch(source.lives), batch(slots)
        where = targets if places is None else batch(places)
        sizes = group_sizes or (len(lives),)
        self._check_group(source.group)
        self._check_sizes(lives, where, targets, len(keys), sizes)
        self._check_fresh(lives, "plan_store")
        if len(set(keys)) != len(keys):
            raise MisuseError(f"key {Counter(keys).most_common(1)[0][0].hex()}: it is named twice in one job (I14)")
        for key in keys:
            if key in self.slots.index[source.group]:
                raise MisuseError(f"key {key.hex()}: it is stored or being stored already (look it up first)")
        ids = ids_of(lives)
        self.jobs.check_room()
        block_step = self.blocks.ask(BLOCK["plan_store"], ids, pins=+1)
        slot_step = self.slots.ask(SLOT["plan_store"], targets)
        for place, key in zip(listed(ids), keys, strict=True) if len(keys) == len(lives) else ():
            own = self.blocks.key[place]
            if own is not None and own != key:
                raise MisuseError(
                    f"block {place}: it holds {own.hex()}, which cannot be stored as {key.hex()} (one content, one key)"
                )
        job = self.jobs.add(Direction.STORE, owner, lives, targets, where, list(keys), source.group, sizes)
        self._commit(block_step, slot_step, job=job.number)
        self.blocks.name_job(ids, job.row)
        self.slots.name(listed(targets), keys, source.group)
        return Jobs((self._id(job),))

    @verb
    def plan_load(
        self,
        request: str,
        target: Batch[Allocated],
        slots: Sequence[int],
        *,
        keys: Sequence[bytes] | None = None,
        group_sizes: tuple[int, ...] = (),
        places: Sequence[int] | None = None,
    ) -> Jobs[Planned]:
        """Fill blocks that *request* holds from READY slots; the request waits.

        Edges: job (new) → PLANNED; block ALLOCATED, FLUSHED → LOADING; slot READY, pinned; request → LOADING.
        Holds: one pin on each block and slot until the job is terminal; the blocks are never handed out before that.
        Needs: ``keys``, one per block, where a slot holds a chunk of several; else the key of each slot is that of its block.
        Refuses: a life that is over or that the request does not hold; a second live load; `CapacityError` as `plan_store`.
        Next: `dispatch`; the request hears ``loaded`` or ``load_failed`` through `settle`.
        """
        found = self._request(request)
        lives, sources = batch(target.lives), batch(slots)
        where = sources if places is None else batch(places)
        sizes = group_sizes or (len(lives),)
        self._check_group(target.group)
        self._check_slots(sources)
        if keys is None:
            keys = [key for key in (self.slots.key[slot] for slot in sources) if key is not None]
        elif len(keys) != len(lives):
            raise MisuseError(f"{len(lives)} blocks to load and {len(keys)} keys do not agree")
        self._check_sizes(lives, where, sources, len(sources), sizes)
        self._check_fresh(lives, "plan_load")
        holds = set(found.tables[target.group])
        for life in listed(lives):
            if life not in holds:
                raise MisuseError(f"block {life & ID_MASK}: request {request} does not hold it (load only into its own blocks)")
        self._ask_request(found, "plan_load")
        self.jobs.check_room()
        block_step = self.blocks.ask(BLOCK["plan_load"], ids_of(lives), pins=+1, writes=+1)
        slot_step = self.slots.ask(SLOT["pin"], sources, pins=+1)
        job = self.jobs.add(Direction.LOAD, request, lives, sources, where, list(keys), target.group, sizes)
        self._commit(block_step, slot_step, job=job.number)
        found.load = job.number
        self._fire_request(found, "plan_load", job.number)
        return Jobs((self._id(job),))

    @verb
    def submit(self, jobs: Jobs[Planned]) -> Jobs[InFlight]:
        """Hand jobs over without `dispatch`; from here on only reports or a proof of quiet end them.

        Edges: job PLANNED → IN_FLIGHT; block PENDING_STORE → IN_FLIGHT, LOADING stays.
        Refuses: a store whose content is not sealed (its block is PLEDGED); a load whose target waits for an older copy, unless
        a plan carries that wait.
        """
        rows = self._rows_of(jobs.ids)
        for job in rows:
            for older in self._older(job) if job.direction is Direction.LOAD else ():
                if older.number in self._to_flush:
                    raise MisuseError(f"job {self._id(job)}: no plan waits for job {self._id(older)} yet (use dispatch)")
        self._submit(rows)
        return Jobs(jobs.ids)

    @verb
    def cancel(self, jobs: Jobs[Planned]) -> None:
        """Give planned stores up without a trace. Edges: job PLANNED → CANCELLED; block, slot as before the plan.

        Refuses: a load, which is given up only with its request (`preempt`, `finish`).
        """
        rows = self._rows_of(jobs.ids)
        for job in rows:
            if job.direction is Direction.LOAD:
                raise MisuseError(f"job {self._id(job)}: a load is given up with its request (preempt or finish it)")
            self._ask_job(job, "cancel")
        for job in rows:
            self._end(job, "cancel", 0)

    @verb
    def abandon(self, jobs: Jobs[Submitted]) -> Jobs[Stale]:
        """Want a result no more; its places stay pinned until it lands. Edges: job IN_FLIGHT, FLUSHED → STALE.

        Refuses: a load, as `cancel` does.
        """
        rows = self._rows_of(jobs.ids)
        for job in rows:
            if job.direction is Direction.LOAD:
                raise MisuseError(f"job {self._id(job)}: a load is given up with its request (preempt or finish it)")
            self._ask_job(job, "abandon")
        for job in rows:
            self._fire_job(job, "abandon")
        return Jobs(jobs.ids)

    @verb
    def flush(self, jobs: Jobs[Out]) -> Jobs[Out]:
        """Order a wait for submitted jobs in the next plan. Edges: job IN_FLIGHT → FLUSHED; STALE, QUARANTINED stay."""
        rows = self._rows_of(jobs.ids)
        for job in rows:
            self._ask_job(job, "flush")
        for job in rows:
            self._flush(job)
        return Jobs(jobs.ids)

    def jobs_of(self, request: str) -> Jobs[Out]:
        """The submitted jobs that a request owns, or owned: what a preemption flushes."""
        alive = (job for job in self.jobs.alive() if job.owner == request)
        return Jobs(tuple(self._id(job) for job in alive if self.jobs.state(job) is not Job.PLANNED))

    def submitted(self) -> Jobs[Out]:
        """All jobs that the workers have."""
        return Jobs(tuple(self._id(job) for job in self.jobs.alive() if self.jobs.state(job) is not Job.PLANNED))

    # --- the step -----------------------------------------------------------------------------------------------------------

    @verb
    def dispatch(self, now: float) -> Plan:
        """Submit every planned job that can be submitted, and hand over the plan of this step.

        A store whose content is not sealed yet stays planned. The deadline of every job that is waited for starts now, if it
        has not started: else a wait for a hung copy that its worker still holds back could never end.
        """
        if len(self._waiting) >= self.limits.max_plans:
            raise CapacityError(f"all {self.limits.max_plans} plans are out; settle one first (max_plans)")
        self.plan_number += 1
        loads: list[Transfer] = []
        stores: list[Transfer] = []
        for job in self.jobs.alive():
            if self.jobs.state(job) is not Job.PLANNED:
                continue
            if (self.blocks.column.view[ids_of(job.lives)] == PLEDGED).any():
                continue
            self._submit([job])
            (stores if job.direction is Direction.STORE else loads).append(self._transfer(job))
        flushed = []
        for number in self._to_flush:
            wanted = self.jobs.by_number.get(number)
            if wanted is not None and self.jobs.state(wanted) not in TERMINAL:
                self._arm(wanted, now)
                flushed.append(wanted)
        self._to_flush.clear()
        self._waiting[self.plan_number] = tuple(job.number for job in flushed)
        return Plan(self.plan_number, tuple(loads), tuple(stores), tuple(self._id(job) for job in flushed))

    @verb
    def settle(
        self,
        plan: int,
        now: float,
        *,
        launched: Iterable[Launched] = (),
        completions: Iterable[Completion] = (),
        seals: Iterable[Seal] = (),
    ) -> None:
        """Apply what came back from the workers after *every* worker has executed plan *plan*.

        The order is the rule: reports of jobs that the plan waited for; then the rest of them are proven quiet (a lost report
        must not hold the new tenant); then all other reports; then seals; then deadlines. Plans settle in order.
        """
        due = next(iter(self._waiting), None)  # plans are dispatched in order
        if plan != due:
            known = "no plan is out" if due is None else f"plan {due} is next"
            raise MisuseError(f"plan {plan}: it cannot settle now ({known})")
        launched, completions, seals = list(launched), list(completions), list(seals)
        self._check_reports(self._waiting[plan], completions, seals)
        for record in launched:
            self.launched(record, now)
        waited = self._waiting.pop(plan)
        later = []
        for completion in completions:
            if completion.job.incarnation == self.incarnation and completion.job.number in waited:
                self.complete(completion)
            else:
                later.append(completion)
        for number in waited:
            job = self.jobs.by_number.get(number)
            if job is not None and self.jobs.state(job) not in TERMINAL:
                self._end(job, "quiesce", 0)
        for completion in later:
            self.complete(completion)
        for seal in seals:
            self.seal(Batch(seal.lives, seal.group), seal.keys)
        self.expire(now)

    @verb
    def launched(self, record: Launched, now: float) -> None:
        """A worker began to run its share: the deadline starts. Late and unknown records change nothing."""
        job = self.jobs.by_number.get(record.job.number) if record.job.incarnation == self.incarnation else None
        if job is not None and self.jobs.state(job) not in (*TERMINAL, Job.PLANNED):
            self._arm(job, now)

    @verb
    def complete(self, completion: Completion) -> None:
        """Apply one worker's report.

        Edges: job `finish`; at the last worker's report the couplings run. Late, duplicate and unknown reports are counted
        and change nothing. Refuses: a worker that does not exist, and a job that nobody has submitted.
        """
        worker, number = int(completion.worker), completion.job.number
        self._check_report(completion)
        if completion.job.incarnation != self.incarnation or not 0 < number <= self.jobs.last_number:
            self.tally["unknown"] += 1
            return
        job = self.jobs.by_number.get(number)
        if job is None:  # over for so long that its row is another job's
            self.tally["late"] += 1
            return
        state = self.jobs.state(job)
        again = job.reported >> worker & 1
        if again:
            self.tally["duplicate"] += 1
        elif state in (*TERMINAL, Job.QUARANTINED, Job.STALE):
            self.tally["late"] += 1
        if again and state not in TERMINAL:
            return
        failed = job.failed or completion.result is not Result.OK
        outstanding = self.limits.num_workers - (job.reported | 1 << worker).bit_count()
        facts = MORE * (outstanding > 0) | ALL_OK * (not failed)
        job.reported |= 1 << worker
        if state in TERMINAL:
            self._fire_job(job, "finish", facts)
            return
        job.failed = failed
        if outstanding:
            self._fire_job(job, "finish", facts)
        else:
            self._end(job, "finish", facts)

    @verb
    def expire(self, now: float) -> Jobs[Job]:
        """Give every job up whose deadline has passed; its places stay pinned, with a doubt.

        Edges: job IN_FLIGHT, FLUSHED, STALE → QUARANTINED, and the couplings. Returns those jobs.
        """
        over = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            job = self.jobs.by_number.get(number)
            if job is None or self.jobs.state(job) in (*TERMINAL, Job.QUARANTINED):
                continue
            over.append(self._id(job))
            self._end(job, "expire", 0)
        return Jobs(tuple(over))

    @verb
    def quiesce(self, jobs: Jobs[Job]) -> None:
        """Accept the engine's proof that the device touches no place of these jobs any more (it was synchronised, or is gone).

        Edges: job → FAILED, or CANCELLED where nobody wanted it; a job in flight is given up first. Jobs that are over: no-op.
        """
        rows = [job for job in self._rows_of(jobs.ids) if self.jobs.state(job) not in TERMINAL]
        for job in rows:
            if self.jobs.state(job) is Job.PLANNED:
                self._ask_job(job, "quiesce")
        for job in rows:
            if self.jobs.state(job) is Job.IN_FLIGHT:
                self._end(job, "expire", 0)
            self._end(job, "quiesce", 0)

    @verb
    def evict(self, slots: Sequence[int]) -> None:
        """Forget the content of slots. Edges: slot READY → EMPTY. Refuses pinned slots and those being written."""
        chosen = batch(slots)
        self._check_slots(chosen)
        self._commit(self.slots.ask(SLOT["evict"], chosen))

    @verb
    def pin(self, holder: str, slots: Sequence[int]) -> None:
        """Count on READY slots until `unpin` by the same holder: they cannot be evicted."""
        chosen = batch(slots)
        self._check_slots(chosen)
        self._commit(self.slots.ask(SLOT["pin"], chosen, pins=+1))
        if len(chosen):
            self.holders.setdefault(holder, Counter()).update(listed(chosen))

    @verb
    def unpin(self, holder: str, slots: Sequence[int]) -> None:
        """Let go of slots. Refuses a slot that this holder has not pinned: nobody releases another's hold (I4)."""
        chosen = batch(slots)
        self._check_slots(chosen)
        held, wanted = self.holders.get(holder, Counter()), Counter(listed(chosen))
        for slot in wanted - held:
            raise MisuseError(f"slot {slot}: {holder} does not hold it (only its holder may unpin it)")
        self._commit(self.slots.ask(SLOT["unpin"], chosen, pins=-1))
        held.subtract(wanted)
        self.holders[holder] = +held
        if not self.holders[holder]:
            del self.holders[holder]

    @verb
    def reset(self, *, drain: bool = False) -> None:
        """Forget all content.

        Now: requests are preempted, planned jobs cancelled, submitted ones abandoned; places that a copy touches stay held
        until it lands. With ``drain``: refuses with `CapacityError` while a job is out, and says how many.
        """
        if drain and self.jobs.live:
            raise CapacityError(f"{self.jobs.live} jobs are still out (let them land, then reset again)")
        running = {RequestLife.table.index[state] for state in (Request.RUNNING, Request.LOADING)}
        for request in list(self.requests.values()):
            if self.request_column.state[request.row] in running:
                self._give_up(request, "preempt")
            else:
                self._let_go(request)
        for job in self.jobs.alive():
            self._give_up_job(job)
        for found in (Block.CACHED, Block.IN_FLIGHT):
            where = self.blocks.column.where(found)
            self._commit(self.blocks.ask(BLOCK["drop"], batch(where)))
        self._commit(self.slots.ask(SLOT["drop"], batch(self.slots.column.where(Slot.READY))))

    def snapshot(self) -> Snapshot:
        """Everything that decides what the ledger does next. What was counted, and the journal, are not part of it."""
        return take(self)

    def restore(self, saved: Snapshot) -> None:
        """Go back to a snapshot of a ledger with the same limits."""
        put_back(self, saved)

    def __repr__(self) -> str:
        return f"<Ledger plan {self.plan_number}: {self.free} free, {self.jobs.live} jobs out, {len(self.requests)} requests>"
