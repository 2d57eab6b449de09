"""Scenarios as the CI of an engine runs them: groups, lists of known failures, reports for a build server, and a badge.

Goal: a build is red for what is new, and for what is not so any more; what it reports is what was seen. Method: the command
runs wrong engines (`tests/wrong_engines.py`), whose failures are known; lists with one mistake each are refused.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from datetime import datetime
from pathlib import Path

import pytest

from blocklife import __version__
from blocklife.cli import _suite, main
from blocklife.errors import MisuseError
from blocklife.testing import OurDriver, run_scenario
from blocklife.testing.scenarios._cases import SHIPPED, chosen
from blocklife.testing.scenarios._format import GROUPS, read_scenario
from blocklife.testing.scenarios._known import read_known
from suite.build_suite import chosen as files_of_the_suite
from suite.build_suite import renamed
from tests.programs import HANGS_S
from tests.project.test_layers import imports_of

ROOT = Path(__file__).parents[2]
UNLOADED = ("blocklife.ledger", "blocklife.core", "blocklife.offload", "numpy", "rich", "torch")


def known_of(folder: Path, text: str) -> str:
    """A list of known failures."""
    path = folder / "known.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def fails(scenario: str, *more: str) -> str:
    """One line of it."""
    return "\n".join(["[[fails]]", f'scenario = "{scenario}"', 'thread = "sglang#24226"', *more, ""])


class Nameless(OurDriver):
    """An engine that does not say of which release it is."""

    version = ""


# --- groups -----------------------------------------------------------------------------------------------------------------


def test_every_group_has_scenarios_that_can_fail() -> None:
    """The three that usual tests miss have one that was written for them; a rewritten case is in the groups of its original."""
    scenarios = chosen()
    among = {group: [each.id for each in scenarios if each.is_in(group)] for group in GROUPS}

    assert all(among.values())
    assert {"B24"} <= {*among["a-b-a"]}
    assert {"B25"} <= {*among["full-pool"]}
    assert {"B26", "B27"} <= {*among["same-shape"]}
    for path in SHIPPED.glob("*/*.toml"):
        if (original := SHIPPED / path.name).exists():
            assert {*read_scenario(original).groups} <= {*read_scenario(path).groups}, path


def test_group_is_run_and_listed_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Several together; what they test is a group, too."""
    assert main(["scenario", "list", "--group", "a-b-a", "--group", "policy"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")}
    assert main(["scenario", "run", "A18", "B24", "--group", "a-b-a"]) == 0
    ran = capsys.readouterr().out
    assert main(["scenario", "list", "--groups"]) == 0
    groups = capsys.readouterr().out.splitlines()

    assert {"B24", "A08", "A45"} <= listed
    assert "A01" not in listed
    assert "safety: 1 of 1 scenarios hold" in ran
    assert groups[4] == f"a-b-a: {GROUPS['a-b-a']}"
    assert "B24" in groups[5].split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["A01", "--group", "full-pol"], "--group full-pol: there is no such group (did you mean 'full-pool'?)"),
        (["A18", "--group", "ranks"], "--group ranks: none of these scenarios is in it"),
    ],
)
def test_group_without_scenarios_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A build that runs nothing is not green."""
    assert main(["scenario", "run", *words]) == 2
    assert said in capsys.readouterr().err


# --- known failures ---------------------------------------------------------------------------------------------------------


def run_forgetful(folder: Path, known: str, *words: str, driver: str = "Forgetful") -> int:
    """The status of a run of A01 against an engine that forgets to wait: it fails with the contract fence alone."""
    return main(
        ["scenario", "run", "A01", "--driver", f"tests.wrong_engines:{driver}", "--expect", known_of(folder, known), *words]
    )


@pytest.mark.parametrize(
    "more",
    [
        (),
        ('when = { contract = ["fence"] }',),
        ('says = "I1"', 'when = { contract = "fence", scheduling = ["sync", "async"] }'),
    ],
    ids=["in some variants", "in these", "for this reason"],
)
def test_known_failure_passes(more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is still told, with its thread; without the list the same run fails."""
    assert run_forgetful(tmp_path, fails("A01", *more)) == 0
    assert "(expected: sglang#24226)" in capsys.readouterr().out
    assert run_forgetful(tmp_path, "") == 1


