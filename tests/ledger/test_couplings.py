"""Each row of `states.COUPLINGS`, both ways: it happens when its cause does, and not when its cause does something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blocklife.errors import MisuseError
from blocklife.ledger import (
    Batch,
    Completion,
    Contract,
    GroupTransfer,
    JobId,
    Jobs,
    Launched,
    Ledger,
    LedgerTransition,
    Result,
    Store,
    Worker,
)
from blocklife.ledger.invariants import check
from blocklife.states import COUPLINGS, MACHINES, Block, Job, Request, Slot
from tests.worlds import BOTH, behind_fence, block_of, in_flight, keys, make_ledger, ready, refuses, report, sealed, store

BELOW = pytest.mark.parametrize("direction", ["demote", "promote"])
"""Both directions between the slots and the store below."""


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


def loading(ledger: Ledger, submit: bool = True) -> tuple[int, JobId]:
    """Request *w* loads content *k* from slot 0 into a block of its own."""
    ready(ledger)
    ledger.add_request("w")
    target = ledger.allocate("w", 1)
    job = ledger.plan_load("w", GroupTransfer(target, [0])).ids[0]
    if submit:
        ledger.settle(ledger.dispatch(0.0).number, 0.0, launched=[Launched(job, Worker(0))])
    return block_of(target), job


def anyhow(job: JobId) -> Jobs[Any]:
    """A handle whatever the state."""
    return Jobs((job,))


def test_every_coupling_has_tests_both_ways() -> None:
    """For each row there is a test named after it that says it happens, and one that says when it does not."""
    text = Path(__file__).read_text(encoding="utf-8")
    names = re.findall(r"def (test_\w+)\(", text)

    for row in COUPLINGS:
        stem = "test_" + row.name.replace("-", "_")
        own = [name for name in names if name.startswith(stem)]
        assert any("_not_" in name for name in own), row.name
        assert any("_not_" not in name for name in own), row.name


# --- life-ends ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["finish", "preempt", "release", "reset"])
def test_life_ends_takes_the_planned_store_along(way: str) -> None:
    """Open content that is given up ends its life: the store that was planned for it is cancelled, its slot is empty."""
    ledger = make_ledger()
    batch = ledger.allocate("a", 1)
    job = ledger.plan_store(Store.of(batch, [0], keys("k"))).ids[0]
    life = ledger.blocks.life(1)
    ways: dict[str, Callable[[], object]] = {
        "finish": lambda: ledger.finish("a"),
        "preempt": lambda: ledger.preempt("a"),
        "release": lambda: ledger.release("a", [0]),
        "reset": ledger.reset,
    }
    ways[way]()

    assert ledger.jobs.state(job) is Job.CANCELLED
    assert ledger.slots.state(0) is Slot.EMPTY
    assert (ledger.blocks.state(1), ledger.blocks.pins(1)) == (Block.FREED, 0)
    assert ledger.blocks.life(1) != life


def test_life_ends_by_a_hand_out_cancels_the_store_of_both_blocks() -> None:
    """Under fence a planned source may be handed out; the other source of the same job goes back to what it was."""
    ledger = make_ledger(num_blocks=3)
    source = sealed(ledger, "a", keys("k0", "k1"))
    job = store(ledger, source, keys("k0", "k1")).ids[0]
    ledger.finish("a")
    ledger.add_request("b")
    ledger.allocate("b", 1)

    assert ledger.jobs.state(job) is Job.CANCELLED
    assert [ledger.blocks.state(place) for place in (1, 2)] == [Block.ALLOCATED, Block.CACHED]
    assert [ledger.blocks.pins(place) for place in range(3)] == [0, 0, 0]
    assert ledger.blocks.prefix(keys("k0")) == []
    assert ledger.blocks.prefix(keys("k1")) == [ledger.blocks.life(2)]


def test_life_ends_not_when_the_last_holder_of_final_content_lets_go() -> None:
    """A released block that nobody else got keeps its life, and its planned store."""
    ledger = make_ledger()
    block, job = planned(ledger)
    life = ledger.blocks.life(block)
    ledger.finish("a")

    assert ledger.jobs.state(job) is Job.PLANNED
    assert ledger.blocks.life(block) == life
    assert ledger.blocks.prefix(keys("k")) == [life]


# --- hand-out-flushes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True], ids=["in flight", "stale"])
def test_hand_out_flushes_the_copy_in_the_same_plan(again: bool) -> None:
    """A busy block goes to a new tenant with the wait; also the second time, when its life is long over."""
    ledger = make_ledger(num_blocks=2)
    target, job = behind_fence(ledger)
    if again:
        plan = ledger.dispatch(0.0)
        ledger.finish("b")
        ledger.add_request("c")
        target = ledger.allocate("c", 1)
        assert plan.flushes == (job,)

    assert ledger.blocks.state(block_of(target)) is Block.FLUSHED
    assert ledger.jobs.state(job) is Job.AWAITED
    assert ledger.dispatch(0.0).flushes == (job,)


def test_hand_out_flushes_not_what_nobody_handed_out() -> None:
    """A prefix hit is no hand-out, nor is a block that no copy touches."""
    ledger = make_ledger(requests=("a", "b"))
    source, job = in_flight(ledger)
    ledger.acquire("b", source.lives)
    ledger.allocate("b", 1)

    assert ledger.jobs.state(job) is Job.IN_FLIGHT
    assert ledger.dispatch(0.0).flushes == ()


# --- plans --------------------------------------------------------------------------------------------------------------


def test_store_planned_moves_block_and_slot() -> None:
    """One pin on the block, one slot reserved, one key taken."""
    ledger = make_ledger()
    source = sealed(ledger, "a", keys("k"))
    story = Story(ledger)(lambda: store(ledger, source, keys("k")))

    assert story == ["block.plan_store", "slot.reserve"]
    assert ledger.blocks.pins(1) == 1
    assert ledger.slots.state(0) is Slot.WRITING
    assert ledger.slots.prefix(keys("k")) == []


def test_store_planned_not_if_one_side_refuses() -> None:
    """Neither the block is pinned nor the slot reserved."""
    ledger = make_ledger()
    ready(ledger, "other", 0)
    source = sealed(ledger, "a", keys("k"))
    with pytest.raises(Exception, match="slot 0: cannot RESERVE while READY"):
        store(ledger, source, keys("k"))

    assert ledger.blocks.pins(block_of(source)) == 0
    assert ledger.jobs.live == 0


def test_load_planned_moves_block_slot_and_request() -> None:
    """Both ends are pinned, the block counts a writer, and the request leaves the batch."""
    ledger = make_ledger()
    ready(ledger)
    ledger.add_request("w")
    target = ledger.allocate("w", 1)
    story = Story(ledger)(lambda: ledger.plan_load("w", GroupTransfer(target, [0])))
    block = block_of(target)

    assert story == ["block.plan_load", "slot.pin", "request.plan_load"]
    assert (ledger.blocks.pins(block), ledger.blocks.writes(block), ledger.slots.pins(0)) == (1, 1, 1)
    assert ledger.requests.state("w") is Request.LOADING


def test_load_planned_not_if_one_side_refuses() -> None:
    """The slot has no content yet: the block stays open, the request stays in its queue."""
    ledger = make_ledger()
    in_flight(ledger)
    ledger.add_request("w")
    target = ledger.allocate("w", 1)
    with pytest.raises(Exception, match="slot 0: cannot PIN while WRITING"):
        ledger.plan_load("w", GroupTransfer(target, [0]))

    assert ledger.blocks.state(block_of(target)) is Block.ALLOCATED
    assert ledger.requests.state("w") is Request.WAITING


def test_submitted_moves_the_living_sources() -> None:
    """The block says that the workers read it."""
    ledger = make_ledger()
    block, _ = planned(ledger)
    story = Story(ledger)(lambda: ledger.dispatch(0.0))

    assert story == ["job.submit", "block.submit"]
    assert ledger.blocks.state(block) is Block.IN_FLIGHT


def test_submitted_not_while_the_content_is_open() -> None:
    """A pledged block holds its whole job back."""
    ledger = make_ledger()
    batch = ledger.allocate("a", 2)
    job = ledger.plan_store(Store.of(batch, [0, 1], keys("k0", "k1"))).ids[0]
    ledger.seal(Batch(batch.lives[:1]), keys("k0"))
    story = Story(ledger)(lambda: ledger.dispatch(0.0))

    assert story == []
    assert ledger.jobs.state(job) is Job.PLANNED


# --- ends of stores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", [True, False], ids=["held", "let go"])
def test_store_cancelled_leaves_no_trace(holder: bool) -> None:
    """Block and slot are as before the plan, and the key can be stored again."""
    ledger = make_ledger()
    block, job = planned(ledger)
    if not holder:
        ledger.finish("a")
    story = Story(ledger)(lambda: ledger.cancel(anyhow(job)))

    assert story == ["job.cancel", "block.cancel", "slot.cancel"]
    assert ledger.blocks.state(block) is (Block.SEALED if holder else Block.CACHED)
    assert (ledger.slots.state(0), ledger.blocks.pins(block)) == (Slot.EMPTY, 0)
    ledger.plan_store(Store.of(Batch([ledger.blocks.life(block)]), [0], keys("k")))


def test_store_cancelled_not_once_submitted() -> None:
    """Nobody can call a copy back; abandoning it leaves every place as it is."""
    ledger = make_ledger()
    source, job = in_flight(ledger)
    with pytest.raises(Exception, match="cannot CANCEL while IN_FLIGHT"):
        ledger.cancel(anyhow(job))
    story = Story(ledger)(lambda: ledger.abandon(anyhow(job)))

    assert story == ["job.abandon"]
    assert ledger.blocks.pins(block_of(source)) == 1
    assert ledger.slots.state(0) is Slot.WRITING


ENDS: dict[str, tuple[Callable[[Ledger, JobId], object], Job]] = {
    "done": (lambda ledger, job: ledger.complete(report(job)), Job.DONE),
    "failed": (lambda ledger, job: ledger.complete(report(job, Result.FAILED)), Job.FAILED),
    "abandoned": (lambda ledger, job: (ledger.abandon(anyhow(job)), ledger.complete(report(job))), Job.CANCELLED),
    "quiet": (lambda ledger, job: ledger.quiesce(anyhow(job)), Job.FAILED),
}


@pytest.mark.parametrize("end", ENDS)
def test_store_ended_unpins_and_publishes_only_what_is_done(end: str) -> None:
    """However it ends the block is free of it; the slot is READY in one case and EMPTY in all others."""
    act, verdict = ENDS[end]
    ledger = make_ledger()
    source, job = in_flight(ledger)
    story = Story(ledger)(lambda: act(ledger, job))

    assert story[-3:] == [story[-3], "block.land", "slot.land"]
    assert ledger.jobs.state(job) is verdict
    assert ledger.blocks.state(block_of(source)) is Block.SEALED
    assert ledger.slots.state(0) is (Slot.READY if verdict is Job.DONE else Slot.EMPTY)


def test_store_ended_not_before_the_last_worker() -> None:
    """Half of the reports move the job alone."""
    ledger = make_ledger(workers=2)
    source, job = in_flight(ledger)
    story = Story(ledger)(lambda: ledger.complete(report(job)))

    assert story == ["job.finish"]
    assert ledger.blocks.state(block_of(source)) is Block.IN_FLIGHT
    assert ledger.slots.state(0) is Slot.WRITING


@pytest.mark.parametrize("holder", [True, False], ids=["held", "let go"])
def test_store_expired_leaves_both_ends_overdue(holder: bool) -> None:
    """Its key can be stored again elsewhere; a block that nobody holds is out of reach, one that is held stays readable."""
    ledger = make_ledger(deadline=8.0)
    source, job = in_flight(ledger)
    ledger.launched(Launched(job, Worker(0)), 0.0)
    if not holder:
        ledger.finish("a")
    story = Story(ledger)(lambda: ledger.expire(8.0))
    block = block_of(source)

    assert story == ["job.expire", "block.expire", "slot.expire"]
    assert ledger.blocks.state(block) is (Block.IN_FLIGHT if holder else Block.QUARANTINED)
    assert (ledger.blocks.overdue(block), ledger.slots.state(0)) == (1, Slot.QUARANTINED)


def test_store_expired_not_without_a_deadline() -> None:
    """What nobody launched and nobody waits for does not run out of time."""
    ledger = make_ledger(deadline=8.0)
    _, job = in_flight(ledger)
    story = Story(ledger)(lambda: ledger.expire(1e9))

    assert story == []
    assert ledger.jobs.state(job) is Job.IN_FLIGHT


# --- ends of loads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["preempt", "finish", "reset"])
def test_load_cancelled_frees_its_target_at_once(way: str) -> None:
    """Nobody has written it."""
    ledger = make_ledger()
    block, job = loading(ledger, submit=False)
    ways: dict[str, Callable[[], object]] = {
        "preempt": lambda: ledger.preempt("w"),
        "finish": lambda: ledger.finish("w"),
        "reset": ledger.reset,
    }
    story = Story(ledger)(ways[way])

    start = story.index("job.cancel")
    assert story[start : start + 3] == ["job.cancel", "block.land", "slot.unpin"]
    assert ledger.jobs.state(job) is Job.CANCELLED
    assert ledger.blocks.state(block) is Block.FREED
    assert ledger.slots.pins(0) == 0


def test_load_cancelled_not_while_its_request_wants_it() -> None:
    """A planned load is given up with its request and in no other way."""
    ledger = make_ledger()
    _, job = loading(ledger, submit=False)
    for verb in (ledger.cancel, ledger.abandon):
        with pytest.raises(Exception, match="a load is given up with its request"):
            verb(anyhow(job))

    assert ledger.requests.state("w") is Request.LOADING


def test_load_done_seals_unpins_and_wakes() -> None:
    """In this order."""
    ledger = make_ledger()
    block, job = loading(ledger)
    story = Story(ledger)(lambda: ledger.complete(report(job)))

    assert story == ["job.finish", "block.land", "slot.unpin", "request.loaded"]
    assert ledger.blocks.state(block) is Block.SEALED
    assert ledger.requests.state("w") is Request.RUNNING


def test_load_done_not_while_a_worker_is_missing() -> None:
    """The request waits for all of them."""
    ledger = make_ledger(workers=2)
    block, job = loading(ledger)
    story = Story(ledger)(lambda: ledger.complete(report(job)))

    assert story == ["job.finish"]
    assert ledger.blocks.state(block) is Block.LOADING
    assert ledger.requests.state("w") is Request.LOADING


def test_load_failed_drops_its_key_and_gives_everything_up() -> None:
    """The same hit does not come back, and the request computes from scratch."""
    ledger = make_ledger()
    block, job = loading(ledger)
    ledger.allocate("w", 1)
    story = Story(ledger)(lambda: ledger.complete(report(job, Result.FAILED)))

    assert story == ["job.finish", "block.land", "slot.drop", "slot.unpin", "block.release", "request.load_failed"]
    assert ledger.blocks.state(block) is Block.FREED
    assert ledger.slots.state(0) is Slot.EMPTY
    assert ledger.requests.state("w") is Request.WAITING
    assert ledger.requests.table("w") == []


def test_load_failed_not_for_a_request_that_has_another_load() -> None:
    """A late failure of a load that was given up is matched by job, never by owner."""
    ledger = make_ledger()
    _, old = loading(ledger)
    ledger.preempt("w")
    target = ledger.allocate("w", 1)
    new = ledger.plan_load("w", GroupTransfer(target, [0])).ids[0]
    ledger.complete(report(old, Result.FAILED))

    assert ledger.jobs.state(old) is Job.CANCELLED
    assert ledger.jobs.state(new) is Job.PLANNED
    assert ledger.requests.state("w") is Request.LOADING
    assert ledger.slots.state(0) is Slot.READY


def test_load_abandoned_only_lets_go_of_places() -> None:
    """Nobody hears of its end, well or not; the content it read is as good as before."""
    for result in Result:
        ledger = make_ledger()
        block, job = loading(ledger)
        ledger.preempt("w")
        between = ledger.blocks.state(block)
        story = Story(ledger)(lambda ledger=ledger, job=job, result=result: ledger.complete(report(job, result)))  # type: ignore[misc]

        assert between is Block.STALE
        assert story == ["job.finish", "block.land", "slot.unpin"]
        assert ledger.blocks.state(block) is Block.FREED
        assert ledger.slots.prefix(keys("k")) == [0]


def test_load_abandoned_not_before_it_lands() -> None:
    """Its target is held under both contracts until then."""
    for contract in Contract:
        ledger = make_ledger(num_blocks=3, contract=contract)
        block, _ = loading(ledger)
        ledger.finish("w")
        with pytest.raises(Exception, match="2 blocks wanted, 1 is free"):
            ledger.allocate("a", 2)

        assert ledger.blocks.state(block) is Block.STALE


def test_load_expired_wakes_its_request_and_keeps_its_places() -> None:
    """The request recomputes now; its target is out of reach until the copy is proven quiet."""
    ledger = make_ledger(deadline=8.0)
    block, job = loading(ledger)
    story = Story(ledger)(lambda: ledger.expire(8.0))
    between = ledger.blocks.state(block), ledger.slots.state(0), ledger.requests.state("w"), ledger.slots.prefix(keys("k"))
    ledger.quiesce(anyhow(job))

    assert story == ["job.expire", "block.expire", "slot.drop", "request.load_failed"]
    assert between == (Block.QUARANTINED, Slot.STALE, Request.WAITING, [])
    assert (ledger.blocks.state(block), ledger.slots.state(0)) == (Block.FREED, Slot.EMPTY)


def test_load_expired_not_heard_by_a_request_that_gave_it_up() -> None:
    """Only the pins of the places are overdue then; the request goes its own way."""
    ledger = make_ledger(deadline=8.0)
    block, _ = loading(ledger)
    ledger.preempt("w")
    ledger.admit("w")
    ledger.expire(8.0)

    assert ledger.requests.state("w") is Request.RUNNING
    assert ledger.blocks.state(block) is Block.QUARANTINED


# --- giving up ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["preempt", "finish"])
def test_request_gives_up_its_load_before_its_blocks(way: str) -> None:
    """A submitted load is abandoned first, so that its target is held when it is released."""
    ledger = make_ledger()
    block, job = loading(ledger)
    story = Story(ledger)(lambda: getattr(ledger, way)("w"))

    assert story == ["job.abandon", "block.release", f"request.{way}"]
    assert ledger.jobs.state(job) is Job.UNWANTED
    assert ledger.blocks.state(block) is Block.STALE


def test_request_gives_up_not_its_stores() -> None:
    """What it had stored is content like any other: the copy goes on and publishes."""
    ledger = make_ledger()
    _, job = in_flight(ledger)
    ledger.finish("a")
    between = ledger.jobs.state(job)
    ledger.complete(report(job))

    assert between is Job.IN_FLIGHT
    assert ledger.slots.prefix(keys("k")) == [0]


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


def test_reset_now_is_not_what_a_refused_drain_does() -> None:
    """With a job out, the other form changes nothing at all."""
    ledger = make_ledger()
    in_flight(ledger)

    def drain() -> None:
        with pytest.raises(Exception, match="1 job is still out"):
            ledger.reset(drain=True)

    assert Story(ledger)(drain) == []


def test_proof_of_quiet_couples_as_a_finish() -> None:
    """For the places it makes no difference how they were proven quiet."""
    stories = []
    for act in (
        lambda ledger, job: ledger.complete(report(job, Result.FAILED)),
        lambda ledger, job: ledger.quiesce(anyhow(job)),
    ):
        ledger = make_ledger()
        _, job = in_flight(ledger)
        ledger.flush(anyhow(job))
        stories.append(Story(ledger)(lambda act=act, ledger=ledger, job=job: act(ledger, job))[1:])  # type: ignore[misc]

    assert stories[0] == stories[1] == ["block.land", "slot.land"]
    assert set(MACHINES) == {"block", "slot", "job", "request"}


# --- between the slots and the store below --------------------------------------------------------------------------------


def demoting(ledger: Ledger, submit: bool = True) -> JobId:
    """A demotion of slot 0, which has content *k*."""
    ready(ledger)
    job = ledger.plan_demotion([0]).ids[0]
    if submit:
        ledger.settle(ledger.dispatch(0.0).number, 0.0, launched=[Launched(job, Worker(0))])
    return job


def promoting(ledger: Ledger, submit: bool = True) -> JobId:
    """A promotion of contents *p* and *q* into slots 1 and 2."""
    job = ledger.plan_promotion([1, 2], keys("p", "q")).ids[0]
    if submit:
        ledger.settle(ledger.dispatch(0.0).number, 0.0, launched=[Launched(job, Worker(0))])
    return job


def test_demotion_planned_pins_its_slot() -> None:
    """What it reads can be hit, and is not evicted."""
    ledger = make_ledger()
    ready(ledger)
    story = Story(ledger)(lambda: ledger.plan_demotion([0]))

    assert story == ["slot.pin"]
    assert ledger.slots.prefix(keys("k")) == [0]
    with pytest.raises(MisuseError, match=r"job 1\.2"):
        ledger.evict([0])


@pytest.mark.parametrize("state", ["EMPTY", "WRITING"])
def test_demotion_planned_not_without_final_content(state: str) -> None:
    """There is nothing to copy, or not yet."""
    ledger = make_ledger()
    if state == "WRITING":
        in_flight(ledger)
    with refuses(ledger, MisuseError, f"cannot PIN while {state}"):
        ledger.plan_demotion([0])


def test_promotion_planned_reserves_its_slots() -> None:
    """Its content is on its way, and nobody can read it."""
    ledger = make_ledger()
    story = Story(ledger)(lambda: ledger.plan_promotion([1, 2], keys("p", "q")))

    assert story == ["slot.reserve"]
    assert [ledger.slots.state(slot) for slot in (1, 2)] == [Slot.WRITING] * 2
    assert ledger.slots.find(0, b"p") == 1
    assert ledger.slots.prefix(keys("p")) == []


@pytest.mark.parametrize("where", ["in use", "stored", "on its way"])
def test_promotion_planned_not_where_something_is(where: str) -> None:
    """Nothing is brought into a slot that has content, and no content comes twice (I14)."""
    ledger = make_ledger()
    ready(ledger)
    if where == "on its way":
        promoting(ledger)
    slot, name, why = {
        "in use": (0, "p", "cannot RESERVE while READY"),
        "stored": (1, "k", "stored already, in slot 0"),
        "on its way": (3, "p", "on its way already, in slot 1"),
    }[where]
    with refuses(ledger, MisuseError, why):
        ledger.plan_promotion([slot], keys(name))


def test_demotion_cancelled_leaves_no_trace() -> None:
    """The slot is as before, and can be evicted."""
    ledger = make_ledger()
    job = demoting(ledger, submit=False)
    story = Story(ledger)(lambda: ledger.cancel(anyhow(job)))

    assert story == ["job.cancel", "slot.unpin"]
    ledger.evict([0])


def test_demotion_cancelled_not_once_submitted() -> None:
    """The copy runs on; given up, it still pins what it reads."""
    ledger = make_ledger()
    job = demoting(ledger)
    with refuses(ledger, MisuseError, "cannot CANCEL while IN_FLIGHT"):
        ledger.cancel(anyhow(job))
    ledger.reset()

    assert ledger.jobs.state(job) is Job.UNWANTED
    assert ledger.slots.state(0) is Slot.STALE


def test_promotion_cancelled_leaves_no_trace() -> None:
    """The slots are empty, and the content can be asked for again."""
    ledger = make_ledger()
    job = promoting(ledger, submit=False)
    story = Story(ledger)(lambda: ledger.cancel(anyhow(job)))

    assert story == ["job.cancel", "slot.cancel"]
    promoting(ledger)


def test_promotion_cancelled_not_once_submitted() -> None:
    """A reset hides what it brings, and keeps the slots until it has landed."""
    ledger = make_ledger()
    job = promoting(ledger)
    with refuses(ledger, MisuseError, "cannot CANCEL while IN_FLIGHT"):
        ledger.cancel(anyhow(job))
    ledger.reset()

    assert ledger.jobs.state(job) is Job.UNWANTED
    assert ledger.slots.state(1) is Slot.WRITING
    assert ledger.slots.find(0, b"p") is None


@pytest.mark.parametrize("end", ENDS)
def test_demotion_ended_lets_go_and_keeps_the_content(end: str) -> None:
    """Good or bad, the slot has what it had."""
    act, verdict = ENDS[end]
    ledger = make_ledger()
    job = demoting(ledger)
    story = Story(ledger)(lambda: act(ledger, job))

    assert story[-1] == "slot.unpin"
    assert ledger.jobs.state(job) is verdict
    assert ledger.slots.prefix(keys("k")) == [0]
    ledger.evict([0])


@BELOW
def test_demotion_ended_not_before_the_last_worker(direction: str) -> None:
    """Half of the reports move the job alone; that holds for both directions."""
    ledger = make_ledger(workers=2)
    job = demoting(ledger) if direction == "demote" else promoting(ledger)
    story = Story(ledger)(lambda: ledger.complete(report(job)))

    assert story == ["job.finish"]
    assert ledger.jobs.state(job) is Job.IN_FLIGHT


@pytest.mark.parametrize("end", ENDS)
def test_promotion_ended_publishes_only_what_is_done(end: str) -> None:
    """READY in one case, EMPTY in all others."""
    act, verdict = ENDS[end]
    ledger = make_ledger()
    job = promoting(ledger)
    story = Story(ledger)(lambda: act(ledger, job))

    assert story[-1] == "slot.land"
    assert ledger.jobs.state(job) is verdict
    assert ledger.slots.prefix(keys("p", "q")) == ([1, 2] if verdict is Job.DONE else [])
    assert ledger.slots.state(1) is (Slot.READY if verdict is Job.DONE else Slot.EMPTY)


def test_promotion_ended_not_with_what_any_worker_misses() -> None:
    """Content is there when every worker has its part; what one lacks is empty, and can be stored anew."""
    ledger = make_ledger(workers=2)
    job = promoting(ledger)
    ledger.complete(Completion(job, Worker(0), Result.OK, (0,)))
    ledger.restore(ledger.snapshot())
    ledger.complete(Completion(job, Worker(1), Result.OK))

    assert ledger.jobs.state(job) is Job.DONE
    assert [ledger.slots.state(slot) for slot in (1, 2)] == [Slot.EMPTY, Slot.READY]
    assert (ledger.slots.prefix(keys("q")), ledger.slots.find(0, b"p")) == ([2], None)
    assert ledger.counts.moved["PROMOTE"] == 1
    assert check(ledger) == []


def test_promotion_expired_keeps_its_slots_out_of_reach() -> None:
    """Nobody knows whether they are still being written; late content is not published."""
    ledger = make_ledger(deadline=8.0)
    job = promoting(ledger)
    story = Story(ledger)(lambda: ledger.expire(8.0))

    assert story == ["job.expire", "slot.expire"]
    assert ledger.slots.state(1) is Slot.QUARANTINED
    ledger.complete(report(job))
    assert (ledger.jobs.state(job), ledger.slots.state(1)) == (Job.FAILED, Slot.EMPTY)


def test_promotion_expired_not_for_a_demotion() -> None:
    """It only reads: its slot keeps the pin and its content, and nothing else happens."""
    ledger = make_ledger(deadline=8.0)
    job = demoting(ledger)
    story = Story(ledger)(lambda: ledger.expire(8.0))

    assert story == ["job.expire"]
    assert (ledger.jobs.state(job), ledger.slots.prefix(keys("k"))) == (Job.QUARANTINED, [0])
    ledger.complete(report(job))
    ledger.evict([0])
