"""Marks for the picture of a lifecycle, from a recorded run, from the coverage of a test run, or from judged mutants.

Rules of this file:

* Files are read by their format, without the code that wrote them; a file of another kind, or for another version of the
  tables, is refused in one line.
* A mark says in words what its colour says, so that a format without colours loses nothing.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attrs import frozen

from blocklife.drawing._picture import Emphasis, Mark, Marks
from blocklife.errors import MisuseError
from blocklife.files import parse_json, read_text
from blocklife.lifecycle import Row, Table
from blocklife.recording._statistics import Dwell, MachineStatistics, RunStatistics, Stay, spell_time
from blocklife.states import MACHINES

_CARETAKER = "run the tests again"
_JUDGE = "write it anew: make mutants"


def check_machine(name: str, what: str) -> Table:
    """The table of a machine that *what* covers; `MisuseError` for any other."""
    found = MACHINES.get(name)
    if found is None:
        raise MisuseError(f"{name}: {what} tells of {', '.join(MACHINES)} only (draw it without)")
    return found


def _used(times: int, most: int) -> float:
    """A number relative to the largest, on a logarithmic scale, so that rare differs visibly from never."""
    return math.log1p(times) / math.log1p(most) if most else 0.0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


# --- a run -------------------------------------------------------------------------------------------------------------


def marks_of_run(run: RunStatistics, machine: str) -> Marks:
    """The marks of a recording: how often each row was taken, the states of places over time, and refusals."""
    check_machine(machine, "a recording")
    told = run.machine(machine)
    most = max(told.taken.values())
    rows = {
        number: Mark(Emphasis.USED, f"{times:,}", f"taken {_times(times)}", _used(times, most))
        if times
        else Mark(Emphasis.UNUSED, "0", "never taken")
        for number, times in told.taken.items()
    }
    states = {state: _state_mark(told, state, dwell) for state, dwell in told.dwell.items()}
    meanings = {
        Emphasis.USED: "it happened; the thicker, the more often",
        Emphasis.ALARM: "an event was refused there",
    }
    return Marks(f"taken in {_file(run.name)}", states, rows, list(_notes(run, told)), meanings)


def _state_mark(told: MachineStatistics, state: str, dwell: Dwell) -> Mark:
    final = state in {each.name for each in told.table.finals}
    touched = any(told.taken[row.index] for row in told.table.rows if state in (row.source.name, row.target.name))
    refused = {event: times for (event, where), times in told.refused.items() if where == state}
    if not touched and not dwell.open and not refused:
        return Mark(Emphasis.UNUSED, "0", "no place was ever in it")
    share = told.shares[state]
    note = f"{dwell.open:,}" if final else _percent(share) if dwell.visits or dwell.open else ""
    if dwell.plans is not None:
        note += f" · {_plans(dwell.plans)}"
    about = "; ".join(_dwell(dwell, final=final))
    if refused:
        listed = ", ".join(f"{event} {_times(times)}" for event, times in refused.items())
        return Mark(Emphasis.ALARM, note, f"{about}; refused: {listed}", share)
    return Mark(Emphasis.USED, note, about, share)


def _dwell(dwell: Dwell, *, final: bool) -> Iterator[str]:
    """The time that places spent in a state, as far as it is known."""
    if final:
        yield f"{dwell.open:,} ended there"
        return
    if not dwell.visits and not dwell.open:
        yield "no line tells when a place came there"
        return
    visits = "1 visit has ended" if dwell.visits == 1 else f"{dwell.visits:,} visits have ended"
    yield f"{visits}, {dwell.open:,} places are there at the end"
    if dwell.plans is not None:
        yield f"plans that a visit took: {dwell.plans.median:,.0f} (median) to {dwell.plans.p99:,.0f} (99th percentile)"
    if dwell.seconds is not None:
        yield f"that is {spell_time(dwell.seconds.median)} to {spell_time(dwell.seconds.p99)}"


def _plans(stay: Stay) -> str:
    """Median and 99th percentile, as short as possible."""
    both = dict.fromkeys((f"{stay.median:,.0f}", f"{stay.p99:,.0f}"))
    return "/".join(both) + (" plan" if list(both) == ["1"] else " plans")


def _file(name: str) -> str:
    """A file's name without folders: a drawing does not depend on where the file was."""
    return Path(name).name or name


