"""Prefixes that end inside a block: what is stored of them, when a lookup finds them, and what a request then writes on.

Method: the rig of the other tests, blocks of four letters and boundaries every two. Without groups of states a request leaves
its tail behind when it ends; with them, the engine says where the states were kept (`tests/vllm/test_connector_tails.py`).
"""

from __future__ import annotations

import pytest

from blocklife.errors import MisuseError
from blocklife.offload import FullHit, Geometry, HostTier, Mode, OffloadScheduler, Policies
from blocklife.offload._lookup import Answer
from blocklife.offload._search import HostAnswers
from blocklife.states import Block
from tests.rigs import Rig, key, letters
from tests.worlds import make_ledger


def filled(text: str = letters(11), groups: str = "full:4/2", **changes: object) -> Rig:
    """A rig whose host tier has this text, and whose device has forgotten it."""
    rig = Rig(groups, **{"blocks": 17, "slots": 16, **changes})  # type: ignore[arg-type]  # passed on
    rig.fill("a", text)
    rig.reset_device()
    return rig


@pytest.mark.parametrize(("count", "stored"), [(8, [4, 8]), (9, [4, 8]), (10, [4, 8, 10]), (3, [2]), (1, [])])
def test_tail_ends_at_a_boundary_inside_a_block(count: int, stored: list[int]) -> None:
    """A prefix that ends with a block, or before the first boundary behind it, leaves no tail."""
    rig = Rig("full:4/2")
    rig.fill("a", letters(count))

    assert rig.stored() == [letters(each) for each in stored]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (letters(11), 10),
        (letters(10), 8),
        (letters(9) + "zz", 8),
        (letters(8) + "zzz", 8),
        (letters(6) + "zzzzz", 4),
        (letters(12) + "zzzz", 10),
    ],
)
def test_tail_is_found_by_its_own_key(text: str, length: int) -> None:
    """Only at the boundary at which it was stored, and one token at least is left to compute."""
    rig = filled()
    rig.add("b", text)

    assert rig.hit("b").tokens == length


@pytest.mark.parametrize(("text", "within"), [(letters(8) + "zzz", True), (letters(11), False)])
def test_tail_is_loaded_between_two_steps(text: str, within: bool) -> None:
    """However small it is: its request would write into a block of the load itself, before the load has landed."""
    rig = filled(policies=Policies(load_within_tokens=100))
    rig.add("b", text)
    hit = rig.hit("b")
    runs = rig.scheduler.admit("b", hit, 1)

    assert (hit.tokens, hit.within, runs) == (8 if within else 10, within, within)


@pytest.mark.parametrize(("most", "length"), [(9, 8), (10, 10), (1, 0), (2, 0), (4, 4), (6, 4)])
def test_tail_keeps_to_what_a_request_may_load(most: int, length: int) -> None:
    """In tokens, as for whole blocks."""
    rig = filled()
    rig.add("b", letters(11))
    rig.scheduler.cap("b", None, most)

    assert rig.hit("b").tokens == length


@pytest.mark.parametrize(("most", "stored"), [(10, [4, 8, 10]), (9, [4, 8]), (7, [4, 6]), (0, [])])
def test_tail_keeps_to_what_a_request_may_store(most: int, stored: list[int]) -> None:
    """It ends before the token up to which the request is stored."""
    rig = Rig("full:4/2", policies=Policies(max_store_tokens=most))
    rig.fill("a", letters(11))

    assert rig.stored() == [letters(each) for each in stored]


def test_tail_of_a_full_block_has_a_slot_of_its_own() -> None:
    """The request has written on to the end of the block, which was stored as a whole; its tail is stored after that."""
    rig = Rig("full:4/2", policies=Policies(max_store_tokens=6))
    rig.fill("a", letters(8))

    assert rig.stored() == [letters(4), letters(6)]
    rig.reset_device()
    rig.add("b", letters(6) + "zz")
    assert rig.hit("b").tokens == 6


