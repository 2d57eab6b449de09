"""Whatever file a command is given, it answers within bounds: one line and status 2, with no traceback and little memory.

Goal: no file makes a command hang, or take all memory. Method: each command that reads a file gets each kind of bad one, in a
process that may have little memory more than it needs.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from blocklife.errors import MESSAGE_MAX, MisuseError
from blocklife.files import DEPTH_MAX, KEY_PARTS_MAX, NUMBER_MAX, TEXT_BYTES_MAX, parse_json, parse_toml, read_text
from blocklife.recording._format import DamagedError, read_line
from tests.cli.test_cli import Capture, call, refused
from tests.programs import HANGS_S

MEMORY_MAX = 1 << 30

COMMANDS = {
    "scenario run": ["scenario", "run", "{file}"],
    "scenario list": ["scenario", "list", "{file}"],
    "world": ["check", "{file}"],
    "coverage": ["draw", "block", "--coverage", "{file}"],
    "mutants": ["draw", "block", "--mutants", "{file}"],
    "recording check": ["recording", "check", "{file}"],
    "recording show": ["recording", "show", "{file}", "--block", "1"],
    "recording stats": ["recording", "stats", "{file}"],
    "recording view": ["recording", "view", "{file}", "-o", "{out}.svg"],
    "recording perfetto": ["recording", "perfetto", "{file}", "-o", "{out}.svg"],
    "drawn recording": ["draw", "block", "--recording", "{file}", "-o", "{out}.svg"],
    "workload": ["replay", "{file}"],
    "size": ["size", "--model", "{file}", "--host-bytes", "1GiB"],
}
"""Every command that reads a file."""
WHOLE = ("scenario run", "scenario list", "world", "coverage", "size", "mutants")
"""Those that read it as a whole."""
TOML = WHOLE[:3]
JSON = WHOLE[3:5]


def argv(command: str, file: Path | str, folder: Path) -> list[str]:
    """The words of a command that reads this file."""
    return [each.format(file=file, out=folder / "out") for each in COMMANDS[command]]


def limited() -> None:
    """In a process that has just begun: no more memory than this."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


def run_with_little(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that has little memory."""
    command = [sys.executable, "-m", "blocklife", *words]
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        command, preexec_fn=limited, env=environ, capture_output=True, text=True, timeout=HANGS_S, check=False
    )


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")
@pytest.mark.parametrize("command", COMMANDS)
def test_file_without_end_is_refused_with_little_memory(command: str, tmp_path: Path) -> None:
    """It is read up to a bound, which the message names where the file was read as a whole."""
    file = tmp_path / "endless.json"  # markup is told by its ending
    file.symlink_to("/dev/zero")
    ran = run_with_little(*argv(command, file, tmp_path))

    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
    if command in WHOLE:
        assert f"endless.json: it is longer than {TEXT_BYTES_MAX:,} bytes" in ran.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_folder_is_refused(command: str, tmp_path: Path, capsys: Capture) -> None:
    """Except where folders are meant: there it has no scenario."""
    folder = tmp_path / "folder.json"
    folder.mkdir()
    said = refused(capsys, *argv(command, folder, tmp_path))

    assert "no scenario there" in said or "directory" in said


@pytest.mark.parametrize("command", WHOLE)
def test_pipe_into_which_nothing_writes_is_refused(command: str, tmp_path: Path, capsys: Capture) -> None:
    """Nothing waits for a writer that may never come."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)

    assert "pipe.json: nothing writes into this pipe (start the writer first" in refused(capsys, *argv(command, pipe, tmp_path))


def test_pipe_that_has_a_writer_is_read(tmp_path: Path) -> None:
    """As a shell's ``<(command)`` is, however late the bytes come."""
    writer = [sys.executable, "-c", "import sys; print('text', end='')"]
    with subprocess.Popen(writer, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        found = read_text(f"/dev/fd/{process.stdout.fileno()}")

    assert found == "text"


@pytest.mark.parametrize("command", TOML)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, f"bad.json: it is nested too deeply (at most {DEPTH_MAX} levels)"),
        ("a = " + "[" * 100 + "]" * 100, f"bad.json: it is nested too deeply (at most {DEPTH_MAX} levels)"),
        ("a = " + "9" * 5000, f"bad.json: a number in it is too large (at most {NUMBER_MAX})"),
        ("a = 0x" + "f" * 5000, f"bad.json: a number in it is too large (at most {NUMBER_MAX})"),
        ("\n" + "a." * 100_000 + "a = 1", f"bad.json:2: a key has more than {KEY_PARTS_MAX} parts (write fewer dots)"),
        ("a = 1\n[" + '"b" . ' * 100_000 + "a]", f"bad.json:2: a key has more than {KEY_PARTS_MAX} parts (write fewer dots)"),
        ("a = 1\nb = = 2\n", "bad.json:2: Invalid value"),
    ],
    ids=["nested", "nested less", "decimal", "hexadecimal", "key", "header", "no TOML"],
)
def test_toml_that_is_too_much_is_refused(command: str, text: str, message: str, tmp_path: Path, capsys: Capture) -> None:
    """Deep nesting, huge numbers and long keys, in every command that reads TOML."""
    file = tmp_path / "bad.json"
    file.write_text(text)

    assert message in refused(capsys, *argv(command, file, tmp_path))


