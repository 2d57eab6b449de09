"""READ FIRST: the four lifecycles of the KV cache and the couplings between them.

Rules of this file:

* Every rule that can be a table row is one. A step without a row is refused.
* This file decides what is legal. It does not know which block is chosen, when a copy runs, or how states are stored.
* The properties of each state are one row of `BLOCKS`, `SLOTS`, `JOBS` or `REQUESTS`. Sets of states elsewhere are derived from
  these tables. A state without a row is an error at import.
* The machines do not know each other. Where two must move together, a row of `COUPLINGS` says so.

Theory. There are four machines. A *block* is a place on the device, a *slot* a place in the tier below; a *job* moves bytes
between them; a *request* holds blocks. Three counts belong to a place and are orthogonal to its state: `refs`, the requests
that hold its life; `pins`, the jobs whose copy may still touch the place; `overdue`, the pins whose job is past its deadline.
Refs and content belong to the life, pins to the physical place. When a life ends while a copy still reads it, the place has to
wait for the copy; the life does not. Guards get the counts as payload, as they are *after* the change that the event makes.

A life begins with `allocate` and ends when its content is forgotten or its block is handed out again. A released block keeps
its life until then: a hit can revive it, and a store can read it. `ends_life` tells which rows end a life; the ledger then
raises the epoch, so that every older reference is stale.

Two contracts govern a block that a copy still reads. Under *hold* it is not handed out until the copy has landed. Under *fence*
it may be handed out at once; for the new tenant it is FLUSHED until the wait in the same plan is proven. Under both, a block
that a load may still write is not handed out.

Unusual arrows, and why they exist:

* Block `ALLOCATED --plan_store--> PLEDGED`: engines plan a store in the step that computes the content. The job cannot be
  submitted from there: `submit` has no row before `seal`.
* Block `IN_FLIGHT --release--> IN_FLIGHT`: the last holder lets go of a block that a copy reads; its next state is decided
  when the copy lands.
* Block `FLUSHED --land--> ALLOCATED`: no guard checks for other pins. At most one store reads a place, and a place is never
  handed out while a load writes it, so the landing copy is the only one that the new tenant waits for.
* Job `DONE --finish--> DONE` and its two siblings: a late or repeated report is legal. It is counted and changes nothing.
* Job `QUARANTINED --finish--> FAILED`: the copy landed after its deadline. Its places are safe again, but the job has failed.

Not decided here: which places a verb applies to; whether a *reference* is stale, which is a comparison of epochs and not a
state. The ledger has the effects of every coupling from its row, and takes them in the order written. Which causes it looks up,
and which effects it can carry out, is in `core/_tables.py`; a row with another cause or effect is an error at import.

Below the slots there may be a store that somebody else owns (`specs/tiers.md`): other processes put content there, and it may
vanish or be slow or down. It has no places here. Two kinds of jobs reach it: a *demotion* copies READY slots to it and pins
them as a load does; a *promotion* fills slots from it, and reserves and publishes them as a store does. Neither touches a
block.

Two things these tables do not allow: submitting from PLEDGED with the event of the producing step (costs one step under
asynchronous scheduling), and a copy between the device and the store below that bypasses the slots.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from attrs import frozen

from blocklife.errors import DefinitionError
from blocklife.lifecycle import Event, Lifecycle, Row, Table, Tone, edge, guard


@enum.unique
class Block(enum.Enum):
    """The state of one place on the device."""

    FREED = "no holder and no content; no copy touches it"
    CACHED = "content final, held by no request; a hit revives it, or it is handed out again"
    ALLOCATED = "held, content not final"
    PLEDGED = "held, content not final; already the source of a planned store"
    LOADING = "held; the load that fills it is planned or running"
    SEALED = "held, content final"
    PENDING_STORE = "content final; source of a store that is not submitted yet"
    IN_FLIGHT = "content final; a submitted store reads it"
    FLUSHED = "held by a new tenant; the wait for the old copy is ordered but not proven"
    STALE = "its life is over, but a copy still touches it"
    QUARANTINED = "its life is over, but a copy past its deadline may still touch it; never handed out"


@enum.unique
class Slot(enum.Enum):
    """The state of one place in the lower tier."""

    EMPTY = "nothing in it"
    WRITING = "a store or a promotion fills it"
    READY = "final content under its key; loads and demotions may pin it"
    STALE = "its key is forgotten, but a load, a demotion or a lookup still pins it"
    QUARANTINED = "a store or promotion past its deadline may still write it"


@enum.unique
class Job(enum.Enum):
    """The state of one asynchronous transfer."""

    PLANNED = "places reserved, nothing submitted"
    IN_FLIGHT = "handed to the workers; cannot be called back"
    AWAITED = "in flight, and a plan waits for it to land; success still publishes"
    UNWANTED = "nobody wants its result; its places stay pinned until it lands"
    QUARANTINED = "past its deadline; failed for its caller, but its places stay pinned until it is proven quiet"
    DONE = "every worker moved every byte"
    FAILED = "a worker failed, reported too late or not at all; nothing was published"
    CANCELLED = "given up; nothing was published"


@enum.unique
class Request(enum.Enum):
    """The state of one request, as far as its blocks are concerned."""

    WAITING = "holds nothing"
    RUNNING = "in the batch"
    LOADING = "waits for its load; not in the batch"
    PREEMPTED = "gave its blocks back; will be admitted again"
    FINISHED = "over"


# --- what each state is ------------------------------------------------------------------------------------------------


@enum.unique
class Trait(enum.Enum):
    """A property that some states have and the others do not."""

    FREE = "can be handed out at once, without giving up or waiting for a copy"
    ALIVE = "the epoch of the block names a life"
    HELD = "at least one request holds the life"
    KEYED = "found under its key: the content of a block is final, that of a slot is final or on its way"
    COPYING = "one store has the life as its source"
    READ = "a submitted copy may read the place"
    WRITTEN = "a submitted copy may write the place"
    OUT = "the workers have the job"
    WANTED = "somebody wants the result of the job"
    ADMITTED = "the request runs or loads, and can be preempted"
    OVER = "final: no other state follows"


@frozen(init=False)
class Nature:
    """The properties of one state."""

    tone: Tone
    traits: frozenset[Trait]

    def __init__(self, tone: Tone, *traits: Trait) -> None:
        self.__attrs_init__(tone, frozenset(traits))


StateT = TypeVar("StateT", bound=enum.Enum)


def natures(states: type[StateT], given: Mapping[StateT, Nature]) -> Mapping[enum.Enum, Nature]:
    """The table *given*, read-only. Raises `DefinitionError` unless it has a row for every state and for nothing else."""
    if unknown := [state for state in given if not isinstance(state, states)]:
        raise DefinitionError(f"{unknown[0]} is not a state of {states.__name__}")
    if forgotten := [state.name for state in states if state not in given]:
        raise DefinitionError(f"{states.__name__}: no row for {', '.join(forgotten)}; give each a tone and its traits")
    return MappingProxyType({state: given[state] for state in states})


BLOCKS = natures(
    Block,
    {
        Block.FREED: Nature(Tone.REST, Trait.FREE),
        Block.CACHED: Nature(Tone.REST, Trait.FREE, Trait.ALIVE, Trait.KEYED),
        Block.ALLOCATED: Nature(Tone.USE, Trait.ALIVE, Trait.HELD),
        Block.PLEDGED: Nature(Tone.COPY, Trait.ALIVE, Trait.HELD, Trait.COPYING),
        Block.LOADING: Nature(Tone.COPY, Trait.ALIVE, Trait.HELD, Trait.READ, Trait.WRITTEN),
        Block.SEALED: Nature(Tone.USE, Trait.ALIVE, Trait.HELD, Trait.KEYED),
        Block.PENDING_STORE: Nature(Tone.COPY, Trait.ALIVE, Trait.KEYED, Trait.COPYING),
        Block.IN_FLIGHT: Nature(Tone.COPY, Trait.ALIVE, Trait.KEYED, Trait.COPYING, Trait.READ),
        Block.FLUSHED: Nature(Tone.COPY, Trait.ALIVE, Trait.HELD, Trait.READ),
        Block.STALE: Nature(Tone.TROUBLE, Trait.READ, Trait.WRITTEN),
        Block.QUARANTINED: Nature(Tone.TROUBLE, Trait.READ, Trait.WRITTEN),
    },
)
"""Under the fence contract a load may be planned while an older store still reads its target, so `LOADING` has READ, too."""

SLOTS = natures(
    Slot,
    {
        Slot.EMPTY: Nature(Tone.REST, Trait.FREE),
        Slot.WRITING: Nature(Tone.COPY, Trait.KEYED, Trait.WRITTEN),
        Slot.READY: Nature(Tone.USE, Trait.KEYED, Trait.READ),
        Slot.STALE: Nature(Tone.TROUBLE, Trait.READ),
        Slot.QUARANTINED: Nature(Tone.TROUBLE, Trait.WRITTEN),
    },
)

JOBS = natures(
    Job,
    {
        Job.PLANNED: Nature(Tone.REST, Trait.WANTED),
        Job.IN_FLIGHT: Nature(Tone.COPY, Trait.OUT, Trait.WANTED),
        Job.AWAITED: Nature(Tone.COPY, Trait.OUT, Trait.WANTED),
        Job.UNWANTED: Nature(Tone.TROUBLE, Trait.OUT),
        Job.QUARANTINED: Nature(Tone.TROUBLE, Trait.OUT),
        Job.DONE: Nature(Tone.OVER, Trait.OVER),
        Job.FAILED: Nature(Tone.FAILED, Trait.OVER),
        Job.CANCELLED: Nature(Tone.OVER, Trait.OVER),
    },
)

REQUESTS = natures(
    Request,
    {
        Request.WAITING: Nature(Tone.REST),
        Request.RUNNING: Nature(Tone.USE, Trait.ADMITTED),
        Request.LOADING: Nature(Tone.COPY, Trait.ADMITTED),
        Request.PREEMPTED: Nature(Tone.REST),
        Request.FINISHED: Nature(Tone.OVER, Trait.OVER),
    },
)

NATURES: Mapping[enum.Enum, Nature] = MappingProxyType({**BLOCKS, **SLOTS, **JOBS, **REQUESTS})


def states_with(trait: Trait, states: type[StateT]) -> frozenset[StateT]:
    """The states of one machine that have a trait."""
    return frozenset(state for state in states if trait in NATURES[state].traits)


KEYED = states_with(Trait.KEYED, Block)
"""States in which the content of a block is final and may be read under its key."""

COPYING = states_with(Trait.COPYING, Block)
"""States in which one store has the life as its source."""

LIFELESS = frozenset(Block) - states_with(Trait.ALIVE, Block)
"""States in which a block has no life. In every other state its current epoch names one."""

BLANK, REVIVABLE = states_with(Trait.FREE, Block) & LIFELESS, states_with(Trait.FREE, Block) - LIFELESS
"""States in which a block is free: with nothing in it, and with content that a hit revives."""

STORE_READS, LOAD_WRITES = states_with(Trait.READ, Block), states_with(Trait.WRITTEN, Block)
"""States a block can be in while a submitted store reads it, and while a submitted load writes it."""

STORE_WRITES, LOAD_READS = states_with(Trait.WRITTEN, Slot), states_with(Trait.READ, Slot)
"""States a slot can be in while a submitted store writes it, and while a submitted load reads it."""

SLOTS_AT_REST = states_with(Trait.FREE, Slot) | (states_with(Trait.KEYED, Slot) & LOAD_READS)
"""States in which a slot is empty, or has content that can be read: nothing about it is given up, nor on its way."""


def blocks_touched(*, stores: bool) -> frozenset[Block]:
    """States that the blocks of a submitted store, or load, can be in."""
    return STORE_READS if stores else LOAD_WRITES


def slots_touched(*, stores: bool) -> frozenset[Slot]:
    """States that the slots of a submitted store, or load, can be in."""
    return STORE_WRITES if stores else LOAD_READS


PINNED = COPYING | STORE_READS | LOAD_WRITES
"""States in which at least one job pins a block."""

TERMINAL = states_with(Trait.OVER, Job)
"""States in which a job is over."""

OUT = states_with(Trait.OUT, Job)
"""States in which the workers have a job."""

OUT_AND_WANTED = OUT & states_with(Trait.WANTED, Job)
"""States in which the workers have a job whose result somebody wants."""

GIVEN_UP = OUT - OUT_AND_WANTED
"""States in which the workers have a job whose result nobody wants."""

ADMITTED = states_with(Trait.ADMITTED, Request)
"""States in which a request runs or loads, and can be preempted."""

ADMISSIBLE = frozenset(Request) - ADMITTED - states_with(Trait.OVER, Request)
"""States in which a request holds nothing, and can be admitted."""


# --- guards ------------------------------------------------------------------------------------------------------------
# Counts are those after the event's own change: `refs` after the release, `pins` and `overdue` after the landing's unpin.
# A guard that can cause a refusal has a text for it (`otherwise`); the ledger names jobs and requests (`ledger/_refusals.py`).


@guard(otherwise="a request holds it, a load writes it, or the contract is hold")
def lendable(fence: bool, refs: int, writes: int) -> bool:
    """The contract is fence, nobody holds the life, and no load writes the place."""
    return fence & (refs == 0) & (writes == 0)


@guard(otherwise="a load writes it, or the contract is hold")
def fenced(fence: bool, writes: int) -> bool:
    """The contract is fence, and no load writes the place."""
    return fence & (writes == 0)


@guard(otherwise="a request still holds it")
def idle(refs: int) -> bool:
    """Nobody holds the life."""
    return refs == 0


@guard
def held(refs: int) -> bool:
    """A request still holds the life."""
    return refs > 0


@guard
def pinned(pins: int) -> bool:
    """The place is still pinned: another job may touch it, or a lookup counts on it."""
    return pins > 0


@guard
def is_overdue(overdue: int) -> bool:
    """A job that may still touch the place is past its deadline."""
    return overdue > 0


@guard
def orphaned(refs: int, overdue: int) -> bool:
    """Nobody holds the life, and a job that may still touch the place is past its deadline."""
    return (refs == 0) & (overdue > 0)


@guard
def arrived(own: bool, ok: bool) -> bool:
    """The landing job is the load of this life, and it succeeded."""
    return own & ok


@guard
def own_overdue(own: bool, overdue: int) -> bool:
    """The landing job is the load of this life, and another job that may touch the place is past its deadline."""
    return own & (overdue > 0)


@guard
def own_pinned(own: bool, pins: int) -> bool:
    """The landing job is the load of this life, and another job may still touch the place."""
    return own & (pins > 0)


@guard
def is_own(own: bool) -> bool:
    """The job is the load of this life."""
    return own


@guard
def published(ok: bool) -> bool:
    """The job that fills the slot is DONE, and this slot's content came whole."""
    return ok


