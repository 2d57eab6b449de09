"""The arrows of the house, read from the syntax trees: who may import whom, which rooms touch the world, and how long is long.

Goal: a wrong import is found before a reviewer has to. Method: every file of the package is parsed, never imported; an import
inside a function counts like one at the top. `laws_broken` takes any tree of files, so that the last tests can show it failing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

PACKAGE = Path(__file__).parents[2] / "blocklife"

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 900

TRUNK = (
    "_doors",
    "errors",
    "knobs",
    "groups",
    "policies",
    "extras",
    "hook_errors",
    "threads",
    "lifecycle",
    "states",
    "scheduler_states",
    "connector_states",
    "watch_states",
    "core",
    "ledger",
    "files",
    "_theirs",
    "recording",
    "offload",
    "copiers",
    "tiers",
    "watch",
    "engines",
    "cli",
)
"""From the root up: each may know those before it. `cli` stands on top and may know everything."""

BRANCHES = ("machines", "drawing", "testing")
"""They may know the trunk, though not `cli`, and those before them; nothing in the trunk but `cli` may know them."""

ROOT_ROOM = "blocklife"
"""`__init__.py` and `__main__.py`: the front door, which may know what it shows."""

ONLY_IN = {
    "torch": ("copiers/", "engines/sglang/linker/", "engines/toy/_tensors.py", "engines/vllm/"),
    "transitions": ("machines.py",),
    "vllm": ("engines/vllm/",),
    "sglang": ("engines/sglang/",),
    "lmcache": ("engines/lmcache/",),
    "pytest": ("testing/",),
    "hypothesis": ("testing/",),
}
"""Packages of others, and the only files that may name them."""

PURE = (
    "errors",
    "knobs",
    "groups",
    "policies",
    "lifecycle",
    "states",
    "scheduler_states",
    "connector_states",
    "watch_states",
    "core",
    "ledger",
    "offload",
)
IMPURE = frozenset(
    {"time", "datetime", "random", "secrets", "uuid", "threading", "multiprocessing", "concurrent", "asyncio", "queue"}
    | {"os", "io", "pathlib", "tempfile", "shutil", "socket", "subprocess", "signal", "logging"}
)
"""No clock, no dice, no threads, no world: what a pure room must not import. Time and identity come in as arguments."""

CALLED_IMPURE = frozenset({"open", "input", "print", "np.random", "numpy.random"})
"""The same, where no import gives it away."""

INSIDES = frozenset({"_state", "_steps", "_check", "_journal", "_blocks", "_slots", "_jobs"})
"""The parts of a ledger and of a scheduler, with their columns."""
SHARED_NAMES: dict[str, str] = {}
"""Names that two classes have, and why they may."""

LAZY_ROOMS = frozenset({"cli"})
"""Rooms whose functions may import whatever they like: a subcommand pays only for what it uses."""


@frozen
class Import:
    """One module that a file names, and where."""

    module: str
    line: int
    lazy: bool


def imports_of(tree: ast.Module, package: list[str]) -> Iterator[Import]:
    """Every import of a file, relative ones resolved against *package*, the packages that the file lies in."""
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        lazy = id(node) in inside
        if isinstance(node, ast.Import):
            yield from (Import(each.name, node.lineno, lazy) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from blocklife import states` names a room only in its last part.
            yield from (
                Import(f"{base}.{each.name}" if base == "blocklife" else base, node.lineno, lazy) for each in node.names
            )


def room_of(module: str) -> str:
    """The room that a module of the package lies in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in (*TRUNK, *BRANCHES) else ROOT_ROOM


def may_know(room: str, other: str) -> bool:
    """Whether the arrows allow *room* to import *other*."""
    if room == other or room in ("cli", ROOT_ROOM):
        return True
    if other in ("cli", ROOT_ROOM):
        return False
    if room in TRUNK:
        return other in TRUNK and TRUNK.index(other) < TRUNK.index(room)
    return other in TRUNK or BRANCHES.index(other) < BRANCHES.index(room)


def imports_broken(where: str, room: str, tree: ast.Module) -> Iterator[str]:
    """The imports of one file that it may not have."""
    for each in imports_of(tree, ["blocklife", *Path(where).parts[:-1]]):
        if each.lazy and room in LAZY_ROOMS:
            continue
        top = each.module.split(".")[0]
        if top == "blocklife" and not may_know(room, room_of(each.module)):
            # The version alone may be read from anywhere.
            if each.module != "blocklife.__version__":
                yield f"{where}:{each.line}: {room} must not know {room_of(each.module)}"
        elif top in ONLY_IN and not where.startswith(ONLY_IN[top]):
            yield f"{where}:{each.line}: {top} is imported only in {' and '.join(ONLY_IN[top])}"
        elif top in IMPURE and room in PURE:
            yield f"{where}:{each.line}: {room} is pure and must not import {top}"


