"""The acceptance cases that the offload scheduler can show, one named test each, and a reason for each that cannot apply.

Method: a scripted engine over the real scheduler, under both contracts where they differ and with both kinds of scheduling; its
device never asks the ledger, and a copy lands when a test says so. Cases that concern the ledger alone are in `test_journeys`.
The last test counts the cases: each is a test, or stands in `NOT_APPLICABLE`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from attrs import evolve

from blocklife.errors import CapacityError, MisuseError
from blocklife.ledger import Completion, Contract, JobId, Launched, Limits, Result, Worker
from blocklife.offload import Mode, Policies
from blocklife.states import ADMISSIBLE, Block, Job, Request, Slot
from tests.engines import AHEAD, Engine
from tests.worlds import BOTH

CASES = tuple(
    f"A{number:02}"
    for numbers in (
        (1, 2, 3, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 18, 20, 21, 23, 25, 27, 28, 30, 32, 33, 35, 36, 37, 39, 40, 41, 42, 45),
        (47, 48, 50, 52, 54, 55),
    )
    for number in numbers
)
"""Every acceptance case, by the number that it has in the collection."""

NOT_APPLICABLE: Mapping[str, str] = {
    "A07": "events order a copy behind the compute that made its source: the copier's tests hold a log of both streams; the "
    "ledger's part is that a store whose content is not sealed is not submitted",
    "A08": "a wait for the last reader of a load's target is the copier's; the ledger hands out no block that somebody reads",
    "A10": "places are never swapped between tiers: a job copies, and both ends stay pinned until it is over",
    "A11": "the copier makes an event for each batch of its own and shares none",
    "A41": "there are no nodes to split: keys name single blocks or chunks, and what a copy holds is pinned place by place",
    "A42": "there are no parents: content is indexed by key alone, and a lookup asks for every key of the prefix itself, so "
    "that a child without its parent is never a hit",
    "A47": "there is one ledger and it has listeners; a composite of drivers would be two of them, and each hears every step",
}
"""Why a case cannot be shown here."""

OTHER = range(100, 200)
"""Tokens that no other prompt has."""


def storing(engine: Engine, *names: str, tokens: int = 9, first: int = 500) -> list[JobId]:
    """These requests run, each with a prompt of its own, and their stores are on the device; gives the job of each."""
    for number, name in enumerate(names):
        engine.add(name, range(100 * number + first, 100 * number + first + tokens))
    engine.step({}, admit=names)
    owners: dict[str | None, JobId] = {}
    for _ in range(4):
        rows = [(job, each) for job in engine.out() if (each := engine.ledger.jobs.get(job.number)) is not None]
        owners = {name: job for job, each in rows for name in (each.owner, *each.sharers)}
        if owners.keys() >= set(names):
            break
        engine.step({})
    return [owners[name] for name in names]


def loading(engine: Engine, name: str = "w", tokens: int = 9) -> JobId:
    """A request loads two blocks of a prompt that the host tier has; gives the job."""
    if not engine.host_keys():
        engine.prepare("source", tokens)
    engine.add(name, tokens)
    (load,) = engine.step({}, admit=[name]).plan.loads
    if engine.plans:
        engine.step({})
    assert engine.state(name) is Request.LOADING
    return load.job


# --- memory -----------------------------------------------------------------------------------------------------------------


@BOTH
@AHEAD
def test_a01_block_is_not_handed_out_before_its_ack(contract: Contract, ahead: int) -> None:
    """Store of a block is out, its owner finishes, others take all there is: never before the ack, or only with the flush."""
    engine = Engine(blocks=4, contract=contract, ahead=ahead)
    (job,) = storing(engine, "a")
    source = set(engine.transfers[job].source.tolist())
    engine.add("b", OTHER[:9])
    engine.add("c", OTHER[20:23])
    engine.step({})
    engine.finish("a")
    step = engine.step({}, admit=["b"] if contract is Contract.FENCE else ["b", "c"])

    if contract is Contract.FENCE:
        assert source < set(engine.blocks("b"))
        assert step.plan.flushes == (job,)
    else:
        assert step.refused == ("b",)
        assert step.plan.flushes == ()
        assert engine.ledger.blocks.free == 0
        engine.abort("c")
        engine.land()
        engine.step({})
        engine.step({}, admit=["b"])
        assert source < set(engine.blocks("b"))


@BOTH
@AHEAD
def test_a02_preemption_flushes_exactly_its_jobs_before_the_block_is_written(contract: Contract, ahead: int) -> None:
    """Of two stores the plan waits for that of the preempted request, and who gets its block in this step writes after it."""
    engine = Engine(blocks=7, contract=contract, ahead=ahead)
    (mine,), _ = storing(engine, "a"), storing(engine, "b", first=600)
    engine.add("c", OTHER[:4])
    step = engine.step({}, preempt=["a"], admit=["c"])

    assert step.plan.flushes == (mine,)
    assert step.refused == ()


@BOTH
@AHEAD
def test_a03_abort_of_a_loading_request_keeps_its_targets(contract: Contract, ahead: int) -> None:
    """The abort is reported at once; the blocks that the load writes are nobody's until the ack."""
    engine = Engine(blocks=4, contract=contract, ahead=ahead)
    job = loading(engine)
    targets = engine.transfers[job].target.tolist()
    engine.add("b", OTHER[:9])
    engine.abort("w")
    known = "w" in engine.ledger.requests
    step = engine.step({}, admit=["b"])
    between = {engine.ledger.blocks.state(block) for block in targets}
    engine.land()
    engine.step({})
    engine.step({}, admit=["b"])

    assert not known
    assert step.refused == ("b",)
    assert between == {Block.STALE}
    assert engine.state("b") is Request.RUNNING


