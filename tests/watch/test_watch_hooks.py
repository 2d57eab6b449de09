"""The hooks of the watch: what a scheduler, its pool and its connectors do arrives at the mirror in its words.

Goal: nothing is misheard. Method: fakes with vLLM's names do what a test says; the rules that fall, and what the ledger then
holds, tell what was heard. A detached watch leaves no trace.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from attrs import frozen

from blocklife.engines.vllm.watch import Options, Watch, WatchError, WatchMode, attach, detach, watch_of
from blocklife.errors import MisuseError
from blocklife.states import Block
from tests.watch.watch_fakes import (
    FakeMeta,
    FakeOffloading,
    FakeOldJob,
    FakeRequest,
    FakeScheduler,
    FakeSimpleMeta,
    FakeSpec,
    load,
    offloading,
    reported,
    simple,
    store,
)

COUNT = Options(mode=WatchMode.COUNT)
A, B = FakeRequest("a"), FakeRequest("b")


@frozen
class Counted(FakeRequest):
    """A request that says how far it is."""

    num_computed_tokens: int = 0


def rules(watch: Watch) -> list[str]:
    """The rules that fell."""
    return [violation.rule for violation in watch.violations]


# --- the pool ---------------------------------------------------------------------------------------------------------------


def test_blocks_are_heard_with_request_group_and_position() -> None:
    """A second group, and a place behind hits: the story tells all three."""
    scheduler, inner = offloading(num_groups=2)
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [3])
    manager.allocate_slots(A, [4, 5], group=1)
    manager.allocate_slots(B, [6], hits=[4], group=1)
    inner.build_connector_meta(FakeMeta())

    assert watch.mirror.story.history(3)[-1].endswith("handed out to a (group 0, position 0)")
    assert watch.mirror.story.history(5)[-1].endswith("handed out to a (group 1, position 1)")
    assert watch.mirror.story.history(4)[-1].endswith("taken by b")
    assert watch.mirror.story.history(6)[-1].endswith("handed out to b (group 1, position 1)")
    assert watch.mirror.ledger.blocks.refs(4) == 2
    assert watch.mirror.ledger.blocks.group(6) == 1


def test_a_block_deep_in_a_table_is_found() -> None:
    """New blocks stand at the end of a table, hits at its start."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeMeta())
    manager.allocate_slots(B, [2, 3, 4, 5, 6, 7, 8, 9, 10], hits=[1])
    inner.build_connector_meta(FakeMeta())

    assert watch.mirror.holders.stands("b", 0, 0) == watch.mirror.holders.life(1)
    assert watch.mirror.holders.stands("b", 0, 9) == watch.mirror.holders.life(10)


def test_a_window_that_slides_on_lets_go_and_a_request_that_ends_lets_go_of_all() -> None:
    """Nothing is held at last, by anybody."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1, 2])
    manager.allocate_slots(A, [3], drops=1)
    inner.build_connector_meta(FakeMeta())
    held = dict(watch.mirror.holders.where)
    inner.request_finished(A)
    manager.free(A)
    inner.build_connector_meta(FakeMeta())

    assert set(held) == {2, 3}
    assert watch.mirror.holders.where == {}
    assert watch.counts == {}


@pytest.mark.parametrize("drops", [2, 3])
@pytest.mark.parametrize("hits", [False, True])
def test_i4_falls_where_the_block_in_which_the_next_window_begins_is_not_there(drops: int, hits: bool) -> None:
    """Of thirteen tokens in blocks of four, a window of six reads the last five: computed by the request itself, or a hit."""
    scheduler = FakeScheduler(SimpleNamespace(connector_scheduler=FakeOffloading()))
    manager = scheduler.kv_cache_manager
    vars(manager.coordinator.single_type_managers[0]).update(sliding_window=6, block_size=4)
    watch = attach(scheduler, COUNT)
    if hits:
        manager.allocate_slots(Counted("a"), [5], hits=[1, 2, 3, 4][drops:], drops=drops, num_new_computed_tokens=13)
    else:
        manager.allocate_slots(Counted("a"), [1, 2, 3, 4])
        manager.allocate_slots(Counted("a", 13), [5], drops=drops)
    watch.mirror.tell()

    assert rules(watch) == (["I4"] if drops == 3 else [])


def test_blocks_that_are_freed_late_are_freed_by_who_gave_them_up() -> None:
    """Popped now, freed in nobody's name when the step that may write them is over; another holder keeps its hold."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeMeta())
    manager.allocate_slots(B, hits=[1])
    late = manager.pop_blocks_for_free(A)
    inner.build_connector_meta(FakeMeta())
    manager.block_pool.free_blocks(late)
    inner.build_connector_meta(FakeMeta())
    held = [holder.name for holder in watch.mirror.holders.where[1]]
    manager.free(B)
    inner.build_connector_meta(FakeMeta())

    assert held == ["b"]
    assert watch.counts == {}


