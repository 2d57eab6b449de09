"""An engine that owns the pool: the end of a request while a step that computes it is out, and what it hits or will load.

Method: one group with blocks of two tokens and, for the ends, a window of four; a request of ten tokens in blocks 1 to 5.
"""

from __future__ import annotations

import pytest

from blocklife.errors import MisuseError
from tests.rigs import PoolRig


def ended() -> PoolRig:
    """Request *a* has computed eight of its ten tokens, and a step with the last two is out when it ends."""
    engine = PoolRig("swa:2:4", 10)
    engine.add("a", [(1, 2, 3, 4, 5)], 8)
    first = engine.scheduler.build_plan(0).number
    engine.plan({"a": 2})
    engine.pool.settle_known(first, 0)
    engine.scheduler.finish("a")
    engine.pool.leave_windows()
    return engine


def test_block_that_is_handed_out_while_the_last_step_of_its_request_is_out_is_given_back() -> None:
    """An engine that is a producer alone does so. What was promised to be stored from there is, and the step waits for it."""
    engine = ended()
    reads = engine.ledger.blocks.job(5)
    engine.add("b", [(5,)], 2)
    plan = engine.scheduler.build_plan(0)

    assert engine.held() == [0, 0, 3, 4, 0]
    assert engine.held("b") == [5]
    assert reads in {job.number for job in plan.flushes}


def test_block_of_a_request_that_runs_cannot_be_handed_out() -> None:
    """Only those that are over give back."""
    engine = PoolRig("swa:2:4", 10)
    engine.add("a", [(1, 2, 3, 4, 5)], 8)
    with pytest.raises(MisuseError, match="block 3: cannot ALLOCATE"):
        engine.add("b", [(3,)], 2)


def stored() -> PoolRig:
    """The whole prompt is in the host tier, and nobody has it any more."""
    engine = PoolRig("full:2", 10)
    engine.add("a", [(1, 2, 3, 4, 5)], 10)
    first = engine.scheduler.build_plan(0)
    engine.pool.settle_known(first.number, 0)
    engine.scheduler.finish("a")
    engine.settle(engine.scheduler.build_plan(0))
    return engine


def test_load_that_the_engine_will_admit_is_not_promised_to_another_request() -> None:
    """The other one waits for what it brings. Without the call it loads that, too, and so does a third when it is given up."""
    engine = stored()
    for name in "bcd":
        engine.name(name)
    hit = engine.scheduler.lookup("b", 10, 0)
    unsaid = engine.scheduler.lookup("c", 10, 0)
    engine.pool.expect_load("b")
    said = engine.scheduler.lookup("c", 10, 0)
    engine.scheduler.abort("b")
    given_up = engine.scheduler.lookup("d", 10, 0)

    assert {each.host_tokens for each in (hit, unsaid, given_up)} == {8}
    assert [each.deferred for each in (hit, unsaid, said, given_up)] == [False, False, True, False]


def test_request_without_a_hit_brings_nothing() -> None:
    """Nobody waits for it."""
    engine = stored()
    for name in "bc":
        engine.name(name)
    engine.pool.expect_load("b")

    assert not engine.scheduler.lookup("c", 10, 0).deferred


@pytest.mark.parametrize("way", ["device", "nothing", "deferred"])
def test_hit_without_a_host_part_is_no_load_to_expect(way: str) -> None:
    """It is refused before anything changes, and what the engine really loads is expected afterwards."""
    engine = stored()
    for name in "bc":
        engine.name(name)
    if way == "device":
        engine.pool.device_hit("b", 10, 2)
    elif way == "nothing":
        engine.scheduler.lookup("b", 10, 8)
    else:
        engine.scheduler.lookup("c", 10, 0)
        engine.pool.expect_load("c")
        assert engine.scheduler.lookup("b", 10, 0).deferred
    before = engine.scheduler.snapshot()

    with pytest.raises(MisuseError, match=r"^request b: cannot EXPECT_LOAD while WAITING: its hit has no host part \("):
        engine.pool.expect_load("b")
    assert engine.scheduler.snapshot() == before


@pytest.mark.parametrize(("device_tokens", "holes"), [(0, 0), (2, 1), (6, 3)])
def test_blocks_that_the_engine_has_hit_and_the_ledger_does_not_know_are_counted(device_tokens: int, holes: int) -> None:
    """They are left out of the table, each a hole, from none on."""
    engine = PoolRig("full:2", 10)
    before = engine.pool.holes
    engine.add("b", [(1, 2, 3, 4, 5)], 2, device_tokens)

    assert before == 0
    assert engine.pool.holes == holes
    assert engine.held("b")[:holes] == [0] * holes


@pytest.mark.parametrize(
    ("blocks", "said"),
    [([99], "block 99: blocks are 1 to 11"), ([-1], "block -1: blocks are 1 to 11"), ([5, 5], "named twice in one call")],
    ids=["none", "below zero", "twice"],
)
def test_blocks_that_an_engine_cannot_have_handed_out_are_refused(blocks: list[int], said: str) -> None:
    """Before a table is written, that of another request in the same step, too."""
    engine = PoolRig("full:2", 10)
    engine.add("a", [(1, 2)], 4)
    engine.add("b", [(3, 4)], 4)
    before = engine.ledger.snapshot()
    engine.pool.extend("a", [[6]])
    engine.pool.extend("b", [blocks])
    with pytest.raises(MisuseError, match=said):
        engine.pool.record_growth()

    assert engine.ledger.snapshot() == before


def test_request_that_was_finished_beside_the_scheduler_is_named() -> None:
    """The ledger has another request in its row by now, whose table is not written."""
    engine = PoolRig("full:2", 10)
    engine.add("a", [(1, 2)], 4)
    engine.ledger.finish("a")
    engine.ledger.add_request("b")
    before = engine.ledger.snapshot()
    engine.pool.extend("a", [[6]])
    with pytest.raises(MisuseError, match="request a: it was finished beside the scheduler"):
        engine.pool.record_growth()

    assert engine.ledger.snapshot() == before
