"""What works on this machine, and what is fastest: each mover is proved, and a short probe decides which copies it takes.

*Rules of this file.* A mover that raises, or moves a wrong byte, is taken out, with one line in the log; a start does not fail
because of it. Only an error that ends the context is raised: that device is lost. The probe has memory of its own, on both
ends, and touches no cache and no place of a host tier.

*Why a probe.* From which size on a copy engine is as fast as a kernel depends on the device, the link and the number of runs:
28 KiB on one H100, 8 KiB for few runs on an A30 (vllm-project/vllm#57555), elsewhere on machines without PCI Express.

*What it measures.* The time from the call until the bytes have landed, so that what the host does counts, too: the best of
`TRIES`, on a stream of its own, with nothing beside it. So it cannot see what a kernel takes from a forward pass; `WORTH`
stands for that.

*How long.* `BUDGET_S` and one point at most, and some 10 ms before for its memory; points that it did not reach have the movers
of `USUAL`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import product

import numpy as np
import torch
from attrs import define, evolve, field, frozen

from blocklife.copiers._movers import MOVERS, USUAL, MoverTable
from blocklife.copiers.torch._driver import DeviceLostError, cuda_driver, is_lost
from blocklife.copiers.torch._layout import CopyLayout, KvCache, Pages
from blocklife.copiers.torch._memory import HostMemory
from blocklife.copiers.torch._moves import BatchMover, ChoosingMover, KernelMover, Mover, RunMover, reason
from blocklife.errors import MisuseError
from blocklife.ledger.records import ON_DEVICE, Direction

logger = logging.getLogger(__name__)

BUDGET_S = 0.08
"""How long a probe may measure, in seconds."""

TRIES = 3
"""How often each point is measured; the first is the warm-up."""

AREA_BYTES = 4 << 20
"""Bytes that one measurement moves at most: where a point has more, fewer of its runs are moved. A point that would move the
same as the one above it is not measured again."""

WORTH = {Direction.LOAD: 1.2, Direction.STORE: 3.0}
"""How many times as fast as the copy engines a kernel must be to be worth its multiprocessors. Time to first token waits for
loads, and nothing for stores, which run beside the forward pass: there a kernel slowed a matrix product by a tenth, and at 16
KiB it stored no more than a batch (specs/measurements.md)."""

HOPELESS = 2.0
"""Slices that took so many times as long as the best are not measured with more runs: each costs the host the same."""


# --- at the start ---------------------------------------------------------------------------------------------------------


def mover_for_cuda(
    layout: CopyLayout, table: MoverTable | None = None, clock: Callable[[], float] = time.perf_counter
) -> ChoosingMover:
    """All movers that work for this layout, and the table by which they are chosen. Takes as long as compiling a kernel.

    *table*: None for a probe. Refuses: MisuseError while a graph is captured. Raises DeviceLostError.
    """
    device = layout.cache.device
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise MisuseError("torch copier: it cannot be made while a CUDA graph is captured (make it before or after)")

    def batch() -> Mover:
        driver = cuda_driver()
        if driver is None:
            raise RuntimeError("there is no driver to load")
        return BatchMover(driver)

    kinds: dict[str, Callable[[], Mover]] = {"kernel": lambda: KernelMover(layout), "batch": batch}
    movers: dict[str, Mover] = {}
    left_out: dict[str, str] = {}
    for name, kind in kinds.items():
        try:
            mover = kind()
            prove(mover, device)
        except Exception as problem:
            left_out[name] = _blamed(problem)
        else:
            movers[name] = mover
    if table is None:
        probed = probe_on(device, movers, clock)
        table, left_out = probed.table, left_out | probed.left_out
    for name, why in left_out.items():
        logger.warning("blocklife copier: copies on %s go without the mover %s, more slowly: %s", device, name, why)
    return ChoosingMover({**movers, "slices": RunMover(layout)}, left_out, table)


def _blamed(problem: Exception) -> str:
    """What a mover did wrong. Raises DeviceLostError where it is not to blame."""
    if is_lost(problem):
        raise DeviceLostError(f"{reason(problem)} (give the worker up)") from problem
    return reason(problem)


# --- the probe ------------------------------------------------------------------------------------------------------------


@frozen
class Probed:
    """What a probe has found."""

    table: MoverTable
    left_out: dict[str, str]
    """Movers that failed, and why."""


class ProbeArea:
    """Memory on both ends, in three areas each: two with content that differs in every byte, and one that copies go to."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._memory = HostMemory(AREA_BYTES, 3, pinned=self._cuda, near=device)
        try:
            self.host = self._memory.rows
            self.host[0] = torch.from_numpy(np.random.default_rng(0).integers(0, 256, AREA_BYTES, np.uint8))
            torch.bitwise_not(self.host[0], out=self.host[1])
            self.device = self.host.to(device)
        except BaseException:
            self.close()
            raise

    def layout(self) -> CopyLayout:
        """The areas as blocks and places, for movers that copy between tensors."""
        return CopyLayout(KvCache([[self.device]]), self._memory)

    def pages(self, direction: Direction, content: int, num_runs: int, nbytes: int) -> Pages:
        """So many runs of so many bytes, in no order, from one of the contents; as many as there is room for."""
        starts = np.random.default_rng(num_runs).permutation(num_runs) * nbytes
        source, target = (self.device, self.host) if direction is Direction.STORE else (self.host, self.device)
        sizes = np.full(num_runs, nbytes, np.int64)
        return Pages(source[content].data_ptr() + starts, target[2].data_ptr() + starts, sizes, np.zeros(num_runs, np.int64))

    def num_wrong(self, direction: Direction, content: int, nbytes: int) -> int:
        """How many of the first bytes that copies go to are not those of a content."""
        end = self.host if direction is Direction.STORE else self.device
        found, wanted = end[2, :nbytes], end[content, :nbytes]
        return 0 if torch.equal(found, wanted) else int((found != wanted).sum())

    def settle(self) -> None:
        """Wait until nothing runs on the current stream."""
        if self._cuda:
            torch.cuda.current_stream().synchronize()

    def close(self) -> None:
        """Give the memory back. Needs: no copy touches it any more."""
        self.host = torch.empty(0)
        self._memory.close()