def test_aborted_and_preempted_requests() -> None:
    """One that is given up leaves its tail behind; one that is preempted goes on later, and leaves none."""
    found = []
    for end in ("abort", "preempt"):
        rig = Rig("full:4/2")
        rig.add("a", letters(11))
        rig.let_in("a")
        rig.tick()
        getattr(rig.scheduler, end)("a")
        rig.drain()
        found.append(letters(10) in rig.stored())

    assert found == [True, False]


def test_scheduler_with_tails_can_be_saved() -> None:
    """Chunks that wait, and where a tail ends, are part of it."""
    rig = Rig("full:4/2", slots=1)
    rig.add("a", letters(11))
    rig.let_in("a")
    rig.tick()
    rig.scheduler.finish("a")
    saved = rig.scheduler.snapshot()
    rig.tick()
    rig.scheduler.restore(saved)

    assert rig.scheduler.snapshot() == saved
    assert any(chunk.tail for chunk in saved.stores.chunks)


@pytest.mark.parametrize(
    ("policies", "match"),
    [(Policies(mode=Mode.LAZY), "tails are not stored lazily"), (Policies(full_hit=FullHit.RECOMPUTE_LAST_TOKEN), "DROP_LAST")],
)
def test_policies_that_tails_cannot_keep_are_refused(policies: Policies, match: str) -> None:
    """When the scheduler is made."""
    ledger = make_ledger()
    with pytest.raises(MisuseError, match=match):
        OffloadScheduler(ledger, HostTier(ledger), Geometry.parse("full:4/2"), policies)


def test_key_of_a_tail_is_bytes_or_nothing() -> None:
    """Whatever else the engine's function returns is refused by name."""
    rig = Rig("full:4/2")
    rig.scheduler.add_request("a", lambda group, start, stop: [], prompt_tokens=3, tails=lambda group, end: "no")  # type: ignore[arg-type,return-value]  # the point of this test
    with pytest.raises(MisuseError, match="the key of the tail of group 0 at token 2 must be bytes or None"):
        rig.scheduler.lookup("a", 3)


def test_slot_of_a_tail_has_no_whole_block() -> None:
    """So it is not put into the tier below, and nothing else counts on it."""
    rig = filled()
    held = [
        rig.scheduler._stores.suffix[slot or 0]
        for slot in map(rig.tier.slot_of, (0, 0), (key(0, letters(8)), key(0, letters(10))))
    ]

    assert held == [1, 0]


def test_preempted_request_forgets_its_tail() -> None:
    """It computes its states again, which may be kept at another token then."""
    rig = Rig("full:4,mamba:4/2")
    rig.add("a", letters(7))
    rig.let_in("a")
    rig.tick()
    rig.scheduler._state.requests["a"].tail = 6
    rig.scheduler.preempt("a")

    assert rig.scheduler._state.requests["a"].tail == 0


# --- layers of a drafter ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "stored"),
    [(11, [6, 10]), (10, [6, 10]), (9, [6]), (6, [6]), (5, [4]), (3, []), (12, [6, 12])],
)
def test_tail_of_a_drafter_has_the_key_of_its_proof(count: int, stored: list[int]) -> None:
    """It ends one boundary earlier than its key; if the proof ends with the block, the full block serves."""
    rig = Rig("full:6+drafter/2")
    rig.fill("a", letters(count))

    assert rig.stored() == [letters(each) for each in stored]


def test_tail_ends_alike_in_all_groups_and_is_proven_in_those_of_a_drafter() -> None:
    """Of the other groups it is stored under the key of its own end."""
    rig = Rig("full:6,full:6+drafter/2")
    rig.fill("a", letters(11))
    slots = rig.tier.slot_of
    found = [[end for end in range(1, 12) if slots(group, key(group, letters(end))) is not None] for group in (0, 1)]

    assert found == [[6, 8], [6, 10]]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (letters(11), 8),
        (letters(10), 8),
        (letters(9), 4),
        (letters(9) + "zz", 4),
        (letters(8) + "zzz", 4),
        (letters(5) + "zzz", 0),
        (letters(14), 8),
        ("z" + letters(14)[1:], 0),
    ],
)
def test_tail_of_a_drafter_is_found_by_its_proof(text: str, length: int) -> None:
    """Behind a block whose own proof was never computed; the last known token may be the last of the proof.

    Without the tail the full block proves a prefix that ends inside it.
    """
    rig = filled(groups="full:6+drafter/2")
    rig.add("b", text)

    assert rig.hit("b").tokens == length


