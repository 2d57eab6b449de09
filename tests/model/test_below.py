"""Two engines, one store below their host memory: what one has computed the other one hits, and no token is another.

Method: engines with a real model one after another, then two servers at once, in processes of their own, on one folder.
What they should say is said by an engine without a connector. That content came from below is counted, and must have happened.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.model.server import Samples, Server, answered, client, gathered, metrics, serving
from tests.model.test_serve import ASKS, COPIES, MODEL, OPTIONS, expected
from tests.model.test_tokens import MODELS, SLOW, TIGHT, differing, engine_with, reference, waves
from tests.model.workload import Ask

BELOW = "vllm:kv_offload_below_"


@pytest.mark.sampled(every=5, first=2)
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_another_engine_hits_what_the_first_one_has_computed(model: str, chunk: int, tmp_path: Path) -> None:
    right = reference(model)
    ours = {"host_blocks": 256, "blocks_per_chunk": chunk, "below": f"fs:{tmp_path / 'store'}:256M", "below_wait_s": 30}
    found = []
    for _ in range(2):
        with engine_with(model, ours=ours, copies=SLOW) as running:
            answers = running.answer(waves(model))
            running.come_to_rest()
            running.check()
            assert set(answers) == set(right)
            assert differing(answers, right) == []
            found.append((running.side.offload.statistics().below, running.seen.stored))
    (first, stored), (second, stored_again) = found

    assert first is not None
    assert second is not None
    assert first.demoted > 0
    assert first.promoted == 0
    assert second.promoted > 0
    assert stored_again < stored, "the second engine has computed what the first one had"


def counted(samples: Samples, name: str, **labels: str) -> float:
    """What a server has counted, of its own metrics about the store below."""
    return samples[f"{BELOW}{name}", frozenset(labels.items())]


async def come_to_rest(session: ClientSession) -> Samples:
    """Until a server has put below all that it will; what it has counted by then.

    That is so when it has put nothing for three seconds: on a busy machine a thread of the store may wait for one.
    """
    demoted: list[float] = []
    while True:
        await asyncio.sleep(1.0)
        found = await metrics(session)
        demoted.append(counted(found, "demotions_total", outcome="demoted"))
        if demoted[-4:].count(demoted[-1]) == 4:
            return found


async def answer(server: Server, asks: Sequence[Ask]) -> tuple[dict[str, tuple[int, ...]], Samples]:
    """What a server says to clients that come all at once, and what it has counted then."""
    async with client(server) as session:
        answers = await gathered(asks, session, MODEL)
        return answers, await come_to_rest(session)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder whose files are memory of this machine."""
    if not os.path.ismount("/dev/shm"):
        pytest.skip("/dev/shm is no tmpfs here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_replicas_of_a_machine_share_content_in_memory(in_memory: Path) -> None:
    """Two servers at once on a store in a tmpfs, as `specs/operating.md` has it: the second loads what the first has computed.

    Its host tier was empty. So each byte that its device gets has come from the store once and from the host once.
    """
    ours = {"host_blocks": 256, "below": f"fs:{in_memory / 'kv'}:256M", "below_wait_s": 30}
    right = expected([each.name for each in ASKS])
    with serving(MODEL, ours, *OPTIONS, copies=COPIES) as one, serving(MODEL, ours, *OPTIONS, copies=COPIES) as other:
        said, first = asyncio.run(answer(one, ASKS))
        assert said == right
        said, second = asyncio.run(answer(other, ASKS[:3]))
        assert said == {each.name: right[each.name] for each in ASKS[:3]}

    hit = second["vllm:external_prefix_cache_hits_total", frozenset()]
    copied = {
        "device to host": first["vllm:kv_offload_store_bytes_total", frozenset()],
        "host to store": counted(first, "bytes_total", direction="demoted"),
        "store to host": counted(second, "bytes_total", direction="promoted"),
        "host to device": second["vllm:kv_offload_load_bytes_total", frozenset()],
    }
    print(f"{hit:.0f} tokens hit; bytes copied: {copied}")
    assert hit > 0
    assert copied["store to host"] == copied["host to device"] > 0
    assert copied["device to host"] >= copied["host to store"] > 0  # content that two requests compute at once goes below once
    assert counted(second, "promotions_total", outcome="missing") == 0


@pytest.mark.slow
def test_two_servers_share_a_store_and_outlive_it(tmp_path: Path) -> None:
    """One has computed what the other one hits. Then the folder is removed under load: tokens stay right, and metrics tell."""
    folder = tmp_path / "store"
    ours = {"host_blocks": TIGHT[MODEL], "below": f"fs:{folder}:256M", "below_wait_s": 30}
    right = expected([each.name for each in ASKS])
    with serving(MODEL, ours, *OPTIONS, copies=COPIES) as one, serving(MODEL, ours, *OPTIONS, copies=COPIES) as other:
        said, put = asyncio.run(answer(one, ASKS))
        assert said == right
        assert counted(put, "demotions_total", outcome="demoted") > 0

        said, got = asyncio.run(answer(other, ASKS[:3]))  # prompts that it has never seen, each of another family
        assert said == {each.name: right[each.name] for each in ASKS[:3]}
        assert counted(got, "promotions_total", outcome="promoted") > 0
        assert counted(got, "bytes_total", direction="promoted") > 0
        assert got["vllm:external_prefix_cache_hits_total", frozenset()] > 0

        async def remove_under_load() -> list[tuple[dict[str, tuple[int, ...]], Samples]]:
            async with client(one) as session:
                asked = [asyncio.create_task(answer(each, ASKS)) for each in (one, other)]
                await answered(session, MODEL, ASKS[0].again("paces"))
                while folder.exists():
                    shutil.rmtree(folder, ignore_errors=True)
                return await asyncio.gather(*asked)

        for said, samples in asyncio.run(remove_under_load()):
            assert said == right
            faults = sum(counted(samples, "faults_total", kind=kind) for kind in ("failed", "skipped"))
            missing = counted(samples, "promotions_total", outcome="missing")
            assert faults + missing > 0
