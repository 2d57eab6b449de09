"""The lives of places, reconstructed from a recording: when each began and ended, what happened in it, and why.

Rules of this file:

* Nothing is invented. A link exists only if the lines have it: lines count the requests that hold a block and the workers that
  have reported, but do not name them (`specs/recording.md`), so these links do not exist here.
* Like `_reader`, it does not check what it reads; a step that is in no table becomes a `StepKind` of its own, with row 0.
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

import itertools
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import define, field, frozen

from blocklife.recording._format import At, Head, Line, Refused, StepKind, show_name
from blocklife.recording._reader import FLUSHES, GIVE_UP, LIFE_ENDS, OVER, JobStory, Reader, RecordedMove
from blocklife.recording._reading import Progress, Recording
from blocklife.states import BLANK, COUPLINGS, Request, Slot, Trait, states_with

_BLANK, _EMPTY = (frozenset(each.name for each in states) for states in (BLANK, states_with(Trait.FREE, Slot)))
_NAMES = ("", *(each.name for each in COUPLINGS))
_NUMBER = {name: number for number, name in enumerate(_NAMES)}
_GIVES_UP = frozenset({"preempt", "finish", "load_failed"})


# --- results -------------------------------------------------------------------------------------------------------------


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


# --- the lives -----------------------------------------------------------------------------------------------------------


class Lives:
    """The contents of a recording, by place."""

    couplings: Sequence[str] = _NAMES

    def __init__(self, name: str, head: Head) -> None:
        self.name = name
        self.head = head
        self.whole = False
        """Whether the recording says that it is complete."""
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
        self.astray = array("q")
        """Indices of the steps that do not go on from where the line before left their place, or are in no table."""
        self.refused: list[RecordedRefusal] = []
        self._refused: dict[tuple[str, int], list[RecordedRefusal]] = {}
        self._jobs: dict[int, JobStory] = {}
        self._steps: dict[tuple[str, int], array[int]] = {}
        self.names: dict[int, str] = {}
        """The name of a request, by the index of each of its steps."""

    @classmethod
    def of(cls, recording: Recording, progress: Progress | None = None) -> Lives:
        """Read a recording to its end. Raises `MisuseError` for a line that cannot be read."""
        filler = Filler(cls(recording.name, recording.head), Reader(recording.head))
        for number, line in recording.lines(progress):
            filler.read(number, line)
        return filler.close(recording)

    @property
    def plans(self) -> tuple[int, int]:
        """The first and the last number of a plan."""
        return (self.plan[0], self.plan[-1]) if self.plan else (0, 0)

    def __len__(self) -> int:
        """How many steps there are."""
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
        """All jobs, in the order of their creation."""
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
        who = f"job {number}" if story is None else story.label
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
    LIFE_ENDS: "lost its life",
    FLUSHES: "was handed out while the copy reads it",
    GIVE_UP: "gives up",
}


# --- reading -------------------------------------------------------------------------------------------------------------


@define(eq=False)
class Filler:
    """Fills the columns from what the reader says of each line.

    Invariant: ``released`` are the releases of commit ``released_in``, the latest one that released blocks.
    """

    lives: Lives
    reader: Reader
    kinds: dict[StepKind, int] = field(factory=dict)
    at: dict[tuple[str, int], int] = field(factory=dict)
    released: list[int] = field(factory=list)
    released_in: int = -1

    def read(self, number: int, line: Line | At | Refused) -> None:
        """Read one line."""
        if isinstance(line, At):
            self._set_time(line.ns)
        elif isinstance(line, Refused):
            self._refuse(number, line)
        else:
            self.keep(number, self.reader.read(number, line))

    def close(self, recording: Recording) -> Lives:
        """The lives, once every line was read."""
        self.lives.last_job = self.reader.last_job
        self.lives.whole = recording.end is not None
        return self.lives

    def _set_time(self, ns: int) -> None:
        lives = self.lives
        self.reader.set_time(ns)
        if not lives.timed:
            lives.timed = True
            lives.ns = array("q", [-1]) * len(lives)
            lives.times = ns, ns
        lives.times = lives.times[0], self.reader.now

    def _refuse(self, number: int, line: Refused) -> None:
        lives, now = self.lives, None if self.reader.now < 0 else self.reader.now
        name = line.name or self.reader.place(line.machine, line.id).name
        refusal = RecordedRefusal(number, line.plan, now, line.machine, line.id, line.event, line.state, len(lives), name)
        lives.refused.append(refusal)
        lives._refused.setdefault((line.machine, line.id), []).append(refusal)

    def keep(self, number: int, move: RecordedMove) -> None:
        """Keep a step that the reader has taken."""
        lives, line, kind = self.lives, move.line, move.line.kind
        index, key = len(lives), (kind.machine, line.id)
        at = self.at.get(key)
        if at is None:
            at = self.at[key] = len(lives.places)
            lives.places.append(key)
            lives._steps[key] = array("q")
        if kind not in self.kinds:
            self.kinds[kind] = len(lives.kinds)
            lives.kinds.append(kind)
        lives._steps[key].append(index)
        lives.line.append(number)
        lives.n.append(line.n)
        lives.plan.append(line.plan)
        if lives.timed:
            lives.ns.append(self.reader.now)
        lives.at.append(at)
        lives.kind.append(self.kinds[kind])
        lives.job.append(line.job or 0)
        lives.epoch.append(-1 if line.epoch is None else line.epoch)
        lives.cause.append(-1 if move.due is None else move.due.cause)
        lives.coupling.append(0 if move.due is None or move.due.coupling == GIVE_UP else _NUMBER[move.due.coupling])
        if not move.fits:
            lives.astray.append(index)
        self._link(index, move)

    def _link(self, index: int, move: RecordedMove) -> None:
        """What a step has to do with jobs and requests."""
        lives, kind, place = self.lives, move.line.kind, move.place
        if move.job is not None:
            job = lives._jobs.setdefault(move.job.id, move.job)
            job.state = move.job.state
            (job.steps if kind.machine == "job" else job.effects).append(index)
        if kind.source != kind.target:
            for each in place.holders:
                if each is not move.job:
                    each.between.append(index)
        if kind.machine == "request":
            if place.name is not None:
                lives.names[index] = place.name
            self._give_up(index, move)
        elif (kind.machine, kind.event) == ("block", "release"):
            if move.line.n != self.released_in:
                self.released, self.released_in = [], move.line.n
            self.released.append(index)

    def _give_up(self, index: int, move: RecordedMove) -> None:
        """A request writes its own line last: it explains those before it."""
        for each in () if move.due is None else move.due.steps:
            self.lives.cause[each], self.lives.coupling[each] = index, _NUMBER[GIVE_UP]
        beside = self.released_in == move.line.n - 1 and move.line.kind.source == Request.RUNNING.name
        if beside and move.line.kind.event in _GIVES_UP:
            for each in self.released:
                self.lives.cause[each] = index