@pytest.mark.parametrize(
    "more",
    ['when = { scheduling = "sync" }', 'says = "I9"', 'releases = ["0.9"]'],
)
def test_failure_that_the_line_does_not_name_fails(more: str, tmp_path: Path) -> None:
    """In another variant, for another reason, in another release."""
    assert run_forgetful(tmp_path, fails("A01", more)) == 1


def test_line_of_the_release_counts_and_its_parts(tmp_path: Path) -> None:
    """A release is named whole, or by its first numbers: 0.1 is not 0.10."""
    assert run_forgetful(tmp_path, fails("A01", f'releases = ["9", "{__version__}"]')) == 0
    assert run_forgetful(tmp_path, fails("A01", f'releases = ["{__version__.rpartition(".")[0]}"]')) == 0
    assert run_forgetful(tmp_path, fails("A01", f'releases = ["{__version__}.1", "{__version__[:-2]}0"]')) == 1


def test_unexpected_pass_fails_and_says_what_to_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also in one variant, and where nobody can see any more whether it fails; what is not run is not judged."""
    assert run_forgetful(tmp_path, fails("A01"), driver="Stubborn") == 1
    told = capsys.readouterr().err
    assert run_forgetful(tmp_path, fails("A01") + fails("A01", 'when = { contract = "hold" }')) == 1
    assert run_forgetful(tmp_path, fails("A47"), driver="Stubborn") == 0
    assert main(["scenario", "run", "A47", "--expect", known_of(tmp_path, fails("A47"))]) == 1
    not_run = capsys.readouterr().err

    assert f"A01 is expected to fail (sglang#24226), and holds (remove or mend its line in {tmp_path}/known.toml)" in told
    assert "A47 is expected to fail (sglang#24226), and not applicable: " in not_run


def test_another_policy_can_be_expected_and_no_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs no thread, and excuses nothing that is unsafe; where the engine decides as expected, its name has to go."""
    words = ["scenario", "run", "--driver", "tests.wrong_engines:Thrifty", "B14", "--expect"]
    assert main([*words[:-1]]) == 3
    assert main([*words, known_of(tmp_path, 'other_policy = ["B14"]')]) == 0
    assert run_forgetful(tmp_path, 'other_policy = ["A01"]') == 1
    capsys.readouterr()
    assert main(["scenario", "run", "B14", "--expect", known_of(tmp_path, 'other_policy = ["B14"]')]) == 1
    assert "B14 is expected to show another policy, and holds (remove" in capsys.readouterr().err


