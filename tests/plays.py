"""Tables of plays: what is done to a stage and what must be so then, in lines of events, one play after the other.

A table is text. A line that is not indented names a play, the lines below it are its events, and one that begins with ``#``
says why. An event is a method of the stage with its arguments, as `tests.watch.script` reads them.
"""

from __future__ import annotations

from tests.watch.script import play

__all__ = ["play", "plays"]


def plays(table: str) -> dict[str, str]:
    """The events of each play of a table, by its name."""
    found: dict[str, str] = {}
    name = ""
    for line in filter(str.strip, table.splitlines()):
        if line[0].isspace():
            found[name] += "" if line.lstrip().startswith("#") else f"{line}\n"
        elif not line.startswith("#"):
            name = line.strip()
            assert name not in found, name
            found[name] = ""
    return found
