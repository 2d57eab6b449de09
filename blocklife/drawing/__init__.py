"""Drawings and tables of lifecycles, all made from the compiled tables."""

from typing import TYPE_CHECKING

from blocklife._doors import door

if TYPE_CHECKING:
    from blocklife.drawing._dot import dot
    from blocklife.drawing._mermaid import mermaid
    from blocklife.drawing._notebook import disable, enable, load_ipython_extension, unload_ipython_extension
    from blocklife.drawing._page import page
    from blocklife.drawing._picture import Emphasis, Mark, Marks, Panel, Picture, picture
    from blocklife.drawing._png import png
    from blocklife.drawing._svg import svg
    from blocklife.drawing._tables import (
        coupling_table,
        event_table,
        guard_table,
        markdown,
        plain,
        row_table,
        state_event_table,
        state_table,
    )
    from blocklife.drawing._terminal import terminal
    from blocklife.drawing._theme import Theme

__all__ = [
    "Emphasis",
    "Mark",
    "Marks",
    "Panel",
    "Picture",
    "Theme",
    "coupling_table",
    "disable",
    "dot",
    "enable",
    "event_table",
    "guard_table",
    "load_ipython_extension",
    "markdown",
    "mermaid",
    "page",
    "picture",
    "plain",
    "png",
    "row_table",
    "state_event_table",
    "state_table",
    "svg",
    "terminal",
    "unload_ipython_extension",
]

if not TYPE_CHECKING:  # type checkers see only the imports above
    __getattr__, __dir__ = door(
        __name__,
        {
            "_dot": "dot",
            "_mermaid": "mermaid",
            "_notebook": "disable enable load_ipython_extension unload_ipython_extension",
            "_page": "page",
            "_picture": "Emphasis Mark Marks Panel Picture picture",
            "_png": "png",
            "_svg": "svg",
            "_tables": "coupling_table event_table guard_table markdown plain row_table state_event_table state_table",
            "_terminal": "terminal",
            "_theme": "Theme",
        },
    )