def test_a_hold_that_the_pool_was_not_asked_for_is_not_somebody_elses() -> None:
    """Some code counts a hold up by hand and lets go of it through the pool."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeMeta())
    block = manager.block_pool.blocks[1]
    block.ref_cnt += 1
    manager.block_pool.free_blocks([block])
    inner.build_connector_meta(FakeMeta())
    manager.free(A)
    inner.build_connector_meta(FakeMeta())

    assert watch.counts == {}


def test_blocks_of_another_pool_and_the_null_block_are_passed_over() -> None:
    """A pool may be asked to free what belongs to another one."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    pool = scheduler.kv_cache_manager.block_pool
    pool.blocks[2].pool = object()
    pool.touch([pool.blocks[0], pool.blocks[2]])
    pool.free_blocks([pool.blocks[0], pool.blocks[2]])
    inner.build_connector_meta(FakeMeta())

    assert watch.mirror.holders.where == {}
    assert not watch.mirror.story.knows(2)


def test_evictions_and_resets_of_the_pool_stand_in_the_story() -> None:
    """They break no rule, and explain much."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1])
    manager.block_pool.evict_blocks({1, 2})
    manager.block_pool.reset_prefix_cache()
    inner.build_connector_meta(FakeMeta())
    history = watch.mirror.story.history(1)

    assert "evicted from the prefix cache" in history[-2]
    assert history[-1] == "step 1: the prefix cache is reset"


def test_a_watch_that_comes_late_knows_who_holds_what() -> None:
    """Of a table, of a table that shares, and of the connector; their releases are lawful, a second one is not."""
    scheduler, inner = offloading()
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1, 2])
    manager.allocate_slots(B, [3], hits=[1])
    manager.block_pool.touch([manager.block_pool.blocks[3], manager.block_pool.blocks[4]])
    inner._job_counter = 9
    watch = attach(scheduler, COUNT)
    inner.update_connector_output(reported(j8=1))
    manager.free(A)
    manager.free(B)
    manager.block_pool.free_blocks([manager.block_pool.blocks[3], manager.block_pool.blocks[4]])
    inner.build_connector_meta(FakeMeta())
    silent = rules(watch)
    manager.allocate_slots(A, [1])
    manager.block_pool.blocks[1].ref_cnt += 1
    manager.free(A)
    manager.allocate_slots(FakeRequest("c"), [1])
    manager.coordinator.single_type_managers[0].req_to_blocks["a"] = [manager.block_pool.blocks[1]]
    manager.free(A)
    inner.build_connector_meta(FakeMeta())

    assert silent == []
    assert rules(watch) == ["I4"]


def test_a_sample_is_heard_with_its_places_and_of_other_blocks_only_the_jobs() -> None:
    """Every second block: its place in the table is right; a load of others that ends at once disturbs no store."""
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(mode=WatchMode.COUNT, sample=2))
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [3, 4, 5, 6])
    inner.build_connector_meta(FakeMeta({0: store("a", [3, 5], [7, 8])}))
    manager.allocate_slots(A, [7])
    inner.build_connector_meta(FakeMeta(load_jobs={1: load("a", [7], [9], sync=True)}))
    known = [watch.mirror.holders.stands("a", 0, at) for at in range(4)]
    inner.update_connector_output(reported(j0=1, j1=1))
    inner.build_connector_meta(FakeMeta())

    assert known == [None, watch.mirror.holders.life(4), None, watch.mirror.holders.life(6)]
    assert watch.counts == {}
    assert watch.mirror.jobs.left_behind() == []


# --- OffloadingConnector ------------------------------------------------------------------------------------------------------


def test_a_store_and_a_load_are_heard_with_slots_and_keys() -> None:
    """The slot that was stored is the one that is loaded, and the ledger follows both."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    inner.know("a", [b"k0", b"k1"])
    inner.file(0, b"k0", b"k1")
    manager.allocate_slots(A, [1, 2])
    inner.build_connector_meta(FakeMeta({0: store("a", [1, 2], [7, 8])}))
    inner.update_connector_output(reported(j0=1))
    inner.know("b", [b"k0"])
    inner.file(1, b"k0")
    manager.allocate_slots(B, [3])
    inner.build_connector_meta(FakeMeta(load_jobs={1: load("b", [3], [7])}))
    state = watch.mirror.ledger.blocks.state(3)
    inner.update_connector_output(reported(j1=1))
    inner.build_connector_meta(FakeMeta())

    assert watch.counts == {}
    assert watch.mirror.ledger.counts.moved == {"STORE": 2, "LOAD": 1}
    assert state is Block.LOADING


