"""The worker's side of the watch: each rule of its order falls, and the order that vLLM keeps is silent.

Goal: a worker that launches too early, too often, or goes on without a wait is named in that very call. Method: fakes with the
names of vLLM's two workers; what they do with a step's metadata is what a script says (`tests.watch.script`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from blocklife.engines.vllm.watch import Options, WatchError, WatchMode, attach_worker, detach, watch_of
from blocklife.errors import MisuseError
from blocklife.watch._records import NUM_ENDED
from tests.plays import play
from tests.watch.script import Case, cases
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
        self.loaded: set[str] = set()

    def handle_preemptions(self, meta: FakeMeta) -> None:
        """Ahead of the step."""
        self.before()

    def start_kv_transfers(self, meta: FakeMeta) -> None:
        """Its loads."""
        self.loads()

    def prepare_store_kv(self, meta: FakeMeta) -> None:
        """Take its stores in."""

    def get_finished(self, ids: set[str]) -> tuple[set[str], set[str]]:
        """Poll."""
        self.worker.get_finished()
        return set(), self.loaded

    def shutdown(self) -> None:
        """Over."""


class Replicated(FakeWorker):
    """A rank that stores nothing, since another one has the same content: it says at once that a store is over."""

    _is_store_writer = False


class Telling(FakeWorker):
    """A worker that tells what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.tells: dict[int, int] = {}

    def build_connector_worker_meta(self) -> SimpleNamespace:
        """What the scheduler hears."""
        return SimpleNamespace(completed_jobs=self.tells)


class Driven:
    """A worker, its watch, and the steps of a model runner."""

    def __init__(self, worker: FakeWorker | None = None) -> None:
        self.worker = worker or FakeWorker()
        self.watch = attach_worker(self.worker, COUNT)
        self.meta = FakeMeta()
        self.acts: list[list[Callable[[], object]]] = [[], []]

    def names(self, kind: str, number: int, request: str, blocks: list[int], slots: list[int], sync: bool = False) -> None:
        """The metadata of the next step name a job."""
        if kind == "store":
            self.meta.store_jobs[number] = store(request, blocks, slots)
        else:
            self.meta.load_jobs[number] = load(request, blocks, slots, sync=sync)

    def flush(self, *numbers: int) -> None:
        """They say that these are to be waited for."""
        self.meta.jobs_to_flush = set(numbers)

    def ahead(self, verb: str, *given: object) -> None:
        """What the next step does ahead of its forward pass."""
        self.acts[0].append(functools.partial(getattr(self, verb), *given))

    def within(self, verb: str, *given: object) -> None:
        """What it does when its loads are due."""
        self.acts[1].append(functools.partial(getattr(self, verb), *given))

    def step(self) -> None:
        """One step."""
        meta, self.meta = self.meta, FakeMeta()
        (before, loads), self.acts = self.acts, [[], []]
        self.worker.before, self.worker.loads = (functools.partial(_all, acts) for acts in (before, loads))
        self.worker.handle_preemptions(meta)
        self.worker.start_kv_transfers(meta)
        self.worker.prepare_store_kv(meta)
        self.worker.get_finished(set())

    def store(self, number: int, blocks: list[int] | None = None, slots: list[int] | None = None) -> None:
        """Launch a store."""
        ends = [None if ids is None else SimpleNamespace(block_ids=ids) for ids in (blocks, slots)]
        self.worker.worker.submit_store(number, *ends)

    def load(self, number: int) -> None:
        """Launch a load."""
        self.worker.worker.submit_load(number, None, None)

    def transfer(self, number: int) -> None:
        """Launch either, as older releases do."""
        self.worker.worker.transfer_async(number, None)

    def wait(self, *numbers: int) -> None:
        """Wait for jobs."""
        self.worker.worker.wait(set(numbers))

    def land(self, *numbers: int) -> None:
        """The copier has ended these."""
        self.worker.worker.done = [*numbers]

    def tell(self, *numbers: int) -> None:
        """The worker tells the scheduler that these are over."""
        assert isinstance(self.worker, Telling)
        self.worker.tells = dict.fromkeys(numbers, 1)
        self.worker.build_connector_worker_meta()

    def tell_loaded(self, request: str) -> None:
        """The next step tells that a request is loaded."""
        self.worker.loaded = {request}

    def shutdown(self) -> None:
        """The worker is over."""
        self.worker.shutdown()

    def silent(self) -> None:
        """Nothing has fallen so far."""
        assert self.watch.counts == {}

    def done(self) -> None:
        """Nothing is remembered of any job."""
        assert self.watch.shares == {}


def _all(acts: Sequence[Callable[[], object]]) -> None:
    for act in acts:
        act()


