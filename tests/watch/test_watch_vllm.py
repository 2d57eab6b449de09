"""The watch over vLLM's scheduler, without vLLM: what its pool and its connectors do is heard, and each rule falls by it.

Goal: nothing is misheard, an engine that stands still or never ends is told of once, and one that merely waits is left alone.
Method: fakes with vLLM's names do what a script says (`tests.watch.script`); a detached watch leaves no trace.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blocklife.engines.vllm.watch import Options, Watch, WatchError, WatchMode, attach, detach, watch_of
from blocklife.engines.vllm.watch._engine import NUM_STILL
from blocklife.errors import MisuseError
from tests.plays import play
from tests.watch.script import Case, cases
from tests.watch.watch_fakes import (
    FakeMeta,
    FakeOffloading,
    FakeRequest,
    FakeScheduler,
    FakeSimple,
    VllmStage,
    offloading,
    reported,
    store,
)

COUNT, STRICT = Options(mode=WatchMode.COUNT), Options(mode=WatchMode.STRICT)
A, B = FakeRequest("a"), FakeRequest("b")

POOL = cases("""
deep-in-a-table silent
    # new blocks stand at the end of a table, hits at its start
    give a [1]; plan; give b [2,3,4,5,6,7,8,9,10] hits=[1]; plan; stands b 0 1; stands b 9 10
window-slides-on-and-request-ends silent
    give a [1,2]; give a [3] drops=1; plan; held 2 3; finish a; free a; plan; held
window-without-its-first-block I4
    # of thirteen tokens in blocks of four, a window of six reads the last five
    window 6 4; attach; give a [1,2,3,4]; asks a computed=13; give a [5] drops=3; plan
window-with-its-first-block silent
    window 6 4; attach; give a [1,2,3,4]; asks a computed=13; give a [5] drops=2; plan
window-of-hits-without-its-first-block I4
    window 6 4; attach; give a [5] hits=[4] drops=3 tokens=13; plan
window-of-hits-with-its-first-block silent
    window 6 4; attach; give a [5] hits=[3,4] drops=2 tokens=13; plan
freed-late silent
    # popped now, freed in nobody's name when the step that may write them is over; another holder keeps its hold
    give a [1]; plan; give b hits=[1]; pop a; plan; free_late; plan; holders 1 b; free b; plan
counted-by-hand silent
    # some code counts a hold up by hand and lets go of it through the pool
    give a [1]; plan; count_up 1; let_go 1; plan; free a; plan
null-block silent
    touch 0; let_go 0; plan; held; unknown 0
evictions-and-resets silent
    # they break no rule, and explain much
    give a [1]; evict 1 2; reset_pool; plan; story 1 evicted_from_the_prefix_cache 2; story 1 step_1:_the_prefix_cache_is_reset
late-watch silent
    # of a table, of a table that shares, and of the connector: all that is held may be let go of
    give a [1,2]; give b [3] hits=[1]; touch 3 4; attach; free a; free b; let_go 3 4; plan; held
late-watch-and-freed-twice I4+I4 but no request holds it // freed by c, which does not hold it
    give a [1,2]; attach; free a; plan; give c [1]; let_go 1; let_go 1; plan; give d [1]; count_up 1; plan; free c; plan
hit-by-another-name I6
    # a block that was handed out again, and found under its old name
    named_blocks 4; attach; asks a h0 h1; give a [1,2]; plan; name 1 h0; name 2 h1; asks b h0 h1; give b hits=[1,2]; plan
    silent; asks c h0 other; give c hits=[1,2]; plan
""")

OFFLOADING = cases("""
# --- what is heard
store-and-load silent
    # the slot that was stored is the one that is loaded, and the ledger follows both
    know a [k0,k1]; give a [1,2]; store 0 a [1,2] [7,8] keys=[k0,k1]; plan; report 0
    know b [k0]; give b [3]; load 1 b [3] [7] keys=[k0]; plan; state 3 LOADING; report 1; plan; moved 2 1
load-of-a-slot-with-another-key I6
    know a [k0]; give a [1]; store 0 a [1] [7] keys=[k0]; plan; report 0
    know b [other]; give b [3]; load 1 b [3] [7] keys=[other]; plan
older-release silent
    give a [1]; older_store 0 a [1] [7]; plan; report 0; plan; moved 1
flush silent
    give a [1]; store 0 a [1] [7]; plan; finish a; free a; give b [1]; plan flush=[0]
no-flush I1
    give a [1]; store 0 a [1] [7]; plan; finish a; free a; give b [1]; plan
reset-that-leaves-nobody-waiting silent
    know a []; reset; plan

# --- what a plan must be
loads-what-was-counted-on silent
    tokens_of_a_block 4; attach; counts_on a [1,2] 8; load 0 a [1,2] [7,8]; plan
