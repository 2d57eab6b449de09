"""The watch on vLLM's own scheduler, in the release under which these tests run.

Goal: it comes and goes without a trace, vLLM can switch it on by its own means, it names the bugs that a release has and keeps
silent where a release has them not, and whoever is told of one can look at it. Method: random traffic and small stories of the
rig; whole processes where the end of one matters. Seeds were picked from the table of `python -m tests.vllm.watched seeds`, so
that each bug falls soon.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from attrs import evolve

from blocklife.cli import main
from blocklife.engines.vllm import _versions as versions
from blocklife.engines.vllm.watch import Options, Watch, WatchError, WatchMode, attach, detach, watch_of
from tests.interrupts import interruptible
from tests.vllm import found
from tests.vllm.engine import RELEASE
from tests.vllm.rig import GroupSpec, Rig, WorldSpec
from tests.vllm.traffic import QUIET, Traffic
from tests.vllm.watched import BUGS, Bug, run_seed
from tests.vllm.worlds import Connector

TestT = TypeVar("TestT", bound=Callable[..., None])

ROOT = Path(__file__).parents[2]
COUNT, STRICT = Options(mode=WatchMode.COUNT), Options(mode=WatchMode.STRICT)
SEEDS = {"42945": 13, "41289": 10, "42611": 1, "42959": 17}
"""A seed in which a bug falls soon where a release has it, and where those without it meet no other one so soon."""
STEPS = 60
BUSY = evolve(QUIET, pause=0.0)
"""Traffic that never lets the engine come to rest."""
ROOMY = WorldSpec((GroupSpec("full"),), num_gpu_blocks=400, host_blocks=400)

FALLS = {
    "0.21.0": ("partial_chunk", "I15", AssertionError),
    "0.22.1": ("reset_of_window", "I10", KeyError),
    "0.23.0": ("reset_of_window", "I10", KeyError),
    "0.33.0": ("state_that_is_not_counted", "I13", ValueError),
}
"""A story in which the release itself raises within a step, and the rule that it has broken by then."""


# --- attach and detach --------------------------------------------------------------------------------------------------------


def parts(rig: Rig) -> list[object]:
    """Whatever of an engine the watch listens to."""
    scheduler = rig.scheduler
    manager, connector = scheduler.kv_cache_manager, scheduler.connector
    inner = getattr(connector, "connector_scheduler", None) or connector.scheduler_manager
    return [scheduler, manager, manager.block_pool, connector, inner, *manager.coordinator.single_type_managers]


@pytest.mark.parametrize("connector", ["offloading", "simple"])
def test_a_watch_comes_and_goes_without_a_trace(connector: Connector) -> None:
    """No attribute of any part is new, or another one, and no class was touched."""
    rig = Rig(evolve(ROOMY, connector=connector))
    before = [dict(vars(part)) for part in parts(rig)]
    classes = [dict(vars(type(part))) for part in parts(rig)]
    watch = attach(rig.scheduler, STRICT)
    while_there = [set(vars(part)) for part in parts(rig)]
    detach(rig.scheduler)

    assert while_there != [set(each) for each in before]
    assert [dict(vars(part)) for part in parts(rig)] == before
    assert [dict(vars(type(part))) for part in parts(rig)] == classes
    assert watch_of(rig.scheduler) is None
    assert watch.steps == 0


@pytest.mark.parametrize("connector", ["offloading", "simple"])
def test_a_watch_that_comes_to_an_engine_that_runs_is_silent(connector: Connector) -> None:
    """It believes what it did not see, follows what comes, and hears nothing any more when it is gone."""
    rig = Rig(evolve(ROOMY, connector=connector), seed=3)
    traffic = Traffic.drawn(rig, 3, BUSY)
    traffic.run(STEPS)
    watch = attach(rig.scheduler, STRICT)
    traffic.run(STEPS)
    detach(rig.scheduler)
    steps, counts = watch.steps, dict(watch.counts)
    traffic.run(STEPS)
    wrapped = [name for part in parts(rig) for name, value in vars(part).items() if isinstance(value, functools.partial)]

    assert steps == watch.steps > STEPS // 2
    assert counts == {}
    assert watch.lost is None
    assert watch.mirror.counts["jobs"] > 0
    assert wrapped == []


# --- the bugs that releases have, and silence ---------------------------------------------------------------------------------


@pytest.mark.skipif(RELEASE < "0.33", reason="the first release with such groups in OffloadingConnector")
def test_session_goes_on_with_the_ring_that_it_has() -> None:
    """vLLM names it as a new request, in the middle of what is compressed; its ring is no new block."""
    rig = Rig(WorldSpec((GroupSpec("full"), GroupSpec("ring", 4, 4))))
    watch = attach(rig.scheduler, STRICT)
    rig.part("s", range(100, 106), 2)
    while rig.scheduler.requests["s"].status.name != "WAITING_FOR_STREAMING_REQ":
        rig.step()
    before = rig.scheduler.requests["s"].num_computed_tokens
    rig.part("s", range(200, 205), 2)
    rig.step()

    assert before == 7
    assert rig.scheduler.requests["s"].num_computed_tokens > before
    assert not rig.corruptions
    assert not watch.violations


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.number}-{bug.rule}")
def test_a_bug_is_named_where_it_is_and_nothing_where_it_is_not(bug: Bug) -> None:
    """The rule falls first, and no later than what is wrong without the watch; a release without the bug is silent."""
    row = run_seed(bug.world, SEEDS[bug.number], STEPS)
    print(row)

    if RELEASE in bug.releases:
        assert bug.rule in row.rules
        assert row.trouble is None or row.rules[bug.rule] <= row.trouble
        assert min(row.rules, key=row.rules.__getitem__) == bug.rule
    elif bug.world == "simple" and RELEASE != "0.33.0":
        assert set(row.rules) <= {"I5"}, "up to 0.23.0 this connector leaves stores behind when the last request ends"
    else:
        assert (row.rules, row.trouble) == ({}, None)


# --- vLLM's own entry point ---------------------------------------------------------------------------------------------------

PLAYED = """
import json, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
from blocklife.engines.vllm.watch import watch_of
from tests.vllm import found
rig = getattr(found, sys.argv[1])()
watch = watch_of(rig.scheduler)
metrics = []
if watch is not None:
    from prometheus_client import generate_latest
    metrics = [line for line in generate_latest().decode().splitlines() if line.startswith("vllm:blocklife_watch_violations")]