@BOTH
@AHEAD
def test_a04_lost_load_stays_in_quarantine_until_a_proof(contract: Contract, ahead: int) -> None:
    """The deadline fails the job for its request, and frees nothing; a proof of quiet does."""
    engine = Engine(blocks=4, contract=contract, ahead=ahead, deadline=3.0)
    job = loading(engine)
    failed = [name for _ in range(5) for settled in engine.step({}).settled for name in settled.failed]
    targets = {engine.ledger.blocks.state(block) for block in engine.transfers[job].target.tolist()}
    refused = engine.step({}, admit=["w"]).refused
    engine.prove(job)
    engine.step({}, admit=["w"])

    assert failed == ["w"]
    assert targets == {Block.QUARANTINED}
    assert refused == ("w",)
    assert engine.state("w") is not Request.WAITING


@BOTH
def test_a05_block_of_the_next_step_is_not_free_before_it_settles(contract: Contract) -> None:
    """Step N+1 is out when its owner finishes on the output of step N: nothing of it is handed out until N+1 settles."""
    engine = Engine(blocks=3, contract=contract, ahead=1, policies=Policies(prompt_only=True))
    engine.add("a", 5)
    engine.step(admit=["a"])
    engine.step({"a": 1})
    engine.finish("a")
    held = engine.ledger.blocks.free
    engine.add("b", OTHER[:5])
    during = engine.step({}, admit=["b"])
    after = engine.ledger.blocks.free + engine.ledger.statistics().freeing_soon

    assert held == 0
    assert during.refused == ("b",)
    assert during.settled[0].ended == ("a",)
    assert after == 2


@BOTH
@AHEAD
def test_a13_reset_leaves_requests_schedulable_and_memory_held(contract: Contract, ahead: int) -> None:
    """Copies of a live request are out when all content is forgotten: old acks change nothing, and bring the memory back."""
    engine = Engine(contract=contract, ahead=ahead)
    load = loading(engine)
    (store,) = storing(engine, "a")
    preempted = engine.scheduler.reset()
    engine.running.clear()
    held = {engine.ledger.blocks.state(each) for job in (load, store) for each in engine.device.copies[job].blocks}
    step = engine.step({}, admit=["a", "w"])
    engine.land()
    engine.step({})
    engine.step({})

    assert sorted(preempted) == ["a", "w"]
    assert held == {Block.STALE}
    assert [step.hits[name].tokens for name in ("a", "w")] == [0, 0]
    assert [engine.state(name) for name in ("a", "w")] == [Request.RUNNING] * 2
    assert [engine.ledger.jobs.state(job) for job in (load, store)] == [Job.CANCELLED] * 2


