"""A small world as Promela, for SPIN to count its states.

Rules of this file:

* It only translates: a statement that it does not know is an error.
* Every action is one ``atomic`` alternative of a single process, and cannot block half-way, so that SPIN stores exactly the
  states of the world. (``d_step`` would do the same, but SPIN limits its length.)

Run it with ``spin -a world.pml && gcc -w -DSAFETY -DNOREDUCE -o pan pan.c && ./pan -m1000000``. ``-DNOREDUCE``: a reduced
search does not count all states. No ``-O``: it takes longer than the search. Variables that are only used inside an action are
``hidden``, and not part of the state.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from blocklife.errors import DefinitionError
from tests.proof.judges.model import ModelAction, Predicate, Procedure, Program
from tests.proof.judges.rules import program
from tests.proof.ledger_world.settings import LedgerSettings

_COMPARED: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_COMPUTED: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


_CHOSEN = ("at_r", "at_b", "at_s", "at_j", "at_w")
"""The variables that hold the parameters of the chosen action."""


def promela(settings: LedgerSettings) -> str:
    """The whole model."""
    return "\n".join(_PromelaPrinter(program(settings)).lines()) + "\n"


class _PromelaPrinter:
    """Prints one program as Promela.

    Invariant: ``names`` maps the names of the procedure that is being printed to those in Promela; ``hidden`` collects the
    locals of all procedures.
    """

    def __init__(self, source: Program) -> None:
        self.source = source
        self.hidden: list[str] = []
        self.names: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
        """The model, line by line."""
        body = [line for each in self.source.procedures for line in self._procedure(each)]
        yield f"/* {self.source.settings} */"
        yield from self._declarations()
        yield ""
        for predicate in self.source.predicates:
            yield self._predicate(predicate)
        yield ""
        yield from (f"hidden byte {name};" for name in (*_CHOSEN, *self.hidden))
        yield ""
        yield from body
        yield "active proctype world() {"
        yield "  do"
        for action in self.source.actions:
            yield f"  /* {action.name}: {action.doc} */"
            yield from self._chosen(action)
        yield "  /* what holds in every state: an action that is possible only if something does not hold */"
        yield f"  :: atomic {{ !({' && '.join(f'{name}()' for name, _ in self.source.invariants)}) ->"
        yield from (f"       assert({name}()); /* {doc} */" for name, doc in self.source.invariants)
        yield "       assert(false)"
        yield "     }"
        yield "  od"
        yield "}"

    def _declarations(self) -> Iterator[str]:
        for name, value in self.source.constants.items():
            yield f"#define {name} {value}"
        yield ""
        for each in self.source.variables:
            size = f"[{each.size}]" if each.size else ""
            initial = f" = {each.initial}" if each.initial else ""
            yield f"byte {each.name}{size}{initial}; /* {each.doc} */"

    def _chosen(self, action: ModelAction) -> Iterator[str]:
        """One alternative: if any instance is possible, one of them is taken, in one atomic step."""
        if not action.params:
            yield f"  :: atomic {{ {action.condition}() -> {action.verb}() }}"
            return
        calls = [", ".join(map(str, values)) for values in action.instances]
        yield f"  :: atomic {{ {' || '.join(f'{action.condition}({call})' for call in calls)} ->"
        yield "       if"
        for values, call in zip(action.instances, calls, strict=True):
            assigned = "; ".join(f"at_{name} = {value}" for name, value in zip(action.params, values, strict=True))
            yield f"       :: {action.condition}({call}) -> {assigned}"
        yield "       fi;"
        yield f"       {action.verb}({', '.join(f'at_{name}' for name in action.params)})"
        yield "     }"

    # --- procedures ---------------------------------------------------------------------------------------------------------

    def _procedure(self, procedure: Procedure) -> Iterator[str]:
        self.names = {}
        for node in ast.walk(ast.Module(list(procedure.body), [])):
            if isinstance(node, ast.Assign | ast.For):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and not self._is_variable(target.id) and target.id not in self.names:
                    self.names[target.id] = f"{procedure.name}_{target.id}"
        self.hidden += self.names.values()
        yield f"inline {procedure.name}({', '.join(procedure.params)}) {{"
        yield from self._block(procedure.body, "  ")
        yield "}"
        yield ""

    def _is_variable(self, name: str) -> bool:
        return any(each.name == name for each in self.source.variables)

    def _block(self, body: Iterable[ast.stmt], margin: str) -> Iterator[str]:
        statements = list(body)
        for number, node in enumerate(statements):
            lines = list(self._statement(node, margin))
            if number + 1 < len(statements) and not lines[-1].endswith("*/"):
                lines[-1] += ";"
            yield from lines

    def _statement(self, node: ast.stmt, margin: str) -> Iterator[str]:
        match node:
            case ast.Expr(ast.Constant(str() as remark)):
                yield f"{margin}/* {remark} */"
            case ast.Expr(ast.Call(ast.Name(name), args)):
                yield f"{margin}{name}({', '.join(self._expression(each) for each in args)})"
            case ast.Assign([target], value):
                yield f"{margin}{self._expression(target)} = {self._expression(value)}"
            case ast.If(test, body, orelse):
                yield f"{margin}if"
                yield f"{margin}:: {self._expression(test)} ->"
                yield from self._block(body, margin + "  ")
                yield f"{margin}:: else ->"
                yield from self._block(orelse, margin + "  ") if orelse else (f"{margin}  skip",)
                yield f"{margin}fi"
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), [ast.Name(size)]), body):
                yield f"{margin}for ({self.names[name]} : 0 .. {size} - 1) {{"
                yield from self._block(body, margin + "  ")
                yield f"{margin}}}"
            case _:
                raise DefinitionError(f"{ast.unparse(node)}: it cannot be translated to Promela")

    # --- expressions --------------------------------------------------------------------------------------------------------

    def _predicate(self, predicate: Predicate) -> str:
        self.names = {}
        return f"#define {predicate.name}({', '.join(predicate.params)}) ({self._expression(predicate.test)})"

    def _expression(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(int() as value):
                return str(value)
            case ast.Name(name):
                return self.names.get(name, name)
            case ast.Subscript(ast.Name(name), index):
                return f"{name}[{self._expression(index)}]"
            case ast.BoolOp(operator, values):
                word = " && " if isinstance(operator, ast.And) else " || "
                return f"({word.join(self._expression(each) for each in values)})"
            case ast.UnaryOp(ast.Not(), value):
                return f"!({self._expression(value)})"
            case ast.Compare(left, [operator], [right]):
                return f"({self._expression(left)} {_COMPARED[type(operator)]} {self._expression(right)})"
            case ast.BinOp(left, operator, right):
                return f"({self._expression(left)} {_COMPUTED[type(operator)]} {self._expression(right)})"
            case ast.IfExp(test, body, orelse):
                return f"({self._expression(test)} -> {self._expression(body)} : {self._expression(orelse)})"
            case ast.Call(ast.Name(name), [ast.GeneratorExp() as each]):
                return self._over_all(name, each)
            case ast.Call(ast.Name(name), args):
                return f"{name}({', '.join(self._expression(each) for each in args)})"
        raise DefinitionError(f"{ast.unparse(node)}: it cannot be translated to Promela")

    def _over_all(self, name: str, node: ast.GeneratorExp) -> str:
        """``any``, ``all`` and ``count`` are written out, once for each value."""
        match node.generators:
            case [ast.comprehension(target=ast.Name(variable), iter=ast.Call(ast.Name("range"), [ast.Name(size)]))]:
                before = self.names.get(variable)
                parts = []
                for value in range(self.source.constants[size]):
                    self.names[variable] = str(value)
                    parts.append(self._expression(node.elt))
                if before is None:
                    del self.names[variable]
                else:
                    self.names[variable] = before
                if name == "count":
                    return f"({' + '.join(f'({part} -> 1 : 0)' for part in parts)})"
                return f"({(' || ' if name == 'any' else ' && ').join(parts)})"
        raise DefinitionError(f"{ast.unparse(node)}: it cannot be translated to Promela")