@guard(otherwise="a load or demotion reads it, or a lookup counts on it")
def unpinned(pins: int) -> bool:
    """No load or demotion reads the slot, and no lookup counts on it."""
    return pins == 0


@guard
def more(outstanding: int) -> bool:
    """Other workers have not reported yet."""
    return outstanding > 0


@guard
def all_ok(ok: bool) -> bool:
    """Every worker reported success."""
    return ok


# --- the machines ------------------------------------------------------------------------------------------------------


class BlockLife(Lifecycle, initial=Block.FREED):
    """The life of one block of the device."""

    @edge(Block.FREED, Block.CACHED, to=Block.ALLOCATED)
    @edge(Block.PENDING_STORE, to=Block.ALLOCATED, when=lendable)
    @edge(Block.IN_FLIGHT, to=Block.FLUSHED, when=lendable)
    @edge(Block.STALE, to=Block.FLUSHED, when=fenced)
    def allocate(self, fence: bool, refs: int, writes: int) -> None:
        """Hand the place to a new tenant."""

    @edge(Block.CACHED, Block.SEALED, to=Block.SEALED)
    @edge(Block.PENDING_STORE, to=Block.PENDING_STORE)
    @edge(Block.IN_FLIGHT, to=Block.IN_FLIGHT)
    def acquire(self) -> None:
        """One more request holds the life: a prefix hit."""

    @edge(Block.ALLOCATED, to=Block.SEALED)
    @edge(Block.PLEDGED, to=Block.PENDING_STORE)
    def seal(self) -> None:
        """Declare the content final and its key known."""

    @edge(Block.ALLOCATED, to=Block.PLEDGED)
    @edge(Block.SEALED, Block.CACHED, to=Block.PENDING_STORE)
    def plan_store(self) -> None:
        """Choose the life as the source of a store."""

    @edge(Block.ALLOCATED, Block.FLUSHED, to=Block.LOADING)
    def plan_load(self) -> None:
        """Choose the place as the target of a load."""

    @edge(Block.PENDING_STORE, to=Block.IN_FLIGHT)
    @edge(Block.LOADING, to=Block.LOADING)
    def submit(self) -> None:
        """The job goes to the workers."""

    @edge(Block.PLEDGED, to=Block.ALLOCATED)
    @edge(Block.PENDING_STORE, to=Block.SEALED, when=held)
    @edge(Block.PENDING_STORE, to=Block.CACHED)
    def cancel(self, refs: int) -> None:
        """The planned store is given up."""

    @edge(Block.ALLOCATED, Block.PLEDGED, to=Block.FREED)
    @edge(Block.LOADING, to=Block.QUARANTINED, when=is_overdue)
    @edge(Block.LOADING, to=Block.STALE)
    @edge(Block.SEALED, to=Block.SEALED, when=held)
    @edge(Block.SEALED, to=Block.CACHED)
    @edge(Block.PENDING_STORE, to=Block.PENDING_STORE)
    @edge(Block.IN_FLIGHT, to=Block.QUARANTINED, when=orphaned)
    @edge(Block.IN_FLIGHT, to=Block.IN_FLIGHT)
    @edge(Block.FLUSHED, to=Block.QUARANTINED, when=is_overdue)
    @edge(Block.FLUSHED, to=Block.STALE)
    def release(self, refs: int, overdue: int) -> None:
        """One request releases it."""

    @edge(Block.LOADING, to=Block.SEALED, when=arrived)
    @edge(Block.LOADING, to=Block.QUARANTINED, when=own_overdue)
    @edge(Block.LOADING, to=Block.STALE, when=own_pinned)
    @edge(Block.LOADING, to=Block.FREED, when=is_own)
    @edge(Block.LOADING, to=Block.LOADING)
    @edge(Block.IN_FLIGHT, to=Block.SEALED, when=held)
    @edge(Block.IN_FLIGHT, to=Block.CACHED)
    @edge(Block.FLUSHED, to=Block.ALLOCATED)
    @edge(Block.STALE, to=Block.STALE, when=pinned)
    @edge(Block.STALE, to=Block.FREED)
    @edge(Block.QUARANTINED, to=Block.QUARANTINED, when=is_overdue)
    @edge(Block.QUARANTINED, to=Block.STALE, when=pinned)
    @edge(Block.QUARANTINED, to=Block.FREED)
    def land(self, refs: int, pins: int, overdue: int, own: bool, ok: bool) -> None:
        """A submitted job no longer touches the place."""

    @edge(Block.LOADING, to=Block.QUARANTINED, when=is_own)
    @edge(Block.LOADING, to=Block.LOADING)
    @edge(Block.IN_FLIGHT, to=Block.IN_FLIGHT, when=held)
    @edge(Block.IN_FLIGHT, to=Block.QUARANTINED)
    @edge(Block.FLUSHED, to=Block.FLUSHED)
    @edge(Block.STALE, Block.QUARANTINED, to=Block.QUARANTINED)
    def expire(self, refs: int, own: bool) -> None:
        """A job that touches the place is past its deadline."""

    @edge(Block.CACHED, to=Block.FREED)
    @edge(Block.PENDING_STORE, to=Block.FREED, when=idle)
    @edge(Block.IN_FLIGHT, to=Block.STALE, when=idle)
    def drop(self, refs: int) -> None:
        """Forget the content."""


