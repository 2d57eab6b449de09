"""What an engine calls, and what it is told when it calls in the wrong order: every method of the offload scheduler.

Method: rigs, small enough to count on one hand; tokens are letters, and a copy lands when a test says so. What is refused must
leave the ledger and the scheduler as they were, byte for byte.
"""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from blocklife.errors import BlocklifeError, CapacityError, MisuseError
from blocklife.ledger import Completion, Contract, JobId, Launched, Ledger, LedgerTransition, Limits, Result, Worker
from blocklife.offload import FullHit, Geometry, HostTier, LastStep, Mode, OffloadScheduler, Placed, Policies
from blocklife.offload._lookup import Answer
from blocklife.offload._search import HostAnswers
from blocklife.states import Block, BlockLife, Request, Slot
from tests.rigs import Rig, key, letters, scheduler_refuses, sources, targets
from tests.worlds import make_ledger, ready

# --- one life ----------------------------------------------------------------------------------------------------------------


def test_content_is_stored_as_it_fills_and_loaded_when_the_device_has_forgotten_it() -> None:
    """A step plans the stores of what it fills, the next one submits them; later all of it comes back as one load."""
    rig = Rig()
    rig.add("a", letters(10))
    rig.let_in("a")
    first, second = rig.tick(), rig.tick()
    rig.scheduler.finish("a")
    rig.reset_device()
    rig.add("b", letters(10))
    hit = rig.hit("b")
    runs = rig.scheduler.admit("b", hit, 2)
    load = rig.tick()

    assert first.empty
    assert sources(second) == [[1, 2]]
    assert rig.stored() == ["abcd", "abcdefgh"]
    assert (hit.tokens, hit.device_tokens, hit.host_tokens, hit.compute_from, hit.deferred) == (8, 0, 8, 8, False)
    assert not runs
    assert targets(load) == [rig.blocks("b")]
    assert rig.settled.loaded == ("b",)
    assert rig.ledger.requests.state("b") is Request.RUNNING
    assert rig.scheduler.requests.progress("b").computed == 8


# --- pins and caps -----------------------------------------------------------------------------------------------------------


def pinned(rig: Rig) -> int:
    """Slots that somebody counts on."""
    return rig.tier.statistics().pinned


@pytest.mark.parametrize("end", ["plan", "again", "abort", "reset", "load"])
def test_lookup_pins_what_it_counted_until_its_step_ends(end: str) -> None:
    """The pins go with the plan, with another lookup, with the request, and pass to the load, which lets go when it lands."""
    rig = Rig()
    rig.fill("a", letters(12))
    rig.reset_device()
    rig.add("b", letters(13))
    hit = rig.hit("b")
    during = pinned(rig)
    held = dict(rig.ledger.slots.holders)
    if end == "plan":
        rig.plan()
    elif end == "again":
        rig.scheduler.lookup("b", 5)
    elif end == "abort":
        rig.scheduler.abort("b")
    elif end == "reset":
        rig.scheduler.reset()
    else:
        rig.scheduler.admit("b", hit, 1)
    after = pinned(rig)

    assert during == 3
    assert list(held) == ["lookup b"]
    assert after == {"again": 1, "load": 3}.get(end, 0)
    assert rig.ledger.slots.holders == ({"lookup b": {hit.slots[0][0]: 1}} if end == "again" else {})
    if end == "load":
        rig.tick()
        assert pinned(rig) == 0


def test_deferred_lookup_is_answered_from_memory_until_a_job_has_ended() -> None:
    """Asking again costs nothing while nothing has ended; then it is looked up again."""
    rig = Rig()
    rig.add("a", letters(8))
    rig.let_in("a")
    rig.tick(land=False)
    rig.tick(land=False)
    rig.scheduler.preempt("a")
    rig.ledger.drop([rig.ledger.blocks.life(place) for place in (1, 2)])
    asked: list[int] = []
    keys = rig.scheduler._state.requests["a"].keys

    def counted(group: int, start: int, stop: int) -> object:
        asked.append(group)
        return keys(group, start, stop)

    rig.scheduler._state.requests["a"].keys = counted  # type: ignore[assignment]
    first = rig.hit("a")
    calls = len(asked)
    again = rig.hit("a")

    assert first.deferred
    assert again.deferred
    assert calls == len(asked) == 1
    rig.plan()
    rig.settle()
    assert not rig.hit("a").deferred
    assert rig.scheduler.statistics().deferred == 1


def test_deferred_lookup_is_answered_anew_when_the_load_that_it_waits_for_is_given_up() -> None:
    """The copy is still out, and nobody waits for its content any more: who wants it loads it."""
    rig = Rig(blocks=40)
    rig.fill("a", letters(8))
    rig.reset_device()
    for name in "bc":
        rig.add(name, letters(9))
    rig.let_in("b")
    rig.tick(land=False)
    before = rig.hit("c")
    rig.scheduler.preempt("b")
    after = rig.hit("c")

    assert (before.deferred, after.deferred) == (True, False)
    assert after.host_tokens == 8


@pytest.mark.parametrize("what", ["preempt", "reset"])
def test_hit_is_good_for_one_admission(what: str) -> None:
    """Who has lost everything in the same step is looked up again: what the hit counted on is no longer pinned."""
    rig = Rig(policies=Policies(last_step=LastStep.DRAIN))
    rig.fill("a", letters(4))
    rig.add("b", letters(9))
    hit = rig.hit("b")
    if what == "preempt":
        rig.scheduler.admit("b", hit, 5)
        rig.scheduler.preempt("b")
    else:
        rig.scheduler.reset()
    with scheduler_refuses(rig, MisuseError, "its hit is not of this step"):
        rig.scheduler.admit("b", hit, 5)


@pytest.mark.parametrize(("cap", "tokens"), [(0, 0), (3, 0), (4, 4), (9, 8), (None, 12)])
def test_max_load_tokens_bounds_what_is_loaded(cap: int | None, tokens: int) -> None:
    """So many tokens behind the device's hit, rounded down to chunks."""
    rig = Rig(policies=Policies(max_load_tokens=cap))
    rig.fill("a", letters(13))
    rig.reset_device()
    rig.add("b", letters(13))

    assert rig.hit("b").host_tokens == tokens


@pytest.mark.parametrize(
    ("policies", "texts"),
    [
        (Policies(), ["abcd", "abcdefgh", "abcdefghijkl"]),
        (Policies(max_store_tokens=0), []),
        (Policies(max_store_tokens=7), ["abcd"]),
        (Policies(prompt_only=True), ["abcd"]),
        (Policies(prompt_only=True, max_store_tokens=3), []),
    ],
    ids=["all", "none", "seven", "prompt", "both"],
)
def test_caps_on_what_is_stored(policies: Policies, texts: list[str]) -> None:
    """The first tokens of a request, those of its prompt; in a step and at its end alike."""
    rig = Rig(policies=policies)
    rig.add("a", letters(16), prompt=6)
    rig.let_in("a")
    rig.tick()
    for _ in range(7):
        rig.scheduler.grow()
        rig.tick()
    rig.scheduler.finish("a")
    rig.drain()

    assert rig.stored() == texts


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_max_load_failures_ends_the_looking(failures: int) -> None:
    """A request whose loads were lost looks no further than the device; others still load, unless none is to be tried."""
    rig = Rig(policies=Policies(max_load_failures=failures))
    rig.add("b", letters(9))
    for attempt in range(failures):
        rig.fill(f"a{attempt}", letters(8))
        rig.reset_device()
        assert not rig.let_in("b")
        rig.tick(ok=False)
        assert rig.settled.failed == ("b",)
        assert rig.ledger.requests.state("b") is Request.WAITING
        assert rig.ledger.requests.table("b") == []
    rig.fill("again", letters(8))
    rig.reset_device()
    rig.add("c", letters(9))

    assert rig.hit("b").host_tokens == 0
    assert rig.hit("c").host_tokens == (8 if failures else 0)


# --- many want one -----------------------------------------------------------------------------------------------------------


def test_what_a_load_brings_is_expected_until_it_has_ended() -> None:
    """Nobody else needs to load it meanwhile; afterwards nothing is kept of it, however the load ended."""
    for ok in (True, False):
        rig = Rig(blocks=12)
        rig.fill("z", letters(8))
        rig.reset_device()
        rig.add("b", letters(9))
        rig.let_in("b")
        state = rig.scheduler._state
        assert (list(state.bringing), len(state.loading), list(state.waiting_loads)) == (["b"], 2, ["b"])
        rig.tick(ok=ok)

        assert (state.bringing, state.loading, state.waiting_loads) == ({}, {}, {})


@pytest.mark.parametrize("chunk", [1, 2])
def test_chunk_has_its_turn_once(chunk: int) -> None:
    """What was offered when it filled is not offered again, whoever is looked at in the steps behind it."""
    rig = Rig(chunk=chunk, blocks=20, slots=16)
    rig.add("a", letters(40), prompt=9)
    rig.let_in("a")
    for _ in range(20):
        rig.tick()
        rig.scheduler.grow()
    counts = rig.scheduler.statistics()

    assert (counts.already_stored, counts.in_flight, counts.waiting) == (0, 0, 0)


