"""The recent events of each block, in a compact form, and the violations not reported yet."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import TypeAlias

from attrs import define, field

from blocklife.ledger._ids import EPOCH_SHIFT, ID_MASK
from blocklife.watch._violations import WatchViolation

HISTORY = 16
"""How many events are kept of each block."""
_MARKS = 8

Event: TypeAlias = tuple[int, int, str, tuple[object, ...], tuple[int, ...], Sequence[int | None] | None]
"""One event: its number, its step, its text as a template with arguments, the lives of its blocks, and their positions in a
table, if any. All its blocks share it, since a step makes many. It consists of tuples only, which the garbage collector stops
tracking."""


@define(eq=False)
class BlockHistory:
    """Events of the blocks of one pool. Each block keeps its last few, so that memory does not grow with the run."""

    epoch: Sequence[int]
    steps: int = 0
    """Steps of the connector so far."""
    draw: str = ""
    """The command that draws a block, with ``{block}`` in it."""
    counts: Counter[str] = field(factory=Counter)
    found: list[WatchViolation] = field(factory=list)
    """Violations not reported yet."""
    _order: int = 0
    _events: list[deque[Event] | None] = field(init=False)
    """The last events of each block."""
    _marks: deque[tuple[int, int, str]] = field(factory=lambda: deque(maxlen=_MARKS))

    def __attrs_post_init__(self) -> None:
        self._events = [None] * len(self.epoch)

    def note(self, blocks: Sequence[int], what: str, *of: object) -> None:
        """Note one event for each of these blocks."""
        epoch = self.epoch
        self._add(blocks, tuple([epoch[block] << EPOCH_SHIFT | block for block in blocks]), None, what, of)

    def note_places(self, lives: Sequence[int], positions: Sequence[int | None], what: str, *of: object) -> None:
        """Note one event for these lives, each at a position of a table; the position is the last argument of the template."""
        places = positions if type(positions) is range else tuple(positions)
        self._add([life & ID_MASK for life in lives], tuple(lives), places, what, of)

    def _add(
        self,
        blocks: Sequence[int],
        lives: tuple[int, ...],
        positions: Sequence[int | None] | None,
        what: str,
        of: tuple[object, ...],
    ) -> None:
        self._order += 1
        events = self._events
        event = (self._order, self.steps, what, of, lives, positions)
        for block in blocks:
            if (kept := events[block]) is None:
                kept = events[block] = deque(maxlen=HISTORY)
            kept.append(event)

    def mark(self, what: str) -> None:
        """Note an event that concerns every block."""
        self._order += 1
        self._marks.append((self._order, self.steps, what))

    def knows(self, block: int) -> bool:
        """Whether anything was ever noted of a block."""
        return 0 <= block < len(self._events) and self._events[block] is not None

    def history(self, block: int) -> tuple[str, ...]:
        """The last events of a block, oldest first."""
        events = (self._events[block] if self.knows(block) else None) or ()
        since = events[0][0] if events else self._order
        told = [(event[0], _told(event, block)) for event in events]
        told += [(order, f"step {step}: {what}") for order, step, what in self._marks if order > since]
        return tuple(text for _, text in sorted(told))

    def violation(
        self, rule: str, what: str, *, block: int | None = None, request: str | None = None, job: int | None = None
    ) -> WatchViolation:
        """A violation, with all that is known of its block now."""
        epoch = self.epoch
        known = block is not None and 0 < block < len(epoch)
        return WatchViolation(
            rule=rule,
            what=what,
            step=self.steps,
            block=block,
            life=epoch[block] if known and block is not None else None,
            request=request,
            job=job,
            history=() if block is None else self.history(block),
            draw="" if block is None or not self.draw else self.draw.format(block=block),
        )

    def add(self, violation: WatchViolation) -> None:
        """Keep a violation to be reported once the mirror has caught up with the engine."""
        self.counts[violation.rule] += 1
        self.found.append(violation)

    def violate(
        self, rule: str, what: str, *, block: int | None = None, request: str | None = None, job: int | None = None
    ) -> None:
        """`violation` and `add`."""
        self.add(self.violation(rule, what, block=block, request=request, job=job))


def _told(event: Event, block: int) -> str:
    _, step, what, of, lives, positions = event
    at = [life & ID_MASK for life in lives].index(block)
    if positions is not None:
        of = (*of, "" if (position := positions[at]) is None else f", position {position}")
    return f"step {step}, life {lives[at] >> EPOCH_SHIFT}: {what.format(*of)}"
