"""Why the kernel refuses a call: a number for the reason, and what it is about. `ledger/_refusals.py` makes the sentence."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blocklife.core._rules import PlaceMove


class Why(enum.IntEnum):
    """The reason; `place` and `other` of a `KernelRefusal` are what is named in it."""

    NO_ROW = 0
    """The table has no row for the move of this place."""
    BELOW_ZERO = 1
    """A count of this place would fall below zero (I4); *other* is the bit of the count."""
    TOO_MANY = 2
    """A count of this place does not fit its column; *other* is the bit of the count."""
    LIFE_IS_OVER = 3
    """*place* is not in the life *other*."""
    NO_LIFE = 4
    """*other* is the life of no block."""
    TWICE = 5
    """A place is named twice in one call."""
    OTHER_GROUP = 6
    """The block was handed out for another group than *other*."""
    HELD_ALREADY = 7
    """The request has the life of this block in its table."""
    NOT_HELD = 8
    """The request does not have the life *other* of this block in its table."""
    NO_SLOT = 9
    """There is no such slot."""
    OTHER_KEY = 10
    """The block has another content than *other*, whose key is ``key``."""
    STORED = 11
    """Content *place* is stored already, in slot *other*."""
    NAMED_TWICE = 12
    """Content *place* is named twice in one job (I14)."""
    COMING = 13
    """Content *place* is on its way already, in slot *other*."""
    SLOT_OF_OTHER = 14
    """The slot has the content *other*, and not the one that is loaded."""
    NO_ROOM_FOR_JOBS = 15
    """All rows of jobs are in use; *other* are wanted."""
    NO_ROOM = 16
    """Too few blocks can be handed out to the request in row *place*, -1 for several; *other* are wanted."""
    NO_JOB_ROW = 17
    """The job (its row is *place*) has no row for the event *other*."""
    NO_REQUEST_ROW = 18
    """The request (its row is *place*) has no row for the event *other*."""
    NO_POSITION = 19
    """A position is not in the table, or is named twice."""
    TAKEN_AND_HANDED_OUT = 20
    """The block is a hit, and handed out in the same call."""
    PROMISED = 21
    """The planned store of this block will publish content *other*, and not ``key``."""
    GONE = 22
    """The request in row *place* of progress was ended, or has given its blocks back, beside its scheduler."""
    NO_BLOCK = 23
    """There is no block *other* that could be in a table."""
    UNEQUAL = 24
    """Of *place* blocks that are loaded, the slots or keys do not agree with them; there are *other* keys."""


class BrokenPair(enum.IntEnum):
    """What `_couplings.broken_pair` finds at a place of a job; 0 stands for nothing."""

    NAMED = 1
    """The job is over, and this block still names it."""
    UNPINNED = 2
    """The job is not over, and this block has no pin of it (I1)."""
    PUBLISHED = 3
    """The job did not bring it, and its content can be read in this slot (I6)."""


class KernelRefusal(Exception):  # noqa: N818 - it is no error of a user before it has become a sentence
    """A call is refused, and has changed nothing."""

    def __init__(self, why: int, place: int = 0, other: int = 0, move: PlaceMove | None = None, key: bytes = b"") -> None:
        super().__init__(why, place, other)
        self.why = Why(why)
        self.place = place
        self.other = other
        self.move = move
        """What the place should have done, of a refusal by a table."""
        self.key = key
        """The key that is named, of a refusal that is about content."""
