"""The generated parts of ``specs/``: checking whether they are up to date, and updating them.

A part is between two lines, ``<!-- generated: block.states -->`` and ``<!-- end -->``. Everything between them is made from the
tables; everything outside is written by hand and never touched. The files in ``specs/drawings/`` are generated as a whole; if
the folder exists, all of them must.
"""

from __future__ import annotations

import enum
import functools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import frozen

from blocklife.connector_states import REQUEST_MACHINES
from blocklife.drawing._mermaid import mermaid
from blocklife.drawing._picture import Panel, picture
from blocklife.drawing._svg import svg
from blocklife.drawing._tables import (
    coupling_table,
    event_table,
    guard_table,
    markdown,
    row_table,
    state_event_table,
    state_table,
)
from blocklife.files import read_text
from blocklife.lifecycle import Table
from blocklife.states import COUPLINGS, MACHINES, NATURES, Trait
from blocklife.stores._states import STORE_MACHINES

_BESIDE: Mapping[str, Table] = {**REQUEST_MACHINES, **STORE_MACHINES}
"""The lifecycles beside those of the ledger."""
END = "<!-- end -->"
DRAWINGS = "drawings"
"""The folder, below that of the pages, of files that are generated as a whole."""
_BEGIN = re.compile(r"<!--\s*generated\b")
_MARKER = re.compile(r"<!-- generated: (\S+) -->")
_HINT = "run: blocklife spec --write"


def _states(table: Table) -> str:
    """The states, what each means, and its traits."""

    def has(trait: Trait) -> Callable[[enum.Enum], str]:
        return lambda state: "yes" if trait in NATURES[state].traits else ""

    if not NATURES.keys() & set(table.states):
        return state_table(table, {})
    traits = [trait for trait in Trait if any(trait in NATURES[state].traits for state in table.states)]
    meanings = markdown(["trait", "means"], [[trait.name.lower(), trait.value] for trait in traits])
    return state_table(table, {trait.name.lower(): has(trait) for trait in traits}) + "\n" + meanings


def _drawing(table: Table) -> str:
    return f"```mermaid\n{mermaid([Panel(picture(table))], meanings=False)}```\n"


_PARTS: Mapping[str, Callable[[Table], str]] = {
    "states": _states,
    "drawing": _drawing,
    "matrix": state_event_table,
    "events": event_table,
    "guards": guard_table,
    "rows": row_table,
}


def generated(others: Mapping[str, str]) -> dict[str, str]:
    """Every generated part by its name, as it should be: those of the machines, and tables of others."""
    tables = {**MACHINES, **_BESIDE}
    parts = {f"{machine}.{part}": make(table) for machine, table in tables.items() for part, make in _PARTS.items()}
    parts |= {"couplings": coupling_table(COUPLINGS), **others}
    # Blank lines, so that a Markdown reader takes neither marker for a part of the table.
    return {name: f"\n{text}\n" for name, text in parts.items()}


@functools.cache
def drawings() -> Mapping[str, str]:
    """Every generated drawing, by file name: each machine, those of the ledger with their couplings, and the block without."""
    drawn = {f"{machine}.svg": svg([Panel(picture(table, machine, COUPLINGS))]) for machine, table in MACHINES.items()}
    drawn |= {f"{machine}.svg": svg([Panel(picture(table, machine))]) for machine, table in _BESIDE.items()}
    drawn["life.svg"] = svg([Panel(picture(MACHINES["block"], "block"))])
    return drawn


def stale(root: Path, wanted: Mapping[str, str]) -> list[str]:
    """What is wrong with the generated parts below *root*, one line each; nothing if all are up to date.

    Finds parts that are out of date, markers that are unknown, malformed, unclosed or without a beginning, parts that no
    file has, and drawings that are missing, out of date, or unknown.
    """
    found: list[str] = []
    seen: set[str] = set()
    for path in _files(root):
        page = _read(path)
        found.extend(f"{path}:{line}: {problem}" for line, problem in _troubles(page, wanted))
        seen.update(part.name for part in page.parts)
    found.extend(f"{root}: no file has the generated part {name}" for name in wanted if name not in seen)
    return found + _stale_drawings(root / DRAWINGS)


def _stale_drawings(folder: Path) -> list[str]:
    """What is wrong with the drawings in a folder; nothing if there is no such folder."""
    if not folder.is_dir():
        return []
    found = []
    for name, drawn in drawings().items():
        path = folder / name
        if not path.is_file():
            found.append(f"{path}: the drawing is missing ({_HINT})")
        elif not _is(path, drawn.encode()):
            found.append(f"{path}: the drawing is out of date ({_HINT})")
    strange = sorted(path for path in folder.iterdir() if path.name not in drawings())
    return found + [f"{path}: nothing is drawn under this name (remove it)" for path in strange]


def _is(path: Path, data: bytes) -> bool:
    """Whether a file holds these bytes; a file of another size is not read."""
    return path.stat().st_size == len(data) and path.read_bytes() == data


def write(root: Path, wanted: Mapping[str, str]) -> list[str]:
    """Update every generated part below *root*; returns the files that changed.

    A file is replaced as a whole or not at all. A file with broken markers is left as it is; `stale` reports it.
    """
    changed: list[str] = []
    for path in _files(root):
        page = _read(path)
        if page.broken or any(part.name not in wanted for part in page.parts):
            continue
        lines = list(page.lines)
        for part in reversed(page.parts):
            lines[part.first : part.last] = wanted[part.name].splitlines(keepends=True)
        if lines != page.lines:
            _replace(path, "".join(lines))
            changed.append(str(path))
    folder = root / DRAWINGS
    if folder.is_dir():
        for name, drawn in drawings().items():
            path = folder / name
            if not path.is_file() or not _is(path, drawn.encode()):
                _replace(path, drawn)
                changed.append(str(path))
    return changed


@frozen
class _Part:
    """One generated part of a page: its content is ``lines[first:last]``."""

    name: str
    first: int
    last: int


@frozen
class _SpecPage:
    """One file, split at its markers."""

    lines: list[str]
    parts: list[_Part]
    broken: list[tuple[int, str]]
    """Line number, counted from 1, and what is wrong with the marker there."""


def _files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.md"))


def _read(path: Path) -> _SpecPage:
    """Find the markers of one file; a marker is a line of its own."""
    page = _SpecPage(read_text(path).splitlines(keepends=True), [], [])
    name, begun = "", 0
    for number, line in enumerate(page.lines, start=1):
        text = line.strip()
        if _BEGIN.match(text):
            if begun:
                page.broken.append((begun, f"generated part {name} is not closed before line {number} (write {END})"))
            marker = _MARKER.fullmatch(text)
            name, begun = (marker[1] if marker else ""), number
            if not name:
                page.broken.append((number, f"marker {text!r} is malformed (write <!-- generated: block.states -->)"))
        elif text == END:
            if not begun:
                page.broken.append((number, f"{END} closes nothing"))
            elif name:
                page.parts.append(_Part(name, begun, number - 1))
            name, begun = "", 0
    if begun:
        page.broken.append((begun, f"generated part {name} is not closed (write {END})"))
    return page


def _troubles(page: _SpecPage, wanted: Mapping[str, str]) -> list[tuple[int, str]]:
    """What is wrong with one page, by line."""
    found = list(page.broken)
    for part in page.parts:
        if part.name not in wanted:
            found.append((part.first, f"unknown generated part {part.name} (known: {', '.join(wanted)})"))
        elif "".join(page.lines[part.first : part.last]) != wanted[part.name]:
            found.append((part.first, f"generated part {part.name} is out of date ({_HINT})"))
    return sorted(found)


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
