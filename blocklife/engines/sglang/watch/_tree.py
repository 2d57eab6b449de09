"""Ears on SGLang's prefix tree: what is kept under which key, resets, and whether each check asks all ranks.

Nodes are never read: the newer core does not show them, and nothing has to be known of them (see `specs/sglang-watch.md`).
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._ears import Ears, TakesBack
from blocklife.engines.sglang.watch._parts import CacheParts, seed_of
from blocklife.watch._calls import given
from blocklife.watch._mirror import Mirror
from blocklife.watch._pages import PageBook
from blocklife.watch._states import StateBook
from blocklife.watch._texts import HeldContent, Text


class TreeEars:
    """Ears on one tree."""

    def __init__(
        self,
        ears: Ears,
        parts: CacheParts,
        mirror: Mirror,
        book: PageBook,
        copies: CopyEars,
        states: StateBook | None = None,
    ) -> None:
        self._reading = ears.reading
        self._mirror = mirror
        self._book = book
        self._states = states
        self._inserted_text: tuple[Text, int] | None = None
        """What the insertion under way has for a key, and its tokens in whole pages."""
        self._copies = copies
        self._page = parts.page
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

    def _inserts(self, args: tuple[object, ...], kwargs: dict[str, object]) -> TakesBack | None:
        self._inserted_text = None
        params = given(args, kwargs, "params")[0]
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

        before: dict[int, HeldContent | None] = {}

        def told(slots: list[int]) -> None:
            before.update(self._book.cached(text, [slot // size for slot in slots[::size]][:whole], first))

        def takes_back() -> None:
            self._inserted_text = None
            self._reading.settle()
            self._book.not_cached(before)

        self._reading.later(told, value)
        return takes_back

    def _inserted(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """The tree has taken the state behind a key; or it had one already, and this one is to be freed."""
        inserted, self._inserted_text = self._inserted_text, None
        book, value = self._states, getattr(given(args, kwargs, "params")[0], "mamba_value", None)
        if book is None or inserted is None or value is None:
            return
        is_second = bool(getattr(result, "mamba_exist", False))

        def told(state: list[int]) -> None:
            if state and is_second:
                book.given_up(state, [])
            elif state:
                book.cached(*inserted, state[0])

        self._reading.later(told, value)

    def _reset(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._reading.settle()
        self._copies.forget()
        self._book.reset()
        if self._states is not None:
            self._states.reset()

    # --- ranks --------------------------------------------------------------------------------------------------------------

    def _asks(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._asked += 1

    def _checks(self, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._asked_before = self._asked

    def _checked(self, result: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        is_alone = bool(kwargs.get("write_back", args and args[0] is True))
        is_counted = kwargs.get("finish_count") is not None or len(args) > 1
        if is_alone or is_counted or self._asked > self._asked_before or self._is_told:
            return
        self._is_told = True  # it does so at every step from here on
        what = "a check of what has landed asks no other rank, so ranks may count differently, or wait for each other for ever"
        self._mirror.story.violate("I9", what)
