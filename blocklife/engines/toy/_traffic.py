"""A record, independent of the ledger, of what the copies of one worker may touch.

The ledger can be consistent while a copy reads a block that something else writes, and the bytes need not show it, because the
result of such a copy may be discarded later. So each worker keeps its own record. A job touches its places from its launch
until its report has come or a wait for it has returned. Two users of one place, at least one of them writing, are a *clash*.

Copies between the device and host slots, and those between host slots and a store below, have one record: both touch slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from blocklife.copiers._protocol import AnyCopier
from blocklife.ledger.records import Completion, Direction, Ids, JobId, TierTransfer, Transfer, Worker

TransferT = TypeVar("TransferT", bound=Transfer | TierTransfer)
Uses: TypeAlias = Mapping[tuple[str, bool], Ids]
"""What a job touches: places by kind, ``block`` or ``slot``, and whether it writes them."""


class _FollowedCopies(Generic[TransferT]):
    """A copier that wraps another one, which it owns, and tells a record when its jobs begin and cease to touch places."""

    def __init__(self, inner: AnyCopier[TransferT], record: Traffic) -> None:
        self.inner = inner
        self._record = record
        # The jobs that may touch something, oldest first, and how many polls there had been when each was launched.
        self._launched: dict[JobId, int] = {}
        self._num_polls = 0

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here."""
        return self.inner.worker

    @property
    def age(self) -> int:
        """Polls, one for each step, since the launch of the oldest job that may touch something; 0 if there is none."""
        return self._num_polls - next(iter(self._launched.values()), self._num_polls)

    def launch(self, transfer: TransferT) -> None:
        """Launch, and record what the job touches from now on."""
        self.inner.launch(transfer)
        self._launched[transfer.job] = self._num_polls
        self._record.began(transfer)

    def poll(self) -> list[Completion]:
        """Report; reported jobs touch nothing any more."""
        self._num_polls += 1
        completions = self.inner.poll()
        self._quiet(completion.job for completion in completions)
        return completions

    def wait(self, jobs: Collection[JobId]) -> None:
        """Wait; these jobs touch nothing any more."""
        self.inner.wait(jobs)
        self._quiet(jobs)

    def busy(self) -> bool:
        """Whether further polls may still report something."""
        return self.inner.busy()

    def close(self) -> None:
        """Close the inner copier: it touches nothing any more."""
        self.inner.close()
        self._quiet(list(self._launched))

    def _quiet(self, jobs: Iterable[JobId]) -> None:
        """Only of this copier's own jobs: a wait may name those of another one."""
        for job in jobs:
            if self._launched.pop(job, None) is not None:
                self._record.ended(job)


class TierTraffic(_FollowedCopies[TierTransfer]):
    """A `TierCopier` that wraps another one, and adds to the record of its worker. `Traffic.below` makes it."""


class Traffic(_FollowedCopies[Transfer]):
    """A `Copier` that wraps another one, and keeps the record of its worker: what copies touch, and what has filled its slots.

    A slot is a chunk of ``blocks_per_chunk`` neighbouring host places.
    Invariant: ``_out`` has the jobs that may touch something; the counts of each place are those of these jobs.
    """

    def __init__(self, inner: AnyCopier[Transfer], num_blocks: int, num_slots: int, blocks_per_chunk: int = 1) -> None:
        super().__init__(inner, self)
        self._chunk = {"block": 1, "slot": blocks_per_chunk}
        self._out: dict[JobId, Uses] = {}
        self._clashes: list[str] = []
        sizes = {"block": num_blocks, "slot": num_slots * blocks_per_chunk}
        self._counts = {
            (kind, writes): np.zeros(size, dtype=np.int32) for kind, size in sizes.items() for writes in (False, True)
        }
        # The job that wrote each place last, and whether that was a promotion. Initially 0: none.
        self._last = np.zeros((num_slots, blocks_per_chunk), dtype=np.int64)
        self._promoted = np.zeros(num_slots, dtype=np.bool_)

    def below(self, inner: AnyCopier[TierTransfer]) -> TierTraffic:
        """Keep the record of this worker's copies to and from a store below, too."""
        return TierTraffic(inner, self)

    def compute(self, read: Ids, written: Ids) -> None:
        """Record a forward pass: no job may write the blocks that it reads, or touch the blocks that it writes."""
        self._meet("the forward pass", "block", read, writes=False)
        self._meet("the forward pass", "block", written, writes=True)

    def written(self, slots: Ids) -> NDArray[np.bool_]:
        """Which places of each slot its latest job writes, as flags of shape ``(len(slots), blocks_per_chunk)``."""
        last = self._last[slots]
        found: NDArray[np.bool_] = (last > 0) & (last == last.max(axis=1, keepdims=True))
        return found

    def promoted(self, slots: Ids) -> NDArray[np.bool_]:
        """Whether the latest job that writes each slot is a promotion."""
        found: NDArray[np.bool_] = self._promoted[slots]
        return found

    def take_clashes(self) -> list[str]:
        """One sentence for each clash since the last call."""
        clashes, self._clashes = self._clashes, []
        return clashes

    def began(self, transfer: Transfer | TierTransfer) -> None:
        """A job touches its places from now on, and fills those on the host that it writes."""
        uses: Uses
        if isinstance(transfer, TierTransfer):
            size = self._chunk["slot"]
            places = (transfer.slots[:, None] * size + np.arange(size)).reshape(-1)
            uses = {("slot", transfer.direction is Direction.PROMOTE): places}
        else:
            ends = ("block", "slot") if transfer.direction is Direction.STORE else ("slot", "block")
            uses = {(ends[0], False): transfer.source, (ends[1], True): transfer.target}
        for (kind, writes), places in uses.items():
            self._meet(f"job {transfer.job}", kind, places, writes=writes)
            self._counts[kind, writes][places] += 1
        self._out[transfer.job] = uses
        filled = uses.get(("slot", True))
        if filled is not None:
            self._last.reshape(-1)[filled] = transfer.job.number
            self._promoted[filled // self._chunk["slot"]] = isinstance(transfer, TierTransfer)

    def ended(self, job: JobId) -> None:
        """A job touches nothing any more."""
        for use, places in self._out.pop(job).items():
            self._counts[use][places] -= 1

    def _meet(self, who: str, kind: str, places: Ids, *, writes: bool) -> None:
        """Note who is met at these places: writers, and readers too by one who *writes*."""
        if not self._out:
            return
        met = self._counts[kind, True][places]
        if writes:
            met = met + self._counts[kind, False][places]
        found: dict[str, None] = {}
        for place in places[np.flatnonzero(met)].tolist():
            touching = ((job, [*uses.get((kind, False), ()), *uses.get((kind, True), ())]) for job, uses in self._out.items())
            jobs = [str(job) for job, touched in touching if place in touched]
            where = f"{kind} {place // self._chunk[kind]}"
            found[f"worker {self.worker}: {who} meets job {', '.join(jobs)} at {where}, and one writes it"] = None
        self._clashes += found
