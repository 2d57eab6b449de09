"""Do drawings and tables say what the compiled tables say, and can their readers parse them?"""

from __future__ import annotations

import enum
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from blocklife.drawing._dot import dot
from blocklife.drawing._mermaid import KEYWORDS, escaped, mermaid
from blocklife.drawing._page import page
from blocklife.drawing._picture import Emphasis, Mark, Marks, Panel, picture
from blocklife.drawing._tables import (
    REFUSAL,
    coupling_table,
    event_table,
    guard_table,
    panel_tables,
    plain,
    row_table,
    state_event_table,
    state_table,
)
from blocklife.drawing._terminal import terminal
from blocklife.drawing._theme import Theme
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


def panel(table: Table, marks: Marks | None = None) -> Panel:
    """One machine alone, with or without marks."""
    drawn = picture(table)
    return Panel(drawn) if marks is None else Panel(drawn, marks)


def marks_of(table: Table) -> Marks:
    """Every emphasis in turn, each with a note, over all rows and states."""
    each = list(Emphasis)
    rows = {row.index: Mark(each[row.index % len(each)], f"x{row.index}", "more", 0.5) for row in table.rows}
    states = {state.name: Mark(each[at % len(each)], f"n{at}", "more", 0.5) for at, state in enumerate(table.states)}
    return Marks("a title", states, rows, ["A note that is below."])


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
    for line in statements(mermaid([panel(table)])):
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
    drawn = statements(mermaid([panel(table)]))
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
    described = [line for line in statements(mermaid([panel(table)])) if MEANING.fullmatch(line)]

    assert len(described) == len(table.states)
    assert not any(MEANING.fullmatch(line) for line in statements(mermaid([panel(table)], meanings=False)))


def test_mermaid_gives_states_named_like_keywords_another_id() -> None:
    """The name stays what the reader sees; the id is neither a keyword nor another state's."""
    names = {found[2]: found[1] for line in statements(mermaid([panel(OddLife.table)])) if (found := STATE.fullmatch(line))}

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
    assert mermaid([panel(table)]) == mermaid([panel(table)])


def test_mermaid_draws_several_machines_apart() -> None:
    """Each is a composite state of its own, and no two states share an id."""
    drawn = mermaid([panel(table) for table in TABLES.values()])
    ids = re.findall(r'state "[^"]+" as (\w+)', drawn)

    assert len(ids) == len(set(ids)) == len(TABLES) + sum(len(table.states) for table in TABLES.values())
    assert drawn.count("{\n") == drawn.count("\n    }\n") == len(TABLES)


def test_mermaid_shows_marks_as_classes_and_in_words() -> None:
    """A class for each emphasis that a state has; an arrow's label says it, with its note."""
    table = MACHINES["job"]
    drawn = mermaid([panel(table, marks_of(table))])

    for emphasis in set(Emphasis) - {Emphasis.PLAIN}:
        assert f"classDef marked_{emphasis.name.lower()} " in drawn
    assert "class IN_FLIGHT marked_used" in drawn
    assert "(never) " in drawn
    assert "(wrong) " in drawn
    assert all(f" x{row.index}" in drawn for row in table.rows)


_PARSE = """
const {createRequire} = require("node:module"), {pathToFileURL} = require("node:url");
const find = (name) => pathToFileURL(createRequire(process.argv[1] + "/x.js").resolve(name)).href;
(async () => {
  const {JSDOM} = await import(find("jsdom"));
  globalThis.window = new JSDOM("").window; globalThis.document = window.document;
  const mermaid = (await import(find("mermaid"))).default;
  const found = [];
  for (const text of JSON.parse(require("node:fs").readFileSync(0, "utf8"))) {
    await mermaid.parse(text);
    const {db} = await mermaid.mermaidAPI.getDiagramFromText(text);
    found.push({states: [...db.getStates().keys()], arrows: db.getRelations().map((each) => [each.id1, each.id2])});
  }
  console.log(JSON.stringify(found));
})();
"""


