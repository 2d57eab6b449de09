"""Loads within a step: the plan waits for them, their request runs at once, and what it computes counts only if they succeed.

Method: rigs in which the device has forgotten a prompt; the explorer's worlds named *within* visit every state of such
schedulers.
"""

from __future__ import annotations

import pytest

from blocklife.errors import MisuseError
from blocklife.ledger import JobId, Plan
from blocklife.offload import FullHit, Policies
from blocklife.states import Block, Job, Request
from tests.rigs import Rig, letters, sources


def forgotten(tokens: int = 8, *, groups: str = "full:4", ahead: int = 0, **given: object) -> Rig:
    """A rig whose host tier has the first sixteen letters, and whose budget is so many tokens."""
    policies = Policies(load_within_tokens=tokens, plans_ahead=ahead, **given)  # type: ignore[arg-type]  # what a test chooses
    rig = Rig(groups, policies=policies, slots=16)
    rig.fill("z", letters(17))
    rig.reset_device()
    return rig


def states(rig: Rig, name: str) -> list[Block]:
    return [rig.ledger.blocks.state(block) for block in rig.blocks(name)]


def within(plan: Plan) -> list[JobId]:
    return [load.job for load in plan.loads if load.job in plan.flushes]


def test_requests_of_a_step_share_the_budget() -> None:
    """A hit that does not fit any more loads between two steps; who asks twice pays once; the next step has all of it again."""
    rig = Rig(policies=Policies(load_within_tokens=12), slots=16, blocks=33)
    texts = {"a": letters(8), "b": "k" * 8, "c": "m" * 4}
    for name, text in texts.items():
        rig.fill(f"z{name}", text + "y")
    rig.reset_device()
    for name, text in texts.items():
        rig.add(name, text + "xx")
    found = {name: rig.hit(name) for name in ("a", "a", "b", "c")}
    for name, hit in found.items():
        rig.scheduler.admit(name, hit, 2)
    plan = rig.tick()

    assert {name: hit.within for name, hit in found.items()} == {"a": True, "b": False, "c": True}
    assert len(plan.loads) == 3
    assert len(plan.within) == 2
    rig.scheduler.preempt("b")
    rig.tick()
    rig.reset_device()
    assert rig.hit("b").within


@pytest.mark.parametrize("ok", [True, False])
def test_request_that_ends_in_the_step_of_its_load_is_named_once(ok: bool) -> None:
    """It is not known any more: whoever went on with it would be refused."""
    rig = forgotten(12)
    rig.add("a", letters(13))
    assert rig.let_in("a", 1)
    rig.plan()
    rig.scheduler.abort("a")
    rig.settle(ok=ok)

    assert (rig.settled.loaded, rig.settled.failed, rig.settled.ended) == ((), (), ("a",))
    assert "a" not in rig.scheduler.requests


def test_load_within_a_step_needs_a_token_to_compute() -> None:
    """A request that computes nothing in the step has no use for it, and one that is admitted with no token is refused."""
    rig = forgotten(8, full_hit=FullHit.RECOMPUTE_LAST_TOKEN)
    rig.add("a", letters(8))
    assert not rig.hit("a").within

    rig.add("b", letters(9))
    hit = rig.hit("b")
    with pytest.raises(MisuseError, match="cannot run 0 tokens"):
        rig.scheduler.admit("b", hit, 0)


def test_states_are_never_loaded_within_a_step() -> None:
    """An engine may copy a state before the load has brought it."""
    rig = Rig("full:4,mamba:4", policies=Policies(load_within_tokens=100), slots=16)
    rig.add("z", letters(9))
    rig.scheduler.admit("z", rig.hit("z"), 8)
    rig.scheduler.hand_off("z", 1, 8)
    rig.tick()
    rig.drain()
    rig.scheduler.finish("z")
    rig.drain()
    rig.reset_device()
    rig.add("a", letters(9))
    hit = rig.hit("a")

    assert (hit.host_tokens, hit.within) == (8, False)


@pytest.mark.parametrize("ahead", [0, 1])
def test_what_is_computed_behind_a_failed_load_is_void(ahead: int) -> None:
    """Nothing of it is sealed or stored, in the next plan neither, and the sampled tokens do not count."""
    rig = forgotten(ahead=ahead)
    stored = rig.ledger.counts.moved["STORE"]
    rig.add("a", letters(8) + "x" * 12, prompt=13)
    assert rig.let_in("a")
    rig.plan()
    if ahead:
        rig.scheduler.grow()
        assert not rig.plan().stores
    rig.settle(ok=False)

    assert rig.settled.failed == ("a",)
    assert rig.ledger.requests.state("a") is Request.WAITING
    assert rig.scheduler.requests.progress("a").known == 13
    assert rig.blocks("a") == []
    if ahead:
        rig.settle()
    rig.drain()
    assert rig.ledger.counts.moved["STORE"] == stored


def test_nothing_behind_a_load_is_stored_before_its_plan_has_settled() -> None:
    """With plans ahead, the next plan stores nothing of it; the one after that does."""
    rig = forgotten(ahead=1)
    rig.add("a", letters(8) + "x" * 12, prompt=12)
    assert rig.let_in("a")
    first = rig.plan()
    rig.scheduler.grow()
    second = rig.plan()
    rig.settle()
    rig.scheduler.grow()
    third = rig.plan()

    assert [len(plan.stores) for plan in (first, second)] == [0, 0]
    assert len(first.within) == 1
    assert sources(third) == [[rig.blocks("a")[2]]]


@pytest.mark.parametrize("how", ["preempt", "abort", "finish", "reset"])
def test_request_goes_before_its_plan_is_made_or_has_settled(how: str) -> None:
    """A load that is not out is cancelled, and no plan waits for it; one that is out is awaited, or is unwanted."""
    rig = forgotten()
    rig.add("a", letters(9))
    rig.let_in("a")
    _leave(rig, how)
    plan = rig.plan()
    assert (plan.loads, plan.flushes) == ((), ())
    rig.settle()
    rig.drain()

    rig = forgotten()
    rig.add("a", letters(9))
    rig.let_in("a")
    (load,) = rig.plan().loads
    _leave(rig, how)
    assert rig.ledger.jobs.state(load.job) is (Job.AWAITED if how in ("abort", "finish") else Job.UNWANTED)
    rig.settle()
    rig.drain()
    assert rig.ledger.statistics().jobs_alive == 0


def _leave(rig: Rig, how: str) -> None:
    if how == "reset":
        rig.scheduler.reset()
    else:
        getattr(rig.scheduler, how)("a")


def test_others_wait_for_what_a_load_within_a_step_brings() -> None:
    """As for any load: they are deferred until the plan has settled, and then find it on the device."""
    rig = forgotten()
    for name in ("a", "b"):
        rig.add(name, letters(9))
    rig.let_in("a")

    assert rig.hit("b").deferred
    rig.tick()
    assert rig.hit("b").device_tokens == 8


def test_budget_is_part_of_a_snapshot() -> None:
    """What lookups of the present step have taken is taken after a restore, too."""
    rig = forgotten(8)
    rig.add("a", letters(9))
    rig.add("b", "y" + letters(8))
    assert rig.let_in("a", 1)
    saved = rig.scheduler.snapshot()
    rig.scheduler._state.within.clear()
    rig.scheduler.restore(saved)

    assert rig.scheduler._state.within == {"a": 8}
    rig.tick()
    assert rig.scheduler._state.within == {}