@pytest.mark.parametrize("command", JSON)
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "[" * 100 + "]" * 100, '{"blocklife": ' + "9" * 5000 + "}", '{"a":' * 500 + "1" + "}" * 500],
    ids=["open", "nested", "number", "objects"],
)
def test_json_that_is_too_much_is_refused(command: str, text: str, tmp_path: Path, capsys: Capture) -> None:
    """It is none of what was asked for, and the message says how to get that."""
    file = tmp_path / "bad.json"
    file.write_text(text)

    assert "bad.json: it " in refused(capsys, *argv(command, file, tmp_path))


@pytest.mark.parametrize("command", [each for each in COMMANDS if each not in WHOLE])
@pytest.mark.parametrize("text", ["[" * 60_000, "9" * 60_000, "x" * (3 << 20)], ids=["nested", "number", "long"])
def test_line_that_is_too_much_is_refused(command: str, text: str, tmp_path: Path, capsys: Capture) -> None:
    """What is read line by line has a bound for each line."""
    file = tmp_path / "bad.jsonl"
    file.write_text(text)

    assert "bad.jsonl" in refused(capsys, *argv(command, file, tmp_path))


def test_line_that_is_nested_as_deeply_as_can_be_read_is_damaged() -> None:
    """There is a depth at which a line can just be read and not be spelt any more."""
    for depth in range(sys.getrecursionlimit() - 200, sys.getrecursionlimit()):
        with pytest.raises(DamagedError, match=r"^(n must be a whole number, not a list|it is not JSON)$"):
            read_line(f'{{"n": {"[" * depth}{"]" * depth}}}')


def test_what_is_within_bounds_is_read(tmp_path: Path) -> None:
    """The largest file, the deepest nesting, the largest number and the longest key are not refused."""
    (tmp_path / "large").write_text(" " * TEXT_BYTES_MAX)
    assert len(read_text(tmp_path / "large")) == TEXT_BYTES_MAX

    deep = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    assert parse_toml(f"a = {deep[1:-1]}", "x")
    assert parse_json(deep)
    assert parse_toml(f"a = {NUMBER_MAX}\nb = -{NUMBER_MAX}", "x") == {"a": NUMBER_MAX, "b": -NUMBER_MAX}
    assert parse_toml("a" + ".a" * (KEY_PARTS_MAX - 1) + " = 1", "x")
    assert parse_toml(f'a = "{"a." * 1000}"', "x")


@pytest.mark.parametrize(("name", "said"), [(b"x\xffy.toml", "x\\udcffy.toml"), (b"x\n\x1b[31my.toml", "x \\x1b[31my.toml")])
@pytest.mark.parametrize("command", COMMANDS)
def test_name_that_cannot_be_printed_is_spelt_out(
    command: str, name: bytes, said: str, tmp_path: Path, capsys: Capture
) -> None:
    """An error is one line that a terminal can show, whatever a file is called."""
    file = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)

    assert said.partition("y")[2] in refused(capsys, *argv(command, file, tmp_path))


def test_name_that_is_too_long_is_told_of_the_file(tmp_path: Path, capsys: Capture) -> None:
    """And not of standard output. A folder of this name is not there either."""
    for command in COMMANDS:
        said = refused(capsys, *argv(command, "a" * 5000 + ".json", tmp_path))
        assert "standard output" not in said
        assert "File name too long" in said
    assert "no such folder" in refused(capsys, "spec", "--check", "--root", "a" * 5000)


@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict"])
def test_what_cannot_be_encoded_is_spelt_out(encoding: str, tmp_path: Path) -> None:
    """Titles and names of files on standard output, under any locale."""
    file = os.fsencode(tmp_path) + b"/x\xffy.toml"
    Path(os.fsdecode(file)).write_text(
        'id = "é"\ntitle = "\N{GREEK SMALL LETTER ALPHA}"\ntests = "safety"\n[[step]]\ndo = "wake"\n', encoding="utf-8"
    )
    environ = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": encoding}
    for action in ("run", "list"):
        ran = subprocess.run(
            [sys.executable.encode(), b"-m", b"blocklife", b"scenario", action.encode(), file],
            env={**os.environ, **environ},
            capture_output=True,
            timeout=HANGS_S,
            check=False,
        )

        assert (ran.returncode, ran.stderr) == (1 if action == "run" else 0, b"")
        assert ("\\xe9" if encoding.startswith("ascii") else "é").encode() in ran.stdout
        assert (b"x\\udcffy.toml:4" in ran.stdout) is (action == "run")


def test_message_is_cut_in_its_middle(tmp_path: Path, capsys: Capture) -> None:
    """What a file says is quoted, however long it is; the beginning and the remedy are left."""
    file = tmp_path / "x.toml"
    file.write_text(f'id = "x"\ntitle = "x"\ntests = "safety"\n[[step]]\ndo = "{"x" * 100_000}"\n')
    said = refused(capsys, "scenario", "run", str(file))

    assert len(said) < MESSAGE_MAX + 100
    assert said.startswith(f"blocklife: {file}:5: step 1: unknown verb 'xxx")
    assert "known verbs: arrive" in said or said.endswith("attach)")


def test_standard_output_is_left_as_it_was(capsys: Capture) -> None:
    """A caller within the same process finds its own way of encoding again."""
    before = sys.stdout.errors
    call(capsys, "check", "--list")

    assert sys.stdout.errors == before


def test_number_that_stands_for_a_name_is_no_reason_to_fall() -> None:
    """Reading a name that is no file at all is refused as any other."""
    with pytest.raises(MisuseError, match=r"null (byte|character)"):
        read_text("a\0b")
