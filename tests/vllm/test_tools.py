"""What is half-made is never taken for whole, and whoever asks for what is not here gets one line that says what to do.

Method: no network and no vLLM. In the place of the environment's Python stands a shell script that plays pip: it brings a
package made here, fails as pip does, or is interrupted in the middle. Every test begins with an empty folder.
"""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from attrs import asdict, evolve

from blocklife.engines.vllm._versions import SUPPORTED
from tests.behind import fetching
from tests.behind.fetching import FetchError, install_blocklife, reason
from tests.behind.shelf import ON_PATH, PROJECT, Command, entry_points, pins, version
from tests.programs import HANGS_S
from tests.vllm.fetch import fetch, make_environment, make_release, unpack
from tests.vllm.releases import CHECKSUMS, DEFAULT, HERE, MODEL, REQUIREMENTS, Shelf
from tests.vllm.run import TOUCHING, UNSTEADY, chosen_command, types
from tests.vllm.watched import Row, logged, missed, parsed, table_run

RELEASE = "9.9.9"
INSIDE = ("vllm/__init__.py", "tests/a.py", "pyproject.toml", "LICENSE", "csrc/b.cu")
FETCH = "import sys, pathlib; from tests.vllm.fetch import fetch; from tests.vllm.releases import Shelf; "
FETCH += f"sys.exit(fetch(Shelf(pathlib.Path(sys.argv[1])), ['{RELEASE}']))"
OFFLINE = """
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError': Connection refused
ERROR: Could not find a version that satisfies the requirement vllm==9.9.9 (from versions: none)
ERROR: No matching distribution found for vllm==9.9.9
"""


def package(path: Path, names: Sequence[str] = INSIDE) -> Path:
    """A source package of a release, with these files."""
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"vllm-{RELEASE}/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def play(shelf: Shelf, script: str) -> None:
    """Put a shell script in the place of the environment's Python; $last is its last word."""
    shelf.python.parent.mkdir(parents=True, exist_ok=True)
    shelf.python.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n", encoding="utf-8")
    shelf.python.chmod(0o755)


def shelf_with(folder: Path, script: str) -> Shelf:
    """A shelf whose environment is whole, and whose Python is a shell script."""
    shelf = Shelf(folder / "shelf")
    play(shelf, script)
    shelf.stamp.touch()
    shelf.stamp_of_blocklife.write_text(entry_points(), encoding="utf-8")
    return shelf


def bringing(archive: Path) -> str:
    """A pip that brings this package, and counts how often it was called."""
    return f'echo called >>"{archive}.calls"; mkdir -p "$last"; cp "{archive}" "$last/vllm-{RELEASE}.tar.gz"'


def fetched(shelf: Shelf) -> subprocess.CompletedProcess[str]:
    """A run of the whole program in a process of its own."""
    command = [sys.executable, "-c", FETCH, str(shelf.root)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=HANGS_S, check=False)


def test_requirements_are_pinned_once_and_agree_with_the_constraints() -> None:
    """Every line is a name and a version, and a package that the project pins, too, has the same version in both."""
    wanted, project = pins(REQUIREMENTS), pins(PROJECT / "constraints.txt")

    assert {name: pin for name, pin in wanted.items() if project.get(name, pin) != pin} == {}
    assert {"attrs", "numpy", "pytest", "pytest-xdist", "rich", "torch", "transitions"} <= wanted.keys() & project.keys()


def test_git_ignores_what_is_fetched() -> None:
    """The folder that everything is fetched into is on git's list, and so is a link to one of another tree."""
    assert Shelf().root.name in (PROJECT / ".gitignore").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("text", ["no", "0.33", "v0.33.0", "../0.33.0", "0.33.0/..", "0.33.0 --index", "0.33.0\n"])
def test_version_that_could_leave_its_folder_or_its_word_is_refused(text: str) -> None:
    """A version becomes a folder's name and a part of pip's command: nothing else than a version passes."""
    with pytest.raises(ValueError, match=re.escape(text)):
        version(text)

    assert [version(each) for each in (*CHECKSUMS, "0.33.0rc1", "0.9.2.post1")]


