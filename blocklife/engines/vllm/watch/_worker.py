"""Hooks on one worker's side of a connector: what it launches, what it waits for, and in which order.

It may be in another process than the scheduler, so it knows nothing of blocks: it keeps one share for each job, a machine with
the ledger's own job table. It requires the executor's order of a step: stores deferred from the previous step, the waits, loads
that the step needs, the forward pass, the other loads; new stores wait for the next step.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Iterable
from typing import Protocol, TypeAlias

from attrs import define, field

from blocklife.engines.vllm._versions import ENGINE
from blocklife.engines.vllm.watch._offloading import jobs_of, launches_flushed
from blocklife.errors import MisuseError
from blocklife.states import OUT_AND_WANTED, Job, JobLife
from blocklife.watch import EndedJobs, HeardCall, Options, PartWatch, WatchViolation

_HISTORY = 16


Places: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]] | None


class CopierResult(Protocol):
    """A copier's report of a finished job."""

    job_id: int
    success: bool


@define(eq=False)
class WatchedShare:
    """One worker's part of a job."""

    number: int
    is_store: bool
    step: int
    request: str | None
    life: JobLife = field(factory=JobLife)
    is_waited: bool = False
    places: Places = None
    """The ids of its source and of its target, from the metadata of the step; None if they cannot be read."""
    events: deque[str] = field(factory=lambda: deque(maxlen=_HISTORY))


