"""Stories: the happy life of one block and its side doors, scenes that need two copies on one place, and the acceptance cases.

A test named ``test_a…`` is an acceptance case that the ledger alone can show; its number is that of the public collection of
bugs in serving engines it comes from. Where the contracts differ, a story is told under both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blocklife.errors import CapacityError, MisuseError, RefusedError
from blocklife.ledger import (
    Batch,
    Completion,
    Contract,
    GroupTransfer,
    JobId,
    Jobs,
    Launched,
    Ledger,
    Result,
    Seal,
    Store,
    Transfer,
    Worker,
)
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger.invariants import check
from blocklife.ledger.jobs import Allocated
from blocklife.ledger.records import Direction
from blocklife.states import Block, Job, Request, Slot
from tests.worlds import (
    BOTH,
    behind_fence,
    block_of,
    hand_out_all,
    held,
    in_flight,
    keys,
    make_ledger,
    ready,
    refuses,
    report,
    sealed,
    store,
)


def anyhow(*jobs: JobId) -> Jobs[Any]:
    """A handle whatever the state."""
    return Jobs(jobs)


def loading(ledger: Ledger, request: str = "w") -> tuple[int, JobId]:
    """*request* loads content *k* from slot 0 into a block of its own, on every worker."""
    if not ledger.slots.prefix(keys("k")):
        ready(ledger)
    if request not in ledger.requests:
        ledger.add_request(request)
    target = ledger.allocate(request, 1)
    job = ledger.plan_load(request, GroupTransfer(target, [0])).ids[0]
    plan = ledger.dispatch(0.0)
    launched = [Launched(job, Worker(worker)) for worker in range(ledger.limits.num_workers)]
    ledger.settle(plan.number, 0.0, launched=launched)
    return block_of(target), job


def taken(ledger: Ledger) -> set[str]:
    """The rows that the blocks of a ledger took."""
    return {str(row) for row, count in ledger.blocks.row_counts() if count}


# --- one block ----------------------------------------------------------------------------------------------------------


@BOTH
def test_block_lives_happily(contract: Contract) -> None:
    """Computed, stored, given back, evicted, loaded for somebody else, shared, given back again."""
    ledger = make_ledger(num_blocks=2, contract=contract)
    seen = []

    def look() -> None:
        seen.append((ledger.blocks.state(1).name, ledger.slots.state(0).name))

    batch = ledger.allocate("a", 1)
    look()
    final = ledger.seal(batch, keys("k"))
    job = store(ledger, final, keys("k")).ids[0]
    look()
    plan = ledger.dispatch(0.0)
    look()
    ledger.settle(plan.number, 0.0, completions=[report(job)])
    look()
    ledger.finish("a")
    look()
    ledger.add_request("b")
    target = ledger.allocate("b", 1)
    load = ledger.plan_load("b", GroupTransfer(target, ledger.slots.prefix(keys("k")))).ids[0]
    look()
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=[report(load)])
    ledger.add_request("c")
    ledger.acquire("c", ledger.blocks.prefix(keys("k")))
    ledger.finish("b")
    look()
    ledger.finish("c")
    look()

    assert seen == [
        ("ALLOCATED", "EMPTY"),
        ("PENDING_STORE", "WRITING"),
        ("IN_FLIGHT", "WRITING"),
        ("SEALED", "READY"),
        ("CACHED", "READY"),
        ("LOADING", "READY"),
        ("SEALED", "READY"),
        ("CACHED", "READY"),
    ]
    assert check(ledger) == []


def test_preemption_in_the_middle_of_a_copy_under_hold() -> None:
    """The block waits for its copy, is counted as freeing soon, and comes back as cached content."""
    ledger = make_ledger(num_blocks=2, contract=Contract.HOLD)
    _, job = in_flight(ledger)
    ledger.preempt("a")
    with refuses(ledger, CapacityError, "1 is freeing soon, which the contract hold does not hand out"):
        ledger.allocate("a", 1)
    ledger.complete(report(job))

    assert ledger.blocks.state(1) is Block.CACHED
    assert len(ledger.allocate("a", 1)) == 1


def test_preemption_in_the_middle_of_a_copy_under_fence() -> None:
    """The block goes on at once; the old life is over, its copy still publishes, the new tenant seals after the wait."""
    ledger = make_ledger(num_blocks=2)
    _, job = in_flight(ledger)
    ledger.preempt("a")
    batch = ledger.allocate("a", 1)
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=[report(job)], seals=[Seal(0, batch.lives, keys("new"))])

    assert plan.flushes == (job,)
    assert ledger.slots.prefix(keys("k")) == [0]
    assert ledger.blocks.prefix(keys("new")) == list(batch.lives)
    assert ledger.blocks.prefix(keys("k")) == []


@BOTH
def test_hit_while_a_store_is_running(contract: Contract) -> None:
    """The content is final: a second request shares it, nothing is stored twice, and the end of the store disturbs nobody."""
    ledger = make_ledger(contract=contract, requests=("a", "b"))
    source, job = in_flight(ledger)
    shared = ledger.acquire("b", ledger.blocks.prefix(keys("k")))
    for names in (keys("k"), keys("other")):
        with refuses(ledger, RefusedError, "cannot PLAN_STORE while IN_FLIGHT"):
            store(ledger, shared, names, 1)
    ledger.finish("a")
    ledger.complete(report(job))

    assert ledger.blocks.state(block_of(source)) is Block.SEALED
    assert ledger.slots.state(1) is Slot.EMPTY


def test_lost_report_never_exempts_the_next_life() -> None:
    """The store of the old life hangs; the next life of the very same block is stored under its own key."""
    ledger = make_ledger(num_blocks=2)
    target, old = behind_fence(ledger)
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, seals=[Seal(0, target.lives, keys("next"))])
    job = ledger.plan_store(Store.of(Batch(target.lives), [2], keys("next"))).ids[0]
    plan = ledger.dispatch(0.0)

    assert ledger.jobs.state(old) is Job.FAILED
    assert [transfer.job for transfer in plan.stores] == [job]


# --- two copies on one place --------------------------------------------------------------------------------------------


def abandoned_behind_fence() -> tuple[Ledger, int, JobId, JobId]:
    """A block with an old store that was not proven quiet and an abandoned load; both are with the workers."""
    ledger = make_ledger(num_blocks=2, deadline=8.0)
    target, old = behind_fence(ledger)
    load = ledger.plan_load("b", GroupTransfer(target, [0])).ids[0]
    ledger.dispatch(0.0)
    ledger.preempt("b")
    return ledger, block_of(target), old, load


def test_load_that_is_given_up_behind_an_overdue_copy_leaves_its_target_in_quarantine() -> None:
    """The old copy is past its deadline when the planned load is given up: the block was STALE then, and under fence went on.

    Whoever got it would have been written over, or read, by a copy of which nobody knows whether the device is done with it.
    """
    ledger = make_ledger(num_blocks=2, deadline=8.0)
    target, old = behind_fence(ledger)
    ledger.dispatch(0.0)  # waits for the old copy, and arms its deadline
    ledger.plan_load("b", GroupTransfer(target, [0]))
    ledger.expire(8.0)
    ledger.finish("b")

    assert ledger.jobs.state(old) is Job.QUARANTINED
    assert ledger.blocks.state(1) is Block.QUARANTINED
    assert check(ledger) == []
    ledger.add_request("c")
    with pytest.raises(CapacityError, match="1 is quarantined"):
        ledger.allocate("c", 1)
    ledger.complete(report(old))
    assert ledger.blocks.state(1) is Block.FREED


def test_load_behind_a_fence_that_is_given_up_before_it_was_submitted() -> None:
    """Nobody has written the place, but the old copy still reads it."""
    ledger = make_ledger(num_blocks=2)
    target, old = behind_fence(ledger)
    load = ledger.plan_load("b", GroupTransfer(target, [0])).ids[0]
    ledger.preempt("b")

    assert ledger.jobs.state(load) is Job.CANCELLED
    assert ledger.blocks.state(1) is Block.STALE
    assert "LOADING --land [own_pinned]--> STALE" in taken(ledger)
    ledger.complete(report(old))
    assert ledger.blocks.state(1) is Block.FREED


@pytest.mark.parametrize("first", ["store", "load"])
def test_place_with_two_copies_waits_for_both(first: str) -> None:
    """Whichever lands first, the place is stale until the other has."""
    ledger, block, old, load = abandoned_behind_fence()
    one, other = (old, load) if first == "store" else (load, old)
    ledger.complete(report(one))
    between = ledger.blocks.state(block), check(ledger)
    ledger.complete(report(other))

    assert between == (Block.STALE, [])
    assert "STALE --land [pinned]--> STALE" in taken(ledger)
    assert ledger.blocks.state(block) is Block.FREED


def test_place_with_two_copies_is_not_handed_out_while_one_of_them_writes() -> None:
    """A fence is for readers: the target of a load is held under both contracts."""
    ledger, _, old, load = abandoned_behind_fence()
    with refuses(ledger, CapacityError, "1 block wanted, 0 are free, 1 is freeing soon"):
        ledger.allocate("b", 1)
    ledger.complete(report(load))
    ledger.allocate("b", 1)

    assert ledger.blocks.state(1) is Block.FLUSHED
    assert ledger.dispatch(0.0).flushes == (old,)


def test_old_copy_expires_behind_a_load() -> None:
    """The load goes on, and its pin is overdue when its request lets go."""
    ledger = make_ledger(num_blocks=2, deadline=8.0)
    target, old = behind_fence(ledger)
    load = ledger.plan_load("b", GroupTransfer(target, [0])).ids[0]
    plan = ledger.dispatch(0.0)
    expired = ledger.expire(8.0)
    between = ledger.blocks.state(1), ledger.requests.state("b")
    ledger.preempt("b")
    after = ledger.blocks.state(1)
    ledger.settle(plan.number, 8.0)
    later = ledger.blocks.state(1)
    ledger.complete(report(load))

    assert expired.ids == (old,)
    assert (between, after, later) == ((Block.LOADING, Request.LOADING), Block.QUARANTINED, Block.STALE)
    assert ledger.blocks.state(1) is Block.FREED
    assert {
        "LOADING --expire--> LOADING",
        "LOADING --release [is_overdue]--> QUARANTINED",
        "QUARANTINED --land [pinned]--> STALE",
    } <= taken(ledger)


def test_old_copy_expires_behind_a_new_tenant() -> None:
    """It stays behind the fence, and its place is out of reach once it lets go."""
    ledger = make_ledger(num_blocks=2, deadline=8.0)
    behind_fence(ledger)
    plan = ledger.dispatch(0.0)
    ledger.expire(8.0)
    between = ledger.blocks.state(1)
    ledger.release("b", [0])
    with refuses(ledger, CapacityError, "0 are freeing soon, 1 is quarantined"):
        ledger.allocate("b", 1)
    ledger.settle(plan.number, 8.0)

    assert between is Block.FLUSHED
    assert "FLUSHED --release [is_overdue]--> QUARANTINED" in taken(ledger)
    assert ledger.blocks.state(1) is Block.FREED


def test_place_with_two_expired_copies_needs_both_proofs() -> None:
    """One late report is not enough."""
    ledger, block, old, load = abandoned_behind_fence()
    ledger.launched(Launched(load, Worker(0)), 1.0)
    first = ledger.expire(8.0)
    second = ledger.expire(9.0)
    ledger.complete(report(load))
    between = ledger.blocks.state(block)
    ledger.quiesce(anyhow(old))

    assert (first.ids, second.ids) == ((old,), (load,))
    assert between is Block.QUARANTINED
    assert ledger.blocks.state(block) is Block.FREED
    assert {"QUARANTINED --expire--> QUARANTINED", "QUARANTINED --land [is_overdue]--> QUARANTINED"} <= taken(ledger)


# --- acceptance cases ---------------------------------------------------------------------------------------------------


@BOTH
def test_a01_block_is_not_handed_out_before_its_ack(contract: Contract) -> None:
    """Its owner finishes and others take all there is: hold keeps it back, fence gives it only with the wait in the plan."""
    ledger = make_ledger(num_blocks=4, contract=contract)
    source, job = in_flight(ledger)
    ledger.finish("a")
    ledger.add_request("b")
    given = hand_out_all(ledger, "b")
    plan = ledger.dispatch(0.0)

    assert len(given) == (2 if contract is Contract.HOLD else 3)
    assert (block_of(source) in given) == (contract is Contract.FENCE)
    assert plan.flushes == ((job,) if contract is Contract.FENCE else ())


def test_a02_preempted_block_is_writable_only_after_exactly_its_flush() -> None:
    """Of two running stores, the plan waits for the one whose block was handed out, and nothing is sealed before."""
    ledger = make_ledger(num_blocks=3, requests=("a", "b"))
    _, job = in_flight(ledger, "a", "k0", 0)
    in_flight(ledger, "b", "k1", 1)
    ledger.preempt("a")
    batch = ledger.allocate("b", 1)
    with refuses(ledger, RefusedError, "cannot SEAL while FLUSHED"):
        ledger.seal(batch, keys("new"))
    with refuses(ledger, RefusedError, "cannot PLAN_STORE while FLUSHED"):
        ledger.plan_store(Store.of(batch, [2], keys("new")))

    assert ledger.dispatch(0.0).flushes == (job,)


@BOTH
def test_a03_target_of_a_load_is_free_only_after_the_ack(contract: Contract) -> None:
    """The abort is reported at once; the target is out of reach under both contracts until the copy has landed."""
    ledger = make_ledger(num_blocks=2, contract=contract)
    block, job = loading_alone(ledger)
    ledger.finish("w")
    with refuses(ledger, CapacityError, "0 are free, 1 is freeing soon"):
        ledger.allocate("a", 1)
    known = "w" in ledger.requests
    ledger.complete(report(job))

    assert not known
    assert ledger.blocks.state(block) is Block.FREED


def loading_alone(ledger: Ledger) -> tuple[int, JobId]:
    """`loading` in a world of one block: the content is in the slot only."""
    ready(ledger)
    ledger.drop(ledger.blocks.prefix(keys("k")))
    return loading(ledger)


@BOTH
def test_a04_ack_never_comes_and_only_a_proof_frees_the_target(contract: Contract) -> None:
    """After the deadline the job has failed and its target stays in quarantine; quiesce frees it."""
    ledger = make_ledger(num_blocks=2, contract=contract, deadline=8.0)
    block, job = loading_alone(ledger)
    ledger.finish("w")
    ledger.expire(8.0)
    with refuses(ledger, CapacityError, "0 are freeing soon.*, 1 is quarantined"):
        ledger.allocate("a", 1)
    between = ledger.jobs.state(job), ledger.blocks.state(block)
    ledger.quiesce(anyhow(job))

    assert between == (Job.QUARANTINED, Block.QUARANTINED)
    assert ledger.blocks.state(block) is Block.FREED


@BOTH
def test_a05_block_of_the_next_step_is_held_until_that_step_settles(contract: Contract) -> None:
    """Step 2 is out when its owner finishes on the output of step 1: a store of that step still protects the block."""
    ledger = make_ledger(num_blocks=2, contract=contract)
    first = ledger.dispatch(0.0)
    source = sealed(ledger, "a", keys("k"))
    job = store(ledger, source, keys("k")).ids[0]
    second = ledger.dispatch(0.0)
    ledger.settle(first.number, 0.0)
    ledger.finish("a")
    between = ledger.blocks.free
    ledger.settle(second.number, 0.0, completions=[report(job)])

    assert between == 0
    assert ledger.blocks.free == 1


@BOTH
def test_a13_reset_leaves_requests_schedulable_and_memory_held(contract: Contract) -> None:
    """Old acks change no verdict and release the memory."""
    ledger = make_ledger(contract=contract)
    ready(ledger)
    block, load = loading(ledger)
    ledger.reset()
    between = ledger.blocks.state(block), ledger.requests.state("w"), ledger.jobs.state(load)
    ledger.admit("w")
    ledger.complete(report(load))

    assert between == (Block.STALE, Request.PREEMPTED, Job.UNWANTED)
    assert ledger.requests.state("w") is Request.RUNNING
    assert ledger.jobs.state(load) is Job.CANCELLED
    assert ledger.blocks.state(block) is Block.FREED


def test_a14_completion_for_a_freed_owner_is_no_accident() -> None:
    """Unknown jobs are counted, and a job whose owner is gone ends as any other."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger.finish("a")
    ledger.complete(report(JobId(7, 1)))
    ledger.complete(report(job))
    ledger.complete(report(job))

    assert ledger.jobs.state(job) is Job.DONE
    assert (ledger.statistics().unknown, ledger.statistics().duplicate) == (1, 1)


