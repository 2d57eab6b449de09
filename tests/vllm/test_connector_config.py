"""What a user can choose and what is refused: each mistake gets an error that names it and says what to do.

Goal: a typo or an engine that is not offered is met when the engine starts, never later. Method: each mistake is made.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
import vllm
from attrs import evolve
from vllm.v1.kv_cache_interface import (
    CrossAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

import blocklife.engines.vllm
from blocklife.copiers._movers import USUAL
from blocklife.engines.vllm import _versions as versions
from blocklife.engines.vllm.connector import _cache as cache
from blocklife.engines.vllm.connector._config import Caps, ConnectorConfig
from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from blocklife.engines.vllm.connector._groups import geometry_of
from blocklife.errors import MisuseError
from blocklife.ledger import Checking
from blocklife.offload import FullHit, LastStep, Mode
from blocklife.policies import BUILT_IN
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.worlds import GroupSpec, WorldSpec

WORLD = WorldSpec((GroupSpec("full"),), connector="blocklife")
POLICIES = ", ".join(sorted(BUILT_IN))


@pytest.mark.parametrize("given", ["x", [1], 7, True])
def test_parameters_of_a_request_that_are_no_object_are_left_out(given: object) -> None:
    """vLLM hands on what a client has sent; its engine must not fall over it."""
    caps, problems = Caps.read(given)

    assert caps == Caps()
    assert problems == [f"kv_transfer_params must be an object with names and values, not {given!r} (they are left out)"]
    assert Caps.read(None) == Caps.read({}) == (Caps(), [])


def test_config_has_defaults_for_all_but_the_size() -> None:
    """A size is enough: everything else has a default."""
    config = ConnectorConfig.read({"host_blocks": 100})

    assert (config.blocks_per_chunk, config.policy, config.policies.mode) == (1, "arc", Mode.EAGER)
    assert (config.policies.last_step, config.policies.full_hit) == (LastStep.DRAIN, FullHit.DROP_LAST_BLOCK)
    assert (config.checking, config.policies.max_load_failures, config.policies.prompt_only) == (Checking.COUNT, 2, False)
    assert config.num_slots(4096, 2) == 100


def test_config_reads_every_key() -> None:
    """Choices are read by their names, bytes with their units, whole numbers also from floats of JSON."""
    config = ConnectorConfig.read(
        {
            "host_bytes": "1.5 GiB",
            "blocks_per_chunk": 4.0,
            "policy": "ARC",
            "mode": "lazy",
            "last_step": "flush",
            "full_hit": "recompute_last_token",
            "checking": "strict",
            "max_load_failures": 0,
            "max_load_tokens": 0,
        }
    )

    assert (config.host_bytes, config.policy) == (3 << 29, "arc")
    assert config.num_slots(1 << 20, 2) == (3 << 29) // (8 << 20)
    assert (config.policies.mode, config.policies.last_step, config.checking) == (Mode.LAZY, LastStep.FLUSH, Checking.STRICT)
    assert (config.blocks_per_chunk, config.policies.max_load_failures, config.policies.max_load_tokens) == (4, 0, 0)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("7", 7), ("7B", 7), ("7k", 7 * 10**3), ("7MB", 7 * 10**6), ("7 g", 7 * 10**9), ("7TB", 7 * 10**12)),
        *(("7KiB", 7 << 10), ("7mi", 7 << 20), ("7 GiB", 7 << 30), ("0.5TiB", 1 << 39)),
    ],
)
def test_config_reads_bytes_in_every_unit(text: str, size: int) -> None:
    """Thousands without an i, and powers of two with one."""
    assert ConnectorConfig.read({"host_bytes": text}).host_bytes == size


def test_config_pins_which_mover_takes_which_copy(tmp_path: Path) -> None:
    """As data, or as a file; the copier of a worker gets it. A probe decides where it is left out."""
    file = tmp_path / "movers.json"
    file.write_text(json.dumps(USUAL.as_json()))
    connector = object.__new__(BlocklifeConnector)
    connector.config = ConnectorConfig.read({"host_blocks": 1, "movers": str(file)})
    made = connector.make_copier()

    assert ConnectorConfig.read({"host_blocks": 1, "movers": USUAL.as_json()}).movers == USUAL
    assert ConnectorConfig.read({"host_blocks": 1}).movers is None
    assert isinstance(made, partial)
    assert made.keywords == {"movers": USUAL}


def test_config_understands_some_keys_of_the_offloading_connector() -> None:
    """What means the same there can be left as it is."""
    config = ConnectorConfig.read({"cpu_bytes_to_use": 1 << 30, "offload_prompt_only": True, "eviction_policy": "arc"})

    assert (config.host_bytes, config.policies.prompt_only, config.policy) == (1 << 30, True, "arc")


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"host_blocs": 3}, "'host_blocs' is no key of this connector (did you mean 'host_blocks'?)"),
        ({"spec_name": "x", "host_blocks": 3}, "'spec_name' is no key"),
        ({}, "neither of host_bytes and host_blocks given"),
        ({"host_blocks": 1, "host_bytes": 1}, "both of host_bytes and host_blocks given"),
        ({"host_bytes": 1, "cpu_bytes_to_use": 1}, "'cpu_bytes_to_use' says 'host_bytes' once more"),
        ({"host_blocks": 0}, "host_blocks must be a whole number of at least 1, not 0"),
        ({"host_blocks": True}, "host_blocks must be a whole number of at least 1, not True"),
        ({"host_blocks": 2.5}, "host_blocks must be a whole number of at least 1, not 2.5"),
        ({"host_bytes": "much"}, "host_bytes must be a whole number of bytes, or a text like '64GiB', not 'much'"),
        ({"host_bytes": "0.5"}, "host_bytes must be a whole number of bytes, or a text like '64GiB', not '0.5'"),
        ({"host_bytes": 0}, "host_bytes must be a whole number of bytes, or a text like '64GiB', not 0"),
        ({"host_blocks": 1, "blocks_per_chunk": 65}, "blocks_per_chunk must be a whole number from 1 to 64, not 65"),
        ({"host_blocks": 1, "max_jobs": 1 << 21}, "max_jobs must be a whole number from 1 to 1048576, not 2097152"),
        ({"host_blocks": 1, "movers": 7}, "movers must be an object with num_runs, run_bytes, load, store and nothing else"),
        ({"host_blocks": 1, "movers": "/nowhere"}, "movers: /nowhere cannot be read: "),
        ({"host_blocks": 1, "mode": "later"}, "mode must be one of eager, lazy, not 'later'"),
        ({"host_blocks": 1, "prompt_only": 1}, "prompt_only must be true or false, not 1"),
        ({"host_blocks": 1, "max_load_failures": -1}, "max_load_failures must be a whole number of at least 0, not -1"),
        ({"host_blocks": 1, "policy": 3}, f"policy must be one of {POLICIES}, or a name that was registered before, not 3"),
        (
            {"host_blocks": 1, "policy": "nonesuch"},
            f"policy must be one of {POLICIES}, or a name that was registered before, not 'nonesuch'",
        ),
    ],
)
def test_config_refuses_what_it_does_not_know(extra: Mapping[str, object], says: str) -> None:
    """Each mistake is an error that names the key, and the nearest one or what is wanted."""
    with pytest.raises(MisuseError) as refused:
        ConnectorConfig.read(extra)

    assert says in str(refused.value)


def test_config_refuses_a_host_that_holds_no_chunk() -> None:
    """Less than one chunk is refused, with the numbers."""
    with pytest.raises(MisuseError, match="host_blocks=3 holds no chunk, which takes 4 blocks"):
        ConnectorConfig.read({"host_blocks": 3, "blocks_per_chunk": 4}).num_slots(1, 1)
    with pytest.raises(MisuseError, match="host_bytes=100 holds no chunk, which takes 128 bytes in 2 parts"):
        ConnectorConfig.read({"host_bytes": 100}).num_slots(64, 2)


@pytest.mark.parametrize(
    "given", [{"host_blocks": 1 << 32}, {"host_bytes": "9" * 400}, {"host_bytes": "9e9TiB"}, {"host_bytes": "4TiB"}]
)
def test_config_refuses_a_host_of_too_many_chunks(given: Mapping[str, object]) -> None:
    """More chunks than a ledger can count are refused, with the numbers; and a number with an exponent is no text of bytes."""
    with pytest.raises(MisuseError, match=r"chunks, of which there can be 2147483648 at most|a text like '64GiB'"):
        ConnectorConfig.read(given).num_slots(64, 2)


@pytest.mark.parametrize("version", ["0.30.0", "0.31.2", "0.32.9", "0.33.0rc1", "0.33.1.dev3+gabc", "0.33.0+cpu", "v0.33.0"])
def test_versions_in_the_range_are_taken(version: str) -> None:
    """Patch releases, candidates and builds of the supported minor releases."""
    versions.check(version)

    assert versions.is_supported(version)


@pytest.mark.parametrize("version", ["0.29.0", "0.34.0", "0.3.3", "0.330.0", "1.33.0", "dev", ""])
def test_versions_out_of_the_range_are_refused(version: str) -> None:
    """Any other release is refused by name, with the range."""
    with pytest.raises(MisuseError, match=r"supports vLLM 0\.30\.x, .*, 0\.33\.x \(install one of these") as refused:
        versions.check(version)

    assert f"vLLM {version}:" in str(refused.value)


def test_connector_refuses_another_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector asks the release it runs in before it does anything."""
    monkeypatch.setattr(vllm, "__version__", "0.34.0")

    with pytest.raises(MisuseError, match=r"vLLM 0\.34\.0"):
        ConnectorRig(WORLD)
    with pytest.raises(MisuseError, match=r"vLLM 0\.34\.0"):
        blocklife.engines.vllm.BlocklifeConnector  # noqa: B018 - it is looked up when it is asked for


