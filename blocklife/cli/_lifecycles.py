"""Finds the lifecycles named on the command line: built-in ones by name, your own as ``module:Class``.

A module is also looked for in the current folder. Output that it prints while it is imported goes to standard error, so that it
does not end up in a drawing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Iterable, Sequence

from blocklife._theirs import look_here
from blocklife.cli._common import suggestion
from blocklife.drawing._spec import OURS
from blocklife.errors import MisuseError
from blocklife.lifecycle import Lifecycle, Table
from blocklife.states import MACHINES

ALL = "all"


def tables_named(names: Sequence[str]) -> dict[str, Table]:
    """The tables that are meant, each once, by the name under which it is drawn."""
    found: dict[str, Table] = {}
    for name in names:
        for key, table in (MACHINES if name == ALL else {name: table_named(name)}).items():
            if table not in found.values():
                found[_short(key, table, found)] = table
    return found


def table_named(name: str) -> Table:
    """One table. Raises `MisuseError` with what there is."""
    if name in OURS:
        return OURS[name]
    if ":" in name:
        return _imported(name)
    raise MisuseError(f"unknown machine {name!r} ({suggestion(name, (*OURS, ALL))}, or give module:Class)")


def _short(key: str, table: Table, taken: Iterable[str]) -> str:
    """The name of a machine of the cache, or of a user's class where no other has it."""
    for name, machine in OURS.items():
        if machine is table:
            return name
    return key if table.name in taken or table.name in OURS else table.name


def _imported(name: str) -> Table:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise MisuseError(f"{name}: write module:Class")
    if module.endswith(".py") or "/" in module:
        raise MisuseError(f"{name}: a module, not a file (write {os.path.basename(module).removesuffix('.py')}:{attribute})")
    look_here()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            home = importlib.import_module(module)
    except ModuleNotFoundError as problem:
        if problem.name is not None and (module == problem.name or module.startswith(f"{problem.name}.")):
            raise MisuseError(f"{name}: no module {problem.name} (it is looked for in the present folder too)") from problem
        raise MisuseError(f"{name}: {module} cannot be imported ({problem})") from problem
    except (Exception, SystemExit) as problem:
        raise MisuseError(f"{name}: {module} cannot be imported ({_said(problem)})") from problem
    try:
        found = functools.reduce(getattr, attribute.split("."), home)
    except AttributeError:
        known = [each for each, value in vars(home).items() if isinstance(value, type) and _has_table(value)]
        hint = suggestion(attribute, known) if known else "it has no lifecycle"
        raise MisuseError(f"{name}: {module} has no {attribute} ({hint})") from None
    return _table_of(name, attribute, found)


def _table_of(name: str, attribute: str, found: object) -> Table:
    if isinstance(found, Lifecycle):
        found = type(found)
    if isinstance(found, Table):
        table: Table | None = found
    elif isinstance(found, type) and issubclass(found, Lifecycle):
        table = getattr(found, "table", None)
    else:
        raise MisuseError(
            f"{name}: {attribute} is not a Lifecycle (it is {_kind(found)}; write class Door(Lifecycle, initial=...))"
        )
    if table is None or not table.states:
        raise MisuseError(f"{name}: {attribute} has no states (write class Door(Lifecycle, initial=...))")
    return table


def _has_table(found: type) -> bool:
    return issubclass(found, Lifecycle) and hasattr(found, "table")


def _kind(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"


def _said(problem: BaseException) -> str:
    """An exception in one line."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())
