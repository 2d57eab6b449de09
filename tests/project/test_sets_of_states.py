"""No set of states is written outside `blocklife/states.py`: elsewhere it follows from traits and rows.

Goal: whoever adds a state gives it its traits, and it is in every set that it belongs to. The source is parsed. A set of
states is two or more members of one enum in a tuple, list or set, or in a chain of comparisons with the same thing;
`Block.SEALED` counts as do its code, its name, and a name that this module or another one gave to one of these.

Single states may be named, and dictionaries may say something of each. Not looked at: tests, which say what was
agreed on.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, get_args

import pytest

import blocklife
from blocklife.ledger import jobs
from blocklife.states import ADMITTED, OUT, OUT_AND_WANTED, STORABLE, Block, Job, Request, Slot
from blocklife.testing.scenarios import _verbs

Member: TypeAlias = tuple[str, str]
"""An enum and its member, by name."""

PACKAGE = Path(blocklife.__file__).parent
STATES: dict[str, frozenset[str]] = {each.__name__: frozenset(each.__members__) for each in (Block, Slot, Job, Request)}

ALLOWED = {
    ("ledger/_refusals.py", "_REMEDIES"): "words for the reader of a refusal; a state without any gets those of the table",
    ("ledger/jobs.py", "Storable"): "a type, which mypy reads and nothing can compute; compared below",
    ("ledger/jobs.py", "Submitted"): "the same",
    ("ledger/jobs.py", "Out"): "the same",
    ("testing/scenarios/_verbs.py", "_RUNS"): "words of the driver protocol, which knows no tables; compared below",
}
"""Where sets of states are written all the same: the file, the name that is assigned, and why."""


class Reader:
    """Finds the sets of states in one module. *names* are those that stand for one state."""

    def __init__(self, names: Mapping[str, Member]) -> None:
        self.names = names

    def state(self, node: ast.expr) -> Member | None:
        """The state that an expression stands for: a member, its code in a table, its name, or a name for these."""
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
            return None
        path = ast.unparse(node)
        if path in self.names:
            return self.names[path]
        enum, _, member = path.partition(".")
        if member in STATES.get(enum, ()):
            return enum, member
        if isinstance(node, ast.Attribute):
            return self.state(node.value)
        return self.state(node.slice) if isinstance(node, ast.Subscript) else None

    def _compared(self, node: ast.expr) -> Iterator[tuple[str, Member]]:
        """What is compared with which state, in a chain of comparisons or of sets."""
        if isinstance(node, ast.BoolOp):
            for each in node.values:
                yield from self._compared(each)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd):
            yield from self._compared(node.left)
            yield from self._compared(node.right)
        elif isinstance(node, ast.UnaryOp):
            yield from self._compared(node.operand)
        elif isinstance(node, ast.Compare) and len(node.comparators) == 1:
            if (state := self.state(node.comparators[0])) is not None:
                yield ast.unparse(node.left), state
        elif isinstance(node, ast.Set):
            yield from (("", state) for each in node.elts if (state := self.state(each)) is not None)

    def found(self, node: ast.AST) -> bool:
        """Whether this expression is a set of states."""
        if isinstance(node, ast.Set | ast.List | ast.Tuple):
            if len(node.elts) > 1 and all(isinstance(each, ast.Constant) for each in node.elts):
                texts = {each.value for each in node.elts if isinstance(each, ast.Constant)}
                return any(texts <= own for own in STATES.values())
            return _several(("", state) for each in node.elts if (state := self.state(each)) is not None)
        if isinstance(node, ast.MatchOr):
            values = [each.value for each in node.patterns if isinstance(each, ast.MatchValue)]
            return _several(("", state) for each in values if (state := self.state(each)) is not None)
        return isinstance(node, ast.BoolOp | ast.BinOp) and _several(self._compared(node))


def _several(named: Iterator[tuple[str, Member]]) -> bool:
    """Whether two or more states of one enum are named for the same thing."""
    by_thing: dict[tuple[str, str], set[str]] = {}
    for thing, (enum, member) in named:
        by_thing.setdefault((thing, enum), set()).add(member)
    return any(len(members) > 1 for members in by_thing.values())


def pairs(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """What an assignment gives to what; several at once are taken apart."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return []
    (target,) = node.targets
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
        return list(zip(target.elts, node.value.elts, strict=True))
    return [(target, node.value)]


