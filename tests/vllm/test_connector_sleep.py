"""Sleep mode: the device's memory is given up and comes back empty, and what the host tier has stays right.

Goal: no copy touches memory that is gone, nothing that was there is believed afterwards, and a host tier that stays is hit.
Method: vLLM's own `EngineCore.sleep` and `wake_up` with its scheduler and our connector on both sides; in place of the device's
allocator the rig's memory is filled with junk. What a GPU's driver does with the addresses is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve
from vllm.distributed.kv_events import MEDIUM_STORAGE, AllBlocksCleared, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.v1.core.sched.interface import PauseState

from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from tests.behind.scenes import Scene
from tests.vllm.below_rig import BelowRig
from tests.vllm.beside_rig import BesideRig
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.connector_worlds import ROOMY, ask, prompt
from tests.vllm.listeners import DESCRIBING, listen, send_events
from tests.vllm.naps import core_of, nap
from tests.vllm.second import Habits, SecondConnector
from tests.vllm.stage import play, scenes

SCENES = scenes("""
host-is-kept-while-the-engine-sleeps model=* ahead=* world_size=2 sleep_keeps_host=yes
    # what was stored before is loaded afterwards, on every worker, and nothing of the device is believed to be there
    ask 41 2; sleep; ask 41 2; note first loaded; then first >= groups; sleep; sleep; ask 41 2
    then loaded == 2 * first and verified > 0
copies-are-waited-for-before-the-engine-sleeps num_gpu_blocks=14 lag=9 $steps=1|2|3|4|5|6|7|8|9|10|11|12|13 $renew=no
    with mode=eager|lazy $how=abort|keep sleep_keeps_host=yes
    # stores that are out, or that a worker keeps for its next step, land before the memory is gone; none reads it after
    add 30@100 6; add 30@200 6; step {steps}; sleep renew={renew} mode={how}; check
    ask 30@100 2; ask 30@200 2; ask 30@100 2; ask 30@200 2; then loaded > 0
copies-are-waited-for-although-the-host-forgets num_gpu_blocks=14 lag=9 $steps=1|2|3|4|5|6|7|8|9|10|11|12|13 $renew=yes
    with mode=eager|lazy $how=abort|keep
    like copies-are-waited-for-before-the-engine-sleeps
host-is-forgotten-where-the-engine-may-have-other-weights
    # by default vLLM's word counts: it resets the connector before it sleeps, and the weights may be others afterwards
    ask 40 2; sleep renew=yes; ask 40 2; then loaded == 0
# only the reset that comes with a sleep is none: others are for new weights, before a sleep or after it
host-is-forgotten-by-a-reset sleep_keeps_host=yes
    ask 40 2; reset running connector; renew_weights; ask 40 2; then loaded == 0
host-is-forgotten-by-a-reset-behind-a-sleep sleep_keeps_host=yes
    ask 40 2; sleep; reset running connector; renew_weights; ask 40 2; then loaded == 0
host-is-forgotten-by-a-reset-ahead-of-a-sleep sleep_keeps_host=yes
    ask 40 2; reset running connector; renew_weights; sleep; ask 40 2; then loaded == 0
host-is-forgotten-by-a-pause sleep_keeps_host=yes
    ask 40 2; stop; ask 40 2; then loaded == 0
host-is-forgotten-by-a-pause-behind-a-sleep sleep_keeps_host=yes
    # it wakes up, although nobody has slept since
    ask 40 2; sleep; stop wakes=yes; ask 40 2; then loaded == 0
host-is-forgotten-at-once-while-requests-run sleep_keeps_host=yes
    # the engine cannot sleep then: it is a reset of the connector alone
    add 40 9; step 4; reset_host; then not side._may_sleep; drain
""")


@pytest.mark.parametrize("scene", SCENES)
def test_sleep_scene(scene: Scene) -> None:
    """A small story, each with one thing that could go wrong in it."""
    play(scene)


def test_connector_goes_on_where_it_was_only_paused() -> None:
    """A pause of scheduling alone gives nothing up, and who runs goes on, also in an engine that has slept before."""
    rig = ConnectorRig(evolve(ROOMY, extra_config={"sleep_keeps_host": True}))
    nap(rig)
    rig.add(prompt(40), 20)
    for _ in range(6):
        rig.step()
    core = core_of(rig)
    core.sleep(0, "keep")
    paused = rig.scheduler.pause_state
    core.wake_up()
    rig.drain()
    rig.check_empty()

    assert paused is PauseState.PAUSED_ALL
    assert len(rig.finished) == 1


class Handshake(KVConnectorHandshakeMetadata):  # type: ignore[misc]  # vLLM has no types
    """What another connector says."""


@pytest.mark.parametrize("first", [True, False], ids=["ours first", "the other first"])
def test_connector_shakes_no_hands_beside_others(monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    """MultiConnector hands the first thing that is said to all, and NIXL's connector, for example, fails at what is not its.

    So the scheduler's half hears of no sleep, and the host tier is forgotten, whatever `sleep_keeps_host` says.
    """
    heard = []
    monkeypatch.setattr(SecondConnector, "get_handshake_metadata", lambda self: Handshake(), raising=False)
    monkeypatch.setattr(
        SecondConnector, "set_xfer_handshake_metadata_pp_aware", lambda self, said: heard.extend(said.values()), raising=False
    )
    world = evolve(ROOMY, extra_config={"sleep_keeps_host": True})
    rig = BesideRig(world, 0, Habits(brings=0, sends=0), first=first)
    ask(rig, prompt(41))
    nap(rig)
    ask(rig, prompt(41))

    assert [type(each) for each in heard] == [Handshake]
    assert rig.stored > 0
    assert rig.loaded == 0


def test_connector_tells_again_what_stays_while_the_engine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's reset ahead of a sleep tells that everything is gone, in every tier: a router would take it at its word."""
    send_events(monkeypatch)
    rig = ConnectorRig(evolve(ROOMY, extra_config={"sleep_keeps_host": True, "self_describing_kv_events": True}))
    told: list[object] = []
    publisher = rig.scheduler.kv_event_publisher
    monkeypatch.setattr(publisher, "publish", lambda batch: told.extend(batch.events))
    ask(rig, prompt(41))
    nap(rig)
    before = told.copy()
    told.clear()
    ask(rig, prompt(9, 500))
    hosted = [each for each in before if isinstance(each, BlockStored) and each.medium != "GPU"]
    again = [each for each in told if isinstance(each, BlockStored) and each.medium != "GPU"]

    assert [type(each) for each in told].index(AllBlocksCleared) < told.index(again[0])
    assert [(each.block_hashes, each.token_ids, each.parent_block_hash) for each in again[: len(hosted)]] == [
        (each.block_hashes, each.token_ids, each.parent_block_hash) for each in hosted
    ]
    assert len(hosted) > 5


def test_connector_tells_again_what_stays_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was told before, and nothing of it as removed."""
    send_events(monkeypatch)
    rig = BelowRig(ROOMY, f"fs:{tmp_path / 'store'}:64M", options={**DESCRIBING, "sleep_keeps_host": True})
    below = listen(rig, MEDIUM_STORAGE)
    rig.ask(prompt(41))
    before = sorted(below.stored, key=lambda event: event.block_hashes)
    below.events.clear()
    nap(rig)
    rig.ask([1, 2])
    rig.close()

    assert len(before) > 5
    assert sorted(below.stored, key=lambda event: event.block_hashes) == before
    assert not below.removed


def test_connector_says_that_it_can_sleep() -> None:
    """vLLM refuses sleep mode with a connector that does not."""
    assert BlocklifeConnector.supports_sleep_mode(object())
