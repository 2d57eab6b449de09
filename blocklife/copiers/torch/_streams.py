"""The device as a copier needs it: streams, which run their work in order, and events, which order streams with each other.

*Theory.* A stream runs its work in the order in which it was queued; two streams are independent. An event, recorded on one
stream, marks the point that the stream has reached; another stream that is told to wait for it goes on only when that point is
passed. Only ``synchronize`` blocks the host.

*What is not here, and why.* What to wait for: that is `_order`. How bytes are moved: that is `_moves`. The fake device, which
records everything and finds races, is in `blocklife.testing._fake_device`.

*Priorities, and why the streams are the driver's.* A load kernel on a stream of low priority waits behind the model's kernels
(1.6 ms each in LMCache/LMCache#5067), and time to first token waits for it: loads have the highest priority, and large ones
the next. Stores have the lowest, since nothing waits for them. torch hands out streams of a small pool again and again, so
that one could be the engine's own. So the driver makes ours, and torch does where no driver can be loaded.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Protocol

import torch

from blocklife.copiers._movers import MoverTable
from blocklife.copiers.torch._driver import LOW, cuda_driver
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import ChoosingMover, Mover, RunMover
from blocklife.copiers.torch._probe import mover_for_cuda
from blocklife.errors import MisuseError
from blocklife.ledger.records import Direction

_SPINS = 200
"""How often a waiting host queries in a row before it begins to sleep between queries."""

_NAP_S = 20e-6
"""How long it then sleeps, in seconds: short against any copy, long enough to leave the processor to others."""


class StreamEvent(Protocol):
    """A point on a stream."""

    def query(self) -> bool:
        """Whether the point was passed. Raises what the device raises."""
        ...

    def synchronize(self) -> None:
        """Block the host until the point was passed. Raises what the device raises."""
        ...


class Timer(Protocol):
    """Measures the time of the work that a stream gets between two calls, by the device's own clock."""

    def start(self, stream: Stream) -> None:
        """Start timing what is queued on the stream."""
        ...

    def stop(self, stream: Stream) -> None:
        """Stop timing."""
        ...

    def seconds(self) -> float:
        """The time that the work took, once the stream has run it. The timer can then be started again."""
        ...


class Stream(Protocol):
    """A queue of work that runs in its order."""

    def record(self, event: StreamEvent) -> None:
        """Record the event: it marks the end of everything queued on this stream so far."""
        ...

    def wait(self, event: StreamEvent) -> None:
        """Make what is queued on this stream from now on wait for the event, as recorded last."""
        ...

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Queue a copy. If this raises, a part of it may have been queued."""
        ...


class StreamDevice(Protocol):
    """The owner of the streams. ``engine`` is a stream or an event of the engine; None is the caller's current stream."""

    @property
    def left_out(self) -> dict[str, str]:
        """The methods of copying that do not work here, and why; copies go on without them, more slowly."""
        ...

    def stream(self, name: str, *, copies: bool = True, priority: int = LOW) -> Stream:
        """A new stream; *copies*: or else it only follows the engine. *priority* is `LOW`, `MIDDLE` or `HIGH`."""
        ...

    def event(self) -> StreamEvent:
        """A new event, not recorded yet."""
        ...

    def timer(self) -> Timer | None:
        """A new timer; None if the device cannot measure time."""
        ...

    def follow(self, stream: Stream, engine: object) -> None:
        """Make the stream wait for what the engine has queued so far. Refuses: MisuseError for an *engine* of another type."""
        ...

    def precede(self, event: StreamEvent, engine: object) -> None:
        """Make the engine's stream wait for the event. Refuses: MisuseError if *engine* is not a stream."""
        ...

    def synchronize(self) -> None:
        """Block the host until all streams, the engine's too, are idle. Raises what the device raises."""
        ...

    def captures(self) -> bool:
        """Whether the engine captures a graph now: what is queued then would run with every replay of it."""
        ...

    def close(self) -> None:
        """Release threads. Needs: nothing is launched any more. A second call does nothing."""
        ...


