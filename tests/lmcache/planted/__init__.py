"""Bugs that are planted in LMCache 0.5.6, one at a time and for one run each, to see whether the watch names them.

What a bug is, and the rules of the rooms, are in `tests.behind.planted`. All were planned from LMCache's code alone.
"""

from __future__ import annotations

from tests.behind.planted import Bed, Planted, planted_in

__all__ = ["SETS", "Bed", "all_planted", "sets"]

SETS = {"planned": ("l1", "controllers", "transfers")}
"""What was planned from the code alone, with its rooms."""
MADE_FOR = "0.5.6"
LEAST = 24
"""So many bugs there are, at least."""
STEPS = 300


def sets() -> dict[str, dict[str, Planted[Bed]]]:
    """Every bug by its name, set by set."""
    return {name: planted_in(__name__, rooms) for name, rooms in SETS.items()}


def all_planted() -> dict[str, Planted[Bed]]:
    """Every bug by its name."""
    return {name: bug for bugs in sets().values() for name, bug in bugs.items()}
