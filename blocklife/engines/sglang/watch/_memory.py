"""Ears on SGLang's memory: which pages, or slots of states, are handed out and freed, of the device and of the host."""

from __future__ import annotations

from collections.abc import Callable

from blocklife.engines.sglang.watch._ears import Ears, TakesBack
from blocklife.engines.sglang.watch._parts import CacheParts
from blocklife.engines.sglang.watch._reading import pages
from blocklife.engines.sglang.watch._state_parts import StateParts
from blocklife.watch._contents import ContentBook
from blocklife.watch._texts import HeldContent

_FREES = ("free", "free_segment")
"""Methods of the allocator that free slots of tokens; newer releases have the second."""

Taken = Callable[[], tuple[list[int], list[int]]]
"""What is handed out now, on the device and on the host."""


class MemoryEars:
    """Ears on what hands one memory of the device out, and on the host pool behind it.

    *page*: slots of tokens in a block. *scope*: a name for this memory, so that a call within a call is not heard.
    """

    def __init__(self, ears: Ears, book: ContentBook, host: object, page: int, taken: Taken, scope: str) -> None:
        self._reading = ears.reading
        self._book = book
        self._page = page
        self._taken = taken
        ears.hear(host, "alloc", after=self._host_allocated, scope=scope + " host")
        ears.hear(host, "free", before=self._host_freed, scope=scope + " host")
        ears.hear(host, "clear", after=self._host_cleared, scope=scope + " host")

    @classmethod
    def of_pages(cls, ears: Ears, parts: CacheParts, book: ContentBook) -> MemoryEars:
        """Those of the keys and values."""
        made = cls(ears, book, parts.host, parts.page, parts.taken, "pages")
        allocator = parts.allocator
        for name in ("alloc", "alloc_extend", "alloc_decode"):
            ears.hear(allocator, name, after=made._allocated, scope="pages")
        for name in _FREES:
            ears.hear(allocator, name, before=made._freed, scope="pages")
        ears.hear(allocator, "free_page_ids", before=made._pages_freed, scope="pages")
        components = getattr(parts.tree, "components", None)
        for component in components.values() if isinstance(components, dict) else ():
            ears.hear(component, "_free_full", before=made._freed, scope="pages")  # the allocator's, taken ahead of the watch
        ears.hear(allocator, "free_group_end", scope="pages")  # what it frees was freed when the group was told
        ears.hear(allocator, "clear", after=made._cleared, scope="pages")
        return made

    @classmethod
    def of_states(cls, ears: Ears, parts: StateParts, book: ContentBook) -> MemoryEars:
        """Those of the states."""
        made = cls(ears, book, parts.host, 1, parts.taken, "states")
        # The controller has the allocator's methods from before the watch came.
        for thing, name in ((parts.allocator, "alloc"), (parts.entry, "device_alloc_fn")):
            ears.hear(thing, name, after=made._allocated, scope="states")
        for thing, name in ((parts.allocator, "free"), (parts.entry, "device_free_fn")):
            ears.hear(thing, name, before=made._freed, scope="states")
        ears.hear(parts.allocator, "alloc_group_end", scope="states")  # what it frees was set aside, and never handed out
        ears.hear(parts.allocator, "clear", after=made._cleared, scope="states")
        return made

    # --- the device ---------------------------------------------------------------------------------------------------------

    def _allocated(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        def tell(tokens: list[int]) -> None:
            size = self._page
            # A page is handed out with its first slot; the others may follow call by call, as a request goes on.
            self._book.handed_out(tokens if size == 1 else [token // size for token in tokens if not token % size])

        self._reading.later(tell, result)

    def _freed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TakesBack:
        return self._free(self._page, [*args, *kwargs.values()][0])

    def _pages_freed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TakesBack:
        return self._free(1, [*args, *kwargs.values()][0])

    def _free(self, size: int, indices: object) -> TakesBack:
        held: dict[int, HeldContent | None] = {}
        self._reading.later(lambda tokens: held.update(self._book.given_back(pages(tokens, size))), indices)

        def takes_back() -> None:
            self._reading.settle()
            still = {*self._taken()[0]}
            self._book.kept_after_all({block: what for block, what in held.items() if block in still})

        return takes_back

    def _cleared(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._reading.settle()
        self._book.all_given_back(self._taken()[0])

    # --- the host -----------------------------------------------------------------------------------------------------------

    def _host_allocated(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._reading.later(lambda tokens: self._book.slots_handed_out(pages(tokens, self._page)), result)

    def _host_freed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TakesBack:
        held: dict[int, HeldContent | None] = {}
        indices = [*args, *kwargs.values()][0]
        self._reading.later(lambda tokens: held.update(self._book.slots_given_back(pages(tokens, self._page))), indices)

        def takes_back() -> None:
            self._reading.settle()
            still = {*self._taken()[1]}
            self._book.slots_kept_after_all({slot: what for slot, what in held.items() if slot in still})

        return takes_back

    def _host_cleared(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._reading.settle()
        self._book.all_slots_given_back(self._taken()[1])
