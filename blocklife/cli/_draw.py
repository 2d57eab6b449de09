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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from blocklife.cli._common import OK, Parser, file, put_out, reading, refuse_overwriting, suggestion, write_whole
from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from blocklife.drawing import Marks, Panel, Theme
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
  blocklife draw mymodule:DoorLife --coverage report.json
                                                    what tests cover, from a report of pytest
  blocklife draw block -o run.svg --recording run.jsonl
                                                    what a run did: rows taken, time in states, refusals
exit status: 0 drawn; 2 bad input, or the file cannot be written
"""

THEMES = ("auto", "light", "dark")


FORMATS: Mapping[str, tuple[str, ...]] = {
    "text": (".txt",),
    "table": (".md",),
    "mermaid": (".mmd", ".mermaid"),
    "dot": (".dot", ".gv"),
    "svg": (".svg",),
    "png": (".png",),
    "html": (".html", ".htm"),
    "markup": (".json",),
}
"""Every format, with the endings of its files."""
DEFAULT = "text"
OF_TABLES = frozenset({"markup"})
"""Formats that are made from the tables themselves, and show no marks."""
OVERLAYS = ("recording", "coverage", "mutants")


@frozen
class Sheet:
    """What is drawn, and how."""

    panels: tuple[Panel, ...]
    tables: Mapping[str, Table]
    """The same lifecycles as they are compiled, by name, for formats that need more than a picture."""
    theme: Theme | None
    """None: as the reader's system has it."""
    charts: Mapping[str, str]
    """How each lifecycle went through a run, as SVG by its name, for formats that have room for it."""
    columns: int | None
    """Columns of the terminal on which it is shown; None where it goes elsewhere."""

    def drawn(self, name: str) -> str | bytes:
        """The sheet in one format."""
        from blocklife import drawing
        from blocklife.drawing._tables import panel_tables
        from blocklife.machines import export_markup

        ways: Mapping[str, Callable[[], str | bytes]] = {
            "text": lambda: drawing.terminal(self.panels, columns=self.columns),
            "table": lambda: panel_tables(self.panels),
            "mermaid": lambda: drawing.mermaid(self.panels),
            "dot": lambda: drawing.dot(self.panels, self.theme),
            "svg": lambda: drawing.svg(self.panels, self.theme),
            "png": lambda: drawing.png(self.panels, self.theme),
            "html": lambda: drawing.page(self.panels, self.theme, self.charts),
            "markup": lambda: "".join(json.dumps(export_markup(each), indent=2) + "\n" for each in self.tables.values()),
        }
        return ways[name]()


def add_options(parser: Parser) -> None:
    """Its options."""
    from blocklife.cli._lifecycles import ALL
    from blocklife.drawing._spec import OURS
    from blocklife.states import MACHINES

    machines = ", ".join((*OURS, ALL, "module:Class"))
    parser.describe(f"Draw lifecycles: of blocklife, or your own as module:Class. {ALL}: {', '.join(MACHINES)}.", _EXAMPLES)
    add = parser.add_argument
    add("machines", nargs="*", metavar="MACHINE", help=machines)
    add("-o", "--output", type=file, default="-", metavar="FILE", help="output file (default - is standard output)")
    told = ", ".join(f"{name} ({' '.join(endings)})" for name, endings in FORMATS.items())
    add("--format", metavar="NAME", help=f"{told}; default: by the extension of FILE, else {DEFAULT}")
    add("--plain", action="store_true", help="leave out the couplings to other machines")
    add("--theme", default="auto", metavar="NAME", help="light, dark, or auto: follow the reader's system (default auto)")
    add = parser.add_mutually_exclusive_group().add_argument
    run = "show what a run did: rows taken and never taken, time in each state, refusals"
    add("--recording", type=file, metavar="FILE", help=run)
    add("--coverage", type=file, metavar="FILE.json", help="show what tests cover, from a report of pytest --blocklife-report")
    guards = "show which guards tests miss when switched off, from specs/mutants.csv"
    add("--mutants", type=file, metavar="FILE", help=guards)
    parser.set_defaults(run=_draw)


