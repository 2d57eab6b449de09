"""What can be read from the host tier and from the store below it, as events: told as it changes, until somebody takes it.

Rules of this file:

* An event is about one tier and says nothing of the other. Content may be in both: then it is told of each, and what is removed
  from one can still be read from the other.
* Of each tier content is told as stored and as removed in turns, beginning with stored.
* Content of the store below is told by what a scheduler hears of it: the store itself tells nothing. It is stored when every
  rank has put its part, or when the store is asked and has it; it is removed when the store is asked and lacks it, when it was
  wanted and did not come whole, and when all content is forgotten. Where the store says nothing, nothing is told.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import islice

from attrs import frozen

from blocklife.core._columns import Change
from blocklife.offload._lookup import Answer
from blocklife.offload.replacement import Name

_BELOW = -1
"""In the place of the slot of a change: content of the store below."""


class EventKind(enum.Enum):
    """What happened to content in a tier."""

    STORED = "it can be read from now on"
    REMOVED = "it cannot be read any more"


_KINDS = {True: EventKind.STORED, False: EventKind.REMOVED}


@frozen
class TierEvent:
    """One change of what can be read from a tier: contents of one group, in the order in which they changed."""

    kind: EventKind
    group: int
    keys: tuple[bytes, ...]
    below: bool = False
    """Whether the tier is the store below, and not host memory."""


class TierEvents:
    """The events of one scheduler's host tier and of the store below it. With *max_events* 0 none are kept.

    Invariant: ``_told`` is the content of the store below that was told as stored and not as removed since, at most
    ``_most_told``; what was heard of longest ago comes first. Initially it is empty, and ``_most_told`` is 0: nothing is told.
    """

    def __init__(self, max_events: int) -> None:
        self._changes: deque[Change] = deque(maxlen=max_events)
        self._told: OrderedDict[Name, None] = OrderedDict()
        self._most_told = 0
        self.lost = 0
        """Contents that events no longer name, because these were not taken in time."""

    def note(self, changes: Sequence[Change]) -> None:
        """Keep events of these changes, if any are kept; the oldest make room."""
        if most := self._changes.maxlen:
            self.lost += max(0, len(self._changes) + len(changes) - most)
            self._changes.extend(changes)

    def take(self) -> list[TierEvent]:
        """The events since the last call, in order. Changes in a row that are alike in kind, tier and group are one event."""
        found: list[TierEvent] = []
        keys: list[bytes] = []
        was_stored, was_below, last = True, False, -1
        for stored, slot, group, key in self._changes:
            below = slot == _BELOW
            if group != last or stored is not was_stored or below is not was_below:
                if keys:
                    found.append(TierEvent(_KINDS[was_stored], last, tuple(keys), was_below))
                was_stored, was_below, last, keys = stored, below, group, []
            keys.append(key)
        if keys:
            found.append(TierEvent(_KINDS[was_stored], last, tuple(keys), was_below))
        self._changes.clear()
        return found

    def begin_again(self, changes: Sequence[Change]) -> None:
        """Tell these and all that the store below has, to who was told that everything is gone."""
        self._changes.clear()
        self.note(changes)
        self.note([(True, _BELOW, *content) for content in self._told])

    # --- the store below ----------------------------------------------------------------------------------------------------

    @property
    def told(self) -> tuple[Name, ...]:
        """The content of the store below that was told; what was heard of longest ago comes first."""
        return tuple(self._told)

    def follow(self, most: int, told: Iterable[Name] = ()) -> None:
        """Tell of the store below from now on, of at most so many contents; these were *told* before."""
        self._most_told = most if self._changes.maxlen else 0
        self._told = OrderedDict.fromkeys(told)

    def heard_longest_ago(self, count: int) -> list[Name]:
        """So many of the contents that were told, or fewer if there are no more."""
        return list(islice(self._told, count))

    def hear(self, contents: Sequence[Name], answers: Sequence[Answer]) -> None:
        """The store below was asked for these."""
        if not self._most_told:
            return
        for content, answer in zip(contents, answers, strict=True):
            if answer is Answer.HIT:
                self.found([content])
            elif answer is Answer.MISS:
                self.lacking([content])
            elif answer is Answer.UNKNOWN and content in self._told:
                self._told.move_to_end(content)

    def found(self, contents: Iterable[Name]) -> None:
        """The store below has these. If more were told than may be, what was heard of longest ago is told as removed."""
        if not self._most_told:
            return
        told = self._told
        for content in contents:
            if content not in told:
                self.note([(True, _BELOW, *content)])
            told[content] = None
            told.move_to_end(content)
            if len(told) > self._most_told:
                self.lacking([next(iter(told))])

    def lacking(self, contents: Iterable[Name]) -> None:
        """The store below does not have these, or did not bring them."""
        for content in contents:
            if content in self._told:
                del self._told[content]
                self.note([(False, _BELOW, *content)])

    def forget(self) -> None:
        """Nothing of what the store below has is found any more."""
        self.lacking(self.told)
