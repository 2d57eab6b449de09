"""Launches copies on a thread of its own: the engine's thread only says what to launch.

*Why.* A batch of the driver costs its caller 0.7 to 1.5 microseconds a run (on one H100, specs/measurements.md), so that a job
of 256 blocks in 80 layers, keys and values apart, takes 30 to 60 milliseconds: longer than most steps. The driver is called
without the interpreter's lock, so that another thread can call it while the engine's thread goes on.

*Rules of this file.* All copies go through one thread, in the order in which they were launched, each with its waits before it
and its mark behind it. So whatever the thread waits for on the device was recorded before: by the thread itself, or by the
engine's thread before the launch. The engine's own stream is told to wait only for events that have been recorded. A
`QueuedEvent` that is still to be recorded says that it has not passed.

*Errors.* What a launch raises comes out of its event, as an error of the device would. The copier takes the job for failed
then, and its places for busy until a later event of its direction has passed. A copy of which a wait could not be queued is not
queued either.

*How much is out.* Repeated large submissions have been seen to hang a driver (vllm-project/vllm#49276). With `RUNS_MOST` runs
out the thread waits for the oldest before it goes on; the engine's thread does not.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from blocklife.copiers._movers import MoverTable
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._streams import CudaDevice, HostDevice, Stream, StreamDevice, StreamEvent, Timer
from blocklife.errors import MisuseError
from blocklife.ledger.records import Direction

RUNS_MOST = 1 << 17
"""How many runs of bytes may be out on the device: three jobs of 40,960."""

_LOOK_EVERY_S = 0.05
"""How often a waiting thread looks by itself, so that it can be interrupted from the keyboard."""


class Launcher(Protocol):
    """Runs what it is given, in order, at some time."""

    def put(self, work: Callable[[], None]) -> None:
        """Queue some work, which raises nothing."""
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
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(enter,), name="blocklife-launch", daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Queue some work."""
        self._queue.put(work)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Block until *done*."""
        with self._changed:
            while not done():
                self._changed.wait(_LOOK_EVERY_S)

    def close(self) -> None:
        """Run what is queued, and end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self, enter: Callable[[], None]) -> None:
        enter()
        while (work := self._queue.get()) is not None:
            work()
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
    """A stream on which a launcher queues."""

    def __init__(self, inner: Stream, launcher: Launcher, out: RunsOut) -> None:
        self.inner = inner
        self._launcher = launcher
        # Of the launcher alone: what is out on the device, the runs behind the last mark, and what was raised since then.
        self._out = out
        self._num_runs = 0
        self._trouble: Exception | None = None

    def record(self, event: StreamEvent) -> None:
        """Record the event behind all that was launched on this stream."""
        mine = _queued(event)
        mine.asked += 1
        self._launcher.put(lambda: self._record(mine))

    def wait(self, event: StreamEvent) -> None:
        """Let what is launched from now on wait for the event."""
        mine = _queued(event)
        self._launcher.put(lambda: self._try(lambda: self.inner.wait(mine.marking())))

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Launch a copy; what it raises comes out of the next event recorded here."""
        self._launcher.put(lambda: self._copy(pages, direction))

    def time(self, call: Callable[[Stream], None]) -> None:
        """Start or stop a timer here; *call* raises nothing."""
        self._launcher.put(lambda: call(self.inner))

    def _record(self, event: QueuedEvent) -> None:
        event.trouble, event.lost, self._trouble = self._trouble, None, None
        try:
            self.inner.record(event.inner)
            self._out.marked(self._num_runs, event.inner)
            self._num_runs = 0
        except Exception as problem:
            event.lost = problem
        event.done += 1

    def _copy(self, pages: Pages, direction: Direction) -> None:
        if self._trouble is not None:  # a wait is missing: nothing may move
            return
        self._out.make_room(len(pages))
        self._num_runs += len(pages)
        self._try(lambda: self.inner.copy(pages, direction))

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
    """How many runs are out on the device, with the events behind them. The launcher's alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: deque[tuple[int, StreamEvent]] = deque()
        self._total = 0

    def marked(self, count: int, event: StreamEvent) -> None:
        """So many runs have been launched since the last event of a stream, and this one is behind them."""
        if count:
            self._parts.append((count, event))
            self._total += count

    def make_room(self, count: int) -> None:
        """Wait for the oldest until so many more may go out. Events may mark something later by now, which is passed later."""
        while self._parts and self._total + count > self._most:
            runs, event = self._parts.popleft()
            self._total -= runs
            try:
                event.synchronize()
            except Exception:  # the copier that made the event gets this error when it polls; waiting again would not help here
                continue


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

    *launcher*: None for a thread, which calls *enter* first.
    """

    def __init__(
        self,
        inner: StreamDevice,
        launcher: Launcher | None = None,
        *,
        enter: Callable[[], None] = lambda: None,
        runs_most: int = RUNS_MOST,
    ) -> None:
        self._inner = inner
        self._launcher = LaunchThread(enter) if launcher is None else launcher
        self._out = RunsOut(runs_most)

    @property
    def left_out(self) -> dict[str, str]:
        """The methods of copying that do not work here, and why."""
        return self._inner.left_out

    def stream(self, name: str, *, copies: bool = True, urgent: bool = False) -> QueuedStream | FollowingStream:
        """A new stream: for copies, or to follow the engine."""
        inner = self._inner.stream(name, copies=copies, urgent=urgent)
        return QueuedStream(inner, self._launcher, self._out) if copies else FollowingStream(inner)

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
        done: list[bool] = []
        self._launcher.put(lambda: done.append(True))
        self._launcher.run_until(lambda: bool(done))
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
