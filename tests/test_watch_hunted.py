"""Bugs that were planted in vLLM 0.33.0 and that the watch did not see, or that made it fall; each in its smallest form.

Goal: each rule falls where the bug is, and nothing falls where it is not. Method: the fakes of the other tests of the watch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define, field

from blocklife.engines.vllm.watch import Mode, Options, Watch, attach, attach_worker
from blocklife.engines.vllm.watch.engine import NUM_STILL
from blocklife.engines.vllm.watch.holders import CONNECTOR
from tests.test_watch_engine import NOTHING, Engine, idle
from tests.test_watch_mirror import Told, copy, jobs_are_told  # noqa: F401
from tests.test_watch_worker import LOAD, STORE, Driven, FakeWorker, event
from tests.test_watch_worker import FakeSimpleWorker as OldSimpleWorker
from tests.watch_fakes import FakeMeta, FakeOffloading, FakeRequest, FakeScheduler, FakeSimple, FakeSimpleMeta, load, store

COUNT = Options(mode=Mode.COUNT)


def rules(watch: Watch) -> list[str]:
    """The rules that fell."""
    return [violation.rule for violation in watch.violations]


# --- it does not fall itself --------------------------------------------------------------------------------------------------


def test_a_connector_may_hold_a_block_twice_by_one_call() -> None:
    """As SimpleCPUOffload of 0.33.0 does when a window has left a block that the pool has handed out again."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.mirror.taken(CONNECTOR, 0, [1, 1], [None, None])
    told.step()
    told.mirror.freed(CONNECTOR, [1, 1], [1, 1])
    told.end("a", [1])
    told.step()

    assert told.rules == []


def test_i6_falls_for_a_hit_of_one_block_at_two_places() -> None:
    """The watch goes on."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.hit("b", [1, 1])
    told.step()
    told.end("b", [1, 1])
    told.end("a", [1])
    told.step()

    assert told.rules == ["I6"]


def test_i4_falls_for_a_block_that_is_handed_out_twice_at_once() -> None:
    """The watch goes on."""
    told = Told()
    told.mirror.handed_out("a", 0, [1, 1], [0, 1])
    told.step()
    told.end("a", [1, 1])
    told.step()

    assert told.rules == ["I4"]


def test_i1_falls_for_a_load_of_two_slots_into_one_block() -> None:
    """The watch goes on."""
    told = Told()
    told.give("a", [1])
    told.step(loads=[copy(0, "a", 1, 1, at=None, slot=3)])
    told.mirror.reported(0, 1)
    told.step()

    assert told.rules == ["I1"]


# --- workers ------------------------------------------------------------------------------------------------------------------


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


class SimpleWorker(OldSimpleWorker):
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
    worker = SimpleWorker()
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


# --- what is loaded -----------------------------------------------------------------------------------------------------------


def test_i7_falls_for_a_load_into_another_place() -> None:
    """Blocks of the request, in another order; and a block that it does not hold."""
    told = Told()
    told.give("a", [1, 2])
    told.step(loads=[copy(0, "a", 2, 1, slot=3)])
    told.mirror.reported(0, 1)
    told.give("b", [3])
    told.step()
    told.step(loads=[copy(1, "a", 3, at=None, slot=3)])

    assert told.rules == ["I7", "I7", "I7"]


@define(eq=False)
class Request(FakeRequest):
    """A request with the names of its content."""

    block_hashes: list[bytes] = field(factory=list)


class Offloading(FakeOffloading):
    """One that looks up and lets in."""

    def __init__(self) -> None:
        super().__init__()
        self.config.kv_group_configs[0].tokens_per_block = 4

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        """What is found."""
        return 8, True

    def update_state_after_alloc(self, request: Request, blocks: object, num_external_tokens: int) -> None:
        """What is counted on."""

    def build_connector_meta(self, meta: Any) -> Any:
        """The plan of a step."""
        return meta.plan


@define
class Output:
    """What a scheduler has decided, and what the connector makes of it."""

    plan: FakeMeta
    num_scheduled_tokens: dict[str, int] = field(factory=dict)
    scheduled_new_reqs: list[SimpleNamespace] = field(factory=list)
    scheduled_cached_reqs: SimpleNamespace = field(factory=lambda: SimpleNamespace(req_ids=[], num_computed_tokens=[]))
    finished_req_ids: set[str] = field(factory=set)


def watched() -> tuple[FakeScheduler, Offloading, Watch]:
    """A scheduler with such a connector."""
    inner = Offloading()
    scheduler = FakeScheduler(SimpleNamespace(connector_scheduler=inner))
    return scheduler, inner, attach(scheduler, COUNT)


@pytest.mark.parametrize(("loaded", "fell"), [([1, 2], []), ([1], ["I7"]), ([], ["I7", "I7"])])
def test_i7_falls_where_less_is_loaded_than_was_counted_on(loaded: list[int], fell: list[str]) -> None:
    """A block of the hit for which no job is made."""
    scheduler, inner, watch = watched()
    request = Request("a")
    inner.get_num_new_matched_tokens(request, 0)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(request, [1, 2])
    blocks = SimpleNamespace(blocks=([manager.block_pool.blocks[1], manager.block_pool.blocks[2]],))
    inner.update_state_after_alloc(request, blocks, num_external_tokens=8)
    jobs = [load("a", loaded, [7, 8][: len(loaded)])] if loaded else []
    inner.build_connector_meta(Output(FakeMeta(load_jobs=dict(enumerate(jobs)))))

    assert rules(watch) == fell


def test_i6_falls_where_a_step_computes_for_a_request_that_loads() -> None:
    """Once; and not after the report."""
    scheduler, inner, watch = watched()
    request = Request("a")
    scheduler.kv_cache_manager.allocate_slots(request, [1])
    inner.build_connector_meta(Output(FakeMeta(load_jobs={0: load("a", [1], [7])})))
    inner.build_connector_meta(Output(FakeMeta(), {"b": 1}))
    before = rules(watch)
    inner.build_connector_meta(Output(FakeMeta(), {"a": 1}))
    inner.build_connector_meta(Output(FakeMeta(), {"a": 1}))

    assert (before, rules(watch)) == ([], ["I6"])


def test_i6_falls_for_a_slot_in_which_nothing_was_stored() -> None:
    """Of a host whose content was all seen to come; a reset of it is the same."""
    told = Told()
    told.mirror.host.sees_all = True
    told.give("a", [1])
    told.step(copy(0, "a", 1, slot=3))
    told.mirror.reported(0, 1)
    told.give("b", [2])
    told.step(loads=[copy(1, "b", 2, at=None, slot=4)])
    told.mirror.reset()
    told.mirror.reported(1, 1)
    told.give("c", [3])
    told.step(loads=[copy(2, "c", 3, at=None, slot=3)])

    assert told.rules == ["I6", "I6"]


# --- what is stored -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "fell"), [(4, []), (3, ["I8"])])
def test_i8_falls_for_a_store_of_what_is_not_computed(tokens: int, fell: list[str]) -> None:
    """A block of four tokens."""
    scheduler, inner, watch = watched()
    scheduler.kv_cache_manager.allocate_slots(Request("a"), [1])
    inner.know("a", [b"k0"])
    inner.file(0, b"k0")
    new = [SimpleNamespace(req_id="a", num_computed_tokens=0)]
    inner.build_connector_meta(Output(FakeMeta({0: store("a", [1], [7])}), {"a": tokens}, new))

    assert rules(watch) == fell


def test_i8_falls_for_a_store_of_the_null_block() -> None:
    """Which is nobody's content."""
    _, inner, watch = watched()
    inner.build_connector_meta(Output(FakeMeta({0: store("a", [0], [7])})))

    assert rules(watch) == ["I8"]


