"""What `states.py` says, as bytes: the only file of the kernel that knows states, events and guards.

Rules of this file:

* Everything is derived from the tables, traits and couplings; nothing is decided. A state with a special meaning is found by
  its traits and rows, not by its name, wherever that is possible.
* The numbers here are those of the kernel; `states.py` counts states, events and rows.
"""

from __future__ import annotations

import enum
import itertools
from array import array
from collections.abc import Callable, Iterable, Mapping

from blocklife.core._rules import PlaceMove, Rules
from blocklife.errors import DefinitionError
from blocklife.lifecycle import Event, Table
from blocklife.states import (
    ADMISSIBLE,
    COPYING,
    COUPLINGS,
    GIVEN_UP,
    KEYED,
    LENT,
    LIFELESS,
    MACHINES,
    OUT,
    OUT_AND_WANTED,
    REVIVABLE,
    SLOTS_AT_REST,
    STORABLE,
    STORE_READS,
    TERMINAL,
    Block,
    BlockLife,
    Coupling,
    Job,
    JobLife,
    Request,
    RequestLife,
    Slot,
    SlotLife,
    Trait,
    coupled,
    ends_life,
    states_before,
    states_with,
)

# --- numbers of the kernel ---------------------------------------------------------------------------------------------

MACHINE_SHIFT = 5
"""The number of an event in the journal is ``machine << MACHINE_SHIFT | event``, both counted as in `states.MACHINES`."""
ID_MASK = (1 << 32) - 1
EPOCH_SHIFT = 32
LAST_EPOCH = (1 << 31) - 1
"""A life is ``epoch << EPOCH_SHIFT | block``. An epoch has 31 bits; after the last one comes 1 again."""

MOST_PLACE = (1 << 31) - 1
"""The largest number of a host place."""
NEVER = float("inf")
"""The deadline of a job whose deadline has not started."""
ENDLESS = 1 << 40
"""More tokens than a request has."""

# What a row means beyond the new state.
ENDS, ENTERS, LEAVES, PUBLISHES, WITHDRAWS = 1, 2, 4, 8, 16
# Counts of a place, as bits of a look-up.
REFS, PINS, WRITES, OVERDUE = 1, 2, 4, 8

# Traits of block states.
UNSEALED, KEPT, LENT_FIRST, LENT_LATER, DEAD_READ, FINAL, COPIED, OPEN, BEHIND, SOURCE = 1, 2, 4, 8, 16, 32, 64, 128, 256, 512
# Of slot states.
READABLE = 1
# Of job states.
PLANNED, AT_WORKERS, WANTED, OVER, EXPIRES, DONE, LATE = 1, 2, 4, 8, 16, 32, 64
# Of request states.
ADMISSIBLE_, ADMITTED_, GONE = 1, 2, 4

STORE, LOAD, DEMOTE, PROMOTE = range(4)

# Effects of couplings. Those up to LAST_OF_BLOCKS move the blocks of a job, those up to LAST_OF_SLOTS its slots.
EFFECTS = (
    "block.plan_store", "block.plan_load", "block.submit", "block.cancel", "block.expire", "block.land",
    "slot.reserve", "slot.pin", "slot.unpin", "slot.cancel", "slot.expire", "slot.drop", "slot.land",
    "job.quiesce", "request.plan_load", "request.loaded", "request.load_failed",
    "job.cancel", "job.flush", "job.abandon", "job.cancel|abandon", "block.release", "request.preempt", "block.drop",
)  # fmt: skip
(
    PLAN_STORE, PLAN_LOAD, SUBMIT, CANCEL, EXPIRE, LAND,
    RESERVE, PIN, UNPIN, NOT_FILLED, FILL_EXPIRED, FORGET, FILLED,
    PROVE_OLDER, TELL_WAITS, TELL_LOADED, TELL_FAILED,
    CANCEL_JOB, FLUSH_JOB, ABANDON_JOB, END_JOB, RELEASE, PREEMPT, DROP,
) = range(1, len(EFFECTS) + 1)  # fmt: skip
LAST_OF_BLOCKS, LAST_OF_SLOTS = LAND, FILLED
EFFECTS_A_ROW = 8
CAUSES = ("plan", "submit", "cancel", "finish", "expire")
"""Events of jobs that have couplings; ``quiesce`` couples as ``finish`` does."""
AT_PLAN, AT_SUBMIT, AT_CANCEL, AT_FINISH, AT_EXPIRE = range(len(CAUSES))