def names_in(tree: ast.Module) -> dict[str, Member]:
    """The names that a module gives to single states, as they are written."""
    given = [pair for node in ast.walk(tree) for pair in pairs(node)]
    plain = Reader({})
    return {ast.unparse(target): state for target, value in given if (state := plain.state(value)) is not None}


def sets_in(tree: ast.Module, names: Mapping[str, Member]) -> Iterator[tuple[str, int]]:
    """The name that each set of states is assigned to, empty if there is none, and its line; the outermost of nested ones."""
    reader = Reader(names)
    for statement in tree.body:
        nodes = list(ast.walk(statement))
        assigned = [node for node in nodes if isinstance(node, ast.Assign) and len(pairs(node)) > 1]
        unpacked = {id(side) for node in assigned for side in (*node.targets, node.value)}
        for node in nodes:
            if id(node) not in unpacked and reader.found(node) and isinstance(node, ast.expr | ast.pattern):
                yield _assigned(statement), node.lineno


def _assigned(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0])
    return ast.unparse(statement.target) if isinstance(statement, ast.AnnAssign) else ""


def package_sets() -> Iterator[tuple[str, str, int]]:
    """The file, the name and the line of every set of states in the package."""
    trees = {
        path.relative_to(PACKAGE): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "states.py"
    }
    own = {path: names_in(tree) for path, tree in trees.items()}
    modules = {".".join(("blocklife", *path.with_suffix("").parts)): names for path, names in own.items()}
    for path, tree in trees.items():
        names = dict(own[path])
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in modules:
                known = modules[node.module]
                names.update({each.asname or each.name: known[each.name] for each in node.names if each.name in known})
        yield from ((path.as_posix(), name, line) for name, line in sets_in(tree, names))


def test_no_set_of_states_is_written_outside_their_file() -> None:
    """Traits and rows say which states belong together; what is allowed is still there."""
    found = list(package_sets())
    wrong = [f"blocklife/{path}:{line}" for path, name, line in found if (path, name) not in ALLOWED]

    assert not wrong, f"sets of states by hand: {', '.join(wrong)} (derive them from traits or rows, in states.py or there)"
    assert {(path, name) for path, name, _ in found} == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "X = {Block.FREED, Block.CACHED}",
        "X = frozenset([Slot.WRITING, Slot.READY])",
        "X = (_CODE[Block.FREED], _CODE[Block.CACHED])",
        "X = [Job.DONE.name, Job.FAILED.name]",
        "X = ('DONE', 'FAILED')",
        "X = KEYED | {Block.ALLOCATED} | {Block.PLEDGED}",
        "if state is Job.DONE or state is Job.FAILED: pass",
        "if state is not Job.DONE and late and state is not Job.FAILED: pass",
        "X = (column == index[Slot.EMPTY]) | (column == index[Slot.READY])",
        "_A, _B = CODE[Block.STALE], CODE[Block.LOADING]\nX = {_A, _B}",
        "class A:\n  def f(self):\n    self.a, self.b = c[Block.FREED], c[Block.CACHED]\n    y = (x == self.a) | (x == self.b)",
        "match state:\n  case Block.FREED | Block.CACHED: pass",
        "X: T = Literal[Job.IN_FLIGHT, Job.AWAITED]",
    ],
)
def test_sets_are_seen_however_they_are_written(source: str) -> None:
    """As a display, a chain, a pattern; by member, code or name."""
    tree = ast.parse(source)

    assert list(sets_in(tree, names_in(tree)))


@pytest.mark.parametrize(
    "source",
    [
        "A, B = CODE[Block.STALE], CODE[Block.LOADING]",
        "X = {Block.FREED: 1, Block.CACHED: 2}",
        "X = KEYED - COPYING | {Block.ALLOCATED}",
        "if one is Block.FREED or other is Block.CACHED: pass",
        "if block is Block.STALE or slot is Slot.STALE: pass",
        "X = (Block.STALE, Slot.STALE)",
        "X = {'WAITING', 'WAITING_FOR_REMOTE_KVS'}",
    ],
)
def test_single_states_may_be_named(source: str) -> None:
    """One state is no set, nor are states of two things."""
    tree = ast.parse(source)

    assert not list(sets_in(tree, names_in(tree)))


def test_types_of_handles_are_the_sets_of_their_states() -> None:
    """What mypy reads is what the traits and rows say."""
    assert set(get_args(jobs.Storable)) == STORABLE
    assert set(get_args(jobs.Submitted)) == OUT_AND_WANTED
    assert {each.name for each in ADMITTED} == _verbs._RUNS
    assert set(get_args(jobs.Out)) == OUT
