"""Every verb of the ledger: what it does, what it refuses, and that a refusal changes nothing.

`refuses` checks the last part for every refusal in this file: the snapshot, everything counted and the journal are the same
before and after, and no listener has heard of anything.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blocklife.errors import CapacityError, InvariantError, LateError, MisuseError, RefusedError
from blocklife.ledger import (
    Batch,
    Checking,
    Contract,
    JobId,
    Jobs,
    Launched,
    Ledger,
    LedgerTransition,
    Limits,
    Placement,
    Refusal,
    Result,
    Seal,
    Worker,
)
from blocklife.ledger._ids import EPOCH_SHIFT, FIRST_EPOCH, ID_MASK, LAST_EPOCH, NULL
from blocklife.ledger.invariants import check
from blocklife.ledger.jobs import Allocated, GroupTransfer, Sealed, Storable, Store
from blocklife.states import MACHINES, Block, Job, Request, Slot
from tests.worlds import (
    BOTH,
    behind_fence,
    held,
    in_flight,
    keys,
    make_ledger,
    ready,
    refuses,
    report,
    sealed,
    store,
    unchanged,
    world_key,
)


def states(ledger: Ledger) -> list[str]:
    """The state of every block but the null block."""
    return [ledger.blocks.state(place).name for place in range(1, len(ledger.blocks))]


def anything(value: object) -> Any:
    """Pass what mypy would refuse, to see that the ledger does."""
    return value


# --- construction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"num_blocks": 1}, "num_blocks must be at least 2"),
        ({"num_blocks": 0}, "num_blocks must be a whole number of at least 1"),
        ({"num_slots": 0}, "num_slots must be"),
        ({"num_slots": 2.0}, "num_slots must be a whole number"),
        ({"num_workers": 0}, "num_workers must be"),
        ({"num_workers": 4097}, "num_workers can be at most 4096"),
        ({"num_groups": 257}, "num_groups can be at most 256"),
        ({"max_jobs": True}, "max_jobs must be a whole number"),
        ({"max_requests": 1 << 16}, "max_requests can be at most 65535"),
        ({"max_journal": 0}, "max_journal must be"),
    ],
)
def test_limits_refuse_what_cannot_be(wrong: dict[str, Any], match: str) -> None:
    """A limit is a whole number within its range, and the message names it."""
    with pytest.raises(MisuseError, match=match):
        Limits(**({"num_blocks": 4, "num_slots": 4} | wrong))


@pytest.mark.parametrize("deadline", [0.0, -1.0, float("nan")])
def test_ledger_refuses_a_deadline_that_is_no_time(deadline: float) -> None:
    """A deadline lies in the future."""
    with pytest.raises(MisuseError, match="deadline must be above 0"):
        make_ledger(deadline=deadline)


@pytest.mark.parametrize(
    "wrong", [{"contract": "fence"}, {"contract": Checking.OFF}, {"checking": "off"}, {"checking": None}], ids=str
)
def test_ledger_refuses_what_only_reads_like_a_choice(wrong: dict[str, object]) -> None:
    """A text would silently mean the other contract."""
    (name,) = wrong
    with pytest.raises(MisuseError, match=f"{name} must be one of .*, not"):
        make_ledger(**anything(wrong))


def test_ledger_refuses_an_incarnation_below_one() -> None:
    """Incarnations count from 1."""
    with pytest.raises(MisuseError, match="incarnation must be at least 1"):
        make_ledger(incarnation=0)


def test_ledger_is_born_empty() -> None:
    """All blocks are free in order, all slots are empty, nothing is pending, no rule is broken."""
    ledger = make_ledger(requests=())

    assert states(ledger) == ["FREED"] * 5
    assert ledger.blocks.free_order() == [1, 2, 3, 4, 5]
    assert ledger.slots.next_empty(9) == [0, 1, 2, 3]
    assert not ledger.has_pending_work()
    assert repr(ledger) == "<Ledger plan 0: 5 free, 0 jobs out, 0 requests>"
    assert check(ledger) == []


# --- requests -----------------------------------------------------------------------------------------------------------


def test_requests_are_limited() -> None:
    """The request too many is refused, and one that finishes makes room."""
    ledger = make_ledger(max_requests=2, requests=("a", "b"))
    with refuses(ledger, CapacityError, r"all 2 requests are in use.*max_requests"):
        ledger.add_request("c")
    ledger.finish("a")

    ledger.add_request("c")


# --- blocks -------------------------------------------------------------------------------------------------------------


def test_allocate_refuses_more_than_there_is_and_says_how_much_that_is() -> None:
    """The message counts what is free, what is freeing soon, and what is quarantined, and names the job; none is handed out."""
    ledger = make_ledger(contract=Contract.HOLD, num_blocks=4)
    in_flight(ledger)
    ledger.preempt("a")
    counts = "3 blocks wanted, 2 are free, 1 is freeing soon, which the contract hold does not hand out, 0 are quarantined"
    with refuses(ledger, CapacityError, rf"{counts} \(preempt a request, or wait for job 1\.1 to land\)"):
        ledger.allocate("a", 3)

    assert ledger.blocks.free == 2


def test_prefix_stops_at_the_first_gap() -> None:
    """A hit is a prefix."""
    ledger = make_ledger()
    batch = sealed(ledger, "a", keys("k0", "k1", "k2"))
    ledger.finish("a")
    ledger.drop([batch.lives[1]])

    assert ledger.blocks.prefix(keys("k0", "k1", "k2")) == [batch.lives[0]]
    assert ledger.blocks.prefix(keys("k1")) == []


def test_release_leaves_a_hole_in_the_table() -> None:
    """A window moves on: the null block stands for what was left behind, and a hole is passed over."""
    ledger = make_ledger()
    batch = sealed(ledger, "a", keys("k0", "k1", "k2"))
    ledger.release("a", [0, 1])
    ledger.release("a", [1, 2])

    assert ledger.requests.table("a") == [NULL, NULL, NULL]
    assert [ledger.blocks.of(int(life)) for life in batch.lives] == [Block.CACHED] * 3


def test_seal_passes_over_a_life_that_is_over() -> None:
    """The step that computed it came back after the request was gone; the others are sealed under their own keys."""
    ledger = make_ledger(requests=("a", "b"))
    lost = ledger.allocate("a", 1)
    kept = ledger.allocate("b", 1)
    ledger.finish("a")
    both = Batch[Allocated]([*lost.lives, *kept.lives])
    final = ledger.seal(both, keys("lost", "kept"))

    assert list(final.lives) == list(kept.lives)
    assert ledger.blocks.prefix(keys("kept")) == list(kept.lives)
    assert ledger.blocks.prefix(keys("lost")) == []
    assert ledger.statistics().stale == 1


# --- refusals -----------------------------------------------------------------------------------------------------------


def busy_ledger(own_pool: bool = True) -> Ledger:
    """One of everything: request *a* holds a sealed, an open and a pledged block and one that a store reads; *w* waits."""
    ledger = make_ledger(num_blocks=12, num_slots=6, requests=("a", "b"), own_pool=own_pool)
    ledger.add_request("w")
    ready(ledger, "ready", 0)
    ready(ledger, "pinned", 1)
    ledger.pin("somebody", [1])
    in_flight(ledger, "a", "busy", 2)
    sealed(ledger, "a", keys("final"))
    pledged = held(ledger, "a")
    ledger.plan_store(Store.of(anything(pledged), [3], keys("pledged")))
    held(ledger, "a")
    return ledger


READY_SLOT, PINNED_SLOT, WRITING_SLOT, PLEDGED_SLOT = range(4)


def in_state(ledger: Ledger, state: Block) -> list[int]:
    """The lives of the blocks in one state, the null block apart."""
    return [ledger.blocks.life(place) for place in range(1, len(ledger.blocks)) if ledger.blocks.state(place) is state]


REFUSALS: dict[str, tuple[Callable[[Ledger], object], type[Exception], str]] = {
    "add_request known": (lambda x: x.add_request("a"), MisuseError, "request a: it is known already"),
    "admit unknown": (lambda x: x.admit("z"), MisuseError, "request z: it is not known"),
    "preempt unknown": (lambda x: x.preempt("z"), MisuseError, "request z: it is not known"),
    "finish unknown": (lambda x: x.finish("z"), MisuseError, "request z"),
    "table unknown": (lambda x: x.requests.table("z"), MisuseError, "request z"),
    "allocate unknown": (lambda x: x.allocate("z", 1), MisuseError, "request z"),
    "allocate none": (lambda x: x.allocate("a", 0), MisuseError, "cannot allocate 0 blocks"),
    "allocate too many": (lambda x: x.allocate("a", 99), CapacityError, "99 blocks wanted"),
    "observe in own pool": (lambda x: x.observe_place("a", [Placement(allocated=[1])]), MisuseError, r"own_pool=True"),
    "observe_free in own pool": (lambda x: x.observe_free("a", [1]), MisuseError, r"own_pool=True"),
    "acquire null": (lambda x: x.acquire("b", [NULL]), MisuseError, r"acquire: 0 is no life of a block; blocks are 1 to \d+"),
    "acquire twice in one": (lambda x: x.acquire("b", in_state(x, Block.SEALED) * 2), MisuseError, "named twice"),
    "acquire what it holds": (lambda x: x.acquire("a", in_state(x, Block.SEALED)), MisuseError, "request a holds it already"),
    "acquire stale": (
        lambda x: x.acquire("b", [in_state(x, Block.SEALED)[0] + (1 << EPOCH_SHIFT)]),
        MisuseError,
        r"cannot acquire its life 2, which is over; it is SEALED in life 1",
    ),
    "release beyond": (lambda x: x.release("a", [99]), MisuseError, "positions must be distinct and below"),
    "release twice": (lambda x: x.release("a", [0, 0]), MisuseError, "positions must be distinct"),
    "seal keys": (lambda x: x.seal(Batch(in_state(x, Block.ALLOCATED)), []), MisuseError, "1 blocks to seal and 0 keys"),
    "seal twice in one": (
        lambda x: x.seal(Batch(in_state(x, Block.ALLOCATED) * 2), keys("p", "q")),
        MisuseError,
        "named twice",
    ),
    "plan_store known key": (
        lambda x: x.plan_store(Store.of(Batch(in_state(x, Block.SEALED)), [4], keys("ready"))),
        MisuseError,
        "it is stored already",
    ),
    "plan_store nothing": (lambda x: x.plan_store(Store.of(Batch([]), [], [])), MisuseError, "nothing to copy cannot be built"),
    "plan_store keys": (
        lambda x: x.plan_store(Store.of(Batch(in_state(x, Block.SEALED)), [4], keys("p", "q"))),
        MisuseError,
        "1 slots and 2 keys do not agree",
    ),
    "plan_store places": (
        lambda x: x.plan_store(Store.of(Batch(in_state(x, Block.SEALED)), [4], keys("q"), places=[1, 2])),
        MisuseError,
        "1 blocks and 2 host places",
    ),
    "plan_store slot twice": (
        lambda x: x.plan_store(
            Store.of(Batch(in_state(x, Block.SEALED) + in_state(x, Block.ALLOCATED)), [4, 4], keys("p", "q"))
        ),
        MisuseError,
        "slot 4: it is named twice",
    ),
    "plan_store block twice": (
        lambda x: x.plan_store(Store.of(Batch(in_state(x, Block.SEALED) * 2), [4, 5], keys("p", "q"))),
        MisuseError,
        "named twice",
    ),
    "plan_store key twice": (
        lambda x: x.plan_store(
            Store.of(Batch(in_state(x, Block.SEALED) + in_state(x, Block.ALLOCATED)), [4, 5], keys("q", "q"))
        ),
        MisuseError,
        "key 71: it is named twice in one job",
    ),
    "plan_load not its own": (
        lambda x: x.plan_load("w", GroupTransfer(Batch(in_state(x, Block.ALLOCATED)), [READY_SLOT])),
        MisuseError,
        "request w does not hold it",
    ),
    "plan_load no slot": (lambda x: x.plan_load("w", GroupTransfer(x_allocate(x, "w"), [99])), MisuseError, "slot 99"),
    "evict twice": (lambda x: x.evict([READY_SLOT, READY_SLOT]), MisuseError, "slot 0: it is named twice"),
    "pin twice in one": (lambda x: x.pin("me", [READY_SLOT] * 2), MisuseError, "named twice"),
    "unpin another's": (lambda x: x.unpin("me", [PINNED_SLOT]), MisuseError, "slot 1: me does not hold it"),
    "unpin too often": (lambda x: x.unpin("somebody", [READY_SLOT]), MisuseError, "slot 0: somebody does not hold it"),
    "jobs.state unknown": (lambda x: x.jobs.state(JobId(1, 99)), MisuseError, "job 1.99: it was never made here"),
    "jobs.state incarnation": (lambda x: x.jobs.state(JobId(2, 1)), MisuseError, "job 2.1: it was never made here"),
    "submit twice in one": (lambda x: x.submit(Jobs((pledged_job(x),) * 2)), MisuseError, "named twice"),
    "abandon twice in one": (lambda x: x.abandon(Jobs((busy_job(x),) * 2)), MisuseError, "named twice"),
    "quiesce unknown": (lambda x: x.quiesce(Jobs((busy_job(x), JobId(1, 99)))), MisuseError, "job 1.99"),
    "hand_out_first twice in one": (
        lambda x: x._rows.hand_out_first(in_state(x, Block.SEALED) * 2),
        MisuseError,
        "named twice",
    ),
    "dispatch at no time": (lambda x: x.dispatch(float("nan")), MisuseError, "now must be a finite number, not nan"),
    "dispatch at a word": (lambda x: x.dispatch(anything("x")), MisuseError, "now must be a finite number, not 'x'"),
    "expire at no time": (lambda x: x.expire(float("inf")), MisuseError, "now must be a finite number, not inf"),
    "launched at no time": (
        lambda x: x.launched(Launched(busy_job(x), Worker(0)), float("nan")),
        MisuseError,
        "now must be a finite number",
    ),
    "settle at no time": (lambda x: x.settle(3, float("nan")), MisuseError, "now must be a finite number"),
    "history unknown": (lambda x: x.journal.history("nope", 1), MisuseError, "machine 'nope': it is not known"),
    "settle none": (lambda x: x.settle(3, 0.0), MisuseError, r"plan 3: it cannot settle now \(no plan is out\)"),
    "reset drain": (lambda x: x.reset(drain=True), CapacityError, "2 jobs are still out"),
}


def x_allocate(ledger: Ledger, request: str) -> Batch[Allocated]:
    """The open block that *request* got when the scene was set."""
    return Batch([life for life in ledger.requests.table(request) if ledger.blocks.state(life & ID_MASK) is Block.ALLOCATED])


def pledged_job(ledger: Ledger) -> JobId:
    """The planned store of the scene."""
    return next(JobId(1, job.number) for job in ledger.jobs.alive() if job.state is Job.PLANNED)


def busy_job(ledger: Ledger) -> JobId:
    """The submitted store of the scene."""
    return ledger.jobs.submitted().ids[0]


@pytest.mark.parametrize("case", REFUSALS)
def test_refused_verb_changes_nothing(case: str) -> None:
    """Every refusal names the thing, says why, and leaves the world as it was."""
    act, error, match = REFUSALS[case]
    ledger = busy_ledger()
    if case.startswith("plan_load"):
        ledger.allocate("w", 1)
        if "not its own" in case:
            ledger.release("w", [0])
    with refuses(ledger, error, match):
        act(ledger)

    assert check(ledger) == []


FOREIGN_REFUSALS: dict[str, tuple[Callable[[Ledger], object], type[Exception], str]] = {
    "allocate": (lambda x: x.allocate("a", 1), MisuseError, r"own_pool=False"),
    "null": (lambda x: x.observe_place("a", [Placement(allocated=[0])]), MisuseError, "block 0: blocks are 1 to 11"),
    "beyond": (lambda x: x.observe_place("a", [Placement(allocated=[12])]), MisuseError, "block 12"),
    "twice": (lambda x: x.observe_place("a", [Placement(allocated=[11, 11])]), MisuseError, "block 11: it is named twice"),
    "held": (
        lambda x: x.observe_place("b", [Placement(allocated=[11, 4])]),
        RefusedError,
        "block 4: cannot ALLOCATE while SEALED",
    ),
    "group": (lambda x: x.observe_place("b", [Placement(1, allocated=[11])]), MisuseError, "group 1"),
    "take open": (
        lambda x: x.observe_place("b", [Placement(taken=[6])]),
        RefusedError,
        "block 6: cannot ACQUIRE while ALLOCATED",
    ),
    "free another's": (lambda x: x.observe_free("b", [4]), MisuseError, "block 4: request b does not hold it"),
    "free twice": (lambda x: x.observe_free("a", [4, 4]), MisuseError, "block 4: it is named twice"),
    "evict held": (lambda x: x.drop([x.blocks.life(4)]), RefusedError, "block 4: cannot DROP while SEALED"),
}


@pytest.mark.parametrize("case", FOREIGN_REFUSALS)
def test_foreign_pool_refuses_what_its_allocator_may_not_do(case: str) -> None:
    """A block is named with its state, and all of a call is refused with one of its blocks."""
    act, error, match = FOREIGN_REFUSALS[case]
    ledger = busy_ledger(own_pool=False)
    assert states(ledger)[:6] == ["CACHED", "CACHED", "IN_FLIGHT", "SEALED", "PLEDGED", "ALLOCATED"]
    with refuses(ledger, error, match):
        act(ledger)


def test_foreign_pool_frees_and_evicts() -> None:
    """What the engine's allocator does is mirrored: free, take again, evict."""
    ledger = make_ledger(own_pool=False, requests=("a", "b"))
    ledger.seal(ledger.observe_place("a", [Placement(allocated=[3, 5])])[0], keys("k0", "k1"))
    ledger.observe_free("a", [5, 3])
    ledger.observe_place("b", [Placement(taken=[3])])
    ledger.drop([ledger.blocks.life(5)])

    assert ledger.requests.table("a") == [NULL, NULL]
    assert states(ledger) == ["FREED", "FREED", "SEALED", "FREED", "FREED"]
    assert ledger.blocks.life(5) == FIRST_EPOCH + 1 << EPOCH_SHIFT | 5


