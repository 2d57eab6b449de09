"""Is the TLA+ module what the tables say, as far as this can be known without TLC?

Goal: nobody should have to run the module to find that it is broken. Method: its form is checked by hand (brackets, LET and IN,
names bound once and defined before they are used, every variable given its next value once in each action), and a small reader
of just the forms that are printed evaluates it and visits every state of small worlds. The reader is ours, and so no judge of
what TLC would say about syntax; TLC itself has not been run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from attrs import define, evolve, field

from blocklife.drawing.model import WORLDS, ModelSettings
from blocklife.drawing.rules import program
from blocklife.drawing.tla import tla
from blocklife.errors import DefinitionError
from blocklife.states import COUPLINGS, MACHINES
from tests.test_ledger_world import explored

every_world = pytest.mark.parametrize("name", list(WORLDS))
_DEFINED = re.compile(r"^([A-Za-z_]\w*)(?:\(([\w, ]*)\))? == ?(.*)$")


def body_of(name: str) -> str:
    """The module between its two lines, without remarks."""
    text = tla(WORLDS[name])
    inside = text.split("----\n", 1)[1].split("\n====\n")[0]
    return re.sub(r"\\\*.*", "", inside)


def definitions(text: str) -> dict[str, tuple[list[str], str]]:
    """Each operator of the module with its parameters and its text."""
    found: dict[str, tuple[list[str], str]] = {}
    name = ""
    for line in text.splitlines():
        begins = _DEFINED.match(line)
        if begins:
            name = begins[1]
            assert name not in found, f"{name} is defined twice"
            found[name] = [each.strip() for each in (begins[2] or "").split(",") if each.strip()], begins[3]
        elif name and line.startswith(" "):
            found[name] = found[name][0], f"{found[name][1]}\n{line}"
        elif line.strip():
            name = ""
    return found


# --- form --------------------------------------------------------------------------------------------------------------


@every_world
def test_tla_has_every_row_and_every_coupling(name: str) -> None:
    """Each row of each table, and each coupling of jobs, stands in the module under its name."""
    text = tla(WORLDS[name])

    for table in MACHINES.values():
        for row in table.rows:
            assert f"\\* {row}\n" in text
    for coupling in COUPLINGS:
        if coupling.cause.startswith(("job.finish(", "job.cancel(", "job.expire(")):
            assert f"\\* coupling {coupling.name}\n" in text


@every_world
def test_tla_brackets_and_lets_are_closed(name: str) -> None:
    """What is opened is closed, in order; every LET has its IN, every IF its THEN and ELSE."""
    open_now: list[str] = []
    text = body_of(name)
    for token in re.findall(r"<<|>>|[()\[\]{}]", text):
        if token in ("(", "[", "{", "<<"):
            open_now.append(token)
        else:
            assert open_now.pop() + token in ("()", "[]", "{}", "<<>>")

    assert open_now == []
    words = {word: len(re.findall(rf"\b{word}\b", text)) for word in ("LET", "IN", "IF", "THEN", "ELSE")}
    assert words["LET"] == words["IN"] > 0
    assert words["IF"] == words["THEN"] == words["ELSE"] > 0


@every_world
def test_tla_gives_every_variable_its_next_value_in_each_action(name: str) -> None:
    """`Become` primes every variable once, nothing else primes anything, and each action of `Next` becomes something once."""
    text, source = body_of(name), program(WORLDS[name])
    found = definitions(text)
    variables = [each.name for each in source.variables]
    actions = re.findall(r"\\/ (\w+)", found["Next"][1])

    assert re.findall(r"/\\ (\w+)' = st\.(\w+)", found["Become"][1]) == [(each, each) for each in variables]
    assert text.count("'") == len(variables)
    assert [each.lower() for each in actions] == [each.name for each in source.actions]
    assert all(found[each][1].count("Become(") == 1 for each in actions)
    assert found["vars"][1] == f"<<{', '.join(variables)}>>"
    assert re.findall(r"/\\ (\w+) =", found["Init"][1]) == variables


@every_world
def test_tla_names_have_one_meaning_and_are_defined_before_they_are_used(name: str) -> None:
    """No name is bound where it has a meaning already, and none is used before it has one."""
    text = body_of(name).replace("]_vars", "] vars")
    found = definitions(text)
    variables = re.search(r"(?s)VARIABLES\n(.*?)\n\n", text)
    assert variables is not None
    known = set(re.findall(r"\w+", variables[1])) | {"Cardinality", "Nat"}
    for operator, (params, body) in found.items():
        bound = {*re.findall(r"\b(\w+) \\in", body), *re.findall(r"LET (\w+)", body)}
        inner = {each.strip() for group in re.findall(r"LET \w+\(([^)]*)\)", body) for each in group.split(",")}
        after = set(re.findall(r"^\s+(st\d+) == ", body, re.MULTILINE))

        assert not known & {*params, *bound, *inner}, f"{operator}: a second meaning"
        fields = set(re.findall(r"[.!](\w+)", body)) | set(re.findall(r"(\w+) \|->", body))
        used = set(re.findall(r"[A-Za-z_]\w*", body)) - {"LET", "IN", "IF", "THEN", "ELSE", "EXCEPT", "E", "A", "in"}
        assert used - fields <= known | {*params, *bound, *inner, *after}, f"{operator}: not known yet"
        known.add(operator)


def test_tla_second_meaning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A local that is called like a variable is an error, because TLA+ would not have it."""
    from blocklife.drawing import tla as module

    source = program(ModelSettings())
    clash = evolve(source.predicates[0], params=("b",), test=_clash())
    monkeypatch.setattr(module, "program", lambda _: evolve(source, predicates=(clash,)))
    with pytest.raises(DefinitionError, match="b has a meaning already"):
        tla(ModelSettings())


