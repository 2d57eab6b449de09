"""Checks host memory: a load brings only bytes that were in its places when their store, or their promotion, had landed.

*Rules of this file.*

* The rank that wrote a place sums it, after the copy has landed and before that is reported: no place can be read without it.
* A load is launched when all its places were found to be what was summed. One with a wrong place moves nothing, and fails.
* Sums are made on threads of their own. A job waits for them, a step does not, unless it waits for the job.

*What it finds.* Damaged memory; a copy that moved wrong bytes, or still wrote after its event had passed; another process that
writes to the region. It does not find content that was wrong already when it was stored.

*What it costs.* The host reads all bytes when they were stored, and again before they are loaded, in 1.6 times the time of a
copy. A load begins so much later, and behind the forward pass of its step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from attrs import define, field

from blocklife.copiers._checksum import checksum
from blocklife.copiers._protocol import EngineCopier, QueuesWaits, TierCopier, check_launch
from blocklife.copiers.torch._memory import HostMemory
from blocklife.ledger.records import Completion, Direction, Ids, JobId, Result, TierTransfer, Transfer, Worker

Alarm = Callable[[str], None]
"""Told of damage, in words."""


@define(eq=False)
class PlaceSums:
    """The sums of all places, and the reports that wait until theirs are made."""

    host: HostMemory
    pool: ThreadPoolExecutor
    alarm: Alarm
    num_damaged: int = 0
    """Places that loads have found to be wrong."""
    _waiting: list[tuple[Completion, Future[None]]] = field(factory=list)

    def report_summed(self, completion: Completion, places: Ids) -> None:
        """Report this only when these places, which this rank has written, are summed."""
        self._waiting.append((completion, self.pool.submit(self._sum, places)))

    def take_summed(self) -> list[Completion]:
        """The reports whose places are summed by now; FAILED where they could not be."""
        ready: list[Completion] = []
        waiting = self._waiting
        self._waiting = []
        for completion, future in waiting:
            if not future.done():  # asked once: it may be done a moment later
                self._waiting.append((completion, future))
            elif problem := future.exception():
                self.alarm(f"worker {completion.worker}: what job {completion.job} brought cannot be summed: {problem!r}")
                ready.append(Completion(completion.job, completion.worker, Result.FAILED))
            else:
                ready.append(completion)
        return ready

    @property
    def is_busy(self) -> bool:
        """Whether a report waits."""
        return bool(self._waiting)

    def wrong(self, places: Ids) -> list[int]:
        """Those of these places that do not hold what was summed."""
        return [place for place in np.unique(places).tolist() if self._of(place) != int(self.host.sums[place])]

    def _sum(self, places: Ids) -> None:
        for place in np.unique(places).tolist():
            self.host.sums[place] = self._of(place)

    def _of(self, place: int) -> int:
        columns, rows = checksum(self.host.rows[place].numpy().data)
        return columns << 32 | rows


@define(eq=False)
class _Checked:
    """A load whose places are being compared."""

    transfer: Transfer
    wrong: Future[list[int]]
    needed_now: bool


class CheckedCopier:
    """A copier whose loads are checked. What a load waits for is what was computed when it is launched, after its check."""

    def __init__(self, inner: EngineCopier, sums: PlaceSums) -> None:
        self._inner = inner
        self._sums = sums
        self._closed = False
        self._needed_now = False
        # Invariant: a load is in `_checking` until it is launched or has failed, a store in `_storing` until it has landed.
        self._checking: dict[JobId, _Checked] = {}
        self._storing: dict[JobId, Ids] = {}
        self._failed: list[Completion] = []

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here."""
        return self._inner.worker

    def computed(self, engine: object = None) -> None:
        """As of the copier inside."""
        self._inner.computed(engine)

    def before_forward(self, engine: object = None, blocks: Sequence[int] | None = None) -> None:
        """As of the copier inside."""
        self._inner.before_forward(engine, blocks)

    def durations(self) -> Mapping[JobId, float]:
        """As of the copier inside, where a store has landed before it is reported here."""
        return self._inner.durations()

    @contextlib.contextmanager
    def behind_forward(self) -> Iterator[None]:
        """As of the copier inside, for stores."""
        with self._inner.behind_forward():
            yield

    @contextlib.contextmanager
    def needed_now(self) -> Iterator[None]:
        """As of the copier inside, for loads handed over in it, whenever they are launched."""
        self._needed_now = True
        try:
            yield
        finally:
            self._needed_now = False

    def launch(self, transfer: Transfer) -> None:
        """Launch a store, or check the places of a load, which `poll` or a wait launches then. Refuses: as `Copier.launch`."""
        if transfer.direction is Direction.STORE:
            self._inner.launch(transfer)
            shared, places = self._sums.host.shared, np.asarray(transfer.target, np.int64)
            self._storing[transfer.job] = places if shared is None else places[shared.writes(places)]
            return
        check_launch(transfer.job, self._checking, closed=self._closed)
        wrong = self._sums.pool.submit(self._sums.wrong, np.asarray(transfer.source, np.int64))
        self._checking[transfer.job] = _Checked(transfer, wrong, self._needed_now)

    def poll(self) -> list[Completion]:
        """Report the jobs that are over, and whose sums are made; launch loads whose places are right."""
        self._launch([job for job, load in self._checking.items() if load.wrong.done()])
        landed = []
        for completion in self._inner.poll():
            places = self._storing.pop(completion.job, None)
            if places is None or completion.result is not Result.OK:
                landed.append(completion)
            else:
                self._sums.report_summed(completion, places)
        failed, self._failed = self._failed, []
        return [*failed, *landed, *self._sums.take_summed()]

    def wait(self, jobs: Collection[JobId]) -> None:
        """Block until these jobs are quiet; a load that is being checked is checked and launched first."""
        self._launch([job for job in jobs if job in self._checking])
        self._inner.wait(jobs)

    def fence(self, jobs: Collection[JobId]) -> None:
        """Let the device wait for these jobs, and the host for their checks alone."""
        self._launch([job for job in jobs if job in self._checking])
        if isinstance(self._inner, QueuesWaits):
            self._inner.fence(jobs)
        else:
            self._inner.wait(jobs)

    def busy(self) -> bool:
        """Whether further polls may still report something."""
        return bool(self._failed or self._checking) or self._sums.is_busy or self._inner.busy()

    def close(self) -> None:
        """Wait for all outstanding jobs, the checked ones included. Landed jobs may still be polled."""
        self._launch(list(self._checking))
        self._closed = True
        self._inner.close()

    def _launch(self, jobs: Collection[JobId]) -> None:
        """Launch these loads, when their checks are over, unless a place is wrong."""
        for job in jobs:
            load = self._checking.pop(job)
            try:
                if wrong := load.wrong.result():
                    self._sums.num_damaged += len(wrong)
                    raise OSError(f"host memory holds other bytes than were stored at places {wrong[:8]} of {len(wrong)}")
                inner = self._inner
                with inner.needed_now() if load.needed_now and isinstance(inner, QueuesWaits) else contextlib.nullcontext():
                    self._inner.launch(load.transfer)
            except Exception as problem:
                self._sums.alarm(f"worker {self.worker}: load {job} moves nothing: {problem} (its request computes instead)")
                self._failed.append(Completion(job, self.worker, Result.FAILED))