# --- writing on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_pool", [True, False])
def test_reopened_block_begins_another_life(own_pool: bool) -> None:
    """The content that was final is none any more, and nobody finds it; the block stays, and can be sealed again."""
    ledger = make_ledger(own_pool=own_pool)
    first = ledger.allocate("a", 1) if own_pool else ledger.observe_place("a", [Placement(allocated=[3])])[0]
    old = ledger.seal(first, keys("tail"))
    new = Batch[Allocated]([ledger._rows.reopen("a", 0, 0)])

    assert [life & ID_MASK for life in new.lives] == [life & ID_MASK for life in old.lives]
    assert list(new.lives) != list(old.lives)
    assert ledger.requests.table("a") == list(new.lives)
    assert ledger.blocks.of(new.lives[0]) is Block.ALLOCATED
    assert ledger.blocks.refs(int(new.lives[0]) & ID_MASK) == 1
    assert ledger.blocks.prefix(keys("tail")) == []
    ledger.seal(new, keys("whole"))
    assert ledger.blocks.prefix(keys("whole")) == list(new.lives)
    assert check(ledger) == []


def test_nobody_writes_on_before_the_store_that_reads_there_has_landed() -> None:
    """Under fence the next plan waits for it, and nothing is sealed before; a store that is only planned is cancelled."""
    ledger = make_ledger()
    _, flying = in_flight(ledger, "a", "k", 0)
    new = Batch[Allocated]([ledger._rows.reopen("a", 0, 0)])

    assert ledger.blocks.of(new.lives[0]) is Block.FLUSHED
    with refuses(ledger, RefusedError, "cannot SEAL while FLUSHED"):
        ledger.seal(new, keys("whole"))
    plan = ledger.dispatch(2.0)
    assert plan.flushes == (flying,)
    ledger.settle(plan.number, 2.0, completions=[report(flying)])
    assert ledger.blocks.of(new.lives[0]) is Block.ALLOCATED
    final = ledger.seal(new, keys("whole"))
    planned = store(ledger, final, keys("whole"), 1)
    ledger._rows.reopen("a", 0, 0)
    assert ledger.jobs.state(planned.ids[0]) is Job.CANCELLED
    assert check(ledger) == []


