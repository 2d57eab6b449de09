"""Planted faults: each is what it says, and the same seed plants the same ones, whoever calls first."""

from __future__ import annotations

import threading

import pytest

from blocklife.testing import MemoryStore
from blocklife.tiers import FaultyStore, StoreFaultRates, StoreOutcome
from tests.tiers.arena import Arena, key, value

OK, ABSENT, WRONG_SIZE, FAILED = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.WRONG_SIZE, StoreOutcome.FAILED


def faulty(seed: int = 0, **rates: float) -> tuple[FaultyStore, Arena]:
    store, arena = FaultyStore(MemoryStore(), StoreFaultRates(**rates), seed), Arena()
    arena.join(store)
    return store, arena


def story(seed: int, order: list[int], **rates: float) -> dict[int, tuple[StoreOutcome, bytes | StoreOutcome]]:
    """What putting and getting each of some values gives, in this order."""
    store, arena = faulty(seed, **rates)
    return {at: (arena.put(store, at, value(at, 40)), arena.get(store, at, 40)) for at in order}


def test_faults_are_the_same_for_the_same_seed_in_any_order() -> None:
    """And another rate leaves them where they are."""
    rates = {"fail": 0.2, "cut": 0.2, "flip": 0.2, "lose": 0.2}
    told = story(7, list(range(60)), **rates)

    assert story(7, list(reversed(range(60))), **rates) == told
    assert story(8, list(range(60)), **rates) != told
    assert {at for at, (_, got) in told.items() if got is ABSENT} >= {
        at for at, (_, got) in story(7, list(range(60)), fail=0.2, lose=0.1).items() if got is ABSENT
    }
    assert {got if isinstance(got, StoreOutcome) else got == value(at, 40) for at, (_, got) in told.items()} == {
        ABSENT,
        WRONG_SIZE,
        FAILED,
        True,
        False,
    }


def test_failing_keys_do_nothing() -> None:
    store, arena = faulty(fail=1.0)

    assert arena.put(store, "a", b"hello") is FAILED
    assert arena.get(store, "a", 5) is FAILED
    assert store.exists([key("a")]) == [FAILED]
    assert store.statistics().failed == 3


def test_lost_value_is_absent_until_it_is_put_anew() -> None:
    """Half of them are lost; putting often enough keeps each."""
    store, arena = faulty(lose=0.5)
    for name in range(20):
        tries = 0
        while arena.get(store, name, 5) is ABSENT:
            assert arena.put(store, name, b"hello") is OK
            tries += 1
        assert store.exists([key(name)]) == [OK]
        assert tries < 20
    assert store.statistics().lost > 3


@pytest.mark.parametrize("fault", ["cut", "flip"])
def test_damaged_value_stays_damaged_until_it_is_removed(fault: str) -> None:
    """One bit, or the second half; the same at every get."""
    rates = StoreFaultRates.parse(f"{fault}=0.5")
    store, arena = FaultyStore(MemoryStore(), rates, 0), Arena()
    arena.join(store)
    healed = 0
    for name in range(30):
        arena.put(store, name, value(name, 64))
        first = arena.get(store, name, 64)
        assert arena.get(store, name, 64) == first
        assert store.exists([key(name)]) == [OK]
        if first == value(name, 64):
            continue
        if isinstance(first, bytes):
            assert bin(int.from_bytes(first) ^ int.from_bytes(value(name, 64))).count("1") == 1
        else:
            assert first is WRONG_SIZE
        assert store.remove([key(name)]) == [OK]
        arena.put(store, name, value(name, 64))
        healed += arena.get(store, name, 64) == value(name, 64)
    assert healed > 3
    assert store.statistics().cut + store.statistics().flipped > 20


def test_slow_calls_pause_once_a_call() -> None:
    pauses: list[float] = []
    store = FaultyStore(MemoryStore(), StoreFaultRates(slow=1.0), 0, slow_s=3.0, pause=pauses.append)
    store.exists([key("a"), key("b")])
    store.exists([])

    assert pauses == [3.0]
    assert store.statistics().slow == 1


def test_hanging_call_waits_until_it_is_released() -> None:
    """And then does what it was asked."""
    store, arena = faulty(hang=1.0)
    outcomes: list[StoreOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(arena.put(store, "a", b"hello")))
    thread.start()
    assert store.wait_until_hanging()
    assert store.statistics().hanging == 1
    assert outcomes == []
    store.close()
    thread.join()

    assert len(outcomes) == 1
    assert store.statistics().hanging == 0
    assert store.statistics().hung == 1
    assert not store.wait_until_hanging(timeout_s=0.0)
