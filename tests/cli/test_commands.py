"""Every command runs from an empty folder, and says what it was asked; `tests.wheels` does the same with what is published.

Goal: nothing that a command needs lies only in a checkout. Method: the calls of `tests.commands`, one after the other.
"""

from __future__ import annotations

import argparse
import importlib
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from blocklife.cli import COMMANDS, _common, main
from blocklife.cli._common import Parser, Telling
from blocklife.extras import to_install
from tests.commands import CALLED, GROUPS

ROOT = Path(__file__).parents[2]


def commands_of(name: str) -> list[str]:
    """The commands that a command has, by its parser; itself where it has none."""
    parser = Parser(prog=name)
    importlib.import_module(f"blocklife.cli._{name}").add_options(parser)
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return [f"{name} {word}" for each in below for word in each.choices] or [name]


def test_no_command_is_forgotten() -> None:
    """Each is called at least once."""
    called = {each.command for each in CALLED if not each.words.startswith("--")}

    assert called == {command for name in COMMANDS for command in commands_of(name)}
    assert set(GROUPS) == {name for name in COMMANDS if commands_of(name) != [name]}


def test_every_command_works_in_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is refused here as well is told in one line."""
    monkeypatch.chdir(tmp_path)
    for each in CALLED:
        try:
            status = main(each.words.split())
        except SystemExit as left:
            status = int(left.code or 0)
        said = "".join(capfd.readouterr())
        refused = bool(each.needs) and find_spec(each.needs) is None

        assert status == (2 if refused else each.status), f"{each.words}: {said}"
        assert (f"pip install '{each.needs}" if refused else each.says) in said, each.words


def test_hints_name_what_the_extras_bring() -> None:
    """No package source is named that does not exist: blocklife itself is under none."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    for extra in ("draw", "torch", "mooncake"):
        assert sorted(to_install(extra).removeprefix("pip install ").split()) == sorted(map(repr, extras[extra]))
    for path in (ROOT / "blocklife").rglob("*.py"):
        assert "install 'blocklife" not in path.read_text(encoding="utf-8"), path


# --- progress where nobody looks at a terminal ------------------------------------------------------------------------------


def test_progress_in_a_pipe_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """None at first, and then one in so many seconds; what it would say is not computed for the others."""
    now = [0.0]
    monkeypatch.setattr("blocklife.cli._common.time.monotonic", lambda: now[0])
    line = Telling("check", None)
    asked: list[float] = []

    def said() -> str:
        asked.append(now[0])
        return f"{now[0]:.0f} states"

    for second in range(40):
        now[0] = float(second)
        line(said)

    assert asked == [15, 30]
    assert capsys.readouterr().err.splitlines() == ["blocklife: check: 15 states", "blocklife: check: 30 states"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check --world clients-fence", "blocklife: check: 1,0"),
        ("check --walk 300 --seed 1", "of 300 steps"),
        ("replay --requests 5", "of 5 requests"),
        ("scenario run A01", "blocklife: scenario: 1 of 4 runs"),
    ],
)
def test_long_runs_tell_how_far_they_are(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error, in whole lines; standard output has the report alone."""
    monkeypatch.setattr(_common, "EVERY", 0.0)

    assert main(command.split()) == 0
    told = capsys.readouterr()
    assert any(said in line for line in told.err.splitlines()), told.err
    assert all(line.startswith("blocklife: ") for line in told.err.splitlines())
    assert "blocklife: " not in told.out