def _pretend(config: object, path: str, value: object) -> None:
    *owners, last = path.split(".")
    for each in owners:
        config = getattr(config, each)
    object.__setattr__(config, last, value)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("model_config.is_diffusion", True, "a diffusion model is not offered"),
        ("parallel_config.pipeline_parallel_size", 2, "host_bytes with pipeline_parallel_size=2: blocks differ in size"),
        ("parallel_config.enable_fault_tolerance", True, "fault tolerance is not offered"),
    ],
)
def test_connector_refuses_engines_that_are_not_offered(path: str, value: object, says: str) -> None:
    """What is not known to work is refused when the engine starts, with a remedy."""
    rig = ConnectorRig(evolve(WORLD, world_size=2))
    _pretend(rig.engine.config, path, value)

    with pytest.raises(MisuseError) as refused:
        cache.shape_of(rig.engine.config, rig.engine.kv_cache_config, ConnectorConfig.read({"host_bytes": 1 << 20}))
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("pretended", "told"),
    [
        ({}, ""),
        ({"parallel_config.data_parallel_size": 4}, "; each of 4 engines (data parallelism) has as much: 8.00 MiB in all"),
        (
            {"parallel_config.data_parallel_index": 3, "kv_transfer_config.engine_id": "x_dp3"},
            "; this is engine 3 of several (data parallelism), counted from 0, and each of them has as much",
        ),
        (
            {"kv_transfer_config.engine_id": "x_dp0"},
            "; this is engine 0 of several (data parallelism), counted from 0, and each of them has as much",
        ),
    ],
)
def test_connector_says_how_much_host_memory_an_engine_and_all_engines_have(pretended: Mapping[str, object], told: str) -> None:
    """With data parallelism the size counts for each engine. Of a dense model vLLM tells an engine its number only."""
    rig = ConnectorRig(evolve(WORLD, world_size=2))
    for path, value in pretended.items():
        _pretend(rig.engine.config, path, value)
    config = ConnectorConfig.read({"host_bytes": (2 << 20) + 1})
    said = cache.host_memory_told(rig.engine.config, rig.engine.kv_cache_config, config)
    chunks = cache.num_slots(rig.engine.config, rig.engine.kv_cache_config, config)

    assert said == f"host memory of this engine: {chunks:,} chunks, 2.00 MiB on 2 workers together{told}"


