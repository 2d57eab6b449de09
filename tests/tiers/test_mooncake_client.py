"""What becomes of the package's answers, and which calls are never made: with a package of our own in the place of Mooncake's.

Method: the client here fails a test where the real one would end the process. The real one is in `test_mooncake`.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_ubyte
from types import ModuleType
from typing import ClassVar

import pytest

from blocklife.errors import MisuseError
from blocklife.testing import assert_store
from blocklife.tiers import MooncakeStore, Page, StoreOutcome, open_store
from tests.programs import HANGS_S
from tests.tiers.arena import Arena, key, value
from tests.tiers.fakes import Seconds

OK, ABSENT, WRONG_SIZE = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.WRONG_SIZE
FULL, FAILED = StoreOutcome.FULL, StoreOutcome.FAILED


class FakeClient:
    """Keeps values as the package does. ``says`` has what a method answers for each key instead; ``crashes`` counts sins."""

    made: ClassVar[list[FakeClient]] = []
    values: ClassVar[dict[str, bytes]] = {}
    fails: ClassVar[int] = 0

    def __init__(self) -> None:
        self.made.append(self)
        self.setups: list[tuple[object, ...]] = []
        self.environment: dict[str, str] = {}
        self.setup_code = 0
        self.registering = 0
        self.health = 0
        self.says: dict[str, int] = {}
        self.calls: list[str] = []
        self.crashes: list[str] = []
        self.gate: Callable[[], None] = lambda: None
        self._ready = False
        self._running = 0

    def setup(self, *arguments: object) -> int:
        self.setups.append(arguments)
        self.environment = dict(os.environ)
        self._ready = not FakeClient.fails
        return FakeClient.fails

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        if not self._ready:
            self.crashes.append(name)

    def _each(self, name: str, keys: Sequence[str], answer: Callable[[int], int]) -> list[int]:
        self._enter(name)
        self._running += 1
        self.gate()
        self._running -= 1
        return [self.says.get(name, answer(at)) for at in range(len(keys))]

    def register_buffer(self, address: int, size: int) -> int:
        self._enter("register_buffer")
        return self.registering

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        return self._each("batch_is_exist", keys, lambda at: int(keys[at] in self.values))

    def batch_put_from(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        def put(at: int) -> int:
            self.values.setdefault(keys[at], bytes(memory(addresses[at], sizes[at])))
            return 0

        return self._each("batch_put_from", keys, put)

    def batch_get_into(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        def get(at: int) -> int:
            kept = self.values.get(keys[at])
            if kept is None:
                return -704
            if len(kept) > sizes[at]:
                return -600
            memory(addresses[at], len(kept))[:] = kept
            return len(kept)

        return self._each("batch_get_into", keys, get)

    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        assert force
        return self._each("batch_remove", keys, lambda at: 0 if self.values.pop(keys[at], None) is not None else -704)

    def get_size(self, name: str) -> int:
        return self._each("get_size", [name], lambda _: len(self.values[name]) if name in self.values else -704)[0]

    def health_check(self) -> int:
        return self.health

    def close(self) -> int:
        self._enter("close")
        if self._running:
            self.crashes.append("close while a call runs")
        self._ready = False
        return 0


def memory(address: int, size: int) -> memoryview:
    return memoryview((c_ubyte * size).from_address(address)).cast("B")


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Something that listens, and the package in its place."""
    package, module = ModuleType("mooncake"), ModuleType("mooncake.store")
    module.MooncakeDistributedStore = FakeClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mooncake", package)
    monkeypatch.setitem(sys.modules, "mooncake.store", module)
    monkeypatch.setattr(FakeClient, "made", [])
    monkeypatch.setattr(FakeClient, "values", {})
    for name in ("MC_RPC_TIMEOUT_MS", "MC_LOG_LEVEL", "MC_STORE_CLIENT_SETUP_RETRIES"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    for client in FakeClient.made:
        assert client.crashes == []


class Rig:
    """A store over such a client, with memory and a clock of its own."""

    def __init__(self, master: str) -> None:
        self.clock = Seconds()
        self.store = MooncakeStore(master, clock=self.clock)
        self.client = FakeClient.made[-1]
        self.arena = Arena(1 << 16)
        self.arena.join(self.store)

    def put(self, name: object = "a", size: int = 100) -> StoreOutcome:
        return self.arena.put(self.store, name, value(name, size))

    def get(self, name: object = "a", size: int = 100) -> StoreOutcome:
        found = self.arena.get(self.store, name, size)
        return OK if found == value(name, size) else found if isinstance(found, StoreOutcome) else FAILED

    def exists(self, name: object = "a") -> StoreOutcome:
        return self.store.exists([key(name)])[0]

    def remove(self, name: object = "a") -> StoreOutcome:
        return self.store.remove([key(name)])[0]


# --- answers -----------------------------------------------------------------------------------------------------------


def test_suite_passes_over_such_a_client(master: str) -> None:
    assert_store(lambda: MooncakeStore(master))


@pytest.mark.parametrize(
    ("method", "code", "outcome"),
    [
        ("batch_is_exist", 1, OK),
        ("batch_is_exist", 0, ABSENT),
        ("batch_is_exist", -1, FAILED),
        ("batch_is_exist", -900, FAILED),
        ("batch_put_from", 0, OK),
        ("batch_put_from", -200, FULL),
        ("batch_put_from", -500, FAILED),
        ("batch_put_from", -600, FAILED),
        ("batch_put_from", -800, FAILED),
        ("batch_put_from", -901, FAILED),
        ("batch_get_into", -704, ABSENT),
        ("batch_get_into", -703, ABSENT),
        ("batch_get_into", 99, WRONG_SIZE),
        ("batch_get_into", 0, WRONG_SIZE),
        ("batch_get_into", -707, FAILED),
        ("batch_get_into", -800, FAILED),
        ("batch_get_into", -900, FAILED),
        ("batch_remove", 0, OK),
        ("batch_remove", -704, ABSENT),
        ("batch_remove", -703, ABSENT),
        ("batch_remove", -706, FAILED),
        ("batch_remove", -901, FAILED),
    ],
)
def test_each_code_has_its_outcome(master: str, method: str, code: int, outcome: StoreOutcome) -> None:
    """And what is not served is counted, with a reason that has the code."""
    rig = Rig(master)
    rig.client.says[method] = code
    call = {"batch_is_exist": rig.exists, "batch_put_from": rig.put, "batch_get_into": rig.get, "batch_remove": rig.remove}[
        method
    ]

    assert call() is outcome
    found = rig.store.statistics()
    assert (found.full, found.failed, found.skipped) == (outcome is FULL, outcome is FAILED, 0)
    assert (f"(code {code})" in found.last_error) == (outcome in (FULL, FAILED))


def test_refused_arguments_are_a_wrong_size_only_if_they_are(master: str) -> None:
    """The package has one code for a page that is too small and for any other argument that it does not take."""
    rig = Rig(master)
    assert rig.put("a", 500) is OK
    assert rig.get("a", 499) is WRONG_SIZE
    rig.client.says["batch_get_into"] = -600
    assert rig.get("a", 500) is FAILED
    assert rig.get("never", 500) is ABSENT
    rig.client.says["get_size"] = -800
    assert rig.get("a", 499) is FAILED
    assert rig.store.statistics().failed == 2


def test_keys_reach_the_package_as_hex_text_in_one_call(master: str) -> None:
    rig = Rig(master)
    pages = [rig.arena.page(name, 10) for name in range(5)]

    assert rig.store.put(pages) == [OK] * 5
    assert list(FakeClient.values) == [key(name).hex() for name in range(5)]
    assert rig.store.exists([]) == rig.store.put([]) == rig.store.get([]) == rig.store.remove([]) == []
    assert rig.client.calls == ["register_buffer", "batch_put_from"]


# --- the master is down --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [-900, -901])
def test_no_call_is_made_for_a_while_after_one_that_did_not_reach_the_master(master: str, code: int) -> None:
    """By then the ping knows, and says when the master is back."""
    rig = Rig(master)
    assert rig.put() is OK
    rig.client.says["batch_get_into"] = code
    assert rig.get() is FAILED
    rig.client.says.clear()
    made = len(rig.client.calls)
    rig.clock.now += 2.9
    assert (rig.get(), rig.exists(), rig.put(), rig.remove()) == (FAILED,) * 4
    rig.clock.now += 0.2
    rig.client.health = 2
    assert (rig.get(), rig.exists(), rig.put(), rig.remove()) == (FAILED,) * 4
    assert len(rig.client.calls) == made
    rig.client.health = 0
    assert (rig.get(), rig.exists(), rig.put(), rig.remove()) == (OK,) * 4
    assert rig.store.statistics().skipped == 8
    assert rig.store.statistics().failed == 1


def test_call_over_a_stale_connection_is_repeated_while_a_master_listens(master: str) -> None:
    """After a restart each connection of the package fails one call; a master that is down is not called again."""
    rig = Rig(master)
    assert rig.put() is OK
    codes = [-900, -900, -900]

    def restarted() -> None:
        rig.client.says.pop("batch_get_into", None)
        if codes:
            rig.client.says["batch_get_into"] = codes.pop()

    rig.client.gate = restarted
    assert rig.get() is OK
    assert rig.client.calls.count("batch_get_into") == 4
    codes[:] = [-900] * 10
    assert rig.get() is FAILED
    assert rig.client.calls.count("batch_get_into") == 8
    assert rig.store.statistics().failed == 1


def test_call_is_not_repeated_where_no_master_listens(master: str) -> None:
    host, _, _ = master.rpartition(":")
    with socket.create_server((host, 0)) as server:
        rig = Rig(f"{host}:{server.getsockname()[1]}")
    rig.client.says["batch_is_exist"] = -900

    assert rig.exists() is FAILED
    assert rig.client.calls.count("batch_is_exist") == 1


# --- calls that are not made ---------------------------------------------------------------------------------------------


def test_closed_store_calls_nothing(master: str) -> None:
    rig = Rig(master)
    rig.store.close()
    made = len(rig.client.calls)

    assert (rig.put(), rig.get(), rig.exists(), rig.remove()) == (FAILED,) * 4
    rig.arena.join(rig.store)
    rig.store.close()
    del rig.store
    gc.collect()
    assert len(rig.client.calls) == made
    assert rig.client.calls.count("close") == 1


def test_forgotten_store_is_closed_once(master: str) -> None:
    rig = Rig(master)
    del rig.store
    gc.collect()

    assert rig.client.calls.count("close") == 1


def test_close_waits_for_calls_that_run(master: str) -> None:
    rig = Rig(master)
    inside, go_on = threading.Event(), threading.Event()

    def gate() -> None:
        inside.set()
        assert go_on.wait(HANGS_S)

    rig.client.gate = gate
    found: list[StoreOutcome] = []
    caller = threading.Thread(target=lambda: found.append(rig.put()))
    closer = threading.Thread(target=rig.store.close)
    caller.start()
    assert inside.wait(HANGS_S)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive()
    assert "close" not in rig.client.calls
    go_on.set()
    caller.join(HANGS_S)
    closer.join(HANGS_S)
    assert found == [OK]
    assert rig.client.calls[-1] == "close"


def test_one_key_is_put_by_one_thread_at_a_time(master: str) -> None:
    """The package would say yes to the second before the first is done. Other keys go on."""
    rig = Rig(master)
    inside, go_on = threading.Event(), threading.Event()

    def gate() -> None:
        if not inside.is_set():
            inside.set()
            assert go_on.wait(HANGS_S)

    rig.client.gate = gate
    pages = [rig.arena.page("a", value("a", 100)) for _ in range(2)]
    found: list[StoreOutcome] = []
    threads = [threading.Thread(target=lambda page=page: found.extend(rig.store.put([page]))) for page in pages]
    threads[0].start()
    assert inside.wait(HANGS_S)
    threads[1].start()
    assert rig.put("b") is OK
    assert found == []
    go_on.set()
    for thread in threads:
        thread.join(HANGS_S)
    assert found == [OK, OK]


def test_memory_that_the_package_refuses_is_not_registered(master: str) -> None:
    rig = Rig(master)
    other = Arena(4096)
    rig.client.registering = -600
    with pytest.raises(MisuseError, match=r"cannot be registered with Mooncake \(code -600\)"):
        other.join(rig.store)
    with pytest.raises(MisuseError, match="not in registered memory"):
        rig.store.put([Page(key("a"), other.address, 10)])
    with pytest.raises(MisuseError, match="overlap"):
        rig.arena.join(rig.store)
    rig.client.registering = 0
    other.join(rig.store)
    assert other.put(rig.store, "a", b"hello") is OK


# --- opening -------------------------------------------------------------------------------------------------------------


def test_options_of_an_address_reach_the_package(master: str) -> None:
    """By default nothing is lent, and other machines reach this one where it reaches the master from."""
    open_store(f"mooncake:{master}")
    options = "segment=1G&buffer=4K&protocol=rdma&device=mlx5_0,mlx5_1&host=10.0.0.5"
    open_store(f"mooncake:{master}?{options}")

    assert [client.setups for client in FakeClient.made] == [
        [("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master)],
        [("10.0.0.5", "P2PHANDSHAKE", 1 << 30, 4096, "rdma", "mlx5_0,mlx5_1", master)],
    ]


def test_environment_is_set_for_the_setup_alone(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operator has set stays."""
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "700")
    before = dict(os.environ)
    open_store(f"mooncake:{master}")

    assert dict(os.environ) == before
    settings = {"MC_STORE_CLIENT_SETUP_RETRIES": "1", "MC_RPC_TIMEOUT_MS": "700", "MC_LOG_LEVEL": "ERROR"}
    assert {**before, **settings} == FakeClient.made[0].environment


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("", "is no address"),
        ("host", "names no master"),
        (":50051", "names no master"),
        ("host:", "names no master"),
        ("host:0", "names no master"),
        ("host:65536", "names no master"),
        ("host:5x", "names no master"),
        ("host:" + "5" * 5_000, "names no master"),
        ("mooncake..host:50051", "cannot be a name"),
        ("x" * 70 + ":50051", "cannot be a name"),
        ("127.0.0.1:1", "there is no master"),
        ("{}?", "'' is no option"),
        ("{}?segment", "'segment' is no option"),
        ("{}?colour=red", "'colour=red' is no option"),
        ("{}?segment=1G&segment=1G", "is given twice"),
        ("{}?segment=10X", "the segment is no number of bytes"),
        ("{}?buffer=-5", "the buffer is no number of bytes"),
        ("{}?segment=1M", "a segment of 1048576 bytes cannot be lent (give 0, or at least 16,777,216)"),
    ],
)
def test_wrong_address_is_refused(master: str, rest: str, says: str) -> None:
    with pytest.raises(MisuseError) as caught:
        open_store(f"mooncake:{rest.format(master)}")

    assert says in str(caught.value)
    assert FakeClient.made == []


@pytest.mark.parametrize("wrong", [{"segment_bytes": True}, {"segment_bytes": -1}, {"buffer_bytes": -1}, {"buffer_bytes": 1.5}])
def test_wrong_size_is_refused(master: str, wrong: dict[str, int]) -> None:
    with pytest.raises(MisuseError, match="cannot be"):
        MooncakeStore(master, **wrong)  # type: ignore[arg-type]


def test_client_that_cannot_be_set_up_is_never_called(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeClient, "fails", -1)
    with pytest.raises(MisuseError, match=r"cannot be opened \(code -1; is it a Mooncake master\?"):
        open_store(f"mooncake:{master}")

    assert FakeClient.made[0].calls == []


def test_package_that_is_missing_or_does_not_load_says_what_to_install(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the libraries are those of Debian."""
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(MisuseError, match=r"pip install 'mooncake-transfer-engine.* libibverbs1 librdmacm1") as caught:
        open_store(f"mooncake:{master}")
    assert "the package of Mooncake cannot be used" in str(caught.value)
    monkeypatch.setitem(sys.modules, "mooncake.store", ModuleType("mooncake.store"))
    with pytest.raises(MisuseError, match="is not that of Mooncake Store"):
        open_store(f"mooncake:{master}")
