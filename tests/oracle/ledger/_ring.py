"""A queue of places: many can be taken from its front at once, and any place can be removed.

It is used for the free blocks, the empty slots, and the order of least recent use. A ring with lazy removal: removing costs one
write, because an entry is valid only while its place refers to it. Both ends can be pushed in bulk; 9 bytes per place.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from tests.oracle.ledger._ids import BULK, Ids, batch, listed

_START = 1 << 31
"""Where positions begin: they grow to both sides, fit 32 bits, and are never 0."""
_FAR = 1 << 30
"""So far from the start everything is moved back to it."""


class Ring:
    """Places in an order, each at most once.

    Invariant: ``_entry[place]`` is the position of the only entry of the place that counts, 0 where the order is without it.
    Invariant: what counts lies from ``_head`` up to ``_tail``, which are at most as far apart as the ring is long.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._capacity = size + size // 5 + 8
        self._ring = array("i", [0]) * self._capacity
        self._ring_view = np.frombuffer(self._ring, dtype=np.int32)
        self._entry = array("I", [0]) * size
        self._entry_view = np.frombuffer(self._entry, dtype=np.uint32)
        self._head = self._tail = _START

    def __contains__(self, place: int) -> bool:
        return self._entry[place] != 0

    def push_back(self, ids: Ids) -> None:
        """Put places at the end, the last of them last, wherever they were before."""
        tail = self._tail
        if tail - self._head + len(ids) > self._capacity or tail > _START + _FAR:
            self._compact(ids)
            tail = self._tail
        self._tail = tail + len(ids)
        self._write(tail, ids)

    def push_front(self, ids: Ids) -> None:
        """Put places at the front, the first of them first, wherever they were before."""
        if self._tail - self._head + len(ids) > self._capacity or self._head < _START - _FAR:
            self._compact(ids)
        self._head -= len(ids)
        self._write(self._head, ids)

    def remove(self, ids: Ids) -> None:
        """Take places out; those that are not there stay out."""
        if type(ids) is list:
            entry = self._entry
            for place in ids:
                entry[place] = 0
        else:
            self._entry_view[ids] = 0

    def peek(self, count: int) -> Ids:
        """The first *count* places, or as many as there are."""
        if count >= BULK:
            return batch(self._peek_many(count))
        found: list[int] = []
        ring, entry, capacity = self._ring, self._entry, self._capacity
        if count <= 0:
            return found
        for position in range(self._head, self._tail):
            place = ring[position % capacity]
            if entry[place] == position:
                found.append(place)
                count -= 1
                if not count:
                    break
            elif not found:  # nobody passes over it again
                self._head = position + 1
        return found

    def order(self) -> list[int]:
        """All places, the first first."""
        return listed(self.peek(self._size))

    def reset(self, order: list[int]) -> None:
        """Hold these places, in this order."""
        self._entry_view[:] = 0
        self._head, self._tail = _START, _START + len(order)
        self._write(_START, order)

    def _write(self, start: int, ids: Ids) -> None:
        if type(ids) is list:
            ring, entry, capacity = self._ring, self._entry, self._capacity
            for position, place in enumerate(ids, start):
                ring[position % capacity] = place
                entry[place] = position
            return
        first = start % self._capacity
        fits = min(len(ids), self._capacity - first)
        self._ring_view[first : first + fits] = ids[:fits]
        self._ring_view[: len(ids) - fits] = ids[fits:]
        self._entry_view[ids] = np.arange(start, start + len(ids))

    def _compact(self, coming: Ids) -> None:
        """Drop all entries that do not count, and those of places that are about to be pushed."""
        self.remove(coming)
        kept = self._scan(self._head, self._tail)
        self._head, self._tail = _START, _START + len(kept)
        self._write(_START, kept)

    def _peek_many(self, count: int) -> NDArray[np.int64]:
        found: list[NDArray[np.int64]] = []
        position, missing = self._head, count
        while position < self._tail and missing > 0:
            stop = min(self._tail, position + 2 * missing)
            places, counts = self._between(position, stop)
            where = counts.nonzero()[0]
            if not found:  # nobody passes over it again
                self._head = position + int(where[0]) if len(where) else stop
            if len(where):
                found.append(places[where[:missing]])
                missing -= len(found[-1])
            position = stop
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)

    def _scan(self, start: int, stop: int) -> NDArray[np.int64]:
        """The places whose entries between two positions count."""
        places, counts = self._between(start, stop)
        return places[counts]

    def _between(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The places of all entries between two positions, and which of the entries count."""
        first = start % self._capacity
        ids = self._ring_view[first : first + stop - start]
        if len(ids) < stop - start:
            ids = np.concatenate((ids, self._ring_view[: stop - start - len(ids)]))
        counts: NDArray[np.bool_] = self._entry_view[ids] == np.arange(start, stop)
        return ids.astype(np.int64), counts
