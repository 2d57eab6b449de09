"""Copies between a torch device and host memory, ordered by events and not by the host.

*Rules of this file.* Only `wait` and `close` block the host. A failed copy never raises in the engine's loop: it becomes the
result. `poll` returns a completion, FAILED or not, only once its places are proven quiet.

*Theory.* The engine calls `computed` after it has queued a forward pass, and `before_forward` before it queues the next. A
launch makes its stream wait for earlier users of its places (`_order`), queues the runs of bytes, and marks the places. When
the event of a mark has passed, the job and all before it on its stream are quiet, and are reported. Durations come from the
device (`Timer`); without a device timer they are measured by the host, from the launch until the job was found quiet.

*Small loads and large ones.* A load of more than 64 MiB goes by one of four streams of their own, unless it is launched in
`needed_now`: by the one with the fewest bytes to move. However large it is, no small load waits for all of it, unless they meet
at a block, and large ones take turns (`_launching`). On CUDA a small load waits in the launching thread for at most one part of
a store or a large load, 64 MiB and 4,096 runs, and on the device for at most the 512 MiB of large loads that are out at a time.
On each stream loads move in the order of their launch.

*Failures.* There are four kinds: a launch raises, an event returns an error, the deadline passes, or the device gives no event.
In each case the result is FAILED from then on, whatever the copy does later, and `suspect` lists the job with its places. The
job is reported once the device is proven quiet: its own event or a later one of its stream has passed, or `wait` has
returned, or the engine called `proven`. A job whose bytes were never queued is reported by the next poll.

*Why FAILED is not reported at once.* A completion releases the places for reuse: the protocol promises that reported implies
quiet. Failing a request early, with its places still reserved, is what the ledger's own deadline does; it needs no report.

*What wait can promise.* A copy that hangs on a device cannot be aborted from here. `wait` then does not return, and can be
interrupted from the keyboard; if the device returns only errors, it raises DeviceLostError. Returning is the proof.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

import numpy as np
from attrs import define, evolve, field, frozen

from blocklife.copiers._movers import MoverTable
from blocklife.copiers._protocol import check_launch, check_sizes
from blocklife.copiers.torch._driver import HIGH, LOW, MIDDLE, DeviceLostError
from blocklife.copiers.torch._launching import PART_BYTES, device_for
from blocklife.copiers.torch._layout import CopyLayout, HostRows, KvCache, Pages
from blocklife.copiers.torch._order import CHANNELS, COMPUTE, COPYING, Channel, Order, StreamMark, Use, checked
from blocklife.copiers.torch._streams import Stream, StreamDevice, Timer
from blocklife.errors import MisuseError
from blocklife.ledger._limits import Limits
from blocklife.ledger.records import Completion, Direction, Ids, JobId, Result, Transfer, Worker

_PRIORITY = {Use.COMPUTE: LOW, Use.STORE: LOW, Use.LOAD: HIGH, Use.BULK: MIDDLE}


class _Covered(enum.Enum):
    """What the newest mark of the engine's work covers."""

    NOTHING = "nothing: no mark was made, or the device refused to make it"
    BEFORE_FORWARD = "all that was queued before the forward pass that is being queued now"
    ALL = "all that the engine has queued"


@frozen(eq=False)
class Suspect:
    """A job that has failed and whose places are not proven quiet."""

    job: JobId
    direction: Direction
    blocks: Ids
    places: Ids
    num_bytes: int
    why: str


@define(eq=False)
class TorchStatistics:
    """What a `TorchCopier` has done so far."""

    num_launched: int = 0
    num_landed: int = 0
    num_failed: int = 0
    num_suspect: int = 0
    """Failed jobs whose places are not proven quiet yet; not among the landed ones."""
    num_runs: int = 0
    """Runs of bytes queued, after neighbours were merged."""
    num_bytes: int = 0
    """Bytes queued."""
    num_events: int = 0
    """Events made; they are reused."""
    last_error: str = ""
    """Why the latest failed job failed; empty if none did."""
    left_out: dict[str, str] = field(factory=dict)
    """The methods of copying that do not work here, and why; copies go on without them, more slowly."""


