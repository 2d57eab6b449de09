"""Stores that are wrong in one way each: for every check of the suite, one that it must not let pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from blocklife.errors import MisuseError
from blocklife.testing.tiers._memory import MemoryStore
from blocklife.tiers import ContentStore, Page, StoreOutcome
from blocklife.tiers._areas import RegisteredMemory
from tests.programs import HANGS_S

OK, ABSENT, WRONG_SIZE = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.WRONG_SIZE
FULL, FAILED = StoreOutcome.FULL, StoreOutcome.FAILED


def poke(address: int, byte: int) -> None:
    """Write a byte of memory."""
    memory = RegisteredMemory()
    memory.add(address, 1)
    memory.view(Page(bytes(32), address, 1))[0] = byte


class Zeroing(MemoryStore):
    """Loses the last byte of values of some sizes."""

    sizes = range(0)

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        outcome = super()._put(page, view)
        if page.size in self.sizes:
            self.values[page.key] = self.values[page.key][:-1] + bytes([view[-1] ^ 1])
        return outcome


class ZeroingSmall(Zeroing):
    sizes = range(7, 8)


class ZeroingPages(Zeroing):
    sizes = range(65_537, 65_538)


class ZeroingLarge(Zeroing):
    sizes = range(1 << 20, 1 << 24)


class Aligning(MemoryStore):
    """Rounds addresses down to a multiple of 8."""

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        start = page.address // 8 * 8
        return super()._get(Page(page.key, start, page.size), self._memory.view(Page(page.key, start, page.size)))


class OneArea(MemoryStore):
    """Knows only the area that was registered last."""

    def register(self, address: int, size: int) -> None:
        self._memory.clear()
        super().register(address, size)


class Text(MemoryStore):
    """Keys are C strings."""

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        return super()._put(page._replace(key=page.key.split(b"\0")[0].ljust(32, b"\0")), view)

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        return super()._get(page._replace(key=page.key.split(b"\0")[0].ljust(32, b"\0")), view)


class ShortKeys(MemoryStore):
    """Keys are cut at one end."""

    def __init__(self, part: slice) -> None:
        super().__init__()
        self.part = part

    def _cut(self, key: bytes) -> bytes:
        return key[self.part].ljust(32, b"\0")

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        return super()._put(page._replace(key=self._cut(page.key)), view)

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        return super()._get(page._replace(key=self._cut(page.key)), view)

    def _look(self, key: bytes) -> StoreOutcome:
        return super()._look(self._cut(key))


class Inventing(MemoryStore):
    """A miss is a hit of zeros."""

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        outcome = super()._get(page, view)
        return OK if outcome is ABSENT else outcome


class Once(MemoryStore):
    """A value can be got once."""

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        outcome = super()._get(page, view)
        self.values.pop(page.key, None)
        return outcome


class Sorting(MemoryStore):
    """Outcomes of exists come in another order."""

    def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        return sorted(super().exists(keys), key=lambda each: each.name)


class AllOrNothing(MemoryStore):
    """One miss makes a whole call fail."""

    def get(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        outcomes = super().get(pages)
        return outcomes if set(outcomes) <= {OK} else [ABSENT] * len(pages)


class FewAtOnce(MemoryStore):
    """Gives outcomes for the first 100."""

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        return super().put(pages[:100])


class Picky(MemoryStore):
    """An empty call is an error."""

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        if not pages:
            raise MisuseError("nothing to put")
        return super().put(pages)


class Cutting(MemoryStore):
    """A get of less than the value gives its start."""

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        value = self.values.get(page.key, b"")
        if page.size < len(value):
            view[:] = value[: page.size]
            return OK
        return super()._get(page, view)


class Padding(MemoryStore):
    """A get of more than the value gives its start, too."""

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        value = self.values.get(page.key, b"")
        if value and page.size > len(value):
            view[: len(value)] = value
            return OK
        return super()._get(page, view)


class Overrunning(MemoryStore):
    """Writes one byte behind a page that is smaller than its value."""

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        if page.size < len(self.values.get(page.key, b"")):
            poke(page.address + page.size, 7)
        return super()._get(page, view)


class Jealous(MemoryStore):
    """A key can be put once."""

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        return FAILED if page.key in self.values else super()._put(page, view)


class MixingBytes(MemoryStore):
    """Keeps the first bytes of the old value, in the size of the new one."""

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        old = self.values.get(page.key, b"")
        outcome = super()._put(page, view)
        if old and len(old) != page.size:
            self.values[page.key] = bytes(len(old)) + self.values[page.key][len(old) :]
        return outcome


class Lazy(MemoryStore):
    """Reads pages of a put when a get needs them."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[bytes, Page] = {}

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        self.pages[page.key] = page
        return super()._put(page, view)

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        if page.key in self.pages:
            self.values[page.key] = bytes(self._memory.view(self.pages[page.key]))
        return super()._get(page, view)