def shape_broken(where: str, room: str, tree: ast.Module, text: str) -> Iterator[str]:
    """Statements, calls and lengths of one file that it may not have."""
    if (length := len(text.splitlines())) > FILE_LINES_MAX:
        yield f"{where}: {length} lines; a file has at most {FILE_LINES_MAX}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield f"{where}:{node.lineno}: assert vanishes under -O; raise an error instead"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            long = (node.end_lineno or node.lineno) - node.lineno + 1
            if long > FUNCTION_LINES_MAX:
                yield f"{where}:{node.lineno}: {node.name} has {long} lines; a function has at most {FUNCTION_LINES_MAX}"
        elif room in PURE and isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in CALLED_IMPURE:
            yield f"{where}:{node.lineno}: {room} is pure and must not use {ast.unparse(node)}"


def walls_broken(where: str, room: str, tree: ast.Module) -> Iterator[str]:
    """What one file reads of the inside of the ledger or the scheduler, if it stands in neither room.

    Inside the ledger's own room everything may look at the parts; the scheduler looks at its own, and not at the ledger's.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in INSIDES:
            continue
        owner = ast.unparse(node.value)
        of_ledger = owner.endswith("ledger")
        if room != "ledger" and (of_ledger or (node.attr == "_state" and owner != "self" and room != "offload")):
            yield f"{where}:{node.lineno}: {ast.unparse(node)} is inside another room (ask its views: blocklife.ledger.views)"


def laws_broken(package: Path) -> list[str]:
    """Every law that some file of a package breaks, as ``file:line: reason``."""
    broken = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package).as_posix()
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, where)
        room = where.split("/")[0].removesuffix(".py")
        if room not in (*TRUNK, *BRANCHES):
            if where not in ("__init__.py", "__main__.py"):
                broken.append(f"{where}: is in no room of the house")
            room = ROOT_ROOM
        broken += [*imports_broken(where, room, tree), *shape_broken(where, room, tree, text), *walls_broken(where, room, tree)]
    return broken


def names_shared(package: Path) -> dict[str, list[str]]:
    """Names of classes, without a leading underscore, that more than one module of a package defines, and where."""
    found: dict[str, list[str]] = {}
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8"), path.name).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(path.relative_to(package).as_posix())
    return {name: where for name, where in found.items() if len(where) > 1}


def test_a_class_has_a_name_of_its_own() -> None:
    """One word, one meaning: no two modules define classes of one name, but for those that say why."""
    assert names_shared(PACKAGE).keys() == SHARED_NAMES.keys()


def test_a_second_class_of_one_name_is_found(tmp_path: Path) -> None:
    """A private class counts as well, and one within a function does not."""
    plant(tmp_path, {"a.py": "class Kind: ...\n", "b/c.py": "class _Kind: ...\n", "d.py": "def f():\n    class Kind: ...\n"})

    assert names_shared(tmp_path) == {"Kind": ["a.py", "b/c.py"]}


def circles(package: Path) -> list[set[str]]:
    """Files of a package that know each other, directly or around other files; types count, and imports in functions do not."""
    names = {path.relative_to(package).with_suffix("").as_posix(): path for path in sorted(package.rglob("*.py"))}
    known = {
        name: {
            each.module.removeprefix("blocklife.").replace(".", "/")
            for each in imports_of(ast.parse(path.read_text(encoding="utf-8")), [])
            if not each.lazy
        }
        & names.keys()
        for name, path in names.items()
    }
    reach = {name: set(others) for name, others in known.items()}
    for middle in names:
        for others in reach.values():
            if middle in others:
                others |= reach[middle]
    return [
        {other for other in names if other in reach[name] and name in reach[other]} for name in names if name in reach[name]
    ]


def test_no_two_files_know_each_other() -> None:
    """Of two files that explain each other neither can be read first."""
    assert circles(PACKAGE) == []


def test_a_circle_of_files_is_found(tmp_path: Path) -> None:
    """Also one around another file, and one of which a part is named as a type only."""
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from blocklife.a import A\n"
    plant(tmp_path, {"a.py": "from blocklife.b import B\n", "b.py": "from blocklife.c import C\n", "c.py": typed})

    assert circles(tmp_path) == [{"a", "b", "c"}] * 3


def test_layers_hold() -> None:
    """Every file of the package keeps the arrows, the rooms and the lengths."""
    assert laws_broken(PACKAGE) == []


def test_examples_use_the_front_doors() -> None:
    """What an example imports is for users: no part of the module's name begins with an underscore."""
    behind = [
        f"{path.name}:{each.line}: {each.module}"
        for path in sorted((PACKAGE.parent / "examples").glob("*.py"))
        for each in imports_of(ast.parse(path.read_text(encoding="utf-8")), [])
        if any(part.startswith("_") and not part.endswith("__") for part in each.module.split("."))
    ]

    assert behind == []


def test_layers_see_every_file() -> None:
    """The trees that are read are those of the real package."""
    read = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}

    assert {"errors.py", "lifecycle/_table.py", "states.py", "__init__.py"} <= read


