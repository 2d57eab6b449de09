"""Bugs that are planted in vLLM: the watch names them, and nothing else.

Goal: one bug for each rule that planted bugs break, in a run that is known to show it; the same runs without a bug, for the
bug must be what is named; and bugs that are known not to be seen, so that their mark goes when they are. The whole table takes
long: `python -m tests.vllm.planted`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vllm.v1.core.block_pool import BlockPool

from tests.behind.planted import NOBODY, without
from tests.vllm.planted import ROOMS, all_planted
from tests.vllm.planted.__main__ import STEPS, main
from tests.vllm.planted.play import played, worlds

PLANTED = all_planted()
SHOWN = (
    ("worker_does_not_wait", "full", 0, "I1"),
    ("store_launched_twice", "full-async", 1, "I3"),
    ("block_handed_out_twice", "hybrid", 0, "I4"),
    ("sleeps_with_stores_out", "full", 1, "I5"),
    ("hit_of_another_block", "simple", 0, "I6"),
    ("load_is_too_short", "window", 0, "I7"),
    ("store_of_neighbours", "full", 0, "I8"),
    ("store_reported_twice", "full-async", 0, "I9"),
    ("simple_last_store_forgotten", "simple-hybrid", 0, "I12"),
    ("simple_stored_while_it_is_stored", "simple", 0, "I14"),
    ("store_counts_from_wrong_block", "chunks", 0, "I15"),
    ("hit_stays_in_the_queue", "full", 0, "I4"),
    ("named_a_block_early", "hybrid", 0, "I6"),
    ("key_of_another_block", "full", 0, "I8"),
    ("salt_is_not_hashed", "differs", 0, "I8"),
    ("adapter_is_not_hashed", "differs", 0, "I8"),
    ("image_is_not_hashed", "differs", 0, "I8"),
    ("last_token_is_not_hashed", "differs", 1, "I8"),
    ("lookup_promises_one_more", "window", 0, "I6"),
    ("miss_is_a_hit", "full", 0, "I6"),
    ("pending_is_a_hit", "full-async", 1, "I6"),
    ("simple_lookup_promises_one_more", "simple", 0, "I6"),
    ("asynchronous_load_is_not_waited_for", "window", 0, "I6"),
    ("slot_of_a_promotion_handed_out", "below", 0, "I1"),
    ("reset_without_a_drain", "below", 3, "I1"),
    ("cascade_never_let_go_of", "below", 0, "I4"),
    ("promotions_forgotten", "below", 0, "I5"),
    ("promotion_published_at_once", "below", 0, "I6"),
    ("failed_promotion_published", "below-faults", 0, "I6"),
    ("cascade_without_a_hold", "below", 0, "I7"),
    ("promotion_into_its_neighbours", "below", 0, "I8"),
    ("tier_report_comes_twice", "below", 0, "I9"),
)
"""A bug, a world, and a seed in which this rule falls first."""
UNSEEN = (("late_report_after_reset", "resets", 3), ("files_of_other_keys", "below", 0))
"""Bugs that nobody sees, with a world and a seed in which they do harm."""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "world", "seed", "rule"), SHOWN, ids=lambda each: str(each))
def test_planted_bug_is_named_before_it_does_harm(name: str, world: str, seed: int, rule: str) -> None:
    """It fires, it does harm, and its rule falls first, in the step of the harm or ahead of it."""
    run = played(PLANTED[name], world, seed, STEPS)
    print(run)

    assert run.fired > 0
    assert PLANTED[name].seen
    assert (run.first, run.verdict) == (rule, "in time")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "seed"), sorted({(world, seed) for _, world, seed, _ in SHOWN}))
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
    before = dict(vars(BlockPool))
    run = played(PLANTED["foreign_block_freed"], "full", 0, 20)

    assert run.row.steps > 0
    assert dict(vars(BlockPool)) == before


def test_every_bug_says_what_it_is_and_where_it_runs() -> None:
    """One sentence, and worlds that there are; the rooms have no names in common."""
    known = worlds()
    made = sum(
        (Path(__file__).parent / "planted" / f"{room}.py").read_text(encoding="utf-8").count("\n@planted") for room in ROOMS
    )

    assert made == len(PLANTED) > 50
    assert [name for name, bug in PLANTED.items() if not bug.about.endswith((".", ").")) or not bug.worlds] == []
    assert {world for bug in PLANTED.values() for world in bug.worlds} <= known.keys()


def test_program_prints_a_table_and_writes_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each bug, the runs without any first, and a line of progress each."""
    path = tmp_path / "runs.json"
    status = main(["--bugs", "block_handed_out_twice", "--seeds", "0", "--steps", "20", "--json", str(path)])
    out, err = capsys.readouterr()
    runs = json.loads(path.read_text(encoding="utf-8"))

    assert status == 0
    assert [line.split(" | ")[0] for line in out.splitlines()[2:4]] == [f"| {NOBODY}", "| block_handed_out_twice"]
    assert out.splitlines()[-1].startswith("Set own. Runs: 4, with harm ")
    assert len(err.splitlines()) == 2
    assert {run["row"]["world"] for run in runs if run["bug"] == NOBODY} == {"full", "full-async", "hybrid", "simple"}
