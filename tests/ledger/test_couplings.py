"""What couplings do beyond a row's own effects: a reset, a report that is not the last, and a proof in the place of a report.

That each row runs, with all its effects, is in `test_coupling_marks.py`; every way to take each is explored in small worlds.
"""

from __future__ import annotations

from collections.abc import Callable

from blocklife.ledger import (
    Contract,
    JobId,
    Ledger,
    LedgerTransition,
)
from blocklife.ledger.invariants import check
from blocklife.states import Block, Slot
from tests.worlds import BOTH, block_of, in_flight, keys, make_ledger, ready, report, sealed, store


class Story:
    """The steps that one verb commits, as ``machine.event`` in order."""

    def __init__(self, ledger: Ledger) -> None:
        self.records: list[LedgerTransition] = []
        ledger.on(hook=self.records.append)

    def __call__(self, verb: Callable[[], object]) -> list[str]:
        """Call and tell."""
        self.records.clear()
        verb()
        return [f"{record.machine}.{record.event}" for record in self.records]


def planned(ledger: Ledger, request: str = "a", name: str = "k", slot: int = 0) -> tuple[int, JobId]:
    """A sealed block of *request* with a planned store."""
    source = sealed(ledger, request, keys(name))
    return block_of(source), store(ledger, source, keys(name), slot).ids[0]


# --- ends of stores -----------------------------------------------------------------------------------------------------


def test_store_ended_not_before_the_last_worker() -> None:
    """Half of the reports move the job alone."""
    ledger = make_ledger(workers=2)
    source, job = in_flight(ledger)
    story = Story(ledger)(lambda: ledger.complete(report(job)))

    assert story == ["job.finish"]
    assert ledger.blocks.state(block_of(source)) is Block.IN_FLIGHT
    assert ledger.slots.state(0) is Slot.WRITING


# --- reset --------------------------------------------------------------------------------------------------------------


@BOTH
def test_reset_now_reaches_every_machine(contract: Contract) -> None:
    """Requests first, then planned jobs, submitted ones, blocks and slots."""
    ledger = make_ledger(num_blocks=8, num_slots=6, contract=contract)
    ready(ledger, "ready", 3)
    planned(ledger, name="planned", slot=1)
    dispatched = sealed(ledger, "a", keys("busy"))
    job = store(ledger, dispatched, keys("busy"), 2)
    ledger.submit(job)
    story = Story(ledger)(ledger.reset)

    assert story == [
        *("block.release", "request.preempt", "job.cancel", "block.cancel", "slot.cancel"),
        *("job.abandon", "block.drop", "block.drop", "slot.drop"),
    ]
    assert check(ledger) == []


# --- between the slots and the store below --------------------------------------------------------------------------------


def test_promotion_planned_reserves_its_slots() -> None:
    """Its content is on its way, and nobody can read it."""
    ledger = make_ledger()
    story = Story(ledger)(lambda: ledger.plan_promotion([1, 2], keys("p", "q")))

    assert story == ["slot.reserve"]
    assert [ledger.slots.state(slot) for slot in (1, 2)] == [Slot.WRITING] * 2
    assert ledger.slots.find(0, b"p") == 1
    assert ledger.slots.prefix(keys("p")) == []