def test_a_load_of_a_slot_with_another_key_is_heard() -> None:
    """I6, with both keys."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    inner.know("a", [b"k0"])
    inner.file(0, b"k0")
    manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeMeta({0: store("a", [1], [7])}))
    inner.update_connector_output(reported(j0=1))
    inner.know("b", [b"other"])
    inner.file(1, b"other")
    manager.allocate_slots(B, [3])
    inner.build_connector_meta(FakeMeta(load_jobs={1: load("b", [3], [7])}))

    assert rules(watch) == ["I6"]


def test_older_releases_say_the_same_in_another_way() -> None:
    """Both ends of a job in one pair."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeMeta({0: FakeOldJob("a", (FakeSpec([1], [1], [0]), FakeSpec([7])))}))
    inner.update_connector_output(reported(j0=1))
    inner.build_connector_meta(FakeMeta())

    assert watch.mirror.ledger.counts.moved == {"STORE": 1}


@pytest.mark.parametrize(("flush", "fell"), [({0}, []), (set(), ["I1"])])
def test_a_flush_is_heard(flush: set[int], fell: list[str]) -> None:
    """With it a busy block may be handed out, without it not."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeMeta({0: store("a", [1], [7])}))
    inner.request_finished(A)
    manager.free(A)
    manager.allocate_slots(B, [1])
    inner.build_connector_meta(FakeMeta(jobs_to_flush=flush))

    assert rules(watch) == fell


def test_a_chunk_is_read_as_workers_read_it() -> None:
    """A hole inside a chunk shifts what comes after it, which the positions of its keys give away."""
    scheduler, inner = offloading(blocks_per_chunk=4)
    watch = attach(scheduler, COUNT)
    inner.know("a", [b"chunk"])
    inner.file(0, b"chunk")
    scheduler.kv_cache_manager.allocate_slots(A, [1, 2, 3, 4])
    inner.build_connector_meta(FakeMeta({0: store("a", [1, 3, 4], [7], indices=[0])}))

    assert rules(watch) == ["I8", "I8"]
    assert "stores block 3 for group 0, position 1, where block 2 stands" in watch.violations[0].what


def test_a_chunk_whose_first_blocks_are_missing_is_stored_where_it_belongs() -> None:
    """Its first block says where it stands, and the slot has the other parts only."""
    scheduler, inner = offloading(blocks_per_chunk=4)
    watch = attach(scheduler, COUNT)
    inner.know("a", [b"chunk"])
    inner.file(0, b"chunk")
    scheduler.kv_cache_manager.allocate_slots(A, [1, 2, 3, 4])
    inner.build_connector_meta(FakeMeta({0: store("a", [3, 4], [7], indices=[2])}))
    inner.update_connector_output(reported(j0=1))
    inner.know("b", [b"chunk"])
    inner.file(1, b"chunk")
    scheduler.kv_cache_manager.allocate_slots(B, [5, 6, 8, 9])
    inner.build_connector_meta(FakeMeta(load_jobs={1: load("b", [8, 9], [7], index=2)}))

    assert watch.counts == {}


def test_groups_of_a_connector_are_those_of_the_engine() -> None:
    """A connector that offloads the second of two groups calls it its first."""
    scheduler, inner = offloading(num_groups=2)
    del inner.config.kv_group_configs[0]
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    scheduler.kv_cache_manager.allocate_slots(A, [2], group=1)
    inner.build_connector_meta(FakeMeta({0: store("a", [2], [7])}))

    assert watch.counts == {}


def test_a_reset_that_leaves_somebody_waiting_is_heard() -> None:
    """I10: the request still counts on a job that nobody knows any more."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    inner.know("a", [])
    inner._req_status["a"].transfer_jobs.add(4)
    inner.reset_cache()

    assert rules(watch) == ["I10"]
    assert watch.violations[0].job == 4


