"""A whole watch: what each mode does with a violation, what a process leaves behind, and how the environment switches it on.

Goal: whoever watches hears of everything once, in the form that was asked for, and the engine never suffers from its watch.
Method: fakes of vLLM's objects, and processes of their own where an end of a process is the subject.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import field, frozen

from blocklife.cli import main
from blocklife.engines.vllm.watch import LOGGER, Options, WatchError, WatchMode, attach, detach
from blocklife.engines.vllm.watch._offloading import OffloadingHooks
from blocklife.errors import BlocklifeError, InvariantError, MisuseError
from blocklife.watch import RULES, WatchViolation
from blocklife.watch import _watch as watch_module
from blocklife.watch._metrics import COUNTED, FOLDER, Collector, OfLibrary, WatchCounts, _in_folder, prefix_of
from blocklife.watch._violations import NUM_KEPT, NUM_LOGGED, WHILE_S, ViolationReporter
from blocklife.watch._watch import TOLD_EVERY
from tests.disks import small_disk
from tests.interrupts import interruptible
from tests.watch.watch_fakes import FakeMeta, FakeOffloading, FakeRequest, FakeScheduler, load, offloading, reported, store

ROOT = Path(__file__).parents[2]
A, B = FakeRequest("a"), FakeRequest("b")


def hand_out_unwaited(scheduler: FakeScheduler, inner: FakeOffloading) -> None:
    """I1: a block is handed out while job 0 reads it."""
    manager = scheduler.kv_cache_manager
    manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeMeta({0: store("a", [1], [7])}))
    inner.request_finished(A)
    manager.free(A)
    manager.allocate_slots(B, [1])
    inner.build_connector_meta(FakeMeta())


# --- modes --------------------------------------------------------------------------------------------------------------------


def test_strict_raises_the_story_out_of_the_call_that_was_illegal() -> None:
    """The error is one of ours, and carries the violation; the watch goes on if the engine does."""
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(mode=WatchMode.STRICT))
    with pytest.raises(WatchError) as caught:
        hand_out_unwaited(scheduler, inner)
    inner.build_connector_meta(FakeMeta())

    assert isinstance(caught.value, BlocklifeError)
    assert caught.value.violation is watch.violations[0]
    assert "job 0 stores it of request a" in str(caught.value)
    assert watch.steps == 3


def test_strict_raises_the_first_of_several_and_counts_all() -> None:
    """Nothing that was found is lost by the raise."""
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(mode=WatchMode.STRICT))
    inner.update_connector_output(reported(j5=1, j6=1))
    with pytest.raises(WatchError, match="job 5"):
        inner.build_connector_meta(FakeMeta())

    assert watch.counts == {"I3": 2}


def test_count_says_nothing_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Only the counts and the report know."""
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(mode=WatchMode.COUNT))
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        hand_out_unwaited(scheduler, inner)

    assert watch.counts == {"I1": 1}
    assert caplog.records == []


def test_log_writes_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """With the rule, the step, the block, the request and the job."""
    scheduler, inner = offloading()
    attach(scheduler)
    with caplog.at_level(logging.DEBUG, LOGGER.name):
        hand_out_unwaited(scheduler, inner)

    assert len(caplog.records) == 1
    line = caplog.records[0].getMessage()
    assert "\n" not in line
    assert "I1 at step 2" in line
    assert line.endswith("(block 1, life 1, request b, job 0)")


def test_a_flood_of_one_rule_is_one_line_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """The first ones are told each; later a line says how many there were. Another rule is not held back by it."""
    now = [0.0]
    reporter = ViolationReporter(WatchMode.LOG, lambda rule: None, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, LOGGER.name):
        for _ in range(NUM_LOGGED + 5):
            reporter([WatchViolation("I1", "again", 1)])
        reporter([WatchViolation("I8", "something else", 1)])
        now[0] = WHILE_S
        reporter([WatchViolation("I1", "again", 1)])

    assert len(caplog.records) == NUM_LOGGED + 2
    assert "I8" in caplog.records[-2].getMessage()
    assert "and 5 more of this rule since the last line" in caplog.records[-1].getMessage()
    assert reporter.counts == {"I1": NUM_LOGGED + 6, "I8": 1}


