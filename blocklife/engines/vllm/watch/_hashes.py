"""Checks the hashes of requests where they are made: one hash never stands for two contents.

The hash of a block is the name of its content, everywhere: in the prefix cache, on the host and below. It has to depend on all
tokens up to the end of the block, and on the salt, the adapter and the other inputs of its request. How vLLM computes it is not
asked. What it should depend on is put into a number instead, and the hashes of requests are kept with their numbers: the same
hash with another number is that of another content. It is told when the second request comes, before anything can be hit.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from blocklife.engines.vllm.watch._calls import name_of
from blocklife.watch._calls import CallsThrough, Original
from blocklife.watch._mirror import Mirror

NUM_HASHES = 1 << 16
"""So many of the latest hashes are kept at least, and twice as many at most."""
NUM_REQUESTS = 1 << 13
"""Of how many requests is it known how far they were asked; a request that is not among them is asked from its start again."""
_WIDTH = array("q").itemsize


class RequestHashes:
    """The hashes of one scheduler's requests, each of so many tokens as the pool says; none are checked if it says nothing."""

    def __init__(self, mirrors: Sequence[Mirror], pool: object, engine: object | None) -> None:
        self._mirrors = mirrors
        unit = getattr(pool, "hash_block_size", 0)
        self._unit = unit if isinstance(unit, int) else 0
        # For each hash the number of its content, and for each content the request that had it first. Dictionaries of plain
        # values only, which the garbage collector does not look into.
        self._young: tuple[dict[bytes, int], dict[int, str]] = {}, {}
        self._old: tuple[dict[bytes, int], dict[int, str]] = {}, {}
        self._asked: dict[str, tuple[int, bytes, int]] = {}
        """Of each request how many hashes were asked for, the last of them, and the number of its content."""
        self.calls = CallsThrough()
        if engine is not None:
            self.calls.add(engine, "add_request", self._added)

    def _added(self, original: Original, *args: object, **kwargs: object) -> object:
        self.ask(args[0] if args else kwargs.get("request"))
        for mirror in self._mirrors:
            mirror.tell()
        return original(*args, **kwargs)

    def ask(self, request: object) -> None:
        """Check the hashes that a request has got since it was last asked."""
        self._mirrors[0].minded(lambda: self._ask_new(request))

    def _ask_new(self, request: object) -> None:
        hashes, unit, name = getattr(request, "block_hashes", None), self._unit, name_of(request)
        if not (unit and isinstance(hashes, list)):
            return
        start, last, content = self._asked.get(name, (0, b"", 0))
        if start and (start > len(hashes) or hashes[start - 1] != last):  # a session that has taken something back
            start = 0
        tokens = getattr(request, "all_token_ids", None)
        if start == len(hashes) or not isinstance(tokens, Sequence) or len(hashes) * unit > len(tokens):
            return
        text = array("q", tokens[start * unit : len(hashes) * unit])
        content = self._ask(request, name, hashes[start:], text, start, content if start else _start_of(request))
        if len(self._asked) >= NUM_REQUESTS:
            self._asked.clear()
        self._asked[name] = len(hashes), hashes[-1], content

    def _ask(self, request: object, name: str, hashes: Sequence[bytes], text: array[int], start: int, content: int) -> int:
        """Check these hashes, the first of which is number *start*. Returns the number of the content that they are for."""
        if len(self._young[0]) >= NUM_HASHES:
            self._old, self._young = self._young, ({}, {})
        (young, owners), (old, old_owners), inputs = self._young, self._old, _inputs_of(request, self._unit)
        tokens, width = text.tobytes(), self._unit * _WIDTH
        for at, each in enumerate(hashes):
            content = hash((content, tokens[at * width : (at + 1) * width], inputs.get(start + at)))
            if (known := young.get(each)) is None:
                known = young[each] = old.get(each, content)
                owners[known] = old_owners.get(known, name)
            if known != content:
                self._tell(name, (start + at + 1) * self._unit, owners[known])
                content = known
        return content

    def _tell(self, name: str, end: int, owner: str) -> None:
        what = f"{name} up to token {end} gets a hash that {owner} has had for another content"
        for mirror in self._mirrors:
            compared = "(tokens, salt, adapter and other inputs are compared)"
            mirror.story.violate("I8", f"{what} {compared}", request=name)


def _start_of(request: object) -> int:
    """The number of what all content of a request depends on: its salt and its adapter."""
    adapter = getattr(request, "lora_request", None)
    named = getattr(adapter, "lora_name", None), getattr(adapter, "lora_path", None)
    return hash((getattr(request, "cache_salt", None) or None, named))


def _inputs_of(request: object, unit: int) -> dict[int, tuple[object, ...]]:
    """What begins in each block beside tokens, such as an image: its id, and at which token of the block."""
    found: dict[int, tuple[object, ...]] = {}
    for each in getattr(request, "mm_features", None) or ():
        at, first = divmod(each.mm_position.offset, unit)
        found[at] = (*found.get(at, ()), each.identifier, first)
    return found
