"""What the watch asks of an engine as a whole: whether it gets ahead, comes to rest, and has told what was wrong when it falls.

Goal: an engine that stands still or never ends is told of once, and one that merely waits is left alone. Method: fakes with
vLLM's names take steps in which nothing is computed; an error comes up in each call in which an engine may raise.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from blocklife.engines.vllm.watch import Options, Watch, WatchError, WatchMode, attach
from blocklife.engines.vllm.watch._engine import NUM_STILL
from blocklife.watch import CONNECTOR
from tests.watch.watch_fakes import (
    FakeMeta,
    FakeOffloading,
    FakeRequest,
    FakeScheduler,
    FakeSimple,
    FakeSimpleMeta,
    reported,
    store,
)

COUNT, STRICT = Options(mode=WatchMode.COUNT), Options(mode=WatchMode.STRICT)
A, B = FakeRequest("a"), FakeRequest("b")
NOTHING, SOMETHING = SimpleNamespace(total_num_scheduled_tokens=0), SimpleNamespace(total_num_scheduled_tokens=3)


class Engine(FakeScheduler):
    """A scheduler that knows its requests."""

    def __init__(self, connector: object) -> None:
        super().__init__(connector)
        self.requests: dict[str, SimpleNamespace] = {}
        self.running: list[str] = []
        self.pause_state = SimpleNamespace(name="UNPAUSED")
        self.falls = False

    def wait(self, request: str, status: str = "WAITING_FOR_REMOTE_KVS") -> None:
        """A request has this status from now on."""
        self.requests[request] = SimpleNamespace(status=SimpleNamespace(name=status))

    def schedule(self) -> None:
        """One step is made."""
        if self.falls:
            raise KeyError("odd")

    finish_requests = reset_prefix_cache = add_request = schedule


def engine() -> tuple[Engine, FakeOffloading]:
    """With an OffloadingConnector."""
    inner = FakeOffloading()
    return Engine(SimpleNamespace(connector_scheduler=inner)), inner


def rules(watch: Watch) -> list[str]:
    """The rules that fell."""
    return [violation.rule for violation in watch.violations]


def idle(scheduler: Engine, steps: int, output: SimpleNamespace = NOTHING) -> None:
    """So many steps come back."""
    for _ in range(steps):
        scheduler.update_from_output(output)


# --- standing still -----------------------------------------------------------------------------------------------------------


def loaded() -> tuple[Engine, FakeOffloading, Watch]:
    """Two requests hold blocks and wait, and nothing is out."""
    scheduler, inner = engine()
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(A, [1, 2])
    scheduler.kv_cache_manager.allocate_slots(B, [3])
    inner.build_connector_meta(FakeMeta())
    scheduler.wait("a")
    scheduler.wait("b")
    return scheduler, inner, watch


def test_requests_that_wait_for_each_other_are_told_of_once() -> None:
    """I12, with who holds how much; a second stand after a step that got ahead is told of again."""
    scheduler, _, watch = loaded()
    idle(scheduler, NUM_STILL - 1)
    before = rules(watch)
    idle(scheduler, 3 * NUM_STILL)
    once = rules(watch)
    idle(scheduler, 1, SOMETHING)
    idle(scheduler, NUM_STILL)

    assert (before, once, rules(watch)) == ([], ["I12"], ["I12", "I12"])
    assert "request a holds 2, request b holds 1 of the blocks that others wait for" in watch.violations[0].what
    assert watch.violations[0].request == "a"


@pytest.mark.parametrize(
    "why", ["runs", "is paused", "waits for its client", "a copy is out", "another connector", "holds nothing"]
)
def test_an_engine_that_merely_waits_is_left_alone(why: str) -> None:
    """For something that it is not the one to bring."""
    scheduler, inner, watch = loaded()
    if why == "runs":
        scheduler.running = ["a"]
    elif why == "is paused":
        scheduler.pause_state = SimpleNamespace(name="PAUSED_ALL")
    elif why == "waits for its client":
        scheduler.wait("c", "WAITING_FOR_STREAMING_REQ")
    elif why == "a copy is out":
        inner.build_connector_meta(FakeMeta({0: store("a", [1], [7])}))
    elif why == "another connector":
        scheduler, _ = engine()
        both = [SimpleNamespace(connector_scheduler=FakeOffloading()), object()]
        scheduler.connector = SimpleNamespace(_connectors=both)
        watch = attach(scheduler, COUNT)
        scheduler.kv_cache_manager.allocate_slots(A, [1])
        scheduler.wait("a")
    else:
        scheduler.kv_cache_manager.free(A)
        scheduler.kv_cache_manager.free(B)
    idle(scheduler, 2 * NUM_STILL)

    assert watch.counts == {}


def test_i12_falls_where_requests_wait_and_nobody_holds_anything() -> None:
    """For the end of a store that was lost, say; of another kind of tier it may be an answer that they wait for."""
    inner = FakeOffloading()
    inner.manager = type("CPUOffloadingManager", (), {"_num_chunks": 32})()
    scheduler = Engine(SimpleNamespace(connector_scheduler=inner))
    watch = attach(scheduler, COUNT)
    scheduler.wait("a", "WAITING")
    idle(scheduler, 2 * NUM_STILL, NOTHING)

    assert rules(watch) == ["I12"]


# --- never coming to rest -----------------------------------------------------------------------------------------------------


def lazy() -> tuple[Engine, FakeSimple, Watch]:
    """Two blocks have content, and nobody is left."""
    inner = FakeSimple()
    scheduler = Engine(SimpleNamespace(scheduler_manager=inner))
    inner._gpu_block_pool = scheduler.kv_cache_manager.block_pool
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(A, [1, 2])
    inner.build_connector_meta(FakeSimpleMeta())
    scheduler.kv_cache_manager.free(A)
    return scheduler, inner, watch


def stored(scheduler: Engine, inner: FakeSimple, *blocks: int) -> None:
    """Each of these blocks is stored, one a step, and lands in the next."""
    for block in blocks:
        event = inner._store_event_counter
        inner._store_event_counter += 1
        inner.build_connector_meta(FakeSimpleMeta(event, [block], [5]))
        scheduler.update_from_output(NOTHING)
        inner.update_connector_output(
            SimpleNamespace(kv_connector_worker_meta=SimpleNamespace(completed_store_events={event: 1}))
        )


@pytest.mark.parametrize(("blocks", "fell"), [((1, 2), []), ((1, 2, 1), ["I12"]), ((1, 2, 1, 2, 1), ["I12"])])
def test_what_is_stored_again_when_nobody_is_left_never_ends(blocks: tuple[int, ...], fell: list[str]) -> None:
    """Once each is what a lazy engine owes; a second time means for ever, and is told of once."""
    scheduler, inner, watch = lazy()
    stored(scheduler, inner, *blocks)

    assert rules(watch) == fell


def test_what_is_stored_again_for_a_request_is_no_circle() -> None:
    """Somebody came in between, and the host may have lost it."""
    scheduler, inner, watch = lazy()
    stored(scheduler, inner, 1, 2)
    scheduler.wait("b", "WAITING")
    scheduler.update_from_output(NOTHING)
    scheduler.requests.clear()
    stored(scheduler, inner, 1, 2)

    assert rules(watch) == []


def test_i12_falls_for_stores_that_go_round_while_requests_wait() -> None:
    """What the stores hold is what the requests wait for: SimpleCPUOffload of 0.33.0, lazy, with a host that is small."""
    scheduler, inner, watch = lazy()
    scheduler.wait("b", "WAITING")
    stored(scheduler, inner, *(1 + step % 2 for step in range(NUM_STILL - 1)))
    before = rules(watch)
    stored(scheduler, inner, 1, 2)

    assert (before, rules(watch)) == ([], ["I12"])


@pytest.mark.parametrize("status", ["RUNNING", "WAITING_FOR_GRAMMAR"])
def test_what_is_stored_again_beside_a_request_that_may_go_on_is_no_circle(status: str) -> None:
    """What it will compute is not known yet."""
    scheduler, inner, watch = lazy()
    scheduler.wait("b", status)
    stored(scheduler, inner, *(1 + step % 2 for step in range(2 * NUM_STILL)))

    assert rules(watch) == []


# --- what is left when no step follows ----------------------------------------------------------------------------------------


def test_what_a_store_holds_that_is_left_behind_is_told_of_once() -> None:
    """I5, and not I4 beside it: of that job nobody has heard the end."""
    scheduler, inner, watch = lazy()
    pool = scheduler.kv_cache_manager.block_pool
    pool.touch([pool.blocks[1]])
    inner.build_connector_meta(FakeSimpleMeta(0, [1], [7]))
    scheduler.goes_on = False
    idle(scheduler, 3)

    assert rules(watch) == ["I5"]


@pytest.mark.parametrize("name", ["a", CONNECTOR])
def test_i4_falls_when_no_step_follows_and_somebody_who_is_gone_holds_blocks(name: str) -> None:
    """Nobody can have them again."""
    inner = FakeOffloading()
    scheduler = Engine(SimpleNamespace(connector_scheduler=inner))
    watch = attach(scheduler, COUNT)
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.kv_cache_manager.allocate_slots(A, [1, 2])
    inner.build_connector_meta(FakeMeta())
    if name == CONNECTOR:
        pool.touch([pool.blocks[1]])
        scheduler.kv_cache_manager.free(A)
    scheduler.goes_on = False
    idle(scheduler, 2)

    assert rules(watch) == ["I4"]


def test_i4_falls_once_for_slots_that_nobody_can_have_when_no_step_follows() -> None:
    """Nothing is out that could read or write them; while requests are there, a lookup may hold some."""
    inner = FakeOffloading()
    inner.manager = type("CPUOffloadingManager", (), {"_num_chunks": 32})()
    inner.manager.__dict__.update(_num_allocated_chunks=9, _free_list=[3, 4], _num_evictable_cache_chunks=5)
    scheduler = Engine(SimpleNamespace(connector_scheduler=inner))
    watch = attach(scheduler, COUNT)
    idle(scheduler, 2)
    before = rules(watch)
    scheduler.goes_on = False
    idle(scheduler, 3)

    assert (before, rules(watch)) == ([], ["I4"])
    assert "2 slots of the host" in watch.violations[0].what


@pytest.mark.parametrize(("free", "fell"), [(31, []), (30, ["I4"]), (32, ["I4"])])
def test_i4_falls_for_slots_of_the_simple_connector_that_nobody_can_have_or_two_can(free: int, fell: list[str]) -> None:
    """One of its blocks is the null block."""
    inner = FakeSimple(num_slots=32)
    inner.cpu_block_pool.__dict__.update(num_gpu_blocks=32, get_num_free_blocks=lambda: free)
    scheduler = Engine(SimpleNamespace(scheduler_manager=inner))
    watch = attach(scheduler, COUNT)
    scheduler.goes_on = False
    idle(scheduler, 2)

    assert rules(watch) == fell


# --- falling ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["schedule", "finish_requests", "reset_prefix_cache", "add_request"])
def test_what_was_wrong_is_told_before_the_engine_falls(call: str) -> None:
    """I4, of the step that never came to its plan; then the engine's own error goes on."""
    scheduler, _ = engine()
    watch = attach(scheduler, COUNT)
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    scheduler.kv_cache_manager.allocate_slots(B, [1])
    scheduler.falls = True
    with pytest.raises(KeyError, match="odd"):
        getattr(scheduler, call)()

    assert rules(watch) == ["I4"]


