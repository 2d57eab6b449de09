"""Bugs that are planted in SGLang: the watch names them, and nothing else.

Goal: one bug for each rule that planted bugs break, in a run that is known to show it; the same runs without a bug, for the
bug must be what is named; and bugs that are known not to be seen, so that their mark goes when they are. The whole table takes
long: ``python -m tests.sglang.run --python 0.5.23 -m tests.sglang.planted``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sglang.engine import RELEASE

if RELEASE != "0.5.23":
    pytest.skip("they are planted in the newest release", allow_module_level=True)

from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tests.behind.planted import NOBODY, without
from tests.sglang.planted import all_planted
from tests.sglang.planted.__main__ import main
from tests.sglang.planted.play import played, worlds

PLANTED = all_planted()
STEPS = 150
SHOWN = (
    ("lock_stays_behind", "pages", 0),
    ("unlocked_twice", "pages", 0),
    ("host_page_stays", "back-tight", 0),
    ("write_back_not_awaited", "back", 0),
    ("row_keeps_freed_duplicate", "pages", 0),
    ("store_is_noted_and_not_queued", "pages", 0),
    ("split_copies_the_host_pages", "core", 0),
    ("page_filled_in_part_stays", "pages", 0),
    ("host_pages_sorted_alone", "back-tight", 0),
    ("store_is_cut_short", "pages", 1),
    ("load_into_the_page_behind", "back-tight", 0),
    ("flush_forgets_the_host", "flushes", 0),
    ("store_fence_on_another_stream", "full-overlap", 0),
    ("rank_stores_less", "ranks", 0),
    ("host_unlocked_twice", "back-tight", 0),
    ("layer_waits_for_another_load", "back-tight", 0),
    ("tokens_of_a_stored_page_change_places", "back-tight", 0),
    ("rest_of_a_short_read_stays", "storage", 0),
    ("cached_state_is_not_copied", "states", 2),
    ("request_writes_on_a_cached_state", "states-back", 2),
    ("step_does_not_wait_for_its_state", "states-pages", 2),
    ("state_freed_although_cached", "states-overlap", 2),
    ("state_unlocked_with_the_queue", "states", 2),
    ("host_state_stays", "states-back", 2),
    ("second_state_of_a_text_stays", "states-overlap", 0),
    ("states_do_not_take_turns", "states-overlap", 0),
    ("state_cached_under_a_shorter_text", "states-pages", 0),
)
"""A bug, a world, and a seed in which it does harm."""
UNSEEN = (("load_leaves_out_a_layer", "pages", 0),)
"""Bugs that are not seen, with a world and a seed in which they do harm."""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "world", "seed"), SHOWN, ids=lambda each: str(each))
def test_planted_bug_is_named_before_it_does_harm(name: str, world: str, seed: int) -> None:
    """It fires, it does harm, and a rule falls in the step of the harm or ahead of it."""
    run = played(PLANTED[name], world, seed, STEPS)
    print(run)

    assert run.fired > 0
    assert PLANTED[name].seen
    assert run.verdict == "in time"


@pytest.mark.slow
@pytest.mark.parametrize(("world", "seed"), sorted({(world, seed) for _, world, seed in SHOWN + UNSEEN}))
def test_same_run_without_a_bug_is_silent(world: str, seed: int) -> None:
    """No rule falls, and nothing is wrong."""
    run = played(without(list(PLANTED.values())), world, seed, STEPS)

    assert (run.fired, run.row.rules, run.row.trouble) == (0, {}, None)


@pytest.mark.parametrize(("name", "world", "seed"), UNSEEN)
def test_bug_that_is_marked_unseen_is_not_seen(name: str, world: str, seed: int) -> None:
    """It does harm, and no rule falls. Once one does, `seen` says so."""
    run = played(PLANTED[name], world, seed, STEPS)
    print(run)

    assert run.fired > 0
    assert not PLANTED[name].seen
    assert run.verdict == "never"


def test_what_was_planted_is_gone_when_the_run_is_over() -> None:
    """The class is as before."""
    before = dict(vars(UnifiedRadixCache))
    run = played(PLANTED["unlocked_twice"], "full", 0, 20)

    assert run.row.steps > 0
    assert dict(vars(UnifiedRadixCache)) == before


def test_every_bug_says_what_it_is_and_where_it_runs() -> None:
    """One sentence, and worlds that there are; no two have a name in common."""
    rooms = ("tree", "core", "memory", "copies", "storage", "states")
    folder = Path(__file__).parent / "planted"
    made = sum((folder / f"{room}.py").read_text(encoding="utf-8").count("\n@planted") for room in rooms)

    assert made == len(all_planted(rooms)) >= 50
    assert [name for name, bug in PLANTED.items() if not bug.about.endswith((".", ").")) or not bug.worlds] == []
    assert {world for bug in PLANTED.values() for world in bug.worlds} <= worlds().keys()


def test_program_prints_a_table_and_writes_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each bug, the runs without any first, and a line of progress each."""
    path = tmp_path / "runs.json"
    status = main(["--bugs", "unlocked_twice", "--seeds", "0", "--steps", "20", "--json", str(path)])
    out, err = capsys.readouterr()
    runs = json.loads(path.read_text(encoding="utf-8"))

    assert status == 0
    assert [line.split(" | ")[0] for line in out.splitlines()[2:4]] == [f"| {NOBODY}", "| unlocked_twice"]
    assert out.splitlines()[-1].startswith("Runs: 4, with harm ")
    assert err.count(" of 2 (") == 2
    assert {run["row"]["world"] for run in runs if run["bug"] == NOBODY} == {"full", "pages"}
