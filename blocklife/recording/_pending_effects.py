"""Effects that a recording still has to show: noted at the step that causes them, struck off by the lines that follow.

Rules of this file:

* Pending effects come from the rows of `states.COUPLINGS`. Only three couplings, whose cause is not a step of a job, are
  written by hand: *life-ends*, *hand-out-flushes* and *request-gives-up*.
* While anything is pending, a commit that carries out none of it is illegal; the effects of one job come in the order of its
  coupling.
"""

from __future__ import annotations

from blocklife.recording._format import Head
from blocklife.recording._traces import (
    BlockTrace,
    Due,
    IllegalError,
    JobTrace,
    RequestTrace,
    Trace,
    effects_of,
    illegal,
)
from blocklife.states import MACHINES, TERMINAL, Job

_KIND_OF = {"plan_store": "store", "plan_load": "load", "pin": "demote", "reserve": "promote"}
"""The kind of a job, by the event of the first place that is reserved for it."""


class PendingEffects:
    """The jobs of a recording, and the effects of their steps that have not come yet.

    Invariant: ``jobs`` has the jobs that are not over, or that have effects pending; ``ended`` the state of all others.
    Invariant: ``_pending`` has exactly the jobs with effects on places; ``_wanted`` the jobs and requests whose own step is
    pending.
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self.n = 0
        self.last_job = 0
        self.born = 0
        self.jobs: dict[str, JobTrace] = {}
        self.ended: dict[int, int] = {}
        self._pending: dict[JobTrace, None] = {}
        self._wanted: dict[JobTrace | RequestTrace, tuple[tuple[str, ...], str]] = {}

    def _start(self, job: JobTrace, event: str) -> None:
        if job.over:
            state = MACHINES["job"].states[job.state].name
            raise illegal("I3", "job", job, f"it is {state}, and its number is given out again")
        if job.number <= self.last_job:
            raise illegal("I3", "job", job, f"its number is given out after {self.last_job} (they only grow)")
        if len(self.jobs) >= self.head.max_jobs:
            raise illegal("limits", "job", job, f"it is made while {len(self.jobs)} jobs are out (max_jobs)")
        self.last_job = job.number
        self.born += 1
        job.kind, job.reserving = _KIND_OF[event], self.n
        effects, coupling = effects_of(f"job.plan({job.kind})", Job.PLANNED)
        job.due = [Due(effect, None, coupling) for effect in reversed(effects[1:])]
        self.jobs[f"{job.number}}}"] = job
        if job.due:
            self._pending[job] = None

    def _expect(self, job: JobTrace, cause: str, into: Job) -> None:
        """Note the effects of a step of *job* on its places and its request."""
        effects, coupling = effects_of(cause, into)
        fresh = [place for place, epoch in job.blocks.items() if place.epoch == epoch]
        due = []
        for effect in effects:
            machine, _, event = effect.partition(".")
            if machine == "request":
                if job.request is not None and job.request.load is job:
                    self._wanted[job.request] = ((event,), coupling)
            elif machine == "slot":
                due.append(Due(effect, set(job.slots), coupling))
            elif machine == "block":
                places = set(fresh) if event in ("submit", "cancel") else set(job.blocks)
                if event == "cancel":  # an ended life has no row to take: its place is unpinned without a line
                    for place in job.blocks.keys() - places:
                        self._unpin_block(place)
                if places:
                    due.append(Due(effect, set(places), coupling))
            elif any(place.pins > 1 for place in job.blocks):
                raise illegal(
                    "coupling", "job", job, f"it is {into.name} before older jobs of its places are quiet ({coupling})"
                )
        if due:
            job.due = due[::-1]
            self._pending[job] = None
        job.over = into in TERMINAL
        self._forget(job)

    def _serve(self, job: JobTrace | None, machine: str, place: Trace, event: str) -> JobTrace:
        """Strike off the effect of *job* on one place."""
        if job is None:
            raise illegal("coupling", machine, place, f"{event} happens in the name of a job, and the line names none")
        due = job.due[-1] if job.due else None
        if due is None or due.event != f"{machine}.{event}" or due.places is None or place not in due.places:
            raise self._unasked(job, machine, place, event)
        due.places.remove(place)
        if not due.places:
            self._served(job)
        return job

    def _served(self, job: JobTrace) -> None:
        job.due.pop()
        if not job.due:
            del self._pending[job]
            self._forget(job)

    def _forget(self, job: JobTrace) -> None:
        """Drop a job that is over and has nothing pending: its places are not needed any more."""
        if job.over and not job.due:
            self.ended[job.number] = job.state
            self.jobs.pop(f"{job.number}}}", None)

    def _unpin_block(self, place: BlockTrace) -> None:
        place.pins -= 1
        if place.pins < 0:
            raise illegal("I4", "block", place, "its pins fall below zero")

    @property
    def pending(self) -> bool:
        """Whether a coupling has not been carried out to its end."""
        return bool(self._pending or self._wanted)

    def _check_service(self, machine: str, place: Trace, event: str, job: JobTrace | None) -> None:
        """While effects are pending, only they may come; the releases of a request that gives up may."""
        mine = isinstance(place, JobTrace | RequestTrace) and place in self._wanted and event in self._wanted[place][0]
        if machine == "job":
            allowed = mine
        elif job is not None and job in self._pending:
            allowed = True
        elif self._pending:
            allowed = False
        elif (machine, event) == ("block", "release"):
            allowed = any(isinstance(each, RequestTrace) for each in self._wanted)
        else:
            allowed = mine
        if not allowed:
            raise self.missing()

    def missing(self) -> IllegalError:
        """The error for a commit that comes before a pending effect: what is pending, and why."""
        for job in self._pending:
            due = job.due[-1]
            machine, _, event = due.event.partition(".")
            why = f"job {job.number} is {MACHINES['job'].states[job.state].name}; coupling {due.coupling}"
            place: Trace = job
            if due.places is not None and machine != "request":
                place = min(due.places, key=lambda each: each.number)
            name = f"{machine} {place.number}" if place is not job else f"a {machine}"
            problem = f"{name} has had no {event} in the name of job {job.number} ({why})"
            return IllegalError("coupling", "job" if place is job else machine, place.number, problem, job.number)
        for trace, (events, coupling) in self._wanted.items():
            machine = "job" if isinstance(trace, JobTrace) else "request"
            problem = f"{machine} {trace.number}: it has had no {' or '.join(events)} (coupling {coupling})"
            return IllegalError("coupling", machine, trace.number, problem)
        raise LookupError("nothing is pending")

    def _unasked(self, job: JobTrace, machine: str, place: Trace, event: str) -> IllegalError:
        if not job.kind:
            known = "is over" if job.over else "is not known"
            return illegal("I3", machine, place, f"{event} in the name of job {job.number}, which {known}")
        state = MACHINES["job"].states[job.state].name
        mine = place in job.blocks or place in job.slots
        first = f"{job.due[-1].event} is due first" if job.due and mine else "nothing of the kind is due"
        held = "" if mine else ", which holds no such place"
        return illegal("coupling", machine, place, f"{event} in the name of job {job.number}{held}, which is {state} ({first})")

    def _serveless(self, machine: str, place: Trace, event: str) -> IllegalError:
        return illegal("coupling", machine, place, f"{event} happens in the name of a job, and the line names none")

    def tell_job(self, number: int) -> list[str]:
        """The state of a job and, while it is out, its places."""
        job = self.jobs.get(f"{number}}}")
        if job is None:
            state = self.ended.get(number)
            known = "it is not known" if state is None else f"it ended {MACHINES['job'].states[state].name}"
            return [f"job {number}: {known}"]
        blocks, slots = (_ranges([place.number for place in places]) for places in (job.blocks, job.slots))
        state_name = MACHINES["job"].states[job.state].name
        return [f"job {number}: a {job.kind}, {state_name}; blocks {blocks or 'none'}; slots {slots or 'none'}"]


def _ranges(numbers: list[int]) -> str:
    """The numbers, with a range where several follow each other."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, each)) for each in found)