class SlotLife(Lifecycle, initial=Slot.EMPTY):
    """The life of one slot of the lower tier."""

    @edge(Slot.EMPTY, to=Slot.WRITING)
    def reserve(self) -> None:
        """Reserve the slot for a store or a promotion."""

    @edge(Slot.WRITING, to=Slot.EMPTY)
    def cancel(self) -> None:
        """The planned store or promotion is given up."""

    @edge(Slot.WRITING, to=Slot.READY, when=published)
    @edge(Slot.WRITING, Slot.QUARANTINED, to=Slot.EMPTY)
    def land(self, ok: bool) -> None:
        """The job that fills the slot no longer touches it."""

    @edge(Slot.WRITING, to=Slot.QUARANTINED)
    def expire(self) -> None:
        """The job that fills the slot is past its deadline."""

    @edge(Slot.READY, to=Slot.READY)
    def pin(self) -> None:
        """A load, a demotion, or a lookup that counted on the slot, holds it."""

    @edge(Slot.READY, to=Slot.READY)
    @edge(Slot.STALE, to=Slot.STALE, when=pinned)
    @edge(Slot.STALE, to=Slot.EMPTY)
    def unpin(self, pins: int) -> None:
        """A load, a demotion or a lookup no longer needs it."""

    @edge(Slot.READY, to=Slot.EMPTY, when=unpinned)
    def evict(self, pins: int) -> None:
        """Empty the slot to make room."""

    @edge(Slot.READY, to=Slot.STALE, when=pinned)
    @edge(Slot.READY, to=Slot.EMPTY)
    @edge(Slot.STALE, to=Slot.STALE)
    def drop(self, pins: int) -> None:
        """Forget the content and its key."""


