"""The four kinds of error, by who has to act.

* `MisuseError`: the caller asked for something that the tables or the contract forbid. Nothing has changed.
* `CapacityError`: the call is legal, but there is no room now. Nothing has changed; try again once something has been released.
* `LateError`: a message about something that is over. It is counted and ignored wherever a table allows it; it is raised only
  when the caller asks about a job that is no longer known.
* `InvariantError`: a bug in blocklife, or memory that was changed without the ledger.

The message of a refusal names the thing, the event, the state, what is in the way, and the remedy.
"""

from __future__ import annotations

MESSAGE_MAX = 2000
"""Maximum length of an error that is printed or logged as one line; longer ones are shortened."""


def one_line(text: str) -> str:
    """A message as one line that a terminal can show: what cannot be printed is spelt out, and the middle of a long one cut."""
    line = " ".join(text.splitlines())
    if len(line) > MESSAGE_MAX:
        line = f"{line[: MESSAGE_MAX // 2]} [...] {line[-MESSAGE_MAX // 2 :]}"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def plain_repr(thing: object) -> str:
    """The repr of a thing, without its address in memory."""
    import re

    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))


class BlocklifeError(Exception):
    """Base class of all errors that blocklife raises on purpose."""


class MisuseError(BlocklifeError):
    """The caller made a mistake; the call changed nothing."""


class DefinitionError(MisuseError, TypeError):
    """A lifecycle with a faulty definition; raised when its class is created."""


class CapacityError(BlocklifeError):
    """There is no room now; the call changed nothing."""


class LateError(BlocklifeError):
    """A message about something that is over."""


class InvariantError(BlocklifeError):
    """An invariant is broken: a bug in blocklife, or a ledger that was changed from outside."""


class InterruptedCallError(InvariantError):
    """An earlier call was interrupted (Ctrl-C, say) while it wrote. Half of a change was made: every further call is refused.

    The call that raises this has changed nothing.
    """


class RefusedError(MisuseError):
    """A lifecycle has no edge for this event in this state.

    ``thing`` names the machine and place, ``state`` is its state, ``event`` the event asked for. ``reason`` says what is in the
    way (may be empty), ``remedy`` what to do about it. ``place`` is the number of the place if it is one of many.
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
