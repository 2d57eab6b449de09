"""What a check of a store works with: a store, memory with guards around every page, and keys of its own."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from attrs import define, field, frozen

from blocklife.tiers import KEY_BYTES, ContentStore, Page, Removing, StoreOutcome

MakeStore: TypeAlias = Callable[[], ContentStore]
"""Opens a store. For a store with an address every call opens the same content."""

_Answer = TypeVar("_Answer")

OK, ABSENT, WRONG_SIZE = StoreOutcome.OK, StoreOutcome.ABSENT, StoreOutcome.WRONG_SIZE
FULL, FAILED = StoreOutcome.FULL, StoreOutcome.FAILED

_GUARD = 0xA5
_GUARD_BYTES = 64


class StoreCheckError(Exception):
    """A store has not done what the protocol says."""


class SkippedError(Exception):
    """A check cannot be made of this store."""


@frozen
class Given:
    """What is known of the store that is checked."""

    make: MakeStore
    address: str = ""
    """Its address; empty if it has none, and so cannot be opened by another process."""
    capacity: int | None = None
    """The bytes that it keeps at most; None if nobody says."""
    token: str = ""
    """Differs between runs, so that nothing is found that an earlier run has left."""


def key_of(token: str, name: object) -> bytes:
    """The key that a name stands for in one run."""
    return hashlib.blake2b(f"{token}:{name!r}".encode(), digest_size=KEY_BYTES).digest()


def value_of(key: bytes, size: int) -> bytes:
    """The value that belongs to a key; it can be made again anywhere."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little"))).bytes(size)