class WorkerWatch(PartWatch):
    """A watch over one worker. If its copier is a mock, only the connector's side is watched."""

    def __init__(self, worker: object, options: Options) -> None:
        if not is_worker(worker):
            raise MisuseError(f"a {type(worker).__name__} is not a worker that can be watched (attach to a connector's worker)")
        name = "OffloadingConnector" if hasattr(worker, "start_kv_transfers") else "SimpleCPUOffloadConnector"
        super().__init__(ENGINE, f"a worker's side of {name}", options)
        self._step = 0
        self._found: list[WatchViolation] = []
        self._ended = EndedJobs()
        """One more report is lawful of those that the copier has yet to report."""
        self.shares: dict[int, WatchedShare] = {}
        self._tells = hasattr(worker, "build_connector_worker_meta")
        self._untold: dict[int, WatchedShare] = {}
        """Jobs that have landed but were not reported to the scheduler, if the worker reports them itself."""
        (OffloadingWorkerHooks if hasattr(worker, "start_kv_transfers") else SimpleWorkerHooks)(self, worker)

    @property
    def steps(self) -> int:
        """Steps of the worker so far."""
        return self._step

    # --- facts --------------------------------------------------------------------------------------------------------------

    def begins(self, *, launches: bool) -> None:
        """A step begins. If *launches* are hooked, jobs of the last step but one must have been launched by now."""
        self._step += 1
        for number, share in list(self.shares.items()) if launches else ():
            if share.life.state is Job.PLANNED and share.step < self.steps - 1:
                self._violate("I5", f"job {number} was named at step {share.step}, but was never launched", number)
                self.release(number)

    def planned(self, number: int, *, is_store: bool, request: str | None, places: Places = None) -> None:
        """The metadata of a step names a job. A job that is known and not over is left as it is."""
        if number not in self.shares:
            self._ended.pop(number, None)
            share = self.shares[number] = WatchedShare(number, is_store, self.steps, request, places=places)
            self._note(share, "is planned")

    def submitted(self, number: int, *, is_store: bool, places: Places = None) -> None:
        """A job is handed to the copier."""
        share = self.shares.get(number)
        if share is None:
            self._violate("I3", f"job {number} is launched, but no step named it", number)
            return
        if not share.life.can(JobLife.submit):
            self._violate("I3", f"job {number} is launched a second time", number)
            return
        if is_store and share.step == self.steps and not share.is_waited:
            self._violate("I8", f"job {number} is launched in the step that computes what it stores", number)
        if places is not None and share.places is not None and places != share.places:
            self._violate("I8", f"job {number} is launched with other places than its step has named", number)
        share.life.submit()
        self._note(share, "is launched")

    def waited(self, numbers: Iterable[int]) -> None:
        """The host has waited for these jobs."""
        for number in numbers:
            share = self.shares.get(number)
            if share is not None and share.life.can(JobLife.flush):
                share.life.flush()
                self._note(share, "is waited for")

    def landed(self, number: int, *, ok: bool) -> None:
        """The copier reports the end of a job."""
        share = self.shares.get(number)
        if share is not None and share.life.state in OUT_AND_WANTED:
            share.life.finish(outstanding=0, ok=ok)
            if self._tells:
                self._untold[number] = share
            self.release(number)
        elif self._ended.get(number):
            self._ended[number] = False
        elif number in self._ended:
            self._violate("I9", f"job {number} is reported a second time", number)
        else:
            self._violate("I3", f"job {number} is reported, but was never launched", number)

    def told(self, number: int) -> None:
        """The worker reports the end of a job to the scheduler: the copier must have reported it before."""
        share = self.shares.get(number)
        if share is not None:
            state = "was never launched" if share.life.state is Job.PLANNED else "still runs"
            self._violate("I6", f"job {number} is reported to the scheduler, but {state}", number)
            self.release(number)

    def told_all(self, numbers: Iterable[int]) -> None:
        """The worker reports the end of these jobs to the scheduler: every landed job must be among them."""
        for number in numbers:
            if self._untold.pop(number, None) is None:
                self.told(number)
        for number, share in self._untold.items():
            self._violate("I5", f"job {number} has landed, but is not reported to the scheduler", number, share)
        self._untold.clear()

    def told_loaded(self, requests: Iterable[str]) -> None:
        """The worker reports to the scheduler that the loads of these requests are complete."""
        wanted = set(requests)
        for number, share in list(self.shares.items()) if wanted else ():
            if not share.is_store and share.request in wanted:
                self.told(number)

    def release(self, number: int) -> None:
        """A job is over."""
        self._ended.keep(number, may_come=self.shares.pop(number).life.state is Job.IN_FLIGHT)

    def must_be_quiet(self, numbers: Iterable[int], rule: str, why: str) -> None:
        """Check that each of these jobs is over, or has been waited for by now."""
        for number in numbers:
            share = self.shares.get(number)
            if share is not None and share.life.state is not Job.AWAITED:
                state = "was never launched" if share.life.state is Job.PLANNED else "still runs"
                self._violate(rule, f"{why}, but job {number} {state}", number)

    def settle(self, *, is_over: bool) -> None:
        """Report the violations found, when the worker's own call is over."""
        if self._found and is_over:
            found, self._found = self._found, []
            self._reporter(found)

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _note(self, share: WatchedShare, what: str) -> None:
        share.events.append(f"step {self.steps}: job {share.number} {what}")

    def _violate(self, rule: str, what: str, job: int, share: WatchedShare | None = None) -> None:
        share = share or self.shares.get(job)
        request, events = (None, ()) if share is None else (share.request, share.events)
        self._found.append(WatchViolation(rule, what, self.steps, request=request, job=job, history=tuple(events)))


class WorkerHooks:
    """Hooks on a worker, and on its copier as soon as there is one."""

    def __init__(self, watch: WorkerWatch, worker: object) -> None:
        self._watch = watch
        self._worker = worker
        self._below: object = None
        self._meta: object = None

    @property
    def _hears_below(self) -> bool:
        """Whether the copier is heard, too."""
        return self._watch.ears.hears(self._below)

    def _is_new(self, below: object) -> bool:
        """Whether the copier is another one than before; then the hooks on the former one are removed."""
        if below is self._below:
            return False
        self._watch.ears.leave(self._below)
        self._below = below
        return True


