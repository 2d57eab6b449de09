"""The lives of places, reconstructed from a recording: when each began and ended, what happened in it, and why.

Rules of this file:

* Nothing is invented. A link exists only if the lines have it: lines count the requests that hold a block and the workers that
  have reported, but do not name them (`specs/recording.md`), so these links do not exist here.
* Like `_reading`, it does not check what it reads; a step that is in no table becomes a `StepKind` of its own, with row 0.
* It takes one pass. A step is one entry in each of a few columns; `RecordedStep`, `Life` and `Span` are made on request.

The layout. All steps are in the order of the file and numbered from 0; this number is called *index* everywhere here. The
columns of `Lives` are arrays of whole numbers, one entry for each step, ready for ``json.dumps(column.tolist())``:

=========  =============================================================================================================
line       the line of the file, from 1 (the head is line 1)
n          the commit: steps of one commit have the same
plan       the number of the latest plan
ns         nanoseconds, if the recording has times (`Lives.timed`); -1 before the first time; otherwise empty
at         the place: an index of `Lives.places`
kind       the row: an index of `Lives.kinds`
job        the job that the line names; 0 for none
epoch      the epoch after the step (blocks only); -1 elsewhere
cause      index of the step of another machine that caused it; -1 if no line names one. It can be a *later* step: a request
           that gives up writes its own line last.
coupling   an index of `Lives.couplings`, whose first is empty: no coupling. A cause without a coupling means only that the two
           are adjacent: a block is released in the commit right before a request ends.
=========  =============================================================================================================

A life of a block lasts from one ``allocate`` to the next, or until it is FREED (what an old copy still does to a place after
its life belongs to that life, until the place is handed out again). A life of a slot lasts from EMPTY to EMPTY, that of a row
of requests until FINISHED. A job has one life, which begins where its first place was reserved.
"""

from __future__ import annotations

import functools
import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import define, field, frozen

from blocklife.lifecycle import Row
from blocklife.recording._format import At, Head, Line, Refused, show_name
from blocklife.recording._reading import Progress, Recording
from blocklife.states import BLANK, COUPLINGS, MACHINES, TERMINAL, Block, Job, Request, Slot, Trait, ends_life, states_with

PLANNING = {"plan_store": "store", "plan_load": "load"}
"""Steps that reserve a block for a job, with the kind of the job."""
_SLOT_JOINS = {"reserve": "promote", "pin": "demote"}
"""Steps that reserve a slot for a job, with its kind if it has reserved no block before."""
LETS_GO = frozenset({"land", "cancel", "unpin"})
"""The steps with which a job unpins a place."""
_GIVES_UP = frozenset({"preempt", "finish", "load_failed"})
OVER = frozenset(state.name for state in TERMINAL)
_BLANK, _EMPTY = (frozenset(each.name for each in states) for states in (BLANK, states_with(Trait.FREE, Slot)))
_HAND_OUT = frozenset({("block", "allocate"), ("job", "cancel"), ("job", "flush"), ("block", "cancel"), ("slot", "cancel")})
"""The steps of one hand-out: the allocation, and then its effects on the jobs of the places."""
_LIFE_ENDS, _FLUSHES, _GIVE_UP = "life-ends", "hand-out-flushes", "request-gives-up"
_NAMES = ("", *(each.name for each in COUPLINGS))
_NUMBER = {name: number for number, name in enumerate(_NAMES)}


# --- results -------------------------------------------------------------------------------------------------------------


@frozen
class StepKind:
    """A row as recorded. ``row`` is its number in the table; 0 if the table has no such row."""

    machine: str
    event: str
    source: str
    target: str
    guard: str | None
    row: int
    ends: bool
    """Whether it ends the life of a block."""


