"""How often the real code took each row of each table, summed over all processes that explore one world."""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.ledger import Ledger
from blocklife.ledger.views import View
from blocklife.lifecycle import Row, Table
from blocklife.offload import OffloadScheduler
from blocklife.scheduler_states import SCHEDULER_MACHINES
from blocklife.states import MACHINES


class RowCounts:
    """The rows that one ledger, and its scheduler if it has one, have taken, plus those reported by other processes."""

    def __init__(self, ledger: Ledger, scheduler: OffloadScheduler | None = None) -> None:
        self._views: tuple[View, ...] = (ledger.blocks, ledger.slots, ledger.jobs, ledger.requests)
        self._scheduler = scheduler
        self._tables: dict[str, Table] = {**MACHINES, **(SCHEDULER_MACHINES if scheduler is not None else {})}
        self._elsewhere = [0] * sum(len(table.rows) for table in self._tables.values())

    def taken(self) -> list[int]:
        """The counts of all rows, machine by machine, in the order of the tables."""
        here = [times for view in self._views for _, times in view.row_counts()]
        if self._scheduler is not None:
            here += [times for rows in self._scheduler.requests.row_counts().values() for times in rows.values()]
        return [own + others for own, others in zip(here, self._elsewhere, strict=True)]

    def add(self, taken: Sequence[int]) -> None:
        """Add the counts of another process."""
        self._elsewhere = [here + there for here, there in zip(self._elsewhere, taken, strict=True)]

    def by_machine(self) -> dict[str, dict[Row, int]]:
        """The counts by machine and row."""
        taken = iter(self.taken())
        return {name: dict(zip(table.rows, taken, strict=False)) for name, table in self._tables.items()}
