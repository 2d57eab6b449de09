"""The pytest plugin, as an engine author meets it: every test here is a run of pytest in a folder of its own.

Goal: who installs blocklife has its fixtures, its scenarios and its report without configuration, and pays nothing for them
unless they are used. Method: pytest runs as a process, and what it prints is read. The last part runs the example engine, whose
planted bug the plugin has to find in two ways.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

from blocklife.errors import InvariantError, MisuseError
from blocklife.ledger import Ledger, Limits, Placement
from blocklife.ledger._state import LedgerData
from blocklife.states import MACHINES
from blocklife.testing import Driver, Outcome, run_files
from blocklife.testing.plugin._coverage import Coverage
from blocklife.testing.plugin._hooks import REPORT, REQUIRE
from blocklife.testing.plugin._visit import make_visit
from blocklife.testing.plugin._watched import make_watched, raise_violation
from blocklife.testing.scenarios._telling import summary
from tests.programs import HANGS_S

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "your_engine"
LIMITS = Limits(num_blocks=4, num_slots=2, max_jobs=2, max_requests=2)

USES_A_LEDGER = """
def test_one_request(blocklife_ledger):
    ledger = blocklife_ledger(num_blocks=4)
    ledger.add_request("a")
    ledger.admit("a")
    ledger.allocate("a", 2)

def test_another(blocklife_ledger):
    ledger = blocklife_ledger()
    ledger.add_request("a")
    ledger.finish("a")
"""

SCENARIO = """
id = "arrival"
title = "Whoever comes gets a block"
tests = "safety"
[world]
blocks = 3

[variants]
contract = ["fence", "hold"]

[[step]]
do = "arrive"
request = "a"
prompt = "abcdefgh"

[[step]]
do = "step"
expect.handed_out = ["block 0 of a"]
"""


@frozen
class Ran:
    """What a run of pytest printed, and how it ended."""

    code: int
    text: str

    @property
    def last(self) -> str:
        """The last line: the counts."""
        return self.text.rstrip().splitlines()[-1]


WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
"""Plugins that nothing here needs; the second one takes longer to import than most of these runs take."""


def run(folder: Path, *options: str) -> Ran:
    """Run pytest there, with warnings as errors and no cache."""
    words = [sys.executable, "-m", "pytest", "-q", "-W", "error", "--strict-config", *WITHOUT, *options]
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, encoding="utf-8", timeout=HANGS_S, check=False)
    print(ran.stdout, ran.stderr)
    return Ran(ran.returncode, ran.stdout + ran.stderr)


def write(folder: Path, **files: str) -> Path:
    """Write files; ``test_a="..."`` is ``test_a.py``."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


# --- what it costs ----------------------------------------------------------------------------------------------------------


def test_plugin_is_there_and_brings_nothing_in(tmp_path: Path) -> None:
    """It is found by its entry point, and neither numpy nor a ledger is imported before somebody asks for one."""
    write(
        tmp_path,
        test_a="""
import sys

def test_a(pytestconfig):
    heavy = {"numpy", "attrs", "attr", "rich"} | {f"blocklife.{name}" for name in ("ledger", "lifecycle", "states", "errors")}
    assert pytestconfig.pluginmanager.has_plugin("blocklife")
    assert not heavy & sys.modules.keys()
""",
    )

    # Hypothesis has a plugin, too, and no say in what ours brings in
    assert run(tmp_path, "-p", "no:hypothesispytest").last.startswith("1 passed")


# --- fixtures ---------------------------------------------------------------------------------------------------------------


def test_ledger_that_breaks_a_rule_fails_the_test(tmp_path: Path) -> None:
    """With the rule, the verb and the history of the place, although the engine swallows every exception."""
    write(
        tmp_path,
        test_a="""
def test_a(blocklife_ledger):
    ledger = blocklife_ledger(num_blocks=4)
    ledger.add_request("a")
    ledger.admit("a")
    ledger.allocate("a", 2)
    ledger._state.core.blocks.pins[1] = 1
    try:
        ledger.finish("a")
    except Exception:
        pass
""",
    )
    ran = run(tmp_path)

    assert ran.code == pytest.ExitCode.TESTS_FAILED
    assert "I1 does not hold after finish: pins of place 1 say 1, counted 0" in ran.text
    assert "what lately happened to block 1:" in ran.text
    assert "FREED --allocate--> ALLOCATED" in ran.text
    assert "watched.py" not in ran.text  # what is shown is the line that called


