"""Does a picture say what the table and the couplings say, and no more?

Method: pictures of the four machines and of a small lifecycle of a user's own, compared with the rows that they are made from.
"""

from __future__ import annotations

import enum

import pytest

from blocklife.drawing._picture import Arrow, Emphasis, Label, Mark, Marks, Panel, picture, tone_of
from blocklife.lifecycle import Lifecycle, Table, edge, guard
from blocklife.states import COUPLINGS, MACHINES, Block, Job, Tone, coupled


class Door(enum.Enum):
    OPEN = "anybody can pass"
    SHUT = 2
    GONE = "taken\nout\n\nof the wall"


@guard
def strong(force: int) -> bool:
    """It gives way."""
    return force > 3


class DoorLife(Lifecycle, initial=Door.OPEN, finals=(Door.GONE,)):
    """A door."""

    @edge(Door.OPEN, to=Door.SHUT)
    def push(self) -> None:
        """Push it."""

    @edge(Door.SHUT, to=Door.OPEN, when=strong)
    @edge(Door.SHUT, to=Door.SHUT)
    def pull(self, force: int) -> None:
        """Pull it."""

    @edge(Door.OPEN, Door.SHUT, to=Door.GONE, when=strong)
    def lift(self, force: int) -> None:
        """Lift it out."""


TABLES = {**MACHINES, "door": DoorLife.table}

every_table = pytest.mark.parametrize("name", TABLES)


@every_table
def test_picture_has_every_row_once_on_the_arrow_of_its_states(name: str) -> None:
    """Rows and labels are the same, and two states share one arrow."""
    table, drawn = TABLES[name], picture(TABLES[name], name, COUPLINGS)
    rows = {(label.row, arrow.source, str(label), arrow.target) for arrow in drawn.arrows for label in arrow.labels}
    wanted = {
        (row.index, row.source.name, row.event if row.guard is None else f"{row.event} [{row.guard.name}]", row.target.name)
        for row in table.rows
    }

    assert rows == wanted
    assert len({(arrow.source, arrow.target) for arrow in drawn.arrows}) == len(drawn.arrows)


@every_table
def test_picture_tries_rows_in_the_order_of_the_table(name: str) -> None:
    """For each state and event the targets come as the table tries them."""
    table, drawn = TABLES[name], picture(TABLES[name], name, COUPLINGS)

    for state in table.states:
        for event in table.events.values():
            found = [(target, label.row) for target, label in drawn.rows_of(state.name, event.name)]
            assert found == [(row.target.name, row.index) for row in event.rows_of(state)]


@every_table
def test_picture_knows_where_lives_begin_and_end(name: str) -> None:
    table, drawn = TABLES[name], picture(TABLES[name], name)

    assert [node.name for node in drawn.nodes if node.initial] == [table.initial.name]
    assert {node.name for node in drawn.nodes if node.final} == {state.name for state in table.finals}


def test_picture_says_what_states_events_and_guards_mean() -> None:
    """The first paragraph of each text on one line, and nothing for a state whose value is no text."""
    drawn = picture(DoorLife.table)

    assert (drawn.name, drawn.about) == ("DoorLife", "A door.")
    assert [node.about for node in drawn.nodes] == ["anybody can pass", "", "taken out"]
    assert [(word.name, word.reads, word.about) for word in drawn.events] == [
        ("push", (), "Push it."),
        ("pull", ("force",), "Pull it."),
        ("lift", ("force",), "Lift it out."),
    ]
    assert [(word.name, word.reads, word.about) for word in drawn.guards] == [("strong", ("force",), "It gives way.")]


def test_picture_of_one_alone_names_no_coupling() -> None:
    """Without couplings no label has any, and a machine that is not the cache's has none at all."""
    assert picture(MACHINES["block"], "block").couplings == ()
    assert picture(DoorLife.table, "DoorLife", COUPLINGS).couplings == ()


@pytest.mark.parametrize("name", MACHINES)
def test_picture_marks_the_couplings_that_the_ledger_looks_up(name: str) -> None:
    """Every coupling that ``coupled`` finds for a row stands on that row as one of its causes."""
    drawn = picture(MACHINES[name], name, COUPLINGS)
    effects = {each.name: each.effects for each in COUPLINGS}
    for arrow in drawn.arrows:
        target = MACHINES[name].states[[state.name for state in MACHINES[name].states].index(arrow.target)]
        for label in arrow.labels:
            for cause in (f"{name}.{label.event}", f"{name}.{label.event}(store)", f"{name}.{label.event}(load)"):
                found = coupled(cause, target)

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
        (MACHINES["job"], Job.FAILED, Tone.OVER),
        (DoorLife.table, Door.OPEN, Tone.REST),
        (DoorLife.table, Door.SHUT, Tone.USE),
        (DoorLife.table, Door.GONE, Tone.OVER),
    ],
)
def test_picture_knows_what_sort_a_state_is(table: Table, state: enum.Enum, tone: Tone) -> None:
    assert tone_of(table, state) is tone


def test_marks_are_plain_where_nothing_is_said() -> None:
    """A state or a row without a mark has one that says nothing."""
    drawn = picture(DoorLife.table)
    marks = Marks(rows={1: Mark(Emphasis.USED, "twice")})

    assert marks.row(Label(1, "push")).note == "twice"
    assert marks.row(Label(2, "push")) == Mark()
    assert marks.state(drawn.nodes[0]).emphasis is Emphasis.PLAIN


def test_picture_of_a_class_without_words_has_none() -> None:
    """What the base class says of itself is not said of a lifecycle that has no docstring."""

    class Quiet(Lifecycle, initial=Door.OPEN, finals=(Door.GONE,)):
        @edge(Door.OPEN, to=Door.SHUT)
        def push(self) -> None: ...

        @edge(Door.SHUT, to=Door.GONE)
        def lift(self) -> None: ...

    assert (Quiet.table.doc, picture(Quiet.table).about) == ("", "")


@pytest.mark.parametrize(
    ("rows", "whole"),
    [
        ((Emphasis.USED, Emphasis.UNUSED), Emphasis.USED),
        ((Emphasis.UNUSED, Emphasis.UNUSED), Emphasis.UNUSED),
        ((Emphasis.PLAIN, Emphasis.UNUSED), Emphasis.UNUSED),
        ((Emphasis.USED, Emphasis.ALARM), Emphasis.ALARM),
    ],
)
def test_arrow_is_marked_as_the_strongest_of_its_rows(rows: tuple[Emphasis, Emphasis], whole: Emphasis) -> None:
    """One row that was taken makes a used arrow, and one that was refused a wrong one."""
    arrow = Arrow("OPEN", "SHUT", (Label(1, "push"), Label(2, "slam")))
    marks = Marks(rows={number: Mark(emphasis, weight=number / 2) for number, emphasis in enumerate(rows, 1)})

    assert Panel(picture(DoorLife.table), marks).mark_of(arrow) == Mark(whole, weight=1.0)
