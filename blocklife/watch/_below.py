"""A book of the jobs of tiers below an engine's host, and of what was illegal in them.

*Rules of this file.* It knows no engine: the hooks (`tiering`) report facts to it and to its slots (`UsedSlots`), in the order
in which they happened, and each violation is passed to *tell*. After a violation the book says what the engine says, and goes
on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from blocklife.watch._records import EndedJobs
from blocklife.watch._uses import Tell, TierJob, UsedSlots
from blocklife.watch_states import CopyState


class TierBook:
    """The book of the tiers below one host tier, whose slots are its `slots`.

    Invariant: ``_kept_back`` has the QUEUED jobs of this engine.
    """

    def __init__(self, num_slots: int, tell: Tell, *, has_tiers: bool, sees_all: bool) -> None:
        self.slots = UsedSlots(num_slots, tell, sees_all=sees_all)
        self._odd = self.slots.odd
        self._has_tiers = has_tiers
        self._jobs: dict[int, TierJob] = {}
        self._reported: list[TierJob] = []
        self._ended = EndedJobs()
        """One more report is lawful of those that were out when a reset has abandoned them."""
        self._kept_back: dict[int, TierJob] = {}
        self._is_fenced = False
        self._refused: int | None = None

    def left_behind(self) -> list[TierJob]:
        """The jobs that were not reported."""
        return [job for job in self._jobs.values() if job.is_out]

    # --- jobs ---------------------------------------------------------------------------------------------------------------

    def adopt_job(self, job: TierJob, holds: Sequence[int]) -> None:
        """A job from before the book: it is believed. *holds* are those of its slots, as the engine counts them."""
        job.life.launch()
        self._jobs[job.number] = job
        self.slots.adopt_job(job, holds)

    def asked(self, tier: int, *, may_store: bool) -> None:
        """A tier was asked whether it takes a store now."""
        self._refused = None if may_store else tier

    def made(self, job: TierJob, *, is_external: bool = False) -> None:
        """The engine has made a job.

        From now on a job that stores reads its slots; one that promotes fills them when its tier gets it. *is_external*: its
        tier has asked for it, for another engine, and is not handed it.
        """
        if job.number in self._jobs:
            self._odd("I3", f"{job.name} is made a second time", job)
        if len(job.keys) != len(job.slots):
            self._odd("I15", f"{job.name} has {len(job.keys)} keys and {len(job.slots)} slots", job)
        self._jobs[job.number] = job
        if job.promotes and self._is_fenced:
            what = (
                f"{job.name} promotes before the workers have finished what a reset flushed: they may still write these slots"
            )
            self._odd("I1", what, job)
        if not job.promotes and self._refused == job.tier and not is_external:
            what = f"{job.name} is a store for tier {job.tier}, which has just refused it for it is behind, and it holds slots"
            self._odd("I12", what, job)
        if not is_external:
            self._refused = None
        if job.is_believed:
            job.life.launch()
        elif not is_external:
            self._kept_back[job.number] = job
        if job.is_believed or not job.promotes:
            self.slots.enter(job)

    def handed_over(self, number: int, tier: int, content: Sequence[tuple[bytes, int]], *, promotes: bool) -> None:
        """A tier gets a job, for these keys, each with its slot."""
        job = self._jobs.get(number)
        self._kept_back.pop(number, None)
        if job is None:
            self._odd(
                "I3", f"tier {tier} gets job {number}, which " + ("is over" if number in self._ended else "was never made")
            )
            return
        is_first = job.life.state is CopyState.QUEUED
        if not is_first and not (job.is_believed and job.is_out):
            when = "a second time" if job.is_out else "after it was reported"
            self._odd("I3", f"{job.name} is handed to tier {tier} {when}", job)
        elif job.tier != tier:
            self._odd("I3", f"{job.name} is handed to tier {tier}, and was made for tier {job.tier}", job)
        elif job.promotes is not promotes:
            does = "as a promotion, and is a store" if promotes else "as a store, and is a promotion"
            self._odd("I3", f"{job.name} is handed to tier {tier} {does}", job)
        elif content != list(zip(job.keys, job.slots, strict=False)):
            self._odd("I8", f"{job.name} is handed to tier {tier} with other keys and slots than it was made with", job)
        elif promotes and is_first:
            self.slots.enter(job)
        if is_first:
            job.life.launch()

    def reported(self, number: int, tier: int, *, ok: bool, good: Collection[bytes] = ()) -> TierJob | None:
        """A tier reports a job as over: with all of its content (*ok*), or with what is *good*. Returns the job."""
        job = self._jobs.get(number)
        if job is None or not job.is_out:
            if job is None and self._ended.get(number):
                self._ended[number] = False
            elif job is not None or number in self._ended:
                self._odd("I9", f"tier job {number} is reported a second time, by tier {tier}", job)
            else:
                self._odd("I3", f"tier {tier} reports job {number}, which was never made")
            return None
        if job.tier != tier:
            self._odd("I3", f"{job.name} of tier {job.tier} is reported by tier {tier}", job)
        job.life.land()
        job.good = frozenset(job.keys if ok else good)
        self._kept_back.pop(number, None)
        self._reported.append(job)
        return job

    def settled(self) -> None:
        """The engine has acted on all reports."""
        reported, self._reported = self._reported, []
        for job in reported:
            self.slots.leave(job)
            job.life.end()
            self._jobs.pop(job.number, None)
            self._ended.keep(job.number, may_come=False)

    # --- steps, resets, rest ------------------------------------------------------------------------------------------------

    def ends_step(self) -> None:
        """The engine has ended a step: what it has begun for the tiers must be with them."""
        for job in self._kept_back.values():
            self._odd("I5", f"{job.name} was made, and tier {job.tier} does not hear of it", job)
        self.slots.ends_step(self._kept_back.values())
        self._kept_back.clear()

    def resets(self) -> None:
        """The engine forgets the content of the host. A late report of a job that was out is lawful."""
        for job in self._jobs.values():
            if job.is_out:
                does = "promotes into" if job.promotes else "reads"
                what = f"a reset gives slot {min(job.slots, default=0)} away while {job.name} still {does} it"
                self._odd("I1", what, job, min(job.slots, default=None))
            job.life.abandon()
            self._ended.keep(job.number, may_come=job.life.state is CopyState.UNWANTED)
        self.slots.reset()
        for jobs in (self._jobs, self._kept_back, self._reported):
            jobs.clear()
        self._is_fenced = self._has_tiers

    def flushed(self) -> None:
        """The workers have finished what a reset flushed."""
        self._is_fenced = False

    def rests(self) -> None:
        """The engine says that nothing is pending below the host."""
        for job in self.left_behind()[:1]:
            self._odd("I5", f"nothing is pending for the engine, and {job.name} is still out", job)