class OffloadingWorkerHooks(WorkerHooks):
    """Hooks on an OffloadingConnectorWorker."""

    def __init__(self, watch: WorkerWatch, worker: object) -> None:
        super().__init__(watch, worker)
        self._flushed: set[int] = set()
        hear = watch.ears.hear
        hear(worker, "handle_preemptions", before=self._begins, after=lambda call: self._wait_is_over())
        hear(worker, "start_kv_transfers", before=self._begins, after=self._started)
        hear(worker, "prepare_store_kv", before=self._begins)
        hear(worker, "get_finished", before=lambda call: self._begin(None), after=self._finished)
        hear(worker, "build_connector_worker_meta", after=self._told)
        hear(worker, "shutdown", before=lambda call: watch.shares.clear())

    # --- the connector's side -----------------------------------------------------------------------------------------------

    def _begins(self, call: HeardCall) -> None:
        self._begin(call.first)

    def _begin(self, meta: object) -> None:
        """The first call with the metadata of a step begins that step."""
        below = getattr(self._worker, "worker", None)
        if self._is_new(below):
            self._listen_below(below)
        if meta is None or meta is self._meta:
            return
        self._meta = meta
        self._watch.begins(launches=self._hears_below)
        self._flushed = set(getattr(meta, "jobs_to_flush", None) or ())
        if not launches_flushed():  # older workers skip this wait, which is not needed: it is for a block that was hit
            self._flushed -= jobs_of(meta, "store_jobs").keys()
        # Where all ranks have the same content, a rank that writes no stores reports them at once.
        for name in ("load_jobs", "store_jobs") if getattr(self._worker, "_is_store_writer", True) else ("load_jobs",):
            for number, job in jobs_of(meta, name).items():
                request = getattr(job, "req_id", None)
                self._watch.planned(
                    number,
                    is_store=name == "store_jobs",
                    request=request if isinstance(request, str) else None,
                    places=_places(*(getattr(job, "transfer_spec", None) or _ends(job))),
                )
        for number in self._flushed:
            if (share := self._watch.shares.get(number)) is not None:
                share.is_waited = True

    def _started(self, call: HeardCall) -> None:
        self._wait_is_over()
        jobs = jobs_of(call.first, "load_jobs")
        if self._hears_below:
            needed = [number for number, job in jobs.items() if getattr(job, "sync", False)]
            self._watch.must_be_quiet(needed, "I6", "the step computes with the content of a load")

    def _finished(self, call: HeardCall) -> None:
        if self._hears_below and isinstance(call.result, tuple) and len(call.result) == 2:
            self._watch.told_loaded(call.result[1] or ())

    def _told(self, call: HeardCall) -> None:
        """What is sent to the scheduler."""
        if self._hears_below:
            self._watch.told_all(jobs_of(call.result, "completed_jobs"))

    def _wait_is_over(self) -> None:
        """Check, once a step, that the step's flushed jobs are over from here on."""
        if self._hears_below:
            self._watch.must_be_quiet(self._flushed, "I1", "the step goes on without a wait")
        self._flushed = set()

    # --- the copier's side --------------------------------------------------------------------------------------------------

    def _listen_below(self, below: object) -> None:
        """Hook the copier, unless it is a mock."""
        if hasattr(type(below), "wait") and hasattr(type(below), "get_finished"):
            hear = self._watch.ears.hear
            hear(below, "submit_store", before=functools.partial(self._submits, True))
            hear(below, "submit_load", before=functools.partial(self._submits, False))
            hear(below, "transfer_async", before=self._transfers)
            hear(below, "wait", before=HeardCall.keep_first, after=self._waited)
            hear(below, "get_finished", after=self._landed)

    def _submits(self, is_store: bool, call: HeardCall) -> None:
        number, source, target = call.given("job_id", "src_spec", "dst_spec")
        if not is_store:
            self._wait_is_over()
        if isinstance(number, int):
            self._watch.submitted(number, is_store=is_store, places=_places(source, target))

    def _transfers(self, call: HeardCall) -> None:
        share = self._watch.shares.get(call.first) if isinstance(call.first, int) else None
        self._submits(share is None or share.is_store, call)

    def _waited(self, call: HeardCall) -> None:
        self._watch.waited(call.first if isinstance(call.first, Collection) else ())

    def _landed(self, call: HeardCall) -> None:
        results: list[CopierResult] = list(_iterable(call.result))
        call.result = results
        for result in results:
            self._watch.landed(result.job_id, ok=bool(result.success))


def _ends(job: object) -> tuple[object, object]:
    return getattr(job, "src_spec", None), getattr(job, "dst_spec", None)


def _places(source: object = None, target: object = None) -> Places:
    """The ids of both ends of a job, if they can be read."""
    return _both(getattr(source, "block_ids", None), getattr(target, "block_ids", None))


