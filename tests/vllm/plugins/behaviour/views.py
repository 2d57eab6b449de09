"""What vLLM's tests look at inside a scheduler, read from what ours has instead.

Each of these is read from the ledger and the plans at the moment at which it is asked for; nothing is kept here. What has no
counterpart is not there, and a test that asks for it fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from unittest import mock

from attrs import define, frozen
from vllm.v1.kv_offload.base import OffloadKey, make_offload_key

from blocklife.engines.vllm.connector._described import Describer
from blocklife.ledger import Direction, Ledger
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.ledger.jobs import JobView as LedgerJob
from blocklife.offload import FullHit, Geometry, SlidingWindow
from blocklife.offload._lookup import Answer, common_length

from .scan import Scan
from .tier import ANSWERS, Oracle, Prefix
from .transfers import Job

if TYPE_CHECKING:
    from .connector import AdaptedConnector


@frozen
class GroupView:
    """Sizes of one group."""

    group_idx: int
    tokens_per_block: int
    tokens_per_chunk: int
    sliding_window_size_in_chunks: int | None
    is_eagle_group: bool
    hashes_per_chunk: int = 1
    """Their requests are given one key for a chunk where a test makes them by itself."""


@frozen
class ConfigView:
    """Sizes of all groups."""

    kv_group_configs: tuple[GroupView, ...]
    blocks_per_chunk: int
    alignment_tokens: int

    @classmethod
    def of(cls, geometry: Geometry) -> ConfigView:
        """What a geometry says."""
        columns = zip(geometry.block_tokens, geometry.chunk_tokens, geometry.window_chunks, geometry.drafters, strict=True)
        groups = tuple(GroupView(group, *sizes) for group, sizes in enumerate(columns))
        return cls(groups, geometry.blocks_per_chunk, geometry.block_alignment)


@define(eq=False)
class JobView:
    """One job that is out: how many workers have not reported is the ledger's word, what it copies is the plan's."""

    row: LedgerJob
    ledger: Ledger
    geometry: Geometry
    job: Job | None

    @property
    def is_store(self) -> bool:
        return self.row.direction is Direction.STORE

    @property
    def pending_count(self) -> int:
        return self.ledger.limits.num_workers - self.row.reported.bit_count()

    @property
    def keys(self) -> set[OffloadKey]:
        return set() if self.job is None else set(self.job.keys)

    def _blocks(self, sliding: bool) -> list[int]:
        blocks = () if self.job is None else self.job.blocks
        return [
            block
            for group, own in zip(self.geometry.groups, blocks, strict=False)
            for block in own
            if isinstance(group, SlidingWindow) is sliding
        ]

    @property
    def fenced_block_ids(self) -> list[int]:
        return self._blocks(sliding=True)

    @property
    def deferred_fence_block_ids(self) -> list[int]:
        return self._blocks(sliding=False)


@define(eq=False)
class GroupStateView:
    """The table of a request in one group."""

    offload_keys: list[OffloadKey]
    block_ids: list[int]


@define(eq=False)
class RequestView:
    """One request, as the ledger knows it whenever something is asked for."""

    name: str
    ledger: Ledger
    oracle: Oracle

    @property
    def req(self) -> Any:
        return self.oracle.requests[self.name]

    @property
    def group_states(self) -> list[GroupStateView]:
        """Its tables."""
        return [
            GroupStateView(
                [make_offload_key(key, group) for key in self.oracle.names(self.req, group)],
                [life & ID_MASK if life != NULL else 0 for life in table],
            )
            for group in range(self.ledger.limits.num_groups)
            for table in (self.ledger.requests.table(self.name, group),)
        ]

    @property
    def transfer_jobs(self) -> set[int]:
        """Jobs of it that are not over."""
        return {job.number for job in self.ledger.jobs.serving(self.name)}


class RequestsView(Mapping[str, RequestView]):
    """The requests that the ledger knows."""

    def __init__(self, ledger: Ledger, oracle: Oracle) -> None:
        self._ledger = ledger
        self._oracle = oracle

    def __getitem__(self, name: str) -> RequestView:
        if name not in self._ledger.requests:
            raise KeyError(name)
        return RequestView(name, self._ledger, self._oracle)

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self._ledger.requests if name in self._oracle.requests])

    def __len__(self) -> int:
        return len(list(iter(self)))


@frozen(eq=False)
class EventsView:
    """What is kept for events, by the key of the content."""

    describer: Describer

    @property
    def _pending_event_metadata(self) -> dict[OffloadKey, object]:
        kept = self.describer
        every = {**kept._told, **kept._filled, **kept._left}
        return {make_offload_key(key, group): found for (group, key), found in every.items()}


class SchedulerView:
    """Their scheduler's side of a connector, as far as ours has it."""

    def __init__(self, connector: AdaptedConnector, oracle: Oracle, jobs: Mapping[int, Job]) -> None:
        self._connector = connector
        self._oracle = oracle
        self._planned = jobs
        self.manager: mock.MagicMock = oracle.manager
        self.config = ConfigView.of(oracle.geometry)
        self.update_connector_output = connector.update_connector_output
        self.reset_cache = connector.reset_cache
        self.has_pending_push_work = connector.has_pending_push_work
        self.take_events = connector.take_events

    @property
    def _ledger(self) -> Ledger:
        ledger: Ledger = self._connector.scheduler.ledger
        return ledger

    @property
    def _events_tracker(self) -> EventsView:
        """What is kept for events that describe themselves."""
        describer = self._connector.scheduler.known.describer
        if describer is None:
            raise TypeError("events do not describe themselves")
        return EventsView(describer)

    @property
    def _maximal_prefix_lookup(self) -> Prefix | None:
        return self._oracle.prefix

    @_maximal_prefix_lookup.setter
    def _maximal_prefix_lookup(self, prefix: Prefix) -> None:
        self._oracle.prefix = prefix

    def _lookup(self, status: Any) -> int | None:
        """Our lookup in the host tier for a request that a test has made by itself, with its own keys."""
        Scan.calls += 1
        keys = [group.offload_keys for group in status.group_states]

        def ask(group: int, unit: int, _blocks: int) -> Answer:
            if unit >= len(keys[group]):
                return Answer.MISS
            answer: Answer = ANSWERS[self.manager.lookup(keys[group][unit], status.req_context)]
            return answer

        offload, start = self._connector.scheduler.offload, status.num_locally_computed_tokens
        recomputes = offload.policies.full_hit is FullHit.RECOMPUTE_LAST_TOKEN
        limit = status.req.num_tokens - (not recomputes)
        found = common_length(offload._search._host_units, start, limit, ask)
        return None if found.deferred else found.length - start

    @property
    def _jobs(self) -> dict[int, JobView]:
        """Jobs that are planned or out."""
        ledger = self._ledger
        return {
            row.number: JobView(row, ledger, self._oracle.geometry, self._planned.get(row.number))
            for row in ledger.jobs.alive()
        }

    @property
    def _req_status(self) -> RequestsView:
        """Requests that the ledger knows."""
        return RequestsView(self._ledger, self._oracle)

    @property
    def _block_id_to_pending_jobs(self) -> dict[int, set[int]]:
        """Blocks that a store reads, by the states of the blocks."""
        blocks = self._ledger.blocks
        return {block: {number} for block in range(1, len(blocks)) if (number := blocks.job(block))}