@pytest.mark.parametrize(("goes_on", "fell"), [(True, []), (False, ["I5"])])
def test_what_is_out_when_no_step_follows_is_heard_once(goes_on: bool, fell: list[str]) -> None:
    """An engine that goes on will hear of its jobs; one that stops will not. A later report is lawful."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeMeta({0: store("a", [1], [7])}))
    scheduler.goes_on = goes_on
    scheduler.update_from_output(None)
    scheduler.update_from_output(None)
    inner.update_connector_output(reported(j0=1))
    inner.build_connector_meta(FakeMeta())

    assert rules(watch) == fell


# --- when the engine falls ----------------------------------------------------------------------------------------------------


def test_a_job_whose_sizes_do_not_add_up_is_told_before_the_engines_own_error() -> None:
    """I15, from what the engine stumbled over; then the engine's error goes on."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)

    class Spec:
        def __init__(self, block_ids: list[int], group_sizes: list[int]) -> None:
            if sum(group_sizes) != len(block_ids):
                raise AssertionError

    def fall() -> None:
        Spec([3, 4], [3])

    inner.fall = fall
    with pytest.raises(AssertionError):
        inner.build_connector_meta(FakeMeta())

    assert rules(watch) == ["I15"]


def test_what_is_called_so_elsewhere_is_no_description_of_a_job() -> None:
    """Where an engine puts jobs together, a table may have the name that blocks have in a job, and sizes may be half done."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)

    def fall() -> None:
        block_ids, group_sizes = [3, 4, 5], [1]
        raise KeyError(len(block_ids) - sum(group_sizes))

    inner.fall = fall
    with pytest.raises(KeyError):
        inner.build_connector_meta(FakeMeta())

    assert watch.counts == {}


def test_what_is_about_to_be_stored_is_looked_at_when_the_engine_falls() -> None:
    """I8 for the block that was handed out again; the other blocks of the request are right."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1, 2])
    inner.build_connector_meta(FakeMeta())
    manager.allocate_slots(A, [3], drops=1)
    manager.allocate_slots(B, [1])
    inner.know("a", [b"k0", b"k1", b"k2"], blocks=[1, 2, 3])

    def fall() -> None:
        req_id, num_offloadable_tokens = "a", 8
        raise KeyError(req_id, num_offloadable_tokens)

    inner.fall = fall
    with pytest.raises(KeyError):
        inner.build_connector_meta(FakeMeta())

    assert rules(watch) == ["I8"]
    assert "block 1 is about to be stored for group 0, position 0" in watch.violations[0].what