loads-less-than-was-counted-on I7
    tokens_of_a_block 4; attach; counts_on a [1,2] 8; load 0 a [1] [7]; plan
loads-nothing-of-what-was-counted-on I7+I7
    tokens_of_a_block 4; attach; counts_on a [1,2] 8; plan
need-not-load-what-is-on-the-device silent
    # the lookup was told of four tokens there, and only those behind them are counted on
    tokens_of_a_block 4; attach; counts_on a [1,2] 4 4; load 0 a [2] [8] at=1; plan
named-before-it-is-loaded I7
    # a block that the very step has handed out cannot have come already, whatever it is called
    tokens_of_a_block 4; attach; name 1 h0; counts_on a [1] 4; plan
computes-for-a-request-that-loads I6
    # once; and not for another request
    give a [1]; load 0 a [1] [7]; plan; plan computes=b; silent; plan computes=a; plan computes=a
store-of-what-is-computed silent
    tokens_of_a_block 4; attach; give a [1]; know a [k0]; store 0 a [1] [7] keys=[k0]; plan computes=a tokens=4 new=yes
store-of-what-is-not-computed I8
    tokens_of_a_block 4; attach; give a [1]; know a [k0]; store 0 a [1] [7] keys=[k0]; plan computes=a tokens=3 new=yes
store-of-the-null-block I8
    store 0 a [0] [7]; plan
job-that-no-worker-hears-of I5
    # the scheduler waits for it for ever
    make 0 k0; plan; plan

# --- standing still
wait-for-each-other I12+I12 request a holds 2, request b holds 1 of the blocks that others wait for
    # told once; a second stand after a step that got ahead is told of again
    two_wait; idle 31; silent; idle 96; idle 1 3; idle 32
one-runs silent
    two_wait; runs a; idle 64
paused silent
    two_wait; pause; idle 64
one-waits-for-its-client silent
    two_wait; wait c WAITING_FOR_STREAMING_REQ; idle 64
copy-is-out silent
    two_wait; store 0 a [1] [7]; plan; idle 64
none-holds-anything silent
    # of a kind of tier whose answer they may wait for
    two_wait; free a; free b; idle 64
none-holds-anything-and-nothing-comes-from-below I12
    host_of_slots; attach; wait a WAITING; idle 64

# --- when no step follows
out-while-steps-follow silent
    give a [1]; store 0 a [1] [7]; plan; idle 2; report 0; plan
out-when-no-step-follows I5
    # once; a later report is lawful
    give a [1]; store 0 a [1] [7]; plan; wait a; stop; idle 2; report 0; plan
finished-and-holds-blocks I4
    give a [1,2]; plan; stop; idle 2
connector-holds-a-block I4
    give a [1,2]; plan; touch 1; free a; stop; idle 2
slots-that-nobody-can-have I4 2 slots of the host
    # while requests are there, a lookup may hold some
    lost_slots; attach; idle 2; silent; stop; idle 3
""")

CHUNKS = cases("""
hole-inside-a-chunk I8+I8 stores block 3 for group 0, position 1, where block 2 stands
    # it shifts what comes after it, which the positions of its keys give away
    know a [chunk]; give a [1,2,3,4]; store 0 a [1,3,4] [7] keys=[chunk]; plan
chunk-without-its-first-blocks silent
    # its first block says where it stands, and the slot has the other parts only
    know a [chunk]; give a [1,2,3,4]; store 0 a [3,4] [7] keys=[chunk] at=2; plan; report 0
    know b [chunk]; give b [5,6,8,9]; load 1 b [8,9] [7] keys=[chunk] at=2; plan
""")

GROUPS = cases("""
request-group-and-position silent
    give a [3]; give a [4,5] group=1; give b [6] hits=[4] group=1; plan
    story 3 handed_out_to_a_(group_0,_position_0); story 5 handed_out_to_a_(group_1,_position_1); story 4 taken_by_b
    story 6 handed_out_to_b_(group_1,_position_1)
groups-of-a-connector silent
    # one that offloads the second of two groups calls it its first
    only_second_group; attach; give a [1]; give a [2] group=1; store 0 a [2] [7]; plan
sizes-that-do-not-fit-the-keys I15
    # a block of the first group is counted to the second
    two_groups_of_keys; store 0 a [1,2,3] [7,8,9] keys=[a0,a1,b0] sizes=[1,2]; plan
""")

SAMPLE = cases("""
every-second-block silent
    # its place in the table is right; a load of others that ends at once disturbs no store
    give a [3,4,5,6]; store 0 a [3,5] [7,8]; plan; give a [7]; load 1 a [7] [9] sync=yes; plan
    stands a 0 none; stands a 1 4; stands a 2 none; stands a 3 6; report 0 1; plan; at_rest