REOPEN_REFUSALS: dict[str, tuple[Callable[[Ledger], object], type[Exception], str]] = {
    "shared": (lambda x: x._rows.reopen("a", 0, 0), MisuseError, "2 requests hold its content"),
    "open": (lambda x: x._rows.reopen("a", 1, 0), MisuseError, "it is ALLOCATED, and has no final content"),
    "beyond": (lambda x: x._rows.reopen("a", 9, 0), MisuseError, "no block at position 9"),
    "before": (lambda x: x._rows.reopen("a", -1, 0), MisuseError, "no block at position -1"),
    "null": (lambda x: x._rows.reopen("a", 2, 0), MisuseError, "no block at position 2"),
    "group": (lambda x: x._rows.reopen("a", 0, 7), MisuseError, "group 7"),
    "nobody": (lambda x: x._rows.reopen("c", 0, 0), MisuseError, "request c"),
    "read under hold": (lambda x: x._rows.reopen("a", 3, 0), MisuseError, "a store reads it, and the contract is hold"),
}


@pytest.mark.parametrize("case", REOPEN_REFUSALS)
def test_block_that_is_not_its_own_alone_is_not_reopened(case: str) -> None:
    """What others hold is copied; where nothing is final there is nothing to write on."""
    act, error, match = REOPEN_REFUSALS[case]
    ledger = make_ledger(contract=Contract.HOLD, requests=("a", "b"), num_blocks=12)
    shared = ledger.seal(ledger.allocate("a", 1), keys("k"))
    ledger.acquire("b", shared.lives)
    ledger.allocate("a", 1)
    ledger.skip("a", 1)
    in_flight(ledger, "a", "s", 1)
    with refuses(ledger, error, match):
        act(ledger)


# --- handles ------------------------------------------------------------------------------------------------------------


def test_handle_used_twice_is_refused() -> None:
    """The type of a handle is right only once; the second time the table knows better."""
    ledger = make_ledger()
    batch = ledger.allocate("a", 1)
    final = ledger.seal(batch, keys("k"))
    jobs = store(ledger, final, keys("k"))
    for again, match in (
        (lambda: ledger.seal(batch, keys("k")), "cannot SEAL while PENDING_STORE"),
        (lambda: store(ledger, final, keys("other"), 1), "cannot PLAN_STORE while PENDING_STORE"),
    ):
        with refuses(ledger, RefusedError, match):
            again()
    ledger.cancel(jobs)
    with refuses(ledger, RefusedError, "cannot CANCEL while CANCELLED"):
        ledger.cancel(jobs)
    with refuses(ledger, RefusedError, "cannot SUBMIT while CANCELLED"):
        ledger.submit(jobs)