_JOB_EVENTS, _REQUEST_EVENTS = tuple(JobLife.table.events), tuple(RequestLife.table.events)
J_SUBMIT, J_CANCEL, J_FINISH, J_FLUSH, J_ABANDON, J_EXPIRE, J_QUIESCE = map(
    _JOB_EVENTS.index, ("submit", "cancel", "finish", "flush", "abandon", "expire", "quiesce")
)
R_ADMIT, R_PLAN_LOAD, R_LOADED, R_LOAD_FAILED, R_PREEMPT, R_FINISH = map(
    _REQUEST_EVENTS.index, ("admit", "plan_load", "loaded", "load_failed", "preempt", "finish")
)
JOB_MACHINE, REQUEST_MACHINE = (tuple(MACHINES).index(name) << MACHINE_SHIFT for name in ("job", "request"))
MORE, ALL_OK = (JobLife.table.events["finish"].bit(each) for each in JobLife.table.events["finish"].guards)
_FACT_BITS = 2
FREED, EMPTY, INITIAL_JOB, INITIAL_REQUEST = (table.index[table.initial] for table in MACHINES.values())
FINISHED = RequestLife.table.index[Request.FINISHED]


# --- look-ups of blocks and slots --------------------------------------------------------------------------------------


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
_MOST_STATES = 256 >> COUNTS


class Rule:
    """One event of blocks or slots, and the moves that ask it.

    ``tables`` gives the row by what is the same for all places (``situation >> 4``), and then by ``state << 4`` and the counts
    of the place. `load` takes what `rows_of` makes of the event's own look-up, for the whole process.
    """

    def __init__(self, event: Event, code: int) -> None:
        if (states := len(event.table.states)) > _MOST_STATES:
            raise DefinitionError(f"{event.table.name}: {states} states; the kernel has room for {_MOST_STATES}")
        self.event, self.code = event, code
        self._facts = _facts_by_situation(event)
        self.looks = sum(1 << bit for bit, name in enumerate(("refs", "pins", "writes", "overdue")) if name in event.parameters)
        self.tables = tuple(map(bytearray, self.rows_of(event.lut)))

    def rows_of(self, lut: bytes) -> tuple[bytes, ...]:
        """The tables that follow from a look-up of the event."""
        width, states, counts = len(self.event.guards), range(len(self.event.table.states)), range(1 << COUNTS)
        return tuple(
            bytes(lut[state << width | self._facts[constant << COUNTS | each]] for state in states for each in counts).ljust(
                256, b"\0"
            )
            for constant in range(1 << len(Situation) - COUNTS)
        )

    def load(self, tables: tuple[bytes, ...]) -> None:
        """Answer with these tables from now on."""
        for mine, given in zip(self.tables, tables, strict=True):
            mine[:] = given

    def move(
        self,
        refs: int = 0,
        pins: int = 0,
        writes: int = 0,
        overdue: int = 0,
        situation: int = 0,
        *,
        about_old_life: bool = False,
    ) -> PlaceMove:
        """The event as a verb takes it. Of a hand-out guards ask about the life that ends (*about_old_life*)."""
        seen = 0 if about_old_life else refs
        changes = bool(seen) * REFS | bool(pins) * PINS | bool(writes) * WRITES | bool(overdue) * OVERDUE
        machine = self.event.table.name.removesuffix("Life").lower()
        at, own = situation >> COUNTS, Situation.OWN >> COUNTS
        # of a slot that is not wanted nothing is OK
        ours = self.tables[at | own] if machine == "block" else self.tables[0]
        return PlaceMove(
            machine, self.event.name, self.code, situation, self.tables[at], ours, self.looks | changes,
            refs, seen, pins, writes, overdue,
        )  # fmt: skip


def _facts_by_situation(event: Event) -> bytes:
    """Evaluate the guards of *event* once for every situation that differs in what they ask."""
    asked = {bit.name.lower(): bit for bit in Situation if bit.name and bit.name.lower() in event.parameters}
    mask, known, found = sum(asked.values()), dict[int, int](), bytearray()
    for situation in range(1 << len(Situation)):
        at = situation & mask
        if at not in known:
            # below FENCE the bits stand for counts
            payload = {name: int(bool(at & bit)) if bit < Situation.FENCE else bool(at & bit) for name, bit in asked.items()}
            holds = [each.test(**{name: payload[name] for name in each.parameters}) for each in event.guards]
            known[at] = sum(bool(hold) << bit for bit, hold in enumerate(holds))
        found.append(known[at])
    return bytes(found)


def _rules_of(machine: str) -> Mapping[str, Rule]:
    first = tuple(MACHINES).index(machine) << MACHINE_SHIFT
    return {name: Rule(event, first | at) for at, (name, event) in enumerate(MACHINES[machine].events.items())}


