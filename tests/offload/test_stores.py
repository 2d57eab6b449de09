"""What is stored, in which order, and what happens to a chunk whose turn comes too late, too early, or not at all.

Method: a line over a real ledger; chunks are offered by hand, and jobs land when a test says so. Lazy stores are shown with
whole requests, for what is about to go is known to the pool alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from blocklife.ledger import Contract, JobId, Jobs, Launched, Ledger, Plan, Worker
from blocklife.ledger._ids import ID_MASK, NULL
from blocklife.ledger.invariants import check
from blocklife.offload import Geometry, HostTier, LastStep, Mode, Policies
from blocklife.offload._stores import Chunk, StoreLine
from blocklife.states import Block, Job
from tests.rigs import Rig, letters, sources
from tests.worlds import keys, make_ledger, ready, report, slot_with, world_key


def line_of(
    groups: str = "full:4",
    size: int = 1,
    *,
    replacement: str = "lru",
    blocks: int = 20,
    slots: int = 4,
    max_jobs: int = 8,
    policies: Policies | None = None,
    contract: Contract = Contract.FENCE,
) -> tuple[Ledger, StoreLine]:
    """A line with nothing in it; requests a, b and c run."""
    geometry = Geometry.parse(groups, size)
    ledger = make_ledger(
        num_blocks=blocks,
        num_slots=slots,
        max_jobs=max_jobs,
        groups=len(geometry.groups),
        contract=contract,
        requests=("a", "b", "c"),
    )
    return ledger, StoreLine(ledger, HostTier(ledger, replacement), geometry, policies or Policies())


def lives_of(ledger: Ledger, request: str, names: Sequence[bytes], group: int = 0) -> list[int]:
    """Lives of final content that a request holds."""
    batch = ledger.allocate(request, len(names), group)
    return [int(life) for life in ledger.seal(batch, names).lives]


def offered(ledger: Ledger, line: StoreLine, owner: str, *names: str, group: int = 0) -> list[int]:
    """A request offers one chunk for each name; gives the blocks."""
    lives = lives_of(ledger, owner, keys(*names), group)
    for life, name in zip(lives, keys(*names), strict=True):
        line.offer([Chunk(owner, group, name, [life])])
    return [life & ID_MASK for life in lives]


def step(ledger: Ledger, line: StoreLine, *, land: bool = False) -> Plan:
    """One step: what is ripe is planned, and submitted; where told, it lands."""
    line.plan()
    plan = ledger.dispatch(0.0)
    ledger.settle(plan.number, 0.0, completions=[report(each.job) for each in plan.stores] if land else [])
    assert check(ledger) == []
    return plan


# --- order -------------------------------------------------------------------------------------------------------------------


def test_what_the_requests_of_a_step_fill_makes_room_together() -> None:
    """The content that goes for one request pushes no name out of what ARC remembers before the other's has come back.

    Of two places one holds what was used again, and x has just gone. A step stores a and x: both places are taken, and x, which
    has come back, counts as used again. Room for z is made by it, for there what is used once is to have a place.
    """
    ledger, line = line_of(replacement="arc", slots=2)
    for name in ("w", "x", "y"):
        if name == "y":
            line._tier.touch([slot_with(ledger, b"w")])
        offered(ledger, line, "a", name)
        step(ledger, line, land=True)
    offered(ledger, line, "a", "a")
    offered(ledger, line, "b", "x")
    step(ledger, line, land=True)
    both = {key for _, key, _ in ledger.slots.named()}
    offered(ledger, line, "c", "z")
    step(ledger, line, land=True)

    assert both == {b"a", b"x"}
    assert {key for _, key, _ in ledger.slots.named()} == {b"a", b"z"}


def test_one_job_for_all_owners_in_the_order_of_their_oldest_chunk() -> None:
    """Chunks of one owner go together and in order, although others came between; the job is for all of them."""
    ledger, line = line_of()
    first = offered(ledger, line, "b", "x")
    other = offered(ledger, line, "a", "y")
    second = offered(ledger, line, "b", "z")

    assert sources(step(ledger, line)) == [first + second + other]
    assert line.waiting == 0
    (job,) = ledger.jobs.alive()
    assert (job.owner, job.sharers) == ("b", ("a",))


def test_owners_who_do_not_fit_into_one_job_get_more() -> None:
    """What one owner stores in a step is in one job."""
    ledger, line = line_of(policies=Policies(max_job_blocks=3), slots=8)
    first = offered(ledger, line, "a", "v", "w")
    second = offered(ledger, line, "b", "x", "y")
    third = offered(ledger, line, "c", "z")

    assert sources(step(ledger, line)) == [first, second + third]


def test_only_the_owners_asked_for_are_planned() -> None:
    """A request that ends reserves its own; the others keep their turn. Who has nothing in the line is passed over."""
    ledger, line = line_of()
    mine, _ = offered(ledger, line, "a", "x"), offered(ledger, line, "b", "y")
    line.plan(["c", "a"])

    assert [job.owner for job in ledger.jobs.alive()] == ["a"]
    assert [life & ID_MASK for life in ledger.jobs.alive()[0].lives] == mine
    assert line.waiting == 1


def test_what_is_larger_than_a_job_goes_in_several_steps() -> None:
    """A job a step; the rest keeps its order, and a job is never larger than the tier."""
    ledger, line = line_of(policies=Policies(max_job_blocks=2))
    blocks = offered(ledger, line, "a", *"vwxyz")
    found = [sources(step(ledger, line, land=True)) for _ in range(3)]

    assert found == [[blocks[:2]], [blocks[2:4]], [blocks[4:]]]
    ledger, line = line_of(slots=3)
    blocks = offered(ledger, line, "a", *"vwxyz")

    assert sources(step(ledger, line)) == [blocks[:3]]


def test_groups_of_one_job_are_in_order_and_counted() -> None:
    """Whatever the order of the offers: sizes count what is appended of each group."""
    ledger, line = line_of("full:4,swa:4:9")
    lives = {name: lives_of(ledger, "a", keys(name), group)[0] for name, group in (("x", 1), ("y", 0), ("z", 1))}
    for name, group in (("x", 1), ("y", 0), ("z", 1)):
        line.offer([Chunk("a", group, name.encode(), [lives[name]])])
    (transfer,) = step(ledger, line).stores

    assert transfer.source.tolist() == [lives[name] & ID_MASK for name in "yxz"]
    assert transfer.group_sizes == (1, 2)


@pytest.mark.parametrize("gone", ["stored", "stale", "swept"])
def test_who_has_nothing_in_the_line_comes_last_when_it_offers_again(gone: str) -> None:
    """Its turn is that of its oldest chunk, not that of its first one ever: stored, over, or swept out."""
    ledger, line = line_of(blocks=6)
    if gone == "stored":
        offered(ledger, line, "a", "old")
        step(ledger, line, land=True)
    else:
        for number in range(len(ledger.blocks) + 64 if gone == "swept" else 1):
            offered(ledger, line, "a", f"k{number}")
            ledger.preempt("a")
            ledger.drop(ledger.blocks.prefix(keys(f"k{number}")))
            ledger.admit("a")
        if gone == "stale":
            assert step(ledger, line).empty
    other, mine = offered(ledger, line, "b", "x"), offered(ledger, line, "a", "y")
    if gone == "swept":
        assert line.waiting == 2

    assert sources(step(ledger, line)) == [other + mine]


# --- refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["slots", "jobs"])
def test_a_refusal_changes_nothing_and_nobody_overtakes(why: str) -> None:
    """What is refused stays at the head; a smaller store behind it would fit and waits all the same."""
    ledger, line = line_of(slots=2, max_jobs=1 if why == "jobs" else 8)
    busy = offered(ledger, line, "c", "p")
    running = step(ledger, line)
    first, second = offered(ledger, line, "a", "x", "y"), offered(ledger, line, "b", "z")
    before = world_key(ledger)
    line.plan()
    after = world_key(ledger)
    waiting = line.waiting
    refused = ledger.dispatch(0.0)
    ledger.settle(refused.number, 0.0, completions=[report(running.stores[0].job)])
    plans = [step(ledger, line, land=True) for _ in range(2)]

    assert sources(running) == [busy]
    assert before == after
    assert refused.empty
    assert (waiting, line.counts["refused"] >= 1) == (3, True)
    assert [each for plan in plans for each in sources(plan)] == [first, second]


def test_what_is_accepted_in_part_leaves_the_line_as_a_whole() -> None:
    """Of four chunks one is stored already, one is stale and one on its way: one goes, and none of them comes again."""
    ledger, line = line_of()
    ready(ledger, "there", 0, "c")
    way = offered(ledger, line, "b", "way")
    step(ledger, line)
    lives = lives_of(ledger, "a", keys("new", "there", "gone"))
    for life, name in zip(lives, keys("new", "there", "gone"), strict=True):
        line.offer([Chunk("a", 0, name, [life])])
    line.offer([Chunk("a", 0, b"way", [ledger.blocks.life(way[0])])])
    ledger.release("a", [2])
    ledger.drop(lives[2:])
    plan = step(ledger, line)

    assert sources(plan) == [[lives[0] & ID_MASK]]
    assert line.waiting == 0
    assert {name: line.counts[name] for name in ("already stored", "stale", "in flight", "refused")} == {
        "already stored": 1,
        "stale": 1,
        "in flight": 1,
        "refused": 0,
    }


def test_a_store_that_was_cancelled_has_another_turn_once() -> None:
    """Its chunk is planned again, stored, and never asked for any more."""
    ledger, line = line_of()
    blocks = offered(ledger, line, "a", "x")
    line.plan()
    ledger.cancel(Jobs(tuple(JobId(ledger.incarnation, job.number) for job in ledger.jobs.alive() if job.state is Job.PLANNED)))
    again = step(ledger, line, land=True)
    later = [step(ledger, line) for _ in range(3)]

    assert sources(again) == [blocks]
    assert all(plan.empty for plan in later)
    assert line.counts["already stored"] == 0


# --- content and lives -------------------------------------------------------------------------------------------------------


def test_clear_forgets_every_wish() -> None:
    """The content is gone, and so is every reason to store it."""
    ledger, line = line_of()
    offered(ledger, line, "a", "x")
    line.clear()

    assert line.waiting == 0
    assert step(ledger, line).empty


# --- chunks ------------------------------------------------------------------------------------------------------------------


def chunk_of(ledger: Ledger, request: str, name: str, count: int, group: int = 0, holes: Sequence[int] = ()) -> Chunk:
    """A chunk of so many blocks, with holes at some positions; it is named after its last block."""
    names = keys(*(f"{name}{position}" for position in range(count)))
    lives = lives_of(ledger, request, names, group)
    return Chunk(request, group, names[-1], [NULL if at in holes else life for at, life in enumerate(lives)])


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize(
    ("groups", "holes", "always"),
    [
        ("full:4", (), True),
        ("full:4", (0,), False),
        ("full:4", (1,), False),
        ("full:4", (0, 1), False),
        ("swa:4:9", (0,), True),  # a hit reads two blocks at most
        ("swa:4:9", (1,), False),
        ("swa:4:5", (0, 1), True),
        ("swa:4:5", (0,), True),
    ],
)
def test_a_chunk_with_a_hole_is_stored_where_no_hit_needs_it(
    groups: str, holes: tuple[int, ...], always: bool, partial: bool
) -> None:
    """Else it is not stored at all, or as what it is: the slot knows how much of its end is there."""
    ledger, line = line_of(groups, 3, policies=Policies(partial_chunks=partial))
    chunk = chunk_of(ledger, "a", "x", 3, holes=holes)
    line.offer([chunk])
    plan = step(ledger, line)
    there = [at for at in range(3) if at not in holes]

    assert bool(plan.stores) == (always or partial)
    assert line.counts["partial"] == (not plan.stores)
    if plan.stores:
        (transfer,) = plan.stores
        assert transfer.target.tolist() == [3 * 0 + at for at in there]
        assert transfer.group_sizes == (len(there),)
        assert line.suffix[0] == 2 - max(holes, default=-1)


def test_a_chunk_without_its_end_is_never_stored() -> None:
    """Its key is that of its last block: without it there is nothing that it could be found for."""
    ledger, line = line_of("swa:4:5", 2, policies=Policies(partial_chunks=True))
    line.offer([chunk_of(ledger, "a", "x", 2, holes=(1,))])

    assert step(ledger, line).empty
    assert (line.waiting, line.counts["partial"]) == (0, 1)


@pytest.mark.parametrize("land", [False, True], ids=["out", "landed"])
def test_chunks_that_share_their_beginning_are_both_stored(land: bool) -> None:
    """Two texts part inside a chunk: the second waits for the copy that reads the shared block, and is not forgotten."""
    ledger, line = line_of(size=2)
    shared, one = lives_of(ledger, "a", keys("s", "x"))
    ledger.acquire("b", [shared])
    (other,) = lives_of(ledger, "b", keys("y"))
    line.offer([Chunk("a", 0, b"x", [shared, one])])
    line.offer([Chunk("b", 0, b"y", [shared, other])])
    first = step(ledger, line, land=land)
    if not land:
        between = step(ledger, line)
        assert between.empty
        assert line.waiting == 1
        ledger.complete(report(first.stores[0].job))
    second = step(ledger, line)

    assert sources(first) == [[shared & ID_MASK, one & ID_MASK]]
    assert sources(second) == [[shared & ID_MASK, other & ID_MASK]]


def test_chunks_with_holes_go_in_one_job() -> None:
    """A hole is no block that two chunks could share: the second does not wait for the first."""
    ledger, line = line_of("swa:4:5", 2)
    for name in "xy":
        line.offer([chunk_of(ledger, "a", name, 2, holes=(0,))])
    (transfer,) = step(ledger, line).stores

    assert len(transfer.source) == 2
    assert line.waiting == 0


# --- lazy --------------------------------------------------------------------------------------------------------------------


def lazy_rig(*, blocks: int = 9, lazy_blocks: int = 2, slots: int = 16, chunk: int = 1) -> Rig:
    """Content is stored when its block is among the next that are handed out."""
    policies = Policies(mode=Mode.LAZY, lazy_blocks=lazy_blocks, last_step=LastStep.DRAIN)
    return Rig("full:4", chunk, blocks=blocks, slots=slots, policies=policies)


def test_lazy_stores_what_is_next_and_stops_when_nothing_is_about_to_go() -> None:
    """Of the blocks that were given back only the next two, end of the text first; what is stored goes before the rest."""
    rig = lazy_rig(blocks=4)
    rig.add("a", letters(12))
    rig.let_in("a")
    rig.tick()
    rig.scheduler.finish("a")
    plans = [rig.tick() for _ in range(6)]
    queue = rig.ledger.blocks.next_free(3)

    assert rig.stored() == ["abcdefgh", "abcdefghijkl"]
    assert [len(plan.stores) for plan in plans[2:]] == [0, 0, 0, 0]
    assert sorted(queue[:2]) == [2, 3]
    assert not rig.scheduler.has_pending_work()


def test_lazy_stores_only_confirmed_content() -> None:
    """A block whose content was never sealed is no candidate, whoever offered it."""
    rig = lazy_rig(blocks=4, lazy_blocks=3)
    rig.add("a", letters(9))
    rig.let_in("a")
    rig.plan()
    rig.scheduler.abort("a")
    rig.scheduler.reset()
    rig.settle()
    plans = [rig.tick() for _ in range(3)]

    assert all(plan.empty for plan in plans)


def test_lazy_refusal_keeps_the_chunk_in_the_line() -> None:
    """The host has no room: the wish waits, and is granted when there is."""
    rig = lazy_rig(blocks=4, slots=1)
    rig.add("a", letters(12))
    rig.let_in("a")
    rig.tick()
    rig.scheduler.finish("a")
    rig.tick()
    first = rig.stored()
    rig.ledger.pin("lookup", [0])
    refused = [rig.tick() for _ in range(2)]
    statistics = rig.scheduler.statistics()
    rig.ledger.unpin("lookup", [0])
    rig.drain()

    assert first == ["abcdefghijkl"]
    assert all(plan.empty for plan in refused)
    assert (statistics.waiting, statistics.refused_stores) == (1, 2)
    assert rig.stored() == ["abcdefgh"]


def test_lazy_content_that_was_used_again_is_no_longer_the_first_to_go() -> None:
    """It was put first when its store had landed, once: who has held it since gives it back behind all others."""
    ledger, line = line_of(blocks=4, policies=Policies(mode=Mode.LAZY, lazy_blocks=3))
    (place,) = offered(ledger, line, "a", "x")
    life = ledger.blocks.life(place)
    ledger.release("a", [0])
    step(ledger, line, land=True)
    line.plan()
    before = ledger.blocks.next_free(3)
    ledger.acquire("b", [life])
    ledger.release("b", [0])
    line.plan()

    assert before[0] == place
    assert ledger.blocks.next_free(3)[-1] == place


@pytest.mark.interpreted
def test_sweeping_is_paid_for_by_what_has_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is full of what still waits is not looked through for each chunk that comes."""
    ledger, line = line_of(blocks=6)
    swept: list[int] = []
    sweep = StoreLine._sweep

    def counted(self: StoreLine) -> None:
        swept.append(self.waiting)
        sweep(self)

    monkeypatch.setattr(StoreLine, "_sweep", counted)
    (life,) = lives_of(ledger, "a", keys("x"))
    for number in range(1000):
        line.offer([Chunk("a", 0, str(number).encode(), [life])])

    assert len(swept) == 1000 // (len(ledger.blocks) + 64 + 1)


