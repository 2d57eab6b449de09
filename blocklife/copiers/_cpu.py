"""Copies between two arrays in host memory, on a thread of its own: behaves like a device, without one.

*Rules of this file.* The calling thread hands out **grants**; the copying thread moves granted blocks and nothing else. Bytes
move outside the lock; every field below `_changed` is accessed under it.

*Theory.* A copy in memory is so fast that it would always have landed by the next step, so that a block reused too early would
go unnoticed. With ``blocks_per_poll=K`` a poll therefore

1. waits until everything granted before has moved,
2. collects the completions of the jobs that ended, in the order of their launch,
3. grants the next K blocks of each direction's queue, which move while the caller computes.

A launch by itself moves nothing, a grant applies only to blocks queued at that time, and unused grants expire. So every job
moves as late as such a link allows, piece by piece, at points that depend only on the calls and never on the scheduler of the
operating system. A copy reads what is in a block when it is granted.

Without a pace the thread moves what is queued at once, and a poll reports what has landed so far.

*What is not here, and why.* Streams and events: the caller computes before it launches, so the order of the calls is the order
of the copies. Deadlines: a copy in memory cannot hang, so a wait is bounded by the size of its jobs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice

import attrs
import numpy as np
from numpy.typing import NDArray

from blocklife.copiers._protocol import check_launch, check_sizes
from blocklife.errors import MisuseError
from blocklife.ledger._limits import Limits
from blocklife.ledger.records import ON_DEVICE, Completion, Direction, Ids, JobId, Result, Transfer, Worker

Words = NDArray[np.uint64]
"""The bytes of all places of one tier, ``(num_places, words_per_place)``."""

_SLAB_BYTES = 1 << 20
"""Maximum size of one numpy call; bounds the temporary array, and how long one direction delays the other."""

_OTHER = {Direction.STORE: Direction.LOAD, Direction.LOAD: Direction.STORE}


@attrs.define
class CpuStatistics:
    """What a `CpuCopier` has done so far."""

    num_launched: int = 0
    num_landed: int = 0
    num_failed: int = 0
    num_blocks_moved: int = 0
    last_error: str = ""
    """Why the latest failed job failed; empty if none did."""


@attrs.define(eq=False)
class _CpuShare:
    """One job in flight. It stays in its direction's queue until its last block has moved or one has failed."""

    order: int
    job: JobId
    source: Ids
    target: Ids
    # Invariant: 0 <= moved <= granted <= len(source); both start at 0. Grants go to the front of a queue first, so a share
    # has one only if all shares before it are granted to the end: the heads alone tell whether anything may move.
    granted: int = 0
    moved: int = 0


