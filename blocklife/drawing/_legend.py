"""The legend below a drawing: its signs, its marks, and the couplings by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from attrs import frozen

from blocklife.drawing import _elements as elements
from blocklife.drawing._layout import Box, Point, Role
from blocklife.drawing._picture import Emphasis, Panel
from blocklife.drawing._text_width import BOLD, prose_width, wrapped
from blocklife.states import Coupling, Tone

SIZE = 11.0
LINE = 15.0
_COLUMN_MIN = 280.0


@frozen
class Legend:
    """The lower part of a drawing, from its own upper left corner."""

    height: float
    markup: str


def legend(panels: Sequence[Panel], numbers: Mapping[str, int], width: float) -> Legend:
    """Explain what a drawing shows, in a given width."""
    parts: list[str] = []
    y = _signs(panels, width, parts)
    y = _marks(panels, width, y, parts)
    couplings = {each.name: each for panel in panels for each in panel.picture.couplings}
    y = _couplings([couplings[name] for name in numbers], numbers, width, y, parts)
    return Legend(y, "\n".join(parts))


# --- signs -------------------------------------------------------------------------------------------------------------


@frozen
class _Sign:
    """One sign and what it means."""

    width: float
    draw: Callable[[float, float], str]
    """Draws it with its left end at x and the middle of its line at y."""
    means: str


def _signs(panels: Sequence[Panel], width: float, parts: list[str]) -> float:
    return _flow(list(_known(panels)), width, 0, parts)


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


def _known(panels: Sequence[Panel]) -> Iterable[_Sign]:
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
        guard = _Sign(
            48,
            lambda x, y: elements.text("[guard]", x, y + 4, "bl-mono bl-guard"),
            "if it holds; tried in the table's order",
        )
        yield guard
    for role, means in ((Role.CAUSES, "takes others along"), (Role.FOLLOWS, "is taken along by another machine's step")):
        if any(label.causes if role is Role.CAUSES else label.follows for label in labels):
            yield _Sign(elements.pill_width("1"), _pill(causes=role is Role.CAUSES), means)


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
    """Each coupling with its number: when, what follows, and why; in columns that are about equally long."""
    if not couplings:
        return y
    columns = max(1, int((width + 24) // (_COLUMN_MIN + 24)))
    wide = (width - 24 * (columns - 1)) / columns
    entries = [_entry(each, numbers[each.name], wide) for each in couplings]
    share = sum(height for height, _ in entries) / columns
    column, down, lowest = 0, 0.0, 0.0
    for height, draw in entries:
        if column + 1 < columns and down and down + height / 2 > share:
            column, down = column + 1, 0.0
        parts.append(draw(column * (wide + 24), y + down))
        down += height
        lowest = max(lowest, down)
    return y + lowest


def _entry(coupling: Coupling, number: int, width: float) -> tuple[float, Callable[[float, float], str]]:
    """The height of one coupling, and the function that draws it."""
    indent = 30.0
    into = f" into {', '.join(state.name for state in coupling.into)}" if coupling.into else ""
    told = wrapped(f"{coupling.cause}{into}: then {', '.join(coupling.effects)}", SIZE, width - indent)
    why = wrapped(coupling.why, SIZE, width - indent)

    def draw(x: float, y: float) -> str:
        said = str(number)
        found = [
            elements.pill(said, x + 22 - elements.pill_width(said), y + 1.5, causes=True),
            elements.text(coupling.name, x + indent, y + 11.5, "bl-prose bl-strong"),
        ]
        for line, class_ in (*((each, "bl-text") for each in told), *((each, "bl-faint") for each in why)):
            y += LINE - 1
            found.append(elements.text(line, x + indent, y + 11.5, f"bl-prose {class_}"))
        return elements.element("g", "".join(found), class_="bl-coupling", data_coupling=coupling.name)

    return LINE + (LINE - 1) * (len(told) + len(why)) + 7, draw
