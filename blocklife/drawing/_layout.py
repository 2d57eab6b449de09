"""The layout of one machine: boxes for states, paths for arrows, and a position for each label.

Rules of this file:

* Sizes come from here, never from an installed font; Graphviz only places empty boxes of given sizes.
* Graphviz keeps boxes from overlapping, so nothing overlaps here: a label is a box, too, and its arrow runs through it.
* The same picture gives the same layout. Coordinates are rounded to a tenth of a pixel.

Theory. An arrow is two lines: from its source to its label, and from there to its target. So it is clear which arrow a label
belongs to, and an arrow crosses another's label only if there is no way around it. This needs an acyclic graph, since otherwise
a label could be placed beyond an end of its arrow. A first layout, of the states only, gives their vertical order; in the
second, with the labels, every arrow runs downwards, and those that lead upwards are drawn in reverse. Arrows that lead back to
their own state need no line: they are a list inside it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

from attrs import evolve, frozen

from blocklife.drawing._picture import Arrow, Label, Node, Panel
from blocklife.drawing._text_width import fixed_width
from blocklife.errors import MisuseError
from blocklife.extras import to_install
from blocklife.states import Tone

TITLE, TEXT, SMALL = 13.0, 11.0, 8.5
"""Sizes of letters: names of states, labels, numbers of couplings."""

LINE = 15.0
"""From one label to the next."""
HIGH = 13.0
"""Height of a line of text."""
PILL = 12.0
GAP = 4.0
PAD = 9.0
LOOP = 13.0
"""Width of the sign of a loop in front of its label."""
DOT = 10.0
"""The dot where a life begins."""
INSET = 3.0
"""Between the two borders of a terminal state."""

WIDTH_MAX = 880.0
"""Desired maximum width of a drawing; a machine with too many arrows exceeds it."""


class Point(NamedTuple):
    """A place on the drawing; y grows downwards."""

    x: float
    y: float


@frozen
class Box:
    """A place on the drawing with a size; x and y are its upper left corner."""

    x: float
    y: float
    width: float
    height: float


class Role(enum.Enum):
    """The role of a piece of text."""

    NAME = "the name of a state"
    LOOP = "the sign of an arrow that leads back to its state"
    EVENT = "an event"
    GUARD = "a guard, in brackets"
    CAUSES = "numbers of couplings that begin here"
    FOLLOWS = "numbers of couplings that lead here"
    NOTE = "the note of a mark"


@frozen
class TextPiece:
    """One piece of text, or a sign, in its box."""

    role: Role
    text: str
    box: Box


@frozen
class RowLine:
    """One row of the table as it is shown, on an arrow or in its state."""

    label: Label
    pieces: tuple[TextPiece, ...]
    box: Box


@frozen
class PlacedNode:
    """A state, with the arrows that lead back to it as a list."""

    node: Node
    box: Box
    pieces: tuple[TextPiece, ...]
    loops: tuple[RowLine, ...]


@frozen
class PlacedArrow:
    """An arrow: a path to its label, its label, a path from there to the target."""

    arrow: Arrow
    paths: tuple[tuple[Point, ...], ...]
    """Each a start and three points for each curve; the last one ends where the arrow's head begins."""
    tip: Point
    lines: tuple[RowLine, ...]
    box: Box
    """Around all lines."""


@frozen
class MachineLayout:
    """One machine, from its upper left corner."""

    panel: Panel
    width: float
    height: float
    nodes: tuple[PlacedNode, ...]
    arrows: tuple[PlacedArrow, ...]
    start: Point
    """The middle of the dot where a life begins."""
    entry: tuple[Point, ...]
    """The path from there to the initial state."""
    entry_tip: Point


# --- sizes -------------------------------------------------------------------------------------------------------------


@frozen
class _Set:
    """Some pieces, positioned from their own corner."""

    width: float
    height: float
    pieces: tuple[TextPiece, ...]


def numbers_of(panels: Iterable[Panel]) -> dict[str, int]:
    """The number of each coupling that a drawing names, from 1, in the order of their table."""
    order: list[str] = []
    for panel in panels:
        at = 0
        for each in panel.picture.couplings:
            if each.name in order:
                at = max(at, order.index(each.name) + 1)
            else:
                order.insert(at, each.name)
                at += 1
    return {name: number for number, name in enumerate(order, start=1)}


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in few characters: ``2,5-8``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}{',' if len(run) == 2 else '-'}{run[-1]}" for run in runs)


