"""What the scenario files S1 to S5 do not vary: sizes of chunks with holes, lengths on which groups agree, who ends last.

Method: a scripted engine, so small that every block can be followed, under both contracts, with synchronous and asynchronous
scheduling; its device never asks the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from blocklife.ledger import Contract
from blocklife.offload import Geometry, LastStep, Policies
from blocklife.offload import _search as search
from blocklife.offload._lookup import Ask, Found, Unit, common_length
from blocklife.states import Request
from tests.engines import AHEAD, Engine, computed, stored_until
from tests.worlds import BOTH, slot_with

pytestmark = pytest.mark.interpreted
OTHER = range(100, 200)
"""Tokens that no other prompt has."""


# --- S1: a stale entry is never a copy source -------------------------------------------------------------------------------


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
