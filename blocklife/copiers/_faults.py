"""A copier that injects reproducible faults into another one.

*Theory.* The faults of a job are drawn when it is launched (`_planting`): those of its number, on this worker.

=========  ==============================================================  =============================
fault      what really happens to the bytes                                what is reported
=========  ==============================================================  =============================
fail       only the first half of the places moves (of one place: none)    FAILED, when that half landed
late       all move                                                        held back for some polls
twice      all move                                                        again, some polls later
reorder    all move                                                        after a job launched later
never      as with fail, and then the job hangs                            nothing, ever
=========  ==============================================================  =============================

*fail*, *late*, *twice* and *reorder* may be combined in one job; *never* overrides the others. `wait` proves quiet as usual: it
ends the copying, but reports are still held back.

The places are the blocks of a `Copier`, and the slots of a `TierCopier`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, Self, TypeVar

import attrs
import numpy as np

from blocklife.copiers._planting import PlantedRates, Planter, share
from blocklife.copiers._protocol import AnyCopier, check_launch
from blocklife.errors import MisuseError
from blocklife.ledger.records import Completion, JobId, Result, TierTransfer, Transfer, Worker

TransferT = TypeVar("TransferT", bound=Transfer | TierTransfer)


@attrs.frozen(str=False)
class FaultRates(PlantedRates):
    """The share of jobs with each fault, from 0 to 1; default 0."""

    KIND = "fault rate"
    WHOLE = "jobs"

    fail: float = share()
    late: float = share()
    twice: float = share()
    reorder: float = share()
    never: float = share()

    @classmethod
    def default(cls) -> Self:
        """Moderate rates: work still gets done, and every fault occurs within a few hundred jobs."""
        return cls(fail=0.02, late=0.02, twice=0.02, reorder=0.02, never=0.01)


@attrs.define
class FaultStatistics:
    """The number of jobs with each fault so far."""

    num_launched: int = 0
    num_failed: int = 0
    """Cut short, and reported FAILED."""
    num_late: int = 0
    """Reported late."""
    num_twice: int = 0
    """Reported twice."""
    num_reordered: int = 0
    """Reported after a job that was launched later."""
    num_never: int = 0
    """Cut short, and never reported."""


@attrs.frozen
class _PlannedFault:
    """What will happen to one job."""

    order: int
    fails: bool
    hangs: bool
    late_polls: int
    repeat_polls: int
    reorders: bool


@attrs.frozen(eq=False)
class _Held:
    """A landed job on its way to being reported; ``due`` and ``expires`` count polls."""

    fate: _PlannedFault
    completion: Completion
    due: int
    expires: int


class FaultyCopier(Generic[TransferT]):
    """A `Copier`, or a `TierCopier`, that injects faults into another one; owns it, and closes it."""

    def __init__(
        self, inner: AnyCopier[TransferT], rates: FaultRates, rng: np.random.Generator, *, late_polls_max: int = 24
    ) -> None:
        if late_polls_max < 1:
            raise MisuseError(f"faulty copier: late by at most {late_polls_max} polls is not late (give 1 or more)")
        self._inner = inner
        self._planter = Planter(rates, int(rng.integers(1 << 62)))
        self._late_polls_max = late_polls_max
        self._closed = False
        self._num_polls = 0
        # Invariant: a job that will be reported is in `_out` until it lands, then in `_held` until it is reported, then, if
        # it repeats, in `_repeats` until it is reported again. `_stillborn` are those of `_out` that the inner copier never
        # saw. A hung job is in `_hung` until the inner copier has let go of it. Initially all are empty.
        self._out: dict[JobId, _PlannedFault] = {}
        self._stillborn: list[Completion] = []
        self._held: list[_Held] = []
        self._repeats: list[tuple[int, Completion]] = []
        self._hung: set[JobId] = set()
        self._newest_reported = 0
        self._counts = FaultStatistics()

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here."""
        return self._inner.worker

    def launch(self, transfer: TransferT) -> None:
        """Draw the faults of the job, and launch what they leave of it.

        Refuses: as the inner copier does.
        """
        job = transfer.job
        check_launch(job, {*self._out, *self._hung}, closed=self._closed)
        fate = self._draw(job)
        moved = len(transfer.source) if isinstance(transfer, Transfer) else len(transfer.slots)
        if fate.fails or fate.hangs:
            moved //= 2
        if moved:
            self._inner.launch(_first(transfer, moved))
        self._counts.num_launched += 1
        if fate.hangs:
            self._counts.num_never += 1
            if moved:
                self._hung.add(job)
            return
        self._counts.num_failed += fate.fails
        self._out[job] = fate
        if not moved:
            self._stillborn.append(Completion(job, self.worker, Result.FAILED))

    def poll(self) -> list[Completion]:
        """Report the jobs that the faults let through, and repeated ones."""
        self._num_polls += 1
        stillborn, self._stillborn = self._stillborn, []
        reports: list[Completion] = []
        for completion in (*stillborn, *self._inner.poll()):
            if completion.job in self._hung:
                self._hung.discard(completion.job)
            elif completion.job in self._out:
                self._hold(self._out.pop(completion.job), completion)
            else:
                reports.append(completion)
        due = [held for held in self._held if held.due <= self._num_polls]
        reports += [self._report(held) for held in due if not held.fate.reorders]
        reports += self._report_reordered([held for held in due if held.fate.reorders])
        return reports + self._repeat()

    def wait(self, jobs: Collection[JobId]) -> None:
        """Block until these jobs are quiet; what their faults allow to be copied has been copied then."""
        self._inner.wait(jobs)

    def busy(self) -> bool:
        """Whether further polls may still report something; hung jobs do not count."""
        landed = bool(self._stillborn or self._held or self._repeats)
        return landed or (bool(self._out) and self._inner.busy())

    def close(self) -> None:
        """Close the inner copier. Reports held back may still be polled."""
        self._closed = True
        self._inner.close()

    def statistics(self) -> FaultStatistics:
        """The faults that happened since the start."""
        return attrs.evolve(self._counts)

    def _draw(self, job: JobId) -> _PlannedFault:
        thing = (int(self.worker), job.incarnation, job.number)
        has = {rate.name: self._planter.has(rate.name, *thing) for rate in attrs.fields(FaultRates)}
        polls = {fault: has[fault] * (1 + self._planter.draw("polls", fault, *thing) % self._late_polls_max) for fault in has}
        return _PlannedFault(
            self._counts.num_launched + 1, has["fail"], has["never"], polls["late"], polls["twice"], has["reorder"]
        )

    def _hold(self, fate: _PlannedFault, completion: Completion) -> None:
        if fate.fails:
            completion = Completion(completion.job, completion.worker, Result.FAILED)
        self._counts.num_late += fate.late_polls > 0
        due = self._num_polls + fate.late_polls
        self._held.append(_Held(fate, completion, due, due + self._late_polls_max))

    def _report(self, held: _Held) -> Completion:
        self._held.remove(held)
        self._newest_reported = max(self._newest_reported, held.fate.order)
        if held.fate.repeat_polls:
            self._repeats.append((self._num_polls + held.fate.repeat_polls, held.completion))
        return held.completion

    def _report_reordered(self, held_back: list[_Held]) -> list[Completion]:
        """Release each one once a later job was reported before it; two of them may overtake each other.

        A job that no other overtakes is reported when its delay expires: reordering must not become *never*.
        """
        reports = []
        for held in sorted(held_back, key=lambda held: -held.fate.order):
            overtaken = self._newest_reported > held.fate.order
            if overtaken or len(held_back) > 1 or held.expires <= self._num_polls:
                self._counts.num_reordered += overtaken
                reports.append(self._report(held))
        return reports

    def _repeat(self) -> list[Completion]:
        repeats = [completion for due, completion in self._repeats if due <= self._num_polls]
        self._repeats = [(due, completion) for due, completion in self._repeats if due > self._num_polls]
        self._counts.num_twice += len(repeats)
        return repeats


def _first(transfer: TransferT, num_places: int) -> TransferT:
    """The same transfer, reduced to its first places."""
    if isinstance(transfer, TierTransfer):
        return attrs.evolve(
            transfer,
            slots=transfer.slots[:num_places],
            groups=transfer.groups[:num_places],
            keys=transfer.keys[:num_places],
        )
    group_sizes, left = [], num_places
    for size in transfer.group_sizes:
        group_sizes.append(min(size, left))
        left -= group_sizes[-1]
    return attrs.evolve(
        transfer,
        source=transfer.source[:num_places],
        target=transfer.target[:num_places],
        group_sizes=tuple(group_sizes),
    )
