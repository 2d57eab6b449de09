"""What is half-made is never taken for whole, and whoever asks for what is not here gets one line that says what to do.

Method: no network, no SGLang and no torch. In the place of the environment's Python stands a shell script that plays pip, or
that hands on to the Python of the tests; a wheel is made here, with as much of SGLang as is asked for. Checkouts are small
repositories.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.behind import fetching
from tests.behind.fetching import FetchError
from tests.behind.shelf import ON_PATH, PROJECT, Command, entry_points, pins, version
from tests.programs import HANGS_S
from tests.sglang import fetch as fetching_sglang
from tests.sglang.conftest import NEED_NO_SGLANG
from tests.sglang.fetch import ASKED, BESIDE, RUST, fetch, make_environment, make_release, make_sources, parsed
from tests.sglang.releases import CHECKSUMS, DEFAULT, HERE, REQUIREMENTS, Shelf, transformers_of
from tests.sglang.run import NOT_OURS, PLUGINS, RUNNING, THEIRS, UNABLE, chosen_command, main

RELEASE = "9.9.9"
FETCH = "import sys, pathlib; from tests.sglang.fetch import fetch; from tests.sglang.releases import Shelf; "
FETCH += f"sys.exit(fetch(Shelf(pathlib.Path(sys.argv[1])), ['{RELEASE}']))"
OFFLINE = """
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError': Connection refused
ERROR: No matching distribution found for sglang==9.9.9
"""
OWN = re.search(r"^transformers==(\S+)$", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
CORE = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/mem_cache/__init__.py": "",
    "sglang/srt/mem_cache/cache_init_params.py": "import types\nCacheInitParams = types.SimpleNamespace\n",
    "sglang/srt/mem_cache/unified_cache/__init__.py": "",
    f"{RUST}/__init__.py": "",
    f"{RUST}/core.abi3.so": "compiled",
    "torch/__init__.py": "raise ImportError('the stand-ins do without it')",
}
"""A release with a tree core in Rust, but for what answers when it is asked about."""
ADAPTER, REGISTRY = f"{RUST}/adapter.py", "sglang/srt/mem_cache/unified_cache/tree_core_registry.py"
TORCH = "torch is not the CPU build, without which SGLang's tree core in Rust is not loaded"


def wheel(path: Path, files: Mapping[str, str], transformers: str = "") -> Path:
    """The wheel of a release that has these files and wants this version of transformers."""
    wants = f"Requires-Dist: torch==1.2.3\nRequires-Dist: transformers=={transformers}\n" if transformers else ""
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"sglang-{RELEASE}.dist-info/METADATA": f"Name: sglang\n{wants}"}.items():
            archive.writestr(name, text)
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


def bringing(brought: Path) -> str:
    """A pip that brings this wheel, installs an empty package, and writes down what it was told; a program is really run."""
    return f"""
echo "$*" >>"{brought}.calls"
case "$3" in
  download)
    for word; do test "$before" = --requirement && cp "$word" "{brought}.wanted"; before=$word; done
    mkdir -p "$last"; cp "{brought}" "$last/sglang-{RELEASE}-py3-none-any.whl";;
  install) for word; do test "$before" = --target && mkdir -p "$word"; before=$word; done;;
  *) exec "{sys.executable}" "$@";;
