"""The worker's side of the watch: each rule of its order falls, and the order that vLLM keeps is silent.

Goal: a worker that launches too early, too often, or goes on without a wait is named in that very call. Method: fakes with the
names of vLLM's two workers; what they do with a step's metadata is what a test says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define, field

from blocklife.engines.vllm.watch import Options, WatchError, WatchMode, WorkerWatch, attach_worker, detach, watch_of
from blocklife.engines.vllm.watch._worker import NUM_ENDED
from blocklife.errors import MisuseError
from tests.watch.watch_fakes import FakeMeta, load, store

COUNT = Options(mode=WatchMode.COUNT)


class FakeCopier:
    """A copier that says what a test says."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def submit_store(self, job_id: int, src: object, dst: object) -> bool:
        """Launch a store."""
        return True

    def submit_load(self, job_id: int, src: object, dst: object, expedited: bool = False) -> bool:
        """Launch a load."""
        return True

    def transfer_async(self, job_id: int, spec: object) -> bool:
        """Launch either, as older releases do."""
        return True

    def wait(self, job_ids: Iterable[int]) -> None:
        """Wait."""

    def get_finished(self) -> list[SimpleNamespace]:
        """What has landed."""
        done, self.done = self.done, []
        return [SimpleNamespace(job_id=number, success=True) for number in done]


class FakeWorker:
    """The worker of an OffloadingConnector; a step does what the test put in its place."""

    def __init__(self) -> None:
        self.worker = FakeCopier()
        self.before: Callable[[], object] = lambda: None
        self.loads: Callable[[], object] = lambda: None

    def handle_preemptions(self, meta: FakeMeta) -> None:
        """Ahead of the step."""
        self.before()

    def start_kv_transfers(self, meta: FakeMeta) -> None:
        """Its loads."""
        self.loads()

    def prepare_store_kv(self, meta: FakeMeta) -> None:
        """Take its stores in."""

    def get_finished(self, ids: set[str]) -> None:
        """Poll."""
        self.worker.get_finished()

    def shutdown(self) -> None:
        """Over."""


@define(eq=False)
class Driven:
    """A worker, its watch, and the steps of a model runner."""

    worker: FakeWorker = field(factory=FakeWorker)
    watch: WorkerWatch = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.watch = attach_worker(self.worker, COUNT)

    def step(
        self, meta: FakeMeta, before: Callable[[], object] = lambda: None, loads: Callable[[], object] = lambda: None
    ) -> None:
        """One step."""
        self.worker.before, self.worker.loads = before, loads
        self.worker.handle_preemptions(meta)
        self.worker.start_kv_transfers(meta)
        self.worker.prepare_store_kv(meta)
        self.worker.get_finished(set())

    @property
    def rules(self) -> list[str]:
        """The rules that fell."""
        return [violation.rule for violation in self.watch.violations]

    def store(self, number: int) -> bool:
        """Launch a store."""
        return self.worker.worker.submit_store(number, None, None)

    def load(self, number: int) -> bool:
        """Launch a load."""
        return self.worker.worker.submit_load(number, None, None)

    def wait(self, *numbers: int) -> bool:
        """Wait for jobs."""
        self.worker.worker.wait(set(numbers))
        return True


STORE = FakeMeta({0: store("a", [1], [7])})
LOAD = FakeMeta(load_jobs={0: load("a", [1], [7])})
SYNC = FakeMeta(load_jobs={0: load("a", [1], [7], sync=True)})


def test_the_order_that_vllm_keeps_is_silent() -> None:
    """Stores a step later, waits, loads, and a store that its own step flushes."""
    driven = Driven()
    driven.step(STORE)
    driven.step(FakeMeta(load_jobs={1: load("b", [2], [8])}), before=lambda: driven.store(0), loads=lambda: driven.load(1))
    flushed = FakeMeta({2: store("b", [2], [9])}, jobs_to_flush={0, 2})
    driven.step(flushed, before=lambda: (driven.store(2), driven.wait(0, 2)))
    driven.worker.worker.done = [0, 1, 2]
    driven.step(FakeMeta())

    assert driven.rules == []
    assert driven.watch.shares == {}
    assert driven.watch.steps == 4


