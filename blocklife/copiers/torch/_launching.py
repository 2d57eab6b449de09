"""Launches copies on a thread of its own: the engine's thread only says what to launch.

*Why.* A batch of the driver costs its caller 0.7 to 1.5 microseconds a run (on one H100, specs/measurements.md), so that a job
of 256 blocks in 80 layers, keys and values apart, takes 30 to 60 milliseconds: longer than most steps. The driver is called
without the interpreter's lock, so that another thread can call it while the engine's thread goes on.

*Rules of this file.* All copies go through one thread. Each stream has a `LaunchLane`: its waits, copies and marks, in the
order in which they were launched. A copy is cut into parts of `PART_BYTES` and `PART_RUNS` at most. The lane of the highest
priority goes before all others, which take turns, each a part. So what is launched there never stands behind more than one part
of something else, however much that is.

A stream is told to wait for an event only when the event's latest recording was made: a wait for an older one would end too
early. Until then the lane of the wait stands still, and the others go on. The oldest of all that is left is always ready, since
what it waits for was launched before it; so the thread never comes to a stop. The engine's own stream is told to wait only for
events that have been recorded. A `QueuedEvent` that is still to be recorded says that it has not passed.

*Errors.* What a launch raises comes out of its event, as an error of the device would. The copier takes the job for failed
then, and its places for busy until a later event of its stream has passed. A copy of which a wait could not be queued is not
queued either.

*How much is out.* Repeated large submissions have been seen to hang a driver (vllm-project/vllm#49276). With `RUNS_MOST` runs
out on a stream, its lane stands still until the oldest are over; the engine's thread goes on. How a device divides its copy
engines among streams is its own affair: so of large loads no more than `BYTES_MOST` are out, which a later load can have to
wait for in the worst case.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
from attrs import frozen

from blocklife.copiers._movers import MoverTable
from blocklife.copiers.torch._driver import HIGH, LOW, MIDDLE
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._order import NUM_BULK
from blocklife.copiers.torch._streams import CudaDevice, HostDevice, Stream, StreamDevice, StreamEvent, Timer
from blocklife.errors import MisuseError
from blocklife.ledger.records import Direction

PART_BYTES = 64 << 20
"""The most bytes that are launched in one piece: a millisecond of a device's link. A larger load is a large one."""

PART_RUNS = 4_096
"""The most runs that are launched in one piece: three to six milliseconds of the thread."""

RUNS_MOST = 40_960
"""How many runs of bytes may be out on one stream."""

BYTES_MOST = 8 * PART_BYTES
"""How many bytes of large loads may be out: what a link moves in 10 ms, so that it is busy while this thread naps or waits.

Each of their streams may have its share.
"""

_NAP_S = 200e-6
"""How long the thread sleeps, in seconds, while there is something to launch and no room for it on the device."""

_LOOK_EVERY_S = 0.05
"""How often a waiting thread looks by itself, so that it can be interrupted from the keyboard."""


@frozen(eq=False)
class Work:
    """Something to launch, which raises nothing."""

    run: Callable[[], None]
    is_ready: Callable[[], bool] = lambda: True
    """Whether it can be launched now; true from then on until it is."""
    is_part: bool = False
    """Whether it is a part of a copy: with it the turn of its lane ends."""


class LaunchLane:
    """What is still to be launched on one stream, in its order. One thread appends, another takes from the left."""

    def __init__(self) -> None:
        self.works: deque[Work] = deque()

    def is_ready(self) -> bool:
        """Whether the next work can be launched now."""
        return bool(self.works) and self.works[0].is_ready()


class LaunchLanes:
    """Takes from some lanes: from the first ones what they have, from the others in turns."""

    def __init__(self) -> None:
        self._first: list[LaunchLane] = []
        self._others: list[LaunchLane] = []

    def add(self, *, first: bool) -> LaunchLane:
        """A new lane."""
        lane = LaunchLane()
        (self._first if first else self._others).append(lane)
        return lane

    def take(self) -> Work | None:
        """The next work; None if none is ready."""
        lane = next((lane for lane in (*self._first, *self._others) if lane.is_ready()), None)
        if lane is None:
            return None
        work = lane.works.popleft()
        if work.is_part and lane in self._others:
            self._others.remove(lane)
            self._others.append(lane)
        return work