class GuardedMemory:
    """One area whose bytes between the pages must never change."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size + _GUARD_BYTES)
        self.bytes = np.frombuffer(self._map, np.uint8)
        self.bytes[:] = _GUARD
        self.address = int(self.bytes.ctypes.data)
        self._next = _GUARD_BYTES
        self._owned = np.zeros(len(self.bytes), bool)

    def has_room(self, size: int, align: int) -> bool:
        """Whether a page of this size still fits."""
        return self._start(align) + size + _GUARD_BYTES <= len(self.bytes)

    def allocate(self, size: int, align: int) -> int:
        """The address of a new page."""
        start = self._start(align)
        self._owned[start : start + size] = True
        self._next = start + size + _GUARD_BYTES
        return self.address + start

    def view(self, page: Page) -> np.ndarray[tuple[int], np.dtype[np.uint8]] | None:
        """The bytes of a page that lies here."""
        start = page.address - self.address
        return self.bytes[start : start + page.size] if 0 <= start < len(self.bytes) else None

    def stray(self) -> int | None:
        """How far from the start of the area a byte outside the pages has changed; None if none has."""
        changed = np.flatnonzero((self.bytes != _GUARD) & ~self._owned)
        return int(changed[0]) if len(changed) else None

    def _start(self, align: int) -> int:
        return (self._next + 63) // 64 * 64 + align


@define(eq=False)
class Trial:
    """One check that is being made. Its calls see to it that there is one outcome for each key, and that nothing is raised."""

    given: Given
    name: str
    store: ContentStore
    areas: list[GuardedMemory] = field(factory=list)
    used: dict[bytes, None] = field(factory=dict)
    """The keys that were put."""

    def key(self, name: object) -> bytes:
        """A key of this check alone."""
        return key_of(f"{self.given.token}:{self.name}", name)

    def join(self, size: int, store: ContentStore | None = None) -> None:
        """Register new memory for pages of so many bytes in all."""
        area = GuardedMemory(size)
        self.areas.append(area)
        self._call("register", lambda: (store or self.store).register(area.address, len(area.bytes)))

    def page(self, name: object, size: int, *, align: int = 0) -> Page:
        """A page of zeros in the newest area; a `bytes` name is the key itself."""
        key = name if isinstance(name, bytes) else self.key(name)
        if not self.areas or not self.areas[-1].has_room(size, align):
            self.join(max(1 << 16, 2 * size))
        page = Page(key, self.areas[-1].allocate(size, align), size)
        self.fill(page, bytes(size))
        return page

    def full_page(self, name: object, size: int, *, align: int = 0) -> Page:
        """A page with the value that belongs to its key."""
        page = self.page(name, size, align=align)
        self.fill(page, value_of(page.key, size))
        return page

    def fill(self, page: Page, data: bytes) -> None:
        """Write a page."""
        self._view(page)[:] = np.frombuffer(data, np.uint8)

    def read(self, page: Page) -> bytes:
        """The bytes of a page."""
        return self._view(page).tobytes()

    def _view(self, page: Page) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return next(view for area in self.areas if (view := area.view(page)) is not None)

    # --- calls of the store --------------------------------------------------------------------------------------------

    def exists(self, keys: Sequence[bytes], store: ContentStore | None = None) -> list[StoreOutcome]:
        """Call ``exists``."""
        return self._outcomes("exists", keys, lambda: (store or self.store).exists(keys))

    def put(self, pages: Sequence[Page], store: ContentStore | None = None) -> list[StoreOutcome]:
        """Call ``put``."""
        self.used.update(dict.fromkeys(page.key for page in pages))
        return self._outcomes("put", pages, lambda: (store or self.store).put(pages))

    def get(self, pages: Sequence[Page], store: ContentStore | None = None) -> list[StoreOutcome]:
        """Call ``get``."""
        return self._outcomes("get", pages, lambda: (store or self.store).get(pages))

    def _outcomes(self, what: str, asked: Sequence[object], call: Callable[[], list[StoreOutcome]]) -> list[StoreOutcome]:
        outcomes: object = self._call(what, call)
        if not isinstance(outcomes, list) or len(outcomes) != len(asked):
            raise StoreCheckError(f"{what} of {len(asked)} gave {_short(outcomes)}, not a list with one outcome for each")
        for outcome in outcomes:
            if type(outcome) is not StoreOutcome:
                raise StoreCheckError(f"{what} gave {_short(outcome)}, which is no StoreOutcome")
        return outcomes

    def _call(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        try:
            return call()
        except (Exception, SystemExit) as problem:
            raise StoreCheckError(f"{what} raised {problem!r}; what a store cannot do is an outcome") from problem

    # --- what must hold ------------------------------------------------------------------------------------------------

    def must(self, holds: bool, otherwise: str) -> None:
        """Fail the check if something does not hold."""
        if not holds:
            raise StoreCheckError(otherwise)

    def must_be(self, what: str, found: Sequence[StoreOutcome], wanted: StoreOutcome | Sequence[StoreOutcome]) -> None:
        """Fail the check if outcomes are others."""
        expected = [wanted] * len(found) if isinstance(wanted, StoreOutcome) else list(wanted)
        wrong = [at for at, (one, other) in enumerate(zip(found, expected, strict=True)) if one is not other]
        if wrong:
            at, of = wrong[0], f" of position {wrong[0]} of {len(found)}" if len(found) > 1 else ""
            raise StoreCheckError(f"{what}{of} gave {found[at].name}, not {expected[at].name}")

    def must_put(self, pages: Sequence[Page], store: ContentStore | None = None) -> None:
        """Put pages, all of which must be kept."""
        self.must_be("put", self.put(pages, store), OK)

    def must_get(self, pages: Iterable[Page], store: ContentStore | None = None) -> None:
        """Get the values of pages that belong to their keys, byte for byte, into fresh memory."""
        self.must_fill([self.page(page.key, page.size) for page in pages], store)

    def must_fill(self, pages: Sequence[Page], store: ContentStore | None = None) -> None:
        """Get into these pages the values that belong to their keys, byte for byte."""
        self.must_be("get", self.get(pages, store), OK)
        self.must_hold(*pages)

    def must_hold(self, *pages: Page) -> None:
        """Each page must have the value that belongs to its key."""
        for page in pages:
            found, wanted = self.read(page), value_of(page.key, page.size)
            if found != wanted:
                at = next(at for at, (one, other) in enumerate(zip(found, wanted, strict=True)) if one != other)
                raise StoreCheckError(f"a value of {page.size:,} bytes came back changed, from byte {at:,} on")

    def must_not_stray(self) -> None:
        """Nothing outside the pages may have changed."""
        for area in self.areas:
            if (at := area.stray()) is not None:
                raise StoreCheckError(f"a byte outside the pages was written, {at:,} bytes into the registered area")

    def clean_up(self) -> None:
        """Take away what was put, where the store can, and close it."""
        try:
            if isinstance(self.store, Removing) and self.used:
                self.store.remove(list(self.used))
            self.store.close()
        except (Exception, SystemExit) as problem:
            raise StoreCheckError(f"close or remove raised {problem!r}") from problem


StoreCheckFunction: TypeAlias = Callable[[Trial], None]


@frozen
class CheckDefinition:
    """One check of the suite."""

    name: str
    says: str
    """What holds, in one sentence."""
    run: StoreCheckFunction
    memory: int
    """Bytes of values that it keeps at once; a store that is known to have less room is not checked for it."""
    needs: frozenset[str]
    """``address``, ``capacity`` or ``remove``."""


CHECKS: dict[str, CheckDefinition] = {}
"""Every check, in the order in which they are made."""


def check(memory: int = 1 << 16, needs: Iterable[str] = ()) -> Callable[[StoreCheckFunction], StoreCheckFunction]:
    """Add a function to the suite; its docstring says what holds."""

    def add(function: StoreCheckFunction) -> StoreCheckFunction:
        says = (function.__doc__ or "").strip().splitlines()[0]
        CHECKS[function.__name__] = CheckDefinition(function.__name__, says, function, memory, frozenset(needs))
        return function

    return add


def _short(thing: object) -> str:
    text = repr(thing)
    return text if len(text) < 80 else f"{text[:77]}..."
