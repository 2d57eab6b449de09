"""The lifecycles of what a watch follows: a copy, and the use of a slot by tiers below the host.

Rules of this file:

* The engine decides, and the watch follows: what the engine cannot lawfully do is found by a rule of the watch first, and told;
  then the watch takes the event that brings it to where the engine is.
* The two do not know each other: which copies touch a slot is the watch's, in tables beside the states.

Theory. All copies that are followed take one life, whoever makes them: a job between device and host, a copy that an engine
queues before it launches it, a job of a tier below the host. What differs is when the watch is told. A copy that has LANDED is
not over, because something of it is still due: reports of other workers, or what the engine has to do about it. One that a
reset has abandoned may still move content, and is waited for like any other, but whatever is reported of it is lawful.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from blocklife.lifecycle import Lifecycle, Table, edge, guard
from blocklife.states import states_before


@enum.unique
class CopyState(enum.Enum):
    """Where a followed copy stands."""

    QUEUED = "it is wanted, and nothing of it moves yet"
    LAUNCHED = "it may read its source and write its target"
    LANDED = "it moves nothing any more, and something about it is still due"
    UNWANTED = "a reset has abandoned it, and it may still move content"
    OVER = "nothing of it matters any more"


@enum.unique
class SlotUse(enum.Enum):
    """What a slot of the host is used for."""

    FREE = "it holds nothing, and nothing comes"
    STORING = "a store of the device writes it"
    RESERVED = "it is kept for a promotion, and no job brings that yet"
    PROMOTING = "a job of a tier writes it"
    READABLE = "its content is published"


class CopyLife(Lifecycle[CopyState], initial=CopyState.QUEUED, finals={CopyState.OVER}):
    """The life of one followed copy."""

    @edge(CopyState.QUEUED, to=CopyState.LAUNCHED)
    def launch(self) -> None:
        """It begins, or whoever carries it out has got it."""

    @edge(CopyState.QUEUED, CopyState.LAUNCHED, to=CopyState.LANDED)
    @edge(CopyState.UNWANTED, to=CopyState.OVER)
    def land(self) -> None:
        """A report or a wait has shown that it moves nothing any more."""

    @edge(CopyState.LAUNCHED, CopyState.UNWANTED, to=CopyState.UNWANTED)
    @edge(CopyState.QUEUED, CopyState.LANDED, to=CopyState.OVER)
    def abandon(self) -> None:
        """A reset gives up what is in flight."""

    @edge(CopyState.LANDED, to=CopyState.OVER)
    def end(self) -> None:
        """All that was due is done."""


@guard
def promotes(promotes: bool) -> bool:
    """The content comes from a tier below."""
    return promotes


class UseLife(Lifecycle[SlotUse], initial=SlotUse.FREE):
    """The uses of one slot."""

    @edge(SlotUse.FREE, to=SlotUse.RESERVED, when=promotes)
    @edge(SlotUse.FREE, to=SlotUse.STORING)
    def reserve(self, promotes: bool) -> None:
        """The engine keeps it for content that comes."""

    @edge(SlotUse.RESERVED, to=SlotUse.PROMOTING)
    def bring(self) -> None:
        """A job of a tier is made, or handed over, that brings the content."""

    @edge(SlotUse.FREE, SlotUse.STORING, SlotUse.RESERVED, SlotUse.PROMOTING, to=SlotUse.READABLE)
    def publish(self) -> None:
        """The engine says that the content is there."""

    @edge(SlotUse.STORING, SlotUse.RESERVED, SlotUse.PROMOTING, SlotUse.READABLE, to=SlotUse.FREE)
    def let_go(self) -> None:
        """It is given to other content, or its own has not come."""


BEFORE_LANDING = states_before(CopyLife.table.events["land"], CopyState)
"""States in which the end of a copy is not known."""
OUT = BEFORE_LANDING - {CopyState.QUEUED}
"""States in which a copy may move content."""
WRITTEN = states_before(UseLife.table.events["publish"], SlotUse) - {SlotUse.FREE}
"""States in which content comes into a slot, and nobody may read it."""

WATCH_MACHINES: Mapping[str, Table] = {"copy": CopyLife.table, "use": UseLife.table}
"""The lifecycles by name."""
