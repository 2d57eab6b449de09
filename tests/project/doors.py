"""The doors of the package, by their tables, and the stubs that what checks types reads: ``python -m tests.project.doors``."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAD = "# Written by `make spec`, from the table in __init__.py.\n"


def table_of(path: Path) -> dict[str, str]:
    """The table of a door: modules, each with its public names. Empty where an ``__init__.py`` has none."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "door":
            table: dict[str, str] = ast.literal_eval(node.args[1])
            return table
    return {}


DOORS = {
    ".".join(path.parent.relative_to(ROOT).parts): table
    for path in sorted((ROOT / "blocklife").rglob("__init__.py"))
    if (table := table_of(path))
}
"""Rooms whose public names are looked up when they are asked for, with their tables."""


def path_of(room: str) -> Path:
    """Where the stub of a door lies."""
    return ROOT.joinpath(*room.split("."), "__init__.pyi")


def stub(room: str) -> str:
    """The stub of a door: each name is that of its module."""
    lines = [HEAD]
    for module, names in DOORS[room].items():
        if not module:
            lines += [f"{name}: str" for name in names.split()]
            continue
        handed_on = ", ".join(f"{name} as {name}" for name in names.split())
        lines += textwrap.wrap(f"from {room}.{module} import ({handed_on})", 120, subsequent_indent="    ")
    return "\n".join([*lines, "", "__all__: list[str]"]) + "\n"


if __name__ == "__main__":
    for name in DOORS:
        path_of(name).write_text(stub(name), encoding="utf-8")
