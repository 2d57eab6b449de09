"""The lifecycles of what calls a store: whether it is called at all, and the call of one thread. `specs/tiers.md` draws them.

Their data (how many calls have failed, since when a call runs) is that of who holds them, under its lock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from blocklife.lifecycle import Lifecycle, Table, edge, guard


@enum.unique
class Circuit(enum.Enum):
    """Whether a store is called."""

    UP = "it is called"
    DOWN = "it is left alone, but for one call now and then"


@enum.unique
class Call(enum.Enum):
    """The call of a store by one thread."""

    NONE = "the thread makes no call"
    RUNNING = "the store works on it"
    HANGING = "it has taken longer than it may; what it was for is given up, and its thread waits for it"


@guard
def enough(enough: bool) -> bool:
    """As many calls in a row have failed as it takes."""
    return enough


class CircuitLife(Lifecycle[Circuit], initial=Circuit.UP):
    """A circuit breaker."""

    @edge(Circuit.UP, to=Circuit.DOWN, when=enough)
    @edge(Circuit.UP, to=Circuit.UP)
    @edge(Circuit.DOWN, to=Circuit.DOWN)
    def fail(self, enough: bool) -> None:
        """A call has failed, or has not come back in time."""

    @edge(Circuit.DOWN, to=Circuit.DOWN)
    def probe(self) -> None:
        """It is time for a call; the next one is let through after twice the time."""

    @edge(Circuit.UP, Circuit.DOWN, to=Circuit.UP)
    def succeed(self) -> None:
        """A call has ended as it should."""


class CallLife(Lifecycle[Call], initial=Call.NONE):
    """The calls of one thread, one after another."""

    @edge(Call.NONE, to=Call.RUNNING)
    def make(self) -> None:
        """The thread calls the store."""

    @edge(Call.RUNNING, to=Call.HANGING)
    def hang(self) -> None:
        """Its time is over."""

    @edge(Call.RUNNING, Call.HANGING, to=Call.NONE)
    def come_back(self) -> None:
        """The store has answered, or raised."""


STORE_MACHINES: Mapping[str, Table] = {"circuit": CircuitLife.table, "call": CallLife.table}
"""The lifecycles by name."""
