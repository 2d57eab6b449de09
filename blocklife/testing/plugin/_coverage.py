"""What the ledgers of a test run have covered: states and rows of the four tables, over all of them.

A ledger counts its rows itself. `Coverage.listen` sees to it that no ledger made from then on is missed: what it has counted is
added when it goes, or when the run ends.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Concatenate, ParamSpec

from attrs import define, field

from blocklife.core._columns import Ints
from blocklife.ledger._state import LedgerData
from blocklife.states import MACHINES

P = ParamSpec("P")
_OFTEN = 256
"""How many ledgers are noted before the dead ones are dropped."""


def _noted(
    made: Callable[Concatenate[LedgerData, P], None], note: Callable[[LedgerData], None]
) -> Callable[Concatenate[LedgerData, P], None]:
    """The same, and then the new ledger is noted."""

    @functools.wraps(made)
    def make(state: LedgerData, /, *args: P.args, **kwargs: P.kwargs) -> None:
        made(state, *args, **kwargs)
        note(state)

    return make


@define(eq=False)
class Coverage:
    """How often each row was taken.

    Invariant: ``rows[machine]`` has every row of the table, in its order, from ledgers that are gone or were added by `settle`.
    """

    rows: dict[str, Counter[str]] = field(init=False)
    ledgers: int = 0
    _open: list[weakref.finalize[..., LedgerData]] = field(factory=list, init=False)
    _made: Callable[..., None] | None = field(default=None, init=False)

    @rows.default
    def _nothing(self) -> dict[str, Counter[str]]:
        return {name: Counter({str(row): 0 for row in table.rows}) for name, table in MACHINES.items()}

    # --- ledgers of this process --------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Note every ledger that is made from now on."""
        self._made = LedgerData.__init__
        LedgerData.__init__ = _noted(LedgerData.__init__, self.note)  # type: ignore[assignment, method-assign]

    def stop(self) -> None:
        """No ledger that is made from now on counts."""
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

    def _add(self, taken: tuple[Ints, ...]) -> None:
        for (name, table), times in zip(MACHINES.items(), taken, strict=True):
            self.rows[name].update({str(row): times[row.index] for row in table.rows if times[row.index]})

    # --- results ------------------------------------------------------------------------------------------------------------

    def states(self, machine: str) -> dict[str, int]:
        """How often each state was entered. Where everything begins needs no row."""
        table = MACHINES[machine]
        found = dict.fromkeys((each.name for each in table.states), 0)
        found[table.initial.name] = self.ledgers
        for row in table.rows:
            found[row.target.name] += self.rows[machine][str(row)]
        return found

    def never(self) -> list[str]:
        """Rows that were never taken, with their machine."""
        return [f"{name}: {row}" for name, rows in self.rows.items() for row, times in rows.items() if not times]

    def record(self) -> dict[str, object]:
        """For machines, and for another process."""
        return {
            "blocklife": "coverage",
            "ledgers": self.ledgers,
            "machines": {name: {"states": self.states(name), "rows": dict(rows)} for name, rows in self.rows.items()},
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
        yield f"{'':8}  {'states':>8}  {'rows':>8}"
        for name, rows in self.rows.items():
            states = self.states(name)
            entered = f"{sum(map(bool, states.values()))}/{len(states)}"
            taken = f"{sum(map(bool, rows.values()))}/{len(rows)}"
            missing = [state for state, times in states.items() if not times]
            yield f"{name:8}  {entered:>8}  {taken:>8}" + (f"  never: {', '.join(missing)}" if missing else "")
