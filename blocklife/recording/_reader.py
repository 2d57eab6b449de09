"""The one reading of a recording: places and jobs as the lines leave them, and the effects that are due.

Rules of this file:

* It takes one line at a time and gives back a `RecordedMove`. Check, statistics, trace and lives are made of these, and read
  no line themselves. What is kept grows with the places and the jobs, never with the lines.
* It refuses nothing and believes each line: a place is where its latest line left it. `_rules` judges a line before that.
* Effects come from the rows of `states.COUPLINGS`. Only three couplings, whose cause is not a step of a job, are written by
  hand: *life-ends*, *hand-out-flushes* and *request-gives-up*.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from attrs import define, field

from blocklife.ledger._ids import FIRST_EPOCH
from blocklife.recording._format import Head, Line, StepKind
from blocklife.states import COUPLINGS, MACHINES, TERMINAL, Block, Job, Request

LETS_GO = frozenset({"land", "cancel", "unpin"})
"""The steps with which a job unpins a place."""
OVER = frozenset(state.name for state in TERMINAL)
LIFE_ENDS, FLUSHES, GIVE_UP = "life-ends", "hand-out-flushes", "request-gives-up"
INITIAL = {name: table.initial.name for name, table in MACHINES.items()}
_FINISHED = Request.FINISHED.name
_PLANNED = Job.PLANNED.name


@define(eq=False)
class Due:
    """Steps that have to follow another one: one of ``events`` for each of the places ``ids``; None for places of one commit
    that are not known before.

    ``cause`` is the number of the step that they follow, -1 for none; ``steps`` are the numbers of those that are done because
    a request will take the step that is due.
    """

    machine: str
    events: tuple[str, ...]
    ids: set[int] | None
    coupling: str
    cause: int = -1
    steps: list[int] = field(factory=list)


@define(eq=False)
class RecordedPlace:
    """One place, as the lines so far left it.

    Invariant: it is in ``state`` since plan ``plan`` and time ``ns``, -1 where that is not known. ``seen`` is the commit of its
    last step, -1 for none.
    Invariant: ``holders`` are the jobs that pin it, ``refs`` counts the requests that hold a block, ``lookups`` the lookups
    that pin a slot. ``store`` is the store that reads a block's life, ``load`` the load that a request waits for.
    """

    machine: str
    id: int
    state: str
    plan: int = -1
    ns: int = -1
    seen: int = -1
    epoch: int | None = None
    refs: int = 0
    lookups: int = 0
    holders: list[JobStory] = field(factory=list)
    store: JobStory | None = None
    load: JobStory | None = None
    name: str | None = None
    """The name of a request, if a line has it."""


@define(eq=False)
class JobStory(RecordedPlace):
    """One job, from the lines.

    ``first`` are line, commit, plan and time of the first line that names it, in which its first place was reserved (-1 ns
    without times). ``blocks`` has ids with their epochs at that time. ``due`` are its pending effects, the next one last;
    ``reserving`` is the latest one whose places were not known before, and was carried out in commit ``reserved``.

    In `Lives`, ``steps`` are indices of its own steps; ``effects`` of the steps of places that name it; ``between`` of other
    steps that move its places while it holds them, for example a seal.
    """

    kind: str = ""
    """``store``, ``load``, ``demote`` or ``promote``; empty if no line has reserved anything for it."""
    first: tuple[int, int, int, int] = (0, 0, 0, -1)
    blocks: dict[int, int] = field(factory=dict)
    slots: dict[int, None] = field(factory=dict)
    request: RecordedPlace | None = None
    """The request that waits for it; loads only."""
    reports: int = 0
    expired: bool = False
    due: list[Due] = field(factory=list)
    reserving: Due | None = None
    reserved: int = 0
    steps: array[int] = field(factory=lambda: array("q"))
    effects: array[int] = field(factory=lambda: array("q"))
    between: array[int] = field(factory=lambda: array("q"))

    @property
    def moves(self) -> Sequence[int]:
        """Every step of its places while it pins them, in order."""
        return sorted((*self.effects, *self.between))

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self.state in OVER

    @property
    def waits(self) -> RecordedPlace | None:
        """The request that still waits for it."""
        return self.request if self.request is not None and self.request.load is self else None

    @property
    def label(self) -> str:
        """``store 5``, ``load 7``; ``job 9`` if its kind is not known."""
        return f"{self.kind or 'job'} {self.id}"


class RecordedMove(NamedTuple):
    """One step: its line, its place and its job, as they are after it, and how the place was before."""

    line: Line
    place: RecordedPlace
    job: JobStory | None
    new: bool
    """Whether it is the first step of a place, or of another request in its row."""
    born: bool
    """Whether it is the first that names its job."""
    stood: str
    """The state before."""
    plan: int
    """Since when, as in `RecordedPlace`."""
    ns: int
    epoch: int | None
    due: Due | None
    """The pending effect that it carries out."""

    @property
    def fits(self) -> bool:
        """Whether it is a row of the table, from the state in which the line before it left its place."""
        return self.line.kind.row > 0 and self.line.kind.source == self.stood


@functools.cache
def effects_of(event: str, kind: str, into: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """The effects of a step of a job, each a machine and its event, with their coupling. ``quiesce`` couples as ``finish``."""
    event = "finish" if event == "quiesce" else event
    for row in COUPLINGS:
        if row.cause in (f"job.{event}", f"job.{event}({kind})") and into in [state.name for state in row.into]:
            pairs = [effect.partition(".") for effect in row.effects]
            return tuple((machine, follows) for machine, _, follows in pairs), row.name
    return (), ""


@define(eq=False)
class Reader:
    """What the lines so far say. ``steps`` counts them, ``commits`` their commits; ``plan`` is the highest, ``now`` the latest
    time and ``began`` the one before the first step, -1 for none.

    Invariant: ``jobs`` has the jobs that are not over, or that have effects pending; ``ended`` the state of all others.
    Invariant: ``pending`` has exactly the jobs with effects on places; ``wanted`` the jobs and requests whose own step is due.
    """

    head: Head
    n: int = 0
    plan: int = 0
    now: int = -1
    began: int = -1
    steps: int = 0
    commits: int = 0
    last_job: int = 0
    places: dict[tuple[str, int], RecordedPlace] = field(factory=dict)
    jobs: dict[int, JobStory] = field(factory=dict)
    ended: dict[int, str] = field(factory=dict)
    pending: dict[JobStory, None] = field(factory=dict)
    wanted: dict[RecordedPlace, Due] = field(factory=dict)

    def set_time(self, ns: int) -> None:
        """The steps from here on happened at *ns*. A clock that goes back is ignored."""
        self.now = max(ns, self.now)
        if not self.steps:
            self.began = self.now if self.began < 0 else self.began

    # --- places and jobs --------------------------------------------------------------------------------------------------

    def place(self, machine: str, number: int) -> RecordedPlace:
        """A place as it stands; one that no line has named yet is in its first state, and so is the next request of a row."""
        if machine == "job":
            return self.job(number)
        place = self.places.get((machine, number))
        if place is None or (machine == "request" and place.state == _FINISHED):
            place = RecordedPlace(machine, number, INITIAL.get(machine, ""))
            if machine == "block":
                place.epoch = FIRST_EPOCH
            if machine in ("block", "slot"):  # it was there from the start; when a request came, no line says
                place.plan, place.ns = 0, self.began
        return place

    def job(self, number: int) -> JobStory:
        """A job as it stands; of one that is over only the state is known."""
        known = self.jobs.get(number)
        return JobStory("job", number, self.ended.get(number, _PLANNED)) if known is None else known

    def find(self, line: Line) -> tuple[RecordedPlace, JobStory | None]:
        """The place of a step and the job that it names, as they stand."""
        machine = line.kind.machine
        if machine == "job":
            job = self.job(line.id)
            return job, job
        return self.place(machine, line.id), self.job(line.job) if line.job else None

    def due_for(self, place: RecordedPlace, line: Line, job: JobStory | None) -> Due | None:
        """The pending effect that a step carries out."""
        own = self.wanted.get(place) if self.wanted else None
        if own is not None and line.kind.event in own.events:
            return own
        if job is None:
            return None
        machine, event = line.kind.machine, line.kind.event
        due = job.due[-1] if job.due else None
        if due is not None and due.machine == machine and event in due.events and (due.ids is None or line.id in due.ids):
            return due
        due = job.reserving if job.reserved == line.n else None
        return due if due is not None and due.machine == machine and event in due.events else None

    def allows(self, place: RecordedPlace, line: Line, job: JobStory | None) -> bool:
        """Whether a commit may come now. While effects are due, only they may, and the releases of a request that gives up."""
        if not (self.pending or self.wanted):
            return True
        own = self.wanted.get(place)
        if place.machine != "job" and self.pending:
            return job in self.pending
        if (line.kind.machine, line.kind.event) == ("block", "release"):
            return line.plan == self.plan and any(each.machine == "request" for each in self.wanted)
        return own is not None and line.kind.event in own.events

    # --- steps ------------------------------------------------------------------------------------------------------------

    def read(self, number: int, line: Line) -> RecordedMove:
        """Take one step, on line *number*. Effects that should have come first are due no longer."""
        return self.move(number, line, *self.find(line))

    def move(self, number: int, line: Line, place: RecordedPlace, job: JobStory | None) -> RecordedMove:
        """`take`, of a place and a job that were found."""
        kind, machine = line.kind, line.kind.machine
        if line.n != self.n or not self.steps:
            if (self.pending or self.wanted) and not self.allows(place, line, job):
                self._release_due()
            self.n = line.n
            self.commits += 1
        if line.plan > self.plan:
            self.plan = line.plan
        born = job is not None and not job.first[0] and not job.over
        if job is not None and born:
            job.plan, job.ns, job.first = self.plan, self.now, (number, line.n, line.plan, self.now)
            self.jobs[job.id] = job
            self.last_job = max(self.last_job, job.id)
        new = place.seen < 0 and place is not job
        if new:
            self.places[machine, line.id] = place
        if job is not None and kind.joins:
            self._reserve(place, line, job)
        due = self.due_for(place, line, job)
        move = RecordedMove(line, place, job, new, born, place.state, place.plan, place.ns, place.epoch, due)
        if due is not None:
            self._strike(due, place, line, job)
        place.seen = line.n
        if kind.target != place.state:
            place.state, place.plan, place.ns = kind.target, self.plan, self.now
        if machine == "block":
            self._block(place, line, job)
        elif machine == "slot":
            self._slot(place, line, job)
        elif machine == "request":
            self._request(place, line, job)
        elif job is place and move.stood not in OVER:
            self._job_step(job, kind)
        self.steps += 1
        return move

    def _block(self, place: RecordedPlace, line: Line, job: JobStory | None) -> None:
        kind, event = line.kind, line.kind.event
        place.epoch = line.epoch
        if event == "allocate":
            place.refs = 1
            if kind.target == Block.FLUSHED.name:
                place.store = None
                for each in self.jobs.values():
                    if place.id in each.blocks and not each.over and each.state != _PLANNED:
                        self.wanted.setdefault(each, Due("job", ("flush",), None, FLUSHES, self.steps))
        elif event in ("acquire", "release"):
            place.refs += 1 if event == "acquire" else -1
            gives_up = [due for each, due in self.wanted.items() if each.machine == "request"] if event == "release" else ()
            if len(gives_up) == 1:
                gives_up[0].steps.append(self.steps)
        elif event in LETS_GO and job is not None:
            self._let_go(place, job)
        if kind.ends:
            place.refs = 1 if event == "allocate" else 0
            if place.store is not None and place.store.state == _PLANNED:
                self.wanted[place.store] = Due("job", ("cancel",), None, LIFE_ENDS, self.steps)
            place.store = None

    def _slot(self, place: RecordedPlace, line: Line, job: JobStory | None) -> None:
        event = line.kind.event
        if job is None:
            place.lookups += (event == "pin") - (event == "unpin")
        elif event in LETS_GO:
            self._let_go(place, job)

    def _request(self, place: RecordedPlace, line: Line, job: JobStory | None) -> None:
        place.name = line.name or place.name
        if line.kind.event == "plan_load" and job is not None:
            place.load, job.request = job, place
        elif line.kind.event != "admit":
            place.load = None

    def _job_step(self, job: JobStory, kind: StepKind) -> None:
        """A step of a job that was not over, with its effects."""
        event = kind.event
        job.reports += event == "finish"
        job.expired = job.expired or event == "expire"
        if event == "cancel":  # a life that is over has no row to take: its place is unpinned without a line
            for number in job.blocks.keys() - set(self.fresh(job)):
                self._let_go(self.place("block", number), job)
        effects, coupling = effects_of(event, job.kind, kind.target)
        due = []
        for machine, follows in effects:
            ids = {"slot": set(job.slots), "block": set(self.fresh(job) if event in ("submit", "cancel") else job.blocks)}
            if machine == "request" and job.waits is not None:
                self.wanted[job.waits] = Due(machine, (follows,), None, coupling, self.steps)
            elif ids.get(machine):
                due.append(Due(machine, (follows,), ids[machine], coupling, self.steps))
        if due:
            job.due = due[::-1]
            self.pending[job] = None
        if event in ("cancel", "abandon") and job.waits is not None:
            self.wanted[job.waits] = Due("request", ("preempt", "finish"), None, GIVE_UP, steps=[self.steps])
        self._release(job)

    def fresh(self, job: JobStory) -> list[int]:
        """The blocks of a job whose lives are not over."""
        return [number for number, epoch in job.blocks.items() if self.place("block", number).epoch == epoch]

    # --- effects ----------------------------------------------------------------------------------------------------------

    def _reserve(self, place: RecordedPlace, line: Line, job: JobStory) -> None:
        """Note a place that is reserved for a job; the first one says of which kind it is, and what follows."""
        if not job.kind:
            job.kind = line.kind.joins
            effects, coupling = effects_of("plan", job.kind, _PLANNED)
            job.due = [Due(machine, (follows,), None, coupling) for machine, follows in reversed(effects)]
            self.pending[job] = None
        if line.kind.machine == "block":
            job.blocks[line.id] = -1 if line.epoch is None else line.epoch
            place.store = job if job.kind == "store" else place.store
        else:
            job.slots[line.id] = None
        if job not in place.holders:
            place.holders.append(job)

    def _strike(self, due: Due, place: RecordedPlace, line: Line, job: JobStory | None) -> None:
        """Strike off an effect at one place."""
        if self.wanted.get(place) is due:
            del self.wanted[place]
        elif job is not None and due is not job.reserving:
            if due.ids is None:
                job.reserving, job.reserved = due, line.n
            else:
                due.ids.remove(place.id)
            if not due.ids:
                job.due.pop()
                self._release(job)

    def _let_go(self, place: RecordedPlace, job: JobStory) -> None:
        if job in place.holders:
            place.holders.remove(job)
        if place.store is job:
            place.store = None

    def _release(self, job: JobStory) -> None:
        """Drop a job that is over and has nothing pending: its places are not needed any more."""
        if not job.due:
            self.pending.pop(job, None)
            if job.over:
                self.ended[job.id] = job.state
                self.jobs.pop(job.id, None)

    def _release_due(self) -> None:
        """Expect nothing any more: the recording does not say what happened."""
        self.wanted.clear()
        for job in list(self.pending):
            job.due.clear()
            self._release(job)
