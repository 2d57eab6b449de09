"""`blocklife draw`: a lifecycle as a picture, a page or a table.

Rules of this file:

* A format is one row of `FORMATS`. Which lifecycles are meant is `_lifecycles.py`.
* Everything is drawn before anything is written, so that a file appears as a whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import field, frozen

from blocklife.cli._common import OK, Parser, file, put_out, reading, refuse_overwriting, write_whole
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from blocklife.drawing._picture import Marks, Panel
    from blocklife.drawing._theme import Theme
    from blocklife.lifecycle import Table

_EXAMPLES = """\
examples:
  blocklife draw block                              every state and event, for a terminal
  blocklife draw block -o block.svg                 a drawing; the extension selects the format
  blocklife draw block --plain -o block.svg         the same without the couplings to other machines
  blocklife draw all -o machines.html               one page for all four, with everything explained
  blocklife draw job --format mermaid               for Markdown
  blocklife draw slot -o slot.png --theme dark      a bitmap, where SVG cannot be shown
  blocklife draw mymodule:DoorLife -o door.svg      a lifecycle of your own
  blocklife draw block -o run.svg --recording run.jsonl
                                                    what a run did: rows taken, time in states, refusals
exit status: 0 drawn; 2 bad input, or the file cannot be written
"""

THEMES = ("auto", "light", "dark")


# --- what is asked -----------------------------------------------------------------------------------------------------


@frozen
class Sheet:
    """What is drawn, and how."""

    panels: tuple[Panel, ...]
    tables: Mapping[str, Table]
    """The same lifecycles as they are compiled, by name, for formats that need more than a picture."""
    theme: Theme | None = None
    """None: as the reader's system has it."""
    charts: Mapping[str, str] = field(factory=dict)
    """How each lifecycle went through a run, as SVG by its name, for formats that have room for it."""
    terminal: int | None = None
    """Columns of the terminal on which it is shown; None where it goes elsewhere."""


def add_options(parser: Parser) -> None:
    """Its options."""
    parser.describe(
        "Draw lifecycles: block, slot, job, request, all these, lookup, patience, ending (the scheduler's), or module:Class.",
        _EXAMPLES,
    )
    add = parser.add_argument
    add(
        "machines",
        nargs="*",
        metavar="MACHINE",
        help="block, slot, job, request, all, lookup, patience, ending, module:Class",
    )
    add("-o", "--output", type=file, default="-", metavar="FILE", help="output file (default - is standard output)")
    told = ", ".join(f"{each.name} ({' '.join(each.endings)})" for each in FORMATS)
    add("--format", metavar="NAME", help=f"{told}; default: by the extension of FILE, else {DEFAULT}")
    add("--plain", action="store_true", help="leave out the couplings to other machines")
    add("--theme", default="auto", metavar="NAME", help="light, dark, or auto: follow the reader's system (default auto)")
    add_overlays(parser)
    parser.set_defaults(run=_draw)


def _draw(args: argparse.Namespace) -> int:
    chosen = _format(args.format, args.output)
    refuse_overwriting(args.output, args.recording, args.coverage, args.mutants)
    if not args.machines:
        raise MisuseError("no machine is named (blocklife draw block; there is more in blocklife draw --help)")
    if chosen.name in _OF_TABLES:
        _refuse_overlays(args, f"{chosen.name} shows the lifecycle alone")
    _put(args.output, chosen, _sheet(args))
    return OK


def _refuse_overlays(args: argparse.Namespace, why: str) -> None:
    """What would be passed over in silence is bad input."""
    for option in ("recording", "coverage", "mutants"):
        if getattr(args, option):
            raise MisuseError(f"--{option}: {why} (leave it out)")


def _put(output: str, chosen: Format, sheet: Sheet) -> None:
    if output == "-":
        _print(chosen, chosen.draw(sheet))
    else:
        write_whole(output, chosen.draw(sheet))


def _sheet(args: argparse.Namespace) -> Sheet:
    from blocklife.cli._lifecycles import tables_named
    from blocklife.drawing._picture import UNMARKED, Panel, picture
    from blocklife.states import COUPLINGS

    tables = tables_named(args.machines)
    overlay, theme = overlaid(args, tables), _theme(args.theme)
    couplings = () if args.plain else COUPLINGS
    panels = tuple(Panel(picture(table, name, couplings), overlay.marks.get(name, UNMARKED)) for name, table in tables.items())
    return Sheet(panels, tables, theme, overlay.charts(theme), _columns() if args.output == "-" else None)


def _theme(name: str) -> Theme | None:
    from blocklife.cli._lifecycles import suggestion
    from blocklife.drawing._theme import Theme

    if name not in THEMES:
        raise MisuseError(f"no theme {name!r} ({suggestion(name, THEMES)})")
    return None if name == "auto" else Theme[name.upper()]


def _columns() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# --- formats -----------------------------------------------------------------------------------------------------------


@frozen
class Format:
    """One way to draw; *draw* gives text, or bytes where it is no text."""

    name: str
    endings: tuple[str, ...]
    draw: Callable[[Sheet], str | bytes]


def _text(sheet: Sheet) -> str:
    from blocklife.drawing._terminal import terminal

    return terminal(sheet.panels, columns=sheet.terminal)


def _table(sheet: Sheet) -> str:
    from blocklife.drawing._tables import panel_tables

    return panel_tables(sheet.panels)