@pytest.mark.parametrize(
    "use",
    [
        lambda ledger, life: ledger.acquire("b", [life]),
        lambda ledger, life: ledger.drop([life]),
        lambda ledger, life: ledger.plan_store(Store.of(Batch([life]), [0], keys("q"))),
        lambda ledger, life: ledger.plan_load("b", GroupTransfer(Batch([life]), [1])),
    ],
    ids=["acquire", "drop", "plan_store", "plan_load"],
)
def test_stale_life_is_refused(use: Callable[[Ledger, int], object]) -> None:
    """A reference to the old tenant is never taken for one to the new, whatever state the place is in."""
    ledger = make_ledger(num_blocks=2)
    ready(ledger, "ready", 1)
    (old,) = ledger.blocks.prefix(keys("ready"))
    ledger.add_request("b")
    with refuses(ledger, CapacityError, "2 blocks wanted"):
        ledger.allocate("a", 2)
    ledger.allocate("a", 1)
    with refuses(ledger, MisuseError, r"block 1: cannot \w+ its life 1, which is over; it is ALLOCATED in life 2"):
        use(ledger, old)
    ledger.finish("a")
    with refuses(ledger, MisuseError, r"which is over; it is FREED in life 3"):
        use(ledger, old)


# --- jobs ---------------------------------------------------------------------------------------------------------------


def test_job_limit_is_kept_and_late_reports_are_known_for_as_long_as_possible() -> None:
    """With all jobs out one more is refused; rows are reused in the order in which their jobs ended."""
    ledger = make_ledger(max_jobs=2)
    batch = sealed(ledger, "a", keys("k0", "k1", "k2"))
    jobs = [ledger.plan_store(Store.of(Batch([life]), [slot], keys(f"k{slot}"))) for slot, life in enumerate(batch.lives[:2])]
    with refuses(ledger, CapacityError, r"all 2 jobs are out.*max_jobs"):
        ledger.plan_store(Store.of(Batch([batch.lives[2]]), [2], keys("k2")))
    ledger.cancel(jobs[1])
    ledger.cancel(jobs[0])
    ledger.plan_store(Store.of(Batch([batch.lives[2]]), [2], keys("k2")))

    assert ledger.jobs.state(jobs[0].ids[0]) is Job.CANCELLED
    with pytest.raises(LateError, match=r"job 1.2: it ended so long ago"):
        ledger.jobs.state(jobs[1].ids[0])


def test_journal_is_bounded() -> None:
    """The journal forgets the oldest records."""
    ledger = make_ledger(max_journal=4)
    for _ in range(9):
        ledger.allocate("a", 1)
        ledger.release("a", [len(ledger.requests.table("a")) - 1])

    assert len(ledger.journal) == 4
    assert [each.event for each in ledger.journal] == ["allocate", "release"] * 2


def test_job_does_not_share_lists_with_its_caller() -> None:
    """Who changes a list after the call changes nothing in the ledger."""
    ledger = make_ledger()
    lives = list(sealed(ledger, "a", keys("k0", "k1")).lives)
    slots, names, places = [0, 1], keys("k0", "k1"), [8, 9]
    job = ledger.plan_store(Store.of(Batch(lives), slots, names, places=places)).ids[0]
    before = ledger.snapshot()
    for each in (lives, slots, places):
        each.clear()
    names.clear()
    same = ledger.snapshot() == before
    plan = ledger.dispatch(0.0)

    assert same
    assert plan.stores[0].source.tolist() == [1, 2]
    assert plan.stores[0].target.tolist() == [8, 9]
    assert ledger.jobs.state(job) is Job.IN_FLIGHT
    ledger.settle(plan.number, 0.0, completions=[report(job)])
    assert ledger.slots.prefix(keys("k0", "k1")) == [0, 1]
    assert check(ledger) == []


def test_job_does_not_share_arrays_with_its_caller() -> None:
    """The same for many places, which come as arrays."""
    ledger = make_ledger(num_blocks=MANY + 1, num_slots=MANY)
    lives = np.array(sealed(ledger, "a", keys(*range(MANY))).lives)
    slots, places = np.arange(MANY), np.arange(MANY) + 100
    names = keys(*range(MANY))
    transfer = GroupTransfer(Batch[Storable](lives), slots, names, places)
    (job,) = ledger.plan_store(Store("a", [transfer])).ids
    before = ledger.snapshot()
    for each in (lives, slots, places):
        each[:] = 0
    names.clear()

    assert ledger.snapshot() == before
    plan = ledger.dispatch(0.0)
    assert plan.stores[0].target.tolist() == [place + 100 for place in range(MANY)]
    ledger.settle(plan.number, 0.0, completions=[report(job)])
    assert ledger.slots.prefix(keys(*range(MANY))) == list(range(MANY))
    assert check(ledger) == []


def test_jobs_of_a_request_are_those_it_owns_and_the_workers_have() -> None:
    """What a preemption flushes: submitted, not over, and its own."""
    ledger = make_ledger(requests=("a", "b"))
    _, mine = in_flight(ledger, "a", "k0", 0)
    _, other = in_flight(ledger, "b", "k1", 1)
    sealed_again = sealed(ledger, "a", keys("k2"))
    store(ledger, sealed_again, keys("k2"), 2)

    assert ledger.jobs.of("a").ids == (mine,)
    assert ledger.jobs.submitted().ids == (mine, other)


# --- reports ------------------------------------------------------------------------------------------------------------


def test_report_that_is_late_is_counted_and_changes_no_verdict() -> None:
    """After the end any report is a row of its own."""
    ledger = make_ledger(workers=2)
    _, job = in_flight(ledger)
    ledger.abandon(Jobs((job,)))
    ledger.quiesce(Jobs((job,)))
    before = ledger.snapshot()
    ledger.complete(report(job))

    assert ledger.jobs.state(job) is Job.CANCELLED
    assert ledger.statistics().late == 1
    assert [a == b for a, b in zip(before, ledger.snapshot(), strict=True)].count(False) == 1


def test_report_of_a_job_that_is_over_is_told_as_a_step_to_its_own_state() -> None:
    """Who listens hears of every report that was taken, also of one that no longer decides anything."""
    ledger = make_ledger(workers=2)
    _, job = in_flight(ledger)
    ledger.quiesce(Jobs((job,)))
    heard: list[LedgerTransition] = []
    ledger.on(hook=heard.append)
    ledger.complete(report(job))
    rows = [str(MACHINES["job"].row(row)) for each in heard for _, row in each.steps()]

    assert [each.machine for each in heard] == ["job"]
    assert rows == ["FAILED --finish--> FAILED"]


@pytest.mark.parametrize(
    "job", [JobId(1, 99), JobId(2, 1), JobId(1, 0)], ids=["never made", "of another incarnation", "number 0"]
)
def test_report_for_an_unknown_job_is_counted(job: JobId) -> None:
    """Nobody knows it; nothing changes but the count."""
    ledger = make_ledger()
    in_flight(ledger)
    before = ledger.snapshot()
    ledger.complete(report(job))
    ledger.launched(Launched(job, Worker(0)), 0.0)

    assert ledger.snapshot() == before
    assert ledger.statistics().unknown == 1


# --- deadlines ----------------------------------------------------------------------------------------------------------


def test_deadline_starts_with_the_first_launch() -> None:
    """Before that nothing expires, and a second launch does not move it."""
    ledger = make_ledger(deadline=8.0, workers=2)
    _, job = in_flight(ledger)
    never = ledger.expire(1000.0)
    ledger.launched(Launched(job, Worker(0)), 10.0)
    ledger.launched(Launched(job, Worker(1)), 15.0)
    early, due = ledger.expire(17.9), ledger.expire(18.0)

    assert never.ids == early.ids == ()
    assert due.ids == (job,)
    assert ledger.jobs.state(job) is Job.QUARANTINED


