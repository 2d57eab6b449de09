"""Requests whose lookup is deferred: when they are asked again, and how long they wait.

Goal: who waits for content that is on its way is answered no later than who comes afterwards, and asking again costs nothing
while nothing has changed for it. Method: rigs whose copies land when a test says so, and key functions that count their calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import pytest

from blocklife.errors import MisuseError
from blocklife.ledger import Contract
from blocklife.offload import EnginePool, LastStep, Placed, Policies
from blocklife.states import KEYED
from tests.rigs import Rig, letters, scheduler_refuses

AHEAD = Policies(plans_ahead=1, last_step=LastStep.DRAIN)


def counting(rig: Rig, name: str) -> list[int]:
    """From now on, one entry for each call of a request's key function."""
    tracked, asked = rig.scheduler._state.requests[name], list[int]()
    keys = tracked.keys

    def counted(group: int, start: int, stop: int) -> object:
        asked.append(group)
        return keys(group, start, stop)

    tracked.keys = counted  # type: ignore[assignment]
    return asked


def grow(rig: Rig, tokens: Mapping[str, int] | None = None) -> None:
    """Running requests go on; the plan is made, and the oldest one settles without any copy."""
    rig.scheduler.grow(tokens or {})
    rig.plan()
    rig.settle(land=False)


# --- content that becomes final on the device ---------------------------------------------------------------------------


@pytest.mark.parametrize("groups", ["full:4", "full:4,swa:4:8", "full:2,swa:4:6", "swa:4:5"])
@pytest.mark.parametrize("chunk", [1, 2])
def test_who_waits_for_a_store_is_served_when_the_device_has_its_content(groups: str, chunk: int) -> None:
    """As who comes after that, and long before the store has landed."""
    rig = Rig(groups, chunk, blocks=60, slots=16, policies=AHEAD)
    rig.add("a", letters(17))
    rig.let_in("a")
    rig.plan()
    for name in "bc":
        rig.add(name, letters(17) + name)
    waited = rig.hit("b")
    grow(rig)
    first, later = rig.hit("b"), rig.hit("c")

    assert waited.deferred
    assert (first.device_tokens, first.deferred) == (later.device_tokens, later.deferred) == (16, False)
    assert rig.scheduler.admit("b", first, 1)


