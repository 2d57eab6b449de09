"""Compiled events of blocks and slots: one look-up per place, and the changes of its counts.

Rules of this file:

* Everything is derived from `states.py`; only states with a special meaning are named here, and nothing is decided.
* A row is a small number; its effects beyond the new state are a byte beside it (`BLOCK_MEANING`, `SLOT_MEANING`).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from tests.oracle.errors import DefinitionError
from tests.oracle.lifecycle import Column, Event, Table
from tests.oracle.states import Block, BlockLife, Slot, SlotLife, Trait, ends_life, states_with


def flags(table: Table, states: Collection[enum.Enum]) -> bytes:
    """For each byte whether it is the number of one of these states, so that `translate` tests a whole column at once."""
    return bytes(map({table.index[each] for each in states}.__contains__, range(256)))


def marked(column: Column, wanted: bytes) -> NDArray[np.bool_]:
    """For each place of a column whether it is in one of the states of `flags`."""
    return np.frombuffer(column.state.translate(wanted), dtype=np.bool_)


class Situation(enum.IntFlag):
    """What guards can ask about one place, as bits: each count is seen only as zero or more."""

    REFS = 1
    PINS = 2
    WRITES = 4
    OVERDUE = 8
    FENCE = 16
    OWN = 32
    OK = 64


COUNTS = 4
"""Bits of a `Situation` that are counts of the place; the other bits hold for all places of a batch, or come with it."""
OWN = int(Situation.OWN) >> COUNTS
"""Among those others: the place is still in the life that the caller means."""
FENCE = int(Situation.FENCE) >> COUNTS
"""Among those, too: the contract is fence."""
_MOST_STATES = 256 >> COUNTS
"""A state and the counts are one byte, so that many places are translated at once."""


def _facts_by_situation(event: Event) -> bytes:
    """Evaluate the guards of *event* once for every situation."""
    every = np.arange(1 << len(Situation))
    bits = {bit.name.lower(): int(bit) for bit in Situation if bit.name}
    payload = {name: (every & bits[name]) != 0 for name in event.parameters}
    # below FENCE the bits stand for counts
    facts = event.facts({name: on.view(np.uint8) if bits[name] < Situation.FENCE else on for name, on in payload.items()})
    return np.broadcast_to(np.asarray(facts, dtype=np.uint8), every.shape).tobytes()


class Rule:
    """One event of blocks or slots, ready to be asked at many places.

    ``tables`` gives the row by what is the same for all places (``situation >> 4``), and then by ``state << 4`` and the
    counts of the place; each has 256 entries, so that bytes are translated by it. ``looks`` has the bits of the counts that the
    guards ask about. `load` takes what `rows_of` makes of the event's own look-up.
    """

    __slots__ = ("_facts", "event", "looks", "name", "tables")

    def __init__(self, event: Event) -> None:
        if (states := len(event.table.states)) > _MOST_STATES:
            raise DefinitionError(
                f"{event.table.name}: {states} states and four counts do not fit one byte (at most {_MOST_STATES})"
            )
        self.event = event
        self.name = event.name
        self._facts = _facts_by_situation(event)
        self.looks = sum(1 << bit for bit, name in enumerate(("refs", "pins", "writes", "overdue")) if name in event.parameters)
        self.tables: tuple[bytes, ...] = ()
        self.load(self.rows_of(event.lut))

    def rows_of(self, lut: bytes) -> tuple[bytes, ...]:
        """The tables that follow from a look-up of the event."""
        width, states = len(self.event.guards), range(len(self.event.table.states))
        counts = range(1 << COUNTS)
        return tuple(
            bytes(lut[state << width | self._facts[constant << COUNTS | each]] for state in states for each in counts).ljust(
                256, b"\0"
            )
            for constant in range(1 << len(Situation) - COUNTS)
        )

    def load(self, tables: tuple[bytes, ...]) -> None:
        """Answer with these tables from now on."""
        self.tables = tables


BLOCK_RULES: Mapping[str, Rule] = {name: Rule(event) for name, event in BlockLife.table.events.items()}
SLOT_RULES: Mapping[str, Rule] = {name: Rule(event) for name, event in SlotLife.table.events.items()}
RULES: Mapping[str, Mapping[str, Rule]] = {"block": BLOCK_RULES, "slot": SLOT_RULES}


class CountedEvent:
    """One event as a verb takes it: how the counts of each place change with it, and what holds for all of its places.

    Guards see the counts as they will be afterwards; of a hand-out, whose guards ask about the life that ends
    (*about_old_life*), as they were. ``at`` says which of the rule's tables is asked, ``changes`` has the bits of the counts
    that change for guards, ``counted`` whether there is one. *situation* are bits of a `Situation` that hold for all places.
    """

    __slots__ = ("at", "changes", "counted", "overdue", "pins", "refs", "rule", "seen_refs", "writes")

    def __init__(
        self,
        rule: Rule,
        refs: int = 0,
        pins: int = 0,
        writes: int = 0,
        overdue: int = 0,
        situation: int = 0,
        *,
        about_old_life: bool = False,
    ) -> None:
        self.rule, self.refs, self.pins, self.writes, self.overdue = rule, refs, pins, writes, overdue
        self.seen_refs = 0 if about_old_life else refs
        self.at = situation >> COUNTS
        self.changes = bool(self.seen_refs) | bool(pins) << 1 | bool(writes) << 2 | bool(overdue) << 3
        self.counted = self.changes > 0


def _landing(load: bool, expired: bool, ok: bool) -> CountedEvent:
    return CountedEvent(BLOCK_RULES["land"], pins=-1, writes=-load, overdue=-expired, situation=Situation.OK * ok)


# What each verb does to blocks.
HAND_OUT = {
    fence: CountedEvent(BLOCK_RULES["allocate"], refs=+1, situation=Situation.FENCE * fence, about_old_life=True)
    for fence in (False, True)
}
"""By whether the contract is fence."""
ACQUIRE = CountedEvent(BLOCK_RULES["acquire"], refs=+1)
RELEASE = CountedEvent(BLOCK_RULES["release"], refs=-1)
SEAL = CountedEvent(BLOCK_RULES["seal"])
DROP = CountedEvent(BLOCK_RULES["drop"])
PLAN_STORE = CountedEvent(BLOCK_RULES["plan_store"], pins=+1)
PLAN_LOAD = CountedEvent(BLOCK_RULES["plan_load"], pins=+1, writes=+1)
SUBMIT = CountedEvent(BLOCK_RULES["submit"])
CANCEL = CountedEvent(BLOCK_RULES["cancel"], pins=-1)
EXPIRE = CountedEvent(BLOCK_RULES["expire"], overdue=+1)
LAND = {each: _landing(*each) for each in itertools.product((False, True), repeat=3)}
"""By whether a load has ended, whether its job was past its deadline, and whether all went well."""

# And to slots.
FILL = CountedEvent(SLOT_RULES["reserve"])
PIN = CountedEvent(SLOT_RULES["pin"], pins=+1)
UNPIN = CountedEvent(SLOT_RULES["unpin"], pins=-1)
EVICT = CountedEvent(SLOT_RULES["evict"])
FORGET = CountedEvent(SLOT_RULES["drop"])
NOT_FILLED = CountedEvent(SLOT_RULES["cancel"])
FILL_EXPIRED = CountedEvent(SLOT_RULES["expire"])
FILLED = {ok: CountedEvent(SLOT_RULES["land"], situation=Situation.OK * ok) for ok in (False, True)}
"""By whether all went well."""

# What a row means beyond its states, as bits by row index; derived from the states alone.
ENDS, ENTERS_FREE, LEAVES_FREE, PUBLISHES, WITHDRAWS = 1, 2, 4, 8, 16
_KEYED_SLOTS = states_with(Trait.KEYED, Slot)


def _meaning(table: Table, ends: Callable[..., bool], free: frozenset[enum.Enum]) -> bytes:
    found = bytearray([0])
    for row in table.rows:
        was, becomes = row.source in free, row.target in free
        readable, stays = row.source is Slot.READY, row.target is Slot.READY
        found.append(
            ENDS * ends(row)
            | ENTERS_FREE * (becomes and not was)
            | LEAVES_FREE * (was and not becomes)
            | PUBLISHES * (stays and not readable)
            | WITHDRAWS * (readable and not stays)
        )
    return bytes(found)


BLOCK_MEANING = _meaning(BlockLife.table, ends_life, states_with(Trait.FREE, Block))
SLOT_MEANING = _meaning(
    SlotLife.table,
    lambda row: row.source in _KEYED_SLOTS and row.target not in _KEYED_SLOTS,
    states_with(Trait.FREE, Slot),
)
