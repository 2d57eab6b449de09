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
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import edge
from blocklife.ledger.book import BLOCK, SLOT, Listener, RefusalListener, RequestRow
from blocklife.ledger.core import Core, verb
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
    gather,
)
from blocklife.ledger.limits import Statistics
from blocklife.ledger.places import (
    EPOCH_SHIFT,
    ID_MASK,
    NULL,
    Lives,
    batch,
    entries,
    extend,
    ids_of,
    listed,
    packed,
    select,
)
from blocklife.ledger.records import Completion, Direction, JobId, Launched, Placement, Plan, Result, Seal, Transfer, Worker
from blocklife.ledger.snapshot import Names, Snapshot, own_names, put_back, take
from blocklife.lifecycle import painted
from blocklife.states import MACHINES, TERMINAL, Block, BlockLife, Job, Request, RequestLife, Slot, SlotLife, Trait, states_with

_NOTHING: tuple[()] = ()
"""What is not given: a default that needs no check."""


class Ledger(Core):
    """Owns the places, the jobs and the requests' tables.

    ``incarnation`` is part of every job's identity; give each start of the scheduler process another one. ``deadline`` is how
    long a job may run after its first worker reported its launch, or after a plan waits for it, in the engine's unit of time.
    ``own_pool`` says who hands out blocks: the ledger (`allocate`), or an allocator of the engine (`observe_allocate`).

    Verbs refuse with `MisuseError` (nothing has changed), `CapacityError` (the same, try later), `LateError` (the same, asked
    too late) or `InvariantError` (a bug).
    """

    # --- listeners and reading ----------------------------------------------------------------------------------------------

    def listen(self, listener: Listener, refusals: RefusalListener | None = None) -> None:
        """Call *listener* with every committed batch of transitions, after the verb's last write.

        *refusals* hears what a table has refused, before the verb raises it. What is refused for other reasons, such as a life
        that is over, an unknown name or lack of room, is no event of a place, and is not told.

        A listener that raises undoes nothing: all others hear everything, then the verb raises the first such error. Where it
        was told of a refusal, the verb raises that, with the error as a note.
        """
        edge.function(listener, "listener")
        if refusals is not None:
            edge.function(refusals, "refusals")
        self._listeners.append(listener)
        if refusals is not None:
            self._refusal_listeners.append(refusals)

    def life(self, block: int) -> int:
        """The current life of a block."""
        self._check_blocks([edge.whole(block, "block")])
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
        """The state of a job that is out or not long over; `LateError` where it is, `MisuseError` where it was never made."""
        return self.jobs.state(self._job(edge.job_id(job, "job")))

    def find_blocks(self, keys: Iterable[bytes], group: int = 0) -> list[int]:
        """Lives that hold the content of the longest known prefix of *keys*; a hit is taken with `acquire`."""
        self._check_group(group)
        index, blocks = self.blocks.index[group], self.blocks
        found: list[int] = []
        for key in edge.keys(keys, "keys"):
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
        for key in edge.keys(keys, "keys"):
            place = index.get(key)
            if place is None or state[place] != ready:
                break
            found.append(place)
        return found

    @property
    def free(self) -> int:
        """Blocks that `allocate` can give without any wait."""
        return self.blocks.free

    def has_room(self, count: int) -> bool:
        """Whether `allocate` would find so many blocks now; under fence with those that a copy still reads."""
        missing = edge.whole(count, "count") - self.blocks.free
        return missing <= 0 or (bool(self._fence) and missing <= len(self.blocks.lendable(self._copied())))

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
        edge.whole(place, "place")
        if edge.text(machine, "machine") not in MACHINES:
            raise MisuseError(f"machine {machine!r}: it is not known (known are {', '.join(MACHINES)})")
        table = MACHINES[machine]
        return [
            f"plan {each.plan}: {table.row(row)}" + (f" (job {job})" if job else "")
            for each in self.journal
            if each.machine == machine
            for (where, row), job in zip(each.steps(), each.job_of_each(), strict=True)
            if where == place
        ]

    def has_pending_work(self) -> bool:
        """Whether ticking must go on: a job is out, or a wait is not yet in a plan or not yet proven."""
        return bool(self.jobs.live or self._to_flush or self._waiting)

    # --- requests -----------------------------------------------------------------------------------------------------------

    @verb
    def add_request(self, request: str) -> None:
        """Know a request. State: WAITING. Refuses a name that is in use, and more than ``max_requests``."""
        if edge.text(request, "request") in self.requests:
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
        lives = self._hand_out(self._choose(f"request {request}", edge.whole(count, "count")), group)
        extend(found.tables[group], lives)
        return Batch(lives, group)

    @verb
    def allocate_many(
        self, requests: Sequence[str], counts: Sequence[int], group: int = 0, *, skips: Sequence[int] = ()
    ) -> list[list[int]]:
        """`allocate` for several requests at once, all or none; returns the lives that each of them got.

        *skips* says how many null blocks go before those of each request, as `skip` would put them.
        """
        tables = self._tables_of(requests, group)
        self._check_pool(own=True)
        counts = edge.counts(counts, "counts")
        skips = () if type(skips) is tuple and not skips else edge.counts(skips, "skips")
        if len(counts) != len(tables) or min(counts, default=1) < 1:
            raise MisuseError(f"{len(tables)} requests cannot allocate {list(counts)[:8]} blocks (ask for at least 1 each)")
        if skips and (len(skips) != len(tables) or min(skips) < 0):
            raise MisuseError(f"{len(tables)} requests cannot skip {list(skips)[:8]} blocks")
        if not tables:
            return []
        who = f"request {requests[0]}" if len(tables) == 1 else f"{len(tables)} requests"
        lives = listed(self._hand_out(self._choose(who, sum(counts)), group))
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
        """Append *count* null blocks to the table: places that no window reaches, or that no state was kept for."""
        found = self._request(request)
        self._check_group(group)
        if edge.whole(count, "count") < 0:
            raise MisuseError(f"request {request}: cannot skip {count} blocks")
        found.tables[group].extend([NULL] * count)

    @verb
    def acquire(self, request: str, lives: Lives, group: int = 0) -> Batch[Sealed]:
        """Hold lives that others may hold too, and append them to the table: a prefix hit.

        Edges: block CACHED → SEALED; the other keyed states stay.
        Refuses: a life that is over, one of another group, one that is named twice, and one that the table holds already.
        """
        found = self._request(request)
        self._check_group(group)
        chosen = edge.numbers(lives, "lives")
        ids = self._check_fresh(chosen, "acquire")
        self._check_handed_out(ids, group)
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
        chosen = edge.numbers(positions, "positions")
        if type(chosen) is not list:
            self._release_many(found, chosen, group)
            return
        if len(set(chosen)) != len(chosen) or min(chosen, default=0) < 0 or max(chosen, default=-1) >= len(table):
            raise MisuseError(f"request {request}: positions must be distinct and below {len(table)}, not {chosen[:8]}")
        lives = batch([table[each] for each in chosen if table[each] != NULL])
        self._release(lives)
        for each in chosen:
            table[each] = NULL

    @verb
    def release_many(self, requests: Sequence[str], positions: Sequence[Sequence[int]], group: int = 0) -> None:
        """`release` for several requests at once, all or none."""
        tables, positions = self._tables_of(requests, group), edge.spans(positions, "positions")
        if len(positions) != len(tables) or len(set(requests)) != len(tables):
            raise MisuseError(
                f"{len(tables)} requests and {len(positions)} lists of positions do not agree, or one comes twice"
            )
        lives: list[int] = []
        spans: list[slice | None] = []
        for request, table, chosen in zip(requests, tables, positions, strict=True):
            if type(chosen) is range and chosen.step == 1 and 0 <= chosen.start <= chosen.stop <= len(table):
                spans.append(span := slice(chosen.start, chosen.stop))
                lives += table[span]
                continue
            if len(set(chosen)) != len(chosen) or min(chosen, default=0) < 0 or max(chosen, default=-1) >= len(table):
                raise MisuseError(
                    f"request {request}: positions must be distinct and below {len(table)}, not {list(chosen)[:8]}"
                )
            spans.append(None)
            lives += [table[each] for each in chosen]
        if NULL in lives:
            lives = [life for life in lives if life != NULL]
        last = dict.fromkeys(reversed(lives))
        for surplus in _surplus(lives) if len(last) < len(lives) else ():  # a life that several share is let go of by each
            self._release(batch(surplus))
        self._release(packed([*reversed(last)]))
        for table, chosen, where in zip(tables, positions, spans, strict=True):
            if where is not None:
                table[where] = array("q", (NULL,)) * len(chosen)
                continue
            for each in chosen:
                table[each] = NULL

    @verb
    def seal(self, held: Batch[Allocated], keys: Sequence[bytes]) -> Batch[Sealed]:
        """Declare content final and name it.

        Edges: block ALLOCATED → SEALED; PLEDGED → PENDING_STORE. A life that is over by now is passed over and counted.
        Refuses: FLUSHED, whose wait is not proven, and every state in which content is not being made.
        """
        given, keys = edge.held(held, "held"), edge.keys(keys, "keys")
        if len(keys) != len(given):
            raise MisuseError(f"{len(given)} blocks to seal and {len(keys)} keys do not agree")
        self._check_group(held.group)
        if self._are_sealable((Seal(held.group, given, keys),)):
            return Batch(self._seal(given, keys, held.group, known_fresh=True), held.group)
        self._check_distinct(given, "seal")
        lives, names = self._still_fresh(given, keys)
        self._check_content(ids_of(lives), lives, names, held.group)
        return Batch(self._seal(given, keys, held.group), held.group)

    @verb
    def drop(self, lives: Lives) -> None:
        """Forget content that nobody holds.

        Edges: block CACHED → FREED, PENDING_STORE → FREED (its store is cancelled), IN_FLIGHT → STALE.
        Refuses: a life that is over, or held.
        """
        chosen = edge.numbers(lives, "lives")
        ids = self._check_fresh(chosen, "drop")
        self._cancel_orphans(self._commit(self.blocks.ask(BLOCK["drop"], ids)))

    @verb
    def demote(self, lives: Lives) -> None:
        """Hand these blocks out before others, where they are CACHED: their content lies elsewhere too."""
        self._check_pool(own=True)
        chosen = edge.numbers(lives, "lives")
        self._check_distinct(chosen, "demote")
        chosen = select(chosen, self.blocks.fresh(chosen))
        cached = BlockLife.table.index[Block.CACHED]
        state = self.blocks.column.state
        self.blocks.queue.push_front([place for place in listed(ids_of(chosen)) if state[place] == cached])

    @verb
    def roll_back(self, request: str) -> None:
        """Roll back an admission that came to nothing: release all that a waiting request holds. Its state stays.

        Refuses a request that is RUNNING or LOADING (preempt or finish it).
        """
        found = self._request(request)
        state = self.request_column.at(found.row)
        if state not in (Request.WAITING, Request.PREEMPTED):
            raise MisuseError(f"request {request}: cannot ROLL_BACK while {state.name} (preempt or finish it)")
        self._release_all(found)

    # --- blocks of an allocator that the engine owns ------------------------------------------------------------------------

    @verb
    def observe_allocate(self, request: str, blocks: Sequence[int], group: int = 0) -> Batch[Allocated]:
        """The engine's allocator has handed these blocks to a request. Edges and couplings: as `allocate`.

        Refuses: a block that the contract does not allow to be handed out, named with its state.
        """
        self._check_pool(own=False)
        found = self._request(request)
        self._check_group(group)
        lives = self._hand_out(batch(self._check_blocks(blocks)), group)
        extend(found.tables[group], lives)
        return Batch(lives, group)

    @verb
    def observe_take(self, request: str, blocks: Sequence[int], group: int = 0) -> Batch[Sealed]:
        """A prefix hit of the engine: one more request holds the current lives of these blocks. No new tenancy."""
        self._check_pool(own=False)
        return self.acquire(request, self.blocks.lives(batch(self._check_blocks(blocks))), group)

    @verb
    def observe_place(self, request: str, placements: Sequence[Placement]) -> None:
        """The engine's allocator has extended tables of a request: `skip`, `observe_take`, `observe_allocate`; all or none.

        Refuses: as those do, and a block that is named twice.
        """
        self._check_pool(own=False)
        found = self._request(request)
        placements = edge.placements(placements, "placements")
        taken = self._check_blocks([block for each in placements for block in each.taken])
        allocated = self._check_blocks([block for each in placements for block in each.allocated])
        self._check_blocks([*taken, *allocated])
        for each in placements:
            self._check_group(each.group)
            if each.skipped < 0:
                raise MisuseError(f"request {request}: cannot skip {each.skipped} blocks")
            lives = self.blocks.lives(batch(each.taken))
            self._check_handed_out(ids_of(lives), each.group)
            self._check_tenancy(found.tables[each.group], lives, request)
        self.blocks.ask(BLOCK["acquire"], batch(taken), refs=+1)
        self.blocks.ask(BLOCK["allocate"], batch(allocated), constant=self._fence)
        for each in placements:
            self.skip(request, each.skipped, each.group)
            self.observe_take(request, each.taken, each.group)
            if len(each.allocated):
                self.observe_allocate(request, each.allocated, each.group)

    @verb
    def observe_free(self, request: str, blocks: Sequence[int], group: int = 0) -> None:
        """A request has given these blocks back. Refuses a block that the request does not hold (I4)."""
        self._check_pool(own=False)
        found = self._request(request)
        self._check_group(group)
        blocks = self._check_blocks(blocks)
        held = entries(found.tables[group], slice(None)) & ID_MASK
        where = {int(held[position]): position for position in np.isin(held, blocks).nonzero()[0].tolist()}
        for block in blocks:
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
        places: Sequence[int] | None = None,
    ) -> Jobs[Planned]:
        """`plan_stores` of one store with one transfer."""
        where = None if places is None else edge.places(places, "places")
        lives, chosen = edge.numbers(edge.held(source, "source"), "source"), edge.numbers(slots, "slots")
        named, who = edge.keys(keys, "keys"), None if owner is None else edge.text(owner, "owner")
        if where is not None or not len(lives) == len(chosen) == len(named) > 0:
            transfer = GroupTransfer(Batch[Storable](lives, source.group), chosen, named, where)
            return self._make_stores([Store(who, [transfer])])
        self._check_group(source.group)
        groups = bytes((source.group,)) * len(lives)
        stores = JobColumns.of_blocks([who], [()], [0, len(lives)], lives, groups, chosen, list(named))
        (job,) = self._plan_stores(stores)
        return Jobs((self._id(job),))

    @verb
    def plan_stores(self, stores: Sequence[Store]) -> Jobs[Planned]:
        """Reserve slots for the content of blocks and pin both ends: one job for each store, all or none.

        Edges: job (new) → PLANNED; block ALLOCATED → PLEDGED, SEALED, CACHED → PENDING_STORE; slot EMPTY → WRITING.
        Holds: one pin on each block until the job is terminal.
        Needs: one key per slot; host places of the blocks where they are not the slots themselves.
        Refuses: a life that is over or of another group; a key that is stored already (I14; content on its way may have a twin,
        which is dropped when the other has landed first); numbers that do not agree (I15); `CapacityError` when all jobs are
        out.
        Next: `dispatch`, or `cancel`.
        """
        return self._make_stores(edge.stores(stores, "stores"))

    @verb
    def plan_columns(self, stores: JobColumns) -> list[int]:
        """`plan_stores` for who has its stores as columns; returns the numbers of the jobs."""
        return [job.number for job in self._plan_stores(edge.columns(stores, "stores", self.limits.num_groups))]

    def _make_stores(self, stores: Sequence[Store]) -> Jobs[Planned]:
        if not stores:
            return Jobs(())
        return Jobs(tuple(map(self._id, self._plan_stores(gather(stores, self.limits.num_groups)))))

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
        """`plan_group_load` with one transfer; *keys* are those of the blocks, where a slot holds several."""
        blocks: Batch[Allocated] = Batch(edge.numbers(edge.held(target, "target"), "target"), target.group)
        chosen = edge.numbers(slots, "slots")
        where = None if places is None else edge.places(places, "places")
        names = None if keys is None else edge.keys(keys, "keys")
        self._check_group(target.group)
        self._check_slots(chosen)
        named = [key for key in (self.slots.key[slot] for slot in listed(chosen)) if key is not None]
        if len(named) != len(chosen):  # an empty slot: its refusal says so better than a missing key could
            self.slots.ask(SLOT["pin"], chosen, pins=+1)
        return self._make_load(self._request(request), [GroupTransfer(blocks, chosen, named, where, names)])

    @verb
    def plan_group_load(self, request: str, transfers: Sequence[GroupTransfer[Allocated]]) -> Jobs[Planned]:
        """Fill blocks that *request* holds from READY slots, in one job for all groups; the request waits.

        Edges: job (new) → PLANNED; block ALLOCATED, FLUSHED → LOADING; slot READY, pinned; request → LOADING.
        Holds: one pin on each block and slot until the job is terminal; the blocks are never handed out before that.
        Needs: the key of each block, where a slot holds several; else the key of each slot is that of its block.
        Refuses: a life that is over or that the request does not hold; a slot whose content is not of the key that is named;
        a second live load; `CapacityError` as `plan_stores`.
        Next: `dispatch`; the request hears ``loaded`` or ``load_failed`` through `settle`.
        """
        return self._make_load(self._request(request), edge.transfers(transfers, "transfers"))

    def _make_load(self, found: RequestRow, transfers: Sequence[GroupTransfer[Allocated]]) -> Jobs[Planned]:
        columns = gather([Store(found.name, transfers)], self.limits.num_groups)
        if None in columns.names:
            raise MisuseError(
                f"request {found.name}: {len(columns.lives)} blocks to load and {len(columns.keys)} keys do not agree"
            )
        self._check_slots(columns.slots)
        ids = self._check_fresh(columns.lives, "plan_load")
        self._check_columns(columns, ids)
        for transfer in transfers:
            self._check_held(found, transfer.blocks)
            for slot, key in zip(transfer.slots, transfer.keys, strict=True):
                if self.slots.key[slot] is not None and self.slots.key[slot] != key:
                    raise MisuseError(f"slot {slot}: it does not hold {key.hex()} (look it up again)")
                if self.slots.key[slot] is not None and (own := self.slots.group[slot]) != transfer.blocks.group:
                    raise MisuseError(
                        f"slot {slot}: it holds content of group {own}, not {transfer.blocks.group} (look it up again)"
                    )
        self._ask_request(found, "plan_load")
        self.jobs.check_room()
        block_step = self.blocks.ask(BLOCK["plan_load"], ids, pins=+1, writes=+1)
        slot_step = self.slots.ask(SLOT["pin"], columns.slots, pins=+1)
        (job,) = self.jobs.add(Direction.LOAD, columns, self.limits.num_groups)
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
        rows = self._rows_of(edge.job_ids(jobs, "jobs"))
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
        rows = self._rows_of(edge.job_ids(jobs, "jobs"))
        for job in rows:
            if job.direction is Direction.LOAD:
                raise MisuseError(f"job {self._id(job)}: a load is given up with its request (preempt or finish it)")
            self._ask_job(job, "cancel")
        for job in rows:
            self._end(job, "cancel", 0)

    @verb
    def abandon(self, jobs: Jobs[Submitted]) -> Jobs[Unwanted]:
        """Want a result no more; its places stay pinned until it lands. Edges: job IN_FLIGHT, AWAITED → UNWANTED.

        Refuses: a load, as `cancel` does.
        """
        rows = self._rows_of(edge.job_ids(jobs, "jobs"))
        for job in rows:
            if job.direction is Direction.LOAD:
                raise MisuseError(f"job {self._id(job)}: a load is given up with its request (preempt or finish it)")
            self._ask_job(job, "abandon")
        for job in rows:
            self._abandon(job)
        return Jobs(jobs.ids)

    @verb
    def flush(self, jobs: Jobs[Out], cause: str = "asked") -> Jobs[Out]:
        """Order a wait for submitted jobs in the next plan; flushes are counted by *cause*.

        Edges: job IN_FLIGHT → AWAITED; UNWANTED, QUARANTINED stay.
        """
        rows = self._rows_of(edge.job_ids(jobs, "jobs"))
        edge.text(cause, "cause")
        for job in rows:
            self._ask_job(job, "flush")
        for job in rows:
            self._flush(job, cause)
        return Jobs(jobs.ids)

    def jobs_of(self, request: str) -> Jobs[Out]:
        """The submitted jobs that serve a request, or have served it: what a preemption flushes."""
        if edge.text(request, "request") not in self.jobs.owned:
            return Jobs(())
        alive = (job for job in self.jobs.alive() if job.serves(request))
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
        edge.moment(now, "now")
        if len(self._waiting) >= self.limits.max_plans:
            raise CapacityError(f"all {self.limits.max_plans} plans are out; settle one first (max_plans)")
        self.plan_number += 1
        loads: list[Transfer] = []
        stores: list[Transfer] = []
        ripe = self._ripe()
        self._submit(ripe)
        for transfer in self._transfers(ripe):
            (stores if transfer.direction is Direction.STORE else loads).append(transfer)
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
        launched: Iterable[Launched] = _NOTHING,
        completions: Iterable[Completion] = _NOTHING,
        seals: Iterable[Seal] = _NOTHING,
    ) -> None:
        """Apply what came back from the workers after *every* worker has executed plan *plan*.

        The order is the rule: reports of jobs that the plan waited for; then the rest of them are proven quiet (a lost report
        must not hold the new tenant); then all other reports; then seals; then deadlines. Plans settle in order.
        """
        edge.moment(now, "now")
        due = next(iter(self._waiting), None)  # plans are dispatched in order
        if edge.whole(plan, "plan") != due:
            known = "no plan is out" if due is None else f"plan {due} is next"
            raise MisuseError(f"plan {plan}: it cannot settle now ({known})")
        launched = () if launched is _NOTHING else edge.launches(launched, "launched")
        seals = () if seals is _NOTHING else edge.seals(seals, "seals")
        completions = () if completions is _NOTHING else edge.completions(completions, "completions")
        self._check_reports(self._waiting[plan], completions, seals)
        for record in launched:
            self.launched(record, now)
        waited = self._waiting.pop(plan)
        first: list[Completion] = []
        later: list[Completion] = []
        for completion in completions:
            mine = completion.job.incarnation == self.incarnation and completion.job.number in waited
            (first if mine else later).append(completion)
        if first:
            self._complete_many(first)
        for number in waited:
            job = self.jobs.by_number.get(number)
            if job is not None and self.jobs.state(job) not in TERMINAL:
                self._end(job, "quiesce", 0)
        if later:
            self._complete_many(later)
        for seal in seals:
            self._seal(batch(seal.lives), seal.keys, seal.group)
        if self._deadlines:
            self.expire(now)

    @verb
    def launched(self, record: Launched, now: float) -> None:
        """A worker began to run its share: the deadline starts. Late and unknown records change nothing."""
        edge.moment(now, "now")
        edge.launch(record, "record")
        job = self.jobs.by_number.get(record.job.number) if record.job.incarnation == self.incarnation else None
        if job is not None and self.jobs.state(job) not in (*TERMINAL, Job.PLANNED):
            self._arm(job, now)

    @verb
    def complete(self, completion: Completion) -> None:
        """Apply one worker's report.

        Edges: job `finish`; at the last worker's report the couplings run. Late, duplicate and unknown reports are counted
        and change nothing. Refuses: a worker that does not exist, and a job that nobody has submitted.
        """
        self._check_report(edge.completion(completion, "completion"))
        ended = self._count_report(completion)
        if ended is not None:
            self._end(*ended)

    @verb
    def expire(self, now: float) -> Jobs[Job]:
        """Give every job up whose deadline has passed; its places stay pinned, and the pins are overdue.

        Edges: job IN_FLIGHT, AWAITED, UNWANTED → QUARANTINED, and the couplings. Returns those jobs.
        """
        edge.moment(now, "now")
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
        rows = [job for job in self._rows_of(edge.job_ids(jobs, "jobs")) if self.jobs.state(job) not in TERMINAL]
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
        chosen = edge.numbers(slots, "slots")
        self._check_slots(chosen)
        self._commit(self.slots.ask(SLOT["evict"], chosen))

    @verb
    def pin(self, holder: str, slots: Sequence[int]) -> None:
        """Count on READY slots until `unpin` by the same holder: they cannot be evicted."""
        edge.text(holder, "holder")
        chosen = edge.numbers(slots, "slots")
        self._check_slots(chosen)
        self._commit(self.slots.ask(SLOT["pin"], chosen, pins=+1))
        if len(chosen):
            self.holders.setdefault(holder, Counter()).update(listed(chosen))

    @verb
    def unpin(self, holder: str, slots: Sequence[int]) -> None:
        """Let go of slots. Refuses a slot that this holder has not pinned: nobody releases another's hold (I4)."""
        edge.text(holder, "holder")
        chosen = edge.numbers(slots, "slots")
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
    def lose(self, worker: Worker) -> None:
        """A worker is gone: what it still owed is FAILED, and its share of every place is quiet. A later report is a duplicate.

        Edges: job `finish`, for each submitted job that it has not reported; the other workers are awaited as before.
        """
        gone = edge.whole(worker, "worker")
        if not 0 <= gone < self.limits.num_workers:
            raise MisuseError(f"worker {gone}: there are {self.limits.num_workers} (ranks count from 0)")
        # chosen before the first of them ends: a failed load takes planned stores with it, which nobody owes
        owed = [job for job in self.jobs.alive() if job.number not in self.jobs.planned and not job.reported >> gone & 1]
        for job in owed:
            self.complete(Completion(self._id(job), worker, Result.FAILED))

    @verb
    def reset(self, *, drain: bool = False, host: bool = True) -> None:
        """Forget all content, that of the lower tier too unless *host* is False.

        Now: requests are preempted, planned jobs cancelled, submitted ones abandoned (without *host*, stores are left to land);
        places that a copy touches stay held until it lands. With ``drain``: refuses with `CapacityError` while a job is out,
        and says how many.
        """
        edge.flag(drain, "drain")
        edge.flag(host, "host")
        if drain and self.jobs.live:
            raise CapacityError(f"{self.jobs.live} jobs are still out (let them land, then reset again)")
        running = {RequestLife.table.index[state] for state in states_with(Trait.ADMITTED, Request)}
        for request in list(self.requests.values()):
            if self.request_column.state[request.row] in running:
                self._give_up(request, "preempt")
            else:
                self._release_all(request)
        for job in self.jobs.alive():
            if host or job.number in self.jobs.planned:
                self._give_up_job(job)
        cached, ready = BlockLife.table.index[Block.CACHED], SlotLife.table.index[Slot.READY]
        # in an order that does not depend on how places are called: it is the one in which they are used again
        free = [place for place in self.blocks.queue.order() if self.blocks.column.state[place] == cached]
        for dropped in (batch(free), batch(self.blocks.column.where(Block.IN_FLIGHT))):
            self._commit(self.blocks.ask(BLOCK["drop"], dropped))
        if host:
            named = [(group, key, slot) for group, index in enumerate(self.slots.index) for key, slot in index.items()]
            slots = [slot for _, _, slot in sorted(named) if self.slots.column.state[slot] == ready]
            self._commit(self.slots.ask(SLOT["drop"], batch(slots)))

    def snapshot(self, names: Names | None = None, *, now: float = 0.0) -> Snapshot:
        """Everything that decides what the ledger does next, as a value; under other *names* where they are given.

        Of a deadline it says how long it is from *now* on, or from the time that *names* carry. What was counted, and the
        journal, are not part of it.
        """
        edge.moment(now, "now")
        return take(self, own_names(self, now=now) if names is None else edge.member(names, Names, "names"))

    @verb
    def restore(self, saved: Snapshot, now: float = 0.0) -> None:
        """Go back to a snapshot of a ledger with the same limits. What was left of a deadline then is left of it from *now* on.

        Listeners are not told: no place has taken a step.
        """
        edge.moment(now, "now")
        put_back(self, edge.member(saved, Snapshot, "saved"), now)

    def __repr__(self) -> str:
        return f"<Ledger plan {self.plan_number}: {self.free} free, {self.jobs.live} jobs out, {len(self.requests)} requests>"

    def _repr_html_(self) -> str | None:
        return painted("_repr_html_", self)


def _surplus(lives: Sequence[int]) -> Iterator[list[int]]:
    """What comes more than once, as often as it comes besides the last time; distinct lives each time."""
    left = Counter(lives)
    while left := left - Counter(left.keys()):
        yield list(left)
