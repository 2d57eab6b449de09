"""The host tier forgets the right slot, and the offload scheduler wishes, refuses and flushes as it says.

Method: the real ledger, small enough to count on one hand; keys are readable, and a store lands when a test says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from blocklife.errors import CapacityError
from blocklife.ledger import Contract, Ledger, Plan, Seal
from blocklife.ledger.places import EPOCH_SHIFT, ID_MASK
from blocklife.offload import HostTier, OffloadScheduler
from blocklife.states import Block, Job, Request, Slot
from tests.worlds import hand_out_all, held, keys, make_ledger, ready, report, sealed, store, unchanged


def lives_of(ledger: Ledger, request: str, names: Sequence[bytes]) -> list[int]:
    """Lives of sealed blocks, as a plain list."""
    return [int(life) for life in sealed(ledger, request, names).lives]


def settle(ledger: Ledger, plan: Plan, now: float = 0.0, land: bool = False) -> None:
    """The workers have run the plan; where told, all its stores have arrived."""
    done = [report(transfer.job) for transfer in plan.stores] if land else []
    ledger.settle(plan.number, now, completions=done)


def stored(plan: Plan) -> list[list[int]]:
    return [transfer.source.tolist() for transfer in plan.stores]


def blocks(lives: Sequence[int]) -> list[int]:
    return [life & ID_MASK for life in lives]


# --- the host tier ------------------------------------------------------------------------------------------------------


def tier_of(num_slots: int = 3) -> tuple[Ledger, HostTier]:
    """A tier whose slots are all READY, in the order 0, 1, 2 of their last use."""
    ledger = make_ledger(num_slots=num_slots, num_blocks=8)
    tier = HostTier(ledger)
    for number in range(num_slots):
        (slot,) = tier.reserve(1)
        ready(ledger, f"k{number}", slot)
    return ledger, tier


def test_tier_gives_empty_slots_first() -> None:
    """As long as a slot is empty nothing is forgotten."""
    ledger = make_ledger(num_slots=3)
    tier = HostTier(ledger)
    ready(ledger, "k", tier.reserve(1)[0])
    taken = tier.reserve(2)

    assert sorted([*taken, 0]) == [0, 1, 2]
    assert ledger.slots.at(0) is Slot.READY


def test_tier_forgets_the_least_recently_used_first() -> None:
    """A slot that was touched outlives those that were not."""
    ledger, tier = tier_of()
    tier.touch([0])
    first = tier.reserve(1)
    ready(ledger, "new", first[0])
    second = tier.reserve(1)

    assert (first, second) == ([1], [2])
    assert ledger.find_slots(keys("k0")) == [0]
    assert ledger.find_slots(keys("k1")) == []


def test_tier_touch_keeps_the_order_it_was_given() -> None:
    """Of several slots touched at once the last is the most recent."""
    _, tier = tier_of()
    tier.touch([2, 0])

    assert tier.reserve(3) == [1, 2, 0]


def test_tier_takes_empty_and_old_slots_together() -> None:
    """One empty slot and one eviction serve a store of two."""
    ledger, tier = tier_of()
    ledger.evict([1])

    assert tier.reserve(2) == [1, 0]
    assert ledger.slots.at(2) is Slot.READY


def test_tier_refuses_without_a_change() -> None:
    """A store larger than what can be forgotten gets nothing, and nothing is forgotten for it."""
    ledger, tier = tier_of()
    ledger.pin("lookup", [0])
    with unchanged(ledger):
        found = tier.reserve(3)

    assert found == []
    assert tier.reserve(2) == [1, 2]


def test_tier_never_evicts_what_is_pinned_or_written() -> None:
    """Pinned slots and slots that a store fills are not asked for, though they are the oldest."""
    ledger, tier = tier_of()
    ledger.pin("lookup", [0])
    (slot,) = tier.reserve(1)
    store(ledger, sealed(ledger, "a", keys("new")), keys("new"), slot)
    with unchanged(ledger):
        too_many = tier.reserve(2)

    assert slot == 1
    assert too_many == []
    assert tier.reserve(1) == [2]


def test_tier_finds_a_slot_again_that_has_emptied() -> None:
    """A store that failed leaves its slot to the next one, which makes it the most recent."""
    ledger = make_ledger(num_slots=2)
    tier = HostTier(ledger)
    (slot,) = tier.reserve(1)
    ledger.cancel(store(ledger, sealed(ledger, "a", keys("lost")), keys("lost"), slot))

    assert tier.reserve(1) == [slot]


def test_tier_knows_the_slots_that_were_filled_before_it() -> None:
    """A tier over a ledger with content forgets that content like its own, those it was not told of first."""
    ledger = make_ledger(num_slots=3, num_blocks=8)
    for number in range(3):
        ready(ledger, f"k{number}", number)
    tier = HostTier(ledger)
    tier.touch([0])

    assert tier.reserve(3) == [1, 2, 0]


def test_tier_touch_takes_a_slot_that_it_has_never_seen() -> None:
    """Somebody else filled it; from its first use on it counts."""
    ledger = make_ledger(num_slots=1)
    tier = HostTier(ledger)
    ready(ledger, "k")
    tier.touch([0])

    assert tier.reserve(1) == [0]


# --- wishes -------------------------------------------------------------------------------------------------------------


def offload_of(**changes: object) -> tuple[Ledger, OffloadScheduler]:
    given: dict[str, object] = {"num_blocks": 8, "num_slots": 4, "requests": ("a", "b")}
    ledger = make_ledger(**{**given, **changes})  # type: ignore[arg-type]
    return ledger, OffloadScheduler(ledger, HostTier(ledger))


def test_offload_stores_what_is_wished_and_finds_it_again() -> None:
    """A wish becomes one job of the next plan; landed, its content is found, and not stored twice."""
    ledger, offload = offload_of()
    names = keys("x", "y")
    lives = lives_of(ledger, "a", names)
    offload.store("a", lives, names)
    plan = offload.build_plan(1.0)
    settle(ledger, plan, 1.0, land=True)
    offload.store("a", lives, names)
    again = offload.build_plan(2.0)

    assert stored(plan) == [blocks(lives)]
    assert offload.lookup(keys("x", "y", "z")) == plan.stores[0].target.tolist()
    assert again.empty
    assert (offload.statistics().already_stored, offload.statistics().waiting) == (2, 0)


def test_offload_stores_content_once_while_it_is_on_its_way() -> None:
    """Two requests with the same content: the second store finds the first in flight, within one plan and later."""
    ledger, offload = offload_of()
    one, two, three = (lives_of(ledger, request, keys("x")) for request in ("a", "b", "a"))
    offload.store("a", one, keys("x"))
    offload.store("b", two, keys("x"))
    plan = offload.build_plan(1.0)
    settle(ledger, plan, 1.0)
    offload.store("a", three, keys("x"))
    later = offload.build_plan(2.0)

    assert stored(plan) == [blocks(one)]
    assert later.empty
    assert offload.statistics().already_stored == 2


def test_offload_names_a_key_once_in_a_job() -> None:
    """One wish with a key twice stores its first block."""
    ledger, offload = offload_of()
    lives = lives_of(ledger, "a", keys("x", "x"))
    offload.store("a", lives, keys("x", "x"))

    assert stored(offload.build_plan(1.0)) == [blocks(lives)[:1]]


def test_offload_makes_one_job_a_request() -> None:
    """What a request wished in several calls goes in one job; requests are served in the order of their wishes."""
    ledger, offload = offload_of()
    first, second, third = lives_of(ledger, "a", keys("x")), lives_of(ledger, "b", keys("y")), lives_of(ledger, "a", keys("z"))
    offload.store("b", second, keys("y"))
    offload.store("a", first, keys("x"))
    offload.store("a", third, keys("z"))

    assert stored(offload.build_plan(1.0)) == [blocks(second), blocks(first + third)]


def test_offload_splits_a_wish_that_is_larger_than_a_job() -> None:
    """Neither the tier nor the link can take it at once; it goes in order, a job a step."""
    ledger, _ = offload_of(num_slots=8)
    offload = OffloadScheduler(ledger, HostTier(ledger), max_job_blocks=2)
    lives = lives_of(ledger, "a", keys("u", "v", "w"))
    offload.store("a", lives, keys("u", "v", "w"))
    first = offload.build_plan(1.0)
    settle(ledger, first, 1.0)
    second = offload.build_plan(2.0)

    assert stored(first) + stored(second) == [blocks(lives)[:2], blocks(lives)[2:]]
    assert OffloadScheduler(make_ledger(num_slots=3), HostTier(ledger)).max_job_blocks == 3


def test_offload_drops_a_wish_whose_life_is_over() -> None:
    """Blocks that were handed out again meanwhile are struck and counted; the others are stored."""
    ledger, offload = offload_of(num_slots=1, num_blocks=4)
    ready(ledger, "full", offload.tier.reserve(1)[0], "b")
    ledger.pin("lookup", [0])
    lives = lives_of(ledger, "a", keys("x", "y"))
    offload.store("a", lives, keys("x", "y"))
    refused = offload.build_plan(1.0)
    settle(ledger, refused, 1.0)
    ledger.release("a", [0])
    ledger.drop(lives[:1])
    ledger.unpin("lookup", [0])
    plan = offload.build_plan(2.0)

    assert refused.empty
    assert stored(plan) == [blocks(lives)[1:]]
    assert (offload.statistics().stale, offload.statistics().refused_stores) == (1, 1)


def test_offload_never_stores_a_new_tenant_under_an_old_name() -> None:
    """The block is the same, held and sealed again; only its epoch says that the wish meant somebody else."""
    ledger, offload = offload_of(num_blocks=2)
    lives = lives_of(ledger, "a", keys("old"))
    offload.store("a", lives, keys("old"))
    ledger.preempt("a")
    again = lives_of(ledger, "b", keys("new"))
    plan = offload.build_plan(1.0)

    assert blocks(again) == blocks(lives)
    assert plan.empty
    assert offload.statistics().stale == 1


def test_offload_wishes_stay_few_while_stores_are_refused() -> None:
    """Tenant after tenant wishes in vain behind a wish that lives: of each block only the last waits, the former are stale."""
    ledger, offload = offload_of(num_slots=1, num_blocks=5)
    ready(ledger, "full", offload.tier.reserve(1)[0], "b")
    ledger.pin("lookup", [0])
    offload.store("a", lives_of(ledger, "a", keys("head")), keys("head"))
    for number in range(40):
        ledger.add_request(f"r{number}")
        ledger.admit(f"r{number}")
        names = keys(f"x{number}", f"y{number}")
        offload.store(f"r{number}", lives_of(ledger, f"r{number}", names), names)
        settle(ledger, offload.build_plan(float(number)), float(number))
        ledger.finish(f"r{number}")
        assert offload.statistics().waiting <= len(ledger.blocks)
    found = offload.statistics()

    assert len(offload._wishes) <= len(ledger.blocks)
    assert found.stale + found.waiting == 81


def test_offload_hears_a_wish_twice() -> None:
    """The same life from two requests, and a life that is over already: one waits, both others are counted."""
    ledger, offload = offload_of()
    lives = lives_of(ledger, "a", keys("x"))
    for request in ("a", "b"):
        offload.store(request, lives, keys("x"))
    offload.store("b", [lives[0] + (1 << EPOCH_SHIFT)], keys("z"))
    found = offload.statistics()

    assert (found.waiting, found.already_stored, found.stale) == (1, 1, 1)
    assert stored(offload.build_plan(1.0)) == [blocks(lives)]


@pytest.mark.parametrize("why", ["slots", "jobs"])
def test_offload_refusal_keeps_the_wish_at_the_head(why: str) -> None:
    """Nothing overtakes a refused wish, and it goes first when there is room again."""
    ledger, offload = offload_of(num_slots=2, max_jobs=1 if why == "jobs" else 8)
    other = lives_of(ledger, "b", keys("p", "q"))
    offload.store("b", other if why == "slots" else other[:1], keys("p", "q") if why == "slots" else keys("p"))
    running = offload.build_plan(1.0)
    settle(ledger, running, 1.0)
    first, second = lives_of(ledger, "a", keys("x")), lives_of(ledger, "b", keys("y"))
    offload.store("a", first, keys("x"))
    offload.store("b", second, keys("y"))
    refused = offload.build_plan(2.0)
    waiting = offload.statistics()
    settle(ledger, refused, 2.0)
    ledger.complete(report(running.stores[0].job))
    plan = offload.build_plan(3.0)

    assert refused.empty
    assert (waiting.refused_stores, waiting.waiting) == (1, 2)
    assert stored(plan)[0] == blocks(first)


def test_offload_wish_waits_while_its_block_is_flushed() -> None:
    """A new tenant's block that stands behind a wait is stored after the wait is proven, not before."""
    ledger, offload = offload_of(num_blocks=2)
    old = lives_of(ledger, "a", keys("old"))
    offload.store("a", old, keys("old"))
    settle(ledger, offload.build_plan(1.0), 1.0)
    ledger.finish("a")
    new = [int(life) for life in held(ledger, "b").lives]
    offload.store("b", new, keys("new"))
    flushed = ledger.blocks.at(blocks(new)[0])
    plan = offload.build_plan(2.0)
    settle(ledger, plan, 2.0)
    later = offload.build_plan(3.0)
    ledger.settle(later.number, 3.0, seals=[Seal(0, new, keys("new"))])

    assert flushed is Block.FLUSHED
    assert stored(plan) == []
    assert len(plan.flushes) == 1
    assert stored(later) == []
    assert stored(offload.build_plan(4.0)) == [blocks(new)]