class SummedTierCopier:
    """A copier to and from a store below whose promotions are summed: what they bring is checked when it is loaded."""

    def __init__(self, inner: TierCopier, sums: PlaceSums, places_per_slot: int) -> None:
        self._inner = inner
        self._sums = sums
        self._places_per_slot = places_per_slot
        self._promoting: dict[JobId, Ids] = {}

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here."""
        return self._inner.worker

    def launch(self, transfer: TierTransfer) -> None:
        """As of the copier inside."""
        self._inner.launch(transfer)
        if transfer.direction is Direction.PROMOTE:
            self._promoting[transfer.job] = np.asarray(transfer.slots, np.int64)

    def poll(self) -> list[Completion]:
        """Report the jobs that are over; promotions when their places are summed."""
        landed = []
        for completion in self._inner.poll():
            slots = self._promoting.pop(completion.job, None)
            if slots is None or completion.result is not Result.OK:
                landed.append(completion)
            else:
                self._sums.report_summed(completion, self._places(np.delete(slots, completion.missing)))
        return [*landed, *self._sums.take_summed()]

    def wait(self, jobs: Collection[JobId]) -> None:
        """As of the copier inside."""
        self._inner.wait(jobs)

    def busy(self) -> bool:
        """Whether further polls may still report something."""
        return self._sums.is_busy or self._inner.busy()

    def close(self) -> None:
        """As of the copier inside."""
        self._inner.close()

    def _places(self, slots: Ids) -> Ids:
        """The places of those slots that this rank writes."""
        shared = self._sums.host.shared
        mine = slots if shared is None else slots[shared.writes_slots(slots)]
        return (mine[:, None] * self._places_per_slot + np.arange(self._places_per_slot)).reshape(-1)