@BOTH
@AHEAD
def test_a14_completion_for_whom_nobody_knows_is_counted(contract: Contract, ahead: int) -> None:
    """A job of another incarnation, one whose owner is gone, and one that is over: no exception."""
    engine = Engine(contract=contract, ahead=ahead)
    (job,) = storing(engine, "a")
    engine.add("b", 3)
    engine.step({"a": 1})
    engine.finish("a")
    engine.land()
    again = engine.reports[-1]
    engine.reports += [Completion(JobId(7, 1), Worker(0), Result.OK), again]
    engine.step({})
    engine.step({})

    assert engine.ledger.jobs.state(job) is Job.DONE
    assert (engine.ledger.statistics().unknown, engine.ledger.statistics().duplicate) == (1, 1)


@BOTH
@AHEAD
def test_a21_chunk_with_readers_is_not_forgotten(contract: Contract, ahead: int) -> None:
    """Several lookups and then a load count on the only slots: a store finds no room until the last of them lets go."""
    engine = Engine(slots=2, contract=contract, ahead=ahead)
    engine.prepare("source", 9)
    for name in "xyz":
        engine.add(name, 9)
        engine.scheduler.lookup(name, 9)
    pins = [engine.ledger.slots.pins(each) for each in range(2)]
    with pytest.raises(MisuseError, match="cannot EVICT"):
        engine.ledger.evict([0])
    engine.step({}, admit=["x"])
    for name in "yz":
        engine.abort(name)
    engine.add("a", OTHER[:9])
    engine.step({}, admit=["a"])
    engine.step({})
    refused = engine.scheduler.statistics().refused_stores
    engine.land()
    engine.step({})
    engine.step({})

    assert pins == [3, 3]
    assert refused > 0
    assert engine.has("source", 0, range(2)) == set()


@BOTH
@AHEAD
def test_a23_load_given_up_before_launch_leaves_everything_as_before(contract: Contract, ahead: int) -> None:
    """Admitted with a load, preempted in the same step: no copy, no pin, no block."""
    engine = Engine(contract=contract, ahead=ahead)
    engine.prepare("source", 9)
    engine.add("w", 9)
    before = engine.ledger.blocks.free, engine.ledger.statistics().slots
    hit = engine.scheduler.lookup("w", 9)
    assert engine.scheduler.admit("w", hit, 0) is False
    engine.scheduler.preempt("w")
    step = engine.step({})

    assert (engine.ledger.blocks.free, engine.ledger.statistics().slots) == before
    assert step.plan.empty
    assert not any(engine.ledger.slots.pins(each) for each in range(len(engine.ledger.slots)))
    assert engine.scheduler.lookup("w", 9).tokens == 8


@BOTH
@AHEAD
def test_a25_owner_is_removed_while_the_worker_has_its_ops(contract: Contract, ahead: int) -> None:
    """A loading and a storing request are aborted: the load ends cancelled, the store still counts, all blocks return."""
    engine = Engine(contract=contract, ahead=ahead)
    load = loading(engine)
    (store,) = storing(engine, "a")
    engine.step({"a": 1})
    for name in ("w", "a"):
        engine.abort(name)
    engine.drain()

    assert [engine.ledger.jobs.state(job) for job in (load, store)] == [Job.CANCELLED, Job.DONE]
    assert engine.left_behind() == []
    assert engine.ledger.blocks.free == 15


@BOTH
@AHEAD
def test_a28_second_ack_after_the_deadline_changes_no_verdict(contract: Contract, ahead: int) -> None:
    """One of two workers acks a store in time, the other late: it has failed, nothing is readable, its places come back."""
    engine = Engine(workers=2, deadline=4.0, contract=contract, ahead=ahead)
    (job,) = storing(engine, "a")
    engine.land(job, worker=0)
    for _ in range(6):
        engine.step({})
    between = engine.ledger.jobs.state(job), engine.ledger.slots.state(int(engine.transfers[job].target[0]))
    engine.land(job, worker=1)
    engine.step({})
    engine.step({})

    assert between == (Job.QUARANTINED, Slot.QUARANTINED)
    assert engine.ledger.jobs.state(job) is Job.FAILED
    assert engine.host_keys() == set()
    assert {engine.ledger.slots.state(int(slot)) for slot in engine.transfers[job].target} == {Slot.EMPTY}
    assert engine.ledger.statistics().late == 1


