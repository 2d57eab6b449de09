"""Lifecycles, and the couplings between them, as tables.

Rules of this file:

* A table is data: cells of lines of pieces, each with its role. A form says how Markdown or HTML writes a piece; a terminal
  has styles instead (`_terminal.py`).
* The tables of the specification, of a page and of `blocklife draw --format table` are the same, made from a picture.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from blocklife.drawing._elements import escaped
from blocklife.drawing._picture import PLAIN, Explained, Mark, Node, Panel, picture
from blocklife.lifecycle import Table
from blocklife.states import Coupling

REFUSAL = "·"
"""What a cell shows where an event is refused."""


class As(enum.Enum):
    """The role of a piece of a cell."""

    PROSE = "a sentence"
    NAME = "names of states, events, guards or steps, with commas between"
    GUARD = "the guard of a row"
    NOTE = "the note of a mark"
    REFUSED = "the sign of a refusal"


@frozen
class Piece:
    """Some words of one role."""

    role: As
    words: tuple[str, ...]
    mark: Mark = PLAIN


Cell: TypeAlias = Sequence[Sequence[Piece]]
"""Lines of pieces."""


@frozen
class Grid:
    """One table. *optional* are the columns that are left out where they are empty."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    optional: tuple[str, ...] = ()

    def shown(self) -> tuple[list[str], list[list[Cell]]]:
        """The heading and the rows, without empty optional columns."""
        kept = [at for at, title in enumerate(self.heading) if title not in self.optional or any(row[at] for row in self.rows)]
        return [self.heading[at] for at in kept], [[row[at] for at in kept] for row in self.rows]


def _prose(text: str) -> Cell:
    return [[Piece(As.PROSE, (text,))]] if text else []


def _names(names: Sequence[str], otherwise: str = "") -> Cell:
    return [[Piece(As.NAME, tuple(names))]] if names else _prose(otherwise)


def _marked(role: As, word: str, mark: Mark) -> list[Piece]:
    """A word with its mark, and the note of that."""
    return [Piece(role, (word,), mark), *([Piece(As.NOTE, (mark.note,))] if mark.note else [])]


# --- what a picture says as tables ---------------------------------------------------------------------------------------


def matrix(panel: Panel) -> Grid:
    """Where each event leads from each state, in the order in which rows are tried."""
    events = [event.name for event in panel.picture.events]
    rows = [
        [[_marked(As.NAME, node.name, panel.marks.state(node))], *(_targets(panel, node, event) for event in events)]
        for node in panel.picture.nodes
    ]
    return Grid("State by event", ["state", *events], rows)


def _targets(panel: Panel, node: Node, event: str) -> Cell:
    """The targets of one event from one state; a refusal comes last if every row has a guard."""
    rows = panel.picture.rows_of(node.name, event)
    lines: list[list[Piece]] = []
    for target, label in rows:
        name, *note = _marked(As.NAME, target, panel.marks.row(label))
        lines.append([name, *([Piece(As.GUARD, (label.guard,))] if label.guard is not None else []), *note])
    if all(label.guard is not None for _, label in rows):
        lines.append([Piece(As.REFUSED, (REFUSAL,))])
    return lines


def _states(panel: Panel) -> Grid:
    ends = {True: " (final)", False: ""}
    rows = [
        [
            _names([node.name]),
            _prose(node.about + (" (initial)" if node.initial else ends[node.final])),
            *_mark_cells(panel.marks.state(node)),
        ]
        for node in panel.picture.nodes
    ]
    return Grid("States", ["state", "means", "mark", "about"], rows, ("mark", "about"))


def _words(title: str, words: Iterable[Explained], heading: Sequence[str]) -> Grid:
    rows = [[_names([word.name]), _names(word.reads), _prose(word.about)] for word in words]
    return Grid(title, heading, rows, ("payload",))


def _rows(panel: Panel) -> Grid:
    """Every row in the order of the table, with its couplings and its mark."""
    labels = sorted(((label, arrow) for arrow in panel.picture.arrows for label in arrow.labels), key=lambda each: each[0].row)
    rows = [
        [
            _prose(str(label.row)),
            _names([arrow.source]),
            _names([label.event]),
            _names([label.guard] if label.guard is not None else []),
            _names([arrow.target]),
            _names(label.causes),
            _names(label.follows),
            *_mark_cells(panel.marks.row(label)),
        ]
        for label, arrow in labels
    ]
    last = ("causes", "caused by", "mark", "about")
    return Grid("Rows", ["row", "from", "event", "guard", "to", *last], rows, last)


def _mark_cells(mark: Mark) -> tuple[Cell, Cell]:
    return _prose(mark.note or mark.word), _prose(mark.about)


def sections(panel: Panel) -> Iterator[Grid]:
    """All that there is to say of one lifecycle."""
    yield matrix(panel)
    yield _states(panel)
    yield _words("Events", panel.picture.events, ["event", "payload", "means"])
    if panel.picture.guards:
        yield _words("Guards", panel.picture.guards, ["guard", "reads", "holds when"])
    yield _rows(panel)


