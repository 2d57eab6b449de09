"""The inside of the ledger: how one verb asks, commits, couples and tells.

Rules of this file:

* Ask, then write, then tell. The effects of a job's step are looked up in `states.COUPLINGS` and run in the order in which they
  are written there; nothing here decides what is legal.
* Nothing here is called from outside the ledger. `ledger.py` holds the verbs.
"""

from __future__ import annotations

import functools
import heapq
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Concatenate, NoReturn, ParamSpec, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from blocklife.errors import CapacityError, MisuseError, RefusedError
from blocklife.ledger.book import BLOCK, JOB, PLEDGED, READY, SLOT, Book, RequestRow
from blocklife.ledger.jobs import JobColumns, JobRow
from blocklife.ledger.limits import Checking
from blocklife.ledger.places import (
    BULK,
    ID_MASK,
    NULL,
    Ids,
    Lives,
    Situation,
    Step,
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
from blocklife.ledger.records import Committed, Completion, Direction, Refusal, Result, Transfer
from blocklife.lifecycle import Event, Rows
from blocklife.states import MACHINES, TERMINAL, Block, BlockLife, Job, JobLife, Trait, coupled, states_with

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")
CoreT = TypeVar("CoreT", bound="Core")

_KIND = {Direction.STORE: "store", Direction.LOAD: "load"}
_EFFECTS: Mapping[tuple[str, Direction, Job], tuple[str, ...]] = {
    (event, direction, into): coupled(f"job.{event}({kind})", into)
    for event in ("finish", "cancel", "expire")
    for direction, kind in _KIND.items()
    for into in Job
}
_INTO = [Job.PLANNED, *(Job[row.target.name] for row in JobLife.table.rows)]
"""Where each row of a job leads; the first is no row."""
_STALE = BlockLife.table.index[Block.STALE]
_WANTED = frozenset(JobLife.table.index[state] for state in states_with(Trait.OUT, Job) & states_with(Trait.WANTED, Job))
"""Jobs that the workers have and whose result somebody wants."""
_OK = int(Situation.OK)
MORE, ALL_OK = (JOB["finish"].bit(each) for each in JOB["finish"].guards)


class _Named(TypedDict):
    job: int
    jobs: Sequence[int]


def in_name_of(numbers: Sequence[int], cuts: Sequence[int]) -> _Named:
    """Whose places a step of several jobs moves: of each job those from its cut up to the next."""
    if len(numbers) == 1:
        return {"job": numbers[0], "jobs": ()}
    jobs: list[int] = []
    for at, number in enumerate(numbers):
        jobs += [number] * (cuts[at + 1] - cuts[at])
    return {"job": 0, "jobs": jobs}


def cuts_of(parts: Iterable[Ids]) -> list[int]:
    """Where each of several batches begins, if they lie one behind the other, and where the last ends."""
    return [0, *accumulate(map(len, parts))]


def verb(method: Callable[Concatenate[CoreT, P], ReturnT]) -> Callable[Concatenate[CoreT, P], ReturnT]:
    """Mark a method that changes the ledger: after its last write, listeners hear of all its steps, or of its refusal."""

    @functools.wraps(method)
    def run(core: CoreT, /, *args: P.args, **kwargs: P.kwargs) -> ReturnT:
        if core._telling:
            raise MisuseError(f"{method.__name__}: a listener cannot call the ledger (note it, and call after the verb)")
        if core._inside or not core._listeners:
            return method(core, *args, **kwargs)
        core._inside = True
        try:
            return method(core, *args, **kwargs)
        except RefusedError as problem:
            core._tell_refusal(problem)
            raise
        finally:
            core._inside = False
            core._tell()

    return run


class Core(Book):
    """The steps that a ledger's verbs are made of."""

    @functools.cached_property
    def _block_effects(self) -> Mapping[str, Callable[[JobRow, bool], Step]]:
        """How the effects of a coupling on the blocks of a job are asked."""
        return {
            "block.land": self._land_blocks,
            "block.cancel": self._cancel_blocks,
            "block.expire": self._expire_blocks,
        }

    @functools.cached_property
    def _slot_effects(self) -> Mapping[str, Callable[[JobRow, bool], Step]]:
        """The same for its slots."""
        return {
            "slot.land": lambda job, ok: self._land_slots(job.slots, ok),
            "slot.cancel": lambda job, ok: self.slots.ask(SLOT["cancel"], job.slots),
            "slot.expire": lambda job, ok: self.slots.ask(SLOT["expire"], job.slots),
            "slot.unpin": lambda job, ok: self.slots.ask(SLOT["unpin"], job.slots, pins=-1),
            "slot.drop": lambda job, ok: self.slots.ask(SLOT["drop"], job.slots),
        }

    # --- blocks and requests ------------------------------------------------------------------------------------------------

    def _hand_out(self, ids: Ids, group: int) -> Lives:
        """Give the blocks to new tenants; couplings *life-ends* and *hand-out-flushes*. Returns the new lives."""
        step = self.blocks.ask(BLOCK["allocate"], ids, constant=self._fence)
        step.refs = +1  # the guards ask about the old life, so the new holder is counted only now
        blocks = self.blocks
        state = blocks.column
        if type(ids) is list:
            stale = [place for place in ids if state.state[place] == _STALE]
        else:
            stale = listed(select(ids, state.view[ids] == _STALE))
        for row in self._commit(step):
            job = self.jobs.rows[row]
            if self.jobs.state(job) is Job.PLANNED:
                self._end(job, "cancel", 0)
            else:
                self._flush(job, "handed out")
        if stale:
            wanted = set(stale)
            for job in self.jobs.alive():
                if self.jobs.state(job) is not Job.PLANNED and not wanted.isdisjoint(ids_of(job.lives)):
                    self._flush(job, "handed out")
        if type(ids) is list:
            group_of = blocks.group
            for place in ids:
                group_of[place] = group
        else:
            blocks.group_view[ids] = group
        return blocks.lives(ids)

    def _choose(self, who: str, count: int) -> Ids:
        """The next *count* blocks to hand out: free ones, and under fence those that a copy still reads."""
        if count < 1:
            raise MisuseError(f"{who}: cannot allocate {count} blocks (ask for at least 1)")
        ids = self.blocks.queue.peek(count)
        if (short := count - len(ids)) > 0:
            copied = self._copied()
            lent = self.blocks.lendable(copied)[:short].tolist() if self._fence else []
            if len(lent) < short:
                self._refuse_allocation(who, count, copied)
            return packed([*listed(ids), *lent])
        return ids

    def _copied(self) -> NDArray[np.int64]:
        """Every block that a job which is out may touch, once: those of the oldest job first, whose copy lands first."""
        touched = [np.asarray(ids_of(job.lives), dtype=np.int64) for job in self.jobs.alive()]
        if not touched:
            return np.zeros(0, dtype=np.int64)
        ids = np.concatenate(touched)
        return ids[np.sort(np.unique(ids, return_index=True)[1])]

    def _refuse_allocation(self, who: str, count: int, copied: NDArray[np.int64]) -> NoReturn:
        """Say why there is no room. What is busy is found from the jobs, not by searching the pool."""
        state, index = self.blocks.column.view[copied], BlockLife.table.index
        idle = (self.blocks.refs_view[copied] == 0) & (state != index[Block.QUARANTINED])
        held = "" if self._fence else ", which the contract hold does not hand out"
        raise CapacityError(
            f"{who}: {count} blocks wanted, {self.blocks.free} are free, "
            f"{int(np.count_nonzero(idle))} are freeing soon{held}, "
            f"{int(np.count_nonzero(state == index[Block.QUARANTINED]))} are quarantined "
            "(preempt a request, or wait for a copy to land)"
        )

    def _release(self, lives: Lives) -> None:
        """Let one holder go of each life. A life that ended under its holder is no longer held."""
        fresh = self.blocks.fresh(lives)
        if not every(fresh):
            lives = select(lives, fresh)
        if len(lives) == 0:
            return
        step = self.blocks.ask(BLOCK["release"], ids_of(lives), refs=-1)
        self._cancel_orphans(self._commit(step))

    def _release_many(self, request: RequestRow, positions: Ids, group: int) -> None:
        """`release` of many positions, on the bytes of the table."""
        table, chosen = request.tables[group], np.asarray(positions)
        if int(chosen.min()) < 0 or int(chosen.max()) >= len(table) or not self._are_distinct(chosen, len(table)):
            raise MisuseError(f"request {request.name}: positions must be distinct and below {len(table)}")
        lives = entries(table, chosen)
        self._release(batch(lives[lives != NULL]))
        blank(table, chosen)

    def _seal(self, held: Lives, keys: Sequence[bytes], group: int, *, known_fresh: bool = False) -> Lives:
        """Seal what is not over; everything that could refuse it was asked before."""
        lives, names = (held, keys) if known_fresh else self._still_fresh(held, keys)
        ids = ids_of(lives)
        self._commit(self.blocks.ask(BLOCK["seal"], ids))
        self.blocks.name(listed(ids), names, group)
        self.tally["stale"] += len(held) - len(lives)
        return lives

    def _cancel_orphans(self, rows: Iterable[int]) -> None:
        """Coupling *life-ends*: a planned store whose source is gone is cancelled."""
        for row in rows:
            job = self.jobs.rows[row]
            if self.jobs.state(job) is Job.PLANNED:
                self._end(job, "cancel", 0)

    def _give_up(self, request: RequestRow, event: str) -> None:
        """Coupling *request-gives-up*: its load first, then every block, then the event."""
        load = self.jobs.by_number.get(request.load)
        if load is not None:
            self._give_up_job(load)
        request.load = 0
        self._release_all(request)
        self._fire_request(request, event)

    def _give_up_job(self, job: JobRow) -> None:
        """Cancel what nobody has seen, abandon what the workers have; what is given up already stays as it is."""
        state = self.jobs.state(job)
        if JOB["cancel"].rows_of(state):
            self._end(job, "cancel", 0)
        elif JOB["abandon"].rows_of(state):
            self._abandon(job)

    def _abandon(self, job: JobRow) -> None:
        """Nobody wants the result: what a store brings is no longer found to be on its way."""
        self._fire_job(job, "abandon")
        if job.direction is Direction.STORE:
            self.slots.unfile(job.slots)

    def _release_all(self, request: RequestRow) -> None:
        """Release every block, the last of a table first to be handed out again."""
        for group, table in enumerate(request.tables):
            if table:
                if len(table) < BULK:
                    self._release([life for life in reversed(table) if life != NULL])
                else:
                    lives = entries(table, slice(None, None, -1))
                    self._release(batch(lives[lives != NULL]))
                request.tables[group] = array("q")

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    def _end(self, job: JobRow, event: str, facts: int) -> None:
        """Take a step of a job that has couplings: ask the effects, write the job and the effects, then tell its request."""
        compiled = JOB[event]
        row = self._ask_job(job, event, facts)
        into = _INTO[row]
        cause = "finish" if event == "quiesce" else event
        effects = _EFFECTS[cause, job.direction, into]
        ok = into is Job.DONE
        if "job.quiesce" in effects:
            self._prove_older(job)
        # One place can take two steps of one coupling (drop, then unpin), so that slots are asked and written in turn.
        steps = [self._block_effects[effect](job, ok) for effect in effects if effect in self._block_effects]
        own = self.blocks.fresh(job.lives)
        self._write_job(job, compiled, row)
        self._commit(*steps, job=job.number)
        for effect in effects:
            if effect in self._slot_effects:
                self._commit(self._slot_effects[effect](job, ok), job=job.number)
        self.verdicts += 1
        if into is Job.QUARANTINED:
            job.expired = True
        elif into in TERMINAL:
            self.jobs.end(job)
            self._to_flush.pop(job.number, None)
            self.ended[into.name] += 1
            if ok:
                self.moved[job.direction.name] += len(job.lives)
            self._unname(job, own, ok)
        self._tell_request(job, effects)
        if self.checking is not Checking.OFF:
            self._recheck(job)

    def _unname(self, job: JobRow, own: Sequence[bool] | NDArray[np.bool_], ok: bool) -> None:
        """The lives of a job that is over no longer name it; those that a load has filled get their keys."""
        if job.direction is Direction.STORE:
            self.blocks.name_job(ids_of(select(job.lives, own)), 0)
        elif ok and (names := job.names) is not None:
            for group, where in job.blocks_by_group():
                mine = own[where]
                keys = [key for key, keep in zip(names[where], mine, strict=True) if keep]
                self.blocks.name(listed(ids_of(select(job.lives[where], mine))), keys, group)

    def _tell_request(self, job: JobRow, effects: tuple[str, ...]) -> None:
        """The owner of a load hears of its end; matched by job, for the owner may have another load by now."""
        request = self.requests.get(job.owner) if job.owner is not None else None
        if request is None or request.load != job.number:
            return
        if "request.loaded" in effects:
            request.load = 0
            self._fire_request(request, "loaded", job.number)
        elif "request.load_failed" in effects:
            self._give_up(request, "load_failed")

    def _plan_stores(self, stores: JobColumns) -> list[JobRow]:
        """Coupling *store-planned*: ask everything, then make the jobs and reserve both ends."""
        slots = stores.slots
        ids = self._check_stores(stores)
        self.jobs.check_room(len(stores))
        block_step = self.blocks.ask(BLOCK["plan_store"], ids, pins=+1)
        slot_step = self.slots.ask(SLOT["plan_store"], slots)
        self._check_names(stores, ids)
        made = self.jobs.add(Direction.STORE, stores, self.limits.num_groups)
        numbers, rows = [job.number for job in made], [job.row for job in made]
        named = in_name_of(numbers, stores.cuts)
        self._commit(block_step, **named)
        if stores.slot_cuts is not stores.cuts:
            named = in_name_of(numbers, stores.slot_cuts)
        self._commit(slot_step, **named)
        self.blocks.name_jobs(ids, rows, stores.cuts)
        self.slots.name_all(slots, stores.keys, stores.slot_groups)
        return made

    def _land_blocks(self, job: JobRow, ok: bool) -> Step:
        load = job.direction is Direction.LOAD
        return self.blocks.ask(
            BLOCK["land"],
            ids_of(job.lives),
            pins=-1,
            writes=-1 if load else 0,
            overdue=-1 if job.expired else 0,
            constant=_OK if ok else 0,
            own=self.blocks.fresh(job.lives) if load else None,
        )

    def _land_slots(self, slots: Ids, ok: bool) -> Step:
        """Publish what has landed; of two stores of one content the second to land is not needed (I14)."""
        if not ok:
            return self.slots.ask(SLOT["land"], slots)
        key, group, index = self.slots.key, self.slots.group, self.slots.index
        for slot in listed(slots):
            own = key[slot]
            if own is not None and index[group[slot]].get(own) != slot:  # it has a twin, or had one
                return self._land_twins(slots)
        return self.slots.ask(SLOT["land"], slots, constant=_OK)

    def _land_twins(self, slots: Ids) -> Step:
        """What is READY already stays; else the first of those that land together does."""
        key, group, index, state = self.slots.key, self.slots.group, self.slots.index, self.slots.column.state
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
        return self.slots.ask(SLOT["land"], slots, constant=_OK, unwanted=frozenset(duplicates))

    def _cancel_blocks(self, job: JobRow, ok: bool) -> Step:
        """Only lives that are not over go back to what they were; every place loses its pin."""
        fresh = self.blocks.fresh(job.lives)
        if not every(fresh):
            over = select(job.lives, [not each for each in fresh])
            self.blocks.unpin(ids_of(over))
        return self.blocks.ask(BLOCK["cancel"], ids_of(select(job.lives, fresh)), pins=-1)

    def _expire_blocks(self, job: JobRow, ok: bool) -> Step:
        load = job.direction is Direction.LOAD
        own = self.blocks.fresh(job.lives) if load else None
        return self.blocks.ask(BLOCK["expire"], ids_of(job.lives), overdue=+1, own=own)

    def _flush(self, job: JobRow, cause: str) -> None:
        """Coupling *hand-out-flushes*, and the verb: the wait goes into the next plan."""
        self._fire_job(job, "flush")
        if job.number not in self._to_flush:
            self._to_flush[job.number] = None
            self.flushes[cause] += 1

    def _older(self, load: JobRow) -> list[JobRow]:
        """The jobs besides *load* that may touch its targets."""
        shared = {place for place in ids_of(load.lives) if self.blocks.pins[place] > 1}
        if not shared:
            return []
        return [job for job in self.jobs.alive() if job is not load and not shared.isdisjoint(ids_of(job.lives))]

    def _prove_older(self, load: JobRow) -> None:
        """Every worker waited for the older copies of a load's targets before it launched the load: they are quiet."""
        for job in self._older(load):
            self._end(job, "quiesce", 0)

    def _ripe(self) -> list[JobRow]:
        """The planned jobs whose content is final, oldest first."""
        planned = list(self.jobs.planned.values())
        if sum(len(job.lives) for job in planned) < BULK:
            state = self.blocks.column.state
            return [job for job in planned if PLEDGED not in [state[life & ID_MASK] for life in listed(job.lives)]]
        ids = np.asarray(ids_of(joined([job.lives for job in planned])), dtype=np.int64)
        starts = np.cumsum([0, *(len(job.lives) for job in planned[:-1])])
        pledged = np.logical_or.reduceat(self.blocks.column.view[ids] == PLEDGED, starts)
        return [job for job, waits in zip(planned, pledged.tolist(), strict=True) if not waits]

    def _count_report(self, completion: Completion) -> tuple[JobRow, str, int] | None:
        """Note one worker's report. Returns the step that ends the job, where it was the last one that was missing."""
        worker, number = int(completion.worker), completion.job.number
        if completion.job.incarnation != self.incarnation or not 0 < number <= self.jobs.last_number:
            self.tally["unknown"] += 1
            return None
        job = self.jobs.by_number.get(number)
        if job is None:  # over for so long that its row is another job's
            self.tally["late"] += 1
            return None
        over = number not in self.jobs.out
        again = job.reported >> worker & 1
        if again:
            self.tally["duplicate"] += 1
        elif over or self.jobs.column.state[job.row] not in _WANTED:
            self.tally["late"] += 1
        if again and not over:
            return None
        failed = job.failed or completion.result is not Result.OK
        outstanding = self.limits.num_workers - (job.reported | 1 << worker).bit_count()
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

    def _complete_many(self, completions: Iterable[Completion]) -> None:
        """Apply reports in order; stores that end well one after the other end together."""
        ending: dict[int, JobRow] = {}
        out, state, alone = self.jobs.out, self.jobs.column.state, self.limits.num_workers == 1
        for completion in completions:
            number = completion.job.number
            if alone and completion.result is Result.OK and completion.job.incarnation == self.incarnation:
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
            ended = self._count_report(completion)
            if ended is None:
                continue
            job, _, facts = ended
            if facts == ALL_OK and job.direction is Direction.STORE and self.jobs.column.state[job.row] in _WANTED:
                ending[number] = job
                continue
            self._finish_stores(list(ending.values()))
            ending.clear()
            self._end(*ended)
        self._finish_stores(list(ending.values()))

    def _submit(self, rows: Sequence[JobRow]) -> None:
        if not rows:
            return
        taken = [self._ask_job(job, "submit") for job in rows]
        lives, cuts = joined([job.lives for job in rows]), cuts_of(job.lives for job in rows)
        fresh = self.blocks.fresh(lives)
        if not every(fresh):
            parts = [self._current(job) for job in rows]
            lives, cuts = joined(parts), cuts_of(parts)
        step = self.blocks.ask(BLOCK["submit"], ids_of(lives))
        self._write_jobs(rows, JOB["submit"], taken)
        for job in rows:
            del self.jobs.planned[job.number]
        self._commit(step, **in_name_of([job.number for job in rows], cuts))

    def _finish_stores(self, rows: Sequence[JobRow]) -> None:
        """The last worker has reported success for each of these stores: `_end` of all of them in one go."""
        if len(rows) < 2:
            for job in rows:
                self._end(job, "finish", ALL_OK)
            return
        taken = [self._ask_job(job, "finish", ALL_OK) for job in rows]
        numbers = [job.number for job in rows]
        lives, slots = joined([job.lives for job in rows]), joined([job.slots for job in rows])
        cuts = cuts_of(job.lives for job in rows)
        ids = ids_of(lives)
        step = self.blocks.ask(BLOCK["land"], ids, pins=-1, constant=_OK)
        slot_step = self._land_slots(slots, True)
        own = self.blocks.fresh(lives)
        self._write_jobs(rows, JOB["finish"], taken)
        named = in_name_of(numbers, cuts)
        self._commit(step, **named)
        slot_cuts = cuts_of(job.slots for job in rows)
        if slot_cuts != cuts:
            named = in_name_of(numbers, slot_cuts)
        self._commit(slot_step, **named)
        self.blocks.name_job(ids if every(own) else ids_of(select(lives, own)), 0)
        self.verdicts += len(rows)
        self.ended[Job.DONE.name] += len(rows)
        self.moved[Direction.STORE.name] += len(lives)
        for job in rows:
            self.jobs.end(job)
            self._to_flush.pop(job.number, None)
            if self.checking is not Checking.OFF:
                self._recheck(job)

    def _arm(self, job: JobRow, now: float) -> None:
        if job.deadline is None:
            job.deadline = now + self.deadline
            heapq.heappush(self._deadlines, (job.deadline, job.number))
            if len(self._deadlines) > 2 * self.limits.max_jobs:
                self._deadlines = [each for each in self._deadlines if each[1] in self.jobs.out]
                heapq.heapify(self._deadlines)

    def _current(self, job: JobRow) -> Lives:
        """Those lives of a job that are not over."""
        fresh = self.blocks.fresh(job.lives)
        return job.lives if every(fresh) else select(job.lives, fresh)

    def _transfers(self, jobs: Sequence[JobRow]) -> list[Transfer]:
        """What the workers get of each job. All of them look at two arrays: many small ones cost more than what is in them."""
        if len(jobs) < 2:
            return [self._transfer(job) for job in jobs]
        blocks = np.asarray(ids_of(joined([job.lives for job in jobs])), dtype=np.int64)
        places = np.array(joined([job.places for job in jobs]), dtype=np.int64)
        found, start = [], 0
        for job in jobs:
            here = slice(start, start + len(job.lives))
            source, target = (blocks, places) if job.direction is Direction.STORE else (places, blocks)
            found.append(Transfer(self._id(job), job.direction, source[here], target[here], job.group_sizes))
            start = here.stop
        return found

    def _transfer(self, job: JobRow) -> Transfer:
        blocks = np.array(ids_of(job.lives), dtype=np.int64)
        places = np.array(job.places, dtype=np.int64)
        source, target = (blocks, places) if job.direction is Direction.STORE else (places, blocks)
        return Transfer(self._id(job), job.direction, source, target, job.group_sizes)

    # --- asking and committing ----------------------------------------------------------------------------------------------

    def _fire_job(self, job: JobRow, event: str, facts: int = 0) -> None:
        self._write_job(job, JOB[event], self._ask_job(job, event, facts))

    def _write_job(self, job: JobRow, event: Event, row: int) -> None:
        self.jobs.column.commit([job.row], row)
        self._emit("job", event.name, [job.number], [row], [], job.number)

    def _write_jobs(self, jobs: Sequence[JobRow], event: Event, rows: list[int]) -> None:
        """Each job takes its row, in one step; all of them are told as one record."""
        self.jobs.column.commit([job.row for job in jobs], rows)
        numbers = [job.number for job in jobs]
        one = numbers[0] if len(numbers) == 1 else 0
        self._emit("job", event.name, numbers, rows, [], one, numbers)

    def _fire_request(self, request: RequestRow, event: str, job: int = 0) -> None:
        row = self._ask_request(request, event)
        self.request_column.commit([request.row], row)
        self._emit("request", event, [request.row], [row], [], job, (), request.name)

    def _commit(self, *steps: Step, job: int = 0, jobs: Sequence[int] = ()) -> list[int]:
        """Write steps and tell the listeners. Returns the rows of jobs whose source life ended."""
        orphans: list[int] = []
        for step in steps:
            if len(step.ids) == 0:
                continue
            places, ids = step.places, step.ids
            orphans += places.apply(step)
            epochs: list[int] = []
            if self._listeners and places is self.blocks:
                epoch = self.blocks.epoch
                epochs = [epoch[place] for place in ids] if type(ids) is list else self.blocks.epoch_view[ids].tolist()
            self._emit(places.machine, step.event.name, ids, step.rows, epochs, job, jobs)
        return list(dict.fromkeys(orphans)) if orphans else orphans

    def _emit(
        self,
        machine: str,
        event: str,
        ids: Ids,
        rows: Rows,
        epochs: list[int],
        job: int = 0,
        jobs: Sequence[int] = (),
        name: str = "",
    ) -> None:
        self._sequence += 1
        entry = (self._sequence, self.plan_number, machine, event, ids, rows, epochs, job, jobs, name)
        self._journal.append(entry)
        self._journal_size += len(ids)
        while self._journal_size > self.limits.max_journal:
            self._journal_size -= len(self._journal.popleft()[4])
        if self._listeners:
            self._untold.append(Committed._make(entry))

    def _tell_refusal(self, problem: RefusedError) -> None:
        """Tell who listens for refusals. An error of theirs becomes a note: the verb did nothing, and its caller hears why.

        What is about no place of a ledger is not told: a watcher of slots may have lifecycles of its own.
        """
        machine, _, name = problem.thing.partition(" ")
        if machine not in MACHINES or problem.place is None:
            return
        refusal = Refusal(self.plan_number, machine, problem.place, problem.event, problem.state)
        if machine == "request":
            refusal = refusal._replace(name=name)
        interrupt: BaseException | None = None
        self._telling = True
        try:
            for listener in self._refusal_listeners:
                try:
                    listener(refusal)
                except Exception as raised:
                    problem.add_note(f"who listens for refusals has failed: {raised!r}")
                except BaseException as raised:
                    interrupt = interrupt or raised
        finally:
            self._telling = False
        if interrupt is not None:
            raise interrupt

    def _tell(self) -> None:
        """Tell every listener everything that was committed; the first error of one is raised when all have heard it.

        An interrupt (Ctrl-C while a listener runs) goes on then, too, and before any error.
        """
        problem: Exception | None = None
        interrupt: BaseException | None = None
        self._telling = True
        try:
            while self._untold:
                record = self._untold.popleft()
                for listener in self._listeners:
                    try:
                        listener(record)
                    except Exception as raised:
                        problem = problem or raised
                    except BaseException as raised:
                        interrupt = interrupt or raised
        finally:
            self._telling = False
        if (first := interrupt or problem) is not None:
            raise first
