"""Do pictures, drawings and tables say what the compiled tables say, and can their readers parse them?

Method: each format is read back by a parser of its own into states, ends and rows, which are compared with the table; with
marks and without, for the four machines and for a lifecycle whose names a careless drawing would trip over.
"""

from __future__ import annotations

import enum
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from attrs import frozen

from blocklife import drawing
from blocklife.drawing import Emphasis, Mark, Marks, Panel, Theme, dot, mermaid, page, picture, plain, svg, terminal
from blocklife.drawing._mermaid import KEYWORDS, escaped
from blocklife.drawing._picture import Arrow, Label, tone_of
from blocklife.drawing._tables import REFUSAL, panel_tables
from blocklife.lifecycle import Lifecycle, Table, Tone, edge, guard
from blocklife.states import COUPLINGS, MACHINES, Block, Job, coupled
from tests.drawing.outline import Outline


class Oddity(enum.Enum):
    """States with names and meanings that a careless drawing would trip over."""

    NOTE = 'a: b; c # d "e" | <f> 100%'
    End = "two\nlines\n\nand a second paragraph"
    NOTE_ = 2


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
    return Panel(picture(table), marks or Marks())


def marks_of(table: Table) -> Marks:
    """Every emphasis in turn, each with a note, over all rows and states."""
    each = list(Emphasis)
    rows = {row.index: Mark(each[row.index % len(each)], f"x{row.index}", "more", 0.5) for row in table.rows}
    states = {state.name: Mark(each[at % len(each)], f"n{at}", "more", 0.5) for at, state in enumerate(table.states)}
    return Marks("a title", states, rows, ["A note that is below."])


def said(event: str, guard: str | None) -> str:
    return event if guard is None else f"{event} [{guard}]"


# --- what every format says ----------------------------------------------------------------------------------------------


@frozen
class Told:
    """What a drawing says of a lifecycle."""

    states: list[str]
    begins: list[str]
    ends: list[str]
    rows: list[tuple[str, str, str]]
    """Source, event with its guard, target; in no order."""
    arrows: int | None = None
    """How many pairs of states have one; None where a format has none."""

    @classmethod
    def by(cls, table: Table) -> Told:
        rows = [(row.source.name, said(row.event, getattr(row.guard, "name", None)), row.target.name) for row in table.rows]
        return cls.of(
            (state.name for state in table.states),
            [table.initial.name],
            (state.name for state in table.finals),
            rows,
            len({(source, target) for source, _, target in rows}),
        )

    @classmethod
    def of(
        cls,
        states: Iterable[str],
        begins: Iterable[str],
        ends: Iterable[str],
        rows: Iterable[tuple[str, str, str]],
        arrows: int | None = None,
    ) -> Told:
        return cls(sorted(states), list(begins), sorted(ends), sorted(rows), arrows)


STATE = re.compile(r'state "([^"\n]+)" as (\w+)')
MEANING = re.compile(r"(\w+) : ([^:;\n]+)")
ARROW = re.compile(r"(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : ([^:;\n]+))?")
CLASSES = re.compile(r"class(Def)? \w+ .+")


def statements(drawn: str) -> list[str]:
    """The lines of a Mermaid diagram below its head, each of which must be one known statement."""
    head, *lines = drawn.splitlines()
    assert head == "stateDiagram-v2"
    found = [re.sub(r"#\d+;", "?", line.strip()) for line in lines]  # entities are read before anything else
    for line in found:
        assert "#" not in line or line.startswith("classDef "), line
        assert any(each.fullmatch(line) for each in (STATE, MEANING, ARROW, CLASSES)), line
    return found


def unmarked(label: str) -> str:
    """A label without the word and the note of its mark."""
    return re.sub(r"^\((never|wrong)\) | x\d+$", "", label)


def read_mermaid(drawn: str) -> Told:
    lines = statements(drawn)
    names = {found[2]: found[1] for line in lines if (found := STATE.fullmatch(line))}
    arrows = [found.groups() for line in lines if (found := ARROW.fullmatch(line))]
    inner = [(names[a], names[b], labels) for a, b, labels in arrows if "[*]" not in (a, b)]
    return Told.of(
        names.values(),
        [names[b] for a, b, _ in arrows if a == "[*]"],
        [names[a] for a, b, _ in arrows if b == "[*]"],
        [(a, unmarked(label), b) for a, b, labels in inner for label in labels.split("<br/>")],
        len(inner),
    )


