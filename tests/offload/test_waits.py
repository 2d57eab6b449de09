"""Requests whose lookup is deferred: when they are asked again, and how long they wait.

Goal: who waits for content that is on its way is answered no later than who comes afterwards, and asking again costs nothing
while nothing has changed for it. Method: rigs whose copies land when a test says so, and key functions that count their calls.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from blocklife.offload import LastStep, Policies
from tests.rigs import Rig, letters

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
        grow(rig, {"c": 0} if rig.scheduler.knows("c") else {})
    rig.scheduler.abort("gone")
    rig.ledger.drop([rig.ledger.life(place) for place in blocks])


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


def test_who_waits_for_a_store_is_served_when_another_request_computes_its_content() -> None:
    """The store never lands; what the device has is as good, whoever has computed it."""
    rig = Rig(blocks=60, slots=16, policies=Policies(last_step=LastStep.DRAIN))
    rig.add("c", letters(9))
    rig.let_in("c", 1)
    rig.tick()
    stored_only(rig, letters(8))
    rig.add("b", letters(9))
    waited = rig.hit("b")
    grow(rig, {"c": 3})
    half = rig.hit("b")
    grow(rig, {"c": 4})
    hit = rig.hit("b")

    assert (waited.deferred, half.deferred) == (True, True)
    assert (hit.device_tokens, hit.deferred) == (8, False)
