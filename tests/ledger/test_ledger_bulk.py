"""What a verb that takes many refuses and gives: all or none, in the order of the call, each for its own."""

from __future__ import annotations

import enum
from typing import Any

import attrs
import pytest

from blocklife.core._tables import Rule
from blocklife.errors import CapacityError, DefinitionError, MisuseError, RefusedError
from blocklife.ledger import (
    Batch,
    Contract,
    Direction,
    Jobs,
    Ledger,
    LedgerTransition,
    Limits,
    Placement,
    Result,
)
from blocklife.ledger._ids import ID_MASK
from blocklife.ledger.invariants import check
from blocklife.ledger.jobs import GroupTransfer, Store
from blocklife.states import MACHINES, Job
from tests.ledger.test_ledger_groups import owners, planned
from tests.worlds import in_flight, keys, make_ledger, ready, refuses, report, sealed

# --- what many refuse ---------------------------------------------------------------------------------------------------


def source(ledger: Ledger, name: str, request: str = "a") -> GroupTransfer[Any]:
    """One sealed block that is to go into the slot of its number, under its name."""
    return GroupTransfer(sealed(ledger, request, keys(name)), [int(name)], keys(name))


def test_several_stores_are_planned_all_or_none() -> None:
    """A good store that stands before or behind a bad one is not planned."""
    ledger = make_ledger(num_blocks=16, num_slots=6, max_jobs=3)
    ready(ledger, "r", 0)
    good, other, third, fourth = (source(ledger, name) for name in "1234")
    stale = Batch[Any]([int(ledger.blocks.life(1)) + (1 << 32)])
    cases: list[tuple[GroupTransfer[Any], type[Exception], str]] = [
        (GroupTransfer(other.blocks, [1], other.keys), MisuseError, "slot 1: it is named twice in one call"),
        (GroupTransfer(other.blocks, [0], other.keys), RefusedError, "slot 0: cannot RESERVE while READY"),
        (GroupTransfer(other.blocks, [2], keys("r")), MisuseError, "key 72: it is stored already"),
        (GroupTransfer(other.blocks, [2], keys("x")), MisuseError, "block 3: it holds 32, which cannot be stored as 78"),
        (GroupTransfer(good.blocks, [2], good.keys), MisuseError, "plan_store: a block is named twice in one call"),
        (GroupTransfer(stale, [2], keys("x")), MisuseError, "block 1: cannot plan_store its life 2, which is over"),
        (GroupTransfer(other.blocks, [2, 3], other.keys), MisuseError, "2 slots and 1 keys do not agree"),
        (GroupTransfer(Batch([]), [], []), MisuseError, "a job with nothing to copy cannot be built"),
    ]
    for bad, error, match in cases:
        for stores in ([good, bad], [bad, good]):
            with refuses(ledger, error, match):
                ledger.plan_store(*[Store("a", [transfer]) for transfer in stores])
    with refuses(ledger, CapacityError, r"4 jobs wanted, 3 of 3 can be made; let some land first \(max_jobs\)"):
        ledger.plan_store(*[Store("a", [transfer]) for transfer in (good, other, third, fourth)])
    ledger.plan_store(*[Store("a", [transfer]) for transfer in (good, other, third)])
    with refuses(ledger, CapacityError, r"all 3 jobs are out; let one land first \(max_jobs\)"):
        ledger.plan_store(Store("a", [fourth]))

    assert check(ledger) == []


# --- what many give -----------------------------------------------------------------------------------------------------


def test_reports_of_one_call_count_each_for_its_own() -> None:
    """The second report of one worker within a run of good stores finds its job over; the others are not disturbed."""
    ledger = make_ledger(num_blocks=8)
    ids = [in_flight(ledger, "a", name, slot)[1] for slot, name in enumerate("pqr")]
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=[*map(report, ids[:2]), report(ids[0], Result.FAILED), report(ids[2])])

    assert [ledger.jobs.state(job) for job in ids] == [Job.DONE] * 3
    assert ledger.counts.tally == {"duplicate": 1}
    assert ledger.counts.moved == {"STORE": 3}
    assert ledger.counts.ended == {"DONE": 3}
    assert {each: ledger.counts.ended_in(each) for each in Direction if ledger.counts.ended_in(each)} == {
        Direction.STORE: {"DONE": 3}
    }
    assert check(ledger) == []


def test_jobs_of_one_call_take_their_steps_one_after_the_other() -> None:
    """Each record is of one job and names it, for listeners and in the journal."""
    ledger = make_ledger(num_blocks=8)
    transfers = [source(ledger, name) for name in "012"]
    heard: list[LedgerTransition] = []
    ledger.on(hook=heard.append)
    planned = ledger.plan_store(*[Store("a", [transfer]) for transfer in transfers])
    ledger.submit(planned)
    ledger.settle(ledger.dispatch(0.0).number, 0.0, completions=map(report, planned.ids))
    steps = [
        *(("block", "plan_store"), ("slot", "reserve")),
        *(("job", "submit"), ("block", "submit")),
        *(("job", "finish"), ("block", "land"), ("slot", "land")),
    ]

    assert [(each.machine, each.event, each.job) for each in heard] == [
        (machine, event, job) for part in (steps[:2], steps[2:4], steps[4:]) for job in (1, 2, 3) for machine, event in part
    ]
    assert all(len(each) == 1 and list(each.job_of_each()) == [each.job] for each in heard)
    assert [(each.machine, each.event, each.job) for each in ledger.journal][-7:] == [
        (each.machine, each.event, each.job) for each in heard
    ][-7:]
    assert ledger.journal.history("slot", 1) == [
        "plan 0: EMPTY --reserve--> WRITING (job 2)",
        "plan 1: WRITING --land [published]--> READY (job 2)",
    ]


