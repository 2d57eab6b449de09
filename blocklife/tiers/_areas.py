"""Memory that was registered with a store, as views: nothing outside of it is ever read or written."""

from __future__ import annotations

import ctypes

from blocklife.errors import MisuseError
from blocklife.tiers._protocol import KEY_BYTES, Page


class RegisteredMemory:
    """The areas registered so far."""

    def __init__(self) -> None:
        self._areas: list[tuple[int, int, memoryview]] = []

    def add(self, address: int, size: int) -> None:
        """Register an area. Refuses: MisuseError for one without bytes, and for one that overlaps another."""
        if address <= 0 or size <= 0:
            raise MisuseError(f"store: {size} bytes at address {address} are no memory (register an area of at least 1 byte)")
        for first, last, _ in self._areas:
            if address < last and first < address + size:
                raise MisuseError(f"store: {size} bytes at {address} overlap an area that is registered (register it once)")
        area = (ctypes.c_ubyte * size).from_address(address)
        # a new list: other threads may be reading the old one
        self._areas = [*self._areas, (address, address + size, memoryview(area).cast("B"))]

    def view(self, page: Page) -> memoryview:
        """The bytes of a page. Refuses: MisuseError for a key of another length, and outside registered memory."""
        key, address, size = page
        check_key(key)
        for first, last, area in self._areas:
            if first <= address and 0 < size <= last - address:
                return area[address - first : address - first + size]
        raise MisuseError(f"store: {size} bytes at {address} are not in registered memory (register the area first)")

    def unregister(self, address: int) -> None:
        """Forget the area that begins there."""
        self._areas = [area for area in self._areas if area[0] != address]

    def clear(self) -> None:
        """Forget all areas."""
        self._areas = []


def check_key(key: bytes) -> None:
    """Refuse what is no key."""
    if type(key) is not bytes or len(key) != KEY_BYTES:
        raise MisuseError(f"store: {key!r} is no key (give {KEY_BYTES} bytes)")
