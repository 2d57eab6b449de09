"""A second owner of blocks: what it brings is final when the engine says so, and what it uses stays held.

Method: an engine that owns the pool and decides a step before it reports it (`EnginePool`), with blocks of four tokens.
"""

from __future__ import annotations

import pytest

from blocklife.ledger import Plan
from blocklife.offload import Hit, _others
from blocklife.offload._others import OtherOwners
from blocklife.states import Block
from tests.rigs import PoolRig


class Engine(PoolRig):
    """Request *a* of nine tokens, of which another owner brings the first eight into blocks 1 and 2; block 3 is its own."""

    def __init__(self) -> None:
        super().__init__("full:4", 9, one_a_step=True)
        self.others = OtherOwners(self.pool)

    def place(self) -> Hit:
        """The engine has given it these blocks."""
        self.name("a")
        hit = self.others.brought("a", self.pool.device_hit("a", 9, 0), 8)
        self.pool.place_table("a", [(1, 2, 3)], 0)
        self.pool.record_growth()
        return hit

    def states(self, *blocks: int) -> list[Block]:
        """The states of blocks."""
        return [self.ledger.blocks.state(block) for block in blocks]

    def step(self) -> Plan:
        """The running requests compute one token each."""
        self.pool.leave_windows()
        return self.plan({})


def test_what_comes_between_two_steps_is_final_when_the_engine_lets_the_request_run() -> None:
    """Not before: a step in which it only waits seals and stores nothing."""
    engine = Engine()
    engine.others.receive("a", engine.place())
    waiting = engine.scheduler.build_plan(0)
    before = engine.states(1, 2)
    engine.settle(waiting)
    runs = engine.scheduler.requests.is_running("a")
    engine.others.received("a", 8)
    engine.step()

    assert not runs
    assert not waiting.stores
    assert before == [Block.ALLOCATED, Block.ALLOCATED]
    assert engine.states(1, 2, 3) == [Block.IN_FLIGHT, Block.IN_FLIGHT, Block.ALLOCATED]


@pytest.mark.parametrize("wrong", [(), (2,), (7,)], ids=["right", "wrong", "another's"])
def test_what_comes_within_a_step_is_final_when_its_report_says_so(wrong: tuple[int, ...]) -> None:
    """What failed is never named; the engine computes it again."""
    engine = Engine()
    engine.scheduler.admit("a", engine.place(), 1)
    engine.others.doubt("a", (1, 2, 3))
    doubted = bool(engine.others.doubts), engine.others.doubted([3, 8]), engine.others.doubted([8])
    engine.pool.promise()
    plan = engine.scheduler.build_plan(0)
    before = engine.states(1, 2)
    engine.others.hear(plan.number, wrong)
    engine.settle(plan)
    engine.step()
    failed = wrong == (2,)

    assert doubted == (True, True, False)
    assert not plan.stores
    assert before == [Block.ALLOCATED, Block.ALLOCATED]
    assert engine.states(1, 2) == [Block.ALLOCATED if failed else Block.IN_FLIGHT] * 2
    assert engine.others.take_wrong() == ["a"] * failed
    assert engine.others.take_wrong() == []
    assert not engine.others.doubts


def test_a_report_says_nothing_of_who_was_preempted_since() -> None:
    """It holds other blocks when it comes again."""
    engine = Engine()
    engine.scheduler.admit("a", engine.place(), 1)
    engine.others.doubt("a", (1, 2, 3))
    engine.pool.promise()
    plan = engine.scheduler.build_plan(0)
    engine.scheduler.preempt("a")
    engine.others.hear(plan.number, (2,))

    assert engine.others.take_wrong() == []
    assert not engine.others.doubts


def test_blocks_that_another_uses_stay_held_until_they_are_given_back() -> None:
    """Also those without final content, of which nobody may say what is in them."""
    engine = Engine()
    engine.others.receive("a", engine.place())
    engine.settle(engine.scheduler.build_plan(0))
    engine.others.received("a", 8)
    engine.settle(engine.step())
    engine.scheduler.finish("a")
    free = engine.ledger.blocks.free
    lent = engine.others.lend("a", [[1, 2, 3]])
    again = engine.others.lend("a", [[1, 2, 3]])
    held = engine.states(1, 2, 3), engine.ledger.blocks.free, list(engine.others.guests)
    engine.others.give_back("a")
    engine.others.give_back("a")

    assert (lent, again) == (True, False)
    assert held == ([Block.SEALED, Block.SEALED, Block.ALLOCATED], free - 3, ["a"])
    assert engine.states(1, 2, 3) == [Block.CACHED, Block.CACHED, Block.FREED]
    assert engine.ledger.blocks.free == free
    assert not engine.others.guests


def test_no_more_is_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither more guests than allowed, nor more than the ledger has rows."""
    engine = Engine()
    most = [engine.others.lend(name, [[block]]) for block, name in enumerate("wxyz!", 1)]
    monkeypatch.setattr(_others, "MAX_GUESTS", 0)

    assert most == [True, True, True, True, False]
    assert not Engine().others.lend("v", [[5]])