def _row(pieces: Sequence[tuple[Role, str]], x: float, y: float) -> tuple[list[TextPiece], float]:
    """Set pieces one after the other; returns them and their end."""
    placed = []
    for role, text in pieces:
        pill = role in (Role.CAUSES, Role.FOLLOWS)
        width = LOOP - GAP if role is Role.LOOP else fixed_width(text, SMALL if pill else TEXT) + (7 if pill else 0)
        height, down = (PILL, (HIGH - PILL) / 2) if pill else (HIGH, 0)
        placed.append(TextPiece(role, text, Box(x, y + down, width, height)))
        x += width + GAP
    return placed, x - GAP


def _set_label(panel: Panel, label: Label, numbers: Mapping[str, int], *, narrow: bool, loop: bool = False) -> _Set:
    """One label; *narrow* puts its guard on a line of its own."""
    first = [(Role.LOOP, "")] if loop else []
    first.append((Role.EVENT, label.event))
    rest: list[tuple[Role, str]] = []
    if label.guard is not None:
        (rest if narrow else first).append((Role.GUARD, f"[{label.guard}]"))
    for role, names in ((Role.CAUSES, label.causes), (Role.FOLLOWS, label.follows)):
        if names:
            first.append((role, ranges(numbers[name] for name in names)))
    if note := panel.marks.row(label).note:
        (rest if rest else first).append((Role.NOTE, note))
    air = (LINE - HIGH) / 2
    placed, width = _row(first, 0, air)
    if not rest:
        return _Set(width, LINE, tuple(placed))
    more, wider = _row(rest, LOOP if loop else 0, air + HIGH)
    return _Set(max(width, wider), LINE + HIGH, (*placed, *more))


def _set_labels(panel: Panel, labels: Sequence[Label], numbers: Mapping[str, int], *, narrow: bool) -> list[_Set]:
    return [_set_label(panel, each, numbers, narrow=narrow) for each in labels]


def _size(sets: Sequence[_Set]) -> tuple[float, float]:
    """The size of labels one below the other, with a margin."""
    return max(each.width for each in sets) + 6, sum(each.height for each in sets) + 2


def _set_node(panel: Panel, node: Node, numbers: Mapping[str, int]) -> tuple[_Set, list[_Set]]:
    """A state: its name, the note of its mark, and its loops as a list."""
    loops = [
        _set_label(panel, label, numbers, narrow=False, loop=True)
        for arrow in panel.picture.arrows
        if arrow.loop and arrow.source == node.name
        for label in arrow.labels
    ]
    name = fixed_width(node.name, TITLE)
    note = panel.marks.state(node).note
    widest = max(name, fixed_width(note, TEXT), *(each.width for each in loops), 40)
    width = widest + 2 * PAD + (2 * INSET if node.final else 0)
    y = PAD - 3 + (INSET if node.final else 0)
    pieces = [TextPiece(Role.NAME, node.name, Box((width - name) / 2, y, name, LINE + 2))]
    y += LINE + 2
    if note:
        wide = fixed_width(note, TEXT)
        pieces.append(TextPiece(Role.NOTE, note, Box((width - wide) / 2, y, wide, LINE)))
        y += LINE
    if loops:
        y += 4
    placed = []
    for each in loops:
        placed.append(_moved(each, PAD + (INSET if node.final else 0), y))
        y += each.height
    return _Set(width, y + PAD - 3 + (INSET if node.final else 0), tuple(pieces)), placed


def _moved(one: _Set, x: float, y: float) -> _Set:
    return evolve(one, pieces=tuple(_shifted(piece, x, y) for piece in one.pieces))


def _shifted(piece: TextPiece, x: float, y: float) -> TextPiece:
    return evolve(piece, box=evolve(piece.box, x=round(piece.box.x + x, 2), y=round(piece.box.y + y, 2)))


def _lines(labels: Sequence[Label], sets: Sequence[_Set]) -> tuple[RowLine, ...]:
    """Labels with the pieces that were set for them, in a box around these."""
    found = []
    for label, each in zip(labels, sets, strict=True):
        boxes = [piece.box for piece in each.pieces]
        x, y = min(box.x for box in boxes), min(box.y for box in boxes)
        right, below = max(box.x + box.width for box in boxes), max(box.y + box.height for box in boxes)
        found.append(RowLine(label, each.pieces, Box(x, y, right - x, below - y)))
    return tuple(found)


# --- Graphviz ----------------------------------------------------------------------------------------------------------


@frozen
class _Style:
    """How tightly boxes are packed, in inches between them."""

    narrow: bool
    beside: float
    below: float


_STYLES = (
    _Style(narrow=False, beside=0.28, below=0.2),
    _Style(narrow=False, beside=0.14, below=0.14),
    _Style(narrow=True, beside=0.14, below=0.14),
    _Style(narrow=True, beside=0.08, below=0.14),
)
"""From roomy to tight; the first one whose drawing is narrow enough is used."""

MANY = 80
"""With more arrows than this no drawing is narrow enough: the tightest style is used right away, with a shorter search."""