def test_a16_second_ack_of_a_worker_is_ignored() -> None:
    """The other worker is still awaited."""
    ledger = make_ledger(workers=2)
    _, job = in_flight(ledger)
    ledger.complete(report(job, worker=0))
    ledger.complete(report(job, worker=0))

    assert ledger.jobs.state(job) is Job.IN_FLIGHT
    assert ledger.slots.state(0) is Slot.WRITING


@pytest.mark.parametrize("result", list(Result))
def test_a17_late_end_of_the_first_put_leaves_the_second_alone(result: Result) -> None:
    """Put 1 times out, put 2 of the same key is running or done: the late end releases the places of put 1 and no more."""
    ledger = make_ledger(deadline=8.0)
    _, first = in_flight(ledger)
    ledger.launched(Launched(first, Worker(0)), 0.0)
    ledger.expire(8.0)
    source = sealed(ledger, "a", keys("k"))
    second = store(ledger, source, keys("k"), 1).ids[0]
    ledger.dispatch(8.0)
    ledger.complete(report(first, result))
    between = ledger.jobs.state(second), ledger.slots.state(1), ledger.slots.prefix(keys("k"))
    ledger.complete(report(second))

    assert between == (Job.IN_FLIGHT, Slot.WRITING, [])
    assert ledger.jobs.state(first) is Job.FAILED
    assert ledger.slots.state(0) is Slot.EMPTY
    assert ledger.slots.prefix(keys("k")) == [1]


