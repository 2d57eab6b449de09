"""Bugs that are planted in SGLang 0.5.23, one at a time and for one run each, to see whether the watch names them.

What a bug is, and the rules of the rooms, are in `tests.behind.planted`. Here a bug is planted before any object of SGLang's is
watched. The rooms but *taken* were planned from SGLang's code alone. `tests.sglang.planted.taken` is older: a lock, a wait or a
fence is taken out of one rank's objects, and `tests/sglang/test_rig.py` runs them without a watch, too.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from tests.behind import planted
from tests.behind.planted import Planted, planted_in, said_of
from tests.sglang.planted.taken import FAULTS, Fault
from tests.sglang.rig import Rank

__all__ = ["FAULTS", "SETS", "Bed", "Fault", "all_planted", "sets"]

SETS = {"taken": (), "planned": ("tree", "core", "memory", "copies", "storage", "windows", "states")}
"""What was taken out of one rank's objects, and what was planned from the code alone, with its rooms."""
MADE_FOR = "0.5.23"
STEPS = 150


@define(eq=False)
class Bed(planted.Bed):
    """Where one bug is planted, for one run."""

    on_rank: list[Callable[[Rank], None]] = field(factory=list)
    """What is done to the objects of each rank ahead of its first step."""


def _taken() -> dict[str, Planted[Bed]]:
    """The faults of `taken` in the form of the others; such a fault counts as one that has fired."""

    def planting(fault: Fault) -> Callable[[Bed], None]:
        def plant(bed: Bed) -> None:
            bed.strikes()
            bed.on_rank.append(fault.plant)

        return plant

    return {
        name: Planted(name, said_of(fault.plant), (fault.world,), planting(fault), seen=True) for name, fault in FAULTS.items()
    }


def sets() -> dict[str, dict[str, Planted[Bed]]]:
    """Every bug by its name, set by set and room by room."""
    return {"taken": _taken(), "planned": planted_in(__name__, SETS["planned"])}


def all_planted() -> dict[str, Planted[Bed]]:
    """Every bug by its name."""
    return {name: bug for bugs in sets().values() for name, bug in bugs.items()}
