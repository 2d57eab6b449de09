"""What the storage does, it does in its turn, one job after the other, and whoever gives the turn waits for all of it.

Method: queues alone, and threads that wait at them as SGLang's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from tests.programs import HANGS_S
from tests.sglang.turns import ORDER, JobQueue, come_to_rest, step_aside

Work = Callable[[object], object]
Start = Callable[[JobQueue, Work], Thread]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a thread that does the jobs of a queue; they all end with the test."""
    started: list[tuple[JobQueue, Thread]] = []

    def storage(queue: JobQueue, work: Work) -> None:
        while True:
            try:
                job = queue.get(block=True, timeout=0.01)
            except Empty:
                continue
            if job is None:
                return
            work(job)

    def starts(queue: JobQueue, work: Work) -> Thread:
        thread = Thread(target=storage, args=(queue, work), daemon=True)
        thread.start()
        started.append((queue, thread))
        return thread

    yield starts
    for queue, _ in started:
        queue.put(None)
    for _, thread in started:
        thread.join(HANGS_S)


def controller() -> SimpleNamespace:
    """What has all queues, as SGLang's has."""
    return SimpleNamespace(**{name: JobQueue() for name in ORDER})


def test_all_is_done_in_a_turn(start: Start) -> None:
    """It ends when the jobs are done, and those that they have made: each kind behind the other, in their order."""
    storage, done = controller(), list[object]()
    for name, behind in zip(ORDER, [*ORDER[1:], None], strict=True):
        further = getattr(storage, behind) if behind is not None else None

        def work(job: object, name: str = name, further: JobQueue | None = further) -> None:
            if further is not None:
                further.put(job)
            done.append((name, job))

        for _ in range(2):  # some releases leave a thread behind when they begin anew
            start(getattr(storage, name), work)
    for job in range(20):
        storage.backup_queue.put(job)
    come_to_rest(storage)

    assert done == [(name, job) for name in ORDER for job in range(20)]


def test_nothing_is_done_without_a_turn(start: Start) -> None:
    """No job is given, ahead of a turn and behind it; but the scheduler takes what it wants, and threads are told to end."""
    queue, done = JobQueue(), list[object]()
    queue.put("first")
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    thread = start(queue, done.append)
    queue.turn()
    queue.put("second")
    with pytest.raises(Empty):
        queue.get(timeout=0.01)

    assert done == ["first"]
    assert queue.get() == "second"
    queue.put(None)
    thread.join(HANGS_S)
    assert not thread.is_alive()


def test_nobody_waits_for_a_thread_that_has_stepped_aside(start: Start) -> None:
    """Until that is so for which it waits: then the next turn ends with its job, and goes on behind it."""
    queue, opened, done = JobQueue(), Event(), list[object]()

    def work(job: object) -> None:
        step_aside(opened)
        done.append(job)

    start(queue, work)
    queue.put("first")
    queue.put("second")
    queue.turn()
    queue.turn()
    assert done == []
    opened.set()
    queue.turn()

    assert done == ["first", "second"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_thread_that_has_died(start: Start) -> None:
    """What it has not done is never done."""
    queue = JobQueue()
    thread = start(queue, lambda job: 1 // 0)
    queue.put("first")
    queue.put("second")
    queue.turn()

    assert not thread.is_alive()
    assert queue.qsize() == 1