def test_a18_block_freed_twice_in_one_list_is_named_and_nothing_freed() -> None:
    """All or nothing, with the block in the message; also when it comes in a second call."""
    ledger = make_ledger(own_pool=False)
    batch = held(ledger, "a", 2)
    first, second = (int(life) & ID_MASK for life in batch.lives)
    with refuses(ledger, MisuseError, f"block {first}: it is named twice"):
        ledger.observe_free("a", [second, first, first])
    ledger.observe_free("a", [first])
    with refuses(ledger, MisuseError, f"block {first}: request a does not hold it"):
        ledger.observe_free("a", [second, first])


def test_a20_lock_is_released_only_by_its_holder() -> None:
    """Holder A asks for what only B has: an error, and B keeps it."""
    ledger = make_ledger()
    ready(ledger)
    ledger.pin("b", [0])
    with refuses(ledger, MisuseError, "slot 0: a does not hold it"):
        ledger.unpin("a", [0])
    with refuses(ledger, RefusedError, "cannot EVICT"):
        ledger.evict([0])


def test_a21_chunk_with_readers_is_not_evictable_until_the_last_lets_go() -> None:
    """Three readers, three releases."""
    ledger = make_ledger()
    ready(ledger)
    for reader in "xyz":
        ledger.pin(reader, [0])
    for reader in "xyz":
        with refuses(ledger, RefusedError, "cannot EVICT"):
            ledger.evict([0])
        ledger.unpin(reader, [0])
    ledger.evict([0])

    assert ledger.slots.prefix(keys("k")) == []


