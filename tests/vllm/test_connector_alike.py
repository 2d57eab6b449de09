"""Which ranks keep their content once: those that hold the same of every group, on one machine, and no others.

Goal: a rank that reads what another has written reads what it would have written itself. Method: configurations of vLLM and its
own descriptions of groups; and two ranks of the real connector, under vLLM's real scheduler, on one region of host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from vllm.config import VllmConfig
from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from blocklife.copiers import Sharing
from blocklife.engines.vllm.connector import _alike as alike
from blocklife.engines.vllm.connector import _cache as cache
from blocklife.engines.vllm.connector._config import ConnectorConfig
from blocklife.engines.vllm.connector._messages import WorkerReport
from blocklife.engines.vllm.connector._sizing import LATENT_MODELS, SPARSE_LAYOUTS, HostSize, ModelCache
from blocklife.errors import MisuseError
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.connector_worlds import FULL, ROOMY, WINDOW, prompt
from tests.vllm.worlds import Lag


def _spec(kind: str) -> KVCacheSpec:
    """A group's layout, as vLLM describes it to one rank."""
    layout = {"block_size": 4, "num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}
    match kind:
        case "mla":
            return MLAAttentionSpec(**layout)
        case "full":
            return FullAttentionSpec(**layout)
        case "two heads":
            return FullAttentionSpec(**{**layout, "num_kv_heads": 2})
        case "window":
            return SlidingWindowSpec(sliding_window=8, **layout)
        case _:
            return MambaSpec(block_size=4, shapes=((8,),), dtypes=(torch.float32,), mamba_cache_mode="align")


def _engine(groups: str, ranks: int = 8, heads: int = 1) -> tuple[VllmConfig, KVCacheConfig]:
    """An engine with *ranks* of tensor parallelism on one machine, and a model with *heads* of keys and values."""
    rig = ConnectorRig(evolve(ROOMY, world_size=ranks, alike=2))
    config, caches = rig.engine.config, rig.engine.kv_cache_config
    config.model_config.model_arch_config.total_num_kv_heads = heads
    caches.kv_cache_groups = [KVCacheGroupSpec(["layer0"], _spec(kind)) for kind in groups.split("+")]
    return config, caches


@pytest.mark.parametrize(
    ("groups", "ranks", "heads", "found"),
    [
        ("mla", 8, 1, 8),
        ("mla", 1, 1, 1),
        ("full", 8, 4, 2),
        ("full", 8, 1, 8),
        ("full", 8, 8, 1),
        ("two heads", 4, 8, 1),
        ("full+window", 8, 2, 4),
        ("mla+full", 8, 4, 2),
        ("full", 8, 3, 1),
        ("mla+mamba", 8, 1, 1),
        ("full+mamba", 8, 2, 1),
    ],
)
def test_ranks_are_alike_that_hold_the_same_of_every_group(groups: str, ranks: int, heads: int, found: int) -> None:
    """Latents are; heads where there are fewer than ranks; states never. A slot may hold content of any group."""
    assert alike.ranks_alike(*_engine(groups, ranks, heads)) == found


@pytest.mark.parametrize(
    ("groups", "path", "value", "found"),
    [
        ("mla", "parallel_config.decode_context_parallel_size", 2, 1),
        ("mla", "parallel_config.prefill_context_parallel_size", 2, 1),
        ("mla", "parallel_config.distributed_executor_backend", "ray", 1),
        ("mla", "parallel_config.distributed_executor_backend", "external_launcher", 1),
        ("mla", "parallel_config.nnodes", 2, 4),
        ("mla", "model_config.model_arch_config.architectures", ["NewForCausalLM"], 8),
        ("full", "model_config.model_arch_config.architectures", ["NewForCausalLM"], 1),
        ("full", "model_config.model_arch_config.per_layer_overrides", [{"total_num_kv_heads": 8}], 1),
        ("full", "speculative_config", SimpleNamespace(draft_model_config="of a drafter"), 1),
        ("full", "speculative_config", "guesses from the text", 4),
        ("mla", "speculative_config", SimpleNamespace(draft_model_config="of a drafter"), 8),
    ],
)
def test_in_doubt_each_rank_has_its_own(groups: str, path: str, value: object, found: int) -> None:
    """Ranks that divide the tokens of a block, that may be on another machine, or whose layers differ in their heads."""
    config, caches = _engine(groups, heads=2)
    if value == "guesses from the text":
        value = SimpleNamespace(draft_model_config=config.model_config)
    *owners, last = path.split(".")
    at: object = config
    for each in owners:
        at = getattr(at, each)
    object.__setattr__(at, last, value)

    assert alike.ranks_alike(config, caches) == found


@pytest.mark.parametrize(("groups", "parts", "told"), [("mla", 1, 8), ("full", 2, 4), ("two heads", 8, 1)])
def test_host_tier_holds_more_where_ranks_hold_the_same(groups: str, parts: int, told: int) -> None:
    """For the same host memory. The store below has as many parts, and the line in the log says so."""
    config, caches = _engine(groups, heads=2)
    given = ConnectorConfig.read({"host_bytes": 1 << 20, "below": "fs:/nowhere"})
    below, chunk = cache.below_of(config, caches, given), cache.block_bytes(caches)
    said = cache.host_memory_told(config, caches, given)
    _, comma, alike_told = said.partition("together, ")

    assert cache.num_slots(config, caches, given) == (1 << 20) // (chunk * parts)
    assert below is not None
    assert below.identity.num_ranks == parts
    assert said.startswith(f"host memory of this engine: {(1 << 20) // (chunk * parts):,} chunks, 1.00 MiB on 8 workers")
    assert alike_told == (f"of which each {told} neighbours hold the same and have it once" if told > 1 else "")
    assert bool(comma) is (told > 1)


def test_neighbours_have_a_region_together_and_others_another() -> None:
    config, caches = _engine("full", heads=4)
    names = []
    for rank in range(8):
        object.__setattr__(config.parallel_config, "rank", rank)
        shared = alike.sharing_of(config, caches, 1)
        assert shared is not None
        assert shared.rank == rank % 2
        names.append(shared.name)

    assert names == [name for name in dict.fromkeys(names) for _ in range(2)]
    assert len(set(names)) == 4


def test_engines_of_data_parallelism_have_regions_of_their_own() -> None:
    """On one machine their workers have the same ranks; vLLM appends the number of the engine to its id."""
    config, caches = _engine("full", heads=4)
    names = []
    for engine in ("x_dp0", "x_dp1"):
        object.__setattr__(config.kv_transfer_config, "engine_id", engine)
        shared = alike.sharing_of(config, caches, 1)
        assert shared is not None
        names.append(shared.name)

    assert names[0] != names[1]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ConnectorRig]:
    """Two ranks that hold the same; *apart*: they look for each other's host memory in different places."""
    if getattr(request, "param", "") == "apart":

        def apart(config: VllmConfig, *more: Any) -> Sharing | None:
            found = alike.sharing_of(config, *more)
            return found and evolve(found, name=f"{found.name}-{config.parallel_config.rank}")

        monkeypatch.setattr("blocklife.engines.vllm.connector._connector.sharing_of", apart)
    made = ConnectorRig(evolve(ROOMY, groups=(FULL, WINDOW), world_size=2, alike=2, lag=Lag(0, 3)))
    yield made
    for rank in made.ranks:
        assert rank.worker is not None
        rank.worker.connector.shutdown()


