"""A record, independent of the ledger, of what the copies of one worker may touch.

The ledger can be consistent while a copy reads a block that something else writes, and the bytes need not show it, because the
result of such a copy may be discarded later. So each worker keeps its own record. A job touches its places from its launch
until its report has come or a wait for it has returned. Two users of one place, at least one of them writing, are a *clash*.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import NDArray

from blocklife.copiers._protocol import Copier
from blocklife.ledger.records import Completion, Direction, Ids, JobId, Transfer, Worker

Counts = NDArray[np.int32]


class Traffic:
    """A `Copier` that wraps another one, and keeps the record. It owns the inner copier.

    A slot is a chunk of ``blocks_per_chunk`` neighbouring host places.
    Invariant: ``_out`` has the jobs that may touch something; the counts of each place are those of these jobs.
    """

    def __init__(self, inner: Copier, num_blocks: int, num_slots: int, blocks_per_chunk: int = 1) -> None:
        self._inner = inner
        self._chunk = {"block": 1, "slot": blocks_per_chunk}
        self._out: dict[JobId, Transfer] = {}
        self._clashes: list[str] = []
        # The number of jobs at each place. Stores read blocks and write slots, loads the other way round.
        self._blocks_read: Counts = np.zeros(num_blocks, dtype=np.int32)
        self._blocks_written: Counts = np.zeros(num_blocks, dtype=np.int32)
        num_places = num_slots * blocks_per_chunk
        self._slots_read: Counts = np.zeros(num_places, dtype=np.int32)
        self._slots_written: Counts = np.zeros(num_places, dtype=np.int32)
        self._last_store = np.zeros((num_slots, blocks_per_chunk), dtype=np.int64)

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here."""
        return self._inner.worker

    def launch(self, transfer: Transfer) -> None:
        """Launch, and record what the job touches from now on."""
        self._inner.launch(transfer)
        who = f"job {transfer.job}"
        if transfer.direction is Direction.STORE:
            self._meet(who, "block", transfer.source, self._blocks_written)
            self._meet(who, "slot", transfer.target, self._slots_read, self._slots_written)
            self._last_store.reshape(-1)[transfer.target] = transfer.job.number
        else:
            self._meet(who, "slot", transfer.source, self._slots_written)
            self._meet(who, "block", transfer.target, self._blocks_read, self._blocks_written)
        self._out[transfer.job] = transfer
        self._count(transfer, +1)

    def poll(self) -> list[Completion]:
        """Report; reported jobs touch nothing any more."""
        completions = self._inner.poll()
        self._quiet(completion.job for completion in completions)
        return completions

    def wait(self, jobs: Collection[JobId]) -> None:
        """Wait; these jobs touch nothing any more."""
        self._inner.wait(jobs)
        self._quiet(jobs)

    def busy(self) -> bool:
        """Whether further polls may still report something."""
        return self._inner.busy()

    def close(self) -> None:
        """Close the inner copier: it touches nothing any more."""
        self._inner.close()
        self._quiet(list(self._out))

    def compute(self, read: Ids, written: Ids) -> None:
        """Record a forward pass: no job may write the blocks that it reads, or touch the blocks that it writes."""
        if self._out:
            self._meet("the forward pass", "block", read, self._blocks_written)
            self._meet("the forward pass", "block", written, self._blocks_read, self._blocks_written)

    def written(self, slots: Ids) -> NDArray[np.bool_]:
        """Which places of each slot its latest store writes, as flags of shape ``(len(slots), blocks_per_chunk)``."""
        last = self._last_store[slots]
        found: NDArray[np.bool_] = (last > 0) & (last == last.max(axis=1, keepdims=True))
        return found

    def take_clashes(self) -> list[str]:
        """One sentence for each clash since the last call."""
        clashes, self._clashes = self._clashes, []
        return clashes

    def _meet(self, who: str, kind: str, places: Ids, *others: Counts) -> None:
        met = np.flatnonzero(sum(count[places] for count in others))
        for place in places[met].tolist():
            jobs = [str(job) for job, transfer in self._out.items() if place in self._touched(transfer, kind)]
            where = f"{kind} {place // self._chunk[kind]}"
            self._clashes.append(f"worker {self.worker}: {who} meets job {', '.join(jobs)} at {where}, and one writes it")

    @staticmethod
    def _touched(transfer: Transfer, kind: str) -> Ids:
        return transfer.source if (transfer.direction is Direction.STORE) is (kind == "block") else transfer.target

    def _quiet(self, jobs: Iterable[JobId]) -> None:
        for job in jobs:
            transfer = self._out.pop(job, None)
            if transfer is not None:
                self._count(transfer, -1)

    def _count(self, transfer: Transfer, change: int) -> None:
        """Add *change* to the counts of a job's places, which are distinct."""
        if transfer.direction is Direction.STORE:
            self._blocks_read[transfer.source] += change
            self._slots_written[transfer.target] += change
        else:
            self._slots_read[transfer.source] += change
            self._blocks_written[transfer.target] += change
