"""Requests that run behind a load of the same step, until the workers have said whether it succeeded.

Rules of this file:

* vLLM names the blocks of such a request when it admits it, so that other requests hit them before anything is known of the
  load. A request with such a hit waits until the load has succeeded.
* If the load has failed, the keys of those blocks are removed from vLLM's cache, also where the request is over or was
  preempted meanwhile; and no token that the request has sampled may reach the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define

from blocklife.engines.vllm.connector._shapes import VllmRequest
from blocklife.ledger import Completion, JobId, Result


@define(eq=False)
class Unproven:
    """One such request."""

    owner: VllmRequest
    first: int
    """The number of the first hash of its tokens that the load brings."""
    key: bytes
    """That hash; it covers all tokens before, too."""
    blocks: set[int]
    """The blocks that vLLM has named since, and others of the request."""
    job: JobId | None = None
    plan: int = 0
    """The plan of its step; 0 until it is made."""


class Doubts:
    """All such requests. One that comes back before its plan has settled is in it twice."""

    def __init__(self, hash_tokens: int, num_workers: int) -> None:
        self._hash_tokens, self._num_workers = hash_tokens, num_workers
        self.open: list[Unproven] = []
        """Those whose plan has not settled. Ask this before you call a method: mostly there are none."""

    def add(self, owner: VllmRequest, device_tokens: int, blocks: Iterable[int]) -> None:
        """A request was admitted that loads what follows on its first *device_tokens*."""
        first = device_tokens // self._hash_tokens
        self.open.append(Unproven(owner, first, owner.block_hashes[first], set(blocks)))

    def submitted(self, owner: VllmRequest, job: JobId, plan: int) -> None:
        """The plan of its step has this load."""
        for doubt in self.open:
            if doubt.owner is owner and not doubt.plan:
                doubt.job, doubt.plan = job, plan

    def grown(self, owner: VllmRequest, blocks: Iterable[int]) -> None:
        """The request has got more blocks."""
        for doubt in self.open:
            if doubt.owner is owner:
                doubt.blocks.update(blocks)

    def are_in(self, hashes: Sequence[bytes], device_tokens: int) -> bool:
        """Whether a hit on the device has content that such a request loads or computes."""
        stop = min(device_tokens // self._hash_tokens, len(hashes))
        return any(doubt.first < stop and hashes[doubt.first] == doubt.key for doubt in self.open)

    def land(self, plan: int, completions: Iterable[Completion]) -> list[Unproven]:
        """The plans up to this one have settled. Returns the requests whose loads have failed on some worker."""
        ready = [completion.job for completion in completions if completion.result is Result.OK]
        over = [doubt for doubt in self.open if doubt.plan <= plan]
        self.open = [doubt for doubt in self.open if doubt.plan > plan]
        return [doubt for doubt in over if doubt.job is None or ready.count(doubt.job) < self._num_workers]