class JobLife(Lifecycle, initial=Job.PLANNED, finals=(Job.DONE, Job.FAILED, Job.CANCELLED)):
    """The life of one job, the same for stores and loads."""

    @edge(Job.PLANNED, to=Job.IN_FLIGHT)
    def submit(self) -> None:
        """Hand the job to every worker. From then on only their reports, or proof that the device is quiet, end it."""

    @edge(Job.PLANNED, to=Job.CANCELLED)
    def cancel(self) -> None:
        """Give up a job that no worker has yet."""

    @edge(Job.IN_FLIGHT, to=Job.IN_FLIGHT, when=more)
    @edge(Job.IN_FLIGHT, to=Job.DONE, when=all_ok)
    @edge(Job.IN_FLIGHT, to=Job.FAILED)
    @edge(Job.AWAITED, to=Job.AWAITED, when=more)
    @edge(Job.AWAITED, to=Job.DONE, when=all_ok)
    @edge(Job.AWAITED, to=Job.FAILED)
    @edge(Job.UNWANTED, to=Job.UNWANTED, when=more)
    @edge(Job.UNWANTED, to=Job.CANCELLED)
    @edge(Job.QUARANTINED, to=Job.QUARANTINED, when=more)
    @edge(Job.QUARANTINED, to=Job.FAILED)
    @edge(Job.DONE, to=Job.DONE)
    @edge(Job.FAILED, to=Job.FAILED)
    @edge(Job.CANCELLED, to=Job.CANCELLED)
    def finish(self, outstanding: int, ok: bool) -> None:
        """A worker reports, for the first time; once the job is over, any report."""

    @edge(Job.IN_FLIGHT, Job.AWAITED, to=Job.AWAITED)
    @edge(Job.UNWANTED, to=Job.UNWANTED)
    @edge(Job.QUARANTINED, to=Job.QUARANTINED)
    def flush(self) -> None:
        """Make the next plan wait for the job to land."""

    @edge(Job.IN_FLIGHT, Job.AWAITED, to=Job.UNWANTED)
    def abandon(self) -> None:
        """Nobody wants the result any more."""

    @edge(Job.IN_FLIGHT, Job.AWAITED, Job.UNWANTED, to=Job.QUARANTINED)
    def expire(self) -> None:
        """The deadline has passed."""

    @edge(Job.AWAITED, Job.QUARANTINED, to=Job.FAILED)
    @edge(Job.UNWANTED, to=Job.CANCELLED)
    def quiesce(self) -> None:
        """Accept the proof that the device no longer touches a place of this job."""


