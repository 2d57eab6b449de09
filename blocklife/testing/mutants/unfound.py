"""The mutants that change nothing anybody could notice, each with the reason: all others are found by a world or by a test."""

from __future__ import annotations

from collections.abc import Mapping

UNFOUND: Mapping[str, str] = {
    "SchedulerCore._forget without self._handed = {}": (
        "A state that was handed off is named with the stay of its request, and all stays end in the same call: neither the plan "
        "nor a second hand-off ever asks for what is left."
    ),
    "SchedulerCore._forget without self._given_up += 1": (
        "It makes answers to deferred lookups old, and the same call forgets the answers themselves."
    ),
    "SchedulerCore._forget without .pop in self._waiting_loads.pop(name, None)": (
        "The next statement forgets what the request waits for, this load included; it asks for the names of its content in vain."
    ),
    "StoreLine._judge without chunk.lives[position] = NULL #2": (
        "No life comes by that is not over: whoever enters FREED, STALE or QUARANTINED has ended its life, and that was asked before."
    ),
}
"""The reason, by mutant."""