def test_environment_is_whole_only_with_its_stamp_and_an_interpreter(tmp_path: Path) -> None:
    """A folder without either is not an environment."""
    shelf = shelf_with(tmp_path, "")
    whole = shelf.has_environment()
    shelf.python.rename(tmp_path / "python")
    shelf.python.symlink_to(tmp_path / "gone")
    gone = shelf.has_environment()
    shelf.python.unlink()
    shelf.python.symlink_to(tmp_path / "python")
    back = shelf.has_environment()
    shelf.stamp.unlink()

    assert (whole, gone, back, shelf.has_environment()) == (True, False, True, False)


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_shelf_from_elsewhere_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """pip is not called and nothing is removed, wherever the folder was made and for whichever working tree."""
    elsewhere = shelf_with(tmp_path / "elsewhere", "exit 1")
    elsewhere.source(RELEASE).mkdir(parents=True)
    here = Shelf(tmp_path / "here")
    if how == "moved":
        elsewhere.root.rename(here.root)
    else:
        shutil.copytree(elsewhere.root, here.root)
    monkeypatch.setattr(shutil, "rmtree", lambda *_: pytest.fail("something is removed"))

    assert fetch(here, [RELEASE]) == 0
    assert here.is_ready()
    assert chosen_command(["--ours", RELEASE], here, {}).environ["PYTHONPATH"].split(":")[-2] == str(PROJECT)


def test_environment_for_other_requirements_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody may be running from it: the new one is made beside it, and a line says where the old one is."""
    old = shelf_with(tmp_path, "")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("a==1\n", encoding="utf-8")
    new = Shelf(old.root, requirements)
    before = new.has_environment()
    monkeypatch.setattr(fetching, "watched", lambda command, shelf, doing, **_: play(shelf, ""))
    make_environment(new)

    assert (before, new.has_environment(), old.has_environment()) == (False, True, True)
    assert f"environment: {old.environment} is for other requirements; remove it when nobody runs from it\n" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("broken", range(4))
def test_environment_gets_its_stamp_after_the_last_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """Whichever command fails, what is there is not whole, and the next run begins from nothing."""
    shelf, count = shelf_with(tmp_path, ""), 0
    shelf.stamp.unlink()

    def watched(command: Sequence[str | Path], shelf: Shelf, doing: str, **_: object) -> None:
        nonlocal count
        assert not shelf.stamp.exists()
        if count == 0:
            assert not shelf.environment.exists()
            play(shelf, "")
        count += 1
        if count == broken:
            raise FetchError(doing)

    monkeypatch.setattr(fetching, "watched", watched)
    if broken:
        with pytest.raises(FetchError):
            make_environment(shelf)
        assert not shelf.has_environment()
        count = broken = 0
    make_environment(shelf)

    assert count == 3
    assert shelf.has_environment()


def test_blocklife_is_installed_anew_when_its_entry_points_have_changed(tmp_path: Path) -> None:
    """Entry points are read at installation: without the right stamp nothing runs, and a failure leaves none."""
    shelf = shelf_with(tmp_path, f'echo "$last" >>"{tmp_path}/installed"; exit $(cat "{tmp_path}/status")')
    install_blocklife(shelf)
    shelf.stamp_of_blocklife.write_text("of other entry points", encoding="utf-8")
    before = shelf.is_ready()
    (tmp_path / "status").write_text("1")
    with pytest.raises(FetchError, match=r"^blocklife"):
        install_blocklife(shelf)
    after_failure = shelf.is_ready(), shelf.stamp_of_blocklife.exists()
    (tmp_path / "status").write_text("0")
    install_blocklife(shelf)

    assert (before, after_failure) == (False, (False, False))
    assert shelf.is_ready()
    assert (tmp_path / "installed").read_text().splitlines() == [str(PROJECT)] * 2


def test_release_is_complete_when_it_has_its_name(tmp_path: Path) -> None:
    """The kept parts and both stand-ins are there, the rest is not, and nothing is fetched twice."""
    archive = package(tmp_path / "package")
    shelf = shelf_with(tmp_path, bringing(archive))
    make_release(shelf, RELEASE)
    make_release(shelf, RELEASE)
    source = shelf.source(RELEASE)

    assert {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()} == {
        "vllm/__init__.py",
        "tests/a.py",
        "pyproject.toml",
        "LICENSE",
        f"vllm-{RELEASE}+cpu.dist-info/METADATA",
        f"{MODEL}/config.json",
    }
    assert [path.name for path in source.parent.iterdir()] == [RELEASE]
    assert Path(f"{archive}.calls").read_text().split() == ["called"]


def test_release_from_a_broken_package_is_not_there_and_the_next_run_makes_it(tmp_path: Path) -> None:
    """A package cut short in the middle leaves no folder of that name, and nothing that is in the way later."""
    archive = package(tmp_path / "package")
    shelf = shelf_with(tmp_path, bringing(archive))
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FetchError, match=r"cannot be unpacked"):
        make_release(shelf, RELEASE)
    after_half = list(shelf.source(RELEASE).parent.iterdir())
    archive.write_bytes(whole)
    make_release(shelf, RELEASE)

    assert after_half == []
    assert shelf.has(RELEASE)


def test_package_that_lacks_tests_is_refused(tmp_path: Path) -> None:
    """What is missing is named."""
    with pytest.raises(FetchError, match=r"has no tests, LICENSE$"):
        unpack(package(tmp_path / "package", ("vllm/__init__.py", "pyproject.toml")), tmp_path / "tree", RELEASE)


def test_package_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    """A path that climbs out is refused, and the file is not written."""
    with pytest.raises(FetchError, match=r"cannot be unpacked"):
        unpack(package(tmp_path / "package", ("vllm/../../escaped",)), tmp_path / "tree", RELEASE)

    assert list(tmp_path.rglob("escaped*")) == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (OFFLINE, "no package index can be reached"),
        ("ERROR: No matching distribution found for vllm==9.9.9\n", "No matching distribution found for vllm==9.9.9"),
        ("ERROR: Exception:\nTraceback\n  File x\nReadTimeoutError: Read timed out.\n\n", "ReadTimeoutError: Read timed out."),
        (
            "  error: subprocess-exited\nerror: metadata-generation-failed\nnote: of it\n",
            "metadata-generation-failed",
        ),
        ("killed\n", "killed"),
        ("", "pip said nothing"),
    ],
)
def test_reason_is_one_line_of_what_pip_has_said(said: str, told: str) -> None:
    """The last error is told; that nothing was reached is told in words that pip does not use."""
    assert reason(said.splitlines(keepends=True)) == told


def test_fetch_without_network_says_so_in_one_line(tmp_path: Path) -> None:
    """Exit status 1, one line of error, and where pip's own words are; the release is not there."""
    shelf = shelf_with(tmp_path, f"cat <<'END'\n{OFFLINE}\nEND\nexit 1")
    ran = fetched(shelf)

    assert ran.returncode == 1
    assert ran.stdout == ""
    assert [line for line in ran.stderr.splitlines() if "error" in line] == [
        f"tests.vllm.fetch: error: vLLM {RELEASE}: no package index can be reached (all that was said is in {shelf.log})"
    ]
    assert "NewConnectionError" in shelf.log.read_text(encoding="utf-8")
    assert not shelf.has(RELEASE)


