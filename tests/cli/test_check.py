"""`blocklife check` says what holds and what does not, in tables and for machines, with the right status and nothing else.

Method: most runs are in this process, so that a bug can be planted under them. What is written on a violation is read back and
run. Ctrl-C comes from the run itself, at a known state, and once from outside, when the progress shows that it lives.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from blocklife.cli import _exploring as exploring
from blocklife.errors import MisuseError
from blocklife.scheduler_states import SCHEDULER_MACHINES
from blocklife.states import MACHINES
from blocklife.testing import Action, State, World, pinned_world
from blocklife.testing.worlds._cross_checks import MEANINGS, RULES
from blocklife.testing.worlds._pinned import WORLDS
from tests.cli.test_cli import COMMAND, ROOT, Capture, call, refused
from tests.interrupts import interruptible
from tests.programs import HANGS_S
from tests.proof.mutants.planting import all_mutants, planted, seed_mutants

SEED = next(each for each in seed_mutants() if each.name.startswith("S1: "))
"""A bug of the scheduler that every world with pressure on its blocks finds."""
PRESSED = ("check", "--world", "loads-fence")

pytestmark = pytest.mark.usefixtures("no_call_is_long")


def found(capsys: Capture, *argv: str) -> tuple[int, dict[str, object]]:
    """Run with ``--json``; the status and the report."""
    status, out, err = call(capsys, *argv, "--json")

    assert err == ""
    assert out.count("\n") == 1
    report: dict[str, object] = json.loads(out)
    return status, report


# --- a world that holds -----------------------------------------------------------------------------------------------------


def test_check_says_what_holds(capsys: Capture) -> None:
    """Counts, speed, every property with its kind and verdict, and the rows that were never taken."""
    status, out, err = call(capsys, "check")

    assert (status, err) == (0, "")
    assert "\x1b" not in out
    rows = sum(len(table.rows) for table in (*MACHINES.values(), *SCHEDULER_MACHINES.values()))
    for line in (
        "states  216",
        "edges   276",
        "depth   16",
        "202 of the real code",
        f" of {rows} rows of the tables were taken",
    ):
        assert line in out
    for name in (*RULES, "told", "lawful", "last step"):
        assert any(line.startswith(f"{name} ") and "step       holds    " in line for line in out.splitlines()), name
    assert "leads to" in out
    assert "sometimes" in out
    assert "told       step       holds    hooks hear of every transition, in order, and of nothing else\n" in out
    assert out.startswith("holds: every state was visited\n")
    assert out.endswith(f" of {rows} rows of the tables were taken (-v names the others)\n")


def test_check_names_the_rows_that_were_never_taken(capsys: Capture) -> None:
    """Only where that is asked for: they are many, and the verdict comes first."""
    status, out, _ = call(capsys, "check", "--verbose")

    assert status == 0
    assert "  block LOADING --submit--> LOADING\n" in out


def test_every_rule_of_a_world_has_its_phrase() -> None:
    """Whoever adds a rule says what it means."""
    worlds = [World(each.settings) for each in WORLDS]
    rules = {rule for world in worlds for rule in world.rules()}

    assert rules == set(MEANINGS)


def test_check_json_has_everything(capsys: Capture) -> None:
    """One object on one line, with the world that was explored."""
    status, report = found(capsys, *PRESSED)

    assert status == 0
    assert (report["states"], report["edges"], report["depth"]) == pinned_world("loads-fence").counts
    assert (report["verdict"], report["complete"], report["interrupted"]) == ("holds", True, False)
    assert report["name"] == "loads-fence"
    assert report["world"] == {
        "requests": ["ab.c", "de.f", "ab.g"],
        "max_jobs": 2,
        "faults": {"fail": 1, "preempt": 1},
    }
    assert report["bounds_hit"] == report["counterexamples"] == []
    assert set(report) == {
        "world", "name", "verdict", "complete", "interrupted", "bounds_hit", "states", "edges", "depth", "seconds",
        "states_per_second", "calls", "properties", "counterexamples", "rows", "rows_never_taken",
    }  # fmt: skip
    assert isinstance(report["properties"], list)
    assert {each["verdict"] for each in report["properties"]} == {"holds"}


def test_check_takes_a_world_from_every_source(tmp_path: Path, capsys: Capture) -> None:
    """A file, a pinned world and options say the same in the same words; options override."""
    path = tmp_path / "world.toml"
    path.write_text('requests = ["ab.c", "de.f", "ab.g"]\nmax_jobs = 2\ncontract = "hold"\n[faults]\nfail = 1\npreempt = 1\n')
    options = ("--requests", "ab.c,de.f,ab.g", "--max-jobs", "2", "--contract", "hold", "--faults", "fail=1,preempt")
    reports = [
        found(capsys, "check", str(path))[1],
        found(capsys, "check", "--world", "loads-hold")[1],
        found(capsys, "check", "--world", "loads-fence", "--contract", "hold")[1],
        found(capsys, "check", *options)[1],
        found(capsys, "check", str(path), "--async", "--no-async")[1],
    ]

    assert {(each["states"], each["edges"], each["depth"]) for each in reports} == {pinned_world("loads-hold").counts}
    assert found(capsys, "check", str(path), "--faults", "")[1]["world"] == {
        "requests": ["ab.c", "de.f", "ab.g"],
        "max_jobs": 2,
        "contract": "hold",
    }


def test_check_has_an_option_for_every_setting(capsys: Capture) -> None:
    """All options together make one world, whose words come back."""
    status, report = found(
        capsys, "check", "--groups", "full:2,swa:2:2", "--blocks-per-chunk", "2", "--blocks", "7", "--slots", "3",
        "--workers", "2", "--max-jobs", "3", "--max-requests", "5", "--contract", "hold", "--mode", "lazy",
        "--lazy-blocks", "2", "--async", "--deadline", "2", "--policy", "arc", "--last-step", "drain", "--full-hit",
        "recompute_last_token", "--partial-chunks", "--max-load-failures", "0", "--step-tokens", "3", "--drafts", "0",
        "--checking", "count", "--requests", "abcd.e", "--faults", "renew=1", "--max-states", "20",
    )  # fmt: skip

    assert status == 3
    assert report["world"] == {
        "requests": ["abcd.e"], "groups": "full:2,swa:2:2", "blocks_per_chunk": 2, "blocks": 7, "slots": 3, "workers": 2,
        "max_jobs": 3, "max_requests": 5, "contract": "hold", "mode": "lazy", "lazy_blocks": 2, "async": True,
        "deadline": 2.0, "policy": "arc", "last_step": "drain", "full_hit": "recompute_last_token", "partial_chunks": True,
        "max_load_failures": 0, "step_tokens": 3, "checking": "count", "faults": {"renew": 1},
    }  # fmt: skip


def test_check_can_guess_tokens(capsys: Capture) -> None:
    """Drafts go with blocks of one token, and without a plan ahead."""
    status, report = found(
        capsys, "check", "--requests", "ab.cD", "--drafts", "1", "--groups", "full:1+drafter", "--blocks", "4"
    )
    refused, _, err = call(capsys, "check", "--requests", "ab.cD", "--drafts", "1", "--async")

    assert status == 0
    assert report["world"] == {"requests": ["ab.cD"], "groups": "full:1+drafter", "blocks": 4, "drafts": 1}
    assert refused == 2
    assert "drafts: this engine guesses only where a block has one token, and no plan is made ahead" in err


def test_check_lists_the_pinned_worlds(capsys: Capture) -> None:
    """Name, size, sentence and words of each; one JSON line each for machines."""
    status, out, err = call(capsys, "check", "--list")
    _, lines, _ = call(capsys, "check", "--list", "--json")
    records = [json.loads(line) for line in lines.splitlines()]

    assert (status, err) == (0, "")
    assert out.count("\n") == 2 * len(WORLDS)
    assert f"calm-fence ({pinned_world('calm-fence').counts.states} states): two requests" in out
    assert [each["name"] for each in records] == [each.name for each in WORLDS]
    assert records[0]["counts"] == pinned_world("calm-fence").counts._asdict()
    assert "with --list a line for each world" in " ".join(call(capsys, "check", "--help")[1].split())


# --- bounds -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        (("--max-states", "50"), "max_states=50"),
        (("--max-depth", "5"), "max_depth=5"),
        (("--max-seconds", "1e-9"), "max_seconds=1e-09"),
    ],
    ids=["states", "depth", "seconds"],
)
def test_check_that_hit_a_bound_is_no_pass(bound: tuple[str, str], told: str, capsys: Capture) -> None:
    """The bound is named, the verdict is unknown, and the status is one of its own."""
    status, out, _ = call(capsys, "check", *bound)
    again, report = found(capsys, "check", *bound)

    assert status == again == 3
    assert f"stopped at a limit: {told}" in out
    assert "INCOMPLETE" in out
    assert "holds: every state" not in out
    assert (report["verdict"], report["complete"], report["bounds_hit"]) == ("unknown", False, [told])


def test_check_that_is_wide_enough_is_a_pass(capsys: Capture) -> None:
    """A bound that is not hit changes nothing."""
    assert call(capsys, "check", "--max-states", "216", "--max-depth", "17", "--max-seconds", "600")[0] == 0


# --- what is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--blocks", "0"], "--blocks must be from 1 to 4096, not 0"),
        (["--blocks", "-1"], "--blocks must be from 1"),
        (["--blocks", "9" * 30], "--blocks must be from 1"),
        (["--blocks", "many"], "argument --blocks: 'many' is not a whole number"),
        (["--max-load-failures", "-1"], "--max-load-failures must be from 0"),
        (["--deadline", "nan"], "--deadline must be above 0, not nan"),
        (["--contract", "maybe"], "invalid choice: 'maybe'"),
        (["--groups", "half:2"], "'half:2' is not a valid group"),
        (["--requests", "abc"], "request 'abc': write prompt and output"),
        (["--requests", ""], "request '': write prompt and output"),
        (["--requests", "abcdefgh.i"], "letters need up to 8 blocks"),
        (["--faults", "fial=1"], "--faults: unknown fault 'fial' (did you mean 'fail'?)"),
        (["--faults", "fail=x"], "--faults: fail happens a whole number of times, not 'x'"),
        (["--faults", "fail=-1"], "--faults: fail happens a whole number of times"),
        (["--faults", "fail,fail"], "--faults: fail is named twice"),
        (["--faults", "lose_worker=1"], "a worker can be lost only where there are two"),
        (["--world", "atlantis"], "world 'atlantis': there is none (there are calm-fence, "),
        (["no-such.toml"], "no-such.toml: No such file"),
        (["pyproject.toml", "--world", "arc"], "both name a world"),
        (["--max-states", "0"], "--max-states must be at least 1, not 0"),
        (["--processes", "0"], "--processes must be at least 1, not 0"),
        (["--max-depth", "-1"], "--max-depth must be at least 0, not -1"),
        (["--max-seconds", "0"], "--max-seconds must be above 0"),
        (["--max-seconds", "inf"], "--max-seconds must be above 0"),
        (["--write", ""], "--write: '' is not the name of a file"),
        (["--wings"], "unrecognized arguments: --wings"),
    ],
    ids=lambda each: " ".join(each)[:40] if isinstance(each, list) else "",
)
def test_check_refuses_in_one_line(argv: list[str], message: str, capsys: Capture) -> None:
    """Bad input ends with status 2 and one line that names what is wrong."""
    assert message in refused(capsys, "check", *argv)


def test_check_blames_a_file_for_what_it_says(tmp_path: Path, capsys: Capture) -> None:
    """File and key are named; an option that would mend it changes nothing about that."""
    path = tmp_path / "world.toml"
    path.write_text("blokcs = 3\n")

    assert f"{path}: unknown key 'blokcs' (did you mean 'blocks'?)" in refused(capsys, "check", str(path))
    path.write_text('blocks = "3"\n')
    assert f"{path}: blocks must be a whole number, not '3'" in refused(capsys, "check", str(path), "--blocks", "3")
    path.write_text("blocks = 3")
    assert "--slots must be from 1" in refused(capsys, "check", str(path), "--slots", "0")


def test_check_does_not_start_where_it_could_not_write(tmp_path: Path, capsys: Capture) -> None:
    """A folder that cannot be made is said before a search that may take long."""
    (tmp_path / "file").write_text("")

    assert f"{tmp_path / 'file'}: File exists" in refused(capsys, *PRESSED, "--write", str(tmp_path / "file"))
    (tmp_path / "story.txt").mkdir()
    assert f"{tmp_path / 'story.txt'}: Is a directory" in refused(capsys, *PRESSED, "--write", str(tmp_path))
    assert f"{tmp_path / 'story.txt'}: Is a directory" in refused(capsys, "check", "--walk", "9", "--write", str(tmp_path))


@pytest.mark.interpreted
def test_check_tells_what_it_found_although_it_cannot_write(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may fill up during a search: the story is printed all the same, with a note, and the status is that of it."""

    def full(path: str, _text: str) -> None:
        raise MisuseError(f"{path}: No space left on device")

    monkeypatch.setattr(exploring, "write_whole", full)
    with planted(SEED):
        status, out, err = call(capsys, *PRESSED, "--write", str(tmp_path))
        json_status, report = found(capsys, *PRESSED, "--write", str(tmp_path))

    assert (status, json_status, err) == (1, 1, "")
    assert f"note: not written: {tmp_path / 'story.txt'}: No space left on device\n" in out
    assert out.startswith("VIOLATED\n")
    assert isinstance(report["counterexamples"], list)
    (one,) = report["counterexamples"]
    assert one["story"] in out
    assert (one["files"], len(one["notes"])) == ([], 4)


