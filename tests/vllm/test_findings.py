"""Faults of vLLM itself that the rig has found, each as small as it could be made. `specs/vllm-findings.md` tells them.

Method: each test shows the fault on the releases that have it. One that fails says that a release has mended it, or that the
rig sees it no more; both want to be looked at.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.vllm import engine
from tests.vllm.engine import RELEASE
from tests.vllm.rig import Rig
from tests.vllm.worlds import GroupSpec, WorldSpec

LOW, HIGH = 9, 0
"""Priorities: a smaller number goes first."""


@pytest.mark.skipif(RELEASE != "0.33.0", reason="seen in 0.33.0; other releases were not looked at")
def test_request_preempted_in_the_step_that_scheduled_it_hits_what_was_never_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Priority scheduling, no connector: its blocks are named when they are allocated, and keep their names when the same
    step takes them back before anything was computed; the resumed request finds them, and reads what is not there.
    """
    monkeypatch.setattr(
        engine, "SchedulerConfig", partial(vars(engine)["SchedulerConfig"], policy="priority", long_prefill_token_threshold=8)
    )
    request = vars(engine)["Request"]
    spec = WorldSpec((GroupSpec("full"),), num_gpu_blocks=11, connector=None, max_num_seqs=4, max_num_batched_tokens=12)
    rig = Rig(spec)
    monkeypatch.setattr(engine, "Request", partial(request, priority=LOW))
    low = rig.add(list(range(100, 139)), 1)
    rig.step()
    monkeypatch.setattr(engine, "Request", partial(request, priority=HIGH))
    rig.add(list(range(200, 203)), 3)
    for _ in range(14):
        rig.step()

    assert rig.corruptions
    assert {each.request for each in rig.corruptions} == {low}
