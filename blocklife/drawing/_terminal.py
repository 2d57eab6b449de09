"""Lifecycles as text: tables of state by event, as many events at a time as fit on a line, and what the guards mean."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from blocklife.drawing._picture import Emphasis, Mark, Node, Panel
from blocklife.drawing._tables import REFUSAL
from blocklife.drawing._theme import TERMINAL_EMPHASES, TERMINAL_TONES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_BETWEEN = 3
"""Between two columns."""

COLUMNS = 120
"""The width of text that does not go to a terminal."""

_SIGNS: Mapping[Emphasis, str] = {
    Emphasis.UNUSED: "never ",
    Emphasis.ALARM: "! ",
}
"""In words, too, for readers without colours."""


def terminal(panels: Sequence[Panel], *, columns: int | None = None) -> str:
    """Text in this many columns, with colours; plain text without a number."""
    from rich.console import Console

    shown = io.StringIO()  # it accepts every character, whatever standard output can show
    if columns is None:
        console = Console(file=shown, width=COLUMNS, color_system=None, highlight=False)
    else:
        console = Console(file=shown, width=columns, force_terminal=True, highlight=False)
    for number, panel in enumerate(panels):
        if number:
            console.print()
        _tell(console, panel, console.width)
    return "".join(f"{line.rstrip()}\n" for line in shown.getvalue().splitlines())


def _tell(console: Console, panel: Panel, width: int) -> None:
    from rich.text import Text

    picture, marks = panel.picture, panel.marks
    console.print(Text(picture.name, style="bold"), Text(picture.about, style="dim"))
    for band in _bands(panel, width):
        console.print(_table(panel, band))
    for word in picture.guards:
        console.print(Text.assemble((f"[{word.name}]", "yellow"), " ", word.about))
    for said in filter(None, [marks.title, *marks.notes]):
        console.print(Text(said))


def _bands(panel: Panel, width: int) -> list[list[str]]:
    """Events in groups that fit beside the states."""
    bands: list[list[str]] = []
    left = max(_widest(_state(panel, node)) for node in panel.picture.nodes) + _BETWEEN
    room = 0
    for event in (word.name for word in panel.picture.events):
        cells = [_cell(panel, node, event) for node in panel.picture.nodes]
        needed = max(len(event), *(_widest(cell) for cell in cells)) + _BETWEEN
        if not bands or needed > room:
            bands.append([])
            room = width - left
        bands[-1].append(event)
        room -= needed
    return bands


def _widest(cell: Text) -> int:
    return max(line.cell_len for line in cell.split("\n"))


def _table(panel: Panel, events: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for title in ("", *events):
        table.add_column(Text(title), no_wrap=True)
    for node in panel.picture.nodes:
        table.add_row(_state(panel, node), *(_cell(panel, node, event) for event in events))
    return table


def _state(panel: Panel, node: Node) -> Text:
    from rich.text import Text

    mark = panel.marks.state(node)
    where = "begins" if node.initial else "ends" if node.final else ""
    found = Text.assemble((_said(node.name, mark), TERMINAL_EMPHASES.get(mark.emphasis, TERMINAL_TONES[node.tone])))
    return Text.assemble(found, (f"\n  {where}", "dim")) if where else found


def _cell(panel: Panel, node: Node, event: str) -> Text:
    """The targets of one event from one state, one below the other; a refusal comes last if every row has a guard."""
    from rich.text import Text

    tones = {each.name: each.tone for each in panel.picture.nodes}
    rows = panel.picture.rows_of(node.name, event)
    lines = []
    for target, label in rows:
        mark = panel.marks.row(label)
        style = TERMINAL_EMPHASES.get(mark.emphasis, TERMINAL_TONES[tones[target]])
        guard = (f" [{label.guard}]", "yellow") if label.guard is not None else ""
        note = f" {mark.note}" if mark.note else ""
        lines.append(Text.assemble((_said(target, mark, noted=False), style), guard, note))
    if all(label.guard is not None for _, label in rows):
        lines.append(Text(REFUSAL, style="dim"))
    return Text("\n").join(lines)


def _said(name: str, mark: Mark, *, noted: bool = True) -> str:
    note = f" {mark.note}" if mark.note and noted else ""
    return f"{_SIGNS.get(mark.emphasis, '')}{name}{note}"
