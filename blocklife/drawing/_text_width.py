"""The width of text in any font that the reader may have.

A drawing is laid out before its font is known. Fixed-width fonts agree closely (0.6 of the size); for prose the widths of a
wide font are used, so that common fonts need less.
"""

from __future__ import annotations

import unicodedata

from blocklife.errors import DefinitionError

FIXED = 0.605
"""Width of a character in the widest common fixed-width font, relative to the font size."""

BOLD = 1.15
"""How much wider bold prose is, at most."""

_WIDTHS = {
    character: width / 100
    for width, characters in (
        (28, "\"'ijl"), (30, "IJ"), (32, " ,."), (34, "/:;\\|"), (36, "f"), (37, "-"), (40, "()[]t"), (41, "!"), (42, "r"),
        (50, "*_`"), (53, "sz"), (54, "?"), (55, "c"), (56, "L"), (58, "Fk"), (60, "vxy"), (61, "P"), (62, "TYaeo"),
        (64, "$0123456789ESbdghnpqu{}"), (66, "K"), (69, "ABVXZ"), (70, "CR"), (74, "U"), (75, "N"), (76, "H"), (78, "&DG"),
        (79, "OQ"), (82, "w"), (84, "#+<=>^~"), (87, "M"), (96, "%"), (98, "m"), (99, "W"),
    )
    for character in characters
}  # fmt: skip
_OTHER = 1.0


def fixed_width(text: str, size: float) -> float:
    """Width of text in a fixed-width font."""
    return round(sum(2 if _wide(each) else 1 for each in text) * FIXED * size, 2)


def prose_width(text: str, size: float, *, bold: bool = False) -> float:
    """Width of text in a proportional font; no common font needs more."""
    return round(sum(_WIDTHS.get(each, _OTHER) for each in text) * size * (BOLD if bold else 1), 2)


def wrapped(text: str, size: float, width: float) -> list[str]:
    """Prose in lines of that width; a word longer than a line is broken."""
    if width < 2 * size:
        raise DefinitionError(f"no text of size {size} can be set in {width}")
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if prose_width(longer, size) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        for character in word:
            if prose_width(lines[-1] + character, size) > width:
                lines.append("")
            lines[-1] += character
    return lines


def _wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"