print(json.dumps({"report": watch and watch.report(), "metrics": metrics, "wrong": len(rig.corruptions)}))
"""
STORY = "preempted_before_it_was_computed"
"""A fault that every release has, and that lets the engine go on."""


def run(program: str, *words: str, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A process of its own, with these settings of the watch and no others."""
    around = {name: value for name, value in os.environ.items() if not name.startswith("BLOCKLIFE_WATCH")}
    command = [sys.executable, "-c", program, *words]
    with interruptible():
        return subprocess.run(command, cwd=ROOT, env={**around, **settings}, capture_output=True, text=True, check=False)


def with_a_vllm_of_its_own(test: TestT) -> TestT:
    """Such a test imports all of vLLM once more, which takes long: of older releases it runs at night."""
    if versions.minor_of(RELEASE) != versions.minor_of(versions.SUPPORTED[-1]):
        pytest.mark.slow(test)
    return test


def lines(text: str) -> list[str]:
    """Those that the watch has said."""
    return [line for line in text.splitlines() if "blocklife watch: " in line]


@with_a_vllm_of_its_own
def test_vllm_leaves_the_watch_alone_unless_it_is_asked_for() -> None:
    """The entry point is there, and does nothing."""
    ran = run(PLAYED, STORY, settings={})

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["report"] is None


@pytest.mark.slow
def test_vllm_logs_one_line_when_asked_to() -> None:
    """Rule, step, block, life and request; the engine goes on."""
    ran = run(PLAYED, STORY, settings={"BLOCKLIFE_WATCH": "log"})

    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["wrong"] > 0
    started = [line for line in ran.stderr.splitlines() if line.startswith("blocklife watches ")]  # vLLM's own logging shows it
    assert [line.partition(" of OffloadingConnector in process MainProcess, ")[0] for line in started] == [
        "blocklife watches the scheduler's side",
        "blocklife watches a worker's side",
    ]
    assert all(line.endswith(" (log)") for line in started)
    (line,) = lines(ran.stderr)
    assert "I6 at step 5: block " in line
    assert line.endswith("life 2, request r0)")


