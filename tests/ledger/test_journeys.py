"""Stories: the happy life of one block and its side doors, and scenes that need two copies on one place.

Where the contracts differ, a story is told under both.
"""

from __future__ import annotations

from typing import Any

import pytest

from blocklife.errors import CapacityError, RefusedError
from blocklife.ledger import (
    Batch,
    Contract,
    GroupTransfer,
    JobId,
    Jobs,
    Launched,
    Ledger,
    Seal,
    Store,
    Worker,
)
from blocklife.ledger.invariants import check
from blocklife.states import Block, Job, Request, Slot
from tests.worlds import (
    BOTH,
    behind_fence,
    block_of,
    in_flight,
    keys,
    make_ledger,
    ready,
    refuses,
    report,
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


def loading_alone(ledger: Ledger) -> tuple[int, JobId]:
    """`loading` in a world of one block: the content is in the slot only."""
    ready(ledger)
    ledger.drop(ledger.blocks.prefix(keys("k")))
    return loading(ledger)
