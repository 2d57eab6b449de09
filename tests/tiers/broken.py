"""Stores that are wrong in one way each: for every check of the suite, one that it must not let pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from blocklife.errors import MisuseError
from blocklife.testing import MemoryStore
from blocklife.tiers import ContentStore, Page, StoreOutcome
from blocklife.tiers._areas import RegisteredMemory
from tests.programs import HANGS_S
from tests.tiers.fakes import Call, PlayedStore

OK, ABSENT, WRONG_SIZE = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.WRONG_SIZE
FULL, FAILED = StoreOutcome.FULL, StoreOutcome.FAILED


class WrongStore(MemoryStore):
    """A store that puts or gets a single value in a way of its own, or under another key, or closes or removes as it likes.

    What puts or gets one is told the store, the page and its memory; `right_put` and `right_get` do it as it should be.
    """

    def __init__(
        self,
        *,
        put: One | None = None,
        get: One | None = None,
        key: Callable[[bytes], bytes] = bytes,
        max_bytes: int | None = None,
    ) -> None:
        super().__init__(max_bytes)
        self._wrong_put, self._wrong_get, self._key = put, get, key
        self.kept: dict[bytes, Any] = {}
        """For what it should not keep."""

    def right_put(self, page: Page, view: memoryview) -> StoreOutcome:
        return super()._put(page, view)

    def right_get(self, page: Page, view: memoryview) -> StoreOutcome:
        return super()._get(page, view)

    def _put(self, page: Page, view: memoryview) -> StoreOutcome:
        page = page._replace(key=self._key(page.key))
        return self._wrong_put(self, page, view) if self._wrong_put else self.right_put(page, view)

    def _get(self, page: Page, view: memoryview) -> StoreOutcome:
        page = page._replace(key=self._key(page.key))
        return self._wrong_get(self, page, view) if self._wrong_get else self.right_get(page, view)

    def _look(self, key: bytes) -> StoreOutcome:
        return super()._look(self._key(key))


One: TypeAlias = Callable[[WrongStore, Page, memoryview], StoreOutcome]
Make: TypeAlias = Callable[[], ContentStore]


def poke(address: int, byte: int) -> None:
    """Write a byte of memory."""
    memory = RegisteredMemory()
    memory.add(address, 1)
    memory.view(Page(bytes(32), address, 1))[0] = byte


# --- wrong puts and gets of one value --------------------------------------------------------------------------------------


def put_loses_the_end(sizes: Collection[int], store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    """The last byte of values of some sizes is wrong."""
    outcome = store.right_put(page, view)
    if page.size in sizes:
        store.values[page.key] = store.values[page.key][:-1] + bytes([view[-1] ^ 1])
    return outcome


def get_at_a_multiple_of_8(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    lower = page._replace(address=page.address // 8 * 8)
    return store.right_get(lower, store._memory.view(lower))


def get_zeros_for_a_miss(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    outcome = store.right_get(page, view)
    return OK if outcome is ABSENT else outcome


def get_once(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    outcome = store.right_get(page, view)
    store.values.pop(page.key, None)
    return outcome


def get_the_start(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    """Where less is asked for than the value."""
    value = store.values.get(page.key, b"")
    if page.size >= len(value):
        return store.right_get(page, view)
    view[:] = value[: page.size]
    return OK


def get_into_the_start(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    """Where more is asked for than the value."""
    value = store.values.get(page.key, b"")
    if not value or page.size <= len(value):
        return store.right_get(page, view)
    view[: len(value)] = value
    return OK


def get_overruns(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    """One byte is written behind a page that is smaller than its value."""
    if page.size < len(store.values.get(page.key, b"")):
        poke(page.address + page.size, 7)
    return store.right_get(page, view)


def put_once(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    return FAILED if page.key in store.values else store.right_put(page, view)


def put_mixes_bytes(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    """The first bytes of the old value stay, in the size of the new one."""
    old = store.values.get(page.key, b"")
    outcome = store.right_put(page, view)
    if old and len(old) != page.size:
        store.values[page.key] = bytes(len(old)) + store.values[page.key][len(old) :]
    return outcome


def put_for_later(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    store.kept[page.key] = page
    return store.right_put(page, view)


def get_what_the_page_of_the_put_has(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    if page.key in store.kept:
        store.values[page.key] = bytes(store._memory.view(store.kept[page.key]))
    return store.right_get(page, view)


def put_scribbles(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    """It writes to the page of a put."""
    outcome = store.right_put(page, view)
    view[0] = view[0] ^ 1
    return outcome


def get_shares(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    """A value and the page that it was got into are one."""
    if page.key in store.kept:
        store.values[page.key] = bytes(store.kept[page.key])
    store.kept[page.key] = view
    return store.right_get(page, view)


def get_is_late(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    """The last byte of a large value is written a moment after the get has returned."""
    outcome = store.right_get(page, view)
    if outcome is OK and page.size == 40_000:
        threading.Timer(0.01, view.__setitem__, (-1, view[-1])).start()
    return outcome


def put_more_than_it_says(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    bound, store.max_bytes = store.max_bytes, None
    try:
        return store.right_put(page, view) if bound is None or page.size <= bound else FULL
    finally:
        store.max_bytes = bound


def put_empties(store: WrongStore, page: Page, view: memoryview) -> StoreOutcome:
    """Everything is evicted for a value that does not fit."""
    if store.max_bytes is not None and page.size > store.max_bytes:
        store.values.clear()
    return store.right_put(page, view)


# --- wrong calls --------------------------------------------------------------------------------------------------------------


def sorting(method: str, _: Sequence[Any], call: Call) -> list[StoreOutcome]:
    """Outcomes of exists come in another order."""
    return sorted(call(), key=lambda each: each.name) if method == "exists" else call()


def all_or_nothing(method: str, _: Sequence[Any], call: Call) -> list[StoreOutcome]:
    """One miss makes a whole call fail."""
    outcomes = call()
    return outcomes if method != "get" or set(outcomes) <= {OK} else [ABSENT] * len(outcomes)


def few_at_once(method: str, _: Sequence[Any], call: Call) -> list[StoreOutcome]:
    """Outcomes are given for the first 100."""
    return call()[:100] if method == "put" else call()


def picky(method: str, asked: Sequence[Any], call: Call) -> list[StoreOutcome]:
    """An empty call is an error."""
    if method == "put" and not asked:
        raise MisuseError("nothing to put")
    return call()


class OneArea(MemoryStore):
    """Knows only the area that was registered last."""

    def register(self, address: int, size: int) -> None:
        self._memory.clear()
        super().register(address, size)


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


class Keeping(MemoryStore):
    """Removes nothing."""

    def remove(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        return [self._look(key) for key in keys]


class Open(MemoryStore):
    """Does not know that it was closed."""

    def close(self) -> None: ...


def jealous() -> ContentStore:
    """A key can be put once."""
    return WrongStore(put=put_once)


def private() -> ContentStore:
    """A store that no other process and no other opening shares."""
    return MemoryStore()


def opening_fails() -> ContentStore:
    raise OSError("only once")


PRIVATE = "tests.tiers.broken:private"

BROKEN: Mapping[str, Make] = {
    "small_values": lambda: WrongStore(put=partial(put_loses_the_end, range(7, 8))),
    "values_around_a_page": lambda: WrongStore(put=partial(put_loses_the_end, range(65_537, 65_538))),
    "large_values": lambda: WrongStore(put=partial(put_loses_the_end, range(1 << 20, 1 << 24))),
    "any_address": lambda: WrongStore(get=get_at_a_multiple_of_8),
    "several_areas": OneArea,
    "any_key": lambda: WrongStore(key=lambda key: key.split(b"\0")[0].ljust(32, b"\0")),
    "keys_alike_at_their_start": lambda: WrongStore(key=lambda key: key[:31].ljust(32, b"\0")),
    "keys_alike_at_their_end": lambda: WrongStore(key=lambda key: key[1:].ljust(32, b"\0")),
    "absent_key": lambda: WrongStore(get=get_zeros_for_a_miss),
    "exists_after_put": lambda: WrongStore(get=get_once),
    "exists_for_each_key": lambda: PlayedStore(sorting),
    "hits_among_misses": lambda: PlayedStore(all_or_nothing),
    "many_pages_at_once": lambda: PlayedStore(few_at_once),
    "nothing_at_once": lambda: PlayedStore(picky),
    "page_too_small": lambda: WrongStore(get=get_the_start),
    "page_too_large": lambda: WrongStore(get=get_into_the_start),
    "nothing_outside_the_page": lambda: WrongStore(get=get_overruns),
    "put_again": jealous,
    "put_again_with_another_size": lambda: WrongStore(put=put_mixes_bytes),
    "put_reads_no_longer_than_it_runs": lambda: WrongStore(put=put_for_later, get=get_what_the_page_of_the_put_has),
    "put_leaves_its_page_alone": lambda: WrongStore(put=put_scribbles),
    "get_leaves_the_value_alone": lambda: WrongStore(get=get_shares),
    "get_writes_no_longer_than_it_runs": lambda: WrongStore(get=get_is_late),
    "threads_at_once": Exclusive,
    "threads_on_one_key": Exclusive,
    "opened_twice": private,
    "two_processes_at_once": private,
    "capacity_is_kept": lambda: WrongStore(put=put_more_than_it_says, max_bytes=1 << 20),
    "full_leaves_what_was_there": lambda: WrongStore(put=put_empties, max_bytes=1 << 20),
    "removed_key": Keeping,
    "closed_store": Open,
    "content_outlives_close": private,
}
"""For each check a store that fails it."""
