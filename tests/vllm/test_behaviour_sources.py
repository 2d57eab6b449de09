"""Where the tokens of a hit come from, as vLLM's scheduler is told: host memory, or the store below it.

Goal: what vLLM's metrics show by tier is what was copied. Method: rigs with vLLM's real scheduler and a store of files. A
prompt is computed and goes below; some of its chunks are then evicted from the host tier, so that the next lookup fetches them.
What vLLM asks the connector when it admits the request is noted. Which test of theirs each of these stands for is in
`tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import pytest
from attrs import evolve
from vllm import SamplingParams
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.request import Request

from tests.vllm.below_rig import BelowRig
from tests.vllm.connector_worlds import FULL, ROOMY, STATE, prompt
from tests.vllm.worlds import GroupSpec

HOST, UNKNOWN = CacheHitSource.HOST, CacheHitSource.EXTERNAL_UNSPECIFIED
BELOW = ["disk", "p2p", "external_unspecified"]
"""What a store below can be called."""

Told = tuple[int, Mapping[CacheHitSource, int]]


class SourcesRig(BelowRig):
    """A rig with files below; it notes what vLLM asks about hits, and what it is told."""

    def __init__(self, groups: Sequence[GroupSpec], folder: Path, *, chunk: int = 1, source: str = "disk") -> None:
        world = evolve(ROOMY, groups=tuple(groups), blocks_per_chunk=chunk, dense_retention=True)
        super().__init__(world, f"fs:{folder}:64M", options={"below_source": source})
        self.told_sources: list[Told] = []
        connector = self.scheduler.connector
        own = connector.get_external_cache_hit_sources

        def noted(request: Request, tokens: int) -> Mapping[CacheHitSource, int]:
            found: Mapping[CacheHitSource, int] = own(request, tokens)
            assert own(request, 0) == {}
            self.told_sources.append((tokens, found))
            return found

        connector.get_external_cache_hit_sources = noted

    def names(self, tokens: Sequence[int], group: int) -> list[bytes]:
        """The names of a prompt's chunks in one group."""
        sampling = SamplingParams(max_tokens=1)
        request = Request("names", list(tokens), sampling, None, block_hasher=self.engine.hasher)
        keys = self.side.shape.hashes_per_block[group] * self.side.shape.geometry.blocks_per_chunk
        return list(request.block_hashes[keys - 1 :: keys])

    def hit(self, tokens: Sequence[int], gone: Mapping[int, Collection[int]], local: int = 0) -> Told:
        """The last thing that vLLM was told about a hit on a prompt that was computed before.

        *gone*: chunks of each group that the host tier has evicted; *local*: tokens that the device has.
        """
        assert self.reset_prefix_cache()
        if local:
            self.ask(tokens[: local + 1], 1)
        slots = []
        for group, chunks in gone.items():
            names = self.names(tokens, group)
            slots += [self.side.tier.slot_of(group, names[chunk]) for chunk in chunks]
        self.side.ledger.evict([slot for slot in slots if slot is not None])
        self.told_sources.clear()
        promoted = self.below.promoted
        self.ask(tokens, 1)

        assert self.below.promoted - promoted == len(slots)
        assert len(self.told_sources) == 1
        return self.told_sources[0]


