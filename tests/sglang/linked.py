"""blocklife's linker in the rig: its copies run on the rig's late streams, and every row they read is compared with its twin.

A world asks for it by the name of a class, as SGLang's users do; the classes here differ in what goes wrong with the copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import torch
from attrs import define, evolve

from blocklife.copiers import Copier, FaultRates, FaultyCopier
from blocklife.copiers.torch import HostMemory, KvCache, TorchCopier
from blocklife.copiers.torch._layout import CopyLayout, Pages
from blocklife.copiers.torch._streams import StreamEvent, Timer
from blocklife.engines.sglang.linker import BlocklifeLinker
from blocklife.engines.sglang.linker._transport import RANK
from blocklife.ledger import Direction, Limits, Transfer
from tests.sglang import device as late
from tests.sglang.content import ROW
from tests.sglang.copies import Copies
from tests.sglang.device import Module, current
from tests.sglang.worlds import LATE, SETS, WorldSpec

ROW_BYTES = 4 * ROW


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor, from its first on."""
    size, view = tensor.element_size(), torch.empty(0, dtype=torch.uint8)
    view.set_(tensor.untyped_storage(), tensor.storage_offset() * size, (tensor.numel() * size,), (1,))
    return view


@define(eq=False)
class LateEvent:
    """A mark on one of the rig's streams."""

    inner: late.Event

    def query(self) -> bool:
        """Whether it has been reached."""
        return self.inner.query()

    def synchronize(self) -> None:
        """Wait for it, here and now."""
        self.inner.synchronize()


