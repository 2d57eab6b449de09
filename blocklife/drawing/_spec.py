"""The generated parts of ``specs/``: checking whether they are up to date, and updating them.

A part is between two lines, ``<!-- generated: block.states -->`` and ``<!-- end -->``. Everything between them is made from the
tables; everything outside is written by hand and never touched. The files in ``specs/drawings/``, and tables that are too long
for a page, are generated as a whole; if their folder exists, all of them must.
"""

from __future__ import annotations

import enum
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attrs import define, field

from blocklife.connector_states import LINKER_MACHINES, REQUEST_MACHINES
from blocklife.drawing._picture import Panel, picture
from blocklife.drawing._svg import svg
from blocklife.drawing._tables import (
    coupling_table,
    event_table,
    guard_table,
    markdown,
    state_event_table,
    state_table,
)
from blocklife.files import read_text
from blocklife.lifecycle import Table
from blocklife.states import COUPLINGS, MACHINES, NATURES, Trait
from blocklife.tiers._states import STORE_MACHINES
from blocklife.watch_states import WATCH_MACHINES

OURS: Mapping[str, Table] = {**MACHINES, **REQUEST_MACHINES, **LINKER_MACHINES, **STORE_MACHINES, **WATCH_MACHINES}
"""Every lifecycle of this package: those of the ledger, and those beside it."""
END = "<!-- end -->"
DRAWINGS = "drawings"
"""The folder, below that of the pages, of files that are generated as a whole."""
_BEGIN = re.compile(r"<!--\s*generated\b")
_MARKER = re.compile(r"<!-- generated: (\S+) -->")
_HINT = "run: blocklife spec --write"


def _states(table: Table) -> str:
    """The states, what each means, and its traits."""

    def traits_of(state: enum.Enum) -> str:
        return ", ".join(trait.name.lower() for trait in Trait if trait in NATURES[state].traits)

    return state_table(table, {"traits": traits_of} if NATURES.keys() & set(table.states) else {})


def _traits() -> str:
    """What each trait means."""
    return markdown(["trait", "means"], [[trait.name.lower(), trait.value] for trait in Trait])


_PARTS: Mapping[str, Callable[[Table], str]] = {
    "states": _states,
    "matrix": state_event_table,
    "events": event_table,
    "guards": guard_table,
}


def _parts_of(machine: str, table: Table) -> Iterator[str]:
    """What is printed of a table: of one beside the ledger the states alone, since its drawing has everything else."""
    if machine not in MACHINES:
        yield "states"
        return
    without = set() if any(row.guard for row in table.rows) else {"guards"}
    yield from (part for part in _PARTS if part not in without)


def generated(others: Mapping[str, str]) -> dict[str, str]:
    """Every generated part by its name, as it should be: those of the machines, and tables of others."""
    parts = {f"{machine}.{part}": _PARTS[part](table) for machine, table in OURS.items() for part in _parts_of(machine, table)}
    parts |= {"couplings": coupling_table(COUPLINGS), "traits": _traits(), **others}
    # Blank lines, so that a Markdown reader takes neither marker for a part of the table.
    return {name: f"\n{text}\n" for name, text in parts.items()}


@functools.cache
def drawings() -> Mapping[str, str]:
    """Every generated drawing, by file name: each machine; those of the ledger with their couplings, and without, too."""
    couplings = {machine: COUPLINGS if machine in MACHINES else () for machine in OURS}
    drawn = {f"{machine}.svg": svg([Panel(picture(table, machine, couplings[machine]))]) for machine, table in OURS.items()}
    plain = {f"{machine}-plain.svg": svg([Panel(picture(table, machine))]) for machine, table in MACHINES.items()}
    return drawn | plain


