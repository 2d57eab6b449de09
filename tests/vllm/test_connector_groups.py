"""Which groups of a model are offered, as what, and which are left out.

Method: the specs of each family are grouped by vLLM's planner and shown to the connector. A control of the walks over rings
is not told that a block of a group without keys was handed out.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from attrs import evolve
from vllm.distributed.kv_events import MEDIUM_CPU
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from blocklife.engines.vllm.connector._cache import shape_of
from blocklife.engines.vllm.connector._config import ConnectorConfig
from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector._groups import geometry_of, offered_groups
from blocklife.engines.vllm.connector._metrics import Meter
from blocklife.errors import MisuseError
from blocklife.offload._engine_pool import EnginePool
from tests.proof.drivers.vllm import making
from tests.vllm.connector_rig import ConnectorRig, walk
from tests.vllm.connector_worlds import CROWDED, SETS, prompt
from tests.vllm.engine import MINOR
from tests.vllm.listeners import listen
from tests.vllm.rig import Rig
from tests.vllm.test_connector_walks import SCENES
from tests.vllm.worlds import GroupSpec, Lag, group

RINGS = SETS["unnamed"]


@pytest.mark.skipif(MINOR < 33, reason="the families are those of 0.33")
def test_table_of_families_is_what_the_connector_says() -> None:
    """Run ``python -m tests.vllm.run --python 0.33.0 -m tests.vllm.families --write`` where it is not."""
    from tests.vllm.families import FAMILIES, PAGE, table, taken

    names = {scene.id for scene in SCENES}
    refused = [family.name for family in FAMILIES if isinstance(taken(family), MisuseError)]

    assert table() in PAGE.read_text(encoding="utf-8")
    assert refused == [family.name for family in FAMILIES if family.why]
    assert all(any(name.startswith(each.bytes_seen) for name in names) for each in FAMILIES)


@pytest.mark.skipif(MINOR < 33, reason="the seeds are those of 0.33")
def test_walk_finds_a_ring_that_nobody_was_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a block of a ring is written while a store reads it."""
    monkeypatch.setattr(EnginePool, "handed_out", lambda _self, _blocks: None)
    spec = evolve(CROWDED, groups=RINGS["ring and window"], num_gpu_blocks=20, lag=Lag(2, 6))

    def play() -> None:
        for seed in range(20):
            walk(ConnectorRig(evolve(spec, async_scheduling=seed % 2 == 0), seed), seed, 60)

    with pytest.raises(AssertionError, match="reads wrong bytes"):
        play()


def test_group_that_is_left_out_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """With its number, its kind and the reason; a model without one has no such line."""
    with caplog.at_level(logging.WARNING, logger="vllm"):
        rig = ConnectorRig(evolve(CROWDED, groups=RINGS["ring first"]))
        told = [each.getMessage() for each in caplog.records if "left out" in each.getMessage()]
        caplog.clear()
        ConnectorRig(evolve(CROWDED, groups=RINGS["ring first"][1:]))

    assert told == [
        "blocklife: left out, because vLLM finds its blocks not again by their content: group 0 (CircularBufferSpec, 1 layers)"
    ]
    assert not [each for each in caplog.records if "left out" in each.getMessage()]
    assert rig.side.shape.groups.numbers == (1,)
    assert [str(each) for each in rig.side.shape.geometry.groups] == ["full:4"]


def test_model_of_which_nothing_is_found_again_is_refused() -> None:
    """Nothing would ever be stored."""
    rig = ConnectorRig(evolve(CROWDED, groups=RINGS["ring"]))
    config = rig.engine.kv_cache_config
    alone = KVCacheConfig(num_blocks=config.num_blocks, kv_cache_tensors=[], kv_cache_groups=config.kv_cache_groups[1:])

    with pytest.raises(MisuseError, match=r"no group of the model has blocks .* \(leave the connector out\)"):
        shape_of(rig.engine.config, alone, ConnectorConfig.read({"host_blocks": 8}))