def read_dot(drawn: str) -> Told:
    graph = pytest.importorskip("pygraphviz").AGraph(string=drawn)
    inner = [(a, b) for a, b in graph.edges() if a != "(begin)"]
    labels = {ends: graph.get_edge(*ends).attr["label"].split("\\n") for ends in inner}
    return Told.of(
        [node for node in graph.nodes() if node != "(begin)"],
        [b for a, b in graph.edges() if a == "(begin)"],
        [node for node in graph.nodes() if node.attr["peripheries"] == "2"],
        [(a, unmarked(label.replace('\\"', '"')), b) for (a, b), found in labels.items() for label in found],
        len(inner),
    )


SVG = "{http://www.w3.org/2000/svg}"


def read_svg(drawn: str) -> Told:
    """Arrows are groups with their ends; rows stand in their state or on an arrow, and a tooltip says which."""
    root = ET.fromstring(drawn)
    states = {each.attrib["data-state"]: each for each in root.iter() if each.get("class") == "bl-state"}
    tips = {name: (each.findtext(f"{SVG}title") or "").splitlines()[0] for name, each in states.items()}
    arrows = [each for each in root.iter() if each.get("class") == "bl-arrow"]
    assert all(len(each.findall(f"{SVG}polygon")) == 1 for each in arrows)  # one head
    rows, ends = [], {(each.attrib["data-source"], each.attrib["data-target"]) for each in arrows}
    for each in (each for each in root.iter() if each.get("class") == "bl-row"):
        words = ["".join(word.itertext()) for word in each.iter(f"{SVG}text")]
        source, _, target = (each.findtext(f"{SVG}title") or "").splitlines()[0].partition(": ")[2].partition(" → ")
        guards = [word for word in words[1:] if word.startswith("[")]
        rows.append((source, " ".join([words[0], *guards]), target))
        ends.add((source, target))
    double = [name for name, each in states.items() if len(each.findall(f"{SVG}rect")) == 2]
    assert double == [name for name, tip in tips.items() if "(a life ends here)" in tip]
    return Told.of(states, [name for name, tip in tips.items() if "(a life begins here)" in tip], double, rows, len(ends))


def cells(text: str) -> list[list[str]]:
    """The cells of a Markdown table, without its heading; every line must have as many as the heading."""
    found = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines()]
    assert all(len(line) == len(found[0]) for line in found)
    assert set("".join(found[1])) <= set("- ")
    return [[cell.strip() for cell in line] for line in found[2:]]


def read_tables(drawn: str) -> Told:
    tables = {title: cells(text) for title, text in re.findall(r"### (.+)\n\n((?:\|.*\n)+)", drawn)}
    states = [(line[0].strip("`"), line[1]) for line in tables["States"]]
    rows = [[re.sub(r"\*\*\w+\*\* ", "", cell).strip("`") for cell in line] for line in tables["Rows"]]
    return Told.of(
        [name for name, _ in states],
        [name for name, means in states if means.endswith("(initial)")],
        [name for name, means in states if means.endswith("(final)")],
        [(source, said(event, guard or None), target) for _, source, event, guard, target, *_ in rows],
        len({(row[1], row[4]) for row in rows}),
    )


FORMATS: Mapping[str, tuple[Callable[[list[Panel]], str], Callable[[str], Told]]] = {
    "mermaid": (mermaid, read_mermaid),
    "dot": (dot, read_dot),
    "svg": (svg, read_svg),
    "table": (panel_tables, read_tables),
}


@every_table
@pytest.mark.parametrize("marked", [False, True], ids=["plain", "marked"])
@pytest.mark.parametrize("name", FORMATS)
def test_format_says_the_whole_table(name: str, marked: bool, table: Table) -> None:
    """Each state, where lives begin and end, each row once; two states have one arrow. With marks each note is there, too."""
    draw, read = FORMATS[name]
    drawn = draw([panel(table, marks_of(table) if marked else None)])

    assert read(drawn) == Told.by(table)
    notes = [*(f"x{row.index}" for row in table.rows), *(f"n{at}" for at in range(len(table.states)))]
    assert [note for note in notes if bool(re.search(rf"(?:\b|\\n){note}\b", drawn)) is not marked] == []


