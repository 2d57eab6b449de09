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
from typing import Any, NamedTuple, TypeAlias

from attrs import evolve, frozen

from blocklife.drawing._picture import Arrow, Label, Node, Panel
from blocklife.drawing._text_width import fixed_width
from blocklife.errors import MisuseError
from blocklife.extras import to_install
from blocklife.lifecycle import Tone

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

    def moved(self, x: float, y: float) -> TextPiece:
        """The same elsewhere."""
        return evolve(self, box=evolve(self.box, x=round(self.box.x + x, 2), y=round(self.box.y + y, 2)))


@frozen
class RowLine:
    """One row of the table as it is shown, on an arrow or in its state."""

    label: Label
    pieces: tuple[TextPiece, ...]
    width: float
    height: float

    def moved(self, x: float, y: float) -> RowLine:
        """The same elsewhere."""
        return evolve(self, pieces=tuple(piece.moved(x, y) for piece in self.pieces))


@frozen
class PlacedNode:
    """A state, with the arrows that lead back to it as a list."""

    node: Node
    box: Box
    pieces: tuple[TextPiece, ...]
    loops: tuple[RowLine, ...]

    def at(self, box: Box) -> PlacedNode:
        """The same, made at the origin, where it stands."""
        pieces = tuple(piece.moved(box.x, box.y) for piece in self.pieces)
        return evolve(self, box=box, pieces=pieces, loops=tuple(line.moved(box.x, box.y) for line in self.loops))


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


def _line(panel: Panel, label: Label, numbers: Mapping[str, int], *, narrow: bool, loop: bool = False) -> RowLine:
    """One label, from its own corner; *narrow* puts its guard on a line of its own."""
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
        return RowLine(label, tuple(placed), width, LINE)
    more, wider = _row(rest, LOOP if loop else 0, air + HIGH)
    return RowLine(label, (*placed, *more), max(width, wider), LINE + HIGH)


def _stacked(lines: Sequence[RowLine], x: float, y: float) -> tuple[tuple[RowLine, ...], float]:
    """Lines one below the other; returns them and where they end."""
    placed = []
    for line in lines:
        placed.append(line.moved(x, y))
        y += line.height
    return tuple(placed), y


def _node(panel: Panel, node: Node, numbers: Mapping[str, int]) -> PlacedNode:
    """A state at the origin: its name, the note of its mark, and its loops as a list."""
    loops = [
        _line(panel, label, numbers, narrow=False, loop=True)
        for arrow in panel.picture.arrows
        if arrow.loop and arrow.source == node.name
        for label in arrow.labels
    ]
    inset = INSET if node.final else 0
    name, note = fixed_width(node.name, TITLE), panel.marks.state(node).note
    width = max(name, fixed_width(note, TEXT), *(each.width for each in loops), 40) + 2 * PAD + 2 * inset
    y = PAD - 3 + inset
    pieces = [TextPiece(Role.NAME, node.name, Box((width - name) / 2, y, name, LINE + 2))]
    y += LINE + 2
    if note:
        wide = fixed_width(note, TEXT)
        pieces.append(TextPiece(Role.NOTE, note, Box((width - wide) / 2, y, wide, LINE)))
        y += LINE
    placed, y = _stacked(loops, PAD + inset, y + 4 if loops else y)
    return PlacedNode(node, Box(0, 0, width, y + PAD - 3 + inset), tuple(pieces), placed)


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


class _EdgeRun(NamedTuple):
    """One edge of the graph that is laid out."""

    tail: str
    head: str
    attributes: str


def _graphviz(sizes: _Sizes, runs: Sequence[_EdgeRun], style: _Style) -> _Reading:
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
        return _Reading(json.loads(graph.draw(format="json", prog="dot")), sizes)


_BEGIN = "begin"
_Sizes: TypeAlias = Mapping[str, tuple[float, float]]


