"""The colours of a light and of a dark drawing, and what they stand for.

Text keeps a contrast of at least 4.5 to 1 on the ground that it stands on; a test computes it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from attrs import frozen

from blocklife.drawing._picture import Emphasis
from blocklife.states import Tone


@frozen
class Tint:
    """A colour in its three strengths: text, line and ground."""

    text: str
    line: str
    fill: str


@frozen
class Palette:
    """All colours of one theme."""

    ground: str
    panel: str
    """What the states of one machine stand on."""
    text: str
    faint: str
    """Text and lines of less weight."""
    rule: str
    guard: str
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
        tones={
            Tone.REST: Tint("#3f4a56", "#818b98", "#eef1f4"),
            Tone.USE: Tint("#0550ae", "#2f7de1", "#e3f0ff"),
            Tone.COPY: Tint("#6639ba", "#8f63d9", "#f3ecff"),
            Tone.TROUBLE: Tint("#b3201f", "#d9534a", "#ffebe9"),
            Tone.OVER: Tint("#0b5f63", "#2c9297", "#def5f5"),
        },
        emphases={
            Emphasis.PLAIN: Tint("#1f2328", "#818b98", "#ffffff"),
            Emphasis.USED: Tint("#0550ae", "#2f7de1", "#ddefff"),
            Emphasis.UNUSED: Tint("#6e7781", "#afb8c1", "#f6f8fa"),
            Emphasis.ADDED: Tint("#116329", "#2da44e", "#dafbe1"),
            Emphasis.REMOVED: Tint("#a40e26", "#cf222e", "#ffebe9"),
            Emphasis.CHANGED: Tint("#7d4e00", "#bf8700", "#fff8c5"),
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
        tones={
            Tone.REST: Tint("#c9d1d9", "#7d8590", "#21262d"),
            Tone.USE: Tint("#79c0ff", "#388bfd", "#0f2a4d"),
            Tone.COPY: Tint("#d2a8ff", "#8957e5", "#2a1a47"),
            Tone.TROUBLE: Tint("#ff9d95", "#da5a52", "#48171a"),
            Tone.OVER: Tint("#76d9dc", "#2c9297", "#0c3335"),
        },
        emphases={
            Emphasis.PLAIN: Tint("#e6edf3", "#7d8590", "#0d1117"),
            Emphasis.USED: Tint("#79c0ff", "#388bfd", "#12305a"),
            Emphasis.UNUSED: Tint("#8b949e", "#484f58", "#161b22"),
            Emphasis.ADDED: Tint("#7ee787", "#2ea043", "#12351f"),
            Emphasis.REMOVED: Tint("#ffa198", "#f85149", "#4d1618"),
            Emphasis.CHANGED: Tint("#e3b341", "#bb8009", "#3b2a05"),
            Emphasis.ALARM: Tint("#ff9bce", "#e85aad", "#42162f"),
        },
    )