# --- host memory ----------------------------------------------------------------------------------------------------------


class PassedEvent:
    """An event that is always passed: on the host everything has run when a call returns."""

    def query(self) -> bool:
        """Always True."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


class HostStream:
    """Runs each copy before the call returns."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    def record(self, event: StreamEvent) -> None:
        """Nothing to mark: all has run."""

    def wait(self, event: StreamEvent) -> None:
        """Nothing to wait for: all has run."""

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Move the bytes, now."""
        self._mover.move(pages, direction)


class HostTimer:
    """Reads a clock: what is timed has run when the call returns."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = self._ended = 0.0

    def start(self, stream: Stream) -> None:
        """Read the clock."""
        self._began = self._clock()

    def stop(self, stream: Stream) -> None:
        """Read it again."""
        self._ended = self._clock()

    def seconds(self) -> float:
        """The time between the two readings."""
        return self._ended - self._began


class HostDevice:
    """CPU tensors as a device: no copy runs beside its caller, so copies happen in the order of the calls."""

    def __init__(self, layout: CopyLayout, clock: Callable[[], float] = time.monotonic) -> None:
        self._mover = RunMover(layout)
        self._clock = clock

    @property
    def left_out(self) -> dict[str, str]:
        """Always empty: there is only one method."""
        return {}

    def stream(self, name: str, *, copies: bool = True, priority: int = LOW) -> HostStream:
        """A new stream."""
        return HostStream(self._mover)

    def event(self) -> PassedEvent:
        """A new event."""
        return PassedEvent()

    def timer(self) -> HostTimer:
        """A new timer."""
        return HostTimer(self._clock)

    def follow(self, stream: Stream, engine: object) -> None:
        """Nothing to wait for. Refuses: MisuseError for a stream or an event of another device."""
        _check_host(engine)

    def precede(self, event: StreamEvent, engine: object) -> None:
        """Nothing to wait for. Refuses: as `follow`."""
        _check_host(engine)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def captures(self) -> bool:
        """Always False: there are no graphs."""
        return False

    def close(self) -> None:
        """Nothing to release."""


def _check_host(engine: object) -> None:
    if engine is not None:
        raise MisuseError(f"cpu device: CPU tensors cannot wait for {type(engine).__name__} (give None: the calling thread)")


# --- CUDA -----------------------------------------------------------------------------------------------------------------


class CudaEvent:
    """An event of a CUDA device."""

    def __init__(self) -> None:
        self.inner = torch.cuda.Event()

    def query(self) -> bool:
        """Query the driver."""
        return bool(self.inner.query())

    def synchronize(self) -> None:
        """Query repeatedly: unlike the driver's own wait, this can be interrupted from the keyboard."""
        spins = 0
        while not self.inner.query():
            spins += 1
            if spins > _SPINS:
                time.sleep(_NAP_S)


class CudaTimer:
    """Two events of a CUDA device with timing."""

    def __init__(self) -> None:
        self._began, self._ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def start(self, stream: Stream) -> None:
        """Record the first event on the stream."""
        self._began.record(_cuda_stream(stream).inner)

    def stop(self, stream: Stream) -> None:
        """Record the second event on the stream."""
        self._ended.record(_cuda_stream(stream).inner)

    def seconds(self) -> float:
        """The time between the two; the driver counts milliseconds."""
        return float(self._began.elapsed_time(self._ended)) / 1e3


