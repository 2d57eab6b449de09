"""Calls of SGLang that raise under the watch: what was believed of one when it began is taken back, and its error goes on.

Goal: behind any call that raises the watch knows as much as if it had not been made: the engine gives back what it had and
serves a text, and nothing is named. Method: fakes with one method that raises once.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blocklife.engines.sglang.watch import Options, Watch, WatchMode, attach
from tests.watch.sglang_fakes import FakeCore, FakeEngine, FakePrompt, FakeStateEngine, slots_of
from tests.watch.test_watch_sglang_engine import TEXT, served

LOG = Options(mode=WatchMode.LOG)


class BreaksError(Exception):
    """What a call of the engine raises."""


def arm(monkeypatch: pytest.MonkeyPatch, thing: object, name: str) -> list[None]:
    """Let a method raise as often as something is in the list that is returned."""
    original: Any = getattr(type(thing), name)
    armed: list[None] = []

    def breaks(*args: object, **kwargs: object) -> object:
        if armed:
            armed.pop()
            raise BreaksError(name)
        return original(*args, **kwargs)

    monkeypatch.setattr(type(thing), name, breaks)
    return armed


def core_of(engine: FakeEngine) -> FakeCore:
    """The part of its tree that decides."""
    return engine.tree_cache.tree_core


CALLS: dict[str, tuple[Callable[[FakeEngine], object], str, Callable[[FakeEngine], object]]] = {
    "alloc": (lambda e: e.allocator, "alloc", lambda e: e.allocator.alloc(4)),
    "free": (lambda e: e.allocator, "free", lambda e: e.free(9)),
    "free of pages": (lambda e: e.allocator, "free_page_ids", lambda e: e.allocator.free_page_ids(np.array([9]))),
    "free of a segment": (
        lambda e: e.allocator,
        "free_page_ids",
        lambda e: e.allocator.free_segment(slots_of([9]), start_pos=0),
    ),
    "host alloc": (lambda e: e.host, "alloc", lambda e: e.host.alloc(4)),
    "host free": (lambda e: e.host, "free", lambda e: e.free_host(9)),
    "write": (lambda e: e.host, "alloc", lambda e: e.controller.write(slots_of([9]))),
    "load": (lambda e: e.allocator, "alloc", lambda e: e.controller.load(slots_of([9]))),
    "submit": (lambda e: e.controller.l2_transfer_engine, "submit_host_to_device", lambda e: e.load([9], [10])),
    "lock": (core_of, "inc_lock_ref", lambda e: core_of(e).inc_lock_ref(7)),
    "unlock": (core_of, "dec_lock_ref", lambda e: core_of(e).dec_lock_ref(7)),
    "host unlock": (core_of, "dec_host_lock_ref", lambda e: core_of(e).dec_host_lock_ref(7)),
    "evict": (core_of, "demote", lambda e: core_of(e).demote(1)),
    "insert": (lambda e: e.tree_cache, "insert", lambda e: e.keep(TEXT[:4], [9])),
    "check": (lambda e: e.tree_cache, "writing_check", lambda e: e.tree_cache.writing_check()),
    "plan": (lambda e: e, "get_next_batch_to_run", lambda e: e.get_next_batch_to_run()),
    "result": (lambda e: e, "process_batch_result", lambda e: e.result()),
    "wait": (lambda e: e.controller.layer_done_counter, "set_consumer", lambda e: e.forward(1)),
}
"""Whose method raises, which, and a call that it is called in. Page 9 and host page 9 are in use, and both are locked."""


@pytest.mark.parametrize("name", CALLS)
def test_call_that_raises_leaves_no_half_story(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the engine's own; what it does next is as lawful as before."""
    find, method, call = CALLS[name]
    engine = FakeEngine()
    armed = arm(monkeypatch, find(engine), method)
    watch = attach(engine, LOG)
    in_use(engine)
    armed.append(None)

    with pytest.raises(BreaksError, match=f"^{method}$"):
        call(engine)

    assert not armed
    if name == "submit":  # it has taken a page for what it could not launch, and gives up
        engine.controller.load_queue.clear()
        engine.free(10)
        expected = {"I5": 1}
    else:
        goes_on(engine)
        expected = {}
    engine.rest(5)
    assert watch.counts == expected
    assert watch.lost is None


def in_use(engine: FakeEngine) -> None:
    """A text is computed, kept and stored, and locked on both sides."""
    engine.take(9)
    engine.compute("z", TEXT[:4], [9])
    engine.store([9], [9])
    engine.land()
    engine.tree_cache.tree_core.inc_lock_ref(7)
    engine.tree_cache.tree_core.inc_host_lock_ref(7)
    engine.allocator.free_pages = np.setdiff1d(engine.allocator.free_pages, [9])
    engine.host.free_slots = np.setdiff1d(engine.host.free_slots, slots_of([9]))


def goes_on(engine: FakeEngine) -> None:
    """All that is in use is given back, and another text has a whole life in the same pages."""
    core = engine.tree_cache.tree_core
    core.dec_lock_ref(7)
    core.dec_host_lock_ref(7)
    engine.compute("z", TEXT[:4], [9], 3)  # it still holds what it did
    engine.free(9)
    engine.free_host(9)
    served(engine)
    engine.free(5, 6, 7, 8, 9)
    engine.free_host(0, 1, 2, 3)


