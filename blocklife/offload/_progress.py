"""How far every request is, as columns: who crosses a boundary in a step is found for all of them at once.

Rules of this file:

* It counts tokens and blocks; it holds no block and calls nobody.
* A row is the ledger's own row of the request, so that nothing is looked up twice.

Theory. Tokens of a request are *computed* when a plan that scheduled them has settled, *in flight* while such a plan is out,
and *wanted* while the plan is being made. What is freed looks at computed tokens only: those in flight can still be taken back.
What is stored may look further, up to the tokens that are known.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from blocklife.offload._groups import Geometry, Group, Mamba, SlidingWindow
from blocklife.offload.records import Policies

Rows = NDArray[np.int64]

NEVER = 1 << 40
"""More tokens than a request has."""


class ProgressTable:
    """Columns of all requests.

    Invariant: a row without a request is all zero. ``placed[g]`` counts the entries of the request's table in group g, nulls
    included; entries before ``first[g]`` are null, those before ``sealed[g]`` are final or null; chunks before ``offered[g]``
    have had their turn. ``wanted`` is zero in every row whose ``step`` is not the step that is being made. ``most_stored`` and
    ``most_loaded`` are how many tokens of a request may be stored and loaded; these two say something of every row.
    """

    def __init__(self, size: int, geometry: Geometry, policies: Policies) -> None:
        groups = len(geometry.groups)
        self.running = np.zeros(size, dtype=np.bool_)
        self.serial, self.prompt, self.known, self.computed, self.in_flight, self.wanted, self.step = np.zeros(
            (7, size), dtype=np.int64
        )
        self.placed, self.first, self.sealed, self.offered = np.zeros((4, groups, size), dtype=np.int64)
        self._block_tokens = _by_group(geometry.block_tokens)
        self._tokens_behind = _by_group(map(_tokens_behind, geometry.groups))
        # a state fills no block with its tokens: it is handed off
        attends = [not isinstance(group, Mamba) for group in geometry.groups]
        self._tokens_filled = _by_group(np.where(attends, geometry.block_tokens, NEVER))
        self._chunk_filled = _by_group(np.where(attends, geometry.chunk_tokens, NEVER))
        self._serial = 0
        self._prompt_only = policies.prompt_only
        self._max_stored = NEVER if policies.max_store_tokens is None else min(policies.max_store_tokens, NEVER)
        self._max_loaded = NEVER if policies.max_load_tokens is None else min(policies.max_load_tokens, NEVER)
        self.most_stored = np.full(size, self._max_stored, dtype=np.int64)
        self.most_loaded = np.full(size, self._max_loaded, dtype=np.int64)

    def enter(self, row: int, prompt: int) -> None:
        """A request takes a row."""
        self.clear(row)
        self.prompt[row] = prompt
        self.known[row] = prompt
        self.cap(row, None, None)

    def cap(self, row: int, stored: int | None, loaded: int | None) -> None:
        """So many tokens of the request are stored, and loaded, at most; None: as many as the policies say."""
        most = min(self._max_stored, int(self.prompt[row])) if self._prompt_only else self._max_stored
        self.most_stored[row] = most if stored is None else min(stored, most)
        self.most_loaded[row] = self._max_loaded if loaded is None else min(loaded, self._max_loaded)

    def clear(self, row: int) -> None:
        """The request holds nothing any more; plans that are out no longer speak of it."""
        self._serial += 1
        self.serial[row] = self._serial
        self.running[row] = False
        for column in (self.computed, self.in_flight, self.wanted):
            column[row] = 0
        for table in (self.placed, self.first, self.sealed, self.offered):
            table[:, row] = 0

    def leave(self, row: int) -> None:
        """A request gives its row back."""
        self.clear(row)
        self.prompt[row] = self.known[row] = 0
        self.most_stored[row], self.most_loaded[row] = self._max_stored, self._max_loaded

    def ends(self, rows: Rows) -> Rows:
        """The token at which each request stands after the step that is being made."""
        found: Rows = self.computed[rows] + self.in_flight[rows] + self.wanted[rows]
        return found

    def missing(self, rows: Rows, ends: Rows) -> Rows:
        """How many entries the tables lack to hold the tokens before *ends*; ``(groups, rows)``."""
        found: Rows = np.maximum((ends + self._block_tokens - 1) // self._block_tokens - self.placed[:, rows], 0)
        return found

    def first_needed(self, rows: Rows) -> Rows:
        """The first block that each request reads from its settled tokens on; all before it have left the window.

        ``(groups, rows)``; in full attention it is always the first.
        """
        found: Rows = np.maximum(self.computed[rows] - self._tokens_behind, 0) // self._block_tokens
        return found

    def filled_blocks(self, tokens: Rows) -> Rows:
        """How many blocks so many tokens of each request fill, ``(groups, rows)``; none of a group of states."""
        found: Rows = tokens // self._tokens_filled
        return found

    def filled_chunks(self, tokens: Rows) -> Rows:
        """The same in chunks."""
        found: Rows = tokens // self._chunk_filled
        return found


def _by_group(numbers: Iterable[int]) -> Rows:
    """One number for each group, to be held against a row for each request."""
    return np.array(list(numbers), dtype=np.int64)[:, np.newaxis]


def _tokens_behind(group: Group) -> int:
    """How many tokens before the next one a request still reads."""
    if isinstance(group, SlidingWindow):
        return group.window_tokens - 1
    return 1 if isinstance(group, Mamba) else NEVER