# --- ends --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 3])
def test_other_number_of_sampled_tokens_counts_after_many_steps_of_one(count: int) -> None:
    """Who has run one token a step for long is not looked at in each, and must be where an engine tells of it."""
    rig = Rig()
    rig.add("a", letters(20), prompt=3)
    rig.let_in("a")
    rig.tick()
    for _ in range(2):
        rig.scheduler.grow()
        rig.tick()
    rig.scheduler.grow()
    known = rig.scheduler.requests.progress("a").known
    rig.tick(sampled={"a": count})

    assert rig.scheduler.requests.progress("a").known == known + count


def test_what_has_left_a_window_is_given_back_once() -> None:
    """However long the request runs on."""
    rig = Rig("swa:4:5", blocks=9)
    rig.add("r", "one window slides along", 12)
    rig.let_in("r")
    rig.plan()
    rig.settle()
    given: list[int | None] = []

    def hear(record: LedgerTransition) -> None:
        given.extend([move.life for move in record])

    rig.ledger.on(BlockLife.release, hook=hear)
    for _ in range(6):
        rig.scheduler.grow()
        rig.plan()
        rig.settle()

    assert given
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("groups", ["full:4", "full:8,swa:4:9"])
def test_end_is_a_use_of_what_the_host_has_of_a_request(groups: str) -> None:
    """Who ends has just used it, also where a group has no whole chunk yet: what goes next is what nobody has used since."""
    rig, last = Rig(groups, slots=2), groups.count(",")
    for name, text in (("a", letters(5)), ("b", letters(5, "p"))):
        rig.add(name, text)
        rig.let_in(name)
        rig.tick()
        rig.tick()
    before = rig.stored(last)
    rig.scheduler.finish("a")
    rig.fill("c", letters(5, "k"))

    assert before == ["abcd", "pqrs"]
    assert rig.stored(last) == ["abcd", "klmn"]


def test_nobody_waits_for_the_copies_of_who_was_preempted_and_is_over() -> None:
    """The wait was for the one who would come back."""
    rig = Rig(policies=Policies(last_step=LastStep.DRAIN))
    rig.add("a", letters(8))
    rig.let_in("a")
    rig.tick(land=False)
    rig.tick(land=False)
    rig.scheduler.preempt("a")
    rig.scheduler.abort("a")

    assert rig.ledger.jobs.live == 1
    assert rig.plan().flushes == ()


def planned_ahead(groups: str) -> Rig:
    """Request a has filled its second block with a token that was sampled while the plan for it was out."""
    rig = Rig(groups, policies=Policies(plans_ahead=1, last_step=LastStep.DRAIN))
    rig.add("a", letters(20), prompt=7)
    rig.let_in("a", 4)
    rig.tick()
    rig.scheduler.grow({"a": 3})
    rig.plan()
    rig.scheduler.grow({"a": 1})
    if "mamba" in groups:
        rig.scheduler.hand_off("a", 0, 8)
    rig.plan()
    rig.settle()
    return rig


@pytest.mark.parametrize("how", ["preempt", "finish", "abort"])
@pytest.mark.parametrize(
    ("groups", "texts"), [("full:4", ["abcd", "abcdefgh"]), ("mamba:4", ["abcdefgh"])], ids=["full", "mamba"]
)
def test_what_was_planned_ahead_is_stored_although_its_request_stops(groups: str, texts: list[str], how: str) -> None:
    """When the plan was made its last token was not known; it is now, and there will be no other plan of this request."""
    rig = planned_ahead(groups)
    rig.settle()
    getattr(rig.scheduler, how)("a")
    rig.drain()
    for _ in range(3):
        rig.tick()

    assert rig.stored() == texts
    assert rig.scheduler.statistics().already_stored == 0


def test_state_that_was_handed_off_is_offered_once() -> None:
    """In the first plan that knows its last token; later plans do not speak of it."""
    rig = planned_ahead("mamba:4")
    rig.settle()
    for _ in range(6):
        rig.scheduler.grow()
        rig.tick()

    assert "abcdefgh" in rig.stored()
    assert rig.scheduler.statistics().already_stored == 0


def test_state_that_is_still_being_made_is_not_offered_by_a_preemption() -> None:
    """Its last token is known, and the plan that computes it is out: its block is given away before it is final."""
    rig = planned_ahead("mamba:4")
    rig.scheduler.preempt("a")

    assert rig.scheduler.statistics().waiting == 0


def test_end_that_waits_for_its_plan_comes_with_a_reset() -> None:
    """Nobody's content is wanted any more: the request holds nothing, and its plan settles without it."""
    rig = Rig(policies=Policies(plans_ahead=1))
    rig.add("a", letters(8))
    rig.let_in("a")
    rig.plan()
    rig.scheduler.finish("a")
    preempted = rig.scheduler.reset()

    assert preempted == []
    assert "a" not in rig.ledger.requests
    assert rig.settle().ended == ()


def test_who_is_refused_admission_has_cost_nothing() -> None:
    """Without a job for its load nothing is taken: the device keeps what it has cached."""
    rig = Rig(blocks=6, max_jobs=1, policies=Policies(last_step=LastStep.DRAIN))
    rig.fill("a", letters(8))
    rig.reset_device()
    rig.fill("x", letters(4, "p"))
    rig.add("y", letters(4, "s"))
    rig.let_in("y")
    rig.tick(land=False)
    rig.tick(land=False)
    rig.add("b", letters(9))
    hit = rig.hit("b")
    with scheduler_refuses(rig, CapacityError, "all 1 jobs are out"):
        rig.scheduler.admit("b", hit, 1)


def test_who_finds_no_room_to_grow_is_named_in_order() -> None:
    """The others are scheduled; after a preemption the rest can be scheduled by name, and nobody twice."""
    rig = Rig(blocks=4)
    for name in "abc":
        rig.add(name, letters(8, name), prompt=4)
        rig.let_in(name)
    rig.tick()
    short = rig.scheduler.grow({"c": 1, "a": 1})
    rig.scheduler.preempt("b")
    again = rig.scheduler.grow({"c": 1})
    plan = rig.plan()

    assert short == ["c", "a", "b"]
    assert again == ["a"]
    assert rig.scheduler.requests.progress("c").in_flight == 1
    assert rig.scheduler.requests.progress("a").in_flight == 0
    assert plan.number == 2


# --- the world changes -------------------------------------------------------------------------------------------------------


def loading_and_running(workers: int = 1) -> Rig:
    """Request b loads, request c runs, and has a store out."""
    rig = Rig(blocks=30, workers=workers)
    rig.fill("a", letters(8))
    rig.reset_device()
    rig.add("c", letters(8, "p"))
    rig.let_in("c")
    rig.tick(land=False)
    rig.add("b", letters(9))
    rig.let_in("b")
    rig.tick(land=False)
    return rig


@pytest.mark.parametrize("what", ["reset", "renew", "sleep", "lose"])
@pytest.mark.parametrize("workers", [1, 2])
def test_upheavals_name_everybody_they_preempt(what: str, workers: int) -> None:
    """Also who was loading from the worker that is gone: nobody else would tell the engine that it waits again."""
    rig = loading_and_running(workers)
    act: dict[str, Callable[[], list[str]]] = {
        "reset": rig.scheduler.reset,
        "renew": lambda: rig.scheduler.reset(generation="other weights"),
        "sleep": rig.scheduler.sleep,
        "lose": lambda: rig.scheduler.lose_worker(0),
    }
    names = act[what]()
    states = {name: rig.ledger.requests.state(name) for name in "bc"}

    assert sorted(names) == ["b", "c"]
    assert set(states.values()) <= {Request.WAITING, Request.PREEMPTED}
    assert rig.cached() == []
    assert rig.stored() == (["abcd", "abcdefgh"] if what == "sleep" else [])
    assert rig.tick().loads == ()
    assert rig.settled.loaded == rig.settled.failed == ()


@pytest.mark.parametrize("what", ["planned", "candidates", "landed", "state"])
def test_reset_leaves_no_more_than_a_new_scheduler_has(what: str) -> None:
    """No wish, no note of a job and no state outlives the content: when nobody is left, nothing tells it from a new one."""
    lazy = what in ("candidates", "landed")
    policies = Policies(mode=Mode.LAZY if lazy else Mode.EAGER, last_step=LastStep.DRAIN)
    groups = "mamba:4" if what == "state" else "full:4"
    used, fresh = (Rig(groups, blocks=4, slots=1, max_requests=1, policies=policies) for _ in range(2))
    used.add("a", letters(9))
    used.let_in("a", 4 if what == "state" else None)
    if what == "state":
        used.scheduler.hand_off("a", 0, 4)
    elif what == "landed":
        used.tick()
        used.scheduler.finish("a")
        (stored,) = used.tick(land=False).stores
        used.ledger.complete(Completion(stored.job, Worker(0), Result.OK))
    else:
        used.plan()
    used.scheduler.reset()
    waiting = used.scheduler.statistics().waiting
    if used.plans:
        used.settle()
    if what != "landed":
        used.scheduler.abort("a")

    assert waiting == 0
    left, made = (rig.scheduler.snapshot(rig.scheduler.canonical_names()) for rig in (used, fresh))
    for field in left._fields:
        if field not in ("replacement", "gone"):  # the host tier tells its policy when it asks it next
            assert getattr(left, field) == getattr(made, field), field