CASES = cases("""
# --- the order that vLLM keeps
order silent
    # stores a step later, waits, loads, and a store that its own step flushes
    names store 0 a [1] [7]; step; names load 1 b [2] [8]; ahead store 0; within load 1; step
    names store 2 b [2] [9]; flush 0 2; ahead store 2; ahead wait 0 2; step; land 0 1 2; step; done
older-releases-launch-both-ways-by-one-method silent
    # which way a job goes is known from the step's metadata
    names store 0 a [1] [7]; step; names load 1 b [2] [8]; ahead transfer 0; within transfer 1; step; land 0 1; step; done
store-in-the-step-that-computes-it I8
    names store 0 a [1] [7]; within store 0; step
store-with-other-places I8 with other places
    # its slots were mixed up while it was held back
    names store 0 a [1,2] [7,8]; step; ahead store 0 [1,2] [8,7]; step
launched-twice I3
    names load 0 a [1] [7]; within load 0; within load 0; step
named-by-no-step I3
    within load 4; step
never-launched I5
    # once the step is over that should have launched it; told once
    names store 0 a [1] [7]; step; step; silent; step; step
shut-down silent
    names store 0 a [1] [7]; step; shutdown; flush 0; step

# --- waits
flush-without-a-wait I1 job 0 still runs
    # told once, although the step goes on
    names store 0 a [1] [7]; step; flush 0; ahead store 0; step
flush-with-another-wait I1 job 0 still runs
    names store 0 a [1] [7]; step; flush 0; ahead store 0; ahead wait 3; step
flush-of-what-was-never-launched I1 was never launched
    # a wait for it waits for nothing
    names store 0 a [1] [7]; step; flush 0; ahead wait 0; step
load-ahead-of-the-wait I1
    # the wait comes, and too late
    names store 0 a [1] [7]; step; names load 1 b [2] [8]; flush 0; ahead store 0; ahead load 1; ahead wait 0; step
flush-of-what-has-landed silent
    # the scheduler had not heard of it yet
    names store 0 a [1] [7]; step; ahead store 0; step; land 0; step; flush 0; step
load-that-the-step-needs I6
    names load 0 a [1] [7] sync=yes; within load 0; step
load-that-the-step-needs-and-waits-for silent
    names load 0 a [1] [7] sync=yes; within load 0; within wait 0; step

# --- reports
reported-again-and-out-of-nothing I9+I3
    names load 0 a [1] [7]; within load 0; step; land 0; step; land 0 5; step
told-as-loaded-and-is-not I6
    names load 0 a [1] [7]; tell_loaded a; within load 0; step
""")

TELLING = cases("""
told-while-it-runs I6 still runs
    # that it lands later is no second report
    names store 0 a [1] [7]; step; ahead store 0; step; tell 0; land 0; step
told-and-never-launched I6 was never launched
    names store 0 a [1] [7]; step; step; tell 0; step
landed-and-told silent
    names store 0 a [1] [7]; step; land 0; ahead store 0; step; tell 0; tell
landed-and-not-told I5
    # once, by the report that should have had it
    names store 0 a [1] [7]; step; land 0; ahead store 0; step; tell; tell
""")

REPLICATED = cases("""
rank-that-writes-no-stores silent
    # a flush of what it never launches is none
    names store 0 a [1] [7]; step; names store 1 a [2] [8]; flush 0 1; ahead wait 0 1; step; done
""")

