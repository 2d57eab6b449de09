"""A second owner of blocks: what it brings is final when the engine says so, and what it uses stays held.

Method: an engine that owns the pool and decides a step before it reports it (`EnginePool`), with blocks of four tokens.
"""

from __future__ import annotations

import pytest

from blocklife.ledger import Completion, Contract, Ledger, Limits, Result, Worker
from blocklife.offload import EnginePool, FullAttention, Geometry, Hit, HostTier, OffloadScheduler, Policies, _others
from blocklife.offload._others import OtherOwners
from blocklife.states import Block


class Engine:
    """Request *a* of nine tokens, of which another owner brings the first eight into blocks 1 and 2; block 3 is its own."""

    def __init__(self) -> None:
        limits = Limits(num_blocks=9, num_slots=8, max_requests=4)
        self.ledger = Ledger(limits, contract=Contract.FENCE, own_pool=False, indexed=False)
        self.scheduler = OffloadScheduler(
            self.ledger, HostTier(self.ledger, "lru"), Geometry([FullAttention(4)], 1), Policies(plans_ahead=1)
        )
        self.known = {"a": 9}
        self.pool = EnginePool(self.scheduler, lambda name: self.known[name], one_a_step=True)
        self.others = OtherOwners(self.pool)

    def place(self, name: str = "a", blocks: tuple[int, ...] = (1, 2, 3), brought: int = 8) -> Hit:
        """The engine has given it these blocks."""
        self.scheduler.add_request(name, lambda _group, start, stop: [b"%d" % at for at in range(start, stop)], prompt_tokens=9)
        hit = self.others.brought(name, self.pool.device_hit(name, 9, 0), brought)
        self.pool.place_table(name, [blocks], 0)
        self.pool.record_growth()
        return hit

    def states(self, *blocks: int) -> list[Block]:
        """The states of blocks."""
        return [self.ledger.blocks.state(block) for block in blocks]

    def step(self) -> int:
        """The running requests compute one token each. Returns the number of the plan."""
        self.pool.leave_windows()
        self.pool.schedule({})
        self.pool.record_growth()
        self.pool.promise()
        return self.scheduler.build_plan(0).number

    def settle(self, plan: int) -> None:
        """It was carried out, and so was all that is out."""
        out = [job.number for job in self.ledger.jobs.alive()]
        done = [Completion(self.ledger.jobs.transfer(number).job, Worker(0), Result.OK) for number in out]
        self.pool.settle_known(plan, 0, completions=done)


def test_what_comes_between_two_steps_is_final_when_the_engine_lets_the_request_run() -> None:
    """Not before: a step in which it only waits seals and stores nothing."""
    engine = Engine()
    engine.others.receive("a", engine.place())
    waiting = engine.scheduler.build_plan(0)
    before = engine.states(1, 2)
    engine.settle(waiting.number)
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
    engine.settle(plan.number)
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
    engine.settle(engine.scheduler.build_plan(0).number)
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
