"""What a terminal shows, and what a slip costs: lines as wide as it is, completion, and refusals before anything is imported.

Method: a pseudo-terminal of a chosen width; a real bash that completes; the modules of a process that was refused.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from blocklife.cli import COMMANDS, main
from blocklife.cli._common import wrapped
from tests.cli.test_cli import COMMAND, ROOT, Capture, call, on_terminal, refused
from tests.programs import HANGS_S

BASH = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.mark.parametrize("argv", ["scenario list A01 A02 A50", "check --list", "store check --list", "scenario run A10 A41"])
def test_long_lines_are_wrapped_at_the_width(argv: str) -> None:
    """In a terminal no line is cut in the middle of a word, and a line that goes on is set in."""
    _, text = on_terminal(*argv.split(), only_output=True, columns=60)
    lines = text.replace("\r\n", "\n").splitlines()

    assert max(map(len, lines)) <= 60
    assert any(line.startswith("    ") for line in lines)


def test_lines_of_a_pipe_are_not_wrapped(capsys: Capture) -> None:
    """One scenario has its two lines, for whoever greps."""
    _, out, _ = call(capsys, "scenario", "list", "A01", "A50")

    assert len(out.splitlines()) == 4
    assert wrapped("a " * 500) == "a " * 500


@pytest.mark.parametrize("command", ["replay", "check", "draw", "doctor", "scenario run", "recording show", "completion"])
def test_description_of_a_help_is_wrapped(command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As options are; the examples keep their lines."""
    monkeypatch.setenv("COLUMNS", "72")
    status, out, _ = call(capsys, *command.split(), "--help")
    text, _, examples = out.partition("examples:\n")

    assert status == 0
    _, description, *_ = text.split("\n\n")  # behind the usage, which argparse cannot break everywhere
    assert 40 < max(map(len, description.splitlines())) <= 72
    assert examples.startswith("  blocklife ")
    assert all(len(line) <= 72 for line in examples.splitlines() if not line.startswith(" "))


# --- what is refused, and how soon --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("repaly", "unknown command 'repaly' (did you mean replay? choose from replay, check, "),
        ("recording veiw run.jsonl", "unknown command 'veiw' (did you mean view? choose from check, show, "),
        ("replay --mode lasy", "argument --mode: invalid choice: 'lasy' (did you mean lazy? choose from eager, lazy)"),
        ("completion fish", "argument SHELL: invalid choice: 'fish' (choose from bash, zsh)"),
    ],
)
def test_nearest_word_is_named(argv: str, said: str, capsys: Capture) -> None:
    """Behind the one prefix that all errors have."""
    assert refused(capsys, *argv.split()).startswith(f"blocklife: {said}")


@pytest.mark.parametrize(
    "argv",
    [
        "replay no.jsonl",
        "check no.toml",
        "recording check no.jsonl",
        "recording view no.jsonl",
        "scenario run A01 no.toml",
        "fly",
    ],
)
def test_slip_is_refused_before_anything_is_imported(argv: str) -> None:
    """Neither numpy nor a part of the package that computes."""
    script = (
        f"import sys\nfrom blocklife.cli import main\n"
        f"try:\n    status = main({argv.split()!r})\nexcept SystemExit as left:\n    status = left.code\n"
        "heavy = {'numpy', 'rich', 'blocklife.offload', 'blocklife.ledger', 'blocklife.lifecycle'} & set(sys.modules)\n"
        "print(status, *sorted(heavy))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False)

    assert ran.stdout == "2\n"
    assert ran.stderr.startswith("blocklife: ")
    assert ("No such file" in ran.stderr) is (argv != "fly")


def test_page_of_a_recording_goes_beside_it(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that is compressed by its name; standard input has no place beside it."""
    run = tmp_path / "run.jsonl"
    assert call(capsys, "replay", "--requests", "2", "--record", str(run))[0] == 0
    status, out, _ = call(capsys, "recording", "view", str(run))

    assert (status, out.startswith(f"{tmp_path / 'run.html'}: ")) == (0, True)
    assert (tmp_path / "run.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "name one with -o" in refused(capsys, "recording", "view", "-")


# --- completion ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script, in a file."""
    path = tmp_path_factory.mktemp("completion") / "blocklife.bash"
    ran = subprocess.run(
        [*COMMAND, "completion", "bash"], cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=True
    )
    path.write_text(ran.stdout, encoding="utf-8")
    return path


@BASH
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("blocklife re", {"replay", "recording"}),
        ("blocklife recording ", {"check", "show", "stats", "view", "perfetto"}),
        ("blocklife recording show --fo", {"--format"}),
        ("blocklife recording show run.jsonl --format ", {"text", "mermaid", "svg"}),
        ("blocklife replay --contract h", {"hold"}),
        ("blocklife completion ", {"bash", "zsh"}),
        ("blocklife replay --record ", set[str]()),
        ("blocklife recording check ", set[str]()),
        ("blocklife scenario run --driver check --js", {"--json"}),
    ],
)
def test_bash_completes(line: str, offered: set[str], completed: Path) -> None:
    """What is offered for the last word; nothing where a file is meant, which bash completes itself."""
    script = textwrap.dedent(f"""\
        set -u
        source {completed}
        read -ra COMP_WORDS <<< "$1"
        [[ "$1" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        _blocklife
        (( ${{#COMPREPLY[@]}} )) && printf '%s\\n' "${{COMPREPLY[@]}}"
        complete -p blocklife
    """)
    words, env = ["bash", "-c", script, "bash", line], {"PATH": os.environ["PATH"]}
    ran = subprocess.run(words, capture_output=True, text=True, timeout=HANGS_S, check=False, env=env)
    *found, registered = ran.stdout.splitlines()

    assert (ran.returncode, ran.stderr) == (0, "")
    assert registered == "complete -o default -F _blocklife blocklife"
    assert set(found) == offered


def test_completion_knows_every_command(completed: Path) -> None:
    """Whoever adds a command adds nothing there."""
    text = completed.read_text(encoding="utf-8")

    assert all(f"'blocklife {name}'" in text for name in COMMANDS)
    assert main(["completion", "zsh"]) == 0
