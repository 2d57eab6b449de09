"""Random walks of the connector: whatever differs, nothing is wrong at any step, and nothing is left.

Method: the rig of `test_connector`; ``walks.toml`` has what differs, one thing a walk, and what each has to show by its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from attrs import evolve, frozen
from vllm.config import VllmConfig

from blocklife.ledger import Direction
from tests.vllm.connector_rig import ConnectorRig, walk, with_guesses
from tests.vllm.connector_worlds import SETS, WALKS, WORLDS
from tests.vllm.engine import MINOR
from tests.vllm.parallel_rig import Parallel, ParallelRig


class Hurried(ConnectorRig):
    """A rig in which each fifth request is let in whatever its lookup says."""

    def add(self, *given: Any, **more: Any) -> str:
        """Send a request to the engine."""
        name = super().add(*given, **more)
        if int(name[1:]) % 5 == 0:
            self.wants_no_prefix(name)
        return name


KINDS: Mapping[str, Callable[..., ConnectorRig]] = {"plain": ConnectorRig, "hurried": Hurried, "parallel": ParallelRig}
SHOWS: Mapping[str, Callable[[ConnectorRig], bool]] = {
    "stored": lambda rig: rig.stored > 0,
    "loaded": lambda rig: rig.loaded > 0,
    "verified": lambda rig: rig.verified > 0,
    "failed": lambda rig: rig.side.ledger.counts.ended["FAILED"] > 0,
    "within": lambda rig: rig.side.ledger.counts.flushes["within the step"] > 0,
    "none within": lambda rig: rig.side.ledger.counts.flushes["within the step"] == 0,
    "state drafts": lambda rig: rig.side.offload.policies.state_drafts == 3,
    "tails": lambda rig: rig.side.shape.geometry.tail_tokens is not None,
    "no tails": lambda rig: rig.side.shape.geometry.tail_tokens is None,
}


@frozen(eq=False)
class Case:
    """A walk with one of its models and one of its changes."""

    name: str
    model: str
    at: int

    def __str__(self) -> str:
        return f"{self.name}-{self.model}-{self.at}"

    def told(self, what: str) -> dict[str, Any]:
        """What the walk and this change of it say of the *spec*, or of the *rig*."""
        own = WALKS[self.name]
        return {**own.get(what, {}), **own.get("changes", [{}])[self.at].get(what, {})}


def cases() -> Iterator[tuple[Case, bool, int]]:
    """Every walk, with and without a step ahead, from each seed."""
    for name, own in WALKS.items():
        for model in own.get("models", SETS[own.get("of", "models")]):
            for at in range(len(own.get("changes", [{}]))):
                case = Case(name, model, at)
                yield from ((case, ahead, seed) for ahead in own.get("ahead", (False, True)) for seed in own["seeds"])


def rig_of(case: Case, ahead: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> ConnectorRig:
    """The rig in which a case walks."""
    own, given = WALKS[case.name], case.told("rig")
    if "guesses" in own:
        with_guesses(monkeypatch, own["guesses"])
        given["drafts"] = True
    if "depth" in given:
        monkeypatch.setattr(VllmConfig, "max_concurrent_batches", given["depth"])
    if "fails" in given:
        given["fails"] = {Direction[name]: chance for name, chance in given["fails"].items()}
    if "parallel" in given:
        lacking = {int(rank): groups for rank, groups in given["parallel"].get("lacking", {}).items()}
        given["parallel"] = Parallel(**{**given["parallel"], "lacking": lacking})
    groups = SETS[own.get("of", "models")][case.model]
    spec = evolve(WORLDS[own.get("world", "crowded")], groups=groups, async_scheduling=ahead)
    return KINDS[own.get("kind", "plain")](evolve(spec, **case.told("spec")), seed, **given)


@pytest.mark.sampled
@pytest.mark.parametrize(("case", "ahead", "seed"), list(cases()), ids=str)
def test_connector_walks(case: Case, ahead: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong at any step, nothing is left at the end, and what the walk is about has happened."""
    own = WALKS[case.name]
    if own.get("since", 0) > MINOR:
        pytest.skip(f"what it is about is there since 0.{own['since']}")
    rig = rig_of(case, ahead, seed, monkeypatch)
    assert rig.side.offload.geometry.drafters == tuple(group.drafter for group in rig.spec.groups)
    walk(rig, seed, own.get("requests", 30), resets=own.get("resets", True))

    assert [each for each in own["shows"] if not SHOWS[each](rig)] == []
