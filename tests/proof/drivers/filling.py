"""Fills the host tier of an engine whose ledger is ours, for a test: with content that no request has, and that stays."""

from __future__ import annotations

from blocklife.errors import MisuseError
from blocklife.ledger import Batch, Completion, Ledger, Placement, Result, Store, Worker
from blocklife.ledger.jobs import Sealed
from blocklife.offload import HostTier
from blocklife.states import BLANK

SOMEBODY = "somebody"
"""The request that holds this content."""


def fill(ledger: Ledger, tier: HostTier, blocks_per_chunk: int = 1) -> None:
    """Store other content from a free block into every slot, and pin it. All of them must be empty."""
    slots = range(len(ledger.slots))
    if taken := [slot for slot in slots if ledger.slots.key(slot) is not None]:
        raise MisuseError(f"the host cannot be filled: {len(taken)} slots are in use (fill it while it is empty)")
    free = next(each for each in range(1, len(ledger.blocks)) if ledger.blocks.state(each) in BLANK)
    for slot in slots:
        key = b"alien %026d" % slot
        own = tier.reserve([(0, key)]) or [slot]
        ledger.add_request(SOMEBODY)
        (held,) = ledger.observe_place(SOMEBODY, [Placement(allocated=[free])])
        sealed = Batch[Sealed](ledger.seal(held, [key]).lives)
        places = [each * blocks_per_chunk for each in own]
        jobs = ledger.plan_store(Store.of(sealed, own, [key], owner=SOMEBODY, places=places))
        ledger.submit(jobs)
        for rank in range(ledger.limits.num_workers):
            ledger.complete(Completion(jobs.ids[0], Worker(rank), Result.OK))
        ledger.finish(SOMEBODY)
        ledger.drop(sealed.lives)
    ledger.pin(SOMEBODY, slots)


def free_filled(ledger: Ledger) -> None:
    """Let go of it; it stays until its slots are evicted."""
    ledger.unpin(SOMEBODY, range(len(ledger.slots)))
