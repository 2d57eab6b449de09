"""Drafts beside states: the state after each draft has a block of its own, and only states of known tokens are handed off.

Method: the rig of the other tests with states of one token in a block, and an engine that owns the pool and moves such blocks.
The worlds *drafts-states* and *drafter-states* show the same in every interleaving (`tests/testing/test_worlds.py`).
"""

from __future__ import annotations

import pytest

from blocklife.errors import MisuseError
from blocklife.ledger.views import block_of
from blocklife.offload import Policies
from blocklife.states import Block
from tests.rigs import PoolRig, Rig, letters


def drafting(groups: str = "full:1,mamba:1", ahead: int = 0) -> Rig:
    """Request a with four known letters, of which it computes the last one and two drafts in the next step."""
    rig = Rig(groups, blocks=33, slots=32, policies=Policies(state_drafts=2, plans_ahead=ahead))
    rig.add("a", letters(20), prompt=4)
    rig.let_in("a", 3)
    rig.tick()
    rig.scheduler.grow({"a": 3})
    return rig


def blocks(rig: Rig, group: int = 1) -> list[int]:
    """The blocks of request a in the group of states."""
    return [block_of(life) for life in rig.ledger.requests.table("a", group)]


def test_draft_has_a_state_of_its_own() -> None:
    """One block for each token that a step computes; the prompt has one at its end, and those of two drafts before it."""
    rig = drafting()

    assert len(blocks(rig)) == 6
    assert len(set(blocks(rig)[3:]) - {0}) == 3


@pytest.mark.parametrize("right", [0, 1, 2])
def test_request_steps_back_to_the_state_of_its_last_right_draft(right: int) -> None:
    """What is known and computed follows from what was sampled; the next step writes over what wrong drafts have left."""
    rig = drafting()
    before = blocks(rig)
    rig.scheduler.hand_off("a", 1, 4)
    rig.tick(sampled={"a": 1 + right})
    progress = rig.scheduler.requests.progress("a")
    rig.scheduler.grow({"a": 3})

    assert (progress.known, progress.computed) == (5 + right, 4 + right)
    assert blocks(rig)[3 + right : 6] == before[3 + right : 6]


def test_state_of_a_draft_is_neither_sealed_nor_stored() -> None:
    """That of the last known token is; the others are content in the making, right or wrong."""
    rig = drafting("mamba:1")
    rig.scheduler.hand_off("a", 0, 4)
    rig.tick(sampled={"a": 3})
    states = [rig.ledger.blocks.state(block) for block in blocks(rig, 0)[3:]]
    rig.drain()

    assert states[0] is not Block.ALLOCATED
    assert states[1:] == [Block.ALLOCATED, Block.ALLOCATED]
    assert rig.stored() == [letters(4)]


def test_state_of_a_draft_cannot_be_handed_off() -> None:
    """It may be that of a wrong token; with a step ahead the token that is being sampled counts as known."""
    rig = drafting()
    with pytest.raises(
        MisuseError, match=r"cannot hand off the state at token 5: 4 tokens are known, and the others are drafts"
    ):
        rig.scheduler.hand_off("a", 1, 5)
    ahead = drafting(ahead=1)
    ahead.plan()
    ahead.scheduler.grow({"a": 3})
    with pytest.raises(MisuseError, match="cannot hand off the state at token 7"):
        ahead.scheduler.hand_off("a", 1, 7)


@pytest.mark.parametrize("ahead", [0, 1])
def test_step_computes_no_more_drafts_than_have_states(ahead: int) -> None:
    """Two behind the known tokens; behind a plan that is out, two behind the token that it will sample."""
    rig = Rig("mamba:1", blocks=33, policies=Policies(state_drafts=2, plans_ahead=ahead))
    rig.add("a", letters(20), prompt=4)
    rig.let_in("a", 3)
    rig.tick()
    if ahead:
        rig.scheduler.grow({"a": 3})
        rig.plan()
    with pytest.raises(MisuseError, match="a Mamba state cannot be taken back"):
        rig.scheduler.grow({"a": 4})
    rig.scheduler.grow({"a": 3})

    assert rig.plan() is not None


def test_states_of_larger_blocks_have_no_drafts_in_the_ledgers_pool() -> None:
    """Where a state would go there is for the engine's own allocator to say."""
    with pytest.raises(MisuseError, match=r"state_drafts=1: group 1 \(mamba:4\) has blocks of 4 tokens"):
        Rig("full:4,mamba:4", policies=Policies(state_drafts=1))

    assert Rig("full:4,mamba:4", own_pool=False, policies=Policies(state_drafts=1)).scheduler.policies.state_drafts == 1


# --- an engine that owns the pool -------------------------------------------------------------------------------------------


def with_states() -> PoolRig:
    """Request *a* of four tokens: its state is in block 3, and blocks 4 and 5 are for the states of two drafts."""
    engine = PoolRig("full:4,mamba:4", 4, ahead=0, state_drafts=2)
    engine.add("a", [(1,), (3, 4, 5)], 4)
    engine.known = 5
    engine.pool.settle_known(engine.scheduler.build_plan(0).number, 0)
    return engine


def grow(engine: PoolRig, states: tuple[int, ...]) -> list[int]:
    """One step more; these blocks come behind the others in the table of states. Returns that table."""
    engine.pool.leave_windows()
    tables = [(2,), states]
    engine.pool.move_on("a", tables)
    engine.pool.extend("a", tables)
    engine.pool.schedule({"a": 3})
    engine.pool.record_growth()
    engine.pool.promise()
    return engine.held("a", 1)


def test_blocks_of_drafts_move_to_the_end_of_the_table() -> None:
    """The running state has passed both: they leave nulls, and begin other lives; a fresh block comes behind them."""
    engine = with_states()
    old = list(engine.ledger.requests.table("a", 1))
    table = grow(engine, (0, 0, 4, 5, 6))
    new = engine.ledger.requests.table("a", 1)

    assert table == [3, 0, 0, 0, 0, 4, 5, 6]
    assert {old[1], old[2]}.isdisjoint(new)
    assert [engine.ledger.blocks.state(block) for block in (4, 5, 6)] == [Block.ALLOCATED] * 3


def test_blocks_of_drafts_that_stay_keep_their_lives() -> None:
    """The running state is now where the first draft's was."""
    engine = with_states()
    old = list(engine.ledger.requests.table("a", 1))

    assert grow(engine, (6,)) == [3, 4, 5, 6]
    assert list(engine.ledger.requests.table("a", 1))[:3] == old


@pytest.mark.interpreted
def test_block_that_stays_where_it_was_cannot_come_twice() -> None:
    """The control: without `move_on` the ledger refuses a block that its request holds already."""
    engine = with_states()
    engine.pool.move_on = lambda name, tables: None  # type: ignore[method-assign]  # the point of this test
    with pytest.raises(MisuseError, match="block 4: cannot ALLOCATE"):
        grow(engine, (4, 5, 6))