def test_offload_flushes_the_jobs_of_who_was_preempted() -> None:
    """Their blocks may be handed out in this very step; the jobs of others are left alone."""
    ledger, offload = offload_of()
    for request, name in (("a", "x"), ("b", "y")):
        offload.store(request, lives_of(ledger, request, keys(name)), keys(name))
    running = offload.build_plan(1.0)
    settle(ledger, running, 1.0)
    ledger.preempt("a")
    plan = offload.build_plan(2.0, preempted=["a"])

    assert plan.flushes == (running.stores[0].job,)
    assert ledger.job_state(running.stores[0].job) is Job.FLUSHED
    assert ledger.job_state(running.stores[1].job) is Job.IN_FLIGHT


def test_offload_flushes_everything_in_the_last_step() -> None:
    """Nobody is left who would tick for a copy: all are waited for, and nothing is pending afterwards."""
    ledger, offload = offload_of()
    for request, name in (("a", "x"), ("b", "y")):
        offload.store(request, lives_of(ledger, request, keys(name)), keys(name))
    settle(ledger, running := offload.build_plan(1.0), 1.0)
    for request in ("a", "b"):
        ledger.finish(request)
    plan = offload.build_plan(2.0, last=True)
    before = offload.has_pending_work()
    settle(ledger, plan, 2.0)

    assert set(plan.flushes) == {transfer.job for transfer in running.stores}
    assert before
    assert not offload.has_pending_work()


