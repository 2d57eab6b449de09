"""Lookups: what vLLM is promised of the host tier, now or in a later step."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from blocklife.connector_states import Arrival
from blocklife.engines.vllm.connector._doubts import Doubts
from blocklife.engines.vllm.connector._known import KnownRequests
from blocklife.engines.vllm.connector._messages import Moved, MovedBelow
from blocklife.engines.vllm.connector._requests import ConnectorRequest
from blocklife.engines.vllm.connector._shapes import VllmRequest
from blocklife.engines.vllm.connector._sources import HitTokens, sources
from blocklife.offload import Hit


@define
class ConnectorCounts:
    """Counters since they were last read."""

    stored: Moved = field(factory=Moved)
    loaded: Moved = field(factory=Moved)
    below: MovedBelow | None = None
    damaged: int = 0
    """Blocks of host memory with other bytes than were stored, on one worker each."""
    failed_loads: int = 0
    lookups: int = 0
    deferred: int = 0
    sync_delays: list[float] = field(factory=list)
    """Seconds that each lookup of the host tier took."""
    async_delays: list[float] = field(factory=list)
    """Seconds from a request's first deferred lookup to the one that was answered, or to its end."""

    @property
    def is_new(self) -> bool:
        """Whether something was counted."""
        moved = self.stored.sizes or self.loaded.sizes or self.below is not None
        return bool(self.lookups or self.failed_loads or self.async_delays or self.damaged or moved)


class HostLookups:
    """The lookups of one engine."""

    def __init__(self, known: KnownRequests, doubts: Doubts, clock: Callable[[], float]) -> None:
        self.counts = ConnectorCounts()
        self.promised = 0
        """Loads promised in this step."""
        self._known = known
        self._doubts = doubts
        self._clock = clock
        self._shape, self._offload, self._pool, self._requests = known.shape, known.offload, known.pool, known.requests

    def look_up(self, request: VllmRequest, device_tokens: int) -> int | None:
        """The number of tokens that a load would bring after those on the device; None: ask again later.

        See `loads_within` for when it would bring them.
        """
        begun = self._clock()
        tracked = self._known.tracked(request)
        earlier, tracked.hit = tracked.hit, None  # the hit of an earlier step, for which there was no room
        self.counts.lookups += 1
        name = self._known.enter(tracked)
        if not name or (earlier is not None and self._requests.landed):
            # it has found no room: those that hold blocks and wait behind it in vLLM's queue have their turn first
            self._defer(tracked, begun)
            return None
        if self._offload.requests.is_running(name) or tracked.arrival.state is Arrival.RECEIVING:
            # the engine was reset, and the request is scheduled again in the same step; or another connector's load failed
            self._known.preempt(tracked)
        if self._doubts.open and self._doubts.are_in(request.block_hashes, device_tokens):
            self._defer(tracked, begun)
            return None
        may_load = self._may_load(tracked, earlier) and (self._shape.names_sessions or not tracked.is_session)
        if not may_load or request.skip_reading_prefix_cache or not request.block_hashes:
            tracked.hit = self._pool.device_hit(name, request.num_tokens, device_tokens)
            self.resolve(tracked)
            return 0
        self._known.looking = True
        hit = self._offload.lookup(name, request.num_tokens, device_tokens)
        self._known.looking = False
        self.counts.sync_delays.append(self._clock() - begun)
        no_job = bool(hit.host_tokens) and self._known.ledger.jobs.room <= self.promised
        if hit.deferred or (no_job and self._pool.put_off(name)):
            self._defer(tracked, begun)
            return None
        if no_job:
            hit = self._pool.device_hit(name, request.num_tokens, device_tokens)
        self.resolve(tracked)
        tracked.hit = hit
        self.promised += bool(hit.host_tokens)
        return hit.host_tokens

    def loads_within(self, request: VllmRequest) -> bool:
        """Whether what `look_up` has promised to a request in this step is loaded before the forward pass of this step."""
        hit = self._known.tracked(request).hit
        return hit is not None and hit.within

    def hit_sources(self, request: VllmRequest, tokens: int) -> HitTokens | None:
        """Where the first *tokens* of the load come from that was promised to a request in this step; None without one."""
        tracked = self._requests.by_id.get(request.request_id)
        if tracked is None or (hit := tracked.hit) is None or not hit.slots:
            return None
        fetched = self._offload.fetched(tracked.name, [slot for own in hit.slots for slot in own])
        return sources(self._shape.geometry, hit, tokens, fetched)

    def _defer(self, tracked: ConnectorRequest, begun: float) -> None:
        """A lookup that began at this time is put off."""
        self.counts.deferred += 1
        if not tracked.is_owed:
            tracked.reply.defer()
            tracked.owed_since = begun
        if self._known.describer is not None and self._shape.below is not None:
            self._known.describer.wait(tracked.request)

    def resolve(self, tracked: ConnectorRequest) -> None:
        """A lookup was answered, or the request is over."""
        if tracked.is_owed:
            self.counts.async_delays.append(self._clock() - tracked.owed_since)
            tracked.reply.answer()
            if self._known.describer is not None:
                self._known.describer.go_on(tracked.request)

    def _may_load(self, tracked: ConnectorRequest, earlier: Hit | None) -> bool:
        """Whether a load can be promised to vLLM now, for a request whose *earlier* hit found no room.

        vLLM 0.33.0 still reserves the blocks of a load that has failed, so that another load may wait for ever for blocks that
        are free: such a request does not load until it is scheduled, and meanwhile no request is promised a load twice in turn
        without having got blocks for it.
        """
        if not self._requests.lost:
            return True
        return tracked.arrival.state is not Arrival.LOST and (earlier is None or not earlier.host_tokens)