BAD = {
    '[[fails]]\nthread = "a#1"': "fails 1: there is no scenario None (known scenarios: A01",
    '[[fails]]\nscenario = "A99"\nthread = "a#1"': "fails 1: there is no scenario 'A99' (did you mean 'A39'?)",
    '[[fails]]\nscenario = "A01"': "fails 1 (A01): it has no thread (a known failure has the public thread",
    '[[fails]]\nscenario = "A01"\nthread = "soon"': "fails 1 (A01): 'soon' is no thread",
    fails("A01") + fails("G1", "release = []"): "fails 2: unknown key 'release' (did you mean 'releases'?)",
    fails("A01", 'releases = "0.1"'): "fails 1 (A01): 'releases' must be a list of texts, not '0.1'",
    fails("A01", "when = 1"): "fails 1 (A01): 'when' must be a table of variants, not 1",
    fails("A01", "says = 1"): "fails 1 (A01): 'says' must be a text, not 1",
    "fails = [1]": "'fails' must be a list of tables",
    'other_policy = ["nobody"]': "other_policy: there is no scenario 'nobody'",
    "[skips]": "unknown key 'skips' (known keys: fails, other_policy)",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_line_that_hides_by_a_slip_is_refused(text: str, tmp_path: Path) -> None:
    """With the file, the number of the line and what is known."""
    path = known_of(tmp_path, text)
    with pytest.raises(MisuseError) as refused:
        read_known(path, ["A01", "A39", "G1"])

    assert str(refused.value).startswith(f"{path}: {BAD[text]}")


def test_driver_without_a_release_is_refused_where_a_line_names_one(tmp_path: Path) -> None:
    """Else a line of another release would count."""
    known = read_known(known_of(tmp_path, fails("A01", 'releases = ["1"]')), ["A01"])
    verdict = run_scenario(read_scenario(SHIPPED / "A01.toml"), Nameless)
    with pytest.raises(MisuseError, match=r"A01: the driver names no release \(give it an attribute 'version'\)"):
        known.marked(verdict)


# --- reports ----------------------------------------------------------------------------------------------------------------


def report(folder: Path, *words: str) -> tuple[int, ET.Element, dict[str, ET.Element]]:
    """The status of a run, and the test suite and the cases that it reports, by scenario."""
    status = main(["scenario", "run", *words, "--junit", str(folder / "runs.xml")])
    root = ET.parse(folder / "runs.xml").getroot()
    (suite,) = root

    assert root.tag == "testsuites"
    return status, suite, {case.get("name", "").partition(":")[0]: case for case in suite}


def check_essentials(suite: ET.Element) -> None:
    """What the usual schema asks for: attributes, and counts that are those of the elements."""
    count = {kind: len(suite.findall(f"testcase/{kind}")) for kind in ("failure", "error", "skipped")}

    assert suite.tag == "testsuite"
    assert {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname"} == suite.attrib.keys()
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase")) == len(suite)
    assert {kind: int(suite.attrib[f"{kind}s".replace("skippeds", "skipped")]) for kind in count} == count
    assert float(suite.attrib["time"]) >= 0
    assert datetime.fromisoformat(suite.attrib["timestamp"]).tzinfo is None
    for case in suite:
        assert case.attrib.keys() == {"name", "classname", "time"}
        assert [each.tag for each in case][-1:] == ["system-out"]
        assert {each.tag for each in case[:-1]} <= {"failure", "error", "skipped"}
        assert len(case) <= 2
        assert all(each.get("message") for each in case[:-1])


def test_report_has_a_case_for_each_scenario(tmp_path: Path) -> None:
    """A failing one has its steps, one that cannot be run what the engine lacks, one of another policy what it is."""
    status, suite, cases = report(tmp_path, "A01", "A05", "A47", "--driver", "tests.wrong_engines:Forgetful")
    check_essentials(suite)
    failure = cases["A01"].find("failure")

    assert status == 1
    assert suite.attrib["name"].startswith("blocklife 0.")
    assert list(cases) == ["A01", "A05", "A47"]
    assert cases["A01"].get("classname") == "scenarios.safety"
    assert failure is not None
    assert "a rule is broken: I1" in failure.attrib["message"]
    assert ": step let_in=[a]\n" in (failure.text or "")
    assert [each.tag for each in cases["A05"]] == ["system-out"]
    assert "a second connector would be a second ledger" in cases["A47"][0].attrib["message"]
    _, suite, cases = report(tmp_path, "B14", "--driver", "tests.wrong_engines:Thrifty")
    check_essentials(suite)
    assert cases["B14"][0].tag == "skipped"
    assert cases["B14"][0].attrib["message"].startswith("another policy: ")
    _, suite, cases = report(tmp_path, "A14", "--driver", "tests.wrong_engines:Upset")
    check_essentials(suite)
    assert cases["A14"][0].tag == "error"


def test_report_knows_what_is_expected(tmp_path: Path) -> None:
    """A known failure is a case that passes, with its thread; one that does not fail any more is a failure."""
    known = ["--expect", known_of(tmp_path, fails("A01"))]
    _, suite, cases = report(tmp_path, "A01", "--driver", "tests.wrong_engines:Forgetful", *known)
    check_essentials(suite)
    assert [each.tag for each in cases["A01"]] == ["system-out"]
    assert "(expected: sglang#24226)" in (cases["A01"][0].text or "")
    status, suite, cases = report(tmp_path, "A01", *known)
    check_essentials(suite)
    assert status == 1
    assert "and holds (remove or mend its line" in cases["A01"][0].attrib["message"]


def test_report_can_have_any_text(tmp_path: Path) -> None:
    """Characters that XML cannot have are spelt out."""
    path = tmp_path / "x.toml"
    path.write_text(
        'id = "X"\ntitle = "a < b & \\u0001"\ntests = "safety"\n[[step]]\ndo = "check"\nexpect.count = { free = 1 }\n'
    )
    _, suite, cases = report(tmp_path, str(path))
    check_essentials(suite)

    assert cases["X"].get("name") == "X: a < b & \\x01"


def test_badge_says_how_many_hold(tmp_path: Path) -> None:
    """Of those about safety, with the engine and its release; green where nothing is unsafe."""
    path = tmp_path / "badge.svg"
    shown = []
    for driver in ("Forgetful", "Thrifty"):
        main(["scenario", "run", "A01", "A05", "B14", "--driver", f"tests.wrong_engines:{driver}", "--badge", str(path)])
        svg = ET.parse(path).getroot()
        shown.append([svg.get("aria-label"), next(each.get("fill") for each in svg.iter() if each.get("fill"))])

    assert shown == [
        [f"1 of 2 safety scenarios hold · blocklife {__version__}", "firebrick"],
        [f"2 of 2 safety scenarios hold · blocklife {__version__}", "seagreen"],
    ]


def test_report_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run may take long."""
    assert main(["scenario", "run", "A01", "--junit", str(tmp_path / "no" / "runs.xml")]) == 2
    assert "No such file or directory" in capsys.readouterr().err


# --- the distribution -------------------------------------------------------------------------------------------------------


def test_suite_has_all_that_its_files_import() -> None:
    """The files of the distribution import each other, attrs, and nothing else at their tops."""
    settings = tomllib.loads((ROOT / "suite" / "pyproject.toml").read_text(encoding="utf-8"))
    hook = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    names = files_of_the_suite(ROOT / "blocklife", hook["files"], hook["without"])
    modules = {"blocklife", *(name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names)}
    missing = set()
    for path in [ROOT / "suite" / "front.py", *(ROOT / "blocklife" / name for name in names if name.endswith(".py"))]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        typed = {id(each) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
                 for each in ast.walk(node)}  # fmt: skip
        for node in tree.body:
            if id(node) not in typed and isinstance(node, ast.Import | ast.ImportFrom):
                for found in imports_of(ast.Module([node], []), []):
                    top, _, rest = found.module.partition(".")
                    if (top == "blocklife" and rest not in {*modules, "__version__"} and rest) or (
                        top not in {"blocklife", "attrs", *sys.stdlib_module_names}
                    ):
                        missing.add((path.name, found.module))

    assert missing == set()


def test_suite_imports_no_ledger() -> None:
    """Nor do the names that a driver needs, in the whole package."""
    script = (
        "import sys; from blocklife.testing import Driver, EngineStep, Orders, run_files, run_scenario; "
        "from blocklife.testing.scenarios import _known, _reports, _telling; import blocklife.cli._suite; "
    )
    ran = subprocess.run(
        [sys.executable, "-c", script + "print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=True,
    )

    assert not {name for name in ran.stdout.split() if name.startswith(UNLOADED)}


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("from blocklife.errors import MisuseError", "from blocklife_suite.errors import MisuseError"),
        ("from blocklife import __version__", "from blocklife_suite import __version__"),
        ('"blocklife.testing:OurDriver"', '"blocklife_suite.testing:OurDriver"'),
        ("what blocklife is. A blocklife-suite", "what blocklife is. A blocklife-suite"),
    ],
)
def test_only_modules_are_renamed(text: str, after: str) -> None:
    """Prose keeps the name of the project."""
    assert renamed(text) == after


def test_command_needs_a_driver(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no engine of ours in the distribution."""
    with pytest.raises(SystemExit) as left:
        _suite.main(["run", "A01"])
    assert left.value.code == 2
    assert "the following arguments are required: --driver" in capsys.readouterr().err
    assert _suite.main(["run", "A01", "--driver", "tests.wrong_engines:Idle"]) == 1
    assert _suite.main(["list", "B24"]) == 0