def _clash() -> Any:
    import ast

    return ast.parse("any(b == 0 for b in range(BLOCKS))", mode="eval").body


# --- meaning -----------------------------------------------------------------------------------------------------------

Env = Mapping[str, Any]
Meaning = Callable[[Env], Any]
_TOKEN = re.compile(r"\\/|/\\|\\E|\\A|\\in|\|->|==|<=|>=|\.\.|[A-Za-z_]\w*|\d+|[-+*=#<>~!.,:()\[\]{}]")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "#": lambda a, b: bool(a != b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
}


@define
class Parser:
    """Makes a function of the text of an expression; knows only what `tla` prints."""

    tokens: list[str]
    at: int = field(default=0)

    @classmethod
    def read(cls, text: str) -> Meaning:
        parser = cls(_TOKEN.findall(text))
        meaning = parser.expression()
        assert parser.at == len(parser.tokens), parser.tokens[parser.at :]
        return meaning

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        assert not wanted or token in wanted, f"{token!r} instead of {wanted}: {self.tokens[self.at - 8 : self.at + 8]}"
        self.at += 1
        return token

    def expression(self) -> Meaning:
        if self.peek() == "LET":
            return self.let()
        if self.peek() == "IF":
            self.take()
            test = self.expression()
            self.take("THEN")
            then = self.expression()
            self.take("ELSE")
            other = self.expression()
            return lambda env: then(env) if test(env) else other(env)
        return self.either()

    def let(self) -> Meaning:
        self.take("LET")
        bound: list[tuple[str, list[str], Meaning]] = []
        while self.peek() != "IN":
            name = self.take()
            params: list[str] = []
            if self.peek() == "(":
                self.take()
                while self.take_param(params):
                    pass
            self.take("==")
            bound.append((name, params, self.expression()))
        self.take("IN")
        inside = self.expression()

        def meaning(env: Env) -> Any:
            scope = dict(env)
            for name, params, body in bound:
                scope[name] = _operator(scope, params, body) if params else body(scope)
            return inside(scope)

        return meaning

    def take_param(self, params: list[str]) -> bool:
        params.append(self.take())
        return self.take(",", ")") == ","

    def either(self) -> Meaning:
        parts = [self.both()]
        while self.peek() == "\\/":
            self.take()
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else lambda env: any(part(env) for part in parts)

    def both(self) -> Meaning:
        parts = [self.compared()]
        while self.peek() == "/\\":
            self.take()
            parts.append(self.compared())
        return parts[0] if len(parts) == 1 else lambda env: all(part(env) for part in parts)

    def compared(self) -> Meaning:
        left = self.sum()
        if self.peek() in _COMPARE:
            compare, right = _COMPARE[self.take()], self.sum()
            return lambda env: compare(left(env), right(env))
        return left

    def sum(self) -> Meaning:
        left = self.product()
        while self.peek() in ("+", "-"):
            left = _added(left, 1 if self.take() == "+" else -1, self.product())
        return left

    def product(self) -> Meaning:
        left = self.atom()
        while self.peek() == "*":
            self.take()
            left = _multiplied(left, self.atom())
        return left

    def atom(self) -> Meaning:
        token = self.take()
        if token.isdigit():
            return lambda env: int(token)
        if token == "(":
            inside = self.expression()
            self.take(")")
            return inside
        if token == "~":
            self.take("(")
            denied = self.expression()
            self.take(")")
            return lambda env: not denied(env)
        if token in ("\\E", "\\A"):
            return self.quantified(any if token == "\\E" else all)
        if token == "Cardinality":
            self.take("(")
            self.take("{")
            counted = self.quantified(sum)
            self.take("}")
            self.take(")")
            return counted
        if token == "[":
            return self.changed()
        return self.named(token)

    def quantified(self, combine: Callable[[Iterator[bool]], Any]) -> Meaning:
        name = self.take()
        self.take("\\in")
        self.take("0")
        self.take("..")
        last = self.atom()
        self.take(":")
        inside = self.expression()
        return lambda env: combine(bool(inside({**env, name: value})) for value in range(last(env) + 1))

    def changed(self) -> Meaning:
        state = self.named(self.take())
        self.take("EXCEPT")
        self.take("!")
        self.take(".")
        name = self.take()
        where: Meaning | None = None
        if self.peek() == "[":
            self.take()
            where = self.expression()
            self.take("]")
        self.take("=")
        value = self.expression()
        self.take("]")
        return lambda env: _changed(state(env), name, where and where(env), value(env))

    def named(self, name: str) -> Meaning:
        found: Meaning = lambda env: env[name]  # noqa: E731
        if self.peek() == "(":
            self.take()
            args = [self.expression()]
            while self.take(",", ")") == ",":
                args.append(self.expression())
            found = lambda env: env[name](*(each(env) for each in args))  # noqa: E731
        if self.peek() == ".":
            self.take()
            part, before = self.take(), found
            found = lambda env: before(env)[part]  # noqa: E731
            if self.peek() == "[":
                self.take()
                index = self.expression()
                self.take("]")
                whole = found
                found = lambda env: whole(env)[index(env)]  # noqa: E731
        return found


