"""The store below host memory, as the two halves of an engine's adapter use it: one asks what it has, the other copies.

Rules of this file:

* Each half opens the store for itself, by its address, and closes it: they may be different processes.
* Both halves know one identity, made from the engine's configuration: names of entries are hashes of it.
* Each half has breakers of its own, one that copies has one for what it gets and one for what it puts, and logs when it leaves
  the store alone and when it is back. It looks once a step, in the step's own thread, so that a call of the store logs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from logging import Logger
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from blocklife.copiers import Sharing
from blocklife.errors import MisuseError
from blocklife.ledger import Worker
from blocklife.offload import BelowPolicies
from blocklife.tiers import (
    CircuitBreaker,
    ContentStore,
    Identity,
    Presence,
    StoreCopier,
    open_store,
)

if TYPE_CHECKING:
    from blocklife.copiers.torch import HostMemory


@frozen(kw_only=True)
class StoreBelow:
    """Which store, for which content, and how it is used."""

    address: str
    identity: Identity
    policies: BelowPolicies
    option: str
    """Where the address stands in the engine's configuration."""

    def open(self) -> ContentStore:
        """Open it. Refuses: MisuseError for a store that cannot be used; it says why."""
        try:
            return open_store(self.address)
        except MisuseError as problem:
            raise MisuseError(f"{self.option}: {problem}") from problem


class OutageLog:
    """Logs when a breaker has given a store up, and when the store is back: changes only, so that a dead store is one line.

    *half* is who logs, and *without* what it does while the store is down. *why* says what has failed.
    """

    def __init__(
        self, logger: Logger, address: str, breaker: CircuitBreaker, half: str, without: str, why: Callable[[], str]
    ) -> None:
        self._to = logger
        self._address = address
        self._breaker = breaker
        self._half, self._without = half, without
        self._why = why
        self._is_down = False
        self._times_down = 0

    def look(self) -> None:
        """Log what has changed since the last call."""
        now = self._breaker.statistics()
        if now.times_down != self._times_down:
            self._times_down, self._is_down = now.times_down, True
            self._to.warning(
                "blocklife: the store below, %s, is down: %s. %s %s. Next try in %.1f s, then at growing intervals",
                self._address,
                self._why(),
                self._half,
                self._without,
                self._breaker.next_probe_s(),
            )
        if self._is_down and not now.is_down:
            self._is_down = False
            self._to.info("blocklife: the store below, %s, is up again. %s uses it", self._address, self._half)


def _reason(store: ContentStore, failed: str, raised: str) -> str:
    """What failed, and why as far as anybody knows: a store need not say."""
    statistics = getattr(store, "statistics", None)
    told = str(getattr(statistics(), "last_error", "")) if callable(statistics) else ""
    return f"{failed} ({why})" if (why := raised or told) else failed


class AskedStore:
    """The scheduler's half."""

    def __init__(self, below: StoreBelow, logger: Logger) -> None:
        self.address = below.address
        self.breaker = CircuitBreaker()
        self._store = below.open()
        self.presence = Presence(self._store, below.identity, breaker=self.breaker)
        self._log = OutageLog(logger, below.address, self.breaker, "The scheduler", "looks for no content there", self._why)

    def look(self) -> None:
        """Log it if the store went down, or came back, since the last call."""
        self._log.look()

    def _why(self) -> str:
        return _reason(self._store, "calls that ask for content failed", self.presence.statistics().last_error)

    def close(self) -> None:
        """End the thread that asks, and close the store, unless a call of it hangs. A second call does nothing."""
        if self.presence.close():
            self._store.close()


class CopiedStore:
    """A worker's half: the copier over its host memory."""

    def __init__(
        self,
        below: StoreBelow,
        host: HostMemory,
        worker: Worker,
        logger: Logger,
        *,
        blocks_per_chunk: int = 1,
        shared: Sharing | None = None,
    ) -> None:
        identity, found = below.identity, host.row_bytes * blocks_per_chunk
        if identity.uneven:
            identity = evolve(identity, slot_bytes=found)
        if found != identity.slot_bytes:
            raise MisuseError(
                f"blocklife: a chunk has {found} bytes on worker {worker}, and {identity.slot_bytes} by the engine's "
                "configuration: its content cannot be named for a store below (leave below out)"
            )
        slots = host.num_places // blocks_per_chunk
        memory = host.rows[: slots * blocks_per_chunk].numpy().reshape(slots, -1)
        self._store = below.open()
        gets, puts = CircuitBreaker(), CircuitBreaker()
        self.copier = StoreCopier(self._store, memory, identity, worker=worker, shared=shared, breaker=gets, put_breaker=puts)
        self._logs = [
            OutageLog(logger, below.address, breaker, f"Worker {worker}", without, partial(self._why, what))
            for breaker, what, without in ((gets, "get", "fetches nothing from there"), (puts, "put", "puts nothing there"))
        ]

    def _why(self, what: str) -> str:
        now = self.copier.statistics()
        failed = f"calls that {what} content failed"
        if now.hung_calls:
            failed += f" or hung ({now.hung_calls} so far)"
        return _reason(self._store, failed, now.last_error)

    def look(self) -> None:
        """Log it if the store went down, or came back, since the last call."""
        for log in self._logs:
            log.look()

    def close(self) -> None:
        """Close the store; the copier was closed before. A call that hangs ends when it likes."""
        if not self.copier.statistics().threads_lost:
            self._store.close()
