"""What the source of the core must not contain: the kernel is compiled without bounds checks, and decides nothing itself.

Goal: what a compiler takes away is not missed. Method: every module is parsed. A negative index wraps around where it is
interpreted, and reads what lies before a column where it is compiled without checks, as the kernel is. None where a column or
an object with C attributes is expected is looked at in no module that is shipped, so the rest of the core has that rule, too,
for what its types declare so. The last tests show each rule failing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Set
from pathlib import Path

import pytest

from blocklife.cli import _built as built
from blocklife.states import MACHINES

MODULES = sorted((built.PACKAGE / "core").glob("*.py"))
COMPILED = [built.source_of(name) for name in built.KERNEL]
TYPED = [path for name in built.CORE if (path := built.source_of(name)).with_suffix(".pxd").exists()]
"""The modules of the core that have types beside them."""
ROOM = sorted(COMPILED[0].parent.glob("*.py"))
NAMES_OF_STATES = {type(state).__name__ for table in MACHINES.values() for state in table.states}


def negative_indexes(tree: ast.AST) -> Iterator[int]:
    """Lines on which something is indexed with a negative number, or sliced up to one; ``~0`` is one as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            for part in ast.walk(node.slice):
                if isinstance(part, ast.UnaryOp) and isinstance(part.op, (ast.USub, ast.Invert)):
                    yield node.lineno


def nones(tree: ast.AST) -> Iterator[int]:
    """Lines on which a name or field becomes None."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(value=ast.Constant(value=None)) if not all(isinstance(at, ast.Subscript) for at in node.targets):
                yield node.lineno


def declared(types: str, classes: Set[str]) -> set[str]:
    """The names that a file of types declares as columns, or as objects of these classes: attributes, arguments, locals."""
    one = rf"(?:{'|'.join(sorted(classes)) or '(?!)'}|[\w. ]+\[::1\])"
    rows = re.findall(rf"^\s+cdef (?:public )?{one} ([\w, ]+)$", types, re.MULTILINE)
    found = {name for names in rows for name in names.split(", ")}
    found.update(re.findall(rf"[(,]\s*{one} (\w+)(?=[,)=])", types))
    return found | set(re.findall(rf"(\w+)=(?:cython\.)?{one}(?=[,)])", types))


def classes_of(types: str) -> set[str]:
    """The classes with C attributes in a file of types."""
    return set(re.findall(r"^cdef class (\w+)", types, re.MULTILINE))


def declared_beside(path: Path) -> set[str]:
    """What the types beside a module declare so."""
    classes = {name for each in TYPED for name in classes_of(each.with_suffix(".pxd").read_text(encoding="utf-8"))}
    return declared(path.with_suffix(".pxd").read_text(encoding="utf-8"), classes)


def unchecked_nones(tree: ast.AST, names: Set[str]) -> Iterator[int]:
    """Lines on which one of these names, or a field of that name, is or may be given None; also as a default."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                given: list[tuple[ast.expr, ast.expr]] = [(target, value) for target in targets]
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                given = [(target, value)]
            case ast.arguments():
                ordered = [*node.posonlyargs, *node.args]
                defaults = zip(ordered[len(ordered) - len(node.defaults) :], node.defaults, strict=True)
                given = [(ast.Name(each.arg), default) for each, default in defaults]
                given += [(ast.Name(each.arg), one) for each, one in zip(node.kwonlyargs, node.kw_defaults, strict=True) if one]
            case _:
                continue
        for goal, value in given:
            name = goal.id if isinstance(goal, ast.Name) else goal.attr if isinstance(goal, ast.Attribute) else ""
            branches = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            if name in names and any(isinstance(each, ast.Constant) and each.value is None for each in branches):
                yield value.lineno


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


def test_kernel_is_all_that_is_compiled_without_bounds_checks() -> None:
    """Or else the rules about indexes would have to hold for more modules."""
    assert set(built.KERNEL) == built.UNCHECKED


@pytest.mark.parametrize("path", TYPED, ids=lambda path: path.stem)
def test_no_column_or_object_with_c_attributes_becomes_none(path: Path) -> None:
    """No build that is shipped looks whether one is there."""
    assert list(unchecked_nones(parsed(path), declared_beside(path))) == []


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
    assert list(negative_indexes(ast.parse("a[-1]\nb[1:-2]\nc[1]\nd[~0]\ne[f - 1]"))) == [1, 2, 4]
    assert list(unchecked_nones(ast.parse("core = None\nself.core = 1 if a else None\nb = None"), {"core"})) == [1, 2]
    assert list(unchecked_nones(ast.parse("def f(core=None, *, b=None): pass"), {"core"})) == [1]
    assert list(unchecked_nones(ast.parse("self.core: Core | None = None"), {"core"})) == [1]
    assert list(nones(ast.parse("self.a = None\nx = 1"))) == [1]
    assert list(states_named(ast.parse("if state is Block.FREED: pass"))) == [1]
    assert list(imported(ast.parse("import numpy as np\nfrom array import array"))) == ["numpy", "array"]


def test_types_tell_what_may_not_be_none() -> None:
    """Attributes, arguments and locals that are columns or objects of a class with C attributes; nothing else."""
    types = """
cdef class Turn:
    cdef public Core core, other
    cdef public int[::1] rows
    cdef public object words
    cpdef bint ask(self, Turn turn, str name) except -1
@cython.locals(seen=cython.uint[::1], line=Turn, at=int)
cpdef note(Core one, int count)
"""
    assert classes_of(types) == {"Turn"}
    assert declared(types, {"Core", "Turn"}) == {"core", "other", "rows", "turn", "seen", "line", "one"}


@pytest.mark.parametrize("name", ["core._moves", "ledger._journal"])
def test_planted_lines_are_found(name: str) -> None:
    """In the text of a module, with the types that stand beside it."""
    path = built.source_of(name)
    text = path.read_text(encoding="utf-8")
    planted = ast.parse(f"{text}\n\ndef planted(core):\n    core = None\n    return core.blocks.state[-1]\n")
    lines = len(text.splitlines())

    assert list(unchecked_nones(planted, declared_beside(path))) == [lines + 4]
    assert set(negative_indexes(planted)) - set(negative_indexes(ast.parse(text))) == {lines + 5}
