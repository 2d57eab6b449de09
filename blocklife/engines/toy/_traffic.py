"""A record, independent of the ledger, of what the copies of one worker may touch.

The ledger can be consistent while a copy reads a block that something else writes, and the bytes need not show it, because the
result of such a copy may be discarded later. So each worker keeps its own record. A job touches its places from its launch
until its report has come or a wait for it has returned. Two users of one place, at least one of them writing, are a *clash*.

Copies between the device and host slots, and those between host slots and a store below, have one record: both touch slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from blocklife.copiers._protocol import Copier, TierCopier
from blocklife.ledger.records import Completion, Direction, Ids, JobId, TierTransfer, Transfer, Worker

Counts = NDArray[np.int32]
Uses: TypeAlias = Mapping[tuple[str, bool], Ids]
"""What a job touches: places by kind, ``block`` or ``slot``, and whether it writes them."""


class _AnyCopier(Protocol):
    """What a record needs of a copier."""

    def poll(self) -> list[Completion]: ...
    def wait(self, jobs: Collection[JobId]) -> None: ...
    def busy(self) -> bool: ...
    def close(self) -> None: ...


class TrafficRecord:
    """What the copies of one worker touch, and what has filled its slots.

    A slot is a chunk of ``blocks_per_chunk`` neighbouring host places.
    Invariant: ``_out`` has the jobs that may touch something; the counts of each place are those of these jobs.
    """

    def __init__(self, worker: Worker, num_blocks: int, num_slots: int, blocks_per_chunk: int) -> None:
        self.worker = worker
        self._chunk = {"block": 1, "slot": blocks_per_chunk}
        self._out: dict[JobId, Uses] = {}
        self._clashes: list[str] = []
        sizes = {"block": num_blocks, "slot": num_slots * blocks_per_chunk}
        self._counts: dict[tuple[str, bool], Counts] = {
            (kind, writes): np.zeros(size, dtype=np.int32) for kind, size in sizes.items() for writes in (False, True)
        }
        # The job that wrote each place last, and whether that was a promotion. Initially 0: none.
        self._last = np.zeros((num_slots, blocks_per_chunk), dtype=np.int64)
        self._promoted = np.zeros(num_slots, dtype=np.bool_)

    def began(self, job: JobId, uses: Uses) -> None:
        """A job touches these places from now on."""
        for (kind, writes), places in uses.items():
            self.meet(f"job {job}", kind, places, writes=writes)
        self._out[job] = uses
        self._count(uses, +1)

    def quiet(self, jobs: Iterable[JobId]) -> None:
        """These jobs touch nothing any more."""
        for job in jobs:
            uses = self._out.pop(job, None)
            if uses is not None:
                self._count(uses, -1)

    def filled(self, job: JobId, places: Ids, *, promoted: bool) -> None:
        """A job fills host places from now on."""
        self._last.reshape(-1)[places] = job.number
        self._promoted[places // self._chunk["slot"]] = promoted

    def places(self, slots: Ids) -> Ids:
        """All host places of some slots."""
        size = self._chunk["slot"]
        places: Ids = (slots[:, None] * size + np.arange(size)).reshape(-1)
        return places

    def written(self, slots: Ids) -> NDArray[np.bool_]:
        """As `Traffic.written`."""
        last = self._last[slots]
        found: NDArray[np.bool_] = (last > 0) & (last == last.max(axis=1, keepdims=True))
        return found

    def promoted(self, slots: Ids) -> NDArray[np.bool_]:
        """As `Traffic.promoted`."""
        found: NDArray[np.bool_] = self._promoted[slots]
        return found

    def meet(self, who: str, kind: str, places: Ids, *, writes: bool) -> None:
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

    def take_clashes(self) -> list[str]:
        """As `Traffic.take_clashes`."""
        clashes, self._clashes = self._clashes, []
        return clashes

    def _count(self, uses: Uses, change: int) -> None:
        """Add *change* to the counts of a job's places, which are distinct."""
        for use, places in uses.items():
            self._counts[use][places] += change


