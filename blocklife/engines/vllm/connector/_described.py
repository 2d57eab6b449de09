"""What KV cache events say of stored content: its tokens, the hashes of its blocks, its parent, its adapter.

Rules of this file:

* An event comes when a copy has landed. By then the request may be over, so what can be said of its content is noted while it
  runs: which chunk of which request it is. The tokens are read when the event comes, or when the request ends.
* Content of full attention is described. Content of windows and states is not: it says nothing about the prefix before it.
* What is said of content is the same in each tier that has it, and is kept until it was told as removed from all of them.
* If no request with the content is left to describe it, its event is a *placeholder* that has the key alone. When a later
  request looks the content up, it can be described again, and the event of its removal names all of its blocks.

Nothing of this is kept, and nothing is called in a step, unless events are on and are to describe themselves.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from attrs import frozen

from blocklife.engines.vllm.connector._shapes import CacheShape, VllmRequest
from blocklife.offload import EventKind, FullAttention, TierEvent
from blocklife.offload.replacement import Name

ExtraKeys: TypeAlias = tuple[tuple[object, ...] | None, ...]
"""What the hashes of some blocks cover besides tokens, block by block."""


ReadExtraKeys: TypeAlias = Callable[[VllmRequest, int, int, int], ExtraKeys | None]
"""The extra keys of a request's tokens from here to there, in blocks of so many tokens; None if no block has any."""


@frozen(eq=False)
class Description:
    """What an event of one chunk says."""

    hashes: tuple[bytes, ...]
    """Of its blocks; the last one is the chunk's key."""
    parent: bytes | None
    """The hash of the block before it; None at the beginning of a text."""
    tokens: array[int]
    block_tokens: int
    adapter: tuple[int, str] | None
    """Number and name of the LoRA adapter."""
    extra_keys: ExtraKeys | None


