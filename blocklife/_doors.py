"""The doors of rooms: names that are imported when somebody asks for them.

A room's `__init__.py` says in a table which of its modules has which public name. Every other module of a room begins with an
underscore. So a name costs only what its module imports, and a listing of the folder shows what is public.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def door(room: str, names: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of the package *room*; *names* has the public names of each module, in one line."""
    homes = {name: module for module, among in names.items() for name in among.split()}
    shown = vars(sys.modules[room])

    def look_up(name: str) -> object:
        """Called for a name that is not there yet."""
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return shown.setdefault(name, getattr(import_module(f"{room}.{homes[name]}"), name))

    def list_names() -> list[str]:
        """What is there, and what can be asked for."""
        return sorted({*shown, *homes})

    return look_up, list_names
