"""A real Mooncake master and a process that lends memory, which end with the test; and clients in processes of their own.

``python -m tests.tiers.mooncake WHAT ADDRESS`` is such a client. What could end the whole process is tried in one of these.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pytest

from blocklife.errors import MisuseError
from blocklife.tiers import MooncakeStore, StoreOutcome, open_store
from blocklife.tiers._mooncake import _SETTINGS, _environment, _load
from tests.plugins.again_notes import die_with_parent
from tests.programs import free_port, until
from tests.tiers.arena import Arena, key, value

ROOT = Path(__file__).parents[2]
LEASE_S = 1.0
CLIENT_TTL_S = 3
FLAGS = (
    *("--rpc_address", "127.0.0.1", "--metrics_host", "127.0.0.1", "--metrics_port", "0"),
    *("--default_kv_lease_ttl", str(int(1000 * LEASE_S)), "--client_ttl", str(CLIENT_TTL_S)),
    *("--enable_metric_reporting=false", "--minloglevel=2"),
)
DEADLINE_S = 60.0


def folder() -> Path:
    """Where the package lies; skips the test where it cannot be used."""
    found = importlib.util.find_spec("mooncake")
    assert found is not None
    assert found.origin is not None
    try:
        with _environment(_SETTINGS):
            _load("")
    except MisuseError as reason:
        pytest.skip(str(reason))
    return Path(found.origin).parent


class Service:
    """A program of the package, which dies with this process."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._command = [str(folder() / program), *arguments]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )

    def freeze(self) -> None:
        """Stop it; gives when all its threads stand."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        until(lambda: all(") T " in (each / "stat").read_text() for each in tasks.iterdir()), "it stands")

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Master(Service):
    """A master at a port of its own."""

    def __init__(self, *more: str) -> None:
        self.port = free_port()
        self.host_and_port = f"127.0.0.1:{self.port}"
        self.address = f"mooncake:{self.host_and_port}"
        super().__init__("mooncake_master", "--rpc_port", str(self.port), *FLAGS, *more)

    def start(self) -> None:
        super().start()
        until(self._listens, "the master listens")

    def _listens(self) -> bool:
        assert self.process.poll() is None, "the master has ended"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Lender(Service):
    """A process that lends memory to the store at a master."""

    def __init__(self, master: Master, mebibytes: int = 256) -> None:
        arguments = ("--host", "127.0.0.1", "--port", str(free_port()), "--global_segment_size", f"{mebibytes} MB")
        super().__init__(
            "mooncake_client", *arguments, "--master_server_address", master.host_and_port, "--metadata_server", "P2PHANDSHAKE"
        )
        with Client(master.address) as client:
            until(client.takes, "a process lends memory")


class Client:
    """A store at an address, with memory of its own."""

    def __init__(self, address: str, arena_bytes: int = 1 << 20) -> None:
        store = open_store(address)
        assert isinstance(store, MooncakeStore)
        self.store = store
        self.arena = Arena(arena_bytes)
        self.arena.join(store)

    def put(self, name: object, size: int = 1000) -> StoreOutcome:
        return self.arena.put(self.store, name, value(name, size))

    def get(self, name: object, size: int = 1000) -> StoreOutcome:
        """The outcome; a value that was got must be the right one."""
        found = self.arena.get(self.store, name, size)
        if isinstance(found, StoreOutcome):
            return found
        assert found == value(name, size)
        return StoreOutcome.OK

    def exists(self, name: object) -> StoreOutcome:
        return self.store.exists([key(name)])[0]

    def takes(self) -> bool:
        """Whether a new value is kept."""
        name = os.urandom(8)
        return self.put(name) is StoreOutcome.OK and self.get(name) is StoreOutcome.OK

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()


def run_child(what: str, address: str) -> subprocess.CompletedProcess[str]:
    """Run one of the functions below in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tests.tiers.mooncake", what, address],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )  # fmt: skip


# --- in processes of their own -----------------------------------------------------------------------------------------


def put_some(address: str) -> None:
    """Put values, and end."""
    with Client(address) as client:
        print([client.put(("child", number)).name for number in range(4)])


def _hammer(client: Client, threads: int = 4) -> Sequence[threading.Thread]:
    """Threads that call for ever, as daemons."""
    started = threading.Barrier(threads + 1)

    def call(number: int) -> None:
        arena = Arena(1 << 20)
        arena.join(client.store)
        pages = [arena.page((number, at), value((number, at), 60_000)) for at in range(16)]
        started.wait()
        while True:
            client.store.put(pages)
            client.store.exists([page.key for page in pages])
            client.store.get(pages)

    made = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(threads)]
    for thread in made:
        thread.start()
    started.wait()
    return made


def close_under_load(address: str) -> None:
    """Close while other threads call, and go on calling."""
    client = Client(address)
    _hammer(client)
    time.sleep(0.3)
    client.store.close()
    client.store.close()
    print([client.put("a").name, client.get("a").name, client.exists("a").name, client.store.remove([key("a")])[0].name])
    client.store.register(Arena(4096).address, 4096)


def end_under_load(address: str) -> None:
    """End while daemon threads call, without a close."""
    _hammer(Client(address))
    time.sleep(0.3)
    print("ends")


def fork(address: str) -> None:
    """A forked child calls, closes and forgets, and ends as `multiprocessing` ends it; the store of the parent goes on.

    It is forked while another thread holds the locks of the store.
    """
    client = Client(address)
    print(client.put("a").name, flush=True)
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with client.store._put_ended, client.store._session._calls._changed:
            held.set()
            go_on.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    go_on.set()
    if not child:
        signal.alarm(20)
        print([client.put("b").name, client.get("a").name, client.exists("a").name], flush=True)
        client.store.register(Arena(4096).address, 4096)
        client.store.close()
        del client
        gc.collect()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print(client.get("a").name, client.takes(), flush=True)
    client.store.close()


CHILDREN: dict[str, Callable[[str], None]] = {
    each.__name__: each for each in (put_some, close_under_load, end_under_load, fork)
}

if __name__ == "__main__":
    CHILDREN[sys.argv[1]](sys.argv[2])