@frozen
class RecordedStep:
    """One step, with its entries of all columns."""

    index: int
    line: int
    n: int
    plan: int
    ns: int | None
    machine: str
    id: int
    event: str
    source: str
    target: str
    guard: str | None
    job: int | None
    epoch: int | None
    cause: int | None
    coupling: str
    name: str | None = None
    """The name of the request, if the recording has it."""

    @property
    def place(self) -> str:
        """The place as text: ``block 17``; a request by its name, if it has one."""
        return f"{self.machine} {self.id if self.name is None else show_name(self.name)}"


@frozen
class RecordedRefusal:
    """A refused event; nothing has changed."""

    line: int
    plan: int
    ns: int | None
    machine: str
    id: int
    event: str
    state: str
    index: int
    """The number of steps before it."""
    name: str | None = None
    """As in `RecordedStep`."""

    @property
    def place(self) -> str:
        """As in `RecordedStep`."""
        return f"{self.machine} {self.id if self.name is None else show_name(self.name)}"


@frozen
class Span:
    """The time between two steps that a place spends in one state. ``stop`` is None if the recording ends first."""

    state: str
    start: int
    """Index of the step that led here."""
    stop: int | None
    """Index of the step that led away."""


@frozen
class Life:
    """One life of a place.

    Invariant: ``steps`` are indices, oldest first; the step ``end`` is the last of them, or the first of the next life.
    """

    machine: str
    id: int
    number: int
    """From 1: the first life of this place in the recording."""
    epoch: int | None
    """The epoch, of a block."""
    steps: Sequence[int]
    end: int | None
    """Index of the step that ended it; None if it is not over when the recording ends."""
    spans: tuple[Span, ...]
    jobs: tuple[int, ...]
    """The jobs that its steps name, in order, each once."""
    refused: tuple[RecordedRefusal, ...]
    name: str | None = None
    """The name of the request, if the recording has it."""


@define(eq=False)
class JobStory:
    """One job, from the lines.

    ``first`` are line, commit, plan and time of the first line that names it, in which its first block was reserved (-1 ns
    without times). ``blocks`` has ids with their epochs at that time. ``steps`` are indices of its own steps; ``effects`` of
    the steps of places that name it, as far as they are kept; ``between`` of other steps that move its places while it holds
    them, for example a seal.
    """

    number: int
    first: tuple[int, int, int, int] = (0, 0, 0, -1)
    kind: str = ""
    """``store``, ``load``, ``demote`` or ``promote``; empty if no line has reserved anything for it."""
    state: str = "PLANNED"
    blocks: dict[int, int] = field(factory=dict)
    slots: dict[int, None] = field(factory=dict)
    request: int | None = None
    """The row of the request that waits for it; loads only."""
    owner: str = ""
    """That request's name, if it has one."""
    steps: array[int] = field(factory=lambda: array("q"))
    effects: array[int] = field(factory=lambda: array("q"))
    between: array[int] = field(factory=lambda: array("q"))
    wanted: bool = False
    """Whether it belongs to the requested story."""

    @property
    def moves(self) -> Sequence[int]:
        """Every kept step of its places while it pins them, in order."""
        return sorted((*self.effects, *self.between))

    @property
    def over(self) -> bool:
        """Whether it ended."""
        return self.state in OVER

    @property
    def name(self) -> str:
        """``store 5``, ``load 7``; ``job 9`` if its kind is not known."""
        return f"{self.kind or 'job'} {self.number}"


# --- the lives -----------------------------------------------------------------------------------------------------------


