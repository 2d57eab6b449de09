"""One memory of the device that is followed, with the host memory behind it: what it is, and the ears on what hands it out.

SGLang counts in slots of tokens, which lie in pages; a state has one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from attrs import define, field

from blocklife.engines.sglang.watch._reading import IndexReading, numbers, pages
from blocklife.watch import ContentBook, Ears, HeardCall, HeldContent, PageBook, StateBook, TakesBack

Pairs = set[tuple[int, int]]
"""Slots of the device and of the host, each with the one that its content goes to or comes from."""
Held = dict[int, HeldContent | None]
BookT = TypeVar("BookT", bound=ContentBook)
Method = tuple[object, str]
"""A thing, and the name of a method of it."""


def size_of(thing: object, name: str) -> int | None:
    """The number that this method of a thing returns; None if it has no such method, or another answer."""
    method = getattr(thing, name, None)
    found = method() if callable(method) else None
    return found if isinstance(found, int) else None


@define(eq=False, kw_only=True)
class FollowedMemory(Generic[BookT]):
    """A memory of the device, and the host memory behind it. It gets its book, of this kind, when the watch begins."""

    tree: object
    allocator: object
    host: object
    """Its host pool."""
    size: int
    """Blocks of device memory, without the dummy block 0."""
    num_host: int
    page: int = 1
    """Slots of tokens in a block."""
    pool: str = ""
    """How SGLang calls it beside the pages, which have no name in an operation."""
    counts: str = ""
    """How the names of the tree's counts of it begin."""
    has_pages: bool = True
    """Whether the numbers of its slots are those of whole pages in their order; in sharded memory they are not."""
    window: int | None = None
    """The tokens ahead of those that a step computes whose pages it reads; None: all."""
    beside: Sequence[object] = ()
    """Host pools of what lies beside it, in the same slots."""
    places: Callable[[object], object] = lambda indices: indices
    """Which slots of it belong to these of full attention: 0 for none."""
    free_lists: Sequence[str] = ("free_slots",)
    """Where the allocator has what is free."""
    sets_aside: str
    """A method of the allocator that frees what was freed already, or was never handed out."""
    also_hands_out: Sequence[Method] = ()
    """What hands it out beside the allocator, or had a method of its ahead of the watch."""
    also_frees: Sequence[Method] = ()
    book: BookT = field(init=False)
    host_locked: Callable[[], int] = lambda: 0
    """How many locks on its slots are there that nothing explains."""
    slots_rest: Callable[[], bool] = lambda: True
    """Whether nothing but the tree and the copies has any of its slots in hand."""

    # --- what the engine says of it -----------------------------------------------------------------------------------------

    def taken(self) -> tuple[list[int], list[int]]:
        """The blocks and the slots that are handed out now."""
        free = set(_all(self.allocator, *self.free_lists))
        host_free = set(pages(_all(self.host, "free_slots", "release_slots"), self.page))
        return (
            [block for block in range(1, self.size + 1) if block not in free],
            [slot for slot in range(self.num_host) if slot not in host_free],
        )

    def kept(self) -> int | None:
        """What the tree has of device memory; None where that cannot be compared with what is handed out."""
        sizes = [size_of(self.tree, self.counts + name) for name in ("evictable_size", "protected_size")]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def free(self) -> int | None:
        """What can be handed out, by the allocator's own count; None where it counts otherwise."""
        return size_of(self.allocator, "available_size") if self.has_pages else None

    def host_free(self) -> int | None:
        """The same of its host pool."""
        return size_of(self.host, "available_size")

    def locked(self) -> int:
        """What the tree could not evict now."""
        return size_of(self.tree, self.counts + "protected_size") or 0

    # --- its copies ---------------------------------------------------------------------------------------------------------

    def said_of(self, operation: object) -> Sequence[object]:
        """What says which places an operation copies of this memory."""
        if not self.pool:
            return [operation]
        named: Sequence[object] = getattr(operation, "pool_transfers", None) or ()
        return [each for each in named if getattr(getattr(each, "name", None), "name", "") == self.pool]

    def queued(self, device: Sequence[int], host: Sequence[int], *, is_store: bool, is_reload: bool) -> int:
        """A copy between these slots of tokens is queued; *is_reload*: the cache has its blocks again. Returns its number."""
        size, book = self.page, self.book
        blocks, slots = ([token // size for token in tokens[::size]] for tokens in (device, host))
        number = book.queued(blocks, slots, is_store=is_store)
        if is_reload:
            book.reloaded(blocks)
        if self.has_pages:
            self.fit(f"job {number} is", device, host)
            for where, tokens in (("device", device), ("host", host)):
                if (at := _astray(tokens, size)) is not None:
                    what = f"job {number} has {book.unit[:-1]} {tokens[at]} of the {where} at {at} of {len(tokens)}"
                    book.torn(f"{what}: it does not copy whole pages, one behind the other", number, is_store=is_store)
        return number

    def fit(self, what: str, device: Sequence[int], host: Sequence[int]) -> None:
        """Each of these has its counterpart."""
        if len(device) != len(host):
            self.book.misfits(f"{what} of {len(device)} {self.book.unit} of the device and {len(host)} of the host")

    def whole(self, pairs: Pairs) -> Pairs:
        """The blocks and slots of which every token goes to its own place."""
        size = self.page
        if size == 1:
            return pairs
        counts: dict[tuple[int, int], int] = {}
        for token, other in pairs:
            if token % size == other % size:
                pair = token // size, other // size
                counts[pair] = counts.get(pair, 0) + 1
        return {pair for pair, count in counts.items() if count == size}


AnyMemory: TypeAlias = FollowedMemory[PageBook] | FollowedMemory[StateBook]


class MemoryEars:
    """Ears on what hands one memory of the device out, and on the host pool behind it."""

    def __init__(self, ears: Ears, memory: AnyMemory, reading: IndexReading) -> None:
        self._reading = reading
        self._book: ContentBook = memory.book
        self._page = memory.page
        self._taken = memory.taken
        allocator, scope = memory.allocator, f"memory {memory.pool}"  # a call within a call is not heard
        for name in ("alloc", "alloc_extend", "alloc_decode"):
            ears.hear(allocator, name, after=self._allocated, scope=scope)
        for thing, name in memory.also_hands_out:
            ears.hear(thing, name, after=self._allocated, scope=scope)
        for thing, name in ((allocator, "free"), (allocator, "free_segment"), *memory.also_frees):
            ears.hear(thing, name, before=partial(self._freed, memory.page, False), scope=scope)
        ears.hear(allocator, "free_page_ids", before=partial(self._freed, 1, False), scope=scope)
        ears.hear(allocator, memory.sets_aside, scope=scope)
        ears.hear(allocator, "clear", after=partial(self._cleared, False), scope=scope)
        ears.hear(memory.host, "alloc", after=self._host_allocated, scope=scope + " host")
        ears.hear(memory.host, "free", before=partial(self._freed, memory.page, True), scope=scope + " host")
        ears.hear(memory.host, "clear", after=partial(self._cleared, True), scope=scope + " host")

    def _allocated(self, call: HeardCall) -> None:
        def tell(tokens: list[int]) -> None:
            size = self._page
            # A page is handed out with its first slot; the others may follow call by call, as a request goes on.
            self._book.handed_out(tokens if size == 1 else [token // size for token in tokens if not token % size])

        self._reading.later(tell, call.result)

    def _host_allocated(self, call: HeardCall) -> None:
        self._reading.later(lambda tokens: self._book.slots_handed_out(pages(tokens, self._page)), call.result)

    def _freed(self, size: int, on_host: bool, call: HeardCall) -> TakesBack:
        """These are freed, until that is taken back: then what is still handed out holds what it has held."""
        book, held = self._book, Held()
        gives = book.slots_given_back if on_host else book.given_back
        self._reading.later(lambda tokens: held.update(gives(pages(tokens, size))), call.first)

        def takes_back() -> None:
            self._reading.report()
            still = {*self._taken()[on_host]}
            keeps = book.slots_kept_after_all if on_host else book.kept_after_all
            keeps({place: what for place, what in held.items() if place in still})

        return takes_back

    def _cleared(self, on_host: bool, call: HeardCall) -> None:
        self._reading.report()
        gives = self._book.all_slots_given_back if on_host else self._book.all_given_back
        gives(self._taken()[on_host])


def _astray(tokens: Sequence[int], size: int) -> int | None:
    """The first of these slots of tokens that is not where it belongs in a row of whole pages."""
    if size == 1:
        return None
    for at, token in enumerate(tokens):
        if token != tokens[at - at % size] + at % size or (token - at) % size:
            return at
    return len(tokens) - 1 if len(tokens) % size else None


def _all(thing: object, *names: str) -> Iterable[int]:
    """The numbers in these lists of a thing: each a tensor, a list of numbers, or several tensors."""
    for name in names:
        found = getattr(thing, name, None)
        several = found if isinstance(found, list | tuple) and not isinstance((*found, 0)[0], int) else [found]
        for each in several:
            yield from numbers(each)
