"""The progress of all requests, as columns: requests that cross a boundary in a step are found all at once.

Rules of this file:

* It counts tokens and blocks; it holds no block ids and calls no other part.
* A row is the ledger's own row of the request, so that nothing is looked up twice.

Theory. Tokens of a request are *computed* when a plan that scheduled them has settled, *in flight* while such a plan is out,
and *wanted* while the plan is being made. Freeing considers computed tokens only, because tokens in flight can still be
taken back. Storing may go further, up to the known tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tests.oracle.offload._groups import Geometry, Group, LocalAttention, Mamba, SlidingWindow
from tests.oracle.offload.records import Policies

Rows = NDArray[np.int64]
Span: TypeAlias = tuple[int, int, int, int]
"""A range of table entries: the group, the row of the request, the first entry and the one after the last."""

NEVER = 1 << 40
"""More tokens than a request has."""


class ProgressTable:
    """The columns of all requests.

    Invariant: a row without a request is all zero. ``placed[g]`` counts the entries of the request's table in group g, nulls
    included; entries before ``first[g]`` are null, those before ``sealed[g]`` are final or null; chunks before ``offered[g]``
    have had their turn. ``wanted`` is zero in every row that does not run, or whose ``step`` is not the one that is being made.
    ``most_stored`` and ``most_loaded`` are how many tokens of a request may be stored and loaded; these two say something of
    every row.

    Four alarms per group give the token at which a request needs attention, so that it is looked at only then: its table needs
    a block (``room_at``), a block leaves the window (``window_at``), a chunk is full (``fill_at``), a block is full
    (``final_at``). Invariant: an alarm may go off too early, never too late; `look` sets off all alarms of a request.

    In a group with layers of a drafter, the last full unit of a running request that decodes counts as not full yet: its layers
    may write there once more. A request that does not run any more has no drafts.
    """

    def __init__(self, size: int, geometry: Geometry, policies: Policies) -> None:
        groups = len(geometry.groups)
        self.running = np.zeros(size, dtype=np.bool_)
        self.serial, self.prompt, self.known, self.computed, self.in_flight, self.wanted, self.step = np.zeros(
            (7, size), dtype=np.int64
        )
        self.placed, self.first, self.sealed, self.offered = np.zeros((4, groups, size), dtype=np.int64)
        self.room_at, self.window_at, self.fill_at, self.final_at = np.zeros((4, groups, size), dtype=np.int64)
        # the same columns as memory views, for single rows, where numpy is slow
        self._running, self._prompt = self.running.view(np.uint8).data, self.prompt.data
        self._known, self._computed = self.known.data, self.computed.data
        self._in_flight, self._wanted = self.in_flight.data, self.wanted.data
        self._placed, self._first = self.placed.data, self.first.data
        self._sealed, self._offered = self.sealed.data, self.offered.data
        self._room_at, self._window_at = self.room_at.data, self.window_at.data
        self._fill_at, self._final_at = self.fill_at.data, self.final_at.data
        self._sizes, self._chunk_sizes = geometry.block_tokens, geometry.chunk_tokens
        self._block_tokens = np.array(geometry.block_tokens, dtype=np.int64)[:, np.newaxis]
        self._behind = tuple(map(_tokens_behind, geometry.groups))
        self._parts = tuple([each.part_tokens if isinstance(each, LocalAttention) else 1 for each in geometry.groups])
        self._slides = min(self._behind) < NEVER
        # tokens do not fill the block of a state: it is handed off
        self._fills = [not isinstance(each, Mamba) for each in geometry.groups]
        self._drafters = list(geometry.drafters)
        # what is asked for each block is asked without a call where tokens fill blocks and no drafter writes again
        self._plain = [fills and not drafter for fills, drafter in zip(self._fills, self._drafters, strict=True)]
        self._serial = 0
        self._prompt_only = policies.prompt_only
        self._max_stored = NEVER if policies.max_store_tokens is None else min(policies.max_store_tokens, NEVER)
        self._max_loaded = NEVER if policies.max_load_tokens is None else min(policies.max_load_tokens, NEVER)
        self.most_stored = np.full(size, self._max_stored, dtype=np.int64)
        self.most_loaded = np.full(size, self._max_loaded, dtype=np.int64)
        self._most_stored = self.most_stored.data

    def look(self, row: int) -> None:
        """The request has changed: look at it in the next step, whatever its alarms say."""
        for alarm in (self.room_at, self.window_at, self.fill_at, self.final_at):
            alarm[:, row] = 0

    def enter(self, row: int, prompt: int) -> None:
        """Set up the row of a new request."""
        self.clear(row)
        self.prompt[row] = prompt
        self.known[row] = prompt
        self.cap(row, None, None)

    def cap(self, row: int, stored: int | None, loaded: int | None) -> None:
        """Limit how many tokens of the request are stored, and loaded; None: as the policies say."""
        most = min(self._max_stored, int(self.prompt[row])) if self._prompt_only else self._max_stored
        self.most_stored[row] = most if stored is None else min(stored, most)
        self.most_loaded[row] = self._max_loaded if loaded is None else min(loaded, self._max_loaded)
        self.look(row)

    def clear(self, row: int) -> None:
        """Reset a request that holds nothing any more; outstanding plans no longer apply to it."""
        self._serial += 1
        self.serial[row] = self._serial
        self.running[row] = False
        for column in (self.computed, self.in_flight, self.wanted):
            column[row] = 0
        for table in (self.placed, self.first, self.sealed, self.offered):
            table[:, row] = 0
        self.look(row)

    def leave(self, row: int) -> None:
        """Free the row of a request."""
        self.clear(row)
        self.prompt[row] = self.known[row] = 0
        self.most_stored[row], self.most_loaded[row] = self._max_stored, self._max_loaded

    def ends(self, rows: Rows) -> Rows:
        """The token that each request reaches with the step being made."""
        found: Rows = self.computed[rows] + self.in_flight[rows] + self.wanted[rows]
        return found

    def missing(self, rows: Rows, ends: Rows) -> Rows:
        """The number of entries that the tables lack to hold the tokens before *ends*; shape ``(groups, rows)``."""
        found: Rows = np.maximum((ends + self._block_tokens - 1) // self._block_tokens - self.placed.take(rows, 1), 0)
        return found

    def first_needed(self, group: int, row: int) -> int:
        """The first block that a request still reads, given its settled tokens; all blocks before it have left the window.

        With full attention this is always the first block.
        """
        part = self._parts[group]
        return max(0, self._computed[row] - self._behind[group]) // part * part // self._sizes[group]

    def _leaves_at(self, group: int, block: int) -> int:
        """With how many settled tokens a block has left the window of its group."""
        part = self._parts[group]
        return -(-((block + 1) * self._sizes[group] + self._behind[group]) // part) * part

    # --- what there is to do (`take` is twice as fast as an index behind a colon) ---------------------------------------------

    def leaving(self, rows: Rows) -> list[Span]:
        """The blocks that have left the windows of these requests, as far as tokens are settled."""
        found: list[Span] = []
        if not self._slides:
            return found
        groups, where = (self.computed[rows] >= self.window_at.take(rows, 1)).nonzero()
        for group, row in zip(groups.tolist(), rows[where].tolist(), strict=True):
            start, stop = self._first[group, row], min(self.first_needed(group, row), self._placed[group, row])
            if stop > start:
                found.append((group, row, start, stop))
            else:
                self._window_at[group, row] = self._leaves_at(group, start)
        return found

    def left(self, spans: Sequence[Span]) -> None:
        """Note that these blocks were released."""
        for group, row, _, stop in spans:
            self._first[group, row] = stop
            self._window_at[group, row] = self._leaves_at(group, stop)

    def lacking(self, rows: Rows) -> list[Span]:
        """The entries that the tables of these requests lack for the step being made."""
        found: list[Span] = []
        groups, where = (self.ends(rows) > self.room_at.take(rows, 1)).nonzero()
        for group, row in zip(groups.tolist(), rows[where].tolist(), strict=True):
            end, tokens = self._computed[row] + self._in_flight[row] + self._wanted[row], self._sizes[group]
            start, stop = self._placed[group, row], (end + tokens - 1) // tokens
            if stop > start:
                found.append((group, row, start, stop))
            else:
                self._room_at[group, row] = start * tokens
        return found

    def extended(self, spans: Sequence[Span]) -> None:
        """Note that these entries were added."""
        for group, row, _, stop in spans:
            self._placed[group, row] = stop
            self._room_at[group, row] = stop * self._sizes[group]

    def grown(self, group: int, row: int, count: int) -> None:
        """So many entries more are there now."""
        stop = self._placed[group, row] + count
        self._placed[group, row] = stop
        self._room_at[group, row] = stop * self._sizes[group]

    def bound(self, row: int, tokens: int) -> int:
        """How many of a request's first *tokens*, which have or will have content, may be stored."""
        return min(tokens, self._known[row], self._most_stored[row])

    def filled(self, rows: Rows) -> Rows:
        """Up to which token the content of each request is there, and known, after the step that is being made."""
        found: Rows = np.minimum(self.ends(rows), self.known[rows])
        return found

    def filling(self, rows: Rows, filled: Rows | None = None) -> list[Span]:
        """The chunks of these requests that are full after the step being made, and may be stored."""
        found: list[Span] = []
        groups, where = ((self.filled(rows) if filled is None else filled) >= self.fill_at.take(rows, 1)).nonzero()
        for group, row in zip(groups.tolist(), rows[where].tolist(), strict=True):
            bound = self.bound(row, self._computed[row] + self._in_flight[row] + self._wanted[row])
            start, size = self._offered[group, row], self._chunk_sizes[group]
            stop = bound // size if self._plain[group] else self.full_units(group, row, bound, size)
            if stop > start:
                found.append((group, row, start, stop))
            else:
                self._set_fill_alarm(group, row)
        return found

    def offered_up_to(self, spans: Sequence[Span]) -> None:
        """Note that these chunks were offered."""
        for group, row, _, stop in spans:
            self._offered[group, row] = stop
            self._set_fill_alarm(group, row)

    def _set_fill_alarm(self, group: int, row: int) -> None:
        at = self._full_at(group, row, self._offered[group, row] + 1, self._chunk_sizes[group])
        self._fill_at[group, row] = at if at <= self._most_stored[row] else NEVER

    def finishing(self, rows: Rows, computed: Rows) -> list[Span]:
        """The blocks of these requests that become final when this many tokens of each are computed."""
        found: list[Span] = []
        groups, where = (computed >= self.final_at.take(rows, 1)).nonzero()
        for group, row, end in zip(groups.tolist(), rows[where].tolist(), computed[where].tolist(), strict=True):
            start, size = self._sealed[group, row], self._sizes[group]
            stop = end // size if self._plain[group] else self.full_units(group, row, end, size)
            if stop > start:
                found.append((group, row, start, stop))
            else:
                self._set_final_alarm(group, row)
        return found

    def sealed_up_to(self, spans: Sequence[Span]) -> None:
        """Note that these blocks are final."""
        for group, row, _, stop in spans:
            self._sealed[group, row] = stop
            self._set_final_alarm(group, row)

    def promised(self, spans: Sequence[Span], ends: Sequence[int], direct: bool) -> list[bool]:
        """Blocks that the step fills are final already: those of each span before its end.

        With *direct*, where what is final is stored without a line, those have had their turn that come next in the order in
        which they are stored. Returns of each span whether that is so.
        """
        found: list[bool] = []
        for (group, row, start, stop), end in zip(spans, ends, strict=True):
            size = self._sizes[group]
            at = (end + 1) * size if self._plain[group] else self._full_at(group, row, end + 1, size)
            most = self._most_stored[row]
            self._sealed[group, row], self._final_at[group, row] = end, at
            ready = direct and stop * size <= most and self._offered[group, row] == start
            if ready:  # without a line a chunk is one block
                self._offered[group, row] = end
                self._fill_at[group, row] = at if at <= most else NEVER
            found.append(ready)
        return found

    def _set_final_alarm(self, group: int, row: int) -> None:
        self._final_at[group, row] = self._full_at(group, row, self._sealed[group, row] + 1, self._sizes[group])

    def full_units(self, group: int, row: int, tokens: int, size: int) -> int:
        """How many units of *size* tokens, blocks or chunks of a group, the first *tokens* of a request fill for good."""
        if not self._fills[group]:
            return 0
        if self._drafters[group] and self._running[row] and tokens > self._prompt[row]:
            tokens -= size
        return tokens // size

    def _full_at(self, group: int, row: int, count: int, size: int) -> int:
        """With how many tokens *count* units of a running request are full for good."""
        if not self._fills[group]:
            return NEVER
        tokens = count * size
        return tokens + size if self._drafters[group] and tokens > self._prompt[row] else tokens


def _tokens_behind(group: Group) -> int:
    """The number of tokens before the next one that a request still reads."""
    if isinstance(group, SlidingWindow):
        return group.window_tokens - 1
    if isinstance(group, LocalAttention):
        return 0  # behind the beginning of its part
    return 1 if isinstance(group, Mamba) else NEVER
