"""The end of a request in an engine that owns the pool, while a step that computes the request is out.

Method: one group with a window of four tokens and blocks of two; a request of ten tokens in blocks 1 to 5.
"""

from __future__ import annotations

import pytest

from blocklife.errors import MisuseError
from blocklife.ledger import Contract, Ledger, Limits
from blocklife.ledger.views import block_of
from blocklife.offload import DecidedSteps, Geometry, HostTier, OffloadScheduler, Policies, SlidingWindow
from blocklife.states import Block


class Engine:
    """Request *a* has computed eight of its ten tokens, and a step with the last two is out when it ends."""

    def __init__(self) -> None:
        limits = Limits(num_blocks=9, num_slots=8, max_requests=4)
        self.ledger = Ledger(limits, contract=Contract.FENCE, own_pool=False, indexed=False)
        self.scheduler = OffloadScheduler(
            self.ledger, HostTier(self.ledger, "lru"), Geometry([SlidingWindow(2, 4)]), Policies(plans_ahead=1)
        )
        self.decided = DecidedSteps(self.scheduler, lambda name: 10, one_a_step=False)
        self.add("a", (1, 2, 3, 4, 5), 8)
        first = self.scheduler.build_plan(0).number
        self.decided.schedule({"a": 2})
        self.decided.settle_in()
        self.decided.promise()
        self.last = self.scheduler.build_plan(0).number
        self.decided.settle_known(first, 0)
        self.scheduler.finish("a")
        self.decided.leave_windows()

    def add(self, name: str, blocks: tuple[int, ...], tokens: int) -> None:
        """A request that begins, in these blocks."""
        self.scheduler.add_request(
            name, lambda _group, start, stop: [b"%d" % at for at in range(start, stop)], prompt_tokens=10
        )
        hit = self.decided.device_hit(name, 10, 0)
        self.decided.place_table(name, [blocks], 0)
        self.decided.settle_in()
        self.scheduler.admit(name, hit, tokens)
        self.decided.promise()

    def held(self) -> list[int]:
        """The blocks that the ledger says *a* holds, 0 for none."""
        return [block_of(life) for life in self.ledger.table("a")]


def test_window_of_an_ended_request_leaves_as_far_as_the_engine_says() -> None:
    """By its tokens two blocks have left; the engine, which counts more, has freed three, and hands one out."""
    engine = Engine()
    before = engine.held()
    engine.decided.leave_window_of_ended("a", [3])
    after = engine.held()
    engine.add("b", (3,), 2)

    assert before == [0, 0, 3, 4, 5]
    assert after == [0, 0, 0, 4, 5]
    assert block_of(engine.ledger.table("b")[0]) == 3


def test_window_of_an_ended_request_that_is_short_for_the_engine_stays() -> None:
    """What has left by its tokens is not taken back, and a position behind the table is none."""
    engine = Engine()
    engine.decided.leave_window_of_ended("a", [1])
    before = engine.held()
    engine.decided.leave_window_of_ended("a", [9])

    assert before == [0, 0, 3, 4, 5]
    assert engine.held() == [0] * 5
    assert engine.ledger.blocks.at(5) is not Block.ALLOCATED


def test_block_that_the_engine_frees_early_cannot_be_handed_out_before_it_has_left() -> None:
    """The control: without the call the ledger refuses the hand-out."""
    engine = Engine()
    with pytest.raises(MisuseError, match="block 3: cannot ALLOCATE"):
        engine.add("b", (3,), 2)