def test_older_releases_launch_both_ways_by_one_method() -> None:
    """Which way a job goes is known from the step's metadata."""
    driven = Driven()
    driven.step(STORE)
    driven.step(
        FakeMeta(load_jobs={1: load("b", [2], [8])}),
        before=lambda: driven.worker.worker.transfer_async(0, None),
        loads=lambda: driven.worker.worker.transfer_async(1, None),
    )
    driven.worker.worker.done = [0, 1]
    driven.step(FakeMeta())

    assert driven.rules == []


def test_i8_falls_for_a_store_in_the_step_that_computes_it() -> None:
    """What it stores is not there yet."""
    driven = Driven()
    driven.step(STORE, loads=lambda: driven.store(0))

    assert driven.rules == ["I8"]
    assert driven.watch.violations[0].request == "a"


def test_i3_falls_for_a_job_that_is_launched_twice() -> None:
    """Its history says when it was launched first."""
    driven = Driven()
    driven.step(LOAD, loads=lambda: (driven.load(0), driven.load(0)))

    assert driven.rules == ["I3"]
    assert driven.watch.violations[0].history[-1] == "step 1: job 0 is launched"


def test_i3_falls_for_a_job_that_no_step_named() -> None:
    """Whoever launches it made it up."""
    driven = Driven()
    driven.step(FakeMeta(), loads=lambda: driven.load(4))

    assert driven.rules == ["I3"]


@pytest.mark.parametrize("waited", [(), (3,)])
def test_i1_falls_for_a_flush_without_a_wait(waited: tuple[int, ...]) -> None:
    """No wait, or one for something else; told once, although the step goes on."""
    driven = Driven()
    driven.step(STORE)
    driven.step(FakeMeta(jobs_to_flush={0}), before=lambda: (driven.store(0), driven.wait(*waited)))

    assert driven.rules == ["I1"]
    assert "job 0 still runs" in driven.watch.violations[0].what


def test_i1_falls_for_a_flush_of_what_was_never_launched() -> None:
    """A wait for it waits for nothing."""
    driven = Driven()
    driven.step(STORE)
    driven.step(FakeMeta(jobs_to_flush={0}), before=lambda: driven.wait(0))

    assert driven.rules == ["I1"]
    assert "was never launched" in driven.watch.violations[0].what


def test_i1_falls_for_a_load_ahead_of_the_wait() -> None:
    """The wait comes, and too late."""
    driven = Driven()
    driven.step(STORE)
    meta = FakeMeta(load_jobs={1: load("b", [2], [8])}, jobs_to_flush={0})
    driven.step(meta, before=lambda: (driven.store(0), driven.load(1), driven.wait(0)))

    assert driven.rules == ["I1"]


def test_a_flush_of_a_job_that_has_landed_needs_no_wait() -> None:
    """The scheduler had not heard of it yet."""
    driven = Driven()
    driven.step(STORE)
    driven.step(FakeMeta(), before=lambda: driven.store(0))
    driven.worker.worker.done = [0]
    driven.step(FakeMeta())
    driven.step(FakeMeta(jobs_to_flush={0}))

    assert driven.rules == []


@pytest.mark.parametrize(("wait", "fell"), [(True, []), (False, ["I6"])])
def test_i6_falls_for_a_needed_load_without_a_wait(wait: bool, fell: list[str]) -> None:
    """The step computes with what it brings."""
    driven = Driven()
    driven.step(SYNC, loads=lambda: (driven.load(0), driven.wait(0) if wait else None))

    assert driven.rules == fell


