"""`vllm serve` with our connector: clients get the tokens of an engine without one, whatever other clients do.

Method: a real server in processes of its own, with an API server, an engine core and a worker; clients over HTTP, all at once.
What they should get is said by an engine in this process without a connector. A server takes a minute to start, so that one
serves all tests that do not end it.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator, Sequence

import pytest
from aiohttp import ClientSession
from attrs import evolve

from blocklife.engines.vllm.connector._families import METRICS, MetricKind
from blocklife.watch import RULES
from tests.model.connectors import Copies
from tests.model.server import Server, answered, client, gathered, metrics, serving, streamed
from tests.model.test_tokens import DEVICE, SEED, reference, waves
from tests.model.workload import Ask

MODEL = "both"
OURS = {"host_blocks": 256}
OPTIONS = ("--num-gpu-blocks-override", str(DEVICE[MODEL]), "--max-num-seqs", "2")
COPIES = Copies(shortest=0, longest=3, seed=SEED)
ASKS: Sequence[Ask] = [ask for wave in waves(MODEL) for ask in wave]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that nobody has asked anything."""
    with serving(MODEL, OURS, *OPTIONS, copies=COPIES) as running:
        yield running


def expected(names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """What an engine without a connector says."""
    return {name: reference(MODEL)[name] for name in names}


def test_every_metric_is_there_before_the_first_request(server: Server) -> None:
    """An alert on the increase of a counter sees its first event only if the counter was there at zero."""

    async def ask() -> set[str]:
        async with client(server) as session:
            return {name for (name, _labels), value in (await metrics(session)).items() if value == 0}

    at_zero = asyncio.run(ask())
    suffix = {MetricKind.COUNTER: "_total", MetricKind.HISTOGRAM: "_count", MetricKind.GAUGE: ""}
    wanted = {metric.name + suffix[metric.kind] for metric in METRICS.values()}

    assert wanted - at_zero == set()


def test_clients_at_once_get_their_tokens_and_most_come_from_the_host(server: Server) -> None:
    async def ask() -> tuple[dict[str, tuple[int, ...]], float]:
        async with client(server) as session:
            answers = await gathered(ASKS, session, MODEL)
            counted = await metrics(session)
        return answers, counted["vllm:kv_offload_load_bytes_total", frozenset()]

    answers, loaded = asyncio.run(ask())

    assert answers == expected([each.name for each in ASKS])
    assert loaded > 0


def test_clients_that_hang_up_do_no_harm_to_others(server: Server) -> None:
    """Half of the clients are gone after their first token; what comes then hits what they have left."""

    async def ask() -> dict[str, tuple[int, ...]]:
        async with client(server) as session:
            leaving = [streamed(session, MODEL, each.again("leaves"), most=1) for each in ASKS[::2]]
            left, answers = await asyncio.gather(asyncio.gather(*leaving), gathered(ASKS[1::2], session, MODEL))
            assert all(left), "a client left before its first token"
            return {**answers, **await gathered(ASKS[::2], session, MODEL)}

    assert asyncio.run(ask()) == expected([each.name for each in ASKS])


async def reset(session: ClientSession) -> bool:
    """Ask for a reset of all, running requests and the host tier included; False where vLLM says that it could not.

    It says `success: false` where a copy holds blocks, and answers with status 500 where a request waits for its load: such a
    request is not preempted, and vLLM raises (`Scheduler.reset_prefix_cache`). Either way it can be asked again.
    """
    query = {"reset_running_requests": "true", "reset_external": "true"}
    async with session.post("/reset_prefix_cache", params=query) as response:
        said = await response.text()
        if response.status == 500:
            assert "waiting for remote KV transfer" in said, said
            return False
        assert response.status == 200, said
        return bool(json.loads(said)["success"])


def test_resets_while_clients_wait_change_no_token(server: Server) -> None:
    async def ask() -> tuple[dict[str, tuple[int, ...]], int]:
        async with client(server) as session:

            async def resets() -> int:
                done = 0
                for ask in ASKS[:6]:
                    await answered(session, MODEL, ask.again("paces"))
                    done += await reset(session)
                return done

            answers, done = await asyncio.gather(gathered(ASKS, session, MODEL), resets())
            if not done:  # each came while a copy was on its way; with nobody else here, the copies end
                done = await resets()
            return answers, done

    answers, done = asyncio.run(ask())

    assert answers == expected([each.name for each in ASKS])
    assert done > 0


async def rules_counted(server: Server) -> set[str]:
    """Rules of the watch that the server shows a count of zero for."""
    async with client(server) as session:
        found = (await metrics(session)).items()
    name = "vllm:blocklife_watch_violations_total"
    return {dict(labels)["rule"] for (metric, labels), value in found if metric == name and value == 0}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_server_with_requests_in_flight_and_it_starts_again(number: signal.Signals) -> None:
    """All of its processes are gone when its clients are, and no client was told a wrong token until then.

    Each server of this file starts after another one: nothing that one leaves behind is in the way of the next. The last one is
    watched, too: a plain server shows the counts of the watch, each from zero on, although they are made in its children.
    """
    told = dict[str, list[int]]()
    # so many and so long that a signal finds some in flight, also where this process hears late of the first token
    asks = [evolve(ask.again(str(turn)), max_tokens=60) for turn in range(8) for ask in ASKS]

    async def interrupt(server: Server) -> None:
        async with client(server) as session:
            asked = [asyncio.create_task(streamed(session, MODEL, ask, told=told)) for ask in asks]
            while not any(told.values()) and not any(task.done() for task in asked):
                await asyncio.sleep(0)
            server.send(number)
            await asyncio.wait(asked, timeout=1.0)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    environ = {"BLOCKLIFE_WATCH": "count"} if number is signal.SIGTERM else {}
    with serving(MODEL, OURS, *OPTIONS, copies=COPIES, environ=environ) as running:
        assert asyncio.run(rules_counted(running)) == (set(RULES) if environ else set())
        asyncio.run(interrupt(running))
        running.wait_until_gone()

    assert any(told.values())
    assert any(len(told.get(ask.name, ())) < ask.max_tokens for ask in asks), "all were answered before the signal came"
    for name, said in told.items():
        known = reference(MODEL)[name.rpartition("-")[0]]
        assert tuple(said[: len(known)]) == known[: len(said)], name
