"""The cross checks of ledger and device: the summary of a core value, and everything that can be wrong with it.

Rules of this file:

* It changes nothing. A function reads a value, or an engine at that value, and returns the rule that is broken.
* The ledger's own books are recounted (`ledger.invariants`); its claims about the device are compared with the device; and the
  plans, offers and hook calls of each call are compared with the change that the call made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf

from attrs import define

from blocklife.errors import BlocklifeError
from blocklife.ledger import Direction
from blocklife.ledger.jobs import JobView
from blocklife.offload import FullAttention, Geometry, LastStep
from blocklife.offload._snapshot import SavedScheduler
from blocklife.scheduler_states import Ending
from blocklife.states import (
    ADMISSIBLE,
    GIVEN_UP,
    LIFELESS,
    LOST_LOADS,
    MACHINES,
    OUT,
    SLOTS_AT_REST,
    TERMINAL,
    Block,
    Job,
    Request,
    Slot,
    Trait,
    blocks_touched,
    slots_touched,
    states_with,
)
from blocklife.testing.worlds._device import Content, CopyOrder, FrozenDevice, Orders, said
from blocklife.testing.worlds._engine import Engine
from blocklife.testing.worlds._second_owner import hosts
from blocklife.testing.worlds._tier import Entry, index_of

RULES = tuple(f"I{number}" for number in range(1, 16) if number not in (2, 11))
"""The rules checked in every step, numbered as in `specs/invariants.md`.

