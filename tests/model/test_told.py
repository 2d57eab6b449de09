"""What a server tells of its caches is true: where hits come from, what is stored where, how long lookups took.

Method: a real server with a store below its host tier, asked one prompt again and again. The device is reset in between, so
that the prompt comes from the host, and then, when others have displaced it there, from the store. Events are read from a
socket, as a router reads them. vLLM tells of the same content itself when the device has it, which must be the same. The
control is a server that tells wrongly and does nothing else wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import zmq
from aiohttp import ClientSession
from attrs import define, field
from vllm.distributed.kv_events import (
    MEDIUM_CPU,
    MEDIUM_GPU,
    MEDIUM_STORAGE,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    KVEventBatch,
)

from tests.model.connectors import TOLD_WRONG, Copies
from tests.model.engine import BLOCK
from tests.model.server import Samples, Server, answered, client, metrics, serving
from tests.model.test_below import come_to_rest
from tests.model.test_tokens import DEVICE, SEED, reference, waves
from tests.model.workload import Ask

MODEL = "full"
ASKS: Sequence[Ask] = [ask for ask in waves(MODEL)[0] if ask.name in {f"turn0-family{family}-first" for family in (0, 2, 4)}]
FIRST, *OTHERS = ASKS
"""No two of them begin alike."""
HIT = (len(FIRST.prompt) - 1) // BLOCK * BLOCK
"""Tokens of the first prompt that can be hit; all prompts are equally long."""
HOST = len(OTHERS) * HIT // BLOCK
"""Blocks of a host in which the others displace the first one."""
DELAY = "vllm:kv_offload_lookup_{}_delay_seconds_count"
Told = dict[bytes, tuple[object, tuple[int, ...]]]
"""Blocks by their hashes: the hash of the block before and the tokens."""


@define(eq=False)
class Events:
    """What a server publishes, read as it comes."""

    port: int
    told: list[KVCacheEvent] = field(factory=list)
    _over: threading.Event = field(factory=threading.Event)

    def read(self, socket: zmq.Socket[bytes]) -> None:
        """Take batches until somebody calls `end`; what has come by then is taken, too."""
        decoder = msgspec.msgpack.Decoder(KVEventBatch)
        while socket.poll(200) or not self._over.is_set():
            if socket.poll(0):
                self.told += decoder.decode(socket.recv_multipart()[-1]).events

    def end(self) -> None:
        """No more comes."""
        self._over.set()

    def stored(self, medium: str) -> Told:
        """Blocks that were told as stored in a tier, by events that describe themselves."""
        blocks: Told = {}
        for event in self.told:
            if isinstance(event, BlockStored) and event.medium == medium and event.token_ids:
                parents = [event.parent_block_hash, *event.block_hashes]
                for at, name in enumerate(event.block_hashes):
                    tokens = event.token_ids[at * event.block_size : (at + 1) * event.block_size]
                    blocks[name] = parents[at], tuple(tokens)
        return blocks


@contextlib.contextmanager
def listening() -> Iterator[Events]:
    """A router: it listens, and the server connects to it."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        events = Events(socket.bind_to_random_port("tcp://127.0.0.1"))
        reader = threading.Thread(target=events.read, args=(socket,), daemon=True)
        reader.start()
        try:
            yield events
        finally:
            events.end()
            reader.join()


def counted(samples: Samples) -> dict[str, float]:
    """Tokens that were hit so far, by where they came from."""
    name = "vllm:prompt_tokens_cached_by_source_total"
    return {dict(labels)["source"]: value for (metric, labels), value in samples.items() if metric == name}


async def forget(session: ClientSession) -> None:
    """Reset the device's prefix cache, and nothing else, once no copy holds a block."""
    await come_to_rest(session)
    async with session.post("/reset_prefix_cache") as response:
        assert response.status == 200
        assert json.loads(await response.text())["success"]


async def scenario(server: Server) -> list[Samples]:
    """What is counted each time that the first prompt was asked: it is new, in the host, in the store. Tokens are right."""
    found = []
    async with client(server) as session:
        for between in ((), (), OTHERS):
            for ask in between:
                assert await answered(session, MODEL, ask) == reference(MODEL)[ask.name]
            await forget(session)
            assert await answered(session, MODEL, FIRST) == reference(MODEL)[FIRST.name]
            found.append(await metrics(session))
        await come_to_rest(session)
    return found


def untrue(counts: Sequence[Samples], events: Events) -> Iterable[str]:
    """What was told wrongly."""
    new, host, store = map(counted, counts)
    if (new["host"], new["disk"]) != (0, 0):
        yield f"a new prompt has hit something: {new}"
    if (host["host"] - new["host"], host["disk"]) != (HIT, 0):
        yield f"of {HIT} tokens in the host there were hit: {host}"
    if store["disk"] != HIT:
        yield f"of {HIT} tokens in the store there were hit: {store}"
    theirs = events.stored(MEDIUM_GPU)
    for medium in (MEDIUM_CPU, MEDIUM_STORAGE):
        ours = events.stored(medium)
        if wrong := [name for name in ours if ours[name] != theirs.get(name)]:
            yield f"{len(wrong)} of {len(ours)} blocks are told otherwise than by vLLM: {medium}"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", TOLD_WRONG], ids=["true", "control"])
def test_a_server_tells_the_truth_about_its_caches(fault: str, tmp_path: Path) -> None:
    below = {"below": f"fs:{tmp_path / 'store'}:256M", "below_wait_s": 30}
    ours = {"host_blocks": HOST, "policy": "lru", "self_describing_kv_events": True, **below}
    reference(MODEL)  # before a server takes the processors
    with listening() as events:
        publish = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{events.port}"}
        options = ("--num-gpu-blocks-override", str(DEVICE[MODEL]), "--max-num-seqs", "2")
        copies = Copies(fault=fault, seed=SEED)
        with serving(MODEL, ours, *options, "--kv-events-config", json.dumps(publish), copies=copies) as server:
            counts = asyncio.run(scenario(server))
    found = list(untrue(counts, events))
    print(found)

    kinds = ["store there", "by vLLM: CPU", "by vLLM: STORAGE"]
    assert [kind for kind in kinds if any(kind in each for each in found)] == (kinds if fault else []), found
    assert fault or not found
    # all that was asked is told, and what was displaced in the host as well
    blocks = events.stored(MEDIUM_CPU)
    assert {tokens for _, tokens in blocks.values()} >= {
        ask.prompt[at : at + BLOCK] for ask in ASKS for at in range(0, HIT, BLOCK) if not fault
    }
    assert any(isinstance(event, BlockRemoved) and event.medium == MEDIUM_CPU for event in events.told)
    assert not any(isinstance(event, BlockRemoved) and event.medium == MEDIUM_STORAGE for event in events.told)
    assert events.stored(MEDIUM_STORAGE).keys() == blocks.keys()  # all of it went below, and stays there
    for sync, least in (("sync", len(ASKS) + 2), ("async", 1)):
        assert counts[-1][DELAY.format(sync), frozenset()] >= least
