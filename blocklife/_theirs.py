"""User code that an option names as ``module:name``: importing it, with one sentence for whatever it raises."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from blocklife.errors import MisuseError

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def told(problem: BaseException) -> str:
    """What user code has raised, in a few words."""
    return f"{type(problem).__name__}: {problem}"


def is_dotted(name: str) -> bool:
    """Whether a text can be the name of a module, or of what it has."""
    return _DOTTED.fullmatch(name) is not None


def look_here() -> None:
    """Modules are looked for in the present folder, too, from now on."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def module_named(module: str, option: str) -> ModuleType:
    """A module, which is looked for in the present folder, too. Refuses: MisuseError that begins with *option*."""
    look_here()
    # it may raise anything, and may even leave the program
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise MisuseError(f"{option}: {module} cannot be imported: {problem}") from problem
    except (Exception, SystemExit) as problem:
        raise MisuseError(f"{option}: {module} cannot be imported: {told(problem)}") from problem


def factory_in(home: ModuleType, name: str, option: str) -> Callable[..., Any]:
    """What a module has under a name, dots or none; it can be called. Refuses: MisuseError that begins with *option*."""
    found: object = home
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as problem:
        raise MisuseError(f"{option}: {problem}") from problem
    except (Exception, SystemExit) as problem:
        raise MisuseError(f"{option}: {name} raised {told(problem)}") from problem
    if not callable(found):
        raise MisuseError(f"{option}: {name} cannot be called (name a function or a class)")
    return found