Two are left out: copies on this device always wait for the forward passes before them, as the engine contract asks (I2), and
nothing is split, merged or swapped (I11).
"""
LAST_STEP = "last step"
"""The rule that, with the policy `flush`, the step in which all tracked requests are over waits for every job."""
KEPT = "kept"
"""The rule that, where there is room for it, all final content on the device reaches the host tier."""
TOLD = "told"
"""The rule that hooks hear of every transition, in order, and of nothing else."""
WAITS = "waits"
"""The rule that no request waits longer than it may, for content on its way and for the store below."""
BELOW = "below"
"""The rule that the store below has nothing wrong; and that, where nothing goes wrong, all that the host tier has is there."""
LAWFUL = "lawful"
"""The rule that the calls of an engine that keeps the contract are never refused."""
MEANINGS: Mapping[str, str] = {
    "I1": "a block that a copy reads or writes is not free, and has no new owner but behind a wait",
    "I3": "only reports that are expected count",
    "I4": "no count falls below zero, and nobody releases what it does not hold",
    "I5": "a job ends exactly once, within its deadline",
    "I6": "content is read only after every byte has arrived",
    "I7": "what a lookup counted on is pinned until it is used",
    "I8": "only settled content is stored, under its own key",
    "I9": "nothing shared changes before every worker has reported",
    "I10": "preemption and reset secure places against running copies first",
    "I12": "every waiting state has a step that leads on",
    "I13": "free, cached, held, copying and quarantined places add up to the pool",
    "I14": "no content is stored twice, and none is lost to a later store",
    "I15": "the group sizes of a job add up to its places",
    LAST_STEP: "with the policy flush, the last step waits for every job",
    KEPT: "where there is room, all final content reaches the host tier",
    TOLD: "hooks hear of every transition, in order, and of nothing else",
    WAITS: "no request waits longer than it may",
    BELOW: "the store below has nothing wrong, and all that the host tier has if nothing goes wrong",
    LAWFUL: "calls of an engine that keeps the contract are never refused",
}
"""What each rule says, in a phrase."""


@define(eq=False)
class CoreValue:
    """One value of the core, and what is asked about it. Never changed."""

    saved: SavedScheduler
    weights: str
    """The weights that the workers compute with, as known to the engine."""
    requests: tuple[tuple[str, Request], ...]
    """Requests that are not ending, with their states."""
    hosts: tuple[str, ...]
    """Requests of which a second owner reads blocks, whether they are over or not."""
    plans_out: int
    busy: bool
    """Whether a step could do something."""
    idle: bool
    """Whether there are no requests and nothing is out."""
    over: bool
    """Whether at least one request is tracked, for itself or for its jobs, and all of them are over."""
    asleep: bool
    lost: tuple[int, ...]
    live: tuple[int, ...]
    """Jobs handed to the workers."""
    quarantined: tuple[int, ...]
    """Jobs past their deadline."""
    blocks: tuple[str, ...]
    """The state of each block."""
    slots: tuple[str, ...]
    readable_blocks: tuple[tuple[int, bytes], ...]
    """Blocks that can be found on the device, with their keys."""
    readable_places: tuple[tuple[int, bytes], ...]
    kept_blocks: frozenset[int]
    """Blocks whose content can still be read later."""
    kept_places: frozenset[int]
    """Host places whose content can still be read later."""
    places_per_slot: int
    demotes: bool
    """Whether content waits to go to the store below."""
    asked: tuple[Entry, ...]
    """Questions to the store below that are not answered."""
    is_up: bool
    """Whether the store below is up."""
    waits: bool
    """Whether a request may still wait for the store below."""
    waits_below_alone: bool
    """Whether a request waits to be let in, and neither a copy of the device nor a sleep keeps it."""
    rest_below: tuple[bytes, tuple[tuple[int, bytes], ...]] | None
    """The space, and the group and key of each slot that can be read, if nothing is out and the store below is up."""

    @property
    def has_jobs(self) -> bool:
        """Whether a job is planned, or not over."""
        return any(job.state not in OVER for job in self.saved.ledger.jobs)


_READ_LATER = frozenset(MACHINES["block"].index[each] for each in Block if each not in LIFELESS)
_EMPTY = frozenset(MACHINES["slot"].index[each] for each in states_with(Trait.FREE, Slot))
_READY = MACHINES["slot"].index[Slot.READY]
OVER, _SUBMITTED = (frozenset(MACHINES["job"].index[state] for state in states) for states in (TERMINAL, OUT))
_BLOCKS, _SLOTS = (tuple(each.name for each in MACHINES[name].states) for name in ("block", "slot"))
_TOUCHED = {
    stores: tuple(frozenset(each.name for each in touched(stores=stores)) for touched in (blocks_touched, slots_touched))
    for stores in (True, False)
}
"""The states that the blocks and the slots of a store, and of a load, may have."""
_AT_REST = tuple(frozenset(each.name for each in states) for states in (states_with(Trait.FREE, Block), SLOTS_AT_REST))
"""The states of blocks and slots when there are no requests."""
_ENDS = {
    name: (bytes([0, *(table.index[row.source] for row in table.rows)]), table.targets) for name, table in MACHINES.items()
}
"""The source and target states of each row of each table, by row number."""
_NEW = {name: table.index[table.initial] for name, table in MACHINES.items()}
_JOB_STATES = MACHINES["job"].states
_REQUEST_STATES = tuple(each for each in MACHINES["request"].states if isinstance(each, Request))
_QUARANTINED = MACHINES["job"].index[Job.QUARANTINED]
_LOST = OVER | {_QUARANTINED}
_UNWANTED = _LOST | {MACHINES["job"].index[Job.UNWANTED]}
_PLANNED = MACHINES["job"].index[Job.PLANNED]


def blamed(broken: Exception) -> tuple[str, str]:
    """The rule that an error names, and its text."""
    said = re.search(r"\((I\d+)\)", str(broken)) if isinstance(broken, BlocklifeError) else None
    return (said.group(1) if said else LAWFUL), f"{type(broken).__name__}: {broken}"


def described(engine: Engine, saved: SavedScheduler, weights: str) -> CoreValue:
    """Summarise a value of the core."""
    ledger, size = saved.ledger, engine.geometry.blocks_per_chunk
    blocks, slots = ledger.blocks, ledger.slots
    live: list[int] = []
    quarantined: list[int] = []
    pending = bool(saved.plans or ledger.to_flush or ledger.waiting)
    copies_device = False
    for job in ledger.jobs:
        if job.state in OVER:
            continue
        pending = True
        copies_device = copies_device or job.direction.on_device
        if job.state != _PLANNED:
            live.append(job.number)
        if job.state == _QUARANTINED:
            quarantined.append(job.number)
    states = {each.name: _REQUEST_STATES[each.state] for each in ledger.requests}
    requests = tuple([(each.name, states[each.name]) for each in saved.requests if each.end is Ending.STAYS])
    read = hosts(states)
    block_names, readable_blocks, kept_blocks = _of_blocks(blocks.state, blocks.key)
    slot_names, kept_places = _of_slots(slots.state, size)
    below, known = saved.below, index_of(saved.below)
    demotes = below is not None and known is not None and known.is_up and bool(below.queue)
    rest_below = None
    if below is not None and known is not None and known.is_up and not (saved.requests or pending or below.queue):
        keyed = [(slots.group[slot], key) for slot, key in enumerate(slots.key) if key is not None]
        if engine.geometry.tail_tokens is not None:  # tails do not go there
            keyed = [(group, key) for group, key in keyed if not _is_tail(engine.geometry, key)]
        rest_below = below.space, tuple(sorted(keyed))
    return CoreValue(
        saved=saved,
        weights=weights,
        requests=requests,
        hosts=read,
        plans_out=len(saved.plans),
        busy=bool(saved.requests or pending or saved.stores.line or demotes),
        idle=not (saved.requests or pending or demotes or read),
        over=not requests and bool(saved.requests or saved.ended),
        asleep=saved.asleep,
        lost=saved.lost,
        live=tuple(live),
        quarantined=tuple(quarantined),
        blocks=block_names,
        slots=slot_names,
        readable_blocks=readable_blocks,
        readable_places=_readable_places(
            slots.state, slots.key, slots.group, _suffix(saved, engine.geometry), engine.geometry.block_tokens, size
        ),
        kept_blocks=kept_blocks,
        kept_places=kept_places,
        places_per_slot=size,
        demotes=demotes,
        asked=known.asked if known is not None else (),
        is_up=known is None or known.is_up,
        waits=saved.waits is not None and any(until > -inf for _, until in (*saved.waits.pending, *saved.waits.below)),
        waits_below_alone=not (copies_device or saved.asleep) and any(at in ADMISSIBLE for _, at in requests),
        rest_below=rest_below,
    )


def _suffix(saved: SavedScheduler, geometry: Geometry) -> bytes:
    """How many blocks of each slot a load may read. A tail has no whole block, and is read all the same."""
    suffix = saved.stores.suffix
    return suffix if geometry.tail_tokens is None else bytes([1]) * len(suffix)


_COLUMNS = 4096
"""How many columns have cached results: the values of a small world share few distinct columns."""


@lru_cache(_COLUMNS)
def _of_blocks(
    states: bytes, keys: tuple[bytes | None, ...]
) -> tuple[tuple[str, ...], tuple[tuple[int, bytes], ...], frozenset[int]]:
    """The state name of each block, the blocks that can be found, and those whose content can still be read later."""
    return (
        tuple([_BLOCKS[each] for each in states]),
        tuple([(place, key) for place, key in enumerate(keys) if key is not None]),
        frozenset([place for place, at in enumerate(states) if at in _READ_LATER]),
    )


@lru_cache(_COLUMNS)
def _of_slots(states: bytes, size: int) -> tuple[tuple[str, ...], frozenset[int]]:
    """The state name of each slot, and the host places whose content can still be read later."""
    kept = [slot * size + part for slot, at in enumerate(states) if at not in _EMPTY for part in range(size)]
    return tuple([_SLOTS[each] for each in states]), frozenset(kept)


def left_behind(core: CoreValue) -> Iterator[tuple[str, str]]:
    """With no requests and nothing out, every place must be free, or hold content without a holder."""
    blocks, slots = _AT_REST
    for place, at in enumerate(core.blocks):
        if at not in blocks:
            yield "I13", f"block {place} is {at} although there are no requests and nothing is out"
    for holder, held in core.saved.ledger.holders:
        yield "I4", f"{holder} still holds {dict(held)} although there are no requests"
    for place, pins in enumerate(core.saved.ledger.slots.pinned()):
        if core.slots[place] not in slots or pins:
            yield "I13", f"slot {place} is {core.slots[place]} with {pins} pins although nothing is out"


def not_kept(core: CoreValue, geometry: Geometry) -> Iterator[tuple[str, str]]:
    """With no requests and no store waiting, whole chunks on the device must be readable in the host tier, too.

    Full attention only: blocks behind a window may be stored or not. So must tails that are final on the device. Presumes eager
    stores and a slot for everything.
    """
    if core.saved.stores.line or core.saved.stores.made:
        return
    blocks, slots = core.saved.ledger.blocks, core.saved.ledger.slots
    here = {(blocks.group[place], key) for place, key in core.readable_blocks}
    there = {(slots.group[place // core.places_per_slot], key) for place, key in core.readable_places}
    for group, key in sorted(here - there):
        tokens = geometry.block_tokens[group]
        whole = len(key) - len(f"{group}:")
        chunk = [(group, key[: len(key) - back * tokens]) for back in range(geometry.blocks_per_chunk)]
        ends = not whole % (tokens * len(chunk)) or geometry.tail_tokens is not None
        if isinstance(geometry.groups[group], FullAttention) and ends and here.issuperset(chunk):
            yield KEPT, f"{key.decode()} is on the device, and was never stored although there are no requests left"


@lru_cache(_COLUMNS)
def _readable_places(
    states: bytes, keys: tuple[bytes | None, ...], groups: bytes, suffix: bytes, block_tokens: tuple[int, ...], size: int
) -> tuple[tuple[int, bytes], ...]:
    """The host places that a load may read, with the keys of what they must hold."""
    found: list[tuple[int, bytes]] = []
    for place, key in enumerate(keys):
        if states[place] != _READY or key is None:
            continue
        for back in range(suffix[place]):
            shorter = key[: len(key) - back * block_tokens[groups[place]]]
            found.append((place * size + size - 1 - back, shorter))
    return tuple(found)


def _misplanned(engine: Engine, before: CoreValue, orders: Orders | None) -> tuple[str, str] | None:
    """What is wrong with newly made jobs (I14), or with the orders to the workers (I15, S5)."""
    ledger, last = engine.ledger, before.saved.ledger.last_number
    if orders is None and ledger.jobs.last_number == last:
        return None
    if orders is not None and engine.settings.policies.last_step is LastStep.FLUSH and before.over:
        missed = [
            each.number
            for each in before.saved.ledger.jobs
            if each.number in before.live
            and each.direction.on_device
            and each.number not in orders.flushes
            and ledger.jobs.is_out(each.number)
        ]
        if missed:
            return LAST_STEP, f"all requests are over, and plan {orders.plan} does not wait for job {missed[0]}"
    for job in ledger.jobs.known() if ledger.jobs.last_number > last else ():
        if (number := job.number) > last and job.direction in (Direction.STORE, Direction.PROMOTE):
            for group, key in zip(job.slot_groups, job.keys, strict=True):
                slots = ledger.slots
                where = [at for at in range(len(slots)) if slots.key(at) == key and slots.group(at) == group]
                if any(before.slots[at] == ledger.slots.state(at).name == Slot.READY.name for at in where):
                    return "I14", f"job {number} stores {key.decode()} of group {group}, which is stored already"
    for order in (*orders.loads, *orders.stores) if orders is not None else ():
        found = [0] * len(order.sizes)
        for block in order.blocks:
            found[ledger.blocks.group(block)] += 1
        if tuple(found) != order.sizes:
            return "I15", f"job {order.job} has group sizes {order.sizes}, and moves {tuple(found)}"
    return None


def _loaded_twice(engine: Engine, before: CoreValue) -> tuple[str, str] | None:
    """A second load of content that is already being loaded: it should be shared, not fetched again (I12)."""
    jobs, last = engine.ledger.jobs, before.saved.ledger.last_number
    if jobs.last_number == last:
        return None  # nothing was planned
    if len(engine.geometry.groups) > 1:
        return None  # groups have to agree: content loaded for one request may be of no use to another
    loads = [job for job in jobs.alive() if job.direction is Direction.LOAD and job.state not in GIVEN_UP]
    for load in loads:
        for job in loads if load.number > last else ():
            if job is not load and not _shared_keys(engine, load).isdisjoint(_shared_keys(engine, job)):
                return "I12", f"job {load.number} loads {load.keys[0].decode()}, which job {job.number} loads already"
    return None


def _shared_keys(engine: Engine, load: JobView) -> set[bytes]:
    """What a load brings that others can hit on the device: no tail, because its request writes on behind it, and, beside
    layers of a drafter, no last block, because the block that proves it is not loaded."""
    keys = [key for key in load.keys if not _is_tail(engine.geometry, key)]
    if any(engine.geometry.tail_proofs) and engine.ends_inside(load.owner) and keys[-1:] == [load.keys[-1]]:
        keys.pop()  # that of a full block may serve as that of a tail, too
    return set(keys[:-1] if any(engine.geometry.drafters) else keys)


def names_tail(geometry: Geometry, keys: Iterable[bytes]) -> bool:
    """Whether one of these keys names a tail."""
    return any(_is_tail(geometry, key) for key in keys)


def _is_tail(geometry: Geometry, key: bytes) -> bool:
    """Whether this names what ends inside a block."""
    return geometry.tail_tokens is not None and (len(key) - len("0:")) % geometry.block_tokens[0] > 0


def _offered_again(engine: Engine, before: CoreValue) -> tuple[str, str] | None:
    """Content whose load was just lost but that can still be found: the same hit would be offered again (I7)."""
    ledger = engine.ledger
    for saved in before.saved.ledger.jobs:
        job = ledger.jobs.get(saved.number)
        if saved.direction is not Direction.LOAD or saved.state in _LOST or job is None:
            continue
        if job.state in LOST_LOADS:
            for slot, key in zip(job.slots, job.keys, strict=True):
                if ledger.slots.state(slot) is Slot.READY and ledger.slots.key(slot) == key:
                    return "I7", f"load {job.number} is lost, but slot {slot} can still be found as {key.decode()}"
    return None


def _copied_twice(engine: Engine, before: CoreValue) -> tuple[str, str] | None:
    """A second copy between slots and the store below of content that is on the same way already (I12)."""
    jobs, last = engine.ledger.jobs, before.saved.ledger.last_number
    if engine.index is None or jobs.last_number == last:
        return None
    live = [job for job in jobs.alive() if not job.direction.on_device and job.state not in GIVEN_UP]
    for job in live:
        named = {*zip(job.slot_groups, job.keys, strict=True)}
        for other in live if job.number > last else ():
            same = (other.direction, other.space) == (job.direction, job.space) and other.number < job.number
            if same and not named.isdisjoint(zip(other.slot_groups, other.keys, strict=True)):
                return "I12", f"job {job.number} moves {job.keys[0].decode()} to or from below, as job {other.number} does"
    return None


def overdue_wait(engine: Engine, before: CoreValue, deferred: Sequence[str]) -> tuple[str, str] | None:
    """A lookup that is still deferred although its wait is over, for content on its way and for the store below."""
    waits = before.saved.waits
    if waits is None or not deferred:
        return None
    below, copies = dict(waits.below), any(job.direction.on_device for job in engine.ledger.jobs.alive())
    for name, until in waits.pending:
        if name in deferred and until <= 0 and (engine.index is None or below.get(name, 1.0) <= 0):
            return WAITS, f"request {name} still waits for content on its way, {-until} after its deadline"
    for name, until in waits.below:
        if name in deferred and until <= 0 and not copies:
            return WAITS, f"request {name} still waits for the store below, {-until} after its deadline"
    return None


def _unheard(engine: Engine, before: CoreValue, handed_out: Sequence[int]) -> tuple[str, str] | None:
    """A block that got a new tenant without a hook call: nothing would wait for its copies (I1)."""
    blocks, saved = engine.ledger.blocks, before.saved.ledger.blocks
    if bytes(blocks.epochs) == saved.epoch:
        return None
    for place, epoch in enumerate(saved.epochs()):
        if blocks.refs(place) and blocks.epochs[place] != epoch and place not in handed_out:
            return "I1", f"block {place} has a new tenant, but no hook heard of it"
    return None


def _mistold(engine: Engine, before: CoreValue) -> tuple[str, str] | None:
    """Replaying the rows that hooks heard must lead to the ledger's states: no transition is missing or made up."""
    ledger, saved = engine.ledger, before.saved.ledger
    blocks, slots = bytearray(saved.blocks.state), bytearray(saved.slots.state)
    jobs = {each.number: each.state for each in saved.jobs}
    requests = {each.row: each.state for each in saved.requests}
    for told in engine.told:
        machine = told.machine
        sources, targets = _ENDS[machine]
        if machine == "block" or machine == "slot":
            columns = blocks if machine == "block" else slots
            for place, row in told.steps():
                if sources[row] != columns[place]:
                    return _told_wrong(machine, place, row, columns[place])
                columns[place] = targets[row]
        else:
            known = jobs if machine == "job" else requests
            for place, row in told.steps():
                if sources[row] != (stood := known.get(place, _NEW[machine])):
                    return _told_wrong(machine, place, row, stood)
                known[place] = targets[row]
    if ledger.blocks.states != blocks:
        return _differing("block", ledger.blocks.states, dict(enumerate(blocks)))
    if ledger.slots.states != slots:
        return _differing("slot", ledger.slots.states, dict(enumerate(slots)))
    if requests:
        now = {row: _REQUEST_STATES.index(ledger.requests.state(name)) for row, name in ledger.requests.rows().items()}
        for row, stands in requests.items():
            if now.get(row, stands) != stands:
                return _differing("request", now, {row: stands})
    for number, stands in jobs.items():
        job = ledger.jobs.get(number)
        if job is not None and _JOB_STATES[stands] is not job.state:
            return TOLD, f"job {number} is {job.state.name}, but hooks heard that it is {_JOB_STATES[stands].name}"
    return None


