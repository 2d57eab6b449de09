"""Ears on SGLang's memory: which pages of the device and of the host are handed out and freed."""

from __future__ import annotations

from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import CacheParts, numbers, pages
from blocklife.watch._calls import given
from blocklife.watch._pages import PageBook

_FREES = ("free", "free_segment")
"""Methods of the allocator that free slots of tokens; newer releases have the second."""


class MemoryEars:
    """Ears on the allocator of device memory, and on the host pool."""

    def __init__(self, ears: Ears, parts: CacheParts, book: PageBook) -> None:
        self._book = book
        self._page = parts.page
        self._taken = parts.taken
        allocator, host = parts.allocator, parts.host
        for name in ("alloc", "alloc_extend", "alloc_decode"):
            ears.hear(allocator, name, after=self._allocated, scope="device")
        for name in _FREES:
            ears.hear(allocator, name, before=self._freed, scope="device")
        ears.hear(allocator, "free_page_ids", before=self._pages_freed, scope="device")
        components = getattr(parts.tree, "components", None)
        for component in components.values() if isinstance(components, dict) else ():
            ears.hear(component, "_free_full", before=self._freed, scope="device")  # the allocator's, taken ahead of the watch
        ears.hear(allocator, "free_group_end", scope="device")  # what it frees was freed when the group was told
        ears.hear(allocator, "clear", after=self._cleared, scope="device")
        ears.hear(host, "alloc", after=self._host_allocated, scope="host")
        ears.hear(host, "free", before=self._host_freed, scope="host")
        ears.hear(host, "clear", after=self._host_cleared, scope="host")

    def _allocated(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        tokens, size = numbers(result), self._page
        # A page is handed out with its first slot; the others may follow call by call, as a request goes on.
        self._book.handed_out(tokens if size == 1 else [token // size for token in tokens if not token % size])

    def _freed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.given_back(pages(numbers(given(args, kwargs, "free_index")[0]), self._page))

    def _pages_freed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.given_back(numbers(given(args, kwargs, "page_ids")[0]))

    def _cleared(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.all_given_back(self._taken()[0])

    def _host_allocated(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.slots_handed_out(pages(numbers(result), self._page))

    def _host_freed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.slots_given_back(pages(numbers(given(args, kwargs, "indices")[0]), self._page))

    def _host_cleared(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.all_slots_given_back(self._taken()[1])
