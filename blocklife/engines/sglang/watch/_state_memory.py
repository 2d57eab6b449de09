"""Ears on the memory of states: which slots of the device and of the host are handed out and freed."""

from __future__ import annotations

from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import numbers
from blocklife.engines.sglang.watch._state_parts import StateParts
from blocklife.watch._calls import given
from blocklife.watch._states import StateBook


class StateMemoryEars:
    """Ears on the allocator of states, and on their host pool."""

    def __init__(self, ears: Ears, parts: StateParts, book: StateBook) -> None:
        self._book = book
        self._taken = parts.taken
        allocator, entry, host = parts.allocator, parts.entry, parts.host
        # The controller has the allocator's methods from before the watch came.
        for thing, name in ((allocator, "alloc"), (entry, "device_alloc_fn")):
            ears.hear(thing, name, after=self._allocated, scope="states")
        for thing, name in ((allocator, "free"), (entry, "device_free_fn")):
            ears.hear(thing, name, before=self._freed, scope="states")
        ears.hear(allocator, "alloc_group_end", scope="states")  # what it frees was set aside, and never handed out
        ears.hear(allocator, "clear", after=self._cleared, scope="states")
        ears.hear(host, "alloc", after=self._host_allocated, scope="host states")
        ears.hear(host, "free", before=self._host_freed, scope="host states")
        ears.hear(host, "clear", after=self._host_cleared, scope="host states")

    def _allocated(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.handed_out(numbers(result))

    def _freed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.given_back(numbers([*args, *kwargs.values()][0]))

    def _cleared(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.all_given_back(self._taken()[0])

    def _host_allocated(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.slots_handed_out(numbers(result))

    def _host_freed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.slots_given_back(numbers(given(args, kwargs, "indices")[0]))

    def _host_cleared(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._book.all_slots_given_back(self._taken()[1])