def test_violations_are_kept_up_to_a_limit_and_counted_beyond() -> None:
    """A long illegal run does not fill the memory."""
    reporter = ViolationReporter(WatchMode.COUNT, lambda rule: None)
    for _ in range(NUM_KEPT + 10):
        reporter([WatchViolation("I1", "again", 1)])

    assert len(reporter.violations) == NUM_KEPT
    assert reporter.counts["I1"] == NUM_KEPT + 10


def test_a_report_is_plain_json() -> None:
    """Counts, and the violations with their histories."""
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(mode=WatchMode.COUNT))
    hand_out_unwaited(scheduler, inner)
    report = json.loads(json.dumps(watch.report()))

    assert report["steps"] == 2
    assert report["violations_by_rule"] == {"I1": 1}
    assert report["violations"][0]["block"] == 1
    assert report["violations"][0]["history"]
    assert report["jobs"] == 0
    assert report["lost"] is None


# --- a watch that is wrong itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(WatchMode))
def test_an_error_of_the_watch_itself_does_not_reach_the_engine(mode: WatchMode, caplog: pytest.LogCaptureFixture) -> None:
    """It stops watching, says so once, and leaves the engine's methods as they were; strict raises, for it is asked to."""
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(mode=mode))
    watch.mirror.handed_out("a", 9, [1], [0])  # a group that is not there
    if mode is WatchMode.STRICT:
        with pytest.raises(InvariantError, match="the fault is the watch's own"):
            inner.build_connector_meta(FakeMeta())
    else:
        with caplog.at_level(logging.ERROR, LOGGER.name):
            assert inner.build_connector_meta(FakeMeta()) == FakeMeta()
        assert "the fault is the watch's own" in caplog.records[0].getMessage()
    hand_out_unwaited(scheduler, inner)

    assert watch.lost is not None
    assert watch.counts == {}
    assert "build_connector_meta" not in vars(inner)


@pytest.mark.parametrize("name", ["_builds", "_built"])
def test_a_broken_hook_never_reaches_the_engine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its call returns what it does without a watch; the watch is lost, and has let go of everything."""
    monkeypatch.setattr(OffloadingHooks, name, lambda *_: 1 // 0)
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(mode=WatchMode.LOG))

    assert inner.build_connector_meta(FakeMeta()) == FakeMeta()

    assert isinstance(watch.lost, ZeroDivisionError)
    assert "build_connector_meta" not in vars(inner)


# --- metrics ------------------------------------------------------------------------------------------------------------------


class FakeCounter:
    """A counter of Prometheus."""

    def __init__(self, name: str, about: str, labels: list[str] | None = None, registry: object = None) -> None:
        self.name, self.labelled, self.value = name, dict[str, FakeCounter](), 0.0
        if isinstance(registry, dict):
            registry[name] = self

    def inc(self, amount: float = 1) -> None:
        """Count."""
        self.value += amount

    def labels(self, **labels: str) -> FakeCounter:
        """The one of a rule, or of what is not followed."""
        ((_, value),) = labels.items()
        return self.labelled.setdefault(value, FakeCounter(value, ""))


@frozen
class FakeFamily:
    """What a collector says of one metric."""

    name: str
    documentation: str
    labels: list[str]
    values: dict[tuple[str, ...], float] = field(factory=dict)

    def add_metric(self, labels: list[str], value: float) -> None:
        """One of its series."""
        self.values[tuple(labels)] = value


PREFIX = prefix_of("vllm")


def shown(folder: Path) -> dict[str, dict[tuple[str, ...], float]]:
    """What a process that counts nothing itself shows of a folder."""
    collector = Collector("vllm", WatchCounts(folder, ""), SimpleNamespace(CounterMetricFamily=FakeFamily))
    found: list[Any] = list(collector.collect())
    return {family.name: family.values for family in found}


def test_metrics_are_named_as_vllm_names_its_own() -> None:
    """A counter of violations by rule, and one of each other figure."""
    registry: dict[str, FakeCounter] = {}
    metrics = OfLibrary("vllm", SimpleNamespace(Counter=FakeCounter), registry)
    before = {rule: counter.value for rule, counter in registry[PREFIX + "violations"].labelled.items()}
    metrics.add("I1", 1)
    metrics.add("I1", 1)
    metrics.add("steps", 30)
    metrics.leave_out("SWA")

    assert all(name.startswith(PREFIX) for name in registry)
    assert before == dict.fromkeys(RULES, 0), (
        "each rule has its series before its first event: an alert on its growth sees that"
    )
    assert registry[PREFIX + "violations"].labelled["I1"].value == 2
    assert registry[PREFIX + "steps"].value == 30
    assert {name: each.value for name, each in registry[PREFIX + "not_followed"].labelled.items()} == {"SWA": 1}


def test_each_watch_adds_what_has_grown_since_it_was_told_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many steps, and at its end; what an earlier watch has counted stays."""
    kept = WatchCounts(None, "")
    monkeypatch.setattr(watch_module, "of_process", lambda engine: kept)
    for _ in range(2):
        scheduler, inner = offloading()
        watch = attach(scheduler, Options(mode=WatchMode.COUNT))
        for _ in range(2 * TOLD_EVERY + 5):
            inner.build_connector_meta(FakeMeta())
            scheduler.update_from_output(None)
        assert kept.totals()["steps"] % (2 * TOLD_EVERY + 5) == 2 * TOLD_EVERY
        watch.close()

    assert kept.totals()["steps"] == 2 * (2 * TOLD_EVERY + 5)
    assert sum(kept.totals().values()) == kept.totals()["steps"]