def test_a23_plan_cancelled_before_launch_leaves_everything_as_before() -> None:
    """Locks, reservations and unready keys are gone; only the job's number is used up."""
    ledger = make_ledger()
    source = sealed(ledger, "a", keys("k"))
    before = ledger.snapshot()
    jobs = store(ledger, source, keys("k"))
    during = ledger.snapshot()
    ledger.cancel(jobs)
    after = ledger.snapshot()

    assert during != before
    changed = {name for name, old, new in zip(before._fields, before, after, strict=True) if old != new}
    assert changed == {"jobs", "last_number", "spare_jobs"}
    assert ledger.jobs.state(jobs.ids[0]) is Job.CANCELLED


def test_a25_owner_removed_while_the_worker_has_queued_ops() -> None:
    """Its planned load ends cancelled at once, its submitted one with its landing, and all blocks return."""
    ledger = make_ledger(requests=("a",))
    ready(ledger)
    _, submitted = loading(ledger, "w")
    ledger.add_request("v")
    queued = ledger.plan_load("v", GroupTransfer(ledger.allocate("v", 1), [0])).ids[0]
    ledger.finish("v")
    ledger.finish("w")
    ledger.quiesce(anyhow(submitted))

    assert [ledger.jobs.state(job) for job in (queued, submitted)] == [Job.CANCELLED, Job.CANCELLED]
    assert ledger.blocks.free == 5


