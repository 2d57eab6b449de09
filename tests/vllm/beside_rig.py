"""The rig with two connectors in vLLM's MultiConnector: blocklife's, and one that brings and sends (`second`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from attrs import asdict, evolve
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector
from vllm.forward_context import ForwardContext
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector._scheduler import ConnectorScheduler
from tests.proof.drivers.vllm import making
from tests.vllm import engine
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.runner import Turn
from tests.vllm.second import Habits, SecondConnector
from tests.vllm.worlds import WorldSpec

SECOND = {"kv_connector": "SecondConnector", "kv_connector_module_path": "tests.vllm.second", "kv_role": "kv_both"}


def _both(other: Mapping[str, object], *, first: bool) -> Callable[..., KVTransferConfig]:
    make = engine._transfer_config

    def transfer_config(*args: object) -> KVTransferConfig:
        ours = make(*args)  # type: ignore[arg-type]
        assert ours is not None
        children = [
            other,
            {
                "kv_connector": ours.kv_connector,
                "kv_role": "kv_both",
                "kv_connector_module_path": ours.kv_connector_module_path,
                "kv_connector_extra_config": ours.kv_connector_extra_config,
            },
        ]
        if first:
            children.reverse()
        return KVTransferConfig(
            kv_connector="MultiConnector",
            kv_role=ours.kv_role,
            kv_connector_extra_config={"connectors": children},
            engine_id="rig",
        )

    return transfer_config


class BesideRig(ConnectorRig):
    """A rig with both. *first*: whether vLLM asks blocklife's connector first what it can load."""

    def __init__(
        self,
        spec: WorldSpec,
        seed: int = 0,
        habits: Habits | None = None,
        *,
        first: bool = False,
        **more: Any,
    ) -> None:
        habits = evolve(habits or Habits(), seed=seed)
        with mock.patch.object(
            engine, "_transfer_config", _both({**SECOND, "kv_connector_extra_config": asdict(habits)}, first=first)
        ):
            super().__init__(spec, seed, **more)
        units = {group.kind: group.window or group.block_tokens for group in spec.groups}
        self.second.states = units.get("mamba", 0) or (0 if habits.restores else units.get("ring", 0))
        self.second.windows = any(group.kind in ("swa", "recent", "local", "replay") for group in spec.groups)
        for rank in self.ranks:
            assert rank.worker is not None
            for each in rank.worker.connector.sub_connectors:
                if isinstance(each, SecondConnector):
                    each.attach(rank.memory, spec.groups)

    def _child(self, kind: type) -> object:
        connector = self.scheduler.connector
        assert isinstance(connector, MultiConnector)
        (found,) = [each for each in connector.sub_connectors if isinstance(each, kind)]
        return found

    @property
    def side(self) -> ConnectorScheduler:
        """The scheduler's half of our connector."""
        found = self._child(BlocklifeConnector)
        assert isinstance(found, BlocklifeConnector)
        return found.scheduler

    @property
    def second(self) -> SecondConnector:
        """The scheduler's half of the other one."""
        found = self._child(SecondConnector)
        assert isinstance(found, SecondConnector)
        return found

    @property
    def seconds(self) -> list[SecondConnector]:
        """Its workers' halves."""
        return [
            each
            for rank in self.ranks
            if rank.worker is not None
            for each in rank.worker.connector.sub_connectors
            if isinstance(each, SecondConnector)
        ]

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """A step that reads what it was told to be junk is not wrong: vLLM drops it."""
        known = len(self.witness.corruptions)
        result = super()._execute(output)
        spoilt = set().union(*(each.told.spoilt for each in self.seconds))
        self.witness.corruptions[known:] = [each for each in self.witness.corruptions[known:] if each.block not in spoilt]
        self.witness._seen.clear()
        return result

    def check_empty(self) -> None:
        """Raise AssertionError if anything is left although the engine is idle."""
        super().check_empty()
        assert not any(each.out for each in self.seconds)
        others = self.side.beside.others
        assert not others.guests
        assert not others.doubts


class ExampleRig(ConnectorRig):
    """A rig with vLLM's own ExampleConnector first, which keeps the beginnings of prompts in files; one group, one worker."""

    def __init__(self, spec: WorldSpec, folder: str, seed: int = 0) -> None:
        other = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
        make = making.config_of

        def config_of(shape: making.Shape) -> VllmConfig:
            config = make(shape)
            config.scheduler_config.disable_hybrid_kv_cache_manager = True  # it does not know of groups
            return config

        both = _both({**other, "kv_connector_extra_config": {"shared_storage_path": folder}}, first=False)
        with mock.patch.object(engine, "_transfer_config", both), mock.patch.object(making, "config_of", config_of):
            super().__init__(spec, seed)
        (rank,) = self.ranks
        (group,) = spec.groups
        cache = torch.from_numpy(rank.memory.device.view("int64")).view(spec.num_gpu_blocks, 1, group.block_tokens, 1)
        layers, metadata = {"layer0": SimpleNamespace(kv_cache=cache)}, {"layer0": None}
        worker, forward = rank.worker, rank.forward.run
        assert worker is not None
        worker._context = ForwardContext(no_compile_layers=layers, attn_metadata=metadata, slot_mapping={})

        def run(turns: Sequence[Turn]) -> None:
            forward(turns)
            worker.connector.save_kv_layer("layer0", cache, None)

        rank.forward.run = run  # type: ignore[method-assign]

    @property
    def side(self) -> ConnectorScheduler:
        """The scheduler's half of our connector."""
        (found,) = [each for each in self.scheduler.connector.sub_connectors if isinstance(each, BlocklifeConnector)]
        return found.scheduler
