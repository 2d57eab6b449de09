"""The lifecycles of what an engine's connector or linker keeps, beside those of the ledger and of the offload scheduler.

Rules of this file:

* The engine decides, and reports afterwards: these lifecycles follow what it has decided. None of them reads another one.
* In a connector each request has an object of each lifecycle, and of `trust` one for each admission that needs it; in a linker
  each store has one. They are not rows of tables as in the ledger, because any number of them may wait in the engine.

`specs/connector-request.md` says what each of a request is needed for, `specs/sglang-linker.md` what that of a store is.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from blocklife.lifecycle import Lifecycle, Table, edge, guard
from blocklife.scheduler_states import SCHEDULER_MACHINES
from blocklife.states import states_before


@enum.unique
class Arrival(enum.Enum):
    """What is brought for a request before the engine schedules it."""

    NOTHING = "nothing: it waits for its turn, or computes"
    LOADING = "a load of ours brings content for it"
    LANDED = "its load has landed; it holds its blocks and waits for its turn"
    LOST = "its load has failed; it does not load until it has been scheduled"
    RECEIVING = "another connector brings content for it"


@enum.unique
class Reply(enum.Enum):
    """Whether the engine waits for the answer to a lookup."""

    GIVEN = "no lookup has been put off since the last answer"
    OWED = "a lookup was put off, and is made again"


@enum.unique
class SessionState(enum.Enum):
    """Where a session stands, which gets its text in parts."""

    GOING = "it computes, or waits for its turn; or it is no session"
    STOPPED = "it holds its blocks and waits for the next part of its text"
    OVERRUN = "it has stopped, and its Mamba state has taken in the token that it takes back"
    ASTRAY = "it continues from such a state: nothing of it is stored"


@enum.unique
class Trust(enum.Enum):
    """Whether content that another connector brings within a step, and what is computed behind it, may be found by its key."""

    DOUBTED = "the step that brings it has not reported"
    REFUTED = "it has failed, and the engine computes it again"
    SETTLED = "it was right, or the request is over or has started again"


@enum.unique
class LinkedCopyState(enum.Enum):
    """Where the pages stand that a linker copies for an engine between one memory of the device and the host."""

    OUT = "the copy is planned or under way"
    ARRIVED = "all of its pages are at the other end"
    LOST = "there was no room, the copy has failed, or it was given up"
    TAKEN = "the engine has taken the outcome"


@guard
def computes(computes: bool) -> bool:
    """The request computes already: its load was within the step."""
    return computes


class ArrivalLife(Lifecycle[Arrival], initial=Arrival.NOTHING):
    """What is brought for one request."""

    @edge(Arrival.NOTHING, to=Arrival.LOADING)
    def load(self) -> None:
        """It is admitted, and a load is planned."""

    @edge(Arrival.NOTHING, to=Arrival.RECEIVING)
    def receive(self) -> None:
        """It gets blocks, and neither computes nor loads."""

    @edge(Arrival.LOADING, to=Arrival.NOTHING, when=computes)
    @edge(Arrival.LOADING, to=Arrival.LANDED)
    def land(self, computes: bool) -> None:
        """Its load is DONE."""

    @edge(Arrival.LOADING, to=Arrival.LOST)
    def lose(self) -> None:
        """Its load has failed."""

    @edge(Arrival.LANDED, Arrival.LOST, Arrival.RECEIVING, to=Arrival.NOTHING)
    def schedule(self) -> None:
        """The engine schedules it."""

    @edge(Arrival.LOADING, Arrival.RECEIVING, to=Arrival.NOTHING)
    def step_back(self) -> None:
        """The engine has taken its blocks back: it was preempted behind a load within the step, or the other one has failed."""


class ReplyLife(Lifecycle[Reply], initial=Reply.GIVEN):
    """The answers that are owed for one request."""

    @edge(Reply.GIVEN, to=Reply.OWED)
    def defer(self) -> None:
        """Its lookup is put off."""

    @edge(Reply.OWED, to=Reply.GIVEN)
    def answer(self) -> None:
        """Its lookup is answered, or the request is over."""


@guard
def overrun(overrun: bool) -> bool:
    """A step was ahead that has computed a state with the token that the session takes back."""
    return overrun


class SessionLife(Lifecycle[SessionState], initial=SessionState.GOING):
    """The stops of one session."""

    @edge(SessionState.GOING, to=SessionState.OVERRUN, when=overrun)
    @edge(SessionState.GOING, to=SessionState.STOPPED)
    @edge(SessionState.ASTRAY, to=SessionState.OVERRUN)
    def stop(self, overrun: bool) -> None:
        """Its answer is over."""

    @edge(SessionState.STOPPED, to=SessionState.GOING)
    @edge(SessionState.OVERRUN, to=SessionState.ASTRAY)
    def go_on(self) -> None:
        """The next part of its text has come, and it keeps its blocks."""

    @edge(SessionState.ASTRAY, to=SessionState.GOING)
    def begin_anew(self) -> None:
        """It is computed from its beginning, or from a hit."""


class TrustLife(Lifecycle[Trust], initial=Trust.DOUBTED, finals={Trust.SETTLED}):
    """What another connector brings to one request within a step."""

    @edge(Trust.DOUBTED, to=Trust.SETTLED)
    def confirm(self) -> None:
        """The step has reported, and the content is right."""

    @edge(Trust.DOUBTED, to=Trust.REFUTED)
    def refute(self) -> None:
        """The step has reported, and the content is wrong."""

    @edge(Trust.DOUBTED, Trust.REFUTED, to=Trust.SETTLED)
    def drop(self) -> None:
        """The request is over, was preempted, or is computed again from an earlier token."""


class LinkedCopyLife(Lifecycle[LinkedCopyState], initial=LinkedCopyState.OUT, finals={LinkedCopyState.TAKEN}):
    """What a linker copies of one node, or for one request, in one memory."""

    @edge(LinkedCopyState.OUT, to=LinkedCopyState.ARRIVED)
    def land(self) -> None:
        """Its job is DONE, or nothing had to be copied."""

    @edge(LinkedCopyState.OUT, to=LinkedCopyState.LOST)
    def lose(self) -> None:
        """It is declined for want of room, or its job has ended otherwise."""

    @edge(LinkedCopyState.ARRIVED, LinkedCopyState.LOST, to=LinkedCopyState.TAKEN)
    def take(self) -> None:
        """The outcome is told, and the engine has its pages back."""


STOPPED = states_before(SessionLife.table.events["go_on"], SessionState)
"""States in which a session has stopped."""

WRONG = frozenset({SessionState.OVERRUN, SessionState.ASTRAY})
"""States in which the Mamba state of a session has taken in a token that it takes back: that cannot be undone."""

CONNECTOR_MACHINES: Mapping[str, Table] = {
    "arrival": ArrivalLife.table,
    "reply": ReplyLife.table,
    "session": SessionLife.table,
    "trust": TrustLife.table,
}
"""The lifecycles by name."""

REQUEST_MACHINES: Mapping[str, Table] = {**SCHEDULER_MACHINES, **CONNECTOR_MACHINES}
"""All lifecycles of a request beside that in the ledger."""

LINKER_MACHINES: Mapping[str, Table] = {"linked": LinkedCopyLife.table}
"""The lifecycles of SGLang's linker by name."""

KNOWN = states_before(LinkedCopyLife.table.events["take"], LinkedCopyState)
"""States in which the outcome of a linked store is known."""