class Lives:
    """The contents of a recording, by place.

    With *only*, a pair of machine and id, only the story of that one place is kept: its own steps, those of the jobs that
    touched it, and their causes. Columns, places and jobs then hold nothing else, and indices count only what is kept. A
    request can be given by its name; a name that spells a number also means that row, for recordings without names.
    """

    couplings: Sequence[str] = _NAMES

    def __init__(self, name: str, head: Head, only: tuple[str, int | str] | None = None) -> None:
        self.name = name
        self.head = head
        self.only = only
        self.whole = False
        """Whether the recording says that it is complete."""
        self.lines = 0
        """Steps that were read, kept or not."""
        self.plans = (0, 0)
        """The first and the last number of a plan."""
        self.last_job = 0
        """The highest number of a job that any line names."""
        self.timed = False
        self.times = (-1, -1)
        """The first and the last recorded time, in nanoseconds."""
        self.line, self.n, self.plan, self.ns = array("q"), array("q"), array("q"), array("q")
        self.at, self.kind, self.job, self.epoch = array("q"), array("q"), array("q"), array("q")
        self.cause, self.coupling = array("q"), array("b")
        self.kinds: list[StepKind] = []
        self.places: list[tuple[str, int]] = []
        self.refused: list[RecordedRefusal] = []
        self._refused: dict[tuple[str, int], list[RecordedRefusal]] = {}
        self._jobs: dict[int, JobStory] = {}
        self._steps: dict[tuple[str, int], array[int]] = {}
        self.names: dict[int, str] = {}
        """The name of a request, by the index of each of its steps."""

    @classmethod
    def of(cls, recording: Recording, progress: Progress | None = None, only: tuple[str, int | str] | None = None) -> Lives:
        """Read a recording to its end. Raises `MisuseError` for a line that cannot be read."""
        lives = cls(recording.name, recording.head, only)
        reader = _LivesReader(lives)
        for number, line in recording.lines(progress):
            reader.take(number, line)
        reader.close()
        lives.whole = recording.end is not None
        return lives

    def __len__(self) -> int:
        """Steps that are kept."""
        return len(self.line)

    def steps_of(self, machine: str, place: int) -> Sequence[int]:
        """Indices of the steps of a place, oldest first; empty if it never moved."""
        return self._steps.get((machine, place), array("q"))

    def step(self, index: int) -> RecordedStep:
        """One step."""
        kind = self.kinds[self.kind[index]]
        ns = self.ns[index] if self.timed else -1
        return RecordedStep(
            index=index,
            line=self.line[index],
            n=self.n[index],
            plan=self.plan[index],
            ns=None if ns < 0 else ns,
            machine=kind.machine,
            id=self.places[self.at[index]][1],
            event=kind.event,
            source=kind.source,
            target=kind.target,
            guard=kind.guard,
            job=self.job[index] or None,
            epoch=None if self.epoch[index] < 0 else self.epoch[index],
            cause=None if self.cause[index] < 0 else self.cause[index],
            coupling=_NAMES[self.coupling[index]],
            name=self.names.get(index),
        )

    def jobs(self) -> Iterator[JobStory]:
        """All kept jobs, in the order of their creation."""
        yield from self._jobs.values()

    def job_story(self, number: int) -> JobStory | None:
        """One job."""
        return self._jobs.get(number)

    def place(self, machine: str, place: int) -> list[Life]:
        """The lives of one place, oldest first; empty if it never moved. A job has one, even while it is only planned."""
        steps = self.steps_of(machine, place)
        if machine == "job":
            return list(self._whole_job(place, steps))
        begins, ends = _BOUNDS.get(machine, _BOUNDS["slot"])
        found: list[Life] = []
        start = 0
        for at, index in enumerate(steps):
            kind = self.kinds[self.kind[index]]
            if at > start and begins(kind):
                found.append(self._life(machine, place, len(found) + 1, steps[start:at], index))
                start = at
            if ends(kind):
                found.append(self._life(machine, place, len(found) + 1, steps[start : at + 1], index))
                start = at + 1
        if start < len(steps):
            found.append(self._life(machine, place, len(found) + 1, steps[start:], None))
        return found

    def called(self, name: str) -> list[Life]:
        """The lives of the requests of that name, oldest first."""
        rows = [place for machine, place in self.places if machine == "request"]
        found = [life for row in rows for life in self.place("request", row) if life.name == name]
        return sorted(found, key=lambda life: life.steps[0])

    def spans(self, machine: str, place: int) -> Iterator[Span]:
        """The successive states of a place over all its lives, from its first step on."""
        yield from self._spans(self.steps_of(machine, place), None)

    def because(self, index: int) -> str:
        """Why a step happened, in words: "because store 5 landed"; empty if the lines do not show it."""
        step = self.step(index)
        cause = None if step.cause is None else self.step(step.cause)
        if not step.coupling:
            return "" if cause is None else f"right before {cause.place} {_DOES.get(cause.event, cause.event)}"
        if cause is not None and cause.machine != "job":
            return f"because {cause.place} {_DID_FOR[step.coupling]}"
        number = step.job if cause is None else cause.id
        story = self._jobs.get(number or 0)
        who = f"job {number}" if story is None else story.name
        if cause is None:
            return f"because {who} was planned"
        did = _ENDED.get(cause.target, "landed") if cause.event in ("finish", "quiesce") else _DID.get(cause.event, cause.event)
        return f"because {who} {did}"

    def refusals(self, machine: str, place: int) -> Sequence[RecordedRefusal]:
        """The refused events of a place, oldest first, including those while it had no life."""
        return self._refused.get((machine, place), ())

    def _whole_job(self, number: int, steps: Sequence[int]) -> Iterator[Life]:
        if number in self._jobs:
            end = next((index for index in steps if self.kinds[self.kind[index]].target in OVER), None)
            yield self._life("job", number, 1, steps, end)

    def _life(self, machine: str, place: int, number: int, steps: Sequence[int], end: int | None) -> Life:
        epoch = self.epoch[steps[0]] if steps else -1
        low, high = (-1, len(self)) if machine == "job" else (steps[0], len(self) if end is None else end)
        spans = self._spans(steps, end)
        if machine == "job" and (planned := self._jobs[place].effects):
            spans = itertools.chain([Span("PLANNED", planned[0], steps[0] if steps else None)], spans)
        return Life(
            machine=machine,
            id=place,
            number=number,
            epoch=None if epoch < 0 else epoch,
            steps=steps,
            end=end,
            spans=tuple(spans),
            jobs=tuple(dict.fromkeys(self.job[index] for index in steps if self.job[index])),
            refused=tuple(each for each in self.refusals(machine, place) if low < each.index <= high),
            name=self.names.get(steps[0]) if steps else None,
        )

    def _spans(self, steps: Sequence[int], end: int | None) -> Iterator[Span]:
        state, start = "", -1
        for index in steps:
            target = self.kinds[self.kind[index]].target
            if target != state:
                if state:
                    yield Span(state, start, index)
                if index == end:
                    return
                state, start = target, index
        if state:
            yield Span(state, start, end)


