"""Layers that keep something else than keys and values: the same tokens with our connector as without.

Method: that of `test_tokens`, with states of a gated delta net, latents, and both in one model. What vLLM has of them for a GPU
alone is computed in torch (`lacking`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.connectors import FAULTS, STATE_FAULT, Copies
from tests.model.test_tokens import SEED, SLOW, differing, engine_with, reference, right, right_from_the_device, waves

KINDS = ("gdn", "mla", "kda")
EXACT = ("mla", "kda")
"""Those in float32: passes may begin anywhere."""
OURS = {"host_blocks": 256}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_stay_with_layers_of_each_kind(kind: str) -> None:
    with engine_with(kind, ours=OURS, copies=SLOW) as running:
        answers = running.answer(waves(kind))

    right(running, answers, reference(kind))


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("gdn", STATE_FAULT),
        ("kda", STATE_FAULT),
        ("mla", "zeros"),
        *(
            pytest.param(kind, fault, marks=pytest.mark.slow)
            for kind in KINDS
            for fault in FAULTS
            if (kind, fault) != ("mla", "zeros")
        ),
    ],
)
def test_wrong_bytes_of_each_kind_give_other_tokens(kind: str, fault: str) -> None:
    """Also where the states alone are wrong, and the keys and values or latents beside them are right."""
    with engine_with(kind, ours=OURS, copies=Copies(fault=fault, seed=SEED)) as running:
        answers = running.answer(waves(kind))

    assert running.seen.loaded > 0, running.seen
    assert differing(answers, reference(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
def test_a_prefix_cache_alone_changes_no_token_of_a_kind(kind: str) -> None:
    right_from_the_device(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
def test_tokens_of_a_kind_stay_when_loads_fail(kind: str) -> None:
    with engine_with(kind, ours=OURS, copies=Copies(0, 3, lost_loads=0.6, seed=SEED)) as running:
        answers = running.answer(waves(kind))

    right(running, answers, reference(kind))
    assert running.seen.lost_loads > 0, running.seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_kind_stay_under_asynchronous_scheduling(kind: str) -> None:
    with engine_with(kind, ours=OURS, copies=SLOW, asynchronous=True) as running:
        answers = running.answer(waves(kind))

    right(running, answers, reference(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
def test_another_engine_hits_each_kind_below_the_host(kind: str, tmp_path: Path) -> None:
    ours = {**OURS, "below": f"fs:{tmp_path / 'store'}:256M", "below_wait_s": 30}
    promoted = []
    for _ in range(2):
        with engine_with(kind, ours=ours, copies=SLOW) as running:
            answers = running.answer(waves(kind))
            running.come_to_rest()
            assert differing(answers, reference(kind)) == []
            below = running.side.offload.statistics().below
        assert below is not None
        promoted.append(below.promoted)

    assert promoted[0] == 0 < promoted[1]
