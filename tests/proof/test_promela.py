"""The outside judge: SPIN counts the states of the same worlds, made from the tables alone.

Goal: that what the ledger does is what the tables and couplings say, and nothing else. Method: `promela` writes a small world
down from the tables; SPIN visits every state of it; `LedgerWorld` visits every state of the real ledger in the same world, and
both must have counted the same. SPIN stores the variables of the model, which are the fields of `LedgerWorld.abstract`; so the
numbers can be equal, and nothing is added or taken away before they are compared.

A third reader needs no SPIN: the program is text in a part of Python, so Python runs it as it stands. With it not only numbers
are compared but the states themselves.
"""

from __future__ import annotations

import ast
import enum
import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve

from blocklife.errors import DefinitionError
from blocklife.lifecycle import guard
from blocklife.states import COUPLINGS, MACHINES, Coupling
from tests.proof.judges import rules as rules
from tests.proof.judges.model import Program
from tests.proof.judges.promela import promela
from tests.proof.judges.rules import FACTS, NOT_MODELLED, condition, program
from tests.proof.ledger_world.settings import WORLDS, LedgerSettings
from tests.proof.test_ledger_world import COUNTS, SLOW_COUNTS, explored

DEFAULT = ("deadlines", "windows,contract=hold")
"""Worlds that SPIN counts in every run, one of each contract; the others are slow, for to compile each takes seconds."""

with_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None, reason="SPIN or gcc is not installed (Debian: spin, gcc)"
)


# --- SPIN --------------------------------------------------------------------------------------------------------------