class RequestLife(Lifecycle, initial=Request.WAITING, finals=(Request.FINISHED,)):
    """The life of one request. It has at most one live load, or any number of stores."""

    @edge(Request.WAITING, Request.PREEMPTED, to=Request.RUNNING)
    def admit(self) -> None:
        """Enter the batch."""

    @edge(Request.WAITING, Request.PREEMPTED, to=Request.LOADING)
    def plan_load(self) -> None:
        """Wait for content from the lower tier before entering the batch."""

    @edge(Request.LOADING, to=Request.RUNNING)
    def loaded(self) -> None:
        """The load is DONE."""

    @edge(Request.LOADING, to=Request.WAITING)
    def load_failed(self) -> None:
        """The load failed: give every block back; the content has to be recomputed."""

    @edge(Request.RUNNING, Request.LOADING, to=Request.PREEMPTED)
    def preempt(self) -> None:
        """Give every block back, to be admitted again later."""

    @edge(Request.WAITING, Request.RUNNING, Request.LOADING, Request.PREEMPTED, to=Request.FINISHED)
    def finish(self) -> None:
        """Give every block back for good; an abort is a finish."""


MACHINES: Mapping[str, Table] = {
    "block": BlockLife.table,
    "slot": SlotLife.table,
    "job": JobLife.table,
    "request": RequestLife.table,
}