def test_i15_falls_for_sizes_that_add_up_and_do_not_fit_the_keys() -> None:
    """A block of the first group is counted to the second."""
    inner = FakeOffloading(num_groups=2)
    scheduler = FakeScheduler(SimpleNamespace(connector_scheduler=inner), 16, 2)
    watch = attach(scheduler, COUNT)
    keys = [[b"a0", b"a1"], [b"b0"]]
    states = [SimpleNamespace(offload_keys=each, block_ids=[], next_stored_chunk_idx=0) for each in keys]
    inner._req_status["a"] = SimpleNamespace(group_states=states, transfer_jobs=set())
    inner.file(0, b"a0", b"a1", b"b0")
    inner.build_connector_meta(FakeMeta({0: store("a", [1, 2, 3], [7, 8, 9], sizes=[1, 2], indices=[0, 0])}))

    assert rules(watch) == ["I15"]


def test_i1_falls_for_a_slot_that_one_job_writes_twice() -> None:
    """A slot that was free twice."""
    told = Told()
    told.give("a", [1, 2])
    told.step()
    told.step(copy(0, "a", 1, slot=3)._replace(pieces=[*copy(0, "a", 1, slot=3).pieces, *copy(0, "a", 2, at=1, slot=3).pieces]))

    assert told.rules == ["I1"]


def test_i5_falls_for_a_job_that_no_worker_hears_of() -> None:
    """The scheduler waits for it for ever."""
    _, inner, watch = watched()
    inner.file(0, b"k0")
    inner._job_counter = 1
    inner.build_connector_meta(Output(FakeMeta()))
    inner.build_connector_meta(Output(FakeMeta()))

    assert rules(watch) == ["I5"]


# --- who holds what -----------------------------------------------------------------------------------------------------------


