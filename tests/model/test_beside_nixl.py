"""Beside a real NIXL: one server computes prompts, another gets them over NIXL and answers, and ours keeps what both have.

Method: two `vllm serve` with vLLM's MultiConnector of NixlConnector and BlocklifeConnector; NIXL moves pages with UCX between
the memories of the two. What they should say is said by an engine without a connector. What each way has brought is counted.

NIXL is no part of the environment. ``pip install --no-deps --target FOLDER nixl==1.5.1 nixl-cu12==1.5.1`` brings it, 0.2 GB,
and BLOCKLIFE_NIXL names the folder.

NIXL keeps the blocks of a computed prompt for a lease, of 30 seconds if nothing else is said, and the reader isn't told that it
has ended: what it then reads are the blocks of others, and the answer is wrong with status 200. A slow machine is enough for
that, so that the lease here is an hour; what a short one does, to NIXL alone and beside ours, is shown below. With leases that
long, and a device of 26 blocks for 24 prompts, NIXL alone once stood still, so that the server that computes has room for all
prompts.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from aiohttp import ClientSession

from tests.model.server import Server, answered, client, completed, metrics, serving
from tests.model.test_tokens import DEVICE, reference, waves
from tests.model.workload import Ask

MODEL = "full"
FOLDER = os.environ.get("BLOCKLIFE_NIXL")
OURS = {
    "kv_connector": "BlocklifeConnector",
    "kv_connector_module_path": "blocklife.engines.vllm",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"checking": "strict", "host_blocks": 256},
}
ROOMY = 400
"""Blocks for all prompts at once: where leases fill the device of the one that computes, NIXL alone may stand still."""
SENDS = {"do_remote_decode": True, "do_remote_prefill": False}
ASKS = [ask for wave in waves(MODEL)[:2] for ask in wave]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOLDER is None, reason="no NIXL is here (BLOCKLIFE_NIXL names its folder)"),
]


def nixl(lease_s: int = 3600) -> dict[str, object]:
    """NIXL's connector."""
    return {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"kv_lease_duration": lease_s},
    }


@contextmanager
def servers_with(connectors: Sequence[Mapping[str, object]], blocks: int = ROOMY) -> Iterator[tuple[Server, Server]]:
    """The one that computes prompts, which has so many *blocks*, and the one that answers."""
    reference(MODEL)  # before servers take the processors
    transfer = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"connectors": connectors},
    }

    def options(count: int) -> tuple[str, ...]:
        words = ("--num-gpu-blocks-override", str(count), "--max-num-seqs", "2")
        return (*words, "--kv-transfer-config", json.dumps(transfer))

    def around(port: int) -> dict[str, str]:
        path = os.pathsep.join([str(FOLDER), os.environ["PYTHONPATH"]])
        return {"PYTHONPATH": path, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}

    # ports that no connection is given while a server starts
    with (
        serving(MODEL, None, *options(blocks), environ=around(5600)) as one,
        serving(MODEL, None, *options(DEVICE[MODEL]), environ=around(5601)) as other,
    ):
        try:
            yield one, other
        except BaseException:
            for server in (one, other):
                print("--- what a server has said last:", *server.said[-300:], sep="\n")
            raise


async def sent(one: ClientSession, other: ClientSession, ask: Ask) -> tuple[int, ...]:
    """What the other server says to a prompt that the first one has computed."""
    computed = await completed(one, MODEL, ask, max_tokens=1, kv_transfer_params=SENDS)
    found = await completed(other, MODEL, ask, kv_transfer_params=computed["kv_transfer_params"])
    return tuple(found["choices"][0]["token_ids"])


async def counted(session: ClientSession, name: str) -> float:
    """What a server has counted."""
    return (await metrics(session))[f"vllm:{name}", frozenset()]


async def forget(session: ClientSession, *, host: bool = False) -> None:
    """Empty the device's prefix cache, as soon as no copy holds a block, and that of the *host*."""
    while True:
        async with session.post("/reset_prefix_cache", params={"reset_external": str(host).lower()}) as response:
            if json.loads(await response.text())["success"]:
                return
        await asyncio.sleep(0.1)


def test_tokens_stay_where_nixl_alone_brings_blocks() -> None:
    """A control: without ours."""
    right = [reference(MODEL)[ask.name] for ask in ASKS]

    async def story(servers: tuple[Server, Server]) -> None:
        async with client(servers[0]) as one, client(servers[1]) as other:
            assert await asyncio.gather(*(sent(one, other, ask) for ask in ASKS)) == right
            assert await counted(other, "nixl_bytes_transferred_count") > 0

    with servers_with([nixl()]) as servers:
        asyncio.run(story(servers))


def test_a_lease_that_ends_gives_nixl_alone_the_blocks_of_others() -> None:
    right = [reference(MODEL)[ask.name] for ask in ASKS]

    async def story(servers: tuple[Server, Server]) -> None:
        async with client(servers[0]) as one, client(servers[1]) as other:
            assert await asyncio.gather(*(sent(one, other, ask) for ask in ASKS)) != right
            assert await counted(one, "nixl_num_kv_expired_reqs_total") > 0
            assert await counted(other, "nixl_num_failed_transfers_total") == 0

    with servers_with([nixl(lease_s=1)], DEVICE[MODEL]) as servers:
        asyncio.run(story(servers))


def test_what_came_under_an_ended_lease_stays_in_host_memory_until_that_is_emptied() -> None:
    """Nobody is told, so ours keeps it under the keys of what should have come. The one that computes has what is right."""
    right = [reference(MODEL)[ask.name] for ask in ASKS]

    async def story(servers: tuple[Server, Server]) -> None:
        async with client(servers[0]) as one, client(servers[1]) as other:
            assert await asyncio.gather(*(sent(one, other, ask) for ask in ASKS)) != right
            assert await counted(one, "nixl_num_kv_expired_reqs_total") > 0
            for session, emptied in ((one, False), (other, False), (other, True)):
                await forget(session, host=emptied)
                said = await asyncio.gather(*(answered(session, MODEL, ask) for ask in ASKS))
                assert (said == right) is (session is one or emptied)

    with servers_with([nixl(lease_s=1), OURS], DEVICE[MODEL]) as servers:
        asyncio.run(story(servers))


@pytest.mark.parametrize("connectors", [[nixl(), OURS], [OURS, nixl()]], ids=["nixl first", "ours first"])
def test_tokens_stay_where_nixl_brings_blocks_and_ours_keeps_them(connectors: Sequence[Mapping[str, object]]) -> None:
    right = [reference(MODEL)[ask.name] for ask in ASKS]

    async def story(servers: tuple[Server, Server]) -> None:
        async with client(servers[0]) as one, client(servers[1]) as other:
            assert await asyncio.gather(*(sent(one, other, ask) for ask in ASKS)) == right
            assert await counted(other, "nixl_bytes_transferred_count") > 0
            assert await counted(other, "kv_offload_store_bytes_total") > 0
            for session in (other, one):  # what NIXL has brought comes back from the host of the server that got it
                await forget(session)
                loaded = await counted(session, "kv_offload_load_bytes_total")
                assert await asyncio.gather(*(answered(session, MODEL, ask) for ask in ASKS)) == right
                assert await counted(session, "kv_offload_load_bytes_total") > loaded
            both = [sent(one, other, ask) for ask in ASKS] + [answered(other, MODEL, ask) for ask in ASKS]
            assert await asyncio.gather(*both) == right * 2
            assert await counted(other, "nixl_num_failed_transfers_total") == 0

    with servers_with(connectors) as servers:
        asyncio.run(story(servers))