def test_offload_forgets_wishes() -> None:
    """After an interrupt nothing new is stored."""
    ledger, offload = offload_of()
    offload.store("a", lives_of(ledger, "a", keys("x")), keys("x"))
    offload.forget_wishes()

    assert offload.statistics().waiting == 0
    assert offload.build_plan(1.0).empty


def test_offload_loads_and_touches() -> None:
    """A load pins its slot, makes the request wait, and counts as a use."""
    ledger, _ = offload_of(num_slots=2)
    tier = HostTier(ledger)
    offload = OffloadScheduler(ledger, tier)
    for name in ("x", "y"):
        ready(ledger, name, tier.reserve(1)[0])
    ledger.add_request("c")
    (slot,) = offload.lookup(keys("x"))
    offload.load("c", ledger.allocate("c", 1), [slot])
    plan = offload.build_plan(1.0)
    ledger.settle(plan.number, 1.0, completions=[report(plan.loads[0].job)])

    assert ledger.request_state("c") is Request.RUNNING
    assert plan.loads[0].source.tolist() == [slot]
    assert tier.reserve(2) == [1 - slot, slot]


def test_offload_under_hold_gives_no_busy_block_away() -> None:
    """Without a fence no wait is ever needed for a hand-out: the block is not there to be had."""
    ledger, offload = offload_of(contract=Contract.HOLD, num_blocks=3)
    offload.store("a", lives_of(ledger, "a", keys("x", "y")), keys("x", "y"))
    settle(ledger, offload.build_plan(1.0), 1.0)
    ledger.finish("a")

    assert hand_out_all(ledger, "b") == []
    with pytest.raises(CapacityError, match="2 are freeing soon"):
        ledger.allocate("b", 1)
