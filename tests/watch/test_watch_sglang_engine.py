"""The watch over SGLang and its engine: what is heard by other ways, what is kept, and that no ear is ever in the engine's way.

Goal: what a script of calls cannot say (`test_watch_sglang` has those). Method: fakes with SGLang's names.
"""

from __future__ import annotations

import gc
import inspect
import logging
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from blocklife.cli import main
from blocklife.engines.sglang.watch import LOGGER, Options, Watch, WatchMode, attach, detach, watch_of
from blocklife.engines.sglang.watch._copies import CopyEars
from blocklife.engines.sglang.watch._memory import MemoryEars
from blocklife.engines.sglang.watch._steps import NUM_TEXTS, LayerWaits, StepEars
from blocklife.engines.sglang.watch._storage import StorageEars
from blocklife.engines.sglang.watch._tree import CoreEars, TreeEars
from blocklife.errors import InvariantError, MisuseError
from blocklife.watch import HeldContent, Text
from blocklife.watch._contents import STILL
from blocklife.watch._texts import UNSEEN, SlotContents
from tests.plays import play
from tests.watch.sglang_fakes import PAGE, FakeController, FakeEngine, FakeStateEngine, Kind, slots_of

TEXT = [*range(100, 116)]
LONGER = [*range(100, 117)]
LOG = Options(mode=WatchMode.LOG)


def states_of(watch: Watch) -> list[str]:
    """The rules that were broken in the memory of states."""
    return sorted(name for name in watch.mirrors[1].counts if name.startswith("I"))


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


def watched() -> tuple[FakeEngine, Watch]:
    """An engine, and a watch over it."""
    engine = FakeEngine()
    return engine, attach(engine, LOG)


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


class OnHost(np.ndarray):
    """Indices that say where they lie, as those of a tensor do."""

    is_cuda = False


def test_engine_that_moves_other_pages_than_it_is_told_is_i8() -> None:
    """Where the indices lie in the memory of the host, what the host pool is told is compared, too."""
    engine = FakeEngine()

    def submit(transfers: list[SimpleNamespace]) -> None:
        pages = (transfers[0].host_indices[:-PAGE].view(OnHost), transfers[0].device_indices[:-PAGE].view(OnHost))
        engine.host.backup_from_device_all_layer_physical(None, *pages, "direct")

    engine.controller.l2_transfer_engine.submit_device_to_host = submit  # type: ignore[method-assign]
    watch = attach(engine, Options(mode=WatchMode.LOG))
    play(engine, "take 1 2 3 4; compute a :16 [1,2,3,4]; keep :16 [1,2,3,4]")
    engine.store([1, 2, 3, 4], [0, 1, 2, 3])

    assert watch.counts == {"I8": 1}


def test_position_outside_its_page_is_i6() -> None:
    """A row whose slot of a token is not in its place is named when the step is launched that computes the token."""
    engine, watch = watched()
    engine.take(1, 2, 3, 4)
    engine.compute("a", TEXT[:14], [1, 2, 3, 4])
    rows = engine.tree_cache.req_to_token_pool.req_to_token
    right = slots_of([1, 2, 3, 4])
    engine.step("a", TEXT[:15], [1, 2, 3, 4], 14)
    assert watch.counts == {}
    rows[0, 15] = right[14]
    engine.batch = SimpleNamespace(
        reqs=[engine.requests["a"]],
        forward_mode=SimpleNamespace(is_extend=lambda: False),
        req_pool_indices=np.array([0]),
        seq_lens_cpu=np.array([16]),
        hicache_consumer_index=-1,
    )
    engine.get_next_batch_to_run()

    assert watch.counts == {"I6": 1}
    assert "position 15" in watch.violations[0].what


def test_free_that_a_part_of_the_tree_has_taken_ahead_is_heard() -> None:
    """A component may have kept the allocator's method from before the watch came."""
    engine = FakeEngine()
    component = SimpleNamespace(_free_full=engine.allocator.free)
    engine.tree_cache.components = {Kind.FULL: component}  # type: ignore[attr-defined]
    watch = attach(engine, Options(mode=WatchMode.LOG))
    engine.take(1, 2)
    component._free_full(slots_of([1, 2]))
    engine.take(1, 2)

    assert watch.counts == {}