def test_i9_falls_for_a_second_report_and_i3_for_one_out_of_nothing() -> None:
    """A job that is over, and one that never was."""
    driven = Driven()
    driven.step(LOAD, loads=lambda: driven.load(0))
    driven.worker.worker.done = [0]
    driven.step(FakeMeta())
    driven.worker.worker.done = [0, 5]
    driven.step(FakeMeta())

    assert driven.rules == ["I9", "I3"]


def test_a_mock_in_the_place_of_a_copier_is_left_alone() -> None:
    """Nothing is set on it, and nothing is claimed of what it does."""
    worker = FakeWorker()
    below = SimpleNamespace(wait=lambda ids: None, get_finished=list)
    vars(worker)["worker"] = below
    before = dict(vars(below))
    watch = attach_worker(worker, COUNT)
    worker.handle_preemptions(STORE)
    worker.start_kv_transfers(SYNC)
    worker.handle_preemptions(FakeMeta(jobs_to_flush={0}))

    assert vars(below) == before
    assert watch.violations == []


def test_a_worker_that_shuts_down_owes_nothing() -> None:
    """Its jobs are gone with it."""
    driven = Driven()
    driven.step(STORE)
    driven.worker.shutdown()
    driven.step(FakeMeta(jobs_to_flush={0}))

    assert driven.rules == []


def test_a_strict_watch_raises_in_the_workers_call() -> None:
    """With the worker's own story."""
    worker = FakeWorker()
    attach_worker(worker, Options(mode=WatchMode.STRICT))
    worker.loads = lambda: worker.worker.submit_load(4, None, None)
    with pytest.raises(WatchError, match="I3 at step 1"):
        worker.start_kv_transfers(FakeMeta())


def test_a_long_run_of_a_worker_keeps_only_what_is_alive() -> None:
    """Shares go with their jobs, and the memory of ended ones is bounded."""
    driven = Driven()
    for number in range(NUM_ENDED + 100):
        driven.worker.worker.done = [number - 1] if number else []
        meta = FakeMeta(load_jobs={number: load("a", [1], [7])})
        driven.step(meta, loads=functools.partial(driven.load, number))

    assert driven.rules == []
    assert len(driven.watch.shares) == 1
    assert len(driven.watch._ended) == NUM_ENDED


def test_a_worker_can_be_let_alone_again() -> None:
    """Both it and its copier have their own methods then."""
    driven = Driven()
    driven.step(STORE)
    detach(driven.worker)

    assert watch_of(driven.worker) is None
    assert "handle_preemptions" not in vars(driven.worker)
    assert "wait" not in vars(driven.worker.worker)


def test_a_worker_that_is_watched_keeps_its_watch() -> None:
    """Who asks for another one has to detach it first."""
    driven = Driven()
    same = [attach_worker(driven.worker), attach_worker(driven.worker, driven.watch.options)]
    with pytest.raises(MisuseError, match="detach it first"):
        attach_worker(driven.worker, Options(sample=7))
    wrong: Any = "strict"
    with pytest.raises(MisuseError, match=r"Mode\.STRICT"):
        attach_worker(driven.worker, wrong)

    assert same == [driven.watch, driven.watch]
    assert watch_of(driven.worker) is driven.watch


def test_what_is_no_worker_is_refused() -> None:
    """With a word on what to attach to."""
    with pytest.raises(MisuseError, match="not a worker that can be watched"):
        attach_worker(object())


# --- what is told of its jobs, and what becomes of them -----------------------------------------------------------------------


class Replicated(FakeWorker):
    """A rank that stores nothing, since another one has the same content: it says at once that a store is over."""

    _is_store_writer = False


def test_a_rank_that_writes_no_stores_is_silent() -> None:
    """A flush of what it never launches is none; and nothing is kept."""
    driven = Driven(Replicated())
    driven.step(STORE)
    driven.step(FakeMeta({1: store("a", [2], [8])}, jobs_to_flush={0, 1}), before=lambda: driven.wait(0, 1))

    assert driven.rules == []
    assert driven.watch.shares == {}


