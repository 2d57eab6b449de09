"""Ears on SGLang's storage: which host pages go to which key, and which come from which.

No byte is read. A storage gets contents that a host pool has given out, and gives back others that a host pool is filled with:
which is which is told by the identity of what is handed around. Or it gets the pages' own numbers, and moves them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from blocklife.engines.sglang.watch._memory import AnyMemory
from blocklife.engines.sglang.watch._parts import CacheParts
from blocklife.engines.sglang.watch._reading import pages
from blocklife.watch import Ears, HeardCall, KeyedContents

KNOWN_READS = ("_generic_page_get", "_page_get_zero_copy")
"""The controller's ways to read of which each page is heard."""
Asked = tuple[AnyMemory, str, Sequence[str], object]
"""A memory, its name in an answer, keys, and the slots of tokens of the host that belong to these."""


class StoredKeys:
    """Ears on one storage, and on the host pools that it is filled from."""

    def __init__(self, ears: Ears, parts: CacheParts, known: KeyedContents) -> None:
        self._reading = parts.reading
        self._known = known
        self._pages = parts.pages
        self._memories = {memory.pool or "KV": memory for memory in parts.memories}
        self._given: dict[int, tuple[object, int]] = {}
        """Contents that a host pool has given out to be written, by identity, and the page of each."""
        self._got: dict[int, tuple[object, str]] = {}
        """Contents that the storage has found, and the key of each."""
        controller, host = parts.controller, parts.pages.host
        storage = getattr(controller, "storage_backend", None)
        ears.hear(controller, "write_storage", before=self._publishes)
        for pool in [host, *[each for each in (getattr(controller, "storage_host_pool", None),) if each not in (host, None)]]:
            ears.hear(pool, "get_data_page", after=self._gives, scope="storage page")
            ears.hear(pool, "set_from_flat_data_page", before=self._fills, scope="storage page")
        for end in ("", "_v1", "_v2"):
            ears.hear(storage, "batch_set" + end, before=self._writes, last=self._given.clear, scope="storage")
            ears.hear(storage, "batch_get" + end, after=self._reads, scope="storage")
        reads = getattr(controller, "page_get_func", None)
        is_known = any(getattr(controller, name, None) == reads is not None for name in KNOWN_READS)
        parts.pages.book.sees_reads = ears.hears(storage) and is_known

    def _asked(self, call: HeardCall) -> Iterator[Asked]:
        """What a storage that moves pages itself is asked for."""
        first, host = call.given("keys", "host_indices")
        for each in first if isinstance(first, list) else ():
            name = getattr(getattr(each, "name", None), "name", "")
            if name in self._memories and each.keys:
                yield self._memories[name], each.name, each.keys, each.host_indices
        if isinstance(first, list) and first and isinstance(first[0], str) and not isinstance(host, list):
            yield self._pages, "", first, host

    # --- to the storage -----------------------------------------------------------------------------------------------------

    def _publishes(self, call: HeardCall) -> None:
        """The tree has pages written under the keys that it has for them."""
        host, said, keys = call.given("host_indices", "token_ids", "hash_value")
        size, tokens = self._pages.page, getattr(said, "token_ids", said)
        if isinstance(keys, list) and isinstance(tokens, Sequence):
            is_plain = bool(tokens) and isinstance(tokens[0], int)  # and not in pairs, as with a drafter
            chain = [tokens[at : at + size] for at in range(0, len(tokens), size)] if is_plain else []
            self._reading.later(partial(self._kept, self._pages, keys, chain), host)

    def _kept(self, memory: AnyMemory, keys: Sequence[str], chain: Sequence[Sequence[int]], slots: list[int]) -> None:
        memory.book.kept_below(keys, pages(slots, memory.page), self._known, chain)

    def _gives(self, call: HeardCall) -> None:
        if (index := _index(call.first)) is not None:
            self._given[id(call.result)] = call.result, index

    def _writes(self, call: HeardCall) -> None:
        """The storage is told what to keep under which key."""
        given = self._given
        keys, values = call.given("keys", "values")
        if isinstance(keys, list) and isinstance(values, list):
            found = [(key, given[id(each)][1]) for key, each in zip(keys, values, strict=False) if id(each) in given]
            keys, slots = [key for key, _ in found], [slot for _, slot in found]
            self._reading.later(partial(self._kept, self._pages, keys, (), slots))
        else:
            for memory, _, names, host in self._asked(call):
                self._reading.later(partial(self._kept, memory, names, ()), host)

    # --- from it ------------------------------------------------------------------------------------------------------------

    def _reads(self, call: HeardCall) -> None:
        """The storage has found these, or not."""
        keys, found = call.given("keys")[0], call.result
        asked = list(self._asked(call))
        for memory, name, names, host in asked:
            good = found.get(name, ()) if isinstance(found, dict) else found
            if isinstance(good, list) and all(each is True or each is False for each in good):
                self._reading.later(partial(self._filled, memory, names, good), host)
        if isinstance(keys, list) and isinstance(found, list):
            self._got = {id(each): (each, key) for key, each in zip(keys, found, strict=False) if isinstance(key, str)}

    def _filled(self, memory: AnyMemory, keys: Sequence[str], good: Sequence[bool], slots: list[int]) -> None:
        there = [(key, slot) for key, slot, is_there in zip(keys, pages(slots, memory.page), good, strict=False) if is_there]
        memory.book.read_below([key for key, _ in there], [slot for _, slot in there], self._known)

    def _fills(self, call: HeardCall) -> None:
        """A host page is filled with what the storage has found."""
        index, found = call.given("index", "data_page")
        if (place := _index(index)) is not None:
            key = self._got.pop(id(found), (None, ""))[1]  # of one that is not known nothing is known
            self._reading.later(partial(self._filled, self._pages, [key], [True], [place]))


def _index(place: object) -> int | None:
    """The slot of a token, which may be a tensor of one."""
    found = place.tolist() if hasattr(place, "tolist") else place
    return found if isinstance(found, int) else None
