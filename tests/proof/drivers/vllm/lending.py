"""Blocks that another owner reads, as vLLM lends them: those of a finished request wait until workers say that it was sent.

Rules of this file:

* Nothing is held by other means than vLLM's own: the answer of the connector when a request is over, and `finished_sending`.
* Time is counted in steps. vLLM's connectors have the clocks of leases in their workers: the end of one is such a report.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from blocklife.testing import Unsupported
from tests.proof.drivers.vllm.batch import SchedulerRequest

Answer = tuple[bool, object]
"""Whether the blocks of a request wait, and what its client is told."""


class Lending:
    """Who reads blocks of which request, and what the workers have to report of it."""

    def __init__(self, scheduler: object) -> None:
        self._left: dict[str, float] = {}
        """How many more steps the owner of each request may read."""
        self._lapsed: set[str] = set()
        self._delayed: set[str] = set()
        """Requests that are over, and whose blocks wait."""
        self.sent: set[str] = set()
        """What the workers report with their next answers."""
        finished: Callable[[SchedulerRequest], Answer] = scheduler._connector_finished  # type: ignore[attr-defined]
        setattr(scheduler, "_connector_finished", partial(self._finished, finished))  # noqa: B010 - vLLM's own name

    def _finished(self, original: Callable[[SchedulerRequest], Answer], request: SchedulerRequest) -> Answer:
        waits, told = original(request)
        if request.request_id not in self._left:
            return waits, told
        if waits:
            raise Unsupported("not expressible: two connectors that wait for one request (one connector is driven)")
        self._delayed.add(request.request_id)
        return True, told

    def is_lent(self, request: str) -> bool:
        """Whether another owner reads blocks of it."""
        return request in self._left

    def lend(self, request: str, steps: float) -> None:
        """Another owner reads for so many steps from now, at most."""
        self._left[request] = steps

    def give_back(self, request: str) -> None:
        """It is done; nothing happens where its lease has ended before."""
        if request in self._lapsed:
            self._lapsed.remove(request)
            return
        del self._left[request]
        if request in self._delayed:
            self._delayed.remove(request)
            self.sent.add(request)

    def advance(self, steps: int) -> None:
        """Time passes; leases end."""
        self._left = {request: left - steps for request, left in self._left.items()}
        for request in [request for request, left in self._left.items() if left <= 0]:
            self.give_back(request)
            self._lapsed.add(request)

    def take_sent(self) -> set[str]:
        """What a step's answers report, once."""
        found, self.sent = self.sent, set()
        return found