@pytest.mark.parametrize("signal", ["INT", "TERM"])
def test_interrupt_ends_pip_and_the_next_run_goes_on(tmp_path: Path, signal: str) -> None:
    """Interrupted in the middle of a download: one line, status 130, pip is gone, and the next run makes the release."""
    archive, pipe = package(tmp_path / "package"), tmp_path / "pipe"
    subprocess.run(["mkfifo", str(pipe)], check=True)
    shelf = shelf_with(tmp_path, f'echo $$ >"{tmp_path}/pid"; kill -{signal} $PPID; read never <"{pipe}"')
    ran = fetched(shelf)
    after_interrupt = list(shelf.source(RELEASE).parent.iterdir())
    pip_lives = Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    play(shelf, bringing(archive))
    again = fetched(shelf)

    assert (ran.returncode, after_interrupt, pip_lives) == (130, [], False)
    assert ran.stderr.splitlines()[-1].startswith("tests.vllm.fetch: interrupted")
    assert "Traceback" not in ran.stderr
    assert (again.returncode, shelf.has(RELEASE)) == (0, True), again.stderr


def command_for(tmp_path: Path, *arguments: str, around: Mapping[str, str] | None = None) -> Command:
    """What would be run, with a shelf on which one release is whole."""
    shelf = shelf_with(tmp_path, "")
    shelf.source(RELEASE).mkdir(parents=True)
    return chosen_command(arguments, shelf, around or {})


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
    there = shelf_with(tmp_path, "")
    for each in (release, "0.9.0"):
        there.source(each).mkdir(parents=True)
    left_out = {
        each: [word for word in chosen_command((each, "tests/v1"), there, {}).words if word.startswith("--deselect=")]
        for each in (release, "0.9.0")
    }

    assert left_out == {release: [f"--deselect={name}" for name in UNSTEADY[release]], "0.9.0": []}
    assert all("::" in name for name in UNSTEADY[release])


