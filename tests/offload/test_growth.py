"""What an operation costs does not grow with what it only passes, and never faster than what it has to do.

Method: the operations of `tests/bench/growth.py` in a world and in one four times as large. Lines of the package that run are
counted, which depend on no clock. What C code walks through is not seen here; the benchmark measures it. What is passed over
has to be found all the same when it matters: that is tested below.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import blocklife
from blocklife.core import _verbs as verbs
from blocklife.ledger import Contract, Ledger, Result
from blocklife.offload import HostTier
from blocklife.offload.replacement import Lru, Name
from blocklife.states import Job
from tests.bench.growth import MORE, OPERATIONS, Act, Operation
from tests.rigs import Rig, letters
from tests.worlds import keys, make_ledger, ready, report, sealed, store

ROOM = str(Path(blocklife.__file__).parent)
SIZE = 100


def lines(act: Act) -> int:
    """The lines of the package that run in one call."""
    found = 0

    def local(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal found
        found += event == "line"
        return local

    def call(frame: FrameType, _event: str, _argument: object) -> Any:
        return local if frame.f_code.co_filename.startswith(ROOM) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        act()
    finally:
        sys.settrace(before)
    return found


@pytest.mark.interpreted  # lines of compiled code are not told of
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: re.sub(r"\W+", "-", operation.name))
def test_operation_grows_as_its_work(operation: Operation) -> None:
    """Four times as much of what it only passes costs a line or two more, where somebody looks for the first of many."""
    small, large = operation.world(SIZE), operation.world(MORE * SIZE)
    for act in (small, large):  # what is found out once does not count
        act()
        act()

    assert lines(large) <= operation.work * lines(small) * 1.1


def lent(ledger: Ledger, most: int) -> list[int]:
    """Up to *most* blocks that would be handed out while a job touches them, in order."""
    core = ledger._state.core
    core.make_room(most)
    return list(core.ids[: verbs.lend(core, 0, most)])


@pytest.mark.parametrize("seed", range(4))
def test_blocks_are_lent_in_the_order_of_all_jobs(seed: int) -> None:
    """Planned stores first, then the oldest jobs, however few of them are looked at; held blocks are not among them."""
    rng = random.Random(seed)
    ledger = make_ledger(num_blocks=400, num_slots=400, max_jobs=400, contract=Contract.FENCE)
    for at in range(300):
        name = f"r{at % 3}"
        if name not in ledger.requests:
            ledger.add_request(name)
        store(ledger, sealed(ledger, name, keys(at)), keys(at), at, owner=name)
        if rng.random() < 0.05:
            ledger.settle(ledger.dispatch(0.0).number, 0.0)
    for name in ("r0", "r1"):
        ledger.finish(name)
    jobs = sorted(ledger.jobs.alive(), key=lambda job: job.state is not Job.PLANNED)
    everything = [block for job in jobs for block in job.ids if not ledger.blocks.refs(block)]

    assert len(everything) == 200
    for most in (0, 1, 60, 150, 199, 200, 300):
        assert lent(ledger, most) == everything[:most]
    assert ledger.blocks.has_room(ledger.blocks.free + 200)
    assert not ledger.blocks.has_room(ledger.blocks.free + 201)


def test_block_without_a_life_waits_for_the_job_that_touches_it() -> None:
    """Handed out behind a store, and given up and handed out again while the store still reads it."""
    ledger = make_ledger(num_blocks=2, requests=("a",))
    source = sealed(ledger, "a", keys("old"))
    first = store(ledger, source, keys("old")).ids[0]
    ledger.settle(ledger.dispatch(0.0).number, 0.0)
    ledger.finish("a")
    for name in "bcd":
        ledger.add_request(name)
        ledger.allocate(name, 1)
        assert ledger.dispatch(0.0).flushes == (first,)
        ledger.finish(name)


class Counted(Lru):
    """A policy that knows how often it was asked."""

    asked = 0

    def victims(self, count: int, evictable: Callable[[int], bool], coming: Sequence[Name]) -> list[int]:
        self.asked += 1
        return super().victims(count, evictable, coming)


def test_tier_asks_again_as_soon_as_a_slot_can_be_evicted() -> None:
    """While every slot is pinned, the policy is asked once; who lets go of one, and of another, makes room each time."""
    ledger = make_ledger(num_slots=4)
    policy = Counted()
    tier = HostTier(ledger, policy)
    for at in range(4):
        slots = tier.reserve([(0, b"%d" % at)])
        assert slots is not None
        ready(ledger, str(at), slots[0])
    ledger.pin("somebody", range(4))
    refused = [tier.reserve([(0, b"new")]) for _ in range(5)]

    assert refused == [None] * 5
    assert policy.asked == 1
    for slot in (2, 0):
        ledger.unpin("somebody", [slot])
        assert tier.reserve([(0, b"new")]) == [slot]
        ready(ledger, f"new {slot}", slot)
        ledger.pin("somebody", [slot])
        assert tier.reserve([(0, b"newer")]) is None


def test_running_requests_are_in_the_order_in_which_they_were_added() -> None:
    """Whatever their rows are, which are used again, and after a restore."""
    rig = Rig(blocks=40)
    for name in "abcd":
        rig.add(name, letters(5))
    for name in "dcba":
        rig.let_in(name)
    rig.tick()
    saved = rig.scheduler.snapshot()
    for name in "ca":
        rig.scheduler.finish(name)
    rig.tick()
    for name in "eac":
        rig.add(name, letters(5))
        rig.let_in(name)

    assert rig.scheduler.requests.running() == ["b", "d", "e", "a", "c"]
    rig.tick()
    rig.scheduler.restore(saved)
    assert rig.scheduler.requests.running() == ["a", "b", "c", "d"]


@pytest.mark.parametrize("result", list(Result))
def test_end_of_a_load_is_heard_again_after_a_restore(result: Result) -> None:
    """A load that ends between two steps is heard of in the next; who goes back to before that step hears of it once more."""
    rig = Rig()
    rig.fill("a", letters(5))
    rig.reset_device()
    rig.add("b", letters(5))
    assert not rig.let_in("b", 0)
    plan = rig.scheduler.build_plan(rig.now)
    rig.scheduler.settle(plan.number, rig.now)
    rig.ledger.complete(report(plan.loads[0].job, result))
    saved = rig.scheduler.snapshot()
    heard = []
    for _ in range(2):
        empty = rig.scheduler.build_plan(rig.now)
        heard.append(rig.scheduler.settle(empty.number, rig.now))
        rig.scheduler.restore(saved)

    assert heard[0] == heard[1]
    assert (heard[0].loaded, heard[0].failed) == ((("b",), ()) if result is Result.OK else ((), ("b",)))
