"""What is half-made is never taken for whole, and whoever asks for what is not here gets one line that says what to do.

Method: that of `tests.behind.tools`, for each engine. Every test begins with an empty folder.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.behind import fetching
from tests.behind.fetching import FetchError, install_blocklife, reason
from tests.behind.running import SHARED
from tests.behind.shelf import PROJECT, Shelf, pins, version
from tests.behind.tools import RELEASE, Tools, bringing, calls, files_of, play
from tests.programs import ENGINES, HANGS_S, natural, positive, seeds, target

OFFLINE = """
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError': Connection refused
ERROR: Could not find a version that satisfies the requirement vllm==9.9.9 (from versions: none)
ERROR: No matching distribution found for vllm==9.9.9
"""


@pytest.fixture(params=ENGINES)
def tools(request: pytest.FixtureRequest) -> Tools:
    """Those of each engine."""
    return Tools(request.param)


# --- what is pinned ---------------------------------------------------------------------------------------------------------


def test_requirements_are_pinned_once_and_agree_with_the_constraints(tools: Tools) -> None:
    """Every line is a name and a version, and a package that the project pins, too, has the same version in both."""
    wanted, project = pins(tools.of("releases").REQUIREMENTS), pins(PROJECT / "constraints.txt")

    assert {name: pin for name, pin in wanted.items() if project.get(name, pin) != pin} == {}
    assert {"attrs", "numpy", "pytest", "pytest-xdist", "rich", "torch", "transitions"} <= wanted.keys() & project.keys()
    assert tools.package not in wanted


def test_git_ignores_what_is_fetched(tools: Tools) -> None:
    """The folder that everything is fetched into is on git's list, and so is a link to one of another tree."""
    assert tools.of("releases").Shelf().root.name in (PROJECT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_releases_that_are_known_are_versions_with_checksums(tools: Tools) -> None:
    """Each becomes a folder's name; the default is one of them."""
    checksums = tools.of("releases").CHECKSUMS

    assert [version(each) for each in checksums] == list(checksums)
    assert tools.of("releases").DEFAULT in checksums
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in checksums.values())
    assert len(set(checksums.values())) == len(checksums)


@pytest.mark.parametrize("text", ["no", "0.33", "v0.33.0", "../0.33.0", "0.33.0/..", "0.33.0 --index", "0.33.0\n"])
def test_version_that_could_leave_its_folder_or_its_word_is_refused(text: str) -> None:
    """A version becomes a folder's name and a part of pip's command: nothing else than a version passes."""
    with pytest.raises(ValueError, match=re.escape(text)):
        version(text)

    assert [version(each) for each in ("0.33.0rc1", "0.9.2.post1")]


# --- the environment --------------------------------------------------------------------------------------------------------