esac"""


def calls(brought: Path) -> list[str]:
    """What this pip was told to do."""
    words = [line.split() for line in Path(f"{brought}.calls").read_text(encoding="utf-8").splitlines()]
    return [each[2] for each in words if each[:2] == ["-m", "pip"]]


def fetched(shelf: Shelf) -> subprocess.CompletedProcess[str]:
    """A run of the whole program in a process of its own."""
    command = [sys.executable, "-c", FETCH, str(shelf.root)]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=HANGS_S, check=False)


# --- what is pinned ---------------------------------------------------------------------------------------------------------


def test_requirements_are_pinned_once_and_agree_with_the_constraints() -> None:
    """Every line is a name and a version, and a package that the project pins, too, has the same version in both."""
    wanted, project = pins(REQUIREMENTS), pins(PROJECT / "constraints.txt")

    assert {name: pin for name, pin in wanted.items() if project.get(name, pin) != pin} == {}
    assert {"attrs", "numpy", "pytest", "torch"} <= wanted.keys() & project.keys()
    assert "sglang" not in wanted


def test_git_ignores_what_is_fetched() -> None:
    """The folder that everything is fetched into is on git's list, and so is a link to one of another tree."""
    assert Shelf().root.name in (PROJECT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_releases_that_are_known_are_versions_with_checksums() -> None:
    """Each becomes a folder's name; the default is one of them."""
    assert [version(each) for each in CHECKSUMS] == list(CHECKSUMS)
    assert DEFAULT in CHECKSUMS
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in CHECKSUMS.values())
    assert len(set(CHECKSUMS.values())) == len(CHECKSUMS)


def test_transformers_go_beside_the_environment_only_where_it_has_others() -> None:
    """A release that wants the environment's, or says nothing of it, gets none of its own."""
    assert OWN is not None
    told = {text: transformers_of(text) for text in ("Requires-Dist: transformers==1.2.3\n", "Name: sglang\n")}

    assert told == {"Requires-Dist: transformers==1.2.3\n": "1.2.3", "Name: sglang\n": None}
    assert transformers_of(f"Name: sglang\nRequires-Dist: transformers=={OWN[1]}\nRequires-Dist: torch==1\n") is None


# --- the environment --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("cuda", ["None", "'12.8'"])
def test_environment_whose_torch_is_not_the_cpu_build_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: str
) -> None:
    """The question is put to the environment's own torch, and the error names the remedy."""
    shelf, real = Shelf(tmp_path / "shelf"), fetching.watched
    shelf.root.mkdir()
    (tmp_path / "lib" / "torch").mkdir(parents=True)
    (tmp_path / "lib" / "torch" / "__init__.py").write_text(f"class version:\n    cuda = {cuda}\n", encoding="utf-8")

    def watched(command: Sequence[str | Path], shelf: Shelf, doing: str, *, total: int = 0) -> None:
        if "venv" in command:
            hands_on = f'export PYTHONPATH="{tmp_path}/lib"; exec "{sys.executable}" "$@"'
            play(shelf, f'case "$2" in pip) ;; *) {hands_on};; esac')
        else:
            real(command, shelf, doing, total=total)

    monkeypatch.setattr(fetching, "watched", watched)
    if cuda == "None":
        make_environment(shelf)
    else:
        with pytest.raises(FetchError, match="^" + re.escape(TORCH)) as raised:
            make_environment(shelf)
        assert "PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS" in str(raised.value)

    assert shelf.has_environment() is (cuda == "None")
    assert len(ASKED) == 1


# --- a release --------------------------------------------------------------------------------------------------------------


def test_release_is_complete_when_it_has_its_name(tmp_path: Path) -> None:
    """The wheel's files are there and nothing else, and nothing is fetched twice."""
    brought = wheel(tmp_path / "wheel", {"sglang/__init__.py": "", "sglang/a.py": ""})
    shelf = shelf_with(tmp_path, bringing(brought))
    make_release(shelf, RELEASE)
    make_release(shelf, RELEASE)
    source = shelf.source(RELEASE)

    assert {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()} == {
        "sglang/__init__.py",
        "sglang/a.py",
        f"sglang-{RELEASE}.dist-info/METADATA",
    }
    assert [path.name for path in source.parent.iterdir()] == [RELEASE]
    assert calls(brought) == ["download"]


