"""Mooncake Store: its real master and client. Skipped where the package cannot be had; `make test-mooncake` installs it."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from blocklife.errors import MisuseError
from blocklife.ledger.records import Direction, JobId, Result, TierTransfer, Worker
from blocklife.testing import StoreCheckVerdict, assert_store, check_address
from blocklife.tiers import CircuitBreaker, Identity, MooncakeStore, StoreCopier, StoreOutcome, open_store
from tests.programs import free_port, until
from tests.tiers.arena import key, value
from tests.tiers.mooncake import CLIENT_TTL_S, LEASE_S, Client, Lender, Master, run_child

if importlib.util.find_spec("mooncake") is None:
    pytest.skip("mooncake-transfer-engine-non-cuda is not installed (make test-mooncake installs it)", allow_module_level=True)

OK, ABSENT, WRONG_SIZE = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.WRONG_SIZE
FULL, FAILED = StoreOutcome.FULL, StoreOutcome.FAILED

CALL_AT_MOST_S = 10.0
"""A call of a master that is dead or frozen takes up to 4.5 s or 2 s; other processes share the machine."""
SLOT_BYTES = 64 << 10
IDENTITY = Identity(model="m", dtype="d", groups="full:4", blocks_per_chunk=1, slot_bytes=SLOT_BYTES, num_ranks=1)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A master that stays, and a process that lends memory."""
    with Master() as master, Lender(master):
        yield master.address


@pytest.fixture
def master() -> Iterator[Master]:
    """A master that a test may kill."""
    with Master() as made:
        yield made


# --- it is a store -----------------------------------------------------------------------------------------------------


def test_every_check_of_the_suite_passes(address: str) -> None:
    """But those of a capacity, which the address does not name."""
    found = list(check_address(address))

    assert [str(each) for each in found if each.verdict is StoreCheckVerdict.FAILED] == []
    skipped = [each.name for each in found if each.verdict is StoreCheckVerdict.SKIPPED]
    assert skipped == ["capacity_is_kept", "full_leaves_what_was_there"]


def test_memory_lent_by_the_process_itself_is_a_store(master: Master) -> None:
    """As an author of a store writes it; content that outlives its process needs another one that lends."""
    assert_store(lambda: MooncakeStore(master.host_and_port, segment_bytes=128 << 20))


def test_content_outlives_the_process_that_put_it(address: str) -> None:
    child = run_child("put_some", address)
    assert (child.returncode, child.stdout) == (0, "['OK', 'OK', 'OK', 'OK']\n")

    with Client(address) as client:
        assert [client.get(("child", number)) for number in range(5)] == [OK, OK, OK, OK, ABSENT]


def test_options_of_an_address_reach_the_client(master: Master) -> None:
    """The segment is this process's own, and is gone with it."""
    with Client(f"{master.address}?segment=16M&buffer=1M&host=127.0.0.1&protocol=tcp&device=") as client:
        assert client.put("a") is OK
        assert client.get("a") is OK
    with Client(master.address) as other:
        assert other.put("a") is FULL
        assert other.get("a") is ABSENT
        assert "no segment" in other.store.statistics().last_error
        assert other.store.statistics().full == 1


