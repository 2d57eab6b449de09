"""A plain test with a ledger that watches, and one in a world where nothing has to be written by hand."""

from __future__ import annotations

from engine import Engine
from watch import Watch

from blocklife.ledger import Contract
from blocklife.testing import MakeLedger, MakeVisit


def test_block_is_not_handed_out_while_a_copy_reads_it(blocklife_ledger: MakeLedger, hasty: bool) -> None:
    """Who wants it waits until the copy has landed."""
    ledger = blocklife_ledger(num_blocks=4, num_slots=4, contract=Contract.HOLD, own_pool=False)
    watch = Watch(Engine(num_blocks=3, num_slots=4, hasty=hasty), ledger)
    watch.engine.arrive("a", "abcdefgh")
    watch.step()
    watch.step()
    watch.finish("a")
    watch.engine.arrive("b", "rstuvwxyz")
    watch.step()

    assert watch.engine.waiting == ["b"]

    for number in list(watch.engine.copies):
        watch.land(number)
    watch.step()

    assert watch.engine.waiting == []


def test_scheduler_of_blocklife_forgets_nobody(blocklife_world: MakeVisit) -> None:
    """The same with a scheduler that you could use instead: a request goes away while its copy is out, and all drains."""
    visit = blocklife_world("ab.c", "ab.d", faults={"abort": 1})
    visit.take("arrive a", "arrive b", "step", "abort a", "settle", "step").drain()

    assert not visit.requests
    assert not visit.running
