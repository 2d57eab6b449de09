"""A store in the memory of this process: the smallest one that keeps to the protocol."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from blocklife.tiers import ContentStore, Page, StoreOutcome
from blocklife.tiers._areas import RegisteredMemory, check_key


class MemoryStore:
    """A `ContentStore` that keeps values in a dictionary, for tests; with *max_bytes*, what was used longest ago is evicted."""

    def __init__(self, max_bytes: int | None = None) -> None:
        self.max_bytes = max_bytes
        self.values: OrderedDict[bytes, bytes] = OrderedDict()
        """Each value by its key, that used longest ago first; a test may change them."""
        self._memory = RegisteredMemory()
        self._lock = threading.RLock()
        self._closed = False

    def register(self, address: int, size: int) -> None:
        """As `ContentStore.register`."""
        with self._lock:
            self._memory.add(address, size)

    def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """As `ContentStore.exists`."""
        with self._lock:
            return [self._look(key) for key in keys]

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """As `ContentStore.put`."""
        with self._lock:
            return [self._put(page, self._memory.view(page)) for page in pages] if self._is_open() else _failed(pages)

    def get(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """As `ContentStore.get`."""
        with self._lock:
            return [self._get(page, self._memory.view(page)) for page in pages] if self._is_open() else _failed(pages)

    def remove(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """As `Removing.remove`."""
        with self._lock:
            found = [self._look(key) for key in keys]
            for key in keys:
                if self._is_open():
                    self.values.pop(key, None)
            return found

    def close(self) -> None:
        """As `ContentStore.close`."""
        with self._lock:
            self._closed = True

    def _is_open(self) -> bool:
        return not self._closed

    def _look(self, key: bytes) -> StoreOutcome:
        check_key(key)
        if not self._is_open():
            return StoreOutcome.FAILED
        return StoreOutcome.OK if key in self.values else StoreOutcome.ABSENT

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        if self.max_bytes is not None:
            if page.size > self.max_bytes:
                return StoreOutcome.FULL
            others = sum(len(value) for key, value in self.values.items() if key != page.key)
            while others + page.size > self.max_bytes:
                oldest = next(key for key in self.values if key != page.key)
                others -= len(self.values.pop(oldest))
        self.values[page.key] = bytes(view)
        self.values.move_to_end(page.key)
        return StoreOutcome.OK

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        value = self.values.get(page.key)
        if value is None:
            return StoreOutcome.ABSENT
        if len(value) != page.size:
            return StoreOutcome.WRONG_SIZE
        view[:] = value
        self.values.move_to_end(page.key)
        return StoreOutcome.OK


def _failed(pages: Sequence[Page]) -> list[StoreOutcome]:
    return [StoreOutcome.FAILED] * len(pages)


_: type[ContentStore] = MemoryStore