@pytest.mark.parametrize("python", [(3, 11), (3, 12)])
def test_checksum_goes_to_pip_where_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], python: tuple[int, int]
) -> None:
    """It is that of the wheel for Python 3.11; that another wheel goes unchecked is said."""
    monkeypatch.setitem(CHECKSUMS, RELEASE, "5" * 64)
    monkeypatch.setattr(sys, "version_info", (*python, 0, "final", 0))
    brought = wheel(tmp_path / "wheel", {})
    make_release(shelf_with(tmp_path, bringing(brought)), RELEASE)
    known = python == (3, 11)

    assert Path(f"{brought}.wanted").read_text() == f"sglang=={RELEASE}" + f" --hash=sha256:{'5' * 64}" * known + "\n"
    assert ("its checksum is not known here" in capsys.readouterr().err) is not known


def test_release_from_a_broken_wheel_is_not_there_and_the_next_run_makes_it(tmp_path: Path) -> None:
    """A wheel cut short in the middle leaves no folder of that name, and nothing that is in the way later."""
    brought = wheel(tmp_path / "wheel", {"sglang/__init__.py": "pass\n" * 99})
    shelf, whole = shelf_with(tmp_path, bringing(brought)), brought.read_bytes()
    brought.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FetchError, match=r"^SGLang 9\.9\.9: the wheel cannot be unpacked: "):
        make_release(shelf, RELEASE)
    after_half = list(shelf.source(RELEASE).parent.iterdir())
    brought.write_bytes(whole)
    make_release(shelf, RELEASE)

    assert after_half == []
    assert shelf.has(RELEASE)


def test_remains_of_a_killed_run_are_in_nobodys_way(tmp_path: Path) -> None:
    """What was half unpacked is removed, and is no part of what the next run makes."""
    shelf = shelf_with(tmp_path, bringing(wheel(tmp_path / "wheel", {"sglang/__init__.py": ""})))
    remains = shelf.source(f".part-{RELEASE}") / "tree" / "old.py"
    remains.parent.mkdir(parents=True)
    remains.touch()
    make_release(shelf, RELEASE)

    assert [path.name for path in shelf.source(RELEASE).parent.iterdir()] == [RELEASE]
    assert not list(shelf.source(RELEASE).rglob("old.py"))


def test_pip_that_brings_no_wheel_is_told_of(tmp_path: Path) -> None:
    """A release that is not there afterwards has not been made."""
    shelf = shelf_with(tmp_path, "")
    with pytest.raises(FetchError, match=r"^SGLang 9\.9\.9: pip brought 0 wheels, not one$"):
        make_release(shelf, RELEASE)

    assert not shelf.has(RELEASE)


def test_release_gets_its_own_transformers_once_and_they_go_ahead(tmp_path: Path) -> None:
    """In a folder of their own, which gets its name when they are whole; what they want comes along."""
    brought = wheel(tmp_path / "wheel", {"sglang/__init__.py": ""}, transformers="1.2.3")
    shelf = shelf_with(tmp_path, bringing(brought))
    make_release(shelf, RELEASE)
    make_release(shelf, RELEASE)
    told = Path(f"{brought}.calls").read_text(encoding="utf-8").splitlines()[1].split()

    assert calls(brought) == ["download", "install"]
    assert told[-3:] == ["transformers==1.2.3", *BESIDE]
    assert [path.name for path in (shelf.root / "transformers").iterdir()] == ["1.2.3"]
    paths = chosen_command([RELEASE], shelf, {}).environ["PYTHONPATH"].split(":")
    assert paths == [str(shelf.source(RELEASE)), str(shelf.transformers("1.2.3")), str(PLUGINS), *ON_PATH]


def test_transformers_that_cannot_be_had_leave_no_folder(tmp_path: Path) -> None:
    """The release is here, and the next run asks for them again."""
    brought = wheel(tmp_path / "wheel", {"sglang/__init__.py": ""}, transformers="1.2.3")
    shelf = shelf_with(tmp_path, bringing(brought).replace("install)", "install) echo ERROR: none; exit 1 ;; never)"))
    with pytest.raises(FetchError, match=r"^transformers 1\.2\.3: none \(all"):
        make_release(shelf, RELEASE)
    after_failure = shelf.transformers("1.2.3").exists()
    play(shelf, bringing(brought))
    make_release(shelf, RELEASE)

    assert not after_failure
    assert shelf.transformers("1.2.3").is_dir()


