"""Do drawings and tables say what the compiled tables say, and can their readers parse them?"""

from __future__ import annotations

import enum
import re

import pytest

from blocklife.drawing.mermaid import KEYWORDS, escaped, mermaid
from blocklife.drawing.tables import (
    REFUSAL,
    coupling_table,
    event_table,
    guard_table,
    plain,
    row_table,
    state_event_table,
    state_table,
)
from blocklife.lifecycle import Lifecycle, Table, edge, guard
from blocklife.states import COUPLINGS, MACHINES


class Oddity(enum.Enum):
    """States with names and meanings that a careless drawing would trip over."""

    NOTE = 'a: b; c # d "e" | <f> 100%'
    End = "two\nlines"
    NOTE_ = "taken already"


@guard
def lucky(dice: int) -> bool:
    """It came up | six."""
    return dice == 6


class OddLife(Lifecycle, initial=Oddity.NOTE, finals=(Oddity.NOTE_,)):
    """A lifecycle of odd names."""

    @edge(Oddity.NOTE, to=Oddity.End, when=lucky)
    @edge(Oddity.NOTE, to=Oddity.End)
    @edge(Oddity.End, to=Oddity.NOTE_, when=lucky)
    def throw(self, dice: int) -> None:
        """Throw the dice."""


TABLES = {**MACHINES, "odd": OddLife.table}

every_table = pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))

STATE = re.compile(r'state "([^"\n]+)" as (\w+)')
MEANING = re.compile(r"(\w+) : ([^:;\n]+)")
ARROW = re.compile(r"(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : ([^:;\n]+))?")
LABEL = re.compile(r"(\w+)(?: \[(\w+)\])?")


def statements(drawn: str) -> list[str]:
    """The lines of a diagram below its head, each of which must be one known statement."""
    head, *lines = drawn.splitlines()
    assert head == "stateDiagram-v2"
    found = [without_entities(line.strip()) for line in lines]
    for line in found:
        assert any(each.fullmatch(line) for each in (STATE, MEANING, ARROW)), line
    return found


def without_entities(text: str) -> str:
    """Text as the grammar sees it: entities are read before anything else."""
    seen = re.sub(r"#\d+;", "?", text)
    assert "#" not in seen, text
    return seen


def cells(markdown: str) -> list[list[str]]:
    """The cells of a table, without its heading; every line must have as many as the heading."""
    found = [re.split(r"(?<!\\)\|", line)[1:-1] for line in markdown.splitlines()]
    assert all(len(line) == len(found[0]) for line in found)
    assert set("".join(found[1])) <= set("- ")
    return [[cell.strip() for cell in line] for line in found[2:]]


# --- mermaid -----------------------------------------------------------------------------------------------------------


@every_table
def test_mermaid_draws_every_row_once(table: Table) -> None:
    """Lines of labels and rows are the same set, and two states are joined by one arrow at most."""
    names: dict[str, str] = {}
    rows: list[tuple[str, str, str, str | None]] = []
    arrows: list[tuple[str, str]] = []
    for line in statements(mermaid(table)):
        if found := STATE.fullmatch(line):
            names[found[2]] = found[1]
        elif (found := ARROW.fullmatch(line)) and found[3]:
            arrows.append((found[1], found[2]))
            for written in found[3].split("<br/>"):
                label = LABEL.fullmatch(written)
                assert label, written
                rows.append((names[found[1]], label[1], names[found[2]], label[2]))

    wanted = [(row.source.name, row.event, row.target.name, row.guard.name if row.guard else None) for row in table.rows]
    assert sorted(rows, key=str) == sorted(wanted, key=str)
    assert len(arrows) == len(set(arrows))


@every_table
def test_mermaid_shows_every_state_with_its_beginning_and_end(table: Table) -> None:
    """Each state is declared once, one is entered from outside, and just the final ones are left to the outside."""
    drawn = statements(mermaid(table))
    names = {found[2]: found[1] for line in drawn if (found := STATE.fullmatch(line))}
    outside = [(found[1], found[2]) for line in drawn if (found := ARROW.fullmatch(line)) and "[*]" in found.groups()]
    entered = [names[target] for source, target in outside if source == "[*]"]
    left = [names[source] for source, target in outside if target == "[*]"]

    assert sorted(names.values()) == sorted(state.name for state in table.states)
    assert entered == [table.initial.name]
    assert sorted(left) == sorted(state.name for state in table.finals)


