"""The protocol of stores: where content is kept below the host tier, by somebody else, under a name.

*Rules.* A store knows names, addresses and sizes, and nothing else: no slot, no group, no lifecycle. It is called from our own
threads, several at once, and a call may block. It never raises because something is down, full, slow or damaged: every name
gets an outcome, and one page that fails says nothing about the others. Capacity and eviction are the store's own affair, so
what was put may be gone at any time.

*One value for a key, for ever.* A key is a hash of everything that its content depends on, so two values of one key never
differ. Therefore a store may keep the old bytes when a key is put again, and two processes may put one key at once.

*What a store is trusted with.* Nothing. What it hands back is checked (`blocklife.tiers.check`), and it is given memory of a
staging area only, never a slot of the host tier. A store that hangs, or writes late in a call that was given up, spoils no
content. But for one thing: once a call has returned, it writes to the pages of that call no more. A write between the check
and the copy to a slot would not be seen.

*What an author provides.* A class with the five methods of `ContentStore`, and `remove` where it can. It needs no base class.
`blocklife store check package.module:factory` runs the conformance suite against it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

KEY_BYTES = 32
"""The length of every key. A key may have any bytes."""


class StoreOutcome(enum.Enum):
    """What became of one key of a call."""

    OK = "the value is there (exists), is kept now (put), or was brought whole (get)"
    ABSENT = "there is no value under this key"
    WRONG_SIZE = "there is a value, of another size than the page"
    FULL = "there is no room for it, and none can be made"
    FAILED = "the store could not do it; nothing is known about the value"

    __hash__ = object.__hash__  # each member is a singleton, so identity is enough


class Page(NamedTuple):
    """One value in memory: where it is read from (put), or where it goes (get)."""

    key: bytes
    """Its name: 32 bytes."""
    address: int
    """Of its first byte. The whole page lies in memory that was registered."""
    size: int
    """In bytes, at least 1: the size of the value."""


class ContentStore(Protocol):
    """Keeps values under keys. Each call returns one outcome for each key or page, in their order.

    All methods but `close` may be called by several threads at once. Within one call the keys differ. No call may raise because
    of the state of the store; `MisuseError` is for calls that no store could serve, such as a page outside registered memory.
    """

    def register(self, address: int, size: int) -> None:
        """Announce memory in which pages will lie. Called before the first page in it; the areas do not overlap.

        A store that needs no registration does nothing. The memory stays valid until `close` has returned.
        Refuses: MisuseError where the memory cannot be used; nothing has changed then.
        """
        ...

    def exists(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """Whether there is a value under each key: OK or ABSENT; FAILED where that cannot be found out now.

        OK is no promise: the value may be gone, or turn out to be unusable, when it is got.
        """
        ...

    def put(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """Keep the bytes of each page under its key; OK means that every process that shares the store can get them now.

        A key that has a value of this size is OK at once, and may keep its old bytes. FULL or FAILED leaves what was there. No
        other process ever sees a part of a value. The pages are read until the call returns, not longer.
        """
        ...

    def get(self, pages: Sequence[Page]) -> list[StoreOutcome]:
        """Write the value of each key into its page; OK only if the value has exactly the page's size and came whole.

        Nothing outside the pages is ever written. A page whose outcome is not OK may hold anything afterwards. The pages are
        written until the call returns, not longer.
        """
        ...

    def close(self) -> None:
        """Release what the store holds. After that it touches no registered memory; what it keeps stays for others.

        Waits for calls that run in other threads, for as long as they take; a store need not be able to break one off. Who
        must not wait calls it in a thread of its own. Later calls have the outcome FAILED; a second `close` does nothing.
        """
        ...


@runtime_checkable
class Removing(Protocol):
    """What a `ContentStore` may have besides: taking values away.

    A value that was found damaged is removed, so that the next put can heal it. Without this it stays, as a miss, until the
    store evicts it.
    """

    def remove(self, keys: Sequence[bytes]) -> list[StoreOutcome]:
        """Take the values away, as far as possible: OK if it is gone now, ABSENT if there was none, FAILED otherwise."""
        ...
