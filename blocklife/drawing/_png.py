"""A drawing as PNG: the SVG is rendered with fonts from a package.

Installed fonts are not used, so that the same drawing gives the same pixels everywhere, except for letters that the package's
fonts lack (they have Latin, Greek and Cyrillic).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from blocklife.drawing._picture import Panel
from blocklife.drawing._svg import svg
from blocklife.drawing._theme import Theme
from blocklife.errors import MisuseError
from blocklife.extras import to_install

SCALE = 2.0
"""Pixels for each unit of the drawing, to be sharp on a high-resolution screen."""

_FONTS = {"fimo": "Fira Mono", "fimbo": "Fira Mono Bold", "figo": "FiraGO", "figbo": "FiraGO Bold"}


def png(panels: Sequence[Panel], theme: Theme | None = None) -> bytes:
    """Draw lifecycles as PNG; without a theme it is light, because an image of pixels cannot follow the reader's settings."""
    return pixels(svg(panels, theme or Theme.LIGHT))


def pixels(drawn: str) -> bytes:
    """Any SVG of one theme as PNG."""
    try:
        import resvg_py
        from pymupdf_fonts import myfont
    except ImportError as problem:
        raise MisuseError(f"drawing png needs resvg_py and pymupdf-fonts ({to_install('draw')}): {problem}") from problem
    with tempfile.TemporaryDirectory(prefix="blocklife-fonts-") as folder:
        files = [Path(folder, f"{name}.otf") for name in _FONTS]
        for path in files:
            path.write_bytes(myfont(path.stem))
        try:
            return resvg_py.svg_to_bytes(
                svg_string=drawn,
                zoom=SCALE,
                skip_system_fonts=not any(ord(each) > 0x52F and not 0x2000 <= ord(each) < 0x2300 for each in drawn),
                font_files=[str(path) for path in files],
                monospace_family="Fira Mono",
                sans_serif_family="FiraGO",
            )
        except ValueError as problem:
            raise MisuseError(f"the drawing cannot be rendered as PNG: {problem}") from problem