@every_table
def test_mermaid_tells_meanings_only_when_asked(table: Table) -> None:
    """One description per state, or none."""
    described = [line for line in statements(mermaid(table)) if MEANING.fullmatch(line)]

    assert len(described) == len(table.states)
    assert not any(MEANING.fullmatch(line) for line in statements(mermaid(table, meanings=False)))


def test_mermaid_gives_states_named_like_keywords_another_id() -> None:
    """The name stays what the reader sees; the id is neither a keyword nor another state's."""
    names = {found[2]: found[1] for line in statements(mermaid(OddLife.table)) if (found := STATE.fullmatch(line))}

    assert sorted(names.values()) == ["End", "NOTE", "NOTE_"]
    assert len(names) == len(Oddity)
    assert not {name.lower() for name in names} & KEYWORDS


def test_mermaid_escapes_what_ends_a_label() -> None:
    """No character of a meaning can end a label, begin a comment or become markup."""
    text = escaped('a: b; c # d\n"e" <f> & `g` {h} %%')

    assert not set(re.sub(r"#\d+;", "", text)) & set(':;#\n"<>&`{}%')
    assert text.startswith("a#58; b#59; c #35; d #34;e#34;")


@every_table
def test_mermaid_is_the_same_each_time(table: Table) -> None:
    """Nothing depends on the order of a set."""
    assert mermaid(table) == mermaid(table)


# --- tables ------------------------------------------------------------------------------------------------------------


@every_table
def test_state_event_table_has_every_pair(table: Table) -> None:
    """Each cell lists the targets in the order in which they are tried; a refusal shows where the rows can run dry."""
    found = cells(state_event_table(table))

    assert [line[0] for line in found] == [f"`{state.name}`" for state in table.states]
    for line, state in zip(found, table.states, strict=True):
        for cell, event in zip(line[1:], table.events.values(), strict=True):
            rows = event.rows_of(state)
            wanted = [f"`{row.target.name}`" + (f" [{row.guard.name}]" if row.guard else "") for row in rows]
            assert cell.split("<br>") == wanted + ([] if rows and rows[-1].guard is None else [REFUSAL])


@every_table
def test_row_table_lists_every_row_in_order(table: Table) -> None:
    """One line a row, numbered as the compiled table numbers it."""
    found = [[cell.strip("`") for cell in line] for line in cells(row_table(table))]

    assert found == [
        [str(row.index), row.source.name, row.event, row.guard.name if row.guard else "", row.target.name] for row in table.rows
    ]


@every_table
def test_state_table_explains_every_state(table: Table) -> None:
    """Each meaning stands beside its state, and a column of one's own can be added."""
    found = cells(state_table(table, {"length": lambda state: str(len(state.name))}))

    assert [line[0].strip("`") for line in found] == [state.name for state in table.states]
    for line, state in zip(found, table.states, strict=True):
        assert plain(state.value) in line[1]
        assert line[1].endswith("(initial)") is (state is table.initial)
        assert line[1].endswith("(final)") is (state in table.finals and state is not table.initial)
        assert line[2] == str(len(state.name))


@every_table
def test_event_and_guard_tables_explain_every_event_and_guard(table: Table) -> None:
    """Payloads and sentences come from the definitions."""
    events = cells(event_table(table))
    guards = {row.guard.name: row.guard for row in table.rows if row.guard}

    assert [line[0].strip("`") for line in events] == list(table.events)
    assert [line[2] for line in events] == [plain(event.doc) for event in table.events.values()]
    if guards:
        assert [line[0].strip("`") for line in cells(guard_table(table))] == list(guards)
    else:
        assert guard_table(table) == "No row of this table has a guard.\n"


def test_coupling_table_lists_every_coupling() -> None:
    """Causes and effects with a bar in them do not break the table."""
    found = cells(coupling_table(COUPLINGS))

    assert [line[0].strip("`") for line in found] == [each.name for each in COUPLINGS]
    for line, each in zip(found, COUPLINGS, strict=True):
        assert line[1].strip("`").replace("\\|", "|") == each.cause
        assert [effect.strip("`").replace("\\|", "|") for effect in line[3].split("<br>")] == list(each.effects)
        assert line[4] == plain(each.why)
