"""Bugs that are planted in vLLM 0.33.0, one at a time and for one run each, to see whether the watch names them.

What a bug is, and the rules of the rooms, are in `tests.behind.planted`.
"""

from __future__ import annotations

from tests.behind.planted import Bed, Planted, planted_in

SETS = {"own": ("pool", "hashes", "offloading", "simple", "workers", "tiering"), "outside": ("outside",)}
"""The set with which the watch has grown, and one that was planned from vLLM's code alone; each has its rooms."""


MADE_FOR = "0.33.0"
STEPS = 300
SHOWN = (
    ("worker_does_not_wait", "full", 0, "I1"),
    ("store_launched_twice", "full-async", 1, "I3"),
    ("block_handed_out_twice", "hybrid", 0, "I4"),
    ("sleeps_with_stores_out", "full", 1, "I5"),
    ("hit_of_another_block", "simple", 0, "I6"),
    ("load_is_too_short", "window", 0, "I7"),
    ("store_of_neighbours", "full", 0, "I8"),
    ("store_reported_twice", "full-async", 0, "I9"),
    ("simple_last_store_forgotten", "simple-hybrid", 0, "I12"),
    ("simple_stored_while_it_is_stored", "simple", 0, "I14"),
    ("store_counts_from_wrong_block", "chunks", 0, "I15"),
    ("hit_stays_in_the_queue", "full", 0, "I4"),
    ("named_a_block_early", "hybrid", 0, "I6"),
    ("key_of_another_block", "full", 0, "I8"),
    ("salt_is_not_hashed", "differs", 0, "I8"),
    ("adapter_is_not_hashed", "differs", 0, "I8"),
    ("image_is_not_hashed", "differs", 0, "I8"),
    ("last_token_is_not_hashed", "differs", 1, "I8"),
    ("lookup_promises_one_more", "window", 0, "I6"),
    ("miss_is_a_hit", "full", 0, "I6"),
    ("pending_is_a_hit", "full-async", 1, "I6"),
    ("simple_lookup_promises_one_more", "simple", 0, "I6"),
    ("asynchronous_load_is_not_waited_for", "window", 0, "I6"),
    ("slot_of_a_promotion_handed_out", "below", 0, "I1"),
    ("reset_without_a_drain", "below", 3, "I1"),
    ("cascade_never_let_go_of", "below", 0, "I4"),
    ("promotions_forgotten", "below", 0, "I5"),
    ("promotion_published_at_once", "below", 0, "I6"),
    ("failed_promotion_published", "below-faults", 0, "I6"),
    ("cascade_without_a_hold", "below", 0, "I7"),
    ("promotion_into_its_neighbours", "below", 0, "I8"),
    ("tier_report_comes_twice", "below", 0, "I9"),
)
"""A bug, a world, and a seed in which this rule falls first."""
UNSEEN = (("late_report_after_reset", "resets", 3, None), ("files_of_other_keys", "below", 0, None))
"""Bugs that nobody sees, with a world and a seed in which they do harm."""


def sets() -> dict[str, dict[str, Planted[Bed]]]:
    """Every bug by its name, set by set and room by room."""
    return {name: planted_in(__name__, rooms) for name, rooms in SETS.items()}


def all_planted() -> dict[str, Planted[Bed]]:
    """Every bug by its name."""
    return {name: bug for bugs in sets().values() for name, bug in bugs.items()}
