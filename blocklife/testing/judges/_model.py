"""A small world as a program: the tables and couplings, with an engine and a device that do whatever is possible.

Rules of this file:

* The program is text in a small subset of Python that translates directly to Promela. It does not use the ledger.
* This file defines what a program is and the size of its world; `_rules.py` writes it, `_promela.py` translates it.

Theory. The world is smaller than the ledger's: a request holds at most one block, a job moves one block, content is one letter
per request. It is not simpler: every row of the tables and every coupling is in it. An *action* is one verb of the engine, or
one step of the device, with everything that is coupled to it; it happens as a whole or not at all. Its *condition* says when it
is possible: the tables allow it, and the engine has a reason to do it (`specs/judges.md`).

The subset of Python: byte variables and arrays of them; procedures with parameters that are names or numbers, ``if``, ``for``
over a range, calls, locals that are assigned once; expressions with comparisons, ``and``, ``or``, ``not``, a conditional,
``any``, ``all`` and ``count`` over one range, and calls of one-line functions. A string on its own is a comment.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Self

from attrs import field, fields, frozen

from blocklife.errors import MisuseError
from blocklife.ledger._limits import Contract
from blocklife.states import COUPLINGS, KEYED, MACHINES, Block, Slot, Trait, states_with


def _plain_verbs() -> Iterator[tuple[str, str]]:
    caused = {effect for row in COUPLINGS for effect in row.effects}
    for machine, states in (("block", states_with(Trait.HELD, Block) | KEYED), ("slot", states_with(Trait.KEYED, Slot))):
        for event in MACHINES[machine].events.values():
            if f"{machine}.{event.name}" not in caused and not any(row.target in states for row in event.rows):
                yield event.name, machine


PLAIN: Mapping[str, str] = MappingProxyType(dict(_plain_verbs()))
"""Events, with their machine, that the ledger has a verb for: no coupling causes them, and no request or job gets the place."""

VERBS = ("submit", "cancel", "abandon", "flush", "release", "drop", *PLAIN, "pin", "quiesce", "expire", "reset")
"""What an engine does only if a world enables it. It does everything else in every world."""

# --- the size of a world -----------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ModelSettings:
    """The size of a world, and what can happen in it."""

    blocks: int = 1
    """Blocks that can be handed out, without the null block."""
    slots: int = 1
    requests: int = 1
    jobs: int = 1
    """Jobs that can be outstanding, or have reports on the way, at one time."""
    workers: int = 1
    plans: int = 1
    """Plans that can be outstanding at one time: 1 or 2."""
    contract: Contract = Contract.FENCE
    shared: bool = False
    """Whether all requests have the same content, so that they can share blocks and load what another stored."""
    loads: bool = False
    verbs: frozenset[str] = frozenset()
    """Which of `VERBS` the engine uses."""
    failures: int = 0
    """How many copies can fail."""
    losses: int = 0
    """How many reports can be lost."""
    repeats: int = 0
    """How many reports can come twice."""

    def __attrs_post_init__(self) -> None:
        for name, least, most in (
            *((name, 1, 6) for name in ("blocks", "slots", "requests", "jobs")),
            *(("workers", 1, 4), ("plans", 1, 2)),
            *((name, 0, 9) for name in ("failures", "losses", "repeats")),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise MisuseError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        if unknown := sorted(self.verbs - set(VERBS)):
            raise MisuseError(f"{unknown[0]!r} is not a verb that can be chosen (known: {', '.join(VERBS)})")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``blocks=2,slots=1,contract=hold,shared,loads,verbs=drop+evict``; a name of `WORLDS` may come first."""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        found: dict[str, object] = {}
        if parts and parts[0] in WORLDS:
            named = WORLDS[parts.pop(0)]
            found = {each.name: getattr(named, each.name) for each in fields(ModelSettings)}
        kinds = {each.name: each.type for each in fields(cls)}
        found |= dict(_read(part, kinds) for part in parts)
        return cls(**found)  # type: ignore[arg-type]  # `_read` gives each part the type of its field

    def __str__(self) -> str:
        """The text that `parse` reads."""
        parts = []
        for each in fields(type(self)):
            value = getattr(self, each.name)
            if isinstance(value, bool):
                value = "yes" if value else "no"
            elif isinstance(value, Contract):
                value = value.name.lower()
            elif isinstance(value, frozenset):
                value = "+".join(sorted(value))
            parts.append(f"{each.name}={value}")
        return ",".join(parts)