def test_environment_is_whole_only_with_its_stamp_and_an_interpreter(tools: Tools, tmp_path: Path) -> None:
    """A folder without either is not an environment."""
    shelf = tools.shelf(tmp_path)
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
def test_shelf_from_elsewhere_is_used_as_it_is(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """pip is not called and nothing is removed, wherever the folder was made and for whichever working tree."""
    elsewhere = tools.shelf(tmp_path / "elsewhere", "exit 1", whole=True)
    here = evolve_root(elsewhere, tmp_path / "here")
    if how == "moved":
        elsewhere.root.rename(here.root)
    else:
        shutil.copytree(elsewhere.root, here.root)
    monkeypatch.setattr(shutil, "rmtree", lambda *_: pytest.fail("something is removed"))

    assert tools.of("fetch").fetch(here, [RELEASE]) == 0
    assert here.is_ready()
    assert tools.command(here, *tools.ours()).environ["PYTHONPATH"].split(":")[-2] == str(PROJECT)


def evolve_root(shelf: Shelf, root: Path) -> Shelf:
    """The same kind of shelf in another folder."""
    return type(shelf)(root, shelf.requirements)


def test_environment_for_other_requirements_is_left_alone(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody may be running from it: the new one is made beside it, and a line says where the old one is."""
    old = tools.shelf(tmp_path)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("a==1\n", encoding="utf-8")
    new = type(old)(old.root, requirements)
    before = new.has_environment()
    monkeypatch.setattr(fetching, "watched", lambda command, shelf, doing, **_: play(shelf, ""))
    tools.of("fetch").make_environment(new)

    assert (before, new.has_environment(), old.has_environment()) == (False, True, True)
    assert f"environment: {old.environment} is for other requirements; remove it when nobody runs from it\n" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("broken", range(4))
def test_environment_gets_its_stamp_after_the_last_command(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """Whichever command fails, what is there is not whole, and the next run begins from nothing."""
    shelf, count = tools.shelf(tmp_path), 0
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
            tools.of("fetch").make_environment(shelf)
        assert not shelf.has_environment()
        count = broken = 0
    tools.of("fetch").make_environment(shelf)

    assert count == 3
    assert shelf.has_environment()


def test_blocklife_is_installed_anew_when_its_entry_points_have_changed(tools: Tools, tmp_path: Path) -> None:
    """Entry points are read at installation: without the right stamp nothing runs, and a failure leaves none."""
    shelf = tools.shelf(tmp_path, f'echo "$last" >>"{tmp_path}/installed"; exit $(cat "{tmp_path}/status")')
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


# --- a release --------------------------------------------------------------------------------------------------------------

WHOLE = {
    "vllm": {
        *("vllm/__init__.py", "tests/a.py", "pyproject.toml", "LICENSE"),
        *(f"vllm-{RELEASE}+cpu.dist-info/METADATA", "facebook/opt-125m/config.json"),
    },
    **{each: {f"{each}/__init__.py", f"{each}-{RELEASE}.dist-info/METADATA"} for each in ("sglang", "lmcache")},
}
"""All files of a release: of vLLM the kept parts and both stand-ins."""


def test_release_is_complete_when_it_has_its_name(tools: Tools, tmp_path: Path) -> None:
    """What belongs to it is there, the rest is not, and nothing is fetched twice."""
    brought = tools.brought(tmp_path)
    shelf = tools.shelf(tmp_path, bringing(brought))
    for _ in range(2):
        tools.of("fetch").make_release(shelf, RELEASE)

    assert files_of(shelf.source(RELEASE)) == WHOLE[tools.package]
    assert [path.name for path in shelf.source(RELEASE).parent.iterdir()] == [RELEASE]
    assert calls(brought) == ["download"]


def test_release_from_a_broken_package_is_not_there_and_the_next_run_makes_it(tools: Tools, tmp_path: Path) -> None:
    """A package cut short in the middle leaves no folder of that name, and nothing that is in the way later."""
    brought = tools.brought(tmp_path)
    shelf, whole = tools.shelf(tmp_path, bringing(brought)), brought.read_bytes()
    brought.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FetchError, match=rf"^{tools.name} 9\.9\.9: the (wheel|source package) cannot be unpacked: "):
        tools.of("fetch").make_release(shelf, RELEASE)
    after_half = list(shelf.source(RELEASE).parent.iterdir())
    brought.write_bytes(whole)
    tools.of("fetch").make_release(shelf, RELEASE)

    assert after_half == []
    assert shelf.has(RELEASE)


def test_remains_of_a_killed_run_are_in_nobodys_way(tools: Tools, tmp_path: Path) -> None:
    """What was half unpacked is removed, and is no part of what the next run makes."""
    shelf = tools.shelf(tmp_path, bringing(tools.brought(tmp_path)))
    remains = shelf.source(f".part-{RELEASE}") / "tree" / "old.py"
    remains.parent.mkdir(parents=True)
    remains.touch()
    tools.of("fetch").make_release(shelf, RELEASE)

    assert [path.name for path in shelf.source(RELEASE).parent.iterdir()] == [RELEASE]
    assert not list(shelf.source(RELEASE).rglob("old.py"))


def test_pip_that_brings_nothing_is_told_of(tools: Tools, tmp_path: Path) -> None:
    """A release that is not there afterwards has not been made."""
    shelf = tools.shelf(tmp_path)
    with pytest.raises(FetchError, match=rf"^{tools.name} 9\.9\.9: pip brought 0 packages, not one$"):
        tools.of("fetch").make_release(shelf, RELEASE)

    assert not shelf.has(RELEASE)


# --- the whole program ------------------------------------------------------------------------------------------------------


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


def test_fetch_brings_each_release_once_and_says_that_all_is_here(tools: Tools, tmp_path: Path) -> None:
    """Exit status 0, also the second time, when pip is not asked."""
    brought = tools.brought(tmp_path)
    shelf = tools.shelf(tmp_path, bringing(brought))
    status = tools.of("fetch").fetch(shelf, [RELEASE, RELEASE])
    again = tools.fetched(shelf)

    assert (status, again.returncode, again.stdout) == (0, 0, "")
    assert again.stderr.splitlines()[:2] == ["environment: here", f"{tools.name} {RELEASE}: here"]
    assert re.match(r"all is here \(\d+ s\)", again.stderr.splitlines()[-1])
    assert calls(brought) == ["download"]


def test_fetch_without_network_says_so_in_one_line(tools: Tools, tmp_path: Path) -> None:
    """Exit status 1, one line of error, and where pip's own words are; the release is not there."""
    shelf = tools.shelf(tmp_path, f"cat <<'END'\n{OFFLINE}\nEND\nexit 1")
    ran = tools.fetched(shelf)
    why = f"{tools.name} {RELEASE}: no package index can be reached (all that was said is in {shelf.log})"

    assert (ran.returncode, ran.stdout) == (1, "")
    assert [line for line in ran.stderr.splitlines() if "error" in line] == [f"tests.{tools.package}.fetch: error: {why}"]
    assert "NewConnectionError" in shelf.log.read_text(encoding="utf-8")
    assert not shelf.has(RELEASE)


@pytest.mark.parametrize("signal", ["INT", "TERM"])
def test_interrupt_ends_pip_and_the_next_run_goes_on(tools: Tools, tmp_path: Path, signal: str) -> None:
    """Interrupted in the middle of a download: one line, status 130, pip is gone, and the next run makes the release."""
    brought, pipe = tools.brought(tmp_path), tmp_path / "pipe"
    subprocess.run(["mkfifo", str(pipe)], check=True)
    shelf = tools.shelf(tmp_path, f'echo $$ >"{tmp_path}/pid"; kill -{signal} $PPID; read never <"{pipe}"')
    ran = tools.fetched(shelf)
    after_interrupt = list(shelf.source(RELEASE).parent.iterdir())
    pip_lives = Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    play(shelf, bringing(brought))
    again = tools.fetched(shelf)

    assert (ran.returncode, after_interrupt, pip_lives) == (130, [], False)
    assert ran.stderr.splitlines()[-1].startswith(f"tests.{tools.package}.fetch: interrupted")
    assert "Traceback" not in ran.stderr
    assert (again.returncode, shelf.has(RELEASE)) == (0, True), again.stderr


# --- running ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "names"),
    [((), False), (("-k", "name"), False), (("-x", "tests/behind/test_tools.py::test_a"), True)],
)
def test_our_tests_are_all_run_unless_some_are_named(tools: Tools, tmp_path: Path, wanted: Sequence[str], names: bool) -> None:
    """Options alone name no test."""
    command = tools.command(tools.shelf(tmp_path, whole=True), *tools.ours(*wanted))
    ends = [*wanted, *([] if names else [str(tools.of("releases").HERE), str(SHARED)])]

    assert command.folder == PROJECT
    assert command.words[1:3] == ["-m", "pytest"]
    assert command.words[-len(ends) :] == ends
    assert command.words.count(str(SHARED)) == ends.count(str(SHARED))


NO_VERSION = "{word!r} is not a version of {name} (such as {default})"
NOT_WHOLE = "the environment is not here, or out of date (python -m tests.{package}.fetch {release})"
OWN_MISSING = "SGLang's own tests are not here (python -m tests.sglang.fetch --sources CHECKOUT)"
NO_COPY = "no/copy is no copy of the project (python compile_core.py no/copy --as shipped)"
NOT_NAMED = "name the tests to run (a release has thousands, and most need a GPU or a model)"


@pytest.mark.parametrize(
    ("engines", "words", "lacks", "told"),
    [
        (ENGINES, "0.8.15 tests/a", "", "{name} 0.8.15 is not here (python -m tests.{package}.fetch 0.8.15)"),
        (ENGINES, "latest tests/a", "", NO_VERSION),
        (ENGINES, "../9.9.9 tests/a", "", NO_VERSION),
        (ENGINES, f"{RELEASE} tests/a", "stamp", NOT_WHOLE),
        (ENGINES, f"{RELEASE} tests/a", "stamp_of_blocklife", NOT_WHOLE),
        (
            ["vllm"],
            f"--ours --copy blocklife {RELEASE} tests/a",
            "",
            "--copy goes with --python: tests run in the project itself",
        ),
        (["vllm"], f"--python --copy no/copy {RELEASE} -c pass", "", NO_COPY),
        (["vllm"], RELEASE, "", NOT_NAMED),
        (["sglang"], f"--theirs {RELEASE}", "", OWN_MISSING),
    ],
)
def test_run_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engines: Sequence[str], words: str, lacks: str, told: str
) -> None:
    """Exit status 2, one line, and the remedy in it."""
    for tools in map(Tools, engines):
        shelf = tools.shelf(tmp_path / tools.package, whole=True)
        if lacks:
            getattr(shelf, lacks).unlink()
        with pytest.raises(SystemExit, match=r"^2$"):
            tools.command(shelf, *words.split())
        said = {"name": tools.name, "package": tools.package, "default": tools.of("releases").DEFAULT, "release": RELEASE}

        assert capsys.readouterr().err == f"tests.{tools.package}.run: error: {told.format(word=words.split()[0], **said)}\n"