# --- the forward pass ---------------------------------------------------------------------------------------------------------


def test_layers_are_numbered_from_the_first_of_their_stage() -> None:
    """A stage of a pipeline has layers from 10 on; a load counts its own."""
    engine = FakeEngine()
    engine.pool.start_layer = 10
    engine.pool.waits_for = lambda layer: layer - 10
    watch = attach(engine, Options(mode=WatchMode.LOG))
    engine.forward = lambda waits=-1, layers=2: None  # type: ignore[method-assign]
    served(engine)
    producer = engine.load([0, 1, 2, 3], [10, 11, 12, 13])
    engine.take(14)
    engine.step("c", LONGER, [10, 11, 12, 13, 14], 16, waits=producer)
    engine.controller.layer_done_counter.set_consumer(producer)
    for layer in (10, 11):
        engine.pool.get_key_buffer(layer)
    engine.result()

    assert [each.job for each in watch.violations] == [2]  # of the step in `served`, which has no forward pass


def test_pass_that_waits_once_ahead_of_all_layers_is_lawful() -> None:
    """A recorded graph asks for no buffers: it waits for the last layer ahead of its replay."""
    engine, watch = watched()
    served(engine)
    engine.free(5, 6, 7, 8, 9)
    producer = engine.load([0, 1, 2, 3], [5, 6, 7, 8])
    engine.take(9)
    engine.pool.waits_for = lambda layer: None
    engine.forward = lambda waits=-1, layers=2: engine.controller.layer_done_counter.set_consumer(waits)  # type: ignore[method-assign]
    engine.step("b", LONGER, [5, 6, 7, 8, 9], 16, waits=producer)
    engine.controller.layer_done_counter.wait_until(1)
    engine.result()

    assert watch.counts == {}


def test_result_between_a_plan_and_its_launch_is_no_launch() -> None:
    """With overlap the engine may process the step before while the planned one has not begun to wait."""
    engine, watch = watched()
    served(engine)
    engine.free(5, 6, 7, 8, 9)
    engine.take(10)
    engine.step("a", LONGER[:4], [10])
    producer = engine.load([0, 1, 2, 3], [5, 6, 7, 8])
    engine.take(9)
    forward, engine.forward = engine.forward, lambda waits=-1, layers=2: None  # type: ignore[method-assign]
    engine.step("b", LONGER, [5, 6, 7, 8, 9], 16, waits=producer)
    engine.result()
    assert watch.counts == {}
    forward(producer)
    engine.result()

    assert watch.counts == {}


# --- states -------------------------------------------------------------------------------------------------------------------


def test_watch_that_comes_late_believes_the_states_it_finds() -> None:
    """What was handed out ahead of it may hold anything, and a copy of it, too."""
    engine = FakeStateEngine()
    engine.states.free_slots = np.array([3, 4, 5, 6, 7, 8])
    engine.host_states.free_slots, engine.host_states.release_slots = np.array([1, 2]), [np.arange(3, 10)]
    watch = attach(engine, Options(mode=WatchMode.LOG))
    engine.take(1, 2, 3, 4)
    engine.go_on("a", TEXT[:9], 1, 8)
    engine.take_states(3, 4)
    engine.copy_state(2, 3)
    engine.go_on("b", TEXT[:9], 3, 8)
    engine.load_state(0, 4)

    assert states_of(watch) == []


def test_tree_alone_is_watched_without_content_of_states() -> None:
    """Without the scheduler no step is heard; memory and copies are followed."""
    engine = FakeStateEngine()
    watch = attach(engine.tree_cache, Options(mode=WatchMode.LOG))
    engine.take_states(1)
    engine.keep_state(TEXT[:8], 1)
    engine.store_state(1, 0)
    engine.land()
    engine.free_states(1)
    engine.take_states(2)
    engine.load_state(0, 2)
    engine.store_state(2, 1)
    engine.keep_state(TEXT, 2)  # a request has gone on from what was loaded, in its place
    assert states_of(watch) == []

    engine.free_states(1)
    assert states_of(watch) == ["I4"]