def couplings_of(couplings: Iterable[Coupling], numbers: Mapping[str, int] | None = None) -> Grid:
    """Couplings: what causes each, into which states, what follows, and why."""
    rows = [
        [
            _prose(str(numbers[each.name]) if numbers else ""),
            _names([each.name]),
            _names([each.cause]),
            _names([state.name for state in each.into], "any state"),
            [[Piece(As.NAME, (effect,))] for effect in each.effects],
            _prose(each.why),
        ]
        for each in couplings
    ]
    heading = ["number", "coupling", "when", "leads into", "then, in this order", "why"]
    return Grid("Couplings", heading, rows, ("number",))


# --- as text -----------------------------------------------------------------------------------------------------------


@frozen
class Form:
    """How a format writes the pieces of a cell."""

    roles: Mapping[As, str]
    """What stands around a word, by its role."""
    escape: Callable[[str], str]
    mark: Callable[[str, Mark], str]
    """Writes a word with its mark."""

    def cell(self, cell: Cell) -> str:
        """One cell."""
        return "<br>".join(" ".join(map(self._piece, line)) for line in cell)

    def _piece(self, piece: Piece) -> str:
        said = ", ".join(self.roles[piece.role].format(self.escape(word)) for word in piece.words)
        return said if piece.mark is PLAIN else self.mark(said, piece.mark)


def plain(text: str) -> str:
    """Text that a cell of Markdown can hold, on one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


MARKDOWN = Form(
    {As.PROSE: "{}", As.NAME: "`{}`", As.GUARD: "[{}]", As.NOTE: "{}", As.REFUSED: "{}"},
    plain,
    lambda said, mark: f"**{mark.word}** {said}" if mark.word else said,
)
HTML = Form(
    {
        As.PROSE: "{}",
        As.NAME: "<code>{}</code>",
        As.GUARD: '<span class="guard">[{}]</span>',
        As.NOTE: "<b>{}</b>",
        As.REFUSED: '<span class="refused">{}</span>',
    },
    escaped,
    lambda said, mark: f'<span class="{mark.emphasis.name.lower()}">{said}</span>',
)


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are Markdown already."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def as_markdown(grid: Grid) -> str:
    """A table in Markdown."""
    heading, rows = grid.shown()
    if grid.title == "State by event":
        heading = [heading[0], *(f"`{event}`" for event in heading[1:])]
    return markdown(heading, [[MARKDOWN.cell(cell) for cell in row] for row in rows])


def as_html(grid: Grid) -> str:
    """A table in HTML; it scrolls if it is too wide."""
    heading, rows = grid.shown()
    head = "".join(f'<th scope="col">{escaped(each)}</th>' for each in heading)
    body = "\n".join(f"<tr>{''.join(f'<td>{HTML.cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


# --- tables of a lifecycle, in Markdown ------------------------------------------------------------------------------------


def _panel(table: Table) -> Panel:
    return Panel(picture(table))


def state_event_table(table: Table) -> str:
    """The whole matrix: the targets of each event from each state, in the order in which the rows are tried."""
    return as_markdown(matrix(_panel(table)))


def row_table(table: Table) -> str:
    """Every row with its number, in table order."""
    return as_markdown(_rows(_panel(table)))


def state_table(table: Table, extra: Mapping[str, Callable[[enum.Enum], str]] | None = None) -> str:
    """Every state and what it means; *extra* adds columns, by heading."""
    heading, rows = _states(_panel(table)).shown()
    more = extra or {}
    cells = [
        [*map(MARKDOWN.cell, row), *(column(state) for column in more.values())]
        for row, state in zip(rows, table.states, strict=True)
    ]
    return markdown([*heading, *more], cells)


def event_table(table: Table) -> str:
    """Every event with its payload and what it stands for."""
    return as_markdown(_words("Events", picture(table).events, ["event", "payload", "means"]))


def guard_table(table: Table) -> str:
    """Every guard, the fields of the payload that it reads, and when it holds."""
    guards = picture(table).guards
    if not guards:
        return "No row of this table has a guard.\n"
    return as_markdown(_words("Guards", guards, ["guard", "reads", "holds when"]))


def coupling_table(couplings: Iterable[Coupling]) -> str:
    """Every coupling: what causes it, into which states, what follows, and why."""
    return as_markdown(couplings_of(couplings))


def panel_tables(panels: Iterable[Panel]) -> str:
    """Lifecycles as a Markdown document: their tables with the marks."""
    lines: list[str] = []
    for panel in panels:
        said = filter(None, [panel.picture.about, panel.marks.title, *panel.marks.notes])
        lines += [f"## {plain(panel.picture.name)}", "", *(line for each in said for line in (plain(each), ""))]
        for grid in (*sections(panel), *([couplings_of(panel.picture.couplings)] if panel.picture.couplings else [])):
            lines += [f"### {grid.title}", "", as_markdown(grid)]
    return "\n".join(lines)