def _both(source: object = None, target: object = None) -> Places:
    plain = [tuple(ids.tolist() if hasattr(ids, "tolist") else ids) for ids in (source, target) if isinstance(ids, Iterable)]
    return (plain[0], plain[1]) if len(plain) == 2 else None


class SimpleWorkerHooks(WorkerHooks):
    """Hooks on a SimpleCPUOffloadWorker, which launches its events in order: stores have even numbers here, loads odd ones."""

    def __init__(self, watch: WorkerWatch, worker: object) -> None:
        super().__init__(watch, worker)
        hear = watch.ears.hear
        hear(worker, "bind_connector_metadata", before=self._bound)
        hear(worker, "handle_preemptions", after=self._preempted)
        hear(worker, "build_connector_worker_meta", after=self._told)
        hear(worker, "get_finished", after=self._finished)

    def _bound(self, call: HeardCall) -> None:
        meta = call.first
        below = getattr(self._worker, "_backend", None)
        if self._is_new(below) and hasattr(type(below), "launch_copy"):
            self._watch.ears.hear(below, "launch_copy", before=self._launches)
        self._meta = meta
        self._watch.begins(launches=self._hears_below)
        for kind, odd in (("store", 0), ("load", 1)):
            if isinstance(event := getattr(meta, f"{kind}_event", -1), int) and event >= 0:
                ends = [getattr(meta, f"{kind}_{place}_blocks", None) for place in (("cpu", "gpu") if odd else ("gpu", "cpu"))]
                places = _both(*ends)
                self._watch.planned(2 * event + odd, is_store=not odd, request=None, places=places)

    def _launches(self, call: HeardCall) -> None:
        if isinstance(event := call.kwargs.get("event_idx"), int):
            is_store = bool(call.kwargs.get("is_store"))
            number = 2 * event + (not is_store)
            if (share := self._watch.shares.get(number)) is not None:
                share.is_waited = True  # it waits on the device for the computation of the step
            self._watch.submitted(number, is_store=is_store, places=_both(*call.args[:2]))

    def _preempted(self, call: HeardCall) -> None:
        if getattr(call.first, "need_flush", False):
            left = [*(getattr(self._worker, "_load_events", None) or ()), *(getattr(self._worker, "_store_events", None) or ())]
            if not left:
                self._watch.waited(list(self._watch.shares))
            running = [number for number, share in self._watch.shares.items() if share.life.state is not Job.PLANNED]
            self._watch.must_be_quiet(running, "I1", "the step goes on without a wait")

    def _told(self, call: HeardCall) -> None:
        events = jobs_of(call.result, "completed_store_events")
        if self._hears_below:
            if not isinstance(getattr(self._worker, "_store_hwm", None), int):  # it is known only from the report
                self._land_stores(max(events, default=-1))
            self._watch.told_all(2 * event for event in events)
        loaded: int = getattr(self._worker, "_load_hwm", -1)
        for number in [each for each in self._watch.shares if each % 2 and each // 2 <= loaded]:
            self._watch.release(number)

    def _finished(self, call: HeardCall) -> None:
        result = call.result
        if isinstance(stored := getattr(self._worker, "_store_hwm", None), int) and self._hears_below:
            self._land_stores(stored)
        loaded = set(result[1] or ()) if isinstance(result, tuple) and len(result) == 2 else set()
        polled = getattr(self._worker, "_load_hwm", None)
        for event, requests in jobs_of(self._meta, "load_event_to_reqs").items() if loaded else ():
            if self._hears_below and isinstance(polled, int) and event > polled and not loaded.isdisjoint(_iterable(requests)):
                self._watch.told(2 * event + 1)

    def _land_stores(self, latest: int) -> None:
        """All stores up to this event are over."""
        for number in [each for each, share in self._watch.shares.items() if share.life.state in OUT_AND_WANTED]:
            if not number % 2 and number // 2 <= latest:
                self._watch.landed(number, ok=True)


def is_worker(thing: object) -> bool:
    """Whether this is a worker side of a connector that can be watched."""
    return hasattr(thing, "start_kv_transfers") or (hasattr(thing, "handle_preemptions") and hasattr(thing, "_load_hwm"))


def _iterable(found: object) -> Iterable[CopierResult]:
    return found if isinstance(found, Iterable) else ()
