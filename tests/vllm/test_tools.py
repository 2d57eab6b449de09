"""What only the tools of vLLM do: source packages, a release's own tests, types, the tables of seeds, programs.

Method: that of `tests.behind.tools`. What engines share is in `tests/behind/test_tools.py`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from attrs import asdict, evolve

from blocklife.engines.vllm._versions import SUPPORTED
from tests.behind.fetching import FetchError
from tests.behind.shelf import ON_PATH, PROJECT, Command
from tests.behind.tools import RELEASE, Tools, shelf_with, source_package
from tests.programs import HANGS_S
from tests.vllm.fetch import unpack
from tests.vllm.releases import DEFAULT, HERE, Shelf
from tests.vllm.run import TOUCHING, UNSTEADY, chosen_command, types
from tests.vllm.watched import Row, logged, missed, table_run

TOOLS = Tools("vllm")


def test_package_that_lacks_tests_is_refused(tmp_path: Path) -> None:
    """What is missing is named."""
    with pytest.raises(FetchError, match=r"has no tests, LICENSE$"):
        unpack(source_package(tmp_path / "package", ("vllm/__init__.py", "pyproject.toml")), tmp_path / "tree", RELEASE)


def test_package_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    """A path that climbs out is refused, and the file is not written."""
    with pytest.raises(FetchError, match=r"cannot be unpacked"):
        unpack(source_package(tmp_path / "package", ("vllm/../../escaped",)), tmp_path / "tree", RELEASE)

    assert list(tmp_path.rglob("escaped*")) == []


def command_for(tmp_path: Path, *arguments: str, around: Mapping[str, str] | None = None) -> Command:
    """What would be run, with a shelf on which one release is whole."""
    return TOOLS.command(TOOLS.shelf(tmp_path, whole=True), *arguments, around=around)


def test_release_runs_its_own_tests_in_its_own_folder(tmp_path: Path) -> None:
    """The release's folder is where it runs and first on the path; what the caller's shell has set there is put aside."""
    around = {"PYTHONPATH": "elsewhere", "HOME": "home", "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_TARGET_DEVICE": "cuda"}
    command = command_for(tmp_path, RELEASE, "tests/v1/a", "-n", "2", "-p", "a.plugin", around=around)

    assert command.folder == tmp_path / "shelf" / "src" / RELEASE
    assert command.words[1:3] == ["-m", "pytest"]
    assert command.words[-5:] == ["tests/v1/a", "-n", "2", "-p", "a.plugin"]
    assert command.environ["PYTHONPATH"].split(":") == [str(command.folder), str(HERE / "plugins"), *ON_PATH]
    assert command.environ["PYTHONHASHSEED"] == "0"
    assert {key: command.environ[key] for key in ("HOME", "VLLM_LOGGING_LEVEL", "VLLM_TARGET_DEVICE", "HF_HUB_OFFLINE")} == {
        "HOME": "home",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_TARGET_DEVICE": "cpu",
        "HF_HUB_OFFLINE": "1",
    }


@pytest.mark.parametrize("release", sorted(UNSTEADY))
def test_release_s_own_unsteady_tests_are_left_out(tmp_path: Path, release: str) -> None:
    """Of that release alone; all others of the file are run."""
    there = shelf_with(Shelf, tmp_path, "")
    for each in (release, "0.9.0"):
        there.source(each).mkdir(parents=True)
    left_out = {
        each: [word for word in chosen_command((each, "tests/v1"), there, {}).words if word.startswith("--deselect=")]
        for each in (release, "0.9.0")
    }

    assert left_out == {release: [f"--deselect={name}" for name in UNSTEADY[release]], "0.9.0": []}
    assert all("::" in name for name in UNSTEADY[release])


def test_types_are_checked_by_this_python_with_those_of_the_release(tmp_path: Path) -> None:
    """mypy is the running interpreter's, what it reads is the environment's and the release's."""
    pytest.importorskip("mypy")
    command = command_for(tmp_path, "--types", RELEASE, around={"MYPYPATH": "elsewhere"})

    assert command.folder == PROJECT
    assert command.words[:3] == [sys.executable, "-m", "mypy"]
    assert command.words[command.words.index("--python-executable") + 1] == str(Shelf(tmp_path / "shelf").python)
    assert command.environ["MYPYPATH"] == str(tmp_path / "shelf" / "src" / RELEASE)
    assert command.words[-1] == TOUCHING


def test_types_of_a_release_are_not_asked_of_the_adapters_of_others(tmp_path: Path) -> None:
    """An adapter names what only its release has; each is checked with its own."""
    command = types(Shelf(tmp_path), "0.31.0", [], {})
    left_out = re.compile(command.words[command.words.index("--exclude") + 1])
    adapters = sorted(path for path in (PROJECT / TOUCHING).rglob("releases/_vllm_*.py"))

    assert [path.stem for path in adapters if not left_out.search(str(path))] == ["_vllm_0_31"]
    assert [path.stem for path in adapters] == [f"_vllm_{each.replace('.', '_')}" for each in SUPPORTED]


