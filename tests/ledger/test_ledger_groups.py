"""Jobs of several groups, twins in the lower tier, nulls in tables, workers that are lost, and who hears of what can be read.

Method: the real ledger with a handful of blocks in two or three groups; each story is told verb by verb. After every step all
invariants are counted again, and what can be read is exactly what the index names (`sound`).
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest

from blocklife.core import _couplings as couplings
from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger import (
    Batch,
    Contract,
    Direction,
    JobId,
    Jobs,
    Launched,
    Ledger,
    Plan,
    Result,
    Seal,
    Transfer,
    Worker,
)
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.ledger.invariants import check
from blocklife.ledger.jobs import GroupTransfer, JobColumns, Store
from blocklife.states import Block, Job, Request, Slot
from tests.worlds import (
    BOTH,
    behind_fence,
    in_flight,
    keys,
    make_ledger,
    ready,
    refuses,
    report,
    sealed,
    store,
)

SUB = 2
"""Host places of a slot; sub-block j of slot s has place s * SUB + j."""
MANY = 80
"""More places than the columns that grow have room for at first."""


def sound(ledger: Ledger) -> None:
    """No rule is broken, jobs are filed under their owner and state, and every slot that can be read is found under its key."""
    assert check(ledger) == []
    assert planned(ledger) == [job.number for job in ledger.jobs.alive() if job.state is Job.PLANNED]
    filed: dict[str, list[int]] = {}
    for job in ledger.jobs.alive():
        for name in {job.owner, *job.sharers} - {None}:
            filed.setdefault(str(name), []).append(job.number)
    assert owners(ledger) == filed
    for place in ledger.slots.where(Slot.READY):
        key = ledger.slots.key(place)
        assert key is not None
        assert ledger.slots.find(ledger.slots.group(place), key) == place


def planned(ledger: Ledger) -> list[int]:
    """The numbers of the jobs that are filed as planned."""
    jobs = ledger._state.core.jobs
    return [jobs.number[row] for row in jobs.planned]


def owners(ledger: Ledger) -> dict[str, list[int]]:
    """The numbers of the jobs that are out, by the requests that they are for."""
    names = ledger._state.core.requests.by_name
    return {name: [job.number for job in ledger.jobs.serving(name)] for name in names if ledger.jobs.serve(name)}


def filed_slots(ledger: Ledger, group: int) -> dict[bytes, int]:
    """The slots that are found under a key of a group."""
    return {key: slot for of, key, slot in ledger.slots.named() if of == group}


def slot_states(ledger: Ledger, count: int = 3) -> list[str]:
    """The states of the first slots."""
    return [ledger.slots.state(place).name for place in range(count)]


# --- stores and loads of several groups ---------------------------------------------------------------------------------


def open_transfers(ledger: Ledger) -> list[GroupTransfer[Any]]:
    """Of group 0 a chunk of two blocks and one whose first block is a hole; of group 2 one chunk. Group 1 moves nothing."""
    first, third = ledger.allocate("a", 3, 0), ledger.allocate("a", 2, 2)
    ledger.seal(first, keys("f0", "f1", "f3"))
    ledger.seal(third, keys("t0", "t1"))
    return [
        GroupTransfer(first, [0, 1], keys("f1", "f3"), places=[0, 1, 3]),
        GroupTransfer(third, [2], keys("t1"), places=[4, 5]),
    ]


def stored(ledger: Ledger) -> Plan:
    """The store of `open_transfers`, submitted and landed; the request has let go of everything."""
    jobs = ledger.plan_store(Store("a", open_transfers(ledger)))
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=map(report, jobs.ids))
    ledger.preempt("a")
    return plan


def group_ledger(**named: Any) -> Ledger:
    """Three groups, one running request."""
    return make_ledger(num_blocks=12, num_slots=4, groups=3, **named)


def load_transfers(ledger: Ledger, request: str) -> list[GroupTransfer[Any]]:
    """What brings the content of `stored` back: both blocks of the first chunk, and the last one of each other chunk."""
    first, third = ledger.allocate(request, 3, 0), ledger.allocate(request, 1, 2)
    return [
        GroupTransfer(first, [0, 1], keys("f1", "f3"), places=[0, 1, 3], names=keys("f0", "f1", "f3")),
        GroupTransfer(third, [2], keys("t1"), places=[5], names=keys("t1")),
    ]


def test_store_counts_exactly_what_was_put_into_it() -> None:
    """Holes inside a chunk are left out of the group sizes, a group with nothing counts none, and the places are in order."""
    ledger = group_ledger()
    (transfer,) = stored(ledger).stores

    assert transfer.direction is Direction.STORE
    assert transfer.group_sizes == (3, 0, 2)
    assert transfer.source.tolist() == [1, 2, 3, 4, 5]
    assert transfer.target.tolist() == [0, 1, 3, 4, 5]
    assert [filed_slots(ledger, group) for group in range(3)] == [{b"f1": 0, b"f3": 1}, {}, {b"t1": 2}]
    assert [ledger.slots.group(slot) for slot in range(3)] == [0, 0, 2]
    assert ledger.counts.moved == {"STORE": 5}
    sound(ledger)


def test_load_gives_every_block_of_every_group_its_key() -> None:
    """One job fills two groups; a slot of several blocks names none of them, the transfer does."""
    ledger = group_ledger()
    stored(ledger)
    ledger.reset(host=False)
    ledger.add_request("w")
    transfers = load_transfers(ledger, "w")
    jobs = ledger.plan_load("w", *transfers)
    waiting = ledger.requests.state("w")
    plan = ledger.dispatch(0.0)
    (transfer,) = plan.loads
    before = [ledger.blocks.prefix(keys("f0"), 0), ledger.blocks.prefix(keys("t1"), 2)]
    sound(ledger)
    ledger.settle(plan.number, 0.0, completions=map(report, jobs.ids))
    first, third = ([int(life) for life in transfer.blocks.lives] for transfer in transfers)

    assert (waiting, ledger.requests.state("w")) == (Request.LOADING, Request.RUNNING)
    assert transfer.group_sizes == (3, 0, 1)
    assert transfer.source.tolist() == [0, 1, 3, 5]
    assert transfer.target.tolist() == [life & ID_MASK for life in (*first, *third)]
    assert before == [[], []]
    assert ledger.blocks.prefix(keys("f0", "f1", "f3"), 0) == first
    assert ledger.blocks.prefix(keys("t1"), 2) == third
    assert ledger.blocks.prefix(keys("t1"), 0) == []
    assert [ledger.slots.pins(slot) for slot in range(4)] == [0, 0, 0, 0]
    assert ledger.counts.moved["LOAD"] == 4
    sound(ledger)


def test_failed_load_drops_its_keys_in_every_group() -> None:
    """The same hit does not come back from any of them; what it did not read stays."""
    ledger = group_ledger()
    stored(ledger)
    ready(ledger, "other", 3)
    ledger.add_request("w")
    jobs = ledger.plan_load("w", *load_transfers(ledger, "w"))
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=[report(jobs.ids[0], Result.FAILED)])

    assert ledger.requests.state("w") is Request.WAITING
    assert [filed_slots(ledger, group) for group in range(3)] == [{b"other": 3}, {}, {}]
    assert slot_states(ledger) == ["EMPTY"] * 3
    assert [ledger.requests.table("w", group) for group in range(3)] == [[], [], []]
    sound(ledger)


def test_load_that_is_given_up_keeps_its_keys() -> None:
    """Nobody waits for it any more; its places wait for it to land, in every group, and the content stays."""
    ledger = group_ledger()
    stored(ledger)
    ledger.add_request("w")
    transfers = load_transfers(ledger, "w")
    jobs = ledger.plan_load("w", *transfers)
    ledger.settle(ledger.dispatch(0.0).number, 0.0)
    ledger.finish("w")
    places = [int(life) & ID_MASK for transfer in transfers for life in transfer.blocks.lives]
    busy = [ledger.blocks.state(place) for place in places]
    sound(ledger)
    ledger.complete(report(jobs.ids[0]))

    assert busy == [Block.STALE] * 4
    assert [ledger.blocks.state(place) for place in places] == [Block.FREED] * 4
    assert slot_states(ledger) == ["READY"] * 3
    sound(ledger)


def test_store_lands_in_every_group_or_in_none() -> None:
    """One worker failed: no slot of any group can be read."""
    ledger = group_ledger(workers=2)
    jobs = ledger.plan_store(Store("a", open_transfers(ledger)))
    plan = ledger.dispatch(0.0)
    reports = [report(jobs.ids[0]), report(jobs.ids[0], Result.FAILED, worker=1)]
    ledger.settle(plan.number, 0.0, completions=reports)

    assert slot_states(ledger) == ["EMPTY"] * 3
    assert [ledger.slots.prefix([key], group) for group, key in ((0, b"f1"), (2, b"t1"))] == [[], []]
    sound(ledger)


def test_same_key_names_other_content_in_another_group() -> None:
    """Two groups may store one key in one job, and neither is a twin of the other."""
    ledger = group_ledger()
    transfers = [
        GroupTransfer[Any](ledger.seal(ledger.allocate("a", 1, group), keys("k")), [group], keys("k")) for group in range(3)
    ]
    jobs = ledger.plan_store(Store("a", transfers))
    ledger.settle(ledger.dispatch(0.0).number, 0.0, completions=map(report, jobs.ids))

    assert [ledger.slots.prefix(keys("k"), group) for group in range(3)] == [[0], [1], [2]]
    sound(ledger)


def test_pledge_of_one_group_holds_the_whole_job_back() -> None:
    """A job goes out when the content of all its groups is final."""
    ledger = group_ledger()
    done, late = ledger.seal(ledger.allocate("a", 1, 0), keys("d")), ledger.allocate("a", 1, 1)
    ledger.plan_store(Store("a", [GroupTransfer(done, [0], keys("d")), GroupTransfer(late, [1], keys("l"))]))
    first = ledger.dispatch(0.0)
    with refuses(ledger, MisuseError, r"block 2: cannot SEAL it as 78, its store 1.1 will publish 6c"):
        ledger.seal(Batch(late.lives, 1), keys("x"))
    ledger.settle(first.number, 0.0, seals=[Seal(1, late.lives, keys("l"))])
    second = ledger.dispatch(0.0)

    assert first.stores == ()
    assert [transfer.group_sizes for transfer in second.stores] == [(1, 1, 0)]
    sound(ledger)


@pytest.mark.parametrize("count", [3, 2 * MANY], ids=["few", "many"])
def test_group_job_of_many_is_one_of_few(count: int) -> None:
    """However many blocks a job has, each gets its own key, slot and place."""
    ledger = make_ledger(num_blocks=4 * count + 1, num_slots=2 * count, groups=2)
    names = [keys(*(f"{group}.{number}" for number in range(count))) for group in range(2)]
    sources = [ledger.seal(ledger.allocate("a", count, group), names[group]) for group in range(2)]
    slots = [list(range(group * count, (group + 1) * count)) for group in range(2)]
    jobs = ledger.plan_store(Store("a", [GroupTransfer(sources[group], slots[group], names[group]) for group in range(2)]))
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=map(report, jobs.ids))
    ledger.add_request("w")
    targets = [ledger.allocate("w", count, group) for group in range(2)]
    ledger.finish("a")
    ledger.drop([life for group in range(2) for life in ledger.blocks.prefix(names[group], group)])
    load = ledger.plan_load("w", *[GroupTransfer(targets[group], slots[group], names[group]) for group in range(2)])
    ledger.settle(ledger.dispatch(0.0).number, 0.0, completions=map(report, load.ids))

    assert plan.stores[0].group_sizes == (count, count)
    for group in range(2):
        assert ledger.slots.prefix(names[group], group) == slots[group]
        assert ledger.blocks.prefix(names[group], group) == [int(life) for life in targets[group].lives]
    sound(ledger)


# --- what no job can be -------------------------------------------------------------------------------------------------


def bad_transfers(ledger: Ledger) -> dict[str, tuple[list[GroupTransfer[Any]], str]]:
    """Jobs that do not add up, with what is said about them."""
    zero, one = (ledger.seal(ledger.allocate("a", 2, group), keys("x", "y")) for group in range(2))
    good, other = GroupTransfer[Any](zero, [0, 1], keys("x", "y")), GroupTransfer[Any](one, [2, 3], keys("x", "y"))
    return {
        "none": ([], "a job with nothing to copy cannot be built"),
        "out of order": ([other, good], r"group 0: the groups of a job must ascend, and are 0 to 2"),
        "group twice": ([good, attrs.evolve(good)], r"group 0: the groups of a job must ascend"),
        "group beyond": (
            [good, GroupTransfer(Batch(one.lives, 3), [2, 3], keys("x", "y"))],
            "group 3: the groups of a job must ascend",
        ),
        "group below": (
            [GroupTransfer(Batch(one.lives, -1), [2, 3], keys("x", "y"))],
            "group -1: the groups of a job must ascend",
        ),
        "empty transfer": ([good, GroupTransfer(Batch([], 1), [], [])], "a job with nothing to copy cannot be built"),
        "no slot": ([GroupTransfer(zero, [], [], places=[0, 1])], "a job without a slot cannot be built"),
        "keys": ([good, GroupTransfer(one, [2, 3], keys("x"))], "2 slots and 1 keys do not agree"),
        "places": ([good, GroupTransfer(one, [2, 3], keys("x", "y"), places=[4])], "2 blocks and 1 host places do not agree"),
        "places left out": ([good, GroupTransfer(one, [2], keys("y"))], "2 blocks and 1 host places do not agree"),
        "names": (
            [good, GroupTransfer(one, [2, 3], keys("x", "y"), names=keys("y"))],
            "2 blocks and 1 of their keys do not agree",
        ),
        "place twice": (
            [good, GroupTransfer(one, [2, 3], keys("x", "y"), places=[1, 2])],
            "the host places of a job are distinct and not negative",
        ),
        "place below": ([GroupTransfer(zero, [0, 1], keys("x", "y"), places=[-1, 0])], "the host places of a job are distinct"),
        "slot twice": (
            [good, GroupTransfer(one, [1, 2], keys("x", "y"), places=[4, 5])],
            "slot 1: it is named twice in one call",
        ),
        "slot beyond": ([good, GroupTransfer(one, [2, 4], keys("x", "y"))], "slot 4: slots are 0 to 3"),
        "block twice": (
            [good, GroupTransfer(Batch(zero.lives, 1), [2, 3], keys("x", "y"))],
            "plan_store: a block is named twice in one call",
        ),
        "key twice": ([GroupTransfer(zero, [0, 1], keys("x", "x"))], "key 78: it is named twice in one job"),
        "other group": (
            [GroupTransfer(Batch(one.lives, 0), [0, 1], keys("x", "y"))],
            "block 3: it was handed out for group 1, not 0",
        ),
    }


@pytest.mark.parametrize("case", bad_transfers(make_ledger(num_blocks=12, groups=3)), ids=lambda case: case.replace(" ", "-"))
def test_store_that_cannot_be_is_refused(case: str) -> None:
    """Sizes are counted and never given, so that what does not add up is refused, and nothing has changed (I15)."""
    ledger = group_ledger()
    transfers, match = bad_transfers(ledger)[case]
    with refuses(ledger, MisuseError, match):
        ledger.plan_store(Store("a", transfers))


def test_transfer_of_other_sizes_cannot_be_built() -> None:
    """The record that reaches the workers counts once more (I15)."""
    places = np.arange(2)
    for sizes in ((1,), (3,), (2, 1), ()):
        with pytest.raises(MisuseError, match="do not agree"):
            Transfer(JobId(1, 1), Direction.STORE, places, places, sizes)


def test_load_that_cannot_be_is_refused() -> None:
    """Each part of a load has to fit: slots with the content that is named, blocks that the request holds, all of one job."""
    ledger = group_ledger()
    stored(ledger)
    ledger.add_request("w")
    ledger.add_request("v")
    first, third = load_transfers(ledger, "w")
    foreign = ledger.allocate("v", 1, 2)
    swapped = GroupTransfer[Any](third.blocks, [0], keys("f1"), places=[5], names=keys("t1"))
    cases: list[tuple[list[GroupTransfer[Any]], type[Exception], str]] = [
        ([third, first], MisuseError, "group 0: the groups of a job must ascend, and are 0 to 2"),
        ([first, attrs.evolve(third, keys=keys("t0"))], MisuseError, r"slot 2: it does not hold 7430 \(look it up again\)"),
        ([swapped], MisuseError, r"slot 0: it holds content of group 0, not 2 \(look it up again\)"),
        ([first, attrs.evolve(third, slots=[3])], RefusedError, "slot 3: cannot PIN while EMPTY"),
        ([attrs.evolve(first, names=None), third], MisuseError, "request w: 4 blocks to load and 3 keys do not agree"),
        ([first, attrs.evolve(third, blocks=foreign)], MisuseError, "request w does not hold it"),
        ([first, attrs.evolve(third, slots=[1])], MisuseError, "slot 1: it is named twice in one call"),
        ([first, attrs.evolve(third, places=[3])], MisuseError, "the host places of a job are distinct"),
        ([], MisuseError, "a job with nothing to copy cannot be built"),
    ]
    for transfers, error, match in cases:
        with refuses(ledger, error, match):
            ledger.plan_load("w", *transfers)
    with refuses(ledger, MisuseError, "request z: it is not known"):
        ledger.plan_load("z", first)
    ledger.admit("w")
    with refuses(ledger, RefusedError, "request w: cannot PLAN_LOAD while RUNNING"):
        ledger.plan_load("w", first, third)


@pytest.mark.parametrize("count", [1, MANY], ids=["few", "many"])
def test_hit_of_one_group_is_none_of_another(count: int) -> None:
    """A block holds content of the group that it was handed out for; no table of another group takes it."""
    ledger = make_ledger(num_blocks=2 * MANY, groups=2, requests=("a", "b"))
    mine = ledger.seal(ledger.allocate("a", count, 1), keys(*range(count)))
    with refuses(ledger, MisuseError, "block 1: it was handed out for group 1, not 0"):
        ledger.acquire("b", mine.lives, 0)
    ledger.acquire("b", mine.lives, 1)

    assert ledger.requests.table("b", 1) == [int(life) for life in mine.lives]
    sound(ledger)


def test_rule_of_sizes_is_counted_for_every_group() -> None:
    """I15 sees a block or a slot of a group that is none, and a store without blocks."""
    for blocks, slots, count, message in (
        (3, 2, 5, "job 1 has 5 blocks, 5 places, sizes (3, 0, 1)"),
        (2, 3, 5, "job 1 has 3 slots, 3 keys, sizes (2, 0, 0)"),
        (2, 2, 0, "job 1 has 0 blocks, 0 places, sizes (0, 0, 0)"),
    ):
        ledger = group_ledger()
        ledger.plan_store(Store("a", open_transfers(ledger)))
        jobs, row = ledger._state.core.jobs, ledger._state.core.jobs.by_number[1]
        jobs.group[jobs.begin[row] + 4], jobs.group[jobs.slot_begin[row] + 2] = blocks, slots
        jobs.num_blocks[row] = count

        assert [each.message for each in check(ledger, "I15")] == [message]


def test_columns_stay_their_caller_s() -> None:
    """What a job moves is what was handed in, whatever becomes of the caller's lists."""
    ledger = make_ledger()
    lives, slots, names = list(sealed(ledger, "a", keys("0", "1")).lives), [0, 1], keys("0", "1")
    given = list(lives)
    (number,) = ledger._rows.plan_columns(JobColumns.of_blocks(["a"], [()], [0, 2], lives, bytes(2), slots, names))
    lives[0], slots[0], names[0] = lives[1], slots[1], b"other"
    job = ledger.jobs.get(number)

    assert job is not None
    assert (job.lives, job.slots, job.keys) == (given, [0, 1], keys("0", "1"))
    assert check(ledger) == []