# --- failures ---------------------------------------------------------------------------------------------------------------


@BOTH
@AHEAD
def test_a30_failed_copy_is_never_readable(contract: Contract, ahead: int) -> None:
    """A failed store publishes nothing; a failed load tells its request to compute, and its targets are no hit."""
    engine = Engine(contract=contract, ahead=ahead)
    load = loading(engine)
    (store,) = storing(engine, "a")
    engine.land(load, store, ok=False)
    settled = [each for _ in range(2) for each in engine.step({}).settled]

    assert [name for each in settled for name in each.failed] == ["w"]
    assert engine.state("w") is Request.WAITING
    assert engine.has("a", 0, range(2)) == set()
    assert engine.ledger.blocks.prefix(engine.keys_of("w")(0, 0, 2)) == []
    assert engine.blocks("w") == []


@BOTH
@AHEAD
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a32_failed_load_is_tried_again_at_most_so_often(contract: Contract, ahead: int, limit: int) -> None:
    """Content that is stored again and again fails again and again: after *limit* loads the request computes."""
    engine = Engine(contract=contract, ahead=ahead, policies=Policies(max_load_failures=limit))
    engine.prepare("source", 9)
    engine.add("w", 9)
    tried = 0
    for attempt in range(limit + 2):
        hit = engine.step({}, admit=["w"]).hits["w"]
        if not hit.host_tokens:
            break
        tried += 1
        engine.land(ok=False)
        engine.step({})
        engine.step({})
        assert engine.scheduler.lookup("w", 9).tokens == 0, "the same answer twice"
        engine.step({})
        engine.prepare(f"again {attempt}", 9)

    assert tried == limit
    assert engine.host_keys()
    assert engine.state("w") is Request.RUNNING


@BOTH
@AHEAD
@pytest.mark.parametrize("ok", [True, False], ids=["arrives", "fails"])
def test_a33_device_copy_goes_first_only_after_its_backup_has_arrived(contract: Contract, ahead: int, ok: bool) -> None:
    """Lazy: blocks are stored when they are about to go. Those whose store has failed are not handed out before others."""
    engine = Engine(blocks=8, contract=contract, ahead=ahead, policies=Policies(mode=Mode.LAZY, lazy_blocks=7))
    engine.add("stay", OTHER[:3])
    for name, first in (("a", 300), ("b", 400)):
        engine.add(name, range(first, first + 9))
    engine.step(admit=["stay", "a"])
    engine.step({})
    engine.finish("a")
    mine = engine.seen["a", 0][:2]
    for _ in range(3):
        engine.step({})
    assert sorted(engine.device.copies[engine.out()[0]].blocks) == sorted(mine)
    engine.land(ok=ok)
    for _ in range(3):
        engine.step({})
    order = engine.ledger.blocks.next_free(7)

    assert engine.has("a", 0, range(2)) == ({0, 1} if ok else set())
    assert (set(order[:2]) == set(mine)) is ok
    assert engine.ledger.blocks.prefix(engine.keys_of("a")(0, 0, 2)) != []


# --- what may be stored -----------------------------------------------------------------------------------------------------


@BOTH
@AHEAD
def test_a35_last_sampled_token_is_not_storable(contract: Contract, ahead: int) -> None:
    """A request that ends with the token that would fill its second block: that block was never computed."""
    engine = Engine(contract=contract, ahead=ahead)
    engine.add("a", 7)
    engine.step(admit=["a"])
    while engine.scheduler.requests.progress("a").known < 8:
        engine.step({})
    engine.finish("a")
    engine.drain()

    assert engine.has("a", 0, range(3)) == {0}