def _read(part: str, kinds: Mapping[str, object]) -> tuple[str, object]:
    """Read one part of a world's text; *kinds* are the types of its parts."""
    name, _, value = part.partition("=")
    flag = kinds.get(name) in (bool, "bool")
    if name not in kinds:
        raise MisuseError(f"{name!r} is not a part of a world (known: {', '.join((*WORLDS, *kinds))})")
    if name == "contract" and value.upper() in Contract.__members__:
        return name, Contract[value.upper()]
    if name == "verbs":
        return name, frozenset(VERBS if value == "all" else filter(None, value.split("+")))
    if flag and value in ("", "yes", "no"):
        return name, value != "no"
    if name != "contract" and not flag and value.isdecimal():
        return name, int(value)
    raise MisuseError(f"{part!r} cannot be read (write blocks=2, contract=hold, loads, verbs=drop+evict)")


WORLDS: Mapping[str, ModelSettings] = {
    "smallest": ModelSettings(),
    "verbs": ModelSettings(verbs=frozenset(VERBS) - {"quiesce", "expire"}),
    "loads": ModelSettings(jobs=2, loads=True),
    "failures": ModelSettings(jobs=2, loads=True, failures=1),
    "ahead": ModelSettings(jobs=2, plans=2, loads=True),
    "deadlines": ModelSettings(jobs=2, loads=True, losses=1, verbs=frozenset({"expire", "quiesce"})),
    "echoes": ModelSettings(repeats=1, verbs=frozenset({"abandon", "cancel", "flush", "quiesce"})),
    "windows": ModelSettings(jobs=2, loads=True, verbs=frozenset({"expire", "flush", "quiesce", "release"})),
    "workers": ModelSettings(jobs=2, workers=2, loads=True, failures=1),
    "rivals": ModelSettings(slots=2, requests=2, jobs=2, loads=True),
    "twins": ModelSettings(blocks=2, requests=2, jobs=2, shared=True),
}
"""Worlds with a name; each exists under both contracts."""


# --- the program -------------------------------------------------------------------------------------------------------


@frozen
class Variable:
    """A byte, or an array of them; *size* 0 means a single byte."""

    name: str
    size: int
    doc: str
    initial: int = 0


@frozen
class Procedure:
    """A procedure: statements with parameters."""

    name: str
    params: tuple[str, ...]
    body: tuple[ast.stmt, ...] = field(repr=False)


@frozen
class Predicate:
    """A condition on the state: one expression with parameters."""

    name: str
    params: tuple[str, ...]
    test: ast.expr = field(repr=False)


@frozen
class ModelAction:
    """One thing that can happen: a procedure and a predicate with the same parameters, once for each of *instances*."""

    name: str
    params: tuple[str, ...]
    instances: tuple[tuple[int, ...], ...]
    doc: str

    @property
    def condition(self) -> str:
        """The name of the predicate."""
        return f"may_{self.name}"

    @property
    def verb(self) -> str:
        """The name of the procedure."""
        return f"do_{self.name}"


@frozen
class Program:
    """A whole world. Procedures and predicates come after those that they call."""

    settings: ModelSettings
    constants: Mapping[str, int]
    variables: tuple[Variable, ...]
    predicates: tuple[Predicate, ...]
    procedures: tuple[Procedure, ...]
    actions: tuple[ModelAction, ...]
    invariants: tuple[tuple[str, str], ...]
    """Predicates without parameters that hold in every state, each with a description."""
    text: str = field(repr=False)
    """The source text of all predicates and procedures."""
