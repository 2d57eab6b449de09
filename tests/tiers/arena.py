"""Memory for tests of stores: pages in one registered area, with their content as bytes."""

from __future__ import annotations

import hashlib

import numpy as np

from blocklife.tiers import ContentStore, Page, StoreOutcome


def key(name: object) -> bytes:
    """The key that a name stands for."""
    return hashlib.blake2b(repr(name).encode(), digest_size=32).digest()


def value(name: object, size: int) -> bytes:
    """The value that belongs to a name."""
    return hashlib.shake_128(repr(name).encode()).digest(size)


class Arena:
    """One area of memory, handed out from its start."""

    def __init__(self, size: int = 1 << 20) -> None:
        self.memory = np.zeros(size, np.uint8)
        self.address = int(self.memory.ctypes.data)
        self._used = 0

    def join(self, store: ContentStore) -> None:
        """Register it."""
        store.register(self.address, len(self.memory))

    def page(self, name: object, data: bytes | int) -> Page:
        """A page that holds some bytes, or so many zeros."""
        content = bytes(data) if isinstance(data, int) else data
        start = self._used
        self._used += len(content)
        assert self._used <= len(self.memory)
        self.memory[start : self._used] = np.frombuffer(content, np.uint8)
        return Page(key(name), self.address + start, len(content))

    def read(self, page: Page) -> bytes:
        """What a page holds now."""
        start = page.address - self.address
        return self.memory[start : start + page.size].tobytes()

    def put(self, store: ContentStore, name: object, data: bytes) -> StoreOutcome:
        """Put one value."""
        mark = self._used
        outcome = store.put([self.page(name, data)])
        self._used = mark
        return outcome[0]

    def get(self, store: ContentStore, name: object, size: int) -> bytes | StoreOutcome:
        """Get one value, or why not."""
        mark = self._used
        page = self.page(name, size)
        outcome = store.get([page])
        self._used = mark
        return self.read(page) if outcome[0] is StoreOutcome.OK else outcome[0]