class Telling(FakeWorker):
    """A worker that tells what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.tells: dict[int, int] = {}
        self.loaded: set[str] = set()

    def get_finished(self, ids: set[str]) -> Any:
        """Poll."""
        self.worker.get_finished()
        return set(), self.loaded

    def build_connector_worker_meta(self) -> SimpleNamespace:
        """What the scheduler hears."""
        return SimpleNamespace(completed_jobs=self.tells)


@pytest.mark.parametrize("launched", [True, False])
def test_i6_falls_for_a_store_that_is_told_as_over_and_is_not(launched: bool) -> None:
    """It still runs, or was never launched; that it lands later is no second report."""
    worker = Telling()
    driven = Driven(worker)
    driven.step(STORE)
    driven.step(FakeMeta(), before=lambda: launched and driven.store(0))
    worker.tells = {0: 1}
    worker.build_connector_worker_meta()
    worker.worker.done = [0] if launched else []
    driven.step(FakeMeta())

    assert driven.rules == ["I6"]


@pytest.mark.parametrize(("told", "fell"), [({0: 1}, []), ({}, ["I5"])])
def test_i5_falls_for_a_store_that_has_landed_and_is_not_told(told: dict[int, int], fell: list[str]) -> None:
    """Once, by the report that should have had it."""
    worker = Telling()
    driven = Driven(worker)
    driven.step(STORE)
    worker.worker.done = [0]
    driven.step(FakeMeta(), before=lambda: driven.store(0))
    worker.tells = told
    worker.build_connector_worker_meta()
    worker.tells = {}
    worker.build_connector_worker_meta()

    assert driven.rules == fell


def test_i6_falls_for_a_request_that_is_told_as_loaded_and_is_not() -> None:
    """In the call that tells it."""
    worker = Telling()
    driven = Driven(worker)
    worker.loaded = {"a"}
    driven.step(LOAD, loads=lambda: driven.load(0))

    assert driven.rules == ["I6"]


def test_i5_falls_for_a_store_that_is_never_launched() -> None:
    """Once the step is over that should have launched it."""
    driven = Driven()
    driven.step(STORE)
    driven.step(FakeMeta())
    before = driven.rules
    driven.step(FakeMeta())
    driven.step(FakeMeta())

    assert (before, driven.rules) == ([], ["I5"])


def test_i8_falls_for_a_store_with_other_places_than_its_step_has_named() -> None:
    """Its slots were mixed up while it was held back."""
    driven = Driven()
    driven.step(FakeMeta({0: store("a", [1, 2], [7, 8])}))
    job = store("a", [1, 2], [8, 7])
    driven.step(FakeMeta(), before=lambda: driven.worker.worker.submit_store(0, job.src_spec, job.dst_spec))

    assert driven.rules == ["I8"]


def test_an_older_worker_may_pass_over_a_wait_for_what_its_step_has_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is launched a step later, and the block that is waited for was only hit."""
    monkeypatch.setattr("blocklife.engines.vllm.watch._worker.launches_flushed", lambda: False)
    driven = Driven()
    driven.step(FakeMeta({0: store("a", [1], [7])}, jobs_to_flush={0}), before=lambda: driven.wait(0))
    driven.step(FakeMeta(), before=lambda: driven.store(0))

    assert driven.rules == []


# --- SimpleCPUOffload's worker ------------------------------------------------------------------------------------------------


class FakeBackend:
    """Its copier."""

    def launch_copy(self, source: object, target: object, *, is_store: bool, event_idx: int, events_list: list[int]) -> None:
        """Launch an event."""
        events_list.append(event_idx)