# --- the tree core in Rust --------------------------------------------------------------------------------------------------


def choosing(core: str) -> str:
    """A registry that chooses this core."""
    return f"def select_tree_core_backend(params):\n    assert not params.disable\n    return {core!r}\n"


@pytest.mark.parametrize(
    ("adapter", "registry", "told"),
    [
        ("", choosing("rust"), ""),
        ("", "", ""),
        ("", choosing("python"), "it goes on with the core in python instead"),
        ("raise ImportError('undefined symbol: tensor')", choosing("rust"), "ImportError: undefined symbol: tensor"),
        ("import os; os._exit(3)", choosing("rust"), "it said nothing"),
    ],
)
def test_core_in_rust_that_a_release_goes_on_without_is_an_error(
    tmp_path: Path, adapter: str, registry: str, told: str
) -> None:
    """SGLang itself would go on with its other core, and every test would pass on code that nobody runs."""
    brought = wheel(tmp_path / "wheel", {**CORE, ADAPTER: adapter, REGISTRY: registry})
    shelf = shelf_with(tmp_path, bringing(brought))
    if told:
        for _ in range(2):  # that the release is here already does not make it better
            with pytest.raises(FetchError) as raised:
                make_release(shelf, RELEASE)
            assert str(raised.value) == f"SGLang {RELEASE}: its tree core in Rust cannot be loaded: {told}"
        assert fetch(shelf, [RELEASE]) == 1
    else:
        make_release(shelf, RELEASE)
        assert fetch(shelf, [RELEASE]) == 0


def test_release_without_a_core_in_rust_is_not_asked_about_it(tmp_path: Path) -> None:
    """The older ones have none; a folder of that name without a library is none either."""
    brought = wheel(tmp_path / "wheel", {"sglang/__init__.py": "", f"{RUST}/README": ""})
    make_release(shelf_with(tmp_path, bringing(brought) + '\ntest "$1" != -c'), RELEASE)

    assert "-c" not in Path(f"{brought}.calls").read_text(encoding="utf-8").split()


# --- SGLang's own tests -----------------------------------------------------------------------------------------------------


