"""Ears on what comes from SGLang's storage: whose text it is, and where in host memory it is kept.

The scheduler asks the storage for the rest of a request's text, from where the match ended; what has come is put into the tree
later, and by then the tree may have changed. What is heard is the request, and the pages that the tree has taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocklife.engines.sglang.watch._keys import StoredKeys
from blocklife.engines.sglang.watch._parts import CacheParts, seed_of
from blocklife.engines.sglang.watch._reading import pages
from blocklife.watch import Ears, HeardCall, KeyedContents, Text

THREADS, TAKEN = "threads of storage", "what the tree takes from storage"
NUM_ASKED = 1024
"""How many requests are known for whom storage was asked; what comes for one that is dropped is believed."""


class StorageEars:
    """Ears on what one tree takes from storage."""

    def __init__(self, ears: Ears, parts: CacheParts) -> None:
        self._reading = parts.reading
        self._book = book = parts.pages.book
        self._parts = parts
        self._page = parts.pages.page
        self._controller = parts.controller
        self._num_threads = 0
        """Threads of the storage that have pages of the host in hand."""
        self._asking: object | None = None
        """The request for which the scheduler asks storage now."""
        self._asked: dict[str, tuple[object, int]] = {}
        """By name: a request, and the tokens ahead of what storage was asked for."""
        self._comes: str | None = None
        """The request for which something has come, while the tree takes it."""
        self._known = KeyedContents()
        """What the keys of the storage stand for."""
        tree = parts.tree
        if not book.unseen_slots:
            return
        ears.hear(parts.scheduler, "_prefetch_kvcache", before=self._asks, last=self._asks_no_more)
        ears.hear(tree, "prefetch_from_storage", before=self._asks_storage)
        for name in ("check_prefetch_progress", "_handle_prefetch_result"):
            ears.hear(tree, name, before=self._comes_for, last=self._comes_no_more, scope="storage")
        for name in ("_storage_hit_query", "_page_transfer"):
            ears.hear(parts.controller, name, before=self._takes_in_hand, last=self._lets_go, tells=THREADS)
        ears.hear(tree, "_insert_helper_host", after=self._taken, tells=TAKEN)
        ears.hear(getattr(tree, "tree_core", None), "insert_host", after=self._taken, tells=TAKEN)
        book.sees_takers = ears.told[THREADS] and ears.told[TAKEN]
        StoredKeys(ears, parts, self._known)

    def rests(self) -> bool:
        """Whether neither a load nor the storage has any page of the host in hand."""
        is_heard = self._book.unseen_slots or not getattr(self._parts.tree, "enable_storage", False)  # it may come later
        return is_heard and not self._num_threads and self._parts.host_rests

    def _takes_in_hand(self, call: HeardCall) -> None:
        self._num_threads += 1

    def _lets_go(self) -> None:
        self._num_threads -= 1

    # --- what is asked for --------------------------------------------------------------------------------------------------

    def _asks(self, call: HeardCall) -> None:
        self._asking = call.given("req")[0]

    def _asks_storage(self, call: HeardCall) -> None:
        request = self._asking
        if request is None:
            return
        name = getattr(request, "rid", "")
        self._asked.pop(name, None)
        self._asked[name] = request, _num_matched(request)
        if len(self._asked) > NUM_ASKED:
            self._asked.pop(next(iter(self._asked)))

    def _asks_no_more(self) -> None:
        self._asking = None

    # --- what comes ---------------------------------------------------------------------------------------------------------

    def _comes_for(self, call: HeardCall) -> None:
        self._comes = _name_of(call.first)

    def _comes_no_more(self) -> None:
        self._comes = None

    def _taken(self, call: HeardCall) -> None:
        """The tree has taken what it had not: the pages behind those that it had."""
        key, value = call.given("node", "key", "host_value")[1:]
        found = getattr(call.result, "prefix_len", call.result)
        known = found // self._page if isinstance(found, int) else 0
        if getattr(call.result, "host_insert_dropped", False):
            return
        asked, keys = self._asked.get(self._comes or ""), call.given("node", "key", "host_value", "hash_value")[3]

        def told(tokens: list[int]) -> None:
            slots = pages(tokens, self._page)
            if known >= len(slots):
                return
            text, start = self._text(asked, key, len(slots))
            if text is None:
                self._book.refilled(slots[known:])
                return
            needs_parent = getattr(self._controller, "write_policy", "") != "write_back"
            self._book.refilled(slots[known:], text, start + known, needs_parent=needs_parent)
            if isinstance(keys, list) and len(keys) == len(slots):
                self._book.kept_below(keys[known:], slots[known:], self._known)

        self._reading.later(told, value)

    def _text(self, asked: tuple[object, int] | None, key: object, num_pages: int) -> tuple[Text | None, int]:
        """The text that this key is a part of, and the pages ahead of that part; None where the two are not the same."""
        request, start = asked or (None, 0)
        size = self._page
        if request is None or start % size or getattr(key, "is_bigram", False):
            return None, 0
        raw = getattr(key, "raw_token_ids", None)
        part = list(raw() if raw is not None else getattr(key, "token_ids", ()))[: num_pages * size]
        prompt, answer = (getattr(request, name, ()) for name in ("origin_input_ids", "output_ids"))
        tokens = [*prompt, *answer][: start + num_pages * size]
        if tokens[start:] != part or len(part) < num_pages * size:
            return None, 0
        return Text(size, seed_of(request), tokens), start // size


def _num_matched(request: object) -> int:
    """The tokens of a request that the tree has had, on the device or on the host."""
    found = getattr(request, "prefix_len", None)
    prefix: Sequence[int] = getattr(request, "prefix_indices", ())
    host: int = getattr(request, "host_hit_length", 0)
    return host + (found if isinstance(found, int) else len(prefix))


def _name_of(asked: object) -> str | None:
    """The name of the request that a name, a handle or an operation of storage is about."""
    if isinstance(asked, str):
        return asked
    handle = getattr(asked, "handle", asked)
    for name in ("rid", "request_id"):
        found = getattr(handle, name, None)
        if isinstance(found, str):
            return found
    return None