def test_scheduler_remembers_nobody_who_is_over() -> None:
    """However many have come and gone, what it keeps of requests and of their jobs is what it began with."""
    rig = Rig(slots=2)
    scheduler, line = rig.scheduler, rig.scheduler._stores
    for number in range(30):
        rig.add(f"a{number}", letters(9, "abcdefgh"[number % 8]))
        rig.let_in(f"a{number}")
        rig.tick()
        rig.tick(land=False)
        if number % 3 == 0:
            scheduler.preempt(f"a{number}")
        scheduler.finish(f"a{number}")
        rig.tick()
    rig.drain()
    state = scheduler._state
    kept = (
        state.requests,
        state.names,
        state.states,
        state.waiting_loads,
        state.loading,
        state.bringing,
    )
    kept += (
        state.pinned,
        state.preempted,
        state.stays.ending,
        state.outlived,
        state.handed,
    )  # type: ignore[assignment]
    kept += (line._line, line._candidates, line._exposed, line._made)  # type: ignore[assignment]

    assert [len(each) for each in kept] == [0] * len(kept)
    assert not any(scheduler._state.progress.known)


def test_a_lost_worker_stops_stores_until_it_is_back() -> None:
    """What is computed meanwhile is not whole on every worker: it never reaches the host tier, and ends with the absence."""
    rig = Rig(workers=2)
    rig.scheduler.lose_worker(1)
    rig.add("a", letters(8))
    rig.let_in("a")
    rig.tick()
    plans = [rig.tick() for _ in range(3)]
    before = rig.cached()
    names = rig.scheduler.regain_worker(1)
    after = rig.cached()
    rig.scheduler.abort("a")
    rig.fill("b", letters(8, "p"))

    assert all(plan.empty for plan in plans)
    assert (before, names, after) == (["abcd", "abcdefgh"], ["a"], [])
    assert rig.stored() == ["pqrs", "pqrstuvw"]


# --- states ------------------------------------------------------------------------------------------------------------------


def test_a_state_is_kept_only_where_it_was_handed_off() -> None:
    """Two boundaries are reached, one is handed off: it alone is sealed, stored, and found."""
    rig = Rig("mamba:4")
    rig.add("a", letters(13))
    rig.let_in("a", 4)
    rig.tick()
    rig.scheduler.grow({"a": 4})
    rig.scheduler.hand_off("a", 0, 8)
    rig.tick()
    rig.scheduler.grow({"a": 5})
    rig.tick()
    rig.drain()

    assert rig.cached() == ["abcdefgh"]
    assert rig.stored() == ["abcdefgh"]


def test_a_state_inside_a_chunk_is_sealed_and_not_stored() -> None:
    """A hit has the length of whole chunks, so that the host has no use for it; the device has."""
    rig = Rig("mamba:2", chunk=2)
    rig.add("a", letters(9))
    rig.let_in("a", 2)
    rig.scheduler.hand_off("a", 0, 2)
    rig.tick()
    rig.scheduler.grow({"a": 2})
    rig.scheduler.hand_off("a", 0, 4)
    rig.tick()
    rig.drain()

    assert rig.cached() == ["ab", "abcd"]
    assert rig.stored() == ["abcd"]


def test_a_state_whose_block_the_engine_took_back_is_neither_sealed_nor_stored() -> None:
    """The plan settles all the same, and the state counts as stale: another request has the block."""
    ledger = Ledger(Limits(num_blocks=8, num_slots=4, max_requests=4), own_pool=False)
    scheduler = OffloadScheduler(ledger, HostTier(ledger), Geometry.parse("mamba:4"))
    for name in "ab":
        scheduler.add_request(
            name, lambda group, start, stop: [key(group, str(at)) for at in range(start, stop)], prompt_tokens=9
        )
        hit = scheduler.lookup(name, 9, 0)
        scheduler.place(name, [Placed(0, fresh=(1,))])
        scheduler.admit(name, hit, 4)
        if name == "a":
            scheduler.hand_off("a", 0, 4)
            scheduler.free("a", 0, [1])
    plan = scheduler.build_plan(0.0)
    scheduler.settle(plan.number, 0.0)

    assert (scheduler.statistics().stale, scheduler.statistics().in_flight) == (1, 0)
    assert scheduler.build_plan(0.0).submitted == ()
    assert ledger.blocks.state(1) is Block.ALLOCATED


def test_a_plan_that_is_refused_keeps_the_states_that_were_handed_off() -> None:
    """One request's key function contradicts itself; the state of another is stored by the next plan all the same."""
    rig, lie = Rig("full:4,mamba:4"), [""]
    rig.add("b", letters(13, "n"))
    rig.scheduler.add_request("a", lambda group, start, _: [key(group, f"{lie[0]}{start}")], prompt_tokens=5)
    rig.scheduler.cap("a", 0, None)
    rig.let_in("a", 4)
    rig.tick()  # its block is sealed, and not stored
    rig.scheduler.cap("a", None, None)
    rig.scheduler.grow({"a": 1})
    rig.let_in("b", 4)
    rig.scheduler.hand_off("b", 1, 4)
    lie[0] = "other "
    with scheduler_refuses(rig, MisuseError, "one content, one key"):
        rig.scheduler.build_plan(9.0)
    lie[0] = ""
    rig.tick()
    rig.scheduler.grow({"a": 0, "b": 0})
    rig.drain()

    assert rig.stored(1) == ["nopq"]


# --- what is refused ---------------------------------------------------------------------------------------------------------


def busy(rig: Rig) -> Rig:
    """Request r runs and has been scheduled; l loads; w waits; e has ended."""
    rig.add("e", letters(8))
    for end in (4, 8):
        (rig.scheduler.grow({"e": 4}) if end > 4 else rig.let_in("e", 4))
        for group in range(1, len(rig.geometry.groups)):
            rig.scheduler.hand_off("e", group, end)
        rig.tick()
    rig.scheduler.finish("e")
    rig.drain()
    rig.reset_device()
    rig.add("l", letters(9))
    assert not rig.let_in("l")
    rig.add("r", letters(9, "p"))
    rig.let_in("r", 4)
    rig.add("w", letters(9, "k"))
    return rig


def unknown(rank: int) -> Completion:
    return Completion(JobId(1, 1), Worker(rank), Result.OK)