def states_before(event: Event, states: type[StateT]) -> frozenset[StateT]:
    """The states of one machine in which an event has a row."""
    return frozenset(state for state in states if event.rows_of(state))


STORABLE = states_before(BlockLife.table.events["plan_store"], Block)
"""States in which a block can become the source of a store."""

LENT = states_before(BlockLife.table.events["allocate"], Block) - states_with(Trait.FREE, Block)
"""States in which a block may be handed out although a job still touches it."""

for _table in MACHINES.values():
    if {state for state in _table.states if Trait.OVER in NATURES[state].traits} != _table.finals:
        raise DefinitionError(f"{_table.name}: its final states must be those with the trait OVER")

_NEVER_REFUSED: tuple[tuple[str, str, frozenset[enum.Enum], str], ...] = (
    ("block", "allocate", states_with(Trait.FREE, Block), "FREE"),
    ("block", "acquire", KEYED, "KEYED"),
    ("block", "cancel", COPYING - STORE_READS, "COPYING and not READ"),
    ("block", "release", states_with(Trait.HELD, Block) | (KEYED & COPYING), "HELD, or KEYED and COPYING"),
    ("block", "land", STORE_READS | LOAD_WRITES, "READ or WRITTEN"),
    ("slot", "reserve", states_with(Trait.FREE, Slot), "FREE"),
    ("slot", "land", STORE_WRITES, "WRITTEN"),
    ("slot", "unpin", LOAD_READS, "READ"),
    ("job", "finish", OUT | TERMINAL, "OUT or OVER"),
    ("job", "abandon", OUT_AND_WANTED, "OUT and WANTED"),
    ("request", "preempt", ADMITTED, "ADMITTED"),
)
"""Events that are never refused in states with these traits; in all others they have no row, or only guarded ones."""