@define(eq=False)
class LateStream:
    """One of the rig's streams, as a copier needs it."""

    inner: late.Stream
    layout: CopyLayout
    rng: Random

    def record(self, event: StreamEvent) -> None:
        """Put a mark here."""
        _inner(event).record(self.inner)

    def wait(self, event: StreamEvent) -> None:
        """What comes here from now on waits for a mark."""
        self.inner.wait_event(_inner(event))

    def copy(self, pages: Pages, direction: Direction) -> None:
        """Queue a copy in two halves; the twins move at once."""
        copies = current().copies
        assert isinstance(copies, Copies)
        moves = self.moves(copies, pages, direction)
        what = "to host" if direction is Direction.STORE else "to device"
        early = [torch.tensor([self.rng.random() < 0.5 for _ in want], dtype=torch.bool) for _, _, want in moves]

        def move(second: bool) -> None:
            for (source, target, want), first in zip(moves, early, strict=True):
                rows = ~first if second else first
                copies.witness.compare(copies.rank, f"a copy {what}", "its rows", source[rows], want[rows])
                target[rows] = source[rows]
                copies.moved[what] += int(rows.sum())

        self.inner.put(lambda: move(False))
        self.inner.put(lambda: move(True))

    def moves(
        self, copies: Copies, pages: Pages, direction: Direction
    ) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """The rows that are read, those that are written, and what must be read; the twins move at once."""
        return [self._rows(copies, *run, direction) for run in self._runs(pages, direction)]

    def _runs(self, pages: Pages, direction: Direction) -> list[tuple[int, int, int, int]]:
        """For each run of bytes its layer, where it is in that and in host memory, and how long it is."""
        device, host = self.layout.offsets(pages, direction)
        columns = (np.asarray(each).tolist() for each in (pages.layer, device, host, pages.nbytes))
        return list(zip(*columns, strict=True))

    def _rows(
        self, copies: Copies, layer: int, at: int, place: int, count: int, direction: Direction
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The rows that a run reads, those that it writes, and what it must read."""
        tensor, rows = self.layout.cache.layers[layer], self.layout.rows
        both = [
            (_bytes_of(of(tensor))[at : at + count], _bytes_of(of(rows))[place : place + count])
            for of in (lambda each: each, copies.twins.of)
        ]
        (source, target), (twin, other) = both if direction is Direction.STORE else [pair[::-1] for pair in both]
        want = twin.clone()
        other.copy_(want)
        return source.view(-1, ROW_BYTES), target.view(-1, ROW_BYTES), want.view(-1, ROW_BYTES)


class LateDevice:
    """The rig's device, as a copier needs it."""

    left_out: dict[str, str] = {}  # noqa: RUF012  # nothing is ever put in
    streams: type[LateStream] = LateStream

    def __init__(self, layout: CopyLayout) -> None:
        self._layout = layout

    def stream(self, name: str, *, copies: bool = True, priority: int = 0) -> LateStream:
        """A new stream."""
        here = current()
        return self.streams(late.Stream(), self._layout, Random(f"{name}/{here.rng.random()}"))

    def event(self) -> LateEvent:
        """A new mark."""
        return LateEvent(late.Event())

    def captures(self) -> bool:
        """There are no graphs here."""
        return False

    def close(self) -> None:
        """Nothing to release."""

    def timer(self) -> Timer | None:
        """Nothing takes time here."""
        return None

    def follow(self, stream: LateStream, engine: object) -> None:
        """Let a stream wait for what an engine's stream has been given."""
        stream.inner.wait_stream(self._stream(engine))

    def precede(self, event: StreamEvent, engine: object) -> None:
        """Let an engine's stream wait for a mark."""
        self._stream(engine).wait_event(_inner(event))

    def synchronize(self) -> None:
        """Wait for all streams."""
        current().land_all()

    def _stream(self, engine: object) -> late.Stream:
        found = Module.current_stream() if engine is None else engine
        assert isinstance(found, late.Stream)
        return found


def _inner(event: StreamEvent) -> late.Event:
    assert isinstance(event, LateEvent)
    return event.inner


class LateLinker(BlocklifeLinker):
    """The linker with the rig's streams and a clock that counts steps."""

    has_streams = True
    devices: type[LateDevice] = LateDevice

    def make_copier(self, cache: KvCache, memory: HostMemory, limits: Limits) -> TorchCopier:
        """TorchCopier itself, on the rig's streams."""
        device = self.devices(CopyLayout(cache, memory))
        return TorchCopier(cache, memory, worker=RANK, limits=limits, device=device)  # type: ignore[arg-type]

    def num_completed_offloads(self) -> int:
        """A step begins."""
        self._time = self.now() + 1.0
        return super().num_completed_offloads()

    def now(self) -> float:
        """The number of the step."""
        return getattr(self, "_time", 0.0)


class FaultyLinker(LateLinker):
    """The same, with copies that fail, hang, and report late, twice and in another order."""

    rates = FaultRates(fail=0.25, late=0.1, twice=0.05, reorder=0.1, never=0.05)

    def wrap_copier(self, copier: TorchCopier) -> Copier:
        """Faults of this rank."""
        copies = current().copies
        assert isinstance(copies, Copies)
        return FaultyCopier[Transfer](copier, self.rates, np.random.default_rng(copies.rank))


class UnlaunchedLinker(LateLinker):
    """The same as the first, but the device refuses every third copy on the first rank, and every fourth on the next."""

    def wrap_copier(self, copier: TorchCopier) -> Copier:
        """Count, and raise."""
        copies = current().copies
        assert isinstance(copies, Copies)
        launch, count, every = copier.launch, [0], 3 + copies.rank

        def launched(transfer: Transfer) -> None:
            count[0] += 1
            if count[0] % every == 0:
                raise RuntimeError("out of handles")
            launch(transfer)

        copier.launch = launched  # type: ignore[method-assign]
        return copier


class ImpatientLinker(LateLinker):
    """The same as the first, with a deadline of one step."""

    def __init__(self, *args: Any, extra_config: Mapping[str, object], **kwargs: Any) -> None:
        super().__init__(*args, extra_config={**extra_config, "deadline_s": 1.0}, **kwargs)


class LayersLinker(LateLinker):
    """The same as the first, with loads of which each layer waits for its own part."""

    def __init__(self, *args: Any, extra_config: Mapping[str, object], **kwargs: Any) -> None:
        super().__init__(*args, extra_config={**extra_config, "load_parts": 2}, **kwargs)


def linked(kind: type[BlocklifeLinker], **more: Any) -> WorldSpec:
    """A small late world whose host memory is kept by a linker of this class."""
    spec = WorldSpec(page_tokens=4, device_pages=24, host_pages=36, overlap=True, lag=LATE)
    return evolve(spec, linker=f"{kind.__module__}:{kind.__name__}", **more)


LINKED = SETS["linked"]
"""Worlds with a linker of ours; in all of them every byte is right."""
