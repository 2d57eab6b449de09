"""vLLM's P2P tier under the watch: two engines that fetch each other's content, every byte compared."""

from __future__ import annotations

from random import Random

import pytest
from attrs import evolve

from blocklife.engines.vllm.watch import Options, WatchMode, attach
from tests.vllm.peers import Loopback, PeerRig, two_engines
from tests.vllm.worlds import TIERED, Lag

SPECS = {"peers": TIERED["below"].spec, "peers-window": TIERED["below-window"].spec}


def loopback(rig: PeerRig) -> Loopback:
    """The data side of an engine's tier."""
    assert rig.disk is not None
    found = rig.disk.tier._data
    assert isinstance(found, Loopback)
    return found


@pytest.mark.sampled
@pytest.mark.parametrize("faults", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SPECS)
def test_watch_is_silent_over_two_engines_that_share(name: str, seed: int, faults: float) -> None:
    """Prompts that either has computed, asked for of the other; some transfers fail, and some requests are given up."""
    rng = Random(f"{seed}/peers")
    prompts = [[rng.randrange(5, 5000) for _ in range(rng.randrange(8, 48))] for _ in range(10)]
    with two_engines(evolve(SPECS[name], world_size=1), seed, Lag(0, 4), faults) as (wire, *rigs):
        watches = [attach(rig.scheduler, Options(mode=WatchMode.STRICT)) for rig in rigs]
        for wire.step in range(1, 601):
            for rig, other in zip(rigs, ("b", "a"), strict=True):
                if wire.step < 300 and len(rig.running) < 6 and rng.random() < 0.3:
                    rig.other = other if rng.random() < 0.7 else None
                    rig.add(rng.choice(prompts), rng.randrange(1, 8))
                elif rig.running and rng.random() < 0.01:
                    rig.abort(rng.choice(sorted(rig.running)))
                elif rng.random() < 0.03:
                    rig.reset_prefix_cache()
                rig.tick()
        written = sum(loopback(rig).written for rig in rigs)
        failed = sum(loopback(rig).failed for rig in rigs)
        found = [dict(watch.counts) for watch in watches]
        for watch in watches:
            watch.close()

        assert found == [{}, {}]
        assert [rig.corruptions for rig in rigs] == [[], []]
        assert [rig.wrong_texts for rig in rigs] == [[], []]
        assert [rig.running for rig in rigs] == [set(), set()]
        assert written > 20
        assert bool(failed) is bool(faults)
        assert all(rig.verified > 100 for rig in rigs)
