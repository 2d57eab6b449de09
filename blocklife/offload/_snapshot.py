"""Snapshots of a scheduler, with its ledger and host tier, as plain values, and how they are restored.

Rules of this file:

* As in the ledger's snapshot: the complete state, without statistics, as a hashable value, with other names if given.
* Differences without effect are left out: the part of a plan whose request has left it, the number of a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from attrs import evolve

from blocklife.core._progress import PlanTokens
from blocklife.errors import MisuseError
from blocklife.ledger import Direction
from blocklife.ledger._snapshot import Names, Snapshot, canonical_names, own_names, write
from blocklife.offload._below import Demote, TierBelow, saveable
from blocklife.offload._state import PlanOut, SchedulerState, Tracked
from blocklife.offload._stores import Chunk, StoreLine
from blocklife.offload.records import Hit, Keys, TailKeys
from blocklife.offload.replacement import can_be_saved
from blocklife.scheduler_states import Ending, Lookup


class SavedTracked(NamedTuple):
    """One request as the scheduler knows it; ``asked``: known tokens and device tokens for which a deferred hit is valid."""

    name: str
    row: int
    keys: Keys
    hit: Hit | None
    failures: int
    end: Ending
    lookup: Lookup
    asked: tuple[int, int | None] | None
    scheduled: bool
    """Whether it is scheduled in the step being made."""
    tails: TailKeys | None
    tail: int
    awaits: tuple[int, bytes] | None
    """While a deferred hit is valid: what would end that by becoming final on the device."""


class SavedPlan(NamedTuple):
    """One outstanding plan: rows with their tokens, and states that were handed off (request, group, boundary)."""

    number: int
    shares: tuple[tuple[int, int], ...]
    handed: tuple[tuple[str, int, int], ...]


class SavedChunk(NamedTuple):
    """One chunk to be stored."""

    owner: str
    group: int
    key: bytes
    lives: tuple[int, ...]
    suffix: int
    tail: bool


class SavedLine(NamedTuple):
    """The store queue; chunks are referred to by their index in ``chunks``."""

    chunks: tuple[SavedChunk, ...]
    line: tuple[tuple[str, tuple[int, ...]], ...]
    candidates: tuple[tuple[int, int], ...]
    exposed: tuple[tuple[int, tuple[int, ...]], ...]
    made: tuple[tuple[int, tuple[int, ...]], ...]
    entered: int
    suffix: bytes


class SavedBelow(NamedTuple):
    """The tier below. Content is named by space, group and key."""

    space: bytes
    coming: tuple[tuple[bytes, int, bytes, int], ...]
    jobs: tuple[tuple[int, Direction, bytes, tuple[int, ...], tuple[tuple[int, bytes], ...]], ...]
    """A job that the ledger has forgotten since it ended has a negative number."""
    queue: tuple[int, ...]
    below: tuple[int, ...]
    store: Hashable
    """What the `BelowIndex` has saved."""
    told: tuple[tuple[int, bytes], ...]
    """The content that events have told, what was heard of longest ago first."""


class SavedWaits(NamedTuple):
    """How long requests go on waiting. Times are relative to that of the snapshot; minus infinity: they wait no more."""

    now: float
    """The time at which lookups are made."""
    pending: tuple[tuple[str, float], ...]
    """For content on its way."""
    below: tuple[tuple[str, float], ...]
    """For the tier below."""


class SavedScheduler(NamedTuple):
    """The state of a scheduler, for `OffloadScheduler.restore` on one with the same configuration."""

    ledger: Snapshot
    replacement: Hashable
    gone: tuple[int, ...]
    requests: tuple[SavedTracked, ...]
    progress: bytes
    """The columns of the progress table, concatenated as bytes in native byte order."""
    plans: tuple[SavedPlan, ...]
    handed: tuple[tuple[str, int, int], ...]
    states: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...]
    waiting_loads: tuple[tuple[str, Hit], ...]
    loading: tuple[tuple[int, bytes, str], ...]
    pinned: tuple[tuple[str, tuple[int, ...]], ...]
    preempted: tuple[str, ...]
    ended: tuple[str, ...]
    lost: tuple[int, ...]
    asleep: bool
    generation: str
    stores: SavedLine
    below: SavedBelow | None
    """None without a tier below."""
    waits: SavedWaits | None
    """None where nobody waits and there is no tier below."""


# --- names --------------------------------------------------------------------------------------------------------------


def names_of(core: SchedulerState, jobs: Iterable[int] = (), now: float = 0.0, *, canonical: bool) -> Names:
    """Names for everything that ledger and scheduler refer to: canonical ones, or their own."""
    if not canonical:
        return own_names(core.rows.data, now)
    remembered = (*jobs, *core.stores._made, *core.stores._exposed, *(core.below._jobs if core.below is not None else ()))
    size = core.geometry.blocks_per_chunk
    return canonical_names(core.rows.data, lives=_remembered(core), jobs=remembered, now=now, places_per_slot=size)


def _waits(core: SchedulerState, tracked: Tracked) -> bool:
    """Whether a request's last lookup was deferred and would still be; other results are looked up again."""
    hit, asked, awaits = tracked.hit, tracked.asked, tracked.awaits
    if hit is None or not hit.deferred or asked is None or asked[0] != core.given_up + core.ledger.jobs.verdicts:
        return False
    return awaits is None or core.ledger.blocks.find(*awaits) is None