@pytest.mark.parametrize("name", ["mermaid", "dot", "table", "text"])
def test_format_without_colours_says_marks_in_words(name: str) -> None:
    """What never happened and what is wrong can be read by everybody, and so can the title."""
    table = MACHINES["job"]
    ways = {**{each: draw for each, (draw, _) in FORMATS.items()}, "text": terminal}
    drawn = ways[name]([panel(table, marks_of(table))])

    if name == "dot":
        assert 'style="dashed"' in drawn
    else:
        assert {"never", "wrong"} <= set(re.findall(r"\w+", drawn))
    assert name == "mermaid" or "A note that is below." in drawn


# --- pictures ------------------------------------------------------------------------------------------------------------


def test_picture_says_what_states_events_and_guards_mean() -> None:
    """The first paragraph of each text on one line, and nothing for a state whose value is no text."""
    drawn = picture(OddLife.table)

    assert (drawn.name, drawn.about) == ("OddLife", "A lifecycle of odd names.")
    assert [node.about for node in drawn.nodes] == ['a: b; c # d "e" | <f> 100%', "two lines", ""]
    assert [(word.name, word.reads, word.about) for word in drawn.events] == [("throw", ("dice",), "Throw the dice.")]
    assert [(word.name, word.reads, word.about) for word in drawn.guards] == [("lucky", ("dice",), "It came up | six.")]


def test_picture_of_a_class_without_words_has_none() -> None:
    """What the base class says of itself is not said of a lifecycle that has no docstring; nor has it couplings."""

    class Quiet(Lifecycle, initial=Oddity.NOTE, finals=(Oddity.NOTE_,)):
        @edge(Oddity.NOTE, to=Oddity.End)
        def push(self) -> None: ...

        @edge(Oddity.End, to=Oddity.NOTE_)
        def lift(self) -> None: ...

    assert (Quiet.table.doc, picture(Quiet.table).about) == ("", "")
    assert picture(Quiet.table, "Quiet", COUPLINGS).couplings == picture(MACHINES["block"], "block").couplings == ()


def test_picture_has_the_tones_that_a_lifecycle_of_ones_own_gives() -> None:
    """A failure is not drawn as a success; without a word every final state is over, whatever its name."""

    class Fetch(enum.Enum):
        QUEUED = "waits"
        DONE = "all there"
        FAILED = "not there"

    class Plain(Lifecycle[Fetch], initial=Fetch.QUEUED, finals={Fetch.DONE, Fetch.FAILED}):
        @edge(Fetch.QUEUED, to=Fetch.DONE)
        def land(self) -> None: ...

        @edge(Fetch.QUEUED, to=Fetch.FAILED)
        def lose(self) -> None: ...

    class Toned(
        Lifecycle[Fetch],
        initial=Fetch.QUEUED,
        finals={Fetch.DONE, Fetch.FAILED},
        tones={Fetch.FAILED: Tone.FAILED, Fetch.QUEUED: Tone.COPY},
    ):
        @edge(Fetch.QUEUED, to=Fetch.DONE)
        def land(self) -> None: ...

        @edge(Fetch.QUEUED, to=Fetch.FAILED)
        def lose(self) -> None: ...

    assert [node.tone for node in picture(Plain.table).nodes] == [Tone.REST, Tone.OVER, Tone.OVER]
    assert [node.tone for node in picture(Toned.table).nodes] == [Tone.COPY, Tone.OVER, Tone.FAILED]
    drawn = svg([Panel(picture(Toned.table))])
    assert ('class="bl-box bl-failed"' in drawn, Tone.FAILED.value in drawn) == (True, True)
    assert Tone.FAILED.value not in svg([Panel(picture(Plain.table))])


@pytest.mark.parametrize("name", MACHINES)
def test_picture_marks_the_couplings_that_the_ledger_looks_up(name: str) -> None:
    """Every coupling that ``coupled`` finds for a row stands on that row as one of its causes."""
    drawn = picture(MACHINES[name], name, COUPLINGS)
    states = {state.name: state for state in MACHINES[name].states}
    effects = {each.name: each.effects for each in COUPLINGS}
    for arrow in drawn.arrows:
        for label in arrow.labels:
            for cause in (f"{name}.{label.event}", f"{name}.{label.event}(store)", f"{name}.{label.event}(load)"):
                found = coupled(cause, states[arrow.target])

                assert not found or found in [effects[each] for each in label.causes], (str(label), cause)


