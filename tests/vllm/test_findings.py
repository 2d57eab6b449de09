"""Faults of vLLM itself that the rig has found, each as small as it could be made. `specs/vllm-findings.md` tells them.

Method: each story of `found` is played under a watch, in every release that is said to have its fault. It must show, and the
watch must name its rule in the same step at the latest. A test that fails says that a release has mended it, or that the rig or
the watch sees it no more; all three want to be looked at.
"""

from __future__ import annotations

import pytest

from blocklife.engines.vllm.watch import Options, Watch, WatchMode, attach
from tests.behind.worlds import known
from tests.vllm import found
from tests.vllm.engine import RELEASE
from tests.vllm.rig import Rig, Scheduler, WorldSpec

SHOWN = known("vllm")["stories"]
"""What is seen of each story without the watch, and the rule that the watch names, by release. In one that is not named the
story shows nothing, or another fault, which has been mended since."""


class Played:
    """A story that is played under a watch."""

    def __init__(self) -> None:
        self.rig: Rig | None = None
        self.watch: Watch | None = None
        self.first: dict[str, int] = {}
        """Step of the rig in which a rule fell first."""

    def watched(self, scheduler: Scheduler) -> None:
        """A rig is made: this is its scheduler."""
        self.watch = attach(scheduler, Options(mode=WatchMode.COUNT))

    def look(self) -> None:
        """A step is over, or has fallen."""
        for violation in self.watch.violations if self.watch is not None else ():
            self.first.setdefault(violation.rule, 0 if self.rig is None else self.rig.step_number)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """Let stories be played under a watch that counts."""
    kept = Played()

    class Watched(Rig):
        def __init__(self, spec: WorldSpec) -> None:
            super().__init__(spec, on_scheduler=kept.watched)
            kept.rig = self

        def step(self) -> bool:
            try:
                return super().step()
            finally:
                kept.look()

    monkeypatch.setattr(found, "Rig", Watched)
    return kept


@pytest.mark.parametrize("story", found.FOUND, ids=lambda story: story.__name__)
def test_story_shows_a_fault_and_the_watch_names_its_rule_in_time(story: found.Story, played: Played) -> None:
    """What is wrong without the watch is seen, and the first rule that falls is the right one, at that step or before."""
    shown = SHOWN[story.__name__].get(RELEASE)
    if shown is None:
        pytest.skip(f"vLLM {RELEASE} does not show it in this story")
    words, rule = shown
    seen = found.seen(story)
    rig = played.rig
    assert rig is not None
    print(seen, played.first)

    assert words in seen
    assert played.first[rule] <= (rig.corruptions[0].step if rig.corruptions else rig.step_number)
    assert min(played.first, key=played.first.__getitem__) == rule


def test_request_preempted_in_its_step_hits_what_was_never_computed_without_a_connector_too() -> None:
    """It is the scheduler's own; a watch needs a connector, so that nobody but the bytes tells."""
    rig = found.preempted_before_it_was_computed(None)

    assert {(each.request, each.position) for each in rig.corruptions} == {("r0", 16)}


def test_half_of_a_block_is_named_when_it_is_stored_three_steps_before_it_is_read(played: Played) -> None:
    """A request that has ended with an error inside its prompt stores no more than it has computed, or is named."""
    if RELEASE not in SHOWN["error_inside_a_prompt"]:
        pytest.skip(f"vLLM {RELEASE} does not show it in this story")
    rig = found.error_inside_a_prompt()
    assert played.watch is not None
    named = played.watch.violations[0]

    assert named.what == "job 8 stores block 17 up to token 12 of r1, but only 10 are computed"
    assert played.first == {"I8": rig.corruptions[0].step - 3}


def test_every_story_is_expected_somewhere() -> None:
    """Nothing is found that no release is said to have."""
    assert {story.__name__ for story in found.FOUND} == set(SHOWN)
    assert all(SHOWN.values())
