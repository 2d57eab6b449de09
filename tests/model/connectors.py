"""Our connector with copies that take steps, and with faults: what the tests of this folder give vLLM as `kv_connector`.

What is asked of it comes in an environment variable, for vLLM's worker processes make their own connector.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING

from attrs import asdict, evolve, field, frozen, validators
from vllm.distributed.kv_events import BlockStored
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from blocklife.copiers.torch import HostMemory, KvCache
from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector._layers import asks_before_layers
from blocklife.engines.vllm.connector._messages import StepPlan
from blocklife.engines.vllm.connector._worker import MakeCopier
from blocklife.ledger import Direction, Transfer, Worker
from tests.vllm.lag_copier import LagCopier
from tests.vllm.worlds import Lag

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
    from vllm.forward_context import ForwardContext
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

VARIABLE = "BLOCKLIFE_TEST_COPIES"
FAULTS = ("zeros", "another block", "early store")
"""What gives other tokens: loads bring zeros, or another block's bytes, or a store copies a block before it is computed."""
DRAFTER_FAULTS = ("zeros for the drafter", "drafter unmarked")
"""What gives other guesses alone: loads bring zeros to the last layer only, or no group is said to hold a drafter's layers."""

STATE_FAULT = "zeros for states"
"""Loads bring zeros to the first group only, which is that of the states where a model has them."""
LAYERS_UNHEARD = "layers unheard"
"""Loads in parts are not waited for by the layers that read them."""
TOLD_WRONG = "told wrong"
"""Nothing is done wrong, but what comes from below is told as of the host, and events tell tokens in a wrong order."""


@frozen
class Copies:
    """How copies behave on every worker."""

    shortest: int = 0
    longest: int = 0
    """Steps that a copy takes, drawn for each."""
    lost_loads: float = field(default=0.0, validator=[validators.ge(0.0), validators.le(1.0)])
    """The share of loads that fail, half-done."""
    fault: str = field(
        default="", validator=validators.in_(["", *FAULTS, *DRAFTER_FAULTS, STATE_FAULT, LAYERS_UNHEARD, TOLD_WRONG])
    )
    """What is done wrong, if anything."""
    seed: int = 0

    def dump(self) -> str:
        """As the environment variable has it."""
        return json.dumps(asdict(self))


def wanted(around: Mapping[str, str]) -> Copies:
    """What the environment asks for."""
    return Copies(**json.loads(around.get(VARIABLE, "{}")))


class FaultyCopier(LagCopier):
    """Loads come from the next slot, or bring nothing."""

    def __init__(self, cache: KvCache, host: HostMemory, worker: Worker, copies: Copies) -> None:
        lag = Lag(copies.shortest, copies.longest)
        fails = {Direction.LOAD: copies.lost_loads}
        super().__init__(cache, host, worker, lag, fails, Random(f"{copies.seed}/lag/{worker}"))
        self._fault = copies.fault
        columns = {"zeros": 0, "zeros for the drafter": cache.columns[-1], STATE_FAULT: 0}
        self._lost = host.rows[:, columns[copies.fault] :] if copies.fault in columns else None
        """What of host memory holds zeros by the time of a load."""
        self._num_places = host.num_places

    def launch(self, transfer: Transfer) -> None:
        """A load is launched with the fault that was asked for."""
        if transfer.direction is Direction.LOAD:
            if self._lost is not None:
                lost = transfer.group_sizes[0] if self._fault == STATE_FAULT else len(transfer.source)
                self._lost[transfer.source[:lost]] = 0
            if self._fault == "another block":
                transfer = evolve(transfer, source=(transfer.source + 1) % self._num_places)
        super().launch(transfer)


class TestedConnector(BlocklifeConnector):
    """BlocklifeConnector, but for when bytes move, and for its faults."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        if wanted(os.environ).fault == "drafter unmarked":
            groups = [dataclasses.replace(group, is_eagle_group=False) for group in kv_cache_config.kv_cache_groups]
            kv_cache_config = dataclasses.replace(kv_cache_config, kv_cache_groups=groups)
        super().__init__(vllm_config, role, kv_cache_config)

    def make_copier(self) -> MakeCopier:
        """Copies as the environment asks for them."""
        copies = wanted(os.environ)
        return lambda cache, host, worker: FaultyCopier(cache, host, worker, copies)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """The first thing in a step; stores that are to come too early come here."""
        self.worker.begin(self._step(kv_connector_metadata))

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: object) -> None:
        """Behind the forward pass, or before it."""
        step = self._step(self._get_connector_metadata())
        self.worker.end(step, by_layer=asks_before_layers(forward_context))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """In each layer of a forward pass."""
        if wanted(os.environ).fault != LAYERS_UNHEARD:
            super().wait_for_layer_load(layer_name)

    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> dict[CacheHitSource, int]:
        """Where a load comes from."""
        found = super().get_external_cache_hit_sources(request, num_external_tokens)
        return {CacheHitSource.HOST: sum(found.values())} if found and wanted(os.environ).fault == TOLD_WRONG else found

    def take_events(self) -> Iterable[KVCacheEvent]:
        """What has become of the host tier."""
        for event in super().take_events():
            if isinstance(event, BlockStored) and wanted(os.environ).fault == TOLD_WRONG:
                event.token_ids = event.token_ids[::-1]
            yield event

    def _step(self, metadata: KVConnectorMetadata) -> StepPlan:
        step: StepPlan = metadata.step
        if wanted(os.environ).fault != "early store":
            return step
        plan = step.plans[-1]
        stores = evolve(plan, loads=(), flushes=())
        waited = (*plan.flushes, *(store.job for store in plan.stores))  # what a step waits for is launched ahead
        return evolve(step, plans=(*step.plans[:-1], stores, evolve(plan, stores=(), flushes=waited)))
