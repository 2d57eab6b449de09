"""Loads within a step, under vLLM's real scheduler: small hits are there before the forward pass of the step that finds them.

Goal: whoever runs behind such a load reads the right bytes or none at all, and where the load fails nobody else reads anything
of what was named too early. Method: the rig, with copies that lag and fail; a request whose load has failed is allowed to read
garbage, but its answer must never be seen.
"""

from __future__ import annotations

import pytest
from attrs import evolve

from tests.behind.scenes import Scene
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.connector_worlds import AHEAD, MODELS, ROOMY, ask, prompt
from tests.vllm.stage import play, scenes
from tests.vllm.worlds import Lag

ALL = {"sync_load_budget_bytes": "1GiB"}
STATELESS = [model for model in MODELS if model not in ("full and state", "all")]
SCENES = scenes(
    """
request-of-a-failed-load-ends-and-who-shares-its-prompt-does-not ahead=* world_size=1|2
    # they come in one step: one loads, the other waits, and computes what did not come
    ask 41 2; reset; lose_loads; add 41 3; add 41+3@7 3; drain; then void_once == {"r1"}
    then (finished["r1"], len(finished["r2"])) == ([], 3); ask 41+4@7 3
nobody-hits-what-was-named-behind-a-failed-load ahead=* $late=no|yes
    # its request is over before the failure is heard of: vLLM's pool has its blocks, and forgets them
    ask 41 2; reset; lose_loads; add 41 9; step; abort r1 late={late}; drain; ask 41+1@7 3; then void_once == {"r1"}
nothing-is-stored-that-was-computed-behind-a-failed-load ahead=*
    # it is garbage: host memory never has it
    ask 21 2; reset; lose_loads; add 50 9; drain; reset; fail; ask 50 3; then void_once == {"r1"} and loaded == 0
engine-stops-where-vllm-cannot-be-told-of-a-failed-load ahead=* model=window|full_and_window
    # with several groups, or a window, vLLM has no word for it: nothing that was sampled from garbage is answered
    ask 41 2; reset; lose_loads; add 41 3; stops request r1: a load failed that its step was to read
    then not finished.get("r1")
requests-of-a-step-share-the-budget kind=plain blocks_per_chunk=3 budget_tokens=24
    # of two hits that a step finds, the one that still fits loads within it, and the other between two
    ask 25 2; ask 37@500 2; reset; note begun step_number; add 25; add 37@500; step; then step_number == begun + 1
    then list(finished)[2:] == ["r2"]; drain; then loaded == 6 + 9 and flushes["within the step"] == 1
""",
    {"kind": "failing", "sync_load_budget_bytes": "1GiB"},
)


@pytest.mark.parametrize("scene", SCENES)
def test_within_scene(scene: Scene) -> None:
    """A small story, each with one thing that could go wrong in it."""
    play(scene)


@AHEAD
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
