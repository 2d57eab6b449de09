"""Does everything of a drawing have a place of its own?

Goal: no label, state or number of a coupling may lie on another, whatever lifecycle is drawn. Method: all boxes of a layout are
compared in pairs; for the four machines, with and without notes, and for pictures that Hypothesis makes up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklife.drawing import Emphasis, Mark, Marks, Panel, Picture, picture
from blocklife.drawing._layout import WIDTH_MAX, Box, MachineLayout, Point, RowLine, layout, ranges
from blocklife.drawing._picture import Arrow, Label, Node
from blocklife.drawing._text_width import FIXED, fixed_width, prose_width, wrapped
from blocklife.errors import DefinitionError
from blocklife.lifecycle import Tone
from blocklife.states import COUPLINGS, MACHINES

every_machine = pytest.mark.parametrize("name", MACHINES)


def panel_of(name: str, note: str = "") -> Panel:
    drawn = picture(MACHINES[name], name, COUPLINGS)
    if not note:
        return Panel(drawn)
    mark = Mark(Emphasis.USED, note, weight=0.5)
    rows = {label.row: mark for arrow in drawn.arrows for label in arrow.labels}
    return Panel(drawn, Marks("noted", {node.name: mark for node in drawn.nodes}, rows))


def overlapping(a: Box, b: Box) -> bool:
    """Whether two boxes share more than a border."""
    beside = a.x + a.width <= b.x or b.x + b.width <= a.x
    return not (beside or a.y + a.height <= b.y or b.y + b.height <= a.y)


def inside(inner: Box, outer: Box) -> bool:
    """Whether a box lies wholly in another."""
    right, below = outer.x + outer.width, outer.y + outer.height
    return outer.x <= inner.x and outer.y <= inner.y and inner.x + inner.width <= right and inner.y + inner.height <= below


def overlaps(boxes: list[tuple[str, Box]]) -> list[tuple[str, str]]:
    """The pairs that lie on each other by more than a rounding."""
    slim = [(name, Box(box.x + 0.1, box.y + 0.1, box.width - 0.2, box.height - 0.2)) for name, box in boxes]
    return [(one, two) for (one, a), (two, b) in itertools.combinations(slim, 2) if overlapping(a, b)]


def pieces_of(line: RowLine) -> list[tuple[str, Box]]:
    return [(f"row {line.label.row} {piece.role.name} {piece.text}", piece.box) for piece in line.pieces]


def troubles(found: MachineLayout) -> Iterator[str]:
    """Everything that has no place of its own."""
    outer = [(f"state {each.node.name}", each.box) for each in found.nodes]
    outer += [(f"labels {each.arrow.source} to {each.arrow.target}", each.box) for each in found.arrows]
    outer.append(("start", Box(found.start.x - 5, found.start.y - 5, 10, 10)))
    yield from (f"{one} lies on {two}" for one, two in overlaps(outer))
    # three roundings to a tenth meet here: that of a box's middle, and those of the drawing's two borders
    whole = Box(-0.16, -0.16, found.width + 0.32, found.height + 0.32)
    yield from (f"{name} lies outside: {box} in {whole}" for name, box in outer if not inside(box, whole))
    inner: list[tuple[str, Box, Box]] = []
    for node in found.nodes:
        within = [(piece.text, piece.box) for piece in node.pieces]
        within += [each for line in node.loops for each in pieces_of(line)]
        inner += [(name, box, node.box) for name, box in within]
    for arrow in found.arrows:
        inner += [(name, box, arrow.box) for line in arrow.lines for name, box in pieces_of(line)]
    yield from (f"{one} lies on {two}" for one, two in overlaps([(name, box) for name, box, _ in inner]))
    yield from (f"{name} sticks out" for name, box, frame in inner if not inside(box, frame))


# --- the four machines -------------------------------------------------------------------------------------------------


@every_machine
@pytest.mark.parametrize("note", ["", "×1,234,567", "p50 3 ms · p99 17 ms"])
def test_layout_gives_everything_a_place_of_its_own(name: str, note: str) -> None:
    """Nothing lies on anything else, sticks out of its box, or out of the drawing."""
    assert list(troubles(layout(panel_of(name, note)))) == []


@every_machine
def test_layout_is_narrow_enough_for_a_page(name: str) -> None:
    """Each machine fits into a README without being made smaller."""
    assert layout(panel_of(name)).width <= WIDTH_MAX


@every_machine
def test_layout_runs_every_arrow_from_its_source_through_its_label_to_its_target(name: str) -> None:
    """A path begins at the border of its source, touches its label twice, and its head touches its target."""
    found = layout(panel_of(name))
    boxes = {node.node.name: node.box for node in found.nodes}

    for each in found.arrows:
        first, second = each.paths
        assert near(first[0], boxes[each.arrow.source]), each.arrow
        assert near(first[-1], each.box), each.arrow
        assert near(second[0], each.box), each.arrow
        assert near(each.tip, boxes[each.arrow.target]), each.arrow
        assert all(len(path) % 3 == 1 for path in each.paths)
    initial = next(node for node in found.nodes if node.node.initial)
    assert near(found.entry_tip, initial.box)


def near(point: Point, box: Box) -> bool:
    """Whether a point lies on a box or on its border, to the width of a line."""
    return overlapping(Box(point.x - 1.5, point.y - 1.5, 3, 3), box)


# --- made-up lifecycles ------------------------------------------------------------------------------------------------

words = st.text("abcdefgMWil_", min_size=1, max_size=14)


@st.composite
def panels(draw: st.DrawFn) -> Panel:
    """A picture of up to twelve states with arrows anywhere, guards, couplings and notes."""
    names = draw(st.lists(words, min_size=1, max_size=12, unique=True))
    first = draw(st.sampled_from(names))
    nodes = tuple(Node(name, "about", name == first, draw(st.booleans()), draw(st.sampled_from(list(Tone)))) for name in names)
    ends = st.tuples(st.sampled_from(names), st.sampled_from(names))
    pairs = draw(st.lists(ends, max_size=3 * len(names), unique=True))
    named = tuple(each.name for each in COUPLINGS)
    chosen = st.lists(st.sampled_from(named), max_size=4, unique=True).map(tuple)
    arrows, row = [], 0
    for source, target in pairs:
        labels = []
        for _ in range(draw(st.integers(1, 3))):
            row += 1
            labels.append(Label(row, draw(words), draw(st.none() | words), draw(chosen), draw(chosen)))
        arrows.append(Arrow(source, target, tuple(labels)))
    notes = st.text("0123456789 ms×·", max_size=12)
    rows = {number: Mark(Emphasis.USED, draw(notes)) for number in draw(st.sets(st.integers(1, max(row, 1)), max_size=6))}
    states = {name: Mark(Emphasis.ALARM, draw(notes)) for name in draw(st.sets(st.sampled_from(names), max_size=3))}
    return Panel(Picture("odd", "", nodes, tuple(arrows), COUPLINGS), Marks("", states, rows))


@settings(max_examples=60, deadline=None)
@given(panels())
def test_layout_of_any_lifecycle_gives_everything_a_place_of_its_own(panel: Panel) -> None:
    """The same, whatever is drawn."""
    assert list(troubles(layout(panel))) == []


def test_layout_of_one_state_alone_is_drawn() -> None:
    """A lifecycle need not have an arrow to be drawn."""
    found = layout(Panel(Picture("one", "", (Node("ONLY", "", True, True),), ())))

    assert list(troubles(found)) == []
    assert len(found.nodes) == 1


# --- numbers and letters -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "told"), [([], ""), ([3], "3"), ([2, 1], "1,2"), ([5, 6, 7, 2], "2,5-7"), ([1, 2, 4, 5, 6, 9], "1,2,4-6,9")]
)
def test_ranges_say_numbers_in_few_characters(numbers: list[int], told: str) -> None:
    assert ranges(numbers) == told


def test_widths_of_letters_are_those_of_wide_fonts() -> None:
    """A fixed width counts characters, wide ones twice; prose is never taken for narrower than half of it."""
    assert fixed_width("abc", 10) == pytest.approx(3 * FIXED * 10)
    assert fixed_width("漢", 10) == pytest.approx(2 * FIXED * 10)
    assert prose_width("iiii", 10) < prose_width("mmmm", 10) < prose_width("mmmm", 10, bold=True)


def test_wrapped_prose_loses_no_word() -> None:
    """Lines fit, and a word that is longer than a line is broken."""
    text = "A life that ends takes its planned store with it " + "x" * 90
    lines = wrapped(text, 11, 120)

    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(prose_width(line, 11) <= 120 for line in lines)
    with pytest.raises(DefinitionError, match="no text of size 11 can be set in 4"):
        wrapped("x", 11, 4)
