"""A sequence diagram as SVG: a column for each party, a row for each message or note.

Rules of this file:

* Text is measured by `_text_width`, with widths that no usual font exceeds, and is broken into lines that fit. Each item has
  rows of its own, so that texts cannot overlap.
* Colours are those of all drawings (`_theme`); a drawing for both themes has both, and the reader's system chooses.
* The same sequence gives the same bytes, all of them ASCII.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from blocklife.drawing import _elements as elements
from blocklife.drawing._sequence import Band, Item, Message, Note, PartySequence, Way
from blocklife.drawing._text_width import prose_width, wrapped
from blocklife.drawing._theme import Palette, Theme
from blocklife.lifecycle import Tone

SIZE, LINE = 12.0, 16.0
"""Size of the letters, and from one line of text to the next."""
TITLE_SIZE = 15.0
COLUMN, COLUMN_MAX, PARTY = 172.0, 300.0, 124.0
"""The distance from one party to the next, the same if there are few of them, and the width of a party's box."""
NOTE_WIDTH_MAX = 320.0
PAD, MARGIN, HEAD = 8.0, 12.0, 7.0
LONG = 700.0
"""A drawing higher than this repeats the names of the parties at its foot."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"


def svg(sequence: PartySequence, theme: Theme | None = None) -> str:
    """Draw a sequence; without a theme it follows the reader's system."""
    return _Drawing(sequence, theme).text()


@define(eq=False)
class _Drawing:
    """One drawing. Invariant: everything so far is above ``y``."""

    sequence: PartySequence
    theme: Theme | None
    y: float = MARGIN
    when: str = ""
    gutter: float = 0.0
    columns: dict[str, float] = field(factory=dict)
    parts: list[str] = field(factory=list)

    @property
    def width(self) -> float:
        return max(self.columns.values()) + PARTY / 2 + MARGIN

    def text(self) -> str:
        """The whole drawing."""
        times = [item.when for item in self.sequence.items if not isinstance(item, Band) and item.when]
        self.gutter = max((prose_width(each, SIZE) for each in times), default=0.0) + MARGIN
        first = self.gutter + MARGIN + PARTY / 2
        column = max(COLUMN, min(COLUMN_MAX, 4 * COLUMN / max(len(self.sequence.parties) - 1, 1)))
        self.columns = {party.key: first + at * column for at, party in enumerate(self.sequence.parties)}
        if self.sequence.title:
            for line in wrapped(self.sequence.title, TITLE_SIZE, self.width - 2 * MARGIN):
                self.parts.append(_text(MARGIN, self.y + TITLE_SIZE, line, "title"))
                self.y += TITLE_SIZE + 6
            self.y += 6
        self._parties()
        top, body = self.y, len(self.parts)
        self.y += PAD
        for item in self.sequence.items:
            self._item(item)
        self.y += PAD
        lifelines = [f'<path class="lifeline" d="M{_n(x)} {_n(top)}V{_n(self.y)}"/>' for x in self.columns.values()]
        self.parts[body:body] = lifelines
        if self.y > LONG:
            self._parties()
        self.y += MARGIN
        return "\n".join(self._document()) + "\n"

    def _document(self) -> Iterator[str]:
        width, height = _n(self.width), _n(self.y)
        size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
        yield f"<title>{_escaped(self.sequence.title or 'sequence diagram')}</title>"
        yield f"<style>\n{_style(self.theme)}</style>"
        yield f'<rect class="ground" width="{width}" height="{height}"/>'
        yield from self.parts
        yield "</svg>"

    def _parties(self) -> None:
        names = [wrapped(party.name, SIZE, PARTY - 2 * PAD) for party in self.sequence.parties]
        height = max(map(len, names)) * LINE + PAD
        for x, lines in zip(self.columns.values(), names, strict=True):
            self.parts.append(_box(x - PARTY / 2, self.y, PARTY, height, "party"))
            top = self.y + (height - len(lines) * LINE) / 2
            self.parts += [_text(x, top + (at + 0.76) * LINE, line, "name") for at, line in enumerate(lines)]
        self.y += height

    def _item(self, item: Item) -> None:
        if isinstance(item, Band):
            self._band(item)
            return
        top = self.y
        if isinstance(item, Message):
            self._message(item)
        else:
            self._note(item)
        if item.when not in ("", self.when):
            self.parts.append(_text(self.gutter, top + PAD + 0.76 * LINE, item.when, "when"))
        self.when = item.when or self.when

    def _band(self, band: Band) -> None:
        self.y += PAD
        lines = wrapped(band.text, SIZE, self.width - 4 * MARGIN)
        height = len(lines) * LINE + PAD
        name = "faint" if band.faint else "band"
        self.parts.append(_box(MARGIN, self.y, self.width - 2 * MARGIN, height, name))
        for at, line in enumerate(lines):
            self.parts.append(_text(self.width / 2, self.y + PAD / 2 + (at + 0.76) * LINE, line, f"on-{name}"))
        self.y += height + PAD / 2
        self.when = ""

    def _message(self, message: Message) -> None:
        start, stop = self.columns[message.source], self.columns[message.target]
        lines = wrapped(message.text, SIZE, abs(stop - start) - 2 * PAD)
        self.y += PAD
        middle = (start + stop) / 2
        for line in lines:
            width = prose_width(line, SIZE)
            self.parts.append(
                f'<rect class="ground" x="{_n(middle - width / 2)}" y="{_n(self.y)}" width="{_n(width)}" height="16"/>'
            )
            self.parts.append(_text(middle, self.y + 0.76 * LINE, line, "text"))
            self.y += LINE
        self.y += PAD / 2
        self.parts += _arrow(start, stop, self.y, message.way)
        self.y += PAD / 2

    def _note(self, note: Note) -> None:
        xs = [self.columns[key] for key in note.over]
        room = min(max(NOTE_WIDTH_MAX, max(xs) - min(xs) + PARTY), self.width - self.gutter - PAD - MARGIN)
        lines = [line for told in note.lines for line in wrapped(told, SIZE, room - 2 * PAD)]
        width = max(max(prose_width(line, SIZE) for line in lines) + 2 * PAD, max(xs) - min(xs))
        height = len(lines) * LINE + PAD
        self.y += PAD / 2
        x = min(max((max(xs) + min(xs) - width) / 2, self.gutter + PAD), self.width - MARGIN - width)
        tone = note.tone.name.lower()
        self.parts.append(_box(x, self.y, width, height, f"note {tone}"))
        for at, line in enumerate(lines):
            self.parts.append(_text(x + width / 2, self.y + PAD / 2 + (at + 0.76) * LINE, line, f"on-{tone}"))
        self.y += height + PAD / 2