def committed(folder: Path, files: Mapping[str, str]) -> Path:
    """A repository with one commit more, in which these files were written."""
    author = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "more"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def test_own_tests_are_those_of_the_newest_commit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not what lies about uncommitted, nor the rest of the checkout; another commit is refused while they are there."""
    shelf = shelf_with(tmp_path, "")
    checkout = committed(tmp_path / "checkout", {"python/a.py": "1", "test/b.py": "1", "docs/c.md": "1"})
    (checkout / "test" / "b.py").write_text("uncommitted", encoding="utf-8")
    make_sources(shelf, checkout)
    first = (shelf.sources / "test" / "b.py").read_text(encoding="utf-8")
    names = {path.relative_to(shelf.sources).as_posix() for path in shelf.sources.rglob("*") if path.is_file()}
    capsys.readouterr()
    make_sources(shelf, checkout)
    again = capsys.readouterr().err
    committed(checkout, {"python/a.py": "2"})
    with pytest.raises(FetchError, match=f"{shelf.sources} has another commit, and somebody may run it; move or remove it$"):
        make_sources(shelf, checkout)
    kept = (shelf.sources / "python" / "a.py").read_text(encoding="utf-8")
    shelf.sources.rename(tmp_path / "moved")
    make_sources(shelf, checkout)

    assert (first, kept, names) == ("1", "1", {"python/a.py", "test/b.py", "commit"})
    assert re.fullmatch(r"SGLang's own tests: here \([0-9a-f]{9}\)\n", again)
    assert (shelf.sources / "python" / "a.py").read_text(encoding="utf-8") == "2"
    assert (shelf.sources / "test" / "b.py").read_text(encoding="utf-8") == "uncommitted"
    assert not shelf.sources.with_name(".part-sources").exists()


@pytest.mark.parametrize(
    ("files", "told"),
    [({}, r": no git repository is there$"), ({"python/a.py": ""}, r": git cannot archive python, test of [0-9a-f]{9}$")],
)
def test_checkout_that_has_no_such_tests_is_refused(tmp_path: Path, files: Mapping[str, str], told: str) -> None:
    """In one line; nothing is taken for them, and a right checkout is taken later."""
    shelf, checkout = shelf_with(tmp_path, ""), tmp_path / "checkout"
    if files:
        committed(checkout, files)
    with pytest.raises(FetchError, match=re.escape(str(checkout)) + told):
        make_sources(shelf, checkout)
    after_refusal = shelf.sources.exists()
    make_sources(shelf, committed(tmp_path / "right", {"python/a.py": "", "test/b.py": ""}))

    assert not after_refusal
    assert (shelf.sources / "test" / "b.py").is_file()


# --- the whole program ------------------------------------------------------------------------------------------------------


def test_fetch_brings_each_release_once_and_says_that_all_is_here(tmp_path: Path) -> None:
    """Exit status 0, also the second time, when pip is not asked."""
    brought = wheel(tmp_path / "wheel", {"sglang/__init__.py": ""})
    shelf = shelf_with(tmp_path, bringing(brought))
    status = fetch(shelf, [RELEASE, RELEASE])
    again = fetched(shelf)

    assert (status, again.returncode, again.stdout) == (0, 0, "")
    assert again.stderr.splitlines()[:2] == ["environment: here", f"SGLang {RELEASE}: here"]
    assert re.match(r"all is here \(\d+ s\)", again.stderr.splitlines()[-1])
    assert calls(brought) == ["download"]


def test_fetch_without_network_says_so_in_one_line(tmp_path: Path) -> None:
    """Exit status 1, one line of error, and where pip's own words are; the release is not there."""
    shelf = shelf_with(tmp_path, f"cat <<'END'\n{OFFLINE}\nEND\nexit 1")
    ran = fetched(shelf)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert [line for line in ran.stderr.splitlines() if "error" in line] == [
        f"tests.sglang.fetch: error: SGLang {RELEASE}: no package index can be reached (all that was said is in {shelf.log})"
    ]
    assert "NewConnectionError" in shelf.log.read_text(encoding="utf-8")
    assert not shelf.has(RELEASE)


@pytest.mark.parametrize("signal", ["INT", "TERM"])
def test_interrupt_ends_pip_and_the_next_run_goes_on(tmp_path: Path, signal: str) -> None:
    """Interrupted in the middle of a download: one line, status 130, pip is gone, and the next run makes the release."""
    brought, pipe = wheel(tmp_path / "wheel", {"sglang/__init__.py": ""}), tmp_path / "pipe"
    subprocess.run(["mkfifo", str(pipe)], check=True)
    shelf = shelf_with(tmp_path, f'echo $$ >"{tmp_path}/pid"; kill -{signal} $PPID; read never <"{pipe}"')
    ran = fetched(shelf)
    after_interrupt = list(shelf.source(RELEASE).parent.iterdir())
    pip_lives = Path("/proc", (tmp_path / "pid").read_text().strip()).exists()
    play(shelf, bringing(brought))
    again = fetched(shelf)

    assert (ran.returncode, after_interrupt, pip_lives) == (130, [], False)
    assert ran.stderr.splitlines()[-1].startswith("tests.sglang.fetch: interrupted")
    assert "Traceback" not in ran.stderr
    assert (again.returncode, shelf.has(RELEASE)) == (0, True), again.stderr