def test_refusal_of_a_ledger_comes_with_the_history_of_the_place(tmp_path: Path) -> None:
    """It is the same error, and an engine may expect it."""
    write(
        tmp_path,
        test_a="""
import pytest
from blocklife.errors import MisuseError
from blocklife.ledger import Placement

def test_a(blocklife_ledger):
    ledger = blocklife_ledger(num_blocks=4, own_pool=False)
    ledger.add_request("a")
    ledger.observe_place("a", [Placement(allocated=[1])])
    with pytest.raises(MisuseError) as refusal:
        ledger.observe_place("a", [Placement(allocated=[1])])
    assert "block 1: cannot ALLOCATE while ALLOCATED" in str(refusal.value)
    assert refusal.value.__notes__[0] == "what lately happened to block 1:"
    assert ledger.blocks.state(1).name == "ALLOCATED"
""",
    )

    assert run(tmp_path).last.startswith("1 passed")


def test_world_is_visited_by_named_actions(tmp_path: Path) -> None:
    """A test takes actions, asks what is so, and lets everything drain; what is not possible is refused with what is."""
    write(
        tmp_path,
        test_a="""
import pytest
from blocklife.errors import MisuseError
from blocklife.states import Request
from blocklife.testing.exploring._explore import Bounds

def test_a(blocklife_world):
    visit = blocklife_world("ab.c", "ab.d", faults={"abort": 1})
    assert visit.possible == ["arrive a", "arrive b"]
    visit.take("arrive a", "step")
    assert visit.requests == {"a": Request.RUNNING}
    assert "WRITING" in visit.slots
    with pytest.raises(MisuseError, match="action land 1@0: it is not possible here .possible are arrive b, settle, abort a."):
        visit.take("land 1@0")
    visit.take("settle", "step").drain()
    assert not visit.running and not visit.requests
    assert "request a arrives" in visit.told()
    assert visit.explore(Bounds(max_states=50)).bounds_hit == ("max_states=50",)
    assert visit.walk(50, seed=1).finding is None
""",
    )

    assert run(tmp_path).last.startswith("1 passed")


def test_page_shows_fixtures_as_they_are_called(tmp_path: Path) -> None:
    """The example in `specs/testing.md` passes."""
    page = (ROOT / "specs" / "testing.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(def test_.*?)```", page, flags=re.DOTALL)
    write(tmp_path, test_a=example)

    assert "blocklife_ledger(num_blocks=" in example
    assert 'blocklife_world("' in example
    assert run(tmp_path).last.startswith("2 passed")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_watched(raise_violation)(blocks=4), "blocklife_ledger: unknown 'blocks' (there are num_blocks, "),
        (lambda: make_visit("ab.c", faults={"fial": 1}), "blocklife_world: faults: unknown 'fial' (there are fail, "),
        (lambda: make_visit(["ab.c"]), "each request is a text of its own (write blocklife_world('ab.c', 'ab.d'))"),  # type: ignore[arg-type]
    ],
    ids=["limits", "faults", "requests"],
)
def test_fixture_that_is_called_wrongly_says_what_it_takes(call: Callable[[], object], message: str) -> None:
    with pytest.raises(MisuseError, match=re.escape(message)):
        call()


def test_ledger_of_an_engine_with_its_own_index_is_watched_too() -> None:
    """All modes of a ledger are open to a test: here one of a foreign pool, and a count that went wrong."""
    ledger = make_watched(raise_violation)(own_pool=False, indexed=False)
    ledger.add_request("a")
    ledger.admit("a")
    ledger.observe_place("a", [Placement(allocated=[1, 2])])

    ledger._state.core.blocks.refs[1] += 1
    with pytest.raises(InvariantError, match="I4 does not hold after observe_place: refs of place 1 say 2, counted 1"):
        ledger.observe_place("a", [])


# --- the report -------------------------------------------------------------------------------------------------------------


def test_report_counts_all_ledgers_of_a_run(tmp_path: Path) -> None:
    """A table of states and rows, and all of it as JSON; ledgers that are gone by then count."""
    write(tmp_path, test_a=USES_A_LEDGER)
    ran = run(tmp_path, f"{REPORT}=covered.json")
    covered = json.loads((tmp_path / "covered.json").read_text(encoding="utf-8"))

    assert ran.code == pytest.ExitCode.OK
    assert "blocklife: 2 ledgers" in ran.text
    assert covered["ledgers"] == 2
    assert covered["machines"]["block"]["rows"]["FREED --allocate--> ALLOCATED"] == 2
    assert covered["machines"]["block"]["states"]["ALLOCATED"] == 2
    assert covered["machines"]["block"]["states"]["STALE"] == 0
    assert covered["machines"]["request"]["rows"]["WAITING --finish--> FINISHED"] == 1
    for name, table in MACHINES.items():
        assert list(covered["machines"][name]["rows"]) == [str(row) for row in table.rows]


