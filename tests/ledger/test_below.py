"""Demotions and promotions: what a plan tells the workers, what is refused, and what two jobs on one slot do.

What each coupling does is in `test_coupling_marks.py`; every reachable state of small worlds is in `tests/testing`.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Completion, Direction, GroupTransfer, JobId, Jobs, Result, Store, TierTransfer, Worker
from blocklife.ledger.invariants import check
from blocklife.states import Job, Slot
from tests.worlds import in_flight, keys, make_ledger, ready, refuses, report


def test_plan_tells_the_workers_what_to_move() -> None:
    """Slots, keys and groups of each job, and the space; it can be pickled. Device copies of the same plan stand beside it."""
    ledger = make_ledger(groups=2)
    ready(ledger)
    up = ledger.plan_promotion([3, 1], keys("p", "q"), [1, 0], space=b"now").ids[0]
    down = ledger.plan_demotion([0], space=b"now").ids[0]
    plan = pickle.loads(pickle.dumps(ledger.dispatch(0.0)))
    (promote,), (demote,) = plan.promotes, plan.demotes

    assert (promote.job, promote.direction, promote.slots.tolist()) == (up, Direction.PROMOTE, [3, 1])
    assert (promote.groups, promote.keys, promote.space) == (b"\1\0", (b"p", b"q"), b"now")
    assert (demote.job, demote.direction, demote.slots.tolist()) == (down, Direction.DEMOTE, [0])
    assert (demote.groups, demote.keys, demote.space) == (b"\0", (b"k",), b"now")
    assert (list(plan.loads), list(plan.stores), plan.flushes, plan.empty) == ([], [], (), False)


def test_plan_names_the_jobs_that_it_submits() -> None:
    """Of all four directions, and the same in the process of a worker, to which it was sent."""
    ledger = make_ledger(groups=2, num_blocks=8)
    ready(ledger)
    ledger.add_request("w")
    ledger.add_request("v")
    load = ledger.plan_load("w", GroupTransfer(ledger.allocate("w", 1), [0])).ids[0]
    final = ledger.seal(ledger.allocate("v", 1), keys("v"))
    stored = ledger.plan_store(Store("v", [GroupTransfer(final, [2], keys("v"))])).ids[0]
    up = ledger.plan_promotion([3, 1], keys("p", "q"), [1, 0]).ids[0]
    down = ledger.plan_demotion([0]).ids[0]
    plan = ledger.dispatch(0.0)

    assert plan.submitted == (load, stored, up, down)
    assert pickle.loads(pickle.dumps(plan)).submitted == plan.submitted
    assert ledger.dispatch(0.0).submitted == ()


def test_slot_read_by_several_copies_is_free_after_the_last() -> None:
    """A load, a demotion and a holder pin one slot; a reset makes it STALE until all have let go."""
    ledger = make_ledger()
    ready(ledger)
    ledger.add_request("w")
    load = ledger.plan_load("w", GroupTransfer(ledger.allocate("w", 1), [0])).ids[0]
    down = ledger.plan_demotion([0]).ids[0]
    ledger.pin("me", [0])
    plan = ledger.dispatch(0.0)
    ledger.reset()
    ledger.unpin("me", [0])
    ledger.settle(plan.number, 0.0, completions=[report(load)])

    assert ledger.slots.state(0) is Slot.STALE
    ledger.complete(report(down))
    assert (ledger.slots.state(0), ledger.jobs.state(down)) == (Slot.EMPTY, Job.CANCELLED)
    assert check(ledger) == []


def test_store_that_lands_first_wins_over_a_promotion() -> None:
    """The same content comes from two sides: one slot has it, the other becomes empty (I14)."""
    ledger = make_ledger()
    up = ledger.plan_promotion([1], keys("k")).ids[0]
    _, stored = in_flight(ledger)
    ledger.complete(report(stored))
    ledger.complete(report(up))

    assert (ledger.slots.state(0), ledger.slots.state(1)) == (Slot.READY, Slot.EMPTY)
    assert ledger.slots.prefix(keys("k")) == [0]
    assert ledger.jobs.state(up) is Job.DONE
    assert check(ledger) == []


def test_promotion_that_brings_nothing_is_done() -> None:
    """What a store below has lost is a miss, and no failure."""
    ledger = make_ledger()
    job = ledger.plan_promotion([0, 1], keys("p", "q")).ids[0]
    ledger.dispatch(0.0)
    ledger.complete(Completion(job, Worker(0), Result.OK, (1, 0)))

    assert (ledger.jobs.state(job), ledger.slots.state(0), ledger.slots.state(1)) == (Job.DONE, Slot.EMPTY, Slot.EMPTY)
    assert ledger.counts.moved["PROMOTE"] == 0


def test_lost_worker_fails_what_it_had() -> None:
    """Its part of a promotion will never come."""
    ledger = make_ledger(workers=2)
    job = ledger.plan_promotion([0], keys("p")).ids[0]
    ledger.dispatch(0.0)
    ledger.complete(report(job))
    ledger.lose(Worker(1))

    assert (ledger.jobs.state(job), ledger.slots.state(0)) == (Job.FAILED, Slot.EMPTY)


@pytest.mark.parametrize("direction", ["plan_demotion", "plan_promotion"])
def test_job_below_is_refused_like_any_other(direction: str) -> None:
    """Nothing to copy, slots that do not exist or come twice, and no row for a job."""
    ledger = make_ledger(max_jobs=1)
    ready(ledger)

    def plan(*slots: int) -> Jobs[Job]:
        return ledger.plan_demotion(slots) if direction == "plan_demotion" else ledger.plan_promotion(slots, keys(*slots))

    with refuses(ledger, MisuseError, "nothing to copy"):
        plan()
    with refuses(ledger, MisuseError, "slots are 0 to 3"):
        plan(4)
    with refuses(ledger, MisuseError, "named twice"):
        plan(0, 0)
    in_flight(ledger, name="other", slot=1)
    with refuses(ledger, CapacityError, "max_jobs"):
        plan(0 if direction == "plan_demotion" else 2)


def test_promotion_of_what_does_not_fit_is_refused() -> None:
    """Keys for every slot, groups that exist, and no content twice in one job."""
    ledger = make_ledger()
    with refuses(ledger, MisuseError, "2 slots and 1 keys do not agree"):
        ledger.plan_promotion([0, 1], keys("p"))
    with refuses(ledger, MisuseError, "group 1: groups are 0 to 0"):
        ledger.plan_promotion([0], keys("p"), 1)
    with refuses(ledger, MisuseError, "named twice in one job"):
        ledger.plan_promotion([0, 1], keys("p", "p"))


@pytest.mark.parametrize(
    ("missing", "why"),
    [((2,), "missing"), ((-1,), "missing"), ((0.5,), "missing")],
    ids=str,
)
def test_report_of_a_part_that_is_not_there_is_refused(missing: tuple[int, ...], why: str) -> None:
    """Positions are those of the transfer."""
    ledger = make_ledger()
    job = ledger.plan_promotion([0, 1], keys("p", "q")).ids[0]
    plan = ledger.dispatch(0.0)
    with refuses(ledger, MisuseError, why):
        ledger.complete(Completion(job, Worker(0), Result.OK, missing))
    with refuses(ledger, MisuseError, why):
        ledger.settle(plan.number, 0.0, completions=[Completion(job, Worker(0), Result.OK, missing)])


def test_store_cannot_miss_a_part() -> None:
    """A copy between device and slots is whole or has failed."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    with refuses(ledger, MisuseError, "a STORE cannot miss a part of its content"):
        ledger.complete(Completion(job, Worker(0), Result.OK, (0,)))


