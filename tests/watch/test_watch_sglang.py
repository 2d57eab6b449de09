"""The watch over SGLang, without SGLang: what each rule finds, what stays lawful, and that no ear is ever in the engine's way.

Goal: each rule is broken once, by a script of a few calls, and named; the same calls in a lawful order are silent. Method:
fakes with SGLang's names that do what a test says.
"""

from __future__ import annotations

import gc
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from blocklife.cli import main
from blocklife.engines.sglang import _versions as versions
from blocklife.engines.sglang.watch import LOGGER, Options, Watch, WatchError, WatchMode, attach, detach, watch_of
from blocklife.engines.sglang.watch import _plugin as plugin
from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._memory import MemoryEars
from blocklife.engines.sglang.watch._steps import NUM_TEXTS, LayerWaits, StepEars
from blocklife.engines.sglang.watch._tree import CoreEars, TreeEars
from blocklife.errors import MESSAGE_MAX, InvariantError, MisuseError
from blocklife.watch import OVERDUE, OVERDUE_AMONG_RANKS
from blocklife.watch._contents import STILL
from tests.watch.sglang_fakes import FakeEngine, FakeTree, slots_of

TEXT = [*range(100, 116)]
LONGER = [*TEXT, 7]
LOG = Options(mode=WatchMode.LOG)


def served(engine: FakeEngine) -> None:
    """A text is computed, kept, stored, evicted, loaded, and read by another request."""
    engine.take(1, 2, 3, 4)
    engine.compute("a", TEXT, [1, 2, 3, 4])
    engine.keep(TEXT, [1, 2, 3, 4])
    engine.store([1, 2, 3, 4], [0, 1, 2, 3])
    engine.land()
    engine.free(1, 2, 3, 4)
    loaded(engine)
    engine.land()


def loaded(engine: FakeEngine) -> None:
    """What lies on the host is loaded, and read by a step that waits for it."""
    producer = engine.load([0, 1, 2, 3], [5, 6, 7, 8])
    engine.take(9)
    engine.compute("b", LONGER, [5, 6, 7, 8, 9], 16, waits=producer)


def watched(ranks: int = 1) -> tuple[FakeEngine, Watch]:
    """An engine, and a watch over it."""
    engine = FakeEngine(ranks)
    return engine, attach(engine, LOG)


@pytest.mark.parametrize("jobs", [False, True], ids=["plain", "ledger"])
def test_lawful_life_of_a_text_is_silent(jobs: bool) -> None:
    """Nothing is found, and both copies have been followed to their end, with a ledger and without."""
    engine = FakeEngine()
    watch = attach(engine, Options(mode=WatchMode.STRICT, jobs=jobs))

    served(engine)
    engine.free(5, 6, 7, 8, 9)
    engine.free_host(0, 1, 2, 3)
    engine.rest()
    engine.tree_cache.reset()

    assert watch.counts == {}
    assert watch.lost is None
    assert watch.mirror.counts["jobs"] == 2
    assert watch.steps == 2
    assert watch.mirror.counts["not followed"] == 0


# --- each rule broken once ----------------------------------------------------------------------------------------------------


def handed_out_while_stored(engine: FakeEngine) -> None:
    """I1: the source of a store is freed and handed out before it has landed."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.store([1], [0])
    engine.free(1)
    engine.take(1)
    engine.compute("b", TEXT[4:8], [1])


def stored_into_free_slots(engine: FakeEngine) -> None:
    """I1: the host pages of a store are freed before it has landed."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.store([1], [0])
    engine.free_host(0)


def stored_without_order(engine: FakeEngine) -> None:
    """I2: a store of what a step in flight writes, and nothing orders it behind."""
    engine.controller.write_fence_stream = None
    engine.take(1)
    engine.step("a", TEXT[:4], [1])
    engine.store([1], [0])


def loaded_without_order(engine: FakeEngine) -> None:
    """I2: a load into what a step in flight has used."""
    engine.controller.load_fence_stream = None
    served(engine)
    engine.step("b", [*LONGER, 8], [5, 6, 7, 8, 9], 17)
    engine.free(9)
    engine.load([0], [9])


def freed_twice(engine: FakeEngine) -> None:
    """I4: a page is freed that nobody holds."""
    engine.take(1)
    engine.free(1)
    engine.free(1)


def freed_twice_on_the_host(engine: FakeEngine) -> None:
    """I4: the same on the host."""
    engine.store([], [0])
    engine.host.next = [0]
    engine.host.alloc(4)
    engine.free_host(0)
    engine.free_host(0)