def test_report_is_the_same_with_many_workers(tmp_path: Path) -> None:
    """What each process has covered is added up."""
    write(tmp_path, test_a=USES_A_LEDGER, test_b=USES_A_LEDGER)
    for name, options in (("one", ()), ("many", ("-n", "2"))):
        assert run(tmp_path, f"{REPORT}={name}.json", *options).code == pytest.ExitCode.OK
    one, many = (json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8")) for name in ("one", "many"))

    assert one == many
    assert one["ledgers"] == 4


def test_missing_rows_fail_the_run_and_are_named(tmp_path: Path) -> None:
    """All tests pass, and the run fails all the same."""
    write(tmp_path, test_a=USES_A_LEDGER)
    ran = run(tmp_path, REQUIRE)

    assert ran.code == pytest.ExitCode.TESTS_FAILED
    assert "2 passed" in ran.last
    assert "never taken: job: PLANNED --submit--> IN_FLIGHT" in ran.text
    assert "never taken: block: FREED --allocate--> ALLOCATED" not in ran.text


def test_coverage_listens_only_while_it_is_asked_to() -> None:
    """Ledgers that are gone and ledgers that are there count once each; those made before or after do not."""
    before, coverage, made = Ledger(LIMITS), Coverage(), LedgerData.__init__
    coverage.listen()
    for _ in range(2):
        kept = Ledger(LIMITS)
        kept.add_request("a")
        kept.finish("a")
    coverage.stop()
    for ledger in (before, Ledger(LIMITS)):
        ledger.add_request("a")
        ledger.finish("a")
    coverage.count()
    coverage.count()

    assert LedgerData.__init__ is made
    assert coverage.ledgers == 2
    assert coverage.rows["request"]["WAITING --finish--> FINISHED"] == 2


def test_report_refuses_a_file_that_was_meant_as_a_test(tmp_path: Path) -> None:
    """``--blocklife-report test_a.py`` would write over it."""
    write(tmp_path, test_a=USES_A_LEDGER)
    ran = run(tmp_path, REPORT, "test_a.py")

    assert ran.code == pytest.ExitCode.USAGE_ERROR
    assert "the name of its file ends in .json" in ran.text
    assert (tmp_path / "test_a.py").read_text(encoding="utf-8") == USES_A_LEDGER


def test_report_that_has_no_folder_is_an_error_of_usage(tmp_path: Path) -> None:
    """It is said before the tests run."""
    write(tmp_path, test_a=USES_A_LEDGER)
    ran = run(tmp_path, f"{REPORT}=missing/covered.json")

    assert ran.code == pytest.ExitCode.USAGE_ERROR
    assert f"{REPORT} missing/covered.json: there is no folder missing (make it, or name another)" in ran.text


def test_report_that_cannot_be_written_fails_the_run_in_one_line(tmp_path: Path) -> None:
    """All tests pass, and whoever reads the report later would read an old one."""
    write(tmp_path, test_a=USES_A_LEDGER)
    (tmp_path / "covered.json").mkdir()
    ran = run(tmp_path, f"{REPORT}=covered.json")

    assert ran.code == pytest.ExitCode.TESTS_FAILED
    assert "2 passed" in ran.last
    assert f"{REPORT} covered.json: Is a directory; it is not written" in ran.text
    assert "Traceback" not in ran.text


# --- scenarios --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """A folder with a test, a scenario, and TOML that is none."""
    write(tmp_path, test_a="def test_a() -> None: ...\n")
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "arrival.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "cases" / "other.toml").write_text('id = 3\n[tool]\nname = "none of ours"\n', encoding="utf-8")
    return tmp_path


def test_scenarios_are_left_alone_unless_asked_for(cases: Path) -> None:
    """A bare run has one test; the folder, the file, and one variant of it can be named."""
    assert run(cases).last.startswith("1 passed")
    assert run(cases, ".").last.startswith("3 passed")
    assert run(cases, "cases").last.startswith("2 passed")
    assert run(cases, "cases/arrival.toml::arrival[contract=hold]").last.startswith("1 passed")


def test_scenario_that_fails_prints_its_own_report(cases: Path) -> None:
    """One sentence with file, line and step, then the steps; no traceback."""
    path = cases / "cases" / "arrival.toml"
    path.write_text(SCENARIO.replace("expect.handed_out", "expect.not_handed_out"), encoding="utf-8")
    ran = run(cases, "cases")

    assert ran.last.startswith("2 failed")
    assert "arrival.toml:16: step 2 (step): not_handed_out" in ran.text
    assert "step 1 (line 11): arrive" in ran.text
    assert "Traceback" not in ran.text
    assert "plugin.py" not in ran.text


def test_scenario_that_is_malformed_is_an_error_of_one_line(cases: Path) -> None:
    """The file and line are named, and nothing runs."""
    path = cases / "cases" / "arrival.toml"
    path.write_text(SCENARIO.replace('do = "arrive"', 'do = "arive"'), encoding="utf-8")
    ran = run(cases, "cases")

    assert ran.code == pytest.ExitCode.INTERRUPTED
    assert "arrival.toml:12" in ran.text
    assert "arive" in ran.text
    assert "Traceback" not in ran.text


def test_driver_of_scenarios_is_the_engine_authors_own(cases: Path) -> None:
    """`blocklife_driver` names it; what it cannot do is skipped with its reason; one that is not there, or exits, fails."""
    write(
        cases,
        mine="""
from blocklife.testing.scenarios._driver import Driver, Unsupported

class Mine(Driver):
    def start(self, world):
        raise Unsupported("no engine today")

class Leaves(Driver):
    def start(self, world):
        raise SystemExit(0)
""",
    )
    options = ("cases", "-o", "pythonpath=.", "-rs")
    named = [(*options, "-o", f"blocklife_driver=mine:{name}") for name in ("Mine", "Yours", "Leaves")]
    skipped, missing, exits = (run(cases, *each) for each in named)

    assert skipped.last.startswith("2 skipped")
    assert "no engine today" in skipped.text
    assert missing.last.startswith("2 failed")
    assert "Yours" in missing.text
    assert exits.last.startswith("2 failed")
    assert "the driver exits with 0" in exits.text
    assert "The above exception" not in exits.text


# --- the example ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example engine, in a folder of its own."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "your_engine", ignore=shutil.ignore_patterns("__pycache__")))


def test_example_engine_passes(example: Path) -> None:
    """Two tests and a scenario, found without being named."""
    ran = run(example, REPORT)

    assert ran.last.startswith("3 passed")
    assert "blocklife: " in ran.text


def test_planted_bug_of_the_example_is_found_by_the_ledger_and_by_the_scenario(example: Path) -> None:
    """The ledger names the block and what happened to it, the scenario the step; the third test knows nothing of it."""
    ran = run(example, "--hasty")

    assert ran.last.startswith("2 failed, 1 passed")
    assert "RefusedError: block 1: cannot ALLOCATE while IN_FLIGHT" in ran.text
    assert "IN_FLIGHT --release--> IN_FLIGHT" in ran.text
    assert "hurry.toml:33: step 6 (step): a rule is broken: I1: block 1 (block 0 of a) was handed out" in ran.text


def test_example_holds_as_many_scenarios_as_its_readme_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is unsafe, whatever engine and driver become; with the planted bug several are."""
    monkeypatch.syspath_prepend(EXAMPLE)
    driver: Callable[[], Driver] = importlib.import_module("driver").YourDriver
    *_, safety, policy = summary(list(run_files(driver=driver)))
    text = " ".join((EXAMPLE / "README.md").read_text(encoding="utf-8").split())
    monkeypatch.setattr(driver, "hasty", True)
    hasty = {each.scenario for each in run_files(driver=driver) if each.outcome is Outcome.UNSAFE}
    for name in ("driver", "engine"):
        del sys.modules[name]

    assert safety == (
        "safety: 30 of 68 scenarios hold, 1 shows another policy (B17), 17 need a method that the driver lacks, "
        "20 need what the engine cannot have"
    )
    assert "Of the 68 safety scenarios 30 hold and none is unsafe; 17 need a method" in text
    assert policy.startswith("policy: 1 of 17 scenarios hold, 4 show another policy (A32, A45, B16, S5), ")
    assert "Of the 17 policy scenarios 1 holds, and in 4 the engine has another policy" in text
    assert {"A01", "A02", "A03"} <= hasty
    assert len((EXAMPLE / "driver.py").read_text(encoding="utf-8").splitlines()) < 180


def test_example_is_told_in_its_readme() -> None:
    """The page is short, and names every file that there is to read."""
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")

    assert len(text.splitlines()) <= 20
    for name in ("engine.py", "watch.py", "driver.py", "scenarios/hurry.toml", "--hasty"):
        assert name in text