def _check_natures() -> None:
    """Refuse a trait that the rows do not bear out, and rows that ask for a trait: counts and lists follow from traits."""
    for machine, event, states, traits in _NEVER_REFUSED:
        always = {row.source for row in MACHINES[machine].events[event].rows if row.guard is None}
        for state in sorted(always - states, key=str):
            raise DefinitionError(f"{state}: {machine}.{event} is never refused there, so its traits have to be {traits}")
        for state in sorted(states - always, key=str):
            raise DefinitionError(f"{state}: its traits are {traits}, so {machine}.{event} needs a row there without a guard")


_check_natures()

# --- lives -------------------------------------------------------------------------------------------------------------


def ends_life(row: Row) -> bool:
    """Whether a row of `BlockLife` ends a life: its content is forgotten, or a new tenant gets the place."""
    return row.source not in LIFELESS and (row.target in LIFELESS or row.event == "allocate")


# --- couplings ---------------------------------------------------------------------------------------------------------


@frozen
class Coupling:
    """When one machine takes a step, others take theirs in the same commit.

    ``cause`` is ``machine.event`` with the kind of job in parentheses where it matters, ``into`` the states it must have led to
    (empty: any), ``effects`` the events that follow, in this order. ``why`` is one sentence.
    """

    name: str
    cause: str
    into: tuple[enum.Enum, ...]
    effects: tuple[str, ...]
    why: str

    def without(self, effect: str) -> str:
        """The name of the mutant from whose row an effect is deleted: it shows that the row is what runs."""
        return f"{self.name}: no {effect}"