ORDER: dict[str, tuple[type[BlocklifeError], str, Callable[[Rig], object]]] = {
    "add a name in use": (MisuseError, "it is known already", lambda rig: rig.add("r", "abcd")),
    "add without a prompt": (
        *(MisuseError, "a prompt has at least 1 token"),
        lambda rig: rig.scheduler.add_request("n", lambda group, start, stop: [], prompt_tokens=0),
    ),
    "lookup of nobody": (MisuseError, "it is not known", lambda rig: rig.scheduler.lookup("x", 4)),
    "lookup of who is over": (MisuseError, "it is not known", lambda rig: rig.scheduler.lookup("e", 4)),
    "lookup while running": (MisuseError, "cannot LOOKUP while RUNNING", lambda rig: rig.scheduler.lookup("r", 4)),
    "lookup while loading": (MisuseError, "it waits for its load .wait until", lambda rig: rig.scheduler.lookup("l", 4)),
    "lookup of no token": (MisuseError, "known_tokens must be at least 1", lambda rig: rig.scheduler.lookup("w", 0)),
    "lookup with another's answer": (
        *(MisuseError, "the ledger looks the device up"),
        lambda rig: rig.scheduler.lookup("w", 4, device_tokens=0),
    ),
    "admit without a lookup": (
        *(MisuseError, "its hit is not of this step"),
        lambda rig: rig.scheduler.admit("w", rig.scheduler._state.requests["l"].hit, 4),  # type: ignore[arg-type]
    ),
    "admit while running": (
        *(MisuseError, "cannot ADMIT while RUNNING"),
        lambda rig: rig.scheduler.admit("r", rig.scheduler._state.requests["r"].hit, 4),  # type: ignore[arg-type]
    ),
    "free nobody": (
        MisuseError,
        "add it first; a request that is over is forgotten",
        lambda rig: rig.scheduler.free("x", 0, []),
    ),
    "grow nobody": (MisuseError, "it is not known", lambda rig: rig.scheduler.grow({"x": 1})),
    "grow who waits": (MisuseError, "cannot GROW while WAITING", lambda rig: rig.scheduler.grow({"w": 1})),
    "grow who loads": (MisuseError, "LOADING: it waits for its load", lambda rig: rig.scheduler.grow({"l": 1})),
    "grow by less than nothing": (MisuseError, "cannot grow by -1", lambda rig: rig.scheduler.grow({"r": -1})),
    "grow twice": (MisuseError, "scheduled in this step already", lambda rig: rig.scheduler.grow({"r": 1})),
    "preempt nobody": (MisuseError, "it is not known", lambda rig: rig.scheduler.preempt("x")),
    "preempt who waits": (MisuseError, "cannot PREEMPT while WAITING", lambda rig: rig.scheduler.preempt("w")),
    "finish nobody": (MisuseError, "it is not known", lambda rig: rig.scheduler.finish("x")),
    "abort who is over": (MisuseError, "it is not known", lambda rig: rig.scheduler.abort("e")),
    "progress of nobody": (MisuseError, "it is not known", lambda rig: rig.scheduler.requests.progress("x")),
    "hand off of attention": (MisuseError, "only states of Mamba", lambda rig: rig.scheduler.hand_off("r", 0, 4)),
    "hand off of no group": (MisuseError, "only states of Mamba", lambda rig: rig.scheduler.hand_off("r", 2, 4)),
    "hand off of nobody": (MisuseError, "it is not known", lambda rig: rig.scheduler.hand_off("x", 1, 4)),
    "hand off of who waits": (MisuseError, "not scheduled in it", lambda rig: rig.scheduler.hand_off("w", 1, 4)),
    "hand off inside a block": (MisuseError, "a multiple of 4", lambda rig: rig.scheduler.hand_off("r", 1, 3)),
    "hand off of the beginning": (MisuseError, "a multiple of 4", lambda rig: rig.scheduler.hand_off("r", 1, 0)),
    "hand off ahead": (MisuseError, "it computes tokens 0 to 4", lambda rig: rig.scheduler.hand_off("r", 1, 8)),
    "place in the ledger's pool": (
        *(MisuseError, "a pool that the ledger owns"),
        lambda rig: rig.scheduler.place("w", [Placed(0, fresh=(9,))]),
    ),
    "free in the ledger's pool": (MisuseError, "observe_", lambda rig: rig.scheduler.free("r", 0, [1])),
    "settle nothing": (MisuseError, "no plan is out", lambda rig: rig.scheduler.settle(1, 1.0)),
    "settle again": (MisuseError, "no plan is out", lambda rig: rig.scheduler.settle(rig.ledger.plans.number, 1.0)),
    "renew what is": (MisuseError, "it is the present one", lambda rig: rig.scheduler.reset(generation="")),
    "wake who is awake": (MisuseError, "does not sleep", lambda rig: rig.scheduler.wake()),
    "lose nobody": (MisuseError, "worker 7: there are 1", lambda rig: rig.scheduler.lose_worker(7)),
    "regain who is there": (MisuseError, "it is not lost", lambda rig: rig.scheduler.regain_worker(0)),
    "drain while copies are out": (CapacityError, "1 job is still out", lambda rig: rig.scheduler.reset(drain=True)),
}


@pytest.mark.parametrize("case", list(ORDER))
def test_wrong_order_or_input_is_refused_and_changes_nothing(case: str) -> None:
    """Every method says what it expected, and leaves the ledger and the scheduler as they were."""
    error, match, act = ORDER[case]
    rig = busy(Rig("full:4,mamba:4"))
    with scheduler_refuses(rig, error, match):
        act(rig)


PLANNED: dict[str, tuple[type[BlocklifeError], str, Callable[[Rig], object]]] = {
    "second plan": (MisuseError, "is not settled", lambda rig: rig.scheduler.build_plan(9.0)),
    "lookup": (MisuseError, "is not settled", lambda rig: rig.scheduler.lookup("w", 9)),
    "grow": (MisuseError, "is not settled", lambda rig: rig.scheduler.grow()),
    "settle another": (
        *(MisuseError, "cannot settle now .plan \\d+ is next"),
        lambda rig: rig.scheduler.settle(rig.plans[0].number + 1, 9.0),
    ),
    "sampled by nobody": (
        *(MisuseError, "it is not known"),
        lambda rig: rig.scheduler.settle(rig.plans[0].number, 9.0, sampled={"x": 1}),
    ),
    "sampled less than nothing": (
        *(MisuseError, "cannot have sampled -1"),
        lambda rig: rig.scheduler.settle(rig.plans[0].number, 9.0, sampled={"r": -1}),
    ),
    "report of no worker": (
        *(MisuseError, "worker 3: there are 1"),
        lambda rig: rig.scheduler.settle(rig.plans[0].number, 9.0, completions=[unknown(3)]),
    ),
}


@pytest.mark.parametrize("case", list(PLANNED))
def test_wrong_calls_while_a_plan_is_out_are_refused_and_change_nothing(case: str) -> None:
    """Between a plan and its settling only aborts and upheavals have a place."""
    error, match, act = PLANNED[case]
    rig = busy(Rig("full:4,mamba:4"))
    rig.plan()
    with scheduler_refuses(rig, error, match):
        act(rig)
    rig.settle()


SLEEPING: dict[str, Callable[[Rig], object]] = {
    "lookup": lambda rig: rig.scheduler.lookup("w", 9),
    "grow": lambda rig: rig.scheduler.grow(),
    "sleep": lambda rig: rig.scheduler.sleep(),
}


@pytest.mark.parametrize("case", list(SLEEPING))
def test_sleeping_scheduler_refuses_a_step_and_changes_nothing(case: str) -> None:
    """It ticks, and requests may come and go; nothing is scheduled."""
    rig = busy(Rig("full:4,mamba:4"))
    rig.scheduler.sleep()
    with scheduler_refuses(rig, MisuseError, "sleeps"):
        SLEEPING[case](rig)
    rig.add("n", "abcd")
    rig.scheduler.abort("n")
    rig.tick()


def test_deferred_hit_and_no_tokens_are_refused() -> None:
    """Who waits for a copy cannot be let in, and who runs computes something."""
    rig = busy(Rig())
    rig.add("m", letters(9))
    deferred, fresh = rig.hit("m"), rig.hit("w")

    assert deferred.deferred
    with scheduler_refuses(rig, MisuseError, "its lookup is deferred"):
        rig.scheduler.admit("m", deferred, 1)
    with scheduler_refuses(rig, MisuseError, "cannot run 0 tokens"):
        rig.scheduler.admit("w", fresh, 0)


def test_key_of_a_block_is_asked_for_once_by_its_plan() -> None:
    """What is stored by a plan is sealed when it settles under the key that was given then; a restored plan has none."""
    rig, asked = Rig(), list[tuple[int, int, int]]()

    def keys(group: int, start: int, stop: int) -> list[bytes]:
        asked.append((group, start, stop))
        return [key(group, letters(20)[: 4 * block + 4]) for block in range(start, stop)]

    rig.scheduler.add_request("a", keys, prompt_tokens=13)
    rig.let_in("a", 13)
    asked.clear()
    rig.plan()
    saved = rig.scheduler.snapshot()
    rig.settle()
    assert asked == [(0, 0, 3)]

    rig.scheduler.restore(saved)
    rig.scheduler.settle(rig.scheduler.plans_out[0], rig.now)
    assert asked == [(0, 0, 3), (0, 0, 3)]
    assert rig.scheduler.requests.sealed_blocks("a", 0) == 3


def test_keys_of_a_plan_are_void_for_a_request_that_left_it() -> None:
    """It was preempted before the plan settles: what it computes when it comes back may have other keys."""
    rig, asked = Rig(policies=Policies(plans_ahead=1)), list[str]()

    def keys_for(name: str) -> Callable[[int, int, int], list[bytes]]:
        def keys(group: int, start: int, stop: int) -> list[bytes]:
            asked.append(name)
            return [key(group, letters(20, name)[: 4 * block + 4]) for block in range(start, stop)]

        return keys

    for name in "ab":
        rig.scheduler.add_request(name, keys_for(name), prompt_tokens=13)
        rig.let_in(name, 13)
    rig.plan()
    rig.scheduler.preempt("a")
    rig.settle()
    asked.clear()

    for name in "ab":
        rig.scheduler._asking.keys_of(rig.scheduler._state.requests[name], 0, 0, 3)
    assert asked == ["a"]


def test_renewal_that_is_refused_changes_no_generation() -> None:
    """A hook may not call the ledger; the same name is a new one afterwards."""
    rig = Rig()
    rig.add("a", letters(5))
    refused = []

    def hook(_: object) -> None:
        with pytest.raises(MisuseError, match="a hook cannot call the ledger"):
            rig.scheduler.reset(generation="v2")
        refused.append(rig.scheduler.generation)

    rig.ledger.on(entered=Request.RUNNING, hook=hook)
    rig.let_in("a")

    rig.scheduler.reset(generation="v2")

    assert (refused, rig.scheduler.generation) == ([""], "v2")