def test_a_strict_watch_raises_its_own_error_and_names_the_engines() -> None:
    """What the engine raised is the context of what the watch raises."""
    scheduler, inner = offloading()
    attach(scheduler, Options(mode=WatchMode.STRICT))

    def fall() -> None:
        raise KeyError(5)

    inner.fall = fall
    with pytest.raises(WatchError, match="I3") as caught:
        inner.update_connector_output(reported(j5=1))

    assert isinstance(caught.value.__context__, KeyError)


def test_an_engine_that_falls_by_itself_falls_by_itself() -> None:
    """Where no rule was broken its error is all there is, also under a strict watch."""
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(mode=WatchMode.STRICT))

    def fall() -> None:
        raise RuntimeError

    inner.fall = fall
    with pytest.raises(RuntimeError):
        inner.build_connector_meta(FakeMeta())
    with pytest.raises(RuntimeError):
        inner.update_connector_output(reported())

    assert watch.violations == []


# --- SimpleCPUOffloadConnector ------------------------------------------------------------------------------------------------


def test_the_simple_connector_is_followed_both_ways() -> None:
    """It holds the blocks of its transfers itself, also the targets of loads."""
    scheduler, inner = simple()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeSimpleMeta())
    pool.touch([pool.blocks[1]])
    inner.build_connector_meta(FakeSimpleMeta(0, [1], [7]))
    inner.update_connector_output(SimpleNamespace(kv_connector_worker_meta=SimpleNamespace(completed_store_events={0: 1})))
    pool.free_blocks([pool.blocks[1]])
    manager.allocate_slots(B, [2])
    pool.touch([pool.blocks[2]])
    inner.loads("b", [2], [7])
    inner.build_connector_meta(FakeSimpleMeta())
    inner.update_connector_output(SimpleNamespace(finished_recving={"b"}))
    pool.free_blocks([pool.blocks[2]])
    inner.build_connector_meta(FakeSimpleMeta())

    assert watch.counts == {}
    assert watch.mirror.counts["not followed"] == 0
    assert watch.mirror.ledger.counts.moved == {"STORE": 1, "LOAD": 1}


def test_a_block_that_the_simple_connector_stores_twice_at_once_is_heard() -> None:
    """I14."""
    scheduler, inner = simple()
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeSimpleMeta(0, [1], [7]))
    inner.build_connector_meta(FakeSimpleMeta(1, [1], [8]))

    assert rules(watch) == ["I14"]


@pytest.mark.parametrize("resets", [True, False])
def test_what_the_simple_connector_gave_up_may_be_stored_again(resets: bool) -> None:
    """Whether the reset could forget the host's content or not."""
    scheduler, inner = simple()
    watch = attach(scheduler, COUNT)
    inner.resets = resets
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeSimpleMeta(0, [1], [7]))
    inner.reset()
    inner.build_connector_meta(FakeSimpleMeta(1, [1], [8]))

    assert watch.counts == {}


def test_a_flush_of_the_simple_connector_is_one_of_everything() -> None:
    """A preempted request's block may be handed out behind it."""
    scheduler, inner = simple()
    watch = attach(scheduler, COUNT)
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeSimpleMeta(0, [1], [7]))
    manager.free(A)
    manager.allocate_slots(B, [1])
    inner.build_connector_meta(FakeSimpleMeta(need_flush=True))

    assert watch.counts == {}


# --- attaching ----------------------------------------------------------------------------------------------------------------


def test_each_of_several_connectors_has_a_mirror_of_its_own() -> None:
    """Their jobs have the same numbers and their slots too; one block may be stored by both at once."""
    first, second = FakeOffloading(), FakeOffloading()
    both = SimpleNamespace(
        _connectors=[SimpleNamespace(connector_scheduler=first), SimpleNamespace(connector_scheduler=second)]
    )
    scheduler = FakeScheduler(both)
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    for each in (first, second):
        each.build_connector_meta(FakeMeta({0: store("a", [1], [7])}))
    for each in (first, second):
        each.update_connector_output(reported(j0=1))
        each.build_connector_meta(FakeMeta())

    assert watch.counts == {}
    assert [mirror.ledger.counts.moved for mirror in watch.mirrors] == [{"STORE": 1}, {"STORE": 1}]