def test_connector_says_how_much_host_memory_it_has_of_stages_of_a_pipeline() -> None:
    """Their blocks differ in size: the bytes of one stage would be taken for those of all."""
    rig = ConnectorRig(WORLD)
    _pretend(rig.engine.config, "parallel_config.pipeline_parallel_size", 2)
    _pretend(rig.engine.config, "parallel_config.data_parallel_size", 2)
    config = ConnectorConfig.read({"host_blocks": 100})

    assert cache.host_memory_told(rig.engine.config, rig.engine.kv_cache_config, config) == (
        "host memory of this engine: 100 chunks on each worker; each of 2 engines (data parallelism) has as much"
    )


def test_connector_logs_how_much_host_memory_it_has(caplog: pytest.LogCaptureFixture) -> None:
    """One line when the engine starts, from the scheduler's half."""
    caplog.set_level(logging.INFO, "vllm.blocklife")
    ConnectorRig(evolve(WORLD, world_size=2))

    (line,) = [said for each in caplog.records if "host memory of this engine" in (said := each.getMessage())]
    assert re.fullmatch(r"blocklife: host memory of this engine: [\d,]+ chunks, [\d.]+ [MG]iB on 2 workers together", line)


def test_connector_refuses_a_budget_where_vllm_goes_on_after_a_failed_load() -> None:
    """vLLM would leave the blocks of a load within a step where other requests hit them."""
    rig = ConnectorRig(WORLD)
    _pretend(rig.engine.config, "kv_transfer_config.kv_load_failure_policy", "recompute")
    given = ConnectorConfig.read({"host_bytes": 1 << 20, "sync_load_budget_bytes": "1MiB"})

    with pytest.raises(MisuseError, match="sync_load_budget_bytes with kv_load_failure_policy='recompute' is not offered"):
        cache.shape_of(rig.engine.config, rig.engine.kv_cache_config, given)


