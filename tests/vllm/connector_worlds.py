"""What the tests of the connector share: small worlds, the models that run in them, and texts."""

from __future__ import annotations

import pytest

from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.worlds import GroupSpec, Lag, WorldSpec

AHEAD = pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
"""Without and with a step ahead."""
FULL, WINDOW, STATE = GroupSpec("full"), GroupSpec("swa", window=10), GroupSpec("mamba")
ROOMY = WorldSpec((FULL,), num_gpu_blocks=64, host_blocks=64)
MODELS = {
    "full": (FULL,),
    "window": (WINDOW,),
    "full and window": (FULL, WINDOW),
    "full and state": (FULL, STATE),
    "all": (FULL, GroupSpec("swa", window=9), STATE),
    "blocks of two sizes": (GroupSpec("full", 8), GroupSpec("swa", 4, 14)),
    "full and local attention": (FULL, GroupSpec("local", window=12)),
    "blocks of 4 and 6": (GroupSpec("full", 6), GroupSpec("swa", 4, 9)),
}
CROWDED = WorldSpec((FULL,), num_gpu_blocks=24, host_blocks=40, max_num_seqs=6, max_num_batched_tokens=48, lag=Lag(0, 4))
DRAFTERS = {
    "shared": (GroupSpec("full", 4, drafter=True),),
    "own": (GroupSpec("full", 4), GroupSpec("full", 4, drafter=True)),
    "own window": (GroupSpec("full", 4), GroupSpec("swa", 4, window=9, drafter=True)),
    "window and drafter": (GroupSpec("swa", 4, window=9), GroupSpec("full", 4, drafter=True)),
}


def prompt(tokens: int, start: int = 100) -> list[int]:
    """A text that nobody else has, unless it starts alike."""
    return list(range(start, start + tokens))


def ask(rig: ConnectorRig, tokens: list[int], answer: int = 2) -> None:
    """One request from its beginning to the end of its last copy."""
    rig.add(tokens, answer)
    rig.drain()
    rig.check_empty()
