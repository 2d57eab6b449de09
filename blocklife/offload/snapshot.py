"""A scheduler at one moment, its ledger and its host tier included, as a plain value, and the way back to it.

Rules of this file:

* As in the ledger's snapshot: everything that decides what comes next and nothing that was only counted; a value that can be
  hashed; under other names where they are given.
* What nobody can tell apart any more is left out: a share of a plan of which its request heard no more, the number of a step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from attrs import evolve

from blocklife.errors import MisuseError
from blocklife.ledger.snapshot import Names, Snapshot, canonical_names, own_names
from blocklife.offload.core import OnItsWay, SchedulerCore, Tracked
from blocklife.offload.records import Hit, Keys
from blocklife.offload.replacement import can_be_saved
from blocklife.offload.stores import Chunk, StoreLine


class SavedProgress(NamedTuple):
    """One row of the progress table; the last four have one number for each group."""

    running: bool
    prompt: int
    known: int
    computed: int
    in_flight: int
    wanted: int
    scheduled: bool
    """Whether it is scheduled in the step that is being made."""
    placed: tuple[int, ...]
    first: tuple[int, ...]
    sealed: tuple[int, ...]
    offered: tuple[int, ...]


class SavedTracked(NamedTuple):
    """One request as the scheduler knows it; ``asked`` is what a deferred hit is good for: tokens known, and on the device."""

    name: str
    row: int
    keys: Keys
    hit: Hit | None
    failures: int
    ending: str
    asked: tuple[int, int | None] | None
    progress: SavedProgress


class SavedPlan(NamedTuple):
    """One plan that is out: rows with their tokens, and states that were handed off (request, group, boundary)."""

    number: int
    shares: tuple[tuple[int, int], ...]
    handed: tuple[tuple[str, int, int], ...]


class SavedChunk(NamedTuple):
    """One chunk that is to be stored."""

    owner: str
    group: int
    key: bytes
    lives: tuple[int, ...]
    suffix: int


class SavedLine(NamedTuple):
    """What is to be stored; chunks are named by their place in ``chunks``."""

    chunks: tuple[SavedChunk, ...]
    line: tuple[tuple[str, tuple[int, ...]], ...]
    candidates: tuple[tuple[int, int], ...]
    exposed: tuple[tuple[int, tuple[int, ...]], ...]
    made: tuple[tuple[int, tuple[int, ...]], ...]
    entered: int
    suffix: bytes


class SavedScheduler(NamedTuple):
    """A scheduler at one moment, for `OffloadScheduler.restore` on one that was made alike."""

    ledger: Snapshot
    replacement: Hashable
    gone: tuple[int, ...]
    requests: tuple[SavedTracked, ...]
    plans: tuple[SavedPlan, ...]
    handed: tuple[tuple[str, int, int], ...]
    states: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...]
    waiting_loads: tuple[tuple[str, Hit], ...]
    loading: tuple[tuple[int, bytes, str], ...]
    pinned: tuple[tuple[str, tuple[int, ...]], ...]
    preempted: tuple[str, ...]
    ending: tuple[str, ...]
    ended: tuple[str, ...]
    lost: tuple[int, ...]
    asleep: bool
    generation: str
    stores: SavedLine


# --- names --------------------------------------------------------------------------------------------------------------


def names_of(core: SchedulerCore, jobs: Iterable[int] = (), now: float = 0.0, *, canonical: bool) -> Names:
    """Names for everything that ledger and scheduler speak of; canonical ones, or their own."""
    if not canonical:
        lives = _remembered(core, [tracked.hit for tracked in core._requests.values()])
        return own_names(core.ledger, lives, now)
    lives = _remembered(core, [tracked.hit for tracked in core._requests.values() if _waits(core, tracked)])
    remembered = [*jobs, *core.stores._made, *core.stores._exposed]
    size = core.geometry.blocks_per_chunk
    return canonical_names(core.ledger, lives=lives, jobs=remembered, now=now, places_per_slot=size)


def _waits(core: SchedulerCore, tracked: Tracked) -> bool:
    """Whether the answer of a request's last lookup was to wait, and would be the same now; no other is asked for again."""
    hit, asked = tracked.hit, tracked.asked
    return hit is not None and hit.deferred and asked is not None and asked[0] == core._given_up + core.ledger.verdicts


def _remembered(core: SchedulerCore, hits: Iterable[Hit | None]) -> list[int]:
    """Every life that the scheduler names; *hits* are those that it remembers."""
    stores = core.stores
    chunks = [chunk for line in stores._line.values() for chunk in line]
    chunks += stores._candidates.values()
    chunks += [chunk for made in stores._made.values() for chunk in made]
    lives = [life for chunk in chunks for life in chunk.lives]
    lives += [life for exposed in stores._exposed.values() for life in exposed]
    lives += [life for states in core._states.values() for _, _, life in states]
    known = [*core._waiting_loads.values(), *(hit for hit in hits if hit is not None)]
    lives += [life for hit in known for own in hit.lives for life in own]
    return lives


