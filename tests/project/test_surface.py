"""How much an engine has to know: the members of the two objects that it calls."""

from __future__ import annotations

from blocklife.ledger import Ledger, Limits
from blocklife.offload import Geometry, HostTier, OffloadScheduler

LEDGER_MOST = 50
SCHEDULER_MOST = 36


def members(thing: object) -> list[str]:
    return [name for name in dir(thing) if name[0] != "_"]


def test_ledger_and_scheduler_have_few_members() -> None:
    """Verbs and settings; what is asked is asked of views, and what serves this package alone is elsewhere."""
    ledger = Ledger(Limits(num_blocks=2, num_slots=1))
    scheduler = OffloadScheduler(ledger, HostTier(ledger), Geometry.parse("full:4"))

    for thing, most, name in ((ledger, LEDGER_MOST, "LEDGER_MOST"), (scheduler, SCHEDULER_MOST, "SCHEDULER_MOST")):
        assert len(members(thing)) <= most, (
            f"{type(thing).__name__} has {len(members(thing))} members, and {name} is {most}: make what only asks a method "
            f"of a view, or raise {name} in tests/project/test_surface.py for a verb that nothing else can do"
        )
