"""A lifecycle as a Mermaid state diagram, which GitHub and most Markdown viewers draw.

In that grammar a label ends at a colon, a semicolon or the end of the line, a number sign begins a comment or an entity, and
keywords are read in any case. So every such character is written as an entity, and a state whose name is a keyword gets
another id.
"""

from __future__ import annotations

import enum

from blocklife.lifecycle import Row, Table

KEYWORDS = frozenset(
    {"accdescr", "acctitle", "as", "class", "classdef", "click", "default", "direction", "end", "hide", "note", "scale"}
    | {"state", "statediagram", "style", "title"}
)
"""Words that a state cannot have as its id; the grammar reads them in any case."""

_ENTITIES = {character: f"#{ord(character)};" for character in '#;:"<>&\\%{}`'}


def mermaid(table: Table, *, meanings: bool = True) -> str:
    """Draw a lifecycle: one arrow for each pair of states, one line of its label for each row.

    With *meanings*, each state shows what it means below its name.
    """
    ids = _ids(table)
    lines = ["stateDiagram-v2"]
    for state in table.states:
        lines.append(f'    state "{escaped(state.name)}" as {ids[state]}')
        if meanings and isinstance(state.value, str):
            lines.append(f"    {ids[state]} : {escaped(state.value)}")
    lines.append(f"    [*] --> {ids[table.initial]}")
    arrows: dict[tuple[enum.Enum, enum.Enum], list[Row]] = {}
    for source in table.states:
        for row in table.rows:
            if row.source is source:
                arrows.setdefault((source, row.target), []).append(row)
    for (source, target), rows in arrows.items():
        lines.append(f"    {ids[source]} --> {ids[target]} : {'<br/>'.join(label(row) for row in rows)}")
    lines.extend(f"    {ids[state]} --> [*]" for state in table.states if state in table.finals)
    return "\n".join(lines) + "\n"


def label(row: Row) -> str:
    """What one row says on its arrow: the event, and its guard in brackets."""
    return escaped(row.event if row.guard is None else f"{row.event} [{row.guard.name}]")


def escaped(text: str) -> str:
    """Text that a label can hold; line ends become spaces."""
    return "".join(_ENTITIES.get(character, character) for character in " ".join(text.split()))


def _ids(table: Table) -> dict[enum.Enum, str]:
    """An id for each state: its name, unless the grammar means something else by it."""
    taken = {state.name for state in table.states}
    ids = {}
    for state in table.states:
        chosen = state.name
        while chosen.lower() in KEYWORDS or (chosen != state.name and chosen in taken):
            chosen += "_"
        taken.add(chosen)
        ids[state] = chosen
    return ids
