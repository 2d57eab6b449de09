"""The four kinds of trouble, by whose fault they are.

* `MisuseError`: the caller asked for what the tables or the contract forbid. Nothing has changed.
* `CapacityError`: lawful, but there is no room now. Nothing has changed; try again when something was given back.
* `LateError`: a message about something that is over. It is counted and ignored wherever a table declares it; it is raised
  only to those who ask about a job that is no longer known.
* `InvariantError`: our own bug, or memory that somebody changed behind the ledger's back.

The message of a refusal names the thing, the event, the state, what is in the way, and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "draw": ("pygraphviz>=2.0", "pymupdf-fonts>=1.0.5", "resvg-py>=0.3"),
    "torch": ("torch>=2.4",),
}
"""What each extra of the package brings, as `pyproject.toml` has it."""


def to_install(extra: str) -> str:
    """The command that brings what an extra would: it works wherever blocklife itself came from."""
    return f"pip install {' '.join(repr(each) for each in EXTRAS[extra])}"


class BlocklifeError(Exception):
    """The root of all errors that blocklife raises on purpose."""


class MisuseError(BlocklifeError):
    """The caller's fault; the call changed nothing."""


class DefinitionError(MisuseError, TypeError):
    """A lifecycle that cannot be right: refused when its class is created."""


class CapacityError(BlocklifeError):
    """No room now; the call changed nothing."""


class LateError(BlocklifeError):
    """A message about something that is over."""


class InvariantError(BlocklifeError):
    """A rule that must always hold does not: a bug in blocklife, or a ledger changed from outside."""


class RefusedError(MisuseError):
    """A lifecycle has no edge for this event in this state.

    ``thing`` names the machine and place, ``state`` its state, ``event`` what was asked. ``reason`` says what is in the way
    (it may be empty), ``remedy`` what to do about it. ``place`` is the number of the place, where it is one of many.
    """

    def __init__(self, thing: str, state: str, event: str, remedy: str, place: int | None = None, reason: str = "") -> None:
        because = f": {reason}" if reason else ""
        super().__init__(f"{thing}: cannot {event.upper()} while {state}{because} ({remedy})")
        self.thing = thing
        self.state = state
        self.event = event
        self.remedy = remedy
        self.place = place
        self.reason = reason

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, str, str, str, int | None, str]]:
        return type(self), (self.thing, self.state, self.event, self.remedy, self.place, self.reason)
