"""The order of free places: many are taken from its ends, and any can go at once.

Goal: it is an ordered dictionary, however its bytes lie. Method: random programs on both, on the scalar and the bulk path, with
so many pushes that the ring is cleared and goes round many times; then what a program could not see.
"""

from __future__ import annotations

import random
from collections import OrderedDict

import numpy as np
import pytest

from blocklife.ledger import _ring
from blocklife.ledger._ids import BULK, Ids, batch, listed
from blocklife.ledger._ring import Ring

SIZE = 3 * BULK


class Twin:
    """A ring, and the dictionary that it is to be."""

    def __init__(self, size: int, seed: int) -> None:
        self.ring = Ring(size)
        self.plain: OrderedDict[int, None] = OrderedDict()
        self.random = random.Random(seed)
        self.size = size

    def some(self) -> Ids:
        """Distinct places in any order: few, or many."""
        count = self.random.choice([0, 1, 2, 3, self.size // 2, self.size])
        return batch(self.random.sample(range(self.size), min(count, self.size)))

    def step(self) -> None:
        """One call on both."""
        ids = self.some()
        act = self.random.randrange(4)
        if act == 0:
            self.ring.push_back(ids)
            for place in listed(ids):
                self.plain[place] = None
                self.plain.move_to_end(place)
        elif act == 1:
            self.ring.push_front(ids)
            for place in reversed(listed(ids)):
                self.plain[place] = None
                self.plain.move_to_end(place, last=False)
        elif act == 2:
            self.ring.remove(ids)
            for place in listed(ids):
                self.plain.pop(place, None)
        else:
            count = self.random.choice([0, 1, 2, self.size // 2, 2 * self.size])
            assert listed(self.ring.peek(count)) == list(self.plain)[:count]

    def check(self) -> None:
        """Both are the same."""
        assert self.ring.order() == list(self.plain)
        assert [place for place in range(self.size) if place in self.ring] == sorted(self.plain)


@pytest.mark.parametrize("size", [1, 5, SIZE])
@pytest.mark.parametrize("seed", range(6), ids=lambda seed: f"seed{seed}")
def test_ring_is_an_ordered_dictionary(size: int, seed: int) -> None:
    """After every call of a program that fills the ring many times over."""
    print("seed", seed)
    twin = Twin(size, seed)
    for _ in range(400):
        twin.step()
        twin.check()


@pytest.mark.interpreted
@pytest.mark.parametrize("back", [True, False], ids=["to the end", "to the front"])
def test_positions_begin_anew_before_they_could_overflow(back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that pushes on one side only is moved back to the start, and keeps its order."""
    monkeypatch.setattr(_ring, "_FAR", 40)
    ring, plain = Ring(4), OrderedDict[int, None]()
    for turn in range(200):
        place, gone = turn % 4, (turn + 1) % 4
        (ring.push_back if back else ring.push_front)([place])
        ring.remove([gone])
        plain[place] = None
        plain.move_to_end(place, last=back)
        plain.pop(gone, None)

        assert ring.order() == list(plain)
        assert abs(ring._head - _ring._START) <= 60


@pytest.mark.interpreted
def test_what_has_left_is_passed_over_once() -> None:
    """Whoever looks at the front, for few or for many, pays for what has gone only the first time."""
    for count in (1, BULK):
        ring = Ring(SIZE)
        ring.push_back(batch(np.arange(SIZE)))
        ring.remove(batch(np.arange(BULK)))
        begun = ring._head
        ring.peek(count)

        assert ring._head == begun + BULK


def test_reset_forgets_what_was_there() -> None:
    """Only the new order counts, in its order."""
    ring = Ring(6)
    ring.push_back([0, 1, 2, 3])
    ring.reset([5, 1])

    assert ring.order() == [5, 1]
    assert 0 not in ring