# --- twins: two stores of one content at once ---------------------------------------------------------------------------


def twins(ledger: Ledger, *, late: bool = False) -> list[JobId]:
    """Two submitted stores of key *k*: blocks 1 and 2, slots 0 and 1. With *late*, the second is planned in a later call."""
    transfers = [GroupTransfer[Any](sealed(ledger, "a", keys("k")), [slot], keys("k")) for slot in range(2)]
    if late:
        ids = [job for transfer in transfers for job in ledger.plan_store(Store("a", [transfer])).ids]
    else:
        ids = list(ledger.plan_store(*[Store("a", [transfer]) for transfer in transfers]).ids)
    assert slot_states(ledger) == ["WRITING", "WRITING", "EMPTY"]
    sound(ledger)
    ledger.settle(ledger.dispatch(0.0).number, 0.0)
    sound(ledger)
    return ids


FIRST = pytest.mark.parametrize("first", [0, 1], ids=["first", "second"])
"""Which of the twins lands first: the one that the index names, or the other."""


@FIRST
@pytest.mark.parametrize("late", [False, True], ids=["one call", "two calls"])
def test_twin_that_lands_second_is_dropped(first: int, late: bool) -> None:
    """Both stores are DONE, the content has one slot, and the other is empty again."""
    ledger = make_ledger()
    ids = twins(ledger, late=late)
    ledger.complete(report(ids[first]))
    readable = ledger.slots.prefix(keys("k"))
    sound(ledger)
    ledger.complete(report(ids[1 - first]))

    assert readable == ledger.slots.prefix(keys("k")) == [first]
    assert ledger.slots.state(1 - first) is Slot.EMPTY
    assert ledger.slots.key(1 - first) is None
    assert [ledger.jobs.state(job) for job in ids] == [Job.DONE, Job.DONE]
    assert ledger.slots.free == 3
    sound(ledger)