def _percent(share: float) -> str:
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _notes(run: RunStatistics, told: MachineStatistics) -> Iterator[str]:
    whole = "" if run.complete else ", and it does not say that it is whole"
    yield f"{_file(run.name)} has {run.steps:,} steps in {run.last_plan:,} plans{whole}."
    yield (
        "Beside a row stands how often it was taken; beside a state its share of all places over all plans, and how "
        "many plans a visit took (median/99th percentile)."
    )
    if told.table.finals:
        yield "Beside a terminal state stands how many came there."
    if told.never:
        yield f"{told.name}: {len(told.never)} of {len(told.table.rows)} rows were never taken."
    for (event, state), times in told.refused.items():
        yield f"{told.name}: {event} was refused {_times(times)} while {state}."
    if run.astray:
        yield f"{run.astray:,} steps of this recording do not go on from where their place stood (blocklife recording check)."


# --- the coverage of a test run ----------------------------------------------------------------------------------------


@frozen
class CoverageReport:
    """The report of ``pytest --blocklife-report=FILE.json``."""

    name: str
    ledgers: int
    rows: Mapping[str, Mapping[str, int]]
    """How often each row was taken, by machine and by its text."""
    states: Mapping[str, Mapping[str, int]]
    """How often each state was entered, likewise."""


def read_coverage(path: str) -> CoverageReport:
    """Read a report; `MisuseError` if it is not one."""
    try:
        said = parse_json(read_text(path))
    except ValueError:
        said = None
    if not isinstance(said, dict) or said.get("blocklife") != "coverage":
        raise MisuseError(f"{path}: it is no coverage report (write one with pytest --blocklife-report=FILE.json)")
    machines, ledgers = said.get("machines"), said.get("ledgers")
    if not isinstance(machines, dict) or type(ledgers) is not int:
        raise MisuseError(f"{path}: it names no ledgers or no machines ({_CARETAKER})")
    rows: dict[str, dict[str, int]] = {}
    states: dict[str, dict[str, int]] = {}
    for name, told in machines.items():
        for key, found in (("rows", rows), ("states", states)):
            counts = told.get(key) if isinstance(told, dict) else None
            if not isinstance(counts, dict) or any(type(count) is not int or count < 0 for count in counts.values()):
                raise MisuseError(f"{path}: the {key} of {name} are not counted ({_CARETAKER})")
            found[name] = counts
    return CoverageReport(path, ledgers, rows, states)


def marks_of_coverage(report: CoverageReport, machine: str, table: Table) -> Marks:
    """The marks of test coverage: which rows and states of a machine a test run has covered.

    A machine of the ledger is in a report by its name, and was counted by ledgers; any other is there by that of its table.
    """
    is_of_ledger = MACHINES.get(machine) is table
    counted = machine if is_of_ledger else table.name
    rows, states = report.rows.get(counted), report.states.get(counted)
    if rows is None or states is None:
        how = "run tests that use a ledger" if is_of_ledger else "name your own in pytest.ini, under blocklife_lifecycles"
        raise MisuseError(f"{report.name}: it does not count {machine}, only {', '.join(report.rows) or 'nothing'} ({how})")
    spelt = {str(row) for row in table.rows}
    if rows.keys() != spelt or states.keys() != {state.name for state in table.states}:
        raise MisuseError(f"{report.name}: it is of another version of {machine} ({_CARETAKER})")
    most = max(rows.values())
    marks = {row.index: _covered(rows[str(row)], most, "taken") for row in table.rows}
    entered = {name: _covered(times, max(states.values()), "entered") for name, times in states.items()}
    never = sum(not times for times in rows.values())
    who = f"{report.ledgers:,} ledgers" if is_of_ledger else "The machines and pools"
    notes = [
        f"{who} of a test run were counted: beside a row stands how often they took it, beside a state "
        "how many steps led to it, or back to it.",
        f"{machine}: {len(rows) - never} of {len(rows)} rows are covered.",
    ]
    meanings = {Emphasis.USED: "a test takes it; the thicker, the more often", Emphasis.UNUSED: "no test takes it"}
    return Marks(f"covered by {_file(report.name)}", entered, marks, notes, meanings)