@pytest.mark.parametrize("arguments", [["latest"], [DEFAULT, "../0.5.23"], ["0.5.23 --index"], ["v0.5.23"]])
def test_fetch_refuses_what_is_no_version_before_anything_is_fetched(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Exit status 2, and the word is named."""
    with pytest.raises(SystemExit) as exit_:
        parsed(arguments)

    assert exit_.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {arguments[-1]!r} is not a version of SGLang (such as {DEFAULT})\n")


def test_fetch_without_words_is_of_the_default_release(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And of no checkout; both can be named."""
    asked: list[tuple[Sequence[str], Path | None]] = []

    def heard(shelf: Shelf, releases: Sequence[str], checkout: Path | None) -> int:
        asked.append((releases, checkout))
        return 0

    monkeypatch.setattr(fetching_sglang, "fetch", heard)
    statuses = [fetching_sglang.main(words) for words in ([], ["--sources", str(tmp_path), "0.5.14", "0.5.17"])]

    assert statuses == [0, 0]
    assert asked == [([DEFAULT], None), (["0.5.14", "0.5.17"], tmp_path)]


# --- running ----------------------------------------------------------------------------------------------------------------


def command_for(tmp_path: Path, *arguments: str, around: Mapping[str, str] | None = None, own: bool = True) -> Command:
    """What would be run, with a shelf on which one release is whole and, if *own*, SGLang's own tests are."""
    shelf = shelf_with(tmp_path, "")
    make_release_by_hand(shelf)
    if own:
        (shelf.sources / "python").mkdir(parents=True)
        pins = 'dependencies = [\n  "torch==1.2.3",\n  "transformers==1.2.3",\n]\n'
        (shelf.sources / "python" / "pyproject.toml").write_text(pins, encoding="utf-8")
    return chosen_command(arguments, shelf, around or {})


def make_release_by_hand(shelf: Shelf) -> None:
    """A release that wants nothing."""
    metadata = shelf.source(RELEASE) / f"sglang-{RELEASE}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: sglang\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("wanted", "ends"),
    [
        ((), [str(HERE)]),
        (("-k", "name"), ["-k", "name", str(HERE)]),
        (("-x", "tests/sglang/test_tools.py::test_a"), ["-x", "tests/sglang/test_tools.py::test_a"]),
    ],
)
def test_our_tests_are_all_run_unless_some_are_named(tmp_path: Path, wanted: Sequence[str], ends: list[str]) -> None:
    """Options alone name no test; only warnings of SGLang's kind are passed over."""
    command = command_for(tmp_path, RELEASE, *wanted)

    assert command.folder == PROJECT
    assert command.words[1:3] == ["-m", "pytest"]
    assert command.words[-len(ends) :] == ends
    assert command.words.count(str(HERE)) == ends.count(str(HERE))
    assert [word for word in command.words if word.startswith("ignore")] == list(NOT_OURS)