# --- pieces ------------------------------------------------------------------------------------------------------------


def _arrow(start: float, stop: float, y: float, way: Way) -> Iterator[str]:
    """A line and its head. A lost message ends in a cross."""
    back = -HEAD if stop > start else HEAD
    end = stop + (3 * back if way is Way.LOST else 0)
    dashed = "" if way is Way.ASKS else " dashed"
    yield f'<path class="arrow{dashed}" d="M{_n(start)} {_n(y)}H{_n(end + (back if way is Way.ASKS else 0))}"/>'
    if way is Way.ASKS:
        yield f'<path class="head" d="M{_n(end)} {_n(y)}l{_n(back)} -4v8z"/>'
    elif way is Way.ANSWERS:
        yield f'<path class="arrow" d="M{_n(end + back)} {_n(y - 4)}L{_n(end)} {_n(y)}L{_n(end + back)} {_n(y + 4)}"/>'
    else:
        yield f'<path class="arrow" d="M{_n(end - 4)} {_n(y - 4)}l8 8m0 -8l-8 8"/>'


def _box(x: float, y: float, width: float, height: float, name: str) -> str:
    return f'<rect class="{name}" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="4"/>'


def _text(x: float, y: float, text: str, name: str) -> str:
    return f'<text class="{name}" x="{_n(x)}" y="{_n(y)}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return elements.escaped(text).encode("ascii", "xmlcharrefreplace").decode("ascii")


def _n(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


# --- colours -----------------------------------------------------------------------------------------------------------


def _style(theme: Theme | None) -> str:
    shapes = [
        f"text {{ font: {SIZE:g}px {FONT}; text-anchor: middle; }}",
        f".title {{ font-size: {TITLE_SIZE:g}px; text-anchor: start; }}",
        ".when { text-anchor: end; }",
        ".party, .note, .band { stroke-width: 1; }",
        ".lifeline { stroke-width: 1; stroke-dasharray: 3 4; fill: none; }",
        ".arrow { stroke-width: 1.2; fill: none; }",
        ".dashed { stroke-dasharray: 5 3; }",
        "",
    ]
    return elements.themed("\n".join(shapes), lambda each: "\n".join([*_colours(each.value), ""]), theme)


def _colours(palette: Palette) -> Iterator[str]:
    yield f".ground {{ fill: {palette.ground}; }}"
    yield f".title, .name, .text, .on-band {{ fill: {palette.text}; }}"
    yield f".when, .on-faint {{ fill: {palette.faint}; }}"
    yield f".party {{ fill: {palette.panel}; stroke: {palette.faint}; }}"
    yield f".band {{ fill: {palette.panel}; stroke: {palette.rule}; }}"
    yield f".faint {{ fill: {palette.ground}; stroke: none; }}"
    yield f".lifeline {{ stroke: {palette.faint}; }}"
    yield f".arrow {{ stroke: {palette.text}; }}"
    yield f".head {{ fill: {palette.text}; }}"
    for tone in Tone:
        tint, name = palette.tones[tone], tone.name.lower()
        yield f".{name} {{ fill: {tint.fill}; stroke: {tint.line}; }}"
        yield f".on-{name} {{ fill: {tint.text}; }}"
