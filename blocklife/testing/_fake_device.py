"""A fake device: it copies nothing, records the order of operations, completes them as a test directs, and finds races.

*Rules of this file.* It knows only byte ranges, streams and events: no tensors, places, jobs, or torch. What it finds becomes a
line in `findings`, never an exception, which the copier under test could swallow.

*Theory.* Every operation has a vector clock: for each stream, how many of its operations certainly end before this one begins.
The clock grows along a stream, from a recorded event to the operations that wait for it, and through the host: an operation
queued after the host has seen an event pass begins after everything before that event. Two operations on the same byte, one of
them writing, **race** if neither is in the other's clock. That does not depend on the order in which operations complete, so
one run stands for every interleaving in which the host gets the same answers; a test, or chance, chooses these answers.

Recording an event again before its point was passed, or while a stream has yet to reach its wait for it, is a finding too: a
device may keep only one point for each event.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

from attrs import define, field

from blocklife.errors import MisuseError

if TYPE_CHECKING:
    from blocklife.copiers.torch._layout import Pages
    from blocklife.copiers.torch._streams import Stream, StreamEvent
    from blocklife.ledger.records import Direction

Span = tuple[int, int]
"""Bytes from the first address up to, not including, the second."""


class StuckError(RuntimeError):
    """The host waits, but no operation on the device can complete any more."""


@define(eq=False)
class Operation:
    """One operation of a stream: a copy, a kernel, the recording of an event, or a wait for one."""

    stream: FakeStream
    number: int
    """Its number in its stream, from 1."""
    label: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    awaited: Operation | None
    """The recording that must land first; only a wait on an event that was ever recorded has one."""
    clock: dict[FakeStream, int]
    """How many operations of each stream end before this one begins; on its own stream, including itself."""
    landed: bool = False

    def after(self, other: Operation) -> bool:
        """Whether the other one certainly ends before this one begins."""
        return self.clock.get(other.stream, 0) >= other.number


@define(eq=False)
class FakeEvent:
    """An event of the fake device. Once ``error`` is set, queries by the host raise it."""

    device: FakeDevice
    name: str
    error: Exception | None = None
    recorded: Operation | None = None
    waits: list[Operation] = field(factory=list)

    def query(self) -> bool:
        """Whether its recording has landed; the host knows from then on."""
        if self.error is not None:
            raise self.error
        if self.recorded is None:
            return True
        if self.recorded.landed:
            self.device.host_saw(self.recorded)
        return self.recorded.landed

    def synchronize(self) -> None:
        """Complete operations in random order until the recording is complete. Raises StuckError if it never can be."""
        while not self.query():
            self.device.land_any()


@define(eq=False)
class FakeStream:
    """A queue of operations. Set ``hangs`` to stop it, and ``refuses`` to let calls (copy, record, wait) raise."""

    device: FakeDevice
    name: str
    queue: deque[Operation] = field(factory=deque)
    clock: dict[FakeStream, int] = field(factory=dict)
    num_queued: int = 0
    hangs: bool = False
    refuses: set[str] = field(factory=set)

    def record(self, event: StreamEvent) -> None:
        """Queue a recording. Adds a finding if the event may not be recorded yet."""
        own = _own(event)
        self._refuse("record")
        if own.recorded is not None and not own.recorded.landed:
            self.device.findings.append(
                f"{own.name} is recorded again before its point on {own.recorded.stream.name} was passed"
            )
        for wait in own.waits:
            if not wait.landed:
                self.device.findings.append(f"{own.name} is recorded again while {wait.stream.name} has yet to wait for it")
        own.waits.clear()
        own.recorded = self._queue(f"record {own.name}")

    def wait(self, event: StreamEvent) -> None:
        """Queue a wait for the event's latest recording."""
        own = _own(event)
        self._refuse("wait")
        if own.recorded is not None:
            _merge(self.clock, own.recorded.clock)
        own.waits.append(self._queue(f"wait {own.name}", awaited=own.recorded))

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Queue a copy. If it refuses, the first half of its runs is queued nevertheless."""
        runs = [*zip(pages.source.tolist(), pages.target.tolist(), pages.nbytes.tolist(), strict=True)]
        queued = runs[: len(runs) // 2] if "copy" in self.refuses else runs
        reads = tuple((source, source + size) for source, _, size in queued)
        writes = tuple((target, target + size) for _, target, size in queued)
        self.device.num_copies += 1
        self._queue(f"{direction.name.lower()} {self.device.num_copies}", reads, writes)
        self._refuse("copy")

    def kernel(self, label: str, reads: tuple[Span, ...] = (), writes: tuple[Span, ...] = ()) -> None:
        """Queue a kernel of the engine."""
        self._queue(label, reads, writes)

    def _refuse(self, call: str) -> None:
        if call in self.refuses:
            raise RuntimeError(f"the driver refuses to {call}")

    def _queue(
        self, label: str, reads: tuple[Span, ...] = (), writes: tuple[Span, ...] = (), awaited: Operation | None = None
    ) -> Operation:
        self.num_queued += 1
        _merge(self.clock, self.device.host_clock)
        self.clock[self] = self.num_queued
        operation = Operation(self, self.num_queued, label, reads, writes, awaited, dict(self.clock))
        self.queue.append(operation)
        self.device.look_at(operation)
        return operation


class FakeDevice:
    """Streams, events and findings. ``engine`` is the stream that the engine computes on."""

    def __init__(self, seed: int = 0) -> None:
        self._dice = random.Random(seed)
        self.streams: list[FakeStream] = []
        self.events: list[FakeEvent] = []
        self.findings: list[str] = []
        self.operations: list[Operation] = []
        """All operations that touched any byte, in the order in which they were queued."""
        self.num_copies = 0
        self.host_clock: dict[FakeStream, int] = {}
        """What the host knows to be complete: the clock of everything queued from now on."""
        self._touched: list[Operation] = []
        self.engine = self.stream("engine")
        self.capturing = False
        """Whether the engine captures a graph now."""

    # What a copier asks of a device.

    @property
    def left_out(self) -> dict[str, str]:
        """None: this device moves no bytes."""
        return {}

    def stream(self, name: str, *, copies: bool = True, priority: int = 0) -> FakeStream:
        """A new stream."""
        self.streams.append(FakeStream(self, name))
        return self.streams[-1]

    def event(self) -> FakeEvent:
        """A new event."""
        self.events.append(FakeEvent(self, f"event {len(self.events) + 1}"))
        return self.events[-1]

    def timer(self) -> None:
        """None: this device keeps no time."""

    def follow(self, stream: Stream, engine: object) -> None:
        """Order the stream after an engine's stream, or an event; None for `engine`."""
        if isinstance(engine, FakeEvent):
            stream.wait(engine)
            return
        event = FakeEvent(self, "the engine's own event")
        self._engine_stream(engine).record(event)
        stream.wait(event)

    def precede(self, event: StreamEvent, engine: object) -> None:
        """Order an engine's stream after the event; None for `engine`."""
        self._engine_stream(engine).wait(event)

    def synchronize(self) -> None:
        """Land everything. Raises StuckError if something can never land."""
        while any(stream.queue for stream in self.streams):
            self.land_any()
        for stream in self.streams:
            _merge(self.host_clock, stream.clock)

    def captures(self) -> bool:
        """What `capturing` says."""
        return self.capturing

    def close(self) -> None:
        """Nothing to release."""

    # What a test does with it.

    def named(self, name: str) -> FakeStream:
        """The stream of that name. Refuses: MisuseError if there is none."""
        for stream in self.streams:
            if stream.name == name:
                return stream
        raise MisuseError(f"fake device: no stream {name!r} (there are {', '.join(stream.name for stream in self.streams)})")

    def landable(self) -> list[FakeStream]:
        """The streams whose first operation may land now."""
        return [stream for stream in self.streams if stream.queue and not stream.hangs and _may_land(stream.queue[0])]

    def land(self, stream: FakeStream) -> Operation:
        """Land the first operation of a stream. Refuses: MisuseError if it may not land now."""
        if stream not in self.landable():
            raise MisuseError(f"fake device: nothing on {stream.name} may land now (ask landable())")
        operation = stream.queue.popleft()
        operation.landed = True
        return operation

    def land_any(self) -> Operation:
        """Complete one random operation. Raises StuckError if none can be."""
        streams = self.landable()
        if not streams:
            left = ", ".join(f"{stream.name} at {stream.queue[0].label}" for stream in self.streams if stream.queue)
            raise StuckError(f"nothing can land any more: {left or 'all streams are empty'}")
        return self.land(self._dice.choice(streams))

    # Bookkeeping of the streams and events.

    def host_saw(self, operation: Operation) -> None:
        """Note that the host knows this operation, and all before it, to have landed."""
        _merge(self.host_clock, operation.clock)
        self._touched = [other for other in self._touched if self.host_clock.get(other.stream, 0) < other.number]

    def look_at(self, operation: Operation) -> None:
        """Add a finding for each operation on the same bytes that is not ordered before this one."""
        if not operation.reads and not operation.writes:
            return
        self.operations.append(operation)
        for other in self._touched:
            if not operation.after(other) and conflict(operation, other):
                self.findings.append(f"{operation.label} races with {other.label}")
        self._touched.append(operation)

    def _engine_stream(self, engine: object) -> FakeStream:
        if engine is None:
            return self.engine
        if not isinstance(engine, FakeStream):
            raise MisuseError(f"fake device: {type(engine).__name__} is not one of its streams (make one with stream())")
        return engine


def conflict(one: Operation, other: Operation) -> bool:
    """Whether two operations touch a common byte, and one of them writes it."""
    return _meet(one.writes, other.writes) or _meet(one.writes, other.reads) or _meet(one.reads, other.writes)


def _meet(some: tuple[Span, ...], others: tuple[Span, ...]) -> bool:
    return any(first < stop and start < last for first, last in some for start, stop in others)


def _may_land(operation: Operation) -> bool:
    return operation.awaited is None or operation.awaited.landed


def _merge(clock: dict[FakeStream, int], other: dict[FakeStream, int]) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


def _own(event: StreamEvent) -> FakeEvent:
    if not isinstance(event, FakeEvent):
        raise MisuseError(f"fake device: {type(event).__name__} is not one of its events (make one with event())")
    return event
