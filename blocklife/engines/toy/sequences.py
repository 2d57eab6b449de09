"""One request as the engine sees it: how far it is, which blocks it has, and what each of them should hold."""

from __future__ import annotations

import numpy as np
from attrs import define
from numpy.typing import NDArray

from blocklife.engines.toy.memory import Words, mixed
from blocklife.engines.toy.workload import HASH_TOKENS, WorkloadRequest

GROUP = 0
_PROMPT, _GENERATED = 0, 1
_KEY = np.dtype([("hash", "<u8"), ("offset", "<u4"), ("kind", "<u2"), ("group", "<u2")])
"""A key, as bytes: (hash id, offset, group) for a block of prompt tokens, (request, block, group) for generated ones."""


def fingerprints(keys: NDArray[np.void]) -> Words:
    """The content that each key names."""
    found = mixed(keys["hash"].astype(np.uint64))
    return mixed(
        found ^ (keys["offset"].astype(np.uint64) << np.uint64(20)) ^ (keys["kind"].astype(np.uint64) << np.uint64(60))
    )


def unpacked(keys: list[bytes]) -> NDArray[np.void]:
    """Keys back from their bytes."""
    return np.frombuffer(b"".join(keys), dtype=_KEY)


@define(eq=False)
class Sequence:
    """A request on its way through the engine.

    ``known`` tokens exist (prompt and sampled), ``computed`` of them have their KV in blocks. The last sampled token's KV is
    never computed, so that a request ends with ``computed == goal``.

    Invariant: ``ids[:num_blocks]`` and ``lives`` name the same blocks; ``computed <= num_blocks * block_tokens`` while the
    request runs; ``sealed`` blocks of the front are sealed.
    """

    name: str
    arrival_ms: float
    prompt: int
    goal: int
    known: int
    keys: list[bytes]
    fingerprint: Words
    ids: NDArray[np.int64]
    lives: list[int]
    computed: int = 0
    num_blocks: int = 0
    sealed: int = 0
    wished: int = 0
    """Blocks of the front whose store was asked for."""
    scheduled: int = 0
    """Tokens of the step that is being made."""
    loads: int = 0
    """Blocks that the running load brings."""
    abort_at: int | None = None
    """Computed tokens at which its client goes away; while it loads, at once. None for a client that stays."""

    @classmethod
    def of(cls, request: WorkloadRequest, number: int, block_tokens: int) -> Sequence:
        """Make a request of one line of a workload."""
        goal = request.input_length + request.output_length - 1
        count = -(-goal // block_tokens)
        per_hash = HASH_TOKENS // block_tokens
        prompt_blocks = request.input_length // block_tokens
        keys = np.zeros(count, dtype=_KEY)
        blocks = np.arange(count)
        keys["group"] = GROUP
        hashes = np.array(request.hash_ids, dtype=np.uint64)
        keys["hash"][:prompt_blocks] = hashes[blocks[:prompt_blocks] // per_hash]
        keys["offset"][:prompt_blocks] = blocks[:prompt_blocks] % per_hash
        keys["hash"][prompt_blocks:] = number
        keys["offset"][prompt_blocks:] = blocks[prompt_blocks:]
        keys["kind"][prompt_blocks:] = _GENERATED
        packed, size = keys.tobytes(), _KEY.itemsize
        return cls(
            name=f"r{number}",
            arrival_ms=request.timestamp_ms,
            prompt=request.input_length,
            goal=goal,
            known=request.input_length,
            keys=[packed[at : at + size] for at in range(0, len(packed), size)],
            fingerprint=fingerprints(keys),
            ids=np.zeros(count, dtype=np.int64),
            lives=[],
        )

    @property
    def finished(self) -> bool:
        """Whether the last token was sampled."""
        return self.computed >= self.goal

    def place(self, lives: list[int], id_mask: int) -> None:
        """Append blocks to the table."""
        end = self.num_blocks + len(lives)
        self.ids[self.num_blocks : end] = [life & id_mask for life in lives]
        self.lives += lives
        self.num_blocks = end

    def clear(self) -> None:
        """Forget the blocks, not what was sampled."""
        self.lives = []
        self.computed = self.num_blocks = self.sealed = self.wished = self.scheduled = self.loads = 0