class CpuCopier:
    """A `Copier` between ``device`` and ``host``, both ordinary memory, paced by its polls.

    With the ``limits`` of the ledger, arrays with too few rows for it are refused; ``places_per_slot`` is how many rows of the
    host are a slot: the blocks of a chunk. Without them, a job that names a row which does not exist fails.
    """

    def __init__(
        self,
        device: Words,
        host: Words,
        *,
        worker: Worker,
        blocks_per_poll: int | None = None,
        limits: Limits | None = None,
        places_per_slot: int = 1,
    ) -> None:
        for name, tensor in (("device", device), ("host", host)):
            if tensor.ndim != 2 or tensor.dtype != np.uint64:
                raise MisuseError(f"cpu copier: {name} is {tensor.ndim}-d {tensor.dtype} (give 2-d uint64)")
        if device.shape[1] != host.shape[1]:
            raise MisuseError(f"cpu copier: places of {device.shape[1]} and {host.shape[1]} words (make them equal)")
        if blocks_per_poll is not None and blocks_per_poll < 1:
            raise MisuseError(f"cpu copier: {blocks_per_poll} blocks a poll never end a job (grant 1 or more, or None)")
        if limits is not None:
            check_sizes("cpu copier", len(device), len(host), limits, places_per_slot)
        self._device = device
        self._host = host
        self._worker = worker
        self._pace = blocks_per_poll
        self._slab = max(1, _SLAB_BYTES // max(1, device.itemsize * device.shape[1]))

        self._changed = threading.Condition()
        # Invariant: a job is in `_out` exactly while its share is in a queue. `_landed` holds what no poll has reported yet.
        # Initially all are empty.
        self._queues: dict[Direction, deque[_CpuShare]] = {direction: deque() for direction in ON_DEVICE}
        self._out: set[JobId] = set()
        self._landed: list[tuple[int, Completion]] = []
        self._turn = Direction.STORE
        self._closing = False
        self._ended = False
        self._counts = CpuStatistics()

        self._thread = threading.Thread(target=self._run, name=f"blocklife-copier-{worker}", daemon=True)
        self._thread.start()

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here."""
        return self._worker

    # The calling thread.

    def launch(self, transfer: Transfer) -> None:
        """Queue a transfer; if paced, it moves nothing before the next poll. The ids are copied; the arrays may be reused.

        Refuses: MisuseError after `close`, and for a job that is still outstanding.
        """
        job = transfer.job
        source, target = np.array(transfer.source), np.array(transfer.target)
        with self._changed:
            check_launch(job, self._out, closed=self._closing)
            self._counts.num_launched += 1
            share = _CpuShare(self._counts.num_launched, job, source, target)
            if self._pace is None:
                share.granted = len(source)
            self._queues[transfer.direction].append(share)
            self._out.add(job)
            if self._ended:
                self._fail_all()
            self._changed.notify_all()

    def poll(self) -> list[Completion]:
        """Report jobs that have ended, in launch order, and grant the next blocks. Waits for earlier grants."""
        with self._changed:
            self._wait_until_moved()
            completions = [completion for _, completion in sorted(self._landed, key=lambda landed: landed[0])]
            self._landed.clear()
            if self._pace is not None:
                for queue in self._queues.values():
                    _grant(queue, self._pace)
                self._turn = Direction.STORE
                self._changed.notify_all()
            return completions

    def wait(self, jobs: Collection[JobId]) -> None:
        """Move these jobs, and those before them in their direction, to their end; they are quiet then. Moves no others."""
        with self._changed:
            wanted = self._out.intersection(jobs)
            if not wanted:
                return
            self._wait_until_moved()
            for queue in self._queues.values():
                reach = max((place for place, share in enumerate(queue, 1) if share.job in wanted), default=0)
                _grant_all(islice(queue, reach))
            self._turn = Direction.STORE
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended or self._out.isdisjoint(wanted))

    def busy(self) -> bool:
        """Whether further polls may still report something."""
        with self._changed:
            return bool(self._landed) or any(self._queues.values())

    def close(self) -> None:
        """Move everything queued, and end the thread. Landed jobs may still be polled; repeat a close that was interrupted."""
        with self._changed:
            self._closing = True
            for queue in self._queues.values():
                _grant_all(queue)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended)
        self._thread.join()

    def statistics(self) -> CpuStatistics:
        """Counts since the start."""
        with self._changed:
            return attrs.evolve(self._counts)

    def _wait_until_moved(self) -> None:
        """If paced: wait until all granted blocks have moved, so that the next grant finds the same queues in every run."""
        if self._pace is not None:
            self._changed.wait_for(lambda: self._ended or not self._movable())

    def _movable(self) -> bool:
        return any(queue and queue[0].moved < queue[0].granted for queue in self._queues.values())

    # The copying thread.

    def _run(self) -> None:
        try:
            while self._move_piece():
                pass
        except BaseException as error:  # if the thread dies, no waiter and no job may be left behind
            with self._changed:
                self._counts.last_error = f"the copying thread died: {error!r}"
        finally:
            with self._changed:
                self._ended = True
                self._fail_all()
                self._changed.notify_all()

    def _move_piece(self) -> bool:
        """Wait for a granted piece and move it; False when the copier is closed and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._movable() or (self._closing and not any(self._queues.values())))
            if not self._movable():
                return False
            queue = self._queues[self._turn]
            direction = self._turn if queue and queue[0].moved < queue[0].granted else _OTHER[self._turn]
            self._turn = _OTHER[direction]
            share = self._queues[direction][0]
            piece = slice(share.moved, min(share.granted, share.moved + self._slab))
        try:
            self._copy(direction, share.source[piece], share.target[piece])
        except Exception as error:
            self._account(direction, share, share.moved, f"job {share.job}: {error!r}")
        else:
            self._account(direction, share, piece.stop, "")
        return True

    def _copy(self, direction: Direction, source: Ids, target: Ids) -> None:
        if min(source.min(), target.min()) < 0:
            raise IndexError("a place below 0")
        if direction is Direction.STORE:
            self._host[target] = self._device[source]
        else:
            self._device[target] = self._host[source]

    def _account(self, direction: Direction, share: _CpuShare, moved: int, error: str) -> None:
        with self._changed:
            self._counts.num_blocks_moved += moved - share.moved
            share.moved = moved
            self._counts.last_error = error or self._counts.last_error
            if error or moved == len(share.source):
                self._queues[direction].popleft()
                self._land(share, Result.FAILED if error else Result.OK)
            self._changed.notify_all()

    def _land(self, share: _CpuShare, result: Result) -> None:
        self._out.discard(share.job)
        self._counts.num_landed += 1
        self._counts.num_failed += result is Result.FAILED
        self._landed.append((share.order, Completion(share.job, self._worker, result)))

    def _fail_all(self) -> None:
        """The thread has ended: outstanding jobs have failed, and are quiet."""
        for queue in self._queues.values():
            while queue:
                self._land(queue.popleft(), Result.FAILED)


def _grant(queue: Iterable[_CpuShare], num_blocks: int) -> None:
    """Grant the next blocks of a queue from its front; unused grants expire."""
    for share in queue:
        if not num_blocks:
            return
        more = min(num_blocks, len(share.source) - share.granted)
        share.granted += more
        num_blocks -= more


def _grant_all(shares: Iterable[_CpuShare]) -> None:
    for share in shares:
        share.granted = len(share.source)
