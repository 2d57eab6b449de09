"""A lifecycle, and the couplings between lifecycles, as Markdown tables."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence

from blocklife.drawing._picture import Emphasis, Mark, Panel
from blocklife.lifecycle import Event, Row, Table
from blocklife.states import Coupling

REFUSAL = "·"
"""What a cell shows where an event is refused."""

LINE = "<br>"


def state_event_table(table: Table) -> str:
    """The whole matrix: the targets of each event from each state, in the order in which the rows are tried."""
    events = list(table.events.values())
    return markdown(
        ["state", *(f"`{event.name}`" for event in events)],
        [[f"`{state.name}`", *(_cell(event, state) for event in events)] for state in table.states],
    )


def row_table(table: Table) -> str:
    """Every row with its number, in table order."""
    return markdown(
        ["row", "from", "event", "guard", "to"],
        [[str(row.index), f"`{row.source.name}`", f"`{row.event}`", _guard(row), f"`{row.target.name}`"] for row in table.rows],
    )


def state_table(table: Table, extra: Mapping[str, Callable[[enum.Enum], str]] | None = None) -> str:
    """Every state and what it means; *extra* adds columns, by heading."""
    more = extra or {}
    return markdown(
        ["state", "means", *more],
        [
            [f"`{state.name}`", plain(str(state.value)) + _mark(table, state), *(column(state) for column in more.values())]
            for state in table.states
        ],
    )


def event_table(table: Table) -> str:
    """Every event with its payload and what it stands for."""
    return markdown(
        ["event", "payload", "means"],
        [[f"`{event.name}`", _names(event.parameters), plain(event.doc)] for event in table.events.values()],
    )


def guard_table(table: Table) -> str:
    """Every guard, the fields of the payload that it reads, and when it holds."""
    guards = dict.fromkeys(row.guard for row in table.rows if row.guard is not None)
    if not guards:
        return "No row of this table has a guard.\n"
    return markdown(
        ["guard", "reads", "holds when"],
        [[f"`{guard.name}`", _names(guard.parameters), plain(guard.doc)] for guard in guards],
    )


def coupling_table(couplings: Iterable[Coupling]) -> str:
    """Every coupling: what causes it, into which states, what follows, why, and the mutants that show it."""
    return markdown(
        ["coupling", "when", "leads into", "then, in this order", "why", "deleted from the row by"],
        [
            [
                f"`{each.name}`",
                f"`{plain(each.cause)}`",
                _names([state.name for state in each.into]) if each.into else "any state",
                LINE.join(f"`{plain(effect)}`" for effect in each.effects),
                plain(each.why),
                LINE.join(f"`{plain(each.without(effect))}`" for effect in each.effects),
            ]
            for each in couplings
        ],
    )


def panel_tables(panels: Iterable[Panel]) -> str:
    """Lifecycles as a Markdown document: state by event with the marks, and what the states, events and guards mean."""
    return "\n".join(line for panel in panels for line in _document(panel))


def _document(panel: Panel) -> list[str]:
    picture, marks = panel.picture, panel.marks
    events = [event.name for event in picture.events]
    lines = [f"## {plain(picture.name)}", "", *([plain(picture.about), ""] if picture.about else [])]
    matrix = [
        [_marked(f"`{node.name}`", marks.state(node)), *(_panel_cell(panel, node.name, event) for event in events)]
        for node in picture.nodes
    ]
    lines.append(markdown(["state", *(f"`{event}`" for event in events)], matrix))
    lines += [line for each in filter(None, [marks.title, *marks.notes]) for line in (plain(each), "")]
    ends = {True: " (final)", False: ""}
    means = [
        [f"`{node.name}`", plain(node.about) + (" (initial)" if node.initial else ends[node.final])] for node in picture.nodes
    ]
    lines.append(markdown(["state", "means"], means))
    lines.append(
        markdown(
            ["event", "payload", "means"],
            [[f"`{word.name}`", _names(word.reads), plain(word.about)] for word in picture.events],
        )
    )
    if picture.guards:
        guards = [[f"`{word.name}`", _names(word.reads), plain(word.about)] for word in picture.guards]
        lines.append(markdown(["guard", "reads", "holds when"], guards))
    if picture.couplings:
        lines.append(coupling_table(picture.couplings))
    return lines


def _panel_cell(panel: Panel, state: str, event: str) -> str:
    """The targets of one event from one state, with marks; a refusal comes last if every row has a guard."""
    rows = panel.picture.rows_of(state, event)
    written = []
    for target, label in rows:
        said = f"`{target}`" if label.guard is None else f"`{target}` [{plain(label.guard)}]"
        written.append(_marked(said, panel.marks.row(label)))
    if all(label.guard is not None for _, label in rows):
        written.append(REFUSAL)
    return LINE.join(written)


def _marked(said: str, mark: Mark) -> str:
    """A cell's line with its mark: struck out, bold or in words, and its note."""
    note = f" {plain(mark.note)}" if mark.note else ""
    forms = {
        Emphasis.UNUSED: f"{said} (never)",
        Emphasis.ALARM: f"**!** {said}",
    }
    return forms.get(mark.emphasis, said) + note


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are Markdown already."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plain(text: str) -> str:
    """Text that a cell can hold, on one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _cell(event: Event, state: enum.Enum) -> str:
    """The targets of one event from one state; a refusal comes last if every row has a guard."""
    rows = event.rows_of(state)
    written = [f"`{row.target.name}`" if row.guard is None else f"`{row.target.name}` [{row.guard.name}]" for row in rows]
    if all(row.guard is not None for row in rows):
        written.append(REFUSAL)
    return LINE.join(written)


def _guard(row: Row) -> str:
    return "" if row.guard is None else f"`{row.guard.name}`"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def _mark(table: Table, state: enum.Enum) -> str:
    """The states in which a life begins and ends."""
    if state is table.initial:
        return " (initial)"
    return " (final)" if state in table.finals else ""