def test_second_replay_hits_what_the_first_has_left(address: str) -> None:
    """Every byte is verified by the replay itself."""
    command = [*("--requests", "3", "--block-tokens", "64", "--below", address, "--below-wait", "5000", "--below-slots", "64")]
    reports = []
    for _ in range(2):
        ran = subprocess.run(
            [sys.executable, "-m", "blocklife", "replay", *command, "--json"], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        reports.append(json.loads(ran.stdout))

    first, second = reports
    assert [(each["corrupt_blocks"], each["violations"], each["below"]["damaged"]) for each in reports] == [(0, 0, 0)] * 2
    assert (first["below"]["tokens_hit"], first["below"]["bytes_demoted"] > 0) == (0, True)
    assert second["below"]["tokens_hit"] > 0


# --- values ------------------------------------------------------------------------------------------------------------


def test_value_of_another_size_is_never_content_and_can_be_removed(address: str) -> None:
    """A put of the other size is OK, and keeps the old value: only a removal makes room for the new one."""
    with Client(address) as client:
        assert client.arena.put(client.store, "size", value("size", 500)) is OK
        assert client.put("size") is OK
        for size in (1000, 501, 499, 1):
            assert client.get("size", size) is WRONG_SIZE
        assert client.get("size", 500) is OK
        assert client.store.remove([key("size"), key("never")]) == [OK, ABSENT]  # within the lease of the gets
        assert client.put("size") is OK
        assert client.get("size") is OK


def test_store_that_is_full_evicts_and_says_so_where_it_cannot(master: Master) -> None:
    """What was asked for has a lease; a value above the whole store is FULL, and takes nothing away."""
    with Client(f"{master.address}?segment=16M", 32 << 20) as client:
        assert client.put("kept") is OK
        assert client.get("kept") is OK
        assert client.put("large", 20 << 20) is FULL
        assert client.exists("kept") is OK
        outcomes = {client.put(number, 1 << 20) for number in range(30)}
        assert outcomes == {OK, FULL} or outcomes == {OK}
        until(lambda: client.put(os.urandom(4), 1 << 20) is OK, "there is room again")


# --- what ends a process -------------------------------------------------------------------------------------------------


def test_close_waits_for_the_calls_of_other_threads(address: str) -> None:
    """And later calls are FAILED, instead of the end of the process."""
    child = run_child("close_under_load", address)

    assert (child.returncode, child.stdout) == (0, "['FAILED', 'FAILED', 'FAILED', 'FAILED']\n"), child.stderr[-2000:]


def test_interpreter_ends_while_threads_call(address: str) -> None:
    child = run_child("end_under_load", address)

    assert (child.returncode, child.stdout) == (0, "ends\n"), child.stderr[-2000:]


def test_forked_child_calls_nothing(address: str) -> None:
    """It gets FAILED, ends as it should, and leaves the parent's store alone."""
    child = run_child("fork", address)

    assert child.returncode == 0, child.stderr[-2000:]
    assert child.stdout.splitlines() == ["OK", "['FAILED', 'FAILED', 'FAILED']", "0", "OK True"]


# --- opening -------------------------------------------------------------------------------------------------------------


def opening_fails(address: str) -> str:
    """What the refusal says; it comes soon."""
    began = time.monotonic()
    with pytest.raises(MisuseError) as caught:
        open_store(address)
    assert time.monotonic() - began < CALL_AT_MOST_S
    return str(caught.value)


def test_missing_master_is_a_clear_error_at_once(address: str) -> None:
    port = free_port()

    assert opening_fails(f"mooncake:127.0.0.1:{port}").endswith(f"(start one there: mooncake_master --rpc_port {port})")
    assert "there is no master" in opening_fails("mooncake:no-such-host.invalid:50051")


def test_what_is_no_master_is_a_clear_error(address: str) -> None:
    """Something listens, and does not answer; and a transport that there is not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "is it a Mooncake master?" in opening_fails(f"mooncake:127.0.0.1:{server.getsockname()[1]}")
    assert "protocol 'carrier'" in opening_fails(f"{address}?protocol=carrier")


# --- faults --------------------------------------------------------------------------------------------------------------


class Rig:
    """A copier over a store."""

    def __init__(self, store: object, space: str, slots: int = 16) -> None:
        assert isinstance(store, MooncakeStore)
        self.store = store
        self.space = space.encode()
        self.host = np.zeros((slots, SLOT_BYTES), np.uint8)
        self.breaker = CircuitBreaker(max_failures=3, longest_wait_s=2.0)
        self.copier = StoreCopier(
            store,
            self.host,
            IDENTITY,
            worker=Worker(0),
            breaker=self.breaker,
            put_breaker=self.breaker,  # a master is there for both or for neither
            staging_bytes=4 << 20,
            timeout_s=20.0,
        )
        self._jobs = 0

    def run(self, direction: Direction, count: int, first: int = 0) -> tuple[Result, list[int]]:
        """Move the first slots, whose keys are numbers from *first* on; the report, and which did not come."""
        if direction is Direction.DEMOTE:
            for slot in range(count):
                self.host[slot] = np.frombuffer(value(slot + first, SLOT_BYTES), np.uint8)
        self._jobs += 1
        keys = tuple(str(slot + first).encode() for slot in range(count))
        job = JobId(1, self._jobs)
        self.copier.launch(TierTransfer(job, direction, np.arange(count), bytes(count), keys, self.space))
        self.copier.wait([job])
        (completion,) = self.copier.poll()
        return completion.result, list(completion.missing)

    def holds(self, count: int, first: int = 0) -> bool:
        return all(bytes(self.host[slot]) == value(slot + first, SLOT_BYTES) for slot in range(count))

    def close(self) -> None:
        self.copier.close()
        self.store.close()


def timed(call: Callable[[], StoreOutcome]) -> StoreOutcome:
    """The outcome of a call that must not hang."""
    began = time.monotonic()
    outcome = call()
    assert time.monotonic() - began < CALL_AT_MOST_S
    return outcome


def test_master_killed_while_idle_fails_calls_until_it_is_back(master: Master) -> None:
    """It comes back by itself, at the same port, having forgotten everything."""
    with Lender(master), Client(master.address) as client:
        assert client.put("a") is OK
        master.kill()
        for _ in range(3):
            assert timed(lambda: client.exists("a")) is FAILED
            assert timed(lambda: client.put("b")) is FAILED
            assert timed(lambda: client.get("a")) is FAILED
        time.sleep(3.5)
        began = time.monotonic()
        assert [client.get("a") for _ in range(100)] == [FAILED] * 100
        assert time.monotonic() - began < CALL_AT_MOST_S
        found = client.store.statistics()
        assert found.skipped >= 100
        assert found.failed >= 1
        assert "does not answer" in found.last_error

        master.start()
        until(client.takes, "values are kept again")
        assert client.get("a") is ABSENT
        assert client.put("a") is OK
        assert client.get("a") is OK


def test_master_that_is_frozen_costs_its_time_out(master: Master) -> None:
    """And the next calls nothing, for a while."""
    with Lender(master), Client(master.address) as client:
        assert client.put("a") is OK
        master.freeze()
        try:
            began = time.monotonic()
            assert client.get("a") is FAILED
            assert 1.5 < time.monotonic() - began < CALL_AT_MOST_S
            began = time.monotonic()
            assert [client.get("a") for _ in range(100)] == [FAILED] * 100
            assert time.monotonic() - began < CALL_AT_MOST_S
        finally:
            master.thaw()
        until(client.takes, "values are kept again")


def test_master_killed_under_load_costs_hits_and_no_wrong_byte(master: Master) -> None:
    """Jobs end, the breaker opens, and after a restart content is demoted and promoted again."""
    with Lender(master):
        rig = Rig(open_store(master.address), "load")
        killer = threading.Timer(0.5, master.kill)
        killer.start()
        reports = []
        number = 0
        while not rig.breaker.statistics().is_down:
            assert number < 10_000, "the breaker never opens"
            number += 1
            first = 100 * number
            began = time.monotonic()
            demoted = rig.run(Direction.DEMOTE, 16, first)
            rig.host[:] = 0
            promoted = rig.run(Direction.PROMOTE, 16, first)
            assert time.monotonic() - began < 4 * CALL_AT_MOST_S
            came = [slot for slot in range(16) if promoted[0] is Result.OK and slot not in promoted[1]]
            assert all(bytes(rig.host[slot]) == value(slot + first, SLOT_BYTES) for slot in came)
            reports.append((demoted, len(came)))
        killer.join()
        assert reports[0] == ((Result.OK, []), 16)
        assert reports[-1][1] == 0
        assert rig.copier.statistics().failed > 0

        master.start()
        until(lambda: rig.run(Direction.DEMOTE, 16) == (Result.OK, []), "content is demoted again")
        rig.host[:] = 0
        assert rig.run(Direction.PROMOTE, 16) == (Result.OK, [])
        assert rig.holds(16)
        assert not rig.breaker.statistics().is_down
        rig.close()


def test_process_that_lends_memory_is_killed(master: Master) -> None:
    """Its values fail for a while, then are absent; other values are not touched, and nothing hangs."""
    with Client(master.address) as client:
        with Lender(master):
            assert client.put("a") is OK
        assert timed(lambda: client.get("a")) in (FAILED, ABSENT)
        until(lambda: timed(lambda: client.get("a")) is ABSENT, "the master drops it", CLIENT_TTL_S + 20)
        assert client.put("b") is FULL
        with Lender(master):
            assert client.takes()


def test_what_was_asked_for_stays_for_the_time_of_the_lease(master: Master) -> None:
    """So a small store is full of what is read, until the lease is over."""
    with Client(f"{master.address}?segment=16M", 20 << 20) as client:
        names = [number for number in range(12) if client.put(number, 1 << 20) is OK]
        assert len(names) == 12
        assert all(client.exists(name) is OK for name in names)
        began = time.monotonic()
        while client.put(os.urandom(4), 1 << 20) is OK:
            assert time.monotonic() - began < LEASE_S, "there is room in spite of the lease"
        until(lambda: client.put(os.urandom(4), 1 << 20) is OK, "there is room again")