""")

SIMPLE = cases("""
both-ways silent
    # it holds the blocks of its transfers itself, also the targets of loads
    give a [1]; simple_plan; touch 1; simple_plan 0 [1] [7]; stored 0; let_go 1
    give b [2]; touch 2; loads b [2] [7]; simple_plan; received b; let_go 2; simple_plan; moved 1 1
stored-twice-at-once I14
    give a [1]; simple_plan 0 [1] [7]; simple_plan 1 [1] [8]
stored-again-behind-a-reset silent
    give a [1]; simple_plan 0 [1] [7]; reset; simple_plan 1 [1] [8]
stored-again-behind-a-reset-that-keeps-the-content silent
    give a [1]; cannot_reset; simple_plan 0 [1] [7]; reset; simple_plan 1 [1] [8]
flush-is-one-of-everything silent
    # a preempted request's block may be handed out behind it
    give a [1]; simple_plan 0 [1] [7]; free a; give b [1]; simple_plan flush=yes
loads-what-belongs-to-the-place silent
    simple_content; counts_on b [3,4] 8; loads b [3,4] [7,8]; newer_plan [3,4] [7,8]
loads-the-slots-of-others I6+I6
    # what the workers are told of counts
    simple_content; counts_on b [3,4] 8; loads b [3,4] [7,8]; newer_plan [3,4] [8,7]
store-of-a-block-without-a-name I8
    # the simple connector stores what the pool can find, and nothing else
    give a [1,2]; name 1 h0; simple_plan; simple_plan 0 [1,2] [7,8]

# --- never coming to rest
each-stored-once silent
    # what a lazy engine owes when nobody is left
    give a [1,2]; simple_plan; free a; circle 1 2
stored-again-when-nobody-is-left I12
    # a second time means for ever
    give a [1,2]; simple_plan; free a; circle 1 2 1
stored-again-and-again-when-nobody-is-left I12
    give a [1,2]; simple_plan; free a; circle 1 2 1 2 1
stored-again-for-a-request silent
    # somebody came in between, and the host may have lost it
    give a [1,2]; simple_plan; free a; circle 1 2; wait b WAITING; idle; no_requests; circle 1 2
stores-go-round-while-requests-wait I12
    # what the stores hold is what the requests wait for: SimpleCPUOffload of 0.33.0, lazy, with a host that is small
    give a [1,2]; simple_plan; free a; wait b WAITING; circle 1 2 times=15; circle 1; silent; circle 1 2
stored-beside-a-request-that-runs silent
    give a [1,2]; simple_plan; free a; wait b RUNNING; circle 1 2 times=32
stored-beside-a-request-that-waits-for-a-compiler silent
    give a [1,2]; simple_plan; free a; wait b WAITING_FOR_GRAMMAR; circle 1 2 times=32
store-that-is-left-behind I5
    # and not I4 beside it: of that job nobody has heard the end
    give a [1,2]; simple_plan; free a; touch 1; simple_plan 0 [1] [7]; stop; idle 3
every-slot-is-free silent
    free_slots 31; attach; stop; idle 2
slot-that-nobody-can-have I4
    free_slots 30; attach; stop; idle 2
slot-that-two-can-have I4
    free_slots 32; attach; stop; idle 2
