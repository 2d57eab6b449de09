"""The verbs that this package's own scheduler calls: of many requests at once, known by their rows of progress.

Rules of this file:

* What a scheduler gives was checked where it came in, and is of the right types; the kernel checks that it is legal.
* As any verb: all or none, and hooks are told when the outermost call has made its last write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blocklife.core import _steps as steps
from blocklife.core._progress import Span, TokenProgress
from blocklife.core._steps import StoreTurn
from blocklife.errors import BlocklifeError
from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK
from blocklife.ledger._journal import verb
from blocklife.ledger._state import LedgerData


class RowVerbs:
    """Changes that one ledger makes for its scheduler."""

    def __init__(self, data: LedgerData) -> None:
        self._core = data.core
        self._refusals = data.refusals
        self.calls = data.journal

    def home(self, name: str) -> tuple[int, int]:
        """The row of a request in the ledger, and which of those that had it it is (`Requests.came`)."""
        row = self._core.requests.by_name[name]
        return row, self._core.requests.came[row]

    def name_gone(self, of_gone: Callable[[int], BlocklifeError]) -> None:
        """What to say of a request, by its row of progress, that was ended beside its scheduler."""
        self._refusals.of_gone = of_gone

    @verb
    def leave(self, progress: TokenProgress, rows: Sequence[int]) -> None:
        """Release the blocks that have left the windows of requests. Edges: as `Ledger.release`."""
        steps.leave(self._core, progress, rows)

    @verb
    def leave_spans(self, progress: TokenProgress, spans: Sequence[Span]) -> None:
        """Release these blocks, which have left the windows of their requests. Edges: as `Ledger.release`."""
        steps.leave_spans(self._core, progress, spans)

    @verb
    def place(
        self,
        progress: TokenProgress,
        rows: Sequence[int],
        groups: Sequence[int],
        taken: Sequence[Sequence[int]],
        fresh: Sequence[Sequence[int]],
    ) -> None:
        """The engine's allocator has extended tables: by hits, then by blocks that it has handed out. As `observe_tables`."""
        steps.place(self._core, progress, rows, groups, taken, fresh)

    @verb
    def promise(
        self, progress: TokenProgress, spans: Sequence[Span], keys: Sequence[Sequence[bytes]], turn: StoreTurn | None
    ) -> list[int]:
        """Seal what a step will fill, as far as it can be sealed now (`_steps.promise`). Edges: as `Ledger.seal`."""
        return steps.promise(self._core, progress, spans, keys, turn)

    def slots_behind(self, progress: TokenProgress, group: int, row: int, start: int, stop: int, size: int) -> list[int]:
        """The slots with the content of chunks of a request (`_steps.slots_behind`)."""
        return steps.slots_behind(self._core, progress, group, row, start, stop, size)

    def offer_final(self, progress: TokenProgress, spans: Sequence[Span], turn: StoreTurn) -> None:
        """Chunks of one block that requests have filled have their turn; no place takes a step."""
        steps.offer_final(self._core, progress, spans, turn)

    def names_left(self, progress: TokenProgress, turn: StoreTurn) -> list[tuple[int, bytes]]:
        """Take out of a turn what need not, or cannot, be stored; returns group and key of each block that is left."""
        return steps.names_of(self._core, turn) if steps.leave_out(self._core, progress, turn) else []

    def contents(self, turn: StoreTurn) -> list[tuple[int, int, int, bytes]]:
        """Row of the request, group, life and key of each block of a turn whose life is not over."""
        core = self._core
        found: list[tuple[int, int, int, bytes]] = []
        for group, (lives, rows) in enumerate(zip(turn.lives, turn.rows, strict=True)):
            for life, row in zip(lives, rows, strict=True):
                if core.blocks.epoch[life & ID_MASK] == life >> EPOCH_SHIFT:
                    found.append((row, group, life, core.contents.key[core.blocks.key[life & ID_MASK]]))
        return found

    @verb
    def plan_turn(self, progress: TokenProgress, turn: StoreTurn, slots: Sequence[int], most: int) -> None:
        """Store a turn from which nothing is to be left out (`_steps.plan_turn`). Edges: as `Ledger.plan_stores`."""
        steps.plan_turn(self._core, progress, turn, slots, most)