@FIRST
@pytest.mark.parametrize("count", [2, MANY + 2], ids=["few", "many"])
def test_twins_that_land_in_one_settle_publish_the_first_report(first: int, count: int) -> None:
    """The order of the reports decides, and other stores between them land as they are."""
    ledger = make_ledger(num_blocks=count + 3, num_slots=count + 2, max_jobs=count + 2)
    ids = twins(ledger)
    others = keys(*range(count - 2))
    source = sealed(ledger, "a", others) if others else None
    transfers = [
        GroupTransfer[Any](Batch([life]), [slot], [key])
        for slot, (life, key) in enumerate(zip(source.lives if source else [], others, strict=True), 2)
    ]
    more = list(ledger.plan_store(*[Store(None, [transfer]) for transfer in transfers]).ids)
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=map(report, [ids[first], *more, ids[1 - first]]))

    assert ledger.slots.prefix(keys("k")) == [first]
    assert ledger.slots.state(1 - first) is Slot.EMPTY
    assert ledger.slots.prefix(others) == list(range(2, count))
    assert ledger.counts.ended == {"DONE": count}
    sound(ledger)


@FIRST
@pytest.mark.parametrize("end", ["cancelled", "abandoned", "quiet", "lost", "reset"])
def test_twin_does_not_care_how_the_other_ends(first: int, end: str) -> None:
    """Given up before or after it was submitted, proven quiet, lost with its worker: the other is what its report says."""
    ledger = make_ledger(workers=2)
    if end == "cancelled":
        transfers = [GroupTransfer[Any](sealed(ledger, "a", keys("k")), [slot], keys("k")) for slot in range(2)]
        ids = list(ledger.plan_store(*[Store("a", [transfer]) for transfer in transfers]).ids)
        ledger.cancel(Jobs((ids[first],)))
        ledger.settle(ledger.dispatch(0.0).number, 0.0)
    else:
        ids = twins(ledger)
    other = ids[1 - first]
    sound(ledger)
    ledger.complete(report(other))
    if end == "abandoned":
        ledger.abandon(Jobs((ids[first],)))
    elif end == "quiet":
        ledger.quiesce(Jobs((ids[first],)))
    elif end == "lost":
        ledger.complete(report(ids[first], worker=1))
        ledger.complete(report(other, worker=1))
        ledger.lose(Worker(0))
    elif end == "reset":
        ledger.reset()
    sound(ledger)
    ledger.complete(report(other, worker=1))
    sound(ledger)

    assert ledger.slots.prefix(keys("k")) == ([] if end == "reset" else [1 - first])