def handed_out_twice(engine: FakeEngine) -> None:
    """I4: a page is handed out that is not free."""
    engine.take(1)
    engine.take(1)


def handed_out_from_nowhere(engine: FakeEngine) -> None:
    """I4: a page that the device has not; page 0 is for what nobody reads."""
    engine.take(0)


def kept_although_free(engine: FakeEngine) -> None:
    """I4: the tree keeps a page that is free."""
    engine.keep(TEXT[:4], [1])


def queued_for_ever(engine: FakeEngine) -> None:
    """I5: a load is queued for a request that goes away, and never launched."""
    served(engine)
    engine.allocator.next = [10]
    engine.controller.load(slots_of([0]))
    engine.rest()


def landed_unnoticed(engine: FakeEngine) -> None:
    """I5: the engine does not take note of what has landed."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.store([1], [0])
    engine.controller.ack_write_queue[0].finish_event.is_reached = True
    engine.rest(OVERDUE)


def read_before_it_is_loaded(engine: FakeEngine) -> None:
    """I6: a step reads what is being loaded, and does not wait."""
    served(engine)
    engine.load([0, 1, 2, 3], [10, 11, 12, 13])
    engine.take(14)
    engine.compute("c", LONGER, [10, 11, 12, 13, 14], 16)


def read_before_the_load_is_launched(engine: FakeEngine) -> None:
    """I6: a step reads what is queued to be loaded."""
    served(engine)
    engine.allocator.next = [10]
    engine.controller.load(slots_of([0]))
    engine.compute("c", TEXT[:6], [10, 9], 4)


def not_told_to_wait(engine: FakeEngine) -> None:
    """I6: the step should wait for its load, and nobody tells the device so."""
    engine.controller.layer_done_counter.set_consumer = lambda index: None  # type: ignore[method-assign]
    served(engine)


def read_somebody_else(engine: FakeEngine) -> None:
    """I6: a request reads the page of another text."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.take(2)
    engine.compute("b", TEXT[4:10], [1, 2], 4)


def reused_under_a_reader(engine: FakeEngine) -> None:
    """I6: a page that a request has read before is given to another request, and the first reads it again."""
    engine.take(1, 2)
    engine.compute("a", TEXT[:4], [1])
    engine.compute("a", TEXT[:5], [1, 2], 4)
    engine.free(1)
    engine.take(1)
    engine.compute("b", TEXT[4:8], [1])
    engine.compute("a", TEXT[:6], [1, 2], 5)


def read_what_is_free(engine: FakeEngine) -> None:
    """I6: a request reads a page that was freed."""
    engine.take(1, 2)
    engine.compute("a", TEXT[:4], [1])
    engine.free(1)
    engine.compute("a", TEXT[:5], [1, 2], 4)


def stored_before_it_is_computed(engine: FakeEngine) -> None:
    """I6: a page is stored into which nothing was computed."""
    engine.take(1)
    engine.store([1], [0])


def stored_in_part(engine: FakeEngine) -> None:
    """I6: a page is stored that is not full."""
    engine.take(1)
    engine.compute("a", TEXT[:3], [1])
    engine.store([1], [0])


def loaded_before_it_is_stored(engine: FakeEngine) -> None:
    """I6: a load reads what a store still writes."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.store([1], [0])
    engine.load([0], [2])


def landed_too_early(engine: FakeEngine) -> None:
    """I6: the engine takes a copy for landed that the device has not ended."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.store([1], [0])
    engine.controller.ack_write_queue.clear()
    engine.tree_cache.writing_check()


def freed_while_loaded(engine: FakeEngine) -> None:
    """I7: host pages are freed while a load reads them."""
    served(engine)
    engine.load([0], [10])
    engine.free_host(0)


def loaded_from_free_slots(engine: FakeEngine) -> None:
    """I7: the eviction for a load has freed the host pages that it will read."""
    served(engine)
    engine.free_host(0)
    engine.load([0], [10])


def reused_while_queued(engine: FakeEngine) -> None:
    """I7: a page is freed and used again between the call for its store and the launch."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.host.next = [0]
    engine.controller.write(slots_of([1]))
    engine.free(1)
    engine.controller.start_writing()


def kept_under_another_key(engine: FakeEngine) -> None:
    """I8: a page is kept for another text than its own."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.keep(TEXT[4:8], [1])


