"""A recording as Chrome trace events, the JSON that the Perfetto UI and ``chrome://tracing`` open.

Rules of this file:

* Events are written while lines are read. Memory holds one entry for each place that has moved and each job in flight, and, if
  the recording has no times, the lines of one plan.
* Events are in the order of time, and every slice that begins also ends, even if the recording stops in the middle.
* Nothing is invented: a place has no slice before the first line that names it.

The mapping. A machine is a process. A place is one of its threads, with one slice for each stay in a state; a step that stays
in its state is an instant, and so are a refusal and the end of a life. A job is an asynchronous slice with one inside it for
each of its states; arrows lead from there to the slices of places that begin in its name. The number of places in each state
is a counter.

Time. If the recording has times (`At`), they are used as they are, from the first one on. Otherwise a plan takes a millisecond,
and its commits are spread evenly over it. The traces of ``torch.profiler`` count from 1970 and give their zero as
``baseTimeNanoseconds``. A recorder with ``time.time_ns`` as its clock lines up with them; one with another clock does so if the
difference is given as *offset_ns*. Times that count from 1970 begin at zero here, too, and for the same reason: as microseconds
in a double they would lose their last digits.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO, TypeAlias

from attrs import define, field, frozen

from blocklife.errors import MisuseError
from blocklife.recording._format import NUMBER_MAX, At, Line, Refused, show_name
from blocklife.recording._reader import INITIAL, JobStory, Reader, RecordedMove, RecordedPlace
from blocklife.recording._reading import Progress, Recording
from blocklife.states import MACHINES

PLAN_NS = 1_000_000
"""The duration of a plan if the recording has no times."""

_SINCE_1970 = 10**18
"""Nanoseconds; a clock with larger values must count from 1970."""
_ORDER = ("request", "job", "block", "slot")
_PID = 10_000_000
_TID = 100_000_000
"""Above the numbers that systems give to processes and threads, so that another trace can be merged. Threads of different
processes must not share a number either, because viewers identify threads by number alone."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))

Item: TypeAlias = Line | Refused
Numbered: TypeAlias = tuple[int, Line | At | Refused]
Args: TypeAlias = Mapping[str, str | int]


@frozen
class Traced:
    """The numbers of lines and events written."""

    lines: int
    """Steps and refusals."""
    events: int
    timed: bool
    """Whether the recording has times; otherwise a plan is a millisecond."""

    def __str__(self) -> str:
        clock = "its own times" if self.timed else "no times: a plan is 1 ms"
        return f"{self.lines:,} lines, {self.events:,} trace events ({clock})"


def write_perfetto(
    recording: Recording,
    sink: TextIO,
    *,
    offset_ns: int = 0,
    progress: Progress | None = None,
) -> Traced:
    """Write a recording as one JSON object.

    Raises `MisuseError` if the recording cannot be read, or if its times go back or begin below zero.
    """
    if abs(offset_ns) > NUMBER_MAX:
        raise MisuseError(f"--offset-ns must be from {-NUMBER_MAX} to {NUMBER_MAX}")
    clock = _Clock(recording, offset_ns, progress)
    items = clock.items()
    first = next(items, None)
    base = _zero(clock, first)
    zero = f'"baseTimeNanoseconds":{base},' if base else ""
    sink.write(f'{{"displayTimeUnit":"ms",{zero}"traceEvents":[\n')
    writer = _Writer(sink, base, _note(clock))
    run = _TraceWriter(Reader(recording.head), writer)
    lines = 0
    for now, item in itertools.chain([] if first is None else [first], items):
        run.read(now, item)
        lines += 1
    run.close(clock.end)
    about = {"made by": "blocklife", "recording": recording.name, "clock": _note(clock), "whole": recording.end is not None}
    sink.write(f'\n],"otherData":{json.dumps(about)}}}\n')
    return Traced(lines, writer.events, clock.timed)


def _zero(clock: _Clock, first: tuple[int, Item] | None) -> int:
    """The time that is zero in the trace."""
    if first is not None and first[0] < 0:
        early = f"with --offset-ns {clock.offset_ns} it begins {-first[0]} ns below zero"
        raise MisuseError(f"{clock.recording.name}: {early} (give at least {clock.offset_ns - first[0]})")
    return first[0] if first is not None and clock.timed and first[0] >= _SINCE_1970 else 0


# --- time ----------------------------------------------------------------------------------------------------------------


