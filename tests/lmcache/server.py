"""LMCache's server as a process of its own, and a client that talks to it over its socket and its shared memory.

Nothing of it is in turns: whoever asks waits for the answer, and for a state, with the limit of all waiting.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import shared_memory
from multiprocessing.resource_tracker import unregister
from pathlib import Path
from typing import Any

from attrs import define, field

from tests.lmcache.content import PLACE, Bytes
from tests.lmcache.worlds import WorldSpec
from tests.programs import HANGS_S, free_port, until


@define(eq=False)
class Client:
    """What a worker and a scheduler ask of the server."""

    asks: Any
    spec: WorldSpec
    memory: shared_memory.SharedMemory | None = None
    log: Path = field(factory=Path)

    def ask(self, name: str, *args: object) -> Any:
        """The answer to a request."""
        return getattr(self.asks, name)(*args).result(timeout=HANGS_S)

    def register(self, worker: int) -> None:
        """A worker begins, and opens the memory that it shares with the server."""
        from tests.lmcache.engine import registration

        told = self.ask("register_kv_cache_engine_driven_context", registration(worker, self.spec))
        if self.memory is None:
            self.memory = shared_memory.SharedMemory(name=told.shm_name.lstrip("/"))
            unregister(f"/{self.memory.name}", "shared_memory")  # it is the server's

    def slot(self, said: Mapping[str, Any]) -> Bytes:
        """The shared memory of one slot."""
        import numpy as np

        assert self.memory is not None
        assert self.memory.buf is not None
        return np.frombuffer(self.memory.buf, dtype=np.uint8, count=PLACE, offset=said["offset"])


@contextmanager
def served(spec: WorldSpec, folder: Path, adapters: Sequence[Mapping[str, Any]] = (), *words: str) -> Iterator[Client]:
    """A server for this world; its L2 adapters are told as on its command line, as are further *words*."""
    from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

    port, shared = free_port(), f"blocklife_{os.getpid()}"
    command = [sys.executable, "-m", "lmcache.v1.multiprocess.server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--chunk-size", str(spec.chunk_tokens), "--shm-name", shared, "--supported-transfer-mode", "engine_driven"]
    command += ["--l1-size-gb", str(spec.places * PLACE / 2**30), "--no-l1-use-lazy", "--eviction-policy", spec.policy]
    command += ["--l1-write-ttl-seconds", str(spec.write_lease), "--l1-read-ttl-seconds", str(spec.read_lease)]
    command += ["--l2-prefetch-policy", spec.prefetch, "--disable-observability", *words]
    for each in adapters:
        command += ["--l2-adapter", json.dumps(each)]
    log = folder / "server.log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        client = Client(RequestClientFactory.create(f"tcp://127.0.0.1:{port}"), spec, log=log)
        try:
            until(lambda: _answers(process, port, log), "the server begins")
            yield client
        finally:
            if client.memory is not None:
                client.memory.close()
            client.asks.close()
            process.send_signal(signal.SIGTERM)
            process.wait(HANGS_S)


def _answers(process: subprocess.Popen[bytes], port: int, log: Path) -> bool:
    if process.poll() is not None:
        raise ChildProcessError(f"the server has ended:\n{log.read_text(encoding='utf-8', errors='replace')[-3000:]}")
    with socket.socket() as opened:
        return opened.connect_ex(("127.0.0.1", port)) == 0
