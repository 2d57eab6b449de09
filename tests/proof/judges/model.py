"""A small world as a program: the tables and couplings, with an engine and a device that do whatever is possible.

Rules of this file:

* The program is text in a small subset of Python that translates directly to Promela. It does not use the ledger.
* This file defines what a program is; `rules.py` writes it, `promela.py` translates it.

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
from collections.abc import Mapping

from attrs import field, frozen

from tests.proof.ledger_world.settings import LedgerSettings


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

    settings: LedgerSettings
    constants: Mapping[str, int]
    variables: tuple[Variable, ...]
    predicates: tuple[Predicate, ...]
    procedures: tuple[Procedure, ...]
    actions: tuple[ModelAction, ...]
    invariants: tuple[tuple[str, str], ...]
    """Predicates without parameters that hold in every state, each with a description."""
    text: str = field(repr=False)
    """The source text of all predicates and procedures."""