def test_block_before_the_tail_of_a_drafter_is_loaded_with_it() -> None:
    """The request writes on in the last block, behind the end of the tail and not of its proof."""
    rig = filled(groups="full:6+drafter/2")
    rig.add("b", letters(10) + "zz", 11)
    hit = rig.hit("b")
    rig.scheduler.admit("b", hit, 1)
    plan = rig.tick()
    (load,) = plan.loads

    assert [rig.ledger.slots.key(int(slot)) for slot in load.source] == [key(0, letters(6)), key(0, letters(10))]
    assert rig.scheduler.requests.progress("b").computed == 8
    assert rig.ledger.blocks.of(rig.ledger.requests.table("b")[-1]) is Block.ALLOCATED
    assert rig.cached() == [letters(6)]


@pytest.mark.parametrize("count", [9, 8, 7])
def test_full_block_serves_as_the_tail_of_a_drafter(count: int) -> None:
    """Its key is that of the proof of its last boundary but one; the request writes on in a block of its own."""
    rig = filled(letters(6), groups="full:6+drafter/2")
    rig.add("b", letters(count))
    rig.let_in("b")
    rig.tick()

    assert rig.stored() == [letters(6)]
    assert rig.scheduler.requests.progress("b").computed == 4
    assert rig.cached() == []


def test_tail_behind_a_block_that_is_gone_is_none() -> None:
    """The host tier lacks the block between the common hit and the tail, in one of the groups."""
    for group in (0, 1):
        rig = filled(groups="full:6,full:6+drafter/2")
        slot = rig.tier.slot_of(group, key(group, letters(6)))
        assert slot is not None
        rig.ledger.evict([slot])
        rig.add("b", letters(11))

        assert rig.hit("b").tokens == 0


@pytest.mark.interpreted
def test_block_before_a_tail_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again for each boundary behind it."""
    rig = filled(groups="full:6+drafter/1")
    asked, answer, held = list[bytes](), rig.tier.answer, HostAnswers.held

    def noted(group: int, name: bytes) -> Answer:
        asked.append(name)
        return answer(group, name)

    def scanned(self: HostAnswers, group: int, name: bytes, slot: int) -> int:
        asked.append(name)
        return held(self, group, name, slot)

    monkeypatch.setattr(rig.tier, "answer", noted)
    monkeypatch.setattr(HostAnswers, "held", scanned)
    rig.add("b", letters(11))
    found = rig.hit("b").tokens

    assert found == 10
    assert asked.count(key(0, letters(6))) == 2


def test_tail_behind_a_block_that_another_request_loads_is_waited_for() -> None:
    """The block is on the device a step later, and is not fetched twice."""
    rig = filled(groups="full:6,full:6+drafter/2")
    for name in "bc":
        rig.add(name, letters(11))
    rig.let_in("b")
    hit = rig.hit("c")

    assert (hit.deferred, hit.tokens) == (True, 0)
    rig.drain()
    assert rig.hit("c").tokens == 8


@pytest.mark.parametrize(("most", "length"), [(8, 8), (7, 4), (6, 4), (3, 0), (100, 8)])
def test_tail_of_a_drafter_keeps_to_what_a_request_may_load(most: int, length: int) -> None:
    """The tokens of the proof are not loaded, and do not count."""
    rig = filled(groups="full:6+drafter/2")
    rig.add("b", letters(11))
    rig.scheduler.cap("b", None, most)

    assert rig.hit("b").tokens == length


@pytest.mark.parametrize(("most", "stored"), [(10, [6, 10]), (9, [6])])
def test_tail_of_a_drafter_keeps_to_what_a_request_may_store(most: int, stored: list[int]) -> None:
    """Its proof counts: it is among what the key names."""
    rig = Rig("full:6+drafter/2", policies=Policies(max_store_tokens=most))
    rig.fill("a", letters(11))

    assert rig.stored() == [letters(each) for each in stored]