@BOTH
def test_a35_placeholder_tokens_are_not_storable(contract: Contract) -> None:
    """Asynchronous: a block that is full with a token which nobody knows yet has no key, and none is asked for."""
    engine = Engine(contract=contract, ahead=1)
    engine.add("a", 7)
    tracked = engine.scheduler._state.requests["a"]
    keys, asked = tracked.keys, []

    def spy(group: int, start: int, stop: int) -> Sequence[bytes]:
        asked.append((4 * stop, engine.scheduler.requests.progress("a").known))
        return keys(group, start, stop)

    tracked.keys = spy
    engine.step(admit=["a"])
    steps = [engine.step({"a": 1}) for _ in range(8)]

    assert [(tokens, known) for tokens, known in asked if tokens > known] == []
    assert [engine.seen["a", 0].index(block) for step in steps for blocks in step.stored for block in blocks] == [0, 1, 2]


@BOTH
@AHEAD
def test_a35_speculative_tokens_are_not_storable(contract: Contract, ahead: int) -> None:
    """Five tokens beyond the known ones are drafts; one is right: what they filled is neither sealed nor stored."""
    engine = Engine(contract=contract, ahead=ahead)
    engine.add("a", 3)
    engine.step(admit=["a"])
    while engine.scheduler.requests.progress("a").computed < 3:
        engine.step({})
    steps = [engine.step({"a": 6}, sampled={"a": 1} if not ahead else None)]
    if ahead:
        steps.append(engine.step({}, sampled={"a": 1}))
    steps += [engine.step({}) for _ in range(2)]
    after = engine.scheduler.requests.progress("a")
    stored = [block for step in steps for blocks in step.stored for block in blocks]

    assert (after.known, after.computed) == (5, 4)
    assert stored == engine.blocks("a")[:1]


@BOTH
@AHEAD
@pytest.mark.parametrize("when", ["new", "looked up", "deferred"])
def test_a36_abort_of_a_request_that_never_ran(contract: Contract, ahead: int, when: str) -> None:
    """No job, no assert, no pin left; whether it was looked up or waits for somebody else's load."""
    engine = Engine(contract=contract, ahead=ahead)
    if when == "deferred":
        loading(engine, "v")
    elif when == "looked up":
        engine.prepare("source", 9)
    jobs = engine.ledger.jobs.last_number
    engine.add("w", 9)
    if when != "new":
        hit = engine.scheduler.lookup("w", 9)
        assert hit.deferred is (when == "deferred")
    engine.abort("w")
    engine.step({})

    assert engine.ledger.jobs.last_number == jobs
    assert not engine.ledger.slots.holders
    assert "w" not in engine.ledger.requests


# --- ranks ------------------------------------------------------------------------------------------------------------------


def test_a37_ranks_agree_on_what_all_of_them_can_keep() -> None:
    """Of blocks and slots the fewest that any rank has; every rank comes to the same answer."""
    ranks = [Limits(num_blocks=blocks, num_slots=slots, num_workers=3) for blocks, slots in ((9, 4), (7, 5), (8, 3))]
    agreed = Limits.agree(ranks)

    assert (agreed.num_blocks, agreed.num_slots) == (7, 3)
    assert agreed == Limits(num_blocks=7, num_slots=3, num_workers=3)
    assert Limits.agree([agreed] * 3) == agreed


@pytest.mark.parametrize("name", ["max_jobs", "max_requests", "num_groups", "max_plans", "max_journal"])
def test_a37_ranks_that_do_not_describe_one_engine_are_refused(name: str) -> None:
    """The error names two ranks and what differs, and is the same whoever asks."""
    first = Limits(num_blocks=4, num_slots=4, num_workers=2)
    given = getattr(first, name)
    other = evolve(first, **{name: given + 1})

    with pytest.raises(MisuseError, match=rf"rank 0 has {name}={given} and rank 1 has {name}={given + 1}"):
        Limits.agree([first, other])