def test_picture_names_the_couplings_that_force_a_row() -> None:
    """A block lands because a job has ended or was given up."""
    drawn = picture(MACHINES["block"], "block", COUPLINGS)
    landing = [label for arrow in drawn.arrows for label in arrow.labels if label.event == "land"]

    assert {label.follows for label in landing} == {
        ("load-cancelled", "store-ended", "load-done", "load-failed", "load-abandoned"),
    }


@pytest.mark.parametrize(
    ("table", "state", "tone"),
    [
        (MACHINES["block"], Block.FREED, Tone.REST),
        (MACHINES["block"], Block.SEALED, Tone.USE),
        (MACHINES["block"], Block.IN_FLIGHT, Tone.COPY),
        (MACHINES["block"], Block.QUARANTINED, Tone.TROUBLE),
        (MACHINES["job"], Job.FAILED, Tone.FAILED),
        (OddLife.table, Oddity.NOTE, Tone.REST),
        (OddLife.table, Oddity.End, Tone.USE),
        (OddLife.table, Oddity.NOTE_, Tone.OVER),
    ],
)
def test_picture_knows_what_sort_a_state_is(table: Table, state: enum.Enum, tone: Tone) -> None:
    assert tone_of(table, state) is tone


@pytest.mark.parametrize(
    ("rows", "whole"),
    [
        ((Emphasis.USED, Emphasis.UNUSED), Emphasis.USED),
        ((Emphasis.UNUSED, Emphasis.UNUSED), Emphasis.UNUSED),
        ((None, Emphasis.UNUSED), Emphasis.UNUSED),
        ((Emphasis.USED, Emphasis.ALARM), Emphasis.ALARM),
    ],
)
def test_arrow_is_marked_as_the_strongest_of_its_rows(rows: tuple[Emphasis | None, Emphasis], whole: Emphasis) -> None:
    """One row that was taken makes a used arrow, and one that was refused a wrong one; a row without a mark says nothing."""
    arrow = Arrow("NOTE", "End", (Label(1, "push"), Label(2, "slam")))
    marks = Marks(rows={number: Mark(each, weight=number / 2) for number, each in enumerate(rows, 1) if each is not None})

    assert Panel(picture(OddLife.table), marks).mark_of(arrow) == Mark(whole, weight=1.0)


# --- mermaid and dot -----------------------------------------------------------------------------------------------------


@every_table
def test_mermaid_tells_meanings_only_when_asked(table: Table) -> None:
    """One description for each state that has a meaning, or none."""
    described = [line for line in statements(mermaid([panel(table)])) if MEANING.fullmatch(line)]

    assert len(described) == sum(bool(node.about) for node in picture(table).nodes)
    assert not any(MEANING.fullmatch(line) for line in statements(mermaid([panel(table)], meanings=False)))


def test_mermaid_gives_states_named_like_keywords_another_id() -> None:
    """The name stays what the reader sees; the id is neither a keyword nor another state's, also with several machines."""
    alone = [found[2] for line in statements(mermaid([panel(OddLife.table)])) if (found := STATE.fullmatch(line))]
    drawn = mermaid([panel(table) for table in TABLES.values()])
    ids = re.findall(r'state "[^"]+" as (\w+)', drawn)

    assert len(set(alone)) == len(Oddity)
    assert not {name.lower() for name in alone} & KEYWORDS
    assert len(ids) == len(set(ids)) == len(TABLES) + sum(len(table.states) for table in TABLES.values())
    assert drawn.count("{\n") == drawn.count("\n    }\n") == len(TABLES)


def test_mermaid_escapes_what_ends_a_label() -> None:
    """No character of a meaning can end a label, begin a comment or become markup."""
    text = escaped('a: b; c # d\n"e" <f> & `g` {h} %%')

    assert not set(re.sub(r"#\d+;", "", text)) & set(':;#\n"<>&`{}%')
    assert text.startswith("a#58; b#59; c #35; d #34;e#34;")


