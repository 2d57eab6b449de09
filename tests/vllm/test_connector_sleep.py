"""Sleep mode: the device's memory is given up and comes back empty, and what the host tier has stays right.

Goal: no copy touches memory that is gone, nothing that was there is believed afterwards, and a host tier that stays is hit.
Method: vLLM's own `EngineCore.sleep` and `wake_up` with its scheduler and our connector on both sides; in place of the device's
allocator the rig's memory is filled with junk. What a GPU's driver does with the addresses is not tested here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve
from vllm.distributed.kv_events import AllBlocksCleared, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.v1.core.sched.interface import PauseState

from blocklife.engines.vllm.connector._connector import BlocklifeConnector
from tests.vllm.beside_rig import BesideRig
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.connector_worlds import AHEAD, MODELS, ROOMY, ask, prompt
from tests.vllm.listeners import send_events
from tests.vllm.naps import core_of, nap
from tests.vllm.second import Habits, SecondConnector
from tests.vllm.worlds import Extra, Lag


@pytest.mark.sampled
@AHEAD
@pytest.mark.parametrize("model", MODELS)
def test_connector_keeps_the_host_while_the_engine_sleeps(model: str, ahead: bool) -> None:
    """What was stored before is loaded afterwards, on every worker, and nothing of the device is believed to be there."""
    extra = {"sleep_keeps_host": True}
    rig = ConnectorRig(evolve(ROOMY, groups=MODELS[model], async_scheduling=ahead, world_size=2, extra_config=extra))
    ask(rig, prompt(41))
    nap(rig)
    ask(rig, prompt(41))
    first = rig.loaded
    nap(rig)
    nap(rig)
    ask(rig, prompt(41))

    assert first >= len(MODELS[model])
    assert rig.loaded == 2 * first
    assert rig.verified > 0


@pytest.mark.parametrize("mode", ["abort", "keep"])
@pytest.mark.parametrize("keeps", [False, True], ids=["forgets", "keeps"])
@pytest.mark.parametrize("policy", ["eager", "lazy"])
def test_connector_waits_for_copies_before_the_engine_sleeps(policy: str, keeps: bool, mode: str) -> None:
    """Stores that are out, or that a worker keeps for its next step, land before the memory is gone; none reads it after."""
    extra: Extra = {"sleep_keeps_host": keeps, "mode": policy}
    for steps in range(1, 14):
        rig = ConnectorRig(evolve(ROOMY, num_gpu_blocks=14, lag=Lag(9, 9), extra_config=extra))
        for start in (100, 200):
            rig.add(prompt(30, start), 6)
        for _ in range(steps):
            rig.step()
        nap(rig, renew=not keeps, mode=mode)
        rig.check()
        for start in (100, 200, 100, 200):
            ask(rig, prompt(30, start))

        assert rig.loaded > 0


def test_connector_forgets_the_host_where_the_engine_may_have_other_weights() -> None:
    """By default vLLM's word counts: it resets the connector before it sleeps, and the weights may be others afterwards."""
    rig = ConnectorRig(ROOMY)
    ask(rig, prompt(40))
    nap(rig, renew=True)
    ask(rig, prompt(40))

    assert rig.loaded == 0


def _reset(rig: ConnectorRig) -> None:
    rig.reset_prefix_cache(reset_running=True, reset_connector=True)
    rig.renew_weights()


def _sleep_and_reset(rig: ConnectorRig) -> None:
    nap(rig)
    _reset(rig)


def _reset_and_sleep(rig: ConnectorRig) -> None:
    _reset(rig)
    nap(rig)


def _pause(rig: ConnectorRig) -> None:
    core = core_of(rig)
    core.pause_scheduler("abort")
    rig.renew_weights()
    core.resume_scheduler()


def _lie_down(rig: ConnectorRig) -> None:
    nap(rig)
    core = core_of(rig)
    core.pause_scheduler("abort")
    rig.renew_weights()
    core.wake_up()  # it was only paused: nobody has slept since


@pytest.mark.parametrize(
    "renewal", [_reset, _sleep_and_reset, _reset_and_sleep, _pause, _lie_down], ids=lambda each: each.__name__
)
def test_connector_forgets_the_host_for_any_other_reset(renewal: Callable[[ConnectorRig], None]) -> None:
    """Only the reset that comes with a sleep is none: others are for new weights, before a sleep or after it."""
    rig = ConnectorRig(evolve(ROOMY, extra_config={"sleep_keeps_host": True}))
    ask(rig, prompt(40))
    renewal(rig)
    ask(rig, prompt(40))

    assert rig.loaded == 0


def test_connector_forgets_the_host_at_once_while_requests_run() -> None:
    """The engine cannot sleep then: it is a reset of the connector alone."""
    rig = ConnectorRig(evolve(ROOMY, extra_config={"sleep_keeps_host": True}))
    rig.add(prompt(40), 9)
    for _ in range(4):
        rig.step()
    rig.side.reset()

    assert not rig.side._may_sleep
    rig.drain()
    rig.check_empty()


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


def test_connector_says_that_it_can_sleep() -> None:
    """vLLM refuses sleep mode with a connector that does not."""
    assert BlocklifeConnector.supports_sleep_mode(object())
