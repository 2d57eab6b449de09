"""The mutants of a module: each one small change of its text that a test should notice.

Rules of this file:

* What cannot change what the code does is not made: docstrings, type hints, what is only for type checkers, decorators (they
  say what attrs writes), what is raised and logged, ``__repr__``, and `zip`'s ``strict``, which asks only about ourselves.
* A mutant keeps every line where it was, so that who executes a line is known from the code as it is.
* A mutant is named by what stands there before and after, never by a line number.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from attrs import evolve, frozen

_Slot: TypeAlias = tuple[ast.AST, str, int | None]
"""Where a node hangs: its parent, the field, and the position in it if it is a list."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_OPPOSITE = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""Comparisons whose swap is their negation."""
_NOT_CODE = frozenset({"annotation", "returns", "decorator_list", "type_comment", "type_params", "bases"})
_LOGGERS = frozenset({"log", "logger", "logging", "warnings"})
_FOR_READERS = frozenset({"__repr__", "__str__"})


@frozen
class Mutant:
    """One change of one module."""

    module: str
    """The file, relative to the project."""
    first_line: int
    """Of the statement that is changed, without what is inside it."""
    last_line: int
    where: str
    """The function or class around it, dotted; empty at the top of the module."""
    on_import: bool
    """Whether the statement is executed when the module is imported, not when something is called."""
    operator: str
    before: str
    """The statement, without what is inside it where it is a compound one."""
    after: str
    start: int
    """The bytes that are replaced begin here."""
    end: int
    text: str
    """What stands there instead."""
    number: int = 1
    """Counts the mutants of one module that read alike."""

    @property
    def name(self) -> str:
        """The same in every version of the module that has this statement there."""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.module} {self.where or 'module'}: {self.before} -> {self.after}{again}"

    def of(self, source: bytes) -> str:
        """The text of the module with this change."""
        return (source[: self.start] + self.text.encode() + source[self.end :]).decode()


def mutants_of(module: str, text: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    found = sorted(_Reader(module, text).all(), key=lambda mutant: (mutant.start, mutant.end, mutant.operator, mutant.after))
    counts: Counter[str] = Counter()
    numbered = []
    for mutant in found:
        counts[mutant.name] += 1
        numbered.append(evolve(mutant, number=counts[mutant.name]))
    return numbered


def sample(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """*count* of them, or all. The same seed draws the same ones, also when others come and go with their source."""

    def lot(mutant: Mutant) -> bytes:
        return hashlib.blake2b(f"{seed} {mutant.name}".encode()).digest()

    return sorted(mutants, key=lot)[:count]


def modules_of(root: Path, rooms: Iterable[str]) -> list[str]:
    """The modules of some rooms (folders, or single files), relative to *root*."""
    return [
        str(path.relative_to(root))
        for room in rooms
        for path in ([root / room] if room.endswith(".py") else sorted((root / room).rglob("*.py")))
    ]


@frozen
class _Where:
    name: str
    on_import: bool


_TOP = _Where("", on_import=True)


class _Reader:
    """Walks one module and changes a node at a time, to see how the statement around it reads then."""

    def __init__(self, module: str, text: str) -> None:
        self._module = module
        self._tree = ast.parse(text)
        lines = text.encode().splitlines(keepends=True)
        self._starts = [sum(len(line) for line in lines[:number]) for number in range(len(lines) + 1)]

    def all(self) -> Iterator[Mutant]:
        """Every mutant, in no order."""
        yield from self._inside(self._tree, _TOP, None)

    def _inside(self, node: ast.AST, where: _Where, statement: ast.stmt | None) -> Iterator[Mutant]:
        for field, value in ast.iter_fields(node):
            if field in _NOT_CODE:
                continue
            many = value if isinstance(value, list) else [value]
            for position, child in enumerate(many):
                if isinstance(child, ast.AST) and not _is_left_out(child):
                    yield from self._at(child, where, statement, (node, field, position if value is many else None))

    def _at(self, node: ast.AST, where: _Where, statement: ast.stmt | None, slot: _Slot) -> Iterator[Mutant]:
        if isinstance(node, ast.stmt):
            statement = node
        if statement is not None:
            for operator, new in _changes(node, slot):
                mutant = self._mutant(node, new, operator, where, statement, slot)
                if mutant.before != mutant.after:  # of large floats the neighbours read alike
                    yield mutant
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{where.name}.{node.name}" if where.name else node.name
            where = _Where(name, where.on_import and isinstance(node, ast.ClassDef))
        yield from self._inside(node, where, statement)

    def _mutant(self, old: ast.AST, new: ast.AST, operator: str, where: _Where, statement: ast.stmt, slot: _Slot) -> Mutant:
        assert isinstance(old, (ast.stmt, ast.expr))
        line, last = old.lineno, old.end_lineno or old.lineno
        before = _head(statement)
        _put(slot, new)
        after = _head(new if isinstance(new, ast.stmt) else statement)
        _put(slot, old)
        fill = "\n" * (last - line)  # the lines below stay where they are
        text = ast.unparse(ast.fix_missing_locations(new))
        text = f"{text}{fill}" if isinstance(new, ast.stmt) else f"({text}{fill})"
        inner = [block[0].lineno for field, block in ast.iter_fields(statement) if field == "body" and _is_block(block)]
        start = self._starts[line - 1] + old.col_offset
        end = self._starts[last - 1] + (old.end_col_offset or 0)
        end_line = inner[0] - 1 if inner else statement.end_lineno or last
        on_import = where.on_import or isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
        place = (self._module, statement.lineno, max(last, end_line), where.name, on_import)
        return Mutant(*place, operator, before, after, start, end, text)


def _put(slot: _Slot, node: ast.AST) -> None:
    parent, field, position = slot
    if position is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[position] = node


def _head(statement: ast.stmt) -> str:
    """A statement as one line, without those inside it."""
    inside = {field: value for field, value in ast.iter_fields(statement) if _is_block(value)}
    kept = {"decorator_list": getattr(statement, "decorator_list", None)}
    try:
        for field in inside:
            setattr(statement, field, [ast.Pass()] if field == "body" else [])
        if kept["decorator_list"] is not None:
            setattr(statement, "decorator_list", [])  # noqa: B010
        text = ast.unparse(ast.fix_missing_locations(statement))
    finally:
        for field, value in (*inside.items(), *kept.items()):
            if value is not None:
                setattr(statement, field, value)
    return " ".join((text.removesuffix("pass") if inside else text).split())


def _is_block(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], (ast.stmt, ast.ExceptHandler, ast.match_case))


# --- what is left out ----------------------------------------------------------------------------------------------------


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Global() | ast.Assert():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=func)) if _is_told(func):
            return True
        case ast.FunctionDef(name=name, decorator_list=above):
            return name in _FOR_READERS or any(_last_name(each) == "overload" for each in above)
        case ast.AnnAssign(annotation=annotation):
            return _last_name(annotation) == "TypeAlias"
        case ast.Assign(value=ast.Call(func=func)):
            return _last_name(func) in {"TypeVar", "ParamSpec", "NewType"}
        case ast.If(test=test):
            return _last_name(test) == "TYPE_CHECKING"
        case ast.keyword(arg="strict"):
            return True
    return False