# --- taking -------------------------------------------------------------------------------------------------------------


def take(core: SchedulerCore, names: Names) -> SavedScheduler:
    """Everything that decides what the scheduler does next, under these names."""
    policy = core.tier.policy
    if not can_be_saved(policy):
        raise MisuseError(f"{policy!r}: a policy without `snapshot` and `restore` cannot be saved (give it both)")
    serial, slots = core._progress.serial.tolist(), names.slots

    def current(handed: Iterable[tuple[str, int, int, int]]) -> tuple[tuple[str, int, int], ...]:
        rows = {name: tracked.row for name, tracked in core._requests.items()}
        return tuple([(name, group, end) for name, at, group, end in handed if name in rows and serial[rows[name]] == at])

    return SavedScheduler(
        ledger=core.ledger.snapshot(names),
        replacement=policy.snapshot(slots),
        gone=tuple([slots[slot] for slot in core.tier._gone]),
        requests=_save_requests(core, names),
        plans=tuple(
            [
                SavedPlan(number - names.plans_before, _shares(plan, serial), current(plan.handed))
                for number, plan in core._plans.items()
            ]
        ),
        handed=current(core._handed),
        states=tuple(
            [
                (name, tuple([(group, end, names.lives[life]) for group, end, life in states]))
                for name, states in core._states.items()
            ]
        ),
        waiting_loads=tuple([(name, _save_hit(hit, core, names)) for name, hit in core._waiting_loads.items()]),
        loading=tuple(sorted([(group, key, name) for (group, key), name in core._loading.items()])),
        pinned=tuple([(name, tuple([slots[slot] for slot in own])) for name, own in core._pinned.items()]),
        preempted=tuple(core._preempted),
        ending=tuple(sorted(core._ending)),
        ended=tuple(sorted(core._ended)),
        lost=tuple(sorted(core._lost)),
        asleep=core._asleep,
        generation=core.generation,
        stores=_save_line(core.stores, names),
    )


def _shares(plan: OnItsWay, serial: Sequence[int]) -> tuple[tuple[int, int], ...]:
    shares = zip(plan.rows.tolist(), plan.tokens.tolist(), plan.serials.tolist(), strict=True)
    return tuple([(row, tokens) for row, tokens, at in shares if serial[row] == at])


def _save_requests(core: SchedulerCore, names: Names) -> tuple[SavedTracked, ...]:
    """All requests with their rows of the progress table, of which each column is read once."""
    table = core._progress
    columns = (
        table.running,
        table.prompt,
        table.known,
        table.computed,
        table.in_flight,
        table.wanted,
        table.step == core._step,
    )
    flat = list(zip(*[column.tolist() for column in columns], strict=True))
    placed, first, sealed, offered = (each.T.tolist() for each in (table.placed, table.first, table.sealed, table.offered))
    found = []
    for name, tracked in core._requests.items():
        row, hit, asked, waits = tracked.row, tracked.hit, tracked.asked, _waits(core, tracked)
        if names.canonical and not waits:
            hit = None  # it is looked up again, or loads and is kept there
        by_group = tuple(placed[row]), tuple(first[row]), tuple(sealed[row]), tuple(offered[row])
        found.append(
            SavedTracked(
                name,
                row,
                tracked.keys,
                None if hit is None else _save_hit(hit, core, names),
                tracked.failures,
                tracked.ending,
                asked[1:] if waits and asked is not None else None,
                SavedProgress._make(flat[row] + by_group),
            )
        )
    return tuple(found)


def _save_hit(hit: Hit, core: SchedulerCore, names: Names) -> Hit:
    """A hit under other names; of its step only whether it is the present one."""
    return evolve(
        hit,
        step=int(hit.step == core._step),
        lives=tuple([tuple([names.lives[life] for life in own]) for own in hit.lives]),
        slots=tuple([tuple([names.slots[slot] for slot in own]) for own in hit.slots]),
    )


