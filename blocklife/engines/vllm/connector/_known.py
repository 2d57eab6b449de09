"""The requests of vLLM as the ledger knows them: under which names, with which keys, and how far vLLM has computed them.

Rules of this file:

* vLLM decides first and reports afterwards: a request that runs is always entered, one that only asks may find no room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define

from blocklife.engines.vllm.connector._beside import Beside
from blocklife.engines.vllm.connector._config import Caps, ConnectorConfig
from blocklife.engines.vllm.connector._described import Describer
from blocklife.engines.vllm.connector._requests import ConnectorRequest, ConnectorRequests
from blocklife.engines.vllm.connector._shapes import CacheShape, VllmRequest
from blocklife.offload import EnginePool, OffloadScheduler

NO_CAPS = Caps()
_STOPPED = frozenset({"WAITING", "WAITING_FOR_STREAMING_REQ"})
"""Statuses of vLLM in which a request that has blocks is a session that waits to go on."""


@define(eq=False)
class Admission:
    """A request that vLLM has allocated blocks to in this step."""

    tracked: ConnectorRequest
    tables: tuple[list[int], ...]
    external_tokens: int
    """Tokens that a load of ours brings."""
    in_doubt: bool = False
    """Whether it reads what another connector brings in the same step, or has brought in one that has not reported."""


class KnownRequests:
    """All requests of one engine. *most_looked_up*: how many the ledger has at most, but for those that run."""

    def __init__(self, shape: CacheShape, config: ConnectorConfig, offload: OffloadScheduler, most_looked_up: int) -> None:
        self.shape = shape
        self.config = config
        self.offload = offload
        self.ledger = offload.ledger
        self.pool = EnginePool(offload, self._known_tokens, one_a_step=shape.one_a_step)
        self.beside = Beside(self.pool)
        """Other connectors of the engine."""
        self.requests = ConnectorRequests(self.beside.others.hooks)
        self.admissions: dict[str, Admission] = {}
        """The requests that have got blocks in this step, by their ids; they stay in the ledger."""
        self.describer: Describer | None = None
        """Describes the content of events, if these describe themselves."""
        self.looking = False
        """Whether keys are asked for by a lookup."""
        self._most_looked_up = most_looked_up
        self._serial = 0

    def tracked(self, request: VllmRequest) -> ConnectorRequest:
        """What is kept of a request."""
        found = self.requests.by_id.get(request.request_id)
        if found is None:
            found = self.requests.add(request, NO_CAPS, as_session=self.shape.names_sessions)
        return found

    def enter(self, tracked: ConnectorRequest, *, runs: bool = False) -> str:
        """Add a request to the ledger. Returns its name there, or an empty text if there is no room for another.

        There is always room for running requests, because vLLM may admit a request regardless of the result of its lookup.
        """
        if tracked.name and tracked.name in self.offload.requests:
            return tracked.name
        request = tracked.request
        if not self._has_room(runs):
            for forgotten in self.pool.release_waiting([each.tracked.name for each in self.admissions.values()]):
                self.requests.release(forgotten)
            if not self._has_room(runs):
                return ""
        name = request.request_id
        while name in self.ledger.requests or self.ledger.jobs.serve(name):
            self._serial += 1
            name = f"{request.request_id}#{self._serial}"
        self.requests.name(tracked, name)
        tails = None if self.shape.geometry.tail_tokens is None else self._tails_of(request)
        self.offload.add_request(name, self._keys_of(tracked), prompt_tokens=request.num_prompt_tokens, tails=tails)
        self.offload.cap(name, tracked.caps.store_tokens, tracked.caps.load_tokens)
        if tracked.is_owed:
            self.pool.has_waited(name, tracked.owed_since)
        return name

    def _has_room(self, runs: bool) -> bool:
        return len(self.offload.requests) < (self.ledger.limits.max_requests if runs else self._most_looked_up)

    def _keys_of(self, tracked: ConnectorRequest) -> Callable[[int, int, int], Sequence[bytes]]:
        """The keys of a request's blocks: vLLM's hashes, which cover all tokens up to the end of the block."""
        request, ratios = tracked.request, self.shape.hashes_per_block

        def keys(group: int, start: int, stop: int) -> Sequence[bytes]:
            ratio = ratios[group]
            hashes = request.block_hashes
            return hashes[start:stop] if ratio == 1 else hashes[(start + 1) * ratio - 1 : stop * ratio : ratio]

        describer = self.describer
        if describer is None:
            return keys

        def noted(group: int, start: int, stop: int) -> Sequence[bytes]:
            found = keys(group, start, stop)
            if self.looking:
                describer.look(request, group, start, found)
            else:
                over = self.requests.by_id.get(request.request_id) is not tracked
                describer.note(request, group, start, found, self._most_stored(tracked), over=over)
            return found

        return noted

    def _most_stored(self, tracked: ConnectorRequest) -> int:
        """How many tokens of a request can be stored at most."""
        caps = [self.config.policies.max_store_tokens, tracked.caps.store_tokens]
        if self.config.policies.prompt_only:
            caps.append(tracked.request.num_prompt_tokens)
        return min([cap for cap in caps if cap is not None], default=tracked.request.num_tokens)

    def _tails_of(self, request: VllmRequest) -> Callable[[int, int], bytes | None]:
        """The keys of a request's tails: vLLM's hashes at tokens inside a block."""
        unit = self.shape.tokens_per_hash

        def tails(_group: int, end: int) -> bytes | None:
            hashes, at = request.block_hashes, end // unit
            return hashes[at - 1] if 0 < at <= len(hashes) else None

        return tails

    def _known_tokens(self, name: str) -> int:
        tracked = self.requests.by_name[name]
        # vLLM may have given it the next part already: it computes anew from the token that it takes back
        return tracked.request.num_computed_tokens + 1 if self.stops(tracked) else tracked.request.num_tokens

    def stops(self, tracked: ConnectorRequest) -> bool:
        """Whether it is a session at the end of an answer: vLLM keeps its blocks, and has put it among those that wait."""
        if not tracked.is_session or not self.shape.names_sessions or tracked.request.status.name not in _STOPPED:
            return False
        return tracked.name in self.offload.requests and self.offload.requests.is_running(tracked.name)

    def go_on(self, tracked: ConnectorRequest) -> None:
        """A session is where vLLM says that it is; its next answer is part of a longer prompt."""
        name, request = tracked.name, tracked.request
        self.pool.go_on(name, request.num_tokens, request.num_prompt_tokens, request.num_computed_tokens)
        self.offload.cap(name, tracked.caps.store_tokens, tracked.caps.load_tokens)

    def preempt(self, tracked: ConnectorRequest) -> None:
        """vLLM has taken the blocks of a request back."""
        self.offload.preempt(tracked.name)
        self.requests.step_back(tracked)

    def hear_of_preemptions(self) -> None:
        """Notice preemptions by a reset, which vLLM reports only with the next step; until then outputs do not count.

        What was preempted once is PREEMPTED to vLLM again when its content has come, until it is scheduled: it has its blocks.
        """
        for tracked in self.requests.by_id.values():
            if tracked.request.status.name != "PREEMPTED" or self.requests.has_come(tracked):
                continue
            if self.offload.requests.is_running(tracked.name):
                self.preempt(tracked)