def test_mermaid_shows_marks_of_states_as_classes() -> None:
    """A class for each emphasis that a state has."""
    drawn = mermaid([panel(MACHINES["job"], marks_of(MACHINES["job"]))])

    for emphasis in set(Emphasis) - {Emphasis.PLAIN}:
        assert f"classDef marked_{emphasis.name.lower()} " in drawn
    assert "class IN_FLIGHT marked_used" in drawn


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


@every_table
def test_page_stands_alone_and_explains_every_state_event_and_guard(table: Table) -> None:
    """Every element is closed, nothing is fetched, no script runs, and each word of the table is there."""
    found = Outline(page([panel(table, marks_of(table))]))
    told_words = "".join(found.said)

    assert found.open == []
    assert found.counts["svg"] == 1
    assert "script" not in found.counts
    words = [*(state.name for state in table.states), *table.events, *(row.guard.name for row in table.rows if row.guard)]
    assert [word for word in words if word not in told_words] == []
    for told in (*(event.doc for event in table.events.values()), "A note that is below.", "a title"):
        assert " ".join(told.split()) in told_words


def test_page_of_several_machines_leads_to_each() -> None:
    """Its links name the machines and the couplings, and each leads to its section; one machine alone needs no such line."""
    several = page([Panel(picture(table, name, COUPLINGS)) for name, table in MACHINES.items()])
    nav = several.partition("<nav>")[2].partition("</nav>")[0]
    links = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', nav)

    assert [name for _, name in links] == [*MACHINES, "couplings"]
    assert [to for to, _ in links if several.count(f'<section id="{to}">') != 1] == []
    assert "<nav" not in page([panel(MACHINES["block"])])


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


# --- tables ------------------------------------------------------------------------------------------------------------


@every_table
def test_state_event_table_has_every_pair(table: Table) -> None:
    """Each cell lists the targets in the order in which they are tried; a refusal shows where the rows can run dry."""
    found = cells(drawing.state_event_table(table))

    assert [line[0] for line in found] == [f"`{state.name}`" for state in table.states]
    for line, state in zip(found, table.states, strict=True):
        for cell, event in zip(line[1:], table.events.values(), strict=True):
            rows = event.rows_of(state)
            wanted = [f"`{row.target.name}`" + (f" [{row.guard.name}]" if row.guard else "") for row in rows]
            assert cell.split("<br>") == wanted + ([] if rows and rows[-1].guard is None else [REFUSAL])
    assert drawing.state_event_table(table) in panel_tables([panel(table)])


@every_table
def test_tables_of_a_lifecycle_explain_it(table: Table) -> None:
    """Rows as they are numbered, states with a column of one's own, events with payloads, guards if there are any."""
    rows = [[cell.strip("`") for cell in line] for line in cells(drawing.row_table(table))]
    states = cells(drawing.state_table(table, {"length": lambda state: str(len(state.name))}))
    events, guards = cells(drawing.event_table(table)), {row.guard.name: row.guard for row in table.rows if row.guard}

    assert rows == [
        [str(row.index), row.source.name, row.event, row.guard.name if row.guard else "", row.target.name] for row in table.rows
    ]
    assert [(line[0].strip("`"), line[2]) for line in states] == [(each.name, str(len(each.name))) for each in table.states]
    for line, node in zip(states, picture(table).nodes, strict=True):
        assert line[1].startswith(plain(node.about))
    assert [(line[0].strip("`"), line[-1]) for line in events] == [
        (name, plain(event.doc)) for name, event in table.events.items()
    ]
    reads = [", ".join(f"`{name}`" for name in event.reads) for event in picture(table).events]
    assert [line[1:-1] for line in events] == [[each] if any(reads) else [] for each in reads]  # the payload, if there is any
    if guards:
        assert [line[0].strip("`") for line in cells(drawing.guard_table(table))] == list(guards)
    else:
        assert drawing.guard_table(table) == "No row of this table has a guard.\n"


def test_coupling_table_lists_every_coupling() -> None:
    """Causes and effects with a bar in them do not break the table."""
    found = cells(drawing.coupling_table(COUPLINGS))

    assert [line[0].strip("`") for line in found] == [each.name for each in COUPLINGS]
    for line, each in zip(found, COUPLINGS, strict=True):
        assert line[1].strip("`").replace("\\|", "|") == each.cause
        assert [effect.strip("`").replace("\\|", "|") for effect in line[3].split("<br>")] == list(each.effects)
        assert line[4:] == [plain(each.why)]