_BOUNDS: Mapping[str, tuple[Callable[[StepKind], bool], Callable[[StepKind], bool]]] = {
    "block": (lambda kind: kind.event == "allocate", lambda kind: kind.target in _BLANK),
    "slot": (lambda kind: kind.source in _EMPTY, lambda kind: kind.target in _EMPTY),
    "request": (lambda _: False, lambda kind: kind.target == "FINISHED"),
}
"""Which steps begin a life, and which end one."""

_DOES = {"preempt": "is preempted", "finish": "finishes"}
_DID = {"submit": "was submitted", "cancel": "was cancelled", "expire": "is past its deadline"}
_ENDED = {"FAILED": "has failed", "CANCELLED": "landed, which nobody waited for"}
_DID_FOR = {
    _LIFE_ENDS: "lost its life",
    _FLUSHES: "was handed out while the copy reads it",
    _GIVE_UP: "gives up",
}


# --- reading -------------------------------------------------------------------------------------------------------------


@functools.cache
def _coupled(event: str, kind: str, into: str) -> Mapping[tuple[str, str], int]:
    """The effects of a step of a job, each with the number of its coupling; ``quiesce`` couples as ``finish`` does."""
    event = "finish" if event == "quiesce" else event
    causes = (f"job.{event}", f"job.{event}({kind})")
    found = {}
    for each in COUPLINGS:
        if each.cause in causes and into in [state.name for state in each.into]:
            for effect in each.effects:
                machine, _, follows = effect.partition(".")
                found[machine, follows] = _NUMBER[each.name]
    return found