@pytest.mark.slow
def test_vllm_counts_when_asked_to() -> None:
    """A counter with the rule as its label, in the registry that vLLM's server shows; nothing is said."""
    ran = run(PLAYED, STORY, settings={"BLOCKLIFE_WATCH": "count"})

    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["report"]["violations_by_rule"] == {"I6": 1}
    assert 'vllm:blocklife_watch_violations_total{rule="I6"} 1.0' in told["metrics"]
    assert lines(ran.stderr) == []


SERVED = """
import json, multiprocessing, sys
from prometheus_client import generate_latest
from vllm.plugins import load_general_plugins
from vllm.v1.metrics.prometheus import get_prometheus_registry

def serve(story):
    load_general_plugins()
    from tests.vllm import found
    getattr(found, story)()

def shown():
    lines = generate_latest(get_prometheus_registry()).decode().splitlines()
    return [line for line in lines if line.startswith("vllm:blocklife_watch_") and not line.endswith(" 0.0")]

if __name__ == "__main__":
    load_general_plugins()
    before = shown()
    core = multiprocessing.get_context("spawn").Process(target=serve, args=(sys.argv[1],), name="EngineCore")
    core.start()
    core.join()
    print(json.dumps({"before": before, "after": shown(), "status": core.exitcode}))
"""