def _remembered(core: SchedulerState) -> list[int]:
    """Every life that the scheduler refers to."""
    stores, lives = core.stores, list[int]()
    for line in stores._line.values():
        for chunk in line:
            lives += chunk.lives
    for chunk in stores._candidates.values():
        lives += chunk.lives
    for number in stores._made:
        for chunk in stores.chunks_of(number):
            lives += chunk.lives
    for exposed in stores._exposed.values():
        lives += exposed
    for states in core.states.values():
        lives += [life for _, _, life in states]
    for hit in core.waiting_loads.values():
        for own in hit.lives:
            lives += own
    for tracked in core.requests.values():
        if tracked.hit is not None and _waits(core, tracked):
            for own in tracked.hit.lives:
                lives += own
    return lives


# --- taking -------------------------------------------------------------------------------------------------------------


def take(core: SchedulerState, names: Names) -> SavedScheduler:
    """Take a snapshot with these names."""
    policy = core.tier.policy
    if not can_be_saved(policy):
        raise MisuseError(f"{policy!r}: a policy without `snapshot` and `restore` cannot be saved (give it both)")
    below = None if core.below is None else _save_below(core, core.below, names)
    ledger = core.ledger.snapshot(names)
    core.progress.speak_up_all()
    slots, gone = names.slots, core.tier._gone
    plans, states, pinned, loads = core.plans, core.states, core.pinned, core.waiting_loads
    return SavedScheduler(
        ledger,
        policy.snapshot(names.slots),
        tuple([slots[slot] for slot in gone]) if gone else (),
        _save_requests(core, names),
        b"".join(core.progress_bytes),
        _save_plans(core, names) if plans else (),
        _current(core, core.handed) if core.handed else (),
        tuple([(name, _save_states(own, names)) for name, own in states.items()]) if states else (),
        tuple([(name, _save_hit(hit, core, names)) for name, hit in loads.items()]) if loads else (),
        tuple(sorted([(group, key, name) for (group, key), name in core.loading.items()])) if core.loading else (),
        tuple([(name, tuple([slots[slot] for slot in own])) for name, own in pinned.items()]) if pinned else (),
        tuple(core.preempted),
        tuple(sorted(core.outlived)) if core.outlived else (),
        tuple(sorted(core.lost)) if core.lost else (),
        core.asleep,
        core.generation,
        _save_line(core.stores, names),
        below,
        _save_waits(core, names),
    )