def stale(root: Path, wanted: Mapping[str, str], tables: Mapping[str, str] | None = None) -> list[str]:
    """What is wrong with the generated parts below *root*, one line each; nothing if all are up to date. *tables*: whole files.

    Finds parts that are out of date, markers that are unknown, malformed, unclosed or without a beginning, parts that no
    file has, and drawings that are missing, out of date, or unknown.
    """
    pages = [(path, _SpecPage.of(read_text(path), wanted)) for path in _files(root)]
    seen = {name for _, page in pages for name in page.names}
    found = [f"{path}:{line}: {problem}" for path, page in pages for line, problem in sorted([*page.broken, *page.stale])]
    found += [f"{root}: no file has the generated part {name}" for name in wanted if name not in seen]
    folder = root / DRAWINGS
    for what, whole in (("drawing", _drawn(folder)), ("table", _whole(root, tables or {}))):
        for path, text in whole:
            if not path.is_file():
                found.append(f"{path}: the {what} is missing ({_HINT})")
            elif not _is(path, text):
                found.append(f"{path}: the {what} is out of date ({_HINT})")
    strange = sorted(path for path in folder.iterdir() if path.name not in drawings()) if folder.is_dir() else []
    return found + [f"{path}: nothing is drawn under this name (remove it)" for path in strange]


def write(root: Path, wanted: Mapping[str, str], tables: Mapping[str, str] | None = None) -> list[str]:
    """Update every generated part below *root*; returns the files that changed.

    A file is replaced as a whole or not at all. A file with broken markers is left as it is; `stale` reports it.
    """
    pages = [(path, _SpecPage.of(read_text(path), wanted)) for path in _files(root)]
    texts = [(path, page.renewed) for path, page in pages if not page.broken]
    whole = (*_drawn(root / DRAWINGS), *_whole(root, tables or {}))
    changed = [(path, text) for path, text in (*texts, *whole) if not (path.is_file() and _is(path, text))]
    for path, text in changed:
        _replace(path, text)
    return [str(path) for path, _ in changed]


def _files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.md"))


def _drawn(folder: Path) -> list[tuple[Path, str]]:
    """The drawings that a folder should have; nothing if there is no such folder."""
    return [(folder / name, drawn) for name, drawn in drawings().items()] if folder.is_dir() else []


def _whole(root: Path, tables: Mapping[str, str]) -> list[tuple[Path, str]]:
    """The tables below a folder that are files of their own, where there is a folder for them."""
    return [(root / name, text) for name, text in tables.items() if (root / name).parent.is_dir()]


def _is(path: Path, text: str) -> bool:
    """Whether a file holds this text; a file of another size is not read."""
    data = text.encode()
    return path.stat().st_size == len(data) and path.read_bytes() == data


@define
class _SpecPage:
    """One file, read from marker to marker; a marker is a line of its own."""

    renewed: str = ""
    """Its text with every part as it should be."""
    names: list[str] = field(factory=list)
    """The parts that it has."""
    broken: list[tuple[int, str]] = field(factory=list)
    """Line number, counted from 1, and what is wrong with a marker there."""
    stale: list[tuple[int, str]] = field(factory=list)
    """Likewise, for parts that are out of date."""

    @classmethod
    def of(cls, text: str, wanted: Mapping[str, str]) -> _SpecPage:
        """Compare the parts of a file with what is wanted."""
        page, name, begun = cls(), "", 0
        lines = text.splitlines(keepends=True)
        for number, line in enumerate(lines, start=1):
            marker = line.strip()
            if _BEGIN.match(marker):
                if begun:
                    page.broken.append((begun, f"generated part {name} is not closed before line {number} (write {END})"))
                found = _MARKER.fullmatch(marker)
                name, begun = (found[1] if found else ""), number
                if not name:
                    page.broken.append((number, f"marker {marker!r} is malformed (write <!-- generated: block.states -->)"))
            elif marker == END:
                if begun and name:
                    page._part(name, begun, "".join(lines[begun : number - 1]), wanted)
                elif not begun:
                    page.broken.append((number, f"{END} closes nothing"))
                name, begun = "", 0
            elif begun:
                continue
            page.renewed += line
        if begun:
            page.broken.append((begun, f"generated part {name} is not closed (write {END})"))
        return page

    def _part(self, name: str, line: int, text: str, wanted: Mapping[str, str]) -> None:
        """One part, which begins behind a line."""
        self.names.append(name)
        if name not in wanted:
            self.broken.append((line, f"unknown generated part {name} (known: {', '.join(wanted)})"))
        elif text != wanted[name]:
            self.stale.append((line, f"generated part {name} is out of date ({_HINT})"))
        self.renewed += wanted.get(name, text)


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
