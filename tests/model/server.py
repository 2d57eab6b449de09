"""A server of vLLM with a real model and our connector, in processes of its own, and clients for it.

Rules of this file:

* A server is known to be up by what it says, and to be gone when no process of its session is left.
* All waiting is bounded, and ends with what the server has said.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from attrs import define, field

from tests.interrupts import interruptible
from tests.model.connectors import VARIABLE, Copies
from tests.model.shelf import MODELS
from tests.model.workload import Ask
from tests.plugins.again_notes import die_with_parent
from tests.programs import HANGS_S

UP = "Application startup complete"
_SAMPLE = re.compile(r"^(?P<name>[\w:]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name and labels, without those labels that say which engine and which model it is."""


def free_port() -> int:
    """A port of this machine that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def parsed(text: str) -> Samples:
    """What a page of metrics says."""
    samples: Samples = {}
    for line in text.splitlines():
        if found := _SAMPLE.match(line):
            labels = frozenset(_LABEL.findall(found["labels"] or "")) - {("engine", "0")}
            kept = frozenset((name, value) for name, value in labels if name != "model_name")
            samples[found["name"], kept] = float(found["value"])
    return samples


@define(eq=False)
class Server:
    """One server. Its session is that of its first process, which is its leader."""

    process: subprocess.Popen[str]
    port: int
    said: list[str] = field(factory=list)
    _lines: queue.SimpleQueue[str | None] = field(factory=queue.SimpleQueue)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """The end of what it has said."""
        return "".join(self.said[-25:])

    def read(self) -> None:
        """Take what it says as it comes, so that it never waits for us."""

        def pump() -> None:
            for line in self.process.stdout or ():
                self.said.append(line)
                self._lines.put(line)
            self._lines.put(None)

        threading.Thread(target=pump, daemon=True).start()

    def wait_until_up(self) -> None:
        """Until it answers requests."""
        end = time.monotonic() + HANGS_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"the server is not up after {HANGS_S} s:\n{self.log}") from None
            if line is None:
                raise AssertionError(f"the server ended at its start:\n{self.log}")
            if UP in line:
                break
        while True:  # it says so just before it listens
            with (
                contextlib.suppress(ConnectionRefusedError),
                socket.create_connection(("127.0.0.1", self.port), timeout=HANGS_S),
            ):
                return
            if time.monotonic() > end:
                raise AssertionError(f"the server does not listen after {HANGS_S} s:\n{self.log}")
            os.sched_yield()

    def processes(self) -> list[int]:
        """Those of its session that live."""
        alive = []
        for each in Path("/proc").iterdir():
            if each.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    state, _, _, session = (each / "stat").read_text().rpartition(")")[2].split()[:4]
                    if int(session) == self.process.pid and state != "Z":
                        alive.append(int(each.name))
        return alive

    def send(self, number: signal.Signals) -> None:
        """Send its first process a signal, as a terminal or a supervisor does."""
        self.process.send_signal(number)

    def wait_until_gone(self) -> None:
        """Until no process of it is left. It waits itself for connections to close, so that clients have to be gone."""
        end = time.monotonic() + HANGS_S
        try:
            self.process.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server lives {HANGS_S} s after the signal:\n{self.log}") from None
        while left := self.processes():
            if time.monotonic() > end:
                raise AssertionError(f"processes {left} are left {HANGS_S} s after the signal:\n{self.log}")
            os.sched_yield()

    def kill(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serving(
    model: str,
    ours: Mapping[str, object] | None,
    *options: str,
    copies: Copies | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server that is up; at the end of the context nothing of it is left."""
    path, port = Path(os.environ[MODELS]) / model, free_port()
    words = [sys.executable, "-W", "ignore", "-m", "vllm.entrypoints.cli.main", "serve", str(path), "--port", str(port)]
    words += ["--served-model-name", model, "--dtype", "float32", "--enforce-eager", "--block-size", "32"]
    words += ["--max-model-len", "384", "--max-num-batched-tokens", "256", "--generation-config", "vllm", *options]
    if ours is not None:
        transfer = {
            "kv_connector": "TestedConnector",
            "kv_connector_module_path": "tests.model.connectors",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"checking": "strict", **ours},
        }
        words += ["--kv-transfer-config", json.dumps(transfer)]
    around = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    given = {
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
        VARIABLE: (copies or Copies()).dump(),
        **(environ or {}),
    }
    with interruptible():
        process = subprocess.Popen(
            words,
            env={**around, **given},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),
        )
    server = Server(process, port)
    try:
        server.read()
        server.wait_until_up()
        yield server
    finally:
        server.kill()


@contextlib.asynccontextmanager
async def client(server: Server, engine: int | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """One user of the server, with a connection for each request. All go to that *engine* of data parallelism, if it is given.

    A connection that is kept for the next request can be closed by the server at the moment that this request is sent: it does
    so after five idle seconds, and behind each answer that says that an exception was raised (as `reset` may be told).
    """
    limits = aiohttp.ClientTimeout(total=300)
    each_its_own = aiohttp.TCPConnector(limit=0, force_close=True)
    headers = {} if engine is None else {"X-data-parallel-rank": str(engine)}
    async with aiohttp.ClientSession(server.url, timeout=limits, connector=each_its_own, headers=headers) as session:
        yield session


def _body(model: str, ask: Ask, stream: bool) -> dict[str, object]:
    return {
        "model": model,
        "prompt": list(ask.prompt),
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": stream,
    }


async def completed(session: aiohttp.ClientSession, model: str, ask: Ask, **more: object) -> dict[str, Any]:
    """All that the server says to one request, in which *more* is said or said otherwise."""
    async with session.post("/v1/completions", json={**_body(model, ask, False), **more}) as response:
        found: dict[str, Any] = await response.json()
        assert response.status == 200, found
        return found


async def answered(session: aiohttp.ClientSession, model: str, ask: Ask) -> tuple[int, ...]:
    """One request, and all of its answer at once."""
    return tuple((await completed(session, model, ask))["choices"][0]["token_ids"])


async def streamed(
    session: aiohttp.ClientSession,
    model: str,
    ask: Ask,
    *,
    most: int | None = None,
    told: dict[str, list[int]] | None = None,
) -> tuple[int, ...]:
    """One request, token by token; the client hangs up when it has *most* of them. *told* has those that came, by name."""
    tokens = list[int]() if told is None else told.setdefault(ask.name, [])
    async with session.post("/v1/completions", json=_body(model, ask, True)) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            text = line.decode().removeprefix("data: ").strip()
            if not text or text == "[DONE]":
                continue
            for choice in json.loads(text)["choices"]:
                tokens += choice["token_ids"] or ()
            if most is not None and len(tokens) >= most:
                response.close()
                break
    return tuple(tokens)


async def metrics(session: aiohttp.ClientSession) -> Samples:
    """What the server counts."""
    async with session.get("/metrics") as response:
        return parsed(await response.text())


async def gathered(asks: Sequence[Ask], session: aiohttp.ClientSession, model: str) -> dict[str, tuple[int, ...]]:
    """All requests at once, every second one streamed."""
    each = [(streamed if number % 2 else answered)(session, model, ask) for number, ask in enumerate(asks)]
    return dict(zip([ask.name for ask in asks], await asyncio.gather(*each), strict=True))