BLOCK_RULES, SLOT_RULES = _rules_of("block"), _rules_of("slot")
RULES_OF: Mapping[str, Mapping[str, Rule]] = {"block": BLOCK_RULES, "slot": SLOT_RULES}
EVENTS = {
    at << MACHINE_SHIFT | number: (machine, event)
    for at, (machine, table) in enumerate(MACHINES.items())
    for number, event in enumerate(table.events)
}
"""Machine and event by their number in the journal."""


# --- states and rows ---------------------------------------------------------------------------------------------------


def _traits(states: type[enum.Enum], *bits: tuple[int, frozenset[enum.Enum]]) -> array[int]:
    return array("H", [sum(bit for bit, members in bits if state in members) for state in states])


_READABLE = states_with(Trait.KEYED, Slot) & SLOTS_AT_REST


def _meaning(table: Table, ends: Callable[..., bool], free: frozenset[enum.Enum]) -> bytearray:
    found = bytearray([0])
    for row in table.rows:
        was, becomes = row.source in free, row.target in free
        readable, stays = row.source in _READABLE, row.target in _READABLE
        found.append(
            ENDS * ends(row)
            | ENTERS * (becomes and not was)
            | LEAVES * (was and not becomes)
            | PUBLISHES * (stays and not readable)
            | WITHDRAWS * (readable and not stays)
        )
    return found


def _rows_of(table: Table) -> bytearray:
    """The row of each event of jobs or requests, by ``event << 6 | state << 2 | facts``."""
    found = bytearray(len(table.events) << 6)
    for at, event in enumerate(table.events.values()):
        width = len(event.guards)
        if width > _FACT_BITS or len(table.states) > 16:
            raise DefinitionError(f"{table.name}.{event.name}: the kernel has room for {_FACT_BITS} guards and 16 states")
        for state in range(len(table.states)):
            for facts in range(1 << width):
                found[at << 6 | state << 2 | facts] = event.lut[state << width | facts]
    return found


_KINDS = ("store", "load", "demote", "promote")
_OF_JOBS = EFFECTS[:TELL_FAILED]
_KNOWN: Mapping[str, tuple[str, ...]] = {
    **{f"job.{event}({kind})": _OF_JOBS for event in CAUSES for kind in _KINDS if event != "submit"},
    "job.submit": _OF_JOBS,
    "block.*": ("job.cancel",),
    "block.allocate": ("job.flush",),
    "request.preempt|finish|load_failed": ("job.cancel|abandon", "block.release"),
    "ledger.reset": ("request.preempt", "job.cancel", "job.abandon", "block.drop", "slot.drop"),
}
"""The effects that the kernel carries out, by cause; all kinds of jobs are submitted alike."""


def _check(couplings: Iterable[Coupling]) -> None:
    """Refuse a row that would not run."""
    for row in couplings:
        if row.cause not in _KNOWN:
            raise DefinitionError(f"coupling {row.name}: nothing in the kernel looks for effects of {row.cause}")
        for effect in row.effects:
            if effect not in _KNOWN[row.cause]:
                raise DefinitionError(f"coupling {row.name}: {row.cause} cannot have the effect {effect} in the kernel")


def _effects_of(effects: tuple[str, ...]) -> bytes:
    if len(effects) > EFFECTS_A_ROW or sum(each.startswith("block.") for each in effects) > 1:
        raise DefinitionError(f"{', '.join(effects)}: a coupling has at most {EFFECTS_A_ROW} effects, and one on blocks")
    return bytes(EFFECTS.index(each) + 1 for each in effects).ljust(EFFECTS_A_ROW, b"\0")


def _job_effects() -> bytearray:
    found = bytearray(len(CAUSES) * 4 * 16 * EFFECTS_A_ROW)
    for cause, event in enumerate(CAUSES):
        for direction, kind in enumerate(_KINDS):
            for into in Job:
                name = f"job.{event}" if event == "submit" else f"job.{event}({kind})"
                at = ((cause * 4 + direction) * 16 + JobLife.table.index[into]) * EFFECTS_A_ROW
                found[at : at + EFFECTS_A_ROW] = _effects_of(coupled(name, into))
    return found


def _hand_out_effects() -> bytearray:
    return bytearray(b"".join(_effects_of(coupled("block.allocate", into)) for into in Block))


def _effects_by_cause(cause: str) -> bytearray:
    (row,) = (row for row in COUPLINGS if row.cause == cause)
    return bytearray(_effects_of(row.effects))