class _Object(TypedDict):
    """A node, as Graphviz writes it."""

    name: str
    pos: str


class _GraphEdge(TypedDict):
    """An edge, as Graphviz writes it; the numbers are those of nodes."""

    tail: int
    head: int
    pos: str


class _Graph(TypedDict, total=False):
    """A graph, as Graphviz writes it."""

    bb: str
    objects: list[_Object]
    edges: list[_GraphEdge]


class _EdgeRun(NamedTuple):
    """One edge of the graph that is laid out."""

    tail: str
    head: str
    attributes: str


def _graphviz(sizes: Mapping[str, tuple[float, float]], runs: Sequence[_EdgeRun], style: _Style) -> _Graph:
    """Let Graphviz place boxes of these sizes."""
    try:
        from pygraphviz import AGraph
    except ImportError as problem:
        raise MisuseError(f"drawing svg needs pygraphviz ({to_install('draw')}): {problem}") from problem
    hurry = ', nslimit="3", nslimit1="3", mclimit="0.2"' if len(runs) > 2 * MANY else ""
    lines = [
        "digraph {",
        f'graph [nodesep="{style.beside}", ranksep="{style.below}", pad="0", margin="0"{hurry}]',
        'node [shape="box", fixedsize="true", label=""]',
        *(f'{name} [width="{width / 72:.4f}", height="{height / 72:.4f}"]' for name, (width, height) in sizes.items()),
        *(f"{run.tail} -> {run.head} [{run.attributes}]" for run in runs),
        "}",
    ]
    with AGraph(string="\n".join(lines)) as graph:
        found: _Graph = json.loads(graph.draw(format="json", prog="dot"))
    return found


_BEGIN = "begin"


def _order(panel: Panel, sizes: Mapping[str, tuple[float, float]], style: _Style) -> dict[str, int]:
    """The states from top to bottom, in a layout without labels."""
    ids = {node.name: f"s{number}" for number, node in enumerate(panel.picture.nodes)}
    runs = [
        _EdgeRun(ids[arrow.source], ids[arrow.target], f'weight="{_weight(panel, arrow)}"')
        for arrow in panel.picture.arrows
        if not arrow.loop
    ]
    initial = [ids[node.name] for node in panel.picture.nodes if node.initial]
    graph = _graphviz(sizes, [*(_EdgeRun(_BEGIN, each, 'weight="10"') for each in initial), *runs], style)
    height = {each["name"]: _points(each["pos"])[0] for each in graph.get("objects", [])}
    ranked = sorted(ids, key=lambda name: (-height[ids[name]].y, height[ids[name]].x))
    return {name: rank for rank, name in enumerate(ranked)}


def _weight(panel: Panel, arrow: Arrow) -> int:
    """The weight of an arrow: ordinary ones are kept shorter and straighter than those into trouble."""
    tones = {node.name: node.tone for node in panel.picture.nodes}
    return 1 if tones[arrow.target] is Tone.TROUBLE else 3


def _points(pos: str) -> list[Point]:
    return [Point(float(x), float(y)) for x, _, y in (each.partition(",") for each in pos.replace("!", "").split())]


def _path(pos: str) -> tuple[list[Point], Point | None]:
    """The points of an edge from tail to head, and where its arrow's head ends, at either end."""
    tip = None
    words = pos.split()
    plain = []
    for word in words:
        if word[:2] in ("s,", "e,"):
            tip = _points(word[2:])[0]
        else:
            plain.append(word)
    return _points(" ".join(plain)), tip


# --- the whole ---------------------------------------------------------------------------------------------------------


def layout(panel: Panel, numbers: Mapping[str, int] | None = None) -> MachineLayout:
    """Lay out one machine; *numbers* are those of the couplings, if other machines share them."""
    chosen = numbers_of([panel]) if numbers is None else numbers
    if sum(not arrow.loop for arrow in panel.picture.arrows) > MANY:
        return _laid_out(panel, chosen, _STYLES[-1])
    found = [_laid_out(panel, chosen, _STYLES[0])]
    for style in _STYLES[1:]:
        if found[-1].width <= WIDTH_MAX:
            return found[-1]
        found.append(_laid_out(panel, chosen, style))
    return min(found, key=lambda each: max(each.width, WIDTH_MAX))


