"""LMCache's server as a process of its own: what a worker writes into shared memory is found, read, stored to disk and back.

Method: the rig's contents over the real socket, memory and clock. No verdict depends on how long anything takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.lmcache.content import stamp
from tests.lmcache.engine import key_of
from tests.lmcache.server import Client, served
from tests.lmcache.worlds import WorldSpec
from tests.programs import until

SPEC = WorldSpec(places=64, prefetch="retain")
SIZE = SPEC.chunk_tokens


def key(tokens: Sequence[int], request: str, start: int = 0, worker: int | None = 0) -> object:
    """A text from a chunk on."""
    return key_of(tokens, start * SIZE, len(tokens), request=request, worker=worker, workers=1)


def found(client: Client, tokens: Sequence[int], request: str) -> int:
    """The chunks that are found of a text; they are locked."""
    client.ask("lookup", key(tokens, request, worker=None), 1)
    answer: int | None = client.ask("wait_prefetch_status", request, 60.0)
    assert answer is not None
    return answer


def read(client: Client, tokens: Sequence[int], request: str) -> int:
    """Look a text up and compare all that is found of it. Returns how many chunks that were."""
    hit = found(client, tokens, request)
    if hit:
        told = client.ask("prepare_retrieve", key(tokens[: hit * SIZE], request), 0)
        assert told.success
        for number, slot in enumerate(told.context["slots"]):
            assert np.array_equal(client.slot(slot), stamp(tokens[: (number + 1) * SIZE], 0, ""))
        assert client.ask("commit_retrieve", key(tokens[: hit * SIZE], request), 0)
    return hit


def write(client: Client, tokens: Sequence[int], request: str, start: int) -> int:
    """Store a text from a chunk on. Returns how many chunks were written."""
    context = client.ask("prepare_store", key(tokens, request, start), 0).context
    for number, slot in zip(context["chunk_indices"], context["slots"], strict=True):
        client.slot(slot)[:] = stamp(tokens[: (start + number + 1) * SIZE], 0, "")
    if context["slots"]:
        assert client.ask("commit_store", key(tokens, request, start), 0, b"")
    return len(context["slots"])


@pytest.mark.parametrize("kind", ["mock", "fs_native"])
def test_server_keeps_what_workers_write(tmp_path: Path, kind: str) -> None:
    """Through shared memory, L1 and L2; every byte that is read is right, and what L1 has lost comes back from L2."""
    adapters = {
        "mock": {"type": "mock", "max_size_gb": 0.01, "mock_bandwidth_gb": 10},
        "fs_native": {"type": "fs_native", "base_path": str(tmp_path / "l2"), "num_workers": 2},
    }
    (tmp_path / "l2").mkdir()
    rng, texts, counted = Random(1), [list(range(40 * each, 40 * each + 24)) for each in range(5)], [0, 0]
    with served(SPEC, tmp_path, [adapters[kind]]) as client:
        client.register(0)
        for turn in range(60):
            tokens = rng.choice(texts)[: SIZE * rng.randint(1, 6)]
            hit = read(client, tokens, f"r{turn}")
            counted[0] += hit
            if hit < len(tokens) // SIZE:
                counted[1] += write(client, tokens, f"r{turn}", hit)
            client.ask("end_session", f"r{turn}")
        written = next(each for each in texts if read(client, each, f"whole {each[0]}"))
        before = read(client, written, "before")

        def comes_back() -> bool:  # what is stored to L2 is stored behind our back
            client.ask("clear", False)
            return read(client, written, f"again {rng.random()}") == before

        until(comes_back, "what L1 has lost comes back from L2")

    assert counted[0] > counted[1] > 10


def test_lease_that_is_over_gives_the_place_of_a_writer_to_the_next(tmp_path: Path) -> None:
    """The first writer is still at work, by LMCache's own clock and socket: a finding of `specs/lmcache.md`."""
    tokens = list(range(SIZE))
    with served(WorldSpec(places=8, write_lease=1), tmp_path) as client:
        client.register(0)
        first = client.ask("prepare_store", key(tokens, "first"), 0).context["slots"]
        second: list[dict[str, object]] = []

        def handed_over() -> bool:
            second.extend(client.ask("prepare_store", key(tokens, "second"), 0).context["slots"])
            return bool(second)

        until(handed_over, "the lease of the first is over")
        client.slot(second[0])[:] = 0xEE
        published = client.ask("commit_store", key(tokens, "first"), 0, b"")

        assert [each["offset"] for each in second] == [each["offset"] for each in first]
        assert published
        assert found(client, tokens, "reader") == 1
