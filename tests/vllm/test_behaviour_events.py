"""Events that describe themselves: what a router learns of content in the host tier from one event alone.

Goal: the tokens, hashes and parent that an event names are those of the content, and whoever counts them forgets nothing.
Method: rigs with vLLM's real scheduler that send events. Which test of theirs each of these stands for is in
`tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from vllm.distributed.kv_events import BlockStored
from vllm.v1.core.kv_cache_utils import ExternalBlockHash, maybe_convert_block_hash

from blocklife.ledger import Direction
from blocklife.offload._lookup import Answer
from tests.programs import HANGS_S
from tests.vllm.below_rig import BelowRig
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.connector_worlds import ROOMY, prompt
from tests.vllm.listeners import DESCRIBING, listen, send_events
from tests.vllm.worlds import Lag

Make = Callable[..., BelowRig]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes rigs on one folder of files, which send events that describe themselves; ends them."""
    send_events(monkeypatch)
    made: list[BelowRig] = []

    def make(chunk: int = 1, **more: object) -> BelowRig:
        options = {**DESCRIBING, **more}
        made.append(BelowRig(evolve(ROOMY, blocks_per_chunk=chunk), f"fs:{tmp_path / 'store'}:64M", options=options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


Told = tuple[list[ExternalBlockHash], ExternalBlockHash | None, list[int], int]
"""Hashes, parent, tokens and block size of an event."""


def start_promotion(rig: BelowRig, tokens: list[int]) -> str:
    """Add a request, and step until its content is on its way from below. Returns its name."""
    name = rig.add(tokens, 1)
    deadline = time.monotonic() + HANGS_S
    while not any(job.direction is Direction.PROMOTE for job in rig.side.ledger.jobs.alive()):
        assert time.monotonic() < deadline
        rig.step()
    return name


def chunks_of(rig: ConnectorRig, name: str, chunk: int) -> list[list[ExternalBlockHash]]:
    """The hashes of a request's blocks, in chunks."""
    hashes = [maybe_convert_block_hash(each) for each in rig.scheduler.requests[name].block_hashes]
    return [hashes[at : at + chunk] for at in range(0, len(hashes) // chunk * chunk, chunk)]


def told(events: list[BlockStored]) -> list[Told]:
    """What events say, ordered by their first hashes."""
    return in_order((event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size) for event in events)


def in_order(found: Iterable[Told]) -> list[Told]:
    """In the order of their hashes."""
    return sorted(found, key=lambda each: each[0])


def expected(chunks: list[list[ExternalBlockHash]], tokens: list[int]) -> list[Told]:
    """What events of these chunks have to say."""
    size = 4 * len(chunks[0])
    parents = [None, *(chunk[-1] for chunk in chunks)]
    return [(chunk, parents[at], tokens[at * size : (at + 1) * size], 4) for at, chunk in enumerate(chunks)]


@pytest.mark.parametrize("chunk", [1, 2])
def test_content_from_below_is_described_for_who_waits_for_it(make: Make, chunk: int) -> None:
    """It is told when it has landed, before the waiting request is looked up again: with its tokens."""
    make(chunk).ask(prompt(17), 1)
    rig = make(chunk)
    heard = listen(rig)
    name = start_promotion(rig, prompt(17))
    chunks = chunks_of(rig, name, chunk)
    while not heard.stored:
        rig.step()

    assert rig.loaded == 0
    assert told(heard.stored) == in_order(expected(chunks, prompt(17)))
    rig.drain(40_000)
    rig.check_empty()


@pytest.mark.parametrize("chunk", [1, 2])
def test_placeholder_is_healed_by_a_later_lookup(make: Make, chunk: int) -> None:
    """Who waited for it has gone: the content is told by its key alone, until another one asks for it.

    Where nothing is told of the store below; otherwise it was told when it was found there, and who waited described it.
    """
    make(chunk).ask(prompt(17), 1)
    rig = make(chunk, below_told=0)
    heard = listen(rig)
    name = start_promotion(rig, prompt(17))
    chunks = chunks_of(rig, name, chunk)
    rig.abort(name)
    rig.drain(40_000)
    rig.check_empty()

    assert not heard.described
    assert told(heard.placeholders) == in_order(([each[-1]], None, [], 0) for each in chunks)
    rig.ask(prompt(9), 1)  # of half of it
    rig.reset_prefix_cache(False, True)
    rig.scheduler.connector.take_events()
    healed, count = chunks[: 8 // (4 * chunk)], len(chunks)
    assert sorted(event.block_hashes for event in heard.removed) == sorted(
        [*healed, *([each[-1]] for each in chunks[count // 2 :])]
    )


def test_content_behind_a_hit_on_the_device_is_described_at_its_place(make: Make) -> None:
    """The lookup begins in the middle of the prompt; what it fetches is told with its own tokens and its parent."""
    make().ask(prompt(25), 1)
    rig = make()
    rig.wants_no_prefix(rig.add(prompt(13), 1))
    rig.drain(40_000)
    heard = listen(rig)
    name = start_promotion(rig, prompt(25))
    chunks = chunks_of(rig, name, 1)
    rig.drain(40_000)

    assert told(heard.described[:3]) == in_order(expected(chunks, prompt(25))[3:])


@pytest.mark.parametrize("waits_for", ["a store", "an answer"])
def test_lookup_that_is_deferred_notes_nothing(make: Make, monkeypatch: pytest.MonkeyPatch, waits_for: str) -> None:
    """Only what is told of is kept: a lookup that waits for a copy, or for the store below, leaves nothing behind."""
    if waits_for == "an answer":
        below = make()
        assert below.side.below is not None
        monkeypatch.setattr(below.side.below.presence, "ask", lambda _space, contents: [Answer.RETRY] * len(contents))
        rig: ConnectorRig = below
    else:
        rig = ConnectorRig(evolve(ROOMY, lag=Lag(40, 40), extra_config=DESCRIBING))
        rig.add(prompt(17), 1)
        for _ in range(6):
            rig.step()
        rig.reset_prefix_cache()
    heard, describer = listen(rig), rig.side.known.describer
    assert describer is not None
    before, deferred = len(describer), rig.side.lookups.counts.deferred
    name = rig.add(prompt(17), 1)
    for _ in range(3):
        rig.step()

    assert rig.scheduler.requests[name].num_computed_tokens == 0
    assert rig.side.offload.statistics().deferred > deferred
    assert len(describer) <= before
    assert not heard.events
    rig.abort(name)
    assert len(describer) <= before