def test_a_state_is_handed_off_once() -> None:
    """A second time, in this step or in a later one, is refused when it is said, not when the plan settles."""
    rig = busy(Rig("full:4,mamba:4"))
    rig.scheduler.hand_off("r", 1, 4)
    with scheduler_refuses(rig, MisuseError, "handed off already"):
        rig.scheduler.hand_off("r", 1, 4)
    rig.tick()
    rig.scheduler.grow({"r": 4})
    with scheduler_refuses(rig, MisuseError, "it computes tokens 4 to 8"):
        rig.scheduler.hand_off("r", 1, 4)
    rig.tick()


def test_a_place_without_a_block_has_no_state_to_hand_off() -> None:
    """A step over several boundaries has a block for the last one only."""
    rig = Rig("mamba:4")
    rig.add("a", letters(9))
    rig.let_in("a", 8)
    with scheduler_refuses(rig, MisuseError, "no block of group 0 was placed"):
        rig.scheduler.hand_off("a", 0, 4)


@pytest.mark.parametrize(
    ("groups", "num_groups", "policies", "match"),
    [
        ("full:4", 2, Policies(), "1 groups do not fit a ledger of num_groups=2"),
        ("full:4,mamba:4", 2, Policies(full_hit=FullHit.RECOMPUTE_LAST_TOKEN), "group 1 .* cannot step back"),
        ("full:4", 1, None, ""),
    ],
    ids=["groups", "states", "fits"],
)
def test_what_cannot_work_together_is_refused_at_the_start(
    groups: str, num_groups: int, policies: Policies | None, match: str
) -> None:
    """A scheduler is checked against its ledger when it is made."""
    ledger = Ledger(Limits(num_blocks=4, num_slots=4, num_groups=num_groups))
    if policies is None:
        assert OffloadScheduler(ledger, HostTier(ledger), Geometry.parse(groups)).policies == Policies()
        return
    with pytest.raises(MisuseError, match=match):
        OffloadScheduler(ledger, HostTier(ledger), Geometry.parse(groups), policies)


@pytest.mark.parametrize("name", ["last_step", "full_hit", "mode", "partial_chunks", "prompt_only"])
def test_policies_refuse_what_only_reads_like_a_choice(name: str) -> None:
    """A text would silently mean something else."""
    with pytest.raises(MisuseError, match=f"{name} must be .*, not 'lazy'"):
        Policies(**{name: "lazy"})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["plans_ahead", "max_load_tokens", "max_store_tokens", "max_load_failures"])
