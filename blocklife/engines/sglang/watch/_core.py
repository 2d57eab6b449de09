"""Ears on SGLang's tree core: what it gives up, which the tree must free then, and how often memory is locked.

Only newer releases have a core beside the tree. Its nodes are never read, here neither: what is heard are its answers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from blocklife.engines.sglang.watch._ears import Ears, TakesBack
from blocklife.engines.sglang.watch._parts import CacheParts
from blocklife.engines.sglang.watch._reading import pages
from blocklife.engines.sglang.watch._state_parts import POOL
from blocklife.watch._calls import given
from blocklife.watch._contents import ContentBook
from blocklife.watch._pages import PageBook
from blocklife.watch._states import StateBook

_GIVE_UP = (
    "evict_device_next_node",
    "evict_device_leaf",
    "demote",
    "drop_subtree_no_host",
    "drive_host_eviction",
    "finish_swa_state_eviction",
    "finish_mamba_state_eviction",
)
"""Verbs of a core that answer with what is to be freed."""
_FULL = "FULL"
"""The kind of memory whose locks are counted: of layers with full attention."""


class LockCount:
    """Locks on one kind of memory, by the node on which each was taken. Of those from before the watch nothing is known."""

    def __init__(self, *, is_late: bool) -> None:
        self._is_late = is_late
        """Whether there may be such locks."""
        self._held: dict[object, int] = {}

    @property
    def total(self) -> int:
        """Locks that were taken since the watch began, and not released."""
        return sum(self._held.values())

    def lock(self, node: object) -> None:
        """One is taken."""
        self._held[node] = self._held.get(node, 0) + 1

    def unlock(self, node: object) -> bool:
        """One is released. Returns whether it can have been there: that of an earlier time is not taken for another one."""
        left = self._held.pop(node, 0) - 1
        if left > 0:
            self._held[node] = left
        return left >= 0 or self._is_late

    def forget(self) -> None:
        """There is none any more."""
        self._held, self._is_late = {}, False


class CoreEars:
    """Ears on one core, where the tree has one."""

    def __init__(self, ears: Ears, parts: CacheParts, book: PageBook, states: StateBook | None = None) -> None:
        self._reading = ears.reading
        self._book = book
        self._followed: list[tuple[str, int, ContentBook]] = [(_FULL, parts.page, book)]
        """The kinds of memory that are followed, the tokens of a page in each, and its book."""
        if states is not None:
            self._followed.append((POOL, 1, states))
        self._parts = parts
        device, host = parts.taken()
        self._locks, self._host_locks = LockCount(is_late=bool(device)), LockCount(is_late=bool(host))
        core = getattr(parts.tree, "tree_core", None)
        for name in _GIVE_UP:
            ears.hear(core, name, after=self._gave_up, tells="evictions")
        ears.hear(core, "inc_host_lock_ref", after=self._host_locked, tells="locks on the host")
        ears.hear(core, "dec_host_lock_ref", before=self._host_unlocked)
        ears.hear(core, "inc_lock_ref", after=self._locked, tells="locks on the device")
        ears.hear(core, "dec_lock_ref", before=self._unlocked)
        ears.hear(core, "reset", after=self._reset)

    def host_locked(self) -> int:
        """Locks on host memory that no load and no work of storage explains."""
        return self._host_locks.total if self._parts.host_rests else 0

    def _gave_up(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        for kind, page, book in self._followed:
            frees = [list(_tensors(getattr(result, name, None), kind)) for name in ("device_frees", "host_frees")]
            num_blocks = len(frees[0])

            def told(*lists: list[int], num: int = num_blocks, page: int = page, book: ContentBook = book) -> None:
                blocks, slots = ([place for each in part for place in pages(each, page)] for part in (lists[:num], lists[num:]))
                book.given_up(blocks, slots)

            if any(frees):
                self._reading.later(told, *frees[0], *frees[1])

    def _host_locked(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._host_locks.lock(given(args, kwargs, "node_id")[0])

    def _host_unlocked(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TakesBack | None:
        return self._unlock(self._host_locks, given(args, kwargs, "node_id")[0])

    def _locked(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if not _is_left_out(result):
            self._locks.lock(given(args, kwargs, "node_id")[0])

    def _unlocked(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TakesBack | None:
        node, receipt = given(args, kwargs, "node_id", "params")
        return None if _is_left_out(receipt) else self._unlock(self._locks, node)

    def _unlock(self, locks: LockCount, node: object) -> TakesBack | None:
        if locks.unlock(node):
            return functools.partial(locks.lock, node)
        self._book.unlocked_too_often(node)
        return None

    def _reset(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._locks.forget()
        self._host_locks.forget()


def _is_left_out(receipt: object) -> bool:
    """Whether a lock, or its release, is of other kinds of memory only."""
    return any(getattr(kind, "name", "") == _FULL for kind in getattr(receipt, "skipped_lock_components", ()))


def _tensors(frees: object, wanted: str) -> Iterable[object]:
    """The indices of one kind of memory among what is given up."""
    found: Iterable[tuple[object, object]] = frees.items() if isinstance(frees, Mapping) else ()
    for kind, tensors in found:
        if getattr(kind, "name", "") == wanted and isinstance(tensors, list):
            yield from tensors