def test_i4_falls_where_the_engine_counts_less_than_there_are() -> None:
    """A hold was let go of twice within the pool."""
    told = Told()
    told.give("a", [1])
    told.step()
    told.hit("b", [1])
    told.step()
    told.mirror.freed("b", [1], [0])
    told.step()

    assert told.rules == ["I4"]


@pytest.mark.parametrize("name", ["a", CONNECTOR])
def test_i4_falls_when_no_step_follows_and_somebody_who_is_gone_holds_blocks(name: str) -> None:
    """Nobody can have them again."""
    inner = FakeOffloading()
    scheduler = Engine(SimpleNamespace(connector_scheduler=inner))
    watch = attach(scheduler, COUNT)
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.kv_cache_manager.allocate_slots(Request("a"), [1, 2])
    inner.build_connector_meta(FakeMeta())
    if name == CONNECTOR:
        pool.touch([pool.blocks[1]])
        scheduler.kv_cache_manager.free(Request("a"))
    scheduler.goes_on = False
    idle(scheduler, 2)

    assert rules(watch) == ["I4"]


def test_i12_falls_where_requests_wait_and_nobody_holds_anything() -> None:
    """For the end of a store that was lost, say; of another kind of tier it may be an answer that they wait for."""
    inner = FakeOffloading()
    inner.manager = type("CPUOffloadingManager", (), {"_num_chunks": 32})()
    scheduler = Engine(SimpleNamespace(connector_scheduler=inner))
    watch = attach(scheduler, COUNT)
    scheduler.wait("a", "WAITING")
    idle(scheduler, 2 * NUM_STILL, NOTHING)

    assert rules(watch) == ["I12"]


def test_i6_falls_for_a_hit_under_another_name() -> None:
    """A block that was handed out again, and found under its old name."""
    inner = FakeOffloading()
    scheduler = FakeScheduler(SimpleNamespace(connector_scheduler=inner))
    manager = scheduler.kv_cache_manager
    manager.block_pool.hash_block_size = 4
    manager.coordinator.single_type_managers[0].block_size = 4
    watch = attach(scheduler, COUNT)
    manager.allocate_slots(Request("a", [b"h0", b"h1"]), [1, 2])
    inner.build_connector_meta(FakeMeta())
    for number, name in ((1, b"h0"), (2, b"h1")):
        manager.block_pool.blocks[number].block_hash = name + bytes(4)
    manager.allocate_slots(Request("b", [b"h0", b"h1"]), hits=[1, 2])
    inner.build_connector_meta(FakeMeta())
    before = rules(watch)
    manager.allocate_slots(Request("c", [b"h0", b"other"]), hits=[1, 2])
    inner.build_connector_meta(FakeMeta())

    assert (before, rules(watch)) == ([], ["I6"])


@define
class SimpleMeta(FakeSimpleMeta):
    """Newer releases say what is loaded, too."""

    load_gpu_blocks: list[int] = field(factory=list)
    load_cpu_blocks: list[int] = field(factory=list)


class Simple(FakeSimple):
    """One that looks up and lets in."""

    def __init__(self) -> None:
        super().__init__()
        self.hash_block_size, self.group_block_sizes = 4, [4]

    def get_num_new_matched_tokens(self, request: Request, computed: int) -> tuple[int, bool]:
        """All of it."""
        return 8, True

    def update_state_after_alloc(self, request: Request, blocks: SimpleNamespace, tokens: int) -> None:
        """It has blocks."""


@pytest.mark.parametrize(("slots", "fell"), [([7, 8], []), ([8, 7], ["I6", "I6"])])
def test_the_simple_connector_loads_what_belongs_to_the_place(slots: list[int], fell: list[str]) -> None:
    """What the workers are told of counts, and it may be one off."""
    inner = Simple()
    scheduler = FakeScheduler(SimpleNamespace(scheduler_manager=inner))
    manager = scheduler.kv_cache_manager
    pool = inner._gpu_block_pool = manager.block_pool
    watch = attach(scheduler, COUNT)
    manager.allocate_slots(Request("a"), [1, 2])
    inner.build_connector_meta(FakeSimpleMeta())
    for number, name in ((1, b"h0"), (2, b"h1")):
        pool.blocks[number].block_hash = name + bytes(4)
    inner.build_connector_meta(FakeSimpleMeta(0, [1, 2], [7, 8]))
    inner.update_connector_output(SimpleNamespace(kv_connector_worker_meta=SimpleNamespace(completed_store_events={0: 1})))
    request = Request("b", [b"h0", b"h1"])
    inner.get_num_new_matched_tokens(request, 0)
    manager.allocate_slots(request, [3, 4])
    inner.update_state_after_alloc(request, SimpleNamespace(blocks=([pool.blocks[3], pool.blocks[4]],)), 8)
    inner.loads("b", [3, 4], [7, 8])
    inner.build_connector_meta(SimpleMeta(load_gpu_blocks=[3, 4], load_cpu_blocks=slots))

    assert rules(watch) == fell