def _laid_out(panel: Panel, numbers: Mapping[str, int], style: _Style) -> MachineLayout:
    picture = panel.picture
    states = {node.name: _set_node(panel, node, numbers) for node in picture.nodes}
    ids = {node.name: f"s{number}" for number, node in enumerate(picture.nodes)}
    sizes = {ids[name]: (text.width, text.height) for name, (text, _) in states.items()}
    sizes[_BEGIN] = (DOT, DOT)
    order = _order(panel, sizes, style)
    arrows = [arrow for arrow in picture.arrows if not arrow.loop]
    sets = [_set_labels(panel, arrow.labels, numbers, narrow=style.narrow) for arrow in arrows]
    runs = [_EdgeRun(_BEGIN, ids[node.name], 'arrowsize="0.7", weight="10"') for node in picture.nodes if node.initial]
    for number, arrow in enumerate(arrows):
        sizes[f"l{number}"] = _size(sets[number])
        runs += _runs_of(arrow, f"l{number}", ids, order, _weight(panel, arrow))
    graph = _graphviz(sizes, runs, style)
    read = _Reading(graph, sizes)
    begin, entry_tip = read.run(_BEGIN, next(ids[node.name] for node in picture.nodes if node.initial))
    return MachineLayout(
        panel,
        *read.size,
        tuple(_placed_node(panel, node, read.box(ids[node.name]), *states[node.name]) for node in picture.nodes),
        tuple(_placed_arrow(arrow, f"l{number}", sets[number], ids, order, read) for number, arrow in enumerate(arrows)),
        read.middle(_BEGIN),
        begin,
        begin[-1] if entry_tip is None else entry_tip,
    )


def _down(arrow: Arrow, order: Mapping[str, int]) -> bool:
    return order[arrow.source] < order[arrow.target]


def _runs_of(arrow: Arrow, label: str, ids: Mapping[str, str], order: Mapping[str, int], weight: int) -> list[_EdgeRun]:
    """The two edges of an arrow, both leading downwards; the arrow says at which end the head is."""
    down = _down(arrow, order)
    above, below = (arrow.source, arrow.target) if down else (arrow.target, arrow.source)
    head, plain = 'arrowsize="0.7"', 'dir="none"'
    return [
        _EdgeRun(ids[above], label, f'headport="n", weight="{weight}", ' + (plain if down else f'dir="back", {head}')),
        _EdgeRun(label, ids[below], f'tailport="s", weight="{weight}", ' + (head if down else plain)),
    ]


class _Reading:
    """The positions from Graphviz, with y growing downwards."""

    def __init__(self, graph: _Graph, sizes: Mapping[str, tuple[float, float]]) -> None:
        left, below, right, above = (float(each) for each in graph.get("bb", "0,0,0,0").split(","))
        self.size = (round(right - left, 1), round(above - below, 1))
        self._left, self._above, self._sizes = left, above, sizes
        objects = graph.get("objects", [])
        self._middles = {each["name"]: _points(each["pos"])[0] for each in objects}
        names = [each["name"] for each in objects]
        self._edges = {(names[each["tail"]], names[each["head"]]): each["pos"] for each in graph.get("edges", [])}

    def _turned(self, point: Point) -> Point:
        return Point(round(point.x - self._left, 1), round(self._above - point.y, 1))

    def middle(self, name: str) -> Point:
        """The middle of a box."""
        return self._turned(self._middles[name])

    def box(self, name: str) -> Box:
        """A box."""
        x, y = self.middle(name)
        width, height = self._sizes[name]
        return Box(round(x - width / 2, 2), round(y - height / 2, 2), width, height)

    def run(self, tail: str, head: str) -> tuple[tuple[Point, ...], Point | None]:
        """The path of an edge, and its arrow's head if it has one."""
        points, tip = _path(self._edges[tail, head])
        return tuple(self._turned(each) for each in points), None if tip is None else self._turned(tip)


def _placed_node(panel: Panel, node: Node, box: Box, text: _Set, loops: Sequence[_Set]) -> PlacedNode:
    """A state's text, moved to where the state stands."""
    labels = [label for arrow in panel.picture.arrows if arrow.loop and arrow.source == node.name for label in arrow.labels]
    there = [_moved(each, box.x, box.y) for each in loops]
    return PlacedNode(node, box, _moved(text, box.x, box.y).pieces, _lines(labels, there))


def _placed_arrow(
    arrow: Arrow, label: str, sets: Sequence[_Set], ids: Mapping[str, str], order: Mapping[str, int], read: _Reading
) -> PlacedArrow:
    """An arrow's two paths in its own direction, and its labels where Graphviz put them."""
    box = read.box(label)
    y = box.y + 1
    there = []
    for each in sets:
        there.append(_moved(each, box.x + 3, y))
        y += each.height
    above, below = (arrow.source, arrow.target) if _down(arrow, order) else (arrow.target, arrow.source)
    upper, upper_tip = read.run(ids[above], label)
    lower, lower_tip = read.run(label, ids[below])
    if _down(arrow, order):
        paths, tip = (upper, lower), lower_tip
    else:
        paths, tip = (lower[::-1], upper[::-1]), upper_tip
    return PlacedArrow(arrow, paths, paths[1][-1] if tip is None else tip, _lines(arrow.labels, there), box)