def test_waits_are_counted_by_their_cause() -> None:
    """A wait counts once, for whoever ordered it first; a new plan counts anew."""
    ledger = make_ledger(num_blocks=4)
    ids = [in_flight(ledger, "a", name, slot)[1] for slot, name in enumerate("pq")]
    ledger.flush(Jobs(tuple(ids)), "last step")
    ledger.flush(Jobs((ids[0],)), "again")
    first = dict(ledger.counts.flushes)
    ledger.dispatch(0.0)
    ledger.flush(Jobs((ids[0],)))

    assert first == {"last step": 2}
    assert ledger.counts.flushes == {"last step": 2, "asked": 1}


def test_jobs_are_filed_under_their_owner() -> None:
    """As long as they are out, and through a snapshot; a store of nobody is nobody's."""
    ledger = make_ledger(num_blocks=8, requests=("a", "b"))
    first = ledger.plan_store(Store("a", [source(ledger, "0")]), Store(None, [source(ledger, "1")]))
    second = ledger.plan_store(Store("a", [source(ledger, "2")]), Store("b", [source(ledger, "3", "b")]))
    ledger.submit(first)
    saved = ledger.snapshot()
    filed = [owners(ledger)]
    waiting = [planned(ledger)]
    ledger.cancel(second)
    filed.append(owners(ledger))
    ledger.complete(report(first.ids[0]))
    filed.append(owners(ledger))
    ledger.plan_store(Store("b", [source(ledger, "2")]))
    ledger.restore(saved)
    filed.append(owners(ledger))
    waiting.append(planned(ledger))

    assert filed == [{"a": [1, 3], "b": [4]}, {"a": [1]}, {}, {"a": [1, 3], "b": [4]}]
    assert waiting == [[3, 4], [3, 4]]
    assert ledger.jobs.of("a").ids == first.ids[:1]
    assert ledger.jobs.of("b").ids == ledger.jobs.of("z").ids == ()
    assert ledger.jobs.submitted().ids == first.ids
    assert check(ledger) == []


def test_store_of_several_requests_is_each_of_theirs() -> None:
    """Whoever has content in it is told of it, counts it among what is out, and keeps doing so through a snapshot."""
    ledger = make_ledger(num_blocks=8, requests=("a", "b", "c"))
    (job,) = ledger.plan_store(Store("a", [source(ledger, "0")], ("b",))).ids
    ledger.submit(Jobs((job,)))
    saved = ledger.snapshot()
    out = owners(ledger)
    problems = check(ledger)
    ledger.complete(report(job))
    over = owners(ledger)
    ledger.restore(saved)

    assert (out, over, problems) == ({"a": [1], "b": [1]}, {}, [])
    assert ledger.jobs.of("a").ids == ledger.jobs.of("b").ids == (job,)
    assert ledger.jobs.of("c").ids == ()
    assert owners(ledger) == out
    assert check(ledger) == []


@pytest.mark.parametrize("count", [5, 60])
def test_free_blocks_keep_their_order_for_ever(count: int) -> None:
    """Few and many at a time: what has content goes to the end, and nothing is lost or doubled however long that goes on."""
    ledger = make_ledger(num_blocks=10 * count + 1, requests=())
    free = list(range(1, 10 * count + 1))
    for turn in range(25):
        ledger.add_request("a")
        given = ledger.allocate("a", count)
        ids = [int(life) & ID_MASK for life in given.lives]
        ledger.seal(given, keys(*(f"{turn}.{number}" for number in range(count))))
        assert ids == free[:count], turn
        ledger.release("a", range(count))
        ledger.finish("a")
        free = free[count:] + ids
        assert ledger.blocks.free_order() == free, turn
        assert check(ledger) == []


def test_a_machine_with_more_states_than_a_byte_holds_is_refused() -> None:
    """At import, and not when a place is asked for the first time."""
    state = enum.Enum("State", {f"S{number}": number for number in range(17)})  # type: ignore[misc]
    table = attrs.evolve(MACHINES["block"], name="Wide", states=tuple(state))
    event = attrs.evolve(MACHINES["block"].events["seal"], table=table)

    with pytest.raises(DefinitionError, match="Wide: 17 states; the kernel has room for 16"):
        Rule(event, 0)


# --- how many ---------------------------------------------------------------------------------------------------------------


def test_hits_of_one_call_may_be_more_than_any_call_has_handed_out() -> None:
    """A long text that was computed in many steps is a hit of another request in one."""
    ledger = Ledger(Limits(num_blocks=401, num_slots=1, max_requests=2), contract=Contract.FENCE, own_pool=False)
    for name in "ab":
        ledger.add_request(name)
    for first in range(1, 401, 10):
        (held,) = ledger.observe_place("a", [Placement(allocated=range(first, first + 10))])
        ledger.seal(held, [b"%d" % block for block in range(first, first + 10)])
    ledger.observe_place("b", [Placement(taken=range(1, 401))])

    assert [ledger.blocks.refs(block) for block in range(1, 401)] == [2] * 400
    assert check(ledger) == []