def test_no_more_waits_than_the_device_holds() -> None:
    """Stores are refused for ever while blocks change hands: what is over, or waits twice, leaves the line by and by."""
    ledger, line = line_of(blocks=6, max_jobs=1)
    (busy,) = offered(ledger, line, "a", "first")
    step(ledger, line)
    for number in range(200):
        lives = lives_of(ledger, "b", keys(f"k{number}"))
        for _ in range(2):
            line.offer([Chunk("b", 0, keys(f"k{number}")[0], lives)])
        ledger.preempt("b")
        ledger.admit("b")
        line.plan()

    assert line.waiting <= 2 * len(ledger.blocks) + 64
    assert line.counts["refused"] == 200
    assert ledger.blocks.state(busy) is not Block.FREED


def test_what_waits_twice_waits_once_and_is_counted_as_it_goes() -> None:
    """However often open content is offered, the line does not grow by it; every offer waits or was counted when it left."""
    ledger, line = line_of(blocks=6)
    life = int(ledger.allocate("a", 1).lives[0])
    for _ in range(500):
        line.offer([Chunk("a", 0, b"x", [life])])

    assert line.waiting <= len(ledger.blocks) + 64 + 1
    assert line.waiting + line.counts["stale"] == 500


def test_twins_of_one_owner_are_stored_once_and_counted() -> None:
    """Two blocks of one content in one step: the first of them is stored, and the other has had its turn."""
    ledger, line = line_of()
    first, second = (offered(ledger, line, "a", "x") for _ in range(2))
    plan = step(ledger, line)

    assert first != second
    assert sources(plan) == [first]
    assert (line.waiting, line.counts["already stored"]) == (0, 1)