def test_counts_of_a_folder_are_shown_by_whoever_has_it(tmp_path: Path) -> None:
    """Another process adds up what two have counted, one of which has the number of one that is gone; all begin at zero."""
    none = shown(tmp_path)
    for _ in range(2):
        metrics = WatchCounts(tmp_path, "")
        metrics.add("I6", 1)
        metrics.add("steps", 10)
        metrics.leave_out("SWA")
        metrics.leave_out("count of pages")
    (tmp_path / "1.left_out").write_text("SWA\n", encoding="utf-8")
    (tmp_path / "1.counts").write_bytes((tmp_path / f"{os.getpid()}.counts").read_bytes())
    (tmp_path / "2.counts").write_bytes(b"")

    counted = {PREFIX + name: {(): 0} for name in COUNTED}
    assert none == {PREFIX + "violations": {(rule,): 0 for rule in RULES}, **counted, PREFIX + "not_followed": {}}
    assert shown(tmp_path)[PREFIX + "violations"] == {(rule,): 4 if rule == "I6" else 0 for rule in RULES}
    assert shown(tmp_path)[PREFIX + "steps"] == {(): 40}
    assert shown(tmp_path)[PREFIX + "not_followed"] == {("SWA",): 3, ("count of pages",): 2}


COUNTING = """
import os, sys
from blocklife.watch import _metrics as metrics
if len(sys.argv) > 1:
    metrics.of_process("vllm").add("I8", 1)
    print(metrics.of_process("vllm").where)
else:
    sys.modules["prometheus_client"] = None
    import subprocess
    metrics.of_process("vllm").add("I8", 1)
    child = os.fork()
    if not child:
        metrics.of_process("vllm").add("I8", 1)
        os._exit(0)
    os.waitpid(child, 0)
    print(metrics.of_process("vllm").where)
    print(subprocess.run([sys.executable, "-c", sys.orig_argv[-1], "x"], capture_output=True, text=True).stdout, end="")
    folder = metrics.Path(os.environ[metrics.FOLDER])
    print(metrics.WatchCounts(folder, "").totals()["I8"], len(list(folder.iterdir())), folder)
"""


def test_a_process_counts_with_those_that_it_starts() -> None:
    """A fork and a new process count beside it, each in a file of its own, and nothing is left when it has ended."""
    around = {name: value for name, value in os.environ.items() if name not in (FOLDER, "PROMETHEUS_MULTIPROC_DIR")}
    ran = subprocess.run([sys.executable, "-c", COUNTING], capture_output=True, text=True, env=around, check=False)
    own, started, told = ran.stdout.splitlines()
    count, files, folder = told.split()

    assert ran.returncode == 0, ran.stderr
    assert (own, started) == (
        "its counts are in the metrics of this process",
        "its counts are in the metrics of the process that started it",
    )
    assert (count, files) == ("3", "3")
    assert not Path(folder).exists()