class Launcher(Protocol):
    """Runs what it is given, lane by lane in order, at some time."""

    def lane(self, *, first: bool = False) -> LaunchLane:
        """A new lane; a *first* one goes before all others."""
        ...

    def put(self, lane: LaunchLane, work: Work) -> None:
        """Queue some work."""
        ...

    def run_until(self, done: Callable[[], bool]) -> None:
        """Block until *done*, which some of the queued work makes true."""
        ...

    def close(self) -> None:
        """Run what is queued, and end. A second call does nothing."""
        ...


class LaunchThread:
    """A launcher with a thread, which calls *enter* first."""

    def __init__(self, enter: Callable[[], None]) -> None:
        # Invariant: a True for each work in a lane, put behind it; a False ends the thread.
        self._queue: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lanes = LaunchLanes()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(enter,), name="blocklife-launch", daemon=True)
        self._thread.start()

    def lane(self, *, first: bool = False) -> LaunchLane:
        """A new lane. Needs: nothing was put yet."""
        return self._lanes.add(first=first)

    def put(self, lane: LaunchLane, work: Work) -> None:
        """Queue some work."""
        lane.works.append(work)
        self._queue.put(True)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Block until *done*."""
        with self._changed:
            while not done():
                self._changed.wait(_LOOK_EVERY_S)

    def close(self) -> None:
        """Run what is queued, and end the thread."""
        self._queue.put(False)
        self._thread.join()

    def _run(self, enter: Callable[[], None]) -> None:
        enter()
        while self._queue.get():
            while (work := self._lanes.take()) is None:
                time.sleep(_NAP_S)
            work.run()
            with self._changed:
                self._changed.notify_all()


class QueuedEvent:
    """An event that a launcher records.

    Invariant: while `asked` and `done` differ, `inner` still marks an older point, and is not queried. Two counts, each written
    by one thread: the engine's thread counts the recordings that it has asked for, the launcher those that it has made.
    """

    def __init__(self, inner: StreamEvent, launcher: Launcher) -> None:
        self.inner = inner
        self._launcher = launcher
        self.asked = self.done = 0
        self.lost: Exception | None = None
        """Why it marks nothing."""
        self.trouble: Exception | None = None
        """Why what it marks was not launched whole."""

    @property
    def owed(self) -> bool:
        """Whether it has yet to be recorded."""
        return self.asked != self.done

    def query(self) -> bool:
        """Whether it was recorded and passed. Raises what the launch, or the device, has raised."""
        if self.owed:
            return False
        self._raise()
        return self.inner.query()

    def synchronize(self) -> None:
        """Block until it is recorded and passed. Raises as `query`."""
        self.recorded()
        self._raise()
        self.inner.synchronize()

    def recorded(self) -> StreamEvent:
        """The event, recorded; blocks no longer than the launches before it take. Raises what its recording has raised."""
        if self.owed:
            self._launcher.run_until(lambda: not self.owed)
        return self.marking()

    def marking(self) -> StreamEvent:
        """The event. Raises what its recording has raised: who waited for it would wait for nothing."""
        if self.lost is not None:
            raise self.lost
        return self.inner

    def _raise(self) -> None:
        if (problem := self.lost or self.trouble) is not None:
            raise problem


class QueuedStream:
    """A stream on which a launcher queues; *first*: before it queues on others."""

    def __init__(self, inner: Stream, launcher: Launcher, out: RunsOut, *, first: bool = False) -> None:
        self.inner = inner
        self._launcher = launcher
        self._lane = launcher.lane(first=first)
        # Of the launcher alone: what is out on the device, and what was raised since the last mark.
        self._out = out
        self._trouble: Exception | None = None

    def record(self, event: StreamEvent) -> None:
        """Record the event behind all that was launched on this stream."""
        mine = _queued(event)
        mine.asked += 1
        self._put(Work(lambda: self._record(mine)))

    def wait(self, event: StreamEvent) -> None:
        """Let what is launched from now on wait for the event."""
        mine = _queued(event)
        self._put(Work(lambda: self._try(lambda: self.inner.wait(mine.marking())), lambda: not mine.owed))

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Launch a copy in parts; what one raises comes out of the next event recorded here, and no other part moves."""
        for part in pages.parts(PART_BYTES, PART_RUNS):
            self._put(self._part(part, direction))

    def time(self, call: Callable[[Stream], None]) -> None:
        """Start or stop a timer here; *call* raises nothing."""
        self._put(Work(lambda: call(self.inner)))

    def _put(self, work: Work) -> None:
        self._launcher.put(self._lane, work)

    def _part(self, pages: Pages, direction: Direction) -> Work:
        count, nbytes = len(pages), pages.total
        return Work(lambda: self._copy(pages, nbytes, direction), lambda: self._out.has_room(count, nbytes), is_part=True)

    def _record(self, event: QueuedEvent) -> None:
        event.trouble, event.lost, self._trouble = self._trouble, None, None
        try:
            self.inner.record(event.inner)
        except Exception as problem:
            event.lost = problem
        event.done += 1

    def _copy(self, pages: Pages, nbytes: int, direction: Direction) -> None:
        if self._trouble is not None:  # a wait is missing, or a part: nothing may move
            return
        self._try(lambda: self.inner.copy(pages, direction))
        self._out.launched(len(pages), nbytes, self.inner)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as problem:
            self._trouble = self._trouble or problem


