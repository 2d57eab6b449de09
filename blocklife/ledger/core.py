"""The inside of the ledger: how one verb asks, commits, couples and tells.

Rules of this file:

* Ask, then write, then tell. The effects of a job's step are looked up in `states.COUPLINGS` and run in the order in which they
  are written there; nothing here decides what is legal.
* Nothing here is called from outside the ledger. `ledger.py` holds the verbs.
"""

from __future__ import annotations

import functools
import heapq
import math
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Concatenate, NoReturn, ParamSpec, TypeAlias, TypeVar

import numpy as np
from attrs import define
from numpy.typing import NDArray

from blocklife.errors import CapacityError, InvariantError, LateError, MisuseError
from blocklife.ledger.jobs import (
    TERMINAL,
    Allocated,
    Batch,
    JobRow,
    JobTable,
)
from blocklife.ledger.limits import Checking, Contract, Limits
from blocklife.ledger.places import (
    BULK,
    EPOCH_SHIFT,
    ID_MASK,
    NULL,
    Blocks,
    Ids,
    Lives,
    Situation,
    Slots,
    Step,
    batch,
    blank,
    entries,
    every,
    extend,
    ids_of,
    listed,
    select,
)
from blocklife.ledger.records import Committed, Completion, Direction, JobId, Seal, Transfer
from blocklife.lifecycle import Column, Event
from blocklife.states import Block, BlockLife, Job, JobLife, RequestLife, Slot, SlotLife, coupled

Listener: TypeAlias = Callable[[Committed], None]

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")
CoreT = TypeVar("CoreT", bound="Core")

_E = {name: table.table.events for name, table in (("block", BlockLife), ("slot", SlotLife), ("job", JobLife))}
BLOCK, SLOT, JOB = _E["block"], _E["slot"], _E["job"]
REQUEST = RequestLife.table.events
_KIND = {Direction.STORE: "store", Direction.LOAD: "load"}
_EFFECTS: Mapping[tuple[str, Direction, Job], tuple[str, ...]] = {
    (event, direction, into): coupled(f"job.{event}({kind})", into)
    for event in ("finish", "cancel", "expire")
    for direction, kind in _KIND.items()
    for into in Job
}
PLEDGED = BlockLife.table.index[Block.PLEDGED]
_STALE = BlockLife.table.index[Block.STALE]
MORE, ALL_OK = (JOB["finish"].bit(each) for each in JOB["finish"].guards)


def verb(method: Callable[Concatenate[CoreT, P], ReturnT]) -> Callable[Concatenate[CoreT, P], ReturnT]:
    """Mark a method that changes the ledger: after its last write, listeners hear of all its steps."""

    @functools.wraps(method)
    def run(core: CoreT, /, *args: P.args, **kwargs: P.kwargs) -> ReturnT:
        if core._telling:
            raise MisuseError(f"{method.__name__}: a listener cannot call the ledger (note it, and call after the verb)")
        if core._inside or not core._listeners:
            return method(core, *args, **kwargs)
        core._inside = True
        try:
            return method(core, *args, **kwargs)
        finally:
            core._inside = False
            core._tell()

    return run


@define(eq=False)
class RequestRow:
    """What the ledger keeps of one request besides its state.

    Invariant: ``tables[group]`` holds the lives that the request holds, in order, each counted once in the block's refs; `NULL`
    stands for a place outside the window. ``load`` is the number of its live load, 0 where it has none.
    """

    row: int
    name: str
    tables: list[array[int]]
    load: int = 0