def _told_wrong(machine: str, place: int, row: int, stood: int) -> tuple[str, str]:
    """Hooks heard of a row that does not start at the place's state."""
    table = MACHINES[machine]
    return TOLD, f"{machine} {place}: hooks heard {table.row(row)} while it is {table.states[stood].name}"


def _differing(machine: str, states: memoryview | Mapping[int, int], told_of: Mapping[int, int]) -> tuple[str, str]:
    """The first place whose state differs from what hooks heard."""
    names = MACHINES[machine].states
    place, stands = next((place, at) for place, at in told_of.items() if states[place] != at)
    return TOLD, f"{machine} {place} is {names[states[place]].name}, but hooks heard that it is {names[stands].name}"


def _overdue(engine: Engine, before: CoreValue, verb: str, worker: int) -> tuple[str, str] | None:
    """A job that runs on past its deadline (I5), or that still waits for a lost worker (I9)."""
    if verb != "settle_late" and verb != "lose_worker":
        return None
    ledger = engine.ledger
    for saved in before.saved.ledger.jobs:
        job = ledger.jobs.get(saved.number)
        state = None if job is None else job.state
        if job is None or state is None or state in TERMINAL or saved.number not in before.live:
            continue
        if verb == "settle_late" and saved.deadline is not None and state is not Job.QUARANTINED:
            return "I5", f"job {saved.number} is {state.name} after its deadline"
        if verb == "lose_worker" and not job.reported >> worker & 1:
            return "I9", f"job {saved.number} still waits for worker {worker}, which is lost"
    return None