def test_events_name_groups_as_the_engine_does() -> None:
    """Behind a group that is left out."""
    rig = ConnectorRig(evolve(CROWDED, groups=RINGS["ring first"], events=True))
    listener = listen(rig)
    rig.add(prompt(9), 2)
    rig.drain()
    told = [each for each in listener.events if each.medium == MEDIUM_CPU]

    assert told
    assert {each.group_idx for each in told} == {1}
    assert offered_groups(rig.engine.kv_cache_config)[0].others == (0,)


def test_metrics_and_errors_name_groups_as_the_engine_does() -> None:
    """Behind a group that is left out."""
    rig = ConnectorRig(evolve(CROWDED, groups=RINGS["ring first"]))
    rig.add(prompt(13), 2)
    rig.drain()
    rig.reset_prefix_cache()
    rig.add(prompt(13), 2)
    rig.drain()
    stats = Meter(rig.side).read()
    state = MambaSpec(block_size=4, shapes=((4,),), dtypes=(torch.float32,))
    rig.engine.kv_cache_config.kv_cache_groups[1].kv_cache_spec = state

    assert rig.loaded
    assert stats is not None
    assert stats.data["vllm:kv_offload_hit_blocks"] == {"1": rig.loaded}
    with pytest.raises(MisuseError, match=r"group 1 \(MambaSpec\) has mamba_cache_mode"):
        geometry_of(rig.engine.kv_cache_config, rig.side.config)


def test_layers_of_several_kinds_are_seen_by_the_workers() -> None:
    """The scheduler's half is shown the first layer of a group alone."""
    rig = ConnectorRig(evolve(CROWDED, groups=(GroupSpec("full"),)))
    shape = {"block_size": 4, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs = {"a": FullAttentionSpec(**shape), "b": SlidingWindowSpec(**shape, sliding_window=8)}
    group = KVCacheGroupSpec([*specs], UniformTypeKVCacheSpecs(block_size=4, kv_cache_specs=specs))
    held = replace(rig.engine.kv_cache_config, kv_cache_groups=[group])

    BlocklifeConnector(rig.engine.config, KVConnectorRole.SCHEDULER, generate_scheduler_kv_cache_config([held]))
    with pytest.raises(MisuseError, match="group 0 has layers of 2 kinds"):
        BlocklifeConnector(rig.engine.config, KVConnectorRole.WORKER, held)


def test_ring_in_which_a_hit_could_end_is_refused() -> None:
    """Prefixes on the device end at multiples of all blocks, and so does what is loaded."""
    with pytest.raises(MisuseError, match=r"group 1 has blocks of 8 tokens .* hits end at multiples of 4, inside one of them"):
        ConnectorRig(evolve(CROWDED, groups=(GroupSpec("full"), group("ring:8:4"))))


def test_last_token_behind_a_whole_hit_is_not_computed_with_an_empty_ring() -> None:
    """It would be the middle of what is compressed together, and the ring of the request is a new block."""
    spec = evolve(CROWDED, groups=RINGS["ring"], extra_config={"full_hit": "recompute_last_token"})
    with pytest.raises(MisuseError, match=r"recompute_last_token needs full attention in every group \(use drop_last_block\)"):
        ConnectorRig(spec)


@pytest.mark.skipif(MINOR < 33, reason="seen in 0.33")
def test_sinks_do_not_even_start_in_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with the connector, which refuses them, nor without: their manager does not take what all managers are given."""
    from vllm.v1.kv_cache_interface import SinkFullAttentionSpec

    page_spec = making._page_spec

    def with_sinks(*given: object, **more: object) -> SinkFullAttentionSpec:
        spec = page_spec(*given, **more)  # type: ignore[arg-type]
        return SinkFullAttentionSpec(block_size=spec.block_size, num_kv_heads=1, head_size=1, dtype=spec.dtype, sink_len=8)

    monkeypatch.setattr(making, "_page_spec", with_sinks)
    with pytest.raises(MisuseError, match="SinkFullAttentionSpec"):
        ConnectorRig(evolve(CROWDED, groups=(GroupSpec("full"),)))
    with pytest.raises(TypeError, match=r"SinkFullAttentionManager.*needs_kv_cache_zeroing"):
        Rig(evolve(CROWDED, groups=(GroupSpec("full"),), connector=None))