def _save_plans(core: SchedulerState, names: Names) -> tuple[SavedPlan, ...]:
    """The outstanding plans, without requests that have left them."""
    serial = core.progress.serial
    found: list[SavedPlan] = []
    for (number, out), turn in zip(core.plans.items(), core.progress.turns, strict=True):
        shares = zip(turn.rows, turn.tokens, turn.serials, strict=True)
        own = tuple([(row, tokens) for row, tokens, at in shares if serial[row] == at])
        found.append(SavedPlan(number - names.plans_before, own, _current(core, out.handed) if out.handed else ()))
    return tuple(found)


def _current(core: SchedulerState, handed: Iterable[tuple[str, int, int, int]]) -> tuple[tuple[str, int, int], ...]:
    """States handed off by requests that still exist."""
    serial, known = core.progress.serial, core.requests
    return tuple([(name, group, end) for name, at, group, end in handed if name in known and serial[known[name].row] == at])


def _save_states(states: Iterable[tuple[int, int, int]], names: Names) -> tuple[tuple[int, int, int], ...]:
    return tuple([(group, end, names.lives[life]) for group, end, life in states])


def _save_requests(core: SchedulerState, names: Names) -> tuple[SavedTracked, ...]:
    is_scheduled, found = core.progress.is_scheduled, list[SavedTracked]()
    for name, tracked in core.requests.items():
        hit, asked = tracked.hit, tracked.asked
        waits = hit is not None and _waits(core, tracked)
        if hit is not None:
            # otherwise it is looked up again, or it loads and its hit is kept there
            hit = _save_hit(hit, core, names) if waits or not names.canonical else None
        known = asked[1:3] if waits and asked is not None else None
        awaits = tracked.awaits if waits else None
        row, scheduled = tracked.row, is_scheduled(tracked.row)
        end, lookup = core.stays.at(row)
        if hit is None and lookup is not Lookup.LOADING:
            lookup = Lookup.UNASKED
        last = known, scheduled, tracked.tails, tracked.tail, awaits
        found.append(SavedTracked(name, row, tracked.keys, hit, tracked.failures, end, lookup, *last))
    return tuple(found)


def _save_hit(hit: Hit, core: SchedulerState, names: Names) -> Hit:
    """A hit with other names; its step is reduced to whether it is the current one."""
    return evolve(
        hit,
        step=int(hit.step == core.progress.making),
        lives=tuple([tuple([names.lives[life] for life in own]) for own in hit.lives]),
        slots=tuple([tuple([names.slots[slot] for slot in own]) for own in hit.slots]),
    )


def _save_line(stores: StoreLine, names: Names) -> SavedLine:
    known: dict[int, int] = {}
    chunks: list[SavedChunk] = []
    numbers, new_lives = names.jobs, names.lives

    def places(own: Iterable[Chunk]) -> tuple[int, ...]:
        found: list[int] = []
        for chunk in own:
            place = known.setdefault(id(chunk), len(chunks))
            if place == len(chunks):
                lives = tuple([new_lives[life] for life in chunk.lives])
                chunks.append(SavedChunk(chunk.owner, chunk.group, chunk.key, lives, chunk.suffix, chunk.tail))
            found.append(place)
        return tuple(found)

    line = tuple([(owner, places(own)) for owner, own in stores._line.items()]) if stores._line else ()
    made: list[tuple[int, tuple[int, ...]]] = []
    for number in stores._made:
        if number in numbers:
            made.append((numbers[number], places(stores.chunks_of(number))))
    candidates: tuple[tuple[int, int], ...] = ()
    if stores._candidates:
        by_block = sorted([(names.blocks[block], block) for block in stores._candidates])
        of_blocks = places([stores._candidates[block] for _, block in by_block])
        candidates = tuple(zip([name for name, _ in by_block], of_blocks, strict=True))
    exposed: list[tuple[int, tuple[int, ...]]] = []
    for number, lives in stores._exposed.items():
        if number in numbers:
            exposed.append((numbers[number], tuple([new_lives[life] for life in lives])))
    suffix = bytearray(len(stores.suffix))
    keys, slots = stores._ledger.slots.key, names.slots
    for slot, blocks in enumerate(stores.suffix):
        if blocks and not (names.canonical and keys(slot) is None):
            suffix[slots[slot]] = blocks
    entered = 0 if names.canonical else stores._entered
    return SavedLine(tuple(chunks), line, candidates, tuple(exposed), tuple(made), entered, bytes(suffix))


