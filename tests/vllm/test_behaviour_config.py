"""What of vLLM's tests is about things that our connector does not offer: each is refused, or is not there, and says so.

Goal: nothing that those tests are about goes wrong in silence. Method: the configuration that brings the thing about, and the
connector that is made with it. Which test of theirs each of these stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from attrs import evolve
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import BlockStored
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from blocklife.engines.vllm.connector import _cache as cache
from blocklife.errors import MisuseError
from blocklife.testing.vllm import _making as making
from tests.vllm.behaviour.scenes import FULL, ROOMY, STATE, WINDOW, Scene, prompt
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.worlds import GroupSpec


def test_block_sizes_that_do_not_divide_are_refused() -> None:
    """Groups whose blocks do not end together are refused when the engine starts, with both sizes."""
    with pytest.raises(MisuseError, match="block_tokens 12 and 16 do not share their boundaries"):
        ConnectorRig(evolve(ROOMY, groups=(GroupSpec("full", 12), GroupSpec("full", 16))))


def test_prefix_hits_inside_a_block_are_refused() -> None:
    """With states of more tokens than a hash has vLLM would hit a part of a block: refused, with the remedy."""
    with pytest.raises(MisuseError, match=r"prefix hits inside a block .* \(leave prefix_match_unit at the block size\)"):
        ConnectorRig(evolve(ROOMY, groups=(FULL, GroupSpec("mamba", 16))))


def test_windows_that_keep_more_are_refused() -> None:
    """A group that keeps tokens behind its window, for a drafter, is refused by name."""
    rig = ConnectorRig(evolve(ROOMY, groups=(FULL, WINDOW)))
    spec = rig.engine.kv_cache_config.kv_cache_groups[1].kv_cache_spec
    object.__setattr__(spec, "extra_retained_tokens", 3)

    with pytest.raises(MisuseError, match=r"group 1 \(SlidingWindowSpec\) keeps 3 tokens behind its window"):
        cache.geometry_of(rig.engine.kv_cache_config, rig.side.config)


def test_drafter_beside_states_is_refused() -> None:
    """A guess that was wrong cannot be taken back from a state; what vLLM keeps of it for that is not known to the ledger."""
    rig = ConnectorRig(evolve(ROOMY, groups=(FULL, STATE)))
    drafter = SimpleNamespace(method="mtp", use_eagle=lambda: True)
    object.__setattr__(rig.engine.config, "speculative_config", drafter)

    with pytest.raises(MisuseError, match="speculative decoding with Mamba layers is not offered"):
        cache.check_engine(rig.engine.config, rig.engine.kv_cache_config)


def test_every_hit_is_of_the_host() -> None:
    """vLLM is told that all tokens of a load come from the host, which is the only tier."""
    scene = Scene((FULL, WINDOW))
    scene.ask(prompt(40))
    scene.forget_device()
    name = scene.add(prompt(40))
    request = scene.rig.scheduler.requests[name]
    scene.rig.step()
    connector = scene.rig.scheduler.connector

    assert connector.get_external_cache_hit_sources(request, 36) == {CacheHitSource.HOST: 36}
    assert connector.get_external_cache_hit_sources(request, 0) == {}


@pytest.mark.parametrize("chunk", [1, 2])
def test_events_name_content_and_no_tokens(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of a store has the name of what can be read, a group, and no tokens: a lookup leaves nothing behind for it."""
    config = making.config_of

    def with_events(shape: making.Shape) -> object:
        made = config(shape)
        made.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        return made

    monkeypatch.setattr(making, "config_of", with_events)
    scene = Scene(chunk=chunk)
    connector, told = scene.rig.scheduler.connector, list[object]()
    take = connector.take_events

    def keep() -> list[object]:
        told.extend(found := list(take()))
        return found

    monkeypatch.setattr(connector, "take_events", keep)
    scene.ask(prompt(16))
    stored = [event for event in told if isinstance(event, BlockStored)]

    assert len(stored) == 4 // chunk
    assert {(len(event.block_hashes), event.block_size, event.group_idx) for event in stored} == {(1, 0, 0)}
    assert all(event.token_ids == [] for event in stored)
