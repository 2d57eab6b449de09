"""Stores and clocks that a test has in its hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from blocklife.testing import MemoryStore
from blocklife.tiers import Page, StoreOutcome
from tests.programs import HANGS_S


class Seconds:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


Call: TypeAlias = Callable[[], list[StoreOutcome]]
"""A call of a store as it would be."""
Play: TypeAlias = Callable[[str, Sequence[Any], Call], list[StoreOutcome]]
"""What a test makes of a call: it gets the method's name, the keys or pages, and the call."""


class PlayedStore(MemoryStore):
    """A store in memory each of whose calls a test plays."""

    def __init__(self, play: Play) -> None:
        super().__init__()
        self.play = play

    def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        return self.play("exists", keys, partial(super().exists, keys))

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        return self.play("put", pages, partial(super().put, pages))

    def get(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        return self.play("get", pages, partial(super().get, pages))

    def remove(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        return self.play("remove", keys, partial(super().remove, keys))


class GatedStore:
    """Answers what a test has said, and stops at a gate first: a call waits until the test lets it go.

    ``arrived`` counts calls that have come to the gate; `let_go` opens it for some of them.
    """

    def __init__(self, there: Callable[[bytes], StoreOutcome], *, gated: bool = True) -> None:
        self.there = there
        self.calls: list[list[bytes]] = []
        self._gated = gated
        self._changed = threading.Condition()
        self._passes = 0

    def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        with self._changed:
            self.calls.append(list(keys))
            self._changed.notify_all()
            if self._gated:
                assert self._changed.wait_for(lambda: self._passes, timeout=HANGS_S)
                self._passes -= 1
        return [self.there(key) for key in keys]

    def wait_for_calls(self, count: int) -> None:
        """Until so many calls have come to the gate."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, timeout=HANGS_S)

    def let_go(self, count: int = 1) -> None:
        with self._changed:
            self._passes += count
            self._changed.notify_all()

    def register(self, address: int, size: int) -> None: ...

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        raise NotImplementedError

    def get(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        raise NotImplementedError

    def close(self) -> None: ...
