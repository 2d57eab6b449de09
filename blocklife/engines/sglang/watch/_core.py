"""Ears on SGLang's tree core: what it gives up, which the tree must free then, and how often memory is locked.

Only newer releases have a core beside the tree. Its nodes are never read, here neither: what is heard are its answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blocklife.engines.sglang.watch._ears import Ears
from blocklife.engines.sglang.watch._parts import CacheParts, numbers, pages
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


class CoreEars:
    """Ears on one core, where the tree has one."""

    def __init__(self, ears: Ears, parts: CacheParts, book: PageBook, states: StateBook | None = None) -> None:
        self._book = book
        self._followed: list[tuple[str, int, ContentBook]] = [(_FULL, parts.page, book)]
        """The kinds of memory that are followed, the tokens of a page in each, and its book."""
        if states is not None:
            self._followed.append((POOL, 1, states))
        self._parts = parts
        self._locks = 0
        """Locks on host memory less releases, since the watch began."""
        self._held: dict[object, int] | None = None if parts.is_in_use else {}
        """Locks on device memory by the node they were taken on; None where some were taken ahead of the watch."""
        core = getattr(parts.tree, "tree_core", None)
        for name in _GIVE_UP:
            ears.hear(core, name, after=self._gave_up)
        ears.hear(core, "inc_host_lock_ref", after=self._locked)
        ears.hear(core, "dec_host_lock_ref", after=self._unlocked)
        ears.hear(core, "inc_lock_ref", after=self._device_locked)
        ears.hear(core, "dec_lock_ref", before=self._device_unlocked)
        ears.hear(core, "reset", after=self._reset)

    def host_locked(self) -> int:
        """Locks on host memory that nothing explains."""
        return self._parts.host_locked(self._locks)

    def _gave_up(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        for kind, page, book in self._followed:
            blocks, slots = (_places(getattr(result, name, None), kind, page) for name in ("device_frees", "host_frees"))
            if blocks or slots:
                book.given_up(blocks, slots)

    def _locked(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._locks += 1

    def _unlocked(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._locks -= 1

    def _device_locked(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if self._held is not None and not _is_left_out(result):
            node = given(args, kwargs, "node_id")[0]
            self._held[node] = self._held.get(node, 0) + 1

    def _device_unlocked(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        node, receipt = given(args, kwargs, "node_id", "params")
        if self._held is None or _is_left_out(receipt):
            return
        left = self._held.pop(node, 0) - 1
        if left < 0:
            self._book.unlocked_too_often(node)
        elif left:
            self._held[node] = left

    def _reset(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._locks, self._held = 0, {}


def _is_left_out(receipt: object) -> bool:
    """Whether a lock, or its release, is of other kinds of memory only."""
    return any(getattr(kind, "name", "") == _FULL for kind in getattr(receipt, "skipped_lock_components", ()))


def _places(frees: object, wanted: str, page: int) -> list[int]:
    """The pages of one kind of memory among what is given up."""
    found: Iterable[tuple[object, object]] = frees.items() if isinstance(frees, Mapping) else ()
    return [
        place
        for kind, tensors in found
        if getattr(kind, "name", "") == wanted and isinstance(tensors, list)
        for tensor in tensors
        for place in pages(numbers(tensor), page)
    ]
