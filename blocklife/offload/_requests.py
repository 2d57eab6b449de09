"""What an offload scheduler tells of its requests. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from blocklife.errors import MisuseError
from blocklife.ledger import _edge as edge
from blocklife.lifecycle import Row
from blocklife.offload._state import SchedulerState
from blocklife.offload.records import Keys, Progress


class OffloadRequests:
    """The requests that were added to a scheduler and have not ended, by name, in the order in which they were added."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    def __contains__(self, name: object) -> bool:
        return name in self._state.requests

    def __len__(self) -> int:
        return len(self._state.requests)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.requests)

    def progress(self, name: str) -> Progress:
        """The progress of a request, in tokens."""
        row, table = self._state.tracked(name).row, self._state.progress
        return Progress(table.known_of(row), table.computed_of(row), table.in_flight_of(row))

    def keys(self, name: str) -> Keys:
        """The key function of a request, as it was added with it."""
        keys: Keys = self._state.tracked(name).keys
        return keys

    def running(self) -> list[str]:
        """The requests that can be grown, in the order in which they were added."""
        return [self._state.names[row] for row in sorted(self._state.progress.active, key=self._state.added.__getitem__)]

    def is_running(self, name: str) -> bool:
        """Whether a request is or could be in the batch: it holds its blocks, and none of them is loading."""
        tracked = self._state.requests.get(edge.text(name, "name"))
        return tracked is not None and bool(self._state.progress.running[tracked.row])

    @property
    def num_running(self) -> int:
        """The number of requests that are or could be in the batch."""
        return len(self._state.progress.active)

    def sealed_blocks(self, name: str, group: int) -> int:
        """The number of leading blocks of a request's table that are final in one group, null blocks included."""
        row, table, num_groups = self._state.tracked(name).row, self._state.progress, len(self._state.geometry.groups)
        if not 0 <= edge.whole(group, "group") < num_groups:
            raise MisuseError(f"group {group}: groups are 0 to {num_groups - 1}")
        return table.sealed[group * table.size + row]

    def row_counts(self) -> Mapping[str, Mapping[Row, int]]:
        """How often each row of the scheduler's own lifecycles was taken (`scheduler_states.SCHEDULER_MACHINES`)."""
        return self._state.stays.row_counts()
