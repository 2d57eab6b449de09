"""Bugs that are planted in vLLM 0.33.0, one at a time and for one run each, to see whether the watch names them.

What a bug is, and the rules of the rooms, are in `tests.behind.planted`.
"""

from __future__ import annotations

from tests.behind.planted import Bed, Planted, planted_in

SETS = {"own": ("pool", "hashes", "offloading", "simple", "workers", "tiering"), "outside": ("outside",)}
"""The set with which the watch has grown, and one that was planned from vLLM's code alone; each has its rooms."""


MADE_FOR = "0.33.0"
STEPS = 300


def sets() -> dict[str, dict[str, Planted[Bed]]]:
    """Every bug by its name, set by set and room by room."""
    return {name: planted_in(__name__, rooms) for name, rooms in SETS.items()}


def all_planted() -> dict[str, Planted[Bed]]:
    """Every bug by its name."""
    return {name: bug for bugs in sets().values() for name, bug in bugs.items()}
