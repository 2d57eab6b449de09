"""One request as the engine sees it: its progress, and the expected content of its blocks.

Keys. Two prompts share text up to some hash of the workload, so the key of a prompt's block consists of all hashes up to its
own, its position within that hash, and its group. The key of a block with generated tokens consists of the request (its number
in the run, and its prompt) and the position of the block. A Mamba state at a block boundary has the key of the block; a state
between boundaries is not shared.

So a key names the content of its block, and of all blocks before it, in every run and for every workload. A store below host
memory needs that, because it has content of other runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from blocklife.engines.toy._memory import Words, mixed
from blocklife.engines.toy._workload import HASH_TOKENS, WorkloadRequest
from blocklife.groups import Geometry

_PROMPT, _GENERATED, _STATE = 0, 1, 2
_KEY = np.dtype([("hash", "<u8"), ("offset", "<u4"), ("kind", "<u2"), ("group", "<u2")])
"""A key, as bytes: (hashes so far, block in the hash) for prompt tokens, (request, block) for generated ones; and the group."""

Keys = NDArray[np.void]


def _content(hashes: Words, offsets: Words, kinds: Words, groups: Words) -> Words:
    # Disjoint bits: an offset has 32 of them, a group 8, a kind 2.
    return mixed(mixed(hashes) ^ (offsets << np.uint64(20)) ^ (groups << np.uint64(52)) ^ (kinds << np.uint64(60)))


def fingerprints(keys: Keys) -> Words:
    """The content that each key names."""
    return _content(*(keys[part].astype(np.uint64) for part in ("hash", "offset", "kind", "group")))


def state_fingerprints(requests: Items[int], ends: Items[int], groups: Items[int]) -> Words:
    """The content of Mamba states between two boundaries: of a request, by number, after so many tokens."""
    columns = [np.array(each, dtype=np.uint64) for each in (requests, ends, groups)]
    return _content(columns[0], columns[1], np.full(len(columns[0]), _STATE, dtype=np.uint64), columns[2])


def unpacked(keys: list[bytes]) -> Keys:
    """Keys back from their bytes."""
    return np.frombuffer(b"".join(keys), dtype=_KEY)


def goal_of(request: WorkloadRequest) -> int:
    """How many tokens are computed: all but the last sampled one."""
    return request.input_length + request.output_length - 1


def keys_of(request: WorkloadRequest, number: int, geometry: Geometry) -> list[Keys]:
    """The keys of all blocks of a request, by group; *number* is its number in the run."""
    ids = np.array(request.hash_ids, dtype=np.uint64)
    chain = np.cumsum(mixed(ids ^ mixed(np.arange(len(ids), dtype=np.uint64))))
    own = mixed(mixed(chain[-1:] + np.uint64(number)) ^ np.uint64(request.input_length))
    found = []
    for group, block_tokens in enumerate(geometry.block_tokens):
        blocks = np.arange(-(-goal_of(request) // block_tokens))
        prompt, per_hash = request.input_length // block_tokens, HASH_TOKENS // block_tokens
        keys = np.zeros(len(blocks), dtype=_KEY)
        keys["group"] = group
        keys["hash"][:prompt] = chain[blocks[:prompt] // per_hash]
        keys["offset"][:prompt] = blocks[:prompt] % per_hash
        keys["hash"][prompt:] = own
        keys["offset"][prompt:] = blocks[prompt:]
        keys["kind"][prompt:] = _GENERATED
        found.append(keys)
    return found


@define(eq=False)
class RequestSequence:
    """A request on its way through the engine.

    ``known`` tokens exist (prompt and sampled); ``computed`` of them were computed in steps that have settled. The KV of the
    last sampled token is never computed, so that a request ends with ``computed == goal``. ``position`` and ``expected`` are
    what ``computed`` and ``known`` will be when the outstanding steps have settled.

    Invariant: ``computed <= position <= goal``; the first two are equal while no step of the request is outstanding.
    """

    name: str
    number: int
    """Its number in the run."""
    request: WorkloadRequest
    goal: int
    known: int
    expected: int
    computed: int = 0
    position: int = 0
    scheduled: int = 0
    """Its tokens in the step that is being planned."""
    tenure: int = 0
    """How often it had to start again; results of steps from an earlier tenure are ignored."""
    abort_at: int | None = None
    """Computed tokens at which its client disconnects; at once while it loads. None if the client stays."""
    keys: list[list[bytes]] = field(factory=list)
    """By group and block; empty before `build` and after `drop`."""
    prints: list[array[int]] = field(factory=list)
    """The content of each block, by group."""

    @classmethod
    def of(cls, request: WorkloadRequest, number: int) -> RequestSequence:
        """Make a sequence from a request of the workload."""
        known = request.input_length
        return cls(name=f"r{number}", number=number, request=request, goal=goal_of(request), known=known, expected=known)

    def build(self, geometry: Geometry) -> None:
        """Compute the keys and contents of all blocks; done late, because only requests that are looked up need them."""
        for keys in keys_of(self.request, self.number, geometry):
            packed, size = keys.tobytes(), _KEY.itemsize
            self.keys.append([packed[at : at + size] for at in range(0, len(packed), size)])
            self.prints.append(array("Q", fingerprints(keys).tobytes()))

    def drop(self) -> None:
        """Free the keys and contents: the request is over."""
        self.keys, self.prints = [], []

    def keys_between(self, group: int, start: int, stop: int) -> Items[bytes]:
        """The keys of some blocks of one group."""
        return self.keys[group][start:stop]

    @property
    def finished(self) -> bool:
        """Whether the last token was sampled."""
        return self.computed >= self.goal

    def plan(self) -> None:
        """The scheduled tokens are in a plan now; if they include the last known one, one more will be sampled."""
        self.position += self.scheduled
        if self.position == self.expected and self.position < self.goal:
            self.expected += 1

    def settle(self, tokens: int) -> None:
        """A step with so many tokens has settled."""
        self.computed += tokens
        if self.computed == self.known and not self.finished:
            self.known += 1

    def begin(self, computed: int) -> None:
        """The request runs, and has this many tokens computed."""
        self.computed = self.position = computed

    def clear(self) -> None:
        """Forget what was computed, not what was sampled."""
        self.tenure += 1
        self.computed = self.position = self.scheduled = 0
        self.expected = self.known


def expected_content(keys: list[bytes], workload: dict[int, WorkloadRequest], geometry: Geometry) -> Words:
    """The content of each block of the chunks with these keys, ``(len(keys), blocks_per_chunk)``.

    A key tells the content of the last block only; the others are found in the workload's requests, the latest first.
    """
    size = geometry.blocks_per_chunk
    last = fingerprints(unpacked(keys))
    found = np.zeros((len(keys), size), dtype=np.uint64)
    found[:, -1] = last
    if size == 1:
        return found
    order = np.argsort(last)
    ordered = last[order]
    missing = np.ones(len(keys), dtype=np.bool_)
    for number in reversed(workload):
        if not missing.any():
            break
        for names in keys_of(workload[number], number, geometry):
            chunks = fingerprints(names)[: len(names) // size * size].reshape(-1, size)
            at = np.minimum(np.searchsorted(ordered, chunks[:, -1]), len(keys) - 1)
            match = ordered[at] == chunks[:, -1]
            found[order[at[match]]] = chunks[match]
            missing[order[at[match]]] = False
    return found