@with_a_vllm_of_its_own
def test_the_process_that_serves_shows_what_the_engine_core_counts(tmp_path: Path) -> None:
    """As under a plain ``vllm serve``: the server loads the plug-in and starts the engine core, whose counts it shows."""
    program = tmp_path / "served.py"
    program.write_text(SERVED, encoding="utf-8")
    around = {name: value for name, value in os.environ.items() if not name.startswith(("BLOCKLIFE_WATCH", "PROMETHEUS"))}
    around |= {"BLOCKLIFE_WATCH": "count", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run(
        [sys.executable, str(program), STORY], cwd=ROOT, env=around, capture_output=True, text=True, check=False
    )
    told = json.loads(ran.stdout.splitlines()[-1])

    assert ran.returncode == told["status"] == 0, ran.stderr
    assert told["before"] == []
    assert 'vllm:blocklife_watch_violations_total{rule="I6"} 1.0' in told["after"]
    assert any(line.startswith("vllm:blocklife_watch_steps_total ") for line in told["after"])
    started = [line for line in ran.stderr.splitlines() if "blocklife watches " in line]
    assert started
    for line in started:
        assert " of OffloadingConnector in process EngineCore, " in line, "the server itself watches nothing, and says nothing"
        assert line.endswith("(count); its counts are in the metrics of the process that started it")


@with_a_vllm_of_its_own
def test_vllm_falls_with_the_story_when_the_watch_is_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule, block, life, last events with their steps and requests, and a command that draws it; the command works."""
    path = tmp_path / "run-{pid}.jsonl"
    ran = run(PLAYED, STORY, settings={"BLOCKLIFE_WATCH": "strict", "BLOCKLIFE_WATCH_RECORD": str(path)})
    told = ran.stderr[ran.stderr.index("WatchError: ") :].splitlines()
    _, _, command = told[-1].partition("to draw it: ")
    program, *words = shlex.split(command)
    drawn = main(words)
    out = capsys.readouterr().out

    assert ran.returncode == 1
    assert told[0].startswith("WatchError: I6 at step 5: block ")
    assert told[1] == "  rule: only content that has arrived is read"
    assert told[2].startswith("  step 3, life 1: handed out to r0 (group 0, position ")
    assert (program, drawn) == ("blocklife", 0), command
    assert "ALLOCATED" in out
    assert main(["recording", "check", words[2]]) == 0


OURS = """
from vllm.plugins import load_general_plugins
load_general_plugins()
from tests.vllm.connector_rig import ConnectorRig
from tests.vllm.test_watch import ROOMY
ConnectorRig(ROOMY)
"""


@with_a_vllm_of_its_own
@pytest.mark.skipif(not versions.is_supported(RELEASE), reason="our connector does not know this release")
def test_vllm_says_that_our_own_connector_is_not_watched() -> None:
    """One line more than the one that the watch is on: nobody takes its silence for a run without faults."""
    ran = run(OURS, settings={"BLOCKLIFE_WATCH": "log"})

    assert ran.returncode == 0, ran.stderr
    (line,) = lines(ran.stderr)
    assert "watching nothing, because a scheduler with " in line
    assert line.endswith("has nothing to watch (this connector keeps a ledger of its own, and is not watched)")


# --- stories and recordings ---------------------------------------------------------------------------------------------------


def watched_story(monkeypatch: pytest.MonkeyPatch, options: Options) -> list[Watch]:
    """Let stories be played under a watch; the list gets it."""
    made: list[Watch] = []
    monkeypatch.setattr(found, "Rig", functools.partial(Rig, on_scheduler=lambda each: made.append(attach(each, options))))
    return made


def test_a_recording_is_written_when_the_first_rule_falls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The violation names its job and slot's part, and what it says to draw can be drawn before the process ends."""
    made = watched_story(monkeypatch, evolve(STRICT, record=str(tmp_path / "run.jsonl")))
    with pytest.raises(WatchError) as caught:
        found.partial_chunk()
    violation = caught.value.violation
    drawn = main(shlex.split(violation.draw)[1:])
    shown = capsys.readouterr().out
    detach(made[0])
    made[0].close()

    assert violation.rule == ("I15" if RELEASE == "0.21.0" else "I6")
    assert drawn == 0
    assert f"block {violation.block}" in shown
    assert main(["recording", "check", str(tmp_path / "run.jsonl")]) == 0
    if violation.job is not None:
        assert any("handed out to" in event for event in violation.history)
        assert violation.request == "r2"


@pytest.mark.parametrize("options", [COUNT, STRICT], ids=["count", "strict"])
def test_the_watch_tells_its_rule_before_vllm_falls(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the step has broken is counted, and the error is vLLM's own; a strict watch has that as the context of its own."""
    story, rule, error = FALLS[RELEASE]
    made = watched_story(monkeypatch, options)
    with pytest.raises((error, WatchError)) as caught:
        vars(found)[story]()

    assert isinstance(caught.value, WatchError) is (options is STRICT)
    assert made[0].violations[0].rule == rule
    assert made[0].lost is None
    if isinstance(caught.value, WatchError) and rule != "I10":  # a rule that falls before the engine does has no error yet
        assert isinstance(caught.value.__context__, error)


ENDED = """
import os, signal, sys
from blocklife.engines.vllm import _versions as versions
from blocklife.engines.vllm.watch import Options, WatchMode, attach
from tests.vllm.test_watch import BUSY, ROOMY, Rig, Traffic
rig = Rig(ROOMY, 7)
attach(rig.scheduler, Options(mode=WatchMode.COUNT, record=sys.argv[1]))
traffic = Traffic.drawn(rig, 7, BUSY)
traffic.run(30)
inner = rig.scheduler.connector.connector_scheduler
kept = inner.build_connector_meta
def interrupted(*args):
    meta = kept(*args)
    if sys.argv[2] == "ctrl-c":
        os.kill(os.getpid(), signal.SIGINT)
    raise KeyError("odd")
inner.build_connector_meta = interrupted
traffic.run(30)
"""


@with_a_vllm_of_its_own
@pytest.mark.parametrize("way", ["falls", "ctrl-c"])
def test_a_process_that_ends_within_a_step_leaves_a_recording(
    way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By an error, or because somebody has had enough: it can be checked and shown, and does not call itself whole."""
    path = tmp_path / "run.jsonl"
    ran = run(ENDED, str(path), way, settings={})
    checked = main(["recording", "check", str(path)])
    shown = main(["recording", "show", str(path), "--block", "1"])
    last = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])

    assert ("KeyError: 'odd'" in ran.stderr) is (way == "falls"), ran.stderr
    assert ran.returncode == (1 if way == "falls" else -signal.SIGINT)
    assert (checked, shown) == (0, 0), capsys.readouterr().out
    assert last.get("blocklife") != "end"
