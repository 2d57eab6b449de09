"""A device that is late: what is put on a stream runs when somebody waits for it, or when the rig lets it.

It stands in for what SGLang calls its device module. A stream is a queue; its head runs unless it waits for an event of another
stream. The default stream has no queue: what the scheduler itself asks of the device is done at once, and where it waits, the
streams it waits for run as far as they must. Addresses are read when a copy is launched, bytes when it lands, as with a DMA; of
the rows of a copy about half move at its start and the rest at its end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from attrs import define, field

Operation = Callable[[], bool]
"""Runs, and says whether it is over; False: it waits for an event."""


class StuckError(Exception):
    """Somebody waits for an event that no stream will record."""


class Stream:
    """A queue of operations of one device."""

    def __init__(self, *_: object, **__: object) -> None:
        self.device = current()
        self.queue: deque[Operation] = deque()
        self.device.streams.append(self)

    @property
    def is_default(self) -> bool:
        """Whether what is put here is done at once."""
        return self is self.device.default

    def put(self, work: Callable[[], None]) -> None:
        """Let this be done behind all that was put here before."""

        def whole() -> bool:
            work()
            return True

        self.put_operation(whole)

    def put_operation(self, operation: Operation) -> None:
        """The same, of something that may have to wait."""
        if not self.is_default:
            self.queue.append(operation)
        else:
            self.device.run_until(operation)

    def advance(self, count: int | None = None) -> int:
        """Run so many operations (None: all), as far as none has to wait. Returns how many were run."""
        done = 0
        while self.queue and (count is None or done < count):
            if not self.queue[0]():
                break
            self.queue.popleft()
            done += 1
        return done

    def wait_event(self, event: Event) -> None:
        """What is put here from now on waits for what *event* has recorded so far."""
        number = event.recorded
        self.put_operation(lambda: event.reached >= number)

    def wait_stream(self, other: Stream) -> None:
        """What is put here from now on waits for all that was put on *other*."""
        if other is self or other.is_default:
            return
        event = Event()
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        """Wait here and now for all that was put on this stream."""
        self.device.run_until(lambda: not self.queue)

    def __enter__(self) -> Stream:
        self.device.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.device.entered.pop()


@define(eq=False)
class Mark:
    """The operation that an event is recorded by."""

    event: Event
    number: int

    def __call__(self) -> bool:
        """It is reached."""
        self.event.reached = max(self.event.reached, self.number)
        return True


class Event:
    """A mark on a stream. One that was never recorded has been reached."""

    def __init__(self, *_: object, **__: object) -> None:
        self.device = current()
        self.recorded = 0
        self.reached = 0
        self.stream: Stream | None = None
        """Where the latest mark is."""

    def record(self, stream: Stream | None = None) -> None:
        """Put the mark on a stream, the current one if none is named."""
        self.recorded += 1
        number = self.recorded

        self.stream = stream or self.device.entered[-1]
        self.stream.put_operation(Mark(self, number))

    def query(self) -> bool:
        """Whether the latest mark has been reached."""
        return self.reached >= self.recorded

    def synchronize(self) -> None:
        """Wait here and now for it."""
        self.device.run_until(self.query)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for it, the current one if none is named."""
        (stream or self.device.entered[-1]).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """Nothing takes time here."""
        return 0.0


@define(eq=False)
class Device:
    """The streams of one rank."""

    rng: Random
    streams: list[Stream] = field(factory=list)
    entered: list[Stream] = field(factory=list)
    copies: object = None
    """Who moves the bytes of its copies."""
    default: Stream = field(init=False)

    def __attrs_post_init__(self) -> None:
        with self.active():
            self.default = Stream()
        self.entered.append(self.default)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Be the device of this thread, for streams and events that are made meanwhile."""
        before = getattr(_HERE, "device", None)
        _HERE.device = self
        try:
            yield
        finally:
            _HERE.device = before

    @property
    def out(self) -> int:
        """Operations that have not been run."""
        return sum(len(stream.queue) for stream in self.streams)

    def run_until(self, reached: Callable[[], bool]) -> None:
        """Run streams, in an order that the seed draws, until this is so."""
        while not reached():
            busy = [stream for stream in self.streams if stream.queue]
            self.rng.shuffle(busy)
            if not any(stream.advance(1) for stream in busy):
                raise StuckError("waits for an event that no stream will record")

    def drift(self, chance: float, most: int) -> None:
        """Let time pass: each stream runs up to *most* operations, with this chance."""
        for stream in self.streams:
            if stream.queue and self.rng.random() < chance:
                stream.advance(self.rng.randint(1, most))

    def reach_marks(self) -> None:
        """A mark takes no time: each that stands at the head of its stream is reached."""
        for stream in self.streams:
            while stream.queue and isinstance(stream.queue[0], Mark):
                stream.advance(1)

    def land_all(self) -> None:
        """Run everything."""
        self.run_until(lambda: not self.out)


_HERE = threading.local()


def current() -> Device:
    """The device of this thread."""
    found: Device | None = getattr(_HERE, "device", None)
    if found is None:
        raise RuntimeError("no device is active in this thread")
    return found


class Module:
    """What SGLang calls its device module, with the names that its cache side asks for."""

    __name__ = "late"
    Event = Event

    @staticmethod
    @contextmanager
    def stream(stream: Stream | None) -> Iterator[None]:
        """Let what is put anywhere go to this stream."""
        if stream is None:
            yield
        else:
            with stream:
                yield

    @staticmethod
    def current_stream(*_: object) -> Stream:
        """Where it goes now."""
        return current().entered[-1]

    default_stream = current_stream

    @staticmethod
    def synchronize(*_: object) -> None:
        """Wait for all streams."""
        current().land_all()

    @staticmethod
    def is_available() -> bool:
        """It is."""
        return True


Module.Stream = Stream  # type: ignore[attr-defined]
