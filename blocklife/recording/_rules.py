"""The rules for a stream of transitions: tables, lives, couplings and counts, all recomputed from the stream alone.

Rules of this file:

* The ledger is not used. `_reader` counts refs, pins, writes, overdue pins and reports from the lines, and every guard is
  evaluated with these counts: the row that a line claims must be the row that the table gives.
* A line is judged before the reader takes it. While anything is due, a commit that carries out none of it is illegal; the
  effects of one job come in the order of its coupling.
* The first broken rule ends the check, because later counts are not reliable.
"""

from __future__ import annotations

import functools

from blocklife.errors import MisuseError
from blocklife.ledger._ids import LAST_EPOCH
from blocklife.recording._format import Head, Line, ranges
from blocklife.recording._reader import LETS_GO, OVER, JobStory, Reader, RecordedMove, RecordedPlace, effects_of
from blocklife.states import MACHINES, PINNED, Job, Request

_PINNED = frozenset(state.name for state in PINNED)
_COUNTS = frozenset({"refs", "pins", "writes", "overdue"})
"""Inputs of guards that are numbers; the others are yes or no."""


class IllegalError(Exception):
    """A line that breaks a rule: ``rule``, at the place given by ``machine`` and ``place``, if it is about one.

    ``job`` is the job whose effect is missing; 0 for none.
    """

    def __init__(self, rule: str, machine: str, place: int, problem: str, job: int = 0) -> None:
        super().__init__(problem)
        self.job = job
        self.rule = rule
        self.machine = machine
        self.place = place


def illegal(rule: str, place: RecordedPlace, problem: str) -> IllegalError:
    """The error for one place, which the message names first."""
    return IllegalError(rule, place.machine, place.id, f"{place.machine} {place.id}: {problem}")


@functools.cache
def row_given(machine: str, source: str, event: str, told: tuple[bool, ...]) -> int:
    """The number of the row that an event takes, by the inputs of its guards; 0 if it is refused."""
    table = MACHINES[machine]
    asked = table.events[event]
    facts = asked.facts(dict(zip(asked.parameters, map(int, told), strict=True)))
    state = next(at for at, each in enumerate(table.states) if each.name == source)
    return asked.lut[state << len(asked.guards) | (facts if isinstance(facts, int) else 0)]