TORCH = "copiers/ and engines/sglang/linker/ and engines/toy/_tensors.py and engines/vllm/"

BAD: dict[str, tuple[str, str, str]] = {
    "upwards": ("states.py", "from blocklife.ledger import records\n", "states.py:1: states must not know ledger"),
    "upwards by name": ("states.py", "from blocklife import ledger\n", "states.py:1: states must not know ledger"),
    "upwards in a package": ("ledger/a.py", "import blocklife.offload.plan\n", "ledger/a.py:1: ledger must not know offload"),
    "upwards, relative": ("ledger/a.py", "from ..offload import plan\n", "ledger/a.py:1: ledger must not know offload"),
    "upwards, lazily": (
        "offload/a.py",
        "def f() -> None:\n    import blocklife.copiers\n",
        "offload/a.py:2: offload must not know copiers",
    ),
    "trunk to branch": ("engines/a.py", "import blocklife.drawing\n", "engines/a.py:1: engines must not know drawing"),
    "branch to cli": ("testing/a.py", "import blocklife.cli\n", "testing/a.py:1: testing must not know cli"),
    "front door": ("ledger/a.py", "import blocklife\n", "ledger/a.py:1: ledger must not know blocklife"),
    "torch": (
        "ledger/a.py",
        "import torch\n",
        f"ledger/a.py:1: torch is imported only in {TORCH}",
    ),
    "torch, lazily": (
        "engines/a.py",
        "def f() -> None:\n    from torch import cuda\n",
        f"engines/a.py:2: torch is imported only in {TORCH}",
    ),
    "transitions": (
        "drawing/a.py",
        "from transitions.extensions import GraphMachine\n",
        "drawing/a.py:1: transitions is imported only in machines.py",
    ),
    "vllm": ("engines/toy.py", "import vllm\n", "engines/toy.py:1: vllm is imported only in engines/vllm/"),
    "clock": ("ledger/a.py", "from time import monotonic\n", "ledger/a.py:1: ledger is pure and must not import time"),
    "files": ("offload/a.py", "import os.path\n", "offload/a.py:1: offload is pure and must not import os"),
    "dice": (
        "ledger/a.py",
        "import numpy as np\nx = np.random.rand\n",
        "ledger/a.py:2: ledger is pure and must not use np.random",
    ),
    "print": ("states.py", "print(1)\n", "states.py:1: states is pure and must not use print"),
    "assert": ("cli.py", "assert True\n", "cli.py:1: assert vanishes under -O; raise an error instead"),
    "long function": (
        "cli.py",
        "def f() -> None:\n" + "    f()\n" * FUNCTION_LINES_MAX,
        f"cli.py:1: f has {FUNCTION_LINES_MAX + 1} lines; a function has at most {FUNCTION_LINES_MAX}",
    ),
    "long file": (
        "cli.py",
        "x = 1\n" * (FILE_LINES_MAX + 1),
        f"cli.py: {FILE_LINES_MAX + 1} lines; a file has at most {FILE_LINES_MAX}",
    ),
    "a column of the ledger": (
        "engines/a.py",
        "def f(ledger):\n    return ledger._state.blocks.refs[1]\n",
        "engines/a.py:2: ledger._state is inside another room (ask its views: blocklife.ledger.views)",
    ),
    "a column, by the scheduler": (
        "offload/a.py",
        "def f(self):\n    return self.ledger._jobs\n",
        "offload/a.py:2: self.ledger._jobs is inside another room (ask its views: blocklife.ledger.views)",
    ),
    "no room": ("helpers.py", "x = 1\n", "helpers.py: is in no room of the house"),
}

GOOD = {
    "ledger/a.py": "from blocklife.states import Block\nfrom .records import Life\n\n\ndef reopen() -> None: ...\n",
    "ledger/records.py": "import enum\nimport numpy as np\n",
    "copiers/cuda.py": "import time\nimport torch\nfrom blocklife import __version__\n",
    "machines.py": "import transitions\nfrom blocklife import states\n",
    "testing/a.py": "import random\nfrom blocklife.machines import as_machine\nimport blocklife.drawing\n",
    "offload/steps.py": "def f(scheduler):\n    return scheduler._state\n",
    "cli.py": "from blocklife import drawing\n\n\ndef f() -> None:\n    import torch\n",
    "__init__.py": "from blocklife.states import Block\n",
}


def plant(package: Path, files: dict[str, str]) -> None:
    """Write a small package."""
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_layers_accept_lawful_imports(tmp_path: Path) -> None:
    """Downward arrows, own rooms, and lazy imports of the command line are lawful."""
    plant(tmp_path, GOOD)

    assert laws_broken(tmp_path) == []


@pytest.mark.parametrize("case", BAD)
def test_layers_find_each_broken_law(case: str, tmp_path: Path) -> None:
    """A smoke alarm is tested with smoke: one planted fault, one finding that names it."""
    where, text, finding = BAD[case]
    plant(tmp_path, GOOD | {where: text})

    assert laws_broken(tmp_path) == [finding]