def test_policies_refuse_what_is_no_count(name: str) -> None:
    """Neither less than nothing nor something that only looks like a number."""
    for value in (-1, 1.5, True):
        with pytest.raises(MisuseError, match=name):
            Policies(**{name: value})  # type: ignore[arg-type]
    for least in ("max_job_blocks", "lazy_blocks"):
        with pytest.raises(MisuseError, match=f"{least} must be a whole number of at least 1, not 0"):
            Policies(**{least: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["plans_ahead", "max_load_failures", "max_job_blocks", "lazy_blocks"])
def test_only_limits_of_tokens_may_be_none(name: str) -> None:
    """Elsewhere None would fail later, or not at all."""
    Policies(max_load_tokens=None, max_store_tokens=None)
    with pytest.raises(MisuseError, match=f"{name} must be a whole number of at least ., not None"):
        Policies(**{name: None})  # type: ignore[arg-type]


# --- synchronous and asynchronous --------------------------------------------------------------------------------------------


def final_state(groups: str, chunk: int, seed: int, ahead: int, *, direct: bool = True) -> tuple[object, ...]:
    """Requests come, are scheduled in pieces and end, with memory for everything; gives tokens and all content by name."""
    rnd = random.Random(f"{groups}/{chunk}/{seed}")
    rig = Rig(groups, chunk, blocks=400, slots=200, max_jobs=64, policies=Policies(plans_ahead=ahead))
    if not direct:
        rig.scheduler._steps.offers.direct = False
    todo = []
    for number in range(6):
        shared = rnd.randrange(0, 20)
        text = letters(shared) + letters(48 - shared, chr(ord("a") + rnd.randrange(26)))
        prompt = rnd.randrange(1, 24)
        todo.append((number * 3, f"r{number}", text, prompt, prompt + rnd.randrange(1, 16), rnd.choice((3, 4, 8, 30))))
    goals: dict[str, tuple[int, int]] = {}
    tokens: dict[str, int] = {}
    running: list[str] = []
    waiting: list[str] = []
    for step in range(200):
        for _, name, text, prompt, goal, pace in [each for each in todo if each[0] == step]:
            rig.add(name, text, prompt)
            goals[name] = goal, pace
            waiting.append(name)
        counts = {}
        for name in running:
            at = rig.scheduler.requests.progress(name)
            left = goals[name][0] - 1 - at.computed - at.in_flight
            counts[name] = max(0, min(left, max(1, min(goals[name][1], at.known - at.computed - at.in_flight))))
        assert rig.scheduler.grow(counts) == []
        for name in list(waiting):
            hit = rig.hit(name)
            if hit.deferred:
                continue
            waiting.remove(name)
            prompt = rig.prompts[name]
            if rig.scheduler.admit(name, hit, min(goals[name][1], prompt - hit.compute_from)):
                running.append(name)
        rig.plan()
        while len(rig.plans) > ahead or (rig.plans and not running and not waiting):
            running += rig.settle().loaded
        for name in list(running):
            if rig.scheduler.requests.progress(name).computed >= goals[name][0] - 1:
                tokens[name] = rig.scheduler.requests.progress(name).known
                rig.scheduler.finish(name)
                running.remove(name)
        if len(tokens) == len(todo) and not rig.scheduler.has_pending_work():
            break
    rig.drain()
    content = [(rig.cached(group), rig.stored(group)) for group in range(len(rig.geometry.groups))]
    assert len(tokens) == len(todo)
    return tokens, content


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("groups", ["full:4", "swa:4:6", "full:4,swa:2:5"])
@pytest.mark.parametrize("chunk", [1, 2])
def test_synchronous_and_asynchronous_scheduling_end_in_the_same_state(groups: str, chunk: int, seed: int) -> None:
    """With memory for everything the same tokens are known, and the same content is on the device and in the host tier."""
    synchronous, asynchronous = (final_state(groups, chunk, seed, ahead) for ahead in (0, 1))

    assert synchronous == asynchronous


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("groups", ["full:4", "swa:4:6", "full:4,swa:2:5", "full:4,local:4:8", "full:4+drafter"])
def test_what_is_stored_at_once_is_what_the_queue_would_store(groups: str, ahead: int) -> None:
    """Chunks that need not wait go past the queue: with memory for everything the host tier gets the same content."""
    for seed in range(10):
        print(f"seed {seed}")
        at_once, queued = (final_state(groups, 1, seed, ahead, direct=direct) for direct in (True, False))

        assert at_once == queued


# --- an allocator of the engine's own ----------------------------------------------------------------------------------------


class Allocator:
    """A small allocator that an engine could have: free ids in order, and content by key, first in first out."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.free = list(range(1, len(rig.ledger.blocks)))
        self.index: dict[bytes, int] = {}
        self.tables: dict[str, list[int]] = {}
        self.refs: dict[int, int] = {}

    def hit(self, name: str) -> tuple[int, list[int]]:
        """The longest prefix on the device, in tokens, and its blocks."""
        text, found = self.rig.texts[name], list[int]()
        for end in range(4, self.rig.scheduler.requests.progress(name).known, 4):
            block = self.index.get(key(0, text[:end]))
            if block is None:
                break
            found.append(block)
        return 4 * len(found), found

    def take(self, name: str, shared: list[int], count: int) -> list[int]:
        """Blocks for a request: those of a hit, and so many fresh ones, whose former content is forgotten."""
        for block in shared:
            self.refs[block] = self.refs.get(block, 0) + 1
            if block in self.free:
                self.free.remove(block)
        fresh, self.free = self.free[:count], self.free[count:]
        assert len(fresh) == count
        self.index = {name: block for name, block in self.index.items() if block not in fresh}
        self.refs.update(dict.fromkeys(fresh, 1))
        self.tables.setdefault(name, []).extend([*shared, *fresh])
        return fresh

    def give_back(self, name: str) -> None:
        """The request is over."""
        for block in reversed(self.tables.pop(name)):
            self.refs[block] -= 1
            if not self.refs[block]:
                self.free.append(block)

    def filled(self, name: str, tokens: int) -> None:
        """So many tokens of a request are final."""
        for position in range(tokens // 4):
            self.index.setdefault(key(0, self.rig.texts[name][: 4 * position + 4]), self.tables[name][position])


def run_foreign(rig: Rig, allocator: Allocator, name: str, text: str) -> tuple[int, int]:
    """A request lives from lookup to finish beside the engine's allocator; gives what was hit on device and host."""
    rig.add(name, text)
    device, shared = allocator.hit(name)
    hit = rig.scheduler.lookup(name, len(text), device_tokens=device)
    external = hit.host_tokens // 4
    fresh = allocator.take(name, shared, -(-len(text) // 4) - len(shared))
    parts = (tuple(fresh[:external]), tuple(fresh[external:]))
    rig.scheduler.place(name, [Placed(0, shared=tuple(shared), external=parts[0], fresh=parts[1])])
    if not rig.scheduler.admit(name, hit, len(text) - hit.compute_from):
        rig.tick()
        assert rig.settled.loaded == (name,)
        rig.scheduler.grow({name: len(text) - hit.compute_from})
    rig.tick()
    allocator.filled(name, len(text))
    rig.tick()
    rig.scheduler.finish(name)
    allocator.give_back(name)
    rig.drain()
    return hit.device_tokens, hit.host_tokens


def test_an_allocator_of_the_engine_is_followed_to_the_end() -> None:
    """The engine hands out blocks and knows its own hits; what it has forgotten comes back from the host tier."""
    rig = Rig(blocks=7, own_pool=False)
    allocator = Allocator(rig)
    found = [run_foreign(rig, allocator, *each) for each in (("a", letters(9)), ("b", letters(9)), ("c", letters(22, "p")))]
    found += [run_foreign(rig, allocator, "d", letters(9))]

    assert found == [(0, 0), (8, 0), (0, 0), (0, 8)]
    assert rig.scheduler.statistics().host_hits == (2,)
    assert rig.ledger.statistics().requests == 0
    assert rig.ledger.blocks.count_held() == 0


def test_what_another_request_loads_is_waited_for_in_a_foreign_pool() -> None:
    """The second of two requests of one prompt loads nothing: it asks again when the first one's load is over."""
    rig = Rig(blocks=16, own_pool=False)
    allocator = Allocator(rig)
    run_foreign(rig, allocator, "w", letters(9))
    for name in "ab":  # the engine has forgotten what it had on the device
        rig.add(name, letters(9))
    first = rig.scheduler.lookup("a", 9, device_tokens=0)
    rig.scheduler.place("a", [Placed(0, external=tuple(allocator.take("a", [], 2)), fresh=tuple(allocator.take("a", [], 1)))])
    rig.scheduler.admit("a", first, 1)
    during = rig.scheduler.lookup("b", 9, device_tokens=0)
    rig.tick()
    after = rig.scheduler.lookup("b", 9, device_tokens=8)

    assert (first.host_tokens, first.deferred) == (8, False)
    assert during.deferred
    assert (after.host_tokens, after.deferred) == (0, False)


@pytest.mark.interpreted
def test_a_tier_that_does_not_know_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that rests on no copy is not remembered: nothing would ever end it."""
    rig = Rig(blocks=16)
    answers = [each.code for each in (Answer.RETRY, Answer.RETRY, Answer.MISS)]
    monkeypatch.setattr(HostAnswers, "held", lambda *_asked: answers.pop(0))
    rig.add("a", letters(5))
    found = [rig.scheduler.lookup("a", 5).deferred for _ in range(3)]

    assert found == [True, True, False]


def test_a_foreign_request_grows_only_into_places_it_was_given() -> None:
    """The scheduler says which group lacks places; then `place`, and the same call goes."""
    rig = Rig(blocks=9, own_pool=False)
    rig.add("a", letters(12), prompt=4)
    hit = rig.scheduler.lookup("a", 4, device_tokens=0)
    with scheduler_refuses(rig, MisuseError, "group 0 has 0 places, and the tokens before 4 need 1"):
        rig.scheduler.admit("a", hit, 4)
    rig.scheduler.place("a", [Placed(0, fresh=(3,))])
    rig.scheduler.admit("a", hit, 4)
    rig.tick()
    with scheduler_refuses(rig, MisuseError, "the tokens before 5 need 2"):
        rig.scheduler.grow()
    rig.scheduler.place("a", [Placed(0, fresh=(5,))])

    assert rig.scheduler.grow() == []
    assert rig.blocks("a") == [3, 5]


def test_foreign_requests_that_wait_for_their_plan_end_together() -> None:
    """Their last content, not known when its plan was made, is stored; their blocks are given back, and nobody knows them."""
    rig = Rig(blocks=9, own_pool=False, policies=Policies(plans_ahead=1))
    for name, blocks in (("a", (1, 2)), ("b", (3, 4))):
        rig.add(name, letters(9, name), prompt=7)
        hit = rig.scheduler.lookup(name, 7, device_tokens=0)
        rig.scheduler.place(name, [Placed(0, fresh=blocks)])
        rig.scheduler.admit(name, hit, 7)
    rig.plan()
    rig.scheduler.grow()
    rig.plan()
    for name in "ab":
        rig.scheduler.finish(name)
    ended = [rig.settle().ended, rig.settle().ended]
    rig.drain()

    assert ended == [(), ("a", "b")]
    assert rig.ledger.statistics().requests == 0
    assert "a" not in rig.scheduler.requests
    assert [rig.ledger.blocks.refs(block) for block in (1, 2, 3, 4)] == [0, 0, 0, 0]
    assert rig.ledger.slots.count()[Slot.READY] == 4


def test_a_foreign_window_is_given_back_by_the_engine() -> None:
    """The engine frees what has left its window, and names it; nulls stand for what it never placed."""
    rig = Rig("swa:4:5", blocks=9, own_pool=False)
    rig.add("a", letters(20), prompt=8)
    hit = rig.scheduler.lookup("a", 8, device_tokens=0)
    rig.scheduler.place("a", [Placed(0, fresh=(1, 2))])
    rig.scheduler.admit("a", hit, 8)
    rig.tick()
    rig.tick()
    rig.scheduler.free("a", 0, [1])
    rig.scheduler.place("a", [Placed(0, fresh=(3,))])
    rig.scheduler.grow({"a": 1})
    rig.tick()
    rig.scheduler.finish("a")
    rig.drain()
    rig.add("b", letters(9))
    again = rig.scheduler.lookup("b", 9, device_tokens=0)
    rig.scheduler.place("b", [Placed(0, skipped=1, external=(4,), fresh=(5,))])
    runs = rig.scheduler.admit("b", again, 1)

    assert rig.stored() == ["abcd", "abcdefgh"]
    assert again.host_tokens == 8
    assert not runs
    assert rig.blocks("b") == [0, 4, 5]
    with scheduler_refuses(rig, MisuseError, "does not hold it"):
        rig.scheduler.free("b", 0, [7])


@pytest.mark.parametrize(
    ("second", "match"),
    [
        (Placed(0, fresh=(99,)), "blocks are 1 to 15"),
        (Placed(0, fresh=(1,)), "block 1: it is named twice in one call"),
        (Placed(0, shared=(2,)), "cannot ACQUIRE while FREED"),
        (Placed(1, fresh=(2,)), "groups are 0 to 0"),
        (Placed(0, skipped=-1), "cannot skip -1 blocks"),
    ],
)
def test_place_is_all_or_nothing(second: Placed, match: str) -> None:
    """A part that is refused leaves nothing of the parts before it behind."""
    rig = Rig(blocks=16, own_pool=False)
    rig.add("a", letters(8))
    with scheduler_refuses(rig, MisuseError, match):
        rig.scheduler.place("a", [Placed(0, fresh=(1,)), second])

    rig.scheduler.place("a", [Placed(0, skipped=1, fresh=(1,)), Placed(0, fresh=(2,))])
    assert rig.blocks("a") == [0, 1, 2]


def test_what_the_engine_took_back_itself_is_not_placed() -> None:
    """An admission that came to nothing in the engine leaves no places behind for the next one."""
    rig = Rig(blocks=16, own_pool=False)
    rig.add("a", letters(8))
    rig.scheduler.place("a", [Placed(0, fresh=(1, 2))])
    rig.ledger.roll_back("a")
    hit = rig.scheduler.lookup("a", 8, device_tokens=0)
    with pytest.raises(MisuseError, match=r"group 0 has 0 places, and the tokens before 8 need 2 \(place them first\)"):
        rig.scheduler.admit("a", hit, 8)

    rig.scheduler.place("a", [Placed(0, fresh=(1, 2))])
    assert rig.scheduler.admit("a", hit, 8)


def test_growing_in_a_foreign_pool_names_who_has_too_few_places() -> None:
    """Of many that run, and nobody grows."""
    rig = Rig(blocks=16, own_pool=False)
    for name, blocks in (("a", (1, 2)), ("b", (3, 4))):
        rig.add(name, letters(8))
        hit = rig.scheduler.lookup(name, 8, device_tokens=0)
        rig.scheduler.place(name, [Placed(0, fresh=blocks)])
        rig.scheduler.admit(name, hit, 8)
    rig.tick()
    rig.scheduler.place("a", [Placed(0, fresh=(5,))])
    with scheduler_refuses(rig, MisuseError, "request b: group 0 has 2 places, and the tokens before 9 need 3"):
        rig.scheduler.grow()

    rig.scheduler.place("b", [Placed(0, fresh=(6,))])
    assert rig.scheduler.grow() == []


def test_lazy_stores_of_a_foreign_pool_are_what_its_allocator_says_goes() -> None:
    """The allocator names the blocks that it hands out next; nothing else is stored."""
    rig = Rig(blocks=16, own_pool=False, policies=Policies(mode=Mode.LAZY))
    allocator = Allocator(rig)
    run_foreign(rig, allocator, "a", letters(9))
    quiet = rig.tick()
    rig.scheduler.about_to_go([1])
    plan = rig.tick()

    assert (quiet.stores, sources(plan)) == ((), [[1]])
    with pytest.raises(MisuseError, match="this ledger owns the pool and knows what goes next"):
        Rig().scheduler.about_to_go([1])


def test_a_foreign_lookup_needs_the_hit_of_the_allocator() -> None:
    """The scheduler cannot know what an allocator counts as a hit."""
    rig = Rig(own_pool=False)
    rig.add("a", letters(8))
    with scheduler_refuses(rig, MisuseError, "give the hit of your allocator"):
        rig.hit("a")


# --- counting ----------------------------------------------------------------------------------------------------------------


def test_statistics_count_blocks_and_chunks() -> None:
    """One story with every number."""
    rig = Rig(slots=2, blocks=9, policies=Policies(last_step=LastStep.DRAIN))
    rig.add("a", letters(12))
    rig.let_in("a")
    rig.tick(land=False)
    refused = rig.scheduler.statistics()
    rig.tick()
    rig.tick()
    rig.scheduler.finish("a")
    rig.drain()
    rig.add("b", letters(12))
    rig.let_in("b")
    rig.tick()
    now = rig.scheduler.statistics()

    assert (refused.waiting, refused.host_hits) == (1, (0,))
    assert now.device_hits == (2,)
    assert (now.waiting, now.deferred, now.stale, now.partial) == (0, 0, 0, 0)


# --- waits that nobody would end ----------------------------------------------------------------------------------------------


def test_request_whose_own_copy_is_in_quarantine_computes_instead_of_waiting_for_ever() -> None:
    """Nobody knows whether that copy ever lands: it may not load meanwhile, and a wait for it would have no end."""
    rig = Rig(deadline=2.0, policies=Policies(last_step=LastStep.DRAIN))
    rig.fill("a", letters(9))
    rig.reset_device()
    rig.add("b", letters(9))
    rig.let_in("b")
    plan = rig.plan()
    rig.plans.clear()
    rig.out.clear()
    rig.scheduler.settle(plan.number, rig.now, launched=[Launched(plan.loads[0].job, Worker(0))])
    rig.tick()
    early = rig.scheduler.requests.progress("b").computed
    rig.tick()
    rig.add("c", letters(9))
    rig.let_in("c")
    for _ in range(3):
        rig.tick()
    rig.scheduler.finish("c")
    rig.reset_device()
    hit = rig.hit("b")

    assert early == 0
    assert rig.stored() == ["abcd", "abcdefgh"]
    assert (hit.tokens, hit.deferred) == (0, False)
    assert rig.scheduler.admit("b", hit, 9)


def test_admission_without_a_free_job_gives_back_what_was_placed_for_it() -> None:
    """All jobs are out: the load is refused, and the request holds nothing of what the engine's allocator gave it."""
    rig = Rig(own_pool=False, max_jobs=1)
    scheduler = rig.scheduler
    for name, text, blocks in (("a", letters(9), (1, 2, 3)), ("c", letters(5, "m"), (4, 5))):
        rig.add(name, text)
        hit = scheduler.lookup(name, len(text), 0)
        scheduler.place(name, [Placed(0, fresh=blocks)])
        scheduler.admit(name, hit, len(text))
        rig.tick(land=name == "a")
        rig.tick(land=name == "a")
    rig.add("b", letters(9))
    hit = scheduler.lookup("b", 9, 0)
    scheduler.place("b", [Placed(0, external=(6, 7), fresh=(8,))])
    with pytest.raises(CapacityError, match="max_jobs"):
        scheduler.admit("b", hit, 1)

    assert hit.host_tokens == 8
    assert rig.blocks("b") == []
    assert rig.ledger.requests.state("b") is Request.WAITING


@pytest.mark.parametrize("groups", ["mamba:4,full:4", "mamba:4,mamba:4,full:4"])
def test_request_without_room_in_one_group_takes_nothing_in_the_others(groups: str) -> None:
    """Else the place of a state would stand where this step ends, and a shorter one would have no block for its own."""
    rig = Rig(groups, blocks=12)
    rig.add("a", letters(20))
    rig.let_in("a", 4)
    rig.tick()
    tables = [rig.blocks("a", group) for group in range(len(rig.geometry.groups))]
    rig.ledger.add_request("x")
    rig.ledger.allocate("x", rig.ledger.blocks.free - 2, len(tables) - 1)
    short = rig.scheduler.grow({"a": 12})
    after = [rig.blocks("a", group) for group in range(len(tables))]
    rig.tick()
    rig.ledger.finish("x")

    assert short == ["a"]
    assert after == tables
    assert rig.scheduler.grow({"a": 4}) == []
    rig.scheduler.hand_off("a", 0, 8)


def test_more_plans_ahead_than_the_ledger_lets_out_are_refused_at_once() -> None:
    """Else a plan would be refused when half of it has been made."""
    with pytest.raises(MisuseError, match=r"plans_ahead=64 .* max_plans=64"):
        Rig(policies=Policies(plans_ahead=64))


def test_state_that_is_over_and_was_not_reached_is_not_stored() -> None:
    """Its last token was never sampled: the block holds no such state, and nobody may wait for its store."""
    rig = Rig("mamba:4", policies=Policies(plans_ahead=1))
    rig.add("a", letters(40), prompt=7)
    rig.let_in("a")
    rig.plan()
    rig.scheduler.grow()
    rig.scheduler.hand_off("a", 0, 8)
    rig.plan()
    rig.scheduler.finish("a")
    rig.settle(sampled={"a": 0})
    rig.settle(sampled={"a": 0})
    rig.tick()
    rig.add("b", letters(40))

    assert rig.stored() == []
    assert rig.ledger.jobs.live == 0
    assert not rig.hit("b").deferred


@pytest.mark.parametrize("groups", ["mamba:4", "full:4,mamba:4"])
def test_token_that_a_state_has_taken_in_is_not_taken_back(groups: str) -> None:
    """The plan behind this one runs the token that this one was to sample: without it the state there would be of no text."""
    rig = Rig(groups, blocks=12, policies=Policies(plans_ahead=1))
    rig.add("a", letters(40), prompt=6)
    rig.add("b", letters(40, "p"), prompt=6)
    rig.let_in("a")
    rig.let_in("b")
    rig.plan()
    rig.scheduler.grow({"b": 0})
    rig.plan()
    with scheduler_refuses(rig, MisuseError, "request a: a Mamba state cannot be taken back, .* plan 1 was to sample"):
        rig.scheduler.settle(rig.plans[0].number, 9.0, sampled={"b": 0, "a": 0})
    rig.settle(sampled={"b": 0, "a": 1})
    rig.settle(sampled={"a": 0})

    assert [rig.scheduler.requests.progress(name).known for name in "ab"] == [7, 6]


def test_state_of_a_step_that_an_abort_has_called_off_makes_no_room_for_itself() -> None:
    """The request is over before the step that would have made the state: nothing is forgotten for its sake."""
    rig = Rig("mamba:4", slots=1, policies=Policies(plans_ahead=1))
    rig.add("z", letters(5, "p"))
    rig.let_in("z", 4)
    rig.scheduler.hand_off("z", 0, 4)
    rig.tick()
    rig.tick()
    rig.scheduler.finish("z")
    rig.drain()
    rig.add("a", letters(40))
    rig.let_in("a", 4)
    rig.plan()
    rig.scheduler.grow({"a": 4})
    rig.scheduler.hand_off("a", 0, 8)
    rig.scheduler.abort("a")
    rig.plan()
    rig.drain()

    assert rig.stored() == ["pqrs"]


def test_hit_that_a_copy_still_reads_takes_no_free_block() -> None:
    """Its blocks are not among the free ones: what is free is all for the new tokens."""
    rig = Rig(blocks=4, contract=Contract.HOLD, policies=Policies(last_step=LastStep.DRAIN))
    rig.add("a", letters(9))
    rig.let_in("a")
    rig.tick(land=False)
    rig.tick(land=False)
    rig.scheduler.finish("a")
    rig.add("b", letters(9))
    hit = rig.hit("b")

    assert (hit.device_tokens, rig.ledger.blocks.free) == (8, 1)
    assert rig.scheduler.admit("b", hit, 1)


def test_deferred_answer_is_not_kept_for_another_question() -> None:
    """The engine's allocator has the content by now: nothing has to be waited for, although no job has ended."""
    rig = Rig(own_pool=False)
    scheduler = rig.scheduler
    rig.add("a", letters(8))
    hit = scheduler.lookup("a", 8, 0)
    scheduler.place("a", [Placed(0, fresh=(1, 2))])
    scheduler.admit("a", hit, 8)
    rig.tick(land=False)
    rig.tick(land=False)
    rig.add("b", letters(9))
    first, shorter, again = (scheduler.lookup("b", known, device) for known, device in ((9, 0), (4, 0), (9, 8)))

    assert (first.tokens, first.deferred) == (8, True)
    assert (shorter.tokens, shorter.deferred) == (0, False)
    assert (again.tokens, again.deferred) == (8, False)


@pytest.mark.parametrize("ahead", [0, 1])
def test_drafts_beside_a_state_are_refused(ahead: int) -> None:
    """A state that was overwritten cannot come back: where no plan is out, nothing beyond the known tokens is scheduled."""
    rig = Rig("full:4,mamba:4", blocks=30, policies=Policies(plans_ahead=ahead))
    rig.add("a", letters(9))
    rig.let_in("a", 6)
    rig.tick()
    with scheduler_refuses(rig, MisuseError, "at most 0 tokens beyond the known 9 can be scheduled"):
        rig.scheduler.grow({"a": 4})

    assert rig.scheduler.grow({"a": 3}) == []


def test_draft_on_a_state_is_refused_when_the_plan_that_sampled_its_last_token_has_settled() -> None:
    """Planned ahead or not: of 4 known tokens 3 are computed, and a step of 2 would take in one that does not exist yet."""
    rig = Rig("mamba:4", blocks=8, policies=Policies(plans_ahead=1))
    rig.add("a", letters(20), prompt=3)
    rig.let_in("a")
    rig.tick()
    with scheduler_refuses(rig, MisuseError, "at most 0 tokens beyond the known 4 can be scheduled"):
        rig.scheduler.grow({"a": 2})

    assert rig.scheduler.grow({"a": 1}) == []


def test_state_takes_in_one_token_more_for_each_plan_that_is_out_and_samples_it() -> None:
    """A plan that leaves known tokens over samples none; each one behind it that reaches them samples one."""
    rig = Rig("mamba:4", blocks=12, policies=Policies(plans_ahead=2))
    rig.add("a", letters(20), prompt=6)
    rig.let_in("a", 4)
    rig.plan()
    with scheduler_refuses(rig, MisuseError, "at most 0 tokens beyond the known 6 can be scheduled"):
        rig.scheduler.grow({"a": 3})
    rig.scheduler.grow({"a": 2})
    rig.plan()
    with scheduler_refuses(rig, MisuseError, "at most 1 tokens beyond the known 6 can be scheduled"):
        rig.scheduler.grow({"a": 2})

    assert rig.scheduler.grow({"a": 1}) == []


@pytest.mark.parametrize("ahead", [0, 1])
def test_request_with_a_state_is_let_in_with_known_tokens_only(ahead: int) -> None:
    """An admission schedules as `grow` does, and nothing of a request that comes in is out."""
    rig = Rig("full:4,mamba:4", blocks=12, policies=Policies(plans_ahead=ahead))
    rig.add("a", letters(9), prompt=5)
    hit = rig.hit("a")
    with scheduler_refuses(rig, MisuseError, "at most 0 tokens beyond the known 5 can be scheduled"):
        rig.scheduler.admit("a", hit, 6)

    assert rig.scheduler.admit("a", hit, 5)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda each: each.__name__)
@pytest.mark.parametrize("what", ["scheduler", "tier"])
def test_scheduler_and_its_host_tier_are_not_copied(what: str, how: Callable[[object], object]) -> None:
    """A copy would share the ledger, or have one that no worker knows; a snapshot can be put back elsewhere."""
    rig = Rig()
    rig.add("a", letters(10))
    rig.let_in("a")
    with scheduler_refuses(rig, MisuseError, r"it cannot be copied or pickled \(.*snapshot.*restore"):
        how(getattr(rig, what))


def test_content_that_was_there_before_the_scheduler_is_found() -> None:
    """A tier that somebody else has filled is of use from the first lookup on."""
    ledger = make_ledger(num_blocks=8, num_slots=4)
    ready(ledger, "k")
    ledger.reset(host=False)
    scheduler = OffloadScheduler(ledger, HostTier(ledger), Geometry.parse("full:4"))
    scheduler.add_request("late", lambda group, start, stop: [b"k", b"l"][start:stop], prompt_tokens=8)

    assert scheduler.lookup("late", 8).host_tokens == 4


def test_scheduler_refuses_a_tier_of_another_ledger() -> None:
    """Its slots would be those of somebody else."""
    ledger, other = make_ledger(), make_ledger()
    with pytest.raises(MisuseError, match="tier: it was made for another ledger"):
        OffloadScheduler(ledger, HostTier(other), Geometry.parse("full:16"))


def test_hit_of_another_request_is_refused() -> None:
    """Also where both were looked up in this step."""
    rig = Rig()
    for name in "ab":
        rig.add(name, letters(9))
    rig.hit("a")
    other = rig.hit("b")
    with scheduler_refuses(rig, MisuseError, "or not its own"):
        rig.scheduler.admit("a", other, 5)


# --- layers of a drafter ------------------------------------------------------------------------------------------------


def drafting(**changes: Any) -> Rig:
    """A rig whose second group has layers of a drafter."""
    return Rig("full:4,full:4+drafter", **{"blocks": 33, "slots": 16, **changes})


def decode(rig: Rig, steps: int) -> Iterator[int]:
    """Steps of one token for the request that runs; how many tokens of it are computed after each."""
    for _ in range(steps):
        rig.scheduler.grow()
        rig.tick()
        yield rig.scheduler.requests.progress("a").computed


def test_prompt_is_stored_at_once_and_what_is_decoded_one_block_late() -> None:
    """Behind the prompt a drafter may write the end of a full block once more, until the next one is full."""
    rig = drafting()
    rig.add("a", letters(30), prompt=8)
    rig.let_in("a")
    rig.tick()
    stored = {computed: (len(rig.stored(0)), len(rig.stored(1))) for computed in decode(rig, 11)}

    assert stored[9] == stored[12] == (2, 2)
    assert stored[13] == stored[16] == (3, 2)
    assert stored[17] == stored[19] == (4, 3)
    assert rig.cached(1) == [letters(4), letters(8), letters(12)]


def test_last_block_is_stored_when_its_request_ends() -> None:
    """No draft follows that could be rejected."""
    rig = drafting()
    rig.add("a", letters(30), prompt=8)
    rig.let_in("a")
    rig.tick()
    assert list(decode(rig, 5))[-1] == 13
    before = len(rig.stored(1)), len(rig.cached(1))
    rig.scheduler.finish("a")
    rig.drain()

    assert before == (2, 2)
    assert len(rig.stored(1)) == len(rig.cached(1)) == 3


def test_last_block_of_a_request_that_ends_while_its_plan_is_out_is_stored() -> None:
    """It is sealed when the plan settles."""
    rig = drafting()
    rig.add("a", letters(30), prompt=8)
    rig.let_in("a")
    rig.tick()
    assert list(decode(rig, 3))[-1] == 11
    rig.scheduler.grow()
    rig.plan()
    rig.scheduler.finish("a")
    rig.drain()

    assert len(rig.stored(1)) == len(rig.cached(1)) == 3


def test_block_before_a_tail_is_not_loaded_while_another_load_brings_it() -> None:
    """Beside layers of a drafter a tail brings the block before it along; the shorter tail needs none."""
    rig = Rig("full:4+drafter/1")
    rig.fill("a", letters(16))
    rig.fill("e", letters(8))
    rig.reset_device()
    rig.add("b", letters(16))
    rig.add("c", letters(7) + "xx")
    alone = rig.hit("c")
    rig.let_in("b")

    assert (alone.tokens, rig.hit("c").tokens) == (6, 3)


def test_block_that_leaves_the_windows_of_two_requests_in_one_step_is_let_go_of_by_each() -> None:
    """They share it by a prefix hit; when both have moved on, nobody holds it."""
    rig = Rig("swa:4:6", blocks=30)
    for name in "ab":
        rig.add(name, letters(9))
        rig.let_in(name)
        rig.tick()
    (shared,) = {rig.blocks("a")[0]} & {rig.blocks("b")[0]}
    held = rig.ledger.blocks.refs(shared)
    rig.scheduler.grow()

    assert (held, rig.ledger.blocks.refs(shared)) == (2, 0)
    assert rig.blocks("a")[0] == rig.blocks("b")[0] == 0