def test_a27_key_of_a_dead_writer_is_writable_after_the_deadline() -> None:
    """The old memory stays in quarantine; the key is no longer found to be on its way, and another block brings it."""
    ledger = make_ledger(deadline=8.0)
    _, job = in_flight(ledger)
    ledger.launched(Launched(job, Worker(0)), 0.0)
    source = sealed(ledger, "a", keys("k"))
    assert list(ledger.slots.named()) == [(0, b"k", 0)]
    ledger.expire(8.0)
    assert list(ledger.slots.named()) == []
    store(ledger, source, keys("k"), 1)
    assert list(ledger.slots.named()) == [(0, b"k", 1)]

    assert ledger.slots.state(0) is Slot.QUARANTINED
    with refuses(ledger, RefusedError, "slot 0: cannot EVICT while QUARANTINED"):
        ledger.evict([0])


def test_a28_second_ack_after_the_deadline_changes_no_verdict() -> None:
    """One of two workers acks in time; the other late: the job has failed, and its places come back."""
    ledger = make_ledger(workers=2, deadline=8.0)
    source, job = in_flight(ledger)
    ledger.launched(Launched(job, Worker(0)), 0.0)
    ledger.complete(report(job, worker=0))
    ledger.expire(8.0)
    between = ledger.jobs.state(job), ledger.blocks.pins(block_of(source))
    ledger.complete(report(job, worker=1))

    assert between == (Job.QUARANTINED, 1)
    assert ledger.jobs.state(job) is Job.FAILED
    assert ledger.slots.prefix(keys("k")) == []
    assert (ledger.blocks.state(block_of(source)), ledger.slots.state(0)) == (Block.SEALED, Slot.EMPTY)