def _save_below(core: SchedulerState, below: TierBelow, names: Names) -> SavedBelow:
    """The tier below. What has no effect is left out: with lazy demotion the queue, otherwise what is known to be there."""
    slots, lazy = names.slots, below.policies.demote is Demote.LAZY
    # a job that has ended but was not settled can be forgotten by the ledger meanwhile: then it counts as failed
    numbers = {number: names.jobs.get(number, -place) for place, number in enumerate(below._jobs, 1)}
    jobs = tuple(
        [
            (numbers[number], direction, space, tuple([slots[slot] for slot in own]), tuple(contents))
            for number, (direction, space, own, contents) in below._jobs.items()
        ]
    )
    return SavedBelow(
        below.space,
        tuple(sorted([(*content, numbers[number]) for content, number in below._coming.items()])),
        jobs,
        () if lazy else tuple([slots[slot] for slot in below._queue]),
        tuple(sorted([slots[slot] for slot in below._below])) if lazy else (),
        saveable(below.index).snapshot(),
        below._events.told,
    )


def _save_waits(core: SchedulerState, names: Names) -> SavedWaits | None:
    """Waits that have begun. What has no effect is left out: one that has no end, or was answered, and when one was over."""
    if core.below is None and core.policies.pending_wait == inf:
        return None
    pending: list[tuple[str, float]] = []
    below: list[tuple[str, float]] = []
    for name, tracked in core.requests.items():
        until = core.stays.waits.moment(tracked.row)
        over = names.canonical and core.stays.is_found(tracked.row)
        if until is not None and until < inf and (until == -inf or not over):
            pending.append((name, (max(until, core.now) if names.canonical and until > -inf else until) - names.now))
        if (until := core.stays.waits_below.moment(tracked.row)) is not None:
            over = names.canonical and until <= core.now
            below.append((name, -inf if over else until - names.now))
    if core.below is None and not pending:
        return None
    return SavedWaits(core.now - names.now, tuple(pending), tuple(below))


# --- and back -----------------------------------------------------------------------------------------------------------


def put_back(core: SchedulerState, saved: SavedScheduler, now: float) -> None:
    """Go back to a snapshot of a scheduler with the same configuration."""
    policy = core.tier.policy
    if not can_be_saved(policy):
        raise MisuseError(f"{policy!r}: a policy without `snapshot` and `restore` cannot be restored (give it both)")
    (
        ledger, replacement, gone, requests, progress, plans, handed, states, waiting_loads, loading, pinned, preempted,
        ended, lost, asleep, generation, line, below, waits,
    ) = saved  # fmt: skip
    if (core.below is None) is not (below is None):
        here, there = ("one", "no") if below is None else ("none", "a")
        raise MisuseError(f"the snapshot has {there} tier below, and this scheduler has {here}")
    if core.below is not None:
        saveable(core.below.index)
    core.ledger.restore(ledger, now)
    policy.restore(replacement)
    core.tier._gone = dict.fromkeys(gone)
    core.given_up = 0
    _put_back_requests(core, requests, progress, plans)
    # most of these are empty and cost nothing
    core.plans = {number: PlanOut(_handed(core, own), {}) for number, _, own in plans}  # keys are asked for again
    core.handed = _handed(core, handed)
    core.states = {name: list(own) for name, own in states} if states else {}
    core.waiting_loads = dict(waiting_loads)
    core.loading.clear()
    for group, key, name in loading:
        core.loading[group, key] = name
    core.bringing.clear()
    for content, name in core.loading.items():
        core.bringing.setdefault(name, []).append(content)
    core.within = {each.name: each.hit.host_tokens for each in requests if each.hit is not None and _is_within(each.hit)}
    core.within.update([(name, hit.host_tokens) for name, hit in waiting_loads if _is_within(hit)])
    core.pinned = {name: list(slots) for name, slots in pinned} if pinned else {}
    core.preempted = dict.fromkeys(preempted)
    core.outlived, core.lost = set(ended), set(lost)
    core.asleep, core.generation = asleep, generation
    _put_back_line(core.stores, line)
    if core.below is not None and below is not None:
        _put_back_below(core.below, below)
    core.now = now
    if waits is not None:
        core.now += waits.now
        for name, until in waits.pending:
            core.stays.waits.put_back(core.requests[name].row, until + now)
        for name, until in waits.below:
            core.stays.waits_below.put_back(core.requests[name].row, until + now)


