"""Statistics of a recording: rows taken, places in each state over plans, durations of stays, and refusals.

Rules of this file:

* It takes one pass, and memory grows with the places and the jobs in flight, never with the lines. Durations are counted in
  buckets, and at most `POINTS_MAX` plans are kept.
* Lines are not checked. A line whose source is not the state of its place is counted as astray; `_checking` explains it.
* Nothing is guessed. How long a request was WAITING is unknown, and without recorded times so are all durations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from blocklife.errors import MisuseError
from blocklife.lifecycle import Table
from blocklife.recording._format import At, Head, Line, Refused
from blocklife.recording._reading import Progress, Recording, open_recording
from blocklife.states import MACHINES

POINTS_MAX = 512
"""The numbers of places in each state are kept for at most this many plans; if there are more, every second one is dropped.

One more is kept for the end of the run."""

_EXACT_BITS = 8
"""Spans below two to this power are counted exactly, longer ones in buckets with a relative size below one per cent."""
_SECOND = 1_000_000_000
_PLANNING = {"block": ("plan_store", "plan_load"), "slot": ("reserve", "pin"), "job": (), "request": ()}
"""The events with which a place is reserved for a job, by machine."""

Record: TypeAlias = dict[str, object]


class Spans:
    """Durations as whole numbers: count and sum are exact, everything else is within one per cent."""

    __slots__ = ("_buckets", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self._buckets: dict[int, int] = {}

    def add(self, span: int) -> None:
        """Count one more."""
        self.count += 1
        self.total += span
        shift = span.bit_length() - _EXACT_BITS
        bucket = span if shift <= 0 else (shift << _EXACT_BITS - 1) + (span >> shift)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def quantile(self, share: float) -> int:
        """The quantile of this share; 0 if there are no spans."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return _least(bucket)
        return 0


def _least(bucket: int) -> int:
    """The least span that is counted in a bucket."""
    half = 1 << _EXACT_BITS - 1
    if bucket < 2 * half:
        return bucket
    shift = bucket // half - 1
    return (bucket - shift * half) << shift


@frozen
class Stay:
    """Durations of visits, in some unit."""

    total: float
    median: float
    """Median and 99th percentile are given down to less than one per cent."""
    p99: float

    @classmethod
    def of(cls, spans: Spans, unit: int = 1) -> Stay | None:
        """The durations in units of *unit*; None where there are none."""
        if not spans.count:
            return None
        return cls(spans.total / unit, spans.quantile(0.5) / unit, spans.quantile(0.99) / unit)


@frozen
class Dwell:
    """The visits to one state that have ended, and the number of those that have not.

    A step that leads back to its own state does not end a visit.
    """

    visits: int
    open: int
    """Places in this state at the end of the recording; for a terminal state, all that ever entered it."""
    plans: Stay | None
    """In plans; None if no visit has ended."""
    seconds: Stay | None
    """In seconds; None if no ended visit has times."""


@frozen(eq=False)
class MachineStatistics:
    """The statistics of one machine.

    Invariant: ``taken`` has every row of the table by number, ``dwell`` every state, ``population`` a column for each state.
    """

    name: str
    table: Table
    taken: Mapping[int, int]
    dwell: Mapping[str, Dwell]
    population: NDArray[np.int64]
    """How many places were in each state: a line for each entry of `RunStatistics.plans`, a column for each state.

    All blocks and slots of the limits; jobs and requests once a line has named them, terminal ones for good.
    """
    refused: Mapping[tuple[str, str], int]
    """How often an event was refused in a state."""
    shares: Mapping[str, float]
    """The share of all places in each state, over all plans, not counting places that were over; 0 for a terminal state."""

    @property
    def never(self) -> tuple[str, ...]:
        """The rows that were never taken."""
        return tuple(str(row) for row in self.table.rows if not self.taken[row.index])

    def record(self) -> Record:
        """For machines."""
        return {
            "rows": {str(row): self.taken[row.index] for row in self.table.rows},
            "never": list(self.never),
            "states": {
                state: {
                    "visits": each.visits,
                    "open": each.open,
                    "share": self.shares[state],
                    "plans": _record_of(each.plans),
                    "seconds": _record_of(each.seconds),
                }
                for state, each in self.dwell.items()
            },
            "refused": [{"event": event, "from": state, "times": times} for (event, state), times in self.refused.items()],
            "population": {state: self.population[:, at].tolist() for at, state in enumerate(self.dwell)},
        }


def _record_of(stay: Stay | None) -> Record | None:
    return None if stay is None else {"total": stay.total, "median": stay.median, "p99": stay.p99}


