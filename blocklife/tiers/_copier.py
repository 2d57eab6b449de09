"""Moves the content of host slots to a store below, and back, by way of a staging area that the store may write as it likes.

*Rules of this file.* A store never gets the address of a slot. Every byte goes slot, staging, store; or store, staging, check,
slot. So a store that hangs, or comes back when nobody waits any more, touches no slot; the bytes in flight are those of the
staging area; and content is written to a slot only after its checksum was found right. No call of the store, no copy and no
checksum runs under the lock; every field below `_changed` is accessed under it.

*Theory.* Each **lane** is a thread with a part of the staging area. A lane takes a **piece** of the next job, at most as many
slots as its part holds, and is in one of three phases: it rests, it **calls** the store, or it **copies** between slots and
staging. Only a lane that copies touches slots, for a time that the size of its part bounds.

*Why the parts are small.* Each byte is touched three times: by the store, by the checksum and by the copy. That costs little
while it is in the processor's cache, and more than the store's own work where it is not. So an entry is copied right after it
was checked, or packed right after it was copied; and of lanes with some MiB each, one calls while the other copies.

*Quiet.* A job is given up if the store does not come back from one of its calls in time, or if `wait` has waited long enough.
A lane begins to copy only if its job is not given up, and a job that was given up is reported once no lane copies for it: so
reported implies quiet, whatever the store does. A lane whose call hangs is lost with its part of the staging area until the
call returns, and then goes on by itself. While all are lost, jobs fail at once.

*What is not here, and why.* Which content is moved, and when: that is policy. Retries: content that did not come is a miss.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
from attrs import define, evolve, field
from numpy.typing import NDArray

from blocklife.copiers._protocol import check_launch
from blocklife.copiers._sharing import Sharing
from blocklife.errors import MisuseError
from blocklife.ledger.records import Completion, Direction, JobId, Result, TierTransfer, Worker
from blocklife.tiers._breaker import CircuitBreaker
from blocklife.tiers._calls import TimedCall
from blocklife.tiers._entry import HEADER_BYTES, EntryVerdict, Identity, check, pack
from blocklife.tiers._protocol import ContentStore, Page, Removing, StoreOutcome

_LANE_BYTES = 4 << 20
"""The part of a lane by default, unless one entry is larger: what was fast wherever it was measured (specs/measurements.md)."""
_ALIGNED = 4096
"""Entries begin at a multiple of this in the staging area."""
_PIECE_MIN = 8
"""A job of more slots is divided among the lanes."""
_LOOK_EVERY_S = 0.05
"""How often a `wait` looks whether a call hangs."""
_OTHER = {Direction.DEMOTE: Direction.PROMOTE, Direction.PROMOTE: Direction.DEMOTE}


@enum.unique
class _SlotFate(enum.Enum):
    """What became of one slot of a job; each value is the name under which `StoreCopierStatistics` counts it."""

    MOVED = "moved"
    THERE = "already_there"
    ABSENT = "absent"
    DAMAGED = "damaged"
    FOREIGN = "foreign"
    REFUSED = "refused"
    FAILED = "failed"
    SKIPPED = "skipped"

    __hash__ = object.__hash__  # each member is a singleton, so identity is enough


_PUT_FATES = {StoreOutcome.OK: _SlotFate.MOVED, StoreOutcome.FULL: _SlotFate.REFUSED}
_GET_FATES = {StoreOutcome.ABSENT: _SlotFate.ABSENT, StoreOutcome.WRONG_SIZE: _SlotFate.DAMAGED}
_CHECK_FATES = {verdict: _SlotFate[verdict.name.replace("GOOD", "MOVED")] for verdict in EntryVerdict}


@define
class StoreCopierStatistics:
    """What a `StoreCopier` has done so far, in slots unless noted otherwise."""

    demoted: int = 0
    """Put into the store."""
    promoted: int = 0
    """Brought from the store into a slot, checked."""
    already_there: int = 0
    """Not put, because the store had them."""
    absent: int = 0
    """Not brought, because the store had them no more."""
    damaged: int = 0
    """Not brought, because what the store had was cut or changed."""
    foreign: int = 0
    """Not brought, because what the store had was made for something else."""
    refused: int = 0
    """Not put, because the store was full."""
    failed: int = 0
    """Calls that failed, or were given up."""
    skipped: int = 0
    """Not tried, because the store was down."""
    bytes_demoted: int = 0
    bytes_promoted: int = 0
    hung_calls: int = 0
    """Calls of the store that did not come back in time."""
    threads_lost: int = 0
    """Threads that wait for such a call now."""
    last_error: str = ""
    """Why the latest call failed that raised, which no store may; empty if none did."""


@define(eq=False)
class _TierShare:
    """One job that is out."""

    transfer: TierTransfer
    positions: Sequence[int]
    """Which slots of the transfer are moved here: all, or those that this rank writes."""
    # Invariant: `taken` slots were handed to lanes, `done` of them in pieces that are over and `pieces` others that are not;
    # `copying` lanes touch slots of this job now. Once `given_up`, no lane begins to, and the job is reported when `copying`
    # is 0. Initially all are 0.
    taken: int = 0
    done: int = 0
    pieces: int = 0
    copying: int = 0
    given_up: bool = False
    broken: bool = False
    missing: list[int] = field(factory=list)


@define(eq=False)
class _Lane:
    """A thread and its part of the staging area."""

    staging: mmap.mmap
    entries: list[memoryview]
    payloads: NDArray[np.uint8]
    addresses: list[int]
    call: TimedCall
    share: _TierShare | None = None
    """The job of the piece that it works on; a call is always for one."""


def _check_host(host: NDArray[np.uint8], slot_bytes: int) -> None:
    if host.ndim != 2 or host.dtype != np.uint8 or host.shape[1] != slot_bytes:
        raise MisuseError(f"store copier: host is {host.shape} {host.dtype} (give (num_slots, {slot_bytes}) uint8)")


class StoreCopier:
    """Like a `Copier`, for `TierTransfer`: moves one worker's part of content between ``host`` and a store.

    *host* is the memory of the slots, ``(num_slots, slot_bytes)`` of uint8; the view is the caller's. The staging area has
    *staging_bytes*, shared by *num_threads* lanes, and is registered with the store; by default each lane has 4 MiB, or room
    for one entry if that is more. A larger area is slower where it does not fit into the processor's cache. A call of the store
    that takes longer than *timeout_s* is given up. The store and the breakers are the caller's to close and to share: *breaker*
    judges promotions, *put_breaker* demotions. They are two, because a disk that takes nothing any more may give all that it
    has; one for both would skip gets while puts fail.

    Refuses: MisuseError for memory of another shape than the identity says, and for a staging area without room for one entry
    in each lane.

    *shared*: this rank has the slots together with its neighbours, all of which hold the same content. The rank that writes a
    slot moves it. The store has one part for all of them, and `Identity.num_ranks` counts such neighbourhoods.
    """

    def __init__(
        self,
        store: ContentStore,
        host: NDArray[np.uint8],
        identity: Identity,
        *,
        worker: Worker,
        shared: Sharing | None = None,
        breaker: CircuitBreaker | None = None,
        put_breaker: CircuitBreaker | None = None,
        staging_bytes: int | None = None,
        num_threads: int = 2,
        timeout_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_host(host, identity.slot_bytes)
        if num_threads < 1 or timeout_s <= 0:
            raise MisuseError(f"store copier: {num_threads} threads and {timeout_s} s move nothing (give more)")
        if shared is not None and worker % shared.num_ranks != shared.rank:
            raise MisuseError(
                f"store copier: worker {worker} is not {shared.rank} of its {shared.num_ranks} neighbours (give the rank among "
                "those that share)"
            )
        self._shared = shared
        self._part = worker if shared is None else Worker(worker // shared.num_ranks)
        identity.name(b"", 0, self._part, b"")  # refuses a rank that cannot be
        self._store = store
        self._host = host
        self._identity = identity
        self._worker = worker
        self._breakers = {
            Direction.PROMOTE: CircuitBreaker(clock=clock) if breaker is None else breaker,
            Direction.DEMOTE: CircuitBreaker(clock=clock) if put_breaker is None else put_breaker,
        }
        self._timeout_s = timeout_s
        self._clock = clock
        self._lanes = self._make_lanes(staging_bytes, num_threads)

        self._changed = threading.Condition()
        # Invariant: a job is in `_out` until it is in `_landed`, which holds what no poll has reported yet. It is in a queue as
        # long as it has slots that no lane has taken. Initially all are empty.
        self._queues: dict[Direction, deque[_TierShare]] = {Direction.PROMOTE: deque(), Direction.DEMOTE: deque()}
        self._out: dict[JobId, _TierShare] = {}
        self._landed: list[Completion] = []
        self._turn = Direction.PROMOTE
        self._closing = False
        self._counts = StoreCopierStatistics()
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"blocklife-store-{worker}-{number}", daemon=True)
            for number, lane in enumerate(self._lanes)
        ]
        for thread in self._threads:
            thread.start()

    def _make_lanes(self, staging_bytes: int | None, num_threads: int) -> list[_Lane]:
        entry_bytes = self._identity.entry_bytes
        stride = -(-entry_bytes // _ALIGNED) * _ALIGNED
        if staging_bytes is None:
            staging_bytes = num_threads * max(_LANE_BYTES, stride)
        count = staging_bytes // num_threads // stride
        if count < 1:
            least = num_threads * stride
            raise MisuseError(f"store copier: {staging_bytes:,} bytes of staging have no room (give at least {least:,})")
        lanes = []
        for _ in range(num_threads):
            staging = mmap.mmap(-1, count * stride)
            rows = np.frombuffer(staging, np.uint8).reshape(count, stride)
            address = int(rows.ctypes.data)
            whole = memoryview(staging)
            entries = [whole[row * stride : row * stride + entry_bytes] for row in range(count)]
            addresses = [address + row * stride for row in range(count)]
            self._store.register(address, count * stride)
            lanes.append(_Lane(staging, entries, rows[:, HEADER_BYTES:entry_bytes], addresses, TimedCall(self._timeout_s)))
        return lanes

    @property
    def worker(self) -> Worker:
        """The rank whose part, or whose share of a part, is moved here."""
        return self._worker

    # --- the calling thread --------------------------------------------------------------------------------------------

    def launch(self, transfer: TierTransfer) -> None:
        """Queue a transfer; returns before its bytes have moved.

        Holds: slots of a demotion may be read, and slots of a promotion written, from now until the job is quiet.
        Refuses: MisuseError after `close`, for a job that is still outstanding, and for slots that there are not.
        """
        job = transfer.job
        with self._changed:
            check_launch(job, self._out, closed=self._closing)
            low, high = int(transfer.slots.min()), int(transfer.slots.max())
            if low < 0 or high >= len(self._host):
                raise MisuseError(f"job {job}: there is no slot {low if low < 0 else high} among {len(self._host)}")
            positions: Sequence[int] = range(len(transfer.slots))
            if self._shared is not None:
                positions = np.flatnonzero(self._shared.writes_slots(transfer.slots)).tolist()
            share = self._out[job] = _TierShare(transfer, positions)
            if positions:
                self._queues[transfer.direction].append(share)
            self._land_if_over(share)
            self._give_up_hung()
            self._changed.notify_all()

    def poll(self) -> list[Completion]:
        """Report the jobs that ended since the last poll; never raises because of a store.

        ``missing`` of a promotion are the slots that hold nothing usable, of a demotion those that the store does not have. A
        job is FAILED if the store did not come back in time; nothing is known of its slots then.
        """
        with self._changed:
            self._give_up_hung()
            landed, self._landed = self._landed, []
            return landed

    def wait(self, jobs: Collection[JobId]) -> None:
        """Block until these jobs are quiet, *timeout_s* at most: what is not over by then is given up, and FAILED."""
        with self._changed:
            deadline = self._clock() + self._timeout_s
            while wanted := [self._out[job] for job in jobs if job in self._out]:
                self._give_up_hung()
                if self._clock() >= deadline:
                    for share in wanted:
                        self._give_up(share)
                if not self._out.keys().isdisjoint(jobs):
                    self._changed.wait(_LOOK_EVERY_S)

    def busy(self) -> bool:
        """Whether further polls may still report something."""
        with self._changed:
            return bool(self._landed or self._out)

    def close(self) -> None:
        """Drain: wait until every job is quiet, then end the threads. A thread whose call hangs ends when the call returns."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.wait(list(self._out))
        for lane, thread in zip(self._lanes, self._threads, strict=True):
            while thread.is_alive() and not self._lost(lane):
                thread.join(_LOOK_EVERY_S)

    def statistics(self) -> StoreCopierStatistics:
        """Counts since the start."""
        with self._changed:
            return evolve(
                self._counts,
                bytes_demoted=self._counts.demoted * self._identity.slot_bytes,
                bytes_promoted=self._counts.promoted * self._identity.slot_bytes,
                threads_lost=sum(lane.call.hangs for lane in self._lanes),
            )

    def _count(self, direction: Direction, fate: _SlotFate, slots: int) -> None:
        name = fate.value if fate is not _SlotFate.MOVED else "demoted" if direction is Direction.DEMOTE else "promoted"
        setattr(self._counts, name, getattr(self._counts, name) + slots)

    def _lost(self, lane: _Lane) -> bool:
        with self._changed:
            self._give_up_hung()
            return lane.call.hangs

    # --- giving up, under the lock -------------------------------------------------------------------------------------

    def _give_up_hung(self) -> None:
        """Give up the jobs whose call of the store hangs, and all that wait while every lane is lost."""
        now = self._clock()
        for lane in self._lanes:
            if lane.call.look(now) and lane.share is not None:
                self._counts.hung_calls += 1
                self._breakers[lane.share.transfer.direction].failed()
                self._give_up(lane.share)
        if all(lane.call.hangs for lane in self._lanes):
            for share in list(self._out.values()):
                self._give_up(share)

    def _give_up(self, share: _TierShare) -> None:
        if share.given_up:
            return
        share.given_up = True
        queue = self._queues[share.transfer.direction]
        if share in queue:
            queue.remove(share)
        self._count(share.transfer.direction, _SlotFate.FAILED, len(share.positions) - share.done)
        self._land_if_over(share)

    def _land_if_over(self, share: _TierShare) -> None:
        """Report a job that is over; one that was given up as soon as no lane touches its slots."""
        job = share.transfer.job
        all_taken = share.taken == len(share.positions)
        is_over = not share.copying if share.given_up else all_taken and not share.pieces
        if not is_over or job not in self._out:
            return
        del self._out[job]
        if share.given_up or share.broken:
            self._landed.append(Completion(job, self._worker, Result.FAILED))
        else:
            self._landed.append(Completion(job, self._worker, Result.OK, sorted(share.missing)))
        self._changed.notify_all()

    # --- a lane's thread -----------------------------------------------------------------------------------------------

    def _run(self, lane: _Lane) -> None:
        while (taken := self._next_piece(lane)) is not None:
            share, piece = taken
            fates: Sequence[_SlotFate] = ()
            try:
                fates = self._move(lane, share, piece)
            except Exception as problem:  # ours; the job fails, and the lane goes on
                self._note(problem)
            finally:
                self._account(lane, share, piece, fates)

    def _next_piece(self, lane: _Lane) -> tuple[_TierShare, Sequence[int]] | None:
        """The next piece of a job, of the directions by turns; None when the copier is closed and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._queues.values()) or self._closing)
            direction = self._turn if self._queues[self._turn] else _OTHER[self._turn]
            queue = self._queues[direction]
            if not queue:
                return None
            self._turn = _OTHER[direction]
            share = queue[0]
            total = len(share.positions)
            size = min(len(lane.entries), max(_PIECE_MIN, -(-total // len(self._lanes))))
            piece = share.positions[share.taken : share.taken + size]
            share.taken += len(piece)
            share.pieces += 1
            if share.taken == total:
                queue.popleft()
            lane.share = share
            return share, piece

    def _account(self, lane: _Lane, share: _TierShare, piece: Sequence[int], fates: Sequence[_SlotFate]) -> None:
        with self._changed:
            lane.share = None
            share.pieces -= 1
            if not share.given_up:
                direction = share.transfer.direction
                share.broken = share.broken or not fates
                share.done += len(piece)
                for at, fate in zip(piece, fates, strict=False):
                    self._count(direction, fate, 1)
                    if fate is not _SlotFate.MOVED and fate is not _SlotFate.THERE:
                        share.missing.append(at)
            self._land_if_over(share)

    def _move(self, lane: _Lane, share: _TierShare, piece: Sequence[int]) -> Sequence[_SlotFate]:
        """Move one piece; what became of each of its slots."""
        transfer = share.transfer
        breaker = self._breakers[transfer.direction]
        if not breaker.allows():
            return [_SlotFate.SKIPPED] * len(piece)
        names = [self._identity.name(transfer.space, transfer.groups[at], self._part, transfer.keys[at]) for at in piece]
        if transfer.direction is Direction.DEMOTE:
            fates = self._demote(lane, share, piece, names)
        else:
            fates = self._promote(lane, share, piece, names)
        if _SlotFate.FAILED in fates:
            breaker.failed()
        else:
            breaker.succeeded()
        return fates

    def _demote(self, lane: _Lane, share: _TierShare, piece: Sequence[int], names: Sequence[bytes]) -> list[_SlotFate]:
        there = self._call(lane, len(names), lambda: self._store.exists(names))
        fates = [_SlotFate.THERE if outcome is StoreOutcome.OK else _SlotFate.FAILED for outcome in there]
        lacking = [number for number, outcome in enumerate(there) if outcome not in (StoreOutcome.OK, StoreOutcome.FAILED)]
        if not lacking:
            return fates
        with self._copying(share) as may_copy:
            if not may_copy:
                return fates
            for number in lacking:
                lane.payloads[number] = self._host[share.transfer.slots[piece[number]]]
                pack(lane.entries[number], self._identity, names[number])
        pages = self._pages(lane, names, lacking)
        for number, outcome in zip(lacking, self._call(lane, len(pages), lambda: self._store.put(pages)), strict=True):
            fates[number] = _PUT_FATES.get(outcome, _SlotFate.FAILED)
        return fates

    def _promote(self, lane: _Lane, share: _TierShare, piece: Sequence[int], names: Sequence[bytes]) -> list[_SlotFate]:
        pages = self._pages(lane, names, range(len(names)))
        outcomes = self._call(lane, len(pages), lambda: self._store.get(pages))
        fates = [_GET_FATES.get(outcome, _SlotFate.FAILED) for outcome in outcomes]
        brought = [number for number, outcome in enumerate(outcomes) if outcome is StoreOutcome.OK]
        with self._copying(share) as may_copy:
            for number in brought:
                fates[number] = _CHECK_FATES[check(lane.entries[number], self._identity, names[number])]
                if may_copy and fates[number] is _SlotFate.MOVED:
                    self._host[share.transfer.slots[piece[number]]] = lane.payloads[number]
        spoilt = [name for name, fate in zip(names, fates, strict=True) if fate in (_SlotFate.DAMAGED, _SlotFate.FOREIGN)]
        store = self._store
        if spoilt and isinstance(store, Removing):
            self._call(lane, len(spoilt), lambda: store.remove(spoilt))
        return fates

    def _pages(self, lane: _Lane, names: Sequence[bytes], numbers: Iterable[int]) -> list[Page]:
        size = self._identity.entry_bytes
        return [Page(names[number], lane.addresses[number], size) for number in numbers]

    @contextlib.contextmanager
    def _copying(self, share: _TierShare) -> Iterator[bool]:
        """While slots of a job may be touched; False if the job was given up, and they may not."""
        with self._changed:
            may_copy = not share.given_up
            share.copying += may_copy
        try:
            yield may_copy
        finally:
            with self._changed:
                share.copying -= may_copy
                self._land_if_over(share)

    def _call(self, lane: _Lane, count: int, call: Callable[[], list[StoreOutcome]]) -> list[StoreOutcome]:
        """Call the store; whatever it does, the result is one outcome for each key."""
        with self._changed:
            lane.call.begin(self._clock())
        try:
            outcomes = call()
            if len(outcomes) != count:
                raise ValueError(f"{len(outcomes)} outcomes for {count} keys")
            return outcomes
        except Exception as problem:  # no store may raise, and one that does fails its call alone
            self._note(problem)
            return [StoreOutcome.FAILED] * count
        finally:
            with self._changed:
                lane.call.end()

    def _note(self, problem: Exception) -> None:
        with self._changed:
            self._counts.last_error = repr(problem)
