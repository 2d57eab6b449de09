"""One colour for each name of a state, in a light and in a dark page.

The same name has the same colour in every machine, and related names have related colours: grey is rest, blue final content,
green use, yellow a plan, orange a copy that runs, violet a load, brown and purple what a copy may still touch. Two states of
one machine stay apart for readers who do not see red, green or blue; `tests/drawing/test_viewer.py` computes it.
"""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Mapping

from blocklife.errors import DefinitionError
from blocklife.states import NATURES

PALETTE: Mapping[str, tuple[str, str]] = {
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

if _bare := {state.name for state in NATURES} - PALETTE.keys():
    raise DefinitionError(f"no colour is given to {', '.join(sorted(_bare))}")


def colours(name: str) -> tuple[str, str]:
    """The light and the dark colour of a state; a name that no machine has gets one of its own, always the same."""
    return PALETTE.get(name) or (_made(name, 0.55), _made(name, 0.65))


def _made(name: str, lightness: float) -> str:
    hue = zlib.crc32(name.encode("utf-8", "replace")) % 360 / 360
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, 0.4))