""")


class Stage(VllmStage):
    """With what only these tables need."""

    def tokens_of_a_block(self, tokens: int) -> None:
        """The connector says how many."""
        self.inner.config.kv_group_configs[0].tokens_per_block = tokens

    def make(self, number: int, *keys: str) -> None:
        """A job is made that is in no plan."""
        self.inner.file(number, *[key.encode() for key in keys])
        self.inner._job_counter = number + 1

    def two_wait(self) -> None:
        """Two requests hold blocks and wait, and nothing is out."""
        play(self, "give a [1,2]; give b [3]; plan; wait a; wait b")

    def lost_slots(self) -> None:
        """Of nine slots two are free, and five can be evicted."""
        self.host_of_slots(_num_allocated_chunks=9, _free_list=[3, 4], _num_evictable_cache_chunks=5)

    def free_slots(self, count: int) -> None:
        """So many of 32 blocks of the host are free; one is the null block."""
        vars(self.inner.cpu_block_pool).update(num_gpu_blocks=32, get_num_free_blocks=lambda: count)

    def only_second_group(self) -> None:
        """The connector offloads that alone."""
        del self.inner.config.kv_group_configs[0]

    def two_groups_of_keys(self) -> None:
        """A request has two chunks in one group, and one in another."""
        states = [
            SimpleNamespace(offload_keys=keys, block_ids=[], next_stored_chunk_idx=0) for keys in ([b"a0", b"a1"], [b"b0"])
        ]
        self.inner._req_status["a"] = SimpleNamespace(group_states=states, transfer_jobs=set())

    def simple_content(self) -> None:
        """Two blocks are named and stored in slots 7 and 8; another request has the same content."""
        vars(self.inner).update(hash_block_size=4, group_block_sizes=[4])
        self.inner.get_num_new_matched_tokens = lambda request, computed: (8, True)
        self.inner.update_state_after_alloc = lambda request, blocks, tokens: None
        detach(self.scheduler)
        self.attach()
        play(self, "give a [1,2]; simple_plan; name 1 h0; name 2 h1; simple_plan 0 [1,2] [7,8]; stored 0; asks b h0 h1")


TABLES: dict[str, tuple[dict[str, Case], Any]] = {
    "pool": (POOL, lambda: Stage(FakeOffloading())),
    "offloading": (OFFLOADING, lambda: Stage(FakeOffloading())),
    "chunks": (CHUNKS, lambda: Stage(FakeOffloading(blocks_per_chunk=4))),
    "groups": (GROUPS, lambda: Stage(FakeOffloading(num_groups=2), num_groups=2)),
    "sample": (SAMPLE, lambda: Stage(FakeOffloading(), sample=2)),
    "simple": (SIMPLE, lambda: Stage(FakeSimple())),
}
ALL = [(table, case) for table, (found, _) in TABLES.items() for case in found.values()]


@pytest.mark.parametrize(("table", "case"), ALL, ids=lambda each: each.name if isinstance(each, Case) else each)
def test_rule_falls_or_is_silent(table: str, case: Case) -> None:
    """As the table says."""
    watch = TABLES[table][1]().run(case.events)
    watch.mirror.catch_up()

    case.check([(each.rule, each.what) for each in watch.violations])


def rules(watch: Watch) -> list[str]:
    """The rules that fell."""
    return [violation.rule for violation in watch.violations]


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


def test_a_reset_that_leaves_somebody_waiting_is_heard() -> None:
    """I10: the request still counts on a job that nobody knows any more."""
    scheduler, inner = offloading()
    watch = attach(scheduler, COUNT)
    inner.know("a", [])
    inner._req_status["a"].transfer_jobs.add(4)
    inner.reset_cache()

    assert rules(watch) == ["I10"]
    assert watch.violations[0].job == 4


def test_another_connector_may_have_something_out() -> None:
    """Of which the watch hears nothing: requests that wait are left alone."""
    both = [SimpleNamespace(connector_scheduler=FakeOffloading()), object()]
    scheduler = FakeScheduler(SimpleNamespace(_connectors=both))
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    scheduler.requests["a"] = SimpleNamespace(status=SimpleNamespace(name="WAITING_FOR_REMOTE_KVS"))
    for _ in range(2 * NUM_STILL):
        scheduler.update_from_output(SimpleNamespace(total_num_scheduled_tokens=0))

    assert watch.counts == {}


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


def test_step_that_computes_for_a_request_that_loads_is_told_before_the_engine_falls() -> None:
    """I6, and the engine's own error."""
    stage = Stage(FakeOffloading())
    watch = stage.run("give a [1]; load 0 a [1] [7]; plan")
    with pytest.raises(AttributeError):
        stage.inner.build_connector_meta(SimpleNamespace(num_scheduled_tokens={"a": 1}))

    assert rules(watch) == ["I6"]


@pytest.mark.parametrize("call", ["schedule", "finish_requests", "reset_prefix_cache", "add_request"])
def test_what_was_wrong_is_told_before_the_engine_falls(call: str) -> None:
    """I4, of the step that never came to its plan; then the engine's own error goes on."""
    stage = Stage(FakeOffloading())
    watch = stage.run("give a [1]; give b [1]")
    stage.scheduler.falls = True
    with pytest.raises(KeyError, match="odd"):
        getattr(stage.scheduler, call)()

    assert rules(watch) == ["I4"]


@pytest.mark.parametrize(("free", "fell"), [(1, ["I13"]), (2, [])])
def test_pool_that_has_less_than_was_counted_is_told_of(free: int, fell: list[str]) -> None:
    """I13 when the pool refuses a request that was let in; another error of the pool says nothing of counts."""
    stage = Stage(FakeOffloading())

    def refuse(count: int) -> list[object]:
        raise ValueError(count)

    vars(stage.pool).update(get_new_blocks=refuse, get_num_free_blocks=lambda: free)
    stage.attach()
    with pytest.raises(ValueError, match="2"):
        stage.give("a", [1, 2])
    stage.watch.mirror.notify()

    assert rules(stage.watch) == fell


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
