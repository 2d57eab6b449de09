"""The rig with a store below the host: its threads are real, and so is what they read and write."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from attrs import evolve

from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector._metrics import BlocklifeStats
from blocklife.offload import BelowStatistics
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.worlds import WorldSpec

PACE_S = 0.0005
"""What a step without tokens takes, as in vLLM's loop."""


class BelowRig(ConnectorRig):
    """A rig with a store below; it collects what the connector counts.

    The store's threads are real. Where it *keeps_up*, every second step, drawn by the seed, waits for what they copy: without
    that a machine that is busy elsewhere may let a walk end before anything has reached the store.
    """

    def __init__(self, spec: WorldSpec, address: str, seed: int = 0, *, keeps_up: bool = False, **more: Any) -> None:
        options = more.pop("options", {})
        self._waits = Random(f"{seed}/store") if keeps_up else None
        self.told = BlocklifeStats(data={})
        super().__init__(evolve(spec, extra_config={**spec.extra_config, "below": address, **options}), seed, **more)
        connector = self.scheduler.connector
        self._read: Callable[[], BlocklifeStats | None] = connector.get_kv_connector_stats
        connector.get_kv_connector_stats = self._tell

    @property
    def below(self) -> BelowStatistics:
        """What became of content, in chunks."""
        found = self.side.offload.statistics().below
        assert found is not None
        return found

    @property
    def counted(self) -> dict[str, dict[str, Any]]:
        """What the connector has told so far, by metric and label."""
        return {name.removeprefix("vllm:kv_offload_below_"): dict(values) for name, values in self.told.data.items()}

    def step(self) -> bool:
        """A step; one without tokens takes its time, as in vLLM's loop."""
        before = self.verified
        goes_on = super().step()
        if goes_on and self.verified == before:
            time.sleep(PACE_S)
        if self._waits is not None and self._waits.random() < 0.5:
            self._wait_for_the_store()
        return goes_on

    def _wait_for_the_store(self) -> None:
        for rank in self.ranks:
            assert rank.worker is not None
            below = rank.worker.connector.worker._below
            assert below is not None
            below.copier.wait(list(below.copier._out))

    def _tell(self) -> BlocklifeStats | None:
        said = self._read()
        if said is not None:
            self.told.aggregate(BlocklifeConnector.build_kv_connector_stats(said.data))
        return said

    def ask(self, tokens: Sequence[int], answer: int = 2, salt: str | None = None) -> None:
        """One request, and the steps after it until the engine sleeps."""
        self.add(tokens, answer, salt=salt)
        self.drain(40_000)
        self.check_empty()

    def close(self) -> None:
        """The engine ends, workers first."""
        for rank in self.ranks:
            assert rank.worker is not None
            rank.worker.connector.shutdown()
        self.scheduler.connector.shutdown()
