"""Elements of SVG and HTML as text: escaped, in one order, and the classes that colours hang on."""

from __future__ import annotations

from collections.abc import Callable

from blocklife.drawing._layout import PILL, SMALL, Box, Point, Role, TextPiece
from blocklife.drawing._picture import Emphasis
from blocklife.drawing._text_width import fixed_width
from blocklife.drawing._theme import Palette, Theme
from blocklife.lifecycle import Tone

FIXED_FONT = "'Fira Mono',ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
PROSE_FONT = "FiraGO,system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"

# Removes what XML 1.0 cannot hold: control characters and halves of surrogate pairs.
_FORBIDDEN = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)), "\ufffd")
_ESCAPES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;"}


def escaped(text: str) -> str:
    """Text that an element or an attribute can hold."""
    return text.translate(_FORBIDDEN).translate(_ESCAPES)


def number(value: float) -> str:
    """A coordinate, to a tenth, without needless zeros."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def element(name: str, content: str | None = None, /, **attributes: object) -> str:
    """One element; *content* is markup, None for an empty element. ``class_`` becomes ``class``, ``data_x`` ``data-x``."""
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            said = number(value) if isinstance(value, float) else escaped(str(value))
            words.append(f'{key.removesuffix("_").replace("_", "-")}="{said}"')
    return f"<{' '.join(words)}/>" if content is None else f"<{' '.join(words)}>{content}</{name}>"


def text(said: str, x: float, y: float, class_: str) -> str:
    """Text on a base line."""
    return element("text", escaped(said), x=float(x), y=float(y), class_=class_)


def rect(box: Box, class_: str, radius: float = 0, *, inset: float = 0, style: str | None = None) -> str:
    """A box, drawn *inset* within its own borders."""
    return element(
        "rect",
        x=float(box.x + inset),
        y=float(box.y + inset),
        width=float(box.width - 2 * inset),
        height=float(box.height - 2 * inset),
        rx=float(radius) if radius else None,
        class_=class_,
        style=style,
    )


def curve(points: tuple[Point, ...], class_: str, style: str | None = None) -> str:
    """A path: a start, and three points for each curve."""
    first, *rest = points
    told = f"M{number(first.x)} {number(first.y)}C" + " ".join(f"{number(each.x)} {number(each.y)}" for each in rest)
    return element("path", d=told, class_=class_, style=style)


def head(end: Point, tip: Point, class_: str) -> str:
    """The head of an arrow, from the end of its line to its tip."""
    along_x, along_y = tip.x - end.x, tip.y - end.y
    length = (along_x**2 + along_y**2) ** 0.5 or 1.0
    across_x, across_y = -along_y / length * 3.2, along_x / length * 3.2
    corners = ((tip.x, tip.y), (end.x + across_x, end.y + across_y), (end.x - across_x, end.y - across_y))
    return element("polygon", points=" ".join(f"{number(x)},{number(y)}" for x, y in corners), class_=class_)


def pill(said: str, x: float, y: float, *, causes: bool) -> str:
    """Numbers of couplings; filled where they begin with this step, open where they lead to it."""
    box = Box(x, y, pill_width(said), PILL)
    kind = "bl-causes" if causes else "bl-follows"
    return rect(box, kind, PILL / 2, inset=0.5) + text(said, x + 3.5, y + PILL - 3.2, f"bl-mono bl-number {kind}-text")


def pill_width(said: str) -> float:
    """How wide numbers of couplings are drawn."""
    return fixed_width(said, SMALL) + 7


def loop(x: float, y: float, class_: str) -> str:
    """The sign for an arrow that leads back to its own state; x and y are its upper left corner."""
    told = f"M{number(x + 3.2)} {number(y + 3.4)}A3.4 3.4 0 1 0 {number(x + 7)} {number(y + 4.2)}"
    corners = ((x + 5, y + 4.9), (x + 8.9, y + 5.1), (x + 7.7, y + 1.7))
    tip = element("polygon", points=" ".join(f"{number(a)},{number(b)}" for a, b in corners), class_=f"{class_} bl-head")
    return element("path", d=told, class_=class_) + tip


def piece(one: TextPiece, class_: str, *, faint: bool = False) -> str:
    """One piece of a label; *class_* colours the event, and the guard too if the whole is *faint*."""
    if one.role in (Role.CAUSES, Role.FOLLOWS):
        return pill(one.text, one.box.x, one.box.y, causes=one.role is Role.CAUSES)
    if one.role is Role.LOOP:
        return loop(one.box.x, one.box.y + 1, "bl-loop")
    classes = {
        Role.NAME: f"bl-mono bl-name {class_}",
        Role.EVENT: f"bl-mono {class_}",
        Role.GUARD: f"bl-mono {class_ if faint else 'bl-guard'}",
        Role.NOTE: f"bl-mono bl-note {class_}",
    }
    return text(one.text, one.box.x, one.box.y + one.box.height - 3, classes[one.role])


# --- colours -----------------------------------------------------------------------------------------------------------


def tone_class(tone: Tone) -> str:
    """The class of a tone, and of arrows into it."""
    return f"bl-{tone.name.lower()}"


def emphasis_class(emphasis: Emphasis) -> str:
    """The class of an emphasis."""
    return f"bl-{emphasis.name.lower()}"


def style(theme: Theme | None) -> str:
    """The style sheet: of one theme, or, without one, of both, chosen by the reader's system."""
    return themed(_SHAPES, lambda each: _colours(each.value), theme)