# --- violations -------------------------------------------------------------------------------------------------------------


@pytest.mark.interpreted
def test_check_tells_the_story_of_a_violation(capsys: Capture) -> None:
    """Status 1; the story ends in the rule that broke and both truths; what was not refuted is unknown."""
    with planted(SEED):
        status, out, err = call(capsys, *PRESSED)
        _, report = found(capsys, *PRESSED)

    assert (status, err) == (1, "")
    assert "1. request a arrives with the prompt 'ab'" in out
    assert "lawful is broken: MisuseError: block" in out
    assert "the ledger says" in out
    assert out.startswith("VIOLATED\n")
    assert any(line.split()[:3] == ["lawful", "step", "VIOLATED"] for line in out.splitlines())
    assert any(line.split()[:3] == ["I1", "step", "unknown"] for line in out.splitlines())
    assert report["verdict"] == "violated"
    assert isinstance(report["counterexamples"], list)
    (told,) = report["counterexamples"]
    assert set(told) == {"rule", "message", "actions", "story", "files", "notes"}
    assert told["actions"][0] == "arrive a"
    assert told["story"] in out


@pytest.mark.interpreted
def test_check_writes_what_can_be_used(tmp_path: Path, capsys: Capture) -> None:
    """The program prints the story, the scenario fails with the bug and holds without it, the diagram is one."""
    where = tmp_path / "deep" / "found"
    with planted(SEED):
        status, out, _ = call(capsys, *PRESSED, "--write", str(where))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec((where / "counterexample.py").read_text(encoding="utf-8"), {})
        fails, failure, _ = call(capsys, "scenario", "run", str(where / "counterexample.toml"))
    holds, _, _ = call(capsys, "scenario", "run", str(where / "counterexample.toml"))

    assert status == 1
    assert sorted(each.name for each in where.iterdir()) == [
        "counterexample.mmd", "counterexample.py", "counterexample.toml", "story.txt",
    ]  # fmt: skip
    assert all(f"wrote {each}" in out for each in where.iterdir())
    assert "note:" not in out
    assert printed.getvalue() == (where / "story.txt").read_text(encoding="utf-8") + "\n"
    assert (fails, holds) == (1, 0)
    assert "1 fail" in failure
    assert (where / "counterexample.mmd").read_text(encoding="utf-8").startswith("sequenceDiagram\n")