def test_loads_within_steps_of_a_producer_with_a_step_ahead_are_refused() -> None:
    """vLLM would hand out blocks that a load still writes; without a step ahead no request ends while its step is out."""
    given = ConnectorConfig.read({"host_bytes": 1 << 20, "sync_load_budget_bytes": "1MiB"})
    for ahead in (False, True):
        rig = ConnectorRig(evolve(WORLD, async_scheduling=ahead, role="kv_producer"))
        if ahead:
            with pytest.raises(MisuseError, match="sync_load_budget_bytes with kv_role='kv_producer' is not offered"):
                cache.shape_of(rig.engine.config, rig.engine.kv_cache_config, given)
        else:
            assert cache.shape_of(rig.engine.config, rig.engine.kv_cache_config, given).load_within_tokens


def test_connector_knows_the_groups_of_a_drafter() -> None:
    """vLLM says which groups hold layers of a drafter; a state cannot be one of them."""
    rig = ConnectorRig(evolve(WORLD, groups=(GroupSpec("full"), GroupSpec("swa", window=9), GroupSpec("mamba"))))
    groups = rig.engine.kv_cache_config.kv_cache_groups
    groups[1].is_eagle_group = True
    found = geometry_of(rig.engine.kv_cache_config, rig.side.config)
    groups[2].is_eagle_group = True

    assert found.drafters == (False, True, False)
    with pytest.raises(MisuseError, match="group 2 holds states of a drafter"):
        geometry_of(rig.engine.kv_cache_config, rig.side.config)


def test_connector_refuses_a_model_without_a_cache() -> None:
    """There is nothing to copy."""
    rig = ConnectorRig(WORLD)
    config = rig.engine.kv_cache_config
    config.kv_cache_groups.clear()
    with pytest.raises(MisuseError, match=r"of a model without a KV cache \(leave the connector out\)"):
        cache.check_engine(rig.engine.config, config)


