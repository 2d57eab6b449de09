"""What the tests of the connector share: small worlds, the models that run in them, and texts."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.worlds import GroupSpec, Lag, WorldSpec, group

AHEAD = pytest.mark.parametrize("ahead", [False, True], ids=["sync", "async"])
"""Without and with a step ahead."""
FULL, WINDOW, STATE = GroupSpec("full"), GroupSpec("swa", window=10), GroupSpec("mamba")
ROOMY = WorldSpec((FULL,), num_gpu_blocks=64, host_blocks=96)
_DATA = tomllib.loads(Path(__file__).with_name("models.toml").read_text(encoding="utf-8"))
SETS = {
    name: {model: tuple(map(group, texts)) for model, texts in _DATA[name].items()}
    for name in ("models", "drafters", "guessing", "tails", "latents", "unnamed", "replays")
}
"""Sets of models, which are groups by name."""
WORLDS = {name: WorldSpec(**{**world, "lag": Lag(*world["lag"])}) for name, world in _DATA["worlds"].items()}
MODELS, DRAFTERS, CROWDED = SETS["models"], SETS["drafters"], WORLDS["crowded"]


def prompt(tokens: int, start: int = 100) -> list[int]:
    """A text that nobody else has, unless it starts alike."""
    return list(range(start, start + tokens))


def ask(rig: ConnectorRig, tokens: list[int], answer: int = 2) -> None:
    """One request from its beginning to the end of its last copy."""
    rig.add(tokens, answer)
    rig.drain()
    rig.check_empty()