@pytest.mark.interpreted
def test_check_all_finds_one_of_each(tmp_path: Path, capsys: Capture) -> None:
    """It goes on after the first counterexample, and each rule gets a folder."""
    early = next(each for each in all_mutants() if each.name.startswith("submitted: no block.submit"))
    with planted(early):
        first, one = found(capsys, *PRESSED)
        status, report = found(capsys, *PRESSED, "--all", "--write", str(tmp_path))

    assert (first, status) == (1, 1)
    assert isinstance(one["counterexamples"], list)
    assert isinstance(report["counterexamples"], list)
    rules = [each["rule"] for each in report["counterexamples"]]
    assert len(one["counterexamples"]) == 1 <= len(rules) == len(set(rules))
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(rule.replace(" ", "-") for rule in rules)
    for each in report["counterexamples"]:
        assert all(Path(name).exists() for name in each["files"])


# --- Ctrl-C and terminals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("json_too", [False, True], ids=["tables", "json"])
def test_check_reports_after_an_interrupt(json_too: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the hundredth state: the counts so far, status 130, and nothing is called a pass."""
    right = World.actions
    visited = 0

    def interrupted(world: World, state: State) -> Sequence[Action]:
        nonlocal visited
        visited += 1
        if visited == 100:
            signal.raise_signal(signal.SIGINT)
        return right(world, state)

    monkeypatch.setattr(World, "actions", interrupted)
    before = signal.getsignal(signal.SIGINT)  # a job in the background of a shell ignores it
    status, out, err = call(capsys, *PRESSED, *(["--json"] if json_too else []))

    assert (status, err) == (130, "")
    assert signal.getsignal(signal.SIGINT) is before
    if json_too:
        report = json.loads(out)
        assert (report["interrupted"], report["complete"], report["verdict"]) == (True, False, "unknown")
        assert 100 <= report["states"] < pinned_world("loads-fence").counts.states
    else:
        assert "interrupted: nothing is violated so far" in out


def test_check_stops_when_it_is_told_to_from_outside() -> None:
    """A run that would take minutes shows that it lives, gets a SIGINT, and reports."""
    ours, theirs = pty.openpty()
    argv = [*COMMAND, "check", "--world", "wide-lazy", "--workers", "2", "--json"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with interruptible():
        run = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL, env=env)
    with run as process:
        try:
            os.close(theirs)
            shown = b""
            while b"states" not in shown and select.select([ours], [], [], HANGS_S)[0]:
                shown += os.read(ours, 1 << 16)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=HANGS_S)
        finally:
            process.kill()
            os.close(ours)

    assert process.returncode == 130
    assert json.loads(out)["interrupted"]
    assert b"Traceback" not in shown


# --- scenario, recording and models -----------------------------------------------------------------------------------------


def test_scenarios_run_and_are_listed(tmp_path: Path, capsys: Capture) -> None:
    """One that holds, one that fails and one that is no scenario each have their status; a run is one JSON line."""
    (tmp_path / "good.toml").write_text(_SCENARIO + 'expect.state = { a = "WAITING" }\n')
    (tmp_path / "bad.toml").write_text(_SCENARIO + 'expect.state = { a = "RUNNING" }\n')
    good, out, _ = call(capsys, "scenario", "run", str(tmp_path / "good.toml"))
    bad, said, _ = call(capsys, "scenario", "run", str(tmp_path), "--json")
    listed, lines, _ = call(capsys, "scenario", "list", str(tmp_path))
    loud, log, _ = call(capsys, "scenario", "run", str(tmp_path / "good.toml"), "-v")

    assert (good, bad, listed, loud) == (0, 1, 0, 0)
    assert "1 hold" in out
    assert [json.loads(line)["outcome"] for line in said.splitlines()] == ["unsafe", "held"]
    assert lines.count("X (safety): nothing in particular") == 2
    assert "request" in log
    (tmp_path / "none.toml").write_text("steps = 3")
    assert "none.toml:1: unknown key 'steps'" in refused(capsys, "scenario", "run", str(tmp_path / "none.toml"))
    assert "cannot be imported" in refused(
        capsys, "scenario", "run", str(tmp_path / "good.toml"), "--driver", "no.where:Engine"
    )


@pytest.mark.parametrize("command", ["run missing.toml", "list missing.toml", "show missing.toml"])
def test_scenarios_that_are_not_there_are_named(
    command: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing has no lines, and the remedy is told."""
    monkeypatch.chdir(tmp_path)
    name = command.partition(" ")[2]

    assert refused(capsys, "scenario", *command.split()) == (
        f"blocklife: {name}: No such file or directory (name a scenario file, or a folder of them; or name a scenario of the "
        "package: see the command list)"
    )


@pytest.mark.parametrize(("name", "said"), [("A99", "near are A39"), ("a01", "near are A01, "), ("VLLM", "near are vllm")])
def test_scenario_that_is_misspelt_is_named_with_the_nearest(name: str, said: str, capsys: Capture) -> None:
    """Who writes a name hears of names."""
    assert f"blocklife: {name}: No such file or directory (name a scenario file, or a folder of them; {said}" in (
        told := refused(capsys, "scenario", "run", name)
    )
    assert told.endswith(": see the command list)")


_SCENARIO = """\
id = "X"
title = "nothing in particular"
tests = "safety"
[[step]]
do = "arrive"
request = "a"
prompt = "ab"
"""


def test_recording_of_a_replay_is_legal_and_a_changed_one_is_not(tmp_path: Path, capsys: Capture) -> None:
    """What `replay --record` writes is whole and legal; a line that is taken out is noticed."""
    path = tmp_path / "run.jsonl"
    call(capsys, "replay", "--requests", "10", "--record", str(path))
    status, out, _ = call(capsys, "recording", "check", str(path))
    _, said, _ = call(capsys, "recording", "check", str(path), "--json")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:40], *lines[41:]]))
    broken, told, _ = call(capsys, "recording", "check", str(path))

    assert status == 0
    assert "legal: every transition\n" in out
    assert json.loads(said)["complete"]
    assert broken == 1
    assert "NOT legal" in told
    assert "No such file" in refused(capsys, "recording", "check", str(tmp_path / "missing"))
