"""The store below host memory, as the halves of the connector use it: the scheduler asks, each worker copies.

Rules of this file:

* Every process opens the store for itself, by its address, and closes it.
* Both halves know one identity, made from vLLM's configuration: names of entries are hashes of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from blocklife.engines.vllm.connector._messages import MovedBelow
from blocklife.errors import MisuseError
from blocklife.ledger import Worker
from blocklife.offload import BelowPolicies
from blocklife.stores import (
    CircuitBreaker,
    ContentStore,
    Identity,
    Presence,
    StoreCopier,
    StoreCopierStatistics,
    open_store,
)

if TYPE_CHECKING:
    from blocklife.copiers.torch import HostMemory

_THREADS = 2
_STAGING_BYTES = 64 << 20
_ALIGNED = 4096
_ENTRIES = 4
"""Each thread of a copier has room for at least so many entries, however large they are."""


@frozen(kw_only=True)
class StoreBelow:
    """Which store, for which content, and how it is used."""

    address: str
    identity: Identity
    policies: BelowPolicies

    def open(self) -> ContentStore:
        """Open it. Refuses: MisuseError for a store that cannot be used; it says why."""
        try:
            return open_store(self.address)
        except MisuseError as problem:
            raise MisuseError(f"kv_connector_extra_config: below: {problem}") from problem

    @property
    def staging_bytes(self) -> int:
        """The size of a worker's staging area."""
        entry = -(-self.identity.entry_bytes // _ALIGNED) * _ALIGNED
        return max(_STAGING_BYTES, _THREADS * _ENTRIES * entry)


class AskedStore:
    """The scheduler's half."""

    def __init__(self, below: StoreBelow) -> None:
        self.address = below.address
        self.breaker = CircuitBreaker()
        self._store = below.open()
        self.presence = Presence(self._store, below.identity, breaker=self.breaker)

    def close(self) -> None:
        """End the thread that asks, and close the store, unless a call of it hangs. A second call does nothing."""
        if self.presence.close():
            self._store.close()


class CopiedStore:
    """A worker's half: the copier over the regions of its host memory, one for each layer."""

    def __init__(self, below: StoreBelow, host: HostMemory, blocks_per_chunk: int, worker: Worker) -> None:
        wanted, found = below.identity.slot_bytes, sum(host.page_bytes) * blocks_per_chunk
        if found != wanted:
            raise MisuseError(
                f"blocklife connector: a chunk has {found} bytes on worker {worker}, and {wanted} by vLLM's configuration: its "
                "content cannot be named for a store below (leave below out)"
            )
        slots = host.num_places // blocks_per_chunk
        regions = [host.region(index).numpy().reshape(slots, -1) for index in range(host.num_regions)]
        self._store = below.open()
        self.copier = StoreCopier(
            self._store, regions, below.identity, worker=worker, staging_bytes=below.staging_bytes, num_threads=_THREADS
        )
        self._told = MovedBelow()

    def moved(self) -> MovedBelow:
        """What was moved since the last call."""
        total = _total(self.copier.statistics())
        found, self._told = total - self._told, total
        return found

    def close(self) -> None:
        """Close the store; the copier was closed before. A call that hangs ends when it likes."""
        if not self.copier.statistics().threads_lost:
            self._store.close()


def _total(statistics: StoreCopierStatistics) -> MovedBelow:
    return MovedBelow(
        promoted_bytes=statistics.bytes_promoted,
        demoted_bytes=statistics.bytes_demoted,
        damaged=statistics.damaged,
        foreign=statistics.foreign,
        failed=statistics.failed,
        skipped=statistics.skipped,
        hung=statistics.hung_calls,
    )
