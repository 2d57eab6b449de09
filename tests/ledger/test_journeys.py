"""Stories: the happy life of one block and its side doors, and scenes that need two copies on one place.

Where the contracts differ, a story is told under both.
"""

from __future__ import annotations

import pytest

from blocklife.errors import CapacityError
from blocklife.ledger import (
    GroupTransfer,
    Seal,
)
from blocklife.ledger.invariants import check
from blocklife.states import Block, Job
from tests.worlds import (
    behind_fence,
    in_flight,
    keys,
    make_ledger,
    report,
)

# --- one block ----------------------------------------------------------------------------------------------------------


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


# --- two copies on one place --------------------------------------------------------------------------------------------


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