def spin(text: str, where: Path) -> str:
    """What SPIN says about a model that it has searched to the end."""
    (where / "world.pml").write_text(text, encoding="utf-8")
    said = ""
    for command in (
        ["spin", "-a", "world.pml"],
        ["gcc", "-w", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c"],
        ["./pan", "-n", "-m1000000"],
    ):
        ran = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{command[0]}: {ran.stdout}{ran.stderr}"
        said = ran.stdout
    return said


def stored(said: str) -> int:
    """The number of distinct states; a search that was not complete has none."""
    assert "Search not completed" not in said
    assert "max search depth too small" not in said
    found = re.search(r"^ *(\d+) states, stored$", said, re.MULTILINE)
    assert found is not None, said
    return int(found[1])


def check_count(model: str, where: Path, count: int) -> None:
    said = spin(model, where)

    assert "errors: 0" in said, said
    assert stored(said) == count


@with_spin
@pytest.mark.parametrize("text", DEFAULT)
def test_spin_counts_the_states_that_the_explorer_counts(text: str, tmp_path: Path) -> None:
    """Two programs that share nothing but the tables agree on how many states there are."""
    check_count(promela(LedgerSettings.parse(text)), tmp_path, COUNTS[text][1])


@with_spin
@pytest.mark.slow
@pytest.mark.parametrize("text", [*(each for each in COUNTS if each not in DEFAULT), *SLOW_COUNTS])
def test_spin_counts_the_states_of_the_other_worlds(text: str, tmp_path: Path) -> None:
    """The same for all the other pinned worlds."""
    check_count(promela(LedgerSettings.parse(text)), tmp_path, (COUNTS | SLOW_COUNTS)[text][1])


@with_spin
@pytest.mark.parametrize(
    ("written", "planted"),
    [
        ("inline end_life(b) {\n", "inline end_life(b) {\n  break_it;\n"),
        ("  pins[land_store_b] = (pins[land_store_b] - 1);\n", ""),
    ],
    ids=["no Promela", "a pin that is never taken away"],
)
def test_spin_notices_a_model_that_is_wrong(written: str, planted: str, tmp_path: Path) -> None:
    """The judge is awake: a model with a mistake does not pass."""
    text = promela(LedgerSettings())
    assert text.count(written) == 1

    with pytest.raises(AssertionError):
        check_count(text.replace(written, planted), tmp_path, COUNTS["smallest"][1])


# --- Python as the reader ----------------------------------------------------------------------------------------------


class Reader:
    """A program, run by Python itself."""

    def __init__(self, source: Program) -> None:
        self.source = source
        scalars = [each.name for each in source.variables if not each.size]
        tree = ast.parse(source.text)
        for function in tree.body:
            assert isinstance(function, ast.FunctionDef)
            function.body.insert(0, ast.Global(scalars))
        self.names: dict[str, object] = {**source.constants, "count": sum}
        exec(compile(ast.fix_missing_locations(tree), "program", "exec"), self.names)

    def initial(self) -> tuple[int, ...]:
        return tuple(each.initial for each in self.source.variables for _ in range(each.size or 1))

    def load(self, state: tuple[int, ...]) -> None:
        at = 0
        for each in self.source.variables:
            self.names[each.name] = list(state[at : at + each.size]) if each.size else state[at]
            at += each.size or 1

    def save(self) -> tuple[int, ...]:
        found: list[int] = []
        for each in self.source.variables:
            value = self.names[each.name]
            found += value if isinstance(value, list) else [value] if isinstance(value, int) else []
        return tuple(found)

    def ask(self, name: str, *args: int) -> bool:
        asked = self.names[name]
        assert callable(asked)
        return bool(asked(*args))

    def after(self, state: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Every state that can come next; all invariants hold there."""
        for action in self.source.actions:
            for places in action.instances:
                self.load(state)
                if self.ask(action.condition, *places):
                    self.ask(action.verb, *places)
                    for name, doc in self.source.invariants:
                        assert self.ask(name), f"{action.name} {places}: {name}, {doc}"
                    yield self.save()


def states_of(source: Program) -> set[tuple[int, ...]]:
    reader = Reader(source)
    known = {reader.initial()}
    todo = list(known)
    while todo:
        for after in reader.after(todo.pop()):
            if after not in known:
                known.add(after)
                todo.append(after)
    return known


@pytest.mark.parametrize("text", ["smallest", "verbs", "loads", "ahead", "echoes", "verbs,contract=hold", "failures"])
def test_program_reaches_the_states_that_the_ledger_reaches(text: str) -> None:
    """State by state, the tables and the ledger say the same."""
    world, _ = explored(text)

    assert states_of(program(LedgerSettings.parse(text))) == world.abstractions


# --- what is written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(WORLDS))
def test_promela_has_every_row_and_every_coupling(name: str) -> None:
    """Each row of each table stands in the model, and each coupling of jobs that it has, by name; twice written is the same."""
    text = promela(WORLDS[name])

    for table in MACHINES.values():
        for row in table.rows:
            assert f"/* {row} */" in text
    for coupling in COUPLINGS:
        modelled = not coupling.cause.endswith(NOT_MODELLED)
        if modelled and coupling.cause.startswith(("job.finish(", "job.cancel(", "job.expire(")):
            assert f"/* coupling {coupling.name} */" in text
    assert promela(WORLDS[name]) == text


@pytest.mark.parametrize("machine", list(MACHINES))
def test_promela_guards_hold_exactly_where_guards_do(machine: str) -> None:
    """The printed condition of a guard is true for the facts for which the guard is, and for no others."""
    for each in {row.guard for row in MACHINES[machine].rows if row.guard is not None}:
        for values in itertools.product((0, 1, 3), repeat=len(each.parameters)):
            given = dict(zip(each.parameters, values, strict=True))
            if any(value == 3 and name in ("fence", "own", "ok") for name, value in given.items()):
                continue
            facts: dict[str, object] = {"b": 0, "s": 0, "FENCE": given.get("fence", 0)}
            facts |= {name: [value] for name, value in given.items()} | {"spins": [given.get("pins", 0)]}
            facts |= {name: given[name] for name in ("own", "ok") if name in given}
            facts["more"] = min(given.get("outstanding", 0), 1)

            assert eval(condition(each, machine), {}, facts) == each(**given), f"{machine}: {each.name} {given}"


def test_promela_guard_with_an_unknown_fact_is_an_error() -> None:
    """A guard that asks for something new is not passed over."""

    @guard
    def hot(temperature: int) -> bool:
        return temperature > 0

    with pytest.raises(DefinitionError, match="guard hot: block has no translation of temperature"):
        condition(hot, "block")


def test_promela_guard_that_counts_is_an_error() -> None:
    """The model knows of a count only whether it is zero."""

    @guard
    def crowded(refs: int) -> bool:
        return refs > 1

    with pytest.raises(DefinitionError, match="guard crowded: it distinguishes 1 from 2"):
        condition(crowded, "block")


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        (
            "reset-now",
            lambda each: evolve(each, effects=(*each.effects, "block.shred")),
            "coupling reset-now: block.shred has no translation",
        ),
        (
            "store-ended",
            lambda each: evolve(each, effects=("block.shred",)),
            "coupling store-ended: block.shred has no translation",
        ),
        ("life-ends", lambda each: evolve(each, name="life-goes-on"), "coupling life-goes-on: it has no translation"),
    ],
)
def test_promela_coupling_that_is_new_is_an_error(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Coupling], Coupling], complaint: str
) -> None:
    """A coupling or an effect that the model does not know is not passed over."""
    changed = tuple(change(each) if each.name == name else each for each in COUPLINGS)
    monkeypatch.setattr(rules, "COUPLINGS", changed)
    monkeypatch.setattr(rules, "coupled", lambda cause, into: coupled_in(changed, cause, into))

    with pytest.raises(DefinitionError, match=complaint):
        program(LedgerSettings())


def coupled_in(couplings: tuple[Coupling, ...], cause: str, into: enum.Enum) -> tuple[str, ...]:
    found = [each.effects for each in couplings if each.cause == cause and (not each.into or into in each.into)]
    return found[0] if found else ()


def test_promela_facts_are_those_that_guards_ask_for() -> None:
    """No translation is kept for a fact that no guard asks for any more."""
    for machine, table in MACHINES.items():
        asked = {name for row in table.rows if row.guard is not None for name in row.guard.parameters}

        assert asked <= set(FACTS[machine])
    every = {name for table in MACHINES.values() for row in table.rows if row.guard for name in row.guard.parameters}
    assert every == {name for facts in FACTS.values() for name in facts}
