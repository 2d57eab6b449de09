"""The five seed scenarios hold on the real scheduler, and each fails when the line that makes it hold is taken out.

Method: a scripted engine, so small that every block can be followed, under both contracts, with synchronous and asynchronous
scheduling; its device never asks the ledger. Bugs are planted by replacing a line of the real source; where the ledger refuses
what the bug would do, the refusal is what the test shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from blocklife.core import _steps as core_steps
from blocklife.errors import MisuseError, RefusedError
from blocklife.ledger import Contract, Direction, JobId, Transfer
from blocklife.ledger import _plan as plans
from blocklife.ledger.views import SlotsView
from blocklife.offload import FullHit, Geometry, LastStep, Policies
from blocklife.offload import _search as search
from blocklife.offload._lookup import Ask, Found, Unit, common_length
from blocklife.offload._steps import SchedulerSteps
from blocklife.offload._stores import StoreLine
from blocklife.states import COPYING, Request
from tests.engines import AHEAD, Engine, Step, computed, stored_until, without
from tests.worlds import BOTH, DeviceFault, slot_with

pytestmark = pytest.mark.interpreted
OTHER = range(100, 200)
"""Tokens that no other prompt has."""


# --- S1: a stale entry is never a copy source -------------------------------------------------------------------------------


def refused_window(contract: Contract, ahead: int) -> Engine:
    """Request *a* has computed 16 tokens in 4 GPU blocks, block 4, window 8; position 3 lies where 0 was; nothing is stored."""
    engine = Engine("swa:4:8", blocks=4, slots=4, contract=contract, ahead=ahead)
    engine.fill_host()
    engine.add("a", 12)
    engine.step(admit=["a"])
    computed(engine, "a", 16)
    seen = engine.seen["a", 0]
    assert seen[3] == seen[0] != 0
    return engine


def hand_out_again(engine: Engine, heir: str) -> Step:
    """In this step position 1, which has left the window, is handed out to the same request, or to another."""
    block = engine.seen["a", 0][1]
    if heir == "a":
        step = engine.step({"a": 1})
    else:
        engine.add("b", OTHER[:4])
        step = engine.step({}, admit=["b"])
    assert engine.blocks(heir)[-1] == block
    return step


def valid_is_stored(engine: Engine, step: Step, *, turn: bool = True) -> None:
    """The plan stores positions 2 and 3 of *a*, and nothing else of it; what lands is what its key says.

    Asynchronous, position 3 is full with a token that nobody knew when it was planned: without another *turn* of the request it
    goes when the request ends.
    """
    seen = engine.seen["a", 0]
    (stored,) = step.stored
    mine = seen[2 : 4 if turn or not engine.ahead else 3]
    assert stored[: len(mine)] == mine
    assert stored[len(mine) :] in ([], engine.seen.get(("b", 0)))
    engine.land()
    engine.step({})
    for name in list(engine.ledger.requests):
        engine.finish(name)
    engine.drain()
    assert engine.has("a", 0, range(6)) == {2, 3}
    assert engine.left_behind() == []


@BOTH
@AHEAD
@pytest.mark.parametrize("heir", ["a", "b"], ids=["same-request", "another-request"])
@pytest.mark.parametrize("scheduled", [True, False], ids=["scheduled", "not-scheduled"])
def test_s1_stale_entries_are_no_copy_source(contract: Contract, ahead: int, heir: str, scheduled: bool) -> None:
    """Stores are refused, the window moves on, its blocks are handed out again; then the host accepts: 2 and 3 are stored."""
    engine = refused_window(contract, ahead)
    hand_out_again(engine, heir)
    if heir == "b" and scheduled:  # there is room for both of them only one after the other
        engine.step({})
        engine.finish("b")
        engine.step({})
    engine.free_host()
    step = engine.step({"a": 1} if scheduled else {})

    assert engine.scheduler.statistics().stale >= 2
    assert step.short == ()
    valid_is_stored(engine, step, turn=scheduled or heir == "a")


@BOTH
@AHEAD
@pytest.mark.parametrize("heir", ["a", "b"], ids=["same-request", "another-request"])
def test_s1_host_accepts_in_the_step_that_hands_the_block_out(contract: Contract, ahead: int, heir: str) -> None:
    """The entry is stale within the very step; with another heir its own request is not scheduled in it."""
    engine = refused_window(contract, ahead)
    engine.free_host()
    step = hand_out_again(engine, heir)

    assert engine.scheduler.statistics().stale == 2
    valid_is_stored(engine, step, turn=heir == "a")


@BOTH
@AHEAD
def test_s1_request_that_is_over_has_stale_entries_too(contract: Contract, ahead: int) -> None:
    """What it left in the line is judged by its lives, although nobody tracks the request any more."""
    engine = refused_window(contract, ahead)
    mine = engine.blocks("a")
    engine.finish("a")
    engine.add("b", OTHER[:4])
    step = engine.step({}, admit=["b"])
    kept = [block for block in mine[2:] if block not in engine.blocks("b")]
    engine.free_host()
    step = engine.step({})

    (stored,) = step.stored
    assert stored[: len(kept)] == kept
    engine.land()
    engine.step({})
    assert engine.scheduler.statistics().stale == 4 - len(kept)


@BOTH
@AHEAD
def test_s1_what_is_valid_of_a_cancelled_store_is_stored(contract: Contract, ahead: int) -> None:
    """A planned store loses one source to the moving window before it is submitted: the rest goes in another job."""
    engine = Engine("swa:4:8", blocks=4, slots=4, contract=contract, ahead=ahead)
    engine.add("a", 12)
    engine.step(admit=["a"])
    for _ in range(6):
        engine.step()
        if engine.out():
            engine.land()

    assert engine.has("a", 0, range(3)) >= {1, 2}


BY_BLOCK_ID = (
    "life = chunk.lives[position] = self._ledger.blocks.life(block_of(life))\n        at = code_of(life)\n        if False:"
)


def plant_stale_sources(monkeypatch: pytest.MonkeyPatch, instead: str) -> None:
    without(monkeypatch, StoreLine, "_judge", {"if at is None:": instead})


@BOTH
@AHEAD
@pytest.mark.parametrize("heir", ["a", "b"], ids=["same-request", "another-request"])
def test_s1_planted_no_comparison_is_refused(
    contract: Contract, ahead: int, heir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the comparison of epochs the ledger refuses: a life that is over cannot be chosen, nor a block for two lives."""
    engine = refused_window(contract, ahead)
    plant_stale_sources(monkeypatch, "if False:")
    engine.free_host()

    with pytest.raises(MisuseError, match=r"which is over|named twice"):
        hand_out_again(engine, heir)


