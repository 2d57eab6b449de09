"""The state of each place as far as a recording was read, and the rows of the tables by their spelling.

Rules of this file:

* It makes no decisions: places are records, and rows come from the compiled tables.
* A place is made when a line first names it, so that large limits in a head cost nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Generic, TypeAlias, TypeVar

from attrs import define, field, frozen

from blocklife.ledger._ids import FIRST_EPOCH
from blocklife.lifecycle import Event, Row
from blocklife.recording._format import number_of, spell_row
from blocklife.states import COUPLINGS, MACHINES, Job, coupled, ends_life

BITS = {"refs": 1, "pins": 2, "writes": 4, "overdue": 8, "fence": 16, "own": 32, "ok": 64}
"""The inputs of the guards of places, as bits."""
SITUATIONS = 128

_NAMED = {
    "block": frozenset({"plan_store", "plan_load", "submit", "cancel", "land", "expire"}),
    "slot": frozenset({"reserve", "cancel", "land", "expire"}),
    "request": frozenset({"plan_load", "loaded"}),
}
"""Events that happen in the name of a job. The others never do, except for these:"""
_EITHER = frozenset({("slot", "pin"), ("slot", "unpin"), ("slot", "drop")})


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


# --- places ------------------------------------------------------------------------------------------------------------


@define(eq=False)
class Trace:
    """One place, as the lines so far left it."""

    number: int
    state: int = 0
    seen: int = 0
    """The commit in which it took its last step."""


@define(eq=False)
class BlockTrace(Trace):
    """Invariant: ``told`` spells ``epoch``, as the next line must. ``store`` is the job that reads the life, if any."""

    epoch: int = FIRST_EPOCH
    told: str = str(FIRST_EPOCH)
    refs: int = 0
    pins: int = 0
    writes: int = 0
    overdue: int = 0
    store: JobTrace | None = None


@define(eq=False)
class SlotTrace(Trace):
    """``pins`` counts jobs and holders, ``held`` the holders alone."""

    pins: int = 0
    held: int = 0


@define(eq=False)
class RequestTrace(Trace):
    """``load`` is the load that it waits for."""

    load: JobTrace | None = None

    @property
    def load_number(self) -> int:
        """The number of that load; 0 for none."""
        return self.load.number if self.load else 0


@define(eq=False)
class Due:
    """A pending effect of a job: one event for each of these places, or for any places of one commit if they are unknown."""

    event: str
    places: set[Trace] | None
    coupling: str


@define(eq=False)
class JobTrace(Trace):
    """Invariant: ``blocks`` has the places with their epochs at reservation, and is empty before.

    ``kind`` is *store*, *load*, *demote* or *promote*, or empty if no line has reserved anything for it yet. ``over``: its
    number was used up.
    """

    kind: str = ""
    over: bool = False
    blocks: dict[BlockTrace, int] = field(factory=dict)
    slots: dict[SlotTrace, None] = field(factory=dict)
    reserving: int = 0
    """The commit in which its places on one side are being reserved."""
    reports: int = 0
    expired: bool = False
    request: RequestTrace | None = None
    due: list[Due] = field(factory=list)
    """The pending effects; the next one is last."""


TraceT = TypeVar("TraceT", bound=Trace)
Act: TypeAlias = Callable[[TraceT, JobTrace | None, "TraceStep[TraceT]"], None]


@frozen(eq=False)
class TraceStep(Generic[TraceT]):
    """One row of one machine, ready to be taken."""

    row: Row
    event: str
    source: int
    target: int
    ends: bool
    act: Act[TraceT] | None


def illegal(rule: str, machine: str, place: Trace, problem: str) -> IllegalError:
    """The error for one place, which the message names first."""
    return IllegalError(rule, machine, place.number, f"{machine} {place.number}: {problem}")


# --- tables ------------------------------------------------------------------------------------------------------------


@functools.cache
def rows_by_situation(event: Event) -> bytes:
    """The row that an event takes, by state and situation (`BITS`); the guards are evaluated once for each."""
    found = bytearray()
    width = len(event.guards)
    asked = sum(BITS[name] for name in event.parameters)
    facts: dict[int, int] = {}
    for state in range(len(event.table.states)):
        for situation in range(SITUATIONS):
            seen = situation & asked
            if seen not in facts:
                told = event.facts({name: int(bool(seen & BITS[name])) for name in event.parameters})
                facts[seen] = told if isinstance(told, int) else 0
            found.append(event.lut[state << width | facts[seen]])
    return bytes(found)


@functools.cache
def effects_of(cause: str, into: Job) -> tuple[tuple[str, ...], str]:
    """The effects of a cause, with the name of their coupling."""
    found = coupled(cause, into)
    names = [row.name for row in COUPLINGS if row.cause == cause and (not row.into or into in row.into)]
    return found, names[0] if found else ""


def spelt(row: Row) -> str:
    """A row as the recorder writes it."""
    return spell_row(row.event, row.source.name, row.target.name, row.guard.name if row.guard else None)


class Track(Generic[TraceT]):
    """One machine: its rows by their spelling, its places by theirs."""

    def __init__(self, machine: str, lowest: int, stop: int, make: type[TraceT], acts: Mapping[str, Act[TraceT]]) -> None:
        self.machine = machine
        self.table = MACHINES[machine]
        self.lowest, self.stop = lowest, stop
        self.places: dict[str, TraceT] = {}
        self._make = make
        index = self.table.index
        self.steps: dict[str, TraceStep[TraceT]] = {}
        for row in self.table.rows:
            ends = machine == "block" and ends_life(row)
            step = TraceStep(row, row.event, index[row.source], index[row.target], ends, acts.get(row.event))
            named = None if (machine, row.event) in _EITHER else machine == "job" or row.event in _NAMED[machine]
            if named is not False:
                self.steps[spelt(row)] = step
            if named is not True:  # without a job the row is the end of the line
                self.steps[spelt(row) + "}"] = step

    def place(self, name: str) -> TraceT | None:
        """The place that *name* spells, seen for the first time; None if there is no such place."""
        number = number_of(name)
        if number is None or not self.lowest <= number < self.stop:
            return None
        found = self.places[name] = self._make(number)
        return found
