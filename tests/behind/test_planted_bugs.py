"""Bugs that are planted in the engine that is here: the watch names them, and nothing else.

Goal: one bug for each rule that planted bugs break, in a run that is known to show it; the same runs without a bug, for the
bug must be what is named; and bugs that are known not to be seen, so that their mark goes when they are. The whole table takes
long: `tests.vllm.planted` and `tests.sglang.planted` are programs.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.behind import engine_here
from tests.behind.planted import NOBODY, without
from tests.behind.worlds import known

ENGINE = import_module(f"tests.{engine_here()}.planted")
PLAY = import_module(f"{ENGINE.__name__}.play")
PLANTED = ENGINE.all_planted()
SHOWN, UNSEEN = ([(*row, None)[:4] for row in known(str(engine_here()))["planted"][which]] for which in ("shown", "unseen"))
"""A bug, a world, a seed, and the rule that falls first where it is pinned."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """An engine may log whatever it meets."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "world", "seed", "rule"), SHOWN, ids=lambda each: str(each))
def test_planted_bug_is_named_before_it_does_harm(name: str, world: str, seed: int, rule: str | None) -> None:
    """It fires, it does harm, and its rule, or any, falls first, in the step of the harm or ahead of it."""
    run = PLAY.played(PLANTED[name], world, seed, ENGINE.STEPS)
    print(run)

    assert run.fired > 0
    assert PLANTED[name].seen
    assert (run.first, run.verdict) == (rule or run.first, "in time")


@pytest.mark.slow
@pytest.mark.parametrize(("world", "seed"), sorted({(world, seed) for _, world, seed, _ in SHOWN + UNSEEN}))
def test_same_run_without_a_bug_is_silent(world: str, seed: int) -> None:
    """No rule falls, and nothing is wrong."""
    run = PLAY.played(without(list(PLANTED.values())), world, seed, ENGINE.STEPS)

    assert (run.fired, run.row.rules, run.row.trouble) == (0, {}, None)


@pytest.mark.parametrize(("name", "world", "seed", "rule"), UNSEEN)
def test_bug_that_is_marked_unseen_is_not_seen(name: str, world: str, seed: int, rule: None) -> None:
    """It does harm, and no rule falls. Once one does, `seen` says so."""
    run = PLAY.played(PLANTED[name], world, seed, ENGINE.STEPS)
    print(run)

    assert run.fired > 0
    assert not PLANTED[name].seen
    assert run.verdict == "never"


def test_what_was_planted_is_gone_when_the_run_is_over() -> None:
    """The class is as before."""
    name, world, owner = PLAY.LOOKED_AT
    before = dict(vars(owner))
    run = PLAY.played(PLANTED[name], world, 0, 20)

    assert run.row.steps > 0
    assert dict(vars(owner)) == before


def test_every_bug_says_what_it_is_and_where_it_runs() -> None:
    """One sentence, and worlds that there are; the rooms have no names in common."""
    rooms = [room for rooms in ENGINE.SETS.values() for room in rooms]
    written = sum(inspect.getsource(import_module(f"{ENGINE.__name__}.{room}")).count("\n@planted") for room in rooms)

    least = getattr(ENGINE, "LEAST", 50)

    assert written == sum(bug.name not in getattr(ENGINE, "FAULTS", ()) for bug in PLANTED.values()) >= least
    assert [name for name, bug in PLANTED.items() if not bug.about.endswith((".", ").")) or not bug.worlds] == []
    assert {world for bug in PLANTED.values() for world in bug.worlds} <= PLAY.worlds().keys()


def test_program_prints_a_table_and_writes_all_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each bug, the runs without any first, and a line of progress each."""
    path, (name, *_) = tmp_path / "runs.json", PLAY.LOOKED_AT
    program = import_module(f"{ENGINE.__name__}.__main__")
    status = program.main(["--bugs", name, "--seeds", "0", "--steps", "20", "--json", str(path)])
    out, err = capsys.readouterr()
    runs = json.loads(path.read_text(encoding="utf-8"))
    worlds = PLANTED[name].worlds

    assert status == 0
    assert [line.split(" | ")[0] for line in out.splitlines()[2:4]] == [f"| {NOBODY}", f"| {name}"]
    assert f". Runs: {len(worlds)}, with harm " in out.splitlines()[-1]
    assert err.count(" of 2 (") == 2
    assert [run["row"]["world"] for run in runs if run["bug"] == NOBODY] == list(worlds)