OLDER = cases("""
wait-for-what-its-step-has-made silent
    # an older worker launches it a step later, and the block that is waited for was only hit
    names store 0 a [1] [7]; flush 0; ahead wait 0; step; ahead store 0; step
""")


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (kind, case)
        for kind, table in ((FakeWorker, CASES), (Telling, TELLING), (Replicated, REPLICATED), (None, OLDER))
        for case in table.values()
    ],
    ids=lambda each: each.name if isinstance(each, Case) else "",
)
def test_rule_falls_or_is_silent(kind: type[FakeWorker] | None, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the table says."""
    if kind is None:
        monkeypatch.setattr("blocklife.engines.vllm.watch._worker.launches_flushed", lambda: False)
    driven = Driven((kind or FakeWorker)())
    case.play(driven)

    case.check([(each.rule, each.what) for each in driven.watch.violations])


def test_violation_has_the_story_of_its_job() -> None:
    """When it was launched first, and for whom."""
    driven = Driven()
    play(driven, "names load 0 a [1] [7]; within load 0; within load 0; step")

    assert driven.watch.violations[0].history[-1] == "step 1: job 0 is launched"
    assert driven.watch.violations[0].request == "a"


def test_a_mock_in_the_place_of_a_copier_is_left_alone() -> None:
    """Nothing is set on it, and nothing is claimed of what it does."""
    worker = FakeWorker()
    below = SimpleNamespace(wait=lambda ids: None, get_finished=list)
    vars(worker)["worker"] = below
    before = dict(vars(below))
    watch = attach_worker(worker, COUNT)
    worker.handle_preemptions(FakeMeta({0: store("a", [1], [7])}))
    worker.start_kv_transfers(FakeMeta(load_jobs={1: load("a", [1], [7], sync=True)}))
    worker.handle_preemptions(FakeMeta(jobs_to_flush={0}))

    assert vars(below) == before
    assert watch.violations == []


def test_a_strict_watch_raises_in_the_workers_call() -> None:
    """With the worker's own story."""
    worker = FakeWorker()
    attach_worker(worker, Options(mode=WatchMode.STRICT))
    worker.loads = lambda: worker.worker.submit_load(4, None, None)
    with pytest.raises(WatchError, match="I3 at step 1"):
        worker.start_kv_transfers(FakeMeta())


def test_long_run_of_a_worker_keeps_only_what_is_alive() -> None:
    """Shares go with their jobs, and the memory of ended ones is bounded."""
    driven = Driven()
    for number in range(NUM_ENDED + 100):
        play(driven, f"land {number - 1}" if number else "land")
        play(driven, f"names load {number} a [1] [7]; within load {number}; step")

    assert driven.watch.counts == {}
    assert len(driven.watch.shares) == 1
    assert len(driven.watch._ended) == NUM_ENDED


def test_worker_can_be_let_alone_again() -> None:
    """Both it and its copier have their own methods then."""
    driven = Driven()
    play(driven, "names store 0 a [1] [7]; step")
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


# --- SimpleCPUOffload's worker ------------------------------------------------------------------------------------------------


class FakeBackend:
    """Its copier."""

    def launch_copy(self, source: object, target: object, *, is_store: bool, event_idx: int, events_list: list[int]) -> None:
        """Launch an event."""
        events_list.append(event_idx)


class FakeSimpleWorker:
    """SimpleCPUOffload's worker, its watch, and its steps."""

    def __init__(self) -> None:
        self._backend = FakeBackend()
        self._load_events: list[int] = []
        self._store_events: list[int] = []
        self._load_hwm = -1
        self.syncs = True
        self.completed: dict[int, int] = {}
        self.loaded: set[str] = set()
        self.watch = attach_worker(self, COUNT)

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

    def get_finished(self, ids: set[str]) -> Any:
        """Poll."""
        return None, self.loaded

    # What a test does with it.

    def begin(self, store: int = -1, load: int = -1) -> None:
        """A step with these events; the load is for request a."""
        meta = SimpleNamespace(store_event=store, load_event=load, need_flush=False, load_event_to_reqs={load: ["a"]})
        self.bind_connector_metadata(meta)

    def launch(self, kind: str, number: int) -> None:
        """Launch an event."""
        is_store = kind == "store"
        events = self._store_events if is_store else self._load_events
        self._backend.launch_copy(None, None, is_store=is_store, event_idx=number, events_list=events)

    def preempt(self, syncs: bool = True) -> None:
        """A request was preempted."""
        self.syncs = syncs
        self.handle_preemptions(SimpleNamespace(need_flush=True))

    def land(self, store: int = -1, load: int = -1) -> None:
        """All events up to these are over, as far as newer releases say."""
        vars(self)["_store_hwm"], self._load_hwm = store, load

    def tell(self, *events: int, loaded: str = "") -> None:
        """The worker tells that these stores are over, and that this request is loaded."""
        self.completed, self.loaded = dict.fromkeys(events, 1), {loaded} if loaded else set()
        self.get_finished(set())
        self.build_connector_worker_meta()

    def done(self) -> None:
        """Nothing is remembered of any event."""
        assert self.watch.shares == {}


SIMPLE = cases("""
waits-for-all-it-has silent
    begin 0 0; launch store 0; launch load 0; preempt; land 0 0; tell 0; done
does-not-wait I1+I1
    begin 0 0; launch store 0; launch load 0; preempt no; land 0 0; tell 0; done
event-launched-twice-and-named-by-no-step I3+I3
    begin 0; launch store 0; launch store 0; launch store 9
told-as-over-and-are-not I6+I6
    land; begin 0 0; launch store 0; launch load 0; tell 0 loaded=a
over-and-told silent
    land; begin 0; launch store 0; land 0; tell 0; tell
over-and-not-told I5
    # once, by the report that should have had it
    land; begin 0; launch store 0; land 0; tell; tell
older-release-knows-only-from-the-report silent
    begin 0; launch store 0; tell 0; done
""")


@pytest.mark.parametrize("case", SIMPLE.values(), ids=SIMPLE)
def test_rule_falls_or_is_silent_for_the_simple_worker(case: Case) -> None:
    """As the table says."""
    worker = FakeSimpleWorker()
    case.play(worker)

    case.check([(each.rule, each.what) for each in worker.watch.violations])
