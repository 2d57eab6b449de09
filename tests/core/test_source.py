"""What the source of the kernel must not contain: it is compiled without bounds checks, and decides nothing itself.

Goal: what a compiler takes away is not missed. Method: every module of the kernel is parsed. A negative index wraps around
where it is interpreted, and reads what lies before a column where it is compiled; None where an object is expected is not
looked at. The last tests show each rule failing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocklife.cli import _built as built
from blocklife.states import MACHINES

MODULES = sorted((built.PACKAGE / "core").glob("*.py"))
COMPILED = [built.source_of(name) for name in built.KERNEL]
ROOM = sorted(COMPILED[0].parent.glob("*.py"))
NAMES_OF_STATES = {type(state).__name__ for table in MACHINES.values() for state in table.states}


def negative_indexes(tree: ast.AST) -> Iterator[int]:
    """Lines on which something is indexed with a negative number, or sliced up to one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            for part in ast.walk(node.slice):
                if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
                    yield node.lineno


def nones(tree: ast.AST) -> Iterator[int]:
    """Lines on which a name or field becomes None."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(value=ast.Constant(value=None)) if not all(isinstance(at, ast.Subscript) for at in node.targets):
                yield node.lineno


def states_named(tree: ast.AST) -> Iterator[int]:
    """Lines on which a state is named (``Block.FREED``)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in NAMES_OF_STATES:
            yield node.lineno


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.stem)
def test_no_index_is_negative(path: Path) -> None:
    assert list(negative_indexes(parsed(path))) == []


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.stem)
def test_nothing_becomes_none(path: Path) -> None:
    assert list(nones(parsed(path))) == []


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.stem)
def test_no_state_is_named(path: Path) -> None:
    """They come as bytes and traits from `_tables.py`, which alone knows `states.py`."""
    assert list(states_named(parsed(path))) == []
    assert "blocklife.states" not in set(imported(parsed(path)))


@pytest.mark.parametrize("path", ROOM, ids=lambda path: path.stem)
def test_no_array_package_is_used(path: Path) -> None:
    assert not {each.split(".")[0] for each in imported(parsed(path))} & {"numpy", "cython", "torch"}


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.stem)
def test_every_compiled_module_has_its_types_beside_it(path: Path) -> None:
    """Every function and class of it stands there, too: what is forgotten would run, and slowly."""
    tree = parsed(path)
    types = path.with_suffix(".pxd").read_text(encoding="utf-8")
    names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]

    assert [name for name in names if f" {name}(" not in types and f"class {name}:" not in types] == []


@pytest.mark.parametrize("path", COMPILED, ids=lambda path: path.stem)
def test_every_number_of_the_kernel_is_typed_where_it_is_used(path: Path) -> None:
    """A name that is imported from `_tables.py` is a C number only if the types say so."""
    used = [
        each.name
        for node in parsed(path).body
        if isinstance(node, ast.ImportFrom) and node.module == "blocklife.core._tables"
        for each in node.names
    ]
    declared = {
        word.strip(" ,")
        for line in path.with_suffix(".pxd").read_text(encoding="utf-8").splitlines()
        if line.startswith("cdef ") and "(" not in line and "class" not in line
        for word in line.split()
    }

    assert [name for name in used if name not in declared] == []


def test_each_rule_is_seen_failing() -> None:
    assert list(negative_indexes(ast.parse("a[-1]\nb[1:-2]\nc[1]"))) == [1, 2]
    assert list(nones(ast.parse("self.a = None\nx = 1"))) == [1]
    assert list(states_named(ast.parse("if state is Block.FREED: pass"))) == [1]
    assert list(imported(ast.parse("import numpy as np\nfrom array import array"))) == ["numpy", "array"]