def _covered(times: int, most: int, how: str) -> Mark:
    if not times:
        return Mark(Emphasis.UNUSED, "0", f"no test has {how} it")
    return Mark(Emphasis.USED, f"{times:,}", f"{how} {_times(times)}", _used(times, most))


# --- judged mutants ----------------------------------------------------------------------------------------------------


@frozen
class Judged:
    """The result of one mutant."""

    mutant: str
    steps: int = 0
    """Of a shortest counterexample; 0 where no world finds it."""
    where: str = ""
    """The world or the test that finds it, with the rule that breaks; empty if nothing finds it."""

    @property
    def survives(self) -> bool:
        """Whether no world and no test finds it."""
        return not self.where


@frozen
class JudgedMutants:
    """What specs/mutants.csv says."""

    name: str
    mutants: Sequence[Judged]


def read_mutants(path: str) -> JudgedMutants:
    """Read the table of mutants; `MisuseError` if the file is something else."""
    judged = list(_from_table(read_text(path)))
    if not judged:
        raise MisuseError(f"{path}: it has no mutants ({_JUDGE})")
    return JudgedMutants(path, judged)


def _from_table(text: str) -> Iterator[Judged]:
    """Rows with the columns mutant, world, rule, steps and test; those of another kind of file are left out."""
    for row in csv.DictReader(io.StringIO(text)):
        name, steps = row.get("mutant"), row.get("steps") or ""
        if name and steps.isdecimal():
            where = f"{row['world']} ({row['rule']})" if row.get("world") else row.get("test") or ""
            yield Judged(name, int(steps), where)


def marks_of_mutants(judged: JudgedMutants, machine: str) -> Marks:
    """The marks of mutants: how soon a switched-off guard of a machine is found, and which guards nothing needs."""
    table = check_machine(machine, "a list of mutants")
    by_name = {each.mutant: each for each in judged.mutants}
    guarded = {name: row for row in table.rows if (name := _without_guard(machine, row))}
    unknown = [name for name in by_name if name.startswith(f"{machine}.") and " without " in name and name not in guarded]
    if unknown:
        raise MisuseError(f"{judged.name}: {unknown[0]!r} is no guard of {machine} ({_JUDGE})")
    own = {row: by_name[name] for name, row in guarded.items() if name in by_name}
    shortest = min((each.steps for each in own.values() if each.steps), default=0)
    rows = {row.index: _mutant_mark(each, shortest) for row, each in own.items()}
    effects = [each for each in judged.mutants if f": no {machine}." in each.mutant]
    notes = []
    if guarded:
        noticed = sum(not each.survives for each in own.values())
        notes.append("Beside a guard stands how many steps a shortest counterexample has once it is switched off.")
        notes.append(f"{machine}: {len(own)} of {len(guarded)} guards were switched off in turn; {noticed} are noticed.")
    if effects:
        noticed = sum(not each.survives for each in effects)
        notes.append(f"{machine}: {len(effects)} effects of others on it were left out in turn; {noticed} are noticed.")
    notes += [f"Nothing notices {each.mutant!r}." for each in (*own.values(), *effects) if each.survives]
    meanings = {
        Emphasis.USED: "switched off, it is noticed; the thicker, the sooner",
        Emphasis.ALARM: "switched off, nothing notices",
    }
    return Marks(f"mutants of {_file(judged.name)}", {}, rows, notes, meanings)


def _without_guard(machine: str, row: Row) -> str:
    """The name of the mutant that ignores the guard of a row; empty if it has none."""
    if row.guard is None:
        return ""
    return f"{machine}.{row.event} from {row.source.name} to {row.target.name} without {row.guard.name}"


def _mutant_mark(judged: Judged, shortest: int) -> Mark:
    if judged.steps:
        about = f"without the guard, {judged.where} breaks after {judged.steps} steps"
        return Mark(Emphasis.USED, f"{judged.steps} steps", about, shortest / judged.steps)
    if judged.where:
        return Mark(Emphasis.USED, "a test", f"without the guard, {judged.where} fails")
    return Mark(Emphasis.ALARM, "survives", "without the guard nothing breaks, and no test fails")
