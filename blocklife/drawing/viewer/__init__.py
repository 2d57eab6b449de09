"""The page of a run: one HTML file that needs no network and no other file.

Rules of this file:

* The page is a template with three gaps: its style, its script, and the run as JSON.
* The script is `data.js`, `paint.js`, `page.js` and `panel.js`, concatenated; `data.js` says how data flows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources

from blocklife.drawing import _elements as elements
from blocklife.drawing._picture import Emphasis
from blocklife.drawing._theme import Palette
from blocklife.drawing.viewer._run import MAX_EVENTS, ViewSettings, told_run
from blocklife.lifecycle import Tone
from blocklife.recording._checking import CheckVerdict
from blocklife.recording._lives import Lives

__all__ = ["MAX_EVENTS", "ViewSettings", "view"]

_SCRIPTS = ("data.js", "paint.js", "page.js", "panel.js")


def view(
    lives: Lives,
    verdict: CheckVerdict,
    settings: ViewSettings,
    drawings: Mapping[str, str] | None = None,
    *,
    undrawn: str = "",
) -> str:
    """The page. *drawings* has an SVG for each machine, in which states are named by ``data-state`` and rows by ``data-row``;
    a machine without one is shown as a list of its states, below the sentence *undrawn*, which says why. Raises `MisuseError`
    if there is nothing, or too much, to show.
    """
    told = {**told_run(lives, verdict, settings, drawings or {}), "undrawn": undrawn}
    gaps = {
        "title": elements.escaped(str(told["name"])),
        "style": elements.themed(_part("page.css"), lambda each: _colours(each.value), None),
        "recording": json.dumps(told, separators=(",", ":")).replace("<", "\\u003c"),
        "script": "\n".join(_part(name) for name in _SCRIPTS),
    }
    first, *rest = _part("page.html").split("{{")
    pieces = [first]
    for part in rest:
        name, _, text = part.partition("}}")
        pieces += [gaps[name], text]
    return "".join(pieces)


def _colours(palette: Palette) -> str:
    """The colours of the page as variables of its style sheet."""
    named = {
        "ground": palette.ground,
        "panel": palette.panel,
        "ink": palette.text,
        "faint": palette.faint,
        "rule": palette.rule,
        "alarm": palette.alarm,
        "alarm-ground": palette.tones[Tone.TROUBLE].fill,
        "store": palette.text,
        "load": palette.load,
        "focus": palette.tones[Tone.USE].text,
        "pressed": palette.emphases[Emphasis.USED].fill,
    }
    return f":root {{ {' '.join(f'--{name}: {colour};' for name, colour in named.items())} }}\n"


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
