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

SETS = {"taken": (), "planned": ("tree", "core", "memory", "copies", "storage", "states")}
"""What was taken out of one rank's objects, and what was planned from the code alone, with its rooms."""
MADE_FOR = "0.5.23"
STEPS = 150
SHOWN = (
    ("lock_stays_behind", "pages", 0, None),
    ("unlocked_twice", "pages", 0, None),
    ("host_page_stays", "back-tight", 0, None),
    ("write_back_not_awaited", "back", 0, None),
    ("row_keeps_freed_duplicate", "pages", 0, None),
    ("store_is_noted_and_not_queued", "pages", 0, None),
    ("split_copies_the_host_pages", "core", 0, None),
    ("page_filled_in_part_stays", "pages", 0, None),
    ("host_pages_sorted_alone", "back-tight", 0, None),
    ("store_is_cut_short", "pages", 1, None),
    ("load_into_the_page_behind", "back-tight", 0, None),
    ("flush_forgets_the_host", "flushes", 0, None),
    ("store_fence_on_another_stream", "full-overlap", 0, None),
    ("rank_stores_less", "ranks", 0, None),
    ("host_unlocked_twice", "back-tight", 0, None),
    ("layer_waits_for_another_load", "back-tight", 0, None),
    ("tokens_of_a_stored_page_change_places", "back-tight", 0, None),
    ("rest_of_a_short_read_stays", "storage", 0, None),
    ("cached_state_is_not_copied", "states", 2, None),
    ("request_writes_on_a_cached_state", "states-back", 2, None),
    ("step_does_not_wait_for_its_state", "states-pages", 2, None),
    ("state_freed_although_cached", "states-overlap", 2, None),
    ("state_unlocked_with_the_queue", "states", 2, None),
    ("host_state_stays", "states-back", 2, None),
    ("second_state_of_a_text_stays", "states-overlap", 0, None),
    ("states_do_not_take_turns", "states-overlap", 0, None),
    ("state_cached_under_a_shorter_text", "states-pages", 0, None),
)
"""A bug, a world, and a seed in which it does harm; any rule may fall first."""
UNSEEN = (("load_leaves_out_a_layer", "pages", 0, None),)
"""Bugs that are not seen, with a world and a seed in which they do harm."""


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
