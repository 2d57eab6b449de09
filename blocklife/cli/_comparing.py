"""What `blocklife draw --diff` compares: machines, lifecycles of a user, and files of markup."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from blocklife.errors import MisuseError
from blocklife.files import parse_json, read_text
from blocklife.states import MACHINES

if TYPE_CHECKING:
    from blocklife.drawing._diff import Difference
    from blocklife.drawing._picture import Picture


def compared(first: str, second: str) -> Difference:
    """The difference of two sides: ``block``, ``module:Class`` or ``FILE.json``."""
    from blocklife.drawing._diff import compare

    return compare(_side(first), _side(second), (first, second))


def _side(name: str) -> Picture:
    """The picture of one side; couplings are left out, for a file knows none."""
    from blocklife.cli._lifecycles import table_named
    from blocklife.drawing._picture import picture

    if ":" not in name and name not in MACHINES and (os.path.isfile(name) or Path(name).suffix):
        return _markup(Path(name))
    try:
        return picture(table_named(name), name if name in MACHINES else "")
    except MisuseError as problem:
        raise MisuseError(f"{problem}; files of markup are compared too") from None


def _markup(path: Path) -> Picture:
    """The picture of what `--format markup` has written."""
    from blocklife.drawing._picture import picture
    from blocklife.machines import import_markup, stand_ins

    try:
        said = parse_json(read_text(path))
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise MisuseError(f"{path}: it is no markup (write it with blocklife draw block --format markup -o {path})")
    try:
        return picture(import_markup(said, stand_ins(said)))
    except MisuseError as problem:
        raise MisuseError(f"{path}: {problem}") from problem