@functools.cache
def _table_row(machine: str, event: str, source: str, target: str, guard: str | None) -> Row | None:
    """The table's row for a line; None if there is none."""
    named = (event, source, target, guard)
    return next(
        (
            row
            for row in (MACHINES[machine].rows if machine in MACHINES else ())
            if (row.event, row.source.name, row.target.name, row.guard.name if row.guard else None) == named
        ),
        None,
    )


@define(eq=False)
class _LivesReader:
    """Reads the lines of a recording in order, and fills the columns.

    Invariant: ``last`` has, by job, its latest step and the effects of that step.
    Invariant: ``source`` has, by block, the store whose copy may still read it; ``cancels``, by job, the step that ended the
    life of its source while it was planned; ``handed``, by block, the steps that the latest hand-out has put behind a fence.
    Invariant: ``loads`` has, by request, the load that it waits for; ``gives_up``, by request, steps that its own will explain.
    Invariant: ``names`` has, by row, the name of the current request, if a line has it.
    Invariant: ``holds`` has, by place, the jobs that have pinned it and not unpinned it.
    Invariant: ``released`` are the releases that are kept of commit ``released_in``, the latest one that released blocks.
    """

    lives: Lives
    now: int = -1
    rows: dict[tuple[str, str, str, str, str | None], int] = field(factory=dict)
    at: dict[tuple[str, int], int] = field(factory=dict)
    last: dict[int, tuple[int, Mapping[tuple[str, str], int]]] = field(factory=dict)
    source: dict[int, JobStory] = field(factory=dict)
    cancels: dict[int, int] = field(factory=dict)
    handed: dict[int, int] = field(factory=dict)
    names: dict[int, str] = field(factory=dict)
    loads: dict[int, JobStory] = field(factory=dict)
    gives_up: dict[int, list[int]] = field(factory=dict)
    holds: dict[tuple[str, int], list[JobStory]] = field(factory=dict)
    released: list[int] = field(factory=list)
    released_in: int = -1

    def take(self, number: int, line: Line | At | Refused) -> None:
        """Read one line."""
        if isinstance(line, At):
            self._tell_time(line.ns)
        elif isinstance(line, Refused):
            self._refuse(number, line)
        else:
            self._step(number, line)

    def close(self) -> None:
        """Drop the jobs that do not belong to the requested story."""
        lives = self.lives
        if lives.only is not None:
            lives._jobs = {number: job for number, job in lives._jobs.items() if job.wanted}

    def _tell_time(self, ns: int) -> None:
        lives = self.lives
        if not lives.timed:
            lives.timed = True
            lives.ns = array("q", [-1]) * len(lives)
            lives.times = ns, ns
        lives.times = lives.times[0], ns
        self.now = ns

    def _refuse(self, number: int, line: Refused) -> None:
        lives = self.lives
        place = line.machine, line.id
        name = line.name or (self.names.get(line.id) if line.machine == "request" else None)
        if self._is_own(line.machine, line.id, name):
            now = None if self.now < 0 else self.now
            refusal = RecordedRefusal(number, line.plan, now, line.machine, line.id, line.event, line.state, len(lives), name)
            lives.refused.append(refusal)
            lives._refused.setdefault(place, []).append(refusal)

    def _is_own(self, machine: str, place: int, name: str | None) -> bool:
        """Whether it belongs to the requested story."""
        only = self.lives.only
        if only is None or only[0] != machine:
            return only is None
        return only[1] in (place, name) or only[1] == str(place)

    def _step(self, number: int, line: Line) -> None:
        lives, only = self.lives, self.lives.only
        if self.gives_up and line.plan != lives.plans[1]:
            self.gives_up.clear()  # the request was never added: not a legal run
        lives.plans = (lives.plans[0] if lives.lines else line.plan, line.plan)
        lives.lines += 1
        job = self._job(number, line) if line.job else None
        if self.handed and (line.machine, line.event) not in _HAND_OUT:
            self.handed.clear()
        row = line.machine, line.event, line.source, line.target, line.guard
        kind = self.rows.get(row)
        if kind is None:
            kind = self.rows[row] = len(lives.kinds)
            known = _table_row(*row)
            lives.kinds.append(
                StepKind(*row, known.index if known else 0, line.machine == "block" and bool(known and ends_life(known)))
            )
        ends = lives.kinds[kind].ends
        if line.machine == "request" and line.name:
            self.names[line.id] = line.name
        name = self.names.get(line.id) if line.machine == "request" else None
        own = self._is_own(line.machine, line.id, name) or (only is not None and only[0] == "job" and only[1] == line.job)
        if own and job is not None:
            job.wanted = True
        cause, coupling = self._cause(line, job)
        index = -1
        moved = self._moved(line, job)
        if own or moved or (line.machine == "job" and job is not None and job.wanted) or self._explains(line, ends=ends):
            index = self._keep(number, line, kind, cause, coupling)
            if name is not None:
                lives.names[index] = name
            if job is not None:
                (job.steps if line.machine == "job" else job.effects).append(index)
            for each in moved:
                each.between.append(index)
        if line.machine == "block":
            self._note_block(line, job, index, ends=ends)
        elif line.machine == "job" and job is not None:
            self._note_job(line, job, index)
        elif line.machine == "request":
            self._note_request(line, job, index)
            if line.target == Request.FINISHED.name:
                self.names.pop(line.id, None)

    def _keep(self, number: int, line: Line, kind: int, cause: int, coupling: int) -> int:
        lives = self.lives
        index = len(lives.line)
        place = line.machine, line.id
        at = self.at.get(place)
        if at is None:
            at = self.at[place] = len(lives.places)
            lives.places.append(place)
            lives._steps[place] = array("q")
        lives._steps[place].append(index)
        lives.line.append(number)
        lives.n.append(line.n)
        lives.plan.append(line.plan)
        if lives.timed:
            lives.ns.append(self.now)
        lives.at.append(at)
        lives.kind.append(kind)
        lives.job.append(line.job or 0)
        lives.epoch.append(-1 if line.epoch is None else line.epoch)
        lives.cause.append(cause)
        lives.coupling.append(coupling)
        return index

    # --- links ------------------------------------------------------------------------------------------------------------

    def _job(self, number: int, line: Line) -> JobStory:
        """The job that a line names, with the place that the line reserves for it."""
        job = self.lives._jobs.get(line.job or 0)
        if job is None:
            job = JobStory(line.job or 0, (number, line.n, line.plan, self.now))
            self.lives._jobs[job.number] = job
            self.lives.last_job = max(self.lives.last_job, job.number)
        if line.machine == "block" and line.event in PLANNING:
            job.kind = PLANNING[line.event]
            job.blocks[line.id] = -1 if line.epoch is None else line.epoch
        elif line.machine == "slot" and line.event in _SLOT_JOINS:
            job.kind = job.kind or _SLOT_JOINS[line.event]
            job.slots[line.id] = None
        return job

    def _moved(self, line: Line, job: JobStory | None) -> list[JobStory]:
        """The jobs whose place this step moves in the name of another job, if their story is requested."""
        only = self.lives.only
        found = self.holds.get((line.machine, line.id), ())
        if job is not None and line.machine in ("block", "slot"):
            self._hold(line, job)
        if line.source == line.target or not found or (only is not None and only[0] != "job"):
            return []
        return [each for each in found if each is not job and only in (None, ("job", each.number))]

    def _hold(self, line: Line, job: JobStory) -> None:
        """Record where a job pins a place, and where it unpins it."""
        place = line.machine, line.id
        held = self.holds.get(place, [])
        if line.event in LETS_GO:
            rest = [each for each in held if each is not job]
        elif line.event in (PLANNING if line.machine == "block" else _SLOT_JOINS) and job not in held:
            rest = [*held, job]
        else:
            return
        if rest:
            self.holds[place] = rest
        else:
            self.holds.pop(place, None)

    def _cause(self, line: Line, job: JobStory | None) -> tuple[int, int]:
        """The step that caused this one, and the coupling between them."""
        if line.machine == "job":
            if job is not None and line.event == "cancel" and job.number in self.cancels:
                return self.cancels.pop(job.number), _NUMBER[_LIFE_ENDS]
            if job is not None and line.event == "flush" and self.handed:
                own = [self.handed.pop(each) for each in job.blocks if each in self.handed]
                if own:
                    return own[0], _NUMBER[_FLUSHES]
            return -1, 0
        if line.machine == "request" and line.event == "load_failed":
            job = self.loads.get(line.id)
        if job is None:
            return -1, 0
        step = (line.machine, line.event)
        if job.number in self.last:
            index, effects = self.last[job.number]
            return (index, effects[step]) if step in effects else (-1, 0)
        return -1, _coupled("plan", job.kind, Job.PLANNED.name).get(step, 0)

    def _explains(self, line: Line, *, ends: bool) -> bool:
        """Whether a step of another place belongs to the requested story."""
        if line.machine == "block" and (ends or line.target == Block.FLUSHED.name):
            store = self.source.get(line.id)
            if store is None or not store.wanted:
                return False
            return line.target == Block.FLUSHED.name or store.state == Job.PLANNED.name
        if line.machine == "request" and line.event in _GIVES_UP:
            beside = self.released_in == line.n - 1 and line.source == Request.RUNNING.name
            return bool(self.gives_up.get(line.id) or (beside and self.released))
        return False

    def _note_block(self, line: Line, job: JobStory | None, index: int, *, ends: bool) -> None:
        store = self.source.get(line.id)
        if line.event == "release":
            if line.n != self.released_in:
                self.released, self.released_in = [], line.n
            if index >= 0:
                self.released.append(index)
                if len(self.gives_up) == 1:
                    next(iter(self.gives_up.values())).append(index)
        if store is not None and ends and index >= 0 and store.state == Job.PLANNED.name:
            self.cancels[store.number] = index
        if line.event == "allocate" and line.target == Block.FLUSHED.name and index >= 0:
            self.handed[line.id] = index
        elif line.event == "plan_store" and job is not None:
            self.source[line.id] = job
        elif line.event in ("land", "cancel") and job is store:
            self.source.pop(line.id, None)

    def _note_job(self, line: Line, job: JobStory, index: int) -> None:
        job.state = line.target
        effects = _coupled(line.event, job.kind, line.target)
        self.last[job.number] = index, effects
        waits = job.request is not None and self.loads.get(job.request) is job
        if waits and job.request is not None and (line.event in ("cancel", "abandon") or ("request", "load_failed") in effects):
            own = [index] if line.event in ("cancel", "abandon") and index >= 0 else []
            self.gives_up.setdefault(job.request, []).extend(own)
        if line.event == "cancel":  # a life that is over gets no line of its own
            for block in job.blocks:
                if self.source.get(block) is job:
                    del self.source[block]
                if held := self.holds.pop(("block", block), []):
                    self.holds["block", block] = [each for each in held if each is not job]

    def _note_request(self, line: Line, job: JobStory | None, index: int) -> None:
        if line.event == "plan_load" and job is not None:
            job.request = line.id
            job.owner = f"request {show_name(self.names[line.id]) if line.id in self.names else line.id}"
            self.loads[line.id] = job
        elif line.event != "admit":
            self.loads.pop(line.id, None)
        if line.event not in _GIVES_UP:
            return
        lives = self.lives
        for each in self.gives_up.pop(line.id, ()):
            lives.cause[each], lives.coupling[each] = index, _NUMBER[_GIVE_UP]
        if self.released_in == line.n - 1 and line.source == Request.RUNNING.name:
            for each in self.released:
                lives.cause[each] = index
