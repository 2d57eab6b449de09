"""Links copy in order, in two halves, and tell of their own failures: no engine needed, only vLLM's classes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from tests.model.offload_spec import Copy, Link, Pages, Part, SteppedLink, ThreadLink


def pages() -> tuple[Pages, Pages]:
    """Four pages of eight bytes, and room for them."""
    return np.arange(32, dtype=np.int8).reshape(4, 8) + 1, np.zeros((4, 8), dtype=np.int8)


def copy(job: int, source: Pages, target: Pages, *moves: tuple[int, int]) -> Copy:
    """A job that moves these pages."""
    here, there = (np.array(ids, dtype=np.int64) for ids in zip(*moves, strict=True))
    return Copy(job, [Part(source, here, target, there, source.shape[1])])


def test_half_of_each_page_moves_at_the_start_and_half_at_the_end() -> None:
    source, target = pages()
    moved = copy(1, source, target, (0, 3), (2, 1))
    moved.begin()
    halves = target.copy()
    source[2] = 99
    moved.end()

    assert (halves[3, :4] == [1, 2, 3, 4]).all()
    assert not halves[:, 4:].any()
    assert target[1].tolist() == [17, 18, 19, 20, 99, 99, 99, 99]


@pytest.mark.parametrize(
    "make", [lambda: ThreadLink(threading.Condition()), lambda: SteppedLink(1.0)], ids=["thread", "stepped"]
)
def test_copies_land_in_order_and_a_wait_counts_those_that_are_out(make: Callable[[], Link]) -> None:
    source, target = pages()
    link = make()
    for job in range(3):
        link.submit(copy(job, source, target, (job, job)))
    link.wait({2, 7})
    landed = [result.job_id for result in link.poll()]
    again = link.wait({2, 7})
    link.close()

    assert (landed, link.poll(), again) == ([0, 1, 2], [], 0)
    assert (target[:3] == source[:3]).all()


def test_a_copy_takes_as_many_steps_as_its_bytes_need() -> None:
    """Steps without a copy count for none; what a step has left is the next copy's."""
    source, target = pages()
    link = SteppedLink(6.0)
    link.step()
    link.submit(copy(1, source, target, (0, 0), (1, 1)))
    link.submit(copy(2, source, target, (2, 2)))
    landed = []
    for _ in range(4):
        link.step()
        landed.append([result.job_id for result in link.poll()])

    assert landed == [[], [], [1], [2]]
    assert (target[:3] == source[:3]).all()


def test_a_link_that_is_closed_lets_what_is_out_land() -> None:
    source, target = pages()
    link = SteppedLink(1e-6)
    link.submit(copy(1, source, target, (0, 0), (1, 1)))
    link.submit(copy(2, source, target, (1, 0)))
    before = link.poll()
    link.close()

    assert (before, [result.job_id for result in link.poll()]) == ([], [1, 2])
    assert target[0].tolist() == source[1].tolist()


def test_a_copy_that_fails_is_told_of_to_whoever_waits() -> None:
    source, target = pages()
    link = ThreadLink(threading.Condition())
    link.submit(copy(1, source, target, (9, 0)))
    with pytest.raises(RuntimeError, match="a copy has failed"):
        link.wait({1})
    with pytest.raises(RuntimeError, match="a copy has failed"):
        link.poll()
    link.close()
