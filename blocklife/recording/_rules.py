"""The rules for a stream of transitions: tables, lives, couplings and counts, all recomputed from the stream alone.

Rules of this file:

* The ledger is not used. Refs, pins, writes, overdue pins and reports are recounted from the lines, and every guard is
  evaluated with these counts: the row that a line claims must be the row that the table gives.
* A line in the recorder's own spelling is split, not parsed: its parts are looked up as text. A line that is not found this way
  is converted to that spelling once; if it is still not found, an error explains why.
* The first broken rule ends the check of counts, because later counts are not reliable. `Checker.follow` goes on with the
  tables alone, from the state in which the previous line left each place.

The effects of couplings are in `_pending_effects`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from blocklife.errors import MisuseError
from blocklife.ledger._ids import LAST_EPOCH
from blocklife.recording._format import NAMED, Head, Line, number_of, spell_row
from blocklife.recording._pending_effects import PendingEffects
from blocklife.recording._traces import (
    BITS,
    BlockTrace,
    IllegalError,
    JobTrace,
    RequestTrace,
    SlotTrace,
    Trace,
    TraceStep,
    TraceT,
    Track,
    illegal,
    rows_by_situation,
    spelt,
)
from blocklife.states import MACHINES, PINNED, TERMINAL, Block, Job, Request

_NUMBER = r"(0|[1-9]\d{0,18})"
_COMMIT = re.compile(rf'\{{"n":{_NUMBER},(?:"of":{_NUMBER},)?"plan":{_NUMBER},"machine":"(\w+)"', re.ASCII)


# --- the check ---------------------------------------------------------------------------------------------------------


class Checker(PendingEffects):
    """Checks the lines of one recording in order; raises `IllegalError` at the first that breaks a rule."""

    def __init__(self, head: Head) -> None:
        super().__init__(head)
        self.plan = 0
        self.events = 0
        self._head = ""
        self._of: int | None = None
        self._count = 0
        self._event = ""
        self.blocks = Track(
            "block",
            1,
            head.num_blocks,
            BlockTrace,
            {
                "allocate": self._allocate,
                "acquire": self._acquire,
                "plan_store": self._reserve_block,
                "plan_load": self._reserve_block,
                "submit": self._submit,
                "cancel": self._cancel,
                "release": self._release,
                "land": self._land,
                "expire": self._expire,
                "drop": self._drop,
            },
        )
        self.slots = Track(
            "slot",
            0,
            head.num_slots,
            SlotTrace,
            {
                "reserve": self._reserve_slot,
                "cancel": self._serve_slot,
                "land": self._land_slot,
                "expire": self._serve_slot,
                "pin": self._pin,
                "unpin": self._unpin,
                "evict": self._evict,
                "drop": self._drop_slot,
            },
        )
        self.requests: Track[RequestTrace] = Track("request", 0, head.max_requests, RequestTrace, {})
        self.job_steps: Track[JobTrace] = Track("job", 1, 1 << 63, JobTrace, {})
        self._fence = BITS["fence"] if head.fence else 0
        self._done = MACHINES["job"].index[Job.DONE]
        self._allocates, self._releases, self._lands, self._cancels, self._expires, self._drops = (
            rows_by_situation(MACHINES["block"].events[event])
            for event in ("allocate", "release", "land", "cancel", "expire", "drop")
        )
        self._slot_lands, self._unpins, self._evicts, self._slot_drops = (
            rows_by_situation(MACHINES["slot"].events[event]) for event in ("land", "unpin", "evict", "drop")
        )
        self._untouched = bytes(state not in PINNED for state in MACHINES["block"].states)
        self._take: Callable[[str], bool] = self._block_line
        self._takes: Mapping[str, Callable[[str], bool]] = {
            "block": self._block_line,
            "slot": self._slot_line,
            "job": self._job_line,
            "request": self._request_line,
        }

    # --- lines ------------------------------------------------------------------------------------------------------------

    def take(self, line: str) -> bool:
        """Check one line in the recorder's spelling; False if it has another, and must be converted first."""
        head, _, rest = line.partition(',"id":')
        if head != self._head and not self._begin(head):
            return False
        return self._take(rest)

    def _block_line(self, rest: str) -> bool:
        name, _, rest = rest.partition(',"epoch":')
        epoch, _, rest = rest.partition(',"event":')
        row, named, who = rest.partition(',"job":')
        step = self.blocks.steps.get(row)
        place = self.blocks.places.get(name) or self.blocks.place(name)
        if step is None or place is None:
            return False
        job = None
        if named and (job := self.jobs.get(who) or self._job(who)) is None:
            return False
        if place.seen == self.n or place.state != step.source or step.event != self._event:
            self._arrive("block", place, step, job)
        place.seen = self.n
        if step.act is not None:
            step.act(place, job, step)
        if step.ends:
            self._end_life(place)
        place.state = step.target
        if place.told != epoch:
            self._refuse_epoch(place, epoch, step)
        self._count += 1
        return True

    def _slot_line(self, rest: str) -> bool:
        name, _, rest = rest.partition(',"event":')
        row, named, who = rest.partition(',"job":')
        step = self.slots.steps.get(row)
        place = self.slots.places.get(name) or self.slots.place(name)
        if step is None or place is None:
            return False
        job = None
        if named and (job := self.jobs.get(who) or self._job(who)) is None:
            return False
        if place.seen == self.n or place.state != step.source or step.event != self._event:
            self._arrive("slot", place, step, job)
        place.seen = self.n
        if step.act is not None:
            step.act(place, job, step)
        place.state = step.target
        self._count += 1
        return True

    def _job_line(self, rest: str) -> bool:
        name, _, rest = rest.partition(',"event":')
        row, _, who = rest.partition(',"job":')
        step = self.job_steps.steps.get(row)
        job = self.jobs.get(who) or self._job(who)
        if step is None or job is None or name + "}" != who:
            return False
        self._arrive("job", job, step, job)
        self._job_step(job, step)
        job.seen, job.state = self.n, step.target
        if job.over:
            self.ended[job.number] = job.state
        self._count += 1
        return True

    def _request_line(self, rest: str) -> bool:
        rest, called, name = rest.partition(',"name":')
        if called:
            if NAMED.fullmatch(name) is None:
                return False
            rest += "}"
        name, _, rest = rest.partition(',"event":')
        row, named, who = rest.partition(',"job":')
        step = self.requests.steps.get(row)
        place = self.requests.places.get(name) or self.requests.place(name)
        job = (self.jobs.get(who) or self._job(who)) if named else None
        if step is None or place is None or (named and job is None):
            return False
        if self.requests.table.states[place.state] is Request.FINISHED:  # the row belongs to another request from here on
            place.state = 0
        self._arrive("request", place, step, job)
        self._request_step(place, job, step)
        place.seen, place.state = self.n, step.target
        self._count += 1
        return True

    def _begin(self, head: str) -> bool:
        """Begin the next commit; False if *head* is not in the recorder's spelling."""
        found = _COMMIT.fullmatch(head)
        if found is None or found[4] not in self._takes:
            return False
        n, plan = int(found[1]), int(found[3])
        if n != self.n + 1 or plan < self.plan or self._of is not None:
            self._check_commit(n, plan)
        self.n, self.plan = n, plan
        self._of = int(found[2]) if found[2] else None
        self.events += self._count
        self._count = 0
        self._event = ""
        self._take = self._takes[found[4]]
        self._head = head
        return True

    def _check_commit(self, n: int, plan: int) -> None:
        if self.n == 0 and n != 1:
            raise MisuseError(f"it begins with commit {n}, and earlier commits are missing (record from the start of a ledger)")
        if n == self.n:
            raise IllegalError("commit", "", 0, f"commit {n} goes on with another plan, machine or number of lines")
        self.check_whole()
        if n < self.n:
            raise IllegalError("commit", "", 0, f"commit {n} comes after commit {self.n}")
        if n > self.n + 1:
            raise IllegalError("commit", "", 0, f"commit {n} comes after commit {self.n} (a line between them is missing)")
        if plan < self.plan:
            raise IllegalError("commit", "", 0, f"plan {plan} comes after plan {self.plan}")

    def check_whole(self) -> None:
        """Refuse a commit with missing or surplus lines."""
        if self._of is not None and self._count != self._of:
            machine = self._head.rpartition(":")[2].strip('"')
            problem = f"commit {self.n}, {machine} {self._event}, has {self._count} of its {self._of} lines"
            raise IllegalError("commit", "", 0, problem)

    def _job(self, who: str) -> JobTrace | None:
        """The job named at the end of a line, if it is new or over; None if the line names none."""
        number = number_of(who[:-1]) if who[-1:] == "}" else None
        if not number:
            return None
        if number in self.ended:
            return JobTrace(number, self.ended[number], over=True)
        return JobTrace(number)

    # --- the order of lines ------------------------------------------------------------------------------------------------

    def _arrive(self, machine: str, place: Trace, step: TraceStep[TraceT], job: JobTrace | None) -> None:
        """Check rules of all lines: pending effects come first, a commit has one event and each place once, sources match."""
        if not self._event:
            self._event = step.event
            if self._pending or self._wanted:
                self._check_service(machine, place, step.event, job)
        elif step.event != self._event:
            raise illegal("commit", machine, place, f"commit {self.n} is {self._event}, not {step.event}")
        if place.seen == self.n:
            raise illegal("commit", machine, place, f"it takes two steps in commit {self.n} (a line comes twice)")
        if place.state != step.source:
            table = MACHINES[machine]
            stands = table.states[place.state]
            if table.events[step.event].rows_of(stands):
                problem = (
                    f"it leaves {step.row.source.name} by {step.event}, and stands {stands.name} (a line is missing or wrong)"
                )
            else:
                reason, remedy = table.reason(stands, step.event), table.remedy(stands, step.event)
                problem = f"cannot {step.event.upper()} while {stands.name}: {reason} ({remedy})"
            raise illegal("table", machine, place, problem)

    # --- blocks -------------------------------------------------------------------------------------------------------------

    def _allocate(self, place: BlockTrace, _: JobTrace | None, step: TraceStep[BlockTrace]) -> None:
        situation = self._fence | (place.refs > 0) | (place.writes > 0) << 2
        if self._allocates[place.state << 7 | situation] != step.row.index:
            raise self._misjudged("block", place, step, situation)
        place.refs = 1
        if step.row.target is Block.FLUSHED:
            for job in self.jobs.values():
                if place in job.blocks and not job.over and job.state != 0:
                    self._wanted[job] = (("flush",), "hand-out-flushes")
            place.store = None

    def _acquire(self, place: BlockTrace, _: JobTrace | None, __: TraceStep[BlockTrace]) -> None:
        place.refs += 1

    def _release(self, place: BlockTrace, _: JobTrace | None, step: TraceStep[BlockTrace]) -> None:
        refs = place.refs - 1
        if refs < 0:
            raise illegal("I4", "block", place, "it is released, but no request holds it")
        situation = (refs > 0) | (place.overdue > 0) << 3
        if self._releases[place.state << 7 | situation] != step.row.index:
            raise self._misjudged("block", place, step, situation)
        place.refs = refs

    def _drop(self, place: BlockTrace, _: JobTrace | None, step: TraceStep[BlockTrace]) -> None:
        if self._drops[place.state << 7 | (place.refs > 0)] != step.row.index:
            raise self._misjudged("block", place, step, int(place.refs > 0))

    def _reserve_block(self, place: BlockTrace, job: JobTrace | None, step: TraceStep[BlockTrace]) -> None:
        """The first line of a job: its number is new, its places are those of this commit."""
        if job is None:
            raise self._serveless("block", place, step.event)
        if not job.kind:
            self._start(job, step.event)
        elif job.reserving != self.n:
            problem = f"{step.event} in the name of job {job.number}, which has its places already"
            raise illegal("I3", "block", place, problem)
        job.blocks[place] = place.epoch
        place.pins += 1
        if job.kind == "store":
            place.store = job
        else:
            place.writes += 1

    def _submit(self, place: BlockTrace, job: JobTrace | None, _: TraceStep[BlockTrace]) -> None:
        self._serve(job, "block", place, "submit")

    def _cancel(self, place: BlockTrace, job: JobTrace | None, step: TraceStep[BlockTrace]) -> None:
        self._serve(job, "block", place, "cancel")
        place.store = None
        if self._cancels[place.state << 7 | (place.refs > 0)] != step.row.index:
            raise self._misjudged("block", place, step, int(place.refs > 0))
        self._unpin_block(place)
        self._check_touched(place, step)

    def _land(self, place: BlockTrace, job: JobTrace | None, step: TraceStep[BlockTrace]) -> None:
        if job is None:
            raise self._serveless("block", place, step.event)
        load, own = job.kind == "load", job.blocks.get(place) == place.epoch
        self._serve(job, "block", place, "land")
        self._unpin_block(place)
        place.writes -= load
        place.overdue -= job.expired
        situation = (
            (place.refs > 0)
            | (place.pins > 0) << 1
            | (place.overdue > 0) << 3
            | (own and load) << 5
            | (job.state == self._done) << 6
        )
        if self._lands[place.state << 7 | situation] != step.row.index:
            raise self._misjudged("block", place, step, situation)
        if step.ends:
            place.refs = 0  # the life ended while it was held
        if own and not load:
            place.store = None
        self._check_touched(place, step)

    def _expire(self, place: BlockTrace, job: JobTrace | None, step: TraceStep[BlockTrace]) -> None:
        if job is None:
            raise self._serveless("block", place, step.event)
        own = job.kind == "load" and job.blocks.get(place) == place.epoch
        self._serve(job, "block", place, "expire")
        situation = (place.refs > 0) | own << 5
        if self._expires[place.state << 7 | situation] != step.row.index:
            raise self._misjudged("block", place, step, situation)
        place.overdue += 1
        if step.ends:
            place.refs = 0

    def _end_life(self, place: BlockTrace) -> None:
        """Raise the epoch; coupling *life-ends* for a store that is planned."""
        place.epoch = place.epoch % LAST_EPOCH + 1
        place.told = str(place.epoch)
        if place.store is not None:
            if place.store.state == 0:
                self._wanted[place.store] = (("cancel",), "life-ends")
            place.store = None

    def _check_touched(self, place: BlockTrace, step: TraceStep[BlockTrace]) -> None:
        if self._untouched[step.target] == (place.pins > 0):
            problem = f"it becomes {step.row.target.name} while {place.pins} jobs pin it"
            raise illegal("I1", "block", place, problem)

    def _refuse_epoch(self, place: BlockTrace, epoch: str, step: TraceStep[BlockTrace]) -> None:
        told = f"its epoch is {place.told} after {step.row}, but the line says {epoch}"
        raise illegal("epoch", "block", place, told + (" (this row ends a life)" if step.ends else ""))

    # --- slots --------------------------------------------------------------------------------------------------------------

    def _reserve_slot(self, place: SlotTrace, job: JobTrace | None, step: TraceStep[SlotTrace]) -> None:
        """A slot of a job that is being planned; of one that touches no block it is the first line."""
        if job is None:
            raise self._serveless("slot", place, step.event)
        if not job.kind:
            self._start(job, step.event)
        elif job.due and job.due[-1].event == f"slot.{step.event}" and job.due[-1].places is None:
            job.reserving = self.n
            self._served(job)
        elif job.reserving != self.n:
            raise self._unasked(job, "slot", place, step.event)
        job.slots[place] = None

    def _serve_slot(self, place: SlotTrace, job: JobTrace | None, step: TraceStep[SlotTrace]) -> None:
        self._serve(job, "slot", place, step.event)

    def _land_slot(self, place: SlotTrace, job: JobTrace | None, step: TraceStep[SlotTrace]) -> None:
        """A job that is DONE may leave a slot empty: the same content landed first, or a promotion did not bring it."""
        filler = self._serve(job, "slot", place, "land")
        if filler.state != self._done and self._slot_lands[place.state << 7] != step.row.index:
            raise illegal("I6", "slot", place, f"it is {step.row.target.name} although its {filler.kind} is not DONE")

    def _pin(self, place: SlotTrace, job: JobTrace | None, step: TraceStep[SlotTrace]) -> None:
        if job is None:
            place.held += 1
        else:
            self._reserve_slot(place, job, step)
        place.pins += 1

    def _unpin(self, place: SlotTrace, job: JobTrace | None, step: TraceStep[SlotTrace]) -> None:
        if job is None:
            place.held -= 1
            if place.held < 0:
                raise illegal("I4", "slot", place, "it is unpinned, but no holder has pinned it")
        else:
            self._serve(job, "slot", place, "unpin")
        place.pins -= 1
        self._judge_slot(self._unpins, place, step)

    def _evict(self, place: SlotTrace, _: JobTrace | None, step: TraceStep[SlotTrace]) -> None:
        self._judge_slot(self._evicts, place, step)

    def _drop_slot(self, place: SlotTrace, job: JobTrace | None, step: TraceStep[SlotTrace]) -> None:
        if job is not None:
            self._serve(job, "slot", place, "drop")
        self._judge_slot(self._slot_drops, place, step)

    def _judge_slot(self, rows: bytes, place: SlotTrace, step: TraceStep[SlotTrace]) -> None:
        situation = (place.pins > 0) << 1
        if rows[place.state << 7 | situation] != step.row.index:
            raise self._misjudged("slot", place, step, situation)

    # --- jobs and requests --------------------------------------------------------------------------------------------------

    def _job_step(self, job: JobTrace, step: TraceStep[JobTrace]) -> None:
        into, event = step.row.target, step.event
        if job.over:  # a late report
            return
        if not job.kind:
            raise illegal("I3", "job", job, f"cannot {event.upper()} before anything was reserved for it")
        if not isinstance(into, Job):
            raise TypeError(into)
        if job in self._wanted and event in self._wanted[job][0]:
            del self._wanted[job]
        job.state = step.target
        cause = "finish" if event == "quiesce" else event
        if event == "finish":
            job.reports += 1
            missing = self.head.num_workers - job.reports
            if (missing > 0) == (into in TERMINAL):
                problem = f"it is {into.name} after {job.reports} of {self.head.num_workers} reports"
                raise illegal("I9", "job", job, problem)
        if event == "submit":
            self._expect(job, "job.submit", into)
        elif into in TERMINAL or event == "expire":
            job.expired = job.expired or event == "expire"
            self._expect(job, f"job.{cause}({job.kind})", into)
        if event in ("cancel", "abandon") and job.request is not None and job.request.load is job:
            self._wanted[job.request] = (("preempt", "finish"), "request-gives-up")

    def _request_step(self, place: RequestTrace, job: JobTrace | None, step: TraceStep[RequestTrace]) -> None:
        event = step.event
        wanted = self._wanted.pop(place, None)
        if event == "plan_load":
            if job is None or not job.due or job.due[-1].event != "request.plan_load":
                raise illegal("I10", "request", place, "it waits for a load that is not being planned for it")
            place.load, job.request = job, place
            self._served(job)
            return
        if event in ("loaded", "load_failed"):
            if wanted is None or (job is not None and job.number != place.load_number):
                raise illegal("I10", "request", place, f"{event}, and its load has not ended so")
        elif event in ("preempt", "finish") and place.load is not None and wanted is None:
            problem = f"{event}, and its load, job {place.load.number}, was not given up before (coupling request-gives-up)"
            raise illegal("coupling", "request", place, problem)
        if event != "admit":
            place.load = None

    # --- the end ------------------------------------------------------------------------------------------------------------

    @property
    def total(self) -> int:
        """How many transitions were checked."""
        return self.events + self._count

    def check_end(self) -> None:
        """What must hold at the end of a complete run: no job is in flight (I5); without requests, nothing is held (I4)."""
        for job in self.jobs.values():
            if not job.over:
                state = MACHINES["job"].states[job.state].name
                raise illegal("I5", "job", job, f"it is {state} where the run ends")
        index = self.requests.table.index
        if all(request.state == index[Request.FINISHED] for request in self.requests.places.values()):
            for block in self.blocks.places.values():
                if block.refs:
                    raise illegal(
                        "I4", "block", block, f"it is held {block.refs} times where the run ends and no request is left"
                    )

    # --- errors -------------------------------------------------------------------------------------------------------------

    def _misjudged(self, machine: str, place: Trace, step: TraceStep[TraceT], situation: int) -> IllegalError:
        """The error for a line that claims another row than the guards give with the present counts."""
        table = MACHINES[machine]
        index = rows_by_situation(table.events[step.event])[place.state << 7 | situation]
        event = table.events[step.event]
        counts = ("refs", "pins", "writes", "overdue")
        counted = ", ".join(
            name
            + ((">0" if situation & BITS[name] else "=0") if name in counts else "=yes" if situation & BITS[name] else "=no")
            for name in event.parameters
        )
        given = f"leads by {table.row(index)}" if index else "is refused"
        rule = "I1" if step.event == "allocate" else "table"
        return illegal(rule, machine, place, f"{step.row} is claimed, and with {counted} it {given}")

    def explain(self, line: Line) -> IllegalError:
        """The error for a line in the recorder's spelling that is in no table."""
        if line.machine not in MACHINES:
            return IllegalError("table", "", 0, f"there is no machine {line.machine} ({', '.join(MACHINES)})")
        tracks: Mapping[str, Track[BlockTrace] | Track[SlotTrace] | Track[JobTrace] | Track[RequestTrace]]
        tracks = {"block": self.blocks, "slot": self.slots, "job": self.job_steps, "request": self.requests}
        track = tracks[line.machine]
        table, who = MACHINES[line.machine], f"{line.machine} {line.id}"
        row = spell_row(line.event, line.source, line.target, line.guard)
        problem, rule = f"{who}: the line cannot be understood", "table"
        if not track.lowest <= line.id < track.stop:
            problem, rule = f"{who}: ids are {track.lowest} to {track.stop - 1} (limits of the head)", "limits"
        elif line.event not in table.events:
            problem = f"{who}: there is no event {line.event} (events are {', '.join(table.events)})"
        elif unknown := [each for each in (line.source, line.target) if each not in [state.name for state in table.states]]:
            problem = f"{who}: there is no state {unknown[0]} (states are {', '.join(state.name for state in table.states)})"
        elif row not in track.steps and row + "}" not in track.steps:
            condition = f" [{line.guard}]" if line.guard else ""
            place = self.jobs.get(f"{line.id}}}") if line.machine == "job" else track.places.get(str(line.id))
            stands = f" (it stands {table.states[place.state].name})" if place else ""
            problem = f"{who}: there is no row {line.source} --{line.event}{condition}--> {line.target}{stands}"
        elif (line.epoch is None) == (line.machine == "block"):
            problem, rule = f"{who}: blocks have an epoch, and nothing else does", "epoch"
        elif line.job is None or line.machine == "job":
            problem, rule = f"{who}: {line.event} happens in the name of a job, but the line names none", "coupling"
        elif line.job < 1:
            problem, rule = f"{who}: jobs are numbered from 1", "I3"
        elif row not in track.steps:
            problem, rule = f"{who}: {line.event} happens without a job, but the line names job {line.job}", "coupling"
        return IllegalError(rule, line.machine, line.id, problem)


class Follower:
    """The check after the first broken rule: is the source of each line the state in which the place was left?"""

    def __init__(self, checker: Checker) -> None:
        self._at: dict[tuple[str, int], str] = {}
        for track in (checker.blocks, checker.slots, checker.requests):
            for place in track.places.values():
                self._at[track.machine, place.number] = track.table.states[place.state].name
        states = MACHINES["job"].states
        self._at |= {("job", number): states[state].name for number, state in checker.ended.items()}
        self._at |= {("job", job.number): states[job.state].name for job in checker.jobs.values()}
        self._rows = {(name, spelt(row)) for name, table in MACHINES.items() for row in table.rows}
        self._first = {name: table.initial.name for name, table in MACHINES.items()}

    def fits(self, line: Line) -> bool:
        """Whether the line is a row from the present state of its place; the place then has the line's target."""
        place = line.machine, line.id
        stands = self._at.get(place, self._first.get(line.machine, ""))
        self._at[place] = line.target
        if line.machine == "request" and stands == Request.FINISHED.name:
            stands = self._first["request"]
        known = (line.machine, spell_row(line.event, line.source, line.target, line.guard)) in self._rows
        return known and line.source == stands