class FollowingStream:
    """The stream that follows the engine: what it marks is marked at once."""

    def __init__(self, inner: Stream) -> None:
        self.inner = inner

    def record(self, event: StreamEvent) -> None:
        """Record the event now. Raises what the device raises."""
        mine = _queued(event)
        mine.trouble = mine.lost = None
        self.inner.record(mine.inner)

    def wait(self, event: StreamEvent) -> None:
        """Make it wait for the event, as soon as that is recorded."""
        self.inner.wait(_queued(event).recorded())

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Refuses: MisuseError; it would hold up the engine's thread."""
        raise MisuseError("launching device: nothing is copied on the stream that follows the engine (use one that copies)")


class RunsOut:
    """What is out on one stream of a device: no more runs and bytes than so many, or one part alone. The launcher's alone.

    Invariant: an event, recorded behind it, stands for each sixteenth of what may be out, and for more only where a part is
    more or the device refused an event; what was launched since the last event is less than a sixteenth.
    """

    def __init__(self, runs_most: int, bytes_most: float, new_event: Callable[[], StreamEvent]) -> None:
        self._most = (runs_most, bytes_most)
        self._new_event = new_event
        self._free: list[StreamEvent] = []
        self._marked: deque[tuple[int, int, StreamEvent]] = deque()
        self._since = (0, 0)
        self._total = (0, 0)

    def launched(self, runs: int, nbytes: int, stream: Stream) -> None:
        """So much more is out."""
        self._total = (self._total[0] + runs, self._total[1] + nbytes)
        self._since = (self._since[0] + runs, self._since[1] + nbytes)
        if any(16 * since >= most for since, most in zip(self._since, self._most, strict=True)):
            try:
                event = self._free.pop() if self._free else self._new_event()
                stream.record(event)
            except Exception:  # the next event stands for these, too; the copier meets this error at its own mark
                return
            self._marked.append((*self._since, event))
            self._since = (0, 0)

    def has_room(self, runs: int, nbytes: int) -> bool:
        """Whether so much more may go out now."""
        while self._marked and (self._total[0] + runs > self._most[0] or self._total[1] + nbytes > self._most[1]):
            *gone, event = self._marked[0]
            try:
                if not event.query():
                    return False
                self._free.append(event)
            except Exception:  # the copier meets this error when it polls; waiting would not help here
                pass
            self._marked.popleft()
            self._total = (self._total[0] - gone[0], self._total[1] - gone[1])
        return True


class QueuedTimer:
    """A timer that a launcher starts and stops."""

    def __init__(self, inner: Timer) -> None:
        self._inner = inner
        self._works = True

    def start(self, stream: Stream) -> None:
        """Start timing what is launched on the stream."""
        self._works = True
        _queued_stream(stream).time(lambda own: self._call(self._inner.start, own))

    def stop(self, stream: Stream) -> None:
        """Stop timing."""
        _queued_stream(stream).time(lambda own: self._call(self._inner.stop, own))

    def seconds(self) -> float:
        """The time that the work took, once an event behind it has passed. Raises RuntimeError if it was not timed."""
        if not self._works:
            raise RuntimeError("the device refused to time this")
        return self._inner.seconds()

    def _call(self, call: Callable[[Stream], None], stream: Stream) -> None:
        try:
            call(stream)
        except Exception:
            self._works = False