def test_job_is_no_larger_than_what_is_left_of_the_tier() -> None:
    """A slot in quarantine may never come back: a job that needs all slots would be refused for ever, and all behind it."""
    ledger, line = line_of(slots=3)
    offered(ledger, line, "a", "lost")
    plan = step(ledger, line)
    ledger.launched(Launched(plan.stores[0].job, Worker(0)), 0.0)
    ledger.expire(1000.0)
    blocks = offered(ledger, line, "b", *"vwx")
    other = offered(ledger, line, "c", "y")
    found = [sources(step(ledger, line, land=True)) for _ in range(3)]

    assert found == [[blocks[:2]], [blocks[2:] + other], []]


# --- stores that yield to loads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize(
    ("limit", "beside", "after"), [(None, 4, 0), (4, 4, 0), (2, 2, 2), (0, 0, 4)], ids=["no limit", "enough", "half", "none"]
)
def test_stores_yield_to_a_load_that_is_out(limit: int | None, beside: int, after: int, chunk: int) -> None:
    """Request a loads while b fills four blocks: so many go beside the load, and the others when it is over."""
    rig = Rig(chunk=chunk, policies=Policies(max_store_blocks_beside=limit))
    rig.fill("x", letters(8 * chunk + 1))
    rig.reset_device()
    rig.add("a", letters(8 * chunk + 1))
    rig.add("b", letters(17, "n"))
    rig.let_in("a")
    rig.let_in("b")
    plans = [rig.tick(land=False)]
    assert plans[0].loads
    plans += [rig.tick(land=False) for _ in range(2)]
    with_load = sum(len(store.source) for plan in plans for store in plan.stores)
    rig.out, landed = [], [report(each.job) for plan in plans for each in (*plan.loads, *plan.stores)]
    rig.plan()
    rig.plans.pop()
    rig.scheduler.settle(rig.scheduler.plans_out[0], rig.now, completions=landed)
    late = [rig.tick() for _ in range(3)]

    assert with_load == beside
    assert sum(len(store.source) for plan in late for store in plan.stores) == after
    assert rig.drain() >= 0
    assert len(rig.stored()) >= 4 // chunk


def test_a_limit_counts_what_is_out_already() -> None:
    """Three blocks may go beside a load: of two requests with two blocks each one goes whole, and of the other one block."""
    rig = Rig(policies=Policies(max_store_blocks_beside=3))
    rig.fill("x", letters(5))
    rig.reset_device()
    rig.add("a", letters(5))
    rig.let_in("a")
    rig.tick(land=False)
    sizes = []
    for name, first in (("b", "h"), ("c", "n")):
        rig.add(name, letters(9, first))
        rig.let_in(name)
        rig.tick(land=False)
        sizes.append(sum(len(store.source) for store in rig.tick(land=False).stores))

    assert sizes == [2, 1]
