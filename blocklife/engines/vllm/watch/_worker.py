"""Hooks on one worker's side of a connector: what it launches, what it waits for, and in which order.

It may be in another process than the scheduler, so it knows nothing of blocks: it keeps one share for each job, a machine with
the ledger's own job table. It requires the executor's order of a step: stores deferred from the previous step, the waits, loads
that the step needs, the forward pass, the other loads; new stores wait for the next step.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeAlias

from attrs import define, field

from blocklife.engines.vllm._versions import ENGINE
from blocklife.engines.vllm.watch._offloading import launches_flushed
from blocklife.errors import MisuseError
from blocklife.states import OUT_AND_WANTED, Job, JobLife
from blocklife.watch import CallsThrough, Options, Original, PartWatch, WatchViolation

NUM_ENDED = 4096
"""How many finished jobs are remembered, so that a repeated report is told from an unknown one."""
_HISTORY = 16
_RUNS = (Job.IN_FLIGHT,)


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
        self._ended: OrderedDict[int, bool] = OrderedDict()
        """Finished jobs, and for each whether the copier has yet to report it."""
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
        if not share.life.can(JobLife.submit.name):
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
            if share is not None and share.life.can(JobLife.flush.name):
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
        self._ended[number] = self.shares.pop(number).life.state in _RUNS
        if len(self._ended) > NUM_ENDED:
            self._ended.popitem(last=False)

    def must_be_quiet(self, numbers: Iterable[int], rule: str, why: str) -> None:
        """Check that each of these jobs is over, or has been waited for by now."""
        for number in numbers:
            share = self.shares.get(number)
            if share is not None and share.life.state is not Job.AWAITED:
                state = "was never launched" if share.life.state is Job.PLANNED else "still runs"
                self._violate(rule, f"{why}, but job {number} {state}", number)

    def notify(self) -> None:
        """Report the violations found."""
        if self._found:
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
    """Hooks on a worker, and on its copier as soon as there is one. What was found in a call is reported at its end."""

    def __init__(self, watch: WorkerWatch, worker: object) -> None:
        self._watch = watch
        self._worker = worker
        self._below: object = None
        self._meta: object = None
        self._calls = CallsThrough()
        self._calls_below = CallsThrough()
        watch.listen(self._calls_below)
        watch.listen(self._calls)

    def _hear(self, name: str, before: Callable[..., None] | None = None, after: Callable[..., None] | None = None) -> None:
        """Call *before* with what a method of the worker gets, and *after* with what it returns, and then with what it gets."""

        def through(original: Original, *args: object, **kwargs: object) -> object:
            if before is not None:
                before(*args, **kwargs)
            result = original(*args, **kwargs)
            if after is not None:
                after(result, *args, **kwargs)
            self._watch.notify()
            return result

        self._calls.add(self._worker, name, through)

    def _is_new(self, below: object) -> bool:
        """Whether the copier is another one than before; then the hooks on the former one are removed."""
        if below is self._below:
            return False
        self._calls_below.undo()
        self._below = below
        return True


class OffloadingWorkerHooks(WorkerHooks):
    """Hooks on an OffloadingConnectorWorker."""

    def __init__(self, watch: WorkerWatch, worker: object) -> None:
        super().__init__(watch, worker)
        self._flushed: set[int] = set()
        self._hear("handle_preemptions", self._begin, lambda *_, **__: self._wait_is_over())
        self._hear("start_kv_transfers", self._begin, self._started)
        self._hear("prepare_store_kv", self._begin)
        self._hear("get_finished", lambda *_, **__: self._begin(None), self._finished)
        self._hear("build_connector_worker_meta", after=self._told)
        self._hear("shutdown", lambda *_, **__: watch.shares.clear())

    # --- the connector's side -----------------------------------------------------------------------------------------------

    def _begin(self, meta: object, *_: object, **__: object) -> None:
        """The first call with the metadata of a step begins that step."""
        below = getattr(self._worker, "worker", None)
        if self._is_new(below):
            self._listen_below(below)
        if meta is None or meta is self._meta:
            return
        self._meta = meta
        self._watch.begins(launches=bool(self._calls_below))
        self._flushed = set(getattr(meta, "jobs_to_flush", None) or ())
        if not launches_flushed():  # older workers skip this wait, which is not needed: it is for a block that was hit
            self._flushed -= _mapping(getattr(meta, "store_jobs", None)).keys()
        # Where all ranks have the same content, a rank that writes no stores reports them at once.
        for name in ("load_jobs", "store_jobs") if getattr(self._worker, "_is_store_writer", True) else ("load_jobs",):
            for number, job in _mapping(getattr(meta, name, None)).items():
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

    def _started(self, result: object, meta: object, *_: object, **__: object) -> None:
        self._wait_is_over()
        jobs = _mapping(getattr(meta, "load_jobs", None))
        if self._calls_below:
            needed = [number for number, job in jobs.items() if getattr(job, "sync", False)]
            self._watch.must_be_quiet(needed, "I6", "the step computes with the content of a load")

    def _finished(self, result: object, *_: object, **__: object) -> None:
        if self._calls_below and isinstance(result, tuple) and len(result) == 2:
            self._watch.told_loaded(result[1] or ())

    def _told(self, result: object, *_: object, **__: object) -> None:
        """What is sent to the scheduler."""
        if self._calls_below:
            self._watch.told_all(_mapping(getattr(result, "completed_jobs", None)))

    def _wait_is_over(self) -> None:
        """Check, once a step, that the step's flushed jobs are over from here on."""
        if self._calls_below:
            self._watch.must_be_quiet(self._flushed, "I1", "the step goes on without a wait")
        self._flushed = set()

    # --- the copier's side --------------------------------------------------------------------------------------------------

    def _listen_below(self, below: object) -> None:
        """Hook the copier, unless it is a mock."""
        if hasattr(type(below), "wait") and hasattr(type(below), "get_finished"):
            self._calls_below.add(below, "submit_store", self._submit_store)
            self._calls_below.add(below, "submit_load", self._submit_load)
            self._calls_below.add(below, "transfer_async", self._transfer)
            self._calls_below.add(below, "wait", self._wait)
            self._calls_below.add(below, "get_finished", self._landed)

    def _submit_store(self, original: Original, number: int, *args: object, **kwargs: object) -> object:
        self._watch.submitted(number, is_store=True, places=_places(*args[:2]))
        return original(number, *args, **kwargs)

    def _submit_load(self, original: Original, number: int, *args: object, **kwargs: object) -> object:
        self._wait_is_over()
        self._watch.submitted(number, is_store=False, places=_places(*args[:2]))
        return original(number, *args, **kwargs)

    def _transfer(self, original: Original, number: int, *args: object, **kwargs: object) -> object:
        share = self._watch.shares.get(number)
        if share is None or share.is_store:
            return self._submit_store(original, number, *args, **kwargs)
        return self._submit_load(original, number, *args, **kwargs)

    def _wait(self, original: Original, numbers: Iterable[int], *args: object, **kwargs: object) -> object:
        wanted = set(numbers)
        result = original(wanted, *args, **kwargs)
        self._watch.waited(wanted)
        return result

    def _landed(self, original: Original, *args: object, **kwargs: object) -> object:
        results: list[CopierResult] = list(_iterable(original(*args, **kwargs)))
        for result in results:
            self._watch.landed(result.job_id, ok=bool(result.success))
        return results


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
        self._hear("bind_connector_metadata", self._bound)
        self._hear("handle_preemptions", after=self._preempted)
        self._hear("build_connector_worker_meta", after=self._told)
        self._hear("get_finished", after=self._finished)

    def _bound(self, meta: object, *_: object, **__: object) -> None:
        below = getattr(self._worker, "_backend", None)
        if self._is_new(below) and hasattr(type(below), "launch_copy"):
            self._calls_below.add(below, "launch_copy", self._launch)
        self._meta = meta
        self._watch.begins(launches=bool(self._calls_below))
        for kind, odd in (("store", 0), ("load", 1)):
            if isinstance(event := getattr(meta, f"{kind}_event", -1), int) and event >= 0:
                ends = [getattr(meta, f"{kind}_{place}_blocks", None) for place in (("cpu", "gpu") if odd else ("gpu", "cpu"))]
                places = _both(*ends)
                self._watch.planned(2 * event + odd, is_store=not odd, request=None, places=places)

    def _launch(self, original: Original, *args: object, **kwargs: object) -> object:
        if isinstance(event := kwargs.get("event_idx"), int):
            is_store = bool(kwargs.get("is_store"))
            number = 2 * event + (not is_store)
            if (share := self._watch.shares.get(number)) is not None:
                share.is_waited = True  # it waits on the device for the computation of the step
            self._watch.submitted(number, is_store=is_store, places=_both(*args[:2]))
        result = original(*args, **kwargs)
        self._watch.notify()
        return result

    def _preempted(self, result: object, meta: object, *_: object, **__: object) -> None:
        if getattr(meta, "need_flush", False):
            left = [*(getattr(self._worker, "_load_events", None) or ()), *(getattr(self._worker, "_store_events", None) or ())]
            if not left:
                self._watch.waited(list(self._watch.shares))
            running = [number for number, share in self._watch.shares.items() if share.life.state is not Job.PLANNED]
            self._watch.must_be_quiet(running, "I1", "the step goes on without a wait")

    def _told(self, result: object, *_: object, **__: object) -> None:
        events = _mapping(getattr(result, "completed_store_events", None))
        if self._calls_below:
            if not isinstance(getattr(self._worker, "_store_hwm", None), int):  # it is known only from the report
                self._land_stores(max(events, default=-1))
            self._watch.told_all(2 * event for event in events)
        loaded: int = getattr(self._worker, "_load_hwm", -1)
        for number in [each for each in self._watch.shares if each % 2 and each // 2 <= loaded]:
            self._watch.release(number)

    def _finished(self, result: object, *_: object, **__: object) -> None:
        if isinstance(stored := getattr(self._worker, "_store_hwm", None), int) and self._calls_below:
            self._land_stores(stored)
        loaded = set(result[1] or ()) if isinstance(result, tuple) and len(result) == 2 else set()
        polled = getattr(self._worker, "_load_hwm", None)
        for event, requests in _mapping(getattr(self._meta, "load_event_to_reqs", None)).items() if loaded else ():
            if self._calls_below and isinstance(polled, int) and event > polled and not loaded.isdisjoint(_iterable(requests)):
                self._watch.told(2 * event + 1)

    def _land_stores(self, latest: int) -> None:
        """All stores up to this event are over."""
        for number in [each for each, share in self._watch.shares.items() if share.life.state in OUT_AND_WANTED]:
            if not number % 2 and number // 2 <= latest:
                self._watch.landed(number, ok=True)


def is_worker(thing: object) -> bool:
    """Whether this is a worker side of a connector that can be watched."""
    return hasattr(thing, "start_kv_transfers") or (hasattr(thing, "handle_preemptions") and hasattr(thing, "_load_hwm"))


def _mapping(found: object) -> Mapping[int, object]:
    return found if isinstance(found, Mapping) else {}


def _iterable(found: object) -> Iterable[CopierResult]:
    return found if isinstance(found, Iterable) else ()
