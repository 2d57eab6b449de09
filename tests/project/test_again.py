"""What fails by accident is told of and refuses nothing; what is broken is refused; and who ends a run ends all of it.

Method: the real program runs small test files, each in a folder of its own. A test that fails the first time only keeps a file
as its memory.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import again
from tests.again import LISTED, MOST, TOLD, Ran, read_listed, tell
from tests.behind.shelf import PROJECT
from tests.programs import HANGS_S

FLAKY = """
from pathlib import Path

def test_flaky():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time only")
"""
BROKEN = "def test_broken():\n    assert False\n"
MANY = "".join(f"def test_{number}():\n    assert False\n" for number in range(MOST + 1))
GOOD = "def test_good():\n    pass\n"
CRASHES = "import os\n\ndef test_crashes():\n    os._exit(3)\n"
HANGS = """
import os, threading

def test_hangs():
    os.write(os.open("alive", os.O_WRONLY), b"!")  # it stays open until this process is gone
    rank = threading.Thread(target=threading.Event().wait)
    rank.start()
    rank.join()
"""
"""A thread that never ends keeps its process from ending, whatever is raised in it."""
IMPATIENT = "from xdist.workermanage import NodeManager\nNodeManager.EXIT_TIMEOUT = 0.1\n"
"""Who is interrupted need not wait ten seconds for workers that do not listen."""


def environ(**more: str) -> dict[str, str]:
    """As if nothing ran around."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "BLOCKLIFE_"))}
    return {**kept, "PYTHONPATH": str(PROJECT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **more}


def command(folder: Path, *options: str) -> list[str]:
    """The whole program, over the tests in a folder."""
    words = ["-m", "pytest", "-q", "-p", "xdist", "-p", "no:cacheprovider", f"--rootdir={folder}", str(folder), *options]
    return [sys.executable, "-m", "tests.again", sys.executable, *words]


def ran(folder: Path, files: Mapping[str, str], *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run these test files."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
    return subprocess.run(
        command(folder, *options), cwd=folder, env=environ(**more), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["in one process", "in two"])
def test_flaky_test_passes_and_is_told_at_the_end(tmp_path: Path, options: Sequence[str]) -> None:
    """With what to do; the others are not run again."""
    told = tmp_path / "told"
    done = ran(tmp_path, {"a": FLAKY, "b": GOOD}, *options, **{TOLD: str(told)})
    line = f"flaky: test_a.py::test_flaky failed, and passed alone (NOT LISTED: {again.REMEDY})"

    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, line)
    assert told.read_text(encoding="utf-8") == line + "\n"
    assert "1 passed in" in done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["in one process", "in two"])
def test_broken_test_fails_twice(tmp_path: Path, options: Sequence[str]) -> None:
    """A flaky one beside it is told of all the same."""
    done = ran(tmp_path, {"a": FLAKY, "b": BROKEN, "c": GOOD}, *options)

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("flaky: test_a.py::test_flaky failed, and passed alone")
    assert done.stdout.count("FAILED test_b.py::test_broken") == 2


def test_run_without_a_failure_is_left_alone(tmp_path: Path) -> None:
    done = ran(tmp_path, {"a": GOOD})

    assert (done.returncode, done.stdout.count("1 passed")) == (0, 1)
    assert "again" not in done.stdout


@pytest.mark.parametrize(
    ("files", "options", "status", "told"),
    [
        ({"a": FLAKY, "b": "import nothing_of_that_name"}, (), 2, ""),
        (
            {"a": FLAKY, "b": "import nothing_of_that_name"},
            ("--continue-on-collection-errors",),
            1,
            "test_b.py cannot be collected",
        ),
        ({"a": FLAKY, "b": GOOD}, ("-x",), 1, "the run was cut short"),
        ({"a": CRASHES}, ("-n", "1"), 1, "test_a.py::test_crashes has crashed"),
        ({"a": "def test_ends():\n    raise KeyboardInterrupt\n"}, (), 2, ""),
        ({"a": GOOD}, ("-k", "nothing"), 5, ""),
        ({"a": GOOD}, ("--no-such-option",), 4, ""),
        ({"a": CRASHES}, (), 3, ""),
        ({"a": MANY}, (), 1, f"{MOST + 1} tests have failed"),
    ],
    ids=["not collected", "and went on", "cut short", "crashed", "interrupted", "none", "usage", "killed", "too many"],
)
def test_only_what_failed_by_itself_is_run_again(
    tmp_path: Path, files: Mapping[str, str], options: Sequence[str], status: int, told: str
) -> None:
    """The status is pytest's own, and a line says why, where it could be thought that tests alone have failed."""
    done = ran(tmp_path, files, *options)

    assert done.returncode == status, done.stdout + done.stderr
    assert "again, alone" not in done.stdout
    assert [line for line in done.stdout.splitlines() if "run again" in line] == [f"nothing is run again: {told}"] * bool(told)


