"""Scenarios made up for the engine that is here: what it decides for itself, what it has not, what is asked and heard of it.

Method: each of ``scenarios.toml`` in the tests of the engine says how it ends. What an engine decides otherwise ends a run as
not expressible, with what was asked for and what the engine does, and never as held.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from blocklife.testing import Outcome, parse_scenario, run_scenario
from tests.behind import engine_here

ENGINE = engine_here() or ""
MODULE, NAME = {
    "vllm": ("tests.proof.drivers.vllm.driver", "VllmDriver"),
    "sglang": ("tests.proof.drivers.sglang", "SglangDriver"),
}[ENGINE]
RELEASE: str = import_module(f"tests.{ENGINE}.engine").RELEASE
DATA = tomllib.loads(Path(__file__).parents[1].joinpath(ENGINE, "scenarios.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "made_up", DATA["made_up"], ids=lambda each: each["ends"] if each["ends"] != "holds" else each["about"]
)
def test_made_up_scenario_ends_as_it_says(made_up: Mapping[str, Any]) -> None:
    """It holds, or it is not expressible for a reason; the run does not go on as if it were."""
    if not RELEASE.startswith(made_up.get("only", "")):
        pytest.skip(f"it is about {made_up['only']}x")
    steps = DATA["two"] * made_up.get("behind", False) + made_up.get("steps", "")
    head = f'id = "one"\ntitle = "one"\ntests = "safety"\n[world]\n{DATA["head"]}\n{made_up.get("world", "")}\n'
    verdict = run_scenario(parse_scenario(head + steps), getattr(import_module(MODULE), NAME))
    print(verdict)

    if made_up["ends"] == "holds":
        assert str(verdict) == "one: holds"
    else:
        assert verdict.outcome is Outcome.NOT_APPLICABLE
        assert made_up["ends"] in verdict.message