def test_a37_ranks_and_workers_are_as_many() -> None:
    """None at all, too few, too many, or different counts of workers: refused."""
    one = Limits(num_blocks=4, num_slots=4, num_workers=2)

    with pytest.raises(MisuseError, match="no rank to agree with"):
        Limits.agree([])
    with pytest.raises(MisuseError, match="num_workers=2 and 1 ranks do not fit"):
        Limits.agree([one])
    with pytest.raises(MisuseError, match="num_workers=2 and 3 ranks do not fit"):
        Limits.agree([one] * 3)
    with pytest.raises(MisuseError, match="rank 0 has num_workers=2 and rank 1 has num_workers=3"):
        Limits.agree([one, evolve(one, num_workers=3)])


@BOTH
@AHEAD
def test_a37_agreed_limits_lead_to_one_decision(contract: Contract, ahead: int) -> None:
    """Two schedulers with what was agreed plan the same; nothing refers to a place that one rank lacks."""
    agreed = Limits.agree([Limits(num_blocks=blocks, num_slots=6, num_workers=2) for blocks in (12, 9)])
    plans = []
    for _ in range(2):
        engine = Engine(blocks=agreed.num_blocks, slots=agreed.num_slots, workers=2, contract=contract, ahead=ahead)
        jobs = storing(engine, "a", "b")
        engine.land()
        engine.step()
        plans.append([(engine.transfers[job].source.tolist(), engine.transfers[job].target.tolist()) for job in jobs])

    assert plans[0] == plans[1]
    assert max(block for source, _ in plans[0] for block in source) < 9


# --- re-admission, reset, generations ---------------------------------------------------------------------------------------


@BOTH
@AHEAD
def test_a39_readmission_waits_while_the_old_store_is_out(contract: Contract, ahead: int) -> None:
    """Preempted with its store out, then a hit in the host tier: the load waits for the store; no assert."""
    engine = Engine(contract=contract, ahead=ahead)
    engine.prepare("source", 9)
    engine.add("a", 9)
    engine.step({}, admit=["a"])
    engine.land()
    while engine.state("a") is not Request.RUNNING:
        engine.step({})
    for _ in range(10):
        if engine.out():
            break
        engine.step()
    (job,) = engine.out()
    while engine.plans and engine.scheduler.requests.progress("a").in_flight:
        engine.step({})
    engine.silent.add(job)
    engine.scheduler.preempt("a")
    engine.running.clear()
    engine.ledger.drop(engine.ledger.blocks.prefix(engine.keys_of("a")(0, 0, 2)))
    engine.forget("source", 0, [1])  # so that what the old store brings is no part of the hit
    early = engine.scheduler.lookup("a", engine.scheduler.requests.progress("a").known)
    engine.step({})
    engine.step({})
    late = engine.step({}, admit=["a"])

    assert early.deferred
    assert early.host_tokens == 4
    assert not late.hits["a"].deferred
    assert len(late.plan.loads) == 1


@BOTH
@AHEAD
def test_a40_reset_says_not_yet_and_succeeds_after_the_drain(contract: Contract, ahead: int) -> None:
    """It says how many jobs are out, and changes nothing; when all have landed it forgets everything."""
    engine = Engine(contract=contract, ahead=ahead)
    load = loading(engine)
    storing(engine, "a")
    with pytest.raises(CapacityError, match="2 jobs are still out"):
        engine.scheduler.reset(drain=True)
    assert engine.state("w") is Request.LOADING
    engine.land(load)
    engine.step({})
    engine.step({})
    with pytest.raises(CapacityError, match="1 job is still out"):
        engine.scheduler.reset(drain=True)
    engine.land()
    engine.step({})
    engine.step({})

    assert sorted(engine.scheduler.reset(drain=True)) == ["a", "w"]
    assert engine.host_keys() == set()
    assert engine.ledger.blocks.free == 15


@BOTH
@AHEAD
def test_a45_many_who_want_one_chunk_share_its_load(contract: Contract, ahead: int) -> None:
    """One request loads; the others wait for that copy, and are let in together when it has landed."""
    engine = Engine(contract=contract, ahead=ahead)
    job = loading(engine)
    for name in "xyz":
        engine.add(name, 9)
    waiting = engine.step({}, admit=["x", "y", "z"])
    copies = engine.out()
    engine.land(job)
    while engine.state("w") is not Request.RUNNING:
        engine.step({})
    together = engine.step({}, admit=["x", "y", "z"])

    assert [waiting.hits[name].deferred for name in "xyz"] == [True] * 3
    assert copies == [job]
    assert [together.hits[name].device_tokens for name in "xyz"] == [8] * 3
    assert {tuple(engine.blocks(name)[:2]) for name in "wxyz"} == {tuple(engine.blocks("w")[:2])}
    assert together.plan.loads == ()