@pytest.mark.parametrize("method", ["free", "host free"])
def test_free_that_raises_behind_its_work_has_freed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the memory itself says is believed: the page can be handed out again, and nothing is wrong with that."""
    engine = FakeEngine()
    thing: Any = engine.allocator if method == "free" else engine.host

    def frees(self: Any, indices: Any) -> None:
        raise BreaksError(method)

    monkeypatch.setattr(type(thing), "free", frees)
    watch = attach(engine, LOG)
    in_use(engine)
    engine.allocator.free_pages = np.arange(1, 17)
    engine.host.free_slots = np.arange(80)
    with pytest.raises(BreaksError):
        engine.free(9) if method == "free" else engine.free_host(9)
    engine.take(1, 9 if method == "free" else 2)
    engine.compute("y", TEXT[4:8], [1])
    engine.store([1], [9 if method == "host free" else 8])

    assert watch.counts == {}


def test_launch_that_raises_is_told_apart_from_the_next() -> None:
    """A launch fails behind its submission; what the next one moves is its own, and what the first one queued is told."""
    engine = FakeEngine()
    watch = attach(engine, LOG)
    engine.take(1, 2)
    engine.compute("a", TEXT[:8], [1, 2])
    submit, launched = engine.controller.l2_transfer_engine.submit_device_to_host, engine.controller.ack_write_queue
    engine.controller.ack_write_queue = None  # type: ignore[assignment]
    engine.host.next = [0]
    engine.controller.write(slots_of([1]))
    with pytest.raises(AttributeError):
        engine.controller.start_writing()
    engine.controller.ack_write_queue = launched
    engine.store([2], [1])
    engine.land()
    assert watch.counts == {}
    assert submit is engine.controller.l2_transfer_engine.submit_device_to_host
    engine.rest(4)

    assert [each.rule for each in watch.violations] == ["I5"]
    assert watch.violations[0].job == 1


@pytest.mark.parametrize("name", ["prefetch_from_storage", "check_prefetch_progress", "_page_transfer"])
def test_storage_that_raises_leaves_nothing_open(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes for the next request is not taken for that of the one whose call has failed, and no thread counts as busy."""
    engine = FakeEngine(storage=True)
    armed = arm(monkeypatch, engine.controller if name == "_page_transfer" else engine.tree_cache, name)
    watch = attach(engine, LOG)
    engine.ask_storage("a", TEXT[:8], 0)
    armed.append(None)
    prompt = FakePrompt(rid="b", origin_input_ids=TEXT, output_ids=[], prefix_indices=range(0), host_hit_length=0)
    calls: dict[str, Callable[[], object]] = {
        "prefetch_from_storage": lambda: engine._prefetch_kvcache(prompt),
        "check_prefetch_progress": lambda: engine.tree_cache.check_prefetch_progress("a"),
        "_page_transfer": lambda: engine.controller._page_transfer(None),
    }
    with pytest.raises(BreaksError):
        calls[name]()
    engine.tree_cache.prefetch_from_storage("c", TEXT)  # by nobody: it is not for the request before
    core = engine.tree_cache.tree_core
    engine.host.next = [0, 1, 2]
    value = engine.host.alloc(12)
    assert value is not None
    core.taken = SimpleNamespace(prefix_len=0)
    core.insert_host(0, SimpleNamespace(token_ids=TEXT[:8]), value[:8], [])
    engine.rest(70)

    assert [each.rule for each in watch.violations] == ["I13"]  # host page 2, which nobody has taken
    assert watch.lost is None


STATE_CALLS: dict[str, tuple[Callable[[FakeStateEngine], object], str, Callable[[FakeStateEngine], object]]] = {
    "alloc": (lambda e: e.states, "alloc", lambda e: e.states.alloc(1)),
    "free": (lambda e: e.states, "free", lambda e: e.free_states(7)),
    "host free": (lambda e: e.host_states, "free", lambda e: e.host_states.free(np.array([9]))),
    "clear": (lambda e: e.state_pool, "clear_slots", lambda e: e.clear_states(7)),
    "copy": (lambda e: e.state_pool, "copy_from", lambda e: e.copy_state(7, 8)),
}


@pytest.mark.parametrize("name", STATE_CALLS)
def test_call_about_a_state_that_raises_has_not_happened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state that is there is still there, and stored, and can be gone on from."""
    find, method, call = STATE_CALLS[name]
    engine = FakeStateEngine()
    armed = arm(monkeypatch, find(engine), method)
    watch: Watch = attach(engine, LOG)
    engine.take(1, 2, 3, 4)
    engine.take_states(7, 8)
    engine.clear_states(7)
    engine.go_on("a", TEXT[:4], 7)
    engine.keep_state(TEXT[:4], 7)
    engine.store_state(7, 9)
    engine.land()
    engine.states.free_slots = np.setdiff1d(engine.states.free_slots, [7, 8])
    engine.host_states.free_slots = np.setdiff1d(engine.host_states.free_slots, [9])
    armed.append(None)

    with pytest.raises(BreaksError):
        call(engine)

    engine.copy_state(7, 8)
    engine.go_on("b", TEXT[:8], 8, 4)
    engine.free_states(7, 8)
    engine.host_states.free(np.array([9]))
    assert watch.counts == {}
    assert watch.lost is None