class CudaStream:
    """A stream of a CUDA device."""

    def __init__(self, device: torch.device, mover: Mover, *, priority: int = LOW) -> None:
        self.inner = _make_stream(self, device, priority=priority)
        self._mover = mover

    def record(self, event: StreamEvent) -> None:
        """Record the event on this stream."""
        _cuda_event(event).inner.record(self.inner)

    def wait(self, event: StreamEvent) -> None:
        """Make this stream wait for the event."""
        self.inner.wait_event(_cuda_event(event).inner)

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Queue the runs by the mover."""
        with torch.cuda.stream(self.inner):
            self._mover.move(pages, direction)


class CudaDevice:
    """The streams of one CUDA device.

    Needs pinned host memory; with any other a copy blocks the host until it is done. *mover*: None for all that work here,
    chosen by the *table*, or where that is None by what a probe finds.
    """

    def __init__(self, layout: CopyLayout, mover: Mover | None = None, table: MoverTable | None = None) -> None:
        self._device = layout.cache.device
        self._mover = mover_for_cuda(layout, table) if mover is None else mover

    @property
    def left_out(self) -> dict[str, str]:
        """The movers that do not work here, and why; copies go on without them, more slowly."""
        return self._mover.left_out if isinstance(self._mover, ChoosingMover) else {}

    def stream(self, name: str, *, copies: bool = True, priority: int = LOW) -> CudaStream:
        """A new stream of this priority."""
        return CudaStream(self._device, self._mover, priority=priority)

    def event(self) -> CudaEvent:
        """A new event without timing, the cheapest kind. It belongs to the device of the stream that first records it."""
        return CudaEvent()

    def timer(self) -> CudaTimer:
        """A new timer, with events of its own: other events are cheaper without timing."""
        return CudaTimer()

    def follow(self, stream: Stream, engine: object) -> None:
        """Make the stream wait for a stream or event of torch. Refuses: MisuseError for an event that was never recorded."""
        own = _cuda_stream(stream)
        if isinstance(engine, (torch.cuda.Event, torch.Event)):
            if not (engine.cuda_event if isinstance(engine, torch.cuda.Event) else engine.event_id):
                raise MisuseError("cuda device: the event was never recorded, so it marks nothing (record it first)")
            own.inner.wait_event(engine)
        else:
            own.inner.wait_stream(self._engine_stream(engine))

    def precede(self, event: StreamEvent, engine: object) -> None:
        """Make a stream of torch wait for the event."""
        self._engine_stream(engine).wait_event(_cuda_event(event).inner)

    def synchronize(self) -> None:
        """Wait for the whole device."""
        torch.cuda.synchronize(self._device)

    def captures(self) -> bool:
        """Whether the current stream captures a graph."""
        return bool(torch.cuda.is_current_stream_capturing())

    def close(self) -> None:
        """Nothing to release: the streams go with their owners."""

    def _engine_stream(self, engine: object) -> torch.cuda.Stream:
        if engine is None:
            return torch.cuda.current_stream(self._device)
        if not isinstance(engine, torch.cuda.Stream):
            raise MisuseError(
                f"cuda device: {type(engine).__name__} is not a stream of torch.cuda (give one, or None: the current one)"
            )
        return engine


def _make_stream(owner: CudaStream, device: torch.device, *, priority: int) -> torch.cuda.Stream:
    """A stream of the driver's that goes with its *owner*; one of torch's where there is no such driver."""
    driver = cuda_driver()
    if driver is None:
        return torch.cuda.Stream(device, priority=-1 if priority > LOW else 0)
    with torch.cuda.device(device):
        handle = driver.make_stream(torch.cuda.current_device(), priority=priority)
        made = torch.cuda.ExternalStream(handle, device)
    weakref.finalize(owner, driver.drop_stream, handle).atexit = False
    return made


def _cuda_event(event: StreamEvent) -> CudaEvent:
    if not isinstance(event, CudaEvent):
        raise MisuseError(f"cuda device: {type(event).__name__} is not an event of this device (make it with event())")
    return event


def _cuda_stream(stream: Stream) -> CudaStream:
    if not isinstance(stream, CudaStream):
        raise MisuseError(f"cuda device: {type(stream).__name__} is not a stream of this device (make it with stream())")
    return stream
