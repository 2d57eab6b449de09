"""Ears on SGLang's prefix tree: what is kept under which key, what is given up, locks, resets, and what all ranks are asked.

Nodes are never read: the newer core beside the tree does not show them, and nothing has to be known of them (see
`specs/sglang-watch.md`). What is heard of the core are its answers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._memory import AnyMemory
from blocklife.engines.sglang.watch._parts import CacheParts, seed_of
from blocklife.engines.sglang.watch._reading import pages
from blocklife.watch import Ears, HeardCall, HeldContent, Mirror, PageBook, TakesBack, Text

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

    def reset(self) -> None:
        """Forget all locks."""
        self._held, self._is_late = {}, False


class CoreEars:
    """Ears on one core, where the tree has one."""

    def __init__(self, ears: Ears, parts: CacheParts) -> None:
        self._reading = parts.reading
        self._parts = parts
        device, host = parts.pages.taken()
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

    def _gave_up(self, call: HeardCall) -> None:
        for memory in self._parts.memories:
            kind = memory.pool or _FULL
            frees = [list(_tensors(getattr(call.result, name, None), kind)) for name in ("device_frees", "host_frees")]
            frees[0] = [memory.places(each) for each in frees[0]]  # the core names those of full attention

            def told(*lists: list[int], num: int = len(frees[0]), memory: AnyMemory = memory) -> None:
                parts = lists[:num], lists[num:]
                memory.book.given_up(*[[place for each in part for place in pages(each, memory.page)] for part in parts])

            if any(frees):
                self._reading.later(told, *frees[0], *frees[1])

    def _host_locked(self, call: HeardCall) -> None:
        self._host_locks.lock(call.given("node_id")[0])

    def _host_unlocked(self, call: HeardCall) -> TakesBack | None:
        return self._unlock(self._host_locks, call.given("node_id")[0])

    def _locked(self, call: HeardCall) -> None:
        if not _is_left_out(call.result):
            self._locks.lock(call.given("node_id")[0])

    def _unlocked(self, call: HeardCall) -> TakesBack | None:
        node, receipt = call.given("node_id", "params")
        return None if _is_left_out(receipt) else self._unlock(self._locks, node)

    def _unlock(self, locks: LockCount, node: object) -> TakesBack | None:
        if locks.unlock(node):
            return functools.partial(locks.lock, node)
        self._parts.pages.book.unlocked_too_often(node)
        return None

    def _reset(self, call: HeardCall) -> None:
        self._locks.reset()
        self._host_locks.reset()


def _is_left_out(receipt: object) -> bool:
    """Whether a lock, or its release, is of other kinds of memory only."""
    return any(getattr(kind, "name", "") == _FULL for kind in getattr(receipt, "skipped_lock_components", ()))


def _tensors(frees: object, wanted: str) -> Iterable[object]:
    """The indices of one kind of memory among what is given up."""
    found: Iterable[tuple[object, object]] = frees.items() if isinstance(frees, Mapping) else ()
    for kind, tensors in found:
        if getattr(kind, "name", "") == wanted and isinstance(tensors, list):
            yield from tensors


class TreeEars:
    """Ears on one tree."""

    def __init__(self, ears: Ears, parts: CacheParts, mirror: Mirror, copies: CopyEars) -> None:
        self._reading = parts.reading
        self._parts = parts
        self._mirror = mirror
        self._paged = parts.paged
        self._states = states = None if parts.states is None else parts.states.memory.book
        self._inserted_text: tuple[Text, int] | None = None
        """What the insertion under way has for a key, and its tokens in whole pages."""
        self._copies = copies
        self._page = parts.pages.page
        self._asked = 0
        self._asked_before = 0
        self._is_told = False
        tree = parts.tree
        ears.hear(tree, "insert", before=self._inserts, after=None if states is None else self._inserted)
        ears.hear(tree, "reset", after=self._reset)
        if parts.num_ranks > 1:
            ears.hear(tree, "_all_reduce", before=self._asks)
            for name in ("writing_check", "loading_check"):
                ears.hear(tree, name, before=self._checks, after=self._checked)

    def _inserts(self, call: HeardCall) -> TakesBack | None:
        self._inserted_text = None
        params = call.given("params")[0]
        key, value = getattr(params, "key", None), getattr(params, "value", None)
        if key is None or value is None or getattr(key, "is_bigram", False):
            return None
        raw = getattr(key, "raw_token_ids", None)
        tokens: Sequence[int] = raw() if raw is not None else getattr(key, "token_ids", ())
        size, whole = self._page, len(tokens) // self._page
        # What lies ahead of this is in the tree already; the pages that are named for it may have been freed as duplicates.
        first: int = getattr(params, "prev_prefix_len", 0) // size
        text = Text(size, seed_of(key), tokens[: whole * size])
        self._inserted_text = text, whole * size

        before: dict[PageBook, dict[int, HeldContent | None]] = {}

        def told(*slots: list[int]) -> None:
            for memory, own in zip(self._paged, slots, strict=True):
                before[memory.book] = memory.book.cached(text, [slot // size for slot in own[::size]][:whole], first)

        def takes_back() -> None:
            self._inserted_text = None
            self._reading.report()
            for book, held in before.items():
                book.not_cached(held)

        self._reading.later(told, *[memory.places(value) for memory in self._paged])
        return takes_back

    def _inserted(self, call: HeardCall) -> None:
        """The tree has taken the state behind a key; or it had one already, and this one is to be freed."""
        inserted, self._inserted_text = self._inserted_text, None
        book, value = self._states, getattr(call.given("params")[0], "mamba_value", None)
        if book is None or inserted is None or value is None:
            return
        is_second = bool(getattr(call.result, "mamba_exist", False))

        def told(state: list[int]) -> None:
            if state and is_second:
                book.given_up(state, [])
            elif state:
                book.cached(*inserted, state[0])

        self._reading.later(told, value)

    def _reset(self, call: HeardCall) -> None:
        self._reading.report()
        self._copies.reset()
        for memory in self._parts.memories:
            memory.book.reset()

    # --- ranks --------------------------------------------------------------------------------------------------------------

    def _asks(self, call: HeardCall) -> None:
        self._asked += 1

    def _checks(self, call: HeardCall) -> None:
        self._asked_before = self._asked

    def _checked(self, call: HeardCall) -> None:
        is_alone = bool(call.given("write_back")[0] is True)
        is_counted = call.given("write_back", "finish_count")[1] is not None
        if is_alone or is_counted or self._asked > self._asked_before or self._is_told:
            return
        self._is_told = True  # it does so at every step from here on
        what = "a check of what has landed asks no other rank, so ranks may count differently, or wait for each other for ever"
        self._mirror.story.violate("I9", what)