@frozen(eq=False)
class RunStatistics:
    """The statistics of a whole recording."""

    name: str
    steps: int
    commits: int
    last_plan: int
    complete: bool
    """Whether the recording says that it is complete."""
    astray: int
    """Steps whose source is not the state of their place, or whose job no line has created."""
    seconds: float | None
    """From the first recorded time to the last."""
    plans: NDArray[np.int64]
    """The plans at whose end places were counted: all of them, or those that are kept."""
    machines: Mapping[str, MachineStatistics]

    def machine(self, name: str) -> MachineStatistics:
        """The statistics of one machine. Raises `MisuseError` for a name that no machine has."""
        found = self.machines.get(name)
        if found is None:
            raise MisuseError(f"{self.name}: a recording covers {', '.join(self.machines)}, not {name}")
        return found

    def record(self) -> Record:
        """For machines."""
        return {
            "recording": self.name,
            "steps": self.steps,
            "commits": self.commits,
            "last_plan": self.last_plan,
            "complete": self.complete,
            "astray": self.astray,
            "seconds": self.seconds,
            "plans": self.plans.tolist(),
            "machines": {name: machine.record() for name, machine in self.machines.items()},
        }


def count_file(path: str, progress: Progress | None = None) -> RunStatistics:
    """The statistics of the recording in a file; ``-`` is standard input. Raises `MisuseError` if it cannot be read."""
    with open_recording(path) as recording:
        return count_recording(recording, progress)


def count_recording(recording: Recording, progress: Progress | None = None) -> RunStatistics:
    """`count_file` of an open recording of which no line was read yet."""
    count = _Count(recording.head)
    for number, line in recording.lines(progress):
        try:
            if type(line) is Line:
                count.step(line)
            elif type(line) is At:
                count.tell_time(line.ns)
            elif type(line) is Refused:
                count.refuse(line)
        except MisuseError as problem:
            raise MisuseError(f"{recording.name}: line {number}: {problem}") from None
    return count.result(recording.name, complete=recording.end is not None)