class Scribbling(MemoryStore):
    """Writes to the page of a put."""

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        outcome = super()._put(page, view)
        view[0] = view[0] ^ 1
        return outcome


class Sharing(MemoryStore):
    """A value and the page that it was got into are one."""

    def __init__(self) -> None:
        super().__init__()
        self.views: dict[bytes, memoryview] = {}

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        if page.key in self.views:
            self.values[page.key] = bytes(self.views[page.key])
        self.views[page.key] = view
        return super()._get(page, view)


class Late(MemoryStore):
    """Get writes the last byte of a large value a moment after it has returned."""

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        outcome = super()._get(page, view)
        if outcome is OK and page.size == 40_000:
            threading.Timer(0.01, view.__setitem__, (-1, view[-1])).start()
        return outcome


class Exclusive(MemoryStore):
    """Fails a call that comes while another one runs; each waits until the other is there."""

    def __init__(self) -> None:
        super().__init__()
        self.running = threading.Semaphore(1)
        self.alone = threading.Event()

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        if not self.running.acquire(blocking=False):
            self.alone.set()
            return [FAILED] * len(pages)
        if threading.current_thread().name.startswith("Thread-"):
            self.alone.wait(HANGS_S)  # until another thread has come
        try:
            return super().put(pages)
        finally:
            self.running.release()


class Growing(MemoryStore):
    """Keeps more than it says."""

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        bound, self.max_bytes = self.max_bytes, None
        try:
            return super()._put(page, view) if bound is None or page.size <= bound else FULL
        finally:
            self.max_bytes = bound


class Emptying(MemoryStore):
    """Evicts everything for a value that does not fit."""

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        if self.max_bytes is not None and page.size > self.max_bytes:
            self.values.clear()
        return super()._put(page, view)


class Keeping(MemoryStore):
    """Removes nothing."""

    def remove(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        return [self._look(key) for key in keys]


class Open(MemoryStore):
    """Does not know that it was closed."""

    def close(self) -> None: ...


def private() -> ContentStore:
    """A store that no other process and no other opening shares."""
    return MemoryStore()


def opening_fails() -> ContentStore:
    raise OSError("only once")


PRIVATE = "tests.tiers.broken:private"

BROKEN: Mapping[str, Callable[[], ContentStore]] = {
    "small_values": ZeroingSmall,
    "values_around_a_page": ZeroingPages,
    "large_values": ZeroingLarge,
    "any_address": Aligning,
    "several_areas": OneArea,
    "any_key": Text,
    "keys_alike_at_their_start": lambda: ShortKeys(slice(0, 31)),
    "keys_alike_at_their_end": lambda: ShortKeys(slice(1, 32)),
    "absent_key": Inventing,
    "exists_after_put": Once,
    "exists_for_each_key": Sorting,
    "hits_among_misses": AllOrNothing,
    "many_pages_at_once": FewAtOnce,
    "nothing_at_once": Picky,
    "page_too_small": Cutting,
    "page_too_large": Padding,
    "nothing_outside_the_page": Overrunning,
    "put_again": Jealous,
    "put_again_with_another_size": MixingBytes,
    "put_reads_no_longer_than_it_runs": Lazy,
    "put_leaves_its_page_alone": Scribbling,
    "get_leaves_the_value_alone": Sharing,
    "get_writes_no_longer_than_it_runs": Late,
    "threads_at_once": Exclusive,
    "threads_on_one_key": Exclusive,
    "opened_twice": private,
    "two_processes_at_once": private,
    "capacity_is_kept": lambda: Growing(1 << 20),
    "full_leaves_what_was_there": lambda: Emptying(1 << 20),
    "removed_key": Keeping,
    "closed_store": Open,
    "content_outlives_close": private,
}
"""For each check a store that fails it."""