def _moves_of_effects() -> list[PlaceMove]:
    """The move of each effect that is the same for all jobs; the others stand for nothing."""
    block, slot = BLOCK_RULES, SLOT_RULES
    own = {
        PLAN_STORE: block["plan_store"].move(pins=+1),
        PLAN_LOAD: block["plan_load"].move(pins=+1, writes=+1),
        SUBMIT: block["submit"].move(),
        CANCEL: block["cancel"].move(pins=-1),
        EXPIRE: block["expire"].move(overdue=+1),
        RESERVE: slot["reserve"].move(),
        PIN: slot["pin"].move(pins=+1),
        UNPIN: slot["unpin"].move(pins=-1),
        NOT_FILLED: slot["cancel"].move(),
        FILL_EXPIRED: slot["expire"].move(),
        FORGET: slot["drop"].move(),
    }
    nothing = PlaceMove("", "", 0, 0, bytearray(256), bytearray(256), 0, 0, 0, 0, 0, 0)
    return [own.get(effect, nothing) for effect in range(len(EFFECTS) + 1)]


def _make() -> Rules:
    _check(COUPLINGS)
    rules = Rules()
    free_blocks, free_slots = states_with(Trait.FREE, Block), states_with(Trait.FREE, Slot)
    keyed_slots = states_with(Trait.KEYED, Slot)
    first = LENT - STORE_READS  # their job is not submitted
    sealable = states_before(BlockLife.table.events["seal"], Block)
    landing = {row.source for row in BlockLife.table.events["land"].rows if row.target in sealable}
    rules.block_target, rules.block_meaning = (
        bytearray(BlockLife.table.targets),
        _meaning(BlockLife.table, ends_life, free_blocks),
    )
    rules.block_trait = _traits(
        Block, (UNSEALED, COPYING - KEYED), (KEPT, REVIVABLE), (LENT_FIRST, first), (LENT_LATER, LENT - first),
        (DEAD_READ, LENT & LIFELESS), (FINAL, KEYED), (COPIED, COPYING),
        (OPEN, sealable - COPYING), (BEHIND, frozenset(landing) - sealable), (SOURCE, STORABLE),
    )  # fmt: skip
    rules.slot_target = bytearray(SlotLife.table.targets)
    rules.slot_meaning = _meaning(
        SlotLife.table, lambda row: row.source in keyed_slots and row.target not in keyed_slots, free_slots
    )
    rules.slot_trait = _traits(Slot, (READABLE, _READABLE))
    rules.job_target, rules.job_rows = bytearray(JobLife.table.targets), _rows_of(JobLife.table)
    rules.job_trait = _traits(
        Job, (PLANNED, frozenset({Job.PLANNED})), (AT_WORKERS, OUT), (WANTED, OUT_AND_WANTED), (OVER, TERMINAL),
        (EXPIRES, states_before(JobLife.table.events["expire"], Job)), (DONE, frozenset({Job.DONE})),
        (LATE, GIVEN_UP - states_before(JobLife.table.events["expire"], Job)),
    )  # fmt: skip
    rules.request_target, rules.request_rows = bytearray(RequestLife.table.targets), _rows_of(RequestLife.table)
    rules.request_trait = _traits(
        Request, (ADMISSIBLE_, ADMISSIBLE), (ADMITTED_, states_with(Trait.ADMITTED, Request)),
        (GONE, states_with(Trait.OVER, Request)),
    )  # fmt: skip
    rules.effects, rules.handed_out = _job_effects(), _hand_out_effects()
    rules.life_ends = _effects_by_cause("block.*")
    rules.gives_up = _effects_by_cause("request.preempt|finish|load_failed")
    rules.resets = _effects_by_cause("ledger.reset")
    rules.moves = _moves_of_effects()
    land, filled, allocate = BLOCK_RULES["land"], SLOT_RULES["land"], BLOCK_RULES["allocate"]
    rules.land = [
        land.move(pins=-1, writes=-load, overdue=-late, situation=Situation.OK * ok)
        for load, late, ok in itertools.product((0, 1), repeat=3)
    ]
    rules.filled = [filled.move(situation=Situation.OK * ok) for ok in (0, 1)]
    rules.hand_out = [allocate.move(refs=+1, situation=Situation.FENCE * fence, about_old_life=True) for fence in (0, 1)]
    rules.acquire, rules.release = BLOCK_RULES["acquire"].move(refs=+1), BLOCK_RULES["release"].move(refs=-1)
    rules.seal, rules.drop = BLOCK_RULES["seal"].move(), BLOCK_RULES["drop"].move()
    rules.evict, rules.forget = SLOT_RULES["evict"].move(), rules.moves[FORGET]
    rules.pin, rules.unpin = rules.moves[PIN], rules.moves[UNPIN]
    return rules


RULES = _make()
"""The rules of every kernel of this process."""