class _Reading:
    """The positions from Graphviz, with y growing downwards."""

    def __init__(self, graph: Mapping[str, Any], sizes: _Sizes) -> None:
        left, below, right, above = (float(each) for each in graph.get("bb", "0,0,0,0").split(","))
        self.size = (round(right - left, 1), round(above - below, 1))
        self._left, self._above, self._sizes = left, above, sizes
        objects = graph.get("objects", [])
        self._middles = {each["name"]: self._points(each["pos"])[0] for each in objects}
        names = [each["name"] for each in objects]
        self._edges = {(names[each["tail"]], names[each["head"]]): each["pos"] for each in graph.get("edges", [])}

    def _points(self, pos: str) -> list[Point]:
        numbers = [[float(each) for each in word.split(",")] for word in pos.split()]
        return [Point(round(x - self._left, 1), round(self._above - y, 1)) for x, y in numbers]

    def middle(self, name: str) -> Point:
        """The middle of a box."""
        return self._middles[name]

    def box(self, name: str) -> Box:
        """A box."""
        x, y = self.middle(name)
        width, height = self._sizes[name]
        return Box(round(x - width / 2, 2), round(y - height / 2, 2), width, height)

    def run(self, tail: str, head: str) -> tuple[tuple[Point, ...], Point | None]:
        """The path of an edge, and the tip of its arrow's head, at either end, if it has one."""
        words = self._edges[tail, head].split()
        tips = [word[2:] for word in words if word[:2] in ("s,", "e,")]
        path = self._points(" ".join(word for word in words if word[:2] not in ("s,", "e,")))
        return tuple(path), self._points(tips[0])[0] if tips else None


def _order(panel: Panel, sizes: _Sizes, style: _Style) -> dict[str, int]:
    """The states from top to bottom, in a layout without labels."""
    ids = _ids(panel)
    runs = [
        *(_EdgeRun(_BEGIN, ids[node.name], 'weight="10"') for node in panel.picture.nodes if node.initial),
        *(
            _EdgeRun(ids[arrow.source], ids[arrow.target], f'weight="{_weight(panel, arrow)}"')
            for arrow in panel.picture.arrows
            if not arrow.loop
        ),
    ]
    read = _graphviz(sizes, runs, style)
    middles = {name: read.middle(each) for name, each in ids.items()}
    ranked = sorted(ids, key=lambda name: (middles[name].y, middles[name].x))
    return {name: rank for rank, name in enumerate(ranked)}


def _ids(panel: Panel) -> dict[str, str]:
    """What states are called in the graph."""
    return {node.name: f"s{number}" for number, node in enumerate(panel.picture.nodes)}


def _weight(panel: Panel, arrow: Arrow) -> int:
    """The weight of an arrow: ordinary ones are kept shorter and straighter than those into trouble."""
    return 1 if panel.picture.tone(arrow.target) is Tone.TROUBLE else 3


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
    ids = _ids(panel)
    nodes = [_node(panel, node, numbers) for node in panel.picture.nodes]
    sizes = {ids[each.node.name]: (each.box.width, each.box.height) for each in nodes} | {_BEGIN: (DOT, DOT)}
    order = _order(panel, sizes, style)
    initial = [ids[node.name] for node in panel.picture.nodes if node.initial]
    runs = [_EdgeRun(_BEGIN, each, 'arrowsize="0.7", weight="10"') for each in initial]
    labelled: list[tuple[Arrow, str, list[RowLine]]] = []
    for number, arrow in enumerate(arrow for arrow in panel.picture.arrows if not arrow.loop):
        lines = [_line(panel, label, numbers, narrow=style.narrow) for label in arrow.labels]
        labelled.append((arrow, f"l{number}", lines))
        sizes[f"l{number}"] = max(each.width for each in lines) + 6, sum(each.height for each in lines) + 2
        runs += _runs_of(arrow, f"l{number}", ids, order, _weight(panel, arrow))
    read = _graphviz(sizes, runs, style)
    begin, entry_tip = read.run(_BEGIN, initial[0])
    return MachineLayout(
        panel,
        *read.size,
        tuple(each.at(read.box(ids[each.node.name])) for each in nodes),
        tuple(_placed_arrow(*each, ids, order, read) for each in labelled),
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


def _placed_arrow(
    arrow: Arrow, label: str, lines: Sequence[RowLine], ids: Mapping[str, str], order: Mapping[str, int], read: _Reading
) -> PlacedArrow:
    """An arrow's two paths in its own direction, and its labels where Graphviz put them."""
    box = read.box(label)
    there, _ = _stacked(lines, box.x + 3, box.y + 1)
    above, below = (arrow.source, arrow.target) if _down(arrow, order) else (arrow.target, arrow.source)
    upper, upper_tip = read.run(ids[above], label)
    lower, lower_tip = read.run(label, ids[below])
    if _down(arrow, order):
        paths, tip = (upper, lower), lower_tip
    else:
        paths, tip = (lower[::-1], upper[::-1]), upper_tip
    return PlacedArrow(arrow, paths, paths[1][-1] if tip is None else tip, there, box)