def misdone(
    engine: Engine, before: CoreValue, orders: Orders | None, handed_out: Sequence[int], verb: str, worker: int
) -> tuple[str, str] | None:
    """What is wrong with a call: with its plan, its offers, or its hook calls."""
    return (
        _misplanned(engine, before, orders)
        or _loaded_twice(engine, before)
        or _copied_twice(engine, before)
        or _offered_again(engine, before)
        or _unheard(engine, before, handed_out)
        or _mistold(engine, before)
        or _overdue(engine, before, verb, worker)
    )


def unheeded(saved: SavedScheduler, verb: str, request: str, worker: int) -> tuple[str, str] | None:
    """A request of the call that had no effect, judged by the value after it."""
    out = {job.number: job.owner for job in saved.ledger.jobs if job.state in _SUBMITTED and job.direction.on_device}
    if verb == "abort" and any(each.name == request and each.end is Ending.STAYS for each in saved.requests):
        return "I5", f"request {request} was aborted, but goes on"
    if verb == "preempt" and request in out.values() and request not in saved.preempted:
        return "I10", f"request {request} was preempted, but the next plan does not wait for its copies"
    if verb == "sleep" and (not saved.asleep or not out.keys() <= set(saved.ledger.to_flush)):
        return "I10", "the device is given up, but a request goes on or a copy is not waited for"
    if verb == "regain_worker" and worker in saved.lost:
        return "I10", f"worker {worker} is back, but counts as lost"
    return None