class Checker:
    """Checks the lines of one recording in order; raises `IllegalError` at the first that breaks a rule."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.reader = Reader(head)
        self._ids = {machine: head.ids(machine) for machine in MACHINES}
        self.n = 0
        self.plan = 0
        self.born = 0
        self.events = 0
        self._commit: tuple[int, int | None, int, str] | None = None
        self._count = 0
        self._event = ""

    def read(self, number: int, line: Line) -> RecordedMove:
        """Check one transition, and take it."""
        kind, reader = line.kind, self.reader
        if kind.machine not in MACHINES:
            raise IllegalError("table", "", 0, f"there is no machine {kind.machine} ({', '.join(MACHINES)})")
        commit = line.n, line.of, line.plan, kind.machine
        if commit != self._commit:
            self._begin(commit)
        named = kind.names_job is not True if line.job is None else kind.names_job is not False and line.job > 0
        if not (named and kind.row and line.id in self._ids[kind.machine]) or (line.epoch is None) == (kind.machine == "block"):
            raise self._explain(line)
        place, job = reader.find(line)
        self._check_order(place, line, job)
        if isinstance(place, JobStory):
            self._check_job(place, line)
        elif kind.machine == "request":
            self._check_request(place, line, job)
        else:
            if job is not None:
                self._check_service(place, line, job)
            self._check_counts(place, line, job)
        if kind.machine == "block":
            self._check_epoch(place, line)
        move = reader.move(number, line, place, job)
        self.born += move.born
        self._count += 1
        self.events += 1
        return move

    # --- commits and lines ------------------------------------------------------------------------------------------------

    def _begin(self, commit: tuple[int, int | None, int, str]) -> None:
        n, _, plan, _ = commit
        if self.n == 0 and n != 1:
            raise MisuseError(f"it begins with commit {n}, and earlier commits are missing (record from the start of a ledger)")
        if n == self.n:
            raise IllegalError("commit", "", 0, f"commit {n} goes on with another plan, machine or number of lines")
        self.check_whole()
        if n != self.n + 1:
            missing = " (a line between them is missing)" if n > self.n else ""
            raise IllegalError("commit", "", 0, f"commit {n} comes after commit {self.n}{missing}")
        if plan < self.plan:
            raise IllegalError("commit", "", 0, f"plan {plan} comes after plan {self.plan}")
        self.n, self.plan, self._commit, self._count, self._event = n, plan, commit, 0, ""

    def check_whole(self) -> None:
        """Refuse a commit with missing or surplus lines."""
        if self._commit is not None and self._commit[1] not in (None, self._count):
            n, of, _, machine = self._commit
            raise IllegalError("commit", "", 0, f"commit {n}, {machine} {self._event}, has {self._count} of its {of} lines")

    def _check_order(self, place: RecordedPlace, line: Line, job: JobStory | None) -> None:
        """Check rules of all lines: pending effects come first, a commit has one event and each place once, sources match."""
        kind = line.kind
        if not self._event:
            self._event = kind.event
            if not self.reader.allows(place, line, job):
                raise self.missing()
        elif kind.event != self._event:
            raise illegal("commit", place, f"commit {self.n} is {self._event}, not {kind.event}")
        if place.seen == self.n:
            raise illegal("commit", place, f"it takes two steps in commit {self.n} (a line comes twice)")
        if place.state != kind.source:
            table = MACHINES[kind.machine]
            stands = next(state for state in table.states if state.name == place.state)
            problem = f"it leaves {kind.source} by {kind.event}, and stands {place.state} (a line is missing or wrong)"
            if not table.events[kind.event].rows_of(stands):
                reason, remedy = table.reason(stands, kind.event), table.remedy(stands, kind.event)
                problem = f"cannot {kind.event.upper()} while {place.state}: {reason} ({remedy})"
            raise illegal("table", place, problem)

    # --- blocks and slots -------------------------------------------------------------------------------------------------

    def _check_service(self, place: RecordedPlace, line: Line, job: JobStory) -> None:
        """A step in the name of a job carries out an effect that is due, or reserves the first place of the job."""
        event, joins = line.kind.event, line.kind.joins
        if joins and not job.kind:
            if job.over:
                raise illegal("I3", job, f"it is {job.state}, and its number is given out again")
            if job.id <= self.reader.last_job:
                raise illegal("I3", job, f"its number is given out after {self.reader.last_job} (they only grow)")
            if len(self.reader.jobs) >= self.head.max_jobs:
                raise illegal("limits", job, f"it is made while {len(self.reader.jobs)} jobs are out (max_jobs)")
        elif self.reader.due_for(place, line, job) is None:
            if joins and place.machine == "block":
                raise illegal("I3", place, f"{event} in the name of job {job.id}, which has its places already")
            raise self._unasked(place, event, job)

    def _check_counts(self, place: RecordedPlace, line: Line, job: JobStory | None) -> None:
        """Holders and pins after the step are possible, and give the row that the line claims."""
        kind, event = line.kind, line.kind.event
        parameters = MACHINES[kind.machine].events[event].parameters
        if not parameters:
            return
        refs = place.refs - (event == "release")
        holders = [each for each in place.holders if each is not job or event not in LETS_GO]
        lookups = place.lookups - (event == "unpin" and job is None)
        if refs < 0:
            raise illegal("I4", place, "it is released, but no request holds it")
        if lookups < 0:
            raise illegal("I4", place, "it is unpinned, but no holder has pinned it")
        reading = holders if place.machine == "block" else [each for each in holders if each.kind in ("load", "demote")]
        told = {
            "fence": self.head.fence,
            "refs": refs > 0,
            "pins": len(reading) + lookups > 0,
            "writes": any(each.kind == "load" for each in holders),
            "overdue": any(each.expired for each in holders),
            "own": job is not None and job.kind == "load" and job.blocks.get(place.id) == place.epoch,
            "ok": job is not None and job.state == Job.DONE.name,
        }
        row = row_given(kind.machine, kind.source, event, tuple(told[each] for each in parameters))
        if place.machine == "slot" and event == "land" and job is not None:
            # a job that is DONE may leave a slot empty: the same content landed first, or a promotion did not bring it
            if row != kind.row and not told["ok"]:
                raise illegal("I6", place, f"it is {kind.target} although its {job.kind} is not DONE")
        elif row != kind.row:
            counted = ", ".join(_counted(each, known=told[each]) for each in parameters)
            given = f"leads by {MACHINES[kind.machine].row(row)}" if row else "is refused"
            rule = "I1" if event == "allocate" else "table"
            raise illegal(rule, place, f"{kind} is claimed, and with {counted} it {given}")
        if place.machine == "block" and event in LETS_GO and (kind.target in _PINNED) != bool(holders):
            raise illegal("I1", place, f"it becomes {kind.target} while {len(holders)} jobs pin it")

    def _check_epoch(self, place: RecordedPlace, line: Line) -> None:
        epoch = (place.epoch or 0) % LAST_EPOCH + 1 if line.kind.ends else place.epoch
        if line.epoch != epoch:
            ends = " (this row ends a life)" if line.kind.ends else ""
            raise illegal("epoch", place, f"its epoch is {epoch} after {line.kind}, but the line says {line.epoch}{ends}")

    # --- jobs and requests ------------------------------------------------------------------------------------------------

    def _check_job(self, job: JobStory, line: Line) -> None:
        kind = line.kind
        if line.job != job.id:
            raise illegal("coupling", job, f"{kind.event} happens in the name of a job, but the line names none")
        if job.over:  # a late report
            return
        if not job.kind:
            raise illegal("I3", job, f"cannot {kind.event.upper()} before anything was reserved for it")
        reports = job.reports + 1
        if kind.event == "finish" and (reports < self.head.num_workers) == (kind.target in OVER):
            raise illegal("I9", job, f"it is {kind.target} after {reports} of {self.head.num_workers} reports")
        effects, coupling = effects_of(kind.event, job.kind, kind.target)
        blocks = [self.reader.place("block", number) for number in job.blocks]
        if any(machine == "job" for machine, _ in effects) and any(len(block.holders) > 1 for block in blocks):
            raise illegal("coupling", job, f"it is {kind.target} before older jobs of its places are quiet ({coupling})")

    def _check_request(self, place: RecordedPlace, line: Line, job: JobStory | None) -> None:
        event = line.kind.event
        if event == "plan_load":
            if job is None or self.reader.due_for(place, line, job) is None:
                raise illegal("I10", place, "it waits for a load that is not being planned for it")
        elif event in ("loaded", "load_failed"):
            other = job is not None and (place.load is None or job.id != place.load.id)
            if other or place not in self.reader.wanted:
                raise illegal("I10", place, f"{event}, and its load has not ended so")
        elif event in ("preempt", "finish") and place.load is not None and place not in self.reader.wanted:
            given_up = f"job {place.load.id}, was not given up before (coupling request-gives-up)"
            raise illegal("coupling", place, f"{event}, and its load, {given_up}")

    # --- the end ------------------------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """What must hold at the end of a complete run: no job is in flight (I5); without requests, nothing is held (I4)."""
        for job in self.reader.jobs.values():
            if not job.over:
                raise illegal("I5", job, f"it is {job.state} where the run ends")
        places = self.reader.places.values()
        if all(place.state == Request.FINISHED.name for place in places if place.machine == "request"):
            for block in places:
                if block.refs:
                    raise illegal("I4", block, f"it is held {block.refs} times where the run ends and no request is left")

    # --- errors -------------------------------------------------------------------------------------------------------------

    def _explain(self, line: Line) -> IllegalError:
        """The error for a line that is wrong whatever the others say."""
        kind, ids, table = line.kind, self._ids[line.kind.machine], MACHINES[line.kind.machine]
        problem, rule = f"{kind.event} happens without a job, but the line names job {line.job}", "coupling"
        if line.id not in ids:
            problem, rule = f"ids are {ids.start} to {ids.stop - 1} (limits of the head)", "limits"
        elif kind.event not in table.events:
            problem, rule = f"there is no event {kind.event} (events are {', '.join(table.events)})", "table"
        elif not kind.row:
            names = [state.name for state in table.states]
            unknown = [each for each in (kind.source, kind.target) if each not in names]
            place = self.reader.place(kind.machine, line.id)
            stands = f" (it stands {place.state})" if place.seen >= 0 or line.id in self.reader.jobs else ""
            problem, rule = f"there is no row {kind}{stands}", "table"
            if unknown:
                problem = f"there is no state {unknown[0]} (states are {', '.join(names)})"
        elif (line.epoch is None) == (kind.machine == "block"):
            problem, rule = "blocks have an epoch, and nothing else does", "epoch"
        elif line.job is None:
            problem = f"{kind.event} happens in the name of a job, but the line names none"
        elif line.job < 1:
            problem, rule = "jobs are numbered from 1", "I3"
        return IllegalError(rule, kind.machine, line.id, f"{kind.machine} {line.id}: {problem}")

    def missing(self) -> IllegalError:
        """The error for a commit that comes before a pending effect: what is pending, and why."""
        for job in self.reader.pending:
            due = job.due[-1]
            place = None if due.ids is None else min(due.ids)
            name = f"a {due.machine}" if place is None else f"{due.machine} {place}"
            why = f"job {job.id} is {job.state}; coupling {due.coupling}"
            problem = f"{name} has had no {due.events[0]} in the name of job {job.id} ({why})"
            machine, number = ("job", job.id) if place is None else (due.machine, place)
            return IllegalError("coupling", machine, number, problem, job.id)
        for waits, due in self.reader.wanted.items():
            return illegal("coupling", waits, f"it has had no {' or '.join(due.events)} (coupling {due.coupling})")
        raise LookupError("nothing is pending")

    def _unasked(self, place: RecordedPlace, event: str, job: JobStory) -> IllegalError:
        if not job.kind:
            known = "is over" if job.over else "is not known"
            return illegal("I3", place, f"{event} in the name of job {job.id}, which {known}")
        mine = place.id in (job.blocks if place.machine == "block" else job.slots)
        first = "nothing of the kind is due"
        if job.due and mine:
            first = f"{job.due[-1].machine}.{job.due[-1].events[0]} is due first"
        held = "" if mine else ", which holds no such place"
        return illegal("coupling", place, f"{event} in the name of job {job.id}{held}, which is {job.state} ({first})")

    def describe_job(self, number: int) -> str:
        """The state of a job and, while it is out, its places."""
        job = self.reader.jobs.get(number)
        if job is None:
            state = self.reader.ended.get(number)
            return f"job {number}: " + ("it is not known" if state is None else f"it ended {state}")
        blocks, slots = ranges(job.blocks) or "none", ranges(job.slots) or "none"
        return f"job {number}: a {job.kind}, {job.state}; blocks {blocks}; slots {slots}"


def _counted(name: str, *, known: bool) -> str:
    """An input of a guard, as messages tell it."""
    return f"{name}{'>0' if known else '=0'}" if name in _COUNTS else f"{name}={'yes' if known else 'no'}"
