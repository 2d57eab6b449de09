"""Leases of the rig's clock are what LMCache's native ones are.

Method: the same calls, drawn by a seed, on both; where time is to pass, the native lease is waited for.
"""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.lmcache.turns import Clock, Lease, native_lease
from tests.programs import HANGS_S

TTL = 1


def over(native: object) -> None:
    """Wait until a lease is over that was taken."""
    limit = time.monotonic() + HANGS_S
    while native.is_locked():  # type: ignore[attr-defined]
        assert time.monotonic() < limit, "a lease of one second does not end"
        time.sleep(0.01)


@pytest.mark.parametrize("seed", range(40))
def test_lease_counts_as_the_native_one(seed: int) -> None:
    """While it lasts: a minute is long enough for all calls."""
    rng, clock = Random(seed), Clock()
    ours, native = Lease(60, clock), native_lease(60)
    for _ in range(30):
        name = rng.choice(("lock", "lock", "unlock", "unlock", "reset"))
        getattr(ours, name)()
        getattr(native, name)()

        assert ours.is_locked() is bool(native.is_locked()), (seed, name)


@pytest.mark.parametrize(
    "behind", ["lock", "unlock lock", "lock unlock", "lock unlock unlock", "unlock unlock lock lock unlock"]
)
@pytest.mark.parametrize("count", [1, 3])
def test_lease_that_is_over_forgets_its_count_as_the_native_one(count: int, behind: str) -> None:
    """One more lock is the first one, whoever else had it before."""
    clock = Clock()
    ours, native = Lease(TTL, clock), native_lease(TTL)
    for each in (ours, native):
        for _ in range(count):
            each.lock()
    over(native)
    clock.now += TTL

    assert not ours.is_locked()
    for name in behind.split():
        getattr(ours, name)()
        getattr(native, name)()
        if name != "unlock":  # whether it is locked is asked while the new lease lasts
            assert ours.is_locked() == bool(native.is_locked()), name
    assert ours.is_locked() == bool(native.is_locked())
