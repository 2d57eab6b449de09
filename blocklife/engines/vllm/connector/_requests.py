"""What the connector keeps of each request of vLLM: its names, and where vLLM stands with it, as lifecycles.

Rules of this file:

* `arrival` takes its steps through `ConnectorRequests`, which lists the requests in some of its states. Only `load`, which
  leads to none of these, is taken directly.
"""

from __future__ import annotations

from attrs import define, field

from blocklife.connector_states import Arrival, ArrivalLife, Reply, ReplyLife, SessionLife
from blocklife.engines.vllm.connector._config import Caps
from blocklife.engines.vllm.connector._shapes import VllmRequest
from blocklife.lifecycle import Hooks, Transition
from blocklife.offload import Hit
from blocklife.states import states_before

_GIVES_BACK = states_before(ArrivalLife.table.events["step_back"], Arrival)
"""States in which a request has blocks that it gives back if vLLM takes them."""


@define(eq=False)
class ConnectorRequest:
    """What the connector knows about one request."""

    request: VllmRequest
    name: str
    """Its name in the ledger: its id, or a longer name while an older request with that id is not over."""
    is_session: bool
    """Whether it is a session, which takes the last token of an answer back when it goes on."""
    caps: Caps
    hit: Hit | None = None
    """The answer to its lookup in this step, or in an earlier one after which it found no room."""
    arrival: ArrivalLife = field(factory=ArrivalLife)
    reply: ReplyLife = field(factory=ReplyLife)
    owed_since: float = 0.0
    """While a reply is OWED: when the first lookup began that was put off."""
    session: SessionLife = field(factory=SessionLife)
    replays: int = 0
    """Tokens before the end of its hit that vLLM still computes once more, for groups that are left out."""

    def new_of(self, scheduled: int) -> int:
        """Of the tokens that a step computes, those whose content was not there; what it computes once more is done then."""
        again = min(self.replays, scheduled)
        self.replays -= again
        return scheduled - again

    @property
    def is_owed(self) -> bool:
        """Whether its lookup was put off."""
        return self.reply.state is Reply.OWED


class ConnectorRequests:
    """The requests of vLLM, and those that the ledger still knows.

    Invariant: ``by_id`` has every request that vLLM knows, and ``by_name`` every request that the ledger knows, by its name
    there; a request that is over stays in ``by_name`` only, until its last plan has settled. Of ``by_id``, ``sessions`` has the
    sessions whose content is named, and ``landed``, ``lost`` and ``receiving`` those whose arrival is in that state, in the
    order of coming there: a step asks whether there are any, and would have to look at all that wait.
    """

    def __init__(self, hooks: Hooks[Transition]) -> None:
        self.by_id: dict[str, ConnectorRequest] = {}
        self.by_name: dict[str, ConnectorRequest] = {}
        self.sessions: dict[str, ConnectorRequest] = {}
        self.landed: dict[str, ConnectorRequest] = {}
        self.lost: dict[str, ConnectorRequest] = {}
        self.receiving: dict[str, ConnectorRequest] = {}
        self._lists = {Arrival.LANDED: self.landed, Arrival.LOST: self.lost, Arrival.RECEIVING: self.receiving}
        self.renamed: set[str] = set()
        """The names in ``by_name`` that are not the ids of their requests."""
        self.hooks = hooks
        """Hooks on the steps of all requests; the place of a step is the number of the request, from 0, in order of coming."""
        self._count = 0

    def add(self, request: VllmRequest, caps: Caps, *, as_session: bool) -> ConnectorRequest:
        """A request of vLLM that is new here; *as_session*: if it is a session, its content is named like that of others."""
        tracked = ConnectorRequest(request, "", request.resumable, caps)
        for life in (tracked.arrival, tracked.reply, tracked.session):
            life.report_to(self.hooks, self._count)
        self._count += 1
        self.by_id[request.request_id] = tracked
        if tracked.is_session and as_session:
            self.sessions[request.request_id] = tracked
        return tracked

    def name(self, tracked: ConnectorRequest, name: str) -> None:
        """A request is in the ledger now."""
        tracked.name = name
        self.by_name[name] = tracked
        if name != tracked.request.request_id:
            self.renamed.add(name)

    def release(self, name: str) -> None:
        """A request is not in the ledger any more."""
        tracked = self.by_name.pop(name, None)
        self.renamed.discard(name)
        if tracked is not None:
            tracked.name = ""

    def leave(self, request_id: str) -> ConnectorRequest | None:
        """A request is over for vLLM; None if it was not known."""
        self.sessions.pop(request_id, None)
        for listed in self._lists.values():
            listed.pop(request_id, None)
        return self.by_id.pop(request_id, None)

    def land(self, tracked: ConnectorRequest, *, computes: bool) -> None:
        """The load of a request is DONE; it *computes* already if that was within the step."""
        tracked.arrival.land(computes)
        self._list(tracked)

    def lose(self, tracked: ConnectorRequest) -> None:
        """The load of a request has failed."""
        tracked.arrival.lose()
        self._list(tracked)

    def receive(self, tracked: ConnectorRequest) -> None:
        """A request has got blocks which another connector fills."""
        tracked.arrival.receive()
        self._list(tracked)

    def schedule(self, tracked: ConnectorRequest) -> None:
        """vLLM schedules a request."""
        if self.has_come(tracked):
            tracked.arrival.schedule()
            self._list(tracked)

    def has_come(self, tracked: ConnectorRequest) -> bool:
        """Whether vLLM has not scheduled a request since its content came, was lost, or was left to another connector.

        It has its blocks then.
        """
        return tracked.arrival.state in self._lists

    def step_back(self, tracked: ConnectorRequest) -> None:
        """vLLM has taken the blocks of a request back."""
        if tracked.arrival.state in _GIVES_BACK:
            tracked.arrival.step_back()
            self._list(tracked)

    def _list(self, tracked: ConnectorRequest) -> None:
        """Put a request into the list of its present state, and out of the others; one that is over is in none."""
        request_id = tracked.request.request_id
        if self.by_id.get(request_id) is not tracked:
            return
        for state, listed in self._lists.items():
            if state is tracked.arrival.state:
                listed[request_id] = tracked
            else:
                listed.pop(request_id, None)
