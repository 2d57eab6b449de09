"""Stores and factories that raise and print where they should not, for addresses. Each is named in a test."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from blocklife.testing import MemoryStore
from blocklife.tiers import ContentStore, Page, StoreOutcome


def printing() -> ContentStore:
    """A factory that greets on standard output, as its store does."""
    print("connected")
    return Printing(48 << 20)


class Printing(MemoryStore):
    """Prints in every put."""

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        print("putting")
        return super().put(pages)


class Unregistered(MemoryStore):
    """Takes no memory."""

    def register(self, address: int, size: int) -> None:
        raise RuntimeError("no memory\ntoday")


class Unclosed(MemoryStore):
    """Cannot be closed."""

    def close(self) -> None:
        raise RuntimeError("still busy")


class Leaving(MemoryStore):
    """Ends the program."""

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        sys.exit(7)


def leaving() -> ContentStore:
    """Ends the program as well."""
    sys.exit(7)


class Methods:
    """Cannot say what methods it has."""

    @property
    def register(self) -> None:
        raise KeyError("unknown")
