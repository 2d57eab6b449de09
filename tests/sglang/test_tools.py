"""What only the tools of SGLang do: the CPU build of torch, transformers, the core in Rust, a checkout's own tests.

Method: that of `tests.behind.tools`; checkouts are small repositories. What engines share is in `tests/behind/test_tools.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.behind import fetching
from tests.behind.fetching import FetchError
from tests.behind.shelf import ON_PATH, PROJECT, Command
from tests.behind.tools import RELEASE, Tools, bringing, calls, play, shelf_with, wheel
from tests.sglang import fetch as fetching_sglang
from tests.sglang.fetch import ASKED, BESIDE, RUST, fetch, make_environment, make_release, make_sources
from tests.sglang.releases import CHECKSUMS, DEFAULT, REQUIREMENTS, Shelf, transformers_of
from tests.sglang.run import PLUGINS, RUNNING, THEIRS, UNABLE, chosen_command

TOOLS = Tools("sglang")

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


# --- what is pinned ---------------------------------------------------------------------------------------------------------


def test_transformers_go_beside_the_environment_only_where_it_has_others() -> None:
    """A release that wants the environment's, or says nothing of it, gets none of its own."""
    assert OWN is not None
    told = {text: transformers_of(text) for text in ("Requires-Dist: transformers==1.2.3\n", "Name: sglang\n")}

    assert told == {"Requires-Dist: transformers==1.2.3\n": "1.2.3", "Name: sglang\n": None}
    assert transformers_of(f"Name: sglang\nRequires-Dist: transformers=={OWN[1]}\nRequires-Dist: torch==1\n") is None


# --- the environment --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("python", [(3, 11), (3, 12)])
def test_checksum_goes_to_pip_where_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], python: tuple[int, int]
) -> None:
    """It is that of the wheel for Python 3.11; that another wheel goes unchecked is said."""
    monkeypatch.setitem(CHECKSUMS, RELEASE, "5" * 64)
    monkeypatch.setattr(sys, "version_info", (*python, 0, "final", 0))
    brought = wheel(tmp_path / "sglang.wheel", {})
    make_release(shelf_with(Shelf, tmp_path, bringing(brought)), RELEASE)
    known = python == (3, 11)

    assert Path(f"{brought}.wanted").read_text() == f"sglang=={RELEASE}" + f" --hash=sha256:{'5' * 64}" * known + "\n"
    assert ("its checksum is not known here" in capsys.readouterr().err) is not known


def test_release_gets_its_own_transformers_once_and_they_go_ahead(tmp_path: Path) -> None:
    """In a folder of their own, which gets its name when they are whole; what they want comes along."""
    brought = wheel(tmp_path / "sglang.wheel", {"sglang/__init__.py": ""}, transformers="1.2.3")
    shelf = shelf_with(Shelf, tmp_path, bringing(brought))
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
    brought = wheel(tmp_path / "sglang.wheel", {"sglang/__init__.py": ""}, transformers="1.2.3")
    shelf = shelf_with(Shelf, tmp_path, bringing(brought).replace("install)", "install) echo ERROR: none; exit 1 ;; never)"))
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
    brought = wheel(tmp_path / "sglang.wheel", {**CORE, ADAPTER: adapter, REGISTRY: registry})
    shelf = shelf_with(Shelf, tmp_path, bringing(brought))
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
    brought = wheel(tmp_path / "sglang.wheel", {"sglang/__init__.py": "", f"{RUST}/README": ""})
    make_release(shelf_with(Shelf, tmp_path, bringing(brought) + '\ntest "$1" != -c'), RELEASE)

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
    shelf = shelf_with(Shelf, tmp_path, "")
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
    shelf, checkout = shelf_with(Shelf, tmp_path, ""), tmp_path / "checkout"
    if files:
        committed(checkout, files)
    with pytest.raises(FetchError, match=re.escape(str(checkout)) + told):
        make_sources(shelf, checkout)
    after_refusal = shelf.sources.exists()
    make_sources(shelf, committed(tmp_path / "right", {"python/a.py": "", "test/b.py": ""}))

    assert not after_refusal
    assert (shelf.sources / "test" / "b.py").is_file()


# --- the whole program ------------------------------------------------------------------------------------------------------


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
    shelf = TOOLS.shelf(tmp_path, whole=True)
    assert isinstance(shelf, Shelf)
    if own:
        (shelf.sources / "python").mkdir(parents=True)
        pins = 'dependencies = [\n  "torch==1.2.3",\n  "transformers==1.2.3",\n]\n'
        (shelf.sources / "python" / "pyproject.toml").write_text(pins, encoding="utf-8")
    return TOOLS.command(shelf, *arguments, around=around)


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
