"""What the ledgers of a test run have covered: states and rows of the four tables; and the same of one's own lifecycles.

A ledger counts its rows itself. `Coverage.listen` sees to it that no ledger made from then on is missed: what it has counted is
added when it goes, or when the run ends. Columns count theirs, too. Single machines do not: a hook of their class does.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Concatenate, ParamSpec, TypeVar

from attrs import define, field

from blocklife.core._columns import Ints
from blocklife.ledger._state import LedgerData
from blocklife.lifecycle import Column, Hooks, Lifecycle, Table, Transition
from blocklife.states import MACHINES

P = ParamSpec("P")
MadeT = TypeVar("MadeT")
_OFTEN = 256
"""How many ledgers are noted before the dead ones are dropped."""


def _noted(made: Callable[Concatenate[MadeT, P], None], note: Callable[[MadeT], None]) -> Callable[Concatenate[MadeT, P], None]:
    """The same, and then what is new is noted."""

    @functools.wraps(made)
    def make(state: MadeT, /, *args: P.args, **kwargs: P.kwargs) -> None:
        made(state, *args, **kwargs)
        note(state)

    return make


@define(eq=False)
class Coverage:
    """How often each row was taken.

    Invariant: ``rows[machine]`` has every row of the table, in its order, from ledgers that are gone or were added by `settle`.
    """

    own: Mapping[str, type[Lifecycle]] = field(factory=dict)
    """One's own lifecycles that are counted, by the name of their table."""
    rows: dict[str, Counter[str]] = field(init=False)
    ledgers: int = 0
    _columns: list[Column] = field(factory=list, init=False)
    _made_column: Callable[..., None] | None = field(default=None, init=False)
    _open: list[weakref.finalize[..., LedgerData]] = field(factory=list, init=False)
    _made: Callable[..., None] | None = field(default=None, init=False)

    @rows.default
    def _nothing(self) -> dict[str, Counter[str]]:
        return {name: Counter({str(row): 0 for row in table.rows}) for name, table in self.tables.items()}

    @property
    def tables(self) -> dict[str, Table]:
        """The tables that are counted."""
        return {**MACHINES, **{name: each.table for name, each in self.own.items()}}

    # --- ledgers of this process --------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Note every ledger that is made from now on."""
        self._made = LedgerData.__init__
        LedgerData.__init__ = _noted(LedgerData.__init__, self.note)  # type: ignore[assignment, method-assign]

        if self.own:
            self._made_column = Column.__init__
            Column.__init__ = _noted(Column.__init__, self.note_column)  # type: ignore[assignment, method-assign]
        for lifecycle in self.own.values():
            lifecycle._hooks = Hooks({lifecycle.table.name: lifecycle.table})
            lifecycle._hooks.on(hook=self._hear)

    def note_column(self, column: Column) -> None:
        """Include this column in the counts, if it is one of one's own lifecycles."""
        if column.table in self.tables.values():
            self._columns.append(column)

    def _hear(self, told: Transition) -> None:
        """A single machine has taken a step."""
        self.rows[told.machine].update(str(told.table.row(row)) for _, row in told.steps())

    def stop(self) -> None:
        """No ledger that is made from now on counts."""
        for lifecycle in self.own.values():
            lifecycle._hooks = None
        if self._made_column is not None:
            Column.__init__ = self._made_column  # type: ignore[method-assign]
            self._made_column = None
        if self._made is not None:
            LedgerData.__init__ = self._made  # type: ignore[method-assign]
            self._made = None

    def note(self, state: LedgerData) -> None:
        """Include this ledger in the counts."""
        self.ledgers += 1
        core = state.core
        taken = (core.blocks.taken, core.slots.taken, core.jobs.taken, core.requests.taken)
        if not self.ledgers % _OFTEN:
            self._open = [each for each in self._open if each.alive]
        self._open.append(weakref.finalize(state, self._add, taken))

    def count(self) -> None:
        """Count what the ledgers that still exist have done; each is counted once."""
        for each in self._open:
            each()
        self._open.clear()
        for column in self._columns:
            self.rows[column.table.name].update({str(row): times for row, times in column.row_counts() if times})
        self._columns.clear()

    def _add(self, taken: tuple[Ints, ...]) -> None:
        for (name, table), times in zip(MACHINES.items(), taken, strict=True):
            self.rows[name].update({str(row): times[row.index] for row in table.rows if times[row.index]})

    def _counted(self) -> Iterator[tuple[str, Counter[str]]]:
        """The rows of each table, without the four of ledgers where a run has none and is about one's own lifecycles."""
        for name, rows in self.rows.items():
            if self.ledgers or not self.own or name in self.own:
                yield name, rows

    # --- results ------------------------------------------------------------------------------------------------------------

    def states(self, machine: str) -> dict[str, int]:
        """How often each state was entered. Where everything begins needs no row."""
        table = self.tables[machine]
        found = dict.fromkeys((each.name for each in table.states), 0)
        begun = (self.rows[machine][str(row)] for row in table.rows if row.source is table.initial)
        found[table.initial.name] = self.ledgers if machine in MACHINES else int(any(begun))
        for row in table.rows:
            found[row.target.name] += self.rows[machine][str(row)]
        return found

    def never(self) -> list[str]:
        """Rows that were never taken, with their machine."""
        return [f"{name}: {row}" for name, rows in self._counted() for row, times in rows.items() if not times]

    def record(self) -> dict[str, object]:
        """For machines, and for another process."""
        return {
            "blocklife": "coverage",
            "ledgers": self.ledgers,
            "machines": {name: {"states": self.states(name), "rows": dict(rows)} for name, rows in self._counted()},
        }

    def merge(self, record: Mapping[str, object]) -> None:
        """Add what another process has covered."""
        ledgers, machines = record["ledgers"], record["machines"]
        if not isinstance(ledgers, int) or not isinstance(machines, Mapping):
            raise TypeError(record)
        self.ledgers += ledgers
        for name, found in machines.items():
            self.rows[name].update(found["rows"])

    def lines(self) -> Iterator[str]:
        """The table for people."""
        width = max(8, *(len(name) for name, _ in self._counted()))
        yield f"{'':{width}}  {'states':>8}  {'rows':>8}"
        for name, rows in self._counted():
            states = self.states(name)
            entered = f"{sum(map(bool, states.values()))}/{len(states)}"
            taken = f"{sum(map(bool, rows.values()))}/{len(rows)}"
            missing = [state for state, times in states.items() if not times]
            yield f"{name:{width}}  {entered:>8}  {taken:>8}" + (f"  never: {', '.join(missing)}" if missing else "")