def themed(shapes: str, colours: Callable[[Theme], str], theme: Theme | None) -> str:
    """A style sheet from what all themes share and what each adds; without a theme the reader's system chooses."""
    if theme is not None:
        return shapes + colours(theme)
    return f"{shapes}{colours(Theme.LIGHT)}@media (prefers-color-scheme:dark){{\n{colours(Theme.DARK)}}}\n"


_SHAPES = f"""\
.bl-mono{{font-family:{FIXED_FONT};font-size:11px;white-space:pre}}
.bl-prose{{font-family:{PROSE_FONT};font-size:11px}}
.bl-name{{font-size:13px;font-weight:bold}}
.bl-number{{font-size:8.5px;font-weight:bold}}
.bl-note{{font-weight:bold}}
.bl-head1{{font-size:15px;font-weight:bold}}
.bl-strong{{font-weight:bold}}
.bl-line{{fill:none;stroke-width:1.3}}
.bl-line.bl-trouble{{stroke-width:1}}
.bl-line.bl-unused,.bl-box.bl-unused{{stroke-dasharray:3 3}}
.bl-line.bl-alarm,.bl-box.bl-alarm{{stroke-width:2.4}}
.bl-loop{{fill:none;stroke-width:1.2}}
.bl-follows{{stroke-width:1}}
"""


def _colours(palette: Palette) -> str:
    rules = [
        f".bl-ground{{fill:{palette.ground}}}",
        f".bl-panel,.bl-chip{{fill:{palette.panel}}}",
        f".bl-panel{{stroke:{palette.rule}}}",
        f".bl-text,.bl-strong{{fill:{palette.text}}}",
        f".bl-faint{{fill:{palette.faint}}}",
        f".bl-guard{{fill:{palette.guard}}}",
        f".bl-start{{fill:{palette.text}}}",
        f".bl-entry{{stroke:{palette.text}}}",
        f".bl-loop{{stroke:{palette.faint}}}",
        f".bl-loop.bl-head{{fill:{palette.faint};stroke:none}}",
        f".bl-causes{{fill:{palette.faint}}}",
        f".bl-causes-text{{fill:{palette.ground}}}",
        f".bl-follows{{fill:{palette.ground};stroke:{palette.faint}}}",
        f".bl-follows-text{{fill:{palette.faint}}}",
    ]
    tints = {tone_class(tone): tint for tone, tint in palette.tones.items()}
    tints |= {emphasis_class(emphasis): tint for emphasis, tint in palette.emphases.items()}
    for name, tint in tints.items():
        rules.append(
            f".bl-line.{name}{{stroke:{tint.line}}}.bl-head.{name}{{fill:{tint.line}}}.{name}-text{{fill:{tint.text}}}"
        )
        rules.append(f".bl-box.{name}{{fill:{tint.fill};stroke:{tint.line}}}")
    return "".join(f"{each}\n" for each in rules)