def test_a_strict_watch_raises_in_its_place_with_the_error_as_context() -> None:
    """Nobody loses sight of either."""
    scheduler, _ = engine()
    attach(scheduler, STRICT)
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    scheduler.kv_cache_manager.allocate_slots(B, [1])
    scheduler.falls = True
    with pytest.raises(WatchError, match="I4") as caught:
        scheduler.schedule()

    assert isinstance(caught.value.__context__, KeyError)


def test_an_engine_that_breaks_no_rule_falls_by_itself() -> None:
    """Nothing of the watch stands in the traceback as an error."""
    scheduler, inner = engine()
    attach(scheduler, STRICT)

    def fall() -> None:
        raise KeyError("odd")

    inner.fall = fall
    with pytest.raises(KeyError, match="odd") as caught:
        inner.update_connector_output(reported())

    assert caught.value.__context__ is None


@pytest.mark.parametrize(("free", "fell"), [(1, ["I13"]), (2, [])])
def test_a_pool_that_has_less_than_was_counted_is_told_of(free: int, fell: list[str]) -> None:
    """I13 when the pool refuses a request that was let in; another error of the pool says nothing of counts."""
    scheduler, _ = engine()
    pool = scheduler.kv_cache_manager.block_pool

    def refuse(count: int) -> list[object]:
        raise ValueError(count)

    vars(pool).update(get_new_blocks=refuse, get_num_free_blocks=lambda: free)
    watch = attach(scheduler, COUNT)
    with pytest.raises(ValueError, match="2"):
        scheduler.kv_cache_manager.allocate_slots(A, [1, 2])
    watch.mirror.tell()

    assert rules(watch) == fell
