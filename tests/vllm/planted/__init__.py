"""Bugs that are planted in vLLM 0.33.0, one at a time and for one run each, to see whether the watch names them.

What a bug is, and the rules of the rooms, are in `tests.behind.planted`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.behind.planted import Bed, Planted, planted_in

SETS = {"own": ("pool", "hashes", "offloading", "simple", "workers", "tiering"), "outside": ("outside",)}
"""The set with which the watch has grown, and one that was planned from vLLM's code alone; each has its rooms."""
ROOMS = tuple(room for rooms in SETS.values() for room in rooms)


def all_planted(rooms: Iterable[str] = ROOMS) -> dict[str, Planted[Bed]]:
    """Every bug of these rooms by its name, room by room."""
    return planted_in(__name__, rooms)