@pytest.mark.parametrize(
    ("wanted", "ends"),
    [
        ((), [str(HERE)]),
        (("-k", "name"), ["-k", "name", str(HERE)]),
        (("-x", "tests/vllm/test_tools.py::test_a"), ["-x", "tests/vllm/test_tools.py::test_a"]),
    ],
)
def test_our_tests_are_all_run_unless_some_are_named(tmp_path: Path, wanted: Sequence[str], ends: list[str]) -> None:
    """Options alone name no test."""
    command = command_for(tmp_path, "--ours", RELEASE, *wanted)

    assert command.folder == PROJECT
    assert command.words[-len(ends) :] == ends
    assert command.words.count(str(HERE)) == ends.count(str(HERE))


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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--ours", "--copy", "blocklife", RELEASE, "tests/a"),
            "--copy goes with --python: tests run in the project itself",
        ),
        (
            ("--python", "--copy", "no/copy", RELEASE, "-c", ""),
            "no/copy is no copy of the project (python compile_core.py no/copy --as shipped)",
        ),
        (("0.8.15", "tests/a"), "vLLM 0.8.15 is not here (python -m tests.vllm.fetch 0.8.15)"),
        (("latest", "tests/a"), f"'latest' is not a version of vLLM (such as {DEFAULT})"),
        ((RELEASE,), "name the tests to run (a release has thousands, and most need a GPU or a model)"),
    ],
)
def test_run_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], told: str
) -> None:
    """Exit status 2, one line, and the remedy in it."""
    with pytest.raises(SystemExit) as exit_:
        command_for(tmp_path, *arguments)

    assert exit_.value.code == 2
    assert capsys.readouterr().err == f"tests.vllm.run: error: {told}\n"


def test_run_without_an_environment_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sources alone are not enough."""
    shelf = Shelf(tmp_path)
    shelf.source(RELEASE).mkdir(parents=True)
    with pytest.raises(SystemExit) as exit_:
        chosen_command([RELEASE, "tests/a"], shelf, {})

    assert exit_.value.code == 2
    assert capsys.readouterr().err.endswith(f"(python -m tests.vllm.fetch {RELEASE})\n")


def test_tests_that_need_vllm_are_skipped_with_a_reason_where_it_is_not() -> None:
    """They are not passed over in silence, and not imported."""
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is here, so they run")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "test_setting.py")]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=HANGS_S, check=False)

    assert "vLLM is not here (make vllm test-vllm)" in ran.stdout
    assert "1 skipped" in ran.stdout


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
    shelf = shelf_with(tmp_path, f'touch "{tmp_path}/ran"')
    shelf.source(RELEASE).mkdir(parents=True)
    with pytest.raises(SystemExit) as exit_:
        table_run(shelf, [RELEASE, release], 1, 20, None)

    assert exit_.value.code == 2
    assert capsys.readouterr() == ("", f"tests.vllm.run: error: {told}\n")
    assert not (tmp_path / "ran").exists()


def test_table_of_seeds_shows_what_a_failing_release_has_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows so far are kept, the last lines of its errors are shown, and the exit status is 1; the file has the rows."""
    row = Row(RELEASE, "full", 0, 20, {}, None, "")
    shelf = shelf_with(tmp_path, f"echo '{json.dumps(asdict(row))}'; seq 99 >&2; exit 3")
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
    shelf = shelf_with(tmp_path, "")
    shelf.source(RELEASE).mkdir(parents=True)

    assert table_run(shelf, [RELEASE], 1, 20, None) == 1
    assert capsys.readouterr().err == f"missed: {RELEASE}: not one row\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("seeds", "--num-seeds", "0"), "--num-seeds: '0' is not a positive whole number"),
        (("seeds", "--num-seeds", "-3"), "--num-seeds: '-3' is not a positive whole number"),
        (("seeds", "--steps", "-5"), "--steps: '-5' is not a positive whole number"),
        (("seeds", "--steps", "1.5"), "--steps: '1.5' is not a positive whole number"),
        (("seeds", "--json", "/nonexistent/x.json"), "'/nonexistent/x.json' cannot be written, for its folder is not there"),
        (("seeds", "--json", "/"), "'/' cannot be written (name a file in a folder of yours)"),
        (("seed", "--seeds", "1", "--worlds", "bogus"), "--worlds: invalid choice: 'bogus'"),
        (("seed", "--seeds", "-1", "--worlds", "full"), "--seeds: '-1' is not a whole number from 0 on"),
        (("seed", "--seeds", "1", "--worlds", "full", "--steps", "-10"), "--steps: '-10' is not a positive whole number"),
        (("long", "--log", "/nonexistent/long"), "'/nonexistent/long' cannot be written, for its folder is not there"),
        (("long", "--log", "/"), "'/' cannot be written (name a file in a folder of yours)"),
    ],
)
def test_watched_refuses_what_makes_no_sense(capsys: pytest.CaptureFixture[str], words: Sequence[str], told: str) -> None:
    """Before any work, with exit status 2, and with the option's name."""
    with pytest.raises(SystemExit) as exit_:
        parsed(words)

    assert exit_.value.code == 2
    assert told in capsys.readouterr().err


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
