"""The device as a copier needs it: streams that keep an order of their own, and events that order them against each other.

*Theory.* A stream runs what it is given one after the other; two streams know nothing of each other. An event, recorded on one
stream, marks the point that stream has reached; another stream that is told to wait for it goes on only when that point is
passed. Nothing here blocks the host but ``synchronize``.

*What is not here, and why.* Whom to wait for: that is `order`. How the bytes travel: that is `moves`. The fake device, which
records everything and finds races, is in `blocklife.testing._fake_device`.

*Priorities, and why there are none.* torch's streams have the lowest priority unless told otherwise, which is what a copy
should have. They are few, and dealt out in turn: one may be a stream that the engine has too. That orders more than it must,
and never less.

*Open.* `CudaDevice` has been written against the documentation of torch and has not yet been seen on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import ChoosingMover, Mover, RunMover, mover_for_cuda
from blocklife.errors import BlocklifeError, MisuseError
from blocklife.ledger.records import Direction

_SPINS = 200
"""How often a waiting host asks at once before it begins to sleep between its questions."""

_NAP_S = 20e-6
"""How long it then sleeps: short against any copy worth waiting for, long enough to leave the processor to others."""


class DeviceLostError(BlocklifeError):
    """The device only returns errors, so that nothing can be ordered or proven: its worker must be given up."""


class StreamEvent(Protocol):
    """A point on a stream."""

    def query(self) -> bool:
        """Whether the point was passed. Raises what the device raises."""
        ...

    def synchronize(self) -> None:
        """Block the host until the point was passed. Raises what the device raises."""
        ...


class Timer(Protocol):
    """Takes the time of what a stream is given between two calls, by the device's own clock."""

    def start(self, stream: Stream) -> None:
        """Start timing what is queued on the stream."""
        ...

    def stop(self, stream: Stream) -> None:
        """Stop timing."""
        ...

    def seconds(self) -> float:
        """How long it took, once the stream has run it. It can then be started again."""
        ...


class Stream(Protocol):
    """A queue of work that runs in its order."""

    def record(self, event: StreamEvent) -> None:
        """Let the event stand for everything given to this stream so far."""
        ...

    def wait(self, event: StreamEvent) -> None:
        """Let what is given to this stream from now on run after what the event stands for now."""
        ...

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Queue a copy. One that raises may have queued a part of it."""
        ...


class StreamDevice(Protocol):
    """Where the streams live. ``engine`` is a stream or an event of the engine's own; None is where the caller computes now."""

    @property
    def left_out(self) -> dict[str, str]:
        """The methods of copying that do not work here, and why; copies go on without them, more slowly."""
        ...

    def stream(self, name: str) -> Stream:
        """A new stream."""
        ...

    def event(self) -> StreamEvent:
        """A new event, recorded nowhere."""
        ...

    def timer(self) -> Timer | None:
        """A new timer; None where the device keeps no time."""
        ...

    def follow(self, stream: Stream, engine: object) -> None:
        """Let the stream go on only after what the engine was given so far. Refuses: MisuseError for what is neither."""
        ...

    def precede(self, event: StreamEvent, engine: object) -> None:
        """Let the engine's stream go on only after the event. Refuses: MisuseError for what is no stream."""
        ...

    def synchronize(self) -> None:
        """Block the host until all streams, the engine's too, have run dry. Raises what the device raises."""
        ...


# --- host memory ----------------------------------------------------------------------------------------------------------


class PassedEvent:
    """A point that was passed when it was made: on the host everything has run when the call returns."""

    def query(self) -> bool:
        """Always: see the class."""
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
        """What lies between."""
        return self._ended - self._began


class HostDevice:
    """CPU tensors as a device: no copy ever runs beside its caller, so the order of the calls is the order of the bytes."""

    def __init__(self, layout: CopyLayout, clock: Callable[[], float] = time.monotonic) -> None:
        self._mover = RunMover(layout)
        self._clock = clock

    @property
    def left_out(self) -> dict[str, str]:
        """None: there is one way."""
        return {}

    def stream(self, name: str) -> HostStream:
        """A new stream."""
        return HostStream(self._mover)

    def event(self) -> PassedEvent:
        """A new event."""
        return PassedEvent()

    def timer(self) -> HostTimer:
        """A new timer."""
        return HostTimer(self._clock)

    def follow(self, stream: Stream, engine: object) -> None:
        """What the calling thread computed is there. Refuses: MisuseError for a stream or an event of another device."""
        _check_host(engine)

    def precede(self, event: StreamEvent, engine: object) -> None:
        """What was copied is there. Refuses: as `follow`."""
        _check_host(engine)

    def synchronize(self) -> None:
        """Nothing to wait for."""


def _check_host(engine: object) -> None:
    if engine is not None:
        raise MisuseError(
            f"cpu device: {type(engine).__name__} is nothing that CPU tensors wait for (give None: the calling thread)"
        )


# --- CUDA -----------------------------------------------------------------------------------------------------------------


