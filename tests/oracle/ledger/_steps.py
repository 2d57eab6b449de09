"""The building blocks of the ledger's verbs: ask the tables, write, run couplings, note the steps.

Rules of this file:

* Ask, then write, then tell; nothing here decides what is legal. `Steps.end` looks the effects of a job up in the rows of
  `states.COUPLINGS`; those of rows marked `BY_HAND`, and of stores that are DONE in `settle`, are written here.
* Arguments were checked before (`_checks`): refusals here come from a table.
* Small batches run through plain loops over lists, large ones through numpy columns; see `_ids`.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tests.oracle.errors import CapacityError, MisuseError
from tests.oracle.ledger import _rules as rules
from tests.oracle.ledger._checks import JOB, PLEDGED, READY, Checks
from tests.oracle.ledger._ids import (
    BULK,
    EPOCH_SHIFT,
    ID_MASK,
    NULL,
    Ids,
    Lives,
    batch,
    blank,
    entries,
    every,
    ids_of,
    joined,
    listed,
    packed,
    select,
)
from tests.oracle.ledger._refusals import counted, named, some
from tests.oracle.ledger._rules import CountedEvent
from tests.oracle.ledger._state import LedgerData, RequestRow
from tests.oracle.ledger.jobs import JobColumns, JobRow, jobs_of_each
from tests.oracle.ledger.records import (
    Completion,
    Direction,
    Growth,
    Launched,
    Plan,
    Result,
    Seal,
    TierTransfer,
    Transfer,
    Transfers,
    Worker,
)
from tests.oracle.lifecycle import Event, Rows
from tests.oracle.states import (
    ADMITTED,
    OUT,
    OUT_AND_WANTED,
    TERMINAL,
    Block,
    BlockLife,
    Job,
    JobLife,
    RequestLife,
    Slot,
    SlotLife,
    coupled,
)

_EFFECTS: Mapping[tuple[str, Direction, Job], tuple[str, ...]] = {
    (event, direction, into): coupled(f"job.{event}({direction.name.lower()})", into)
    for event in ("finish", "cancel", "expire")
    for direction in Direction
    for into in Job
}
_INTO = [Job.PLANNED, *(Job[row.target.name] for row in JobLife.table.rows)]
"""The target state of each row of a job; the first entry stands for no row."""
_FROM_STALE = frozenset(row.index for row in BlockLife.table.rows if row.event == "allocate" and row.source is Block.STALE)
"""The rows that hand out a block whose life is over but which a copy still touches."""
_BLOCK_EFFECTS = frozenset({"block.land", "block.cancel", "block.expire"})
_SLOT_CHANGES = {
    "slot.cancel": rules.NOT_FILLED,
    "slot.expire": rules.FILL_EXPIRED,
    "slot.unpin": rules.UNPIN,
    "slot.drop": rules.FORGET,
}
_SLOT_EFFECTS = frozenset({"slot.land", *_SLOT_CHANGES})
_WANTED = frozenset(JobLife.table.index[state] for state in OUT_AND_WANTED)
"""Job states: the workers have the job, and its result is wanted."""
_CAN_EXPIRE = frozenset(row.source for row in JobLife.table.rows if row.event == "expire")
_DONE, _STORE = Job.DONE.name, Direction.STORE.name
_SUBMIT, _FINISH = JOB["submit"], JOB["finish"]
MORE, ALL_OK = (JOB["finish"].bit(each) for each in JOB["finish"].guards)

Asked: TypeAlias = tuple[CountedEvent, Ids, Rows]
"""A change of some places, with the row that each will take."""


class Steps:
    """The steps of one ledger; each leaves it in a legal state, or has changed nothing."""

    def __init__(self, state: LedgerData, checks: Checks) -> None:
        self._state = state
        self._check = checks
        self._blocks = state.blocks
        self._slots = state.slots
        self._jobs = state.jobs
        self._journal = state.journal
        self._hand_out = rules.HAND_OUT[state.fence]

    def _ask_block_effect(self, effect: str, job: JobRow, ok: bool) -> Asked:
        """Ask what an effect of a coupling does to the blocks of a job."""
        if effect == "block.land":
            return self._land_blocks(job, ok)
        return self._cancel_blocks(job) if effect == "block.cancel" else self._expire_blocks(job)

    def _ask_slot_effect(self, effect: str, job: JobRow, ok: bool) -> Asked:
        """The same for its slots."""
        if effect == "slot.land":
            return self._land_slots(job.slots, ok)
        change = _SLOT_CHANGES[effect]
        return change, job.slots, self._slots.ask(change, job.slots)

    # --- writing and telling ------------------------------------------------------------------------------------------------

    def take_blocks(self, change: CountedEvent, ids: Ids, rows: Rows, job: int = 0, jobs: Sequence[int] = ()) -> list[int]:
        """Write the rows that were found, and note the step. Returns the rows of jobs whose source life ended."""
        if len(ids) == 0:
            return []
        orphans = self._blocks.write(change, ids, rows)
        self._journal.note("block", change.rule.name, ids, rows, job, jobs)
        return list(dict.fromkeys(orphans)) if orphans else orphans

    def take_slots(self, change: CountedEvent, ids: Ids, rows: Rows, job: int = 0, jobs: Sequence[int] = ()) -> None:
        """The same for slots."""
        if len(ids):
            self._slots.write(change, ids, rows)
            self._journal.note("slot", change.rule.name, ids, rows, job, jobs)

    def move_blocks(self, change: CountedEvent, ids: Ids) -> list[int]:
        """Ask and write, if only blocks move. Returns the rows of jobs whose source life ended."""
        return self.take_blocks(change, ids, self._blocks.ask(change, ids))

    def move_slots(self, change: CountedEvent, ids: Ids) -> None:
        """Ask and write, if only slots move."""
        self.take_slots(change, ids, self._slots.ask(change, ids))

    def fire_request(self, request: RequestRow, event: str, job: int = 0) -> None:
        """One step of a request."""
        row, column = self._check.ask_request(request, event), self._state.request_column
        self._state.request_column.state[request.row] = RequestLife.table.targets[row]
        column.taken[row] += 1
        self._journal.note("request", event, [request.row], [row], job, (), request.name)

    def _fire_job(self, job: JobRow, event: str, facts: int = 0) -> None:
        self._write_job(job, JOB[event], self._check.ask_job(job, event, facts))

    def _write_job(self, job: JobRow, event: Event, row: int) -> None:
        self._jobs.column.commit([job.row], row)
        self._journal.note("job", event.name, [job.number], [row], job.number)

    def _write_jobs(self, jobs: Sequence[JobRow], event: Event, rows: list[int]) -> list[int]:
        """Write the rows of jobs in one step, noted as one record. Returns their numbers."""
        taken, targets, numbers = self._jobs.column.taken, JobLife.table.targets, list[int]()
        for job, row in zip(jobs, rows, strict=True):
            self._jobs.column.state[job.row] = targets[row]
            taken[row] += 1
            numbers.append(job.number)
        self._journal.note("job", event.name, numbers, rows, numbers[0] if len(numbers) == 1 else 0, numbers)
        return numbers

    # --- blocks and requests ------------------------------------------------------------------------------------------------

    def hand_out(self, group: int, ids: Ids | None = None, who: str = "", count: int = 0) -> Lives:
        """Hand out blocks: these, or the next *count*. Couplings *life-ends* and *hand-out-flushes*.

        Returns the new lives. Free blocks come first and, under fence, if there are too few, blocks that a copy still reads.
        """
        blocks, change = self._blocks, self._hand_out
        if ids is None:
            ids = blocks.queue.peek(count)
            if len(ids) < count:
                ids = self._lend(who, count, ids)
        rows = blocks.ask(change, ids)
        late = not _FROM_STALE.isdisjoint(rows if type(rows) is list else np.unique(np.asarray(rows)).tolist())
        stale = {place for place in listed(ids) if blocks.at(place) is Block.STALE} if late else set()
        orphans = self._blocks.write(change, ids, rows)
        self._journal.note("block", change.rule.name, ids, rows)
        for row in dict.fromkeys(orphans) if orphans else ():
            job = self._jobs.rows[row]
            if self._jobs.state(job) is Job.PLANNED:
                self.end(job, "cancel", 0)
            else:
                self.flush(job, "handed out")
        if stale:
            left = sum([blocks.pins[place] for place in stale])  # one for each job that touches it
            for job in self._jobs.alive():
                if touched := len(stale.intersection(listed(job.ids))):
                    if job.number not in self._jobs.planned:
                        self.flush(job, "handed out")
                    if (left := left - touched) == 0:
                        break
        if type(ids) is not list:
            blocks.group_view[ids] = group
            return blocks.lives(ids)
        group_of, epoch, lives = blocks.group, blocks._epoch, list[int]()
        for place in ids:
            group_of[place] = group
            life = epoch[place]
            lives.append(life << EPOCH_SHIFT | place)
        return lives

    def _lend(self, who: str, count: int, free: Ids) -> Ids:
        """The free blocks and, after them, those that a copy still reads: under fence a plan waits for the copy."""
        short = count - len(free)
        lent = self.lendable(short) if self._state.fence else []
        if len(lent) < short:
            copied = self.copied()
            self._refuse_allocation(who, count, copied)
        return packed([*listed(free), *lent])

    def lendable(self, most: int) -> list[int]:
        """Up to *most* blocks that a fence lets be handed out while a job touches them: planned stores first, then old jobs."""
        found: dict[int, None] = {}
        jobs = chain(self._jobs.planned.values(), self._jobs.out.values())
        while len(found) < most and (part := [np.asarray(job.ids, dtype=np.int64) for job in islice(jobs, BULK)]):
            found.update(dict.fromkeys(self._blocks.lendable(np.concatenate(part)).tolist()))
        return list(found)[:most]

    def hand_out_each(
        self, groups: Sequence[int], counts: Sequence[int], ids: Ids | None = None, who: str = "", total: int = 0
    ) -> Lives:
        """`hand_out` of a number of blocks for each of several groups, one after the other."""
        lives = self.hand_out(groups[0], ids, who=who, count=total)
        if len(set(groups)) == 1:
            return lives
        if type(lives) is list:
            group_of, start = self._blocks.group, 0
            for group, count in zip(groups, counts, strict=True):
                for life in lives[start : start + count]:
                    group_of[life & ID_MASK] = group
                start += count
        else:
            self._blocks.group_view[ids_of(lives)] = np.repeat(np.array(groups, dtype=np.uint8), counts)
        return lives

    def take_many(self, growth: Growth, tables: Sequence[array[int]], fresh: Ids) -> None:
        """Take the hits of all tables; several tables may name the same block, and each of them then holds it.

        *fresh* are the blocks handed out in the same call: they are checked here, before the first write.
        """
        held = [block for taken in growth.taken for block in taken if block != NULL]
        if twice := set(listed(fresh)).intersection(held):
            raise MisuseError(f"block {min(twice)}: it is a hit, and handed out in the same call (name it once)")
        epoch = self._blocks.epoch
        hits: list[tuple[array[int], list[int]]] = []
        for name, group, table, taken in zip(growth.names, growth.groups, tables, growth.taken, strict=True):
            if taken:
                ids = batch(self._check.blocks([block for block in taken if block != NULL], "growth.taken"))
                self._check.handed_out(ids, group)
                self._check.tenancy(table, self._blocks.lives(ids), name)
                hits.append((table, [epoch[block] << EPOCH_SHIFT | block if block != NULL else NULL for block in taken]))
        if len(fresh):
            self._blocks.ask(self._hand_out, fresh)
        times: dict[int, int] = Counter(held)
        while times:
            self.move_blocks(rules.ACQUIRE, batch(times))
            times = {block: count - 1 for block, count in times.items() if count > 1}
        for table, lives in hits:
            table.extend(lives)

    def hand_out_many(self, growth: Growth, tables: Sequence[array[int]], fresh: Ids) -> None:
        """Hand out each block to its table and group; nulls stay nulls."""
        sizes = [len(own) - own.count(NULL) for own in growth.fresh]
        lives = iter(listed(self.hand_out_each(growth.groups, sizes, fresh)) if len(fresh) else ())
        for table, own in zip(tables, growth.fresh, strict=True):
            table.extend([next(lives) if block != NULL else NULL for block in own] if NULL in own else islice(lives, len(own)))

    def copied(self) -> NDArray[np.int64]:
        """Every block that an outstanding job may touch, once; blocks of the oldest job first, as its copy lands first."""
        touched = [np.asarray(job.ids, dtype=np.int64) for job in self._jobs.alive()]
        ids = np.concatenate([np.zeros(0, dtype=np.int64), *touched])
        return ids[np.sort(np.unique(ids, return_index=True)[1])]

    def _refuse_allocation(self, who: str, count: int, copied: NDArray[np.int64]) -> NoReturn:
        """Raise the error that says why there is no room. Busy blocks are found from the jobs, without searching the pool."""
        total = len(self._blocks) - 1
        if count > total:
            raise CapacityError(
                f"{who}: {counted(count, 'block')} wanted, and the device has {total} "
                "(it never fits: ask for less, or refuse the request)"
            )
        bad = self._blocks.column.view[copied] == BlockLife.table.index[Block.QUARANTINED]
        idle = (self._blocks.refs_view[copied] == 0) & ~bad
        held = "" if self._state.fence else ", which the contract hold does not hand out"
        coming = np.zeros(len(self._blocks), dtype=np.bool_)
        coming[copied[idle | bad]] = True
        jobs = [str(self._state.id_of(job)) for job in self._jobs.alive() if coming[job.ids].any()]
        wait = f", or wait for {named('job', jobs)} to land" if jobs else ""
        raise CapacityError(
            f"{who}: {counted(count, 'block')} wanted, {some(self._blocks.free)} free, "
            f"{some(int(np.count_nonzero(idle)))} freeing soon{held}, "
            f"{some(int(np.count_nonzero(bad)))} quarantined (preempt a request{wait})"
        )

    def release(self, lives: Lives) -> None:
        """Release one hold of each life. A life that ended while it was held is no longer held."""
        blocks = self._blocks
        fresh = blocks.fresh(lives)
        ids = ids_of(lives if every(fresh) else select(lives, fresh))
        if len(ids):
            self.cancel_orphans(self.take_blocks(rules.RELEASE, ids, blocks.ask(rules.RELEASE, ids)))

    def release_positions(self, request: RequestRow, positions: Ids, group: int) -> None:
        """`Ledger.release` of some places of a table."""
        table = request.tables[group]
        if type(positions) is list:
            if (
                len(set(positions)) != len(positions)
                or min(positions, default=0) < 0
                or max(positions, default=-1) >= len(table)
            ):
                raise MisuseError(
                    f"request {request.name}: positions must be distinct and below {len(table)}, the length of its table, "
                    f"not {positions[:8]}"
                )
            self.release([table[each] for each in positions if table[each] != NULL])
            for each in positions:
                table[each] = NULL
            return
        chosen = np.asarray(positions)
        if int(chosen.min()) < 0 or int(chosen.max()) >= len(table) or not self._check.are_distinct(chosen, len(table)):
            raise MisuseError(f"request {request.name}: positions must be distinct and below {len(table)}")
        lives = entries(table, chosen)
        self.release(batch(lives[lives != NULL]))
        blank(table, chosen)

    def release_many(self, requests: Sequence[str], tables: Sequence[array[int]], positions: Sequence[Sequence[int]]) -> None:
        """`Ledger.release` of some places of several tables, all or none."""
        lives: list[int] = []
        for request, table, chosen in zip(requests, tables, positions, strict=True):
            if type(chosen) is range and chosen.step == 1 and 0 <= chosen.start <= chosen.stop <= len(table):
                lives += table[chosen.start : chosen.stop]
                continue
            if len(set(chosen)) != len(chosen) or min(chosen, default=0) < 0 or max(chosen, default=-1) >= len(table):
                raise MisuseError(
                    f"request {request}: positions must be distinct and below {len(table)}, not {list(chosen)[:8]}"
                )
            lives += [table[each] for each in chosen]
        if NULL in lives:
            lives = [life for life in lives if life != NULL]
        if len(set(lives)) < len(lives):  # a shared life is released by each holder
            last = dict.fromkeys(reversed(lives))
            for surplus in _surplus(lives):
                self.release(batch(surplus))
            lives = [*reversed(last)]
        self.release(packed(lives))
        for table, chosen in zip(tables, positions, strict=True):
            for each in chosen:
                table[each] = NULL

    def seal(self, held: Lives, keys: Sequence[bytes], group: int, known_fresh: bool = False) -> Lives:
        """Seal the lives that are current; everything that could refuse this was checked before."""
        lives, names = (held, keys) if known_fresh else self._check.still_fresh(held, keys)
        ids: Ids = [life & ID_MASK for life in lives] if type(lives) is list else ids_of(lives)
        if len(ids):
            rows = self._blocks.ask(rules.SEAL, ids)
            self._blocks.write(rules.SEAL, ids, rows)
            self._blocks.name(ids if type(ids) is list else listed(ids), names, group)
            self._journal.note("block", "seal", ids, rows)
        self._state.tally["stale"] += len(held) - len(lives)
        return lives

    def cancel_orphans(self, rows: Iterable[int]) -> None:
        """Coupling *life-ends*: a planned store whose source is gone is cancelled."""
        for row in rows:
            job = self._jobs.rows[row]
            if self._jobs.state(job) is Job.PLANNED:
                self.end(job, "cancel", 0)

    def give_up(self, request: RequestRow, event: str) -> None:
        """Coupling *request-gives-up*: its load first, then every block, then the event."""
        load = self._jobs.by_number.get(request.load)
        if load is not None:
            self.give_up_job(load)
        request.load = 0
        self.release_all(request)
        self.fire_request(request, event)

    def release_all(self, request: RequestRow) -> None:
        """Release every block, the last of a table first to be handed out again."""
        for group, table in enumerate(request.tables):
            if table:
                if len(table) < BULK:
                    self.release([life for life in reversed(table) if life != NULL])
                else:
                    lives = entries(table, slice(None, None, -1))
                    self.release(batch(lives[lives != NULL]))
                request.tables[group] = array("q")

    def forget(self, request: RequestRow) -> None:
        """Forget a request that is over and holds nothing; its name is free again."""
        del self._state.requests[request.name]
        self._state.spare_requests.append(request.row)

    def reset(self, *, host: bool) -> None:
        """Couplings *reset-now*: forget all content, that of the lower tier too with *host*."""
        running = {RequestLife.table.index[state] for state in ADMITTED}
        for request in list(self._state.requests.values()):
            if self._state.request_column.state[request.row] in running:
                self.give_up(request, "preempt")
            else:
                self.release_all(request)
        for job in self._jobs.alive():
            if host or (job.number in self._jobs.planned and job.direction.on_device):
                self.give_up_job(job)
        cached, ready = BlockLife.table.index[Block.CACHED], SlotLife.table.index[Slot.READY]
        # in an order independent of the numbers of places, because they are reused in this order
        free = [place for place in self._blocks.free_order() if self._blocks.state[place] == cached]
        for dropped in (batch(free), batch(self._blocks.column.where(Block.IN_FLIGHT))):
            self.move_blocks(rules.DROP, dropped)
        if host:
            named = [(group, key, slot) for group, index in enumerate(self._slots.index) for key, slot in index.items()]
            slots = [slot for _, _, slot in sorted(named) if self._slots.state[slot] == ready]
            self.move_slots(rules.FORGET, batch(slots))

    # --- planning and submitting --------------------------------------------------------------------------------------------

    def plan_stores(self, stores: JobColumns) -> list[JobRow]:
        """Coupling *store-planned*: ask everything, then make the jobs and reserve both ends."""
        slots = stores.slots
        ids, named = self._check.stores(stores)
        self._jobs.check_room(len(stores))
        rows = self._blocks.ask(rules.PLAN_STORE, ids)
        slot_rows = self._slots.ask(rules.FILL, slots)
        if not named:
            self._check.names(stores, ids)
        made = self._jobs.add(Direction.STORE, stores, ids, self._state.limits.num_groups)
        numbers = [job.number for job in made]
        job, jobs = jobs_of_each(numbers, stores.cuts)
        self.take_blocks(rules.PLAN_STORE, ids, rows, job, jobs)
        if stores.slot_cuts is not stores.cuts:
            job, jobs = jobs_of_each(numbers, stores.slot_cuts)
        self.take_slots(rules.FILL, slots, slot_rows, job, jobs)
        for each in made:
            self._blocks.name_job(each.ids, each.row)
        self._slots.name_all(slots, stores.keys, stores.slot_groups)
        return made

    def plan_load(self, request: RequestRow, columns: JobColumns, ids: Ids) -> JobRow:
        """Coupling *load-planned*."""
        self._check.ask_request(request, "plan_load")
        self._jobs.check_room()
        rows = self._blocks.ask(rules.PLAN_LOAD, ids)
        slot_rows = self._slots.ask(rules.PIN, columns.slots)
        (job,) = self._jobs.add(Direction.LOAD, columns, ids, self._state.limits.num_groups)
        self.take_blocks(rules.PLAN_LOAD, ids, rows, job.number)
        self.take_slots(rules.PIN, columns.slots, slot_rows, job.number)
        request.load = job.number
        self.fire_request(request, "plan_load", job.number)
        return job

    def plan_below(self, direction: Direction, columns: JobColumns) -> JobRow:
        """Couplings *demotion-planned* and *promotion-planned*: one job between slots and the store below."""
        self._jobs.check_room()
        slots = columns.slots
        change = rules.FILL if direction is Direction.PROMOTE else rules.PIN
        rows = self._slots.ask(change, slots)
        (job,) = self._jobs.add(direction, columns, [], self._state.limits.num_groups)
        self.take_slots(change, slots, rows, job.number)
        if direction is Direction.PROMOTE:
            self._slots.name_all(slots, columns.keys, columns.slot_groups)
        return job

    def ripe(self) -> list[JobRow]:
        """The planned jobs whose content is final, oldest first."""
        state, found = self._blocks.state, list[JobRow]()
        for job in self._jobs.planned.values():
            if len(job.ids) < BULK:
                for place in job.ids:
                    if state[place] == PLEDGED:
                        break
                else:
                    found.append(job)
            elif not bool((self._blocks.column.view[job.ids] == PLEDGED).any()):
                found.append(job)
        return found

    def submit(self, jobs: Sequence[JobRow]) -> None:
        """Coupling *submitted*: from now on the workers have these jobs."""
        if not jobs:
            return
        lut, state, alone = _SUBMIT.lut, self._jobs.column.state, len(jobs) == 1
        taken = [lut[state[job.row]] or self._check.ask_job(job, "submit") for job in jobs]
        parts = [job.ids for job in jobs]
        fresh = self._blocks.fresh(jobs[0].lives if alone else joined([job.lives for job in jobs]))
        if not (all(fresh) if type(fresh) is list else every(fresh)):
            parts = [ids_of(self._current(job)) for job in jobs]
        ids, cuts = parts[0] if alone else joined(parts), [0, *accumulate(map(len, parts))]
        rows = self._blocks.ask(rules.SUBMIT, ids)
        self._blocks.write(rules.SUBMIT, ids, rows)
        numbers = self._write_jobs(jobs, _SUBMIT, taken)
        for number in numbers:
            del self._jobs.planned[number]
        if len(ids):
            one, each = jobs_of_each(numbers, cuts)
            self._journal.note("block", "submit", ids, rows, one, each)

    def _current(self, job: JobRow) -> Lives:
        """Those lives of a job that are not over."""
        fresh = self._blocks.fresh(job.lives)
        return job.lives if every(fresh) else select(job.lives, fresh)

    def transfers(self, direction: Direction, jobs: Sequence[JobRow]) -> Sequence[Transfer]:
        """The transfers of jobs of one direction for the workers: two arrays, in which each job has a part."""
        if not jobs:
            return ()
        alone, parts = len(jobs) == 1, [job.ids for job in jobs]
        near = np.array(jobs[0].ids if alone else joined(parts), dtype=np.int64)
        far = np.array(jobs[0].places if alone else joined([job.places for job in jobs]), dtype=np.int64)
        source, target = (near, far) if direction is Direction.STORE else (far, near)
        return Transfers(
            self._state.incarnation,
            direction,
            [job.number for job in jobs],
            source,
            target,
            [0, *accumulate(map(len, parts))],
            [job.groups for job in jobs],
            self._state.limits.num_groups,
        )

    def dispatch(self, now: float) -> Plan:
        """Submit the ripe jobs, and start the deadline of every job that the plan waits for."""
        state, jobs = self._state, self._jobs
        self._journal.plan += 1
        ripe = self.ripe()
        self.submit(ripe)
        for job in [each for each in ripe if each.number in state.to_flush]:  # loads that this very plan waits for
            self._fire_job(job, "flush")
        flushed: list[JobRow] = []
        for number in state.to_flush:
            wanted = jobs.by_number.get(number)
            if wanted is not None and jobs.state(wanted) not in TERMINAL:
                self.arm(wanted, now)
                flushed.append(wanted)
        state.to_flush.clear()
        state.waiting[self._journal.plan] = tuple([job.number for job in flushed])
        flushes = tuple([state.id_of(job) for job in flushed]) if flushed else ()
        stores = [job for job in ripe if job.direction is Direction.STORE]
        if len(stores) == len(ripe):
            return Plan(self._journal.plan, (), self.transfers(Direction.STORE, stores) if stores else (), flushes)
        loads = [job for job in ripe if job.direction is Direction.LOAD]
        return Plan(
            self._journal.plan,
            self.transfers(Direction.LOAD, loads),
            self.transfers(Direction.STORE, stores),
            flushes,
            self._below(Direction.PROMOTE, ripe),
            self._below(Direction.DEMOTE, ripe),
        )

    def _below(self, direction: Direction, jobs: Sequence[JobRow]) -> tuple[TierTransfer, ...]:
        """What the workers move for jobs between slots and the store below."""
        return tuple([self.tier_transfer(job) for job in jobs if job.direction is direction])

    def tier_transfer(self, job: JobRow) -> TierTransfer:
        """What the workers move for one such job."""
        slots = np.array(job.slots, dtype=np.int64)
        return TierTransfer(self._state.id_of(job), job.direction, slots, job.slot_groups, tuple(job.keys), job.space)

    def arm(self, job: JobRow, now: float) -> None:
        """Start the deadline of a job, if it has not started."""
        if job.deadline is None:
            state = self._state
            job.deadline = now + state.deadline
            heapq.heappush(state.deadlines, (job.deadline, job.number))
            if len(state.deadlines) > 2 * state.limits.max_jobs:
                state.deadlines[:] = [each for each in state.deadlines if each[1] in self._jobs.out]
                heapq.heapify(state.deadlines)

    # --- the end of a job ---------------------------------------------------------------------------------------------------

    def end(self, job: JobRow, event: str, facts: int) -> None:
        """Take a step of a job that has couplings: ask the effects, write the job and the effects, then tell its request."""
        compiled = JOB[event]
        row = self._check.ask_job(job, event, facts)
        into = _INTO[row]
        cause = "finish" if event == "quiesce" else event
        effects = _EFFECTS[cause, job.direction, into]
        ok = into is Job.DONE
        if "job.quiesce" in effects:
            self._prove_older(job)
        # One place can take two steps of one coupling (drop, then unpin), so that slots are asked and written in turn.
        asked = [self._ask_block_effect(effect, job, ok) for effect in effects if effect in _BLOCK_EFFECTS]
        own = self._blocks.fresh(job.lives)
        self._write_job(job, compiled, row)
        for change, ids, rows in asked:
            self.take_blocks(change, ids, rows, job.number)
        for effect in effects:
            if effect == "slot.land" and ok and job.missing:  # a promotion that did not bring everything
                for came in (False, True):
                    part = packed([slot for slot in listed(job.slots) if (slot in job.missing) is not came])
                    self.take_slots(*self._land_slots(part, came), job.number)
            elif effect in _SLOT_EFFECTS:
                self.take_slots(*self._ask_slot_effect(effect, job, ok), job.number)
        self._state.verdicts += 1
        if into is Job.QUARANTINED:
            job.expired = True
        elif into in TERMINAL:
            self._jobs.end(job)
            self._state.to_flush.pop(job.number, None)
            self._state.ended[into.name] += 1
            if ok:
                self._state.moved[job.direction.name] += len(job.lives) or len(job.slots) - len(job.missing)
            self._unname(job, own, ok)
        self._tell_request(job, effects)
        if self._state.rechecks:
            self._check.couplings(job)

    def _unname(self, job: JobRow, own: Sequence[bool] | NDArray[np.bool_], ok: bool) -> None:
        """Detach a job that is over from its lives; lives that a load has filled get their keys."""
        if job.direction is Direction.STORE:
            self._blocks.name_job(select(job.ids, own), 0)
        elif ok and (names := job.names) is not None:
            for group, where in job.blocks_by_group():
                mine = own[where]
                keys = [key for key, keep in zip(names[where], mine, strict=True) if keep]
                self._blocks.name(listed(select(job.ids[where], mine)), keys, group)

    def _tell_request(self, job: JobRow, effects: tuple[str, ...]) -> None:
        """Fire the request's event at the end of its load; matched by job, as the owner may have another load by now."""
        request = self._state.requests.get(job.owner) if job.owner is not None else None
        if request is None or request.load != job.number:
            return
        if "request.loaded" in effects:
            request.load = 0
            self.fire_request(request, "loaded", job.number)
        elif "request.load_failed" in effects:
            self.give_up(request, "load_failed")

    def give_up_job(self, job: JobRow) -> None:
        """Cancel a planned job, abandon a submitted one; a job that is already given up stays as it is."""
        state = self._jobs.state(job)
        if JOB["cancel"].rows_of(state):
            self.end(job, "cancel", 0)
        elif JOB["abandon"].rows_of(state):
            self.abandon(job)

    def abandon(self, job: JobRow) -> None:
        """The result is not wanted: the content of a store or promotion is no longer found as being on its way."""
        self._fire_job(job, "abandon")
        if job.direction.fills_slots:
            self._slots.unfile(job.slots)

    def flush(self, job: JobRow, cause: str) -> None:
        """Coupling *hand-out-flushes*, and the verb: the wait goes into the next plan."""
        self._fire_job(job, "flush")
        if job.number not in self._state.to_flush:
            self._state.to_flush[job.number] = None
            self._state.flushes[cause] += 1

    def older(self, load: JobRow) -> list[JobRow]:
        """The jobs besides *load* that may touch its targets."""
        shared = {place for place in listed(load.ids) if self._blocks.pins[place] > 1}
        alive = self._jobs.alive() if shared else ()
        return [job for job in alive if job is not load and not shared.isdisjoint(listed(job.ids))]

    def _prove_older(self, load: JobRow) -> None:
        """Every worker waited for the older copies of a load's targets before it launched the load: they are quiet."""
        for job in self.older(load):
            self.end(job, "quiesce", 0)

    def _land_blocks(self, job: JobRow, ok: bool) -> Asked:
        load = job.direction is Direction.LOAD
        change = rules.LAND[load, job.expired, ok]
        return change, job.ids, self._blocks.ask(change, job.ids, self._blocks.fresh(job.lives) if load else None)

    def _land_slots(self, slots: Ids, ok: bool) -> Asked:
        """Publish content that has landed; of two stores of the same content, the second to land is dropped (I14)."""
        change = rules.FILLED[ok]
        if ok:
            key, group, index = self._slots.key, self._slots.group, self._slots.index
            for slot in listed(slots):
                own = key[slot]
                if own is not None and index[group[slot]].get(own) != slot:  # there is or was a twin
                    return change, slots, self._slots.ask(change, slots, self._duplicates(slots))
        return change, slots, self._slots.ask(change, slots)

    def _duplicates(self, slots: Ids) -> frozenset[int]:
        """Content that is already READY stays, otherwise the first of those that land together. Returns the others."""
        key, group, index, state = self._slots.key, self._slots.group, self._slots.index, self._slots.state
        landing = [(slot, (group[slot], own)) for slot in listed(slots) if (own := key[slot]) is not None]
        taken = {
            content
            for _, content in landing
            if (named := index[content[0]].get(content[1])) is not None and state[named] == READY
        }
        duplicates = []
        for slot, content in landing:
            if content in taken:
                duplicates.append(slot)
            taken.add(content)
        return frozenset(duplicates)

    def _cancel_blocks(self, job: JobRow) -> Asked:
        """Only current lives return to their earlier state; every place loses its pin."""
        fresh = self._blocks.fresh(job.lives)
        if not every(fresh):
            self._blocks.unpin(select(job.ids, [not each for each in fresh]))
        ids = select(job.ids, fresh)
        return rules.CANCEL, ids, self._blocks.ask(rules.CANCEL, ids)

    def _expire_blocks(self, job: JobRow) -> Asked:
        own = self._blocks.fresh(job.lives) if job.direction is Direction.LOAD else None
        return rules.EXPIRE, job.ids, self._blocks.ask(rules.EXPIRE, job.ids, own)

    # --- reports ------------------------------------------------------------------------------------------------------------

    def settle(
        self,
        plan: int,
        now: float,
        launched: Iterable[Launched],
        completions: Sequence[Completion],
        seals: Iterable[Seal],
    ) -> None:
        """Apply reports, in the order that `Ledger.settle` promises."""
        state = self._state
        for record in launched:
            self.launch(record, now)
        waited = state.waiting.pop(plan)
        later = completions
        if waited:
            first: list[Completion] = []
            later = []
            for completion in completions:
                mine = completion.job.incarnation == state.incarnation and completion.job.number in waited
                (first if mine else later).append(completion)
            self.complete_many(first)
            for number in waited:
                job = self._jobs.by_number.get(number)
                if job is not None and self._jobs.state(job) not in TERMINAL:
                    self.end(job, "quiesce", 0)
        if later:
            self.complete_many(later)
        for seal in seals:
            held = seal.lives
            self.seal(held if type(held) is list and len(held) < BULK else batch(held), seal.keys, seal.group)
        if state.deadlines and state.deadlines[0][0] <= now:
            self.expire(now)

    def launch(self, record: Launched, now: float) -> None:
        """A worker has launched its share: the deadline starts."""
        job = self._jobs.by_number.get(record.job.number) if record.job.incarnation == self._state.incarnation else None
        if job is not None and self._jobs.state(job) in OUT:
            self.arm(job, now)

    def expire(self, now: float) -> list[JobRow]:
        """Quarantine every job whose deadline has passed. Returns these jobs."""
        over = []
        deadlines = self._state.deadlines
        while deadlines and deadlines[0][0] <= now:
            _, number = heapq.heappop(deadlines)
            job = self._jobs.by_number.get(number)
            if job is None or self._jobs.state(job) not in _CAN_EXPIRE:
                continue
            over.append(job)
            self.end(job, "expire", 0)
        return over

    def forget_host(self) -> None:
        """`Ledger.forget_host`."""
        for job in self._jobs.alive():
            if job.direction is not Direction.LOAD:
                self.give_up_job(job)
        self.move_slots(rules.FORGET, batch(self._slots.column.where(Slot.READY)))

    def lose(self, worker: Worker) -> None:
        """`Ledger.lose`. The jobs are collected before the first of them ends: a failed load also ends planned stores."""
        owed = [job for job in self._jobs.alive() if job.number not in self._jobs.planned and not job.reported >> worker & 1]
        for job in owed:
            self.complete(Completion(self._state.id_of(job), worker, Result.FAILED))

    def complete(self, completion: Completion) -> None:
        """Apply one worker's report."""
        if (ended := self.count_report(completion)) is not None:
            self.end(*ended)

    def count_report(self, completion: Completion) -> tuple[JobRow, str, int] | None:
        """Note one worker's report. Returns the step that ends the job, if this was the last missing report."""
        state, worker, number = self._state, int(completion.worker), completion.job.number
        if completion.job.incarnation != state.incarnation or not 0 < number <= self._jobs.last_number:
            state.tally["unknown"] += 1
            return None
        job = self._jobs.by_number.get(number)
        if job is None:  # over for so long that its row was reused
            state.tally["late"] += 1
            return None
        over = number not in self._jobs.out
        again = job.reported >> worker & 1
        if again:
            state.tally["duplicate"] += 1
        elif over or self._jobs.column.state[job.row] not in _WANTED:
            state.tally["late"] += 1
        if again and not over:
            return None
        failed = job.failed or completion.result is not Result.OK
        if completion.missing and not over:
            job.missing |= {int(job.slots[position]) for position in completion.missing}
        outstanding = state.limits.num_workers - (job.reported | 1 << worker).bit_count()
        facts = MORE * (outstanding > 0) | ALL_OK * (not failed)
        job.reported |= 1 << worker
        if over:
            self._fire_job(job, "finish", facts)
            return None
        job.failed = failed
        if outstanding:
            self._fire_job(job, "finish", facts)
            return None
        return job, "finish", facts

    def complete_many(self, completions: Iterable[Completion]) -> None:
        """Apply reports in order; consecutive stores that succeed are ended together."""
        ending: dict[int, JobRow] = {}
        out, state, alone = self._jobs.out, self._jobs.column.state, self._state.limits.num_workers == 1
        incarnation = self._state.incarnation
        for completion in completions:
            number = completion.job.number
            if alone and completion.result is Result.OK and completion.job.incarnation == incarnation:
                found = out.get(number)
                if (
                    found is not None
                    and number not in ending
                    and found.direction is Direction.STORE
                    and state[found.row] in _WANTED
                ):
                    found.reported = 1
                    ending[number] = found
                    continue
            if number in ending:  # its second report finds it over
                self._finish_stores(list(ending.values()))
                ending.clear()
            ended = self.count_report(completion)
            if ended is None:
                continue
            job, _, facts = ended
            if facts == ALL_OK and job.direction is Direction.STORE and state[job.row] in _WANTED:
                ending[number] = job
                continue
            self._finish_stores(list(ending.values()))
            ending.clear()
            self.end(*ended)
        self._finish_stores(list(ending.values()))

    def _finish_stores(self, jobs: Sequence[JobRow]) -> None:
        """The last worker has reported success for each of these stores: `end` of all of them in one go."""
        if not jobs:
            return
        lut, shift, state, alone = _FINISH.lut, len(_FINISH.guards), self._jobs.column.state, len(jobs) == 1
        taken = [lut[state[job.row] << shift | ALL_OK] or self._check.ask_job(job, "finish", ALL_OK) for job in jobs]
        parts, slot_parts = [job.ids for job in jobs], [job.slots for job in jobs]
        cuts, slot_cuts = [0, *accumulate(map(len, parts))], [0, *accumulate(map(len, slot_parts))]
        land = rules.LAND[False, False, True]
        ids, slots = (parts[0], slot_parts[0]) if alone else (joined(parts), joined(slot_parts))
        fill, slots, slot_rows = self._land_slots(slots, True)
        rows = self._blocks.ask(land, ids)
        own = self._blocks.fresh(jobs[0].lives if alone else joined([job.lives for job in jobs]))
        self._blocks.write(land, ids, rows)
        self._blocks.name_job(ids if every(own) else select(ids, own), 0)
        self._slots.write(fill, slots, slot_rows)
        numbers = self._write_jobs(jobs, _FINISH, taken)
        one, each = jobs_of_each(numbers, cuts)
        self._journal.note("block", "land", ids, rows, one, each)
        if slot_cuts != cuts:
            one, each = jobs_of_each(numbers, slot_cuts)
        self._journal.note("slot", "land", slots, slot_rows, one, each)
        self._state.verdicts += len(jobs)
        self._state.ended[_DONE] += len(jobs)
        self._state.moved[_STORE] += len(ids)
        for job in jobs:
            self._jobs.end(job)
            self._state.to_flush.pop(job.number, None)
        if self._state.rechecks:
            for job in jobs:
                self._check.couplings(job)


def _surplus(lives: Sequence[int]) -> Iterator[list[int]]:
    """The repeated lives, in batches of distinct lives: a life that occurs n times is in n - 1 of them."""
    left = Counter(lives)
    while left := left - Counter(left.keys()):
        yield list(left)