@BOTH
@AHEAD
def test_a48_another_generation_never_hits_old_content(contract: Contract, ahead: int) -> None:
    """New weights: what is on the device, in the tier, and on its way is gone, also when a copy of before lands."""
    engine = Engine(contract=contract, ahead=ahead)
    engine.prepare("source", 9)
    (job,) = storing(engine, "a")
    engine.scheduler.reset(generation="other weights")
    engine.running.clear()
    engine.land(job)
    engine.step({})
    engine.step({})
    engine.add("x", 9)
    step = engine.step({}, admit=["a", "x"])

    assert [step.hits[name].tokens for name in ("a", "x")] == [0, 0]
    assert engine.host_keys() == set()
    with pytest.raises(MisuseError, match="it is the present one"):
        engine.scheduler.reset(generation="other weights")


@AHEAD
def test_a54_wait_that_a_worker_has_not_confirmed_releases_nothing(ahead: int) -> None:
    """The flush is ordered; until every worker has executed that plan, the new tenant's block stays behind the wait."""
    engine = Engine(blocks=4, workers=2, contract=Contract.FENCE, ahead=ahead)
    (job,) = storing(engine, "a")
    engine.silent.add(job)
    engine.step({})
    engine.finish("a")
    engine.add("b", OTHER[:12])
    hit = engine.scheduler.lookup("b", 12)
    engine.scheduler.admit("b", hit, 12)
    plan = engine.scheduler.build_plan(engine.now)
    between = {engine.ledger.blocks.state(block) for block in engine.transfers[job].source.tolist()}
    for older in [number for number in engine.scheduler._state.plans if number < plan.number]:
        engine.scheduler.settle(older, engine.now)
    unsettled = {engine.ledger.blocks.state(block) for block in engine.transfers[job].source.tolist()}
    engine.scheduler.settle(plan.number, engine.now)

    assert plan.flushes == (job,)
    assert between == unsettled == {Block.FLUSHED}
    assert engine.ledger.jobs.state(job) is Job.FAILED
    assert {engine.ledger.blocks.state(block) for block in engine.transfers[job].source.tolist()} <= {
        Block.SEALED,
        Block.PENDING_STORE,
    }


@BOTH
@AHEAD
def test_a55_counted_hit_survives_until_it_is_loaded_or_let_go(contract: Contract, ahead: int) -> None:
    """Stores press for slots between lookup and load: what was counted stays; unused, it lasts until the plan of its step."""
    engine = Engine(slots=2, contract=contract, ahead=ahead)
    engine.prepare("source", 9)
    engine.add("a", OTHER[:9])
    engine.add("x", 9)
    hit = engine.scheduler.lookup("x", 9)
    pressed = engine.tier.reserve([(0, b"p"), (0, b"q")])
    engine.scheduler.admit("x", hit, 1)
    loads = engine.step({}, admit=["a"]).plan.loads
    for _ in range(3):
        engine.step({})
    kept = engine.has("source", 0, range(2))
    engine.land()
    engine.step({})
    engine.step({})

    assert pressed is None
    assert loads[0].source.tolist() == list(hit.slots[0])
    assert kept == {0, 1}
    assert engine.state("x") is Request.RUNNING
    unused(contract, ahead)


def unused(contract: Contract, ahead: int) -> None:
    engine = Engine(slots=2, contract=contract, ahead=ahead)
    engine.prepare("source", 9)
    engine.add("x", 9)
    engine.scheduler.lookup("x", 9)
    engine.step({})

    assert engine.tier.reserve([(0, b"p"), (0, b"q")]) is not None


# --- everything at once -----------------------------------------------------------------------------------------------------