@pytest.mark.parametrize("words", [["latest"], [RELEASE, "../0.5.23"], ["0.5.23 --index"], ["v0.5.23"]])
def test_fetch_refuses_what_is_no_version_before_anything_is_fetched(
    tools: Tools, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Exit status 2, and the word is named."""
    with pytest.raises(SystemExit, match=r"^2$"):
        tools.of("fetch").parsed(words)

    assert NO_VERSION.format(word=words[-1], name=tools.name, default=tools.of("releases").DEFAULT) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (positive, "0", "'0' is not a positive whole number"),
        (positive, "-3", "'-3' is not a positive whole number"),
        (positive, "1.5", "'1.5' is not a positive whole number"),
        (natural, "-1", "'-1' is not a whole number from 0 on"),
        (seeds, "5-1", "'5-1' is an empty list of seeds"),
        (seeds, "a", "'a' is not a list of seeds"),
        (target, "/nonexistent/x.json", "'/nonexistent/x.json' cannot be written, for its folder is not there"),
        (target, "/", "'/' cannot be written (name a file in a folder of yours)"),
    ],
)
def test_argument_of_a_program_that_makes_no_sense_is_refused(kind: Callable[[str], object], text: str, told: str) -> None:
    """By the kinds of numbers, seeds and files that all programs have."""
    with pytest.raises(ArgumentTypeError, match=re.escape(told)):
        kind(text)


# --- where the engine is not ------------------------------------------------------------------------------------------------


def test_tests_that_need_an_engine_are_skipped_with_a_reason_where_it_is_not(tools: Tools) -> None:
    """They are not passed over in silence, and not imported."""
    if importlib.util.find_spec(tools.package) is not None:
        pytest.skip(f"{tools.name} is here, so they run")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tools.of("releases").HERE / "test_rig.py")]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=HANGS_S, check=False)

    assert f"{tools.name} is not here (make {tools.package} test-{tools.package})" in ran.stdout
    assert "1 skipped" in ran.stdout


def test_tests_that_need_no_engine_are_files(tools: Tools) -> None:
    """The list of the conftest names no test that is gone."""
    assert {name for name in tools.of("conftest").NEED_NOTHING if not (tools.of("releases").HERE / name).is_file()} == set()
