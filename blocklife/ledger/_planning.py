"""Jobs to be planned, from records and handles to the columns that the kernel drafts them from."""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.core import _drafts as drafts
from blocklife.core._tables import LOAD, STORE
from blocklife.errors import MisuseError
from blocklife.ledger._checks import Checks
from blocklife.ledger._state import LedgerData
from blocklife.ledger.jobs import Allocated, GroupTransfer, JobColumns, Jobs, Planned, Store, gather


class Planning:
    """Plans the jobs of one ledger."""

    def __init__(self, data: LedgerData, check: Checks) -> None:
        self._data, self._core, self._check = data, data.core, check

    def columns(self, direction: int, columns: JobColumns) -> list[int]:
        """Make jobs of columns, all or none; returns their rows."""
        self._check.host_places(columns.places, columns.slots)
        intern = self._core.requests.intern
        owners = [
            [intern(name) for name in dict.fromkeys((owner, *sharers)) if name is not None]
            for owner, sharers in zip(columns.owners, columns.sharers, strict=True)
        ]
        rows = drafts.plan_jobs(
            self._core, direction, columns.cuts, columns.lives, columns.groups, columns.places, columns.names,
            columns.slot_cuts, columns.slots, columns.slot_groups, columns.keys, owners,
        )  # fmt: skip
        if columns.space:
            for row in rows:
                self._core.jobs.space[self._core.jobs.number[row]] = columns.space
        return rows

    def named(self, rows: Sequence[int]) -> Jobs[Planned]:
        """A handle on the jobs in these rows."""
        return Jobs(tuple(map(self._data.id_of, rows)))

    def stores(self, stores: Sequence[Store]) -> Jobs[Planned]:
        """Stores, one job each."""
        return self.named(self.columns(STORE, gather(stores, self._core.num_groups))) if stores else Jobs(())

    def load(self, row: int, transfers: Sequence[GroupTransfer[Allocated]], within: bool) -> Jobs[Planned]:
        """A load of a request; *within*: the plan that submits it waits for it."""
        name = self._core.requests.names[row]
        columns = gather([Store(name, transfers)], self._core.num_groups)
        if None in columns.names:
            raise MisuseError(f"request {name}: {len(columns.lives)} blocks to load and {len(columns.keys)} keys do not agree")
        (job,) = self.columns(LOAD, columns)
        if within:
            self.wait_within(job)
        return self.named([job])

    def wait_within(self, job: int) -> None:
        """The plan that submits a planned load waits for it."""
        self._core.to_flush[self._core.jobs.number[job]] = None
        self._core.flushes["within the step"] = self._core.flushes.get("within the step", 0) + 1

    def below(self, direction: int, slots: list[int], keys: list[bytes], groups: Sequence[int], space: bytes) -> Jobs[Planned]:
        """A demotion or promotion."""
        if not slots:
            raise MisuseError("a job with nothing to copy cannot be built")
        return self.named(self.columns(direction, JobColumns.of_slots(slots, bytes(groups), keys, space)))