COUPLINGS: tuple[Coupling, ...] = (
    Coupling(
        "life-ends",
        "block.*",
        (),
        ("job.cancel",),
        "When a life ends, its planned store is cancelled, its epoch is raised and its key is forgotten.",
    ),
    Coupling(
        "hand-out-flushes",
        "block.allocate",
        (Block.FLUSHED,),
        ("job.flush",),
        "The same plan waits for every submitted job that may touch the place.",
    ),
    Coupling(
        "store-planned",
        "job.plan(store)",
        (Job.PLANNED,),
        ("block.plan_store", "slot.reserve"),
        "Planning a store pins its blocks and reserves its slots.",
    ),
    Coupling(
        "load-planned",
        "job.plan(load)",
        (Job.PLANNED,),
        ("block.plan_load", "slot.pin", "request.plan_load"),
        "Planning a load pins both ends, and the request waits outside the batch.",
    ),
    Coupling(
        "demotion-planned",
        "job.plan(demote)",
        (Job.PLANNED,),
        ("slot.pin",),
        "Planning a demotion pins its slots: what a copy reads is not evicted.",
    ),
    Coupling(
        "promotion-planned",
        "job.plan(promote)",
        (Job.PLANNED,),
        ("slot.reserve",),
        "Planning a promotion reserves its slots: nothing is brought into a slot that is not reserved.",
    ),
    Coupling(
        "submitted",
        "job.submit",
        (Job.IN_FLIGHT,),
        ("block.submit",),
        "The workers own the copy from here on.",
    ),
    Coupling(
        "store-cancelled",
        "job.cancel(store)",
        (Job.CANCELLED,),
        ("block.cancel", "slot.cancel"),
        "Cancelling a planned store unpins its blocks and empties its slots.",
    ),
    Coupling(
        "load-cancelled",
        "job.cancel(load)",
        (Job.CANCELLED,),
        ("block.land", "slot.unpin"),
        "A planned load is given up only with its request; nothing was written, so its targets need not wait for it.",
    ),
    Coupling(
        "demotion-cancelled",
        "job.cancel(demote)",
        (Job.CANCELLED,),
        ("slot.unpin",),
        "A planned demotion that is given up leaves no trace.",
    ),
    Coupling(
        "promotion-cancelled",
        "job.cancel(promote)",
        (Job.CANCELLED,),
        ("slot.cancel",),
        "A planned promotion that is given up leaves no trace.",
    ),
    Coupling(
        "store-ended",
        "job.finish(store)",
        (Job.DONE, Job.FAILED, Job.CANCELLED),
        ("block.land", "slot.land"),
        "The end of a store unpins its blocks; its slots are published only if the job is DONE.",
    ),
    Coupling(
        "load-done",
        "job.finish(load)",
        (Job.DONE,),
        ("job.quiesce", "block.land", "slot.unpin", "request.loaded"),
        "Every worker waited for older copies of the targets, so these are quiet; the blocks are sealed and the request runs.",
    ),
    Coupling(
        "load-failed",
        "job.finish(load)",
        (Job.FAILED,),
        ("block.land", "slot.drop", "slot.unpin", "request.load_failed"),
        "A failed load drops its keys, so that the same hit is not found again; the request recomputes.",
    ),
    Coupling(
        "load-abandoned",
        "job.finish(load)",
        (Job.CANCELLED,),
        ("block.land", "slot.unpin"),
        "No request waits for an abandoned load; its end only unpins its places.",
    ),
    Coupling(
        "demotion-ended",
        "job.finish(demote)",
        (Job.DONE, Job.FAILED, Job.CANCELLED),
        ("slot.unpin",),
        "The end of a demotion, good or bad, unpins the slots; their content stays.",
    ),
    Coupling(
        "promotion-ended",
        "job.finish(promote)",
        (Job.DONE, Job.FAILED, Job.CANCELLED),
        ("slot.land",),
        "A promotion that is DONE publishes the slots whose content came whole on every worker; all others become empty.",
    ),
    Coupling(
        "store-expired",
        "job.expire(store)",
        (Job.QUARANTINED,),
        ("block.expire", "slot.expire"),
        "Past the deadline nobody knows whether the device is done with either end.",
    ),
    Coupling(
        "load-expired",
        "job.expire(load)",
        (Job.QUARANTINED,),
        ("block.expire", "slot.drop", "request.load_failed"),
        "The request stops waiting; the load's targets stay quarantined until they are proven quiet.",
    ),
    Coupling(
        "promotion-expired",
        "job.expire(promote)",
        (Job.QUARANTINED,),
        ("slot.expire",),
        "Past the deadline nobody knows whether the slots are still being written. A demotion past it keeps its pins, no more.",
    ),
    Coupling(
        "request-gives-up",
        "request.preempt|finish|load_failed",
        (),
        ("job.cancel|abandon", "block.release"),
        "The request's load is cancelled if planned and abandoned if submitted; then all its blocks are released.",
    ),
    Coupling(
        "reset-now",
        "ledger.reset",
        (),
        ("request.preempt", "job.cancel", "job.abandon", "block.drop", "slot.drop"),
        "All content is forgotten at once; what is still being copied keeps its places until it lands.",
    ),
)

LOST_LOADS = frozenset(state for row in COUPLINGS if "request.load_failed" in row.effects for state in row.into)
"""States in which a load is lost, and its request does not wait for it any more."""


def coupled(cause: str, into: enum.Enum) -> tuple[str, ...]:
    """The effects of one cause that led to one state; ``quiesce`` couples as ``finish`` does."""
    found = [row for row in COUPLINGS if row.cause == cause and (not row.into or into in row.into)]
    if len(found) > 1:
        raise DefinitionError(f"{cause} into {into.name}: coupled twice, by {' and '.join(row.name for row in found)}")
    return found[0].effects if found else ()