def stored_only(rig: Rig, text: str) -> None:
    """A store of this text is out and will not land by itself, and the device has lost its content."""
    rig.add("gone", text)
    rig.let_in("gone")
    blocks = rig.blocks("gone")[: len(text) // 4]
    for _ in range(2):
        grow(rig, {"c": 0} if "c" in rig.scheduler.requests else {})
    rig.scheduler.abort("gone")
    rig.ledger.drop([rig.ledger.blocks.life(place) for place in blocks])


def test_asking_again_costs_nothing_while_others_fill_blocks() -> None:
    """What becomes final on the device meanwhile is not what the request waits for."""
    rig = Rig(blocks=60, slots=16, policies=Policies(last_step=LastStep.DRAIN))
    stored_only(rig, letters(8))
    rig.add("x", letters(20, "p"), 4)
    rig.let_in("x")
    rig.add("b", letters(9))
    asked = counting(rig, "b")
    deferred = [rig.hit("b").deferred]
    calls = len(asked)
    for _ in range(10):
        grow(rig)
        deferred.append(rig.hit("b").deferred)

    assert len(rig.cached()) == 3
    assert all(deferred)
    assert calls == len(asked) == 1
    assert rig.scheduler.statistics().deferred == 1


# --- a wait ends --------------------------------------------------------------------------------------------------------


def patient(wait: float = 3.0, ahead: int = 0) -> Policies:
    """Requests wait this long."""
    return Policies(pending_wait=wait, last_step=LastStep.DRAIN, plans_ahead=ahead)


def forget(rig: Rig) -> None:
    """The device loses everything that nobody holds. Copies go on."""
    blocks = rig.ledger.blocks
    rig.ledger.drop(
        [
            rig.ledger.blocks.life(each)
            for each in range(1, len(blocks))
            if not blocks.refs(each) and blocks.state(each) in KEYED
        ]
    )


def waited(rig: Rig, name: str, most: int = 20) -> int:
    """How many steps a request is put off, while no copy lands."""
    for steps in range(most):
        if not rig.hit(name).deferred:
            return steps
        grow(rig)
    return most


def overdue(rig: Rig) -> int:
    """Requests that went on without what they waited for."""
    return rig.scheduler.statistics().overdue_requests


@pytest.mark.parametrize("contract", list(Contract), ids=["fence", "hold"])
@pytest.mark.parametrize("groups", ["full:4", "full:4,swa:4:8", "full:4,mamba:4", "full:4+drafter", "full:4/2"])
def test_request_waits_no_longer_than_it_may_for_a_store(groups: str, contract: Contract) -> None:
    """Then it computes what the store has not brought; what lands in the end is there for others."""
    rig = Rig(groups, blocks=60, slots=16, contract=contract, policies=patient())
    rig.add("a", letters(12))
    rig.let_in("a")
    if "mamba" in groups:
        rig.scheduler.hand_off("a", 1, 12)
    for _ in range(2):
        grow(rig)
    rig.scheduler.abort("a")
    grow(rig)
    forget(rig)
    for name in "bc":
        rig.add(name, letters(12) + name * 6)
    steps = waited(rig, "b")
    hit = rig.hit("b")

    assert (steps, hit.tokens, hit.deferred, overdue(rig)) == (3, 0, False, 1)
    assert rig.out
    assert rig.scheduler.admit("b", hit, 18)
    rig.scheduler.preempt("b")
    rig.tick()
    rig.tick()
    forget(rig)
    assert rig.hit("c").host_tokens >= 8
    assert overdue(rig) == 1


@pytest.mark.parametrize("own_pool", [True, False], ids=["own", "foreign"])
def test_request_waits_no_longer_than_it_may_for_the_load_of_another(own_pool: bool) -> None:
    """It does not load the same content a second time, which might never come either: it computes it."""
    rig = Rig(blocks=40, own_pool=own_pool, policies=patient())
    lookup = rig.scheduler.lookup
    device = None if own_pool else 0
    rig.add("a", letters(9))
    hit = lookup("a", 9, device)
    if not own_pool:
        rig.scheduler.place("a", [Placed(0, fresh=(1, 2, 3))])
    rig.scheduler.admit("a", hit, 9)
    rig.tick()
    rig.tick()
    rig.scheduler.finish("a")
    rig.drain()
    forget(rig)
    for name in "bc":
        rig.add(name, letters(9))
    first = lookup("b", 9, device)
    if not own_pool:
        rig.scheduler.place("b", [Placed(0, external=(4, 5), fresh=(6,))])
    assert not rig.scheduler.admit("b", first, 1)
    steps = 0
    while lookup("c", 9, device).deferred and steps < 20:
        rig.plan()
        rig.settle(land=False)
        steps += 1
    hit = lookup("c", 9, device)

    assert first.host_tokens == 8
    assert (steps, hit.tokens, hit.deferred, overdue(rig)) == (3, 0, False, 1)
    if not own_pool:
        rig.scheduler.place("c", [Placed(0, fresh=(7, 8, 9))])
    assert rig.scheduler.admit("c", hit, 9)
    rig.tick()
    assert rig.settled.loaded == ("b",)


def test_request_that_is_put_off_for_want_of_a_job_waits_no_longer_than_it_may() -> None:
    """The engine cannot promise its load: meanwhile its slots are not pinned, and in the end it computes."""
    rig = Rig(blocks=40, own_pool=False, policies=patient())
    scheduler = rig.scheduler
    rig.add("a", letters(9))
    hit = scheduler.lookup("a", 9, 0)
    scheduler.place("a", [Placed(0, fresh=(1, 2, 3))])
    scheduler.admit("a", hit, 9)
    rig.tick()
    rig.tick()
    scheduler.finish("a")
    rig.drain()
    pool = EnginePool(scheduler, lambda name: scheduler.requests.progress(name).known, one_a_step=True)
    rig.add("b", letters(9))
    with scheduler_refuses(rig, MisuseError, "request b: it was not looked up in this step"):
        pool.put_off("b")
    steps = 0
    while (hit := scheduler.lookup("b", 9, 0)).host_tokens == 8 and not hit.deferred and pool.put_off("b"):
        assert rig.tier.statistics().pinned == 0
        assert not pool.is_current(hit)
        rig.tick()
        with scheduler_refuses(rig, MisuseError, "request b: it was not looked up in this step"):
            pool.put_off("b")
        steps += 1

    assert (steps, hit.host_tokens, overdue(rig)) == (3, 8, 1)
    hit = pool.device_hit("b", 9, 0)
    scheduler.place("b", [Placed(0, fresh=(4, 5, 6))])
    assert scheduler.admit("b", hit, 9)


def test_request_that_was_forgotten_meanwhile_does_not_wait_anew() -> None:
    """The engine knows since when it waits, and says so when it adds it again."""
    rig = Rig(blocks=40, slots=16, policies=patient())
    stored_only(rig, letters(8))
    rig.add("b", letters(9))
    assert rig.hit("b").deferred
    begun = rig.now
    pool = EnginePool(rig.scheduler, lambda name: rig.scheduler.requests.progress(name).known, one_a_step=True)
    for _ in range(2):
        grow(rig)
        pool.release_waiting(())
        rig.add("b", letters(9))
        pool.has_waited("b", begun)
        assert rig.hit("b").deferred
    grow(rig)

    assert not rig.hit("b").deferred
    assert overdue(rig) == 1


def test_wait_is_counted_from_the_first_lookup_in_a_row_that_was_put_off() -> None:
    """A request that was answered in between, and found no room, waits anew; one that has waited in vain does not."""
    rig = Rig(blocks=40, slots=16, policies=patient())
    stored_only(rig, letters(8))
    rig.add("b", letters(9))
    assert rig.hit("b").deferred
    grow(rig)
    grow(rig)
    rig.tick()
    answered = rig.hit("b")
    rig.ledger.reset()
    stored_only(rig, letters(8))
    anew = waited(rig, "b")
    rig.tick()
    rig.ledger.reset()
    stored_only(rig, letters(8))

    assert (answered.host_tokens, anew) == (8, 3)
    assert waited(rig, "b") == 0
    assert overdue(rig) == 1


def test_what_has_landed_when_a_wait_ends_is_taken() -> None:
    """The last copy lands with the step that is too late: nobody computes what is there."""
    rig = Rig(blocks=40, slots=16, policies=patient())
    stored_only(rig, letters(8))
    rig.add("b", letters(9))
    for _ in range(3):
        assert rig.hit("b").deferred
        rig.now += 10.0
    rig.scheduler.set_time(rig.now)
    rig.scheduler.settle(rig.plan().number, rig.now, completions=rig.reports())
    rig.plans.clear()

    assert rig.hit("b").host_tokens == 8
    assert overdue(rig) == 0


def test_wait_ends_by_the_time_that_the_engine_tells() -> None:
    """Its sleep before the first lookup is no wait; the time of a long step is."""
    rig = Rig(blocks=40, slots=16, policies=patient())
    stored_only(rig, letters(8))
    rig.add("b", letters(9))
    rig.scheduler.set_time(1000.0)
    assert rig.hit("b").deferred
    rig.scheduler.set_time(1002.9)
    assert rig.hit("b").deferred
    rig.scheduler.set_time(1003.0)

    assert not rig.hit("b").deferred


def test_wait_without_a_bound_goes_on() -> None:
    """Whoever has another end for every copy may say so."""
    rig = Rig(blocks=40, slots=16, policies=patient(inf))
    stored_only(rig, letters(8))
    rig.add("b", letters(9))

    assert waited(rig, "b", 50) == 50
    assert overdue(rig) == 0
    assert rig.scheduler.snapshot().waits is None


def test_wait_goes_on_from_a_snapshot_with_the_time_that_was_left() -> None:
    """However long the snapshot has lain; who has waited in vain does not wait again."""
    rig = Rig(blocks=40, slots=16, policies=patient())
    stored_only(rig, letters(8))
    rig.add("b", letters(9))
    rig.hit("b")
    grow(rig)
    states = []
    for canonical in (True, False):
        names = rig.scheduler.canonical_names(now=rig.now) if canonical else None
        states.append(rig.scheduler.snapshot(names, now=rig.now))
    found = []
    for saved in states:
        rig.now += 100.0
        rig.scheduler.restore(saved, rig.now)
        again = rig.scheduler.snapshot(now=rig.now)
        found.append((waited(rig, "b"), again == saved))
    over = rig.scheduler.snapshot(now=rig.now)
    rig.scheduler.restore(over, rig.now + 100.0)

    assert found == [(2, True), (2, True)]
    assert waited(rig, "b") == 0
    assert overdue(rig) == 2


@pytest.mark.parametrize("wait", [0, -1.0, float("nan"), True, None, "3"])
def test_wait_that_is_no_time_is_refused(wait: object) -> None:
    """None among them: a bound that is left out is the default."""
    with pytest.raises(MisuseError, match="pending_wait must be above 0"):
        Policies(pending_wait=wait)  # type: ignore[arg-type]