def test_mermaid_itself_reads_every_drawing() -> None:
    """The real parser finds the states and the arrows of each machine, with marks and without."""
    folder, node = Path(__file__).parents[1] / "node" / "node_modules", shutil.which("node")
    if not folder.is_dir() or not node:
        pytest.skip("Mermaid is not here (npm install --no-package-lock --prefix tests/node)")
    drawn = [mermaid([panel(table, marks)]) for table in TABLES.values() for marks in (None, marks_of(table))]
    whole = mermaid([panel(table, marks_of(table)) for table in TABLES.values()])
    command = [node, "-e", _PARSE, str(folder)]
    ran = subprocess.run(command, input=json.dumps([*drawn, whole]), capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    *alone, together = json.loads(ran.stdout)
    for table, found in zip([table for table in TABLES.values() for _ in range(2)], alone, strict=True):
        states = [each for each in found["states"] if not each.startswith("root_")]
        assert len(states) == len(table.states)
        inner = [ends for ends in found["arrows"] if not any(each.startswith("root_") for each in ends)]
        assert len(inner) == len({(row.source, row.target) for row in table.rows})
    assert len(together["states"]) == len(TABLES)


# --- dot ---------------------------------------------------------------------------------------------------------------


def rows_in(label: str) -> list[str]:
    """The lines of a label of Graphviz."""
    return [line.replace('\\"', '"').replace("\\\\", "\\") for line in label.split("\\n")]


@every_table
@pytest.mark.parametrize("marked", [False, True], ids=["plain", "marked"])
def test_dot_is_read_by_graphviz_and_has_every_row(table: Table, marked: bool) -> None:
    """The parser of Graphviz itself finds each state, each arrow, and a line for each row."""
    pygraphviz = pytest.importorskip("pygraphviz")
    graph = pygraphviz.AGraph(string=dot([panel(table, marks_of(table) if marked else None)]))
    nodes = {str(node) for node in graph.nodes()}
    found = {(str(a), str(b)): rows_in(graph.get_edge(a, b).attr["label"]) for a, b in graph.edges() if a != "(begin)"}
    wanted: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
        said = row.event if row.guard is None else f"{row.event} [{row.guard.name}]"
        wanted.setdefault((row.source.name, row.target.name), []).append(f"{said} x{row.index}" if marked else said)

    assert nodes == {state.name for state in table.states} | {"(begin)"}
    assert {ends: sorted(rows) for ends, rows in found.items()} == {ends: sorted(rows) for ends, rows in wanted.items()}
    double = {str(node) for node in graph.nodes() if node.attr["peripheries"] == "2"}
    assert double == {state.name for state in table.finals}
    assert graph.has_edge("(begin)", table.initial.name)


def test_dot_of_several_machines_keeps_them_apart() -> None:
    """One cluster each; states of the same name stay two."""
    pygraphviz = pytest.importorskip("pygraphviz")
    graph = pygraphviz.AGraph(string=dot([panel(table) for table in MACHINES.values()]))

    assert len(graph.subgraphs()) == len(MACHINES)
    assert len(graph.nodes()) == sum(len(table.states) + 1 for table in MACHINES.values())


def test_dot_shows_an_arrow_as_used_where_one_row_was_taken() -> None:
    """That another row of it never was does not make it dashed."""
    pygraphviz = pytest.importorskip("pygraphviz")
    rows = [row for row in MACHINES["slot"].rows if (row.source.name, row.target.name) == ("WRITING", "EMPTY")]
    assert len(rows) == 2
    marks = Marks(rows={rows[0].index: Mark(Emphasis.USED, "3"), rows[1].index: Mark(Emphasis.UNUSED, "0")})
    graph = pygraphviz.AGraph(string=dot([panel(MACHINES["slot"], marks)]))
    arrow = graph.get_edge("WRITING", "EMPTY")

    assert arrow.attr["color"] == Theme.LIGHT.value.emphases[Emphasis.USED].line
    assert not arrow.attr["style"]


def test_dot_quotes_whatever_a_name_holds() -> None:
    """Quotes, backslashes and line ends of a meaning end up in a tooltip as they are."""
    pygraphviz = pytest.importorskip("pygraphviz")
    graph = pygraphviz.AGraph(string=dot([panel(OddLife.table)], Theme.DARK))

    assert "a: b; c # d" in graph.get_node("NOTE").attr["tooltip"]
    assert graph.graph_attr["bgcolor"] == Theme.DARK.value.ground


# --- pages and tables of panels ----------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Counts the elements of a page and asks that each is closed."""

    VOID = frozenset({"meta", "br", "rect", "circle", "path", "polygon"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert not {name for name, _ in attrs} & {"src", "href", "onclick"}, attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_data(self, data: str) -> None:
        self.words += data


@every_table
def test_page_stands_alone_and_explains_every_state_event_and_guard(table: Table) -> None:
    """Every element is closed, nothing is fetched, no script runs, and each word of the table is there."""
    found = Page(page([panel(table, marks_of(table))]))

    assert found.open == []
    assert found.counts["svg"] == 1
    assert "script" not in found.counts
    words = [*(state.name for state in table.states), *table.events, *(row.guard.name for row in table.rows if row.guard)]
    assert [word for word in words if word not in found.words] == []
    for told in (*(event.doc for event in table.events.values()), "A note that is below.", "a title"):
        assert " ".join(told.split()) in found.words


@every_table
def test_panel_tables_have_every_pair_and_every_mark(table: Table) -> None:
    """Without marks the matrix is that of the specification; with them each note stands in a cell."""
    plainly = panel_tables([panel(table)])
    marked = panel_tables([panel(table, marks_of(table))])

    assert state_event_table(table) in plainly
    assert all(f" x{row.index}" in marked for row in table.rows)
    assert "A note that is below." in marked


@every_table
@pytest.mark.parametrize("columns", [None, 60, 200])
def test_terminal_shows_every_pair_in_lines_that_fit(table: Table, columns: int | None) -> None:
    """Bands of events side by side; none is lost, and a line is broken only where one column alone is too wide."""
    drawn = re.sub(r"\x1b\[[\d;]*m", "", terminal([panel(table)], columns=columns))
    heads = [line.split() for line in drawn.splitlines() if line.startswith(" ") and line.split()[0] in table.events]

    assert [event for head in heads for event in head] == list(table.events)
    assert max(map(len, drawn.splitlines())) <= (columns or 120)
    for row in table.rows:
        assert row.target.name in drawn


def test_terminal_says_marks_in_words() -> None:
    """Colours do not reach every reader."""
    table = MACHINES["slot"]
    drawn = terminal([panel(table, marks_of(table))])

    assert "never " in drawn
    assert "wrong " in drawn
    assert "a title" in drawn
    assert all(f"x{row.index}" in drawn for row in table.rows)
    assert "\x1b" not in drawn


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
    """Causes and effects with a bar in them do not break the table; beside each row stand the mutants that lack an effect."""
    found = cells(coupling_table(COUPLINGS))

    assert [line[0].strip("`") for line in found] == [each.name for each in COUPLINGS]
    for line, each in zip(found, COUPLINGS, strict=True):
        assert line[1].strip("`").replace("\\|", "|") == each.cause
        assert [effect.strip("`").replace("\\|", "|") for effect in line[3].split("<br>")] == list(each.effects)
        mutants = "<br>".join(f"`{plain(each.without(effect))}`" for effect in each.effects)
        assert line[4:] == [plain(each.why), mutants]