def _draw(args: argparse.Namespace) -> int:
    from blocklife.cli._lifecycles import tables_named

    chosen = _format(args.format, args.output)
    refuse_overwriting(args.output, args.recording, args.coverage, args.mutants)
    if not args.machines:
        raise MisuseError("no machine is named (blocklife draw block; there is more in blocklife draw --help)")
    tables = tables_named(args.machines)
    if chosen in OF_TABLES:
        for option in OVERLAYS:
            if getattr(args, option):
                raise MisuseError(f"--{option}: {chosen} shows the lifecycle alone (leave it out)")
        if len(tables) > 1:
            raise MisuseError(f"{chosen} holds one lifecycle, not {', '.join(tables)} (name one of them)")
    drawn = _sheet(args, tables).drawn(chosen)
    if args.output != "-":
        write_whole(args.output, drawn)
    elif isinstance(drawn, bytes) and sys.stdout.isatty():
        raise MisuseError(f"{chosen} is not text for a terminal (name a file with -o, or pipe it)")
    else:
        put_out(drawn)
    return OK


def _format(name: str | None, output: str) -> str:
    """The format that is meant: by its name, by the ending of the file, or the default for standard output."""
    ending = "" if output == "-" else Path(output).suffix.lower()
    ended = next((each for each, endings in FORMATS.items() if ending in endings), None)
    if name is None:
        if output == "-":
            return DEFAULT
        if ended is None:
            endings = ", ".join(one for each in FORMATS.values() for one in each)
            said = f"the ending {ending} names no format" if ending else "it has no ending that names a format"
            raise MisuseError(f"{output}: {said} (choose from {endings}; or name one with --format)")
        return ended
    if name.lower() not in FORMATS:
        raise MisuseError(f"unknown format {name!r} ({suggestion(name, FORMATS)})")
    if ended not in (None, name.lower()):
        raise MisuseError(f"{output}: the ending says {ended}, --format {name.lower()} (leave one of them out)")
    return name.lower()


def _sheet(args: argparse.Namespace, tables: Mapping[str, Table]) -> Sheet:
    from blocklife.drawing import Marks, Panel, Theme, picture
    from blocklife.states import COUPLINGS

    if args.theme not in THEMES:
        raise MisuseError(f"unknown theme {args.theme!r} ({suggestion(args.theme, THEMES)})")
    theme = None if args.theme == "auto" else Theme[args.theme.upper()]
    marks, charts = _overlay(args, tables, theme)
    couplings = () if args.plain else COUPLINGS
    panels = tuple(Panel(picture(table, name, couplings), marks.get(name, Marks())) for name, table in tables.items())
    columns = shutil.get_terminal_size().columns if args.output == "-" and sys.stdout.isatty() else None
    return Sheet(panels, tables, theme, charts, columns)


def _overlay(
    args: argparse.Namespace, machines: Mapping[str, Table], theme: Theme | None
) -> tuple[dict[str, Marks], dict[str, str]]:
    """What is laid over each machine, and the charts of a run."""
    from blocklife.drawing import _overlays as overlays

    if args.recording:
        from blocklife.drawing._chart import population_chart
        from blocklife.recording import count_file

        for name in machines:  # before anything long is read
            overlays.check_machine(name, "a recording")
        with reading() as progress:
            run = count_file(args.recording, progress)
        charts = {name: chart for name in machines if (chart := population_chart(run, name, theme))}
        return {name: overlays.marks_of_run(run, name) for name in machines}, charts
    if args.coverage:
        report = overlays.read_coverage(args.coverage)
        return {name: overlays.marks_of_coverage(report, name, table) for name, table in machines.items()}, {}
    if args.mutants:
        judged = overlays.read_mutants(args.mutants)
        return {name: overlays.marks_of_mutants(judged, name) for name in machines}, {}
    return {}, {}
