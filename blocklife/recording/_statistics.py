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
from blocklife.recording._format import At, Line, Refused
from blocklife.recording._reader import INITIAL, JobStory, Reader, RecordedMove
from blocklife.recording._reading import Progress, Recording, open_recording
from blocklife.states import MACHINES

POINTS_MAX = 512
"""The numbers of places in each state are kept for at most this many plans; if there are more, every second one is dropped.

One more is kept for the end of the run."""

_EXACT_BITS = 8
"""Spans below two to this power are counted exactly, longer ones in buckets with a relative size below one per cent."""
_SECOND = 1_000_000_000

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
    count = _Count(Reader(recording.head))
    for number, line in recording.lines(progress):
        try:
            count.read(number, line)
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
    """One machine while it is counted. Invariant: ``population`` counts its places by state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.table = MACHINES[name]
        self.index = {state.name: at for at, state in enumerate(self.table.states)}
        self.finals = frozenset(self.table.index[state] for state in self.table.finals)
        self.taken = [0] * (len(self.table.rows) + 1)
        self.population = [0] * len(self.table.states)
        self.plans = [Spans() for _ in self.table.states]
        self.times = [Spans() for _ in self.table.states]
        self.refused: Counter[tuple[str, str]] = Counter()
        self.weight = [0] * len(self.table.states)
        """The sum over all plans of how many places were in each state."""


@define(eq=False)
class _Count:
    """A recording while it is counted."""

    reader: Reader
    tracks: dict[str, _CountedMachine] = field(factory=lambda: {name: _CountedMachine(name) for name in MACHINES})
    plan: int = 0
    first_ns: int = -1
    """The first recorded time; -1 for none."""
    astray: int = 0
    # Invariant: every ``stride``-th plan before the present one is in ``points``, with the populations of all machines.
    points: list[tuple[int, list[list[int]]]] = field(factory=list)
    stride: int = 1

    def __attrs_post_init__(self) -> None:
        for name in ("block", "slot"):  # places exist, even if no line names them
            track = self.tracks[name]
            track.population[track.index[track.table.initial.name]] = len(self.reader.head.ids(name))

    # --- lines ------------------------------------------------------------------------------------------------------------

    def read(self, number: int, line: Line | At | Refused) -> None:
        """Count one line."""
        if isinstance(line, At):
            self.first_ns = line.ns if self.first_ns < 0 else self.first_ns
            self.reader.set_time(line.ns)
            return
        machine = line.machine if isinstance(line, Refused) else line.kind.machine
        if machine not in self.tracks:
            raise MisuseError(f"there is no machine {machine} ({', '.join(self.tracks)})")
        track = self.tracks[machine]
        if isinstance(line, Refused):
            if line.event not in track.table.events or line.state not in track.index:
                raise MisuseError(f"a {machine} has no event {line.event}, or no state {line.state}")
            track.refused[line.event, line.state] += 1
            return
        ids = self.reader.head.ids(machine)
        if line.id not in ids:
            raise MisuseError(f"{machine} {line.id}: ids are {ids.start} to {ids.stop - 1} (limits of the head)")
        if not line.kind.row:
            raise MisuseError(f"{machine} {line.id}: there is no row {line.kind} (see blocklife recording check)")
        if line.plan > self.plan:
            self._go_on(line.plan)
        track.taken[line.kind.row] += 1
        self._step(track, self.reader.read(number, line))

    def _step(self, track: _CountedMachine, move: RecordedMove) -> None:
        target = move.line.kind.target
        if isinstance(move.place, JobStory) and not move.place.kind:  # no line has created it, or it is over
            self.astray += move.line.kind.source != target
            return
        self.astray += not move.fits
        if move.born and move.job is not None and move.job.kind:
            jobs = self.tracks["job"]
            jobs.population[jobs.index[INITIAL["job"]]] += 1
        if move.new and track.name == "request":  # its arrival is not recorded
            track.population[track.index[move.stood]] += 1
        if move.stood == target:
            return
        stood = track.index[move.stood]
        if move.plan >= 0:
            track.plans[stood].add(self.plan - move.plan)
        if move.ns >= 0:
            track.times[stood].add(self.reader.now - move.ns)
        track.population[stood] -= 1
        track.population[track.index[target]] += 1

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
            steps=self.reader.steps,
            commits=self.reader.commits,
            last_plan=last,
            complete=complete,
            astray=self.astray,
            seconds=None if self.first_ns < 0 else (self.reader.now - self.first_ns) / _SECOND,
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
