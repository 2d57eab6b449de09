"""Loads within a step, under vLLM's real scheduler: small hits are there before the forward pass of the step that finds them.

Goal: whoever runs behind such a load reads the right bytes or none at all, and where the load fails nobody else reads anything
of what was named too early. Method: the rig, with copies that lag and fail; a request whose load has failed is allowed to read
garbage, but its answer must never be seen.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.vllm.connector_rig import ConnectorRig, walk
from tests.vllm.test_connector import CROWDED, MODELS, ROOMY, ask, prompt
from tests.vllm.worlds import Lag

ALL = {"sync_load_budget_bytes": "1GiB"}
STATELESS = [model for model in MODELS if model not in ("full and state", "all")]


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("model", STATELESS)
def test_small_hit_is_there_in_the_step_that_finds_it(model: str, ahead: bool) -> None:
    """A prompt that the device has forgotten is answered in as many steps as one that it has, and every byte is right."""
    steps = []
    for extra in (ALL, {}):
        rig = ConnectorRig(
            evolve(ROOMY, groups=MODELS[model], async_scheduling=ahead, world_size=2, lag=Lag(0, 3), extra_config=extra)
        )
        ask(rig, prompt(41))
        rig.reset_prefix_cache()
        rig.add(prompt(41), 2)
        begun = rig.step_number
        while rig.running:
            rig.step()
        steps.append(rig.step_number - begun)
        rig.drain()
        rig.check_empty()
        assert rig.loaded >= len(MODELS[model])
    assert steps[0] < steps[1]


@pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", [1, 2])
def test_connector_walks_with_loads_within_steps(model: str, ahead: bool, seed: int) -> None:
    """Random traffic under pressure, two workers, with all hits that a budget has room for."""
    world = evolve(CROWDED, groups=MODELS[model], async_scheduling=ahead, world_size=2, extra_config=ALL)
    rig = ConnectorRig(world, seed)
    walk(rig, seed)

    assert (rig.side.ledger.flushes["within the step"] > 0) is (model in STATELESS)