Make = Callable[..., SourcesRig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes rigs on one folder, and ends them."""
    made: list[SourcesRig] = []

    def make(groups: Sequence[GroupSpec], *, chunk: int = 1, source: str = "disk") -> SourcesRig:
        made.append(SourcesRig(groups, tmp_path / "store", chunk=chunk, source=source))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def counts(*parts: tuple[CacheHitSource, int]) -> dict[CacheHitSource, int]:
    """Tokens by tier, from parts of a hit."""
    found: dict[CacheHitSource, int] = {}
    for source, tokens in parts:
        if tokens:
            found[source] = found.get(source, 0) + tokens
    return found


@pytest.mark.sampled(pairs=True)
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("local", [0, 4])
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside full attention"])
@pytest.mark.parametrize("source", ["host", "mixed", *BELOW])
@pytest.mark.parametrize("kind", ["swa", "local"])
def test_window_says_where_its_loaded_chunks_come_from(
    make: Make, chunk: int, local: int, beside: bool, source: str, kind: Literal["swa", "local"]
) -> None:
    """Its last two chunks are loaded: what lies before them is of the full group's tier, or of none.

    Local attention loads the part that the hit ends in. Alone, vLLM takes what lies before that part for computed.
    """
    tokens = 4 * chunk
    before, window = (2, GroupSpec(kind, window=2 * tokens)) if kind == "swa" else (3, GroupSpec(kind, window=3 * tokens))
    if kind == "local" and not beside:
        local = before * tokens
    rig = make((FULL, window) if beside else (window,), chunk=chunk, source=source if source in BELOW else "disk")
    text = prompt((before + 2) * tokens + 1)
    rig.ask(text, 1)
    gone = {"host": (), "mixed": (before + 1,)}.get(source, (before, before + 1))
    below = CacheHitSource(source) if source in BELOW else CacheHitSource.DISK
    asked, told = rig.hit(text, {int(beside): gone}, 0 if local == before * tokens else local)

    assert asked == (before + 2) * tokens - local
    assert told == counts(
        (HOST if beside else UNKNOWN, before * tokens - local),
        *((below if chunk in gone else HOST, tokens) for chunk in (before, before + 1)),
    )


@pytest.mark.parametrize("both", [False, True], ids=["one group", "both groups"])
def test_groups_with_blocks_of_two_sizes_report_the_tier_that_is_farther(make: Make, both: bool) -> None:
    """A block of eight tokens, of which another group's second four come from below."""
    rig = make((FULL, GroupSpec("full", 8)))
    text = prompt(9)
    rig.ask(text, 1)

    assert rig.hit(text, {0: (1,), 1: (0,) if both else ()}) == (
        8,
        {CacheHitSource.DISK: 8} if both else {HOST: 4, CacheHitSource.DISK: 4},
    )


@pytest.mark.parametrize("source", ["host", *BELOW])
def test_state_covers_the_whole_hit(make: Make, source: str) -> None:
    """A model of states alone loads one block for a prefix of any length: all of it is of that block's tier."""
    rig = make((STATE,), source=source if source in BELOW else "disk")
    text = prompt(49)
    rig.ask(text, 1)
    asked, told = rig.hit(text, {0: () if source == "host" else (11,)})

    assert (asked, told) == (48, {CacheHitSource(source): 48})


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        ({0: (3,)}, {HOST: 24, CacheHitSource.DISK: 4}),
        ({0: (3,), 1: (6,)}, {CacheHitSource.DISK: 28}),
        ({1: (6,)}, {CacheHitSource.DISK: 28}),
        ({}, {HOST: 28}),
    ],
    ids=["attention", "both", "state", "neither"],
)
def test_state_beside_attention_reports_the_tier_that_is_farther(
    make: Make, gone: Mapping[int, Sequence[int]], told: Mapping[CacheHitSource, int]
) -> None:
    """What full attention loads counts block by block, unless the state comes from farther away."""
    rig = make((FULL, STATE))
    text = prompt(29)
    rig.ask(text, 1)

    assert rig.hit(text, gone) == (28, told)


def test_ranges_of_groups_are_laid_upon_each_other(make: Make) -> None:
    """Neighbours, overlaps, and what reaches beyond the hit on the device: every token counts once."""
    rig = make((FULL, GroupSpec("full", 8), GroupSpec("swa", 4, 14)))
    text = prompt(41)
    rig.ask(text, 1)

    assert rig.hit(text, {}, 8) == (32, {HOST: 32})
    assert rig.hit(text, {0: (2, 3, 4), 1: (2,)}, 8) == (32, {HOST: 16, CacheHitSource.DISK: 16})
    assert rig.hit(text, {0: (9,), 1: (1, 4), 2: (7,)}, 8) == (32, {HOST: 12, CacheHitSource.DISK: 20})


def test_content_that_was_fetched_for_another_request_is_of_the_host(make: Make) -> None:
    """It is in host memory for everybody who comes later."""
    rig = make((FULL,))
    text = prompt(17)
    rig.ask(text, 1)
    assert rig.hit(text, {0: (0, 1, 2, 3)}) == (16, {CacheHitSource.DISK: 16})
    assert rig.hit(text, {}) == (16, {HOST: 16})
