"""The watch over SGLang's memory of states, without SGLang: what each rule finds there, and what stays lawful.

Goal: each rule is broken once, by a script of a few calls, and named; the same calls in a lawful order are silent. Method:
fakes with SGLang's names that do what a test says. What the same calls do to pages is of no interest here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from blocklife.engines.sglang.watch import Options, Watch, WatchError, WatchMode, attach
from blocklife.engines.sglang.watch._memory import MemoryEars
from blocklife.engines.sglang.watch._steps import StepEars
from blocklife.engines.sglang.watch._tree import TreeEars
from tests.watch.sglang_fakes import slots_of
from tests.watch.sglang_state_fakes import NUM_STATES, FakeStateEngine, Kind

TEXT = [*range(100, 116)]


def watched(mode: WatchMode = WatchMode.LOG, *, jobs: bool = True) -> tuple[FakeStateEngine, Watch]:
    """An engine whose requests have pages, and a watch over it."""
    engine = FakeStateEngine()
    watch = attach(engine, Options(mode=mode, jobs=jobs))
    engine.take(1, 2, 3, 4)
    return engine, watch


def named(watch: Watch) -> list[str]:
    """The rules that were broken in the memory of states."""
    return sorted(name for name in watch.mirrors[1].counts if name.startswith("I"))


def begun(engine: FakeStateEngine, name: str = "a", slot: int = 1) -> None:
    """A request has computed eight tokens; its state is in this slot."""
    engine.take_states(slot)
    engine.plan_state(name, TEXT[:8], slot)
    engine.clear_states(slot)
    engine.launch()
    engine.result()


def cached(engine: FakeStateEngine) -> None:
    """The state behind eight tokens is in slot 2, which the tree has."""
    begun(engine)
    engine.take_states(2)
    engine.copy_state(1, 2)
    engine.keep_state(TEXT[:8], 2)


def evicted(engine: FakeStateEngine) -> None:
    """The same state is in slot 0 of the host, and nowhere else."""
    cached(engine)
    engine.store_state(2, 0)
    engine.land()
    engine.free_states(1, 2)


def resumed(engine: FakeStateEngine, slot: int = 3, *, tokens: int = 9) -> None:
    """Another request goes on from the cached state, in a slot of its own."""
    engine.take_states(slot)
    engine.plan_state("b", TEXT[:tokens], slot, 8)
    engine.copy_state(2, slot)
    engine.launch()
    engine.result()


@pytest.mark.parametrize("jobs", [False, True], ids=["plain", "ledger"])
def test_lawful_life_of_a_state_is_silent(jobs: bool) -> None:
    """Computed, cached, stored, evicted, loaded for the tree and for a request, gone on from; at rest all is there."""
    engine, watch = watched(WatchMode.STRICT, jobs=jobs)
    evicted(engine)
    engine.take_states(4, 5)
    producer = engine.load_state(0, 4, 5)
    engine.plan_state("b", TEXT[:9], 5, 8, waits=producer)
    engine.launch(producer)
    engine.result()
    engine.free_states(5)  # the request is over, ahead of the engine's note that the load has landed
    engine.take_states(5)
    engine.land()
    engine.copy_state(4, 5)
    engine.go_on("c", TEXT[:9], 5, 8)
    engine.go_on("c", TEXT[:10], 5, extends=False)
    engine.free_states(5)
    engine.take_states(6)
    engine.keep_state(TEXT[:8], 6, had=True)
    engine.free_states(6)
    engine.kept_states, engine.states.left = 1, NUM_STATES - 1
    engine.free(1, 2, 3, 4)
    engine.rest()
    engine.free_states(4)
    engine.host_states.free(np.array([0]))
    engine.tree_cache.reset()
    engine.states.clear()
    engine.host_states.clear()

    assert watch.counts == {}
    assert watch.lost is None
    assert watch.mirrors[1].counts["jobs"] == 3


# --- each rule broken once ----------------------------------------------------------------------------------------------------


def handed_out_while_stored(engine: FakeStateEngine) -> None:
    """I1: a state is given up and handed out before its store has landed."""
    cached(engine)
    engine.store_state(2, 0)
    engine.free_states(2)
    begun(engine, "b", 2)


def written_while_loaded(engine: FakeStateEngine) -> None:
    """I1: a slot is cleared while a load writes it, which nobody has waited for."""
    evicted(engine)
    engine.take_states(4)
    engine.load_state(0, 4)
    engine.clear_states(4)


def written_while_cached(engine: FakeStateEngine) -> None:
    """I1: a request goes on in the slot of the cached state itself."""
    cached(engine)
    engine.go_on("b", TEXT[:9], 2, 8)


def written_although_free(engine: FakeStateEngine) -> None:
    """I1: a copy goes to a slot that is free."""
    begun(engine)
    engine.copy_state(1, 2)


def stored_without_order(engine: FakeStateEngine) -> None:
    """I2: a store of what a step in flight writes, and nothing orders it behind."""
    begun(engine)
    engine.take_states(2)
    engine.controller.write_fence_stream = None
    engine.plan_state("a", TEXT[:9], 1, extends=False)
    engine.launch()
    engine.plan_state("a", TEXT[:10], 1, extends=False, kept=2)
    engine.launch()
    engine.result()
    engine.store_state(2, 0)


def freed_twice(engine: FakeStateEngine) -> None:
    """I4: a state is freed that nobody holds."""
    cached(engine)
    engine.free_states(2)
    engine.free_states(2)


def kept_although_free(engine: FakeStateEngine) -> None:
    """I4: the tree keeps a slot that is free."""
    begun(engine)
    engine.keep_state(TEXT[:8], 2)


def queued_for_ever(engine: FakeStateEngine) -> None:
    """I5: a store is queued and never launched."""
    cached(engine)
    engine.queue_store_of_state(2, 0)
    engine.rest()


def not_cleared(engine: FakeStateEngine) -> None:
    """I6: a request begins with what its slot held before."""
    engine.take_states(1)
    engine.go_on("a", TEXT[:8], 1)


def cleared_only(engine: FakeStateEngine) -> None:
    """I6: a request goes on behind eight tokens from the state behind none."""
    cached(engine)
    engine.take_states(3)
    engine.clear_states(3)
    engine.go_on("b", TEXT[:9], 3, 8)


def gone_on_from_a_later_state(engine: FakeStateEngine) -> None:
    """I6: a state of the same text, but behind more tokens."""
    cached(engine)
    engine.go_on("a", TEXT[:9], 1, extends=False)
    engine.go_on("a", TEXT[:9], 1, extends=False)


def gone_on_from_another_text(engine: FakeStateEngine) -> None:
    """I6: the state behind as many tokens of another text."""
    cached(engine)
    engine.take_states(3)
    engine.copy_state(2, 3)
    engine.go_on("b", [7, *TEXT[1:9]], 3, 8)


def gone_on_from_a_free_slot(engine: FakeStateEngine) -> None:
    """I6: a state whose slot is free."""
    begun(engine)
    engine.free_states(1)
    engine.go_on("a", TEXT[:9], 1, extends=False)


def one_layer_does_not_wait(engine: FakeStateEngine) -> None:
    """I6: the first layer reads its part of a load without waiting; the others wait for theirs."""
    evicted(engine)
    engine.take_states(4, 5)
    producer = engine.load_state(0, 4, 5)
    engine.plan_state("b", TEXT[:9], 5, 8, waits=producer)
    engine.launch(producer, (1, 2))
    engine.result()


def copied_before_it_is_loaded(engine: FakeStateEngine) -> None:
    """I6: a cached state is copied for a request while its load is under way (sglang#36743)."""
    evicted(engine)
    engine.take_states(4, 5)
    producer = engine.load_state(0, 4)
    engine.plan_state("b", TEXT[:9], 5, 8, waits=producer)
    engine.controller.layer_done_counter.set_consumer(producer)
    engine.copy_state(4, 5)


def stored_with_nothing_in_it(engine: FakeStateEngine) -> None:
    """I6: a store of a slot that nothing was written into."""
    engine.take_states(2)
    engine.store_state(2, 0)


def loaded_while_it_is_stored(engine: FakeStateEngine) -> None:
    """I6: a load from a slot of the host that is still written."""
    cached(engine)
    engine.store_state(2, 0)
    engine.take_states(4)
    engine.load_state(0, 4)


def kept_with_nothing_in_it(engine: FakeStateEngine) -> None:
    """I6: the tree keeps a slot that nothing was written into."""
    begun(engine)
    engine.take_states(2)
    engine.keep_state(TEXT[:8], 2)


def kept_in_parts(engine: FakeStateEngine) -> None:
    """I6: the layers are told to keep a state whose parts are not behind the same tokens."""
    engine.take_states(1, 2)
    engine.clear_states(1)
    engine.go_on("a", TEXT[:7], 1, kept=2, reached=6)
    engine.keep_state(TEXT[:4], 2)


def freed_on_the_host_while_loaded(engine: FakeStateEngine) -> None:
    """I7: a slot of the host is freed while a load reads it, although a step has waited for that."""
    evicted(engine)
    engine.take_states(4, 5)
    producer = engine.load_state(0, 4, 5)
    engine.go_on("b", TEXT[:9], 5, 8, waits=producer)
    engine.host_states.free(np.array([0]))


def load_of_another_slot(engine: FakeStateEngine) -> None:
    """I7: a load moves other slots than it was queued for."""
    evicted(engine)
    engine.take_states(4)
    engine.controller.bent = lambda transfer: SimpleNamespace(**{**vars(transfer), "host_indices": transfer.host_indices + 1})
    engine.load_state(0, 4)


def kept_under_a_shorter_text(engine: FakeStateEngine) -> None:
    """I8: the state behind eight tokens is kept as that behind four."""
    begun(engine)
    engine.keep_state(TEXT[:4], 1)


def store_of_another_slot(engine: FakeStateEngine) -> None:
    """I8: a store moves other slots than it was queued for."""
    cached(engine)
    engine.controller.bent = lambda transfer: SimpleNamespace(
        **{**vars(transfer), "device_indices": transfer.device_indices - 1}
    )
    engine.store_state(2, 0)


def reset_with_a_step_in_flight(engine: FakeStateEngine) -> None:
    """I10: the cache is reset while a step is in flight."""
    begun(engine)
    engine.plan_state("a", TEXT[:9], 1, extends=False)
    engine.launch()
    engine.plan_state("a", TEXT[:10], 1, extends=False)
    engine.tree_cache.reset()


def locked_at_rest(engine: FakeStateEngine) -> None:
    """I12: a state is locked, and nothing runs."""
    cached(engine)
    engine.locked_states = 1
    engine.free_states(1)
    engine.states.left = NUM_STATES - 1
    engine.rest()


def second_state_of_a_text_stays(engine: FakeStateEngine) -> None:
    """I13: the tree has this state already, and the other one is not freed ahead of the next step."""
    cached(engine)
    engine.keep_state(TEXT[:8], 1, had=True)
    resumed(engine)


def evicted_and_not_freed(engine: FakeStateEngine) -> None:
    """I13: the core gives a state up, and nobody frees it."""
    cached(engine)
    engine.tree_cache.tree_core.given_up = SimpleNamespace(device_frees={Kind.MAMBA: [np.array([2])]}, host_frees={})
    engine.tree_cache.tree_core.demote(1)
    engine.go_on("a", TEXT[:9], 1, extends=False)


def lost_at_rest(engine: FakeStateEngine) -> None:
    """I13: a slot is handed out, and neither a request nor the tree has it."""
    cached(engine)
    engine.kept_states, engine.states.left = 1, NUM_STATES - 2
    engine.rest()


def stored_twice(engine: FakeStateEngine) -> None:
    """I14: a state is stored by two copies in flight."""
    cached(engine)
    engine.store_state(2, 0)
    engine.store_state(2, 1)


FAULTS = [
    each
    for each in list(vars().values())
    if inspect.isfunction(each) and str(each.__doc__)[:1] == "I" and str(each.__doc__)[1:2].isdigit()
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_fault_is_named_by_its_rule(fault: Callable[[FakeStateEngine], None]) -> None:
    """By its rule, and by no other."""
    engine, watch = watched()
    fault(engine)
    engine.rest(1)

    assert named(watch) == [str(fault.__doc__).partition(":")[0]]
    assert watch.lost is None


# --- what is lawful -----------------------------------------------------------------------------------------------------------


def test_copy_that_waits_for_the_last_layer_is_lawful() -> None:
    """A cached state is copied while its load is under way, behind a wait for all of it: for the copy, and for the step."""
    engine, watch = watched()
    evicted(engine)
    engine.take_states(4, 5)
    producer = engine.load_state(0, 4)
    engine.plan_state("b", TEXT[:9], 5, 8, waits=producer)
    counter = engine.controller.layer_done_counter
    counter.set_consumer(producer)
    counter.wait_until(2)
    engine.copy_state(4, 5)
    engine.result()

    assert named(watch) == []


def test_states_that_a_step_keeps_are_known() -> None:
    """Of a prompt behind whole chunks, of an answer behind its last token; each is right under its own key."""
    engine, watch = watched()
    engine.take_states(1, 2, 3)
    engine.clear_states(1)
    engine.go_on("a", TEXT[:6], 1, kept=2, reached=5)
    engine.keep_state(TEXT[:4], 2)
    engine.go_on("a", TEXT[:7], 1, extends=False)
    engine.go_on("a", TEXT[:8], 1, extends=False, kept=3)
    engine.keep_state(TEXT[:8], 3)

    assert named(watch) == []


def test_result_between_plan_and_launch_launches_nothing() -> None:
    """The engine may process a result ahead of the next launch; the slots of a request that ends there are of no interest."""
    engine, watch = watched()
    begun(engine)
    engine.plan_state("a", TEXT[:9], 1, extends=False)
    engine.launch()
    engine.plan_state("a", TEXT[:10], 1, extends=False)
    engine.launch()
    engine.result()
    engine.plan_state("a", TEXT[:11], 1, extends=False)
    request = engine.requests["a"]
    request.finished = lambda: True
    engine.process_batch_result(SimpleNamespace(reqs=[request]), None)
    engine.free_states(1)
    engine.launch()
    engine.rest(1)

    assert named(watch) == []


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

    assert named(watch) == []


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
    assert named(watch) == []

    engine.free_states(1)
    assert named(watch) == ["I4"]


def test_null_state_is_nobodys() -> None:
    """What is done to slot 0, with which steps are tried out and padded, is of no interest."""
    engine, watch = watched()
    cached(engine)
    engine.clear_states(0)
    engine.copy_state(2, 0)

    assert named(watch) == []


def test_slots_by_other_names_are_heard_once() -> None:
    """The controller has the allocator's methods from before; what was set aside for a batch was never handed out."""
    engine, watch = watched()
    engine.states.next = [1]
    engine.entry.device_alloc_fn(1)
    engine.entry.device_free_fn(np.array([1]))
    engine.states.group = [5, 6]
    engine.states.alloc_group_end()

    assert named(watch) == []


@pytest.mark.parametrize("how", ["mamba_v2p_table", "mamba_ckpt_pool", "replayssm_write_pos", "guesses", "no host pool"])
def test_memory_that_cannot_be_followed_is_left_alone(how: str) -> None:
    """Pages are watched then, and states are not."""
    engine = FakeStateEngine()
    if how == "guesses":
        vars(engine)["spec_algorithm"] = SimpleNamespace(is_none=lambda: False)
    elif how == "no host pool":
        engine.host.entries = []
    else:
        setattr(engine.state_pool if how.startswith("replay") else engine.tree_cache.req_to_token_pool, how, object())
    watch = attach(engine, Options(mode=WatchMode.LOG))
    engine.take_states(1)
    engine.free_states(1)
    engine.free_states(1)

    assert len(watch.mirrors) == 1
    assert watch.counts == {}


def test_strict_watch_raises_at_the_fault() -> None:
    """At the call that shows it."""
    engine, _ = watched(WatchMode.STRICT)
    engine.take_states(1)
    with pytest.raises(WatchError, match="goes on behind 0 tokens from the state in block 1, which nothing was computed into"):
        engine.go_on("a", TEXT[:8], 1)


# --- the watch and the engine -------------------------------------------------------------------------------------------------

EARS = [
    (room, name)
    for room in (MemoryEars, StepEars, TreeEars)
    for name, method in vars(room).items()
    if inspect.isfunction(method)
    and list(inspect.signature(method).parameters)[-2:] == ["args", "kwargs"]
    and (room is not TreeEars or name == "_inserted")
    and name != "_pages_freed"  # a state has no pages
]


def whole_life(engine: FakeStateEngine) -> list[object]:
    """Something for every ear. Returns what the engine's calls have returned."""
    evicted(engine)
    engine.states.next, engine.host_states.next = [7], [7]
    answers = [engine.states.alloc(1), engine.host_states.alloc(1), engine.controller.load(slots_of([]))]
    engine.host_states.free(np.array([7]))
    engine.rest(1)
    engine.states.clear()
    engine.host_states.clear()
    return [None if each is None else each.tolist() for each in answers]


@pytest.mark.parametrize(("room", "name"), EARS, ids=lambda each: each if isinstance(each, str) else each.__name__)
def test_broken_ear_never_reaches_the_engine(room: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on as without a watch; the watch is lost, and has let go of everything."""
    alone = FakeStateEngine()
    alone.take(1, 2, 3, 4)
    expected = whole_life(alone)

    def broken(*_: object) -> None:
        raise RuntimeError("an ear is broken")

    monkeypatch.setattr(room, name, broken)
    engine, watch = watched()

    assert whole_life(engine) == expected
    assert isinstance(watch.lost, RuntimeError)
    assert "copy_from" not in vars(engine.state_pool)
    assert "free" not in vars(engine.states)
