"""An engine that owns the pool: the end of a request while a step that computes it is out, and what it hits or will load.

Method: one group with blocks of two tokens and, for the ends, a window of four; a request of ten tokens in blocks 1 to 5.
"""

from __future__ import annotations

import pytest

from blocklife.errors import MisuseError
from blocklife.ledger import Completion, Contract, Ledger, Limits, Result, Worker
from blocklife.ledger.views import block_of
from blocklife.offload import DecidedSteps, FullAttention, Geometry, HostTier, OffloadScheduler, Policies, SlidingWindow
from blocklife.states import Block


class Pool:
    """An engine of one group that owns the pool, with nothing in it."""

    def __init__(self, group: SlidingWindow | FullAttention) -> None:
        limits = Limits(num_blocks=9, num_slots=8, max_requests=4)
        self.ledger = Ledger(limits, contract=Contract.FENCE, own_pool=False, indexed=False)
        self.scheduler = OffloadScheduler(self.ledger, HostTier(self.ledger, "lru"), Geometry([group]), Policies(plans_ahead=1))
        self.decided = DecidedSteps(self.scheduler, lambda name: 10, one_a_step=False)

    def name(self, name: str) -> None:
        """A request that waits: all of them have the same prompt."""
        self.scheduler.add_request(
            name, lambda _group, start, stop: [b"%d" % at for at in range(start, stop)], prompt_tokens=10
        )

    def add(self, name: str, blocks: tuple[int, ...], tokens: int, device_tokens: int = 0) -> None:
        """A request that begins, in these blocks, of which the first *device_tokens* are a hit."""
        self.name(name)
        hit = self.decided.device_hit(name, 10, device_tokens)
        self.decided.place_table(name, [blocks], device_tokens)
        self.decided.settle_in()
        self.scheduler.admit(name, hit, tokens)
        self.decided.promise()


class Engine(Pool):
    """Request *a* has computed eight of its ten tokens, and a step with the last two is out when it ends."""

    def __init__(self) -> None:
        super().__init__(SlidingWindow(2, 4))
        self.add("a", (1, 2, 3, 4, 5), 8)
        first = self.scheduler.build_plan(0).number
        self.decided.schedule({"a": 2})
        self.decided.settle_in()
        self.decided.promise()
        self.last = self.scheduler.build_plan(0).number
        self.decided.settle_known(first, 0)
        self.scheduler.finish("a")
        self.decided.leave_windows()

    def held(self) -> list[int]:
        """The blocks that the ledger says *a* holds, 0 for none."""
        return [block_of(life) for life in self.ledger.requests.table("a")]


def test_window_of_an_ended_request_leaves_as_far_as_the_engine_says() -> None:
    """By its tokens two blocks have left; the engine, which counts more, has freed three, and hands one out."""
    engine = Engine()
    before = engine.held()
    engine.decided.leave_window_of_ended("a", [3])
    after = engine.held()
    engine.add("b", (3,), 2)

    assert before == [0, 0, 3, 4, 5]
    assert after == [0, 0, 0, 4, 5]
    assert block_of(engine.ledger.requests.table("b")[0]) == 3


def test_window_of_an_ended_request_that_is_short_for_the_engine_stays() -> None:
    """What has left by its tokens is not taken back, and a position behind the table is none."""
    engine = Engine()
    engine.decided.leave_window_of_ended("a", [1])
    before = engine.held()
    engine.decided.leave_window_of_ended("a", [9])

    assert before == [0, 0, 3, 4, 5]
    assert engine.held() == [0] * 5
    assert engine.ledger.blocks.state(5) is not Block.ALLOCATED


def test_block_that_the_engine_frees_early_cannot_be_handed_out_before_it_has_left() -> None:
    """The control: without the call the ledger refuses the hand-out."""
    engine = Engine()
    with pytest.raises(MisuseError, match="block 3: cannot ALLOCATE"):
        engine.add("b", (3,), 2)


def stored() -> Pool:
    """The whole prompt is in the host tier, and nobody has it any more."""
    pool = Pool(FullAttention(2))
    pool.add("a", (1, 2, 3, 4, 5), 10)
    first = pool.scheduler.build_plan(0)
    pool.decided.settle_known(first.number, 0)
    pool.scheduler.finish("a")
    second = pool.scheduler.build_plan(0)
    jobs = [store.job for plan in (first, second) for store in plan.stores]
    pool.decided.settle_known(second.number, 0, completions=[Completion(job, Worker(0), Result.OK) for job in jobs])
    return pool


def test_load_that_the_engine_will_admit_is_not_promised_to_another_request() -> None:
    """The other one waits for what it brings. Without the call it loads that, too, and so does a third when it is given up."""
    pool = stored()
    for name in "bcd":
        pool.name(name)
    hit = pool.scheduler.lookup("b", 10, 0)
    unsaid = pool.scheduler.lookup("c", 10, 0)
    pool.decided.expect_load("b")
    said = pool.scheduler.lookup("c", 10, 0)
    pool.scheduler.abort("b")
    given_up = pool.scheduler.lookup("d", 10, 0)

    assert {each.host_tokens for each in (hit, unsaid, given_up)} == {8}
    assert [each.deferred for each in (hit, unsaid, said, given_up)] == [False, False, True, False]


def test_request_without_a_hit_brings_nothing() -> None:
    """Nobody waits for it."""
    pool = stored()
    for name in "bc":
        pool.name(name)
    pool.decided.expect_load("b")

    assert not pool.scheduler.lookup("c", 10, 0).deferred


@pytest.mark.parametrize(("device_tokens", "holes"), [(0, 0), (2, 1), (6, 3)])
def test_blocks_that_the_engine_has_hit_and_the_ledger_does_not_know_are_counted(device_tokens: int, holes: int) -> None:
    """They are left out of the table, each a hole, from none on."""
    pool = Pool(FullAttention(2))
    before = pool.decided.holes
    pool.add("b", (1, 2, 3, 4, 5), 2, device_tokens)

    assert before == 0
    assert pool.decided.holes == holes
    assert [block_of(life) for life in pool.ledger.requests.table("b")][:holes] == [0] * holes


@pytest.mark.parametrize(
    ("blocks", "said"),
    [([99], "block 99: blocks are 1 to 8"), ([-1], "block -1: blocks are 1 to 8"), ([5, 5], "named twice in one call")],
    ids=["none", "below zero", "twice"],
)
def test_blocks_that_an_engine_cannot_have_handed_out_are_refused(blocks: list[int], said: str) -> None:
    """Before a table is written, that of another request in the same step, too."""
    pool = Pool(FullAttention(2))
    pool.add("a", (1, 2), 4)
    pool.add("b", (3, 4), 4)
    before = pool.ledger.snapshot()
    pool.decided.extend("a", [(0, [6])])
    pool.decided.extend("b", [(0, blocks)])
    with pytest.raises(MisuseError, match=said):
        pool.decided.settle_in()

    assert pool.ledger.snapshot() == before


def test_request_that_was_finished_beside_the_scheduler_is_named() -> None:
    """The ledger has another request in its row by now, whose table is not written."""
    pool = Pool(FullAttention(2))
    pool.add("a", (1, 2), 4)
    pool.ledger.finish("a")
    pool.ledger.add_request("b")
    before = pool.ledger.snapshot()
    pool.decided.extend("a", [(0, [6])])
    with pytest.raises(MisuseError, match="request a: it was finished beside the scheduler"):
        pool.decided.settle_in()

    assert pool.ledger.snapshot() == before
