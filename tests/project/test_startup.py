"""What a start brings in: a command is imported when it is called, and an import has what it needs and no more.

Method: each start is a process of its own that tells at its end which modules it has; nothing is timed. The tables of commands
are held against the modules, so that no command is missing in the help, and no line of the help is without its command.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from blocklife import cli
from blocklife.cli._common import Parser
from tests.project.doors import DOORS, path_of, stub

ROOT = Path(__file__).parents[2]
TELL = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
CALL = TELL + "from blocklife.cli import main; sys.exit(main(sys.argv[1:]))"

HEAVY = frozenset({"torch", "vllm", "transitions", "rich", "asyncio"})
"""What nobody pays for who has not asked for it."""

MODULES = {name: f"blocklife.cli._{name}" for name in cli.COMMANDS}
"""Where each command lies."""


def brought_in(script: str, *argv: str) -> set[str]:
    """The modules that a process has at its end."""
    ran = subprocess.run([sys.executable, "-c", script, *argv], cwd=ROOT, capture_output=True, text=True, check=False)

    return set(ran.stderr.splitlines()[-1].split())


def packages(modules: set[str]) -> set[str]:
    """The packages that modules lie in."""
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("argv", [(), ("--help",), ("--version",), ("fly",)], ids=" ".join)
def test_startup_without_a_command_imports_none(argv: tuple[str, ...]) -> None:
    """Neither a command nor what commands need is there where only the help is asked for."""
    modules = brought_in(CALL, *argv)
    told = {"blocklife.cli._built"} if argv == ("--version",) else set()

    assert {name for name in modules if name.startswith("blocklife")} == {
        "blocklife",
        "blocklife._doors",
        "blocklife.cli",
        "blocklife.cli._common",
        "blocklife.errors",
        *told,
    }
    assert not packages(modules) & (HEAVY | {"numpy", "attrs", "attr"})


@pytest.mark.parametrize(
    ("argv", "commands"),
    [
        (("workload", "generate", "--help"), {"workload"}),
        (("recording",), {"recording"}),
        (("recording", "fly"), {"recording"}),
        (("recording", "stats", "--help"), {"recording"}),
    ],
)
def test_startup_imports_the_command_that_is_called(argv: tuple[str, ...], commands: set[str]) -> None:
    """A command's help costs that command; one of several levels, those on the way."""
    modules = brought_in(CALL, *argv)

    assert {command for command, module in MODULES.items() if module in modules} == commands
    assert not packages(modules) & (HEAVY | {"numpy"})


@pytest.mark.parametrize("module", ["blocklife", "blocklife.ledger", "blocklife.offload"])
def test_startup_of_an_import_is_light(module: str) -> None:
    """The ledger and the scheduler need numpy and attrs; nothing draws, tells or computes on a device."""
    modules = brought_in(f"{TELL} import {module}")

    assert module in modules
    assert not packages(modules) & HEAVY
    assert not [name for name in modules if name.startswith(("blocklife.drawing", "blocklife.testing", "blocklife.cli"))]


@pytest.mark.parametrize("room", DOORS)
def test_startup_hands_on_every_public_name(room: str) -> None:
    """Each name is the very thing of the module that the table names, and `dir` shows it; no other is handed on."""
    door = importlib.import_module(room)
    homes = {name: module for module, names in DOORS[room].items() if module for name in names.split()}

    assert set(homes) == set(door.__all__) - {"__version__"}
    for name, module in homes.items():
        assert getattr(door, name) is getattr(importlib.import_module(f"{room}.{module}"), name)
    assert set(door.__all__) <= set(dir(door))
    with pytest.raises(AttributeError, match=f"module {room!r} has no attribute 'Leger'"):
        _ = door.Leger


@pytest.mark.parametrize("room", DOORS)
def test_stub_of_a_door_is_fresh(room: str) -> None:
    assert path_of(room).read_text(encoding="utf-8") == stub(room), "run: make spec"


def test_stubs_are_those_of_doors() -> None:
    """A stub hides the module beside it from what checks types."""
    assert set((ROOT / "blocklife").rglob("*.pyi")) == {path_of(room) for room in DOORS}


def test_startup_doors_are_the_only_modules_without_an_underscore() -> None:
    """In a room with such a door every module begins with an underscore: who reads the folder sees what is public."""
    shown = [
        f"{room}.{each.name}"
        for room in DOORS
        if room != "blocklife"
        for each in pkgutil.iter_modules([str(ROOT / room.replace(".", "/"))])
        if not each.ispkg and not each.name.startswith("_")
    ]

    assert "blocklife" in DOORS
    assert shown == []


@pytest.mark.parametrize(("name", "last"), [("MisuseError", "errors"), ("Block", "states"), ("Ledger", "ledger")])
def test_startup_a_name_costs_what_its_module_needs(name: str, last: str) -> None:
    """Of the modules that names come from, none behind its own is imported."""
    modules = brought_in(f"{TELL} from blocklife import {name}")
    known = ["errors", "lifecycle", "states", "ledger", "offload"]

    assert [each for each in known if f"blocklife.{each}" in modules] == known[: known.index(last) + 1]
    assert not packages(modules) & HEAVY


def test_startup_tables_name_every_command() -> None:
    """Whatever module of the command line has options is a command of a table, and the other way round."""
    found = [f"blocklife.cli.{each.name}" for each in pkgutil.iter_modules(cli.__path__)]

    assert sorted(MODULES.values()) == [name for name in found if hasattr(importlib.import_module(name), "add_options")]


@pytest.mark.parametrize("command", MODULES)
def test_startup_a_command_is_what_its_module_says(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The module opens with the command's name, and describes it in its own help; the line stands in the help above it."""
    module = importlib.import_module(MODULES[command])
    parser = Parser()
    module.add_options(parser)
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    lines = " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    own = " ".join(capsys.readouterr().out.split())

    assert (module.__doc__ or "").startswith(f"`blocklife {command}`: ")
    assert f" {command} {cli.COMMANDS[command]} " in f"{lines} "
    assert own.startswith(f"usage: blocklife {command} ")
    assert parser.description
    assert " ".join(parser.description.split()) in own