class Describer:
    """Knows the content of the host tier and of the store below, and of what is on its way to the host tier.

    Invariant: ``_told`` and ``_bare`` together have the content of full groups that was told as stored, and not as removed from
    each tier that has it; ``_bare`` what was told as a placeholder. ``_held`` says of the host tier, and of the store
    below, which of it that has. ``_filled`` has chunks of live requests; ``_by_request`` their names, by request.
    ``_left`` has chunks of requests that are over, the oldest first, at most as many as the device has blocks.
    """

    def __init__(self, shape: CacheShape, extra_keys: ReadExtraKeys) -> None:
        self._shape = shape
        self._extra_keys = extra_keys
        self._size = shape.geometry.blocks_per_chunk
        self._full = [isinstance(each, FullAttention) for each in shape.geometry.groups]
        self._told: dict[Name, Description] = {}
        self._bare: set[Name] = set()
        self._held: tuple[set[Name], set[Name]] = set(), set()
        self._filled: dict[Name, tuple[VllmRequest, int]] = {}
        self._by_request: dict[str, dict[Name, None]] = {}
        self._left: dict[Name, Description] = {}
        self._waiting: dict[str, tuple[VllmRequest, dict[Name, int]]] = {}
        """Requests that may wait for content from below, with their chunks by name once these were wanted."""

    def __len__(self) -> int:
        """How many descriptions are kept, or could be made."""
        return len(self._told) + len(self._filled) + len(self._left)

    def look(self, request: VllmRequest, group: int, start: int, keys: Sequence[bytes]) -> None:
        """The keys of a request's blocks from *start* on, which it looks for."""
        if self._bare and self._full[group]:
            for name, chunk in self._chunks(group, start, keys, (start + len(keys)) // self._size):
                if name in self._bare:
                    self._heal(name, request, chunk)

    def note(
        self, request: VllmRequest, group: int, start: int, keys: Sequence[bytes], most_tokens: int, *, over: bool = False
    ) -> None:
        """The keys of a request's blocks from *start* on, which it fills or shares; the request may be *over*.

        Nothing behind its first *most_tokens* is stored.
        """
        if not self._full[group]:
            return
        stop = min((start + len(keys)) // self._size, most_tokens // self._shape.geometry.chunk_tokens[group])
        for name, chunk in self._chunks(group, start, keys, stop):
            if name in self._bare:
                self._heal(name, request, chunk)
            elif over:
                self._leave_behind(name, request, chunk)
            else:
                self._filled[name] = request, chunk
                self._by_request.setdefault(request.request_id, {})[name] = None

    def wait(self, request: VllmRequest) -> None:
        """A request waits: what comes from below in the meantime may be its content."""
        self._waiting.setdefault(request.request_id, (request, {}))

    def go_on(self, request: VllmRequest) -> None:
        """It does not wait any more."""
        self._waiting.pop(request.request_id, None)

    def leave(self, request: VllmRequest) -> None:
        """A request is over: describe what of it may still be stored."""
        self._waiting.pop(request.request_id, None)
        for name in self._by_request.pop(request.request_id, ()):
            owner, chunk = self._filled.get(name, (None, 0))
            if owner is request:
                del self._filled[name]
                self._leave_behind(name, owner, chunk)

    def describe(self, events: Iterable[TierEvent]) -> list[tuple[TierEvent, Description | None]]:
        """The events with their descriptions, content by content for groups of full attention; None for a placeholder."""
        found: list[tuple[TierEvent, Description | None]] = []
        for event in events:
            if not self._full[event.group]:
                found.append((event, None))
                continue
            tell = self._removed if event.kind is EventKind.REMOVED else self._stored
            for key in event.keys:
                described = tell((event.group, key), below=event.below)
                found.append((TierEvent(event.kind, event.group, (key,), event.below), described))
        return found

    def _removed(self, name: Name, *, below: bool) -> Description | None:
        """Content is gone from a tier: what was told of it."""
        self._held[below].discard(name)
        if name in self._held[not below]:
            return self._told.get(name)
        self._bare.discard(name)
        return self._told.pop(name, None)

    def _stored(self, name: Name, *, below: bool) -> Description | None:
        """Content can be read from a tier: what can be told of it.

        The store below has it from the host tier, or it was found there: a request that fills it may yet do so.
        """
        self._held[below].add(name)
        told = self._told.get(name)  # also of content that is told again
        described = (told or self._find(name, keeps=True)) if below else (self._find(name) or told)
        if described is None:
            self._bare.add(name)
        else:
            self._bare.discard(name)
            self._told[name] = described
        return described

    def _chunks(self, group: int, start: int, keys: Sequence[bytes], stop: int) -> list[tuple[Name, int]]:
        """The chunks before *stop* whose last block is among these blocks."""
        size = self._size
        return [((group, keys[(chunk + 1) * size - 1 - start]), chunk) for chunk in range(-(-(start + 1) // size) - 1, stop)]

    def _leave_behind(self, name: Name, request: VllmRequest, chunk: int) -> None:
        """Describe content of a request that is over: it may be stored later, or once more after a reset."""
        found = self._told.get(name) or self._left.pop(name, None) or self._describe(name, request, chunk)
        if found is not None:
            self._left[name] = found
            if len(self._left) > self._shape.num_blocks:
                del self._left[next(iter(self._left))]

    def _find(self, name: Name, *, keeps: bool = False) -> Description | None:
        """What can be said of content that a tier has from now on. What is said once is not kept, unless it *keeps* that."""
        filled = self._filled.get(name) if keeps else self._filled.pop(name, None)
        if filled is not None and (found := self._describe(name, *filled)) is not None:
            return found
        if (left := self._left.get(name) if keeps else self._left.pop(name, None)) is not None:
            return left
        for request, chunks in self._waiting.values():
            if not chunks:
                for group in [group for group, is_full in enumerate(self._full) if is_full]:
                    ratio = self._shape.hashes_per_block[group] * self._size
                    chunks.update(((group, key), at) for at, key in enumerate(request.block_hashes[ratio - 1 :: ratio]))
            if name in chunks:
                return self._describe(name, request, chunks[name])
        return None

    def _heal(self, name: Name, request: VllmRequest, chunk: int) -> None:
        """Describe content whose event was a placeholder, from a request that has it; its removal then names its blocks."""
        if (found := self._describe(name, request, chunk)) is not None:
            self._bare.discard(name)
            self._told[name] = found

    def _describe(self, name: Name, request: VllmRequest, chunk: int) -> Description | None:
        """One chunk of a request; None if the request has other content there by now, as a session may."""
        group, key = name
        ratio, size = self._shape.hashes_per_block[group], self._size
        hashes = request.block_hashes
        first, last = chunk * ratio * size, (chunk + 1) * ratio * size
        if last > len(hashes) or hashes[last - 1] != key:
            return None
        tokens = self._shape.geometry.chunk_tokens[group]
        start, stop, block_tokens = chunk * tokens, (chunk + 1) * tokens, self._shape.geometry.block_tokens[group]
        adapter = request.lora_request
        return Description(
            hashes=tuple(hashes[first + ratio - 1 : last : ratio]),
            parent=hashes[first - 1] if first else None,
            tokens=array("i", request.all_token_ids[start:stop]),
            block_tokens=block_tokens,
            adapter=None if adapter is None else (adapter.adapter_id, adapter.name),
            extra_keys=self._extra_keys(request, start, stop, block_tokens),
        )