class _RecordedCalls:
    """The calls of a copier that end what its jobs touch."""

    def __init__(self, inner: _AnyCopier, record: TrafficRecord) -> None:
        self._watched = inner
        self._record = record
        # The jobs that may touch something, oldest first, and how many polls there had been when each was launched.
        self._launched: dict[JobId, int] = {}
        self._num_polls = 0

    @property
    def age(self) -> int:
        """Polls, one for each step, since the launch of the oldest job that may touch something; 0 if there is none."""
        return self._num_polls - next(iter(self._launched.values()), self._num_polls)

    def poll(self) -> list[Completion]:
        """Report; reported jobs touch nothing any more."""
        self._num_polls += 1
        completions = self._watched.poll()
        self._quiet(completion.job for completion in completions)
        return completions

    def wait(self, jobs: Collection[JobId]) -> None:
        """Wait; these jobs touch nothing any more."""
        self._watched.wait(jobs)
        self._quiet(jobs)

    def busy(self) -> bool:
        """Whether further polls may still report something."""
        return self._watched.busy()

    def close(self) -> None:
        """Close the inner copier: it touches nothing any more."""
        self._watched.close()
        self._quiet(list(self._launched))

    def _began(self, job: JobId, uses: Uses) -> None:
        self._launched[job] = self._num_polls
        self._record.began(job, uses)

    def _quiet(self, jobs: Iterable[JobId]) -> None:
        """Only of this copier's own jobs: a wait may name those of another one."""
        own = [job for job in jobs if job in self._launched]
        for job in own:
            del self._launched[job]
        self._record.quiet(own)


class Traffic(_RecordedCalls):
    """A `Copier` that wraps another one, and keeps the record. It owns the inner copier.

    A slot is a chunk of ``blocks_per_chunk`` neighbouring host places.
    """

    def __init__(self, inner: Copier, num_blocks: int, num_slots: int, blocks_per_chunk: int = 1) -> None:
        super().__init__(inner, TrafficRecord(inner.worker, num_blocks, num_slots, blocks_per_chunk))
        self._inner = inner

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here."""
        return self._inner.worker

    def launch(self, transfer: Transfer) -> None:
        """Launch, and record what the job touches from now on."""
        self._inner.launch(transfer)
        stores = transfer.direction is Direction.STORE
        read, written = ("block", "slot") if stores else ("slot", "block")
        self._began(transfer.job, {(read, False): transfer.source, (written, True): transfer.target})
        if stores:
            self._record.filled(transfer.job, transfer.target, promoted=False)

    def below(self, inner: TierCopier) -> TierTraffic:
        """Keep the record of this worker's copies to and from a store below, too."""
        return TierTraffic(inner, self._record)

    def compute(self, read: Ids, written: Ids) -> None:
        """Record a forward pass: no job may write the blocks that it reads, or touch the blocks that it writes."""
        self._record.meet("the forward pass", "block", read, writes=False)
        self._record.meet("the forward pass", "block", written, writes=True)

    def written(self, slots: Ids) -> NDArray[np.bool_]:
        """Which places of each slot its latest job writes, as flags of shape ``(len(slots), blocks_per_chunk)``."""
        return self._record.written(slots)

    def promoted(self, slots: Ids) -> NDArray[np.bool_]:
        """Whether the latest job that writes each slot is a promotion."""
        return self._record.promoted(slots)

    def take_clashes(self) -> list[str]:
        """One sentence for each clash since the last call."""
        return self._record.take_clashes()


class TierTraffic(_RecordedCalls):
    """A `TierCopier` that wraps another one, and keeps the record of its worker. It owns the inner copier."""

    def __init__(self, inner: TierCopier, record: TrafficRecord) -> None:
        super().__init__(inner, record)
        self._inner = inner

    @property
    def worker(self) -> Worker:
        """The rank whose part is moved here."""
        return self._inner.worker

    def launch(self, transfer: TierTransfer) -> None:
        """Launch, and record what the job touches from now on."""
        self._inner.launch(transfer)
        promotes = transfer.direction is Direction.PROMOTE
        places = self._record.places(transfer.slots)
        self._began(transfer.job, {("slot", promotes): places})
        if promotes:
            self._record.filled(transfer.job, places, promoted=True)