@BOTH
@AHEAD
@pytest.mark.parametrize("groups", ["full:4", "swa:4:8", "full:4,swa:4:8,mamba:4", "swa:2:5,full:4"])
@pytest.mark.parametrize("seed", range(4))
def test_a50_random_actions_leave_every_rule_intact(contract: Contract, ahead: int, groups: str, seed: int) -> None:
    """Requests come, grow, are preempted and end; copies land in any order, fail, get lost, report twice; resets occur."""
    chance = random.Random(f"{seed} {groups} {ahead} {contract}")
    engine = Engine(
        groups,
        blocks=30,
        slots=12,
        chunk=chance.choice([1, 2]),
        workers=2,
        contract=contract,
        ahead=ahead,
        deadline=12.0,
        policies=Policies(partial_chunks=chance.random() < 0.5, mode=chance.choice(list(Mode))),
    )
    waiting: list[str] = []
    for number in range(80):
        if len(engine.ledger.requests) < 5 and chance.random() < 0.4:
            waiting.append(f"r{number}")
            engine.add(waiting[-1], chance.randrange(1, 24))
        waiting += act(engine, chance)
        gone = [name for name in engine.running if chance.random() < 0.08]
        for name in gone:
            chance.choice([engine.finish, engine.abort])(name)
        step = engine.step(None if chance.random() < 0.8 else {}, admit=dict.fromkeys(waiting[:2], 1))
        waiting = [name for name in waiting if engine.state(name) in ADMISSIBLE]
        waiting += [name for settled in step.settled for name in settled.failed if name not in waiting]
        if step.short:
            engine.step({}, preempt=step.short[-1:])
            waiting.append(step.short[-1])
    finish_all(engine)

    assert engine.left_behind() == []


def act(engine: Engine, chance: random.Random) -> list[str]:
    """Copies land, fail, get lost, report again; now and then everything is forgotten. Gives who was preempted."""
    for job in engine.out():
        roll = chance.random()
        if roll < 0.3:
            engine.land(job, ok=chance.random() < 0.85)
            if chance.random() < 0.2 and engine.reports:
                engine.reports.append(engine.reports[-1])
        elif roll < 0.34:
            engine.silent.add(job)
    chance.shuffle(engine.reports)
    if chance.random() < 0.03:
        engine.running.clear()
        return engine.scheduler.reset()
    lost = [job for job in engine.silent if engine.ledger.jobs.is_out(job.number)]
    if lost and chance.random() < 0.1:
        engine.prove(*lost)
    return []


def finish_all(engine: Engine) -> None:
    """Everybody ends; what was lost is proven quiet; ticking comes to an end."""
    for name in list(engine.ledger.requests):
        state = engine.scheduler._state
        if not state.stays.is_ending(state.requests[name].row):
            engine.abort(name)
    engine.step({})
    while engine.plans:
        engine.settle()
    engine.prove(*[job for job in engine.silent if engine.ledger.jobs.is_out(job.number)])
    engine.drain()


# --- all cases --------------------------------------------------------------------------------------------------------------


def test_every_case_is_shown_or_has_a_reason() -> None:
    """Each case is a test somewhere, or stands among those that cannot apply, and no name stands for a case that is not one."""
    tests = {path.name: path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")}
    shown = Counter(f"A{number}" for text in tests.values() for number in re.findall(r"^def test_a(\d\d)_", text, re.MULTILINE))

    assert len(CASES) == len(set(CASES)) == 37
    assert set(CASES) - set(shown) - set(NOT_APPLICABLE) == set()
    assert (set(shown) | set(NOT_APPLICABLE)) - set(CASES) == set()
    assert set(shown) & set(NOT_APPLICABLE) == set()


def test_launch_records_name_every_worker() -> None:
    """The scripted engine says that each worker launched what its plan carried: deadlines start, and a lost copy ends."""
    engine = Engine(workers=2, deadline=2.0)
    (job,) = storing(engine, "a")
    engine.ledger.launched(Launched(job, Worker(1)), engine.now)
    for _ in range(3):
        engine.step({})

    assert engine.ledger.jobs.state(job) is Job.QUARANTINED
