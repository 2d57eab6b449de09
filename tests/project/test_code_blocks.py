"""Every block of code of every page is run, or is looked at as far as it can be.

Goal: what somebody copies from a page works. Method: the Python blocks of a page run in order in one program, or under pytest
where they are tests; commands are given to the parser of the command line, to the Makefile, and to the file system. What cannot
be run says so, with the reason, in a comment above it: ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from blocklife import __version__, cli
from blocklife.cli import _suite
from blocklife.testing import parse_scenario
from blocklife.testing.worlds._format import make_world
from tests.programs import HANGS_S
from tests.project.pages import PAGES, ROOT, Block, blocks_of, prose_of

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
LANGUAGES = {"python", "console", "toml", "json", "text", "yaml"}
PROGRAMS = {
    "vllm",
    "sglang",
    "lmcache",
    "spin",
    "apt",
    "mooncake_master",
    "mooncake_client",
    "pip",
    "pytest",
    "python",
    "blocklife",
    "blocklife-suite",
    "make",
    "promtool",
    "curl",
}
"""What a command may begin with. The first seven are other people's, and only their name is looked at."""
TARGETS = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
VARIABLES = {"ARGS", "VLLM", "SGLANG", "LMCACHE", "SOURCES", "PYTHON", "WORLD"}


def of(language: str) -> list[Block]:
    """The blocks in one language that can be run."""
    return [block for block in BLOCKS if block.language == language and not block.reason]


def commands(block: Block) -> Iterator[str]:
    """The commands of a block; one goes on where a quote is open or a line ends in a backslash. What it prints is left out."""
    lines = iter(block.text.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            continue
        command = line.removeprefix("$ ")
        while command.count("'") % 2 or command.endswith("\\"):
            command = command.removesuffix("\\") + "\n" + next(lines)
        yield command


def words_of(command: str) -> list[str]:
    """A command's words without its variables, its comment, and where it sends what it prints."""
    words = shlex.split(command, comments=True)
    for end in (">", "|", "&&"):
        words = words[: words.index(end)] if end in words else words
    while re.fullmatch(r"[A-Z_]+=.*", words[0], flags=re.DOTALL):
        words = words[1:]
    return words


COMMANDS = [(block, command) for block in of("console") for command in commands(block)]
QUOTED = sorted(
    {
        (page, quoted)
        for page in PAGES
        if page.name != "CHANGELOG.md"  # it tells of what there was
        for quoted in re.findall(r"`((?:blocklife|make) [a-z][^`\n]*)`", prose_of(page.read_text(encoding="utf-8")))
    }
)
"""Commands in running text, which may leave out what they need."""


def test_blocks_are_found() -> None:
    """There is something to look at, of every kind."""
    assert {block.language for block in BLOCKS} == LANGUAGES
    assert len(COMMANDS) > 60
    assert len(QUOTED) > 60


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.reason], ids=str)
def test_block_that_is_not_run_says_why(block: Block) -> None:
    """A reason is a sentence, and only what could be run needs one."""
    assert block.language in {"python", "console", "toml", "json"}
    assert len(block.reason.split()) >= 4


@pytest.mark.parametrize("page", sorted({block.page for block in of("python")}), ids=lambda page: page.stem)
def test_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """All of it, in order, in one program that warns of nothing; tests run under pytest, with the package's plugin."""
    mine = [block for block in of("python") if block.page == page]
    program, tests = tmp_path / "page.py", tmp_path / "test_page.py"
    is_test = {block: "\ndef test_" in f"\n{block.text}" for block in mine}
    for path, among in (
        (program, [each for each in mine if not is_test[each]]),
        (tests, [each for each in mine if is_test[each]]),
    ):
        lines: list[str] = []
        for block in among:  # the same lines as on the page, so that a traceback leads there
            lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run(tmp_path, "-W", "error", str(program))
    if any(is_test.values()):
        run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests))


def run(folder: Path, *words: str) -> None:
    ran = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=HANGS_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python" and block.reason], ids=str)