def kept_for_another_tenant(engine: FakeEngine) -> None:
    """I8: the tokens are the same, and the key that keeps tenants apart is not."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.keep(TEXT[:4], [1], extra_key="another")


def ranks_not_asked(engine: FakeEngine) -> None:
    """I9: a check of what has landed leaves the other ranks out."""
    engine.tree_cache.asks = False
    engine.tree_cache.writing_check()


def counted_by_one_rank(engine: FakeEngine) -> None:
    """I9: what has landed here is never counted by all ranks."""
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    engine.store([1], [0])
    engine.controller.ack_write_queue[0].finish_event.is_reached = True
    engine.rest(OVERDUE_AMONG_RANKS)


AMONG_RANKS = {ranks_not_asked, counted_by_one_rank}


def reset_in_the_middle(engine: FakeEngine) -> None:
    """I10: the cache is reset while a step is in flight."""
    engine.take(1)
    engine.step("a", TEXT[:4], [1])
    engine.tree_cache.reset()


def locked_for_ever(engine: FakeEngine) -> None:
    """I12: memory stays locked though nothing uses it."""
    engine.take(1)
    engine.tree_cache.kept, engine.tree_cache.locked = 0, 4
    engine.rest()


def deadlocked(engine: FakeEngine) -> None:
    """I12: a request waits, and nothing is under way that could end that."""
    engine.waiting_queue.append(SimpleNamespace(rid="a"))
    engine.rest(STILL)


def lost_for_ever(engine: FakeEngine) -> None:
    """I13: a page is neither free nor in the tree."""
    engine.take(1, 2)
    engine.tree_cache.kept = 4
    engine.rest()


FAULTS: dict[Callable[[FakeEngine], None], str] = {
    each: str(each.__doc__).partition(":")[0]
    for each in list(vars().values())
    if inspect.isfunction(each) and str(each.__doc__)[:1] == "I" and str(each.__doc__)[1:2].isdigit()
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
def test_fault_is_named_by_its_rule(fault: Callable[[FakeEngine], None]) -> None:
    """The first violation is of this rule, and the watch goes on."""
    engine, watch = watched(ranks=2 if fault in AMONG_RANKS else 1)

    fault(engine)
    engine.rest(1)

    assert [each.rule for each in watch.violations][:1] == [FAULTS[fault]]
    assert watch.lost is None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
def test_strict_watch_raises_at_the_fault(fault: Callable[[FakeEngine], None]) -> None:
    """The call that breaks the rule, or the step that it belongs to, raises with the story."""
    engine = FakeEngine(ranks=2 if fault in AMONG_RANKS else 1)
    attach(engine, Options(mode=WatchMode.STRICT))

    with pytest.raises(WatchError, match=f"^{FAULTS[fault]} at step"):
        fault(engine)


def test_faults_cover_what_the_watch_can_find() -> None:
    """Every rule of pages is broken by some script, but I3, which no ear can hear, and I11, which has a file of its own."""
    assert set(FAULTS.values()) == {"I1", "I2", "I4", "I5", "I6", "I7", "I8", "I9", "I10", "I12", "I13"}


def test_lasting_fault_of_an_engine_at_rest_is_told_once() -> None:
    """It is not repeated while it lasts, and told again if it comes back after a step."""
    engine, watch = watched()
    lost_for_ever(engine)
    engine.rest(20)
    assert watch.counts == {"I13": 1}

    engine.take(3)
    engine.compute("a", TEXT[:4], [3])
    engine.rest(4)

    assert watch.counts == {"I13": 2}


# --- what is lawful -----------------------------------------------------------------------------------------------------------


def test_text_that_grows_is_one_text() -> None:
    """A page that is filled token by token is kept under the key of all of them; so is one whose last token came late."""
    engine, watch = watched()
    engine.take(1)
    for length in range(1, 4):
        engine.compute("a", TEXT[:length], [1], length - 1)
    engine.step("a", TEXT[:3], [1], 2)
    engine.requests["a"].output_ids.append(TEXT[3])
    engine.compute("a", TEXT[:4], [1], 3)
    engine.keep(TEXT[:4], [1])

    assert watch.counts == {}


def test_two_requests_of_one_name_are_two_texts() -> None:
    """A client may use a name again: the second request has nothing in common with the first."""
    engine, watch = watched()
    engine.take(1)
    engine.compute("a", TEXT[:4], [1])
    del engine.requests["a"]
    engine.take(2)
    engine.compute("a", TEXT[8:12], [2])
    engine.keep(TEXT[8:12], [2])
    engine.keep(TEXT[:4], [1])

    assert watch.counts == {}


def test_page_freed_as_a_duplicate_may_be_named_once_more() -> None:
    """What lies ahead of the first new token is in the tree already, whatever page the caller names for it."""
    engine, watch = watched()
    engine.take(1, 2)
    engine.compute("a", TEXT[:8], [1, 2])
    engine.free(1)
    key = SimpleNamespace(token_ids=TEXT[:8])
    engine.tree_cache.insert(SimpleNamespace(key=key, value=slots_of([1, 2]), prev_prefix_len=4))

    assert watch.counts == {}


def test_pages_freed_in_a_group_are_freed_once() -> None:
    """A group frees later what it was told before; newer releases free by way of another method."""
    engine, watch = watched()
    engine.take(1, 2)
    engine.allocator.group = [slots_of([1])]
    engine.free(1)
    engine.allocator.free_group_end()
    engine.allocator.free_segment(slots_of([2]), start_pos=0)

    assert watch.counts == {}
    assert watch.mirror.holders.left_behind([]) == {}


def test_texts_of_requests_that_are_over_are_not_kept() -> None:
    """A server that never rests does not collect them, whether they end by themselves or are given up."""
    engine, watch = watched()
    engine.take(1)
    kept = []
    for at in range(NUM_TEXTS + 50):
        engine.requests.clear()
        engine.compute(f"r{at}", TEXT[:4], [1])
        kept.append(weakref.ref(engine.requests[f"r{at}"]))
    last = engine.requests.pop(f"r{at}")
    last.finished = lambda: True
    engine.process_batch_result(SimpleNamespace(reqs=[last]), None)
    del last
    engine.keep(TEXT[:4], [1])
    gc.collect()

    alive = [each for each in kept if each() is not None]
    assert 0 < len(alive) <= NUM_TEXTS
    assert kept[-1]() is None
    assert watch.counts == {}


def test_load_is_waited_for_once() -> None:
    """Steps behind the one that waits for a load are ordered behind it, and need no wait of their own."""
    engine, watch = watched()
    served(engine)
    producer = engine.load([0, 1], [10, 11])
    engine.compute("c", TEXT[:9], [10, 11, 12], 8, waits=producer)
    assert [each.rule for each in watch.violations] == ["I1"]  # page 12 is free

    engine.take(13)
    engine.compute("d", TEXT[:9], [10, 11, 13], 8)

    assert len(watch.violations) == 1


def test_watch_that_comes_late_believes_what_it_finds() -> None:
    """What was handed out before is neither unknown when it is freed, nor wrong when it is read."""
    engine = FakeEngine()
    engine.allocator.free_pages = engine.allocator.free_pages[2:]
    engine.host.free_slots = engine.host.free_slots[4:]
    watch = attach(engine, LOG)

    engine.take(3)
    engine.compute("a", TEXT[:9], [1, 2, 3], 8)
    engine.load([0], [4])
    engine.free(1, 2)

    assert watch.counts == {}


def test_tree_alone_is_watched_without_content() -> None:
    """Without a scheduler nothing is known of steps: memory and copies are followed, and content is believed."""
    engine = FakeEngine()
    watch = attach(engine.tree_cache, LOG)
    engine.take(1)
    engine.store([1], [0])
    engine.land()
    assert watch.counts == {}

    engine.free(1)
    engine.free(1)

    assert watch.counts == {"I4": 1}


def test_host_pages_are_freed_by_a_thread() -> None:
    """Storage runs on threads: what they free is heard, and their fault is named."""
    engine, watch = watched()
    engine.host.next = [0]
    engine.host.alloc(4)
    threads = [threading.Thread(target=engine.free_host, args=(0,)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert watch.counts == {"I4": 1}


# --- the watch and the engine -------------------------------------------------------------------------------------------------

EARS = [
    (room, name)
    for room in (MemoryEars, CopyEars, CoreEars, StepEars, TreeEars, LayerWaits)
    for name, method in vars(room).items()
    if inspect.isfunction(method) and list(inspect.signature(method).parameters)[-2:] == ["args", "kwargs"]
    if name not in ("_inserted", "_clears", "_copies_states")  # are heard of models with states only, and broken in their file
]


def whole_life(engine: FakeEngine) -> list[object]:
    """Something for every ear. Returns what the engine's calls have returned."""
    served(engine)
    engine.allocator.next, engine.host.next = [10], [10]
    answers = [engine.allocator.alloc(4), engine.host.alloc(4), engine.controller.write(slots_of([9]))]
    engine.allocator.free_segment(slots_of([9]), start_pos=0)
    engine.allocator.free_page_ids(np.array([10]))
    engine.free_host(10)
    core = engine.tree_cache.tree_core
    for lock, release in ((core.inc_lock_ref, core.dec_lock_ref), (core.inc_host_lock_ref, core.dec_host_lock_ref)):
        lock(1)
        release(1)
    core.demote(1)
    engine.rest()
    engine.tree_cache.reset()
    engine.allocator.clear()
    engine.host.clear()
    return [None if each is None else each.tolist() for each in answers]