@define(eq=False)
class _Clock:
    """The time of each line. ``timed`` is known after the first item, ``end`` after the last."""

    recording: Recording
    offset_ns: int
    progress: Progress | None
    timed: bool = False
    end: int = 0
    late: int = 0
    """The first line with a time, if steps had been drawn without one before it."""

    def items(self) -> Iterator[tuple[int, Item]]:
        """Every step and refusal with its time in nanoseconds, which never goes back."""
        lines = self.recording.lines(self.progress)
        held = self._first_plan(lines)
        spread = self._told(held, lines) if self.timed else self._by_plan(itertools.chain(held, lines))
        for now, item in spread:
            self.end = max(self.end, now)
            yield now, item

    def _first_plan(self, lines: Iterator[Numbered]) -> list[Numbered]:
        """The lines up to the first with a time, or to the end of the first plan: enough to know whether there is a clock."""
        held: list[Numbered] = []
        plan: int | None = None
        for number, line in lines:
            held.append((number, line))
            if isinstance(line, At):
                self.timed = True
                break
            plan = line.plan if plan is None else plan
            if line.plan != plan:
                break
        return held

    def _told(self, held: list[Numbered], rest: Iterable[Numbered]) -> Iterator[tuple[int, Item]]:
        """By the recorded times; steps before the first of them are drawn at that time."""
        now = next(line.ns for _, line in held if isinstance(line, At))
        for number, line in itertools.chain(held, rest):
            if not isinstance(line, At):
                yield now + self.offset_ns, line
            elif line.ns < now:
                raise MisuseError(f"{self.recording.name}: line {number}: the time goes back, from {now} to {line.ns}")
            else:
                now = line.ns
        self.end = now + self.offset_ns

    def _by_plan(self, lines: Iterable[Numbered]) -> Iterator[tuple[int, Item]]:
        """A plan is a millisecond, over which its commits and refusals are spread."""
        last = -1
        for plan, group in itertools.groupby(self._steps(lines), key=lambda line: line.plan):
            if plan < last:
                raise MisuseError(f"{self.recording.name}: plan {plan} comes after plan {last} (recording check tells more)")
            last, start = plan, plan * PLAN_NS + self.offset_ns
            commits = [list(items) for _, items in itertools.groupby(group, key=_commit)]
            for number, items in enumerate(commits):
                yield from ((start + number * PLAN_NS // len(commits), item) for item in items)
            self.end = start + PLAN_NS

    def _steps(self, lines: Iterable[Numbered]) -> Iterator[Item]:
        for number, line in lines:
            if isinstance(line, At):
                self.late = self.late or number
            else:
                yield line


def _commit(item: Item) -> tuple[int, int]:
    """Group the lines of one commit; a refusal is a group of its own."""
    return (item.n, 0) if isinstance(item, Line) else (0, id(item))


def _note(clock: _Clock) -> str:
    if clock.timed:
        return f"as recorded, {clock.offset_ns:+} ns" if clock.offset_ns else "as recorded"
    late = f"; the times from line {clock.late} on came too late to be used" if clock.late else ""
    return f"none: a plan is 1 ms, its commits are spread over it{late}"


# --- events --------------------------------------------------------------------------------------------------------------


@define(eq=False)
class _Writer:
    """Writes events, with commas between them. ``events`` counts them."""

    sink: TextIO
    base: int
    note: str
    events: int = 0

    def write(self, phase: str, name: str, now: int, pid: int, tid: int, **rest: str | int | Args) -> None:
        """One event. Times are microseconds, in which three places behind the point are nanoseconds."""
        at = now - self.base
        when = f'"ts":{at // 1000}.{at % 1000:03},"pid":{pid},"tid":{tid}'
        more = "," + _ENCODER.encode(rest)[1:-1] if rest else ""
        comma = ",\n" if self.events else ""
        self.sink.write(f'{comma}{{"ph":"{phase}","name":{json.dumps(name)},{when}{more}}}')
        self.events += 1


@define(eq=False)
class _TraceWriter:
    """Turns lines into events. Invariant: ``open`` are the places that have an open slice each; ``jobs`` have two, one within
    the other, of which the outer one has this name.
    """

    reader: Reader
    out: _Writer
    begun: bool = False
    now: int = 0
    """The time of the latest line, once there is one."""
    open: dict[RecordedPlace, None] = field(factory=dict)
    jobs: dict[JobStory, str] = field(factory=dict)
    threads: set[int] = field(factory=set)
    """The threads already named."""
    counts: dict[tuple[str, str], int] = field(factory=dict)
    moved: dict[tuple[str, str], None] = field(factory=dict)
    """Counters that have changed since the clock moved on."""

    def read(self, now: int, item: Item) -> None:
        """One line."""
        if not self.begun:
            self._begin(now)
        elif now > self.now:
            self._count_out()
        self.now = now
        if isinstance(item, Refused):
            if item.machine in _ORDER:
                self._refused(item)
        elif item.kind.machine in _ORDER:
            move = self.reader.read(1, item)
            if move.born and move.job is not None:
                self._be_born(move.job, item.plan)
            if move.place is move.job:
                self._job(move, move.job)
            else:
                self._place(move)

    def close(self, now: int) -> None:
        """End the open slices."""
        if not self.begun:
            return
        self._count_out()
        self.now = max(self.now, now)
        for place in list(self.open):
            self._end(place, place.state)
        for job in list(self.jobs):
            self._leave(job)

    def _begin(self, now: int) -> None:
        """Write names, and the counters of places that never moved."""
        self.begun, self.now = True, now
        for number, machine in enumerate(_ORDER):
            pid = _pid(machine)
            self.out.write("M", "process_name", now, pid, pid, args={"name": f"{machine}s"})
            self.out.write("M", "process_labels", now, pid, pid, args={"labels": f"blocklife, clock: {self.out.note}"})
            self.out.write("M", "process_sort_index", now, pid, pid, args={"sort_index": number})
        for machine in ("block", "slot"):
            self._count(machine, INITIAL[machine], len(self.reader.head.ids(machine)))

    # --- places -----------------------------------------------------------------------------------------------------------

    def _place(self, move: RecordedMove) -> None:
        line, place, target = move.line, move.place, move.line.kind.target
        pid, tid = _pid(place.machine), self._thread(place.machine, place.id)
        if place not in self.open:
            if move.new and place.machine != "request":  # a row of requests is unused until a line names it
                self._count(place.machine, line.kind.source, -1)
        else:
            if move.epoch != place.epoch:
                self.out.write("i", f"life {move.epoch} ends", self.now, pid, tid, s="t", cat="life")
            if target == move.stood:
                self.out.write("i", line.kind.event, self.now, pid, tid, s="t", cat="step", args=_args(line))
                return
            self._end(place, move.stood)
        self.open[place] = None
        flow: dict[str, str | int] = {"bind_id": hex(line.job), "flow_in": True} if line.job else {}
        self.out.write("B", target, self.now, pid, tid, cat=place.machine, args=_args(line), **flow)
        self._count(place.machine, target, 1)
        if _final(place.machine, target):  # the row belongs to another request from here on
            self._end(place, target)

    def _end(self, place: RecordedPlace, state: str) -> None:
        """End the slice of a place."""
        del self.open[place]
        self.out.write("E", state, self.now, _pid(place.machine), self._thread(place.machine, place.id))
        self._count(place.machine, state, -1)

    def _thread(self, machine: str, number: int) -> int:
        """The thread of a place; its first use writes its name."""
        tid = _TID * (1 + _ORDER.index(machine)) + number
        if tid not in self.threads:
            self.threads.add(tid)
            self.out.write("M", "thread_name", self.now, _pid(machine), tid, args={"name": f"{machine} {number}"})
            self.out.write("M", "thread_sort_index", self.now, _pid(machine), tid, args={"sort_index": number})
        return tid

    def _refused(self, line: Refused) -> None:
        name = f"refused: {line.event}"
        args: Args = {"plan": line.plan, "event": line.event, "state": line.state}
        if line.machine == "job":
            self._of_job("n", name, line.id, args=args)
        else:
            tid = self._thread(line.machine, line.id)
            self.out.write("i", name, self.now, _pid(line.machine), tid, s="t", cat="refused", args=args)

    # --- jobs -------------------------------------------------------------------------------------------------------------

    def _be_born(self, job: JobStory, plan: int) -> None:
        """Begin a job with the first line that names it."""
        self.jobs[job] = job.label
        self._of_job("b", job.label, job.id, args={"plan": plan, "line": "first named here"})
        self._enter(job, INITIAL["job"], {"plan": plan})

    def _job(self, move: RecordedMove, job: JobStory) -> None:
        line, target = move.line, move.line.kind.target
        if job not in self.jobs or target == move.stood:
            self._of_job("n", line.kind.event, job.id, args=_args(line))
            return
        self._of_job("e", move.stood, job.id)
        self._count("job", move.stood, -1)
        self._enter(job, target, _args(line))
        if _final("job", target):
            self._leave(job)

    def _enter(self, job: JobStory, state: str, args: Args) -> None:
        """The slice of one state of a job; arrows to its places begin here."""
        self._of_job("b", state, job.id, args=args, bind_id=hex(job.id), flow_out=True)
        self._count("job", state, 1)

    def _leave(self, job: JobStory) -> None:
        """End both slices of a job."""
        self._of_job("e", job.state, job.id)
        self._of_job("e", self.jobs.pop(job), job.id)
        self._count("job", job.state, -1)

    def _of_job(self, phase: str, name: str, number: int, **rest: str | int | Args) -> None:
        self.out.write(phase, name, self.now, _pid("job"), _pid("job"), cat="job", id=hex(number), **rest)

    # --- counters ---------------------------------------------------------------------------------------------------------

    def _count(self, machine: str, state: str, change: int) -> None:
        self.counts[machine, state] = self.counts.get((machine, state), 0) + change
        self.moved[machine, state] = None

    def _count_out(self) -> None:
        """Write the counters as they are after everything that happened at one time."""
        for machine, state in self.moved:
            number = self.counts[machine, state]
            self.out.write("C", state, self.now, _pid(machine), _pid(machine), args={"places": number})
        self.moved.clear()


def _pid(machine: str) -> int:
    return _PID + 1 + _ORDER.index(machine)


def _final(machine: str, state: str) -> bool:
    return any(final.name == state for final in MACHINES[machine].finals)


def _args(line: Line) -> Args:
    kind = line.kind
    told: dict[str, str | int] = {"event": kind.event, "from": kind.source, "plan": line.plan, "commit": line.n}
    name = None if line.name is None else show_name(line.name)
    more: dict[str, str | int | None] = {"guard": kind.guard, "epoch": line.epoch, "job": line.job, "request": name}
    return {**told, **{key: value for key, value in more.items() if value is not None}}
