"""A drawing as SVG: one panel for each lifecycle with its marks, and a legend.

Rules of this file:

* Nothing here depends on the machine or the moment: the same panels give the same bytes.
* No script, no network, no font of its own. It works as an image, inside a page, and with a screen reader: states and rows have
  an id and say what they mean.
* Lines are drawn first, then labels, then states, so that no line runs across text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attrs import frozen

from blocklife.drawing import _elements as elements
from blocklife.drawing._layout import DOT, INSET, WIDTH_MAX, MachineLayout, PlacedArrow, PlacedNode, RowLine, layout, numbers_of
from blocklife.drawing._legend import legend
from blocklife.drawing._picture import Arrow, Emphasis, Label, Mark, Node, Panel
from blocklife.drawing._text_width import prose_width, wrapped
from blocklife.drawing._theme import Theme

MARGIN = 12.0
PADDING = 14.0
HEADING = 26.0


def svg(panels: Sequence[Panel], theme: Theme | None = None) -> str:
    """Draw lifecycles, one panel each; without a theme the reader's system chooses between light and dark."""
    numbers = numbers_of(panels)
    framed = [_framed(panel, numbers) for panel in panels]
    placed, width, height = _shelved(framed)
    below, deep = legend(panels, numbers, width - 2 * PADDING)
    total, tall = width + 2 * MARGIN, MARGIN + height + PADDING + deep + MARGIN
    title = "Lifecycle: " + ", ".join(panel.picture.name for panel in panels)
    parts = [
        elements.element("title", elements.escaped(title), id="bl-title"),
        elements.element("desc", elements.escaped(_description(panels)), id="bl-desc"),
        f"<style>\n{elements.style(theme)}</style>",
        f'<rect width="{elements.number(total)}" height="{elements.number(tall)}" rx="6" class="bl-ground"/>',
        *(_at(MARGIN + x, MARGIN + y, each.draw(wide)) for each, x, y, wide in placed),
        _at(MARGIN + PADDING, MARGIN + height + PADDING, below, class_="bl-legend"),
    ]
    shown = elements.element(
        "svg",
        "\n" + "\n".join(parts) + "\n",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {elements.number(total)} {elements.number(tall)}",
        width=float(total),
        height=float(tall),
        role="img",
        aria_labelledby="bl-title bl-desc",
        class_="blocklife",
    )
    return shown + "\n"


def _description(panels: Sequence[Panel]) -> str:
    """The description for screen readers."""
    told = []
    for panel in panels:
        picture = panel.picture
        rows = sum(len(arrow.labels) for arrow in picture.arrows)
        first = ", ".join(node.name for node in picture.nodes if node.initial)
        last = ", ".join(node.name for node in picture.nodes if node.final)
        told.append(
            f"{picture.name}: {picture.about} {len(picture.nodes)} states, {rows} rows; it begins in {first}"
            + (f" and ends in {last}." if last else ".")
        )
    return " ".join(told)


def _at(x: float, y: float, markup: str, class_: str | None = None) -> str:
    return elements.element(
        "g", f"\n{markup}\n", transform=f"translate({elements.number(x)} {elements.number(y)})", class_=class_
    )


# --- panels ------------------------------------------------------------------------------------------------------------


@frozen
class _Framed:
    """One machine with its heading, and the size that both need."""

    layout: MachineLayout
    about: tuple[str, ...]
    width: float
    height: float

    def draw(self, width: float) -> str:
        """Its panel, as wide as it is told to be."""
        panel = self.layout.panel
        top = self.height - PADDING - self.layout.height
        parts = [
            f'<rect width="{elements.number(width)}" height="{elements.number(self.height)}" rx="6" class="bl-panel"/>',
            elements.text(panel.picture.name, PADDING, 22, "bl-mono bl-head1 bl-text"),
            *(elements.text(line, PADDING, HEADING + 12 + 15 * at, "bl-prose bl-faint") for at, line in enumerate(self.about)),
            _at((width - self.layout.width) / 2, top, _machine(self.layout)),
        ]
        return "\n".join(parts)


def _framed(panel: Panel, numbers: Mapping[str, int]) -> _Framed:
    found = layout(panel, numbers)
    width = max(found.width, prose_width(panel.picture.name, 15, bold=True), 260)
    about = tuple(wrapped(panel.picture.about, 11, width)) if panel.picture.about else ()
    return _Framed(found, about, width + 2 * PADDING, HEADING + 15 * len(about) + 16 + found.height + PADDING)


def _shelved(framed: Sequence[_Framed]) -> tuple[list[tuple[_Framed, float, float, float]], float, float]:
    """Panels in rows as wide as the widest panel, each with its position and width; and the size of the whole."""
    limit = max([WIDTH_MAX + 2 * PADDING, *(each.width for each in framed)])
    shelves: list[list[_Framed]] = []
    for each in framed:
        if shelves and sum(one.width + PADDING for one in shelves[-1]) + each.width <= limit:
            shelves[-1].append(each)
        else:
            shelves.append([each])
    width = max(sum(one.width + PADDING for one in shelf) - PADDING for shelf in shelves)
    placed, y = [], 0.0
    for shelf in shelves:
        spare = (width - sum(one.width + PADDING for one in shelf) + PADDING) / len(shelf)
        x = 0.0
        for one in shelf:
            placed.append((one, x, y, one.width + spare))
            x += one.width + spare + PADDING
        y += max(one.height for one in shelf) + PADDING
    return placed, width, y - PADDING


