"""How the tokens of a hit are counted by tier, beyond what vLLM's own tests ask.

Goal: no token is counted twice or not at all, whatever the groups. Method: random hits against a count token by token, and
random traffic over a bad store, with every answer of the connector checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from attrs import evolve
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.request import Request

from blocklife.engines.vllm.connector._config import ConnectorConfig
from blocklife.engines.vllm.connector._sources import HitTokens, sources
from blocklife.groups import Group
from blocklife.offload import FullAttention, Geometry, Hit, Mamba, SlidingWindow
from tests.vllm.below_rig import BelowRig
from tests.vllm.connector_rig import walk
from tests.vllm.connector_worlds import CROWDED, MODELS


def _geometry(rng: Random) -> Geometry:
    sizes = [4 << rng.randrange(3) for _ in range(rng.randint(1, 3))]
    groups: list[Group] = []
    for size in sizes:
        kind = rng.choice(("full", "window", "state"))
        window = SlidingWindow(size, rng.randint(1, 60))
        groups.append(FullAttention(size) if kind == "full" else window if kind == "window" else Mamba(size))
    return Geometry(tuple(groups), rng.choice((1, 1, 2, 3)))


def _loaded_by(geometry: Geometry, group: int, hit: Hit) -> range:
    """The chunks that one group loads."""
    first = max(geometry.needed(group, hit.tokens).start, hit.device_tokens // geometry.block_tokens[group])
    return range(first // geometry.blocks_per_chunk, hit.tokens // geometry.chunk_tokens[group])


@pytest.mark.parametrize("seed", range(200))
def test_every_token_is_counted_once(seed: int) -> None:
    """As if each token were looked at alone: in which groups it is loaded, and whether one of these slots was fetched."""
    rng = Random(seed)
    geometry = _geometry(rng)
    start = geometry.block_alignment * rng.randint(0, 3)
    stop = geometry.chunk_alignment * rng.randint(start // geometry.chunk_alignment + 1, start // geometry.chunk_alignment + 5)
    hit = Hit("r", stop, start, stop, False, 1)
    slots = [[rng.randrange(1000) for _ in _loaded_by(geometry, group, hit)] for group in range(len(geometry.groups))]
    hit = evolve(hit, slots=tuple(map(tuple, slots)))
    fetched = {slot for own in slots for slot in own if rng.random() < 0.4}
    tokens = rng.randint(1, stop - start)
    counts = {"host": 0, "below": 0, "unknown": 0}
    for token in range(start, start + tokens):
        found = set()
        for group, own in enumerate(slots):
            block = geometry.block_tokens[group]
            first = max(geometry.needed(group, stop).start * block, start)
            for chunk, slot in zip(_loaded_by(geometry, group, hit), own, strict=True):
                is_state = isinstance(geometry.groups[group], Mamba)
                inside = chunk * geometry.chunk_tokens[group] <= token < (chunk + 1) * geometry.chunk_tokens[group]
                if is_state or (inside and token >= first):
                    found.add("below" if slot in fetched else "host")
        counts["below" if "below" in found else "host" if found else "unknown"] += 1

    assert sources(geometry, hit, tokens, fetched) == HitTokens(**counts)


@pytest.mark.parametrize(
    ("extra", "source"),
    [
        ({"below": "fs:/x"}, "disk"),
        ({"below": "mooncake:host:1"}, "external_unspecified"),
        ({"below": "my.stores:remote"}, "external_unspecified"),
        ({"below": "my.stores:peers", "below_source": "p2p"}, "p2p"),
        ({"below": "fs:/mnt/nfs", "below_source": "external_unspecified"}, "external_unspecified"),
    ],
)
def test_store_below_is_called_what_it_is(extra: Mapping[str, str], source: str) -> None:
    """Files are a disk; of other stores only who configures them knows what they are."""
    found = ConnectorConfig.read({"host_blocks": 8, **extra}).source_below

    assert CacheHitSource(found.value) is CacheHitSource(source)


@pytest.fixture
def rigs(tmp_path: Path) -> Iterator[list[BelowRig]]:
    """Rigs that end with the test."""
    made: list[BelowRig] = []
    yield made
    for rig in made:
        rig.close()


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", ["full and window", "all", "blocks of two sizes"])
def test_counts_add_up_in_random_traffic(rigs: list[BelowRig], tmp_path: Path, model: str, seed: int) -> None:
    """Under pressure, with preemptions, losses and resets: what is told sums up to what vLLM asked for."""
    spec = evolve(CROWDED, groups=MODELS[model], async_scheduling=seed == 1)
    told: dict[CacheHitSource, int] = {}
    for turn in range(2):
        rig = BelowRig(spec, f"fs:{tmp_path}:64M", seed, keeps_up=True)
        rigs.append(rig)
        connector = rig.scheduler.connector
        own = connector.get_external_cache_hit_sources

        def checked(request: Request, tokens: int) -> Mapping[CacheHitSource, int]:
            found: Mapping[CacheHitSource, int] = own(request, tokens)  # noqa: B023  # called within the turn
            assert sum(found.values()) == tokens
            assert min(found.values(), default=1) > 0
            for source, count in found.items():
                told[source] = told.get(source, 0) + count
            return found

        connector.get_external_cache_hit_sources = checked
        walk(rig, seed, 24, resets=bool(turn))

    assert sum(told.values()) > 0
    assert told.keys() <= {CacheHitSource.HOST, CacheHitSource.DISK}
