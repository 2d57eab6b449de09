"""What vLLM's tests of its offloading scheduler say about peers and promotions, said of our connector with a store below.

Goal: who fetches content that another engine has used finds all of it, and a reset does not mix old copies with what comes from
below. Method: rigs on one folder of files, with vLLM's real scheduler; every byte is checked when it is read. Which test of
theirs each of these stands for is in `tests/vllm/behaviour/table.toml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve

from tests.vllm.behaviour.scenes import FULL, ROOMY, WINDOW, prompt
from tests.vllm.connector_worlds import AHEAD
from tests.vllm.test_connector_below import BelowRig
from tests.vllm.worlds import GroupSpec, Lag, WorldSpec

Make = Callable[[WorldSpec], BelowRig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes rigs on one folder, and ends them."""
    made: list[BelowRig] = []

    def make(spec: WorldSpec) -> BelowRig:
        made.append(BelowRig(spec, f"fs:{tmp_path / 'store'}:64M"))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@AHEAD
@pytest.mark.parametrize("groups", [(FULL,), (FULL, WINDOW)], ids=["full", "full and window"])
def test_peer_finds_what_a_request_has_loaded_and_what_it_has_computed(
    make: Make, groups: tuple[GroupSpec, ...], ahead: bool
) -> None:
    """A request loads a half of its prompt from the host and computes the rest: another engine fetches both, and computes one
    token. Nothing has to be stored a second time for that."""
    spec = evolve(ROOMY, groups=groups, async_scheduling=ahead, dense_retention=True)
    rig = make(spec)
    rig.ask(prompt(16), 1)
    assert rig.reset_prefix_cache()
    stored = rig.stored
    rig.ask(prompt(33), 1)
    again, loaded = rig.stored - stored, rig.loaded
    peer = make(spec)
    peer.ask(prompt(33), 1)

    assert loaded > 0
    assert again == 4 * len(groups)
    assert peer.below.promoted == 8 + (2 if len(groups) > 1 else 0)
    assert peer.stored == 0


def test_reset_with_copies_out_fetches_nothing_from_below(make: Make) -> None:
    """Stores that were out when everything was forgotten hold every slot of the host. Nothing is fetched into them, before they
    have reported or after it: with the reset, the engine has forgotten what is below as well. Another engine fetches it."""
    make(ROOMY).ask(prompt(17, 5000), 1)
    rig = make(evolve(ROOMY, host_blocks=4, lag=Lag(12, 12)))
    rig.add(prompt(16), 1)
    while rig.running:
        rig.step()
    old = rig.side.ledger.jobs.live
    assert rig.scheduler.reset_prefix_cache(reset_connector=True)
    assert rig.scheduler.has_requests()
    rig.ask(prompt(17, 5000), 1)
    peer = make(ROOMY)
    peer.ask(prompt(17, 5000), 1)

    assert old > 0
    assert rig.below.promoted == 0
    assert peer.below.promoted == 4
