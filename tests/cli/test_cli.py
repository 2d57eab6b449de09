"""The command line says what it does, what is wrong, and nothing else: one line, the right status, never a traceback.

Method: most commands run in this process. What needs a process of its own gets one: pipes, signals, a terminal, a full disk.
Nothing sleeps; a run is known to live when its record file grows.
"""

from __future__ import annotations

import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import attrs
import pytest

from blocklife import __version__
from blocklife.cli import main
from blocklife.cli._built import examine
from blocklife.engines.toy import ReplayReport
from tests.interrupts import interruptible
from tests.programs import HANGS_S

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "blocklife"]
LINE = '{"timestamp":0,"input_length":600,"output_length":3,"hash_ids":[1,2]}\n'
SIZES = (
    "gpu-blocks", "host-slots", "block-bytes", "block-tokens", "blocks-per-chunk", "workers", "step-tokens", "max-running",
    "link-blocks", "max-jobs", "deadline",
)  # fmt: skip
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
"""A process that lives longer hangs."""

Capture = pytest.CaptureFixture[str]


def call(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    """Run a command here; its status, its output and its errors. No thread may outlive it."""
    try:
        status = main(argv)
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 1
    found = capsys.readouterr()

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("blocklife")]
    return status, found.out, found.err


def refused(capsys: Capture, *argv: str) -> str:
    """Run a command that must be refused; its one line."""
    status, out, err = call(capsys, *argv)

    assert status == 2, (status, err)
    assert out == ""
    assert err.startswith("blocklife: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    return err.strip()


def spawn(*argv: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    given: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": HANGS_S, "check": False}
    return subprocess.run([*COMMAND, *argv], **{**given, **changes})


def shell(script: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which BLOCKLIFE is the command; the status is that of the first command of the last pipe."""
    line = script.replace("BLOCKLIFE", " ".join(COMMAND)) + "; exit ${PIPESTATUS[0]}"
    return subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False)


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "workload.jsonl"
    path.write_text(LINE * 3)
    return path


# --- help and version ---------------------------------------------------------------------------------------------------


def test_cli_version_is_the_package_s(capsys: Capture) -> None:
    assert call(capsys, "--version") == (0, f"blocklife {__version__} (core {examine()})\n", "")


def test_cli_without_arguments_prints_help(capsys: Capture) -> None:
    """A command is missing: the help says which there are, and a script does not go on."""
    status, out, err = call(capsys)

    assert (status, out) == (2, "")
    assert err == call(capsys, "--help")[1]
    assert all(
        command in err for command in ("replay", "check", "scenario", "recording", "workload", "draw", "spec", "size", "doctor")
    )


COMMANDS = [
    ("replay",),
    ("check",),
    ("scenario", "run"),
    ("recording", "check"),
    ("recording", "show"),
    ("recording", "view"),
    ("recording", "stats"),
    ("recording", "perfetto"),
    ("draw",),
    ("workload", "generate"),
    ("size",),
    ("spec",),
    ("completion",),
    ("doctor",),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_cli_help_has_examples_that_parse(command: tuple[str, ...], capsys: Capture) -> None:
    """Each help ends in examples, and each example names options that exist."""
    status, out, err = call(capsys, *command, "--help")
    examples = [line for line in out.partition("examples:")[2].splitlines() if line.strip()]

    assert (status, err) == (0, "")
    assert len(examples) >= 2
    for line in examples:
        words = [word for word in line.split() if word.startswith("--")]
        assert all(word in out.partition("examples:")[0] for word in words), line


def test_cli_help_speaks_of_workloads(capsys: Capture) -> None:
    """The glossary has one word for what is replayed."""
    _, out, _ = call(capsys, "replay", "--help")

    assert "[WORKLOAD]" in out
    assert "replay workload.jsonl" in out
    assert "trace" not in out.lower()


def test_cli_help_of_a_group_names_its_commands(capsys: Capture) -> None:
    status, out, err = call(capsys, "workload")

    assert (status, out) == (2, "")
    assert "generate" in err


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["fly"], "unknown command 'fly' (choose from replay, check, "),
        (["replay", "--wings", "2"], "unrecognized arguments: --wings (see blocklife replay --help)"),
        (["scenario", "run", "--wings", "A01"], "unrecognized arguments: --wings (see blocklife scenario run --help)"),
        (["--wings", "scenario", "list"], "unrecognized arguments: --wings (see blocklife --help)"),
        (["workload", "eat"], "unknown command 'eat' (choose from generate)"),
        (["spec"], "--check --write is required"),
        (["spec", "--check", "--write"], "not allowed with argument"),
        (["replay", "pyproject.toml", "b"], "unrecognized arguments: b"),
        (["replay", "--contract", "maybe"], "invalid choice: 'maybe'"),
        (["replay", "--checking", "some"], "invalid choice: 'some'"),
        (["replay", "--record"], "expected one argument"),
        (["replay", "--record", ""], "--record: '' is not the name of a file"),
        (["replay", ""], "WORKLOAD: '' is not the name of a file"),
        (["workload", "generate", "--output", ""], "--output: '' is not the name of a file"),
        (["replay", "--block-tokens", "100"], "--block-tokens must divide 512"),
        (["replay", "--groups", "full:16", "--block-tokens", "128"], "--block-tokens 128 and --groups full:16 both name"),
        (["replay", "--groups", "half:16"], "--groups: 'half:16' is not a valid group; expected full:BLOCK"),
        (["replay", "--mode", "idle"], "invalid choice: 'idle'"),
        (["replay", "--policy", "nonesuch"], "replacement 'nonesuch': unknown (known are "),
        (["replay", "--async=2"], "ignored explicit argument '2'"),
        (["replay", "--faults", "fail=2"], "fault rate fail: 2.0 is not a share"),
        (["replay", "--requests", "0"], "--requests must be at least 1"),
        (["replay", "--requests", "1.5"], "'1.5' is not a whole number"),
        (["replay", "--requests", "9" * 20], "requests must be a whole number from 1 to 1000000"),
        (["replay", "--faults", ""], "fault rate '': unknown (write fail=0.01,late=0.01,"),
        (["replay", "--record", "-", "--json"], "--json and --record - both take standard output (record to a file)"),
        (["replay", "--seed", "dice"], "'dice' is not a whole number"),
        (["replay", "--speed", "fast"], "'fast' is not a number"),
        (["workload", "generate", "--requests", "0"], "requests must be a whole number from 1"),
        (["workload", "generate", "--seed", "-1"], "seed must be a whole number from 0"),
        (["spec", "--check", "--root", "no/such/folder"], "no/such/folder: no such folder"),
    ],
    ids=lambda each: " ".join(each)[:40] if isinstance(each, list) else "",
)
def test_cli_refuses_in_one_line(argv: list[str], message: str, capsys: Capture) -> None:
    """Bad input ends with status 2 and one line on standard error that names what is wrong."""
    assert message in refused(capsys, *argv)


@pytest.mark.parametrize("option", SIZES)
@pytest.mark.parametrize("value", ["0", "-1", "9" * 30, "many", "1.0", ""])
def test_cli_refuses_a_size_that_is_none(option: str, value: str, capsys: Capture) -> None:
    """Zero, negative and huge numbers, and what is no number, are refused with the option's own name."""
    assert f"--{option}" in refused(capsys, "replay", f"--{option}={value}")


@pytest.mark.parametrize(
    ("content", "message"),
    [("", ": holds no request"), (LINE + LINE[:30], ":2: the file ends in the middle of a line")],
    ids=["empty", "cut"],
)
def test_cli_names_file_and_line_of_a_bad_workload(
    content: str, message: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same from a file and from standard input."""
    path = tmp_path / "bad.jsonl"
    path.write_text(content)

    assert f"{path}{message}" in refused(capsys, "replay", str(path))
    monkeypatch.setattr("sys.stdin", io.StringIO(content))
    assert f"<stdin>{message}" in refused(capsys, "replay", "-")


@pytest.mark.parametrize("linked", [False, True], ids=["itself", "a link to it"])
@pytest.mark.parametrize(
    "command",
    [
        "replay FILE --record OUT",
        "recording view FILE -o OUT",
        "recording show FILE --block 1 -o OUT",
        "recording perfetto FILE -o OUT",
        "draw block --recording FILE -o OUT",
        "draw block --coverage FILE -o OUT",
        "draw block --mutants FILE -o OUT",
        "check FILE --write .",
    ],
)
def test_cli_writes_over_nothing_that_it_reads(
    command: str, linked: bool, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip of the hand costs nobody a file, whatever it is called there."""
    read, link, content = tmp_path / "story.txt", tmp_path / "link.txt", "" if command.startswith("check") else LINE
    read.write_text(content)
    link.symlink_to(read)
    monkeypatch.chdir(tmp_path)
    argv = [{"FILE": str(read), "OUT": str(link if linked else read)}.get(word, word) for word in command.split()]

    assert "it is also read, and would be overwritten (write to another file)" in refused(capsys, *argv)
    assert link.is_symlink()
    assert read.read_text() == content


def test_cli_writes_not_over_its_standard_input(workload: Path) -> None:
    ran = shell(f"BLOCKLIFE replay - --record {workload} < {workload}")

    assert (ran.returncode, ran.stdout) == (2, "")
    assert "it is also read" in ran.stderr
    assert workload.read_text() == LINE * 3


@pytest.mark.parametrize(
    "wrong",
    [
        ("--below", "no.such.module:factory"),
        ("--below", "fs:DIR:nothing"),
        ("--gpu-blocks", str(1 << 31)),
        ("--gpu-blocks", "2"),
    ],
)
def test_replay_that_is_refused_leaves_an_earlier_recording(wrong: tuple[str, str], tmp_path: Path, capsys: Capture) -> None:
    """A slip in another option costs nobody a recording, and makes no file where there was none."""
    recording = tmp_path / "run.jsonl"

    refused(capsys, "replay", "--requests", "1", "--record", str(recording), *wrong)
    assert not recording.exists()
    recording.write_text(LINE)
    refused(capsys, "replay", "--requests", "1", "--record", str(recording), *wrong)
    assert recording.read_text() == LINE


def test_workload_that_cannot_be_written_leaves_an_earlier_one(
    workload: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there whole, old or new; a link stays one."""

    def fails(_old: object, _new: object) -> None:
        raise OSError(28, "No space left on device")

    link = workload.with_name("link")
    link.symlink_to(workload)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fails)
        assert f"{link}: No space left" in refused(capsys, "workload", "generate", "--output", str(link))
    assert workload.read_text() == LINE * 3
    assert sorted(each.name for each in workload.parent.iterdir()) == ["link", "workload.jsonl"]

    assert call(capsys, "workload", "generate", "--requests", "2", "--output", str(link))[0] == 0
    assert link.is_symlink()
    assert workload.read_text().count("\n") == 2


WRITERS = [
    "replay --requests 1 --record OUT",
    "workload generate --output OUT",
    "recording view RECORDING -o OUT",
    "recording show RECORDING --block 1 -o OUT",
    "recording perfetto RECORDING -o OUT",
    "draw block -o OUT",
]
"""Every command that writes a file of a given name."""
NOWHERE = {
    "a loop of links": ("loop.svg", "Too many levels of symbolic links"),
    "a link into a loop": ("into.svg", "Too many levels of symbolic links"),
    "a loop as a folder": ("loop.svg/x.svg", "Too many levels of symbolic links"),
    "a long name": ("x" * 300 + ".svg", "File name too long"),
    "no folder": ("nowhere/x.svg", "No such file or directory"),
    "a file as a folder": ("file/x.svg", "Not a directory"),
    "no name of a file": ("x\0.svg", "is not the name of a file"),
}


@pytest.mark.parametrize("where", NOWHERE)
@pytest.mark.parametrize("command", WRITERS)
def test_cli_says_why_a_file_cannot_be_written(command: str, where: str, tmp_path: Path, capsys: Capture) -> None:
    """One line with its name and the reason, whatever the command; links stay as they are."""
    recording, loop, into = tmp_path / "run.jsonl", tmp_path / "loop.svg", tmp_path / "into.svg"
    assert call(capsys, "replay", "--requests", "1", "--record", str(recording))[0] == 0
    (tmp_path / "other.svg").symlink_to(loop)
    loop.symlink_to(tmp_path / "other.svg")
    into.symlink_to(loop)
    (tmp_path / "file").touch()
    name, why = NOWHERE[where]
    before = sorted(tmp_path.iterdir())
    words = {"OUT": str(tmp_path / name), "RECORDING": str(recording)}
    said = refused(capsys, *(words.get(word, word) for word in command.split()))

    assert why in said
    assert repr(str(tmp_path / name))[1:-1] in said
    assert sorted(tmp_path.iterdir()) == before
    assert loop.is_symlink()
    assert into.is_symlink()


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("", "/story.txt: Too many levels of symbolic links"),
        ("a", "/a: File exists"),
        ("a/b", "/a/b: Too many levels of symbolic links"),
        ("x" * 300, "x: File name too long"),
    ],
)
def test_check_says_before_its_search_that_a_counterexample_cannot_be_written(
    folder: str, why: str, tmp_path: Path, capsys: Capture
) -> None:
    """Whether its folder is a loop of links, or one of the files in it."""
    for name, target in (("story.txt", "a"), ("a", "story.txt")):
        (tmp_path / name).symlink_to(target)
    said = refused(capsys, "check", "--blocks", "2", "--slots", "1", "--requests", "ab.c", "--write", str(tmp_path / folder))

    assert why in said


@FULL
@pytest.mark.parametrize("requests", [1, 30])
def test_cli_says_that_the_disk_is_full(requests: int, capsys: Capture) -> None:
    """Whether the record fails while it is written or at its end, one line says so, and no thread is left."""
    assert "/dev/full: No space left" in refused(capsys, "replay", "--requests", str(requests), "--record", "/dev/full")
    assert "/dev/full: No space left" in refused(capsys, "workload", "generate", "--output", "/dev/full")


@FULL
@pytest.mark.parametrize(
    "command",
    ["replay --requests 1", "replay --requests 1 --json", "replay --requests 30 --record -", "workload generate"],
)
@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
def test_cli_says_that_standard_output_is_full(command: str, buffered: bool) -> None:
    """In one line, whether Python keeps what it prints for a while or not; a recorder that had begun says so in its own."""
    ran = shell(f"PYTHONUNBUFFERED={'' if buffered else 1} BLOCKLIFE {command} > /dev/full")
    *logged, last = ran.stderr.splitlines()

    assert (ran.returncode, last) == (2, "blocklife: standard output: No space left on device")
    assert len(logged) == ("--record" in command and buffered)


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (OSError(13, "Permission denied", "/data/file"), "/data/file: Permission denied"),
        (OSError(13, "Permission denied", b"/data/file"), "/data/file: Permission denied"),
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
        (OSError("odd"), "odd"),
    ],
)
def test_cli_blames_standard_output_for_its_own_errors_only(
    problem: OSError, says: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error names its file; one that names none is told as it is. What was printed before is not thrown away."""

    def fails(*_given: object, **_options: object) -> None:
        print("before")
        raise problem

    monkeypatch.setattr("blocklife.engines.toy._workload.generate_workload", fails)
    assert call(capsys, "workload", "generate") == (2, "before\n", f"blocklife: {says}\n")


# --- what comes out -----------------------------------------------------------------------------------------------------


def test_cli_replays_a_file(workload: Path, capsys: Capture) -> None:
    """The tables name every section, in plain text."""
    status, out, err = call(capsys, "replay", str(workload))

    assert (status, err) == (0, "")
    assert "clean: nothing corrupt, nothing leaked, no violation" in out
    assert "\x1b" not in out
    for name in ("copier", "requests", "tokens", "copies", "proof", "scheduler us per step", "refused stores", "jobs DONE"):
        assert name in out


def test_cli_json_has_every_field(workload: Path, capsys: Capture) -> None:
    """One object on one line, with all fields of the report."""
    status, out, err = call(capsys, "replay", str(workload), "--json", "--requests", "2", "--faults", "fail=0.5", "--seed", "1")
    report = json.loads(out)

    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    assert set(report) == {field.name for field in attrs.fields(ReplayReport)}
    assert report["requests"] == 2
    assert set(report["transitions"]) == {"block", "slot", "job", "request"}
    assert set(report["jobs"]) == {"DONE", "FAILED", "CANCELLED"}


def test_cli_replays_a_hybrid_model(workload: Path, capsys: Capture) -> None:
    """All options of groups and offload together; figures by group and by cause are in both outputs."""
    argv = (
        "replay", str(workload), "--groups", "full:32,swa:64:100,mamba:128", "--blocks-per-chunk", "2", "--mode", "lazy",
        "--async", "--policy", "arc", "--workers", "2", "--link-blocks", "1", "--gpu-blocks", "50",
    )  # fmt: skip
    status, out, err = call(capsys, *argv)
    _, found, _ = call(capsys, *argv, "--json")
    report = json.loads(found)

    assert (status, err) == (0, "")
    assert (report["groups"], report["blocks_per_chunk"]) == ("full:32,swa:64:100,mamba:128", 2)
    assert len(report["blocks_hit_gpu"]) == len(report["blocks_hit_host"]) == 3
    assert report["flushes"] == sum(report["flushes_by_cause"].values()) > 0
    for name in (
        "full:32 gpu", "swa:64:100 host", "mamba:128 gpu", "flushes, ", "already in flight", "partial chunks",
        "stale entries", "deferred lookups",
    ):  # fmt: skip
        assert name in out


def test_cli_skips_a_request_that_does_not_fit(workload: Path, capsys: Capture) -> None:
    """Requests longer than the memory are counted; that is no error, as long as another one fits."""
    with workload.open("a") as file:
        file.write('{"timestamp":0,"input_length":9,"output_length":3,"hash_ids":[1]}\n')
    status, out, _ = call(capsys, "replay", str(workload), "--gpu-blocks", "2", "--json")

    assert status == 0
    assert json.loads(out)["skipped_requests"] == 3


@pytest.mark.parametrize("more", [[], ["--json"], ["--record", "-"], ["--async", "--groups", "full:64,swa:64:128"]])
def test_replay_in_which_nothing_can_run_is_bad_input(more: list[str], workload: Path, capsys: Capture) -> None:
    """No request fits: one line says what the shortest needs, and there is no report that all is well."""
    said = refused(capsys, "replay", str(workload), "--gpu-blocks", "4", *more)
    needed = int(said.partition("needs at least ")[2].partition(" ")[0])

    assert said.startswith("blocklife: nothing to run: none of 3 requests fits into the device: ")
    assert said.endswith(f"and it has 3 (--gpu-blocks {needed + 1} or more, or shorter requests)")
    refused(capsys, "replay", str(workload), "--gpu-blocks", str(needed), *more)
    assert call(capsys, "replay", str(workload), "--gpu-blocks", str(needed + 1), *more)[0] == 0


def test_cli_reads_standard_input(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash is standard input; a last line without its end is a line."""
    monkeypatch.setattr("sys.stdin", io.StringIO(LINE * 2 + LINE.rstrip()))
    status, out, _ = call(capsys, "replay", "-", "--json")

    assert status == 0
    assert json.loads(out)["requests"] == 3


def test_cli_generates_what_it_replays(tmp_path: Path, capsys: Capture) -> None:
    """The same seed gives the same bytes, to a file and to standard output."""
    path = tmp_path / "workload.jsonl"
    _, out, _ = call(capsys, "workload", "generate", "--requests", "5", "--seed", "3")
    status, silent, _ = call(capsys, "workload", "generate", "--requests", "5", "--seed", "3", "--output", str(path))

    assert (status, silent) == (0, "")
    assert path.read_text() == out
    assert out.count("\n") == 5


def test_cli_pipes_into_itself() -> None:
    ran = shell("set -o pipefail; BLOCKLIFE workload generate --requests 5 | BLOCKLIFE replay - --json")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["requests"] == 5


@pytest.mark.parametrize(
    "pipe",
    [
        "BLOCKLIFE workload generate --requests 3000 | head -1",
        "BLOCKLIFE replay --requests 1 | true",
        "BLOCKLIFE replay --requests 1 --json | true",
        "BLOCKLIFE replay --help | true",
        "BLOCKLIFE replay --requests 300 --record - 2>/dev/null | head -1",
    ],
)
def test_cli_survives_a_reader_that_goes(pipe: str) -> None:
    """A closed pipe is the reader's good right: no word about it."""
    ran = shell(pipe)

    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        "replay --requests 1",
        "check --list",
        "scenario list",
        "recording check -",
        "workload generate",
        "draw block",
        "spec --check",
        "doctor",
    ],
)
def test_cli_has_nothing_to_write_to(command: str) -> None:
    """Nothing is done whose outcome nobody would see."""
    ran = shell(f"BLOCKLIFE {command} >&- </dev/null")

    assert (ran.returncode, ran.stderr) == (
        2,
        "blocklife: standard output is closed (send it to a file, or to /dev/null)\n",
    )


def test_replay_records_to_standard_output(tmp_path: Path) -> None:
    """The recording alone comes there, the same as in a file; the report goes to standard error."""
    file = tmp_path / "run.jsonl"
    written = spawn("replay", "--requests", "10", "--record", str(file))
    printed = spawn("replay", "--requests", "10", "--record", "-", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    silent = shell("BLOCKLIFE replay --requests 10 --record - 2>&-")

    assert (written.returncode, printed.returncode, silent.returncode) == (0, 0, 0)
    assert printed.stdout == silent.stdout == file.read_text()
    assert "clean: nothing corrupt" in printed.stderr
    assert os.listdir(tmp_path) == ["run.jsonl"]


def test_cli_spec_checks_and_writes(tmp_path: Path, capsys: Capture) -> None:
    """The pages of this very tree are fresh; a stale copy is named, and written."""
    copy = shutil.copytree(ROOT / "specs", tmp_path / "specs")
    page = copy / "slot.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("generated: slot.events -->\n", "generated: slot.events -->\nMore.\n"), encoding="utf-8")
    fresh, _, _ = call(capsys, "spec", "--check", "--root", str(ROOT / "specs"))
    stale, _, problems = call(capsys, "spec", "--check", "--root", str(copy))
    written, names, _ = call(capsys, "spec", "--write", "--root", str(copy))
    again, nothing, _ = call(capsys, "spec", "--write", "--root", str(copy))

    assert fresh == 0
    assert stale == 1
    assert "slot.events is out of date" in problems
    assert (written, names) == (0, f"wrote {page}\n")
    assert (again, nothing) == (0, "")


@pytest.mark.parametrize(
    ("words", "status"), [(["replay", "--requests", "1", "--json"], 0), (["check", "--json", "--max-states", "5"], 3)]
)
def test_cli_imports_little(words: list[str], status: int) -> None:
    """A report for machines brings in neither torch nor transitions, nor what draws tables."""
    script = (
        f"import sys\nfrom blocklife.cli import main\nstatus = main({words!r})\n"
        "heavy = {'torch', 'transitions', 'vllm', 'rich', 'pytest', 'hypothesis'} & set(sys.modules)\n"
        f"sys.exit(status != {status} or bool(heavy))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")


# --- terminals and signals ----------------------------------------------------------------------------------------------


def on_terminal(*argv: str, both: bool = False, only_output: bool = False, columns: int = 120) -> tuple[int, str]:
    """Run with standard error on a terminal, with *both* or with *only_output*; the status and what the terminal was sent."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns)}
    with subprocess.Popen(
        [*COMMAND, *argv],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=theirs if both or only_output else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if only_output else theirs,
        env=env,
    ) as process:
        os.close(theirs)
        found = b""
        while select.select([ours], [], [], HANGS_S)[0]:
            try:
                more = os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other end is closed
                break
            if not more:
                break
            found += more
        os.close(ours)
        status = process.wait(HANGS_S)
    return status, found.decode()


def test_cli_shows_progress_on_a_terminal() -> None:
    """The bar counts requests and steps, and is gone at the end."""
    status, shown = on_terminal("replay", "--requests", "150", "--json")

    assert status == 0
    assert "150" in shown
    assert "steps" in shown
    assert "\x1b[2K" in shown
    assert "Traceback" not in shown


def test_cli_shows_no_progress_in_a_pipe() -> None:
    """In pipes there is no bar, no colour, and nothing on standard error."""
    ran = spawn("replay", "--requests", "20")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert "clean" in ran.stdout


@pytest.fixture
def long_run(tmp_path: Path) -> tuple[list[str], Path]:
    """A run that would take long, and its record."""
    return ["replay", "--requests", "20000", "--faults", "--record", str(tmp_path / "record")], tmp_path / "record"


def interrupt(argv: list[str], record: Path, signals: int) -> tuple[int, str, str]:
    """Send so many SIGINTs to a run once its record has grown; the status, the output and the errors."""
    with interruptible():
        run = subprocess.Popen([*COMMAND, *argv], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with run as process:
        try:
            while process.poll() is None and not (record.exists() and record.stat().st_size > 100_000):
                os.sched_yield()
            for _ in range(signals):
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=HANGS_S)
        finally:
            process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("json_too", [False, True], ids=["tables", "json"])
def test_cli_reports_after_an_interrupt(long_run: tuple[list[str], Path], json_too: bool) -> None:
    """Ctrl-C ends the run between two steps: the report so far, status 130, a record of whole lines."""
    argv, record = long_run
    status, out, err = interrupt([*argv, *(["--json"] if json_too else [])], record, signals=1)

    assert (status, err) == (130, "")
    if json_too:
        report = json.loads(out)
        assert report["interrupted"]
        assert (report["corrupt_blocks"], report["leaked_places"], report["violations"]) == (0, 0, 0)
        assert report["requests"] == 20_000
    else:
        assert "interrupted: every request was aborted" in out
    lines = record.read_text().splitlines(keepends=True)
    assert all(line.endswith("}\n") for line in lines)
    assert json.loads(lines[-2])["to"]
    assert json.loads(lines[-1])["blocklife"] == "end"


def test_cli_stops_at_once_at_the_second_interrupt(long_run: tuple[list[str], Path]) -> None:
    """A second Ctrl-C may fall before or after the report; in both cases the status is 130 and nobody sees a traceback."""
    status, _, err = interrupt(*long_run, signals=2)

    assert status == 130
    assert err in ("", "blocklife: interrupted\n")