class FakeSimpleWorker:
    """SimpleCPUOffload's worker."""

    def __init__(self) -> None:
        self._backend = FakeBackend()
        self._load_events: list[int] = []
        self._store_events: list[int] = []
        self._load_hwm = -1
        self.syncs = True
        self.completed: dict[int, int] = {}

    def bind_connector_metadata(self, meta: object) -> None:
        """A step begins."""

    def handle_preemptions(self, meta: SimpleNamespace) -> None:
        """Wait for everything, if it does as it should."""
        if meta.need_flush and self.syncs:
            self._load_events.clear()
            self._store_events.clear()

    def build_connector_worker_meta(self) -> SimpleNamespace:
        """What has landed."""
        done, self.completed = self.completed, {}
        return SimpleNamespace(completed_store_events=done)


def event(store_event: int = -1, load_event: int = -1, *, need_flush: bool = False) -> SimpleNamespace:
    """The metadata of a step."""
    return SimpleNamespace(store_event=store_event, load_event=load_event, need_flush=need_flush)


@pytest.mark.parametrize(("syncs", "fell"), [(True, []), (False, ["I1", "I1"])])
def test_the_simple_worker_must_wait_for_all_it_has(syncs: bool, fell: list[str]) -> None:
    """When a request was preempted."""
    worker = FakeSimpleWorker()
    worker.syncs = syncs
    watch = attach_worker(worker, COUNT)
    worker.bind_connector_metadata(event(0, 0))
    worker._backend.launch_copy(None, None, is_store=True, event_idx=0, events_list=worker._store_events)
    worker._backend.launch_copy(None, None, is_store=False, event_idx=0, events_list=worker._load_events)
    worker.handle_preemptions(event(need_flush=True))
    worker.completed, worker._load_hwm = {0: 1}, 0
    worker.build_connector_worker_meta()

    assert [violation.rule for violation in watch.violations] == fell
    assert watch.shares == {}


def test_the_simple_worker_launches_an_event_once() -> None:
    """I3 for the second time, and for one that no step named."""
    worker = FakeSimpleWorker()
    watch = attach_worker(worker, COUNT)
    worker.bind_connector_metadata(event(0))
    for number in (0, 0, 9):
        worker._backend.launch_copy(None, None, is_store=True, event_idx=number, events_list=worker._store_events)

    assert [violation.rule for violation in watch.violations] == ["I3", "I3"]


class TellingSimpleWorker(FakeSimpleWorker):
    """One that can be asked what is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self._store_hwm = -1
        self.loaded: set[str] = set()

    def get_finished(self, ids: set[str]) -> Any:
        """Poll."""
        return None, self.loaded


def test_i6_falls_for_events_of_the_simple_worker_that_are_told_as_over_and_are_not() -> None:
    """A load and a store."""
    worker = TellingSimpleWorker()
    watch = attach_worker(worker, COUNT)
    meta = event(0, 0)
    meta.load_event_to_reqs = {0: ["a"]}
    worker.bind_connector_metadata(meta)
    worker._backend.launch_copy(None, None, is_store=True, event_idx=0, events_list=worker._store_events)
    worker._backend.launch_copy(None, None, is_store=False, event_idx=0, events_list=worker._load_events)
    worker.loaded, worker.completed = {"a"}, {0: 1}
    worker.get_finished(set())
    worker.build_connector_worker_meta()

    assert [violation.rule for violation in watch.violations] == ["I6", "I6"]


@pytest.mark.parametrize(("told", "fell"), [({0: 1}, []), ({}, ["I5"])])
def test_i5_falls_for_an_event_of_the_simple_worker_that_is_over_and_is_not_told(told: dict[int, int], fell: list[str]) -> None:
    """Once, by the report that should have had it."""
    worker = TellingSimpleWorker()
    watch = attach_worker(worker, COUNT)
    worker.bind_connector_metadata(event(0))
    worker._backend.launch_copy(None, None, is_store=True, event_idx=0, events_list=worker._store_events)
    worker._store_hwm = 0
    worker.get_finished(set())
    worker.completed = dict(told)
    worker.build_connector_worker_meta()
    worker.build_connector_worker_meta()

    assert [violation.rule for violation in watch.violations] == fell
