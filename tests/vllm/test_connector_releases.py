"""The adapter of the release that runs: its answers are those of this release's vLLM.

Goal: the rest of the connector asks no release. Method: the configuration of a rig, changed to what only some releases have.
"""

from __future__ import annotations

import sys

import pytest
from attrs import evolve

from blocklife.engines.vllm import _versions as versions
from blocklife.engines.vllm.connector import _cache as cache
from blocklife.engines.vllm.connector.releases._release import release
from blocklife.errors import MisuseError
from tests.vllm.connector_rig import ConnectorRig, with_guesses
from tests.vllm.connector_worlds import FULL
from tests.vllm.engine import MINOR, RELEASE, Engine
from tests.vllm.worlds import WORLDS, GroupSpec

WORLD = WORLDS["full"].spec


def test_adapter_is_that_of_the_release() -> None:
    """It has the release's own name, and no adapter of a later release is imported: that may name what is not there."""
    adapter = release()
    imported = [int(name.rpartition("_")[2]) for name in sys.modules if "connector.releases._vllm_0_" in name]

    assert versions.minor_of(adapter.name) == versions.minor_of(RELEASE)
    assert max(imported) == MINOR


def test_no_adapter_for_a_release_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused in one line, with the remedy."""
    monkeypatch.setattr("vllm.__version__", "0.29.0")

    with pytest.raises(MisuseError, match=r"vLLM 0\.29\.0: this connector supports .*\(install one of these, [^\n]*\)$"):
        release()


def test_hash_is_of_as_many_tokens_as_the_scheduler_was_made_with() -> None:
    """With groups of several block sizes, too."""
    for groups in ((FULL,), (GroupSpec("full", 16), GroupSpec("swa", 4, window=8))):
        engine = ConnectorRig(evolve(WORLD, groups=groups)).engine

        assert release().hash_tokens(engine.config, engine.kv_cache_config) == engine.scheduler.hash_block_size


@pytest.mark.parametrize("tokens", [4, 16])
def test_hits_end_inside_blocks_where_the_scheduler_lets_them(tokens: int) -> None:
    """With states whose blocks are larger than the attention's: vLLM's own coordinator of the cache agrees."""
    engine = Engine(evolve(WORLD, connector=None, groups=(FULL, GroupSpec("mamba", tokens))))
    found = release().hits_inside_blocks(engine.kv_cache_config, engine.scheduler.hash_block_size, 1)

    assert found == engine.scheduler.kv_cache_manager.coordinator.enable_partial_hash_hits
    assert found == (tokens > FULL.block_tokens)


@pytest.mark.skipif(release().keeps_tails, reason="this release has tails")
def test_hits_inside_a_block_are_refused_where_they_are_not_kept() -> None:
    """With the remedy."""
    spec = evolve(WORLD, groups=(GroupSpec("full", 8), GroupSpec("mamba", 8)), hash_tokens=2)
    with pytest.raises(MisuseError, match=r"not offered before 0\.33 \(leave prefix_match_unit at the block size\)"):
        ConnectorRig(spec)


def test_auxiliary_outputs_are_refused() -> None:
    """Routed experts, by the setting that the release has for them."""
    engine = ConnectorRig(WORLD).engine
    owner = engine.config.model_config if MINOR < 31 else engine.config.aux_output_config
    object.__setattr__(owner, "enable_return_routed_experts", True)

    with pytest.raises(MisuseError, match=r"auxiliary outputs are not offered \(switch them off\)"):
        cache.check_engine(engine.config, engine.kv_cache_config)


def test_sources_of_hits_are_labels_of_vllm() -> None:
    """Each by vLLM's own name, where it has names for them; what brought nothing is left out."""
    found = release().hit_sources([("host", 30), ("disk", 0), ("host", 6)])

    assert {source.value: count for source, count in found.items()} == ({"host": 36} if MINOR >= 32 else {})


def test_extra_keys_of_events_are_those_of_vllms_own_events() -> None:
    """A salt and an adapter are published bare, however the release has them in its hashes."""
    hashed = [None, (("lora", "an adapter"), ("salt", "s"))] if MINOR >= 31 else [None, ("an adapter", "s")]

    assert release().event_extra_keys(hashed) == [None, ("an adapter", "s")]
    assert release().event_extra_keys(None) is None


def test_sleep_mode_is_refused_where_nobody_tells_of_it() -> None:
    """Copies would run into memory that is gone."""
    engine = ConnectorRig(WORLD).engine
    object.__setattr__(engine.config.model_config, "enable_sleep_mode", True)

    if MINOR < 33:
        with pytest.raises(MisuseError, match=r"sleep mode is not offered: .* \(leave enable_sleep_mode off\)"):
            cache.check_engine(engine.config, engine.kv_cache_config)
    else:
        cache.check_engine(engine.config, engine.kv_cache_config)


def test_session_is_stored_and_loaded_only_where_its_hashes_are_right() -> None:
    """Before 0.32 it keeps the hash of a block whose last token was taken back; others find nothing of it in the host."""
    rig = ConnectorRig(evolve(WORLD, num_gpu_blocks=64, host_blocks=64))
    rig.part("s", list(range(100, 113)), 4)
    rig.drain()
    rig.part("s", list(range(900, 906)), 4)
    rig.drain()
    rig.engine.abort(["s"])
    rig.drain()
    rig.check_empty()

    assert release().names_sessions == (MINOR >= 32)
    assert (rig.stored > 0) == (MINOR >= 32)


def test_session_beside_guesses_is_stored_only_where_it_goes_on_from_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.33 it may go on behind guesses that were right and cut off; the fuzz under 0.32 read wrong bytes (seed 98)."""
    with_guesses(monkeypatch, "ngram")
    rig = ConnectorRig(evolve(WORLD, num_gpu_blocks=64, host_blocks=64), drafts=True)
    rig.part("s", list(range(100, 113)), 4)
    rig.drain()
    rig.engine.abort(["s"])
    rig.drain()

    assert release().rewinds_sessions == (MINOR >= 33)
    assert (rig.stored > 0) == (MINOR >= 33)