ELSEWHERE = {
    "gone": "No such file or directory",
    "file": "Not a directory",
    "loop": "Too many levels of symbolic links",
    "x" * 300: "File name too long",
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_process_whose_inherited_folder_is_gone_counts_in_one_of_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a process that has ended before a child of its child began: its children count with it."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    monkeypatch.setenv(FOLDER, str(tmp_path / name))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = _in_folder()
    kept.add("I8", 2)

    assert kept.where == (
        f"its counts are in the metrics of this process only, because {FOLDER}={tmp_path / name} cannot be written to "
        f"({ELSEWHERE[name]})"
    )
    assert os.environ[FOLDER].startswith(f"{tmp_path}/blocklife-watch-")
    assert WatchCounts(Path(os.environ[FOLDER]), "").totals()["I8"] == 2


def test_a_process_that_can_make_no_file_counts_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own metrics have what it counts; the line says that those of others have not."""
    monkeypatch.delenv(FOLDER, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    kept = _in_folder()
    kept.add("I8", 2)
    collector = Collector("vllm", kept, SimpleNamespace(CounterMetricFamily=FakeFamily))
    families: list[Any] = list(collector.collect())

    assert kept.where.endswith("because no file can be made for them (No such file or directory)")
    assert {family.name: family.values for family in families}[PREFIX + "violations"]["I8",] == 2
    assert FOLDER not in os.environ


CROWDED = """
import os, sys, tempfile
from blocklife.watch import _metrics as metrics
tempfile.tempdir = sys.argv[1]
open(sys.argv[1] + "/filling", "wb", 0).write(bytes(1 << 20))
counts = metrics.of_process("vllm")
counts.add("I8", 1)
print(counts.where)
"""


def test_a_full_disk_does_not_end_who_counts(tmp_path: Path) -> None:
    """The place of a count is there before it is written to: a hole that cannot be filled ends a process by a signal."""
    around = {name: value for name, value in os.environ.items() if name not in (FOLDER, "PROMETHEUS_MULTIPROC_DIR")}
    with small_disk(tmp_path, 64 << 10):
        command = [sys.executable, "-c", CROWDED, str(tmp_path)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=around, check=False)

    assert ran.returncode == 0, ran.stderr
    assert "no file can be made for them (No space left on device)" in ran.stdout


CLIENT = """
import sys
from types import ModuleType
client = sys.modules["prometheus_client"] = ModuleType("prometheus_client")
core = sys.modules["prometheus_client.core"] = ModuleType("prometheus_client.core")
class REGISTRY:
    @staticmethod
    def register(collector):
        raise ValueError("Duplicated timeseries")
core.REGISTRY, core.CounterMetricFamily = REGISTRY, None
def Counter(*given):
    raise FileNotFoundError(2, "No such file or directory")
client.Counter = Counter
from blocklife.watch import _metrics as metrics
counts = metrics.of_process("vllm")
counts.add("I8", 1)
print(counts.where)
"""


@pytest.mark.parametrize(
    ("shared", "why"),
    [
        ("", "its metrics cannot be registered (Duplicated timeseries)"),
        ("/gone", "PROMETHEUS_MULTIPROC_DIR does not take them (No such file or directory)"),
    ],
)
def test_a_client_library_that_refuses_the_metrics_ends_nobody(shared: str, why: str) -> None:
    """Somebody has metrics of these names already, or the folder that several servers share is gone."""
    around = {name: value for name, value in os.environ.items() if name != FOLDER} | {"PROMETHEUS_MULTIPROC_DIR": shared}
    command = [sys.executable, "-c", CLIENT]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=around, check=False)

    assert (ran.returncode, ran.stdout) == (0, f"its counts are shown nowhere, because {why}\n"), ran.stderr


# --- options ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "0", "off", " OFF "])
def test_the_environment_can_leave_the_watch_off(value: str) -> None:
    """Nothing asked, nothing done; the other settings do not matter then."""
    assert Options.from_environment({}) is None
    assert Options.from_environment({"BLOCKLIFE_WATCH": value, "BLOCKLIFE_WATCH_SAMPLE": "x"}) is None


def test_the_environment_says_how_to_watch() -> None:
    """All three settings."""
    options = Options.from_environment(
        {"BLOCKLIFE_WATCH": "Strict", "BLOCKLIFE_WATCH_SAMPLE": "8", "BLOCKLIFE_WATCH_RECORD": "run-{pid}.jsonl"}
    )

    assert options == Options(mode=WatchMode.STRICT, sample=8, record="run-{pid}.jsonl")
    assert Options.from_environment({"BLOCKLIFE_WATCH": "log"}) == Options(jobs=False)
    assert Options.from_environment({"BLOCKLIFE_WATCH": "count", "BLOCKLIFE_WATCH_RECORD": "x"}) == Options(
        mode=WatchMode.COUNT, record="x"
    )


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"BLOCKLIFE_WATCH": "loud"}, "BLOCKLIFE_WATCH=loud: it is strict, count or log"),
        ({"BLOCKLIFE_WATCH": "log", "BLOCKLIFE_WATCH_SAMPLE": "0"}, "BLOCKLIFE_WATCH_SAMPLE=0"),
        ({"BLOCKLIFE_WATCH": "log", "BLOCKLIFE_WATCH_SAMPLE": "-1"}, "BLOCKLIFE_WATCH_SAMPLE=-1"),
        ({"BLOCKLIFE_WATCH": "log", "BLOCKLIFE_WATCH_SAMPLE": "½"}, "BLOCKLIFE_WATCH_SAMPLE=½"),
        *[
            (
                {"BLOCKLIFE_WATCH": "log", "BLOCKLIFE_WATCH_SAMPLE": text},
                rf"^BLOCKLIFE_WATCH_SAMPLE={text}: it is a whole number",
            )
            for text in ("9" * 5_000, str(1 << 31), "nan", "1e3", "0x10", "1_0", "٣", "²", "8 8", "\0", "-9")
        ],
        *[
            ({"BLOCKLIFE_WATCH": text}, f"^BLOCKLIFE_WATCH={text}: it is strict, count or log")
            for text in ("yes", "1", "-1", "nan", "ﬁ", "log\0", "x" * 100_000, "strict,log")
        ],
    ],
    ids=lambda given: None if isinstance(given, dict) else given[:40],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, str], word: str) -> None:
    """The message names the variable, its value and what it can be."""
    with pytest.raises(MisuseError, match=word):
        Options.from_environment(settings)


WRONG: dict[str, tuple[list[Any], str]] = {
    "mode": (["strict", "bogus", None, 1], r"mode must be WatchMode.STRICT, COUNT or LOG, not "),
    "sample": ([0, True, 1.5, "8", -1, 1 << 31, 10**5_000, -(10**5_000)], "sample must be a whole number"),
    "jobs": (["no", 0, None], "jobs must be True or False"),
    "record": ([True, 7, b"run.jsonl"], "record must be a path, as str or Path"),
}
"""What each option is not, and the message."""


@pytest.mark.parametrize("name", WRONG)
def test_option_that_means_nothing_is_refused(name: str) -> None:
    """A word of the environment, say, would make a watch that says nothing, or the opposite of what is meant."""
    values, why = WRONG[name]
    for value in values:
        with pytest.raises(MisuseError, match=why):
            Options(**{name: value})


def test_a_path_may_be_spelt_in_each_way(tmp_path: Path) -> None:
    """None is the empty one: nowhere."""
    assert Options(record=tmp_path / "x") == Options(record=str(tmp_path / "x"))
    assert Options(record=None) == Options()


# --- recordings ---------------------------------------------------------------------------------------------------------------


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Status and output of a command."""
    status = main(list(words))
    return status, capsys.readouterr().out


@pytest.mark.parametrize("mode", [WatchMode.STRICT, WatchMode.COUNT])
def test_the_command_of_a_story_draws_it(mode: WatchMode, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The recording is legal, and the very command works on it; also while the watch still runs, and after a strict stop."""
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(mode=mode, record=str(tmp_path / "run-{pid}.jsonl")))
    if mode is WatchMode.STRICT:
        with pytest.raises(WatchError) as caught:
            hand_out_unwaited(scheduler, inner)
        text = str(caught.value)
    else:
        hand_out_unwaited(scheduler, inner)
        text = str(watch.violations[0])
    program, *words = text.rpartition("to draw it: ")[2].split()
    while_open = told(capsys, *words)
    detach(scheduler)
    checked = told(capsys, "recording", "check", words[2])

    assert program == "blocklife"
    assert while_open[0] == 0
    assert "IN_FLIGHT" in while_open[1]
    assert checked[0] == 0, checked[1]


@pytest.mark.parametrize(
    ("num_engines", "at_once", "num_files"), [(1, True, 2), (2, True, 4), (2, False, 2)], ids=["one", "two", "one by one"]
)
def test_each_connector_of_each_engine_has_a_recording_of_its_own(
    num_engines: int, at_once: bool, num_files: int, tmp_path: Path
) -> None:
    """Numbers of connectors and of engines are those of one row; who was detached leaves its names to the next."""
    schedulers = []
    for _ in range(num_engines):
        both = SimpleNamespace(_connectors=[SimpleNamespace(connector_scheduler=FakeOffloading()) for _ in range(2)])
        schedulers.append(FakeScheduler(both))
        attach(schedulers[-1], Options(record=str(tmp_path / "run.jsonl")))
        if not at_once:
            detach(schedulers[-1])
    for scheduler in schedulers:
        detach(scheduler)

    names = ["run.jsonl", *(f"run.jsonl.{at}" for at in range(2, num_files + 1))]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_recording_names_requests_as_the_engine_does(tmp_path: Path) -> None:
    """Not as the ledger behind the watch does, whose requests are lent."""
    path = tmp_path / "run.jsonl"
    scheduler, inner = offloading()
    attach(scheduler, Options(record=str(path)))
    scheduler.kv_cache_manager.allocate_slots(A, [1])
    inner.build_connector_meta(FakeMeta({0: store("a", [1], [7])}))
    inner.update_connector_output(reported(j0=1))
    scheduler.kv_cache_manager.allocate_slots(B, [3])
    inner.build_connector_meta(FakeMeta(load_jobs={1: load("b", [3], [7])}))
    inner.update_connector_output(reported(j1=1))
    scheduler.kv_cache_manager.free(B)
    inner.build_connector_meta(FakeMeta())
    detach(scheduler)
    lines = [line for line in map(json.loads, path.read_text().splitlines()) if line.get("machine") == "request"]

    assert [(line["event"], line["name"]) for line in lines] == [("plan_load", "b"), ("loaded", "b"), ("finish", "b")]


def test_each_engine_of_a_process_has_a_recording_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The second takes the next free name, and says so in a line; both are legal, and the story draws from the right one."""
    engines = [offloading() for _ in range(3)]
    with caplog.at_level(logging.WARNING, LOGGER.name):
        watches = [
            attach(scheduler, Options(mode=WatchMode.COUNT, record=str(tmp_path / "run {of}.jsonl")))
            for scheduler, _ in engines
        ]
    for scheduler, inner in engines:
        hand_out_unwaited(scheduler, inner)
    words = [shlex.split(watch.violations[0].draw) for watch in watches]
    for scheduler, _ in engines:
        detach(scheduler)
    names = ["run {of}.jsonl", "run {of}.jsonl.2", "run {of}.jsonl.3"]

    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [Path(each[3]).name for each in words] == names
    assert [record.getMessage().count(str(tmp_path)) for record in caplog.records] == [2, 2]
    for each in words:
        assert told(capsys, *each[1:])[0] == 0
        assert told(capsys, "recording", "check", each[3])[0] == 0


PROGRAM = """
import os, signal, sys
from blocklife.engines.vllm.watch import Options, attach
from tests.watch.test_watch_watching import hand_out_unwaited
from tests.watch.watch_fakes import FakeMeta, FakeRequest, offloading
scheduler, inner = offloading()
watch = attach(scheduler, Options(record=sys.argv[1]))
hand_out_unwaited(scheduler, inner)
if sys.argv[2] == "ctrl-c":
    kept = watch.mirror.ledger.dispatch
    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return kept(*args)
    watch.mirror.ledger.dispatch = interrupted
    inner.build_connector_meta(FakeMeta())
elif sys.argv[2] == "end":
    scheduler.kv_cache_manager.free(FakeRequest("b"))
    inner.build_connector_meta(FakeMeta())
"""


@pytest.mark.parametrize(("way", "complete"), [("end", True), ("ctrl-c", False), ("held", False)])
def test_a_process_leaves_a_recording_that_can_be_checked(
    way: str, complete: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that just ends, one that is interrupted in the middle of a step, and one that ends with a block held."""
    path = tmp_path / "run.jsonl"
    with interruptible():
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path), way], cwd=ROOT, capture_output=True, text=True, check=False
        )
    status, out = told(capsys, "recording", "check", str(path))
    shown, _ = told(capsys, "recording", "show", str(path), "--block", "1")
    last = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])

    assert (ran.returncode == 0) is (way != "ctrl-c"), ran.stderr
    assert status == 0, out
    assert shown == 0
    assert (last.get("blocklife") == "end") is complete


CHILD = """
import multiprocessing, sys
from tests.watch.test_watch_watching import hand_out_unwaited
from tests.watch.watch_fakes import FakeMeta, FakeRequest, offloading
from blocklife.engines.vllm.watch import Options, attach
def work(path):
    scheduler, inner = offloading()
    attach(scheduler, Options(record=path))
    hand_out_unwaited(scheduler, inner)
    scheduler.kv_cache_manager.free(FakeRequest("b"))
    inner.build_connector_meta(FakeMeta())
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work, args=(sys.argv[1],))
    process.start()
    process.join()
"""


def test_a_forked_child_ends_its_recording(tmp_path: Path) -> None:
    """Such a process leaves without what other processes do at their end; vLLM's engine core may be one."""
    path = tmp_path / "run.jsonl"
    subprocess.run([sys.executable, "-c", CHILD, str(path)], cwd=ROOT, check=True, capture_output=True)

    assert json.loads(path.read_text(encoding="utf-8").splitlines()[-1])["blocklife"] == "end"


UNUSABLE = [
    ("nowhere/run.jsonl", r"there is no folder \S+nowhere \(make it, or name another\)"),
    ("nowhere/", r"there is no folder \S+nowhere \(make it, or name another\)"),
    ("a-file/run.jsonl", r"there is no folder \S+a-file \(make it, or name another\)"),
    ("a-folder", r"it is a folder \(name a file in it\)"),
]


@pytest.fixture
def around(tmp_path: Path) -> Path:
    """A folder with a file and a folder in it."""
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "why"),
    [*UNUSABLE, ("x" * 300, "it cannot be written: File name too long"), ("\0", "it cannot be written: embedded null byte")],
)
def test_a_recording_that_cannot_be_written_is_refused_at_once(name: str, why: str, around: Path) -> None:
    """Before anything is listened to; the message names the option, the path and the remedy."""
    scheduler, inner = offloading()
    with pytest.raises(MisuseError, match=rf"^record \(BLOCKLIFE_WATCH_RECORD\)={around}/{name}: {why}"):
        attach(scheduler, Options(record=f"{around}/{name}"))

    assert "build_connector_meta" not in vars(inner)