def test_deadline_starts_when_a_plan_waits() -> None:
    """A hung copy that its worker still holds back was never launched; the wait for it must end all the same."""
    ledger = make_ledger(deadline=8.0)
    _, job = in_flight(ledger)
    ledger.flush(Jobs((job,)))
    plan = ledger.dispatch(20.0)
    early, due = ledger.expire(27.0), ledger.expire(28.0)

    assert plan.flushes == (job,)
    assert early.ids == ()
    assert due.ids == (job,)


def test_launch_of_a_job_that_is_over_starts_nothing() -> None:
    """Late records are no-ops."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger.complete(report(job))
    before = ledger.snapshot()
    ledger.launched(Launched(job, Worker(0)), 0.0)

    assert ledger.snapshot() == before
    assert ledger.expire(1e9).ids == ()


# --- settle -------------------------------------------------------------------------------------------------------------


def test_settle_takes_the_report_of_a_waited_job_before_its_proof() -> None:
    """Order 1 before 2: a flushed job that succeeded is DONE, not FAILED for want of a report."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger.flush(Jobs((job,)))
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=[report(job)])

    assert ledger.jobs.state(job) is Job.DONE
    assert ledger.slots.state(0) is Slot.READY


def test_settle_applies_reports_before_seals() -> None:
    """Order 3 before 4: the seal of a request whose load has just failed is passed over."""
    ledger = make_ledger()
    ready(ledger)
    ledger.add_request("w")
    both = ledger.allocate("w", 2)
    load = ledger.plan_load("w", GroupTransfer(Batch(both.lives[:1]), [0])).ids[0]
    plan = ledger.dispatch(0.0)
    seal = Seal(0, list(both.lives[1:]), keys("q"))
    ledger.settle(plan.number, 0.0, completions=[report(load, Result.FAILED)], seals=[seal])

    assert ledger.requests.state("w") is Request.WAITING
    assert ledger.blocks.prefix(keys("q")) == []
    assert ledger.statistics().stale == 1


@pytest.mark.parametrize("waited", [False, True], ids=["in flight", "waited for"])
def test_deadline_that_passes_is_told_as_a_step_from_the_state_of_the_job(waited: bool) -> None:
    """Whoever reads the story learns whether a plan waited for the copy when it was given up."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger.launched(Launched(job, Worker(0)), 0.0)
    if waited:
        ledger.flush(Jobs((job,)))
    ledger.expire(99.0)

    assert ledger.journal.history("job", job.number)[-1].startswith(
        f"plan 1: {'AWAITED' if waited else 'IN_FLIGHT'} --expire--> QUARANTINED"
    )


def test_settle_expires_last() -> None:
    """Order 5: a report that comes with the deadline is in time."""
    ledger = make_ledger(deadline=8.0)
    _, job = in_flight(ledger)
    plan = ledger.dispatch(0.0)
    ledger.launched(Launched(job, Worker(0)), 0.0)
    ledger.settle(plan.number, 8.0, completions=[report(job)])

    assert ledger.jobs.state(job) is Job.DONE


def test_settle_starts_deadlines_with_its_own_time() -> None:
    """What was launched in a plan is watched from its settling on."""
    ledger = make_ledger(deadline=8.0)
    source = sealed(ledger, "a", keys("k"))
    job = store(ledger, source, keys("k")).ids[0]
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 5.0, launched=[Launched(job, Worker(0))])

    assert ledger.expire(12.9).ids == ()
    assert ledger.expire(13.0).ids == (job,)


def test_plans_settle_in_their_order() -> None:
    """A later plan waits for the earlier one, and none settles twice."""
    ledger = make_ledger()
    first, second = ledger.dispatch(0.0), ledger.dispatch(0.0)
    with refuses(ledger, MisuseError, r"plan 2: it cannot settle now \(plan 1 is next\)"):
        ledger.settle(second.number, 0.0)
    ledger.settle(first.number, 0.0)
    with refuses(ledger, MisuseError, r"plan 1: it cannot settle now \(plan 2 is next\)"):
        ledger.settle(first.number, 0.0)

    assert ledger.has_pending_work()
    ledger.settle(second.number, 0.0)
    assert not ledger.has_pending_work()


def test_load_that_lands_early_proves_the_older_copy_quiet() -> None:
    """Its report can overtake the settling of its plan: every worker waited for the old copy before it launched the load."""
    ledger = make_ledger(num_blocks=2)
    target, old = behind_fence(ledger)
    load = ledger.plan_load("b", GroupTransfer(target, [0])).ids[0]
    plan = ledger.dispatch(0.0)
    ledger.complete(report(load))
    between = check(ledger), ledger.jobs.state(old)
    ledger.settle(plan.number, 0.0, completions=[report(old)])

    assert between == ([], Job.FAILED)
    assert ledger.requests.state("b") is Request.RUNNING
    assert ledger.statistics().late == 1


SETTLE_REFUSALS: dict[str, tuple[Callable[[JobId, JobId, Batch[Allocated]], dict[str, Any]], type[Exception], str]] = {
    "forged worker": (lambda busy, _, __: {"completions": [report(busy), report(busy, worker=5)]}, MisuseError, "worker 5"),
    "planned job": (
        lambda busy, planned, _: {"completions": [report(busy), report(planned)]},
        RefusedError,
        "cannot FINISH while PLANNED",
    ),
    "keys": (
        lambda busy, _, batch: {"completions": [report(busy)], "seals": [Seal(0, batch.lives, [])]},
        MisuseError,
        "1 blocks to seal and 0 keys",
    ),
    "group": (
        lambda busy, _, batch: {"completions": [report(busy)], "seals": [Seal(1, batch.lives, keys("q"))]},
        MisuseError,
        "group 1",
    ),
    "twice": (
        lambda busy, _, batch: {"completions": [report(busy)], "seals": [Seal(0, batch.lives, keys("q"))] * 2},
        MisuseError,
        "named twice",
    ),
    "not open": (
        lambda busy, _, __: {"completions": [report(busy)], "seals": [Seal(0, [FIRST_EPOCH << EPOCH_SHIFT | 1], keys("q"))]},
        RefusedError,
        "block 1: cannot SEAL while IN_FLIGHT",
    ),
}


@pytest.mark.parametrize("case", SETTLE_REFUSALS)
def test_settle_refuses_all_or_nothing(case: str) -> None:
    """One report or seal that cannot be applied, and none is."""
    act, error, match = SETTLE_REFUSALS[case]
    ledger = make_ledger()
    _, busy = in_flight(ledger)
    pledged = ledger.allocate("a", 1)
    planned = ledger.plan_store(Store.of(anything(pledged), [1], keys("p"))).ids[0]
    batch = ledger.allocate("a", 1)
    plan = ledger.dispatch(0.0)
    with refuses(ledger, error, match):
        ledger.settle(plan.number, 0.0, **act(busy, planned, batch))

    ledger.settle(plan.number, 0.0)


def test_settle_refuses_a_seal_behind_a_wait_of_a_later_plan() -> None:
    """The block was handed out after this plan; only the next one waits."""
    ledger = make_ledger(num_blocks=2)
    early = ledger.dispatch(0.0)
    ledger.settle(early.number, 0.0)
    plan = ledger.dispatch(0.0)
    source = sealed(ledger, "a", keys("k"))
    store(ledger, source, keys("k"))
    later = ledger.dispatch(0.0)
    ledger.preempt("a")
    ledger.add_request("b")
    target = ledger.allocate("b", 1)
    with refuses(ledger, RefusedError, "cannot SEAL while FLUSHED"):
        ledger.settle(plan.number, 0.0, seals=[Seal(0, target.lives, keys("q"))])
    ledger.settle(plan.number, 0.0)
    ledger.settle(later.number, 0.0)


# --- listeners and history ----------------------------------------------------------------------------------------------


def told(record: LedgerTransition) -> list[str]:
    """The steps of a record in words."""
    table = MACHINES[record.machine]
    return [f"{record.machine} {place}: {table.row(row)}" for place, row in record.steps()]


def test_listener_hears_after_the_last_write() -> None:
    """Whatever it reads is the world after the verb, however many verbs that one is made of."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    plan = ledger.dispatch(0.0)
    seen = []
    ledger.on(hook=lambda record: seen.append((record.machine, ledger.jobs.state(job), ledger.slots.state(0), check(ledger))))
    ledger.settle(plan.number, 0.0, completions=[report(job)])

    assert seen == [(machine, Job.DONE, Slot.READY, []) for machine in ("job", "block", "slot")]


