"""Data parallelism: the engines of one server keep host memory apart, share what is below it, and say what one engine says.

Method: one `vllm serve` with two engines, each asked by name, one after the other and then both at once. What they should say
is said by an engine without a connector. With two ranks that hold the same, each engine has memory that its workers share.
Experts are left out: their engines take steps together, and vLLM's group of processes on a CPU has no `all_gatherv`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.model.server import Samples, Server, client, gathered, metrics, serving
from tests.model.test_below import come_to_rest
from tests.model.test_tokens import DEVICE, SLOW, reference, waves
from tests.model.workload import Ask

ENGINES = (0, 1)


def counted(samples: Samples, engine: int, name: str, **labels: str) -> float:
    """What one of the engines has counted."""
    return samples[f"vllm:kv_offload_{name}", frozenset({*labels.items(), *([("engine", str(engine))] if engine else [])})]


async def ask_engine(server: Server, model: str, asks: list[Ask], engine: int) -> dict[str, tuple[int, ...]]:
    """What this engine says to clients that come all at once."""
    async with client(server, engine) as session:
        return await gathered(asks, session, model)


async def ask_in_turns(server: Server, model: str, asks: list[Ask]) -> tuple[list[dict[str, tuple[int, ...]]], list[Samples]]:
    """All answers, and what was counted when the first engine, the second, and both at once had been asked."""
    said, found = [], []
    async with client(server) as session:
        for engine in ENGINES:
            said.append(await ask_engine(server, model, asks, engine))
            found.append(await come_to_rest(session))
        said += await asyncio.gather(*(ask_engine(server, model, asks, engine) for engine in ENGINES))
        found.append(await metrics(session))
    return said, found


@pytest.mark.slow
@pytest.mark.parametrize(("model", "ranks"), [("full", 1), ("one_head", 2)])
def test_engines_of_one_server_share_what_is_below_and_nothing_else(model: str, ranks: int, tmp_path: Path) -> None:
    asks = list(waves(model)[0])
    right = {ask.name: reference(model)[ask.name] for ask in asks}
    ours = {"host_blocks": 256, "below": f"fs:{tmp_path / 'store'}:256M", "below_wait_s": 30}
    options = ("--num-gpu-blocks-override", str(DEVICE[model]), "--max-num-seqs", "2", "--api-server-count", "1")
    parallel = ("--data-parallel-size", str(len(ENGINES)), "--tensor-parallel-size", str(ranks))
    # vLLM gives each worker a memory node of its own, of which most machines have one
    nodes = {"CPU_VISIBLE_MEMORY_NODES": ",".join("0" * len(ENGINES) * ranks)}
    with serving(model, ours, *options, *parallel, copies=SLOW, environ=nodes) as server:
        said, found = asyncio.run(ask_in_turns(server, model, asks))
    for engine in ENGINES:
        print({name: [counted(each, engine, name) for each in found] for name in ("store_bytes_total", "load_bytes_total")})

    assert said == [right] * 4
    first, second, last = found
    assert counted(first, 1, "store_bytes_total") == 0
    assert counted(first, 0, "below_bytes_total", direction="demoted") > 0
    assert counted(second, 1, "below_bytes_total", direction="promoted") > 0
    assert all(counted(last, engine, "load_bytes_total") > 0 for engine in ENGINES)
