"""Faults of SGLang itself that the rig has found. `specs/sglang-findings.md` tells them.

Method: each story of `found` is played in every release that is said to have its fault. It must show. A test that fails says
that a release has mended it, or that the rig sees it no more; both want to be looked at.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.behind.worlds import known
from tests.programs import HANGS_S
from tests.sglang import found
from tests.sglang.engine import RELEASE
from tests.sglang.nightly import main as nightly

SHOWN = known("sglang")["stories"]
"""What is seen of each story, by release. In one that is not named the story shows nothing, or was not run."""


@pytest.mark.parametrize("story", found.FOUND, ids=lambda story: story.__name__)
def test_story_shows_its_fault(story: found.Story) -> None:
    """What is said on the page is seen."""
    words = SHOWN[story.__name__].get(RELEASE)
    if words is None:
        pytest.skip(f"SGLang {RELEASE} does not show it in this story")
    _, seen = story(None)
    print(seen)

    assert words in seen


@pytest.mark.slow
@pytest.mark.skipif(RELEASE != "0.5.23", reason="one release is enough")
def test_story_needs_nothing_of_blocklife() -> None:
    """It runs where blocklife cannot be imported, prints one line, and its exit status says whether the fault shows."""
    name = found.FOUND[0].__name__
    without = "import sys; sys.modules['blocklife'] = None; from tests.sglang.found import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", without, name], capture_output=True, text=True, timeout=HANGS_S, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"SGLang {RELEASE}: {name}: step 397: r000059 runs alone")


@pytest.mark.skipif(RELEASE != "0.5.23", reason="one release is enough")
def test_nightly_counts_steps_and_tells_what_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """Silent worlds end with their figure; a world that is not silent has a line, and exit status 1."""
    assert nightly(["--steps", "60", "--slice", "20", "--worlds", "pages", "back"]) == 0
    assert "the watch has named something in 0, 0 ended by a known fault, 0 want" in capsys.readouterr().out

    assert nightly(["--steps", "300", "--slice", "300", "--worlds", "skewed"]) == 1
    assert capsys.readouterr().out.startswith("skewed seed 0: ")
