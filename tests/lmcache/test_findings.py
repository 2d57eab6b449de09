"""Faults of LMCache itself. `specs/lmcache.md` tells them.

Method: each story of `found` is played in the release that is said to have its fault, once as it is and once under the watch.
It must show, and the watch must name it. A test that fails says that a release has mended it, or that it is seen no more.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blocklife.engines.lmcache.watch import Watch
from tests.behind.worlds import known
from tests.lmcache import found
from tests.lmcache.engine import RELEASE
from tests.lmcache.nightly import main as nightly
from tests.lmcache.planted.play import watched

SHOWN = known("lmcache")["stories"]


@pytest.fixture
def watches() -> Iterator[list[Watch]]:
    """The watches over the engines of the stories."""
    made: list[Watch] = []
    found.MADE.append(lambda engine: watched(made, engine))
    yield made
    found.MADE.pop()


@pytest.mark.parametrize("story", found.FOUND, ids=lambda story: story.__name__)
def test_story_shows_its_fault(story: found.Story, capsys: pytest.CaptureFixture[str]) -> None:
    """What is said on the page is seen, and the program exits with 0."""
    assert found.main([story.__name__]) == 0
    said = capsys.readouterr().out

    assert said.startswith(f"LMCache {RELEASE}: {story.__name__}: ")
    assert SHOWN[story.__name__]["shows"] in said


@pytest.mark.parametrize("story", found.FOUND, ids=lambda story: story.__name__)
def test_watch_names_the_fault(story: found.Story, watches: list[Watch]) -> None:
    """By the rule that is on the page, first."""
    found.told(story)
    (watch,) = watches
    print(*watch.violations, sep="\n")

    assert watch.lost is None
    assert watch.violations[0].rule == SHOWN[story.__name__]["rule"]


def test_every_story_is_known() -> None:
    """And nothing else is."""
    assert list(SHOWN) == [story.__name__ for story in found.FOUND]


def test_nightly_counts_places_and_tells_what_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """Silent worlds end with their figure; a world that is not silent has a line, and exit status 1."""
    assert nightly(["--places", "200", "--slice", "100", "--worlds", "full", "two"]) == 0
    assert "the watch has named something in 0, 0 want" in capsys.readouterr().out

    assert nightly(["--places", "100", "--slice", "400", "--worlds", "leases"]) == 1
    assert capsys.readouterr().out.startswith("leases seed ")