def test_a30_failed_copy_is_never_readable() -> None:
    """A failed store publishes nothing; a failed load makes its request recompute."""
    ledger = make_ledger()
    _, job = in_flight(ledger, "a", "other", 1)
    ledger.complete(report(job, Result.FAILED))
    block, load = loading(ledger)
    ledger.complete(report(load, Result.FAILED))

    assert ledger.slots.prefix(keys("other")) == []
    assert ledger.requests.state("w") is Request.WAITING
    assert ledger.blocks.state(block) is Block.FREED


def test_a32_failed_load_is_remembered() -> None:
    """The next lookup does not find what has just failed, so that it cannot fail for ever."""
    ledger = make_ledger()
    _, job = loading(ledger)
    ledger.complete(report(job, Result.FAILED))

    assert ledger.slots.prefix(keys("k")) == []
    assert ledger.slots.state(0) is Slot.EMPTY


@BOTH
def test_a36_abort_of_a_request_that_never_ran(contract: Contract) -> None:
    """No job, no assert, with blocks or without."""
    ledger = make_ledger(contract=contract, requests=())
    ledger.add_request("x")
    ledger.add_request("y")
    ledger.allocate("y", 2)
    ledger.finish("x")
    ledger.finish("y")

    assert ledger.jobs.last_number == 0
    assert ledger.blocks.free == 5