def _save_line(stores: StoreLine, names: Names) -> SavedLine:
    known: dict[int, int] = {}
    chunks: list[SavedChunk] = []

    def place(chunk: Chunk) -> int:
        if id(chunk) not in known:
            known[id(chunk)] = len(chunks)
            lives = tuple([names.lives[life] for life in chunk.lives])
            chunks.append(SavedChunk(chunk.owner, chunk.group, chunk.key, lives, chunk.suffix))
        return known[id(chunk)]

    def places(some: Iterable[Chunk]) -> tuple[int, ...]:
        return tuple([place(chunk) for chunk in some])

    line = tuple([(owner, places(own)) for owner, own in stores._line.items()])
    made = tuple([(names.jobs[number], places(own)) for number, own in stores._made.items() if number in names.jobs])
    by_block = sorted([(names.blocks[block], block) for block in stores._candidates])
    candidates = tuple([(name, place(stores._candidates[block])) for name, block in by_block])
    suffix = bytearray(len(stores.suffix))
    for slot, key in enumerate(stores._ledger.slots.key):
        if key is not None or not names.canonical:
            suffix[names.slots[slot]] = stores.suffix[slot]
    return SavedLine(
        tuple(chunks),
        line,
        candidates,
        tuple(
            [
                (names.jobs[number], tuple([names.lives[life] for life in lives]))
                for number, lives in stores._exposed.items()
                if number in names.jobs
            ]
        ),
        made,
        0 if names.canonical else stores._entered,
        bytes(suffix),
    )


# --- and back -----------------------------------------------------------------------------------------------------------

_STEP = 1
"""The number of the step that is being made, after a restore: that of all others is less."""


def put_back(core: SchedulerCore, saved: SavedScheduler, now: float) -> None:
    """Go back to a snapshot of a scheduler that was made alike."""
    policy = core.tier.policy
    if not can_be_saved(policy):
        raise MisuseError(f"{policy!r}: a policy without `snapshot` and `restore` cannot be restored (give it both)")
    core.ledger.restore(saved.ledger, now)
    policy.restore(saved.replacement)
    core.tier._gone = dict.fromkeys(saved.gone)
    _put_back_requests(core, saved)
    core._given_up = 0
    core._step = _STEP
    core._plans = {
        plan.number: OnItsWay(
            rows := np.array([row for row, _ in plan.shares], dtype=np.int64),
            np.array([tokens for _, tokens in plan.shares], dtype=np.int64),
            core._progress.serial[rows],
            _handed(core, plan.handed),
        )
        for plan in saved.plans
    }
    core._handed = _handed(core, saved.handed)
    core._states = {name: list(states) for name, states in saved.states}
    core._waiting_loads = dict(saved.waiting_loads)
    core._loading.clear()
    core._loading.update({(group, key): name for group, key, name in saved.loading})
    core._pinned = {name: list(slots) for name, slots in saved.pinned}
    core._preempted = dict.fromkeys(saved.preempted)
    core._ending, core._ended, core._lost = set(saved.ending), set(saved.ended), set(saved.lost)
    core._asleep, core.generation = saved.asleep, saved.generation
    _put_back_line(core.stores, saved.stores)


def _put_back_requests(core: SchedulerCore, saved: SavedScheduler) -> None:
    table = core._progress
    for column in (table.running, table.prompt, table.known, table.computed, table.in_flight, table.wanted, table.step):
        column[:] = 0
    for each in (table.placed, table.first, table.sealed, table.offered):
        each[:] = 0
    table.serial[:] = table._serial = 1  # only whether a plan and its request agree is ever asked
    core._requests, core._names = {}, {}
    for request in saved.requests:
        row, progress = request.row, request.progress
        asked = None if request.asked is None else (core.ledger.verdicts, *request.asked)
        core._requests[request.name] = Tracked(row, request.keys, request.hit, request.failures, request.ending, asked)
        core._names[row] = request.name
        table.running[row] = progress.running
        table.prompt[row], table.known[row], table.computed[row] = progress.prompt, progress.known, progress.computed
        table.in_flight[row], table.wanted[row] = progress.in_flight, progress.wanted
        table.step[row] = _STEP if progress.scheduled else 0
        table.placed[:, row], table.first[:, row] = progress.placed, progress.first
        table.sealed[:, row], table.offered[:, row] = progress.sealed, progress.offered


def _handed(core: SchedulerCore, handed: Iterable[tuple[str, int, int]]) -> dict[tuple[str, int, int, int], None]:
    serial = core._progress.serial
    return {(name, int(serial[core._requests[name].row]), group, end): None for name, group, end in handed}


def _put_back_line(stores: StoreLine, saved: SavedLine) -> None:
    chunks = [Chunk(each.owner, each.group, each.key, list(each.lives), each.suffix) for each in saved.chunks]

    def some(places: Sequence[int]) -> list[Chunk]:
        return [chunks[place] for place in places]

    stores._line = {owner: deque(some(places)) for owner, places in saved.line}
    stores._candidates = {block: chunks[place] for block, place in saved.candidates}
    stores._exposed = {number: list(lives) for number, lives in saved.exposed}
    stores._made = {number: some(places) for number, places in saved.made}
    stores._entered = saved.entered
    stores.suffix[:] = saved.suffix