@pytest.mark.parametrize(("name", "why"), UNUSABLE)
def test_a_recording_that_cannot_be_written_is_refused_when_the_environment_is_read(name: str, why: str, around: Path) -> None:
    """Long before vLLM makes its scheduler; nothing is created by the look."""
    before = sorted(around.rglob("*"))
    with pytest.raises(MisuseError, match=rf"^BLOCKLIFE_WATCH_RECORD={around}/{name}: {why}"):
        Options.from_environment({"BLOCKLIFE_WATCH": "log", "BLOCKLIFE_WATCH_RECORD": f"{around}/{name}"})

    assert sorted(around.rglob("*")) == before


def test_a_folder_of_each_process_is_looked_for_where_its_recording_is_opened(around: Path) -> None:
    """Which of vLLM's processes has the scheduler is not known when the environment is read, and it alone needs its folder."""
    told = {"BLOCKLIFE_WATCH": "log", "BLOCKLIFE_WATCH_RECORD": f"{around}/{{pid}}/run.jsonl"}
    options = Options.from_environment(told)
    scheduler, _ = offloading()
    with pytest.raises(MisuseError, match="there is no folder"):
        attach(scheduler, options)


class Full:
    """A file on a disk that is full."""

    def write(self, text: str) -> None:
        """Nothing more goes in."""
        raise OSError(28, "No space left on device")

    def flush(self) -> None:
        """What was written before does not go in either."""
        self.write("")

    close = flush


def test_a_full_disk_ends_the_recording_and_neither_watch_nor_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be written is said when it happens, and when the recording is closed."""
    scheduler, inner = offloading()
    watch = attach(scheduler, Options(record=str(tmp_path / "run.jsonl")))
    recording = watch._recordings[0]
    recording._stream.close()
    vars(recording)["_stream"] = vars(recording._recorder)["_stream"] = Full()
    with caplog.at_level(logging.ERROR):
        scheduler.kv_cache_manager.allocate_slots(A, [1])
        inner.build_connector_meta(FakeMeta())
        lost = watch.lost
        watch.close()

    assert lost is None
    assert "the recording has ended before the run" in caplog.text
    assert "could not be written to its end (" in caplog.text