def test_connector_refuses_kinds_of_groups_that_it_does_not_know() -> None:
    """A subclass of a known kind is not that kind: what its blocks hold is another matter."""
    rig = ConnectorRig(WORLD)
    group = rig.engine.kv_cache_config.kv_cache_groups[0]
    group.kv_cache_spec = CrossAttentionSpec(block_size=4, num_kv_heads=1, head_size=1, dtype=torch.float32)
    with pytest.raises(MisuseError, match=r"CrossAttentionSpec\) is no kind of group that is offered"):
        geometry_of(rig.engine.kv_cache_config, rig.side.config)

    group.kv_cache_spec = MambaSpec(block_size=4, shapes=((4,),), dtypes=(torch.float32,))
    with pytest.raises(MisuseError, match="mamba_cache_mode='none'"):
        geometry_of(rig.engine.kv_cache_config, rig.side.config)


def test_connector_refuses_a_group_of_several_kinds() -> None:
    """Each layer of a group is looked at, not the first one alone: a window among full attention is not full attention."""
    rig = ConnectorRig(WORLD)
    shape = {"block_size": 4, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    specs = {"a": FullAttentionSpec(**shape), "b": SlidingWindowSpec(**shape, sliding_window=8)}
    rig.engine.kv_cache_config.kv_cache_groups[0].kv_cache_spec = UniformTypeKVCacheSpecs(block_size=4, kv_cache_specs=specs)

    with pytest.raises(MisuseError, match="group 0 has layers of 2 kinds"):
        geometry_of(rig.engine.kv_cache_config, rig.side.config)


def test_block_takes_the_pages_of_all_layers_of_its_group() -> None:
    """Where vLLM has laid out no tensors: a page for each layer, and of layers of several sizes what their spec says of all."""
    rig = ConnectorRig(WORLD)
    config, group = rig.engine.kv_cache_config, rig.engine.kv_cache_config.kv_cache_groups[0]
    _pretend(config, "kv_cache_tensors", [])
    group.layer_names[:] = ["a", "b", "c"]
    page = group.kv_cache_spec.page_size_bytes
    alike = cache.block_bytes(config)
    specs = {
        name: FullAttentionSpec(block_size=4, num_kv_heads=heads, head_size=1, dtype=torch.float32)
        for heads, name in enumerate("abc", 1)
    }
    group.kv_cache_spec = UniformTypeKVCacheSpecs(block_size=4, kv_cache_specs=specs)

    assert alike == 3 * page
    assert cache.block_bytes(config) == sum(spec.page_size_bytes for spec in specs.values())


def test_connector_refuses_to_compute_one_token_again_behind_a_window() -> None:
    """The whole prompt can be loaded only where every token before the last one is there."""
    extra = {"full_hit": "recompute_last_token"}

    with pytest.raises(MisuseError, match="needs full attention in every group"):
        ConnectorRig(evolve(WORLD, groups=(GroupSpec("full"), GroupSpec("swa", window=8)), extra_config=extra))


def test_connector_loads_a_whole_prompt_where_it_may() -> None:
    """With full attention alone a prompt of whole blocks is loaded to its end, and its last token computed again."""
    rig = ConnectorRig(evolve(WORLD, extra_config={"full_hit": "recompute_last_token"}))
    for _ in range(2):
        rig.add(list(range(100, 116)), 2)
        rig.drain()
        rig.check_empty()
        rig.reset_prefix_cache()

    assert rig.loaded == 4


def test_page_for_operators_counts_bytes_as_vllm_does() -> None:
    """The formula of `specs/operating.md` is that of vLLM's own groups: keys and values of a layer, or one latent."""
    kinds = {FullAttentionSpec: 2, MLAAttentionSpec: 1}
    for kind, parts in kinds.items():
        spec = kind(block_size=16, num_kv_heads=4 if parts == 2 else 1, head_size=128, dtype=torch.bfloat16)

        assert spec.page_size_bytes == parts * 16 * spec.num_kv_heads * 128 * 2