@define(eq=False)
class _GpuShare:
    """One job in flight, in the queue of its channel from its launch until it is proven quiet."""

    order: int
    job: JobId
    direction: Direction
    blocks: Ids
    places: Ids
    num_bytes: int
    mark: StreamMark
    """Behind all of it."""
    timer: Timer | None
    """The device's timer; None if it has none."""
    launched: float
    due: float
    why: str
    """Why it has failed; empty while it has not."""
    stuck: bool
    """Whether more steps will not help it: its event hangs, returns an error, or does not exist."""
    early: tuple[StreamMark, ...] = ()
    """Behind each part but the last, where it goes in parts."""


class TorchCopier:
    """A `Copier` between the tensors of a cache and the host's rows. It owns its streams; cache and host are the caller's.

    ``deadline_s`` bounds how long a job may take, from its launch, before it is suspect; None for never. With the ``limits`` of
    the ledger, a cache or rows too few for it are refused; ``places_per_slot`` is how many places of the host are a slot:
    the blocks of a chunk. Without them, a job that names a place which does not exist fails.

    ``movers`` pins which method of copying takes which copy on a CUDA device; None: a probe of some 50 ms decides. It is not
    for a ``device`` that is given.
    """

    def __init__(
        self,
        cache: KvCache,
        host: HostRows,
        *,
        worker: Worker,
        device: StreamDevice | None = None,
        movers: MoverTable | None = None,
        deadline_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        limits: Limits | None = None,
        places_per_slot: int = 1,
    ) -> None:
        if deadline_s is not None and not deadline_s > 0:
            raise MisuseError(f"torch copier: a deadline of {deadline_s} s passes at once (give more than 0, or None)")
        if cache.device.type == "cuda" and not host.pinned:
            raise MisuseError("torch copier: copies from a CUDA device to pageable memory block the host (give pinned memory)")
        self._layout = CopyLayout(cache, host)
        if limits is not None:
            check_sizes("torch copier", cache.num_blocks, self._layout.num_places, limits, places_per_slot)
        self._device = device_for(self._layout, clock, movers) if device is None else device
        self._order = Order(self._device, cache.num_blocks, self._layout.num_places)
        self._streams = {
            channel: self._device.stream(channel.name, copies=use in COPYING, priority=_PRIORITY[use])
            for use, channels in CHANNELS.items()
            for channel in channels
        }
        self._worker = worker
        self._deadline_s = float("inf") if deadline_s is None else deadline_s
        self._clock = clock
        self._large_bytes = PART_BYTES
        """A load of more bytes is a large one."""
        # Invariant: a job is in `_out` exactly while its share is in a queue; `_landed` holds what no poll has reported yet.
        # Initially nothing was computed or launched.
        self._queues: dict[Channel, deque[_GpuShare]] = {channel: deque() for each in COPYING.values() for channel in each}
        self._out: dict[JobId, _GpuShare] = {}
        self._landed: list[tuple[int, Completion]] = []
        self._took: dict[JobId, float] = {}
        self._durations: dict[JobId, float] = {}
        self._timers: list[Timer] = []
        self._marked = _Covered.NOTHING
        self._behind = False
        """Whether what is launched is ordered as before the forward pass that is being queued."""
        self._needed_now = False
        """Whether the loads that are launched go first."""
        self._num_parts = 1
        """In how many parts, each of some layers, they go; with more than one, each layer waits for its own."""
        self._by_layer: list[tuple[Channel, list[tuple[int, StreamMark]]]] = []
        """The loads in parts since the last `computed`, each with the layer behind each part, and its mark."""
        self._closed = False
        self._counts = TorchStatistics()

    @property
    def worker(self) -> Worker:
        """The rank whose share is moved here."""
        return self._worker

    # The engine's part.

    def computed(self, engine: object = None) -> None:
        """Order copies launched from now on after the work that the engine has queued so far.

        *engine* is a stream or event of the device, or a tuple of some; None for the current stream of the calling thread. Call
        it after each forward pass, and once before the first launch. Refuses: MisuseError for anything else, and while a graph
        is captured. If the device raises, the error is raised here, and nothing may be launched then.
        """
        self._refuse_capture("what was computed cannot be marked")
        marked, self._marked = self._marked, _Covered.NOTHING
        try:
            for each in _each(engine):
                self._device.follow(self._streams[COMPUTE], each)
        except MisuseError:
            self._marked = marked
            raise
        self._order.sweep(COMPUTE)
        self._order.mark(COMPUTE, self._streams[COMPUTE])
        self._by_layer.clear()
        self._marked = _Covered.ALL

    def before_forward(self, engine: object = None, blocks: Sequence[int] | Ids | None = None) -> None:
        """Order work that the engine queues next after the loads into these blocks (None: after all loads).

        *engine* is a stream or a tuple of some, None for the current one. Next: the forward pass, and then `computed`; nothing
        may be launched between them. Refuses: MisuseError for a block that does not exist and while a graph is captured,
        DeviceLostError if the loads cannot be waited for.
        """
        self._refuse_capture("no forward pass can be ordered after loads")
        ids = None if blocks is None else checked(blocks, self._layout.cache.num_blocks)
        for event in self._order.before(COMPUTE, ids, None):
            for each in _each(engine):
                self._device.precede(event, each)
        if self._marked is _Covered.ALL:
            self._marked = _Covered.BEFORE_FORWARD

    def fence(self, jobs: Collection[JobId], engine: object = None) -> None:
        """Order work that the engine queues next after these copies; the host goes on. Jobs that are quiet are ignored.

        *engine* is a stream, None for the current one. Refuses: as `before_forward`.
        """
        self._refuse_capture("no forward pass can be ordered after copies")
        blocks = [share.blocks for job in jobs if (share := self._out.get(job)) is not None]
        if blocks:
            for event in self._order.before(COMPUTE, np.concatenate(blocks), None, on_demand=True):
                self._device.precede(event, engine)

    @contextlib.contextmanager
    def behind_forward(self) -> Iterator[None]:
        """Copies launched in it run beside the forward pass that was queued since the last `computed`, not after it.

        Needs: the blocks of a store were final at that `computed`, and what was queued since writes none of them; of the blocks
        of a load, it touches none.
        """
        self._behind = True
        try:
            yield
        finally:
            self._behind = False

    @contextlib.contextmanager
    def needed_now(self, num_parts: int = 1) -> Iterator[None]:
        """Loads launched in it go before large ones, whatever their size: the forward pass that is queued next reads them.

        They go in so many parts, layer after layer, and no more than there are layers. With more than one, each layer of that
        pass can wait for its own (`before_layer`).
        """
        self._needed_now, self._num_parts = True, max(1, num_parts)
        try:
            yield
        finally:
            self._needed_now, self._num_parts = False, 1

    def before_layer(self, layer: int, engine: object = None) -> None:
        """Order work that the engine queues next after what loads in parts bring to this layer, counted through all groups.

        For loads that were launched in `needed_now` since the last `computed`, and are not fenced. Call it for each layer,
        before anything reads its blocks. Refuses: as `before_forward`; MisuseError for a layer that does not exist.
        """
        self._refuse_capture("no layer can be ordered after loads")
        if not 0 <= layer < len(self._layout.cache.layers):
            raise MisuseError(f"layer {layer}: does not exist (there are {len(self._layout.cache.layers)})")
        for channel, parts in self._by_layer:
            mark = next(mark for end, mark in parts if layer < end)
            for event in self._order.behind(COMPUTE, channel, mark):
                self._device.precede(event, engine)

    # The copier's protocol.

    def launch(self, transfer: Transfer) -> None:
        """Queue a transfer on a stream of its use, after all earlier users of its places.

        Refuses: MisuseError after `close`, for a job that is still outstanding, before the first call of `computed`, and while
        a graph is captured.
        """
        job, direction = transfer.job, transfer.direction
        check_launch(job, self._out, closed=self._closed)
        self._refuse_capture(f"job {job} cannot LAUNCH")
        enough = (_Covered.ALL, _Covered.BEFORE_FORWARD) if self._behind else (_Covered.ALL,)
        if self._marked not in enough:
            raise MisuseError(f"job {job}: cannot LAUNCH without knowing what to wait for (call computed() first)")
        self._counts.num_launched += 1
        order = self._counts.num_launched
        try:
            blocks, places, group_sizes = self._layout.own_part(transfer)
            pages = self._layout.pages(transfer, blocks, places, group_sizes)
            channel = self._channel(direction, pages.total)
            stream = self._streams[channel]
            for event in self._order.before(channel, blocks, places):
                stream.wait(event)
        except Exception as error:  # no byte was queued: it has failed, and is quiet
            self._land(order, job, f"job {job}: {error!r}")
            return
        why, launched, timer = "", self._clock(), self._started(stream)
        *early, last = self._parts(pages, direction)
        ends: list[tuple[int, StreamMark]] = []
        for end, part in early:
            why = why or self._copied(stream, part, direction)
            ends.append((end, self._order.mark(channel, stream, blocks, places)))
        why = why or self._copied(stream, last[1], direction)
        timer = self._stopped(timer, stream)
        mark = self._order.mark(channel, stream, blocks, places)
        if direction is Direction.LOAD and self._num_parts > 1:
            self._by_layer.append((channel, [*ends, (last[0], mark)]))
        why = why and f"job {job}: {why}"
        why = why or (mark.error and f"job {job}: {mark.error}")
        due = launched + self._deadline_s
        share = _GpuShare(
            order, job, direction, blocks, places, pages.total, mark, timer, launched, due, why, bool(mark.error),
            tuple([each for _, each in ends]),
        )  # fmt: skip
        self._counts.num_runs += len(pages)
        self._counts.num_bytes += pages.total
        self._counts.last_error = why or self._counts.last_error
        self._queues[channel].append(share)
        self._out[job] = share

    def _parts(self, pages: Pages, direction: Direction) -> list[tuple[int, Pages]]:
        """What is copied at once, with the layer behind it."""
        num_layers = len(self._layout.cache.layers)
        if direction is Direction.STORE or self._num_parts == 1:
            return [(num_layers, pages)]
        return list(pages.by_layers(min(self._num_parts, num_layers), num_layers))

    def _copied(self, stream: Stream, pages: Pages, direction: Direction) -> str:
        """Queue a copy; what it has raised, after which some of it may be under way."""
        try:
            if len(pages):  # of a store into shared memory others may have all to do
                stream.copy(pages, direction)
        except Exception as error:
            return repr(error)
        return ""

    def poll(self) -> list[Completion]:
        """Report the jobs that are over and quiet since the last poll, in launch order. Queries the device without blocking."""
        for channel, queue in self._queues.items():
            if queue:
                self._advance(channel)
        completions = [completion for _, completion in sorted(self._landed, key=lambda landed: landed[0])]
        self._landed.clear()
        self._took, self._durations = {}, self._took
        return completions

    def durations(self) -> dict[JobId, float]:
        """Durations in seconds of the copies reported by the last `poll`, without failed ones."""
        return self._durations

    def wait(self, jobs: Collection[JobId]) -> None:
        """Block until these jobs, and those before them on their streams, are quiet. See the head of the file.

        Raises DeviceLostError if the device can prove nothing any more.
        """
        wanted = self._out.keys() & set(jobs)
        for channel, queue in self._queues.items():
            reach = max((count for count, share in enumerate(queue, 1) if share.job in wanted), default=0)
            if reach:
                self._prove(queue[reach - 1])
                for share in islice(queue, reach):  # each event knows what became of its own copy
                    self._has_passed(share)
                self._report_quiet(channel, reach)

    def busy(self) -> bool:
        """Whether further polls may still report something; stuck jobs do not count."""
        return bool(self._landed) or any(not share.stuck for share in self._out.values())

    def close(self) -> None:
        """Wait for all outstanding jobs; nothing may be launched afterwards. Landed jobs may still be polled.

        Raises DeviceLostError as `wait` does; repeat it once the engine has called `proven` or the device answers again.
        """
        self._closed = True
        self.wait([*self._out])
        self._device.close()

    # What went wrong.

    def suspect(self) -> tuple[Suspect, ...]:
        """The jobs that have failed and whose places may still be read or written, in launch order."""
        shares = sorted((share for share in self._out.values() if share.why), key=lambda share: share.order)
        return tuple(
            Suspect(share.job, share.direction, share.blocks, share.places, share.num_bytes, share.why) for share in shares
        )

    def proven(self) -> None:
        """Call this when it is proven by other means that the device is quiet: it was reset, or everything on it has ended.

        Every outstanding job is over: FAILED, unless its event had passed.
        """
        for channel, queue in self._queues.items():
            self._advance(channel)
            for share in queue:
                share.why = share.why or f"job {share.job}: still out when the device was proven quiet"
            self._report_quiet(channel, len(queue))
        self._order.reset()
        self._marked = _Covered.NOTHING

    def statistics(self) -> TorchStatistics:
        """Counts since the start."""
        return evolve(
            self._counts,
            num_suspect=sum(bool(share.why) for share in self._out.values()),
            num_events=self._order.num_events,
            left_out=self._device.left_out,
        )

    def _refuse_capture(self, what: str) -> None:
        """What is queued while a graph is captured does not run, and runs again with every replay of the graph."""
        if self._device.captures():
            raise MisuseError(f"torch copier: {what} while a CUDA graph is captured (capture it before or after the step)")

    def _channel(self, direction: Direction, num_bytes: int) -> Channel:
        """Where a transfer of so many bytes goes: of the channels of its use, the one with the fewest bytes out."""
        loads = Use.LOAD if self._needed_now or num_bytes <= self._large_bytes else Use.BULK
        channels = COPYING[Use.STORE if direction is Direction.STORE else loads]
        return min(channels, key=lambda channel: sum(share.num_bytes for share in self._queues[channel]))

    def _advance(self, channel: Channel) -> None:
        """Settle what the events of one channel prove, and find what is overdue."""
        queue, quiet = self._queues[channel], 0
        for count, share in enumerate(queue, 1):
            passed = self._has_passed(share)
            if passed is False:
                break
            quiet = count if passed else quiet
        self._report_quiet(channel, quiet)
        now = self._clock()
        for share in queue:
            if now < share.due:
                break
            self._suspect(share, f"not over after {self._deadline_s:g} s")

    def _has_passed(self, share: _GpuShare) -> bool | None:
        """Whether the event of a share has passed; None if it cannot tell: a later one of its channel may stand for it."""
        if share.mark.event is None:
            return None
        try:
            for early in share.early:  # each mark knows what became of the part before it
                if early.error:
                    raise RuntimeError(early.error)
                if early.event is not None:
                    early.event.query()
            return share.mark.event.query()
        except Exception as error:
            share.mark.error = repr(error)
            self._suspect(share, share.mark.error)
            return None

    def _suspect(self, share: _GpuShare, why: str) -> None:
        share.why = share.why or f"job {share.job}: {why}"
        share.stuck = True
        self._counts.last_error = share.why

    def _prove(self, share: _GpuShare) -> None:
        """Return only when this share, and those before it in its queue, are quiet."""
        mark = share.mark
        if mark.event is not None:
            try:
                mark.event.synchronize()
                return
            except Exception as error:
                mark.error = repr(error)
                self._suspect(share, mark.error)
        try:
            self._device.synchronize()
        except Exception as raised:
            raise DeviceLostError(
                f"job {share.job}: cannot be proven quiet: {mark.error}, then {raised!r} (give the worker up, or call proven())"
            ) from raised

    def _report_quiet(self, channel: Channel, count: int) -> None:
        """The first *count* shares of a channel are quiet."""
        queue = self._queues[channel]
        if count:
            self._order.passed(channel, queue[count - 1].mark)
        for share in [*islice(queue, count)]:
            queue.popleft()
            del self._out[share.job]
            if not share.why:
                self._took[share.job] = self._seconds(share)
            self._land(share.order, share.job, share.why)

    def _started(self, stream: Stream) -> Timer | None:
        """A timer of what the stream is given next; None if the device has none, or fails to start one."""
        try:
            timer = self._timers.pop() if self._timers else self._device.timer()
            if timer is not None:
                timer.start(stream)
        except Exception:  # a copy does not fail because it cannot be timed
            return None
        return timer

    def _stopped(self, timer: Timer | None, stream: Stream) -> Timer | None:
        try:
            if timer is not None:
                timer.stop(stream)
        except Exception:  # as above
            return None
        return timer

    def _seconds(self, share: _GpuShare) -> float:
        """How long a finished copy took."""
        if share.timer is not None:
            with contextlib.suppress(Exception):  # as above
                seconds = share.timer.seconds()
                self._timers.append(share.timer)
                return seconds
        return self._clock() - share.launched

    def _land(self, order: int, job: JobId, why: str) -> None:
        self._counts.num_landed += 1
        self._counts.num_failed += bool(why)
        self._counts.last_error = why or self._counts.last_error
        self._landed.append((order, Completion(job, self._worker, Result.FAILED if why else Result.OK)))


def _each(engine: object) -> tuple[object, ...]:
    """The streams or events that the engine has named."""
    return engine if isinstance(engine, tuple) else (engine,)