class Core:
    """The state of a ledger, and the steps that its verbs are made of."""

    def __init__(
        self,
        limits: Limits,
        *,
        contract: Contract = Contract.FENCE,
        checking: Checking = Checking.STRICT,
        incarnation: int = 1,
        deadline: float = 64.0,
        own_pool: bool = True,
    ) -> None:
        if not 0 < deadline < math.inf:
            raise MisuseError(f"deadline must be above 0 and finite, not {deadline}")
        if incarnation < 1:
            raise MisuseError(f"incarnation must be at least 1, not {incarnation}")
        self.limits = limits
        self.contract = contract
        self.checking = checking
        self.incarnation = incarnation
        self.deadline = deadline
        self.own_pool = own_pool
        self.blocks = Blocks(limits.num_blocks, limits.num_groups)
        self.slots = Slots(limits.num_slots, limits.num_groups)
        self.jobs = JobTable(limits.max_jobs)
        self.requests: dict[str, RequestRow] = {}
        self.request_column = Column(RequestLife.table, limits.max_requests)
        self.tally: Counter[str] = Counter()
        """What was counted: late, duplicate and unknown reports, stale references, flushes, violations."""
        self.ended: Counter[str] = Counter()
        """Jobs by terminal state."""
        self.moved: Counter[str] = Counter()
        """Blocks of jobs that are DONE, by direction."""
        self.journal: deque[Committed] = deque()
        self._journal_size = 0
        self.plan_number = 0
        self._listeners: list[Listener] = []
        self._untold: deque[Committed] = deque()
        self._inside = False
        self._telling = False
        self._spare_requests: deque[int] = deque(range(limits.max_requests))
        # Extra state that is no machine's: jobs to wait for in the next plan, and plans whose waits are not yet proven.
        self._to_flush: dict[int, None] = {}
        self.holders: dict[str, Counter[int]] = {}
        """Who counts on which slots beside the jobs: a lookup that will be used (I7)."""
        self._waiting: dict[int, tuple[int, ...]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._sequence = 0
        self._fence = int(Situation.FENCE) if contract is Contract.FENCE else 0
        self._block_effects: Mapping[str, Callable[[JobRow, bool], Step]] = {
            "block.land": self._land_blocks,
            "block.cancel": self._cancel_blocks,
            "block.expire": self._expire_blocks,
        }
        self._slot_effects: Mapping[str, Callable[[JobRow, bool], Step]] = {
            "slot.land": lambda job, ok: self.slots.ask(SLOT["land"], job.slots, constant=int(Situation.OK) if ok else 0),
            "slot.cancel": lambda job, ok: self.slots.ask(SLOT["cancel"], job.slots),
            "slot.expire": lambda job, ok: self.slots.ask(SLOT["expire"], job.slots),
            "slot.unpin": lambda job, ok: self.slots.ask(SLOT["unpin"], job.slots, pins=-1),
            "slot.drop": lambda job, ok: self.slots.ask(SLOT["drop"], job.slots),
        }

    # --- blocks and requests ------------------------------------------------------------------------------------------------

    def _hand_out(self, request: RequestRow, ids: Ids, group: int) -> Batch[Allocated]:
        """Give the blocks to a new tenant; couplings *life-ends* and *hand-out-flushes*."""
        step = self.blocks.ask(BLOCK["allocate"], ids, constant=self._fence)
        step.refs = +1  # the guards ask about the old life, so the new holder is counted only now
        state = self.blocks.column
        if type(ids) is list:
            stale = [place for place in ids if state.state[place] == _STALE]
        else:
            stale = listed(select(ids, state.view[ids] == _STALE))
        orphans = self._commit(step)
        for row in orphans:
            job = self.jobs.rows[row]
            if self.jobs.state(job) is Job.PLANNED:
                self._end(job, "cancel", 0)
            else:
                self._flush(job)
        if stale:
            wanted = set(stale)
            for job in self.jobs.alive():
                if self.jobs.state(job) is not Job.PLANNED and not wanted.isdisjoint(ids_of(job.lives)):
                    self._flush(job)
        lives = self.blocks.lives(ids)
        if type(ids) is list:
            for place in ids:
                self.blocks.group[place] = group
        else:
            self.blocks.group_view[ids] = group
        extend(request.tables[group], lives)
        return Batch(lives, group)

    def _copied(self) -> NDArray[np.int64]:
        """Every block that a job which is out may touch, once."""
        touched = [np.asarray(ids_of(job.lives), dtype=np.int64) for job in self.jobs.alive()]
        return np.unique(np.concatenate(touched)) if touched else np.zeros(0, dtype=np.int64)

    def _refuse_allocation(self, request: RequestRow, count: int, copied: NDArray[np.int64]) -> NoReturn:
        """Say why there is no room. What is busy is found from the jobs, not by searching the pool."""
        state, index = self.blocks.column.view[copied], BlockLife.table.index
        idle = (self.blocks.refs_view[copied] == 0) & (state != index[Block.QUARANTINED])
        held = "" if self._fence else ", which the contract hold does not hand out"
        raise CapacityError(
            f"request {request.name}: {count} blocks wanted, {self.blocks.free} are free, "
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
        self._let_go(request)
        self._fire_request(request, event)

    def _give_up_job(self, job: JobRow) -> None:
        """Cancel what nobody has seen, abandon what the workers have; what is given up already stays as it is."""
        state = self.jobs.state(job)
        if JOB["cancel"].rows_of(state):
            self._end(job, "cancel", 0)
        elif JOB["abandon"].rows_of(state):
            self._fire_job(job, "abandon")

    def _let_go(self, request: RequestRow) -> None:
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
        into = self.jobs.column.table.row(row).target
        if not isinstance(into, Job):
            raise TypeError(into)
        cause = "finish" if event == "quiesce" else event
        effects = _EFFECTS[cause, job.direction, into]
        ok = into is Job.DONE
        if "job.quiesce" in effects:
            self._prove_older(job)
        # One place can take two steps of one coupling (drop, then unpin), so that slots are asked and written in turn.
        steps = [self._block_effects[effect](job, ok) for effect in effects if effect in self._block_effects]
        own = self.blocks.fresh(job.lives)
        self._write_job(job, compiled, row)
        orphans = self._commit(*steps, job=job.number)
        for effect in effects:
            if effect in self._slot_effects:
                self._commit(self._slot_effects[effect](job, ok), job=job.number)
        if into is Job.QUARANTINED:
            job.doubted = True
        elif into in TERMINAL:
            self.jobs.end(job)
            self.ended[into.name] += 1
            if ok:
                self.moved[job.direction.name] += len(job.lives)
            self._unname(job, own, ok)
        self._cancel_orphans(orphans)
        self._tell_request(job, effects)
        if self.checking is not Checking.OFF:
            self._recheck(job)

    def _unname(self, job: JobRow, own: Sequence[bool] | NDArray[np.bool_], ok: bool) -> None:
        """The lives of a job that is over no longer name it; those that a load has filled get their keys."""
        lives = select(job.lives, own)
        ids = ids_of(lives)
        if job.direction is Direction.STORE:
            self.blocks.name_job(ids, 0)
        elif ok and len(job.keys) == len(job.lives):  # else each key names a chunk of several blocks
            keys = [key for key, keep in zip(job.keys, own, strict=True) if keep]
            self.blocks.name(listed(ids), keys, job.group)

    def _tell_request(self, job: JobRow, effects: tuple[str, ...]) -> None:
        """The owner of a load hears of its end; matched by job, for the owner may have another load by now."""
        request = self.requests.get(job.owner) if job.owner is not None else None
        if request is None or request.load != job.number:
            return
        if "request.loaded" in effects:
            request.load = 0
            self._fire_request(request, "loaded", job.number)
        elif "request.load_failed" in effects:
            request.load = 0
            self._give_up(request, "load_failed")

    def _land_blocks(self, job: JobRow, ok: bool) -> Step:
        load = job.direction is Direction.LOAD
        return self.blocks.ask(
            BLOCK["land"],
            ids_of(job.lives),
            pins=-1,
            writes=-1 if load else 0,
            doubts=-1 if job.doubted else 0,
            constant=int(Situation.OK) if ok else 0,
            own=self.blocks.fresh(job.lives) if load else None,
        )

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
        return self.blocks.ask(BLOCK["expire"], ids_of(job.lives), doubts=+1, own=own)

    def _flush(self, job: JobRow) -> None:
        """Coupling *hand-out-flushes*, and the verb: the wait goes into the next plan."""
        self._fire_job(job, "flush")
        self._to_flush[job.number] = None
        self.tally["flushes"] += 1

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

    def _submit(self, rows: Sequence[JobRow]) -> None:
        for job in rows:
            self._ask_job(job, "submit")
        steps = [(job, self.blocks.ask(BLOCK["submit"], ids_of(self._current(job)))) for job in rows]
        for job, step in steps:
            self._fire_job(job, "submit")
            self._commit(step, job=job.number)

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

    def _transfer(self, job: JobRow) -> Transfer:
        blocks = np.array(ids_of(job.lives), dtype=np.int64)
        places = np.array(job.places, dtype=np.int64)
        source, target = (blocks, places) if job.direction is Direction.STORE else (places, blocks)
        return Transfer(self._id(job), job.direction, source, target, job.group_sizes)

    def _id(self, job: JobRow) -> JobId:
        return JobId(self.incarnation, job.number)

    # --- asking and committing ----------------------------------------------------------------------------------------------

    def _ask_job(self, job: JobRow, event: str, facts: int = 0) -> int:
        compiled = JOB[event]
        row = compiled.lut[self.jobs.column.state[job.row] << len(compiled.guards) | facts]
        if row == 0:
            self.jobs.column.table.refuse(f"job {self._id(job)}", self.jobs.state(job), event)
        return row

    def _fire_job(self, job: JobRow, event: str, facts: int = 0) -> None:
        self._write_job(job, JOB[event], self._ask_job(job, event, facts))

    def _write_job(self, job: JobRow, event: Event, row: int) -> None:
        self.jobs.column.commit([job.row], row)
        self._emit(Committed(self._next(), self.plan_number, "job", event.name, [job.number], [row], [], job.number))

    def _ask_request(self, request: RequestRow, event: str) -> int:
        row = REQUEST[event].lut[self.request_column.state[request.row]]
        if row == 0:
            state = self.request_column.at(request.row)
            self.request_column.table.refuse(f"request {request.name}", state, event)
        return row

    def _fire_request(self, request: RequestRow, event: str, job: int = 0) -> None:
        row = self._ask_request(request, event)
        self.request_column.commit([request.row], row)
        self._emit(Committed(self._next(), self.plan_number, "request", event, [request.row], [row], [], job))

    def _commit(self, *steps: Step, job: int = 0) -> list[int]:
        """Write steps and tell the listeners. Returns the rows of jobs whose source life ended."""
        orphans: list[int] = []
        for step in steps:
            if len(step.ids) == 0:
                continue
            orphans += step.places.apply(step)
            self._emit_places(step.places.machine, step, job)
        return list(dict.fromkeys(orphans)) if orphans else orphans

    def _emit_places(self, machine: str, step: Step, job: int) -> None:
        epochs: list[int] = []
        if self._listeners and machine == "block":
            ids = step.ids
            epochs = [self.blocks.epoch[place] for place in ids] if type(ids) is list else self.blocks.epoch_view[ids].tolist()
        self._sequence = sequence = self._sequence + 1
        self._emit(Committed(sequence, self.plan_number, machine, step.event.name, step.ids, step.rows, epochs, job))

    def _emit(self, record: Committed) -> None:
        self.journal.append(record)
        self._journal_size += len(record.ids)
        while self._journal_size > self.limits.max_journal:
            self._journal_size -= len(self.journal.popleft().ids)
        if self._listeners:
            self._untold.append(record)

    def _tell(self) -> None:
        """Tell every listener everything that was committed; the first error of one is raised when all have heard it."""
        problem: Exception | None = None
        self._telling = True
        try:
            while self._untold:
                record = self._untold.popleft()
                for listener in self._listeners:
                    try:
                        listener(record)
                    except Exception as raised:
                        problem = problem or raised
        finally:  # an interrupt is no reason to refuse every later verb
            self._telling = False
        if problem is not None:
            raise problem

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    # --- checks -------------------------------------------------------------------------------------------------------------

    def _request(self, request: str) -> RequestRow:
        found = self.requests.get(request)
        if found is None:
            raise MisuseError(f"request {request}: it is not known (add_request first, and nothing after finish)")
        return found

    def _check_group(self, group: int) -> None:
        if not 0 <= group < self.limits.num_groups:
            raise MisuseError(f"group {group}: groups are 0 to {self.limits.num_groups - 1}")

    def _check_slots(self, slots: Ids) -> None:
        if len(slots) == 0:
            return
        low, high = (min(slots), max(slots)) if type(slots) is list else (np.min(slots), np.max(slots))
        for slot in (low, high):
            if not 0 <= slot < len(self.slots):
                raise MisuseError(f"slot {slot}: slots are 0 to {len(self.slots) - 1}")
        if not self._are_distinct(slots, len(self.slots)):
            raise MisuseError(f"slot {Counter(listed(slots)).most_common(1)[0][0]}: it is named twice in one call")

    def _check_tenancy(self, table: array[int], lives: Lives, request: str) -> None:
        """A table holds a life once, so that each of its holds has one release (I4)."""
        for life in set(table).intersection(lives) if table else ():
            raise MisuseError(f"block {life & ID_MASK}: request {request} holds it already (a table names a life once)")

    def _rows_of(self, jobs: Sequence[JobId]) -> list[JobRow]:
        rows = [self._job(job) for job in jobs]
        if len(set(jobs)) != len(jobs):
            raise MisuseError(f"job {Counter(jobs).most_common(1)[0][0]}: it is named twice in one call")
        return rows

    def _job(self, name: JobId) -> JobRow:
        found = self.jobs.by_number.get(name.number) if name.incarnation == self.incarnation else None
        if found is None and name.incarnation == self.incarnation and 0 < name.number <= self.jobs.last_number:
            raise LateError(f"job {name}: it has been over for so long that its row is another job's (ask earlier)")
        if found is None:
            raise MisuseError(f"job {name}: it was never made here (it may be of another incarnation)")
        return found

    def _check_pool(self, own: bool) -> None:
        if own is not self.own_pool:
            verb, other = ("allocate", "observe_allocate") if own else ("observe_*", "allocate")
            raise MisuseError(f"{verb}: this ledger's blocks are handed out through {other} (own_pool={self.own_pool})")

    def _check_blocks(self, blocks: Sequence[int]) -> list[int]:
        found = [int(block) for block in blocks]
        for block in found:
            if not 0 < block < len(self.blocks):
                raise MisuseError(f"block {block}: blocks are 1 to {len(self.blocks) - 1} (0 is the null block)")
        if len(set(found)) != len(found):
            twice = next(block for block, count in Counter(found).items() if count > 1)
            raise MisuseError(f"block {twice}: it is named twice in one call")
        return found

    def _check_fresh(self, lives: Lives, verb: str) -> Ids:
        """The ids of lives that are not over and distinct; an error names the first that is not."""
        ids = self._check_distinct(lives, verb)
        fresh = self.blocks.fresh(lives)
        if not every(fresh):
            life = int(next(life for life, keep in zip(lives, fresh, strict=True) if not keep))
            place, epoch = life & ID_MASK, life >> EPOCH_SHIFT
            raise MisuseError(
                f"block {place}: cannot {verb} its life {epoch}, which is over; it is {self.blocks.at(place).name} in life "
                f"{self.blocks.epoch[place]} (look it up again)"
            )
        return ids

    def _check_lives(self, lives: Lives, verb: str) -> None:
        """Refuse what cannot be a life: below zero, or of a block that does not exist or is the null block."""
        ids = ids_of(lives)
        if len(ids) == 0:
            return
        if type(lives) is list and type(ids) is list:
            low, high, lowest = min(ids), max(ids), min(lives)
        else:
            low, high, lowest = int(np.min(ids)), int(np.max(ids)), int(np.min(lives))
        if lowest < 0 or low == NULL or high >= len(self.blocks):
            raise MisuseError(f"{verb}: blocks are 1 to {len(self.blocks) - 1}, which {listed(lives)[:4]} do not name")

    def _check_distinct(self, lives: Lives, verb: str) -> Ids:
        self._check_lives(lives, verb)
        ids = ids_of(lives)
        if len(ids) > 1 and not self._are_distinct(ids, len(self.blocks)):
            raise MisuseError(f"{verb}: a block is named twice in one call")
        return ids

    def _check_report(self, completion: Completion) -> None:
        worker = int(completion.worker)
        if not 0 <= worker < self.limits.num_workers:
            raise MisuseError(f"worker {worker}: there are {self.limits.num_workers} (ranks count from 0)")
        job = self.jobs.by_number.get(completion.job.number) if completion.job.incarnation == self.incarnation else None
        if job is not None and self.jobs.state(job) is Job.PLANNED:
            self._ask_job(job, "finish")

    def _check_content(self, ids: Ids, lives: Lives, keys: Sequence[bytes], group: int) -> None:
        """Content is sealed in the group it was handed out for, and under the key that a planned store will publish."""
        if type(ids) is list:
            others = [place for place in ids if self.blocks.group[place] != group]
        else:
            others = listed(select(ids, self.blocks.group_view[ids] != group))
        if others:
            raise MisuseError(f"block {others[0]}: it was handed out for group {self.blocks.group[others[0]]}, not {group}")
        if type(ids) is list:
            pledged = [position for position, place in enumerate(ids) if self.blocks.column.state[place] == PLEDGED]
        else:
            pledged = np.flatnonzero(self.blocks.column.view[ids] == PLEDGED).tolist()
        promised: dict[int, dict[int, bytes]] = {}
        for position in pledged:
            row, life = self.blocks.job[ids[position]], int(lives[position])
            job = self.jobs.rows[row]
            if row not in promised:
                # a key of a chunk of several blocks is not the key of any of them
                promised[row] = dict(zip(listed(job.lives), job.keys, strict=True)) if len(job.keys) == len(job.lives) else {}
            if (key := promised[row].get(life, keys[position])) != keys[position]:
                raise MisuseError(
                    f"block {life & ID_MASK}: cannot SEAL it as {keys[position].hex()}, its store {self._id(job)} will publish "
                    f"{key.hex()} (one content has one key)"
                )

    def _check_reports(self, waited: Iterable[int], completions: Sequence[Completion], seals: Sequence[Seal]) -> None:
        """Refuse what `settle` could not apply, before it applies anything."""
        for completion in completions:
            self._check_report(completion)
        if not seals:
            return
        for seal in seals:
            self._check_group(seal.group)
            if len(seal.keys) != len(seal.lives):
                raise MisuseError(f"{len(seal.lives)} blocks to seal and {len(seal.keys)} keys do not agree")
        lives = batch([life for seal in seals for life in listed(seal.lives)])
        self._check_distinct(lives, "seal")
        fresh = self.blocks.fresh(lives)
        for seal in seals:
            sealed = batch(seal.lives)
            current = self.blocks.fresh(sealed)
            named = [key for key, keep in zip(seal.keys, current, strict=True) if keep]
            self._check_content(ids_of(select(sealed, current)), select(sealed, current), named, seal.group)
        places = ids_of(select(lives, fresh))
        index = BlockLife.table.index
        behind = {place for place in listed(places) if self.blocks.column.state[place] == index[Block.FLUSHED]}
        if behind:
            proven = self._proven(waited, completions)
            touched = {place for job in self.jobs.alive() if job.number not in proven for place in listed(ids_of(job.lives))}
            places = batch([place for place in listed(places) if place not in behind or place in touched])
        self.blocks.column.ask(BLOCK["seal"], places)

    def _proven(self, waited: Iterable[int], completions: Iterable[Completion]) -> set[int]:
        """The jobs that are over once these completions have been applied."""
        found = set(waited)
        missing = {job.number: (1 << self.limits.num_workers) - 1 & ~job.reported for job in self.jobs.alive()}
        for completion in completions:
            number = completion.job.number
            if completion.job.incarnation == self.incarnation and number in missing:
                missing[number] &= ~(1 << completion.worker)
                if not missing[number]:
                    found.add(number)
        return found

    @staticmethod
    def _are_distinct(ids: Ids, limit: int) -> bool:
        """Whether no id comes twice; all are below *limit*."""
        if type(ids) is list:
            return len(ids) < 2 or len(set(ids)) == len(ids)
        # Each writes its position at its place; who was overwritten had a twin. Cheaper than a sort, and nothing is cleared.
        positions = np.arange(len(ids), dtype=np.int32)
        scratch = np.empty(limit, dtype=np.int32)
        scratch[ids] = positions
        return bool((scratch[ids] == positions).all())

    def _check_sizes(self, lives: Lives, places: Ids, slots: Ids, num_keys: int, sizes: tuple[int, ...]) -> None:
        if len(lives) == 0:
            raise MisuseError("a job with nothing to copy cannot be built")
        if len(places) != len(lives) or sum(sizes) != len(lives) or any(size < 0 for size in sizes):
            raise MisuseError(
                f"{len(lives)} blocks, {len(places)} host places and group sizes {list(sizes)} do not agree; each size counts "
                "the blocks really appended"
            )
        if len(slots) == 0:
            raise MisuseError("a job without a slot cannot be built: reserve or name the slots of its content")
        if num_keys != len(slots):
            raise MisuseError(f"{len(slots)} slots and {num_keys} keys do not agree")
        self._check_slots(slots)
        if len(np.unique(places)) != len(places) or int(np.min(places)) < 0:
            raise MisuseError("the host places of a job are distinct and not negative")

    def _recheck(self, job: JobRow) -> None:
        """Check the other side of the couplings once more, at the places of one job (a pair assertion)."""
        state, ids = self.jobs.state(job), ids_of(job.lives)
        over = state in TERMINAL
        column, view = (self.blocks.job, self.blocks.job_view) if over else (self.blocks.pins, self.blocks.pins_view)
        wrong = job.row if over else 0
        if any(column[place] == wrong for place in ids) if type(ids) is list else bool((view[ids] == wrong).any()):
            problem = "a block still names it" if over else "a block has no pin of it (I1)"
            self.violate(f"job {self._id(job)} is {state.name}, and {problem}")
        if over and state is not Job.DONE and job.direction is Direction.STORE:
            for slot in job.slots:
                if self.slots.at(slot) is Slot.READY and self.slots.key[slot] in job.keys:
                    self.violate(f"slot {slot} is READY although job {self._id(job)} is {state.name} (I6)")

    def violate(self, problem: str) -> None:
        """Deal with a broken rule as the level of checking says: raise, or count and go on."""
        self.tally["violations"] += 1
        if self.checking is Checking.STRICT:
            raise InvariantError(problem)
