"""Loads within a step that each layer waits for by itself (`sync_load_parts`): where vLLM asks, and where it does not.

The walks are among those of `test_connector_walks`; a real model asks in `tests/model`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve
from vllm.config import CUDAGraphMode
from vllm.forward_context import ForwardContext

from blocklife.engines.vllm.connector._layers import asks_before_layers
from blocklife.errors import MisuseError
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.connector_worlds import ROOMY, ask, prompt
from tests.vllm.workers import Worker
from tests.vllm.worlds import Lag

PARTS = {"sync_load_budget_bytes": "1GiB", "sync_load_parts": 2}
SEEDS = range(8)
SPEC = evolve(ROOMY, lag=Lag(2, 3), extra_config=PARTS)


def hit(rig: ConnectorRig) -> None:
    """A prompt that only the host has, asked again."""
    ask(rig, prompt(41), 2)
    rig.reset_prefix_cache()
    ask(rig, prompt(41), 2)
    assert rig.side.ledger.counts.flushes["within the step"] > 0


def wrong(seed: int) -> bool:
    """Whether wrong bytes were read; a copy may have all of its bytes early, by its dice."""
    try:
        hit(ConnectorRig(SPEC, seed))
    except AssertionError as error:
        print(f"seed {seed}: {error}")
        return True
    return False


def contexts() -> dict[str, tuple[ForwardContext, bool]]:
    """Forward passes by name, and whether their layers ask."""
    empty: dict[str, object] = {"no_compile_layers": {}, "attn_metadata": {}, "slot_mapping": {}}

    def context(**changed: object) -> ForwardContext:
        return ForwardContext(**{**empty, **changed})

    return {
        "eager": (context(), True),
        "piecewise": (context(cudagraph_runtime_mode=CUDAGraphMode.PIECEWISE), True),
        "whole": (context(cudagraph_runtime_mode=CUDAGraphMode.FULL), False),
        "dummy": (context(attn_metadata=None), False),
        "halves": (context(ubatch_slices=[]), False),
    }


@pytest.mark.parametrize("name", contexts())
def test_a_pass_asks_only_where_attention_runs_by_itself(name: str) -> None:
    """A whole graph, a pass that is none, and two halves of a batch wait for whole loads."""
    context, asks = contexts()[name]

    assert asks_before_layers(context) is asks


def test_a_layer_that_does_not_wait_reads_what_has_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the call wrong bytes are read, so that the walks show that it is made; in a whole graph nobody needs it."""
    assert not any(map(wrong, SEEDS))
    monkeypatch.setattr(Worker, "_before_layers", lambda self: None)
    assert any(map(wrong, SEEDS))
    whole = ForwardContext(no_compile_layers={}, attn_metadata={}, slot_mapping={}, cudagraph_runtime_mode=CUDAGraphMode.FULL)
    monkeypatch.setattr("tests.vllm.workers.ForwardContext", lambda **_: whole)
    assert not any(map(wrong, SEEDS))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"sync_load_budget_bytes": 0}, "without sync_load_budget_bytes has no effect"),
        ({"full_hit": "recompute_last_token"}, "with full_hit=recompute_last_token is not offered"),
        ({"host_checksums": True}, "with host_checksums is not offered"),
        ({"sync_load_parts": 0}, "sync_load_parts must be a whole number from 1 to 1024, not 0"),
        ({"sync_load_parts": 1025}, "sync_load_parts must be a whole number from 1 to 1024, not 1025"),
    ],
)
def test_what_cannot_go_in_parts_is_refused(extra: dict[str, object], words: str) -> None:
    """At the start, with the remedy."""
    with pytest.raises(MisuseError, match=words):
        ConnectorRig(evolve(SPEC, extra_config={**PARTS, **extra}))


def no_layer(name: str) -> Callable[[], object]:
    """What a rig puts in the place of a layer of attention."""
    return type(name, (), {})


def test_a_layer_that_does_not_ask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its class: an index beside attention reads its blocks whenever it likes."""
    monkeypatch.setattr("tests.vllm.workers._attention", no_layer("Indexer"))

    with pytest.raises(MisuseError, match=r"sync_load_parts is not offered: layer layer0 \(Indexer\) does not wait"):
        ConnectorRig(SPEC)