def test_ranks_write_half_of_what_is_stored_and_read_all_of_it(rig: ConnectorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two requests the first is computed and stored; then the device forgets, and the second loads."""
    said: list[WorkerReport] = []
    for rank in rig.ranks:
        assert rank.worker is not None
        monkeypatch.setattr(worker := rank.worker.connector.worker, "report", listening(worker.report, said))
    for _ in range(2):
        rig.add(prompt(40), 1)
        rig.drain()
        rig.check_empty()
        rig.reset_prefix_cache()
    page = rig.engine.kv_cache_config.kv_cache_groups[0].kv_cache_spec.page_size_bytes

    assert rig.loaded > 0
    assert rig.verified > 0
    assert sum(each.stored.num_bytes for each in said) == page * rig.stored
    assert sum(each.loaded.num_bytes for each in said) == 2 * page * rig.loaded


def listening(own: Callable[[], WorkerReport], said: list[WorkerReport]) -> Callable[[], WorkerReport]:
    """A worker's report, of which each is kept."""

    def report() -> WorkerReport:
        said.append(own())
        return said[-1]

    return report


@pytest.mark.parametrize("rig", ["apart"], indirect=True)
def test_a_worker_whose_neighbour_is_elsewhere_refuses_its_first_step(rig: ConnectorRig) -> None:
    """Ranks of two machines that are taken for neighbours have a region each, and half of the content would be missing."""
    rig.add(prompt(9), 1)
    with pytest.raises(MisuseError, match=r"worker 0 shares host memory, and its neighbours \[1\] have not attached to it"):
        rig.step()


@pytest.mark.parametrize(("dtype", "number_bytes"), [(torch.bfloat16, 2), (torch.uint8, 1)], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize(("heads", "ranks", "heads_of_rank"), [(8, 2, 4), (8, 16, 1), (1, 1, 1)])
def test_size_of_a_block_is_what_vllm_makes_of_it(
    heads: int, ranks: int, heads_of_rank: int, dtype: torch.dtype, number_bytes: int
) -> None:
    """`blocklife size` counts as vLLM's own description of a group does: heads of one rank, and a latent on each."""
    layout = {"block_size": 16, "dtype": dtype}
    config = ConnectorConfig(host_bytes=64 << 30)
    for model, spec in (
        (
            ModelCache("A", 32, heads, 32, 256, False, False),
            FullAttentionSpec(num_kv_heads=heads_of_rank, head_size=128, **layout),
        ),
        (ModelCache("B", 61, 1, 32, 576, True, False), MLAAttentionSpec(num_kv_heads=1, head_size=576, **layout)),
    ):
        size = HostSize.of(model, config, ranks=ranks, block_tokens=16, number_bytes=number_bytes)
        assert size.rank_block_bytes == spec.page_size_bytes * model.layers


@pytest.mark.parametrize("name", ["FLASHMLA", "FLASHMLA_SPARSE", "TRITON_MLA"])
def test_layouts_that_size_refuses_are_those_of_sparse_attention(name: str) -> None:
    """Backends of dense latents do not take them, so that no model whose size is known has them."""
    backend = AttentionBackendEnum[name].get_class()

    assert bool(SPARSE_LAYOUTS.intersection(backend.supported_kv_cache_dtypes)) is backend.is_sparse()


@pytest.mark.parametrize("kind", sorted(LATENT_MODELS))
def test_models_whose_latents_are_counted_have_latents_in_vllm(kind: str) -> None:
    """vLLM runs others that have kv_lora_rank with whole heads."""
    for model_type, is_latent in ((kind, True), ("minicpm3", False)):
        given = SimpleNamespace(model_type=model_type, kv_lora_rank=512)
        assert ModelArchConfigConvertorBase(given, given).is_deepseek_mla() is is_latent