class LaunchingDevice:
    """A device whose copies a launcher launches. What the engine computes is followed by the engine's own thread.

    *launcher*: None for a thread, which calls *enter* first. *runs_most*: how many runs may be out on a stream; *bytes_most*:
    how many bytes on one of the middle priority, which carries large loads.
    """

    def __init__(
        self,
        inner: StreamDevice,
        launcher: Launcher | None = None,
        *,
        enter: Callable[[], None] = lambda: None,
        runs_most: int = RUNS_MOST,
        bytes_most: int = BYTES_MOST // NUM_BULK,
    ) -> None:
        self._inner = inner
        self._launcher = LaunchThread(enter) if launcher is None else launcher
        self._runs_most, self._bytes_most = runs_most, bytes_most
        self._copying: list[QueuedStream] = []

    @property
    def left_out(self) -> dict[str, str]:
        """The methods of copying that do not work here, and why."""
        return self._inner.left_out

    def stream(self, name: str, *, copies: bool = True, priority: int = LOW) -> QueuedStream | FollowingStream:
        """A new stream: for copies, or to follow the engine."""
        inner = self._inner.stream(name, copies=copies, priority=priority)
        if not copies:
            return FollowingStream(inner)
        out = RunsOut(self._runs_most, self._bytes_most if priority == MIDDLE else math.inf, self._inner.event)
        self._copying.append(QueuedStream(inner, self._launcher, out, first=priority == HIGH))
        return self._copying[-1]

    def event(self) -> QueuedEvent:
        """A new event."""
        return QueuedEvent(self._inner.event(), self._launcher)

    def timer(self) -> QueuedTimer | None:
        """A new timer; None if the device cannot measure time."""
        inner = self._inner.timer()
        return None if inner is None else QueuedTimer(inner)

    def follow(self, stream: Stream, engine: object) -> None:
        """Make the stream wait for what the engine has queued so far; at once, for the engine goes on."""
        if not isinstance(stream, FollowingStream):
            raise MisuseError("launching device: only a stream without copies follows the engine (make one with copies=False)")
        self._inner.follow(stream.inner, engine)

    def precede(self, event: StreamEvent, engine: object) -> None:
        """Make the engine's stream wait for the event, as soon as it is recorded. Raises what its recording has raised."""
        self._inner.precede(_queued(event).recorded(), engine)

    def synchronize(self) -> None:
        """Launch what is queued, then block until all streams are idle."""
        done: list[Stream] = []
        for stream in self._copying:
            stream.time(done.append)
        self._launcher.run_until(lambda: len(done) == len(self._copying))
        self._inner.synchronize()

    def captures(self) -> bool:
        """Whether the engine captures a graph now."""
        return self._inner.captures()

    def close(self) -> None:
        """Launch what is queued, and end the thread."""
        self._launcher.close()
        self._inner.close()


def _queued(event: StreamEvent) -> QueuedEvent:
    if not isinstance(event, QueuedEvent):
        raise MisuseError(f"launching device: {type(event).__name__} is not one of its events (make it with event())")
    return event


def _queued_stream(stream: Stream) -> QueuedStream:
    if not isinstance(stream, QueuedStream):
        raise MisuseError(f"launching device: {type(stream).__name__} is not one of its streams (make it with stream())")
    return stream


def device_for(
    layout: CopyLayout, clock: Callable[[], float] = time.monotonic, movers: MoverTable | None = None
) -> StreamDevice:
    """The device that a cache is on; *clock* is the host's, in seconds. On CUDA a thread launches copies.

    *movers*: which mover takes which copy, where there are several; None: a probe decides. Refuses: MisuseError for an unknown
    kind, and where it would have to be proved while a graph is captured.
    """
    kind = layout.cache.device.type
    if kind == "cpu":
        return HostDevice(layout, clock)
    if kind == "cuda":
        device = layout.cache.device
        return LaunchingDevice(CudaDevice(layout, table=movers), enter=lambda: torch.cuda.set_device(device))
    raise MisuseError(f"torch copier: a cache on {kind!r} cannot be copied (put it on 'cuda' or 'cpu')")
