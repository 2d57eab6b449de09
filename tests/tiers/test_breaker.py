"""A breaker: how many failures it takes, when it tries again, and that one success ends it."""

from __future__ import annotations

import pytest

from blocklife.errors import MisuseError
from blocklife.tiers import BreakerStatistics, CircuitBreaker
from tests.tiers.fakes import Seconds


def opened(clock: Seconds) -> CircuitBreaker:
    """A breaker after three failures in a row."""
    breaker = CircuitBreaker(3, first_wait_s=1.0, longest_wait_s=5.0, clock=clock)
    for _ in range(3):
        assert breaker.allows()
        assert not breaker.refuses()
        breaker.failed()
    return breaker


def test_breaker_opens_after_failures_in_a_row() -> None:
    """A success in between starts the count again."""
    breaker = CircuitBreaker(3, clock=Seconds())
    for _ in range(2):
        breaker.failed()
        breaker.failed()
        assert breaker.allows()
        breaker.succeeded()
        assert breaker.allows()
    for _ in range(3):
        breaker.failed()

    assert not breaker.allows()
    assert breaker.refuses()


def test_breaker_probes_at_growing_intervals() -> None:
    """One call each time, whether or not the one before has come back."""
    clock = Seconds()
    breaker = opened(clock)
    probes: list[float] = []
    for _ in range(80):
        clock.now += 0.25
        assert breaker.refuses() is not breaker.allows()
        if breaker.statistics().probes > len(probes):
            probes.append(clock.now)
            if len(probes) % 2:
                breaker.failed()  # every other one hangs

    assert probes == [1.0, 3.0, 7.0, 12.0, 17.0]
    assert breaker.statistics() == BreakerStatistics(is_down=True, failures=6, times_down=1, probes=5, refused=75)


def test_breaker_closes_after_one_success() -> None:
    """And the next time down begins with the first interval again."""
    clock = Seconds()
    breaker = opened(clock)
    clock.now += 1.0
    assert breaker.allows()
    breaker.succeeded()
    assert [breaker.allows() for _ in range(5)] == [True] * 5
    assert not breaker.refuses()
    assert not breaker.statistics().is_down

    for _ in range(3):
        breaker.failed()
    clock.now += 0.9
    assert not breaker.allows()
    clock.now += 0.1
    assert breaker.allows()
    assert breaker.statistics().times_down == 2


def test_breaker_says_when_it_probes_next() -> None:
    """Not while the store is up, nor when a probe is due."""
    clock = Seconds()
    breaker = opened(clock)
    assert breaker.next_probe_s() == 1.0
    clock.now += 0.25
    assert breaker.next_probe_s() == 0.75
    clock.now += 1.0
    assert breaker.next_probe_s() == 0.0
    assert breaker.allows()
    assert breaker.next_probe_s() == 2.0
    breaker.succeeded()
    assert breaker.next_probe_s() == 0.0


@pytest.mark.parametrize(("failures", "first", "longest"), [(0, 1.0, 2.0), (1, 0.0, 2.0), (1, 3.0, 2.0), (1, -1.0, 2.0)])
def test_breaker_refuses_settings_that_make_none(failures: int, first: float, longest: float) -> None:
    with pytest.raises(MisuseError, match="circuit breaker"):
        CircuitBreaker(failures, first_wait_s=first, longest_wait_s=longest)