def test_device_copies_alone_are_waited_for_on_request() -> None:
    """A step never waits for a store below."""
    ledger = make_ledger()
    ready(ledger)
    _, stored = in_flight(ledger, name="other", slot=1)
    down = ledger.plan_demotion([0]).ids[0]
    ledger.dispatch(0.0)

    assert ledger.jobs.submitted().ids == (stored, down)
    assert ledger.jobs.submitted(on_device=True).ids == (stored,)


def test_transfer_of_a_job_below_has_no_blocks() -> None:
    """It is no `Transfer`; and a `TierTransfer` is none of the device."""
    ledger = make_ledger()
    job = ledger.plan_promotion([0], keys("p")).ids[0]
    with pytest.raises(MisuseError, match="a PROMOTE touches no block"):
        ledger.jobs.transfer(job.number)
    with pytest.raises(MisuseError, match="a STORE moves blocks of the device"):
        TierTransfer(JobId(1, 1), Direction.STORE, np.array([0]), b"\0", (b"k",))
    with pytest.raises(MisuseError, match="1 slots, 1 groups and 0 keys do not agree"):
        TierTransfer(JobId(1, 1), Direction.DEMOTE, np.array([0]), b"\0", ())


def test_forgetting_the_host_gives_up_both_directions() -> None:
    """What was on its way below would be found again later; what was on its way up is not wanted."""
    ledger = make_ledger()
    ready(ledger)
    down, up = ledger.plan_demotion([0]).ids[0], ledger.plan_promotion([1], keys("p")).ids[0]
    ledger.dispatch(0.0)
    ledger.reset(device=False)

    assert [ledger.jobs.state(job) for job in (down, up)] == [Job.UNWANTED] * 2
    assert [ledger.slots.state(slot) for slot in (0, 1)] == [Slot.STALE, Slot.WRITING]


def test_job_whose_row_is_used_again_leaves_no_space_behind() -> None:
    """The next job in its row is in a space of its own, or in none."""
    ledger = make_ledger(max_jobs=1)
    first = ledger.plan_promotion([1], keys("p"), space=b"now")
    ledger.cancel(first)
    ledger.plan_promotion([1], keys("p"))
    (transfer,) = ledger.dispatch(0.0).promotes

    assert transfer.space == b""
    assert check(ledger) == []


def test_reset_of_the_device_leaves_them_alone() -> None:
    """They touch no block."""
    ledger = make_ledger()
    ready(ledger)
    down, up = ledger.plan_demotion([0]).ids[0], ledger.plan_promotion([1], keys("p")).ids[0]
    ledger.reset(host=False)

    assert [ledger.jobs.state(job) for job in (down, up)] == [Job.PLANNED] * 2
    assert ledger.slots.prefix(keys("k")) == [0]
