"""A copier over a store, with slots of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from blocklife.ledger.records import Completion, Direction, JobId, TierTransfer, Worker
from blocklife.tiers import ContentStore, FaultyStore, Identity, StoreCopier
from tests.programs import HANGS_S
from tests.tiers.arena import value
from tests.tiers.fakes import Seconds

DEMOTE, PROMOTE = Direction.DEMOTE, Direction.PROMOTE
SLOT_BYTES = 5_000
IDENTITY = Identity(model="m", dtype="d", groups="full:4", blocks_per_chunk=1, slot_bytes=SLOT_BYTES, num_ranks=2)
STRIDE = 8_192
NUM_SLOTS = 64

EMPTY = 0xEE
"""What a slot holds that nothing was written to."""


class Rig:
    """A copier over a store, with slots of its own."""

    def __init__(
        self,
        store: ContentStore,
        rank: int = 0,
        *,
        entries: int = 4,
        identity: Identity = IDENTITY,
        host: NDArray[np.uint8] | None = None,
        **more: object,
    ) -> None:
        self.store = store
        self.host = np.full((NUM_SLOTS, identity.slot_bytes), EMPTY, np.uint8) if host is None else host
        self.clock = Seconds()
        threads = int(str(more.get("num_threads", 2)))
        self.copier = StoreCopier(
            store,
            self.host,
            identity,
            worker=Worker(rank),
            staging_bytes=entries * threads * -(-identity.entry_bytes // 4096) * 4096,
            clock=self.clock,
            **more,  # type: ignore[arg-type]
        )
        self._numbers = 0

    def transfer(self, direction: Direction, slots: Sequence[int], keys: Sequence[object], space: bytes = b"") -> TierTransfer:
        self._numbers += 1
        return TierTransfer(
            JobId(1, self._numbers),
            direction,
            np.array(slots, np.int64),
            bytes(len(slots)),
            tuple(repr(key).encode() for key in keys),
            space,
        )

    def close(self) -> None:
        """Close the copier, whose threads end: a store that hangs on purpose lets them go."""
        if isinstance(self.store, FaultyStore):
            self.store.release()
        self.copier.close()
        for thread in self.copier._threads:
            thread.join(HANGS_S)
            assert not thread.is_alive()

    def launch(self, direction: Direction, slots: Sequence[int], keys: Sequence[object], space: bytes = b"") -> JobId:
        transfer = self.transfer(direction, slots, keys, space)
        self.copier.launch(transfer)
        return transfer.job

    def run(self, direction: Direction, slots: Sequence[int], keys: Sequence[object], space: bytes = b"") -> Completion:
        """Launch one job, wait for it, and give its report."""
        job = self.launch(direction, slots, keys, space)
        self.copier.wait([job])
        (completion,) = self.copier.poll()
        assert completion.job == job
        return completion

    def fill(self, slots: Sequence[int], keys: Sequence[object]) -> None:
        for slot, key in zip(slots, keys, strict=True):
            self.host[slot] = np.frombuffer(value(key, self.host.shape[1]), np.uint8)

    def put(self, keys: Sequence[object], space: bytes = b"") -> None:
        """Demote some content, all of which must be taken."""
        self.fill(range(len(keys)), keys)
        assert self.run(DEMOTE, range(len(keys)), keys, space).missing == ()
        self.host[:] = EMPTY

    def holds(self, slot: int, key: object) -> bool:
        return bytes(self.host[slot]) == value(key, self.host.shape[1])

    def is_empty(self, slot: int) -> bool:
        return bool((self.host[slot] == EMPTY).all())


def name(key: object, rank: int = 0, space: bytes = b"", identity: Identity = IDENTITY) -> bytes:
    return identity.name(space, 0, rank, repr(key).encode())
