"""A worker's half of the store below host memory, which tells what it has moved as vLLM's metrics count it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.logger import init_logger

from blocklife.copiers import Sharing
from blocklife.engines._store import CopiedStore, StoreBelow
from blocklife.engines.vllm.connector._messages import MovedBelow
from blocklife.ledger import Worker
from blocklife.tiers import StoreCopierStatistics

if TYPE_CHECKING:
    from blocklife.copiers.torch import HostMemory

logger = init_logger("vllm.blocklife")  # vLLM shows what is below its own name only


class WorkerStore(CopiedStore):
    """The copier over a worker's host memory, and what it has moved."""

    def __init__(
        self, below: StoreBelow, host: HostMemory, blocks_per_chunk: int, worker: Worker, shared: Sharing | None = None
    ) -> None:
        super().__init__(below, host, worker, logger, blocks_per_chunk=blocks_per_chunk, shared=shared)
        self._told = MovedBelow()

    def moved(self) -> MovedBelow | None:
        """What was moved since the last call; None: nothing. Logs it if the store went down, or came back, since then."""
        self.look()
        told, self._told = self._told, _total(self.copier.statistics())
        return None if self._told == told else self._told - told


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
