"""Devices on which something can be slow on purpose, so that whoever does not wait for it comes too early.

A `Stage` is what a scene is played on. `CudaStage` is a GPU: a kernel that only counts cycles keeps a stream busy. `FakeStage`
is the fake device of `blocklife.testing._fake_device` with bytes: what was given to a slow stream lands after everything
else that may land. So each scene, and what decides whether its bytes are right, is tried without a GPU, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch
from attrs import define, field

from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._moves import Mover, RunMover
from blocklife.copiers.torch._streams import StreamDevice
from blocklife.ledger.records import Direction
from blocklife.testing import FakeDevice, FakeStream
from blocklife.testing._fake_device import Operation
from tests.gpu.movers import ForcedCuda, made

NAP_MS = 15.0
"""How long a slow stream sleeps: many times what the host needs to queue a scene, and what its other copies take."""


TRIES = 20
"""How often a scene is begun again when the host was too slow to queue all of it while a stream slept."""

Shown = TypeVar("Shown")


def shown(scene: Callable[[], Shown | None]) -> Shown:
    """What a scene shows, as soon as it shows anything: None says that somebody awoke too early."""
    for _ in range(TRIES):
        if (found := scene()) is not None:
            return found
    raise AssertionError(f"{TRIES} times the host was too slow to queue a scene in the {NAP_MS:g} ms that a stream sleeps")


class Stage(Protocol):
    """What a scene is played on."""

    pinned: bool
    where: torch.device
    engine: object
    """The stream that the engine computes on."""

    def device(self, layout: CopyLayout) -> StreamDevice:
        """The device of the copier. Called once, first of all."""
        ...

    def another(self) -> object:
        """A second stream of the engine."""
        ...

    def event(self, stream: object) -> object:
        """An event of the engine, recorded on one of its streams."""
        ...

    def kernel(self, run: Callable[[], None], stream: object) -> None:
        """Something that the engine computes on one of its streams."""
        ...

    def slow(self, stream: object) -> None:
        """What is given to this stream from now on begins late: one of the engine's, or one of the copier's by its name."""
        ...

    def asleep(self) -> bool:
        """Whether no slow stream has begun with what it was given since."""
        ...

    def others(self) -> None:
        """Let run what waits for no slow stream. Returns when it has run, or when a slow one is awake."""
        ...

    def finish(self) -> None:
        """Let everything run to its end."""
        ...


# --- a GPU ----------------------------------------------------------------------------------------------------------------


def nap(ms: float) -> None:
    """Keep the current stream busy for about so long, on one multiprocessor; torch tests itself with this private function."""
    torch.cuda._sleep(int(ms * _cycles_per_ms()))


@functools.cache
def _cycles_per_ms() -> float:
    """Measured when the clock has risen, and the quickest of several: a nap may be longer than asked for, hardly shorter."""
    rates = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(50_000_000)
        end.record()
        end.synchronize()
        rates.append(50_000_000 / begin.elapsed_time(end))
    return float(max(rates))


class CudaStage:
    """The current CUDA device. ``mover`` is one of `movers.NAMES`."""

    pinned = True

    def __init__(self, mover: str = "chosen") -> None:
        self.where = torch.device("cuda", torch.cuda.current_device())
        self._mover = mover
        self._made: ForcedCuda | None = None
        self._engines: list[torch.cuda.Stream] = []
        self._naps: list[tuple[torch.cuda.Stream, torch.cuda.Event]] = []
        nap(0.0)
        # Streams come from a pool of 32, one after the other, and share eight queues of the hardware in turn: the engine's,
        # those on which movers are tried, and the three of the copier are made in a row, so that no two share a queue.
        self.engine: object = self.another()

    def device(self, layout: CopyLayout) -> StreamDevice:
        self._made = ForcedCuda(layout, made(self._mover, layout))
        return self._made

    def another(self) -> torch.cuda.Stream:
        self._engines.append(torch.cuda.Stream(device=self.where))
        return self._engines[-1]

    def event(self, stream: object) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(self._stream(stream))
        return event

    def kernel(self, run: Callable[[], None], stream: object) -> None:
        with torch.cuda.stream(self._stream(stream)):
            run()

    def slow(self, stream: object) -> None:
        slow = self._stream(stream)
        with torch.cuda.stream(slow):
            nap(NAP_MS)
        self._naps.append((slow, self.event(slow)))

    def asleep(self) -> bool:
        return all(not awake.query() for _, awake in self._naps)

    def others(self) -> None:
        slow = [stream for stream, _ in self._naps]
        quick = [stream for stream in (*self._engines, *self._copiers()) if stream not in slow]
        while self.asleep() and not all(stream.query() for stream in quick):
            pass

    def finish(self) -> None:
        torch.cuda.synchronize(self.where)
        self._naps.clear()

    def _copiers(self) -> list[torch.cuda.Stream]:
        return [] if self._made is None else [stream.inner for stream in self._made.named.values()]

    def _stream(self, stream: object) -> torch.cuda.Stream:
        if isinstance(stream, str) and self._made is not None:
            return self._made.named[stream].inner
        assert isinstance(stream, torch.cuda.Stream)
        return stream


# --- none -----------------------------------------------------------------------------------------------------------------


class MovingStream(FakeStream):
    """A stream of `MovingDevice`."""

    def copy(self, pages: Pages, direction: Direction) -> None:
        super().copy(pages, direction)
        if isinstance(self.device, MovingDevice):
            self.device.move(self.queue[-1], pages, direction)


@define(eq=False, init=False)
class MovingDevice(FakeDevice):
    """A fake device that does what it lands, and that lands naps, and what is behind them, when nothing else is left."""

    mover: Mover
    effects: dict[Operation, Callable[[], None]] = field(factory=dict)
    naps: list[Operation] = field(factory=list)

    def __init__(self) -> None:
        self.effects, self.naps = {}, []
        super().__init__()

    def stream(self, name: str, *, copies: bool = True, priority: int = 0) -> FakeStream:
        self.streams.append(MovingStream(self, name))
        return self.streams[-1]

    def move(self, operation: Operation, pages: Pages, direction: Direction) -> None:
        self.effects[operation] = lambda: self.mover.move(pages, direction)

    def awake(self) -> list[FakeStream]:
        return [stream for stream in super().landable() if stream.queue[0] not in self.naps]

    def landable(self) -> list[FakeStream]:
        return self.awake() or super().landable()

    def land(self, stream: FakeStream) -> Operation:
        operation = super().land(stream)
        self.effects.pop(operation, lambda: None)()
        return operation


class FakeStage:
    """CPU tensors, and a device that lands everything as late as a slow one can."""

    pinned = False
    where = torch.device("cpu")

    def __init__(self) -> None:
        self.fake = MovingDevice()
        self.engine: object = self.fake.engine

    def device(self, layout: CopyLayout) -> StreamDevice:
        self.fake.mover = RunMover(layout)
        return self.fake

    def another(self) -> FakeStream:
        return self.fake.stream("another")

    def event(self, stream: object) -> object:
        event = self.fake.event()
        self._stream(stream).record(event)
        return event

    def kernel(self, run: Callable[[], None], stream: object) -> None:
        self._stream(stream).kernel("kernel")
        self.fake.effects[self._stream(stream).queue[-1]] = run

    def slow(self, stream: object) -> None:
        self._stream(stream).kernel("nap")
        self.fake.naps.append(self._stream(stream).queue[-1])

    def asleep(self) -> bool:
        return all(not nap.landed for nap in self.fake.naps)

    def others(self) -> None:
        while streams := self.fake.awake():
            self.fake.land(streams[0])

    def finish(self) -> None:
        self.fake.synchronize()
        self.fake.naps.clear()

    def _stream(self, stream: object) -> FakeStream:
        if isinstance(stream, str):
            return self.fake.named(stream)
        assert isinstance(stream, FakeStream)
        return stream