def test_history_tells_the_story_of_one_place() -> None:
    """The latest steps, oldest first, with plan and job."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger.complete(report(job))

    assert ledger.journal.history("block", 1) == [
        "plan 0: FREED --allocate--> ALLOCATED",
        "plan 0: ALLOCATED --seal--> SEALED",
        "plan 0: SEALED --plan_store--> PENDING_STORE (job 1)",
        "plan 1: PENDING_STORE --submit--> IN_FLIGHT (job 1)",
        "plan 1: IN_FLIGHT --land [held]--> SEALED (job 1)",
    ]
    assert ledger.journal.history("slot", 0)[-1] == "plan 1: WRITING --land [published]--> READY (job 1)"
    assert ledger.journal.history("block", 2) == []


@BOTH
def test_statistics_add_up_to_the_capacity(contract: Contract) -> None:
    """Every place is counted once, and what is freeing soon is not free."""
    ledger = busy_ledger()
    ledger.finish("a")
    now = ledger.statistics()

    assert sum(now.blocks.values()) == 11
    assert sum(now.slots.values()) == 6
    assert now.free == now.blocks["FREED"] + now.blocks["CACHED"] == 10
    assert (now.freeing_soon, now.quarantined) == (1, 0)
    assert (now.jobs_alive, now.requests) == (1, 2)


# --- snapshots ----------------------------------------------------------------------------------------------------------


def go_on(ledger: Ledger) -> list[object]:
    """The same calls on any copy of `behind_fence`, and what they gave."""
    seen: list[object] = []
    load = ledger.plan_load("b", GroupTransfer(Batch(ledger.requests.table("b")), [0]))
    plan = ledger.dispatch(1.0)
    seen += [load.ids, plan.number, plan.flushes, [each.job for each in plan.loads]]
    ledger.pin("me", [0])
    ledger.settle(plan.number, 9.0, launched=[Launched(load.ids[0], Worker(0))])
    seen += [ledger.expire(17.0).ids, ledger.requests.state("b"), ledger.snapshot()]
    ledger.unpin("me", [0])
    ledger.complete(report(load.ids[0]))
    ledger.add_request("c")
    seen += [list(ledger.allocate("c", 1).lives), ledger.blocks.free_order(), ledger.journal.history("block", 1)[-1]]
    return [*seen, ledger.snapshot()]


def test_snapshot_restores_the_middle_of_everything() -> None:
    """The original, and another ledger with the same limits, go on alike; then the original goes back and goes on again."""
    ledger = make_ledger(num_blocks=2)
    behind_fence(ledger)
    saved, key = ledger.snapshot(), ledger.snapshot()
    other = make_ledger(num_blocks=2, requests=("x", "y"))
    other.restore(saved)
    same = other.snapshot() == key
    first = go_on(ledger)
    second = go_on(other)
    ledger.restore(saved)

    assert same
    assert first == second
    assert ledger.snapshot() == key
    assert go_on(ledger) == first


def test_jobs_are_counted_on_behind_a_snapshot() -> None:
    """A ledger that was put back gives no number twice: a report that is late is not taken for one of a new job."""
    ledger = make_ledger(num_slots=8, max_jobs=2)
    for number in range(5):
        ready(ledger, f"k{number}", number)
    ledger.restore(ledger.snapshot())
    _, job = in_flight(ledger, name="new", slot=5)
    for number in range(1, 6):
        ledger.complete(report(JobId(1, number), Result.FAILED))

    assert job.number == 6
    assert ledger.jobs.state(job) is Job.IN_FLIGHT
    assert check(ledger) == []


def test_what_is_left_of_a_deadline_travels_with_a_snapshot() -> None:
    """Ten units in all, whatever the clock of the ledger that goes on from there says."""
    ledger = make_ledger(deadline=10.0)
    _, job = in_flight(ledger)
    ledger.launched(Launched(job, Worker(0)), 1000.0)
    saved, other = ledger.snapshot(now=1004.0), make_ledger(deadline=10.0)
    unless_told = ledger.snapshot()
    other.restore(saved, now=50.0)
    early, late = other.expire(55.9).ids, other.expire(56.0).ids

    assert (early, late) == ((), (job,))
    assert unless_told == ledger.snapshot(now=0.0) != saved


@pytest.mark.parametrize(
    "other", [{"num_blocks": 7}, {"num_slots": 5}, {"max_jobs": 9}, {"max_requests": 5}, {"groups": 2}], ids=str
)
def test_snapshot_of_other_limits_is_refused(other: dict[str, int]) -> None:
    """It would not fit; nothing of it is taken over."""
    ledger = make_ledger()
    in_flight(ledger)
    saved = make_ledger(**anything(other)).snapshot()
    with refuses(ledger, MisuseError, "made with other limits"):
        ledger.restore(saved)


# --- holders ------------------------------------------------------------------------------------------------------------


def test_pin_of_nothing_changes_nothing() -> None:
    """A lookup without a hit leaves no trace."""
    ledger = make_ledger()
    with unchanged(ledger):
        ledger.pin("p", [])
        ledger.unpin("p", [])
        ledger.evict([])


# --- plans --------------------------------------------------------------------------------------------------------------


def test_transfers_of_a_plan_are_a_sequence_that_is_made_when_somebody_looks() -> None:
    """As many as there are jobs, the same ones at every look; in another process they are a plain tuple."""
    ledger = make_ledger(num_blocks=8, num_slots=8)
    for slot, names in enumerate(([b"a"], [b"b", b"c"])):
        store(ledger, sealed(ledger, "a", names), names, 2 * slot)
    stores = ledger.dispatch(0.0).stores
    sent = pickle.loads(pickle.dumps(stores))

    assert len(stores) == 2
    assert stores[0] is stores[0] is next(iter(stores)) is stores[:1][0]
    assert [each.source.tolist() for each in stores] == [[1], [2, 3]]
    assert [each.target.tolist() for each in stores] == [[0], [2, 3]]
    assert [each.group_sizes for each in stores] == [(1,), (2,)]
    assert type(sent) is tuple
    assert list(map(repr, sent)) == list(map(repr, stores))
    assert repr(stores) == repr(sent)


# --- one and many -------------------------------------------------------------------------------------------------------

MANY = 80


def tour(ledger: Ledger, at_once: bool) -> Ledger:
    """The same places through every verb, all in one call or one call a place."""
    each = [slice(0, MANY)] if at_once else [slice(place, place + 1) for place in range(MANY)]
    names = keys(*range(MANY))
    batches = [ledger.allocate("a", len(names[part])) for part in each]
    final = [ledger.seal(batch, names[part]) for batch, part in zip(batches, each, strict=True)]
    for batch in final:
        ledger.acquire("b", batch.lives)
    jobs = [
        ledger.plan_store(Store.of(batch, list(range(MANY))[part], names[part]))
        for batch, part in zip(final, each, strict=True)
    ]
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, launched=[Launched(job.ids[0], Worker(0)) for job in jobs])
    for part in each:
        ledger.release("b", list(range(MANY))[part])
    for job in jobs:
        ledger.complete(report(job.ids[0]))
    ledger.finish("a")
    for part in each:
        ledger.pin("p", list(range(MANY))[part])
    ledger.finish("b")
    ledger.add_request("c")
    for part in each:
        ledger.allocate("c", len(names[part]))
    ledger.drop(ledger.blocks.prefix(names[: MANY // 2]))
    ledger.reset()
    for part in each:
        ledger.unpin("p", list(range(MANY))[part])
    return ledger


def test_one_call_with_many_places_does_what_many_calls_do() -> None:
    """Both ledgers have the same bytes: states, counts, epochs, keys, and the order of the free."""

    def make() -> Ledger:
        return make_ledger(num_blocks=2 * MANY + 1, num_slots=MANY, max_jobs=MANY, requests=("a", "b"))

    many, one = tour(make(), True), tour(make(), False)

    assert check(many) == check(one) == []
    assert many.snapshot()[:6] == one.snapshot()[:6]
    assert [many.blocks.free_order(), many.slots.free] == [one.blocks.free_order(), one.slots.free]


def test_arrays_are_taken_like_lists() -> None:
    """Ids may come as numpy arrays of any integer type, few or many."""
    for count in (3, MANY):
        ledger = make_ledger(num_blocks=count + 1, num_slots=count, requests=("a", "b"))
        names = keys(*range(count))
        lives = sealed(ledger, "a", names).lives
        ledger.acquire("b", np.array(lives, dtype=np.int64))
        jobs = ledger.plan_store(Store.of(Batch(np.array(lives)), anything(np.arange(count, dtype=np.int32)), names))
        ledger.cancel(jobs)
        ledger.finish("a")

        assert set(states(ledger)) == {"SEALED"}
        assert check(ledger) == []


# --- levels of checking -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", list(Checking), ids=lambda each: each.name.lower())
def test_broken_coupling_is_raised_counted_or_passed_over(level: Checking) -> None:
    """Somebody took the pins away behind the ledger's back; the tables are asked at every level, the couplings at two."""
    ledger = make_ledger(checking=level)
    _, job = in_flight(ledger)
    ledger.launched(Launched(job, Worker(0)), 0.0)
    ledger._state.core.blocks.pins[1] = 0
    if level is Checking.STRICT:
        with pytest.raises(InvariantError, match=r"job 1\.1 is QUARANTINED.* pin .*\(I1\)"):
            ledger.expire(99.0)
    else:
        ledger.expire(99.0)

    assert ledger.jobs.state(job) is Job.QUARANTINED
    assert ledger.statistics().violations == (0 if level is Checking.OFF else 1)


