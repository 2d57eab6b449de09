"""What a step plans is held against what its requests count on, what is computed, and what blocks are called.

Goal: a plan that loads too little, stores what is not there, or computes with what is still to come is named in that very step.
Method: fakes with vLLM's names; a lookup, an admission and a step say what a test says.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import define, field

from blocklife.engines.vllm.watch import Options, Watch, WatchMode, attach
from tests.watch.watch_fakes import (
    FakeMeta,
    FakeOffloading,
    FakeRequest,
    FakeScheduler,
    FakeSimple,
    FakeSimpleMeta,
    load,
    store,
)

COUNT = Options(mode=WatchMode.COUNT)


def rules(watch: Watch) -> list[str]:
    """The rules that fell."""
    return [violation.rule for violation in watch.violations]


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


# --- what is loaded -----------------------------------------------------------------------------------------------------------


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


def test_what_is_on_the_device_need_not_be_loaded() -> None:
    """The lookup was told of four tokens there, and only those behind them are counted on."""
    scheduler, inner, watch = watched()
    request = Request("a")
    inner.get_num_new_matched_tokens(request, 4)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(request, [1, 2])
    blocks = SimpleNamespace(blocks=([manager.block_pool.blocks[1], manager.block_pool.blocks[2]],))
    inner.update_state_after_alloc(request, blocks, num_external_tokens=4)
    inner.build_connector_meta(Output(FakeMeta(load_jobs={0: load("a", [2], [8], index=1)})))

    assert rules(watch) == []


def test_i7_falls_for_what_has_a_name_before_it_is_loaded() -> None:
    """A block that the very step has handed out cannot have come already, whatever it is called."""
    scheduler, inner, watch = watched()
    request = Request("a")
    inner.get_num_new_matched_tokens(request, 0)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(request, [1])
    manager.block_pool.blocks[1].block_hash = b"h0" + bytes(4)
    inner.update_state_after_alloc(request, SimpleNamespace(blocks=([manager.block_pool.blocks[1]],)), num_external_tokens=4)
    inner.build_connector_meta(Output(FakeMeta()))

    assert rules(watch) == ["I7"]


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


def test_a_step_that_computes_for_a_request_that_loads_is_told_before_the_engine_falls() -> None:
    """I6, and the engine's own error."""
    scheduler, inner, watch = watched()
    scheduler.kv_cache_manager.allocate_slots(Request("a"), [1])
    inner.build_connector_meta(Output(FakeMeta(load_jobs={0: load("a", [1], [7])})))
    with pytest.raises(AttributeError):
        inner.build_connector_meta(SimpleNamespace(num_scheduled_tokens={"a": 1}))

    assert rules(watch) == ["I6"]


# --- what is hit --------------------------------------------------------------------------------------------------------------


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


def test_i5_falls_for_a_job_that_no_worker_hears_of() -> None:
    """The scheduler waits for it for ever."""
    _, inner, watch = watched()
    inner.file(0, b"k0")
    inner._job_counter = 1
    inner.build_connector_meta(Output(FakeMeta()))
    inner.build_connector_meta(Output(FakeMeta()))

    assert rules(watch) == ["I5"]


# --- SimpleCPUOffloadConnector ------------------------------------------------------------------------------------------------


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


def test_i8_falls_for_a_store_of_a_block_without_a_name() -> None:
    """The simple connector stores what the pool can find, and nothing else."""
    inner = FakeSimple()
    scheduler = FakeScheduler(SimpleNamespace(scheduler_manager=inner))
    pool = inner._gpu_block_pool = scheduler.kv_cache_manager.block_pool
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(Request("a"), [1, 2])
    pool.blocks[1].block_hash = b"h0" + bytes(4)
    inner.build_connector_meta(FakeSimpleMeta())
    inner.build_connector_meta(FakeSimpleMeta(0, [1, 2], [7, 8]))

    assert rules(watch) == ["I8"]
