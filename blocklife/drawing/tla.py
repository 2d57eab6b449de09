"""A small world as a TLA+ module, for TLC or a proof.

Rules of this file:

* It translates, and decides nothing: whatever it does not know is an error.
* A procedure is an operator from a state to a state, a record with one field for each variable; an action takes the state
  that is (``Now``), and ``Become`` gives every variable its next value.

A name that is bound in an operator is bound once: TLA+ allows no second meaning.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from blocklife.drawing.model import ModelAction, ModelSettings, Predicate, Procedure, Program
from blocklife.drawing.rules import program
from blocklife.errors import DefinitionError

_COMPARED: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "=", ast.NotEq: "#", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_COMPUTED: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_SIZES = {"r": "REQUESTS", "b": "BLOCKS", "s": "SLOTS", "j": "JOBS", "w": "WORKERS"}
MODULE = "Blocklife"


def tla(settings: ModelSettings) -> str:
    """The whole module, with the settings for TLC in a comment at its end."""
    return "\n".join(_TlaPrinter(program(settings)).lines()) + "\n"


class _TlaPrinter:
    """One program on its way into TLA+.

    Invariant: ``scope`` holds the names that are bound where the printer stands; ``number`` is that of the last name that it
    made up.
    """

    def __init__(self, source: Program) -> None:
        self.source = source
        self.variables = {each.name: each for each in source.variables}
        self.scope: tuple[str, ...] = ()
        self.number = 0

    def lines(self) -> Iterator[str]:
        """The module, line by line."""
        source = self.source
        yield f"---- MODULE {MODULE} ----"
        yield f"\\* {source.settings}"
        yield "EXTENDS Naturals, FiniteSets"
        yield ""
        for name, value in source.constants.items():
            yield f"{name} == {value}"
        yield ""
        yield "VARIABLES"
        for number, each in enumerate(source.variables, 1):
            yield f"  {each.name}{',' if number < len(source.variables) else ''} \\* {each.doc}"
        yield ""
        yield f"vars == <<{', '.join(self.variables)}>>"
        yield from self._states()
        for predicate in source.predicates:
            yield ""
            yield from self._predicate(predicate)
        for procedure in source.procedures:
            yield ""
            yield from self._procedure(procedure)
        for action in source.actions:
            yield ""
            yield from self._action(action)
        yield ""
        yield "Next =="
        yield from (f"  \\/ {_capital(action.name)}" for action in source.actions)
        yield ""
        yield "Spec == Init /\\ [][Next]_vars"
        for name, doc in source.invariants:
            yield ""
            yield f"\\* {doc}"
            yield f"Always_{name} == {name}(Now)"
        yield ""
        yield "===="
        yield ""
        yield from self._configuration()

    def _states(self) -> Iterator[str]:
        yield ""
        yield "\\* the state as one value, and back"
        yield f"Now == [{', '.join(f'{name} |-> {name}' for name in self.variables)}]"
        yield ""
        yield "Become(st) =="
        yield from (f"  /\\ {name}' = st.{name}" for name in self.variables)
        yield ""
        yield "Init =="
        for each in self.source.variables:
            value = f"[at \\in 0..{each.size - 1} |-> {each.initial}]" if each.size else str(each.initial)
            yield f"  /\\ {each.name} = {value}"

    def _configuration(self) -> Iterator[str]:
        yield f"What TLC reads from {MODULE}.cfg:"
        yield ""
        yield "SPECIFICATION Spec"
        yield "CHECK_DEADLOCK FALSE"
        yield from (f"INVARIANT Always_{name}" for name, _ in self.source.invariants)

    def _action(self, action: ModelAction) -> Iterator[str]:
        yield f"\\* {action.doc}"
        args = ", ".join(("Now", *action.params))
        bound = "".join(f"\\E {name} \\in 0..({_SIZES[name]} - 1) : " for name in action.params)
        yield f"{_capital(action.name)} == {bound}{action.condition}({args}) /\\ Become({action.verb}({args}))"

    # --- procedures ---------------------------------------------------------------------------------------------------------

    def _predicate(self, predicate: Predicate) -> Iterator[str]:
        self.scope, self.number = predicate.params, 0
        params = ", ".join(("st", *predicate.params))
        yield f"{predicate.name}({params}) == {self._expression(predicate.test, 'st')}"

    def _procedure(self, procedure: Procedure) -> Iterator[str]:
        self.scope, self.number = procedure.params, 0
        yield f"{procedure.name}({', '.join(('st', *procedure.params))}) =="
        yield from self._chain(procedure.body, "st", "  ")

    def _new(self, stem: str) -> str:
        self.number += 1
        return f"{stem}{self.number}"

    def _bind(self, name: str) -> None:
        if name in self.scope or name in self.variables:
            raise DefinitionError(f"{name} has a meaning already, and TLA+ allows no second one")
        self.scope = (*self.scope, name)

    def _chain(self, body: Sequence[ast.stmt], state: str, margin: str) -> Iterator[str]:
        """The state after some statements that begin in *state*: one LET for each of them."""
        before = self.scope
        for node in body:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                yield f"{margin}\\* {node.value.value!s}"
                continue
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and node.targets[0].id not in self.variables
            ):
                name = node.targets[0].id
                value = self._expression(node.value, state)
                self._bind(name)
                yield f"{margin}LET {name} == {value} IN"
                continue
            after = self._new("st")
            yield from self._statement(node, state, after, margin)
            state = after
        self.scope = before
        yield f"{margin}{state}"

    def _statement(self, node: ast.stmt, state: str, after: str, margin: str) -> Iterator[str]:
        match node:
            case ast.Expr(ast.Call(ast.Name(name), args)):
                values = ", ".join((state, *(self._expression(each, state) for each in args)))
                yield f"{margin}LET {after} == {name}({values}) IN"
            case ast.Assign([ast.Name(name)], value):
                yield f"{margin}LET {after} == [{state} EXCEPT !.{name} = {self._expression(value, state)}] IN"
            case ast.Assign([ast.Subscript(ast.Name(name), index)], value):
                where = self._expression(index, state)
                yield f"{margin}LET {after} == [{state} EXCEPT !.{name}[{where}] = {self._expression(value, state)}] IN"
            case ast.If(test, body, orelse):
                yield f"{margin}LET {after} =="
                yield f"{margin}  IF {self._expression(test, state)} THEN"
                yield from self._chain(body, state, margin + "    ")
                yield f"{margin}  ELSE"
                yield from self._chain(orelse, state, margin + "    ")
                yield f"{margin}IN"
            case ast.For(ast.Name(name), ast.Call(ast.Name("range"), [ast.Name(size)]), body):
                loop, inside = self._new("Each"), self._new("st")
                self._bind(name)
                yield f"{margin}LET {loop}({inside}, {name}) =="
                yield from self._chain(body, inside, margin + "      ")
                self.scope = tuple(each for each in self.scope if each != name)
                taken = state
                for place in range(self.source.constants[size]):
                    taken = f"{loop}({taken}, {place})"
                yield f"{margin}    {after} == {taken} IN"
            case _:
                raise DefinitionError(f"{ast.unparse(node)}: TLA+ has no translation of it")

    # --- expressions --------------------------------------------------------------------------------------------------------

    def _expression(self, node: ast.expr, state: str) -> str:
        match node:
            case ast.Constant(int() as value):
                return str(value)
            case ast.Name(name):
                return f"{state}.{name}" if name in self.variables else name
            case ast.Subscript(ast.Name(name), index):
                return f"{state}.{name}[{self._expression(index, state)}]"
            case ast.BoolOp(operator, values):
                word = " /\\ " if isinstance(operator, ast.And) else " \\/ "
                return f"({word.join(self._expression(each, state) for each in values)})"
            case ast.UnaryOp(ast.Not(), value):
                return f"~({self._expression(value, state)})"
            case ast.Compare(left, [operator], [right]):
                return f"({self._expression(left, state)} {_COMPARED[type(operator)]} {self._expression(right, state)})"
            case ast.BinOp(left, operator, right):
                return f"({self._expression(left, state)} {_COMPUTED[type(operator)]} {self._expression(right, state)})"
            case ast.IfExp(test, body, orelse):
                chosen = [self._expression(each, state) for each in (test, body, orelse)]
                return f"(IF {chosen[0]} THEN {chosen[1]} ELSE {chosen[2]})"
            case ast.Call(ast.Name(name), [ast.GeneratorExp() as each]):
                return self._over_all(name, each, state)
            case ast.Call(ast.Name(name), args):
                return f"{name}({', '.join((state, *(self._expression(each, state) for each in args)))})"
        raise DefinitionError(f"{ast.unparse(node)}: TLA+ has no translation of it")

    def _over_all(self, name: str, node: ast.GeneratorExp, state: str) -> str:
        """``any``, ``all`` and ``count`` are a quantifier, or the size of a set."""
        match node.generators:
            case [ast.comprehension(target=ast.Name(variable), iter=ast.Call(ast.Name("range"), [ast.Name(size)]))]:
                self._bind(variable)
                inner = self._expression(node.elt, state)
                self.scope = tuple(each for each in self.scope if each != variable)
                over = f"{variable} \\in 0..({size} - 1) : {inner}"
                if name == "count":
                    return f"Cardinality({{{over}}})"
                return f"({chr(92)}{'E' if name == 'any' else 'A'} {over})"
        raise DefinitionError(f"{ast.unparse(node)}: TLA+ has no translation of it")


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]