def _mermaid(sheet: Sheet) -> str:
    from blocklife.drawing._mermaid import mermaid

    return mermaid(sheet.panels)


def _dot(sheet: Sheet) -> str:
    from blocklife.drawing._dot import dot

    return dot(sheet.panels, sheet.theme)


def _svg(sheet: Sheet) -> str:
    from blocklife.drawing._svg import svg

    return svg(sheet.panels, sheet.theme)


def _png(sheet: Sheet) -> bytes:
    from blocklife.drawing._png import png

    return png(sheet.panels, sheet.theme)


def _html(sheet: Sheet) -> str:
    from blocklife.drawing._page import page

    return page(sheet.panels, sheet.theme, sheet.charts)


def _markup(sheet: Sheet) -> str:
    from blocklife.machines import export_markup

    if len(sheet.tables) > 1:
        raise MisuseError(f"markup holds one lifecycle, not {', '.join(sheet.tables)} (name one of them)")
    return "".join(json.dumps(export_markup(table), indent=2) + "\n" for table in sheet.tables.values())


_OF_TABLES = frozenset({"markup"})
"""Formats that are made from the tables themselves, and show no marks."""

FORMATS = (
    Format("text", (".txt",), _text),
    Format("table", (".md",), _table),
    Format("mermaid", (".mmd", ".mermaid"), _mermaid),
    Format("dot", (".dot", ".gv"), _dot),
    Format("svg", (".svg",), _svg),
    Format("png", (".png",), _png),
    Format("html", (".html", ".htm"), _html),
    Format("markup", (".json",), _markup),
)
"""Every format, by name and by the endings of files."""

DEFAULT = "text"


def _format(name: str | None, output: str) -> Format:
    """The format that is meant: by its name, by the ending of the file, or the default for standard output."""
    from blocklife.cli._lifecycles import suggestion

    ending = "" if output == "-" else Path(output).suffix.lower()
    ended = next((each for each in FORMATS if ending in each.endings), None)
    if name is None:
        if output == "-":
            return next(each for each in FORMATS if each.name == DEFAULT)
        if ended is None:
            endings = ", ".join(one for each in FORMATS for one in each.endings)
            said = f"the ending {ending} names no format" if ending else "it has no ending that names a format"
            raise MisuseError(f"{output}: {said} (there are {endings}; or name one with --format)")
        return ended
    named = next((each for each in FORMATS if each.name == name.lower()), None)
    if named is None:
        raise MisuseError(f"no format {name!r} ({suggestion(name, [each.name for each in FORMATS])})")
    if ended is not None and ended is not named:
        raise MisuseError(f"{output}: the ending says {ended.name}, --format {named.name} (leave one of them out)")
    return named


# --- where it goes -----------------------------------------------------------------------------------------------------


def _print(chosen: Format, drawn: str | bytes) -> None:
    """To standard output; no pixels to a terminal."""
    if isinstance(drawn, bytes) and sys.stdout.isatty():
        raise MisuseError(f"{chosen.name} is no text for a terminal (name a file with -o, or pipe it)")
    put_out(drawn)


# --- what is laid over a drawing -----------------------------------------------------------------------------------------


@frozen
class Overlay:
    """What is laid over, by the name of a machine."""

    marks: Mapping[str, Marks] = field(factory=dict)
    chart: Callable[[str, Theme | None], str] | None = None
    """Draws how a machine went through a run; None where none is shown."""

    def charts(self, theme: Theme | None) -> dict[str, str]:
        """The charts of all machines that have one."""
        drawn = {} if self.chart is None else {name: self.chart(name, theme) for name in self.marks}
        return {name: chart for name, chart in drawn.items() if chart}


def add_overlays(parser: Parser) -> None:
    """The options; only one of them can be given."""
    add = parser.add_mutually_exclusive_group().add_argument
    add(
        "--recording",
        type=file,
        metavar="FILE",
        help="show what a run did: rows taken and never taken, time in each state, refusals",
    )
    add("--coverage", type=file, metavar="FILE.json", help="show what tests cover, from a report of pytest --blocklife-report")
    add(
        "--mutants",
        type=file,
        metavar="FILE",
        help="show which guards tests miss when switched off, from specs/mutants.md",
    )


def overlaid(args: argparse.Namespace, machines: Iterable[str]) -> Overlay:
    """What was asked for, for these machines."""
    if args.recording:
        return _run_overlay(args.recording, list(machines))
    if args.coverage:
        from blocklife.drawing._overlays import marks_of_coverage, read_coverage

        report = read_coverage(args.coverage)
        return Overlay({name: marks_of_coverage(report, name) for name in machines})
    if args.mutants:
        from blocklife.drawing._overlays import marks_of_mutants, read_mutants

        judged = read_mutants(args.mutants)
        return Overlay({name: marks_of_mutants(judged, name) for name in machines})
    return Overlay()


def _run_overlay(path: str, machines: list[str]) -> Overlay:
    from blocklife.drawing._chart import population_chart
    from blocklife.drawing._overlays import check_machine, marks_of_run
    from blocklife.recording._statistics import count_file

    for name in machines:  # before anything long is read
        check_machine(name, "a recording")
    with reading() as progress:
        run = count_file(path, progress)
    return Overlay({name: marks_of_run(run, name) for name in machines}, lambda name, theme: population_chart(run, name, theme))