class CudaEvent:
    """An event of a CUDA device. Not yet seen on a GPU."""

    def __init__(self) -> None:
        self.inner = torch.cuda.Event()

    def query(self) -> bool:
        """Ask the driver."""
        return bool(self.inner.query())

    def synchronize(self) -> None:
        """Ask again and again: unlike the driver's own wait this one can be interrupted from the keyboard."""
        spins = 0
        while not self.inner.query():
            spins += 1
            if spins > _SPINS:
                time.sleep(_NAP_S)


class CudaTimer:
    """Two events of a CUDA device that note when they were passed. Not yet seen on a GPU."""

    def __init__(self) -> None:
        self._began, self._ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def start(self, stream: Stream) -> None:
        """Mark the point on the stream."""
        self._began.record(_cuda_stream(stream).inner)

    def stop(self, stream: Stream) -> None:
        """Mark the other one."""
        self._ended.record(_cuda_stream(stream).inner)

    def seconds(self) -> float:
        """What lies between; the driver counts milliseconds."""
        return float(self._began.elapsed_time(self._ended)) / 1e3


class CudaStream:
    """A stream of a CUDA device. Not yet seen on a GPU."""

    def __init__(self, device: torch.device, mover: Mover) -> None:
        self.inner = torch.cuda.Stream(device=device)
        self._mover = mover

    def record(self, event: StreamEvent) -> None:
        """Mark the point."""
        _cuda_event(event).inner.record(self.inner)

    def wait(self, event: StreamEvent) -> None:
        """Order the stream after the event."""
        self.inner.wait_event(_cuda_event(event).inner)

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Queue the runs by the mover that suits them."""
        with torch.cuda.stream(self.inner):
            self._mover.move(pages, direction)


class CudaDevice:
    """The streams of one CUDA device. Not yet seen on a GPU.

    Needs: pinned host memory. With any other a copy blocks the host until it has moved. *mover*: None for all that work here.
    """

    def __init__(self, layout: CopyLayout, mover: Mover | None = None) -> None:
        self._device = layout.cache.device
        self._mover = mover_for_cuda(layout) if mover is None else mover

    @property
    def left_out(self) -> dict[str, str]:
        """The movers that do not work here, and why: copies go on without them, slower."""
        return self._mover.left_out if isinstance(self._mover, ChoosingMover) else {}

    def stream(self, name: str) -> CudaStream:
        """A new stream."""
        return CudaStream(self._device, self._mover)

    def event(self) -> CudaEvent:
        """A new event, without timing: the cheapest kind. It belongs to the device of the stream that records it first."""
        return CudaEvent()

    def timer(self) -> CudaTimer:
        """A new timer, with events of its own: those that streams wait for are cheaper without timing."""
        return CudaTimer()

    def follow(self, stream: Stream, engine: object) -> None:
        """Order the stream after a stream or an event of torch. Refuses: MisuseError for an event that was never recorded."""
        own = _cuda_stream(stream)
        if isinstance(engine, (torch.cuda.Event, torch.Event)):
            if not (engine.cuda_event if isinstance(engine, torch.cuda.Event) else engine.event_id):
                raise MisuseError("cuda device: the event was never recorded, and stands for nothing (record it first)")
            own.inner.wait_event(engine)
        else:
            own.inner.wait_stream(self._engine_stream(engine))

    def precede(self, event: StreamEvent, engine: object) -> None:
        """Order a stream of torch after the event."""
        self._engine_stream(engine).wait_event(_cuda_event(event).inner)

    def synchronize(self) -> None:
        """Wait for the whole device."""
        torch.cuda.synchronize(self._device)

    def _engine_stream(self, engine: object) -> torch.cuda.Stream:
        if engine is None:
            return torch.cuda.current_stream(self._device)
        if not isinstance(engine, torch.cuda.Stream):
            raise MisuseError(
                f"cuda device: {type(engine).__name__} is no stream of torch.cuda (give one, or None: the current one)"
            )
        return engine


def _cuda_event(event: StreamEvent) -> CudaEvent:
    if not isinstance(event, CudaEvent):
        raise MisuseError(f"cuda device: {type(event).__name__} is no event of this device (make it with event())")
    return event


def _cuda_stream(stream: Stream) -> CudaStream:
    if not isinstance(stream, CudaStream):
        raise MisuseError(f"cuda device: {type(stream).__name__} is no stream of this device (make it with stream())")
    return stream


def device_for(layout: CopyLayout, clock: Callable[[], float] = time.monotonic) -> StreamDevice:
    """The device that a cache lies on; *clock* is the host's, in seconds. Refuses: MisuseError for a kind that is not known."""
    kind = layout.cache.device.type
    if kind == "cpu":
        return HostDevice(layout, clock)
    if kind == "cuda":
        return CudaDevice(layout)
    raise MisuseError(f"torch copier: a cache on {kind!r} cannot be copied (put it on 'cuda' or 'cpu')")