def probe_on(device: torch.device, movers: Mapping[str, Mover], clock: Callable[[], float] = time.perf_counter) -> Probed:
    """Measure these movers, which take addresses, and slices. `USUAL` where there is no memory to measure with."""
    begin = clock()
    try:
        area = ProbeArea(device)  # on the engine's stream, which can have the device's part of it afterwards
        try:
            with aside(device):
                run = _Probe(area, {**movers, "slices": RunMover(area.layout())}, clock, clock() + BUDGET_S)
                probed = run.probed()
        finally:  # every measurement has waited for its end
            area.close()
    except DeviceLostError:
        raise
    except Exception as problem:
        logger.warning("blocklife copier: movers on %s are not probed, and chosen as on an H100: %s", device, _blamed(problem))
        return Probed(USUAL, {})
    logger.info(
        "blocklife copier: movers on %s were probed in %.0f ms, at %d of %d points: %s",
        device, (clock() - begin) * 1e3, len(run.seconds), 2 * len(run.points()), probed.table.as_json(),
    )  # fmt: skip
    return probed


_Point = tuple[Direction, int, int]
"""A direction, and the row and the column of a table."""


@define(eq=False)
class _Probe:
    """The times so far."""

    area: ProbeArea
    movers: dict[str, Mover]
    clock: Callable[[], float]
    until: float
    seconds: dict[_Point, dict[str, float]] = field(factory=dict)
    left_out: dict[str, str] = field(factory=dict)

    @staticmethod
    def points() -> list[tuple[int, int]]:
        """Row and column of every point, column by column: few runs come before many."""
        return [(row, column) for column, row in product(range(len(USUAL.run_bytes)), range(len(USUAL.num_runs)))]

    def probed(self) -> Probed:
        """Measure as long as there is time, and choose."""
        hopeless: set[tuple[Direction, int]] = set()
        for (row, column), direction in product(self.points(), ON_DEVICE):
            if self.clock() > self.until:
                break
            num_runs, nbytes = _runs(row, column), USUAL.run_bytes[column]
            if row and num_runs == _runs(row - 1, column):
                self.seconds[direction, row, column] = self.seconds[direction, row - 1, column]
                continue
            found = self.seconds[direction, row, column] = {}
            for name in MOVERS:
                skipped = name == "slices" and (direction, column) in hopeless
                if name in self.movers and name not in self.left_out and not skipped:
                    self._measure(name, found, direction, num_runs, nbytes)
            if found.get("slices", 0.0) > HOPELESS * min(found.values(), default=0.0):
                hopeless.add((direction, column))
        return Probed(
            evolve(USUAL, load=self._rows(Direction.LOAD, USUAL.load), store=self._rows(Direction.STORE, USUAL.store)),
            self.left_out,
        )

    def _measure(self, name: str, found: dict[str, float], direction: Direction, num_runs: int, nbytes: int) -> None:
        """Note how long a mover takes at a point, or why it is out."""
        took = []
        try:
            for attempt in range(TRIES):
                pages = self.area.pages(direction, attempt % 2, num_runs, nbytes)
                begin = self.clock()
                try:
                    self.movers[name].move(pages, direction)
                finally:  # if it raises, some may have been queued
                    self.area.settle()
                took.append(self.clock() - begin)
                # After the last two, which bring different content: what was there before can be the same as one of them.
                if attempt >= TRIES - 2 and (wrong := self.area.num_wrong(direction, attempt % 2, num_runs * nbytes)):
                    raise RuntimeError(
                        f"{wrong} bytes are wrong after a {direction.name.lower()} of {num_runs} runs of {nbytes}"
                    )
            found[name] = min(took)
        except Exception as problem:
            self.left_out[name] = _blamed(problem)

    def _rows(self, direction: Direction, usual: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        """The table of one direction: the best of those that never failed."""

        def best(row: int, column: int) -> str:
            took = self.seconds.get((direction, row, column), {})
            there = [name for name in took if name not in self.left_out]
            if not there:
                return usual[row][column]
            return min(there, key=lambda name: took[name] * (WORTH[direction] if name == "kernel" else 1.0))

        return tuple(tuple(best(row, column) for column in range(len(usual[row]))) for row in range(len(usual)))


def _runs(row: int, column: int) -> int:
    """How many runs are moved at a point."""
    return min(USUAL.num_runs[row], AREA_BYTES // USUAL.run_bytes[column])


# --- proof ----------------------------------------------------------------------------------------------------------------


_PROOF_BYTES = 64 << 10
_PROOF_RUNS = ((0, 32 << 10), (33 << 10, 16), (40 << 10, 5_008))
"""The start and the length of each run of a proof."""


def prove(mover: Mover, device: torch.device) -> None:
    """Let a mover that takes addresses copy bytes to the host and back, on a stream of its own, and wait for them.

    Raises RuntimeError if the bytes are wrong afterwards, and whatever the mover raises.
    """
    cuda = device.type == "cuda"
    content = torch.from_numpy(np.random.default_rng(0).integers(0, 256, _PROOF_BYTES, np.uint8))
    sent = content.to(device)
    host = torch.zeros(_PROOF_BYTES, dtype=torch.uint8, pin_memory=cuda)
    back = torch.zeros_like(sent)
    starts, nbytes = (np.array(column, np.int64) for column in zip(*_PROOF_RUNS, strict=True))

    def pages(source: torch.Tensor, target: torch.Tensor) -> Pages:
        return Pages(source.data_ptr() + starts, target.data_ptr() + starts, nbytes, np.zeros(len(nbytes), np.int64))

    with aside(device):
        try:
            mover.move(pages(sent, host), Direction.STORE)
            mover.move(pages(host, back), Direction.LOAD)
        finally:  # if it raises, some may have been queued, and the memory is freed below
            if cuda:
                torch.cuda.current_stream().synchronize()
    wanted = torch.zeros_like(content)
    for start, length in _PROOF_RUNS:
        wanted[start : start + length] = content[start : start + length]
    for end, found in (("the host", host), ("the device", back.cpu())):
        if wrong := int((found != wanted).sum()):
            raise RuntimeError(f"{wrong} bytes on {end} are wrong after a copy")


def aside(device: torch.device) -> AbstractContextManager[object]:
    """A new stream that runs after the work queued on the current one; does nothing where there are no streams."""
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    return torch.cuda.stream(stream)
