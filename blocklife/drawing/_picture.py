"""A lifecycle as a picture: states, arrows with their labels, and marks; every drawing is made from one.

Rules of this file:

* A picture is a value, made from a compiled table and the couplings. It knows no format: renderers turn it into text.
* Runs and proofs add *marks* to a picture. No renderer knows where they come from.
* Everything is in the order of the tables, so that the same input gives the same bytes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from blocklife.lifecycle import Guard, Row, Table, Tone
from blocklife.states import NATURES, Coupling, ends_life


def tone_of(table: Table, state: enum.Enum) -> Tone:
    """The tone of one state: of the ledger's by its nature, of all others as the lifecycle says."""
    nature = NATURES.get(state)
    return table.tone(state) if nature is None else nature.tone


@frozen
class Node:
    """One state."""

    name: str
    about: str
    """What it means, in one line; empty if the table does not say."""
    initial: bool = False
    final: bool = False
    tone: Tone = Tone.USE


@frozen
class Explained:
    """An event or a guard, explained."""

    name: str
    reads: tuple[str, ...]
    """The fields of the payload that it takes, by name."""
    about: str


@frozen
class Label:
    """One row, as written on an arrow."""

    row: int
    """Its number in the table."""
    event: str
    guard: str | None = None
    causes: tuple[str, ...] = ()
    """Couplings that begin with this row, by name."""
    follows: tuple[str, ...] = ()
    """Couplings that have it as an effect, by name."""

    def __str__(self) -> str:
        return self.event if self.guard is None else f"{self.event} [{self.guard}]"


@frozen
class Arrow:
    """All rows from one state to another, in table order."""

    source: str
    target: str
    labels: tuple[Label, ...]

    @property
    def loop(self) -> bool:
        """Whether it leads back to its own state."""
        return self.source == self.target


@frozen
class Picture:
    """One lifecycle.

    Invariant: node names are unique, every arrow joins two of them, and a pair of nodes has one arrow.
    """

    name: str
    about: str
    nodes: tuple[Node, ...]
    arrows: tuple[Arrow, ...]
    couplings: tuple[Coupling, ...] = ()
    """The couplings that a label names, in the order of their table."""
    events: tuple[Explained, ...] = ()
    guards: tuple[Explained, ...] = ()

    def tone(self, state: str) -> Tone:
        """The tone of a state by its name."""
        return next(node.tone for node in self.nodes if node.name == state)

    def rows_of(self, state: str, event: str) -> list[tuple[str, Label]]:
        """The targets of an event from a state, with labels, in the order in which they are tried."""
        found = [
            (arrow.target, label)
            for arrow in self.arrows
            if arrow.source == state
            for label in arrow.labels
            if label.event == event
        ]
        return sorted(found, key=lambda each: each[1].row)


class Emphasis(enum.Enum):
    """How a mark looks; a renderer chooses colour and stroke."""

    PLAIN = "nothing is said about it"
    USED = "it happened; the weight says how much"
    UNUSED = "it never happened"
    ALARM = "something is wrong with it"


@frozen
class Mark:
    """The mark of one state or one row."""

    emphasis: Emphasis = Emphasis.PLAIN
    note: str = ""
    """A few words to show beside it, such as a count."""
    about: str = ""
    """More, shown where there is room: a tooltip, a table."""
    weight: float = 0.0
    """From 0 to 1, compared with the largest."""

    @property
    def word(self) -> str:
        """What its colour says, for readers without colours; empty where a colour alone says nothing."""
        return _WORDS.get(self.emphasis, "")


_WORDS = {Emphasis.UNUSED: "never", Emphasis.ALARM: "wrong"}


@frozen
class Marks:
    """Marks by the name of a state, and by the number of a row."""

    title: str = ""
    """What they show, in a few words: "taken in run.jsonl"."""
    states: Mapping[str, Mark] = field(factory=dict)
    rows: Mapping[int, Mark] = field(factory=dict)
    notes: Sequence[str] = ()
    """Whole sentences for below the drawing."""
    meanings: Mapping[Emphasis, str] = field(factory=dict)
    """What an emphasis means here, if more specific than in `Emphasis`."""

    def state(self, node: Node) -> Mark:
        """The mark of a state; an empty one by default."""
        return self.states.get(node.name, PLAIN)

    def row(self, label: Label) -> Mark:
        """The mark of a row; an empty one by default."""
        return self.rows.get(label.row, PLAIN)


