"""A thread in turns goes on when it is told to, and whoever tells it waits until it rests; without LMCache."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lmcache.turns import TurnPoller, TurnThread


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe to poll."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_thread_does_in_its_turns_what_it_would_do(pipe: tuple[int, int]) -> None:
    """It polls, and finds what is there; whoever joins it lets it come to its end."""
    done: list[object] = []
    ends: list[bool] = []

    def loop() -> None:
        poller = TurnPoller()
        poller.register(pipe[0])
        while not ends:
            found = poller.poll(1_000_000)
            done.append(bool(found))
            if found:
                os.read(pipe[0], 1)

    thread = TurnThread(target=loop, daemon=True)
    thread.start()
    rests = list(done)
    thread.turn()
    os.write(pipe[1], b"x")
    before = list(done)
    thread.turn()
    thread.turn()
    ends.append(True)
    thread.join()

    assert (rests, before) == ([], [False])
    assert done == [False, True, False, False]
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_dies_is_not_waited_for() -> None:
    """What it has died of is kept."""

    def dies() -> None:
        raise ValueError("of something")

    thread = TurnThread(target=dies, daemon=True)
    thread.start()
    thread.turn()
    thread.join()

    assert isinstance(thread.error, ValueError)