def test_a_program_runs_in_a_copy_of_the_project_where_one_is_named(tmp_path: Path) -> None:
    """The copy's code is what runs, under the same environment and the same vLLM."""
    copy = tmp_path / "copy"
    (copy / "blocklife").mkdir(parents=True)
    command = command_for(tmp_path, "--python", "--copy", str(copy), RELEASE, "-m", "a.program")

    assert command.folder == copy
    assert command.words == [str(Shelf(tmp_path / "shelf").python), "-m", "a.program"]
    assert command.environ["PYTHONPATH"].split(":")[0] == str(tmp_path / "shelf" / "src" / RELEASE)


def test_table_of_seeds_says_what_was_missed() -> None:
    """A row that went wrong before a rule fell, a bug that no seed shows, a release without rows; the same step is in time."""
    late = Row("0.33.0", "full", 1, 300, {"I5": 9}, 8, "wrong bytes")
    early = Row("0.33.0", "full", 2, 300, {"I5": 9}, 9, "wrong bytes")
    silent = Row("0.22.1", "window", 3, 300, {}, None, "")
    unseen = "0.22.1: no seed of the world window breaks I8 (blocks are stored that have a new tenant)"

    assert missed([late, early], ["0.33.0"]) == ["0.33.0 full seed 1: wrong bytes at step 8"]
    assert missed([silent], ["0.22.1"]) == [unseen]
    assert missed([evolve(silent, rules={"I8": 4})], ["0.22.1", "0.21.0"]) == ["0.21.0: not one row"]


@pytest.mark.parametrize(
    ("release", "told"),
    [
        ("0.8.15", "vLLM 0.8.15 is not here (python -m tests.vllm.fetch 0.8.15)"),
        ("bogus", f"'bogus' is not a version of vLLM (such as {DEFAULT})"),
    ],
)
def test_table_of_seeds_of_a_release_that_is_not_here_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], release: str, told: str
) -> None:
    """Although another one is here, and stands in front of it."""
    shelf = shelf_with(Shelf, tmp_path, f'touch "{tmp_path}/ran"')
    shelf.source(RELEASE).mkdir(parents=True)
    with pytest.raises(SystemExit) as exit_:
        table_run(shelf, [RELEASE, release], 1, 20, None)

    assert exit_.value.code == 2
    assert capsys.readouterr() == ("", f"tests.vllm.run: error: {told}\n")
    assert not (tmp_path / "ran").exists()


def test_table_of_seeds_shows_what_a_failing_release_has_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows so far are kept, the last lines of its errors are shown, and the exit status is 1; the file has the rows."""
    row = Row(RELEASE, "full", 0, 20, {}, None, "")
    shelf = shelf_with(Shelf, tmp_path, f"echo '{json.dumps(asdict(row))}'; seq 99 >&2; exit 3")
    shelf.source(RELEASE).mkdir(parents=True)
    status = table_run(shelf, [RELEASE], 1, 20, tmp_path / "rows.json")
    out, err = capsys.readouterr()

    assert status == 1
    assert f"| {RELEASE} | full | 1 | silent |" in out
    assert err.splitlines()[1:3] == [f"vLLM {RELEASE} failed with status 3", "80"]
    assert err.splitlines()[-1] == "99"
    assert json.loads((tmp_path / "rows.json").read_text(encoding="utf-8")) == [asdict(row)]


def test_table_of_seeds_without_a_row_has_missed_the_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where its process has ended well."""
    shelf = shelf_with(Shelf, tmp_path, "")
    shelf.source(RELEASE).mkdir(parents=True)

    assert table_run(shelf, [RELEASE], 1, 20, None) == 1
    assert capsys.readouterr().err == f"missed: {RELEASE}: not one row\n"


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"world": "full"}', '{"steps": "many"}', '{"steps": 0}', ""])
def test_long_run_refuses_what_is_not_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """The line is named. A log that is not there is empty, one that is there says how far it has come."""
    log = tmp_path / "long.jsonl"
    empty = logged(log)
    log.write_text('{"steps": 7}\n{"steps": 8}\n', encoding="utf-8")
    good = logged(log)
    log.write_text(f'{{"steps": 7}}\n{text}\n', encoding="utf-8")
    with pytest.raises(SystemExit) as exit_:
        logged(log)

    assert (empty, good, exit_.value.code) == ([], [7, 8], 2)
    assert capsys.readouterr().err == (
        f"tests.vllm.watched: error: {log}, line 2: not the line of a long run (remove it, or name another file)\n"
    )


@pytest.mark.parametrize(
    "words", [("watched", "long"), ("drive",), ("planted",), ("bench_watch",), ("bench_connector",), ("hits",)]
)
def test_program_says_how_it_is_run_where_vllm_is_not(words: Sequence[str]) -> None:
    """One line, exit status 2."""
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is here, so it runs")
    command = [sys.executable, "-m", f"tests.vllm.{words[0]}", *words[1:]]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=HANGS_S, check=False)
    remedy = f"python -m tests.vllm.run --python VERSION -m tests.vllm.{' '.join(words)} ..."

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"tests.vllm.{words[0]}: error: vLLM is not here ({remedy})\n"