_STRENGTH = (Emphasis.PLAIN, Emphasis.UNUSED, Emphasis.USED, Emphasis.ALARM)
"""From weak to strong."""
PLAIN = Mark()
UNMARKED = Marks()


@frozen
class Panel:
    """One lifecycle with its marks; a drawing has one or several."""

    picture: Picture
    marks: Marks = UNMARKED

    @property
    def marked(self) -> bool:
        """Whether it has any marks."""
        return bool(self.marks.states or self.marks.rows)

    def mark_of(self, arrow: Arrow) -> Mark:
        """The mark of a whole arrow: the strongest emphasis of its rows, with the largest weight."""
        marks = [self.marks.row(label) for label in arrow.labels]
        strongest = max((mark.emphasis for mark in marks), key=_STRENGTH.index)
        return Mark(strongest, weight=max(mark.weight for mark in marks))

    def emphases(self) -> set[Emphasis]:
        """Every emphasis in it: of states, of rows, and of whole arrows."""
        marks = [*self.marks.states.values(), *self.marks.rows.values()]
        arrows = [self.mark_of(arrow) for arrow in self.picture.arrows if not arrow.loop]
        return {mark.emphasis for mark in (*marks, *arrows)}


def picture(table: Table, name: str = "", couplings: Sequence[Coupling] = ()) -> Picture:
    """The picture of a compiled table, with those of the couplings that touch it.

    *name* is the machine's name in the couplings; by default the name of the class.
    """
    name = name or table.name
    nodes = tuple(
        Node(state.name, _line(state.value), state is table.initial, state in table.finals, tone_of(table, state))
        for state in table.states
    )
    grouped: dict[tuple[str, str], list[Label]] = {}
    for source in table.states:
        for row in table.rows:
            if row.source is source:
                grouped.setdefault((source.name, row.target.name), []).append(_label(name, row, couplings))
    arrows = tuple(Arrow(source, target, tuple(labels)) for (source, target), labels in grouped.items())
    named = {name for arrow in arrows for label in arrow.labels for name in (*label.causes, *label.follows)}
    touching = tuple(each for each in couplings if each.name in named)
    events = tuple(Explained(each.name, each.parameters, _line(each.doc)) for each in table.events.values())
    guards = tuple(Explained(each.name, each.parameters, _line(each.doc)) for each in _guards(table))
    return Picture(name, _line(table.doc), nodes, arrows, touching, events, guards)


def _guards(table: Table) -> Sequence[Guard[...]]:
    """Every guard once, in the order in which the rows name them."""
    return list(dict.fromkeys(row.guard for row in table.rows if row.guard is not None))


def _line(text: object) -> str:
    """The first line of a text; empty if a state's value is not a text."""
    return " ".join(text.strip().split("\n\n")[0].split()) if isinstance(text, str) else ""


def _label(machine: str, row: Row, couplings: Sequence[Coupling]) -> Label:
    causes = tuple(each.name for each in couplings if _begins(each, machine, row))
    follows = tuple(each.name for each in couplings if any(_names(effect, machine, row) for effect in each.effects))
    return Label(row.index, row.event, None if row.guard is None else row.guard.name, causes, follows)


def _begins(coupling: Coupling, machine: str, row: Row) -> bool:
    """Whether a row is the cause of a coupling, or can be: kinds of jobs are not told apart."""
    if coupling.into and row.target not in coupling.into:
        return False
    if coupling.cause == "block.*":  # any step of a block that ends a life
        return machine == "block" and ends_life(row)
    return _names(coupling.cause, machine, row)


def _names(step: str, machine: str, row: Row) -> bool:
    """Whether ``machine.event``, with events between bars and the kind of job in parentheses, names a row."""
    of, _, events = step.partition(".")
    return of == machine and row.event in events.partition("(")[0].split("|")