def test_detaching_leaves_no_trace() -> None:
    """The objects have their own methods again, and nothing is heard."""
    scheduler, inner = offloading()
    things = (scheduler, inner, scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool)
    before = [dict(vars(thing)) for thing in things]
    watch = attach(scheduler, COUNT)
    detach(scheduler)
    detach(scheduler)
    inner.update_connector_output(reported(j5=1))
    inner.build_connector_meta(FakeMeta())

    assert [vars(thing) for thing in things] == before
    assert watch_of(scheduler) is None
    assert watch.steps == 0


@pytest.mark.parametrize("options", [None, COUNT, Options(mode=WatchMode.COUNT)])
def test_who_asks_again_for_the_same_gets_the_watch_that_is_there(options: Options | None) -> None:
    """Also who does not care how it is watched."""
    scheduler, _ = offloading()
    watch = attach(scheduler, COUNT)

    assert attach(scheduler, options) is watch


@pytest.mark.parametrize("options", [Options(), Options(mode=WatchMode.STRICT), Options(mode=WatchMode.COUNT, sample=2)])
def test_who_asks_for_another_watch_is_not_given_the_one_that_is_there(options: Options) -> None:
    """A caller who counts on a strict watch must not go on under one that counts; the one that is there stays."""
    scheduler, _ = offloading()
    watch = attach(scheduler, COUNT)
    with pytest.raises(MisuseError, match=r"this Fake\w+ is watched with other options already \(detach it first\)"):
        attach(scheduler, options)

    assert watch_of(scheduler) is watch


@pytest.mark.parametrize("options", ["strict", WatchMode.STRICT, {"mode": "strict"}])
def test_how_to_watch_is_said_with_options(options: Any) -> None:
    """Also where it is watched already; nothing is listened to."""
    scheduler, inner = offloading()
    with pytest.raises(MisuseError, match=r"Options\(mode=WatchMode.STRICT\)"):
        attach(scheduler, options)
    heard = "build_connector_meta" in vars(inner)
    attach(scheduler)
    with pytest.raises(MisuseError, match=r"Options\(mode=WatchMode.STRICT\)"):
        attach(scheduler, options)

    assert not heard


def test_a_connector_that_is_driven_alone_can_be_watched() -> None:
    """Its scheduler then takes the watch over."""
    scheduler, inner = offloading()
    alone = attach(inner, COUNT)
    inner.build_connector_meta(FakeMeta())
    whole = attach(scheduler, COUNT)
    inner.build_connector_meta(FakeMeta())

    assert watch_of(inner) is None
    assert (alone.steps, whole.steps) == (1, 1)


@pytest.mark.parametrize("thing", [object(), FakeScheduler(None), FakeScheduler(SimpleNamespace(connector_scheduler=object()))])
def test_what_has_nothing_to_watch_is_refused(thing: object) -> None:
    """With a word on what to attach to, or why not."""
    with pytest.raises(MisuseError, match="has nothing to watch"):
        attach(thing)


def test_why_there_is_nothing_to_watch_is_told_as_it_is() -> None:
    """Our own connector offloads; it keeps a ledger of its own, also where another one is derived from it."""
    ours = type("BlocklifeConnector", (), {})
    derived = type("Derived", (ours,), {})
    for connector, why in (
        (None, "a scheduler without a connector has nothing to watch (it offloads nothing)"),
        (
            ours(),
            "a scheduler with BlocklifeConnector has nothing to watch (this connector keeps a ledger of its own, and is not",
        ),
        (derived(), "a scheduler with Derived has nothing to watch (this connector keeps a ledger of its own, and is not"),
        (
            object(),
            "a scheduler with object has nothing to watch (only OffloadingConnector and SimpleCPUOffloadConnector can be",
        ),
    ):
        with pytest.raises(MisuseError) as caught:
            attach(FakeScheduler(connector))

        assert why in str(caught.value)
