"""All colours of drawings, pages and terminals. No other file names a colour; a test checks this.

A drawing of a lifecycle colours a state by its `Tone`, of which there are six. Pages and charts of a run must tell all states
of a machine apart, so there each state name has a colour of its own.
"""

from __future__ import annotations

import colorsys
import enum
import zlib
from collections.abc import Mapping

from attrs import frozen

from blocklife.drawing._picture import Emphasis
from blocklife.errors import DefinitionError
from blocklife.lifecycle import Tone
from blocklife.states import NATURES


@frozen
class Tint:
    """A colour in its three strengths: text, line and ground."""

    text: str
    line: str
    fill: str


@frozen
class Palette:
    """All colours of one theme. Text has a contrast of at least 4.5 to 1 on its background."""

    ground: str
    panel: str
    """The background of one machine's states."""
    text: str
    faint: str
    """Secondary text and lines."""
    rule: str
    guard: str
    alarm: str
    """The first illegal line of a run, and refusals."""
    load: str
    """The frame of a load on the lanes of a run."""
    tones: Mapping[Tone, Tint]
    emphases: Mapping[Emphasis, Tint]


class Theme(enum.Enum):
    """The two themes."""

    LIGHT = Palette(
        ground="#ffffff",
        panel="#f7f8fa",
        text="#1f2328",
        faint="#59636e",
        rule="#d1d9e0",
        guard="#7a4a00",
        alarm="#d0011b",
        load="#6f00c8",
        tones={
            Tone.REST: Tint("#3f4a56", "#818b98", "#eef1f4"),
            Tone.USE: Tint("#0550ae", "#2f7de1", "#e3f0ff"),
            Tone.COPY: Tint("#6639ba", "#8f63d9", "#f3ecff"),
            Tone.TROUBLE: Tint("#b3201f", "#d9534a", "#ffebe9"),
            Tone.OVER: Tint("#0b5f63", "#2c9297", "#def5f5"),
            Tone.FAILED: Tint("#8f3400", "#d9702b", "#fff1e2"),
        },
        emphases={
            Emphasis.PLAIN: Tint("#1f2328", "#818b98", "#ffffff"),
            Emphasis.USED: Tint("#0550ae", "#2f7de1", "#ddefff"),
            Emphasis.UNUSED: Tint("#6e7781", "#afb8c1", "#f6f8fa"),
            Emphasis.ALARM: Tint("#99286e", "#bf3989", "#ffeff7"),
        },
    )
    DARK = Palette(
        ground="#0d1117",
        panel="#141a21",
        text="#e6edf3",
        faint="#9198a1",
        rule="#3d444d",
        guard="#e3b341",
        alarm="#ff5c5c",
        load="#e2b0ff",
        tones={
            Tone.REST: Tint("#c9d1d9", "#7d8590", "#21262d"),
            Tone.USE: Tint("#79c0ff", "#388bfd", "#0f2a4d"),
            Tone.COPY: Tint("#d2a8ff", "#8957e5", "#2a1a47"),
            Tone.TROUBLE: Tint("#ff9d95", "#da5a52", "#48171a"),
            Tone.OVER: Tint("#76d9dc", "#2c9297", "#0c3335"),
            Tone.FAILED: Tint("#ffb784", "#d9702b", "#3d2008"),
        },
        emphases={
            Emphasis.PLAIN: Tint("#e6edf3", "#7d8590", "#0d1117"),
            Emphasis.USED: Tint("#79c0ff", "#388bfd", "#12305a"),
            Emphasis.UNUSED: Tint("#8b949e", "#484f58", "#161b22"),
            Emphasis.ALARM: Tint("#ff9bce", "#e85aad", "#42162f"),
        },
    )


TERMINAL_TONES: Mapping[Tone, str] = {
    Tone.REST: "",
    Tone.USE: "blue",
    Tone.COPY: "magenta",
    Tone.TROUBLE: "red",
    Tone.OVER: "cyan",
    Tone.FAILED: "yellow",
}
TERMINAL_EMPHASES: Mapping[Emphasis, str] = {
    Emphasis.USED: "blue",
    Emphasis.UNUSED: "dim",
    Emphasis.ALARM: "bold reverse red",
}
"""Colours by name; the terminal chooses the shades."""

STATE_COLOURS: Mapping[str, tuple[str, str]] = {
    "FREED": ("#e6ecf2", "#272c31"),
    "EMPTY": ("#e6ecf2", "#272c31"),
    "WAITING": ("#e6ecf2", "#272c31"),
    "CACHED": ("#8fd0f2", "#385a69"),
    "READY": ("#72c8eb", "#395a69"),
    "ALLOCATED": ("#74b596", "#8ea898"),
    "RUNNING": ("#4fb48b", "#65af8e"),
    "PLEDGED": ("#fbd95f", "#e8e38b"),
    "PLANNED": ("#efdc5b", "#e4dc71"),
    "LOADING": ("#6e3bb1", "#854afd"),
    "WRITING": ("#e48e26", "#e48e26"),
    "SEALED": ("#3b84db", "#58a0f7"),
    "DONE": ("#b1d6c1", "#094421"),
    "PENDING_STORE": ("#dba720", "#e0af0f"),
    "IN_FLIGHT": ("#cf7212", "#c07a1b"),
    "FLUSHED": ("#197270", "#67dde1"),
    "AWAITED": ("#197270", "#67dde1"),
    "STALE": ("#8c4c02", "#905a10"),
    "UNWANTED": ("#8c4c02", "#905a10"),
    "QUARANTINED": ("#6f0a66", "#c600b0"),
    "FAILED": ("#de01b9", "#f856a4"),
    "CANCELLED": ("#a2a3a3", "#49586a"),
    "PREEMPTED": ("#ea8000", "#e97e00"),
    "FINISHED": ("#a7c3e3", "#484f56"),
}
"""One colour for each state name, on a light and on a dark page.

The same name has the same colour in every machine, and related names have related colours: grey for rest, blue for final
content, green for use, yellow for a plan, orange for a running copy, violet for a load, brown and purple for places that a copy
may still touch. Readers who do not see red, green or blue can still tell the states of one machine apart;
`tests/drawing/test_viewer.py` checks this.
"""

if _bare := {state.name for state in NATURES} - STATE_COLOURS.keys():
    raise DefinitionError(f"no colour is given to {', '.join(sorted(_bare))}; write a light and a dark one into STATE_COLOURS")


def state_colours(name: str) -> tuple[str, str]:
    """The light and the dark colour of a state; an unknown name gets a fixed colour of its own."""
    return STATE_COLOURS.get(name) or (_made(name, 0.55), _made(name, 0.65))


def _made(name: str, lightness: float) -> str:
    hue = zlib.crc32(name.encode("utf-8", "replace")) % 360 / 360
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, 0.4))