def _put_back_below(below: TierBelow, saved: SavedBelow) -> None:
    below.space, coming, jobs, queue, known, index, told = saved
    below._coming = {(space, group, key): number for space, group, key, number in coming}
    below._jobs = {number: (direction, space, list(own), list(held)) for number, direction, space, own, held in jobs}
    below._out.clear()
    for direction, _, own, _ in below._jobs.values():
        below._out[direction] += len(own)
    below._queue = below.contents_of(queue)
    below._below = set(known)
    saveable(below.index).restore(index)
    below._events.follow(below.policies.max_told, told)


def _is_within(hit: Hit) -> bool:
    """Whether a saved hit has taken a part of what the present step may wait for."""
    return hit.within and bool(hit.step)


def _put_back_requests(
    core: SchedulerState, saved: Sequence[SavedTracked], progress: bytes, plans: Sequence[SavedPlan]
) -> None:
    columns = core.progress_bytes
    if b"".join(columns) != progress:
        ends = list(accumulate(map(len, columns), initial=0))
        write(columns, map(progress.__getitem__, map(slice, ends, ends[1:])))
    turns = []
    for number, plan in enumerate(plans, 1):
        rows, tokens = [row for row, _ in plan.shares], [count for _, count in plan.shares]
        turns.append(PlanTokens(rows, tokens, [1] * len(rows), [], number))
    core.progress.restored(turns, [each.row for each in saved if each.scheduled])
    core.requests.clear()
    core.names.clear()
    core.loads_heard = -1
    core.stays.clear()
    for name, row, keys, hit, failures, end, lookup, asked, _, tails, tail, awaits in saved:
        known = None if asked is None else (core.ledger.jobs.verdicts, *asked, None)
        core.track(name, Tracked(row, keys, hit, failures, known, tails, tail, awaits))
        core.stays.put_back(row, end, lookup)


def _handed(core: SchedulerState, handed: Collection[tuple[str, int, int]]) -> dict[tuple[str, int, int, int], None]:
    serial, known = core.progress.serial, core.requests
    return {(name, int(serial[known[name].row]), group, end): None for name, group, end in handed} if handed else {}


def _put_back_line(stores: StoreLine, saved: SavedLine) -> None:
    chunks, line, candidates, exposed, made, stores._entered, stores.suffix[:] = saved
    own = [Chunk(each.owner, each.group, each.key, list(each.lives), each.suffix, each.tail) for each in chunks]
    stores._line = {owner: deque([own[place] for place in places]) for owner, places in line} if line else {}
    stores._candidates = {block: own[place] for block, place in candidates} if candidates else {}
    stores._exposed = {number: list(lives) for number, lives in exposed} if exposed else {}
    stores._made = {number: [own[place] for place in places] for number, places in made} if made else {}
