"""Lazy imports for packages: a public name is imported when it is first used.

The `__init__.py` of a package has a table that maps its modules to their public names; its other modules begin with an
underscore. Using a name costs only what its module imports, and a listing of the folder shows what is public. What checks types
reads the stub beside it, `__init__.pyi`, which `make spec` writes from the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def door(room: str, names: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` for the package *room*.

    *names* maps modules to public names, split by spaces; under the empty name stand those of the package itself.
    """
    homes = {name: module for module, among in names.items() for name in among.split()}
    shown = vars(sys.modules[room])

    def look_up(name: str) -> object:
        """Import a name that has not been used yet."""
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return shown.setdefault(name, getattr(import_module(f"{room}.{homes[name]}"), name))

    def list_names() -> list[str]:
        """The names already imported, and those that can be."""
        return sorted({*shown, *homes})

    return look_up, list_names, sorted(homes)