@BOTH
@AHEAD
def test_s1_planted_names_by_block_id_are_refused(contract: Contract, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that names the block, whoever lives there now, is caught by the key of the content when that is final."""
    engine = refused_window(contract, ahead)
    plant_stale_sources(monkeypatch, BY_BLOCK_ID)
    engine.free_host()
    hand_out_again(engine, "a")

    with pytest.raises(MisuseError, match="one content has one key"):
        computed(engine, "a", 20)


@BOTH
@AHEAD
def test_s1_planted_names_by_block_id_in_chunks_reach_the_device(
    contract: Contract, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk's key is not that of its first block, so the ledger cannot know: the device shows alien bytes under the key."""
    engine = Engine("swa:4:8", blocks=4, slots=4, chunk=2, contract=contract, ahead=ahead)
    engine.fill_host()
    plant_stale_sources(monkeypatch, BY_BLOCK_ID)
    engine.add("a", 12)
    engine.step(admit=["a"])
    computed(engine, "a", 16)
    engine.free_host()

    with pytest.raises(DeviceFault, match="is found as"):
        engine.drain_stores()


# --- S2: nothing is stored twice ------------------------------------------------------------------------------------------


@BOTH
@AHEAD
def test_s2_in_flight_is_stored_once(contract: Contract, ahead: int) -> None:
    """B and others hit what A's store is reading: no second job and slot, until all ranks have reported, and none then."""
    engine = Engine(workers=2, contract=contract, ahead=ahead)
    engine.add("a", 9)
    engine.step(admit=["a"])
    (job,) = stored_until(engine).plan.stores
    marked = []

    def hit(name: str) -> list[list[int]]:
        engine.add(name, 9)
        step = engine.step({}, admit=[name])
        assert engine.blocks(name)[:2] == engine.blocks("a")[:2] == job.source.tolist()
        marked.append({engine.ledger.blocks.state(block) in COPYING for block in job.source.tolist()})
        engine.step({})
        return step.stored

    stored = hit("b")
    engine.land(job.job, worker=0)
    stored += hit("c")
    engine.land(job.job, worker=1)
    engine.step({})
    stored += hit("d")

    assert stored == []
    assert marked == [{True}, {True}, {False}]
    assert engine.ledger.jobs.last_number == 1
    assert engine.tier.statistics().ready == 2
    found = engine.scheduler.statistics()
    assert (found.in_flight, found.already_stored) == (4, 2)


@BOTH
@AHEAD
def test_s2_planned_store_counts_as_in_flight(contract: Contract, ahead: int) -> None:
    """Step N plans A's store, whose content is not final yet; in step N+1 B computes nothing of it and stores nothing."""
    engine = Engine(contract=contract, ahead=ahead)
    engine.add("a", 9)
    engine.add("b", 9)
    engine.step(admit=["a"])
    if ahead:
        engine.step({})
    step = engine.step({}, admit=["b"])

    assert engine.blocks("b")[:2] == engine.blocks("a")[:2]
    assert [stores for stores in step.stored if stores != engine.blocks("a")[:2]] == []
    assert engine.ledger.jobs.last_number == 1


@BOTH
@AHEAD
def test_s2_twins_are_two_stores(contract: Contract, ahead: int) -> None:
    """Equal content in two blocks is two lives: both are stored, the second to land is not needed, and both marks go."""
    engine = Engine(contract=contract, ahead=ahead)
    stored = twins(engine)

    assert sorted(stored) == sorted([*engine.blocks("a")[:2], *engine.blocks("b")[:2]])
    assert len(set(stored)) == 4
    engine.land()
    for name in "ab":
        engine.finish(name)
    engine.drain()
    assert engine.tier.statistics().ready == 2
    assert engine.left_behind() == []


def twins(engine: Engine) -> list[int]:
    """Two requests compute the same prompt at once, one of them slower; which blocks are stored."""
    stored: list[int] = []
    for name in "ab":
        engine.add(name, 9)
    steps = [engine.step(admit={"a": 9, "b": 4}), engine.step({"b": 5})]
    steps += [engine.step({}) for _ in range(3)]
    for step in steps:
        stored += [block for blocks in step.stored for block in blocks]
    return stored


@BOTH
@AHEAD
def test_s2_lost_completion_does_not_exempt_the_next_life(contract: Contract, ahead: int) -> None:
    """The report of A's store never comes and its lives end: what B computes in the same blocks is stored."""
    engine = Engine(blocks=4, contract=contract, ahead=ahead, deadline=4.0)
    engine.add("a", 9)
    engine.step(admit=["a"])
    (lost,) = stored_until(engine).plan.stores
    engine.silent.add(lost.job)
    engine.add("b", OTHER[:12])
    computed(engine, "a", 9)
    engine.finish("a")
    step = engine.step(admit=["b"])
    assert step.refused == (() if contract is Contract.FENCE else ("b",))
    if contract is Contract.HOLD:
        for _ in range(5):
            engine.step({})
        assert engine.step(admit=["b"]).refused == ("b",), "a deadline is no proof"
        engine.prove(lost.job)
        engine.step(admit=["b"])
    else:
        assert step.plan.flushes == (lost.job,)
    again = {block for _ in range(4) for blocks in engine.step({}).stored for block in blocks}

    assert again == set(engine.blocks("b"))
    assert set(lost.source.tolist()) < set(engine.blocks("b"))
    assert engine.has("a", 0, range(2)) == set()


@BOTH
@AHEAD
def test_s2_landed_content_needs_no_second_store(contract: Contract, ahead: int) -> None:
    """The device forgets, another request computes the same content into other lives: it is in the tier already."""
    engine = Engine(contract=contract, ahead=ahead, policies=Policies(max_load_tokens=0))
    engine.prepare("a", 9)
    engine.add("b", 9)
    hit = engine.step(admit=["b"]).hits["b"]
    for _ in range(3):
        assert engine.step({}).plan.stores == ()

    assert hit.tokens == 0
    assert engine.scheduler.statistics().already_stored == 2
    assert engine.tier.statistics().ready == 2


@BOTH
@AHEAD
@pytest.mark.parametrize("where", ["device", "host"])
@pytest.mark.parametrize("policy", list(FullHit), ids=lambda each: each.name.lower())
def test_s2_hit_on_the_whole_prompt_leaves_one_token_to_compute(
    contract: Contract, ahead: int, where: str, policy: FullHit
) -> None:
    """Either the last full block is dropped from the hit, or all is taken and the last token is computed once more."""
    engine = Engine(contract=contract, ahead=ahead, policies=Policies(full_hit=policy))
    engine.prepare("a", 9)
    engine.add("b", 8)
    if where == "device":
        engine.add("c", 9)
        engine.step(admit=["c"])
        engine.land()
        engine.step({})
        engine.step({})
    hit = engine.step({}, admit=["b"]).hits["b"]
    engine.land()
    engine.step({})
    engine.step({})
    engine.step()

    expected = (4, 4) if policy is FullHit.DROP_LAST_BLOCK else (8, 7)
    assert (hit.tokens, hit.compute_from) == expected
    assert hit.device_tokens == (expected[0] if where == "device" else 0)
    assert engine.state("b") is Request.RUNNING
    assert engine.scheduler.requests.progress("b").computed + engine.scheduler.requests.progress("b").in_flight >= 8


def plant_no_look_at_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether a copy of a block is out."""
    without(
        monkeypatch,
        core_steps,
        "take_turn",
        {" or traits[blocks.state[place]] & COPIED": "", "not traits[blocks.state[place]] & ready": "False"},
    )
    without(monkeypatch, core_steps, "leave_out", {"elif traits[blocks.state[life & ID_MASK]] & COPIED:": "elif False:"})


@BOTH
@AHEAD
def test_s2_planted_no_look_at_copies_is_refused(contract: Contract, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without asking whether a copy is out, the second store of a life is refused by the table of blocks."""
    plant_no_look_at_copies(monkeypatch)

    with pytest.raises(RefusedError, match="cannot PLAN_STORE while IN_FLIGHT"):
        test_s2_in_flight_is_stored_once(contract, ahead)


@BOTH
@AHEAD
def test_s2_planted_dedup_by_content_loses_a_twin(contract: Contract, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking content on its way for stored content drops the second block, which would be missing if the first store fails."""
    without(monkeypatch, SlotsView, "any_ready", {"self.find_ready(": "self.find("})
    engine = Engine(contract=contract, ahead=ahead)

    assert len(twins(engine)) < 4


# --- S3: sizes count what is appended -------------------------------------------------------------------------------------


def straddling(contract: Contract, ahead: int, chunk: int, *, partial: bool, hole: str = "edge") -> Engine:
    """Request *a* has computed 16 tokens; when its stores are accepted at last, blocks of its first chunk are gone.

    ``edge``: position 0. ``middle``: position 1, while another request holds 0. ``tail``: 0 and 1, in chunks of 3.
    """
    blocks = {"edge": 5, "middle": 6, "tail": 4}[hole]
    policies = Policies(partial_chunks=partial)
    engine = Engine("swa:4:8", blocks=blocks, slots=4, chunk=chunk, contract=contract, ahead=ahead, policies=policies)
    engine.fill_host()
    engine.add("a", 12)
    engine.step(admit=["a"])
    computed(engine, "a", 12)
    if hole == "middle":
        engine.add("b", [0, 1, 2, 3, 99])
        engine.step({}, admit=["b"])
        assert engine.blocks("b")[0] == engine.seen["a", 0][0]
    computed(engine, "a", 16)
    if hole == "edge":
        engine.add("c", OTHER[:4])
        engine.step({}, admit=["c"])
    else:
        engine.step({"a": 1})
    engine.free_host()
    return engine


@BOTH
@AHEAD
@pytest.mark.parametrize(
    ("chunk", "hole", "partial", "expected"),
    [
        (2, "edge", False, None),
        (2, "edge", True, [1]),
        (3, "edge", False, [1, 2]),
        (3, "edge", True, [1, 2]),
        (3, "tail", False, None),
        (3, "tail", True, [2]),
        (3, "middle", False, None),
        (3, "middle", True, [0, 2]),
    ],
)
def test_s3_sizes_count_the_blocks_appended(
    contract: Contract, ahead: int, chunk: int, hole: str, partial: bool, expected: list[int] | None
) -> None:
    """A chunk with null blocks is stored as what it is, or, where a hit could need what it lacks, only by policy."""
    engine = straddling(contract, ahead, chunk, partial=partial, hole=hole)
    lacking = engine.keys_of("a")(0, chunk - 1, chunk)[0]
    before = [life.source.tolist() for life in engine.transfers.values()]
    step = engine.step({})
    transfers = step.plan.stores
    engine.land()
    engine.step({})

    assert before == []
    for each in transfers:
        assert sum(each.group_sizes) == len(each.source) == len(each.target)
    assert (lacking in engine.host_keys()) is (expected is not None)
    if expected is not None:
        slot = slot_with(engine.ledger, lacking)
        places = [place - slot * chunk for each in transfers for place in each.target.tolist() if place // chunk == slot]
        assert places == expected
        suffix = next((count for count in range(chunk) if chunk - 1 - count not in expected), chunk)
        assert engine.scheduler._stores.suffix[slot] == suffix
    else:
        assert engine.scheduler.statistics().partial == 1


@BOTH
@AHEAD
def test_s3_part_is_a_hit_only_for_what_was_written(contract: Contract, ahead: int) -> None:
    """Blocks 0 and 2 of a chunk are there: a hit that reads 1 and 2 misses; one that reads only 2 takes it."""
    engine = parted(contract, ahead)
    engine.add("x", 13)
    alone = engine.scheduler.lookup("x", 13)
    engine.add("y", [*range(8), 77])
    engine.step(admit=["y"])
    engine.step({})
    engine.step({})
    behind = engine.step({}, admit=["x"])
    engine.land()
    engine.step({})
    engine.step({})

    assert alone.tokens == 0
    assert (behind.hits["x"].tokens, behind.hits["x"].device_tokens) == (12, 8)
    assert [each.group_sizes for each in behind.plan.loads] == [(1,)]
    assert engine.state("x") is Request.RUNNING


def parted(contract: Contract, ahead: int) -> Engine:
    """The host tier has blocks 0 and 2 of the first chunk of three; the device is empty."""
    engine = straddling(contract, ahead, 3, partial=True, hole="middle")
    engine.step({})
    for name in "ab":
        engine.abort(name)
    engine.drain()
    engine.empty_device()
    return engine


@BOTH
@AHEAD
def test_s3_planted_unwritten_part_reaches_the_device(contract: Contract, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup that does not ask what a slot holds loads garbage."""
    without(monkeypatch, search.HostAnswers, "ask", {"if slot >= 0 and self._suffix[slot] < blocks:": "if False:"})
    engine = parted(contract, ahead)
    engine.add("x", 13)
    engine.step(admit=["x"])
    engine.land()

    with pytest.raises(DeviceFault, match="holds garbage"):
        engine.step({})


@BOTH
@AHEAD
def test_s3_planted_sizes_of_whole_chunks_are_refused(contract: Contract, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting a chunk as its full size, whatever is in it, makes a job that cannot be built."""
    engine = straddling(contract, ahead, 3, partial=False)
    without(monkeypatch, plans, "transfers", {
        "plans.cuts_of(core, rows)": "[3 * cut for cut in plans.cuts_of(core, rows)]", "bytes(groups)": "3 * bytes(groups)",
    })  # fmt: skip

    with pytest.raises(MisuseError, match="do not agree"):
        engine.step({})


@pytest.mark.parametrize("sizes", [(3,), (1,), (2, 1), ()])
def test_s3_transfer_whose_sizes_do_not_add_up_cannot_be_built(sizes: Sequence[int]) -> None:
    """Two blocks are two, in whatever groups."""
    places = np.array([1, 2], dtype=np.int64)

    with pytest.raises(MisuseError, match="do not agree"):
        Transfer(JobId(1, 1), Direction.STORE, places, places, tuple(sizes))


# --- S4: groups agree -----------------------------------------------------------------------------------------------------

HYBRID = "full:4,swa:4:8,mamba:4"


def hybrid(contract: Contract, ahead: int, *, slots: int = 16, groups: str = HYBRID) -> Engine:
    """The host tier has all of a prompt of 17 tokens, in three groups; the device is empty."""
    engine = Engine(groups, blocks=24, slots=slots, contract=contract, ahead=ahead)
    engine.prepare("a", 17, stride=4)
    return engine


def test_s4_window_in_chunks() -> None:
    """None for full attention, rounded up for a sliding window, 1 for a state."""
    assert Geometry.parse(HYBRID).window_chunks == (None, 2, 1)
    assert Geometry.parse(HYBRID, 2).window_chunks == (None, 1, 1)
    assert Geometry.parse("full:4,swa:4:10,mamba:4", 2).window_chunks == (None, 2, 1)


@BOTH
@AHEAD
@pytest.mark.parametrize(
    ("full", "sliding", "states", "expected"),
    [
        ((), (), (), 16),
        ((1,), (), (), 4),
        ((3,), (), (), 12),
        ((), (0, 1), (), 16),
        ((), (3,), (), 12),
        ((), (2,), (), 8),
        ((), (1,), (), 16),
        ((), (1, 3), (), 4),
        ((), (), (3,), 12),
        ((), (), (0, 1, 2), 16),
        ((3,), (), (2,), 8),
        ((2,), (0,), (0,), 0),
        ((), (2,), (1,), 4),
        ((), (), (0, 1, 2, 3), 0),
    ],
)
def test_s4_groups_agree_on_one_length(
    contract: Contract,
    ahead: int,
    full: Sequence[int],
    sliding: Sequence[int],
    states: Sequence[int],
    expected: int,
) -> None:
    """The whole prefix of full groups, the last window of sliding ones, the last state; and exactly that is loaded."""
    engine = hybrid(contract, ahead)
    for group, lost in enumerate((full, sliding, states)):
        engine.forget("a", group, lost)
    engine.add("b", 18)
    step = engine.step(admit=["b"])
    engine.land()
    engine.step({})
    engine.step({})
    engine.step()

    assert step.hits["b"].tokens == expected
    blocks = expected // 4
    sizes = [(blocks, min(blocks, 2), 1)] if blocks else []
    assert [each.group_sizes for each in step.plan.loads] == sizes
    assert engine.state("b") is Request.RUNNING


@BOTH
@AHEAD
def test_s4_hybrid_request_lives_to_its_end(contract: Contract, ahead: int) -> None:
    """Loaded, decoded past several boundaries, finished: nothing is left behind, and its content is in the tier."""
    engine = hybrid(contract, ahead, slots=32)
    engine.add("b", 18)
    engine.step(admit=["b"])
    for _ in range(16):
        engine.land()
        engine.step()
    engine.finish("b")
    engine.drain()

    assert engine.left_behind() == []
    assert engine.has("b", 0, range(7)) >= set(range(6))
    assert engine.has("b", 1, range(7)) >= set(range(6))


@BOTH
@AHEAD
@pytest.mark.parametrize("quarrel", [6, 40])
def test_s4_rounds_are_bounded(contract: Contract, ahead: int, quarrel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sliding groups that never agree step down one block a round; after 16 rounds it is a miss, and nobody waits."""
    found: list[Found] = []

    def spy(units: Sequence[Unit], start: int, limit: int, ask: Ask) -> Found:
        found.append(common_length(units, start, limit, ask))
        return found[-1]

    engine = Engine("swa:2:2,mamba:2", blocks=120, slots=100, contract=contract, ahead=ahead)
    engine.prepare("a", 2 * quarrel + 1, stride=2)
    for group in (0, 1):
        engine.forget("a", group, range(1 + group, quarrel, 2))
    monkeypatch.setattr(search, "common_length", spy)
    engine.add("b", 2 * quarrel + 1)
    hit = engine.scheduler.lookup("b", 2 * quarrel + 1)

    assert max(each.rounds for each in found) <= 16
    assert hit.tokens == (2 if quarrel < 16 else 0)
    assert not hit.deferred


@BOTH
@AHEAD
def test_s4_recency_covers_all_of_full_groups_and_the_window_of_others(contract: Contract, ahead: int) -> None:
    """In a full tier, what a hit has not read is forgotten first: blocks behind the window, states before the last."""
    engine = hybrid(contract, ahead, slots=12)
    engine.add("b", 18)
    engine.scheduler.lookup("b", 18)
    engine.step({})
    engine.tier.reserve([(0, f"alien {number}".encode()) for number in range(5)])

    assert [engine.has("a", group, range(4)) for group in range(3)] == [{0, 1, 2, 3}, {2, 3}, {3}]


@BOTH
@AHEAD
def test_s4_recency_after_a_store_covers_what_the_request_used(contract: Contract, ahead: int) -> None:
    """A request that ends has used its prefix: of content stored long ago the old windows go first."""
    engine = hybrid(contract, ahead, slots=18)
    engine.add("z", OTHER[:5])
    engine.step(admit={"z": 4})
    engine.step({"z": 1})
    engine.finish("z")
    engine.drain()
    assert engine.tier.statistics().ready == 15
    engine.add("b", 17)
    engine.step(admit=["b"])
    for _ in range(3):
        engine.land()
        engine.step()
    engine.finish("b")
    engine.drain()
    ready = engine.tier.statistics().ready
    engine.tier.reserve([(0, f"alien {number}".encode()) for number in range(18 - ready + 5 + 3)])

    assert [engine.has("a", group, range(4)) for group in range(3)] == [{0, 1, 2, 3}, {2, 3}, {3}]
    assert engine.has("z", 0, [0]) == set()


@AHEAD
def test_s4_sliding_sources_are_fenced_from_creation(ahead: int) -> None:
    """A block that leaves the window while its store runs is handed out only with the wait for that job in the same plan."""
    engine = Engine("swa:4:8", blocks=5, contract=Contract.FENCE, ahead=ahead)
    engine.add("a", 12)
    engine.step(admit=["a"])
    (job,) = stored_until(engine).plan.stores
    flushed = []
    for _ in range(12):
        before = engine.blocks("a")
        step = engine.step()
        fresh = set(engine.blocks("a")) - set(before) - {0}
        if fresh & set(job.source.tolist()):
            flushed.append(step.plan.flushes)

    assert flushed[0] == (job.job,)
    assert engine.state("a") is Request.RUNNING


@AHEAD
def test_s4_sliding_sources_are_held_from_creation(ahead: int) -> None:
    """Under hold the same request finds no room until the copy has landed."""
    engine = Engine("swa:4:8", blocks=5, contract=Contract.HOLD, ahead=ahead)
    engine.add("a", 12)
    engine.step(admit=["a"])
    stored_until(engine)
    steps = [engine.step() for _ in range(12)]
    engine.land()
    engine.step()
    after = engine.step()

    assert steps[-1].short == ("a",)
    assert all(step.plan.flushes == () for step in steps)
    assert after.short == ()


@BOTH
@AHEAD
def test_s4_other_sources_are_fenced_from_the_end_of_the_request(contract: Contract, ahead: int) -> None:
    """While it runs nobody can get the block; when it ends, only with the wait, or not before the landing."""
    engine = Engine("full:4", blocks=5, contract=contract, ahead=ahead)
    engine.add("a", 9)
    engine.add("b", OTHER[:12])
    engine.step(admit=["a"])
    (job,) = stored_until(engine).plan.stores
    during = [engine.step({}, admit=["b"]) for _ in range(2)]
    engine.finish("a")
    after = engine.step({}, admit=["b"])

    assert all(step.refused == ("b",) and not step.plan.flushes for step in during)
    assert after.plan.flushes == ((job.job,) if contract is Contract.FENCE else ())
    assert after.refused == (() if contract is Contract.FENCE else ("b",))


@BOTH
@AHEAD
@pytest.mark.parametrize(("group", "lost", "wrong"), [(1, (0, 1), 0), (2, (0, 1), 0)], ids=["sliding", "state"])
def test_s4_planted_window_ignored_in_lookup(
    contract: Contract, ahead: int, group: int, lost: Sequence[int], wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lookup that asks every group for the whole prefix, as if all were full, misses what it should find."""
    without(monkeypatch, search, "unit_of", {"tokens=tokens * size, window=window,": "tokens=tokens * size, window=None,"})
    engine = hybrid(contract, ahead)
    engine.forget("a", group, lost)
    engine.add("b", 18)

    assert engine.scheduler.lookup("b", 18).tokens == wrong


@BOTH
@AHEAD
def test_s4_planted_window_too_short_cannot_be_loaded(contract: Contract, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of one chunk where two are read finds a hit that no load can bring."""
    without(monkeypatch, search, "unit_of", {"window = -(-blocks // size)": "window = 1", "tail = blocks - ": "tail = 1 or "})
    engine = hybrid(contract, ahead)
    engine.forget("a", 1, (2,))
    engine.add("b", 18)

    with pytest.raises(KeyError):
        engine.scheduler.lookup("b", 18)


# --- S5: the last step ----------------------------------------------------------------------------------------------------


def everything_out(contract: Contract, ahead: int, policy: LastStep, others: Sequence[str] = ()) -> Engine:
    """A store of *a* and loads of *b* and, if it is among the others, of *loading* are out; *a* and *b* are about to end."""
    engine = Engine("full:4", blocks=24, slots=16, contract=contract, ahead=ahead, policies=Policies(last_step=policy))
    engine.prepare("p", 9)
    engine.prepare("q", OTHER[50:59])
    for name in others:
        engine.add(name, OTHER[50:59] if name == "loading" else OTHER[20:25])
    engine.add("a", OTHER[:9])
    engine.add("b", 9)
    engine.step(admit=["a", "b", *(name for name in others if name != "waiting")])
    while not any(copy.stores for copy in engine.device.copies.values()):
        engine.step({})
    assert [copy.stores for copy in engine.device.copies.values()].count(False) == 1 + ("loading" in others)
    return engine


def last_steps(engine: Engine) -> int:
    """How many jobs were waited for because it was the last step; what the scene needed is not counted."""
    return engine.ledger.counts.flushes["last step"] - 2


@BOTH
@AHEAD
def test_s5_last_step_flushes_every_job_loads_too(contract: Contract, ahead: int) -> None:
    """The step in which the last unfinished request ends waits for all that is out; no later work is needed."""
    engine = everything_out(contract, ahead, LastStep.FLUSH)
    out = engine.out()
    engine.finish("a")
    engine.abort("b")
    step = engine.step({})
    while engine.plans:
        engine.settle()

    assert sorted(step.plan.flushes) == sorted(out)
    assert not engine.scheduler.has_pending_work()
    assert engine.left_behind() == []
    assert last_steps(engine) == 2


@BOTH
@AHEAD
def test_s5_last_step_flushes_although_all_reports_are_lost(contract: Contract, ahead: int) -> None:
    """The plan's settling is the proof; no report is needed for it."""
    engine = everything_out(contract, ahead, LastStep.FLUSH)
    engine.silent.update(engine.out())
    engine.finish("a")
    engine.abort("b")
    engine.step({})
    while engine.plans:
        engine.settle()

    assert not engine.scheduler.has_pending_work()
    assert engine.left_behind() == []


@BOTH
@AHEAD
def test_s5_drain_ticks_until_every_job_has_reported(contract: Contract, ahead: int) -> None:
    """No wait is ordered; work is pending as long as one copy is out, and nothing is left behind."""
    engine = everything_out(contract, ahead, LastStep.DRAIN)
    out = engine.out()
    engine.finish("a")
    engine.abort("b")
    steps = []
    for job in out:
        steps += [engine.step({}) for _ in range(3)]
        assert engine.scheduler.has_pending_work()
        engine.land(job)
    engine.drain()

    assert all(step.plan.flushes == () for step in steps)
    assert not engine.scheduler.has_pending_work()
    assert engine.left_behind() == []
    assert engine.has("a", 0, range(2)) == {0, 1}


@BOTH
@AHEAD
@pytest.mark.parametrize("other", ["waiting", "running", "loading", "preempted"])
def test_s5_flush_comes_exactly_when_the_last_request_has_ended(contract: Contract, ahead: int, other: str) -> None:
    """As long as one request is not over, whatever its state, nothing is waited for; with its end everything is."""
    engine = everything_out(contract, ahead, LastStep.FLUSH, others=[other])
    if other == "preempted":
        engine.step({}, preempt=[other])
    engine.finish("a")
    engine.abort("b")
    before = [engine.step({}) for _ in range(3)]
    assert engine.state(other).name.lower() == other
    assert all(step.plan.flushes == () for step in before)
    assert last_steps(engine) == 0
    engine.finish(other)
    out = engine.out()
    step = engine.step({})

    assert set(step.plan.flushes) == set(out)
    assert last_steps(engine) == len(out) >= 1


@BOTH
@AHEAD
def test_s5_nobody_tracked_and_nothing_out_is_no_last_step(contract: Contract, ahead: int) -> None:
    """An idle scheduler ticks without any wait."""
    engine = Engine(contract=contract, ahead=ahead)
    steps = [engine.step({}) for _ in range(3)]

    assert all(step.plan.empty for step in steps)
    assert engine.ledger.counts.flushes["last step"] == 0


def test_s5_many_requests_that_end_in_one_step() -> None:
    """With asynchronous scheduling all of them wait for their plan, and it is the last step whatever their number."""
    engine = Engine("full:4", blocks=256, slots=128, max_jobs=128, ahead=1, policies=Policies(max_job_blocks=1))
    names = [f"r{number}" for number in range(70)]
    for number, name in enumerate(names):
        engine.add(name, [1000 + number] * 5)
    engine.step(admit=names)
    stored_until(engine)
    engine.step()
    out = engine.out()
    for name in names:
        engine.finish(name)
    step = engine.step({})

    assert len(out) == 70
    assert set(step.plan.flushes) == set(out)


@BOTH
@AHEAD
def test_s5_planted_no_request_is_tracked_never_flushes(
    contract: Contract, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The condition "no request is tracked" is a no-op: a request is tracked as long as a job of it is out."""
    monkeypatch.setattr(SchedulerSteps, "is_last_step", lambda self: not self._state.requests and not self._state.outlived)

    with pytest.raises(AssertionError):
        test_s5_last_step_flushes_every_job_loads_too(contract, ahead)


@BOTH
@AHEAD
def test_s5_planted_flush_without_loads(contract: Contract, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for stores only leaves the load of an aborted request behind."""
    without(
        monkeypatch,
        SchedulerSteps,
        "make_plan",
        {"(jobs := self._jobs.submitted(on_device=True)).ids": '(jobs := self._jobs.of("a")).ids'},
    )

    with pytest.raises(AssertionError):
        test_s5_last_step_flushes_every_job_loads_too(contract, ahead)