def test_test_that_is_not_run_the_second_time_is_not_flaky(tmp_path: Path) -> None:
    """Not failing is not passing."""
    skips = FLAKY.replace("    if not", "    import pytest\n    if seen.exists():\n        pytest.skip()\n    if not")
    done = ran(tmp_path, {"a": skips})

    assert done.returncode == 1
    assert "flaky" not in done.stdout.splitlines()[-1]


# --- the list ---------------------------------------------------------------------------------------------------------------


def test_list_of_flaky_tests_is_in_order() -> None:
    """At most so many, each with its cause, and each in a file that there is."""
    assert [each for each in read_listed() if not (PROJECT / each.partition("::")[0]).is_file()] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("".join(f'"a.py::test_{n}" = "why"\n' for n in range(MOST + 1)), rf"{MOST + 1} tests are listed, of at most {MOST}"),
        ('"a.py::test_a" = ""\n', r'a\.py::test_a is no test with its cause \("FILE::TEST" = "CAUSE"\)'),
        ('"a.py" = "why"\n', r"a\.py is no test"),
        ("a.py::test_a\n", r"line 1"),
    ],
)
def test_list_that_is_not_in_order_refuses_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    """Before anything is run."""
    file = tmp_path / LISTED.name
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        read_listed(file)
    monkeypatch.setattr(again, "read_listed", lambda: read_listed(file))
    monkeypatch.setattr(again, "run", lambda *_: pytest.fail("something is run"))
    with pytest.raises(SystemExit) as exit_:
        again.main(["true"], {})

    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("tests.again: error: ")


def test_listed_test_is_told_of_with_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    tell(["a.py::test_a"], {"a.py::test_a": "the network"}, {})

    assert capsys.readouterr().out == "flaky: a.py::test_a failed, and passed alone (listed: the network)\n"


def test_run_that_was_killed_is_not_run_again() -> None:
    assert Ran(1).reason == "the run was killed"
    assert Ran(1, failed=["a"], beside=[]).reason == ""


# --- the end ----------------------------------------------------------------------------------------------------------------


def read(pipe: int) -> bytes:
    """What comes next from a pipe; nothing once nobody holds it open."""
    ready, _, _ = select.select([pipe], [], [], HANGS_S)
    assert ready, "it hangs"
    return os.read(pipe, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="it is Linux that tells a process of the end of its parent")
@pytest.mark.parametrize(
    ("number", "whom"),
    [
        (signal.SIGINT, "it"),
        (signal.SIGTERM, "it"),
        (signal.SIGKILL, "it"),
        (signal.SIGTERM, "the shell that has started it"),
        (signal.SIGKILL, "the shell that has started it"),
    ],
)
def test_end_of_a_run_is_the_end_of_its_workers(tmp_path: Path, number: signal.Signals, whom: str) -> None:
    """Although they hang in threads: the run itself is ended, or the shell whose command it is, as when make is."""
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(HANGS, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(IMPATIENT, encoding="utf-8")
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    held = os.open(tmp_path / "alive", os.O_WRONLY)
    words = command(tmp_path, "-n", "2", "--dist", "loadfile")
    if whom != "it":
        words = ["sh", "-c", '"$@"; exit $?', "sh", *words]
    with subprocess.Popen(words, cwd=tmp_path, env=environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        both = read(alive) + read(alive)
        os.close(held)
        process.send_signal(number)
        process.communicate()  # nobody holds its output open any more

    assert (both, read(alive)) == (b"!!", b"")
    os.close(alive)