@BOTH
def test_a39_readmission_with_a_hit_while_the_old_store_runs(contract: Contract) -> None:
    """The content is still on the device: the hit revives the very life that is being stored; no load, no assert."""
    ledger = make_ledger(contract=contract)
    source, job = in_flight(ledger)
    ledger.preempt("a")
    hit = ledger.blocks.prefix(keys("k"))
    ledger.acquire("a", hit)
    ledger.admit("a")
    not_yet = ledger.slots.prefix(keys("k"))
    ledger.complete(report(job))

    assert hit == list(source.lives)
    assert not_yet == []
    assert ledger.blocks.state(block_of(source)) is Block.SEALED


def test_a40_reset_says_not_yet_and_succeeds_after_the_drain() -> None:
    """It counts what is out, load and store alike."""
    ledger = make_ledger()
    ready(ledger)
    _, load = loading(ledger)
    _, job = in_flight(ledger, "a", "other", 1)
    for left in (load, job):
        with refuses(ledger, CapacityError, "2 jobs are still out" if left is load else "1 job is still out"):
            ledger.reset(drain=True)
        ledger.complete(report(left))
    ledger.reset(drain=True)

    assert ledger.blocks.free == 5
    assert not ledger.has_pending_work()


def test_a45_many_who_want_one_chunk_in_flight_share_one_copy() -> None:
    """Those who hit the block share its life and its one store; those who come later find it in the slot together."""
    ledger = make_ledger(requests=("a", "b", "c"))
    _, job = in_flight(ledger)
    for waiter in ("b", "c"):
        ledger.acquire(waiter, ledger.blocks.prefix(keys("k")))
    jobs = ledger.jobs.live
    ledger.complete(report(job))
    for waiter in ("b", "c"):
        ledger.pin(waiter, ledger.slots.prefix(keys("k")))

    assert jobs == 1
    assert (ledger.blocks.refs(1), ledger.slots.pins(0)) == (3, 2)


def test_a52_job_with_nothing_to_copy_cannot_be_made() -> None:
    """Neither as a plan nor as a transfer; so it can never be completed either."""
    ledger = make_ledger()
    ledger.add_request("w")
    with refuses(ledger, MisuseError, "nothing to copy"):
        ledger.plan_store(Store.of(Batch[Allocated]([]), [], []))
    with refuses(ledger, MisuseError, "nothing to copy"):
        ledger.plan_load("w", GroupTransfer(Batch([]), []))
    with pytest.raises(MisuseError, match="nothing to copy"):
        Transfer(JobId(1, 1), Direction.STORE, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), (0,))


def test_a55_counted_hit_survives_until_it_is_used_or_let_go() -> None:
    """A lookup pins what it counted; eviction passes it by; the load takes over, and the pin may go."""
    ledger = make_ledger()
    ready(ledger)
    hit = ledger.slots.prefix(keys("k"))
    ledger.pin("lookup of w", hit)
    with refuses(ledger, RefusedError, "cannot EVICT"):
        ledger.evict(hit)
    ledger.add_request("w")
    load = ledger.plan_load("w", GroupTransfer(ledger.allocate("w", 1), hit)).ids[0]
    ledger.unpin("lookup of w", hit)
    with refuses(ledger, RefusedError, "cannot EVICT"):
        ledger.evict(hit)
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=[Completion(load, Worker(0), Result.OK)])
    ledger.evict(hit)

    assert ledger.requests.state("w") is Request.RUNNING
