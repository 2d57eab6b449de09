"""What vLLM's tests of its offloading scheduler say about waits, aborts and resets, said of our connector.

Goal: nobody writes where a copy still reads, nobody waits without need, and a reset is over when the last copy has reported.
Method: the rig with vLLM's real scheduler and copies that take many steps; what a step waits for is read from the plans, and
every byte is checked when it is read. Which test of theirs each of these stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

import pytest
from attrs import evolve
from vllm.v1.outputs import KVConnectorOutput

from blocklife.engines.vllm.connector._connector import WorkerMetadata
from blocklife.engines.vllm.connector._messages import WorkerReport
from blocklife.ledger import Completion, Direction, Result, Worker
from blocklife.states import Slot
from tests.vllm.behaviour.scenes import FULL, ROOMY, WINDOW, Scene, prompt
from tests.vllm.connector_worlds import AHEAD
from tests.vllm.worlds import GroupSpec, Lag

SLOW = Lag(40, 40)


def slots(scene: Scene) -> dict[str, int]:
    """Slots of the host tier that are in use, by their state."""
    count = scene.rig.side.ledger.slots.count()
    return {state.name: count[state] for state in Slot if state is not Slot.EMPTY and count[state]}


@AHEAD
def test_aborted_request_that_waits_stores_nothing(ahead: bool) -> None:
    """A request that is given up before it was ever scheduled leaves nothing: no store, no name in the host, no request."""
    scene = Scene(world=evolve(ROOMY, max_num_seqs=1), ahead=ahead)
    scene.add(prompt(16), 4)
    scene.rig.step()
    waits = scene.add(prompt(16, start=5000))
    names = list(scene.rig.scheduler.requests[waits].block_hashes)
    scene.rig.step()
    scene.rig.abort(waits)
    known = [name for name in scene.rig.side.ledger.requests if name.startswith(waits)]
    scene.drain()

    assert known == []
    assert scene.has(names) == []
    assert scene.sizes(Direction.STORE) == (4,)


@AHEAD
def test_load_holds_its_blocks_and_waits_for_nobody(ahead: bool) -> None:
    """While a load is out its blocks are nobody else's, so no step ever has to wait for it."""
    scene = Scene(world=evolve(ROOMY, num_gpu_blocks=14), lag=Lag(20, 20), ahead=ahead)
    scene.ask(prompt(16))
    scene.reset_device()
    scene.add(prompt(17))
    scene.rig.step()
    (load,) = scene.loads
    others = [scene.add(prompt(12, start=1000 * number), 6) for number in (5, 6, 7)]
    seen: set[int] = set()
    while scene.rig.side.ledger.jobs.live and scene.rig.side.ledger.jobs.is_out(load.job.number) and scene.rig.step():
        manager = scene.rig.scheduler.kv_cache_manager
        seen.update(*[manager.get_block_ids(name)[0] for name in others if name in scene.rig.scheduler.requests])
    scene.drain()

    assert seen
    assert seen.isdisjoint(load.target.tolist())
    assert load.job.number not in scene.waited_for()


@AHEAD
@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW)], ids=["full", "full and window"])
def test_load_into_a_block_that_a_store_reads_waits_for_the_store(groups: tuple[GroupSpec, ...], ahead: bool) -> None:
    """A load whose blocks were handed out while a store reads them comes with a step that waits for that store first."""
    scene = Scene(groups, world=evolve(ROOMY, num_gpu_blocks=1 + 5 * len(groups)), lag=SLOW, ahead=ahead)
    scene.ask(prompt(16))
    scene.reset_device()
    scene.add(prompt(20, start=5000))
    while scene.rig.running:
        scene.rig.step()
    scene.rig.reset_prefix_cache()
    reading = {each.job.number: set(each.source.tolist()) for each in scene.stores}
    scene.add(prompt(17))
    while not scene.loads:
        scene.rig.step()
    (load,) = scene.loads
    read = {number for number, blocks in reading.items() if blocks & set(load.target.tolist())}
    waits = scene.waited_for()
    scene.drain()

    assert read
    assert read <= waits


# --- resets -----------------------------------------------------------------------------------------------------------------


@AHEAD
def test_reset_while_a_load_is_out(ahead: bool) -> None:
    """A reset of the host tier lets a load that is out go on; its slots are given back when it has landed, and not before."""
    scene = Scene(chunk=3, lag=Lag(8, 8), ahead=ahead)
    names = scene.ask(prompt(13))
    scene.reset_device()
    name = scene.add(prompt(14), 12)
    scene.rig.step()
    scene.rig.scheduler.connector.reset_cache()
    while_out, found = slots(scene), scene.has(names)
    scene.drain()

    assert while_out == {"STALE": 1}
    assert found == []
    assert len(scene.rig.finished[name]) == 12
    assert scene.has(names) == [2]


@AHEAD
def test_reset_drops_the_stores_of_who_is_over(ahead: bool) -> None:
    """The stores that a request has left behind come to nothing with a reset, and nothing of it stays."""
    scene = Scene(chunk=3, lag=SLOW, ahead=ahead)
    scene.add(prompt(24), 25)
    while scene.rig.running:
        scene.rig.step()
    out = scene.rig.side.ledger.jobs.live
    scene.rig.scheduler.connector.reset_cache()
    scene.drain()

    assert out > 0
    assert slots(scene) == {}


@AHEAD
def test_reset_keeps_the_engine_until_copies_have_reported(ahead: bool) -> None:
    """With stores out a reset of everything keeps the engine stepping; until they have reported nobody gets their slots."""
    scene = Scene(world=evolve(ROOMY, host_blocks=4), lag=Lag(10, 10), ahead=ahead)
    scene.add(prompt(16))
    while scene.rig.running:
        scene.rig.step()
    before = scene.rig.side.ledger.jobs.live
    reset = scene.rig.scheduler.reset_prefix_cache(reset_connector=True)
    goes_on, free = scene.rig.scheduler.has_requests(), len(scene.rig.side.ledger.slots.next_empty(4))
    scene.rig.drain()

    assert before > 0
    assert reset
    assert goes_on
    assert free == 0
    assert not scene.rig.scheduler.has_requests()
    assert slots(scene) == {}
    scene.rig.check_empty()


def test_reset_is_not_over_with_reports_of_other_copies() -> None:
    """A report of a copy that was over before the reset, once more, lets nobody believe that the reset is over."""
    scene = Scene(lag=Lag(10, 10))
    scene.ask(prompt(16))
    old = scene.stores[0].job
    scene.add(prompt(16, start=5000))
    while scene.rig.running:
        scene.rig.step()
    scene.rig.scheduler.reset_prefix_cache(reset_connector=True)
    again = WorkerReport(scene.steps[-1].number, completions=(Completion(old, Worker(0), Result.OK),))
    scene.rig.scheduler.connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=WorkerMetadata(again)))
    goes_on = scene.rig.scheduler.has_requests()
    scene.drain()

    assert goes_on
    assert not scene.rig.scheduler.has_requests()


def test_reset_without_copies_holds_nothing() -> None:
    """With nothing out a reset is over at once, and the engine is idle."""
    scene = Scene()
    scene.ask(prompt(16))

    assert scene.rig.scheduler.reset_prefix_cache(reset_connector=True)
    assert not scene.rig.scheduler.has_requests()
    assert slots(scene) == {}