def _is_told(func: ast.expr) -> bool:
    """Whether a call writes a log, warns, or puts a note on an error."""
    if isinstance(func, ast.Attribute):
        return func.attr == "add_note" or _last_name(func.value).strip("_").lower() in _LOGGERS
    return False


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


# --- what is changed -----------------------------------------------------------------------------------------------------


def _changes(node: ast.AST, slot: _Slot) -> Iterator[tuple[str, ast.AST]]:
    is_test = _is_test(slot)
    if isinstance(node, ast.stmt):
        yield from _changed_statements(node)
        return
    if is_test and isinstance(node, ast.expr) and not isinstance(node, ast.Constant) and not _is_not(node):
        yield "negate", ast.UnaryOp(ast.Not(), node)
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for position, op in enumerate(ops):
                if not (is_test and len(ops) == 1 and isinstance(op, _OPPOSITE)):
                    swapped = [*ops[:position], _COMPARED[type(op)](), *ops[position + 1 :]]
                    yield "compare", ast.Compare(left, swapped, comparators)
        case ast.BoolOp(op=op, values=values):
            yield "and/or", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED:
            yield "arithmetic", ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "no not", operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "sign", operand
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            yield "no ~", operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1) if value >= 1 else ast.UnaryOp(ast.USub(), ast.Constant(1 - value))


def _changed_statements(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete():
            yield "drop", ast.Pass()
        case ast.Assign(targets=targets) if any(_is_kept(target) for target in targets):
            yield "drop", ast.Pass()
        case ast.AnnAssign(target=target, value=ast.expr()) if _is_kept(target):
            yield "drop", ast.Pass()
        case ast.AugAssign(target=target, op=op, value=value):
            if _is_kept(target):
                yield "drop", ast.Pass()
            if type(op) in _COMPUTED:
                yield "arithmetic", ast.AugAssign(target, _COMPUTED[type(op)](), value)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return", ast.Return(ast.Constant(None))
        case ast.Break():
            yield "break", ast.Continue()
        case ast.Continue():
            yield "break", ast.Break()


def _is_kept(target: ast.expr) -> bool:
    """Whether an assignment writes into something that others see: an attribute, an entry."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(_is_kept(each) for each in target.elts)
    return isinstance(target, (ast.Attribute, ast.Subscript))


def _is_test(slot: _Slot) -> bool:
    parent, field, _ = slot
    asks = isinstance(parent, (ast.If, ast.While, ast.IfExp)) and field == "test"
    return asks or (isinstance(parent, ast.comprehension) and field == "ifs") or (field == "guard")


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
