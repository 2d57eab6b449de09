"""Beside others: what other connectors of the engine do with blocks that this one stores and loads (vLLM's MultiConnector).

Rules of this file:

* Nobody tells a connector that it has company. It is seen from vLLM's own calls: tokens that are computed though neither the
  device nor a load of ours has brought them, and blocks that a request keeps when it is over.
* What another connector brings counts as final as soon as vLLM computes behind it, and the step that brought it has reported.

When is it final? A load between two steps: vLLM puts the request into WAITING_FOR_REMOTE_KVS, and schedules it when all
workers have reported the load as over (`finished_recving`); if it failed, vLLM counts fewer tokens as computed, or takes the
blocks back and looks the request up again. A load within the step that computes behind it: vLLM gives the blocks their hashes
at once, so that other requests can hit them. If the load fails, the step's output names the blocks (`invalid_block_ids`), and
vLLM computes all of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from blocklife.engines.vllm.connector._requests import ConnectorRequest
from blocklife.offload import EnginePool
from blocklife.offload._others import OtherOwners

TablesOf = Callable[[str], Sequence[Sequence[int]]]
"""A function that returns the blocks that vLLM's allocator holds for a request, by its id; nothing for one without blocks."""


class Beside:
    """What the scheduler side knows of other connectors."""

    def __init__(self, pool: EnginePool) -> None:
        self._scheduler = pool.scheduler
        self.others = OtherOwners(pool)
        self._tables_of: TablesOf | None = None
        self.over: dict[str, str] = {}
        """Requests that are over since the last step, by their ids, and their names in the ledger."""

    def bind(self, tables_of: TablesOf) -> None:
        """Take the engine's allocator."""
        self._tables_of = tables_of

    def freed(self, receiving: Iterable[ConnectorRequest]) -> list[ConnectorRequest]:
        """Those of the *receiving* requests whose blocks vLLM has taken back, because another connector failed to fill them.

        vLLM does not report it. It can be seen when this connector is asked what it can load; but it is not asked while another
        one, named before it, is still looking. So it is looked for in the block tables.
        """
        tables_of = self._tables_of
        if tables_of is None:
            return []
        return [each for each in receiving if not any(map(any, tables_of(each.request.request_id)))]

    def left(self, request_id: str, name: str) -> None:
        """A request is over. Whether vLLM keeps its blocks is asked when the next step begins."""
        if self._tables_of is not None:
            self.over[request_id] = name

    def begin(self) -> None:
        """A step begins: hold the blocks that vLLM keeps for requests that are over."""
        tables_of = self._tables_of
        if tables_of is None:
            return
        for request_id, name in list(self.over.items()):
            if name in self._scheduler.requests:  # its last plan has not settled
                continue
            del self.over[request_id]
            tables = tables_of(request_id)
            if any(map(any, tables)):
                self.others.lend(request_id, tables)
        if self.others.guests:  # who sends something else than KV says nothing here when it is done
            oldest = next(iter(self.others.guests))
            if not any(map(any, tables_of(oldest))):
                self.others.give_back(oldest)

    @property
    def listens(self) -> bool:
        """Whether `free` or `prove` would do something."""
        return bool(self.over or self.others.guests or self.others.doubts)

    def free(self, done: Collection[str]) -> None:
        """Other connectors are done with the blocks of these requests: vLLM frees them now."""
        for request_id in done:
            self.over.pop(request_id, None)
            self.others.give_back(request_id)

    def prove(self, plan: int, wrong: Collection[int]) -> None:
        """The steps up to this plan have reported, and these blocks were not filled. Call it before the plan is settled."""
        self.others.hear(plan, wrong)