def spell_time(seconds: float) -> str:
    """A time in a readable unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}" if seconds < 999.5 * size else f"{seconds:,.0f} s"
    return f"{seconds * 1e9:.0f} ns"


# --- counting ----------------------------------------------------------------------------------------------------------


class _CountedMachine:
    """One machine while it is counted.

    Invariant: ``places`` has every place that a line has named and that is not over, with its state, and the plan and the time
    at which it entered it; -1 if unknown. ``population`` counts the places by state.
    """

    def __init__(self, name: str, lowest: int, stop: int) -> None:
        self.name = name
        self.table = MACHINES[name]
        index = self.table.index
        self.rows = {
            (row.event, row.source.name, row.target.name, row.guard.name if row.guard else None): (
                row.index,
                index[row.source],
                index[row.target],
            )
            for row in self.table.rows
        }
        self.lowest, self.stop = lowest, stop
        self.finals = frozenset(index[state] for state in self.table.finals)
        self.initial = index[self.table.initial]
        self.taken = [0] * (len(self.table.rows) + 1)
        self.places: dict[int, tuple[int, int, int]] = {}
        self.population = [0] * len(self.table.states)
        self.plans = [Spans() for _ in self.table.states]
        self.times = [Spans() for _ in self.table.states]
        self.refused: Counter[tuple[str, str]] = Counter()
        self.weight = [0] * len(self.table.states)
        """The sum over all plans of how many places were in each state."""

    def explain(self, line: Line) -> MisuseError:
        """Why a line is not a step of this machine."""
        if not self.lowest <= line.id < self.stop:
            return MisuseError(f"{self.name} {line.id}: ids are {self.lowest} to {self.stop - 1} (limits of the head)")
        condition = "" if line.guard is None else f" [{line.guard}]"
        return MisuseError(
            f"{self.name} {line.id}: there is no row {line.source} --{line.event}{condition}--> {line.target} "
            "(see blocklife recording check)"
        )


@define(eq=False)
class _Count:
    """A recording while it is counted."""

    head: Head
    tracks: dict[str, _CountedMachine] = field(init=False)
    steps: int = 0
    n: int = 0
    commits: int = 0
    plan: int = 0
    ns: int = -1
    """The latest recorded time; -1 for none."""
    began: int = -1
    """The time recorded before the first step."""
    first_ns: int = -1
    astray: int = 0
    # Invariant: every ``stride``-th plan before the present one is in ``points``, with the populations of all machines.
    points: list[tuple[int, list[list[int]]]] = field(factory=list)
    stride: int = 1

    @tracks.default
    def _make_tracks(self) -> dict[str, _CountedMachine]:
        tracks = {
            "block": _CountedMachine("block", 1, self.head.num_blocks),
            "slot": _CountedMachine("slot", 0, self.head.num_slots),
            "job": _CountedMachine("job", 1, 1 << 63),
            "request": _CountedMachine("request", 0, self.head.max_requests),
        }
        for name in ("block", "slot"):  # places exist, even if no line names them
            track = tracks[name]
            track.population[track.initial] = track.stop - track.lowest
        return tracks

    # --- lines ------------------------------------------------------------------------------------------------------------

    def tell_time(self, ns: int) -> None:
        """Advance the time. A clock that goes back is ignored."""
        if self.first_ns < 0:
            self.first_ns = ns
            if not self.steps:
                self.began = ns
        self.ns = max(ns, self.ns)

    def refuse(self, refused: Refused) -> None:
        """Count a refused event."""
        track = self.tracks.get(refused.machine)
        if track is None:
            raise MisuseError(f"there is no machine {refused.machine} ({', '.join(self.tracks)})")
        if refused.event not in track.table.events or refused.state not in {state.name for state in track.table.states}:
            raise MisuseError(f"a {refused.machine} has no event {refused.event}, or no state {refused.state}")
        track.refused[refused.event, refused.state] += 1

    def step(self, line: Line) -> None:
        """Count one step."""
        track = self.tracks.get(line.machine)
        if track is None:
            raise MisuseError(f"there is no machine {line.machine} ({', '.join(self.tracks)})")
        row = track.rows.get((line.event, line.source, line.target, line.guard))
        if row is None or not track.lowest <= line.id < track.stop:
            raise track.explain(line)
        if line.plan > self.plan:
            self._go_on(line.plan)
        if line.n != self.n:
            self.n = line.n
            self.commits += 1
        self.steps += 1
        number, source, target = row
        track.taken[number] += 1
        if line.job is not None and line.event in _PLANNING[line.machine]:
            self._start(line.job)
        place = track.places.get(line.id)
        if place is None:
            place = self._first_seen(track, source)
            if place is None:
                if source != target:
                    self.astray += 1
                return
            if source == target:
                track.places[line.id] = place
        if place[0] != source:
            self.astray += 1
        if place[0] != target:
            self._move(track, line.id, place, target)

    def _first_seen(self, track: _CountedMachine, source: int) -> tuple[int, int, int] | None:
        """The state of a place before its first line; None for a job that no line has created, or that is over."""
        if track.name == "job":
            return None
        if track.name == "request":  # its arrival is not recorded
            track.population[source] += 1
            return source, -1, -1
        return track.initial, 0, self.began

    def _start(self, number: int) -> None:
        """The first line that reserves a block for a job is its first."""
        jobs = self.tracks["job"]
        if number not in jobs.places:
            jobs.places[number] = jobs.initial, self.plan, self.ns
            jobs.population[jobs.initial] += 1

    def _move(self, track: _CountedMachine, number: int, place: tuple[int, int, int], target: int) -> None:
        stands, plan, ns = place
        if plan >= 0:
            track.plans[stands].add(self.plan - plan)
        if ns >= 0:
            track.times[stands].add(self.ns - ns)
        track.population[stands] -= 1
        track.population[target] += 1
        if target not in track.finals:
            track.places[number] = target, self.plan, self.ns
        else:
            track.places.pop(number, None)

    # --- plans ------------------------------------------------------------------------------------------------------------

    def _go_on(self, plan: int) -> None:
        """A later plan begins: note the population at the end of the one before. A number that goes down is ignored."""
        lasted = plan - self.plan
        for track in self.tracks.values():
            track.weight = [sum_ + lasted * count for sum_, count in zip(track.weight, track.population, strict=True)]
        while len(self.points) + len(self._new_points(plan)) > POINTS_MAX:
            self.points = self.points[::2]
            self.stride *= 2
        if new := self._new_points(plan):
            stands = self._stands()
            self.points += [(each, stands) for each in new]
        self.plan = plan

    def _new_points(self, plan: int) -> range:
        """The plans before *plan* that should be kept and are not there yet."""
        return range(self.plan + -self.plan % self.stride, plan, self.stride)

    def _stands(self) -> list[list[int]]:
        return [list(track.population) for track in self.tracks.values()]

    def result(self, name: str, *, complete: bool) -> RunStatistics:
        """The statistics, once every line was counted."""
        last = self.plan
        self._go_on(last + 1)
        if self.points[-1][0] != last:
            self.points.append((last, self._stands()))
        return RunStatistics(
            name=name,
            steps=self.steps,
            commits=self.commits,
            last_plan=last,
            complete=complete,
            astray=self.astray,
            seconds=None if self.first_ns < 0 else (self.ns - self.first_ns) / _SECOND,
            plans=np.array([plan for plan, _ in self.points], dtype=np.int64),
            machines={
                name: self._machine(track, [populations[at] for _, populations in self.points])
                for at, (name, track) in enumerate(self.tracks.items())
            },
        )

    def _machine(self, track: _CountedMachine, population: list[list[int]]) -> MachineStatistics:
        table = track.table
        weight = [0 if at in track.finals else weight for at, weight in enumerate(track.weight)]
        whole = sum(weight)
        dwell = {
            state.name: Dwell(plans.count, count, Stay.of(plans), Stay.of(times, _SECOND))
            for state, plans, times, count in zip(table.states, track.plans, track.times, track.population, strict=True)
        }
        return MachineStatistics(
            name=track.name,
            table=table,
            taken={row.index: track.taken[row.index] for row in table.rows},
            dwell=dwell,
            population=np.array(population, dtype=np.int64),
            refused={key: track.refused[key] for key in sorted(track.refused)},
            shares={state.name: weight[at] / whole if whole else 0.0 for at, state in enumerate(table.states)},
        )
