"""Published faults of SGLang that have a story: the watch names each ahead of the harm, and mended releases are silent.

Goal: one more row of `specs/measurements/sglang-watch-found.csv`. Method: each story of `published` is told in every release
under a watch that counts, so that the harm comes, too.
"""

from __future__ import annotations

import pytest
from attrs import frozen

from tests.sglang import published
from tests.sglang.engine import RELEASE


@frozen
class Shown:
    """What a story shows where it does harm."""

    releases: frozenset[str]
    harm: str
    rule: str


SHOWN = {
    "refilled_behind_a_page_without_a_copy": Shown(
        frozenset({"0.5.13.post1", "0.5.14", "0.5.15.post1", "0.5.16", "0.5.17"}), "AssertionError: non-leaf", "I11"
    ),
}
"""Every story, and where it does harm; all other releases are said to be clean."""


@pytest.mark.parametrize("story", published.PUBLISHED, ids=lambda story: story.__name__)
def test_published_fault_is_named_ahead_of_the_harm_and_a_mended_release_is_silent(story: published.Tell) -> None:
    """The watch names the rule at an earlier step than the harm; in a release without the fault it names nothing."""
    shown = SHOWN[story.__name__]
    rig, seen, named, watches = published.watched(story)
    print(seen, named)

    assert [each.lost for each in watches] == [None]
    assert watches[0].mirror.counts["jobs"] > 1
    assert rig.ranks[0].copies.moved["from storage"] > 0
    if RELEASE not in shown.releases:
        assert seen == ""
        assert named == {}
        return
    assert seen.startswith(shown.harm)
    assert list(named) == [shown.rule]
    assert named[shown.rule] < rig.step_number
