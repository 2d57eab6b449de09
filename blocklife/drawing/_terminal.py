"""Lifecycles as text: tables of state by event, as many events at a time as fit on a line, and what the guards mean."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from blocklife.drawing._picture import Panel
from blocklife.drawing._tables import As, Cell, Piece, matrix
from blocklife.drawing._theme import TERMINAL_EMPHASES, TERMINAL_TONES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_BETWEEN = 3
"""Between two columns."""

COLUMNS = 120
"""The width of text that does not go to a terminal."""


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
        _tell(console, panel)
    return "".join(f"{line.rstrip()}\n" for line in shown.getvalue().splitlines())


def _tell(console: Console, panel: Panel) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    picture, marks = panel.picture, panel.marks
    console.print(Text(picture.name, style="bold"), Text(picture.about, style="dim"))
    columns = _columns(panel)
    for band in _bands([_widest(column) for column in columns], console.width):
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
        for at in (0, *band):
            table.add_column(columns[at][0], no_wrap=True)
        for cells in zip(*(columns[at][1:] for at in (0, *band)), strict=True):
            table.add_row(*cells)
        console.print(table)
    for word in picture.guards:
        console.print(Text.assemble((f"[{word.name}]", "yellow"), " ", word.about))
    for said in filter(None, [marks.title, *marks.notes]):
        console.print(Text(said))


def _columns(panel: Panel) -> list[list[Text]]:
    """The matrix by columns, each with its heading: the states, then the events."""
    from rich.text import Text

    grid = matrix(panel)
    tones = {node.name: TERMINAL_TONES[node.tone] for node in panel.picture.nodes}

    def styled(piece: Piece) -> tuple[str, str]:
        if piece.role is As.NAME:
            said = " ".join(filter(None, [piece.mark.word, *piece.words]))
            return said, TERMINAL_EMPHASES.get(piece.mark.emphasis, tones[piece.words[0]])
        style = {As.GUARD: "yellow", As.REFUSED: "dim"}.get(piece.role, "")
        return (f"[{piece.words[0]}]" if piece.role is As.GUARD else piece.words[0]), style

    def drawn(cell: Cell) -> Text:
        return Text("\n").join(Text(" ").join(Text.assemble(styled(piece)) for piece in line) for line in cell)

    columns = [[Text(title) for title in ("", *grid.heading[1:])], *([drawn(cell) for cell in row] for row in grid.rows)]
    for node, (state, *_) in zip(panel.picture.nodes, columns[1:], strict=True):
        if node.initial or node.final:
            state.append("\n  " + ("begins" if node.initial else "ends"), "dim")
    return [list(column) for column in zip(*columns, strict=True)]


def _bands(widths: Sequence[int], width: int) -> Iterator[range]:
    """The columns of events, in groups that fit beside the states."""
    room = width - widths[0] - _BETWEEN
    first, left = 1, room
    for at in range(1, len(widths)):
        if widths[at] + _BETWEEN > left and at > first:
            yield range(first, at)
            first, left = at, room
        left -= widths[at] + _BETWEEN
    yield range(first, len(widths))


def _widest(column: Sequence[Text]) -> int:
    return max(line.cell_len for cell in column for line in cell.split("\n"))
