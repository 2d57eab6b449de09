"""The legend below a drawing: its signs, its marks, and the couplings by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import frozen

from blocklife.drawing import _elements as elements
from blocklife.drawing._layout import Box, Point
from blocklife.drawing._picture import Emphasis, Panel
from blocklife.drawing._text_width import BOLD, prose_width, wrapped
from blocklife.lifecycle import Tone
from blocklife.states import Coupling

SIZE = 11.0
LINE = 15.0
_INDENT = 24.0
"""From the left end of a coupling to its name."""


def legend(panels: Sequence[Panel], numbers: Mapping[str, int], width: float) -> tuple[str, float]:
    """Explain what a drawing shows, in a given width: markup from its own upper left corner, and its height."""
    parts: list[str] = []
    y = _flow(list(_signs(panels)), width, 0, parts)
    y = _marks(panels, width, y, parts)
    couplings = {each.name: each for panel in panels for each in panel.picture.couplings}
    y = _couplings([couplings[name] for name in numbers], numbers, width, y, parts)
    return "\n".join(parts), y


# --- signs -------------------------------------------------------------------------------------------------------------


@frozen
class _Sign:
    """One sign and what it means."""

    width: float
    draw: Callable[[float, float], str]
    """Draws it with its left end at x and the middle of its line at y."""
    means: str


def _flow(signs: Sequence[_Sign], width: float, y: float, parts: list[str]) -> float:
    """Signs from left to right, in as many lines as they need."""
    x = 0.0
    for sign in signs:
        wide = sign.width + 6 + prose_width(sign.means, SIZE)
        if x and x + wide > width:
            x, y = 0.0, y + LINE + 2
        parts.append(sign.draw(x, y + LINE / 2) + elements.text(sign.means, x + sign.width + 6, y + 11.5, "bl-prose bl-faint"))
        x += wide + 18
    return y + LINE + 8 if signs else y


def _signs(panels: Sequence[Panel]) -> Iterable[_Sign]:
    """The signs that a drawing has."""
    nodes = [node for panel in panels for node in panel.picture.nodes]
    arrows = [arrow for panel in panels for arrow in panel.picture.arrows]
    labels = [label for arrow in arrows for label in arrow.labels]
    yield _Sign(10, lambda x, y: elements.element("circle", cx=x + 5, cy=y, r=4.0, class_="bl-start"), "begins")
    if any(node.final for node in nodes):
        yield _Sign(22, _double, "ends")
    for tone in (each for each in Tone if any(node.tone is each for node in nodes)):
        yield _Sign(16, _swatch(elements.tone_class(tone)), tone.value)
    if any(arrow.loop for arrow in arrows):
        yield _Sign(9, lambda x, y: elements.loop(x, y - 5.5, "bl-loop"), "stays in its state")
    if any(label.guard for label in labels):
        means = "if it holds; tried in the table's order"
        yield _Sign(48, lambda x, y: elements.text("[guard]", x, y + 4, "bl-mono bl-guard"), means)
    if any(label.causes for label in labels):
        yield _Sign(elements.pill_width("1"), _pill(causes=True), "causes steps of other machines")
    if any(label.follows for label in labels):
        yield _Sign(elements.pill_width("1"), _pill(causes=False), "caused by another machine's step")


def _double(x: float, y: float) -> str:
    outer = Box(x, y - 6, 22, 12)
    return elements.rect(outer, "bl-box bl-over", 3) + elements.rect(outer, "bl-box bl-over", 2, inset=2.5)


def _swatch(class_: str) -> Callable[[float, float], str]:
    return lambda x, y: elements.rect(Box(x, y - 5, 16, 10), f"bl-box {class_}", 3)


def _pill(*, causes: bool) -> Callable[[float, float], str]:
    return lambda x, y: elements.pill("1", x, y - 6, causes=causes)


# --- marks -------------------------------------------------------------------------------------------------------------


def _marks(panels: Sequence[Panel], width: float, y: float, parts: list[str]) -> float:
    """The title of the marks, the look of each emphasis, and the notes."""
    told = list(dict.fromkeys(panel.marks.title for panel in panels if panel.marks.title))
    for title in told:
        y = _prose(title, width, y, parts, "bl-prose bl-strong")
    used = set().union(*(panel.emphases() for panel in panels if panel.marked))
    shown = [each for each in Emphasis if each in used and each is not Emphasis.PLAIN]
    meanings = {each: means for panel in panels for each, means in panel.marks.meanings.items()}
    signs = [_Sign(28, _stroke(elements.emphasis_class(each)), meanings.get(each, each.value)) for each in shown]
    y = _flow(signs, width, y, parts)
    for note in dict.fromkeys(note for panel in panels for note in panel.marks.notes):
        y = _prose(note, width, y, parts, "bl-prose bl-text")
    return y + 4 if told or shown else y


def _stroke(class_: str) -> Callable[[float, float], str]:
    def draw(x: float, y: float) -> str:
        line = (Point(x, y), Point(x + 6, y), Point(x + 12, y), Point(x + 21, y))
        return elements.curve(line, f"bl-line {class_}") + elements.head(line[-1], Point(x + 28, y), f"bl-head {class_}")

    return draw


def _prose(said: str, width: float, y: float, parts: list[str], class_: str) -> float:
    for line in wrapped(said, SIZE * (BOLD if "strong" in class_ else 1.0), width):
        parts.append(elements.text(line, 0, y + 11.5, class_))
        y += LINE
    return y + 2


# --- couplings ---------------------------------------------------------------------------------------------------------


def _couplings(couplings: Sequence[Coupling], numbers: Mapping[str, int], width: float, y: float, parts: list[str]) -> float:
    """The name of each coupling with its number, in columns of one width; a tooltip says when, what follows, and why."""
    if not couplings:
        return y
    wide = _INDENT + max(prose_width(each.name, SIZE, bold=True) for each in couplings) + 18
    columns = max(1, min(len(couplings), int((width + 18) // wide)))
    lines = -(-len(couplings) // columns)
    for at, each in enumerate(couplings):
        column, line = divmod(at, lines)
        parts.append(_entry(each, str(numbers[each.name]), column * wide, y + line * LINE))
    return y + lines * LINE


def _entry(coupling: Coupling, number: str, x: float, y: float) -> str:
    """One coupling, from its upper left corner."""
    into = f" into {', '.join(state.name for state in coupling.into)}" if coupling.into else ""
    told = f"{coupling.cause}{into}: then {', '.join(coupling.effects)}\n{coupling.why}"
    drawn = [
        elements.element("title", elements.escaped(told)),
        elements.pill(number, x + _INDENT - 6 - elements.pill_width(number), y + 1.5, causes=True),
        elements.text(coupling.name, x + _INDENT, y + 11.5, "bl-prose bl-text"),
    ]
    return elements.element("g", "".join(drawn), class_="bl-coupling", data_coupling=coupling.name)
