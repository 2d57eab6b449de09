"""One request as the engine sees it: how far it is, and what each of its blocks should hold.

Names of content. Two prompts share text up to some hash of the workload, so a block of a prompt is named by all hashes up to
its own, by where it stands in that hash, and by its group. A block with generated tokens is named by the request and its place
in it. What a block of a Mamba group holds at a boundary has the name of the block; between two it is nobody else's.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from blocklife.engines.toy._memory import Words, mixed
from blocklife.engines.toy._workload import HASH_TOKENS, WorkloadRequest
from blocklife.offload._groups import Geometry

_PROMPT, _GENERATED, _STATE = 0, 1, 2
_KEY = np.dtype([("hash", "<u8"), ("offset", "<u4"), ("kind", "<u2"), ("group", "<u2")])
"""A key, as bytes: (hashes so far, block of the hash) for prompt tokens, (request, block) for generated ones; and the group."""

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
    """Tokens that are computed: the last sampled token's KV never is."""
    return request.input_length + request.output_length - 1


def keys_of(request: WorkloadRequest, number: int, geometry: Geometry) -> list[Keys]:
    """The keys of all blocks of a request, by group; *number* tells it from the other requests of the run."""
    ids = np.array(request.hash_ids, dtype=np.uint64)
    chain = np.cumsum(mixed(ids ^ mixed(np.arange(len(ids), dtype=np.uint64))))
    found = []
    for group, block_tokens in enumerate(geometry.block_tokens):
        blocks = np.arange(-(-goal_of(request) // block_tokens))
        prompt, per_hash = request.input_length // block_tokens, HASH_TOKENS // block_tokens
        keys = np.zeros(len(blocks), dtype=_KEY)
        keys["group"] = group
        keys["hash"][:prompt] = chain[blocks[:prompt] // per_hash]
        keys["offset"][:prompt] = blocks[:prompt] % per_hash
        keys["hash"][prompt:] = number
        keys["offset"][prompt:] = blocks[prompt:]
        keys["kind"][prompt:] = _GENERATED
        found.append(keys)
    return found


@define(eq=False)
class RequestSequence:
    """A request on its way through the engine.

    ``known`` tokens exist (prompt and sampled), ``computed`` of them have their content, in steps that have settled. The last
    sampled token's KV is never computed, so that a request ends with ``computed == goal``. ``position`` and ``expected`` are
    what ``computed`` and ``known`` will be when the steps that are out have settled.

    Invariant: ``computed <= position <= goal``; the two are equal while no step of the request is out.
    """

    name: str
    number: int
    """Counts the requests of the run."""
    request: WorkloadRequest
    goal: int
    known: int
    expected: int
    computed: int = 0
    position: int = 0
    scheduled: int = 0
    """Tokens of the step that is being made."""
    tenure: int = 0
    """Counts how often it had to begin anew: what a step did for an earlier tenure does not count."""
    abort_at: int | None = None
    """Computed tokens at which its client goes away; while it loads, at once. None for a client that stays."""
    keys: list[list[bytes]] = field(factory=list)
    """By group and block; empty before `build` and after `drop`."""
    prints: list[array[int]] = field(factory=list)
    """The content of each block, by group."""

    @classmethod
    def of(cls, request: WorkloadRequest, number: int) -> RequestSequence:
        """Make a request of one line of a workload."""
        known = request.input_length
        return cls(name=f"r{number}", number=number, request=request, goal=goal_of(request), known=known, expected=known)

    def build(self, geometry: Geometry) -> None:
        """Name the content of all blocks: only a request whose turn has come needs the memory for that."""
        for keys in keys_of(self.request, self.number, geometry):
            packed, size = keys.tobytes(), _KEY.itemsize
            self.keys.append([packed[at : at + size] for at in range(0, len(packed), size)])
            self.prints.append(array("Q", fingerprints(keys).tobytes()))

    def drop(self) -> None:
        """The request is over."""
        self.keys, self.prints = [], []

    def keys_between(self, group: int, start: int, stop: int) -> Items[bytes]:
        """The keys of some blocks of one group."""
        return self.keys[group][start:stop]

    @property
    def finished(self) -> bool:
        """Whether the last token was sampled."""
        return self.computed >= self.goal

    def plan(self) -> None:
        """The tokens that are scheduled are in a plan now; where they are the last known ones, one more will be sampled."""
        self.position += self.scheduled
        if self.position == self.expected and self.position < self.goal:
            self.expected += 1

    def settle(self, tokens: int) -> None:
        """A step with so many tokens has settled."""
        self.computed += tokens
        if self.computed == self.known and not self.finished:
            self.known += 1

    def begin(self, computed: int) -> None:
        """It runs from here on."""
        self.computed = self.position = computed

    def clear(self) -> None:
        """Forget what was computed, not what was sampled."""
        self.tenure += 1
        self.computed = self.position = self.scheduled = 0
        self.expected = self.known