def _added(left: Meaning, sign: int, right: Meaning) -> Meaning:
    return lambda env: left(env) + sign * right(env)


def _multiplied(left: Meaning, right: Meaning) -> Meaning:
    return lambda env: left(env) * right(env)


def _operator(scope: Env, params: Sequence[str], body: Meaning) -> Callable[..., Any]:
    return lambda *args: body({**scope, **dict(zip(params, args, strict=True))})


def _changed(state: Mapping[str, Any], name: str, where: int | None, value: int) -> dict[str, Any]:
    if where is None:
        return {**state, name: value}
    old = state[name]
    assert 0 <= where < len(old), f"{name}[{where}]"
    return {**state, name: (*old[:where], value, *old[where + 1 :])}


def reachable(settings: ModelSettings) -> set[tuple[int, ...]]:
    """Every state that the module leads to, read as it was printed; all invariants hold there."""
    source, text = program(settings), re.sub(r"\\\*.*", "", tla(settings))
    found = definitions(text.split("----\n", 1)[1].split("\n====\n")[0])
    env: dict[str, Any] = {}
    operators = {each.name for each in source.predicates} | {each.name for each in source.procedures}
    for name, (params, body) in found.items():
        if name in source.constants:
            env[name] = int(body)
        elif name in operators:
            env[name] = _operator(env, params, Parser.read(body))
    steps = []
    for action in source.actions:
        body = found[action.name[0].upper() + action.name[1:]][1]
        call = re.search(r"(\w+)\(Now[^)]*\) /\\ Become\((\w+)\(Now", body)
        assert call is not None, body
        assert re.findall(r"\\E (\w) ", body) == list(action.params)
        sizes = [range(env[each]) for each in re.findall(r"0\.\.\((\w+) - 1\)", body)]
        steps.append((env[call[1]], env[call[2]], list(itertools.product(*sizes))))
    first = dict(re.findall(r"/\\ (\w+) = (.*)", found["Init"][1]))
    initial = {name: _initial(value) for name, value in first.items()}
    known = {_flat(initial): initial}
    todo = [initial]
    while todo:
        state = todo.pop()
        for may, do, places in steps:
            for each in places:
                if may(state, *each):
                    after = do(state, *each)
                    if _flat(after) not in known:
                        assert all(env[name](after) for name, _ in source.invariants)
                        known[_flat(after)] = after
                        todo.append(after)
    return set(known)


def _initial(text: str) -> int | tuple[int, ...]:
    array = re.fullmatch(r"\[at \\in 0\.\.(\d+) \|-> (\d+)\]", text)
    return (int(array[2]),) * (int(array[1]) + 1) if array else int(text)


def _flat(state: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(byte for value in state.values() for byte in (value if isinstance(value, tuple) else (value,)))


@pytest.mark.parametrize("text", ["smallest", "loads", "echoes,contract=hold"])
def test_tla_leads_to_the_states_that_the_ledger_reaches(text: str) -> None:
    """Read as it is printed, the module reaches exactly the abstractions of the states of the real ledger."""
    world, _ = explored(text)

    assert reachable(ModelSettings.parse(text)) == world.abstractions