def quarantined_load(ledger: Ledger) -> JobId:
    """A load of block 1 or 2 that is past its deadline."""
    ready(ledger)
    ledger.add_request("b")
    (job,) = ledger.plan_load("b", GroupTransfer(ledger.allocate("b", 1), [0])).ids
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, launched=[Launched(job, Worker(0))])
    ledger.expire(99.0)
    return job


@pytest.mark.parametrize("what", ["refs", "pins", "writes", "overdue"])
def test_count_below_zero_is_an_error_and_never_clamped(what: str) -> None:
    """At every level, and before anything is written: a report that takes away what is not there."""
    ledger = make_ledger(checking=Checking.OFF)
    job = in_flight(ledger)[1] if what in ("refs", "pins") else quarantined_load(ledger)
    counts = ledger._state.core.blocks.columns[what]
    wrong = next(place for place, count in enumerate(counts) if count)
    counts[wrong] = 0
    before = world_key(ledger)[1]
    with pytest.raises(InvariantError, match=rf"block {wrong}: {what} would fall below zero \(I4\)"):
        ledger.release("a", [0]) if what == "refs" else ledger.complete(report(job))

    assert world_key(ledger)[1] == before


def test_count_that_its_column_cannot_hold_is_refused() -> None:
    """The largest one is reached, and one more is refused to the caller, who can wait; nothing has changed then."""
    ledger = make_ledger(checking=Checking.OFF, requests=("a", "b"))
    content = sealed(ledger, "a", keys("k", "l"))
    columns = ledger._state.core.blocks
    columns.pins[1], columns.pins[2] = 254, 255
    columns.refs[1], columns.refs[2] = 65_534, 65_535
    first, second = (Batch[Sealed]([life]) for life in content.lives)
    ledger.acquire("b", first.lives)
    store(ledger, first, keys("k"))
    with refuses(ledger, CapacityError, "block 2: more than 65535 refs"):
        ledger.acquire("b", second.lives)
    with refuses(ledger, CapacityError, "block 2: more than 255 pins"):
        store(ledger, second, keys("l"), 1)

    assert (ledger.blocks.refs(1), ledger.blocks.pins(1)) == (65_535, 255)


def test_seal_refuses_another_key_than_its_planned_store_will_publish() -> None:
    """One content has one key: the slot of a planned store and the block that it copies agree."""
    ledger = make_ledger()
    source = ledger.allocate("a", 2)
    ledger.plan_store(Store.of(source, [0, 1], keys("k0", "k1")))
    with refuses(ledger, MisuseError, r"cannot SEAL it as .*, its store 1\.1 will publish"):
        ledger.seal(source, keys("k0", "k2"))
    ledger.seal(source, keys("k0", "k1"))

    assert ledger.blocks.count()[Block.PENDING_STORE] == 2


def test_submit_refuses_a_load_before_the_wait_for_its_target_is_in_a_plan() -> None:
    """Behind a fence a load may go to the workers only with, or after, the plan that waits for the older copy."""
    ledger = make_ledger(num_blocks=2, contract=Contract.FENCE)
    target, older = behind_fence(ledger)
    load = ledger.plan_load("b", GroupTransfer(target, [0]))
    with refuses(ledger, MisuseError, rf"no plan waits yet for job {older}, which still touches its target"):
        ledger.submit(load)

    assert ledger.dispatch(2.0).flushes == (older,)


def test_submit_refuses_a_load_within_a_step() -> None:
    """Only the plan that submits it can wait for it; submitted alone, the next plan could not settle."""
    ledger = make_ledger()
    ready(ledger)
    ledger.add_request("w")
    load = ledger.plan_load("w", GroupTransfer(ledger.allocate("w", 1), [0]), within=True)
    with refuses(ledger, MisuseError, r"job 1\.\d+: it loads within a step, whose plan waits for it \(use dispatch\)"):
        ledger.submit(load)
    plan = ledger.dispatch(1.0)
    ledger.settle(plan.number, 1.0, completions=[report(load.ids[0])])

    assert plan.flushes == load.ids
    assert ledger.requests.state("w") is Request.RUNNING


def test_store_refuses_another_key_than_its_block_has() -> None:
    """What a slot is found under is what its block holds."""
    ledger = make_ledger()
    source = sealed(ledger, "a", keys("alpha"))
    with refuses(ledger, MisuseError, r"block \d: it holds 616c706861, which cannot be stored as 62657461"):
        ledger.plan_store(Store.of(source, [0], keys("beta")))


def test_refused_bulk_release_leaves_the_table_able_to_grow() -> None:
    """A refusal that somebody keeps, with all that it was about, holds nothing back."""
    ledger = make_ledger(num_blocks=80)
    ledger.allocate("a", 60)
    with pytest.raises(MisuseError, match="distinct") as kept:
        ledger.release("a", [0] * 60)
    ledger.allocate("a", 1)

    assert kept.value is not None
    assert len(ledger.requests.table("a")) == 61
    assert check(ledger) == []


