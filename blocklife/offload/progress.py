"""How far every request is, as columns: who crosses a boundary in a step is found for all of them at once.

Rules of this file:

* It counts tokens and blocks; it holds no block and calls nobody.
* A row is the ledger's own row of the request, so that nothing is looked up twice.

Theory. Tokens of a request are *computed* when a plan that scheduled them has settled, *in flight* while such a plan is out,
and *wanted* while the plan is being made. What is freed looks at computed tokens only: those in flight can still be taken back.
What is stored may look further, up to the tokens that are known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blocklife.offload.groups import Geometry, Mamba, SlidingWindow

Rows = NDArray[np.int64]


class ProgressTable:
    """Columns of all requests.

    Invariant: a row without a request is all zero. ``placed[g]`` counts the entries of the request's table in group g, nulls
    included; entries before ``first[g]`` are null, those before ``sealed[g]`` are final or null; chunks before ``offered[g]``
    have had their turn. ``wanted`` is zero in every row whose ``step`` is not the step that is being made.
    """

    def __init__(self, size: int, geometry: Geometry) -> None:
        groups = len(geometry.groups)
        self.running = np.zeros(size, dtype=np.bool_)
        self.serial, self.prompt, self.known, self.computed, self.in_flight, self.wanted, self.step = np.zeros(
            (7, size), dtype=np.int64
        )
        self.placed, self.first, self.sealed, self.offered = np.zeros((4, groups, size), dtype=np.int64)
        self._block_tokens = geometry.block_tokens
        self._windows = tuple(group.window_tokens if isinstance(group, SlidingWindow) else None for group in geometry.groups)
        self._mamba = tuple(isinstance(group, Mamba) for group in geometry.groups)
        self._serial = 0

    def enter(self, row: int, prompt: int) -> None:
        """A request takes a row."""
        self.clear(row)
        self.prompt[row] = prompt
        self.known[row] = prompt

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

    def ends(self, rows: Rows) -> Rows:
        """The token at which each request stands after the step that is being made."""
        found: Rows = self.computed[rows] + self.in_flight[rows] + self.wanted[rows]
        return found

    def missing(self, group: int, rows: Rows, ends: Rows) -> Rows:
        """How many entries the tables lack to hold the tokens before *ends*."""
        tokens = self._block_tokens[group]
        found: Rows = np.maximum((ends + tokens - 1) // tokens - self.placed[group, rows], 0)
        return found

    def first_needed(self, group: int, rows: Rows) -> Rows:
        """The first block that a request reads from its settled tokens on: all before it have left the window."""
        tokens, window = self._block_tokens[group], self._windows[group]
        computed = self.computed[rows]
        found: Rows
        if self._mamba[group]:
            found = np.maximum(computed - 1, 0) // tokens
        elif window is not None:
            found = np.maximum(computed - window + 1, 0) // tokens
        else:
            found = np.zeros(len(rows), dtype=np.int64)
        return found