def test_python_that_is_not_run_can_be_read(block: Block) -> None:
    """It is Python, if nothing else."""
    ast.parse(block.text)


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_toml_of_a_page_can_be_read(block: Block) -> None:
    """A whole scenario is one, and so is a world; of a part of one it is only asked that it is TOML."""
    found = tomllib.loads(block.text)

    assert found
    if "id" in found:
        assert parse_scenario(block.text, str(block)).steps
    elif "requests" in found:
        assert make_world(found, str(block)).requests


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_of_a_page_can_be_read(block: Block) -> None:
    """One object, or one a line."""
    text = block.text
    assert all(json.loads(line) for line in ([text] if text.startswith("{\n") else text.splitlines()))


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml_of_a_page_can_be_read(block: Block) -> None:
    """Each program that a step of it runs is known, and takes what it is given."""
    yaml = pytest.importorskip("yaml")
    for step in yaml.safe_load(block.text)["steps"]:
        words = shlex.split(step.get("run", "pip"))
        assert words[0] in PROGRAMS
        if words[0] == "blocklife-suite":
            _suite.make_parser().parse_args(words[1:])


@pytest.mark.parametrize(("block", "command"), COMMANDS, ids=lambda each: str(each).replace("\n", " "))
def test_command_of_a_page_is_one(block: Block, command: str) -> None:
    """Its program is known, and takes what it is given."""
    words = words_of(command)

    assert words[0] in PROGRAMS, f"{block}: {command}"
    if words[0] == "blocklife":
        parse(words[1:])
    elif words[0] == "blocklife-suite":
        _suite.make_parser().parse_args(words[1:])
    elif words[0] == "make":
        made(words[1:])
    elif words[0] == "python":
        program(words[1:])
    elif words[0] == "pip":
        installs(words[1:])


def parse(words: list[str]) -> None:
    """Give it to the parser of the command line. What a file holds is not asked."""
    with pytest.raises(SystemExit) if words in (["--help"], ["--version"]) else contextlib.nullcontext():
        cli.make_parser().parse_args(words)


def made(words: list[str]) -> None:
    """Targets that there are, and variables that the Makefile reads."""
    names = {word.partition("=")[0] for word in words if "=" in word}

    assert {word for word in words if "=" not in word} <= TARGETS
    assert names <= VARIABLES


def program(words: list[str]) -> None:
    """A module that can be found, or a file of the project."""
    if words[0] == "-m":
        name = words[1]
        assert (ROOT / name.replace(".", "/")).with_suffix(".py").exists() or find_spec(name), name
    else:
        assert (ROOT / words[0]).is_file(), words[0]


def installs(words: list[str]) -> None:
    """This package, from a checkout or a wheel of this version, with extras that it has. It is on no package index."""
    wanted = [word for word in words[1:] if not word.startswith("-")]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

    assert words[0] == "install"
    assert re.fullmatch(rf"\./suite|\.(\[\w+\])?|dist/blocklife-{re.escape(__version__)}-\S+\.whl", wanted[-1])
    assert set(re.findall(r"\[(.*)\]", wanted[-1])) <= set(extras)


@pytest.mark.parametrize(("page", "quoted"), QUOTED, ids=lambda each: str(each).removeprefix(f"{ROOT}/"))
def test_command_in_running_text_exists(page: Path, quoted: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command is one, and has the options that are named; a target of the Makefile is one."""
    words = shlex.split(quoted, comments=True)
    if words[0] == "make":
        made([word for word in words[1:] if word != "..."])
        return
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    path: list[str] = []
    for word in words[1:]:
        if not re.fullmatch(r"[a-z]+", word) or not is_command([*path, word], capsys):
            break
        path.append(word)
    told = help_of(path, capsys)

    assert path
    assert {option for option in options if not re.search(rf"{option}\b", told)} == set(), page


def help_of(path: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.make_parser().parse_args([*path, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def is_command(path: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the help of these words is another than that of the words before the last."""
    try:
        cli.make_parser().parse_args([*path, "--help"])
    except SystemExit as ended:
        return ended.code == 0 and capsys.readouterr().out.startswith(f"usage: blocklife {' '.join(path)} ")
    return False