@pytest.mark.parametrize("count", [1, 60], ids=["one", "many"])
def test_epoch_starts_again_before_a_life_could_turn_negative(count: int) -> None:
    """The last epoch is followed by the first."""
    ledger = make_ledger(num_blocks=80, requests=("a", "b"))
    for place in range(1, 80):
        ledger._state.core.blocks.epoch[place] = LAST_EPOCH
    lives = ledger.allocate("a", count).lives
    ledger.release("a", range(count))

    assert min(lives) == LAST_EPOCH << EPOCH_SHIFT | 1
    assert {ledger.blocks.epochs[int(life) & ID_MASK] for life in lives} == {FIRST_EPOCH}
    assert check(ledger) == []


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("epochs", [0, 1], ids=["first tenancy", "second tenancy"])
def test_number_of_a_block_is_not_one_of_its_lives(epochs: int, many: bool) -> None:
    """It is refused wherever lives are taken, in the first tenancy, too, and whatever the block's state."""
    ledger = make_ledger(num_blocks=2 * MANY, num_slots=MANY, requests=("a", "b"))
    blocks = list(range(1, MANY + 1 if many else 2))
    for _ in range(epochs):
        ledger.allocate("a", len(blocks))
        ledger.finish("a")
        ledger.add_request("a")
    named = keys(*blocks)
    held = ledger.allocate("a", len(blocks))
    bare = Batch[Any](blocks)
    match = r"^\w+: 1 is the number of a block, not a life \(use what allocate returned, or ledger\.blocks\.life\(1\)\)$"

    acts: list[Callable[[], object]] = [
        lambda: ledger.seal(bare, named),
        lambda: ledger.acquire("b", blocks),
        lambda: ledger.drop(blocks),
        lambda: ledger._rows.hand_out_first(blocks),
        lambda: ledger.plan_store(Store.of(bare, list(range(len(blocks))), named)),
        lambda: ledger.plan_load("b", GroupTransfer(bare, list(range(len(blocks))), named)),
    ]
    plan = ledger.dispatch(0.0).number
    acts.append(lambda: ledger.settle(plan, 0.0, seals=[Seal(0, blocks, named)]))
    for act in acts:
        with refuses(ledger, MisuseError, match):
            act()

    assert ledger.blocks.of(1) is None
    assert not ledger.blocks.is_current(1)
    final = ledger.seal(held, named)
    assert sorted(final.lives) == sorted(held.lives) == [ledger.blocks.life(block) for block in blocks]


@pytest.mark.parametrize(
    "other", [{"contract": Contract.HOLD}, {"incarnation": 2}, {"workers": 2}, {"own_pool": False}], ids=str
)
def test_snapshot_of_another_kind_of_ledger_is_refused(other: dict[str, Any]) -> None:
    """Equal sizes do not make two ledgers alike."""
    saved = make_ledger().snapshot()
    with pytest.raises(MisuseError, match="made with other"):
        make_ledger(requests=(), **other).restore(saved)


def test_plans_out_are_limited() -> None:
    """Whoever never settles is told so."""
    ledger = make_ledger()
    for now in range(ledger.limits.max_plans):
        ledger.dispatch(now)
    with refuses(ledger, CapacityError, "max_plans"):
        ledger.dispatch(0)


def test_deadlines_of_jobs_that_ended_are_forgotten() -> None:
    """What is kept is bounded by the jobs that are out, however far away the deadlines are."""
    ledger = make_ledger(deadline=1e12, max_jobs=4)
    for _ in range(50):
        _, job = in_flight(ledger)
        ledger.launched(Launched(job, Worker(0)), 0.0)
        ledger.complete(report(job))
        ledger.evict([0])
        ledger.release("a", [len(ledger.requests.table("a")) - 1])

    assert len(ledger._state.core.deadlines) <= 2 * ledger.limits.max_jobs


def interrupting(error: type[BaseException]) -> Callable[[object], None]:
    """A listener in which Ctrl-C is pressed, or the like, each time that it is told something."""

    def listener(_record: object) -> None:
        raise error

    return listener


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit], ids=lambda each: each.__name__)
def test_interrupt_in_a_listener_goes_on_when_all_listeners_have_heard_all(error: type[BaseException]) -> None:
    """The later ones miss no commit, and hear each of them once; an error of another listener does not hide the interrupt."""
    ledger, twin = make_ledger(), make_ledger()
    _, job = in_flight(ledger)
    in_flight(twin)
    heard: list[LedgerTransition] = []
    expected: list[LedgerTransition] = []
    ledger.on(hook=interrupting(ValueError))
    ledger.on(hook=interrupting(error))
    ledger.on(hook=heard.append)
    twin.on(hook=expected.append)
    with pytest.raises(error):
        ledger.complete(report(job))
    twin.complete(report(job))

    assert [told(each) for each in heard] == [told(each) for each in expected]
    assert [each.machine for each in heard] == ["job", "block", "slot"]
    assert ledger.snapshot() == twin.snapshot()


def test_interrupt_in_a_listener_for_refusals_goes_on_when_all_have_heard() -> None:
    """The verb has done nothing, and every one of them knows it."""
    ledger = make_ledger()
    heard: list[Refusal] = []
    ledger.on_refusal(interrupting(KeyboardInterrupt))
    ledger.on_refusal(heard.append)
    before = world_key(ledger)
    with pytest.raises(KeyboardInterrupt):
        ledger.admit("a")

    assert [each.event for each in heard] == ["admit"]
    assert world_key(ledger) == before
    ledger.allocate("a", 1)


COPIES: dict[str, Callable[[object], object]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "old pickle": lambda thing: pickle.dumps(thing, protocol=0),
}


@pytest.mark.parametrize("how", COPIES)
def test_ledger_is_not_copied(how: str) -> None:
    """Two ledgers would say what is so of the same places; a snapshot is a value, and can be put back elsewhere."""
    ledger = make_ledger()
    in_flight(ledger)
    with refuses(ledger, MisuseError, r"Ledger: it cannot be copied or pickled \(.*snapshot.*restore"):
        COPIES[how](ledger)
    other = make_ledger(requests=())
    other.restore(pickle.loads(pickle.dumps(ledger.snapshot())))

    assert other.snapshot() == ledger.snapshot()


def test_deadlines_keep_their_order_when_those_of_ended_jobs_are_forgotten() -> None:
    """Who is kept among many that are over is given up when its own time has come, whoever was launched later."""
    ledger = make_ledger(deadline=100.0, max_jobs=3)

    def launch(now: float, *, land: bool) -> JobId:
        slot = ledger.slots.next_empty(1)[0]
        _, job = in_flight(ledger, slot=slot)
        ledger.launched(Launched(job, Worker(0)), now)
        if land:
            ledger.complete(report(job))
            ledger.evict([slot])
            ledger.release("a", [len(ledger.requests.table("a")) - 1])
        return job

    launch(1.0, land=True)
    launch(2.0, land=True)
    earlier, later = launch(3.0, land=False), launch(4.0, land=False)
    nobody = ledger.expire(101.5)
    for now in (102.0, 103.0, 104.0):
        launch(now - 1.0, land=True)
    launch(104.0, land=False)
    before = len(ledger._state.core.deadlines)
    first, second = ledger.expire(103.5), ledger.expire(104.5)

    assert nobody.ids == ()
    assert before == 3
    assert (first.ids, second.ids) == ((earlier,), (later,))


def test_request_that_never_fits_is_told_so() -> None:
    """More blocks than the device has: no preemption and no copy that lands will make room."""
    ledger = make_ledger(num_blocks=6)
    with refuses(
        ledger,
        CapacityError,
        r"a: 6 blocks wanted, and the device has 5 \(it never fits: ask for less, or refuse the request\)",
    ):
        ledger.allocate("a", 6)


@pytest.mark.parametrize(
    "ask",
    [
        lambda view: view.row("z"),
        lambda view: view.state("z"),
        lambda view: view.load("z"),
        lambda view: view.size("z", 0),
        lambda view: view.table("z", 0),
    ],
    ids=["row", "state", "load", "size", "table"],
)
def test_view_of_requests_names_the_one_that_is_unknown(ask: Callable[[Any], object]) -> None:
    """As the verbs do."""
    with pytest.raises(MisuseError, match=r"^request z: it is not known \(add it first"):
        ask(make_ledger().requests)