@pytest.mark.parametrize(("room", "name"), EARS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_broken_ear_never_reaches_the_engine(
    room: type, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine goes on as without a watch; the watch says that it is lost, once, and has let go of everything."""
    expected = whole_life(FakeEngine(ranks=2))

    def broken(*_: object) -> None:
        raise RuntimeError("an ear is broken")

    monkeypatch.setattr(room, name, broken)
    engine, watch = watched(ranks=2)
    with caplog.at_level(logging.ERROR, LOGGER.name):
        assert whole_life(engine) == expected

    assert isinstance(watch.lost, RuntimeError)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "fault is the watch's own" in caplog.text
    assert "free" not in vars(engine.allocator)


def test_strict_watch_says_that_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a test the error of the watch itself must not pass for silence."""
    monkeypatch.setattr(MemoryEars, "_freed", lambda *_: 1 / 0)
    engine = FakeEngine()
    attach(engine, Options(mode=WatchMode.STRICT))

    with pytest.raises(InvariantError, match="fault is the watch's own"):
        engine.free(1)


def test_detach_restores_everything() -> None:
    """What was wrapped is the object's own method again."""
    engine = FakeEngine()
    things = [engine, engine.tree_cache, engine.controller, engine.allocator, engine.host, engine.controller.layer_done_counter]
    before = [set(vars(each)) for each in things]
    attach(engine, LOG)
    assert [set(vars(each)) for each in things] != before

    detach(engine)

    assert [set(vars(each)) for each in things] == before
    assert watch_of(engine) is None
    detach(engine)


def test_second_attach_keeps_the_watch() -> None:
    """An engine has one watch; other options than those in force are refused."""
    engine, watch = watched()

    assert attach(engine) is watch
    assert attach(engine, LOG) is watch
    with pytest.raises(MisuseError, match="other options already"):
        attach(engine, Options(mode=WatchMode.COUNT))
    with pytest.raises(MisuseError, match="made with Options"):
        attach(engine, "strict")  # type: ignore[arg-type]


def test_wrapped_method_looks_as_before() -> None:
    """SGLang asks some of its methods for their parameters."""
    engine, _ = watched()

    assert list(inspect.signature(engine.allocator.free_segment).parameters) == ["free_index", "start_pos"]


@pytest.mark.parametrize(
    ("thing", "why"),
    [
        (object(), "attach to SGLang's Scheduler"),
        (SimpleNamespace(tree_cache=SimpleNamespace(match_prefix=None)), "--enable-hierarchical-cache"),
        (SimpleNamespace(match_prefix=None, cache_controller=object()), "nothing that the watch knows"),
    ],
    ids=["no scheduler", "no host memory", "another cache"],
)
def test_nothing_to_watch_is_said(thing: object, why: str) -> None:
    """And what to do about it."""
    with pytest.raises(MisuseError, match=why):
        attach(thing, LOG)


def test_sample_is_refused() -> None:
    """Content is named from the first token on: a part of the pages cannot be followed."""
    with pytest.raises(MisuseError, match="BLOCKLIFE_WATCH_SAMPLE"):
        attach(FakeEngine(), Options(sample=2))


def test_recording_can_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A watch that records leaves a file that blocklife can draw a page from."""
    path = tmp_path / "run.jsonl"
    engine = FakeEngine()
    attach(engine, Options(mode=WatchMode.STRICT, record=path))
    served(engine)
    engine.free(5, 6, 7, 8, 9)
    detach(engine)

    assert main(["recording", "show", str(path), "--block", "5"]) == 0
    assert "LOADING" in capsys.readouterr().out


# --- the plug-in --------------------------------------------------------------------------------------------------------------


class FakeRegistry:
    """SGLang's registry of hooks: keeps what it is given."""

    def __init__(self) -> None:
        self.hooks: list[tuple[str, Callable[..., object], object]] = []

    def register(self, target: str, hook: Callable[..., object], kind: object) -> None:
        """Keep it."""
        self.hooks.append((target, hook, kind))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> FakeRegistry:
    """An SGLang that has nothing but a version and a registry."""
    found = FakeRegistry()
    package, hooks = ModuleType("sglang"), ModuleType("sglang.srt.plugins.hook_registry")
    package.__version__ = versions.NEWEST_WATCHED + ".post1"  # type: ignore[attr-defined]
    hooks.HookRegistry, hooks.HookType = found, SimpleNamespace(AFTER="after")  # type: ignore[attr-defined]
    for name, module in (("sglang", package), ("sglang.srt.plugins.hook_registry", hooks)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("BLOCKLIFE_WATCH", raising=False)
    return found


def test_plugin_does_nothing_unasked(registry: FakeRegistry) -> None:
    """Without the variable nothing is hooked."""
    plugin.install()

    assert registry.hooks == []


def test_plugin_watches_each_scheduler(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One hook behind the constructor; one line says what is watched, and another what is not."""
    monkeypatch.setenv("BLOCKLIFE_WATCH", "log")
    plugin.install()
    ((target, hook, kind),) = registry.hooks
    engine, bare = FakeEngine(), FakeEngine()
    bare.tree_cache.cache_controller = None

    assert hook(None, engine) is None
    assert hook(None, bare) is None

    assert (target, kind) == ("sglang.srt.managers.scheduler.Scheduler.__init__", "after")
    assert isinstance(watch_of(engine), Watch)
    assert watch_of(bare) is None
    first, second = (record.message for record in caplog.records)
    assert first.startswith("blocklife watches the FakeTree of SGLang in process MainProcess")
    assert "watching nothing, because a FakeTree without host memory" in second


def test_error_of_the_plugin_does_not_keep_an_engine_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever it is: it is logged, and the scheduler is there."""
    tree = FakeTree()
    tree.token_to_kv_pool_allocator.free_pages = None  # type: ignore[assignment]
    del tree.page_size
    vars(tree)["page_size"] = "four"

    plugin.come(tree, LOG)

    assert "watching nothing" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [("BLOCKLIFE_WATCH", "yes"), ("BLOCKLIFE_WATCH_SAMPLE", "9" * 5_000), ("BLOCKLIFE_WATCH_RECORD", "/nowhere/run.jsonl")],
)
def test_sglang_goes_on_unwatched_where_settings_mean_nothing(
    name: str, value: str, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line names the setting, and says that nothing is watched; no error reaches SGLang."""
    monkeypatch.setenv("BLOCKLIFE_WATCH", "log")
    monkeypatch.setenv(name, value)
    plugin.install()

    assert registry.hooks == []
    (record,) = caplog.records
    assert record.message.startswith(f"blocklife watch: watching nothing, because {name}={value[:1]}")
    assert len(record.message) < 2 * MESSAGE_MAX


def test_sglang_goes_on_unwatched_where_the_plugin_fails_itself(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A registry that is not what the plug-in takes it for."""
    monkeypatch.setenv("BLOCKLIFE_WATCH", "log")
    monkeypatch.delattr(sys.modules["sglang.srt.plugins.hook_registry"], "HookType")
    plugin.install()

    assert registry.hooks == []
    (record,) = caplog.records
    assert record.message.startswith("blocklife watch: watching nothing, because of an error of its own: AttributeError(")


def test_sglang_goes_on_unwatched_where_its_recording_cannot_be_opened(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its folder has gone since the environment was read."""
    monkeypatch.setenv("BLOCKLIFE_WATCH", "log")
    monkeypatch.setenv("BLOCKLIFE_WATCH_RECORD", str(tmp_path / "{pid}" / "run.jsonl"))
    plugin.install()
    ((_, hook, _),) = registry.hooks
    engine = FakeEngine()

    assert hook(None, engine) is None
    assert watch_of(engine) is None
    (record,) = caplog.records
    assert "watching nothing, because record (BLOCKLIFE_WATCH_RECORD)=" in record.message


@pytest.mark.parametrize("release", ["0.5.24", "0.6.0", "0.5.12.post1", "unknown"])
def test_unknown_release_is_not_watched(
    release: str, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, with the releases that are."""
    monkeypatch.setenv("BLOCKLIFE_WATCH", "strict")
    monkeypatch.setattr(sys.modules["sglang"], "__version__", release)

    plugin.install()

    assert registry.hooks == []
    (record,) = caplog.records
    assert f"this is SGLang {release}, and the watch knows SGLang 0.5.13 to 0.5.23" in record.message
