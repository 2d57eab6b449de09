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
from blocklife.states import Tone

MARGIN = 12.0
PADDING = 14.0
HEADING = 26.0


def svg(panels: Sequence[Panel], theme: Theme | None = None) -> str:
    """Draw lifecycles, one panel each; without a theme the reader's system chooses between light and dark."""
    numbers = numbers_of(panels)
    framed = [_framed(panel, numbers) for panel in panels]
    placed, width, height = _shelved(framed)
    below = legend(panels, numbers, width - 2 * PADDING)
    total, tall = width + 2 * MARGIN, MARGIN + height + PADDING + below.height + MARGIN
    title = "Lifecycle: " + ", ".join(panel.picture.name for panel in panels)
    parts = [
        elements.element("title", elements.escaped(title), id="bl-title"),
        elements.element("desc", elements.escaped(_description(panels)), id="bl-desc"),
        f"<style>\n{elements.style(theme)}</style>",
        f'<rect width="{elements.number(total)}" height="{elements.number(tall)}" rx="6" class="bl-ground"/>',
        *(_at(MARGIN + x, MARGIN + y, each.draw(wide)) for each, x, y, wide in placed),
        _at(MARGIN + PADDING, MARGIN + height + PADDING, below.markup, class_="bl-legend"),
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
    marked = found.panel.marked
    start = elements.element("circle", cx=found.start.x, cy=found.start.y, r=DOT / 2, class_="bl-start")
    entry = elements.curve(found.entry, "bl-line bl-entry") + elements.head(found.entry[-1], found.entry_tip, "bl-start")
    return "\n".join(
        [
            *(_lines(found.panel, each, marked=marked) for each in found.arrows),
            start + entry,
            *(_labels(found.panel, each, marked=marked) for each in found.arrows),
            *(_state(found.panel, each, marked=marked) for each in found.nodes),
        ]
    )


def _tone(panel: Panel, state: str) -> Tone:
    return next(node.tone for node in panel.picture.nodes if node.name == state)


def _lines(panel: Panel, placed: PlacedArrow, *, marked: bool) -> str:
    """The line of an arrow, past its label, with its head."""
    arrow = placed.arrow
    mark = panel.mark_of(arrow)
    class_ = elements.emphasis_class(mark.emphasis) if marked else elements.tone_class(_tone(panel, arrow.target))
    style = f"stroke-width:{elements.number(1.2 + 3 * mark.weight)}" if mark.weight > 0 else None
    drawn = "".join(elements.curve(path, f"bl-line {class_}", style) for path in placed.paths)
    drawn += elements.head(placed.paths[-1][-1], placed.tip, f"bl-head {class_}")
    return elements.element(
        "g",
        f"<title>{elements.escaped(f'{arrow.source} → {arrow.target}')}</title>{drawn}",
        class_="bl-arrow",
        data_source=arrow.source,
        data_target=arrow.target,
    )


def _labels(panel: Panel, placed: PlacedArrow, *, marked: bool) -> str:
    """The labels of an arrow, on ground of their own."""
    tone = _tone(panel, placed.arrow.target)
    drawn = [_row(panel, placed.arrow, line, tone, marked=marked) for line in placed.lines]
    return elements.rect(placed.box, "bl-chip", 4) + "".join(drawn)


def _row(panel: Panel, arrow: Arrow, line: RowLine, tone: Tone, *, marked: bool) -> str:
    """One row of the table, with its tooltip."""
    mark = panel.marks.row(line.label)
    class_ = elements.emphasis_class(mark.emphasis) if marked else elements.tone_class(tone)
    told = elements.element("title", elements.escaped(row_told(panel, arrow, line.label)))
    return elements.element(
        "g",
        told
        + "".join(elements.piece(piece, f"{class_}-text", faint=mark.emphasis is Emphasis.UNUSED) for piece in line.pieces),
        id=f"{slug(panel.picture.name)}-row-{line.label.row}",
        class_="bl-row",
        data_row=line.label.row,
    )


def _state(panel: Panel, placed: PlacedNode, *, marked: bool) -> str:
    """A state: its box, a second border if it is final, its name, and its loops."""
    node, mark = placed.node, panel.marks.state(placed.node)
    emphasised = marked and mark.emphasis not in (Emphasis.PLAIN, Emphasis.USED)  # a used state keeps its own colour
    class_ = elements.emphasis_class(mark.emphasis) if emphasised else elements.tone_class(node.tone)
    style = f"stroke-width:{elements.number(1.2 + 2.5 * mark.weight)}" if mark.weight > 0 else None
    drawn = [
        elements.element("title", elements.escaped(state_told(panel, node))),
        elements.rect(placed.box, f"bl-box {class_}", 7),
    ]
    if style:
        drawn[-1] = drawn[-1].removesuffix("/>") + f' style="{style}"/>'
    if node.final:
        drawn.append(elements.rect(placed.box, f"bl-box {class_}", 5, inset=INSET))
    drawn += [elements.piece(piece, f"{class_}-text") for piece in placed.pieces]
    loops = {label.row: arrow for arrow in panel.picture.arrows if arrow.loop for label in arrow.labels}
    drawn += [_row(panel, loops[line.label.row], line, node.tone, marked=marked) for line in placed.loops]
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