# --- one machine -------------------------------------------------------------------------------------------------------


def _machine(found: MachineLayout) -> str:
    panel = found.panel
    start = elements.element("circle", cx=found.start.x, cy=found.start.y, r=DOT / 2, class_="bl-start")
    entry = elements.curve(found.entry, "bl-line bl-entry") + elements.head(found.entry[-1], found.entry_tip, "bl-start")
    return "\n".join(
        [
            *(_line(panel, each) for each in found.arrows),
            start + entry,
            *(_labels(panel, each) for each in found.arrows),
            *(_state(panel, each) for each in found.nodes),
        ]
    )


def _look(panel: Panel, mark: Mark, state: str) -> str:
    """The class of an arrow or a row that leads to a state: of its mark, or of the state's tone where nothing is marked."""
    return elements.emphasis_class(mark.emphasis) if panel.marked else elements.tone_class(panel.picture.tone(state))


def _line(panel: Panel, placed: PlacedArrow) -> str:
    """The line of an arrow, past its label, with its head."""
    arrow, mark = placed.arrow, panel.mark_of(placed.arrow)
    class_ = _look(panel, mark, arrow.target)
    style = f"stroke-width:{elements.number(1.2 + 3 * mark.weight)}" if mark.weight > 0 else None
    drawn = "".join(elements.curve(path, f"bl-line {class_}", style) for path in placed.paths)
    drawn += elements.head(placed.paths[-1][-1], placed.tip, f"bl-head {class_}")
    title = elements.element("title", elements.escaped(f"{arrow.source} → {arrow.target}"))
    return elements.element("g", title + drawn, class_="bl-arrow", data_source=arrow.source, data_target=arrow.target)


def _labels(panel: Panel, placed: PlacedArrow) -> str:
    """The labels of an arrow, on ground of their own."""
    return elements.rect(placed.box, "bl-chip", 4) + "".join(_row(panel, placed.arrow, line) for line in placed.lines)


def _row(panel: Panel, arrow: Arrow, line: RowLine) -> str:
    """One row of the table, with its tooltip."""
    mark = panel.marks.row(line.label)
    class_, is_faint = f"{_look(panel, mark, arrow.target)}-text", mark.emphasis is Emphasis.UNUSED
    drawn = elements.element("title", elements.escaped(row_told(panel, arrow, line.label)))
    drawn += "".join(elements.piece(piece, class_, faint=is_faint) for piece in line.pieces)
    identity = f"{slug(panel.picture.name)}-row-{line.label.row}"
    return elements.element("g", drawn, id=identity, class_="bl-row", data_row=line.label.row)


def _state(panel: Panel, placed: PlacedNode) -> str:
    """A state: its box, a second border if it is final, its name, and its loops."""
    node, mark = placed.node, panel.marks.state(placed.node)
    keeps = mark.emphasis in (Emphasis.PLAIN, Emphasis.USED)  # a used state keeps its own colour
    class_ = elements.tone_class(node.tone) if keeps else elements.emphasis_class(mark.emphasis)
    style = f"stroke-width:{elements.number(1.2 + 2.5 * mark.weight)}" if mark.weight > 0 else None
    drawn = [
        elements.element("title", elements.escaped(state_told(panel, node))),
        elements.rect(placed.box, f"bl-box {class_}", 7, style=style),
    ]
    if node.final:
        drawn.append(elements.rect(placed.box, f"bl-box {class_}", 5, inset=INSET))
    drawn += [elements.piece(piece, f"{class_}-text") for piece in placed.pieces]
    loops = {label.row: arrow for arrow in panel.picture.arrows if arrow.loop for label in arrow.labels}
    drawn += [_row(panel, loops[line.label.row], line) for line in placed.loops]
    identity = f"{slug(panel.picture.name)}-{slug(node.name)}"
    return elements.element("g", "".join(drawn), id=identity, class_="bl-state", data_state=node.name)


# --- tooltips ----------------------------------------------------------------------------------------------------------


def slug(name: str) -> str:
    """A name as a part of an id."""
    return re.sub(r"[^\w.-]", "-", name)


def state_told(panel: Panel, node: Node) -> str:
    """A state in words, with its mark."""
    mark = panel.marks.state(node)
    ends = " (a life begins here)" if node.initial else ""
    ends += " (a life ends here)" if node.final else ""
    return "\n".join(filter(None, [f"{node.name}{ends}" + (f": {node.about}" if node.about else ""), _mark_told(mark)]))


def row_told(panel: Panel, arrow: Arrow, label: Label) -> str:
    """A row in words: what its event and its guard mean, what it is coupled to, and its mark."""
    picture = panel.picture
    events = {word.name: word.about for word in picture.events}
    guards = {word.name: word.about for word in picture.guards}
    why = {each.name: each.why for each in picture.couplings}
    told = [f"row {label.row}: {arrow.source} → {arrow.target}"]
    told.append(f"{label.event}: {events.get(label.event) or 'an event'}")
    if label.guard is not None:
        told.append(f"[{label.guard}]: {guards.get(label.guard) or 'a guard'}")
    told += [f"causes {name}: {why.get(name, '')}" for name in label.causes]
    told += [f"caused by {name}: {why.get(name, '')}" for name in label.follows]
    return "\n".join(filter(None, [*told, _mark_told(panel.marks.row(label))]))


def _mark_told(mark: Mark) -> str:
    return ": ".join(filter(None, [mark.note, mark.about]))