def loads(engine: Engine, before: CoreValue) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The requests that lost a load in a call, and those for which one was planned. Loads given up before do not count."""
    jobs, last = engine.ledger.jobs, before.saved.ledger.last_number
    failed, loading = [], []
    for saved in before.saved.ledger.jobs:
        job = jobs.get(saved.number)
        if saved.direction is not Direction.LOAD or saved.state in _UNWANTED or job is None or job.owner is None:
            continue
        if job.state in LOST_LOADS:
            failed.append(job.owner)
    for job in jobs.known():
        if job.number > last and job.direction is Direction.LOAD and job.owner is not None:
            loading.append(job.owner)
    return tuple(failed), tuple(loading)


def disagreements(
    core: CoreValue, device: FrozenDevice, agrees: Callable[[Content, Content], bool]
) -> Iterator[tuple[str, str]]:
    """The differences between core and device, each with the rule that it breaks."""
    for rank, worker in enumerate(device.workers):
        for order in (*(order for order, _, _ in worker.copies), *worker.held_back):
            yield from _mistouched(core, rank, order)
        if worker.lost:
            continue
        here = f"worker {rank}:"
        for block, key in core.readable_blocks:
            if not agrees(worker.blocks[block], content := Engine.content_of(key, core.weights)):
                yield "I6", f"{here} block {block} is found as {content}, but holds {said(worker.blocks[block])}"
        for place, key in core.readable_places:
            if not agrees(worker.places[place], content := Engine.content_of(key, core.weights)):
                yield "I6", f"{here} host place {place} is found as {content}, but holds {said(worker.places[place])}"


def _mistouched(core: CoreValue, rank: int, order: CopyOrder) -> Iterator[tuple[str, str]]:
    """A copy of a finished job, or on a place whose state in the ledger forbids copies."""
    who = f"worker {rank}: copy {order.job}"
    if order.job not in core.live:
        yield "I1", f"{who} still runs, although its job is over"
    blocks, slots = _TOUCHED[order.stores]
    for block in order.blocks:
        if core.blocks[block] not in blocks:
            yield "I1", f"{who} touches block {block}, which is {core.blocks[block]} in the ledger"
    for slot in {place // core.places_per_slot for place in order.places}:
        if core.slots[slot] not in slots:
            yield "I1", f"{who} touches slot {slot}, which is {core.slots[slot]} in the ledger"
