"""The lifecycles of what the offload scheduler keeps of a request, beside `states.RequestLife`, which is about its blocks.

Rules of this file:

* Each lifecycle is about one question, and they do not know each other: what the last lookup came to, whether the request may
  still wait for something, and whether its end has been asked for. Any of their states can go with any of the ledger's that the
  scheduler's calls allow; those calls refuse the rest.
* The data of a state (the hit, the moment until which a request waits) is the scheduler's, in columns beside the states.

Theory. A request that waits for content on its way, or for the store below host memory, waits once: from its first deferred
lookup on, for as long as the policy says. When it has waited in vain it never waits for that again, so that no request waits
for ever; an answer or an admission lets it begin anew. A request that ends while a plan is out still writes in that plan: its
blocks are given back when the plan has settled.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from blocklife.lifecycle import Lifecycle, Table, edge, guard


@enum.unique
class Lookup(enum.Enum):
    """What the last lookup of a request came to."""

    UNASKED = "it was not looked up, or what it found is used or void"
    DEFERRED = "what it would find is on its way; it is looked up again"
    FOUND = "it has an answer, which admits it in the step in which it was given"
    LOADING = "it was admitted, and a load brings what was found"


@enum.unique
class Patience(enum.Enum):
    """Whether a request may wait for one thing."""

    RESTED = "it has not waited for it since its last answer or admission"
    WAITING = "it waits, until a moment that is set"
    SPENT = "its time is over, and it continues without"


@enum.unique
class Ending(enum.Enum):
    """Whether the end of a request was asked for."""

    OVER = "no request, or it has left"
    STAYS = "it continues"
    FINISHING = "it has finished, and a plan that is out still writes for it"
    ABORTING = "it was ended early, and a plan that is out still writes for it"


class LookupLife(Lifecycle, initial=Lookup.UNASKED):
    """The answers to the lookups of one request."""

    @edge(Lookup.UNASKED, Lookup.DEFERRED, Lookup.FOUND, to=Lookup.DEFERRED)
    def defer(self) -> None:
        """A lookup has to be made again, because content is on its way."""

    @edge(Lookup.UNASKED, Lookup.DEFERRED, Lookup.FOUND, to=Lookup.FOUND)
    def find(self) -> None:
        """A lookup is answered, if only with nothing."""

    @edge(Lookup.FOUND, to=Lookup.UNASKED)
    def run(self) -> None:
        """The request is admitted with what is on the device."""

    @edge(Lookup.FOUND, to=Lookup.LOADING)
    def load(self) -> None:
        """The request is admitted, and a load is planned."""

    @edge(Lookup.LOADING, to=Lookup.UNASKED)
    def land(self) -> None:
        """The load is DONE."""

    @edge(Lookup.DEFERRED, Lookup.FOUND, Lookup.LOADING, to=Lookup.UNASKED)
    def clear(self) -> None:
        """The request holds nothing any more: it was preempted, its load failed, or it is over."""


class PatienceLife(Lifecycle, initial=Patience.RESTED):
    """The waits of one request for one thing."""

    @edge(Patience.RESTED, to=Patience.WAITING)
    def wait(self) -> None:
        """A lookup is deferred for the first time."""

    @edge(Patience.WAITING, to=Patience.RESTED)
    def answer(self) -> None:
        """It need not wait for this any more."""

    @edge(Patience.WAITING, to=Patience.SPENT)
    def give_up(self) -> None:
        """It has waited for as long as the policy says, or what it waits for cannot come."""

    @edge(Patience.WAITING, Patience.SPENT, to=Patience.RESTED)
    def renew(self) -> None:
        """It is admitted, or another request begins."""


@guard
def computes(computes: bool) -> bool:
    """A plan that is out computes tokens of the request."""
    return computes


class EndingLife(Lifecycle, initial=Ending.OVER):
    """The end of one request, as far as it has to be put off."""

    @edge(Ending.OVER, to=Ending.STAYS)
    def come(self) -> None:
        """A request is added."""

    @edge(Ending.STAYS, Ending.FINISHING, Ending.ABORTING, to=Ending.FINISHING, when=computes)
    @edge(Ending.STAYS, Ending.FINISHING, to=Ending.OVER)
    def finish(self, computes: bool) -> None:
        """It has all its tokens: what it leaves behind may be stored."""

    @edge(Ending.STAYS, Ending.FINISHING, Ending.ABORTING, to=Ending.ABORTING, when=computes)
    @edge(Ending.STAYS, Ending.ABORTING, to=Ending.OVER)
    def abort(self, computes: bool) -> None:
        """Nobody wants it any more."""


SCHEDULER_MACHINES: Mapping[str, Table] = {
    "lookup": LookupLife.table,
    "patience": PatienceLife.table,
    "ending": EndingLife.table,
}
"""The lifecycles by name, as `states.MACHINES` has those of the ledger."""