def test_release_runs_without_a_gpu_a_network_and_what_the_caller_has_set(tmp_path: Path) -> None:
    """The release comes first on the path, then the stand-ins; the rest of the caller's surroundings is kept."""
    around = {
        "PYTHONPATH": "elsewhere",
        "VIRTUAL_ENV": "mine",
        "HOME": "home",
        "CUDA_VISIBLE_DEVICES": "0",
        "PYTHONHASHSEED": "7",
    }
    command = command_for(tmp_path, "--python", RELEASE, "-m", "a.program", "-n", "2", around=around)
    root = tmp_path / "shelf"

    assert command.words == [str(Shelf(root).python), "-m", "a.program", "-n", "2"]
    assert command.folder == PROJECT
    assert command.environ == {
        "PYTHONPATH": f"{root / 'src' / RELEASE}:{PLUGINS}:{':'.join(ON_PATH)}",
        "HOME": "home",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(root / "cache" / "huggingface"),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "7",
    }
    assert command_for(tmp_path / "other", RELEASE).environ["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize(
    ("wanted", "ends"),
    [
        ((), [f"test_{name}.py" for name in RUNNING]),
        (("-n", "2"), [*(f"test_{name}.py" for name in RUNNING), "-n", "2"]),
        (("test_a.py", "-x"), ["test_a.py", "-x"]),
    ],
)
def test_their_tests_run_with_the_code_beside_them(tmp_path: Path, wanted: Sequence[str], ends: list[str]) -> None:
    """Those that can, unless some are named; with the checkout's code and transformers, not with the release's."""
    command = command_for(tmp_path, "--theirs", RELEASE, *wanted, around={"CUDA_VISIBLE_DEVICES": "0"})
    shelf = Shelf(tmp_path / "shelf")

    assert command.folder == shelf.sources / THEIRS
    tests = [word for word in command.words if word.startswith("test_")]
    assert (command.words[-len(ends) :], tests) == (ends, [word for word in ends if word.startswith("test_")])
    assert [word for word in command.words if word.startswith("--deselect=")] == [f"--deselect={each}" for each in UNABLE]
    paths = command.environ["PYTHONPATH"].split(":")
    assert paths == [str(shelf.sources / "python"), str(shelf.transformers("1.2.3")), str(PLUGINS), *ON_PATH]
    assert "CUDA_VISIBLE_DEVICES" not in command.environ


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("0.5.99", "tests/a"), "SGLang 0.5.99 is not here (python -m tests.sglang.fetch 0.5.99)"),
        (("latest", "tests/a"), f"'latest' is not a version of SGLang (such as {DEFAULT})"),
        (("../9.9.9",), f"'../9.9.9' is not a version of SGLang (such as {DEFAULT})"),
        (
            ("--theirs", RELEASE),
            "SGLang's own tests are not here (python -m tests.sglang.fetch --sources CHECKOUT)",
        ),
    ],
)
def test_run_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], told: str
) -> None:
    """Exit status 2, one line, and the remedy in it."""
    with pytest.raises(SystemExit) as exit_:
        command_for(tmp_path, *arguments, own=False)

    assert exit_.value.code == 2
    assert capsys.readouterr().err == f"tests.sglang.run: error: {told}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "the following arguments are required: VERSION, TEST"),
        (("--python", "--theirs", RELEASE), "argument --theirs: not allowed with argument --python"),
    ],
)
def test_run_that_is_not_understood_shows_its_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: Sequence[str], told: str
) -> None:
    """Exit status 2."""
    with pytest.raises(SystemExit) as exit_:
        command_for(tmp_path, *arguments)
    said = capsys.readouterr().err

    assert exit_.value.code == 2
    assert said.startswith("usage: python -m tests.sglang.run")
    assert told in said


@pytest.mark.parametrize("lacking", ["stamp", "stamp_of_blocklife"])
def test_run_without_a_whole_environment_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lacking: str
) -> None:
    """A release alone is not enough, and an environment without blocklife is none."""
    shelf = shelf_with(tmp_path, "")
    make_release_by_hand(shelf)
    getattr(shelf, lacking).unlink()
    with pytest.raises(SystemExit) as exit_:
        chosen_command([RELEASE], shelf, {})

    remedy = f"(python -m tests.sglang.fetch {RELEASE})"
    assert exit_.value.code == 2
    assert capsys.readouterr().err == f"tests.sglang.run: error: the environment is not here, or out of date {remedy}\n"


def test_run_becomes_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exit status and its signals are that of pytest."""
    became: list[Command] = []
    command = Command(["a"], PROJECT, {})
    monkeypatch.setattr("tests.sglang.run.chosen_command", lambda arguments, shelf, around: command)
    monkeypatch.setattr(Command, "become", lambda self: became.append(self))
    main([RELEASE])

    assert became == [command]


# --- where SGLang is not ----------------------------------------------------------------------------------------------------


def test_tests_that_need_no_sglang_are_files() -> None:
    """The list of the conftest names no test that is gone."""
    assert {name for name in NEED_NO_SGLANG if not (HERE / name).is_file()} == set()


def test_tests_that_need_sglang_are_skipped_with_a_reason_where_it_is_not() -> None:
    """They are not passed over in silence, and not imported."""
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("SGLang is here, so they run")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "test_rig.py")]
    ran = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=HANGS_S, check=False)

    assert "SGLang is not here (make sglang test-sglang)" in ran.stdout
    assert "1 skipped" in ran.stdout