# --- storage ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_storage_hit_query", "_page_transfer"])
def test_host_page_that_a_thread_of_storage_has_in_hand_is_lawful(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes."""
    engine = FakeEngine(storage=True)
    monkeypatch.setattr(FakeController, name, lambda *_: engine.rest(2 * STILL))
    watch = attach(engine, LOG)
    play(engine, "ask_storage a :16 0; refill a :8 [0,1]; take_host 2 3; free_host 3; free_host 2; rest")

    assert watch.counts == {}


def test_slots_know_what_content_is_in_any_of_them() -> None:
    """Two slots have the same; a name that comes late counts as soon as it is known; what is believed may be anything."""
    tokens = [1, 2]
    late = Text(2, more=lambda length: tokens[length:])
    text = Text(2, tokens=[1, 2, 3, 4])
    first, whole = text.name(2), text.name(4)
    assert first is not None
    assert whole is not None
    slots = SlotContents()
    slots.hand_out([0, 1, 2], None)
    slots.fill(0, HeldContent(text, 2))
    slots.fill(1, HeldContent(text, 2))
    slots.fill(2, HeldContent(late, 4))
    assert slots.may_have(first)
    assert not slots.may_have(whole)

    slots.drop(0)
    assert slots.may_have(first)
    slots.drop(1)
    assert not slots.may_have(first)
    tokens += [3, 4]
    assert slots.may_have(whole)
    slots.drop(2)
    assert not slots.may_have(whole)
    assert slots.may_have(whole, [[None, HeldContent(text, 4)]])

    slots.fill(3, UNSEEN)
    assert slots.may_have(first)
    slots.clear()
    assert not slots.may_have(first)
    assert len(slots) == 0


def test_storage_that_comes_later_may_have_a_page_in_hand() -> None:
    """An engine may be given storage while it runs: nothing is heard of that."""
    engine = FakeEngine()
    watch = attach(engine, LOG)
    vars(engine.tree_cache)["enable_storage"] = True
    engine.take_host(2)
    engine.rest(2 * STILL)

    assert watch.counts == {}


# --- the watch and the engine -------------------------------------------------------------------------------------------------


EARS = [
    (room, name)
    for room in (MemoryEars, CopyEars, CoreEars, StepEars, TreeEars, LayerWaits, StorageEars)
    for name, method in vars(room).items()
    if inspect.isfunction(method) and list(inspect.signature(method).parameters)[-1] == "call"
]


def whole_life(engine: FakeStateEngine) -> list[object]:
    """Something for every ear. Returns what the engine's calls have returned."""
    served(engine)
    engine.allocator.next, engine.host.next, engine.states.next, engine.host_states.next = [10], [10], [7], [7]
    answers = [engine.allocator.alloc(4), engine.host.alloc(4), engine.controller.write(slots_of([9]))]
    answers += [engine.states.alloc(1), engine.host_states.alloc(1), engine.controller.load(slots_of([]))]
    engine.allocator.free_segment(slots_of([9]), start_pos=0)
    engine.allocator.free_page_ids(np.array([10]))
    play(engine, "free_host 10; free_host_states 7; lock 1; unlock 1; lock_host 1; unlock_host 1; give_up device=[1]")
    play(engine, "take_states 1 2; plan_state z :8 1; clear_states 1; launch; result; copy_state 1 2; keep_state :8 2")
    play(engine, "store_state 2 0; land; ask_storage a :8 0; refill a :8 [0,1]; rest; reset; clear; clear_memory_of_states")
    engine.host.clear()
    return [None if each is None else each.tolist() for each in answers]


@pytest.mark.parametrize(("room", "name"), EARS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_broken_ear_never_reaches_the_engine(
    room: type, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine goes on as without a watch; the watch says that it is lost, once, and has let go of everything."""
    expected = whole_life(FakeStateEngine(ranks=2, storage=True))

    def broken(*_: object) -> None:
        raise RuntimeError("an ear is broken")

    monkeypatch.setattr(room, name, broken)
    engine = FakeStateEngine(ranks=2, storage=True)
    watch = attach(engine, LOG)
    with caplog.at_level(logging.ERROR, LOGGER.name):
        assert whole_life(engine) == expected

    assert isinstance(watch.lost, RuntimeError)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "fault is the watch's own" in caplog.text
    for thing in (engine.allocator, engine.states, engine.state_pool, engine.tree_cache, engine.controller):
        assert not {"free", "copy_from", "check_prefetch_progress", "write"} & vars(thing).keys()


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