@pytest.mark.parametrize("loser", ["failed", "evicted", "cancelled"])
def test_twins_that_lost_the_name_land_together(loser: str) -> None:
    """Of three the one that the index named is gone; the two that land in one settle have no name yet, and get one slot."""
    ledger = make_ledger(num_blocks=8)
    transfers = [GroupTransfer[Any](sealed(ledger, "a", keys("k")), [slot], keys("k")) for slot in range(3)]
    ids = ledger.plan_store(*[Store("a", [transfer]) for transfer in transfers]).ids
    if loser == "cancelled":
        ledger.cancel(Jobs(ids[:1]))
    ledger.settle(ledger.dispatch(0.0).number, 0.0)
    if loser != "cancelled":
        ledger.complete(report(ids[0], Result.FAILED if loser == "failed" else Result.OK))
    if loser == "evicted":
        ledger.evict([0])
    nameless = filed_slots(ledger, 0)
    sound(ledger)
    ledger.settle(ledger.dispatch(0.0).number, 0.0, completions=[report(ids[2]), report(ids[1])])

    assert nameless == {}
    assert slot_states(ledger) == ["EMPTY", "EMPTY", "READY"]
    assert ledger.slots.prefix(keys("k")) == [2]
    sound(ledger)


@pytest.mark.interpreted
def test_rule_of_one_slot_sees_twins_that_both_landed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody looked for a twin, I14 would say so."""
    ledger = make_ledger()
    ids = twins(ledger)
    monkeypatch.setattr(couplings, "are_doubles", lambda core, count: False)
    for job in ids:
        ledger.complete(report(job))

    assert [str(each) for each in check(ledger)] == ["I14: two slots hold the same content"]


# --- skip ---------------------------------------------------------------------------------------------------------------


def test_skip_puts_nulls_where_nothing_is_kept() -> None:
    """They stand for places in the order of the table, in their group only, and a release passes them over."""
    ledger = make_ledger(groups=2)
    ledger.skip("a", 2, 1)
    (first,) = ledger.allocate("a", 1, 1).lives
    ledger.skip("a", 1, 1)
    table = ledger.requests.table("a", 1)
    ledger.release("a", [0, 2], 1)

    assert table == [NULL, NULL, first, NULL]
    assert ledger.requests.table("a", 0) == []
    assert ledger.requests.table("a", 1) == [NULL] * 4
    assert ledger.blocks.free == 5
    sound(ledger)


# --- lose ---------------------------------------------------------------------------------------------------------------


def test_lost_worker_fails_what_it_owed() -> None:
    """Jobs that it had not reported fail as soon as the others are done; what it had reported stands; planned jobs stay."""
    ledger = make_ledger(workers=2, num_blocks=10, num_slots=5)
    _, reported = in_flight(ledger, "a", "p", 0)
    ledger.complete(report(reported, worker=1))
    _, awaited = in_flight(ledger, "a", "q", 1)
    _, missing = in_flight(ledger, "a", "r", 2)
    ledger.complete(report(missing))
    planned = store(ledger, sealed(ledger, "a", keys("s")), keys("s"), 3).ids[0]
    jobs = (reported, awaited, missing, planned)
    ledger.lose(Worker(1))
    after = [ledger.jobs.state(job) for job in jobs]
    sound(ledger)
    ledger.complete(report(reported))
    ledger.complete(report(awaited))

    assert after == [Job.IN_FLIGHT, Job.IN_FLIGHT, Job.FAILED, Job.PLANNED]
    assert [ledger.jobs.state(job) for job in jobs] == [Job.DONE, Job.FAILED, Job.FAILED, Job.PLANNED]
    assert slot_states(ledger, 4) == ["READY", "EMPTY", "EMPTY", "WRITING"]
    assert not any(ledger.counts.tally.values())
    sound(ledger)


def test_lost_worker_frees_the_place_of_a_hung_copy() -> None:
    """Its share of a job past the deadline, or of one that nobody wants, is quiet, too."""
    ledger = make_ledger(deadline=8.0)
    _, hung = in_flight(ledger, "a", "h", 0)
    ledger.launched(Launched(hung, Worker(0)), 0.0)
    _, unwanted = in_flight(ledger, "a", "u", 1)
    ledger.abandon(Jobs((unwanted,)))
    ledger.finish("a")
    ledger.expire(8.0)
    before = [ledger.jobs.state(job) for job in (hung, unwanted)]
    ledger.lose(Worker(0))

    assert before == [Job.QUARANTINED, Job.UNWANTED]
    assert [ledger.jobs.state(job) for job in (hung, unwanted)] == [Job.FAILED, Job.CANCELLED]
    assert not ledger.has_pending_work()
    assert slot_states(ledger, 2) == ["EMPTY", "EMPTY"]
    sound(ledger)


def test_lost_worker_reports_no_store_that_nobody_submitted() -> None:
    """A load fails, its request lets go, and with it goes a planned store: that one is cancelled, and nobody is late."""
    ledger = make_ledger()
    ready(ledger)
    ledger.add_request("w")
    target = ledger.allocate("w", 1)
    pledged = ledger.allocate("w", 1)
    ledger.plan_load("w", GroupTransfer(target, [0]))
    ledger.settle(ledger.dispatch(0.0).number, 0.0)
    planned = ledger.plan_store(Store.of(pledged, [1], keys("p"), owner="w")).ids[0]
    ledger.lose(Worker(0))

    assert ledger.jobs.state(planned) is Job.CANCELLED
    assert getattr(ledger.jobs.get(planned.number), "reported", None) == 0
    assert not any(ledger.counts.tally.values())
    sound(ledger)


# --- reset without the lower tier ---------------------------------------------------------------------------------------


@BOTH
def test_reset_without_the_host_keeps_what_is_below(contract: Contract) -> None:
    """The device forgets everything; slots stay READY, running stores land, planned ones are cancelled."""
    ledger = make_ledger(num_blocks=8, contract=contract)
    ready(ledger, "r", 0)
    _, job = in_flight(ledger, "a", "w", 1)
    planned = store(ledger, sealed(ledger, "a", keys("p")), keys("p"), 2).ids[0]
    ledger.reset(host=False)
    sound(ledger)
    found = [ledger.blocks.prefix([key]) for key in keys("r", "w", "p")]
    running = [ledger.jobs.state(each) for each in (job, planned)]
    ledger.complete(report(job))

    assert found == [[], [], []]
    assert running == [Job.IN_FLIGHT, Job.CANCELLED]
    assert ledger.requests.state("a") is Request.PREEMPTED
    assert [ledger.slots.prefix([key]) for key in keys("r", "w", "p")] == [[0], [1], []]
    assert ledger.blocks.free == 7
    sound(ledger)


@pytest.mark.parametrize("submitted", [False, True], ids=["planned", "submitted"])
def test_reset_without_the_host_gives_loads_up(submitted: bool) -> None:
    """Their slots stay, their places wait for a copy that runs."""
    ledger = group_ledger()
    stored(ledger)
    ledger.add_request("w")
    jobs = ledger.plan_load("w", *load_transfers(ledger, "w"))
    if submitted:
        ledger.settle(ledger.dispatch(0.0).number, 0.0)
    ledger.reset(host=False)
    sound(ledger)
    state, stale = ledger.jobs.state(jobs.ids[0]), ledger.statistics().blocks["STALE"]
    ledger.complete(report(jobs.ids[0])) if submitted else None

    assert (state, stale) == ((Job.UNWANTED, 4) if submitted else (Job.CANCELLED, 0))
    assert ledger.requests.state("w") is Request.PREEMPTED
    assert slot_states(ledger) == ["READY"] * 3
    assert ledger.blocks.free == 11
    sound(ledger)


def test_reset_behind_a_wait_leaves_the_store_to_land() -> None:
    """Somebody stood behind a fence: it lets go, and the copy that it waited for still publishes."""
    ledger = make_ledger(num_blocks=2)
    _, job = behind_fence(ledger)
    ledger.reset(host=False)
    sound(ledger)
    ledger.complete(report(job))

    assert ledger.slots.prefix(keys("old")) == [1]
    assert ledger.blocks.free == 1
    sound(ledger)


# --- who hears of what can be read --------------------------------------------------------------------------------------


def watched(ledger: Ledger) -> list[tuple[bool, int, int, bytes]]:
    """All that is heard of the slots from now on."""
    heard: list[tuple[bool, int, int, bytes]] = []

    ledger.slots.note(heard.extend)
    return heard


@pytest.mark.parametrize("end", ["failed", "cancelled", "abandoned", "expired", "quiet"])
def test_watcher_hears_nothing_of_a_store_that_brings_nothing(end: str) -> None:
    """What was never readable is not withdrawn either."""
    ledger = make_ledger(deadline=8.0)
    heard = watched(ledger)
    if end == "cancelled":
        ledger.cancel(store(ledger, sealed(ledger, "a", keys("k")), keys("k")))
    else:
        _, job = in_flight(ledger)
        ledger.launched(Launched(job, Worker(0)), 0.0)
        if end == "abandoned":
            ledger.abandon(Jobs((job,)))
        elif end == "expired":
            ledger.expire(8.0)
        elif end == "quiet":
            ledger.quiesce(Jobs((job,)))
        if end != "quiet":
            ledger.complete(report(job, Result.FAILED if end == "failed" else Result.OK))

    assert ledger.slots.state(0) is Slot.EMPTY
    assert heard == []


def test_watcher_hears_of_one_twin() -> None:
    """The one that can be read; what is dropped beside it was never there, landing alone or together."""
    for together in (False, True):
        ledger = make_ledger()
        heard = watched(ledger)
        ids = twins(ledger)
        if together:
            ledger.settle(ledger.dispatch(0.0).number, 0.0, completions=map(report, ids))
        else:
            for job in ids:
                ledger.complete(report(job))

        assert heard == [(True, 0, 0, b"k")]


@pytest.mark.parametrize("beside", ["nobody", "a listener", "a watcher"])
def test_listener_to_what_is_gone_hears_of_what_became_readable_only_if_somebody_else_does(beside: str) -> None:
    ledger = make_ledger()
    told: list[bool] = []
    if beside == "a watcher":
        ledger.slots.watch(lambda stored, _: told.append(stored))
    elif beside == "a listener":
        ledger.slots.note(lambda changes: told.extend(stored for stored, *_ in changes))
    heard: list[tuple[bool, int, int, bytes]] = []
    ledger.slots.note(heard.extend, stored=False)
    _, job = in_flight(ledger)
    ledger.complete(report(job))
    ledger.evict([0])

    gone = (False, 0, 0, b"k")
    assert heard == ([gone] if beside == "nobody" else [(True, 0, 0, b"k"), gone])
    assert told == ([] if beside == "nobody" else [True, False])
