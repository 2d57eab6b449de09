"""Sleep mode for the rig: vLLM's own engine core puts it to sleep and wakes it up; the device's memory comes back as junk."""

from __future__ import annotations

from typing import cast
from unittest import mock

import numpy as np
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.v1.engine.core import EngineCore

from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from tests.vllm.connector_rig import ConnectorRig


class _Executor:
    """What the engine's core asks of its workers."""

    def __init__(self, rig: ConnectorRig, renew: bool) -> None:
        self._rig = rig
        self._renew = renew
        self.is_sleeping = False

    def _connectors(self) -> list[BlocklifeConnector]:
        return [cast(BlocklifeConnector, rank.worker.connector) for rank in self._rig.ranks if rank.worker is not None]

    def collective_rpc(self, method: str) -> None:
        assert method == "synchronize_device"

    def reset_encoder_cache(self) -> None:
        """There is none."""

    def sleep(self, level: int) -> None:
        for rank, connector in zip(self._rig.ranks, self._connectors(), strict=True):
            connector.unregister_kv_caches()
            connector.unregister_kv_caches()
            rank.memory.device[:] = np.uint64(0xBAD)
        self.is_sleeping = True

    def wake_up(self, tags: list[str] | None = None) -> None:
        if not self.is_sleeping:
            return
        for connector in self._connectors():
            connector.restore_kv_caches()
            connector.restore_kv_caches()
        if self._renew:
            self._rig.renew_weights()
        self.is_sleeping = False

    def get_kv_connector_handshake_metadata(self) -> list[object]:
        said = []
        for connector in self._connectors():
            with mock.patch.object(kv_transfer_state, "_KV_CONNECTOR_AGENT", connector):  # that of the worker's process
                said.append(connector.get_handshake_metadata())
        return [None if each is None else {(0, rank): each} for rank, each in enumerate(said)]


def core_of(rig: ConnectorRig, *, renew: bool = False) -> EngineCore:
    """The engine's core around a rig; with *renew* the model has other weights when it wakes up."""
    core = cast(EngineCore, object.__new__(EngineCore))
    core.scheduler, core.model_executor, core.batch_queue = rig.scheduler, _Executor(rig, renew), None
    core.reset_mm_cache = lambda: None
    core.reset_encoder_cache = core.model_executor.reset_encoder_cache
    core.pause_requested = False
    return core


def nap(rig: ConnectorRig, *, renew: bool = False, mode: str = "abort") -> None:
    """Sleep, and wake up at once."""
    core = core_of(rig, renew=renew)
    assert core.sleep(1, mode) is None
    if mode == "abort":
        rig.running.clear()
    assert core.wake_up()
